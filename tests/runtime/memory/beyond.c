/*
 * beyond.c: more streams than have memory of their own. None of those that share gets memory before
 * what others did with it is over, whatever the GPU is behind with; none is made to wait for
 * another one, and those that nobody uses any more are forgotten.
 */
#include "fixture.h"

#include <internal/error.h>
#include <runtime/face/runtime_internal.h>
#include <stdlib.h>
#include <time.h>

#define OWN     62u /* streams that have memory of their own */
#define SHARERS 12u
#define STEPS   4000u
#define LIVE    120u
#define USES    400u
#define PAIRS   4000u

/* ---- the order ---- */

/* Memory that was freed, and the point until which its stream may have used it. */
typedef struct use {
    pleat_va address;
    uint64_t bytes;
    pleat_stream stream;
    pleat_event done;
} use;

/* The second may be over only when the first is. */
typedef struct pair {
    pleat_event before, after;
} pair;

typedef struct world {
    fixture f;
    pleat_va at[LIVE];
    uint64_t bytes[LIVE];
    pleat_stream stream[LIVE];
    pleat_stream held; /* on which the GPU stands still; 0: none */
    use uses[USES];
    uint32_t use_count;
    pair pairs[PAIRS];
    uint32_t pair_count;
    uint64_t passed; /* times that memory came from another stream */
} world;

static pleat_event mark_on(const world *w, pleat_stream stream)
{
    pleat_event event;
    assert_ok(w->f.vmm.ops->event_create(w->f.vmm.self, 0, &event));
    assert_ok(w->f.vmm.ops->event_record(w->f.vmm.self, event, stream));
    return event;
}

static bool is_over(const world *w, pleat_event event)
{
    return w->f.vmm.ops->event_query(w->f.vmm.self, event) == PLEAT_OK;
}

static void forget(const world *w, pleat_event event)
{
    assert_ok(w->f.vmm.ops->event_destroy(w->f.vmm.self, event));
}

static void check_pairs(world *w)
{
    for (uint32_t i = w->pair_count; i-- > 0;) {
        assert_true(is_over(w, w->pairs[i].before) || !is_over(w, w->pairs[i].after));
        if (!is_over(w, w->pairs[i].before))
            continue;
        forget(w, w->pairs[i].before);
        forget(w, w->pairs[i].after);
        w->pairs[i] = w->pairs[--w->pair_count];
    }
}

/* What may still be used where a tensor now lies must be over before its stream goes on. */
static void pair_up(world *w, uint32_t i)
{
    for (uint32_t u = w->use_count; u-- > 0;) {
        use *old = &w->uses[u];
        if (old->address >= w->at[i] + w->bytes[i] || w->at[i] >= old->address + old->bytes)
            continue;
        if (is_over(w, old->done)) {
            forget(w, old->done);
            w->passed += old->stream != w->stream[i];
        } else {
            assert_true(w->pair_count < PAIRS);
            w->pairs[w->pair_count++] = (pair){old->done, mark_on(w, w->stream[i])};
        }
        *old = w->uses[--w->use_count];
    }
}

/* The host backend with streams that capture a graph, and nobody told the runtime. */
static struct {
    const pleat_vmm_ops *host;
    pleat_vmm_ops ops;
    pleat_stream first, last; /* 0: none */
} captor;

static bool captures(pleat_stream stream)
{
    return stream != 0 && captor.first <= stream && stream <= captor.last;
}

static pleat_result record_elsewhere(void *self, pleat_event event, pleat_stream stream)
{
    if (captures(stream))
        return pleat__fail(PLEAT_E_STATE, "stream %u captures", (unsigned)stream);
    return captor.host->event_record(self, event, stream);
}

static pleat_result wait_elsewhere(void *self, pleat_stream stream, pleat_event event)
{
    if (captures(stream))
        return pleat__fail(PLEAT_E_STATE, "stream %u captures", (unsigned)stream);
    return captor.host->stream_wait(self, stream, event);
}

