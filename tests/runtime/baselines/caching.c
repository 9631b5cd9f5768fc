/*
 * caching.c: the caching allocator's rules, one by one, on the host backend.
 */
#include "../fault.h"
#include "../held.h"
#include "../test.h"

#include <internal/error.h>
#include <runtime/baselines/torch/caching.h>
#include <string.h>

#define MIB (1ull << 20)

typedef struct fixture {
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__gate gate;
    pleat__caching *caching;
    pleat_va given; /* what the program frees when it is asked; 0: nothing */
    int asked;
} fixture;

/* With the turn, which is held to the end. */
static void begin(fixture *f, const pleat__caching_options *options)
{
    const pleat__space_options space = {0};
    *f = (fixture){.given = 0};
    assert_ok(pleat_vmm_host(NULL, &f->host));
    assert_ok(pleat__fault_create(f->host, &f->vmm));
    assert_ok(pleat__arena_create(&f->arena));
    assert_ok(pleat__space_create(f->vmm, f->arena, &space, &f->space));
    assert_ok(pleat__gate_init(&f->gate, f->vmm, 0, f->arena));
    pleat__gate_lock_turn(&f->gate);
    assert_ok(pleat__caching_create(f->arena, f->space, &f->gate, options, &f->caching));
}

static uint64_t backed(fixture *f)
{
    pleat__space_stats stats = pleat__space_stats_of(f->space);
    return stats.physical_bytes - stats.pooled_bytes;
}

static uint64_t reserved(fixture *f)
{
    return pleat__space_stats_of(f->space).reserved_pages * pleat__space_page_bytes(f->space);
}

/* Of the handle behind an address. */
static uint64_t handle_bytes(fixture *f, pleat_va address)
{
    uint64_t page = pleat__space_page_bytes(f->space);
    return pleat__space_chunk_at(f->space, (address - pleat__space_base(f->space)) / page, NULL)
               ->pages *
           page;
}

static void end(fixture *f)
{
    assert_true(pleat__caching_audit(f->caching));
    pleat__gate_unlock(&f->gate);
    pleat__caching_destroy(f->caching);
    (void)pleat__space_trim(f->space, 0);
    assert_int_equal(backed(f), 0);
    assert_int_equal(reserved(f), 0);
    pleat__gate_release(&f->gate);
    pleat__space_destroy(f->space);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    pleat__arena_destroy(f->arena);
    pleat_vmm_destroy(&f->vmm);
    assert_nothing_held(&f->host);
    pleat_vmm_destroy(&f->host);
}

static pleat_va take(fixture *f, uint64_t bytes, pleat_stream stream)
{
    pleat_va address;
    assert_ok(pleat__caching_alloc(f->caching, bytes, stream, &address));
    return address;
}

static void give(fixture *f, pleat_va address)
{
    assert_ok(pleat__caching_free(f->caching, address, NULL));
}

static pleat_block block_of(fixture *f, pleat_va address)
{
    pleat_block block;
    assert_ok(pleat__caching_block_of(f->caching, address, &block));
    return block;
}

static void caching_rounds_sizes_and_segments(void **state)
{
    (void)state;
    static const struct {
        uint64_t bytes, block, segment;
    } table[] = {
        {1, 512, 2 * MIB},
        {512, 512, 2 * MIB},
        {513, 1024, 2 * MIB},
        {MIB - 1, MIB, 2 * MIB},
        {MIB, MIB, 2 * MIB},
        {MIB + 1, MIB + 512, 20 * MIB},
        {10 * MIB - 513, 10 * MIB - 512, 20 * MIB},
        {10 * MIB - 511, 10 * MIB, 10 * MIB}, /* 10 MiB once rounded */
        {10 * MIB, 10 * MIB, 10 * MIB},
        {10 * MIB + 1, 10 * MIB + 512, 12 * MIB},
        {11 * MIB + 1, 12 * MIB, 12 * MIB}, /* the rest is under 1 MiB: not cut off */
        {13 * MIB, 14 * MIB, 14 * MIB},     /* a rest of exactly 1 MiB is not */
        {100 * MIB, 100 * MIB, 100 * MIB},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fixture f;
        begin(&f, NULL);
        pleat_va address = take(&f, table[i].bytes, 0);
        assert_int_equal(backed(&f), table[i].segment);
        assert_int_equal(handle_bytes(&f, address), table[i].segment);
        pleat_block block = block_of(&f, address);
        assert_int_equal(block.bytes, table[i].block);
        assert_int_equal(block.requested, table[i].bytes);
        uint64_t counted;
        assert_ok(pleat__caching_free(f.caching, address, &counted));
        assert_int_equal(counted, table[i].bytes);
        end(&f);
    }
}

