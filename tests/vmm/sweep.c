/*
 * sweep.c: every sequence of verbs of the layer, with its Nth verb made to fail, for every N until
 * it succeeds: once, with each later one as well, and for ever, and for the verbs whose contract
 * allows it both done and not done. Afterwards the audits hold, and when the fault is over all that
 * the sequence had taken comes back: no handle, map or reservation is left.
 */
#include "../fault.h"
#include "../held.h"
#include "../host.h"

#include "mapping.h"
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#define GRANULE 65536u
enum { KEPT = 6 };

typedef struct world {
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat__space *space;
    pleat__mapper *mapper;
    pleat__chunk *kept[KEPT]; /* mapped from page `at` on; the last one is three pages long */
    uint64_t at;
    int fd; /* somebody else's memory of two pages */
    pleat_handle exported;
    uint64_t hits; /* before a sequence called the fault off */
} world;

static void begin(world *w)
{
    pleat_host_options options = {
        .size = sizeof options, .devices = 2, .device_bytes = 64 * GRANULE, .granularity = GRANULE};
    assert_ok(pleat_vmm_host(&options, &w->host));
    assert_ok(pleat__fault_create(w->host, &w->vmm));
    assert_ok(pleat__arena_create(&w->arena));
    pleat__space_options space = {.create_flags = PLEAT_CREATE_SHAREABLE};
    assert_ok(pleat__space_create(w->vmm, w->arena, &space, &w->space));
    pleat__space_set_budget(w->space, 60 * GRANULE);
    assert_ok(pleat__mapper_create(w->vmm, w->arena, &w->mapper));
    assert_ok(pleat__space_take(w->space, KEPT + 2, &w->at));
    for (uint32_t c = 0; c < KEPT; c++)
        assert_ok(pleat__space_chunk_get(w->space, c + 1 < KEPT ? 1 : 3, &w->kept[c]));
    assert_ok(pleat__space_map(w->space, w->at, w->kept, KEPT));
    assert_ok(
        w->host.ops->create(w->host.self, 0, 2 * GRANULE, PLEAT_CREATE_SHAREABLE, &w->exported));
    assert_ok(w->host.ops->export_handle(w->host.self, w->exported, &w->fd));
}

static void end(world *w)
{
    pleat__mapper_destroy(w->mapper);
    pleat__space_destroy(w->space);
    close(w->fd);
    assert_ok(w->host.ops->release(w->host.self, w->exported));
    assert_nothing_held(&w->host);
    assert_int_equal(pleat__arena_bytes_of(w->arena).allocated, 0);
    pleat__arena_destroy(w->arena);
    pleat_vmm_destroy(&w->vmm);
    pleat_vmm_destroy(&w->host);
}

/* ---- the sequences: each takes things, uses them and gives them back, as a caller does ---- */

/* New chunks under new pages. */
static pleat_result grow(world *w)
{
    enum { COUNT = 4 };
    pleat__chunk *chunks[COUNT];
    uint64_t got = 0, page;
    pleat_result result = pleat__space_take(w->space, COUNT + 1, &page);
    if (result != PLEAT_OK)
        return result;
    for (; got < COUNT; got++)
        if ((result = pleat__space_chunk_get(w->space, got == 2 ? 2 : 1, &chunks[got])) != PLEAT_OK)
            break;
    if (result == PLEAT_OK &&
        (result = pleat__space_map(w->space, page, chunks, got)) == PLEAT_OK) {
        *(uint64_t *)(uintptr_t)(pleat__space_base(w->space) + page * GRANULE) = 1;
        result = pleat__space_unmap(w->space, page, COUNT + 1);
    }
    pleat__space_give(w->space, page, COUNT + 1);
    while (got > 0)
        pleat__space_chunk_put(w->space, chunks[--got]);
    return result;
}

/* A view over chunks in use, again and again. */
static pleat_result stitch(world *w)
{
    pleat__chunk *order[] = {w->kept[3], w->kept[5], w->kept[0], w->kept[1]};
    uint64_t page, pages = order[0]->pages + order[1]->pages + order[2]->pages + order[3]->pages;
    for (int round = 0; round < 3; round++) {
        pleat_result result = pleat__space_take(w->space, pages, &page);
        if (result != PLEAT_OK)
            return result;
        if ((result = pleat__space_map(w->space, page, order, 4)) == PLEAT_OK)
            result = pleat__space_unmap(w->space, page, pages);
        pleat__space_give(w->space, page, pages);
        if (result != PLEAT_OK)
            return result;
    }
    return PLEAT_OK;
}

/* The same chunks at further places. */
static pleat_result alias(world *w)
{
    uint64_t page;
    pleat__chunk *twice[] = {w->kept[0], w->kept[0], w->kept[5], w->kept[2]};
    pleat_result result = pleat__space_take(w->space, 6, &page);
    if (result != PLEAT_OK)
        return result;
    if ((result = pleat__space_map(w->space, page, twice, 4)) == PLEAT_OK)
        result = pleat__space_unmap(w->space, page, 6);
    pleat__space_give(w->space, page, 6);
    return result;
}

