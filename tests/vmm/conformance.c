/*
 * conformance.c: the contract of pleat/vmm.h, asked of one backend after the other:
 *
 *     test_vmm_conformance host | fault | cuda
 *
 * `fault` is the decorator, unarmed, over host. `cuda` is what pleat_vmm_cuda loads: the machine's
 * driver, or the tests' own libcuda when PLEAT_CUDA_LIBRARY names it. Nothing is skipped: a backend
 * that cannot be opened fails.
 */
#include "backend.h"

#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- devices ---- */

static void devices_and_granularity(void **state)
{
    (void)state;
    int count = 0;
    uint64_t least = 0, advised = 0;
    assert_ok(VERB(device_count, &count));
    assert_true(count >= 1);
    for (int d = 0; d < count; d++) {
        assert_ok(VERB(granularity, d, &least, &advised));
        assert_true(least >= 4096);
        assert_int_equal(least & (least - 1), 0);
        assert_true(advised >= least);
        assert_int_equal(advised % least, 0);
    }
    assert_result(VERB(granularity, count, &least, &advised), PLEAT_E_NO_DEVICE);
    assert_result(VERB(granularity, -1, &least, &advised), PLEAT_E_NO_DEVICE);
    assert_result(VERB(memory_info, count, &least, &advised), PLEAT_E_NO_DEVICE);
    pleat_va va;
    pleat_handle handle;
    pleat_event event;
    assert_result(VERB(reserve, count, b.granule, 0, &va), PLEAT_E_NO_DEVICE);
    assert_result(VERB(create, count, b.granule, 0, &handle), PLEAT_E_NO_DEVICE);
    assert_result(VERB(event_create, count, &event), PLEAT_E_NO_DEVICE);
}

static void memory_info_follows_create_and_release(void **state)
{
    (void)state;
    uint64_t before, during, after, total, bytes = 64 * b.granule;
    pleat_handle handle;
    assert_ok(VERB(memory_info, 0, &before, &total));
    assert_true(before <= total);
    assert_ok(VERB(create, 0, bytes, 0, &handle));
    assert_ok(VERB(memory_info, 0, &during, &total));
    assert_true(during + bytes <= before);
    assert_ok(VERB(release, handle));
    assert_ok(VERB(memory_info, 0, &after, &total));
    assert_true(after >= during + bytes);
}

/* ---- address space ---- */

static void reserve_aligns_and_refuses(void **state)
{
    (void)state;
    pleat_va va;
    uint64_t align = 64 * b.granule;
    assert_ok(VERB(reserve, 0, 3 * b.granule, align, &va));
    assert_int_equal(va % align, 0);
    assert_result(VERB(free_range, va, 2 * b.granule), PLEAT_E_INVALID);
    assert_result(VERB(free_range, va + b.granule, 2 * b.granule), PLEAT_E_INVALID);
    assert_ok(VERB(free_range, va, 3 * b.granule));
    assert_result(VERB(free_range, va, 3 * b.granule), PLEAT_E_INVALID);
    assert_result(VERB(reserve, 0, 0, 0, &va), PLEAT_E_INVALID);
    assert_result(VERB(reserve, 0, b.granule, 3 * b.granule, &va), PLEAT_E_INVALID);
}

/* A window is a terabyte and more. The thread sanitizer leaves a process little more than one. */
#ifdef __SANITIZE_THREAD__
#define WIDE_BYTES (1ull << 38)
#else
#define WIDE_BYTES (1ull << 40)
#endif

static void reserve_gives_a_wide_range(void **state)
{
    (void)state;
    pleat_va va;
    assert_ok(VERB(reserve, 0, WIDE_BYTES, 0, &va));
    assert_int_equal(va % b.granule, 0);
    assert_ok(VERB(free_range, va, WIDE_BYTES));
}

