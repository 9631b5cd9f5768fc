/*
 * elastic.c: random jobs whose sizes are functions of a number: the functions and the number are
 * found again, every instance holds and is small, and what breaks the rules is reported.
 */
#include "jobs.h"
#include "packs.h"

#include <plan/elastic_fit.h>
#include <plan/elastic_layout.h>
#include <plan/elastic_plan.h>
#include <string.h>

#define CHUNK (1u << 16)

/* --- jobs --------------------------------------------------------------------------------------*/

/* One kind of tensor: size(u, v) as recipes have it, in bytes. */
typedef struct kind {
    uint64_t constant, linear, square, product, squares;
    uint64_t round; /* the program rounds up to so many; 0: not */
    uint64_t most;  /* and takes no more; 0: no bound */
} kind;

static uint64_t size_of(const kind *k, uint64_t u, uint64_t v)
{
    uint64_t size = k->constant + k->linear * u + k->square * u * u + k->product * u * v +
                    k->squares * u * u * v;
    if (k->round != 0)
        size = (size + k->round - 1) / k->round * k->round;
    return k->most != 0 && size > k->most ? k->most : size;
}

typedef struct job {
    kind kinds[48];
    uint32_t kind_count;
    uint64_t seed;
    uint32_t steps;
    uint32_t break_at;     /* this request behind the prologue breaks its function */
    uint32_t weights;      /* persistent tensors */
    uint32_t prologue;     /* constant requests at an iteration's beginning */
    uint64_t us[8], vs[8]; /* of each iteration */
    uint32_t iterations;
} job;

/* Most kinds are so many bytes for each sample; the others are constant, or have a constant part,
 * or a mask's square. */
static job random_job(test_random *random, bool squares)
{
    job j = {.seed = test_random_next(random),
             .steps = 400,
             .break_at = UINT32_MAX,
             .weights = 1 + (uint32_t)test_random_below(random, 20),
             .prologue = (uint32_t)test_random_below(random, 12),
             .kind_count = 24};
    for (uint32_t i = 0; i < j.kind_count; i++) {
        uint64_t unit = (1 + test_random_below(random, 64)) << test_random_below(random, 12);
        uint64_t dice = i < 16 ? 0 : 5 + test_random_below(random, 5);
        j.kinds[i] = dice < 6   ? (kind){.linear = unit}
                     : dice < 8 ? (kind){.constant = unit * 4}
                     : dice < 9 ? (kind){.constant = 8 * (unit % 100), .linear = unit}
                     : squares  ? (kind){.square = 1 + unit / 64}
                                : (kind){.linear = unit * 2};
    }
    return j;
}

static void add_request(test_jobber *t, uint64_t size)
{
    t->live[t->live_count++] = t->next;
    test_job_add(t, PLEAT_EVENT_ALLOC, t->next++, size, 0);
}

static void iterate(test_jobber *t, const job *j, uint64_t u, uint64_t v)
{
    test_random random = {j->seed};
    test_job_add(t, PLEAT_EVENT_MARK, 0, 0, 0);
    uint32_t requests = 0;
    for (uint32_t i = 0; i < j->prologue; i++)
        add_request(t, 4096 * (i % 3 + 1));
    for (uint32_t step = 0; step < j->steps; step++) {
        uint64_t dice = test_random_next(&random);
        if (t->live_count == 0 || (dice % 2 == 0 && t->live_count < 60)) {
            uint64_t size = size_of(&j->kinds[(dice >> 8) % j->kind_count], u, v);
            add_request(t, requests++ == j->break_at ? size / 2 + 12345 : size);
        } else {
            uint32_t at = (uint32_t)((dice >> 8) % t->live_count);
            test_job_free(t, t->live[at]);
            t->live[at] = t->live[--t->live_count];
        }
    }
    while (t->live_count > 0)
        test_job_free(t, t->live[--t->live_count]);
}

static pleat_trace *trace_of(const job *j)
{
    test_jobber t = {0};
    uint16_t stream;
    assert_ok(pleat_trace_new(&t.trace));
    assert_ok(pleat_trace_add_stream(t.trace, 0, &stream));
    for (uint32_t i = 0; i < j->weights; i++)
        test_job_add(&t, PLEAT_EVENT_ALLOC, t.next++, 100000 + 7000 * i, 0);
    for (uint32_t i = 0; i < j->iterations; i++)
        iterate(&t, j, j->us[i], j->vs[i]);
    return t.trace;
}

static pleat_trace *trace_at(const job *j, uint64_t u, uint64_t v)
{
    job at = *j;
    at.iterations = 3;
    for (int i = 0; i < 3; i++) {
        at.us[i] = u;
        at.vs[i] = v;
    }
    return trace_of(&at);
}

