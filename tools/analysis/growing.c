/*
 * growing.c: see growing.h.
 *
 * GRADIENTS  At the end of the backward pass what is live of an iteration is one gradient a trained
 *            weight and next to nothing else. That moment is found as the one where the bytes that
 *            can be matched with weights, one tensor each, exceed those that cannot by most.
 *            Trained are the weights that have an optimizer state of their size, or of its half or
 *            double (another precision); all, where there are no states.
 * STEPS      Between two moments at which nothing but what stays is live, either a forward and its
 *            backward pass run, or an optimizer's step. In the latter every tensor of a MiB or more
 *            has the size of a weight or state, its half or its double.
 */
#include <tools/analysis/growing.h>

#include <internal/error.h>
#include <plan/model/iteration.h>

#include <stdlib.h>
#include <string.h>

#define LARGE        ((uint64_t)1 << 20)
#define NEXT_TO_NONE 100u /* a hundredth of the most */

/* Persistent requests of one size. */
typedef struct weight_size {
    uint64_t size;
    uint32_t weights; /* allocated before the first iteration */
    uint32_t states;  /* allocated in one */
    uint32_t live;    /* of an iteration's own requests, while the trace is gone through */
} weight_size;

/* When an iteration has its gradients. */
typedef struct best_moment {
    int64_t score; /* bytes matched less bytes that cannot be */
    uint32_t at;
} best_moment;

typedef struct finder {
    const pleat__requests *requests;
    pleat__arena *arena;
    uint32_t begin_at;   /* position: where the first iteration begins */
    uint32_t ended_at;   /* position: nothing is allocated any more */
    bool *grows;         /* the answer; at first false only for what is persistent */
    uint32_t *iteration; /* of each request: the number of marks before it */
    weight_size *sizes;
    uint32_t size_count;
    best_moment *best; /* of each iteration */
} finder;

/* ---- what is persistent ---- */

/* Marks, and where the program marks only its steps, the iteration before the first one. */
static pleat_result find_begin(finder *f)
{
    const pleat__requests *r = f->requests;
    pleat__iteration iteration;
    f->begin_at = r->mark_count > 0 ? r->marks[0] : 0;
    if (r->mark_count < 2)
        return PLEAT_OK;
    pleat_result result = pleat__iteration_find(r, &iteration);
    if (result == PLEAT_E_INPUT) /* nothing repeats */
        return PLEAT_OK;
    PLEAT_TRY(result);
    if (iteration.early_count > 0) {
        uint32_t earliest = iteration.early[iteration.early_count - 1].begin_at;
        f->begin_at = earliest < f->begin_at ? earliest : f->begin_at;
    }
    pleat__iteration_free(r, &iteration);
    return PLEAT_OK;
}

static void find_end(finder *f)
{
    const pleat__requests *r = f->requests;
    f->ended_at = r->count > 0 ? r->items[r->count - 1].alloc_at : 0;
}

/* Whether it outlives an iteration that it was there before. `marks`: those at or before it. */
static bool outlives(const finder *f, const pleat__request *item, uint32_t marks)
{
    const pleat__requests *r = f->requests;
    if (item->free_at > f->ended_at && r->mark_count < 2)
        return true;
    return marks + 1 < r->mark_count && item->free_at >= r->marks[marks + 1];
}

static void find_persistent(finder *f)
{
    const pleat__requests *r = f->requests;
    uint32_t marks = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        while (marks < r->mark_count && r->marks[marks] <= r->items[i].alloc_at)
            marks++;
        f->iteration[i] = marks;
        f->grows[i] = !outlives(f, &r->items[i], marks);
    }
}

/* ---- sizes of weights and states ---- */

static int compare_weights(const void *left, const void *right)
{
    const weight_size *a = left, *b = right;
    return (a->size > b->size) - (a->size < b->size);
}

static weight_size *find_size(const finder *f, uint64_t size)
{
    const weight_size wanted = {.size = size};
    return f->size_count == 0
               ? NULL
               : bsearch(&wanted, f->sizes, f->size_count, sizeof wanted, compare_weights);
}

/* Its size, or that in half or double its precision. */
static bool like_a_weight(const finder *f, uint64_t size)
{
    return find_size(f, size) != NULL || find_size(f, pleat__rounded(size / 2)) != NULL ||
           find_size(f, size * 2) != NULL;
}

