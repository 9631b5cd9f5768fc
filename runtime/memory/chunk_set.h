/*
 * chunk_set.h: the chunks that a place lies on, to be asked whether others lie on any of them. A
 * place may have thousands of runs, and so may each of the others: held against each other run by
 * run they took the product of both.
 */
#ifndef PLEAT_RUNTIME_MEMORY_CHUNK_SET_H
#define PLEAT_RUNTIME_MEMORY_CHUNK_SET_H

#include <runtime/memory/heap.h>

typedef struct pleat__chunk_set {
    pleat__arena *arena;
    uint64_t *words; /* a bit a chunk */
    size_t capacity;
    uint32_t shift; /* granules of a chunk, as a power of two */
} pleat__chunk_set;

void pleat__chunk_set_init(pleat__chunk_set *set, pleat__arena *arena, uint32_t shift);
void pleat__chunk_set_release(pleat__chunk_set *set);
/* Adds a place's chunks; none on failure. */
PLEAT_NODISCARD pleat_result pleat__chunk_set_add(pleat__chunk_set *set, const pleat__place *place);
/* Takes out what was added for a place. */
void pleat__chunk_set_remove(pleat__chunk_set *set, const pleat__place *place);
/* Whether a place lies on one of them: reads a word for 64 of its chunks, or for each run. */
bool pleat__chunk_set_meets(const pleat__chunk_set *set, const pleat__place *place);
/* Whether any of `count` chunks from `first` on is one of them. */
bool pleat__chunk_set_meets_chunks(const pleat__chunk_set *set, uint32_t first, uint32_t count);

#endif
