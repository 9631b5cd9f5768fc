/*
 * draft.c: when iterations are recorded, when a draft is made of them, and how long drafts stay
 * (see draft.h).
 *
 * WHEN  Recording begins with the job, and again where a draft served badly for some iterations.
 *       Two whole iterations are enough for a first draft; where it serves badly, half as many
 *       again give a better one. It ends when an iteration or two were served well, or after MOST.
 *       Where none came of it, and not because none is worth it, it begins again like behind one
 *       that serves badly.
 * WELL  An iteration in which next to all requests lay in slots and lanes, and that made no map and
 *       no chunk.
 * STAY  A draft that is not followed any more stays while something lies in one of its lanes or in
 *       a slot of several runs, whose lists are its own.
 */
#include <runtime/learn/draft.h>

#include <internal/check.h>
#include <internal/error.h>
#include <runtime/learn/draft_make.h>
#include <string.h>

#define ENOUGH 2u
#define MOST   PLEAT__DRAFT_ITERATIONS
/* Iterations in a row that end recording, served so; or begin it again. */
#define WELL 2u
#define POOR 2u
/* One request in so many may lie elsewhere in an iteration that is served well. */
#define ELSEWHERE 50u
/* A try that did not help is followed by a rest, each twice as long as the one before. */
#define REST       16u
#define MOST_TRIES 8u
/* Events that are recorded, of 32 bytes each; and before the first mark, or before iterations are
 * found without: three or four of them. */
#define EVENTS       (UINT64_C(3) << 20)
#define EARLY_EVENTS (UINT64_C(1) << 19)
/* Lanes are cut down to so many eighths of their size, at least, and never to less than those that
 * are followed and serve badly. */
#define LEAST_EIGHTHS 4u
/* Address space for views: one page in so many of the pool. */
#define VIEW_SHARE 2u
#define FEW_VIEWS  64u

void pleat__draft_init(pleat__draft *draft, pleat__arena *arena, pleat__heap *heap,
                       const pleat__placed *placed, pleat_stats *stats)
{
    *draft = (pleat__draft){.arena = arena, .heap = heap, .placed = placed, .stats = stats};
}

/* The views stay mapped: the space unmaps what is left. */
static void forget(pleat__draft *draft, uint32_t at)
{
    pleat__drafted *made = &draft->made[at];
    pleat__instance_release(made->instance, draft->arena);
    pleat_plan_free(made->plan);
    draft->made[at] = draft->made[--draft->made_count];
}

static void job_free(pleat__draft *draft)
{
    pleat__draft_job *job = draft->job;
    draft->job = NULL;
    pleat_trace_free(job->trace);
    pleat__arena_free(draft->arena, job->events);
    pleat__arena_free(draft->arena, job->owner);
    pleat__arena_free(draft->arena, job);
}

void pleat__draft_release(pleat__draft *draft)
{
    if (draft->arena == NULL)
        return;
    pleat__gate *gate = draft->heap->pool->gate;
    pleat__gate_lock(gate);
    if (draft->job != NULL) {
        draft->job->stale = true;
        draft->job->ending = true;
    }
    pleat__gate_unlock(gate);
    pleat__mapper_destroy(draft->worker);
    if (draft->job != NULL && draft->job->made.instance != NULL)
        draft->made[draft->made_count++] = draft->job->made;
    if (draft->job != NULL)
        job_free(draft);
    while (draft->made_count != 0)
        forget(draft, draft->made_count - 1);
    pleat__record_release(&draft->record);
    *draft = (pleat__draft){0};
}

/* ---- recording ---- */

void pleat__draft_end(pleat__draft *draft)
{
    draft->wanted = false;
    draft->whole = 0;
    /* One that is being made may say that the first iteration was none: there is no such any more.
     */
    draft->early = false;
    pleat__record_release(&draft->record);
}

/* No plan will end the stitching. */
void pleat__draft_settle(pleat__draft *draft)
{
    pleat__draft_end(draft);
    draft->missed = false;
    pleat__account_grant(&draft->heap->account, false);
}

