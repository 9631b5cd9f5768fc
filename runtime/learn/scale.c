/*
 * scale.c: sizes at x, x from sizes, and lines fitted to them (see scale.h).
 *
 * Profiles are laid against the one with the most requests by the planner's own alignment
 * (plan/sizes/fit.h), which takes two requests for the same when sizes and rhythm say so. The
 * proportion of the parameter is the one that most bytes grow by.
 */
#include <runtime/learn/scale.h>

#include <internal/check.h>
#include <plan/sizes/fit.h>
#include <stdlib.h>

/* Iterations are one job's when this share of their requests have a partner: sixteenths. */
#define ALIKE 14u
/* Two scales of one job may differ in the sizes of one request in so many. */
#define OTHER_SIZES 16u
/* A job may have come so far beyond the range. */
#define PLAUSIBLE 64u
/* Sizes are believed as far from two xs as so many times what lies between them. (A line through
 * two that were half a percent apart, at an x a third below: twice the memory.) */
#define SPANS 8u
/* A size grows with x where it is off by one part in so many of the growth, and by so many bytes,
 * since small ones grow in steps; of those that vary one in so many may not. */
#define NEAR     4u
#define STEP     1024u
#define MOST_ODD 4u

/* A size times an x has up to 96 bits. */
__extension__ typedef __int128 wide;

typedef struct fitting {
    pleat__arena *arena;
    pleat__profile *const *profiles;
    uint32_t profile_count;
    const pleat__profile *base;
    uint32_t **pairs; /* of each profile: by the base's part */
    uint64_t *xs;
    uint32_t low, high; /* profiles */
} fitting;

/* ---- laying profiles against each other ---- */

static pleat__request *requests_of(pleat__arena *arena, const pleat__profile *profile)
{
    pleat__request *items = pleat__arena_alloc(arena, (profile->count + 1ull) * sizeof *items);
    for (uint32_t i = 0; i < profile->count && items != NULL; i++) {
        const pleat__part *part = &profile->parts[i];
        bool crosses = part->end != PLEAT__NEVER && part->end <= part->begin;
        items[i] = (pleat__request){.size = part->bytes,
                                    .alloc_at = part->begin,
                                    .free_at = part->end + (crosses ? profile->horizon : 0),
                                    .stream = part->stream};
    }
    return items;
}

/* pairs[i]: the part of `other` that is the base's part i, or PLEAT__NEVER. false: they are not
 * the same iteration, or host memory is short. */
static bool lay(pleat__arena *arena, const pleat__profile *base, const pleat__profile *other,
                uint32_t *pairs)
{
    pleat__request *a = requests_of(arena, base), *b = requests_of(arena, other);
    uint32_t paired = 0, most = base->count > other->count ? base->count : other->count;
    bool laid =
        a != NULL && b != NULL &&
        pleat__shapes_align(a, base->count, b, other->count, arena, pairs, &paired) == PLEAT_OK;
    pleat__arena_free(arena, a);
    pleat__arena_free(arena, b);
    return laid && paired >= most / 16 * ALIKE;
}

static bool lay_all(fitting *f)
{
    for (uint32_t s = 0; s < f->profile_count; s++) {
        f->pairs[s] = pleat__arena_alloc(f->arena, f->base->count * sizeof **f->pairs);
        if (f->pairs[s] == NULL)
            return false;
        if (f->profiles[s] != f->base) {
            if (!lay(f->arena, f->base, f->profiles[s], f->pairs[s]))
                return false;
            continue;
        }
        for (uint32_t i = 0; i < f->base->count; i++)
            f->pairs[s][i] = i;
    }
    return true;
}

