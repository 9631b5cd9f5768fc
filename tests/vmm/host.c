/*
 * host.c: what only the host backend has: sparse memory of a large device, the kernel's limit of
 * map areas, access that is not there, streams and a clock by hand, modelled costs.
 */
#include "../host.h"
#include "../test.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <vmm/host/host_internal.h>
#include <vmm/space.h>

#define MIB (1ull << 20)
#define GIB (1ull << 30)

static const int device[] = {0};

static pleat__host_holdings holdings(const pleat_vmm *vmm)
{
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(vmm, &held));
    return held;
}

/* Whether the kernel can read the byte: write(2) says so without a signal. */
static bool readable(pleat_va va)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    bool good = write(ends[1], (const void *)(uintptr_t)va, 1) == 1;
    close(ends[0]);
    close(ends[1]);
    return good;
}

static void host_large_device_window_in_use(void **state)
{
    (void)state;
    enum { CHUNKS = 32768, STITCH = 512 };
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    const pleat__space_options options = {0};
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    assert_int_equal(pleat__space_device_bytes(space), 140 * GIB);
    assert_int_equal(pleat__space_page_bytes(space), 2 * MIB);
    pleat__chunk **chunks = calloc(CHUNKS, sizeof(pleat__chunk *));
    assert_non_null(chunks);
    for (int c = 0; c < CHUNKS; c++)
        assert_ok(pleat__space_chunk_get(space, 1, &chunks[c]));
    uint64_t page, stitched;
    assert_ok(pleat__space_take(space, CHUNKS, &page)); /* 64 GiB */
    assert_ok(pleat__space_map(space, page, chunks, CHUNKS));
    char *base = (char *)(uintptr_t)(pleat__space_base(space) + page * 2 * MIB);
    for (uint64_t c = 0; c < CHUNKS; c += 7)
        *(uint64_t *)(base + c * 2 * MIB + 8 * (c % 1000)) = ~c;
    pleat__chunk *order[STITCH];
    test_random random = test_random_begin("host_large_device_window_in_use", 5);
    for (int c = 0; c < STITCH; c++)
        order[c] = chunks[7 * test_random_below(&random, CHUNKS / 7)];
    assert_ok(pleat__space_take(space, STITCH, &stitched));
    assert_ok(pleat__space_map(space, stitched, order, STITCH));
    const char *view = (const char *)(uintptr_t)(pleat__space_base(space) + stitched * 2 * MIB);
    for (uint64_t p = 0; p < STITCH; p++) {
        uint64_t c = order[p]->id;
        assert_int_equal(*(const uint64_t *)(view + p * 2 * MIB + 8 * (c % 1000)), ~c);
    }
    assert_ok(pleat__space_unmap(space, stitched, STITCH));
    for (uint64_t c = 0; c < CHUNKS; c += 7)
        assert_int_equal(*(uint64_t *)(base + c * 2 * MIB + 8 * (c % 1000)), ~c);
    assert_int_equal(holdings(&vmm).memory_bytes, 64 * GIB);
    assert_true(holdings(&vmm).areas < 10); /* neighbours in the file are one area */
    assert_true(pleat__space_audit(space));
    pleat__space_destroy(space);
    free(chunks);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
}

