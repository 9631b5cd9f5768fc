/*
 * log_writer.c: see log_writer.h.
 *
 * LOCKING  The runtime's lock guards peaks and ended iterations. It is not held while the file is
 *          written.
 * FORK     A child has no such thread and does not own the log: it writes nothing, and joins
 *          nothing.
 */
#include <runtime/face/log_writer.h>

#include <internal/error.h>
#include <internal/thread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/observe/log.h>

#define WAITING_MOST 64u /* ended iterations that are not yet written; more become one (D199) */
#define MILLISECOND  1000000u

typedef struct peaks {
    uint64_t live, requested, blocks, physical;
} peaks;

struct pleat__watch {
    pleat_runtime *runtime;
    pleat__log log;
    pleat__ticker ticker;
    uint64_t period_ns;
    uint64_t begun_ns;                      /* the backend's clock */
    pthread_mutex_t stopping;               /* guards `stopped`, and is held until it is true */
    bool stopped;                           /* the thread is joined, the log ended */
    peaks whole, user, interval, iteration; /* whole: since the log began */
    uint64_t low_live;                      /* of the iteration */
    uint64_t interval_ns, iteration_ns;
    uint64_t iterations;
    pleat__log_record waiting[WAITING_MOST];
    uint32_t waiting_count;
};

static void raise_to(peaks *of, const peaks *to)
{
    if (to->live > of->live)
        of->live = to->live;
    if (to->requested > of->requested)
        of->requested = to->requested;
    if (to->blocks > of->blocks)
        of->blocks = to->blocks;
    if (to->physical > of->physical)
        of->physical = to->physical;
}

/* Moves the runtime's own peaks into all of these; they restart from what is now. */
static pleat_stats take_peaks(pleat__watch *watch)
{
    pleat_runtime *runtime = watch->runtime;
    const peaks now = {runtime->stats.peak_live_bytes, runtime->stats.peak_requested_bytes,
                       runtime->stats.peak_blocks,
                       pleat__space_stats_of(runtime->space).peak_physical_bytes};
    raise_to(&watch->whole, &now);
    raise_to(&watch->user, &now);
    raise_to(&watch->interval, &now);
    raise_to(&watch->iteration, &now);
    pleat__restart_peaks(&runtime->stats);
    pleat__space_reset_peak(runtime->space);
    if (runtime->stats.live_bytes < watch->low_live)
        watch->low_live = runtime->stats.live_bytes;
    return pleat__stats_locked(runtime);
}

static pleat__log_record look(const pleat__watch *watch, const pleat_stats *stats,
                              const peaks *high, uint64_t from_ns)
{
    pleat_runtime *runtime = watch->runtime;
    const pleat__policy_ops *ops = runtime->ops;
    uint64_t state = ops->states != NULL ? (uint64_t)ops->states(runtime->policy)->now + 1 : 0;
    pleat__log_record record = {.from_ns = from_ns,
                                .to_ns =
                                    runtime->vmm.ops->clock_ns(runtime->vmm.self) - watch->begun_ns,
                                .iterations = watch->iterations,
                                .state = state,
                                .limit_bytes = runtime->limits.cap_bytes,
                                .high_live_bytes = high->live,
                                .high_physical_bytes = high->physical,
                                .low_live_bytes = stats->live_bytes,
                                .stats = *stats};
    /* A program that restarts peaks (PyTorch's statistics do) restarts its own. */
    record.stats.peak_live_bytes = watch->whole.live;
    record.stats.peak_requested_bytes = watch->whole.requested;
    record.stats.peak_blocks = watch->whole.blocks;
    record.stats.peak_physical_bytes = watch->whole.physical;
    return record;
}

static pleat__log_record end_interval(pleat__watch *watch)
{
    pleat_stats stats = take_peaks(watch);
    pleat__log_record record = look(watch, &stats, &watch->interval, watch->interval_ns);
    watch->interval_ns = record.to_ns;
    watch->interval = (peaks){0};
    return record;
}

void pleat__watch_mark(pleat__watch *watch)
{
    pleat_stats stats = take_peaks(watch);
    watch->iterations++;
    pleat__log_record record = look(watch, &stats, &watch->iteration, watch->iteration_ns);
    record.low_live_bytes = watch->low_live;
    watch->iteration_ns = record.to_ns;
    watch->iteration = (peaks){0};
    watch->low_live = stats.live_bytes;
    if (watch->waiting_count < WAITING_MOST)
        watch->waiting[watch->waiting_count++] = record;
    else
        pleat__log_merge(&watch->waiting[WAITING_MOST - 1], &record);
}

