/*
 * spill.c: where a request would be refused, what is used least often goes to host memory, at the
 * same addresses, and comes back when there is room.
 */
#include "failing.h"
#include "fixture.h"

#include <runtime/face/runtime_internal.h>
#include <unistd.h>

/* States that stay, and an iteration's tensors. */
enum { STATES = 12 };

typedef struct training {
    job j;
    job_shape shape;
    job_tensor states[STATES];
} training;

static void begin_training(training *t, uint64_t seed, uint64_t budget, const char *conf)
{
    memset(t, 0, sizeof *t);
    t->shape = job_shape_make(seed, 2);
    job_start_with(&t->j, "pleat", NULL, budget, conf);
}

static void take_states(training *t)
{
    for (int s = 0; s < STATES; s++)
        t->states[s] = job_alloc(&t->j, 900000 + 1000u * (unsigned)s, 0);
}

static void iterate(training *t, int count)
{
    for (int i = 0; i < count; i++) {
        job_iterate(&t->j, &t->shape, JOB_PLAIN, 0);
        assert_ok(pleat_mark(t->j.runtime));
    }
}

static void end_training(training *t)
{
    for (int s = 0; s < STATES; s++)
        job_free(&t->j, &t->states[s]);
    finish(&t->j);
}

/* What the job takes when it is let. */
static uint64_t needs(uint64_t seed)
{
    training t;
    begin_training(&t, seed, 0, "");
    iterate(&t, 1);
    take_states(&t);
    iterate(&t, 3);
    uint64_t bytes = pleat_stats_of(t.j.runtime).peak_live_bytes;
    end_training(&t);
    return bytes;
}

static void spill_trains_a_job_that_is_too_large(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        training t;
        pleat__host_holdings held;
        uint64_t budget = needs(seed) * 10 / 11;
        begin_training(&t, seed, budget, "spill:host");
        iterate(&t, 1);
        take_states(&t);
        iterate(&t, 8);
        pleat_stats stats = pleat_stats_of(t.j.runtime);
        assert_int_equal(stats.out_of_memory, 0);
        assert_int_equal(t.j.errors, 0);
        assert_true(stats.host_bytes > 0);
        assert_true(stats.peak_physical_bytes <= budget);
        assert_ok(pleat__host_holdings_of(&t.j.vmm, &held));
        assert_int_equal(held.host_bytes, stats.host_bytes);
        assert_int_equal(held.memory_bytes, stats.physical_bytes);
        end_training(&t);
    }
}

static void spill_off_refuses_as_before(void **state)
{
    (void)state;
    fixture f;
    pleat_va a, b;
    begin(&f, "pleat", 64 * MIB, 16 * MIB);
    assert_ok(pleat_alloc(f.runtime, 12 * MIB, 0, &a));
    assert_result(pleat_alloc(f.runtime, 6 * MIB, 0, &b), PLEAT_E_BUDGET);
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 0);
    assert_ok(pleat_free(f.runtime, a));
    end(&f);
}

static void spill_comes_back_when_there_is_room(void **state)
{
    (void)state;
    training t;
    uint64_t budget = needs(1) * 10 / 11;
    begin_training(&t, 1, budget, "spill:host");
    iterate(&t, 1);
    take_states(&t);
    iterate(&t, 4);
    assert_true(pleat_stats_of(t.j.runtime).host_bytes > 0);
    assert_ok(pleat_set_budget(t.j.runtime, 2 * budget));
    iterate(&t, 3);
    assert_int_equal(pleat_stats_of(t.j.runtime).host_bytes, 0);
    end_training(&t);
}

static bool is_on_host(const fixture *f, pleat_va address)
{
    const pleat__space *space = f->runtime->space;
    uint64_t page = (address - pleat__space_base(space)) / pleat__space_page_bytes(space);
    return pleat__space_chunk_at(space, page, NULL)->on_host;
}

