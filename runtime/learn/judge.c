/*
 * judge.c: see judge.h.
 */
#include <runtime/learn/judge.h>

#include <internal/check.h>
#include <string.h>

/* A plan that was guessed is another job's when within an iteration they differ by more than
 * 1/DIFFERS of what is live at most, in requests or in what lives. Several streams give back sooner
 * in one run than in another: what lives may differ by 1/APART there. Where sizes vary, the matcher
 * loses its way in the job's own requests, too: there as much more may differ as varies, up to
 * 1/VARIES (docs/decisions.md, D290, D425). */
#define DIFFERS 512u
#define APART   32u
#define VARIES  8u

/* Adds what the sequence's slots take at each of its events to `live`, which has one more than
 * there are; what is freed in the next iteration lives at its beginning as well. Differences, to be
 * summed.
 */
static void add_lives(const pleat__sequence *sequence, uint64_t *live)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        uint64_t bytes = pleat__rounded(slot->size);
        live[slot->alloc_at] += bytes;
        if (slot->free_at == PLEAT__NEVER)
            continue;
        live[slot->free_at] -= bytes;
        if (slot->free_at <= slot->alloc_at)
            live[0] += bytes;
    }
}

/* What lives when each slot was served; `before` did when the sequence began. */
static void take_lives(const pleat__sequence *sequence, const uint64_t *changes, uint64_t before,
                       uint64_t *live)
{
    uint32_t event = 0;
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        for (; event <= sequence->slots[i].alloc_at; event++)
            before += changes[event];
        live[i] = before;
    }
}

/* Bytes of an iteration's requests of one class. */
static uint64_t bytes_of(const pleat__sequence *sequence, pleat__class class)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < sequence->slot_count; i++)
        bytes += sequence->slots[i].class == class ? pleat__rounded(sequence->slots[i].size) : 0;
    return bytes;
}

/* By how much a job may differ from its own plan because its sizes vary; a recipe's all do. */
static uint64_t may_vary(const pleat_plan *plan, uint64_t most)
{
    uint64_t first = bytes_of(&plan->first, PLEAT__CLASS_DYNAMIC),
             steady = bytes_of(&plan->steady, PLEAT__CLASS_DYNAMIC) / plan->unroll;
    uint64_t bytes = first > steady ? first : steady;
    return plan->recipe != NULL || bytes > most ? most : bytes;
}

static bool has_one_stream(const pleat_plan *plan)
{
    const pleat__sequence *both[] = {&plan->first, &plan->steady};
    uint64_t streams = 0;
    for (int s = 0; s < 2; s++)
        for (uint32_t i = 0; i < both[s]->slot_count; i++)
            streams |= both[s]->slots[i].stream;
    return streams == 0;
}

static void find_lives(pleat__judge *judge, const pleat_plan *plan)
{
    uint64_t items = (uint64_t)plan->first.slot_count + plan->steady.slot_count;
    uint64_t events =
        plan->first.events > plan->steady.events ? plan->first.events : plan->steady.events;
    uint64_t *live = pleat__arena_alloc(judge->arena, items * sizeof *live);
    uint64_t *changes = pleat__arena_calloc(judge->arena, events + 1, sizeof *changes);
    if (live != NULL && changes != NULL) {
        add_lives(&plan->first, changes);
        take_lives(&plan->first, changes, 0, live);
        memset(changes, 0, (events + 1) * sizeof *changes);
        add_lives(&plan->steady, changes);
        take_lives(&plan->steady, changes, bytes_of(&plan->first, PLEAT__CLASS_PERSISTENT),
                   live + plan->first.slot_count);
        judge->live = live;
    } else {
        pleat__arena_free(judge->arena, live);
    }
    pleat__arena_free(judge->arena, changes);
}

void pleat__judge_begin(pleat__judge *judge, pleat__arena *arena, const pleat__matcher *matcher,
                        const pleat_plan *plan, bool guessed)
{
    uint64_t live = plan->max_live_bytes > plan->first_max_live_bytes ? plan->max_live_bytes
                                                                      : plan->first_max_live_bytes;
    uint64_t varies = may_vary(plan, live / VARIES);
    *judge = (pleat__judge){.on = true,
                            .guessed = guessed,
                            .cursor = matcher->cursor,
                            .left = matcher->begin + matcher->iteration,
                            .most = live / DIFFERS + varies,
                            .apart = live / (has_one_stream(plan) ? DIFFERS : APART) + varies,
                            .arena = arena};
    if (guessed && varies < live / VARIES)
        find_lives(judge, plan);
}

void pleat__judge_end(pleat__judge *judge)
{
    judge->on = false;
    pleat__arena_free(judge->arena, judge->live);
    judge->live = NULL;
}

/* Whether the item comes in every iteration, and with this size. */
static bool is_fixed(const pleat__matcher *matcher, uint32_t item)
{
    return matcher->items[item].kind != PLEAT__ITEM_DYNAMIC;
}

static uint64_t fixed_bytes(const pleat__matcher *matcher, uint32_t from, uint32_t to)
{
    uint64_t bytes = 0;
    for (uint32_t i = from; i < to; i++)
        bytes += is_fixed(matcher, i) ? matcher->items[i].bytes : 0;
    return bytes;
}

/* Bytes of the items between two cursors, of which the last one was matched. Where the matcher went
 * back, nothing was passed over. */
static uint64_t passed_over(const pleat__matcher *matcher, uint32_t from, uint32_t to)
{
    if (from == to)
        return 0;
    if (to > from)
        return fixed_bytes(matcher, from, to - 1);
    uint32_t around = matcher->count - from + (to - matcher->begin);
    if (to < matcher->begin || around > from - to)
        return 0;
    uint64_t bytes =
        fixed_bytes(matcher, from, to == matcher->begin ? matcher->count - 1 : matcher->count);
    return to == matcher->begin ? bytes : bytes + fixed_bytes(matcher, matcher->begin, to - 1);
}

/* Whether as much lives as the plan has it behind the item before the cursor; behind the last one
 * of the beginning the iteration comes as it does behind its own last one. */
static bool lives_as_planned(const pleat__judge *judge, const pleat__matcher *matcher,
                             uint32_t from, uint64_t live)
{
    uint32_t next = matcher->cursor;
    bool around = next == matcher->begin && from >= next;
    if (judge->live == NULL)
        return true;
    PLEAT_ASSERT(next != 0 || around);
    uint64_t planned = judge->live[around ? matcher->count - 1 : next - 1];
    return (live > planned ? live - planned : planned - live) <= judge->apart;
}

/* Whether the job has differed by little from a plan that was guessed, with this request. */
static bool differs_little(pleat__judge *judge, const pleat__matcher *matcher, uint64_t bytes,
                           bool missed, uint64_t live)
{
    uint32_t from = judge->cursor;
    bool moved = matcher->cursor != from;
    judge->cursor = matcher->cursor;
    if (missed)
        judge->other += bytes;
    else if (!moved) /* it had been passed over */
        judge->other -= bytes < judge->other ? bytes : judge->other;
    else
        judge->other += passed_over(matcher, from, matcher->cursor);
    return judge->other <= judge->most && (!moved || lives_as_planned(judge, matcher, from, live));
}

bool pleat__judge_step(pleat__judge *judge, const pleat__matcher *matcher, uint64_t bytes,
                       bool missed, uint64_t live)
{
    if (judge->guessed && !differs_little(judge, matcher, bytes, missed, live))
        return false;
    if (--judge->left % matcher->iteration == 0)
        judge->other = 0; /* the next iteration's requests are counted anew */
    if (judge->left == 0)
        pleat__judge_end(judge);
    return true;
}
