/*
 * handles.c: memory in handles of several chunks (runtime/memory/chunks.h): what they cost, views
 * over them, giving them back, and what happens when a verb for them fails. A tensor that is never
 * written makes the memory large enough for them; it takes none of this machine's.
 */
#include "fault.h"
#include "held.h"
#include "job.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <vmm/host/host.h>

#define CHUNK   (32u << 10)
#define MIB     (1ull << 20)
#define FILLER  3200u /* chunks: handles made beside them have 4 */
#define BLOCK   4u
#define ROUNDS  250
#define TENSORS 24

typedef struct fixture {
    job j;
    pleat_vmm host;
    pleat_va filler;
    job_tensor tensors[TENSORS];
    uint64_t refused;
} fixture;

static void begin(fixture *f, uint64_t budget)
{
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = 2ull << 30, .granularity = CHUNK};
    pleat_runtime_options options = {
        .size = sizeof options, .policy = "pleat", .budget_bytes = budget, .conf = "learn:off"};
    *f = (fixture){0};
    assert_ok(pleat_vmm_host(&host, &f->host));
    assert_ok(pleat__fault_create(f->host, &f->j.vmm));
    assert_ok(pleat_runtime_create(f->j.vmm, &options, &f->j.runtime));
    assert_ok(pleat_alloc(f->j.runtime, (uint64_t)FILLER * CHUNK, 0, &f->filler));
}

static void end(fixture *f)
{
    pleat_runtime_destroy(f->j.runtime);
    pleat_vmm_destroy(&f->j.vmm);
    assert_nothing_held(&f->host);
    pleat_vmm_destroy(&f->host);
}

static pleat_stats stats_of(const fixture *f)
{
    return pleat_stats_of(f->j.runtime);
}

static int compare_addresses(const void *a, const void *b)
{
    pleat_va left = ((const job_tensor *)a)->address, right = ((const job_tensor *)b)->address;
    return (left > right) - (left < right);
}

static void handles_are_one_call_for_several_chunks(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 0);
    pleat_stats before = stats_of(&f);
    assert_true(before.driver_calls < 2 * FILLER / 32 + 16);
    assert_int_equal(before.physical_bytes, (uint64_t)FILLER * CHUNK);
    job_tensor t = job_alloc(&f.j, 100ull * BLOCK * CHUNK + 3 * CHUNK, 0);
    pleat_stats after = stats_of(&f);
    assert_int_equal(after.physical_bytes - before.physical_bytes, (100 * BLOCK + 3) * CHUNK);
    /* Created, mapped; the three left over in two handles; one access for all. */
    assert_int_equal(after.driver_calls - before.driver_calls, 2 * (100 + 2) + 1);
    job_free(&f.j, &t);
    assert_int_equal(f.j.errors, 0);
    end(&f);
}

/* So many handles for a request of so many chunks, where nothing is yet. */
static uint64_t handles_for(uint32_t chunks, uint32_t budget)
{
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = 2ull << 30, .granularity = CHUNK};
    pleat_runtime_options options = {
        .size = sizeof options, .budget_bytes = (uint64_t)budget * CHUNK, .conf = "learn:off"};
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_va address;
    assert_ok(pleat_vmm_host(&host, &vmm));
    assert_ok(pleat_runtime_create(vmm, &options, &runtime));
    assert_ok(pleat_alloc(runtime, (uint64_t)chunks * CHUNK, 0, &address));
    uint64_t handles = pleat_stats_of(runtime).creates;
    pleat_runtime_destroy(runtime);
    assert_nothing_held(&vmm);
    pleat_vmm_destroy(&vmm);
    return handles;
}

/* A job of a few large tensors has handles that suit them from its first request on. */
static void handles_are_larger_for_a_large_request(void **state)
{
    (void)state;
    assert_int_equal(handles_for(127, 0), 127);
    assert_int_equal(handles_for(128, 0), 64);
    assert_int_equal(handles_for(512, 0), 64);
    /* One of 8 chunks is for those who have room for it. */
    assert_int_equal(handles_for(512, 8192), 128);
    assert_int_equal(handles_for(512, 4095), 512);
}

