/*
 * instance.c: an iteration's places, views and memory (see instance.h).
 *
 * MEMORY  The sweep is given all homes that there are: chunks that exist cost nothing, and the more
 *         room, the fewer views. After some were given back it gets the lowest homes, as many as it
 *         needs, and what lies above goes when memory is short. Where max-live needs more, that
 *         much and a little: a view costs a map a page, and one chunk more in SLACK saves some. (A
 *         GPT-2 and jobs of drawn lengths: four times as many cost 0.1 to 0.3 % of memory and save
 *         none to a tenth of the calls.)
 * SPARE   Some pages at the end are left to what has no place. Where every page is some slot's a
 *         small request lies in one, that one in the next, and the chain ends in a large slot that
 *         is stitched or bought anew (a GPT-2 with 56 requests that the sizes before did not have:
 *         626 slots found taken, with it a quarter of them).
 */
#include <runtime/learn/instance_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <string.h>

#define SLACK 1024u /* one chunk more in so many */
/* For what has no place one chunk in so many, and one. */
#define SPARE 1024u

/* ---- places ---- */

typedef struct placer {
    pleat__maker *m;
    const uint32_t *first_view; /* by job: where its views begin among all */
    pleat_va views;
    pleat__extent *runs; /* NULL while they are only counted */
    uint64_t run_count;
    pleat__runs *several;
    uint32_t several_count;
} placer;

/* The chunk behind a page of the layout; views are numbered behind the homes. */
static uint32_t chunk_of(const placer *p, const pleat__try *try, uint64_t at)
{
    uint64_t page = at / p->m->pool->page_bytes;
    if (at >= PLEAT__IN_VIEWS)
        page = try->views[(at - PLEAT__IN_VIEWS) / p->m->pool->page_bytes];
    return p->m->chunk_at[page];
}

/* The runs of granules behind a place, neighbours joined; how many. */
static uint32_t runs_of(placer *p, const pleat__try *try, uint64_t at, uint32_t granules)
{
    const pleat__occupancy *occupancy = &p->m->pool->occupancy;
    uint32_t count = 0, next = 0;
    while (granules != 0) {
        uint32_t offset = (uint32_t)(at >> PLEAT__GRANULE_SHIFT) & (occupancy->full - 1);
        uint32_t part = occupancy->full - offset;
        part = part < granules ? part : granules;
        uint32_t begin = (chunk_of(p, try, at) << occupancy->shift) + offset;
        bool joins = count != 0 && begin == next;
        if (p->runs != NULL && joins)
            p->runs[p->run_count + count - 1].count += part;
        else if (p->runs != NULL)
            p->runs[p->run_count + count] = (pleat__extent){begin, part};
        count += !joins;
        next = begin + part;
        at += (uint64_t)part << PLEAT__GRANULE_SHIFT;
        granules -= part;
    }
    return count;
}

uint32_t pleat__maker_job_of(const pleat__maker *m, uint16_t stream)
{
    for (uint32_t j = 0; j < m->jobs.count; j++)
        if (m->jobs.jobs[j].birth_count != 0 &&
            m->items[m->jobs.jobs[j].births[0]].stream == stream)
            return j;
    return 0;
}

static pleat_va address_of(const placer *p, uint32_t job, uint64_t at)
{
    uint64_t page = p->m->pool->page_bytes;
    if (at < PLEAT__IN_VIEWS)
        return p->m->pool->base + p->m->home0 * page + at;
    return p->views + p->first_view[job] * page + (at - PLEAT__IN_VIEWS);
}

/* Whether a place is in a view that is mapped later: it needs a list for that to be said. */
static bool comes_in_view(const pleat__maker *m, uint64_t at)
{
    return m->promised && at >= PLEAT__IN_VIEWS;
}