static void caching_splits_by_pool(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    /* Small: every 512 that is left serves again. */
    pleat_va a = take(&f, MIB, 0);
    pleat_va b = take(&f, MIB - 512, 0);
    pleat_va c = take(&f, 512, 0);
    assert_int_equal(b, a + MIB);
    assert_int_equal(c, a + 2 * MIB - 512);
    assert_int_equal(backed(&f), 2 * MIB);
    /* Large: a rest of over 1 MiB is cut off, one of 1 MiB is not. */
    pleat_va d = take(&f, 9 * MIB, 0);
    pleat_va e = take(&f, 10 * MIB, 0);
    assert_int_equal(e, d + 9 * MIB);
    assert_int_equal(block_of(&f, e).bytes, 11 * MIB);
    assert_int_equal(backed(&f), 22 * MIB);
    pleat_va g = take(&f, 2 * MIB, 0);
    assert_int_equal(block_of(&f, g).bytes, 2 * MIB);
    assert_int_equal(backed(&f), 42 * MIB);
    end(&f);
}

static void caching_joins_neighbours_on_both_sides(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat_va a = take(&f, 4 * MIB, 0), b = take(&f, 4 * MIB, 0), c = take(&f, 4 * MIB, 0);
    assert_int_equal(c, a + 8 * MIB);
    uint64_t before, after;
    give(&f, a);
    assert_ok(pleat__caching_adjacent_free(f.caching, b + 1, &before, &after));
    assert_int_equal(before, 4 * MIB);
    assert_int_equal(after, 0);
    assert_ok(pleat__caching_adjacent_free(f.caching, c, &before, &after));
    assert_int_equal(before, 0);
    assert_int_equal(after, 8 * MIB);
    give(&f, c);
    assert_int_equal(pleat__caching_largest(f.caching, 0), 12 * MIB);
    give(&f, b);
    assert_int_equal(pleat__caching_largest(f.caching, 0), 20 * MIB);
    assert_int_equal(take(&f, 20 * MIB, 0), a);
    assert_int_equal(pleat__space_stats_of(f.space).creates, 1);
    end(&f);
}

static void caching_takes_the_smallest_then_the_lowest(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat_va parts[6];
    for (int i = 0; i < 6; i++)
        parts[i] = take(&f, i == 1 ? 2 * MIB : 3 * MIB, 0);
    /* Free 3, 2, 3 MiB, each between live neighbours. */
    give(&f, parts[4]);
    give(&f, parts[1]);
    give(&f, parts[2 + 0]);
    /* 1 and 2 joined: 5 MiB; 4 is 3 MiB. */
    assert_int_equal(take(&f, 2 * MIB, 0), parts[4]);
    assert_int_equal(take(&f, 2 * MIB, 0), parts[5] + 3 * MIB);
    assert_int_equal(take(&f, 5 * MIB, 0), parts[1]);
    end(&f);

    begin(&f, NULL);
    for (int i = 0; i < 6; i++)
        parts[i] = take(&f, 3 * MIB, 0);
    give(&f, parts[4]);
    give(&f, parts[0]);
    give(&f, parts[2]);
    assert_int_equal(take(&f, 3 * MIB, 0), parts[0]);
    assert_int_equal(take(&f, 3 * MIB, 0), parts[2]);
    assert_int_equal(take(&f, 3 * MIB, 0), parts[4]);
    end(&f);
}

static void caching_keeps_streams_apart(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat_va a = take(&f, 4 * MIB, 1);
    give(&f, a);
    pleat_va b = take(&f, 4 * MIB, 2);
    assert_int_not_equal(a, b);
    assert_int_equal(backed(&f), 40 * MIB);
    assert_int_equal(block_of(&f, b).stream, 2);
    assert_int_equal(take(&f, 4 * MIB, 1), a);
    assert_int_equal(pleat__caching_largest(f.caching, 3), 0);
    end(&f);
}

static void caching_frees_only_what_it_gave(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat_va a = take(&f, 4 * MIB, 0);
    assert_result(pleat__caching_free(f.caching, a + 512, NULL), PLEAT_E_NOT_FOUND);
    assert_result(pleat__caching_free(f.caching, 512, NULL), PLEAT_E_NOT_FOUND);
    give(&f, a);
    assert_result(pleat__caching_free(f.caching, a, NULL), PLEAT_E_NOT_FOUND);
    assert_true(pleat__caching_owns(f.caching, a + 20 * MIB - 1));
    assert_false(pleat__caching_owns(f.caching, a + 20 * MIB));
    end(&f);
}

