/*
 * mapper.c: the mapping thread: order, events, calls, errors that reach the
 * waiter.
 */
#include "../fault.h"
#include "../held.h"
#include "../host.h"
#include "mapping.h"

#include <internal/thread.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define GRANULE 65536u
enum { CHUNKS = 16 };

typedef struct fixture {
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__chunk *chunks[CHUNKS];
} fixture;

static void begin(fixture *f, uint64_t window_pages)
{
    pleat_host_options host = {.size = sizeof host, .granularity = GRANULE};
    assert_ok(pleat_vmm_host(&host, &f->host));
    assert_ok(pleat__fault_create(f->host, &f->vmm));
    assert_ok(pleat__arena_create(&f->arena));
    pleat__space_options options = {.window_bytes = window_pages * GRANULE};
    assert_ok(pleat__space_create(f->vmm, f->arena, &options, &f->space));
    for (int c = 0; c < CHUNKS; c++)
        assert_ok(pleat__space_chunk_get(f->space, 1, &f->chunks[c]));
}

static void end(fixture *f)
{
    pleat__space_destroy(f->space);
    assert_nothing_held(&f->host);
    assert_int_equal(pleat__arena_bytes_of(f->arena).allocated, 0);
    pleat__arena_destroy(f->arena);
    pleat_vmm_destroy(&f->vmm);
    pleat_vmm_destroy(&f->host);
}

static uint64_t *word(const fixture *f, uint64_t page)
{
    return (uint64_t *)(uintptr_t)(pleat__space_base(f->space) + page * GRANULE);
}

static mapping map_at(const fixture *f, uint64_t page, uint64_t first, uint64_t count)
{
    return (mapping){.space = f->space, .page = page, .chunks = f->chunks + first, .count = count};
}

static mapping unmap_at(const fixture *f, uint64_t page, uint64_t pages)
{
    return (mapping){.space = f->space, .page = page, .pages = pages};
}

/* ---- the mapper ---- */

static void mapper_carries_out_in_order(void **state)
{
    (void)state;
    enum { ROUNDS = 200 };
    fixture f;
    begin(&f, 64);
    pleat__mapper *mapper;
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    uint64_t page;
    assert_ok(pleat__space_take(f.space, 4, &page));
    static mapping maps[2 * ROUNDS];
    static pleat__job jobs[2 * ROUNDS];
    for (int r = 0; r < ROUNDS; r++) { /* the same pages again and again: only in order it works */
        maps[2 * r] = map_at(&f, page, (uint64_t)r % 12, 4);
        maps[2 * r + 1] = unmap_at(&f, page, 4);
        jobs[2 * r] = mapping_job(&maps[2 * r]);
        jobs[2 * r + 1] = mapping_job(&maps[2 * r + 1]);
        pleat__mapper_submit(mapper, &jobs[2 * r]);
        pleat__mapper_submit(mapper, &jobs[2 * r + 1]);
    }
    pleat__mapper_drain(mapper);
    for (int j = 0; j < 2 * ROUNDS; j++) {
        assert_true(pleat__job_done(&jobs[j]));
        assert_ok(pleat__mapper_wait(mapper, &jobs[j]));
    }
    mapping last_map = map_at(&f, page, 0, 4);
    pleat__job last = mapping_job(&last_map);
    pleat__mapper_submit(mapper, &last);
    assert_ok(pleat__mapper_wait(mapper, &last));
    *word(&f, page + 3) = 3;
    pleat__mapper_destroy(mapper);
    end(&f);
}

