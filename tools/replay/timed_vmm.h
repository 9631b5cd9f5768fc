/*
 * timed_vmm.h: a backend that notes how long the verbs of another one took on the thread that asks
 * for memory, so that what a request took can be told apart from what its verbs took.
 */
#ifndef PLEAT_TOOLS_TIMED_VMM_H
#define PLEAT_TOOLS_TIMED_VMM_H

#include <internal/arena.h>
#include <pleat/vmm.h>
#include <pthread.h>
#include <vmm/table.h>

enum {
#define TIMED_ENUM(verb, ...) TIMED_##verb,
    PLEAT__VMM_VERBS(TIMED_ENUM)
#undef TIMED_ENUM
        TIMED_VERBS
};

typedef struct timed_verb {
    uint64_t calls, ns;
} timed_verb;

typedef struct timed_vmm {
    pleat_vmm_ops ops;
    pleat_vmm inner; /* complete */
    pthread_t thread;
    uint64_t reading_ns;             /* what reading the clock costs */
    uint64_t verb_ns;                /* in verbs on that thread, with both readings around each */
    uint64_t verbs;                  /* of them, those that are no events' */
    timed_verb by_verb[TIMED_VERBS]; /* with one */
} timed_vmm;

/* `timed` is the caller's, as `inner` is; both outlive *out, of which nothing is to be destroyed.
 * The thread is the one that calls. */
PLEAT_NODISCARD pleat_result timed_vmm_begin(pleat_vmm inner, pleat__arena *arena, timed_vmm *timed,
                                             pleat_vmm *out);

#endif