static void free_range_refuses_while_mapped(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handle;
    assert_ok(VERB(reserve, 0, 4 * b.granule, 0, &va));
    map_new(va + b.granule, 1, 1, &handle);
    assert_result(VERB(free_range, va, 4 * b.granule), PLEAT_E_INVALID);
    put(va + b.granule, 9);
    assert_int_equal(get(va + b.granule), 9);
    drop(va + b.granule, b.granule, &handle, 1);
    assert_ok(VERB(free_range, va, 4 * b.granule));
}

/* ---- physical memory ---- */

static void create_refuses_odd_sizes_and_too_much(void **state)
{
    (void)state;
    pleat_handle handle;
    uint64_t free_bytes, total;
    assert_result(VERB(create, 0, 0, 0, &handle), PLEAT_E_INVALID);
    assert_result(VERB(create, 0, b.granule + 512, 0, &handle), PLEAT_E_INVALID);
    assert_result(VERB(create, 0, b.granule, 1u << 20, &handle), PLEAT_E_INVALID);
    assert_ok(VERB(memory_info, 0, &free_bytes, &total));
    assert_result(VERB(create, 0, 2 * total / b.granule * b.granule, 0, &handle),
                  PLEAT_E_OUT_OF_MEMORY);
    if (is_cuda()) { /* the driver's own words */
        assert_int_equal(pleat_last_error()->native, 2);
        assert_string_equal(pleat_last_error()->native_name, "CUDA_ERROR_OUT_OF_MEMORY");
        assert_non_null(strstr(pleat_last_error()->text, "create"));
    }
}

static void create_takes_the_rdma_flag_everywhere(void **state)
{
    (void)state;
    pleat_handle handle;
    assert_ok(VERB(create, 0, b.granule, PLEAT_CREATE_RDMA, &handle));
    assert_ok(VERB(release, handle));
}

static void release_while_mapped_keeps_the_memory(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handle;
    assert_ok(VERB(reserve, 0, 2 * b.granule, 0, &va));
    map_new(va, 1, 1, &handle);
    put(va, 77);
    assert_ok(VERB(release, handle));
    assert_int_equal(get(va), 77);
    put(va + 8, 78);
    assert_int_equal(get(va + 8), 78);
    assert_ok(VERB(unmap, va, b.granule));
    assert_ok(VERB(free_range, va, 2 * b.granule));
}

static void release_refuses_what_it_does_not_know(void **state)
{
    (void)state;
    pleat_handle handle;
    pleat_va va;
    assert_ok(VERB(reserve, 0, b.granule, 0, &va));
    assert_ok(VERB(create, 0, b.granule, 0, &handle));
    assert_ok(VERB(release, handle));
    assert_result(VERB(map, va, b.granule, handle), PLEAT_E_INVALID);
    assert_result(VERB(release, handle), PLEAT_E_INVALID);
    assert_result(VERB(release, 0), PLEAT_E_INVALID);
    assert_result(VERB(release, 12345), PLEAT_E_INVALID);
    assert_result(VERB(map, va, b.granule, 12345), PLEAT_E_INVALID);
    assert_ok(VERB(free_range, va, b.granule));
}

/* ---- maps ---- */

static void map_refuses_what_does_not_fit(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle one, four;
    uint64_t g = b.granule;
    assert_ok(VERB(reserve, 0, 8 * g, 0, &va));
    assert_ok(VERB(create, 0, g, 0, &one));
    assert_ok(VERB(create, 0, 4 * g, 0, &four));
    assert_result(VERB(map, va, 2 * g, four), PLEAT_E_INVALID);  /* a prefix */
    assert_result(VERB(map, va, 2 * g, one), PLEAT_E_INVALID);   /* too long */
    assert_result(VERB(map, va + 512, g, one), PLEAT_E_INVALID); /* off the granularity */
    assert_result(VERB(map, va, g / 2, one), PLEAT_E_INVALID);   /* a size off it */
    assert_result(VERB(map, va, 0, one), PLEAT_E_INVALID);
    assert_result(VERB(map, va + 6 * g, 4 * g, four), PLEAT_E_INVALID); /* over the end */
    assert_ok(VERB(map, va + 2 * g, g, one));
    assert_result(VERB(map, va + 2 * g, g, one), PLEAT_E_INVALID); /* over a map */
    assert_result(VERB(map, va, 4 * g, four), PLEAT_E_INVALID);    /* partly over one */
    assert_ok(VERB(map, va + 3 * g, 4 * g, four));
    assert_ok(VERB(set_access, va + 2 * g, 5 * g, own_device, 1));
    put(va + 2 * g, 1);
    put(va + 7 * g - 8, 2);
    assert_int_equal(get(va + 2 * g), 1);
    assert_int_equal(get(va + 7 * g - 8), 2);
    drop(va + 2 * g, 5 * g, (pleat_handle[]){one, four}, 2);
    assert_ok(VERB(free_range, va, 8 * g));
    assert_ok(VERB(create, 0, g, 0, &one));
    assert_result(VERB(map, va, g, one), PLEAT_E_INVALID); /* reserved no more */
    assert_ok(VERB(release, one));
}