/* A hole between two tensors, which begins and ends within a chunk. */
static void make_hole(fixture *f, uint64_t bytes, job_tensor around[2])
{
    around[0] = job_alloc(&f->j, MIB + 512, 0);
    job_tensor between = job_alloc(&f->j, bytes, 0);
    around[1] = job_alloc(&f->j, MIB + 1024, 0);
    assert_int_equal(between.address, around[0].address + MIB + 512);
    assert_int_equal(around[1].address, between.address + bytes);
    job_free(&f->j, &between);
}

/* What is as long as whole chunks keeps no chunk beside them from being given back; but where fewer
 * of its size would fit into the hole it lies at the end. */
static void handles_of_neighbours_are_not_kept(void **state)
{
    (void)state;
    for (uint64_t more = 0; more <= CHUNK; more += CHUNK) {
        fixture f;
        job_tensor around[2];
        begin(&f, 0);
        make_hole(&f, 8 * MIB + more, around);
        uint64_t before = stats_of(&f).physical_bytes;
        job_tensor first = job_alloc(&f.j, 4 * MIB, 0), second = job_alloc(&f.j, 4 * MIB, 0);
        assert_int_equal(stats_of(&f).physical_bytes, before);
        assert_true((first.address % CHUNK == 0) == (more != 0));
        assert_true((second.address % CHUNK == 0) == (more != 0));
        job_free(&f.j, &first);
        job_free(&f.j, &second);
        for (int t = 0; t < 2; t++)
            job_free(&f.j, &around[t]);
        assert_int_equal(f.j.errors, 0);
        end(&f);
    }
}