/* A part is unmapped, its chunks go back to the device, and come again. */
static pleat_result shrink(world *w)
{
    pleat_result result = pleat__space_unmap(w->space, w->at + 1, 2);
    if (result != PLEAT_OK)
        return result;
    pleat__space_chunk_put(w->space, w->kept[1]);
    pleat__space_chunk_put(w->space, w->kept[2]);
    uint64_t freed = pleat__space_trim(w->space, 0);
    return freed == 2 * GRANULE ? PLEAT_OK : PLEAT_E_DRIVER;
}

/* All of it goes. */
static pleat_result give_back(world *w)
{
    pleat_result result = pleat__space_unmap(w->space, w->at, KEPT + 2);
    if (result != PLEAT_OK)
        return result;
    pleat__space_give(w->space, w->at, KEPT + 2);
    for (int c = 0; c < KEPT; c++)
        pleat__space_chunk_put(w->space, w->kept[c]);
    return pleat__space_trim(w->space, 0) == (KEPT + 2) * GRANULE ? PLEAT_OK : PLEAT_E_DRIVER;
}

/* A peer of a space in which nothing is mapped. */
static pleat_result add_peer(world *w)
{
    pleat_result result = pleat__space_unmap(w->space, w->at, KEPT + 2);
    return result == PLEAT_OK ? pleat__space_add_peer(w->space, 1) : result;
}

/* Another process's memory beside an own chunk, which is exported. */
static pleat_result import(world *w)
{
    pleat__chunk *both[2] = {NULL, w->kept[0]};
    uint64_t page;
    int fd;
    pleat_result result = pleat__space_import(w->space, w->fd, 2, &both[0]);
    if (result != PLEAT_OK)
        return result;
    if ((result = pleat__space_export(w->space, both[0], &fd)) == PLEAT_OK)
        close(fd);
    if (result == PLEAT_OK && (result = pleat__space_take(w->space, 3, &page)) == PLEAT_OK) {
        if ((result = pleat__space_map(w->space, page, both, 2)) == PLEAT_OK)
            result = pleat__space_unmap(w->space, page, 3);
        pleat__space_give(w->space, page, 3);
    }
    pleat__space_chunk_put(w->space, both[0]);
    return result;
}

/* The backend maps a chunk that rests nowhere, its quarantined places aside, and one that is awake
 * wherever it should be. The device has no memory in use that does not count. */
static void expect_places(const world *w, uint64_t view)
{
    uint64_t ignored, page = w->at;
    uint64_t views[KEPT] = {[0] = view, [5] = view + 1};
    for (int c = 0; c < KEPT; page += w->kept[c++]->pages) {
        const pleat__chunk *chunk = w->kept[c];
        pleat_va base = pleat__space_base(w->space);
        uint32_t mapped =
            pleat_host_physical(&w->host, base + page * GRANULE, &ignored) == PLEAT_OK;
        if (views[c] != 0)
            mapped +=
                pleat_host_physical(&w->host, base + views[c] * GRANULE, &ignored) == PLEAT_OK;
        assert_true(chunk->rests ? mapped <= chunk->stuck : mapped >= chunk->maps);
    }
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(&w->host, &held));
    assert_true(held.memory_bytes <=
                pleat__space_stats_of(w->space).physical_bytes + 2 * GRANULE); /* of w->exported */
}

/* All is laid to rest and woken; two chunks have a second place, behind a page that keeps
 * it out of the others' run. */
static pleat_result rest_and_wake(world *w)
{
    pleat__chunk *twice[] = {w->kept[0], w->kept[5]};
    uint64_t page;
    pleat_result result = pleat__space_take(w->space, 5, &page);
    if (result != PLEAT_OK)
        return result;
    if ((result = pleat__space_map(w->space, page + 1, twice, 2)) == PLEAT_OK) {
        result = pleat__space_rest(w->space, w->kept, KEPT, NULL);
        expect_places(w, page + 1);
        if (result == PLEAT_OK)
            result = pleat__space_wake(w->space, w->kept, KEPT, NULL);
        expect_places(w, page + 1);
        pleat_result first = pleat__space_unmap(w->space, page + 1, 1);
        pleat_result second = pleat__space_unmap(w->space, page + 2, 3);
        result = result != PLEAT_OK ? result : first != PLEAT_OK ? first : second;
    }
    pleat__space_give(w->space, page, 5);
    return result;
}

/* Chunks change their memory for the host's and back, one of them at two places. */
static pleat_result move(world *w)
{
    uint64_t page;
    pleat_result result = pleat__space_take(w->space, 1, &page);
    if (result != PLEAT_OK)
        return result;
    result = pleat__space_map(w->space, page, w->kept, 1);
    bool mapped = result == PLEAT_OK;
    for (int to_host = 1; to_host >= 0 && result == PLEAT_OK; to_host--) {
        result = pleat__space_prepare(w->space, w->kept, 2, to_host != 0);
        if (result == PLEAT_OK)
            result = pleat__space_rest(w->space, w->kept, 2, NULL);
        if (result == PLEAT_OK)
            result = pleat__space_wake(w->space, w->kept, 2, NULL);
        pleat__space_unprepare(w->space, w->kept, 2);
    }
    if (mapped) {
        pleat_result gone = pleat__space_unmap(w->space, page, 1);
        result = result == PLEAT_OK ? gone : result;
    }
    pleat__space_give(w->space, page, 1);
    w->hits = pleat__fault_hits(&w->vmm);
    pleat__fault_arm(&w->vmm, (pleat__fault_plan){0});
    pleat__space_unprepare(w->space, w->kept, 2); /* what could not be given back waits for that */
    return result;
}

