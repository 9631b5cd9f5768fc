/*
 * looks.c: searches end after so many looks, however much there is to look at: beyond them what is
 * there is not found. A heap on host memory whose views and holes are made by hand.
 */
#include "ground.h"

#include <runtime/memory/rest.h>
#include <runtime/memory/views.h>
#include <string.h>

#define CHUNKS 1024u
#define STEP   32u /* chunks that are made at once, so that each is a handle */
#define PAGES  64u /* of a view: as many maps as a view has that may be remapped */

typedef struct fixture {
    ground g;
    pleat__heap heap;
    uint64_t ordered;
} fixture;

static void begin(fixture *f)
{
    memset(f, 0, sizeof *f);
    ground_heap_begin(&f->g, &f->heap, &f->ordered, STEP);
    for (uint32_t chunks = STEP; chunks < CHUNKS; chunks += STEP)
        assert_ok(pleat__heap_make(&f->heap, 0, STEP));
    assert_ok(pleat__heap_sync(&f->heap));
}

static void end(fixture *f)
{
    ground_heap_end(&f->g, &f->heap);
}

static pleat__run chunk_run(const fixture *f, uint32_t chunk)
{
    return (pleat__run){chunk << f->g.pool.occupancy.shift, f->g.pool.occupancy.full};
}

static void occupy(fixture *f, uint32_t chunk)
{
    assert_true(pleat__occupancy_take(&f->g.pool.occupancy, chunk_run(f, chunk)));
    pleat__heap_note(&f->heap, chunk_run(f, chunk), false);
    assert_ok(pleat__heap_sync(&f->heap));
}

/* A view of PAGES chunks from `first` on that was idle at a point which the GPU has passed; it is
 * the one that was used last. */
static pleat__view *add_view(fixture *f, uint32_t first)
{
    pleat__view *view = pleat__view_new(&f->heap, PAGES, 0);
    assert_non_null(view);
    for (uint32_t i = 0; i < PAGES; i++)
        view->chunks[i] = first + i;
    view->maps = PAGES;
    assert_ok(pleat__chunk_pool_view(&f->g.pool, view->chunks, PAGES, &view->page));
    assert_ok(f->g.vmm.ops->event_create(f->g.vmm.self, 0, &view->idle));
    view->fenced = true;
    pleat__views_add(&f->heap, view);
    return view;
}

static bool reuses(fixture *f, uint32_t pages, pleat__place *place)
{
    return pleat__views_reuse(&f->heap, pages * f->g.pool.occupancy.full, 0, place);
}

/* One that holds the request, behind `newer` others in whose middle something lies. */
static void begin_behind(fixture *f, uint32_t newer)
{
    begin(f);
    occupy(f, PAGES / 2);
    (void)add_view(f, CHUNKS - PAGES);
    for (uint32_t i = 0; i < newer; i++)
        (void)add_view(f, 0);
}

/* 1,024 and as many as the request has chunks. At each of the others there are 32 looks, and one
 * when it is looked into again. */
static void reuse_ends_after_so_many_looks(void **state)
{
    (void)state;
    static const struct {
        uint32_t newer;
        bool first, again;
    } cases[] = {{20, true, true}, {40, false, true}, {1100, false, false}};
    for (uint32_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        fixture f;
        pleat__place place;
        begin_behind(&f, cases[c].newer);
        assert_int_equal(reuses(&f, PAGES, &place), cases[c].first);
        if (cases[c].first)
            pleat__heap_give(&f.heap, &place);
        for (int i = 0; i < 3 && !cases[c].first; i++)
            if (reuses(&f, PAGES, &place)) {
                assert_true(cases[c].again);
                pleat__heap_give(&f.heap, &place);
            }
        assert_int_equal(f.heap.views_reused != 0, cases[c].again);
        end(&f);
    }
}

/* Of a view's first handles so many are in use. */
static void occupy_first(fixture *f, uint32_t handles)
{
    for (uint32_t i = 0; i < handles; i++)
        occupy(f, i);
    occupy(f, CHUNKS - PAGES);
}

/* A view of which one handle is in use is not found behind 120 others, of which so many are that a
 * new one costs less: that is known when 33 have been looked at. */
static void remap_ends_after_so_many_looks(void **state)
{
    (void)state;
    for (uint32_t newer = 112; newer <= 128; newer += 16) {
        fixture f;
        pleat__place place;
        begin(&f);
        occupy_first(&f, PAGES);
        const pleat__view *view = add_view(&f, CHUNKS - PAGES);
        uint64_t page = view->page;
        for (uint32_t i = 0; i < newer; i++)
            (void)add_view(&f, 0);
        pleat_result result =
            pleat__views_remap(&f.heap, PAGES * f.g.pool.occupancy.full, 0, &place);
        assert_int_equal(result, newer < 120 ? PLEAT_OK : PLEAT_E_NOT_FOUND);
        if (result == PLEAT_OK) {
            assert_int_equal(place.several->view->page, page);
            pleat__heap_give(&f.heap, &place);
        }
        end(&f);
    }
}

