/*
 * sizes.h: one plan for every microbatch or sequence length of a job.
 *
 * A job that changes its microbatch allocates the same requests in the same order; only their sizes
 * follow. A plan with a RECIPE knows how: each request's size is a function of the job's parameter
 * x, fitted from iterations recorded at different x. Nobody names x; it is found from the sizes.
 * An INSTANCE is the plan at another x: an ordinary plan, laid out like any, slot by slot that of
 * the plan it comes from: slot i of its sequences is the same request at another size.
 *
 * PARAMETER
 * x is a fraction. Its unit is that of the recorded iterations, which are small whole numbers where
 * they can be (microbatches 4 and 6 are 2 and 3). Where a length and a batch change, x is their
 * product, and what follows one of them alone is dynamic (D623).
 *
 * FUNCTIONS
 *   size(x) = (k0 + k1 x + k2 x^2) / divisor, rounded up, at most `most` and at least `least`. A
 * function gives the very size that was recorded, at every x recorded, once both are rounded up to
 * 512. A request whose sizes follow none has PLEAT__NO_FUNCTION; it is dynamic, and has a lane
 * where the plan can make it one. Function 0 is not special: constants have functions too.
 *
 * WHAT STAYS
 * In every instance, and in the plan itself:
 *   - persistent requests have the same places, from page 0 on, whatever x is;
 *   - so has the PROLOGUE, the steady slots below `prologue`: those that are allocated before the
 *     first whose size depends on x. They are placed before x is known;
 *   - a chunk's first map is at its home page. Chunks with the same home page are the same chunk in
 *     every instance: between two only views differ, and which home pages are in use. All views are
 *     at pages from `view_page` on, above every base.
 *
 * USE AT RUN TIME
 *   x from the size of a request that depends on it (pleat__function_solve); the instance of that
 *   x, or of a larger one, from pleat__elastic_instance; its places from then on. Where the
 * instance is that of a larger x, requests are no larger than their slots. pleat__function_at gives
 * what to expect at x itself.
 *
 * THREADS  A recipe does not change once made; everything here may be called from any thread. Only
 *          a finder belongs to one.
 */
#ifndef PLEAT_PLAN_SIZES_SIZES_H
#define PLEAT_PLAN_SIZES_SIZES_H

#include <plan/fold/prologue.h>

#define PLEAT__TERMS       3
#define PLEAT__NO_FUNCTION UINT32_MAX

/* num / den in lowest terms; den is not 0. Both are below PLEAT__FRACTION_MOST. Equal values are
 * equal bytes. */
typedef struct pleat__fraction {
    uint64_t num;
    uint64_t den;
} pleat__fraction;
#define PLEAT__FRACTION_MOST ((uint64_t)1 << 40)

typedef struct pleat__function {
    int64_t k[PLEAT__TERMS]; /* of 1, x, x^2 */
    uint64_t divisor;        /* not 0 */
    uint64_t exact;          /* 1: it gives the recorded sizes to the byte, so that x follows from
                                one; 0: only once rounded */
    uint64_t most;           /* bytes; UINT64_MAX: no bound */
    uint64_t least;          /* bytes, above which it is proportional; 0: no bound */
} pleat__function;

/* A recipe is for x so many times below and beyond those recorded. */
#define PLEAT__RANGE 4

typedef struct pleat__recipe {
    uint32_t prologue;         /* steady slot */
    uint32_t named;            /* 1: x is in the user's own unit, so that whole numbers are meant */
    uint64_t view_page;        /* of the window */
    pleat__fraction reference; /* x of the plan as it stands */
    pleat__fraction lowest;    /* the valid range */
    pleat__fraction highest;
    pleat__function *functions;
    uint32_t function_count;
    uint32_t *steady; /* function of each steady slot, or PLEAT__NO_FUNCTION */
    uint32_t *first;  /* the same of each slot of `first`; one without keeps its size */
    uint32_t *hosts;  /* of each slot of `first`: the steady slot whose part it plays and whose
                         place it takes, or PLEAT__NO_HOST */
} pleat__recipe;

/* --- x -----------------------------------------------------------------------------------------*/

