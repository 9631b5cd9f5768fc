/*
 * pause.c: memory of live tensors goes and comes back at the same addresses: what was copied with
 * what it held, what was discarded undefined; by tags; whatever is freed and allocated meanwhile,
 * and whatever fails.
 */
#include "failing.h"
#include "fixture.h"

#include <unistd.h>

static uint64_t physical(const job *j)
{
    return pleat_stats_of(j->runtime).physical_bytes;
}

static pleat_result pause_with(pleat_runtime *runtime, uint32_t offload, const char *tag)
{
    pleat_pause_options options = {.size = sizeof options, .offload = offload, .tag = tag};
    return pleat_pause(runtime, &options);
}

/* R19. */
static void pause_gives_all_back_and_brings_it_again(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        job j;
        job_shape shape = job_shape_make(seed, 2);
        pleat__host_holdings held;
        job_start(&j, "pleat", NULL, 0);
        job_tensor weights = job_alloc(&j, 3000000, 0);
        job_iterate_marked(&j, &shape, 6);
        for (int turn = 0; turn < 4; turn++) {
            assert_ok(pleat_pause(j.runtime, NULL));
            assert_int_equal(physical(&j), 0);
            assert_ok(pleat__host_holdings_of(&j.vmm, &held));
            assert_int_equal(held.memory_bytes, 0);
            assert_result(pleat_pause(j.runtime, NULL), PLEAT_E_STATE);
            assert_ok(pleat_resume(j.runtime, NULL));
            assert_result(pleat_resume(j.runtime, NULL), PLEAT_E_STATE);
            assert_true(physical(&j) >= pleat_stats_of(j.runtime).live_bytes);
            job_iterate_marked(&j, &shape,
                               2); /* each tensor's pattern is verified when it is freed */
            assert_int_equal(j.errors, 0);
        }
        pleat_stats before = pleat_stats_of(j.runtime);
        job_iterate_marked(&j, &shape, 2);
        pleat_stats after = pleat_stats_of(j.runtime);
        assert_int_equal(after.planned - before.planned + after.lane - before.lane,
                         after.requests - before.requests);
        /* Pinned memory is kept until the caches are emptied. */
        assert_ok(pleat__host_holdings_of(&j.vmm, &held));
        assert_true(held.blocks > 0);
        assert_ok(pleat_empty_cache(j.runtime));
        assert_ok(pleat__host_holdings_of(&j.vmm, &held));
        assert_int_equal(held.blocks, 0);
        job_free(&j, &weights);
        finish(&j);
    }
}

static void pause_with_discard_copies_nothing(void **state)
{
    (void)state;
    job j;
    pleat__host_holdings held;
    job_start(&j, "pleat", NULL, 0);
    job_tensor weights = job_alloc(&j, 5000000, 0);
    assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_DISCARD, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat__host_holdings_of(&j.vmm, &held));
    assert_int_equal(held.blocks, 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_fill(&weights); /* it is there again, and may be written */
    job_free(&j, &weights);
    finish(&j);
}

static void pause_of_a_tag_leaves_the_others_usable(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor plain[3], weights[3], cache[3];
    for (int t = 0; t < 3; t++) {
        plain[t] = job_alloc(&j, 5 * JOB_PAGE + 100, 0);
        assert_ok(pleat_tag("weights"));
        weights[t] = job_alloc(&j, 9 * JOB_PAGE, 0);
        assert_ok(pleat_tag("kv_cache"));
        cache[t] = job_alloc(&j, 20 * JOB_PAGE, 0);
        assert_ok(pleat_tag(NULL));
    }
    uint64_t whole = physical(&j);
    assert_result(pause_with(j.runtime, PLEAT_OFFLOAD_HOST, "other"), PLEAT_E_NOT_FOUND);
    assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_DISCARD, "kv_cache"));
    /* Chunks at a tensor's ends may be another one's too. */
    assert_true(physical(&j) <= whole - 3 * 18 * JOB_PAGE);
    assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_HOST, "weights"));
    assert_true(physical(&j) <= whole - 3 * (18 + 7) * JOB_PAGE);
    /* The others are there, and what is allocated meanwhile lies elsewhere. */
    job_tensor more = job_alloc(&j, 30 * JOB_PAGE, 0);
    for (int t = 0; t < 3; t++)
        job_free(&j, &plain[t]);
    job_tensor again = job_alloc(&j, 8 * JOB_PAGE, 0);
    assert_ok(pleat_resume(j.runtime, "weights"));
    assert_ok(pleat_resume(j.runtime, "kv_cache"));
    for (int t = 0; t < 3; t++) {
        job_free(&j, &weights[t]);
        job_fill(&cache[t]);
        job_free(&j, &cache[t]);
    }
    job_free(&j, &more);
    job_free(&j, &again);
    finish(&j);
}

