/*
 * transfer.c: what lies at scattered addresses goes to pinned memory of many blocks, which threads
 * make meanwhile, and comes back: each byte where it was, whichever block cannot be made.
 */
#include "../fault.h"
#include "../held.h"
#include "../host.h"
#include "../test.h"

#include <internal/thread.h>
#include <runtime/transfer/transfer.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define PAGE   UINT64_C(65536)
#define PAGES  40u
#define PIECES 17u

/* Mapped memory of the device, and the pieces of it that are copied. */
typedef struct ground {
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat_handle handle;
    pleat_va va;
    pleat__pinned pinned;
} ground;

static void begin(ground *g)
{
    int device = 0;
    pleat_host_options options = {.size = sizeof options, .granularity = PAGE};
    assert_ok(pleat_vmm_host(&options, &g->host));
    assert_ok(pleat__fault_create(g->host, &g->vmm));
    assert_ok(pleat__arena_create(&g->arena));
    const pleat_vmm_ops *ops = g->vmm.ops;
    assert_ok(ops->reserve(g->vmm.self, 0, PAGES * PAGE, 0, &g->va));
    assert_ok(ops->create(g->vmm.self, 0, PAGES * PAGE, 0, &g->handle));
    assert_ok(ops->map(g->vmm.self, g->va, PAGES * PAGE, g->handle));
    assert_ok(ops->set_access(g->vmm.self, g->va, PAGES * PAGE, &device, 1));
    g->pinned = (pleat__pinned){
        .vmm = g->vmm, .page_bytes = PAGE, .block_bytes = 2 * PAGE, .arena = g->arena};
}

static void end(ground *g)
{
    const pleat_vmm_ops *ops = g->vmm.ops;
    pleat__pinned_release(&g->pinned);
    assert_ok(ops->unmap(g->vmm.self, g->va, PAGES * PAGE));
    assert_ok(ops->release(g->vmm.self, g->handle));
    assert_ok(ops->free_range(g->vmm.self, g->va, PAGES * PAGE));
    pleat__arena_destroy(g->arena);
    pleat_vmm_destroy(&g->vmm);
    assert_nothing_held(&g->host);
    pleat_vmm_destroy(&g->host);
}

static void fill(const ground *g, unsigned seed)
{
    uint32_t *word = (uint32_t *)(uintptr_t)g->va;
    for (uint64_t w = 0; w < PAGES * PAGE / sizeof *word; w += 16)
        word[w] = (uint32_t)w * 2654435761u + seed;
}

/* Pieces of odd lengths with gaps between, three quarters of all. */
static uint64_t list(const ground *g, pleat__transfer *transfer)
{
    uint64_t bytes = 0;
    for (unsigned p = 0; p < PIECES; p++) {
        pleat_va from = g->va + p * (2 * PAGE + 256 * 7), to = from + PAGE + p * 2048 + 512;
        assert_ok(pleat__transfer_add(g->arena, transfer, from, to));
        bytes += to - from;
    }
    return bytes;
}

static void clear(const pleat__transfer *transfer)
{
    for (size_t p = 0; p < transfer->count; p++)
        memset((void *)(uintptr_t)transfer->pieces[p].address, 0xee, transfer->pieces[p].bytes);
}

static void check(const ground *g, unsigned seed)
{
    const uint32_t *word = (const uint32_t *)(uintptr_t)g->va;
    for (uint64_t w = 0; w < PAGES * PAGE / sizeof *word; w += 16)
        assert_int_equal(word[w], (uint32_t)w * 2654435761u + seed);
}

static pleat_result go_out(ground *g, pleat__transfer *transfer)
{
    pleat__copying copying;
    pleat_result result = pleat__copying_out(&copying, &g->pinned, transfer, 3 * PAGE);
    if (result == PLEAT_OK)
        result = pleat__copying_reach(&copying, UINT64_MAX);
    return pleat__copying_end(&copying, result);
}

static pleat_result come_back(ground *g, const pleat__transfer *transfer)
{
    pleat__copying copying;
    pleat_result result = pleat__copying_in(&copying, &g->pinned, transfer);
    for (pleat_va end = g->va; end < g->va + PAGES * PAGE && result == PLEAT_OK; end += 4 * PAGE)
        result = pleat__copying_reach(&copying, end);
    if (result == PLEAT_OK)
        result = pleat__copying_reach(&copying, UINT64_MAX);
    return pleat__copying_end(&copying, result);
}