static void host_map_limit_is_named(void **state)
{
    (void)state;
    enum { PAGES = 80000, STEP = 4000, GRANULE = 32768 };
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle handle;
    pleat_host_options options = {.size = sizeof options, .granularity = GRANULE};
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    unsigned long long limit = 0;
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu", &limit), 1);
    fclose(file);
    assert_ok(pleat_vmm_host(&options, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, (uint64_t)PAGES * GRANULE, 0, &va));
    assert_ok(vmm.ops->create(vmm.self, 0, GRANULE, 0, &handle));
    pleat_result result = PLEAT_OK;
    uint64_t done = 0;
    while (done < PAGES && result == PLEAT_OK) { /* aliases of one piece never join */
        for (uint64_t p = done; p < done + STEP; p++)
            assert_ok(vmm.ops->map(vmm.self, va + p * GRANULE, GRANULE, handle));
        result = vmm.ops->set_access(vmm.self, va + done * GRANULE, STEP * GRANULE, device, 1);
        done += STEP;
    }
    if (limit < PAGES) { /* else this machine allows more than the test needs */
        assert_result(result, PLEAT_E_LIMIT);
        assert_non_null(strstr(pleat_last_error()->text, "vm.max_map_count"));
        assert_true(readable(va + (done - STEP - 1) * GRANULE));
        assert_false(readable(va + (done - 1) * GRANULE)); /* it changed nothing */
        uint64_t areas = holdings(&vmm).areas;
        assert_ok(vmm.ops->unmap(vmm.self, va, STEP * GRANULE));
        assert_int_equal(holdings(&vmm).areas, areas - STEP + 1); /* the hidden part is one */
        assert_ok(vmm.ops->unmap(vmm.self, va + STEP * GRANULE, (done - STEP) * GRANULE));
    } else {
        assert_result(result, PLEAT_OK);
        assert_ok(vmm.ops->unmap(vmm.self, va, (uint64_t)PAGES * GRANULE));
    }
    assert_int_equal(holdings(&vmm).areas, 1);
    assert_ok(vmm.ops->release(vmm.self, handle));
    pleat_vmm_destroy(&vmm);
}

/* The kernel's own list of this process's areas agrees with the count. */
static void host_areas_are_counted_exactly(void **state)
{
    (void)state;
    enum { PAGES = 600, CHUNKS = 300 };
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle handles[CHUNKS];
    bool mapped[PAGES] = {false};
    test_random random = test_random_begin("host_areas_are_counted_exactly", 17);
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, PAGES * 2 * MIB, 0, &va));
    for (int c = 0; c < CHUNKS; c++)
        assert_ok(vmm.ops->create(vmm.self, 0, 2 * MIB, 0, &handles[c]));
    for (int step = 0; step < 3000; step++) {
        uint64_t page = test_random_below(&random, PAGES);
        if (mapped[page]) {
            assert_ok(vmm.ops->unmap(vmm.self, va + page * 2 * MIB, 2 * MIB));
        } else { /* often the one that follows its neighbour's */
            uint64_t c =
                test_random_below(&random, 2) ? page % CHUNKS : test_random_below(&random, CHUNKS);
            assert_ok(vmm.ops->map(vmm.self, va + page * 2 * MIB, 2 * MIB, handles[c]));
            assert_ok(vmm.ops->set_access(vmm.self, va + page * 2 * MIB, 2 * MIB, device, 1));
        }
        mapped[page] = !mapped[page];
    }
    FILE *maps = fopen("/proc/self/maps", "r");
    assert_non_null(maps);
    char line[512];
    uint64_t areas = 0;
    while (fgets(line, sizeof line, maps) != NULL) {
        unsigned long long begin, end;
        if (sscanf(line, "%llx-%llx", &begin, &end) == 2)
            areas += begin < va + PAGES * 2 * MIB && end > va;
    }
    fclose(maps);
    assert_int_equal(holdings(&vmm).areas, areas);
    pleat_vmm_destroy(&vmm);
}

static void host_access_comes_and_goes(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle handle;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, 4 * MIB, 0, &va));
    assert_ok(vmm.ops->create(vmm.self, 0, 2 * MIB, 0, &handle));
    assert_false(readable(va));
    assert_ok(vmm.ops->map(vmm.self, va, 2 * MIB, handle));
    assert_false(readable(va));
    assert_ok(vmm.ops->set_access(vmm.self, va, 2 * MIB, device, 1));
    assert_true(readable(va));
    assert_ok(vmm.ops->unmap(vmm.self, va, 2 * MIB));
    assert_false(readable(va));
    assert_ok(vmm.ops->map(vmm.self, va, 2 * MIB, handle)); /* access does not come back */
    assert_false(readable(va));
    pleat_vmm_destroy(&vmm);
}

