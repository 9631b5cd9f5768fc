/*
 * instance.c: the plan at another x. See sizes.h.
 *
 * COPY     Everything but sizes, places and memory is the plan's own: sequences, lives, phases.
 * LAY OUT  layout.c, around the places that no x changes.
 * KEPT     A job that follows the plan at a smaller x keeps its places: what that takes is told.
 * PROVE    An instance is verified like any plan: a recipe may come from a file.
 */
#include <plan/sizes/layout.h>
#include <plan/sizes/recipe.h>

#include <internal/error.h>
#include <string.h>

typedef struct making {
    const pleat_plan *plan;
    const pleat__recipe *recipe;
    pleat__fraction x;
    pleat_plan *out;
    pleat__arena *scratch;
    pleat__elastic_job job;
    pleat__layout layout;
    pleat__instance_report report;
} making;

static pleat_result no_memory(const pleat_plan *plan)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan of %u requests",
                       plan->first.slot_count + plan->steady.slot_count);
}

/* --- copying -----------------------------------------------------------------------------------*/

static void *copy_of(pleat_plan *plan, const void *from, size_t count, size_t size)
{
    void *to = pleat__arena_calloc(plan->arena, count, size);
    if (to != NULL && count != 0)
        memcpy(to, from, count * size);
    return to;
}

static pleat_result copy_texts(const pleat_plan *from, pleat_plan *to)
{
    const char *options = from->options != NULL ? from->options : "";
    to->options = copy_of(to, options, strlen(options) + 1, 1);
    to->labels = pleat__arena_calloc(to->arena, from->label_count, sizeof *to->labels);
    if (to->options == NULL || to->labels == NULL)
        return no_memory(from);
    for (uint32_t i = 0; i < from->label_count; i++) {
        to->labels[i] = copy_of(to, from->labels[i], strlen(from->labels[i]) + 1, 1);
        if (to->labels[i] == NULL)
            return no_memory(from);
        to->label_count++;
    }
    return PLEAT_OK;
}

static pleat_result copy_sequence(const pleat_plan *from, const pleat__sequence *sequence,
                                  pleat_plan *plan, pleat__sequence *out)
{
    *out = *sequence;
    out->slots = copy_of(plan, sequence->slots, sequence->slot_count, sizeof *out->slots);
    out->phases = copy_of(plan, sequence->phases, sequence->phase_count, sizeof *out->phases);
    return out->slots == NULL || out->phases == NULL ? no_memory(from) : PLEAT_OK;
}

static pleat_result copy_plan(const pleat_plan *from, pleat_plan *to)
{
    to->fingerprint = from->fingerprint;
    to->device = from->device;
    to->requests = from->requests;
    to->steady_request = from->steady_request;
    to->chunk_bytes = from->chunk_bytes;
    to->device_bytes = from->device_bytes;
    PLEAT_TRY(copy_texts(from, to));
    to->streams = copy_of(to, from->streams, from->stream_count, sizeof *to->streams);
    to->lanes = copy_of(to, from->lanes, from->lane_count, sizeof *to->lanes);
    if (to->streams == NULL || to->lanes == NULL)
        return no_memory(from);
    to->stream_count = from->stream_count;
    to->lane_count = from->lane_count;
    PLEAT_TRY(copy_sequence(from, &from->first, to, &to->first));
    return copy_sequence(from, &from->steady, to, &to->steady);
}

/* --- sizes -------------------------------------------------------------------------------------*/

/* What follows no function of its own follows the samples. */
static pleat_result scale(const making *m, const char *what, uint32_t index, uint64_t *bytes)
{
    char text[64];
    if (pleat__x_scale(*bytes, m->recipe->reference, m->x, bytes))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_NOT_FOUND, "at %s %s %u has no size",
                       pleat__x_text(m->x, text, sizeof text), what, index);
}

static pleat_result set_sizes(making *m, bool first)
{
    pleat__sequence *sequence = first ? &m->out->first : &m->out->steady;
    const uint32_t *functions = first ? m->recipe->first : m->recipe->steady;
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        pleat__slot *slot = &sequence->slots[i];
        PLEAT_TRY(pleat__elastic_size(m->plan, first, i, m->x, &slot->size));
        if (functions[i] == PLEAT__NO_FUNCTION && slot->class == PLEAT__CLASS_DYNAMIC)
            PLEAT_TRY(scale(m, "dynamic request", i, &slot->size));
        slot->small = slot->size < PLEAT__SMALL_BYTES;
        if (slot->class == PLEAT__CLASS_PERSISTENT || (!first && i < m->recipe->prologue))
            continue;
        slot->place = PLEAT__NOWHERE;
    }
    return PLEAT_OK;
}

