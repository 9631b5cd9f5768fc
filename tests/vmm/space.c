/*
 * space.c: the window, chunks, maps and the budget over the host backend, data included.
 */
#include "../held.h"
#include "../host.h"

#include <internal/error.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include <vmm/space.h>

#define GRANULE 65536u

typedef struct fixture {
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
} fixture;

static fixture begin(uint64_t device_pages, uint64_t budget_pages, uint64_t window_pages)
{
    fixture f;
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = device_pages * GRANULE, .granularity = GRANULE};
    assert_ok(pleat_vmm_host(&host, &f.vmm));
    assert_ok(pleat__arena_create(&f.arena));
    pleat__space_options options = {.window_bytes = window_pages * GRANULE};
    assert_ok(pleat__space_create(f.vmm, f.arena, &options, &f.space));
    pleat__space_set_budget(f.space, budget_pages * GRANULE);
    return f;
}

/* The space is gone, and so must be all that it held. */
static void end(fixture *f)
{
    assert_true(pleat__space_audit(f->space));
    pleat__space_destroy(f->space);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    assert_nothing_held(&f->vmm);
    pleat__arena_destroy(f->arena);
    pleat_vmm_destroy(&f->vmm);
}

static uint64_t *words(const fixture *f, uint64_t page)
{
    return (uint64_t *)(uintptr_t)(pleat__space_base(f->space) + page * GRANULE);
}

static void window_first_fit_and_exact_places(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 200);
    uint64_t a, b, c;
    assert_ok(pleat__space_take(f.space, 70, &a));
    assert_ok(pleat__space_take(f.space, 60, &b));
    assert_ok(pleat__space_take(f.space, 70, &c));
    assert_int_equal(a, 0);
    assert_int_equal(b, 70);
    assert_int_equal(c, 130);
    assert_result(pleat__space_take(f.space, 1, &a), PLEAT_E_LIMIT);
    pleat__space_give(f.space, 80, 10);
    pleat__space_give(f.space, 100, 20);
    assert_ok(pleat__space_take(f.space, 11, &a));
    assert_int_equal(a, 100);
    assert_result(pleat__space_take_at(f.space, 85, 6), PLEAT_E_STATE);
    assert_ok(pleat__space_take_at(f.space, 85, 5));
    assert_ok(pleat__space_take(f.space, 5, &a));
    assert_int_equal(a, 80);
    assert_result(pleat__space_take_at(f.space, 199, 2), PLEAT_E_LIMIT);
    assert_result(pleat__space_take_at(f.space, UINT64_MAX, 2), PLEAT_E_LIMIT);
    assert_result(pleat__space_take(f.space, 0, &a), PLEAT_E_LIMIT);
    assert_int_equal(pleat__space_stats_of(f.space).reserved_pages, 200 - 9);
    end(&f);
}

/* What is noted of pages, 16 bytes each, comes in host pages of 4 KiB, whose first entry is
 * written. */
static void window_stays_as_it_is_where_pages_are_expected(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 520);
    pleat__chunk *chunk;
    uint32_t index = 0;
    assert_ok(pleat__space_chunk_get(f.space, 2, &chunk));
    assert_ok(pleat__space_take_at(f.space, 255, 2));
    assert_ok(pleat__space_map(f.space, 255, &chunk, 1));
    pleat__space_expect(f.space, 250, 20);
    pleat__space_expect(f.space, 500, 1000);
    pleat__space_expect(f.space, 520, 1);
    assert_ptr_equal(pleat__space_chunk_at(f.space, 256, &index), chunk);
    assert_int_equal(index, 1);
    assert_null(pleat__space_chunk_at(f.space, 0, NULL));
    assert_ok(pleat__space_unmap(f.space, 255, 2));
    pleat__space_give(f.space, 255, 2);
    pleat__space_chunk_put(f.space, chunk);
    end(&f);
}

