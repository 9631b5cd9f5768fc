/*
 * keep.c: see keep.h.
 */
#include <runtime/face/rehearse.h>
#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/process.h>
#include <plan/base/plan.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Iterations that are recorded at most: of a job whose iterations differ each shows something new
 * (docs/decisions.md, D291). */
#define ITERATIONS 32u
/* Events that are recorded at most, of 32 bytes each. */
#define EVENTS (1u << 20)
/* Planning gives way to the job's own threads (D199). */
#define NICE 10

/* ---- the state ---- */

static void move_to(pleat__keep *keep, pleat__keep_state next)
{
    PLEAT_ASSERT(next > keep->state ||
                 (keep->state == PLEAT__KEEP_TRIES && next == PLEAT__KEEP_RECORDS));
    keep->state = next;
}

/* ---- the program ---- */

/* Ranks of one job have the same command line. Variables of torchrun, Open MPI, MPICH, srun. */
static uint64_t hash_rank(uint64_t hash)
{
    static const char *const names[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *value = getenv(names[i]);
        if (value != NULL)
            hash = pleat__plan_key_hash(hash, value, strlen(value) + 1);
    }
    return hash;
}

static void learn_program(pleat__keep *keep)
{
    char command[4096];
    size_t length = pleat__process_command(command, sizeof command);
    keep->program_hash = hash_rank(pleat__plan_key_hash(0, command, length));
    keep->program_hash =
        pleat__plan_key_hash(keep->program_hash, &keep->device, sizeof keep->device);
    size_t shown = length < sizeof keep->program ? length : sizeof keep->program;
    for (size_t i = 0; i + 1 < shown; i++)
        keep->program[i] = command[i] != '\0' ? command[i] : ' ';
}

/* ---- on the thread ---- */

/* Sizes that change from iteration to iteration are other ones in the next run: the plan has room
 * for any of them, and is kept if that pays (docs/decisions.md, D597). */
static pleat_result plan_of(const pleat__keep *keep, const pleat_trace *trace, pleat_plan **plan)
{
    const pleat_plan_options options = {.size = sizeof options,
                                        .chunk_bytes = keep->chunk_bytes,
                                        .no_recipe = 1,
                                        .device = keep->device};
    return pleat_plan_make(trace, &options, plan);
}

/* Whether the recording takes no more with a plan than by learning. */
static pleat_result pays(const pleat__keep *keep, const pleat_plan *plan)
{
    const pleat_trace *trace = keep->given.trace;
    uint64_t learned, planned;
    PLEAT_TRY(pleat__rehearse(trace, keep->device, NULL, keep->device_bytes, keep->chunk_bytes,
                              &learned));
    PLEAT_TRY(pleat__rehearse(trace, keep->device, plan, keep->device_bytes, keep->chunk_bytes,
                              &planned));
    return planned <= learned
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_LIMIT, "a plan takes %llu bytes, learning takes %llu",
                             (unsigned long long)planned, (unsigned long long)learned);
}

/* Who has asked for plans hears, once a process, that they have no place. */
static pleat_result in_its_place(const pleat__keep *keep, pleat_result result)
{
    static atomic_flag said = ATOMIC_FLAG_INIT;
    if (result != PLEAT_OK && keep->asked && !atomic_flag_test_and_set(&said))
        fprintf(stderr, "pleat: keep:on keeps no plan: %s\n", pleat_last_error()->text);
    return result;
}