static void begin_spilling(fixture *f, uint64_t budget_bytes)
{
    open_host(f, 64 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = budget_bytes, .conf = "spill:host"};
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
}

/* What is of before the iteration goes, and not what it shares a chunk with what is of the
 * iteration; as much comes back as there is room for. */
static void spill_takes_what_is_used_least(void **state)
{
    (void)state;
    fixture f;
    pleat_va states[5], half, other, large;
    begin_spilling(&f, 16 * MIB);
    for (int i = 0; i < 5; i++)
        states[i] = take(&f, 2 * MIB, 0);
    half = take(&f, MIB, 0);
    assert_ok(pleat_mark(f.runtime));
    other = take(&f, MIB, 0);
    assert_int_equal(half / (2 * MIB), other / (2 * MIB));
    large = take(&f, 8 * MIB, 0);
    assert_false(is_on_host(&f, half));
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 8 * MIB);
    assert_ok(pleat_set_budget(f.runtime, 18 * MIB));
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 4 * MIB);
    for (int i = 0; i < 5; i++)
        assert_ok(pleat_free(f.runtime, states[i]));
    assert_ok(pleat_free(f.runtime, half));
    assert_ok(pleat_free(f.runtime, other));
    assert_ok(pleat_free(f.runtime, large));
    end(&f);
}

/* What lies in host memory stays there: the budget has no room for it when the rest comes back. */
static void spill_outlasts_a_pause(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = 32 * MIB, .conf = "spill:host"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    enum { TENSORS = 10 };
    pleat_va tensors[TENSORS];
    for (int t = 0; t < TENSORS; t++) {
        tensors[t] = take(&f, 6 * MIB, 0);
        memset((void *)(uintptr_t)tensors[t], t + 1, 6 * MIB);
    }
    uint64_t spilled = pleat_stats_of(f.runtime).host_bytes;
    assert_true(spilled > 0);
    assert_ok(pleat_pause(f.runtime, NULL));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, spilled);
    assert_ok(pleat_free(f.runtime, tensors[0]));
    assert_ok(pleat_resume(f.runtime, NULL));
    for (int t = 1; t < TENSORS; t++) {
        for (uint64_t at = 0; at < 6 * MIB; at += 4096)
            assert_int_equal(*(char *)(uintptr_t)(tensors[t] + at), t + 1);
        assert_ok(pleat_free(f.runtime, tensors[t]));
    }
    end(&f);
}

/* What another process sees stays where it is, though it is used least. */
static void spill_leaves_what_is_shared(void **state)
{
    (void)state;
    fixture f;
    int fd;
    uint64_t bytes;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = 32 * MIB, .conf = "spill:host,share:on"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    pleat_va others[8] = {take(&f, 6 * MIB, 0)}, shared = take(&f, 2 * MIB, 0);
    assert_ok(pleat_share_piece(f.runtime, shared, 0, &fd, &bytes));
    assert_int_equal(close(fd), 0);
    uint64_t page = pleat__space_page_bytes(f.runtime->space);
    uint64_t at = (shared - pleat__space_base(f.runtime->space)) / page;
    pleat__chunk *chunk = pleat__space_chunk_at(f.runtime->space, at, NULL);
    pleat_handle handle = chunk->handle;
    assert_ok(pleat_mark(f.runtime)); /* what came last before it goes first */
    for (int t = 1; t < 8; t++) {
        others[t] = take(&f, 6 * MIB, 0);
        assert_int_equal(chunk->handle, handle);
    }
    assert_true(pleat_stats_of(f.runtime).host_bytes > 0);
    for (int t = 0; t < 8; t++)
        assert_ok(pleat_free(f.runtime, others[t]));
    assert_ok(pleat_free(f.runtime, shared));
    end(&f);
}

