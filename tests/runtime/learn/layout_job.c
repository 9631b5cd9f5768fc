/*
 * layout_job.c: jobs that follow a plan file with a recipe on a real runtime over host memory, with
 * a canary: smaller sizes lie in its slots, larger ones are laid out by a thread, and what is not
 * followed any more gives its memory back.
 */
#include "failing.h"
#include "sizes_plan.h"

#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/policy/pleat_internal.h>
#include <stdatomic.h>
#include <time.h>

static pleat__layouts *layouts_of(const job *j)
{
    return &((pleat__pleat *)j->runtime->policy)->learner.layouts;
}

/* The jobs of all tests but those that need another: SEED and the SEEDS - 1 behind it. */
#define SEED  119
#define SEEDS 3u
/* In whose plan what grows finds room that no slot is to have: of 80 seeds' one has it in all of
 * these places. And one whose layout for 9 goes with few chunks beyond those for 4. */
#define ROOMY   134
#define BOUNDED 121

/* A seed's plan for 3 and 4, which is made once: no test changes it, and making it takes longer
 * than most tests do. */
static const pleat_plan *plan_of(uint64_t seed)
{
    static struct {
        uint64_t seed;
        pleat_plan *plan;
    } made[16];
    size_t at = 0;
    while (made[at].plan != NULL && made[at].seed != seed)
        at++;
    assert_true(at + 1 < sizeof made / sizeof *made);
    if (made[at].plan == NULL) {
        scaled_job scaled = scaled_make(seed);
        made[at].seed = seed;
        made[at].plan = plan_for(&scaled, 3, 4);
    }
    return made[at].plan;
}

/* A job that follows a plan, and what stays alive in it. */
typedef struct planned {
    job j;
    stays s;
    const pleat_plan *plan;
    scaled_job scaled;
} planned;

/* With its first iteration done. */
static void begin_with(planned *p, const pleat_plan *plan, const job_shape *first)
{
    p->s = (stays){0};
    p->plan = plan;
    job_start(&p->j, "pleat", plan, 0);
    load_weights(&p->j, &p->s);
    run_shape(&p->j, first, 1, JOB_PLAIN, 0);
    make_state(&p->j, &p->s);
}

/* Of a seed's sizes, at x; the plan is for 3 and 4. */
static void begin(planned *p, uint64_t seed, uint64_t x)
{
    p->scaled = scaled_make(seed);
    job_shape first = at_x(&p->scaled, x);
    begin_with(p, plan_of(seed), &first);
}

static void end(planned *p)
{
    stays_free(&p->j, &p->s);
    finish(&p->j);
}

static gained run(planned *p, uint64_t x, uint32_t count)
{
    return run_x(&p->j, &p->scaled, x, count);
}

/* (R14.) */
static void layout_of_the_plan_file_serves_smaller_sizes(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, SEED);
    for (uint64_t n = 0; n < test_rounds(SEEDS); n++) {
        planned p;
        begin(&p, random.state + n, 4);
        run(&p, 4, 1);
        static const uint64_t xs[] = {4, 2, 1, 3, 4};
        for (uint32_t k = 0; k < sizeof xs / sizeof *xs; k++) {
            run(&p, xs[k], 1);
            assert_settled(run(&p, xs[k], 3));
        }
        pleat_stats stats = pleat_stats_of(p.j.runtime);
        assert_int_equal(stats.instances, 0);
        assert_int_equal(stats.divergences, 0);
        end(&p);
    }
}

/* What two recordings do not show: every tenth request is smaller than its function says, as
 * workspaces are that stop growing. It is expected so from its second iteration on. */
static void layout_corrects_sizes_that_stop_growing(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, SEED);
    for (uint64_t n = 0; n < test_rounds(SEEDS); n++) {
        planned p;
        begin(&p, random.state + n, 3);
        job_shape shape = at_x(&p.scaled, 3);
        for (uint32_t i = 20; i < JOB_REQUESTS; i += 10)
            shape.bytes[i] = shape.bytes[i] * 5 / 8 + 24;
        run_shape(&p.j, &shape, 2, JOB_PLAIN, 0);
        assert_mostly_planned(run_shape(&p.j, &shape, 3, JOB_PLAIN, 0), 99);
        /* And back. */
        run(&p, 4, 2);
        assert_settled(run(&p, 4, 3));
        end(&p);
    }
}

