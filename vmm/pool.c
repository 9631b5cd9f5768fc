/*
 * pool.c: a space's chunks: created under the budget, kept when idle, given back oldest first.
 *
 * BUDGET    `claimed` is raised before a chunk is created and lowered after it is released, by
 *           compare and swap, so that no interleaving of threads ever passes the cap:
 *               physical <= claimed <= cap
 * REFUSING  Before a chunk is refused, pooled chunks of other sizes go.
 * RECORDS   A chunk's record outlives its handle and is used again, so a release needs no memory
 *           and ids stay small.
 */
#include "space_internal.h"

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <stdio.h>

#define MOST_TRIES 64 /* where other threads take what was given back (D479) */

/* What a chunk counts for. */
static uint64_t chunk_bytes(const pleat__space *space, const pleat__chunk *chunk)
{
    return chunk->imported || chunk->on_host ? 0 : chunk->pages * space->page_bytes;
}

/* ---- the pool, under the lock ---- */

static void pool_remove(pleat__space *space, pleat__chunk *chunk)
{
    pleat__pool *pool = &space->pool;
    *(chunk->previous != NULL ? &chunk->previous->next : &pool->oldest) = chunk->next;
    *(chunk->next != NULL ? &chunk->next->previous : &pool->newest) = chunk->previous;
    chunk->next = chunk->previous = NULL;
    chunk->pooled = 0;
    space->pooled -= chunk_bytes(space, chunk);
}

static void pool_add(pleat__space *space, pleat__chunk *chunk)
{
    pleat__pool *pool = &space->pool;
    chunk->previous = pool->newest;
    chunk->next = NULL;
    *(pool->newest != NULL ? &pool->newest->next : &pool->oldest) = chunk;
    pool->newest = chunk;
    chunk->pooled = ++space->pool_clock;
    chunk->rests = chunk->torn = false; /* its memory could not be given back, and is there */
    space->pooled += chunk_bytes(space, chunk);
}

/* The newest one of a size: its memory is the likeliest to be warm. */
static pleat__chunk *pool_find(pleat__space *space, uint32_t pages)
{
    pleat__chunk *chunk = space->pool.newest;
    while (chunk != NULL && chunk->pages != pages)
        chunk = chunk->previous;
    return chunk;
}

/* The oldest that can be released: one that a quarantined place may hold would not come free. */
static pleat__chunk *pool_oldest(const pleat__space *space)
{
    pleat__chunk *chunk = space->pool.oldest;
    while (chunk != NULL && chunk->stuck != 0)
        chunk = chunk->next;
    return chunk;
}

/* ---- records, under the lock ---- */

static pleat_result records_make(pleat__space *space)
{
    size_t blocks = space->chunk_count / PLEAT__RECORDS;
    PLEAT_TRY(pleat__arena_grow(space->arena, &space->chunks, &space->block_capacity, blocks,
                                sizeof *space->chunks));
    space->chunks[blocks] =
        pleat__arena_calloc(space->arena, PLEAT__RECORDS, sizeof *space->chunks[blocks]);
    return space->chunks[blocks] != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for records of chunks");
}

static pleat_result record_get(pleat__space *space, pleat__chunk **out)
{
    if (space->records != NULL) {
        *out = space->records;
        space->records = (*out)->next;
        return PLEAT_OK;
    }
    if (space->chunk_count % PLEAT__RECORDS == 0)
        PLEAT_TRY(records_make(space));
    uint32_t id = (uint32_t)space->chunk_count++;
    *out = pleat__space_chunk_of(space, id);
    (*out)->id = id;
    return PLEAT_OK;
}

void pleat__pool_drop_record(pleat__space *space, pleat__chunk *chunk)
{
    /* What it was prepared with, and could not be given back, is its memory: to be released. */
    pleat__chunk **list = chunk->spare != 0 ? &space->unreleased : &space->records;
    chunk->handle = chunk->spare;
    chunk->on_host = chunk->spare != 0 && chunk->spare_on_host;
    chunk->spare = 0;
    chunk->rests = chunk->torn = chunk->imported = false;
    chunk->next = *list;
    *list = chunk;
}

/* ---- the budget ---- */

static uint64_t cap_of(const pleat__space *space)
{
    uint64_t budget = atomic_load(&space->budget);
    return budget == 0 ? UINT64_MAX : budget;
}

