/*
 * nvml_limits.c: NVML with a limit of the process's control group, for drivers that have none yet:
 * what the limit is comes with TEST_NVML_LIMIT, all else from the driver's own library.
 */
#include <dlfcn.h>
#include <stdlib.h>

typedef struct nvml_limits {
    const char *group;
    unsigned long long soft, hard, used;
} nvml_limits;

static void *real(const char *name)
{
    static void *library;
    if (library == NULL)
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    return library != NULL ? dlsym(library, name) : NULL;
}

#define NOT_FOUND 13 /* NVML's: the library has no such function */

__attribute__((visibility("default"))) int nvmlInit_v2(void)
{
    int (*call)(void);
    *(void **)&call = real("nvmlInit_v2");
    return call != NULL ? call() : NOT_FOUND;
}

__attribute__((visibility("default"))) int nvmlDeviceGetHandleByUUID(const char *uuid,
                                                                     void **device)
{
    int (*call)(const char *, void **);
    *(void **)&call = real("nvmlDeviceGetHandleByUUID");
    return call != NULL ? call(uuid, device) : NOT_FOUND;
}

__attribute__((visibility("default"))) int
nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *found)
{
    int (*call)(void *, unsigned *, void *);
    *(void **)&call = real("nvmlDeviceGetComputeRunningProcesses_v3");
    return call != NULL ? call(device, count, found) : NOT_FOUND;
}

__attribute__((visibility("default"))) int nvmlDeviceGetMemoryLimits_v1(void *device,
                                                                        nvml_limits *limits)
{
    const char *bytes = getenv("TEST_NVML_LIMIT");
    (void)device;
    limits->soft = limits->hard = bytes != NULL ? strtoull(bytes, NULL, 10) : ~0ull;
    limits->used = 0;
    return 0;
}
