/*
 * rehearsal.c: when is rehearsed, and how far ahead is made what came of it (see rehearsal.h).
 */
#include <runtime/learn/rehearsal_run.h>

#include <internal/error.h>
#include <string.h>

/* Of the opening's requests those that must be found in the iteration before, in order. */
#define ALIKE 16u
/* Requests that may still be of the iteration before: behind the optimizer's step the losses are
 * summed up, say. */
#define TRAILING 8u
/* Requests that may be missing in one of the two. */
#define SKIPPED 8u
/* Requests of an iteration that is worth it. */
#define LEAST 64u
/* Comparisons of an opening, under the lock: 2 us each where much stays. */
#define MOST_COMPARED 512u
/* What is due within one part in so many of an iteration is made: in the beginning, and, twice as
 * much each time that all was as rehearsed, at most. It is looked so often in an iteration. */
#define FIRST 32u
#define MOST  4u
#define LOOKS 64u
/* What was due so long ago, as a part of an iteration, and was not taken will not be. Given back at
 * the next mark instead, a mixture of experts' 173 views were unmapped while the plan that followed
 * was to make no driver call. */
#define OVERDUE 16u
/* When so much less is live than in the rehearsal, one part in so many, that was of another job. */
#define LESS 256u

static bool drop_views(void *heap, uint64_t keep_pages)
{
    return pleat__heap_drop_views(heap, keep_pages);
}

void pleat__rehearsal_init(pleat__rehearsal *rehearsal, pleat__arena *arena, pleat__heap *heap,
                           const pleat__placed *placed, const pleat__lives *lives,
                           const uint64_t *live_bytes, bool waits)
{
    *rehearsal = (pleat__rehearsal){
        .arena = arena, .heap = heap, .placed = placed, .lives = lives, .live_bytes = live_bytes};
    pleat__view_room room = {.limit = heap->view_limit, .drop = drop_views, .context = heap};
    pleat__ahead_init(&rehearsal->ahead, arena, heap->pool, room, waits);
}

static void forget(pleat__rehearsal *rehearsal)
{
    pleat__arena_free(rehearsal->arena, rehearsal->before);
    pleat__score_free(rehearsal->score);
    rehearsal->before = NULL;
    rehearsal->score = NULL;
}

void pleat__rehearsal_release(pleat__rehearsal *rehearsal)
{
    if (rehearsal->arena == NULL)
        return;
    pleat__ahead_release(&rehearsal->ahead);
    forget(rehearsal);
    *rehearsal = (pleat__rehearsal){0};
}

void pleat__rehearsal_end(pleat__rehearsal *rehearsal)
{
    if (rehearsal->before == NULL && !rehearsal->ahead.leftovers)
        return;
    pleat__ahead_end(&rehearsal->ahead);
    /* What the thread reads stays until the next mark. */
    rehearsal->next = UINT32_MAX;
}

/* Frees of the stream that is asked for most wait for others, the others' are made to (pleat.c).
 */
static uint64_t list_waiting(const pleat__heap *heap, const uint64_t *asked)
{
    uint64_t streams = 0;
    uint32_t most = 0;
    for (uint32_t s = 0; s < heap->stream_count; s++)
        most = asked[s] > asked[most] ? s : most;
    for (uint32_t s = 0; s < heap->stream_count; s++)
        streams |= (uint64_t)(asked[s] < asked[most]) << s;
    return streams;
}

void pleat__rehearsal_mark(pleat__rehearsal *rehearsal, const uint64_t *asked, bool recorded)
{
    const pleat__lives *lives = rehearsal->lives;
    if (rehearsal->arena == NULL)
        return;
    pleat__rehearsal_end(rehearsal);
    if (pleat__ahead_is_listing(&rehearsal->ahead))
        return;
    forget(rehearsal);
    uint32_t count = lives->count - lives->previous;
    if (!recorded || lives->full || count < LEAST)
        return;
    rehearsal->before = pleat__arena_alloc(rehearsal->arena, count * sizeof *rehearsal->before);
    if (rehearsal->before == NULL)
        return;
    memcpy(rehearsal->before, lives->items + lives->previous, count * sizeof *rehearsal->before);
    rehearsal->before_count = count;
    rehearsal->before_end = lives->now;
    rehearsal->waiting = list_waiting(rehearsal->heap, asked);
    rehearsal->next = PLEAT__OPENING;
}

/* ---- where this iteration is in the one before ---- */

static bool same(const pleat__life *a, const pleat__life *b)
{
    return a->bytes == b->bytes && a->stream == b->stream;
}

/* Whether a request of the iteration before is there still, so that this one does not make it. */
static bool stays(const pleat__rehearsal *rehearsal, const pleat__life *life)
{
    const pleat__life *now = rehearsal->lives->items + rehearsal->lives->previous;
    if (life->end != PLEAT__NEVER || pleat__placed_find(rehearsal->placed, life->address) == NULL)
        return false;
    for (uint32_t i = 0; i < PLEAT__OPENING; i++)
        if (now[i].address == life->address)
            return false;
    return true;
}

/* Lays the opening from request `from` on against the iteration before, from `at` on; how many are
 * alike. What each is now goes to the score, which may be NULL. */
