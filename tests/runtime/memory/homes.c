/*
 * homes.c: chunks beyond as many as the device has: their homes lie wherever the window has room,
 * each in one place.
 */
#include "ground.h"

#include <stdlib.h>

static int compare(const void *left, const void *right)
{
    const uint32_t a = *(const uint32_t *)left, b = *(const uint32_t *)right;
    return a < b ? -1 : a > b;
}

/* Of chunks that are promised none has memory. */
static void assert_homes(const ground *g, uint32_t count)
{
    const pleat__chunk_pool *pool = &g->pool;
    assert_int_equal(pool->count, count);
    assert_true(pleat__chunks_audit(pool));
    uint32_t *homes = calloc(count, sizeof *homes);
    assert_non_null(homes);
    for (uint32_t c = 0; c < count; c++) {
        homes[c] = pool->home[c];
        assert_ptr_equal(pleat__space_chunk_at(g->space, homes[c], NULL), pool->chunks[c]);
        assert_int_equal(pool->breaks[c], c == 0 || homes[c] != pool->home[c - 1] + 1);
    }
    qsort(homes, count, sizeof *homes, compare);
    for (uint32_t c = 1; c < count; c++)
        assert_true(homes[c - 1] < homes[c]);
    free(homes);
}

/* What is taken beside the homes pushes the second run of them up; given back, it has room for the
 * third, which ends where the second begins, and begins where the first ends. */
static void homes_lie_where_there_is_room(void **state)
{
    (void)state;
    ground g;
    uint64_t beside, after;
    ground_begin(&g);
    uint32_t pages = (uint32_t)(pleat__space_device_bytes(g.space) / PAGE);
    pleat__gate_lock_turn(&g.gate);
    assert_ok(pleat__chunk_pool_promise(&g.pool, pages - 3));
    assert_ok(pleat__space_take(g.space, pages, &beside));
    assert_int_equal(beside, pages);
    assert_ok(pleat__chunk_pool_promise(&g.pool, pages));
    assert_homes(&g, 2 * pages - 3);
    assert_int_equal(g.pool.home[pages - 3], pages - 3);
    assert_int_equal(g.pool.home[pages], 2 * pages);
    pleat__space_give(g.space, beside, pages);
    assert_ok(pleat__chunk_pool_promise(&g.pool, 2));
    assert_ok(pleat__chunk_pool_promise(&g.pool, 1));
    assert_ok(pleat__chunk_pool_promise(&g.pool, pages));
    assert_homes(&g, 3 * pages);
    assert_int_equal(g.pool.home[2 * pages], pages);
    assert_ok(pleat__space_take(g.space, 1, &after));
    assert_ok(pleat__chunk_pool_promise(&g.pool, pages - 1));
    assert_homes(&g, 4 * pages - 1);
    /* All or none, and then the last. */
    assert_result(pleat__chunk_pool_promise(&g.pool, 2), PLEAT_E_OUT_OF_MEMORY);
    assert_homes(&g, 4 * pages - 1);
    assert_ok(pleat__chunk_pool_promise(&g.pool, 1));
    assert_homes(&g, PLEAT__HOMES * pages);
    pleat__space_give(g.space, after, 1);
    pleat__gate_unlock(&g.gate);
    ground_end(&g);
}

/* A window without room refuses, and what was taken before serves on. */
static void homes_without_addresses_are_refused(void **state)
{
    (void)state;
    ground g;
    uint64_t rest;
    ground_begin(&g);
    uint32_t pages = (uint32_t)(pleat__space_device_bytes(g.space) / PAGE);
    uint64_t left = pleat__space_pages(g.space) - pages;
    pleat__gate_lock_turn(&g.gate);
    assert_ok(pleat__space_take(g.space, left, &rest));
    assert_ok(pleat__chunk_pool_promise(&g.pool, pages - 1));
    assert_result(pleat__chunk_pool_promise(&g.pool, 2), PLEAT_E_OUT_OF_MEMORY);
    assert_ok(pleat__chunk_pool_promise(&g.pool, 1));
    assert_homes(&g, pages);
    pleat__space_give(g.space, rest, left);
    assert_ok(pleat__chunk_pool_promise(&g.pool, 2));
    assert_homes(&g, pages + 2);
    pleat__gate_unlock(&g.gate);
    ground_end(&g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_lie_where_there_is_room),
        cmocka_unit_test(homes_without_addresses_are_refused),
    };
    return cmocka_run_group_tests_name("homes", tests, NULL, NULL);
}
