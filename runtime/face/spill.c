/*
 * spill.c: see spill.h.
 */
#include <runtime/face/spill.h>

#include <runtime/face/runtime_internal.h>

#include <internal/error.h>
#include <stdlib.h>
#include <string.h>

/* What is of this iteration ranks behind what has outlived one (D481), and last what stays where it
 * is: its age is not known, or other processes see its memory. */
#define OF_ITERATION (UINT64_C(1) << 62)
#define STAYS        UINT64_MAX
/* At least so much of the cap goes at a time, since the GPU is waited for; and so much is left at
 * the peak when something comes back: less, and it would go again soon (D216). */
#define PART_SHARE 64u

/* Tries the verb: attributes of a device do not say what a container forbids. */
static pleat_result probe(pleat_runtime *runtime)
{
    pleat__chunk *chunk;
    PLEAT_TRY(pleat__space_chunk_get(runtime->space, 1, &chunk));
    pleat_result result = pleat__space_prepare(runtime->space, &chunk, 1, true);
    pleat__space_unprepare(runtime->space, &chunk, 1);
    pleat__space_chunk_put(runtime->space, chunk);
    (void)pleat__space_trim(runtime->space, 0);
    return result;
}

pleat_result pleat__spill_begin(pleat_runtime *runtime, const pleat__conf *conf)
{
    if (strcmp(conf->spill, "off") == 0)
        return PLEAT_OK;
    if (runtime->ops->hold == NULL || runtime->canary.paint != NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "spill: memory of the policy '%s'%s cannot be moved", runtime->ops->name,
                           runtime->canary.paint != NULL ? " under the canary" : "");
    pleat_result result = probe(runtime);
    if (result != PLEAT_OK)
        return pleat__context(result, "spill");
    runtime->spill.on = true;
    return PLEAT_OK;
}

/* ---- what lives, since when ---- */

uint64_t pleat__spill_born(pleat_runtime *runtime)
{
    pleat__spill *spill = &runtime->spill;
    if (!spill->on)
        return 0;
    if (runtime->stats.live_bytes > spill->peak_live)
        spill->peak_live = runtime->stats.live_bytes;
    return ++spill->requests;
}

/* ---- which chunks ---- */

typedef struct chunks {
    pleat__chunk **all;
    size_t count, capacity;
} chunks;

static uint64_t rank_of(const pleat_runtime *runtime, pleat_va address)
{
    const pleat__spill *spill = &runtime->spill;
    pleat__known known = pleat__known_of(runtime, address);
    if (known.born == 0 || known.shared)
        return STAYS;
    return known.born <= spill->marked ? spill->marked - known.born : OF_ITERATION + known.born;
}

static pleat_result add(pleat_runtime *runtime, chunks *found, pleat__chunk *chunk, uint64_t rank)
{
    if (chunk->seen) {
        chunk->rank = rank > chunk->rank ? rank : chunk->rank;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &found->all, &found->capacity, found->count,
                                sizeof *found->all));
    found->all[found->count++] = chunk;
    chunk->seen = true;
    chunk->rank = rank;
    return PLEAT_OK;
}

/* Awake chunks on which something lies, of the device or of the host, each with the rank of what
 * ranks last on it. */
static pleat_result list(pleat_runtime *runtime, bool on_host, chunks *found)
{
    pleat_va at = pleat__space_base(runtime->space);
    pleat_block block;
    pleat_result result = PLEAT_OK;
    while (result == PLEAT_OK && pleat__next_block(runtime, &at, &block)) {
        pleat__range of = pleat__pages_of(runtime, &block);
        for (uint64_t page = of.begin; page < of.end && result == PLEAT_OK; page++) {
            pleat__chunk *chunk = pleat__space_chunk_at(runtime->space, page, NULL);
            if (pleat__space_can_rest(runtime->space, chunk) && chunk->on_host == on_host)
                result = add(runtime, found, chunk, rank_of(runtime, block.address));
        }
    }
    for (size_t c = 0; c < found->count; c++)
        found->all[c]->seen = false;
    return result;
}

static int compare(const void *left, const void *right)
{
    const pleat__chunk *a = *(pleat__chunk *const *)left, *b = *(pleat__chunk *const *)right;
    return a->rank < b->rank ? -1 : a->rank > b->rank;
}

/* How many of the first have so many bytes, and may go. */
static size_t first_of(const pleat_runtime *runtime, const chunks *found, uint64_t bytes)
{
    uint64_t sum = 0;
    size_t count = 0;
    while (count < found->count && sum < bytes && found->all[count]->rank != STAYS)
        sum += found->all[count++]->pages * pleat__space_page_bytes(runtime->space);
    return count;
}

/* ---- out and back ---- */