/* Others begin to grow where no recording was: they get places of their own, and keep them. Those
 * whose slots they took do, too, so it takes some iterations where memory is as tight as here. */
static void layout_makes_room_for_sizes_that_begin_to_grow(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, SEED);
    for (uint64_t n = 0; n < test_rounds(SEEDS); n++) {
        planned p;
        begin(&p, random.state + n, 4);
        job_shape shape = at_x(&p.scaled, 4);
        for (uint32_t i = 25; i < JOB_REQUESTS; i += 50)
            shape.bytes[i] = shape.bytes[i] * 11 / 8 + 4096;
        run_shape(&p.j, &shape, 16, JOB_PLAIN, 0);
        assert_settled(run_shape(&p.j, &shape, 3, JOB_PLAIN, 0));
        end(&p);
    }
}

/* One alone has its own from the second iteration on. */
static void layout_makes_room_for_one_at_once(void **state)
{
    (void)state;
    planned p;
    begin(&p, ROOMY, 4);
    run(&p, 4, 2);
    job_shape shape = at_x(&p.scaled, 4);
    shape.bytes[340] = shape.bytes[340] * 11 / 8 + 4096;
    gained first = run_shape(&p.j, &shape, 1, JOB_PLAIN, 0);
    assert_int_equal(first.requests - first.planned, 1);
    gained second = run_shape(&p.j, &shape, 1, JOB_PLAIN, 0);
    assert_int_equal(second.requests - second.planned, 0);
    end(&p);
}

/* The same where it grows, to twice its size at most, to that of the next but one, and is taken for
 * it: both have their own from the second iteration on. */
static void layout_makes_room_for_one_that_looks_like_another(void **state)
{
    (void)state;
    for (uint32_t from = 100; from <= 250; from += 50) {
        planned p;
        begin(&p, ROOMY, 4);
        run(&p, 4, 2);
        job_shape shape = at_x(&p.scaled, 4);
        uint32_t i = from;
        while (shape.bytes[i + 2] <= shape.bytes[i] + 4096 ||
               shape.bytes[i + 2] > 2 * shape.bytes[i])
            i++;
        assert_in_range(i, from, from + 16);
        shape.bytes[i] = shape.bytes[i + 2];
        run_shape(&p.j, &shape, 1, JOB_PLAIN, 0);
        gained second = run_shape(&p.j, &shape, 1, JOB_PLAIN, 0);
        assert_int_equal(second.requests - second.planned, 0);
        end(&p);
    }
}

static void layout_for_a_larger_size_is_made_by_the_thread(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, SEED);
    for (uint64_t n = 0; n < test_rounds(SEEDS); n++) {
        planned p;
        begin(&p, random.state + n, 4);
        run(&p, 4, 2);
        /* What crosses into the new layout lies in slots of others at first. */
        run(&p, 9, 5);
        assert_settled(run(&p, 9, 4));
        pleat_stats stats = pleat_stats_of(p.j.runtime);
        assert_int_equal(stats.instances, 1);
        assert_true(stats.peak_live_bytes >= stats.peak_physical_bytes * 0.9);
        /* And back: the larger layout serves all sizes below its own. */
        static const uint64_t others[] = {4, 1, 9, 3};
        for (uint32_t k = 0; k < 4; k++) {
            run(&p, others[k], 1);
            assert_settled(run(&p, others[k], 3));
        }
        stats = pleat_stats_of(p.j.runtime);
        assert_int_equal(stats.instances, 1);
        end(&p);
    }
}

