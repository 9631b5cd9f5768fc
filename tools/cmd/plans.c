/*
 * plans.c: `pleat plans`: the plans that runs left for the next ones (plan/file/plan_cache.h).
 */
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/nearest.h>
#include <tools/options.h>

#include <plan/base/plan.h>
#include <plan/file/plan_cache.h>

#include <internal/error.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ID_DIGITS 12

typedef struct options {
    bool json, all;
} options;

/* All that there are, the last used first. */
typedef struct kept {
    char folder[PLEAT__PLAN_CACHE_PATH];
    pleat__arena *arena;
    pleat__kept_plan *plans;
    size_t count;
} kept;

/* Names are long, and those of jobs that begin alike begin alike. */
static void id_of(const pleat__kept_plan *plan, char id[ID_DIGITS + 1])
{
    uint64_t hash = pleat__plan_key_hash(0, plan->name, strlen(plan->name));
    snprintf(id, ID_DIGITS + 1, "%0*llx", ID_DIGITS,
             (unsigned long long)(hash >> (64 - 4 * ID_DIGITS)));
}

static void time_of(const pleat__kept_plan *plan, char text[32])
{
    time_t used = (time_t)plan->used_s;
    struct tm local;
    if (localtime_r(&used, &local) == NULL || strftime(text, 32, "%Y-%m-%d %H:%M", &local) == 0)
        text[0] = '\0';
}

static pleat_result open_kept(kept *all)
{
    *all = (kept){0};
    PLEAT_TRY(pleat__plan_cache_folder(false, all->folder));
    PLEAT_TRY(pleat__arena_create(&all->arena));
    pleat_result result = pleat__plan_cache_list(all->folder, all->arena, &all->plans, &all->count);
    if (result != PLEAT_OK)
        pleat__arena_destroy(all->arena);
    return result;
}

/* ---- showing ---- */

/* At least: what has neither slot nor lane lies beside the plan's memory. */
static uint64_t taken(const pleat_plan *plan)
{
    return plan->physical_bytes > plan->max_live_bytes ? plan->physical_bytes
                                                       : plan->max_live_bytes;
}

static void add_row(cli_table *table, const kept *all, const pleat__kept_plan *plan)
{
    char id[ID_DIGITS + 1], used[32], size[32], live[32], takes[32];
    pleat_plan *read = NULL;
    if (!cli_table_row(table))
        return;
    id_of(plan, id);
    time_of(plan, used);
    cli_table_cell(table, 0, "%s", id);
    cli_table_cell(table, 1, "%s", used);
    cli_table_cell(table, 2, "%s", cli_format_size(plan->bytes, size, sizeof size));
    if (pleat__plan_cache_read(all->folder, plan->name, &read) != PLEAT_OK) {
        cli_table_cell(table, 6, "cannot be read");
        return;
    }
    cli_table_cell(table, 3, "%u", pleat__iteration_slots(read));
    cli_table_cell(table, 4, "%s", cli_format_size(read->max_live_bytes, live, sizeof live));
    cli_table_cell(table, 5, "%s",
                   cli_format_size_like(taken(read), read->max_live_bytes, takes, sizeof takes));
    cli_table_cell(table, 6, "%s", pleat__plan_cache_program(read));
    pleat_plan_free(read);
}

static pleat_result print_table(const kept *all)
{
    static const char *const headings[] = {"plan", "last used", "file",   "requests",
                                           "live", "takes",     "program"};
    cli_table table;
    uint64_t bytes = 0;
    char text[32];
    if (all->count == 0) {
        printf(
            "There are no plans in %s.\nPyTorch under Pleat leaves them by itself, other programs "
            "and replays with\nPLEAT_CONF=keep:on.\n",
            all->folder);
        return PLEAT_OK;
    }
    if (!cli_table_begin(&table, 7, headings))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table");
    for (size_t i = 0; i < all->count; i++) {
        add_row(&table, all, &all->plans[i]);
        bytes += all->plans[i].bytes;
    }
    cli_table_end(&table, stdout);
    printf("\n%zu in %s, %s\n", all->count, all->folder, cli_format_size(bytes, text, sizeof text));
    return PLEAT_OK;
}

