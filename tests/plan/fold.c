/*
 * fold.c: free ranges against a model, folding against brute force and the plan verifier, cutting
 * against the page table.
 *
 * The property test draws FOLD_INSTANCES small problems (ties, zero sizes, zero lives, lives that
 * wrap around, several streams, fixed places) and some of thousands of requests. In builds without
 * assertions it draws 8,000, with them 2,000; PLEAT_TEST_INSTANCES sets another number, such as the
 * 40,000 of the long run.
 */
#include "arena.h"

#include <plan/fold/fold_internal.h>
#include <string.h>

#ifdef NDEBUG
#define FOLD_INSTANCES 8000u
#else
#define FOLD_INSTANCES 2000u
#endif

/* --- gaps --- */

#define MODEL 4096u

static uint64_t model_place(const uint8_t *model, uint64_t size, bool high)
{
    for (uint64_t i = 0; i + size <= MODEL; i++) {
        uint64_t at = high ? MODEL - size - i : i, run = 0;
        while (run < size && model[at + run])
            run++;
        if (run == size)
            return at;
    }
    return UINT64_MAX;
}

static void gaps_keep_what_a_bitmap_keeps(void **state)
{
    (void)state;
    test_random random = test_random_begin("gaps", 0x6a95);
    static uint8_t model[MODEL];
    pleat__gaps gaps;
    pleat__gaps_init(&gaps, arena);
    memset(model, 0, sizeof model);
    for (int step = 0; step < 60000; step++) {
        uint64_t begin = test_random_below(&random, MODEL), end = begin;
        uint8_t kind = model[begin];
        uint64_t most = 1 + test_random_below(&random, step % 1000 < 500 ? 2 : 40);
        while (end < MODEL && end - begin < most && model[end] == kind)
            end++;
        pleat__range range = {begin, end};
        assert_true(pleat__gaps_holds(&gaps, range) == (kind == 1));
        assert_ok(kind ? pleat__gaps_take(&gaps, range) : pleat__gaps_give(&gaps, range));
        memset(model + begin, !kind, end - begin);
        uint64_t size = 1 + test_random_below(&random, 64), place;
        uint64_t low = model_place(model, size, false), high = model_place(model, size, true);
        assert_true(pleat__gaps_lowest(&gaps, size, &place) == (low != UINT64_MAX));
        assert_true(low == UINT64_MAX || place == low);
        assert_true(pleat__gaps_highest(&gaps, size, &place) == (high != UINT64_MAX));
        assert_true(high == UINT64_MAX || place == high);
        if (step % 512 == 0)
            assert_true(pleat__gaps_audit(&gaps));
    }
    pleat__gaps_clear(&gaps);
    assert_true(pleat__gaps_audit(&gaps));
    pleat__gaps_done(&gaps);
}

/* --- brute force --- */

static bool empty(const pleat__problem *p, const pleat__item *i)
{
    bool wraps = p->circular && i->end <= i->begin;
    return i->size == 0 || (wraps ? i->begin >= p->horizon && i->end == 0 : i->end <= i->begin);
}

static bool live_at(const pleat__problem *p, const pleat__item *i, uint32_t t)
{
    if (p->circular && i->end <= i->begin)
        return t >= i->begin || t < i->end;
    return t >= i->begin && t < i->end;
}

static bool live_together(const pleat__problem *p, const pleat__item *a, const pleat__item *b)
{
    /* Some instant at which one of them begins, or time 0. */
    return (live_at(p, a, b->begin) && live_at(p, b, b->begin)) ||
           (live_at(p, a, a->begin) && live_at(p, b, a->begin)) ||
           (live_at(p, a, 0) && live_at(p, b, 0));
}

/* Streams own their memory, except where an item is live always. */
static bool conflict(const pleat__problem *p, const pleat__item *a, const pleat__item *b)
{
    if (empty(p, a) || empty(p, b))
        return false;
    return live_together(p, a, b) || a->stream != b->stream;
}

