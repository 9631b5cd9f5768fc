/*
 * oracle.c: see oracle.h.
 *
 * A tenant is whatever holds bytes: a slot of one of the two sequences, or a lane. It has ranges of
 * events, and a physical byte behind each of its pages, found by walking the maps. Two of one
 * sequence that live together share no byte; two of different streams share none at any time, but
 * on chunks that are handed over, where they are on no chunk together. A persistent slot is of
 * both.
 */
#include "oracle.h"

#include <stdbool.h>

#define TENANTS_MOST 96u
#define PAGES_MOST   64u
#define NO_STREAM    UINT32_MAX

typedef struct tenant {
    const char *what;
    uint32_t index;
    uint32_t stream;
    bool first;  /* it lives in the first sequence */
    bool steady; /* in the iterations */
    pleat__range first_events;
    pleat__range steady_events[2];
    uint32_t piece_count;
    pleat__range pieces[PAGES_MOST]; /* physical, page by page */
} tenant;

typedef struct tenants {
    const pleat_plan *plan;
    tenant all[TENANTS_MOST];
    uint32_t count;
    bool too_many;
} tenants;

static bool meet(pleat__range a, pleat__range b)
{
    return a.begin < b.end && b.begin < a.end && a.begin < a.end && b.begin < b.end;
}

/* The physical byte behind the first byte of a page. */
static uint64_t byte_behind(const pleat_plan *plan, uint64_t page)
{
    for (uint32_t i = 0; i < plan->map_count; i++) {
        const pleat__plan_handle *handle = &plan->handles[plan->maps[i].handle];
        if (page >= plan->maps[i].page && page - plan->maps[i].page < handle->chunks) {
            uint64_t before = 0;
            for (uint32_t h = 0; h < plan->maps[i].handle; h++)
                before += plan->handles[h].chunks;
            return (before + page - plan->maps[i].page) * plan->chunk_bytes;
        }
    }
    FUZZ_CHECK(false, "page %llu is not mapped", (unsigned long long)page);
    return 0;
}

/* Where a tenant lies; false: nowhere, or on too many pages. */
static bool put_pieces(tenants *t, tenant *made, uint64_t place, uint64_t bytes)
{
    const uint64_t chunk = t->plan->chunk_bytes, end = place + (bytes + 511) / 512 * 512;
    if (bytes == 0 || place == PLEAT__NOWHERE)
        return false;
    if ((end - place) / chunk + 2 > PAGES_MOST || t->count == TENANTS_MOST) {
        t->too_many = true;
        return false;
    }
    FUZZ_CHECK(end <= t->plan->virtual_bytes, "%s %u ends at byte %llu of %llu", made->what,
               made->index, (unsigned long long)end, (unsigned long long)t->plan->virtual_bytes);
    for (uint64_t at = place; at < end;) {
        uint64_t stop = (at / chunk + 1) * chunk < end ? (at / chunk + 1) * chunk : end;
        uint64_t from = byte_behind(t->plan, at / chunk) + at % chunk;
        made->pieces[made->piece_count++] = (pleat__range){from, from + (stop - at)};
        at = stop;
    }
    return true;
}

static void live_in_steady(const pleat_plan *plan, tenant *made, uint64_t from, uint64_t until,
                           bool always)
{
    made->steady = true;
    if (always || until > from) {
        made->steady_events[0] =
            (pleat__range){always ? 0 : from, always ? plan->steady.events : until};
        return;
    }
    made->steady_events[0] = (pleat__range){from, plan->steady.events};
    made->steady_events[1] = (pleat__range){0, until};
}

static void add_slots(tenants *t, bool first)
{
    const pleat__sequence *sequence = first ? &t->plan->first : &t->plan->steady;
    for (uint32_t i = 0; i < sequence->slot_count && !t->too_many; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        bool persistent = slot->class == PLEAT__CLASS_PERSISTENT;
        tenant made = {
            .what = first ? "first" : "steady", .index = i, .stream = slot->stream, .first = first};
        if (slot->class == PLEAT__CLASS_DYNAMIC || !put_pieces(t, &made, slot->place, slot->size))
            continue;
        bool on = slot->free_at == PLEAT__NEVER || persistent;
        if (first)
            made.first_events =
                (pleat__range){slot->alloc_at, on ? sequence->events : slot->free_at};
        if (!first || persistent)
            live_in_steady(t->plan, &made, slot->alloc_at, slot->free_at, on);
        t->all[t->count++] = made;
    }
}

static void add_lanes(tenants *t)
{
    for (uint32_t l = 0; l < t->plan->lane_count && !t->too_many; l++) {
        const pleat__lane *lane = &t->plan->lanes[l];
        tenant made = {.what = "lane", .index = l, .stream = NO_STREAM};
        for (uint32_t i = 0; i < t->plan->steady.slot_count; i++)
            if (t->plan->steady.slots[i].lane == l)
                made.stream = t->plan->steady.slots[i].stream;
        if (!put_pieces(t, &made, lane->place, lane->bytes))
            continue;
        live_in_steady(t->plan, &made, lane->begin_at, lane->end_at, false);
        t->all[t->count++] = made;
    }
}

