/*
 * job.c: cuts a problem into jobs that share no memory, one a stream, and says what each needs
 * at least.
 */
#include <plan/fold/fold_internal.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <stdlib.h>
#include <string.h>

static bool lives_meet(uint32_t begin_a, uint32_t end_a, uint32_t begin_b, uint32_t end_b)
{
    return begin_a < end_b && begin_b < end_a;
}

bool pleat__items_meet(const pleat__problem *problem, uint32_t a, uint32_t b)
{
    const pleat__item *x = &problem->items[a], *y = &problem->items[b];
    bool x_wraps = pleat__item_wraps(problem, x), y_wraps = pleat__item_wraps(problem, y);
    uint32_t x_end = x_wraps ? problem->horizon : x->end;
    uint32_t y_end = y_wraps ? problem->horizon : y->end;
    return lives_meet(x->begin, x_end, y->begin, y_end) ||
           (x_wraps && lives_meet(0, x->end, y->begin, y_end)) ||
           (y_wraps && lives_meet(x->begin, x_end, 0, y->end)) ||
           (x_wraps && y_wraps && x->end != 0 && y->end != 0);
}

/* Largest sum of the sizes of the job's items that are not live always. */
static uint64_t largest_sum(const pleat__fold_job *job)
{
    const pleat__item *items = job->problem->items;
    uint64_t live = 0;
    for (uint32_t i = 0; i < job->birth_count; i++) {
        const pleat__item *item = &items[job->births[i]];
        if (pleat__item_wraps(job->problem, item) && item->end != 0)
            live += item->size;
    }
    uint64_t most = live;
    for (uint32_t i = 0, death = 0; i < job->birth_count; i++) {
        uint32_t now = items[job->births[i]].begin;
        for (; death < job->birth_count && items[job->deaths[death]].end <= now; death++)
            if (items[job->deaths[death]].end != 0)
                live -= items[job->deaths[death]].size;
        live += items[job->births[i]].size;
        most = live > most ? live : most;
    }
    return most;
}

static int compare_runs(const void *a, const void *b)
{
    uint64_t x = ((const pleat__range *)a)->begin, y = ((const pleat__range *)b)->begin;
    return (x > y) - (x < y);
}

/* The runs of pages that fixed items lie on; at most one an item. */
static uint32_t list_fixed_runs(const pleat__fold_jobs *jobs, pleat__range *runs)
{
    const pleat__problem *problem = jobs->problem;
    uint32_t count = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        const pleat__item *item = &problem->items[i];
        if (item->fixed != UINT64_MAX && !pleat__item_empty(problem, item))
            runs[count++] = (pleat__range){item->fixed / jobs->chunk,
                                           pleat__ceil_div(item->fixed + item->size, jobs->chunk)};
    }
    qsort(runs, count, sizeof *runs, compare_runs);
    return count;
}

/* The pages of the runs, each once. */
static pleat_result list_pages(pleat__fold_jobs *jobs, const pleat__range *runs, uint32_t count)
{
    pleat__fold_job *job = &jobs->jobs[0];
    size_t capacity = 0;
    uint64_t next = 0;
    for (uint32_t i = 0; i < count; i++) {
        PLEAT_TRY(pleat__pages_check(runs[i].end));
        next = runs[i].begin > next ? runs[i].begin : next;
        for (; next < runs[i].end; next++) {
            PLEAT_TRY(pleat__arena_grow(jobs->arena, &jobs->fixed_pages, &capacity,
                                        job->fixed_page_count, sizeof *jobs->fixed_pages));
            jobs->fixed_pages[job->fixed_page_count++] = (uint32_t)next;
        }
    }
    job->fixed_pages = jobs->fixed_pages;
    return PLEAT_OK;
}

static pleat_result list_fixed_pages(pleat__fold_jobs *jobs)
{
    uint32_t most = jobs->problem->count;
    pleat__range *runs = pleat__arena_alloc(jobs->arena, (most + 1ull) * sizeof *runs);
    if (runs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", most);
    pleat_result result = list_pages(jobs, runs, list_fixed_runs(jobs, runs));
    pleat__arena_free(jobs->arena, runs);
    return result;
}

/* Holds its bytes always as far as folding goes: also what is fixed and of a stream that does not
 * own the fixed pages. */
static bool holds_always(const pleat__fold_jobs *jobs, uint32_t i)
{
    const pleat__item *item = &jobs->problem->items[i];
    return pleat__item_always(jobs->problem, item) ||
           (item->fixed != UINT64_MAX && item->stream != jobs->first_stream);
}

/* By job, then by time. */
static uint64_t job_key(const pleat__fold_jobs *jobs, uint32_t i, uint32_t time)
{
    uint32_t stream = jobs->problem->items[i].stream;
    return (stream == jobs->first_stream ? 0 : stream + 1ull) << 32 | time;
}

/* The stream of the first item that comes and goes: its job gets what is live always. */
static uint32_t first_stream_of(const pleat__problem *problem)
{
    for (uint32_t i = 0; i < problem->count; i++)
        if (pleat__item_comes_and_goes(problem, &problem->items[i]))
            return problem->items[i].stream;
    return 0;
}

/* jobs->births and jobs->deaths: by job, then by begin and by end; jobs->always. */
static pleat_result sort_items(pleat__fold_jobs *jobs)
{
    const pleat__problem *problem = jobs->problem;
    size_t room = problem->count + 1u;
    uint64_t *keys = pleat__arena_alloc(jobs->arena, room * sizeof *keys);
    uint32_t *spare = pleat__arena_alloc(jobs->arena, room * sizeof *spare);
    jobs->births = pleat__arena_alloc(jobs->arena, room * sizeof *jobs->births);
    jobs->deaths = pleat__arena_alloc(jobs->arena, room * sizeof *jobs->deaths);
    jobs->always = pleat__arena_alloc(jobs->arena, room * sizeof *jobs->always);
    pleat_result result = PLEAT_OK;
    if (keys == NULL || spare == NULL || jobs->births == NULL || jobs->deaths == NULL ||
        jobs->always == NULL) {
        result =
            pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to order %u requests", problem->count);
        goto out;
    }
    uint32_t always = 0, births = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        if (pleat__item_empty(problem, &problem->items[i]))
            continue;
        if (holds_always(jobs, i))
            jobs->always[always++] = i;
        else
            jobs->births[births++] = i;
    }
    memcpy(jobs->deaths, jobs->births, births * sizeof *jobs->births);
    for (uint32_t i = 0; i < births; i++)
        keys[jobs->births[i]] =
            job_key(jobs, jobs->births[i], problem->items[jobs->births[i]].begin);
    pleat__sort_by_key(jobs->births, spare, births, keys);
    for (uint32_t i = 0; i < births; i++)
        keys[jobs->births[i]] = job_key(jobs, jobs->births[i], problem->items[jobs->births[i]].end);
    pleat__sort_by_key(jobs->deaths, spare, births, keys);
    jobs->always_count = always;
    jobs->birth_count = births;
out:
    pleat__arena_free(jobs->arena, keys);
    pleat__arena_free(jobs->arena, spare);
    return result;
}