static void transfer_brings_each_byte_back(void **state)
{
    (void)state;
    ground g;
    pleat__host_holdings held;
    begin(&g);
    for (unsigned turn = 0; turn < 3; turn++) {
        pleat__transfer transfer = {0};
        uint64_t bytes = list(&g, &transfer);
        fill(&g, turn);
        assert_ok(go_out(&g, &transfer));
        clear(&transfer);
        assert_ok(come_back(&g, &transfer));
        check(&g, turn);
        pleat__transfer_release(&transfer, &g.pinned);
        /* As many blocks as are needed, the same in each turn. */
        assert_ok(pleat__host_holdings_of(&g.host, &held));
        assert_int_equal(held.blocks, (bytes + 2 * PAGE - 1) / (2 * PAGE));
    }
    pleat__pinned_trim(&g.pinned);
    assert_ok(pleat__host_holdings_of(&g.host, &held));
    assert_int_equal(held.blocks, 0);
    end(&g);
}

static void transfer_of_two_takes_blocks_of_its_own(void **state)
{
    (void)state;
    ground g;
    begin(&g);
    pleat__transfer first = {0}, second = {0};
    fill(&g, 1);
    list(&g, &first);
    list(&g, &second);
    assert_ok(go_out(&g, &first));
    fill(&g, 2);
    assert_ok(go_out(&g, &second));
    clear(&first);
    assert_ok(come_back(&g, &second));
    check(&g, 2);
    fill(&g, 1);
    clear(&first);
    assert_ok(come_back(&g, &first));
    check(&g, 1);
    pleat__transfer_release(&first, &g.pinned);
    pleat__transfer_release(&second, &g.pinned);
    end(&g);
}

/* Pieces that come back by copy engines, or by threads of the device, when one of the streams that
 * will be made is behind for who asks: 1 the engines', 2 the threads', 0 none. */
static uint64_t count_back(ground *g, const pleat__transfer *transfer, pleat_stream behind,
                           pleat__fault_verb verb)
{
    const pleat_vmm_ops *ops = g->vmm.ops;
    pleat_stream before;
    assert_ok(ops->stream_create(g->vmm.self, 0, &before));
    assert_ok(ops->stream_destroy(g->vmm.self, 0, before));
    if (behind != 0)
        assert_ok(pleat__host_stream_trail(&g->host, before + behind));
    pleat__fault_arm(&g->vmm, (pleat__fault_plan){.verb = verb});
    clear(transfer);
    assert_ok(come_back(g, transfer));
    check(g, 5);
    return pleat__fault_calls(&g->vmm);
}

static void transfer_gives_more_to_what_is_faster(void **state)
{
    (void)state;
    ground g;
    pleat__transfer transfer = {0};
    begin(&g);
    fill(&g, 5);
    list(&g, &transfer);
    assert_ok(go_out(&g, &transfer));
    for (pleat_stream behind = 0; behind <= 2; behind++) {
        uint64_t engines = count_back(&g, &transfer, behind, PLEAT__FAULT_copy);
        uint64_t threads = count_back(&g, &transfer, behind, PLEAT__FAULT_copy_by_threads);
        assert_int_equal(engines + threads, transfer.count);
        /* Half each; or what one is given when it has room, and of ten takes the rest. */
        uint64_t slower = behind == 1 ? engines : threads;
        assert_in_range(slower, behind == 0 ? transfer.count / 3 : 2,
                        behind == 0 ? transfer.count * 2 / 3 : transfer.count / 3);
    }
    g.pinned.by_threads = false;
    assert_int_equal(count_back(&g, &transfer, 0, PLEAT__FAULT_copy_by_threads), 0);
    pleat__transfer_release(&transfer, &g.pinned);
    end(&g);
}

/* Where threads cannot read the host's memory the engines copy all. */
static void transfer_without_threads_is_the_engines(void **state)
{
    (void)state;
    ground g;
    pleat__transfer transfer = {0};
    begin(&g);
    fill(&g, 5);
    list(&g, &transfer);
    pleat__fault_arm(&g.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_copy_by_threads, .nth = 1});
    assert_ok(go_out(&g, &transfer));
    assert_int_equal(pleat__fault_hits(&g.vmm), 1);
    assert_int_equal(count_back(&g, &transfer, 0, PLEAT__FAULT_copy), transfer.count);
    pleat__transfer_release(&transfer, &g.pinned);
    end(&g);
}

/* Whichever call fails on the way back: what is kept stays, and comes when it is asked for again.
 */
static void transfer_comes_back_after_each_verb_that_fails(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {
        PLEAT__FAULT_copy,         PLEAT__FAULT_copy_by_threads, PLEAT__FAULT_event_create,
        PLEAT__FAULT_event_record, PLEAT__FAULT_event_query,     PLEAT__FAULT_event_wait,
        PLEAT__FAULT_stream_create};
    ground g;
    pleat__transfer transfer = {0};
    begin(&g);
    fill(&g, 4);
    list(&g, &transfer);
    assert_ok(go_out(&g, &transfer));
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        uint64_t hits = 1, failed = 0;
        for (uint64_t nth = 1; hits > 0; nth++) {
            clear(&transfer);
            pleat__fault_arm(&g.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            pleat_result result = come_back(&g, &transfer);
            hits = pleat__fault_hits(&g.vmm);
            failed += hits;
            assert_result(result, hits > 0 ? PLEAT_E_DRIVER : PLEAT_OK);
            pleat__fault_arm(&g.vmm, (pleat__fault_plan){0});
            assert_ok(come_back(&g, &transfer));
            check(&g, 4);
        }
        assert_true(failed >= 2);
    }
    pleat__transfer_release(&transfer, &g.pinned);
    end(&g);
}

