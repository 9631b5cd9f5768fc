/*
 * cuda.c: how the CUDA backend finds its driver and behaves in an application's process; over the
 * tests' own libcuda, whose path comes with PLEAT_CUDA_LIBRARY.
 */
#include "../test.h"
#include "fake_libcuda.h"

#include <dlfcn.h>
#include <internal/error.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <vmm/cuda.h>
#include <vmm/cuda_driver.h>
#include <vmm/cuda_pattern.h>
#include <vmm/mapper.h>
#include <vmm/pages.h>
#include <vmm/space.h>

static const char *library;

static void cuda_missing_library_is_named(void **state)
{
    (void)state;
    pleat_vmm vmm;
    setenv("PLEAT_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
    assert_result(pleat_vmm_cuda(&vmm), PLEAT_E_UNSUPPORTED);
    assert_non_null(strstr(pleat_last_error()->text, "/nowhere/libcuda.so.1"));
    assert_non_null(strstr(pleat_last_error()->text, "PLEAT_CUDA_LIBRARY"));
    setenv("PLEAT_CUDA_LIBRARY", "libm.so.6", 1); /* a library, but no driver */
    assert_result(pleat_vmm_cuda(&vmm), PLEAT_E_UNSUPPORTED);
    assert_non_null(strstr(pleat_last_error()->text, "cuGetProcAddress"));
    setenv("PLEAT_CUDA_LIBRARY", library, 1);
}

static void cuda_every_missing_symbol_is_named(void **state)
{
    (void)state;
    static const char *const names[] = {
#define NAME(name, since, parameters) #name,
        PLEAT__CUDA_SYMBOLS(NAME)
#undef NAME
    };
    pleat_vmm vmm;
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        setenv("PLEAT_FAKE_CUDA_WITHOUT", names[n], 1);
        assert_result(pleat_vmm_cuda(&vmm), PLEAT_E_UNSUPPORTED);
        assert_non_null(strstr(pleat_last_error()->text, names[n]));
        assert_non_null(strstr(pleat_last_error()->text, "came with CUDA"));
    }
    unsetenv("PLEAT_FAKE_CUDA_WITHOUT");
    assert_ok(pleat_vmm_cuda(&vmm));
    pleat_vmm_destroy(&vmm);
}

static void cuda_driver_errors_keep_number_and_name(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_handle handle;
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_result(vmm.ops->create(vmm.self, 0, 1ull << 40, 0, &handle), PLEAT_E_OUT_OF_MEMORY);
    assert_int_equal(pleat_last_error()->native, 2);
    assert_string_equal(pleat_last_error()->native_name, "CUDA_ERROR_OUT_OF_MEMORY");
    assert_string_equal(pleat_last_error()->text, "device 0: create of 1099511627776 bytes: "
                                                  "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory");
    pleat_vmm_destroy(&vmm);
}

/* The application's context of device 1 stays current through everything done on device 0. */
static void cuda_leaves_the_current_context_alone(void **state)
{
    (void)state;
    pleat__cuda_driver driver;
    CUcontext own, now;
    assert_ok(pleat__cuda_load(&driver));
    assert_int_equal(driver.cuDevicePrimaryCtxRetain(&own, 1), CU_OK);
    assert_int_equal(driver.cuCtxPushCurrent(own), CU_OK);
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__chunk *chunk;
    pleat_event event;
    pleat_stream stream;
    uint64_t page;
    const pleat__space_options options = {.window_bytes = 64 << 20};
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    assert_ok(pleat__space_take(space, 1, &page));
    assert_ok(pleat__space_map(space, page, &chunk, 1));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &event));
    assert_ok(vmm.ops->event_record(vmm.self, event, 0));
    assert_ok(vmm.ops->stream_wait(vmm.self, 0, event));
    assert_ok(vmm.ops->event_wait(vmm.self, event));
    assert_ok(vmm.ops->event_destroy(vmm.self, event));
    assert_ok(vmm.ops->stream_create(vmm.self, 0, &stream));
    assert_ok(vmm.ops->stream_destroy(vmm.self, 0, stream));
    assert_ok(pleat__cuda_copy_in(&vmm, 0, pleat__space_base(space), &page, sizeof page));
    assert_result(pleat__cuda_copy_in(&vmm, 9, pleat__space_base(space), &page, sizeof page),
                  PLEAT_E_NO_DEVICE);
    assert_int_equal(driver.cuCtxGetCurrent(&now), CU_OK);
    assert_ptr_equal(now, own);
    pleat__space_destroy(space);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
    assert_int_equal(driver.cuCtxGetCurrent(&now), CU_OK);
    assert_ptr_equal(now, own);
    assert_int_equal(driver.cuCtxPopCurrent(&now), CU_OK);
    assert_int_equal(driver.cuDevicePrimaryCtxRelease(1), CU_OK);
    assert_int_equal(driver.cuDevicePrimaryCtxRelease(1), 201); /* none of ours is left */
    assert_int_equal(driver.cuDevicePrimaryCtxRelease(0), 201);
}

