/*
 * patch.c: views made into others: what both show stays, the ends stay, all pages show what they
 * should, and nothing is left where a verb fails. Handles of many sizes, at random, on host memory.
 */
#include "ground.h"

#include <runtime/learn/patch.h>
#include <string.h>

#define HANDLES 400u
#define CHUNKS  (HANDLES * PLEAT__BLOCK)

typedef struct fixture {
    ground g;
    uint32_t handles[HANDLES]; /* first chunks */
} fixture;

static void begin(fixture *f, test_random *random)
{
    memset(f, 0, sizeof *f);
    ground_begin(&f->g);
    pleat__gate_lock_turn(&f->g.gate);
    for (uint32_t i = 0; i < HANDLES; i++) {
        uint32_t pages = 1u << (test_random_below(random, 10) < 6 ? test_random_below(random, 2)
                                                                  : test_random_below(random, 5));
        f->handles[i] = f->g.pool.stocked;
        assert_ok(pleat__pool_stock(&f->g.pool, pages, pages));
        assert_int_equal(f->g.pool.chunks[f->handles[i]]->pages, pages);
    }
}

static void end(fixture *f)
{
    pleat__pool_unstock(&f->g.pool);
    pleat__gate_unlock(&f->g.gate);
    ground_end(&f->g);
}

typedef struct list {
    uint32_t chunks[CHUNKS];
    uint32_t count;
} list;

static uint32_t size_of(const fixture *f, uint32_t first)
{
    return f->g.pool.chunks[first]->pages;
}

static void add(const fixture *f, list *to, uint32_t first)
{
    for (uint32_t k = 0; k < size_of(f, first); k++)
        to->chunks[to->count++] = first + k;
}

/* Two lists of handles in no order; `percent` of them are in both. */
static void draw(const fixture *f, test_random *random, uint32_t percent, list *a, list *b)
{
    uint32_t order[HANDLES];
    a->count = b->count = 0;
    for (uint32_t i = 0; i < HANDLES; i++) {
        uint32_t k = test_random_below(random, i + 1);
        order[i] = order[k];
        order[k] = f->handles[i];
    }
    for (uint32_t i = 0; i < HANDLES; i++) {
        bool both = test_random_below(random, 100) < percent;
        bool first = test_random_below(random, 2) != 0;
        if (both || first)
            add(f, a, order[i]);
        if (both || !first)
            add(f, b, order[i]);
    }
}

/* How many pages show the same in both. */
static uint32_t count_same(const list *a, const list *b)
{
    uint32_t same = 0;
    for (uint32_t i = 0; i < a->count && i < b->count; i++)
        same += a->chunks[i] == b->chunks[i];
    return same;
}

static void assert_ordered(const fixture *f, const list *was, const list *is,
                           pleat__patch_ends ends)
{
    uint8_t seen[CHUNKS] = {0};
    assert_int_equal(is->count, was->count);
    for (uint32_t i = 0; i < was->count; i++)
        seen[was->chunks[i]] = 1;
    for (uint32_t i = 0; i < is->count; i++) {
        uint32_t first = f->g.pool.first[is->chunks[i]];
        assert_int_equal(seen[is->chunks[i]], 1);
        seen[is->chunks[i]] = 0;
        /* Whole handles. */
        if (is->chunks[i] != first)
            assert_int_equal(is->chunks[i - 1], is->chunks[i] - 1);
    }
    for (uint32_t i = 0; i < ends.head; i++)
        assert_int_equal(is->chunks[i], was->chunks[i]);
    for (uint32_t i = was->count - ends.tail; i < was->count; i++)
        assert_int_equal(is->chunks[i], was->chunks[i]);
}

static pleat__patch_ends draw_ends(const fixture *f, test_random *random, const list *of)
{
    pleat__patch_ends ends = {0, 0};
    if (test_random_below(random, 2) != 0)
        ends.head = size_of(f, of->chunks[0]);
    if (test_random_below(random, 2) != 0)
        ends.tail = size_of(f, f->g.pool.first[of->chunks[of->count - 1]]);
    return ends;
}

static uint64_t map_list(fixture *f, const list *l, uint64_t room)
{
    pleat__chunk *run[HANDLES];
    uint32_t handles = 0;
    uint64_t page;
    assert_ok(pleat__space_take(f->g.space, room, &page));
    for (uint32_t i = 0; i < l->count; i += run[handles++]->pages)
        run[handles] = f->g.pool.chunks[l->chunks[i]];
    pleat__gate_leave(&f->g.gate);
    assert_ok(pleat__space_map(f->g.space, page, run, handles));
    pleat__gate_enter(&f->g.gate);
    f->g.pool.view_pages += l->count;
    return page;
}

static void assert_shows(const fixture *f, uint64_t page, uint64_t room, const list *l)
{
    for (uint64_t i = 0; i < room; i++) {
        uint32_t in = 0;
        const pleat__chunk *chunk = pleat__space_chunk_at(f->g.space, page + i, &in);
        if (i >= l->count) {
            assert_null(chunk);
            continue;
        }
        assert_ptr_equal(chunk, f->g.pool.chunks[l->chunks[i]]);
        assert_int_equal(in, l->chunks[i] - f->g.pool.first[l->chunks[i]]);
    }
    assert_int_equal(f->g.pool.view_pages, l->count);
}

