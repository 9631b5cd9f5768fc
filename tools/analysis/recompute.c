/*
 * recompute.c: see recompute.h.
 */
#include <tools/analysis/recompute.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <plan/planner.h>
#include <plan/trace/import.h>

#include <string.h>

#define NONE   UINT32_MAX
#define ROUNDS 6 /* plans made for a choice */
/* Events behind a saved tensor's free in which its operator ends at the latest. */
#define OPERATOR_EVENTS 32u

const char *const recompute_way_names[RECOMPUTE_WAYS] = {"keep", "attention", "offload", "again"};

/* What a phase says. */
typedef struct place {
    uint32_t block; /* its number */
    bool again, attention;
} place;

/* A forward of a block, or its second run: positions [begin, end). */
typedef struct run {
    place at;
    uint32_t begin, end;
} run;

/* A forward and its second run. */
typedef struct recompute_pass {
    uint32_t block; /* index into the blocks */
    uint32_t forward_end;
    uint32_t again_begin, again_end;
    uint32_t until; /* index of the pass by whose end it is offloaded, or none */
} recompute_pass;

/* Positions [from, to). */
typedef struct life {
    uint32_t from, to;
} life;

typedef struct runs {
    run *all;
    size_t count, room;
} runs;

/* ---- phases ---- */

static bool take(const char **text, size_t *length, const char *word)
{
    size_t count = strlen(word);
    if (*length < count || memcmp(*text, word, count) != 0)
        return false;
    *text += count;
    *length -= count;
    return true;
}

/* "block.12", with ".again", ".attention" or both behind it; false for any other phase. */
static bool read_phase(const recompute *r, uint16_t phase, place *out)
{
    size_t length;
    uint64_t value = 0;
    const char *text =
        pleat__phase_text(pleat_trace_label(r->trace, r->requests.phase_labels[phase]), &length);
    if (!take(&text, &length, "block.") || length == 0 || *text < '0' || *text > '9')
        return false;
    for (; length > 0 && *text >= '0' && *text <= '9' && value < RECOMPUTE_BLOCKS_MOST;
         text++, length--)
        value = value * 10 + (uint64_t)(*text - '0');
    out->block = (uint32_t)value;
    out->again = take(&text, &length, ".again");
    out->attention = take(&text, &length, ".attention");
    return value < RECOMPUTE_BLOCKS_MOST && length == 0;
}

static uint16_t phase_at(const pleat__requests *q, uint32_t position)
{
    uint32_t event = q->events[position];
    const pleat__request *r = &q->items[event / 2];
    return event % 2 ? r->free_phase : r->alloc_phase;
}

/* A forward that is over gives up the last of its own directly behind its phase: with the frames of
 * an exception, say, by which torch's checkpoint ends a second run. Nothing is saved that goes
 * before anything else is allocated. */
static uint32_t end_of_run(const pleat__requests *q, uint32_t begin, uint32_t at, uint32_t end)
{
    while (at < end && q->events[at] % 2 && q->items[q->events[at] / 2].alloc_at >= begin)
        at++;
    return at;
}

/* The end of positions from `at` on that have one block's phases, attention's among them. */
static uint32_t end_of_phases(const recompute *r, uint32_t at, uint32_t end, const place *first)
{
    place next;
    uint16_t before = phase_at(&r->requests, at);
    for (at++; at < end; at++) {
        uint16_t phase = phase_at(&r->requests, at);
        if (phase != before && (!read_phase(r, phase, &next) || next.block != first->block ||
                                next.again != first->again))
            break;
        before = phase;
    }
    return at;
}

/* Stretches of positions under one block's phases, in order. */
static pleat_result find_runs(const recompute *r, uint32_t begin, uint32_t end, runs *out)
{
    const pleat__requests *q = &r->requests;
    out->count = 0;
    for (uint32_t at = begin; at < end;) {
        run found = {.begin = at};
        if (!read_phase(r, phase_at(q, at), &found.at)) {
            at++;
            continue;
        }
        at = end_of_phases(r, at, end, &found.at);
        found.end = end_of_run(q, found.begin, at, end);
        PLEAT_TRY(pleat__arena_grow(r->arena, &out->all, &out->room, out->count, sizeof found));
        out->all[out->count++] = found;
    }
    return PLEAT_OK;
}