static void window_agrees_with_a_naive_model(void **state)
{
    (void)state;
    enum { PAGES = 300 };
    fixture f = begin(4, 0, PAGES);
    test_random random = test_random_begin("window_agrees_with_a_naive_model", 11);
    bool taken[PAGES] = {false};
    for (int step = 0; step < 20000; step++) {
        uint64_t pages = 1 + test_random_below(&random, 90), at;
        if (test_random_below(&random, 2) == 0) {
            uint64_t expect = 0, run = 0;
            while (expect + run < PAGES && run < pages)
                if (taken[expect + run])
                    expect += run + 1, run = 0;
                else
                    run++;
            pleat_result result = pleat__space_take(f.space, pages, &at);
            assert_result(result, run == pages ? PLEAT_OK : PLEAT_E_LIMIT);
            if (result != PLEAT_OK)
                continue;
            assert_int_equal(at, expect);
            memset(taken + at, true, pages);
        } else {
            at = test_random_below(&random, PAGES);
            pages = 0;
            while (at + pages < PAGES && taken[at + pages] && pages < 40)
                pages++;
            if (pages == 0)
                continue;
            pleat__space_give(f.space, at, pages);
            memset(taken + at, false, pages);
        }
    }
    end(&f);
}

static void chunks_come_from_the_pool_by_size(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 0);
    pleat__chunk *a, *b, *large, *again;
    assert_ok(pleat__space_chunk_get(f.space, 1, &a));
    assert_ok(pleat__space_chunk_get(f.space, 1, &b));
    assert_ok(pleat__space_chunk_get(f.space, 5, &large));
    assert_int_equal(pleat__space_stats_of(f.space).physical_bytes, 7 * GRANULE);
    uint32_t id = a->id;
    pleat__space_chunk_put(f.space, a);
    pleat__space_chunk_put(f.space, large);
    pleat__space_chunk_put(f.space, b);
    assert_int_equal(pleat__space_stats_of(f.space).pooled_bytes, 7 * GRANULE);
    assert_ok(pleat__space_chunk_get(f.space, 1, &again));
    assert_ptr_equal(again, b); /* the newest */
    assert_ok(pleat__space_chunk_get(f.space, 4, &again));
    assert_int_equal(pleat__space_stats_of(f.space).creates, 4);
    assert_int_equal(pleat__space_trim(f.space, 5 * GRANULE), GRANULE); /* a, the oldest */
    assert_int_equal(pleat__space_trim(f.space, 5 * GRANULE), 0);
    assert_ok(pleat__space_chunk_get(f.space, 2, &again));
    assert_int_equal(again->id, id);
    assert_int_equal(pleat__space_trim(f.space, 0), 5 * GRANULE);
    assert_result(pleat__space_chunk_get(f.space, 0, &again), PLEAT_E_INVALID);
    assert_result(pleat__space_chunk_get(f.space, UINT32_MAX, &again), PLEAT_E_INVALID);
    end(&f);
}

static void maps_show_aliases_and_stitches(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 0);
    pleat__chunk *c[4];
    for (int i = 0; i < 3; i++)
        assert_ok(pleat__space_chunk_get(f.space, 1, &c[i]));
    assert_ok(pleat__space_chunk_get(f.space, 3, &c[3]));
    uint64_t a, b;
    assert_ok(pleat__space_take(f.space, 6, &a));
    assert_ok(pleat__space_map(f.space, a, c, 4));
    for (uint64_t p = 0; p < 6; p++)
        *words(&f, a + p) = 100 + p;
    pleat__chunk *mixed[] = {c[2], c[3], c[0], c[0]};
    assert_ok(pleat__space_take(f.space, 6, &b));
    assert_ok(pleat__space_map(f.space, b, mixed, 4));
    const uint64_t expect[] = {102, 103, 104, 105, 100, 100};
    for (uint64_t p = 0; p < 6; p++)
        assert_int_equal(*words(&f, b + p), expect[p]);
    *words(&f, b + 5) = 7;
    assert_int_equal(*words(&f, a), 7);
    uint64_t first, second;
    assert_ok(pleat_host_physical(&f.vmm, (uintptr_t)words(&f, a), &first));
    assert_ok(pleat_host_physical(&f.vmm, (uintptr_t)words(&f, b + 5) + 8, &second));
    assert_int_equal(first + 8, second);
    assert_int_equal(c[0]->maps, 3);
    pleat__space_stats stats = pleat__space_stats_of(f.space);
    assert_int_equal(stats.mapped_pages, 12);
    assert_int_equal(stats.alias_pages, 6);
    assert_int_equal(stats.set_accesses, 2);
    uint32_t index;
    assert_ptr_equal(pleat__space_chunk_at(f.space, b + 2, &index), c[3]);
    assert_int_equal(index, 1);
    assert_result(pleat__space_unmap(f.space, b, 2), PLEAT_E_STATE);
    assert_result(pleat__space_unmap(f.space, b + 2, 2), PLEAT_E_STATE);
    assert_result(pleat__space_map(f.space, b, c, 1), PLEAT_E_STATE);
    assert_ok(pleat__space_unmap(f.space, b, 6));
    assert_null(pleat__space_chunk_at(f.space, b, NULL));
    assert_int_equal(*words(&f, a), 7);
    assert_int_equal(pleat__space_stats_of(f.space).alias_pages, 0);
    assert_ok(pleat__space_unmap(f.space, a, 3));
    assert_int_equal(c[0]->maps, 0);
    assert_ok(pleat__space_unmap(f.space, a + 3, 3));
    pleat__space_give(f.space, a, 6);
    end(&f); /* b still taken, chunks in hands: destroy takes it all */
}