/* The lowest places that are free, in order of index; fixed items first. */
static uint64_t first_fit(const pleat__problem *p, uint64_t *places)
{
    uint64_t height = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint64_t at = 0;
        if (p->items[i].fixed != UINT64_MAX)
            continue;
        for (uint32_t j = 0; j < p->count && !empty(p, &p->items[i]);) {
            uint64_t other = j < i || p->items[j].fixed == UINT64_MAX ? places[j] : 0;
            bool placed = j < i || p->items[j].fixed != UINT64_MAX;
            if (p->items[j].fixed != UINT64_MAX)
                other = p->items[j].fixed;
            if (j != i && placed && conflict(p, &p->items[i], &p->items[j]) &&
                at < other + p->items[j].size && other < at + p->items[i].size) {
                at = other + p->items[j].size;
                j = 0;
                continue;
            }
            j++;
        }
        places[i] = at;
        height = at + p->items[i].size > height ? at + p->items[i].size : height;
    }
    for (uint32_t i = 0; i < p->count; i++)
        if (p->items[i].fixed != UINT64_MAX)
            places[i] = p->items[i].fixed;
    return height;
}

/* What an item holds of a page: [begin, end) within it. */
static pleat__range part_of(const pleat__item *item, uint64_t place, uint64_t page, uint64_t chunk)
{
    pleat__range part = {0, chunk};
    if (place > page * chunk)
        part.begin = place - page * chunk;
    if (place + item->size < (page + 1) * chunk)
        part.end = place + item->size - page * chunk;
    return part;
}

static void assert_parts_apart(const pleat__problem *p, const pleat__layout *layout, uint64_t chunk,
                               uint32_t i, uint32_t j)
{
    const pleat__item *a = &p->items[i], *b = &p->items[j];
    uint64_t place_a = layout->places[i], place_b = layout->places[j];
    for (uint64_t x = place_a / chunk; x * chunk < place_a + a->size; x++)
        for (uint64_t y = place_b / chunk; y * chunk < place_b + b->size; y++) {
            if (layout->pages[x] != layout->pages[y] || (i == j && x == y))
                continue;
            if (pleat__range_overlaps(part_of(a, place_a, x, chunk), part_of(b, place_b, y, chunk)))
                fail_msg("items %u and %u share chunk %u", i, j, layout->pages[x]);
        }
}

/* No two items in conflict share a byte of a chunk, and no item one with itself. */
static void assert_layout_holds(const pleat__problem *p, const pleat__layout *layout,
                                uint64_t chunk)
{
    for (uint32_t i = 0; i < p->count; i++) {
        const pleat__item *item = &p->items[i];
        if (empty(p, item)) {
            assert_int_equal(layout->places[i], 0);
            continue;
        }
        assert_true(item->fixed == UINT64_MAX || layout->places[i] == item->fixed);
        for (uint64_t x = layout->places[i] / chunk; x * chunk < layout->places[i] + item->size;
             x++) {
            assert_true(x < layout->page_count);
            assert_true(layout->pages[x] != PLEAT__NO_CHUNK);
        }
    }
    for (uint32_t i = 0; i < p->count; i++)
        for (uint32_t j = 0; j <= i; j++)
            if (conflict(p, &p->items[i], &p->items[j]))
                assert_parts_apart(p, layout, chunk, i, j);
}

/* Chunks that `rounded` sizes need at the worst time, each stream at its own. Wrap-around items
 * count as live always when `wraps_always`. */
