/*
 * lanes.c: see lanes.h.
 */
#include <plan/lanes/lanes.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>
#include <string.h>

/* A pause that stands for: no windows, a lane for each request. */
#define ALONE 0u

/* What a lane gets beyond its need, at most, in millionths of it (docs/decisions.md, D620). */
#define MARGIN 150000u

/* A dynamic slot that is freed within an iteration. */
typedef struct member {
    uint32_t slot;
    uint32_t rank; /* among the dynamic slots: its column in `sizes` */
    uint32_t window;
    uint32_t lane;
} member;

typedef struct lane_job {
    pleat_plan *plan;
    pleat__arena *scratch;
    const uint64_t *sizes;
    uint32_t profiles;
    uint32_t dynamic;
    member *members;
    uint32_t count;
    uint64_t *keys; /* by member or event */
    uint32_t *order;
    uint32_t *spare;
    uint32_t *events; /* positions at which a member comes or goes, ascending */
    int64_t *curve;   /* by position: live bytes that come and go there */
    pleat__item *lanes;
    uint64_t *least; /* of each lane: the smallest of its profiles' needs */
    uint32_t lane_count;
} lane_job;

static const pleat__slot *slot_of(const lane_job *job, uint32_t m)
{
    return &job->plan->steady.slots[job->members[m].slot];
}

static uint64_t size_in(const lane_job *job, uint32_t profile, uint32_t m)
{
    return pleat__rounded(job->sizes[(uint64_t)profile * job->dynamic + job->members[m].rank]);
}

static pleat_result allocate(lane_job *job)
{
    pleat_plan *plan = job->plan;
    job->dynamic = pleat__dynamic_requests(plan);
    uint64_t count = job->dynamic, events = plan->steady.events + 1ull;
    job->members = pleat__arena_calloc(job->scratch, count + 1, sizeof *job->members);
    job->keys = pleat__arena_calloc(job->scratch, 2 * count + 1, sizeof *job->keys);
    job->order = pleat__arena_calloc(job->scratch, 2 * count + 1, sizeof *job->order);
    job->spare = pleat__arena_calloc(job->scratch, 2 * count + 1, sizeof *job->spare);
    job->events = pleat__arena_calloc(job->scratch, 2 * count + 1, sizeof *job->events);
    job->curve = pleat__arena_calloc(job->scratch, events, sizeof *job->curve);
    job->lanes = pleat__arena_calloc(job->scratch, count + 1, sizeof *job->lanes);
    job->least = pleat__arena_calloc(job->scratch, count + 1, sizeof *job->least);
    if (job->members == NULL || job->keys == NULL || job->order == NULL || job->spare == NULL ||
        job->events == NULL || job->curve == NULL || job->lanes == NULL || job->least == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the lanes of %u requests",
                           job->dynamic);
    return PLEAT_OK;
}

static void free_job(lane_job *job)
{
    pleat__arena_free(job->scratch, job->members);
    pleat__arena_free(job->scratch, job->keys);
    pleat__arena_free(job->scratch, job->order);
    pleat__arena_free(job->scratch, job->spare);
    pleat__arena_free(job->scratch, job->events);
    pleat__arena_free(job->scratch, job->curve);
    pleat__arena_free(job->scratch, job->least);
}

static void list_members(lane_job *job)
{
    const pleat__sequence *steady = &job->plan->steady;
    uint32_t rank = 0;
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC)
            continue;
        if (slot->free_at != PLEAT__NEVER && slot->size != 0)
            job->members[job->count++] = (member){.slot = i, .rank = rank};
        rank++;
    }
}

/* A profile's requests may have been live one by one where the iteration's are live together. */
static pleat_result check_sums(const lane_job *job)
{
    for (uint32_t p = 0; p < job->profiles; p++) {
        uint64_t total = 0;
        for (uint32_t m = 0; m < job->count; m++)
            if (!pleat__add(total, size_in(job, p, m), &total) || total > UINT64_MAX / 4)
                return pleat__fail(PLEAT_E_INPUT,
                                   "an iteration's dynamic requests add up to 2^62 bytes");
    }
    return PLEAT_OK;
}

/* job->events: where members come and go. */
static void list_events(lane_job *job)
{
    for (uint32_t m = 0; m < job->count; m++) {
        job->keys[2 * m] = slot_of(job, m)->alloc_at;
        job->keys[2 * m + 1] = slot_of(job, m)->free_at;
        job->order[2 * m] = 2 * m;
        job->order[2 * m + 1] = 2 * m + 1;
    }
    pleat__sort_by_key(job->order, job->spare, 2ull * job->count, job->keys);
    for (uint32_t i = 0; i < 2 * job->count; i++)
        job->events[i] = (uint32_t)job->keys[job->order[i]];
}

