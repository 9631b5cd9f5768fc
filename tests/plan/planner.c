/*
 * planner.c: from traces to plans: the iteration is found, classes are told apart, and no two slots
 * that are live together overlap.
 */
#include "commas.h"
#include "test.h"

#include <math.h>
#include <plan/model/iteration.h>
#include <plan/planner.h>
#include <string.h>
#include <time.h>

/* A job as a program would run it: everything is written down as a trace. */
struct job {
    pleat_trace *trace;
    uint32_t label;
    uint32_t next;
};

static struct job job_begin(void)
{
    struct job job = {0};
    assert_ok(pleat_trace_new(&job.trace));
    uint16_t stream;
    assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
    return job;
}

static void job_label(struct job *job, const char *text)
{
    assert_ok(pleat_trace_add_label(job->trace, text, strlen(text), &job->label));
}

static void job_event(struct job *job, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    pleat_trace_event event = {
        .kind = (uint8_t)kind, .label = job->label, .request = request, .size = size};
    assert_ok(pleat_trace_add(job->trace, &event));
}

static uint32_t job_alloc(struct job *job, uint64_t size)
{
    job_event(job, PLEAT_EVENT_ALLOC, job->next, size);
    return job->next++;
}

static void job_free(struct job *job, uint32_t request)
{
    job_event(job, PLEAT_EVENT_FREE_REQUESTED, request, 0);
    job_event(job, PLEAT_EVENT_FREE_COMPLETED, request, 0);
}

#define MIB    (1u << 20)
#define LAYERS 12

/* Something else is begun behind the last iteration. */
static void job_end(struct job *job)
{
    job_label(job, "iter=99;phase=end");
    job_alloc(job, MIB);
}

/* The iteration that is found in it, in the arena that is returned. */
static pleat__arena *job_find(const struct job *job, pleat__iteration *found)
{
    pleat__arena *arena;
    pleat__requests requests;
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__requests_make(job->trace, 0, arena, &requests));
    assert_ok(pleat__iteration_find(&requests, found));
    return arena;
}

/* Forward keeps an activation a layer and some temporaries, backward gives them up; the loss lives
 * into the next iteration; the first iteration makes a state a layer that stays. */
static void job_iteration(struct job *job, int number, bool labels, uint64_t odd_size,
                          uint32_t *loss)
{
    uint32_t kept[LAYERS];
    char text[32];
    snprintf(text, sizeof text, "iter=%d;phase=F", number);
    if (labels)
        job_label(job, text);
    for (int i = 0; i < LAYERS; i++) {
        kept[i] = job_alloc(job, (uint64_t)(3 + i % 3) * MIB + 100);
        uint32_t temporary = job_alloc(job, (uint64_t)(5 + i) * MIB);
        uint32_t odd = job_alloc(job, i == 4 ? odd_size : 7000);
        job_free(job, temporary);
        job_free(job, odd);
    }
    if (*loss != UINT32_MAX)
        job_free(job, *loss);
    *loss = job_alloc(job, 40 * MIB);
    snprintf(text, sizeof text, "iter=%d;phase=B", number);
    if (labels)
        job_label(job, text);
    for (int i = LAYERS; i-- > 0;) {
        uint32_t gradient = job_alloc(job, 6 * MIB + 512u * (unsigned)i);
        job_free(job, kept[i]);
        job_free(job, gradient);
    }
    for (int i = 0; number == 0 && i < LAYERS; i++)
        job_alloc(job, (uint64_t)(2 + i) * MIB);
}

static pleat_trace *job_make(bool labels, const uint64_t *odd_sizes, int iterations)
{
    struct job job = job_begin();
    uint32_t loss = UINT32_MAX, weights[LAYERS];
    for (int i = 0; i < LAYERS; i++)
        weights[i] = job_alloc(&job, (uint64_t)(10 + i) * MIB);
    for (int i = 0; i < iterations; i++)
        job_iteration(&job, i, labels, odd_sizes[i], &loss);
    if (labels)
        job_label(&job, "iter=99;phase=end");
    for (int i = 0; i < LAYERS; i++)
        job_free(&job, weights[i]);
    return job.trace;
}

