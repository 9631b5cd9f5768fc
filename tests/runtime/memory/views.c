/*
 * views.c: places in views that are there already, and what is done when making views has taken too
 * much time. The host backend's clock is set by hand; what its calls would cost on a GPU passes on
 * it.
 */
#include "fault.h"
#include "held.h"

#include <pleat/runtime.h>
#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/memory/views.h>
#include <runtime/policy/pleat_internal.h>
#include <string.h>
#include <time.h>

#define MIB    (1ull << 20)
#define PIECES 12

typedef struct fixture {
    pleat_vmm host;
    pleat_vmm vmm; /* a fault decorator over it */
    pleat_runtime *runtime;
    pleat_va before; /* what begin_beside() took first */
    pleat_va kept[PIECES];
} fixture;

static pleat_va take(fixture *f, uint64_t bytes)
{
    pleat_va address;
    assert_ok(pleat_alloc(f->runtime, bytes, 0, &address));
    return address;
}

static void drop(fixture *f, pleat_va address)
{
    assert_ok(pleat_free(f->runtime, address));
}

static void open_host(fixture *f)
{
    pleat_host_options host = {.size = sizeof host, .device_bytes = 8192 * MIB};
    assert_ok(pleat_vmm_host(&host, &f->host));
    assert_ok(pleat__host_set_costs(&f->host, &pleat__host_costs_h200));
    assert_ok(pleat__host_clock_set(&f->host, 1000));
    assert_ok(pleat__fault_create(f->host, &f->vmm));
}

/* Memory with holes of 20 MiB, as many as there are pieces, and nothing larger; beside what is
 * there before. */
static void begin_on(fixture *f, const char *conf, uint64_t bytes)
{
    pleat_runtime_options options = {.size = sizeof options, .conf = conf};
    pleat_va holes[PIECES];
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
    if (bytes != 0)
        f->before = take(f, bytes);
    for (int p = 0; p < PIECES; p++) {
        holes[p] = take(f, 20 * MIB);
        f->kept[p] = take(f, 2 * MIB);
    }
    for (int p = 0; p < PIECES; p++)
        drop(f, holes[p]);
}

static void begin_beside(fixture *f, const char *conf, uint64_t bytes)
{
    open_host(f);
    begin_on(f, conf, bytes);
}

static void begin(fixture *f, const char *conf)
{
    begin_beside(f, conf, 0);
}

static void end(fixture *f)
{
    pleat_runtime_destroy(f->runtime);
    pleat_vmm_destroy(&f->vmm);
    pleat_vmm_destroy(&f->host);
}

static pleat_stats stats_of(fixture *f)
{
    return pleat_stats_of(f->runtime);
}

/* Several requests lie in one view at once, wherever it is free. */
static void views_serve_requests_of_other_sizes(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "learn:off");
    drop(&f, take(&f, 150 * MIB));
    pleat_stats made = stats_of(&f);
    assert_int_equal(made.stitched, 1);
    pleat_va a = take(&f, 61 * MIB + 3000), b = take(&f, 50 * MIB), c = take(&f, 22 * MIB);
    memset((void *)(uintptr_t)a, 1, 61 * MIB + 3000);
    memset((void *)(uintptr_t)b, 2, 50 * MIB);
    memset((void *)(uintptr_t)c, 3, 22 * MIB);
    pleat_stats stats = stats_of(&f);
    assert_int_equal(stats.stitched, 4);
    assert_int_equal(stats.views_reused, 3);
    assert_int_equal(stats.driver_calls, made.driver_calls);
    assert_int_equal(stats.physical_bytes, made.physical_bytes);
    for (uint64_t at = 0; at < 22 * MIB; at += 512) {
        assert_int_equal(((const uint8_t *)(uintptr_t)a)[at], 1);
        assert_int_equal(((const uint8_t *)(uintptr_t)b)[at], 2);
        assert_int_equal(((const uint8_t *)(uintptr_t)c)[at], 3);
    }
    /* What lies in the middle of a view is found from every address in it. */
    pleat_block block;
    assert_ok(pleat_block_of(f.runtime, b + 31 * MIB, &block));
    assert_int_equal(block.address, b);
    assert_int_equal(block.requested, 50 * MIB);
    /* All of what is free there, which begins and ends within chunks. */
    drop(&f, b);
    assert_int_equal(take(&f, 50 * MIB), b);
    assert_int_equal(stats_of(&f).driver_calls, made.driver_calls);
    drop(&f, a);
    drop(&f, take(&f, 40 * MIB)); /* where the first was, the others still there */
    assert_int_equal(stats_of(&f).driver_calls, made.driver_calls);
    drop(&f, b);
    drop(&f, c);
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, PIECES * 2 * MIB);
    end(&f);
}

