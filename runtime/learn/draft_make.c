/*
 * draft_make.c: from recorded iterations to a plan that can be followed where the job is (see
 * draft_make.h).
 *
 * The planner's model says which requests are static, when they live and which lanes the others
 * need (plan/model/model.h, plan/lanes/lanes.h). Static requests and lanes are then laid out like
 * an instance of an elastic job (instance_layout.c): the pool's homes are the pages, and what
 * outlives iterations lies where it lies. What finds no room in a run of homes is stitched into a
 * view.
 *
 * VIEWS  are mapped here, some pages at a time: each time the turn is taken, so a request of the
 *        job that needs verbs waits for a millisecond at most. With the turn nobody else gives
 *        chunks back, and a chunk with an alias stays. While a stream captures the thread waits.
 */
#include <runtime/learn/draft_make.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <plan/model/model.h>
#include <time.h>

/* Less than one request in so many that varies is not worth lanes. A job's first iteration is odd
 * by itself: held against that, more must vary before the next one has been seen. */
#define VARYING_SHARE 64u
#define EARLY_SHARE   8u
#define MARGIN        1.15
#define MOST_LANES    8192u
/* Where iterations have more or less of the same, a number of microbatches, and are longer by more
 * than one request in so many, so many lanes are too many: the heap and several shapes do better.
 * (A GPT-2 of 2 to 8 had 1,904 lanes for 3,486 requests, and took 1.7 us a request to look through
 * them: 12 ms an iteration, and 1,942 calls. Without it takes 1 ms, and none. A mixture of experts
 * has 97 lanes for 15,577.) */
#define MANY_LANES   256u
#define LENGTH_SHARE 8u
/* One byte in so many is not promised to lanes: what is lost between chunks. (With 256, lanes took
 * room on a pipeline of experts that no layout had, and both were made twice.) */
#define LOST 96u
/* Handles that are mapped with the turn in one piece: about 0.7 ms. */
#define BATCH 32u
/* How often is looked whether a capture has ended: once a millisecond. */
#define PAUSE_NS 1000000
/* Sizes that differ in the same proportion, to one part in so many, follow one number; where half
 * of those that differ do, and at least FEW, they are not dynamic. */
#define ALIKE 500u
#define FEW   16u

/* There is one size only. */
static const pleat__x only = {{1, 1}, {1, 1}};

typedef struct making {
    pleat__draft_job *job;
    pleat__arena *scratch;
    pleat_plan *plan;
    pleat__model model;
    pleat__scale scale;
    pleat__term *terms;
    pleat__sweep_choice choice;
    uint32_t *pages;     /* of the window -> chunk */
    uint32_t view_pages; /* used, of the job's room */
} making;

/* ---- does it vary? ---- */

static uint32_t count_dynamic(const pleat_plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        count += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC;
    return count;
}

/* What a request of the steady iteration grew by since the profile before, in 1/2^20 of its size
 * there; 0: it did not, or was not there. */
static uint64_t growth_of(const pleat__model *model, uint32_t index)
{
    const pleat__request *items = model->requests.items;
    uint32_t other = model->iteration.pairs[index];
    if (other == PLEAT__NEVER)
        return 0;
    uint64_t now = items[model->iteration.steady.item + index].size, before = items[other].size;
    return now == before || before == 0 || now >> 40 != 0 ? 0 : (now << 20) / before;
}