static void budget_is_a_hard_cap(void **state)
{
    (void)state;
    fixture f = begin(64, 4, 0);
    pleat__chunk *a, *b, *c;
    assert_ok(pleat__space_chunk_get(f.space, 3, &a));
    assert_result(pleat__space_chunk_get(f.space, 2, &b), PLEAT_E_BUDGET);
    assert_non_null(strstr(pleat_last_error()->text, "196608 of 262144"));
    assert_ok(pleat__space_chunk_get(f.space, 1, &b));
    assert_int_equal(pleat__space_stats_of(f.space).physical_bytes, 4 * GRANULE);
    pleat__space_chunk_put(f.space, a);
    assert_ok(pleat__space_chunk_get(f.space, 2, &c)); /* the pooled one made room */
    assert_int_equal(pleat__space_stats_of(f.space).physical_bytes, 3 * GRANULE);
    assert_int_equal(pleat__space_stats_of(f.space).peak_physical_bytes, 4 * GRANULE);
    pleat__space_set_budget(f.space, GRANULE);
    assert_result(pleat__space_chunk_get(f.space, 1, &a), PLEAT_E_BUDGET);
    pleat__space_set_budget(f.space, 0);
    assert_ok(pleat__space_chunk_get(f.space, 61, &a));
    assert_result(pleat__space_chunk_get(f.space, 1, &a), PLEAT_E_OUT_OF_MEMORY);
    end(&f);
}

/* A plan's folds may take more addresses than a window has otherwise. */
static void space_window_has_room_for_a_plan(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 0);
    pleat__space *other;
    pleat__space_options options = {.plan_bytes = UINT64_MAX};
    assert_result(pleat__space_create(f.vmm, f.arena, &options, &other), PLEAT_E_INVALID);
    pleat__space_destroy(f.space);
    options.plan_bytes = 5000 * GRANULE;
    assert_ok(pleat__space_create(f.vmm, f.arena, &options, &f.space));
    assert_int_equal(pleat__space_pages(f.space), 8 * 64 + 5000);
    end(&f);
}

/* As many as a process can have at all. */
static void space_without_addresses_is_no_device_without_memory(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 0);
    pleat__space *other;
    const pleat__space_options options = {.window_bytes = UINT64_C(1) << 47};
    assert_result(pleat__space_create(f.vmm, f.arena, &options, &other), PLEAT_E_NO_MEMORY);
    assert_non_null(strstr(pleat_last_error()->text,
                           "140737488355328 bytes: Cannot allocate memory: this process gets "
                           "no more addresses"));
    end(&f);
}

