/*
 * elastic_x.c: what the first requests of an iteration say of its x (see elastic.h).
 *
 * A request that has the size of a term nearby at some x is a witness of that x. Which term it is
 * cannot be told from it alone: layers repeat, and at some x a job makes requests that it does not
 * make at others. So all requests of the iteration are laid against the terms at each x that this
 * one may mean, by the fewest that one of the two has and the other has not, and the x for which
 * those are fewest is taken. That says as well where the iteration is, and which terms those are
 * that are there. (Taken term by term, GPT-2 was followed two requests off through its first
 * iteration at microbatch 4, where it makes one more: 2,469 slots taken, and 1 % more memory.)
 */
#include <runtime/learn/elastic.h>

#include <string.h>

/* Terms on both sides of the one expected that a request may be. */
#define NEAR 16u
/* Requests of an iteration that are looked at so, at most. */
#define TRIED 32u
/* Tensors in a row that a plan's beginning does not know, at most. */
#define STRAYS 16u
/* Requests that agree on two parameters; one that does not is then another. */
#define AGREED 3u

bool pleat__elastic_has_two(const pleat__elastic *elastic)
{
    return elastic->scale != NULL && elastic->scale->plan != NULL &&
           elastic->scale->plan->recipe->parameters > 1;
}

bool pleat__elastic_has_seen(const pleat__elastic *elastic, const pleat__x *x)
{
    uint32_t count = elastic->seen_count < PLEAT__SEEN ? elastic->seen_count : PLEAT__SEEN;
    for (uint32_t i = 0; i < count; i++)
        if (pleat__x_equal(&elastic->seen[i], x))
            return true;
    return false;
}

/* ---- one parameter ---- */

#define COLUMNS (PLEAT__LOOKED_AT + NEAR + 2u)
/* More than any alignment costs. */
#define BEYOND 200u

_Static_assert(PLEAT__LOOKED_AT + NEAR + 2 < BEYOND, "costs are of 8 bits");

/* The requests against the terms from elastic->from on. */
typedef struct alignment {
    pleat__x x;
    uint32_t rows, columns;
    uint32_t end; /* terms that the requests are, the last of them included */
    uint64_t sizes[COLUMNS];
    uint8_t cost[PLEAT__LOOKED_AT + 2u]
                [COLUMNS]; /* of the first r requests and the first t terms */
} alignment;

/* Whether a request is the term, by what is known of both. */
static bool is_term(const pleat__elastic *elastic, const alignment *a, const pleat__held *request,
                    uint32_t t)
{
    const pleat__term *term = &elastic->scale->terms[elastic->from + t];
    return !term->loose && term->stream == request->stream && a->sizes[t] == request->bytes;
}

static inline uint8_t least(uint32_t a, uint32_t b, uint32_t c)
{
    a = a < b ? a : b;
    return (uint8_t)(a < c ? a : c);
}

static void fill_row(const pleat__elastic *elastic, alignment *a, uint32_t r)
{
    const pleat__held *request = &elastic->here[r - 1];
    uint32_t first = r > NEAR ? r - NEAR : 1;
    uint32_t last = r + NEAR < a->columns ? r + NEAR : a->columns;
    memset(a->cost[r], BEYOND, a->columns + 1u);
    a->cost[r][0] = (uint8_t)r;
    for (uint32_t t = first; t <= last; t++)
        a->cost[r][t] = least(a->cost[r - 1][t - 1] + !is_term(elastic, a, request, t - 1),
                              a->cost[r - 1][t] + 1u, a->cost[r][t - 1] + 1u);
}

/* What it costs at x. */
static uint32_t lay(const pleat__elastic *elastic, const pleat__x *x, alignment *a)
{
    const pleat__scale *scale = elastic->scale;
    uint32_t left = scale->count - elastic->from;
    a->x = *x;
    a->rows = elastic->here_count + 1;
    a->columns = a->rows + NEAR < left ? a->rows + NEAR : left;
    for (uint32_t t = 0; t < a->columns; t++)
        a->sizes[t] = pleat__scale_bytes(scale, &scale->terms[elastic->from + t], x);
    for (uint32_t t = 0; t <= a->columns; t++)
        a->cost[0][t] = (uint8_t)t;
    for (uint32_t r = 1; r <= a->rows; r++)
        fill_row(elastic, a, r);
    a->end = 0;
    for (uint32_t t = 1; t <= a->columns; t++)
        a->end = a->cost[a->rows][t] < a->cost[a->rows][a->end] ? t : a->end;
    return a->cost[a->rows][a->end];
}