/* Whether most sizes that differ do so in one proportion: a length's or a microbatch's. */
static pleat_result follows_number(const making *m, bool *yes)
{
    const pleat__model *model = &m->model;
    uint32_t items = model->iteration.steady.items, count = 0, most = 0;
    uint64_t *keys = pleat__arena_alloc(m->scratch, 2 * (items + 1ull) * sizeof *keys);
    *yes = false;
    if (keys == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to compare %u sizes", items);
    for (uint32_t i = 0; i < items; i++) {
        uint64_t growth = growth_of(model, i);
        if (growth != 0)
            keys[count++] = growth;
    }
    pleat__sort_keys(keys, keys + items + 1, count);
    for (uint32_t low = 0, high = 0; high < count; high++) {
        while (keys[high] - keys[low] > keys[high] / ALIKE)
            low++;
        most = high + 1 - low > most ? high + 1 - low : most;
    }
    pleat__arena_free(m->scratch, keys);
    *yes = count >= FEW && most * 2 >= count;
    return PLEAT_OK;
}

static pleat_result make_model(making *m)
{
    pleat__draft_job *job = m->job;
    bool one_number;
    PLEAT_TRY(pleat__draft_trace(job));
    PLEAT_TRY(pleat__model_make(job->trace, pleat_trace_events(job->trace)[0].device, m->scratch,
                                m->plan, &m->model));
    uint64_t dynamic = count_dynamic(m->plan), slots = m->plan->steady.slot_count;
    job->in_vain = dynamic * VARYING_SHARE <= slots;
    if (job->in_vain || m->model.iteration.profile_count == 0 ||
        (job->early && dynamic * EARLY_SHARE <= slots))
        return pleat__fail(PLEAT_E_NOT_FOUND, "too few requests vary");
    PLEAT_TRY(follows_number(m, &one_number));
    job->in_vain = one_number;
    if (one_number)
        return pleat__fail(PLEAT_E_NOT_FOUND, "sizes follow one number");
    m->plan->chunk_bytes = job->seen.page_bytes;
    return PLEAT_OK;
}

/* ---- places ---- */

/* Slots and then lanes as the terms of a scale that has one size only. */
static pleat_result make_terms(making *m)
{
    const pleat_plan *plan = m->plan;
    uint32_t slots = plan->steady.slot_count;
    pleat__arena_free(m->scratch, m->terms);
    m->terms = pleat__arena_calloc(m->scratch, slots + plan->lane_count + 1u, sizeof *m->terms);
    if (m->terms == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", slots);
    for (uint32_t i = 0; i < slots; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        m->terms[i] = (pleat__term){.bytes = slot->size,
                                    .most = UINT64_MAX,
                                    .begin = slot->alloc_at,
                                    .end = slot->free_at,
                                    .stream = slot->stream,
                                    .loose = slot->class == PLEAT__CLASS_DYNAMIC};
    }
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        const pleat__item *lane = &m->model.problem.items[m->model.item_count + l];
        m->terms[slots + l] = (pleat__term){.bytes = lane->size,
                                            .most = UINT64_MAX,
                                            .begin = lane->begin,
                                            .end = lane->end,
                                            .stream = lane->stream};
    }
    m->scale = (pleat__scale){.arena = m->scratch,
                              .terms = m->terms,
                              .count = slots + plan->lane_count,
                              .horizon = plan->steady.events,
                              .lowest = 1,
                              .highest = 1,
                              .from = only,
                              .to = only};
    return PLEAT_OK;
}

/* Whether a request that lives now is not in the way: one of the iteration under way will be gone,
 * or crosses as its like of the iteration before does; and one that is freed first of all is gone
 * before anything comes. */
static bool is_out_of_the_way(const making *m, uint32_t request)
{
    pleat__stretch steady = m->model.iteration.steady;
    return request >= steady.item + steady.items ||
           (request >= steady.item && m->plan->steady.slots[request - steady.item].free_at == 0);
}

/* When a request that lives now will be freed in the coming iteration; 0: not in that one. */
static uint32_t crosses_until(const making *m, uint32_t request)
{
    pleat__stretch steady = m->model.iteration.steady;
    if (request < steady.item)
        return 0;
    uint32_t end = m->plan->steady.slots[request - steady.item].free_at;
    return end != PLEAT__NEVER ? end : 0;
}

/* Of what lives now that is in the way always which outlives iterations, and what crosses until it
 * is freed: in later ones it has its slot. Whether anything crosses. */
static bool sort_obstacles(const making *m)
{
    pleat__maker *maker = &m->job->maker;
    uint32_t kept = 0;
    bool crosses = false;
    for (uint32_t i = 0; i < maker->obstacle_count; i++) {
        pleat__obstacle obstacle = maker->obstacles[i];
        uint32_t owner = m->job->owner[i];
        if (owner != 0 && is_out_of_the_way(m, owner - 1))
            continue;
        obstacle.end = owner != 0 ? crosses_until(m, owner - 1) : 0;
        crosses = crosses || obstacle.end != 0;
        maker->obstacles[kept++] = obstacle;
    }
    maker->obstacle_count = kept;
    return crosses;
}

static void drop_crossing(const making *m)
{
    pleat__maker *maker = &m->job->maker;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < maker->obstacle_count; i++)
        if (maker->obstacles[i].end == 0)
            maker->obstacles[kept++] = maker->obstacles[i];
    maker->obstacle_count = kept;
}

