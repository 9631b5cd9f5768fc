/*
 * capture.c: memory of captured graphs: nothing else ever lies in it, nothing is asked of the
 * driver for it, and nothing is recorded on a stream that captures.
 */
#include "held.h"

#include <internal/arena.h>
#include <internal/error.h>
#include <pleat/runtime.h>
#include <string.h>
#include <unistd.h>
#include <vmm/host/host.h>

#define MIB (1ull << 20)

static const char *const policies[] = {"native", "expandable", "gmlake", "pleat"};
#define POLICIES (sizeof policies / sizeof *policies)

/* The host backend, with an eye on the streams that capture. */
static struct {
    pleat_vmm host;
    pleat_vmm_ops ops;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_stream capturing[2]; /* 0: none */
    uint64_t recorded;         /* events on those */
    pleat_stream unannounced;  /* captures, and the runtime was not told; 0: none */
} b;

static bool captures(pleat_stream stream)
{
    return stream != 0 && (stream == b.capturing[0] || stream == b.capturing[1]);
}

/* What backends say of a stream that captures. */
static pleat_result refuse(const char *verb)
{
    return pleat__fail(PLEAT_E_STATE, "%s: the stream captures", verb);
}

static pleat_result event_record(void *self, pleat_event event, pleat_stream stream)
{
    b.recorded += captures(stream);
    if (stream != 0 && stream == b.unannounced)
        return refuse("event_record");
    return b.host.ops->event_record(self, event, stream);
}

static pleat_result stream_wait(void *self, pleat_stream stream, pleat_event event)
{
    b.recorded += captures(stream);
    if (stream != 0 && stream == b.unannounced)
        return refuse("stream_wait");
    return b.host.ops->stream_wait(self, stream, event);
}

static void begin_with(const char *policy, uint64_t budget, const char *conf)
{
    memset(&b, 0, sizeof b);
    pleat_host_options host = {.size = sizeof host, .device_bytes = 1024 * MIB};
    assert_ok(pleat_vmm_host(&host, &b.host));
    b.ops = *b.host.ops;
    b.ops.event_record = event_record;
    b.ops.stream_wait = stream_wait;
    b.vmm = (pleat_vmm){&b.ops, b.host.self};
    pleat_runtime_options options = {
        .size = sizeof options, .policy = policy, .budget_bytes = budget, .conf = conf};
    assert_ok(pleat_runtime_create(b.vmm, &options, &b.runtime));
}

static void begin(const char *policy, uint64_t budget)
{
    begin_with(policy, budget, NULL);
}

static void end(void)
{
    assert_int_equal(b.recorded, 0);
    pleat_runtime_destroy(b.runtime);
    assert_nothing_held(&b.host);
    pleat_vmm_destroy(&b.host);
}

static pleat_va take(uint64_t bytes, pleat_stream stream)
{
    pleat_va address;
    assert_ok(pleat_alloc(b.runtime, bytes, stream, &address));
    return address;
}

static uint64_t verbs(void)
{
    return pleat_stats_of(b.runtime).driver_calls;
}

static pleat_capture *capture(pleat_stream stream, uint64_t bytes)
{
    pleat_capture *made;
    assert_ok(pleat_capture_begin(b.runtime, stream, bytes, &made));
    b.capturing[b.capturing[0] != 0] = stream;
    return made;
}

static void finish(pleat_capture *done, uint64_t *used)
{
    b.capturing[0] = b.capturing[1] = 0;
    assert_ok(pleat_capture_end(b.runtime, done, used));
}

