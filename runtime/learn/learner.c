/*
 * learner.c: adopting, suspending, resuming and dropping a schedule (see learner.h).
 *
 * UNMARKED  Where the job marks nothing, nothing is learned (D8 in docs/decisions.md). A plan file
 *           that is suspended is resumed where a row of its sizes comes, and as many requests as it
 *           has count as an iteration.
 */
#include <runtime/learn/learner.h>

#include <internal/error.h>

/* An iteration that nothing marks has at least this many requests for the judge (D116). */
#define STRETCH 1024u
/* A plan takes too much where 1/MORE more memory is there when its trial ends than was ever in use,
 * and MORE_CHUNKS besides: what ends of chunks come to in a small job of several streams (D615). */
#define MORE        16u
#define MORE_CHUNKS 8u
/* Segments of a recording that go at the end of an iteration: 0.06 ms (D445). */
#define SWEPT 16u

void pleat__learner_init(pleat__learner *learner, pleat__arena *arena, pleat_stats *stats,
                         pleat__heap *heap, const pleat__conf *conf, bool waits)
{
    *learner = (pleat__learner){.arena = arena,
                                .stats = stats,
                                .heap = heap,
                                .on = conf->learn,
                                .waits = waits,
                                .iteration_until = STRETCH};
    pleat__recording_init(&learner->record, arena);
    pleat__states_set(&learner->states, PLEAT__STATE_heap, PLEAT__CAUSE_start);
}

void pleat__learner_release(pleat__learner *learner)
{
    if (learner->schedule != NULL && learner->schedule->learned)
        pleat__schedule_free(learner->schedule);
    pleat__judge_end(&learner->judge);
    pleat__layouts_release(&learner->layouts);
    pleat__recording_release(&learner->record);
    *learner = (pleat__learner){0};
}

/* ---- what is followed ---- */

static void set_current(pleat__learner *learner, pleat__schedule *next, pleat__state state,
                        pleat__cause cause)
{
    learner->current = next;
    learner->epoch++;
    learner->watched = 0;
    learner->missed = 0;
    pleat__states_set(&learner->states, state, cause);
}

/* The next iteration ends after as many requests as the schedule has. */
static void set_pace(pleat__learner *learner)
{
    const pleat__schedule *schedule = learner->schedule;
    uint64_t count = schedule != NULL ? schedule->matcher.iteration : 0;
    count = count > STRETCH ? count : STRETCH;
    learner->due &= (uint8_t)~PLEAT__DUE_ITERATION;
    learner->iteration_until = learner->record.marked ? UINT64_MAX : learner->requests + count;
}

static void drop(pleat__learner *learner, pleat__cause cause)
{
    pleat__schedule *old = learner->schedule;
    set_current(learner, NULL, PLEAT__STATE_heap, cause);
    learner->schedule = NULL;
    learner->heap->has_schedule = false;
    if (old->learned)
        pleat__schedule_free(old);
}

/* An iteration that is alike is followed from now on. false: there is no host memory for it.
 * pre: there is no schedule */
static bool adopt(pleat__learner *learner, const pleat__alike *iteration)
{
    pleat__schedule *next;
    if (pleat__recording_take(&learner->record, iteration, &next) != PLEAT_OK) {
        pleat__recording_restart(&learner->record);
        return false;
    }
    learner->schedule = next;
    learner->heap->has_schedule = true;
    pleat__recording_restart(&learner->record);
    learner->stats->switches++;
    set_current(learner, next, PLEAT__STATE_following, PLEAT__CAUSE_alike);
    set_pace(learner);
    return true;
}

/* The plan file is another job's. */
static void refute(pleat__learner *learner)
{
    pleat__judge_end(&learner->judge);
    learner->stats->left_at = learner->requests;
    learner->due |= PLEAT__DUE_LEAVE;
}

