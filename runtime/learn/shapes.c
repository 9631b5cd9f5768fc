/*
 * shapes.c: taking up, putting aside, taking up again (see shapes.h).
 *
 * TRUST    An iteration that was found by its period may have been an inner loop's, so recording
 *          goes on until it has come TRUST times more; a longer one that is found meanwhile takes
 *          its place where it explains more requests (of a step that comes once in sixteen
 *          microbatches that is one request in a hundred), and a shorter one does only where all of
 *          the longer one was its turns.
 * PACED    Where the beat of a job that marks nothing is known (beat.h) its iterations are taken as
 *          marked; while one is followed, whenever that begins again. So is one that was found by
 *          its period and is trusted, where its requests vary: a plan is made of it (draft.h).
 * CHRONIC  A followed shape may serve a little less than all, all the time, without diverging: the
 *          job changed, or the iteration that was learned was an odd one. From one request in PAYS
 *          on recording begins again, for as long as it takes to find the iteration anew, and what
 *          is found is taken up when it has a slot for at least so many more. Recording costs
 *          about as much as a request, so there are rests between tries.
 */
#include <runtime/learn/shapes.h>

#include <internal/error.h>
#include <string.h>

/* Times that what was found by its period must have come before it is trusted. */
#define TRUST 3u
/* One request in so many that misses all the time is worth learning anew. */
#define PAYS 64u
/* The same of an iteration that what is followed may be a loop of. */
#define EXPLAINS 128u
/* Requests over which that is judged, at least. */
#define CHRONIC_REQUESTS 4096u
/* Stretches that must have gone well before doubts are forgotten. */
#define CALM 16u
/* A try is followed by a rest of so many times its length, and each is twice as long as the one
 * before, up to so often: iterations are found however long they are, and recording costs at most
 * a few ns a request. */
#define REST       4u
#define MOST_TRIES 6u
/* An iteration of loops that come many times is found when what is recorded spans it twice: each
 * divergence doubles how long that is, up to so often. */
#define MOST_DOUBTS 8u
/* An iteration is recorded from its beginning on until at most one request in so many missed. (A
 * GPT-2 that went from microbatch 2 to 4 missed 166 of its first 2,107, and then diverged.) */
#define OPENING_MISSED 32u
/* A loose shape takes requests of any size for its own: where an iteration begins so many are
 * looked at for those of another one that is kept. (A GPT-2's steps, of which every fifth is a
 * rollout of about as many requests, were taken for rollouts: 13 ms an iteration where their own
 * shape takes 2.) */
#define LOOK 64u
/* Requests that are judged together where nothing marks iterations (fit.h), at least. */
#define STRETCH 1024u
/* A learned iteration is still to be recorded when more than one request in so many is dynamic. */
#define DYNAMIC_SHARE 64u

pleat_result pleat__shapes_init(pleat__shapes *shapes, pleat__arena *arena, pleat_stats *stats,
                                pleat__heap *heap, const pleat__placed *placed,
                                const pleat__conf *conf)
{
    *shapes = (pleat__shapes){.arena = arena,
                              .fit = {.stretch = STRETCH},
                              .stats = stats,
                              .heap = heap,
                              .kept = {.draft = &shapes->draft, .returned = &shapes->returned}};
    pleat__draft_init(&shapes->draft, arena, heap, placed, stats);
    pleat__beat_init(&shapes->beat, arena, !conf->learn || !conf->period);
    pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_start);
    return pleat__learn_init(&shapes->learn, arena, conf);
}

pleat_result pleat__shapes_elastic(pleat__shapes *shapes, const pleat__placed *placed)
{
    return pleat__elastic_init(&shapes->elastic, shapes->arena, shapes->heap, placed,
                               shapes->stats);
}

void pleat__shapes_release(pleat__shapes *shapes)
{
    pleat__elastic_release(&shapes->elastic);
    pleat__kept_release(&shapes->kept);
    pleat__draft_release(&shapes->draft);
    pleat__learn_release(&shapes->learn);
    if (shapes->arena != NULL)
        pleat__beat_restart(&shapes->beat);
    *shapes = (pleat__shapes){0};
}

