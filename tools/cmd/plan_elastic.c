/*
 * plan_elastic.c: see plan_elastic.h.
 */
#include <tools/cmd/plan_elastic.h>

#include <tools/cli.h>
#include <tools/clock.h>

#include <internal/error.h>
#include <string.h>

#define TEXT      64 /* bytes of an x as text */
#define ROWS_MOST 33 /* of a table of x */

/* "1.5": as a person writes it. */
static const char *plain_x(pleat__fraction x, char *text, size_t size)
{
    snprintf(text, size, "%.6g", (double)x.num / (double)x.den);
    return text;
}

static void json_x(json_writer *json, const char *key, pleat__fraction x)
{
    char text[TEXT];
    json_string(json, key, pleat__x_text(x, text, sizeof text));
}

void elastic_json(json_writer *json, const pleat_plan *plan, const pleat__elastic_report *report,
                  const char *const *traces, uint32_t count)
{
    const pleat__recipe *recipe = plan->recipe;
    json_object(json, "elastic");
    json_x(json, "reference", recipe->reference);
    json_x(json, "lowest", recipe->lowest);
    json_x(json, "highest", recipe->highest);
    json_uint(json, "prologue_requests", recipe->prologue);
    json_uint(json, "functions", recipe->function_count);
    json_uint(json, "varying_requests", report->varying);
    json_uint(json, "explained_requests", report->explained);
    json_array(json, "traces");
    for (uint32_t t = 0; t < count; t++) {
        json_object(json, NULL);
        json_string(json, "trace", traces[t]);
        json_x(json, "x", report->x[t]);
        json_uint(json, "paired_requests", report->paired[t]);
        json_end_object(json);
    }
    json_end_array(json);
    json_end_object(json);
}

/* Whether the figures are one, to 0.1 %. */
static bool is_sure(uint64_t least, uint64_t most)
{
    return least >= most - most / 1000;
}

/* What a job that follows the instance takes at most, and with smaller workspaces at least. */
typedef struct taking {
    uint64_t most;
    uint64_t least;
} taking;

static pleat_result taking_of(const pleat_plan *plan, pleat__fraction x, const pleat_plan *instance,
                              const pleat__instance_report *report, taking *out)
{
    PLEAT_TRY(pleat__elastic_least(plan, x, instance, &out->least));
    out->most = pleat__instance_takes(instance, report);
    out->least += report->beside_bytes;
    return PLEAT_OK;
}

/* What it takes with the plan's own places; 0: they are too small. */
static uint64_t kept_of(const pleat__instance_report *report)
{
    return report->kept_bytes != 0 ? report->kept_bytes + report->beside_bytes : 0;
}

static const char *layout_of(const pleat_plan *instance)
{
    for (uint32_t i = 0; i < instance->map_count; i++)
        if (instance->maps[i].alias != 0)
            return "folded";
    return "contiguous";
}

static double to_max_live(const pleat_plan *instance, const taking *takes)
{
    return (double)takes->most / (double)instance->max_live_bytes;
}

static void print_row(cli_table *table, pleat__fraction x, const pleat_plan *instance,
                      const pleat__instance_report *report, const taking *takes)
{
    char text[TEXT];
    if (!cli_table_row(table))
        return;
    cli_table_cell(table, 0, "%s", plain_x(x, text, sizeof text));
    cli_table_cell(table, 1, "%s", cli_format_size(instance->max_live_bytes, text, sizeof text));
    cli_table_cell(table, 2, "%s", cli_format_size(takes->most, text, sizeof text));
    cli_table_cell(table, 3, "%s", cli_format_size(takes->least, text, sizeof text));
    cli_table_cell(table, 4, "%.5f", to_max_live(instance, takes));
    cli_table_cell(table, 5, "%s", layout_of(instance));
    cli_table_cell(table, 6, "%u", report->remaps);
}

/* Adds a row; whether the figures are one. What cannot be laid out has none. */
static bool add_row(cli_table *table, const pleat_plan *plan, pleat__fraction x)
{
    pleat__instance_report report;
    pleat_plan *instance;
    taking takes = {0, 0};
    if (pleat__elastic_instance(plan, x, NULL, &report, &instance) != PLEAT_OK)
        return true;
    if (taking_of(plan, x, instance, &report, &takes) == PLEAT_OK)
        print_row(table, x, instance, &report, &takes);
    pleat_plan_free(instance);
    return is_sure(takes.least, takes.most);
}

/* Some x of the recipe's range, ascending: the lowest, half as much again, twice the lowest, and so
 * on; and the reference's. */
