/*
 * free_runs.c: the two sets of free runs (see free_runs.h).
 */
#include <runtime/memory/free_runs.h>

#include <internal/check.h>
#include <internal/error.h>

void pleat__free_runs_init(pleat__free_runs *runs, pleat__arena *arena)
{
    pleat__key_set_init(&runs->by_place, arena);
    pleat__key_set_init(&runs->by_size, arena);
    runs->granules = 0;
}

void pleat__free_runs_release(pleat__free_runs *runs)
{
    pleat__key_set_release(&runs->by_place);
    pleat__key_set_release(&runs->by_size);
    runs->granules = 0;
}

void pleat__free_runs_clear(pleat__free_runs *runs)
{
    pleat__key_set_clear(&runs->by_place);
    pleat__key_set_clear(&runs->by_size);
    runs->granules = 0;
}

/* ---- keys ---- */

static inline uint64_t key_of(uint32_t high, uint32_t low)
{
    return (uint64_t)high << 32 | low;
}

static inline uint64_t place_key(pleat__run run)
{
    return key_of(run.begin, run.count);
}

static inline uint64_t size_key(pleat__run run)
{
    return key_of(run.count, run.begin);
}

static inline pleat__run run_at_place(uint64_t key)
{
    return (pleat__run){(uint32_t)(key >> 32), (uint32_t)key};
}

static inline pleat__run run_of_size(uint64_t key)
{
    return (pleat__run){(uint32_t)key, (uint32_t)(key >> 32)};
}

/* ---- changes ---- */

pleat__run pleat__free_runs_add(pleat__free_runs *runs, pleat__run run, bool join_before,
                                bool join_after)
{
    if (run.count == 0)
        return run;
    pleat__key_set *by_place = &runs->by_place, *by_size = &runs->by_size;
    pleat__key_gap gap = pleat__key_set_gap(by_place, place_key(run));
    pleat__run lower = run_at_place(pleat__key_below(by_place, gap));
    pleat__run upper = run_at_place(pleat__key_above(by_place, gap));
    bool joins_lower = join_before && lower.begin + lower.count == run.begin && lower.count != 0;
    bool joins_upper = join_after && upper.begin == run.begin + run.count;
    pleat__run whole = run;
    runs->granules += run.count;
    if (joins_lower)
        whole = (pleat__run){lower.begin, lower.count + run.count};
    if (joins_upper)
        whole.count += upper.count;
    if (!joins_lower && !joins_upper) {
        pleat__key_set_insert_at(by_place, gap, place_key(whole));
        pleat__key_set_insert(by_size, size_key(whole));
        return whole;
    }
    pleat__key_set_put_at(by_place, joins_lower ? gap : pleat__key_gap_above(by_place, gap),
                          place_key(whole));
    pleat__key_set_replace(by_size, size_key(joins_lower ? lower : upper), size_key(whole));
    if (joins_lower && joins_upper) {
        pleat__key_set_remove_at(by_place, pleat__key_gap_above(by_place, gap));
        pleat__key_set_remove(by_size, size_key(upper));
    }
    return whole;
}

/* Takes `run` out of `old`, which is below `place` in order of place and below `size` in order of
 * size. */
static void carve_at(pleat__free_runs *runs, pleat__run old, pleat__key_gap place,
                     pleat__key_gap size, pleat__run run)
{
    pleat__key_set *by_place = &runs->by_place, *by_size = &runs->by_size;
    uint32_t end = run.begin + run.count;
    pleat__run low = {old.begin, run.begin - old.begin};
    pleat__run high = {end, old.begin + old.count - end};
    runs->granules -= run.count;
    if (low.count == 0 && high.count == 0) {
        pleat__key_set_remove_at(by_place, place);
        pleat__key_set_remove_at(by_size, size);
        return;
    }
    pleat__run kept = low.count != 0 ? low : high;
    pleat__key_set_put_at(by_place, place, place_key(kept));
    pleat__key_set_replace_at(by_size, size, size_key(kept));
    if (low.count != 0 && high.count != 0) {
        pleat__key_set_insert_at(by_place, place, place_key(high));
        pleat__key_set_insert(by_size, size_key(high));
    }
}

bool pleat__free_runs_try_carve(pleat__free_runs *runs, pleat__run run)
{
    pleat__key_gap gap = pleat__key_set_gap(&runs->by_place, key_of(run.begin, UINT32_MAX));
    pleat__run old = run_at_place(pleat__key_below(&runs->by_place, gap));
    if (run.begin - old.begin >= old.count || old.begin + old.count < run.begin + run.count)
        return false;
    carve_at(runs, old, gap, pleat__key_set_gap(&runs->by_size, size_key(old)), run);
    return true;
}

void pleat__free_runs_carve(pleat__free_runs *runs, pleat__run run)
{
    PLEAT_CHECK(pleat__free_runs_try_carve(runs, run));
}

void pleat__free_runs_carve_hole(pleat__free_runs *runs, pleat__hole hole, pleat__run run)
{
    pleat__key_gap gap = pleat__key_set_gap(&runs->by_place, place_key(hole.run));
    PLEAT_CHECK(pleat__key_below(&runs->by_place, gap) == place_key(hole.run));
    carve_at(runs, hole.run, gap, hole.behind, run);
}

/* ---- questions ---- */

/* The run below a gap in order of size. */
static inline pleat__hole hole_below(const pleat__key_set *set, pleat__key_gap gap)
{
    return (pleat__hole){run_of_size(pleat__key_below(set, gap)), gap};
}

static inline pleat__hole hole_above(const pleat__key_set *set, pleat__key_gap gap)
{
    return pleat__key_above(set, gap) == 0 ? (pleat__hole){0}
                                           : hole_below(set, pleat__key_gap_above(set, gap));
}

pleat__hole pleat__free_runs_best(const pleat__free_runs *runs, uint32_t count)
{
    const pleat__key_set *set = &runs->by_size;
    return hole_above(set, pleat__key_set_gap(set, key_of(count, 0) - 1));
}

pleat__hole pleat__free_runs_larger(const pleat__free_runs *runs, pleat__hole hole)
{
    return hole_above(&runs->by_size, hole.behind);
}

pleat__hole pleat__free_runs_largest(const pleat__free_runs *runs)
{
    return hole_below(&runs->by_size, pleat__key_set_gap(&runs->by_size, UINT64_MAX));
}

pleat__hole pleat__free_runs_smaller(const pleat__free_runs *runs, pleat__hole hole)
{
    return hole_below(&runs->by_size, pleat__key_gap_below(&runs->by_size, hole.behind));
}

pleat__run pleat__free_runs_at(const pleat__free_runs *runs, uint32_t granule)
{
    pleat__run run =
        run_at_place(pleat__key_set_at_most(&runs->by_place, key_of(granule, UINT32_MAX)));
    return granule - run.begin < run.count ? run : (pleat__run){0, 0};
}

pleat__run pleat__free_runs_from(const pleat__free_runs *runs, uint32_t granule)
{
    pleat__run run = pleat__free_runs_at(runs, granule);
    if (run.count != 0)
        return (pleat__run){granule, run.begin + run.count - granule};
    return run_at_place(pleat__key_set_above(&runs->by_place, key_of(granule, UINT32_MAX)));
}

bool pleat__free_runs_audit(const pleat__free_runs *runs)
{
    return pleat__key_set_audit(&runs->by_place) && pleat__key_set_audit(&runs->by_size) &&
           runs->by_place.count == runs->by_size.count;
}
