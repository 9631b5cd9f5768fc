/*
 * format.c: plans as files.
 */
#include "files.h"
#include "plans.h"

static void assert_same_sequence(const pleat__sequence *a, const pleat__sequence *b)
{
    assert_int_equal(a->events, b->events);
    assert_int_equal(a->slot_count, b->slot_count);
    for (uint32_t i = 0; i < a->slot_count; i++) {
        const pleat__slot *left = &a->slots[i], *right = &b->slots[i];
        assert_int_equal(left->size, right->size);
        assert_int_equal(left->place, right->place);
        assert_int_equal(left->alloc_at, right->alloc_at);
        assert_int_equal(left->free_at, right->free_at);
        assert_int_equal(left->alloc_phase, right->alloc_phase);
        assert_int_equal(left->free_phase, right->free_phase);
        assert_int_equal(left->stream, right->stream);
        assert_int_equal(left->class, right->class);
        assert_int_equal(left->small, right->small);
        assert_int_equal(left->lane, right->lane);
        assert_int_equal(left->window, right->window);
    }
    assert_int_equal(a->phase_count, b->phase_count);
    for (uint32_t i = 0; i < a->phase_count; i++) {
        assert_int_equal(a->phases[i].label, b->phases[i].label);
        assert_int_equal(a->phases[i].begin_at, b->phases[i].begin_at);
    }
}

static void assert_same_plan(const pleat_plan *a, const pleat_plan *b)
{
#define SAME(field) assert_int_equal(a->field, b->field);
    SAME(fingerprint)
    SAME(device)
    SAME(requests)
    SAME(steady_request)
    SAME(chunk_bytes)
    SAME(device_bytes)
    SAME(max_live_bytes)
    SAME(first_max_live_bytes)
    SAME(virtual_bytes)
    SAME(physical_bytes)
    SAME(answers_only)
    SAME(label_count)
    SAME(stream_count)
    SAME(handle_count)
    SAME(map_count)
    SAME(lane_count)
    assert_string_equal(a->options, b->options);
    for (uint32_t i = 0; i < a->label_count; i++)
        assert_string_equal(a->labels[i], b->labels[i]);
    for (uint32_t i = 0; i < a->stream_count; i++)
        SAME(streams[i])
    for (uint32_t i = 0; i < a->handle_count; i++) {
        SAME(handles[i].chunks)
        SAME(handles[i].first_chunk)
    }
    for (uint32_t i = 0; i < a->map_count; i++) {
        SAME(maps[i].page)
        SAME(maps[i].handle)
        SAME(maps[i].alias)
    }
    for (uint32_t i = 0; i < a->lane_count; i++) {
        SAME(lanes[i].place)
        SAME(lanes[i].bytes)
        SAME(lanes[i].begin_at)
        SAME(lanes[i].end_at)
    }
#undef SAME
    assert_same_sequence(&a->first, &b->first);
    assert_same_sequence(&a->steady, &b->steady);
}

static void format_gives_back_the_plan(void **state)
{
    (void)state;
    const char *path = test_path("p.plan");
    pleat_plan *plan = test_plan(), *read;
    plan->device = 3;
    plan->steady.slots[3].small = 0;
    plan->steady.slots[3].window = 77;
    assert_ok(pleat_plan_write(plan, path));
    test_bytes first = test_file_read(path);
    assert_ok(pleat_plan_read(path, &read));
    assert_same_plan(plan, read);
    assert_ok(pleat_plan_write(read, path));
    test_bytes second = test_file_read(path);
    assert_int_equal(first.size, second.size);
    assert_memory_equal(first.data, second.data, first.size);
    test_bytes_free(&first);
    test_bytes_free(&second);
    pleat_plan_free(plan);
    pleat_plan_free(read);
    pleat_plan_free(NULL);
    assert_int_equal(unlink(path), 0);
}

/* It is freed. */
static void assert_is_read_back(pleat_plan *plan)
{
    const char *path = test_path("p.plan");
    pleat_plan *read;
    assert_ok(pleat_plan_write(plan, path));
    assert_ok(pleat_plan_read(path, &read));
    assert_same_plan(plan, read);
    pleat_plan_free(plan);
    pleat_plan_free(read);
    assert_int_equal(unlink(path), 0);
}