/* Numbers the windows that pauses of more than `pause` positions cut, into job->spare by event. */
static void cut_windows(lane_job *job, uint32_t pause)
{
    for (uint32_t i = 0, window = 0; i < 2 * job->count; i++) {
        window += i > 0 && job->events[i] - job->events[i - 1] > pause;
        job->spare[i] = window;
    }
}

static uint32_t window_at(const lane_job *job, uint32_t position)
{
    uint32_t at;
    PLEAT__FIRST(at, 2 * job->count - 1, job->events[at] >= position);
    return job->spare[at];
}

/* Extends a lane's life over a member's. What wraps around makes the lane wrap around. */
static void cover(const lane_job *job, pleat__item *lane, const pleat__slot *slot)
{
    uint32_t horizon = job->plan->steady.events;
    uint64_t end =
        slot->free_at <= slot->alloc_at ? (uint64_t)slot->free_at + horizon : slot->free_at;
    uint64_t lane_end = lane->end <= lane->begin ? (uint64_t)lane->end + horizon : lane->end;
    if (lane->size == 0 || slot->alloc_at < lane->begin)
        lane->begin = slot->alloc_at;
    if (lane->size == 0 || end > lane_end)
        lane_end = end;
    lane->size = 1;
    if (lane_end >= (uint64_t)lane->begin + horizon) {
        lane->begin = 0;
        lane->end = horizon;
    } else {
        lane->end = (uint32_t)(lane_end > horizon ? lane_end - horizon : lane_end);
    }
}

/* One lane for each stream and pair of windows that some member has; with ALONE one for each
 * member.
 */
static void group(lane_job *job, uint32_t pause)
{
    cut_windows(job, pause);
    for (uint32_t m = 0; m < job->count; m++) {
        const pleat__slot *slot = slot_of(job, m);
        uint64_t alloc = window_at(job, slot->alloc_at), free = window_at(job, slot->free_at);
        bool wraps = slot->free_at <= slot->alloc_at;
        job->members[m].window = (uint32_t)alloc;
        job->keys[m] = pause == ALONE ? m
                                      : (uint64_t)slot->stream << 48 | (alloc & 0x7fffff) << 25 |
                                            (free & 0xffffff) << 1 | wraps;
        job->order[m] = m;
    }
    pleat__sort_by_key(job->order, job->spare, job->count, job->keys);
    job->lane_count = 0;
    for (uint32_t i = 0; i < job->count; i++) {
        uint32_t m = job->order[i];
        const pleat__slot *slot = slot_of(job, m);
        if (i == 0 || job->keys[m] != job->keys[job->order[i - 1]])
            job->lanes[job->lane_count++] =
                (pleat__item){.fixed = UINT64_MAX, .stream = slot->stream};
        job->members[m].lane = job->lane_count - 1;
        cover(job, &job->lanes[job->lane_count - 1], slot);
    }
}

/* How much a lane gets whose needs in the profiles are `least` to `most`. With k profiles a further
 * one that goes beyond the largest does so by about a k-th of their spread. In millionths: the same
 * everywhere. */
static uint64_t with_margin(const lane_job *job, uint64_t least, uint64_t most)
{
    uint64_t millionths = MARGIN;
    if (job->profiles > 1) {
        uint64_t unit = most / 1000000 + 1;
        uint64_t spread = (most - least) / unit / job->profiles;
        millionths = spread < millionths ? spread : millionths;
    }
    return pleat__rounded(most + (most / 1000000 + 1) * millionths);
}

static void reset_sizes(lane_job *job)
{
    for (uint32_t l = 0; l < job->lane_count; l++) {
        job->lanes[l].size = 0;
        job->least[l] = UINT64_MAX;
    }
}

static void take_need(lane_job *job, uint32_t lane, uint64_t need)
{
    job->lanes[lane].size = need > job->lanes[lane].size ? need : job->lanes[lane].size;
    job->least[lane] = need < job->least[lane] ? need : job->least[lane];
}

/* Sums that stay the same of parts that do not: each part is rounded up. */
static void add_margins(lane_job *job)
{
    for (uint32_t l = 0; l < job->lane_count; l++)
        job->lanes[l].size = with_margin(job, job->least[l], job->lanes[l].size);
    for (uint32_t m = 0; m < job->count; m++)
        job->lanes[job->members[m].lane].size += PLEAT__ALIGNMENT;
}

static void add_life(int64_t *curve, uint32_t events, uint32_t begin, uint32_t end, uint64_t size)
{
    curve[begin] += (int64_t)size;
    curve[end] -= (int64_t)size;
    if (end <= begin) {
        curve[0] += (int64_t)size;
        curve[events] -= (int64_t)size;
    }
}