/* What the test itself marks, it marks on the host backend. */
static void begin_beside_captor(fixture *f, uint64_t budget_bytes)
{
    pleat_runtime_options options = {.size = sizeof options, .budget_bytes = budget_bytes};
    open_host(f, 4096 * MIB, false);
    captor.host = f->host.ops;
    captor.ops = *f->host.ops;
    captor.ops.event_record = record_elsewhere;
    captor.ops.stream_wait = wait_elsewhere;
    captor.first = captor.last = 0;
    assert_ok(pleat_runtime_create((pleat_vmm){&captor.ops, f->host.self}, &options, &f->runtime));
    for (pleat_stream s = 1; s <= OWN; s++)
        assert_ok(pleat_free(f->runtime, take(f, 512, s)));
}

/* Mostly one of those that share; none that captures. */
static pleat_stream draw_stream(test_random *random)
{
    pleat_stream drawn = test_random_below(random, 4) == 0
                             ? 1 + test_random_below(random, OWN)
                             : 1 + OWN + test_random_below(random, SHARERS);
    return captures(drawn) ? drawn - 1 : drawn;
}

static void take_one(world *w, uint32_t i, test_random *random)
{
    uint64_t kind = test_random_below(random, 4);
    w->stream[i] = draw_stream(random);
    w->bytes[i] = 512 * (1 + test_random_below(random, kind == 0 ? 20000 : 300));
    w->at[i] = take(&w->f, w->bytes[i], w->stream[i]);
    pair_up(w, i);
}

static void free_one(world *w, uint32_t i)
{
    if (w->use_count == USES) {
        forget(w, w->uses[0].done);
        w->uses[0] = w->uses[--w->use_count];
    }
    w->uses[w->use_count++] = (use){w->at[i], w->bytes[i], w->stream[i], mark_on(w, w->stream[i])};
    assert_ok(pleat_free(w->f.runtime, w->at[i]));
    w->at[i] = 0;
}

/* The GPU goes on, and stands still on another stream. (On several at a time, nearly all would wait
 * for one of them, whether they have to or not.) */
static void hold(world *w, pleat_stream stream)
{
    if (w->held != 0)
        assert_ok(pleat__host_stream_release(&w->f.vmm, w->held));
    check_pairs(w);
    assert_int_equal(w->pair_count, 0);
    w->held = stream;
    if (stream != 0)
        assert_ok(pleat__host_stream_hold(&w->f.vmm, stream));
}

static void world_end(world *w)
{
    hold(w, 0);
    for (uint32_t i = 0; i < LIVE; i++)
        if (w->at[i] != 0)
            assert_ok(pleat_free(w->f.runtime, w->at[i]));
    while (w->use_count != 0)
        forget(w, w->uses[--w->use_count].done);
    end(&w->f);
}

static void capture_or_not(test_random *random)
{
    captor.first = captor.last =
        test_random_below(random, 3) == 0 ? 0 : 1 + OWN + test_random_below(random, SHARERS);
}

/* `captured`: now and then one of those that share captures. */
static void use_streams(test_random random, bool captured)
{
    world *w = calloc(1, sizeof *w);
    assert_non_null(w);
    begin_beside_captor(&w->f, 0);
    for (uint32_t step = 0; step < STEPS; step++) {
        uint32_t i = (uint32_t)test_random_below(&random, LIVE);
        if (w->at[i] == 0)
            take_one(w, i, &random);
        else
            free_one(w, i);
        check_pairs(w);
        if (step % 40 == 0)
            hold(w, draw_stream(&random));
        if (captured && step % 40 == 20)
            capture_or_not(&random);
    }
    assert_true(w->passed > 60);
    captor.first = captor.last = 0;
    world_end(w);
    free(w);
}

static void beyond_streams_get_memory_behind_those_who_had_it(void **state)
{
    (void)state;
    use_streams(test_random_begin(__func__, 0x5eed0be1), false);
}