static void set_access_refuses_unmapped_pages(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handles[3];
    uint64_t g = b.granule;
    assert_ok(VERB(reserve, 0, 4 * g, 0, &va));
    assert_result(VERB(set_access, va, g, own_device, 1), PLEAT_E_INVALID);
    map_new(va, 1, 2, handles);
    assert_result(VERB(set_access, va, 3 * g, own_device, 1), PLEAT_E_INVALID);
    assert_ok(VERB(create, 0, g, 0, &handles[2]));
    assert_ok(VERB(map, va + 3 * g, g, handles[2]));
    assert_result(VERB(set_access, va, 4 * g, own_device, 1), PLEAT_E_INVALID); /* a hole */
    assert_result(VERB(set_access, va, 2 * g, own_device, 0), PLEAT_E_INVALID);
    assert_result(VERB(set_access, va, 2 * g, (const int[]){99}, 1), PLEAT_E_NO_DEVICE);
    assert_result(VERB(set_access, va, 2 * g, (const int[65]){0}, 65), PLEAT_E_INVALID);
    drop(va + 3 * g, g, &handles[2], 1);
    map_new(va + 2 * g, 2, 1, &handles[2]);
    assert_result(VERB(set_access, va, 3 * g, own_device, 1), PLEAT_E_INVALID); /* cuts a map */
    assert_result(VERB(set_access, va + 3 * g, g, own_device, 1), PLEAT_E_INVALID);
    put(va, 5);
    assert_int_equal(get(va), 5);
    assert_ok(VERB(set_access, va, 2 * g, own_device, 1)); /* again */
    assert_int_equal(get(va), 5);
    drop(va, 4 * g, handles, 3);
    assert_ok(VERB(free_range, va, 4 * g));
}

static void unmap_takes_whole_maps_only(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handles[4];
    uint64_t g = b.granule;
    assert_ok(VERB(reserve, 0, 16 * g, 0, &va));
    assert_result(VERB(unmap, va, g), PLEAT_E_INVALID); /* nothing there */
    map_new(va, 4, 3, handles);
    for (int i = 0; i < 3; i++)
        put(va + (uint64_t)i * 4 * g, 50 + (uint64_t)i);
    assert_result(VERB(unmap, va, 2 * g), PLEAT_E_INVALID);         /* a part */
    assert_result(VERB(unmap, va + g, 3 * g), PLEAT_E_INVALID);     /* the rest of one */
    assert_result(VERB(unmap, va, 6 * g), PLEAT_E_INVALID);         /* one and a half */
    assert_result(VERB(unmap, va + 2 * g, 6 * g), PLEAT_E_INVALID); /* a half and one */
    assert_result(VERB(unmap, va, 0), PLEAT_E_INVALID);
    for (int i = 0; i < 3; i++)
        assert_int_equal(get(va + (uint64_t)i * 4 * g), 50 + i);
    assert_ok(VERB(unmap, va + 4 * g, 4 * g)); /* the middle one */
    assert_result(VERB(unmap, va + 4 * g, 4 * g), PLEAT_E_INVALID);
    assert_int_equal(get(va), 50);
    assert_int_equal(get(va + 8 * g), 52);
    assert_ok(VERB(unmap, va, 4 * g));
    assert_ok(VERB(unmap, va + 8 * g, 4 * g));
    drop(0, 0, handles, 3);
    assert_ok(VERB(free_range, va, 16 * g));
}

