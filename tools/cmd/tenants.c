/*
 * tenants.c: `pleat tenants`: who shares a device, and on what terms (vmm/tenants/tenants.h).
 */
#include <tools/cli.h>
#include <tools/json.h>
#include <tools/nearest.h>
#include <tools/options.h>

#include <vmm/tenants/tenants.h>

#include <internal/error.h>

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LEDGERS_MOST  64
#define COLUMNS       10
#define PRIORITY_MOST 1000000u

typedef struct options {
    const char *device; /* the beginning of its name; NULL: all */
    bool json, prometheus;
    double interval; /* seconds; 0: not said, 1 */
    uint32_t count;  /* frames; 0: until interrupted */
    const char *guarantee, *cap;
    uint32_t priority; /* above PRIORITY_MOST: as it is */
} options;

/* A ledger that is there, and what it says. */
typedef struct ledger {
    char file[128], device[64], group[16];
    uint64_t device_bytes;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
} ledger;

typedef struct ledgers {
    ledger *all;
    int count;
} ledgers;

static volatile sig_atomic_t interrupted;

static void interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* ---- reading ---- */

static pleat_result read_ledger(ledger *of)
{
    pleat__tenants *tenants;
    PLEAT_TRY(pleat__tenants_open(of->file, &tenants));
    of->device_bytes = pleat__tenants_device_bytes(tenants);
    pleat_result result = pleat__tenants_list(tenants, of->entries, &of->count);
    pleat__tenants_close(tenants);
    return result;
}

static int compare_ledgers(const void *left, const void *right)
{
    return strcmp(((const ledger *)left)->file, ((const ledger *)right)->file);
}

/* Whether the folder's entry is a ledger of this user, or of a group, of the device that is meant.
 */
static bool is_meant(const options *o, const char *name, ledger *of)
{
    char own[32];
    if (strlen(name) >= sizeof of->file || !pleat__tenants_is_name(name, of->device, of->group))
        return false;
    snprintf(own, sizeof own, "pleat-u%u-", (unsigned)geteuid());
    if (of->group[0] == '\0' && strncmp(name, own, strlen(own)) != 0)
        return false;
    snprintf(of->file, sizeof of->file, "%s", name);
    return o->device == NULL || strncmp(of->device, o->device, strlen(o->device)) == 0;
}

/* All ledgers that may be read. One that is not trusted is said, and the others are shown; a
 * group's that this user is not in is none of its business. */
static pleat_result read_all(const options *o, ledgers *found)
{
    const char *folder = pleat__tenants_folder();
    found->count = 0;
    DIR *entries = opendir(folder);
    if (entries == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "%s", folder);
    for (struct dirent *entry; (entry = readdir(entries)) != NULL;) {
        if (found->count == LEDGERS_MOST || !is_meant(o, entry->d_name, &found->all[found->count]))
            continue;
        ledger *of = &found->all[found->count];
        if (read_ledger(of) == PLEAT_OK)
            found->count++;
        else if (of->group[0] == '\0' || pleat_last_error()->result != PLEAT_E_INPUT)
            fprintf(stderr, "pleat tenants: %s\n", pleat_last_error()->text);
    }
    closedir(entries);
    qsort(found->all, (size_t)found->count, sizeof *found->all, compare_ledgers);
    return PLEAT_OK;
}

/* ---- writing ---- */

static const char *gib(uint64_t bytes, char *buffer, size_t size)
{
    snprintf(buffer, size, "%.3f", (double)bytes / (1 << 30));
    return buffer;
}

static const char *state_of(const pleat__tenant_entry *entry)
{
    if (!entry->alive)
        return "dead";
    if (entry->damaged)
        return "damaged";
    return entry->want_bytes != 0                      ? "wants"
           : entry->use_bytes > entry->guarantee_bytes ? "borrows"
                                                       : "";
}

static void add_row(cli_table *table, const pleat__tenant_entry *entry)
{
    char text[32];
    const uint64_t sizes[] = {entry->guarantee_bytes, entry->cap_bytes,   entry->use_bytes,
                              entry->idle_bytes,      entry->other_bytes, entry->want_bytes};
    if (!cli_table_row(table))
        return;
    cli_table_cell(table, 0, "%llu %s", (unsigned long long)entry->serial, entry->name);
    cli_table_cell(table, 1, "%llu", (unsigned long long)entry->pid);
    cli_table_cell(table, 2, "%u", entry->priority);
    for (int s = 0; s < 6; s++)
        cli_table_cell(table, 3 + s, "%s", gib(sizes[s], text, sizeof text));
    cli_table_cell(table, 9, "%s", state_of(entry));
}