/* What one had that captures is nobody else's before they can be made to wait for it. */
static void beyond_streams_get_memory_while_one_captures(void **state)
{
    (void)state;
    use_streams(test_random_begin(__func__, 0x5eed0be2), true);
}

/* What was freed is nobody's before the GPU is past it, and a stream that has memory waits for
 * nobody. */
static void beyond_streams_have_what_the_gpu_is_past(void **state)
{
    (void)state;
    world w = {.pair_count = 0};
    fixture *f = &w.f;
    begin_beside_captor(f, 0);
    pleat_va early = take(f, 8 * MIB, 70), between = take(f, 512 * 1024, 70);
    assert_ok(pleat__host_stream_hold(&f->host, 70));
    assert_ok(pleat_free(f->runtime, early));
    assert_result(pleat_free(f->runtime, early), PLEAT_E_STATE);
    pleat_va other = take(f, 8 * MIB, 71), own = take(f, 8 * MIB, 70);
    assert_int_not_equal(other, early);
    assert_int_not_equal(own, early);
    pleat_event done = mark_on(&w, 71);
    assert_true(is_over(&w, done));
    assert_ok(pleat__host_stream_release(&f->host, 70));
    assert_int_equal(take(f, 8 * MIB, 72), early);
    forget(&w, done);
    assert_ok(pleat_free(f->runtime, between));
    end(f);
}

/* What is freed on a stream that captures a graph is nobody's before the capture is over; the
 * memory of others goes back meanwhile. */
static void beyond_streams_that_capture_keep_what_they_free(void **state)
{
    (void)state;
    fixture f;
    begin_beside_captor(&f, 0);
    pleat_va own = take(&f, 30 * MIB, 1), late = take(&f, 8 * MIB, 70),
             between = take(&f, 512 * 1024, 70);
    captor.first = captor.last = 70;
    assert_ok(pleat_free(f.runtime, late));
    assert_int_not_equal(take(&f, 8 * MIB, 71), late);
    assert_ok(pleat_free(f.runtime, own));
    uint64_t before = pleat_stats_of(f.runtime).physical_bytes;
    assert_ok(pleat_empty_cache(f.runtime));
    assert_true(pleat_stats_of(f.runtime).physical_bytes + 30 * MIB <= before);
    assert_int_not_equal(take(&f, 8 * MIB, 71), late);
    captor.first = captor.last = 0;
    assert_int_equal(take(&f, 8 * MIB, 71), late);
    assert_ok(pleat_free(f.runtime, between));
    end(&f);
}

/* What was freed before a capture goes back during it. */
static void beyond_streams_that_capture_keep_nothing_of_before(void **state)
{
    (void)state;
    fixture f;
    for (pleat_stream last = 70; last <= 71; last++) {
        begin_beside_captor(&f, 0);
        assert_ok(pleat_empty_cache(f.runtime));
        pleat_va own = take(&f, 30 * MIB, 1), a = take(&f, 20 * MIB, 71),
                 shared = take(&f, 20 * MIB, 70);
        assert_ok(pleat_free(f.runtime, own));
        assert_ok(pleat_free(f.runtime, shared));
        if (last == 71)
            assert_ok(pleat_free(f.runtime, a));
        captor.first = 70;
        captor.last = last;
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, (last == 71 ? 0 : 20) * MIB);
        captor.first = captor.last = 0;
        end(&f);
    }
}

/* What is freed during an announced one stays until it is over. */
static void beyond_streams_that_capture_may_be_announced(void **state)
{
    (void)state;
    fixture f;
    pleat_capture *graph;
    begin_beside_captor(&f, 0);
    assert_ok(pleat_empty_cache(f.runtime));
    pleat_va own = take(&f, 30 * MIB, 1), a = take(&f, 20 * MIB, 71), b = take(&f, 20 * MIB, 70);
    assert_ok(pleat_capture_begin(f.runtime, 70, 10 * MIB, &graph));
    assert_ok(pleat_free(f.runtime, own));
    assert_ok(pleat_free(f.runtime, a));
    assert_ok(pleat_free(f.runtime, b));
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 30 * MIB);
    assert_ok(pleat_capture_end(f.runtime, graph, NULL));
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 10 * MIB);
    assert_ok(pleat_capture_free(f.runtime, graph));
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    end(&f);
}