/* The forwards of a block whose second runs have not come yet: the first, and the last. */
typedef struct waiting {
    uint32_t first, last;
} waiting;

/* The forwards that wait are chained by `next`: the one that has waited longest, or none. */
static uint32_t take_forward(waiting *of, const uint32_t *next)
{
    uint32_t forward = of->first;
    if (forward != NONE)
        of->first = next[forward];
    return forward;
}

static void add_forward(waiting *of, uint32_t *next, uint32_t forward)
{
    next[forward] = NONE;
    if (of->first == NONE)
        of->first = forward;
    else
        next[of->last] = forward;
    of->last = forward;
}

static void add_pass(recompute *r, uint32_t *of_number, const run *forward, const run *again)
{
    uint32_t *index = &of_number[again->at.block];
    if (*index == 0) {
        r->blocks[r->block_count] = (recompute_block){.number = again->at.block, .until = NONE};
        *index = ++r->block_count;
    }
    r->blocks[*index - 1].passes++;
    r->passes[r->pass_count++] =
        (recompute_pass){*index - 1, forward->end, again->begin, again->end, NONE};
}

/* One more than the highest number of a block. */
static uint32_t numbers_of(const runs *found)
{
    uint32_t numbers = 0;
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i].at.block >= numbers)
            numbers = found->all[i].at.block + 1;
    return numbers;
}

/* The second runs of a block, in order, belong to its forwards, in order. */
static pleat_result pair_runs(recompute *r, const runs *found)
{
    uint32_t numbers = numbers_of(found);
    uint32_t *of_number = pleat__arena_calloc(r->arena, numbers, sizeof *of_number);
    waiting *of_block = pleat__arena_calloc(r->arena, numbers, sizeof *of_block);
    uint32_t *next = pleat__arena_calloc(r->arena, found->count, sizeof *next);
    r->passes = pleat__arena_calloc(r->arena, found->count, sizeof *r->passes);
    r->blocks = pleat__arena_calloc(r->arena, numbers, sizeof *r->blocks);
    if (of_number == NULL || of_block == NULL || next == NULL || r->passes == NULL ||
        r->blocks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %zu passes", found->count);
    for (uint32_t b = 0; b < numbers; b++)
        of_block[b].first = NONE;
    for (uint32_t i = 0; i < found->count; i++) {
        const run *at = &found->all[i];
        if (!at->at.again) {
            add_forward(&of_block[at->at.block], next, i);
            continue;
        }
        uint32_t forward = take_forward(&of_block[at->at.block], next);
        if (forward != NONE)
            add_pass(r, of_number, &found->all[forward], at);
    }
    pleat__arena_free(r->arena, of_number);
    pleat__arena_free(r->arena, of_block);
    pleat__arena_free(r->arena, next);
    return PLEAT_OK;
}

/* ---- the iteration ---- */

static bool has_again(const runs *found)
{
    for (size_t i = 0; i < found->count; i++)
        if (found->all[i].at.again)
            return true;
    return false;
}

/* Looks at the m-th from mark to mark, the last of which ends with the recording; without marks the
 * whole recording is one. */
static pleat_result look_at(recompute *r, uint32_t m, runs *found)
{
    const pleat__requests *q = &r->requests;
    r->begin = q->mark_count > 0 ? q->marks[m - 1] : 0;
    r->end = m < q->mark_count ? q->marks[m] : q->event_count;
    pleat__arena_free(r->arena, r->passes);
    pleat__arena_free(r->arena, r->blocks);
    r->passes = NULL;
    r->blocks = NULL;
    r->block_count = r->pass_count = 0;
    PLEAT_TRY(find_runs(r, r->begin, r->end, found));
    return has_again(found) ? pair_runs(r, found) : PLEAT_OK;
}

/* Goes back from *m to the last one whose blocks are computed again; 0: none is. */
static pleat_result go_back(recompute *r, uint32_t *m, runs *found)
{
    for (r->block_count = 0; *m > 0; --*m) {
        PLEAT_TRY(look_at(r, *m, found));
        if (r->block_count > 0)
            break;
    }
    return PLEAT_OK;
}

/* Whether the recording ends in a block's second run. */
static bool ends_within(const recompute *r)
{
    return r->passes[r->pass_count - 1].again_end == r->end;
}

/* The last one whose blocks are computed again. Where the recording ends within its backward, or
 * between two of its microbatches, fewer blocks were computed again than in the one before it,
 * which is taken then. */
static pleat_result find_iteration(recompute *r)
{
    runs found = {.all = NULL};
    uint32_t last = r->requests.mark_count > 0 ? r->requests.mark_count : 1;
    PLEAT_TRY(go_back(r, &last, &found));
    if (last > 0 && last == r->requests.mark_count) {
        uint32_t before = last - 1, passes = r->pass_count - ends_within(r);
        PLEAT_TRY(go_back(r, &before, &found));
        if (before == 0 || passes >= r->pass_count)
            PLEAT_TRY(look_at(r, last, &found));
    }
    pleat__arena_free(r->arena, found.all);
    if (last > 0)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_NOT_FOUND,
                       "the recording has no iteration whose blocks are computed again under the "
                       "phases block.N and block.N.again: a job under `pleat run --recompute "
                       "auto` that calls pleat.save_trace(FILE), or is recorded by torch, has");
}

