/*
 * timed_vmm.c: see timed_vmm.h.
 */
#include <tools/replay/timed_vmm.h>

#include <tools/clock.h>

#include <internal/error.h>
#include <vmm/table.h>

#define TIMED_AS(counts, verb, parameters, ...)                                                    \
    static pleat_result verb parameters                                                            \
    {                                                                                              \
        timed_vmm *t = self;                                                                       \
        if (!pthread_equal(t->thread, pthread_self()))                                             \
            return t->inner.ops->verb(t->inner.self, __VA_ARGS__);                                 \
        uint64_t begun = clock_now();                                                              \
        pleat_result result = t->inner.ops->verb(t->inner.self, __VA_ARGS__);                      \
        uint64_t ns = clock_now() - begun;                                                         \
        t->verb_ns += ns + t->reading_ns;                                                          \
        t->verbs += (counts);                                                                      \
        t->by_verb[PLEAT__FAULT_##verb].ns += ns;                                                  \
        t->by_verb[PLEAT__FAULT_##verb].calls++;                                                   \
        return result;                                                                             \
    }
#define TIMED(verb, parameters, ...)       TIMED_AS(1, verb, parameters, __VA_ARGS__)
#define TIMED_EVENT(verb, parameters, ...) TIMED_AS(0, verb, parameters, __VA_ARGS__)

TIMED(device_count, (void *self, int *count), count)
TIMED(granularity, (void *self, int device, uint64_t *least, uint64_t *advised), device, least,
      advised)
TIMED(memory_info, (void *self, int device, uint64_t *free_bytes, uint64_t *total), device,
      free_bytes, total)
TIMED(reserve, (void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va), device,
      bytes, align, va)
TIMED(free_range, (void *self, pleat_va va, uint64_t bytes), va, bytes)
TIMED(create, (void *self, int device, uint64_t bytes, uint32_t flags, pleat_handle *handle),
      device, bytes, flags, handle)
TIMED(release, (void *self, pleat_handle handle), handle)
TIMED(map, (void *self, pleat_va va, uint64_t bytes, pleat_handle handle), va, bytes, handle)
TIMED(set_access, (void *self, pleat_va va, uint64_t bytes, const int *devices, int count), va,
      bytes, devices, count)
TIMED(unmap, (void *self, pleat_va va, uint64_t bytes), va, bytes)
TIMED(export_handle, (void *self, pleat_handle handle, int *fd), handle, fd)
TIMED(import_handle, (void *self, int device, int fd, uint64_t bytes, pleat_handle *handle), device,
      fd, bytes, handle)
TIMED_EVENT(event_create, (void *self, int device, pleat_event *event), device, event)
TIMED_EVENT(event_destroy, (void *self, pleat_event event), event)
TIMED_EVENT(event_record, (void *self, pleat_event event, pleat_stream stream), event, stream)
TIMED_EVENT(event_query, (void *self, pleat_event event), event)
TIMED_EVENT(event_wait, (void *self, pleat_event event), event)
TIMED_EVENT(stream_wait, (void *self, pleat_stream stream, pleat_event event), stream, event)
TIMED(identify, (void *self, int device, char *name), device, name)
TIMED(process_memory, (void *self, int device, uint64_t *used, uint64_t *limit), device, used,
      limit)
TIMED(stream_create, (void *self, int device, pleat_stream *stream), device, stream)
TIMED(stream_destroy, (void *self, int device, pleat_stream stream), device, stream)
TIMED(host_alloc, (void *self, int device, uint64_t bytes, void **memory), device, bytes, memory)
TIMED(host_free, (void *self, int device, void *memory), device, memory)
TIMED(copy,
      (void *self, int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes),
      device, stream, to, from, bytes)
TIMED(copy_by_threads,
      (void *self, int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes),
      device, stream, to, from, bytes)

/* Of any thread. */
static pleat_result map_counted(void *self, pleat_va va, uint64_t bytes, pleat_handle handle)
{
    timed_vmm *t = self;
    PLEAT_TRY(map(self, va, bytes, handle));
    uint64_t now = atomic_fetch_add(&t->mapped_bytes, bytes) + bytes;
    uint64_t most = atomic_load(&t->most_mapped_bytes);
    while (now > most && !atomic_compare_exchange_weak(&t->most_mapped_bytes, &most, now))
        ;
    return PLEAT_OK;
}

static pleat_result unmap_counted(void *self, pleat_va va, uint64_t bytes)
{
    timed_vmm *t = self;
    PLEAT_TRY(unmap(self, va, bytes));
    atomic_fetch_sub(&t->mapped_bytes, bytes);
    return PLEAT_OK;
}

static uint64_t clock_ns(void *self)
{
    const timed_vmm *t = self;
    return t->inner.ops->clock_ns(t->inner.self);
}

static void destroy(void *self)
{
    (void)self;
}

static const pleat_vmm_ops ops = {.abi = PLEAT_VMM_ABI,
                                  .size = sizeof(pleat_vmm_ops),
                                  .name = "timed",
                                  .destroy = destroy,
                                  .device_count = device_count,
                                  .granularity = granularity,
                                  .memory_info = memory_info,
                                  .reserve = reserve,
                                  .free_range = free_range,
                                  .create = create,
                                  .release = release,
                                  .map = map_counted,
                                  .set_access = set_access,
                                  .unmap = unmap_counted,
                                  .export_handle = export_handle,
                                  .import_handle = import_handle,
                                  .event_create = event_create,
                                  .event_destroy = event_destroy,
                                  .event_record = event_record,
                                  .event_query = event_query,
                                  .event_wait = event_wait,
                                  .stream_wait = stream_wait,
                                  .clock_ns = clock_ns,
                                  .identify = identify,
                                  .process_memory = process_memory,
                                  .stream_create = stream_create,
                                  .stream_destroy = stream_destroy,
                                  .host_alloc = host_alloc,
                                  .host_free = host_free,
                                  .copy = copy,
                                  .copy_by_threads = copy_by_threads};

pleat_result timed_vmm_begin(pleat_vmm inner, pleat__arena *arena, timed_vmm *timed, pleat_vmm *out)
{
    *timed = (timed_vmm){.thread = pthread_self(), .reading_ns = clock_cost()};
    PLEAT_TRY(pleat__vmm_complete(inner, arena, &timed->inner));
    *out = (pleat_vmm){&ops, timed};
    return PLEAT_OK;
}