/* One block that cannot be made, whichever thread makes it, ends the transfer; nothing of it is
 * left, and the next one goes. */
static void transfer_survives_each_verb_that_fails(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_host_alloc,   PLEAT__FAULT_copy,
                                              PLEAT__FAULT_event_create, PLEAT__FAULT_stream_create,
                                              PLEAT__FAULT_event_record, PLEAT__FAULT_event_wait};
    for (size_t v = 0; v < sizeof verbs / sizeof *verbs; v++) {
        uint64_t hits = 1;
        for (uint64_t nth = 1; hits > 0; nth++) {
            ground g;
            pleat__transfer transfer = {0};
            begin(&g);
            fill(&g, 3);
            list(&g, &transfer);
            pleat__fault_arm(&g.vmm, (pleat__fault_plan){.verb = verbs[v], .nth = nth});
            pleat_result result = go_out(&g, &transfer);
            hits = pleat__fault_hits(&g.vmm);
            pleat__fault_arm(&g.vmm, (pleat__fault_plan){0});
            assert_result(result, hits > 0 ? PLEAT_E_DRIVER : PLEAT_OK);
            assert_true(hits == 0 || strstr(pleat_last_error()->text, "made to fail") != NULL);
            pleat__transfer_release(&transfer, &g.pinned);
            list(&g, &transfer);
            assert_ok(go_out(&g, &transfer));
            clear(&transfer);
            assert_ok(come_back(&g, &transfer));
            check(&g, 3);
            pleat__transfer_release(&transfer, &g.pinned);
            end(&g);
        }
    }
}

/* What the host's pinned memory is made by; each thread that is not the test's has to be Pleat's.
 */
static struct {
    pleat_vmm host;
    pthread_t program;
    atomic_uint by_own, by_others;
} makers;

static pleat_result make_told(void *self, int device, uint64_t bytes, void **memory)
{
    if (!pthread_equal(pthread_self(), makers.program))
        atomic_fetch_add(pleat__on_own_thread() ? &makers.by_own : &makers.by_others, 1);
    return makers.host.ops->host_alloc(self, device, bytes, memory);
}

/* The driver's verbs of a thread of Pleat's own break no capture that the program begins. */
static void pinning_threads_are_pleats_own(void **state)
{
    (void)state;
    pleat__arena *arena;
    size_t index;
    pleat_host_options options = {.size = sizeof options, .granularity = PAGE};
    assert_ok(pleat_vmm_host(&options, &makers.host));
    assert_ok(pleat__arena_create(&arena));
    makers.program = pthread_self();
    pleat_vmm_ops ops = *makers.host.ops;
    ops.host_alloc = make_told;
    pleat__pinned pinned = {.vmm = {&ops, makers.host.self},
                            .arena = arena,
                            .page_bytes = PAGE,
                            .block_bytes = 2 * PAGE};
    assert_ok(pleat__pinned_open(&pinned, 16 * PAGE));
    while (pinned.thread_count > 0 && makers.by_own + makers.by_others == 0)
        sched_yield();
    for (int b = 0; b < 8; b++)
        assert_ok(pleat__pinned_take(&pinned, &index));
    assert_result(pleat__pinned_take(&pinned, &index), PLEAT_E_STATE);
    pleat__pinned_close(&pinned);
    assert_int_equal(makers.by_others, 0);
    for (index = 0; index < pinned.count; index++)
        pleat__pinned_give(&pinned, index);
    pleat__pinned_release(&pinned);
    pleat__arena_destroy(arena);
    assert_nothing_held(&makers.host);
    pleat_vmm_destroy(&makers.host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfer_brings_each_byte_back),
        cmocka_unit_test(transfer_of_two_takes_blocks_of_its_own),
        cmocka_unit_test(transfer_gives_more_to_what_is_faster),
        cmocka_unit_test(transfer_without_threads_is_the_engines),
        cmocka_unit_test(transfer_survives_each_verb_that_fails),
        cmocka_unit_test(transfer_comes_back_after_each_verb_that_fails),
        cmocka_unit_test(pinning_threads_are_pleats_own),
    };
    return cmocka_run_group_tests_name("transfer", tests, NULL, NULL);
}