/* Its first requests say a larger size, as an evaluation's may, and the others another one. */
static void layout_is_not_made_for_what_few_requests_say(void **state)
{
    (void)state;
    test_random random = test_random_begin(__func__, SEED);
    planned p;
    begin(&p, random.state, 4);
    run(&p, 4, 2);
    job_shape shape = at_x(&p.scaled, 4), larger = at_x(&p.scaled, 9);
    memcpy(shape.bytes, larger.bytes, 60 * sizeof shape.bytes[0]);
    for (int i = 0; i < 3; i++) {
        run_shape(&p.j, &shape, 1, JOB_PLAIN, 0);
        run(&p, 4, 2);
    }
    assert_int_equal(pleat_stats_of(p.j.runtime).instances, 0);
    assert_settled(run(&p, 4, 2));
    end(&p);
}

/* Whether a layout for x would be begun with. */
static bool is_asked_for(const job *j, uint64_t x)
{
    pleat__layouts *layouts = layouts_of(j);
    const pleat__fraction wanted = {x, 1};
    pleat__gate_lock(&j->runtime->gate);
    pleat__layouts_ask(layouts, wanted, UINT64_MAX);
    bool asked = layouts->state != PLEAT__LAYOUT_NONE;
    pleat__gate_unlock(&j->runtime->gate);
    return asked;
}

/* Asks for a layout for x where so much has lived, and waits for it; whether it was made. */
static bool is_made(const job *j, uint64_t x, uint64_t most_live)
{
    pleat__layouts *layouts = layouts_of(j);
    const pleat__fraction wanted = {x, 1};
    pleat__gate_lock(&j->runtime->gate);
    pleat__layouts_ask(layouts, wanted, most_live);
    pleat__layouts_await(layouts);
    bool made = layouts->state == PLEAT__LAYOUT_MADE;
    pleat__gate_unlock(&j->runtime->gate);
    return made;
}

/* The size that has no room is refused by the thread, and not asked for again and again. (R10.) */
static void layout_that_has_no_room_is_asked_for_once(void **state)
{
    (void)state;
    planned p;
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    uint64_t budget = pleat_stats_of(p.j.runtime).physical_bytes + 4 * JOB_PAGE;
    assert_ok(pleat_set_budget(p.j.runtime, budget));
    job_shape large = at_x(&p.scaled, 9);
    for (uint32_t n = 0; n < 4; n++) {
        job_try_iterate(&p.j, &large);
        assert_true(pleat_stats_of(p.j.runtime).physical_bytes <= budget);
    }
    assert_int_equal(pleat_stats_of(p.j.runtime).instances, 0);
    run(&p, 4, 3);
    assert_false(is_made(&p.j, 9, UINT64_MAX));
    assert_false(is_asked_for(&p.j, 9));
    assert_settled(run(&p, 4, 3));
    assert_true(pleat_stats_of(p.j.runtime).peak_physical_bytes <= budget);
    end(&p);
}

/* Nor is it where less than it would have alive ever lived, but for a sixteenth; once as much has,
 * it is. */
static void layout_for_more_than_ever_lived_is_made_later(void **state)
{
    (void)state;
    planned p;
    begin(&p, SEED, 4);
    run(&p, 9, 2);
    uint64_t live = layouts_of(&p.j)->now.plan->max_live_bytes;
    end(&p);
    uint64_t enough = pleat__ceil_div(live * 16, 17);
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    assert_false(is_made(&p.j, 9, enough - 1));
    assert_false(is_made(&p.j, 11, enough - 1));
    assert_true(is_made(&p.j, 9, enough));
    end(&p);
}

/* A job without marks that does something else takes up no layout before it comes back: the plan
 * file is left all the same. */
static void layout_that_nobody_follows_yet_is_left_with_the_plan_file(void **state)
{
    (void)state;
    planned p;
    pleat_va address;
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    assert_true(is_made(&p.j, 9, UINT64_MAX));
    pleat__learner *learner = &((pleat__pleat *)p.j.runtime->policy)->learner;
    learner->due |= PLEAT__DUE_LEAVE;
    /* Its thread may still have the turn. */
    pleat__gate_lock_turn(&p.j.runtime->gate);
    pleat__gate_unlock(&p.j.runtime->gate);
    assert_ok(pleat_alloc(p.j.runtime, 512, 0, &address));
    assert_int_equal(learner->due, 0);
    assert_null(learner->layouts.plan);
    assert_int_equal(learner->layouts.state, PLEAT__LAYOUT_NONE);
    assert_ok(pleat_free(p.j.runtime, address));
    run(&p, 9, 3);
    end(&p);
}