static void capture_keeps_its_memory_to_itself(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 0);
        pleat_va before = take(20 * MIB, 5);
        pleat_capture *graph = capture(5, 64 * MIB);
        uint64_t calls = verbs(), used;
        pleat_va a = take(30 * MIB + 100, 5), c = take(1000, 5);
        pleat_block block;
        assert_ok(pleat_block_of(b.runtime, a + 17 * MIB, &block));
        assert_int_equal(block.address, a);
        assert_int_equal(block.requested, 30 * MIB + 100);
        assert_int_equal(block.stream, 5);
        /* Freed or not, no other request can lie beside it. */
        uint64_t free_before = 1, free_after = 1;
        assert_ok(pleat_adjacent_free(b.runtime, c, &free_before, &free_after));
        assert_int_equal(free_before + free_after, 0);
        assert_result(pleat_adjacent_free(b.runtime, a + 40 * MIB, &free_before, &free_after),
                      PLEAT_E_NOT_FOUND);
        assert_ok(pleat_free(b.runtime, a));
        assert_result(pleat_free(b.runtime, a), PLEAT_E_NOT_FOUND);
        /* In the stream's order, as a replay would have it. */
        assert_int_equal(take(20 * MIB, 5), a);
        pleat_va d = take(10 * MIB, 5);
        assert_int_equal(verbs(), calls);
        assert_int_equal(pleat_stats_of(b.runtime).live_bytes, 84 * MIB);
        pleat_va other = take(40 * MIB, 6); /* others allocate meanwhile */
        finish(graph, &used);
        assert_true(used >= 30 * MIB + 1000 && used < 42 * MIB);
        /* What the graph wrote to is free for the program, and yet nobody gets it. */
        assert_ok(pleat_free(b.runtime, a));
        assert_ok(pleat_free(b.runtime, d));
        pleat_va after = take(40 * MIB, 5);
        assert_true(after + 40 * MIB <= a || a + 30 * MIB <= after);
        assert_ok(pleat_empty_cache(b.runtime));
        memset((void *)(uintptr_t)a, 1, 30 * MIB); /* a replay */
        assert_ok(pleat_capture_free(b.runtime, graph));
        assert_int_equal(pleat_stats_of(b.runtime).live_bytes, 164 * MIB);
        assert_ok(pleat_free(b.runtime, c)); /* the last that lived in it */
        assert_int_equal(pleat_stats_of(b.runtime).live_bytes, 100 * MIB);
        assert_ok(pleat_free(b.runtime, before));
        assert_ok(pleat_free(b.runtime, other));
        assert_ok(pleat_free(b.runtime, after));
        assert_ok(pleat_empty_cache(b.runtime));
        assert_int_equal(pleat_stats_of(b.runtime).physical_bytes, 0);
        end();
    }
}

static void capture_finds_the_piece_that_holds_an_address(void **state)
{
    (void)state;
    enum { PIECES = 200 };
    pleat_va pieces[PIECES];
    pleat_block block;
    begin("pleat", 0);
    pleat_capture *graph = capture(5, 64 * MIB);
    for (uint64_t i = 0; i < PIECES; i++)
        pieces[i] = take(700 + i * 1024, 5);
    for (uint64_t i = 0; i < PIECES; i += 2)
        assert_ok(pleat_free(b.runtime, pieces[i]));
    for (uint64_t i = 0; i < PIECES; i++) {
        pleat_va last = pieces[i] + 700 + i * 1024 - 1;
        if (i % 2 == 0) {
            assert_result(pleat_block_of(b.runtime, last, &block), PLEAT_E_NOT_FOUND);
            continue;
        }
        assert_ok(pleat_block_of(b.runtime, last, &block));
        assert_int_equal(block.address, pieces[i]);
        assert_int_equal(block.requested, 700 + i * 1024);
    }
    finish(graph, NULL);
    for (uint64_t i = 1; i < PIECES; i += 2)
        assert_ok(pleat_free(b.runtime, pieces[i]));
    assert_result(pleat_block_of(b.runtime, pieces[1], &block), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_capture_free(b.runtime, graph));
    end();
}