static uint32_t list_range(const pleat__recipe *recipe, pleat__fraction rows[ROWS_MOST])
{
    static const pleat__fraction steps[] = {{3, 2}, {4, 3}};
    pleat__fraction x = recipe->lowest, reference = recipe->reference;
    uint32_t count = 0, at;
    while (count < ROWS_MOST - 1 && pleat__fraction_compare(x, recipe->highest) <= 0) {
        rows[count++] = x;
        if (!pleat__fraction_multiply(x, steps[(count - 1) % 2], &x))
            break;
    }
    for (at = count; at > 0 && pleat__fraction_compare(rows[at - 1], reference) > 0;)
        at--;
    if (at > 0 && pleat__fraction_compare(rows[at - 1], reference) == 0)
        return count;
    memmove(rows + at + 1, rows + at, (count - at) * sizeof *rows);
    rows[at] = reference;
    return count + 1;
}

/* What some x would need. */
static void print_range(const pleat_plan *plan)
{
    const char *headings[] = {"x",           "max-live", "physical", "at least",
                              "to max-live", "layout",   "remaps"};
    char text[TEXT];
    pleat__fraction rows[ROWS_MOST], unsure;
    uint32_t count = list_range(plan->recipe, rows);
    bool sure = true;
    cli_table table;
    if (!cli_table_begin(&table, 7, headings))
        return;
    for (uint32_t i = 0; i < count; i++) {
        if (!add_row(&table, plan, rows[i]) && sure) {
            sure = false;
            unsure = rows[i];
        }
    }
    cli_table_end(&table, stdout);
    if (!sure)
        printf("from x = %s on 'physical' is the most, and 'at least' what it takes where kernels' "
               "workspaces are no larger than those recorded\n",
               plain_x(unsure, text, sizeof text));
}

void elastic_summary(const pleat_plan *plan)
{
    const pleat__recipe *recipe = plan->recipe;
    char low[TEXT], high[TEXT], text[TEXT];
    printf("for every x (microbatch or length) from %s to %s; laid out for %s\n\n",
           plain_x(recipe->lowest, low, sizeof low), plain_x(recipe->highest, high, sizeof high),
           plain_x(recipe->reference, text, sizeof text));
    print_range(plan);
}

void elastic_text(const pleat_plan *plan, const pleat__elastic_report *report,
                  const char *const *traces, uint32_t count)
{
    const pleat__recipe *recipe = plan->recipe;
    char text[TEXT], low[TEXT], high[TEXT];
    for (uint32_t t = 0; t < count; t++)
        printf("x = %s: %s, with %llu of the iteration's %u requests\n",
               plain_x(report->x[t], text, sizeof text), traces[t],
               (unsigned long long)report->paired[t], plan->steady.slot_count);
    printf("%llu of the %llu requests that vary follow x; the plan is for x from %s to %s, and its "
           "places are those of %s\n\n",
           (unsigned long long)report->explained, (unsigned long long)report->varying,
           plain_x(recipe->lowest, low, sizeof low), plain_x(recipe->highest, high, sizeof high),
           plain_x(recipe->reference, text, sizeof text));
    print_range(plan);
}

/* --- answers -----------------------------------------------------------------------------------*/

static void print_at(const pleat_plan *instance, const pleat__instance_report *report,
                     const taking *takes, const char *x, double seconds)
{
    const char *headings[] = {"x", x};
    char text[TEXT];
    cli_table table;
    if (!cli_table_begin(&table, 2, headings))
        return;
    cli_table_size(&table, "max-live", instance->max_live_bytes);
    cli_table_size(&table, "physical", takes->most);
    if (takes->least < takes->most)
        cli_table_size(&table, "  at least", takes->least);
    if (report->beside_bytes != 0)
        cli_table_size(&table, "  of it beside the plan", report->beside_bytes);
    snprintf(text, sizeof text, "%.5f", to_max_live(instance, takes));
    cli_table_text(&table, "  to max-live", text);
    if (report->kept_bytes != 0)
        cli_table_size(&table, "with the plan's own places", kept_of(report));
    cli_table_text(&table, "layout", layout_of(instance));
    snprintf(text, sizeof text, "%u", report->remaps);
    cli_table_text(&table, "maps that the plan has not", text);
    snprintf(text, sizeof text, "%.1f ms", seconds * 1e3);
    cli_table_text(&table, "made in", text);
    cli_table_end(&table, stdout);
}

static void json_at(json_writer *json, const pleat_plan *instance,
                    const pleat__instance_report *report, const taking *takes, const char *x,
                    double seconds)
{
    json_string(json, "x", x);
    json_uint(json, "at_max_live_bytes", instance->max_live_bytes);
    json_uint(json, "at_physical_bytes", takes->most);
    json_uint(json, "at_least_bytes", takes->least);
    json_uint(json, "at_beside_bytes", report->beside_bytes);
    json_double(json, "at_ratio", to_max_live(instance, takes));
    json_uint(json, "at_kept_bytes", kept_of(report));
    json_string(json, "at_layout", layout_of(instance));
    json_uint(json, "at_remaps", report->remaps);
    json_double(json, "at_seconds", seconds);
}

