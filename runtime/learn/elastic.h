/*
 * elastic.h: jobs whose microbatch or sequence length changes, for the policy `pleat`.
 *
 *   iterations that are not followed  --lives.h-->  profiles  --scale.h-->  a scale
 *   a plan file with a recipe  -------------------------------scale.h-->  a scale
 *   the first requests of an iteration, and the scale  -->  its x
 *   x  -->  an instance (instance.h): one that there is, or a new one
 *
 * The policy calls it at marks, at the beginning of followed iterations and with what it allocates
 * and frees while it learns; it answers with what is to be followed.
 *
 * WHICH INSTANCE  Any that was laid out for x or more serves. So once the largest x was there,
 *      nothing is mapped any more, whatever x comes. One that is laid out for less takes less
 *      memory: it is made when the limit on memory leaves no room for a larger one. A plan file's
 *      own places are the first instance, at the x that it was laid out for.
 * COMING  What a new largest x takes that is not there is made by a thread, while the instance is
 *      followed already (coming.h).
 * BROKEN  An x beyond the range, sizes that are not as the scale says: the iteration is served by
 *      the heap and recorded; from what it was the scale is made anew.
 */
#ifndef PLEAT_RUNTIME_LEARN_ELASTIC_H
#define PLEAT_RUNTIME_LEARN_ELASTIC_H

#include <pleat/runtime.h>
#include <runtime/learn/coming.h>

#define PLEAT__PROFILES_KEPT 4u
#define PLEAT__INSTANCES     8u
#define PLEAT__RETIRED       32u
#define PLEAT__SEEN          64u
#define PLEAT__BAD           8u
#define PLEAT__LOOKED_AT     96u /* requests of an iteration that may say its x */

/* What the first requests of an iteration say. */
typedef enum pleat__asked {
    PLEAT__ASKED_WAIT = 0, /* nothing yet */
    PLEAT__ASKED_SAME = 1, /* what is followed is right */
    PLEAT__ASKED_TAKE = 2, /* another instance is to be followed */
    PLEAT__ASKED_NONE = 3, /* there is none for it: the iteration is to be recorded */
} pleat__asked;

typedef struct pleat__elastic {
    pleat__arena *arena;
    pleat__heap *heap;
    const pleat__placed *placed;
    pleat_stats *stats;
    bool recording; /* requests go to `lives` */
    bool settled;   /* until the next profile */
    pleat__lives lives;
    pleat__profile *profiles[PLEAT__PROFILES_KEPT]; /* at different x */
    uint32_t profile_count;
    const pleat__profile *latest; /* of them, the last recorded */
    pleat__profile *incomplete;   /* the last that was open; NULL: none is kept */
    bool opening; /* recorded is how an iteration begins that is followed, until it goes well */
    uint32_t opening_missed; /* requests of it that did not match */
    uint32_t strangers;      /* recorded in a row that none of them is like */
    uint32_t patience;       /* iterations to go by before a stranger is looked at again */
    uint32_t unlike;         /* since the last one at another x */
    uint32_t reluctance;     /* of those, how many to go by before one is looked at */
    pleat__scale *scale;     /* NULL: not known */
    pleat__sweep_choice choice;
    pleat__instance *instances[PLEAT__INSTANCES];
    uint32_t instance_count;
    pleat__instance *retired[PLEAT__RETIRED]; /* as soon as nothing lies in them any more */
    uint32_t retired_count;
    pleat__instance *now; /* followed, or NULL */
    pleat__coming coming; /* memory of one of them that is being made */
    uint64_t clock;       /* iterations */
    bool making;          /* an instance is, and the lock may be left */
    bool measuring;       /* the same for the largest microbatch */
    /* While the first requests of an iteration are looked at. */
    bool asking;
    uint32_t from;  /* the term that the first of them is expected to be */
    uint32_t left;  /* of the iteration before, which come first */
    bool passed;    /* the request that is being served is one of those */
    uint32_t asked; /* requests */
    uint32_t tried; /* of them, those that may have said something of x */
    /* What the iteration allocated before its x was known, and the request that is being served. */
    pleat__held here[PLEAT__LOOKED_AT + 1];
    uint32_t here_count;
    pleat__x_finder finder;     /* for a recipe with two parameters */
    pleat__x guess;             /* that it had at the last request */
    pleat__x x;                 /* of the last iteration */
    pleat__x seen[PLEAT__SEEN]; /* xs that iterations had */
    uint32_t seen_count;
    pleat__x bad[PLEAT__BAD]; /* xs at which instances serve badly */
    uint32_t bad_count;
    uint32_t strikes;
    uint64_t proven;       /* iterations that were as the scale says */
    bool unproven;         /* the last that was followed to its end was not */
    uint64_t served, busy; /* counters at the last mark */
    uint32_t failures;     /* instances in a row that were put aside within their iteration */
    uint64_t quiet_until;  /* none is taken before: the job is learned anew */
    uint64_t odd;          /* requests up to the last mark that were not as expected */
    uint64_t check_at;
    uint32_t checks;      /* times that iterations were recorded because of that */
    pleat__live crossing; /* addresses, while an instance is made */
    pleat__x refused;     /* no memory for an instance of this x or more */
    uint64_t refused_until;
    const pleat__follow *plan; /* a plan file's; NULL: none with a recipe */
    /* elastic_tidy.c: since when, and how long sizes are looked at, and the largest since. */
    uint64_t window_ns, window_clock, window_wait;
    pleat__x window_most;
    bool tight; /* tight_x is to be laid out anew, in as little as it needs */
    pleat__x tight_x;
    uint32_t tidying; /* marks at which what lies above is given back */
} pleat__elastic;

