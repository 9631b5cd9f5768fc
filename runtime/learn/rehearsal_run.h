/*
 * rehearsal_run.h: one rehearsal (rehearsal.h): what was copied for it, and what comes of it.
 */
#ifndef PLEAT_RUNTIME_LEARN_REHEARSAL_RUN_H
#define PLEAT_RUNTIME_LEARN_REHEARSAL_RUN_H

#include <runtime/learn/rehearsal.h>

/* Requests over which is noted what is live at least. */
#define PLEAT__BAR 64u

/* A view of the heap. */
typedef struct pleat__view_copy {
    uint32_t *chunks;
    uint32_t pages;
    uint32_t live;
    uint64_t used;
    uint16_t stream;
} pleat__view_copy;

typedef struct pleat__stage pleat__stage; /* rehearsal_run.c */

struct pleat__score {
    pleat__arena *arena; /* its own */
    pleat__stage *stage; /* while it is being played; else NULL */
    /* The heap as it was. */
    uint32_t chunk_count;
    uint32_t *home, *first;
    uint32_t *pages; /* of the handle */
    uint8_t *breaks, *zone_of;
    pleat__tenants *tenants;
    uint64_t next_home, page_bytes, device_bytes, view_limit, view_pages, asked;
    pleat__view_copy *views;
    uint32_t view_count;
    pleat__place *live; /* with runs of their own, of no view */
    uint32_t live_count;
    pleat_stream streams[PLEAT__STREAMS];
    uint32_t stream_count, small_granules;
    uint64_t lends;
    pleat__account account;
    uint64_t now_ns, most_used;
    /* The iteration before, of the rehearsal's; where in it the first request of this one is, and
     * which of it was asked for last. */
    pleat__life *before;
    uint32_t before_count, before_end, begin, last;
    uint64_t waiting; /* a bit for each stream: its frees may be ordered */
    /* What its first requests are now: addresses, by request from `begin` on; 0: none. */
    pleat_va opening[2 * PLEAT__OPENING];
    /* What comes of it: the least bytes live, in every bar from `begin` on. */
    uint64_t *least_live;
    uint32_t bars;
    uint64_t live_bytes; /* when it was copied */
};

/* Copies the heap. NULL: no host memory, or not one that can be copied. pre: the lock. */
pleat__score *pleat__score_new(pleat__heap *heap, const pleat__placed *placed);
/* NULL is allowed. pre: it is not being played */
void pleat__score_free(pleat__score *score);
/* A pleat__ahead_list: plays some more of it, or ends that. A step is due at the request that asks
 * for it, from `begin` on. */
pleat_result pleat__score_play(void *score, pleat__steps *steps, uint32_t *until);

#endif