static void suspend(pleat__learner *learner)
{
    if (learner->judge.on)
        refute(learner);
    learner->stats->divergences++;
    learner->diverged = true;
    set_current(learner, NULL, PLEAT__STATE_suspended, PLEAT__CAUSE_diverged);
}

static void resume(pleat__learner *learner)
{
    learner->stats->returns++;
    set_current(learner, learner->schedule, PLEAT__STATE_following, PLEAT__CAUSE_resumed);
    if (pleat__learner_has_sizes(learner))
        pleat__size_parameter_adopt(&learner->sizes, learner->schedule);
}

void pleat__learner_watch(pleat__learner *learner)
{
    bool diverged = learner->missed >= PLEAT__WATCH_MISSED;
    pleat__recording_sweep(&learner->record, 1);
    learner->watched = 0;
    learner->missed = 0;
    if (diverged)
        suspend(learner);
}

/* ---- requests that follow nothing ---- */

/* Where nothing marks iterations: whether the suspended plan's own requests come again. */
static void look_for_schedule(pleat__learner *learner, uint64_t bytes)
{
    pleat__matcher *matcher = &learner->schedule->matcher;
    uint32_t item;
    pleat__matcher_remember(matcher, bytes);
    if (learner->requests % PLEAT__GRAM == 0 &&
        pleat__matcher_resync(matcher, matcher->recent, &item))
        resume(learner);
}

void pleat__learner_record(pleat__learner *learner, uint64_t bytes, uint16_t stream,
                           const pleat__place *place)
{
    if (learner->schedule != NULL) {
        if (!learner->record.marked)
            look_for_schedule(learner, bytes);
    } else if (learner->on) {
        pleat__recording_add(&learner->record, bytes, stream, place);
    }
}

/* ---- iterations ---- */

/* A larger layout was made: it is followed from where the last one was. */
static void take_layout(pleat__learner *learner)
{
    if (learner->waits)
        pleat__layouts_await(&learner->layouts);
    pleat__schedule *next = pleat__layouts_take(&learner->layouts);
    if (next == NULL)
        return;
    pleat__matcher_jump(&next->matcher, learner->schedule->matcher.cursor);
    learner->schedule = next;
    learner->heap->waking_marks = 1;
    set_current(learner, next, PLEAT__STATE_following, PLEAT__CAUSE_laid_out);
    pleat__size_parameter_adopt(&learner->sizes, next);
}

/* Of a plan file with a recipe, at the end of an iteration: a larger one than there is a layout for
 * is laid out. */
static void follow_sizes(pleat__learner *learner)
{
    if (!pleat__learner_has_sizes(learner))
        return;
    if (pleat__size_parameter_is_proven(&learner->sizes))
        pleat__layouts_ask(&learner->layouts, learner->sizes.x, learner->most_live);
    take_layout(learner);
}

/* Memory of what is followed and held no more. */
static void sweep(pleat__learner *learner)
{
    pleat__recording_sweep(&learner->record, SWEPT);
    if (learner->layouts.retired_count != 0)
        (void)pleat__layouts_sweep(&learner->layouts);
}

/* Whether a learned schedule is the job's no more: it was suspended in two iterations in a row. */
static bool has_ended(const pleat__learner *learner)
{
    return learner->schedule != NULL && learner->schedule->learned && learner->diverged &&
           learner->diverged_before;
}

void pleat__learner_mark(pleat__learner *learner)
{
    bool first = !learner->record.marked;
    pleat__alike found = pleat__recording_mark(&learner->record);
    if (first)
        set_pace(learner);
    learner->heap->waking_marks -= learner->heap->waking_marks != 0;
    pleat__heap_end_iteration(learner->heap);
    follow_sizes(learner);
    sweep(learner);
    if (has_ended(learner))
        drop(learner, PLEAT__CAUSE_again);
    learner->diverged_before = learner->diverged;
    learner->diverged = false;
    if (learner->schedule == NULL && found.count != 0 && adopt(learner, &found))
        return;
    if (learner->current == NULL && learner->schedule != NULL)
        resume(learner);
    if (learner->current == NULL)
        return;
    pleat__matcher_mark(&learner->current->matcher);
    if (pleat__learner_has_sizes(learner))
        pleat__size_parameter_begin(&learner->sizes, learner->current);
}