static uint64_t chunks_live(const pleat__problem *p, uint64_t chunk, bool rounded,
                            bool wraps_always)
{
    uint64_t sum[4] = {0}, always = 0, unit = rounded ? chunk : 1;
    for (uint32_t stream = 0; stream < 3; stream++)
        for (uint32_t k = 0; k < p->count; k++) {
            uint32_t t = p->items[k].begin;
            uint64_t live = 0;
            for (uint32_t i = 0; i < p->count; i++) {
                const pleat__item *item = &p->items[i];
                bool wraps = p->circular && item->end <= item->begin;
                bool all = item->begin == 0 && item->end == p->horizon;
                if (empty(p, item) || all || item->stream != stream ||
                    (rounded && item->fixed != UINT64_MAX))
                    continue;
                if (live_at(p, item, t) || (wraps && wraps_always))
                    live += pleat__ceil_div(item->size, unit) * unit;
            }
            sum[stream] = live > sum[stream] ? live : sum[stream];
        }
    for (uint32_t i = 0; i < p->count; i++) {
        const pleat__item *item = &p->items[i];
        if (!empty(p, item) && item->begin == 0 && item->end == p->horizon &&
            !(rounded && item->fixed != UINT64_MAX))
            always += pleat__ceil_div(item->size, unit) * unit;
    }
    return pleat__ceil_div(sum[0] + sum[1] + sum[2] + always, chunk);
}

static uint32_t fixed_pages(const pleat__problem *p, uint64_t chunk)
{
    static uint8_t seen[1 << 16];
    uint32_t count = 0;
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < p->count; i++) {
        const pleat__item *item = &p->items[i];
        if (item->fixed == UINT64_MAX || empty(p, item))
            continue;
        for (uint64_t x = item->fixed / chunk; x * chunk < item->fixed + item->size; x++) {
            count += !seen[x];
            seen[x] = 1;
        }
    }
    return count;
}

/* A problem with items that are mostly a few chunks long. */
static void draw(test_random *random, uint32_t most, pleat__item *items, pleat__problem *p,
                 uint64_t *chunk)
{
    *chunk = 512ull << test_random_below(random, 4);
    p->items = items;
    p->count = 1 + (uint32_t)test_random_below(random, most);
    p->horizon = 1 + (uint32_t)test_random_below(random, 2 * p->count + 8);
    p->circular = test_random_below(random, 2);
    uint64_t streams = test_random_below(random, 4) == 0 ? 3 : 1;
    uint64_t sizes = 1 + test_random_below(random, 24);
    uint32_t longest = 1 + (uint32_t)test_random_below(random, p->horizon);
    bool fixed = test_random_below(random, 4) == 0;
    uint64_t next_fixed = test_random_below(random, 4) * 512;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t begin = (uint32_t)test_random_below(random, p->horizon);
        uint32_t end = begin + (uint32_t)test_random_below(random, longest + 1);
        if (end > p->horizon)
            end = p->circular ? end - p->horizon : p->horizon;
        if (end == begin && p->circular)
            end = begin + 1;
        items[i] = (pleat__item){.size = test_random_below(random, sizes + 1) * 512,
                                 .fixed = UINT64_MAX,
                                 .begin = begin,
                                 .end = end,
                                 .stream = (uint16_t)test_random_below(random, streams)};
        if (test_random_below(random, 12) == 0) {
            items[i].begin = 0;
            items[i].end = p->horizon;
        }
        if (fixed && test_random_below(random, 6) == 0) {
            items[i].fixed = next_fixed;
            next_fixed += items[i].size + test_random_below(random, 8) * 512;
        }
    }
}