/* What is paused is not there, and a stream that captures would be waited for in vain. */
static bool may_move(const pleat_runtime *runtime)
{
    return runtime->pauses == NULL && runtime->gate.captured_count == 0;
}

bool pleat__spill_out(pleat_runtime *runtime, uint64_t bytes)
{
    chunks found = {0};
    size_t count = 0;
    uint64_t before = pleat__space_stats_of(runtime->space).host_bytes;
    if (!runtime->spill.on || !may_move(runtime))
        return false;
    if (list(runtime, false, &found) == PLEAT_OK && found.count > 0) {
        qsort(found.all, found.count, sizeof *found.all, compare);
        uint64_t part = pleat__limits_allowed(runtime) / PART_SHARE;
        count = first_of(runtime, &found, bytes > part ? bytes : part);
    }
    if (count > 0)
        (void)!pleat__move(runtime, found.all, count, true);
    pleat__arena_free(runtime->arena, found.all);
    return pleat__space_stats_of(runtime->space).host_bytes > before;
}

/* Bytes that the device will have room for when the next iteration is at its peak, if that is the
 * last one's. */
static uint64_t room_at_peak(const pleat_runtime *runtime, uint64_t peak, uint64_t host_bytes)
{
    uint64_t limit = pleat__limits_allowed(runtime);
    uint64_t wanted = (peak > host_bytes ? peak - host_bytes : 0) + limit / PART_SHARE;
    return limit > wanted ? limit - wanted : 0;
}

/* Those of the host that rank last, as they are used most, of so many bytes at most: at the end of
 * what was found; how many. */
static size_t list_back(pleat_runtime *runtime, uint64_t bytes, chunks *found)
{
    size_t count = 0;
    uint64_t sum = 0;
    found->count = 0;
    if (list(runtime, true, found) != PLEAT_OK || found->count == 0)
        return 0;
    qsort(found->all, found->count, sizeof *found->all, compare);
    while (found->count > 0 && found->all[found->count - 1]->rank == STAYS)
        found->count--;
    while (count < found->count) {
        sum +=
            found->all[found->count - 1 - count]->pages * pleat__space_page_bytes(runtime->space);
        if (sum > bytes)
            break;
        count++;
    }
    return count;
}

/* With the turn. */
static void bring_back(pleat_runtime *runtime, uint64_t bytes)
{
    chunks found = {0};
    uint64_t limit = pleat__limits_allowed(runtime);
    size_t count = list_back(runtime, bytes, &found);
    if (count > 0) {
        (void)pleat__trim(runtime, limit > bytes ? limit - bytes : 0);
        /* What others freed meanwhile may rest by now. */
        count = list_back(runtime, bytes, &found);
    }
    if (count > 0)
        (void)!pleat__move(runtime, found.all + found.count - count, count, false);
    pleat__arena_free(runtime->arena, found.all);
}

pleat_result pleat__spill_fetch(pleat_runtime *runtime, pleat__chunk *chunk)
{
    uint64_t bytes = chunk->pages * pleat__space_page_bytes(runtime->space);
    uint64_t limit = pleat__limits_allowed(runtime);
    if (!chunk->on_host)
        return PLEAT_OK;
    if (!may_move(runtime))
        return pleat__fail(PLEAT_E_STATE, "it is in the host's memory, and something is paused or "
                                          "a stream captures a graph");
    (void)pleat__trim(runtime, limit > bytes ? limit - bytes : 0);
    pleat_result result = pleat__move(runtime, &chunk, 1, false);
    if (pleat__is_shortage(result) && pleat__spill_out(runtime, bytes))
        result = pleat__move(runtime, &chunk, 1, false);
    return result == PLEAT_OK ? PLEAT_OK : pleat__context(result, "it is in the host's memory");
}

void pleat__spill_let_go(pleat_runtime *runtime)
{
    if (runtime->spill.on && runtime->pauses == NULL)
        runtime->ops->let_go(runtime->policy);
}

void pleat__spill_mark(pleat_runtime *runtime)
{
    pleat__spill *spill = &runtime->spill;
    if (!spill->on)
        return;
    uint64_t peak = spill->peak_live;
    spill->marked = spill->requests;
    spill->peak_live = runtime->stats.live_bytes;
    if (pleat__space_stats_of(runtime->space).host_bytes == 0 || !may_move(runtime) ||
        pleat__gate_turn(&runtime->gate) != PLEAT_OK)
        return;
    /* What is idle in the host's memory is not used again. */
    pleat__spill_let_go(runtime);
    (void)runtime->ops->rest(runtime->policy, UINT64_MAX);
    uint64_t host = pleat__space_stats_of(runtime->space).host_bytes;
    uint64_t room = host == 0 ? 0 : room_at_peak(runtime, peak, host);
    if (room >= pleat__space_page_bytes(runtime->space))
        bring_back(runtime, room);
}