/* num / den in lowest terms. false: den is 0, or a number is too large. */
bool pleat__fraction_make(uint64_t num, uint64_t den, pleat__fraction *out);
/* -1, 0, 1 */
int pleat__fraction_compare(pleat__fraction a, pleat__fraction b);
/* false: the product is too large. */
bool pleat__fraction_multiply(pleat__fraction a, pleat__fraction b, pleat__fraction *out);
bool pleat__fraction_equal(pleat__fraction a, pleat__fraction b);
/* "3", "5/2"; returns `text`. */
const char *pleat__x_text(pleat__fraction x, char *text, size_t size);
/* The reverse, which also takes "2.5". false: no such text. */
bool pleat__x_parse(const char *text, pleat__fraction *out);
bool pleat__x_in_range(const pleat__recipe *recipe, pleat__fraction x);
/* What so many bytes at x `from` are at x `to` if they are in proportion to x, rounded up to 512.
 * false: the two are too far apart, or it is more than a request may be. */
bool pleat__x_scale(uint64_t bytes, pleat__fraction from, pleat__fraction to, uint64_t *out);

/* --- sizes -------------------------------------------------------------------------------------*/

/* The size at x. false: it is negative or beyond 2^48, which no request is. */
bool pleat__function_at(const pleat__function *function, pleat__fraction x, uint64_t *size);
bool pleat__function_varies(const pleat__function *function);
/* Whether it gives a size all over the recipe's range. */
bool pleat__function_holds(const pleat__function *function, const pleat__recipe *recipe);
/* The x at which a function has this size, and to the byte. false: at none, or its size does not
 * say it: it is the bound, or was recorded rounded only. */
bool pleat__function_solve(const pleat__function *function, uint64_t size, pleat__fraction *x);
/* The size of a slot at x, as requested; without a function what the plan says. pre: the plan has a
 * recipe. PLEAT_E_NOT_FOUND: the function does not hold there. */
PLEAT_NODISCARD pleat_result pleat__elastic_size(const pleat_plan *plan, bool first, uint32_t slot,
                                                 pleat__fraction x, uint64_t *size);

/* --- which x is this? --------------------------------------------------------------------------*/

/* Finds x from the requests of one iteration. */
typedef struct pleat__x_finder {
    const pleat_plan *plan;
    pleat__fraction x; /* when known */
    bool known;
    uint32_t agreed;       /* sizes that depend on x and are as it says */
    uint32_t contradicted; /* and that are not, or not at any x */
} pleat__x_finder;

/* pre: plan->recipe is not NULL */
void pleat__x_begin(pleat__x_finder *finder, const pleat_plan *plan);
/* The steady request in slot `slot` asks for `bytes`: whether x is known now. A slot without a
 * function, or whose size does not vary, says nothing. */
bool pleat__x_observe(pleat__x_finder *finder, uint32_t slot, uint64_t bytes);

/* --- instances ---------------------------------------------------------------------------------*/

typedef struct pleat__instance_options {
    bool recipe; /* it has a recipe of its own, whose reference is its x */
    bool first;  /* place the slots of `first` too: for a job that starts at this x. Else only
                   persistent ones have a place there */
} pleat__instance_options;

typedef struct pleat__instance_report {
    uint64_t floor_bytes;  /* chunks that max-live needs */
    uint64_t kept_bytes;   /* what the plan's own places would take */
    uint64_t beside_bytes; /* of dynamic requests that no lane has room for: they lie beside the
                              plan's physical memory */
    uint32_t remaps;       /* maps that this instance has and the plan has not */
} pleat__instance_report;

/* The plan at x: verified, with max_live_bytes and physical_bytes of
 * that x. Takes tens of milliseconds of 10,000 requests. options and report may be NULL.
 * PLEAT_E_INVALID: the plan has no recipe; PLEAT_E_NOT_FOUND: x is out of range, or some function
 * does not hold there; PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__elastic_instance(const pleat_plan *plan, pleat__fraction x,
                                                     const pleat__instance_options *options,
                                                     pleat__instance_report *report,
                                                     pleat_plan **out);

/* What a job that follows the instance takes: its memory and what lies beside it, in bytes. */
uint64_t pleat__instance_takes(const pleat_plan *instance, const pleat__instance_report *report);

/* The least that an iteration at x takes of the instance's memory, in whole chunks: its physical
 * memory is the most. They differ beyond the largest x recorded, by what requests that live for a
 * moment, the workspaces of kernels, have grown since: they may have a bound that no recording
 * shows. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__elastic_least(const pleat_plan *plan, pleat__fraction x,
                                                  const pleat_plan *instance, uint64_t *bytes);

/* The largest whole multiple of `step` at which the plan's physical memory and what lies beside it
 * are at most `bytes`. PLEAT_E_NOT_FOUND: not even the lowest of the range is. *physical, what they
 * are, may be NULL. */
PLEAT_NODISCARD pleat_result pleat__elastic_fit(const pleat_plan *plan, uint64_t bytes,
                                                pleat__fraction step, pleat__fraction *out,
                                                uint64_t *physical);

#endif