/* A view shows whole chunks: what is free of one that is in use in part is of use to few. */
static void holes_are_filled_where_most_whole_chunks_stay(void **state)
{
    (void)state;
    for (uint64_t before = 20; before <= 21; before++) {
        fixture f;
        begin(&f, "learn:off");
        for (int p = 0; p < PIECES; p++)
            (void)take(&f, 20 * MIB);
        pleat_va first = take(&f, before * MIB), hole = take(&f, 11 * MIB);
        pleat_va last = take(&f, 20 * MIB);
        assert_int_equal(hole, first + before * MIB);
        assert_int_equal(last, hole + 11 * MIB);
        drop(&f, hole);
        /* It ends, or begins, in the middle of a chunk. */
        assert_int_equal(take(&f, 5 * MIB), before == 20 ? hole + 6 * MIB : hole);
        assert_int_equal(stats_of(&f).stitched, 0);
        end(&f);
    }
}

/* A chunk that is in use in its middle only could begin and end a view; free again as a whole, it
 * would then be given out twice. (R6.) */
static void views_show_no_chunk_twice(void **state)
{
    (void)state;
    fixture f;
    pleat_va filled[PIECES - 2];
    begin(&f, "learn:off");
    for (int p = 0; p < PIECES - 2; p++)
        filled[p] = take(&f, 20 * MIB);
    pleat_va before = take(&f, 13 * MIB / 2), middle = take(&f, MIB);
    pleat_va behind = take(&f, 25 * MIB / 2);
    drop(&f, before);
    drop(&f, behind);
    drop(&f, take(&f, 23 * MIB));
    assert_int_equal(stats_of(&f).stitched, 1);
    drop(&f, middle);
    pleat_va whole = take(&f, 25 * MIB);
    uint64_t *words = (void *)(uintptr_t)whole;
    for (uint64_t i = 0; i < 25 * MIB / sizeof *words; i += 64)
        words[i] = i;
    for (uint64_t i = 0; i < 25 * MIB / sizeof *words; i += 64)
        assert_int_equal(words[i], i);
    drop(&f, whole);
    for (int p = 0; p < PIECES - 2; p++)
        drop(&f, filled[p]);
    end(&f);
}

/* The chunks of small requests are others than those of large ones, until there are no more. */
static void small_and_large_share_chunks_for_want_of_memory(void **state)
{
    (void)state;
    fixture f;
    pleat_va large[8], small[8], filled[PIECES];
    begin(&f, "learn:off");
    for (int p = 0; p < PIECES; p++)
        filled[p] = take(&f, 20 * MIB);
    for (int i = 0; i < 8; i++)
        large[i] = take(&f, 3 * MIB / 2);
    for (int i = 0; i < 8; i++)
        small[i] = take(&f, MIB / 4);
    uint64_t held = stats_of(&f).physical_bytes;
    assert_ok(pleat_set_budget(f.runtime, held));
    pleat_va refused;
    assert_result(pleat_alloc(f.runtime, 100 << 10, 0, &refused), PLEAT_E_BUDGET);
    assert_non_null(strstr(pleat_last_error()->text, "out of memory: 102400 bytes asked for"));
    for (int i = 1; i < 8; i++)
        drop(&f, small[i]);
    pleat_va among_small = take(&f, 3 * MIB / 2);
    drop(&f, large[3]);
    pleat_va among_large = take(&f, MIB / 2);
    assert_int_equal(stats_of(&f).physical_bytes, held);
    drop(&f, among_small);
    drop(&f, among_large);
    drop(&f, small[0]);
    for (int i = 0; i < 8; i++)
        if (i != 3)
            drop(&f, large[i]);
    for (int p = 0; p < PIECES; p++)
        drop(&f, filled[p]);
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, PIECES * 2 * MIB);
    end(&f);
}