static void caching_finds_the_block_around_an_address(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat_va small[3], large[3];
    for (int i = 0; i < 3; i++) {
        small[i] = take(&f, 100 * 1024, 0);
        large[i] = take(&f, 5 * MIB + 512, 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(block_of(&f, small[i] + 100 * 1024 - 1).address, small[i]);
        assert_int_equal(block_of(&f, large[i] + 5 * MIB + 511).address, large[i]);
        assert_int_equal(block_of(&f, large[i] + 1).address, large[i]);
    }
    pleat_block block;
    give(&f, large[1]);
    give(&f, small[0]);
    assert_result(pleat__caching_block_of(f.caching, large[1] + MIB, &block), PLEAT_E_NOT_FOUND);
    assert_result(pleat__caching_block_of(f.caching, small[0], &block), PLEAT_E_NOT_FOUND);
    assert_result(pleat__caching_block_of(f.caching, large[2] + 9 * MIB, &block),
                  PLEAT_E_NOT_FOUND);
    assert_int_equal(block_of(&f, large[2] + MIB).address, large[2]);
    assert_result(pleat__caching_block_of(f.caching, 0, &block), PLEAT_E_NOT_FOUND);
    end(&f);
}

static void caching_refusal_changes_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, NULL);
    pleat__space_set_budget(f.space, 30 * MIB);
    pleat_va a = take(&f, 4 * MIB, 0), b;
    pleat__caching_stats was = pleat__caching_stats_of(f.caching);
    assert_result(pleat__caching_alloc(f.caching, 18 * MIB, 0, &b), PLEAT_E_BUDGET);
    assert_result(pleat__caching_alloc(f.caching, UINT64_MAX - 5, 0, &b), PLEAT_E_OUT_OF_MEMORY);
    pleat__caching_stats now = pleat__caching_stats_of(f.caching);
    assert_memory_equal(&was, &now, sizeof was);
    give(&f, a);
    assert_int_equal(pleat__caching_release_all(f.caching), 20 * MIB);
    take(&f, 18 * MIB, 0);
    assert_int_equal(backed(&f), 18 * MIB);
    end(&f);
}

static void caching_max_split_keeps_large_blocks_whole(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.max_split_bytes = 40 * MIB, .max_round_bytes = 10 * MIB};
    begin(&f, &options);
    pleat_va a = take(&f, 60 * MIB, 0);
    give(&f, a);
    /* Neither a small request nor one that would waste 10 MiB gets it. */
    pleat_va b = take(&f, 30 * MIB, 0);
    pleat_va c = take(&f, 44 * MIB, 0);
    assert_int_not_equal(b, a);
    assert_int_not_equal(c, a);
    assert_int_equal(take(&f, 52 * MIB, 0), a);
    assert_int_equal(block_of(&f, a).bytes, 60 * MIB);
    give(&f, a);
    give(&f, c);
    /* Small requests live elsewhere. The smallest that suffices goes; where none does, the largest
     * first, and it is said that they do not: the request is not tried then, and all goes. */
    assert_false(pleat__caching_release_large(f.caching, MIB, 0));
    assert_int_equal(backed(&f), (60 + 44 + 30) * MIB);
    assert_true(pleat__caching_release_large(f.caching, 50 * MIB, 0));
    assert_int_equal(backed(&f), (44 + 30) * MIB);
    assert_false(pleat__caching_release_large(f.caching, 50 * MIB, 0));
    assert_int_equal(backed(&f), 30 * MIB);
    assert_false(pleat__caching_release_large(f.caching, 50 * MIB, 0));
    end(&f);
}

static void caching_collects_the_old_first(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.gc_threshold = 0.5,
                                      .limit_bytes = &(const uint64_t){200 * MIB}};
    begin(&f, &options);
    pleat_va old = take(&f, 50 * MIB, 0);
    give(&f, old);
    pleat_va other = take(&f, 60 * MIB, 0);
    for (int i = 0; i < 10; i++)
        give(&f, take(&f, 60 * MIB - 512, 1 + (pleat_stream)(i == 0)));
    give(&f, other);
    /* 100 MiB are allowed, and each new segment drops what is idle: first what was freed first,
     * then that of the second stream, and at last all. */
    assert_int_equal(backed(&f), 120 * MIB);
    take(&f, 80 * MIB, 0);
    assert_int_equal(backed(&f), 80 * MIB);
    end(&f);
}

