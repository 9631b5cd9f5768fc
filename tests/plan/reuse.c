/*
 * reuse.c: the reusable space of random plans, against painting every granule at every event, and
 * what of it a file may say.
 */
#include "arena.h"
#include "painting.h"
#include "plans.h"

#include <plan/stweaver/reuse.h>

#define GRANULES 24u

static uint32_t draw(test_random *random, uint64_t bound)
{
    return (uint32_t)test_random_below(random, bound);
}

/* Slots of one granule or more, wherever and whenever, and dynamic requests of three windows. */
static pleat_plan *random_slots(test_random *random)
{
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    uint32_t count = 3 + draw(random, 9);
    plan->chunk_bytes = plan->virtual_bytes = GRANULES * 512;
    plan->stream_count = 1;
    plan->steady.events = 2 * count;
    plan->steady.slot_count = count;
    plan->steady.slots = test_array(plan, count, sizeof *plan->steady.slots);
    plan->first.slot_count = draw(random, 2);
    plan->first.slots = test_array(plan, 1, sizeof *plan->first.slots);
    plan->first.slots[0] = test_slot(512, 512 * (uint64_t)draw(random, GRANULES), 0, PLEAT__NEVER);
    plan->first.slots[0].class = PLEAT__CLASS_PERSISTENT;
    for (uint32_t i = 0; i < count; i++) {
        pleat__slot *slot = &plan->steady.slots[i];
        uint32_t granule = draw(random, GRANULES), most = GRANULES - granule;
        *slot = test_slot(512ull * (1 + draw(random, most < 5 ? most : 5)), 512ull * granule,
                          2 * i + draw(random, 2), 1 + draw(random, 2 * count - 1));
        if (draw(random, 3) != 0)
            continue;
        slot->class = PLEAT__CLASS_DYNAMIC;
        slot->place = PLEAT__NOWHERE;
        slot->window = draw(random, 3);
    }
    return plan;
}

/* The smallest request of a window; UINT64_MAX: it has none. */
static uint64_t least_of(const pleat_plan *plan, uint32_t window)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        if (plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC &&
            plan->steady.slots[i].window == window && plan->steady.slots[i].size < least)
            least = plan->steady.slots[i].size;
    return least;
}

static bool has_stretch(const pleat_plan *plan, pleat__reusable wanted)
{
    for (uint32_t r = 0; r < plan->reusable_count; r++)
        if (plan->reusable[r].window == wanted.window && plan->reusable[r].place == wanted.place &&
            plan->reusable[r].bytes == wanted.bytes)
            return true;
    return false;
}

static uint64_t end_of_slots(const pleat_plan *plan)
{
    uint64_t end = 0;
    for (uint32_t i = 0; i < plan->first.slot_count + plan->steady.slot_count; i++) {
        const pleat__slot *slot = i < plan->first.slot_count
                                      ? &plan->first.slots[i]
                                      : &plan->steady.slots[i - plan->first.slot_count];
        if (slot->class != PLEAT__CLASS_DYNAMIC && slot->place + slot->size > end)
            end = slot->place + slot->size;
    }
    return end;
}

/* The stretches are the longest runs of free granules that hold a request, and nothing else. */
static uint32_t assert_stretches_are_what_is_free(const pleat_plan *plan)
{
    uint32_t count = 0;
    uint64_t end = end_of_slots(plan);
    for (uint32_t window = 0; window < 3; window++) {
        uint32_t from, until;
        uint64_t least = least_of(plan, window);
        test_find_span(plan, window, &from, &until);
        for (uint64_t at = 0; at < end && least != UINT64_MAX;) {
            uint64_t stop = at;
            while (stop < end && !test_is_taken(plan, stop, from, until))
                stop += 512;
            if (stop - at >= least) {
                assert_true(has_stretch(plan, (pleat__reusable){window, at, stop - at}));
                count++;
            }
            at = stop + 512;
        }
    }
    assert_int_equal(plan->reusable_count, count);
    return count;
}

static void reuse_is_what_no_slot_has(void **state)
{
    (void)state;
    test_random random = test_random_begin("reuse_is_what_no_slot_has", 0x2e05e);
    uint32_t stretches = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        pleat_plan *plan = random_slots(&random);
        assert_ok(pleat__reuse_make(plan, NULL, arena));
        stretches += assert_stretches_are_what_is_free(plan);
        pleat_plan_free(plan);
    }
    assert_true(stretches > 3000);
}

static void reuse_out_of_bounds_is_refused(void **state)
{
    (void)state;
    enum { BYTES = GRANULES * 512 };
    static const struct {
        const char *refusal; /* NULL: it holds */
        uint32_t streams, rows;
        pleat__reusable reusable[2];
    } cases[] = {
        {NULL, 1, 2, {{0, BYTES - 512, 512}, {1, 0, 512}}},
        {NULL, 1, 1, {{2, 0, 512}}}, /* no request is of it */
        {"a plan of 2 streams", 2, 2, {{0, BYTES - 512, 512}, {1, 0, 512}}},
        {"is behind one of window 1", 1, 2, {{1, 0, 512}, {0, BYTES - 512, 512}}},
        {"512 bytes at byte 100", 1, 1, {{1, 100, 512}}},
        {"0 bytes at byte 512", 1, 1, {{1, 512, 0}}},
        {"1024 bytes at byte 11776", 1, 1, {{1, BYTES - 512, 1024}}},
        {"512 bytes at byte 12800", 1, 1, {{1, BYTES + 512, 512}}},
        {"512 bytes at byte 18446744073709551104", 1, 1, {{1, UINT64_MAX - 511, 512}}},
        {"of a plan of 2 requests", 1, 1, {{1000, 0, 512}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pleat_plan *plan;
        assert_ok(pleat__plan_new(&plan));
        plan->chunk_bytes = plan->virtual_bytes = BYTES;
        plan->stream_count = cases[i].streams;
        plan->steady.events = 4;
        plan->requests = plan->steady.slot_count = 2;
        plan->steady.slots = test_array(plan, 2, sizeof *plan->steady.slots);
        for (uint32_t w = 0; w < 2; w++) {
            plan->steady.slots[w] = test_slot(512, PLEAT__NOWHERE, 2 * w, 2 * w + 1);
            plan->steady.slots[w].class = PLEAT__CLASS_DYNAMIC;
            plan->steady.slots[w].window = w;
        }
        plan->reusable_count = cases[i].rows;
        plan->reusable = test_array(plan, 2, sizeof *plan->reusable);
        memcpy(plan->reusable, cases[i].reusable, sizeof cases[i].reusable);
        pleat_result result = pleat_plan_verify(plan, NULL);
        if (result != (cases[i].refusal == NULL ? PLEAT_OK : PLEAT_E_INPUT) ||
            (result != PLEAT_OK && strstr(pleat_last_error()->text, cases[i].refusal) == NULL))
            fail_msg("case %zu: %s: %s", i, pleat_result_name(result), pleat_last_error()->text);
        pleat_plan_free(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reuse_is_what_no_slot_has),
        cmocka_unit_test(reuse_out_of_bounds_is_refused),
    };
    return cmocka_run_group_tests_name("reuse", tests, open_arena, close_arena);
}