/* The mapper maps and, after an event, unmaps. */
static pleat_result map_ahead(world *w)
{
    const pleat_vmm vmm = pleat__space_vmm(w->space);
    uint64_t page;
    pleat_event event;
    pleat_result result = vmm.ops->event_create(vmm.self, 0, &event);
    if (result != PLEAT_OK)
        return result;
    result = pleat__space_take(w->space, KEPT + 2, &page);
    assert_ok(result);
    mapping map = {.space = w->space, .page = page, .chunks = w->kept, .count = KEPT};
    mapping unmap = {.space = w->space, .page = page, .pages = KEPT + 2};
    pleat__job job = mapping_job(&map), back = mapping_job(&unmap);
    pleat__mapper_submit(w->mapper, &job);
    result = pleat__mapper_wait(w->mapper, &job);
    bool mapped = result == PLEAT_OK;
    if (mapped)
        result = vmm.ops->event_record(vmm.self, event, 3);
    back.events = &event;
    back.event_count = 1;
    while (mapped) { /* an event that fails leaves the map as it is: again */
        pleat__mapper_submit(w->mapper, &back);
        pleat_result unmapped = pleat__mapper_wait(w->mapper, &back);
        mapped = pleat__space_chunk_at(w->space, page, NULL) != NULL && unmapped != PLEAT_OK &&
                 pleat__space_stats_of(w->space).quarantined_pages == 0;
        result = result == PLEAT_OK ? unmapped : result;
        if (mapped)
            back.event_count = 0;
    }
    pleat__space_give(w->space, page, KEPT + 2);
    pleat_result destroyed = vmm.ops->event_destroy(vmm.self, event);
    if (destroyed != PLEAT_OK) { /* once more, so that only Pleat's own leaks show */
        w->hits = pleat__fault_hits(&w->vmm);
        pleat__fault_arm(&w->vmm, (pleat__fault_plan){0});
        assert_ok(vmm.ops->event_destroy(vmm.self, event));
    }
    return result == PLEAT_OK ? destroyed : result;
}

/* ---- the sweep ---- */

typedef pleat_result (*sequence)(world *w);

static void check_given_back(world *w, const pleat__host_holdings *before)
{
    pleat__host_holdings after;
    assert_int_equal(pleat__space_heal(w->space), 0);
    pleat__space_trim(w->space, 0);
    assert_ok(pleat__host_holdings_of(&w->host, &after));
    assert_true(after.handles <= before->handles);
    assert_true(after.mapped_pages <= before->mapped_pages);
    assert_true(after.memory_bytes <= before->memory_bytes);
    assert_int_equal(after.reservations, before->reservations);
    assert_int_equal(after.events, before->events);
    pleat__space_stats stats = pleat__space_stats_of(w->space);
    assert_int_equal(stats.quarantined_pages, 0);
    assert_int_equal(stats.pooled_bytes, 0);
}

/* How many verbs failed: none where the Nth one does not exist. */
static uint64_t run_with_fault(sequence run, pleat__fault_plan plan)
{
    world w = {0};
    pleat__host_holdings before;
    begin(&w);
    assert_ok(pleat__host_holdings_of(&w.host, &before));
    pleat__fault_arm(&w.vmm, plan);
    pleat_result result = run(&w);
    uint64_t hits = w.hits + pleat__fault_hits(&w.vmm);
    pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
    if (hits == 0)
        assert_ok(result);
    assert_true(pleat__space_audit(w.space));
    check_given_back(&w, &before);
    assert_true(pleat__space_audit(w.space));
    end(&w);
    return hits;
}

static void sweep(sequence run, uint64_t least_verbs)
{
    for (int mode = 0; mode < 4; mode++) {
        pleat__fault_plan plan = {.verb = PLEAT__FAULT_any,
                                  .nth = 1,
                                  .forever = (mode & 1) != 0,
                                  .carried_out = (mode & 2) != 0};
        while (run_with_fault(run, plan)) {
            plan.second = plan.nth;
            do {
                plan.second++;
            } while (!plan.forever && run_with_fault(run, plan) > 1);
            plan.second = 0;
            plan.nth++;
        }
        assert_true(plan.nth > least_verbs); /* it issued what it should */
    }
}

static void sweep_grow(void **state)
{
    (void)state;
    sweep(grow, 4 + 4 + 1 + 1);
}

static void sweep_stitch(void **state)
{
    (void)state;
    sweep(stitch, 4 + 1 + 1);
}

static void sweep_alias(void **state)
{
    (void)state;
    sweep(alias, 4 + 1 + 1);
}

static void sweep_shrink(void **state)
{
    (void)state;
    sweep(shrink, 1 + 2);
}

static void sweep_give_back(void **state)
{
    (void)state;
    sweep(give_back, 1 + KEPT);
}

static void sweep_add_peer(void **state)
{
    (void)state;
    sweep(add_peer, 1 + 1 + 1 + 1 + 1 + 1 + 1);
}

static void sweep_import(void **state)
{
    (void)state;
    sweep(import, 1 + 1 + 2 + 1 + 1 + 1);
}