static void capture_has_an_end_and_a_budget(void **state)
{
    (void)state;
    begin("pleat", 100 * MIB);
    pleat_capture *graph, *none;
    assert_result(pleat_capture_begin(b.runtime, 5, 0, &none), PLEAT_E_INVALID);
    /* As an allocation of as many. */
    for (uint64_t bytes = 2048 * MIB; bytes != 0; bytes *= 2)
        assert_result(pleat_capture_begin(b.runtime, 5, bytes, &none), PLEAT_E_OUT_OF_MEMORY);
    assert_result(pleat_capture_begin(b.runtime, 5, UINT64_MAX, &none), PLEAT_E_OUT_OF_MEMORY);
    assert_result(pleat_capture_begin(b.runtime, 5, 101 * MIB, &none), PLEAT_E_BUDGET);
    graph = capture(5, 60 * MIB);
    uint64_t before = verbs();
    assert_result(pleat_capture_begin(b.runtime, 5, 30 * MIB, &none), PLEAT_E_STATE);
    assert_int_equal(verbs(), before);
    assert_result(pleat_capture_begin(b.runtime, 6, 60 * MIB, &none), PLEAT_E_BUDGET);
    pleat_va a = take(40 * MIB, 5), refused;
    uint64_t calls = verbs(), refusals = pleat_stats_of(b.runtime).out_of_memory;
    assert_result(pleat_alloc(b.runtime, 30 * MIB, 5, &refused), PLEAT_E_OUT_OF_MEMORY);
    assert_non_null(strstr(pleat_last_error()->text, "begin it with more"));
    assert_result(pleat_alloc(b.runtime, UINT64_MAX - 9, 5, &refused), PLEAT_E_OUT_OF_MEMORY);
    assert_int_equal(pleat_stats_of(b.runtime).out_of_memory, refusals + 2);
    assert_int_equal(verbs(), calls);
    assert_result(pleat_capture_free(b.runtime, graph), PLEAT_E_STATE);
    finish(graph, NULL);
    assert_result(pleat_capture_end(b.runtime, graph, NULL), PLEAT_E_STATE);
    assert_result(pleat_capture_add(b.runtime, graph, 7), PLEAT_E_STATE);
    assert_ok(pleat_free(b.runtime, a));
    assert_ok(pleat_capture_free(b.runtime, graph));
    assert_ok(pleat_capture_free(b.runtime, NULL));
    assert_ok(pleat_free(b.runtime, take(90 * MIB, 5)));
    /* One that is left when the runtime ends. */
    graph = capture(5, 20 * MIB);
    take(MIB, 5);
    end();
}

/* From stream to stream nothing is reused: a replay has no order between them but the program's. */
/* What was freed at the end of what was used and what was not used yet are one. */
static void capture_goes_on_where_the_last_was_freed(void **state)
{
    (void)state;
    pleat_capture *capture;
    pleat_va first, second, again;
    uint64_t used;
    begin("pleat", 0);
    assert_ok(pleat_capture_begin(b.runtime, 5, 10 * MIB, &capture));
    assert_ok(pleat_capture_add(b.runtime, capture, 6));
    assert_ok(pleat_alloc(b.runtime, MIB, 5, &first));
    assert_ok(pleat_alloc(b.runtime, 5 * MIB, 5, &second));
    assert_ok(pleat_free(b.runtime, second));
    /* Another stream's is not. */
    assert_result(pleat_alloc(b.runtime, 5 * MIB, 6, &again), PLEAT_E_OUT_OF_MEMORY);
    assert_ok(pleat_alloc(b.runtime, 9 * MIB, 5, &again));
    assert_int_equal(again, second);
    assert_result(pleat_alloc(b.runtime, 1, 5, &second), PLEAT_E_OUT_OF_MEMORY);
    assert_ok(pleat_free(b.runtime, first));
    assert_ok(pleat_free(b.runtime, again));
    assert_ok(pleat_alloc(b.runtime, 10 * MIB, 5, &again));
    assert_int_equal(again, first);
    assert_ok(pleat_free(b.runtime, again));
    finish(capture, &used);
    assert_int_equal(used, 10 * MIB);
    end();
}

