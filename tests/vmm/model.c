/*
 * model.c: a space against a plain model of it, over random operations with random faults. Every
 * chunk carries its own mark, so each mapped page can be asked which chunk it shows.
 */
#include "../fault.h"
#include "../held.h"
#include "../host.h"

#include <string.h>
#include <vmm/space.h>

#define GRANULE 32768u
enum { MOST_CHUNKS = 40, MOST_RANGES = 30, MOST_RUN = 6, STEPS = 6000, BUDGET = 60 };

typedef struct held {
    pleat__chunk *chunk;
    uint64_t mark;
    uint32_t uses; /* ranges it is in, as often as it is */
} held;

typedef struct range {
    uint64_t page, pages;
    uint32_t chunk[MOST_RUN]; /* indexes of held ones */
    uint32_t count;
} range;

typedef struct model {
    pleat_vmm host, vmm;
    pleat__arena *arena;
    pleat__space *space;
    test_random random;
    held chunks[MOST_CHUNKS];
    uint32_t chunk_count;
    range ranges[MOST_RANGES];
    uint32_t range_count;
    uint64_t marks, faults;
} model;

static uint64_t *words(const model *m, uint64_t page)
{
    return (uint64_t *)(uintptr_t)(pleat__space_base(m->space) + page * GRANULE);
}

/* One in eight operations meets a failing verb, some of them more than one. */
static void arm(model *m)
{
    pleat__fault_plan plan = {.verb = PLEAT__FAULT_any};
    if (test_random_below(&m->random, 8) == 0)
        plan.nth = 1 + test_random_below(&m->random, MOST_RUN + 2);
    plan.forever = test_random_below(&m->random, 4) == 0;
    plan.carried_out = test_random_below(&m->random, 2) == 0;
    pleat__fault_arm(&m->vmm, plan);
}

/* Whether a failure is one that was ordered; the fault is over then. */
static void expect_ordered(model *m, pleat_result result)
{
    uint64_t hits = pleat__fault_hits(&m->vmm);
    pleat__fault_arm(&m->vmm, (pleat__fault_plan){0});
    m->faults += hits;
    if (hits == 0)
        assert_ok(result);
}

static void check_range(const model *m, const range *r)
{
    uint64_t page = r->page;
    for (uint32_t c = 0; c < r->count; c++) {
        const held *h = &m->chunks[r->chunk[c]];
        for (uint32_t p = 0; p < h->chunk->pages; p++, page++) {
            uint32_t index = 99;
            assert_ptr_equal(pleat__space_chunk_at(m->space, page, &index), h->chunk);
            assert_int_equal(index, p);
            assert_int_equal(*words(m, page), h->mark + p);
        }
    }
}

/* Enters the range's chunks; one that was mapped nowhere gets a new mark, through this map. */
static void enter_chunks(model *m, const range *r)
{
    uint64_t page = r->page;
    for (uint32_t c = 0; c < r->count; c++) {
        held *h = &m->chunks[r->chunk[c]];
        bool first = h->uses++ == 0;
        if (first)
            h->mark = (m->marks += 16);
        for (uint32_t p = 0; p < h->chunk->pages; p++, page++)
            if (first)
                *words(m, page) = h->mark + p;
    }
}

static void get_chunk(model *m)
{
    if (m->chunk_count == MOST_CHUNKS)
        return;
    uint32_t pages = 1 + (uint32_t)(test_random_below(&m->random, 5) / 3);
    held *h = &m->chunks[m->chunk_count];
    arm(m);
    pleat_result result = pleat__space_chunk_get(m->space, pages, &h->chunk);
    if (result == PLEAT_E_BUDGET)
        pleat__fault_arm(&m->vmm, (pleat__fault_plan){0});
    else
        expect_ordered(m, result);
    if (result != PLEAT_OK)
        return;
    assert_int_equal(h->chunk->pages, pages);
    assert_int_equal(h->chunk->maps, 0);
    h->uses = 0;
    m->chunk_count++;
}

/* Ranges name chunks by index, so only the last one can go, and only when it is in none. */
static void put_chunk(model *m)
{
    if (m->chunk_count > 0 && m->chunks[m->chunk_count - 1].uses == 0)
        pleat__space_chunk_put(m->space, m->chunks[--m->chunk_count].chunk);
}