static void put_plan(json_writer *json, const kept *all, const pleat__kept_plan *plan)
{
    char id[ID_DIGITS + 1];
    pleat_plan *read;
    id_of(plan, id);
    json_string(json, "plan", id);
    json_string(json, "file", plan->name);
    json_uint(json, "file_bytes", plan->bytes);
    json_uint(json, "used_seconds", plan->used_s > 0 ? (uint64_t)plan->used_s : 0);
    if (pleat__plan_cache_read(all->folder, plan->name, &read) != PLEAT_OK) {
        json_string(json, "why_not", pleat_last_error()->text);
        return;
    }
    json_string(json, "program", pleat__plan_cache_program(read));
    json_uint(json, "iteration_requests", pleat__iteration_slots(read));
    json_uint(json, "max_live_bytes", read->max_live_bytes);
    json_uint(json, "physical_bytes", read->physical_bytes);
    json_uint(json, "takes_bytes", taken(read));
    json_bool(json, "follows_sizes", read->recipe != NULL);
    pleat_plan_free(read);
}

static pleat_result list(const options *o, const kept *all)
{
    json_writer json;
    if (!o->json)
        return print_table(all);
    json_begin(&json, stdout);
    json_object(&json, NULL);
    json_string(&json, "folder", all->folder);
    json_array(&json, "plans");
    for (size_t i = 0; i < all->count; i++) {
        json_object(&json, NULL);
        put_plan(&json, all, &all->plans[i]);
        json_end_object(&json);
    }
    json_end_array(&json);
    json_end_object(&json);
    json_finish(&json);
    return PLEAT_OK;
}

static pleat_result show(const options *o, const kept *all, const pleat__kept_plan *plan)
{
    char id[ID_DIGITS + 1], text[32], live[32], plain[4096];
    pleat_plan *read;
    PLEAT_TRY(pleat__plan_cache_read(all->folder, plan->name, &read));
    if (o->json) {
        json_writer json;
        pleat_plan_free(read);
        json_begin(&json, stdout);
        json_object(&json, NULL);
        put_plan(&json, all, plan);
        json_end_object(&json);
        json_finish(&json);
        return PLEAT_OK;
    }
    id_of(plan, id);
    printf("plan       %s\nfile       %s/%s\n", id, all->folder, plan->name);
    const char *program = pleat__plan_cache_program(read);
    printf("program    %s\n", cli_plain(program, strlen(program), plain, sizeof plain));
    time_of(plan, text);
    printf("last used  %s\n", text);
    printf("requests   %u an iteration, %u before the first\n", pleat__iteration_slots(read),
           read->first.slot_count);
    printf("live       %s\n", cli_format_size(read->max_live_bytes, live, sizeof live));
    printf("takes      %s\n",
           cli_format_size_like(taken(read), read->max_live_bytes, text, sizeof text));
    printf("sizes      %s\n",
           read->recipe != NULL ? "follow a number, a batch or a length" : "as they were");
    pleat_plan_free(read);
    return PLEAT_OK;
}

/* ---- commands ---- */

/* The plan whose number begins so; with nothing none does, though all would. */
static pleat_result find(const kept *all, const char *name, const pleat__kept_plan **found)
{
    *found = NULL;
    for (size_t i = 0; i < all->count; i++) {
        char id[ID_DIGITS + 1];
        id_of(&all->plans[i], id);
        bool begins = name[0] != '\0' && strncmp(id, name, strlen(name)) == 0;
        if (!begins && strcmp(all->plans[i].name, name) != 0)
            continue;
        if (*found != NULL)
            return pleat__fail(PLEAT_E_NOT_FOUND, "several plans begin with '%s'", name);
        *found = &all->plans[i];
    }
    return *found != NULL ? PLEAT_OK
                          : pleat__fail(PLEAT_E_NOT_FOUND,
                                        "there is no plan '%s': `pleat plans` lists them", name);
}