static void sweep_map_ahead(void **state)
{
    (void)state;
    sweep(map_ahead, 1 + KEPT + 1 + 1 + 1 + 1 + 1);
}

static void sweep_move(void **state)
{
    (void)state;
    sweep(move, 2 + 2 * (2 + 2 + 2 + 3 + 2) + 1);
}

static void sweep_rest_and_wake(void **state)
{
    (void)state;
    sweep(rest_and_wake, 2 + 1 + 2 + KEPT + KEPT + KEPT + 2 + 2 + 2);
}

/* A whole space, with every verb of its making failing in turn. */
static void sweep_space_create(void **state)
{
    (void)state;
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat__space *space;
    const pleat__space_options options = {.window_bytes = 16 << 20};
    assert_ok(pleat_vmm_host(NULL, &host));
    assert_ok(pleat__fault_create(host, &vmm));
    assert_ok(pleat__arena_create(&arena));
    uint64_t nth = 1;
    for (;; nth++) {
        pleat__fault_arm(
            &vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any, .nth = nth, .forever = true});
        pleat_result result = pleat__space_create(vmm, arena, &options, &space);
        pleat__host_holdings held;
        assert_ok(pleat__host_holdings_of(&host, &held));
        assert_int_equal(held.reservations, result == PLEAT_OK);
        pleat__fault_arm(&vmm, (pleat__fault_plan){0});
        if (result == PLEAT_OK)
            break;
        assert_int_equal(pleat__arena_bytes_of(arena).allocated, 0);
    }
    assert_int_equal(nth, 4);
    pleat__space_destroy(space);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&vmm);
    pleat_vmm_destroy(&host);
}

static void heal_gives_orphaned_pages_back(void **state)
{
    (void)state;
    world w;
    begin(&w);
    uint64_t page, again;
    assert_ok(pleat__space_take(w.space, 1, &page));
    assert_ok(pleat__space_map(w.space, page, w.kept, 1));
    pleat__fault_arm(&w.vmm,
                     (pleat__fault_plan){.verb = PLEAT__FAULT_unmap, .nth = 1, .forever = true});
    assert_result(pleat__space_unmap(w.space, page, 1), PLEAT_E_DRIVER);
    assert_int_equal(pleat_last_error()->native, 999);
    pleat__space_give(w.space, page, 1);
    assert_int_equal(pleat__space_stats_of(w.space).quarantined_pages, 1);
    assert_ok(pleat__space_take(w.space, 1, &again)); /* never the quarantined one */
    assert_true(again != page);
    pleat__space_give(w.space, again, 1);
    assert_int_equal(pleat__space_heal(w.space), 1);
    pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
    assert_int_equal(pleat__space_heal(w.space), 0);
    assert_ok(pleat__space_take(w.space, 1, &again));
    assert_int_equal(again, page);
    pleat__space_give(w.space, again, 1);
    end(&w);
}

/* Between a space and its backend: while a thread heals, another one does. */
static struct {
    pleat_vmm inner;
    pleat__space *space;
    bool fails, heals;
} beside;

static pleat_result unmap_beside(void *self, pleat_va va, uint64_t bytes)
{
    if (beside.fails)
        return PLEAT_E_DRIVER;
    if (beside.heals) {
        beside.heals = false;
        (void)pleat__space_heal(beside.space);
    }
    return beside.inner.ops->unmap(self, va, bytes);
}

/* A mapper's unmap fails after the caller has looked whether a chunk may rest. */
static void rest_is_refused_where_a_place_is_quarantined(void **state)
{
    (void)state;
    world w;
    uint64_t page;
    begin(&w);
    assert_ok(pleat__space_take(w.space, 1, &page));
    assert_ok(pleat__space_map(w.space, page, w.kept, 1));
    assert_true(pleat__space_can_rest(w.space, w.kept[0]));
    pleat__fault_arm(&w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_unmap, .nth = 1});
    assert_result(pleat__space_unmap(w.space, page, 1), PLEAT_E_DRIVER);
    assert_result(pleat__space_rest(w.space, w.kept, 2, NULL), PLEAT_E_DRIVER);
    assert_non_null(strstr(pleat_last_error()->text, "unknown"));
    assert_true(!w.kept[0]->rests && !w.kept[1]->rests);
    assert_true(pleat__space_audit(w.space));
    assert_int_equal(pleat__space_heal(w.space), 0);
    assert_ok(pleat__space_rest(w.space, w.kept, 2, NULL));
    assert_ok(pleat__space_wake(w.space, w.kept, 2, NULL));
    pleat__space_give(w.space, page, 1);
    end(&w);
}