PLEAT_NODISCARD pleat_result pleat__elastic_init(pleat__elastic *elastic, pleat__arena *arena,
                                                 pleat__heap *heap, const pleat__placed *placed,
                                                 pleat_stats *stats);
/* Begins with a plan that has a recipe, followed at its reference. pre: initialised, nothing done
 * yet; `plan` and `follow` stay. */
PLEAT_NODISCARD pleat_result pleat__elastic_load(pleat__elastic *elastic, const pleat_plan *plan,
                                                 pleat__follow *follow);
/* The plan is not the job's: what it says of sizes is forgotten, and what was laid out by it goes.
 * *planned are its own places, which are the caller's from now on, or NULL: they went before.
 * false: it cannot be done now. */
bool pleat__elastic_unload(pleat__elastic *elastic, pleat__instance **planned);
void pleat__elastic_release(pleat__elastic *elastic);

/* An iteration ended: with `count` 0 at a mark, else it was `count` requests, followed by those
 * that came last, `ahead` of them. */
void pleat__elastic_recorded(pleat__elastic *elastic, uint32_t count, uint32_t ahead);
/* Iterations were found: the last one began `ahead` requests ago, and `repeats` before it have
 * `count` requests each. From now on their ends are told. */
void pleat__elastic_found(pleat__elastic *elastic, uint32_t count, uint32_t ahead,
                          uint32_t repeats);
/* What is followed was learned and repeats itself: it is recorded until there is one profile of it,
 * unless there is one already. */
void pleat__elastic_settle(pleat__elastic *elastic, bool has_profile);
/* Recording begins, or ends; what was recorded goes. */
void pleat__elastic_record(pleat__elastic *elastic, bool on);
/* A learned iteration begins once more, at a mark: where it is another size its requests will be
 * missed by the time that is seen. */
void pleat__elastic_open(pleat__elastic *elastic);

/* An iteration begins: from the next request on its x is looked for. */
void pleat__elastic_begin(pleat__elastic *elastic);
/* pre: elastic->asking. `current` is followed now, or NULL. On TAKE *follow is to be, its cursor at
 * this request. An instance may be made: the lock is left, or PLEAT_E_NOT_READY, and nothing is
 * changed (driver_lock.h). */
PLEAT_NODISCARD pleat_result pleat__elastic_ask(pleat__elastic *elastic, uint64_t bytes,
                                                uint16_t stream, const pleat__follow *current,
                                                pleat__asked *asked, pleat__follow **follow);
/* Something else is followed from now on, or nothing (NULL). */
void pleat__elastic_followed(pleat__elastic *elastic, const pleat__follow *follow);
/* Whether it is a plan's whose chunks were given back: it is not to be taken up any more. */
bool pleat__elastic_left(const pleat__elastic *elastic, const pleat__follow *follow);
/* What is followed was put aside because too much did not match. */
void pleat__elastic_diverged(pleat__elastic *elastic);

/* The item of the iteration whose part one of a plan's beginning plays, where what is followed is
 * the plan's, at its own sizes or at others; else PLEAT__NO_ITEM. */