static void assert_cut_gives_the_pages_back(const pleat__layout *layout, uint64_t chunk)
{
    pleat_plan plan = {.arena = arena, .chunk_bytes = chunk};
    uint32_t *table, aliases = 0;
    assert_ok(pleat__layout_cut(layout, &plan));
    assert_ok(pleat__plan_page_table(&plan, arena, &table));
    assert_int_equal(plan.physical_bytes, layout->chunks * chunk);
    assert_int_equal(plan.virtual_bytes, layout->page_count * chunk);
    /* The same pages show the same chunk, and no others. */
    uint32_t *name = pleat__arena_alloc(arena, (layout->page_count + 1) * sizeof *name);
    for (uint32_t page = 0; page < layout->page_count; page++)
        name[page] = UINT32_MAX;
    for (uint32_t page = 0; page < layout->page_count; page++) {
        uint32_t is = layout->pages[page];
        assert_true((is == PLEAT__NO_CHUNK) == (table[page] == UINT32_MAX));
        if (is == PLEAT__NO_CHUNK)
            continue;
        if (name[is] == UINT32_MAX)
            name[is] = table[page];
        assert_int_equal(name[is], table[page]);
    }
    for (uint32_t m = 0; m < plan.map_count; m++) {
        assert_true(m == 0 || plan.maps[m].page > plan.maps[m - 1].page);
        aliases += plan.maps[m].alias ? plan.handles[plan.maps[m].handle].chunks : 0;
    }
    assert_int_equal(aliases, layout->alias_pages);
    pleat__arena_free(arena, name);
    pleat__arena_free(arena, table);
    pleat__arena_free(arena, plan.handles);
    pleat__arena_free(arena, plan.maps);
}

/* An item's events among all: by time, frees first. */
static uint32_t rank_of(const pleat__problem *p, uint32_t item, bool is_free)
{
    uint32_t time = is_free ? p->items[item].end : p->items[item].begin, rank = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        uint32_t begin = p->items[i].begin, end = p->items[i].end;
        rank += end < time || (end == time && (!is_free || i < item));
        rank += begin < time || (begin == time && !is_free && i < item);
    }
    return rank;
}

static int compare_slots(const void *a, const void *b)
{
    const pleat__slot *x = a, *y = b;
    return (x->alloc_at > y->alloc_at) - (x->alloc_at < y->alloc_at);
}

/* The layout as a plan: what is live always is persistent, the rest is the steady iteration. */
static void assert_verifier_agrees(const pleat__problem *p, const pleat__layout *layout,
                                   uint64_t chunk)
{
    pleat_plan *plan;
    uint64_t streams[3] = {0};
    assert_ok(pleat__plan_new(&plan));
    plan->chunk_bytes = chunk;
    plan->streams = streams;
    plan->stream_count = 3;
    plan->first.slots = pleat__arena_calloc(plan->arena, p->count, sizeof(pleat__slot));
    plan->steady.slots = pleat__arena_calloc(plan->arena, p->count, sizeof(pleat__slot));
    for (uint32_t i = 0; i < p->count; i++) {
        const pleat__item *item = &p->items[i];
        pleat__slot slot = {.size = item->size,
                            .place = layout->places[i],
                            .stream = item->stream,
                            .lane = PLEAT__NO_LANE};
        if (empty(p, item))
            continue;
        if (item->begin == 0 && item->end == p->horizon) {
            slot.class = PLEAT__CLASS_PERSISTENT;
            slot.alloc_at = plan->first.slot_count;
            slot.free_at = PLEAT__NEVER;
            plan->first.slots[plan->first.slot_count++] = slot;
        } else {
            slot.alloc_at = rank_of(p, i, false);
            slot.free_at = rank_of(p, i, true);
            plan->steady.slots[plan->steady.slot_count++] = slot;
        }
    }
    qsort(plan->steady.slots, plan->steady.slot_count, sizeof(pleat__slot), compare_slots);
    plan->first.events = plan->first.slot_count;
    plan->steady.events = 2 * p->count + 1;
    plan->steady_request = plan->first.slot_count;
    plan->requests = plan->first.slot_count + plan->steady.slot_count;
    assert_ok(pleat__layout_cut(layout, plan));
    assert_ok(pleat_plan_verify(plan, NULL));
    pleat_plan_free(plan);
}

