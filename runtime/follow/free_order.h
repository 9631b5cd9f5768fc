/*
 * free_order.h: which address will be freed next? A job that repeats itself frees in the same order
 * in each iteration, and what a free reads (the address's entry, then what says so where its ends
 * lie) is in no cache when tens of thousands are live. So the order of the iteration before is
 * followed, and what the next frees read is fetched ahead of them.
 *
 * A wrong guess costs a fetch. Iterations begin with a mark; without marks nothing is guessed.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_FREE_ORDER_H
#define PLEAT_RUNTIME_FOLLOW_FREE_ORDER_H

#include <internal/arena.h>
#include <pleat/vmm.h>

#define PLEAT__FREED_LEAST 4096u
#define PLEAT__FREED_MOST  (1u << 20)

typedef struct pleat__freed {
    pleat__arena *arena;
    pleat_va *log; /* a ring; NULL: nothing is logged */
    uint32_t mask;
    uint32_t end;   /* position behind the newest */
    uint32_t begin; /* of this iteration */
    uint32_t guess; /* position, in the iteration before, of what is expected next */
    uint32_t left;  /* positions from there to that iteration's end; 0: nothing is expected */
} pleat__freed;

void pleat__freed_release(pleat__freed *freed);
/* An iteration begins. */
void pleat__freed_mark(pleat__freed *freed);

/* What is expected `ahead` frees later; 0: nothing. */
static inline pleat_va pleat__freed_next(const pleat__freed *freed, uint32_t ahead)
{
    return ahead < freed->left ? freed->log[(freed->guess + ahead) & freed->mask] : 0;
}

static inline void pleat__freed_note(pleat__freed *freed, pleat_va address)
{
    static const uint32_t far = 8;
    if (freed->log == NULL)
        return;
    for (uint32_t k = 0; k < far && k < freed->left; k++)
        if (freed->log[(freed->guess + k) & freed->mask] == address) {
            freed->guess += k + 1;
            freed->left -= k + 1;
            break;
        }
    freed->log[freed->end++ & freed->mask] = address;
}

#endif
