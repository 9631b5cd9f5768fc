/*
 * canary_cuda.c: the canary's kernels find what they must: on the machine's driver, or on the
 * tests' own libcuda when PLEAT_CUDA_LIBRARY names it.
 */
#include "../test.h"

#include <string.h>
#include <tools/replay/canary_cuda.h>
#include <vmm/cuda.h>

#define PAGES 4u

typedef struct fixture {
    pleat_vmm vmm;
    canary_cuda *canary;
    uint64_t granule;
    pleat_va va; /* PAGES pages over two chunks: 0, 1, and the first again, twice */
    pleat_handle chunks[2];
} fixture;

#define VERB(f, name, ...) ((f)->vmm.ops->name((f)->vmm.self, __VA_ARGS__))

static int set_up(void **state)
{
    static fixture f;
    uint64_t recommended;
    assert_ok(pleat_vmm_cuda(&f.vmm));
    assert_ok(VERB(&f, granularity, 0, &f.granule, &recommended));
    assert_ok(VERB(&f, reserve, 0, PAGES * f.granule, 0, &f.va));
    for (int i = 0; i < 2; i++)
        assert_ok(VERB(&f, create, 0, f.granule, 0, &f.chunks[i]));
    for (uint64_t i = 0; i < PAGES; i++)
        assert_ok(VERB(&f, map, f.va + i * f.granule, f.granule, f.chunks[i == 1]));
    assert_ok(VERB(&f, set_access, f.va, PAGES * f.granule, (const int[]){0}, 1));
    assert_ok(canary_cuda_create(&f.vmm, 0, &f.canary));
    *state = &f;
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    canary_cuda_destroy(f->canary);
    assert_ok(VERB(f, unmap, f->va, PAGES * f->granule));
    for (int i = 0; i < 2; i++)
        assert_ok(VERB(f, release, f->chunks[i]));
    assert_ok(VERB(f, free_range, f->va, PAGES * f->granule));
    pleat_vmm_destroy(&f->vmm);
    return 0;
}

static uint64_t wrong(const fixture *f, pleat_va at, uint64_t bytes, uint64_t seed)
{
    uint64_t found;
    assert_ok(canary_cuda_verify(f->canary, 0, at, bytes, seed));
    assert_ok(canary_cuda_wrong(f->canary, &found));
    return found;
}

static void canary_cuda_finds_nothing_in_what_it_wrote(void **state)
{
    const fixture *f = *state;
    const uint64_t sizes[] = {1, 3, 8, 13, 512, 4099, 1 << 20, (1 << 20) + 7, f->granule * 2};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        assert_ok(canary_cuda_write(f->canary, 0, f->va, sizes[i], i + 1));
        assert_int_equal(wrong(f, f->va, sizes[i], i + 1), 0);
        /* Another seed fits nowhere: every word and every byte left over counts. */
        assert_int_equal(wrong(f, f->va, sizes[i], i + 2), sizes[i] / 8 + sizes[i] % 8);
    }
}

static void canary_cuda_finds_one_damaged_byte_anywhere(void **state)
{
    const fixture *f = *state;
    test_random random = test_random_begin(__func__, 7);
    uint64_t bytes = f->granule + 12345;
    for (int i = 0; i < 200; i++) {
        uint64_t seed = test_random_next(&random), at = test_random_below(&random, bytes);
        if (i < 12) /* the last word and what is left over */
            at = bytes - 1 - (uint64_t)i;
        uint8_t byte;
        assert_ok(canary_cuda_write(f->canary, 0, f->va, bytes, seed));
        assert_ok(pleat__cuda_copy_out(&f->vmm, 0, &byte, f->va + at, 1));
        byte ^= 1;
        assert_ok(pleat__cuda_copy_in(&f->vmm, 0, f->va + at, &byte, 1));
        assert_int_equal(wrong(f, f->va, bytes, seed), 1);
    }
}

static void canary_cuda_sees_through_aliases(void **state)
{
    const fixture *f = *state;
    pleat_va alias = f->va + 2 * f->granule;
    assert_ok(canary_cuda_write(f->canary, 0, f->va, f->granule, 1));
    assert_int_equal(wrong(f, alias, f->granule, 1), 0);
    assert_ok(canary_cuda_write(f->canary, 0, alias + 4096, 800, 2));
    assert_int_equal(wrong(f, f->va, f->granule, 1), 100);
    assert_int_equal(wrong(f, alias + f->granule, f->granule, 1), 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(canary_cuda_finds_nothing_in_what_it_wrote),
        cmocka_unit_test(canary_cuda_finds_one_damaged_byte_anywhere),
        cmocka_unit_test(canary_cuda_sees_through_aliases),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
