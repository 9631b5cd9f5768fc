/*
 * learn.h: learning a job's iteration while it runs. See learn.c.
 */
#ifndef PLEAT_RUNTIME_LEARN_LEARN_H
#define PLEAT_RUNTIME_LEARN_LEARN_H

#include <runtime/follow/schedule.h>

#define PLEAT__LAGS 6u

/* A way in which the job may be repeating itself. Positions count requests since the beginning. */
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
    uint64_t window; /* since then, and from so many matches on, the next is watched */
    uint32_t window_matched;
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

/* A stretch that repeats the one before. */
typedef struct pleat__found {
    uint64_t first;
    uint32_t count;
    uint32_t agreed;    /* of them, how many the stretch before had too */
    uint32_t unplanned; /* and how many lay in no slot of what is followed */
    uint32_t lag;
} pleat__found;

typedef struct pleat__learn {
    pleat__arena *arena;
    pleat__expected *items; /* a ring: position p is items[p & mask] */
    size_t capacity;        /* 0, or mask + 1 */
    uint64_t mask;
    uint64_t begin, end; /* positions that are held */
    bool off;            /* setting learn:off */
    bool no_period;      /* setting period:off */
    bool marks;          /* the job marks its iterations */
    bool full;           /* no host memory: recording is off until the next mark or restart */
    uint64_t mark_at;    /* position of the last mark; PLEAT__NO_MARK: none since recording began */
    pleat__lag lags[PLEAT__LAGS];
    pleat__found found;
    uint64_t hash; /* of the last sizes */
    pleat__seen *seen;
    pleat__vote *votes;
} pleat__learn;

#define PLEAT__NO_MARK UINT64_MAX

typedef enum pleat__boundary {
    PLEAT__BOUNDARY_NONE = 0,   /* no iteration ended, or it did not repeat the one before */
    PLEAT__BOUNDARY_AGREED = 1, /* learn->found repeats the stretch before it */
} pleat__boundary;

PLEAT_NODISCARD pleat_result pleat__learn_init(pleat__learn *learn, pleat__arena *arena,
                                               const pleat__conf *conf);
void pleat__learn_release(pleat__learn *learn);
/* Records a request, and whether it lies in no slot (true when nothing is followed). */
pleat__boundary pleat__learn_request(pleat__learn *learn, uint64_t bytes, uint16_t stream,
                                     const pleat__place *place, bool unplanned);
/* A mark: what was recorded since the last is an iteration. */
pleat__boundary pleat__learn_mark(pleat__learn *learn);
/* Iterations were found otherwise (beat.h) and are marked from now on: the last one began `ahead`
 * requests ago, the one before it `length` earlier. */
void pleat__learn_found(pleat__learn *learn, uint32_t length, uint32_t ahead);
/* They are not marked any more; what was recorded goes. */
void pleat__learn_lost(pleat__learn *learn);
/* What was found, for following; recording goes on. */
PLEAT_NODISCARD pleat_result pleat__learn_take(pleat__learn *learn, pleat__follow **out);
/* Forgets what was recorded. */
void pleat__learn_restart(pleat__learn *learn);
/* Whether one stretch is so much longer than another that this may be a loop in it. */
bool pleat__learn_is_longer(uint32_t stretch, uint32_t than);
/* Nothing but the shorter one some times over. */
bool pleat__learn_is_multiple(uint32_t longer, uint32_t shorter);
/* Whether what was found has repeated for `length` requests or more, and agreed in as large a part
 * of them as `agreed` of `length`. */
bool pleat__learn_went_on(const pleat__learn *learn, uint32_t agreed, uint32_t length);
/* Whether something longer than `length` repeats, and will soon be found. */
bool pleat__learn_is_near(const pleat__learn *learn, uint32_t length);
/* The sizes of the last requests; false when there are not so many. */
bool pleat__learn_recent(const pleat__learn *learn, uint64_t recent[PLEAT__GRAM]);

#endif