static void capture_streams_do_not_share(void **state)
{
    (void)state;
    begin("pleat", 0);
    pleat_capture *graph = capture(5, 64 * MIB);
    assert_ok(pleat_capture_add(b.runtime, graph, 6));
    b.capturing[1] = 6;
    assert_result(pleat_capture_add(b.runtime, graph, 6), PLEAT_E_STATE);
    pleat_va a = take(8 * MIB, 5);
    assert_ok(pleat_free(b.runtime, a));
    pleat_va c = take(8 * MIB, 6);
    assert_int_not_equal(a, c);
    assert_int_equal(take(8 * MIB, 5), a);
    /* Nor what the other stream was said to use. */
    assert_ok(pleat_record_stream(b.runtime, a, 5));
    assert_ok(pleat_record_stream(b.runtime, a + MIB, 6));
    assert_ok(pleat_free(b.runtime, a));
    assert_int_not_equal(take(8 * MIB, 5), a);
    finish(graph, NULL);
    end();
}

/* Memory goes round, is given back and refused while a stream captures; a tensor that it uses is
 * freed. Nothing is recorded on it. */
static void capture_leaves_its_streams_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 400 * MIB);
        pleat_va own = take(50 * MIB, 5), used = take(30 * MIB, 7), none;
        assert_ok(pleat_free(b.runtime, own)); /* cached, of the stream that will capture */
        assert_ok(pleat_record_stream(b.runtime, used, 5));
        pleat_capture *graph = capture(5, 64 * MIB);
        assert_ok(pleat_free(b.runtime, used));
        /* What stream 5 has left over goes to others, behind the point it had reached. */
        pleat_va a[3];
        for (unsigned n = 0; n < 3; n++)
            a[n] = take((60 + n) * MIB, 7 + n);
        assert_ok(pleat_free(b.runtime, a[1]));
        assert_result(pleat_alloc(b.runtime, 320 * MIB, 8, &none), PLEAT_E_BUDGET);
        assert_int_equal(b.recorded, 0);
        assert_ok(pleat_empty_cache(b.runtime));
        /* Still waiting for the stream, whose point cannot be marked yet. */
        pleat_stats stats = pleat_stats_of(b.runtime);
        pleat_block block;
        assert_int_equal(stats.live_bytes, (60 + 62 + 64) * MIB);
        assert_int_equal(stats.waiting_bytes, 30 * MIB);
        assert_result(pleat_block_of(b.runtime, used, &block), PLEAT_E_NOT_FOUND);
        finish(graph, NULL);
        assert_ok(pleat_empty_cache(b.runtime));
        stats = pleat_stats_of(b.runtime);
        assert_int_equal(stats.live_bytes, (60 + 62 + 64) * MIB);
        assert_int_equal(stats.waiting_bytes, 0);
        assert_ok(pleat_capture_free(b.runtime, graph));
        assert_ok(pleat_free(b.runtime, a[0]));
        assert_ok(pleat_free(b.runtime, a[2]));
        end();
    }
}

/* The backend says that a stream captures, the runtime was not told, as under PyTorch. What waits
 * for it is freed when the capture is over, and what it has left over is not taken: who needs it is
 * refused for want of memory, and nothing else. */
static void capture_that_was_not_announced(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 120 * MIB);
        pleat_va own = take(60 * MIB, 5), used = take(20 * MIB, 7), other, none;
        assert_ok(pleat_free(b.runtime, own)); /* cached, of the stream that will capture */
        assert_ok(pleat_record_stream(b.runtime, used, 5));
        b.unannounced = 5;
        assert_ok(pleat_free(b.runtime, used));
        other = take(30 * MIB, 7);
        assert_result(pleat_alloc(b.runtime, 50 * MIB, 7, &none), PLEAT_E_BUDGET);
        assert_int_equal(pleat_stats_of(b.runtime).waiting_bytes, 20 * MIB);
        b.unannounced = 0;
        pleat_va taken = take(50 * MIB, 7);
        assert_ok(pleat_empty_cache(b.runtime));
        assert_int_equal(pleat_stats_of(b.runtime).waiting_bytes, 0);
        assert_ok(pleat_free(b.runtime, taken));
        assert_ok(pleat_free(b.runtime, other));
        end();
    }
}

