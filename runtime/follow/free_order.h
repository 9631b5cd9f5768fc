/*
 * free_order.h: which address will be freed next? A job that repeats itself frees in the same order
 * in each iteration, and what a free reads (the address's entry, then what says so where its ends
 * lie) is in no cache when tens of thousands are live. So the order of the iteration before is
 * followed, and what the next frees read is fetched ahead of them.
 *
 * A wrong guess costs a fetch. Frees are noted, and guessed, while a schedule is followed.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_FREE_ORDER_H
#define PLEAT_RUNTIME_FOLLOW_FREE_ORDER_H

#include <internal/arena.h>
#include <pleat/vmm.h>

#define PLEAT__FREE_ORDER_LEAST 4096u /* D197 */
#define PLEAT__FREE_ORDER_MOST  (1u << 20)
/* Frees that may be missing before one that comes all the same (D197). */
#define PLEAT__FREE_ORDER_FAR 8u

typedef struct pleat__free_order {
    pleat__arena *arena;
    pleat_va *log; /* a ring; NULL: nothing is logged */
    uint32_t mask;
    uint32_t end;   /* position behind the newest */
    uint32_t begin; /* of this iteration */
    uint32_t guess; /* position, in the iteration before, of what is expected next */
    uint32_t left;  /* positions from there to that iteration's end; 0: nothing is expected */
} pleat__free_order;

void pleat__free_order_release(pleat__free_order *order);
/* An iteration begins. */
void pleat__free_order_mark(pleat__free_order *order);

/* What is expected `ahead` frees later; 0: nothing. */
static inline pleat_va pleat__free_order_next(const pleat__free_order *order, uint32_t ahead)
{
    return ahead < order->left ? order->log[(order->guess + ahead) & order->mask] : 0;
}

static inline void pleat__free_order_note(pleat__free_order *order, pleat_va address)
{
    if (order->log == NULL)
        return;
    for (uint32_t k = 0; k < PLEAT__FREE_ORDER_FAR && k < order->left; k++)
        if (order->log[(order->guess + k) & order->mask] == address) {
            order->guess += k + 1;
            order->left -= k + 1;
            break;
        }
    order->log[order->end++ & order->mask] = address;
}

#endif