static uint32_t compare(const pleat__rehearsal *rehearsal, uint32_t from, uint32_t at,
                        pleat__score *score)
{
    const pleat__life *now = rehearsal->lives->items + rehearsal->lives->previous;
    uint32_t alike = 0, expected = at;
    for (uint32_t i = from; i < PLEAT__OPENING; i++)
        for (uint32_t k = expected; k < rehearsal->before_count && k <= expected + SKIPPED; k++) {
            if (!same(&now[i], &rehearsal->before[k]) || stays(rehearsal, &rehearsal->before[k]))
                continue;
            if (score != NULL && k - at < 2 * PLEAT__OPENING)
                score->opening[k - at] = now[i].address;
            if (score != NULL)
                score->last = k;
            expected = k + 1;
            alike++;
            break;
        }
    return alike;
}

/* The first place at which the opening is found, the best of those close by. What came before it
 * came once: before the first mark the model was made. */
static bool find_opening(const pleat__rehearsal *rehearsal, uint32_t *from, uint32_t *at)
{
    const pleat__life *now = rehearsal->lives->items + rehearsal->lives->previous;
    uint32_t best = ALIKE - 1, end = rehearsal->before_count - LEAST, compared = 0;
    for (uint32_t k = 0; k < end; k++)
        for (uint32_t i = 0; i < TRAILING; i++) {
            bool like = same(&now[i], &rehearsal->before[k]);
            if (like && ++compared > MOST_COMPARED)
                return best >= ALIKE;
            uint32_t alike = like ? compare(rehearsal, i, k, NULL) : 0;
            if (alike <= best)
                continue;
            end = best < ALIKE && k + PLEAT__OPENING < end ? k + PLEAT__OPENING : end;
            best = alike;
            *from = i;
            *at = k;
        }
    return best >= ALIKE;
}

/* What is due when, at that request. Until it is looked again, and for those that were not where
 * they were before, all that is near is asked for now. */
static pleat__when when(const pleat__rehearsal *rehearsal, uint32_t request)
{
    uint32_t length = rehearsal->length, slack = length / OVERDUE;
    uint32_t now = request + 2 * (length / LOOKS) + PLEAT__OPENING;
    return (pleat__when){
        .late = request > slack ? request - slack : 0, .now = now, .soon = now + rehearsal->reach};
}

static void begin(pleat__rehearsal *rehearsal)
{
    uint32_t from, at;
    rehearsal->next = UINT32_MAX;
    /* Who has the turn may be giving chunks back, which are there until it has the lock again. */
    if (pleat__gate_turn_is_taken(rehearsal->heap->pool->gate))
        return;
    if (!find_opening(rehearsal, &from, &at))
        return;
    pleat__score *score = pleat__score_new(rehearsal->heap, rehearsal->placed);
    if (score == NULL)
        return;
    score->before = rehearsal->before;
    score->before_count = rehearsal->before_count;
    score->before_end = rehearsal->before_end;
    score->begin = at;
    score->waiting = rehearsal->waiting;
    score->live_bytes = *rehearsal->live_bytes;
    (void)compare(rehearsal, from, at, score);
    rehearsal->score = score;
    rehearsal->length = rehearsal->before_count - at;
    rehearsal->reach = rehearsal->length / FIRST;
    rehearsal->astray = 0;
    rehearsal->next = PLEAT__OPENING + 1;
    if (!pleat__ahead_begin(&rehearsal->ahead, pleat__score_play, score,
                            when(rehearsal, PLEAT__OPENING)))
        pleat__rehearsal_end(rehearsal);
}

/* Whether less is live than the rehearsal had about that request. */
static bool is_less(const pleat__score *score, uint32_t request, uint64_t live)
{
    uint32_t bar = request / PLEAT__BAR;
    uint64_t least = UINT64_MAX;
    for (uint32_t b = bar != 0 ? bar - 1 : 0; b < score->bars && b <= bar + 1; b++)
        least = score->least_live[b] < least ? score->least_live[b] : least;
    return least != UINT64_MAX && live + least / LESS < least;
}

void pleat__rehearsal_lost(pleat__rehearsal *rehearsal, uint64_t bytes)
{
    rehearsal->astray += bytes;
    if (rehearsal->astray <= *rehearsal->live_bytes / LESS)
        return;
    /* The rest is done at the next request: a free waits for nothing. */
    rehearsal->ahead.over = true;
    rehearsal->next = 0;
}

void pleat__rehearsal_look(pleat__rehearsal *rehearsal)
{
    const pleat__lives *lives = rehearsal->lives;
    uint32_t request = lives->count - lives->previous;
    if (lives->full || rehearsal->astray > *rehearsal->live_bytes / LESS) {
        pleat__rehearsal_end(rehearsal);
        return;
    }
    if (rehearsal->score == NULL) {
        begin(rehearsal);
        return;
    }
    rehearsal->next = request + rehearsal->length / LOOKS + 1;
    /* The thread is still noting what is live. */
    bool unknown = pleat__ahead_is_listing(&rehearsal->ahead);
    if (!unknown && is_less(rehearsal->score, request, *rehearsal->live_bytes)) {
        pleat__rehearsal_end(rehearsal);
        return;
    }
    pleat__ahead_allow(&rehearsal->ahead, when(rehearsal, request));
    if (unknown)
        return;
    rehearsal->reach = rehearsal->reach < rehearsal->length / MOST / 2 ? 2 * rehearsal->reach
                                                                       : rehearsal->length / MOST;
}