static pleat_result set_all_sizes(making *m)
{
    PLEAT_TRY(set_sizes(m, true));
    PLEAT_TRY(set_sizes(m, false));
    for (uint32_t l = 0; l < m->out->lane_count; l++)
        PLEAT_TRY(scale(m, "lane", l, &m->out->lanes[l].bytes));
    return PLEAT_OK;
}

/* --- with the plan's places --------------------------------------------------------------------*/

/* Marks what an item of `size` bytes at the plan's place reaches: pages, and the chunks behind. */
static void mark(const pleat_plan *plan, const uint32_t *table, uint64_t place, uint64_t size,
                 uint8_t *chunks)
{
    if (size == 0)
        return;
    uint64_t last = (place + size - 1) / plan->chunk_bytes;
    for (uint64_t page = place / plan->chunk_bytes; page <= last; page++)
        chunks[table[page]] = 1;
}

/* The place of a job's item in the plan that it is an instance of. */
static uint64_t place_in_plan(const making *m, uint32_t item, uint64_t *size)
{
    const pleat_plan *plan = m->plan;
    uint32_t index = m->job.slots[item];
    if (item >= m->job.lanes_from) {
        *size = plan->lanes[index].bytes;
        return plan->lanes[index].place;
    }
    const pleat__slot *slot =
        item < m->job.persistents ? &plan->first.slots[index] : &plan->steady.slots[index];
    *size = slot->size;
    return slot->place;
}

/* Chunks that the plan's own places would need at these sizes; UINT32_MAX when they do not fit. */
static pleat_result count_kept(const making *m, uint8_t *chunks, uint32_t *count)
{
    uint32_t *table;
    *count = UINT32_MAX;
    for (uint32_t i = 0; i < m->job.problem.count; i++) {
        uint64_t size, place = place_in_plan(m, i, &size);
        if (m->job.items[i].size != 0 &&
            (place == PLEAT__NOWHERE ||
             pleat__rounded(m->job.items[i].size) > pleat__rounded(size)))
            return PLEAT_OK;
    }
    PLEAT_TRY(pleat__plan_page_table(m->plan, m->scratch, &table));
    for (uint32_t i = 0; i < m->job.problem.count; i++) {
        uint64_t size, place = place_in_plan(m, i, &size);
        mark(m->plan, table, place, m->job.items[i].size, chunks);
    }
    *count = 0;
    for (uint64_t c = 0; c < m->plan->physical_bytes / m->plan->chunk_bytes; c++)
        *count += chunks[c];
    pleat__arena_free(m->scratch, table);
    return PLEAT_OK;
}

static pleat_result measure_kept(making *m)
{
    uint64_t count = m->plan->physical_bytes / m->plan->chunk_bytes;
    uint8_t *chunks = pleat__arena_calloc(m->scratch, count + 1, 1);
    uint32_t kept;
    if (chunks == NULL)
        return no_memory(m->plan);
    pleat_result result = count_kept(m, chunks, &kept);
    if (result == PLEAT_OK && kept != UINT32_MAX)
        m->report.kept_bytes = kept * m->plan->chunk_bytes;
    pleat__arena_free(m->scratch, chunks);
    return result;
}

/* --- the instance ------------------------------------------------------------------------------*/

static pleat_result keep_places(const pleat__elastic_job *job, const pleat__layout *layout,
                                pleat_plan *out)
{
    for (uint32_t i = 0; i < job->problem.count; i++) {
        uint32_t index = job->slots[i];
        uint64_t place = layout->places[i];
        if (i < job->persistents && job->items[i].size != 0 &&
            place != out->first.slots[index].place)
            return pleat__fail(PLEAT_E_VERIFY,
                               "persistent request %u is not where the recipe puts it", index);
        if (i < job->persistents)
            out->first.slots[index].place = place;
        else if (i < job->lanes_from)
            out->steady.slots[index].place = place;
        else
            out->lanes[index].place = place;
    }
    return PLEAT_OK;
}

