/*
 * painting.h: who lives when and has which bytes, event by event and granule by granule: slow, and
 * plain enough to hold what is clever against.
 */
#ifndef PLEAT_TESTS_PLAN_PAINTING_H
#define PLEAT_TESTS_PLAN_PAINTING_H

#include "test.h"

#include <plan/base/plan.h>

/* A steady slot at an event. */
static inline bool test_lives_at(const pleat__slot *slot, uint32_t at)
{
    if (slot->free_at == PLEAT__NEVER || slot->class == PLEAT__CLASS_PERSISTENT)
        return true;
    if (slot->free_at > slot->alloc_at)
        return at >= slot->alloc_at && at < slot->free_at;
    return at >= slot->alloc_at || at < slot->free_at;
}

/* A window's events: from the first to the last in which one of its requests lives. */
static inline void test_find_span(const pleat_plan *plan, uint32_t window, uint32_t *from,
                                  uint32_t *until)
{
    *from = UINT32_MAX;
    *until = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC || slot->window != window)
            continue;
        for (uint32_t at = 0; at < plan->steady.events; at++)
            if (test_lives_at(slot, at)) {
                *from = at < *from ? at : *from;
                *until = at + 1 > *until ? at + 1 : *until;
            }
    }
}

/* Whether some slot has the 512 bytes at `place` in the window's events. */
static inline bool test_is_taken(const pleat_plan *plan, uint64_t place, uint32_t from,
                                 uint32_t until)
{
    for (uint32_t i = 0; i < plan->first.slot_count + plan->steady.slot_count; i++) {
        bool once = i < plan->first.slot_count;
        const pleat__slot *slot =
            once ? &plan->first.slots[i] : &plan->steady.slots[i - plan->first.slot_count];
        if (slot->class == PLEAT__CLASS_DYNAMIC || slot->place == PLEAT__NOWHERE ||
            slot->place + slot->size <= place || slot->place > place)
            continue;
        if (once && slot->class == PLEAT__CLASS_PERSISTENT)
            return true;
        for (uint32_t at = from; at < until && !once; at++)
            if (test_lives_at(slot, at))
                return true;
    }
    return false;
}

#endif
