/*
 * instance_layout.c: laying out an iteration in the pool (see instance.h).
 *
 * The problem is the planner's: items with sizes and lives, those that outlive iterations fixed
 * where they lie. Its pages are the pool's homes in order of address, so that a place is an address
 * without any map; only what finds no room there is stitched into a view. One sweep in order of
 * birth does it (plan/fold/sweep.c), the largest items first, then long-lived ones low and
 * short-lived ones high; how many are large and which lives are long is tried out when the scale is
 * new, and kept for every other x. (On a job with lengths from 10 to 50 thousand tokens the largest
 * eight first took 48 alias pages, and no more chunks, where birth alone took 734: its logits, one
 * tensor of 1.5 GB, found no hole.)
 */
#include <runtime/learn/instance_internal.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <stdlib.h>
#include <string.h>

#define LIFES 6u /* limits between short and long lives that are tried */
/* Requests swept for a choice, at most, and sweeps, at least: 40 ms of 20,000 requests. */
#define TRIED  100000u
#define FEWEST 5u
/* A choice is tried out anew with more alias pages than one in MANY of all pages, unless it is
 * about as good as when it was the best: up to one alias page in MUCH, half more of them than then,
 * and chunks up to one in NEARLY beyond those wanted. (A job whose batch grew in each of seven
 * iterations tried eleven choices each time, 8 ms of 11; it is now laid out with 2,653 alias pages
 * instead of 3,234, and no more memory.) */
#define MANY   64u
#define MUCH   4u
#define NEARLY 512u
/* More alias pages than any layout has. */
#define MOST_MAPS (1u << 30)

/* ---- where it is cut ---- */

static uint32_t behind_cut(const pleat__maker *m, uint32_t time)
{
    uint32_t horizon = m->scale->horizon;
    return time < m->cut ? time + horizon - m->cut : (time - m->cut) % horizon;
}

/* It crosses every cut, and stays as it is. */
static bool lives_always(const pleat__maker *m, const pleat__item *item)
{
    return item->begin == 0 && item->end == m->scale->horizon;
}

/* What lives on at each time, but for what lives always, as differences. */
static void add_lives(const pleat__maker *m, int64_t *lives)
{
    for (uint32_t i = 0; i < m->item_count; i++) {
        const pleat__item *item = &m->items[i];
        int64_t size = (int64_t)item->size;
        if (size == 0 || lives_always(m, item))
            continue;
        bool wraps = item->end <= item->begin;
        if (item->end != 0) {
            lives[wraps ? 0 : item->begin + 1] += size;
            lives[item->end] -= size;
        }
        if (wraps)
            lives[item->begin + 1] += size;
    }
}

/* What crosses the cut is placed ahead of all others, and these around it. A program that marks its
 * step has every gradient cross the mark, and a few requests later none: a mixture of experts was
 * laid out in 25,929 pages where it is cut there, and in 26,040 where it is marked. */
