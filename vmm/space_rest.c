/*
 * space_rest.c: chunks that rest: their places in the window stay theirs, their memory goes back to
 * the device, and comes back as other memory at the same places.
 *
 * Where a chunk is mapped once, its place is known; else the places are found by a walk over the
 * table of pages, some milliseconds for a window of 1 TiB. Neighbouring places go by one verb,
 * whole chunks each, up to a part at a time: what the caller does with one part (copying, say) goes
 * on while the driver works on the next.
 */
#include "space_internal.h"

#include <internal/check.h>
#include <internal/error.h>
#include <stdlib.h>

#define MENDS_MOST 3 /* before what was unmapped is given up for lost (D481) */

/* Neighbouring pages over chunks that move. */
typedef struct run {
    uint64_t page, pages;
} run;

typedef struct runs {
    run *all;
    size_t count, capacity;
    uint64_t pages_most; /* of a run of several chunks */
} runs;

static void set_moving(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                       bool moving)
{
    pthread_mutex_lock(&space->lock);
    for (uint64_t c = 0; c < count; c++)
        chunks[c]->moving = moving;
    pthread_mutex_unlock(&space->lock);
}

static bool moves(const pleat__space *space, uint64_t page)
{
    const pleat__chunk *chunk = pleat__space_page_chunk(space, page);
    return chunk != NULL && chunk->moving && !pleat__bit(space->stuck, page);
}

/* Places come in their order. */
static pleat_result add_place(const pleat__space *space, runs *found, uint64_t page, uint64_t pages)
{
    run *last = found->count > 0 ? &found->all[found->count - 1] : NULL;
    if (last != NULL && last->page + last->pages == page &&
        last->pages + pages <= found->pages_most) {
        last->pages += pages;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(space->arena, &found->all, &found->capacity, found->count,
                                sizeof *found->all));
    found->all[found->count++] = (run){page, pages};
    return PLEAT_OK;
}

/* Under the lock, by a walk. */
static pleat_result walk(const pleat__space *space, runs *found)
{
    for (uint64_t page = 0, pages; page < space->window.top; page += pages) {
        pages = 1;
        if (!moves(space, page))
            continue;
        pages = pleat__space_page_chunk(space, page)->pages;
        PLEAT_TRY(add_place(space, found, page, pages));
    }
    return PLEAT_OK;
}

static int compare_runs(const void *left, const void *right)
{
    const run *a = left, *b = right;
    return a->page < b->page ? -1 : a->page > b->page;
}

/* Under the lock: those of chunks that have one place each, in its order. */
static pleat_result sort_known(const pleat__space *space, pleat__chunk *const *chunks,
                               uint64_t count, runs *found)
{
    runs places = {.pages_most = 0};
    pleat_result result = PLEAT_OK;
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        if (moves(space, chunks[c]->place))
            result = add_place(space, &places, chunks[c]->place, chunks[c]->pages);
    if (result == PLEAT_OK && places.count > 1)
        qsort(places.all, places.count, sizeof *places.all, compare_runs);
    for (size_t p = 0; p < places.count && result == PLEAT_OK; p++)
        result = add_place(space, found, places.all[p].page, places.all[p].pages);
    pleat__arena_free(space->arena, places.all);
    return result;
}

static bool are_known(pleat__chunk *const *chunks, uint64_t count)
{
    uint64_t c = 0;
    while (c < count && chunks[c]->maps == 1 && chunks[c]->place != PLEAT__NO_PLACE)
        c++;
    return c == count;
}

/* All places of the chunks, in runs of at most `part_bytes` or a chunk. */
static pleat_result find_places(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                                uint64_t part_bytes, runs *found)
{
    *found = (runs){.pages_most = part_bytes / space->page_bytes};
    set_moving(space, chunks, count, true);
    pthread_mutex_lock(&space->lock);
    pleat_result result =
        are_known(chunks, count) ? sort_known(space, chunks, count, found) : walk(space, found);
    pthread_mutex_unlock(&space->lock);
    return result;
}

static uint64_t part_bytes(const pleat__space_parts *parts)
{
    return parts != NULL ? parts->bytes : UINT64_MAX;
}

