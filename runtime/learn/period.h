/*
 * period.h: ways in which a job may be repeating itself (lags), tried on its recording. See
 * period.c.
 */
#ifndef PLEAT_RUNTIME_LEARN_PERIOD_H
#define PLEAT_RUNTIME_LEARN_PERIOD_H

#include <internal/arena.h>
#include <stdbool.h>

#define PLEAT__LAGS 6u

/* Positions count requests since recording began. */
typedef struct pleat__lag {
    uint64_t since;   /* where comparing began */
    uint64_t last;    /* where the repeat that goes on began */
    uint64_t cursor;  /* what is expected next, in the repeat before */
    uint32_t length;  /* of the repeat before */
    uint32_t misses;  /* in a row */
    uint64_t agreed;  /* requests from `since` on that the repeat before had too */
    uint32_t matched; /* the same from `last` on */
    bool open;
    bool ripe; /* the repeat before `last` was believed */
    uint32_t ripe_agreed;
    uint64_t window;         /* position at which the current check of a ripe lag began ... */
    uint32_t window_matched; /* ... and its matches by then */
} pleat__lag;

/* Where a row of sizes was last. */
typedef struct pleat__seen {
    uint32_t tag;
    uint32_t position; /* its lower 32 bits */
} pleat__seen;

typedef struct pleat__vote {
    uint64_t last; /* position */
    uint64_t count;
} pleat__vote;

typedef struct pleat__period {
    bool off; /* iterations are not looked for without marks */
    pleat__lag lags[PLEAT__LAGS];
    uint64_t hash; /* of the last sizes */
    pleat__seen *seen;
    pleat__vote *votes;
} pleat__period;

PLEAT_NODISCARD pleat_result pleat__period_init(pleat__period *period, pleat__arena *arena,
                                                bool off);
void pleat__period_release(pleat__period *period, pleat__arena *arena);
/* Nothing before this position is held any more; `empty`: nothing at all. */
void pleat__period_forget(pleat__period *period, uint64_t position, bool empty);
/* Whether one stretch is so much longer than another that this may be a loop in it. */
bool pleat__period_is_longer(uint32_t stretch, uint32_t than);
/* Nothing but the shorter one some times over. */
bool pleat__period_is_multiple(uint32_t longer, uint32_t shorter);

#endif