static pleat_result print_ledger(const ledger *of, FILE *out)
{
    static const char *const headings[COLUMNS] = {"tenant", "process", "priority", "guarantee",
                                                  "cap",    "use",     "idle",     "other",
                                                  "want",   "state"};
    cli_table table;
    uint64_t used = 0;
    char has[32], left[32];
    if (!cli_table_begin(&table, COLUMNS, headings))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table");
    for (uint32_t e = 0; e < of->count; e++) {
        used += of->entries[e].use_bytes + of->entries[e].other_bytes;
        add_row(&table, &of->entries[e]);
    }
    fprintf(out, "%s%s%s: %s, of which its tenants have %s; in GiB:\n", of->device,
            of->group[0] != '\0' ? ", group " : "", of->group,
            cli_format_size(of->device_bytes, has, sizeof has),
            cli_format_size(used, left, sizeof left));
    cli_table_end(&table, out);
    return PLEAT_OK;
}

static pleat_result print_text(const options *o, const ledgers *found, FILE *out)
{
    for (int l = 0; l < found->count; l++) {
        if (l > 0)
            fputc('\n', out);
        PLEAT_TRY(print_ledger(&found->all[l], out));
    }
    if (found->count == 0 && o->device != NULL)
        fprintf(out, "No ledger in %s is of a device whose name begins with '%s'.\n",
                pleat__tenants_folder(), o->device);
    else if (found->count == 0)
        fprintf(out,
                "There is no ledger of this user's in %s: a process takes part with\n"
                "PLEAT_CONF=tenants:user.\n",
                pleat__tenants_folder());
    return PLEAT_OK;
}

/* X(figure, text) of what is counted. */
#define FIGURES(X)                                                                                 \
    X(guarantee_bytes, "Bytes that the tenant can always have")                                    \
    X(cap_bytes, "The most bytes that the tenant may have")                                        \
    X(use_bytes, "Bytes of the device that Pleat has for the tenant")                              \
    X(idle_bytes, "Of these, bytes on which nothing lies")                                         \
    X(other_bytes, "Bytes that the tenant's process has beside its tenants'")                      \
    X(want_bytes, "Bytes that the tenant asks for and does not get")                               \
    X(host_bytes, "Bytes of host memory in the place of the device's")

static void put_json(const ledgers *found, json_writer *json)
{
    json_object(json, NULL);
    json_array(json, "devices");
    for (int l = 0; l < found->count; l++) {
        const ledger *of = &found->all[l];
        json_object(json, NULL);
        json_string(json, "device", of->device);
        json_string(json, "group", of->group);
        json_uint(json, "device_bytes", of->device_bytes);
        json_array(json, "tenants");
        for (uint32_t e = 0; e < of->count; e++) {
            const pleat__tenant_entry *entry = &of->entries[e];
            json_object(json, NULL);
            json_uint(json, "tenant", entry->serial);
            json_string(json, "name", entry->name);
            json_uint(json, "process", entry->pid);
            json_uint(json, "user", entry->uid);
            json_uint(json, "priority", entry->priority);
#define PUT(figure, text) json_uint(json, #figure, entry->figure);
            FIGURES(PUT)
#undef PUT
            json_bool(json, "alive", entry->alive);
            json_bool(json, "damaged", entry->damaged);
            json_end_object(json);
        }
        json_end_array(json);
        json_end_object(json);
    }
    json_end_array(json);
    json_end_object(json);
    json_finish(json);
}

/* Names hold nothing that would have to be quoted. */
static void put_labels(const ledger *of, const pleat__tenant_entry *entry, FILE *out)
{
    fprintf(out, "{device=\"%s\",tenant=\"%llu\",name=\"%s\",process=\"%llu\"}", of->device,
            (unsigned long long)entry->serial, entry->name, (unsigned long long)entry->pid);
}

