/*
 * stress.c: sixteen threads create, stitch, alias and free under a budget that is met all the time.
 * The device has exactly the budget's bytes, so a byte over it would be refused by the device
 * itself (PLEAT_E_OUT_OF_MEMORY), and that must never be seen.
 */
#include "../held.h"
#include "mapping.h"

#include <pthread.h>
#include <vmm/host/host.h>

#define GRANULE 32768u
enum { THREADS = 16, BUDGET = 48, ROUNDS = 400, MOST = 6 };

typedef struct shared {
    pleat_vmm vmm;
    pleat__space *space;
    pleat__mapper *mapper;
    _Atomic uint64_t refused, served, wrong, other;
} shared;

typedef struct worker {
    pthread_t thread;
    shared *all;
    uint64_t number;
} worker;

static void count(shared *all, pleat_result result)
{
    if (result == PLEAT_E_BUDGET)
        atomic_fetch_add(&all->refused, 1);
    else if (result != PLEAT_OK)
        atomic_fetch_add(&all->other, 1);
}

/* Chunks for this thread alone; how many it got. */
static uint64_t get_some(shared *all, test_random *random, pleat__chunk **chunks)
{
    uint64_t got = 0, wanted = 1 + test_random_below(random, MOST);
    while (got < wanted) {
        uint32_t pages = test_random_below(random, 8) == 0 ? 3 : 1;
        pleat_result result = pleat__space_chunk_get(all->space, pages, &chunks[got]);
        count(all, result);
        if (result != PLEAT_OK)
            break;
        got++;
    }
    return got;
}

static uint64_t *page_word(const shared *all, uint64_t page)
{
    return (uint64_t *)(uintptr_t)(pleat__space_base(all->space) + page * GRANULE);
}

/* The chunks side by side; false: there is no room. */
static bool view_over(shared *all, pleat__chunk *const *chunks, uint64_t got, uint64_t *page,
                      uint64_t *pages)
{
    *pages = 0;
    for (uint64_t c = 0; c < got; c++)
        *pages += chunks[c]->pages;
    pleat_result result = pleat__space_take(all->space, *pages, page);
    if (result == PLEAT_OK &&
        (result = pleat__space_map(all->space, *page, chunks, got)) != PLEAT_OK)
        pleat__space_give(all->space, *page, *pages);
    count(all, result);
    return result == PLEAT_OK;
}

static void view_end(shared *all, uint64_t page, uint64_t pages)
{
    count(all, pleat__space_unmap(all->space, page, pages));
    pleat__space_give(all->space, page, pages);
}

/* Writes through one view, reads through another over the same chunks in reverse. */
static void use_views(shared *all, pleat__chunk **chunks, uint64_t got, uint64_t mark)
{
    pleat__chunk *reverse[MOST];
    uint64_t forward, backward, pages;
    for (uint64_t c = 0; c < got; c++)
        reverse[c] = chunks[got - 1 - c];
    if (!view_over(all, chunks, got, &forward, &pages))
        return;
    if (view_over(all, reverse, got, &backward, &pages)) {
        *page_word(all, forward) = mark;
        uint64_t last = backward + pages - chunks[0]->pages;
        atomic_fetch_add(&all->wrong, *page_word(all, last) != mark);
        atomic_fetch_add(&all->served, 1);
        view_end(all, backward, pages);
    }
    view_end(all, forward, pages);
}

/* The same through the mapper. */
static void use_mapper(shared *all, pleat__chunk *const *chunks, uint64_t got, uint64_t mark)
{
    uint64_t page, pages = 0;
    for (uint64_t c = 0; c < got; c++)
        pages += chunks[c]->pages;
    pleat_result result = pleat__space_take(all->space, pages, &page);
    count(all, result);
    if (result != PLEAT_OK)
        return;
    mapping there = {.space = all->space, .page = page, .chunks = chunks, .count = got};
    mapping back = {.space = all->space, .page = page, .pages = pages};
    pleat__job map = mapping_job(&there), unmap = mapping_job(&back);
    pleat__mapper_submit(all->mapper, &map);
    result = pleat__mapper_wait(all->mapper, &map);
    count(all, result);
    if (result == PLEAT_OK) {
        *page_word(all, page + pages - 1) = mark;
        pleat__mapper_submit(all->mapper, &unmap);
        count(all, pleat__mapper_wait(all->mapper, &unmap));
    }
    pleat__space_give(all->space, page, pages);
}

