/*
 * phases.c: a sequence cut into phases.
 *
 * With labels a phase is a stretch of events under one label. Without, phases end where the live
 * bytes turn: they rise through a forward pass and fall through the backward pass after it. Turns
 * of less than 1/TURN of the curve's whole range do not count, so that the up and down inside a
 * layer is no phase.
 */
#include <plan/model/model.h>

#include <internal/error.h>
#include <internal/search.h>

#define TURN       8
#define MOST       (UINT16_MAX - 1) /* slots count phases in 16 bits; further turns are left out */
#define RISE_LABEL 1                /* labels of a plan without labels: "", "rise", "fall" */
#define FALL_LABEL 2

static pleat_result add_phase(pleat_plan *plan, pleat__sequence *sequence, size_t *capacity,
                              uint32_t label, uint32_t begin_at)
{
    if (sequence->phase_count >= MOST)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(plan->arena, &sequence->phases, capacity, sequence->phase_count,
                                sizeof *sequence->phases));
    sequence->phases[sequence->phase_count++] = (pleat__phase){label, begin_at};
    return PLEAT_OK;
}

static uint16_t phase_of_event(const pleat__requests *requests, uint32_t event)
{
    const pleat__request *item = &requests->items[event / 2];
    return event % 2 == 1 ? item->free_phase : item->alloc_phase;
}

static pleat_result from_labels(const pleat__requests *requests, uint32_t begin_at, uint32_t end_at,
                                pleat_plan *plan, pleat__sequence *sequence)
{
    size_t capacity = 0;
    for (uint32_t at = begin_at; at < end_at; at++) {
        uint16_t phase = phase_of_event(requests, requests->events[at]);
        if (sequence->phase_count == 0 ||
            sequence->phases[sequence->phase_count - 1].label != phase)
            PLEAT_TRY(add_phase(plan, sequence, &capacity, phase, at - begin_at));
    }
    return PLEAT_OK;
}

/* Bytes live relative to the beginning of the stretch. */
static int64_t step_of(const pleat__requests *requests, uint32_t at)
{
    int64_t size = (int64_t)requests->items[requests->events[at] / 2].size;
    return requests->events[at] % 2 == 1 ? -size : size;
}

static int64_t curve_range(const pleat__requests *requests, uint32_t begin_at, uint32_t end_at)
{
    int64_t live = 0, lowest = 0, highest = 0;
    for (uint32_t at = begin_at; at < end_at; at++) {
        live += step_of(requests, at);
        lowest = live < lowest ? live : lowest;
        highest = live > highest ? live : highest;
    }
    return highest - lowest;
}

static pleat_result from_curve(const pleat__requests *requests, uint32_t begin_at, uint32_t end_at,
                               pleat_plan *plan, pleat__sequence *sequence)
{
    int64_t turn = curve_range(requests, begin_at, end_at) / TURN;
    int64_t live = 0, extreme = 0;
    uint32_t extreme_at = begin_at;
    size_t capacity = 0;
    bool rising = true;
    PLEAT_TRY(add_phase(plan, sequence, &capacity, RISE_LABEL, 0));
    for (uint32_t at = begin_at; at < end_at; at++) {
        live += step_of(requests, at);
        if (rising ? live > extreme : live < extreme) {
            extreme = live;
            extreme_at = at + 1;
        } else if (rising ? extreme - live > turn : live - extreme > turn) {
            rising = !rising;
            PLEAT_TRY(add_phase(plan, sequence, &capacity, rising ? RISE_LABEL : FALL_LABEL,
                                extreme_at - begin_at));
            extreme = live;
            extreme_at = at + 1;
        }
    }
    return PLEAT_OK;
}

pleat_result pleat__phases_make(const pleat__requests *requests, uint32_t begin_at, uint32_t end_at,
                                pleat_plan *plan, pleat__sequence *sequence)
{
    return requests->phase_count > 1 ? from_labels(requests, begin_at, end_at, plan, sequence)
                                     : from_curve(requests, begin_at, end_at, plan, sequence);
}

uint16_t pleat__phase_at(const pleat__sequence *sequence, uint32_t position)
{
    uint32_t next;
    PLEAT__FIRST(next, sequence->phase_count, sequence->phases[next].begin_at > position);
    return (uint16_t)(next > 0 ? next - 1 : 0);
}
