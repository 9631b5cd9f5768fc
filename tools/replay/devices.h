/*
 * devices.h: a recording of several GPUs, served by any command: the one that is asked for, or all
 * of them, one after the other.
 */
#ifndef PLEAT_TOOLS_REPLAY_DEVICES_H
#define PLEAT_TOOLS_REPLAY_DEVICES_H

#include <tools/options.h>

#include <plan/trace/import.h>

/* const char *; NULL where it is not given: all. */
#define OPTION_DEVICE(VALUE)                                                                       \
    OPTION_TEXT('\0', "device", VALUE, "N|all", "which GPU of a recording of several (all)")

typedef struct device_run {
    const char *command;
    const char *path;  /* the recording */
    const char *asked; /* by OPTION_DEVICE */
    bool json;
    bool takes_empty; /* serves a recording without an allocation, too */
    /* Files that it writes, NULL where there is none. "%d" in one is the device's number, and must
     * be there where several devices write. */
    const char *outputs[2];
    pleat__trace_form *form; /* is told what the recording is; NULL: nobody */
    /* Does the work for one device, and frees the trace. `device` is PLEAT__ANY_DEVICE where the
     * recording has only one. Returns the exit code. */
    int (*run)(void *options, pleat_trace *trace, int device);
    void *options;
} device_run;

/* The highest exit code of all. Text of several devices has a heading each; JSON of several is one
 * object {"devices": {"0": {...}, ...}}, with null for a device whose run failed. */
int devices_run(const device_run *run);

/* As pleat__trace_import; what is a runtime's log is called one. */
PLEAT_NODISCARD pleat_result device_import(const char *path, int device, pleat__trace_form *form,
                                           pleat_trace **trace);

/* The same of other recordings of a job of which traces[0] is of paths[0]: into traces[1] and on,
 * the caller's to free also where something fails. */
PLEAT_NODISCARD pleat_result device_import_others(const char *const *paths, uint32_t count,
                                                  int device, pleat_trace **traces);

/* The first one that a trace allocates on; 0: it allocates on none. */
int device_first(const pleat_trace *trace);
/* The path with the trace's device in the place of "%d". Returns `buffer`. */
#define DEVICE_PATH_MOST 4096
const char *device_path(const char *path, const pleat_trace *trace, char *buffer);

/* CLI_BAD_USE, with a message, where writing `output` (NULL: nothing) would lose `input`, whatever
 * device "%d" stands for in either. */
int devices_overwrite(const char *command, const char *input, const char *output);

/* The same, where two outputs (NULL: nothing) of one device would be one file. `what`: the two, in
 * words. */
int devices_write_twice(const char *command, const char *output, const char *other,
                        const char *what);

#endif