/* A GPU that lags is asked of few of the views that it may still be in. */
static void remap_asks_a_lagging_gpu_seldom(void **state)
{
    (void)state;
    for (uint32_t left = 0; left <= 80; left += 80) {
        fixture f;
        pleat__place place;
        begin(&f);
        occupy_first(&f, 1);
        for (uint32_t i = 0; i < left; i++)
            (void)add_view(&f, 0);
        assert_ok(pleat__host_stream_hold(&f.g.host, 0));
        for (uint32_t i = 0; i < 100; i++)
            assert_ok(f.g.vmm.ops->event_record(f.g.vmm.self, add_view(&f, 0)->idle, 0));
        pleat__fault_arm(&f.g.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_query});
        pleat_result result =
            pleat__views_remap(&f.heap, PAGES * f.g.pool.occupancy.full, 0, &place);
        assert_int_equal(result, left != 0 ? PLEAT_OK : PLEAT_E_NOT_FOUND);
        /* Of the 1st, 2nd, 4th ... 64th it is not done, of the 128th it is, also when that is the
         * best. */
        assert_int_equal(pleat__fault_calls(&f.g.vmm), left != 0 ? 9 : 7);
        assert_ok(pleat__host_stream_release(&f.g.host, 0));
        if (result == PLEAT_OK)
            pleat__heap_give(&f.heap, &place);
        end(&f);
    }
}

/* ---- whole chunks ---- */

static void take_granules(fixture *f, uint32_t begin, uint32_t end)
{
    assert_true(pleat__occupancy_take(&f->g.pool.occupancy, (pleat__run){begin, end - begin}));
}

/* Nothing is free but `apart` runs of a chunk's granules that begin in the middle of one, a whole
 * chunk behind them, which is returned, and the `last` chunks. */
static uint32_t leave_free(fixture *f, uint32_t apart, uint32_t last)
{
    uint32_t full = f->g.pool.occupancy.full, lone = 3 * apart;
    for (uint32_t i = 0; i < apart; i++) {
        uint32_t begin = 3 * i * full;
        take_granules(f, begin, begin + full / 2);
        take_granules(f, begin + full + full / 2, begin + 2 * full);
        take_granules(f, begin + 2 * full, begin + 3 * full);
    }
    take_granules(f, (lone + 1) * full, (CHUNKS - last) * full);
    pleat__heap_forget(&f->heap);
    assert_ok(pleat__heap_sync(&f->heap));
    return lone;
}

/* The chunk that a zone for small requests got. */
static uint32_t refilled(fixture *f)
{
    assert_ok(pleat__heap_refill(&f->heap, 1));
    for (uint32_t c = 0; c < f->g.pool.count; c++)
        if (f->heap.zone_of[c] == 1)
            return c;
    return UINT32_MAX;
}

/* Of 256 runs; but all where none is sure to have one, before memory is made. */
static void whole_chunk_comes_from_few_runs(void **state)
{
    (void)state;
    for (uint32_t apart = 250; apart <= 290; apart += 40)
        for (uint32_t last = 0; last <= 2; last += 2) {
            fixture f;
            begin(&f);
            uint32_t lone = leave_free(&f, apart, last), count = f.g.pool.count;
            uint32_t chunk = refilled(&f);
            assert_int_equal(chunk, apart < 256 || last == 0 ? lone : CHUNKS - 2);
            assert_int_equal(f.g.pool.count, count);
            assert_true(pleat__heap_audit(&f.heap));
            end(&f);
        }
}

/* ---- chunks at rest ---- */

static pleat_result count_woken(void *context, pleat__run run)
{
    *(uint32_t *)context += run.count;
    return PLEAT_OK;
}

/* Of 5,000 that are neighbours only the 4,096 highest are looked at. */
static void wake_together_looks_at_so_many_handles(void **state)
{
    (void)state;
    fixture f;
    uint32_t woken = 0;
    begin(&f);
    assert_ok(pleat__chunk_pool_promise(&f.g.pool, 5000));
    assert_ok(pleat__rest_wake_together(&f.g.pool, 4097, count_woken, &woken));
    assert_int_equal(woken, 0);
    assert_ok(pleat__rest_wake_together(&f.g.pool, 4096, count_woken, &woken));
    assert_int_equal(woken, 4096 * f.g.pool.occupancy.full);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reuse_ends_after_so_many_looks),
        cmocka_unit_test(remap_ends_after_so_many_looks),
        cmocka_unit_test(remap_asks_a_lagging_gpu_seldom),
        cmocka_unit_test(whole_chunk_comes_from_few_runs),
        cmocka_unit_test(wake_together_looks_at_so_many_handles),
    };
    return cmocka_run_group_tests_name("looks", tests, NULL, NULL);
}