/* What shares a chunk with the program's other tensors stays awake when its tag is paused, and goes
 * with them. */
static void pause_that_discards_keeps_what_was_paused_to_be_kept(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor plain = job_alloc(&j, 5 * JOB_PAGE + 100, 0);
    assert_ok(pleat_tag("weights"));
    job_tensor weights = job_alloc(&j, 9 * JOB_PAGE, 0);
    assert_ok(pleat_tag(NULL));
    assert_true(plain.address / JOB_PAGE + 5 == weights.address / JOB_PAGE);
    assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_HOST, "weights"));
    assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_DISCARD, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_fill(&plain);
    job_free(&j, &plain);
    job_free(&j, &weights);
    finish(&j);
}

/* Another process sees the memory of what is shared with it, which stays while that lives. */
static void pause_leaves_what_is_shared(void **state)
{
    (void)state;
    job j;
    int fd;
    uint64_t bytes;
    job_start_with(&j, "pleat", NULL, 0, "share:on");
    job_tensor shared = job_alloc(&j, 3 * JOB_PAGE, 0), own = job_alloc(&j, 5 * JOB_PAGE, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_ok(pleat_share_piece(j.runtime, shared.address, i, &fd, &bytes));
        assert_int_equal(bytes, JOB_PAGE);
        assert_int_equal(close(fd), 0);
    }
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_int_equal(physical(&j), 3 * JOB_PAGE);
    assert_int_equal(*job_word(&shared, 7), shared.pattern + 7);
    assert_result(pleat_share_piece(j.runtime, own.address, 0, &fd, &bytes), PLEAT_E_STATE);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_free(&j, &shared);
    job_tensor again = job_alloc(&j, 3 * JOB_PAGE, 0);
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_free(&j, &again);
    job_free(&j, &own);
    finish(&j);
}

/* What no other process came to see is moved as before. */
static void pause_takes_what_could_not_be_shared(void **state)
{
    (void)state;
    job j = {0};
    pleat_vmm host;
    int fd = -1;
    uint64_t bytes = 7;
    const pleat_runtime_options options = {
        .size = sizeof options, .policy = "pleat", .conf = "share:on", .waits = 1};
    job_host_timeless(&host);
    assert_ok(pleat__fault_create(host, &j.vmm));
    assert_ok(pleat_runtime_create(j.vmm, &options, &j.runtime));
    job_tensor tensor = job_alloc(&j, 3 * JOB_PAGE, 0);
    pleat__fault_arm(&j.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_export_handle, .nth = 1});
    assert_result(pleat_share_piece(j.runtime, tensor.address, 0, &fd, &bytes), PLEAT_E_DRIVER);
    assert_int_equal(fd, -1);
    assert_int_equal(bytes, 7);
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_free(&j, &tensor);
    finish(&j);
    pleat_vmm_destroy(&host);
}

/* Each of two that are paused at a time has its contents in host memory of its own, that of earlier
 * pauses as well. */
static void pause_of_two_tags_keeps_both(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    static const char *const tags[] = {"weights", "kv_cache"};
    job_tensor tensors[2];
    for (int t = 0; t < 2; t++) {
        assert_ok(pleat_tag(tags[t]));
        tensors[t] = job_alloc(&j, 20 * JOB_PAGE, 0);
    }
    assert_ok(pleat_tag(NULL));
    for (int round = 0; round < 3; round++) {
        for (int t = 0; t < 2; t++)
            assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_HOST, tags[t]));
        for (int t = 0; t < 2; t++)
            assert_ok(pleat_resume(j.runtime, tags[t]));
    }
    for (int t = 0; t < 2; t++)
        job_free(&j, &tensors[t]);
    finish(&j);
}

/* What is freed while it is paused counts as freed, and nothing comes to lie there before it is
 * awake again. */
static void pause_keeps_frees_back(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor kept = job_alloc(&j, 7 * JOB_PAGE + 5, 0), gone = job_alloc(&j, 6 * JOB_PAGE, 0);
    job_tensor streamed = job_alloc(&j, 4 * JOB_PAGE, 3);
    assert_ok(pleat_record_stream(j.runtime, streamed.address, 4));
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_ok(pleat_free(j.runtime, gone.address));
    assert_ok(pleat_free(j.runtime, streamed.address));
    assert_result(pleat_free(j.runtime, gone.address), PLEAT_E_STATE);
    assert_result(pleat_record_stream(j.runtime, gone.address, 5), PLEAT_E_STATE);
    assert_result(pleat_free(j.runtime, kept.address + 512), PLEAT_E_NOT_FOUND);
    assert_int_equal(pleat_stats_of(j.runtime).live_bytes, (kept.bytes + 511) & ~511ull);
    assert_int_equal(pleat_stats_of(j.runtime).waiting_bytes, 10 * JOB_PAGE);
    job_tensor more = job_alloc(&j, 10 * JOB_PAGE, 0), small = job_alloc(&j, 700, 0);
    assert_true(more.address + more.bytes <= gone.address ||
                more.address >= gone.address + gone.bytes);
    assert_ok(pleat_resume(j.runtime, NULL));
    assert_int_equal(pleat_stats_of(j.runtime).waiting_bytes, 0);
    job_tensor after = job_alloc(&j, 6 * JOB_PAGE, 0);
    job_free(&j, &more);
    job_free(&j, &small);
    job_free(&j, &after);
    job_free(&j, &kept);
    finish(&j);
}