/* Says of each request which term it is; how many say x. */
static uint32_t name_terms(pleat__elastic *elastic, const alignment *a)
{
    uint32_t t = a->end, witnesses = 0;
    for (uint32_t r = a->rows; r > 0;) {
        pleat__held *request = &elastic->here[r - 1];
        bool same = t > 0 && is_term(elastic, a, request, t - 1);
        request->term = PLEAT__NEVER;
        if (t > 0 && a->cost[r][t] == a->cost[r - 1][t - 1] + !same) {
            request->term = same ? elastic->from + t - 1 : PLEAT__NEVER;
            witnesses += same && elastic->scale->terms[request->term].rise != 0;
            r--, t--;
        } else if (t > 0 && a->cost[r][t] == a->cost[r][t - 1] + 1) {
            t--;
        } else {
            r--;
        }
    }
    return witnesses;
}

/* Whether the last request is the term at an x that was seen, where its size alone does not say x:
 * a recipe's function may hold only once sizes are rounded. */
static bool is_at(const pleat__elastic *elastic, uint32_t t, const pleat__x *x)
{
    const pleat__scale *scale = elastic->scale;
    const pleat__held *request = &elastic->here[elastic->here_count];
    if (t >= scale->count - elastic->from)
        return false;
    const pleat__term *term = &scale->terms[elastic->from + t];
    return scale->plan != NULL && term->rise != 0 && !term->loose &&
           term->stream == request->stream &&
           !scale->plan->recipe->functions[term->function].exact &&
           pleat__scale_bytes(scale, term, x) == request->bytes;
}

/* The x that the last request has as the term; false: none, or one that was tried already. */
static bool is_candidate(const pleat__elastic *elastic, uint32_t t, const pleat__x *tried,
                         pleat__x *x)
{
    const pleat__scale *scale = elastic->scale;
    const pleat__held *request = &elastic->here[elastic->here_count];
    if (t >= scale->count - elastic->from)
        return false;
    const pleat__term *term = &scale->terms[elastic->from + t];
    return term->stream == request->stream && pleat__scale_infer(scale, term, request->bytes, x) &&
           pleat__scale_plausible(scale, x) && !pleat__x_equal(x, tried);
}

/* From the term expected on to both sides: what is so far off costs as much. */
static bool find_one(pleat__elastic *elastic, uint64_t bytes, uint16_t stream, pleat__told *told)
{
    alignment a;
    pleat__x best = PLEAT__NO_X, x;
    uint32_t least_cost = BEYOND, expected = elastic->here_count;
    elastic->here[elastic->here_count] = (pleat__held){.bytes = bytes, .stream = stream};
    for (uint32_t k = 0; k <= 2 * NEAR && (k + 1) / 2 < least_cost; k++) {
        uint32_t t = k % 2 == 0 ? expected + k / 2 : expected - (k + 1) / 2;
        if (!is_candidate(elastic, t, &best, &x))
            continue;
        uint32_t cost = lay(elastic, &x, &a);
        best = cost < least_cost ? x : best;
        least_cost = cost < least_cost ? cost : least_cost;
    }
    uint32_t seen = elastic->seen_count < PLEAT__SEEN ? elastic->seen_count : PLEAT__SEEN;
    for (uint32_t s = 0; s < seen && least_cost != 0; s++) {
        if (!is_at(elastic, expected, &elastic->seen[s]))
            continue;
        uint32_t cost = lay(elastic, &elastic->seen[s], &a);
        best = cost < least_cost ? elastic->seen[s] : best;
        least_cost = cost < least_cost ? cost : least_cost;
    }
    if (least_cost == BEYOND)
        return false;
    if (++elastic->tried >= TRIED)
        elastic->asking = false;
    (void)lay(elastic, &best, &a);
    uint32_t witnesses = name_terms(elastic, &a);
    uint32_t term = elastic->here[elastic->here_count].term, behind = elastic->from + a.end;
    if (term == PLEAT__NEVER) /* the iteration's first comes behind its last */
        term = behind < elastic->scale->count ? behind : elastic->scale->first;
    bool enough = witnesses > 1 || pleat__elastic_has_seen(elastic, &best);
    *told = (pleat__told){.x = best,
                          .term = term,
                          .likely = a.rows >= 2 * least_cost,
                          .certain = enough && witnesses > 2 * least_cost};
    return true;
}