static void *use_without_context(void *context)
{
    const pleat_vmm *vmm = context;
    uint64_t free_bytes, total;
    pleat_event event;
    bool good = vmm->ops->memory_info(vmm->self, 1, &free_bytes, &total) == PLEAT_OK &&
                vmm->ops->event_create(vmm->self, 1, &event) == PLEAT_OK &&
                vmm->ops->event_record(vmm->self, event, 0) == PLEAT_OK &&
                vmm->ops->event_query(vmm->self, event) == PLEAT_OK &&
                vmm->ops->event_destroy(vmm->self, event) == PLEAT_OK;
    return good ? context : NULL;
}

static void cuda_works_on_a_thread_without_context(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pthread_t thread;
    void *good = NULL;
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_int_equal(pthread_create(&thread, NULL, use_without_context, &vmm), 0);
    assert_int_equal(pthread_join(thread, &good), 0);
    assert_non_null(good);
    pleat_vmm_destroy(&vmm);
}

/* A piece of memory, mapped and unmapped, behind an event. */
static pleat_result use_memory(void *context, pleat_result ready)
{
    const pleat_vmm *vmm = context;
    uint64_t bytes, advised;
    pleat_va at;
    pleat_handle handle;
    PLEAT_TRY(ready);
    PLEAT_TRY(vmm->ops->granularity(vmm->self, 0, &bytes, &advised));
    PLEAT_TRY(vmm->ops->reserve(vmm->self, 0, bytes, 0, &at));
    PLEAT_TRY(vmm->ops->create(vmm->self, 0, bytes, 0, &handle));
    PLEAT_TRY(vmm->ops->map(vmm->self, at, bytes, handle));
    PLEAT_TRY(vmm->ops->set_access(vmm->self, at, bytes, &(int){0}, 1));
    PLEAT_TRY(vmm->ops->unmap(vmm->self, at, bytes));
    PLEAT_TRY(vmm->ops->release(vmm->self, handle));
    return vmm->ops->free_range(vmm->self, at, bytes);
}

/* While a program captures, in the driver's global mode, what Pleat's own thread does breaks
 * nothing; the program's threads are the program's. */
static void cuda_own_threads_break_no_capture(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__mapper *mapper;
    pleat_event event;
    void (*capture)(bool);
    void *fake = dlopen(library, RTLD_NOW);
    const pleat__space_options options = {.device = 0};
    assert_non_null(fake);
    *(void **)&capture = dlsym(fake, "fake_cuda_capture");
    assert_non_null(capture);
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    assert_ok(pleat__mapper_create(vmm, arena, &mapper));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &event));
    assert_ok(vmm.ops->event_record(vmm.self, event, 0));
    pleat__job job = {.call = use_memory, .context = &vmm, .events = &event, .event_count = 1};
    capture(true);
    pleat__mapper_submit(mapper, &job);
    pleat_result result = pleat__mapper_wait(mapper, &job);
    pleat_handle handle;
    assert_result(vmm.ops->create(vmm.self, 0, 2u << 20, 0, &handle), PLEAT_E_DRIVER);
    capture(false);
    assert_ok(result);
    pleat__mapper_destroy(mapper);
    assert_ok(vmm.ops->event_destroy(vmm.self, event));
    pleat__space_destroy(space);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* Nothing is recorded on a stream that captures, and it is not made to wait: either would be part
 * of the graph. Behind the capture all is as before. */