/* What was freed while it was paused needs no room when the rest is resumed. */
static void pause_wakes_what_still_lives(void **state)
{
    (void)state;
    for (int lives = 0; lives < 2; lives++)
        for (uint32_t offload = PLEAT_OFFLOAD_HOST; offload <= PLEAT_OFFLOAD_DISCARD; offload++) {
            fixture f;
            begin(&f, "pleat", 256 * MIB, 64 * MIB);
            assert_ok(pleat_tag("t"));
            pleat_va gone = take(&f, 24 * MIB + MIB / 2, 0), kept = take(&f, 7 * MIB, 0),
                     behind = take(&f, 24 * MIB + MIB / 2, 0);
            assert_ok(pleat_tag(NULL));
            memset((void *)(uintptr_t)kept, 5, 7 * MIB);
            assert_ok(pause_with(f.runtime, offload, "t"));
            assert_ok(pleat_free(f.runtime, gone));
            assert_ok(pleat_free(f.runtime, behind));
            if (lives == 0)
                assert_ok(pleat_free(f.runtime, kept));
            pleat_va other = take(&f, 48 * MIB, 0);
            memset((void *)(uintptr_t)other, 6, 48 * MIB);
            assert_ok(pleat_resume(f.runtime, "t"));
            pleat_stats stats = pleat_stats_of(f.runtime);
            assert_int_equal(stats.live_bytes, 48 * MIB + (lives != 0 ? 7 * MIB : 0));
            assert_int_equal(stats.waiting_bytes, 0);
            for (uint64_t at = 0; lives != 0 && at < 7 * MIB; at += MIB / 2)
                if (offload == PLEAT_OFFLOAD_HOST)
                    assert_int_equal(((const char *)(uintptr_t)kept)[at], 5);
            for (uint64_t at = 0; at < 48 * MIB; at += MIB / 2)
                assert_int_equal(((const char *)(uintptr_t)other)[at], 6);
            assert_ok(pleat_free(f.runtime, other));
            if (lives != 0)
                assert_ok(pleat_free(f.runtime, kept));
            assert_ok(pleat_free(f.runtime, take(&f, 60 * MIB, 0)));
            end(&f);
        }
}

/* A tensor that another stream uses is freed, twice even, while it is paused, and used no more. */
static void pause_frees_what_another_stream_uses_once(void **state)
{
    (void)state;
    job j;
    job_start(&j, "pleat", NULL, 0);
    job_tensor tensor = job_alloc(&j, 4 * JOB_PAGE, 3);
    assert_ok(pleat_record_stream(j.runtime, tensor.address, 4));
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_ok(pleat_free(j.runtime, tensor.address));
    assert_true(pleat_free(j.runtime, tensor.address) != PLEAT_OK);
    assert_int_equal(pleat_stats_of(j.runtime).live_bytes, 0);
    assert_result(pleat_record_stream(j.runtime, tensor.address, 5), PLEAT_E_STATE);
    job_tensor other = job_alloc(&j, 512, 3); /* hears that the stream is done */
    assert_result(pleat_record_stream(j.runtime, tensor.address, 5), PLEAT_E_STATE);
    assert_result(pleat_free(j.runtime, tensor.address), PLEAT_E_STATE);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_free(&j, &other);
    for (int round = 0; round < 3; round++) {
        /* All that there is, from where it lay on. */
        job_tensor again = job_alloc(&j, 5 * JOB_PAGE, 3);
        assert_int_equal(pleat_stats_of(j.runtime).live_bytes, again.bytes);
        assert_int_equal(again.address, tensor.address);
        assert_int_equal(physical(&j), again.bytes);
        job_free(&j, &again);
        assert_int_equal(pleat_stats_of(j.runtime).live_bytes, 0);
    }
    finish(&j);
}