/* ---- two parameters ---- */

/* Says of each request so far which term it is: the one in its place, where that has its size. */
static void name_in_order(pleat__elastic *elastic, const pleat__x *x)
{
    const pleat__scale *scale = elastic->scale;
    for (uint32_t i = 0; i < elastic->here_count; i++) {
        pleat__held *request = &elastic->here[i];
        const pleat__term *term = &scale->terms[elastic->from + i];
        bool is = !term->loose && term->stream == request->stream &&
                  pleat__scale_bytes(scale, term, x) == request->bytes;
        request->term = is ? elastic->from + i : PLEAT__NEVER;
    }
}

/* Two parameters are found from several requests together, each known by its place in the
 * iteration. (By where the matcher was, which stands still at another size, 64 to 93 requests went
 * by at each pair of a job that had two, and it was followed badly.) */
static bool find_two(pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                     const pleat__follow *current, pleat__told *told)
{
    pleat__x_finder *finder = &elastic->finder;
    if (current == NULL || !pleat__elastic_follows(elastic, current))
        return false;
    uint32_t at = elastic->from + elastic->here_count, begin = current->match.begin;
    if (at >= current->count || current->items[at].stream != stream)
        return false;
    uint32_t slot = at < begin ? at : at - begin;
    pleat__x_state said = pleat__x_observe(finder, at < begin, slot, bytes);
    if (said == PLEAT__X_CONTRADICTED && finder->agreed < AGREED) {
        /* One of the two was no request of the plan's: this one's word against the others'. */
        pleat__x_begin(finder, elastic->scale->plan);
        said = pleat__x_observe(finder, at < begin, slot, bytes);
    }
    if (said != PLEAT__X_KNOWN)
        return false;
    name_in_order(elastic, &finder->x);
    bool again = pleat__x_equal(&finder->x, &elastic->guess);
    elastic->guess = finder->x;
    *told = (pleat__told){.x = finder->x,
                          .term = at,
                          .likely = true,
                          .certain = again || pleat__elastic_has_seen(elastic, &finder->x)};
    return true;
}

/* What came so far are strays of the job's beginning, and no requests of the iteration. */
static void forget_here(pleat__elastic *elastic)
{
    elastic->here_count = 0;
    elastic->asked = 0;
    elastic->tried = 0;
    elastic->guess = PLEAT__NO_X;
    if (pleat__elastic_has_two(elastic))
        pleat__x_begin(&elastic->finder, elastic->scale->plan);
}

/* A weight of the job's beginning says nothing of x, and there may be hundreds. Nor does what came
 * before one, a few tensors that the plan does not know. (One ahead of GPT-2's 294 weights had
 * these taken for requests of the iteration, so that its x was not found.) */
bool pleat__elastic_is_constant(pleat__elastic *elastic, uint64_t bytes, uint16_t stream)
{
    const pleat__scale *scale = elastic->scale;
    const pleat__term *term = &scale->terms[elastic->from];
    bool is = elastic->here_count <= STRAYS && elastic->from < scale->first && term->rise == 0 &&
              !term->dynamic && term->stream == stream && term->bytes == bytes;
    elastic->from += is;
    if (is && elastic->here_count != 0)
        forget_here(elastic);
    return is;
}

bool pleat__elastic_tell(pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                         const pleat__follow *current, pleat__told *told)
{
    return pleat__elastic_has_two(elastic) ? find_two(elastic, bytes, stream, current, told)
                                           : find_one(elastic, bytes, stream, told);
}