uint64_t pleat__space_room(const pleat__space *space)
{
    uint64_t claimed = atomic_load(&space->claimed), cap = cap_of(space);
    return cap > claimed ? cap - claimed : 0;
}

uint64_t pleat__space_left(pleat__space *space)
{
    uint64_t claimed = atomic_load(&space->claimed), cap = cap_of(space);
    pthread_mutex_lock(&space->lock);
    uint64_t pooled = space->pooled;
    pthread_mutex_unlock(&space->lock);
    cap = cap < space->device_bytes ? cap : space->device_bytes;
    uint64_t taken = claimed > pooled ? claimed - pooled : 0;
    return cap > taken ? cap - taken : 0;
}

static bool claim_budget(pleat__space *space, uint64_t bytes)
{
    uint64_t now = atomic_load(&space->claimed), cap, then;
    do {
        cap = cap_of(space);
        if (!pleat__add(now, bytes, &then) || then > cap)
            return false;
    } while (!atomic_compare_exchange_weak(&space->claimed, &now, then));
    return true;
}

/* Before anything is made (W3, R10, R20 in docs/invariants.md). PLEAT_E_BUDGET, with a text where
 * the other tenants are in the way. */
static pleat_result claim(pleat__space *space, uint64_t bytes, bool *told)
{
    *told = false;
    if (!claim_budget(space, bytes))
        return PLEAT_E_BUDGET;
    pleat_result result =
        space->tenant == NULL ? PLEAT_OK : pleat__tenant_claim(space->tenant, bytes);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    atomic_fetch_sub(&space->claimed, bytes);
    *told = true;
    pleat_error why = pleat__failure(result);
    why.result = PLEAT_E_BUDGET;
    return pleat__fail_again(&why);
}

void pleat__space_unclaim(pleat__space *space, uint64_t bytes)
{
    if (space->tenant != NULL)
        pleat__tenant_unclaim(space->tenant, bytes);
    atomic_fetch_sub(&space->claimed, bytes);
}

pleat_result pleat__space_set_tenant(pleat__space *space, pleat__tenant *tenant)
{
    uint64_t claimed = atomic_load(&space->claimed), physical = space->physical;
    if (tenant != NULL && claimed != 0)
        PLEAT_TRY(pleat__tenant_claim(tenant, claimed));
    pleat__space_count(space, -physical);
    space->tenant = tenant;
    pleat__space_count(space, physical);
    return PLEAT_OK;
}

void pleat__space_count(pleat__space *space, uint64_t more)
{
    space->physical += more;
    space->peak = space->physical > space->peak ? space->physical : space->peak;
    if (space->tenant != NULL)
        pleat__tenant_count(space->tenant, more);
}

/* Whether something was given back, so that another try is worth it. */
static bool make_room(pleat__space *space, uint64_t bytes)
{
    pthread_mutex_lock(&space->lock);
    uint64_t pooled = space->pooled;
    pthread_mutex_unlock(&space->lock);
    return pooled > 0 && pleat__space_trim(space, pooled > bytes ? pooled - bytes : 0) > 0;
}

static pleat_result over_budget(const pleat__space *space, uint64_t bytes)
{
    return pleat__fail(
        PLEAT_E_BUDGET, "device %d: %llu bytes more would pass the budget: %llu of %llu are in use",
        space->device, (unsigned long long)bytes, (unsigned long long)atomic_load(&space->claimed),
        (unsigned long long)cap_of(space));
}

/* One attempt. *told: the text says why, which the budget's own refusal leaves to the caller. */
static pleat_result try_create(pleat__space *space, uint64_t bytes, pleat_handle *handle,
                               bool *told)
{
    pleat_result result = claim(space, bytes, told);
    if (result != PLEAT_OK)
        return result;
    *told = true;
    result = PLEAT__VERB(space, create, space->device, bytes, space->create_flags, handle);
    if (result != PLEAT_OK)
        pleat__space_unclaim(space, bytes);
    return result;
}

pleat_result pleat__space_create_handle(pleat__space *space, uint64_t bytes, pleat_handle *handle)
{
    pleat_error refusal;
    bool told = false;
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        pleat_result result = try_create(space, bytes, handle, &told);
        if (!pleat__is_shortage(result))
            return result;
        /* make_room's own failures must not hide the reason. */
        refusal = pleat__failure(result);
        if (!make_room(space, bytes))
            break;
    }
    return told ? pleat__fail_again(&refusal) : over_budget(space, bytes);
}

/* ---- public ---- */

