/*
 * ground.h: real memory on the host backend under the places of a run: every tensor lies where the
 * run says, at an address of its own, with words in it that nobody else may change.
 */
#ifndef PLEAT_TOOLS_REMAT_GROUND_H
#define PLEAT_TOOLS_REMAT_GROUND_H

#include <plan/remat/run.h>

typedef struct remat_ground remat_ground;

/* Memory for a pool of `bytes` in chunks of `chunk_bytes`, for `tensors` tensors. */
PLEAT_NODISCARD pleat_result remat_ground_create(uint64_t bytes, uint64_t chunk_bytes,
                                                 uint32_t tensors, remat_ground **out);
/* NULL is allowed. */
void remat_ground_destroy(remat_ground *ground);

/* What a run calls. Leaving ends with PLEAT_E_VERIFY where a tensor's words were changed: two
 * shared memory. */
const pleat__remat_ground *remat_ground_calls(const remat_ground *ground);
/* Chunks mapped in views since the beginning. */
uint64_t remat_ground_maps(const remat_ground *ground);

/* What it takes to map a chunk of so many bytes and to unmap it, on an H200. */
uint64_t remat_map_ns(uint64_t chunk_bytes);

#endif