typedef struct stretch {
    pleat_va first, middle, last, small;
    uint64_t bytes; /* of memory that it took */
} stretch;

static uint64_t physical_bytes(void)
{
    return pleat_stats_of(b.runtime).physical_bytes;
}

/* What a stream has at once. */
static stretch take_stretch(pleat_stream stream)
{
    uint64_t before = physical_bytes();
    stretch taken = {.first = take(20 * MIB, stream),
                     .middle = take(20 * MIB, stream),
                     .last = take(20 * MIB, stream),
                     .small = take(1000, stream)};
    taken.bytes = physical_bytes() - before;
    return taken;
}

/* It is left over, with a view where the policy makes them, else with more memory. */
static void leave_over(stretch *left, pleat_stream stream)
{
    uint64_t before = physical_bytes();
    assert_ok(pleat_free(b.runtime, left->first));
    assert_ok(pleat_free(b.runtime, left->last));
    assert_ok(pleat_free(b.runtime, take(40 * MIB, stream)));
    assert_ok(pleat_free(b.runtime, left->middle));
    assert_ok(pleat_free(b.runtime, left->small));
    left->bytes += physical_bytes() - before;
}

/* What other streams have left over goes back meanwhile: what the graph allocates elsewhere may
 * want it. */
static void capture_that_was_not_announced_keeps_nothing_of_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 0);
        stretch before = take_stretch(4), own = take_stretch(5), after = take_stretch(7);
        leave_over(&before, 4);
        leave_over(&own, 5);
        leave_over(&after, 7);
        assert_true(before.bytes != 0 && own.bytes != 0 && after.bytes != 0);
        b.unannounced = 5;
        assert_ok(pleat_empty_cache(b.runtime));
        assert_int_equal(physical_bytes(), own.bytes);
        b.unannounced = 0;
        assert_ok(pleat_empty_cache(b.runtime));
        assert_int_equal(physical_bytes(), 0);
        end();
    }
}

/* Nor do others go without: what one has left over is there for the next. */
static void capture_that_was_not_announced_refuses_no_others(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        begin(policies[i], 120 * MIB);
        pleat_va own = take(60 * MIB, 5), other = take(60 * MIB, 7);
        assert_ok(pleat_free(b.runtime, own));
        assert_ok(pleat_free(b.runtime, other));
        b.unannounced = 5;
        pleat_va at = take(60 * MIB, 8);
        b.unannounced = 0;
        assert_ok(pleat_free(b.runtime, at));
        end();
    }
}

/* The setting `collect` likewise. */
static void capture_that_was_not_announced_lets_others_be_collected(void **state)
{
    (void)state;
    const pleat_runtime_options options = {.size = sizeof options,
                                           .policy = "native",
                                           .budget_bytes = 200 * MIB,
                                           .conf = "collect:40"};
    begin("native", 0);
    pleat_runtime_destroy(b.runtime);
    assert_ok(pleat_runtime_create(b.vmm, &options, &b.runtime));
    pleat_va own = take(60 * MIB, 5), other = take(40 * MIB, 7);
    assert_ok(pleat_free(b.runtime, own));
    assert_ok(pleat_free(b.runtime, other));
    b.unannounced = 5;
    pleat_va at = take(50 * MIB, 8);
    assert_int_equal(pleat_stats_of(b.runtime).physical_bytes, 110 * MIB);
    b.unannounced = 0;
    assert_ok(pleat_free(b.runtime, at));
    end();
}

/* Streams beyond those that are told apart wait for each other; not for one that captures, nor it
 * for them. */