static void mapper_unmaps_only_after_events(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 64);
    pleat__mapper *mapper;
    uint64_t page;
    pleat_event events[2];
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    assert_ok(pleat__space_take(f.space, 4, &page));
    for (int e = 0; e < 2; e++) {
        assert_ok(pleat__host_stream_hold(&f.host, 1 + (uint64_t)e));
        assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &events[e]));
        assert_ok(f.vmm.ops->event_record(f.vmm.self, events[e], 1 + (uint64_t)e));
    }
    mapping there = map_at(&f, page, 0, 2), back = unmap_at(&f, page, 2);
    mapping beside = map_at(&f, page + 2, 2, 2), anew = map_at(&f, page, 4, 2);
    pleat__job map = mapping_job(&there), unmap = mapping_job(&back);
    pleat__job other = mapping_job(&beside), again = mapping_job(&anew);
    unmap.events = events;
    unmap.event_count = 2;
    pleat__mapper_submit(mapper, &map);
    assert_ok(pleat__mapper_wait(mapper, &map));
    pleat__mapper_submit(mapper, &unmap);
    pleat__mapper_submit(mapper, &other);
    assert_ok(pleat__mapper_wait(mapper, &other)); /* the unmap lets it go first */
    assert_false(pleat__job_done(&unmap));
    assert_ok(pleat__host_stream_release(&f.host, 2)); /* one of two is not enough */
    *word(&f, page) = 1; /* still mapped, whatever the mapper does meanwhile */
    assert_false(pleat__job_done(&unmap));
    assert_int_equal(pleat__space_stats_of(f.space).unmaps, 0);
    assert_ok(pleat__host_stream_release(&f.host, 1));
    assert_ok(pleat__mapper_wait(mapper, &unmap));
    pleat__mapper_submit(mapper, &again);
    assert_ok(pleat__mapper_wait(mapper, &again));
    assert_ptr_equal(pleat__space_chunk_at(f.space, page, NULL), f.chunks[4]);
    for (int e = 0; e < 2; e++)
        assert_ok(f.vmm.ops->event_destroy(f.vmm.self, events[e]));
    pleat__mapper_destroy(mapper);
    end(&f);
}

typedef struct called {
    pleat__job job;
    _Atomic int *count;
    pleat_result ready;
} called;

static pleat_result note_call(void *context, pleat_result ready)
{
    called *c = context;
    c->ready = ready;
    atomic_fetch_add(c->count, 1);
    return ready;
}

/* It frees itself, as nobody waits for it. */
static pleat_result note_and_free(void *context, pleat_result ready)
{
    called *c = context;
    atomic_fetch_add(c->count, 1);
    free(c);
    return ready;
}

typedef struct drainer {
    pleat__mapper *mapper;
    atomic_bool begun, over;
} drainer;

static void *drain(void *opaque)
{
    drainer *d = opaque;
    atomic_store(&d->begun, true);
    pleat__mapper_drain(d->mapper);
    atomic_store(&d->over, true);
    return NULL;
}

static pleat_result call_nothing(void *context, pleat_result ready)
{
    (void)context;
    return ready;
}

/* Jobs that come later and are done first do not stand for one whose event is awaited. */
static void mapper_drain_waits_for_those_that_were_overtaken(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 64);
    drainer d = {0};
    pthread_t thread;
    pleat_event event;
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &d.mapper));
    assert_ok(pleat__host_stream_hold(&f.host, 1));
    assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &event));
    assert_ok(f.vmm.ops->event_record(f.vmm.self, event, 1));
    pleat__job awaited = {.call = call_nothing, .events = &event, .event_count = 1};
    pleat__mapper_submit(d.mapper, &awaited);
    assert_int_equal(pthread_create(&thread, NULL, drain, &d), 0);
    while (!atomic_load(&d.begun))
        sched_yield();
    for (int i = 0; i < 500; i++) {
        pleat__job quick = {.call = call_nothing};
        pleat__mapper_submit(d.mapper, &quick);
        assert_ok(pleat__mapper_wait(d.mapper, &quick));
        assert_false(atomic_load(&d.over));
    }
    assert_ok(pleat__host_stream_release(&f.host, 1));
    pthread_join(thread, NULL);
    assert_true(pleat__job_done(&awaited));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, event));
    pleat__mapper_destroy(d.mapper);
    end(&f);
}

/* A stream that only is behind for who asks passes what a job waits for. */
static void mapper_is_not_kept_waiting_by_a_stream_that_trails(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 8);
    pleat__mapper *mapper;
    pleat_event event;
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    assert_ok(pleat__host_stream_trail(&f.host, 1));
    assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &event));
    assert_ok(f.vmm.ops->event_record(f.vmm.self, event, 1));
    assert_result(f.vmm.ops->event_query(f.vmm.self, event), PLEAT_E_NOT_READY);
    pleat__job job = {.call = call_nothing, .events = &event, .event_count = 1};
    pleat__mapper_submit(mapper, &job);
    pleat__mapper_drain(mapper);
    assert_true(pleat__job_done(&job));
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, event));
    pleat__mapper_destroy(mapper);
    end(&f);
}

