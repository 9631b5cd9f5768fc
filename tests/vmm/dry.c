/*
 * dry.c: the backend without memory: a space lives on it as on any other, nothing of the process's
 * address space is touched, and only access takes time on its clock.
 */
#include "../test.h"

#include <vmm/dry.h>
#include <vmm/space.h>

#define PAGE (2u << 20)

static void dry_space_does_all_and_only_its_clock_moves(void **state)
{
    (void)state;
    pleat__dry dry = {
        .page_bytes = PAGE, .device_bytes = 100ull * PAGE, .clock_ns = 5000, .page_ns = 7};
    pleat_vmm vmm = pleat__vmm_dry(&dry);
    pleat__arena *arena;
    pleat__space *space;
    pleat__chunk *chunks[2];
    const pleat__space_options options = {.device = 0};
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    assert_int_equal(pleat__space_page_bytes(space), PAGE);
    assert_int_equal(pleat__space_device_bytes(space), 100ull * PAGE);
    assert_ok(pleat__space_take_at(space, 0, 6));
    assert_ok(pleat__space_chunk_get(space, 1, &chunks[0]));
    assert_ok(pleat__space_chunk_get(space, 4, &chunks[1]));
    assert_int_not_equal(chunks[0]->handle, chunks[1]->handle);
    assert_ok(pleat__space_map(space, 0, chunks, 2));
    vmm = pleat__space_vmm(space);
    assert_int_equal(vmm.ops->clock_ns(vmm.self), 5000 + 5 * 7);
    assert_int_equal(pleat__space_stats_of(space).physical_bytes, 5ull * PAGE);
    pleat_event event;
    assert_ok(vmm.ops->event_create(vmm.self, 0, &event));
    assert_ok(vmm.ops->event_record(vmm.self, event, 3));
    assert_ok(vmm.ops->event_query(vmm.self, event));
    assert_ok(vmm.ops->stream_wait(vmm.self, 4, event));
    assert_ok(vmm.ops->event_destroy(vmm.self, event));
    assert_ok(pleat__space_unmap(space, 0, 5));
    pleat__space_chunk_put(space, chunks[0]);
    pleat__space_chunk_put(space, chunks[1]);
    assert_int_equal(pleat__space_trim(space, 0), 5ull * PAGE);
    assert_int_equal(vmm.ops->clock_ns(vmm.self), 5000 + 5 * 7);
    pleat__space_give(space, 0, 6);
    pleat__space_destroy(space);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dry_space_does_all_and_only_its_clock_moves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
