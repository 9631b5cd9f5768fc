/*
 * fit.c: see fit.h.
 *
 * WHICH X  Most tensors of a training step hold something for each token or sample, and nothing
 *          else: their sizes are proportional to the same number. So the vectors of sizes (a
 *          request's size in each profile) that differ by a factor only are counted as one
 *          direction, and the direction of most varying requests is x, in the smallest whole
 *          numbers. Where no direction has MAJORITY of them (experts that tokens are routed to by
 *          chance) there is no x, nor where next to none vary: these are requests of iterations
 *          that differ by a few (a loss that is logged), laid against others.
 * TWO      Where x leaves requests unexplained, another direction may be a second parameter. x is
 *          then their product: a length times a batch. Which of the two the other direction is (the
 *          length, its square, the batch, ...) is what explains most requests. At two x whatever
 *          differs gives such a number, and one request laid against another does: neither is one.
 * BOUNDS   Workspaces grow with x up to a bound that several kinds of request share: b x, at most
 *          `most`. Others stay as they are for a while and grow from then on: b x, at least
 * `least`.
 */
#include <plan/sizes/fit.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <internal/search.h>
#include <plan/base/sort.h>
#include <plan/model/iteration.h>
#include <plan/sizes/solve.h>
#include <stdlib.h>
#include <string.h>

#define MAJORITY    2  /* one in so many of the varying requests */
#define WELL        32 /* with all but one in so many explained, one parameter does */
#define NUMBER_MOST ((uint64_t)1 << 40)
#define SQUARES     4   /* profiles in which all being squares is no chance */
#define OTHERS      16  /* directions tried as a second parameter */
#define CORNER      256 /* times the largest iteration that the largest u and v make together */

/* Requests with the same sizes in all profiles. */
typedef struct kind {
    uint32_t request; /* one of them */
    uint32_t count;
    uint32_t function; /* or PLEAT__NO_FUNCTION */
    bool varies;
    bool whole; /* in all profiles */
} kind;

typedef struct direction {
    uint64_t *numbers; /* by profile, in lowest terms */
    uint64_t requests;
} direction;

typedef struct fitting {
    const uint64_t *sizes;
    uint32_t profiles;
    uint32_t count;
    pleat__arena *arena;
    kind *kinds;
    uint32_t kind_count;
    uint32_t *kind_of;     /* by request */
    uint64_t *largest;     /* sizes of the kinds, ascending */
    direction *directions; /* most requests first */
    uint32_t direction_count;
    uint64_t *u, *v; /* by profile */
    uint64_t *best_u, *best_v;
    uint64_t varying;
} fitting;

static pleat_result no_memory(const fitting *f)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fit the sizes of %u requests",
                       f->count);
}

static uint64_t size_at(const fitting *f, uint32_t profile, uint32_t request)
{
    return f->sizes[(uint64_t)profile * f->count + request];
}

/* --- kinds -------------------------------------------------------------------------------------*/

static uint64_t hash_of(const fitting *f, uint32_t request)
{
    uint64_t hash = 0;
    for (uint32_t p = 0; p < f->profiles; p++)
        hash = pleat__mix(hash, size_at(f, p, request));
    return hash;
}

static bool same_sizes(const fitting *f, uint32_t a, uint32_t b)
{
    for (uint32_t p = 0; p < f->profiles; p++)
        if (size_at(f, p, a) != size_at(f, p, b))
            return false;
    return true;
}

static kind kind_of_request(const fitting *f, uint32_t request)
{
    kind k = {.request = request, .function = PLEAT__NO_FUNCTION, .whole = true};
    uint64_t seen = PLEAT__ABSENT;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint64_t size = size_at(f, p, request);
        k.whole &= size != PLEAT__ABSENT;
        k.varies |= size != PLEAT__ABSENT && seen != PLEAT__ABSENT && size != seen;
        seen = size != PLEAT__ABSENT ? size : seen;
    }
    return k;
}