/* Others have the device's memory, and nothing of the program's is there to go for a request. */
static void spill_of_nothing_refuses(void **state)
{
    (void)state;
    fixture f;
    pleat_va refused;
    open_host(&f, 64 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options, .conf = "spill:host"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    assert_ok(pleat__host_set_other(&f.host, 0, 60 * MIB, 0));
    assert_result(pleat_alloc(f.runtime, 16 * MIB, 0, &refused), PLEAT_E_OUT_OF_MEMORY);
    end(&f);
}

/* Memory of the host's cannot be exported: what was spilled comes back when it is shared, and what
 * is used least goes for it. */
static void spill_brings_back_what_is_shared(void **state)
{
    (void)state;
    fixture f;
    enum { TENSORS = 8 };
    pleat_va tensors[TENSORS], seen;
    int fd;
    uint64_t bytes;
    open_host(&f, 1024 * MIB, false);
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = 32 * MIB, .conf = "spill:host,share:on"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (int t = 0; t < TENSORS; t++) {
        tensors[t] = take(&f, 6 * MIB, 0);
        memset((void *)(uintptr_t)tensors[t], t + 1, 6 * MIB);
    }
    uint64_t page = pleat__space_page_bytes(f.runtime->space), spilled = 0;
    for (int t = 0; t < TENSORS; t++) {
        pleat_share share;
        uint64_t at = (tensors[t] - pleat__space_base(f.runtime->space)) / page;
        spilled += pleat__space_chunk_at(f.runtime->space, at, NULL)->on_host;
        assert_ok(pleat_share_of(f.runtime, tensors[t], &share));
        assert_ok(pleat_import_begin(f.runtime, share.bytes, &seen));
        for (uint32_t piece = 0; piece < share.pieces; piece++) {
            assert_ok(pleat_share_piece(f.runtime, tensors[t], piece, &fd, &bytes));
            assert_ok(pleat_import_piece(f.runtime, seen, fd, bytes));
            assert_int_equal(close(fd), 0);
        }
        for (uint64_t byte = 0; byte < 6 * MIB; byte += 4096)
            assert_int_equal(*(char *)(uintptr_t)(seen + share.offset + byte), t + 1);
        assert_ok(pleat_import_end(f.runtime, seen));
        assert_ok(pleat_free(f.runtime, tensors[t]));
    }
    assert_true(spilled > 0);
    end(&f);
}

static void spill_settings_are_checked(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 64 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options, .conf = "spill:disk"};
    assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_INVALID);
    options.conf = "spill:host";
    options.policy = "native";
    assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), PLEAT_E_UNSUPPORTED);
    assert_true(has("spill"));
    options.policy = NULL;
    options.conf = "spill:off";
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    end(&f);
}

static struct {
    const pleat_vmm_ops *host;
    pleat_runtime *runtime;
    pleat_va blocks[4]; /* freed while memory is released; 0: none */
    bool refuses;       /* the next map */
} meanwhile;

static void *free_blocks(void *unused)
{
    (void)unused;
    for (int b = 0; b < 4; b++)
        if (pleat_free(meanwhile.runtime, meanwhile.blocks[b]) != PLEAT_OK)
            abort();
    return NULL;
}

static pleat_result release_slowly(void *self, pleat_handle handle)
{
    pthread_t other;
    if (meanwhile.blocks[0] != 0) {
        assert_int_equal(pthread_create(&other, NULL, free_blocks, NULL), 0);
        assert_int_equal(pthread_join(other, NULL), 0);
        meanwhile.blocks[0] = 0;
    }
    return meanwhile.host->release(self, handle);
}

static pleat_result map_or_refuse(void *self, pleat_va at, uint64_t bytes, pleat_handle handle)
{
    bool refuses = meanwhile.refuses;
    meanwhile.refuses = false;
    return refuses ? PLEAT_E_DRIVER : meanwhile.host->map(self, at, bytes, handle);
}

/* What another thread frees while room is made for it goes to rest there, and does not come back.
 */