static pleat_result reach(const pleat__space *space, const pleat__space_parts *parts, run part)
{
    return parts == NULL
               ? PLEAT_OK
               : parts->reach(parts->context, pleat__space_address(space, part.page + part.pages));
}

static pleat_result unmap_run(pleat__space *space, run part)
{
    return PLEAT__VERB(space, unmap, pleat__space_address(space, part.page),
                       part.pages * space->page_bytes);
}

static pleat_result access_run(pleat__space *space, run part)
{
    return PLEAT__VERB(space, set_access, pleat__space_address(space, part.page),
                       part.pages * space->page_bytes, space->devices, space->device_count);
}

/* The places are lost, and their chunks with them. */
static void tear(pleat__space *space, run part)
{
    for (uint64_t p = part.page; p < part.page + part.pages;) {
        pleat__chunk *chunk = pleat__space_page_chunk(space, p);
        chunk->torn = true;
        p += chunk->pages;
    }
    pleat__space_end_maps(space, part.page, part.pages, false);
}

/* Unmaps a run, each place by itself where that fails: of one that is gone by then a strict backend
 * says PLEAT_E_INVALID (heal in space.c). false: what is there is not known. */
static bool clear_run(pleat__space *space, run part)
{
    bool gone = unmap_run(space, part) == PLEAT_OK;
    uint64_t end = part.page + part.pages;
    for (run place = {part.page, 0}; !gone && place.page < end; place.page += place.pages) {
        place.pages = pleat__space_page_chunk(space, place.page)->pages;
        pleat_result result = unmap_run(space, place);
        if (result != PLEAT_OK && result != PLEAT_E_INVALID)
            return false;
    }
    return true;
}

/* Maps what was unmapped; where that fails nothing of the run is mapped, or its chunks are torn. */
static pleat_result map_run(pleat__space *space, run part)
{
    pleat_result result = PLEAT_OK;
    uint64_t p = part.page;
    while (p < part.page + part.pages && result == PLEAT_OK) {
        const pleat__chunk *chunk = pleat__space_page_chunk(space, p);
        result = PLEAT__VERB(space, map, pleat__space_address(space, p),
                             chunk->pages * space->page_bytes, chunk->handle);
        p += result == PLEAT_OK ? chunk->pages : 0;
    }
    if (result == PLEAT_OK)
        result = access_run(space, part);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    if (p > part.page && !clear_run(space, (run){part.page, p - part.page}))
        tear(space, part);
    return pleat__fail_again(&why);
}

/* ---- to rest ---- */

/* What was unmapped, or may be, is there again, or torn: not by one verb that fails on the way, as
 * something may live there. (With the places held to write no other thread sets or clears a bit of
 * `stuck`.) */
static void mend(pleat__space *space, run part)
{
    for (int tries = 0; tries < MENDS_MOST && !pleat__bit(space->stuck, part.page); tries++)
        if (access_run(space, part) == PLEAT_OK || map_run(space, part) == PLEAT_OK)
            return;
    if (!pleat__bit(space->stuck, part.page))
        tear(space, part);
}

/* So many bytes more, or less, of the device or of the host: a difference, which wraps around.
 * Under the lock, with what says that a chunk has them. */
static void count_bytes(pleat__space *space, uint64_t more, bool on_host)
{
    if (on_host)
        space->host += more;
    else
        pleat__space_count(space, more);
}

/* Under the lock. */
static void keep_spare(pleat__chunk *chunk, pleat_handle handle, bool on_host)
{
    chunk->spare = handle;
    chunk->spare_on_host = on_host;
}

/* With the places held: the memory goes, or waits for the next wake where the chunk is prepared and
 * has no other for that; where a quarantined place may hold it, or the driver does not take it, it
 * stays the chunk's. */
static void release(pleat__space *space, pleat__chunk *chunk)
{
    uint64_t bytes = chunk->pages * space->page_bytes;
    pthread_mutex_lock(&space->lock);
    bool held = chunk->stuck != 0;
    bool waits = chunk->prepared && chunk->spare == 0;
    pthread_mutex_unlock(&space->lock);
    if (held || (!waits && PLEAT__VERB(space, release, chunk->handle) != PLEAT_OK))
        return;
    bool on_host = chunk->on_host;
    pthread_mutex_lock(&space->lock);
    if (waits)
        keep_spare(chunk, chunk->handle, on_host);
    else
        count_bytes(space, -bytes, on_host);
    chunk->handle = 0;
    chunk->on_host = false;
    pthread_mutex_unlock(&space->lock);
    if (!waits && !on_host)
        pleat__space_unclaim(space, bytes);
}