static bool fits(const making *m)
{
    const pleat__maker *maker = &m->job->maker;
    for (uint32_t j = 0; j < maker->jobs.count; j++)
        if (maker->tries[j].end_page > maker->pages)
            return false;
    return m->view_pages <= m->job->view_room;
}

static pleat_result sweep(making *m, bool *done)
{
    pleat__maker *maker = &m->job->maker;
    pleat__layout_cost taken;
    PLEAT_TRY(pleat__maker_pose(maker));
    PLEAT_TRY(pleat__maker_sweep_well(maker, maker->pages, &m->choice, &taken));
    m->view_pages = taken.maps;
    *done = fits(m);
    return PLEAT_OK;
}

/* Bytes beside what outlives iterations, but for some that are lost between chunks. */
static uint64_t room_of(const making *m)
{
    const pleat__maker *maker = &m->job->maker;
    uint64_t room = maker->pages * m->job->seen.page_bytes, lost = 0;
    room -= room / LOST;
    for (uint32_t i = 0; i < maker->obstacle_count; i++)
        lost += maker->obstacles[i].end == 0 ? maker->obstacles[i].bytes : 0;
    return room > lost ? room - lost : 0;
}

static bool has_lengths(const pleat__iteration *iteration)
{
    uint32_t least = iteration->steady.items, most = least;
    for (uint32_t i = 0; i < iteration->profile_count; i++) {
        uint32_t items = iteration->profiles[i].items;
        least = items < least ? items : least;
        most = items > most ? items : most;
    }
    return most - least > most / LENGTH_SHARE;
}

static pleat_result make_lanes(making *m, uint64_t room)
{
    PLEAT_TRY(pleat__model_add_lanes(&m->model, MARGIN, room, m->plan));
    uint32_t lanes = m->plan->lane_count;
    m->job->in_vain = lanes >= MANY_LANES && has_lengths(&m->model.iteration);
    if (lanes > MOST_LANES || m->job->in_vain)
        return pleat__fail(PLEAT_E_LIMIT, "%u lanes", lanes);
    return make_terms(m);
}

/* Lanes of so many eighths of the size they should have. */
static void cut_lanes(making *m, uint32_t eighths)
{
    uint32_t slots = m->plan->steady.slot_count;
    for (uint32_t l = 0; l < m->plan->lane_count; l++)
        m->terms[slots + l].bytes = m->plan->lanes[l].bytes / 8 * eighths;
}

/* In the pages that there are: with all that the slots leave as the lanes' margin, then with what
 * the slots' peak leaves. Lanes are as large as their requests ever were together, and all are so
 * at the same time: where that is more than there is, some requests go without. */
static pleat_result lay_out_around(making *m, uint32_t least)
{
    pleat__maker *maker = &m->job->maker;
    uint32_t eighths = 8;
    bool done;
    PLEAT_TRY(make_lanes(m, room_of(m)));
    PLEAT_TRY(sweep(m, &done));
    if (!done) {
        PLEAT_TRY(make_lanes(m, 0));
        PLEAT_TRY(sweep(m, &done));
    }
    while (!done && eighths > least) {
        cut_lanes(m, --eighths);
        PLEAT_TRY(sweep(m, &done));
    }
    m->job->made.eighths = eighths;
    return done ? PLEAT_OK
                : pleat__fail(PLEAT_E_LIMIT, "%u pages do not hold the iteration", maker->pages);
}

/* Around what crosses too where that costs no lane anything: the first iteration is then served as
 * those behind it. */