/* Whether it is what a plan file says, at its own sizes or at others. */
static bool is_of_file(const pleat__shapes *shapes, const pleat__follow *follow)
{
    const pleat__elastic *elastic = &shapes->elastic;
    return follow != NULL && (follow->file || (elastic->plan != NULL && elastic->scale != NULL &&
                                               elastic->scale->plan != NULL &&
                                               pleat__elastic_follows(elastic, follow)));
}

static void set_current(pleat__shapes *shapes, pleat__follow *next)
{
    bool foresees = next != NULL && next->foresee.arena != NULL;
    pleat__elastic_followed(&shapes->elastic, next);
    pleat__misfit_followed(&shapes->misfit, is_of_file(shapes, next));
    shapes->current = next;
    shapes->returned = (pleat__returned){0};
    shapes->looking = 0;
    shapes->due = 0;
    if (next != NULL)
        pleat__beat_restart(&shapes->beat);
    shapes->epoch++;
    shapes->heap->wanted = foresees ? pleat__foresee_wanted : NULL;
    shapes->heap->wanted_context = foresees ? &next->foresee : NULL;
    shapes->heap->never = foresees ? next->foresee.never : NULL;
    shapes->heap->never_count = foresees ? next->foresee.never_count : 0;
}

void pleat__shapes_begin(pleat__shapes *shapes, const pleat_plan *plan, pleat__follow *follow)
{
    pleat__kept_add(&shapes->kept, follow);
    pleat__misfit_begin(&shapes->misfit, plan, shapes->stats);
    set_current(shapes, follow);
    pleat__states_set(&shapes->states, PLEAT__STATE_planned, PLEAT__CAUSE_file);
}

/* ---- recording while one is followed ---- */

static void record(pleat__shapes *shapes, uint64_t requests)
{
    shapes->recording = true;
    shapes->record_until = shapes->requests + requests;
}

static void record_end(pleat__shapes *shapes)
{
    shapes->recording = false;
    pleat__learn_restart(&shapes->learn);
}

static uint32_t stretch_of(const pleat__follow *follow)
{
    return follow->count > CHRONIC_REQUESTS ? follow->count : CHRONIC_REQUESTS;
}

/* Judges a long stretch: is it worth learning anew? */
static void judge_chronic(pleat__shapes *shapes)
{
    uint32_t stretch = stretch_of(shapes->current);
    if (shapes->chronic_seen < stretch)
        return;
    bool well = shapes->chronic_missed < shapes->chronic_seen / PAYS;
    shapes->chronic_seen = 0;
    shapes->chronic_missed = 0;
    shapes->calm = well ? shapes->calm + 1 : 0;
    if (shapes->calm == CALM) {
        shapes->tries = 0;
        shapes->doubts = 0;
    }
    if (well || shapes->recording || shapes->requests < shapes->retry_at ||
        !shapes->current->learned)
        return;
    uint64_t length = (TRUST + 1) * (uint64_t)stretch << shapes->tries;
    pleat__learn_restart(&shapes->learn);
    record(shapes, length);
    shapes->retry_at = shapes->record_until + REST * length;
    shapes->tries += shapes->tries < MOST_TRIES;
}

/* ---- taking up ---- */