static const pleat_plan_options small_chunks = {
    .size = sizeof small_chunks, .chunk_bytes = CHUNK, .seconds = 0.02};

/* A plan from traces at each of us; names are the us themselves. */
static pleat_plan *plan_of(const job *j, const uint64_t *us, uint32_t count, const char *largest)
{
    const pleat_trace *traces[8];
    pleat__x most;
    for (uint32_t i = 0; i < count; i++)
        traces[i] = trace_at(j, us[i], 1);
    pleat__elastic_options options = {.plan = &small_chunks, .names = us};
    if (largest != NULL) {
        assert_true(pleat__x_parse(largest, &most));
        options.largest = &most;
    }
    pleat_plan *plan;
    assert_ok(pleat__elastic_plan_make(traces, count, &options, NULL, NULL, &plan));
    for (uint32_t i = 0; i < count; i++)
        pleat_trace_free((pleat_trace *)traces[i]);
    return plan;
}

/* --- functions ---------------------------------------------------------------------------------*/

static void function_at_a_fraction_is_rounded_up(void **state)
{
    (void)state;
    const pleat__function f = {.k = {1, 3}, .divisor = 2, .most = UINT64_MAX};
    const pleat__x x = {{5, 4}, {1, 1}};
    uint64_t size;
    assert_true(pleat__function_at(&f, &x, &size));
    assert_int_equal(size, 3); /* (1 + 3.75) / 2 */
}

static void function_beyond_all_sizes_has_none(void **state)
{
    (void)state;
    pleat__function f = {.k = {0, INT64_MAX}, .divisor = 1, .most = UINT64_MAX};
    const pleat__x x = {{PLEAT__FRACTION_MOST - 1, 1}, {PLEAT__FRACTION_MOST - 1, 1}};
    uint64_t size;
    assert_false(pleat__function_at(&f, &x, &size));
    f = (pleat__function){.k = {0, 0, INT64_MAX, 0, 0, INT64_MAX}, .divisor = 1};
    assert_false(pleat__function_at(&f, &x, &size));
    f = (pleat__function){.k = {-1}, .divisor = 1, .most = UINT64_MAX};
    assert_false(pleat__function_at(&f, &x, &size));
}

static void texts_of_x_are_read_back(void **state)
{
    (void)state;
    static const char *const good[] = {"3", "5/2", "128 x 4", "7/3 x 2"};
    static const char *const bad[] = {"", "x", "0", "1/0", "-1", "1.5.2", "3 y 4", "1 x", "2 x 0"};
    char text[64];
    pleat__x x;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(pleat__x_parse(good[i], &x));
        assert_string_equal(pleat__x_text(&x, text, sizeof text), good[i]);
    }
    assert_true(pleat__x_parse("2.50", &x));
    assert_string_equal(pleat__x_text(&x, text, sizeof text), "5/2");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(pleat__x_parse(bad[i], &x));
}

static void buckets_round_up_and_are_few(void **state)
{
    (void)state;
    const pleat__recipe recipe = {.highest = {{1000, 1}, {1, 1}}};
    uint32_t buckets = 0;
    pleat__x last = {{0, 1}, {1, 1}};
    for (uint64_t u = 1; u <= 1000; u++) {
        const pleat__x x = {{u, 1}, {1, 1}};
        pleat__x bucket = pleat__x_bucket(&recipe, &x, 5);
        assert_true(pleat__fraction_compare(bucket.u, x.u) >= 0);
        assert_true(bucket.u.num * 16 <= x.u.num * 17 * bucket.u.den);
        pleat__x again = pleat__x_bucket(&recipe, &bucket, 5);
        assert_true(pleat__x_equal(&again, &bucket));
        buckets += !pleat__x_equal(&bucket, &last);
        last = bucket;
    }
    assert_in_range(buckets, 30, 120);
    const pleat__x beyond = {{5000, 3}, {1, 1}};
    pleat__x same = pleat__x_bucket(&recipe, &beyond, 5);
    assert_true(pleat__fraction_compare(same.u, beyond.u) >= 0);
}

/* --- fitting -----------------------------------------------------------------------------------*/

static uint64_t to_512(uint64_t size)
{
    return (size + 511) / 512 * 512;
}

/* Rows of sizes, as the fit takes them. */
static uint64_t *table_of(const kind *kinds, uint32_t count, const uint64_t *us, const uint64_t *vs,
                          uint32_t profiles, pleat__arena *arena)
{
    uint64_t *sizes = pleat__arena_alloc(arena, (size_t)profiles * count * sizeof *sizes);
    assert_non_null(sizes);
    for (uint32_t p = 0; p < profiles; p++)
        for (uint32_t i = 0; i < count; i++)
            sizes[p * count + i] = size_of(&kinds[i], us[p], vs[p]);
    return sizes;
}