static void unmap_refuses_a_hole(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handles[2];
    uint64_t g = b.granule;
    assert_ok(VERB(reserve, 0, 4 * g, 0, &va));
    map_new(va, 1, 1, handles);
    map_new(va + 2 * g, 1, 1, handles + 1);
    assert_result(VERB(unmap, va, 3 * g), PLEAT_E_INVALID);
    put(va, 3);
    put(va + 2 * g, 4);
    assert_int_equal(get(va), 3);
    assert_int_equal(get(va + 2 * g), 4);
    assert_ok(VERB(unmap, va, g));
    drop(va + 2 * g, g, handles, 2);
    assert_ok(VERB(free_range, va, 4 * g));
}

static void unmap_takes_many_maps_at_once(void **state)
{
    (void)state;
    enum { COUNT = 200 };
    pleat_va va;
    pleat_handle handles[COUNT];
    assert_ok(VERB(reserve, 0, COUNT * b.granule, 0, &va));
    map_new(va, 1, COUNT, handles);
    for (uint64_t i = 0; i < COUNT; i += 13)
        put(va + i * b.granule, i);
    for (uint64_t i = 0; i < COUNT; i += 13)
        assert_int_equal(get(va + i * b.granule), i);
    drop(va, COUNT * b.granule, handles, COUNT);
    assert_ok(VERB(free_range, va, COUNT * b.granule));
}

static void aliases_and_stitches_share_data(void **state)
{
    (void)state;
    enum { COUNT = 64 };
    pleat_va va, stitched;
    pleat_handle handles[COUNT];
    uint64_t g = b.granule;
    uint32_t order[COUNT];
    test_random random = test_random_begin("aliases_and_stitches_share_data", 3);
    assert_ok(VERB(reserve, 0, COUNT * g, 0, &va));
    assert_ok(VERB(reserve, 0, 2 * COUNT * g, 0, &stitched));
    map_new(va, 1, COUNT, handles);
    for (uint64_t i = 0; i < COUNT; i++)
        put(va + i * g + 8 * i, 1000 + i);
    for (uint64_t i = 0; i < 2 * COUNT; i++) { /* any order, each at least twice */
        if (i % 2 == 0)
            order[i / 2] = (uint32_t)test_random_below(&random, COUNT);
        assert_ok(VERB(map, stitched + i * g, g, handles[order[i / 2]]));
    }
    assert_ok(VERB(set_access, stitched, 2 * COUNT * g, own_device, 1));
    for (uint64_t i = 0; i < 2 * COUNT; i++)
        assert_int_equal(get(stitched + i * g + 8 * order[i / 2]), 1000 + order[i / 2]);
    put(stitched + 4096, 4242);
    assert_int_equal(get(va + order[0] * g + 4096), 4242);
    assert_int_equal(get(stitched + g + 4096), 4242);
    assert_ok(VERB(unmap, stitched, 2 * COUNT * g));
    assert_int_equal(get(va + order[0] * g + 4096), 4242);
    drop(va, COUNT * g, handles, COUNT);
    assert_ok(VERB(free_range, va, COUNT * g));
    assert_ok(VERB(free_range, stitched, 2 * COUNT * g));
}

static void a_chunk_moves_with_its_data(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handle;
    uint64_t g = b.granule;
    assert_ok(VERB(reserve, 0, 2 * g, 0, &va));
    map_new(va, 1, 1, &handle);
    put(va + 64, 31);
    assert_ok(VERB(unmap, va, g));
    assert_ok(VERB(map, va + g, g, handle));
    assert_ok(VERB(set_access, va + g, g, own_device, 1));
    assert_int_equal(get(va + g + 64), 31);
    drop(va + g, g, &handle, 1);
    assert_ok(VERB(free_range, va, 2 * g));
}