/* A recording tells of frees while their memory is paused, and again when they are complete. */
static void pause_is_recorded_through(void **state)
{
    (void)state;
    job j;
    pleat_trace *trace;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_record_begin(j.runtime, NULL));
    job_tensor tensor = job_alloc(&j, 4 * JOB_PAGE, 0);
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_ok(pleat_free(j.runtime, tensor.address));
    assert_ok(pleat_resume(j.runtime, NULL));
    job_tensor other = job_alloc(&j, 4 * JOB_PAGE, 0);
    assert_int_equal(other.address, tensor.address);
    job_free(&j, &other);
    assert_ok(pleat_record_copy(j.runtime, &trace));
    static const uint8_t kinds[] = {PLEAT_EVENT_ALLOC,          PLEAT_EVENT_FREE_REQUESTED,
                                    PLEAT_EVENT_FREE_COMPLETED, PLEAT_EVENT_ALLOC,
                                    PLEAT_EVENT_FREE_REQUESTED, PLEAT_EVENT_FREE_COMPLETED};
    assert_int_equal(pleat_trace_event_count(trace), sizeof kinds);
    for (size_t e = 0; e < sizeof kinds; e++)
        assert_int_equal(pleat_trace_events(trace)[e].kind, kinds[e]);
    pleat_trace_free(trace);
    pleat_record_end(j.runtime);
    finish(&j);
}

/* Their places in the table of frees meet at these sizes. */
static void pause_lets_every_free_go(void **state)
{
    (void)state;
    enum { MANY = 6000 };
    job j;
    static pleat_va tensors[MANY];
    job_start(&j, "pleat", NULL, 0);
    for (int t = 0; t < MANY; t++)
        assert_ok(pleat_alloc(j.runtime, 512 * (1 + t * 7919u % 97), 0, &tensors[t]));
    assert_ok(pleat_pause(j.runtime, NULL));
    for (int t = 0; t < MANY; t++)
        if (t % 3 != 0)
            assert_ok(pleat_free(j.runtime, tensors[t]));
    assert_ok(pleat_resume(j.runtime, NULL));
    for (int t = 0; t < MANY; t++)
        assert_result(pleat_free(j.runtime, tensors[t]), t % 3 != 0 ? PLEAT_E_NOT_FOUND : PLEAT_OK);
    assert_ok(pleat_empty_cache(j.runtime));
    assert_int_equal(physical(&j), 0);
    finish(&j);
}

static void pause_of_a_captured_graph_keeps_its_memory(void **state)
{
    (void)state;
    job j;
    pleat_capture *capture;
    pleat_va piece;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_capture_begin(j.runtime, 5, 10 * JOB_PAGE, &capture));
    assert_ok(pleat_alloc(j.runtime, 3 * JOB_PAGE, 5, &piece));
    assert_result(pleat_pause(j.runtime, NULL), PLEAT_E_STATE);
    assert_non_null(strstr(pleat_last_error()->text, "captures a graph"));
    assert_ok(pleat_capture_end(j.runtime, capture, NULL));
    *(uint64_t *)(uintptr_t)piece = 42;
    *(uint64_t *)(uintptr_t)(piece + 2 * JOB_PAGE) = 43;
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    assert_int_equal(*(uint64_t *)(uintptr_t)piece, 42);
    assert_int_equal(*(uint64_t *)(uintptr_t)(piece + 2 * JOB_PAGE), 43);
    assert_ok(pleat_free(j.runtime, piece));
    assert_ok(pleat_capture_free(j.runtime, capture));
    finish(&j);
}

static void pause_without_room_to_resume_stays_and_loses_nothing(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 64 * MIB, 0);
    pleat_va held = take(&f, 40 * MIB, 0);
    memset((void *)(uintptr_t)held, 7, 40 * MIB);
    assert_ok(pleat_pause(f.runtime, NULL));
    /* Another program takes what was given back. */
    assert_ok(pleat__host_set_other(&f.host, 0, 50 * MIB, 0));
    assert_result(pleat_resume(f.runtime, NULL), PLEAT_E_OUT_OF_MEMORY);
    assert_true(has("resume:"));
    assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    assert_ok(pleat__host_set_other(&f.host, 0, 10 * MIB, 0));
    assert_ok(pleat_resume(f.runtime, NULL));
    for (uint64_t at = 0; at < 40 * MIB; at += 4096)
        assert_int_equal(*(char *)(uintptr_t)(held + at), 7);
    assert_ok(pleat_free(f.runtime, held));
    end(&f);
}

