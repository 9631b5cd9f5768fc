/*
 * free_order.c: see free_order.h.
 */
#include <runtime/follow/free_order.h>

void pleat__free_order_release(pleat__free_order *order)
{
    if (order->arena != NULL)
        pleat__arena_free(order->arena, order->log);
    *order = (pleat__free_order){0};
}

/* Room for two iterations; without host memory nothing is logged. */
static void make_room(pleat__free_order *order, uint32_t wanted)
{
    uint32_t capacity = PLEAT__FREE_ORDER_LEAST;
    while (capacity < wanted && capacity < PLEAT__FREE_ORDER_MOST)
        capacity *= 2;
    if (order->log != NULL && capacity <= order->mask + 1)
        return;
    pleat__arena_free(order->arena, order->log);
    order->log = pleat__arena_calloc(order->arena, capacity, sizeof *order->log);
    order->mask = capacity - 1;
    order->begin = order->end;
}

void pleat__free_order_mark(pleat__free_order *order)
{
    uint32_t count = order->end - order->begin;
    make_room(order, 2 * count + 2);
    count = order->end - order->begin;
    order->guess = order->begin;
    order->left = 2 * (uint64_t)count <= order->mask ? count : 0;
    order->begin = order->end;
}