/* A slot's life, as half-open pieces of [0, events); persistent ones have one over everything. */
static int lives_of(const pleat__sequence *sequence, const pleat__slot *slot, pleat__range *lives)
{
    uint64_t end = slot->free_at == PLEAT__NEVER ? sequence->events : slot->free_at;
    if (end > slot->alloc_at) {
        lives[0] = (pleat__range){slot->alloc_at, end};
        return 1;
    }
    lives[0] = (pleat__range){slot->alloc_at, sequence->events};
    lives[1] = (pleat__range){0, end};
    return 2;
}

static bool live_together(const pleat__sequence *sequence, const pleat__slot *a,
                          const pleat__slot *b)
{
    pleat__range as[2], bs[2];
    int an = lives_of(sequence, a, as), bn = lives_of(sequence, b, bs);
    for (int i = 0; i < an; i++)
        for (int j = 0; j < bn; j++)
            if (pleat__range_overlaps(as[i], bs[j]))
                return true;
    return false;
}

/* Page by page of both: slow and certain. */
static bool share_memory(const pleat_plan *plan, const uint32_t *table, const pleat__slot *a,
                         const pleat__slot *b)
{
    uint64_t chunk = plan->chunk_bytes;
    for (uint64_t x = a->place; x < a->place + a->size; x = (x / chunk + 1) * chunk)
        for (uint64_t y = b->place; y < b->place + b->size; y = (y / chunk + 1) * chunk) {
            uint64_t x_end = (x / chunk + 1) * chunk, y_end = (y / chunk + 1) * chunk;
            x_end = x_end < a->place + a->size ? x_end : a->place + a->size;
            y_end = y_end < b->place + b->size ? y_end : b->place + b->size;
            pleat__range in_x = {x % chunk, x % chunk + (x_end - x)};
            pleat__range in_y = {y % chunk, y % chunk + (y_end - y)};
            if (table[x / chunk] == table[y / chunk] && pleat__range_overlaps(in_x, in_y))
                return true;
        }
    return false;
}

static void assert_holds(const pleat_plan *plan)
{
    uint32_t *table;
    assert_ok(pleat__plan_page_table(plan, plan->arena, &table));
    const pleat__sequence *sequences[] = {&plan->first, &plan->steady};
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < sequences[s]->slot_count; i++)
            for (uint32_t j = 0; j < i; j++) {
                const pleat__slot *a = &sequences[s]->slots[i], *b = &sequences[s]->slots[j];
                if (a->place != PLEAT__NOWHERE && b->place != PLEAT__NOWHERE &&
                    live_together(sequences[s], a, b))
                    assert_false(share_memory(plan, table, a, b));
            }
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        for (uint32_t j = 0; j < plan->steady.slot_count; j++) {
            const pleat__slot *a = &plan->first.slots[i], *b = &plan->steady.slots[j];
            if (a->class == PLEAT__CLASS_PERSISTENT && b->place != PLEAT__NOWHERE)
                assert_false(share_memory(plan, table, a, b));
        }
}

static uint32_t count_class(const pleat__sequence *sequence, uint8_t class)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < sequence->slot_count; i++)
        count += sequence->slots[i].class == class;
    return count;
}