static void patch_shows_what_it_should(void **state)
{
    (void)state;
    static fixture f;
    static list there, was, is;
    test_random random = test_random_begin("patch_shows_what_it_should", 5);
    begin(&f, &random);
    for (int round = 0; round < 60; round++) {
        uint32_t common, percent = round % 3 == 0 ? 97 : test_random_below(&random, 101);
        draw(&f, &random, percent, &there, &was);
        uint64_t room = there.count > was.count ? there.count : was.count;
        if (there.count == 0 || was.count == 0)
            continue;
        is = was;
        pleat__patch_ends ends = draw_ends(&f, &random, &was);
        if (ends.head + ends.tail > was.count)
            continue;
        uint8_t *marks = pleat__patch_marks(&f.g.pool, was.chunks, was.count);
        assert_non_null(marks);
        common = pleat__patch_common(&f.g.pool, marks, there.chunks, there.count);
        pleat__arena_free(f.g.arena, marks);
        pleat__patch_order(&f.g.pool, there.chunks, there.count, ends, is.chunks, is.count);
        assert_ordered(&f, &was, &is, ends);
        if (percent == 97)
            assert_true(count_same(&there, &is) > common / 2);
        uint64_t page = map_list(&f, &there, room);
        uint64_t maps = pleat__space_stats_of(f.g.space).maps;
        assert_ok(
            pleat__patch_map(&f.g.pool, page, there.chunks, there.count, is.chunks, is.count));
        assert_shows(&f, page, room, &is);
        maps = pleat__space_stats_of(f.g.space).maps - maps;
        assert_true(maps <= is.count - count_same(&there, &is));
        pleat__pool_unview(&f.g.pool, page, is.count);
        pleat__space_give(f.g.space, page, room);
    }
    end(&f);
}

/* Most stays where little differs: handles of one size leave gaps that fit. */
static void patch_maps_what_differs_only(void **state)
{
    (void)state;
    static fixture f;
    static list there, is;
    test_random random = test_random_begin("patch_maps_what_differs_only", 6);
    begin(&f, &random);
    there.count = is.count = 0;
    for (uint32_t i = 0; i < HANDLES / 2; i++)
        add(&f, &there, f.handles[i]);
    /* The same the other way around, but for the handle in the middle and its like. */
    uint32_t gone = f.handles[HANDLES / 4], like = HANDLES / 2;
    while (size_of(&f, f.handles[like]) != size_of(&f, gone))
        like++;
    for (uint32_t i = HANDLES / 2; i-- > 0;)
        add(&f, &is, f.handles[i] == gone ? f.handles[like] : f.handles[i]);
    pleat__patch_order(&f.g.pool, there.chunks, there.count, (pleat__patch_ends){0, 0}, is.chunks,
                       is.count);
    assert_int_equal(count_same(&there, &is), is.count - size_of(&f, gone));
    end(&f);
}

/* Every verb fails in turn, carried out or not: the view is gone then, or as it should be. */
static void patch_that_fails_leaves_nothing(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {PLEAT__FAULT_map, PLEAT__FAULT_set_access,
                                              PLEAT__FAULT_unmap};
    static fixture f;
    static list there, is;
    uint64_t hits = 0;
    test_random random = test_random_begin("patch_that_fails_leaves_nothing", 7);
    begin(&f, &random);
    for (uint32_t v = 0; v < 2 * sizeof verbs / sizeof *verbs; v++)
        for (uint64_t nth = 1; nth < 12; nth++) {
            draw(&f, &random, 90, &there, &is);
            uint64_t room = there.count > is.count ? there.count : is.count;
            pleat__patch_order(&f.g.pool, there.chunks, there.count, (pleat__patch_ends){0, 0},
                               is.chunks, is.count);
            uint64_t page = map_list(&f, &there, room);
            pleat__fault_arm(
                &f.g.vmm,
                (pleat__fault_plan){.verb = verbs[v / 2], .nth = nth, .carried_out = v % 2 != 0});
            pleat_result result =
                pleat__patch_map(&f.g.pool, page, there.chunks, there.count, is.chunks, is.count);
            uint64_t failed = pleat__fault_hits(&f.g.vmm);
            pleat__fault_arm(&f.g.vmm, (pleat__fault_plan){0});
            hits += failed;
            if (result == PLEAT_OK) {
                assert_shows(&f, page, is.count, &is);
                pleat__pool_unview(&f.g.pool, page, is.count);
            } else {
                assert_int_equal(failed, 1);
            }
            assert_int_equal(f.g.pool.view_pages, 0);
            pleat__space_give(f.g.space, page, room);
            /* What could not be unmapped is now. */
            pleat__gate_leave(&f.g.gate);
            assert_int_equal(pleat__space_heal(f.g.space), 0);
            pleat__gate_enter(&f.g.gate);
            for (uint64_t i = 0; i < room; i++)
                assert_null(pleat__space_chunk_at(f.g.space, page + i, &(uint32_t){0}));
        }
    assert_true(hits > 20);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patch_shows_what_it_should),
        cmocka_unit_test(patch_maps_what_differs_only),
        cmocka_unit_test(patch_that_fails_leaves_nothing),
    };
    return cmocka_run_group_tests_name("patch", tests, NULL, NULL);
}
