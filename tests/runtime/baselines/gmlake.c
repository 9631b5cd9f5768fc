/*
 * gmlake.c: GMLake's rules, one by one: which requests and which blocks are stitched, that stitched
 * blocks are used again, and which of them go.
 */
#include "fixture.h"

static pleat_stats now(fixture *f)
{
    return pleat_stats_of(f->runtime);
}

static void start(fixture *f, const char *conf)
{
    open_host(f, 8192 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options, .policy = "gmlake", .conf = conf};
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
}

static void give(fixture *f, pleat_va address)
{
    assert_ok(pleat_free(f->runtime, address));
}

/* Two free blocks of `bytes` each, apart. */
static void leave_two(fixture *f, uint64_t bytes)
{
    pleat_va a = take(f, bytes, 0);
    take(f, 2 * MIB, 0);
    pleat_va b = take(f, bytes, 0);
    give(f, a);
    give(f, b);
}

/* Section 3.1: less than a chunk is PyTorch's, in segments of 2 and 20 MiB. */
static void gmlake_leaves_what_is_under_a_chunk_to_torch(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes, physical;
    } table[] = {
        {MIB, 2 * MIB},     {MIB + 1, 20 * MIB},    {2 * MIB - 1, 20 * MIB},
        {2 * MIB, 2 * MIB}, {2 * MIB + 1, 4 * MIB},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fixture f;
        start(&f, "");
        pleat_va address = take(&f, table[i].bytes, 0);
        assert_int_equal(now(&f).physical_bytes, table[i].physical);
        give(&f, address);
        assert_int_equal(take(&f, table[i].bytes, 0), address);
        assert_int_equal(now(&f).physical_bytes, table[i].physical);
        end(&f);
    }
}

/* Section 4.2.3: a block under the limit takes no part in it. */
static void gmlake_stitches_blocks_of_the_limit_and_more(void **state)
{
    (void)state;
    fixture f;
    start(&f, "fragment:100m");
    leave_two(&f, 100 * MIB);
    uint64_t physical = now(&f).physical_bytes;
    take(&f, 190 * MIB, 0);
    assert_int_equal(now(&f).stitched, 1);
    assert_int_equal(now(&f).physical_bytes, physical);
    end(&f);

    start(&f, "fragment:100m");
    leave_two(&f, 98 * MIB);
    physical = now(&f).physical_bytes;
    take(&f, 190 * MIB, 0);
    assert_int_equal(now(&f).stitched, 0);
    assert_int_equal(now(&f).physical_bytes, physical + 190 * MIB);
    end(&f);
}

/* S4: what is missing is new, and nothing else. */
static void gmlake_makes_only_what_is_missing(void **state)
{
    (void)state;
    fixture f;
    start(&f, "fragment:100m");
    leave_two(&f, 100 * MIB);
    uint64_t physical = now(&f).physical_bytes;
    take(&f, 260 * MIB, 0);
    assert_int_equal(now(&f).stitched, 1);
    assert_int_equal(now(&f).physical_bytes, physical + 60 * MIB);
    end(&f);
}

/* S2 before S3: the smallest larger block is cut, and is whole again when both parts are free. */
static void gmlake_cuts_the_smallest_larger_block(void **state)
{
    (void)state;
    fixture f;
    start(&f, "");
    pleat_va large = take(&f, 60 * MIB, 0);
    take(&f, 2 * MIB, 0);
    pleat_va small = take(&f, 40 * MIB, 0);
    take(&f, 2 * MIB, 0);
    give(&f, large);
    give(&f, small);
    uint64_t physical = now(&f).physical_bytes, calls = now(&f).driver_calls;
    pleat_va a = take(&f, 30 * MIB, 0), b = take(&f, 10 * MIB, 0);
    assert_int_equal(a, small);
    assert_int_equal(b, small + 30 * MIB);
    give(&f, a);
    give(&f, b);
    assert_int_equal(take(&f, 40 * MIB, 0), small);
    assert_int_equal(now(&f).physical_bytes, physical);
    assert_int_equal(now(&f).driver_calls, calls);
    end(&f);
}

/* S1: a stitched block that is idle serves requests of exactly its size, without a call. */
static void gmlake_uses_a_stitched_block_again(void **state)
{
    (void)state;
    fixture f;
    start(&f, "fragment:100m");
    leave_two(&f, 100 * MIB);
    pleat_va view = take(&f, 190 * MIB, 0);
    give(&f, view);
    uint64_t calls = now(&f).driver_calls;
    for (int i = 0; i < 3; i++) {
        pleat_va again = take(&f, 190 * MIB, 0);
        assert_int_equal(again, view);
        give(&f, again);
    }
    assert_int_equal(now(&f).driver_calls, calls);
    assert_int_equal(now(&f).stitched, 4);
    /* Another size has a view of its own; so has the same one while a part of the first is in use.
     */
    pleat_va other = take(&f, 188 * MIB, 0);
    assert_int_not_equal(other, view);
    assert_true(now(&f).driver_calls > calls);
    assert_int_not_equal(take(&f, 190 * MIB, 0), view);
    give(&f, other);
    assert_int_equal(take(&f, 190 * MIB, 0), view);
    end(&f);
}

/* StitchFree: of two idle views the one that was used last stays, though it is the older one. */
static void gmlake_drops_the_view_that_was_longest_unused(void **state)
{
    (void)state;
    fixture f;
    start(&f, "fragment:100m,stitched:600m");
    leave_two(&f, 130 * MIB);
    pleat_va older = take(&f, 250 * MIB, 0);
    give(&f, older);
    give(&f, take(&f, 254 * MIB, 0));
    assert_int_equal(take(&f, 250 * MIB, 0), older);
    give(&f, older);
    /* A third is more than may be stitched: the second goes. */
    uint64_t unmaps = now(&f).virtual_bytes;
    give(&f, take(&f, 258 * MIB, 0));
    assert_int_equal(now(&f).virtual_bytes, unmaps + (258 - 254) * MIB);
    uint64_t calls = now(&f).driver_calls;
    assert_int_equal(take(&f, 250 * MIB, 0), older);
    assert_int_equal(now(&f).driver_calls, calls);
    give(&f, older);
    take(&f, 254 * MIB, 0);
    assert_true(now(&f).driver_calls > calls);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gmlake_leaves_what_is_under_a_chunk_to_torch),
        cmocka_unit_test(gmlake_stitches_blocks_of_the_limit_and_more),
        cmocka_unit_test(gmlake_makes_only_what_is_missing),
        cmocka_unit_test(gmlake_cuts_the_smallest_larger_block),
        cmocka_unit_test(gmlake_uses_a_stitched_block_again),
        cmocka_unit_test(gmlake_drops_the_view_that_was_longest_unused),
    };
    return cmocka_run_group_tests_name("gmlake", tests, NULL, NULL);
}
