/*
 * shapes.c: taking up, putting aside, taking up again (see shapes.h).
 */
#include <runtime/shapes.h>

#include <string.h>

/* One in so many of the requests that are judged may miss. */
#define WATCH_SHARE 4u
/* An old shape is back when this many of its requests came in a row. */
#define RETURNED 12u
/* What was put aside so often within an iteration is not taken up again: learning gets its turn. */
#define FAILED 4u

pleat_result pleat__shapes_init(pleat__shapes *shapes, pleat__arena *arena, pleat_stats *stats,
                                pleat__heap *heap, const pleat__conf *conf)
{
    *shapes = (pleat__shapes){.arena = arena, .stats = stats, .heap = heap};
    pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_start);
    return pleat__learn_init(&shapes->learn, arena, conf);
}

void pleat__shapes_release(pleat__shapes *shapes)
{
    for (uint32_t i = 0; i < shapes->kept_count; i++)
        pleat__follow_free(shapes->kept[i]);
    pleat__learn_release(&shapes->learn);
    *shapes = (pleat__shapes){0};
}

static void set_current(pleat__shapes *shapes, pleat__follow *next)
{
    bool foresees = next != NULL && next->foresee.arena != NULL;
    shapes->current = next;
    shapes->epoch++;
    shapes->heap->wanted = foresees ? pleat__foresee_wanted : NULL;
    shapes->heap->wanted_context = foresees ? &next->foresee : NULL;
}

void pleat__shapes_begin(pleat__shapes *shapes, pleat__follow *plan)
{
    shapes->kept[0] = plan;
    shapes->kept_count = 1;
    set_current(shapes, plan);
    pleat__states_set(&shapes->states, PLEAT__STATE_planned, PLEAT__CAUSE_file);
}
/* Room for one more shape: the one that was taken up the longest ago goes, a plan file's never. */
static void kept_evict(pleat__shapes *shapes)
{
    if (shapes->kept_count < PLEAT__SHAPES)
        return;
    uint32_t oldest = shapes->kept[0]->learned ? 0 : 1;
    for (uint32_t i = oldest + 1; i < shapes->kept_count; i++)
        if (shapes->kept[i]->adopted < shapes->kept[oldest]->adopted)
            oldest = i;
    if (shapes->candidate == shapes->kept[oldest])
        shapes->candidate = NULL;
    pleat__follow_free(shapes->kept[oldest]);
    shapes->kept[oldest] = shapes->kept[--shapes->kept_count];
}

static void kept_remove(pleat__shapes *shapes, pleat__follow *follow)
{
    for (uint32_t i = 0; i < shapes->kept_count; i++)
        if (shapes->kept[i] == follow)
            shapes->kept[i] = shapes->kept[--shapes->kept_count];
    pleat__follow_free(follow);
}

static void follow(pleat__shapes *shapes, pleat__follow *next, pleat__cause cause)
{
    set_current(shapes, next);
    shapes->candidate = NULL;
    next->adopted = shapes->requests;
    shapes->watched = 0;
    shapes->missed = 0;
    pleat__states_set(&shapes->states, PLEAT__STATE_planned, cause);
    shapes->stats->switches += cause == PLEAT__CAUSE_switched;
    shapes->stats->returns += cause == PLEAT__CAUSE_returned;
}

/* An iteration ended that repeats the one before. */
static void plan_and_switch(pleat__shapes *shapes)
{
    pleat__follow *next;
    pleat__states_set(&shapes->states, PLEAT__STATE_planning, PLEAT__CAUSE_agreed);
    if (pleat__learn_take(&shapes->learn, &next) != PLEAT_OK) {
        pleat__learn_restart(&shapes->learn);
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_no_memory);
        return;
    }
    pleat__states_set(&shapes->states, PLEAT__STATE_switching, PLEAT__CAUSE_made);
    kept_evict(shapes);
    shapes->kept[shapes->kept_count++] = next;
    follow(shapes, next, PLEAT__CAUSE_switched);
}

/* The kept shape in which the last requests occur; its cursor goes behind them. */
static pleat__follow *find_returned(pleat__shapes *shapes, const uint64_t recent[PLEAT__GRAM])
{
    uint32_t item;
    for (uint32_t i = 0; i < shapes->kept_count; i++)
        if (shapes->kept[i] != shapes->current && shapes->kept[i]->failed < FAILED &&
            pleat__match_resync(&shapes->kept[i]->match, recent, &item))
            return shapes->kept[i];
    return NULL;
}