static void host_memory_goes_with_its_last_reference(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle handle;
    uint64_t offset, again;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, 4 * MIB, 0, &va));
    assert_ok(vmm.ops->create(vmm.self, 0, 2 * MIB, 0, &handle));
    assert_ok(vmm.ops->map(vmm.self, va, 2 * MIB, handle));
    assert_ok(vmm.ops->set_access(vmm.self, va, 2 * MIB, device, 1));
    *(uint64_t *)(uintptr_t)va = 5;
    assert_ok(pleat_host_physical(&vmm, va + 24, &offset));
    assert_ok(vmm.ops->release(vmm.self, handle));
    assert_int_equal(holdings(&vmm).memory_bytes, 2 * MIB);
    assert_ok(vmm.ops->unmap(vmm.self, va, 2 * MIB));
    assert_int_equal(holdings(&vmm).memory_bytes, 0);
    assert_result(pleat_host_physical(&vmm, va, &again), PLEAT_E_NOT_FOUND);
    assert_result(pleat_host_physical(&vmm, 4096, &again), PLEAT_E_NOT_FOUND);
    assert_ok(vmm.ops->create(vmm.self, 0, 2 * MIB, 0, &handle));
    assert_ok(vmm.ops->map(vmm.self, va, 2 * MIB, handle));
    assert_ok(vmm.ops->set_access(vmm.self, va, 2 * MIB, device, 1));
    assert_ok(pleat_host_physical(&vmm, va + 24, &again));
    assert_int_not_equal(again, offset); /* an offset names one piece for ever */
    assert_int_equal(*(uint64_t *)(uintptr_t)va, 0);
    pleat_vmm_destroy(&vmm);
}

/* Two backends are as strange to each other as two processes. */
static void host_imported_bytes_are_the_exporters(void **state)
{
    (void)state;
    pleat_vmm owner, other;
    pleat_va va;
    pleat_handle handle, imported;
    int fd;
    assert_ok(pleat_vmm_host(NULL, &owner));
    assert_ok(pleat_vmm_host(NULL, &other));
    assert_ok(owner.ops->create(owner.self, 0, 4 * MIB, PLEAT_CREATE_SHAREABLE, &handle));
    assert_ok(owner.ops->export_handle(owner.self, handle, &fd));
    assert_result(other.ops->import_handle(other.self, 0, fd, 2 * MIB, &imported), PLEAT_E_INVALID);
    assert_ok(other.ops->import_handle(other.self, 0, fd, 4 * MIB, &imported));
    close(fd);
    assert_ok(other.ops->reserve(other.self, 0, 4 * MIB, 0, &va));
    assert_ok(other.ops->map(other.self, va, 4 * MIB, imported));
    assert_ok(other.ops->set_access(other.self, va, 4 * MIB, device, 1));
    assert_int_equal(holdings(&owner).memory_bytes, 4 * MIB);
    assert_int_equal(holdings(&other).memory_bytes, 0);
    pleat_vmm_destroy(&owner); /* its process may end; the memory stays while it is imported */
    *(uint64_t *)(uintptr_t)va = 11;
    assert_int_equal(*(uint64_t *)(uintptr_t)va, 11);
    pleat_vmm_destroy(&other);
}

/* Memory that can be read, and a block on the host. */
typedef struct copied {
    pleat_vmm vmm;
    pleat_stream stream;
    pleat_event event;
    pleat_handle handle;
    pleat_va va;
    uint64_t *block;
} copied;

static void copied_begin(copied *c)
{
    void *block;
    assert_ok(pleat_vmm_host(NULL, &c->vmm));
    const pleat_vmm_ops *ops = c->vmm.ops;
    void *self = c->vmm.self;
    assert_ok(ops->stream_create(self, 0, &c->stream));
    assert_ok(ops->event_create(self, 0, &c->event));
    assert_ok(ops->create(self, 0, 2 * MIB, 0, &c->handle));
    assert_ok(ops->reserve(self, 0, 2 * MIB, 0, &c->va));
    assert_ok(ops->map(self, c->va, 2 * MIB, c->handle));
    assert_ok(ops->set_access(self, c->va, 2 * MIB, device, 1));
    assert_ok(ops->host_alloc(self, 0, 64, &block));
    c->block = block;
    *c->block = 1;
}

