/*
 * replay.c: see replay.h.
 *
 * ORDER    The trace's events in their order. What is freed and was still used by other streams, so
 *          that its free completed later, is recorded as used by a stream of its own, which stands
 *          still until then (on host memory; on the GPU it is freed when its free completed).
 *          A mark is issued where an iteration begins: by the trace's marks, else by its labels,
 *          else by the period of the sequence. A phase is entered where a label names another one.
 * PASSES   With the canary two: the first with it, the second, without, for times only; words
 *          written into gigabytes empty every cache that the allocator lives in.
 */
#include <tools/replay/replay.h>

#include <tools/clock.h>
#include <tools/progress.h>
#include <tools/replay/call_times.h>
#include <tools/replay/canary.h>
#include <tools/replay/script.h>

#include <internal/error.h>
#include <runtime/base/policy.h>
#include <stdio.h>
#include <string.h>
#include <vmm/host/host.h>

#define DEVICE_BYTES (140ull << 30)
#define LATE         30u /* marks */

typedef struct samples {
    uint64_t *ns;
    size_t count;
    size_t steady; /* the first of the steady part */
} samples;

/* What had been counted at a moment. */
typedef struct tally {
    pleat_stats stats;
    uint64_t driver_ns, mapper_ns; /* modelled; host backend */
    uint64_t time_us;              /* of the recording */
} tally;

typedef struct pass {
    const replay_script *script;
    pleat_vmm vmm;
    timed_vmm timed; /* the runtime's way to it; host backend */
    pleat_runtime *runtime;
    canary *canary;
    const replay_watch *watch; /* NULL: none */
    bool tells;                /* the runtime hears of iterations and phases */
    bool marks;                /* of iterations too, where it hears */
    replay_result *result;
    pleat_va *addresses; /* by request; 0: not live */
    uint64_t *sizes;
    pleat_stream *users; /* by request: the stream that still uses it; 0: none */
    pleat_stream *idle;  /* such streams that nothing waits for */
    size_t idle_capacity;
    uint32_t idle_count, user_count;
    bool on_host;
    samples allocs, frees;
    samples calls; /* both, of this iteration */
    uint64_t verbs_begun_ns, mark_ns;
    call_times times; /* of calls and marks */
    uint64_t time_us; /* of the recording, now */
    char phase[256];
    uint32_t next_mark;
    /* When the iteration began, the steady part, the 31st iteration, and at the last mark. */
    tally begun, steady_begun, late_begun, last;
    uint64_t bytes;           /* asked for in the steady part */
    uint64_t live, peak_live; /* of the recording, at the positions (plan/model/requests.h) */
    bool steady;              /* it has begun */
} pass;

/* ---- one pass ---- */

static double quantile(const samples *of, double share)
{
    return (double)clock_quantile(of->ns + of->steady, of->count - of->steady, share);
}

static tally tally_now(const pass *p)
{
    tally now = {.stats = pleat_stats_of(p->runtime), .time_us = p->time_us};
    if (p->on_host && pleat__host_modelled_ns(&p->vmm, &now.driver_ns, &now.mapper_ns) != PLEAT_OK)
        now.driver_ns = now.mapper_ns = 0;
    return now;
}

static replay_verbs verbs_between(const tally *begun, const tally *ended)
{
    const pleat_stats *from = &begun->stats, *to = &ended->stats;
    uint64_t mapper_calls = to->mapper_calls - from->mapper_calls;
    return (replay_verbs){.driver_calls = to->driver_calls - from->driver_calls - mapper_calls,
                          .mapper_calls = mapper_calls,
                          .creates = to->creates - from->creates,
                          .stitched = to->stitched - from->stitched,
                          .driver_ns = (double)(ended->driver_ns - begun->driver_ns),
                          .mapper_ns = (double)(ended->mapper_ns - begun->mapper_ns),
                          .waited_ns = to->waited_ns - from->waited_ns};
}

/* An iteration has ended, or the first one begins. */
static void note_verbs(pass *p, const tally *now)
{
    replay_result *r = p->result;
    if (p->next_mark != 0)
        r->first_iterations[r->first_count++] = verbs_between(&p->begun, now);
    p->begun = *now;
}