static pleat_result write_plan(pleat__keep *keep)
{
    char folder[PLEAT__PLAN_CACHE_PATH];
    pleat__plan_key key;
    pleat_plan *plan;
    /* Of a part of an iteration it would be a plan of another job. */
    if (keep->given.failed.result != PLEAT_OK)
        return pleat__fail_again(&keep->given.failed);
    if (!pleat__plan_key_of(keep->given.trace, keep->device, keep->chunk_bytes, keep->program_hash,
                            &key))
        return pleat__fail(PLEAT_E_NOT_FOUND, "nothing was allocated");
    PLEAT_TRY(in_its_place(keep, pleat__plan_cache_folder(true, folder)));
    PLEAT_TRY(plan_of(keep, keep->given.trace, &plan));
    pleat_result result = pays(keep, plan);
    if (result == PLEAT_OK)
        result = in_its_place(
            keep, pleat__plan_cache_write(folder, &key, plan, keep->program, keep->most_bytes));
    pleat_plan_free(plan);
    return result;
}

/* The plan that is followed fits: it stays longest. */
static pleat_result touch_plan(pleat__keep *keep)
{
    char folder[PLEAT__PLAN_CACHE_PATH];
    PLEAT_TRY(pleat__plan_cache_folder(false, folder));
    pleat__plan_cache_touch(folder, keep->followed);
    return PLEAT_OK;
}

static pleat_result work(void *context, pleat_result ready)
{
    pleat__keep *keep = context;
    (void)ready;
    (void)setpriority(PRIO_PROCESS, 0, NICE); /* 0: of this thread alone, on Linux */
    pleat_result result = keep->work(keep);
    pleat__record_release(&keep->given);
    return result;
}

/* Has the thread do something with a recording, which is its from now on, and goes where there is
 * none; with the lock held, or when nobody calls the runtime. */
static void give(pleat_runtime *runtime, pleat__record record,
                 pleat_result (*what)(pleat__keep *keep))
{
    pleat__keep *keep = &runtime->keep;
    keep->given = record;
    keep->work = what;
    keep->job = (pleat__job){.call = work, .context = keep};
    if (keep->thread == NULL &&
        pleat__mapper_create(runtime->vmm, runtime->arena, &keep->thread) != PLEAT_OK)
        pleat__record_release(&keep->given);
    else
        pleat__mapper_submit(keep->thread, &keep->job);
}

/* The same with all that is recorded. It is not tried twice. */
static void hand_over(pleat_runtime *runtime, pleat_result (*what)(pleat__keep *keep))
{
    pleat__record record = runtime->keep.record;
    move_to(&runtime->keep, PLEAT__KEEP_OVER);
    runtime->keep.record = (pleat__record){0};
    give(runtime, record, what);
}

/* ---- following ---- */

/* The plan for a job that begins with such a request. Without the lock. */
static pleat_result find_plan(pleat__keep *keep, uint64_t bytes)
{
    char folder[PLEAT__PLAN_CACHE_PATH];
    pleat__arena *arena;
    pleat__kept_plan *plans, found;
    size_t count;
    PLEAT_TRY(pleat__plan_cache_folder(false, folder));
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result = pleat__plan_cache_list(folder, arena, &plans, &count);
    if (result == PLEAT_OK &&
        !pleat__plan_cache_find(plans, count, pleat__plan_key_first(keep->chunk_bytes, bytes),
                                keep->program_hash, &found))
        result = PLEAT_E_NOT_FOUND;
    pleat__arena_destroy(arena);
    PLEAT_TRY(result);
    PLEAT_TRY(pleat__plan_cache_read(folder, found.name, &keep->plan));
    memcpy(keep->followed, found.name, sizeof keep->followed);
    return PLEAT_OK;
}

/* Another policy, with the plan, in the place of the one that has served nothing yet. pre: the
 * turn; the lock is left. */
static pleat_result make_policy(pleat_runtime *runtime, void **made)
{
    pleat__keep *keep = &runtime->keep;
    if (keep->plan->physical_bytes > runtime->limits.cap_bytes)
        return pleat__fail(PLEAT_E_BUDGET, "the plan that was kept takes more than there is");
    pleat__policy_context context = runtime->context;
    context.plan = keep->plan;
    context.guessed = true;
    context.again = true;
    return runtime->ops->create(&context, made);
}