static void access_for_every_device(void **state)
{
    (void)state;
    int count, devices[64];
    pleat_va va;
    pleat_handle handle;
    assert_ok(VERB(device_count, &count));
    for (int d = 0; d < count; d++)
        devices[d] = d;
    assert_ok(VERB(reserve, 0, b.granule, 0, &va));
    assert_ok(VERB(create, 0, b.granule, 0, &handle));
    assert_ok(VERB(map, va, b.granule, handle));
    assert_ok(VERB(set_access, va, b.granule, devices, count));
    put(va, 6);
    assert_int_equal(get(va), 6);
    drop(va, b.granule, &handle, 1);
    assert_ok(VERB(free_range, va, b.granule));
}

/* ---- sharing ---- */

static void export_and_import_share_memory(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle own, imported, private;
    uint64_t g = b.granule;
    int fd = -1, other = -1;
    assert_ok(VERB(reserve, 0, 8 * g, 0, &va));
    assert_ok(VERB(create, 0, 4 * g, PLEAT_CREATE_SHAREABLE, &own));
    assert_ok(VERB(create, 0, g, 0, &private));
    assert_result(VERB(export_handle, private, &other), PLEAT_E_INVALID);
    assert_ok(VERB(export_handle, own, &fd));
    assert_true(fd >= 0);
    assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
    assert_ok(VERB(import_handle, 0, fd, 4 * g, &imported));
    assert_ok(VERB(map, va, 4 * g, own));
    assert_ok(VERB(map, va + 4 * g, 4 * g, imported));
    assert_ok(VERB(set_access, va, 8 * g, own_device, 1));
    put(va + 3 * g, 55);
    assert_int_equal(get(va + 7 * g), 55);
    assert_ok(VERB(release, own));
    assert_ok(VERB(unmap, va, 4 * g));
    assert_int_equal(get(va + 7 * g), 55);
    drop(va + 4 * g, 4 * g, (pleat_handle[]){imported, private}, 2);
    assert_int_equal(close(fd), 0); /* it was ours all the time */
    assert_ok(VERB(free_range, va, 8 * g));
    int ends[2]; /* descriptors that are no memory */
    assert_int_equal(pipe(ends), 0);
    assert_true(VERB(import_handle, 0, ends[0], g, &imported) != PLEAT_OK);
    close(ends[0]);
    close(ends[1]);
}

enum { INHERITED = 100, SENT = 4321, ANSWERED = 8765 };

/* In a process of its own: reads what the other one wrote, and answers. */
static int other_process(void)
{
    pleat_va va;
    pleat_handle handle;
    uint64_t g, advised;
    if ((is_cuda() ? pleat_vmm_cuda(&b.vmm) : pleat_vmm_host(NULL, &b.vmm)) != PLEAT_OK ||
        VERB(granularity, 0, &g, &advised) != PLEAT_OK ||
        VERB(import_handle, 0, INHERITED, 2 * g, &handle) != PLEAT_OK ||
        VERB(reserve, 0, 2 * g, 0, &va) != PLEAT_OK || VERB(map, va, 2 * g, handle) != PLEAT_OK ||
        VERB(set_access, va, 2 * g, own_device, 1) != PLEAT_OK) {
        fprintf(stderr, "the other process: %s\n", pleat_last_error()->text);
        return 1;
    }
    uint64_t found = get(va + g);
    put(va + g, ANSWERED);
    bool ended = VERB(unmap, va, 2 * g) == PLEAT_OK && VERB(release, handle) == PLEAT_OK &&
                 VERB(free_range, va, 2 * g) == PLEAT_OK;
    pleat_vmm_destroy(&b.vmm);
    return found == SENT && ended ? 0 : 2;
}

