/*
 * devices.c: see devices.h.
 */
#include <tools/replay/devices.h>
#include <tools/replay/log_kind.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define DEVICES (UINT8_MAX + 1)

/* Those that it allocates on. */
static int find_devices(const pleat_trace *trace, bool *seen)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    int count = 0;
    memset(seen, 0, DEVICES * sizeof *seen);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        if (events[i].kind != PLEAT_EVENT_ALLOC || seen[events[i].device])
            continue;
        seen[events[i].device] = true;
        count++;
    }
    return count;
}

int device_first(const pleat_trace *trace)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++)
        if (events[i].kind == PLEAT_EVENT_ALLOC)
            return events[i].device;
    return 0;
}

/* What a reader of recordings says of a log is what it is not. */
static pleat_result name_log(pleat_result result, const char *path)
{
    log_kind kind = result == PLEAT_E_INPUT ? log_kind_of(path) : LOG_KIND_NONE;
    return kind == LOG_KIND_NONE
               ? result
               : pleat__fail(result,
                             "'%s': this is a %slog of a run; a trace or a recording is wanted "
                             "(%s'pleat top' shows a log, and 'pleat report --log' draws it)",
                             path, kind == LOG_KIND_GZIPPED ? "gzipped " : "",
                             kind == LOG_KIND_GZIPPED ? "gunzip it first: " : "");
}

pleat_result device_import(const char *path, int device, pleat__trace_form *form,
                           pleat_trace **trace)
{
    return name_log(pleat__trace_import(path, device, form, trace), path);
}

pleat_result device_import_others(const char *const *paths, uint32_t count, int device,
                                  pleat_trace **traces)
{
    for (uint32_t i = 1; i < count; i++)
        PLEAT_TRY(device_import(paths[i], device, NULL, &traces[i]));
    return PLEAT_OK;
}

static const char *path_of(const char *path, int device, char *buffer)
{
    const char *at = strstr(path, "%d");
    if (at == NULL)
        snprintf(buffer, DEVICE_PATH_MOST, "%s", path);
    else
        snprintf(buffer, DEVICE_PATH_MOST, "%.*s%d%s", (int)(at - path), path, device, at + 2);
    return buffer;
}

const char *device_path(const char *path, const pleat_trace *trace, char *buffer)
{
    return path_of(path, device_first(trace), buffer);
}

static bool is_one_file(const char *path, const char *other)
{
    struct stat one, two;
    return stat(path, &one) == 0 && stat(other, &two) == 0 && S_ISREG(one.st_mode) &&
           one.st_dev == two.st_dev && one.st_ino == two.st_ino;
}

int devices_overwrite(const char *command, const char *input, const char *output)
{
    char read[DEVICE_PATH_MOST], written[DEVICE_PATH_MOST];
    if (output == NULL)
        return CLI_DONE;
    bool named = strstr(input, "%d") != NULL || strstr(output, "%d") != NULL;
    bool lost = is_one_file(input, output);
    const char *name = output;
    for (int device = 0; named && device < DEVICES && !lost; device++) {
        name = path_of(output, device, written);
        lost = is_one_file(input, name) || is_one_file(path_of(input, device, read), name);
    }
    return lost ? cli_bad_use(command, "'%s' is read here: give what is written another name", name)
                : CLI_DONE;
}

/* The folder of a file, which need not be there yet, and its name in it. */
static bool find_folder(const char *path, struct stat *folder, const char **name)
{
    char text[DEVICE_PATH_MOST];
    const char *slash = strrchr(path, '/');
    *name = slash == NULL ? path : slash + 1;
    snprintf(text, sizeof text, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1,
             slash == NULL ? "." : path);
    return stat(text, folder) == 0;
}

static bool is_one_place(const char *path, const char *other)
{
    struct stat one, two;
    const char *name, *other_name;
    return find_folder(path, &one, &name) && find_folder(other, &two, &other_name) &&
           one.st_dev == two.st_dev && one.st_ino == two.st_ino && strcmp(name, other_name) == 0;
}

int devices_write_twice(const char *command, const char *output, const char *other,
                        const char *what)
{
    char written[DEVICE_PATH_MOST], again[DEVICE_PATH_MOST];
    if (output == NULL || other == NULL)
        return CLI_DONE;
    bool named = strstr(output, "%d") != NULL || strstr(other, "%d") != NULL;
    for (int device = 0; device < (named ? DEVICES : 1); device++) {
        path_of(output, device, written);
        path_of(other, device, again);
        if (is_one_file(written, again) ||
            (pleat__file_follow(written) && pleat__file_follow(again) &&
             is_one_place(written, again)))
            return cli_bad_use(command, "'%s' cannot be %s: give one of them another name", other,
                               what);
    }
    return CLI_DONE;
}

