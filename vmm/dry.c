/*
 * dry.c: see dry.h.
 */
#include "dry.h"

/* Addresses begin somewhere; nobody goes there. */
#define BASE (UINT64_C(1) << 40)

static pleat_result granularity(void *self, int device, uint64_t *minimum, uint64_t *recommended)
{
    const pleat__dry *dry = self;
    (void)device;
    *minimum = dry->page_bytes;
    *recommended = dry->page_bytes;
    return PLEAT_OK;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    const pleat__dry *dry = self;
    (void)device;
    *free_bytes = dry->device_bytes;
    *total_bytes = dry->device_bytes;
    return PLEAT_OK;
}

static pleat_result reserve(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va)
{
    (void)self, (void)device, (void)bytes, (void)align;
    *va = BASE;
    return PLEAT_OK;
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    pleat__dry *dry = self;
    (void)device, (void)bytes, (void)flags;
    *handle = ++dry->handles;
    return PLEAT_OK;
}

static pleat_result release(void *self, pleat_handle handle)
{
    (void)self, (void)handle;
    return PLEAT_OK;
}

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    (void)self, (void)va, (void)bytes, (void)handle;
    return PLEAT_OK;
}

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int device_count)
{
    pleat__dry *dry = self;
    (void)va, (void)devices, (void)device_count;
    dry->clock_ns += bytes / dry->page_bytes * dry->page_ns;
    return PLEAT_OK;
}

/* Of an address range: free_range and unmap. */
static pleat_result nothing(void *self, pleat_va va, uint64_t bytes)
{
    (void)self, (void)va, (void)bytes;
    return PLEAT_OK;
}

static pleat_result event_create(void *self, int device, pleat_event *event)
{
    (void)self, (void)device;
    *event = 1;
    return PLEAT_OK;
}

/* Of an event: all have passed. */
static pleat_result passed(void *self, pleat_event event)
{
    (void)self, (void)event;
    return PLEAT_OK;
}

static pleat_result event_record(void *self, pleat_event event, pleat_stream stream)
{
    (void)self, (void)event, (void)stream;
    return PLEAT_OK;
}

static pleat_result stream_wait(void *self, pleat_stream stream, pleat_event event)
{
    (void)self, (void)stream, (void)event;
    return PLEAT_OK;
}

static uint64_t clock_ns(void *self)
{
    const pleat__dry *dry = self;
    return dry->clock_ns;
}

static const pleat_vmm_ops ops = {
    .abi = PLEAT_VMM_ABI,
    .size = sizeof ops,
    .name = "dry",
    .granularity = granularity,
    .memory_info = memory_info,
    .reserve = reserve,
    .free_range = nothing,
    .create = create,
    .release = release,
    .map = map,
    .set_access = set_access,
    .unmap = nothing,
    .event_create = event_create,
    .event_destroy = passed,
    .event_record = event_record,
    .event_query = passed,
    .event_wait = passed,
    .stream_wait = stream_wait,
    .clock_ns = clock_ns,
};

pleat_vmm pleat__vmm_dry(pleat__dry *dry)
{
    return (pleat_vmm){.ops = &ops, .self = dry};
}