static void heal_by_two_threads_counts_once(void **state)
{
    (void)state;
    pleat__arena *arena;
    pleat__chunk *chunk;
    uint64_t page;
    assert_ok(pleat_vmm_host(NULL, &beside.inner));
    pleat_vmm_ops ops = *beside.inner.ops;
    ops.unmap = unmap_beside;
    const pleat_vmm vmm = {&ops, beside.inner.self};
    const pleat__space_options options = {.window_bytes = 16 << 20};
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(vmm, arena, &options, &beside.space));
    assert_ok(pleat__space_take(beside.space, 1, &page));
    assert_ok(pleat__space_chunk_get(beside.space, 1, &chunk));
    assert_ok(pleat__space_map(beside.space, page, &chunk, 1));
    beside.fails = true;
    assert_result(pleat__space_unmap(beside.space, page, 1), PLEAT_E_DRIVER);
    pleat__space_give(beside.space, page, 1);
    beside.fails = false;
    beside.heals = true;
    assert_int_equal(pleat__space_heal(beside.space), 0);
    assert_int_equal(chunk->stuck, 0);
    assert_true(pleat__space_audit(beside.space));
    /* And once more: nobody is at it any more. */
    assert_int_equal(pleat__space_heal(beside.space), 0);
    pleat__space_chunk_put(beside.space, chunk);
    assert_int_equal(pleat__space_trim(beside.space, 0), pleat__space_page_bytes(beside.space));
    pleat__space_destroy(beside.space);
    assert_nothing_held(&beside.inner);
    pleat__arena_destroy(arena);
    pleat_vmm_destroy(&beside.inner);
}

/* A chunk that was mapped while it rested, and of which a wake has lost the place. */
static pleat__chunk *torn_by_a_wake(world *w, uint32_t pages, uint64_t *page)
{
    pleat__chunk *torn;
    assert_ok(pleat__space_take(w->space, pages, page));
    assert_ok(pleat__space_chunk_promise(w->space, pages, &torn));
    assert_ok(pleat__space_map(w->space, *page, &torn, 1));
    pleat__fault_arm(&w->vmm,
                     (pleat__fault_plan){.verb = PLEAT__FAULT_any, .nth = 3, .forever = true});
    assert_result(pleat__space_wake(w->space, &torn, 1, NULL), PLEAT_E_DRIVER);
    pleat__fault_arm(&w->vmm, (pleat__fault_plan){0});
    return torn;
}

/* Its record becomes no other chunk's, and its memory nobody's, before the place is unmapped. */
static void put_of_a_chunk_that_a_wake_has_torn_waits_for_its_place(void **state)
{
    (void)state;
    world w;
    begin(&w);
    pleat__chunk *torn, *other;
    uint64_t page;
    uint64_t room = pleat__space_room(w.space);
    torn = torn_by_a_wake(&w, 4, &page);
    assert_result(pleat__space_wake(w.space, &torn, 1, NULL), PLEAT_E_DRIVER);
    assert_true(torn->rests && torn->torn);
    assert_int_equal(torn->stuck, 1);
    assert_int_equal(pleat__space_room(w.space), room - 4 * GRANULE);
    pleat__space_give(w.space, page, 4);
    pleat__space_chunk_put(w.space, torn);
    assert_ok(pleat__space_chunk_get(w.space, 1, &other));
    assert_ptr_not_equal(other, torn);
    assert_int_equal(pleat__space_heal(w.space), 0);
    pleat__space_chunk_put(w.space, other);
    assert_int_equal(pleat__space_trim(w.space, 0), 5 * GRANULE);
    assert_int_equal(pleat__space_room(w.space), room);
    assert_true(pleat__space_audit(w.space));
    end(&w);
}

/* It rests for good, but what it becomes when it was put does not. */
static void chunk_that_was_torn_wakes_as_another(void **state)
{
    (void)state;
    world w;
    begin(&w);
    pleat__chunk *torn, *again;
    uint64_t page;
    torn = torn_by_a_wake(&w, 2, &page);
    assert_int_equal(pleat__space_heal(w.space), 0);
    assert_true(pleat__space_chunk_at(w.space, page, NULL) == NULL);
    pleat__space_chunk_put(w.space, torn);
    assert_ok(pleat__space_chunk_get(w.space, 2, &again)); /* the pooled one */
    assert_ptr_equal(again, torn);
    assert_ok(pleat__space_map(w.space, page, &again, 1));
    assert_ok(pleat__space_rest(w.space, &again, 1, NULL));
    assert_ok(pleat__space_wake(w.space, &again, 1, NULL));
    assert_ok(pleat__space_unmap(w.space, page, 2));
    pleat__space_give(w.space, page, 2);
    pleat__space_chunk_put(w.space, again);
    end(&w);
}

/* Of the device or of the host, beside memory of the chunk's own or without: it keeps its size and
 * goes when it is tried again, whatever is made meanwhile. */
static void spare_that_could_not_be_given_back_is_tried_again(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        bool on_host = (mode & 1) != 0, awake = (mode & 2) != 0;
        world w;
        begin(&w);
        pleat__chunk *chunk, *other;
        uint64_t page, room = pleat__space_room(w.space), taken = on_host ? 0 : 4 * GRANULE;
        assert_ok(awake ? pleat__space_chunk_get(w.space, 4, &chunk)
                        : pleat__space_chunk_promise(w.space, 4, &chunk));
        assert_ok(pleat__space_prepare(w.space, &chunk, 1, on_host));
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_release, .nth = 1});
        pleat__space_unprepare(w.space, &chunk, 1);
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
        pleat__space_chunk_put(w.space, chunk);
        if (awake)
            assert_int_equal(pleat__space_trim(w.space, 0), 4 * GRANULE);
        assert_int_equal(pleat__space_room(w.space), room - taken);
        assert_int_equal(pleat__space_stats_of(w.space).host_bytes, on_host ? 4 * GRANULE : 0);
        assert_ok(pleat__space_take(w.space, 1, &page));
        assert_ok(pleat__space_chunk_promise(w.space, 1, &other));
        assert_ok(pleat__space_map(w.space, page, &other, 1));
        assert_ok(pleat__space_wake(w.space, &other, 1, NULL));
        assert_int_equal(pleat__space_room(w.space), room - taken - GRANULE);
        assert_ok(pleat__space_unmap(w.space, page, 1));
        pleat__space_give(w.space, page, 1);
        pleat__space_chunk_put(w.space, other);
        pleat__space_trim(w.space, 0);
        assert_int_equal(pleat__space_room(w.space), room);
        assert_int_equal(pleat__space_stats_of(w.space).host_bytes, 0);
        assert_true(pleat__space_audit(w.space));
        end(&w);
    }
}