static pleat_result choose_cut(pleat__maker *m)
{
    uint32_t horizon = m->scale->horizon;
    int64_t *lives = pleat__arena_calloc(m->arena, horizon + 2ull, sizeof *lives);
    if (lives == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u events", horizon);
    add_lives(m, lives);
    int64_t live = lives[0], least = live;
    m->cut = 0;
    for (uint32_t t = 1; t < horizon; t++) {
        live += lives[t];
        if (live < least) {
            least = live;
            m->cut = t;
        }
    }
    pleat__arena_free(m->arena, lives);
    return PLEAT_OK;
}

static void cut_items(pleat__maker *m)
{
    uint32_t horizon = m->scale->horizon;
    for (uint32_t i = 0; i < m->item_count && m->cut != 0; i++) {
        pleat__item *item = &m->items[i];
        if (item->size == 0 || lives_always(m, item))
            continue;
        item->begin = behind_cut(m, item->begin);
        item->end = behind_cut(m, item->end);
        item->end = item->end == 0 ? horizon : item->end;
    }
}

/* ---- the problem ---- */

static pleat_result add_item(pleat__maker *m, pleat__item item)
{
    PLEAT_TRY(
        pleat__arena_grow(m->arena, &m->items, &m->item_capacity, m->item_count, sizeof *m->items));
    m->items[m->item_count++] = item;
    return PLEAT_OK;
}

static pleat_result add_terms(pleat__maker *m)
{
    for (uint32_t i = 0; i < m->scale->count; i++) {
        const pleat__term *term = &m->scale->terms[i];
        uint64_t bytes = pleat__term_is_loose(term) ? 0 : pleat__scale_bytes(m->scale, term, m->x);
        pleat__item item = {.size = (uint64_t)pleat__granules_of(bytes) << PLEAT__GRANULE_SHIFT,
                            .fixed = UINT64_MAX,
                            .begin = term->begin,
                            .end = pleat__term_is_loose(term) ? term->begin : term->end,
                            .stream = term->stream};
        if (item.size == 0) /* an empty life takes no room, a circular one would be whole */
            item.begin = item.end = 0;
        PLEAT_TRY(add_item(m, item));
    }
    return PLEAT_OK;
}

static uint64_t page_of(const pleat__maker *m, uint32_t chunk)
{
    return m->pool->home[chunk] - m->home0;
}

/* What is there already has its place, now and later. */
static void hold(pleat__maker *m)
{
    for (uint32_t i = 0; m->ground != NULL && i < m->ground->held_count; i++) {
        const pleat__held *held = &m->ground->held[i];
        m->items[held->term].fixed =
            held->address - (m->pool->base + m->home0 * m->pool->page_bytes);
    }
}

static pleat_result add_obstacle(pleat__maker *m, uint64_t at, uint64_t bytes, pleat_va address)
{
    /* Side by side with the allocation's run before: one obstacle. */
    pleat__obstacle *last = m->obstacle_count != 0 ? &m->obstacles[m->obstacle_count - 1] : NULL;
    if (last != NULL && last->address == address && last->at + last->bytes == at) {
        last->bytes += bytes;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(m->arena, &m->obstacles, &m->obstacle_capacity, m->obstacle_count,
                                sizeof *m->obstacles));
    m->obstacles[m->obstacle_count++] = (pleat__obstacle){at, bytes, address, 0};
    return PLEAT_OK;
}

static pleat_result add_run(pleat__maker *m, pleat__extent run, pleat_va address)
{
    const pleat__occupancy *occupancy = &m->pool->occupancy;
    while (run.count != 0) {
        uint32_t chunk = run.begin >> occupancy->shift;
        uint32_t offset = run.begin & (occupancy->full - 1);
        uint32_t part = occupancy->full - offset;
        part = part < run.count ? part : run.count;
        PLEAT_TRY(add_obstacle(
            m, page_of(m, chunk) * m->pool->page_bytes + ((uint64_t)offset << PLEAT__GRANULE_SHIFT),
            (uint64_t)part << PLEAT__GRANULE_SHIFT, address));
        run = (pleat__extent){run.begin + part, run.count - part};
    }
    return PLEAT_OK;
}

static pleat_result add_place(pleat__maker *m, const pleat__place *place)
{
    if (place->several == NULL)
        return add_run(m, (pleat__extent){place->run.begin, place->granules}, place->address);
    uint32_t left = place->granules;
    for (uint32_t i = 0; left != 0; i++) {
        pleat__extent run = place->several->runs[i];
        run.count = run.count < left ? run.count : left;
        PLEAT_TRY(add_run(m, run, place->address));
        left -= run.count;
    }
    return PLEAT_OK;
}

static bool run_is_free(const pleat__maker *m, pleat__extent run)
{
    return pleat__occupancy_is_free(&m->pool->occupancy, run);
}

/* Whether nothing of it is an obstacle as it is. */
static bool place_is_free(const pleat__maker *m, const pleat__place *place)
{
    if (place->several == NULL)
        return run_is_free(m, place->run);
    for (uint32_t i = 0; i < place->several->count; i++)
        if (!run_is_free(m, place->several->runs[i]))
            return false;
    return true;
}

/* What will outlive iterations: a plan says where it will lie. */
static pleat_result add_awaited(pleat__maker *m)
{
    const pleat__follow *beginning = m->ground->beginning;
    for (uint32_t i = 0; beginning != NULL && i < m->scale->first; i++) {
        const pleat__expected *item = &beginning->items[i];
        if (pleat__term_stays(m->scale, i) && item->kind == PLEAT__ITEM_SLOT &&
            place_is_free(m, &item->place))
            PLEAT_TRY(add_place(m, &item->place));
    }
    return PLEAT_OK;
}

/* What outlives iterations, and pages that cannot be had. */
static pleat_result add_obstacles(pleat__maker *m)
{
    const pleat__placed *placed = m->ground->placed;
    PLEAT_TRY(add_awaited(m));
    for (uint32_t i = 0; i <= placed->mask; i++) {
        const pleat__place *place = &placed->entries[i];
        if (place->address == 0 || place->lane == PLEAT__UNCHECKED ||
            m->ground->crosses(m->ground->context, place->address))
            continue;
        PLEAT_TRY(add_place(m, place));
    }
    for (uint32_t p = 0; p < m->pages; p++)
        if (m->chunk_at[p] == PLEAT__NO_HOME)
            PLEAT_TRY(add_obstacle(m, p * m->pool->page_bytes, m->pool->page_bytes, 0));
    return PLEAT_OK;
}

static pleat_result add_passing(pleat__maker *m, const pleat__obstacle *obstacle, uint32_t begin,
                                uint32_t end)
{
    PLEAT_TRY(pleat__arena_grow(m->arena, &m->passing, &m->passing_capacity, m->passing_count,
                                sizeof *m->passing));
    m->passing[m->passing_count++] = (pleat__passing){
        .bytes = {obstacle->at, obstacle->at + obstacle->bytes}, .begin = begin, .end = end};
    return PLEAT_OK;
}

static int compare_passing(const void *a, const void *b)
{
    const pleat__passing *x = a, *y = b;
    return x->begin != y->begin ? (x->begin > y->begin) - (x->begin < y->begin)
                                : (x->end > y->end) - (x->end < y->end);
}

/* Obstacles as items that are live always, or as what passes behind the iteration's beginning. */
static pleat_result add_fixed(pleat__maker *m)
{
    uint32_t horizon = m->scale->horizon, begin = behind_cut(m, 0);
    m->passing_count = 0;
    for (uint32_t i = 0; i < m->obstacle_count; i++) {
        const pleat__obstacle *obstacle = &m->obstacles[i];
        uint32_t left = horizon - begin;
        if (obstacle->end == 0) {
            PLEAT_TRY(add_item(
                m, (pleat__item){.size = obstacle->bytes, .fixed = obstacle->at, .end = horizon}));
            continue;
        }
        PLEAT_TRY(
            add_passing(m, obstacle, begin, begin + (obstacle->end < left ? obstacle->end : left)));
        if (obstacle->end > left)
            PLEAT_TRY(add_passing(m, obstacle, 0, obstacle->end - left));
    }
    if (m->passing_count != 0)
        qsort(m->passing, m->passing_count, sizeof *m->passing, compare_passing);
    return PLEAT_OK;
}

pleat_result pleat__maker_list_pages(pleat__maker *m)
{
    const pleat__pool *pool = m->pool;
    uint64_t low = pool->next_home;
    for (uint32_t c = 0; c < pool->count; c++)
        low = pool->home[c] < low ? pool->home[c] : low;
    m->home0 = low;
    m->pages = (uint32_t)(pool->next_home - low);
    m->chunk_at = pleat__arena_alloc(m->arena, m->pages * sizeof *m->chunk_at);
    m->handles = pleat__arena_alloc(m->arena, m->pages * sizeof *m->handles);
    if (m->chunk_at == NULL || m->handles == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", m->pages);
    for (uint32_t p = 0; p < m->pages; p++)
        m->handles[p] = (pleat__fold_handle){1, 0};
    memset(m->chunk_at, 0xff, m->pages * sizeof *m->chunk_at);
    for (uint32_t c = 0; c < pool->count; c++) {
        const pleat__chunk *handle = pool->chunks[c];
        if (handle != NULL)
            m->handles[page_of(m, c)] = (pleat__fold_handle){handle->pages, c - pool->first[c]};
        if (handle != NULL || !m->as_it_is)
            m->chunk_at[page_of(m, c)] = c;
    }
    return PLEAT_OK;
}

/* Inserted where it belongs among the largest; of equal ones the first stays first. */
static void list_largest(pleat__maker *m)
{
    m->largest_count = 0;
    for (uint32_t i = 0; i < m->scale->count; i++) {
        uint32_t at = m->largest_count;
        while (at > 0 && m->items[m->largest[at - 1]].size < m->items[i].size)
            at--;
        if (at == PLEAT__LARGEST || m->items[i].size == 0)
            continue;
        uint32_t last = m->largest_count < PLEAT__LARGEST ? m->largest_count++ : PLEAT__LARGEST - 1;
        memmove(&m->largest[at + 1], &m->largest[at], (last - at) * sizeof m->largest[0]);
        m->largest[at] = i;
    }
}

pleat_result pleat__maker_gather(pleat__maker *m)
{
    PLEAT_TRY(pleat__maker_list_pages(m));
    m->obstacle_count = 0;
    return add_obstacles(m);
}

static void free_posed(pleat__maker *m)
{
    for (uint32_t j = 0; j < m->jobs.count && m->tries != NULL; j++) {
        pleat__arena_free(m->arena, m->tries[j].views);
        pleat__arena_free(m->arena, m->tries[j].starts);
    }
    if (m->jobs.arena != NULL)
        pleat__fold_jobs_free(&m->jobs);
    m->jobs = (pleat__fold_jobs){0};
    pleat__arena_free(m->arena, m->tries);
    pleat__arena_free(m->arena, m->places);
    pleat__arena_free(m->arena, m->policy);
    m->tries = NULL;
    m->places = NULL;
    m->policy = NULL;
}

pleat_result pleat__maker_pose(pleat__maker *m)
{
    free_posed(m);
    m->item_count = 0;
    PLEAT_TRY(add_terms(m));
    hold(m);
    PLEAT_TRY(choose_cut(m));
    cut_items(m);
    PLEAT_TRY(add_fixed(m));
    m->problem = (pleat__problem){
        .items = m->items, .count = m->item_count, .horizon = m->scale->horizon, .circular = true};
    list_largest(m);
    PLEAT_TRY(pleat__fold_jobs_make(&m->problem, m->pool->page_bytes, m->arena, &m->jobs));
    m->jobs.jobs[0].passing = m->passing;
    m->jobs.jobs[0].passing_count = m->passing_count;
    m->places = pleat__arena_calloc(m->arena, m->item_count + 1u, sizeof *m->places);
    m->policy = pleat__arena_alloc(m->arena, m->item_count + 1u);
    m->tries = pleat__arena_calloc(m->arena, m->jobs.count, sizeof *m->tries);
    if (m->places == NULL || m->policy == NULL || m->tries == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to lay out %u requests",
                           m->item_count);
    return PLEAT_OK;
}

void pleat__maker_unpose(pleat__maker *m)
{
    free_posed(m);
    pleat__arena_free(m->arena, m->chunk_at);
    pleat__arena_free(m->arena, m->obstacles);
    pleat__arena_free(m->arena, m->handles);
    pleat__arena_free(m->arena, m->items);
    pleat__arena_free(m->arena, m->passing);
    *m = (pleat__maker){
        .ground = m->ground, .scale = m->scale, .pool = m->pool, .arena = m->arena, .x = m->x};
}

/* ---- the sweep ---- */

/* Positions in the job's births of the first `count` of the largest. No two items are born at once.
 */
static uint32_t reserve_largest(const pleat__maker *m, const pleat__fold_job *job, uint32_t count,
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

static uint32_t life_of(const pleat__maker *m, uint32_t i)
{
    const pleat__item *item = &m->items[i];
    return pleat__item_wraps(&m->problem, i) ? m->problem.horizon - item->begin + item->end
                                             : item->end - item->begin;
}

/* Every stream in pages of its own, the first also around what is fixed and in all pages that the
 * others do not need. */
static pleat_result sweep_job(pleat__maker *m, uint32_t j, uint32_t cap, uint32_t first_page,
                              pleat__sweep_choice choice)
{
    static const pleat__fold_options options = {.chunk_bytes = 0};
    pleat__fold_job *job = &m->jobs.jobs[j];
    /* What needs more than there is has failed, and is left at once. */
    pleat__sweep_limits limits = {
        .cap = cap, .chunks = m->as_it_is && j == 0 ? cap : UINT32_MAX, .cost = UINT64_MAX};
    /* So is what takes no less than another choice. (GPT-2 at 8,489 requests: 15 ms for eleven
     * sweeps, 22 without.) */
    if (m->beaten != NULL && m->jobs.count == 1 && m->beaten->chunks != UINT32_MAX) {
        limits.maps_for_chunk = MOST_MAPS;
        limits.cost = (uint64_t)m->beaten->chunks * MOST_MAPS + m->beaten->maps;
    }
    pleat__sweep *sweep;
    bool done;
    uint32_t stuck, reserved[PLEAT__LARGEST];
    uint32_t reserved_count = reserve_largest(m, job, choice.largest, reserved);
    job->options = &options;
    job->hints = m->places;
    job->first_page = first_page;
    job->handles = m->handles;
    job->handle_count = m->pages;
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

pleat_result pleat__maker_sweep(pleat__maker *m, uint32_t cap, pleat__sweep_choice choice,
                                pleat__layout_cost *taken)
{
    uint32_t first_page = 0, others = 0;
    *taken = (pleat__layout_cost){0, 0};
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

static bool is_less(pleat__layout_cost a, pleat__layout_cost b)
{
    return a.chunks != b.chunks ? a.chunks < b.chunks : a.maps < b.maps;
}

/* Tries limits between short and long lives with each number of large items; the choice that takes
 * the least. */
static pleat_result try_choices(pleat__maker *m, uint32_t cap, const uint64_t *lives,
                                uint32_t count, pleat__sweep_choice *choice)
{
    static const uint32_t largest[] = {8, 0, PLEAT__LARGEST};
    pleat__layout_cost best = {UINT32_MAX, UINT32_MAX};
    pleat_result result = PLEAT_OK;
    m->beaten = &best;
    uint32_t left = m->thorough ? UINT32_MAX : count < TRIED / FEWEST ? TRIED / count : FEWEST;
    for (uint32_t l = 0; l < sizeof largest / sizeof *largest; l++)
        for (uint32_t k = 0; k < LIFES && (best.maps != 0 || (m->as_it_is && best.chunks > cap)) &&
                             left != 0 && result == PLEAT_OK;
             k++, left--) {
            /* From the middle out in big steps. */
            uint64_t q = (k * 5 + LIFES / 2) % LIFES;
            pleat__sweep_choice tried = {.life = (uint32_t)lives[count * q / LIFES],
                                         .largest = largest[l]};
            pleat__layout_cost taken;
            tried.life += tried.life == 0;
            result = pleat__maker_sweep(m, cap, tried, &taken);
            if (result == PLEAT_OK && is_less(taken, best)) {
                best = taken;
                *choice = tried;
            }
        }
    m->beaten = NULL;
    return result;
}

static pleat_result choose(pleat__maker *m, uint32_t cap, pleat__sweep_choice *choice)
{
    uint64_t *lives = pleat__arena_alloc(m->arena, 2 * (m->scale->count + 1u) * sizeof *lives);
    if (lives == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order lives");
    uint32_t count = 0;
    for (uint32_t i = 0; i < m->scale->count; i++)
        if (m->items[i].size != 0)
            lives[count++] = life_of(m, i);
    pleat__sort_keys(lives, lives + m->scale->count + 1, count);
    *choice = (pleat__sweep_choice){.life = 1};
    pleat_result result = count != 0 ? try_choices(m, cap, lives, count, choice) : PLEAT_OK;
    pleat__arena_free(m->arena, lives);
    return result;
}

/* Whether the choice takes little, or about what the best of all took when it was chosen: all
 * others would be tried in vain. */
static bool holds(const pleat__maker *m, const pleat__sweep_choice *choice, uint32_t cap,
                  const pleat__layout_cost *taken)
{
    if (taken->maps <= m->pages / MANY && taken->chunks <= cap)
        return true;
    return taken->maps <= m->pages / MUCH && taken->chunks <= cap + cap / NEARLY &&
           2 * (uint64_t)taken->maps * choice->pages <= 3 * (uint64_t)choice->maps * m->pages;
}

/* By the choice that there is, or, where that is none or takes much, the best there is. */
pleat_result pleat__maker_sweep_well(pleat__maker *m, uint32_t cap, pleat__sweep_choice *choice,
                                     pleat__layout_cost *taken)
{
    if (choice->life != 0) {
        PLEAT_TRY(pleat__maker_sweep(m, cap, *choice, taken));
        if (holds(m, choice, cap, taken))
            return PLEAT_OK;
    }
    PLEAT_TRY(choose(m, cap, choice));
    PLEAT_TRY(pleat__maker_sweep(m, cap, *choice, taken));
    choice->maps = taken->maps;
    choice->pages = m->pages;
    return PLEAT_OK;
}

/* Pages that no chunk can come to. */
uint32_t pleat__maker_missing(const pleat__maker *m)
{
    uint32_t missing = 0;
    for (uint32_t p = 0; p < m->pages; p++)
        missing += m->chunk_at[p] == PLEAT__NO_HOME;
    return missing;
}
