/*
 * vmm.c: what all backends share: a table is checked once and its gaps are filled, so that no
 * caller ever asks whether an entry is there.
 */
#include "table.h"

#include <internal/clock.h>
#include <internal/devices.h>
#include <internal/error.h>
#include <stdbool.h>
#include <string.h>

/* What stands in for the verbs that a table may do without. They take their arguments along only so
 * that none counts as unused. */
static pleat_result unsupported(const char *verb, ...)
{
    return pleat__fail(PLEAT_E_UNSUPPORTED, "the backend has no %s", verb);
}
#define STAND_IN(verb, parameters, ...)                                                            \
    static pleat_result no_##verb PLEAT__VMM_SELF parameters                                       \
    {                                                                                              \
        return unsupported(#verb, self, __VA_ARGS__);                                              \
    }
PLEAT__VMM_EVENTS(STAND_IN)
PLEAT__VMM_OTHERS(STAND_IN)

static void no_destroy(void *self)
{
    (void)self;
}

uint64_t pleat__vmm_clock_ns(void *self)
{
    (void)self;
    return pleat__now_ns();
}

/* false: nothing was missing. */
static bool fill(pleat_vmm_ops *ops)
{
    bool filled = false;
#define FILL(entry, stand_in)                                                                      \
    if (ops->entry == NULL) {                                                                      \
        ops->entry = stand_in;                                                                     \
        filled = true;                                                                             \
    }
#define FILL_VERB(verb, ...) FILL(verb, no_##verb)
    FILL(destroy, no_destroy)
    FILL(clock_ns, pleat__vmm_clock_ns)
    PLEAT__VMM_EVENTS(FILL_VERB)
    PLEAT__VMM_OTHERS(FILL_VERB)
    return filled;
}

static pleat_result check_needed(const pleat_vmm_ops *ops)
{
#define CHECK_NEEDED(verb, ...)                                                                    \
    if (ops->verb == NULL)                                                                         \
        return pleat__fail(PLEAT_E_INVALID, "backend '%s': no %s", ops->name, #verb);
    PLEAT__VMM_NEEDED(CHECK_NEEDED)
    return PLEAT_OK;
}

pleat_result pleat__vmm_check_device(int count, int device)
{
    return device >= 0 && device < count
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_DEVICE, "device %d: there are %d", device, count);
}

pleat_result pleat__vmm_check_access(int count, const int *devices, int device_count)
{
    if (devices == NULL || device_count < 1 || device_count > PLEAT__DEVICES)
        return pleat__fail(PLEAT_E_INVALID, "set_access: for %d devices", device_count);
    for (int d = 0; d < device_count; d++)
        PLEAT_TRY(pleat__vmm_check_device(count, devices[d]));
    return PLEAT_OK;
}

pleat_result pleat__vmm_told(pleat_vmm vmm, const char *verb, pleat_result result)
{
    /* A runtime takes that for a turn to be waited for, and would ask for ever. */
    if (result == PLEAT_E_NOT_READY)
        return pleat__fail(PLEAT_E_DRIVER, "%s: the backend '%s' says that it is not ready", verb,
                           vmm.ops->name);
    return pleat__told(result, "%s: the backend '%s' gave no reason", verb, vmm.ops->name);
}

pleat_result pleat__vmm_complete(pleat_vmm vmm, pleat__arena *arena, pleat_vmm *out)
{
    if (vmm.ops == NULL)
        return pleat__fail(PLEAT_E_INVALID, "no backend");
    if (vmm.ops->abi >> 16 != PLEAT_VMM_ABI >> 16)
        return pleat__fail(PLEAT_E_ABI, "a backend of table version %u.%u; this is %u.%u",
                           vmm.ops->abi >> 16, vmm.ops->abi & 0xffff, PLEAT_VMM_ABI >> 16,
                           PLEAT_VMM_ABI & 0xffff);
    if (vmm.ops->size < offsetof(pleat_vmm_ops, destroy) || vmm.ops->size % sizeof(void *) != 0)
        return pleat__fail(PLEAT_E_ABI, "a backend whose table is %u bytes long", vmm.ops->size);
    pleat_vmm_ops whole = {0};
    memcpy(&whole, vmm.ops, vmm.ops->size < sizeof whole ? vmm.ops->size : sizeof whole);
    if (whole.name == NULL)
        whole.name = "unnamed";
    PLEAT_TRY(check_needed(&whole));
    *out = vmm;
    if (!fill(&whole) && vmm.ops->name != NULL && vmm.ops->size >= sizeof whole)
        return PLEAT_OK;
    pleat_vmm_ops *kept = pleat__arena_alloc(arena, sizeof *kept);
    if (kept == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table of verbs");
    whole.size = sizeof whole;
    *kept = whole;
    out->ops = kept;
    return PLEAT_OK;
}

void pleat_vmm_destroy(pleat_vmm *vmm)
{
    if (vmm == NULL || vmm->ops == NULL)
        return;
    if (vmm->ops->size > offsetof(pleat_vmm_ops, destroy) && vmm->ops->destroy != NULL)
        vmm->ops->destroy(vmm->self);
    vmm->ops = NULL;
    vmm->self = NULL;
}