/* What is live at most: statics, and dynamic requests at the sizes they are thought to have. */
static pleat_result measure_live(const pleat__elastic_job *job, pleat__arena *scratch,
                                 uint64_t *bytes)
{
    const pleat__sequence *steady = &job->plan->steady;
    uint64_t most = job->lanes_from + (uint64_t)steady->slot_count + 1;
    pleat__item *items = pleat__arena_alloc(scratch, most * sizeof *items);
    if (items == NULL)
        return no_memory(job->plan);
    memcpy(items, job->items, job->lanes_from * sizeof *items);
    pleat__problem problem = job->problem;
    problem.items = items;
    problem.count = job->lanes_from;
    for (uint32_t i = 0; i < steady->slot_count; i++) {
        const pleat__slot *slot = &steady->slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC)
            items[problem.count++] = pleat__dynamic_item(slot, slot->size, problem.horizon);
    }
    pleat_result result = pleat__max_live(&problem, scratch, bytes);
    pleat__arena_free(scratch, items);
    return result;
}

/* What no slot and no lane has room for where most lives: in chunks of its own. */
static pleat_result measure_beside(making *m)
{
    uint64_t placed, chunk = m->plan->chunk_bytes;
    PLEAT_TRY(pleat__max_live(&m->job.problem, m->scratch, &placed));
    if (m->out->max_live_bytes > placed)
        m->report.beside_bytes = pleat__ceil_div(m->out->max_live_bytes - placed, chunk) * chunk;
    return PLEAT_OK;
}

pleat_result pleat__elastic_fill(pleat__elastic_job *job, const pleat__layout *layout,
                                 const uint32_t *hosts, pleat_plan *out)
{
    PLEAT_TRY(keep_places(job, layout, out));
    PLEAT_TRY(measure_live(job, job->scratch, &out->max_live_bytes));
    if (hosts != NULL)
        PLEAT_TRY(pleat__first_place(hosts, layout, NULL, job->scratch, out));
    PLEAT_TRY(pleat__layout_cut(layout, out));
    pleat__plan_note_device(out, out->device_bytes);
    return PLEAT_OK;
}

static uint32_t count_remaps(const making *m)
{
    uint32_t views = 0;
    if (pleat__fraction_equal(m->x, m->recipe->reference)) /* it is the plan's own */
        return 0;
    for (uint32_t i = 0; i < m->out->map_count; i++)
        views += m->out->maps[i].alias != 0;
    return views;
}

static pleat_result copy_recipe(making *m)
{
    const pleat__recipe *from = m->recipe;
    PLEAT_TRY(pleat__recipe_new(m->out));
    pleat__recipe *to = m->out->recipe;
    const pleat__recipe arrays = *to;
    *to = *from;
    to->reference = m->x;
    to->functions = copy_of(m->out, from->functions, from->function_count, sizeof *to->functions);
    to->steady = arrays.steady;
    to->first = arrays.first;
    to->hosts = arrays.hosts;
    if (to->functions == NULL)
        return no_memory(m->plan);
    memcpy(to->steady, from->steady, m->plan->steady.slot_count * sizeof *to->steady);
    memcpy(to->first, from->first, m->plan->first.slot_count * sizeof *to->first);
    memcpy(to->hosts, from->hosts, m->plan->first.slot_count * sizeof *to->hosts);
    return PLEAT_OK;
}

static pleat_result make(making *m, const pleat__instance_options *options)
{
    PLEAT_TRY(copy_plan(m->plan, m->out));
    PLEAT_TRY(set_all_sizes(m));
    PLEAT_TRY(pleat__elastic_job_make(m->out, m->recipe->prologue, m->recipe->view_page, m->scratch,
                                      &m->job));
    PLEAT_TRY(pleat__elastic_lay_out(&m->job, &m->layout));
    m->report.floor_bytes = m->layout.floor_chunks * m->plan->chunk_bytes;
    PLEAT_TRY(measure_kept(m));
    bool first = options != NULL && options->first;
    PLEAT_TRY(pleat__elastic_fill(&m->job, &m->layout, first ? m->recipe->hosts : NULL, m->out));
    PLEAT_TRY(measure_beside(m));
    m->report.remaps = count_remaps(m);
    if (options != NULL && options->recipe)
        PLEAT_TRY(copy_recipe(m));
    return pleat_plan_verify(m->out, NULL);
}