/* What one space exports another maps: the same bytes, counted once. */
static void import_shares_bytes_and_costs_no_budget(void **state)
{
    (void)state;
    fixture theirs = begin(64, 0, 0), ours = begin(64, 2, 0);
    pleat__space_destroy(theirs.space);
    const pleat__space_options options = {.create_flags = PLEAT_CREATE_SHAREABLE};
    assert_ok(pleat__space_create(theirs.vmm, theirs.arena, &options, &theirs.space));
    pleat__chunk *exported, *imported, *own;
    uint64_t a, b;
    int fd;
    assert_ok(pleat__space_chunk_get(theirs.space, 3, &exported));
    assert_ok(pleat__space_take(theirs.space, 3, &a));
    assert_ok(pleat__space_map(theirs.space, a, &exported, 1));
    *words(&theirs, a + 2) = 33;
    assert_ok(pleat__space_export(theirs.space, exported, &fd));
    assert_ok(pleat__space_chunk_get(ours.space, 2, &own));
    assert_result(pleat__space_export(ours.space, own, &(int){0}), PLEAT_E_INVALID);
    assert_ok(pleat__space_import(ours.space, fd, 3, &imported)); /* over a budget that is spent */
    close(fd);
    assert_ok(pleat__space_take(ours.space, 5, &b));
    pleat__chunk *both[] = {own, imported};
    assert_ok(pleat__space_map(ours.space, b, both, 2));
    assert_int_equal(*words(&ours, b + 4), 33);
    *words(&ours, b + 2) = 34;
    assert_int_equal(*words(&theirs, a), 34);
    assert_int_equal(pleat__space_stats_of(ours.space).physical_bytes, 2 * GRANULE);
    assert_ok(pleat__space_unmap(ours.space, b, 5));
    uint64_t releases = pleat__space_stats_of(ours.space).releases;
    pleat__space_chunk_put(ours.space, imported); /* not into the pool */
    assert_int_equal(pleat__space_stats_of(ours.space).releases, releases + 1);
    assert_int_equal(pleat__space_stats_of(ours.space).pooled_bytes, 0);
    assert_result(pleat__space_import(ours.space, -1, 3, &imported), PLEAT_E_INVALID);
    end(&ours);
    end(&theirs);
}

/* ---- rest ---- */

/* Eight chunks of one to three pages side by side, the third one shown a second time far above. */
typedef struct resting {
    fixture f;
    pleat__chunk *chunks[8];
    uint64_t page, pages, view;
    /* what the parts say */
    pleat_va ends[16];
    uint32_t reached, fails_at, stopped;
} resting;

static pleat_result reach(void *context, pleat_va end)
{
    resting *r = context;
    uint64_t page = (end - pleat__space_base(r->f.space)) / GRANULE;
    assert_true(r->reached == 0 || end > r->ends[r->reached - 1]);
    assert_true(page <= r->page + r->pages || page == r->view + r->chunks[2]->pages);
    r->ends[r->reached++] = end;
    *words(&r->f, page - 1) = page; /* traps where it is not there */
    return r->reached == r->fails_at ? pleat__fail(PLEAT_E_DRIVER, "as planned") : PLEAT_OK;
}

static void stop(void *context)
{
    resting *r = context;
    r->stopped++;
    for (uint32_t e = 0; e < r->reached; e++) /* it is all there still */
        *(uint64_t *)(uintptr_t)(r->ends[e] - 8) = e;
}

static resting begin_resting(void)
{
    resting r = {.f = begin(64, 0, 256)};
    assert_ok(pleat__space_take(r.f.space, 16, &r.page));
    for (uint32_t c = 0; c < 8; c++) {
        assert_ok(pleat__space_chunk_get(r.f.space, 1 + c % 3, &r.chunks[c]));
        r.pages += r.chunks[c]->pages;
    }
    assert_ok(pleat__space_map(r.f.space, r.page, r.chunks, 8));
    assert_ok(pleat__space_take_at(r.f.space, 200, 3));
    r.view = 200;
    assert_ok(pleat__space_map(r.f.space, r.view, &r.chunks[2], 1));
    return r;
}

static void end_resting(resting *r)
{
    assert_ok(pleat__space_unmap(r->f.space, r->view, r->chunks[2]->pages));
    assert_ok(pleat__space_unmap(r->f.space, r->page, r->pages));
    for (uint32_t c = 0; c < 8; c++)
        pleat__space_chunk_put(r->f.space, r->chunks[c]);
    end(&r->f);
}

static uint64_t physical(const resting *r)
{
    return pleat__space_stats_of(r->f.space).physical_bytes;
}