/* A chunk that is known to be new, from a handle or from the reason why there is none. */
static pleat_result finish_chunk(pleat__space *space, pleat__chunk *chunk, pleat_result result,
                                 const pleat__chunk *made, pleat__chunk **out)
{
    pthread_mutex_lock(&space->lock);
    if (result == PLEAT_OK) {
        uint32_t id = chunk->id;
        *chunk = *made;
        chunk->id = id;
        pleat__space_count(space, made->rests ? 0 : chunk_bytes(space, chunk));
        *out = chunk;
    } else {
        pleat__pool_drop_record(space, chunk);
    }
    pthread_mutex_unlock(&space->lock);
    return result;
}

/* Nothing larger than the window could be mapped, and within it sums do not overflow. */
static pleat_result check_pages(const pleat__space *space, uint32_t pages)
{
    if (pages != 0 && pages <= space->window.pages)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INVALID, "a chunk of %u pages; the window has %llu", pages,
                       (unsigned long long)space->window.pages);
}

pleat_result pleat__space_chunk_get(pleat__space *space, uint32_t pages, pleat__chunk **out)
{
    PLEAT_TRY(check_pages(space, pages));
    pthread_mutex_lock(&space->lock);
    pleat__chunk *chunk = pool_find(space, pages);
    pleat_result result = PLEAT_OK;
    bool found = chunk != NULL;
    if (found) {
        pool_remove(space, chunk);
        *out = chunk;
    } else {
        result = record_get(space, &chunk);
    }
    pthread_mutex_unlock(&space->lock);
    if (result != PLEAT_OK || found)
        return result;
    pleat__chunk made = {.pages = pages};
    result = pleat__space_create_handle(space, pages * space->page_bytes, &made.handle);
    return finish_chunk(space, chunk, result, &made, out);
}

static pleat_result record_take(pleat__space *space, pleat__chunk **chunk)
{
    pthread_mutex_lock(&space->lock);
    pleat_result result = record_get(space, chunk);
    pthread_mutex_unlock(&space->lock);
    return result;
}

pleat_result pleat__space_chunk_promise(pleat__space *space, uint32_t pages, pleat__chunk **out)
{
    PLEAT_TRY(check_pages(space, pages));
    pleat__chunk *chunk;
    PLEAT_TRY(record_take(space, &chunk));
    pleat__chunk made = {.pages = pages, .place = PLEAT__NO_PLACE, .rests = true};
    return finish_chunk(space, chunk, PLEAT_OK, &made, out);
}

pleat_result pleat__space_import(pleat__space *space, int fd, uint32_t pages, pleat__chunk **out)
{
    PLEAT_TRY(check_pages(space, pages));
    pleat__chunk *chunk;
    PLEAT_TRY(record_take(space, &chunk));
    pleat__chunk made = {.pages = pages, .imported = true};
    pleat_result result = PLEAT__VERB(space, import_handle, space->device, fd,
                                      pages * space->page_bytes, &made.handle);
    return finish_chunk(space, chunk, result, &made, out);
}

pleat_result pleat__space_export(pleat__space *space, const pleat__chunk *chunk, int *fd)
{
    return PLEAT__VERB(space, export_handle, chunk->handle, fd);
}

/* Under no lock; the chunk is in nobody's hands. false: the release failed, or a quarantined place
 * may still hold the memory; the chunk is kept, to be tried again. */
static bool release_chunk(pleat__space *space, pleat__chunk *chunk, bool was_pooled)
{
    uint64_t bytes = chunk_bytes(space, chunk);
    pthread_mutex_lock(&space->lock);
    bool held = chunk->stuck != 0;
    pthread_mutex_unlock(&space->lock);
    bool gone = !held && PLEAT__VERB(space, release, chunk->handle) == PLEAT_OK;
    pthread_mutex_lock(&space->lock);
    if (gone) {
        space->host -= chunk->on_host ? chunk->pages * space->page_bytes : 0;
        pleat__space_count(space, -bytes);
        pleat__pool_drop_record(space, chunk);
    } else if (was_pooled) {
        pool_add(space, chunk);
    } else {
        chunk->next = space->unreleased;
        space->unreleased = chunk;
    }
    pthread_mutex_unlock(&space->lock);
    if (gone && bytes != 0)
        pleat__space_unclaim(space, bytes);
    return gone;
}