static pleat_result check_range(const pleat_plan *plan, pleat__fraction x)
{
    char own[64], low[64], high[64];
    const pleat__recipe *recipe = plan->recipe;
    if (recipe == NULL)
        return pleat__fail(PLEAT_E_INVALID, "the plan has no recipe: it is for one size only");
    if (pleat__x_in_range(recipe, x))
        return PLEAT_OK;
    bool below = pleat__fraction_compare(x, recipe->lowest) < 0;
    return pleat__fail(PLEAT_E_NOT_FOUND, "x = %s: the plan's sizes are for %s to %s: record a %s",
                       pleat__x_text(x, own, sizeof own),
                       pleat__x_text(recipe->lowest, low, sizeof low),
                       pleat__x_text(recipe->highest, high, sizeof high),
                       below ? "smaller one" : "larger one, or plan with --max");
}

pleat_result pleat__elastic_instance(const pleat_plan *plan, pleat__fraction x,
                                     const pleat__instance_options *options,
                                     pleat__instance_report *report, pleat_plan **out)
{
    making m = {.plan = plan, .recipe = plan->recipe, .x = x};
    PLEAT_TRY(check_range(plan, x));
    PLEAT_TRY(pleat__arena_create(&m.scratch));
    pleat_result result = pleat__plan_new(&m.out);
    if (result == PLEAT_OK)
        result = make(&m, options);
    pleat__arena_destroy(m.scratch);
    if (result != PLEAT_OK) {
        pleat_plan_free(m.out);
        return result;
    }
    if (report != NULL)
        *report = m.report;
    *out = m.out;
    return PLEAT_OK;
}

/* --- which x fits ------------------------------------------------------------------------------*/

uint64_t pleat__instance_takes(const pleat_plan *instance, const pleat__instance_report *report)
{
    return instance->physical_bytes + report->beside_bytes;
}

static pleat_result taken_at(const pleat_plan *plan, pleat__fraction x, uint64_t *bytes)
{
    pleat__instance_report report;
    pleat_plan *instance;
    char text[64];
    pleat_result result = pleat__elastic_instance(plan, x, NULL, &report, &instance);
    if (result != PLEAT_OK)
        return pleat__context(result, "x = %s", pleat__x_text(x, text, sizeof text));
    *bytes = pleat__instance_takes(instance, &report);
    pleat_plan_free(instance);
    return PLEAT_OK;
}

/* Multiples of the step in the range: [*low, *high]; false: none. */
static bool multiples(const pleat__recipe *recipe, pleat__fraction step, uint64_t *low,
                      uint64_t *high)
{
    pleat__fraction under, over, back = {step.den, step.num};
    if (step.num == 0 || !pleat__fraction_multiply(recipe->lowest, back, &under) ||
        !pleat__fraction_multiply(recipe->highest, back, &over))
        return false;
    *low = pleat__ceil_div(under.num, under.den);
    *high = over.num / over.den;
    *low = *low == 0 ? 1 : *low;
    return *low <= *high;
}

static pleat_result nothing_fits(uint64_t bytes, pleat__fraction least, uint64_t need)
{
    char text[64];
    const double mib = 1 << 20;
    return pleat__fail(PLEAT_E_NOT_FOUND,
                       "not even x = %s fits in %.2f MiB: it takes %.2f MiB, and is the least of "
                       "the plan's range at this step",
                       pleat__x_text(least, text, sizeof text), (double)bytes / mib,
                       (double)need / mib);
}

/* Memory grows with x, so the largest that fits is found by halving. */
pleat_result pleat__elastic_fit(const pleat_plan *plan, uint64_t bytes, pleat__fraction step,
                                pleat__fraction *out, uint64_t *physical)
{
    uint64_t low, high, need = 0, best = 0, best_need = 0;
    pleat__fraction least = step;
    if (plan->recipe == NULL)
        return pleat__fail(PLEAT_E_INVALID, "the plan has no recipe: it is for one size only");
    if (!multiples(plan->recipe, step, &low, &high))
        return pleat__fail(PLEAT_E_INVALID, "no multiple of the step is in the recipe's range");
    while (low <= high) {
        uint64_t middle = low + (high - low) / 2;
        pleat__fraction x;
        if (!pleat__fraction_multiply((pleat__fraction){middle, 1}, step, &x))
            return pleat__fail(PLEAT_E_INVALID, "the step is too fine");
        PLEAT_TRY(taken_at(plan, x, &need));
        if (need <= bytes) {
            best = middle;
            best_need = need;
            *out = x;
            low = middle + 1;
        } else {
            least = x; /* in the end the lowest, where nothing fits */
            high = middle - 1;
        }
    }
    if (best == 0)
        return nothing_fits(bytes, least, need);
    if (physical != NULL)
        *physical = best_need;
    return PLEAT_OK;
}