static void *work(void *context)
{
    worker *w = context;
    shared *all = w->all;
    test_random random = {w->number * 77 + 1};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        pleat__chunk *chunks[MOST];
        uint64_t got = get_some(all, &random, chunks), mark = w->number << 32 | round;
        if (got > 0 && test_random_below(&random, 4) != 0)
            use_views(all, chunks, got, mark);
        else if (got > 0)
            use_mapper(all, chunks, got, mark);
        for (uint64_t c = 0; c < got; c++)
            pleat__space_chunk_put(all->space, chunks[c]);
        if (test_random_below(&random, 16) == 0)
            pleat__space_trim(all->space, test_random_below(&random, BUDGET) * GRANULE);
    }
    return NULL;
}

static void stress_budget_is_met_and_never_passed(void **state)
{
    (void)state;
    shared all = {0};
    worker workers[THREADS];
    pleat__arena *arena;
    pleat_host_options host = {
        .size = sizeof host, .granularity = GRANULE, .device_bytes = BUDGET * GRANULE};
    assert_ok(pleat_vmm_host(&host, &all.vmm));
    assert_ok(pleat__arena_create(&arena));
    const pleat__space_options options = {.window_bytes = 4096 * GRANULE};
    assert_ok(pleat__space_create(all.vmm, arena, &options, &all.space));
    pleat__space_set_budget(all.space, BUDGET * GRANULE);
    assert_ok(pleat__mapper_create(all.vmm, arena, &all.mapper));
    for (uint64_t t = 0; t < THREADS; t++) {
        workers[t] = (worker){.all = &all, .number = t};
        assert_int_equal(pthread_create(&workers[t].thread, NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; t++)
        assert_int_equal(pthread_join(workers[t].thread, NULL), 0);
    print_message("served %llu, refused %llu\n", (unsigned long long)all.served,
                  (unsigned long long)all.refused);
    assert_int_equal(all.other, 0); /* every refusal is the budget's */
    assert_int_equal(all.wrong, 0);
    assert_true(all.refused > 0);
    assert_true(all.served > 0);
    assert_true(pleat__space_audit(all.space));
    pleat__space_stats stats = pleat__space_stats_of(all.space);
    assert_true(stats.peak_physical_bytes <= BUDGET * GRANULE);
    assert_int_equal(stats.failed_verbs, 0);
    pleat__mapper_destroy(all.mapper);
    pleat__space_destroy(all.space);
    assert_nothing_held(&all.vmm);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&all.vmm);
}

/* ---- while another thread counts ---- */

static _Atomic bool moved;

static void *move_to_and_fro(void *context)
{
    pleat__space *space = context;
    pleat__chunk *chunk;
    uint64_t page;
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    assert_ok(pleat__space_take(space, 1, &page));
    assert_ok(pleat__space_map(space, page, &chunk, 1));
    for (uint64_t round = 0; round < 50 * ROUNDS; round++) {
        if (round % 3 != 0)
            assert_ok(pleat__space_prepare(space, &chunk, 1, round % 3 == 1));
        assert_ok(pleat__space_rest(space, &chunk, 1, NULL));
        assert_ok(pleat__space_wake(space, &chunk, 1, NULL));
        pleat__space_unprepare(space, &chunk, 1);
    }
    moved = true;
    return NULL;
}

static void stress_what_is_counted_is_there_at_any_moment(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    pthread_t thread;
    const pleat_host_options host = {.size = sizeof host, .granularity = GRANULE};
    const pleat__space_options options = {.window_bytes = 64 * GRANULE};
    assert_ok(pleat_vmm_host(&host, &vmm));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &space));
    moved = false;
    assert_int_equal(pthread_create(&thread, NULL, move_to_and_fro, space), 0);
    while (!moved)
        assert_true(pleat__space_audit(space));
    assert_int_equal(pthread_join(thread, NULL), 0);
    pleat__space_destroy(space);
    assert_nothing_held(&vmm);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stress_budget_is_met_and_never_passed),
        cmocka_unit_test(stress_what_is_counted_is_there_at_any_moment),
    };
    return cmocka_run_group_tests_name("stress", tests, NULL, NULL);
}
