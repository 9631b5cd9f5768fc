/*
 * free_runs.c: the two sets of free runs (see free_runs.h).
 */
#include <runtime/memory/free_runs.h>

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

pleat_result pleat__free_runs_reserve(pleat__free_runs *runs, uint32_t more)
{
    PLEAT_TRY(pleat__key_set_reserve(&runs->by_place, more));
    return pleat__key_set_reserve(&runs->by_size, more);
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

static void insert(pleat__free_runs *runs, pleat__run run)
{
    pleat__key_set_insert(&runs->by_place, place_key(run));
    pleat__key_set_insert(&runs->by_size, size_key(run));
    runs->granules += run.count;
}

static void drop(pleat__free_runs *runs, pleat__run run)
{
    pleat__key_set_remove(&runs->by_place, place_key(run));
    pleat__key_set_remove(&runs->by_size, size_key(run));
    runs->granules -= run.count;
}

static void replace(pleat__free_runs *runs, pleat__run old, pleat__run run)
{
    pleat__key_set_replace(&runs->by_place, place_key(old), place_key(run));
    pleat__key_set_replace(&runs->by_size, size_key(old), size_key(run));
    runs->granules += run.count;
    runs->granules -= old.count;
}

void pleat__free_runs_add(pleat__free_runs *runs, pleat__run run, bool join_before, bool join_after)
{
    if (run.count == 0)
        return;
    uint64_t before, behind;
    pleat__key_set_around(&runs->by_place, place_key(run), &before, &behind);
    pleat__run lower = run_at_place(before), upper = run_at_place(behind);
    bool joins_lower = join_before && before != 0 && lower.begin + lower.count == run.begin;
    bool joins_upper = join_after && behind != 0 && upper.begin == run.begin + run.count;
    pleat__run whole = {joins_lower ? lower.begin : run.begin, run.count +
                                                                   (joins_lower ? lower.count : 0) +
                                                                   (joins_upper ? upper.count : 0)};
    if (joins_lower && joins_upper)
        drop(runs, upper);
    if (joins_lower || joins_upper)
        replace(runs, joins_lower ? lower : upper, whole);
    else
        insert(runs, whole);
}

bool pleat__free_runs_carve(pleat__free_runs *runs, pleat__run run)
{
    pleat__run old = pleat__free_runs_at(runs, run.begin);
    uint32_t end = run.begin + run.count, old_end = old.begin + old.count;
    if (old.count == 0 || old_end < end)
        return false;
    pleat__run low = {old.begin, run.begin - old.begin}, high = {end, old_end - end};
    if (low.count == 0 && high.count == 0) {
        drop(runs, old);
        return true;
    }
    replace(runs, old, low.count != 0 ? low : high);
    if (low.count != 0 && high.count != 0)
        insert(runs, high);
    return true;
}

/* ---- questions ---- */

pleat__run pleat__free_runs_best(const pleat__free_runs *runs, uint32_t count)
{
    return run_of_size(pleat__key_set_above(&runs->by_size, key_of(count, 0) - 1));
}

pleat__run pleat__free_runs_after(const pleat__free_runs *runs, pleat__run run)
{
    return run_of_size(pleat__key_set_above(&runs->by_size, size_key(run)));
}

pleat__run pleat__free_runs_largest(const pleat__free_runs *runs)
{
    return run_of_size(pleat__key_set_at_most(&runs->by_size, UINT64_MAX));
}

pleat__run pleat__free_runs_before(const pleat__free_runs *runs, pleat__run run)
{
    return run_of_size(pleat__key_set_at_most(&runs->by_size, size_key(run) - 1));
}

pleat__run pleat__free_runs_at(const pleat__free_runs *runs, uint32_t granule)
{
    pleat__run run =
        run_at_place(pleat__key_set_at_most(&runs->by_place, key_of(granule, UINT32_MAX)));
    return granule - run.begin < run.count ? run : (pleat__run){0, 0};
}

bool pleat__free_runs_audit(const pleat__free_runs *runs)
{
    return pleat__key_set_audit(&runs->by_place) && pleat__key_set_audit(&runs->by_size) &&
           runs->by_place.count == runs->by_size.count;
}