static void check_instance(test_random *random, uint32_t most)
{
    static pleat__item items[5000];
    static uint64_t places[5000];
    pleat__problem p;
    pleat__layout layout, again;
    uint64_t chunk;
    uint32_t floor;
    draw(random, most, items, &p, &chunk);
    first_fit(&p, places);
    pleat__fold_options options = {.chunk_bytes = chunk};
    assert_ok(pleat__fold_make(&p, places, &options, arena, &layout));
    assert_layout_holds(&p, &layout, chunk);
    assert_ok(pleat__floor_chunks(&p, chunk, arena, &floor));
    assert_int_equal(layout.floor_chunks, floor);
    assert_true(layout.chunks >= floor);
    assert_true(layout.chunks >= chunks_live(&p, chunk, false, false));
    assert_true(fixed_pages(&p, chunk) != 0 || floor == chunks_live(&p, chunk, false, false));
    assert_true(layout.chunks <= fixed_pages(&p, chunk) + chunks_live(&p, chunk, true, true) + 1);
    assert_cut_gives_the_pages_back(&layout, chunk);
    if (p.count <= 300)
        assert_verifier_agrees(&p, &layout, chunk);
    assert_ok(pleat__fold_make(&p, places, &options, arena, &again));
    assert_int_equal(again.page_count, layout.page_count);
    assert_memory_equal(again.places, layout.places, p.count * sizeof *layout.places);
    assert_memory_equal(again.pages, layout.pages, layout.page_count * sizeof *layout.pages);
    pleat__layout_free(&layout, arena);
    pleat__layout_free(&again, arena);
}

static void fold_holds_on_random_instances(void **state)
{
    (void)state;
    test_random random = test_random_begin("fold", 0xf01d);
    const char *given = getenv("PLEAT_TEST_INSTANCES");
    uint64_t count = given != NULL ? strtoull(given, NULL, 0) : FOLD_INSTANCES;
    uint64_t before = pleat__arena_bytes_of(arena).allocated;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t seed = random.state;
        check_instance(&random, i % 20000 == 19999 ? 5000 : i % 500 == 499 ? 300 : 24);
        if (pleat__arena_bytes_of(arena).allocated != before)
            fail_msg("instance %llu (PLEAT_TEST_SEED=0x%llx) keeps memory", (unsigned long long)i,
                     (unsigned long long)seed);
    }
}

/* --- known answers --- */

/* Two items of two chunks leave one idle chunk each at both ends of a third; the fourth needs both
 * idle chunks at once, which are not neighbours. */
static void fold_stitches_what_no_hole_holds(void **state)
{
    (void)state;
    const uint64_t chunk = 2 << 20;
    const pleat__item items[] = {{chunk, UINT64_MAX, 0, 2, 0, 0, 0, 0},
                                 {chunk, UINT64_MAX, 0, 4, 0, 0, 0, 0},
                                 {chunk, UINT64_MAX, 0, 2, 0, 0, 0, 0},
                                 {2 * chunk, UINT64_MAX, 2, 4, 0, 0, 0, 0}};
    const pleat__problem p = {items, 4, 5, false};
    const uint64_t places[] = {0, chunk, 2 * chunk, 3 * chunk};
    pleat__layout layout;
    pleat__fold_options options = {.chunk_bytes = chunk, .contiguous = true};
    assert_ok(pleat__fold_make(&p, places, &options, arena, &layout));
    assert_int_equal(layout.chunks, 5);
    assert_int_equal(layout.alias_pages, 0);
    pleat__layout_free(&layout, arena);
    options.contiguous = false;
    assert_ok(pleat__fold_make(&p, places, &options, arena, &layout));
    assert_int_equal(layout.chunks, 3);
    assert_layout_holds(&p, &layout, chunk);
    pleat__layout_free(&layout, arena);
}