static void capture_leaves_streams_that_share_alone(void **state)
{
    (void)state;
    const pleat_stream last = 80;
    begin("pleat", 0);
    for (pleat_stream stream = 1; stream <= last; stream++)
        assert_ok(pleat_free(b.runtime, take(512, stream)));
    pleat_va a[5];
    for (int i = 0; i < 5; i++)
        a[i] = take(10 * MIB, last);
    assert_ok(pleat_free(b.runtime, a[1]));
    assert_ok(pleat_free(b.runtime, a[3]));
    pleat_va stitched = take(20 * MIB, last);
    assert_int_equal(pleat_stats_of(b.runtime).stitched, 1);
    assert_ok(pleat_free(b.runtime, stitched));
    pleat_capture *graph = capture(last, 4 * MIB);
    assert_ok(pleat_empty_cache(b.runtime)); /* the view waits for its stream */
    assert_int_equal(b.recorded, 0);
    finish(graph, NULL);
    assert_ok(pleat_empty_cache(b.runtime));
    assert_ok(pleat_capture_free(b.runtime, graph));
    assert_int_equal(pleat_stats_of(b.runtime).live_bytes, 30 * MIB);
    end();
}

/* Another process is told where in the chunk the tensor lies, and the chunk stays the capture's. */
static void capture_shares_a_piece_of_its_memory(void **state)
{
    (void)state;
    int fd;
    uint64_t bytes;
    pleat_share first, second;
    begin_with("pleat", 0, "share:on");
    pleat_capture *graph = capture(5, 8 * MIB);
    pleat_va a = take(MIB, 5), half = take(MIB / 2, 5);
    finish(graph, NULL);
    assert_ok(pleat_share_of(b.runtime, a, &first));
    assert_ok(pleat_share_of(b.runtime, half + 100, &second));
    assert_int_equal(second.offset, first.offset + MIB);
    assert_int_equal(second.pieces, 1);
    assert_int_equal(second.bytes, first.bytes);
    assert_ok(pleat_share_piece(b.runtime, half, 0, &fd, &bytes));
    assert_int_equal(bytes, second.bytes);
    assert_int_equal(close(fd), 0);
    assert_result(pleat_share_piece(b.runtime, half, 1, &fd, &bytes), PLEAT_E_INVALID);
    assert_ok(pleat_pause(b.runtime, NULL));
    assert_int_not_equal(pleat_stats_of(b.runtime).physical_bytes, 0);
    assert_ok(pleat_resume(b.runtime, NULL));
    assert_ok(pleat_free(b.runtime, half));
    assert_result(pleat_share_of(b.runtime, half, &second), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_free(b.runtime, a));
    assert_ok(pleat_capture_free(b.runtime, graph));
    end();
}

static void capture_that_gets_no_host_memory_changes_nothing(void **state)
{
    (void)state;
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed > 0; nth++) {
        pleat_capture *graph;
        begin("pleat", 0);
        pleat__arena_fail(nth, false);
        pleat_result result = pleat_capture_begin(b.runtime, 5, 4 * MIB, &graph);
        failed = pleat__arena_failed();
        pleat__arena_fail(0, false);
        if (result == PLEAT_OK) {
            finish(graph, NULL);
            assert_ok(pleat_capture_free(b.runtime, graph));
        } else {
            assert_result(result, PLEAT_E_NO_MEMORY);
        }
        end();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(capture_keeps_its_memory_to_itself),
        cmocka_unit_test(capture_finds_the_piece_that_holds_an_address),
        cmocka_unit_test(capture_has_an_end_and_a_budget),
        cmocka_unit_test(capture_goes_on_where_the_last_was_freed),
        cmocka_unit_test(capture_streams_do_not_share),
        cmocka_unit_test(capture_leaves_its_streams_alone),
        cmocka_unit_test(capture_that_was_not_announced),
        cmocka_unit_test(capture_that_was_not_announced_keeps_nothing_of_others),
        cmocka_unit_test(capture_that_was_not_announced_refuses_no_others),
        cmocka_unit_test(capture_that_was_not_announced_lets_others_be_collected),
        cmocka_unit_test(capture_leaves_streams_that_share_alone),
        cmocka_unit_test(capture_shares_a_piece_of_its_memory),
        cmocka_unit_test(capture_that_gets_no_host_memory_changes_nothing),
    };
    return cmocka_run_group_tests_name("capture", tests, NULL, NULL);
}
