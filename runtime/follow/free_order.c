/*
 * free_order.c: see free_order.h.
 */
#include <runtime/follow/free_order.h>

void pleat__freed_release(pleat__freed *freed)
{
    if (freed->arena != NULL)
        pleat__arena_free(freed->arena, freed->log);
    *freed = (pleat__freed){0};
}

/* Room for two iterations; without host memory nothing is logged. */
static void make_room(pleat__freed *freed, uint32_t wanted)
{
    uint32_t capacity = PLEAT__FREED_LEAST;
    while (capacity < wanted && capacity < PLEAT__FREED_MOST)
        capacity *= 2;
    if (freed->log != NULL && capacity <= freed->mask + 1)
        return;
    pleat__arena_free(freed->arena, freed->log);
    freed->log = pleat__arena_calloc(freed->arena, capacity, sizeof *freed->log);
    freed->mask = capacity - 1;
    freed->begin = freed->end;
}

void pleat__freed_mark(pleat__freed *freed)
{
    uint32_t count = freed->end - freed->begin;
    make_room(freed, 2 * count + 2);
    count = freed->end - freed->begin;
    freed->guess = freed->begin;
    freed->left = 2 * (uint64_t)count <= freed->mask ? count : 0;
    freed->begin = freed->end;
}
