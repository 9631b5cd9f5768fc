/*
 * ahead.c: lists of what is to be made ahead, carried out by the thread while the test holds what
 * lists them: what waits for it, what goes back, and what its end leaves undone. On host memory.
 */
#include "ground.h"

#include <internal/error.h>
#include <runtime/learn/ahead.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#define CHUNK 8u /* chunks of a step */

typedef struct fixture {
    ground g;
    pleat__ahead ahead;
    /* Of the list: calls so far; a call from `held` on waits until it may go on. */
    _Atomic uint32_t calls;
    uint32_t held;
    atomic_bool goes_on, late;
    bool long_views; /* all of a step's chunks */
} fixture;

static bool drop_none(void *context, uint64_t keep_pages)
{
    (void)context;
    (void)keep_pages;
    return false;
}

static void begin(fixture *f, bool waits)
{
    const pleat__view_room room = {.limit = 1000, .drop = drop_none};
    memset(f, 0, sizeof *f);
    f->held = UINT32_MAX;
    ground_begin(&f->g);
    pleat__ahead_init(&f->ahead, f->g.arena, &f->g.pool, room, waits);
}

static void end(fixture *f)
{
    pleat__ahead_release(&f->ahead);
    ground_end(&f->g);
}

/* For two seconds at most. */
static bool wait_for(const atomic_bool *what)
{
    for (int i = 0; i < 2000 && !atomic_load(what); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return atomic_load(what);
}

/* Call n lists some chunks that are due at 10 * n, and a view of two of them or all, due a little
 * later. */
static pleat_result list(void *context, pleat__steps *steps, uint32_t *until)
{
    fixture *f = context;
    if (steps == NULL) {
        *until = UINT32_MAX;
        return PLEAT_OK;
    }
    uint32_t n = atomic_fetch_add(&f->calls, 1);
    if (n >= f->held && !wait_for(&f->goes_on))
        atomic_store(&f->late, true);
    *until = n == 3 ? UINT32_MAX : 10 * n + 9;
    uint32_t chunks[CHUNK];
    for (uint32_t i = 0; i < CHUNK; i++)
        chunks[i] = CHUNK * n + i;
    PLEAT_TRY(pleat__steps_grow(steps, 10 * n, CHUNK * n, CHUNK));
    return pleat__steps_view(steps, 10 * n + 5, CHUNK * (n + 1), chunks, f->long_views ? CHUNK : 2);
}

static void start(fixture *f, pleat__when when)
{
    pleat__gate_lock(&f->g.gate);
    assert_true(pleat__ahead_begin(&f->ahead, list, f, when));
    pleat__gate_unlock(&f->g.gate);
}

/* The second piece of the list is on its way for as long as the test likes. */
static void ahead_waits_for_what_is_asked_for_now_only(void **state)
{
    (void)state;
    fixture f;
    begin(&f, false);
    f.held = 1;
    start(&f, (pleat__when){.now = 6, .soon = 100});
    pleat__gate_lock(&f.g.gate);
    pleat__ahead_await(&f.ahead, CHUNK);
    assert_int_equal(f.g.pool.stocked, CHUNK);
    /* More is not on its way yet. */
    pleat__ahead_await(&f.ahead, CHUNK + 1);
    assert_int_equal(f.g.pool.stocked, CHUNK);
    assert_true(pleat__ahead_is_listing(&f.ahead));
    pleat__gate_unlock(&f.g.gate);
    assert_false(f.late);
    atomic_store(&f.goes_on, true);
    pleat__gate_lock(&f.g.gate);
    pleat__ahead_allow(&f.ahead, (pleat__when){.now = 30, .soon = 100});
    pleat__ahead_await(&f.ahead, 4 * CHUNK);
    assert_int_equal(f.g.pool.stocked, 4 * CHUNK);
    pleat__gate_unlock(&f.g.gate);
    end(&f);
}

static void ahead_gives_back_what_is_late(void **state)
{
    (void)state;
    fixture f;
    uint32_t chunks[] = {0, 1};
    begin(&f, true);
    start(&f, (pleat__when){.now = 100, .soon = 100});
    assert_int_equal(ground_holds(&f.g).mapped_pages, 4 * (CHUNK + 2));
    pleat__gate_lock(&f.g.gate);
    pleat__ahead_allow(&f.ahead, (pleat__when){.late = 5, .now = 100, .soon = 100});
    assert_int_equal(f.g.pool.view_pages, 8);
    pleat__ahead_allow(&f.ahead, (pleat__when){.late = 6, .now = 100, .soon = 100});
    assert_int_equal(f.g.pool.view_pages, 6);
    assert_int_equal(ground_holds(&f.g).mapped_pages, 4 * CHUNK + 6);
    assert_null(pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 0}, chunks, 2));
    /* Chunks may be a later request's, or in its view, until that is late too. */
    pleat__ahead_allow(&f.ahead, (pleat__when){.late = 31, .now = 100, .soon = 100});
    assert_int_equal(ground_holds(&f.g).mapped_pages, 4 * CHUNK + 2);
    pleat__ahead_allow(&f.ahead, (pleat__when){.late = 36, .now = 100, .soon = 100});
    assert_int_equal(f.g.pool.stocked, 0);
    assert_int_equal(ground_holds(&f.g).mapped_pages, 0);
    pleat__gate_unlock(&f.g.gate);
    end(&f);
}

