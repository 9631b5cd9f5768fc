/*
 * canary.c: the canary of `pleat replay` finds what it is for, on the host backend.
 */
#include "test.h"

#include <string.h>
#include <tools/replay/canary.h>
#include <vmm/host/host.h>
#include <vmm/space.h>

#define MIB  (1ull << 20)
#define PAGE (2 * MIB)

typedef struct fixture {
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    canary *canary;
    pleat_va base;
} fixture;

/* Eight pages in use; the first chunk is mapped at pages 0 and 4. */
static void begin(fixture *f, const canary_job *job)
{
    pleat_host_options host = {.size = sizeof host, .device_bytes = 64 * MIB};
    pleat__space_options options = {0};
    pleat__chunk *chunks[4];
    uint64_t page;
    assert_ok(pleat_vmm_host(&host, &f->vmm));
    assert_ok(pleat__arena_create(&f->arena));
    assert_ok(pleat__space_create(f->vmm, f->arena, &options, &f->space));
    assert_ok(pleat__space_take(f->space, 8, &page));
    for (int i = 0; i < 4; i++)
        assert_ok(pleat__space_chunk_get(f->space, 1, &chunks[i]));
    assert_ok(pleat__space_map(f->space, page, chunks, 4));
    assert_ok(pleat__space_map(f->space, page + 4, chunks, 1));
    f->base = pleat__space_base(f->space) + page * PAGE;
    assert_ok(canary_create(&f->vmm, 0, false, job, &f->canary));
}

static void end(fixture *f)
{
    canary_destroy(f->canary);
    pleat__space_destroy(f->space);
    pleat__arena_destroy(f->arena);
    pleat_vmm_destroy(&f->vmm);
}

static const canary_job small_job = {.peak_bytes = 8 * MIB, .total_bytes = 16 * MIB, .requests = 8};

static void canary_is_quiet_when_all_is_well(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &small_job);
    assert_int_equal(canary_stride(f.canary), 4096);
    static const uint64_t sizes[] = {1, 7, 8, 500, 4096, 5000, MIB, 5 * MIB};
    for (int round = 0; round < 2; round++) {
        pleat_va at = f.base;
        for (uint32_t i = 0; i < 8; i++) {
            assert_ok(canary_allocated(f.canary, i, at, sizes[i]));
            at += (sizes[i] + 511) / 512 * 512;
        }
        at = f.base;
        for (uint32_t i = 0; i < 8; i++) {
            assert_ok(canary_freed(f.canary, i, at, sizes[i]));
            at += (sizes[i] + 511) / 512 * 512;
        }
    }
    assert_int_equal(canary_errors(f.canary), 0);
    assert_string_equal(canary_first_error(f.canary), "");
    end(&f);
}

static void canary_finds_overlapping_tensors(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &small_job);
    assert_ok(canary_allocated(f.canary, 0, f.base, MIB));
    assert_ok(canary_allocated(f.canary, 1, f.base + MIB - 512, MIB));
    assert_int_equal(canary_errors(f.canary), 1);
    assert_non_null(strstr(canary_first_error(f.canary), "request 1"));
    /* The words say so too: the second wrote over the end of the first. */
    assert_ok(canary_freed(f.canary, 0, f.base, MIB));
    assert_int_equal(canary_errors(f.canary), 2);
    end(&f);
}

static void canary_finds_tensors_that_meet_through_an_alias(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &small_job);
    assert_ok(canary_allocated(f.canary, 0, f.base + MIB, 512));
    assert_ok(canary_allocated(f.canary, 1, f.base + 4 * PAGE, MIB));
    assert_int_equal(canary_errors(f.canary), 0);
    assert_ok(canary_allocated(f.canary, 2, f.base + 4 * PAGE + MIB, 1024));
    assert_int_equal(canary_errors(f.canary), 1);
    assert_ok(canary_freed(f.canary, 0, f.base + MIB, 512));
    assert_int_equal(canary_errors(f.canary), 2);
    end(&f);
}