static void cuda_leaves_a_stream_that_captures_alone(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_stream stream;
    pleat_event event;
    void (*stream_captures)(void *, bool);
    void *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&stream_captures = dlsym(fake, "fake_cuda_stream_captures");
    assert_non_null(stream_captures);
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(vmm.ops->stream_create(vmm.self, 0, &stream));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &event));
    stream_captures((void *)(uintptr_t)stream, true);
    assert_result(vmm.ops->event_record(vmm.self, event, stream), PLEAT_E_STATE);
    assert_non_null(strstr(pleat_last_error()->text, "captures"));
    assert_ok(vmm.ops->event_query(vmm.self, event)); /* never recorded */
    assert_ok(vmm.ops->event_record(vmm.self, event, 0));
    assert_result(vmm.ops->stream_wait(vmm.self, stream, event), PLEAT_E_STATE);
    stream_captures(NULL, true);
    assert_result(vmm.ops->event_record(vmm.self, event, 0), PLEAT_E_STATE);
    stream_captures(NULL, false);
    stream_captures((void *)(uintptr_t)stream, false);
    assert_ok(vmm.ops->stream_wait(vmm.self, stream, event));
    assert_ok(vmm.ops->event_record(vmm.self, event, stream));
    assert_ok(vmm.ops->event_wait(vmm.self, event));
    assert_ok(vmm.ops->event_destroy(vmm.self, event));
    assert_ok(vmm.ops->stream_destroy(vmm.self, 0, stream));
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

static void cuda_two_devices_with_access_for_each_other(void **state)
{
    (void)state;
    pleat_vmm vmm;
    int count;
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(vmm.ops->device_count(vmm.self, &count));
    assert_int_equal(count, 2);
    for (int d = 0; d < 2; d++) {
        const pleat__space_options options = {.device = d, .window_bytes = 64 << 20};
        pleat__arena *arena;
        pleat__space *space;
        pleat__chunk *chunk;
        uint64_t page, before, after, total;
        assert_ok(pleat__arena_create(&arena));
        assert_ok(vmm.ops->memory_info(vmm.self, d, &before, &total));
        assert_ok(pleat__space_create(vmm, arena, &options, &space));
        assert_ok(pleat__space_add_peer(space, 1 - d));
        assert_ok(pleat__space_chunk_get(space, 3, &chunk));
        assert_ok(vmm.ops->memory_info(vmm.self, d, &after, &total));
        assert_int_equal(before - after, 3 * pleat__space_page_bytes(space));
        assert_ok(pleat__space_take(space, 3, &page));
        assert_ok(pleat__space_map(space, page, &chunk, 1));
        pleat__space_destroy(space);
        pleat__arena_destroy(arena);
    }
    pleat_vmm_destroy(&vmm);
}

static void cuda_extras_refuse_other_backends(void **state)
{
    (void)state;
    pleat_vmm host;
    uint64_t word = 0;
    assert_ok(pleat_vmm_host(NULL, &host));
    assert_result(pleat__cuda_copy_out(&host, 0, &word, 0, 8), PLEAT_E_INVALID);
    assert_non_null(strstr(pleat_last_error()->text, "'host'"));
    pleat_vmm_destroy(&host);
}

#define ENTRY(name) ".visible .entry " name "()\n{\nret;\n}\n"

/* All that a pattern's owner does; what the driver refuses must be said and leave nothing. */
static pleat_result use_pattern(const pleat_vmm *vmm)
{
    static const char ptx[] = ENTRY("nothing_written") ENTRY("nothing_counted");
    pleat__cuda_pattern pattern;
    uint64_t counters[PLEAT__CUDA_PATTERN_COUNTERS] = {1, 1};
    PLEAT_TRY(
        pleat__cuda_pattern_open(vmm, 0, ptx, "nothing_written", "nothing_counted", &pattern));
    pleat_result result = pleat__cuda_pattern_write(&pattern, 0, 1, NULL);
    if (result == PLEAT_OK)
        result = pleat__cuda_pattern_verify(&pattern, 0, UINT64_MAX, NULL);
    if (result == PLEAT_OK)
        result = pleat__cuda_pattern_counted(&pattern, counters);
    if (result == PLEAT_OK)
        assert_int_equal(counters[0] + counters[1], 0);
    pleat__cuda_pattern_close(&pattern);
    return result;
}

