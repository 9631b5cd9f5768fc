/*
 * page.c: see page.h.
 *
 * PARTS  tools/report/page.html is the frame; what stands in it as @NAME@ is filled in here: the
 *        style, the scripts, and
 *          tables    plain HTML, so that every figure is there without a script, on paper and for
 *                    a screen reader. A cell carries its figure's key and exact value.
 *          figures   the object of --json
 *          data      what is drawn: arrays in base64, little-endian
 * TRUST  Labels come from the recording, so tables escape them, and no `<` stands in the JSON: it
 *        could end the script element that holds it.
 */
#include <tools/report/page.h>

#include <tools/analysis/sites.h>
#include <tools/cli.h>
#include <tools/report/arrays.h>
#include <tools/report/embed.h>
#include <tools/report/lives.h>
#include <tools/words.h>

#include <internal/error.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct page {
    const footprint *f;   /* NULL: it is about a run only */
    const runlog *run;    /* NULL: none */
    const growth *growth; /* NULL: not known, and there is no advice */
    const char *name;
    const char *figures;
    FILE *out;
} page;

bool page_can_draw(void)
{
    return embed_plot_js[0] != '\0';
}

/* ---- text ---- */

static void put_escaped_bytes(FILE *out, const char *text, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        switch (text[i]) {
        case '<':
            fputs("&lt;", out);
            break;
        case '>':
            fputs("&gt;", out);
            break;
        case '&':
            fputs("&amp;", out);
            break;
        case '"':
            fputs("&quot;", out);
            break;
        default:
            fputc(text[i], out);
        }
    }
}

static void put_escaped(FILE *out, const char *text)
{
    put_escaped_bytes(out, text, strlen(text));
}

static void put_json(FILE *out, const char *json)
{
    for (; *json != '\0'; json++)
        if (*json == '<')
            fputs("\\u003c", out);
        else
            fputc(*json, out);
}

/* ---- curves ---- */

static void put_curve(const page *p, const char *low, const char *high, const footprint_curve *c)
{
    put_array(p->out, low, c->low, p->f->buckets * sizeof *c->low);
    put_array(p->out, high, c->high, p->f->buckets * sizeof *c->high);
}

static void put_policies(const page *p)
{
    fputs(",\"policies\":[", p->out);
    for (int i = 0; i < p->f->policy_count; i++) {
        const footprint_policy *policy = &p->f->policies[i];
        fprintf(p->out, "%s{\"name\":\"%s\"", i > 0 ? "," : "", policy->result.policy);
        put_curve(p, "low", "high", &policy->physical);
        if (strcmp(policy->result.policy, "pleat") == 0)
            put_curve(p, "vlow", "vhigh", &policy->virtual);
        fputc('}', p->out);
    }
    fputc(']', p->out);
}

/* Where another phase begins, and which. */
static pleat_result put_phases(const page *p)
{
    const pleat__requests *r = &p->f->requests;
    uint32_t *runs = pleat__arena_alloc(p->f->arena, 2 * sizeof *runs * (r->event_count + 1));
    uint32_t count = 0;
    if (runs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the page's phases");
    for (uint32_t at = 0; at < r->event_count; at++) {
        uint16_t phase = footprint_phase_at(p->f, at);
        if (count > 0 && runs[2 * count - 1] == phase)
            continue;
        runs[2 * count] = at;
        runs[2 * count++ + 1] = phase;
    }
    put_array(p->out, "phases", runs, 2 * sizeof *runs * count);
    pleat__arena_free(p->f->arena, runs);
    json_writer json;
    char text[256];
    fputs(",\"names\":", p->out);
    json_begin(&json, p->out);
    json_array(&json, NULL);
    for (uint32_t i = 0; i < r->phase_count; i++)
        json_string(&json, NULL, footprint_phase(p->f, (uint16_t)i, text, sizeof text));
    json_end_array(&json);
    return PLEAT_OK;
}

/* ---- the plan's map ---- */

#define CLASS_SMALL PLEAT__CLASSES /* the page's class of requests under the small limit */
#define BOX_WORDS   6
#define NO_REQUEST  UINT32_MAX

/* A request as it is drawn: begin, end, place and size in units of 512 bytes, class, its number. */
static void add_box(const footprint *f, const pleat__slot *slot, uint32_t request, uint32_t *box)
{
    const pleat_plan *plan = f->plan;
    bool within = !f->has_phases && footprint_is_within(slot->class);
    bool always = slot->class == PLEAT__CLASS_PERSISTENT;
    box[0] = always ? 0 : slot->alloc_at;
    box[1] = always || slot->free_at == PLEAT__NEVER ? plan->steady.events : slot->free_at;
    box[2] = (uint32_t)(slot->place / PLEAT__ALIGNMENT);
    box[3] = (uint32_t)pleat__ceil_div(slot->size, PLEAT__ALIGNMENT);
    box[4] = slot->small && !always ? CLASS_SMALL : within ? LIVES_CLASS_WITHIN : slot->class;
    box[5] = request;
}

static uint32_t add_lanes(const pleat_plan *plan, uint32_t *boxes)
{
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        const pleat__lane *lane = &plan->lanes[i];
        const uint32_t box[BOX_WORDS] = {lane->begin_at,
                                         lane->end_at,
                                         (uint32_t)(lane->place / PLEAT__ALIGNMENT),
                                         (uint32_t)(lane->bytes / PLEAT__ALIGNMENT),
                                         PLEAT__CLASS_DYNAMIC,
                                         NO_REQUEST};
        memcpy(boxes + (size_t)i * BOX_WORDS, box, sizeof box);
    }
    return plan->lane_count;
}