static void follow(pleat__shapes *shapes, pleat__follow *next, pleat__cause cause)
{
    set_current(shapes, next);
    next->adopted = shapes->requests;
    if (!next->learned && shapes->fit.resting != 0) {
        pleat__fit_end_rest(&shapes->fit);
        shapes->draft.vain = 0;
    }
    shapes->watched = 0;
    shapes->missed = 0;
    shapes->unplanned = 0;
    shapes->chronic_seen = 0;
    shapes->chronic_missed = 0;
    pleat__states_set(&shapes->states, PLEAT__STATE_planned, cause);
    shapes->stats->switches += cause == PLEAT__CAUSE_switched;
    shapes->stats->returns += cause == PLEAT__CAUSE_returned;
    /* A plan file's places are no views of the heap's: they cannot be recorded. What lies between
     * marks needs no proof; what returned may have done so for a part that shapes have in common,
     * the optimizer's, and what is recorded of the new one must not be lost. */
    if (!next->learned || (shapes->learn.marks && cause == PLEAT__CAUSE_switched))
        record_end(shapes);
    else
        record(shapes, TRUST * (uint64_t)stretch_of(next) << shapes->doubts);
}

/* Whether what was found has slots for enough more requests than were served from them. One that is
 * much longer explains what the loop that is followed leaves out, however little that is; and the
 * loops of an iteration that is followed come again and again. */
static bool pays(const pleat__shapes *shapes)
{
    const pleat__found *found = &shapes->learn.found;
    const pleat__follow *current = shapes->current;
    if (current == NULL)
        return true;
    uint64_t since = current->made;
    uint32_t margin = found->count / PAYS;
    if (!shapes->learn.marks && pleat__learn_is_longer(found->count, current->count) &&
        !pleat__learn_is_multiple(found->count, current->count)) {
        since = current->looped;
        margin = found->count / EXPLAINS;
    } else if (!shapes->learn.marks && pleat__learn_is_longer(current->count, found->count) &&
               !pleat__learn_went_on(&shapes->learn, current->agreed, current->count)) {
        return false;
    }
    return shapes->requests >= since + found->count &&
           found->agreed + (uint64_t)found->unplanned > (uint64_t)found->count + margin;
}

static bool has_dynamic(const pleat__follow *follow)
{
    uint32_t dynamic = 0;
    for (uint32_t i = 0; i < follow->count; i++)
        dynamic += follow->items[i].kind == PLEAT__ITEM_DYNAMIC;
    return dynamic > follow->count / DYNAMIC_SHARE;
}

/* An iteration ended, see pleat__elastic_recorded. What was known of sizes may be known better now;
 * then what is followed is none of it any more. */
static void recorded(pleat__shapes *shapes, uint32_t count, uint32_t ahead)
{
    bool ours =
        shapes->current != NULL && pleat__elastic_follows(&shapes->elastic, shapes->current);
    pleat__elastic_recorded(&shapes->elastic, count, ahead);
    if (!ours || pleat__elastic_follows(&shapes->elastic, shapes->current))
        return;
    set_current(shapes, NULL);
    shapes->fit.poor = 0;
    pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_refitted);
}

/* Makes `next` one of those that are kept, and follows it; `looped` as in schedule.h. */
static void take_up(pleat__shapes *shapes, pleat__follow *next, uint64_t looped)
{
    next->looped = looped;
    next->made = shapes->requests;
    pleat__kept_add(&shapes->kept, next);
    follow(shapes, next, PLEAT__CAUSE_switched);
}

/* An iteration ended that repeats the one before. */
static void plan_and_switch(pleat__shapes *shapes)
{
    pleat__follow *next, *old;
    const pleat__found found = shapes->learn.found;
    if (!pays(shapes))
        return;
    if (!shapes->learn.marks)
        recorded(shapes, found.count, 0);
    old = shapes->current;
    pleat__states_set(&shapes->states, PLEAT__STATE_planning, PLEAT__CAUSE_agreed);
    if (pleat__learn_take(&shapes->learn, &next) != PLEAT_OK) {
        set_current(shapes, NULL);
        pleat__learn_restart(&shapes->learn);
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_no_memory);
        return;
    }
    pleat__states_set(&shapes->states, PLEAT__STATE_switching, PLEAT__CAUSE_made);
    bool again = old != NULL && old->learned && !pleat__learn_is_longer(found.count, old->count);
    uint64_t looped = again ? old->looped : shapes->requests;
    next->agreed = found.agreed;
    next->loose = found.agreed < found.count / 2;
    /* What served most of it is the same shape, known less well. */
    if (old != NULL && old->learned && 2 * (uint64_t)found.unplanned < found.count)
        pleat__kept_remove(&shapes->kept, old);
    if (!shapes->learn.marks)
        pleat__kept_forget_inner(&shapes->kept, next, shapes->requests);
    take_up(shapes, next, looped);
    /* Where sizes still change the iterations say more than this one shape does. */
    if (!has_dynamic(next)) {
        pleat__draft_settle(&shapes->draft);
        pleat__elastic_settle(&shapes->elastic, !shapes->learn.marks);
    } else if (!shapes->learn.marks) {
        pleat__elastic_record(&shapes->elastic, false);
    }
}

