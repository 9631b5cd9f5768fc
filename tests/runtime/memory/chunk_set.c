/*
 * chunk_set.c: a place's chunks say of any other whether it lies on one of them.
 */
#include "test.h"

#include <runtime/memory/chunk_set.h>

#define SHIFT  4u
#define CHUNKS 400u
#define RUNS   40u
#define PLACES 200u

/* Up to RUNS runs of which some are in a chunk and some over hundreds. */
typedef struct scattered {
    pleat__place place;
    pleat__runs several;
    pleat__run runs[RUNS];
} scattered;

static void scatter(scattered *s, test_random *random)
{
    s->several =
        (pleat__runs){.runs = s->runs, .count = 1 + (uint32_t)test_random_below(random, 8)};
    if (test_random_below(random, 4) == 0)
        s->several.count = RUNS;
    for (uint32_t i = 0; i < s->several.count; i++) {
        uint32_t most = test_random_below(random, 30) == 0 ? CHUNKS << SHIFT : 3u << SHIFT;
        uint32_t begin = (uint32_t)test_random_below(random, (CHUNKS << SHIFT) - 1);
        uint32_t left = (CHUNKS << SHIFT) - begin;
        s->runs[i] =
            (pleat__run){begin, 1 + (uint32_t)test_random_below(random, most < left ? most : left)};
    }
    s->place = s->several.count == 1 ? (pleat__place){.run = s->runs[0]}
                                     : (pleat__place){.several = &s->several};
}

static bool run_by_run(const scattered *a, const scattered *b)
{
    for (uint32_t i = 0; i < a->several.count; i++)
        for (uint32_t k = 0; k < b->several.count; k++) {
            pleat__run x = a->runs[i], y = b->runs[k];
            if (x.begin >> SHIFT <= (y.begin + y.count - 1) >> SHIFT &&
                y.begin >> SHIFT <= (x.begin + x.count - 1) >> SHIFT)
                return true;
        }
    return false;
}

static void chunk_set_meets_what_shares_a_chunk(void **state)
{
    (void)state;
    test_random random = test_random_begin("chunk_set", 0x5e7);
    static scattered places[PLACES];
    pleat__arena *arena;
    pleat__chunk_set set;
    uint32_t met = 0;
    assert_ok(pleat__arena_create(&arena));
    uint64_t before = pleat__arena_bytes_of(arena).allocated;
    pleat__chunk_set_init(&set, arena, SHIFT);
    for (uint32_t i = 0; i < PLACES; i++)
        scatter(&places[i], &random);
    for (uint32_t i = 0; i < PLACES; i++) {
        assert_ok(pleat__chunk_set_add(&set, &places[i].place));
        for (uint32_t k = 0; k < PLACES; k++) {
            bool meets = pleat__chunk_set_meets(&set, &places[k].place);
            assert_int_equal(meets, run_by_run(&places[i], &places[k]));
            met += meets;
        }
        pleat__chunk_set_remove(&set, &places[i].place);
        for (uint32_t k = 0; k < PLACES; k++)
            assert_false(pleat__chunk_set_meets(&set, &places[k].place));
    }
    assert_in_range(met, PLACES, PLACES * PLACES - PLACES);
    pleat__chunk_set_release(&set);
    assert_int_equal(pleat__arena_bytes_of(arena).allocated, before);
    pleat__arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunk_set_meets_what_shares_a_chunk),
    };
    return cmocka_run_group_tests_name("chunk_set", tests, NULL, NULL);
}