/* The block's first word into the memory. */
static void copied_in(const copied *c)
{
    assert_ok(c->vmm.ops->copy(c->vmm.self, 0, c->stream, c->va, (uint64_t)(uintptr_t)c->block, 8));
}

static void host_copies_come_when_they_are_waited_for(void **state)
{
    (void)state;
    copied c;
    copied_begin(&c);
    uint64_t *word = (uint64_t *)(uintptr_t)c.va;
    copied_in(&c);
    assert_int_equal(*word, 0);
    assert_ok(c.vmm.ops->event_record(c.vmm.self, c.event, c.stream));
    *c.block = 2; /* a copy reads its memory when it is carried out */
    copied_in(&c);
    assert_ok(c.vmm.ops->event_wait(c.vmm.self, c.event));
    assert_int_equal(*word, 2);
    *c.block = 3;
    assert_ok(c.vmm.ops->event_query(c.vmm.self, c.event));
    assert_int_equal(*word, 2); /* the second one is behind that point */
    assert_ok(c.vmm.ops->event_record(c.vmm.self, c.event, c.stream));
    assert_ok(c.vmm.ops->event_query(c.vmm.self, c.event));
    assert_int_equal(*word, 3);
    pleat_vmm_destroy(&c.vmm);
}

/* What no address can hold is refused, not wrapped around. */
static void host_copies_end_below_the_last_address(void **state)
{
    (void)state;
    copied c;
    void *none = NULL;
    copied_begin(&c);
    const pleat_vmm_ops *ops = c.vmm.ops;
    void *self = c.vmm.self;
    uint64_t block = (uint64_t)(uintptr_t)c.block;
    for (uint64_t less = 0; less < 32; less += 8)
        assert_result(ops->host_alloc(self, 0, UINT64_MAX - less, &none), PLEAT_E_NO_MEMORY);
    assert_null(none);
    assert_result(ops->copy(self, 0, c.stream, c.va, block, UINT64_MAX - 8), PLEAT_E_INVALID);
    assert_result(ops->copy(self, 0, c.stream, block, c.va, UINT64_MAX - c.va + 1),
                  PLEAT_E_INVALID);
    /* A reservation without access is found behind much that is in none. */
    assert_ok(ops->unmap(self, c.va, 2 * MIB));
    assert_result(ops->copy(self, 0, c.stream, block, c.va - 64 * GIB, 64 * GIB + 8),
                  PLEAT_E_INVALID);
    assert_result(ops->copy(self, 0, c.stream, block, c.va + 2 * MIB - 8, 64), PLEAT_E_INVALID);
    pleat_vmm_destroy(&c.vmm);
}

static void host_copies_that_nobody_waited_for_never_come(void **state)
{
    (void)state;
    for (int what = 0; what < 3; what++) {
        copied c;
        copied_begin(&c);
        const pleat_vmm_ops *ops = c.vmm.ops;
        void *self = c.vmm.self;
        copied_in(&c);
        if (what == 0) {
            assert_ok(ops->unmap(self, c.va, 2 * MIB));
            assert_ok(ops->map(self, c.va, 2 * MIB, c.handle));
            assert_ok(ops->set_access(self, c.va, 2 * MIB, device, 1));
        } else if (what == 1) {
            assert_ok(ops->host_free(self, 0, c.block));
        } else {
            assert_ok(ops->stream_destroy(self, 0, c.stream));
        }
        assert_ok(ops->event_record(self, c.event, c.stream));
        assert_ok(ops->event_wait(self, c.event));
        assert_int_equal(*(uint64_t *)(uintptr_t)c.va, 0);
        pleat_vmm_destroy(&c.vmm);
    }
}

