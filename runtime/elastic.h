/*
 * elastic.h: jobs whose microbatch or sequence length changes, for the policy `pleat`.
 *
 *   iterations that are not followed  --lives.h-->  profiles  --scale.h-->  a scale
 *   the first requests of an iteration, and the scale  -->  its x
 *   x  -->  an instance (instance.h): one that there is, or a new one
 *
 * The policy calls it at marks, at the beginning of followed iterations and with what it allocates
 * and frees while it learns; it answers with what is to be followed.
 *
 * WHICH INSTANCE  Any that was laid out for x or more serves. So once the largest x was there,
 *      nothing is mapped any more, whatever x comes. One that is laid out for less takes less
 *      memory: it is made when the limit on memory leaves no room for a larger one.
 * HEADROOM  Where iterations differ from one to the next a new largest x is likely to be exceeded
 *      soon: it is laid out for a little more.
 * BROKEN  An x beyond the range, sizes that are not as the scale says: the iteration is served by
 *      the heap and recorded; from what it was the scale is made anew.
 */
#ifndef PLEAT_RUNTIME_ELASTIC_H
#define PLEAT_RUNTIME_ELASTIC_H

#include <pleat/runtime.h>
#include <runtime/instance.h>

#define PLEAT__PROFILES_KEPT 4u
#define PLEAT__INSTANCES     8u
#define PLEAT__RETIRED       32u
#define PLEAT__SEEN          64u
#define PLEAT__BAD           8u

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
    uint32_t strangers;           /* recorded in a row that none of them is like */
    uint32_t patience;            /* iterations to go by before a stranger is looked at again */
    pleat__scale *scale;          /* NULL: not known */
    pleat__sweep_choice choice;
    pleat__instance *instances[PLEAT__INSTANCES];
    uint32_t instance_count;
    pleat__instance *retired[PLEAT__RETIRED]; /* as soon as nothing lies in them any more */
    uint32_t retired_count;
    pleat__instance *now; /* followed, or NULL */
    uint64_t clock;       /* iterations */
    bool making;          /* an instance is, and the lock may be left */
    /* While the first requests of an iteration are looked at. */
    bool asking;
    uint32_t at;      /* the term expected next */
    uint32_t asked;   /* requests */
    uint64_t guess;   /* x that one request said; 0: none did */
    uint64_t x;       /* of the last iteration */
    uint32_t changes; /* a bit for each of the last iterations: x was another than before */
    uint64_t seen[PLEAT__SEEN]; /* xs that iterations had */
    uint32_t seen_count;
    uint64_t bad[PLEAT__BAD]; /* xs at which instances serve badly */
    uint32_t bad_count;
    uint32_t strikes;
    uint64_t served, busy; /* counters at the last mark */
    uint32_t failures;     /* instances in a row that were put aside within their iteration */
    uint64_t quiet_until;  /* none is taken before: the job is learned anew */
    uint64_t odd;          /* requests up to the last mark that were not as expected */
    uint64_t check_at;
    uint32_t checks;      /* times that iterations were recorded because of that */
    pleat__live crossing; /* addresses, while an instance is made */
    uint64_t refused;     /* no memory for an instance of this x or more; 0: none was refused */
} pleat__elastic;

PLEAT_NODISCARD pleat_result pleat__elastic_init(pleat__elastic *elastic, pleat__arena *arena,
                                                 pleat__heap *heap, const pleat__placed *placed,
                                                 pleat_stats *stats);
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

/* An iteration begins: from the next request on its x is looked for. */
void pleat__elastic_begin(pleat__elastic *elastic);
/* pre: elastic->asking. `current` is followed now, or NULL. On TAKE *follow is to be, its cursor at
 * this request. An instance may be made: the lock is left, or PLEAT_E_NOT_READY, and nothing is
 * changed (gate.h). */
PLEAT_NODISCARD pleat_result pleat__elastic_ask(pleat__elastic *elastic, uint64_t bytes,
                                                uint16_t stream, const pleat__follow *current,
                                                pleat__asked *asked, pleat__follow **follow);
/* What is followed was put aside because too much did not match. */
void pleat__elastic_diverged(pleat__elastic *elastic);

/* The limit on memory changed, or memory is short: gives views back that are not followed. */
bool pleat__elastic_drop(pleat__elastic *elastic);

/* What is allocated and freed; of use while it records. */
static inline void pleat__elastic_allocated(pleat__elastic *elastic, uint64_t bytes,
                                            uint16_t stream, pleat_va address)
{
    if (__builtin_expect(elastic->recording, 0))
        pleat__lives_alloc(&elastic->lives, bytes, stream, address);
}

static inline void pleat__elastic_freed(pleat__elastic *elastic, pleat_va address)
{
    if (__builtin_expect(elastic->recording, 0))
        pleat__lives_free(&elastic->lives, address);
}

/* Chunks were given back: layouts that use them are made anew when they are wanted. */
void pleat__elastic_shrunk(pleat__elastic *elastic);
/* The largest microbatch that would fit in `bytes`, where the iterations now have `running`, by the
 * caller's count. `current` is followed, or NULL. PLEAT_E_NOT_FOUND: sizes are not known yet, or
 * not even one fits. */
PLEAT_NODISCARD pleat_result pleat__elastic_most(pleat__elastic *elastic,
                                                 const pleat__follow *current, uint64_t bytes,
                                                 uint64_t running, uint64_t *most);

static inline bool pleat__elastic_follows(const pleat__elastic *elastic,
                                          const pleat__follow *follow)
{
    return elastic->now != NULL && elastic->now->follow == follow;
}

#endif