/* ---- iterations of a job that does not mark them ---- */

static void unpace(pleat__shapes *shapes)
{
    if (shapes->paced != 0)
        pleat__learn_lost(&shapes->learn);
    shapes->paced = 0;
    shapes->due &= (uint8_t)~PLEAT__DUE_BEGIN;
}

/* Iterations were found: this one and those before it are taken as if they had been marked. */
static void take_beat(pleat__shapes *shapes)
{
    const pleat__beat *beat = &shapes->beat;
    uint32_t length = beat->found.length, ahead = (uint32_t)(beat->end - beat->begin);
    shapes->paced = length;
    pleat__learn_found(&shapes->learn, length, ahead);
    /* What the first of them was held against is part of iterations too. */
    uint32_t repeats = (beat->found.compared + length - ahead) / length;
    pleat__elastic_found(&shapes->elastic, length, ahead, repeats);
    pleat__draft_found(&shapes->draft, length, ahead, repeats, beat->found.before);
}

static void listen(pleat__shapes *shapes, uint64_t bytes, uint16_t stream)
{
    switch (pleat__beat_request(&shapes->beat, bytes, stream, shapes->stats->live_bytes - bytes)) {
    case PLEAT__BEAT_FOUND:
    case PLEAT__BEAT_BEGIN:
        shapes->due |= PLEAT__DUE_BEGIN;
        break;
    case PLEAT__BEAT_LOST:
        unpace(shapes);
        break;
    case PLEAT__BEAT_NONE:
        /* What was followed is not any more, and what comes now has another beat. */
        if (shapes->paced != 0 && !shapes->beat.found.open &&
            shapes->beat.end > 2 * (uint64_t)shapes->paced)
            unpace(shapes);
        break;
    }
}

/* ---- putting aside, and taking up again ---- */

static void diverge(pleat__shapes *shapes)
{
    pleat__follow *old = shapes->current;
    uint64_t recent[PLEAT__GRAM];
    memcpy(recent, old->match.recent, sizeof recent);
    pleat__states_set(&shapes->states, PLEAT__STATE_diverged, PLEAT__CAUSE_diverged);
    shapes->stats->divergences++;
    /* A size says itself when it is back, a plan file may be another job's, and what was found by
     * its period may be a loop of an iteration. */
    bool may_go_on = !pleat__elastic_follows(&shapes->elastic, old) && shapes->learn.marks &&
                     (!old->file || pleat__misfit_fits(&shapes->misfit));
    pleat__elastic_diverged(&shapes->elastic);
    pleat__draft_want(&shapes->draft);
    set_current(shapes, NULL);
    shapes->returned.aside = may_go_on ? old : NULL;
    shapes->doubts += shapes->doubts < MOST_DOUBTS;
    /* What has been recorded all along knows more than what comes now. */
    if (!shapes->recording)
        pleat__learn_restart(&shapes->learn);
    shapes->recording = false;
    if (shapes->paced != 0)
        pleat__beat_judge(&shapes->beat, shapes->paced, shapes->requests - old->adopted);
    unpace(shapes);
    pleat__states_set(&shapes->states, PLEAT__STATE_relearning, PLEAT__CAUSE_unknown);
    pleat__returned_believe(&shapes->returned,
                            pleat__kept_find(&shapes->kept, &shapes->elastic, NULL, recent));
}

