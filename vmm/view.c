/*
 * view.c: stitched views and their cache: a hash table over the chunks' ids in order, and a list of
 * idle views by last use. See view.h.
 */
#include "view.h"

#include <internal/check.h>
#include <internal/error.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define BUCKETS 4096 /* a stitching job holds some hundreds of views */

struct pleat__views {
    pleat__space *space;
    pleat__arena *arena;
    pleat_vmm vmm;
    uint64_t idle_limit;
    pthread_mutex_t lock; /* guards all below */
    pleat__view *bucket[BUCKETS];
    pleat__view *oldest, *newest;
    pleat__views_stats stats;
};

static uint64_t hash_of(pleat__chunk *const *chunks, uint64_t count)
{
    uint64_t hash = count;
    for (uint64_t c = 0; c < count; c++) {
        hash = (hash ^ chunks[c]->id) * 0x9e3779b97f4a7c15u;
        hash ^= hash >> 29;
    }
    return hash;
}

/* ---- tables, under the lock ---- */

static void idle_remove(pleat__views *views, pleat__view *view)
{
    *(view->older != NULL ? &view->older->newer : &views->oldest) = view->newer;
    *(view->newer != NULL ? &view->newer->older : &views->newest) = view->older;
    view->older = view->newer = NULL;
    view->idle = false;
    views->stats.idle_views--;
    views->stats.idle_pages -= view->pages;
}

static void idle_add(pleat__views *views, pleat__view *view)
{
    view->older = views->newest;
    view->newer = NULL;
    *(views->newest != NULL ? &views->newest->newer : &views->oldest) = view;
    views->newest = view;
    view->idle = true;
    views->stats.idle_views++;
    views->stats.idle_pages += view->pages;
}

static void table_add(pleat__views *views, pleat__view *view)
{
    pleat__view **bucket = &views->bucket[view->hash % BUCKETS];
    view->next = *bucket;
    *bucket = view;
    views->stats.views++;
    views->stats.pages += view->pages;
}

static void table_remove(pleat__views *views, const pleat__view *view)
{
    pleat__view **link = &views->bucket[view->hash % BUCKETS];
    while (*link != view)
        link = &(*link)->next;
    *link = view->next;
    views->stats.views--;
    views->stats.pages -= view->pages;
}

static pleat__view *find(const pleat__views *views, uint64_t hash, pleat__chunk *const *chunks,
                         uint64_t count)
{
    pleat__view *view = views->bucket[hash % BUCKETS];
    while (view != NULL && (!view->idle || view->hash != hash || view->count != count ||
                            memcmp(view->chunks, chunks, count * sizeof(pleat__chunk *)) != 0))
        view = view->next;
    return view;
}

/* ---- releasing, under no lock ---- */

static void forget_event(const pleat__views *views, pleat__view *view)
{
    if (view->event != 0)
        (void)!views->vmm.ops->event_destroy(views->vmm.self, view->event);
    view->event = 0;
}

/* The view is out of the tables already. An unmap that fails leaves its pages in quarantine. false:
 * the event says nothing about the work, so the view stays mapped, and idle. */
static bool release(pleat__views *views, pleat__view *view)
{
    if (view->event != 0 && views->vmm.ops->event_wait(views->vmm.self, view->event) != PLEAT_OK) {
        pthread_mutex_lock(&views->lock);
        table_add(views, view);
        idle_add(views, view);
        pthread_mutex_unlock(&views->lock);
        return false;
    }
    forget_event(views, view);
    bool unmapped = pleat__space_unmap(views->space, view->page, view->pages) == PLEAT_OK;
    pleat__space_give(views->space, view->page, view->pages);
    pthread_mutex_lock(&views->lock);
    views->stats.released++;
    views->stats.failed_releases += !unmapped;
    pthread_mutex_unlock(&views->lock);
    pleat__arena_free(views->arena, view->chunks);
    pleat__arena_free(views->arena, view);
    return true;
}

static pleat__view *pop_oldest(pleat__views *views, uint64_t keep_pages)
{
    pthread_mutex_lock(&views->lock);
    pleat__view *view = views->stats.idle_pages > keep_pages ? views->oldest : NULL;
    if (view != NULL) {
        idle_remove(views, view);
        table_remove(views, view);
    }
    pthread_mutex_unlock(&views->lock);
    return view;
}