/* ---- what it costs ---- */

static void beyond_streams_wait_for_none_however_many_there_are(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 4096 * MIB, 0);
    pleat_va kept = take(&f, MIB, 1);
    for (pleat_stream s = 2; s < 2000; s++) {
        assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
        assert_true(f.runtime->gate.stream_count <= 64);
    }
    /* All at once live. */
    pleat_va at[500];
    for (pleat_stream s = 0; s < 500; s++)
        at[s] = take(&f, MIB, 2000 + s);
    for (pleat_stream s = 0; s < 500; s++)
        assert_ok(pleat_free(f.runtime, at[s]));
    assert_ok(pleat_free(f.runtime, take(&f, MIB, 3000)));
    assert_int_equal(pleat_stats_of(f.runtime).streams_ordered, 0);
    assert_ok(pleat_free(f.runtime, kept));
    assert_ok(pleat_empty_cache(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    assert_true(f.runtime->gate.stream_count <= 62);
    end(&f);
}

static void beyond_streams_that_nobody_uses_are_forgotten(void **state)
{
    (void)state;
    fixture f;
    uint64_t after = 0;
    const pleat_runtime_options options = {.size = sizeof options, .conf = "learn:off"};
    open_host(&f, 4096 * MIB, false);
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (pleat_stream s = 1; s < 6000; s++) {
        assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
        if (s == 1000)
            after = pleat__arena_bytes_of(f.runtime->arena).allocated;
    }
    assert_true(pleat__arena_bytes_of(f.runtime->arena).allocated <= after + 4096);
    end(&f);
}

/* Every event that fails in turn: the request is refused, and its memory is there for the next. */
static void beyond_streams_survive_failing_events(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_event_create, PLEAT__FAULT_event_record};
    uint64_t refused = 0;
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++)
        for (uint64_t nth = 1; nth < 60; nth += 1 + nth / 4) {
            fixture f;
            open_host(&f, 1024 * MIB, true);
            pleat_runtime_options options = {.size = sizeof options};
            assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
            for (pleat_stream s = 1; s < 70; s++)
                assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
            pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            pleat_va at[30];
            for (pleat_stream s = 60; s < 90; s++)
                refused += pleat_alloc(f.runtime, MIB, s, &at[s - 60]) != PLEAT_OK;
            for (pleat_stream s = 60; s < 90; s++)
                assert_ok(pleat_free(f.runtime, at[s - 60]));
            pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
            pleat_stats stats = pleat_stats_of(f.runtime);
            assert_int_equal(stats.live_bytes, 0);
            /* What was not served is not counted as served. */
            assert_int_equal(stats.planned + stats.lane + stats.stitched + stats.cached,
                             stats.requests);
            for (pleat_stream s = 60; s < 90; s++)
                assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
            end(&f);
        }
    assert_true(refused > 0);
}

/* One of those that share is refused the event that its free would wait for: nothing is known of it
 * when its place is another's. */
static void beyond_streams_leave_nothing_of_what_was_refused(void **state)
{
    (void)state;
    fixture f;
    pleat_va refused, parts[4];
    open_host(&f, 256 * MIB, true);
    assert_ok(pleat_runtime_create(f.vmm, NULL, &f.runtime));
    for (unsigned s = 0; s < 62; s++)
        assert_ok(pleat_free(f.runtime, take(&f, 512, 1000 + s)));
    pleat__fault_arm(
        &f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_create, .nth = 1, .forever = true});
    assert_result(pleat_alloc(f.runtime, 8 * MIB, 7, &refused), PLEAT_E_DRIVER);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
    uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
    for (int p = 0; p < 4; p++)
        parts[p] = take(&f, 2 * MIB, 7);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, physical);
    assert_ok(pleat__host_stream_hold(&f.host, 7));
    for (int p = 0; p < 4; p++)
        assert_ok(pleat_free(f.runtime, parts[p]));
    assert_int_equal(pleat_stats_of(f.runtime).waiting_bytes, 8 * MIB);
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
    assert_ok(pleat__host_stream_release(&f.host, 7));
    end(&f);
}