static void note_saved(recompute *r)
{
    const pleat__requests *q = &r->requests;
    place at;
    for (uint32_t i = 0; i < q->count; i++)
        r->pass_of[i] = NONE;
    for (uint32_t p = 0; p < r->pass_count; p++) {
        const recompute_pass *pass = &r->passes[p];
        recompute_block *block = &r->blocks[pass->block];
        for (uint32_t position = pass->again_begin; position < pass->again_end; position++) {
            uint32_t event = q->events[position], item = event / 2;
            if (event % 2)
                continue;
            r->pass_of[item] = p;
            r->again[r->again_count++] = item;
            r->of_attention[item] = read_phase(r, q->items[item].alloc_phase, &at) && at.attention;
            if (q->items[item].free_at < pass->again_end)
                continue;
            block->saved_bytes += q->items[item].size;
            block->attention_bytes += r->of_attention[item] ? q->items[item].size : 0;
        }
    }
}

/* Whether a free is of what was there at `from` and is saved by no block: a gradient that was read.
 */
static bool frees_older(const recompute *r, uint32_t at, uint32_t from)
{
    uint32_t event = r->requests.events[at], item = event / 2;
    return event % 2 && r->requests.items[item].alloc_at < from && r->pass_of[item] == NONE;
}

/* Until when a block that is kept has what its second run gave up at `from`, in backward. torch's
 * checkpoint lets go of a saved tensor inside the operator that reads it, autograd behind it: when
 * the sums that make a bias's gradient of it have had their workspaces. So it stays while gradients
 * come, which last, and what goes again before anything else is given up that was there. */
static uint32_t end_of_operator(const recompute *r, uint32_t from)
{
    const pleat__requests *q = &r->requests;
    uint32_t at, end = from + 1;
    uint32_t most = r->end - from > OPERATOR_EVENTS ? from + OPERATOR_EVENTS : r->end;
    while (end < most && !frees_older(r, end, from))
        end++;
    for (at = from + 1; at < end; at++) {
        uint32_t event = q->events[at], free_at = q->items[event / 2].free_at;
        if (event % 2 == 0 && free_at >= end && free_at <= r->backward_end)
            break;
    }
    return at;
}

/* When backward is over, and until when each request of a second run is there where it is kept. */
static void note_ends(recompute *r)
{
    r->backward_end = r->begin;
    for (uint32_t i = 0; i < r->again_count; i++) {
        uint32_t free_at = r->requests.items[r->again[i]].free_at;
        if (free_at < r->end && free_at > r->backward_end)
            r->backward_end = free_at;
    }
    for (uint32_t i = 0; i < r->again_count; i++) {
        uint32_t free_at = r->requests.items[r->again[i]].free_at;
        r->kept_until[r->again[i]] = free_at < r->end ? end_of_operator(r, free_at) : r->end;
    }
}

static uint64_t ns_of(const uint64_t *times, uint32_t count, uint32_t number)
{
    return times != NULL && number < count ? times[number] : 0;
}