static pleat_result remove_one(const kept *all, const char *name)
{
    const pleat__kept_plan *plan;
    PLEAT_TRY(find(all, name, &plan));
    return pleat__plan_cache_remove(all->folder, plan->name);
}

/* What another process removed meanwhile is gone as well. */
static pleat_result remove_all(const kept *all)
{
    for (size_t i = 0; i < all->count; i++) {
        pleat_result result = pleat__plan_cache_remove(all->folder, all->plans[i].name);
        if (result != PLEAT_OK && result != PLEAT_E_NOT_FOUND)
            return result;
    }
    return PLEAT_OK;
}

static const char help[] =
    "Shows the plans that runs left for the next ones of the same job (PLEAT_CONF=keep:on, which\n"
    "'pleat run' and pleat.enable() have unless they are told keep:off), and removes them.\n"
    "\n"
    "  pleat plans                  what there is, the last used first\n"
    "  pleat plans show PLAN        one of them, with its file, which is a plan like any other\n"
    "  pleat plans remove PLAN ...  removes them; with --all every one\n"
    "\n"
    "PLAN is a number of the first column, or its beginning. They lie in\n"
    "$XDG_CACHE_HOME/pleat/plans or ~/.cache/pleat/plans; those used longest ago go when all take\n"
    "more than the setting keep_bytes.\n";

static bool is_well_formed(const options *o, int count, const char *verb)
{
    if (strcmp(verb, "list") == 0)
        return count <= 1 && !o->all;
    if (strcmp(verb, "show") == 0)
        return count == 2 && !o->all;
    return strcmp(verb, "remove") == 0 && (count > 1) != o->all;
}

static int bad_command(const options *o, int count, const char *verb)
{
    static const char *const all[] = {"list", "show", "remove"};
    if (strcmp(verb, "show") == 0)
        return cli_bad_use("plans", "show takes one PLAN");
    if (strcmp(verb, "remove") == 0)
        return cli_bad_use("plans", "remove takes a PLAN or more, or else --all");
    if (strcmp(verb, "list") != 0)
        return nearest_refuse("plans", "command", verb, all, sizeof all / sizeof *all);
    return o->all && count <= 1 ? cli_bad_use("plans", "--all is for remove")
                                : cli_bad_use("plans", "list takes no PLAN");
}

static pleat_result run(const options *o, int count, char **operands)
{
    const char *verb = count > 0 ? operands[0] : "list";
    const pleat__kept_plan *plan;
    kept all;
    PLEAT_TRY(open_kept(&all));
    pleat_result result = PLEAT_OK;
    if (strcmp(verb, "list") == 0) {
        result = list(o, &all);
    } else if (strcmp(verb, "show") == 0) {
        result = find(&all, operands[1], &plan);
        if (result == PLEAT_OK)
            result = show(o, &all, plan);
    } else if (o->all) {
        result = remove_all(&all);
    }
    for (int i = 1; result == PLEAT_OK && strcmp(verb, "remove") == 0 && i < count; i++)
        result = remove_one(&all, operands[i]);
    pleat__arena_destroy(all.arena);
    return result;
}

int cli_plans(int argc, char **argv)
{
    options o = {0};
    const cli_option table[] = {OPTION_JSON(&o.json),
                                OPTION_FLAG('a', "all", &o.all, "remove: every plan"), OPTION_END};
    const cli_usage usage = {.command = "plans",
                             .synopsis = "[show PLAN | remove PLAN ... | remove --all] [options]",
                             .text = help,
                             .tail = "Exit status: 0; 2 bad use; 3 a plan that cannot be read or "
                                     "is not there; 5 otherwise.\n",
                             .options = table,
                             .operand = "a command",
                             .optional = true};
    int first = argc;
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    if (!is_well_formed(&o, argc - first, first < argc ? argv[first] : "list"))
        return bad_command(&o, argc - first, first < argc ? argv[first] : "list");
    if (o.json && first < argc && strcmp(argv[first], "remove") == 0)
        return cli_bad_use("plans", "--json is for list and show: remove has no figures");
    pleat_result result = run(&o, argc - first, argv + first);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("plans", result);
}