static void spill_brings_back_nothing_that_is_freed_meanwhile(void **state)
{
    (void)state;
    fixture f;
    pleat_va states[4], refused;
    open_host(&f, 256 * MIB, false);
    meanwhile.host = f.host.ops;
    pleat_vmm_ops slow = *f.host.ops;
    slow.release = release_slowly;
    slow.map = map_or_refuse;
    f.vmm.ops = &slow;
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = 12 * MIB, .conf = "spill:host"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (int s = 0; s < 4; s++)
        states[s] = take(&f, 2 * MIB, 0);
    assert_ok(pleat_mark(f.runtime));
    pleat_va large = take(&f, 12 * MIB, 0);
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 8 * MIB);
    assert_ok(pleat_set_budget(f.runtime, 64 * MIB));
    /* Memory that was made in vain is released when room is made. */
    meanwhile.refuses = true;
    assert_result(pleat_alloc(f.runtime, 4 * MIB, 0, &refused), PLEAT_E_DRIVER);
    meanwhile.runtime = f.runtime;
    memcpy(meanwhile.blocks, states, sizeof states);
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(meanwhile.blocks[0], 0);
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).live_bytes, 12 * MIB);
    assert_ok(pleat_free(f.runtime, large));
    end(&f);
}

static uint64_t most_on_host; /* of the jobs below */

static pleat_runtime *failing_job(pleat_vmm vmm, const void *with)
{
    const job_shape *shape = with;
    job j = {.vmm = vmm};
    pleat_runtime_options options = {
        .size = sizeof options, .waits = 1, .conf = "spill:host", .budget_bytes = 40 * JOB_PAGE};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (int i = 0; i < 3; i++) {
        job_try_iterate(&j, shape);
        uint64_t host = pleat_stats_of(j.runtime).host_bytes;
        most_on_host = host > most_on_host ? host : most_on_host;
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

static void *release_later(void *host)
{
    usleep(200000);
    assert_ok(pleat__host_stream_release(host, 7));
    return NULL;
}

/* A stream that uses memory of another one, and asks for none, or has given up what it had: there
 * are more streams than have memory of their own then. */
static void spill_waits_for_streams_that_use_what_goes(void **state)
{
    (void)state;
    for (int asks = 0; asks < 2; asks++) {
        fixture f;
        pthread_t other;
        pleat_event kernel;
        uint64_t before, after;
        begin_spilling(&f, 14 * MIB);
        pleat_va kept = take(&f, 8 * MIB, 0);
        for (pleat_stream s = 100; s < 161 && asks; s++)
            assert_ok(pleat_free(f.runtime, take(&f, 512, s)));
        assert_ok(pleat_mark(f.runtime));
        assert_ok(pleat_record_stream(f.runtime, kept, 7));
        if (asks)
            assert_ok(pleat_free(f.runtime, take(&f, 512, 7)));
        assert_ok(pleat__host_stream_hold(&f.host, 7));
        assert_ok(f.vmm.ops->event_create(f.vmm.self, 0, &kernel));
        assert_ok(f.vmm.ops->event_record(f.vmm.self, kernel, 7));
        assert_ok(pleat_host_physical(&f.host, kept, &before));
        assert_int_equal(pthread_create(&other, NULL, release_later, &f.host), 0);
        pleat_va more = take(&f, 8 * MIB, 0);
        assert_ok(f.vmm.ops->event_query(f.vmm.self, kernel));
        assert_ok(pleat_host_physical(&f.host, kept, &after));
        assert_int_not_equal(before, after);
        assert_int_equal(pthread_join(other, NULL), 0);
        assert_ok(f.vmm.ops->event_destroy(f.vmm.self, kernel));
        assert_ok(pleat_free(f.runtime, more));
        assert_ok(pleat_free(f.runtime, kept));
        end(&f);
    }
}

/* States of which each leaves a part of its chunk free go to the host and are freed there. */
static void spill_keeps_nothing_on_the_host_for_nobody(void **state)
{
    (void)state;
    fixture f;
    pleat_va states[16], beside[16];
    begin_spilling(&f, 32 * MIB);
    for (int i = 0; i < 16; i++) {
        states[i] = take(&f, 5 * MIB / 4, 0);
        beside[i] = take(&f, 3 * MIB / 4, 0);
    }
    for (int i = 0; i < 16; i++)
        assert_ok(pleat_free(f.runtime, beside[i]));
    pleat_va large = take(&f, 16 * MIB, 0);
    assert_true(pleat_stats_of(f.runtime).host_bytes >= 14 * MIB);
    assert_ok(pleat_free(f.runtime, large));
    for (int i = 0; i < 16; i++)
        assert_ok(pleat_free(f.runtime, states[i]));
    assert_ok(pleat_mark(f.runtime));
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 0);
    end(&f);
}

static void spill_leaves_nothing_idle_behind_a_trim(void **state)
{
    (void)state;
    fixture f;
    pleat_va small[12];
    uint64_t given;
    begin_spilling(&f, 32 * MIB);
    for (int i = 0; i < 12; i++)
        small[i] = take(&f, 2 * MIB, 0);
    assert_ok(pleat_mark(f.runtime));
    pleat_va large = take(&f, 16 * MIB, 0);
    assert_true(pleat_stats_of(f.runtime).host_bytes > 0);
    assert_ok(pleat_free(f.runtime, large));
    for (int i = 0; i < 12; i++)
        assert_ok(pleat_free(f.runtime, small[i]));
    uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
    assert_ok(pleat_trim(f.runtime, 0, &given));
    assert_int_equal(given, physical);
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 0);
    end(&f);
}

