/*
 * host_internal.h: the host backend's state, shared by host.c (physical memory), host_map.c
 * (reservations, maps) and host_stream.c (streams, events, the clock).
 */
#ifndef PLEAT_VMM_HOST_INTERNAL_H
#define PLEAT_VMM_HOST_INTERNAL_H

#include <internal/arena.h>
#include <pthread.h>
#include <vmm/host.h>

/* A piece of physical memory: [offset, offset + bytes) of a file. It lives while a handle or a map
 * refers to it. Offsets are never given out twice, so one names a piece for good. */
typedef struct pleat__host_memory {
    uint64_t offset; /* in the device's space; in the file only when `file` is the device's */
    uint64_t bytes;
    uint64_t maps;
    uint32_t handles;
    int device;
    int own_file; /* a shareable piece's own memfd, or -1: the device's file */
    bool foreign; /* imported from elsewhere: not this device's bytes */
    uint32_t next_free;
} pleat__host_memory;

typedef struct pleat__host_handle {
    uint32_t memory;     /* index + 1; 0: this slot is free */
    uint32_t generation; /* upper half of the handle, so that a stale one is refused */
    uint32_t next_free;
} pleat__host_handle;

/* A page of a reservation. */
typedef struct pleat__host_page {
    uint32_t memory; /* index + 1; 0: nothing is mapped */
    uint32_t flags : 2;
    uint32_t index : 30; /* which granule of the memory */
} pleat__host_page;

enum {
    PLEAT__HOST_ACCESS = 1,  /* granted, and mapped by the kernel */
    PLEAT__HOST_PENDING = 2, /* being granted by the call in progress */
};

typedef struct pleat__host_reservation {
    pleat_va va;
    uint64_t bytes;
    uint64_t pages;
    uint64_t mapped;
    pleat__host_page *page;
} pleat__host_reservation;

typedef struct pleat__host_device {
    int file;
    uint64_t used;
    uint64_t next_offset;
} pleat__host_device;

typedef struct pleat__host_wait {
    uint64_t after; /* points beyond this one of the waiting stream are held back */
    uint32_t stream;
    uint64_t point;
} pleat__host_wait;

typedef struct pleat__host_stream {
    pleat_stream id;
    bool held;
    uint64_t recorded;
    uint64_t allowed; /* of a held stream */
    uint64_t passed;
    pleat__host_wait *waits; /* in order */
    size_t wait_count, wait_capacity;
} pleat__host_stream;

typedef struct pleat__host_event {
    bool used;
    uint32_t generation;
    uint32_t stream;
    uint64_t point; /* 0: never recorded */
    uint32_t next_free;
} pleat__host_event;

#define PLEAT__HOST_DEVICES 64

/* One mutex guards all of it. */
typedef struct pleat__host {
    pthread_mutex_t lock;
    pthread_cond_t passed; /* a stream passed a point */
    pleat__arena *arena;
    int device_count;
    uint64_t granularity;
    uint64_t device_bytes;
    uint64_t area_limit;
    uint64_t areas;
    uint64_t mapped_pages;
    pleat__host_device devices[PLEAT__HOST_DEVICES];

    pleat__host_memory *memories;
    size_t memory_count, memory_capacity;
    uint32_t free_memory; /* index + 1 */
    uint64_t live_memories;
    pleat__host_handle *handles;
    size_t handle_count, handle_capacity;
    uint32_t free_handle;
    uint64_t live_handles;
    pleat__host_reservation *reservations; /* by address */
    size_t reservation_count, reservation_capacity;

    pleat__host_stream *streams;
    size_t stream_count, stream_capacity;
    pleat__host_event *events;
    size_t event_count, event_capacity;
    uint32_t free_event;
    uint64_t live_events;

    bool clock_by_hand;
    uint64_t clock;
    bool modelled;
    pleat__host_costs costs;
    double modelled_ns;
} pleat__host;

/* The backend behind a pleat_vmm, or NULL when it is another. */
pleat__host *pleat__host_of(const pleat_vmm *vmm);

/* ---- what the parts ask each other, under the lock ---- */

/* Adds to the modelled cost, when that is asked for. */
void pleat__host_cost(pleat__host *host, double ns);
bool pleat__host_is_device(const pleat__host *host, int device);
pleat_result pleat__host_no_device(const pleat__host *host, int device);
/* Whether it is some granules long. */
bool pleat__host_is_granular(const pleat__host *host, uint64_t bytes);
/* NULL: released, or never given out. */
pleat__host_handle *pleat__host_find_handle(pleat__host *host, pleat_handle handle);
pleat_result pleat__host_unknown_handle(const char *verb, pleat_handle handle);
/* Gives a piece (index + 1) back once nothing refers to it. */
void pleat__host_drop_if_unused(pleat__host *host, uint32_t slot);
/* The reservation that begins last at or before `va`, as an index + 1. */
size_t pleat__host_reservation_before(const pleat__host *host, pleat_va va);

/* ---- the table's entries of host_map.c and host_stream.c ---- */

pleat_result pleat__host_reserve(void *self, int device, uint64_t bytes, uint64_t align,
                                 pleat_va *va);
pleat_result pleat__host_free_range(void *self, pleat_va va, uint64_t bytes);
pleat_result pleat__host_map(void *self, pleat_va va, uint64_t bytes, pleat_handle handle);
pleat_result pleat__host_set_access(void *self, pleat_va va, uint64_t bytes, const int *devices,
                                    int count);
pleat_result pleat__host_unmap(void *self, pleat_va va, uint64_t bytes);

pleat_result pleat__host_event_create(void *self, int device, pleat_event *event);
pleat_result pleat__host_event_destroy(void *self, pleat_event event);
pleat_result pleat__host_event_record(void *self, pleat_event event, pleat_stream stream);
pleat_result pleat__host_event_query(void *self, pleat_event event);
pleat_result pleat__host_event_wait(void *self, pleat_event event);
pleat_result pleat__host_stream_wait(void *self, pleat_stream stream, pleat_event event);
uint64_t pleat__host_clock_ns(void *self);

#endif