/* A block whose time is not among those that are told would cost nothing. */
static pleat_result note_times(recompute *r, const recompute_times *times)
{
    bool known = times != NULL && times->block_ns != NULL;
    for (uint32_t b = 0; b < r->block_count; b++) {
        recompute_block *block = &r->blocks[b];
        if (known && block->number >= times->block_count)
            return pleat__fail(PLEAT_E_INVALID,
                               "the recording has a block %u, and --block-ns ends before it: give "
                               "each one's, from block 0 on",
                               block->number);
        uint64_t ns = known ? times->block_ns[block->number] : 1;
        uint64_t attention =
            known ? ns_of(times->attention_ns, times->attention_count, block->number) : 0;
        block->ns = block->passes * ns;
        block->attention_ns = block->passes * (attention < ns ? attention : ns);
        r->forward_ns += known ? block->ns : 0;
    }
    return PLEAT_OK;
}

/* ---- offloading ---- */

/* Of a pass: nanoseconds of a forward, and of the copy of what it saves. */
static uint64_t pass_ns(const recompute *r, uint32_t pass)
{
    const recompute_block *b = &r->blocks[r->passes[pass].block];
    return b->ns / b->passes;
}

static uint64_t copy_ns(const recompute *r, uint32_t pass, uint64_t link)
{
    const recompute_block *b = &r->blocks[r->passes[pass].block];
    double ns = (double)b->saved_bytes / b->passes * 1e9 / (double)link;
    return ns < (double)UINT64_MAX ? (uint64_t)ns : UINT64_MAX;
}

/* The pass in whose forward the copy of what one saves ends, and before whose backward the others'
 * is over: in order of forwards. */
static uint32_t end_of_copy(const recompute *r, const uint64_t *order, uint32_t index,
                            uint64_t link)
{
    uint32_t pass = (uint32_t)order[index];
    uint64_t ns = 0, wanted = copy_ns(r, pass, link);
    for (uint32_t i = index + 1; i < r->pass_count; i++) {
        uint32_t later = (uint32_t)order[i];
        if (r->passes[later].forward_end > r->passes[pass].again_begin ||
            r->passes[later].again_begin > r->passes[pass].again_begin)
            return NONE; /* another microbatch's */
        ns += pass_ns(r, later);
        if (ns >= wanted)
            return later;
    }
    return NONE;
}

