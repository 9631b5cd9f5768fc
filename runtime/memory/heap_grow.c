/*
 * heap_grow.c: chunks that come to a zone, new ones or from another, and those that go back
 * (see heap.h).
 */
#include <runtime/memory/heap_internal.h>
#include <runtime/memory/rest.h>
#include <runtime/memory/waiting_frees.h>

#include <internal/check.h>
#include <string.h>

/* For whom the pool grows. The lock is left meanwhile, the turn is not: others allocate and free,
 * and nobody else grows. */
typedef struct growing {
    pleat__heap *heap;
    uint8_t zone;
    uint32_t made; /* chunks */
} growing;

static pleat_result grown(void *context, pleat__run run)
{
    growing *to = context;
    pleat__heap *heap = to->heap;
    uint32_t chunks = run.count >> heap->pool->occupancy.shift;
    to->made += chunks;
    memset(heap->zone_of + pleat__chunk_of(heap->pool, run.begin), to->zone, chunks);
    pleat_result result = pleat__zone_add(heap, to->zone, run);
    if (result != PLEAT_OK)
        pleat__heap_forget(heap);
    return result;
}

typedef pleat_result (*pool_call)(pleat__chunk_pool *pool, uint32_t chunks,
                                  pleat__occupancy_visit visit, void *context);

/* Chunks into a zone from wherever the pool's `call` has them; *made: how many, fewer when memory
 * runs out. The sets are up to date after. */
static pleat_result grow(pleat__heap *heap, uint8_t zone, uint32_t chunks, pool_call call,
                         uint32_t *made)
{
    growing to = {.heap = heap, .zone = zone};
    pleat_result result = call(heap->pool, chunks, grown, &to);
    *made = to.made;
    /* Others allocated and freed meanwhile. */
    return result == PLEAT_OK ? pleat__heap_sync(heap) : result;
}

pleat_result pleat__heap_make(pleat__heap *heap, uint8_t zone, uint32_t chunks)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t made;
    uint64_t wanted = (pool->held >> pool->occupancy.shift) + chunks;
    if (pleat__space_room(pool->space) < wanted * pool->page_bytes ||
        pleat__space_left(pool->space) < chunks * pool->page_bytes)
        return pleat__fail(PLEAT_E_BUDGET, "no room for %u chunks beside a plan", chunks);
    return grow(heap, zone, chunks, pleat__chunk_pool_make, &made);
}

/* So many whole chunks of one of the smallest runs that have them; none where no run does. Of runs
 * that are large enough for them only where they begin at a chunk, PLEAT__RUN_LOOKS are looked at
 * before one that has them wherever it begins. Where there is none of these all are: no more than
 * the zone has chunks, before memory is made. */
static pleat__chunk_run find_whole(const pleat__heap *heap, uint8_t zone, uint32_t wanted)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    const pleat__free_runs *runs = &heap->zones[zone];
    pleat__hole sure = pleat__free_runs_best(runs, (wanted + 1) * occupancy->full - 1);
    pleat__hole hole = pleat__free_runs_best(runs, wanted * occupancy->full);
    for (uint32_t looks = 0;
         hole.run.count != 0 && (looks < PLEAT__RUN_LOOKS || sure.run.count == 0);
         looks++, hole = pleat__free_runs_larger(runs, hole)) {
        pleat__chunk_run whole = pleat__whole_chunks(occupancy, hole.run);
        if (whole.end - whole.first >= wanted)
            return whole;
    }
    return pleat__whole_chunks(occupancy, sure.run);
}

/* The whole chunks of the largest run, or of one of PLEAT__RUN_LOOKS that have as many granules but
 * for a chunk; more are looked at where these have none. */
static pleat__chunk_run find_largest(const pleat__heap *heap, uint8_t zone)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    const pleat__free_runs *runs = &heap->zones[zone];
    pleat__chunk_run best = {0, 0};
    pleat__hole hole = pleat__free_runs_largest(runs);
    for (uint32_t looks = 0; hole.run.count >> occupancy->shift > best.end - best.first &&
                             (looks < PLEAT__RUN_LOOKS || best.end == best.first);
         looks++, hole = pleat__free_runs_smaller(runs, hole)) {
        pleat__chunk_run whole = pleat__whole_chunks(occupancy, hole.run);
        if (whole.end - whole.first > best.end - best.first)
            best = whole;
    }
    return best;
}