uint64_t pleat__views_trim(pleat__views *views, uint64_t keep_pages)
{
    uint64_t given = 0;
    pleat__view *view;
    while ((view = pop_oldest(views, keep_pages)) != NULL) {
        uint64_t pages = view->pages;
        if (!release(views, view))
            break;
        given += pages;
    }
    return given;
}

static bool uses(const pleat__view *view, const pleat__chunk *chunk)
{
    for (uint64_t c = 0; c < view->count; c++)
        if (view->chunks[c] == chunk)
            return true;
    return false;
}

static pleat__view *pop_using(pleat__views *views, const pleat__chunk *chunk)
{
    pthread_mutex_lock(&views->lock);
    pleat__view *view = views->oldest;
    while (view != NULL && !uses(view, chunk))
        view = view->newer;
    if (view != NULL) {
        idle_remove(views, view);
        table_remove(views, view);
    }
    pthread_mutex_unlock(&views->lock);
    return view;
}

uint64_t pleat__views_release_chunk(pleat__views *views, const pleat__chunk *chunk)
{
    uint64_t released = 0;
    pleat__view *view;
    while ((view = pop_using(views, chunk)) != NULL && release(views, view))
        released++;
    return released;
}

/* ---- getting ---- */

static pleat_result make_record(pleat__views *views, pleat__chunk *const *chunks, uint64_t count,
                                pleat__view **out)
{
    pleat__view *view = pleat__arena_calloc(views->arena, 1, sizeof *view);
    pleat__chunk **copy = pleat__arena_calloc(views->arena, count, sizeof(pleat__chunk *));
    if (view == NULL || copy == NULL) {
        pleat__arena_free(views->arena, copy);
        pleat__arena_free(views->arena, view);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view's record");
    }
    *view = (pleat__view){.count = count, .chunks = copy, .hash = hash_of(chunks, count)};
    for (uint64_t c = 0; c < count; c++) {
        copy[c] = chunks[c];
        view->pages += chunks[c]->pages;
    }
    *out = view;
    return PLEAT_OK;
}

/* Pages, then maps; nothing is left of the first when the second fails. */
static pleat_result stitch(const pleat__views *views, pleat__view *view)
{
    PLEAT_TRY(pleat__space_take(views->space, view->pages, &view->page));
    pleat_result result = pleat__space_map(views->space, view->page, view->chunks, view->count);
    if (result != PLEAT_OK)
        pleat__space_give(views->space, view->page, view->pages);
    return result;
}

/* PLEAT_E_LIMIT is the window's end or the kernel's map areas: idle views hold both. */
static pleat_result stitch_with_room(pleat__views *views, pleat__view *view)
{
    pleat_result result = stitch(views, view);
    while (result == PLEAT_E_LIMIT) {
        pthread_mutex_lock(&views->lock);
        uint64_t idle = views->stats.idle_pages;
        pthread_mutex_unlock(&views->lock);
        if (idle == 0 || pleat__views_trim(views, idle > view->pages ? idle - view->pages : 0) == 0)
            break;
        result = stitch(views, view);
    }
    return result;
}

static pleat__view *take_cached(pleat__views *views, pleat__chunk *const *chunks, uint64_t count)
{
    uint64_t hash = hash_of(chunks, count);
    pthread_mutex_lock(&views->lock);
    pleat__view *view = find(views, hash, chunks, count);
    if (view != NULL) {
        idle_remove(views, view);
        views->stats.hits++;
    }
    pthread_mutex_unlock(&views->lock);
    if (view != NULL)
        forget_event(views, view);
    return view;
}

pleat_result pleat__view_get(pleat__views *views, pleat__chunk *const *chunks, uint64_t count,
                             pleat__view **out)
{
    if (count == 0)
        return pleat__fail(PLEAT_E_INVALID, "a view over no chunk");
    if ((*out = take_cached(views, chunks, count)) != NULL)
        return PLEAT_OK;
    pleat__view *view;
    PLEAT_TRY(make_record(views, chunks, count, &view));
    pleat_result result = stitch_with_room(views, view);
    if (result != PLEAT_OK) {
        pleat__arena_free(views->arena, view->chunks);
        pleat__arena_free(views->arena, view);
        return result;
    }
    pthread_mutex_lock(&views->lock);
    table_add(views, view);
    views->stats.stitched++;
    pthread_mutex_unlock(&views->lock);
    *out = view;
    PLEAT_AUDIT(pleat__views_audit(views));
    return PLEAT_OK;
}

