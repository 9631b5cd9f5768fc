/*
 * instance.c: laying out an iteration in the pool (see instance.h).
 *
 * The problem is the planner's: items with sizes and lives, those that outlive iterations fixed
 * where they lie. Its pages are the pool's homes in order of address, so that a place is an address
 * without any map; only what finds no room there is stitched into a view. One sweep in order of
 * birth does it (plan/fold_sweep.c), the largest items first, then long-lived ones low and
 * short-lived ones high; how many are large and which lives are long is tried out when the scale is
 * new, and kept for every other x. (On a job with lengths from 10 to 50 thousand tokens the largest
 * eight first took 48 alias pages, and no more chunks, where birth alone took 734: its logits, one
 * tensor of 1.5 GB, found no hole.)
 *
 * MEMORY  The sweep is given all homes that there are: chunks that exist cost nothing, and the more
 *         room, the fewer views. After some were given back it gets the lowest homes, as many as it
 *         needs, and what lies above goes when memory is short. Where max-live needs more, that
 * much and a little: a view costs a map a page, and one chunk more in SLACK saves hundreds.
 */
#include <runtime/instance.h>

#include <internal/check.h>
#include <internal/error.h>
#include <plan/fold_internal.h>
#include <plan/sort.h>
#include <string.h>

#define SLACK   256u /* one chunk more in so many */
#define LIFES   6u   /* limits between short and long lives that are tried */
#define LARGEST 32u  /* of the largest items, at most so many are placed first */
/* With more alias pages than one in so many of all pages the choice is tried out anew. */
#define MANY     64u
#define NO_CHUNK UINT32_MAX

typedef struct maker {
    const pleat__ground *ground;
    const pleat__scale *scale;
    pleat__pool *pool;
    pleat__arena *arena;
    uint64_t x;
    uint32_t pages;     /* homes, with or without a chunk */
    uint64_t home0;     /* the lowest */
    uint32_t *chunk_at; /* page -> chunk, which may have been given back, or NO_CHUNK */
    pleat__item *items; /* the scale's terms, then what is fixed */
    size_t item_capacity;
    uint32_t item_count;
    pleat__problem problem;
    pleat__fold_jobs jobs;
    pleat__try *tries; /* by job; all have the same places */
    uint64_t *places;
    uint8_t *policy;
    uint32_t largest[LARGEST]; /* items, the largest first */
    uint32_t largest_count;
} maker;

/* ---- the problem ---- */

static uint32_t granules_of(uint64_t bytes)
{
    return (uint32_t)pleat__ceil_div(bytes, PLEAT__GRANULE_BYTES);
}

static bool is_loose(const pleat__term *term)
{
    return term->loose || term->end == PLEAT__NEVER;
}

static pleat_result add_item(maker *m, pleat__item item)
{
    PLEAT_TRY(
        pleat__arena_grow(m->arena, &m->items, &m->item_capacity, m->item_count, sizeof *m->items));
    m->items[m->item_count++] = item;
    return PLEAT_OK;
}

static pleat_result add_terms(maker *m)
{
    for (uint32_t i = 0; i < m->scale->count; i++) {
        const pleat__term *term = &m->scale->terms[i];
        uint64_t bytes = is_loose(term) ? 0 : pleat__scale_bytes(m->scale, term, m->x);
        pleat__item item = {.size = (uint64_t)granules_of(bytes) << PLEAT__GRANULE_SHIFT,
                            .fixed = UINT64_MAX,
                            .begin = term->begin,
                            .end = is_loose(term) ? term->begin : term->end,
                            .stream = term->stream};
        if (item.size == 0) /* an empty life takes no room, a circular one would be whole */
            item.begin = item.end = 0;
        PLEAT_TRY(add_item(m, item));
    }
    return PLEAT_OK;
}

static uint64_t page_of(const maker *m, uint32_t chunk)
{
    return m->pool->home[chunk] - m->home0;
}