void pleat__draft_rest(pleat__draft *draft, uint32_t iterations)
{
    pleat__draft_settle(draft);
    pleat__draft_shrunk(draft);
    draft->vain = iterations;
    draft->poor = 0;
    draft->rest = 0;
    draft->tries = 0;
}

void pleat__draft_tire(pleat__draft *draft)
{
    if (draft->record.complete && draft->begin_count == 0)
        pleat__draft_want(draft);
}

void pleat__draft_want(pleat__draft *draft)
{
    if (!draft->on || draft->vain != 0)
        return;
    pleat__draft_end(draft);
    pleat__account_grant(&draft->heap->account, true);
    draft->wanted = true;
}

/* What is allocated already, as if it were allocated now; streams are numbered as the heap's. */
static pleat_result record_live(pleat__draft *draft)
{
    const pleat__placed *placed = draft->placed;
    uint16_t index;
    for (uint32_t i = 0; i < draft->heap->stream_count; i++)
        PLEAT_TRY(pleat_trace_add_stream(draft->record.trace, draft->heap->streams[i], &index));
    for (uint32_t i = 0; i <= placed->mask; i++) {
        const pleat__place *place = &placed->entries[i];
        if (place->address != 0 && place->lane != PLEAT__UNCHECKED)
            pleat__record_alloc(&draft->record, place->address,
                                ((uint64_t)place->granules << PLEAT__GRANULE_SHIFT) - place->slack,
                                draft->heap->streams[place->stream]);
    }
    return draft->record.failed;
}

static void note_begin(pleat__draft *draft);

/* `early`: before the job's first request. */
static void begin(pleat__draft *draft, bool early)
{
    const pleat_record_options options = {.size = sizeof options,
                                          .events = early ? EARLY_EVENTS : EVENTS};
    draft->wanted = false;
    draft->whole = 0;
    draft->begin_count = 0;
    draft->early = early;
    draft->due = ENOUGH;
    /* Those that share memory are not told apart: no plan will end the stitching. */
    if (draft->heap->stream_count > PLEAT__BEYOND) {
        pleat__draft_settle(draft);
        return;
    }
    if (pleat__record_begin(&draft->record, draft->arena, draft->heap->device, 0, &options) !=
            PLEAT_OK ||
        record_live(draft) != PLEAT_OK)
        pleat__draft_end(draft);
    else if (!early)
        note_begin(draft);
}

void pleat__draft_start(pleat__draft *draft, bool waits, bool early)
{
    draft->on = true;
    draft->waits = waits;
    draft->wanted = !early;
    pleat__account_grant(&draft->heap->account, true);
    if (early)
        begin(draft, true);
}

/* The next iteration begins here. */
static void note_begin(pleat__draft *draft)
{
    /* Without an event there is none to begin before it. */
    size_t events = pleat_trace_event_count(draft->record.trace);
    if (draft->begin_count <= MOST && events != 0)
        draft->begins[draft->begin_count++] = events;
    draft->record.most_events = EVENTS;
    draft->whole = draft->begin_count == 0 ? 0 : draft->begin_count - 1 + draft->early;
}

void pleat__draft_found(pleat__draft *draft, uint32_t length, uint32_t ahead, uint32_t repeats,
                        uint32_t first)
{
    if (!pleat__records(&draft->record) || draft->begin_count != 0)
        return;
    const pleat_trace_event *events = pleat_trace_events(draft->record.trace);
    size_t at = pleat_trace_event_count(draft->record.trace);
    uint64_t left = ahead, count = repeats < MOST - 2 ? repeats : MOST - 2;
    bool has_first = first != 0 && count == repeats;
    size_t begins[MOST];
    uint32_t found = 0;
    if (ahead == 0) {
        begins[found++] = at;
        left = length;
    }
    /* From the last one back; the one whose beginning is not there any more is none. */
    while (at > 0 && found <= count + has_first) {
        at--;
        left -= events[at].kind == PLEAT_EVENT_ALLOC;
        if (left == 0) {
            begins[found++] = at;
            left = found <= count ? length : first;
        }
    }
    for (uint32_t i = 0; i < found; i++)
        draft->begins[i] = begins[found - 1 - i];
    draft->begin_count = found;
    draft->early = false;
    draft->record.most_events = EVENTS;
    draft->whole = found == 0 ? 0 : found - 1;
}

