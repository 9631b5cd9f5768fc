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
#include <string.h>

#define MAJORITY    2 /* one in so many of the varying requests */
#define NUMBER_MOST ((uint64_t)1 << 40)

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
    uint32_t *kind_of; /* by request */
    uint64_t *largest; /* sizes of the kinds, ascending */
    direction *directions;
    uint32_t direction_count;
    uint64_t *x; /* by profile */
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

/* Directions are told apart one by one: with more kinds than MANY_KINDS there are no few simple
 * functions anyway. */
#define MANY_KINDS 4096u

static pleat_result list_directions(fitting *f)
{
    size_t capacity = 0;
    uint32_t most = f->kind_count < MANY_KINDS ? f->kind_count : MANY_KINDS;
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
    return result;
}

/* The first one's numbers begin the block that all are in. */
static void free_directions(fitting *f)
{
    if (f->direction_count != 0)
        pleat__arena_free(f->arena, f->directions[0].numbers);
    pleat__arena_free(f->arena, f->directions);
}

/* --- functions ---------------------------------------------------------------------------------*/

static uint32_t samples_of(const fitting *f, const kind *k, pleat__sample *samples)
{
    uint32_t count = 0;
    for (uint32_t p = 0; p < f->profiles; p++) {
        uint64_t size = size_at(f, p, k->request);
        if (size != PLEAT__ABSENT)
            samples[count++] = (pleat__sample){f->x[p], size};
    }
    return count;
}

static bool seen_at_two(const pleat__sample *samples, uint32_t count)
{
    for (uint32_t i = 1; i < count; i++)
        if (samples[i].x != samples[0].x)
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
        there += f->x[p] == samples[0].x;
    if (count == 0 || k->varies || there != count)
        return false;
    uint64_t size = samples[0].size, x = samples[0].x;
    *function = (pleat__function){.divisor = 1, .most = UINT64_MAX};
    if (size / PLEAT__ALIGNMENT % x == 0 && size % PLEAT__ALIGNMENT == 0)
        function->k[1] = (int64_t)(size / x);
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
        if (at != 0 && samples[i].x != at)
            return true;
        at = samples[i].x;
    }
    return is_shared(f, most);
}

/* The function of a kind's sizes. */
static bool explain(const fitting *f, uint32_t k, pleat__function *function)
{
    pleat__sample samples[PLEAT__FIT_PROFILES_MOST];
    uint32_t count = samples_of(f, &f->kinds[k], samples);
    if (!seen_at_two(samples, count))
        return explain_alone(f, &f->kinds[k], samples, count, function);
    if (pleat__solve(samples, count, function))
        return true;
    uint64_t most = largest_of(f, &f->kinds[k]);
    return (is_bound(f, samples, count, most) &&
            pleat__solve_bounded(samples, count, most, function)) ||
           pleat__solve_floored(samples, count, function);
}

/* --- x -----------------------------------------------------------------------------------------*/

/* Whether the sizes show x, which is set for each profile then. */
static bool find_x(fitting *f)
{
    const direction *most = f->directions;
    for (uint32_t d = 1; d < f->direction_count; d++)
        if (f->directions[d].requests > most->requests)
            most = &f->directions[d];
    if (f->direction_count == 0 || most->requests * MAJORITY < f->varying ||
        f->varying * PLEAT__VARYING_SHARE < f->count)
        return false;
    memcpy(f->x, most->numbers, f->profiles * sizeof *f->x);
    return true;
}

/* Names are given to the first profiles, which are the traces. */
static pleat_result wrong_name(const fitting *f, uint32_t trace, uint64_t name, uint32_t first,
                               uint64_t first_name)
{
    char times[48];
    pleat__fraction ratio;
    if (!pleat__fraction_make(f->x[trace], f->x[first], &ratio))
        return pleat__fail(PLEAT_E_INPUT, "trace %u: x is too large a number", trace + 1);
    pleat__x_text(ratio, times, sizeof times);
    if (name == 0)
        return pleat__fail(PLEAT_E_INPUT,
                           "x is given as %llu in trace %u, and there are sizes of %s times its "
                           "own: no whole number is their x",
                           (unsigned long long)first_name, first + 1, times);
    if (f->x[trace] == f->x[first])
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

/* Gives x the unit in which the profiles are named. */
static pleat_result name_profiles(fitting *f, const uint64_t *names)
{
    uint64_t num[PLEAT__FIT_PROFILES_MOST], den[PLEAT__FIT_PROFILES_MOST];
    uint32_t named = f->profiles;
    for (uint32_t p = 0; p < f->profiles && named == f->profiles; p++)
        named = names[p] != 0 ? p : named;
    if (named == f->profiles)
        return PLEAT_OK;
    for (uint32_t p = 0; p < f->profiles; p++) {
        /* x[p] * name / x[named] */
        uint64_t common = pleat__gcd(names[named], f->x[named]);
        num[p] = names[named] / common;
        den[p] = f->x[named] / common;
        if (!pleat__mul(num[p], f->x[p], &num[p]) || num[p] % den[p] != 0 ||
            num[p] / den[p] >= NUMBER_MOST || (names[p] != 0 && names[p] != num[p] / den[p]))
            return wrong_name(f, p, names[p], named, names[named]);
    }
    for (uint32_t p = 0; p < f->profiles; p++)
        f->x[p] = num[p] / den[p];
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
        if (explain(f, k, &out->functions[out->function_count]))
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
        out->x[p] = (pleat__fraction){f->x[p], 1};
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
    f->x = pleat__arena_calloc(f->arena, f->profiles, sizeof *f->x);
    return f->kinds == NULL || f->kind_of == NULL || f->x == NULL ? no_memory(f) : PLEAT_OK;
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
    out->shows_x = find_x(f);
    if (!out->shows_x)
        return PLEAT_OK;
    if (names != NULL)
        PLEAT_TRY(name_profiles(f, names));
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
    pleat__arena_free(arena, f.x);
    if (result != PLEAT_OK) {
        pleat__arena_free(arena, out->x);
        pleat__arena_free(arena, out->functions);
        pleat__arena_free(arena, out->of);
        *out = (pleat__fit){0};
    }
    return result;
}