/* Where the device is the limit, and not a budget within it. */
static void spill_goes_beyond_the_device(void **state)
{
    (void)state;
    enum { BLOCKS = 16 };
    fixture f;
    pleat_va blocks[BLOCKS];
    open_host(&f, 64 * MIB, false);
    pleat_runtime_options options = {.size = sizeof options, .conf = "spill:host"};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    for (int b = 0; b < BLOCKS; b++) {
        assert_ok(pleat_mark(f.runtime));
        blocks[b] = take(&f, 8 * MIB, 0);
        memset((void *)(uintptr_t)blocks[b], b + 1, 8 * MIB);
    }
    assert_int_equal(pleat_stats_of(f.runtime).host_bytes, 64 * MIB);
    for (int b = 0; b < BLOCKS; b++) {
        for (uint64_t i = 0; i < 8 * MIB; i += 4096)
            assert_int_equal(((const char *)(uintptr_t)blocks[b])[i], b + 1);
        assert_ok(pleat_free(f.runtime, blocks[b]));
    }
    end(&f);
}

static void spill_survives_each_verb_that_fails(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(4, 1);
    fail_all(2, failing_job, &shape);
    assert_true(most_on_host > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spill_trains_a_job_that_is_too_large),
        cmocka_unit_test(spill_off_refuses_as_before),
        cmocka_unit_test(spill_comes_back_when_there_is_room),
        cmocka_unit_test(spill_takes_what_is_used_least),
        cmocka_unit_test(spill_outlasts_a_pause),
        cmocka_unit_test(spill_leaves_what_is_shared),
        cmocka_unit_test(spill_brings_back_what_is_shared),
        cmocka_unit_test(spill_of_nothing_refuses),
        cmocka_unit_test(spill_settings_are_checked),
        cmocka_unit_test(spill_brings_back_nothing_that_is_freed_meanwhile),
        cmocka_unit_test(spill_waits_for_streams_that_use_what_goes),
        cmocka_unit_test(spill_keeps_nothing_on_the_host_for_nobody),
        cmocka_unit_test(spill_leaves_nothing_idle_behind_a_trim),
        cmocka_unit_test(spill_goes_beyond_the_device),
        cmocka_unit_test(spill_survives_each_verb_that_fails),
    };
    return cmocka_run_group_tests_name("spill", tests, NULL, NULL);
}