static void cuda_pattern_gives_back_whatever_fails(void **state)
{
    (void)state;
    bool (*fail_nth)(uint64_t);
    uint64_t (*held)(void);
    pleat_vmm vmm;
    void *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&fail_nth = dlsym(fake, "fake_cuda_fail");
    *(void **)&held = dlsym(fake, "fake_cuda_held");
    assert_non_null(fail_nth);
    assert_non_null(held);
    assert_ok(pleat_vmm_cuda(&vmm));
    uint64_t before = held(), nth = 0;
    for (bool failed = true; failed;) {
        (void)fail_nth(++nth);
        pleat_result result = use_pattern(&vmm);
        failed = fail_nth(0);
        assert_result(result, failed ? PLEAT_E_DRIVER : PLEAT_OK);
        if (failed)
            assert_int_equal(pleat_last_error()->native, 999);
        assert_int_equal(held(), before);
    }
    /* The text, two kernels of it, granularity's two, reserve, create, map, access, copy, two
     * launches, copy. */
    assert_int_equal(nth, 14);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* Pinned memory is the process's own in huge pages or, where that cannot be pinned, the driver's.
 */
static void cuda_pins_pages_or_takes_the_drivers(void **state)
{
    (void)state;
    bool (*fail_nth)(uint64_t);
    uint64_t (*held)(void);
    pleat_vmm vmm;
    void *memory[3], *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&fail_nth = dlsym(fake, "fake_cuda_fail");
    *(void **)&held = dlsym(fake, "fake_cuda_held");
    assert_ok(pleat_vmm_cuda(&vmm));
    uint64_t before = held();
    for (int i = 0; i < 3; i++) {
        (void)fail_nth(i == 1 ? 1 : 0);
        assert_ok(vmm.ops->host_alloc(vmm.self, 0, 5000000, &memory[i]));
        assert_true(fail_nth(0)); /* it has failed, if it was to */
        memset(memory[i], i, 5000000);
        assert_int_equal(held(), before + (uint64_t)i + 1);
    }
    for (pleat__pin_way way = PLEAT__PIN_DRIVER; way <= PLEAT__PIN_HUGE_PAGES; way++) {
        void *more;
        (void)fail_nth(1);
        assert_result(pleat__cuda_pin(&vmm, 0, way, PLEAT__HUGE_PAGE_BYTES, &more), PLEAT_E_DRIVER);
        assert_ok(pleat__cuda_pin(&vmm, 0, way, PLEAT__HUGE_PAGE_BYTES, &more));
        assert_int_equal(held(), before + 4);
        assert_ok(vmm.ops->host_free(vmm.self, 0, more));
    }
    for (int i = 0; i < 3; i++)
        assert_ok(vmm.ops->host_free(vmm.self, 0, memory[i]));
    assert_int_equal(held(), before);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* Asked again it goes: until then its pages are the process's, and pinned. */
static void cuda_host_free_that_failed_is_tried_again(void **state)
{
    (void)state;
    void (*keep)(int);
    uint64_t (*held)(void);
    pleat_vmm vmm;
    void *memory, *other, *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&keep = dlsym(fake, "fake_cuda_keep");
    *(void **)&held = dlsym(fake, "fake_cuda_held");
    assert_ok(pleat_vmm_cuda(&vmm));
    uint64_t before = held();
    assert_ok(pleat__cuda_pin(&vmm, 0, PLEAT__PIN_PAGES, PLEAT__HUGE_PAGE_BYTES, &memory));
    assert_ok(pleat__cuda_pin(&vmm, 0, PLEAT__PIN_PAGES, PLEAT__HUGE_PAGE_BYTES, &other));
    keep(999);
    assert_result(vmm.ops->host_free(vmm.self, 0, memory), PLEAT_E_DRIVER);
    keep(0);
    memset(memory, 1, PLEAT__HUGE_PAGE_BYTES);
    assert_int_equal(held(), before + 2);
    assert_ok(vmm.ops->host_free(vmm.self, 0, memory));
    assert_ok(vmm.ops->host_free(vmm.self, 0, other));
    assert_int_equal(held(), before);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* Of an event that the driver did not take nothing is freed: it may be used, and destroyed again.
 */
static void cuda_event_destroy_that_failed_is_tried_again(void **state)
{
    (void)state;
    void (*keep)(int);
    pleat_vmm vmm;
    pleat_event event, other;
    void *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&keep = dlsym(fake, "fake_cuda_keep");
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &event));
    keep(999);
    assert_result(vmm.ops->event_destroy(vmm.self, event), PLEAT_E_DRIVER);
    keep(0);
    assert_ok(vmm.ops->event_create(vmm.self, 1, &other));
    assert_true(other != event);
    assert_ok(vmm.ops->event_record(vmm.self, event, 0));
    assert_ok(vmm.ops->event_wait(vmm.self, event));
    assert_ok(vmm.ops->event_destroy(vmm.self, event));
    assert_ok(vmm.ops->event_destroy(vmm.self, other));
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* "Invalid", of what is mapped, is not that nothing is: the place stays quarantined until the
 * driver takes it. */
static void cuda_unmap_that_the_driver_calls_invalid_is_tried_again(void **state)
{
    (void)state;
    void (*keep)(int);
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__chunk *chunk;
    uint64_t page;
    void *fake = dlopen(library, RTLD_NOW);
    const pleat__space_options options = {.window_bytes = 64 << 20};
    assert_non_null(fake);
    *(void **)&keep = dlsym(fake, "fake_cuda_keep");
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    for (int round = 0; round < 2; round++) {
        assert_ok(pleat__space_take(space, 1, &page));
        assert_ok(pleat__space_map(space, page, &chunk, 1));
        keep(CU_INVALID_VALUE);
        assert_result(pleat__space_unmap(space, page, 1), PLEAT_E_DRIVER);
        assert_int_equal(pleat_last_error()->native, CU_INVALID_VALUE);
        pleat__space_give(space, page, 1);
        assert_int_equal(pleat__space_heal(space), 1);
        keep(0);
        assert_int_equal(pleat__space_heal(space), 0);
    }
    pleat__space_chunk_put(space, chunk);
    pleat__space_destroy(space);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* Where a verb fails, what it gives through a pointer is as it was before. */
static void cuda_verbs_that_fail_give_nothing(void **state)
{
    (void)state;
    enum { BEFORE = 77 };
    bool (*fail_nth)(uint64_t);
    pleat_vmm vmm;
    uint64_t a = BEFORE, b = BEFORE;
    void *memory = &vmm, *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&fail_nth = dlsym(fake, "fake_cuda_fail");
    assert_ok(pleat_vmm_cuda(&vmm));
    const pleat_vmm_ops *ops = vmm.ops;
    for (uint64_t nth = 1; nth <= 2; nth++) {
        (void)fail_nth(nth);
        assert_result(ops->granularity(vmm.self, 0, &a, &b), PLEAT_E_DRIVER);
    }
    (void)fail_nth(1);
    assert_result(ops->memory_info(vmm.self, 0, &a, &b), PLEAT_E_DRIVER);
    pleat__arena_fail(1, true);
    assert_result(ops->create(vmm.self, 0, 2 << 20, 0, &a), PLEAT_E_NO_MEMORY);
    (void)fail_nth(2); /* the process's own pages have no record, the driver has none */
    assert_result(ops->host_alloc(vmm.self, 0, 1 << 20, &memory), PLEAT_E_DRIVER);
    pleat__arena_fail(0, false);
    assert_true(fail_nth(0));
    assert_int_equal(a, BEFORE);
    assert_int_equal(b, BEFORE);
    assert_ptr_equal(memory, &vmm);
    pleat_vmm_destroy(&vmm);
    dlclose(fake);
}

/* One word by threads of the device, as a pause and its resume do it. */
static pleat_result read_word(const pleat_vmm *vmm, pleat_va to, void *from)
{
    const pleat_vmm_ops *ops = vmm->ops;
    pleat_stream stream;
    PLEAT_TRY(ops->copy_by_threads(vmm->self, 0, 0, 0, 0, 0));
    PLEAT_TRY(ops->stream_create(vmm->self, 0, &stream));
    pleat_result result =
        ops->copy_by_threads(vmm->self, 0, stream, to, (uint64_t)(uintptr_t)from, 16);
    if (result == PLEAT_OK)
        result = pleat__cuda_stream_finish(vmm, 0, stream);
    assert_ok(ops->stream_destroy(vmm->self, 0, stream));
    return result;
}

/* The kernel that reads is loaded once, and goes with the backend; a failure is said, and the next
 * call loads it. */
static void cuda_threads_read_pinned_memory(void **state)
{
    (void)state;
    bool (*fail_nth)(uint64_t);
    uint64_t (*held)(void);
    pleat_vmm vmm;
    pleat_handle handle;
    pleat_va va;
    int device = 0;
    void *from, *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&fail_nth = dlsym(fake, "fake_cuda_fail");
    *(void **)&held = dlsym(fake, "fake_cuda_held");
    uint64_t before = held(), calls = 0;
    assert_ok(pleat_vmm_cuda(&vmm));
    const pleat_vmm_ops *ops = vmm.ops;
    assert_ok(ops->host_alloc(vmm.self, 0, PLEAT__HUGE_PAGE_BYTES, &from));
    assert_ok(ops->create(vmm.self, 0, PLEAT__HUGE_PAGE_BYTES, 0, &handle));
    assert_ok(ops->reserve(vmm.self, 0, PLEAT__HUGE_PAGE_BYTES, 0, &va));
    assert_ok(ops->map(vmm.self, va, PLEAT__HUGE_PAGE_BYTES, handle));
    assert_ok(ops->set_access(vmm.self, va, PLEAT__HUGE_PAGE_BYTES, &device, 1));
    for (bool failed = true; failed;) {
        uint64_t word = 7 + calls;
        memcpy(from, &word, sizeof word);
        (void)fail_nth(++calls);
        pleat_result result = read_word(&vmm, va, from);
        failed = fail_nth(0);
        assert_result(result, failed ? PLEAT_E_DRIVER : PLEAT_OK);
        if (!failed)
            assert_int_equal(*(const uint64_t *)(uintptr_t)va, word);
    }
    assert_result(ops->copy_by_threads(vmm.self, 0, 0, va, (uint64_t)(uintptr_t)from, 8),
                  PLEAT_E_INVALID);
    assert_result(ops->copy_by_threads(vmm.self, 99, 0, va, (uint64_t)(uintptr_t)from, 16),
                  PLEAT_E_NO_DEVICE);
    assert_ok(ops->host_free(vmm.self, 0, from));
    assert_ok(ops->unmap(vmm.self, va, PLEAT__HUGE_PAGE_BYTES));
    assert_ok(ops->release(vmm.self, handle));
    assert_ok(ops->free_range(vmm.self, va, PLEAT__HUGE_PAGE_BYTES));
    pleat_vmm_destroy(&vmm);
    assert_int_equal(held(), before);
    setenv("PLEAT_FAKE_CUDA_READS_NOTHING", "1", 1);
    assert_ok(pleat_vmm_cuda(&vmm));
    assert_result(vmm.ops->copy_by_threads(vmm.self, 0, 0, 0, 0, 0), PLEAT_E_UNSUPPORTED);
    assert_int_equal(held(), before);
    pleat_vmm_destroy(&vmm);
    unsetenv("PLEAT_FAKE_CUDA_READS_NOTHING");
    dlclose(fake);
}

/* What another thread reserves while a range is being freed. */
static struct {
    pleat_vmm vmm;
    pthread_t thread;
    pleat_va va;
    pleat_result result;
    atomic_bool done;
    bool before; /* it was entered before the free had ended */
} beside;

static void *reserve_beside(void *context)
{
    (void)context;
    beside.result = beside.vmm.ops->reserve(beside.vmm.self, 0, 4 << 20, 0, &beside.va);
    atomic_store(&beside.done, true);
    return NULL;
}

static void after_free(void)
{
    assert_int_equal(pthread_create(&beside.thread, NULL, reserve_beside, NULL), 0);
    for (int i = 0; i < 100 && !atomic_load(&beside.done); i++)
        usleep(1000);
    beside.before = atomic_load(&beside.done);
}

/* The driver may give it the same addresses: then the free must not strike it out. */
static void cuda_range_is_entered_behind_the_free_before_it(void **state)
{
    (void)state;
    void (*call_after_free)(void (*)(void)), *fake = dlopen(library, RTLD_NOW);
    assert_non_null(fake);
    *(void **)&call_after_free = dlsym(fake, "fake_cuda_after_free");
    assert_ok(pleat_vmm_cuda(&beside.vmm));
    const pleat_vmm *vmm = &beside.vmm;
    pleat_va va;
    assert_ok(vmm->ops->reserve(vmm->self, 0, 4 << 20, 0, &va));
    call_after_free(after_free);
    assert_ok(vmm->ops->free_range(vmm->self, va, 4 << 20));
    call_after_free(NULL);
    assert_int_equal(pthread_join(beside.thread, NULL), 0);
    assert_ok(beside.result);
    assert_false(beside.before);
    assert_ok(vmm->ops->free_range(vmm->self, beside.va, 4 << 20));
    pleat_vmm_destroy(&beside.vmm);
    dlclose(fake);
}

static void cuda_no_device_is_said(void **state)
{
    (void)state;
    /* The fake driver counts its devices once a process, so the count of 0 is asked of a new one.
     */
    char command[1024];
    snprintf(command, sizeof command,
             "PLEAT_FAKE_CUDA_DEVICES=0 PLEAT_CUDA_LIBRARY='%s' /proc/%d/exe no-device", library,
             (int)getpid());
    assert_int_equal(system(command), 0);
}

int main(int argc, char **argv)
{
    library = getenv("PLEAT_CUDA_LIBRARY");
    if (argc == 2 && strcmp(argv[1], "no-device") == 0) {
        pleat_vmm vmm;
        return pleat_vmm_cuda(&vmm) == PLEAT_E_NO_DEVICE ? 0 : 1;
    }
    if (library == NULL) {
        fprintf(stderr, "%s: PLEAT_CUDA_LIBRARY must name the tests' libcuda\n", argv[0]);
        return 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuda_missing_library_is_named),
        cmocka_unit_test(cuda_every_missing_symbol_is_named),
        cmocka_unit_test(cuda_driver_errors_keep_number_and_name),
        cmocka_unit_test(cuda_leaves_the_current_context_alone),
        cmocka_unit_test(cuda_works_on_a_thread_without_context),
        cmocka_unit_test(cuda_own_threads_break_no_capture),
        cmocka_unit_test(cuda_leaves_a_stream_that_captures_alone),
        cmocka_unit_test(cuda_two_devices_with_access_for_each_other),
        cmocka_unit_test(cuda_extras_refuse_other_backends),
        cmocka_unit_test(cuda_pattern_gives_back_whatever_fails),
        cmocka_unit_test(cuda_threads_read_pinned_memory),
        cmocka_unit_test(cuda_pins_pages_or_takes_the_drivers),
        cmocka_unit_test(cuda_host_free_that_failed_is_tried_again),
        cmocka_unit_test(cuda_event_destroy_that_failed_is_tried_again),
        cmocka_unit_test(cuda_unmap_that_the_driver_calls_invalid_is_tried_again),
        cmocka_unit_test(cuda_verbs_that_fail_give_nothing),
        cmocka_unit_test(cuda_range_is_entered_behind_the_free_before_it),
        cmocka_unit_test(cuda_no_device_is_said),
    };
    return cmocka_run_group_tests_name("cuda", tests, NULL, NULL);
}