/* The end of new memory is no neighbour that came long ago: what was left in front of each was in
 * no view, a quarter of the chunks. */
static void holes_smaller_than_a_chunk_are_filled_from_their_beginning(void **state)
{
    (void)state;
    pleat_host_options host = {.size = sizeof host, .device_bytes = 256 * MIB};
    pleat_runtime_options options = {.size = sizeof options, .conf = "learn:off"};
    fixture f = {0};
    assert_ok(pleat_vmm_host(&host, &f.host));
    assert_ok(pleat_runtime_create(f.host, &options, &f.runtime));
    for (int i = 0; i < 40; i++)
        (void)take(&f, 3 * MIB / 2);
    assert_int_equal(stats_of(&f).physical_bytes, 60 * MIB);
    pleat_runtime_destroy(f.runtime);
    pleat_vmm_destroy(&f.host);
}

/* Of a request of 4 GiB 240 MiB are free: a view would cost 2,048 maps to save those. Where there
 * is no memory for all of it they are needed. */
static void views_are_not_made_for_next_to_nothing(void **state)
{
    (void)state;
    for (int short_of_memory = 0; short_of_memory < 2; short_of_memory++) {
        fixture f;
        begin(&f, "learn:off");
        uint64_t held = stats_of(&f).physical_bytes, missing = (4096 - 20 * PIECES) * MIB;
        if (short_of_memory)
            assert_ok(pleat_set_budget(f.runtime, held + missing));
        drop(&f, take(&f, 4096 * MIB));
        assert_int_equal(stats_of(&f).stitched, short_of_memory);
        assert_int_equal(stats_of(&f).physical_bytes,
                         held + (short_of_memory ? missing : 4096 * MIB));
        end(&f);
    }
}

/* A view in which something lives is not unmapped, whatever is asked to be given back. (R7.) */
static void views_in_use_stay(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "learn:off");
    drop(&f, take(&f, 150 * MIB));
    pleat_va a = take(&f, 60 * MIB);
    assert_ok(pleat_empty_cache(f.runtime));
    memset((void *)(uintptr_t)a, 7, 60 * MIB);
    uint64_t calls = stats_of(&f).driver_calls;
    drop(&f, a);
    a = take(&f, 59 * MIB);
    assert_int_equal(stats_of(&f).driver_calls, calls);
    drop(&f, a);
    end(&f);
}

/* ---- time ---- */

/* Alias pages of three views, each larger than the one before, of what may stay mapped of them. */
static uint64_t kept_of_three_views(const char *conf)
{
    fixture f;
    begin_beside(&f, conf, 2560 * MIB); /* handles have two chunks from there on */
    for (uint64_t bytes = 100 * MIB; bytes <= 220 * MIB; bytes += 60 * MIB)
        drop(&f, take(&f, bytes));
    pleat_stats stats = stats_of(&f);
    assert_int_equal(stats.stitched, 3);
    assert_int_equal(stats.views_reused, 0);
    uint64_t pages = ((const pleat__pleat *)f.runtime->policy)->heap.pool->view_pages;
    end(&f);
    return pages;
}

/* The driver and the host count maps, and a view is one for each handle that it shows. */
static void views_are_kept_by_their_maps(void **state)
{
    (void)state;
    /* 50, 80 and 110 chunks, at most one handle more for each hole. */
    assert_in_range(kept_of_three_views("learn:off"), 240, 270);
    assert_in_range(kept_of_three_views("learn:off,views:140"), 240, 270);
    assert_in_range(kept_of_three_views("learn:off,views:110"), 190, 215);
    assert_in_range(kept_of_three_views("learn:off,views:60"), 110, 120);
}

