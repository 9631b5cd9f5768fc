/*
 * known.h: what is known of live allocations beside where they lie, in one table by address, which
 * has those of which there is anything to say. It goes when the program frees them.
 *
 * TAGS  What a thread allocates may have a name, by which it is paused. A thread's tag is its own;
 *       names are the process's, so that each runtime knows them.
 */
#ifndef PLEAT_RUNTIME_FACE_KNOWN_H
#define PLEAT_RUNTIME_FACE_KNOWN_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <stdatomic.h>
#include <stdbool.h>

/* All 0: nothing. */
typedef struct pleat__known {
    uint64_t born; /* the number of its request (spill.h); 0: it is not known */
    uint32_t tag;  /* by which it is paused; 0: none */
    bool shared;   /* other processes may see its memory, so that it stays behind its address */
} pleat__known;

/* All with the lock. Of what begins at an address. */
pleat__known pleat__known_of(const pleat_runtime *runtime, pleat_va address);
/* All of it anew. PLEAT_E_NO_MEMORY, not where there is as much as before, or nothing, to say. */
PLEAT_NODISCARD pleat_result pleat__known_set(pleat_runtime *runtime, pleat_va address,
                                              pleat__known known);
/* The program frees it. */
void pleat__known_forget(pleat_runtime *runtime, pleat_va address);

/* Whether any thread of the process ever had a tag. */
extern atomic_bool pleat__has_tags;
/* The calling thread's tag now; 0: none. */
uint32_t pleat__tag_now(void);
/* The number of a tag, 0 for no name or an empty one. PLEAT_E_NOT_FOUND: no thread ever had it. */
PLEAT_NODISCARD pleat_result pleat__tag_named(const char *name, uint32_t *tag);

#endif
