/*
 * table.c: tables of verbs that are older, shorter or wrong.
 */
#include "../test.h"

#include <string.h>
#include <vmm/host/host.h>
#include <vmm/space.h>
#include <vmm/table.h>

typedef struct fixture {
    pleat_vmm host;
    pleat_vmm_ops ops; /* the host's, to be spoiled */
    pleat__arena *arena;
    pleat_vmm out;
} fixture;

static fixture begin(void)
{
    fixture f;
    assert_ok(pleat_vmm_host(NULL, &f.host));
    assert_ok(pleat__arena_create(&f.arena));
    f.ops = *f.host.ops;
    return f;
}

static void end(fixture *f)
{
    pleat__arena_destroy(f->arena);
    pleat_vmm_destroy(&f->host);
}

static void table_complete_is_used_as_it_is(void **state)
{
    (void)state;
    fixture f = begin();
    assert_ok(pleat__vmm_complete(f.host, f.arena, &f.out));
    assert_ptr_equal(f.out.ops, f.host.ops);
    end(&f);
}

/* Only up to unmap, as a backend without sharing and events has it. */
static void table_shorter_one_works(void **state)
{
    (void)state;
    fixture f = begin();
    f.ops.size = offsetof(pleat_vmm_ops, export_handle);
    memset((char *)&f.ops + f.ops.size, 0xee, sizeof f.ops - f.ops.size); /* not the table's */
    pleat_vmm old = {&f.ops, f.host.self};
    pleat__space *space;
    const pleat__space_options options = {.window_bytes = 64 << 20};
    assert_ok(pleat__space_create(old, f.arena, &options, &space));
    pleat__chunk *chunk;
    uint64_t page;
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    assert_ok(pleat__space_take(space, 1, &page));
    assert_ok(pleat__space_map(space, page, &chunk, 1));
    *(int *)(uintptr_t)(pleat__space_base(space) + page * pleat__space_page_bytes(space)) = 1;
    pleat_vmm whole = pleat__space_vmm(space);
    pleat_event event;
    int fd;
    assert_result(whole.ops->event_create(whole.self, 0, &event), PLEAT_E_UNSUPPORTED);
    assert_non_null(strstr(pleat_last_error()->text, "event_create"));
    assert_result(whole.ops->event_destroy(whole.self, 1), PLEAT_E_UNSUPPORTED);
    assert_result(whole.ops->event_record(whole.self, 1, 1), PLEAT_E_UNSUPPORTED);
    assert_result(whole.ops->event_query(whole.self, 1), PLEAT_E_UNSUPPORTED);
    assert_result(whole.ops->event_wait(whole.self, 1), PLEAT_E_UNSUPPORTED);
    assert_result(whole.ops->stream_wait(whole.self, 1, 1), PLEAT_E_UNSUPPORTED);
    assert_result(whole.ops->import_handle(whole.self, 0, 0, 1, &event), PLEAT_E_UNSUPPORTED);
    assert_result(pleat__space_export(space, chunk, &fd), PLEAT_E_UNSUPPORTED);
    assert_true(whole.ops->clock_ns(whole.self) > 0);
    pleat__space_destroy(space);
    end(&f);
}

static void table_gaps_are_filled_or_refused(void **state)
{
    (void)state;
    fixture f = begin();
    f.ops.device_count = NULL;
    f.ops.memory_info = NULL;
    f.ops.destroy = NULL;
    f.ops.name = NULL;
    int count;
    uint64_t a, b;
    assert_ok(pleat__vmm_complete((pleat_vmm){&f.ops, f.host.self}, f.arena, &f.out));
    assert_result(f.out.ops->device_count(f.out.self, &count), PLEAT_E_UNSUPPORTED);
    assert_result(f.out.ops->memory_info(f.out.self, 0, &a, &b), PLEAT_E_UNSUPPORTED);
    assert_string_equal(f.out.ops->name, "unnamed");
    f.out.ops->destroy(f.out.self);
    f.ops.map = NULL;
    assert_result(pleat__vmm_complete((pleat_vmm){&f.ops, f.host.self}, f.arena, &f.out),
                  PLEAT_E_INVALID);
    assert_non_null(strstr(pleat_last_error()->text, "no map"));
    end(&f);
}

static void table_other_versions_are_refused(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_vmm spoiled = {&f.ops, f.host.self};
    f.ops.abi = 2u << 16;
    assert_result(pleat__vmm_complete(spoiled, f.arena, &f.out), PLEAT_E_ABI);
    assert_non_null(strstr(pleat_last_error()->text, "2.0"));
    f.ops.abi = PLEAT_VMM_ABI + 7; /* a later minor version of a longer table */
    f.ops.size = sizeof f.ops + 64;
    assert_ok(pleat__vmm_complete(spoiled, f.arena, &f.out));
    f.ops.size = 8;
    assert_result(pleat__vmm_complete(spoiled, f.arena, &f.out), PLEAT_E_ABI);
    f.ops.size = sizeof f.ops - 3;
    assert_result(pleat__vmm_complete(spoiled, f.arena, &f.out), PLEAT_E_ABI);
    assert_result(pleat__vmm_complete((pleat_vmm){0}, f.arena, &f.out), PLEAT_E_INVALID);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_complete_is_used_as_it_is),
        cmocka_unit_test(table_shorter_one_works),
        cmocka_unit_test(table_gaps_are_filled_or_refused),
        cmocka_unit_test(table_other_versions_are_refused),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