static void host_streams_by_hand(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_event a, b, c;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &a));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &b));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &c));
    assert_ok(pleat__host_stream_hold(&vmm, 1));
    assert_ok(vmm.ops->event_record(vmm.self, a, 1));
    assert_ok(vmm.ops->event_record(vmm.self, b, 1));
    assert_result(vmm.ops->event_query(vmm.self, a), PLEAT_E_NOT_READY);
    assert_ok(pleat__host_stream_advance(&vmm, 1, 1));
    assert_ok(vmm.ops->event_query(vmm.self, a));
    assert_result(vmm.ops->event_query(vmm.self, b), PLEAT_E_NOT_READY);
    /* A chain: 2 waits for 1, 3 for 2. */
    assert_ok(vmm.ops->stream_wait(vmm.self, 2, b));
    assert_ok(vmm.ops->event_record(vmm.self, c, 2));
    assert_ok(vmm.ops->stream_wait(vmm.self, 3, c));
    assert_ok(vmm.ops->event_record(vmm.self, a, 3));
    assert_result(vmm.ops->event_query(vmm.self, a), PLEAT_E_NOT_READY);
    assert_result(vmm.ops->event_query(vmm.self, c), PLEAT_E_NOT_READY);
    assert_ok(pleat__host_stream_release(&vmm, 1));
    assert_ok(vmm.ops->event_query(vmm.self, a));
    assert_ok(vmm.ops->event_query(vmm.self, c));
    assert_ok(vmm.ops->event_destroy(vmm.self, a));
    assert_result(vmm.ops->event_query(vmm.self, a), PLEAT_E_INVALID); /* stale */
    pleat_vmm_destroy(&vmm);
}

static void host_clock_by_hand(void **state)
{
    (void)state;
    pleat_vmm vmm;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(pleat__host_clock_set(&vmm, 1000));
    assert_int_equal(vmm.ops->clock_ns(vmm.self), 1000);
    assert_ok(pleat__host_clock_set(&vmm, 2000));
    assert_int_equal(vmm.ops->clock_ns(vmm.self), 2000);
    pleat_vmm_destroy(&vmm);
}

static void host_counts_the_most_that_was_mapped(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle handle;
    uint64_t bytes;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, 16 * MIB, 0, &va));
    assert_ok(vmm.ops->create(vmm.self, 0, 4 * MIB, 0, &handle));
    assert_ok(vmm.ops->map(vmm.self, va, 4 * MIB, handle));
    assert_ok(vmm.ops->map(vmm.self, va + 8 * MIB, 4 * MIB, handle));
    assert_result(vmm.ops->map(vmm.self, va + 6 * MIB, 4 * MIB, handle), PLEAT_E_INVALID);
    assert_ok(vmm.ops->unmap(vmm.self, va, 4 * MIB));
    assert_ok(vmm.ops->unmap(vmm.self, va + 8 * MIB, 4 * MIB));
    assert_ok(vmm.ops->map(vmm.self, va + 4 * MIB, 4 * MIB, handle));
    assert_ok(pleat__host_most_mapped(&vmm, &bytes));
    assert_int_equal(bytes, 8 * MIB);
    pleat_vmm_destroy(&vmm);
}

