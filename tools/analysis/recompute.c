/*
 * recompute.c: see recompute.h.
 */
#include <tools/analysis/recompute.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <plan/planner.h>

#include <string.h>

#define NONE        UINT32_MAX
#define BLOCKS_MOST 4096u
#define ROUNDS      6 /* plans made for a choice */

/* A forward of a block, or its second run: positions [begin, end). */
typedef struct run {
    uint32_t block; /* its number */
    uint32_t begin, end;
    bool again;
} run;

/* A forward and its second run. */
typedef struct recompute_pass {
    uint32_t block; /* index into the blocks */
    uint32_t forward_end;
    uint32_t again_begin, again_end;
} recompute_pass;

typedef struct runs {
    run *all;
    size_t count, room;
} runs;

/* ---- phases ---- */

/* "block.12" and "block.12.again"; false for any other phase. */
static bool read_phase(const pleat_trace *trace, uint32_t label, uint32_t *number, bool *again)
{
    static const char prefix[] = "block.", suffix[] = ".again";
    size_t length, at = sizeof prefix - 1;
    const char *text = pleat__phase_text(pleat_trace_label(trace, label), &length);
    uint64_t value = 0;
    if (length <= at || memcmp(text, prefix, at) != 0)
        return false;
    for (; at < length && text[at] >= '0' && text[at] <= '9' && value < BLOCKS_MOST; at++)
        value = value * 10 + (uint64_t)(text[at] - '0');
    *number = (uint32_t)value;
    *again = at < length;
    return at > sizeof prefix - 1 && value < BLOCKS_MOST &&
           (!*again ||
            (length - at == sizeof suffix - 1 && memcmp(text + at, suffix, length - at) == 0));
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

/* Stretches of positions under one block's phase, in order. */
static pleat_result find_runs(const recompute *r, uint32_t begin, uint32_t end, runs *out)
{
    const pleat__requests *q = &r->requests;
    out->count = 0;
    for (uint32_t at = begin; at < end;) {
        uint16_t phase = phase_at(q, at);
        run found = {.begin = at};
        while (at < end && phase_at(q, at) == phase)
            at++;
        found.end = end_of_run(q, found.begin, at, end);
        if (!read_phase(r->trace, q->phase_labels[phase], &found.block, &found.again))
            continue;
        PLEAT_TRY(pleat__arena_grow(r->arena, &out->all, &out->room, out->count, sizeof found));
        out->all[out->count++] = found;
    }
    return PLEAT_OK;
}

/* The second runs of a block, in order, belong to its forwards, in order. */
static pleat_result pair_runs(recompute *r, const runs *found)
{
    uint32_t *of_number = pleat__arena_calloc(r->arena, BLOCKS_MOST, sizeof *of_number);
    r->passes = pleat__arena_calloc(r->arena, found->count, sizeof *r->passes);
    r->blocks = pleat__arena_calloc(r->arena, BLOCKS_MOST, sizeof *r->blocks);
    bool *done = pleat__arena_calloc(r->arena, found->count, sizeof *done);
    if (of_number == NULL || r->passes == NULL || r->blocks == NULL || done == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %zu passes", found->count);
    r->block_count = r->pass_count = 0;
    for (size_t i = 0; i < found->count; i++) {
        if (!found->all[i].again)
            continue;
        size_t forward = 0;
        while (forward < i && (done[forward] || found->all[forward].again ||
                               found->all[forward].block != found->all[i].block))
            forward++;
        if (forward == i)
            continue;
        done[forward] = true;
        uint32_t *index = &of_number[found->all[i].block];
        if (*index == 0) {
            r->blocks[r->block_count] = (recompute_block){.number = found->all[i].block};
            *index = ++r->block_count;
        }
        r->blocks[*index - 1].passes++;
        r->passes[r->pass_count++] = (recompute_pass){*index - 1, found->all[forward].end,
                                                      found->all[i].begin, found->all[i].end};
    }
    return PLEAT_OK;
}

/* ---- the iteration ---- */

/* The last one in which most blocks are computed again, between two marks. */
static pleat_result find_iteration(recompute *r)
{
    const pleat__requests *q = &r->requests;
    runs found = {.all = NULL};
    /* Without marks the whole recording is one. */
    for (uint32_t m = q->mark_count > 0 ? q->mark_count : 1; m > 0; m--) {
        r->begin = q->mark_count > 0 ? q->marks[m - 1] : 0;
        r->end = m < q->mark_count ? q->marks[m] : q->event_count;
        PLEAT_TRY(find_runs(r, r->begin, r->end, &found));
        PLEAT_TRY(pair_runs(r, &found));
        if (r->block_count > 0)
            return PLEAT_OK;
    }
    return pleat__fail(PLEAT_E_NOT_FOUND,
                       "the recording has no iteration whose blocks are computed again under the "
                       "phases block.N and block.N.again: `pleat run --recompute auto "
                       "--save-plan FILE` learns one");
}

static void note_saved(recompute *r)
{
    const pleat__requests *q = &r->requests;
    for (uint32_t i = 0; i < q->count; i++)
        r->pass_of[i] = NONE;
    for (uint32_t p = 0; p < r->pass_count; p++) {
        const recompute_pass *pass = &r->passes[p];
        for (uint32_t at = pass->again_begin; at < pass->again_end; at++) {
            uint32_t event = q->events[at];
            if (event % 2)
                continue;
            r->pass_of[event / 2] = p;
            if (q->items[event / 2].free_at >= pass->again_end)
                r->blocks[pass->block].saved_bytes += q->items[event / 2].size;
        }
    }
}

static void note_times(recompute *r, const uint64_t *times, uint32_t count)
{
    for (uint32_t p = 0; p < r->pass_count; p++) {
        const recompute_pass *pass = &r->passes[p];
        recompute_block *b = &r->blocks[pass->block];
        if (times != NULL)
            b->ns += b->number < count ? times[b->number] : 0;
        else
            b->ns++;
    }
    for (uint32_t b = 0; b < r->block_count; b++)
        r->forward_ns += times != NULL ? r->blocks[b].ns : 0;
}

/* ---- edited iterations ---- */

/* A request's life in the iteration, edited; false where it has none. kept: by block. */
static bool life_of(const recompute *r, const bool *kept, uint32_t item, uint32_t *from,
                    uint32_t *to)
{
    const pleat__request *q = &r->requests.items[item];
    *from = q->alloc_at > r->begin ? q->alloc_at : r->begin;
    *to = q->free_at < r->end ? q->free_at : r->end;
    uint32_t p = r->pass_of[item];
    if (p != NONE && kept[r->passes[p].block]) {
        if (q->free_at < r->passes[p].again_end)
            return false;
        *from = r->passes[p].forward_end;
    }
    return *from < *to;
}

/* The most live bytes, and where. `change` has room for the iteration's positions and one more. */
static uint64_t sweep(const recompute *r, const bool *kept, int64_t *change, uint32_t *where)
{
    uint32_t from, to, length = r->end - r->begin;
    memset(change, 0, (length + 1) * sizeof *change);
    for (uint32_t i = 0; i < r->requests.count; i++) {
        if (!life_of(r, kept, i, &from, &to))
            continue;
        change[from - r->begin] += (int64_t)r->requests.items[i].size;
        change[to - r->begin] -= (int64_t)r->requests.items[i].size;
    }
    int64_t live = 0, most = -1;
    for (uint32_t at = 0; at < length; at++) {
        live += change[at];
        if (live > most) {
            most = live;
            *where = r->begin + at;
        }
    }
    return most > 0 ? (uint64_t)most : 0;
}

static uint64_t persistent(const recompute *r)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < r->requests.count; i++) {
        const pleat__request *q = &r->requests.items[i];
        bytes += q->alloc_at <= r->begin && q->free_at >= r->end ? q->size : 0;
    }
    return bytes;
}

