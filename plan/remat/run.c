/*
 * run.c: see run.h. Goes through the log.
 */
#include "run_internal.h"

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <plan/base/sort.h>

static pleat_result contradiction(const pleat__remat_state *run,
                                  const pleat__operator_log_step *step, const char *what)
{
    return pleat__fail(PLEAT_E_INPUT, "'%s': line %u: %s", run->log->path, step->line, what);
}

static pleat_result value_of(const pleat__remat_state *run, const pleat__operator_log_step *step,
                             uint32_t handle, uint32_t *value)
{
    *value = run->handles[handle];
    return *value != PLEAT__REMAT_NONE
               ? PLEAT_OK
               : contradiction(run, step, "a tensor that is not there, or not any more");
}

static pleat_result new_handle(pleat__remat_state *run, const pleat__operator_log_step *step,
                               uint32_t handle, uint32_t value)
{
    if (run->handles[handle] != PLEAT__REMAT_NONE)
        return contradiction(run, step, "a new tensor has the name of one that is there");
    run->handles[handle] = value;
    run->values[value].handles++;
    run->memories[run->values[value].memory].handles++;
    return PLEAT_OK;
}

/* A handle of a value less: with the last one of its memory that goes at once. */
static pleat_result drop_handle(pleat__remat_state *run, uint32_t value)
{
    uint32_t memory = run->values[value].memory;
    pleat__memory *m = &run->memories[memory];
    run->values[value].handles--;
    if (--m->handles > 0 || m->constant || !pleat__remat_is_there(&run->table, memory))
        return PLEAT_OK;
    return pleat__remat_run_evict(run, memory);
}

/* ---- operations ---- */

static uint32_t add_memory(pleat__remat_state *run, uint64_t bytes)
{
    uint32_t memory = pleat__remat_add(&run->table, bytes);
    run->memories[memory] = (pleat__memory){.values = PLEAT__REMAT_NONE};
    return memory;
}

static uint32_t add_value(pleat__remat_state *run, uint32_t memory, uint32_t operation, bool view)
{
    uint32_t value = run->value_count++;
    run->values[value] = (pleat__value){.memory = memory,
                                        .operation = operation,
                                        .view = view,
                                        .next = run->memories[memory].values};
    run->memories[memory].values = value;
    return value;
}