/* The mean of ages 2 and 1 is 1.5: the younger one stays where the older one is enough. */
static void caching_collects_what_is_older_than_the_mean(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.gc_threshold = 0.5,
                                      .limit_bytes = &(const uint64_t){300 * MIB}};
    begin(&f, &options);
    pleat_va old = take(&f, 50 * MIB, 0), young = take(&f, 60 * MIB, 0), c = take(&f, 70 * MIB, 0);
    give(&f, old);
    give(&f, c);
    assert_int_equal(take(&f, 70 * MIB, 0), c);
    give(&f, young);
    take(&f, 80 * MIB, 0);
    assert_false(pleat__caching_owns(f.caching, old));
    assert_true(pleat__caching_owns(f.caching, young));
    assert_int_equal(backed(&f), (60 + 70 + 80) * MIB);
    end(&f);
}

static int give_what_is_given(void *context, uint64_t bytes, pleat_stream stream)
{
    fixture *f = context;
    pleat_va gone = f->given;
    (void)bytes;
    (void)stream;
    f->asked++;
    f->given = 0;
    if (gone != 0)
        give(f, gone);
    return gone != 0;
}

/* PyTorch's order: what is free, then the program's callbacks and what they freed, then new memory.
 */
static void caching_asks_the_program_before_new_memory(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.early_callback = give_what_is_given, .memory_context = &f};
    begin(&f, &options);
    pleat_va a = take(&f, 30 * MIB, 0);
    assert_int_equal(f.asked, 1);
    f.given = a;
    assert_int_equal(take(&f, 30 * MIB, 0), a);
    assert_int_equal(f.asked, 2);
    assert_int_equal(pleat__space_stats_of(f.space).creates, 1);
    /* What suffices among the free is taken unasked; what was freed and does not suffice stays. */
    give(&f, a);
    a = take(&f, 29 * MIB, 0);
    assert_int_equal(f.asked, 2);
    f.given = a;
    pleat_va b = take(&f, 40 * MIB, 0);
    assert_int_equal(pleat__space_stats_of(f.space).creates, 2);
    assert_int_equal(pleat__caching_largest(f.caching, 0), 30 * MIB);
    give(&f, b);
    end(&f);
}

/* The figures are those of PyTorch's documentation (1,200 bytes and four parts give 1,280, in its
 * terms) and of its rule that a part is at least 512 bytes. */
static void caching_rounds_to_parts_of_a_power_of_two(void **state)
{
    (void)state;
    static const struct {
        uint64_t parts, bytes, block;
    } table[] = {
        {4, 1200, 1536}, /* no more than four blocks of 512: as without */
        {4, 2048, 2048},
        {4, 2049, 2560}, /* 2048 to 4096 in fours */
        {4, 300 * 1024, 320 * 1024},
        {8, 300 * 1024, 320 * 1024},
        {16, 300 * 1024, 304 * 1024},
        {4, 12 * MIB, 12 * MIB},
        {4, 12 * MIB + 1, 14 * MIB},
        {2, 70 * MIB, 96 * MIB},
        {1, 70 * MIB + 1, 70 * MIB + 512}, /* one part is none */
        {0, 1200, 1536},
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        fixture f;
        pleat__caching_options options = {0};
        for (int k = 0; k < PLEAT__DIVIDED_POWERS; k++)
            options.divisions.of[k] = (uint16_t)table[i].parts;
        begin(&f, &options);
        pleat_block block = block_of(&f, take(&f, table[i].bytes, 0));
        assert_int_equal(block.bytes, table[i].block);
        assert_int_equal(block.requested, table[i].bytes);
        end(&f);
    }
}

/* Each power of two has its own parts, or none; below 1 MiB the first holds, above 32 GiB the last.
 */
static void caching_rounds_each_size_by_its_own_parts(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.divisions = {{[0] = 4, [5] = 2, [15] = 8}}};
    begin(&f, &options);
    assert_int_equal(block_of(&f, take(&f, 5000, 0)).bytes, 5120);
    assert_int_equal(block_of(&f, take(&f, 3 * MIB / 2 + 1, 0)).bytes, 7 * MIB / 4);
    assert_int_equal(block_of(&f, take(&f, 24 * MIB + 1, 0)).bytes, 24 * MIB + 512);
    assert_int_equal(block_of(&f, take(&f, 33 * MIB, 0)).bytes, 48 * MIB);
    assert_int_equal(block_of(&f, take(&f, (64ull << 30) + 1, 0)).bytes, 72ull << 30);
    end(&f);
}