/* ---- how it goes ---- */

static bool was_well(const pleat__served *served)
{
    return served->paid_ns == 0 && !served->grew && served->elsewhere * ELSEWHERE <= served->asked;
}

/* One that served badly although a few were tried is left for a while. */
static void judge(pleat__draft *draft, bool well)
{
    draft->well = well ? draft->well + 1 : 0;
    draft->poor = well ? 0 : draft->poor + 1;
    draft->rest -= draft->rest != 0;
    if (draft->record.trace != NULL) {
        if (draft->well >= WELL || draft->whole >= MOST || draft->record.complete)
            pleat__draft_end(draft);
        return;
    }
    if (draft->wanted || draft->poor < POOR || draft->rest != 0)
        return;
    pleat__draft_want(draft);
    draft->poor = 0;
    draft->rest = REST << draft->tries;
    draft->tries += draft->tries < MOST_TRIES;
}

/* Enough was recorded, and no draft is followed. What was in the way of those that were tried may
 * be gone later: the odd iterations of a beginning, other threads' tensors. */
static void give_up(pleat__draft *draft)
{
    bool missed = draft->missed;
    pleat__draft_settle(draft);
    draft->missed = missed;
}

static void bury(pleat__draft *draft);

void pleat__draft_mark(pleat__draft *draft, bool ours)
{
    bury(draft);
    pleat__served_mark(&draft->served, draft->heap, draft->stats);
    if (!draft->on)
        return;
    bool well = was_well(&draft->served);
    draft->vain -= draft->vain != 0;
    pleat__draft_tire(draft);
    if (pleat__records(&draft->record))
        note_begin(draft);
    if (ours)
        judge(draft, well);
    else if (draft->whole >= MOST || draft->record.complete)
        give_up(draft);
    else if (draft->missed && draft->record.trace == NULL)
        judge(draft, well);
    if (draft->wanted)
        begin(draft, false);
}

bool pleat__draft_is_due(const pleat__draft *draft, bool ours)
{
    return draft->on && draft->job == NULL && draft->record.trace != NULL &&
           draft->record.failed == PLEAT_OK && draft->whole >= draft->due &&
           (!ours || draft->poor != 0);
}

/* ---- making one ---- */

static uint32_t find(const pleat__draft *draft, const pleat__follow *follow)
{
    uint32_t i = 0;
    while (i < draft->made_count && draft->made[i].instance->follow != follow)
        i++;
    return i;
}

static bool crosses_none(const void *context, pleat_va address)
{
    (void)context;
    (void)address;
    return false;
}