/* ---- views that are remapped in part ---- */

#define LARGE (150 * MIB)

static pleat__heap *heap_of(fixture *f)
{
    return &((pleat__pleat *)f->runtime->policy)->heap;
}

/* The page of the first view that shows the chunk at a home address; its count of pages: none. */
static uint32_t page_of(fixture *f, pleat_va address)
{
    const pleat__heap *heap = heap_of(f);
    const pleat__view *view = heap->newest;
    uint32_t page = 0, shift = heap->pool->occupancy.shift;
    while (page < view->pages &&
           pleat__chunk_pool_address(heap->pool, view->chunks[page] << shift) != address)
        page++;
    return page;
}

/* So many of the handles that the first view shows are in use. */
static void take_shown(fixture *f, uint32_t count, pleat_va *shown)
{
    pleat_va others[PIECES * 10];
    uint32_t found = 0, beside = 0;
    while (found < count) {
        pleat_va address = take(f, 2 * MIB);
        if (page_of(f, address) < heap_of(f)->newest->pages)
            shown[found++] = address;
        else
            others[beside++] = address;
    }
    while (beside > 0)
        drop(f, others[--beside]);
}

static void drop_all(fixture *f, uint32_t count, const pleat_va *addresses)
{
    for (uint32_t i = 0; i < count; i++)
        drop(f, addresses[i]);
}

/* A byte of each 64 KiB. */
static void fill_with(pleat_va address, uint64_t bytes, uint8_t value)
{
    uint8_t *at = (uint8_t *)(uintptr_t)address;
    for (uint64_t i = 0; i < bytes; i += 64 << 10)
        at[i] = value;
}

static void assert_filled(pleat_va address, uint64_t bytes, uint8_t value)
{
    const uint8_t *at = (const uint8_t *)(uintptr_t)address;
    for (uint64_t i = 0; i < bytes; i += 64 << 10)
        assert_int_equal(at[i], value);
}

/* It lies beside three blocks that hold 1, and all of it is one memory. */
static void assert_beside_and_drop(fixture *f, pleat_va large, uint64_t bytes,
                                   const pleat_va *blocks)
{
    fill_with(large, bytes, 2);
    for (int i = 0; i < 3; i++)
        assert_filled(blocks[i], 2 * MIB, 1);
    assert_filled(large, bytes, 2);
    drop(f, large);
    drop_all(f, 3, blocks);
}

/* Three blocks that hold 1 lie in the first view when as much is asked for again as it was made
 * for: that lies where the first did, behind at most so many calls of the driver. */
static pleat_va take_again(fixture *f, uint64_t bytes, pleat_va first, uint32_t calls,
                           const pleat_va *blocks)
{
    for (int i = 0; i < 3; i++)
        fill_with(blocks[i], 2 * MIB, 1);
    pleat_stats before = stats_of(f);
    pleat_va second = take(f, bytes);
    pleat_stats after = stats_of(f);
    assert_int_equal(second, first);
    assert_int_equal(heap_of(f)->view_count, 1);
    assert_int_equal(after.stitched, before.stitched + 1);
    assert_int_equal(after.views_reused, before.views_reused);
    assert_int_equal(after.physical_bytes, before.physical_bytes);
    assert_in_range(after.driver_calls - before.driver_calls, 3, calls);
    return second;
}

/* Each new view was as many maps as it shows handles, 75 here, where three were in use. */
static void remapped_view_exchanges_only_what_is_in_use(void **state)
{
    (void)state;
    fixture f;
    pleat_va blocks[3];
    begin(&f, "learn:off");
    pleat_va first = take(&f, LARGE);
    assert_int_equal(stats_of(&f).stitched, 1);
    drop(&f, first);
    take_shown(&f, 3, blocks);
    pleat_va second = take_again(&f, LARGE, first, 9, blocks);
    assert_beside_and_drop(&f, second, LARGE, blocks);
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, PIECES * 2 * MIB);
    end(&f);
}