/* A forward alone at a larger size looks like an iteration of that size. */
static void layout_for_what_frees_at_once_is_made_when_all_has_lived(void **state)
{
    (void)state;
    planned p;
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    job_shape large = at_x(&p.scaled, 9);
    for (uint32_t n = 0; n < 2; n++) {
        assert_ok(pleat_mark(p.j.runtime));
        for (uint32_t i = 0; i < JOB_REQUESTS * 4 / 5; i++) {
            job_tensor tensor = job_alloc(&p.j, large.bytes[i], 0);
            job_free(&p.j, &tensor);
        }
    }
    assert_ok(pleat_mark(p.j.runtime));
    assert_int_not_equal(layouts_of(&p.j)->failed_live, 0);
    assert_int_equal(pleat_stats_of(p.j.runtime).instances, 0);
    run(&p, 9, 2);
    assert_int_equal(pleat_stats_of(p.j.runtime).instances, 1);
    end(&p);
}

/* A place's lane is a number of 17 bits, of which the last says that nothing was taken. */
static void layout_whose_lanes_have_no_numbers_is_not_made(void **state)
{
    (void)state;
    planned p;
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    pleat__layouts *layouts = layouts_of(&p.j);
    uint32_t last = PLEAT__MOST_LANES - layouts->file.schedule->lane_count;
    layouts->lanes = last + 1;
    assert_false(is_asked_for(&p.j, 9));
    layouts->lanes = last;
    assert_true(is_asked_for(&p.j, 9));
    end(&p);
}

/* What is larger than what is laid out says nothing of the plan, which stays. */
static void layout_is_not_judged_by_what_is_larger(void **state)
{
    (void)state;
    planned p;
    begin(&p, BOUNDED, 4);
    run(&p, 4, 2);
    uint64_t budget = pleat_stats_of(p.j.runtime).physical_bytes + 4 * JOB_PAGE;
    assert_ok(pleat_set_budget(p.j.runtime, budget));
    job_shape large = at_x(&p.scaled, 9);
    pleat__learner *learner = &((pleat__pleat *)p.j.runtime->policy)->learner;
    for (uint32_t n = 0; n < 8; n++)
        job_try_iterate(&p.j, &large);
    assert_int_equal(learner->states.caused[PLEAT__CAUSE_misfit], 0);
    run(&p, 4, 2);
    assert_settled(run(&p, 4, 3));
    end(&p);
}

/* One after the other takes the place of the one before, whose views go as nothing lies in them.
 * (R8.) */
static void layout_that_is_not_followed_any_more_is_unmapped(void **state)
{
    (void)state;
    planned p;
    begin(&p, SEED, 4);
    run(&p, 4, 2);
    for (uint64_t x = 5; x < 12; x += 2)
        run(&p, x, 4);
    const pleat__layouts *layouts = layouts_of(&p.j);
    assert_int_equal(pleat_stats_of(p.j.runtime).instances, 4);
    assert_int_equal(layouts->retired_count, 0);
    run(&p, 11, 2);
    assert_settled(run(&p, 11, 2));
    stays_free(&p.j, &p.s);
    job_drain(&p.j);
    assert_ok(pleat_empty_cache(p.j.runtime));
    pleat__gate_lock_turn(&p.j.runtime->gate);
    pleat__gate_unlock(&p.j.runtime->gate);
    pleat__gate_drain(&p.j.runtime->gate);
    uint64_t views = 0;
    for (uint32_t i = 0; i < layouts->now.view_count; i++)
        views += layouts->now.views[i].pages;
    for (uint32_t i = 0; i < p.plan->map_count; i++)
        views += p.plan->maps[i].alias ? p.plan->handles[p.plan->maps[i].handle].chunks : 0;
    assert_int_equal(layouts->heap->pool->view_pages, views);
    end(&p);
}