void pleat__view_put(pleat__views *views, pleat__view *view, pleat_event event)
{
    pthread_mutex_lock(&views->lock);
    PLEAT_CHECK(!view->idle);
    view->event = event;
    idle_add(views, view);
    pthread_mutex_unlock(&views->lock);
    if (views->idle_limit != 0)
        pleat__views_trim(views, views->idle_limit);
    PLEAT_AUDIT(pleat__views_audit(views));
}

const pleat__view *pleat__view_idle(pleat__views *views, uint64_t pages, const pleat__view *after)
{
    pthread_mutex_lock(&views->lock);
    const pleat__view *view = after == NULL ? views->newest : after->older;
    while (view != NULL && view->pages != pages)
        view = view->older;
    pthread_mutex_unlock(&views->lock);
    return view;
}

/* ---- life ---- */

pleat_result pleat__views_create(pleat__space *space, pleat__arena *arena, uint64_t idle_pages,
                                 pleat__views **out)
{
    pleat__views *views = pleat__arena_calloc(arena, 1, sizeof *views);
    if (views == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a cache of views");
    views->space = space;
    views->arena = arena;
    views->vmm = pleat__space_vmm(space);
    views->idle_limit = idle_pages;
    pthread_mutex_init(&views->lock, NULL);
    *out = views;
    return PLEAT_OK;
}

void pleat__views_destroy(pleat__views *views)
{
    if (views == NULL)
        return;
    for (size_t b = 0; b < BUCKETS; b++)
        while (views->bucket[b] != NULL) {
            pleat__view *view = views->bucket[b];
            forget_event(views, view); /* the caller knows that no work is left */
            if (view->idle)
                idle_remove(views, view);
            table_remove(views, view);
            release(views, view);
        }
    pthread_mutex_destroy(&views->lock);
    pleat__arena_free(views->arena, views);
}

pleat__views_stats pleat__views_stats_of(pleat__views *views)
{
    pthread_mutex_lock(&views->lock);
    pleat__views_stats stats = views->stats;
    pthread_mutex_unlock(&views->lock);
    return stats;
}

/* The pages of a view hold just its chunks. */
static bool view_holds(const pleat__views *views, const pleat__view *view)
{
    uint64_t page = view->page;
    for (uint64_t c = 0; c < view->count; page += view->chunks[c++]->pages)
        if (pleat__space_chunk_at(views->space, page, NULL) != view->chunks[c])
            return false;
    return page == view->page + view->pages;
}

bool pleat__views_audit(pleat__views *views)
{
    pthread_mutex_lock(&views->lock);
    pleat__views_stats found = {0};
    uint64_t wrong = 0, listed = 0;
    for (size_t b = 0; b < BUCKETS; b++)
        for (const pleat__view *view = views->bucket[b]; view != NULL; view = view->next) {
            found.views++;
            found.pages += view->pages;
            found.idle_views += view->idle;
            found.idle_pages += view->idle ? view->pages : 0;
            wrong += !view_holds(views, view);
        }
    for (const pleat__view *view = views->oldest; view != NULL; view = view->newer)
        listed++;
    const pleat__views_stats *kept = &views->stats;
    bool good = wrong == 0 && found.views == kept->views && found.pages == kept->pages &&
                found.idle_views == kept->idle_views && found.idle_pages == kept->idle_pages &&
                listed == kept->idle_views;
    if (!good)
        fprintf(stderr,
                "pleat: audit: views: kept %llu of %llu pages, %llu idle of %llu; found %llu of "
                "%llu, %llu idle of %llu; listed %llu; %llu over other chunks\n",
                (unsigned long long)kept->views, (unsigned long long)kept->pages,
                (unsigned long long)kept->idle_views, (unsigned long long)kept->idle_pages,
                (unsigned long long)found.views, (unsigned long long)found.pages,
                (unsigned long long)found.idle_views, (unsigned long long)found.idle_pages,
                (unsigned long long)listed, (unsigned long long)wrong);
    pthread_mutex_unlock(&views->lock);
    return good;
}