static pleat_result list_sizes(finder *f)
{
    const pleat__requests *r = f->requests;
    uint32_t count = 0, kept = 0;
    f->sizes = pleat__arena_calloc(f->arena, r->count + 1u, sizeof *f->sizes);
    if (f->sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", r->count);
    for (uint32_t i = 0; i < r->count; i++) {
        bool early = r->items[i].alloc_at < f->begin_at;
        if (!f->grows[i])
            f->sizes[count++] = (weight_size){pleat__rounded(r->items[i].size), early, !early, 0};
    }
    qsort(f->sizes, count, sizeof *f->sizes, compare_weights);
    for (uint32_t i = 0; i < count; i++) {
        if (kept > 0 && f->sizes[kept - 1].size == f->sizes[i].size) {
            f->sizes[kept - 1].weights += f->sizes[i].weights;
            f->sizes[kept - 1].states += f->sizes[i].states;
        } else {
            f->sizes[kept++] = f->sizes[i];
        }
    }
    f->size_count = kept;
    return PLEAT_OK;
}

static bool has_states(const finder *f, uint64_t size)
{
    const uint64_t alike[] = {size, pleat__rounded(size / 2), size * 2};
    for (size_t i = 0; i < sizeof alike / sizeof *alike; i++) {
        const weight_size *found = find_size(f, alike[i]);
        if (found != NULL && found->states > 0)
            return true;
    }
    return false;
}

/* Leaves only the trained ones as weights. */
static void drop_frozen(finder *f)
{
    bool any = false;
    for (uint32_t i = 0; i < f->size_count; i++)
        any |= f->sizes[i].states > 0;
    for (uint32_t i = 0; any && i < f->size_count; i++)
        if (!has_states(f, f->sizes[i].size))
            f->sizes[i].weights = 0;
}

/* ---- gradients ---- */

/* One more, or one less, of an iteration's own requests is live. Returns what the score gains. */
static int64_t count_one(const finder *f, uint64_t size, bool freed)
{
    weight_size *found = find_size(f, size);
    int64_t bytes = (int64_t)size;
    if (found == NULL)
        return freed ? bytes : -bytes;
    found->live -= freed;
    bool matched = found->live < found->weights;
    found->live += !freed;
    return matched == !freed ? bytes : -bytes;
}

static void find_best(finder *f)
{
    const pleat__requests *r = f->requests;
    int64_t score = 0;
    uint32_t marks = 0;
    for (uint32_t at = 0; at < r->event_count; at++) {
        uint32_t item = r->events[at] / 2;
        while (marks < r->mark_count && r->marks[marks] <= at)
            marks++;
        if (!f->grows[item])
            continue;
        score += count_one(f, pleat__rounded(r->items[item].size), r->events[at] & 1);
        if (score > f->best[marks].score)
            f->best[marks] = (best_moment){score, at};
    }
}

static bool live_at(const pleat__request *item, const best_moment *moment)
{
    return moment->score > 0 && item->alloc_at <= moment->at && item->free_at > moment->at;
}

static void take_gradients(finder *f)
{
    const pleat__requests *r = f->requests;
    for (uint32_t i = 0; i < r->count; i++) {
        if (!f->grows[i])
            continue;
        const best_moment *own = &f->best[f->iteration[i]];
        bool at_next = f->iteration[i] < r->mark_count && live_at(&r->items[i], own + 1);
        const weight_size *size = find_size(f, pleat__rounded(r->items[i].size));
        if ((live_at(&r->items[i], own) || at_next) && size != NULL && size->weights > 0)
            f->grows[i] = false;
    }
}

static pleat_result find_gradients(finder *f)
{
    f->best = pleat__arena_calloc(f->arena, f->requests->mark_count + 2u, sizeof *f->best);
    if (f->best == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u iterations",
                           f->requests->mark_count);
    find_best(f);
    take_gradients(f);
    return PLEAT_OK;
}

/* ---- the optimizer's steps ---- */

static uint64_t most_growing(const finder *f)
{
    const pleat__requests *r = f->requests;
    uint64_t live = 0, most = 0;
    for (uint32_t at = 0; at < r->event_count; at++) {
        uint32_t item = r->events[at] / 2;
        uint64_t size = f->grows[item] ? pleat__rounded(r->items[item].size) : 0;
        live = r->events[at] & 1 ? live - size : live + size;
        most = live > most ? live : most;
    }
    return most;
}

/* What is allocated at positions [begin, end) stays. */
static void keep_stretch(finder *f, const bool *grows, uint32_t begin, uint32_t end)
{
    const pleat__requests *r = f->requests;
    for (uint32_t at = begin; at < end; at++)
        if ((r->events[at] & 1) == 0 && grows[r->events[at] / 2])
            f->grows[r->events[at] / 2] = false;
}

static pleat_result find_steps(finder *f)
{
    const pleat__requests *r = f->requests;
    uint64_t none = most_growing(f) / NEXT_TO_NONE, live = 0;
    uint32_t begin = 0;
    bool like_step = true;
    bool *grows = pleat__arena_calloc(f->arena, r->count + 1u, sizeof *grows);
    if (grows == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", r->count);
    memcpy(grows, f->grows, r->count * sizeof *grows);
    for (uint32_t at = 0; at < r->event_count; at++) {
        uint32_t item = r->events[at] / 2;
        uint64_t size = grows[item] ? pleat__rounded(r->items[item].size) : 0;
        bool freed = r->events[at] & 1;
        live = freed ? live - size : live + size;
        like_step &= freed || size < LARGE || like_a_weight(f, size);
        if (live > none)
            continue;
        if (like_step)
            keep_stretch(f, grows, begin, at + 1);
        begin = at + 1;
        like_step = true;
    }
    return PLEAT_OK;
}

/* ---- copies of weights in half their precision ---- */

/* Sizes of two requests, one allocated right behind the other. */
typedef struct size_pair {
    uint64_t first, second;
} size_pair;

static int compare_pairs(const void *left, const void *right)
{
    const size_pair *a = left, *b = right;
    if (a->first != b->first)
        return a->first < b->first ? -1 : 1;
    return (a->second > b->second) - (a->second < b->second);
}

/* A weight and its bias lie one behind the other in the model; their copies do in an iteration. */
static pleat_result find_casts(finder *f)
{
    const pleat__requests *r = f->requests;
    uint32_t count = 0, before = UINT32_MAX;
    size_pair *pairs = pleat__arena_calloc(f->arena, r->count + 1u, sizeof *pairs);
    if (pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", r->count);
    for (uint32_t i = 0; i < r->count && r->items[i].alloc_at < f->begin_at; i++) {
        if (f->grows[i])
            continue;
        if (before != UINT32_MAX)
            pairs[count++] = (size_pair){r->items[before].size / 2, r->items[i].size / 2};
        before = i;
    }
    qsort(pairs, count, sizeof *pairs, compare_pairs);
    for (uint32_t i = 0; i + 1 < r->count && count > 0; i++) {
        const size_pair made = {r->items[i].size, r->items[i + 1].size};
        bool behind = r->items[i + 1].alloc_at == r->items[i].alloc_at + 1;
        if (f->grows[i] && f->grows[i + 1] && behind &&
            bsearch(&made, pairs, count, sizeof *pairs, compare_pairs) != NULL)
            f->grows[i] = f->grows[i + 1] = false;
    }
    return PLEAT_OK;
}

/* ---- before the first iteration ---- */

static int compare_sizes(const void *left, const void *right)
{
    const uint64_t *a = left, *b = right;
    return (*a > *b) - (*a < *b);
}

static pleat_result keep_load(finder *f)
{
    const pleat__requests *r = f->requests;
    uint32_t count = 0;
    uint64_t *sizes = pleat__arena_calloc(f->arena, r->count + 1u, sizeof *sizes);
    if (sizes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", r->count);
    for (uint32_t i = 0; i < r->count; i++)
        if (f->grows[i] && r->items[i].alloc_at >= f->begin_at)
            sizes[count++] = r->items[i].size;
    qsort(sizes, count, sizeof *sizes, compare_sizes);
    for (uint32_t i = 0; i < r->count && r->items[i].alloc_at < f->begin_at; i++)
        f->grows[i] =
            f->grows[i] && count > 0 &&
            bsearch(&r->items[i].size, sizes, count, sizeof *sizes, compare_sizes) != NULL;
    return PLEAT_OK;
}

/* ---- public ---- */

static pleat_result find_all(finder *f)
{
    f->iteration = pleat__arena_calloc(f->arena, f->requests->count + 1u, sizeof *f->iteration);
    if (f->iteration == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", f->requests->count);
    PLEAT_TRY(find_begin(f));
    find_end(f);
    find_persistent(f);
    PLEAT_TRY(list_sizes(f));
    drop_frozen(f);
    PLEAT_TRY(find_gradients(f));
    PLEAT_TRY(find_casts(f));
    PLEAT_TRY(find_steps(f));
    return keep_load(f);
}

pleat_result growing_find(const pleat__requests *requests, bool *grows)
{
    finder f = {.requests = requests, .grows = grows};
    PLEAT_TRY(pleat__arena_create(&f.arena));
    pleat_result result = find_all(&f);
    pleat__arena_destroy(f.arena);
    return result;
}