static void host_models_what_calls_would_cost(void **state)
{
    (void)state;
    const pleat__host_costs costs = {.create_handle = 8000,
                                     .create_granule = 3,
                                     .release_handle = 10000,
                                     .release_granule = 200,
                                     .map_handle = 600,
                                     .access_handle = 25000,
                                     .access_granule = 50,
                                     .unmap_handle = 14000,
                                     .unmap_granule = 10};
    pleat_vmm vmm;
    pleat_va va;
    pleat_handle one, four;
    uint64_t ns;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->reserve(vmm.self, 0, 16 * MIB, 0, &va));
    assert_ok(pleat__host_set_costs(&vmm, &costs));
    assert_ok(vmm.ops->create(vmm.self, 0, 2 * MIB, 0, &one));
    assert_ok(vmm.ops->create(vmm.self, 0, 8 * MIB, 0, &four));
    assert_ok(vmm.ops->map(vmm.self, va, 2 * MIB, one));
    assert_ok(vmm.ops->map(vmm.self, va + 2 * MIB, 8 * MIB, four));
    assert_ok(vmm.ops->set_access(vmm.self, va, 10 * MIB, device, 1));
    assert_ok(pleat__host_modelled_ns(&vmm, &ns, NULL));
    uint64_t expected = 2 * 8000 + 5 * 3 + 2 * 600 + 2 * 25000 + 5 * 50;
    assert_int_equal(ns, expected);
    assert_ok(vmm.ops->unmap(vmm.self, va, 10 * MIB));
    assert_ok(vmm.ops->release(vmm.self, four));
    assert_ok(pleat__host_modelled_ns(&vmm, &ns, NULL));
    assert_int_equal(ns, expected + 2 * 14000 + 5 * 10 + 10000 + 4 * 200);
    assert_ok(pleat__host_set_costs(&vmm, NULL));
    assert_ok(vmm.ops->release(vmm.self, one));
    assert_ok(pleat__host_modelled_ns(&vmm, &ns, NULL));
    assert_int_equal(ns, 0);
    pleat_vmm_destroy(&vmm);
}

/* A sum of size and alignment that overflows asks the kernel nothing, and is told as if it had. */
static void host_reserve_beyond_all_addresses_is_told(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_va va;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    errno = 0;
    assert_result(vmm.ops->reserve(vmm.self, 0, UINT64_C(1) << 63, UINT64_C(1) << 63, &va),
                  PLEAT_E_OUT_OF_MEMORY);
    assert_int_equal(pleat_last_error()->native, ENOMEM);
    pleat_vmm_destroy(&vmm);
}

static void host_refuses_odd_options(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_host_options options = {.size = 0};
    assert_result(pleat_vmm_host(&options, &vmm), PLEAT_E_ABI);
    options = (pleat_host_options){.size = sizeof options, .devices = 65};
    assert_result(pleat_vmm_host(&options, &vmm), PLEAT_E_INVALID);
    options = (pleat_host_options){.size = sizeof options, .granularity = 3 << 20};
    assert_result(pleat_vmm_host(&options, &vmm), PLEAT_E_INVALID);
    static const uint64_t granularities[] = {512, 4096, 16 << 10, 3 << 20, 4 << 20, 1ull << 63};
    for (size_t i = 0; i < sizeof granularities / sizeof *granularities; i++) {
        options = (pleat_host_options){.size = sizeof options, .granularity = granularities[i]};
        assert_result(pleat_vmm_host(&options, &vmm), PLEAT_E_INVALID);
        assert_non_null(strstr(pleat_last_error()->text, "granularity"));
    }
    static const uint64_t sizes[] = {1, 2 * MIB - 1, (64ull << 40) + 1, UINT64_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        options = (pleat_host_options){.size = sizeof options, .device_bytes = sizes[i]};
        assert_result(pleat_vmm_host(&options, &vmm), PLEAT_E_INVALID);
        assert_non_null(strstr(pleat_last_error()->text, "device_bytes"));
    }
    uint64_t ns, bytes;
    pleat_vmm other = {0};
    assert_result(pleat__host_modelled_ns(&other, &ns, NULL), PLEAT_E_INVALID);
    assert_result(pleat__host_most_mapped(&other, &bytes), PLEAT_E_INVALID);
}

/* As batch systems limit it. A kernel that were asked would end the process. */
static void host_file_limit_is_told(void **state)
{
    (void)state;
    struct rlimit before;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    const struct rlimit low = {.rlim_cur = GIB, .rlim_max = before.rlim_max};
    pleat_vmm vmm;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    pleat_result result = pleat_vmm_host(NULL, &vmm);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_result(result, PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "ulimit -f"));
    assert_string_equal(pleat_last_error()->native_name, "EFBIG");
}