/* Kinds in order of their first request. Requests of equal hash are compared. */
static pleat_result list_kinds(fitting *f)
{
    uint64_t *keys = pleat__arena_alloc(f->arena, (f->count + 1ull) * sizeof *keys);
    uint32_t *order = pleat__arena_alloc(f->arena, 2 * (f->count + 1ull) * sizeof *order);
    pleat_result result = keys == NULL || order == NULL ? no_memory(f) : PLEAT_OK;
    if (result == PLEAT_OK) {
        for (uint32_t i = 0; i < f->count; i++) {
            keys[i] = hash_of(f, i);
            order[i] = i;
        }
        pleat__sort_by_key(order, order + f->count, f->count, keys);
        /* The first of each run of equal hash stands for those equal to it. */
        for (uint32_t i = 0, first = 0; i < f->count; i++) {
            uint32_t at = order[i];
            if (i == 0 || keys[order[first]] != keys[at] || !same_sizes(f, order[first], at))
                first = i;
            f->kind_of[at] = order[first];
        }
        for (uint32_t i = 0; i < f->count; i++) {
            uint32_t stands = f->kind_of[i];
            if (stands == i)
                f->kinds[f->kind_count] = kind_of_request(f, i);
            f->kind_of[i] = stands == i ? f->kind_count++ : f->kind_of[stands];
            f->kinds[f->kind_of[i]].count++;
        }
    }
    pleat__arena_free(f->arena, keys);
    pleat__arena_free(f->arena, order);
    return result;
}

/* --- directions --------------------------------------------------------------------------------*/

/* The sizes divided by what they have in common. false: no direction. */
static bool direction_of(const fitting *f, const kind *k, uint64_t *numbers)
{
    uint64_t common = 0;
    if (!k->whole || !k->varies)
        return false;
    for (uint32_t p = 0; p < f->profiles; p++)
        common = pleat__gcd(common, size_at(f, p, k->request));
    for (uint32_t p = 0; p < f->profiles; p++) {
        numbers[p] = size_at(f, p, k->request) / common;
        if (numbers[p] == 0 || numbers[p] >= NUMBER_MOST)
            return false;
    }
    return true;
}

static uint32_t find_direction(const fitting *f, const uint64_t *numbers)
{
    uint32_t d = 0;
    while (d < f->direction_count &&
           memcmp(f->directions[d].numbers, numbers, f->profiles * sizeof *numbers) != 0)
        d++;
    return d;
}

static int more_requests(const void *a, const void *b)
{
    const direction *x = a, *y = b;
    if (x->requests != y->requests)
        return x->requests < y->requests ? 1 : -1;
    return x->numbers < y->numbers ? -1 : x->numbers > y->numbers;
}

/* Directions are told apart one by one: with more kinds than MANY_KINDS there are no few simple
 * functions anyway. */
#define MANY_KINDS 4096u

static pleat_result list_directions(fitting *f)
{
    size_t capacity = 0;
    uint32_t most = f->kind_count < MANY_KINDS ? f->kind_count : MANY_KINDS;
    /* One block, so that their order in it can break ties. */
    uint64_t *numbers =
        pleat__arena_alloc(f->arena, ((uint64_t)most + 1) * f->profiles * sizeof *numbers);
    if (numbers == NULL)
        return no_memory(f);
    pleat_result result = PLEAT_OK;
    for (uint32_t k = 0; k < most && result == PLEAT_OK; k++) {
        uint64_t *own = numbers + (uint64_t)f->direction_count * f->profiles;
        if (!direction_of(f, &f->kinds[k], own))
            continue;
        uint32_t d = find_direction(f, own);
        if (d == f->direction_count) {
            result =
                pleat__arena_grow(f->arena, &f->directions, &capacity, d, sizeof *f->directions);
            if (result != PLEAT_OK)
                break;
            f->directions[f->direction_count++] = (direction){own, 0};
        }
        f->directions[d].requests += f->kinds[k].count;
    }
    if (f->direction_count == 0)
        pleat__arena_free(f->arena, numbers);
    else
        qsort(f->directions, f->direction_count, sizeof *f->directions, more_requests);
    return result;
}