static pleat_result note_run(void *context, pleat__extent run)
{
    *(uint32_t *)context += run.count;
    return PLEAT_OK;
}

/* What was made for other chunks serves where most are the same; where it served nobody no more of
 * them are made. */
static void ahead_serves_a_view_of_nearly_the_same_chunks(void **state)
{
    (void)state;
    fixture f;
    begin(&f, true);
    f.long_views = true;
    start(&f, (pleat__when){.now = 5, .soon = 15});
    assert_int_equal(f.g.pool.view_pages, 2 * CHUNK);
    pleat__gate_lock_turn(&f.g.gate);
    uint32_t chunks[] = {7, 6, 5, 4, 3, 2, 1, 8, 9}; /* 0 is missing */
    uint32_t granules = 0;
    assert_ok(pleat__pool_grow(&f.g.pool, 2 * CHUNK, NULL, note_run, &granules));
    assert_false(pleat__ahead_await_view(&f.ahead, chunks, 9));
    const pleat__step *step = pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 1}, chunks, 9);
    assert_non_null(step);
    static const uint32_t ordered[] = {8, 1, 2, 3, 4, 5, 6, 7, 9};
    assert_memory_equal(chunks, ordered, sizeof chunks);
    uint64_t page, maps = pleat__space_stats_of(f.g.space).maps;
    assert_ok(pleat__ahead_take(&f.ahead, step, chunks, 9, &page));
    assert_int_equal(pleat__space_stats_of(f.g.space).maps - maps, 2);
    for (uint32_t i = 0; i < 9; i++)
        assert_ptr_equal(pleat__space_chunk_at(f.g.space, page + i, &(uint32_t){0}),
                         f.g.pool.chunks[ordered[i]]);
    assert_int_equal(f.g.pool.view_pages, 9 + CHUNK);
    /* It is taken; the next one has none of these. */
    assert_null(pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 0}, chunks, 9));
    pleat__gate_unlock(&f.g.gate);
    pleat__gate_lock(&f.g.gate);
    pleat__ahead_allow(&f.ahead, (pleat__when){.now = 15, .soon = 25});
    assert_int_equal(f.g.pool.view_pages, 9 + 2 * CHUNK);
    assert_null(pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 0}, chunks, 9));
    pleat__ahead_allow(&f.ahead, (pleat__when){.now = 15, .soon = 100});
    assert_int_equal(f.g.pool.stocked, 2 * CHUNK);
    assert_int_equal(f.g.pool.view_pages, 9 + 2 * CHUNK);
    pleat__ahead_end(&f.ahead);
    assert_int_equal(f.g.pool.view_pages, 9);
    pleat__gate_unlock(&f.g.gate);
    pleat__gate_lock_turn(&f.g.gate);
    pleat__pool_unview(&f.g.pool, page, 9);
    pleat__space_give(f.g.space, page, 9);
    pleat__gate_unlock(&f.g.gate);
    end(&f);
}

#define LONG 64u

static pleat_result list_long(void *context, pleat__steps *steps, uint32_t *until)
{
    (void)context;
    uint32_t chunks[LONG];
    for (uint32_t i = 0; i < LONG; i++)
        chunks[i] = i;
    *until = UINT32_MAX;
    if (steps == NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__steps_grow(steps, 0, 0, 2 * LONG));
    return pleat__steps_view(steps, 0, 2 * LONG, chunks, LONG);
}