/* The same for what its requests took. */
static void note_times(pass *p)
{
    samples *calls = &p->calls;
    if (p->next_mark != 0) {
        replay_times *times = &p->result->timed.first[p->next_mark - 1];
        *times = (replay_times){.calls = calls->count,
                                .verb_ns = (double)(p->timed.verb_ns - p->verbs_begun_ns),
                                .mark_ns = (double)p->mark_ns};
        for (size_t i = 0; i < calls->count; i++)
            times->ns += (double)calls->ns[i];
        times->median_ns = quantile(calls, 0.5);
        times->p99_ns = quantile(calls, 0.99);
        times->most_ns = quantile(calls, 1);
    }
    calls->count = 0;
    p->verbs_begun_ns = p->timed.verb_ns;
}

static pleat_result tell_mark(pass *p)
{
    call_moment begun = call_times_start(&p->times);
    pleat_result result = pleat_mark(p->runtime);
    p->mark_ns = call_times_stop(&p->times, begun);
    /* What the mark asks of the driver is no request's. */
    p->verbs_begun_ns += p->timed.verb_ns - begun.verb_ns;
    return result;
}

static pleat_result begin_iteration(pass *p)
{
    const tally now = tally_now(p);
    if (now.stats.virtual_bytes > p->result->peak_virtual_bytes)
        p->result->peak_virtual_bytes = now.stats.virtual_bytes;
    if (p->next_mark == replay_steady_mark(p->script)) {
        p->steady = true;
        p->allocs.steady = p->allocs.count;
        p->frees.steady = p->frees.count;
        p->times.steady = p->times.count;
        p->steady_begun = now;
        p->result->peak_live_bytes = p->peak_live;
        p->result->peak_physical_bytes = now.stats.peak_physical_bytes;
        p->peak_live = p->live;
        pleat_reset_peaks(p->runtime);
    }
    if (p->next_mark <= REPLAY_FIRST) {
        note_times(p);
        note_verbs(p, &now);
    }
    if (p->next_mark == LATE)
        p->late_begun = now;
    p->next_mark++;
    if (p->next_mark == p->script->mark_count)
        p->last = now;
    return p->tells && p->marks ? tell_mark(p) : PLEAT_OK;
}

static pleat_result enter_phase(pass *p, uint32_t label)
{
    size_t length;
    const char *text = pleat__phase_text(pleat_trace_label(p->script->trace, label), &length);
    length = length < sizeof p->phase ? length : sizeof p->phase - 1;
    if (strlen(p->phase) == length && memcmp(p->phase, text, length) == 0)
        return PLEAT_OK;
    memcpy(p->phase, text, length);
    p->phase[length] = '\0';
    return pleat_phase(p->runtime, p->phase);
}

static void sample(pass *p, samples *to, call_moment begun)
{
    uint64_t ns = call_times_stop(&p->times, begun);
    to->ns[to->count++] = ns;
    p->calls.ns[p->calls.count++] = ns;
}

/* What is larger than an allocator counts is refused as for want of memory. A limit of this
 * machine, such as of its map areas, is no refusal: it says nothing about the job. */
static pleat_result refuse_too_large(pleat_result result, uint64_t bytes)
{
    if (result != PLEAT_E_LIMIT || bytes <= PLEAT__REQUEST_MOST)
        return result;
    pleat_error refusal = pleat__failure(result);
    refusal.result = PLEAT_E_OUT_OF_MEMORY;
    return pleat__fail_again(&refusal);
}

static pleat_result replay_alloc(pass *p, const pleat_trace_event *event)
{
    pleat_stream stream = pleat_trace_stream(p->script->trace, event->stream);
    pleat_va address;
    call_moment begun = call_times_start(&p->times);
    pleat_result result = pleat_alloc(p->runtime, event->size, stream, &address);
    sample(p, &p->allocs, begun);
    PLEAT_TRY(refuse_too_large(result, event->size));
    p->bytes += p->steady ? event->size : 0;
    p->addresses[event->request] = address;
    p->sizes[event->request] = event->size;
    return p->canary != NULL && address != 0
               ? canary_allocated(p->canary, event->request, address, event->size)
               : PLEAT_OK;
}