static pleat_result add_fixed(maker *m, uint64_t at, uint64_t bytes)
{
    /* Side by side with the one before: one item. */
    pleat__item *last = &m->items[m->item_count - 1];
    if (m->item_count > m->scale->count && last->fixed + last->size == at) {
        last->size += bytes;
        return PLEAT_OK;
    }
    return add_item(
        m, (pleat__item){.size = bytes, .fixed = at, .begin = 0, .end = m->scale->horizon});
}

static pleat_result add_fixed_run(maker *m, pleat__extent run)
{
    const pleat__occupancy *occupancy = &m->pool->occupancy;
    while (run.count != 0) {
        uint32_t chunk = run.begin >> occupancy->shift;
        uint32_t offset = run.begin & (occupancy->full - 1);
        uint32_t part = occupancy->full - offset;
        part = part < run.count ? part : run.count;
        PLEAT_TRY(add_fixed(
            m, page_of(m, chunk) * m->pool->page_bytes + ((uint64_t)offset << PLEAT__GRANULE_SHIFT),
            (uint64_t)part << PLEAT__GRANULE_SHIFT));
        run = (pleat__extent){run.begin + part, run.count - part};
    }
    return PLEAT_OK;
}

static pleat_result add_fixed_place(maker *m, const pleat__place *place)
{
    if (place->several == NULL)
        return add_fixed_run(m, (pleat__extent){place->run.begin, place->granules});
    uint32_t left = place->granules;
    for (uint32_t i = 0; left != 0; i++) {
        pleat__extent run = place->several->runs[i];
        run.count = run.count < left ? run.count : left;
        PLEAT_TRY(add_fixed_run(m, run));
        left -= run.count;
    }
    return PLEAT_OK;
}

/* What outlives iterations, and pages that cannot be had. */
static pleat_result add_obstacles(maker *m)
{
    const pleat__placed *placed = m->ground->placed;
    for (uint32_t i = 0; i <= placed->mask; i++) {
        const pleat__place *place = &placed->entries[i];
        if (place->address == 0 || place->lane == PLEAT__UNCHECKED ||
            m->ground->crosses(m->ground->context, place->address))
            continue;
        PLEAT_TRY(add_fixed_place(m, place));
    }
    for (uint32_t p = 0; p < m->pages; p++)
        if (m->chunk_at[p] == NO_CHUNK)
            PLEAT_TRY(add_fixed(m, p * m->pool->page_bytes, m->pool->page_bytes));
    return PLEAT_OK;
}

