/*
 * key_set.c: the ordered set of keys against a map of bytes, and how many blocks it takes.
 */
#include "test.h"

#include <runtime/base/key_set.h>
#include <string.h>

#define KEYS 4096u

typedef struct fixture {
    pleat__arena *arena;
    pleat__key_set set;
    bool in[KEYS + 1];
    uint32_t count;
} fixture;

static int begin(void **state)
{
    fixture *f = test_calloc(1, sizeof *f);
    assert_ok(pleat__arena_create(&f->arena));
    pleat__key_set_init(&f->set, f->arena);
    *state = f;
    return 0;
}

static int end(void **state)
{
    fixture *f = *state;
    pleat__key_set_release(&f->set);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    pleat__arena_destroy(f->arena);
    test_free(f);
    return 0;
}

/* Far apart, so that both halves of a key count. */
static uint64_t key_of(uint32_t number)
{
    return (uint64_t)number << 31;
}

static void put(fixture *f, uint32_t number)
{
    assert_ok(pleat__key_set_reserve(&f->set, 1));
    pleat__key_set_insert(&f->set, key_of(number));
    f->in[number] = true;
    f->count++;
}

static void take(fixture *f, uint32_t number)
{
    pleat__key_set_remove(&f->set, key_of(number));
    f->in[number] = false;
    f->count--;
}

static void move(fixture *f, uint32_t from, uint32_t to)
{
    pleat__key_set_replace(&f->set, key_of(from), key_of(to));
    f->in[from] = false;
    f->in[to] = true;
}

static void assert_neighbours(const fixture *f, uint32_t number)
{
    uint32_t low = number, high = number + 1;
    while (low > 0 && !f->in[low])
        low--;
    while (high <= KEYS && !f->in[high])
        high++;
    pleat__key_gap gap = pleat__key_set_gap(&f->set, key_of(number));
    assert_int_equal(pleat__key_below(&f->set, gap), key_of(low));
    assert_int_equal(pleat__key_above(&f->set, gap), high > KEYS ? 0 : key_of(high));
    assert_int_equal(pleat__key_set_at_most(&f->set, key_of(number) + 1), key_of(low));
    assert_int_equal(pleat__key_set_above(&f->set, key_of(number) + 1),
                     high > KEYS ? 0 : key_of(high));
}

/* What is done in a gap that was found: another number beside or in the place of its neighbours, or
 * one of them gone. */
static void change_in_gap(fixture *f, uint32_t number, uint32_t what)
{
    pleat__key_gap gap = pleat__key_set_gap(&f->set, key_of(number));
    bool upper = what & 1;
    uint64_t key = upper ? pleat__key_above(&f->set, gap) : pleat__key_below(&f->set, gap);
    uint32_t neighbour = (uint32_t)(key >> 31);
    if (!f->in[number] && what < 2) {
        pleat__key_set_insert_at(&f->set, gap, key_of(number));
    } else if (neighbour == 0) {
        return;
    } else if (!f->in[number] && what < 4) {
        gap = upper ? pleat__key_gap_above(&f->set, gap) : gap;
        pleat__key_set_put_at(&f->set, gap, key_of(number));
        f->in[neighbour] = false;
    } else {
        if (upper)
            pleat__key_set_remove_at(&f->set, pleat__key_gap_above(&f->set, gap));
        else
            pleat__key_set_remove_at(&f->set, gap);
        f->in[neighbour] = false;
        f->count--;
        return;
    }
    f->count += what < 2;
    f->in[number] = true;
}

/* A number that is in the set, or is not; from a random one on. */
static uint32_t one_of(const fixture *f, test_random *random, bool in)
{
    uint32_t number = 1 + (uint32_t)test_random_below(random, KEYS);
    while (f->in[number] != in)
        number = number % KEYS + 1;
    return number;
}

