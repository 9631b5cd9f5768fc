/*
 * once.c: a layout from choices that were made before: one sweep a stream. What took
 * search.c many sweeps for one set of sizes holds for others that grow together, and where it
 * does not quite, the sweep takes a few chunks or maps more and is still right.
 */
#include <plan/fold/fold.h>

#include <internal/error.h>
#include <plan/fold/fold_internal.h>

typedef struct folding {
    pleat__fold_jobs jobs;
    const pleat__fold_choice *choice;
    pleat__fold_options options;
    pleat__arena *arena;
    pleat__try *tries;
    uint64_t *places;   /* shared by the tries */
    uint8_t *policy;    /* by position in births */
    uint32_t *reserved; /* positions in births */
    uint32_t stuck;     /* item, or UINT32_MAX */
} folding;

static void free_folding(folding *f)
{
    pleat__fold_tries_free(f->arena, f->tries, f->jobs.count);
    pleat__arena_free(f->arena, f->places);
    pleat__arena_free(f->arena, f->policy);
    pleat__arena_free(f->arena, f->reserved);
    pleat__fold_jobs_free(&f->jobs);
}

static pleat_result allocate(folding *f)
{
    uint64_t count = f->jobs.problem->count + 1ull;
    f->tries = pleat__arena_calloc(f->arena, f->jobs.count, sizeof *f->tries);
    f->places = pleat__arena_calloc(f->arena, count, sizeof *f->places);
    f->policy = pleat__arena_alloc(f->arena, count);
    f->reserved =
        pleat__arena_alloc(f->arena, (f->choice->reserved_count + 1ull) * sizeof *f->reserved);
    if (f->tries == NULL || f->places == NULL || f->policy == NULL || f->reserved == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fold %u requests",
                           f->jobs.problem->count);
    return PLEAT_OK;
}

/* The positions of the choice's reserved items that are this job's. */
static uint32_t find_reserved(const folding *f, const pleat__fold_job *job)
{
    uint32_t count = 0;
    for (uint32_t r = 0; r < f->choice->reserved_count; r++)
        for (uint32_t b = 0; b < job->birth_count; b++)
            if (job->births[b] == f->choice->reserved[r])
                f->reserved[count++] = b;
    return count;
}

static pleat_result sweep(folding *f, pleat__fold_job *job, pleat__try *out)
{
    pleat__sweep *sweep;
    bool done;
    uint32_t stuck, reserved = find_reserved(f, job);
    for (uint32_t b = 0; b < job->birth_count; b++)
        f->policy[b] = f->choice->high[job->births[b]] ? PLEAT__FOLD_HIGH : PLEAT__FOLD_LOW;
    const pleat__sweep_limits limits = {
        .cap = job->floor, .chunks = PLEAT__PAGES_MOST, .cost = UINT64_MAX};
    out->places = f->places;
    PLEAT_TRY(pleat__sweep_create(job, &sweep));
    pleat_result result =
        pleat__sweep_run(sweep, f->policy, f->reserved, reserved, &limits, out, &done, &stuck);
    pleat__sweep_destroy(sweep);
    if (result == PLEAT_OK && !done)
        result = pleat__pages_check(out->chunks);
    if (result == PLEAT_OK && stuck != UINT32_MAX && f->stuck == UINT32_MAX)
        f->stuck = job->births[stuck];
    return result;
}

static pleat_result sweep_jobs(folding *f, pleat__layout *out)
{
    uint32_t first_page = 0;
    for (uint32_t i = 0; i < f->jobs.count; i++) {
        pleat__fold_job *job = &f->jobs.jobs[i];
        job->options = &f->options;
        job->first_page = first_page;
        job->max_maps = UINT32_MAX;
        PLEAT_TRY(sweep(f, job, &f->tries[i]));
        out->work += job->work;
        first_page = f->tries[i].end_page;
        if (job->fixed_page_count != 0 && job->fixed_pages[job->fixed_page_count - 1] >= first_page)
            first_page = job->fixed_pages[job->fixed_page_count - 1] + 1;
        PLEAT_TRY(pleat__pages_check(first_page));
    }
    return pleat__fold_assemble(&f->jobs, f->tries, f->places, f->choice->view_page, out);
}

pleat_result pleat__fold_once(const pleat__problem *problem, const pleat__fold_choice *choice,
                              pleat__arena *arena, pleat__layout *out, uint32_t *stuck)
{
    folding f = {.stuck = UINT32_MAX,
                 .choice = choice,
                 .options = {.chunk_bytes = choice->chunk_bytes, .contiguous = choice->contiguous},
                 .arena = arena};
    *out = (pleat__layout){0};
    PLEAT_TRY(pleat__fold_jobs_make(problem, choice->chunk_bytes, arena, &f.jobs));
    out->floor_chunks = f.jobs.floor_chunks;
    pleat_result result = allocate(&f);
    if (result == PLEAT_OK)
        result = sweep_jobs(&f, out);
    free_folding(&f);
    *stuck = f.stuck;
    if (result != PLEAT_OK)
        pleat__layout_free(out, arena);
    return result;
}