static bool live_together(const tenant *a, const tenant *b)
{
    bool together = a->first && b->first && meet(a->first_events, b->first_events);
    for (int i = 0; i < 2 && a->steady && b->steady; i++)
        for (int k = 0; k < 2; k++)
            together |= meet(a->steady_events[i], b->steady_events[k]);
    return together;
}

static bool is_handed(const pleat_plan *plan, uint64_t chunk)
{
    for (uint32_t i = 0; i < plan->handed_count; i++)
        if (chunk >= plan->handed[i].first_chunk &&
            chunk - plan->handed[i].first_chunk < plan->handed[i].chunks)
            return true;
    return false;
}

static void check_pieces(const pleat_plan *plan, const tenant *a, const tenant *b, pleat__range p,
                         pleat__range q)
{
    uint64_t chunk = p.begin / plan->chunk_bytes;
    bool together = live_together(a, b);
    bool strange = a->stream != b->stream && a->stream != NO_STREAM && b->stream != NO_STREAM;
    bool same_chunk = chunk == q.begin / plan->chunk_bytes;
    FUZZ_CHECK(!meet(p, q) || !together, "%s %u and %s %u live together and share byte %llu",
               a->what, a->index, b->what, b->index, (unsigned long long)p.begin);
    FUZZ_CHECK(!meet(p, q) || !strange || is_handed(plan, chunk),
               "%s %u and %s %u are of two streams and share byte %llu", a->what, a->index, b->what,
               b->index, (unsigned long long)p.begin);
    FUZZ_CHECK(!same_chunk || !strange || !together || !is_handed(plan, chunk),
               "%s %u and %s %u are of two streams and on chunk %llu together", a->what, a->index,
               b->what, b->index, (unsigned long long)chunk);
}

static void check_pairs(const tenants *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        for (uint32_t k = 0; k < i; k++)
            for (uint32_t p = 0; p < t->all[i].piece_count; p++)
                for (uint32_t q = 0; q < t->all[k].piece_count; q++)
                    check_pieces(t->plan, &t->all[i], &t->all[k], t->all[i].pieces[p],
                                 t->all[k].pieces[q]);
}

void oracle_check(const pleat_plan *plan)
{
    static tenants t;
    t.plan = plan;
    t.count = 0;
    t.too_many = false;
    add_slots(&t, true);
    add_slots(&t, false);
    add_lanes(&t);
    if (!t.too_many)
        check_pairs(&t);
}

static void check_instance(const pleat_plan *plan, pleat__fraction x, uint32_t how)
{
    const pleat__instance_options options = {.recipe = how % 2 == 1, .first = how / 2 % 2 == 1};
    pleat__instance_report report;
    pleat_plan *instance;
    pleat_result result = pleat__elastic_instance(plan, x, &options, &report, &instance);
    FUZZ_CHECK(result == PLEAT_OK || result == PLEAT_E_NOT_FOUND || result == PLEAT_E_LIMIT ||
                   result == PLEAT_E_INPUT || result == PLEAT_E_VERIFY,
               "%s: %s", pleat_result_name(result), pleat_last_error()->text);
    if (result != PLEAT_OK)
        return;
    FUZZ_CHECK(pleat_plan_verify(instance, NULL) == PLEAT_OK, "%s", pleat_last_error()->text);
    oracle_check(instance);
    pleat_plan_free(instance);
}

static pleat__fraction drawn_fraction(fuzz_draws *draws)
{
    pleat__fraction f;
    uint64_t num =
        1 + fuzz_bytes(draws, fuzz_draw(draws, 2) == 0 ? 1 : 5) % (PLEAT__FRACTION_MOST - 1);
    return pleat__fraction_make(num, 1 + fuzz_draw(draws, 4), &f) ? f : (pleat__fraction){1, 1};
}

void oracle_check_instances(const pleat_plan *plan, fuzz_draws *draws)
{
    const pleat__recipe *recipe = plan->recipe;
    if (recipe == NULL)
        return;
    uint32_t how = fuzz_draw(draws, 4);
    check_instance(plan, recipe->reference, how);
    check_instance(plan, recipe->lowest, how + 1);
    check_instance(plan, recipe->highest, how + 2);
    check_instance(plan, drawn_fraction(draws), how + 3);
    if (fuzz_draw(draws, 8) != 0) /* it lays out some forty */
        return;
    pleat__fraction fits;
    uint64_t bytes = fuzz_bytes(draws, fuzz_draw(draws, 8)), takes;
    pleat_result result = pleat__elastic_fit(
        plan, bytes, (pleat__fraction){1, 1 + fuzz_draw(draws, 2)}, &fits, &takes);
    FUZZ_CHECK(result != PLEAT_OK || takes <= bytes, "%llu bytes fit in %llu",
               (unsigned long long)takes, (unsigned long long)bytes);
}
