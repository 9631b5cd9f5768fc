/*
 * aligner.h: where in a known sequence are we, when requests come that no plan foresaw?
 *
 * A matcher that decides request by request loses its place among a layer's experts: their sizes
 * change, some do not come, and many look alike. So while the next request is not certain, all
 * places nearby are kept, each with what it cost to get there; what comes later says which one was
 * right. (An edit distance, as plan/model/align.c, of which only the last row is kept.)
 */
#ifndef PLEAT_RUNTIME_FOLLOW_ALIGNER_H
#define PLEAT_RUNTIME_FOLLOW_ALIGNER_H

#include <runtime/memory/heap.h>

#define PLEAT__ALIGNER_BAND 160u

typedef enum pleat__item_kind {
    PLEAT__ITEM_SLOT = 0,    /* has a place */
    PLEAT__ITEM_LOOSE = 1,   /* the same in every iteration, but without a place */
    PLEAT__ITEM_DYNAMIC = 2, /* any size, or not there at all */
} pleat__item_kind;

/* A request that is expected. */
typedef struct pleat__expected {
    uint64_t bytes; /* as requested */
    pleat__place place;
    uint32_t lane; /* dynamic: PLEAT__NO_LANE, or the lane it goes to */
    uint16_t stream;
    uint8_t kind;
    uint8_t gap : 7; /* frees since the request before, or PLEAT__GAP_UNKNOWN */
    /* Was the same in what was profiled, but stands between dynamic ones: an expert that happened
     * to get as many tokens twice, or what comes and goes with an expert. */
    uint8_t soft : 1;
} pleat__expected;

#define PLEAT__GAP_UNKNOWN 127u /* D487 */

/* So many frees as a gap. */
static inline uint8_t pleat__gap_of(uint32_t frees)
{
    return (uint8_t)(frees < PLEAT__GAP_UNKNOWN - 1 ? frees : PLEAT__GAP_UNKNOWN - 1);
}

/* What is compared of a request. */
typedef struct pleat__aligner_item {
    uint32_t hash;  /* of its size */
    uint16_t scale; /* logarithm of its size, in eighths of an octave */
    uint8_t gap;
    uint8_t kind; /* stream, and what may differ */
} pleat__aligner_item;

/* Requests that probably were the items expected wait here until the other positions are needed.
 * More room means more requests to go through then, less room more wrong answers:
 * docs/decisions.md, D193. */
#define PLEAT__ALIGNER_WAITING 24u

/*
 * What the cells of a band know, an array a thing: a request goes through all of them, and so does
 * it several cells at a time.
 */
#define PLEAT__ALIGNER_CELLS (PLEAT__ALIGNER_BAND + 8u) /* a multiple of eight */
typedef struct pleat__aligner_cells {
    uint16_t cost[PLEAT__ALIGNER_CELLS];  /* of having come to where a cell's item is next */
    uint16_t extra[PLEAT__ALIGNER_CELLS]; /* requests, the last ones, that were no item */
    /* By how much the last dynamic request was larger than its item, in eighths of an octave: one
     * expert's requests, or all of a sequence's length, change together. */
    int16_t shift[PLEAT__ALIGNER_CELLS];
    /* The cell's item. */
    uint32_t hash[PLEAT__ALIGNER_CELLS];
    int16_t scale[PLEAT__ALIGNER_CELLS];
    uint16_t gap[PLEAT__ALIGNER_CELLS];
    uint16_t stream[PLEAT__ALIGNER_CELLS];
    uint16_t role[PLEAT__ALIGNER_CELLS]; /* what may differ */
} pleat__aligner_cells;

typedef struct pleat__aligner {
    const pleat__expected *items;
    uint32_t begin; /* the iteration: items [begin, count) */
    uint32_t count;
    bool on;
    uint32_t next; /* the item expected next */
    uint32_t sure; /* requests in a row that came as expected */
    uint32_t lost; /* ... that are like nothing expected */
    /* The band, as it was before the waiting requests; or, until it is wanted, only where it
     * begins. */
    bool made;
    uint32_t start; /* not made: the item that was expected before the waiting requests */
    uint32_t first; /* item of cell 0 */
    uint32_t cells;
    uint32_t best; /* the cell with the least cost */
    pleat__aligner_cells band;
    int16_t shift_next;  /* on the way to `next` */
    uint16_t spread;     /* what dynamic requests differ from their items, in 1/32 of an eighth */
    int16_t shift_start; /* to `start` */
    uint32_t waiting_count;
    uint32_t debt;   /* what the waiting ones cost as the items expected */
    uint16_t others; /* what all other ways cost at least */
    uint8_t prices[PLEAT__ALIGNER_WAITING];
    pleat__aligner_item waiting[PLEAT__ALIGNER_WAITING];
} pleat__aligner;

/* `items` is the caller's and stays; none is soft yet: which of them are is found and set. Whether
 * there are dynamic ones: else it has nothing to do. */
bool pleat__aligner_init(pleat__aligner *aligner, pleat__expected *items, uint32_t begin,
                         uint32_t count);

/* The next request is probably `item`; others nearby are possible. */
void pleat__aligner_start(pleat__aligner *aligner, uint32_t item);
/* A request with the frees before it. The item it probably is, or PLEAT__ALIGNER_EXTRA. */
uint32_t pleat__aligner_step(pleat__aligner *aligner, uint64_t bytes, uint16_t stream, uint8_t gap);
#define PLEAT__ALIGNER_EXTRA UINT32_MAX

/* Comes, and with this size. */
static inline bool pleat__aligner_is_fixed(const pleat__aligner *aligner, uint32_t item)
{
    return aligner->items[item].kind != PLEAT__ITEM_DYNAMIC && !aligner->items[item].soft;
}

#endif