/* Which of a zone's whole chunks go over next where `wanted` are: those of the smallest run that
 * holds as many, else of the largest, since each run is one more piece of a view. (A job whose
 * second iteration makes 4,751 calls so made 5,656 where they came from the smallest first.) */
static pleat__chunk_run next_of(const pleat__heap *heap, uint8_t from, uint32_t wanted)
{
    pleat__chunk_run run = find_whole(heap, from, wanted);
    return run.end > run.first ? run : find_largest(heap, from);
}

/* How many of them: whole handles as far as they are there, since a view shows nothing less. */
static uint32_t part_of(const pleat__chunk_pool *pool, pleat__chunk_run run, uint32_t wanted)
{
    if (run.end - run.first <= wanted)
        return run.end - run.first;
    uint32_t end = run.first + wanted, behind = pool->span[end - 1].behind;
    return (behind <= run.end ? behind : end) - run.first;
}

/* Whole free chunks of one zone go over into another until *got is `chunks`, or none are left. A
 * stream that captures a graph without the runtime's knowledge keeps what it has. */
static pleat_result steal_from(pleat__heap *heap, uint8_t from, uint8_t zone, uint32_t chunks,
                               uint32_t *got)
{
    uint32_t shift = heap->pool->occupancy.shift;
    pleat__free_runs *source = &heap->zones[from];
    for (bool ordered = false; *got < chunks; ordered = true) {
        pleat__chunk_run run = next_of(heap, from, chunks - *got);
        uint32_t count = part_of(heap->pool, run, chunks - *got);
        if (count == 0)
            break;
        if (!ordered) {
            pleat_result result =
                pleat__streams_order(heap, pleat__zone_stream(from), pleat__zone_stream(zone));
            if (result != PLEAT_OK)
                return result == PLEAT_E_STATE ? PLEAT_OK : result;
        }
        pleat__run part = {run.first << shift, count << shift};
        PLEAT_TRY(pleat__free_runs_reserve(source, 2));
        PLEAT_TRY(pleat__free_runs_reserve(&heap->zones[zone], 2));
        pleat__free_runs_carve(source, part);
        memset(heap->zone_of + run.first, zone, count);
        PLEAT_TRY(pleat__zone_add(heap, zone, part));
        *got += count;
    }
    return PLEAT_OK;
}

/* Whole free chunks of other streams' zones into `zone`, until it has got `chunks`. */
static pleat_result steal_from_others(pleat__heap *heap, uint8_t zone, uint32_t chunks,
                                      uint32_t *got)
{
    for (uint16_t s = 0; s < heap->stream_count && *got < chunks; s++)
        if (s != pleat__zone_stream(zone))
            PLEAT_TRY(steal_from(heap, pleat__zone_of(s, false), zone, chunks, got));
    return PLEAT_OK;
}

/* Whether a stream has in one run what is worth a wait: a run that holds as many whole chunks
 * wherever it begins. */
static bool is_worth_a_wait(const pleat__heap *heap, uint16_t stream)
{
    uint32_t granules = (PLEAT__WORTH_A_WAIT + 1) * heap->pool->occupancy.full;
    return pleat__free_runs_best(&heap->zones[pleat__zone_of(stream, false)], granules).run.count !=
           0;
}

/* Instead of new memory: where as much is wanted as is worth a wait, all that other streams have,
 * with what they freed and waits for others; where less is, that much of one that has it in one run
 * (D275 in docs/decisions.md). Not where that has cost too much (D278, D502). Whatever fails: new
 * memory does as well. */