/* Every request has a function, which gives its size at what x is called `u` and `v` too. */
static void expect_fit(const pleat__fit *fit, const kind *kinds, uint32_t count, uint64_t u,
                       uint64_t v, const pleat__x *x)
{
    for (uint32_t i = 0; i < count; i++) {
        uint64_t size;
        assert_int_not_equal(fit->of[i], PLEAT__NO_FUNCTION);
        assert_true(pleat__function_at(&fit->functions[fit->of[i]], x, &size));
        if (to_512(size) != to_512(size_of(&kinds[i], u, v)))
            fail_msg("request %u: %llu, not %llu", i, (unsigned long long)size,
                     (unsigned long long)size_of(&kinds[i], u, v));
    }
}

static void fit_gives_sizes_at_any_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("fit_gives_sizes_at_any_x", 0xe1a57);
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    for (int round = 0; round < 40; round++) {
        job j = random_job(&random, true);
        j.kinds[0] = j.kinds[1] = (kind){.linear = 4096};
        uint64_t us[4], vs[4] = {1, 1, 1, 1};
        uint32_t profiles = 4;
        us[0] = 1 + test_random_below(&random, 30);
        for (uint32_t p = 1; p < profiles; p++)
            us[p] = us[p - 1] + 1 + test_random_below(&random, 30);
        uint64_t *sizes = table_of(j.kinds, j.kind_count, us, vs, profiles, arena);
        pleat__fit fit;
        assert_ok(pleat__fit_make(sizes, profiles, j.kind_count, us, arena, &fit));
        assert_int_equal(fit.parameters, 1);
        for (uint32_t p = 0; p < profiles; p++)
            assert_int_equal(fit.x[p].u.num, us[p]);
        for (uint64_t u = us[0]; u < us[3] * 3; u += 7) {
            const pleat__x x = {{u, 1}, {1, 1}};
            expect_fit(&fit, j.kinds, j.kind_count, u, 1, &x);
        }
        pleat__fit_free(&fit, arena);
        pleat__arena_free(arena, sizes);
    }
    pleat__arena_destroy(arena);
}

static void fit_finds_a_batch_and_a_length(void **state)
{
    (void)state;
    test_random random = test_random_begin("fit_finds_a_batch_and_a_length", 0xba7c4);
    pleat__arena *arena;
    assert_ok(pleat__arena_create(&arena));
    for (int round = 0; round < 20; round++) {
        kind kinds[30];
        for (uint32_t i = 0; i < 30; i++) {
            uint64_t unit = 64 * (1 + test_random_below(&random, 200));
            kinds[i] = i < 20   ? (kind){.product = unit}
                       : i < 23 ? (kind){.squares = 1 + unit % 16}
                       : i < 26 ? (kind){.linear = unit}
                                : (kind){.constant = unit};
        }
        uint64_t us[6], vs[6] = {4, 8, 2, 16, 3, 5};
        for (uint32_t p = 0; p < 6; p++)
            us[p] = 16 * (3 + (p * 7 + test_random_below(&random, 5)) % 40);
        uint64_t *sizes = table_of(kinds, 30, us, vs, 6, arena);
        pleat__fit fit;
        assert_ok(pleat__fit_make(sizes, 6, 30, NULL, arena, &fit));
        assert_int_equal(fit.parameters, 2);
        assert_int_equal(fit.explained, fit.varying);
        for (uint32_t p = 0; p < 6; p++)
            expect_fit(&fit, kinds, 30, us[p], vs[p], &fit.x[p]);
        /* Elsewhere too: the first profile's batch at the second one's length. */
        const pleat__x mixed = {fit.x[1].u, fit.x[0].v};
        expect_fit(&fit, kinds, 30, us[1], vs[0], &mixed);
        pleat__fit_free(&fit, arena);
        pleat__arena_free(arena, sizes);
    }
    pleat__arena_destroy(arena);
}

static void fit_knows_a_bound_that_is_shared(void **state)
{
    (void)state;
    const kind kinds[] = {{.linear = 4096},
                          {.linear = 8192},
                          {.linear = 1024},
                          {.constant = 777},
                          {.linear = 32768, .most = 200000},
                          {.linear = 50000, .most = 200000}};
    const uint64_t us[] = {2, 3, 7}, vs[] = {1, 1, 1};
    pleat__arena *arena;
    pleat__fit fit;
    assert_ok(pleat__arena_create(&arena));
    uint64_t *sizes = table_of(kinds, 6, us, vs, 3, arena);
    assert_ok(pleat__fit_make(sizes, 3, 6, us, arena, &fit));
    for (uint64_t u = 1; u < 20; u++) {
        const pleat__x x = {{u, 1}, {1, 1}};
        expect_fit(&fit, kinds, 6, u, 1, &x);
    }
    pleat__arena_destroy(arena);
}