static void run_other_process(int fd)
{
    char name[] = "test_vmm_conformance", role[] = "other-process", kind[16];
    char *arguments[] = {name, kind, role, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;
    int status;
    snprintf(kind, sizeof kind, "%s", is_cuda() ? "cuda" : "host");
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    assert_int_equal(posix_spawn_file_actions_adddup2(&actions, fd, INHERITED), 0);
    assert_int_equal(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, arguments, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void export_reaches_another_process(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handle;
    uint64_t g = b.granule;
    int fd = -1;
    assert_ok(VERB(reserve, 0, 2 * g, 0, &va));
    assert_ok(VERB(create, 0, 2 * g, PLEAT_CREATE_SHAREABLE, &handle));
    assert_ok(VERB(map, va, 2 * g, handle));
    assert_ok(VERB(set_access, va, 2 * g, own_device, 1));
    put(va + g, SENT);
    assert_ok(VERB(export_handle, handle, &fd));
    run_other_process(fd);
    assert_int_equal(get(va + g), ANSWERED);
    close(fd);
    drop(va, 2 * g, &handle, 1);
    assert_ok(VERB(free_range, va, 2 * g));
}

/* ---- events ---- */

static void events_follow_their_stream(void **state)
{
    (void)state;
    pleat_event event;
    assert_ok(VERB(event_create, 0, &event));
    assert_ok(VERB(event_query, event)); /* never recorded */
    assert_ok(VERB(event_wait, event));
    shut_gate();
    assert_ok(VERB(event_record, event, b.stream));
    assert_result(VERB(event_query, event), PLEAT_E_NOT_READY);
    open_gate();
    assert_ok(VERB(event_wait, event));
    assert_ok(VERB(event_query, event));
    assert_ok(VERB(event_record, event, 0)); /* again, on the default stream */
    assert_ok(VERB(event_wait, event));
    assert_ok(VERB(event_destroy, event));
    assert_result(VERB(event_query, 0), PLEAT_E_INVALID);
    assert_result(VERB(event_record, 0, b.stream), PLEAT_E_INVALID);
    assert_result(VERB(event_destroy, 0), PLEAT_E_INVALID);
}

static void streams_wait_for_events(void **state)
{
    (void)state;
    pleat_event first, second;
    pleat_stream other = 12345;
    if (is_cuda())
        assert_ok(b.vmm.ops->stream_create(b.vmm.self, 0, &other));
    assert_ok(VERB(event_create, 0, &first));
    assert_ok(VERB(event_create, 0, &second));
    shut_gate();
    assert_ok(VERB(event_record, first, b.stream));
    assert_ok(VERB(event_record, second, other));
    assert_ok(VERB(event_wait, second)); /* nothing holds it */
    assert_ok(VERB(stream_wait, other, first));
    assert_ok(VERB(event_record, second, other));
    assert_result(VERB(event_query, second), PLEAT_E_NOT_READY);
    open_gate();
    assert_ok(VERB(event_wait, second));
    assert_ok(VERB(event_query, first));
    assert_ok(VERB(event_destroy, first));
    assert_ok(VERB(event_destroy, second));
    if (is_cuda())
        assert_ok(b.vmm.ops->stream_destroy(b.vmm.self, 0, other));
}

static void verbs_do_not_wait_for_work(void **state)
{
    (void)state;
    pleat_va va;
    pleat_handle handles[8];
    pleat_event event;
    assert_ok(VERB(reserve, 0, 8 * b.granule, 0, &va));
    assert_ok(VERB(event_create, 0, &event));
    shut_gate();
    assert_ok(VERB(event_record, event, b.stream));
    map_new(va, 1, 8, handles);
    drop(va, 8 * b.granule, handles, 8);
    assert_result(VERB(event_query, event), PLEAT_E_NOT_READY);
    open_gate();
    assert_ok(VERB(event_wait, event));
    assert_ok(VERB(event_destroy, event));
    assert_ok(VERB(free_range, va, 8 * b.granule));
}

static void clock_goes_forward(void **state)
{
    (void)state;
    uint64_t before = b.vmm.ops->clock_ns(b.vmm.self);
    usleep(2000);
    uint64_t after = b.vmm.ops->clock_ns(b.vmm.self);
    assert_true(after >= before + 1000000);
}

/* ---- threads ---- */

typedef struct worker {
    pthread_t thread;
    pleat_va va;
    pleat_result result;
    uint64_t wrong;
} worker;

enum { THREADS = 4, ROUNDS = 40, RUN = 8 };

static pleat_result work_once(worker *w, uint64_t round)
{
    pleat_handle handles[RUN];
    for (uint64_t i = 0; i < RUN; i++) {
        pleat_result result = VERB(create, 0, b.granule, 0, &handles[i]);
        if (result != PLEAT_OK)
            return result;
        result = VERB(map, w->va + i * b.granule, b.granule, handles[i]);
        if (result != PLEAT_OK)
            return result;
    }
    pleat_result result = VERB(set_access, w->va, RUN * b.granule, own_device, 1);
    if (result == PLEAT_OK && !is_cuda()) {
        uint64_t *word = (uint64_t *)(uintptr_t)w->va;
        *word = w->va + round;
        w->wrong += *word != w->va + round;
    }
    if (result == PLEAT_OK)
        result = VERB(unmap, w->va, RUN * b.granule);
    for (uint64_t i = 0; i < RUN && result == PLEAT_OK; i++)
        result = VERB(release, handles[i]);
    return result;
}

static void *work(void *context)
{
    worker *w = context;
    for (uint64_t round = 0; round < ROUNDS && w->result == PLEAT_OK; round++)
        w->result = work_once(w, round);
    return NULL;
}

static void verbs_from_many_threads(void **state)
{
    (void)state;
    worker workers[THREADS] = {0};
    for (int t = 0; t < THREADS; t++) {
        assert_ok(VERB(reserve, 0, RUN * b.granule, 0, &workers[t].va));
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++) {
        assert_int_equal(pthread_join(workers[t].thread, NULL), 0);
        assert_result(workers[t].result, PLEAT_OK);
        assert_int_equal(workers[t].wrong, 0);
        assert_ok(VERB(free_range, workers[t].va, RUN * b.granule));
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_and_granularity),
        cmocka_unit_test(memory_info_follows_create_and_release),
        cmocka_unit_test(reserve_aligns_and_refuses),
        cmocka_unit_test(reserve_gives_a_wide_range),
        cmocka_unit_test(free_range_refuses_while_mapped),
        cmocka_unit_test(create_refuses_odd_sizes_and_too_much),
        cmocka_unit_test(create_takes_the_rdma_flag_everywhere),
        cmocka_unit_test(release_while_mapped_keeps_the_memory),
        cmocka_unit_test(map_refuses_what_does_not_fit),
        cmocka_unit_test(set_access_refuses_unmapped_pages),
        cmocka_unit_test(unmap_takes_whole_maps_only),
        cmocka_unit_test(unmap_takes_many_maps_at_once),
        cmocka_unit_test(aliases_and_stitches_share_data),
        cmocka_unit_test(a_chunk_moves_with_its_data),
        cmocka_unit_test(access_for_every_device),
        cmocka_unit_test(export_and_import_share_memory),
        cmocka_unit_test(export_reaches_another_process),
        cmocka_unit_test(events_follow_their_stream),
        cmocka_unit_test(streams_wait_for_events),
        cmocka_unit_test(verbs_do_not_wait_for_work),
        cmocka_unit_test(clock_goes_forward),
        cmocka_unit_test(verbs_from_many_threads),
        cmocka_unit_test(unmap_refuses_a_hole),
        cmocka_unit_test(release_refuses_what_it_does_not_know),
    };
    b.name = argc > 1 ? argv[1] : "host";
    if (strcmp(b.name, "host") != 0 && strcmp(b.name, "fault") != 0 && !is_cuda()) {
        fprintf(stderr, "usage: %s [host|fault|cuda]\n", argv[0]);
        return 2;
    }
    if (argc > 2 && strcmp(argv[2], "other-process") == 0)
        return other_process();
    return cmocka_run_group_tests_name(b.name, tests, open_backend, close_backend);
}
