/*
 * dry.c: see dry.h.
 */
#include "dry.h"

#include <internal/arena.h>
#include <internal/error.h>
#include <stdatomic.h>

/* Where addresses begin: 0 is none (D480). */
#define FIRST_ADDRESS (UINT64_C(1) << 40)
/* A handle is its bytes, in chunks, below a number of its own. */
#define CHUNKS_BITS 24

typedef struct dry {
    pleat__arena *arena;
    uint64_t device_bytes;
    uint64_t granularity;
    _Atomic uint64_t used_bytes;
    _Atomic uint64_t next_address;
    _Atomic uint64_t next_number; /* of handles and events */
} dry;

static void destroy(void *self)
{
    pleat__arena_destroy(((dry *)self)->arena); /* which it lies in */
}

static pleat_result device_count(void *self, int *count)
{
    (void)self;
    *count = 1;
    return PLEAT_OK;
}

static pleat_result granularity(void *self, int device, uint64_t *minimum, uint64_t *recommended)
{
    (void)device;
    *minimum = *recommended = ((const dry *)self)->granularity;
    return PLEAT_OK;
}

static pleat_result memory_info(void *self, int device, uint64_t *free_bytes, uint64_t *total_bytes)
{
    dry *d = self;
    (void)device;
    *free_bytes = d->device_bytes - atomic_load(&d->used_bytes);
    *total_bytes = d->device_bytes;
    return PLEAT_OK;
}

static pleat_result reserve(void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va)
{
    dry *d = self;
    (void)device;
    align = align > d->granularity ? align : d->granularity;
    uint64_t begin = atomic_fetch_add(&d->next_address, bytes + align);
    *va = (begin + align - 1) / align * align;
    return PLEAT_OK;
}

static pleat_result create(void *self, int device, uint64_t bytes, uint32_t flags,
                           pleat_handle *handle)
{
    dry *d = self;
    (void)device;
    (void)flags;
    /* Never above the device, not for a moment: other threads read it. */
    uint64_t used = atomic_load(&d->used_bytes);
    do {
        if (bytes > d->device_bytes - used)
            return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "the device has no %llu bytes more",
                               (unsigned long long)bytes);
    } while (!atomic_compare_exchange_weak(&d->used_bytes, &used, used + bytes));
    *handle = atomic_fetch_add(&d->next_number, 1) << CHUNKS_BITS | bytes / d->granularity;
    return PLEAT_OK;
}

static pleat_result release(void *self, pleat_handle handle)
{
    dry *d = self;
    uint64_t chunks = handle & ((UINT64_C(1) << CHUNKS_BITS) - 1);
    atomic_fetch_sub(&d->used_bytes, chunks * d->granularity);
    return PLEAT_OK;
}

static pleat_result take_range(void *self, pleat_va va, uint64_t bytes)
{
    (void)self;
    (void)va;
    (void)bytes;
    return PLEAT_OK;
}

static pleat_result map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    (void)handle;
    return take_range(self, va, bytes);
}

static pleat_result set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                               int device_count_given)
{
    (void)devices;
    (void)device_count_given;
    return take_range(self, va, bytes);
}

static pleat_result event_create(void *self, int device, pleat_event *event)
{
    (void)device;
    *event = atomic_fetch_add(&((dry *)self)->next_number, 1);
    return PLEAT_OK;
}

static pleat_result take_event(void *self, pleat_event event)
{
    (void)self;
    (void)event;
    return PLEAT_OK;
}

static pleat_result event_record(void *self, pleat_event event, pleat_stream stream)
{
    (void)stream;
    return take_event(self, event);
}

static pleat_result stream_wait(void *self, pleat_stream stream, pleat_event event)
{
    (void)stream;
    return take_event(self, event);
}

static uint64_t clock_ns(void *self)
{
    (void)self;
    return 0;
}

static const pleat_vmm_ops ops = {
    .abi = PLEAT_VMM_ABI,
    .size = sizeof ops,
    .name = "dry",
    .destroy = destroy,
    .device_count = device_count,
    .granularity = granularity,
    .memory_info = memory_info,
    .reserve = reserve,
    .free_range = take_range,
    .create = create,
    .release = release,
    .map = map,
    .set_access = set_access,
    .unmap = take_range,
    .event_create = event_create,
    .event_destroy = take_event,
    .event_record = event_record,
    .event_query = take_event,
    .event_wait = take_event,
    .stream_wait = stream_wait,
    .clock_ns = clock_ns,
};

pleat_result pleat__vmm_dry(uint64_t device_bytes, uint64_t granularity_bytes, pleat_vmm *out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    dry *d = pleat__arena_calloc(arena, 1, sizeof *d);
    if (d == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a backend");
    }
    d->arena = arena;
    d->device_bytes = device_bytes;
    d->granularity = granularity_bytes;
    atomic_init(&d->next_address, FIRST_ADDRESS);
    atomic_init(&d->next_number, 1);
    *out = (pleat_vmm){.ops = &ops, .self = d};
    return PLEAT_OK;
}
