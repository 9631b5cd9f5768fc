/*
 * sums.c: see sums.h.
 *
 * SIZE  A workspace is blocks * columns * PART bytes. Once it has stopped growing it has the least
 *       blocks of each line with which all lines fill the device: so many more would be too many,
 *       and one less of each too few (`stopped`).
 * STOPPED  A workspace has where its function has a bound. One that is the same at every x may be
 *       of a sum whose rows do not follow x; two of them that differ in their lines and in their
 *       blocks, and agree on what fills the device, have stopped. Below they are as much smaller as
 *       those that are seen to grow, where these have as many blocks of each line.
 */
#include <plan/sizes/sums.h>

#include <internal/error.h>
#include <internal/range.h>

#define COUNTER     4u    /* bytes of a line's */
#define LINE        128u  /* columns */
#define PART        512u  /* bytes of a block for each column: 128 floats */
#define BLOCKS_MOST 3584u /* 16 on each of 224 processors */
#define UNLIKE_MOST 1024u /* workspaces told apart: each is held against all others */

/* Workspaces with the same function and as many columns. */
typedef struct workspace {
    uint32_t function;
    uint32_t columns;
    uint32_t count;
    uint64_t largest; /* bytes recorded */
} workspace;

/* The blocks of all lines that fill the device: more than `above`, at most `most`. */
typedef struct fill {
    uint64_t above;
    uint64_t most;
} fill;

typedef struct sums {
    const pleat__request *items;
    const uint64_t *sizes;
    uint32_t profiles;
    uint32_t count;
    pleat__arena *arena;
    pleat__fit *fit;
    workspace *workspaces;
    uint32_t workspace_count;
} sums;

/* --- workspaces --------------------------------------------------------------------------------*/

static bool follows(const pleat__request *first, const pleat__request *second)
{
    return second->alloc_at == first->alloc_at + 1 && second->stream == first->stream;
}

static uint64_t lines_of(uint64_t columns)
{
    return pleat__ceil_div(columns, LINE);
}

/* The columns of the sum whose result, workspace and counters these are, or 0. A result has halves
 * or floats: what is summed up in more bytes has larger parts. */
static uint32_t columns_of(const pleat__request *result, const pleat__request *space,
                           const pleat__request *counters)
{
    if (!follows(result, space) || !follows(space, counters) ||
        counters->free_at != counters->alloc_at + 1 || space->free_at != counters->free_at + 1)
        return 0;
    for (uint64_t bytes = 2; bytes <= sizeof(float); bytes += 2) {
        uint64_t columns = result->size / bytes;
        if (columns != 0 && columns <= UINT32_MAX && result->size % bytes == 0 &&
            counters->size == lines_of(columns) * COUNTER && space->size % (columns * PART) == 0)
            return (uint32_t)columns;
    }
    return 0;
}

static uint32_t columns_at(const sums *s, uint32_t request)
{
    const pleat__request *at = s->items + request;
    return request > 0 && request + 1 < s->count ? columns_of(at - 1, at, at + 1) : 0;
}

static uint64_t largest_of(const sums *s, uint32_t request)
{
    uint64_t most = 0;
    for (uint32_t p = 0; p < s->profiles; p++) {
        uint64_t size = s->sizes[(uint64_t)p * s->count + request];
        most = size != PLEAT__ABSENT && size > most ? size : most;
    }
    return most;
}

/* None where there are more unlike ones than any model has widths. */
static pleat_result list_workspaces(sums *s)
{
    size_t capacity = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        uint32_t columns = columns_at(s, i), at = 0;
        if (columns == 0 || s->fit->of[i] == PLEAT__NO_FUNCTION)
            continue;
        while (at < s->workspace_count && (s->workspaces[at].function != s->fit->of[i] ||
                                           s->workspaces[at].columns != columns))
            at++;
        if (at == UNLIKE_MOST) {
            s->workspace_count = 0;
            return PLEAT_OK;
        }
        if (at == s->workspace_count) {
            PLEAT_TRY(
                pleat__arena_grow(s->arena, &s->workspaces, &capacity, at, sizeof *s->workspaces));
            s->workspaces[s->workspace_count++] =
                (workspace){.function = s->fit->of[i], .columns = columns};
        }
        workspace *w = &s->workspaces[at];
        uint64_t largest = largest_of(s, i);
        w->count++;
        w->largest = largest > w->largest ? largest : w->largest;
    }
    return PLEAT_OK;
}

/* --- what fills the device ---------------------------------------------------------------------*/

static uint64_t blocks_of(const workspace *w)
{
    return pleat__ceil_div(w->largest, (uint64_t)w->columns * PART);
}

static fill stopped(const workspace *w)
{
    uint64_t lines = lines_of(w->columns), blocks = blocks_of(w);
    return (fill){.above = (blocks - 1) * lines, .most = blocks * lines};
}

static fill both(fill a, fill b)
{
    return (fill){.above = a.above > b.above ? a.above : b.above,
                  .most = a.most < b.most ? a.most : b.most};
}

static bool is_possible(fill f)
{
    return f.above < f.most;
}

static bool is_constant(const sums *s, const workspace *w)
{
    return !pleat__function_varies(&s->fit->functions[w->function]);
}