static void take_over(pleat__heap *heap, uint8_t zone, uint32_t chunks, uint32_t *got)
{
    bool is_much = chunks >= PLEAT__WORTH_A_WAIT;
    uint32_t wanted = is_much ? chunks : PLEAT__WORTH_A_WAIT;
    uint16_t stream = pleat__zone_stream(zone), count = (uint16_t)heap->stream_count;
    if (count > PLEAT__OVERFLOW || heap->keeps_apart)
        return;
    for (uint16_t s = 0; s < count && is_much; s++)
        if (s != stream && pleat__heap_helps(heap, stream, s))
            (void)pleat__waiting_order(heap->waiting, s, wanted << heap->pool->occupancy.shift);
    bool goes_on = pleat__heap_sync(heap) == PLEAT_OK;
    for (uint16_t s = 0; s < count && goes_on && *got < chunks; s++)
        if (s != stream && pleat__heap_helps(heap, stream, s) &&
            (is_much || is_worth_a_wait(heap, s)))
            goes_on = steal_from(heap, pleat__zone_of(s, false), zone, wanted, got) == PLEAT_OK;
}

pleat_result pleat__heap_wake(pleat__heap *heap, uint8_t zone, uint32_t granules, bool *woken)
{
    uint32_t made, chunks = (uint32_t)pleat__ceil_div(granules, heap->pool->occupancy.full);
    *woken = false;
    if (heap->waking_marks == 0 || heap->pool->resting_count == 0)
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    PLEAT_TRY(grow(heap, zone, chunks, pleat__rest_wake_together, &made));
    *woken = made > 0;
    return PLEAT_OK;
}

/* Whole free chunks of other streams' zones. Memory is short where it is asked for; each run that
 * is looked at has a chunk's granules. */
static uint64_t others_have(const pleat__heap *heap, uint8_t zone)
{
    uint64_t chunks = 0;
    for (uint16_t s = 0; s < heap->stream_count; s++) {
        const pleat__free_runs *runs = &heap->zones[pleat__zone_of(s, false)];
        pleat__hole hole = pleat__free_runs_largest(runs);
        for (; s != pleat__zone_stream(zone) && hole.run.count >= heap->pool->occupancy.full;
             hole = pleat__free_runs_smaller(runs, hole)) {
            pleat__chunk_run whole = pleat__whole_chunks(&heap->pool->occupancy, hole.run);
            chunks += whole.end - whole.first;
        }
    }
    return chunks;
}

/* What cannot be had in full is not begun: a refused request takes nothing. */
static pleat_result check_supply(const pleat__heap *heap, uint8_t zone, uint32_t chunks)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint64_t left = pleat__space_left(pool->space) / pool->page_bytes;
    if (left >= chunks || left + others_have(heap, zone) >= chunks)
        return PLEAT_OK;
    bool by_budget = pleat__space_room(pool->space) / pool->page_bytes < chunks;
    return by_budget ? pleat__fail(PLEAT_E_BUDGET, "no room for %u chunks", chunks)
                     : pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                                   "%u more chunks of %llu bytes are more than the device has",
                                   chunks, (unsigned long long)pool->page_bytes);
}

pleat_result pleat__heap_supply(pleat__heap *heap, uint8_t zone, uint32_t chunks,
                                pleat__supplied *supplied)
{
    uint32_t got = 0, made;
    take_over(heap, zone, chunks, &got);
    supplied->shared += got;
    if (got >= chunks)
        return PLEAT_OK;
    PLEAT_TRY(pleat__gate_turn(heap->pool->gate));
    PLEAT_TRY(check_supply(heap, zone, chunks - got));
    pleat_result result = grow(heap, zone, chunks - got, pleat__chunk_pool_grow, &made);
    if (!pleat__is_shortage(result))
        return result;
    uint32_t had = got += made;
    /* The attempt may have left the lock. */
    PLEAT_TRY(pleat__heap_sync(heap));
    PLEAT_TRY(steal_from_others(heap, zone, chunks, &got));
    supplied->refused += got - had;
    if (got >= chunks || got == had)
        return got >= chunks ? PLEAT_OK : result;
    return grow(heap, zone, chunks - got, pleat__chunk_pool_grow, &made);
}

bool pleat__heap_order(pleat__heap *heap, uint8_t zone, uint32_t granules)
{
    return pleat__waiting_order(heap->waiting, pleat__zone_stream(zone), granules) &&
           pleat__heap_sync(heap) == PLEAT_OK;
}

/* A whole free chunk from one of the smallest runs that have one. A run of count 0 when there is
 * none. */
static pleat__run find_chunk(const pleat__heap *heap, uint8_t zone)
{
    const pleat__occupancy *occupancy = &heap->pool->occupancy;
    pleat__chunk_run whole = find_whole(heap, zone, 1);
    return (pleat__run){whole.first << occupancy->shift,
                        whole.end > whole.first ? occupancy->full : 0};
}