static void place_item(placer *p, uint32_t i, pleat__expected *expected)
{
    pleat__maker *m = p->m;
    const pleat__term *term = &m->scale->terms[i];
    uint32_t granules = pleat__granules_of(m->items[i].size),
             job = pleat__maker_job_of(m, term->stream);
    *expected = (pleat__expected){.bytes = term->bytes,
                                  .lane = PLEAT__NO_LANE,
                                  .stream = term->stream,
                                  .kind = term->dynamic ? PLEAT__ITEM_DYNAMIC : PLEAT__ITEM_LOOSE,
                                  .gap = PLEAT__GAP_UNKNOWN};
    if (pleat__term_is_loose(term) || granules == 0)
        return;
    uint64_t at = m->places[i];
    uint32_t count = runs_of(p, &m->tries[job], at, granules);
    pleat__extent *runs = p->runs + p->run_count;
    expected->kind = term->dynamic ? PLEAT__ITEM_DYNAMIC : PLEAT__ITEM_SLOT;
    expected->place =
        (pleat__place){.address = address_of(p, job, at), .run = runs[0], .granules = granules};
    bool unmapped = comes_in_view(m, at);
    if (count == 1 && !unmapped)
        return;
    pleat__runs *several = &p->several[p->several_count++];
    *several =
        (pleat__runs){.runs = runs, .count = count, .granules = granules, .unmapped = unmapped};
    expected->place.several = several;
    p->run_count += count;
}

static void count_runs(placer *p)
{
    pleat__maker *m = p->m;
    for (uint32_t i = 0; i < m->scale->count; i++) {
        uint32_t granules = pleat__granules_of(m->items[i].size);
        if (granules == 0 || pleat__term_is_loose(&m->scale->terms[i]))
            continue;
        uint32_t count = runs_of(p, &m->tries[pleat__maker_job_of(m, m->items[i].stream)],
                                 m->places[i], granules);
        bool list = count > 1 || comes_in_view(m, m->places[i]);
        p->several_count += list;
        p->run_count += list ? count : 0;
    }
}

/* What comes once, before the first iteration: what stays lies where the plan has it, the rest at
 * the request of the iteration whose part it plays, where that is as large. */
static void place_beginning(const pleat__maker *m, pleat__expected *items)
{
    const pleat__follow *beginning = m->ground->beginning;
    for (uint32_t i = 0; beginning != NULL && i < m->scale->first; i++) {
        const pleat__expected *planned = &beginning->items[i];
        uint32_t host = m->scale->plan->recipe->hosts[i];
        uint64_t bytes = pleat__scale_bytes(m->scale, &m->scale->terms[i], m->x);
        const pleat__expected *from = pleat__term_stays(m->scale, i) ? planned
                                      : host != PLEAT__NO_HOST ? &items[m->scale->first + host]
                                                               : &items[i];
        if (from->kind != PLEAT__ITEM_SLOT || pleat__granules_of(bytes) > from->place.granules)
            continue;
        items[i].kind = PLEAT__ITEM_SLOT;
        items[i].place = from->place;
    }
}