static void pause_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    char name[80];
    for (size_t p = 0; p < POLICIES; p++) {
        job j;
        job_start(&j, policies[p], NULL, 0);
        bool can = strcmp(policies[p], "pleat") == 0;
        assert_result(pleat_pause(j.runtime, NULL), can ? PLEAT_OK : PLEAT_E_UNSUPPORTED);
        assert_result(pause_with(j.runtime, 9, NULL), PLEAT_E_INVALID);
        if (can)
            assert_result(pleat_resume(j.runtime, NULL), PLEAT_OK);
        finish(&j);
    }
    memset(name, 'x', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    assert_result(pleat_tag(name), PLEAT_E_LIMIT);
    for (int t = 0; t < 300; t++) {
        snprintf(name, sizeof name, "tag %d", t);
        pleat_result result = pleat_tag(name);
        assert_true(result == PLEAT_OK || (t > 200 && result == PLEAT_E_LIMIT));
    }
    assert_result(pleat_tag("one more"), PLEAT_E_LIMIT);
    assert_ok(pleat_tag(""));
}

#define MANY 2100

/* What grew one request at a time wakes in larger handles, each byte where it was. */
static void pause_wakes_larger_handles(void **state)
{
    (void)state;
    job j;
    static pleat_va held[MANY];
    job_start(&j, "pleat", NULL, 0);
    for (int i = 0; i < MANY; i++) {
        assert_ok(pleat_alloc(j.runtime, JOB_PAGE, 0, &held[i]));
        *(uint64_t *)(uintptr_t)held[i] = (uint64_t)i + 1;
    }
    for (int turn = 0; turn < 3; turn++) {
        assert_ok(
            pause_with(j.runtime, turn == 1 ? PLEAT_OFFLOAD_DISCARD : PLEAT_OFFLOAD_HOST, NULL));
        assert_int_equal(physical(&j), 0);
        assert_ok(pleat_free(j.runtime, held[turn])); /* kept back until it is awake */
        uint64_t before = pleat_stats_of(j.runtime).creates;
        assert_ok(pleat_resume(j.runtime, NULL));
        assert_true(pleat_stats_of(j.runtime).creates - before <= MANY / 4 + 8);
        for (int i = turn + 1; i < MANY; i++) {
            assert_true(turn == 1 || *(uint64_t *)(uintptr_t)held[i] == (uint64_t)i + 1);
            *(uint64_t *)(uintptr_t)held[i] = (uint64_t)i + 1;
        }
    }
    for (int i = 3; i < MANY; i++)
        assert_ok(pleat_free(j.runtime, held[i]));
    finish(&j);
}

/* Where three of four tensors of a handle are gone a trim finds nothing to give back; after a pause
 * the fourth has a handle of its own. */
static void pause_sets_what_lives_apart(void **state)
{
    (void)state;
    job j;
    static pleat_va held[MANY];
    uint64_t given, left = 0;
    job_start(&j, "pleat", NULL, 0);
    for (int i = 0; i < MANY; i++) {
        assert_ok(pleat_alloc(j.runtime, JOB_PAGE, 0, &held[i]));
        *(uint64_t *)(uintptr_t)held[i] = (uint64_t)i + 1;
    }
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_ok(pleat_resume(j.runtime, NULL)); /* in larger handles */
    for (int i = 0; i < MANY; i++)
        if (i % 4 != 0)
            assert_ok(pleat_free(j.runtime, held[i]));
        else
            left++;
    assert_ok(pleat_trim(j.runtime, 0, &given));
    assert_true(physical(&j) > 2 * left * JOB_PAGE);
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_int_equal(physical(&j), 0);
    assert_ok(pleat_resume(j.runtime, NULL));
    assert_int_equal(physical(&j), left * JOB_PAGE);
    assert_ok(pleat_trim(j.runtime, 0, &given));
    assert_int_equal(given, 0);
    for (int i = 0; i < MANY; i += 4)
        assert_int_equal(*(uint64_t *)(uintptr_t)held[i], (uint64_t)i + 1);
    /* What was idle is where it was, and wakes before there is anything new. */
    for (int i = 0; i < MANY; i++)
        if (i % 4 != 0)
            assert_ok(pleat_alloc(j.runtime, JOB_PAGE, 0, &held[i]));
    assert_int_equal(pleat_stats_of(j.runtime).peak_physical_bytes, (uint64_t)MANY * JOB_PAGE);
    for (int i = 0; i < MANY; i++)
        assert_ok(pleat_free(j.runtime, held[i]));
    finish(&j);
}