static void count_freed(void *context, pleat_va address)
{
    (void)address;
    ++*(int *)context;
}

/* Where no event can be recorded for a free its memory waits: the free is told of once it is due,
 * and its memory is held by a pause like what is free. */
static void beyond_streams_free_once(void **state)
{
    (void)state;
    fixture f;
    int freed = 0;
    pleat_block block;
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (pleat_stream s = 1; s < 70; s++)
        assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
    pleat_va at = take(&f, MIB, 70);
    assert_ok(pleat_tag("t"));
    (void)take(&f, MIB, 71);
    assert_ok(pleat_tag(NULL));
    pleat_on_freed(f.runtime, count_freed, &freed);
    pleat__fault_arm(
        &f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_record, .nth = 1, .forever = true});
    assert_ok(pleat_free(f.runtime, at));
    assert_true(pleat__fault_hits(&f.vmm) > 0);
    assert_result(pleat_free(f.runtime, at), PLEAT_E_STATE);
    assert_int_equal(freed, 0);
    assert_result(pleat_block_of(f.runtime, at, &block), PLEAT_E_NOT_FOUND);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
    pleat_pause_options tagged = {.size = sizeof tagged, .tag = "t"};
    assert_ok(pleat_pause(f.runtime, &tagged));
    assert_int_equal(freed, 1);
    uint64_t offset;
    assert_ok(pleat_host_physical(&f.host, take(&f, MIB, 72), &offset));
    assert_ok(pleat_resume(f.runtime, NULL));
    pleat_on_freed(f.runtime, NULL, NULL);
    end(&f);
}

/* Frees so much that was allocated on two streams by turns, and that no event can be recorded for.
 */
static void free_without_events(fixture *f, uint32_t count)
{
    pleat_va *at = malloc(count * sizeof *at);
    assert_non_null(at);
    for (uint32_t i = 0; i < count; i++)
        at[i] = take(f, 512, 70 + i % 2);
    pleat__fault_arm(
        &f->vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_record, .nth = 1, .forever = true});
    for (uint32_t i = 0; i < count; i++)
        assert_ok(pleat_free(f->runtime, at[i]));
    free(at);
}

/* A request asks few of those that wait, however many there are. */
static void beyond_streams_free_many_in_time(void **state)
{
    (void)state;
#ifdef PLEAT_AUDITS
    const uint32_t most = 10000; /* each audit looks at all that lives */
#else
    const uint32_t most = 100000;
#endif
    for (uint32_t count = 1000; count <= most; count *= 10) {
        fixture f;
        pleat_runtime_options options = {.size = sizeof options};
        open_host(&f, 1024 * MIB, true);
        assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
        for (pleat_stream s = 1; s < 70; s++)
            assert_ok(pleat_free(f.runtime, take(&f, MIB, s)));
        free_without_events(&f, count);
        uint64_t asked = pleat__fault_hits(&f.vmm);
        assert_ok(pleat_free(f.runtime, take(&f, 512, 1)));
        assert_in_range(pleat__fault_hits(&f.vmm) - asked, 1, 4);
        pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
        assert_ok(pleat_empty_cache(f.runtime));
        assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 0);
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
        end(&f);
    }
}

/* What is allocated when all goes may be in use: each such stream is waited for. */
static void beyond_streams_are_waited_for_at_the_end(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (pleat_stream s = 1; s <= 80; s++)
        (void)take(&f, MIB, s);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_record});
    pleat_runtime_destroy(f.runtime);
    assert_int_equal(pleat__fault_calls(&f.vmm), 80);
    pleat_vmm_destroy(&f.vmm);
    assert_nothing_held(&f.host);
    pleat_vmm_destroy(&f.host);
}