static inline uint32_t pleat__elastic_host(const pleat__elastic *elastic, uint32_t item)
{
    const pleat__scale *scale = elastic->scale;
    if (elastic->now == NULL || scale == NULL || scale->plan == NULL || item >= scale->first ||
        scale->plan->recipe->hosts[item] == PLEAT__NO_HOST)
        return PLEAT__NO_ITEM;
    return scale->first + scale->plan->recipe->hosts[item];
}

/* For so many iterations nothing is followed and nothing recorded; 0: no longer. */
void pleat__elastic_rest(pleat__elastic *elastic, uint32_t iterations);

/* The limit on memory changed, or memory is short: gives views back that are not followed. */
bool pleat__elastic_drop(pleat__elastic *elastic);

/* What is allocated and freed; of use while it records, and before an iteration's x is known. */
static inline void pleat__elastic_allocated(pleat__elastic *elastic, uint64_t bytes,
                                            uint16_t stream, pleat_va address)
{
    if (__builtin_expect(elastic->asking, 0) && !elastic->passed &&
        elastic->here_count < PLEAT__LOOKED_AT)
        elastic->here[elastic->here_count++] = (pleat__held){
            .address = address, .bytes = bytes, .stream = stream, .term = PLEAT__NEVER};
    if (__builtin_expect(elastic->recording, 0))
        pleat__lives_alloc(&elastic->lives, bytes, stream, address);
}

static inline void pleat__elastic_freed(pleat__elastic *elastic, pleat_va address)
{
    if (__builtin_expect(elastic->recording, 0))
        pleat__lives_free(&elastic->lives, address);
}

/* Chunks at home from `page` on were given back: layouts that use them are made anew when they are
 * wanted. */
void pleat__elastic_shrunk(pleat__elastic *elastic, uint64_t page);
/* At a mark: gives back what the sizes of a long time, or a limit that was lowered, leave over. The
 * lock may be left. */
void pleat__elastic_tidy(pleat__elastic *elastic);
/* The largest microbatch that would fit in `bytes`, where the iterations now have `running`, by the
 * caller's count. `current` is followed, or NULL. PLEAT_E_NOT_FOUND: sizes are not known yet, or
 * not even one fits. pre: the turn; the lock is left meanwhile. */
PLEAT_NODISCARD pleat_result pleat__elastic_most(pleat__elastic *elastic,
                                                 const pleat__follow *current, uint64_t bytes,
                                                 uint64_t running, uint64_t *most);

static inline bool pleat__elastic_follows(const pleat__elastic *elastic,
                                          const pleat__follow *follow)
{
    return elastic->now != NULL && elastic->now->follow == follow;
}

/* ---- between elastic.c and elastic_*.c ---- */

/* The x that an iteration's requests so far say. */
typedef struct pleat__told {
    pleat__x x;
    uint32_t term; /* that the last of them is, or, where it is none, the one expected behind it */
    bool likely;   /* what there is for x may be followed: if it is another x, that does no harm */
    bool certain;  /* something may be made for x */
} pleat__told;

/* Whether one size does not say x. */
bool pleat__elastic_has_two(const pleat__elastic *elastic);
bool pleat__elastic_has_seen(const pleat__elastic *elastic, const pleat__x *x);
/* The request is one of those that come before the iteration and are the same at every x. */
bool pleat__elastic_is_constant(pleat__elastic *elastic, uint64_t bytes, uint16_t stream);
/* What this request and those before it say; false: nothing. */
bool pleat__elastic_tell(pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                         const pleat__follow *current, pleat__told *told);
/* What iterations are laid out in; and first, in elastic->crossing, what will be freed there before
 * the next one is over. */
pleat__ground pleat__elastic_ground(const pleat__elastic *elastic);
PLEAT_NODISCARD pleat_result pleat__elastic_list_crossing(pleat__elastic *elastic,
                                                          const pleat__follow *current);
/* Another scale takes the place of elastic->scale: the layouts that hold for it as well are fitted
 * to its sizes, the others go. false, and nothing is changed: too many instances wait already for
 * what lies in them. */
bool pleat__elastic_carry_over(pleat__elastic *elastic, const pleat__scale *scale);
/* A tight layout was made. */
void pleat__elastic_tightened(pleat__elastic *elastic);
/* At this x iterations are left to be learned. */
void pleat__elastic_leave_x(pleat__elastic *elastic, const pleat__x *x);
/* What was recorded. */
void pleat__elastic_forget(pleat__elastic *elastic);

#endif
