/*
 * scale.h: how the sizes of a job's iteration follow its parameter x (the microbatch, the sequence
 * length, the tokens of a step): learned from iterations at different x, or a plan file's recipe.
 *
 * LEARNED  Nobody names x. It is measured in bytes of one request, the REFERENCE: one of those
 *     whose sizes grow in the proportion in which most grow, so that twice the microbatch is twice
 *     x. Every other size is a line through the sizes it had at the lowest and the highest x seen,
 *     and holds at those between, or such a line with a bound; a request whose sizes are neither is
 *     loose (it has no place), and so is one that some iterations do not have.
 * RECIPE   x, the sizes as functions of it, and the range are the recipe's (plan/sizes/sizes.h).
 * Its terms are the plan's slots: those of the beginning, which comes once, and then the
 *     iteration's.
 */
#ifndef PLEAT_RUNTIME_LEARN_SCALE_H
#define PLEAT_RUNTIME_LEARN_SCALE_H

#include <plan/sizes/sizes.h>
#include <runtime/learn/lives.h>

/* Iterations are believed to scale down and up by this much beyond those seen, at most. */
#define PLEAT__SCALE_BEYOND 4u

/* One request of the iteration. */
typedef struct pleat__term {
    uint64_t bytes; /* at the lowest x; a recipe's: in the plan */
    int64_t rise;   /* from there to the highest, were it not for `most`; a recipe's: the sign */
    uint64_t most;  /* workspaces have a bound */
    uint32_t begin; /* as in a profile */
    uint32_t end;
    uint32_t function; /* a recipe's */
    uint16_t stream;
    bool loose; /* has no size that is known, or no end */
    /* A recipe's: any size, or not there at all; and whether it is laid out all the same, where
     * such ones are few, for the size in proportion to x. */
    bool dynamic;
    bool reserved;
} pleat__term;

typedef struct pleat__scale {
    pleat__arena *arena;
    pleat__term *terms;
    uint32_t count;
    uint32_t first; /* terms below come once: a plan's beginning */
    uint32_t horizon;
    uint32_t loose;  /* terms that are */
    uint64_t lowest; /* learned: x of the sizes it was made from */
    uint64_t highest;
    pleat__x from; /* believed to hold */
    pleat__x to;
    const pleat_plan *plan; /* with a recipe; NULL: learned */
} pleat__scale;

typedef enum pleat__scale_fit {
    PLEAT__SCALE_NONE = 0, /* the iterations are not one at several x */
    PLEAT__SCALE_SAME = 1, /* all are at the same x */
    PLEAT__SCALE_FITTED = 2,
} pleat__scale_fit;

/* From `count` profiles; *out is set when FITTED. NONE also where host memory is short. */
pleat__scale_fit pleat__scale_make(pleat__arena *arena, pleat__profile *const *profiles,
                                   uint32_t count, pleat__scale **out);
/* The ends that an open profile does not know, from one that may be of another x: where its partner
 * ends among the requests of its iteration. false: they are not the same iteration, and it is as it
 * was. */
bool pleat__scale_complete(pleat__profile *open, const pleat__profile *from);
/* NULL is allowed. */
void pleat__scale_free(pleat__scale *scale);

/* The scale of a plan's recipe; the plan stays. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__scale_of_plan(pleat__arena *arena, const pleat_plan *plan,
                                                  pleat__scale **out);

/* Whether two learned scales have the same requests, each for as long, and at x nearly all as
 * large.
 */
bool pleat__scale_is_same(const pleat__scale *before, const pleat__scale *after, const pleat__x *x);

/* How many of a profile's requests are the scale's at x, the two laid against each other; 0 also
 * where host memory is short. */
uint32_t pleat__scale_agrees(const pleat__scale *scale, const pleat__profile *profile,
                             const pleat__x *x);

/* An x of 0 is none. */
#define PLEAT__NO_X ((pleat__x){{0, 1}, {1, 1}})
static inline bool pleat__x_is_known(const pleat__x *x)
{
    return x->u.num != 0;
}

/* Whether what was laid out for x has room for `other`. */
static inline bool pleat__x_holds(const pleat__x *x, const pleat__x *other)
{
    return pleat__fraction_compare(x->u, other->u) >= 0 &&
           pleat__fraction_compare(x->v, other->v) >= 0;
}

/* The least that holds both. */
static inline pleat__x pleat__x_larger(const pleat__x *a, const pleat__x *b)
{
    return (pleat__x){pleat__fraction_compare(a->u, b->u) < 0 ? b->u : a->u,
                      pleat__fraction_compare(a->v, b->v) < 0 ? b->v : a->v};
}

static inline bool pleat__scale_in_range(const pleat__scale *scale, const pleat__x *x)
{
    return pleat__x_holds(x, &scale->from) && pleat__x_holds(&scale->to, x);
}

/* x times num / den, as far as x is that fine, in whole steps of a learned one. false: too large.
 */
bool pleat__scale_times(const pleat__scale *scale, const pleat__x *x, uint64_t num, uint64_t den,
                        pleat__x *out);
/* x, or the least that functions hold for. */
pleat__x pleat__scale_at_least(const pleat__scale *scale, const pleat__x *x);
/* An iteration at x was as the scale says: it is believed around there from now on. */
void pleat__scale_reach(pleat__scale *scale, const pleat__x *x);

/* The size at x, rounded up; 0 where it has none there. */
uint64_t pleat__scale_bytes(const pleat__scale *scale, const pleat__term *term, const pleat__x *x);
/* Whether a job may have come from the xs seen to this one at all: a request that says more is
 * another. */
bool pleat__scale_plausible(const pleat__scale *scale, const pleat__x *x);

/* The x at which the term has this size; false when there is none, it does not vary, or one size
 * does not say it (a recipe's with two parameters). */
bool pleat__scale_infer(const pleat__scale *scale, const pleat__term *term, uint64_t bytes,
                        pleat__x *x);

#endif