static void sizes_by_chance_show_no_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("sizes_by_chance_show_no_x", 0x40e);
    pleat__arena *arena;
    pleat__fit fit;
    uint64_t sizes[3 * 50];
    assert_ok(pleat__arena_create(&arena));
    for (int i = 0; i < 150; i++)
        sizes[i] = 512 * (1 + test_random_below(&random, 1000));
    assert_ok(pleat__fit_make(sizes, 3, 50, NULL, arena, &fit));
    assert_int_equal(fit.parameters, 0);
    assert_ok(pleat__fit_make(sizes, 2, 50, NULL, arena, &fit));
    assert_int_equal(fit.parameters, 0);
    pleat__arena_destroy(arena);
}

static void names_out_of_proportion_are_refused(void **state)
{
    (void)state;
    job j = {.kinds = {{.linear = 4096}, {.linear = 512}}, .kind_count = 2, .steps = 100};
    const uint64_t wrong[] = {2, 5};
    const pleat_trace *traces[] = {trace_at(&j, 2, 1), trace_at(&j, 4, 1)};
    pleat__elastic_options options = {.plan = &small_chunks, .names = wrong};
    pleat_plan *plan;
    j.break_at = UINT32_MAX;
    assert_result(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

/* --- instances ---------------------------------------------------------------------------------*/

/* What must be the same in every instance. */
static void expect_same_beginning(const pleat_plan *plan, const pleat_plan *instance)
{
    assert_int_equal(instance->first.slot_count, plan->first.slot_count);
    assert_int_equal(instance->steady.slot_count, plan->steady.slot_count);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT)
            assert_int_equal(instance->first.slots[i].place, plan->first.slots[i].place);
    for (uint32_t i = 0; i < plan->recipe->prologue; i++)
        assert_int_equal(instance->steady.slots[i].place, plan->steady.slots[i].place);
    for (uint32_t i = 0; i < instance->map_count; i++)
        if (instance->maps[i].alias != 0)
            assert_true(instance->maps[i].page >= plan->recipe->view_page);
}

static void instances_hold_and_are_small(void **state)
{
    (void)state;
    test_random random = test_random_begin("instances_hold_and_are_small", 0x1257a);
    for (int round = 0; round < 12; round++) {
        job j = random_job(&random, false);
        j.kinds[0] = j.kinds[1] = (kind){.linear = 20000};
        const uint64_t us[] = {4, 4 + 2 * (1 + test_random_below(&random, 3))};
        pleat_plan *plan = plan_of(&j, us, 2, NULL);
        assert_int_equal(plan->recipe->parameters, 1);
        for (uint64_t u = 1; u <= 4 * us[1]; u += 1 + u / 4) {
            const pleat__x x = {{u, 1}, {1, 1}};
            const pleat__instance_options options = {.first = u % 2 == 0};
            pleat__instance_report report;
            pleat_plan *instance;
            assert_ok(pleat__elastic_instance(plan, &x, &options, &report, &instance));
            assert_ok(pleat_plan_verify(instance, NULL));
            expect_same_beginning(plan, instance);
            assert_true(instance->physical_bytes >= instance->max_live_bytes);
            assert_true(instance->physical_bytes >= report.floor_bytes);
            if ((instance->physical_bytes - report.floor_bytes) / CHUNK > 4 &&
                instance->physical_bytes > report.floor_bytes * 1.06)
                fail_msg("round %d, u %llu: %llu bytes where %llu are needed", round,
                         (unsigned long long)u, (unsigned long long)instance->physical_bytes,
                         (unsigned long long)report.floor_bytes);
            for (uint32_t i = 0; i < plan->steady.slot_count; i++)
                assert_int_not_equal(instance->steady.slots[i].place, PLEAT__NOWHERE);
            pleat_plan_free(instance);
        }
        pleat_plan_free(plan);
    }
}

static void instance_has_the_sizes_of_a_trace_at_its_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("instance_has_the_sizes_of_a_trace_at_its_x", 0x512e);
    for (int round = 0; round < 10; round++) {
        job j = random_job(&random, false);
        j.kinds[2] = (kind){.linear = 5000};
        const uint64_t us[] = {2, 6};
        pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
        uint64_t u = 1 + test_random_below(&random, 20);
        pleat_trace *trace = trace_at(&j, u, 1);
        pleat__x x;
        bool changes;
        assert_ok(pleat__elastic_infer(plan, trace, &x, &changes));
        assert_false(changes);
        assert_int_equal(x.u.num, u);
        assert_int_equal(x.u.den, 1);
        assert_ok(pleat__elastic_instance(plan, &x, NULL, NULL, &instance));
        /* The trace's second iteration, request by request. */
        uint32_t next = 0, marks = 0;
        const pleat_trace_event *events = pleat_trace_events(trace);
        for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
            marks += events[i].kind == PLEAT_EVENT_MARK;
            if (events[i].kind == PLEAT_EVENT_ALLOC && marks == 2)
                assert_int_equal(to_512(instance->steady.slots[next++].size),
                                 to_512(events[i].size));
        }
        assert_int_equal(next, instance->steady.slot_count);
        pleat_plan_free(instance);
        pleat_trace_free(trace);
        pleat_plan_free(plan);
    }
}