/* Each of a view's handles is shown whole and in order; of so many chunks at the page. */
static uint32_t assert_whole_handles(fixture *f, const pleat__view *view, uint32_t page)
{
    const pleat__chunk_pool *pool = heap_of(f)->pool;
    for (uint32_t i = 0; i < view->pages; i++) {
        uint32_t within = view->chunks[i] - pool->span[view->chunks[i]].first;
        assert_in_range(within, 0, i);
        assert_int_equal(view->chunks[i - within], view->chunks[i] - within);
    }
    return pleat__handle_chunks(pool, view->chunks[page]);
}

/* Of a job of 4 GiB, whose handles are of several chunks. */
static void remapped_view_exchanges_handles_of_several_chunks(void **state)
{
    (void)state;
    enum { MORE = 33 };
    const uint64_t bytes = 600 * MIB;
    fixture f;
    pleat_va blocks[3], holes[MORE];
    begin_beside(&f, "learn:off", 4096 * MIB);
    for (int i = 0; i < MORE; i++) {
        holes[i] = take(&f, 20 * MIB);
        (void)take(&f, 2 * MIB);
    }
    drop_all(&f, MORE, holes);
    pleat_va first = take(&f, bytes);
    assert_true(2 * heap_of(&f)->newest->maps < heap_of(&f)->newest->pages);
    drop(&f, first);
    take_shown(&f, 3, blocks);
    uint32_t page = page_of(&f, blocks[0]);
    pleat_va second = take_again(&f, bytes, first, 12, blocks);
    assert_in_range(assert_whole_handles(&f, heap_of(&f)->newest, page), 2, 8);
    assert_beside_and_drop(&f, second, bytes, blocks);
    end(&f);
}

/* Half of a view is no less work to exchange than a new one, which stays beside it. */
static void remapped_view_is_none_that_is_mostly_in_use(void **state)
{
    (void)state;
    fixture f;
    pleat_va blocks[40];
    begin(&f, "learn:off");
    drop(&f, take(&f, LARGE));
    take_shown(&f, 40, blocks);
    drop(&f, take(&f, LARGE));
    assert_int_equal(stats_of(&f).stitched, 2);
    assert_int_equal(heap_of(&f)->view_count, 2);
    end(&f);
}

/* All that is free goes: by pages of the first view, and what it does not show last. New memory
 * stays out. */
static void take_all(fixture *f, pleat_va *by_page)
{
    uint64_t physical = stats_of(f).physical_bytes;
    pleat_va address = take(f, 2 * MIB);
    for (; stats_of(f).physical_bytes == physical; address = take(f, 2 * MIB))
        by_page[page_of(f, address)] = address;
}

/* One of its handles is in use wherever the request would lie, and none is free that it does not
 * show. */
static void remapped_view_is_none_where_nothing_comes_in_its_place(void **state)
{
    (void)state;
    fixture f;
    pleat_va by_page[76];
    begin(&f, "learn:off");
    drop(&f, take(&f, LARGE));
    assert_int_equal(heap_of(&f)->newest->pages, 75);
    take_all(&f, by_page);
    for (uint32_t i = 0; i < 75; i++)
        if (i % 15 != 14)
            drop(&f, by_page[i]);
    uint64_t physical = stats_of(&f).physical_bytes;
    take(&f, 40 * MIB);
    assert_int_equal(stats_of(&f).physical_bytes, physical);
    assert_int_equal(heap_of(&f)->view_count, 2);
    assert_int_equal(heap_of(&f)->oldest->pages, 75);
    end(&f);
}

/* An iteration in which a request lies in the view; returns where. It is long enough for what is
 * recorded of it to go later. */
static pleat_va run_iteration(fixture *f)
{
    pleat_va large = take(f, LARGE);
    drop(f, large);
    for (int i = 0; i < 600; i++)
        drop(f, take(f, 512));
    assert_ok(pleat_mark(f->runtime));
    return large;
}