/* What the driver never takes back is tried again and again, and the others go all the same. */
static void release_that_always_fails_holds_no_other_up(void **state)
{
    (void)state;
    world w;
    begin(&w);
    const pleat_vmm *host = &w.host;
    pleat__chunk *imported[2], *own[2];
    pleat__host_holdings before, after;
    for (int c = 0; c < 2; c++)
        assert_ok(pleat__space_chunk_get(w.space, 1, &own[c]));
    assert_ok(pleat__host_holdings_of(host, &before));
    for (int c = 0; c < 2; c++)
        assert_ok(pleat__space_import(w.space, w.fd, 2, &imported[c]));
    pleat__fault_arm(&w.vmm,
                     (pleat__fault_plan){.verb = PLEAT__FAULT_release, .nth = 1, .forever = true});
    for (int c = 0; c < 2; c++) {
        pleat__space_chunk_put(w.space, imported[c]);
        pleat__space_chunk_put(w.space, own[c]);
    }
    pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
    /* From now on the driver does not know the first one to be tried. */
    assert_ok(host->ops->release(host->self, imported[1]->handle));
    assert_ok(host->ops->release(host->self, own[0]->handle));
    assert_int_equal(pleat__space_trim(w.space, 0), GRANULE);
    assert_ok(pleat__host_holdings_of(host, &after));
    assert_int_equal(after.handles, before.handles - 2);
    assert_int_equal(pleat__space_stats_of(w.space).pooled_bytes, GRANULE);
    assert_true(pleat__space_audit(w.space));
    end(&w);
}

/* What could not be given back, of the device, is woken with, as memory like any other: it goes
 * when its chunk rests, and is not in the way of what is made for the next wake. Of the host it
 * stays. */
static void spare_that_is_woken_with_goes_when_its_chunk_rests(void **state)
{
    (void)state;
    for (int mode = 0; mode < 4; mode++) {
        bool on_host = (mode & 1) != 0, prepares = (mode & 2) != 0;
        world w;
        begin(&w);
        pleat__chunk *chunk = w.kept[0];
        uint64_t room = pleat__space_room(w.space);
        assert_ok(pleat__space_prepare(w.space, &chunk, 1, on_host));
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_release, .nth = 1});
        pleat__space_unprepare(w.space, &chunk, 1);
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
        assert_ok(pleat__space_rest(w.space, &chunk, 1, NULL));
        assert_ok(pleat__space_wake(w.space, &chunk, 1, NULL));
        assert_false(chunk->on_host);
        assert_int_equal(pleat__space_room(w.space), room);
        if (prepares)
            assert_ok(pleat__space_prepare(w.space, &chunk, 1, false));
        assert_ok(pleat__space_rest(w.space, &chunk, 1, NULL));
        assert_int_equal(pleat__space_room(w.space), prepares ? room : room + GRANULE);
        assert_ok(pleat__space_wake(w.space, &chunk, 1, NULL));
        pleat__space_unprepare(w.space, &chunk, 1);
        assert_int_equal(pleat__space_stats_of(w.space).host_bytes, 0);
        assert_true(pleat__space_audit(w.space));
        end(&w);
    }
}

/* One of the device that is left does not do for one of the host. */
static void spare_of_the_other_memory_is_exchanged(void **state)
{
    (void)state;
    for (int on_host = 0; on_host < 2; on_host++) {
        world w;
        begin(&w);
        pleat__chunk *chunk;
        uint64_t page;
        assert_ok(pleat__space_chunk_promise(w.space, 4, &chunk));
        assert_ok(pleat__space_take(w.space, 4, &page));
        assert_ok(pleat__space_map(w.space, page, &chunk, 1));
        assert_ok(pleat__space_prepare(w.space, &chunk, 1, on_host == 0));
        pleat__fault_arm(
            &w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_release, .nth = 1, .forever = true});
        pleat__space_unprepare(w.space, &chunk, 1);
        assert_result(pleat__space_prepare(w.space, &chunk, 1, on_host != 0), PLEAT_E_DRIVER);
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
        assert_ok(pleat__space_prepare(w.space, &chunk, 1, on_host != 0));
        assert_ok(pleat__space_wake(w.space, &chunk, 1, NULL));
        assert_int_equal(chunk->on_host, on_host);
        assert_int_equal(pleat__space_stats_of(w.space).host_bytes, on_host ? 4 * GRANULE : 0);
        assert_true(pleat__space_audit(w.space));
        assert_ok(pleat__space_unmap(w.space, page, 4));
        pleat__space_give(w.space, page, 4);
        pleat__space_chunk_put(w.space, chunk);
        end(&w);
    }
}