static void expandable_grows_in_place_and_shrinks(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.expandable = true, .range_bytes = 900 * MIB};
    begin(&f, &options);
    pleat_va a = take(&f, 30 * MIB, 0);
    assert_int_equal(backed(&f), 40 * MIB);
    assert_int_equal(handle_bytes(&f, a), 20 * MIB);
    pleat_va b = take(&f, 12 * MIB, 0);
    assert_int_equal(b, a + 30 * MIB);
    assert_int_equal(backed(&f), 60 * MIB);
    /* Every 512 that is left serves again. */
    pleat_va c = take(&f, 18 * MIB - 512, 0);
    assert_int_equal(c, b + 12 * MIB);
    assert_int_equal(block_of(&f, c).bytes, 18 * MIB - 512);
    pleat_va s = take(&f, 512, 0);
    assert_int_equal(backed(&f), 62 * MIB);
    assert_int_equal(handle_bytes(&f, s), 2 * MIB);
    /* Holes are given back by whole handles only; what is left stays. */
    give(&f, a);
    assert_int_equal(pleat__caching_release_all(f.caching), 20 * MIB);
    assert_int_equal(backed(&f), 42 * MIB);
    assert_int_equal(pleat__caching_largest(f.caching, 0), 10 * MIB);
    /* The hole is the lowest place with room. */
    assert_int_equal(take(&f, 25 * MIB, 0), a);
    assert_int_equal(backed(&f), 62 * MIB);
    give(&f, s);
    give(&f, c);
    give(&f, b);
    give(&f, a);
    assert_int_equal(pleat__caching_release_all(f.caching), 62 * MIB);
    assert_int_equal(reserved(&f), 0);
    end(&f);
}

/* The block before what is not backed counts with all that it could become: a larger one that
 * cannot grow is taken before it, and of several the smallest. */
static void expandable_spares_the_block_that_can_grow(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.expandable = true, .range_bytes = 900 * MIB};
    begin(&f, &options);
    pleat_va large = take(&f, 25 * MIB, 0);
    take(&f, 2 * MIB, 0);
    pleat_va smaller = take(&f, 20 * MIB, 0);
    take(&f, MIB + 512, 0);
    /* 11 MiB are left before what is not backed. */
    assert_int_equal(pleat__caching_largest(f.caching, 0), 12 * MIB - 512);
    give(&f, large);
    give(&f, smaller);
    assert_int_equal(take(&f, 10 * MIB, 0), smaller);
    assert_int_equal(take(&f, 11 * MIB, 0), large);
    assert_int_equal(backed(&f), 60 * MIB);
    end(&f);
}

/* As in PyTorch: a block that max_split keeps from a request is found again as the beginning of the
 * room that the request has, and no memory is made. */
static void expandable_takes_a_free_block_that_has_room_by_itself(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {
        .expandable = true, .range_bytes = 400 * MIB, .max_split_bytes = 40 * MIB};
    begin(&f, &options);
    pleat_va a = take(&f, 60 * MIB, 0);
    give(&f, a);
    assert_int_equal(take(&f, 30 * MIB, 0), a);
    assert_int_equal(backed(&f), 60 * MIB);
    end(&f);
}

static void expandable_quarantine_is_never_used_again(void **state)
{
    (void)state;
    fixture f;
    pleat__caching_options options = {.expandable = true, .range_bytes = 900 * MIB};
    begin(&f, &options);
    pleat_va a = take(&f, 40 * MIB, 0), b = take(&f, 20 * MIB, 0);
    give(&f, a);
    pleat__fault_arm(&f.vmm,
                     (pleat__fault_plan){.verb = PLEAT__FAULT_unmap, .nth = 1, .forever = true});
    assert_int_equal(pleat__caching_release_all(f.caching), 40 * MIB);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.nth = 0});
    pleat_va c = take(&f, 40 * MIB, 0);
    assert_int_equal(c, b + 20 * MIB);
    give(&f, b);
    give(&f, c);
    pleat__caching_release_all(f.caching);
    assert_int_equal(take(&f, 40 * MIB, 0), b);
    end(&f);
}

/* ---- against a naive model ---- */

#define LIVE_MOST 400

typedef struct model {
    pleat_va address[LIVE_MOST];
    uint64_t bytes[LIVE_MOST];
    pleat_stream stream[LIVE_MOST];
    int count;
} model;