static bool lies_in_views(const job *j, const pleat__layout_made *made, const job_tensor *tensor)
{
    const pleat__chunk_pool *pool = layouts_of(j)->heap->pool;
    for (uint32_t i = 0; i < made->view_count; i++) {
        pleat_va begin = pool->base + made->views[i].page * pool->page_bytes;
        if (tensor->address - begin < made->views[i].pages * pool->page_bytes)
            return true;
    }
    return false;
}

/* An iteration at x; the first of its tensors that lies in a view of the layout that is followed is
 * not freed by the job. */
static job_tensor keep_one_in_views(planned *p, uint64_t x)
{
    job *j = &p->j;
    job_shape shape = at_x(&p->scaled, x);
    job_ends ends = job_ends_of(&shape);
    job_tensor kept = {0};
    assert_ok(pleat_mark(j->runtime));
    for (uint32_t i = 0; i < JOB_REQUESTS; i++) {
        job_request(j, &shape, i, 0);
        if (kept.address == 0 && lies_in_views(j, &layouts_of(j)->now, &j->now[i])) {
            kept = j->now[i];
            j->now[i] = (job_tensor){0};
        }
        job_end_at(j, &ends, i);
    }
    job_turn(j);
    assert_int_not_equal(kept.address, 0);
    return kept;
}

/* It is known by its runs, which are the layout's, or, as if it had but one, by its address alone.
 * (R8.) */
static void layout_in_which_something_lies_stays_mapped(void **state)
{
    (void)state;
    for (int by_address = 0; by_address < 2; by_address++) {
        planned p;
        begin(&p, SEED, 4);
        run(&p, 4, 2);
        run(&p, 9, 5);
        const pleat__layouts *layouts = layouts_of(&p.j);
        job_tensor kept = keep_one_in_views(&p, 9);
        if (by_address)
            layouts->now.schedule->several_count = 0;
        run(&p, 11, 4);
        assert_int_equal(pleat_stats_of(p.j.runtime).instances, 2);
        assert_int_equal(layouts->retired_count, 1);
        job_free(&p.j, &kept); /* what was written there is read again */
        run(&p, 11, 1);
        assert_int_equal(layouts->retired_count, 0);
        end(&p);
    }
}

static void layout_of_another_job_gives_its_memory_back(void **state)
{
    (void)state;
    planned p = {.scaled = scaled_make(131)};
    scaled_job other = scaled_make(132);
    job_shape first = at_x(&p.scaled, 3);
    pleat_plan *plan = plan_for(&other, 20, 24);
    begin_with(&p, plan, &first);
    run(&p, 3, 8);
    assert_true(pleat_stats_of(p.j.runtime).physical_bytes < p.plan->physical_bytes / 2);
    assert_null(layouts_of(&p.j)->plan);
    assert_settled(run(&p, 3, 4));
    end(&p);
    pleat_plan_free(plan);
}

/* No mark waits for the thread, and the runtime goes while it lays out or maps. */
static void layout_that_is_being_made_is_waited_for_at_the_end(void **state)
{
    (void)state;
    scaled_job scaled = scaled_make(SEED);
    const pleat_plan *plan = plan_of(SEED);
    for (uint32_t n = 0; n < 8; n++) {
        job j;
        stays s = {0};
        const pleat_runtime_options options = {.size = sizeof options, .plan = plan};
        job_open(&j, &options);
        load_weights(&j, &s);
        run_x(&j, &scaled, 4, 2);
        run_x(&j, &scaled, 9 + n, 1);
        assert_ok(pleat_mark(j.runtime));
        stays_free(&j, &s);
        finish(&j);
    }
}

static struct {
    pleat_runtime *runtime;
    atomic_bool ending;
} emptier;

