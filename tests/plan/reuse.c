/*
 * reuse.c: the reusable space of random plans, and its proof, against painting every granule at
 * every event.
 */
#include "arena.h"
#include "painting.h"
#include "plans.h"

#include <plan/stweaver/reuse.h>
#include <plan/verify/verify.h>

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
        assert_ok(pleat__verify_reuse(plan, arena));
        pleat_plan_free(plan);
    }
    assert_true(stretches > 3000);
}

/* The verifier against every granule and every event, of stretches drawn at random. */
static void reuse_is_proved_as_painted(void **state)
{
    (void)state;
    test_random random = test_random_begin("reuse_is_proved_as_painted", 0x9a17);
    uint32_t held = 0, rounds = 6000, refused = 0;
    for (uint32_t i = 0; i < rounds; i++) {
        pleat_plan *plan = random_slots(&random);
        bool expected = true;
        plan->reusable_count = 1 + draw(&random, 3);
        plan->reusable = test_array(plan, plan->reusable_count, sizeof *plan->reusable);
        for (uint32_t r = 0; r < plan->reusable_count; r++) {
            uint32_t window = r == 0 ? draw(&random, 2) : plan->reusable[r - 1].window;
            uint32_t granule = draw(&random, GRANULES), from, until;
            window += r > 0 && window < 2 ? draw(&random, 2) : 0;
            plan->reusable[r] = (pleat__reusable){
                window, 512ull * granule,
                512ull * (1 + draw(&random, GRANULES - granule < 4 ? GRANULES - granule : 4))};
            test_find_span(plan, window, &from, &until);
            expected &= least_of(plan, window) != UINT64_MAX;
            for (uint64_t at = 0; at < plan->reusable[r].bytes; at += 512)
                expected &= !test_is_taken(plan, plan->reusable[r].place + at, from, until);
        }
        pleat_result result = pleat__verify_reuse(plan, arena);
        if (result != (expected ? PLEAT_OK : PLEAT_E_VERIFY))
            fail_msg("plan %u %s: %s: %s", i, expected ? "holds" : "does not hold",
                     pleat_result_name(result), pleat_last_error()->text);
        held += expected;
        refused += !expected;
        pleat_plan_free(plan);
    }
    /* Neither answer is the rule. */
    assert_true(held > rounds / 20 && refused > rounds / 20);
}

static void reuse_out_of_bounds_is_refused(void **state)
{
    (void)state;
    enum { BYTES = GRANULES * 512 };
    static const struct {
        pleat_result expected;
        uint32_t rows;
        pleat__reusable reusable[2];
    } cases[] = {
        {PLEAT_OK, 2, {{0, BYTES - 512, 512}, {1, 0, 512}}},
        {PLEAT_E_VERIFY, 2, {{1, 0, 512}, {0, BYTES - 512, 512}}},
        {PLEAT_E_VERIFY, 1, {{1, 100, 512}}},
        {PLEAT_E_VERIFY, 1, {{1, 512, 0}}},
        {PLEAT_E_VERIFY, 1, {{1, BYTES - 512, 1024}}},
        {PLEAT_E_VERIFY, 1, {{1, BYTES + 512, 512}}},
        {PLEAT_E_VERIFY, 1, {{1, UINT64_MAX - 511, 512}}},
        {PLEAT_E_VERIFY, 1, {{2, 0, 512}}}, /* no request is of it */
        {PLEAT_E_INPUT, 1, {{1000, 0, 512}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pleat_plan *plan;
        assert_ok(pleat__plan_new(&plan));
        plan->chunk_bytes = plan->virtual_bytes = BYTES;
        plan->stream_count = 1;
        plan->steady.events = 4;
        plan->steady.slot_count = 2;
        plan->steady.slots = test_array(plan, 2, sizeof *plan->steady.slots);
        for (uint32_t w = 0; w < 2; w++) {
            plan->steady.slots[w] = test_slot(512, PLEAT__NOWHERE, 2 * w, 2 * w + 1);
            plan->steady.slots[w].class = PLEAT__CLASS_DYNAMIC;
            plan->steady.slots[w].window = w;
        }
        plan->reusable_count = cases[i].rows;
        plan->reusable = test_array(plan, 2, sizeof *plan->reusable);
        memcpy(plan->reusable, cases[i].reusable, sizeof cases[i].reusable);
        pleat_result result = pleat__verify_reuse(plan, arena);
        if (result != cases[i].expected)
            fail_msg("case %zu: %s: %s", i, pleat_result_name(result), pleat_last_error()->text);
        pleat_plan_free(plan);
    }
}

/* As many windows as requests, and many of both. */
static void reuse_that_takes_too_long_to_prove_is_refused(void **state)
{
    (void)state;
    enum { COUNT = 33000 };
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    plan->chunk_bytes = plan->virtual_bytes = 512;
    plan->stream_count = 1;
    plan->steady.events = 2 * COUNT;
    plan->steady.slot_count = plan->reusable_count = COUNT;
    plan->steady.slots = test_array(plan, COUNT, sizeof *plan->steady.slots);
    plan->reusable = test_array(plan, COUNT, sizeof *plan->reusable);
    for (uint32_t i = 0; i < COUNT; i++) {
        plan->steady.slots[i] = test_slot(512, PLEAT__NOWHERE, 2 * i, 2 * i + 1);
        plan->steady.slots[i].class = PLEAT__CLASS_DYNAMIC;
        plan->steady.slots[i].window = i;
        plan->reusable[i] = (pleat__reusable){i, 0, 512};
    }
    assert_result(pleat__verify_reuse(plan, arena), PLEAT_E_LIMIT);
    pleat_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reuse_is_what_no_slot_has),
        cmocka_unit_test(reuse_is_proved_as_painted),
        cmocka_unit_test(reuse_out_of_bounds_is_refused),
        cmocka_unit_test(reuse_that_takes_too_long_to_prove_is_refused),
    };
    return cmocka_run_group_tests_name("reuse", tests, open_arena, close_arena);
}
