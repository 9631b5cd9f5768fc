/*
 * space.c: a device's window: which pages are taken, which chunk lies behind each, and how chunks
 * come there and go. (Chunks themselves are pool.c's, and those that rest are space_rest.c's.)
 *
 * SEQUENCES   map .. map .. set_access is one sequence with one unwinding: what was mapped is
 *             unmapped again. Where that fails too the range is quarantined: its pages stay taken,
 *             its chunks count it as `stuck`, and heal tries it again later.
 * LOCKING     The lock guards the tables, never a verb. A caller owns the pages it took, so no two
 *             threads issue verbs for the same page. `places` keeps whoever maps, unmaps or heals
 *             apart from whoever lays chunks to rest or wakes them, at all their places.
 * EQUATIONS   mapped = pages with a chunk that are not quarantined
 *             alias = mapped - the pages of all chunks that are mapped at least once
 *             reserved = taken - given back while quarantined
 */
#include "space_internal.h"

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/thread.h>
#include <stdio.h>
#include <sys/resource.h>
#include <vmm/table.h>

#define WINDOW_TIMES 8    /* address space costs nothing; a plan's folds need room (D479) */
#define HOST_PAGE    4096 /* bytes, the least that the host's memory comes in (D526) */

void pleat__space_verb_begins(void)
{
    PLEAT__HOT_ASSERT();
    pleat__expect_text();
}