/* The block that all directions' numbers are in. */
static void free_directions(fitting *f)
{
    uint64_t *block = NULL;
    for (uint32_t d = 0; d < f->direction_count; d++)
        if (block == NULL || f->directions[d].numbers < block)
            block = f->directions[d].numbers;
    pleat__arena_free(f->arena, block);
    pleat__arena_free(f->arena, f->directions);
}

/* --- functions ---------------------------------------------------------------------------------*/

static uint32_t samples_of(const fitting *f, const kind *k, pleat__sample *samples)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint64_t size = size_at(f, p, k->request);
        if (size != PLEAT__ABSENT)
            samples[count++] = (pleat__sample){f->u[p], f->v[p], size};
    }
    return count;
}

static bool seen_at_two(const pleat__sample *samples, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (samples[i].u != samples[0].u || samples[i].v != samples[0].v)
            return true;
    return false;
}

/* Of a request that comes at one x only, in all its iterations and at one size: another x takes
 * another way through the program. What is a whole number of places for each unit of x is taken to
 * follow it, anything else to be the same. */
static bool explain_alone(const fitting *f, const kind *k, const pleat__sample *samples,
                          uint32_t count, pleat__function *function)
{
    uint32_t there = 0;
    for (uint32_t p = 0; p < f->profiles; p++)
        there += f->u[p] == samples[0].u;
    if (count == 0 || k->varies || there != count)
        return false;
    uint64_t size = samples[0].size, u = samples[0].u;
    *function = (pleat__function){.divisor = 1, .most = UINT64_MAX};
    if (size / PLEAT__ALIGNMENT % u == 0 && size % PLEAT__ALIGNMENT == 0)
        function->k[1] = (int64_t)(size / u);
    else
        function->k[0] = (int64_t)size;
    return true;
}

static uint64_t largest_of(const fitting *f, const kind *k)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint64_t size = size_at(f, p, k->request);
        most = size != PLEAT__ABSENT && size > most ? size : most;
    }
    return most;
}

static pleat_result sort_largest(fitting *f)
{
    f->largest = pleat__arena_alloc(f->arena, 2 * (f->kind_count + 1ull) * sizeof *f->largest);
    if (f->largest == NULL)
        return no_memory(f);
    for (uint32_t k = 0; k < f->kind_count; k++)
        f->largest[k] = largest_of(f, &f->kinds[k]);
    pleat__sort_keys(f->largest, f->largest + f->kind_count, f->kind_count);
    return PLEAT_OK;
}

/* Whether a second kind has this largest size. pre: one has it. */
static bool is_shared(const fitting *f, uint64_t most)
{
    uint32_t at;
    PLEAT__FIRST(at, f->kind_count, f->largest[at] >= most);
    return at + 1 < f->kind_count && f->largest[at + 1] == most;
}

/* Whether a largest size is a bound: this kind has it at two x, or another kind has it too. */
static bool is_bound(const fitting *f, const pleat__sample *samples, uint32_t count, uint64_t most)
{
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (samples[i].size != most)
            continue;
        if (at != 0 && samples[i].u != at)
            return true;
        at = samples[i].u;
    }
    return is_shared(f, most);
}

/* The function of a kind's sizes with u and v as they stand. */
static bool explain(const fitting *f, uint32_t k, uint32_t parameters, pleat__function *function)
{
    pleat__sample samples[PLEAT__FIT_PROFILES_MOST];
    uint32_t count = samples_of(f, &f->kinds[k], samples);
    if (!seen_at_two(samples, count))
        return parameters == 1 && explain_alone(f, &f->kinds[k], samples, count, function);
    if (pleat__solve(samples, count, parameters, function))
        return true;
    uint64_t most = largest_of(f, &f->kinds[k]);
    return parameters == 1 && ((is_bound(f, samples, count, most) &&
                                pleat__solve_bounded(samples, count, most, function)) ||
                               pleat__solve_floored(samples, count, function));
}

/* Requests of varying size that have a function with u and v as they stand. */
static uint64_t count_explained(const fitting *f, uint32_t parameters)
{
    pleat__function unused;
    uint64_t explained = 0;
    for (uint32_t k = 0; k < f->kind_count; k++)
        if (f->kinds[k].varies && explain(f, k, parameters, &unused))
            explained += f->kinds[k].count;
    return explained;
}

