/*
 * windows.c: labels that name microbatches and modules, and the windows of a plan for the policy
 * stweaver that follow from them.
 */
#include "arena.h"

#include <plan/base/plan.h>
#include <plan/model/requests.h>
#include <pleat/plan.h>
#include <pleat/trace.h>
#include <stdio.h>
#include <string.h>

typedef struct job {
    pleat_trace *trace;
    uint32_t label;
    uint32_t next;
    test_random random;
} job;

static void begin(job *j)
{
    uint16_t stream;
    *j = (job){.random = {0x3d0d}};
    assert_ok(pleat_trace_new(&j->trace));
    assert_ok(pleat_trace_add_stream(j->trace, 0, &stream));
}

static void under(job *j, const char *text)
{
    assert_ok(pleat_trace_add_label(j->trace, text, strlen(text), &j->label));
}

static void add(job *j, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    const pleat_trace_event event = {
        .kind = (uint8_t)kind, .label = j->label, .request = request, .size = size};
    assert_ok(pleat_trace_add(j->trace, &event));
}

static uint32_t take(job *j, uint64_t size)
{
    add(j, PLEAT_EVENT_ALLOC, j->next, size);
    return j->next++;
}

static void give(job *j, uint32_t request)
{
    add(j, PLEAT_EVENT_FREE_REQUESTED, request, 0);
    add(j, PLEAT_EVENT_FREE_COMPLETED, request, 0);
}

static void labels_part_microbatches_and_passes_of_modules(void **state)
{
    (void)state;
    job j;
    pleat__requests requests;
    begin(&j);
    uint32_t weights = take(&j, 4096);
    under(&j, "iter=0;phase=F;mb=0;module=a");
    uint32_t a0 = take(&j, 512);
    under(&j, "");
    uint32_t still_a0 = take(&j, 512); /* another thread's */
    under(&j, "iter=0;phase=F;mb=0;module=b");
    uint32_t b0 = take(&j, 512);
    under(&j, "iter=0;module=a;mb=1;phase=F");
    uint32_t a1 = take(&j, 512);
    under(&j, "iter=0;mb=1;phase=F;module=a");
    uint32_t still_a1 = take(&j, 512);
    under(&j, "iter=0;phase=B;mb=1;module=a");
    give(&j, a1);
    under(&j, "iter=0;phase=opt");
    give(&j, b0);
    assert_ok(pleat__requests_make(j.trace, 0, arena, &requests));
    const pleat__request *of = requests.items;
    assert_int_not_equal(of[a0].alloc_phase, of[weights].alloc_phase);
    assert_int_equal(of[still_a0].alloc_phase, of[a0].alloc_phase);
    assert_int_equal(of[b0].alloc_phase, of[a0].alloc_phase);
    assert_int_not_equal(of[a1].alloc_phase, of[a0].alloc_phase);
    assert_int_equal(of[still_a1].alloc_phase, of[a1].alloc_phase);
    assert_int_not_equal(of[a1].free_phase, of[a1].alloc_phase);
    /* What came first, a, b, a of the second microbatch, its backward, no module. */
    static const uint32_t passes[] = {0, 1, 3, 4, 6, 7};
    assert_int_equal(requests.pass_count, 6);
    assert_memory_equal(requests.passes, passes, sizeof passes);
    assert_int_equal(of[weights].alloc_pass, 0);
    assert_int_equal(of[a0].alloc_pass, 1);
    assert_int_equal(of[still_a0].alloc_pass, 1);
    assert_int_equal(of[b0].alloc_pass, 2);
    assert_int_equal(of[b0].free_pass, 5);
    assert_int_equal(of[still_a1].alloc_pass, 3);
    assert_int_equal(of[a1].free_pass, 4);
    pleat__requests_free(&requests);
    pleat_trace_free(j.trace);
}

static void labels_without_modules_have_no_passes(void **state)
{
    (void)state;
    job j;
    pleat__requests requests;
    begin(&j);
    under(&j, "iter=0;phase=F;module=");
    take(&j, 512);
    under(&j, "iter=0;phase=B");
    take(&j, 512);
    assert_ok(pleat__requests_make(j.trace, 0, arena, &requests));
    assert_int_equal(requests.pass_count, 0);
    assert_int_equal(requests.items[1].alloc_pass, 0);
    pleat__requests_free(&requests);
    pleat_trace_free(j.trace);
}

/* ---- a mixture of experts ---- */

#define LAYERS       3
#define MICROBATCHES 2
#define EXPERTS      4
#define MIB          (1ull << 20)
/* Slots of an iteration: of each forward a static one that the module frees before its experts, one
 * that it keeps, and the experts' two each. */
#define PASS_SLOTS (2 + 2 * EXPERTS)
#define FORWARD_SLOTS                                                                              \
    (MICROBATCHES * LAYERS * PASS_SLOTS) /* one each of the backwards comes behind */