static void rest_and_wake_go_part_by_part(void **state)
{
    (void)state;
    resting r = begin_resting();
    const pleat__space_parts parts = {
        .bytes = 4 * GRANULE, .reach = reach, .stop = stop, .context = &r};
    uint64_t all = physical(&r);
    for (int turn = 0; turn < 3; turn++) {
        r.reached = 0;
        assert_ok(pleat__space_rest(r.f.space, r.chunks, 8, &parts));
        assert_int_equal(r.reached, 6); /* 1+2, 3+1, 2, 3+1, 2 pages, and the view */
        assert_int_equal(physical(&r), 0);
        r.reached = 0;
        assert_ok(pleat__space_wake(r.f.space, r.chunks, 8, &parts));
        assert_int_equal(r.reached, 6);
        assert_int_equal(physical(&r), all);
    }
    assert_int_equal(r.stopped, 0);
    /* Without the one that is shown twice no page of others is looked at. */
    pleat__chunk *some[] = {r.chunks[7], r.chunks[0], r.chunks[1]};
    r.reached = 0;
    assert_ok(pleat__space_rest(r.f.space, some, 3, &parts));
    assert_int_equal(r.reached, 2);
    assert_true(some[0]->rests && !r.chunks[2]->rests);
    assert_ok(pleat__space_wake(r.f.space, some, 3, NULL));
    end_resting(&r);
}

/* Each half of a chunk has all of its places, and memory of its own. */
static void a_chunk_at_rest_is_split_at_all_its_places(void **state)
{
    (void)state;
    resting r = begin_resting();
    pleat__chunk *halves[4] = {r.chunks[2], NULL, r.chunks[5], NULL};
    pleat__space_stats before = pleat__space_stats_of(r.f.space);
    uint64_t all = physical(&r);
    assert_result(pleat__space_split(r.f.space, r.chunks[2], 1, &halves[1]), PLEAT_E_STATE);
    assert_ok(pleat__space_rest(r.f.space, r.chunks, 8, NULL));
    assert_ok(pleat__space_split(r.f.space, r.chunks[2], 1, &halves[1]));
    assert_ok(pleat__space_split(r.f.space, r.chunks[5], 2, &halves[3]));
    assert_int_equal(halves[0]->pages, 1);
    assert_int_equal(halves[1]->pages, 2);
    assert_int_equal(halves[1]->maps, 2);
    assert_int_equal(halves[3]->pages, 1);
    assert_int_equal(halves[3]->maps, 1);
    assert_true(halves[1]->rests && halves[3]->rests);
    /* One half of each has memory, the other has not. */
    pleat__chunk *awake[] = {halves[1], halves[2]};
    assert_ok(pleat__space_wake(r.f.space, awake, 2, NULL));
    assert_int_equal(physical(&r), 4 * GRANULE);
    *words(&r.f, r.view + 2) = 5; /* the last page of three, here and there */
    assert_int_equal(*words(&r.f, r.page + 5), 5);
    uint32_t index;
    assert_ptr_equal(pleat__space_chunk_at(r.f.space, r.view + 2, &index), halves[1]);
    assert_int_equal(index, 1);
    assert_ptr_equal(pleat__space_chunk_at(r.f.space, r.view, &index), halves[0]);
    assert_true(pleat__space_audit(r.f.space));
    pleat__chunk *others[] = {r.chunks[0], r.chunks[1], r.chunks[3], r.chunks[4],
                              r.chunks[6], r.chunks[7], halves[0],   halves[3]};
    assert_ok(pleat__space_wake(r.f.space, others, 8, NULL));
    assert_int_equal(physical(&r), all);
    *words(&r.f, r.view) = 6;
    assert_int_equal(*words(&r.f, r.page + 3), 6);
    pleat__space_stats stats = pleat__space_stats_of(r.f.space);
    assert_int_equal(stats.mapped_pages, before.mapped_pages);
    assert_int_equal(stats.alias_pages, before.alias_pages);
    assert_ok(pleat__space_unmap(r.f.space, r.view, 3));
    assert_ok(pleat__space_unmap(r.f.space, r.page, r.pages));
    pleat__space_chunk_put(r.f.space, halves[1]);
    pleat__space_chunk_put(r.f.space, halves[3]);
    for (uint32_t c = 0; c < 8; c++)
        pleat__space_chunk_put(r.f.space, r.chunks[c]);
    end(&r.f);
}