static void put_prometheus(const ledgers *found, FILE *out)
{
#define PUT(figure, text)                                                                          \
    fputs("# HELP pleat_tenant_" #figure " " text ".\n# TYPE pleat_tenant_" #figure " gauge\n",    \
          out);                                                                                    \
    for (int l = 0; l < found->count; l++)                                                         \
        for (uint32_t e = 0; e < found->all[l].count; e++) {                                       \
            const pleat__tenant_entry *entry = &found->all[l].entries[e];                          \
            if (!entry->alive || entry->damaged)                                                   \
                continue;                                                                          \
            fputs("pleat_tenant_" #figure, out);                                                   \
            put_labels(&found->all[l], entry, out);                                                \
            fprintf(out, " %llu\n", (unsigned long long)entry->figure);                            \
        }
    FIGURES(PUT)
#undef PUT
}

/* The same where a name stands for ledgers that there are. */
static pleat_result read_meant(const options *o, ledgers *found)
{
    PLEAT_TRY(read_all(o, found));
    if (found->count == 0 && o->device != NULL)
        return pleat__fail(PLEAT_E_NOT_FOUND,
                           "no ledger in %s is of a device whose name begins with '%s'",
                           pleat__tenants_folder(), o->device);
    return PLEAT_OK;
}

static pleat_result show(const options *o, const ledgers *found)
{
    json_writer json;
    if (o->prometheus) {
        put_prometheus(found, stdout);
        return PLEAT_OK;
    }
    if (!o->json)
        return print_text(o, found, stdout);
    json_begin(&json, stdout);
    put_json(found, &json);
    return PLEAT_OK;
}

/* ---- commands ---- */

static pleat_result watch(const options *o, ledgers *found)
{
    bool terminal = isatty(STDOUT_FILENO) == 1;
    double interval = o->interval != 0 ? o->interval : 1;
    struct sigaction action = {.sa_handler = interrupt};
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    for (uint32_t frame = 0; !interrupted && (o->count == 0 || frame < o->count); frame++) {
        if (frame > 0) {
            struct timespec pause = {.tv_sec = (time_t)interval};
            pause.tv_nsec = (long)((interval - (double)pause.tv_sec) * 1e9);
            if (nanosleep(&pause, NULL) != 0 && interrupted)
                break;
        }
        if (terminal)
            fputs("\033[H\033[J", stdout);
        PLEAT_TRY(read_all(o, found)); /* the device's first tenant may be to come */
        PLEAT_TRY(show(o, found));
        if (fflush(stdout) != 0)
            return pleat__fail_errno(PLEAT_E_IO, "standard output cannot be written");
    }
    return PLEAT_OK;
}

/* What is done with a tenant that is named by its number. */
typedef pleat_result (*with_tenant)(const options *o, pleat__tenants *tenants, uint64_t serial);

static pleat_result size_of(const char *text, const char *what, uint64_t *bytes)
{
    if (text == NULL || pleat_size_parse(text, bytes))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INVALID, "%s: '%s' is no size: write 20GiB", what, text);
}

static bool sets_priority(const options *o)
{
    return o->priority <= PRIORITY_MOST;
}

static pleat_result set_terms(const options *o, pleat__tenants *tenants, uint64_t serial)
{
    uint64_t guarantee, cap;
    PLEAT_TRY(size_of(o->guarantee, "--guarantee", &guarantee));
    PLEAT_TRY(size_of(o->cap, "--cap", &cap));
    return pleat__tenants_set(tenants, serial, o->guarantee != NULL ? &guarantee : NULL,
                              o->cap != NULL ? &cap : NULL, sets_priority(o) ? &o->priority : NULL);
}

static pleat_result reclaim(const options *o, pleat__tenants *tenants, uint64_t serial)
{
    (void)o;
    return pleat__tenants_reclaim(tenants, serial);
}

static bool is_called(const pleat__tenant_entry *entry, const char *name)
{
    char number[24];
    snprintf(number, sizeof number, "%llu", (unsigned long long)entry->serial);
    return strcmp(number, name) == 0 || strcmp(entry->name, name) == 0;
}

/* Every tenant of that number or name, on all the devices that are meant. */
static pleat_result for_tenant(const options *o, const ledgers *found, const char *name,
                               with_tenant call)
{
    uint32_t met = 0;
    for (int l = 0; l < found->count; l++)
        for (uint32_t e = 0; e < found->all[l].count; e++) {
            pleat__tenants *tenants;
            if (!is_called(&found->all[l].entries[e], name))
                continue;
            PLEAT_TRY(pleat__tenants_open(found->all[l].file, &tenants));
            pleat_result result = call(o, tenants, found->all[l].entries[e].serial);
            pleat__tenants_close(tenants);
            PLEAT_TRY(result);
            met++;
        }
    if (met == 0)
        return pleat__fail(PLEAT_E_NOT_FOUND, "there is no tenant '%s': `pleat tenants` lists them",
                           name);
    return PLEAT_OK;
}

static pleat_result remove_dead(const ledgers *found)
{
    for (int l = 0; l < found->count; l++) {
        pleat__tenants *tenants;
        uint32_t count = 0;
        PLEAT_TRY(pleat__tenants_open(found->all[l].file, &tenants));
        pleat_result result = pleat__tenants_remove_dead(tenants, &count);
        pleat__tenants_close(tenants);
        PLEAT_TRY(result);
        const char *group = found->all[l].group;
        printf("%s%s%s: %u removed\n", found->all[l].device, group[0] != '\0' ? ", group " : "",
               group, count);
    }
    return PLEAT_OK;
}