/* The less may still be made, the less of it a live tensor is to keep from views. */
static void handles_become_smaller_near_the_budget(void **state)
{
    (void)state;
    static const struct {
        uint32_t left, handles; /* chunks that may be made; handles of 64 */
    } cases[] = {{1100, 16}, {600, 32}, {300, 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        begin(&f, (uint64_t)(FILLER + cases[i].left) * CHUNK);
        uint64_t before = stats_of(&f).creates;
        job_tensor t = job_alloc(&f.j, 64 * CHUNK, 0);
        assert_int_equal(stats_of(&f).creates - before, cases[i].handles);
        job_free(&f.j, &t);
        end(&f);
    }
}

/* Where a large handle does not fit under the budget, smaller ones do. */
static void handles_use_the_budget_to_its_end(void **state)
{
    (void)state;
    for (uint32_t left = 1; left < 2 * BLOCK; left += 2) {
        fixture f;
        begin(&f, (uint64_t)(FILLER + left) * CHUNK);
        pleat_va more;
        assert_int_equal(pleat_alloc(f.j.runtime, 2 * BLOCK * CHUNK, 0, &more), PLEAT_E_BUDGET);
        job_tensor t = job_alloc(&f.j, (uint64_t)left * CHUNK, 0);
        assert_int_equal(stats_of(&f).physical_bytes, (uint64_t)(FILLER + left) * CHUNK);
        assert_int_equal(pleat_alloc(f.j.runtime, CHUNK, 0, &more), PLEAT_E_BUDGET);
        job_free(&f.j, &t);
        assert_int_equal(f.j.errors, 0);
        end(&f);
    }
}

/* Tensors of up to 60 chunks come and go. With faults a request may be refused. */
static void churn(fixture *f, test_random *random, bool faults)
{
    for (int round = 0; round < ROUNDS; round++) {
        job_tensor *t = &f->tensors[test_random_below(random, TENSORS)];
        job_free(&f->j, t);
        uint64_t bytes = 1 + test_random_below(random, 60ull * CHUNK);
        pleat_va address;
        if (faults && pleat_alloc(f->j.runtime, bytes, 0, &address) != PLEAT_OK) {
            f->refused++;
            continue;
        }
        if (faults)
            assert_ok(pleat_free(f->j.runtime, address));
        /* What was just given back is there. */
        *t = job_alloc(&f->j, bytes, 0);
    }
}

static void drain(fixture *f)
{
    for (int i = 0; i < TENSORS; i++)
        job_free(&f->j, &f->tensors[i]);
    assert_int_equal(f->j.errors, 0);
}

static void handles_serve_views_and_go_back_whole(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0b10);
    fixture f;
    begin(&f, 0);
    churn(&f, &random, false);
    pleat_stats stats = stats_of(&f);
    assert_true(stats.stitched > 10);
    assert_true(stats.peak_physical_bytes < stats.peak_live_bytes + stats.peak_live_bytes / 50);
    drain(&f);
    assert_ok(pleat_empty_cache(f.j.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, (uint64_t)FILLER * CHUNK);
    /* And come again. */
    churn(&f, &random, false);
    drain(&f);
    assert_ok(pleat_free(f.j.runtime, f.filler));
    assert_ok(pleat_empty_cache(f.j.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, 0);
    end(&f);
}

/* Whichever are in the smallest runs: each handle of a view is a map. */
static void handles_in_views_are_the_larger_ones(void **state)
{
    (void)state;
    fixture f;
    job_tensor holes[6], kept[6];
    begin(&f, 0);
    for (int i = 0; i < 6; i++) {
        holes[i] = job_alloc(&f.j, i < 4 ? CHUNK : BLOCK * CHUNK, 0);
        kept[i] = job_alloc(&f.j, CHUNK, 0);
    }
    for (int i = 0; i < 6; i++)
        job_free(&f.j, &holes[i]);
    pleat_stats before = stats_of(&f);
    job_tensor stitched = job_alloc(&f.j, 2ull * BLOCK * CHUNK, 0);
    pleat_stats after = stats_of(&f);
    assert_int_equal(after.stitched, before.stitched + 1);
    assert_int_equal(after.physical_bytes, before.physical_bytes);
    assert_true(after.driver_calls - before.driver_calls <= 4); /* two maps, and access */
    job_free(&f.j, &stitched);
    for (int i = 0; i < 6; i++)
        job_free(&f.j, &kept[i]);
    assert_int_equal(f.j.errors, 0);
    end(&f);
}

/* A handle of which something is in use stays, the others go. */
static void handles_in_use_stay(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 0);
    job_tensor first = job_alloc(&f.j, 10ull * BLOCK * CHUNK, 0);
    job_tensor last = job_alloc(&f.j, CHUNK / 2 * 3, 0);
    job_free(&f.j, &first);
    assert_ok(pleat_empty_cache(f.j.runtime));
    uint64_t physical = stats_of(&f).physical_bytes - (uint64_t)FILLER * CHUNK;
    assert_true(physical >= last.bytes && physical <= BLOCK * CHUNK);
    job_free(&f.j, &last);
    assert_int_equal(f.j.errors, 0);
    end(&f);
}

static void handles_survive_every_failing_verb(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create, PLEAT__FAULT_map,
                                              PLEAT__FAULT_set_access, PLEAT__FAULT_unmap,
                                              PLEAT__FAULT_release};
    test_random random = test_random_begin(__func__, 0x5eed0b11);
    uint64_t refused = 0;
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        uint64_t hits = 1;
        for (uint64_t nth = 1; hits > 0; nth += 1 + nth) {
            fixture f;
            test_random same = {random.state + nth};
            begin(&f, 0);
            pleat__fault_arm(
                &f.j.vmm,
                (pleat__fault_plan){.verb = verbs[v], .nth = nth, .carried_out = nth % 2 == 1});
            churn(&f, &same, true);
            drain(&f);
            (void)!pleat_empty_cache(f.j.runtime);
            hits = pleat__fault_hits(&f.j.vmm);
            refused += f.refused;
            pleat__fault_arm(&f.j.vmm, (pleat__fault_plan){0});
            assert_ok(pleat_empty_cache(f.j.runtime));
            assert_int_equal(stats_of(&f).physical_bytes, (uint64_t)FILLER * CHUNK);
            assert_int_equal(stats_of(&f).quarantined_bytes, 0);
            end(&f);
        }
    }
    assert_true(refused > 0);
}

/* What is free beside a live tensor in its handle serves no larger request. */
static void handles_that_cannot_be_stitched_do_not_fit(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, 0x5eed0b12);
    fixture f;
    uint64_t named = 0;
    begin(&f, (uint64_t)(FILLER + 200) * CHUNK);
    for (int round = 0; round < 2 * ROUNDS; round++) {
        job_tensor *t = &f.tensors[test_random_below(&random, TENSORS)];
        uint64_t bytes = 1 + test_random_below(&random, 40ull * CHUNK);
        pleat_va address;
        job_free(&f.j, t);
        if (pleat_alloc(f.j.runtime, bytes, 0, &address) == PLEAT_OK) {
            assert_ok(pleat_free(f.j.runtime, address));
            *t = job_alloc(&f.j, bytes, 0);
            continue;
        }
        const char *fit = strstr(pleat_last_error()->text, "would fit now ");
        assert_non_null(fit);
        /* Two digits are given, of what is served and no more. */
        uint64_t fits = (uint64_t)(atof(fit + strlen("would fit now ")) * (1 << 20));
        if (fits <= 2 * CHUNK)
            continue;
        named++;
        assert_ok(pleat_alloc(f.j.runtime, fits, 0, &address));
        assert_ok(pleat_free(f.j.runtime, address));
        assert_result(pleat_alloc(f.j.runtime, fits + (1 << 20) / 50, 0, &address), PLEAT_E_BUDGET);
    }
    assert_true(named > 10);
    drain(&f);
    end(&f);
}