/* What is torn at one place is unmapped at the others too, or lost there as well: it rests. What
 * the caller does with the runs from `reached` on is waited for first. */
static void end_torn(pleat__space *space, const runs *found, size_t reached,
                     const pleat__space_parts *parts)
{
    for (size_t r = 0; r < found->count; r++) {
        uint64_t end = found->all[r].page + found->all[r].pages;
        for (run place = {found->all[r].page, 0}; place.page < end; place.page += place.pages) {
            const pleat__chunk *chunk = pleat__space_page_chunk(space, place.page);
            place.pages = chunk->pages;
            if (!chunk->torn || pleat__bit(space->stuck, place.page))
                continue;
            bool idle = r < reached || reach(space, parts, place) == PLEAT_OK;
            if (!idle || unmap_run(space, place) != PLEAT_OK)
                tear(space, place);
        }
    }
}

static pleat_result unmap_all(pleat__space *space, const runs *found,
                              const pleat__space_parts *parts)
{
    pleat_result result = PLEAT_OK;
    size_t r = 0;
    for (; r < found->count && result == PLEAT_OK; r += result == PLEAT_OK) {
        result = reach(space, parts, found->all[r]);
        if (result == PLEAT_OK)
            result = unmap_run(space, found->all[r]);
    }
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    for (size_t undone = 0; undone <= r; undone++)
        mend(space, found->all[undone]);
    end_torn(space, found, r, parts);
    return pleat__fail_again(&why);
}

static void set_rests(pleat__space *space, pleat__chunk *chunk, bool rests)
{
    pthread_mutex_lock(&space->lock);
    chunk->rests = rests;
    pthread_mutex_unlock(&space->lock);
}

/* With the places held: a mapper whose verb failed may have had a place of one quarantined since
 * the caller looked. */
static pleat_result check_awake(pleat__space *space, pleat__chunk *const *chunks, uint64_t count)
{
    bool stuck = false;
    pthread_mutex_lock(&space->lock);
    for (uint64_t c = 0; c < count; c++) {
        PLEAT_CHECK(!chunks[c]->rests && chunks[c]->handle != 0 && chunks[c]->pooled == 0 &&
                    !chunks[c]->imported);
        stuck |= chunks[c]->stuck != 0;
    }
    pthread_mutex_unlock(&space->lock);
    return !stuck ? PLEAT_OK
                  : pleat__fail(PLEAT_E_DRIVER, "a verb that failed left a chunk's place unknown");
}

pleat_result pleat__space_rest(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                               const pleat__space_parts *parts)
{
    runs found = {0};
    pthread_rwlock_wrlock(&space->places);
    pleat_result result = check_awake(space, chunks, count);
    if (result == PLEAT_OK)
        result = find_places(space, chunks, count, part_bytes(parts), &found);
    if (result == PLEAT_OK)
        result = unmap_all(space, &found, parts);
    set_moving(space, chunks, count, false);
    for (uint64_t c = 0; c < count; c++)
        if (result == PLEAT_OK || chunks[c]->torn)
            set_rests(space, chunks[c], true);
    /* Before others may wake them: they would find the old memory. */
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        release(space, chunks[c]);
    pthread_rwlock_unlock(&space->places);
    pleat__arena_free(space->arena, found.all);
    PLEAT_AUDIT(pleat__space_audit_at_times(space));
    return result;
}

/* ---- awake ---- */

/* What has it counts it. */
static pleat_result make(pleat__space *space, uint64_t bytes, bool on_host, pleat_handle *handle)
{
    return on_host ? PLEAT__VERB(space, create, space->device, bytes, PLEAT_CREATE_HOST, handle)
                   : pleat__space_create_handle(space, bytes, handle);
}