static pleat_result lay_out(making *m)
{
    bool crosses = sort_obstacles(m);
    m->job->maker.scale = &m->scale;
    m->job->maker.x = &only;
    pleat_result result = lay_out_around(m, crosses ? 8 : m->job->least);
    if (!crosses || result != PLEAT_E_LIMIT)
        return result;
    drop_crossing(m);
    return lay_out_around(m, m->job->least);
}

/* Where each stream's views begin among all, in pages of the window; the job of a stream. */
static uint64_t views_of(const making *m, uint16_t stream)
{
    const pleat__maker *maker = &m->job->maker;
    uint64_t page = m->job->view_page;
    for (uint32_t j = 0; j < maker->jobs.count; j++) {
        const pleat__fold_job *fold = &maker->jobs.jobs[j];
        if (fold->birth_count != 0 && maker->items[fold->births[0]].stream == stream)
            return page;
        page += maker->tries[j].view_pages;
    }
    return m->job->view_page;
}

/* Bytes from the window's start. */
static uint64_t place_of(const making *m, uint32_t term)
{
    const pleat__maker *maker = &m->job->maker;
    uint64_t at = maker->places[term], page = m->job->seen.page_bytes;
    return at < PLEAT__IN_VIEWS
               ? maker->home0 * page + at
               : views_of(m, m->terms[term].stream) * page + (at - PLEAT__IN_VIEWS);
}

static void set_places(making *m)
{
    pleat_plan *plan = m->plan;
    const pleat__maker *maker = &m->job->maker;
    uint32_t slots = plan->steady.slot_count;
    for (uint32_t i = 0; i < slots; i++)
        if (!pleat__term_is_loose(&m->terms[i]) && maker->items[i].size != 0)
            plan->steady.slots[i].place = place_of(m, i);
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        plan->lanes[l].place = place_of(m, slots + l);
        plan->lanes[l].bytes = maker->items[slots + l].size;
    }
}

static pleat_result make_pages(making *m)
{
    const pleat__maker *maker = &m->job->maker;
    uint64_t homes = maker->home0 + maker->pages, views = m->job->view_page + m->view_pages;
    uint64_t count = homes > views ? homes : views, page = m->job->view_page;
    m->pages = pleat__arena_alloc(m->scratch, count * sizeof *m->pages);
    if (m->pages == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu pages",
                           (unsigned long long)count);
    for (uint64_t p = 0; p < count; p++)
        m->pages[p] = UINT32_MAX;
    for (uint32_t p = 0; p < maker->pages; p++)
        m->pages[maker->home0 + p] = maker->chunk_at[p];
    for (uint32_t j = 0; j < maker->jobs.count; j++)
        for (uint32_t v = 0; v < maker->tries[j].view_pages; v++)
            m->pages[page++] = maker->chunk_at[maker->tries[j].views[v]];
    return PLEAT_OK;
}

/* ---- views ---- */

/* The next pages, with the turn and the lock, which is left for the verbs. */
static pleat_result map_some(making *m, uint32_t *mapped)
{
    pleat__draft_job *job = m->job;
    pleat__chunk *run[BATCH];
    uint64_t page = job->view_page + *mapped;
    uint32_t handles = 0, pages = 0, left = m->view_pages - *mapped;
    while (!job->stale && pages < left && handles < BATCH) {
        const uint32_t *chunks = &m->pages[page + pages];
        uint32_t more = pleat__pool_whole(job->pool, chunks, left - pages, 1);
        if (more == 0)
            break;
        run[handles++] = job->pool->chunks[chunks[0]];
        pages += more;
    }
    if (handles == 0)
        return pleat__fail(PLEAT_E_STATE, "chunks were given back");
    pleat__gate_leave(job->gate);
    pleat_result result = pleat__space_map(job->pool->space, page, run, handles);
    pleat__gate_enter(job->gate);
    if (result == PLEAT_OK) {
        job->pool->view_pages += pages;
        job->mapped += pages;
        *mapped += pages;
    }
    return result;
}

void pleat__draft_unmap(pleat__draft_job *job)
{
    uint32_t pages = job->mapped;
    job->mapped = 0;
    if (pages != 0)
        pleat__pool_unview(job->pool, job->view_page, pages);
}