/* Whether the free that begins at event `at` completes later: another stream still uses it. */
static bool completes_later(const replay_script *s, size_t at)
{
    const pleat_trace_event *event = pleat_trace_events(s->trace) + at;
    return at + 1 < pleat_trace_event_count(s->trace) &&
           (event[1].kind != PLEAT_EVENT_FREE_COMPLETED || event[1].request != event->request ||
            event[1].device != event->device);
}

/* What is freed next is used by a stream that stands still until end_use. */
static pleat_result begin_use(pass *p, uint32_t request)
{
    pleat_stream user =
        p->idle_count > 0 ? p->idle[p->idle_count - 1] : PLEAT_STREAM_UNKNOWN - 1 - p->user_count;
    PLEAT_TRY(pleat__host_stream_trail(&p->vmm, user));
    PLEAT_TRY(pleat_record_stream(p->runtime, p->addresses[request], user));
    PLEAT_TRY(pleat__arena_grow(p->script->arena, &p->idle, &p->idle_capacity, p->user_count,
                                sizeof *p->idle));
    p->users[request] = user;
    if (p->idle_count > 0)
        p->idle_count--;
    else
        p->user_count++;
    return PLEAT_OK;
}

static pleat_result end_use(pass *p, uint32_t request)
{
    if (p->users[request] == 0)
        return PLEAT_OK;
    p->idle[p->idle_count++] = p->users[request]; /* there is room for all */
    p->users[request] = 0;
    return pleat__host_stream_release(&p->vmm, p->idle[p->idle_count - 1]);
}

static pleat_result free_now(pass *p, uint32_t request)
{
    pleat_va address = p->addresses[request];
    if (p->canary != NULL && address != 0)
        PLEAT_TRY(canary_freed(p->canary, request, address, p->sizes[request]));
    call_moment begun = call_times_start(&p->times);
    pleat_result result = pleat_free(p->runtime, address);
    sample(p, &p->frees, begun);
    p->addresses[request] = 0;
    return result;
}

/* The device's event `at`, the end of a free or its beginning. */
static pleat_result replay_free(pass *p, size_t at)
{
    const pleat_trace_event *event = pleat_trace_events(p->script->trace) + at;
    bool completed = event->kind == PLEAT_EVENT_FREE_COMPLETED;
    if (!p->on_host) /* what was not completed stays */
        return completed && p->addresses[event->request] != 0 ? free_now(p, event->request)
                                                              : PLEAT_OK;
    if (completed)
        return end_use(p, event->request);
    if (p->addresses[event->request] != 0 && completes_later(p->script, at))
        PLEAT_TRY(begin_use(p, event->request));
    return free_now(p, event->request);
}

/* On host memory the allocator's clock is the recording's: what it does by time it does in every
 * replay alike. */
static pleat_result set_clock(const pass *p, uint64_t time_us)
{
    return p->on_host ? pleat__host_clock_set(&p->vmm, time_us * 1000) : PLEAT_OK;
}

static uint64_t first_time(const replay_script *s)
{
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    size_t i = 0;
    while (!replay_is_ours(s, &events[i])) /* find_device has seen one */
        i++;
    return events[i].time_us;
}

/* The iterations that begin at the event of that position. */
static pleat_result begin_iterations(pass *p, uint32_t position)
{
    pleat_result result = PLEAT_OK;
    while (result == PLEAT_OK && p->next_mark < p->script->mark_count &&
           p->script->marks[p->next_mark] <= position)
        result = begin_iteration(p);
    return result;
}

/* An allocation, or the end of a life. What is freed and still used by another stream lives until
 * that is done with it: no allocator has its memory before. So what lives is the recording's, and
 * the same for every policy. */
static void count_live(pass *p, const pleat_trace_event *event)
{
    uint64_t size = pleat__rounded(event->size);
    p->live += event->kind == PLEAT_EVENT_ALLOC ? size : -size;
    p->peak_live = p->live > p->peak_live ? p->live : p->peak_live;
}