static void forward(job *j, int iteration, int mb, int layer, uint32_t *kept)
{
    char text[96];
    snprintf(text, sizeof text, "iter=%d;phase=F;mb=%d;module=layers.%d", iteration, mb, layer);
    under(j, text);
    uint32_t early = take(j, 64 * MIB);
    *kept++ = take(j, 48 * MIB);
    give(j, early);
    for (int e = 0; e < EXPERTS; e++) {
        uint64_t tokens = 1 + test_random_below(&j->random, 1000);
        *kept++ = take(j, tokens * 4096);
        give(j, take(j, tokens * 2048));
    }
}

static void backward(job *j, int iteration, int mb, int layer, const uint32_t *kept)
{
    char text[96];
    snprintf(text, sizeof text, "iter=%d;phase=B;mb=%d;module=layers.%d", iteration, mb, layer);
    under(j, text);
    for (int e = EXPERTS; e >= 0; e--)
        give(j, kept[e]);
    give(j, take(j, 80 * MIB));
}

static pleat_plan *plan_of_experts(pleat_trace **trace)
{
    job j;
    uint32_t kept[MICROBATCHES][LAYERS][1 + EXPERTS];
    pleat_plan *plan;
    begin(&j);
    take(&j, 50 * MIB);
    for (int i = 0; i < 5; i++) {
        for (int mb = 0; mb < MICROBATCHES; mb++)
            for (int l = 0; l < LAYERS; l++)
                forward(&j, i, mb, l, kept[mb][l]);
        for (int mb = 0; mb < MICROBATCHES; mb++)
            for (int l = LAYERS; l-- > 0;)
                backward(&j, i, mb, l, kept[mb][l]);
    }
    under(&j, "iter=5;phase=end");
    take(&j, 512);
    const pleat_plan_options options = {
        .size = sizeof options, .algorithm = "stweaver", .no_fold = 1};
    assert_ok(pleat_plan_make(j.trace, &options, &plan));
    *trace = j.trace;
    return plan;
}

static void experts_of_a_pass_share_a_window_and_no_others(void **state)
{
    (void)state;
    pleat_trace *trace;
    pleat_plan *plan = plan_of_experts(&trace);
    const pleat__sequence *steady = &plan->steady;
    assert_int_equal(steady->slot_count, FORWARD_SLOTS + MICROBATCHES * LAYERS);
    uint32_t windows = 0;
    for (uint32_t i = 0; i < FORWARD_SLOTS; i++) {
        const pleat__slot *slot = &steady->slots[i];
        uint32_t within = i % PASS_SLOTS;
        assert_int_equal(slot->class == PLEAT__CLASS_DYNAMIC, within >= 2);
        assert_int_equal(slot->lane, PLEAT__NO_LANE);
        if (within < 2)
            continue;
        windows = slot->window + 1 > windows ? slot->window + 1 : windows;
        for (uint32_t k = 0; k < i; k++) {
            const pleat__slot *other = &steady->slots[k];
            /* What a forward keeps for its backward, and what it frees itself. */
            bool same = k / PASS_SLOTS == i / PASS_SLOTS && k % 2 == i % 2;
            if (other->class == PLEAT__CLASS_DYNAMIC)
                assert_int_equal(other->window == slot->window, same);
        }
    }
    assert_int_equal(windows, 2 * MICROBATCHES * LAYERS);
    /* The pool holds what is static: the weights, what is kept, and one early request at a time. */
    assert_int_equal(plan->lane_count, 0);
    assert_int_equal(plan->physical_bytes, (50 + 48 * MICROBATCHES * LAYERS + 80) * MIB);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

static bool meets(const pleat__reusable *row, const pleat__slot *slot)
{
    return row->place < slot->place + slot->size && slot->place < row->place + row->bytes;
}

/* The first 64 MiB of a forward are over before its experts come, the last ones of a backward come
 * when all that was kept for it is freed; both are in the passes all the same. */
static void windows_last_from_pass_to_pass(void **state)
{
    (void)state;
    pleat_trace *trace;
    pleat_plan *plan = plan_of_experts(&trace);
    assert_true(plan->reusable_count > 0);
    const pleat__slot *slots = plan->steady.slots;
    for (uint32_t p = 0; p < MICROBATCHES * LAYERS; p++) {
        /* Backwards begin with the last layer. */
        uint32_t backward = p / LAYERS * LAYERS + (LAYERS - 1 - p % LAYERS);
        const pleat__slot *early = &slots[p * PASS_SLOTS], *late = &slots[FORWARD_SLOTS + backward];
        const pleat__slot *kept = early + 2, *temporary = early + 3;
        assert_true(early->free_at <= kept->alloc_at && kept->free_at <= late->alloc_at);
        for (uint32_t r = 0; r < plan->reusable_count; r++) {
            const pleat__reusable *row = &plan->reusable[r];
            if (row->window == kept->window || row->window == temporary->window)
                assert_false(meets(row, early));
            if (row->window == kept->window)
                assert_false(meets(row, late));
        }
    }
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_part_microbatches_and_passes_of_modules),
        cmocka_unit_test(labels_without_modules_have_no_passes),
        cmocka_unit_test(experts_of_a_pass_share_a_window_and_no_others),
        cmocka_unit_test(windows_last_from_pass_to_pass),
    };
    return cmocka_run_group_tests_name("windows", tests, open_arena, close_arena);
}