static void format_keeps_that_a_plan_only_answers_questions(void **state)
{
    (void)state;
    pleat_plan *plan = test_plan();
    assert_int_equal(pleat_plan_summary_of(plan).followed, 1);
    plan->answers_only = true;
    assert_int_equal(pleat_plan_summary_of(plan).followed, 0);
    assert_is_read_back(plan);
}

/* More rows than one record takes. */
static void format_takes_large_plans(void **state)
{
    (void)state;
    const uint32_t count = 10000;
    pleat_plan *plan;
    assert_ok(pleat__plan_new(&plan));
    plan->options = test_text(plan, "");
    plan->chunk_bytes = 512;
    plan->handle_count = plan->map_count = plan->requests = count;
    plan->physical_bytes = plan->virtual_bytes = count * 512ull;
    plan->handles = test_array(plan, count, sizeof *plan->handles);
    plan->maps = test_array(plan, count, sizeof *plan->maps);
    plan->stream_count = 1;
    plan->streams = test_array(plan, 1, sizeof *plan->streams);
    plan->label_count = 300;
    plan->labels = test_array(plan, 300, sizeof *plan->labels);
    for (uint32_t i = 0; i < 300; i++)
        plan->labels[i] = test_text(plan, i % 2 ? "odd" : "");
    plan->steady.slot_count = count;
    plan->steady.events = 2 * count;
    plan->steady.slots = test_array(plan, count, sizeof *plan->steady.slots);
    for (uint32_t i = 0; i < count; i++) {
        plan->handles[i] = (pleat__plan_handle){1, i};
        plan->maps[i] = (pleat__plan_map){i, i, 0};
        plan->steady.slots[i] = test_slot(500, i * 512ull, i, count + i);
    }
    assert_is_read_back(plan);
}

static void format_refuses_plans_that_do_not_hold(void **state)
{
    (void)state;
    const char *path = test_path("p.plan");
    pleat_plan *plan = test_plan(), *read;
    plan->steady.slots[1].free_at = 5;
    assert_ok(pleat_plan_write(plan, path));
    assert_result(pleat_plan_read(path, &read), PLEAT_E_VERIFY);
    assert_non_null(strstr(pleat_last_error()->text, path));
    assert_non_null(strstr(pleat_last_error()->text, "steady request 1"));
    assert_non_null(strstr(pleat_last_error()->text, "steady request 2"));
    plan->steady.slots[1].place = 1;
    assert_ok(pleat_plan_write(plan, path));
    assert_result(pleat_plan_read(path, &read), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, path));
    pleat_plan_free(plan);
    assert_int_equal(unlink(path), 0);
    assert_result(pleat_plan_read(path, &read), PLEAT_E_IO);
}

static void plan_summary_counts(void **state)
{
    (void)state;
    pleat_plan *plan = test_plan();
    plan->device = 2;
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    assert_int_equal(summary.device, 2);
    assert_int_equal(summary.requests, 9);
    assert_int_equal(summary.iteration_requests, 5);
    assert_int_equal(summary.dynamic_requests, 1);
    assert_int_equal(summary.maps, 6);
    assert_int_equal(summary.alias_maps, 2);
    assert_int_equal(summary.handles, 3);
    assert_int_equal(summary.lanes, 1);
    assert_int_equal(summary.max_live_bytes, 3 * TEST_CHUNK);
    assert_int_equal(summary.virtual_bytes, 6 * TEST_CHUNK);
    assert_int_equal(summary.physical_bytes, 4 * TEST_CHUNK);
    pleat_plan_free(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_gives_back_the_plan),
        cmocka_unit_test(format_keeps_that_a_plan_only_answers_questions),
        cmocka_unit_test(format_takes_large_plans),
        cmocka_unit_test(format_refuses_plans_that_do_not_hold),
        cmocka_unit_test(plan_summary_counts),
    };
    return cmocka_run_group_tests_name("format", tests, NULL, test_folder_remove);
}