/* A view's place has room for some chunks more, and no further. */
static void ahead_serves_as_many_chunks_as_there_is_room_for(void **state)
{
    (void)state;
    enum { ROOM = LONG + 1 + PLEAT__BLOCK };
    fixture f;
    uint32_t granules = 0, chunks[ROOM + 1];
    begin(&f, true);
    pleat__gate_lock(&f.g.gate);
    assert_true(pleat__ahead_begin(&f.ahead, list_long, &f, (pleat__when){.now = 9, .soon = 9}));
    pleat__gate_unlock(&f.g.gate);
    pleat__gate_lock_turn(&f.g.gate);
    assert_ok(pleat__pool_grow(&f.g.pool, 2 * LONG, NULL, note_run, &granules));
    for (uint32_t i = 0; i <= ROOM; i++)
        chunks[i] = i;
    assert_null(pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 0}, chunks, ROOM + 1));
    const pleat__step *step = pleat__ahead_find(&f.ahead, (pleat__patch_ends){0, 0}, chunks, ROOM);
    assert_non_null(step);
    uint64_t page;
    assert_ok(pleat__ahead_take(&f.ahead, step, chunks, ROOM, &page));
    for (uint32_t i = 0; i < ROOM; i++)
        assert_ptr_equal(pleat__space_chunk_at(f.g.space, page + i, &(uint32_t){0}),
                         f.g.pool.chunks[i]);
    pleat__pool_unview(&f.g.pool, page, ROOM);
    pleat__space_give(f.g.space, page, ROOM);
    pleat__gate_unlock(&f.g.gate);
    end(&f);
}

/* Who wants handles that begin at certain pages gets none of the stock, which goes with all that
 * shows it. */
static void ahead_makes_way_for_handles_of_another_cut(void **state)
{
    (void)state;
    fixture f;
    uint32_t granules = 0;
    static const uint8_t pages[CHUNK] = {0, 0, 1};
    const pleat__cuts cuts = {.pages = pages, .count = CHUNK};
    begin(&f, true);
    start(&f, (pleat__when){.now = 100, .soon = 100});
    assert_int_equal(ground_holds(&f.g).mapped_pages, 4 * (CHUNK + 2));
    pleat__gate_lock_turn(&f.g.gate);
    assert_ok(pleat__pool_grow(&f.g.pool, CHUNK, &cuts, note_run, &granules));
    assert_int_equal(f.g.pool.stocked, 0);
    assert_int_equal(f.g.pool.view_pages, 0);
    assert_int_equal(f.g.pool.count, CHUNK);
    assert_int_equal(granules, CHUNK * PAGE / 512);
    pleat__gate_unlock(&f.g.gate);
    assert_int_equal(ground_holds(&f.g).mapped_pages, CHUNK);
    end(&f);
}

/* Nothing is given back while a stream captures; when it is over, that is. */
static void ahead_keeps_what_it_made_through_a_capture(void **state)
{
    (void)state;
    fixture f;
    begin(&f, true);
    start(&f, (pleat__when){.now = 100, .soon = 100});
    pleat__gate_lock_turn(&f.g.gate);
    assert_ok(pleat__gate_capture(&f.g.gate, 7));
    pleat__gate_unlock(&f.g.gate);
    pleat__gate_lock(&f.g.gate);
    pleat__ahead_end(&f.ahead);
    assert_int_equal(f.g.pool.stocked, 4 * CHUNK);
    assert_false(pleat__ahead_begin(&f.ahead, list, &f, (pleat__when){.soon = 100}));
    pleat__gate_capture_end(&f.g.gate, 7);
    pleat__ahead_end(&f.ahead);
    assert_int_equal(f.g.pool.stocked, 0);
    pleat__gate_unlock(&f.g.gate);
    assert_int_equal(ground_holds(&f.g).mapped_pages, 0);
    end(&f);
}

static void *release(void *context)
{
    fixture *f = context;
    pleat__ahead_release(&f->ahead);
    return NULL;
}

/* What was due when the runtime's end came is not carried out. */
static void ahead_makes_nothing_more_at_the_end(void **state)
{
    (void)state;
    fixture f;
    pthread_t thread;
    bool over = false;
    begin(&f, false);
    f.held = 0;
    start(&f, (pleat__when){.now = 100, .soon = 100});
    while (atomic_load(&f.calls) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    assert_int_equal(pthread_create(&thread, NULL, release, &f), 0);
    for (int i = 0; i < 2000 && !over; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        pleat__gate_lock(&f.g.gate);
        over = f.ahead.over;
        pleat__gate_unlock(&f.g.gate);
    }
    atomic_store(&f.goes_on, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(over);
    assert_int_equal(ground_holds(&f.g).mapped_pages, 0);
    assert_int_equal(f.calls, 1);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ahead_waits_for_what_is_asked_for_now_only),
        cmocka_unit_test(ahead_gives_back_what_is_late),
        cmocka_unit_test(ahead_serves_a_view_of_nearly_the_same_chunks),
        cmocka_unit_test(ahead_serves_as_many_chunks_as_there_is_room_for),
        cmocka_unit_test(ahead_makes_way_for_handles_of_another_cut),
        cmocka_unit_test(ahead_keeps_what_it_made_through_a_capture),
        cmocka_unit_test(ahead_makes_nothing_more_at_the_end),
    };
    return cmocka_run_group_tests_name("ahead", tests, NULL, NULL);
}