static void follow(pleat_runtime *runtime, uint64_t bytes)
{
    pleat__keep *keep = &runtime->keep;
    void *made = NULL, *before = runtime->policy;
    pleat__gate_leave(&runtime->gate);
    pleat_result result = find_plan(keep, bytes);
    if (result == PLEAT_OK)
        result = make_policy(runtime, &made);
    pleat__gate_enter(&runtime->gate);
    if (result != PLEAT_OK) {
        pleat_plan_free(keep->plan);
        keep->plan = NULL;
        return;
    }
    runtime->policy = made;
    runtime->plan = keep->plan;
    if (keep->marked)
        (void)runtime->ops->mark(made); /* of a policy without memory it cannot fail */
    runtime->stats.kept_plans++;
    pleat__gate_leave(&runtime->gate);
    runtime->ops->destroy(before);
    pleat__gate_enter(&runtime->gate);
}

void pleat__keep_first(pleat_runtime *runtime, uint64_t bytes)
{
    pleat__keep *keep = &runtime->keep;
    while (keep->state == PLEAT__KEEP_FIRST &&
           pleat__gate_turn(&runtime->gate) == PLEAT_E_NOT_READY)
        pleat__gate_await_turn(&runtime->gate);
    if (keep->state != PLEAT__KEEP_FIRST)
        return;
    follow(runtime, bytes);
    move_to(keep, PLEAT__KEEP_RECORDS);
}

/* ---- keeping ---- */

void pleat__keep_begin(pleat_runtime *runtime, const pleat__conf *conf)
{
    const pleat_record_options options = {
        .size = sizeof options, .iterations = ITERATIONS, .events = EVENTS};
    pleat__keep *keep = &runtime->keep;
    pleat__conf environment;
    if (!conf->keep || conf->canary || runtime->plan != NULL || runtime->ops->fit == NULL)
        return;
    keep->device = (uint32_t)runtime->device;
    keep->chunk_bytes = pleat__space_page_bytes(runtime->space);
    keep->device_bytes = pleat__space_device_bytes(runtime->space);
    keep->most_bytes = conf->keep_bytes;
    if (pleat__record_begin(&keep->record, runtime->arena, runtime->device, keep->device_bytes,
                            &options) != PLEAT_OK)
        return;
    move_to(keep, PLEAT__KEEP_FIRST);
    keep->asked = pleat__conf_read(NULL, &environment) == PLEAT_OK && environment.keep;
    learn_program(keep);
}

/* Whether so much came since the last try, which failed, that another may do better. */
static bool is_worth_a_try(const pleat__keep *keep)
{
    return keep->tried == 0 || pleat_trace_event_count(keep->record.trace) / 2 >= keep->tried;
}

static pleat__plan_fit fit_of(const pleat_runtime *runtime)
{
    return runtime->keep.plan != NULL ? runtime->ops->fit(runtime->policy) : PLEAT__FIT_FAILS;
}

void pleat__keep_mark(pleat_runtime *runtime)
{
    pleat__keep *keep = &runtime->keep;
    if (keep->state == PLEAT__KEEP_OFF || keep->state == PLEAT__KEEP_OVER)
        return;
    keep->marked |= keep->state == PLEAT__KEEP_FIRST;
    pleat__record_mark(&keep->record);
    if (keep->state != PLEAT__KEEP_RECORDS)
        return;
    switch (fit_of(runtime)) {
    case PLEAT__FIT_OPEN:
        break;
    case PLEAT__FIT_HOLDS:
        hand_over(runtime, touch_plan);
        break;
    case PLEAT__FIT_FAILS:
        if (pleat__record_is_enough(&keep->record) && is_worth_a_try(keep))
            hand_over(runtime, write_plan);
        break;
    }
}

static pleat_result wait_for(pleat__keep *keep)
{
    return keep->thread != NULL
               ? pleat__mapper_wait(keep->thread, &keep->job)
               : pleat__fail(PLEAT_E_NO_MEMORY, "there is no thread to make a plan");
}