/* Tensors of many sizes come and go, in holes and in views, and each keeps what it held. */
static void pause_keeps_what_lives_in_views_and_holes(void **state)
{
    enum { TENSORS = 60, STEPS = 1500 };
    (void)state;
    job j;
    pleat_va ground;
    job_tensor held[TENSORS];
    uint64_t random = 7;
    job_start(&j, "pleat", NULL, 0);
    assert_ok(pleat_alloc(j.runtime, (uint64_t)MANY * JOB_PAGE, 0, &ground)); /* large handles */
    for (int t = 0; t < TENSORS; t++)
        held[t] = job_alloc(&j, (1 + (uint64_t)t % 30) * JOB_PAGE, 0);
    for (int step = 0; step < STEPS; step++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int t = (int)((random >> 33) % TENSORS);
        job_free(&j, &held[t]);
        held[t] = job_alloc(&j, 1 + (random >> 20) % (30 * JOB_PAGE), 0);
        if (step % 125 != 124)
            continue;
        assert_ok(pleat_trim(j.runtime, 0, NULL));
        assert_ok(pleat_pause(j.runtime, NULL));
        assert_int_equal(physical(&j), 0);
        assert_ok(pleat_resume(j.runtime, NULL));
        pleat_stats stats = pleat_stats_of(j.runtime);
        assert_true(stats.physical_bytes <= stats.live_bytes + stats.live_bytes / 50);
    }
    for (int t = 0; t < TENSORS; t++)
        job_free(&j, &held[t]);
    assert_ok(pleat_free(j.runtime, ground));
    assert_int_equal(j.errors, 0);
    finish(&j);
}

