/*
 * fold.c: items and a contiguous placement in, a layout out. Has each job (job.c) searched,
 * keeps the contiguous placement where folding gains nothing, and puts the jobs' pages one behind
 * the other, all views behind all base pages.
 *
 * The idea is of no paper: storage allocation with places split at chunk boundaries. Interval
 * graphs colour optimally, so whole chunks served in order of birth need max-live and no more;
 * contiguous placement needs no map. A layout is the second where it fits and the first where it
 * does not.
 */
#include <plan/fold/fold.h>

#include <internal/error.h>
#include <plan/fold/fold_internal.h>
#include <string.h>

void pleat__layout_free(pleat__layout *layout, pleat__arena *arena)
{
    pleat__arena_free(arena, layout->places);
    pleat__arena_free(arena, layout->pages);
    *layout = (pleat__layout){0};
}

/* Marks the base pages that carry an item with the page's own number, and counts them. */
static pleat_result mark_pages(const pleat__problem *problem, uint64_t chunk, pleat__arena *arena,
                               pleat__layout *layout)
{
    for (uint64_t page = 0; page < layout->page_count; page++)
        layout->pages[page] = 0;
    int32_t *steps = pleat__arena_calloc(arena, layout->base_pages + 1u, sizeof *steps);
    if (steps == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u pages", layout->base_pages);
    for (uint32_t i = 0; i < problem->count; i++) {
        uint64_t begin = layout->places[i], end = begin + problem->items[i].size;
        if (pleat__item_empty(problem, &problem->items[i]) || begin / chunk >= layout->base_pages)
            continue;
        steps[begin / chunk]++;
        steps[pleat__ceil_div(end, chunk)]--;
    }
    int32_t items = 0;
    layout->chunks = 0;
    for (uint32_t page = 0; page < layout->base_pages; page++) {
        items += steps[page];
        layout->pages[page] = items != 0 ? page : PLEAT__NO_CHUNK;
        layout->chunks += items != 0;
    }
    pleat__arena_free(arena, steps);
    return PLEAT_OK;
}

static pleat_result allocate(pleat__layout *layout, uint32_t items, uint64_t base_pages,
                             uint64_t pages, pleat__arena *arena)
{
    if (base_pages > pages)
        pages = base_pages;
    PLEAT_TRY(pleat__pages_check(pages));
    layout->base_pages = (uint32_t)base_pages;
    layout->page_count = (uint32_t)pages;
    if (layout->places == NULL)
        layout->places = pleat__arena_alloc(arena, items * sizeof *layout->places);
    layout->pages = pleat__arena_alloc(arena, pages * sizeof *layout->pages);
    if (layout->places == NULL || layout->pages == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a layout of %llu pages",
                           (unsigned long long)pages);
    return PLEAT_OK;
}

/* The layout that the contiguous placement is. */
static pleat_result lay_contiguous(const pleat__problem *problem, const uint64_t *places,
                                   uint64_t chunk, pleat__arena *arena, pleat__layout *layout)
{
    uint64_t height = 0;
    for (uint32_t i = 0; i < problem->count; i++) {
        uint64_t end = places[i] + problem->items[i].size;
        if (!pleat__item_empty(problem, &problem->items[i]) && end > height)
            height = end;
    }
    uint64_t pages = pleat__ceil_div(height, chunk);
    PLEAT_TRY(allocate(layout, problem->count, pages, pages, arena));
    for (uint32_t i = 0; i < problem->count; i++)
        layout->places[i] = pleat__item_empty(problem, &problem->items[i]) ? 0 : places[i];
    return mark_pages(problem, chunk, arena, layout);
}

/* Frees the tries and their views; their places, which they share, are the caller's. */
static void free_tries(pleat__arena *arena, pleat__try *tries, uint32_t count)
{
    for (uint32_t i = 0; tries != NULL && i < count; i++) {
        pleat__arena_free(arena, tries[i].views);
    }
    pleat__arena_free(arena, tries);
}

typedef struct folding {
    pleat__fold_jobs jobs;
    const pleat__fold_options *options;
    pleat__arena *arena;
    pleat__try *tries; /* the best of each job; all use the same places */
    pleat__try next;
    uint64_t *places;
} folding;

static void free_folding(folding *f)
{
    free_tries(f->arena, f->tries, f->jobs.count);
    pleat__arena_free(f->arena, f->next.views);
    pleat__arena_free(f->arena, f->next.places);
    pleat__arena_free(f->arena, f->places);
    pleat__fold_jobs_free(&f->jobs);
}

static pleat_result allocate_tries(folding *f)
{
    size_t count = f->jobs.problem->count + 1u;
    f->tries = pleat__arena_calloc(f->arena, f->jobs.count, sizeof *f->tries);
    f->places = pleat__arena_calloc(f->arena, count, sizeof *f->places);
    f->next.places = pleat__arena_calloc(f->arena, count, sizeof *f->next.places);
    if (f->tries == NULL || f->places == NULL || f->next.places == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fold %u requests",
                           f->jobs.problem->count);
    return PLEAT_OK;
}

/* One job must beat the contiguous placement; of several, only all together can. */
static pleat_result search_job(folding *f, pleat__fold_job *job, pleat__try *best,
                               const pleat__layout *contiguous)
{
    *best = (pleat__try){.places = f->places,
                         .views = best->views,
                         .view_capacity = best->view_capacity,
                         .chunks = f->jobs.count == 1 ? contiguous->chunks : UINT32_MAX};
    return pleat__fold_search(job, best, &f->next);
}

/* Folds every job; *chunks is what they take together, no less than `contiguous` when some job
 * found nothing to its gain. */
static pleat_result fold_jobs(folding *f, const pleat__layout *contiguous, uint64_t *chunks,
                              uint64_t *work)
{
    uint32_t first_page = 0;
    *chunks = 0;
    for (uint32_t i = 0; i < f->jobs.count; i++) {
        pleat__fold_job *job = &f->jobs.jobs[i];
        pleat__try *best = &f->tries[i];
        job->options = f->options;
        job->first_page = first_page;
        PLEAT_TRY(search_job(f, job, best, contiguous));
        *work += job->work;
        *chunks += best->chunks;
        first_page = pleat__fold_behind(job, best->end_page);
    }
    return PLEAT_OK;
}

/* The page behind all base pages. */
static uint64_t base_end(const pleat__fold_jobs *jobs, const pleat__try *tries)
{
    const pleat__fold_job *last = &jobs->jobs[jobs->count - 1];
    uint32_t end = tries[jobs->count - 1].end_page;
    return pleat__fold_behind(&jobs->jobs[0], end > last->first_page ? end : last->first_page);
}

/* Puts the jobs' tries together, all views behind all base pages and at the options' page or above.
 * `layout` has places. */
static pleat_result assemble(folding *f, pleat__layout *layout)
{
    const pleat__fold_jobs *jobs = &f->jobs;
    const pleat__problem *problem = jobs->problem;
    const pleat__try *tries = f->tries;
    uint64_t base = base_end(jobs, tries), chunk = jobs->chunk, views = 0, *places = f->places;
    base = f->options->view_page > base ? f->options->view_page : base;
    for (uint32_t j = 0; j < jobs->count; j++)
        views += tries[j].view_pages;
    PLEAT_TRY(allocate(layout, problem->count, base, base + views, jobs->arena));
    uint64_t at = base;
    for (uint32_t j = 0; j < jobs->count; j++) {
        const pleat__fold_job *job = &jobs->jobs[j];
        for (uint32_t b = 0; b < job->birth_count + job->always_count; b++) {
            uint32_t i = b < job->birth_count ? job->births[b] : job->always[b - job->birth_count];
            if (places[i] >= PLEAT__IN_VIEWS)
                places[i] += at * chunk - PLEAT__IN_VIEWS;
        }
        at += tries[j].view_pages;
        layout->views += tries[j].runs;
        layout->folded += tries[j].folded;
    }
    memcpy(layout->places, places, problem->count * sizeof *layout->places);
    PLEAT_TRY(mark_pages(problem, chunk, jobs->arena, layout));
    at = base;
    for (uint32_t j = 0; j < jobs->count; j++)
        for (uint32_t v = 0; v < tries[j].view_pages; v++) {
            uint32_t page = tries[j].views[v];
            layout->chunks += layout->pages[page] == PLEAT__NO_CHUNK;
            layout->pages[page] = page;
            layout->pages[at++] = page;
        }
    layout->alias_pages = (uint32_t)views;
    return PLEAT_OK;
}

static pleat_result fold(folding *f, pleat__layout *layout)
{
    uint64_t chunks;
    uint32_t floor = layout->floor_chunks;
    if (f->options->contiguous || layout->chunks <= floor)
        return PLEAT_OK;
    PLEAT_TRY(allocate_tries(f));
    PLEAT_TRY(fold_jobs(f, layout, &chunks, &layout->work));
    if (chunks >= layout->chunks)
        return PLEAT_OK;
    pleat__layout folded = {.places = layout->places, .floor_chunks = floor, .work = layout->work};
    pleat__arena_free(f->arena, layout->pages);
    pleat_result result = assemble(f, &folded);
    *layout = folded;
    return result;
}

pleat_result pleat__fold_make(const pleat__problem *problem, const uint64_t *places,
                              const pleat__fold_options *options, pleat__arena *arena,
                              pleat__layout *out)
{
    folding f = {.options = options, .arena = arena};
    *out = (pleat__layout){0};
    PLEAT_TRY(pleat__fold_jobs_make(problem, options->chunk_bytes, arena, &f.jobs));
    out->floor_chunks = f.jobs.floor_chunks;
    pleat_result result = lay_contiguous(problem, places, options->chunk_bytes, arena, out);
    if (result == PLEAT_OK)
        result = fold(&f, out);
    free_folding(&f);
    if (result != PLEAT_OK)
        pleat__layout_free(out, arena);
    return result;
}
