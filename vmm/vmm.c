/*
 * vmm.c: what all backends share: a table is checked once and its gaps are filled, so that no
 * caller ever asks whether an entry is there.
 */
#include "table.h"

#include <internal/clock.h>
#include <internal/error.h>
#include <stdbool.h>
#include <string.h>

static pleat_result unsupported(const char *verb)
{
    return pleat__fail(PLEAT_E_UNSUPPORTED, "the backend has no %s", verb);
}

static void no_destroy(void *self)
{
    (void)self;
}

static pleat_result no_device_count(void *self, int *count)
{
    (void)self, (void)count;
    return unsupported("device_count");
}

static pleat_result no_memory_info(void *self, int device, uint64_t *free_bytes,
                                   uint64_t *total_bytes)
{
    (void)self, (void)device, (void)free_bytes, (void)total_bytes;
    return unsupported("memory_info");
}

static pleat_result no_export_handle(void *self, pleat_handle handle, int *fd)
{
    (void)self, (void)handle, (void)fd;
    return unsupported("export_handle");
}

static pleat_result no_import_handle(void *self, int device, int fd, uint64_t bytes,
                                     pleat_handle *handle)
{
    (void)self, (void)device, (void)fd, (void)bytes, (void)handle;
    return unsupported("import_handle");
}

static pleat_result no_event_create(void *self, int device, pleat_event *event)
{
    (void)self, (void)device, (void)event;
    return unsupported("event_create");
}

static pleat_result no_event_destroy(void *self, pleat_event event)
{
    (void)self, (void)event;
    return unsupported("event_destroy");
}

static pleat_result no_event_record(void *self, pleat_event event, pleat_stream stream)
{
    (void)self, (void)event, (void)stream;
    return unsupported("event_record");
}

static pleat_result no_event_query(void *self, pleat_event event)
{
    (void)self, (void)event;
    return unsupported("event_query");
}

static pleat_result no_event_wait(void *self, pleat_event event)
{
    (void)self, (void)event;
    return unsupported("event_wait");
}

static pleat_result no_stream_wait(void *self, pleat_stream stream, pleat_event event)
{
    (void)self, (void)stream, (void)event;
    return unsupported("stream_wait");
}

static pleat_result no_identify(void *self, int device, char *name)
{
    (void)self, (void)device, (void)name;
    return unsupported("identify");
}

static pleat_result no_process_memory(void *self, int device, uint64_t *used, uint64_t *limit)
{
    (void)self, (void)device, (void)used, (void)limit;
    return unsupported("process_memory");
}

static pleat_result no_stream_create(void *self, int device, pleat_stream *stream)
{
    (void)self, (void)device, (void)stream;
    return unsupported("stream_create");
}

static pleat_result no_stream_destroy(void *self, int device, pleat_stream stream)
{
    (void)self, (void)device, (void)stream;
    return unsupported("stream_destroy");
}

static pleat_result no_host_alloc(void *self, int device, uint64_t bytes, void **memory)
{
    (void)self, (void)device, (void)bytes, (void)memory;
    return unsupported("host_alloc");
}

static pleat_result no_host_free(void *self, int device, void *memory)
{
    (void)self, (void)device, (void)memory;
    return unsupported("host_free");
}

static pleat_result no_copy(void *self, int device, pleat_stream stream, uint64_t to, uint64_t from,
                            uint64_t bytes)
{
    (void)self, (void)device, (void)stream, (void)to, (void)from, (void)bytes;
    return unsupported("copy");
}

static pleat_result no_copy_by_threads(void *self, int device, pleat_stream stream, uint64_t to,
                                       uint64_t from, uint64_t bytes)
{
    (void)self, (void)device, (void)stream, (void)to, (void)from, (void)bytes;
    return unsupported("copy_by_threads");
}

uint64_t pleat__vmm_clock_ns(void *self)
{
    (void)self;
    return pleat__now_ns();
}

/* X(entry, what stands in for it). What is not listed is needed. */
#define OPTIONAL(X)                                                                                \
    X(destroy, no_destroy)                                                                         \
    X(device_count, no_device_count)                                                               \
    X(memory_info, no_memory_info)                                                                 \
    X(export_handle, no_export_handle)                                                             \
    X(import_handle, no_import_handle)                                                             \
    X(event_create, no_event_create)                                                               \
    X(event_destroy, no_event_destroy)                                                             \
    X(event_record, no_event_record)                                                               \
    X(event_query, no_event_query)                                                                 \
    X(event_wait, no_event_wait)                                                                   \
    X(stream_wait, no_stream_wait)                                                                 \
    X(clock_ns, pleat__vmm_clock_ns)                                                               \
    X(identify, no_identify)                                                                       \
    X(process_memory, no_process_memory)                                                           \
    X(stream_create, no_stream_create)                                                             \
    X(stream_destroy, no_stream_destroy)                                                           \
    X(host_alloc, no_host_alloc)                                                                   \
    X(host_free, no_host_free)                                                                     \
    X(copy, no_copy)                                                                               \
    X(copy_by_threads, no_copy_by_threads)
#define NEEDED(X)                                                                                  \
    X(granularity) X(reserve) X(free_range) X(create) X(release) X(map) X(set_access) X(unmap)

/* false: nothing was missing. */
static bool fill(pleat_vmm_ops *ops)
{
    bool filled = false;
#define FILL(entry, stand_in)                                                                      \
    if (ops->entry == NULL) {                                                                      \
        ops->entry = stand_in;                                                                     \
        filled = true;                                                                             \
    }
    OPTIONAL(FILL)
#undef FILL
    return filled;
}

static pleat_result check_needed(const pleat_vmm_ops *ops)
{
#define CHECK_NEEDED(entry)                                                                        \
    if (ops->entry == NULL)                                                                        \
        return pleat__fail(PLEAT_E_INVALID, "backend '%s': no %s", ops->name, #entry);
    NEEDED(CHECK_NEEDED)
#undef CHECK_NEEDED
    return PLEAT_OK;
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