static void mapper_calls_and_forgets(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 64);
    pleat__mapper *mapper;
    pleat_event event;
    _Atomic int count = 0;
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &event));
    called kept = {.count = &count, .ready = PLEAT_E_STATE};
    kept.job = (pleat__job){.call = note_call, .context = &kept};
    pleat__mapper_submit(mapper, &kept.job);
    assert_ok(pleat__mapper_wait(mapper, &kept.job));
    assert_ok(kept.ready);
    for (int i = 0; i < 20; i++) {
        called *c = malloc(sizeof *c);
        assert_non_null(c);
        *c = (called){.count = &count};
        c->job = (pleat__job){.call = note_and_free, .context = c, .forgotten = true};
        pleat__mapper_submit(mapper, &c->job);
    }
    pleat__mapper_drain(mapper);
    assert_int_equal(atomic_load(&count), 21);
    /* Nobody can say whether the event has passed: the call is told. */
    pleat__fault_arm(
        &f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_query, .nth = 1, .forever = true});
    kept.job.events = &event;
    kept.job.event_count = 1;
    pleat__mapper_submit(mapper, &kept.job);
    assert_result(pleat__mapper_wait(mapper, &kept.job), PLEAT_E_DRIVER);
    assert_result(kept.ready, PLEAT_E_DRIVER);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
    assert_ok(f.vmm.ops->event_destroy(f.vmm.self, event));
    pleat__mapper_destroy(mapper);
    end(&f);
}

static void mapper_hands_the_error_to_the_waiter(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 64);
    pleat__mapper *mapper;
    uint64_t page;
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    assert_ok(pleat__space_take(f.space, 4, &page));
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_map, .nth = 2});
    mapping map = map_at(&f, page, 0, 4);
    pleat__job bad = mapping_job(&map), good = mapping_job(&map);
    pleat__mapper_submit(mapper, &bad);
    pleat__mapper_submit(mapper, &good);
    assert_ok(pleat__mapper_wait(mapper, &good)); /* the first was unwound */
    assert_result(pleat__mapper_wait(mapper, &bad), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text, "map: made to fail");
    assert_int_equal(pleat_last_error()->native, 999);
    pleat__mapper_destroy(mapper);
    end(&f);
}

/* What a mapper does takes the others no time: it is counted, and summed up, by itself. */
static void mapper_calls_are_told_from_others(void **state)
{
    (void)state;
    fixture f;
    pleat__mapper *mapper;
    uint64_t ns, aside_ns;
    begin(&f, 64);
    assert_ok(pleat__space_take_at(f.space, 0, 8));
    assert_ok(pleat__host_set_costs(&f.host, &pleat__host_costs_h200));
    assert_ok(pleat__mapper_create(f.vmm, f.arena, &mapper));
    assert_false(pleat__on_own_thread());
    uint64_t calls = pleat__space_stats_of(f.space).driver_calls;
    mapping map = map_at(&f, 0, 0, 4);
    pleat__job job = mapping_job(&map);
    pleat__mapper_submit(mapper, &job);
    assert_ok(pleat__mapper_wait(mapper, &job));
    assert_ok(pleat__host_modelled_ns(&f.host, &ns, &aside_ns));
    assert_int_equal(ns, 0);
    assert_true(aside_ns >= 4 * 17500);
    assert_int_equal(pleat__space_stats_of(f.space).mapper_calls, 5);
    uint64_t before_ns = aside_ns;
    assert_ok(pleat__space_map(f.space, 4, f.chunks + 4, 2));
    assert_ok(pleat__host_modelled_ns(&f.host, &ns, &aside_ns));
    assert_true(ns >= 2 * 17500);
    assert_int_equal(aside_ns, before_ns);
    assert_int_equal(pleat__space_stats_of(f.space).mapper_calls, 5);
    assert_int_equal(pleat__space_stats_of(f.space).driver_calls, calls + 5 + 3);
    pleat__mapper_destroy(mapper);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mapper_carries_out_in_order),
        cmocka_unit_test(mapper_unmaps_only_after_events),
        cmocka_unit_test(mapper_drain_waits_for_those_that_were_overtaken),
        cmocka_unit_test(mapper_is_not_kept_waiting_by_a_stream_that_trails),
        cmocka_unit_test(mapper_calls_and_forgets),
        cmocka_unit_test(mapper_hands_the_error_to_the_waiter),
        cmocka_unit_test(mapper_calls_are_told_from_others),
    };
    return cmocka_run_group_tests_name("mapper", tests, NULL, NULL);
}