static void *empty_all_the_time(void *unused)
{
    (void)unused;
    void *failed = NULL;
    while (!atomic_load(&emptier.ending)) {
        if (pleat_empty_cache(emptier.runtime) != PLEAT_OK)
            failed = &emptier;
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    return failed;
}

/* Between its maps the thread gives the turn away, and what it has not mapped yet may go. */
static void layout_outlives_memory_that_is_given_back_meanwhile(void **state)
{
    (void)state;
    scaled_job scaled = scaled_make(SEED);
    const pleat_plan *plan = plan_of(SEED);
    const pleat_runtime_options options = {.size = sizeof options, .plan = plan};
    job j;
    stays s = {0};
    pthread_t other;
    void *failed;
    job_open(&j, &options);
    emptier.runtime = j.runtime;
    atomic_store(&emptier.ending, false);
    assert_int_equal(pthread_create(&other, NULL, empty_all_the_time, NULL), 0);
    load_weights(&j, &s);
    for (uint64_t x = 4; x < (test_rounds(2) > 1 ? 12 : 8); x++)
        run_x(&j, &scaled, x, 3);
    atomic_store(&emptier.ending, true);
    assert_int_equal(pthread_join(other, &failed), 0);
    assert_null(failed);
    stays_free(&j, &s);
    finish(&j);
}

/* ---- failures ---- */

typedef struct failing_job {
    const scaled_job *scaled;
    const pleat_plan *plan;
} failing_job;

/* Iterations at the plan's size, then at larger ones; NULL: there is no runtime. */
static pleat_runtime *run_failing(pleat_vmm vmm, const void *with)
{
    const failing_job *f = with;
    job j = {.vmm = vmm};
    const pleat_runtime_options options = {.size = sizeof options, .plan = f->plan, .waits = 1};
    if (pleat_runtime_create(vmm, &options, &j.runtime) != PLEAT_OK)
        return NULL;
    static const uint64_t xs[] = {4, 4, 6, 6, 8, 8};
    for (uint32_t n = 0; n < sizeof xs / sizeof *xs; n++) {
        job_shape shape = at_x(f->scaled, xs[n]);
        job_try_iterate(&j, &shape);
    }
    job_drain(&j);
    assert_int_equal(j.errors, 0);
    return j.runtime;
}

static void layout_survives_every_failing_verb(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_create,       PLEAT__FAULT_map,
                                              PLEAT__FAULT_unmap,        PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_event_create, PLEAT__FAULT_event_record};
    scaled_job scaled = scaled_make(SEED);
    const pleat_plan *plan = plan_of(SEED);
    fail_verbs(verbs, sizeof verbs / sizeof *verbs, 3, run_failing, &(failing_job){&scaled, plan});
}

static void layout_survives_every_want_of_host_memory(void **state)
{
    (void)state;
    scaled_job scaled = scaled_make(SEED);
    const pleat_plan *plan = plan_of(SEED);
    fail_host_memory(6, run_failing, &(failing_job){&scaled, plan});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layout_of_the_plan_file_serves_smaller_sizes),
        cmocka_unit_test(layout_corrects_sizes_that_stop_growing),
        cmocka_unit_test(layout_makes_room_for_sizes_that_begin_to_grow),
        cmocka_unit_test(layout_makes_room_for_one_at_once),
        cmocka_unit_test(layout_makes_room_for_one_that_looks_like_another),
        cmocka_unit_test(layout_for_a_larger_size_is_made_by_the_thread),
        cmocka_unit_test(layout_is_not_made_for_what_few_requests_say),
        cmocka_unit_test(layout_that_has_no_room_is_asked_for_once),
        cmocka_unit_test(layout_for_more_than_ever_lived_is_made_later),
        cmocka_unit_test(layout_that_nobody_follows_yet_is_left_with_the_plan_file),
        cmocka_unit_test(layout_for_what_frees_at_once_is_made_when_all_has_lived),
        cmocka_unit_test(layout_whose_lanes_have_no_numbers_is_not_made),
        cmocka_unit_test(layout_is_not_judged_by_what_is_larger),
        cmocka_unit_test(layout_that_is_not_followed_any_more_is_unmapped),
        cmocka_unit_test(layout_in_which_something_lies_stays_mapped),
        cmocka_unit_test(layout_of_another_job_gives_its_memory_back),
        cmocka_unit_test(layout_that_is_being_made_is_waited_for_at_the_end),
        cmocka_unit_test(layout_outlives_memory_that_is_given_back_meanwhile),
        cmocka_unit_test(layout_survives_every_failing_verb),
        cmocka_unit_test(layout_survives_every_want_of_host_memory),
    };
    return cmocka_run_group_tests_name("layout_job", tests, NULL, NULL);
}
