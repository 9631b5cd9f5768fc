/*
 * known.h: what is known of live allocations beside where they lie, in one table by address, which
 * has those of which there is anything to say. It goes when the program frees them, but for what
 * says just that.
 *
 * ROOM  Whoever must not fail to set it has room for it promised before.
 */
#ifndef PLEAT_RUNTIME_FACE_KNOWN_H
#define PLEAT_RUNTIME_FACE_KNOWN_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <stdbool.h>

/* All 0: nothing. */
typedef struct pleat__known {
    uint64_t born; /* the number of its request (spill.h); 0: it is not known */
    uint32_t tag;  /* by which it is paused (tags.h); 0: none */
    bool shared;   /* other processes may see its memory, so that it stays behind its address */
    bool freed;    /* while it was paused: the policy does not know yet (kept_frees.h) */
} pleat__known;

/* All with the lock. Room for so many more, whatever else is set meanwhile, or an error and none;
 * it is given up before they are set, or where they are not. */
PLEAT_NODISCARD pleat_result pleat__known_promise(pleat_runtime *runtime, uint64_t count);
void pleat__known_give_up(pleat_runtime *runtime, uint64_t count);
/* Of what begins at an address. */
pleat__known pleat__known_of(const pleat_runtime *runtime, pleat_va address);
/* All of it anew. pre: there is room. */
void pleat__known_set(pleat_runtime *runtime, pleat_va address, pleat__known known);
/* The program frees it. */
void pleat__known_forget(pleat_runtime *runtime, pleat_va address);

#endif
