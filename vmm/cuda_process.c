/*
 * cuda_process.c: which device this is, and what the driver counts for this process on it.
 *
 * The driver API knows the device's total and free bytes only. What one process has is told by
 * NVML (libnvidia-ml.so.1, or what PLEAT_NVML_LIBRARY names), loaded when it is first asked for.
 * NVML names processes by the numbers that the host has for them: in a container with process
 * numbers of its own none of them may be this one's, and then, unless the device has just one
 * process, nobody can say (PLEAT_E_UNSUPPORTED). Written from NVIDIA's public documentation of
 * NVML.
 */
#include "cuda_internal.h"
#include "table.h"

#include <dlfcn.h>
#include <internal/error.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UUID_BYTES     16
#define PROCESSES_MOST 256u /* D480 */
#define CGROUP_BYTES   4096

enum { NVML_OK = 0 };

typedef struct nvml_process {
    unsigned pid;
    unsigned long long bytes;
    unsigned gpu_instance, compute_instance;
} nvml_process;

typedef struct nvml_limits {
    const char *group; /* in: the control group's folder */
    unsigned long long soft, hard, used;
} nvml_limits;

_Static_assert(sizeof(nvml_process) == 24, "NVML's layout");
_Static_assert(sizeof(nvml_limits) == 32, "NVML's layout");

/* X(field, name, parameters); the last one came in 2026, and may be missing. */
#define NVML_SYMBOLS(X)                                                                            \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(find, nvmlDeviceGetHandleByUUID, (const char *, void **))                                    \
    X(processes, nvmlDeviceGetComputeRunningProcesses_v3, (void *, unsigned *, nvml_process *))    \
    X(limits, nvmlDeviceGetMemoryLimits_v1, (void *, nvml_limits *))

typedef struct nvml {
#define POINTER(field, name, parameters) int(*field) parameters;
    NVML_SYMBOLS(POINTER)
#undef POINTER
    bool loaded;
} nvml;

static nvml library;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Never unloaded, as the driver is not. */
static void load(void)
{
    const char *given = getenv("PLEAT_NVML_LIBRARY");
    void *found = dlopen(given != NULL && *given != '\0' ? given : "libnvidia-ml.so.1",
                         RTLD_NOW | RTLD_LOCAL);
    if (found == NULL)
        return;
    void *function;
#define FIND(field, name, parameters)                                                              \
    function = dlsym(found, #name);                                                                \
    memcpy(&library.field, &function, sizeof function);
    NVML_SYMBOLS(FIND)
#undef FIND
    library.loaded = library.init != NULL && library.find != NULL && library.processes != NULL &&
                     library.init() == NVML_OK;
}

static void write_name(const char *kind, const unsigned char *uuid,
                       char name[PLEAT_DEVICE_NAME_BYTES])
{
    int length = snprintf(name, PLEAT_DEVICE_NAME_BYTES, "%s-", kind);
    for (int i = 0; i < UUID_BYTES; i++)
        length += snprintf(name + length, PLEAT_DEVICE_NAME_BYTES - (size_t)length, "%s%02x",
                           i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

static pleat_result uuid_of(pleat__cuda *cuda, int device, unsigned char uuid[UUID_BYTES])
{
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    if (cuda->driver.cuDeviceGetUuid == NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "%s has no cuDeviceGetUuid, which came with CUDA 11.4",
                           cuda->driver.library_name);
    return pleat__cuda_result(&cuda->driver,
                              cuda->driver.cuDeviceGetUuid(uuid, cuda->devices[device].device),
                              "device %d: its UUID", device);
}

pleat_result pleat__cuda_identify(void *self, int device, char name[PLEAT_DEVICE_NAME_BYTES])
{
    unsigned char uuid[UUID_BYTES];
    PLEAT_TRY(uuid_of(self, device, uuid));
    write_name("GPU", uuid, name);
    return PLEAT_OK;
}

/* NVML's device; of a part of one (MIG) the driver says that part's UUID. */
static pleat_result find_device(void *self, int device, void **found)
{
    unsigned char uuid[UUID_BYTES];
    char name[PLEAT_DEVICE_NAME_BYTES];
    PLEAT_TRY(uuid_of(self, device, uuid));
    (void)pthread_once(&once, load);
    if (!library.loaded)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "NVML (libnvidia-ml.so.1) cannot be used");
    write_name("GPU", uuid, name);
    if (library.find(name, found) == NVML_OK)
        return PLEAT_OK;
    write_name("MIG", uuid, name);
    int code = library.find(name, found);
    return code == NVML_OK
               ? PLEAT_OK
               : pleat__fail_native(PLEAT_E_UNSUPPORTED, code, "NVML",
                                    "NVML does not know device %s (error %d)", name, code);
}

/* What this process has; where its number is not listed, what the only one that is has. */
static pleat_result own_bytes(void *found, uint64_t *bytes)
{
    nvml_process all[PROCESSES_MOST];
    unsigned count = PROCESSES_MOST;
    int code = library.processes(found, &count, all);
    if (code != NVML_OK || count > PROCESSES_MOST)
        return pleat__fail_native(PLEAT_E_UNSUPPORTED, code, "NVML",
                                  "NVML does not list the device's processes (error %d)", code);
    for (unsigned p = 0; p < count; p++)
        if (all[p].pid == (unsigned)getpid() || count == 1) {
            /* Where it may not be known NVML says -1. */
            if (all[p].bytes == ~0ull)
                return pleat__fail(PLEAT_E_UNSUPPORTED, "NVML does not say what processes use");
            *bytes = all[p].bytes;
            return PLEAT_OK;
        }
    return pleat__fail(PLEAT_E_UNSUPPORTED, "NVML lists %u processes, and not this one's number",
                       count);
}

/* The folder of this process's control group; false: it has none that the kernel says. */
static bool group_folder(char folder[CGROUP_BYTES])
{
    char line[CGROUP_BYTES - 16];
    bool found = false;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file != NULL && !found && fgets(line, sizeof line, file) != NULL)
        found = strncmp(line, "0::/", 4) == 0;
    if (file != NULL)
        fclose(file);
    if (!found)
        return false;
    line[strcspn(line, "\n")] = '\0';
    snprintf(folder, CGROUP_BYTES, "/sys/fs/cgroup%s", line + 3);
    return true;
}

static uint64_t group_limit(void *found)
{
    char folder[CGROUP_BYTES];
    nvml_limits limits = {.group = folder};
    if (library.limits == NULL || !group_folder(folder) ||
        library.limits(found, &limits) != NVML_OK || limits.hard == ~0ull)
        return 0;
    return limits.hard;
}

pleat_result pleat__cuda_process_memory(void *self, int device, uint64_t *used, uint64_t *limit)
{
    void *found = NULL;
    PLEAT_TRY(find_device(self, device, &found));
    PLEAT_TRY(own_bytes(found, used));
    *limit = group_limit(found);
    return PLEAT_OK;
}