pleat_result pleat__space_counted(pleat__space *space, _Atomic uint64_t *count, const char *verb,
                                  pleat_result result)
{
    atomic_fetch_add_explicit(&space->calls, 1, memory_order_relaxed);
    if (pleat__on_own_thread())
        atomic_fetch_add_explicit(&space->aside, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(result == PLEAT_OK ? count : &space->failed, 1, memory_order_relaxed);
    return pleat__vmm_told(space->vmm, verb, result);
}

static bool in_window(const pleat__space *space, uint64_t page, uint64_t pages)
{
    return pages != 0 && page < space->window.pages && pages <= space->window.pages - page;
}

/* ---- life ---- */

/* It says nothing about the device: no byte of its memory was asked for. */
static pleat_result no_addresses(pleat_result result)
{
    struct rlimit limit;
    pleat_error why = pleat__failure(result);
    bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    return pleat__fail_native(PLEAT_E_NO_MEMORY, why.native, why.native_name,
                              "%s: this process gets no more addresses%s", why.text,
                              limited ? ": raise its limit (ulimit -v)" : "");
}

static pleat_result reserve_window(pleat__space *space, const pleat__space_options *options)
{
    uint64_t bytes = options->window_bytes;
    uint64_t times = bytes == 0 ? WINDOW_TIMES : 1;
    uint64_t unit = bytes == 0 ? space->device_bytes : bytes;
    uint64_t plan_bytes = bytes == 0 ? options->plan_bytes : 0;
    pleat_result result;
    do {
        if (!pleat__mul(unit, times, &space->window_bytes) ||
            !pleat__add(space->window_bytes, plan_bytes, &space->window_bytes) ||
            !pleat__round_up(space->window_bytes, space->page_bytes, &space->window_bytes))
            return pleat__fail(PLEAT_E_INVALID, "a window of %llu bytes and %llu of a plan",
                               (unsigned long long)bytes, (unsigned long long)plan_bytes);
        result = PLEAT__VMM_VERB(space->vmm, reserve, space->device, space->window_bytes, 0,
                                 &space->base);
        times /= 2; /* less address space than wanted still serves */
    } while (result == PLEAT_E_OUT_OF_MEMORY && times > 0);
    return result == PLEAT_E_OUT_OF_MEMORY ? no_addresses(result) : result;
}

static pleat_result make_tables(pleat__space *space)
{
    uint64_t pages = space->window_bytes / space->page_bytes;
    uint64_t words = pleat__ceil_div(pages, 64);
    space->window.pages = pages;
    space->window.taken = pleat__arena_calloc(space->arena, words, sizeof(uint64_t));
    space->stuck = pleat__arena_calloc(space->arena, words, sizeof(uint64_t));
    space->orphans = pleat__arena_calloc(space->arena, words, sizeof(uint64_t));
    space->page = pleat__arena_calloc_sparse(space->arena, pages, sizeof *space->page);
    if (space->window.taken == NULL || space->stuck == NULL || space->orphans == NULL ||
        space->page == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a window of %llu pages",
                           (unsigned long long)pages);
    return PLEAT_OK;
}

static void free_tables(pleat__space *space)
{
    pleat__arena_free(space->arena, space->page);
    pleat__arena_free(space->arena, space->orphans);
    pleat__arena_free(space->arena, space->stuck);
    pleat__arena_free(space->arena, space->window.taken);
    pleat__arena_free(space->arena, space);
}

pleat_result pleat__space_create(pleat_vmm vmm, pleat__arena *arena,
                                 const pleat__space_options *options, pleat__space **out)
{
    pleat_result result;
    pleat__space *space = pleat__arena_calloc(arena, 1, sizeof *space);
    if (space == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a space");
    space->arena = arena;
    space->device = space->devices[0] = options->device;
    space->device_count = 1;
    space->create_flags = options->create_flags;
    uint64_t advised, free_bytes;
    if ((result = pleat__vmm_complete(vmm, arena, &space->vmm)) != PLEAT_OK)
        goto tables;
    if ((result = PLEAT__VMM_VERB(space->vmm, granularity, space->device, &space->page_bytes,
                                  &advised)) != PLEAT_OK ||
        (result = PLEAT__VMM_VERB(space->vmm, memory_info, space->device, &free_bytes,
                                  &space->device_bytes)) != PLEAT_OK ||
        (result = reserve_window(space, options)) != PLEAT_OK)
        goto tables;
    if ((result = make_tables(space)) != PLEAT_OK)
        goto window;
    pthread_rwlock_init(&space->places, NULL);
    pthread_mutex_init(&space->lock, NULL);
    *out = space;
    return PLEAT_OK;
window:
    space->vmm.ops->free_range(space->vmm.self, space->base, space->window_bytes);
tables:
    free_tables(space);
    return pleat__context(result, "device %d", options->device);
}

/* Unmaps one by one what a chunk starts at; a place that the driver has unmapped already, in a verb
 * that failed, refuses, and that is as well. */
static void unmap_everything(pleat__space *space)
{
    for (uint64_t page = 0; page < space->window.top; page++) {
        const pleat__chunk *chunk = atomic_load(&space->page[page].chunk);
        if (chunk != NULL && atomic_load(&space->page[page].index) == 0 &&
            (!chunk->rests || pleat__bit(space->stuck, page)))
            (void)!PLEAT__VERB(space, unmap, pleat__space_address(space, page),
                               chunk->pages * space->page_bytes);
    }
}

void pleat__space_destroy(pleat__space *space)
{
    if (space == NULL)
        return;
    unmap_everything(space);
    pleat__pool_destroy(space);
    pleat__space_count(space, -space->physical);
    space->vmm.ops->free_range(space->vmm.self, space->base, space->window_bytes);
    pthread_mutex_destroy(&space->lock);
    pthread_rwlock_destroy(&space->places);
    free_tables(space);
}

/* ---- what it is, what it has ---- */

uint64_t pleat__space_page_bytes(const pleat__space *space)
{
    return space->page_bytes;
}

pleat_va pleat__space_base(const pleat__space *space)
{
    return space->base;
}

uint64_t pleat__space_pages(const pleat__space *space)
{
    return space->window.pages;
}

uint64_t pleat__space_device_bytes(const pleat__space *space)
{
    return space->device_bytes;
}

pleat_vmm pleat__space_vmm(const pleat__space *space)
{
    return space->vmm;
}

pleat__space_stats pleat__space_stats_of(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    pleat__space_stats stats = {
        .physical_bytes = space->physical,
        .peak_physical_bytes = space->peak,
        .mapped_pages = space->mapped,
        .alias_pages = space->alias,
        .pooled_bytes = space->pooled,
        .host_bytes = space->host,
        .quarantined_pages = space->quarantined,
        .reserved_pages = space->reserved,
    };
    pthread_mutex_unlock(&space->lock);
    stats.creates = atomic_load(&space->create_count);
    stats.maps = atomic_load(&space->map_count);
    stats.set_accesses = atomic_load(&space->set_access_count);
    stats.unmaps = atomic_load(&space->unmap_count);
    stats.releases = atomic_load(&space->release_count);
    stats.failed_verbs = atomic_load(&space->failed);
    stats.driver_calls = atomic_load(&space->calls);
    stats.mapper_calls = atomic_load(&space->aside);
    return stats;
}

void pleat__space_reset_peak(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    space->peak = space->physical;
    pthread_mutex_unlock(&space->lock);
}

void pleat__space_set_budget(pleat__space *space, uint64_t bytes)
{
    atomic_store(&space->budget, bytes);
}

/* ---- pages ---- */

pleat_result pleat__space_take(pleat__space *space, uint64_t pages, uint64_t *page)
{
    pthread_mutex_lock(&space->lock);
    bool found = pages != 0 && pleat__window_find(&space->window, pages, page);
    if (found) {
        pleat__window_take(&space->window, *page, pages);
        space->reserved += pages;
    }
    pthread_mutex_unlock(&space->lock);
    return found ? PLEAT_OK
                 : pleat__fail(PLEAT_E_LIMIT,
                               "the window of %llu pages of addresses has no room for %llu; it is "
                               "smaller where the process may have few (ulimit -v)",
                               (unsigned long long)space->window.pages, (unsigned long long)pages);
}

/* Written as it is, once in each page of host memory: an exchange writes also where it changes
 * nothing, and reads nothing before. */
void pleat__space_expect(pleat__space *space, uint64_t page, uint64_t pages)
{
    uint64_t step = HOST_PAGE / sizeof *space->page;
    for (uint64_t p = page - page % step; p < page + pages && in_window(space, p, 1); p += step) {
        uint32_t index = 0;
        atomic_compare_exchange_strong(&space->page[p].index, &index, index);
    }
}

pleat_result pleat__space_take_at(pleat__space *space, uint64_t page, uint64_t pages)
{
    if (!in_window(space, page, pages))
        return pleat__fail(PLEAT_E_LIMIT, "pages %llu, %llu of them: outside the window",
                           (unsigned long long)page, (unsigned long long)pages);
    pthread_mutex_lock(&space->lock);
    bool is_free = pleat__window_all_free(&space->window, page, pages);
    if (is_free) {
        pleat__window_take(&space->window, page, pages);
        space->reserved += pages;
    }
    pthread_mutex_unlock(&space->lock);
    return is_free ? PLEAT_OK
                   : pleat__fail(PLEAT_E_STATE, "pages %llu, %llu of them: taken",
                                 (unsigned long long)page, (unsigned long long)pages);
}

void pleat__space_give(pleat__space *space, uint64_t page, uint64_t pages)
{
    PLEAT_CHECK(in_window(space, page, pages));
    pthread_mutex_lock(&space->lock);
    uint64_t end = page + pages, next;
    for (uint64_t p = page; p < end; p = next) {
        next = p + 1;
        if (pleat__bit(space->stuck, p)) {
            PLEAT_ASSERT(!pleat__bit(space->orphans, p));
            pleat__bit_set(space->orphans, p, true);
            continue;
        }
        while (next < end && !pleat__bit(space->stuck, next))
            next++;
        for (uint64_t q = p; q < next; q++)
            PLEAT_ASSERT(atomic_load_explicit(&space->page[q].chunk, memory_order_relaxed) == NULL);
        pleat__window_give(&space->window, p, next - p);
    }
    space->reserved -= pages;
    pthread_mutex_unlock(&space->lock);
}

pleat__chunk *pleat__space_chunk_at(const pleat__space *space, uint64_t page,
                                    uint32_t *page_in_chunk)
{
    if (!in_window(space, page, 1))
        return NULL;
    pleat__chunk *chunk = atomic_load_explicit(&space->page[page].chunk, memory_order_acquire);
    if (chunk != NULL && page_in_chunk != NULL)
        *page_in_chunk = atomic_load_explicit(&space->page[page].index, memory_order_relaxed);
    return chunk;
}

bool pleat__space_can_rest(pleat__space *space, const pleat__chunk *chunk)
{
    if (chunk == NULL)
        return false;
    pthread_mutex_lock(&space->lock);
    bool can = !chunk->rests && !chunk->imported && chunk->stuck == 0;
    pthread_mutex_unlock(&space->lock);
    return can;
}

uint32_t pleat__space_maps(pleat__space *space, const pleat__chunk *chunk)
{
    pthread_mutex_lock(&space->lock);
    uint32_t maps = chunk->maps;
    pthread_mutex_unlock(&space->lock);
    return maps;
}

/* A map of a chunk begins or ends to count; under the lock. */
static void count_map(pleat__space *space, uint64_t page, pleat__chunk *chunk)
{
    if (chunk->maps++ > 0)
        space->alias += chunk->pages;
    else
        chunk->place = page;
    space->mapped += chunk->pages;
}

static void count_unmap(pleat__space *space, uint64_t page, pleat__chunk *chunk)
{
    if (chunk->place == page)
        chunk->place = PLEAT__NO_PLACE;
    if (--chunk->maps > 0)
        space->alias -= chunk->pages;
    space->mapped -= chunk->pages;
}

/* The map at `page` is in an unknown state from now on, until set_stuck says otherwise. */
static void set_stuck(pleat__space *space, uint64_t page, pleat__chunk *chunk, bool stuck)
{
    for (uint64_t p = page; p < page + chunk->pages; p++) {
        pleat__bit_set(space->stuck, p, stuck);
        if (!stuck && pleat__bit(space->orphans, p)) {
            pleat__bit_set(space->orphans, p, false);
            pleat__window_give(&space->window, p, 1);
        }
    }
    chunk->stuck += stuck ? 1 : -1u;
    space->quarantined += stuck ? chunk->pages : -(uint64_t)chunk->pages;
}

/* ---- mapping ---- */

/* The pages that `chunks` cover, when they are taken and hold nothing. */
static pleat_result check_map(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                              uint64_t count, uint64_t *pages)
{
    *pages = 0;
    for (uint64_t c = 0; c < count; c++)
        *pages += chunks[c]->pages;
    if (!in_window(space, page, *pages))
        return pleat__fail(PLEAT_E_INVALID, "map at page %llu, %llu of them: outside the window",
                           (unsigned long long)page, (unsigned long long)*pages);
    pthread_mutex_lock(&space->lock);
    bool ready = pleat__window_all_taken(&space->window, page, *pages);
    for (uint64_t p = page; ready && p < page + *pages; p++)
        ready = pleat__space_page_chunk(space, p) == NULL;
    pthread_mutex_unlock(&space->lock);
    return ready
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_STATE, "map at page %llu, %llu of them: not taken, or mapped",
                             (unsigned long long)page, (unsigned long long)*pages);
}

static void quarantine_new(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                           uint64_t count)
{
    pthread_mutex_lock(&space->lock);
    for (uint64_t c = 0; c < count; page += chunks[c++]->pages) {
        pleat__space_set_pages(space, page, chunks[c]->pages, chunks[c], 0);
        set_stuck(space, page, chunks[c], true);
    }
    pthread_mutex_unlock(&space->lock);
}

/* Pages from the beginning of `chunks` that rest as the first one does, or do not; of how many
 * chunks. */
static uint64_t map_alike(pleat__chunk *const *chunks, uint64_t count, uint64_t *pages)
{
    uint64_t alike = 0;
    for (*pages = 0; alike < count && chunks[alike]->rests == chunks[0]->rests; alike++)
        *pages += chunks[alike]->pages;
    return alike;
}

/* Takes back the first `count` maps of a sequence that failed with `result`; the text is kept. */
static pleat_result unwind_map(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                               uint64_t count, pleat_result result)
{
    pleat_error why = pleat__failure(result);
    for (uint64_t done = 0, pages, alike; done < count; done += alike, page += pages) {
        alike = map_alike(chunks + done, count - done, &pages);
        if (!chunks[done]->rests && PLEAT__VERB(space, unmap, pleat__space_address(space, page),
                                                pages * space->page_bytes) != PLEAT_OK)
            quarantine_new(space, page, chunks + done, alike);
    }
    return pleat__fail_again(&why);
}

/* Chunks that are awake, one behind the other; *done of them are mapped when it fails. */
static pleat_result map_awake(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                              uint64_t count, uint64_t *done)
{
    uint64_t pages = 0;
    for (*done = 0; *done < count; pages += chunks[(*done)++]->pages)
        PLEAT_TRY(PLEAT__VERB(space, map, pleat__space_address(space, page + pages),
                              chunks[*done]->pages * space->page_bytes, chunks[*done]->handle));
    return PLEAT__VERB(space, set_access, pleat__space_address(space, page),
                       pages * space->page_bytes, space->devices, space->device_count);
}

static void note_maps(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                      uint64_t count)
{
    pthread_mutex_lock(&space->lock);
    for (uint64_t c = 0; c < count; page += chunks[c++]->pages) {
        pleat__space_set_pages(space, page, chunks[c]->pages, chunks[c], 0);
        count_map(space, page, chunks[c]);
    }
    pthread_mutex_unlock(&space->lock);
}

/* With the places held, so that nothing is laid to rest or woken meanwhile. */
static pleat_result map_all(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                            uint64_t count)
{
    uint64_t all, at = page;
    pleat_result result = check_map(space, page, chunks, count, &all);
    if (result != PLEAT_OK)
        return result;
    for (uint64_t c = 0, pages, alike, done; c < count; c += alike, at += pages) {
        alike = map_alike(chunks + c, count - c, &pages);
        if (chunks[c]->rests)
            continue;
        result = map_awake(space, at, chunks + c, alike, &done);
        if (result != PLEAT_OK)
            return unwind_map(space, page, chunks, c + done, result);
    }
    note_maps(space, page, chunks, count);
    return PLEAT_OK;
}

pleat_result pleat__space_map(pleat__space *space, uint64_t page, pleat__chunk *const *chunks,
                              uint64_t count)
{
    pthread_rwlock_rdlock(&space->places);
    pleat_result result = map_all(space, page, chunks, count);
    pthread_rwlock_unlock(&space->places);
    PLEAT_AUDIT(pleat__space_audit_at_times(space));
    return result;
}

/* Whether something is mapped at a page, for certain. */
static bool is_mapped(const pleat__space *space, uint64_t page)
{
    const pleat__chunk *chunk = pleat__space_page_chunk(space, page);
    return chunk != NULL && !chunk->rests && !pleat__bit(space->stuck, page);
}

static bool is_own(const pleat__space *space, uint64_t page)
{
    const pleat__chunk *chunk = pleat__space_page_chunk(space, page);
    return chunk != NULL && !chunk->imported;
}

/* The first run of such pages at or behind `page`; 0 pages: none. */
static uint64_t next_run(pleat__space *space, uint64_t *page,
                         bool (*is)(const pleat__space *space, uint64_t page))
{
    uint64_t pages = 0;
    pthread_mutex_lock(&space->lock);
    uint64_t top = space->window.top;
    while (*page < top && !is(space, *page))
        ++*page;
    while (*page + pages < top && is(space, *page + pages))
        pages++;
    pthread_mutex_unlock(&space->lock);
    return pages;
}

uint64_t pleat__space_next_own(pleat__space *space, uint64_t *page)
{
    return next_run(space, page, is_own);
}

static pleat_result open_to(pleat__space *space, uint64_t page, uint64_t pages, int device)
{
    return PLEAT__VERB(space, set_access, pleat__space_address(space, page),
                       pages * space->page_bytes, &device, 1);
}

/* Whether the device can have access, by a page that is mapped for that and goes. */
static pleat_result try_access(pleat__space *space, int device)
{
    pleat__chunk *chunk;
    uint64_t page;
    PLEAT_TRY(pleat__space_chunk_get(space, 1, &chunk));
    pleat_result result = pleat__space_take(space, 1, &page);
    if (result == PLEAT_OK) {
        result = pleat__space_map(space, page, &chunk, 1);
        if (result == PLEAT_OK) {
            result = open_to(space, page, 1, device);
            pleat_error why = pleat__failure(result);
            (void)!pleat__space_unmap(space, page, 1); /* or the page is quarantined */
            result = pleat__fail_again(&why);
        }
        pleat__space_give(space, page, 1);
    }
    pleat__space_chunk_put(space, chunk);
    (void)pleat__space_trim(space, 0);
    return result;
}

pleat_result pleat__space_add_peer(pleat__space *space, int device)
{
    for (int d = 0; d < space->device_count; d++)
        if (space->devices[d] == device)
            return PLEAT_OK;
    if (space->device_count == PLEAT__DEVICES)
        return pleat__fail(PLEAT_E_LIMIT, "%d devices have access already", PLEAT__DEVICES);
    uint64_t page = 0, pages = next_run(space, &page, is_mapped);
    /* A peer that cannot have access would have every later map refused. */
    if (pages == 0)
        PLEAT_TRY(try_access(space, device));
    for (; pages != 0; pages = next_run(space, &page, is_mapped)) {
        PLEAT_TRY(open_to(space, page, pages, device));
        page += pages;
    }
    space->devices[space->device_count++] = device;
    return PLEAT_OK;
}

/* Whether no chunk lies in a range with some of its pages only. */
static bool has_no_parts(const pleat__space *space, uint64_t page, uint64_t pages)
{
    for (uint64_t p = page; p < page + pages;) {
        const pleat__chunk *chunk = pleat__space_page_chunk(space, p);
        if (chunk != NULL &&
            (atomic_load(&space->page[p].index) != 0 || chunk->pages > page + pages - p))
            return false;
        p += chunk != NULL ? chunk->pages : 1;
    }
    return true;
}

void pleat__space_end_maps(pleat__space *space, uint64_t page, uint64_t pages, bool gone)
{
    pthread_mutex_lock(&space->lock);
    for (uint64_t p = page; p < page + pages;) {
        pleat__chunk *chunk = pleat__space_page_chunk(space, p);
        count_unmap(space, p, chunk);
        if (gone)
            pleat__space_set_pages(space, p, chunk->pages, NULL, 0);
        else
            set_stuck(space, p, chunk, true);
        p += chunk->pages;
    }
    pthread_mutex_unlock(&space->lock);
}

/* What there is to unmap at a page. */
typedef enum content {
    LOST,    /* quarantined, or was, until it was healed */
    RESTING, /* unmapped already */
    MAPPED,
} content;

static content content_of(const pleat__space *space, uint64_t page)
{
    const pleat__chunk *chunk = pleat__space_page_chunk(space, page);
    if (chunk == NULL || pleat__bit(space->stuck, page))
        return LOST;
    return chunk->rests ? RESTING : MAPPED;
}

/* Pages from the beginning of a range that hold the same. */
static uint64_t alike(pleat__space *space, uint64_t page, uint64_t pages, content *what)
{
    uint64_t count = 1;
    pthread_mutex_lock(&space->lock);
    *what = content_of(space, page);
    while (count < pages && content_of(space, page + count) == *what)
        count++;
    pthread_mutex_unlock(&space->lock);
    return count;
}

static pleat_result unmap_alike(pleat__space *space, uint64_t page, uint64_t pages, content what)
{
    if (what == LOST)
        return pleat__fail(PLEAT_E_STATE,
                           "unmap of page %llu, %llu of them: a hole, or quarantined",
                           (unsigned long long)page, (unsigned long long)pages);
    pleat_result result = what == RESTING
                              ? PLEAT_OK
                              : PLEAT__VERB(space, unmap, pleat__space_address(space, page),
                                            pages * space->page_bytes);
    pleat__space_end_maps(space, page, pages, result == PLEAT_OK);
    return result;
}

/* The first failure is told; the other parts go all the same. */
static pleat_result unmap_parts(pleat__space *space, uint64_t page, uint64_t pages)
{
    pleat_error why = {.result = PLEAT_OK};
    content what;
    for (uint64_t p = page, count; p < page + pages; p += count) {
        count = alike(space, p, page + pages - p, &what);
        pleat_result part = unmap_alike(space, p, count, what);
        if (why.result == PLEAT_OK && part != PLEAT_OK)
            why = pleat__failure(part);
    }
    return pleat__fail_again(&why);
}

pleat_result pleat__space_unmap(pleat__space *space, uint64_t page, uint64_t pages)
{
    if (!in_window(space, page, pages))
        return pleat__fail(PLEAT_E_INVALID, "unmap of page %llu, %llu of them: outside the window",
                           (unsigned long long)page, (unsigned long long)pages);
    pthread_rwlock_rdlock(&space->places);
    pthread_mutex_lock(&space->lock);
    bool whole = has_no_parts(space, page, pages);
    pthread_mutex_unlock(&space->lock);
    pleat_result result =
        whole ? unmap_parts(space, page, pages)
              : pleat__fail(PLEAT_E_STATE, "unmap of page %llu, %llu of them: a part of a chunk",
                            (unsigned long long)page, (unsigned long long)pages);
    pthread_rwlock_unlock(&space->places);
    PLEAT_AUDIT(pleat__space_audit_at_times(space));
    return result;
}

/* The first quarantined map at or after `page`; NULL when there is none. */
static pleat__chunk *next_stuck(pleat__space *space, uint64_t *page)
{
    pleat__chunk *found = NULL;
    pthread_mutex_lock(&space->lock);
    for (; *page < space->window.top && found == NULL; ++*page)
        if (pleat__bit(space->stuck, *page) && atomic_load(&space->page[*page].index) == 0)
            found = pleat__space_page_chunk(space, *page);
    if (found != NULL)
        --*page;
    pthread_mutex_unlock(&space->lock);
    return found;
}

/* One thread at a time: what another one has just healed may be a caller's again. */
static bool begin_healing(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    bool begins = space->quarantined != 0 && !space->healing;
    space->healing = space->healing || begins;
    pthread_mutex_unlock(&space->lock);
    return begins;
}

/* With the places held: their pages, and what lies behind them, are no other thread's. */
static void heal(pleat__space *space)
{
    pleat__chunk *chunk;
    uint64_t pages;
    for (uint64_t page = 0; (chunk = next_stuck(space, &page)) != NULL; page += pages) {
        pages = chunk->pages;
        pleat_result result =
            PLEAT__VERB(space, unmap, pleat__space_address(space, page), pages * space->page_bytes);
        /* A strict backend refuses to unmap just the place of one map only when no map is there:
         * the verb that failed had done its work. */
        if (result != PLEAT_OK && result != PLEAT_E_INVALID)
            continue;
        pthread_mutex_lock(&space->lock);
        pleat__space_set_pages(space, page, pages, NULL, 0);
        set_stuck(space, page, chunk, false);
        pthread_mutex_unlock(&space->lock);
    }
}

/* While chunks are laid to rest or woken nothing is healed: the thread that does it may be this
 * one, which makes room for what it wakes. */
uint64_t pleat__space_heal(pleat__space *space)
{
    bool healing = begin_healing(space);
    if (healing && pthread_rwlock_tryrdlock(&space->places) == 0) {
        heal(space);
        pthread_rwlock_unlock(&space->places);
    }
    pthread_mutex_lock(&space->lock);
    if (healing)
        space->healing = false;
    uint64_t left = space->quarantined;
    pthread_mutex_unlock(&space->lock);
    PLEAT_AUDIT(!healing || pleat__space_audit_at_times(space));
    return left;
}

/* ---- audit ---- */

/* Pages of the window for each call that may be walked: up to so many it is audited after every
 * call, a window of 70,000 pages after one in 70 (D199). */
#define AUDITED 1024u

typedef struct page_sums {
    uint64_t mapped, quarantined, reserved, wrong;
} page_sums;

/* A page alone: what its bits and its chunk say must agree. */
static void sum_page(const pleat__space *space, uint64_t page, page_sums *sums)
{
    const pleat__chunk *chunk = pleat__space_page_chunk(space, page);
    uint32_t index = atomic_load(&space->page[page].index);
    bool taken = pleat__bit(space->window.taken, page);
    bool stuck = pleat__bit(space->stuck, page), orphan = pleat__bit(space->orphans, page);
    sums->reserved += taken && !orphan;
    sums->quarantined += stuck;
    sums->mapped += chunk != NULL && !stuck;
    sums->wrong += (chunk != NULL && !taken) || (stuck && chunk == NULL) || (orphan && !stuck);
    if (chunk != NULL)
        sums->wrong += index >= chunk->pages || (chunk->handle == 0 && !chunk->rests) ||
                       (index > 0 && pleat__space_page_chunk(space, page - 1) != chunk);
}

/* Pages that the chunks' own counters account for. */
static void sum_chunks(const pleat__space *space, uint64_t *mapped, uint64_t *first,
                       uint64_t *stuck)
{
    *mapped = *first = *stuck = 0;
    for (size_t id = 0; id < space->chunk_count; id++) {
        const pleat__chunk *chunk = pleat__space_chunk_of(space, id);
        if (chunk->handle == 0 && !chunk->rests)
            continue;
        *mapped += (uint64_t)chunk->maps * chunk->pages;
        *first += chunk->maps > 0 ? chunk->pages : 0;
        *stuck += (uint64_t)chunk->stuck * chunk->pages;
    }
}

/* Chunks whose place is not one of theirs. */
static uint64_t misplaced(const pleat__space *space)
{
    uint64_t wrong = 0;
    for (size_t id = 0; id < space->chunk_count; id++) {
        const pleat__chunk *chunk = pleat__space_chunk_of(space, id);
        bool known = chunk->maps > 0 && chunk->place != PLEAT__NO_PLACE;
        wrong += known && (pleat__space_page_chunk(space, chunk->place) != chunk ||
                           atomic_load(&space->page[chunk->place].index) != 0);
    }
    return wrong;
}

static bool agree(const char *what, uint64_t kept, uint64_t found)
{
    if (kept != found)
        fprintf(stderr, "pleat: audit: space: %s: kept %llu, found %llu\n", what,
                (unsigned long long)kept, (unsigned long long)found);
    return kept == found;
}

static bool audit_locked(pleat__space *space)
{
    page_sums sums = {0};
    for (uint64_t page = 0; page < space->window.top; page++)
        sum_page(space, page, &sums);
    uint64_t mapped, first, stuck;
    sum_chunks(space, &mapped, &first, &stuck);
    bool good = agree("pages that contradict themselves", 0, sums.wrong);
    good &= agree("chunks that are not where they should be", 0, misplaced(space));
    good &= agree("mapped pages", space->mapped, sums.mapped);
    good &= agree("mapped pages of chunks", space->mapped, mapped);
    good &= agree("alias pages", space->alias, mapped - first);
    good &= agree("quarantined pages", space->quarantined, sums.quarantined);
    good &= agree("quarantined pages of chunks", space->quarantined, stuck);
    good &= agree("reserved pages", space->reserved, sums.reserved);
    good &= pleat__pool_audit(space);
    return good;
}

bool pleat__space_audit(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    bool good = audit_locked(space);
    pthread_mutex_unlock(&space->lock);
    return good;
}

bool pleat__space_audit_at_times(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    space->unaudited += AUDITED;
    bool due = space->unaudited >= space->window.top;
    bool good = !due || audit_locked(space);
    space->unaudited = due ? 0 : space->unaudited;
    pthread_mutex_unlock(&space->lock);
    return good;
}