/* It fills to some level, empties to another, and so on: blocks split and join. */
static void key_set_agrees_with_a_map_of_bytes(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("key_set", 0x5e7);
    uint32_t level = 0, split = 0;
    for (uint32_t step = 0; step < 40000; step++) {
        if (step % 2000 == 0)
            level = (uint32_t)test_random_below(&random, KEYS);
        uint32_t what = (uint32_t)test_random_below(&random, 4);
        if (what == 0 && f->count > 0)
            move(f, one_of(f, &random, true), one_of(f, &random, false));
        else if (f->count < level || f->count == 0)
            put(f, one_of(f, &random, false));
        else
            take(f, one_of(f, &random, true));
        assert_int_equal(f->set.count, f->count);
        assert_neighbours(f, 1 + (uint32_t)test_random_below(&random, KEYS - 1));
        split = f->set.blocks > split ? f->set.blocks : split;
        if (step % 16 == 0)
            assert_true(pleat__key_set_audit(&f->set));
    }
    assert_in_range(split, KEYS / PLEAT__KEY_BLOCK, 4 * KEYS / PLEAT__KEY_BLOCK + 1);
    while (f->count > 0) {
        take(f, one_of(f, &random, true));
        assert_true(pleat__key_set_audit(&f->set));
    }
    assert_int_equal(f->set.blocks, 0);
}

static void key_set_is_changed_where_a_search_ended(void **state)
{
    fixture *f = *state;
    test_random random = test_random_begin("key gaps", 0x9a9);
    for (uint32_t step = 0; step < 40000; step++) {
        /* More come than go for a while, and then more go. */
        uint32_t most = step / 4000 % 2 == 0 ? 5 : 8;
        assert_ok(pleat__key_set_reserve(&f->set, 1));
        change_in_gap(f, 1 + (uint32_t)test_random_below(&random, KEYS - 1),
                      (uint32_t)test_random_below(&random, most));
        assert_int_equal(f->set.count, f->count);
        assert_neighbours(f, 1 + (uint32_t)test_random_below(&random, KEYS - 1));
        if (step % 16 == 0)
            assert_true(pleat__key_set_audit(&f->set));
    }
}

/* Keys that come in order leave each block half full, and go again from its beginning. */
static void key_set_that_thins_out_gives_blocks_back(void **state)
{
    fixture *f = *state;
    for (uint32_t i = 1; i <= KEYS; i++)
        put(f, i);
    uint32_t full = f->set.blocks;
    for (uint32_t i = 1; i <= KEYS; i++)
        if (i % 64 != 0)
            take(f, i);
    assert_true(pleat__key_set_audit(&f->set));
    assert_in_range(f->set.blocks, 1, full / 8);
    for (uint32_t i = 0; i < KEYS; i++)
        assert_neighbours(f, i);
}

/* Room that was made holds whatever comes in whatever order. */
static void key_set_with_room_inserts_without_host_memory(void **state)
{
    fixture *f = *state;
    assert_ok(pleat__key_set_reserve(&f->set, KEYS));
    pleat__arena_fail(1, true);
    assert_int_equal(pleat__key_set_reserve(&f->set, KEYS), PLEAT_OK);
    for (uint32_t step = 1; step <= 64; step++)
        for (uint32_t i = step; i <= KEYS; i += 64)
            put(f, i);
    pleat_result result = pleat__key_set_reserve(&f->set, KEYS);
    pleat__arena_fail(0, false);
    assert_int_equal(result, PLEAT_E_NO_MEMORY);
    assert_true(pleat__key_set_audit(&f->set));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(key_set_agrees_with_a_map_of_bytes, begin, end),
        cmocka_unit_test_setup_teardown(key_set_is_changed_where_a_search_ended, begin, end),
        cmocka_unit_test_setup_teardown(key_set_that_thins_out_gives_blocks_back, begin, end),
        cmocka_unit_test_setup_teardown(key_set_with_room_inserts_without_host_memory, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
