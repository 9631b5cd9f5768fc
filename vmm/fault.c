/*
 * fault.c: passes every verb on, but the Nth one fails. See fault.h.
 */
#include "fault.h"
#include "table.h"

#include <internal/check.h>
#include <internal/error.h>
#include <pthread.h>

typedef struct fault {
    pleat_vmm inner;
    pleat__arena *arena;
    pthread_mutex_t lock;
    pleat__fault_plan plan;
    uint64_t calls, hits;
} fault;

/* Whether this call is to fail, and whether the inner backend is called. */
static bool due(fault *self, pleat__fault_verb verb, bool *pass)
{
    pthread_mutex_lock(&self->lock);
    const pleat__fault_plan *plan = &self->plan;
    bool hit = false;
    if (plan->verb == verb || plan->verb == PLEAT__FAULT_any) {
        self->calls++;
        hit = plan->nth != 0 &&
              (self->calls == plan->nth || (plan->forever && self->calls > plan->nth));
        self->hits += hit;
    }
    bool open = verb == PLEAT__FAULT_unmap || verb == PLEAT__FAULT_set_access;
    *pass = !hit || (plan->carried_out && open);
    pthread_mutex_unlock(&self->lock);
    return hit;
}

static pleat_result failure(pleat__fault_verb verb)
{
#define NAME(name) #name,
    static const char *const names[] = {PLEAT__FAULT_VERBS(NAME)};
#undef NAME
    if (verb == PLEAT__FAULT_create || verb == PLEAT__FAULT_reserve)
        return pleat__fail_native(PLEAT_E_OUT_OF_MEMORY, 2, "CUDA_ERROR_OUT_OF_MEMORY",
                                  "%s: made to fail", names[verb]);
    return pleat__fail_native(PLEAT_E_DRIVER, 999, "CUDA_ERROR_UNKNOWN", "%s: made to fail",
                              names[verb]);
}

#define DECORATED(verb, parameters, ...)                                                           \
    static pleat_result verb parameters                                                            \
    {                                                                                              \
        fault *f = self;                                                                           \
        bool pass;                                                                                 \
        bool hit = due(f, PLEAT__FAULT_##verb, &pass);                                             \
        pleat_result result = pass ? f->inner.ops->verb(f->inner.self, __VA_ARGS__) : PLEAT_OK;    \
        return hit ? failure(PLEAT__FAULT_##verb) : result;                                        \
    }

DECORATED(device_count, (void *self, int *count), count)
DECORATED(granularity, (void *self, int device, uint64_t *least, uint64_t *advised), device, least,
          advised)
DECORATED(memory_info, (void *self, int device, uint64_t *free_bytes, uint64_t *total), device,
          free_bytes, total)
DECORATED(reserve, (void *self, int device, uint64_t bytes, uint64_t align, pleat_va *va), device,
          bytes, align, va)
DECORATED(create, (void *self, int device, uint64_t bytes, uint32_t flags, pleat_handle *handle),
          device, bytes, flags, handle)
DECORATED(export_handle, (void *self, pleat_handle handle, int *fd), handle, fd)
DECORATED(import_handle, (void *self, int device, int fd, uint64_t bytes, pleat_handle *handle),
          device, fd, bytes, handle)
DECORATED(event_create, (void *self, int device, pleat_event *event), device, event)
DECORATED(free_range, (void *self, pleat_va va, uint64_t bytes), va, bytes)
DECORATED(release, (void *self, pleat_handle handle), handle)
DECORATED(map, (void *self, pleat_va va, uint64_t bytes, pleat_handle handle), va, bytes, handle)
DECORATED(set_access, (void *self, pleat_va va, uint64_t bytes, const int *devices, int count), va,
          bytes, devices, count)
DECORATED(unmap, (void *self, pleat_va va, uint64_t bytes), va, bytes)
DECORATED(event_destroy, (void *self, pleat_event event), event)
DECORATED(event_record, (void *self, pleat_event event, pleat_stream stream), event, stream)
DECORATED(event_query, (void *self, pleat_event event), event)
DECORATED(event_wait, (void *self, pleat_event event), event)
DECORATED(stream_wait, (void *self, pleat_stream stream, pleat_event event), stream, event)
DECORATED(identify, (void *self, int device, char *name), device, name)
DECORATED(process_memory, (void *self, int device, uint64_t *used, uint64_t *limit), device, used,
          limit)
DECORATED(stream_create, (void *self, int device, pleat_stream *stream), device, stream)
DECORATED(stream_destroy, (void *self, int device, pleat_stream stream), device, stream)
DECORATED(host_alloc, (void *self, int device, uint64_t bytes, void **memory), device, bytes,
          memory)
DECORATED(host_free, (void *self, int device, void *memory), device, memory)
DECORATED(copy,
          (void *self, int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes),
          device, stream, to, from, bytes)
DECORATED(copy_by_threads,
          (void *self, int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes),
          device, stream, to, from, bytes)

static uint64_t clock_ns(void *self)
{
    const fault *f = self;
    return f->inner.ops->clock_ns(f->inner.self);
}

static void destroy(void *self)
{
    fault *f = self;
    pthread_mutex_destroy(&f->lock);
    pleat__arena_destroy(f->arena);
}

static const pleat_vmm_ops fault_ops = {.abi = PLEAT_VMM_ABI,
                                        .size = sizeof(pleat_vmm_ops),
                                        .name = "fault",
                                        .destroy = destroy,
                                        .clock_ns = clock_ns,
#define ENTRY(verb) .verb = verb,
                                        PLEAT__FAULT_VERBS(ENTRY)
#undef ENTRY
};

pleat_result pleat__fault_create(pleat_vmm inner, pleat_vmm *out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    fault *self = pleat__arena_calloc(arena, 1, sizeof *self);
    pleat_result result =
        self != NULL ? pleat__vmm_complete(inner, arena, &self->inner)
                     : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a fault backend");
    if (result != PLEAT_OK) {
        pleat__arena_destroy(arena);
        return result;
    }
    self->arena = arena;
    pthread_mutex_init(&self->lock, NULL);
    *out = (pleat_vmm){&fault_ops, self};
    return PLEAT_OK;
}

static fault *of(const pleat_vmm *vmm)
{
    PLEAT_CHECK(vmm->ops == &fault_ops);
    return vmm->self;
}

void pleat__fault_arm(const pleat_vmm *vmm, pleat__fault_plan plan)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    f->plan = plan;
    f->calls = f->hits = 0;
    pthread_mutex_unlock(&f->lock);
}

uint64_t pleat__fault_calls(const pleat_vmm *vmm)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    uint64_t calls = f->calls;
    pthread_mutex_unlock(&f->lock);
    return calls;
}

uint64_t pleat__fault_hits(const pleat_vmm *vmm)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    uint64_t hits = f->hits;
    pthread_mutex_unlock(&f->lock);
    return hits;
}
