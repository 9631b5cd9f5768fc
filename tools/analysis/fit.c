/*
 * fit.c: see fit.h.
 *
 * SIZES   Requests that the plan's sequences stand for have their slot's function. Iterations that
 *         it passes over (between the first and the one it took as steady) have those of the slot
 *         of the same number in the iteration where the recorded sizes are equal, else of any slot
 *         of that size, else the recorded size.
 * SEARCH  Physical memory is nearly a straight line of the step: the next guess lies where the
 *         line through what was tried meets the device's memory. It ends when a step fits and the
 *         next does not.
 */
#include <tools/analysis/fit.h>
#include <tools/analysis/growing.h>

#include <internal/error.h>
#include <internal/range.h>
#include <internal/search.h>
#include <plan/trace/import.h>

#include <math.h>
#include <stdlib.h>

#define UNIT       10u /* tenths of the recorded one, where nobody says how many it is */
#define SCALE_MOST 64u
#define FINE_MOST  64u /* steps up to the recorded microbatch */
#define TRIES_MOST 24

const char fit_assumption[] =
    "assuming that weights, gradients, optimizer states and the optimizer's step stay as they are, "
    "and all else grows with the microbatch: a second recording, at another microbatch, tells";

const char fit_device_assumed[] =
    " (an H200's: the recording does not say what its device has; -d SIZE|GPU does)";

/* ---- the units ---- */

/* One microbatch more, or a few of many; `otherwise` where it is not said how many there are. */
static pleat__fraction step_of(pleat__fraction x, uint32_t microbatch, pleat__fraction otherwise)
{
    uint32_t at_once = (microbatch + FINE_MOST - 1) / FINE_MOST;
    pleat__fraction step;
    if (microbatch == 0 ||
        !pleat__fraction_multiply(x, (pleat__fraction){at_once, microbatch}, &step))
        return otherwise;
    return step;
}

static uint32_t steps_of(pleat__fraction x, pleat__fraction step)
{
    double steps =
        floor((double)x.num * (double)step.den / ((double)x.den * (double)step.num) + 1e-9);
    return steps < 1e6 ? (uint32_t)steps : 1000000;
}

static bool any_grows(const fit *f)
{
    for (uint32_t i = 0; i < f->requests.count; i++)
        if (f->grows[i])
            return true;
    return false;
}