/* The first part of a profile behind the position. */
static uint32_t part_behind(const pleat__profile *profile, uint32_t position)
{
    uint32_t low = 0, high = profile->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (profile->parts[middle].begin < position)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Before which part of `open` what `from` frees there is freed. */
static uint32_t carry_end(const pleat__profile *open, const pleat__profile *from,
                          const uint32_t *pairs, uint32_t position)
{
    uint32_t i = part_behind(from, position);
    while (i < from->count && pairs[i] == PLEAT__NEVER)
        i++;
    return i < from->count ? pairs[i] : open->count;
}

/* Frees that are known now take positions of their own: part i is freed directly before the part
 * freed[i], where that is not PLEAT__NEVER. */
static bool insert_frees(pleat__profile *open, const uint32_t *freed)
{
    uint32_t count = open->count;
    uint32_t *moved = pleat__arena_calloc(open->arena, 2 * (count + 1ull), sizeof *moved);
    if (moved == NULL)
        return false;
    uint32_t *next = moved + count + 1; /* position of the next free before a part */
    for (uint32_t i = 0; i < count; i++)
        if (freed[i] != PLEAT__NEVER)
            moved[freed[i]]++;
    for (uint32_t k = 0, before = 0; k <= count; k++) {
        next[k] = (k < count ? open->parts[k].begin : open->horizon) + before;
        before += moved[k];
        moved[k] = before;
    }
    for (uint32_t i = 0; i < count; i++) {
        pleat__part *part = &open->parts[i];
        if (freed[i] != PLEAT__NEVER)
            part->end = next[freed[i]]++;
        else if (part->end != PLEAT__NEVER)
            part->end += moved[part_behind(open, part->end) - 1];
    }
    for (uint32_t i = 0; i < count; i++)
        open->parts[i].begin += moved[i];
    open->horizon += moved[count];
    pleat__arena_free(open->arena, moved);
    return true;
}

/* By their order, where they are as many: what is freed when, which laying them against each other
 * looks at as well, is not known of both. */
static bool pair(const pleat__profile *open, const pleat__profile *from, uint32_t *pairs)
{
    if (open->count != from->count)
        return lay(open->arena, from, open, pairs);
    for (uint32_t i = 0; i < from->count; i++) {
        if (open->parts[i].stream != from->parts[i].stream)
            return lay(open->arena, from, open, pairs);
        pairs[i] = i;
    }
    return true;
}

/* freed[i]: before which part of its iteration part i of the one before is freed. */
static void carry_ends(const pleat__profile *open, const pleat__profile *from,
                       const uint32_t *pairs, uint32_t *freed)
{
    for (uint32_t i = 0; i < open->count; i++)
        freed[i] = PLEAT__NEVER;
    for (uint32_t i = 0; i < from->count; i++) {
        const pleat__part *part = &from->parts[i];
        bool crosses = part->end != PLEAT__NEVER && part->end <= part->begin;
        if (pairs[i] == PLEAT__NEVER || !crosses || open->parts[pairs[i]].end != PLEAT__NEVER)
            continue;
        uint32_t end = carry_end(open, from, pairs, part->end);
        freed[pairs[i]] = end <= pairs[i] ? end : PLEAT__NEVER;
    }
}

bool pleat__scale_complete(pleat__profile *open, const pleat__profile *from)
{
    PLEAT_ASSERT(open->open);
    uint32_t *pairs = pleat__arena_alloc(open->arena, from->count * sizeof *pairs);
    uint32_t *freed = pleat__arena_alloc(open->arena, open->count * sizeof *freed);
    bool same = pairs != NULL && freed != NULL && pair(open, from, pairs);
    if (same) {
        carry_ends(open, from, pairs, freed);
        same = insert_frees(open, freed);
    }
    if (same) {
        open->open = false;
        open->guessed = open->count != from->count;
    }
    pleat__arena_free(open->arena, pairs);
    pleat__arena_free(open->arena, freed);
    return same;
}

bool pleat__scale_is_same(const pleat__scale *before, const pleat__scale *after, const pleat__x *x)
{
    uint32_t other = 0;
    if (before->plan != NULL || after->plan != NULL || before->count != after->count ||
        before->horizon != after->horizon)
        return false;
    for (uint32_t i = 0; i < after->count; i++) {
        const pleat__term *was = &before->terms[i], *is = &after->terms[i];
        if (is->stream != was->stream || is->begin != was->begin || is->end != was->end)
            return false;
        other += is->loose != was->loose ||
                 pleat__scale_bytes(before, was, x) != pleat__scale_bytes(after, is, x);
    }
    return other <= after->count / OTHER_SIZES;
}

uint32_t pleat__scale_agrees(const pleat__scale *scale, const pleat__profile *profile,
                             const pleat__x *x)
{
    uint32_t count = scale->count - scale->first, agreed = 0;
    const pleat__term *terms = scale->terms + scale->first;
    pleat__profile at = {.count = count, .horizon = scale->horizon};
    at.parts = pleat__arena_alloc(profile->arena, count * sizeof *at.parts);
    uint32_t *pairs = pleat__arena_alloc(profile->arena, count * sizeof *pairs);
    for (uint32_t i = 0; i < count && at.parts != NULL; i++)
        at.parts[i] = (pleat__part){.bytes = pleat__scale_bytes(scale, &terms[i], x),
                                    .begin = terms[i].begin,
                                    .end = terms[i].end,
                                    .stream = terms[i].stream};
    bool alike = at.parts != NULL && pairs != NULL && lay(profile->arena, &at, profile, pairs);
    for (uint32_t i = 0; i < count && alike; i++)
        agreed += pairs[i] != PLEAT__NEVER &&
                  (terms[i].loose || profile->parts[pairs[i]].bytes == at.parts[i].bytes);
    pleat__arena_free(profile->arena, at.parts);
    pleat__arena_free(profile->arena, pairs);
    return agreed;
}

/* A part's size in a profile; 0 when the profile does not have it. */
static uint64_t size_in(const fitting *f, uint32_t profile, uint32_t part)
{
    uint32_t pair = f->pairs[profile][part];
    return pair == PLEAT__NEVER ? 0 : f->profiles[profile]->parts[pair].bytes;
}

/* ---- the parameter ---- */

typedef struct growth {
    uint64_t to, from; /* in lowest terms */
    uint64_t bytes;    /* of the requests that grow so */
    uint32_t part;     /* the largest of them */
    uint64_t most;
} growth;

static int growth_compare(const void *a, const void *b)
{
    const growth *x = a, *y = b;
    if (x->to != y->to)
        return x->to < y->to ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* The part whose bytes are x: of those that grow, from profile a to profile b, as most bytes do.
 * PLEAT__NEVER when none changes, PLEAT__NEVER - 1 when host memory is short. */
static uint32_t reference_of(const fitting *f, uint32_t a, uint32_t b)
{
    growth *all = pleat__arena_alloc(f->arena, (f->base->count + 1u) * sizeof *all);
    uint32_t count = 0, best = PLEAT__NEVER;
    if (all == NULL)
        return PLEAT__NEVER - 1;
    for (uint32_t i = 0; i < f->base->count; i++) {
        uint64_t from = size_in(f, a, i), to = size_in(f, b, i);
        if (from == 0 || to == 0 || from == to)
            continue;
        uint64_t divisor = pleat__gcd(from, to);
        all[count++] = (growth){to / divisor, from / divisor, from, i, from};
    }
    if (count != 0)
        qsort(all, count, sizeof *all, growth_compare);
    uint64_t most = 0;
    for (uint32_t i = 0, first = 0; i < count; i++) {
        if (growth_compare(&all[first], &all[i]) != 0)
            first = i;
        if (i != first) {
            all[first].bytes += all[i].bytes;
            if (all[i].most > all[first].most) {
                all[first].most = all[i].most;
                all[first].part = all[i].part;
            }
        }
        if (all[first].bytes > most) {
            most = all[first].bytes;
            best = all[first].part;
        }
    }
    pleat__arena_free(f->arena, all);
    return best;
}

/* Two profiles at different x; false when there are none, *same when all are the same. */
static bool find_parameter(fitting *f, bool *same)
{
    uint32_t reference = PLEAT__NEVER;
    for (uint32_t s = 1; s < f->profile_count && reference == PLEAT__NEVER; s++)
        reference = reference_of(f, 0, s);
    *same = reference == PLEAT__NEVER;
    if (reference >= PLEAT__NEVER - 1)
        return false;
    for (uint32_t s = 0; s < f->profile_count; s++) {
        f->xs[s] = size_in(f, s, reference);
        if (f->xs[s] == 0 || f->xs[s] >= PLEAT__FRACTION_MOST)
            return false;
        f->low = f->xs[s] < f->xs[f->low] ? s : f->low;
        f->high = f->xs[s] > f->xs[f->high] ? s : f->high;
    }
    return f->xs[f->low] != f->xs[f->high];
}

/* ---- lines ---- */

static uint64_t line_at(const pleat__scale *scale, const pleat__term *term, uint64_t x)
{
    int64_t rise, most = INT64_MAX / 2;
    if (term->rise == 0)
        return term->bytes;
    /* What iterations have is far from the limits: 20,000 of these are looked at in each. */
    if (x >= scale->lowest && term->rise > 0 && x < (uint64_t)most &&
        !__builtin_mul_overflow(term->rise, (int64_t)(x - scale->lowest), &rise))
        return term->bytes + pleat__ceil_div((uint64_t)rise, scale->highest - scale->lowest);
    wide span = (wide)scale->highest - scale->lowest;
    wide over = (wide)term->rise * ((wide)x - scale->lowest);
    wide bytes = term->bytes + (over >= 0 ? (over + span - 1) / span : -(-over / span));
    return bytes <= 0 ? 0 : bytes > (wide)UINT64_MAX ? UINT64_MAX : (uint64_t)bytes;
}

static uint64_t bounded(const pleat__scale *scale, const pleat__term *term, uint64_t x)
{
    uint64_t bytes = line_at(scale, term, x);
    return bytes < term->most ? bytes : term->most;
}

/* Of `bytes` at `then`, in whole granules. */
static uint64_t in_proportion(const pleat__x *then, uint64_t bytes, const pleat__x *now)
{
    pleat__fraction before, after, size = {pleat__ceil_div(bytes, PLEAT__ALIGNMENT), 1};
    if (!pleat__fraction_multiply(then->u, then->v, &before) ||
        !pleat__fraction_multiply(now->u, now->v, &after) || before.num == 0 ||
        !pleat__fraction_multiply(after, (pleat__fraction){before.den, before.num}, &after) ||
        !pleat__fraction_multiply(size, after, &size))
        return 0;
    return (size.num / size.den + (size.num % size.den != 0)) * PLEAT__ALIGNMENT;
}

uint64_t pleat__scale_bytes(const pleat__scale *scale, const pleat__term *term, const pleat__x *x)
{
    uint64_t bytes;
    if (scale->plan == NULL)
        return bounded(scale, term, x->u.num);
    if (term->reserved)
        return in_proportion(&scale->plan->recipe->reference, term->bytes, x);
    if (term->rise == 0)
        return term->bytes;
    const pleat__function *function = &scale->plan->recipe->functions[term->function];
    return pleat__function_at(function, x, &bytes) ? bytes : 0;
}

static bool infer_line(const pleat__scale *scale, const pleat__term *term, uint64_t bytes,
                       uint64_t *x)
{
    wide span = (wide)scale->highest - scale->lowest;
    wide over = ((wide)bytes - term->bytes) * span;
    if (over % term->rise != 0)
        return false;
    wide at = scale->lowest + over / term->rise;
    if (at <= 0 || at >= (wide)PLEAT__FRACTION_MOST)
        return false;
    *x = (uint64_t)at;
    return true;
}

bool pleat__scale_infer(const pleat__scale *scale, const pleat__term *term, uint64_t bytes,
                        pleat__x *x)
{
    *x = (pleat__x){{0, 1}, {1, 1}};
    if (term->rise == 0 || term->loose || bytes >= term->most)
        return false;
    if (scale->plan == NULL)
        return infer_line(scale, term, bytes, &x->u.num);
    const pleat__recipe *recipe = scale->plan->recipe;
    return recipe->parameters == 1 &&
           pleat__function_solve(&recipe->functions[term->function], bytes, &x->u);
}

/* ---- x ---- */

/* Learned ones are whole bytes. */
static pleat__x whole(const pleat__scale *scale, pleat__x x, bool up)
{
    if (scale->plan == NULL)
        x.u = (pleat__fraction){x.u.num / x.u.den + (up && x.u.num % x.u.den != 0), 1};
    return x;
}

bool pleat__scale_times(const pleat__scale *scale, const pleat__x *x, uint64_t num, uint64_t den,
                        pleat__x *out)
{
    pleat__fraction by;
    pleat__x times = *x;
    if (!pleat__fraction_make(num, den, &by) || !pleat__fraction_multiply(x->u, by, &times.u))
        return false;
    *out = whole(scale, times, false);
    return true;
}

pleat__x pleat__scale_at_least(const pleat__scale *scale, const pleat__x *x)
{
    pleat__x least = *x;
    if (pleat__fraction_compare(least.u, scale->from.u) < 0)
        least.u = scale->from.u;
    return whole(scale, least, true);
}

/* num / den of what f is; what is too fine stays f. */
static pleat__fraction part_of(pleat__fraction f, uint64_t num, uint64_t den)
{
    pleat__fraction part;
    return pleat__fraction_multiply(f, (pleat__fraction){num, den}, &part) ? part : f;
}

static void reach(pleat__fraction f, pleat__fraction *from, pleat__fraction *to)
{
    pleat__fraction low = part_of(f, 1, PLEAT__SCALE_BEYOND);
    pleat__fraction high = part_of(f, PLEAT__SCALE_BEYOND, 1);
    *from = pleat__fraction_compare(low, *from) < 0 ? low : *from;
    *to = pleat__fraction_compare(high, *to) > 0 ? high : *to;
}

void pleat__scale_reach(pleat__scale *scale, const pleat__x *x)
{
    /* A line holds between the xs that it was made from, which says nothing of those beyond. */
    if (scale->plan == NULL && x->u.num >= scale->lowest * x->u.den &&
        x->u.num <= scale->highest * x->u.den)
        return;
    reach(x->u, &scale->from.u, &scale->to.u);
    if (scale->plan != NULL && scale->plan->recipe->parameters > 1)
        reach(x->v, &scale->from.v, &scale->to.v);
}

bool pleat__scale_plausible(const pleat__scale *scale, const pleat__x *x)
{
    return pleat__fraction_compare(x->u, part_of(scale->from.u, 1, PLAUSIBLE)) >= 0 &&
           pleat__fraction_compare(x->u, part_of(scale->to.u, PLAUSIBLE, 1)) <= 0;
}

/* Where the profiles have the request it has the size that the term says. */
static bool holds(const fitting *f, const pleat__scale *scale, uint32_t i)
{
    for (uint32_t s = 0; s < f->profile_count; s++) {
        uint64_t bytes = size_in(f, s, i);
        if (bytes != 0 && bounded(scale, &scale->terms[i], f->xs[s]) != bytes)
            return false;
    }
    return true;
}

/* The line through the sizes in two profiles; false where it is none of whole bytes. */
static bool fit_line(const fitting *f, pleat__scale *scale, uint32_t i, uint32_t a, uint32_t b)
{
    pleat__term *term = &scale->terms[i];
    wide span = (wide)scale->highest - scale->lowest, step = (wide)f->xs[b] - f->xs[a];
    wide over = ((wide)size_in(f, b, i) - size_in(f, a, i)) * span;
    if (step == 0 || over % step != 0)
        return false;
    wide rise = over / step, below = rise * ((wide)f->xs[a] - scale->lowest);
    wide bytes = (wide)size_in(f, a, i) - below / span;
    if (below % span != 0 || bytes <= 0 || bytes > INT64_MAX || rise > INT64_MAX ||
        rise < INT64_MIN)
        return false;
    term->bytes = (uint64_t)bytes;
    term->rise = (int64_t)rise;
    return true;
}

/* The profiles that have the request, of the lowest, the next (profile_count: none) and the highest
 * x. */
static bool find_ends(const fitting *f, uint32_t i, uint32_t *low, uint32_t *next, uint32_t *high)
{
    uint32_t none = f->profile_count;
    *low = *next = *high = none;
    for (uint32_t s = 0; s < f->profile_count; s++) {
        if (size_in(f, s, i) == 0)
            continue;
        *low = *low == none || f->xs[s] < f->xs[*low] ? s : *low;
        *high = *high == none || f->xs[s] > f->xs[*high] ? s : *high;
    }
    for (uint32_t s = 0; s < f->profile_count && *low != none; s++)
        if (size_in(f, s, i) != 0 && f->xs[s] > f->xs[*low] &&
            (*next == none || f->xs[s] < f->xs[*next]))
            *next = s;
    return *low != none;
}

/* Loose when some profile has another size than any line says. */
static void fit_term(const fitting *f, pleat__scale *scale, uint32_t i)
{
    const pleat__part *part = &f->base->parts[i];
    pleat__term *term = &scale->terms[i];
    uint32_t low, next, high;
    *term = (pleat__term){.bytes = part->bytes,
                          .most = UINT64_MAX,
                          .function = PLEAT__NO_FUNCTION,
                          .begin = part->begin,
                          .end = part->end,
                          .stream = part->stream};
    if (part->end != PLEAT__NEVER && find_ends(f, i, &low, &next, &high)) {
        /* Seen at one x only it is taken for the same everywhere, until it is seen again. */
        if (next == f->profile_count)
            return;
        if (fit_line(f, scale, i, low, high) && holds(f, scale, i))
            return;
        bool bounded = next != high && fit_line(f, scale, i, low, next);
        term->most = size_in(f, high, i);
        if (bounded && holds(f, scale, i))
            return;
    }
    term->bytes = part->bytes;
    term->rise = 0;
    term->most = UINT64_MAX;
    term->loose = true;
    scale->loose++;
}

/* Around the xs that it was made from. */
static void believe(pleat__scale *scale)
{
    uint64_t most = SPANS * (scale->highest - scale->lowest);
    uint64_t lowest = scale->lowest / PLEAT__SCALE_BEYOND;
    uint64_t highest = scale->highest * PLEAT__SCALE_BEYOND;
    uint64_t from = scale->lowest > most ? scale->lowest - most : 0, to = scale->highest + most;
    from = from > lowest ? from : lowest;
    scale->from.u.num = from != 0 ? from : 1;
    scale->to.u.num = to < highest ? to : highest;
}

static pleat__scale *make_scale(const fitting *f)
{
    pleat__scale *scale = pleat__arena_calloc(f->arena, 1, sizeof *scale);
    pleat__term *terms = pleat__arena_calloc(f->arena, f->base->count, sizeof *terms);
    if (scale == NULL || terms == NULL) {
        pleat__arena_free(f->arena, scale);
        pleat__arena_free(f->arena, terms);
        return NULL;
    }
    *scale = (pleat__scale){.arena = f->arena,
                            .terms = terms,
                            .count = f->base->count,
                            .horizon = f->base->horizon,
                            .lowest = f->xs[f->low],
                            .highest = f->xs[f->high],
                            .from = {{f->xs[f->low], 1}, {1, 1}},
                            .to = {{f->xs[f->high], 1}, {1, 1}}};
    believe(scale);
    for (uint32_t i = 0; i < scale->count; i++)
        fit_term(f, scale, i);
    return scale;
}

static bool is_about(int64_t rise, wide expected)
{
    wide off = rise > expected ? rise - expected : expected - rise;
    return off <= expected / NEAR + STEP;
}

/* Whether a size grows as x does, or as its square, which attention's do. */
static bool grows_with_x(const pleat__scale *scale, const pleat__term *term)
{
    wide low = scale->lowest, high = scale->highest, bytes = (wide)term->bytes;
    wide once = bytes * (high - low) / low;
    return is_about(term->rise, once) || is_about(term->rise, once + once * high / low);
}

/* Any two iterations have a line through each request's sizes. Where one number is behind them next
 * to all grow with it; of a mixture of experts one in seven does, of a network that translates
 * half, since the lengths of a sentence and of its translation are two. (Followed as a scale all
 * the same, the former took five times the driver calls, the latter twice the memory.) */
static bool has_one_parameter(const pleat__scale *scale)
{
    uint32_t varying = 0, odd = 0;
    for (uint32_t i = 0; i < scale->count; i++) {
        const pleat__term *term = &scale->terms[i];
        if (term->end == PLEAT__NEVER)
            continue;
        varying += term->rise != 0 || term->loose;
        odd += (term->rise != 0 && !grows_with_x(scale, term)) || term->loose;
    }
    return odd <= varying / MOST_ODD;
}

/* The profile that the others are laid against: the most requests, and of those the most ends. */
static const pleat__profile *base_of(pleat__profile *const *profiles, uint32_t count)
{
    const pleat__profile *best = profiles[0];
    uint32_t best_ends = 0;
    for (uint32_t s = 0; s < count; s++) {
        uint32_t ends = 0;
        for (uint32_t i = 0; i < profiles[s]->count; i++)
            ends += profiles[s]->parts[i].end != PLEAT__NEVER;
        if (profiles[s]->count > best->count ||
            (profiles[s]->count == best->count && ends > best_ends)) {
            best = profiles[s];
            best_ends = ends;
        }
    }
    return best;
}

pleat__scale_fit pleat__scale_make(pleat__arena *arena, pleat__profile *const *profiles,
                                   uint32_t count, pleat__scale **out)
{
    fitting f = {.arena = arena, .profiles = profiles, .profile_count = count};
    bool same = false;
    *out = NULL;
    if (count < 2)
        return PLEAT__SCALE_SAME;
    f.base = base_of(profiles, count);
    f.pairs = pleat__arena_calloc(arena, count, sizeof *f.pairs);
    f.xs = pleat__arena_calloc(arena, count, sizeof *f.xs);
    if (f.pairs != NULL && f.xs != NULL && lay_all(&f) && find_parameter(&f, &same))
        *out = make_scale(&f);
    if (*out != NULL && !has_one_parameter(*out)) {
        pleat__scale_free(*out);
        *out = NULL;
    }
    for (uint32_t s = 0; s < count && f.pairs != NULL; s++)
        pleat__arena_free(arena, f.pairs[s]);
    pleat__arena_free(arena, f.pairs);
    pleat__arena_free(arena, f.xs);
    return *out != NULL ? PLEAT__SCALE_FITTED : same ? PLEAT__SCALE_SAME : PLEAT__SCALE_NONE;
}

void pleat__scale_free(pleat__scale *scale)
{
    if (scale == NULL)
        return;
    pleat__arena_free(scale->arena, scale->terms);
    pleat__arena_free(scale->arena, scale);
}