static void *release_later(void *of)
{
    const world *w = of;
    (void)nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    (void)!pleat__host_stream_release(&w->f.host, w->held);
    return NULL;
}

/* A stream stands still for a while: the event behind a kernel that runs there. */
static pleat_event run_kernel(world *w, pleat_stream stream, pthread_t *other)
{
    hold(w, stream);
    pleat_event kernel = mark_on(w, stream);
    assert_false(is_over(w, kernel));
    assert_int_equal(pthread_create(other, NULL, release_later, w), 0);
    return kernel;
}

static void expect_over(const world *w, pleat_event kernel, pthread_t other)
{
    assert_true(is_over(w, kernel));
    assert_int_equal(pthread_join(other, NULL), 0);
    forget(w, kernel);
}

/* What lives is paused behind the work of all streams that allocate, also where another one that
 * shares has had memory since. */
static void beyond_streams_are_waited_for_by_a_pause(void **state)
{
    (void)state;
    world w = {.pair_count = 0};
    fixture *f = &w.f;
    pthread_t other;
    begin(f, "pleat", 1024 * MIB, 0);
    for (pleat_stream s = 1; s < 70; s++)
        assert_ok(pleat_free(f->runtime, take(f, MIB, s)));
    pleat_va a = take(f, 4 * MIB, 70), b = take(f, 4 * MIB, 71);
    pleat_event kernel = run_kernel(&w, 70, &other);
    assert_ok(pleat_pause(f->runtime, NULL));
    expect_over(&w, kernel, other);
    assert_ok(pleat_resume(f->runtime, NULL));
    assert_ok(pleat_free(f->runtime, a));
    assert_ok(pleat_free(f->runtime, b));
    end(f);
}

/* Where memory is short they get what a stream has over that has memory of its own, once the GPU is
 * past it. */
static void beyond_streams_get_what_others_freed_once_it_is_over(void **state)
{
    (void)state;
    world w = {.pair_count = 0};
    fixture *f = &w.f;
    pthread_t other;
    begin(f, "pleat", 200 * MIB, 0);
    for (pleat_stream s = 1; s <= OWN; s++)
        assert_ok(pleat_free(f->runtime, take(f, 512, s)));
    pleat_va large = take(f, 60 * MIB, 1);
    pleat_event kernel = run_kernel(&w, 1, &other);
    assert_ok(pleat_free(f->runtime, large));
    pleat_va at = take(f, 40 * MIB, 70);
    expect_over(&w, kernel, other);
    assert_ok(pleat_free(f->runtime, at));
    end(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(beyond_streams_get_memory_behind_those_who_had_it),
        cmocka_unit_test(beyond_streams_get_memory_while_one_captures),
        cmocka_unit_test(beyond_streams_have_what_the_gpu_is_past),
        cmocka_unit_test(beyond_streams_that_capture_keep_what_they_free),
        cmocka_unit_test(beyond_streams_that_capture_keep_nothing_of_before),
        cmocka_unit_test(beyond_streams_that_capture_may_be_announced),
        cmocka_unit_test(beyond_streams_wait_for_none_however_many_there_are),
        cmocka_unit_test(beyond_streams_that_nobody_uses_are_forgotten),
        cmocka_unit_test(beyond_streams_are_waited_for_at_the_end),
        cmocka_unit_test(beyond_streams_are_waited_for_by_a_pause),
        cmocka_unit_test(beyond_streams_get_what_others_freed_once_it_is_over),
        cmocka_unit_test(beyond_streams_survive_failing_events),
        cmocka_unit_test(beyond_streams_leave_nothing_of_what_was_refused),
        cmocka_unit_test(beyond_streams_free_once),
        cmocka_unit_test(beyond_streams_free_many_in_time),
    };
    return cmocka_run_group_tests_name("beyond", tests, NULL, NULL);
}