static void canary_finds_a_stray_write(void **state)
{
    (void)state;
    fixture f;
    begin(&f, &small_job);
    assert_ok(canary_allocated(f.canary, 0, f.base, 3 * MIB));
    ((volatile uint64_t *)(uintptr_t)(f.base + 2 * MIB))[0] ^= 1;
    assert_ok(canary_freed(f.canary, 0, f.base, 3 * MIB));
    assert_int_equal(canary_errors(f.canary), 1);
    assert_non_null(strstr(canary_first_error(f.canary), "written over"));
    end(&f);
}

static void canary_finds_memory_moved_under_a_live_tensor(void **state)
{
    (void)state;
    fixture f;
    pleat__chunk *other;
    begin(&f, &small_job);
    uint64_t page = (f.base - pleat__space_base(f.space)) / PAGE + 4;
    assert_ok(canary_allocated(f.canary, 0, f.base + 4 * PAGE, 64));
    assert_ok(pleat__space_unmap(f.space, page, 1));
    assert_ok(pleat__space_chunk_get(f.space, 1, &other));
    assert_ok(pleat__space_map(f.space, page, &other, 1));
    assert_ok(canary_freed(f.canary, 0, f.base + 4 * PAGE, 64));
    assert_int_equal(canary_errors(f.canary), 2); /* moved, and its words with it */
    end(&f);
}

/* However wide the stride: what the words miss the bitmap does not. */
static void canary_is_exact_for_jobs_larger_than_the_machine(void **state)
{
    (void)state;
    fixture f;
    static const canary_job huge = {
        .peak_bytes = 100ull << 30, .total_bytes = 900ull << 30, .requests = 1000};
    begin(&f, &huge);
    assert_true(canary_stride(f.canary) > 4096);
    assert_ok(canary_allocated(f.canary, 0, f.base, 4 * PAGE));
    assert_ok(canary_allocated(f.canary, 1, f.base + PAGE + 5 * 512, 512));
    assert_int_equal(canary_errors(f.canary), 1);
    end(&f);
    static const canary_job impossible = {.peak_bytes = 1ull << 60, .requests = 1u << 31};
    pleat_host_options host = {.size = sizeof host};
    canary *refused;
    assert_ok(pleat_vmm_host(&host, &f.vmm));
    assert_result(canary_create(&f.vmm, 0, false, &impossible, &refused), PLEAT_E_NO_MEMORY);
    pleat_vmm_destroy(&f.vmm);
}

/* One in a hundred moved by some 512s: found every time. */
static void canary_finds_every_planted_overlap(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0005);
    for (int round = 0; round < 100; round++) {
        fixture f;
        begin(&f, &small_job);
        uint64_t sizes[8];
        pleat_va places[8], at = f.base;
        for (uint32_t i = 0; i < 8; i++) {
            sizes[i] = 512 * (1 + test_random_below(&random, 1000));
            places[i] = at;
            at += sizes[i];
        }
        uint32_t moved = 1 + (uint32_t)test_random_below(&random, 7);
        places[moved] -= 512 * (1 + test_random_below(&random, sizes[moved - 1] / 512));
        for (uint32_t i = 0; i < 8; i++)
            assert_ok(canary_allocated(f.canary, i, places[i], sizes[i]));
        for (uint32_t i = 0; i < 8; i++)
            assert_ok(canary_freed(f.canary, i, places[i], sizes[i]));
        assert_true(canary_errors(f.canary) > 0);
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canary_is_quiet_when_all_is_well),
        cmocka_unit_test(canary_finds_overlapping_tensors),
        cmocka_unit_test(canary_finds_tensors_that_meet_through_an_alias),
        cmocka_unit_test(canary_finds_a_stray_write),
        cmocka_unit_test(canary_finds_memory_moved_under_a_live_tensor),
        cmocka_unit_test(canary_is_exact_for_jobs_larger_than_the_machine),
        cmocka_unit_test(canary_finds_every_planted_overlap),
    };
    return cmocka_run_group_tests_name("canary", tests, NULL, NULL);
}