static bool has_stopped(const sums *s, const workspace *w)
{
    if (s->fit->functions[w->function].most != UINT64_MAX)
        return true;
    for (uint32_t o = 0; o < s->workspace_count && is_constant(s, w); o++) {
        const workspace *other = &s->workspaces[o];
        if (is_constant(s, other) && lines_of(other->columns) != lines_of(w->columns) &&
            blocks_of(other) != blocks_of(w) && is_possible(both(stopped(w), stopped(other))))
            return true;
    }
    return false;
}

/* Bytes. */
static uint64_t most_of(fill f, uint32_t columns)
{
    return pleat__ceil_div(f.most, lines_of(columns)) * columns * PART;
}

/* What all that have stopped say. Where they contradict each other or a size that was recorded,
 * what holds for any device. */
static fill find_fill(const sums *s)
{
    const fill any = {0, BLOCKS_MOST};
    fill found = any;
    for (uint32_t w = 0; w < s->workspace_count; w++)
        if (has_stopped(s, &s->workspaces[w]))
            found = both(found, stopped(&s->workspaces[w]));
    bool holds = is_possible(found);
    for (uint32_t w = 0; w < s->workspace_count; w++)
        holds = holds && s->workspaces[w].largest <= most_of(found, s->workspaces[w].columns);
    return holds ? found : any;
}

/* --- bounds ------------------------------------------------------------------------------------*/

static uint32_t count_users(const pleat__fit *fit, uint32_t count, uint32_t function)
{
    uint32_t users = 0;
    for (uint32_t i = 0; i < count; i++)
        users += fit->of[i] == function;
    return users;
}

/* Other requests of the same function keep it as it is. */
static pleat_result give(sums *s, const workspace *w, const pleat__function *function)
{
    pleat__fit *fit = s->fit;
    if (count_users(fit, s->count, w->function) == w->count) {
        fit->functions[w->function] = *function;
        return PLEAT_OK;
    }
    size_t capacity = fit->function_count;
    PLEAT_TRY(pleat__arena_grow(s->arena, &fit->functions, &capacity, fit->function_count,
                                sizeof *fit->functions));
    fit->functions[fit->function_count] = *function;
    for (uint32_t i = 0; i < s->count; i++)
        if (fit->of[i] == w->function && columns_at(s, i) == w->columns)
            fit->of[i] = fit->function_count;
    fit->function_count++;
    return PLEAT_OK;
}

/* A line's blocks for each unit of x, as all that grow say. false: they do not agree, or none
 * grows. */
static bool find_growth(const sums *s, pleat__fraction *growth)
{
    bool found = false;
    for (uint32_t i = 0; i < s->workspace_count; i++) {
        const workspace *w = &s->workspaces[i];
        const pleat__function *f = &s->fit->functions[w->function];
        pleat__fraction own;
        if (is_constant(s, w))
            continue;
        if (f->k[0] != 0 || f->k[1] <= 0 || f->k[2] != 0 || f->least != 0 ||
            !pleat__fraction_make((uint64_t)f->k[1], f->divisor * w->columns * PART, &own) ||
            (found && pleat__fraction_compare(own, *growth) != 0))
            return false;
        *growth = own;
        found = true;
    }
    return found;
}

/* Whether the function gives what was recorded of a constant workspace. */
static bool gives(const sums *s, const workspace *w, const pleat__function *function)
{
    for (uint32_t p = 0; p < s->profiles; p++) {
        uint64_t size;
        if (!pleat__function_at(function, s->fit->x[p], &size) || size != w->largest)
            return false;
    }
    return true;
}

/* What has stopped growing below every x recorded has grown as the others do. */
static pleat_result bound_constants(sums *s, fill found)
{
    pleat__fraction growth;
    if (found.above == 0 || !find_growth(s, &growth))
        return PLEAT_OK;
    for (uint32_t i = 0; i < s->workspace_count; i++) {
        const workspace *w = &s->workspaces[i];
        const pleat__function function = {.k = {0, (int64_t)(growth.num * w->columns * PART)},
                                          .divisor = growth.den,
                                          .exact = 1,
                                          .most = w->largest};
        if (is_constant(s, w) && is_possible(both(found, stopped(w))) && gives(s, w, &function))
            PLEAT_TRY(give(s, w, &function));
    }
    return PLEAT_OK;
}

static pleat_result bound_growing(sums *s, fill found)
{
    for (uint32_t i = 0; i < s->workspace_count; i++) {
        const workspace *w = &s->workspaces[i];
        pleat__function function = s->fit->functions[w->function];
        uint64_t most = most_of(found, w->columns);
        if (is_constant(s, w) || w->largest > most || most >= function.most)
            continue;
        function.most = most;
        PLEAT_TRY(give(s, w, &function));
    }
    return PLEAT_OK;
}

static pleat_result bound_all(sums *s)
{
    PLEAT_TRY(list_workspaces(s));
    fill found = find_fill(s);
    PLEAT_TRY(bound_constants(s, found));
    return bound_growing(s, found);
}

pleat_result pleat__sums_bound(const pleat__request *items, const uint64_t *sizes,
                               uint32_t profiles, uint32_t count, pleat__arena *arena,
                               pleat__fit *fit)
{
    sums s = {.items = items,
              .sizes = sizes,
              .profiles = profiles,
              .count = count,
              .arena = arena,
              .fit = fit};
    if (!fit->shows_x)
        return PLEAT_OK;
    pleat_result result = bound_all(&s);
    pleat__arena_free(arena, s.workspaces);
    return result;
}