/* Where memory is short a view ends with whole chunks of a handle that is in use behind them, too:
 * two of them, two with which it begins, and three that are new hold seven. */
static void handles_in_use_lend_whole_chunks_where_memory_is_short(void **state)
{
    (void)state;
    static const uint32_t chunks[] = {2, 2, 4, 2, 2};
    fixture f;
    begin(&f, 0);
    job_tensor all = job_alloc(&f.j, 3ull * BLOCK * CHUNK, 0);
    job_free(&f.j, &all);
    assert_ok(pleat_set_budget(f.j.runtime, (uint64_t)(FILLER + 3 * BLOCK + 3) * CHUNK));
    for (int t = 0; t < 5; t++)
        f.tensors[t] = job_alloc(&f.j, (uint64_t)chunks[t] * CHUNK, 0);
    assert_int_equal(stats_of(&f).physical_bytes, (uint64_t)(FILLER + 3 * BLOCK) * CHUNK);
    job_free(&f.j, &f.tensors[1]);
    job_free(&f.j, &f.tensors[3]);
    for (uint64_t wanted = 6; wanted <= 7; wanted++) {
        job_tensor large = job_alloc(&f.j, wanted * CHUNK, 0);
        job_free(&f.j, &large);
    }
    pleat_va address;
    assert_result(pleat_alloc(f.j.runtime, 7 * CHUNK + 1, 0, &address), PLEAT_E_BUDGET);
    drain(&f);
    end(&f);
}

/* Two views could begin alike, and the end of one is in the run of the other's beginning. The new
 * memory comes to lie beside the first, which is taken all the same. */
static void handles_that_a_view_begins_with_stay_the_same(void **state)
{
    (void)state;
    static const uint32_t halves[] = {4, 4, 8, 4, 5, 7};
    fixture f;
    begin(&f, 0);
    job_tensor all = job_alloc(&f.j, 4ull * BLOCK * CHUNK, 0);
    job_free(&f.j, &all);
    for (int t = 0; t < 6; t++)
        f.tensors[t] = job_alloc(&f.j, halves[t] * (CHUNK / 2ull), 0);
    job_free(&f.j, &f.tensors[2]);
    assert_ok(pleat_empty_cache(f.j.runtime));
    assert_int_equal(stats_of(&f).physical_bytes, (uint64_t)(FILLER + 3 * BLOCK) * CHUNK);
    assert_ok(pleat_set_budget(f.j.runtime, (uint64_t)(FILLER + 3 * BLOCK + 3) * CHUNK));
    job_free(&f.j, &f.tensors[1]);
    job_free(&f.j, &f.tensors[4]);
    job_tensor large = job_alloc(&f.j, 11 * (CHUNK / 2ull), 0);
    job_free(&f.j, &large);
    drain(&f);
    end(&f);
}

/* A backend whose device has no memory, and which has a tensor freed, by another thread, when it
 * is asked for some. */
static struct {
    pleat_vmm host;
    pleat_runtime *runtime;
    pleat_va freed;
    bool armed;
} beside;

static void *free_beside(void *context)
{
    (void)context;
    assert_ok(pleat_free(beside.runtime, beside.freed));
    return NULL;
}

static pleat_result create_beside(void *self, int device, uint64_t bytes, uint32_t flags,
                                  pleat_handle *handle)
{
    pthread_t other;
    if (!beside.armed)
        return beside.host.ops->create(self, device, bytes, flags, handle);
    if (beside.freed != 0) {
        assert_int_equal(pthread_create(&other, NULL, free_beside, NULL), 0);
        assert_int_equal(pthread_join(other, NULL), 0);
        beside.freed = 0;
    }
    return PLEAT_E_OUT_OF_MEMORY;
}

