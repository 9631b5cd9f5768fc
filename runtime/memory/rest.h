/*
 * rest.h: memory that nothing lies on goes back to the device, and comes back when it is wanted.
 *
 * A chunk at rest keeps its number, its home and every other place where it is mapped (views, a
 * plan's folds): only its memory is gone (pleat__space_rest), or not made yet: a plan's chunks rest
 * from the beginning, so that it has memory only as far as the program comes along. All of a chunk
 * at rest counts as in use, so that nobody takes it. It is woken when a request's slot lies there,
 * with those that the schedule expects next; as a hole, before a view is made; and before new
 * chunks are.
 *
 * A pause lays chunks to rest on which something lives; what is free on them is held until they are
 * awake again, or rests by itself from then on.
 */
#ifndef PLEAT_RUNTIME_MEMORY_REST_H
#define PLEAT_RUNTIME_MEMORY_REST_H

#include <runtime/memory/chunk_set.h>

/* Lays wholly free handles to rest, the highest first, until the space has at most `keep_bytes` of
 * the device, and all whose memory is the host's, when the GPU is done with them; how many bytes
 * went. What a stream has left over that captures unannounced stays. pre: the turn; the lock is
 * left meanwhile. */
uint64_t pleat__rest_idle(pleat__heap *heap, uint64_t keep_bytes);
/* Lays all idle handles to rest but those that meet `needed` and, of the others, `reserve_bytes`.
 * `needed` was listed before the lock was left, and may be of an older schedule. Else as above. */
uint64_t pleat__rest_spared(pleat__heap *heap, const pleat__chunk_set *needed,
                            uint64_t reserve_bytes);
/* Neighbours at rest become one handle, where no plan says where handles end: what grew request by
 * request comes back in larger ones. `followed`: a schedule is, so that views in which no place is
 * remembered are given up before, which would keep their chunks apart; near the budget they stay.
 * pre: the turn. */
void pleat__rest_join(pleat__heap *heap, bool followed);
/* Wakes so many chunks, or fewer when memory runs out, the highest first: what the program has from
 * the beginning lies lowest in a plan. *woken: how many. `visit` is told of each run of granules
 * that is free again. pre: the turn; the lock is left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__rest_wake(pleat__chunk_pool *pool, uint32_t chunks,
                                              pleat__occupancy_visit visit, void *context,
                                              uint32_t *woken);
/* Wakes so many neighbours of the smallest stretch that has them, of the 4,096 highest handles, or
 * none where there is no such stretch, or no memory for it. Else as above. */
PLEAT_NODISCARD pleat_result pleat__rest_wake_together(pleat__chunk_pool *pool, uint32_t chunks,
                                                       pleat__occupancy_visit visit, void *context);
/* What rests and has no place but its home is gone for good: growth makes it anew, as it makes all
 * memory. */
void pleat__rest_drop(pleat__heap *heap);
/* Room in the list of what rests for so many handles more. */
PLEAT_NODISCARD pleat_result pleat__rest_reserve(pleat__chunk_pool *pool, size_t more);
/* The handle that begins with chunk `first` is new and at rest: it counts as in use from now on.
 * pre: there is room in the list; of several the highest comes first, which takes no time. */
void pleat__rest_promised(pleat__chunk_pool *pool, uint32_t first);
/* Whether something of a place is at rest because nothing lay there. */
bool pleat__rest_holds(const pleat__chunk_pool *pool, const pleat__place *place);
/* Wakes what is so at places. PLEAT_E_NOT_READY, without a text: another thread has the turn, and
 * nothing changed. The lock may be left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__rest_wake_places(pleat__heap *heap, const pleat__place *places,
                                                     uint32_t count);
/* What is free on handles that are on a pause's `list` is held: nothing else comes to lie there. */
PLEAT_NODISCARD pleat_result pleat__rest_hold(pleat__heap *heap);
/* What is held of handles that are awake is free again, but beside what lives in the host's memory.
 * pre: nothing is between rest_hold and its rest. */
void pleat__rest_let_go(pleat__heap *heap);
/* Handles that are on a pause's `list` and rest: what lives on them gets handles of its own where
 * more than a hundredth is idle beside it, which rests by itself then, is on no list any more, and
 * wakes when it is wanted; neighbours become one, as above. Those that are on a list then are
 * written to `listed`, which has room for each of their chunks; how many. */
size_t pleat__rest_regroup(pleat__heap *heap, bool followed, pleat__chunk **listed);
/* Frees, by `give`, what lies on handles of this `list`; those on which nothing lives then rest by
 * themselves, and are on no list any more. `runs`: of granules that it frees, at most. Without host
 * memory nothing is done. pre: the turn. */
void pleat__rest_leave(pleat__heap *heap, const void *list, uint64_t runs,
                       void (*give)(void *context), void *context);
void pleat__rest_release(pleat__chunk_pool *pool);

#endif