/* Of a copy of the recording, which goes on: one that is asked for too early is made later. The
 * lock is left; the state is TRIES. */
static pleat_result try_now(pleat_runtime *runtime)
{
    pleat__keep *keep = &runtime->keep;
    pleat_trace *trace;
    size_t events = 0;
    pleat__gate_unlock(&runtime->gate);
    pleat_result result = pleat__record_copy(&keep->record, &runtime->gate, &trace);
    if (result == PLEAT_OK) {
        events = pleat_trace_event_count(trace);
        pleat__gate_lock(&runtime->gate);
        give(runtime, (pleat__record){.trace = trace}, write_plan);
        pleat__gate_unlock(&runtime->gate);
        result = wait_for(keep);
    }
    pleat__gate_lock(&runtime->gate);
    move_to(keep, result == PLEAT_OK ? PLEAT__KEEP_OVER : PLEAT__KEEP_RECORDS);
    keep->tried = events;
    keep->refused = pleat__failure(result);
    if (result == PLEAT_OK)
        pleat__record_release(&keep->record);
    return result;
}

/* That the plan which is on trial is used is noted; what comes of the trial is not known yet. */
static pleat_result touch_now(pleat_runtime *runtime)
{
    pleat__keep *keep = &runtime->keep;
    give(runtime, (pleat__record){.trace = NULL}, touch_plan);
    pleat__gate_unlock(&runtime->gate);
    pleat_result result = wait_for(keep);
    pleat__gate_lock(&runtime->gate);
    move_to(keep, PLEAT__KEEP_RECORDS);
    return result;
}

/* With the lock: what is not kept by itself, because nobody marked iterations or there were few.
 * `last`: nothing more will come. */
static pleat_result keep_now(pleat_runtime *runtime, bool last)
{
    pleat__keep *keep = &runtime->keep;
    if (keep->state == PLEAT__KEEP_OFF)
        return pleat__fail(PLEAT_E_STATE, "this runtime keeps no plan (setting keep)");
    while (keep->state == PLEAT__KEEP_TRIES) /* another thread's call does */
        pleat__gate_yield(&runtime->gate);
    if (keep->state == PLEAT__KEEP_FIRST)
        return pleat__fail(PLEAT_E_NOT_FOUND, "nothing was allocated");
    if (keep->state == PLEAT__KEEP_OVER)
        return PLEAT_OK;
    bool fails = fit_of(runtime) == PLEAT__FIT_FAILS;
    if (fails && !is_worth_a_try(keep))
        return pleat__fail_again(&keep->refused);
    if (last || !pleat__records(&keep->record)) {
        hand_over(runtime, fails ? write_plan : touch_plan);
        return PLEAT_OK;
    }
    move_to(keep, PLEAT__KEEP_TRIES);
    return fails ? try_now(runtime) : touch_now(runtime);
}

static pleat_result keep_plan(pleat_runtime *runtime, bool last)
{
    pleat__gate_lock(&runtime->gate);
    pleat_result result = keep_now(runtime, last);
    bool over = runtime->keep.state == PLEAT__KEEP_OVER;
    pleat__gate_unlock(&runtime->gate);
    return result == PLEAT_OK && over ? wait_for(&runtime->keep) : result;
}

pleat_result pleat_keep_plan(pleat_runtime *runtime)
{
    PLEAT__TRY_HERE(runtime);
    return keep_plan(runtime, false);
}

void pleat__keep_end(pleat_runtime *runtime)
{
    if (runtime->keep.state != PLEAT__KEEP_OFF)
        (void)!keep_plan(runtime, true);
}

void pleat__keep_release(pleat__keep *keep)
{
    pleat__mapper_destroy(keep->thread);
    pleat__record_release(&keep->record);
    pleat_plan_free(keep->plan);
    *keep = (pleat__keep){0};
}