void pleat__watch_peaks(pleat__watch *watch, pleat_stats *stats)
{
    if (watch->user.live > stats->peak_live_bytes)
        stats->peak_live_bytes = watch->user.live;
    if (watch->user.requested > stats->peak_requested_bytes)
        stats->peak_requested_bytes = watch->user.requested;
    if (watch->user.blocks > stats->peak_blocks)
        stats->peak_blocks = watch->user.blocks;
    if (watch->user.physical > stats->peak_physical_bytes)
        stats->peak_physical_bytes = watch->user.physical;
}

void pleat__watch_reset(pleat__watch *watch)
{
    (void)take_peaks(watch);
    watch->user = (peaks){0};
}

static void write_all(pleat__watch *watch)
{
    pleat__log_record iterations[WAITING_MOST];
    pleat__gate_lock(&watch->runtime->gate);
    pleat__log_record interval = end_interval(watch);
    uint32_t count = watch->waiting_count;
    for (uint32_t i = 0; i < count; i++)
        iterations[i] = watch->waiting[i];
    watch->waiting_count = 0;
    pleat__gate_unlock(&watch->runtime->gate);
    for (uint32_t i = 0; i < count; i++)
        pleat__log_put(&watch->log, PLEAT__LOG_ITERATIONS, &iterations[i]);
    pleat__log_put(&watch->log, PLEAT__LOG_INTERVALS, &interval);
}

static void *run(void *context)
{
    pleat__watch *watch = context;
    while (pleat__ticker_wait(&watch->ticker, watch->period_ns))
        write_all(watch);
    return NULL;
}

static pleat_result open_log(pleat__watch *watch, const pleat__conf *conf)
{
    const pleat_runtime *runtime = watch->runtime;
    pleat__log_numbers numbers = {.device = (uint64_t)runtime->device,
                                  .period_ns = watch->period_ns};
    if (runtime->plan != NULL) {
        pleat_plan_summary plan = pleat_plan_summary_of(runtime->plan);
        numbers.plan_requests = plan.iteration_requests;
        numbers.plan_max_live_bytes = plan.max_live_bytes;
        numbers.plan_physical_bytes = plan.physical_bytes;
        numbers.plan_virtual_bytes = plan.virtual_bytes;
    }
    return pleat__log_create(&watch->log, conf->log, conf->log_bytes, runtime->ops->name, &numbers,
                             runtime->arena);
}

pleat_result pleat__watch_begin(pleat_runtime *runtime, const pleat__conf *conf, pleat__watch **out)
{
    *out = NULL;
    if (conf->log[0] == '\0')
        return PLEAT_OK;
    pleat__watch *watch = pleat__arena_calloc(runtime->arena, 1, sizeof *watch);
    if (watch == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a log");
    watch->runtime = runtime;
    pthread_mutex_init(&watch->stopping, NULL);
    watch->period_ns = conf->log_ms * MILLISECOND;
    watch->begun_ns = runtime->vmm.ops->clock_ns(runtime->vmm.self);
    pleat_result result = open_log(watch, conf);
    if (result != PLEAT_OK)
        goto no_log;
    *out = watch; /* before the thread, which finds it in the runtime */
    result = pleat__ticker_start(&watch->ticker, "pleat-watch", run, watch);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    *out = NULL;
    pleat__log_close(&watch->log);
no_log:
    pthread_mutex_destroy(&watch->stopping);
    pleat__arena_free(runtime->arena, watch);
    return result;
}

void pleat__watch_stop(pleat__watch *watch)
{
    if (watch == NULL || !pleat__is_here(watch->runtime))
        return;
    pthread_mutex_lock(&watch->stopping);
    if (!watch->stopped) {
        pleat__ticker_stop(&watch->ticker);
        write_all(watch);
        pleat__log_end(&watch->log, watch->runtime->arena);
        watch->stopped = true;
    }
    pthread_mutex_unlock(&watch->stopping);
}

void pleat__watch_end(pleat__watch *watch)
{
    if (watch == NULL)
        return;
    pleat__watch_stop(watch);
    pleat__log_close(&watch->log);
    pthread_mutex_destroy(&watch->stopping);
    pleat__arena_free(watch->runtime->arena, watch);
}