/* The recording's request that a steady slot is. Of an unrolled plan the last iteration is the
 * recorded one, and the one before is there where it has the same size. */
static uint32_t request_of(const footprint *f, uint32_t slot)
{
    const pleat_plan *plan = f->plan;
    uint32_t before = plan->steady.slot_count - pleat__iteration_slots(plan);
    uint64_t request = (uint64_t)plan->steady_request + slot;
    if (request < before || request - before >= f->requests.count)
        return NO_REQUEST;
    request -= before;
    bool is_it = before == 0 || f->requests.items[request].size == plan->steady.slots[slot].size;
    return is_it ? (uint32_t)request : NO_REQUEST;
}

static pleat_result put_boxes(const page *p)
{
    const pleat_plan *plan = p->f->plan;
    size_t most = (size_t)plan->first.slot_count + plan->steady.slot_count + plan->lane_count + 1;
    uint32_t *boxes = pleat__arena_alloc(p->f->arena, most * BOX_WORDS * sizeof *boxes);
    if (boxes == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the page's map");
    size_t count = add_lanes(plan, boxes);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT &&
            plan->first.slots[i].place != PLEAT__NOWHERE)
            add_box(p->f, &plan->first.slots[i], i, boxes + BOX_WORDS * count++);
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        if (plan->steady.slots[i].place != PLEAT__NOWHERE)
            add_box(p->f, &plan->steady.slots[i], request_of(p->f, i), boxes + BOX_WORDS * count++);
    put_array(p->out, "boxes", boxes, count * BOX_WORDS * sizeof *boxes);
    pleat__arena_free(p->f->arena, boxes);
    return PLEAT_OK;
}

/* Window page -> chunk; 2^32 - 1 where nothing is mapped. */
static pleat_result put_pages(const page *p)
{
    const pleat_plan *plan = p->f->plan;
    uint64_t pages = pleat__ceil_div(plan->virtual_bytes, plan->chunk_bytes);
    uint32_t *table;
    PLEAT_TRY(pleat__plan_page_table(plan, p->f->arena, &table));
    put_array(p->out, "pages", table, pages * sizeof *table);
    pleat__arena_free(p->f->arena, table);
    return PLEAT_OK;
}

/* The steady iteration's phases, [[begin, name], ...], and the event of the recording at which it
 * begins. */
static void put_plan_phases(const page *p)
{
    const pleat_plan *plan = p->f->plan;
    const pleat__requests *r = &p->f->requests;
    json_writer json;
    uint32_t begin = 0;
    if (plan->steady.slot_count > 0 && plan->steady_request < r->count)
        begin = r->items[plan->steady_request].alloc_at - plan->steady.slots[0].alloc_at;
    /* Of an unrolled one the last iteration is the recorded one. */
    uint32_t before = plan->steady.events - pleat__iteration_events(plan);
    begin -= before < begin ? before : begin;
    fprintf(p->out, ",\"begin\":%u,\"phases\":", begin);
    json_begin(&json, p->out);
    json_array(&json, NULL);
    for (uint32_t i = 0; i < plan->steady.phase_count && p->f->has_phases; i++) {
        json_array(&json, NULL);
        json_uint(&json, NULL, plan->steady.phases[i].begin_at);
        json_string(&json, NULL, plan->labels[plan->steady.phases[i].label]);
        json_end_array(&json);
    }
    json_end_array(&json);
}

