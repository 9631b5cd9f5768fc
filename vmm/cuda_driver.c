/*
 * cuda_driver.c: finds the driver at run time and gives its errors names.
 *
 * The library is libcuda.so.1, or what PLEAT_CUDA_LIBRARY names (a path; the tests' own driver, or
 * an installation that the loader does not search). It is never unloaded: the driver keeps threads
 * and exit handlers of its own.
 */
#include "cuda_driver.h"

#include <dlfcn.h>
#include <internal/error.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cuGetProcAddress came with CUDA 11.3 and took a further parameter with 12.0. */
typedef CUresult (*find_11)(const char *name, void **function, int version, uint64_t flags);
typedef CUresult (*find_12)(const char *name, void **function, int version, uint64_t flags,
                            int *status);

typedef struct lookup {
    find_11 old;
    find_12 new;
} lookup;

static pleat_result open_library(pleat__cuda_driver *driver)
{
    const char *given = getenv("PLEAT_CUDA_LIBRARY");
    const char *name = given != NULL && *given != '\0' ? given : "libcuda.so.1";
    snprintf(driver->library_name, sizeof driver->library_name, "%s", name);
    driver->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (driver->library != NULL)
        return PLEAT_OK;
    const char *why = dlerror();
    return pleat__fail(PLEAT_E_UNSUPPORTED,
                       "no CUDA driver: %s. Install NVIDIA's driver (CUDA 11.3 or newer), or name "
                       "its library with PLEAT_CUDA_LIBRARY",
                       why != NULL ? why : name);
}

static pleat_result find_lookup(const pleat__cuda_driver *driver, lookup *out)
{
    void *new = dlsym(driver->library, "cuGetProcAddress_v2");
    void *old = dlsym(driver->library, "cuGetProcAddress");
    if (new == NULL && old == NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED,
                           "%s has no cuGetProcAddress: its driver is older than CUDA 11.3",
                           driver->library_name);
    *out = (lookup){0};
    memcpy(&out->new, &new, sizeof new);
    memcpy(&out->old, &old, sizeof old);
    return PLEAT_OK;
}

/* NULL when the driver does not have it. */
static void *find(const lookup *by, const char *name, int version)
{
    void *function = NULL;
    int status = 0;
    CUresult code = by->new != NULL ? by->new (name, &function, version, 0, &status)
                                    : by->old(name, &function, version, 0);
    return code == CU_OK && status == 0 ? function : NULL;
}

static pleat_result missing(const pleat__cuda_driver *driver, const char *name, int since)
{
    char own[32] = "an unknown version";
    if (driver->version != 0)
        snprintf(own, sizeof own, "CUDA %d.%d", driver->version / 1000,
                 driver->version % 1000 / 10);
    return pleat__fail(PLEAT_E_UNSUPPORTED,
                       "%s has no %s, which came with CUDA %d.%d; this driver is for %s",
                       driver->library_name, name, since / 1000, since % 1000 / 10, own);
}

static pleat_result find_all(pleat__cuda_driver *driver, const lookup *by)
{
    void *function;
#define FIND(name, since, parameters)                                                              \
    function = find(by, #name, since);                                                             \
    if (function == NULL)                                                                          \
        return missing(driver, #name, since);                                                      \
    memcpy(&driver->name, &function, sizeof function);                                             \
    if (strcmp(#name, "cuDriverGetVersion") == 0 &&                                                \
        driver->cuDriverGetVersion(&driver->version) != CU_OK)                                     \
        driver->version = 0;
    PLEAT__CUDA_SYMBOLS(FIND)
#undef FIND
#define FIND(name, since, parameters)                                                              \
    function = find(by, #name, since);                                                             \
    memcpy(&driver->name, &function, sizeof function);
    PLEAT__CUDA_MORE_SYMBOLS(FIND)
#undef FIND
    return PLEAT_OK;
}

pleat_result pleat__cuda_load(pleat__cuda_driver *driver)
{
    *driver = (pleat__cuda_driver){0};
    lookup by;
    PLEAT_TRY(open_library(driver));
    PLEAT_TRY(find_lookup(driver, &by));
    PLEAT_TRY(find_all(driver, &by));
    return pleat__cuda_result(driver, driver->cuInit(0), "the CUDA driver does not start");
}

static pleat_result result_of(CUresult code)
{
    switch (code) {
    case CU_OK:
        return PLEAT_OK;
    case CU_INVALID_VALUE:
    case CU_INVALID_HANDLE:
        return PLEAT_E_INVALID;
    case CU_OUT_OF_MEMORY:
        return PLEAT_E_OUT_OF_MEMORY;
    case CU_NO_DEVICE:
    case CU_INVALID_DEVICE:
        return PLEAT_E_NO_DEVICE;
    case CU_NOT_READY:
        return PLEAT_E_NOT_READY;
    case CU_STUB_LIBRARY:
    case CU_NOT_SUPPORTED:
        return PLEAT_E_UNSUPPORTED;
    default:
        return PLEAT_E_DRIVER;
    }
}

pleat_result pleat__cuda_result(const pleat__cuda_driver *driver, CUresult code, const char *format,
                                ...)
{
    if (code == CU_OK)
        return PLEAT_OK;
    const char *name = NULL, *text = NULL;
    if (driver->cuGetErrorName(code, &name) != CU_OK || name == NULL)
        name = "unknown error";
    if (driver->cuGetErrorString(code, &text) != CU_OK || text == NULL)
        text = "the driver has no text for it";
    char doing[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(doing, sizeof doing, format, arguments);
    va_end(arguments);
    return pleat__fail_native(result_of(code), code, name, "%s: %s (%d): %s", doing, name, code,
                              text);
}