/* The least and the largest of what is allowed. */
static void host_options_serve_a_runtime(void **state)
{
    (void)state;
    static const uint64_t sizes[][2] = {
        {32 << 10, 32 << 10}, {32 << 10, 1ull << 40}, {2 * MIB, 2 * MIB}, {2 * MIB, 64ull << 40}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pleat_vmm vmm;
        pleat__arena *arena;
        pleat__space *space;
        const pleat__space_options none = {0};
        const pleat_host_options options = {
            .size = sizeof options, .granularity = sizes[i][0], .device_bytes = sizes[i][1]};
        assert_ok(pleat_vmm_host(&options, &vmm));
        assert_ok(pleat__arena_create(&arena));
        assert_ok(pleat__space_create(vmm, arena, &none, &space));
        pleat__space_destroy(space);
        pleat__arena_destroy(arena);
        pleat_vmm_destroy(&vmm);
    }
}

/* Each pause makes two streams: their records serve again, and the events on them stay passed. */
static void host_streams_that_ended_leave_no_record(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_event first, last;
    pleat_stream stream = 0;
    assert_ok(pleat_vmm_host(NULL, &vmm));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &first));
    assert_ok(vmm.ops->event_create(vmm.self, 0, &last));
    for (int s = 0; s < 1000; s++) {
        assert_ok(vmm.ops->stream_create(vmm.self, 0, &stream));
        assert_ok(vmm.ops->event_record(vmm.self, s == 0 ? first : last, stream));
        assert_ok(vmm.ops->stream_destroy(vmm.self, 0, stream));
    }
    assert_result(vmm.ops->stream_destroy(vmm.self, 0, stream + 1), PLEAT_E_INVALID);
    assert_int_equal(pleat__host_of(&vmm)->stream_count, 1);
    assert_ok(vmm.ops->event_query(vmm.self, first));
    /* What waits for others is not over. */
    assert_ok(pleat__host_stream_hold(&vmm, 5));
    assert_ok(vmm.ops->event_record(vmm.self, last, 5));
    assert_ok(vmm.ops->stream_create(vmm.self, 0, &stream));
    assert_ok(vmm.ops->stream_wait(vmm.self, stream, last));
    assert_ok(vmm.ops->event_record(vmm.self, first, stream));
    assert_ok(vmm.ops->stream_destroy(vmm.self, 0, stream));
    assert_ok(vmm.ops->stream_create(vmm.self, 0, &stream));
    assert_ok(vmm.ops->event_record(vmm.self, last, stream));
    assert_ok(vmm.ops->event_query(vmm.self, last));
    assert_result(vmm.ops->event_query(vmm.self, first), PLEAT_E_NOT_READY);
    assert_ok(pleat__host_stream_release(&vmm, 5));
    assert_ok(vmm.ops->event_query(vmm.self, first));
    assert_ok(vmm.ops->stream_destroy(vmm.self, 0, stream));
    assert_ok(vmm.ops->event_destroy(vmm.self, first));
    assert_ok(vmm.ops->event_destroy(vmm.self, last));
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(host_large_device_window_in_use),
        cmocka_unit_test(host_map_limit_is_named),
        cmocka_unit_test(host_areas_are_counted_exactly),
        cmocka_unit_test(host_access_comes_and_goes),
        cmocka_unit_test(host_memory_goes_with_its_last_reference),
        cmocka_unit_test(host_imported_bytes_are_the_exporters),
        cmocka_unit_test(host_copies_come_when_they_are_waited_for),
        cmocka_unit_test(host_copies_end_below_the_last_address),
        cmocka_unit_test(host_copies_that_nobody_waited_for_never_come),
        cmocka_unit_test(host_streams_by_hand),
        cmocka_unit_test(host_clock_by_hand),
        cmocka_unit_test(host_counts_the_most_that_was_mapped),
        cmocka_unit_test(host_models_what_calls_would_cost),
        cmocka_unit_test(host_reserve_beyond_all_addresses_is_told),
        cmocka_unit_test(host_refuses_odd_options),
        cmocka_unit_test(host_file_limit_is_told),
        cmocka_unit_test(host_options_serve_a_runtime),
        cmocka_unit_test(host_streams_that_ended_leave_no_record),
    };
    return cmocka_run_group_tests_name("host", tests, NULL, NULL);
}