static pleat_result put_plan(const page *p)
{
    const pleat_plan *plan = p->f->plan;
    if (plan == NULL) {
        fputs(",\"plan\":null", p->out);
        return PLEAT_OK;
    }
    fprintf(p->out, ",\"plan\":{\"chunk\":%llu,\"virtual\":%llu,\"physical\":%llu,\"events\":%u",
            (unsigned long long)plan->chunk_bytes, (unsigned long long)plan->virtual_bytes,
            (unsigned long long)plan->physical_bytes, plan->steady.events);
    put_plan_phases(p);
    PLEAT_TRY(put_boxes(p));
    PLEAT_TRY(put_pages(p));
    fputc('}', p->out);
    return PLEAT_OK;
}

/* ---- a run ---- */

/* What of each record is drawn. */
enum { RUN_FROM, RUN_TO, RUN_LOW, RUN_LIVE, RUN_PHYSICAL, RUN_VIRTUAL, RUN_LIMIT, RUN_WIDTH };

static pleat_result put_records(const page *p, const char *key, uint32_t which)
{
    const runlog_series *series = &p->run->series[which];
    size_t bytes = series->count * RUN_WIDTH * sizeof(double);
    double *rows = malloc(bytes + 1);
    if (rows == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the page's run");
    for (size_t i = 0; i < series->count; i++) {
        const pleat__log_record *record = &series->records[i];
        double *row = rows + i * RUN_WIDTH;
        bool steps = which == PLEAT__LOG_ITERATIONS;
        row[RUN_FROM] = (double)record->from_ns * 1e-9;
        row[RUN_TO] = steps ? (double)record->iterations : (double)record->to_ns * 1e-9;
        row[RUN_LOW] = (double)record->low_live_bytes;
        row[RUN_LIVE] = (double)record->high_live_bytes;
        row[RUN_PHYSICAL] = (double)record->high_physical_bytes;
        row[RUN_VIRTUAL] = (double)record->stats.virtual_bytes;
        row[RUN_LIMIT] = (double)record->limit_bytes;
    }
    put_array(p->out, key, rows, bytes);
    free(rows);
    return PLEAT_OK;
}

static pleat_result put_run(const page *p)
{
    if (p->run == NULL)
        return PLEAT_OK;
    run_figures figures = run_figures_of(p->run, p->f);
    bool planned = figures.planned.physical_bytes > 0;
    fprintf(p->out, ",\"run\":{\"width\":%d,\"planned\":%.17g,\"plannedLive\":%.17g", RUN_WIDTH,
            planned ? figures.planned.physical_bytes : 0, planned ? figures.planned.live_bytes : 0);
    PLEAT_TRY(put_records(p, "intervals", PLEAT__LOG_INTERVALS));
    PLEAT_TRY(put_records(p, "iterations", PLEAT__LOG_ITERATIONS));
    fputc('}', p->out);
    return PLEAT_OK;
}

static pleat_result put_job(const page *p)
{
    if (p->f == NULL)
        return PLEAT_OK;
    const pleat__requests *r = &p->f->requests;
    fprintf(p->out, ",\"events\":%u,\"buckets\":%u,\"peak\":%u", r->event_count, p->f->buckets,
            p->f->max_live_at);
    put_array(p->out, "marks", r->marks, r->mark_count * sizeof *r->marks);
    put_curve(p, "low", "high", &p->f->live);
    put_policies(p);
    PLEAT_TRY(put_phases(p));
    PLEAT_TRY(lives_put(p->f, p->out));
    return put_plan(p);
}

/* The most that is drawn: it gives curves their unit. */
static double most_of(const page *p)
{
    double most = p->f != NULL ? (double)p->f->max_live_bytes : 0;
    for (int i = 0; p->f != NULL && i < p->f->policy_count; i++)
        most = fmax(most, (double)p->f->policies[i].result.peak_physical_bytes);
    return p->run != NULL ? fmax(most, run_figures_of(p->run, p->f).whole.physical_bytes) : most;
}

static pleat_result put_data(const page *p)
{
    fprintf(p->out, "{\"job\":%s,\"most\":%.17g", p->f != NULL ? "true" : "false", most_of(p));
    PLEAT_TRY(put_job(p));
    PLEAT_TRY(put_run(p));
    fputc('}', p->out);
    return PLEAT_OK;
}

/* ---- tables ---- */

typedef enum figure_unit { BYTES, COUNT, SHARE, SECONDS } figure_unit;

static void put_cell(FILE *out, const char *policy, const char *key, figure_unit unit, double value)
{
    char size[48];
    fprintf(out, "<td data-label=\"%s\" data-policy=\"%s\" data-key=\"%s\" data-value=\"%.17g\">",
            policy, policy, key, value);
    if (unit == BYTES)
        fputs(cli_format_size((uint64_t)value, size, sizeof size), out);
    else if (unit == SHARE)
        fprintf(out, "%.2f %%", value * 100);
    else if (unit == SECONDS)
        fprintf(out, "%s ms", cli_format_number(value * 1e3, size, sizeof size));
    else
        fprintf(out, "%.0f", value);
    fputs("</td>", out);
}

/* X(key of --json, unit, value from `f` and `s`, name, definition) */
#define FIGURES(X)                                                                                 \
    X(peak_live_bytes, BYTES, s->result.peak_live_bytes, "live",                                   \
      "The most bytes that tensors took at once, sizes rounded to 512 B (max-live): no allocator " \
      "needs less.")                                                                               \
    X(peak_physical_bytes, BYTES, s->result.peak_physical_bytes, "physical (reserved)",            \
      "The most memory that the allocator held of the device.")                                    \
    X(virtual_bytes, BYTES, s->result.peak_virtual_bytes, "virtual",                               \
      "The most address space that was mapped; what exceeds physical is memory mapped at several " \
      "places.")                                                                                   \
    X(waste_bytes, BYTES, footprint_waste(f, s), "above max-live", "Physical less max-live.")      \
    X(efficiency, SHARE, s->result.efficiency, "efficiency",                                       \
      "Peak live / peak physical, from the first request on.")                                     \
    X(steady_efficiency, SHARE, s->result.steady_efficiency, "steady efficiency",                  \
      "The same from the third iteration on.")                                                     \
    X(steady_planned_share, SHARE, s->result.steady_planned_share, "planned",                      \
      "Share of the steady iterations' requests that got the place planned for them.")             \
    X(driver_calls, COUNT, s->result.stats.driver_calls, "driver calls",                           \
      "Calls into the driver over the whole recording.")                                           \
    X(steady_driver_calls, COUNT, s->result.steady_driver_calls, "steady driver calls",            \
      "Of those, from the third iteration on.")                                                    \
    X(steady_mapper_driver_calls, COUNT, s->result.steady_mapper_calls, "  by own threads",        \
      "Of those, calls of the allocator's own threads, which the job does not wait for.")          \
    X(steady_driver_seconds, SECONDS, s->result.steady_driver_ns * 1e-9, "their time",             \
      "What the others take on an NVIDIA H200, by measured costs.")                                \
    X(growths, COUNT, s->growths, "growths",                                                       \
      "How often a request made physical exceed the most that is live, and all it had been.")      \
    X(split_growths, COUNT, s->split_growths, "  though enough was idle",                          \
      "Of those, how often as many bytes as were asked for lay idle, but in pieces.")              \
    X(split_bytes, BYTES, s->split_bytes, "  by",                                                  \
      "What physical grew by beyond the most that is live on those occasions.")

static void put_head(const page *p, const char *first)
{
    fprintf(p->out, "<thead><tr><th scope=col>%s</th>", first);
    for (int i = 0; i < p->f->policy_count; i++)
        fprintf(p->out, "<th scope=col>%s%s</th>", p->f->policies[i].result.policy,
                p->f->policies[i].result.oom ? "<br>(out of memory)" : "");
}

/* A job that was refused memory came to no steady part, and to no more than was live so far. */
static bool has_figure(const footprint_policy *s, const char *key)
{
    return !s->result.oom || (strncmp(key, "steady_", 7) != 0 && strcmp(key, "waste_bytes") != 0);
}

#define PUT_FIGURE(key, unit, value, name, definition)                                             \
    fputs("<tr><th scope=row>" name "</th>", p->out);                                              \
    for (int i = 0; i < f->policy_count; i++) {                                                    \
        const footprint_policy *s = &f->policies[i];                                               \
        if (has_figure(s, #key))                                                                   \
            put_cell(p->out, s->result.policy, #key, unit, (double)(value));                       \
        else                                                                                       \
            fputs("<td>–</td>", p->out);                                                           \
    }                                                                                              \
    fputs("<td class=text>" definition "</td></tr>\n", p->out);

static void put_figures(const page *p)
{
    const footprint *f = p->f;
    fputs("<table id=figures-table>", p->out);
    put_head(p, "figure");
    fputs("<th scope=col class=text>what it is</th></tr></thead><tbody>\n", p->out);
    FIGURES(PUT_FIGURE)
    fputs("</tbody></table>\n", p->out);
}

#define GAP_ROWS(X)                                                                                \
    X(peak_physical_live_bytes, s->peak_live_bytes, "live when physical reached its most")         \
    X(peak_idle_bytes, s->peak_idle_bytes, "idle just before")                                     \
    X(peak_request_bytes, s->peak_request_bytes, "the request that it did not serve")

#define PUT_GAP(key, value, name)                                                                  \
    fputs("<tr><th scope=row>" name "</th>", p->out);                                              \
    for (int i = 0; i < f->policy_count; i++) {                                                    \
        const footprint_policy *s = &f->policies[i];                                               \
        put_cell(p->out, s->result.policy, #key, BYTES, (double)(value));                          \
    }                                                                                              \
    fputs("</tr>\n", p->out);

static void put_bar(const page *p, const footprint_policy *s, uint64_t most)
{
    double live = 100.0 * (double)p->f->max_live_bytes / (double)most;
    double waste = 100.0 * (double)footprint_waste(p->f, s) / (double)most;
    char size[48];
    fprintf(p->out,
            "<div class=bar><span>%s</span><i class=live style=\"width:%.3f%%\"></i>"
            "<i class=waste style=\"width:%.3f%%\"></i><b>+%s</b></div>\n",
            s->result.policy, live * 0.62, waste * 0.62,
            cli_format_size(footprint_waste(p->f, s), size, sizeof size));
}

/* The telling frame, and the annotations; whether there are any. */
static bool put_place(const page *p, uint32_t site, const char *before)
{
    char text[SITE_TEXT_SIZE];
    const char *frame, *said = site_annotations(p->f->trace, site, text);
    size_t length = site_frame(p->f->trace, site, &frame);
    if (length == 0 && *said == '\0')
        return false;
    fputs(before, p->out);
    put_escaped_bytes(p->out, frame, length);
    if (length > 0 && *said != '\0')
        fputc(' ', p->out);
    put_escaped(p->out, said);
    return true;
}

/* One kind of request that physical grew for. */
static void put_culprit(const page *p, const footprint_group *g)
{
    char bytes[48], size[48], phase[256];
    footprint_phase(p->f, g->phase, phase, sizeof phase);
    fprintf(p->out, "<li>%s for %u of %s", cli_format_size(g->bytes, bytes, sizeof bytes), g->count,
            cli_format_size(g->size, size, sizeof size));
    if (phase[0] != '\0') {
        fputs(", allocated in phase ", p->out);
        put_escaped(p->out, phase);
    }
    put_place(p, g->site, ", at ");
    fputs("</li>\n", p->out);
}

/* What the native allocator wastes, and why. */
static void put_waste(const page *p)
{
    const footprint_policy *native = footprint_find(p->f, "native");
    char waste[48], steps[FOOTPRINT_STEPS];
    if (native == NULL || native->result.oom || native->growths == 0)
        return;
    uint64_t bytes = footprint_waste(p->f, native);
    fprintf(
        p->out,
        "<p>PyTorch's native allocator takes <strong>%s</strong> (%.1f %%) beyond what is live. "
        "%s. It took:</p><ul>\n",
        cli_format_size(bytes, waste, sizeof waste),
        100.0 * (double)bytes / (double)native->result.peak_physical_bytes,
        footprint_steps(native, bytes, steps));
    for (int i = 0; i < native->culprit_count; i++)
        put_culprit(p, &native->culprits[i]);
    fputs("</ul>\n", p->out);
}

static void put_gap(const page *p)
{
    const footprint *f = p->f;
    uint64_t most = f->max_live_bytes;
    char size[48];
    put_waste(p);
    for (int i = 0; i < f->policy_count; i++)
        if (f->policies[i].result.peak_physical_bytes > most)
            most = f->policies[i].result.peak_physical_bytes;
    fprintf(p->out, "<div class=bars role=img aria-label=\"Physical memory of each policy beyond "
                    "max-live; the figures are in the table below\">\n");
    for (int i = 0; i < f->policy_count; i++)
        put_bar(p, &f->policies[i], most);
    fputs("</div>\n<div class=scroll tabindex=0 role=region aria-label=\"Gap to max-live\"><table>",
          p->out);
    put_head(p, "at its peak");
    fputs("</tr></thead><tbody>\n", p->out);
    GAP_ROWS(PUT_GAP)
    fputs("</tbody></table></div>\n", p->out);
    if (!f->has_gap)
        return;
    fputs("<p>The plan, step by step:</p><div class=scroll tabindex=0 role=region "
          "aria-label=\"The plan's gap\"><table id=plan-gap><tbody>\n",
          p->out);
#define PUT_STEP(name, text)                                                                       \
    fprintf(p->out, "<tr><th scope=row>+ " text "</th>");                                          \
    put_cell(p->out, "plan", #name "_bytes", BYTES, (double)f->gap.name);                          \
    fputs("</tr>\n", p->out);
    fprintf(p->out, "<tr><th scope=row>max-live of the iteration</th><td>%s</td></tr>\n",
            cli_format_size(f->gap.live, size, sizeof size));
    if (f->gap.unplaced != 0)
        fprintf(p->out, "<tr><th scope=row>- " GAP_UNPLACED "</th><td>%s</td></tr>\n",
                cli_format_size(f->gap.unplaced, size, sizeof size));
    GAP_STEPS(PUT_STEP)
    fprintf(p->out, "<tr><th scope=row>= physical</th><td>%s</td></tr>\n",
            cli_format_size(f->gap.physical, size, sizeof size));
#undef PUT_STEP
    fputs("</tbody></table></div>\n", p->out);
}

/* The telling frame; behind it, to be unfolded, all of them. */
static void put_site(const page *p, uint32_t site)
{
    if (!put_place(p, site, "<td class=\"text site\"><details><summary>")) {
        fputs("<td class=text>(not known)</td>", p->out);
        return;
    }
    fputs("</summary><pre>", p->out);
    put_escaped(p->out, pleat_trace_site(p->f->trace, site));
    fputs("</pre></details></td>", p->out);
}

static void put_group(const page *p, int row)
{
    const footprint_group *g = &p->f->groups[row];
    char text[256], size[48];
    fprintf(p->out, "<tr><th scope=row>%s</th><td data-label=number>%u</td>",
            cli_format_size(g->size, size, sizeof size), g->count);
    fprintf(p->out,
            "<td data-label=together data-row=%d data-value=%llu>%s</td>"
            "<td data-label=\"of the peak\">%.2f %%</td>",
            row, (unsigned long long)g->bytes, cli_format_size(g->bytes, size, sizeof size),
            100.0 * (double)g->bytes / (double)p->f->max_live_bytes);
    if (p->f->has_sites)
        put_site(p, g->site);
    const char *phase = footprint_phase(p->f, g->phase, text, sizeof text);
    fputs("<td class=text data-label=phase>", p->out);
    put_escaped(p->out, phase[0] != '\0' ? phase : "(none)");
    fputs("</td></tr>\n", p->out);
}

static void put_peak(const page *p)
{
    fprintf(p->out,
            "<table id=peak-table><thead><tr><th scope=col>tensors of</th><th scope=col>number</th>"
            "<th scope=col>together</th><th scope=col>of the peak</th>%s<th scope=col class=text>"
            "allocated in phase</th></tr></thead><tbody>\n",
            p->f->has_sites ? "<th scope=col class=text>allocated at</th>" : "");
    for (int i = 0; i < p->f->group_count; i++)
        put_group(p, i);
    fputs("</tbody></table>\n", p->out);
}

static void put_verdict(const page *p)
{
    const footprint_policy *native = footprint_find(p->f, "native");
    const footprint_policy *pleat = footprint_find(p->f, "pleat");
    if (native == NULL || pleat == NULL)
        return;
    fputs("<p class=verdict>", p->out);
    replay_verdict(p->out, &native->result, &pleat->result, "<strong>", "</strong>");
    fputs("</p>", p->out);
}

static void put_summary(const page *p)
{
    const footprint *f = p->f;
    char live[48], text[256];
    const char *phase =
        footprint_phase(f, footprint_phase_at(f, f->max_live_at), text, sizeof text);
    uint32_t iterations = f->requests.mark_count > 1 ? f->requests.mark_count - 1 : 1;
    uint32_t iteration = footprint_iteration_at(f, f->max_live_at);
    put_verdict(p);
    fprintf(
        p->out,
        "<p>%u request%s in %u iteration%s. At most <strong>%s</strong> are live at once, in %u "
        "tensor%s",
        f->requests.count, cli_plural(f->requests.count), iterations, cli_plural(iterations),
        cli_format_size(f->max_live_bytes, live, sizeof live), f->max_live_count,
        cli_plural(f->max_live_count));
    if (iteration > 0 && f->requests.mark_count > 1)
        fprintf(p->out, ", in iteration %u", iteration);
    if (phase[0] != '\0') {
        fputs(", phase ", p->out);
        put_escaped(p->out, phase);
    }
    fputs(": no allocator needs less.</p>", p->out);
}

static void put_room(const page *p)
{
    const growth *g = p->growth;
    char device[48], words[GROWTH_WORDS];
    fprintf(p->out, "<p>In %s%s: ", cli_format_size(g->device_bytes, device, sizeof device),
            g->device_assumed ? fit_device_assumed : "");
    fprintf(p->out, "under Pleat %s; ", growth_words(&g->pleat, words));
    fprintf(p->out, "under the native allocator %s", growth_words(&g->native, words));
    fprintf(p->out, " <span class=soft>(%s)</span>.</p>\n",
            g->scaled ? fit_assumption : "by the sizes of the recordings");
}

static void put_advice(const page *p)
{
    advice all[ADVICE_MOST];
    char size[48], done[ADVICE_DONE];
    if (p->growth == NULL)
        return;
    int count = advise(p->f, p->growth, all);
    fputs("<h2 id=advice>What to do</h2>\n", p->out);
    if (advice_is_none(p->f, count))
        fputs("<p>Nothing known here saves a hundredth of it.</p>\n", p->out);
    if (count > 0)
        fputs("<table class=advice><thead><tr><th scope=col>saves</th><th scope=col "
              "class=text>what</th><th scope=col class=text>how</th></tr></thead><tbody>\n",
              p->out);
    for (int i = 0; i < count; i++) {
        fprintf(p->out,
                "<tr><th scope=row><b>%s</b> <small>%s</small></th><td class=text "
                "data-label=what>%s</td><td class=text data-label=how><code>",
                cli_format_size_like(all[i].saved, (uint64_t)1 << 30, size, sizeof size),
                all[i].how, all[i].text);
        put_escaped(p->out, advice_done(&all[i], p->name, done));
        fputs("</code></td></tr>\n", p->out);
    }
    fputs(count > 0 ? "</tbody></table>\n" : "", p->out);
    put_room(p);
}

static void put_words(const page *p)
{
    fputs("<dl>", p->out);
#define PUT_WORD(word, line) fputs("<dt>" word "</dt><dd>" line "</dd>\n", p->out);
    WORDS(PUT_WORD)
#undef PUT_WORD
    fputs("</dl>", p->out);
}

static void put_side(FILE *out, const char *side, const char *key, figure_unit unit, double value)
{
    if (value >= 0)
        put_cell(out, side, key, unit, value);
    else
        fputs("<td>–</td>", out);
}

static void put_run_table(const page *p)
{
    const run_figures f = run_figures_of(p->run, p->f);
    fputs("<table id=run-table><thead><tr><th scope=col>figure</th>", p->out);
#define PUT_SIDE_HEAD(side, heading) fputs("<th scope=col>" heading "</th>", p->out);
    RUN_SIDES(PUT_SIDE_HEAD)
#undef PUT_SIDE_HEAD
    fputs("<th scope=col class=text>what it is</th></tr></thead><tbody>\n", p->out);
#define PUT_RUN_FIGURE(key, unit, heading, definition)                                             \
    fputs("<tr><th scope=row>" heading "</th>", p->out);                                           \
    put_side(p->out, "run.planned", #key, unit, f.planned.key);                                    \
    put_side(p->out, "run.last", #key, unit, f.last.key);                                          \
    put_side(p->out, "run.whole", #key, unit, f.whole.key);                                        \
    fputs("<td class=text>" definition "</td></tr>\n", p->out);
    RUN_FIGURES(PUT_RUN_FIGURE)
#undef PUT_RUN_FIGURE
    fputs("</tbody></table>\n", p->out);
}

static void put_run_summary(const page *p)
{
    const runlog *run = p->run;
    const pleat__log_record *last = runlog_last(run, PLEAT__LOG_INTERVALS);
    fprintf(p->out, "<p class=command>Process %llu, device %llu, policy ",
            (unsigned long long)run->numbers.pid, (unsigned long long)run->numbers.device);
    put_escaped(p->out, run->policy);
    fputs(": <code>", p->out);
    put_escaped(p->out, run->command);
    fputs("</code>", p->out);
    if (last != NULL)
        fprintf(p->out, "; %s after %.1f s, iteration %llu", runlog_status_name(run->status),
                (double)last->to_ns * 1e-9, (unsigned long long)last->iterations);
    fputs(".</p>", p->out);
}

/* ---- the page ---- */

static pleat_result put_part(const page *p, const char *name, size_t length)
{
#define IS(text) (length == sizeof text - 1 && memcmp(name, text, sizeof text - 1) == 0)
    if (IS("NAME"))
        put_escaped(p->out, p->name);
    else if (IS("CSS"))
        fprintf(p->out, "%s\n%s", (const char *)embed_plot_css, (const char *)embed_page_css);
    else if (IS("SUMMARY"))
        put_summary(p);
    else if (IS("ADVICE"))
        put_advice(p);
    else if (IS("WORDS"))
        put_words(p);
    else if (IS("GAP"))
        put_gap(p);
    else if (IS("PLANOF"))
        fputs(p->f->plan != NULL && p->f->plan->unroll > 1 ? "two iterations, which take turns"
                                                           : "one iteration",
              p->out);
    else if (IS("PEAK"))
        put_peak(p);
    else if (IS("FIGURES"))
        put_figures(p);
    else if (IS("RUNSUMMARY"))
        put_run_summary(p);
    else if (IS("RUNTABLE"))
        put_run_table(p);
    else if (IS("END"))
        ; /* of a section that is shown */
    else if (IS("JSON"))
        put_json(p->out, p->figures);
    else if (IS("PLOT"))
        fputs((const char *)embed_plot_js, p->out);
    else if (IS("JS"))
        fprintf(p->out, "%s\n%s\n%s", (const char *)embed_page_js, (const char *)embed_live_js,
                (const char *)embed_map_js);
    else
        return pleat__fail(PLEAT_E_STATE, "the page has no part '%.*s'", (int)length, name);
#undef IS
    return PLEAT_OK;
}

/* The data in its own buffer, because no `<` may stand in it either. */
static pleat_result put_data_part(const page *p)
{
    cli_text text;
    page data = *p;
    PLEAT_TRY(cli_text_begin(&text, "the page's data"));
    data.out = text.out;
    pleat_result result = cli_text_end(&text, put_data(&data));
    if (result == PLEAT_OK)
        put_json(p->out, text.bytes);
    free(text.bytes);
    return result;
}

/* A part of which the page has nothing to show: from @JOB@ or @RUN@ to its @END@. */
static bool is_left_out(const page *p, const char *name, size_t length)
{
    return length == 3 && ((memcmp(name, "JOB", 3) == 0 && p->f == NULL) ||
                           (memcmp(name, "RUN", 3) == 0 && p->run == NULL));
}

static bool is_shown(const char *name, size_t length)
{
    return length == 3 && (memcmp(name, "JOB", 3) == 0 || memcmp(name, "RUN", 3) == 0);
}

static pleat_result fill_page(const page *p)
{
    const char *at = (const char *)embed_page_html;
    for (const char *begin; (begin = strchr(at, '@')) != NULL;) {
        const char *end = strchr(begin + 1, '@');
        if (end == NULL)
            break;
        fwrite(at, 1, (size_t)(begin - at), p->out);
        size_t length = (size_t)(end - begin - 1);
        at = end + 1;
        if (is_left_out(p, begin + 1, length)) {
            const char *resume = strstr(at, "@END@");
            at = resume != NULL ? resume + strlen("@END@") : at + strlen(at);
        } else if (length == 4 && memcmp(begin + 1, "DATA", 4) == 0) {
            PLEAT_TRY(put_data_part(p));
        } else if (!is_shown(begin + 1, length)) {
            PLEAT_TRY(put_part(p, begin + 1, length));
        }
    }
    fputs(at, p->out);
    return PLEAT_OK;
}

pleat_result page_write(const page_content *content, const char *path)
{
    cli_text text;
    PLEAT_TRY(cli_text_begin(&text, "the page"));
    const page p = {.f = content->job,
                    .run = content->run,
                    .growth = content->growth,
                    .name = content->name,
                    .figures = content->figures,
                    .out = text.out};
    return cli_text_write(&text, path, fill_page(&p));
}