/* Beside one another in one map, those that have memory and those that do not yet. */
static void promised_chunks_are_mapped_when_they_are_woken(void **state)
{
    (void)state;
    fixture f = begin(64, 0, 256);
    pleat__chunk *chunks[3];
    uint64_t page;
    assert_ok(pleat__space_take(f.space, 4, &page));
    assert_ok(pleat__space_chunk_get(f.space, 1, &chunks[0]));
    assert_ok(pleat__space_chunk_promise(f.space, 2, &chunks[1]));
    assert_ok(pleat__space_chunk_get(f.space, 1, &chunks[2]));
    assert_ok(pleat__space_map(f.space, page, chunks, 3));
    pleat__space_stats stats = pleat__space_stats_of(f.space);
    assert_int_equal(stats.physical_bytes, 2 * GRANULE);
    assert_int_equal(stats.maps, 2);
    assert_int_equal(stats.mapped_pages, 4);
    *words(&f, page) = 1;
    *words(&f, page + 3) = 2;
    assert_ok(pleat__space_wake(f.space, &chunks[1], 1, NULL));
    *words(&f, page + 1) = 3;
    *words(&f, page + 2) = 4;
    assert_int_equal(*words(&f, page), 1);
    assert_int_equal(*words(&f, page + 3), 2);
    assert_int_equal(pleat__space_stats_of(f.space).physical_bytes, 4 * GRANULE);
    assert_ok(pleat__space_unmap(f.space, page, 4));
    for (uint32_t c = 0; c < 3; c++)
        pleat__space_chunk_put(f.space, chunks[c]);
    end(&f);
}

static void rest_and_wake_that_end_early_leave_all_as_it_was(void **state)
{
    (void)state;
    resting r = begin_resting();
    const pleat__space_parts parts = {
        .bytes = 4 * GRANULE, .reach = reach, .stop = stop, .context = &r};
    uint64_t all = physical(&r);
    for (uint64_t page = 0; page < r.pages; page++)
        words(&r.f, r.page + page)[1] = 1000 + page;
    for (r.fails_at = 1; r.fails_at <= 6; r.fails_at++) {
        r.reached = 0;
        assert_result(pleat__space_rest(r.f.space, r.chunks, 8, &parts), PLEAT_E_DRIVER);
        assert_non_null(strstr(pleat_last_error()->text, "as planned"));
        assert_int_equal(physical(&r), all);
        for (uint64_t page = 0; page < r.pages; page++)
            assert_int_equal(words(&r.f, r.page + page)[1], 1000 + page);
    }
    assert_int_equal(r.stopped, 0);
    assert_ok(pleat__space_rest(r.f.space, r.chunks, 8, NULL));
    for (r.fails_at = 1; r.fails_at <= 6; r.fails_at++) {
        r.reached = 0;
        assert_result(pleat__space_wake(r.f.space, r.chunks, 8, &parts), PLEAT_E_DRIVER);
        assert_int_equal(r.stopped, r.fails_at);
        assert_int_equal(physical(&r), 0);
    }
    assert_ok(pleat__space_wake(r.f.space, r.chunks, 8, NULL));
    end_resting(&r);
}

/* Between a space and its backend: while a chunk's memory is released another thread wakes it. */
static struct {
    pleat_vmm inner;
    pleat__space *space;
    pleat__chunk *chunk;
    pthread_t thread;
    pleat_result result;
    atomic_bool done;
    bool wakes, before; /* it woke before that memory was released */
} beside;

static void *wake_beside(void *context)
{
    (void)context;
    beside.result = pleat__space_wake(beside.space, &beside.chunk, 1, NULL);
    atomic_store(&beside.done, true);
    return NULL;
}

static pleat_result release_beside(void *self, pleat_handle handle)
{
    if (beside.wakes) {
        beside.wakes = false;
        if (pthread_create(&beside.thread, NULL, wake_beside, NULL) != 0)
            return PLEAT_E_DRIVER;
        for (int i = 0; i < 100 && !atomic_load(&beside.done); i++)
            usleep(1000);
        beside.before = atomic_load(&beside.done);
    }
    return beside.inner.ops->release(self, handle);
}