static void take_instance(pleat__shapes *shapes, pleat__follow *next)
{
    if (next == shapes->current)
        return;
    follow(shapes, next, PLEAT__CAUSE_scaled);
    pleat__draft_settle(&shapes->draft);
    /* What is looked at because too much of it is odd still is. */
    if (!shapes->elastic.settled)
        pleat__elastic_record(&shapes->elastic, false);
}

pleat_result pleat__shapes_ask(pleat__shapes *shapes, uint64_t bytes, uint16_t stream)
{
    pleat__elastic *elastic = &shapes->elastic;
    pleat__follow *next;
    const pleat__follow *current = shapes->current;
    bool ours = current != NULL && pleat__elastic_follows(elastic, current);
    pleat__asked asked;
    if (current != NULL && !shapes->learn.marks && current->match.cursor == current->match.begin &&
        shapes->begun != shapes->requests) {
        shapes->begun = shapes->requests;
        pleat__elastic_begin(elastic);
    }
    if (!elastic->asking)
        return PLEAT_OK;
    PLEAT_TRY(pleat__elastic_ask(elastic, bytes, stream, current, &asked, &next));
    if (asked == PLEAT__ASKED_TAKE)
        take_instance(shapes, next);
    else if (asked == PLEAT__ASKED_NONE && ours && shapes->current == current)
        diverge(shapes);
    return PLEAT_OK;
}

/* What was found by its period came again and again. Where its requests vary it is to be planned:
 * from now on it is taken as marked. */
static void trust(pleat__shapes *shapes)
{
    const pleat__follow *current = shapes->current;
    if (!shapes->draft.on || shapes->learn.marks || !current->learned || !has_dynamic(current))
        return;
    shapes->learn.marks = true;
    shapes->paced = current->count;
    shapes->paced_at = shapes->requests;
}

/* At another size much of the first stretches may be served all the same. */
static void judge_opening(pleat__shapes *shapes, bool diverged)
{
    pleat__elastic *elastic = &shapes->elastic;
    if (!elastic->opening || diverged)
        return;
    elastic->opening_missed += shapes->missed;
    if (elastic->lives.count >= PLEAT__WATCH_REQUESTS &&
        elastic->opening_missed <= elastic->lives.count / OPENING_MISSED)
        pleat__elastic_record(elastic, false);
}

static void judge_stretch(pleat__shapes *shapes);

void pleat__shapes_judge(pleat__shapes *shapes)
{
    const pleat__match *match = &shapes->current->match;
    if (shapes->heap->keeping && match->cursor >= match->begin)
        pleat__heap_keep_end(shapes->heap);
    bool diverged = shapes->missed >= PLEAT__WATCH_MISSED;
    judge_opening(shapes, diverged);
    shapes->chronic_seen += shapes->watched;
    shapes->chronic_missed += shapes->unplanned;
    shapes->watched = 0;
    shapes->missed = 0;
    shapes->unplanned = 0;
    if (shapes->recording && shapes->requests >= shapes->record_until &&
        !pleat__learn_is_near(&shapes->learn, shapes->current->count)) {
        record_end(shapes);
        trust(shapes);
    }
    if (diverged)
        diverge(shapes);
    else
        judge_chronic(shapes);
    judge_stretch(shapes);
    if (pleat__misfit_is_due(&shapes->misfit, shapes->requests))
        shapes->due |= PLEAT__DUE_JUDGE;
}

/* The sizes of the last requests; false when there are not so many. */
static bool last_sizes(const pleat__shapes *shapes, uint64_t recent[PLEAT__GRAM])
{
    if (shapes->current == NULL)
        return pleat__learn_recent(&shapes->learn, recent);
    memcpy(recent, shapes->current->match.recent, sizeof shapes->current->match.recent);
    return true;
}