/* --- x -----------------------------------------------------------------------------------------*/

static bool is_square(uint64_t number, uint64_t *root)
{
    PLEAT__FIRST(*root, (size_t)1 << 21, (*root + 1) * (*root + 1) > number);
    return *root * *root == number;
}

/* numbers[p] = num[p] / den[p], times what makes all of them whole and small. */
static bool make_whole(const uint64_t *num, const uint64_t *den, uint32_t count, uint64_t *numbers)
{
    uint64_t multiple = 1, common = 0;
    for (uint32_t p = 0; p < count; p++) {
        uint64_t rest = den[p] / pleat__gcd(num[p], den[p]);
        if (!pleat__mul(multiple / pleat__gcd(multiple, rest), rest, &multiple) ||
            multiple >= NUMBER_MOST)
            return false;
    }
    for (uint32_t p = 0; p < count; p++) {
        uint64_t shared = pleat__gcd(num[p], den[p]), own = den[p] / shared;
        if (!pleat__mul(num[p] / shared, multiple / own, &numbers[p]))
            return false;
        common = pleat__gcd(common, numbers[p]);
    }
    for (uint32_t p = 0; p < count; p++) {
        numbers[p] /= common;
        if (numbers[p] == 0 || numbers[p] >= NUMBER_MOST)
            return false;
    }
    return true;
}

typedef enum role { ROLE_U, ROLE_V, ROLE_U_SQUARE, ROLE_U_TIMES, ROLES } role;

/* u and v when `product` is uv and `other` plays a role: u, v, u^2, or u^2 v. */
static bool split(fitting *f, const uint64_t *product, const uint64_t *other, role as)
{
    uint64_t num[PLEAT__FIT_PROFILES_MOST], den[PLEAT__FIT_PROFILES_MOST];
    for (uint32_t p = 0; p < f->profiles; p++) {
        num[p] = other[p];
        den[p] = 1;
        /* A square in ratios: relative to the first profile. */
        if (as == ROLE_U_SQUARE) {
            uint64_t top = other[p] / pleat__gcd(other[p], other[0]);
            uint64_t bottom = other[0] / pleat__gcd(other[p], other[0]);
            if (!is_square(top, &num[p]) || !is_square(bottom, &den[p]))
                return false;
        }
        if (as == ROLE_U_TIMES)
            den[p] = product[p];
    }
    uint64_t *given = as == ROLE_V ? f->v : f->u, *rest = as == ROLE_V ? f->u : f->v;
    return make_whole(num, den, f->profiles, given) &&
           make_whole(product, given, f->profiles, rest);
}

/* Different x among the profiles. */
static uint32_t count_different(const fitting *f)
{
    uint32_t different = 0;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint32_t q = 0;
        while (q < p && (f->u[q] != f->u[p] || f->v[q] != f->v[p]))
            q++;
        different += q == p;
    }
    return different;
}

static bool is_constant(const uint64_t *numbers, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (numbers[i] != numbers[0])
            return false;
    return true;
}

static void keep_best(fitting *f)
{
    memcpy(f->best_u, f->u, f->profiles * sizeof *f->u);
    memcpy(f->best_v, f->v, f->profiles * sizeof *f->v);
}

static void take_best(fitting *f)
{
    memcpy(f->u, f->best_u, f->profiles * sizeof *f->u);
    memcpy(f->v, f->best_v, f->profiles * sizeof *f->v);
}

/* A second number explains the sizes that it was taken from, so it has to explain others; or to be
 * the root of squares often enough. */
static bool is_evidence(const fitting *f, uint32_t d, role as, uint64_t gained)
{
    return gained > f->directions[d].requests ||
           (as == ROLE_U_SQUARE && count_different(f) >= SQUARES);
}

/* Whether u and v as they stand may be two numbers of the job, for both of which at their largest
 * the plan is laid out (D521); what they make together all over its range must be a number. */