/* There is no such x, or none that fits: the last error says why. */
static int answer_no(const char *key, json_writer *json)
{
    if (json != NULL)
        json_string(json, key, pleat_last_error()->text);
    fprintf(stderr, "pleat plan: %s\n", pleat_last_error()->text);
    return CLI_NO;
}

static int answer_at(const pleat_plan *plan, const char *at, json_writer *json)
{
    pleat__instance_report report;
    pleat_plan *instance;
    char text[TEXT];
    pleat__fraction x;
    (void)pleat__x_parse(at, &x); /* the command line was checked */
    uint64_t start = clock_now();
    pleat_result result = pleat__elastic_instance(plan, x, NULL, &report, &instance);
    double seconds = (double)(clock_now() - start) * 1e-9;
    if (result == PLEAT_E_NOT_FOUND) {
        if (json != NULL)
            json_string(json, "x", pleat__x_text(x, text, sizeof text));
        return answer_no("at_why_not", json);
    }
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    taking takes;
    result = taking_of(plan, x, instance, &report, &takes);
    if (result == PLEAT_OK && json != NULL)
        json_at(json, instance, &report, &takes, pleat__x_text(x, text, sizeof text), seconds);
    else if (result == PLEAT_OK)
        print_at(instance, &report, &takes, plain_x(x, text, sizeof text), seconds);
    pleat_plan_free(instance);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("plan", result);
}

/* What the step behind x would need; 0 where the recipe does not reach. */
static uint64_t next_need(const pleat_plan *plan, pleat__fraction x, pleat__fraction step,
                          pleat__fraction *next)
{
    pleat__instance_report report;
    pleat_plan *instance;
    uint64_t num, left, right, den;
    *next = x;
    if (!pleat__mul(x.num, step.den, &left) || !pleat__mul(step.num, x.den, &right) ||
        !pleat__add(left, right, &num) || !pleat__mul(x.den, step.den, &den) ||
        !pleat__fraction_make(num, den, next) ||
        pleat__elastic_instance(plan, *next, NULL, &report, &instance) != PLEAT_OK)
        return 0;
    uint64_t need = pleat__instance_takes(instance, &report);
    pleat_plan_free(instance);
    return need;
}

/* Where nobody says what x is: a sixteenth of one, and of a length at least one. */
static pleat__fraction step_of(const pleat__recipe *recipe)
{
    bool is_fine = recipe->named == 0 && recipe->highest.num / recipe->highest.den < 64;
    return (pleat__fraction){1, is_fine ? 16 : 1};
}

static void print_fit(uint64_t bytes, pleat__fraction x, uint64_t need, pleat__fraction next,
                      uint64_t more)
{
    char text[TEXT], size[TEXT], limit[TEXT];
    plain_x(x, text, sizeof text);
    cli_format_size(bytes, limit, sizeof limit);
    cli_format_size(need, size, sizeof size);
    if (more == 0) {
        printf("x = %s fits in %s: it takes %s; the plan's recipe reaches no further: record "
               "a larger one, or plan with --max\n",
               text, limit, size);
        return;
    }
    printf("x = %s is the largest that fits in %s: it takes %s\n", text, limit, size);
    printf("x = %s would take %s\n", plain_x(next, text, sizeof text),
           cli_format_size(more, size, sizeof size));
}

static int answer_fit(const pleat_plan *plan, const elastic_question *question, json_writer *json)
{
    pleat__fraction step = step_of(plan->recipe);
    pleat__fraction x, next;
    uint64_t need;
    pleat_result result = pleat__elastic_fit(plan, question->fit, step, &x, &need);
    if (result == PLEAT_E_NOT_FOUND) {
        if (json != NULL)
            json_uint(json, "fit_bytes", question->fit);
        return answer_no("fit_why_not", json);
    }
    if (result != PLEAT_OK)
        return cli_failed("plan", result);
    uint64_t more = next_need(plan, x, step, &next);
    if (json == NULL) {
        print_fit(question->fit, x, need, next, more);
        return CLI_DONE;
    }
    json_uint(json, "fit_bytes", question->fit);
    json_x(json, "fit_x", x);
    json_uint(json, "fit_physical_bytes", need);
    if (more != 0) {
        json_x(json, "fit_next_x", next);
        json_uint(json, "fit_next_physical_bytes", more);
    }
    return CLI_DONE;
}

int elastic_answer(const char *path, const pleat_plan *plan, const elastic_question *question,
                   json_writer *json)
{
    if (plan->recipe == NULL) {
        fprintf(stderr,
                "pleat plan: '%s': the plan has no recipe: it is for one size only; plan several "
                "traces of the job, recorded at different sizes\n",
                path);
        return CLI_BAD_INPUT;
    }
    int code = CLI_DONE;
    if (question->at != NULL)
        code = answer_at(plan, question->at, json);
    if (code == CLI_DONE && question->fit != 0)
        code = answer_fit(plan, question, json);
    return code;
}