static pleat_result replay_events(pass *p)
{
    const replay_script *s = p->script;
    const pleat_trace_event *events = pleat_trace_events(s->trace);
    size_t count = pleat_trace_event_count(s->trace);
    uint32_t position = 0;
    const replay_watch *watch = p->watch;
    progress bar;
    progress_begin(&bar, p->result->policy, count);
    pleat_result result = PLEAT_OK;
    for (size_t i = 0; i < count && result == PLEAT_OK; i++) {
        bool counts = replay_is_ours(s, &events[i]);
        /* A free is asked for before it counts: the iteration that begins with it begins here. */
        if (!counts && replay_is_free(s, &events[i])) {
            if (!completes_later(s, i))
                result = begin_iterations(p, position);
            if (result == PLEAT_OK)
                result = replay_free(p, i);
        }
        if (!counts || result != PLEAT_OK)
            continue;
        if (events[i].time_us > p->time_us) {
            p->time_us = events[i].time_us;
            result = set_clock(p, p->time_us);
        }
        if (result == PLEAT_OK)
            result = begin_iterations(p, position);
        if (result == PLEAT_OK && events[i].label != 0 && p->tells)
            result = enter_phase(p, events[i].label);
        if (result == PLEAT_OK)
            result = events[i].kind == PLEAT_EVENT_ALLOC ? replay_alloc(p, &events[i])
                                                         : replay_free(p, i);
        if (result == PLEAT_OK)
            count_live(p, &events[i]);
        if (result == PLEAT_OK && watch != NULL) {
            pleat_stats stats = pleat_stats_of(p->runtime);
            watch->event(watch->self, position, &stats);
        }
        position++;
        if (i % 1024 == 0)
            progress_step(&bar, i);
    }
    progress_end(&bar);
    return result;
}

/* What is left of the tensors at the end of the trace is checked too. */
static pleat_result check_survivors(pass *p)
{
    uint32_t requests = pleat_trace_request_count(p->script->trace);
    for (uint32_t i = 0; i < requests && p->canary != NULL; i++)
        if (p->addresses[i] != 0)
            PLEAT_TRY(canary_freed(p->canary, i, p->addresses[i], p->sizes[i]));
    return PLEAT_OK;
}

static double share(uint64_t part, uint64_t whole)
{
    return whole != 0 ? (double)part / (double)whole : 0;
}

static double planned_between(const tally *begun, const tally *ended)
{
    const pleat_stats *from = &begun->stats, *to = &ended->stats;
    return share(to->planned + to->lane - from->planned - from->lane,
                 to->requests - from->requests);
}

static double seconds_between(const tally *begun, const tally *ended)
{
    return (double)(ended->time_us - begun->time_us) * 1e-6;
}

/* What iterations came to on average, up to the mark that ends the last whole one: what lies behind
 * that is part of one, or all of one that nothing says the end of. */
static void take_iteration_figures(pass *p, const tally *end)
{
    replay_result *r = p->result;
    const tally *whole_end =
        p->script->mark_count > 1 && p->next_mark == p->script->mark_count ? &p->last : end;
    const replay_verbs all = verbs_between(&p->steady_begun, whole_end);
    double count = r->steady_iterations;
    r->an_iteration = (replay_mean){.driver_calls = (double)all.driver_calls / count,
                                    .mapper_calls = (double)all.mapper_calls / count,
                                    .driver_ns = all.driver_ns / count,
                                    .mapper_ns = all.mapper_ns / count};
    if (r->iterations <= LATE)
        return;
    const replay_verbs late = verbs_between(&p->late_begun, whole_end);
    r->late_iterations = r->iterations - LATE;
    r->late_driver_calls = late.driver_calls + late.mapper_calls;
    r->late_planned_share = planned_between(&p->late_begun, whole_end);
    r->late_driver_ns = late.driver_ns + late.mapper_ns;
    r->late_recorded_seconds = seconds_between(&p->late_begun, whole_end);
}

static void take_steady_figures(pass *p, const tally *end)
{
    replay_result *r = p->result;
    const replay_verbs all = verbs_between(&p->steady_begun, end);
    const pleat_stats *from = &p->steady_begun.stats, *to = &end->stats;
    r->steady_iterations = r->iterations - replay_steady_mark(p->script);
    r->steady_peak_live_bytes = p->peak_live;
    r->steady_peak_physical_bytes = to->peak_physical_bytes;
    r->steady_efficiency = share(r->steady_peak_live_bytes, r->steady_peak_physical_bytes);
    r->steady_planned_share = planned_between(&p->steady_begun, end);
    r->steady_bytes = p->bytes;
    r->steady_slot_bytes = to->planned_bytes - from->planned_bytes;
    r->steady_lane_bytes = to->lane_bytes - from->lane_bytes;
    r->steady_driver_calls = all.driver_calls + all.mapper_calls;
    r->steady_mapper_calls = all.mapper_calls;
    r->steady_streams_ordered = to->streams_ordered - from->streams_ordered;
    r->steady_driver_ns = all.driver_ns;
    r->steady_mapper_ns = all.mapper_ns;
    r->steady_recorded_seconds = seconds_between(&p->steady_begun, end);
    take_iteration_figures(p, end);
}