/* The request in the trace that each obstacle is. */
static pleat_result name_owners(pleat__draft *draft, pleat__draft_job *job)
{
    const pleat__maker *maker = &job->maker;
    job->owner =
        pleat__arena_alloc(draft->arena, (maker->obstacle_count + 1u) * sizeof *job->owner);
    if (job->owner == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for what is allocated");
    for (uint32_t i = 0; i < maker->obstacle_count; i++) {
        uint32_t request;
        bool known = maker->obstacles[i].address != 0 &&
                     pleat__record_find(&draft->record, maker->obstacles[i].address, &request);
        job->owner[i] = known ? request + 1 : 0;
    }
    return PLEAT_OK;
}

static pleat_result prepare(pleat__draft *draft, pleat__draft_job *job)
{
    pleat__pool *pool = draft->heap->pool;
    const pleat__ground ground = {.arena = draft->arena,
                                  .heap = draft->heap,
                                  .placed = draft->placed,
                                  .crosses = crosses_none};
    job->maker.ground = &ground;
    job->maker.pool = pool;
    PLEAT_TRY(pleat__maker_gather(&job->maker));
    job->maker.ground = NULL;
    job->maker.pool = &job->seen;
    PLEAT_TRY(name_owners(draft, job));
    job->view_room = job->maker.pages / VIEW_SHARE + FEW_VIEWS;
    PLEAT_TRY(pleat__record_snapshot(&draft->record, draft->arena, &job->trace, &job->events,
                                     &job->event_count));
    if (draft->worker == NULL)
        PLEAT_TRY(pleat__mapper_create(pool->space, draft->arena, 1, &draft->worker));
    return pleat__space_take(pool->space, job->view_room, &job->view_page);
}

bool pleat__draft_submit(pleat__draft *draft, const pleat__follow *followed)
{
    uint32_t at = find(draft, followed);
    bool again = at < draft->made_count;
    pleat__pool *pool = draft->heap->pool;
    pleat__draft_job *job = pleat__arena_calloc(draft->arena, 1, sizeof *job);
    if (job == NULL || draft->made_count + 1 >= PLEAT__DRAFTS) {
        pleat__arena_free(draft->arena, job);
        return false;
    }
    *job = (pleat__draft_job){
        .job = {.kind = PLEAT__JOB_CALL, .call = pleat__draft_make, .context = job},
        .arena = draft->arena,
        .gate = pool->gate,
        .pool = pool,
        .heap = draft->heap,
        .again = again,
        .begin_count = draft->begin_count,
        .begun_ns = pleat__account_now(&draft->heap->account),
        .early = draft->early,
        .least = again ? draft->made[at].eighths : LEAST_EIGHTHS,
        .seen = *pool,
        .maker = {.arena = draft->arena, .as_it_is = true, .thorough = true}};
    memcpy(job->begins, draft->begins, sizeof job->begins);
    draft->job = job;
    pleat_result result = prepare(draft, job);
    if (result == PLEAT_OK) {
        result = pleat__mapper_submit(draft->worker, &job->job);
        if (result != PLEAT_OK)
            pleat__space_give(pool->space, job->view_page, job->view_room);
    }
    /* The next one with half as many iterations again. */
    draft->due = draft->whole + draft->whole / 2;
    if (result == PLEAT_OK)
        return true;
    pleat__maker_unpose(&job->maker);
    job_free(draft);
    return false;
}

/* Numbers that no draft's lanes have; false: there are not so many. */
static bool number_lanes(const pleat__draft *draft, pleat__follow *follow)
{
    uint32_t base = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (uint32_t i = 0; i < draft->made_count; i++) {
            const pleat__follow *other = draft->made[i].instance->follow;
            if (base < other->lane_base + other->lane_count &&
                other->lane_base < base + follow->lane_count) {
                base = other->lane_base + other->lane_count;
                moved = true;
            }
        }
    }
    follow->lane_base = base;
    return base + follow->lane_count <= PLEAT__MOST_LANES;
}

bool pleat__draft_is_over(const pleat__draft *draft)
{
    /* One that waits for the end of a capture is not waited for: who captures may be who asks. */
    bool awaited = draft->waits && draft->heap->pool->gate->captured_count == 0;
    return draft->job != NULL && !draft->waiting && (awaited || pleat__job_done(&draft->job->job));
}