/* Live bytes at the iteration's peak when the lanes take their sizes all their life. */
static uint64_t peak_with_lanes(lane_job *job)
{
    const pleat__sequence *steady = &job->plan->steady;
    memset(job->curve, 0, (steady->events + 1ull) * sizeof *job->curve);
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC && slot->free_at != PLEAT__NEVER)
            add_life(job->curve, steady->events, slot->alloc_at, slot->free_at,
                     pleat__rounded(slot->size));
    }
    for (uint32_t l = 0; l < job->lane_count; l++)
        add_life(job->curve, steady->events, job->lanes[l].begin, job->lanes[l].end,
                 job->lanes[l].size);
    int64_t live = 0, most = 0;
    for (uint32_t t = 0; t < steady->events; t++) {
        live += job->curve[t];
        most = live > most ? live : most;
    }
    return (uint64_t)most;
}

/* The lanes' sizes by what a best fit needs in each profile, which tells what requests of unlike
 * lives cost each other. */
static pleat_result size_by_fit(lane_job *job)
{
    pleat__lane_request *requests =
        pleat__arena_alloc(job->scratch, (job->count + 1ull) * sizeof *requests);
    if (requests == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fit %u requests", job->count);
    for (uint32_t m = 0; m < job->count; m++) {
        job->keys[m] = job->members[m].lane;
        job->order[m] = m;
    }
    pleat__sort_by_key(job->order, job->spare, job->count, job->keys);
    reset_sizes(job);
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < job->count && result == PLEAT_OK;) {
        uint32_t lane = job->members[job->order[i]].lane, first = i;
        while (i < job->count && job->members[job->order[i]].lane == lane)
            i++;
        for (uint32_t p = 0; p < job->profiles && result == PLEAT_OK; p++) {
            uint32_t count = 0;
            for (uint32_t j = first; j < i; j++) {
                const pleat__slot *slot = slot_of(job, job->order[j]);
                uint64_t size = size_in(job, p, job->order[j]);
                if (size != 0)
                    requests[count++] = (pleat__lane_request){size, slot->alloc_at, slot->free_at};
            }
            uint64_t height;
            result = pleat__lane_fit(requests, count, job->scratch, &height);
            take_need(job, lane, height);
        }
    }
    pleat__arena_free(job->scratch, requests);
    add_margins(job);
    return result;
}

/* The grouping whose lanes need least at the peak; of equals the one with the longest pause. A lane
 * for each request is best where all sizes follow one number, a sequence's length: they are at
 * their largest together then. */
static pleat_result choose_grouping(lane_job *job)
{
    uint64_t best = UINT64_MAX;
    uint32_t chosen = ALONE;
    for (uint32_t pause = 1024; pause != ALONE; pause = pause > 8 ? pause / 2 : ALONE) {
        group(job, pause);
        PLEAT_TRY(size_by_fit(job));
        uint64_t peak = peak_with_lanes(job);
        if (peak < best) {
            best = peak;
            chosen = pause;
        }
    }
    group(job, ALONE);
    PLEAT_TRY(size_by_fit(job));
    /* Thousands of lanes for a percent are not worth it. */
    if (peak_with_lanes(job) < best - best / 100)
        chosen = ALONE;
    group(job, chosen);
    return size_by_fit(job);
}

/* Writes the lanes and who is in them into the plan. */
static pleat_result keep_lanes(lane_job *job)
{
    pleat_plan *plan = job->plan;
    plan->lanes = pleat__arena_calloc(plan->arena, job->lane_count, sizeof *plan->lanes);
    if (plan->lanes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u lanes", job->lane_count);
    plan->lane_count = job->lane_count;
    for (uint32_t l = 0; l < job->lane_count; l++)
        plan->lanes[l] = (pleat__lane){.place = PLEAT__NOWHERE,
                                       .bytes = job->lanes[l].size,
                                       .begin_at = job->lanes[l].begin,
                                       .end_at = job->lanes[l].end};
    for (uint32_t m = 0; m < job->count; m++) {
        pleat__slot *slot = &plan->steady.slots[job->members[m].slot];
        slot->lane = job->members[m].lane;
        slot->window = job->members[m].window;
    }
    return PLEAT_OK;
}

static pleat_result make_lanes(lane_job *job)
{
    PLEAT_TRY(allocate(job));
    list_members(job);
    if (job->count == 0)
        return PLEAT_OK;
    PLEAT_TRY(check_sums(job));
    list_events(job);
    PLEAT_TRY(choose_grouping(job));
    return keep_lanes(job);
}

pleat_result pleat__lanes_make(pleat_plan *plan, const uint64_t *sizes, uint32_t profiles,
                               pleat__arena *scratch, pleat__item **items)
{
    lane_job job = {.plan = plan, .scratch = scratch, .sizes = sizes, .profiles = profiles};
    pleat_result result = make_lanes(&job);
    free_job(&job);
    if (result != PLEAT_OK) {
        pleat__arena_free(scratch, job.lanes);
        job.lanes = NULL;
    }
    *items = job.lanes;
    return result;
}