static void diverge(pleat__shapes *shapes)
{
    pleat__follow *old = shapes->current;
    uint64_t recent[PLEAT__GRAM];
    memcpy(recent, old->match.recent, sizeof recent);
    pleat__states_set(&shapes->states, PLEAT__STATE_diverged, PLEAT__CAUSE_diverged);
    shapes->stats->divergences++;
    old->failed =
        shapes->requests - old->adopted < old->count && old->learned ? old->failed + 1 : 0;
    set_current(shapes, NULL);
    /* An iteration found by its period that did not even come twice more was an inner loop. */
    bool inner =
        old->learned && !shapes->learn.marks && shapes->requests - old->adopted < 2 * old->count;
    if (inner) {
        pleat__learn_reject(&shapes->learn, old->count);
        kept_remove(shapes, old);
    }
    pleat__learn_restart(&shapes->learn);
    pleat__states_set(&shapes->states, PLEAT__STATE_relearning, PLEAT__CAUSE_unknown);
    shapes->candidate = find_returned(shapes, recent);
    shapes->candidate_hits = 0;
}

void pleat__shapes_judge(pleat__shapes *shapes)
{
    const pleat__match *match = &shapes->current->match;
    if (shapes->heap->keeping && match->cursor >= match->begin)
        pleat__heap_keep_end(shapes->heap);
    bool diverged = shapes->missed >= PLEAT__WATCH_REQUESTS / WATCH_SHARE;
    shapes->watched = 0;
    shapes->missed = 0;
    if (diverged)
        diverge(shapes);
}

/* RELEARNING: is an old shape back? */
static void look_for_returned(pleat__shapes *shapes, uint64_t bytes, uint16_t stream)
{
    static const uint32_t every = PLEAT__GRAM;
    pleat__follow *candidate = shapes->candidate;
    if (candidate != NULL) {
        if (pleat__match_next(&candidate->match, bytes, stream) == PLEAT__NO_ITEM)
            shapes->candidate = NULL;
        else if (++shapes->candidate_hits >= RETURNED) {
            pleat__learn_restart(&shapes->learn);
            follow(shapes, candidate, PLEAT__CAUSE_returned);
        }
        return;
    }
    if (shapes->learn.count % every != 0 || shapes->learn.count < every)
        return;
    uint64_t recent[PLEAT__GRAM];
    for (uint32_t i = 0; i < every; i++)
        recent[i] = shapes->learn.items[shapes->learn.count - every + i].bytes;
    shapes->candidate = find_returned(shapes, recent);
    shapes->candidate_hits = 0;
}

void pleat__shapes_learn(pleat__shapes *shapes, uint64_t bytes, uint16_t stream,
                         const pleat__place *place)
{
    if (pleat__learn_request(&shapes->learn, bytes, stream, place) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(shapes);
    else if (shapes->states.now == PLEAT__STATE_relearning)
        look_for_returned(shapes, bytes, stream);
}

static void mark_planned(pleat__shapes *shapes)
{
    if (shapes->current->learned && !shapes->learn.marks) {
        /* Found by its period; a job that marks its iterations knows better. */
        pleat__follow *old = shapes->current;
        set_current(shapes, NULL);
        kept_remove(shapes, old);
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_marked);
        pleat__learn_mark(&shapes->learn);
        return;
    }
    shapes->learn.marks = true;
    pleat__match_mark(&shapes->current->match);
}

/* Before the first mark stretches were taken for iterations by their period. A job that marks its
 * iterations knows better: else one of them returns again and again, and nothing is learned. */
static void forget_found(pleat__shapes *shapes)
{
    for (uint32_t i = shapes->kept_count; i-- > 0;)
        if (shapes->kept[i]->learned && shapes->kept[i] != shapes->current)
            kept_remove(shapes, shapes->kept[i]);
    shapes->candidate = NULL;
}

void pleat__shapes_mark(pleat__shapes *shapes)
{
    if (!shapes->learn.marks)
        forget_found(shapes);
    if (shapes->current != NULL)
        mark_planned(shapes);
    else if (pleat__learn_mark(&shapes->learn) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(shapes);
}