static void cut_shares_a_handle_where_neighbours_stay_together(void **state)
{
    (void)state;
    uint32_t pages[] = {0, 1, 2, 3, PLEAT__NO_CHUNK, 5, 1, 2, 5};
    const pleat__layout layout = {
        .pages = pages, .page_count = 9, .base_pages = 6, .chunks = 5, .alias_pages = 3};
    pleat_plan plan = {.arena = arena, .chunk_bytes = 4096};
    assert_ok(pleat__layout_cut(&layout, &plan));
    assert_int_equal(plan.handle_count, 4); /* 0, 1-2, 3, 5 */
    assert_int_equal(plan.handles[1].chunks, 2);
    assert_int_equal(plan.map_count, 6);
    assert_int_equal(plan.maps[4].page, 6);
    assert_int_equal(plan.maps[4].handle, 1);
    assert_int_equal(plan.maps[4].alias, 1);
    assert_int_equal(plan.physical_bytes, 5 * 4096);
    assert_cut_gives_the_pages_back(&layout, 4096);
    pleat__arena_free(arena, plan.handles);
    pleat__arena_free(arena, plan.maps);
}

/* As many that cross the horizon, or end there, as there are in the way that go one by one. */
static uint64_t work_of_crossing(uint32_t count, bool ends_there)
{
    enum { MOST = 1600 };
    static pleat__item items[2 * MOST];
    assert_true(count <= MOST);
    for (uint32_t i = 0; i < count; i++) {
        items[i] = (pleat__item){.size = 1000, .fixed = 2000 * i, .end = 2 * i + 2};
        items[count + i] = (pleat__item){.size = 1000,
                                         .fixed = UINT64_MAX,
                                         .begin = 2 * count + 2 * i,
                                         .end = ends_there ? 0 : 2 * i + 1};
    }
    const pleat__problem p = {items, 2 * count, 4 * count, true};
    static const uint8_t low[2 * MOST];
    static uint64_t places[2 * MOST];
    const pleat__fold_options options = {.chunk_bytes = 4096};
    const pleat__sweep_limits limits = {.cap = 1, .chunks = PLEAT__PAGES_MOST, .cost = UINT64_MAX};
    pleat__try layout = {.places = places};
    pleat__fold_jobs jobs;
    pleat__sweep *sweep;
    bool done;
    uint32_t stuck;
    assert_ok(pleat__fold_jobs_make(&p, options.chunk_bytes, arena, &jobs));
    pleat__fold_job *job = &jobs.jobs[0];
    job->options = &options;
    assert_ok(pleat__sweep_create(job, &sweep));
    assert_ok(pleat__sweep_run(sweep, low, NULL, 0, &limits, &layout, &done, &stuck));
    assert_true(done);
    uint64_t work = job->work;
    pleat__sweep_destroy(sweep);
    pleat__arena_free(arena, layout.views);
    pleat__fold_jobs_free(&jobs);
    return work;
}

static void fold_of_many_that_cross_takes_work_in_proportion(void **state)
{
    (void)state;
    uint64_t few = work_of_crossing(400, false), many = work_of_crossing(1600, false);
    assert_true(many < 8 * few);
    few = work_of_crossing(400, true);
    many = work_of_crossing(1600, true);
    assert_true(many < 8 * few);
}

static void layout_too_large_is_an_error(void **state)
{
    (void)state;
    const pleat__item item = {512, UINT64_MAX, 0, 1, 0, 0, 0, 0};
    const pleat__problem p = {&item, 1, 2, false};
    const uint64_t place = 512ull * UINT32_MAX;
    const pleat__fold_options options = {.chunk_bytes = 512};
    pleat__layout layout;
    assert_result(pleat__fold_make(&p, &place, &options, arena, &layout), PLEAT_E_LIMIT);
    assert_null(layout.places);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gaps_keep_what_a_bitmap_keeps),
        cmocka_unit_test(fold_stitches_what_no_hole_holds),
        cmocka_unit_test(cut_shares_a_handle_where_neighbours_stay_together),
        cmocka_unit_test(fold_of_many_that_cross_takes_work_in_proportion),
        cmocka_unit_test(layout_too_large_is_an_error),
        cmocka_unit_test(fold_holds_on_random_instances),
    };
    return cmocka_run_group_tests_name("fold", tests, open_arena, close_arena);
}