/* What was recorded remembers the view's place, and so does the schedule that is made of it. */
static void remapped_view_is_none_in_which_a_schedule_has_a_place(void **state)
{
    (void)state;
    for (int followed = 0; followed < 2; followed++) {
        fixture f;
        pleat_va block;
        begin(&f, "");
        assert_ok(pleat_mark(f.runtime));
        pleat_va first = run_iteration(&f);
        for (int i = 0; followed && i < 4; i++)
            assert_int_equal(run_iteration(&f), first);
        assert_int_equal(stats_of(&f).switches, followed);
        assert_int_equal(heap_of(&f)->view_count, 1);
        assert_int_equal(heap_of(&f)->newest->slices, 1);
        take_shown(&f, 1, &block);
        pleat_va second = take(&f, LARGE);
        assert_int_equal(second == first, !followed);
        assert_int_equal(heap_of(&f)->view_count, 1 + followed);
        drop(&f, second);
        end(&f);
    }
}

/* The GPU may still be at work in what would be exchanged. */
static void remapped_view_is_none_that_the_gpu_is_still_in(void **state)
{
    (void)state;
    for (int lags = 0; lags < 2; lags++) {
        fixture f;
        pleat_va block;
        begin(&f, "learn:off");
        pleat_va first = take(&f, LARGE);
        if (lags)
            assert_ok(pleat__host_stream_hold(&f.host, 0));
        drop(&f, first);
        take_shown(&f, 1, &block);
        pleat_va second = take(&f, LARGE);
        assert_int_equal(second != first, lags);
        assert_int_equal(heap_of(&f)->view_count, 1 + lags);
        assert_ok(pleat__host_stream_release(&f.host, 0));
        end(&f);
    }
}

/* Where a verb fails a new view is made, and nothing of the old one is left behind. */
static void remapped_view_is_replaced_when_a_verb_fails(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_unmap,        PLEAT__FAULT_unmap,
                                              PLEAT__FAULT_map,          PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_set_access,   PLEAT__FAULT_event_create,
                                              PLEAT__FAULT_event_record, PLEAT__FAULT_event_query};
    for (uint32_t v = 0; v < sizeof verbs / sizeof verbs[0]; v++) {
        bool carried_out = v != 0 && verbs[v] == verbs[v - 1];
        for (uint64_t nth = 1; nth <= 4; nth++) {
            fixture f;
            pleat_va blocks[3];
            begin(&f, "learn:off");
            pleat_va first = take(&f, LARGE), second;
            bool of_view = verbs[v] <= PLEAT__FAULT_unmap;
            const pleat__fault_plan plan = {
                .verb = verbs[v], .nth = nth, .carried_out = carried_out};
            if (!of_view)
                pleat__fault_arm(&f.vmm, plan);
            drop(&f, first);
            take_shown(&f, 3, blocks);
            for (int i = 0; i < 3; i++)
                fill_with(blocks[i], 2 * MIB, 1);
            if (of_view)
                pleat__fault_arm(&f.vmm, plan);
            pleat_result result = pleat_alloc(f.runtime, LARGE, 0, &second);
            pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
            if (result != PLEAT_OK)
                assert_ok(pleat_alloc(f.runtime, LARGE, 0, &second));
            assert_beside_and_drop(&f, second, LARGE, blocks);
            end(&f);
        }
    }
}

static struct {
    pleat_vmm below;
    pleat_runtime *runtime;
    pleat_va freed; /* 0: nothing is, and nothing fails */
} beside;

static void *free_beside(void *context)
{
    (void)context;
    assert_ok(pleat_free(beside.runtime, beside.freed));
    return NULL;
}

static pleat_result unmap_beside(void *self, pleat_va va, uint64_t bytes)
{
    pthread_t other;
    if (beside.freed == 0)
        return beside.below.ops->unmap(self, va, bytes);
    assert_int_equal(pthread_create(&other, NULL, free_beside, NULL), 0);
    assert_int_equal(pthread_join(other, NULL), 0);
    beside.freed = 0;
    return PLEAT_E_DRIVER;
}