static void model_check_block(fixture *f, const model *m, int i, test_random *random)
{
    pleat_va inside = m->address[i] + test_random_below(random, m->bytes[i]);
    pleat_block block = block_of(f, inside);
    assert_int_equal(block.address, m->address[i]);
    assert_int_equal(block.requested, m->bytes[i]);
    assert_int_equal(block.stream, m->stream[i]);
    assert_true(block.bytes >= m->bytes[i]);
    for (int j = 0; j < m->count; j++)
        assert_true(j == i || m->address[j] + m->bytes[j] <= block.address ||
                    m->address[j] >= block.address + block.bytes);
}

static uint64_t some_size(test_random *random)
{
    switch (test_random_below(random, 4)) {
    case 0:
        return 1 + test_random_below(random, 4096);
    case 1:
        return 1 + test_random_below(random, MIB);
    case 2:
        return 1 + test_random_below(random, 12 * MIB);
    default:
        return 1 + test_random_below(random, 90 * MIB);
    }
}

static void model_step(fixture *f, model *m, test_random *random)
{
    bool add = m->count < LIVE_MOST && test_random_below(random, 100) < 55;
    if (add) {
        int i = m->count;
        m->bytes[i] = some_size(random);
        m->stream[i] = test_random_below(random, 3);
        pleat_result result =
            pleat__caching_alloc(f->caching, m->bytes[i], m->stream[i], &m->address[i]);
        if (result == PLEAT_OK) {
            m->count++;
            model_check_block(f, m, i, random);
        } else {
            assert_result(result, PLEAT_E_BUDGET);
            pleat__caching_release_all(f->caching);
        }
    } else if (m->count > 0) {
        int i = (int)test_random_below(random, (uint64_t)m->count);
        give(f, m->address[i]);
        m->count--;
        m->address[i] = m->address[m->count];
        m->bytes[i] = m->bytes[m->count];
        m->stream[i] = m->stream[m->count];
    }
    if (test_random_below(random, 500) == 0)
        pleat__caching_release_all(f->caching);
    assert_int_equal(pleat__caching_stats_of(f->caching).reserved_bytes, backed(f));
    assert_int_equal(pleat__caching_stats_of(f->caching).blocks, m->count);
}

static void caching_agrees_with_a_naive_model(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0001);
    for (int round = 0; round < 6; round++) {
        fixture f;
        model m = {0};
        pleat__caching_options options = {.expandable = round % 2 == 1,
                                          .range_bytes = 4500 * MIB,
                                          .limit_bytes = &(const uint64_t){4000 * MIB},
                                          .max_split_bytes = round == 2 ? 64 * MIB : 0,
                                          .gc_threshold = round == 4 ? 0.3 : 0};
        begin(&f, &options);
        pleat__space_set_budget(f.space, 3000 * MIB);
        for (int i = 0; i < 4000; i++) {
            model_step(&f, &m, &random);
            if (i % 97 == 0)
                assert_true(pleat__caching_audit(f.caching));
        }
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(caching_rounds_sizes_and_segments),
        cmocka_unit_test(caching_splits_by_pool),
        cmocka_unit_test(caching_joins_neighbours_on_both_sides),
        cmocka_unit_test(caching_takes_the_smallest_then_the_lowest),
        cmocka_unit_test(caching_keeps_streams_apart),
        cmocka_unit_test(caching_frees_only_what_it_gave),
        cmocka_unit_test(caching_finds_the_block_around_an_address),
        cmocka_unit_test(caching_refusal_changes_nothing),
        cmocka_unit_test(caching_max_split_keeps_large_blocks_whole),
        cmocka_unit_test(caching_collects_the_old_first),
        cmocka_unit_test(caching_collects_what_is_older_than_the_mean),
        cmocka_unit_test(caching_asks_the_program_before_new_memory),
        cmocka_unit_test(caching_rounds_to_parts_of_a_power_of_two),
        cmocka_unit_test(caching_rounds_each_size_by_its_own_parts),
        cmocka_unit_test(expandable_grows_in_place_and_shrinks),
        cmocka_unit_test(expandable_spares_the_block_that_can_grow),
        cmocka_unit_test(expandable_takes_a_free_block_that_has_room_by_itself),
        cmocka_unit_test(expandable_quarantine_is_never_used_again),
        cmocka_unit_test(caching_agrees_with_a_naive_model),
    };
    return cmocka_run_group_tests_name("caching", tests, NULL, NULL);
}
