/*
 * dropped.c: idle views that go: which, behind what, and what becomes of those that cannot be
 * unmapped now. A heap on host memory whose views are made by hand.
 */
#include "ground.h"

#include <runtime/memory/views.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define CHUNKS    16u
#define THOUSANDS 5000u /* more than the mapper is given ahead */

typedef struct fixture {
    ground g;
    pleat__heap heap;
    uint64_t ordered;
} fixture;

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    ground_heap_begin(&f->g, &f->heap, &f->ordered, CHUNKS);
    assert_int_equal(pleat__heap_stream(&f->heap, 7), 1);
}

static void end(fixture *f)
{
    ground_heap_end(&f->g, &f->heap);
}

/* It is the one that was used last. */
static pleat__view *add_view(fixture *f, uint16_t stream, uint32_t pages)
{
    pleat__view *view = pleat__view_new(&f->heap, pages, stream);
    assert_non_null(view);
    for (uint32_t i = 0; i < pages; i++)
        view->chunks[i] = i;
    view->maps = pages;
    assert_ok(pleat__chunk_pool_view(&f->g.pool, view->chunks, pages, &view->page));
    pleat__views_add(&f->heap, view);
    return view;
}

static void drain(fixture *f)
{
    pleat__gate_leave(&f->g.gate);
    pleat__gate_drain(&f->g.gate);
    pleat__gate_enter(&f->g.gate);
}

/* A job of the mapper's that lasts until the test goes on. */
static pleat_result wait_here(void *goes_on, pleat_result ready)
{
    while (!atomic_load((atomic_bool *)goes_on))
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    return ready;
}

/* An event and a job each were as much work under the lock as the mapper's. */
static void dropped_thousands_are_one_job_behind_one_event(void **state)
{
    (void)state;
    fixture f;
    atomic_bool goes_on = false;
    pleat__mapper *mapper;
    pleat__job busy = {.call = wait_here, .context = &goes_on};
    begin(&f);
    for (uint32_t i = 0; i < THOUSANDS; i++)
        add_view(&f, 0, 1);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS + THOUSANDS);
    assert_ok(pleat__gate_mapper(&f.g.gate, &mapper));
    pleat__mapper_submit(mapper, &busy);
    assert_true(pleat__heap_drop_views(&f.heap, 0, 0));
    assert_int_equal(ground_holds(&f.g).events, 1);
    assert_null(f.heap.refused);
    assert_int_equal(f.g.pool.view_pages, 0);
    atomic_store(&goes_on, true);
    drain(&f);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS);
    assert_false(pleat__heap_drop_views(&f.heap, 0, 0));
    end(&f);
}

#define DRAWN 100u

/* What is known of a view. */
typedef struct drawn {
    pleat__view *view;
    uint64_t page;
    uint32_t pages;
    uint32_t used; /* when it was used last */
    bool live, gone;
} drawn;

static void use(fixture *f, drawn *d, uint32_t when)
{
    pleat__place place;
    assert_true(pleat__view_slice(&f->heap, d->view, 0, 0, 1, &place));
    pleat__view_use(&f->heap, &place);
    pleat__view_leave(&f->heap, &place);
    d->used = when;
}

/* The longest unused view of those that are left; DRAWN: they are all in use. */
static uint32_t oldest_of(const drawn *views)
{
    uint32_t oldest = DRAWN;
    for (uint32_t i = 0; i < DRAWN; i++)
        if (!views[i].gone && !views[i].live &&
            (oldest == DRAWN || views[i].used < views[oldest].used))
            oldest = i;
    return oldest;
}

/* The list of what is kept is in the order in which it was used. */
static void assert_kept(const fixture *f, drawn *views)
{
    uint32_t count = 0;
    for (const pleat__view *view = f->heap.oldest; view != NULL; view = view->newer, count++) {
        uint32_t next = DRAWN;
        for (uint32_t i = 0; i < DRAWN; i++)
            if (!views[i].gone && (next == DRAWN || views[i].used < views[next].used))
                next = i;
        assert_in_range(next, 0, DRAWN - 1);
        assert_int_equal(view->page, views[next].page);
        views[next].gone = true;
    }
    assert_int_equal(f->heap.view_count, count);
    assert_true(pleat__views_audit(&f->heap, false, 0, 0));
}

/* Until the others have room; what is in use stays, and so does the order. */
static void dropped_are_the_longest_unused(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eedd209);
    for (int round = 0; round < 20; round++) {
        fixture f;
        drawn views[DRAWN] = {0};
        begin(&f);
        for (uint32_t i = 0; i < DRAWN; i++) {
            pleat__view *view = add_view(&f, 0, 1 + (uint32_t)test_random_below(&random, 5));
            views[i] = (drawn){.view = view, .page = view->page, .pages = view->pages, .used = i};
        }
        for (uint32_t when = DRAWN; when < 3 * DRAWN; when++)
            use(&f, &views[test_random_below(&random, DRAWN)], when);
        for (uint32_t i = 0; i < DRAWN; i++) {
            views[i].live = test_random_below(&random, 8) == 0;
            views[i].view->live = views[i].live;
        }
        uint64_t left = f.g.pool.view_pages, keep = test_random_below(&random, left + 1);
        for (uint32_t at; left > keep && (at = oldest_of(views)) != DRAWN;) {
            views[at].gone = true;
            left -= views[at].pages;
        }
        /* Each shows as many handles as it has pages. */
        pleat__heap_drop_views(&f.heap, round % 2 != 0 ? keep : UINT64_MAX,
                               round % 2 != 0 ? UINT64_MAX : keep);
        drain(&f);
        assert_int_equal(f.g.pool.view_pages, left);
        assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS + left);
        for (uint32_t i = 0; i < DRAWN; i++)
            if (!views[i].gone)
                views[i].view->live = 0;
        assert_kept(&f, views);
        end(&f);
    }
}