static pleat_result give_spare(pleat__space *space, pleat__chunk *chunk)
{
    uint64_t bytes = chunk->pages * space->page_bytes;
    if (chunk->spare == 0)
        return PLEAT_OK;
    PLEAT_TRY(PLEAT__VERB(space, release, chunk->spare));
    pthread_mutex_lock(&space->lock);
    count_bytes(space, -bytes, chunk->spare_on_host);
    chunk->spare = 0;
    pthread_mutex_unlock(&space->lock);
    if (!chunk->spare_on_host)
        pleat__space_unclaim(space, bytes);
    return PLEAT_OK;
}

void pleat__space_unprepare(pleat__space *space, pleat__chunk *const *chunks, uint64_t count)
{
    for (uint64_t c = 0; c < count; c++) {
        (void)!give_spare(space, chunks[c]);
        chunks[c]->prepared = false;
    }
}

/* One that could not be given back does as well, where it is of the same memory. */
static pleat_result prepare(pleat__space *space, pleat__chunk *chunk, bool on_host)
{
    pleat_handle handle;
    uint64_t bytes = chunk->pages * space->page_bytes;
    chunk->prepared = true;
    if (chunk->spare != 0 && chunk->spare_on_host == on_host)
        return PLEAT_OK;
    PLEAT_TRY(give_spare(space, chunk));
    PLEAT_TRY(make(space, bytes, on_host, &handle));
    pthread_mutex_lock(&space->lock);
    keep_spare(chunk, handle, on_host);
    count_bytes(space, bytes, on_host);
    pthread_mutex_unlock(&space->lock);
    return PLEAT_OK;
}

pleat_result pleat__space_prepare(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                                  bool on_host)
{
    pleat_result result = PLEAT_OK;
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        result = prepare(space, chunks[c], on_host);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    pleat__space_unprepare(space, chunks, count);
    return pleat__fail_again(&why);
}

/* What it was prepared with, or memory of the device. */
static pleat_result create(pleat__space *space, pleat__chunk *chunk)
{
    pleat_handle handle = chunk->spare;
    bool fits = handle != 0 && (chunk->prepared || !chunk->spare_on_host);
    uint64_t bytes = chunk->pages * space->page_bytes;
    if (chunk->handle != 0)
        return PLEAT_OK;
    if (!fits)
        PLEAT_TRY(make(space, bytes, false, &handle));
    pthread_mutex_lock(&space->lock);
    count_bytes(space, fits ? 0 : bytes, false);
    chunk->handle = handle;
    chunk->on_host = fits && chunk->spare_on_host;
    chunk->spare = fits ? 0 : chunk->spare;
    chunk->painted = false;
    pthread_mutex_unlock(&space->lock);
    return PLEAT_OK;
}

/* Memory for the chunks of a run, and their places. */
static pleat_result wake_run(pleat__space *space, run part)
{
    for (uint64_t p = part.page, pages; p < part.page + part.pages; p += pages) {
        pleat__chunk *chunk = pleat__space_page_chunk(space, p);
        PLEAT_TRY(create(space, chunk));
        pages = chunk->pages;
    }
    return map_run(space, part);
}

static pleat_result map_all(pleat__space *space, const runs *found, const pleat__space_parts *parts)
{
    size_t mapped = 0;
    pleat_result result = PLEAT_OK;
    while (mapped < found->count && result == PLEAT_OK) {
        result = wake_run(space, found->all[mapped]);
        if (result == PLEAT_OK)
            result = reach(space, parts, found->all[mapped++]);
    }
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    if (parts != NULL)
        parts->stop(parts->context);
    while (mapped > 0)
        if (!clear_run(space, found->all[--mapped]))
            tear(space, found->all[mapped]);
    return pleat__fail_again(&why);
}

/* With the places held. */
static pleat_result wake(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                         const pleat__space_parts *parts)
{
    runs found = {0};
    pleat_result result = PLEAT_OK;
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        if (chunks[c]->torn)
            result = pleat__fail(PLEAT_E_DRIVER, "a chunk's place was lost by a verb that failed");
    /* What is mapped nowhere by now has memory all the same, and before anything is mapped. */
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        if (chunks[c]->maps == 0)
            result = create(space, chunks[c]);
    if (result == PLEAT_OK)
        result = find_places(space, chunks, count, part_bytes(parts), &found);
    if (result == PLEAT_OK)
        result = map_all(space, &found, parts);
    set_moving(space, chunks, count, false);
    for (uint64_t c = 0; c < count && result == PLEAT_OK; c++)
        set_rests(space, chunks[c], false);
    pleat__arena_free(space->arena, found.all);
    return result;
}

