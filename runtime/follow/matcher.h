/*
 * matcher.h: finds which request of a known sequence a request is.
 *
 * The sequence is what the plan (or the last iteration) had: first a beginning that comes once,
 * then an iteration that repeats. The matcher keeps a cursor at the request expected next and finds
 * its place again when the job does something else: an extra, a missing, a swapped or a resized
 * request costs that request only. matcher.c says how.
 */
#ifndef PLEAT_RUNTIME_FOLLOW_MATCHER_H
#define PLEAT_RUNTIME_FOLLOW_MATCHER_H

#include <runtime/memory/heap.h>

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
} pleat__expected;

#define PLEAT__NO_ITEM UINT32_MAX
#define PLEAT__OPEN    32u  /* skipped items that may still come (D192) */
#define PLEAT__GRAM    4u   /* sizes in a row that say where in the sequence we are */
#define PLEAT__AHEAD   128u /* items ahead that are looked at, dynamic ones included (D493) */

/* PLEAT__GRAM sizes that follow each other in the sequence, for resync. */
typedef struct pleat__gram {
    uint32_t hash;
    uint32_t last; /* item of the last one */
} pleat__gram;

typedef struct pleat__matcher {
    pleat__arena *arena;
    pleat__expected *items;
    uint32_t begin; /* first item of the iteration; those before come once */
    uint32_t count;
    uint32_t iteration; /* items of one; of an unrolled plan's two follow each other */
    uint32_t cursor;    /* expected next; begin .. count - 1, or below begin at the start */
    uint32_t open[PLEAT__OPEN];
    uint32_t open_count;
    uint32_t misses;              /* in a row */
    uint64_t recent[PLEAT__GRAM]; /* sizes of the last requests, the newest at the end */
    pleat__gram *grams;           /* by (hash, last) */
    uint32_t gram_count;
    bool indexed; /* `grams` is filled */
} pleat__matcher;

/* `items` is the caller's and stays. Their sizes may change; the index by rows of sizes keeps those
 * it was made of. */
PLEAT_NODISCARD pleat_result pleat__matcher_init(pleat__matcher *matcher, pleat__arena *arena,
                                                 pleat__expected *items, uint32_t begin,
                                                 uint32_t count);
/* Indexes the sequence for resync, which else does so at its first use: milliseconds for a large
 * one, for callers that nobody waits for. */
void pleat__matcher_index(pleat__matcher *matcher);
void pleat__matcher_release(pleat__matcher *matcher);
/* An iteration begins. Of a beginning it says nothing. */
void pleat__matcher_mark(pleat__matcher *matcher);
/* Items from the cursor to another one, ahead, behind or around. */
uint32_t pleat__matcher_distance(const pleat__matcher *matcher, uint32_t item);
/* The next request is the one at `cursor`. */
void pleat__matcher_jump(pleat__matcher *matcher, uint32_t cursor);
/* Slow path of pleat__matcher_next: the request is not the one at the cursor. */
uint32_t pleat__matcher_search(pleat__matcher *matcher, uint64_t bytes, uint16_t stream);
/* Whether the last requests occur in this sequence; if so the cursor goes behind them and *item is
 * the last of them. */
bool pleat__matcher_resync(pleat__matcher *matcher, const uint64_t recent[PLEAT__GRAM],
                           uint32_t *item);

static inline void pleat__matcher_remember(pleat__matcher *matcher, uint64_t bytes)
{
    for (uint32_t i = 1; i < PLEAT__GRAM; i++)
        matcher->recent[i - 1] = matcher->recent[i];
    matcher->recent[PLEAT__GRAM - 1] = bytes;
}

/* The item that a request is, or PLEAT__NO_ITEM. */
static inline uint32_t pleat__matcher_next(pleat__matcher *matcher, uint64_t bytes, uint16_t stream)
{
    uint32_t at = matcher->cursor;
    const pleat__expected *item = &matcher->items[at];
    pleat__matcher_remember(matcher, bytes);
    if (item->bytes != bytes || item->stream != stream)
        return pleat__matcher_search(matcher, bytes, stream);
    matcher->cursor = at + 1 == matcher->count ? matcher->begin : at + 1;
    matcher->misses = 0;
    /* The next request's item, and the one behind it: far apart in time, near in memory
     * (D197). */
    __builtin_prefetch(&matcher->items[matcher->cursor + 4]);
    return at;
}

#endif