/* The request would be stitched or get new memory; meanwhile the end of a handle that holds it all,
 * and more, is free. */
static void handles_freed_meanwhile_hold_it_all(void **state)
{
    (void)state;
    pleat_host_options host = {
        .size = sizeof host, .device_bytes = 2ull << 30, .granularity = CHUNK};
    pleat_runtime_options options = {.size = sizeof options, .conf = "learn:off"};
    pleat_va filler, head, tail, got;
    assert_ok(pleat_vmm_host(&host, &beside.host));
    pleat_vmm_ops ops = *beside.host.ops;
    ops.create = create_beside;
    assert_ok(pleat_runtime_create((pleat_vmm){&ops, beside.host.self}, &options, &beside.runtime));
    assert_ok(pleat_alloc(beside.runtime, (uint64_t)FILLER * CHUNK, 0, &filler));
    assert_ok(pleat_alloc(beside.runtime, BLOCK * CHUNK, 0, &head));
    assert_ok(pleat_free(beside.runtime, head));
    assert_ok(pleat_alloc(beside.runtime, CHUNK * 5 / 8, 0, &head));
    assert_ok(pleat_alloc(beside.runtime, BLOCK * CHUNK - CHUNK * 5 / 8, 0, &tail));
    assert_int_equal(tail, head + CHUNK * 5 / 8);
    beside.freed = tail;
    beside.armed = true;
    assert_ok(pleat_alloc(beside.runtime, CHUNK * 3 / 2, 0, &got));
    beside.armed = false;
    assert_int_equal(got, tail);
    /* It did not take a chunk to be missing. */
    assert_null(strstr(pleat_last_error()->text, "more chunks"));
    pleat_runtime_destroy(beside.runtime);
    assert_nothing_held(&beside.host);
    pleat_vmm_destroy(&beside.host);
}

/* Of neighbours the upper one goes first: together they are one hole, from the lower one on. */
static void handles_freed_downwards_are_one_hole(void **state)
{
    (void)state;
    enum { THREE = 3 };
    const uint64_t bytes = BLOCK * CHUNK;
    fixture f;
    begin(&f, 0);
    job_tensor whole = job_alloc(&f.j, THREE * bytes, 0), parts[THREE];
    job_free(&f.j, &whole);
    uint64_t physical = stats_of(&f).physical_bytes;
    for (int i = 0; i < THREE; i++)
        parts[i] = job_alloc(&f.j, bytes, 0);
    qsort(parts, THREE, sizeof *parts, compare_addresses);
    assert_int_equal(parts[1].address, parts[0].address + bytes);
    assert_int_equal(parts[2].address, parts[1].address + bytes);
    const pleat_va lower = parts[0].address;
    job_free(&f.j, &parts[1]);
    job_free(&f.j, &parts[0]);
    job_tensor both = job_alloc(&f.j, 2 * bytes, 0);
    assert_int_equal(both.address, lower);
    assert_int_equal(stats_of(&f).physical_bytes, physical);
    job_free(&f.j, &both);
    job_free(&f.j, &parts[2]);
    assert_int_equal(f.j.errors, 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(handles_are_one_call_for_several_chunks),
        cmocka_unit_test(handles_are_larger_for_a_large_request),
        cmocka_unit_test(handles_of_neighbours_are_not_kept),
        cmocka_unit_test(handles_become_smaller_near_the_budget),
        cmocka_unit_test(handles_use_the_budget_to_its_end),
        cmocka_unit_test(handles_serve_views_and_go_back_whole),
        cmocka_unit_test(handles_in_views_are_the_larger_ones),
        cmocka_unit_test(handles_in_use_stay),
        cmocka_unit_test(handles_freed_downwards_are_one_hole),
        cmocka_unit_test(handles_survive_every_failing_verb),
        cmocka_unit_test(handles_that_cannot_be_stitched_do_not_fit),
        cmocka_unit_test(handles_in_use_lend_whole_chunks_where_memory_is_short),
        cmocka_unit_test(handles_that_a_view_begins_with_stay_the_same),
        cmocka_unit_test(handles_freed_meanwhile_hold_it_all),
    };
    return cmocka_run_group_tests_name("handles", tests, NULL, NULL);
}