static pleat_result begin_scale(uint32_t microbatch, fit *f)
{
    f->grows = pleat__arena_calloc(f->arena, f->requests.count + 1u, sizeof *f->grows);
    if (f->grows == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", f->requests.count);
    PLEAT_TRY(growing_find(&f->requests, f->grows));
    f->x = (pleat__fraction){1, 1};
    f->step = step_of(f->x, microbatch, (pleat__fraction){1, UNIT});
    f->own = steps_of(f->x, f->step);
    bool any = any_grows(f);
    f->lowest = any ? 1 : f->own;
    f->highest = any ? SCALE_MOST * f->own : f->own;
    return PLEAT_OK;
}

static pleat_result begin_recipe(const pleat_trace *const *traces, uint32_t count,
                                 const uint64_t *names, uint32_t microbatch, fit *f)
{
    pleat__elastic_report report;
    const pleat_plan_options plan = {.size = sizeof plan, .device = f->device};
    const pleat__elastic_options options = {.plan = &plan, .names = names};
    PLEAT_TRY(pleat__elastic_plan_make(traces, count, &options, NULL, &report, &f->plan));
    const pleat__recipe *recipe = f->plan->recipe;
    f->trace = traces[report.reference];
    f->x = report.x[0];
    pleat__fraction tenth;
    if (!pleat__fraction_multiply(f->x, (pleat__fraction){1, UNIT}, &tenth))
        tenth = (pleat__fraction){1, f->x.den};
    f->step = step_of(f->x, microbatch, tenth);
    f->lowest = steps_of(recipe->lowest, f->step);
    f->lowest = f->lowest > 0 ? f->lowest : 1;
    f->highest = steps_of(recipe->highest, f->step);
    f->own = steps_of(f->x, f->step);
    return PLEAT_OK;
}

pleat_result fit_begin(const pleat_trace *const *traces, uint32_t count,
                       const uint64_t *microbatches, uint32_t named, uint64_t device_bytes, fit *f)
{
    uint32_t microbatch = named > 0 ? (uint32_t)microbatches[0] : 0;
    const uint64_t *names = named == count ? microbatches : NULL;
    *f = (fit){.trace = traces[0], .device_bytes = device_bytes};
    PLEAT_TRY(pleat__arena_create(&f->arena));
    pleat_result result = replay_requests(traces[0], f->arena, &f->device, &f->requests);
    if (result == PLEAT_OK)
        result = count > 1 ? begin_recipe(traces, count, names, microbatch, f)
                           : begin_scale(microbatch, f);
    if (result == PLEAT_OK && f->trace != traces[0])
        result = replay_requests(f->trace, f->arena, &f->device, &f->requests);
    if (result != PLEAT_OK)
        fit_end(f);
    return result;
}

void fit_end(fit *f)
{
    pleat_plan_free(f->plan);
    pleat__arena_destroy(f->arena);
    *f = (fit){0};
}

/* ---- sizes ---- */

/* The recorded microbatch. */
static double times_of(const fit *f, uint32_t step)
{
    return (double)step * (double)f->step.num * (double)f->x.den /
           ((double)f->step.den * (double)f->x.num);
}

static pleat__fraction x_at(const fit *f, uint32_t step)
{
    pleat__fraction x;
    return pleat__fraction_multiply(f->step, (pleat__fraction){step, 1}, &x) ? x : f->x;
}

static void scale_sizes(const fit *f, uint32_t step, uint64_t *sizes)
{
    for (uint32_t i = 0; i < f->requests.count; i++) {
        const pleat__request *r = &f->requests.items[i];
        double grown = ceil((double)r->size * times_of(f, step) - 1e-6);
        sizes[i] = f->grows[i] ? (uint64_t)grown : r->size;
    }
}

typedef struct sized {
    uint64_t recorded, size;
} sized;

static int compare_sized(const void *left, const void *right)
{
    const sized *a = left, *b = right;
    if (a->recorded != b->recorded)
        return a->recorded < b->recorded ? -1 : 1;
    return (a->size > b->size) - (a->size < b->size);
}

/* What most slots of a recorded size have; the recorded one where no slot is of that size. */
static uint64_t common_size(const sized *slots, uint32_t count, uint64_t recorded)
{
    uint32_t first, end;
    PLEAT__FIRST(first, count, slots[first].recorded >= recorded);
    PLEAT__FIRST(end, count, slots[end].recorded > recorded);
    return first < end ? slots[first + (end - first) / 2].size : recorded;
}

/* Of what lies between the first sequence and the steady one. */
static void fill_between(const fit *f, const uint64_t *steady, const sized *slots, uint64_t *sizes)
{
    const pleat_plan *plan = f->plan;
    uint32_t count = plan->steady.slot_count, from = plan->first.slot_count;
    for (uint32_t i = from; i < f->requests.count; i++) {
        uint32_t into = count != 0 ? (i + count - plan->steady_request % count) % count : 0;
        uint64_t recorded = f->requests.items[i].size;
        bool steady_one = i >= plan->steady_request && i - plan->steady_request < count;
        if (count != 0 && (steady_one || plan->steady.slots[into].size == recorded))
            sizes[i] = steady[steady_one ? i - plan->steady_request : into];
        else
            sizes[i] = common_size(slots, count, recorded);
    }
}

static pleat_result recipe_sizes(const fit *f, uint32_t step, pleat__arena *arena, uint64_t *sizes)
{
    const pleat_plan *plan = f->plan;
    pleat__fraction x = x_at(f, step);
    uint32_t count = plan->steady.slot_count;
    uint64_t *steady = pleat__arena_calloc(arena, count + 1u, sizeof *steady);
    sized *slots = pleat__arena_calloc(arena, count + 1u, sizeof *slots);
    if (steady == NULL || slots == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for sizes");
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        PLEAT_TRY(pleat__elastic_size(plan, true, i, x, &sizes[i]));
    for (uint32_t i = 0; i < count; i++) {
        PLEAT_TRY(pleat__elastic_size(plan, false, i, x, &steady[i]));
        slots[i] = (sized){plan->steady.slots[i].size, steady[i]};
    }
    qsort(slots, count, sizeof *slots, compare_sized);
    fill_between(f, steady, slots, sizes);
    return PLEAT_OK;
}

/* ---- a trace of other sizes ---- */

/* The device's events; what the recorded allocator took of the device says nothing here. */
static pleat_result copy_events(const fit *f, const uint64_t *sizes, pleat_trace *to)
{
    const pleat_trace_event *events = pleat_trace_events(f->trace);
    uint32_t requests = 0;
    uint32_t *renumbered =
        pleat__arena_calloc(f->arena, pleat_trace_request_count(f->trace) + 1u, sizeof *renumbered);
    if (renumbered == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for requests");
    pleat_result result = PLEAT_OK;
    for (size_t i = 0; i < pleat_trace_event_count(f->trace) && result == PLEAT_OK; i++) {
        pleat_trace_event event = events[i];
        if (event.device != f->device || event.kind > PLEAT_EVENT_MARK)
            continue;
        if (event.kind == PLEAT_EVENT_ALLOC) {
            event.size = sizes[requests];
            renumbered[event.request] = requests++;
        }
        event.request = event.kind == PLEAT_EVENT_MARK ? 0 : renumbered[event.request];
        result = pleat_trace_add(to, &event);
    }
    pleat__arena_free(f->arena, renumbered);
    return result;
}

static pleat_result make_trace(const fit *f, uint32_t step, pleat_trace **out)
{
    pleat__arena *arena;
    pleat_trace *trace = NULL;
    PLEAT_TRY(pleat__arena_create(&arena));
    uint64_t *sizes = pleat__arena_calloc(arena, f->requests.count + 1u, sizeof *sizes);
    pleat_result result =
        sizes != NULL ? PLEAT_OK : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for sizes");
    if (result == PLEAT_OK && f->plan != NULL)
        result = recipe_sizes(f, step, arena, sizes);
    else if (result == PLEAT_OK)
        scale_sizes(f, step, sizes);
    if (result == PLEAT_OK)
        result = pleat__trace_copy_names(f->trace, &trace);
    if (result == PLEAT_OK)
        result = copy_events(f, sizes, trace);
    pleat__arena_destroy(arena);
    if (result == PLEAT_OK)
        *out = trace;
    else
        pleat_trace_free(trace);
    return result;
}

/* ---- the search ---- */

typedef struct trial {
    bool fits;
    uint64_t live, physical; /* where it fits */
} trial;

static trial trial_of(const replay_result *replayed)
{
    return (trial){.fits = !replayed->oom,
                   .live = replayed->peak_live_bytes,
                   .physical = replayed->peak_physical_bytes};
}

static pleat_result try_step(const fit *f, const char *policy, uint32_t step,
                             const replay_result *recorded, trial *out)
{
    pleat_trace *trace;
    pleat_plan *plan = NULL;
    replay_result replayed;
    replay_options options = {.policy = policy, .device_bytes = f->device_bytes};
    *out = (trial){0};
    if (recorded != NULL && f->plan == NULL && times_of(f, step) == 1) {
        *out = trial_of(recorded);
        return PLEAT_OK;
    }
    pleat_result result = make_trace(f, step, &trace);
    if (result == PLEAT_E_INPUT || result == PLEAT_E_NOT_FOUND)
        return PLEAT_OK; /* more than any device has, or beyond where the functions hold */
    PLEAT_TRY(result);
    result = replay_plan_open(trace, policy, "auto", &plan);
    options.plan = plan;
    if (result == PLEAT_OK)
        result = replay_run(trace, &options, &replayed);
    if (result == PLEAT_OK)
        *out = trial_of(&replayed);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    return result;
}

/* Where a straight line through 0 steps (`base` bytes) and what was tried meets the device. */
static uint32_t guess(const fit *f, uint32_t step, uint64_t physical, uint64_t base)
{
    double slope = ((double)physical - (double)base) / step;
    double found = slope > 0 ? ((double)f->device_bytes - (double)base) / slope : f->highest;
    return found >= f->highest ? f->highest : found <= f->lowest ? f->lowest : (uint32_t)found;
}

/* What is there whatever the microbatch is, roughly: what lives to the end of the recording. */
static uint64_t base_of(const fit *f)
{
    uint64_t base = 0;
    uint32_t count = f->requests.count;
    for (uint32_t i = 0; i < count; i++)
        if (f->requests.items[i].free_at > f->requests.items[count - 1].alloc_at)
            base += f->requests.items[i].size;
    return base;
}

pleat_result fit_half(const fit *f, const char *policy, const replay_result *recorded,
                      fit_result *result)
{
    trial tried;
    uint32_t step = f->own / 2 > f->lowest ? f->own / 2 : f->lowest;
    PLEAT_TRY(try_step(f, policy, step, recorded, &tried));
    *result = (fit_result){.step = tried.fits ? step : 0,
                           .times = times_of(f, step),
                           .live_bytes = tried.live,
                           .physical_bytes = tried.physical};
    return PLEAT_OK;
}

pleat_result fit_policy(const fit *f, const char *policy, const replay_result *recorded,
                        fit_result *result)
{
    uint32_t good = f->lowest - 1, bad = f->highest + 1, step = f->own;
    uint64_t base = base_of(f);
    trial best = {0};
    for (int i = 0; i < TRIES_MOST && bad - good > 1; i++) {
        trial tried;
        PLEAT_TRY(try_step(f, policy, step, recorded, &tried));
        if (tried.fits) {
            good = step;
            best = tried;
            step = guess(f, step, tried.physical, base);
        } else {
            bad = step;
            step = good >= f->lowest ? bad - 1 - (bad - good) / 8 : (f->lowest + bad) / 2;
        }
        step = step <= good ? good + 1 : step >= bad ? bad - 1 : step;
    }
    bool any = good >= f->lowest;
    *result = (fit_result){.step = any ? good : 0,
                           .times = any ? times_of(f, good) : 0,
                           .live_bytes = best.live,
                           .physical_bytes = best.physical,
                           .bounded = good == f->highest};
    return PLEAT_OK;
}
