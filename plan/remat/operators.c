/*
 * operators.c: executes operations. What an operation needs and is not there is computed first, and
 * so on: the operations that wait are a stack of the run's own, since a chain may be as long as the
 * log.
 */
#include "run_internal.h"

#include <internal/error.h>

#include <string.h>

/* A log without times ends, too: so often all operators may be computed again. */
#define MOST_TIMES 1000u

/* Arguments that are there are held at once, so that what is computed for the others evicts none of
 * them; they come first in the operation's order, which else stays. */
static pleat_result push(pleat__remat_state *run, uint32_t operation)
{
    const pleat__operation *o = &run->operations[operation];
    pleat__frame frame = {.operation = operation};
    uint32_t missing = 0;
    PLEAT_TRY(pleat__arena_grow(run->arena, &run->frames, &run->frame_room, run->frame_count,
                                sizeof frame));
    for (uint32_t i = 0; i < o->argument_count; i++) {
        uint32_t value = o->order[i];
        run->table.hot[run->values[value].memory].used_ns = run->clock_ns;
        if (!run->values[value].defined) {
            run->missing[missing++] = value;
            continue;
        }
        pleat__remat_hold(&run->table, run->values[value].memory);
        o->order[frame.held++] = value;
    }
    memcpy(o->order + frame.held, run->missing, missing * sizeof *run->missing);
    run->frames[run->frame_count++] = frame;
    return PLEAT_OK;
}

/* Tensors with the most time for their bytes lie at one end of the pool, the others at the other.
 * Dear is what takes more than time in proportion to its bytes, as Coop's section 3.4 tells them
 * apart: convolutions and products of matrices. */
static bool is_cheap(const pleat__operation *o)
{
    static const char *const dear[] = {"conv", "mm", "matmul", "linear", "attention"};
    for (size_t i = 0; i < sizeof dear / sizeof *dear; i++) {
        if (strstr(o->step->name, dear[i]) != NULL)
            return false;
    }
    return true;
}

/* How often an operation's arguments are this memory. */
static uint32_t uses_of(const pleat__remat_state *run, const pleat__operation *o, uint32_t memory)
{
    uint32_t uses = 0;
    for (uint32_t i = 0; i < o->argument_count; i++)
        uses += run->values[o->arguments[i]].memory == memory;
    return uses;
}

/* The memory that result `i` of a mutation may take over; PLEAT__REMAT_NONE: none. */
static uint32_t taken_over(const pleat__remat_state *run, const pleat__operation *o, uint32_t i)
{
    if (run->options->policy < PLEAT__REMAT_COOP || o->step->kind != PLEAT__OPERATOR_LOG_MUTATE)
        return PLEAT__REMAT_NONE;
    uint32_t argument = o->step->written[i], to = run->values[o->first + i].memory;
    uint32_t from = run->values[o->arguments[argument]].memory;
    for (uint32_t j = 0; j < i; j++) {
        if (run->values[o->arguments[o->step->written[j]]].memory == from)
            return PLEAT__REMAT_NONE;
    }
    bool free_to_go = !run->memories[from].constant && run->memories[from].place.count > 0 &&
                      run->table.hot[from].held == uses_of(run, o, from);
    return free_to_go && !pleat__remat_is_there(&run->table, to) ? from : PLEAT__REMAT_NONE;
}

static pleat_result obtain_results(pleat__remat_state *run, const pleat__operation *o)
{
    for (uint32_t i = 0; i < o->result_count && !run->infeasible; i++) {
        const pleat__value *v = &run->values[o->first + i];
        uint64_t bytes = run->table.hot[v->memory].bytes;
        pleat__made *made = &run->made[i];
        *made = (pleat__made){.from = taken_over(run, o, i)};
        if (!v->view && made->from == PLEAT__REMAT_NONE)
            PLEAT_TRY(pleat__remat_run_obtain(run, bytes, is_cheap(o), &made->place));
    }
    return PLEAT_OK;
}

static void count_time(pleat__remat_state *run, pleat__operation *o)
{
    pleat__remat_figures *f = run->figures;
    run->clock_ns += o->step->ns;
    if (o->ran) {
        f->again_ns += o->step->ns;
        f->recomputations++;
    } else {
        f->model_ns += o->step->ns;
        o->ran = true;
    }
    uint64_t spent = f->again_ns + f->map_ns;
    if ((double)spent > (run->options->overhead_most - 1) * (double)run->log->model_ns ||
        f->recomputations > (uint64_t)MOST_TIMES * run->log->operators)
        run->infeasible = true;
}

static void let_arguments_go(pleat__remat_state *run, const pleat__operation *o)
{
    for (uint32_t i = 0; i < o->argument_count; i++)
        pleat__remat_let_go(&run->table, run->values[o->arguments[i]].memory);
}

/* What is there already keeps its place, and the new one goes. */
static pleat_result define_result(pleat__remat_state *run, const pleat__operation *o, uint32_t i)
{
    pleat__value *v = &run->values[o->first + i];
    pleat__made *made = &run->made[i];
    v->defined = true;
    if (v->view)
        return PLEAT_OK;
    if (made->from != PLEAT__REMAT_NONE)
        return pleat__remat_run_hand_over(run, made->from, v->memory);
    if (!pleat__remat_is_there(&run->table, v->memory))
        return pleat__remat_run_settle(run, v->memory, &made->place);
    pleat__remat_run_give(run, run->table.hot[v->memory].bytes, &made->place);
    return PLEAT_OK;
}

/* pre: all arguments are there, and held. */
static pleat_result compute(pleat__remat_state *run, pleat__operation *o)
{
    bool first_time = !o->ran;
    PLEAT_TRY(obtain_results(run, o));
    if (run->infeasible)
        return PLEAT_OK;
    count_time(run, o);
    let_arguments_go(run, o);
    for (uint32_t i = 0; i < o->result_count; i++) {
        PLEAT_TRY(define_result(run, o, i));
        if (first_time)
            run->table.hot[run->values[o->first + i].memory].used_ns = run->clock_ns;
    }
    return PLEAT_OK;
}

/* Holds the frame's arguments as far as they are there; true when all are. `missing` is the
 * operation that makes the next one. */
static bool hold_arguments(pleat__remat_state *run, pleat__frame *frame, uint32_t *missing)
{
    const pleat__operation *o = &run->operations[frame->operation];
    while (frame->held < o->argument_count) {
        const pleat__value *v = &run->values[o->order[frame->held]];
        *missing = v->operation;
        if (!v->defined)
            return false;
        pleat__remat_hold(&run->table, v->memory);
        frame->held++;
    }
    return true;
}

pleat_result pleat__remat_run_execute(pleat__remat_state *run, uint32_t operation)
{
    uint32_t next = operation;
    run->frame_count = 0;
    PLEAT_TRY(push(run, operation));
    while (run->frame_count > 0 && !run->infeasible) {
        if (!hold_arguments(run, &run->frames[run->frame_count - 1], &next)) {
            PLEAT_TRY(push(run, next));
            continue;
        }
        operation = run->frames[--run->frame_count].operation;
        PLEAT_TRY(compute(run, &run->operations[operation]));
    }
    return PLEAT_OK;
}