/* One job for each run of births of the same stream; the first always exists. */
static pleat_result cut_jobs(pleat__fold_jobs *jobs)
{
    const pleat__problem *problem = jobs->problem;
    size_t capacity = 0;
    uint32_t begin = 0;
    do {
        PLEAT_TRY(pleat__arena_grow(jobs->arena, &jobs->jobs, &capacity, jobs->count,
                                    sizeof *jobs->jobs));
        uint32_t end = begin;
        while (end < jobs->birth_count && problem->items[jobs->births[end]].stream ==
                                              problem->items[jobs->births[begin]].stream)
            end++;
        jobs->jobs[jobs->count++] = (pleat__fold_job){.problem = problem,
                                                      .arena = jobs->arena,
                                                      .chunk = jobs->chunk,
                                                      .births = jobs->births + begin,
                                                      .deaths = jobs->deaths + begin,
                                                      .birth_count = end - begin};
        begin = end;
    } while (begin < jobs->birth_count);
    jobs->jobs[0].always = jobs->always;
    jobs->jobs[0].always_count = jobs->always_count;
    return PLEAT_OK;
}

static void set_floors(pleat__fold_jobs *jobs)
{
    for (uint32_t i = 0; i < jobs->count; i++) {
        pleat__fold_job *job = &jobs->jobs[i];
        uint64_t bytes = largest_sum(job);
        for (uint32_t a = 0; a < job->always_count; a++) {
            const pleat__item *item = &jobs->problem->items[job->always[a]];
            bytes += pleat__item_always(jobs->problem, item) ? item->size : 0;
        }
        uint64_t chunks = pleat__ceil_div(bytes, jobs->chunk);
        job->floor = chunks > job->fixed_page_count ? (uint32_t)chunks : job->fixed_page_count;
        jobs->floor_bytes += bytes;
    }
}

pleat_result pleat__pages_check(uint64_t pages)
{
    if (pages <= PLEAT__PAGES_MOST)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_LIMIT,
                       "a layout of %llu pages: at most %u are possible; plan with larger chunks "
                       "(--chunk)",
                       (unsigned long long)pages, PLEAT__PAGES_MOST);
}

uint32_t pleat__fold_behind(const pleat__fold_job *job, uint32_t page)
{
    uint32_t fixed = job->fixed_page_count;
    return fixed != 0 && job->fixed_pages[fixed - 1] >= page ? job->fixed_pages[fixed - 1] + 1
                                                             : page;
}

pleat_result pleat__fold_jobs_make(const pleat__problem *problem, uint64_t chunk,
                                   pleat__arena *arena, pleat__fold_jobs *out)
{
    *out = (pleat__fold_jobs){.problem = problem, .arena = arena, .chunk = chunk};
    out->first_stream = first_stream_of(problem);
    pleat_result result = sort_items(out);
    if (result == PLEAT_OK)
        result = cut_jobs(out);
    if (result == PLEAT_OK)
        result = list_fixed_pages(out);
    if (result != PLEAT_OK) {
        pleat__fold_jobs_free(out);
        return result;
    }
    set_floors(out);
    uint64_t floor = pleat__ceil_div(out->floor_bytes, chunk),
             fixed = out->jobs[0].fixed_page_count;
    result = pleat__pages_check(floor);
    if (result != PLEAT_OK)
        pleat__fold_jobs_free(out);
    else
        out->floor_chunks = (uint32_t)(floor > fixed ? floor : fixed);
    return result;
}

void pleat__fold_jobs_free(pleat__fold_jobs *jobs)
{
    pleat__arena_free(jobs->arena, jobs->births);
    pleat__arena_free(jobs->arena, jobs->deaths);
    pleat__arena_free(jobs->arena, jobs->always);
    pleat__arena_free(jobs->arena, jobs->fixed_pages);
    pleat__arena_free(jobs->arena, jobs->jobs);
    *jobs = (pleat__fold_jobs){0};
}

pleat_result pleat__floor_chunks(const pleat__problem *problem, uint64_t chunk_bytes,
                                 pleat__arena *arena, uint32_t *chunks)
{
    pleat__fold_jobs jobs;
    PLEAT_TRY(pleat__fold_jobs_make(problem, chunk_bytes, arena, &jobs));
    *chunks = jobs.floor_chunks;
    pleat__fold_jobs_free(&jobs);
    return PLEAT_OK;
}