static bool are_two(const fitting *f)
{
    uint64_t u = 0, v = 0, most = 0, corner;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint64_t here;
        if (!pleat__mul(f->u[p], f->v[p], &here))
            return false;
        u = f->u[p] > u ? f->u[p] : u;
        v = f->v[p] > v ? f->v[p] : v;
        most = here > most ? here : most;
    }
    return pleat__mul(u, v, &corner) && corner / CORNER <= most &&
           corner < PLEAT__FRACTION_MOST / (PLEAT__RANGE * PLEAT__RANGE) && count_different(f) > 2;
}

/* Sets u and v of each profile; returns how many parameters there are. */
static uint32_t find_x(fitting *f)
{
    if (f->direction_count == 0 || f->directions[0].requests * MAJORITY < f->varying ||
        f->varying * PLEAT__VARYING_SHARE < f->count)
        return 0;
    const uint64_t *product = f->directions[0].numbers;
    memcpy(f->u, product, f->profiles * sizeof *f->u);
    for (uint32_t p = 0; p < f->profiles; p++)
        f->v[p] = 1;
    keep_best(f);
    uint64_t one = count_explained(f, 1), best = one;
    uint32_t parameters = 1;
    if ((f->varying - best) * WELL <= f->varying)
        return 1;
    for (uint32_t d = 1; d < f->direction_count && d <= OTHERS; d++)
        for (role as = ROLE_U; as < ROLES; as++) {
            if (!split(f, product, f->directions[d].numbers, as) ||
                is_constant(f->u, f->profiles) || is_constant(f->v, f->profiles) || !are_two(f))
                continue;
            uint64_t explained = count_explained(f, 2);
            if (explained > best && is_evidence(f, d, as, explained - one)) {
                best = explained;
                parameters = 2;
                keep_best(f);
            }
        }
    take_best(f);
    return parameters;
}

/* Names are given to the first profiles, which are the traces. */
static pleat_result wrong_name(const fitting *f, uint32_t trace, uint64_t name, uint32_t first,
                               uint64_t first_name)
{
    char times[48];
    pleat__fraction ratio;
    if (!pleat__fraction_make(f->u[trace], f->u[first], &ratio))
        return pleat__fail(PLEAT_E_INPUT, "trace %u: x is too large a number", trace + 1);
    pleat__x_text(&(pleat__x){ratio, {1, 1}}, times, sizeof times);
    if (name == 0)
        return pleat__fail(PLEAT_E_INPUT,
                           "x is given as %llu in trace %u, and there are sizes of %s times its "
                           "own: no whole number is their x",
                           (unsigned long long)first_name, first + 1, times);
    if (f->u[trace] == f->u[first])
        return pleat__fail(
            PLEAT_E_INPUT,
            "x is given as %llu in trace %u and as %llu in trace %u, and their sizes "
            "are the same: they follow another number, or these are recordings at "
            "one x",
            (unsigned long long)first_name, first + 1, (unsigned long long)name, trace + 1);
    return pleat__fail(PLEAT_E_INPUT,
                       "x is given as %llu in trace %u and as %llu in trace %u, whose sizes are %s "
                       "times the former's: are they in that order?",
                       (unsigned long long)first_name, first + 1, (unsigned long long)name,
                       trace + 1, times);
}

/* Gives u the unit in which the profiles are named. */
static pleat_result name_profiles(fitting *f, uint32_t parameters, const uint64_t *names)
{
    uint64_t num[PLEAT__FIT_PROFILES_MOST], den[PLEAT__FIT_PROFILES_MOST];
    uint32_t named = f->profiles;
    for (uint32_t p = 0; p < f->profiles && named == f->profiles; p++)
        named = names[p] != 0 ? p : named;
    if (named == f->profiles)
        return PLEAT_OK;
    if (parameters == 2)
        return pleat__fail(PLEAT_E_INPUT,
                           "the sizes follow two numbers, a length and a batch for instance, and "
                           "one name each is not enough: name none");
    for (uint32_t p = 0; p < f->profiles; p++) {
        /* u[p] * name / u[named] */
        uint64_t common = pleat__gcd(names[named], f->u[named]);
        num[p] = names[named] / common;
        den[p] = f->u[named] / common;
        if (!pleat__mul(num[p], f->u[p], &num[p]) || num[p] % den[p] != 0 ||
            num[p] / den[p] >= NUMBER_MOST || (names[p] != 0 && names[p] != num[p] / den[p]))
            return wrong_name(f, p, names[p], named, names[named]);
    }
    for (uint32_t p = 0; p < f->profiles; p++)
        f->u[p] = num[p] / den[p];
    return PLEAT_OK;
}