static int check_outputs(const device_run *run)
{
    for (size_t i = 0; i < sizeof run->outputs / sizeof *run->outputs; i++)
        if (run->outputs[i] != NULL && strstr(run->outputs[i], "%d") == NULL)
            return cli_bad_use(run->command,
                               "'%s' is a recording of several GPUs: choose one (--device N), or "
                               "write %%d in '%s' for the number of each",
                               run->path, run->outputs[i]);
    return CLI_DONE;
}

/* Those with the device's number in their names; the others were looked at with the options. */
static int check_outputs_of(const device_run *run, int device)
{
    char path[DEVICE_PATH_MOST];
    int code = CLI_DONE;
    for (size_t i = 0; i < sizeof run->outputs / sizeof *run->outputs && code == CLI_DONE; i++)
        if (run->outputs[i] != NULL && strstr(run->outputs[i], "%d") != NULL)
            code = cli_check_output(run->command, path_of(run->outputs[i], device, path));
    return code;
}

/* Where it is the only one. */
static int run_on(const device_run *run, pleat_trace *trace, int device)
{
    bool seen[DEVICES];
    int code = check_outputs_of(run, device_first(trace));
    if (code == CLI_DONE && !run->takes_empty && find_devices(trace, seen) == 0)
        code = cli_failed(run->command,
                          pleat__fail(PLEAT_E_INPUT,
                                      "'%s': the recording has no allocation: begin it before what "
                                      "is to be seen",
                                      run->path));
    if (code == CLI_DONE)
        return run->run(run->options, trace, device);
    pleat_trace_free(trace);
    return code;
}

/* One of several, all of whose outputs were looked at. */
static int run_one(const device_run *run, int device)
{
    pleat_trace *trace;
    pleat_result result = device_import(run->path, device, run->form, &trace);
    return result == PLEAT_OK ? run->run(run->options, trace, device)
                              : cli_failed(run->command, result);
}

/* A run that fails tells standard error why and prints no object: null stands in its place. */
static int run_json(const device_run *run, int device)
{
    cli_text kept;
    int code = CLI_DONE;
    FILE *out = stdout;
    pleat_result result = cli_text_begin(&kept, "JSON");
    if (result == PLEAT_OK) {
        stdout = kept.out;
        code = run_one(run, device);
        stdout = out;
        result = cli_text_end(&kept, PLEAT_OK);
    }
    if (result != PLEAT_OK)
        code = cli_failed(run->command, result);
    fputs(result == PLEAT_OK && kept.size > 0 ? kept.bytes : "null", stdout);
    free(kept.bytes);
    return code;
}

static int run_all(const device_run *run, const bool *seen)
{
    int worst = check_outputs(run);
    for (int device = 0; device < DEVICES && worst == CLI_DONE; device++)
        if (seen[device])
            worst = check_outputs_of(run, device);
    if (worst != CLI_DONE)
        return worst;
    const char *before = run->json ? "{\"devices\": {" : "";
    for (int device = 0; device < DEVICES; device++) {
        if (!seen[device])
            continue;
        printf(run->json ? "%s\"%d\": " : "%sGPU %d\n\n", before, device);
        before = run->json ? ", " : "\n";
        int code = run->json ? run_json(run, device) : run_one(run, device);
        worst = code > worst ? code : worst;
    }
    if (run->json)
        fputs("}}\n", stdout);
    return worst;
}

static bool read_device(const char *text, int *device)
{
    char *end;
    long number = strtol(text, &end, 10);
    *device = (int)number;
    return end != text && *end == '\0' && number >= 0 && number < DEVICES;
}

int devices_run(const device_run *run)
{
    bool seen[DEVICES] = {false};
    pleat_trace *trace;
    int device, several = 0;
    pleat_result result;
    if (run->asked != NULL && strcmp(run->asked, "all") != 0) {
        if (!read_device(run->asked, &device))
            return cli_bad_use(run->command,
                               "--device is a whole number from 0 to 255, or all, not '%s'",
                               run->asked);
        result = device_import(run->path, device, run->form, &trace);
        return result == PLEAT_OK ? run_on(run, trace, device) : cli_failed(run->command, result);
    }
    result = name_log(pleat__trace_import_any(run->path, seen, run->form, &trace), run->path);
    if (result != PLEAT_OK)
        for (int i = 0; i < DEVICES; i++)
            several += seen[i];
    if (result != PLEAT_OK && several < 2)
        return cli_failed(run->command, result);
    if (result == PLEAT_OK && find_devices(trace, seen) < 2)
        return run_on(run, trace, PLEAT__ANY_DEVICE);
    if (result == PLEAT_OK) /* a trace file of several */
        pleat_trace_free(trace);
    return run_all(run, seen);
}