pleat_result pleat__heap_lend_chunk(pleat__heap *heap, uint8_t small, pleat__run chunk)
{
    pleat__free_runs *large = &heap->zones[pleat__zone_large(small)];
    PLEAT_TRY(pleat__free_runs_reserve(large, 2));
    PLEAT_TRY(pleat__free_runs_reserve(&heap->zones[small], 2));
    pleat__free_runs_carve(large, chunk);
    heap->zone_of[pleat__chunk_of(heap->pool, chunk.begin)] = small;
    return pleat__zone_add(heap, small, chunk);
}

pleat_result pleat__heap_refill(pleat__heap *heap, uint8_t small)
{
    uint8_t large = pleat__zone_large(small);
    pleat__run whole = find_chunk(heap, large);
    if (whole.count == 0 && pleat__heap_order(heap, large, heap->pool->occupancy.full))
        whole = find_chunk(heap, large);
    if (whole.count == 0) {
        pleat__supplied supplied = {0};
        PLEAT_TRY(pleat__heap_supply(heap, large, 1, &supplied));
        whole = find_chunk(heap, large);
        PLEAT_CHECK(whole.count != 0);
    }
    return pleat__heap_lend_chunk(heap, small, whole);
}

uint64_t pleat__streams_kept(const pleat__heap *heap, const pleat__fences *fences)
{
    uint64_t streams = 0;
    for (uint32_t i = 0; i < heap->stream_count && i < PLEAT__OVERFLOW; i++)
        streams |= (uint64_t)pleat__fences_keep(fences, heap->streams[i]) << i;
    return streams;
}

bool pleat__heap_is_idle(const pleat__heap *heap, uint32_t first, uint64_t kept)
{
    const pleat__chunk_pool *pool = heap->pool;
    const pleat__chunk *handle = pool->chunks[first];
    if (handle == NULL || handle->rests)
        return false;
    for (uint32_t c = first; c < first + handle->pages; c++)
        if (pool->occupancy.used[c] != 0 || (kept >> pleat__zone_stream(heap->zone_of[c]) & 1) != 0)
            return false;
    return true;
}

/* Chunks of idle handles that no view or fold maps beside their homes, the highest first, into
 * `numbers`, so many of the device's memory or all; how many. */
static uint32_t list_idle(const pleat__heap *heap, uint32_t chunks, uint64_t kept,
                          uint32_t *numbers)
{
    const pleat__chunk_pool *pool = heap->pool;
    uint32_t count = 0, found = 0;
    for (uint32_t c = pool->count, first; c > 0 && found < chunks; c = first) {
        first = pleat__first_of(pool, c - 1);
        bool idle = pleat__heap_is_idle(heap, first, kept) &&
                    pleat__space_maps(pool->space, pool->chunks[first]) <= 1;
        for (uint32_t k = c; idle && k > first; k--)
            numbers[count++] = k - 1;
        found += idle && !pool->chunks[first]->on_host ? c - first : 0;
    }
    return count;
}

/* With room for the numbers of all chunks. */
static uint32_t shrink(pleat__heap *heap, uint32_t chunks, uint32_t *numbers)
{
    pleat__chunk_pool *pool = heap->pool;
    pleat__fences fences;
    if (!pleat__gate_fence(pool->gate, &fences))
        return 0;
    uint32_t count = list_idle(heap, chunks, pleat__streams_kept(heap, &fences), numbers);
    if (count == 0) {
        pleat__gate_unfence(pool->gate, &fences);
        return 0;
    }
    pleat__heap_forget(heap);
    count = pleat__chunk_pool_shrink(pool, numbers, count, &fences);
    pleat__heap_forget(heap);
    return count;
}

uint32_t pleat__heap_shrink(pleat__heap *heap, uint32_t chunks)
{
    uint32_t count = 0;
    uint32_t *numbers = pleat__arena_alloc(heap->arena, heap->pool->count * sizeof *numbers);
    if (numbers != NULL)
        count = shrink(heap, chunks, numbers);
    pleat__arena_free(heap->arena, numbers);
    return count;
}