static pleat_runtime *failing_job(pleat_vmm vmm, const void *with)
{
    const job_shape *shape = with;
    job j = {.vmm = vmm};
    pleat_runtime_options options = {.size = sizeof options, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (int i = 0; i < 3; i++) {
        job_try_iterate(&j, shape);
        if (pleat_pause(j.runtime, NULL) != PLEAT_OK)
            continue;
        for (int tries = 0; pleat_resume(j.runtime, NULL) != PLEAT_OK; tries++)
            if (tries == 3) /* a verb failed twice over: what lay there cannot be reached */
                return j.runtime;
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

/* The same where half of it is freed meanwhile. */
static pleat_runtime *failing_frees(pleat_vmm vmm, const void *with)
{
    (void)with;
    job j = {.vmm = vmm};
    job_tensor all[12];
    pleat_runtime_options options = {.size = sizeof options, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    for (uint64_t t = 0; t < 12; t++) {
        all[t] = (job_tensor){.bytes = 3 * JOB_PAGE + t * JOB_PAGE / 3, .pattern = t};
        if (pleat_alloc(j.runtime, all[t].bytes, 0, &all[t].address) != PLEAT_OK)
            return j.runtime;
        job_fill(&all[t]);
    }
    if (pleat_pause(j.runtime, NULL) != PLEAT_OK)
        return j.runtime;
    for (int t = 0; t < 12; t++)
        if (t % 6 < 3)
            assert_ok(pleat_free(j.runtime, all[t].address));
    for (int tries = 0; pleat_resume(j.runtime, NULL) != PLEAT_OK; tries++)
        if (tries == 3)
            return j.runtime;
    for (int t = 0; t < 12; t++)
        if (t % 6 >= 3)
            job_free(&j, &all[t]);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

static void pause_survives_each_verb_that_fails(void **state)
{
    (void)state;
    job_shape shape = job_shape_make(4, 1);
    fail_all(3, failing_job, &shape);
    fail_all(8, failing_frees, NULL);
}

/* The reason why is told once, behind what it was for. */
static void pause_says_why_streams_cannot_be_waited_for(void **state)
{
    (void)state;
    fixture f;
    open_host(&f, 1024 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    take(&f, 5000000, 0);
    pleat__fault_arm(
        &f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_event_record, .nth = 1, .forever = true});
    assert_result(pleat_pause(f.runtime, NULL), PLEAT_E_DRIVER);
    assert_string_equal(pleat_last_error()->text,
                        "pause: the streams cannot be waited for: event_record: made to fail");
    assert_string_equal(pleat_last_error()->native_name, "CUDA_ERROR_UNKNOWN");
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){0});
    end(&f);
}

/* What is paused takes none of the device: all of it may be had meanwhile, turn by turn, and what
 * was paused comes back to where it was. */
static void pause_leaves_the_device_to_others(void **state)
{
    (void)state;
    enum { PARTS = 12, TURNS = 4 };
    const char *const tags[TURNS] = {"weights", "kv_cache", "states", NULL};
    fixture f;
    pleat_va parts[TURNS][PARTS];
    begin(&f, "pleat", 128 * MIB, 0);
    for (int turn = 0; turn < TURNS; turn++) {
        assert_ok(pleat_tag(tags[turn]));
        for (int p = 0; p < PARTS; p++) {
            parts[turn][p] = take(&f, 10 * MIB, 0);
            memset((void *)(uintptr_t)parts[turn][p], PARTS * turn + p + 1, 64);
        }
        assert_ok(pleat_tag(NULL));
        assert_ok(pause_with(f.runtime, PLEAT_OFFLOAD_HOST, tags[turn]));
        assert_int_equal(pleat_stats_of(f.runtime).physical_bytes, 0);
    }
    /* Four times the device has numbers. */
    pleat_va large;
    assert_result(pleat_alloc(f.runtime, 33 * MIB, 0, &large), PLEAT_E_OUT_OF_MEMORY);
    assert_true(has("the largest request that would fit now 32.00 MiB"));
    large = take(&f, 32 * MIB, 0);
    assert_ok(pleat_free(f.runtime, large));
    for (int turn = 0; turn < TURNS; turn++) {
        assert_ok(pleat_empty_cache(f.runtime));
        assert_ok(pleat_resume(f.runtime, tags[turn]));
        for (int p = 0; p < PARTS; p++) {
            const char *at = (const char *)(uintptr_t)parts[turn][p];
            assert_int_equal(at[0], PARTS * turn + p + 1);
            assert_int_equal(at[63], PARTS * turn + p + 1);
            assert_ok(pleat_free(f.runtime, parts[turn][p]));
        }
    }
    end(&f);
}

/* What nothing lies on is in no resume's way: it goes as far as room is wanted. */
static void pause_resumes_in_the_place_of_idle_memory(void **state)
{
    (void)state;
    for (int others = 0; others <= 1; others++) {
        fixture f;
        begin(&f, "pleat", 1024 * MIB, 45 * MIB);
        pleat_va kept = take(&f, 40 * MIB, 0);
        memset((void *)(uintptr_t)kept, 7, 40 * MIB);
        assert_ok(pleat_pause(f.runtime, NULL));
        pleat_va live = take(&f, 2 * MIB, 0), idle = take(&f, 30 * MIB, 0);
        /* Another stream's use of what was freed is waited for. */
        if (others)
            assert_ok(pleat_record_stream(f.runtime, idle, 1));
        assert_ok(pleat_free(f.runtime, idle));
        assert_ok(pleat_resume(f.runtime, NULL));
        uint64_t physical = pleat_stats_of(f.runtime).physical_bytes;
        assert_in_range(physical, 42 * MIB, 45 * MIB);
        for (uint64_t i = 0; i < 40 * MIB; i += 4096)
            assert_int_equal(((const char *)(uintptr_t)kept)[i], 7);
        /* What lives is. */
        assert_ok(pleat_pause(f.runtime, NULL));
        pleat_va more = take(&f, 4 * MIB, 0);
        assert_result(pleat_resume(f.runtime, NULL), PLEAT_E_BUDGET);
        assert_ok(pleat_free(f.runtime, more));
        assert_ok(pleat_resume(f.runtime, NULL));
        assert_ok(pleat_free(f.runtime, live));
        assert_ok(pleat_free(f.runtime, kept));
        end(&f);
    }
}

/* A tensor in a view is freed while it is paused, and the view goes before there is room to resume;
 * the chunks at its ends, on which others live too, come back all the same. */
static void pause_copies_nothing_to_where_a_freed_tensor_lay(void **state)
{
    (void)state;
    job j;
    job_tensor t[5];
    job_start(&j, "pleat", NULL, 28 * JOB_PAGE);
    for (int i = 0; i < 5; i++)
        t[i] = job_alloc(&j, 11 * JOB_PAGE / 2, 0);
    for (int i = 0; i < 5; i += 2)
        job_free(&j, &t[i]);
    job_tensor viewed = job_alloc(&j, 33 * JOB_PAGE / 2, 0);
    assert_int_equal(pleat_stats_of(j.runtime).stitched, 1);
    assert_ok(pleat_pause(j.runtime, NULL));
    assert_ok(pleat_free(j.runtime, viewed.address));
    job_tensor meanwhile = job_alloc(&j, 24 * JOB_PAGE, 0);
    assert_result(pleat_resume(j.runtime, NULL), PLEAT_E_BUDGET);
    assert_ok(pleat_empty_cache(j.runtime));
    job_free(&j, &meanwhile);
    assert_ok(pleat_resume(j.runtime, NULL));
    job_free(&j, &t[1]);
    job_free(&j, &t[3]);
    assert_int_equal(j.errors, 0);
    finish(&j);
}

/* What the program does when it is asked for memory: a resume of what is resumed just then is
 * refused, and what it frees serves. */
typedef struct asked {
    job *j;
    job_tensor gives; /* address 0: nothing */
    uint64_t bytes;
    pleat_stream stream;
    int times;
} asked;

static int give_when_asked(void *context, uint64_t bytes, pleat_stream stream)
{
    asked *a = context;
    bool gives = a->gives.address != 0;
    a->times++;
    a->bytes = bytes;
    a->stream = stream;
    assert_result(pleat_resume(a->j->runtime, NULL), PLEAT_E_STATE);
    job_free(a->j, &a->gives);
    return gives;
}

static void pause_asks_the_program_for_room_to_resume(void **state)
{
    (void)state;
    job j;
    asked a = {.j = &j};
    const pleat_runtime_options options = {.size = sizeof options,
                                           .budget_bytes = 20 * JOB_PAGE,
                                           .memory_callback = give_when_asked,
                                           .memory_context = &a,
                                           .conf = "",
                                           .waits = 1};
    job_open(&j, &options);
    job_tensor kept = job_alloc(&j, 12 * JOB_PAGE, 0);
    assert_ok(pleat_pause(j.runtime, NULL));
    job_tensor meanwhile = job_alloc(&j, 15 * JOB_PAGE, 0);
    assert_result(pleat_resume(j.runtime, NULL), PLEAT_E_BUDGET);
    assert_int_equal(a.times, 1);
    assert_int_equal(a.bytes, 12 * JOB_PAGE);
    assert_int_equal(a.stream, PLEAT_STREAM_UNKNOWN);
    a.gives = meanwhile;
    assert_ok(pleat_resume(j.runtime, NULL));
    assert_int_equal(a.times, 2);
    job_free(&j, &kept);
    finish(&j);
}

/* What was freed of one pause stays on its list where there was no host memory to take it out, and
 * no room to resume; another pause that is resumed first leaves it there. */
static void pause_leaves_what_is_idle_of_another_one(void **state)
{
    (void)state;
    for (uint64_t nth = 1; nth <= 24; nth++) {
        job j;
        job_start(&j, "pleat", NULL, 0);
        assert_ok(pleat_tag("weights"));
        job_tensor kept = job_alloc(&j, 8 * JOB_PAGE, 0), freed = job_alloc(&j, 8 * JOB_PAGE, 0);
        assert_ok(pleat_tag(NULL));
        job_tensor other = job_alloc(&j, 8 * JOB_PAGE, 0), gone = job_alloc(&j, 8 * JOB_PAGE, 0);
        assert_ok(pause_with(j.runtime, PLEAT_OFFLOAD_HOST, "weights"));
        assert_ok(pleat_pause(j.runtime, NULL));
        assert_ok(pleat_free(j.runtime, freed.address));
        assert_ok(pleat_set_budget(j.runtime, JOB_PAGE));
        pleat__arena_fail(nth, true);
        assert_int_not_equal(pleat_resume(j.runtime, "weights"), PLEAT_OK);
        pleat__arena_fail(0, false);
        assert_ok(pleat_free(j.runtime, gone.address));
        assert_ok(pleat_set_budget(j.runtime, 0));
        assert_ok(pleat_resume(j.runtime, NULL));
        job_tensor more = job_alloc(&j, 40 * JOB_PAGE, 0);
        job_free(&j, &more);
        job_free(&j, &kept);
        job_free(&j, &other);
        finish(&j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pause_gives_all_back_and_brings_it_again),
        cmocka_unit_test(pause_with_discard_copies_nothing),
        cmocka_unit_test(pause_of_a_tag_leaves_the_others_usable),
        cmocka_unit_test(pause_leaves_the_device_to_others),
        cmocka_unit_test(pause_that_discards_keeps_what_was_paused_to_be_kept),
        cmocka_unit_test(pause_leaves_what_is_shared),
        cmocka_unit_test(pause_takes_what_could_not_be_shared),
        cmocka_unit_test(pause_of_two_tags_keeps_both),
        cmocka_unit_test(pause_keeps_frees_back),
        cmocka_unit_test(pause_wakes_what_still_lives),
        cmocka_unit_test(pause_frees_what_another_stream_uses_once),
        cmocka_unit_test(pause_is_recorded_through),
        cmocka_unit_test(pause_lets_every_free_go),
        cmocka_unit_test(pause_of_a_captured_graph_keeps_its_memory),
        cmocka_unit_test(pause_without_room_to_resume_stays_and_loses_nothing),
        cmocka_unit_test(pause_refuses_what_it_cannot_do),
        cmocka_unit_test(pause_wakes_larger_handles),
        cmocka_unit_test(pause_sets_what_lives_apart),
        cmocka_unit_test(pause_keeps_what_lives_in_views_and_holes),
        cmocka_unit_test(pause_resumes_in_the_place_of_idle_memory),
        cmocka_unit_test(pause_copies_nothing_to_where_a_freed_tensor_lay),
        cmocka_unit_test(pause_asks_the_program_for_room_to_resume),
        cmocka_unit_test(pause_survives_each_verb_that_fails),
        cmocka_unit_test(pause_says_why_streams_cannot_be_waited_for),
        cmocka_unit_test(pause_leaves_what_is_idle_of_another_one),
    };
    return cmocka_run_group_tests_name("pause", tests, NULL, NULL);
}