pleat__follow *pleat__draft_take(pleat__draft *draft)
{
    pleat__draft_job *job = draft->job;
    draft->stats->drafts_awaited += !pleat__job_done(&job->job);
    draft->waiting = true;
    pleat__gate *gate = draft->heap->pool->gate;
    pleat_result result = pleat__gate_await_job(gate, draft->worker, &job->job);
    /* Who gave it up may be unmapping its views, without the lock. */
    if (job->stale)
        pleat__gate_await_turn(gate);
    draft->waiting = false;
    draft->served.chunks = pleat__served_chunks(draft->heap);
    pleat__drafted made = job->made;
    draft->stats->draft_ns += job->took_ns;
    bool none_early = job->none_early;
    if (none_early && draft->early) {
        draft->early = false;
        draft->whole--;
        draft->due = ENOUGH;
    }
    bool in_vain = job->in_vain, stale = job->stale, has_views = job->mapped != 0;
    job_free(draft);
    if (in_vain) {
        pleat__draft_settle(draft);
        uint32_t vain = REST << draft->vains;
        draft->vain = draft->vain > vain ? draft->vain : vain;
        draft->vains += draft->vains < MOST_TRIES;
    }
    draft->missed = (result != PLEAT_OK || stale) && !in_vain && !none_early && draft->vain == 0;
    if (result != PLEAT_OK) {
        draft->stats->drafts_refused += !none_early;
        return NULL;
    }
    if (stale && !has_views && made.instance->view_pages != 0) {
        /* Given up while it waited: its views are gone. */
        pleat__space_give(draft->heap->pool->space, made.instance->views[0].page,
                          made.instance->view_pages);
        made.instance->view_pages = 0;
        made.instance->view_runs = 0;
    }
    draft->made[draft->made_count++] = made;
    if (stale || !number_lanes(draft, made.instance->follow)) {
        draft->made[draft->made_count - 1].retired = true;
        draft->stats->drafts_refused++;
        return NULL;
    }
    draft->stats->drafts++;
    draft->stats->draft_maps += made.instance->view_pages;
    return made.instance->follow;
}

void pleat__draft_shrunk(pleat__draft *draft)
{
    if (draft->job != NULL)
        draft->job->stale = true;
}

bool pleat__draft_drop(pleat__draft *draft)
{
    bool any = draft->job != NULL && draft->job->mapped != 0;
    pleat__draft_shrunk(draft);
    if (any)
        pleat__draft_unmap(draft->job);
    for (uint32_t i = 0; i < draft->made_count; i++)
        any = any || (draft->made[i].retired && draft->made[i].instance->view_pages != 0);
    bury(draft);
    return any;
}

/* ---- those that were made ---- */

void pleat__draft_adopt(pleat__draft *draft, pleat__instance *instance)
{
    PLEAT_ASSERT(draft->made_count == 0);
    draft->made[draft->made_count++] = (pleat__drafted){.instance = instance, .retired = true};
    bury(draft);
}

bool pleat__draft_holds(const pleat__draft *draft, const pleat__follow *follow)
{
    return find(draft, follow) < draft->made_count;
}

bool pleat__draft_retire(pleat__draft *draft, const pleat__follow *follow)
{
    uint32_t at = find(draft, follow);
    if (at == draft->made_count)
        return false;
    draft->made[at].retired = true;
    return true;
}

static bool in_use(const pleat__draft *draft, const pleat__drafted *made)
{
    const pleat__follow *follow = made->instance->follow;
    for (uint32_t l = 0; l < follow->lane_count; l++)
        if (follow->lanes[l].live != 0)
            return true;
    return pleat__instance_in_use(made->instance, draft->heap, draft->placed);
}

static void bury(pleat__draft *draft)
{
    for (uint32_t i = draft->made_count; i-- > 0;) {
        pleat__drafted made = draft->made[i];
        if (!made.retired || in_use(draft, &made) ||
            !pleat__instance_free(made.instance, draft->heap))
            continue;
        pleat_plan_free(made.plan);
        draft->made[i] = draft->made[--draft->made_count];
    }
}

pleat__lane_space *pleat__draft_lane(const pleat__draft *draft, uint32_t lane)
{
    for (uint32_t i = 0; i < draft->made_count; i++) {
        pleat__lane_space *found = pleat__follow_lane(draft->made[i].instance->follow, lane);
        if (found != NULL)
            return found;
    }
    return NULL;
}