static void one_trace_of_several_x_makes_a_recipe(void **state)
{
    (void)state;
    test_random random = test_random_begin("one_trace_of_several_x_makes_a_recipe", 0x0e7);
    for (int round = 0; round < 6; round++) {
        job j = random_job(&random, false);
        j.kinds[0] = (kind){.linear = 12000};
        j.iterations = 6;
        for (uint32_t i = 0; i < 6; i++) {
            j.us[i] = 10 + (i * 7 + round) % 11;
            j.vs[i] = 1;
        }
        const pleat_trace *trace = trace_of(&j);
        const pleat__elastic_options options = {.plan = &small_chunks};
        pleat__elastic_report report;
        pleat_plan *plan;
        pleat__x x;
        bool changes;
        assert_ok(pleat__elastic_plan_make(&trace, 1, &options, NULL, &report, &plan));
        assert_int_equal(report.explained, report.varying);
        assert_ok(pleat_plan_verify(plan, trace));
        assert_ok(pleat__elastic_infer(plan, trace, &x, &changes));
        assert_true(changes);
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            assert_int_not_equal(plan->steady.slots[i].class, PLEAT__CLASS_DYNAMIC);
        pleat_plan_free(plan);
        pleat_trace_free((pleat_trace *)trace);
    }
}

/* A batch and a length that change apart: found from one trace, and again from an iteration. */
static void two_numbers_are_told_apart(void **state)
{
    (void)state;
    test_random random = test_random_begin("two_numbers_are_told_apart", 0x270);
    job j = {.seed = test_random_next(&random), .steps = 400, .weights = 4, .prologue = 3};
    j.break_at = UINT32_MAX;
    j.kind_count = 24;
    for (uint32_t i = 0; i < j.kind_count; i++) {
        uint64_t unit = 512 * (1 + test_random_below(&random, 40));
        j.kinds[i] = i < 17   ? (kind){.product = unit}
                     : i < 19 ? (kind){.linear = unit}
                     : i < 21 ? (kind){.squares = 8}
                              : (kind){.constant = unit};
    }
    static const uint64_t us[] = {7, 12, 9, 16, 5, 11}, vs[] = {4, 2, 8, 3, 6, 5};
    j.iterations = 6;
    memcpy(j.us, us, sizeof us);
    memcpy(j.vs, vs, sizeof vs);
    const pleat_trace *trace = trace_of(&j);
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat__elastic_report report;
    pleat_plan *plan, *instance;
    assert_ok(pleat__elastic_plan_make(&trace, 1, &options, NULL, &report, &plan));
    assert_int_equal(plan->recipe->parameters, 2);
    assert_int_equal(report.explained, report.varying);
    /* One iteration at a pair that was never seen together. */
    pleat_trace *other = trace_at(&j, 12, 6);
    pleat__x_finder finder;
    pleat__x_begin(&finder, plan);
    const pleat_trace_event *events = pleat_trace_events(other);
    uint32_t slot = 0, marks = 0;
    for (size_t i = 0; i < pleat_trace_event_count(other); i++) {
        marks += events[i].kind == PLEAT_EVENT_MARK;
        if (events[i].kind == PLEAT_EVENT_ALLOC && marks == 2)
            assert_int_not_equal(pleat__x_observe(&finder, false, slot++, events[i].size),
                                 PLEAT__X_CONTRADICTED);
    }
    assert_true(finder.has_u && finder.has_v && finder.agreed > 100);
    assert_ok(pleat__elastic_instance(plan, &finder.x, NULL, NULL, &instance));
    slot = marks = 0;
    for (size_t i = 0; i < pleat_trace_event_count(other); i++) {
        marks += events[i].kind == PLEAT_EVENT_MARK;
        if (events[i].kind == PLEAT_EVENT_ALLOC && marks == 2)
            assert_int_equal(to_512(instance->steady.slots[slot++].size), to_512(events[i].size));
    }
    assert_true(instance->physical_bytes >= instance->max_live_bytes);
    pleat_plan_free(instance);
    pleat_trace_free(other);
    pleat_plan_free(plan);
    pleat_trace_free((pleat_trace *)trace);
}