static void expect_job(const pleat_plan *plan)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan), older = {.iteration_requests = 0};
    pleat_plan_summary_fill(plan, &older, offsetof(pleat_plan_summary, iteration_requests));
    assert_int_equal(older.requests, summary.requests);
    assert_int_equal(older.iteration_requests, 0);
    assert_int_equal(summary.iteration_requests, 4 * LAYERS + 1);
    assert_int_equal(count_class(&plan->first, PLEAT__CLASS_PERSISTENT), 2 * LAYERS);
    assert_int_equal(count_class(&plan->steady, PLEAT__CLASS_PERSISTENT), 0);
    assert_int_equal(count_class(&plan->steady, PLEAT__CLASS_CROSSING), 1);
    assert_true(summary.physical_bytes >= summary.max_live_bytes);
    assert_true(summary.physical_bytes <= summary.max_live_bytes + 2 * plan->chunk_bytes);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT)
            assert_true(plan->first.slots[i].place != PLEAT__NOWHERE);
    assert_holds(plan);
}

static void planner_plans_a_labelled_job(void **state)
{
    (void)state;
    static const uint64_t odd_sizes[] = {7000, 7000, 7000};
    pleat_trace *trace = job_make(true, odd_sizes, 3);
    pleat__plan_report report;
    pleat_plan *plan;
    assert_ok(pleat__plan_make(trace, NULL, NULL, &report, &plan));
    expect_job(plan);
    assert_int_equal(pleat_plan_summary_of(plan).dynamic_requests, 0);
    assert_int_equal(plan->steady.phase_count, 2);
    assert_string_equal(plan->labels[plan->steady.phases[1].label], "B");
    /* All but the loss, which stays into the steady iterations, has a place before them. */
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        assert_true(plan->first.slots[i].place != PLEAT__NOWHERE);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

/* Of more iterations than are compared all that came before them were the beginning. */
static void planner_ends_the_beginning_where_iterations_agree(void **state)
{
    (void)state;
    enum { ITERATIONS = PLEAT__PROFILES + 24, FIRST = 6 * LAYERS + 1 };
    uint64_t odd_sizes[ITERATIONS];
    for (int i = 0; i < ITERATIONS; i++)
        odd_sizes[i] = 7000;
    pleat_trace *trace = job_make(true, odd_sizes, ITERATIONS);
    pleat__plan_report report;
    pleat_plan *plan;
    assert_ok(pleat__plan_make(trace, NULL, NULL, &report, &plan));
    assert_int_equal(plan->first.slot_count, FIRST);
    assert_int_equal(report.profiles, PLEAT__PROFILES);
    assert_holds(plan);
    assert_ok(pleat_plan_verify(plan, trace));
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

/* The requests of an iteration that keeps an activation a layer; the first one makes states. */
static void plain_iteration(struct job *job, int number)
{
    uint32_t kept[LAYERS];
    char text[32];
    snprintf(text, sizeof text, "iter=%d;phase=F", number);
    job_label(job, text);
    for (int i = 0; i < LAYERS; i++) {
        kept[i] = job_alloc(job, (uint64_t)(3 + i % 3) * MIB);
        job_free(job, job_alloc(job, (uint64_t)(5 + i) * MIB));
    }
    for (int i = LAYERS; i-- > 0;)
        job_free(job, kept[i]);
    for (int i = 0; number == 0 && i < LAYERS; i++)
        job_alloc(job, (uint64_t)(2 + i) * MIB);
}

/* Plans the job, which ends: its beginning is to be its first `requests`. Returns the profiles. */
static uint32_t expect_beginning(struct job *job, uint32_t requests)
{
    pleat__plan_report report;
    pleat_plan *plan;
    job_end(job);
    assert_ok(pleat__plan_make(job->trace, NULL, NULL, &report, &plan));
    assert_int_equal(plan->first.slot_count, requests);
    assert_int_equal(plan->steady.slot_count, 2 * LAYERS);
    assert_holds(plan);
    assert_ok(pleat_plan_verify(plan, job->trace));
    pleat_plan_free(plan);
    pleat_trace_free(job->trace);
    return report.profiles;
}

/* An evaluation behind each third iteration makes another one of that, which leaves nothing. */
static void planner_takes_no_interruption_for_the_beginning(void **state)
{
    (void)state;
    struct job job = job_begin();
    for (int number = 0; number < 13; number++) {
        plain_iteration(&job, number);
        for (int i = 0; number % 3 == 2 && i < LAYERS; i++)
            job_free(&job, job_alloc(&job, (uint64_t)(20 + i) * MIB));
    }
    assert_int_equal(expect_beginning(&job, 3 * LAYERS), 7);
}

/* Each iteration but the last makes a batch for the next, which is given back in the one behind. */
static void planner_takes_no_last_iteration_that_makes_less(void **state)
{
    (void)state;
    enum { ITERATIONS = 6 };
    struct job job = job_begin();
    uint32_t batch = 0, before = UINT32_MAX;
    for (int number = 0; number < ITERATIONS; number++) {
        plain_iteration(&job, number);
        if (before != UINT32_MAX)
            job_free(&job, before);
        before = number == 0 ? UINT32_MAX : batch;
        if (number < ITERATIONS - 1)
            batch = job_alloc(&job, 9 * MIB);
    }
    pleat__iteration found;
    job_end(&job);
    pleat__arena *arena = job_find(&job, &found);
    assert_int_equal(found.steady.items, 2 * LAYERS + 1);
    assert_int_equal(found.profile_count, ITERATIONS - 3);
    pleat__arena_destroy(arena);
    pleat_trace_free(job.trace);
}

/* Layers that are all alike, of sizes that follow a unit. In the first iteration, which no mark
 * begins, two workspaces are made in the first layer and one in the last, and stay. */
static void layered_iteration(struct job *job, int number, uint64_t unit)
{
    enum { DEPTH = 30, OPERATIONS = 12 };
    uint32_t kept[DEPTH];
    char text[32];
    snprintf(text, sizeof text, "iter=%d;phase=F", number);
    if (number > 0)
        job_label(job, text);
    for (int i = 0; i < DEPTH; i++) {
        kept[i] = job_alloc(job, 3 * unit);
        for (int k = 0; k < OPERATIONS; k++) {
            uint32_t temporary = job_alloc(job, (4 + k) * unit);
            bool workspace = i == 0 ? k >= OPERATIONS - 2 : i == DEPTH - 1 && k == 0;
            if (number == 0 && workspace)
                job_alloc(job, (uint64_t)(1 + 31 * (k % 2)) * MIB);
            job_free(job, temporary);
        }
    }
    for (int i = DEPTH; i-- > 0;) {
        uint32_t gradient = job_alloc(job, 6 * unit);
        job_free(job, kept[i]);
        job_free(job, gradient);
    }
}

#define WEIGHTS 20

/* A model's load and four of them, each of which has larger sizes than the one before by `more`
 * bytes a unit. */
static struct job job_of_layers(uint64_t more)
{
    struct job job = job_begin();
    for (int i = 0; i < WEIGHTS; i++)
        job_alloc(&job, (uint64_t)(10 + i) * MIB);
    for (int i = 0; i < 4; i++)
        layered_iteration(&job, i, MIB + more * (uint64_t)i);
    return job;
}

static void assert_first_behind_the_load(const struct job *job)
{
    pleat__iteration found;
    pleat__arena *arena = job_find(job, &found);
    assert_int_equal(found.early_count, 1);
    assert_int_equal(found.early[0].item, WEIGHTS);
    pleat__arena_destroy(arena);
}

/* Not a layer later: what is laid out from there has no places for the layers of the first one. */
static void planner_finds_a_first_iteration_that_makes_workspaces(void **state)
{
    (void)state;
    struct job job = job_of_layers(0);
    assert_first_behind_the_load(&job);
    pleat_plan *plan;
    assert_ok(pleat_plan_make(job.trace, NULL, &plan));
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        assert_true(plan->first.slots[i].place != PLEAT__NOWHERE);
    assert_holds(plan);
    pleat_plan_free(plan);
    pleat_trace_free(job.trace);
}

/* Where lengths are drawn no size comes twice, and what is freed as soon tells the part. */
static void planner_finds_a_first_iteration_of_other_sizes(void **state)
{
    (void)state;
    struct job job = job_of_layers(4096);
    assert_first_behind_the_load(&job);
    pleat_trace_free(job.trace);
}

static void planner_finds_the_period_without_labels(void **state)
{
    (void)state;
    static const uint64_t odd_sizes[] = {7000, 7000, 7000, 7000, 7000};
    pleat_trace *trace = job_make(false, odd_sizes, 5);
    pleat__plan_report report;
    pleat_plan *plan;
    assert_ok(pleat__plan_make(trace, NULL, NULL, &report, &plan));
    assert_int_equal(report.period, 4 * LAYERS + 1);
    expect_job(plan);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

static void planner_tells_dynamic_requests(void **state)
{
    (void)state;
    static const uint64_t odd_sizes[] = {7000, 9000, 8000};
    pleat_trace *trace = job_make(true, odd_sizes, 3);
    pleat__plan_report report;
    pleat_plan *plan;
    assert_ok(pleat__plan_make(trace, NULL, NULL, &report, &plan));
    assert_int_equal(pleat_plan_summary_of(plan).dynamic_requests, 1);
    const pleat__slot *odd = &plan->steady.slots[4 * 3 + 2];
    assert_int_equal(odd->class, PLEAT__CLASS_DYNAMIC);
    assert_int_equal(odd->size, 9000);
    assert_holds(plan);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
}

static void planner_refuses_what_does_not_repeat(void **state)
{
    (void)state;
    struct job job = job_begin();
    test_random random = test_random_begin("planner_refuses_what_does_not_repeat", 11);
    for (int i = 0; i < 400; i++)
        job_alloc(&job, 1 + test_random_below(&random, 1u << 30));
    pleat_plan *plan;
    assert_result(pleat_plan_make(job.trace, NULL, &plan), PLEAT_E_INPUT);
    pleat_trace_free(job.trace);
    pleat_trace *empty;
    assert_ok(pleat_trace_new(&empty));
    assert_result(pleat_plan_make(empty, NULL, &plan), PLEAT_E_INPUT);
    pleat_trace_free(empty);
}

static void planner_refuses_bad_options(void **state)
{
    (void)state;
    static const uint64_t odd_sizes[] = {7000, 7000, 7000};
    pleat_trace *trace = job_make(true, odd_sizes, 3);
    pleat_plan *plan;
    const pleat_plan_options good = {.size = sizeof good};
    pleat_plan_options bad = good;
    bad.algorithm = "luck";
    assert_result(pleat_plan_make(trace, &bad, &plan), PLEAT_E_INVALID);
    bad = good;
    bad.chunk_bytes = 1000;
    assert_result(pleat_plan_make(trace, &bad, &plan), PLEAT_E_INVALID);
    bad = good;
    bad.size = 8;
    assert_result(pleat_plan_make(trace, &bad, &plan), PLEAT_E_ABI);
    pleat_trace_free(trace);
}

static void planner_gives_the_same_plan_twice(void **state)
{
    (void)state;
    static const uint64_t odd_sizes[] = {7000, 9000, 8000};
    pleat_trace *trace = job_make(true, odd_sizes, 3);
    pleat_plan *a, *b;
    assert_ok(pleat_plan_make(trace, NULL, &a));
    assert_ok(pleat_plan_make(trace, NULL, &b));
    assert_int_equal(a->steady.slot_count, b->steady.slot_count);
    assert_memory_equal(a->steady.slots, b->steady.slots,
                        a->steady.slot_count * sizeof *a->steady.slots);
    assert_memory_equal(a->first.slots, b->first.slots,
                        a->first.slot_count * sizeof *a->first.slots);
    assert_int_equal(a->map_count, b->map_count);
    assert_memory_equal(a->maps, b->maps, a->map_count * sizeof *a->maps);
    pleat_plan_free(a);
    pleat_plan_free(b);
    pleat_trace_free(trace);
}

/* Two requests of which one lives an event and the other 2^27 more have nothing in common, though
 * 32 times that is 2^32. */
static void planner_tells_long_lives_apart(void **state)
{
    (void)state;
    const uint32_t lives[] = {1, (1u << 27) + 1, (1u << 27) + (1u << 22)};
    pleat__request items[] = {{.size = 1000}, {.size = 5000}, {.size = 20000}};
    pleat__requests requests = {.items = items, .count = 3};
    assert_ok(pleat__arena_create(&requests.arena));
    for (uint32_t i = 0; i < 3; i++)
        items[i].free_at = lives[i];
    uint32_t pair;
    for (uint32_t i = 0; i < 2; i++) {
        const pleat__stretch a = {.item = i, .items = 1}, b = {.item = i + 1, .items = 1};
        assert_int_equal(pleat__align(&requests, a, b, &pair), i); /* how many have a partner */
    }
    pleat__arena_destroy(requests.arena);
}

/* Phases are numbered in the order of their first labels, and labels with the same phase and
 * microbatch have the same, however they are written. 65,534 have numbers; beyond, and where a
 * label names none, the one in force goes on. One comparison of each two took minutes. */
static void planner_numbers_the_phases_of_many_labels(void **state)
{
    (void)state;
    enum { NAMED = 9, MANY = 65600, MOST = 65534 };
    static const struct {
        const char *label;
        uint16_t phase;
    } named[NAMED] = {{"B", 1},
                      {"iter=3;phase=A", 2},
                      {"phase=B", 1},
                      {"phase=B;mb=2", 3},
                      {"phase=B;mb=", 1},
                      {"iter=3;mb=2;phase=B", 3},
                      {"iter=4", 3},
                      {"B;mb=2", 4},
                      {"phase=A;iter=4", 2}};
    struct job job = job_begin();
    job_alloc(&job, 1);
    for (uint32_t i = 0; i < MANY; i++) {
        char text[32];
        snprintf(text, sizeof text, "phase=many %u", i);
        job_label(&job, i < NAMED ? named[i].label : text);
        job_alloc(&job, 1);
    }
    pleat__arena *arena;
    pleat__requests requests;
    assert_ok(pleat__arena_create(&arena));
    clock_t begin = clock();
    assert_ok(pleat__requests_make(job.trace, 0, arena, &requests));
    assert_true(clock() - begin < 10 * CLOCKS_PER_SEC);
    assert_int_equal(requests.phase_count, MOST + 1);
    assert_int_equal(requests.items[0].alloc_phase, 0);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t many = i - NAMED + 5;
        assert_int_equal(requests.items[1 + i].alloc_phase, i < NAMED     ? named[i].phase
                                                            : many < MOST ? many
                                                                          : MOST);
    }
    pleat__requests_free(&requests);
    pleat__arena_destroy(arena);
    pleat_trace_free(job.trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planner_plans_a_labelled_job),
        cmocka_unit_test(planner_ends_the_beginning_where_iterations_agree),
        cmocka_unit_test(planner_takes_no_interruption_for_the_beginning),
        cmocka_unit_test(planner_takes_no_last_iteration_that_makes_less),
        cmocka_unit_test(planner_finds_a_first_iteration_that_makes_workspaces),
        cmocka_unit_test(planner_finds_a_first_iteration_of_other_sizes),
        cmocka_unit_test(planner_finds_the_period_without_labels),
        cmocka_unit_test(planner_tells_dynamic_requests),
        cmocka_unit_test(planner_refuses_what_does_not_repeat),
        cmocka_unit_test(planner_refuses_bad_options),
        cmocka_unit_test(planner_gives_the_same_plan_twice),
        cmocka_unit_test(planner_tells_long_lives_apart),
        cmocka_unit_test(planner_numbers_the_phases_of_many_labels),
    };
    return cmocka_run_group_tests_name("planner", tests, NULL, NULL);
}
