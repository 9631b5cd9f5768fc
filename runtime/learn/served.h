/*
 * served.h: how the iteration that ended was served, from the counters at the mark before.
 */
#ifndef PLEAT_RUNTIME_LEARN_SERVED_H
#define PLEAT_RUNTIME_LEARN_SERVED_H

#include <pleat/runtime.h>
#include <runtime/memory/heap.h>

typedef struct pleat__served {
    uint64_t asked;     /* its requests; one that begins again is one */
    uint64_t elsewhere; /* of them, those in no slot and no lane */
    uint64_t paid_ns;   /* of the driver's time, for views */
    uint64_t passed_ns; /* while it ran */
    bool grew;          /* there are more chunks than before */
    bool record;        /* more was in use than ever before */
    /* Counters at the mark. */
    uint64_t placed, others, spent_ns, at_ns;
    uint32_t chunks;
    uint64_t most_used;
} pleat__served;

static inline uint32_t pleat__served_chunks(const pleat__heap *heap)
{
    return heap->pool->count - heap->pool->absent;
}

/* An iteration ended. */
static inline void pleat__served_mark(pleat__served *served, const pleat__heap *heap,
                                      const pleat_stats *stats)
{
    uint64_t placed = stats->planned + stats->lane, elsewhere = stats->stitched + stats->cached;
    uint32_t chunks = pleat__served_chunks(heap);
    uint64_t now = pleat__account_now(&heap->account);
    served->elsewhere = elsewhere - served->others;
    served->asked = placed - served->placed + served->elsewhere;
    served->paid_ns = heap->account.spent_ns - served->spent_ns;
    served->passed_ns = now > served->at_ns ? now - served->at_ns : 0;
    served->grew = chunks > served->chunks;
    served->placed = placed;
    served->others = elsewhere;
    served->spent_ns = heap->account.spent_ns;
    served->at_ns = now;
    served->record = heap->most_used > served->most_used;
    served->most_used = heap->most_used;
    served->chunks = chunks;
}

#endif