static void map_range(model *m)
{
    if (m->range_count == MOST_RANGES || m->chunk_count == 0)
        return;
    range *r = &m->ranges[m->range_count];
    pleat__chunk *chunks[MOST_RUN];
    *r = (range){.count = 1 + (uint32_t)test_random_below(&m->random, MOST_RUN)};
    for (uint32_t c = 0; c < r->count; c++) {
        r->chunk[c] = (uint32_t)test_random_below(&m->random, m->chunk_count);
        chunks[c] = m->chunks[r->chunk[c]].chunk;
        r->pages += chunks[c]->pages;
    }
    if (pleat__space_take(m->space, r->pages, &r->page) != PLEAT_OK)
        return;
    arm(m);
    pleat_result result = pleat__space_map(m->space, r->page, chunks, r->count);
    expect_ordered(m, result);
    if (result != PLEAT_OK) {
        pleat__space_give(m->space, r->page, r->pages);
        return;
    }
    enter_chunks(m, r);
    m->range_count++;
}

/* Gone for the model in any case: mapped no more, or quarantined. */
static void unmap_range(model *m)
{
    if (m->range_count == 0)
        return;
    uint32_t at = (uint32_t)test_random_below(&m->random, m->range_count);
    range r = m->ranges[at];
    check_range(m, &r);
    arm(m);
    expect_ordered(m, pleat__space_unmap(m->space, r.page, r.pages));
    pleat__space_give(m->space, r.page, r.pages);
    for (uint32_t c = 0; c < r.count; c++)
        m->chunks[r.chunk[c]].uses--;
    m->ranges[at] = m->ranges[--m->range_count];
}

static void trim(model *m)
{
    arm(m);
    pleat__space_trim(m->space, test_random_below(&m->random, 8) * GRANULE);
    expect_ordered(m, PLEAT_OK);
}

static void check_totals(model *m)
{
    pleat__space_stats stats = pleat__space_stats_of(m->space);
    uint64_t mapped = 0, held_bytes = 0;
    for (uint32_t r = 0; r < m->range_count; r++)
        mapped += m->ranges[r].pages;
    for (uint32_t c = 0; c < m->chunk_count; c++) {
        assert_int_equal(m->chunks[c].chunk->maps, m->chunks[c].uses);
        held_bytes += m->chunks[c].chunk->pages * GRANULE;
    }
    assert_int_equal(stats.mapped_pages, mapped);
    assert_int_equal(stats.reserved_pages, mapped);
    assert_int_equal(stats.physical_bytes - stats.pooled_bytes, held_bytes);
    assert_true(stats.physical_bytes <= BUDGET * GRANULE);
    pleat__host_holdings now;
    assert_ok(pleat__host_holdings_of(&m->host, &now));
    assert_int_equal(now.memory_bytes, stats.physical_bytes);
    assert_true(now.mapped_pages <= stats.mapped_pages + stats.quarantined_pages);
}

static void space_agrees_with_a_model(void **state)
{
    (void)state;
    static void (*const operations[])(model *) = {get_chunk, get_chunk,   put_chunk,   map_range,
                                                  map_range, unmap_range, unmap_range, trim};
    static model m;
    pleat_host_options options = {.size = sizeof options, .granularity = GRANULE};
    m = (model){.random = test_random_begin("space_agrees_with_a_model", 23)};
    assert_ok(pleat_vmm_host(&options, &m.host));
    assert_ok(pleat__fault_create(m.host, &m.vmm));
    assert_ok(pleat__arena_create(&m.arena));
    const pleat__space_options space = {.window_bytes = 400 * GRANULE};
    assert_ok(pleat__space_create(m.vmm, m.arena, &space, &m.space));
    pleat__space_set_budget(m.space, BUDGET * GRANULE);
    for (int step = 0; step < STEPS; step++) {
        operations[test_random_below(&m.random, sizeof operations / sizeof *operations)](&m);
        check_totals(&m);
        if (step % 100 == 0)
            assert_true(pleat__space_audit(m.space));
    }
    assert_true(m.faults > 100);
    for (uint32_t r = 0; r < m.range_count; r++)
        check_range(&m, &m.ranges[r]);
    assert_int_equal(pleat__space_heal(m.space), 0);
    pleat__space_destroy(m.space);
    assert_nothing_held(&m.host);
    pleat__arena_destroy(m.arena);
    pleat_vmm_destroy(&m.vmm);
    pleat_vmm_destroy(&m.host);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(space_agrees_with_a_model)};
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