/* Between a space and its backend: after `pass` of them the next `left` verbs that a place needs
 * fail; behind each of those another thread heals the space, where one is given. */
static struct {
    pleat_vmm inner;
    pleat_vmm_ops ops;
    pleat__arena *arena;
    int pass, left;
    pleat__space *healed;
} failing;

static void *heal(void *space)
{
    (void)pleat__space_heal(space);
    return NULL;
}

static bool is_due(void)
{
    pleat__space *healed = failing.healed;
    if (failing.pass-- > 0 || failing.left-- <= 0)
        return false;
    failing.pass = 0;
    if (healed != NULL) {
        pthread_t thread;
        int left = failing.left;
        failing.left = 0; /* none of the healer's */
        failing.healed = NULL;
        assert_int_equal(pthread_create(&thread, NULL, heal, healed), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        failing.left = left;
        failing.healed = healed;
    }
    return true;
}

static pleat_result unmap_failing(void *self, pleat_va va, uint64_t bytes)
{
    return is_due() ? PLEAT_E_DRIVER : failing.inner.ops->unmap(self, va, bytes);
}

static pleat_result map_failing(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    return is_due() ? PLEAT_E_DRIVER : failing.inner.ops->map(self, va, bytes, handle);
}

static pleat_result access_failing(void *self, pleat_va va, uint64_t bytes, const int *devices,
                                   int count)
{
    return is_due() ? PLEAT_E_DRIVER
                    : failing.inner.ops->set_access(self, va, bytes, devices, count);
}

static pleat__space *begin_failing(void)
{
    pleat__space *space;
    assert_ok(pleat_vmm_host(NULL, &failing.inner));
    failing.ops = *failing.inner.ops;
    failing.ops.unmap = unmap_failing;
    failing.ops.map = map_failing;
    failing.ops.set_access = access_failing;
    const pleat_vmm vmm = {&failing.ops, failing.inner.self};
    const pleat__space_options options = {.window_bytes = 16 << 20};
    assert_ok(pleat__arena_create(&failing.arena));
    assert_ok(pleat__space_create(vmm, failing.arena, &options, &space));
    return space;
}

static void end_failing(pleat__space *space)
{
    pleat__space_destroy(space);
    assert_nothing_held(&failing.inner);
    pleat__arena_destroy(failing.arena);
    pleat_vmm_destroy(&failing.inner);
}

static pleat_result count_reached(void *context, pleat_va end)
{
    (void)end;
    ++*(int *)context;
    return PLEAT_OK;
}

/* Its home is lost: the unmap fails, and three times both the access and the map that would mend
 * it. The view that shows it as well is waited for and unmapped, and may be used again. */
static void rest_unmaps_the_other_places_of_a_torn_chunk(void **state)
{
    (void)state;
    pleat__chunk *chunk;
    uint64_t home, view, ignored;
    int reached = 0;
    const pleat__space_parts parts = {.bytes = 1, .reach = count_reached, .context = &reached};
    pleat__space *space = begin_failing();
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    assert_ok(pleat__space_take(space, 1, &home));
    assert_ok(pleat__space_take(space, 1, &view));
    assert_ok(pleat__space_map(space, home, &chunk, 1));
    assert_ok(pleat__space_map(space, view, &chunk, 1));
    failing.left = 1 + 3 * 2;
    assert_result(pleat__space_rest(space, &chunk, 1, &parts), PLEAT_E_DRIVER);
    assert_true(chunk->rests && chunk->torn);
    assert_int_equal(chunk->stuck, 1);
    assert_int_equal(reached, 2);
    pleat_va at = pleat__space_base(space) + view * pleat__space_page_bytes(space);
    assert_int_not_equal(pleat_host_physical(&failing.inner, at, &ignored), PLEAT_OK);
    assert_ok(pleat__space_unmap(space, view, 1));
    pleat__space_give(space, view, 1);
    pleat__space_give(space, home, 1);
    pleat__space_chunk_put(space, chunk);
    assert_int_equal(pleat__space_heal(space), 0);
    assert_int_equal(pleat__space_trim(space, 0), pleat__space_page_bytes(space));
    end_failing(space);
}

/* Two verbs that fail, one behind the other, lose nothing: of a rest, whose unmap was carried out,
 * the second one is that which would give access back; of a wake that which takes a part back. */
static void rest_and_wake_lose_no_place_to_two_failures(void **state)
{
    (void)state;
    world w;
    begin(&w);
    const uint64_t seconds[] = {3, 4, 5};
    for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any,
                                                     .nth = 1,
                                                     .second = seconds[i],
                                                     .carried_out = true});
        assert_result(pleat__space_rest(w.space, w.kept, KEPT - 1, NULL), PLEAT_E_DRIVER);
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
        for (int c = 0; c < KEPT - 1; c++)
            assert_false(w.kept[c]->torn || w.kept[c]->rests);
    }
    assert_ok(pleat__space_rest(w.space, w.kept, KEPT, NULL));
    /* Six are created and mapped before the access. */
    for (uint64_t second = 2 * KEPT + 2; second < 2 * KEPT + 4; second++) {
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any,
                                                     .nth = 2 * KEPT + 1,
                                                     .second = second,
                                                     .carried_out = true});
        assert_result(pleat__space_wake(w.space, w.kept, KEPT, NULL), PLEAT_E_DRIVER);
        pleat__fault_arm(&w.vmm, (pleat__fault_plan){0});
    }
    assert_ok(pleat__space_wake(w.space, w.kept, KEPT, NULL));
    assert_true(pleat__space_audit(w.space));
    end(&w);
}