void pleat__space_chunk_put(pleat__space *space, pleat__chunk *chunk)
{
    pthread_mutex_lock(&space->lock);
    PLEAT_CHECK((chunk->handle != 0 || (chunk->rests && chunk->stuck == 0)) && chunk->pooled == 0 &&
                chunk->maps == 0);
    bool imported = chunk->handle != 0 && (chunk->imported || chunk->on_host);
    if (chunk->handle == 0)
        pleat__pool_drop_record(space, chunk);
    else if (!imported)
        pool_add(space, chunk);
    pthread_mutex_unlock(&space->lock);
    if (imported)
        release_chunk(space, chunk, false);
}

/* Tries the failed releases once more, each of them: one that the driver never takes holds no other
 * up. */
static void retry_unreleased(pleat__space *space)
{
    pthread_mutex_lock(&space->lock);
    pleat__chunk *all = space->unreleased;
    space->unreleased = NULL;
    pthread_mutex_unlock(&space->lock);
    for (pleat__chunk *chunk = all, *next; chunk != NULL; chunk = next) {
        next = chunk->next;
        release_chunk(space, chunk, false);
    }
}

/* Takes the oldest chunk that came by `until` out of a pool of more than `keep` bytes; NULL: enough
 * are gone, or there is none. */
static pleat__chunk *pop_oldest(pleat__space *space, uint64_t keep, uint64_t until)
{
    pthread_mutex_lock(&space->lock);
    pleat__chunk *chunk = space->pooled > keep ? pool_oldest(space) : NULL;
    if (chunk != NULL && chunk->pooled > until)
        chunk = NULL;
    if (chunk != NULL)
        pool_remove(space, chunk);
    pthread_mutex_unlock(&space->lock);
    return chunk;
}

uint64_t pleat__space_trim(pleat__space *space, uint64_t keep_bytes)
{
    uint64_t freed = 0;
    pleat__chunk *chunk;
    /* What is quarantined holds chunks back: now is a good time to try it again. */
    (void)pleat__space_heal(space);
    retry_unreleased(space);
    pthread_mutex_lock(&space->lock);
    uint64_t now = space->pool_clock; /* one whose release fails comes back later */
    pthread_mutex_unlock(&space->lock);
    while ((chunk = pop_oldest(space, keep_bytes, now)) != NULL) {
        uint64_t bytes = chunk_bytes(space, chunk);
        freed += release_chunk(space, chunk, true) ? bytes : 0;
    }
    return freed;
}

void pleat__pool_destroy(pleat__space *space)
{
    for (size_t id = 0; id < space->chunk_count; id++) {
        pleat__chunk *chunk = pleat__space_chunk_of(space, id);
        if (chunk->handle != 0)
            (void)!PLEAT__VERB(space, release, chunk->handle);
        if (chunk->spare != 0)
            (void)!PLEAT__VERB(space, release, chunk->spare);
    }
    for (size_t block = 0; block * PLEAT__RECORDS < space->chunk_count; block++)
        pleat__arena_free(space->arena, space->chunks[block]);
    pleat__arena_free(space->arena, space->chunks);
}

bool pleat__pool_audit(const pleat__space *space)
{
    uint64_t physical = 0, pooled = 0, listed = 0, host = 0;
    for (size_t id = 0; id < space->chunk_count; id++) {
        const pleat__chunk *chunk = pleat__space_chunk_of(space, id);
        uint64_t bytes = chunk->pages * space->page_bytes;
        if (chunk->spare != 0)
            *(chunk->spare_on_host ? &host : &physical) += bytes;
        if (chunk->handle == 0)
            continue;
        host += chunk->on_host ? bytes : 0;
        physical += chunk_bytes(space, chunk);
        pooled += chunk->pooled != 0 ? chunk_bytes(space, chunk) : 0;
    }
    for (const pleat__chunk *chunk = space->pool.oldest; chunk != NULL; chunk = chunk->next)
        listed += chunk_bytes(space, chunk);
    if (physical == space->physical && host == space->host && pooled == space->pooled &&
        listed == pooled && physical <= atomic_load(&space->claimed))
        return true;
    fprintf(stderr,
            "pleat: audit: chunks: physical %llu, counted %llu; pooled %llu, counted %llu, listed "
            "%llu; claimed %llu\n",
            (unsigned long long)space->physical, (unsigned long long)physical,
            (unsigned long long)space->pooled, (unsigned long long)pooled,
            (unsigned long long)listed, (unsigned long long)atomic_load(&space->claimed));
    return false;
}