/* What another thread frees while a verb fails holds the request as it is. */
static void remapped_view_is_needless_where_a_hole_was_freed_meanwhile(void **state)
{
    (void)state;
    fixture f;
    pleat_va block;
    open_host(&f);
    beside.below = f.vmm;
    pleat_vmm_ops ops = *f.vmm.ops;
    ops.unmap = unmap_beside;
    f.vmm.ops = &ops;
    begin_on(&f, "learn:off", LARGE);
    drop(&f, take(&f, LARGE));
    take_shown(&f, 1, &block);
    uint64_t stitched = stats_of(&f).stitched;
    beside.runtime = f.runtime;
    beside.freed = f.before;
    assert_int_equal(take(&f, LARGE), f.before);
    assert_int_equal(beside.freed, 0);
    assert_int_equal(stats_of(&f).stitched, stitched);
    assert_int_equal(heap_of(&f)->view_count, 0);
    end(&f);
}

static void *release_later(void *context)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_ok(pleat__host_stream_release(context, 0));
    return NULL;
}

static void is_gone(void *self)
{
    (void)self;
}

/* A view that a thread of the runtime's own left to the mapper when the rest was waited for
 * already, and that the GPU uses still. */
static void views_left_to_the_mapper_outlive_no_heap(void **state)
{
    (void)state;
    static const pleat__policy_ops gone = {.name = "gone", .destroy = is_gone};
    fixture f;
    pthread_t other;
    begin(&f, "learn:off");
    drop(&f, take(&f, 30 * MIB));
    assert_int_equal(stats_of(&f).stitched, 1);
    assert_ok(pleat__host_stream_hold(&f.host, 0));
    pleat__pleat *policy = f.runtime->policy;
    pleat__gate_lock(&f.runtime->gate);
    assert_true(pleat__heap_drop_views(&policy->heap, 0, 0));
    pleat__gate_unlock(&f.runtime->gate);
    assert_int_equal(pthread_create(&other, NULL, release_later, &f.host), 0);
    f.runtime->ops->destroy(policy);
    assert_int_equal(pthread_join(other, NULL), 0);
    f.runtime->ops = &gone;
    pleat_runtime_destroy(f.runtime);
    pleat_vmm_destroy(&f.vmm);
    assert_nothing_held(&f.host);
    pleat_vmm_destroy(&f.host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(views_serve_requests_of_other_sizes),
        cmocka_unit_test(holes_are_filled_where_most_whole_chunks_stay),
        cmocka_unit_test(views_show_no_chunk_twice),
        cmocka_unit_test(small_and_large_share_chunks_for_want_of_memory),
        cmocka_unit_test(holes_smaller_than_a_chunk_are_filled_from_their_beginning),
        cmocka_unit_test(views_are_not_made_for_next_to_nothing),
        cmocka_unit_test(views_in_use_stay),
        cmocka_unit_test(views_are_kept_by_their_maps),
        cmocka_unit_test(views_left_to_the_mapper_outlive_no_heap),
        cmocka_unit_test(remapped_view_exchanges_only_what_is_in_use),
        cmocka_unit_test(remapped_view_exchanges_handles_of_several_chunks),
        cmocka_unit_test(remapped_view_is_none_that_is_mostly_in_use),
        cmocka_unit_test(remapped_view_is_none_where_nothing_comes_in_its_place),
        cmocka_unit_test(remapped_view_is_none_in_which_a_schedule_has_a_place),
        cmocka_unit_test(remapped_view_is_none_that_the_gpu_is_still_in),
        cmocka_unit_test(remapped_view_is_replaced_when_a_verb_fails),
        cmocka_unit_test(remapped_view_is_needless_where_a_hole_was_freed_meanwhile),
    };
    return cmocka_run_group_tests_name("views", tests, NULL, NULL);
}
