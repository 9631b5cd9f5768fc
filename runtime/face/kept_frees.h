/*
 * kept_frees.h: frees of what is paused. Nothing may come to lie there before it is awake again, so
 * they reach the policy only then. Room for them is made before anything is paused: keeping one
 * cannot fail.
 */
#ifndef PLEAT_RUNTIME_FACE_KEPT_FREES_H
#define PLEAT_RUNTIME_FACE_KEPT_FREES_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <runtime/face/pause.h>
#include <stdbool.h>

/* Room for so many, or an error and none. */
PLEAT_NODISCARD pleat_result pleat__kept_frees_reserve(pleat__address_map *frees,
                                                       pleat__arena *arena, uint64_t count);
/* The room that was made is not wanted any more. */
void pleat__kept_frees_give_up(pleat__address_map *frees, uint64_t count);
/* A free is kept back where something of the allocation is paused: *bytes of it, as asked for, or 0
 * where nothing is. PLEAT_E_NOT_FOUND: it has been freed before. With the lock. */
PLEAT_NODISCARD pleat_result pleat__kept_frees_keep(pleat_runtime *runtime, pleat_va address,
                                                    uint64_t *bytes);
/* Whether a free of this allocation is kept back. */
bool pleat__kept_frees_has(const pleat__address_map *frees, pleat_va address);
/* Those of what is awake, or on chunks of pause `but`, reach the policy. With the lock. */
void pleat__kept_frees_let_go(pleat_runtime *runtime, const pleat__pause *but);
/* The pages that all of them lie on, at most. */
uint64_t pleat__kept_frees_pages(const pleat__address_map *frees, uint64_t page_bytes);

#endif