static pleat_result begin_operation(pleat__remat_state *run, const pleat__operator_log_step *step,
                                    uint32_t *made)
{
    uint32_t count = step->argument_count;
    pleat__operation *o = &run->operations[run->operation_count];
    *o = (pleat__operation){
        .step = step,
        .arguments = pleat__arena_calloc(run->arena, count, sizeof *o->arguments),
        .order = pleat__arena_calloc(run->arena, count, sizeof *o->order),
        .argument_count = count,
        .first = run->value_count,
    };
    if (o->arguments == NULL || o->order == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u arguments", count);
    for (uint32_t i = 0; i < count; i++) {
        PLEAT_TRY(value_of(run, step, step->arguments[i], &o->arguments[i]));
        o->order[i] = o->arguments[i];
    }
    *made = run->operation_count++;
    return PLEAT_OK;
}

/* The memory of a result costs what its operators take together, each once. */
static void add_cost(pleat__remat_state *run, uint32_t operation, uint32_t memory)
{
    if (run->memories[memory].costs == operation + 1)
        return;
    run->memories[memory].costs = operation + 1;
    pleat__remat_cost(&run->table, memory, run->operations[operation].step->ns);
}

static pleat_result link_result(pleat__remat_state *run, const pleat__operation *o, uint32_t memory)
{
    for (uint32_t i = 0; i < o->argument_count; i++) {
        uint32_t from = run->values[o->arguments[i]].memory;
        if (!run->memories[from].constant)
            PLEAT_TRY(pleat__remat_link(&run->table, from, memory));
    }
    return PLEAT_OK;
}

static pleat_result add_result(pleat__remat_state *run, uint32_t operation, uint32_t memory,
                               bool view)
{
    pleat__operation *o = &run->operations[operation];
    (void)add_value(run, memory, operation, view);
    o->result_count++;
    if (run->memories[memory].constant)
        return PLEAT_OK;
    add_cost(run, operation, memory);
    return link_result(run, o, memory);
}

static pleat_result do_call(pleat__remat_state *run, const pleat__operator_log_step *step)
{
    uint32_t operation;
    PLEAT_TRY(begin_operation(run, step, &operation));
    const pleat__operation *o = &run->operations[operation];
    for (uint32_t i = 0; i < step->result_count; i++) {
        const pleat__operator_log_result *r = &step->results[i];
        bool view = r->alias >= 0;
        uint32_t memory =
            view ? run->values[o->arguments[r->alias]].memory : add_memory(run, r->bytes);
        PLEAT_TRY(add_result(run, operation, memory, view));
        PLEAT_TRY(new_handle(run, step, r->handle, o->first + i));
    }
    return pleat__remat_run_execute(run, operation);
}

/* The handles that were written through are the new tensors' from then on. */
static pleat_result do_mutate(pleat__remat_state *run, const pleat__operator_log_step *step)
{
    uint32_t operation;
    PLEAT_TRY(begin_operation(run, step, &operation));
    const pleat__operation *o = &run->operations[operation];
    for (uint32_t i = 0; i < step->written_count; i++) {
        uint32_t from = run->values[o->arguments[step->written[i]]].memory;
        uint32_t to = add_memory(run, run->table.hot[from].bytes);
        PLEAT_TRY(add_result(run, operation, to, false));
        run->memories[to].handles++; /* until it has those below */
    }
    PLEAT_TRY(pleat__remat_run_execute(run, operation));
    for (uint32_t i = 0; i < step->written_count && !run->infeasible; i++) {
        uint32_t handle = step->arguments[step->written[i]], old = run->handles[handle];
        run->handles[handle] = PLEAT__REMAT_NONE;
        PLEAT_TRY(new_handle(run, step, handle, o->first + i));
        run->memories[run->values[o->first + i].memory].handles--;
        PLEAT_TRY(drop_handle(run, old));
    }
    return PLEAT_OK;
}

/* Constants lie beside the pool. */
static pleat_result do_constant(pleat__remat_state *run, const pleat__operator_log_step *step)
{
    uint32_t memory = add_memory(run, step->bytes);
    run->operations[run->operation_count] = (pleat__operation){.first = run->value_count};
    uint32_t value = add_value(run, memory, run->operation_count++, false);
    run->values[value].defined = true;
    run->memories[memory].constant = true;
    pleat__remat_made(&run->table, memory);
    pleat__remat_hold(&run->table, memory);
    run->used_bytes += step->bytes;
    if (run->used_bytes > run->figures->peak_bytes)
        run->figures->peak_bytes = run->used_bytes;
    return new_handle(run, step, step->handle, value);
}

static pleat_result do_step(pleat__remat_state *run, const pleat__operator_log_step *step)
{
    uint32_t value, old;
    switch (step->kind) {
    case PLEAT__OPERATOR_LOG_CONSTANT:
        return do_constant(run, step);
    case PLEAT__OPERATOR_LOG_CALL:
        return do_call(run, step);
    case PLEAT__OPERATOR_LOG_MUTATE:
        return do_mutate(run, step);
    case PLEAT__OPERATOR_LOG_COPY:
        PLEAT_TRY(value_of(run, step, step->other, &value));
        return new_handle(run, step, step->handle, value);
    case PLEAT__OPERATOR_LOG_COPY_FROM:
        PLEAT_TRY(value_of(run, step, step->other, &value));
        PLEAT_TRY(value_of(run, step, step->handle, &old));
        run->handles[step->handle] = PLEAT__REMAT_NONE;
        PLEAT_TRY(new_handle(run, step, step->handle, value));
        return drop_handle(run, old);
    case PLEAT__OPERATOR_LOG_RELEASE:
        old = run->handles[step->handle];
        run->handles[step->handle] = PLEAT__REMAT_NONE;
        return old == PLEAT__REMAT_NONE ? PLEAT_OK : drop_handle(run, old);
    }
    return contradiction(run, step, "a step of no kind");
}

/* What the program still has at the end is there, all at once. */
static pleat_result bring_back(pleat__remat_state *run)
{
    for (uint32_t handle = 0; handle < run->log->handles && !run->infeasible; handle++) {
        uint32_t value = run->handles[handle];
        if (value == PLEAT__REMAT_NONE)
            continue;
        if (!run->values[value].defined)
            PLEAT_TRY(pleat__remat_run_execute(run, run->values[value].operation));
        if (!run->infeasible)
            pleat__remat_hold(&run->table, run->values[value].memory);
    }
    return PLEAT_OK;
}

/* ---- a run ---- */

/* The most results, or arguments, that an operator has. */
static uint32_t widest(const pleat__operator_log *log)
{
    uint32_t most = 1;
    for (size_t i = 0; i < log->count; i++) {
        const pleat__operator_log_step *s = &log->steps[i];
        const uint32_t counts[] = {s->argument_count, s->result_count, s->written_count};
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            most = counts[c] > most ? counts[c] : most;
    }
    return most;
}

static pleat_result prepare(pleat__remat_state *run)
{
    const pleat__operator_log *log = run->log;
    uint32_t most = log->tensors;
    uint64_t pool = run->options->budget_bytes - log->constant_bytes;
    PLEAT_TRY(pleat__remat_table_create(run->arena, most, &run->table));
    PLEAT_TRY(pleat__remat_pool_create(run->arena, run->options->fungible ? 0 : pool,
                                       run->options->chunk_bytes, &run->pool));
    PLEAT_TRY(pleat__remat_scratch_create(run->arena, most, run->pool.chunks, &run->scratch));
    run->values = pleat__arena_calloc(run->arena, most, sizeof *run->values);
    run->operations = pleat__arena_calloc(run->arena, most, sizeof *run->operations);
    run->memories = pleat__arena_calloc(run->arena, most, sizeof *run->memories);
    run->victims.tensors = pleat__arena_calloc(run->arena, most, sizeof *run->victims.tensors);
    run->handles = pleat__arena_calloc(run->arena, log->handles, sizeof *run->handles);
    run->made = pleat__arena_calloc(run->arena, widest(log), sizeof *run->made);
    run->missing = pleat__arena_calloc(run->arena, widest(log), sizeof *run->missing);
    if (run->values == NULL || run->operations == NULL || run->memories == NULL ||
        run->victims.tensors == NULL || run->handles == NULL || run->made == NULL ||
        run->missing == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to run '%s'", log->path);
    for (uint32_t i = 0; i < log->handles; i++)
        run->handles[i] = PLEAT__REMAT_NONE;
    return PLEAT_OK;
}

static pleat_result finish(pleat__remat_state *run)
{
    pleat__remat_figures *f = run->figures;
    double model = (double)run->log->model_ns, searches = (double)f->searches;
    f->finished = !run->infeasible;
    f->overhead = model > 0 ? (model + (double)f->again_ns + (double)f->map_ns) / model : 1;
    if (f->searches == 0)
        return PLEAT_OK;
    f->fragmentation /= searches;
    f->free_before /= searches;
    f->search_blocks /= searches;
    uint64_t *spare = pleat__arena_calloc(run->arena, f->searches, sizeof *spare);
    if (spare == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to sort %llu times",
                           (unsigned long long)f->searches);
    pleat__sort_keys(run->search_ns, spare, f->searches);
    f->search_median_ns = run->search_ns[f->searches / 2];
    f->search_most_ns = run->search_ns[f->searches - 1];
    return PLEAT_OK;
}

static pleat_result go(pleat__remat_state *run)
{
    if (run->log->constant_bytes > run->options->budget_bytes) {
        run->figures->out_of_memory = run->infeasible = true;
        return PLEAT_OK;
    }
    PLEAT_TRY(prepare(run));
    for (size_t i = 0; i < run->log->count && !run->infeasible; i++)
        PLEAT_TRY(do_step(run, &run->log->steps[i]));
    PLEAT_TRY(bring_back(run));
    PLEAT_AUDIT(pleat__remat_pool_audit(&run->pool));
    return PLEAT_OK;
}

pleat_result pleat__remat_run(const pleat__operator_log *log, const pleat__remat_options *options,
                              pleat__remat_figures *out)
{
    pleat__remat_state run = {.log = log, .options = options, .figures = out};
    *out = (pleat__remat_figures){.peak_bytes = 0};
    PLEAT_TRY(pleat__arena_create(&run.arena));
    pleat_result result = go(&run);
    if (result == PLEAT_OK)
        result = finish(&run);
    pleat__arena_destroy(run.arena);
    return result;
}

pleat_result pleat__remat_peak(const pleat__operator_log *log, uint64_t *bytes)
{
    const pleat__remat_options unbounded = {.policy = PLEAT__REMAT_DTR,
                                            .budget_bytes = INT64_MAX,
                                            .fungible = true,
                                            .chunk_bytes = 2u << 20,
                                            .overhead_most = 2};
    pleat__remat_figures figures;
    PLEAT_TRY(pleat__remat_run(log, &unbounded, &figures));
    *bytes = figures.peak_bytes;
    if (figures.finished)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INPUT, "'%s': more than 2^63 bytes are in use at once", log->path);
}
