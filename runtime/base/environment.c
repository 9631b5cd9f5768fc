/*
 * environment.c: see environment.h.
 */
#include <runtime/base/environment.h>

#include <internal/error.h>
#include <runtime/base/size.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whether an entry's device, `length` letters, is this one. */
static bool is_device(const char *text, size_t length, int device, const char *identity)
{
    char number[16];
    snprintf(number, sizeof number, "%d", device);
    return (strlen(number) == length && memcmp(text, number, length) == 0) ||
           (length != 0 && strlen(identity) == length && memcmp(text, identity, length) == 0);
}

/* The limit that a variable's value has for the device; 0: none. */
static bool parse(const char *text, int device, const char *identity, uint64_t *bytes)
{
    *bytes = 0;
    while (*text != '\0') {
        size_t entry = strcspn(text, ","), name = strcspn(text, "=,");
        bool of_device = name < entry; /* a size without a device is everyone's */
        uint64_t value;
        size_t size = of_device ? name + 1 : 0;
        if (!pleat__size_parse(text + size, entry - size, &value) || (of_device && name == 0))
            return false;
        if ((!of_device || is_device(text, name, device, identity)) && value != 0 &&
            (*bytes == 0 || value < *bytes))
            *bytes = value;
        text += entry + (text[entry] == ',');
    }
    return true;
}

void pleat__limit_take(pleat__limit *strictest, uint64_t bytes, const char *name)
{
    if (bytes == 0 || (strictest->bytes != 0 && strictest->bytes <= bytes))
        return;
    strictest->bytes = bytes;
    snprintf(strictest->name, sizeof strictest->name, "%s", name);
}

#define OF_DEVICE "CUDA_DEVICE_MEMORY_LIMIT_" /* a device's number follows */

static const char *const names[] = {"CUDA_DEVICE_MEMORY_LIMIT", "GPU_MEMORY_LIMIT",
                                    "NVIDIA_GPU_MEMORY_LIMIT", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"};
#define NAMES (sizeof names / sizeof *names)

static pleat_result read_variable(const char *name, int device, const char *identity,
                                  pleat__limit *strictest)
{
    const char *value = getenv(name);
    uint64_t bytes;
    if (value == NULL)
        return PLEAT_OK;
    if (!parse(value, device, identity, &bytes))
        return pleat__fail(PLEAT_E_INVALID,
                           "the environment's %s is '%s': a size such as 12g, 3000m or 16Gi is "
                           "wanted, or a list such as 0=1G,1=512M",
                           name, value);
    pleat__limit_take(strictest, bytes, name);
    return PLEAT_OK;
}

pleat_result pleat__environment_limit(int device, const char *identity, pleat__limit *strictest)
{
    char own[48];
    snprintf(own, sizeof own, OF_DEVICE "%d", device);
    *strictest = (pleat__limit){0};
    PLEAT_TRY(read_variable(own, device, identity, strictest));
    for (size_t n = 0; n < NAMES; n++)
        PLEAT_TRY(read_variable(names[n], device, identity, strictest));
    return PLEAT_OK;
}

bool pleat__environment_is_limit(const char *name)
{
    bool is = strncmp(name, OF_DEVICE, strlen(OF_DEVICE)) == 0;
    for (size_t n = 0; n < NAMES; n++)
        is |= strcmp(name, names[n]) == 0;
    return is;
}