static void plan_laid_out_for_the_largest_needs_no_move(void **state)
{
    (void)state;
    test_random random = test_random_begin("plan_laid_out_for_the_largest_needs_no_move", 0x3a8);
    job j = random_job(&random, false);
    const uint64_t us[] = {2, 4};
    pleat_plan *plan = plan_of(&j, us, 2, "64");
    assert_int_equal(plan->recipe->reference.u.num, 64);
    assert_true(pleat__fraction_compare(plan->recipe->highest.u, plan->recipe->reference.u) == 0);
    uint64_t before = UINT64_MAX;
    for (uint64_t u = 64; u >= 1; u /= 2) {
        const pleat__x x = {{u, 1}, {1, 1}};
        pleat__instance_report report;
        pleat_plan *instance;
        assert_ok(pleat__elastic_instance(plan, &x, NULL, &report, &instance));
        expect_same_beginning(plan, instance);
        assert_true(instance->physical_bytes <= before);
        assert_true(report.kept_bytes >= report.floor_bytes);
        if (u == 64)
            assert_int_equal(report.layout, PLEAT__INSTANCE_KEPT);
        before = instance->physical_bytes;
        pleat_plan_free(instance);
    }
    pleat_plan_free(plan);
}

static void fit_is_the_largest_that_fits(void **state)
{
    (void)state;
    test_random random = test_random_begin("fit_is_the_largest_that_fits", 0xf17);
    job j = random_job(&random, false);
    j.kinds[0] = j.kinds[1] = (kind){.linear = 60000};
    const uint64_t us[] = {4, 8};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
    const pleat__fraction one = {1, 1};
    for (uint64_t u = 2; u <= 30; u += 7) {
        const pleat__x at = {{u, 1}, {1, 1}};
        pleat__x x;
        uint64_t physical;
        assert_ok(pleat__elastic_instance(plan, &at, NULL, NULL, &instance));
        assert_ok(pleat__elastic_fit(plan, instance->physical_bytes, &at, one, &x, &physical));
        assert_true(physical <= instance->physical_bytes);
        assert_true(x.u.num >= u);
        pleat_plan_free(instance);
        const pleat__x next = {{x.u.num + 1, 1}, {1, 1}};
        if (pleat__x_in_range(plan->recipe, &next)) {
            assert_ok(pleat__elastic_instance(plan, &next, NULL, NULL, &instance));
            assert_true(instance->physical_bytes > physical);
            pleat_plan_free(instance);
        }
    }
    pleat__x x;
    assert_result(pleat__elastic_fit(plan, CHUNK, &plan->recipe->reference, one, &x, NULL),
                  PLEAT_E_NOT_FOUND);
    pleat_plan_free(plan);
}

/* --- what breaks the rules ---------------------------------------------------------------------*/

static void x_out_of_range_is_refused(void **state)
{
    (void)state;
    test_random random = test_random_begin("x_out_of_range_is_refused", 0x0a7);
    job j = random_job(&random, false);
    const uint64_t us[] = {4, 8};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *instance;
    const pleat__x beyond = {{33, 1}, {1, 1}}, below = {{9, 10}, {1, 1}}, wide = {{8, 1}, {2, 1}};
    assert_result(pleat__elastic_instance(plan, &beyond, NULL, NULL, &instance), PLEAT_E_NOT_FOUND);
    assert_non_null(strstr(pleat_last_error()->text, "1 to 32"));
    assert_result(pleat__elastic_instance(plan, &below, NULL, NULL, &instance), PLEAT_E_NOT_FOUND);
    assert_result(pleat__elastic_instance(plan, &wide, NULL, NULL, &instance), PLEAT_E_NOT_FOUND);
    pleat_plan_free(plan);
}

/* A file's recipe may say what overflows 128 bits: no x then, and no undefined behaviour. */
static void sums_beyond_128_bits_say_no_x(void **state)
{
    (void)state;
    pleat__function f = {
        .k = {INT64_MIN, 0, 0, 1}, .divisor = 1, .exact = true, .most = UINT64_MAX};
    uint32_t of = 0;
    pleat__recipe recipe = {.functions = &f, .function_count = 1, .steady = &of, .parameters = 2};
    const pleat_plan plan = {.recipe = &recipe};
    pleat__x_finder finder;
    pleat__x_begin(&finder, &plan);
    finder.has_u = true;
    finder.x.u = (pleat__fraction){1, 4000000000};
    assert_int_equal(pleat__x_observe(&finder, false, 0, INT64_MAX), PLEAT__X_CONTRADICTED);
    assert_false(finder.has_v);
}