pleat_result pleat__space_wake(pleat__space *space, pleat__chunk *const *chunks, uint64_t count,
                               const pleat__space_parts *parts)
{
    for (uint64_t c = 0; c < count; c++)
        PLEAT_CHECK(chunks[c]->rests);
    pthread_rwlock_wrlock(&space->places);
    pleat_result result = wake(space, chunks, count, parts);
    pleat_error why = pleat__failure(result);
    for (uint64_t c = 0; c < count && result != PLEAT_OK; c++)
        if (chunks[c]->handle != 0)
            release(space, chunks[c]);
    pthread_rwlock_unlock(&space->places);
    PLEAT_AUDIT(pleat__space_audit_at_times(space));
    return pleat__fail_again(&why);
}

/* ---- joined and split ---- */

/* It has places, and no memory. */
static bool is_bare(const pleat__chunk *chunk)
{
    return chunk->rests && !chunk->torn && chunk->handle == 0 && chunk->spare == 0 &&
           chunk->stuck == 0;
}

static bool can_join(const pleat__chunk *chunk)
{
    return is_bare(chunk) && chunk->maps == 1 && chunk->place != PLEAT__NO_PLACE;
}

/* Under the lock. */
static void join(pleat__space *space, pleat__chunk *chunk, pleat__chunk *next)
{
    pleat__space_set_pages(space, next->place, next->pages, chunk, chunk->pages);
    chunk->pages += next->pages;
    next->maps = 0;
    next->list = NULL;
    next->place = PLEAT__NO_PLACE;
    pleat__pool_drop_record(space, next);
}

bool pleat__space_join(pleat__space *space, pleat__chunk *chunk, pleat__chunk *next)
{
    pthread_rwlock_wrlock(&space->places);
    pthread_mutex_lock(&space->lock);
    bool joins = can_join(chunk) && can_join(next) && chunk->list == next->list &&
                 next->place == chunk->place + chunk->pages;
    if (joins)
        join(space, chunk, next);
    pthread_mutex_unlock(&space->lock);
    pthread_rwlock_unlock(&space->places);
    return joins;
}

/* Under the lock: what of the chunk's places lies behind its first `pages` is `part`'s. */
static void split(pleat__space *space, pleat__chunk *chunk, uint32_t pages, pleat__chunk *part)
{
    bool known = chunk->maps == 1 && chunk->place != PLEAT__NO_PLACE;
    uint64_t from = known ? chunk->place : 0;
    uint64_t end = known ? from + 1 : space->window.top;
    for (uint64_t p = from; p < end; p++)
        if (pleat__space_page_chunk(space, p) == chunk) {
            pleat__space_set_pages(space, p + pages, part->pages, part, 0);
            p += chunk->pages - 1;
        }
    part->place = chunk->place == PLEAT__NO_PLACE ? PLEAT__NO_PLACE : chunk->place + pages;
    part->maps = chunk->maps;
    part->list = chunk->list;
    chunk->pages = pages;
}

pleat_result pleat__space_split(pleat__space *space, pleat__chunk *chunk, uint32_t pages,
                                pleat__chunk **rest)
{
    PLEAT_CHECK(pages > 0 && pages < chunk->pages);
    PLEAT_TRY(pleat__space_chunk_promise(space, chunk->pages - pages, rest));
    pthread_rwlock_wrlock(&space->places);
    pthread_mutex_lock(&space->lock);
    bool can = is_bare(chunk);
    if (can)
        split(space, chunk, pages, *rest);
    pthread_mutex_unlock(&space->lock);
    pthread_rwlock_unlock(&space->places);
    if (!can) {
        pleat__space_chunk_put(space, *rest);
        return pleat__fail(PLEAT_E_STATE, "a chunk that has memory cannot be split");
    }
    PLEAT_AUDIT(pleat__space_audit_at_times(space));
    return PLEAT_OK;
}
