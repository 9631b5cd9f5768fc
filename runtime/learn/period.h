/*
 * period.h: the way in which a job may be repeating itself (a lag), tried on its recording. See
 * period.c.
 */
#ifndef PLEAT_RUNTIME_LEARN_PERIOD_H
#define PLEAT_RUNTIME_LEARN_PERIOD_H

#include <internal/arena.h>
#include <stdbool.h>

/* "Nearly all" means all but 1/PLEAT__NEARLY (docs/decisions.md, D110). */
#define PLEAT__NEARLY 16u

static inline bool pleat__nearly_all(uint64_t part, uint64_t whole)
{
    return part * PLEAT__NEARLY >= whole * (PLEAT__NEARLY - 1);
}

/* A distance at which the job may be repeating itself. Positions count requests since recording
 * began. */
typedef struct pleat__lag {
    uint64_t since;  /* position at which comparing began */
    uint64_t last;   /* position at which the current repeat began */
    uint64_t cursor; /* position, in the previous repeat, of the request expected next */
    uint32_t length; /* requests of the previous repeat */
    uint32_t misses; /* requests in a row that did not match */
    uint64_t agreed; /* requests from `since` on that the previous repeat had too */
    bool open;
} pleat__lag;

/* Position at which a row of GRAM sizes was seen last. */
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
    pleat__lag lag;
    uint64_t grams; /* the keys of the last GRAM requests, the newest the lowest */
    pleat__seen *seen;
    pleat__vote *votes;
} pleat__period;

PLEAT_NODISCARD pleat_result pleat__period_init(pleat__period *period, pleat__arena *arena,
                                                bool off);
void pleat__period_release(pleat__period *period, pleat__arena *arena);
/* Nothing before this position is held any more; `empty`: nothing at all (R15 in
 * docs/invariants.md). */
void pleat__period_forget(pleat__period *period, uint64_t position, bool empty);

#endif
