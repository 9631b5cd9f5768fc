/*
 * scale.h: how the sizes of a job's iteration follow its parameter x (the microbatch, the sequence
 * length, the tokens of a step), found from iterations at different x.
 *
 * Nobody names x. It is measured in bytes of one request, the REFERENCE: one of those whose sizes
 * grow in the proportion in which most grow, so that twice the microbatch is twice x. Every other
 * size is a line through the sizes it had at the lowest and the highest x seen, and holds at those
 * between, or such a line with a bound; a request whose sizes are neither is loose (it has no
 * place), and so is one that some iterations do not have.
 */
#ifndef PLEAT_RUNTIME_SCALE_H
#define PLEAT_RUNTIME_SCALE_H

#include <runtime/lives.h>

/* Iterations are believed to scale down and up by this much beyond those seen. */
#define PLEAT__SCALE_BEYOND 4u

/* One request of the iteration. */
typedef struct pleat__term {
    uint64_t bytes; /* at the lowest x */
    int64_t rise;   /* from there to the highest, were it not for `most` */
    uint64_t most;  /* workspaces have a bound */
    uint32_t begin; /* as in a profile */
    uint32_t end;
    uint16_t stream;
    bool loose; /* has no size that is known, or no end */
} pleat__term;

typedef struct pleat__scale {
    pleat__arena *arena;
    pleat__term *terms;
    uint32_t count;
    uint32_t horizon;
    uint32_t loose;  /* terms that are */
    uint64_t lowest; /* x of the sizes it was made from */
    uint64_t highest;
    uint64_t least; /* x of the iterations that were seen to scale so */
    uint64_t most;
} pleat__scale;

typedef enum pleat__scale_fit {
    PLEAT__SCALE_NONE = 0, /* the iterations are not one at several x */
    PLEAT__SCALE_SAME = 1, /* all are at the same x */
    PLEAT__SCALE_FITTED = 2,
} pleat__scale_fit;

/* From `count` profiles; *out is set when FITTED. NONE also where host memory is short. */
pleat__scale_fit pleat__scale_make(pleat__arena *arena, pleat__profile *const *profiles,
                                   uint32_t count, pleat__scale **out);
/* NULL is allowed. */
void pleat__scale_free(pleat__scale *scale);

static inline bool pleat__scale_in_range(const pleat__scale *scale, uint64_t x)
{
    return x >= scale->least / PLEAT__SCALE_BEYOND && x / PLEAT__SCALE_BEYOND <= scale->most;
}

/* x, or the least that functions hold for. */
static inline uint64_t pleat__scale_at_least(const pleat__scale *scale, uint64_t x)
{
    uint64_t least = scale->least / PLEAT__SCALE_BEYOND + (scale->least % PLEAT__SCALE_BEYOND != 0);
    return x < least ? least : x;
}

/* The size at x, rounded up; 0 where the line is below that. */
uint64_t pleat__scale_bytes(const pleat__scale *scale, const pleat__term *term, uint64_t x);
/* Whether a job may have come from the xs seen to this one at all: a request that says more is
 * another. */
static inline bool pleat__scale_plausible(const pleat__scale *scale, uint64_t x)
{
    return x >= scale->least / 256 && x / 256 <= scale->most;
}

/* The x at which the term has this size; false when there is none, or it does not vary. */
bool pleat__scale_infer(const pleat__scale *scale, const pleat__term *term, uint64_t bytes,
                        uint64_t *x);

#endif