static void request_that_breaks_its_function_is_told(void **state)
{
    (void)state;
    test_random random = test_random_begin("request_that_breaks_its_function_is_told", 0xb4ea);
    job j = random_job(&random, false);
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    pleat__x_finder finder;
    const pleat__x x = {{7, 1}, {1, 1}};
    uint64_t *sizes = pleat__arena_alloc(plan->arena, plan->steady.slot_count * sizeof *sizes);
    assert_ok(pleat__elastic_sizes(plan, false, &x, sizes));
    pleat__x_begin(&finder, plan);
    uint32_t broken = plan->recipe->prologue + 20, contradicted = 0;
    while (!pleat__function_varies(&plan->recipe->functions[plan->recipe->steady[broken]]))
        broken++;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        uint64_t bytes = i == broken ? sizes[i] + 4096 : sizes[i];
        pleat__x_state said = pleat__x_observe(&finder, false, i, bytes);
        contradicted += said == PLEAT__X_CONTRADICTED;
        assert_int_equal(said == PLEAT__X_CONTRADICTED, i == broken);
        if (i < plan->recipe->prologue)
            assert_int_equal(said, PLEAT__X_UNKNOWN);
        else if (i != broken)
            assert_int_equal(said, PLEAT__X_KNOWN);
    }
    assert_int_equal(contradicted, 1);
    assert_int_equal(finder.contradicted, 1);
    assert_true(pleat__x_equal(&finder.x, &x));
    pleat_plan_free(plan);
}

static void broken_request_becomes_dynamic(void **state)
{
    (void)state;
    test_random random = test_random_begin("broken_request_becomes_dynamic", 0xb40);
    job j = random_job(&random, false);
    for (uint32_t i = 0; i < j.kind_count; i++)
        j.kinds[i] = (kind){.linear = 3000000 + 512 * i};
    job other = j;
    other.break_at = 0;
    const pleat_trace *traces[] = {trace_at(&j, 2, 1), trace_at(&other, 6, 1)};
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat__elastic_report report;
    pleat_plan *plan, *instance;
    assert_ok(pleat__elastic_plan_make(traces, 2, &options, NULL, &report, &plan));
    assert_int_equal(plan->steady.slots[j.prologue].class, PLEAT__CLASS_DYNAMIC);
    assert_int_equal(plan->recipe->steady[j.prologue], PLEAT__NO_FUNCTION);
    assert_int_equal(report.varying - report.explained, 1);
    assert_true(plan->lane_count >= 1);
    assert_ok(pleat__elastic_instance(plan, &plan->recipe->highest, NULL, NULL, &instance));
    assert_true(instance->lanes[0].bytes > plan->lanes[0].bytes);
    pleat_plan_free(instance);
    pleat_plan_free(plan);
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

static void trace_without_the_parameter_has_no_x(void **state)
{
    (void)state;
    test_random random = test_random_begin("trace_without_the_parameter_has_no_x", 0x9a9);
    job j = random_job(&random, false), other;
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    pleat__x x;
    bool changes;
    other = j;
    for (uint32_t i = 0; i < other.kind_count; i++)
        other.kinds[i] = (kind){.constant = 1000003 * (i + 1)};
    pleat_trace *trace = trace_at(&other, 1, 1);
    assert_result(pleat__elastic_infer(plan, trace, &x, &changes), PLEAT_E_NOT_FOUND);
    pleat_trace_free(trace);
    pleat_plan_free(plan);
}

static void traces_of_different_jobs_are_refused(void **state)
{
    (void)state;
    test_random random = test_random_begin("traces_of_different_jobs_are_refused", 0xd1f);
    job j = random_job(&random, false), other = random_job(&random, false);
    other.steps = 900;
    const pleat_trace *traces[] = {trace_at(&j, 2, 1), trace_at(&other, 4, 1)};
    const pleat__elastic_options options = {.plan = &small_chunks};
    pleat_plan *plan;
    assert_result(pleat__elastic_plan_make(traces, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "different jobs"));
    const pleat_trace *same[] = {traces[0], traces[0]};
    assert_result(pleat__elastic_plan_make(same, 2, &options, NULL, NULL, &plan), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "record the job at another one"));
    pleat_trace_free((pleat_trace *)traces[0]);
    pleat_trace_free((pleat_trace *)traces[1]);
}

/* --- files -------------------------------------------------------------------------------------*/