void pleat__shapes_look(pleat__shapes *shapes, uint64_t bytes, uint16_t stream)
{
    pleat__returned *returned = &shapes->returned;
    uint64_t recent[PLEAT__GRAM];
    bool had = returned->candidate != NULL;
    if (pleat__returned_goes_on(returned, bytes, stream)) {
        if (pleat__returned_is_sure(returned))
            follow(shapes, returned->candidate, PLEAT__CAUSE_returned);
    } else if (!had && shapes->requests % PLEAT__GRAM == 0 && last_sizes(shapes, recent)) {
        pleat__returned_believe(
            returned, pleat__kept_find(&shapes->kept, &shapes->elastic, shapes->current, recent));
    }
}

void pleat__shapes_record(pleat__shapes *shapes, uint64_t bytes, uint16_t stream,
                          const pleat__place *place, bool unplanned)
{
    if (shapes->current == NULL)
        listen(shapes, bytes, stream);
    if (__builtin_expect(shapes->draft.record.complete, 0))
        pleat__draft_tire(&shapes->draft);
    if (pleat__misfit_is_due(&shapes->misfit, shapes->requests))
        shapes->due |= PLEAT__DUE_JUDGE;
    if (shapes->current == NULL)
        judge_stretch(shapes);
    if (shapes->fit.resting != 0 && shapes->current == NULL)
        return;
    if (pleat__learn_request(&shapes->learn, bytes, stream, place, unplanned) ==
        PLEAT__BOUNDARY_AGREED)
        plan_and_switch(shapes);
    else if (shapes->current == NULL && shapes->kept.count != 0)
        pleat__shapes_look(shapes, bytes, stream);
}

static void mark_planned(pleat__shapes *shapes)
{
    if (shapes->current->learned && !shapes->learn.marks) {
        /* Found by its period; a job that marks its iterations knows better. */
        pleat__follow *old = shapes->current;
        set_current(shapes, NULL);
        pleat__kept_remove(&shapes->kept, old);
        shapes->recording = false;
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_marked);
        pleat__learn_mark(&shapes->learn);
        return;
    }
    pleat__match_mark(&shapes->current->match);
    shapes->learn.marks = true;
    if (shapes->recording && pleat__learn_mark(&shapes->learn) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(shapes);
}

pleat__lane_space *pleat__shapes_lane(const pleat__shapes *shapes, uint32_t lane)
{
    pleat__follow *file = pleat__kept_file(&shapes->kept);
    return file != NULL ? pleat__follow_lane(file, lane) : pleat__draft_lane(&shapes->draft, lane);
}

/* ---- a plan file of another job ---- */

/* What the plan laid out, with what is followed as its own; NULL, and what was followed still is:
 * no host memory, or it cannot be done now. */
static pleat__instance *unload(pleat__shapes *shapes, const pleat_plan *plan, pleat__follow *follow)
{
    static const pleat__x only = {{1, 1}, {1, 1}};
    const pleat__ground ground = {.arena = shapes->arena};
    bool has_recipe = shapes->elastic.arena != NULL;
    pleat__instance *instance, *planned;
    if ((has_recipe ? pleat__instance_new(shapes->arena, 1, &only, &instance)
                    : pleat__instance_of_plan(&ground, plan, follow, &instance)) != PLEAT_OK)
        return NULL;
    instance->planned = true;
    bool unloaded = pleat__elastic_unload(&shapes->elastic, &planned);
    if (!unloaded || planned != NULL)
        pleat__instance_release(instance, shapes->arena);
    if (!unloaded)
        return NULL;
    instance = planned != NULL ? planned : instance;
    instance->follow = follow;
    instance->left = true;
    return instance;
}

bool pleat__shapes_leave(pleat__shapes *shapes, const pleat_plan *plan)
{
    pleat__follow *follow = pleat__kept_file(&shapes->kept);
    bool ours = is_of_file(shapes, shapes->current);
    pleat__instance *instance = unload(shapes, plan, follow);
    if (instance == NULL)
        return false;
    if (ours) {
        set_current(shapes, NULL);
        shapes->recording = false;
        pleat__learn_restart(&shapes->learn);
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_misfit);
    }
    pleat__heap_keep_end(shapes->heap);
    pleat__kept_leave_file(&shapes->kept);
    pleat__misfit_left(&shapes->misfit);
    pleat__draft_adopt(&shapes->draft, instance);
    return true;
}