static pleat_result note_lasting(recompute *r)
{
    uint32_t backward_end = r->begin, length = r->end - r->begin;
    int64_t *change = pleat__arena_calloc(r->arena, length + 1, sizeof *change), live = 0;
    if (change == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u positions", length);
    for (uint32_t i = 0; i < r->requests.count; i++) {
        uint32_t free_at = r->requests.items[i].free_at;
        if (r->pass_of[i] != NONE && free_at < r->end && free_at > backward_end)
            backward_end = free_at;
    }
    for (uint32_t i = 0; i < r->requests.count; i++) {
        const pleat__request *q = &r->requests.items[i];
        if (q->free_at <= backward_end || q->alloc_at >= r->end)
            continue;
        change[q->alloc_at > r->begin ? q->alloc_at - r->begin : 0] += (int64_t)q->size;
        change[q->free_at < r->end ? q->free_at - r->begin : length] -= (int64_t)q->size;
    }
    for (uint32_t at = 0; at < length; at++) {
        live += change[at];
        if (live > (int64_t)r->lasting_bytes)
            r->lasting_bytes = (uint64_t)live;
    }
    pleat__arena_free(r->arena, change);
    return PLEAT_OK;
}

/* Of the kept blocks whose saved tensors are there at a position, the one that costs least for its
 * bytes; of equal ones the first. NONE: there is none, and any that is kept goes. */
static uint32_t next_block(const recompute *r, const bool *kept, uint32_t where)
{
    uint32_t best = NONE, any = NONE;
    double best_price = 0;
    for (uint32_t p = 0; p < r->pass_count; p++) {
        const recompute_pass *pass = &r->passes[p];
        const recompute_block *b = &r->blocks[pass->block];
        if (!kept[pass->block])
            continue;
        any = any == NONE ? pass->block : any;
        if (where < pass->forward_end || where >= pass->again_begin || b->saved_bytes == 0)
            continue;
        double price = (double)b->ns / (double)b->saved_bytes;
        if (best == NONE || price < best_price ||
            (price == best_price && pass->block != best && b->number < r->blocks[best].number)) {
            best = pass->block;
            best_price = price;
        }
    }
    return best != NONE ? best : any;
}

static pleat_result make_rungs(recompute *r)
{
    bool *kept = pleat__arena_calloc(r->arena, r->block_count, sizeof *kept);
    int64_t *change = pleat__arena_calloc(r->arena, r->end - r->begin + 1, sizeof *change);
    r->rungs = pleat__arena_calloc(r->arena, r->block_count + 1, sizeof *r->rungs);
    if (kept == NULL || change == NULL || r->rungs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks", r->block_count);
    memset(kept, true, r->block_count);
    uint32_t where = r->begin, block = NONE;
    uint64_t ns = 0;
    for (uint32_t i = 0; i <= r->block_count; i++) {
        if (i > 0) {
            block = next_block(r, kept, where);
            kept[block] = false;
            ns += r->blocks[block].ns;
        }
        r->rungs[i] = (recompute_rung){
            .block = block, .live_bytes = sweep(r, kept, change, &where), .ns = ns};
    }
    return PLEAT_OK;
}

/* ---- plans ---- */

/* The edited iteration as a trace of one iteration: all of it is freed in the end, so that it is
 * taken whole. */
static pleat_result fill_trace(const recompute *r, const bool *kept, uint64_t *keys,
                               uint64_t *spare, pleat_trace *trace)
{
    size_t count = 0;
    uint32_t from, to, number = 0;
    uint32_t *numbers = pleat__arena_calloc(r->arena, r->requests.count, sizeof *numbers);
    if (numbers == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an edited iteration");
    for (uint32_t i = 0; i < r->requests.count; i++) {
        if (!life_of(r, kept, i, &from, &to))
            continue;
        /* Frees come first at a position; positions fit in 31 bits. */
        keys[count++] = (uint64_t)(from * 2 + 1) << 32 | i;
        keys[count++] = (uint64_t)(to * 2) << 32 | i;
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

static pleat_result add_streams(const pleat_trace *from, pleat_trace *to)
{
    uint16_t index;
    for (uint32_t s = 0; s < pleat_trace_stream_count(from); s++)
        PLEAT_TRY(pleat_trace_add_stream(to, pleat_trace_stream(from, (uint16_t)s), &index));
    return PLEAT_OK;
}

static pleat_result plan_of(const recompute *r, const bool *kept, uint64_t *physical)
{
    pleat_trace *trace = NULL;
    pleat_plan *plan = NULL;
    size_t most = 2 * (size_t)r->requests.count;
    uint64_t *keys = pleat__arena_calloc(r->arena, most, 2 * sizeof *keys);
    if (keys == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an edited iteration");
    pleat_result result = pleat_trace_new(&trace);
    if (result == PLEAT_OK)
        result = add_streams(r->trace, trace);
    if (result == PLEAT_OK)
        result = fill_trace(r, kept, keys, keys + most, trace);
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
    bool *kept = pleat__arena_calloc(r->arena, r->block_count, sizeof *kept);
    if (kept == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u blocks", r->block_count);
    memset(kept, true, r->block_count);
    for (uint32_t i = 1; i <= rung; i++)
        kept[r->rungs[i].block] = false;
    pleat_result result = plan_of(r, kept, &r->rungs[rung].physical_bytes);
    pleat__arena_free(r->arena, kept);
    return result;
}

/* The first rung from `from` on with no more live bytes; block_count + 1: none. */
static uint32_t rung_within(const recompute *r, uint32_t from, uint64_t live_bytes)
{
    while (from <= r->block_count && r->rungs[from].live_bytes > live_bytes)
        from++;
    return from;
}

/* Rungs are tried by their live bytes, and the next one by what the last plan took beyond them. */
pleat_result recompute_choose(recompute *r, uint64_t budget_bytes, uint32_t *rung)
{
    uint64_t beyond = 0;
    *rung = rung_within(r, 0, budget_bytes);
    for (int round = 0; *rung <= r->block_count; round++) {
        recompute_rung *at = &r->rungs[*rung];
        PLEAT_TRY(plan_rung(r, *rung));
        if (at->physical_bytes <= budget_bytes)
            return PLEAT_OK;
        beyond = at->physical_bytes - at->live_bytes;
        uint64_t within = budget_bytes > beyond ? budget_bytes - beyond : 0;
        uint32_t next = rung_within(r, *rung + 1, within);
        /* After some plans the next is the last that there is, which is tried in any case. */
        *rung = round < ROUNDS ? next : r->block_count + (*rung == r->block_count);
    }
    if (r->rungs[r->block_count].physical_bytes == 0)
        PLEAT_TRY(plan_rung(r, r->block_count));
    if (r->rungs[r->block_count].physical_bytes <= budget_bytes)
        *rung = r->block_count;
    return PLEAT_OK;
}

pleat_result recompute_begin(const pleat_trace *trace, uint32_t device, const uint64_t *times,
                             uint32_t time_count, recompute *out)
{
    *out = (recompute){.trace = trace};
    uint32_t chosen;
    PLEAT_TRY(pleat__choose_device(trace, device, &chosen));
    PLEAT_TRY(pleat__arena_create(&out->arena));
    pleat_result result = pleat__requests_make(trace, chosen, out->arena, &out->requests);
    if (result == PLEAT_OK)
        result = find_iteration(out);
    if (result == PLEAT_OK) {
        out->pass_of = pleat__arena_calloc(out->arena, out->requests.count, sizeof *out->pass_of);
        if (out->pass_of == NULL)
            result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests",
                                 out->requests.count);
    }
    if (result == PLEAT_OK) {
        note_saved(out);
        note_times(out, times, time_count);
        out->persistent_bytes = persistent(out);
        result = note_lasting(out);
    }
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
