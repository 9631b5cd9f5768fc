/*
 * layout.c: see layout.h. The slots of a plan at the sizes of one x are a problem like any other:
 * placed contiguously, and folded where that leaves chunks idle.
 */
#include <plan/sizes/layout.h>

#include <internal/error.h>
#include <plan/place/portfolio.h>

/* --- the problem -------------------------------------------------------------------------------*/

static pleat_result add_item(pleat__elastic_job *job, uint64_t size, uint32_t index, uint32_t begin,
                             uint32_t end, uint16_t stream)
{
    pleat__item *item = &job->items[job->problem.count];
    *item = (pleat__item){.fixed = UINT64_MAX, .begin = begin, .end = end, .stream = stream};
    if (!pleat__round_up(size, PLEAT__ALIGNMENT, &item->size) || item->size > PLEAT__SIZE_MOST)
        return pleat__fail(PLEAT_E_INPUT, "a request of %llu bytes: at most %llu can be asked for",
                           (unsigned long long)size, PLEAT__SIZE_MOST);
    job->slots[job->problem.count++] = index;
    return PLEAT_OK;
}

/* The streams of the lanes: those of the slots in them. */
static pleat_result add_lanes(pleat__elastic_job *job)
{
    const pleat_plan *plan = job->plan;
    for (uint32_t l = 0; l < plan->lane_count; l++)
        PLEAT_TRY(add_item(job, plan->lanes[l].bytes, l, plan->lanes[l].begin_at,
                           plan->lanes[l].end_at, 0));
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC && slot->lane < plan->lane_count)
            job->items[job->lanes_from + slot->lane].stream = slot->stream;
    }
    return PLEAT_OK;
}

/* The last item lies where its slot does, whatever x is (sizes.h, WHAT STAYS). */
static void keep_place(pleat__elastic_job *job, const pleat__slot *slot)
{
    if (slot->place != PLEAT__NOWHERE && slot->size != 0)
        job->items[job->problem.count - 1].fixed = slot->place;
}

static pleat_result add_items(pleat__elastic_job *job, uint32_t prologue)
{
    const pleat_plan *plan = job->plan;
    for (uint32_t i = 0; i < plan->first.slot_count; i++) {
        const pleat__slot *slot = &plan->first.slots[i];
        if (slot->class != PLEAT__CLASS_PERSISTENT)
            continue;
        PLEAT_TRY(add_item(job, slot->size, i, 0, plan->steady.events, slot->stream));
        keep_place(job, slot);
    }
    job->persistents = job->problem.count;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC || slot->free_at == PLEAT__NEVER)
            continue;
        PLEAT_TRY(add_item(job, slot->size, i, slot->alloc_at, slot->free_at, slot->stream));
        if (i < prologue)
            keep_place(job, slot);
    }
    job->lanes_from = job->problem.count;
    return add_lanes(job);
}

/* A plan may lie on so many pages; a layout is not begun that no plan could be. */
static pleat_result check_pages(const pleat__elastic_job *job)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < job->problem.count; i++)
        pages += pleat__ceil_div(job->items[i].size, job->plan->chunk_bytes);
    if (pages <= PLEAT__TOUCHED_MOST)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_LIMIT,
                       "the iteration's requests take %llu chunks of %llu bytes, one by one: at "
                       "most %llu can be laid out",
                       (unsigned long long)pages, (unsigned long long)job->plan->chunk_bytes,
                       PLEAT__TOUCHED_MOST);
}

static pleat_result check_sum(const pleat__elastic_job *job)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < job->problem.count; i++)
        if (!pleat__add(total, job->items[i].size, &total) || total > UINT64_MAX / 4)
            return pleat__fail(PLEAT_E_INPUT, "the iteration's requests add up to 2^62 bytes");
    return check_pages(job);
}

pleat_result pleat__elastic_job_make(const pleat_plan *plan, uint32_t prologue, uint64_t view_page,
                                     pleat__arena *scratch, pleat__elastic_job *out)
{
    *out = (pleat__elastic_job){.plan = plan, .scratch = scratch, .view_page = view_page};
    uint64_t most = (uint64_t)plan->first.slot_count + plan->steady.slot_count + plan->lane_count;
    out->items = pleat__arena_calloc(scratch, most + 1, sizeof *out->items);
    out->slots = pleat__arena_calloc(scratch, most + 1, sizeof *out->slots);
    pleat_result result = PLEAT_OK;
    if (out->items == NULL || out->slots == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu items",
                             (unsigned long long)most);
    out->problem =
        (pleat__problem){.items = out->items, .horizon = plan->steady.events, .circular = true};
    if (result == PLEAT_OK)
        result = add_items(out, prologue);
    if (result == PLEAT_OK)
        result = check_sum(out);
    if (result != PLEAT_OK)
        pleat__elastic_job_free(out);
    return result;
}

void pleat__elastic_job_free(pleat__elastic_job *job)
{
    if (job->scratch == NULL)
        return;
    pleat__arena_free(job->scratch, job->items);
    pleat__arena_free(job->scratch, job->slots);
    *job = (pleat__elastic_job){0};
}

/* --- the layout --------------------------------------------------------------------------------*/

/* Below the page of the views every page is at home, whatever x is. */
static pleat_result check_base(const pleat__elastic_job *job, const pleat__layout *layout)
{
    if (layout->base_pages <= job->view_page)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_LIMIT, "a layout has %u pages before its views, of at most %llu",
                       layout->base_pages, (unsigned long long)job->view_page);
}

pleat_result pleat__elastic_lay_out(pleat__elastic_job *job, pleat__layout *out)
{
    const pleat__place_options place = {.chunk_bytes = job->plan->chunk_bytes};
    const pleat__fold_options fold = {.chunk_bytes = job->plan->chunk_bytes,
                                      .view_page = job->view_page};
    pleat__place_report unused;
    uint64_t *places =
        pleat__arena_alloc(job->scratch, (job->problem.count + 1ull) * sizeof *places);
    if (places == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u places", job->problem.count);
    pleat_result result = pleat__place_make(&job->problem, &place, job->scratch, places, &unused);
    if (result == PLEAT_OK)
        result = pleat__fold_make(&job->problem, places, &fold, job->scratch, out);
    pleat__arena_free(job->scratch, places);
    PLEAT_TRY(result);
    result = check_base(job, out);
    if (result != PLEAT_OK)
        pleat__layout_free(out, job->scratch);
    return result;
}