/* A block can be offloaded where all of its passes end their copies by the same block's end. */
static pleat_result note_copies(recompute *r, uint64_t link)
{
    uint64_t *order = pleat__arena_calloc(r->arena, r->pass_count, 2 * sizeof *order);
    bool *differs = pleat__arena_calloc(r->arena, r->block_count, sizeof *differs);
    if (order == NULL || differs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u passes", r->pass_count);
    for (uint32_t p = 0; p < r->pass_count; p++)
        order[p] = (uint64_t)r->passes[p].forward_end << 32 | p;
    pleat__sort_keys(order, order + r->pass_count, r->pass_count);
    for (uint32_t i = 0; i < r->pass_count; i++) {
        recompute_pass *pass = &r->passes[(uint32_t)order[i]];
        recompute_block *block = &r->blocks[pass->block];
        pass->until = end_of_copy(r, order, i, link);
        uint32_t until = pass->until != NONE ? r->passes[pass->until].block : NONE;
        differs[pass->block] |= until == NONE || (block->until != NONE && block->until != until);
        block->until = until;
    }
    for (uint32_t b = 0; b < r->block_count; b++)
        r->blocks[b].until = differs[b] ? NONE : r->blocks[b].until;
    pleat__arena_free(r->arena, order);
    pleat__arena_free(r->arena, differs);
    return PLEAT_OK;
}

/* Whether the copies of two passes overlap: one begins when a forward ends, and is over when that
 * of its `until` does. */
static bool passes_collide(const recompute *r, const recompute_pass *a, const recompute_pass *b)
{
    return a->forward_end < r->passes[b->until].forward_end &&
           b->forward_end < r->passes[a->until].forward_end;
}

/* Whether a block's copies are hidden beside those of the blocks that are offloaded already. */
static bool can_offload(const recompute *r, const recompute_way *ways, uint32_t block)
{
    if (r->blocks[block].until == NONE)
        return false;
    for (uint32_t p = 0; p < r->pass_count; p++)
        for (uint32_t o = 0; o < r->pass_count && r->passes[p].block == block; o++)
            if (ways[r->passes[o].block] == RECOMPUTE_OFFLOAD &&
                passes_collide(r, &r->passes[p], &r->passes[o]))
                return false;
    return true;
}

/* ---- edited iterations ---- */

/* A request's lives in the iteration, one or two, when its block goes a way; returns how many. */
static int lives_of(const recompute *r, recompute_way way, uint32_t item, life out[2])
{
    const pleat__request *q = &r->requests.items[item];
    const recompute_pass *pass = r->pass_of[item] != NONE ? &r->passes[r->pass_of[item]] : NULL;
    out[0].from = q->alloc_at > r->begin ? q->alloc_at : r->begin;
    out[0].to = q->free_at < r->end ? q->free_at : r->end;
    if (pass == NULL || way == RECOMPUTE_AGAIN ||
        (way == RECOMPUTE_ATTENTION && !r->of_attention[item]))
        return out[0].from < out[0].to;
    if (q->free_at < pass->again_end)
        return 0;
    out[0].from = pass->forward_end;
    if (way == RECOMPUTE_KEPT)
        out[0].to = r->kept_until[item];
    if (way != RECOMPUTE_OFFLOAD)
        return 1;
    out[1] = (life){r->passes[pass->until].again_begin, out[0].to};
    out[0].to = r->passes[pass->until].forward_end;
    return 2;
}

static recompute_way way_of(const recompute *r, const recompute_way *ways, uint32_t item)
{
    return r->pass_of[item] != NONE ? ways[r->passes[r->pass_of[item]].block] : RECOMPUTE_AGAIN;
}

/* By how much what is live changes at each position, of one request; sign: 1 or -1. */
static void change_by(const recompute *r, recompute_way way, uint32_t item, int64_t sign,
                      int64_t *change)
{
    life lives[2];
    int64_t size = sign * (int64_t)r->requests.items[item].size;
    for (int i = lives_of(r, way, item, lives); i-- > 0;) {
        change[lives[i].from - r->begin] += size;
        change[lives[i].to - r->begin] -= size;
    }
}

/* The most live bytes, and where. */
static uint64_t most_live(const recompute *r, const int64_t *change, uint32_t *where)
{
    int64_t live = 0, most = -1;
    for (uint32_t at = 0; at < r->end - r->begin; at++) {
        live += change[at];
        if (live > most) {
            most = live;
            *where = r->begin + at;
        }
    }
    return most > 0 ? (uint64_t)most : 0;
}

static void note_peaks(recompute *r, const int64_t *change)
{
    uint64_t most[RECOMPUTE_PEAKS] = {0};
    int64_t live = 0;
    for (uint32_t at = 0; at < r->end - r->begin; at++) {
        live += change[at];
        recompute_peak here = {r->lasting_live[at], (uint64_t)live - r->lasting_live[at]};
        for (int i = 0; i < RECOMPUTE_PEAKS; i++) {
            uint64_t bytes = here.lasting_bytes + (here.passing_bytes << i);
            if (bytes > most[i]) {
                most[i] = bytes;
                r->peaks[i] = here;
            }
        }
    }
}

static bool persists(const recompute *r, const pleat__request *q)
{
    return q->alloc_at <= r->begin && q->free_at >= r->end;
}

static uint64_t persistent(const recompute *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->requests.count; i++)
        bytes += persists(r, &r->requests.items[i]) ? r->requests.items[i].size : 0;
    return bytes;
}