static void take_times(pass *p, replay_timed *to)
{
    to->alloc_ns = quantile(&p->allocs, 0.5);
    to->free_ns = quantile(&p->frees, 0.5);
    to->alloc_p99_ns = quantile(&p->allocs, 0.99);
    to->free_p99_ns = quantile(&p->frees, 0.99);
    call_times_figures(&p->times, &to->calls, &to->steady_calls);
    memcpy(to->longest_calls_ns, p->times.longest, sizeof to->longest_calls_ns);
}

/* ended: the trace did. A job that was refused something before has no steady part; peaks and times
 * are then of what there was. */
static void take_figures(pass *p, bool ended)
{
    replay_result *r = p->result;
    const tally end = tally_now(p);
    const pleat_stats *stats = &end.stats;
    uint64_t mapped = 0;
    r->stats = *stats;
    r->iterations =
        ended ? replay_whole_iterations(p->script) : (p->next_mark > 0 ? p->next_mark - 1 : 0);
    if (p->peak_live > r->peak_live_bytes)
        r->peak_live_bytes = p->peak_live;
    if (stats->peak_physical_bytes > r->peak_physical_bytes)
        r->peak_physical_bytes = stats->peak_physical_bytes;
    if (!p->on_host || pleat__host_most_mapped(&p->vmm, &mapped) != PLEAT_OK)
        mapped = stats->virtual_bytes;
    r->peak_virtual_bytes = mapped > r->peak_virtual_bytes ? mapped : r->peak_virtual_bytes;
    r->efficiency = share(r->peak_live_bytes, r->peak_physical_bytes);
    if (ended)
        take_steady_figures(p, &end);
    r->recorded_seconds = (double)(p->time_us - first_time(p->script)) * 1e-6;
    take_times(p, &r->timed);
}

static void take_canary(pass *p)
{
    replay_result *r = p->result;
    if (p->canary == NULL)
        return;
    r->canary_errors = canary_errors(p->canary);
    r->canary_stride_bytes = canary_stride(p->canary);
    snprintf(r->canary_first_error, sizeof r->canary_first_error, "%s",
             canary_first_error(p->canary));
}

static pleat_result make_tables(pass *p)
{
    uint32_t requests = pleat_trace_request_count(p->script->trace);
    pleat__arena *arena = p->script->arena;
    p->addresses = pleat__arena_calloc(arena, requests, sizeof *p->addresses);
    p->sizes = pleat__arena_calloc(arena, requests, sizeof *p->sizes);
    p->allocs.ns = pleat__arena_calloc(arena, requests, sizeof(uint64_t));
    p->frees.ns = pleat__arena_calloc(arena, requests, sizeof(uint64_t));
    p->calls.ns = pleat__arena_calloc(arena, 2 * (size_t)requests, sizeof(uint64_t));
    p->users = pleat__arena_calloc(arena, requests, sizeof *p->users);
    uint64_t *times =
        pleat__arena_calloc(arena, 2 * (size_t)requests + p->script->mark_count, sizeof *times);
    call_times_begin(&p->times, &p->timed, times);
    if (p->addresses == NULL || p->sizes == NULL || p->users == NULL || p->allocs.ns == NULL ||
        p->frees.ns == NULL || p->calls.ns == NULL || times == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", requests);
    return PLEAT_OK;
}

uint64_t replay_device_bytes(const pleat_trace *trace, uint64_t wanted)
{
    uint64_t recorded = pleat_trace_device_bytes(trace);
    uint64_t bytes = wanted != 0 ? wanted : recorded != 0 ? recorded : DEVICE_BYTES;
    return bytes >> 21 << 21;
}

static pleat_result open_backend(const replay_script *s, const replay_options *options,
                                 pleat_vmm *vmm)
{
    if (options->cuda)
        return pleat_vmm_cuda(vmm);
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = replay_device_bytes(s->trace, options->device_bytes)};
    PLEAT_TRY(pleat_vmm_host(&host, vmm));
    pleat_result result = pleat__host_set_costs(vmm, &pleat__host_costs_h200);
    if (result != PLEAT_OK)
        pleat_vmm_destroy(vmm);
    return result;
}