static pleat_result list_pages(maker *m)
{
    const pleat__pool *pool = m->pool;
    uint64_t low = pool->next_home;
    for (uint32_t c = 0; c < pool->count; c++)
        low = pool->home[c] < low ? pool->home[c] : low;
    m->home0 = low;
    m->pages = (uint32_t)(pool->next_home - low);
    m->chunk_at = pleat__arena_alloc(m->arena, m->pages * sizeof *m->chunk_at);
    if (m->chunk_at == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", m->pages);
    memset(m->chunk_at, 0xff, m->pages * sizeof *m->chunk_at);
    for (uint32_t c = 0; c < pool->count; c++)
        m->chunk_at[page_of(m, c)] = c;
    return PLEAT_OK;
}

/* Inserted where it belongs among the largest; of equal ones the first stays first. */
static void list_largest(maker *m)
{
    m->largest_count = 0;
    for (uint32_t i = 0; i < m->scale->count; i++) {
        uint32_t at = m->largest_count;
        while (at > 0 && m->items[m->largest[at - 1]].size < m->items[i].size)
            at--;
        if (at == LARGEST || m->items[i].size == 0)
            continue;
        uint32_t last = m->largest_count < LARGEST ? m->largest_count++ : LARGEST - 1;
        memmove(&m->largest[at + 1], &m->largest[at], (last - at) * sizeof m->largest[0]);
        m->largest[at] = i;
    }
}

static pleat_result pose(maker *m)
{
    PLEAT_TRY(list_pages(m));
    m->item_count = 0;
    PLEAT_TRY(add_terms(m));
    PLEAT_TRY(add_obstacles(m));
    m->problem = (pleat__problem){
        .items = m->items, .count = m->item_count, .horizon = m->scale->horizon, .circular = true};
    list_largest(m);
    PLEAT_TRY(pleat__fold_jobs_make(&m->problem, m->pool->page_bytes, m->arena, &m->jobs));
    m->places = pleat__arena_calloc(m->arena, m->item_count + 1u, sizeof *m->places);
    m->policy = pleat__arena_alloc(m->arena, m->item_count + 1u);
    m->tries = pleat__arena_calloc(m->arena, m->jobs.count, sizeof *m->tries);
    if (m->places == NULL || m->policy == NULL || m->tries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to lay out %u requests",
                           m->item_count);
    return PLEAT_OK;
}

static void unpose(maker *m)
{
    for (uint32_t j = 0; j < m->jobs.count && m->tries != NULL; j++) {
        pleat__arena_free(m->arena, m->tries[j].views);
        pleat__arena_free(m->arena, m->tries[j].starts);
    }
    if (m->jobs.arena != NULL)
        pleat__fold_jobs_free(&m->jobs);
    pleat__arena_free(m->arena, m->tries);
    pleat__arena_free(m->arena, m->places);
    pleat__arena_free(m->arena, m->policy);
    pleat__arena_free(m->arena, m->chunk_at);
    pleat__arena_free(m->arena, m->items);
    *m = (maker){
        .ground = m->ground, .scale = m->scale, .pool = m->pool, .arena = m->arena, .x = m->x};
}

/* ---- the sweep ---- */

/* Positions in the job's births of the first `count` of the largest. No two items are born at once.
 */
static uint32_t reserve_largest(const maker *m, const pleat__fold_job *job, uint32_t count,
                                uint32_t *reserved)
{
    uint32_t found = 0;
    for (uint32_t k = 0; k < count && k < m->largest_count; k++)
        for (uint32_t low = 0, high = job->birth_count; low < high;) {
            uint32_t middle = low + (high - low) / 2, i = job->births[middle];
            if (i == m->largest[k]) {
                reserved[found++] = middle;
                break;
            }
            if (m->items[i].begin < m->items[m->largest[k]].begin)
                low = middle + 1;
            else
                high = middle;
        }
    return found;
}

static uint32_t life_of(const maker *m, uint32_t i)
{
    const pleat__item *item = &m->items[i];
    return pleat__item_wraps(&m->problem, i) ? m->problem.horizon - item->begin + item->end
                                             : item->end - item->begin;
}

typedef struct cost {
    uint32_t chunks;
    uint32_t maps;
} cost;

/* Every stream in pages of its own, the first also around what is fixed and in all pages that the
 * others do not need. */
static pleat_result sweep_job(maker *m, uint32_t j, uint32_t cap, uint32_t first_page,
                              pleat__sweep_choice choice)
{
    static const pleat__fold_options options = {.chunk_bytes = 0};
    pleat__fold_job *job = &m->jobs.jobs[j];
    const pleat__sweep_limits limits = {.cap = cap, .chunks = UINT32_MAX, .cost = UINT64_MAX};
    pleat__sweep *sweep;
    bool done;
    uint32_t stuck, reserved[LARGEST];
    uint32_t reserved_count = reserve_largest(m, job, choice.largest, reserved);
    job->options = &options;
    job->hints = m->places;
    job->first_page = first_page;
    job->max_maps = UINT32_MAX;
    m->tries[j].places = m->places;
    for (uint32_t b = 0; b < job->birth_count; b++)
        m->policy[b] =
            life_of(m, job->births[b]) >= choice.life ? PLEAT__FOLD_LOW : PLEAT__FOLD_HIGH;
    PLEAT_TRY(pleat__sweep_create(job, &sweep));
    pleat_result result = pleat__sweep_run(sweep, m->policy, reserved, reserved_count, &limits,
                                           &m->tries[j], &done, &stuck);
    pleat__sweep_destroy(sweep);
    return result;
}

static pleat_result sweep(maker *m, uint32_t cap, pleat__sweep_choice choice, cost *taken)
{
    uint32_t first_page = 0, others = 0;
    *taken = (cost){0, 0};
    for (uint32_t j = 1; j < m->jobs.count; j++)
        others += m->jobs.jobs[j].floor;
    for (uint32_t j = 0; j < m->jobs.count; j++) {
        const pleat__fold_job *job = &m->jobs.jobs[j];
        uint32_t room = j == 0 && cap > job->floor + others ? cap - others : job->floor;
        PLEAT_TRY(sweep_job(m, j, room, first_page, choice));
        taken->chunks += m->tries[j].chunks;
        taken->maps += m->tries[j].view_pages;
        first_page = m->tries[j].end_page;
        if (job->fixed_page_count != 0 && job->fixed_pages[job->fixed_page_count - 1] >= first_page)
            first_page = job->fixed_pages[job->fixed_page_count - 1] + 1;
    }
    return PLEAT_OK;
}

static bool is_less(cost a, cost b)
{
    return a.chunks != b.chunks ? a.chunks < b.chunks : a.maps < b.maps;
}

/* Tries limits between short and long lives with each number of large items; the choice that takes
 * the least. */
static pleat_result try_choices(maker *m, uint32_t cap, const uint64_t *lives, uint32_t count,
                                pleat__sweep_choice *choice)
{
    static const uint32_t largest[] = {8, 0, LARGEST};
    cost best = {UINT32_MAX, UINT32_MAX};
    for (uint32_t l = 0; l < sizeof largest / sizeof *largest; l++)
        for (uint32_t k = 0; k < LIFES && best.maps != 0; k++) {
            /* From the middle out in big steps. */
            uint64_t q = (k * 5 + LIFES / 2) % LIFES;
            pleat__sweep_choice tried = {(uint32_t)lives[count * q / LIFES], largest[l]};
            cost taken;
            tried.life += tried.life == 0;
            PLEAT_TRY(sweep(m, cap, tried, &taken));
            if (is_less(taken, best)) {
                best = taken;
                *choice = tried;
            }
        }
    return PLEAT_OK;
}

static pleat_result choose(maker *m, uint32_t cap, pleat__sweep_choice *choice)
{
    uint64_t *lives = pleat__arena_alloc(m->arena, 2 * (m->scale->count + 1u) * sizeof *lives);
    if (lives == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order lives");
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->scale->count; i++)
        if (m->items[i].size != 0)
            lives[count++] = life_of(m, i);
    pleat__sort_keys(lives, lives + m->scale->count + 1, count);
    *choice = (pleat__sweep_choice){1, 0};
    pleat_result result = count != 0 ? try_choices(m, cap, lives, count, choice) : PLEAT_OK;
    pleat__arena_free(m->arena, lives);
    return result;
}

/* By the choice that there is, or, where that is none or takes much, the best there is. */
static pleat_result sweep_well(maker *m, uint32_t cap, pleat__sweep_choice *choice, cost *taken)
{
    if (choice->life != 0) {
        PLEAT_TRY(sweep(m, cap, *choice, taken));
        if (taken->maps <= m->pages / MANY && taken->chunks <= cap)
            return PLEAT_OK;
    }
    PLEAT_TRY(choose(m, cap, choice));
    return sweep(m, cap, *choice, taken);
}

/* ---- places ---- */

typedef struct placer {
    maker *m;
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
        uint32_t offset = (uint32_t)(at % p->m->pool->page_bytes >> PLEAT__GRANULE_SHIFT);
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

/* The job of a stream. */
static uint32_t job_of(const maker *m, uint16_t stream)
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

static void place_item(placer *p, uint32_t i, pleat__expected *expected)
{
    maker *m = p->m;
    const pleat__term *term = &m->scale->terms[i];
    uint32_t granules = granules_of(m->items[i].size), job = job_of(m, term->stream);
    *expected = (pleat__expected){.bytes = term->bytes,
                                  .lane = PLEAT__NO_LANE,
                                  .stream = term->stream,
                                  .kind = PLEAT__ITEM_LOOSE,
                                  .gap = PLEAT__GAP_UNKNOWN};
    if (is_loose(term) || granules == 0)
        return;
    uint64_t at = m->places[i];
    uint32_t count = runs_of(p, &m->tries[job], at, granules);
    pleat__extent *runs = p->runs + p->run_count;
    expected->kind = PLEAT__ITEM_SLOT;
    expected->place =
        (pleat__place){.address = address_of(p, job, at), .run = runs[0], .granules = granules};
    if (count == 1)
        return;
    pleat__runs *several = &p->several[p->several_count++];
    *several = (pleat__runs){.runs = runs, .count = count, .granules = granules};
    expected->place.several = several;
    p->run_count += count;
}

static void count_runs(placer *p)
{
    maker *m = p->m;
    for (uint32_t i = 0; i < m->scale->count; i++) {
        uint32_t granules = granules_of(m->items[i].size);
        if (granules == 0 || is_loose(&m->scale->terms[i]))
            continue;
        uint32_t count =
            runs_of(p, &m->tries[job_of(m, m->items[i].stream)], m->places[i], granules);
        p->several_count += count > 1;
        p->run_count += count > 1 ? count : 0;
    }
}

static pleat_result make_follow(placer *p, pleat__follow **out)
{
    maker *m = p->m;
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
        result = pleat__match_init(&follow->match, arena, follow->items, 0, follow->count);
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
static pleat_result map_views(maker *m, pleat__instance *instance)
{
    uint32_t *chunks = pleat__arena_alloc(m->arena, (instance->view_pages + 1u) * sizeof *chunks);
    if (chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for views");
    uint32_t count = 0;
    pleat_result result = PLEAT_OK;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        for (uint32_t v = 0; v < m->tries[j].view_pages; v++) {
            uint32_t chunk = m->chunk_at[m->tries[j].views[v]];
            if (!pleat__pool_single(m->pool, chunk))
                result = pleat__fail(PLEAT_E_LIMIT, "a chunk that is mapped with others");
            chunks[count++] = chunk;
        }
    if (result == PLEAT_OK && count != 0)
        result = pleat__pool_view(m->pool, chunks, count, &instance->view_page);
    pleat__arena_free(m->arena, chunks);
    return result;
}

/* So many chunks more; where the limit is met, as many of the highest that are free go for them. */
static pleat_result grow_by(const pleat__ground *ground, uint32_t chunks)
{
    pleat_result result = chunks != 0 ? pleat__heap_grow(ground->heap, 0, chunks) : PLEAT_OK;
    if ((result != PLEAT_E_BUDGET && result != PLEAT_E_OUT_OF_MEMORY) ||
        pleat__heap_shrink(ground->heap, chunks) == 0)
        return result;
    return pleat__heap_grow(ground->heap, 0, chunks);
}

/* Pages that no chunk can come to. */
static uint32_t missing_pages(const maker *m)
{
    uint32_t missing = 0;
    for (uint32_t p = 0; p < m->pages; p++)
        missing += m->chunk_at[p] == NO_CHUNK;
    return missing;
}

/* Chunks for the homes that the layout takes and that have none: those given back come first, the
 * lowest of them first, and then the pool's next. */
static pleat_result add_pages(maker *m)
{
    uint32_t end = 0, absent = 0;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        end = m->tries[j].end_page > end ? m->tries[j].end_page : end;
    for (uint32_t p = 0; p < m->pages && p < end; p++)
        absent += m->chunk_at[p] != NO_CHUNK && m->pool->chunks[m->chunk_at[p]] == NULL;
    if (end > m->pages)
        absent = m->pool->absent + (end - m->pages);
    if (absent == 0)
        return PLEAT_OK;
    PLEAT_TRY(grow_by(m->ground, absent));
    pleat__arena_free(m->arena, m->chunk_at);
    m->chunk_at = NULL;
    PLEAT_TRY(list_pages(m));
    return end <= m->pages
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_LIMIT, "no homes for %u more chunks", end - m->pages);
}

/* Lays out with what max-live needs and a little, or all that there is. */
static pleat_result lay_out(maker *m, pleat__sweep_choice *choice, cost *taken)
{
    PLEAT_TRY(pose(m));
    uint32_t floor = 0;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        floor += m->jobs.jobs[j].floor;
    uint32_t wanted = floor + (floor - missing_pages(m)) / SLACK;
    if (m->pool->absent == 0 && wanted < m->pages)
        wanted = m->pages;
    PLEAT_TRY(sweep_well(m, wanted, choice, taken));
    return add_pages(m);
}

/* The views of an instance that is no more. */
typedef struct ended_views {
    pleat__job job;
    pleat__heap *heap;
    uint64_t page;
    uint32_t pages;
    pleat_event events[PLEAT__STREAMS]; /* the last work of each stream that may have used them */
} ended_views;

static void ended_free(ended_views *ended)
{
    for (uint64_t i = 0; i < ended->job.event_count; i++)
        (void)ended->heap->vmm.ops->event_destroy(ended->heap->vmm.self, ended->events[i]);
    pleat__arena_free(ended->heap->arena, ended);
}

/* The mapper's. Where nobody says that the GPU is done they stay mapped: address space, no memory.
 */
static pleat_result unmap_ended(void *context, pleat_result ready)
{
    ended_views *ended = context;
    pleat__space *space = ended->heap->pool->space;
    pleat_result result = ready;
    if (ready == PLEAT_OK) {
        result = pleat__space_unmap(space, ended->page, ended->pages);
        pleat__space_give(space, ended->page, ended->pages);
    }
    ended_free(ended);
    return result;
}

static pleat_result note_work(ended_views *ended)
{
    const pleat__heap *heap = ended->heap;
    for (uint32_t i = 0; i < heap->stream_count; i++) {
        PLEAT_TRY(heap->vmm.ops->event_create(heap->vmm.self, heap->device, &ended->events[i]));
        ended->job.event_count++;
        PLEAT_TRY(heap->vmm.ops->event_record(heap->vmm.self, ended->events[i], heap->streams[i]));
    }
    return PLEAT_OK;
}

static bool end_views(const pleat__instance *instance, pleat__heap *heap)
{
    pleat__mapper *mapper;
    ended_views *ended = pleat__arena_alloc(heap->arena, sizeof *ended);
    if (ended == NULL)
        return false;
    *ended =
        (ended_views){.heap = heap, .page = instance->view_page, .pages = instance->view_pages};
    ended->job = (pleat__job){.kind = PLEAT__JOB_CALL,
                              .call = unmap_ended,
                              .context = ended,
                              .forgotten = true,
                              .events = ended->events};
    if (note_work(ended) == PLEAT_OK && pleat__gate_mapper(heap->pool->gate, &mapper) == PLEAT_OK &&
        pleat__mapper_submit(mapper, &ended->job) == PLEAT_OK)
        return true;
    ended_free(ended);
    return false;
}

static pleat_result make(maker *m, pleat__sweep_choice *choice, pleat__instance *instance)
{
    cost taken;
    PLEAT_TRY(lay_out(m, choice, &taken));
    uint32_t *first_view = pleat__arena_calloc(m->arena, m->jobs.count, sizeof *first_view);
    if (first_view == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for views");
    for (uint32_t j = 1; j < m->jobs.count; j++)
        first_view[j] = first_view[j - 1] + m->tries[j - 1].view_pages;
    instance->view_pages = taken.maps;
    for (uint32_t j = 0; j < m->jobs.count; j++)
        instance->end_page =
            m->tries[j].end_page > instance->end_page ? m->tries[j].end_page : instance->end_page;
    pleat_result result = map_views(m, instance);
    if (result == PLEAT_OK) {
        placer p = {.m = m,
                    .first_view = first_view,
                    .views = m->pool->base + instance->view_page * m->pool->page_bytes};
        result = make_follow(&p, &instance->follow);
        if (result != PLEAT_OK && instance->view_pages != 0)
            (void)end_views(instance, m->ground->heap);
    }
    pleat__arena_free(m->arena, first_view);
    return result;
}

pleat_result pleat__instance_make(const pleat__ground *ground, const pleat__scale *scale,
                                  uint64_t x, pleat__sweep_choice *choice, pleat__instance **out)
{
    maker m = {.ground = ground,
               .scale = scale,
               .pool = ground->heap->pool,
               .arena = ground->arena,
               .x = x};
    pleat__instance *instance = pleat__arena_calloc(ground->arena, 1, sizeof *instance);
    if (instance == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an instance");
    instance->x = x;
    pleat_result result = make(&m, choice, instance);
    unpose(&m);
    if (result != PLEAT_OK) {
        pleat__arena_free(ground->arena, instance);
        return result;
    }
    pleat__instance_fit(instance, scale, x);
    *out = instance;
    return PLEAT_OK;
}

pleat_result pleat__instance_takes(const pleat__ground *ground, const pleat__scale *scale,
                                   uint64_t x, pleat__sweep_choice choice, uint32_t cap,
                                   uint32_t *chunks)
{
    maker m = {.ground = ground,
               .scale = scale,
               .pool = ground->heap->pool,
               .arena = ground->arena,
               .x = x};
    cost taken = {0, 0};
    pleat_result result = pose(&m);
    uint32_t missing = result == PLEAT_OK ? missing_pages(&m) : 0;
    if (result == PLEAT_OK && choice.life == 0)
        choice = (pleat__sweep_choice){1, LARGEST};
    if (result == PLEAT_OK)
        result = sweep(&m, cap + missing, choice, &taken);
    unpose(&m);
    *chunks = taken.chunks - missing;
    return result;
}

/* ---- life ---- */

/* Sizes that grow with x fit below the x that was laid out for; others are compared. */
static bool fits_slot(const pleat__instance *instance, const pleat__scale *scale,
                      const pleat__term *term, uint32_t granules, uint64_t x)
{
    if (granules == 0 || (term->rise >= 0 && x <= instance->x))
        return granules != 0;
    return granules <= granules_of(pleat__scale_bytes(scale, term, instance->x));
}

void pleat__instance_fit(pleat__instance *instance, const pleat__scale *scale, uint64_t x)
{
    if (instance->fitted == x)
        return;
    for (uint32_t i = 0; i < scale->count; i++) {
        const pleat__term *term = &scale->terms[i];
        pleat__expected *item = &instance->follow->items[i];
        if (is_loose(term) || (term->rise == 0 && instance->fitted != 0))
            continue;
        item->bytes = pleat__scale_bytes(scale, term, x);
        uint32_t granules = granules_of(item->bytes);
        if (!fits_slot(instance, scale, term, granules, x)) {
            item->kind = PLEAT__ITEM_LOOSE;
            continue;
        }
        item->kind = PLEAT__ITEM_SLOT;
        item->place.granules = granules;
        if (item->place.several == NULL)
            item->place.run.count = granules;
    }
    instance->fitted = x;
}

bool pleat__instance_in_use(const pleat__instance *instance, const pleat__placed *placed)
{
    const pleat__follow *follow = instance->follow;
    for (uint32_t i = 0; i < follow->count; i++) {
        const pleat__place *place = &follow->items[i].place;
        const pleat__place *entry =
            place->several != NULL ? pleat__placed_find(placed, place->address) : NULL;
        if (entry != NULL && entry->several == place->several)
            return true;
    }
    return false;
}

bool pleat__instance_free(pleat__instance *instance, pleat__heap *heap)
{
    pleat__arena *arena = instance->follow->arena;
    if (instance->view_pages != 0 && !end_views(instance, heap))
        return false;
    heap->pool->view_pages -= instance->view_pages;
    pleat__follow_free(instance->follow);
    pleat__arena_free(arena, instance);
    return true;
}