static pleat_result make_follow(placer *p, pleat__follow **out)
{
    pleat__maker *m = p->m;
    pleat__arena *arena = m->arena;
    pleat__follow *follow = pleat__arena_calloc(arena, 1, sizeof *follow);
    if (follow == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    *follow = (pleat__follow){.arena = arena, .count = m->scale->count};
    count_runs(p);
    follow->items = pleat__arena_alloc(arena, follow->count * sizeof *follow->items);
    /* One run more: where a place of one run is tried. */
    follow->runs = pleat__arena_alloc(arena, (p->run_count + 1) * sizeof *follow->runs);
    follow->several = pleat__arena_alloc(arena, p->several_count * sizeof *follow->several);
    pleat_result result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    if (follow->items != NULL && follow->runs != NULL && follow->several != NULL) {
        p->runs = follow->runs;
        p->several = follow->several;
        p->run_count = 0;
        p->several_count = 0;
        for (uint32_t i = 0; i < follow->count; i++)
            place_item(p, i, &follow->items[i]);
        place_beginning(m, follow->items);
        result =
            pleat__match_init(&follow->match, arena, follow->items, m->scale->first, follow->count);
        if (result == PLEAT_OK)
            result = pleat__foresee_init(&follow->foresee, arena, &follow->match, NULL, 0, m->pool);
    }
    if (result != PLEAT_OK) {
        pleat__follow_free(follow);
        return result;
    }
    *out = follow;
    return PLEAT_OK;
}

/* ---- memory ---- */

/* Maps all views one behind the other. */
static pleat_result map_views(pleat__maker *m, pleat__instance *instance)
{
    uint32_t *chunks = pleat__arena_alloc(m->arena, (instance->view_pages + 1u) * sizeof *chunks);
    if (chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for views");
    uint32_t count = 0;
    pleat_result result = PLEAT_OK;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        for (uint32_t v = 0; v < m->tries[j].view_pages; v++)
            chunks[count++] = m->chunk_at[m->tries[j].views[v]];
    if (pleat__pool_whole(m->pool, chunks, count, count) != count)
        result = pleat__fail(PLEAT_E_LIMIT, "a chunk that is mapped with others");
    if (result == PLEAT_OK && count != 0)
        result = pleat__pool_view(m->pool, chunks, count, &instance->views[0].page);
    pleat__arena_free(m->arena, chunks);
    return result;
}

/* So many chunks more; where the limit is met, as many of the highest that are free go for them. */
static pleat_result grow_by(const pleat__ground *ground, uint32_t chunks, const pleat__cuts *cuts)
{
    pleat_result result = pleat__heap_grow(ground->heap, 0, chunks, cuts);
    uint64_t page = 0;
    if ((result != PLEAT_E_BUDGET && result != PLEAT_E_OUT_OF_MEMORY) ||
        pleat__heap_shrink(ground->heap, chunks, &page) == 0)
        return result;
    return pleat__heap_grow(ground->heap, 0, chunks, cuts);
}

void pleat__maker_mark_cuts(const pleat__try *try, uint8_t *pages)
{
    for (uint32_t v = 0, run = 0; v < try->view_pages; v++) {
        bool starts = run < try->runs && try->starts[run] == v;
        run += starts;
        if (starts || try->views[v] != try->views[v - 1] + 1)
            pages[try->views[v]] = 1;
        if (v != 0 && pages[try->views[v]])
            pages[try->views[v - 1] + 1] = 1;
    }
    if (try->view_pages != 0)
        pages[try->views[try->view_pages - 1] + 1] = 1;
}

/* Chunks that the layout needs, in pages before `end`. */
static pleat_result grow_for_views(pleat__maker *m, uint32_t end, uint32_t chunks)
{
    /* Views may show pages behind the layout's own. */
    uint32_t count = (end > m->pages ? end : m->pages) + 2;
    uint8_t *pages = pleat__arena_calloc(m->arena, count, 1);
    if (pages == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", count);
    for (uint32_t j = 0; j < m->jobs.count; j++)
        pleat__maker_mark_cuts(&m->tries[j], pages);
    const pleat__cuts cuts = {.pages = pages, .first = m->home0, .count = count};
    pleat_result result = grow_by(m->ground, chunks, &cuts);
    pleat__arena_free(m->arena, pages);
    return result;
}

/* The page behind the last one that the layout takes. */
static uint32_t end_of(const pleat__maker *m)
{
    uint32_t end = 0;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        end = m->tries[j].end_page > end ? m->tries[j].end_page : end;
    return end;
}

/* The pool's homes once more, after it grew to `end` pages. */
static pleat_result list_pages_anew(pleat__maker *m, uint32_t end)
{
    pleat__arena_free(m->arena, m->chunk_at);
    pleat__arena_free(m->arena, m->handles);
    m->chunk_at = NULL;
    m->handles = NULL;
    PLEAT_TRY(pleat__maker_list_pages(m));
    return end <= m->pages
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_LIMIT, "no homes for %u more chunks", end - m->pages);
}

/* Chunks that are not there of those that pages before `end` need, and that come before them. */
static uint32_t absent_before(const pleat__maker *m, uint32_t end)
{
    uint32_t absent = 0;
    if (end > m->pages)
        return m->pool->absent + (end - m->pages);
    for (uint32_t p = 0; p < end; p++)
        absent += m->chunk_at[p] != PLEAT__NO_HOME && m->pool->chunks[m->chunk_at[p]] == NULL;
    return absent;
}

/* Chunks for the pages before `end` that have none: those given back come first, the lowest of them
 * first, and then the pool's next. */
static pleat_result add_pages(pleat__maker *m, uint32_t end)
{
    uint32_t absent = absent_before(m, end);
    if (absent == 0)
        return PLEAT_OK;
    PLEAT_TRY(grow_for_views(m, end, absent));
    return list_pages_anew(m, end);
}

/* Numbers for those pages, whose chunks come later, or chunks at once. */
static pleat_result have_pages(pleat__maker *m, uint32_t end)
{
    m->promised = pleat__maker_may_promise(m, end);
    m->end = end;
    if (!m->promised)
        return add_pages(m, end);
    /* What the stock had was given out while the lock was left. */
    PLEAT_TRY(list_pages_anew(m, 0));
    if (end > m->pages)
        PLEAT_TRY(pleat__pool_promise(m->pool, end - m->pages));
    return list_pages_anew(m, end);
}

/* Lays out with what max-live needs and a little, or all that there is, unless that is to be less.
 * What is left over is had where there is memory for it.
 *
 * FRUGAL  Where sizes are not as the scale says, what it says of a larger x may be too much by any
 *         number, and the heap serves that in what it needs. (Of a detector whose convolutions draw
 *         workspaces of other sizes for each image's size, a layout took 4.5 % more memory than was
 *         ever in use.) */
static pleat_result lay_out(pleat__maker *m, pleat__sweep_choice *choice, pleat__layout_cost *taken)
{
    PLEAT_TRY(pleat__maker_gather(m));
    PLEAT_TRY(pleat__maker_pose(m));
    uint32_t floor = 0;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        floor += m->jobs.jobs[j].floor;
    uint32_t needed = floor - pleat__maker_missing(m), spare = needed / SPARE + 1;
    uint32_t wanted = floor + needed / SLACK;
    if (!m->ground->tight && m->pool->absent == 0 && wanted + spare < m->pages)
        wanted = m->pages - spare;
    /* Others need not wait for it. */
    pleat__gate_leave(m->pool->gate);
    pleat_result result = pleat__maker_sweep_well(m, wanted, choice, taken);
    pleat__gate_enter(m->pool->gate);
    if (result == PLEAT_OK && m->ground->frugal)
        return absent_before(m, end_of(m)) == 0
                   ? have_pages(m, end_of(m))
                   : pleat__fail(PLEAT_E_OUT_OF_MEMORY, "no memory for sizes that are not as said");
    if (result == PLEAT_OK)
        result = have_pages(m, end_of(m) + spare);
    return result == PLEAT_E_BUDGET || result == PLEAT_E_OUT_OF_MEMORY ? add_pages(m, end_of(m))
                                                                       : result;
}

pleat_result pleat__instance_new(pleat__arena *arena, uint32_t runs, const pleat__x *x,
                                 pleat__instance **out)
{
    pleat__instance *instance = pleat__arena_calloc(arena, 1, sizeof *instance);
    pleat__page_run *views = pleat__arena_calloc(arena, runs, sizeof *views);
    if (instance == NULL || views == NULL) {
        pleat__arena_free(arena, instance);
        pleat__arena_free(arena, views);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an instance");
    }
    *instance = (pleat__instance){.x = *x, .views = views};
    *out = instance;
    return PLEAT_OK;
}

/* Views where they will be mapped, with a list of what is missing; room for as many runs of them as
 * may be left when not all comes. */
static pleat_result announce(pleat__maker *m, const uint32_t *first_view, pleat__instance *instance,
                             pleat__pieces *pieces)
{
    uint32_t pages = instance->view_pages;
    PLEAT_TRY(pleat__maker_list_pieces(m, first_view, pages, pieces));
    pleat__page_run *views =
        pleat__arena_realloc(m->arena, instance->views, (pieces->count + 1u) * sizeof *views);
    pleat_result result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for views");
    if (views != NULL) {
        instance->views = views;
        result = pages != 0 ? pleat__space_take(m->pool->space, pages, &views[0].page) : PLEAT_OK;
    }
    if (result != PLEAT_OK)
        pleat__pieces_free(m->arena, pieces);
    return result;
}

/* What announce or map_views did. */
static void take_back(pleat__maker *m, const pleat__instance *instance, pleat__pieces *pieces)
{
    uint64_t page = instance->views[0].page;
    pleat__pieces_free(m->arena, pieces);
    if (instance->view_pages == 0)
        return;
    if (!m->promised)
        pleat__pool_unview(m->pool, page, instance->view_pages);
    pleat__space_give(m->pool->space, page, instance->view_pages);
}

static pleat_result place_all(pleat__maker *m, const uint32_t *first_view,
                              pleat__instance *instance)
{
    pleat__pieces pieces = {.count = 0};
    PLEAT_TRY(m->promised ? announce(m, first_view, instance, &pieces) : map_views(m, instance));
    placer p = {.m = m,
                .first_view = first_view,
                .views = m->pool->base + instance->views[0].page * m->pool->page_bytes};
    pleat_result result = make_follow(&p, &instance->follow);
    if (result != PLEAT_OK) {
        take_back(m, instance, &pieces);
        return result;
    }
    instance->list_count = p.several_count;
    if (pieces.count != 0)
        pleat__coming_begin(m->ground->coming, instance, &pieces);
    else
        pleat__pieces_free(m->arena, &pieces);
    return PLEAT_OK;
}

static pleat_result make(pleat__maker *m, pleat__sweep_choice *choice, pleat__instance *instance)
{
    pleat__layout_cost taken;
    PLEAT_TRY(lay_out(m, choice, &taken));
    uint32_t *first_view = pleat__arena_calloc(m->arena, m->jobs.count, sizeof *first_view);
    if (first_view == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for views");
    for (uint32_t j = 1; j < m->jobs.count; j++)
        first_view[j] = first_view[j - 1] + m->tries[j - 1].view_pages;
    instance->view_pages = taken.maps;
    instance->view_runs = taken.maps != 0;
    instance->views[0].pages = taken.maps;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        instance->end_page = m->home0 + m->tries[j].end_page > instance->end_page
                                 ? m->home0 + m->tries[j].end_page
                                 : instance->end_page;
    pleat_result result = place_all(m, first_view, instance);
    pleat__arena_free(m->arena, first_view);
    return result;
}

pleat_result pleat__instance_make(const pleat__ground *ground, const pleat__scale *scale,
                                  const pleat__x *x, pleat__sweep_choice *choice,
                                  pleat__instance **out)
{
    pleat__maker m = {.ground = ground,
                      .scale = scale,
                      .pool = ground->heap->pool,
                      .arena = ground->arena,
                      .x = x};
    pleat__instance *instance;
    PLEAT_TRY(pleat__instance_new(ground->arena, 1, x, &instance));
    pleat_result result = make(&m, choice, instance);
    pleat__maker_unpose(&m);
    if (result != PLEAT_OK) {
        pleat__instance_release(instance, ground->arena);
        return result;
    }
    pleat__instance_fit(instance, scale, x);
    *out = instance;
    return PLEAT_OK;
}

/* Aliases in runs of neighbours, and behind the last page that is none. */
static void list_plan_pages(const pleat_plan *plan, pleat__instance *instance)
{
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_map *map = &plan->maps[i];
        uint64_t pages = plan->handles[map->handle].chunks;
        if (map->alias == 0) {
            instance->end_page = map->page + pages;
            continue;
        }
        pleat__page_run *last = &instance->views[instance->view_runs];
        if (instance->view_runs != 0 && last[-1].page + last[-1].pages == map->page) {
            last[-1].pages += pages;
        } else {
            *last = (pleat__page_run){map->page, pages};
            instance->view_runs++;
        }
        instance->view_pages += (uint32_t)pages;
    }
}

pleat_result pleat__instance_of_plan(const pleat__ground *ground, const pleat_plan *plan,
                                     pleat__follow *follow, pleat__instance **out)
{
    static const pleat__x only = {{1, 1}, {1, 1}};
    const pleat__x *x = plan->recipe != NULL ? &plan->recipe->reference : &only;
    PLEAT_TRY(pleat__instance_new(ground->arena, plan->map_count + 1u, x, out));
    (*out)->follow = follow;
    (*out)->fitted = *x;
    (*out)->planned = true;
    list_plan_pages(plan, *out);
    return PLEAT_OK;
}

pleat_result pleat__instance_takes(const pleat__ground *ground, const pleat__scale *scale,
                                   const pleat__x *x, pleat__sweep_choice choice, uint32_t cap,
                                   uint32_t *chunks)
{
    pleat__maker m = {.ground = ground,
                      .scale = scale,
                      .pool = ground->heap->pool,
                      .arena = ground->arena,
                      .x = x};
    pleat__layout_cost taken = {0, 0};
    pleat_result result = pleat__maker_gather(&m);
    if (result == PLEAT_OK)
        result = pleat__maker_pose(&m);
    uint32_t missing = result == PLEAT_OK ? pleat__maker_missing(&m) : 0;
    if (result == PLEAT_OK && choice.life == 0)
        choice = (pleat__sweep_choice){.life = 1, .largest = PLEAT__LARGEST};
    if (result == PLEAT_OK) {
        pleat__gate_leave(m.pool->gate);
        result = pleat__maker_sweep(&m, cap + missing, choice, &taken);
        pleat__gate_enter(m.pool->gate);
    }
    pleat__maker_unpose(&m);
    *chunks = taken.chunks - missing;
    return result;
}

/* ---- sizes ---- */

/* Sizes that grow with x fit below the x that was laid out for; others are compared. */
static bool fits_slot(const pleat__instance *instance, const pleat__scale *scale,
                      const pleat__term *term, uint32_t granules, const pleat__x *x)
{
    if (granules == 0 || (term->rise >= 0 && pleat__x_holds(&instance->x, x)))
        return granules != 0;
    return granules <= pleat__granules_of(pleat__scale_bytes(scale, term, &instance->x));
}

static void fit_item(pleat__expected *item, uint64_t bytes, bool fits)
{
    item->bytes = bytes;
    if (item->place.address == 0)
        return;
    item->kind = fits ? PLEAT__ITEM_SLOT : PLEAT__ITEM_LOOSE;
    if (!fits)
        return;
    item->place.granules = pleat__granules_of(bytes);
    if (item->place.several == NULL)
        item->place.run.count = item->place.granules;
}

void pleat__instance_fit(pleat__instance *instance, const pleat__scale *scale, const pleat__x *x)
{
    if (pleat__x_equal(&instance->fitted, x))
        return;
    for (uint32_t i = 0; i < scale->count; i++) {
        const pleat__term *term = &scale->terms[i];
        if (term->loose || (term->rise == 0 && pleat__x_is_known(&instance->fitted)))
            continue;
        uint64_t bytes = pleat__scale_bytes(scale, term, x);
        fit_item(&instance->follow->items[i], bytes,
                 fits_slot(instance, scale, term, pleat__granules_of(bytes), x));
    }
    instance->fitted = *x;
}

/* What the request takes at the x laid out for, where that is more than its place has; else 0. */
static uint32_t outgrown(const pleat__instance *instance, const pleat__scale *before,
                         const pleat__scale *after, uint32_t i)
{
    uint64_t was = pleat__scale_bytes(before, &before->terms[i], &instance->x);
    uint64_t is = pleat__scale_bytes(after, &after->terms[i], &instance->x);
    bool has_place = instance->follow->items[i].place.address != 0;
    return has_place && (after->terms[i].loose || is > was) ? pleat__granules_of(is) : 0;
}

bool pleat__instance_refit(pleat__instance *instance, const pleat__scale *before,
                           const pleat__scale *after, uint64_t most)
{
    pleat__expected *items = instance->follow->items;
    pleat__x x = instance->fitted;
    uint64_t more = 0;
    for (uint32_t i = 0; i < after->count; i++)
        more += outgrown(instance, before, after, i);
    if (more > most)
        return false;
    for (uint32_t i = 0; i < after->count; i++) {
        if (outgrown(instance, before, after, i) == 0)
            continue;
        items[i].kind = PLEAT__ITEM_LOOSE;
        items[i].place = (pleat__place){.address = 0};
    }
    instance->fitted = PLEAT__NO_X;
    pleat__instance_fit(instance, after, &x);
    pleat__match_resized(&instance->follow->match, instance->follow->match.cursor);
    return true;
}