static void wake_by_another_thread_takes_no_memory_that_goes(void **state)
{
    (void)state;
    pleat__arena *arena;
    uint64_t page;
    assert_ok(pleat_vmm_host(NULL, &beside.inner));
    pleat_vmm_ops ops = *beside.inner.ops;
    ops.release = release_beside;
    const pleat__space_options options = {.window_bytes = 16 << 20};
    assert_ok(pleat__arena_create(&arena));
    assert_ok(
        pleat__space_create((pleat_vmm){&ops, beside.inner.self}, arena, &options, &beside.space));
    assert_ok(pleat__space_take(beside.space, 1, &page));
    assert_ok(pleat__space_chunk_get(beside.space, 1, &beside.chunk));
    assert_ok(pleat__space_map(beside.space, page, &beside.chunk, 1));
    beside.wakes = true;
    assert_ok(pleat__space_rest(beside.space, &beside.chunk, 1, NULL));
    assert_int_equal(pthread_join(beside.thread, NULL), 0);
    assert_ok(beside.result);
    assert_false(beside.before);
    assert_true(!beside.chunk->rests && beside.chunk->handle != 0);
    assert_int_equal(pleat__space_stats_of(beside.space).physical_bytes,
                     pleat__space_page_bytes(beside.space));
    pleat__space_destroy(beside.space);
    assert_nothing_held(&beside.inner);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&beside.inner);
}

/* One has a place, the other none: the budget has room for either, not for both. */
static void wake_that_the_budget_refuses_maps_nothing(void **state)
{
    (void)state;
    fixture f = begin(64, 4, 256);
    pleat__chunk *chunks[2];
    pleat__host_holdings held;
    uint64_t page;
    assert_ok(pleat__space_take(f.space, 3, &page));
    assert_ok(pleat__space_chunk_promise(f.space, 3, &chunks[0]));
    assert_ok(pleat__space_chunk_promise(f.space, 2, &chunks[1]));
    assert_ok(pleat__space_map(f.space, page, chunks, 1));
    assert_result(pleat__space_wake(f.space, chunks, 2, NULL), PLEAT_E_BUDGET);
    assert_true(chunks[0]->rests && chunks[1]->rests);
    assert_int_equal(pleat__space_stats_of(f.space).physical_bytes, 0);
    assert_int_equal(pleat__space_room(f.space), 4 * GRANULE);
    assert_ok(pleat__host_holdings_of(&f.vmm, &held));
    assert_int_equal(held.mapped_pages, 0);
    assert_int_equal(held.memory_bytes, 0);
    assert_ok(pleat__space_wake(f.space, &chunks[0], 1, NULL));
    *words(&f, page) = 1;
    assert_ok(pleat__space_unmap(f.space, page, 3));
    pleat__space_chunk_put(f.space, chunks[0]);
    assert_ok(pleat__space_wake(f.space, &chunks[1], 1, NULL)); /* the pooled one made room */
    pleat__space_chunk_put(f.space, chunks[1]);
    end(&f);
}

static void space_reports_a_missing_device(void **state)
{
    (void)state;
    fixture f = begin(4, 0, 0);
    pleat__space *other;
    pleat__space_options options = {.device = 3};
    assert_result(pleat__space_create(f.vmm, f.arena, &options, &other), PLEAT_E_NO_DEVICE);
    assert_non_null(strstr(pleat_last_error()->text, "device 3"));
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(window_first_fit_and_exact_places),
        cmocka_unit_test(window_stays_as_it_is_where_pages_are_expected),
        cmocka_unit_test(window_agrees_with_a_naive_model),
        cmocka_unit_test(chunks_come_from_the_pool_by_size),
        cmocka_unit_test(maps_show_aliases_and_stitches),
        cmocka_unit_test(budget_is_a_hard_cap),
        cmocka_unit_test(space_window_has_room_for_a_plan),
        cmocka_unit_test(space_without_addresses_is_no_device_without_memory),
        cmocka_unit_test(import_shares_bytes_and_costs_no_budget),
        cmocka_unit_test(rest_and_wake_go_part_by_part),
        cmocka_unit_test(a_chunk_at_rest_is_split_at_all_its_places),
        cmocka_unit_test(promised_chunks_are_mapped_when_they_are_woken),
        cmocka_unit_test(rest_and_wake_that_end_early_leave_all_as_it_was),
        cmocka_unit_test(wake_by_another_thread_takes_no_memory_that_goes),
        cmocka_unit_test(wake_that_the_budget_refuses_maps_nothing),
        cmocka_unit_test(space_reports_a_missing_device),
    };
    return cmocka_run_group_tests_name("space", tests, NULL, NULL);
}