static void recipe_is_read_back(void **state)
{
    (void)state;
    test_random random = test_random_begin("recipe_is_read_back", 0xf11e);
    job j = random_job(&random, true);
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL), *back;
    const char *path = test_path("elastic.plan"), *again = test_path("again.plan");
    assert_ok(pleat_plan_write(plan, path));
    bool is;
    assert_ok(pleat__plan_is_file(path, &is));
    assert_true(is);
    assert_ok(pleat_plan_read(path, &back));
    assert_ok(pleat_plan_write(back, again));
    test_bytes a = test_file_read(path), b = test_file_read(again);
    assert_int_equal(remove(path), 0);
    assert_int_equal(remove(again), 0);
    assert_int_equal(a.size, b.size);
    assert_memory_equal(a.data, b.data, a.size);
    /* And it makes the same instance. */
    const pleat__x x = {{4, 1}, {1, 1}};
    pleat_plan *one, *other;
    assert_ok(pleat__elastic_instance(plan, &x, NULL, NULL, &one));
    assert_ok(pleat__elastic_instance(back, &x, NULL, NULL, &other));
    assert_int_equal(one->physical_bytes, other->physical_bytes);
    for (uint32_t i = 0; i < one->steady.slot_count; i++)
        assert_int_equal(one->steady.slots[i].place, other->steady.slots[i].place);
    pleat_plan_free(one);
    pleat_plan_free(other);
    test_bytes_free(&a);
    test_bytes_free(&b);
    pleat_plan_free(plan);
    pleat_plan_free(back);
}

/* A file whose bytes are changed is refused, or is a plan whose instances hold. */
static void damaged_recipes_do_no_harm(void **state)
{
    (void)state;
    test_random random = test_random_begin("damaged_recipes_do_no_harm", 0xda4a6e);
    job j = random_job(&random, false);
    j.steps = 60;
    j.weights = 2;
    const uint64_t us[] = {3, 5};
    pleat_plan *plan = plan_of(&j, us, 2, NULL);
    const char *path = test_path("damaged.plan");
    assert_ok(pleat_plan_write(plan, path));
    pleat_plan_free(plan);
    test_bytes whole = test_file_read(path);
    assert_int_equal(remove(path), 0);
    uint32_t read = 0;
    for (int round = 0; round < 3000; round++) {
        test_bytes copy = {0};
        test_bytes_add(&copy, whole.data, whole.size);
        uint32_t count = 1 + (uint32_t)test_random_below(&random, 3);
        for (uint32_t i = 0; i < count; i++) {
            /* Mostly behind the ordinary plan. */
            uint64_t at = copy.size / 2 + test_random_below(&random, copy.size / 2 - 6);
            copy.data[at] = (uint8_t)test_random_next(&random);
        }
        copy.size -= 6;
        test_pack_checksum(&copy);
        pleat_plan *damaged;
        if (pleat__plan_decode("file", copy.data, copy.size, &damaged) == PLEAT_OK) {
            read++;
            pleat__x xs[] = {{{2, 1}, {1, 1}}, {{7, 2}, {1, 1}}, {{20, 1}, {1, 1}}};
            for (size_t i = 0; i < 3 && damaged->recipe != NULL; i++) {
                pleat_plan *instance;
                if (pleat__elastic_instance(damaged, &xs[i], NULL, NULL, &instance) != PLEAT_OK)
                    continue;
                assert_ok(pleat_plan_verify(instance, NULL));
                pleat_plan_free(instance);
            }
            pleat_plan_free(damaged);
        }
        test_bytes_free(&copy);
    }
    assert_true(read > 0);
    test_bytes_free(&whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(function_at_a_fraction_is_rounded_up),
        cmocka_unit_test(function_beyond_all_sizes_has_none),
        cmocka_unit_test(texts_of_x_are_read_back),
        cmocka_unit_test(buckets_round_up_and_are_few),
        cmocka_unit_test(fit_gives_sizes_at_any_x),
        cmocka_unit_test(fit_finds_a_batch_and_a_length),
        cmocka_unit_test(fit_knows_a_bound_that_is_shared),
        cmocka_unit_test(sizes_by_chance_show_no_x),
        cmocka_unit_test(names_out_of_proportion_are_refused),
        cmocka_unit_test(instances_hold_and_are_small),
        cmocka_unit_test(instance_has_the_sizes_of_a_trace_at_its_x),
        cmocka_unit_test(one_trace_of_several_x_makes_a_recipe),
        cmocka_unit_test(two_numbers_are_told_apart),
        cmocka_unit_test(plan_laid_out_for_the_largest_needs_no_move),
        cmocka_unit_test(fit_is_the_largest_that_fits),
        cmocka_unit_test(x_out_of_range_is_refused),
        cmocka_unit_test(sums_beyond_128_bits_say_no_x),
        cmocka_unit_test(request_that_breaks_its_function_is_told),
        cmocka_unit_test(broken_request_becomes_dynamic),
        cmocka_unit_test(trace_without_the_parameter_has_no_x),
        cmocka_unit_test(traces_of_different_jobs_are_refused),
        cmocka_unit_test(recipe_is_read_back),
        cmocka_unit_test(damaged_recipes_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, test_folder_remove);
}