static void note_refusal(replay_result *result)
{
    result->oom = true;
    snprintf(result->oom_text, sizeof result->oom_text, "%s", pleat_last_error()->text);
}

/* Runs the trace once; figures go to `result`. */
static pleat_result run_pass(const replay_script *s, const replay_options *options,
                             bool with_canary, replay_result *result)
{
    pass p = {.script = s,
              .result = result,
              .watch = options->watch,
              .tells = !options->no_marks,
              .marks = s->marked || !options->own_marks,
              .time_us = first_time(s),
              .steady_begun.time_us = first_time(s)};
    pleat_runtime_options runtime = {.size = sizeof runtime,
                                     .policy = options->policy,
                                     .plan = options->plan,
                                     .budget_bytes = options->budget_bytes,
                                     .waits = 1};
    PLEAT_TRY(make_tables(&p));
    PLEAT_TRY(open_backend(s, options, &p.vmm));
    result->backend = p.vmm.ops->name;
    result->marked = s->marked;
    p.on_host = strcmp(p.vmm.ops->name, "host") == 0;
    pleat_vmm vmm = p.vmm;
    pleat_result outcome = set_clock(&p, p.time_us);
    if (outcome == PLEAT_OK && p.on_host)
        outcome = timed_vmm_begin(p.vmm, s->arena, &p.timed, &vmm);
    if (outcome == PLEAT_OK)
        outcome = pleat_runtime_create(vmm, &runtime, &p.runtime);
    if (pleat__is_shortage(outcome)) { /* a plan larger than the device, say */
        note_refusal(result);
        outcome = PLEAT_OK;
        goto no_runtime;
    }
    if (outcome != PLEAT_OK)
        goto no_runtime;
    if (with_canary)
        outcome = canary_create(&p.vmm, 0, options->cuda, &s->job, &p.canary);
    if (outcome == PLEAT_OK)
        outcome = replay_events(&p);
    take_figures(&p, outcome == PLEAT_OK);
    if (outcome == PLEAT_OK && options->repeat > 0 && !with_canary)
        outcome = replay_repeat(s, p.runtime, p.addresses, p.tells, options->repeat,
                                &result->timed.repeats);
    if (pleat__is_shortage(outcome)) {
        note_refusal(result);
        outcome = PLEAT_OK;
    }
    if (outcome == PLEAT_OK && !with_canary && options->dump != NULL)
        outcome = pleat_dump(p.runtime, options->dump_format, options->dump);
    if (outcome == PLEAT_OK)
        outcome = check_survivors(&p);
    take_canary(&p);
    canary_destroy(p.canary);
    pleat_runtime_destroy(p.runtime);
no_runtime:
    pleat_vmm_destroy(&p.vmm);
    pleat__arena_free(s->arena, p.addresses);
    pleat__arena_free(s->arena, p.sizes);
    pleat__arena_free(s->arena, p.users);
    pleat__arena_free(s->arena, p.idle);
    pleat__arena_free(s->arena, p.allocs.ns);
    pleat__arena_free(s->arena, p.frees.ns);
    pleat__arena_free(s->arena, p.calls.ns);
    pleat__arena_free(s->arena, p.times.ns);
    return outcome;
}

pleat_result replay_run(const pleat_trace *trace, const replay_options *options,
                        replay_result *result)
{
    replay_script s;
    *result = (replay_result){.canary = options->canary};
    snprintf(result->policy, sizeof result->policy, "%s", options->policy);
    PLEAT_TRY(replay_script_write(trace, &s));
    uint64_t begun = clock_now();
    pleat_result outcome = run_pass(&s, options, options->canary, result);
    result->seconds = (double)(clock_now() - begun) * 1e-9;
    if (outcome == PLEAT_OK && options->canary) {
        replay_result timed = {0};
        outcome = run_pass(&s, options, false, &timed);
        result->timed = timed.timed;
    }
    pleat__arena_destroy(s.arena);
    return outcome;
}