/* One that captures a graph cannot be marked: what it may use stays, were it the longest unused. */
static void dropped_leave_what_a_capturing_stream_may_use(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    add_view(&f, 1, 2);
    add_view(&f, 0, 3);
    assert_ok(pleat__gate_capture(&f.g.gate, 7));
    assert_true(pleat__heap_drop_views(&f.heap, 0, 0));
    drain(&f);
    assert_int_equal(f.g.pool.view_pages, 2);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS + 2);
    assert_false(pleat__heap_drop_views(&f.heap, 0, 0));
    pleat__gate_capture_end(&f.g.gate, 7);
    assert_true(pleat__heap_drop_views(&f.heap, 0, 0));
    drain(&f);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS);
    end(&f);
}

/* Where nobody says whether the GPU is done they stay mapped, until someone does. */
static void dropped_that_cannot_be_unmapped_go_later(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    add_view(&f, 0, 2);
    add_view(&f, 1, 3);
    pleat__fault_arm(&f.g.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_query, .nth = 2});
    assert_true(pleat__heap_drop_views(&f.heap, 0, 0));
    drain(&f);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS + 5);
    assert_true(pleat__heap_drop_views(&f.heap, 0, 0));
    drain(&f);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNKS);
    assert_false(pleat__heap_drop_views(&f.heap, 0, 0));
    end(&f);
}

/* ---- auditors ---- */

/* R2, R3, R4, R5, R6. */
static void audit_finds_what_disagrees_in_chunks_and_views(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    add_view(&f, 0, 2);
    pleat__view *view = add_view(&f, 1, 3);
    pleat__chunk_pool *pool = &f.g.pool;
    assert_true(pleat__chunks_audit(pool) && pleat__used_audit(pool, 0));
    assert_true(pleat__views_audit(&f.heap, false, 0, 0));
    /* Each is wrong once. */
    assert_false(pleat__used_audit(pool, 1));
    assert_false(pleat__views_audit(&f.heap, true, 0, 0));
    assert_false(pleat__views_audit(&f.heap, false, 1, 0));
    assert_false(pleat__views_audit(&f.heap, false, 0, 1));
    pool->absent++;
    assert_false(pleat__chunks_audit(pool));
    pool->absent--;
    pool->home[3]++;
    assert_false(pleat__chunks_audit(pool));
    pool->home[3]--;
    pool->span[5].first--;
    assert_false(pleat__chunks_audit(pool));
    pool->span[5].first++;
    pool->span[5].behind++;
    assert_false(pleat__chunks_audit(pool));
    pool->span[5].behind--;
    view->chunks[1] = CHUNKS;
    assert_false(pleat__views_audit(&f.heap, false, 0, 0));
    view->chunks[1] = 1;
    view->live++;
    assert_false(pleat__views_audit(&f.heap, false, 0, 1));
    view->live--;
    f.heap.oldest = view;
    assert_false(pleat__views_audit(&f.heap, false, 0, 0));
    f.heap.oldest = view->older;
    f.heap.view_count++;
    assert_false(pleat__views_audit(&f.heap, false, 0, 0));
    f.heap.view_count--;
    assert_true(pleat__chunks_audit(pool) && pleat__views_audit(&f.heap, false, 0, 0));
    assert_ok(pleat__heap_sync(&f.heap));
    assert_true(pleat__heap_audit(&f.heap));
    f.heap.zone_of[2] ^= 1u;
    assert_false(pleat__heap_audit(&f.heap));
    f.heap.zone_of[2] ^= 1u;
    end(&f);
}

/* R3, R5: each chunk says how far its handle goes. */
static void audit_holds_while_handles_at_rest_are_joined_split_and_dropped(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    pleat__chunk_pool *pool = &f.g.pool;
    assert_ok(pleat__chunk_pool_promise(pool, 4));
    for (uint32_t next = 1; next < 4; next++) {
        assert_true(pleat__chunk_pool_join(pool, CHUNKS, CHUNKS + next));
        assert_true(pleat__chunks_audit(pool));
        assert_int_equal(pleat__handle_chunks(pool, CHUNKS), next + 1);
    }
    assert_true(pleat__chunk_pool_split(pool, CHUNKS + 1));
    assert_true(pleat__chunks_audit(pool));
    assert_int_equal(pleat__handle_chunks(pool, CHUNKS), 1);
    assert_int_equal(pleat__handle_chunks(pool, CHUNKS + 3), 3);
    assert_int_equal(pleat__first_of(pool, CHUNKS + 3), CHUNKS + 1);
    pleat__chunk_pool_drop(pool, CHUNKS + 1);
    for (uint32_t gone = 1; gone < 4; gone++) {
        assert_int_equal(pleat__handle_chunks(pool, CHUNKS + gone), 0);
        assert_int_equal(pleat__first_of(pool, CHUNKS + gone), CHUNKS + gone);
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dropped_thousands_are_one_job_behind_one_event),
        cmocka_unit_test(dropped_are_the_longest_unused),
        cmocka_unit_test(dropped_leave_what_a_capturing_stream_may_use),
        cmocka_unit_test(dropped_that_cannot_be_unmapped_go_later),
        cmocka_unit_test(audit_finds_what_disagrees_in_chunks_and_views),
        cmocka_unit_test(audit_holds_while_handles_at_rest_are_joined_split_and_dropped),
    };
    return cmocka_run_group_tests_name("dropped", tests, NULL, NULL);
}
