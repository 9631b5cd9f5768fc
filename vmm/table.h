/*
 * table.h: the verbs of a backend's table as a list, and what a table must be before Pleat uses it.
 */
#ifndef PLEAT_VMM_TABLE_H
#define PLEAT_VMM_TABLE_H

#include <internal/arena.h>
#include <internal/check.h>
#include <internal/error.h>
#include <pleat/vmm.h>

/* X(verb, (parameters behind self), arguments as they are passed on...), for each verb of
 * pleat_vmm_ops that gives a result: all but destroy and clock_ns. */

/* Nothing works without these. */
#define PLEAT__VMM_NEEDED(X)                                                                       \
    X(granularity, (int device, uint64_t *minimum, uint64_t *recommended), device, minimum,        \
      recommended)                                                                                 \
    X(reserve, (int device, uint64_t bytes, uint64_t align, pleat_va *va), device, bytes, align,   \
      va)                                                                                          \
    X(free_range, (pleat_va va, uint64_t bytes), va, bytes)                                        \
    X(create, (int device, uint64_t bytes, uint32_t flags, pleat_handle *handle), device, bytes,   \
      flags, handle)                                                                               \
    X(release, (pleat_handle handle), handle)                                                      \
    X(map, (pleat_va va, uint64_t bytes, pleat_handle handle), va, bytes, handle)                  \
    X(set_access, (pleat_va va, uint64_t bytes, const int *devices, int count), va, bytes,         \
      devices, count)                                                                              \
    X(unmap, (pleat_va va, uint64_t bytes), va, bytes)

/* A table may do without these and the next. */
#define PLEAT__VMM_EVENTS(X)                                                                       \
    X(event_create, (int device, pleat_event *event), device, event)                               \
    X(event_destroy, (pleat_event event), event)                                                   \
    X(event_record, (pleat_event event, pleat_stream stream), event, stream)                       \
    X(event_query, (pleat_event event), event)                                                     \
    X(event_wait, (pleat_event event), event)                                                      \
    X(stream_wait, (pleat_stream stream, pleat_event event), stream, event)

#define PLEAT__VMM_OTHERS(X)                                                                       \
    X(device_count, (int *count), count)                                                           \
    X(memory_info, (int device, uint64_t *free_bytes, uint64_t *total_bytes), device, free_bytes,  \
      total_bytes)                                                                                 \
    X(export_handle, (pleat_handle handle, int *fd), handle, fd)                                   \
    X(import_handle, (int device, int fd, uint64_t bytes, pleat_handle *handle), device, fd,       \
      bytes, handle)                                                                               \
    X(identify, (int device, char *name), device, name)                                            \
    X(process_memory, (int device, uint64_t *used, uint64_t *limit), device, used, limit)          \
    X(stream_create, (int device, pleat_stream *stream), device, stream)                           \
    X(stream_destroy, (int device, pleat_stream stream), device, stream)                           \
    X(host_alloc, (int device, uint64_t bytes, void **memory), device, bytes, memory)              \
    X(host_free, (int device, void *memory), device, memory)                                       \
    X(copy, (int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes), device, \
      stream, to, from, bytes)                                                                     \
    X(copy_by_threads,                                                                             \
      (int device, pleat_stream stream, uint64_t to, uint64_t from, uint64_t bytes), device,       \
      stream, to, from, bytes)

#define PLEAT__VMM_VERBS(X) PLEAT__VMM_NEEDED(X) PLEAT__VMM_EVENTS(X) PLEAT__VMM_OTHERS(X)

/* The list's parameters with self before them. */
#define PLEAT__VMM_SELF(...) (void *self, __VA_ARGS__)

/* In a child of fork a backend is its parent's, whose locks may be held there for ever. For a
 * backend's file that has its verbs in a table `plain`, and here(self), which fails there: verbs
 * that ask it first, and their entries in the table that is given out. */
#define PLEAT__VMM_GUARD(verb, parameters, ...)                                                    \
    static pleat_result here_##verb PLEAT__VMM_SELF parameters                                     \
    {                                                                                              \
        PLEAT_TRY(here(self));                                                                     \
        return plain.verb(self, __VA_ARGS__);                                                      \
    }
#define PLEAT__VMM_GUARDED(verb, ...) .verb = here_##verb,

/* Checks a backend's table and gives one in which every entry can be called: entries that the
 * table is too short for, or leaves NULL, say PLEAT_E_UNSUPPORTED (destroy does nothing). The
 * filled table lies in `arena`; a table with nothing missing is used as it is.
 * PLEAT_E_ABI for another major version or a size that cannot be; PLEAT_E_INVALID when a verb that
 * nothing works without is missing. */
PLEAT_NODISCARD pleat_result pleat__vmm_complete(pleat_vmm vmm, pleat__arena *arena,
                                                 pleat_vmm *out);

/* PLEAT_E_NO_DEVICE unless it is one of `count` devices. */
PLEAT_NODISCARD pleat_result pleat__vmm_check_device(int count, int device);
/* The same of each device that set_access is for. PLEAT_E_INVALID: there are none, or more than a
 * machine has. */
PLEAT_NODISCARD pleat_result pleat__vmm_check_access(int count, const int *devices,
                                                     int device_count);

/* What a memory verb's result counts as, with a text where the backend gave none;
 * pleat__expect_text goes before the verb. */
pleat_result pleat__vmm_told(pleat_vmm vmm, const char *verb, pleat_result result);
#define PLEAT__VMM_VERB(vmm, name, ...)                                                            \
    (pleat__expect_text(), pleat__vmm_told((vmm), #name, (vmm).ops->name((vmm).self, __VA_ARGS__)))

/* The verb clock_ns: the system's. */
uint64_t pleat__vmm_clock_ns(void *self);

/* The way to every wait for the GPU: never under a lock that allocations take (R11). */
static inline pleat_result pleat__vmm_wait(pleat_vmm vmm, pleat_event event)
{
    PLEAT__HOT_ASSERT();
    return vmm.ops->event_wait(vmm.self, event);
}

#endif