static pleat_result note_lasting(recompute *r)
{
    uint32_t length = r->end - r->begin;
    int64_t *change = pleat__arena_calloc(r->arena, length + 1, sizeof *change), live = 0;
    r->lasting_live = pleat__arena_calloc(r->arena, length + 1, sizeof *r->lasting_live);
    if (change == NULL || r->lasting_live == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u positions", length);
    for (uint32_t i = 0; i < r->requests.count; i++) {
        const pleat__request *q = &r->requests.items[i];
        if (q->free_at <= r->backward_end || q->alloc_at >= r->end)
            continue;
        change[q->alloc_at > r->begin ? q->alloc_at - r->begin : 0] += (int64_t)q->size;
        change[q->free_at < r->end ? q->free_at - r->begin : length] -= (int64_t)q->size;
    }
    for (uint32_t at = 0; at < length; at++) {
        live += change[at];
        r->lasting_live[at] = (uint64_t)live;
        if (r->lasting_live[at] > r->lasting_bytes)
            r->lasting_bytes = r->lasting_live[at];
    }
    pleat__arena_free(r->arena, change);
    return PLEAT_OK;
}

/* ---- iterations before it ---- */

/* The most that an iteration before it had live besides what persists, from its first block on:
 * what comes before that may be there once, the model's making for instance. */
static pleat_result note_earlier(recompute *r)
{
    const pleat__requests *q = &r->requests;
    runs found = {.all = NULL};
    uint64_t live = 0, most = 0;
    uint32_t at = 0;
    for (uint32_t m = 0; m < q->mark_count && q->marks[m] <= r->begin; m++) {
        PLEAT_TRY(find_runs(r, at, q->marks[m], &found));
        uint32_t first = has_again(&found) ? found.all[0].begin : NONE;
        for (; at < q->marks[m]; at++) {
            const pleat__request *item = &q->items[q->events[at] / 2];
            uint64_t size = persists(r, item) ? 0 : item->size;
            live = q->events[at] % 2 ? live - size : live + size;
            most = at >= first && live > most ? live : most;
        }
    }
    r->earlier_bytes = most > 0 ? r->persistent_bytes + most : 0;
    pleat__arena_free(r->arena, found.all);
    return PLEAT_OK;
}

/* ---- rungs ---- */

/* Live bytes at a position of each block's second runs, each way. */
typedef struct block_live {
    uint64_t bytes[RECOMPUTE_WAYS];
} block_live;

static void find_live(const recompute *r, uint32_t where, block_live *out)
{
    life lives[2];
    memset(out, 0, r->block_count * sizeof *out);
    for (uint32_t i = 0; i < r->again_count; i++) {
        uint32_t item = r->again[i], block = r->passes[r->pass_of[item]].block;
        for (recompute_way way = 0; way < RECOMPUTE_WAYS; way++) {
            if (way == RECOMPUTE_OFFLOAD && r->blocks[block].until == NONE)
                continue;
            for (int l = lives_of(r, way, item, lives); l-- > 0;)
                if (lives[l].from <= where && where < lives[l].to)
                    out[block].bytes[way] += r->requests.items[item].size;
        }
    }
}

static uint64_t way_ns(const recompute_block *b, recompute_way way)
{
    return way == RECOMPUTE_AGAIN       ? b->ns
           : way == RECOMPUTE_ATTENTION ? b->ns - b->attention_ns
                                        : 0;
}

static bool can_go(const recompute *r, const recompute_way *ways, uint32_t block, recompute_way way)
{
    if (ways[block] == RECOMPUTE_KEPT && way == RECOMPUTE_ATTENTION)
        return r->blocks[block].attention_bytes > 0 && r->blocks[block].attention_ns > 0;
    if (ways[block] == RECOMPUTE_KEPT && way == RECOMPUTE_OFFLOAD)
        return can_offload(r, ways, block);
    return ways[block] != RECOMPUTE_AGAIN && way == RECOMPUTE_AGAIN;
}

/* A block to another way: of those that leave less at the position where most is live the one that
 * costs least for its bytes, of equal ones the first block's. Where none does, the first block that
 * is not computed again is. `live` is room for all blocks. */
static recompute_rung next_rung(const recompute *r, const recompute_way *ways, uint32_t where,
                                block_live *live)
{
    recompute_rung best = {.block = NONE, .way = RECOMPUTE_AGAIN};
    double best_price = 0;
    find_live(r, where, live);
    for (uint32_t b = r->block_count; b-- > 0;) {
        const recompute_block *block = &r->blocks[b];
        const uint64_t *bytes = live[b].bytes;
        for (recompute_way way = RECOMPUTE_ATTENTION; way < RECOMPUTE_WAYS; way++) {
            if (!can_go(r, ways, b, way) || bytes[way] >= bytes[ways[b]])
                continue;
            double price = (double)(way_ns(block, way) - way_ns(block, ways[b])) /
                           (double)(bytes[ways[b]] - bytes[way]);
            if (best.block == NONE || price < best_price ||
                (price == best_price && block->number < r->blocks[best.block].number)) {
                best.block = b;
                best.way = way;
                best_price = price;
            }
        }
    }
    for (uint32_t p = 0; p < r->pass_count && best.block == NONE; p++)
        if (ways[r->passes[p].block] != RECOMPUTE_AGAIN)
            best.block = r->passes[p].block;
    return best;
}

static void change_way(const recompute *r, recompute_way *ways, const recompute_rung *rung,
                       int64_t *change)
{
    for (uint32_t i = 0; i < r->again_count; i++) {
        uint32_t item = r->again[i];
        if (r->passes[r->pass_of[item]].block != rung->block)
            continue;
        change_by(r, ways[rung->block], item, -1, change);
        change_by(r, rung->way, item, 1, change);
    }
    ways[rung->block] = rung->way;
}

static pleat_result make_rungs(recompute *r)
{
    uint32_t where = r->begin, most = 2 * r->block_count + 1;
    recompute_way *ways = pleat__arena_calloc(r->arena, r->block_count, sizeof *ways);
    block_live *live = pleat__arena_calloc(r->arena, r->block_count, sizeof *live);
    int64_t *change = pleat__arena_calloc(r->arena, r->end - r->begin + 1, sizeof *change);
    r->rungs = pleat__arena_calloc(r->arena, most, sizeof *r->rungs);
    if (ways == NULL || live == NULL || change == NULL || r->rungs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks", r->block_count);
    for (uint32_t i = 0; i < r->requests.count; i++)
        change_by(r, way_of(r, ways, i), i, 1, change);
    r->rungs[0] = (recompute_rung){.block = NONE, .live_bytes = most_live(r, change, &where)};
    /* A block changes its way twice at most. */
    for (uint32_t left = r->block_count; left > 0;) {
        recompute_rung rung = next_rung(r, ways, where, live);
        rung.ns = r->rungs[r->last_rung].ns + way_ns(&r->blocks[rung.block], rung.way) -
                  way_ns(&r->blocks[rung.block], ways[rung.block]);
        change_way(r, ways, &rung, change);
        rung.live_bytes = most_live(r, change, &where);
        r->rungs[++r->last_rung] = rung;
        left -= rung.way == RECOMPUTE_AGAIN;
    }
    note_peaks(r, change);
    return PLEAT_OK;
}

void recompute_ways(const recompute *r, uint32_t rung, recompute_way *ways)
{
    memset(ways, 0, r->block_count * sizeof *ways);
    for (uint32_t i = 1; i <= rung; i++)
        ways[r->rungs[i].block] = r->rungs[i].way;
}

/* ---- plans ---- */

/* The edited iteration as a trace of one iteration: all of it is freed in the end, so that it is
 * taken whole. keys: room for two lives of each request, beginnings and ends, and as much again. */
static pleat_result fill_trace(const recompute *r, const recompute_way *ways, uint64_t *keys,
                               uint64_t *spare, pleat_trace *trace)
{
    size_t count = 0;
    life lives[2];
    uint32_t number = 0;
    uint32_t *numbers = pleat__arena_calloc(r->arena, r->requests.count, sizeof *numbers);
    if (numbers == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an edited iteration");
    for (uint32_t i = 0; i < r->requests.count; i++) {
        for (int l = lives_of(r, way_of(r, ways, i), i, lives); l-- > 0;) {
            /* Frees come first at a position; positions fit in 31 bits. */
            keys[count++] = (uint64_t)(lives[l].from * 2 + 1) << 32 | i;
            keys[count++] = (uint64_t)(lives[l].to * 2) << 32 | i;
        }
    }
    pleat__sort_keys(keys, spare, count);
    PLEAT_TRY(pleat_trace_add(trace, &(pleat_trace_event){.kind = PLEAT_EVENT_MARK}));
    for (size_t k = 0; k < count; k++) {
        uint32_t item = (uint32_t)keys[k];
        pleat_trace_event event = {.stream = r->requests.items[item].stream};
        if (keys[k] >> 32 & 1) {
            numbers[item] = number++;
            event.size = r->requests.items[item].size;
        } else {
            event.kind = PLEAT_EVENT_FREE_REQUESTED;
        }
        event.request = numbers[item];
        PLEAT_TRY(pleat_trace_add(trace, &event));
        event.kind = PLEAT_EVENT_FREE_COMPLETED;
        if (!(keys[k] >> 32 & 1))
            PLEAT_TRY(pleat_trace_add(trace, &event));
    }
    pleat__arena_free(r->arena, numbers);
    return PLEAT_OK;
}

static pleat_result plan_of(const recompute *r, const recompute_way *ways, uint64_t *physical)
{
    pleat_trace *trace = NULL;
    pleat_plan *plan = NULL;
    size_t most = 4 * (size_t)r->requests.count;
    uint64_t *keys = pleat__arena_calloc(r->arena, most, 2 * sizeof *keys);
    if (keys == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an edited iteration");
    pleat_result result = pleat__trace_copy_names(r->trace, &trace);
    if (result == PLEAT_OK)
        result = fill_trace(r, ways, keys, keys + most, trace);
    const pleat_plan_options options = {.size = sizeof options, .no_recipe = 1};
    if (result == PLEAT_OK)
        result = pleat_plan_make(trace, &options, &plan);
    if (result == PLEAT_OK)
        *physical = pleat_plan_summary_of(plan).physical_bytes;
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    pleat__arena_free(r->arena, keys);
    return result;
}

static pleat_result plan_rung(recompute *r, uint32_t rung)
{
    recompute_way *ways = pleat__arena_calloc(r->arena, r->block_count, sizeof *ways);
    if (ways == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks", r->block_count);
    recompute_ways(r, rung, ways);
    pleat_result result = plan_of(r, ways, &r->rungs[rung].physical_bytes);
    pleat__arena_free(r->arena, ways);
    return result;
}

/* The first rung from `from` on with no more live bytes; last_rung + 1: none. */
static uint32_t rung_within(const recompute *r, uint32_t from, uint64_t live_bytes)
{
    while (from <= r->last_rung && r->rungs[from].live_bytes > live_bytes)
        from++;
    return from;
}

/* Rungs are tried by their live bytes, and the next one by what the last plan took beyond them. */
pleat_result recompute_choose(recompute *r, uint64_t budget_bytes, uint32_t *rung)
{
    uint64_t beyond = 0;
    *rung = rung_within(r, 0, budget_bytes);
    for (int round = 0; *rung <= r->last_rung; round++) {
        recompute_rung *at = &r->rungs[*rung];
        PLEAT_TRY(plan_rung(r, *rung));
        if (at->physical_bytes <= budget_bytes)
            return PLEAT_OK;
        beyond = at->physical_bytes - at->live_bytes;
        uint64_t within = budget_bytes > beyond ? budget_bytes - beyond : 0;
        uint32_t next = rung_within(r, *rung + 1, within);
        /* After some plans the next is the last that there is, which is tried in any case. */
        *rung = round < ROUNDS ? next : r->last_rung + (*rung == r->last_rung);
    }
    if (r->rungs[r->last_rung].physical_bytes == 0)
        PLEAT_TRY(plan_rung(r, r->last_rung));
    if (r->rungs[r->last_rung].physical_bytes <= budget_bytes)
        *rung = r->last_rung;
    return PLEAT_OK;
}

pleat_result recompute_begin(const pleat_trace *trace, uint32_t device,
                             const recompute_times *times, recompute *out)
{
    *out = (recompute){.trace = trace};
    uint32_t chosen;
    PLEAT_TRY(pleat__choose_device(trace, device, &chosen));
    PLEAT_TRY(pleat__arena_create(&out->arena));
    pleat_result result = pleat__requests_make(trace, chosen, out->arena, &out->requests);
    if (result == PLEAT_OK)
        result = find_iteration(out);
    if (result == PLEAT_OK) {
        size_t count = out->requests.count;
        out->pass_of = pleat__arena_calloc(out->arena, count, sizeof *out->pass_of);
        out->again = pleat__arena_calloc(out->arena, count, sizeof *out->again);
        out->of_attention = pleat__arena_calloc(out->arena, count, sizeof *out->of_attention);
        out->kept_until = pleat__arena_calloc(out->arena, count, sizeof *out->kept_until);
        if (out->pass_of == NULL || out->again == NULL || out->of_attention == NULL ||
            out->kept_until == NULL)
            result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests",
                                 out->requests.count);
    }
    if (result == PLEAT_OK) {
        note_saved(out);
        note_ends(out);
        out->persistent_bytes = persistent(out);
        result = note_times(out, times);
    }
    if (result == PLEAT_OK)
        result = note_lasting(out);
    if (result == PLEAT_OK)
        result = note_earlier(out);
    if (result == PLEAT_OK && out->forward_ns > 0 && times->link > 0)
        result = note_copies(out, times->link);
    if (result == PLEAT_OK)
        result = make_rungs(out);
    if (result != PLEAT_OK)
        recompute_end(out);
    return result;
}

void recompute_end(recompute *r)
{
    pleat__arena_destroy(r->arena);
    r->arena = NULL;
}
