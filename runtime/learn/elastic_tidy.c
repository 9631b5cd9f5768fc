/*
 * elastic_tidy.c: memory that the job's sizes do not need any more goes back (see elastic.h).
 *
 * An instance serves smaller sizes at the addresses of the one that it was laid out for, and its
 * chunks are kept: that costs nothing as long as nobody else wants them. They go
 *
 *   - where more exists than the limit allows, because that was lowered;
 *   - where a long time had only smaller sizes: so long that to make and to map the chunks again
 *     would take less than 0.5 % of it, as for maps (map_budget.h).
 *
 * Then the largest x of that time is laid out anew in the lowest homes, as few as it needs, at the
 * first requests that say that an iteration has it or less; all other layouts go, and at the marks
 * that follow, when their views are unmapped, so does what lies above.
 */
#include <runtime/learn/elastic.h>

#include <internal/error.h>

/* How long is looked at, at least, iterations as well, and at most before it is looked at again. */
#define LEAST_NS UINT64_C(10000000000)
#define LEAST    16u
#define MOST_NS  UINT64_C(3600000000000)
/* 200 times what a chunk takes to be created, mapped, unmapped and released. */
#define CHUNK_NS UINT64_C(20000000)
/* Of the chunks that exist one in so many at least is worth it. */
#define WORTH 32u
/* Marks at which chunks are given back: views are unmapped when nothing lies in them any more. */
#define MARKS 32u

static void window_begin(pleat__elastic *elastic, uint64_t now, uint64_t wait)
{
    elastic->window_ns = now;
    elastic->window_clock = elastic->clock;
    elastic->window_wait = wait < MOST_NS ? wait : MOST_NS;
    elastic->window_most = PLEAT__NO_X;
}

/* The chunks that there would be with the window's largest x laid out as tightly as can be. */
static pleat_result chunks_for(pleat__elastic *elastic, uint32_t *chunks)
{
    pleat__ground ground = pleat__elastic_ground(elastic);
    pleat__x x = elastic->window_most;
    PLEAT_TRY(pleat__live_create(elastic->arena, &elastic->crossing));
    pleat_result result = pleat__elastic_list_crossing(elastic, elastic->now->follow);
    elastic->measuring = true;
    if (result == PLEAT_OK)
        result = pleat__instance_takes(&ground, elastic->scale, &x, elastic->choice, 0, chunks);
    elastic->measuring = false;
    pleat__live_destroy(&elastic->crossing);
    return result;
}

static void tighten(pleat__elastic *elastic, const pleat__x *x)
{
    elastic->tight = true;
    elastic->tight_x = *x;
}

/* Whether the time since the window began is long enough for what would go. pre: the turn, and an
 * instance is followed. */
static void judge_window(pleat__elastic *elastic, uint64_t now)
{
    const pleat__pool *pool = elastic->heap->pool;
    uint32_t exist = pool->count - pool->absent, needed;
    if (chunks_for(elastic, &needed) != PLEAT_OK || needed >= exist - exist / WORTH) {
        window_begin(elastic, now, 2 * elastic->window_wait);
        return;
    }
    uint64_t wanted = (exist - needed) * CHUNK_NS;
    if (now - elastic->window_ns < wanted) {
        elastic->window_wait = wanted;
        return;
    }
    tighten(elastic, &elastic->window_most);
    window_begin(elastic, now, LEAST_NS);
}

/* Chunks above the layout that is followed. pre: the turn. */
static void give_back(pleat__elastic *elastic)
{
    pleat__pool *pool = elastic->heap->pool;
    uint64_t page = elastic->now->end_page;
    if (elastic->tidying == 0 || elastic->tidying-- == MARKS)
        (void)pleat__heap_drop_views(elastic->heap, 0);
    if (pleat__heap_shrink(elastic->heap, UINT32_MAX, &page) == 0)
        return;
    pleat__elastic_shrunk(elastic, page);
    pleat__gate_leave(pool->gate);
    (void)pleat__space_trim(pool->space, 0);
    pleat__gate_enter(pool->gate);
}

void pleat__elastic_tightened(pleat__elastic *elastic)
{
    elastic->tight = false;
    elastic->tidying = MARKS;
}

void pleat__elastic_tidy(pleat__elastic *elastic)
{
    const pleat__instance *now = elastic->now;
    if (now == NULL || now->stale || elastic->making || elastic->measuring || elastic->tight ||
        elastic->coming.instance != NULL || !pleat__x_is_known(&elastic->x))
        return;
    uint64_t time = pleat__account_now(&elastic->heap->account);
    bool over = pleat__space_over_budget(elastic->heap->pool->space);
    elastic->window_most = pleat__x_is_known(&elastic->window_most)
                               ? pleat__x_larger(&elastic->window_most, &elastic->x)
                               : elastic->x;
    bool smaller = !pleat__x_holds(&elastic->window_most, &now->x);
    if (elastic->window_ns == 0 || !smaller)
        window_begin(elastic, time, LEAST_NS);
    bool passed = smaller && time - elastic->window_ns >= elastic->window_wait &&
                  elastic->clock - elastic->window_clock >= LEAST;
    if (!(over || passed || elastic->tidying != 0) ||
        pleat__gate_turn(elastic->heap->pool->gate) != PLEAT_OK)
        return;
    if (over || elastic->tidying != 0)
        give_back(elastic);
    /* The lock may have been left. */
    now = elastic->now;
    if (now == NULL || now->stale || elastic->tidying != 0)
        return;
    if (over && !pleat__x_holds(&elastic->x, &now->x))
        tighten(elastic, &elastic->x);
    else if (passed)
        judge_window(elastic, time);
}
