/*
 * fault.h: a backend that fails chosen calls of another one, for tests of what is done about it.
 */
#ifndef PLEAT_TESTS_FAULT_H
#define PLEAT_TESTS_FAULT_H

#include <pleat/vmm.h>
#include <stdbool.h>
#include <vmm/table.h>

typedef enum pleat__fault_verb {
#define PLEAT__FAULT_ENUM(verb, ...) PLEAT__FAULT_##verb,
    PLEAT__VMM_VERBS(PLEAT__FAULT_ENUM)
#undef PLEAT__FAULT_ENUM
        PLEAT__FAULT_any, /* whichever comes */
} pleat__fault_verb;

typedef struct pleat__fault_plan {
    pleat__fault_verb verb;
    uint64_t nth; /* the call that fails, counted from 1 from now on; 0: none does */
    bool forever; /* so do all after it */
    /* A failing unmap or set_access is carried out all the same: their contract leaves the state
     * open, so a caller must be right either way. Other verbs change nothing when they fail. */
    bool carried_out;
    uint64_t second; /* a later call that fails as well; 0: none does */
} pleat__fault_plan;

/* `inner` outlives it; nothing fails until armed. create and reserve fail as out of memory, the
 * others as a driver error 999. */
PLEAT_NODISCARD pleat_result pleat__fault_create(pleat_vmm inner, pleat_vmm *out);
/* pre: `vmm` is a fault decorator. Restarts the counts. */
void pleat__fault_arm(const pleat_vmm *vmm, pleat__fault_plan plan);
/* Calls since it was armed that the plan's verb fits, and how many of them failed by plan. */
uint64_t pleat__fault_calls(const pleat_vmm *vmm);
uint64_t pleat__fault_hits(const pleat_vmm *vmm);

#endif