/* --- the answer --------------------------------------------------------------------------------*/

/* A function for each kind that has one. */
static pleat_result fit_kinds(fitting *f, pleat__fit *out)
{
    out->functions = pleat__arena_alloc(f->arena, (f->kind_count + 1ull) * sizeof *out->functions);
    if (out->functions == NULL)
        return no_memory(f);
    for (uint32_t k = 0; k < f->kind_count; k++)
        if (explain(f, k, out->parameters, &out->functions[out->function_count]))
            f->kinds[k].function = out->function_count++;
    return PLEAT_OK;
}

static pleat_result keep_answer(const fitting *f, pleat__fit *out)
{
    out->x = pleat__arena_calloc(f->arena, f->profiles, sizeof *out->x);
    out->of = pleat__arena_alloc(f->arena, (f->count + 1ull) * sizeof *out->of);
    if (out->x == NULL || out->of == NULL)
        return no_memory(f);
    for (uint32_t p = 0; p < f->profiles; p++)
        out->x[p] = (pleat__x){{f->u[p], 1}, {f->v[p], 1}};
    for (uint32_t i = 0; i < f->count; i++) {
        const kind *k = &f->kinds[f->kind_of[i]];
        out->of[i] = k->function;
        out->explained += k->varies && k->function != PLEAT__NO_FUNCTION;
    }
    return PLEAT_OK;
}

static pleat_result allocate(fitting *f)
{
    f->kinds = pleat__arena_calloc(f->arena, f->count + 1ull, sizeof *f->kinds);
    f->kind_of = pleat__arena_calloc(f->arena, f->count + 1ull, sizeof *f->kind_of);
    f->u = pleat__arena_calloc(f->arena, 4ull * f->profiles, sizeof *f->u);
    if (f->kinds == NULL || f->kind_of == NULL || f->u == NULL)
        return no_memory(f);
    f->v = f->u + f->profiles;
    f->best_u = f->v + f->profiles;
    f->best_v = f->best_u + f->profiles;
    return PLEAT_OK;
}

static pleat_result fit(fitting *f, const uint64_t *names, pleat__fit *out)
{
    PLEAT_TRY(allocate(f));
    PLEAT_TRY(list_kinds(f));
    PLEAT_TRY(sort_largest(f));
    for (uint32_t k = 0; k < f->kind_count; k++)
        f->varying += f->kinds[k].varies ? f->kinds[k].count : 0;
    PLEAT_TRY(list_directions(f));
    out->varying = f->varying;
    out->parameters = find_x(f);
    if (out->parameters == 0)
        return PLEAT_OK;
    if (names != NULL)
        PLEAT_TRY(name_profiles(f, out->parameters, names));
    PLEAT_TRY(fit_kinds(f, out));
    return keep_answer(f, out);
}

pleat_result pleat__fit_make(const uint64_t *sizes, uint32_t profiles, uint32_t count,
                             const uint64_t *names, pleat__arena *arena, pleat__fit *out)
{
    fitting f = {.sizes = sizes, .profiles = profiles, .count = count, .arena = arena};
    *out = (pleat__fit){0};
    if (profiles < 2 || profiles > PLEAT__FIT_PROFILES_MOST || count == 0)
        return PLEAT_OK;
    pleat_result result = fit(&f, names, out);
    free_directions(&f);
    pleat__arena_free(arena, f.kinds);
    pleat__arena_free(arena, f.kind_of);
    pleat__arena_free(arena, f.largest);
    pleat__arena_free(arena, f.u);
    if (result != PLEAT_OK) {
        pleat__arena_free(arena, out->x);
        pleat__arena_free(arena, out->functions);
        pleat__arena_free(arena, out->of);
        *out = (pleat__fit){0};
    }
    return result;
}