/* The turn, while no stream captures: a verb would fail a capture in the driver's global mode. */
static void take_turn(const pleat__draft_job *job)
{
    for (;;) {
        pleat__gate_let_pass(job->gate);
        pleat__gate_lock_turn(job->gate);
        if (job->gate->captured_count == 0 || job->ending)
            return;
        pleat__gate_unlock(job->gate);
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

static pleat_result map_views(making *m)
{
    pleat__gate *gate = m->job->gate;
    pleat_result result = PLEAT_OK;
    for (uint32_t mapped = 0; mapped < m->view_pages && result == PLEAT_OK;) {
        take_turn(m->job);
        result = map_some(m, &mapped);
        if (result != PLEAT_OK)
            pleat__draft_unmap(m->job);
        pleat__gate_unlock(gate);
    }
    return result;
}

/* Chunks that no slot and no lane ever needs: where the plan before served badly, what finds its
 * lane full goes there first, and not where a slot of thousands of chunks would find it. As many as
 * may be spared for that. */
static void grow_spare(const making *m)
{
    pleat__draft_job *job = m->job;
    if (!job->again || m->scale.count == 0)
        return;
    /* Pages without a chunk are in the way like what outlives iterations, and counted so. */
    uint32_t missing = pleat__maker_missing(&job->maker), needed = 0;
    for (uint32_t j = 0; j < job->maker.jobs.count; j++)
        needed += job->maker.jobs.jobs[j].floor;
    if (needed < missing)
        return;
    needed -= missing;
    uint64_t wanted = (uint64_t)needed * job->heap->account.permille / 1000;
    uint32_t there = job->maker.pages - missing;
    take_turn(job);
    /* Where there is no memory for it, or it is wanted back, there is none. */
    if (!job->stale && there < needed + wanted)
        (void)!pleat__heap_grow(job->heap, 0, (uint32_t)(needed + wanted - there), NULL);
    pleat__gate_unlock(job->gate);
}

/* ---- all of it ---- */

static pleat_result make_instance(making *m)
{
    pleat__draft_job *job = m->job;
    pleat__instance *instance;
    PLEAT_TRY(pleat__instance_new(job->arena, 1, &only, &instance));
    /* What came before the iteration comes no more. */
    m->plan->first.slot_count = 0;
    m->plan->first.phase_count = 0;
    pleat_result result =
        pleat__follow_draft(job->arena, &job->seen, m->plan, m->pages, &instance->follow);
    if (result == PLEAT_OK)
        result = map_views(m);
    if (result != PLEAT_OK) {
        pleat__instance_release(instance, job->arena);
        return result;
    }
    instance->views[0] = (pleat__page_run){job->view_page, m->view_pages};
    instance->view_runs = m->view_pages != 0;
    instance->view_pages = m->view_pages;
    job->made.instance = instance;
    job->made.plan = m->plan;
    m->plan = NULL;
    return PLEAT_OK;
}

static pleat_result make(making *m)
{
    PLEAT_TRY(pleat__plan_new(&m->plan));
    PLEAT_TRY(pleat__arena_create(&m->scratch));
    PLEAT_TRY(make_model(m));
    pleat_result result = lay_out(m);
    grow_spare(m);
    PLEAT_TRY(result);
    PLEAT_TRY(make_pages(m));
    set_places(m);
    return make_instance(m);
}

pleat_result pleat__draft_make(void *context, pleat_result ready)
{
    making m = {.job = context};
    pleat__draft_job *job = m.job;
    pleat_result result = ready == PLEAT_OK ? make(&m) : ready;
    uint64_t used = job->made.instance != NULL ? m.view_pages : 0;
    if (used < job->view_room)
        pleat__space_give(job->pool->space, job->view_page + used, job->view_room - used);
    pleat__maker_unpose(&job->maker);
    pleat__arena_destroy(m.scratch);
    if (m.plan != NULL)
        pleat_plan_free(m.plan);
    /* A recording's clock may start again. */
    uint64_t now = pleat__account_now(&job->heap->account);
    job->took_ns = now > job->begun_ns ? now - job->begun_ns : 0;
    return result;
}
