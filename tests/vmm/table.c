/*
 * table.c: tables of verbs that are older, shorter or wrong, and verbs that do not say why they
 * fail.
 */
#include "../test.h"

#include <pleat/ranges.h>
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

/* ---- a backend of one's own, whose verbs say nothing of their failures, or something ---- */

static struct {
    const pleat_vmm_ops *host;
    pleat_result unmaps, maps; /* what they fail with; PLEAT_OK: they do not */
    uint32_t calls;            /* that failed */
    bool told;
} own;

static pleat_result fail_own(pleat_result result)
{
    char text[32];
    snprintf(text, sizeof text, "failure %u of its own", ++own.calls);
    return own.told ? pleat_fail(result, text) : result;
}

static pleat_result own_unmap(void *self, pleat_va va, uint64_t bytes)
{
    return own.unmaps != PLEAT_OK ? fail_own(own.unmaps) : own.host->unmap(self, va, bytes);
}

static pleat_result own_map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    return own.maps != PLEAT_OK ? fail_own(own.maps) : own.host->map(self, va, bytes, handle);
}

/* Three chunks, one behind the other, of which the one in the middle rests. */
static pleat__space *begin_own(fixture *f, pleat__chunk **chunks, uint64_t *page)
{
    pleat__space *space;
    const pleat__space_options options = {.window_bytes = 64 << 20};
    f->ops.unmap = own_unmap;
    f->ops.map = own_map;
    own.host = f->host.ops;
    own.unmaps = own.maps = PLEAT_OK;
    own.calls = 0;
    assert_ok(pleat__space_create((pleat_vmm){&f->ops, f->host.self}, f->arena, &options, &space));
    for (int c = 0; c < 3; c++)
        assert_ok(pleat__space_chunk_get(space, 1, &chunks[c]));
    assert_ok(pleat__space_take(space, 3, page));
    assert_ok(pleat__space_map(space, *page, chunks, 3));
    assert_ok(pleat__space_rest(space, &chunks[1], 1, NULL));
    return space;
}

/* Whatever failed before on the thread: its text is not this failure's. */
static void table_failure_without_a_text_is_a_failure(void **state)
{
    (void)state;
    static const pleat_result before[] = {PLEAT_E_LIMIT, PLEAT_E_DRIVER};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        fixture f = begin();
        pleat__chunk *chunks[3];
        uint64_t page;
        own.told = false;
        pleat__space *space = begin_own(&f, chunks, &page);
        (void)pleat_fail(before[i], "of something else");
        own.unmaps = PLEAT_E_DRIVER;
        assert_result(pleat__space_rest(space, chunks, 1, NULL), PLEAT_E_DRIVER);
        assert_non_null(strstr(pleat_last_error()->text, "unmap: the backend 'host' gave no"));
        assert_false(chunks[0]->rests);
        own.unmaps = PLEAT_OK;
        own.maps = PLEAT_E_DRIVER;
        (void)pleat_fail(before[i], "of something else");
        assert_result(pleat__space_wake(space, &chunks[1], 1, NULL), PLEAT_E_DRIVER);
        assert_non_null(strstr(pleat_last_error()->text, "map: the backend 'host' gave no"));
        assert_true(chunks[1]->rests);
        assert_true(pleat__space_audit(space));
        own.maps = PLEAT_OK;
        pleat__space_destroy(space);
        end(&f);
    }
}

static pleat_result mute_reserve(void *self, int device, uint64_t bytes, uint64_t align,
                                 pleat_va *va)
{
    (void)self;
    (void)device;
    (void)bytes;
    (void)align;
    (void)va;
    return PLEAT_E_DRIVER;
}

static void table_failure_of_the_window_without_a_text_is_a_failure(void **state)
{
    (void)state;
    fixture f = begin();
    pleat__space *space;
    const pleat__space_options options = {.window_bytes = 64 << 20};
    f.ops.reserve = mute_reserve;
    (void)pleat_fail(PLEAT_E_DRIVER, "of something else");
    assert_result(pleat__space_create((pleat_vmm){&f.ops, f.host.self}, f.arena, &options, &space),
                  PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text,
                        "device 0: reserve: the backend 'host' gave no reason");
    end(&f);
}

/* The same where no space is between. */
static void table_failure_of_ranges_without_a_text_is_a_failure(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_ranges *ranges;
    pleat_va va;
    own.host = f.host.ops;
    own.told = false;
    own.maps = PLEAT_E_DRIVER;
    f.ops.map = own_map;
    assert_ok(pleat_ranges_create((pleat_vmm){&f.ops, f.host.self}, 0, &ranges));
    (void)pleat_fail(PLEAT_E_DRIVER, "of something else");
    assert_result(pleat_range_make(ranges, 1, &va, NULL), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, "map: the backend 'host' gave no reason");
    pleat_ranges_destroy(ranges);
    end(&f);
}

static void table_first_of_two_failures_is_told(void **state)
{
    (void)state;
    fixture f = begin();
    pleat__chunk *chunks[3];
    uint64_t page;
    own.told = true;
    pleat__space *space = begin_own(&f, chunks, &page);
    own.unmaps = PLEAT_E_DRIVER;
    assert_result(pleat__space_unmap(space, page, 3), PLEAT_E_DRIVER);
    assert_int_equal(own.calls, 2);
    assert_string_equal(pleat_last_error()->text, "failure 1 of its own");
    own.unmaps = PLEAT_OK;
    pleat__space_destroy(space);
    end(&f);
}

/* Only event_query may be asked again. */
static void table_memory_verb_that_is_not_ready_has_failed(void **state)
{
    (void)state;
    fixture f = begin();
    pleat__chunk *chunks[3];
    uint64_t page;
    own.told = false;
    pleat__space *space = begin_own(&f, chunks, &page);
    own.unmaps = PLEAT_E_NOT_READY;
    assert_result(pleat__space_unmap(space, page, 1), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text,
                        "unmap: the backend 'host' says that it is not ready");
    own.unmaps = PLEAT_OK;
    pleat__space_destroy(space);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_complete_is_used_as_it_is),
        cmocka_unit_test(table_shorter_one_works),
        cmocka_unit_test(table_gaps_are_filled_or_refused),
        cmocka_unit_test(table_other_versions_are_refused),
        cmocka_unit_test(table_failure_without_a_text_is_a_failure),
        cmocka_unit_test(table_failure_of_the_window_without_a_text_is_a_failure),
        cmocka_unit_test(table_failure_of_ranges_without_a_text_is_a_failure),
        cmocka_unit_test(table_first_of_two_failures_is_told),
        cmocka_unit_test(table_memory_verb_that_is_not_ready_has_failed),
    };
    return cmocka_run_group_tests_name("table", tests, NULL, NULL);
}