/* ---- plans made in the background ---- */

static bool follows_draft(const pleat__shapes *shapes)
{
    return shapes->current != NULL && pleat__draft_holds(&shapes->draft, shapes->current);
}

/* What was begun is taken up when it is made; true where it is. Where one number says all sizes
 * that is better. */
static bool take_draft(pleat__shapes *shapes)
{
    if (!pleat__draft_is_over(&shapes->draft))
        return false;
    pleat__follow *next = pleat__draft_take(&shapes->draft);
    bool learning = shapes->states.now == PLEAT__STATE_planning;
    if (next != NULL && shapes->elastic.scale != NULL) {
        pleat__draft_retire(&shapes->draft, next);
        next = NULL;
    }
    if (next == NULL && learning)
        pleat__states_set(&shapes->states, PLEAT__STATE_learning, PLEAT__CAUSE_refused);
    if (next == NULL)
        return false;
    if (shapes->current == NULL && !learning)
        pleat__states_set(&shapes->states, PLEAT__STATE_planning, PLEAT__CAUSE_varies);
    pleat__states_set(&shapes->states, PLEAT__STATE_switching, PLEAT__CAUSE_made);
    if (shapes->current != NULL && !shapes->current->file)
        pleat__kept_remove(&shapes->kept, shapes->current);
    take_up(shapes, next, shapes->requests);
    shapes->fit.poor = 0;
    /* Until something else comes its sizes follow no number. */
    pleat__elastic_record(&shapes->elastic, false);
    return true;
}

static void begin_draft(pleat__shapes *shapes)
{
    bool ours = follows_draft(shapes);
    if (shapes->elastic.scale != NULL || !pleat__draft_is_due(&shapes->draft, ours) ||
        !pleat__draft_submit(&shapes->draft, ours ? shapes->current : NULL) ||
        shapes->current != NULL)
        return;
    pleat__states_set(&shapes->states, PLEAT__STATE_planning, PLEAT__CAUSE_varies);
}

bool pleat__shapes_drop(pleat__shapes *shapes)
{
    if (follows_draft(shapes) && shapes->draft.placed->count == 0)
        diverge(shapes);
    pleat__kept_forget_drafts(&shapes->kept, shapes->current);
    bool elastic = pleat__elastic_drop(&shapes->elastic);
    return pleat__draft_drop(&shapes->draft) || elastic;
}

/* What was followed costs more than it is worth (fit.h). */
static void begin_rest(pleat__shapes *shapes, pleat__followed followed)
{
    uint32_t iterations = shapes->fit.resting;
    pleat__draft_rest(&shapes->draft, iterations);
    if (shapes->current != NULL)
        diverge(shapes);
    /* It may have been put aside just now. */
    if (followed == PLEAT__FOLLOWED_LAYOUT ||
        (followed == PLEAT__FOLLOWED_NOTHING && shapes->elastic.scale != NULL))
        pleat__elastic_rest(&shapes->elastic, iterations);
    pleat__kept_forget_learned(&shapes->kept, NULL);
    pleat__kept_forget_drafts(&shapes->kept, NULL);
    record_end(shapes);
    shapes->fit.divergences = shapes->stats->divergences;
}

static void end_rest(pleat__shapes *shapes)
{
    pleat__elastic_rest(&shapes->elastic, 0);
    pleat__draft_rest(&shapes->draft, 0);
    pleat__draft_want(&shapes->draft);
}