/* What a rest has lost is healed when the rest is over: until then it looks at these places. */
static void heal_waits_for_a_rest(void **state)
{
    (void)state;
    pleat__chunk *chunk;
    uint64_t places[3], between;
    pleat__space *space = begin_failing();
    assert_ok(pleat__space_chunk_get(space, 1, &chunk));
    for (int p = 0; p < 3; p++) {
        assert_ok(pleat__space_take(space, 1, &places[p]));
        assert_ok(pleat__space_take(space, 1, &between));
        assert_ok(pleat__space_map(space, places[p], &chunk, 1));
    }
    failing.pass = 1; /* the first place is unmapped, and then all fails */
    failing.left = 1000;
    failing.healed = space;
    assert_result(pleat__space_rest(space, &chunk, 1, NULL), PLEAT_E_DRIVER);
    failing.left = 0;
    failing.healed = NULL;
    assert_true(chunk->torn);
    assert_int_equal(chunk->stuck, 3);
    assert_true(pleat__space_audit(space));
    assert_int_equal(pleat__space_heal(space), 0);
    assert_int_equal(chunk->stuck, 0);
    for (int p = 0; p < 3; p++)
        pleat__space_give(space, places[p], 1);
    pleat__space_chunk_put(space, chunk);
    assert_int_equal(pleat__space_trim(space, 0), pleat__space_page_bytes(space));
    end_failing(space);
}

/* A view of three chunks of which the middle one is torn; before and after what was lost is healed.
 */
static void unmap_of_a_range_with_a_lost_place_takes_the_others(void **state)
{
    (void)state;
    for (int heals = 0; heals < 2; heals++) {
        pleat__chunk *chunks[3];
        uint64_t view, ignored;
        pleat__space *space = begin_failing();
        for (int i = 0; i < 3; i++)
            assert_ok(pleat__space_chunk_get(space, 1, &chunks[i]));
        assert_ok(pleat__space_take(space, 3, &view));
        assert_ok(pleat__space_map(space, view, chunks, 3));
        failing.left = 1 + 3 * 2;
        assert_int_not_equal(pleat__space_rest(space, &chunks[1], 1, NULL), PLEAT_OK);
        assert_int_equal(chunks[1]->stuck, 1);
        if (heals)
            assert_int_equal(pleat__space_heal(space), 0);
        assert_result(pleat__space_unmap(space, view, 3), PLEAT_E_STATE);
        pleat__space_stats stats = pleat__space_stats_of(space);
        assert_int_equal(stats.mapped_pages, 0);
        assert_int_equal(stats.quarantined_pages, heals ? 0 : 1);
        for (uint64_t page = view; page < view + 3; page += 2) {
            pleat_va at = pleat__space_base(space) + page * pleat__space_page_bytes(space);
            assert_int_not_equal(pleat_host_physical(&failing.inner, at, &ignored), PLEAT_OK);
        }
        pleat__space_give(space, view, 3);
        for (int i = 0; i < 3; i++)
            pleat__space_chunk_put(space, chunks[i]);
        assert_int_equal(pleat__space_heal(space), 0);
        pleat__space_trim(space, 0);
        assert_true(pleat__space_audit(space));
        end_failing(space);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sweep_grow),
        cmocka_unit_test(sweep_stitch),
        cmocka_unit_test(sweep_alias),
        cmocka_unit_test(sweep_shrink),
        cmocka_unit_test(sweep_give_back),
        cmocka_unit_test(sweep_add_peer),
        cmocka_unit_test(sweep_import),
        cmocka_unit_test(sweep_map_ahead),
        cmocka_unit_test(sweep_rest_and_wake),
        cmocka_unit_test(sweep_move),
        cmocka_unit_test(sweep_space_create),
        cmocka_unit_test(heal_gives_orphaned_pages_back),
        cmocka_unit_test(rest_is_refused_where_a_place_is_quarantined),
        cmocka_unit_test(heal_by_two_threads_counts_once),
        cmocka_unit_test(put_of_a_chunk_that_a_wake_has_torn_waits_for_its_place),
        cmocka_unit_test(chunk_that_was_torn_wakes_as_another),
        cmocka_unit_test(spare_that_could_not_be_given_back_is_tried_again),
        cmocka_unit_test(release_that_always_fails_holds_no_other_up),
        cmocka_unit_test(spare_that_is_woken_with_goes_when_its_chunk_rests),
        cmocka_unit_test(spare_of_the_other_memory_is_exchanged),
        cmocka_unit_test(rest_and_wake_lose_no_place_to_two_failures),
        cmocka_unit_test(heal_waits_for_a_rest),
        cmocka_unit_test(rest_unmaps_the_other_places_of_a_torn_chunk),
        cmocka_unit_test(unmap_of_a_range_with_a_lost_place_takes_the_others),
    };
    return cmocka_run_group_tests_name("sweep", tests, NULL, NULL);
}