static const char help[] =
    "Shows the processes that share a device under Pleat (PLEAT_CONF=tenants:user), what each has\n"
    "of it, and changes what each may have.\n"
    "\n"
    "  pleat tenants                   what there is now\n"
    "  pleat tenants watch             the same, again and again\n"
    "  pleat tenants set TENANT        its guarantee, cap and priority, by the options below\n"
    "  pleat tenants reclaim TENANT    asks it to give back what is idle\n"
    "  pleat tenants remove-dead       strikes out who died (whoever needs memory does it too)\n"
    "\n"
    "TENANT is a number or a name of the first column.\n";

/* What is wrong with the options: one that the command would pass by, or none that it wants. NULL:
 * nothing. */
static const char *wrong_options(const options *o, const char *verb, int count)
{
    bool sets = strcmp(verb, "set") == 0, watches = strcmp(verb, "watch") == 0;
    if (!sets && (o->guarantee != NULL || o->cap != NULL || sets_priority(o)))
        return "--guarantee, --cap and --priority are options of set TENANT";
    if (!watches && (o->interval != 0 || o->count != 0))
        return "--interval and --count are options of watch";
    if (o->json && o->prometheus)
        return "--json and --prometheus are two forms: choose one";
    if ((o->json || o->prometheus) && count > 0 && !watches && strcmp(verb, "list") != 0)
        return "--json and --prometheus are options of list and watch";
    if (sets && count == 2 && o->guarantee == NULL && o->cap == NULL && !sets_priority(o))
        return "set TENANT wants --guarantee, --cap or --priority";
    return NULL;
}

static pleat_result run(const options *o, int count, char **operands, ledgers *found, bool *bad)
{
    const char *verb = count > 0 ? operands[0] : "list";
    bool named = strcmp(verb, "set") == 0 || strcmp(verb, "reclaim") == 0;
    *bad = count > (named ? 2 : 1) || (named && count < 2);
    if (*bad)
        return PLEAT_OK;
    if (strcmp(verb, "watch") == 0)
        return watch(o, found);
    bool lists = strcmp(verb, "list") == 0;
    *bad = !named && !lists && strcmp(verb, "remove-dead") != 0;
    if (*bad)
        return PLEAT_OK;
    PLEAT_TRY(read_meant(o, found));
    if (named)
        return for_tenant(o, found, operands[1], strcmp(verb, "set") == 0 ? set_terms : reclaim);
    return lists ? show(o, found) : remove_dead(found);
}

/* An operand there is: without any, all of them are shown. */
static int bad_command(const char *verb)
{
    static const char *const all[] = {"list", "watch", "set", "reclaim", "remove-dead"};
    if (strcmp(verb, "set") == 0 || strcmp(verb, "reclaim") == 0)
        return cli_bad_use("tenants", "%s takes one TENANT", verb);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(verb, all[i]) == 0)
            return cli_bad_use("tenants", "%s takes no operand", verb);
    return nearest_refuse("tenants", "command", verb, all, sizeof all / sizeof *all);
}

int cli_tenants(int argc, char **argv)
{
    options o = {.priority = UINT32_MAX};
    const cli_option table[] = {
        OPTION_JSON(&o.json),
        OPTION_FLAG('P', "prometheus", &o.prometheus, "the figures as Prometheus reads them"),
        OPTION_TEXT('d', "device", &o.device, "NAME", "only devices whose name begins so"),
        OPTION_NUMBER('i', "interval", &o.interval, "SECONDS", 0.05, 3600,
                      "watch: between two looks"),
        OPTION_COUNT('n', "count", &o.count, "N", 1, 1000000, "watch: so often"),
        OPTION_TEXT('g', "guarantee", &o.guarantee, "SIZE", "set: what it can always have"),
        OPTION_TEXT('c', "cap", &o.cap, "SIZE", "set: the most that it may have"),
        OPTION_COUNT('r', "priority", &o.priority, "N", 0, PRIORITY_MOST,
                     "set: what is borrowed goes to the higher number"),
        OPTION_END};
    const cli_usage usage = {.command = "tenants",
                             .synopsis = "[watch | set TENANT | reclaim TENANT | remove-dead] "
                                         "[options]",
                             .text = help,
                             .options = table,
                             .operand = "a command",
                             .optional = true};
    int first = argc;
    int code = cli_read(argc, argv, &usage, &first);
    if (code != CLI_GO_ON)
        return code;
    const char *wrong = wrong_options(&o, first < argc ? argv[first] : "list", argc - first);
    if (wrong != NULL)
        return cli_bad_use("tenants", "%s", wrong);
    ledgers found = {.all = calloc(LEDGERS_MOST, sizeof *found.all)};
    bool bad = false;
    pleat_result result = found.all != NULL
                              ? run(&o, argc - first, argv + first, &found, &bad)
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the ledgers");
    free(found.all);
    if (bad)
        return bad_command(argv[first]);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("tenants", result);
}
