/*
 * vmm.c: what all backends share.
 */
#include <pleat/vmm.h>

void pleat_vmm_destroy(pleat_vmm *vmm)
{
    if (vmm == NULL || vmm->ops == NULL)
        return;
    vmm->ops->destroy(vmm->self);
    vmm->ops = NULL;
    vmm->self = NULL;
}