void pleat__learner_pace(pleat__learner *learner)
{
    learner->heap->waking_marks -= learner->heap->waking_marks != 0;
    pleat__heap_end_iteration(learner->heap);
    set_pace(learner);
    if (learner->current != NULL)
        follow_sizes(learner);
    sweep(learner);
}

/* ---- plan files ---- */

/* Whether a sequence has dynamic requests. */
static bool varies(const pleat__matcher *matcher)
{
    for (uint32_t i = 0; i < matcher->count; i++)
        if (matcher->items[i].kind == PLEAT__ITEM_DYNAMIC)
            return true;
    return false;
}

pleat_result pleat__learner_load(pleat__learner *learner, pleat__place_map *places,
                                 const pleat_plan *plan, bool guessed)
{
    PLEAT_TRY(pleat__layouts_load(&learner->layouts, learner->arena, learner->heap, places,
                                  learner->stats, plan, &learner->schedule));
    if (plan->recipe != NULL)
        pleat__size_parameter_init(&learner->sizes, plan);
    learner->heap->has_schedule = true;
    set_current(learner, learner->schedule, PLEAT__STATE_following, PLEAT__CAUSE_file);
    set_pace(learner);
    learner->heap->waking_marks = 2; /* a job may mark its beginning */
    /* Where sizes follow a number, what is not in the plan is laid out for another one. */
    learner->heap->planned = plan->recipe == NULL ? learner->heap->pool->count : 0;
    learner->heap->planned_varies = varies(&learner->schedule->matcher);
    pleat__judge_begin(&learner->judge, learner->arena, &learner->schedule->matcher, plan, guessed);
    return PLEAT_OK;
}

/* What waits for other streams is in use as well. */
static void note_use(pleat__learner *learner)
{
    uint64_t used = learner->stats->live_bytes + learner->stats->waiting_bytes;
    if (used > learner->most_used)
        learner->most_used = used;
}

/* Whether so much more memory is there than was ever in use that the heap alone would take less. A
 * recipe's slots are larger than what lies in them at any x but the largest. */
static bool takes_too_much(const pleat__learner *learner)
{
    pleat__space *space = learner->heap->pool->space;
    uint64_t taken = pleat__space_stats_of(space).physical_bytes;
    uint64_t more = learner->most_used / MORE + MORE_CHUNKS * pleat__space_page_bytes(space);
    return !pleat__learner_has_sizes(learner) && taken > learner->most_used + more;
}

void pleat__learner_try(pleat__learner *learner, uint64_t bytes, bool missed)
{
    note_use(learner);
    if (!pleat__judge_step(&learner->judge, &learner->current->matcher, bytes, missed,
                           learner->stats->live_bytes) ||
        (!learner->judge.on && takes_too_much(learner)))
        refute(learner);
}

pleat__plan_fit pleat__learner_fit(const pleat__learner *learner)
{
    bool left = learner->schedule == NULL || learner->schedule->learned;
    if (learner->judge.on || (learner->due & PLEAT__DUE_LEAVE && !left))
        return PLEAT__FIT_OPEN;
    return left ? PLEAT__FIT_FAILS : PLEAT__FIT_HOLDS;
}

bool pleat__learner_leave(pleat__learner *learner)
{
    if (!pleat__layouts_leave(&learner->layouts))
        return false;
    learner->due &= (uint8_t)~PLEAT__DUE_LEAVE;
    learner->sizes = (pleat__size_parameter){0};
    learner->heap->waking_marks = 0;
    drop(learner, PLEAT__CAUSE_misfit);
    (void)pleat__layouts_sweep(&learner->layouts);
    set_pace(learner);
    return true;
}