static pleat__followed kind_of_followed(const pleat__shapes *shapes)
{
    const pleat__follow *current = shapes->current;
    bool has_file = pleat__kept_file(&shapes->kept) != NULL || is_of_file(shapes, current);
    if (current == NULL || has_file)
        return has_file ? PLEAT__FOLLOWED_FILE : PLEAT__FOLLOWED_NOTHING;
    if (pleat__elastic_follows(&shapes->elastic, current))
        return PLEAT__FOLLOWED_LAYOUT;
    return follows_draft(shapes) ? PLEAT__FOLLOWED_DRAFT : PLEAT__FOLLOWED_LEARNED;
}

static void judge_fit(pleat__shapes *shapes)
{
    pleat__fit *fit = &shapes->fit;
    pleat__followed followed = kind_of_followed(shapes);
    pleat__served_mark(&fit->served, shapes->heap, shapes->stats);
    if (shapes->current != NULL)
        fit->stretch = shapes->current->count > STRETCH ? shapes->current->count : STRETCH;
    fit->due = shapes->requests + fit->stretch;
    switch (pleat__fit_mark(fit, followed, shapes->stats->divergences)) {
    case PLEAT__RESTS:
        begin_rest(shapes, followed);
        break;
    case PLEAT__WAKES:
        end_rest(shapes);
        break;
    case PLEAT__GOES_ON:
        break;
    }
}

/* Where nothing marks iterations, as many requests as what is followed has are taken for one. What
 * is followed until a plan is there is judged when none came. */
static void judge_stretch(pleat__shapes *shapes)
{
    pleat__fit *fit = &shapes->fit;
    if (shapes->requests < fit->due || shapes->learn.marks || shapes->paced != 0)
        return;
    if (!shapes->heap->account.granted) {
        judge_fit(shapes);
        return;
    }
    fit->due = shapes->requests + fit->stretch;
    pleat__served_mark(&fit->served, shapes->heap, shapes->stats);
}

static void begin_iteration(pleat__shapes *shapes)
{
    /* If it is one of those put aside, during an evaluation say, it is at its beginning now. */
    pleat__kept_mark(&shapes->kept, shapes->current);
    recorded(shapes, 0, 0);
    pleat__draft_mark(&shapes->draft, follows_draft(shapes));
    judge_fit(shapes);
    if (take_draft(shapes))
        shapes->learn.marks = true;
    else if (shapes->current != NULL)
        mark_planned(shapes);
    else if (shapes->fit.resting == 0 &&
             pleat__learn_mark(&shapes->learn) == PLEAT__BOUNDARY_AGREED)
        plan_and_switch(shapes);
    begin_draft(shapes);
    /* Where it is waited for it is there for the iteration that begins. */
    if (shapes->draft.waits)
        (void)take_draft(shapes);
    bool loose = shapes->current != NULL && shapes->current->loose;
    shapes->looking = loose && shapes->kept.count > 1 ? LOOK : 0;
    pleat__elastic_begin(&shapes->elastic);
    if (shapes->learn.marks && shapes->current != NULL && shapes->current->learned)
        pleat__elastic_open(&shapes->elastic);
}

/* Before the first mark stretches were taken for iterations by their period. A job that marks its
 * iterations knows better: else one of them returns again and again, and nothing is learned. */
static void forget_found(pleat__shapes *shapes)
{
    pleat__kept_forget_learned(&shapes->kept, shapes->current);
    shapes->returned.candidate = NULL;
}

void pleat__shapes_mark(pleat__shapes *shapes)
{
    unpace(shapes);
    pleat__beat_restart(&shapes->beat);
    shapes->beat.off = true;
    if (!shapes->learn.marks)
        forget_found(shapes);
    begin_iteration(shapes);
}

void pleat__shapes_pace(pleat__shapes *shapes)
{
    shapes->due &= (uint8_t)~PLEAT__DUE_BEGIN;
    if (shapes->paced == 0) {
        take_beat(shapes);
        /* Where it is waited for it is better made where the iteration ends. */
        if (!shapes->draft.waits)
            begin_draft(shapes);
        return;
    }
    shapes->paced_at = shapes->requests;
    begin_iteration(shapes);
}
