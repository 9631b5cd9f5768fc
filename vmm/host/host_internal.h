/*
 * host_internal.h: the host backend's state, shared by host.c (physical memory), host_map.c
 * (reservations, maps), host_stream.c (streams, events, the clock) and host_copy.c (copies).
 */
#ifndef PLEAT_VMM_HOST_INTERNAL_H
#define PLEAT_VMM_HOST_INTERNAL_H

#include <internal/devices.h>
#include <pthread.h>
#include <vmm/host/host.h>
#include <vmm/shadow.h>
#include <vmm/table.h>

/* Flags of a page. */
enum {
    PLEAT__HOST_ACCESS = 1,  /* granted, and mapped by the kernel */
    PLEAT__HOST_PENDING = 2, /* being granted by the call in progress */
};

typedef struct pleat__host_device {
    int file;
    uint64_t used;
    uint64_t on_host; /* bytes made with PLEAT_CREATE_HOST */
    uint64_t other;   /* of the process, by other means */
    uint64_t limit;   /* that the process is held to; 0: none */
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
    bool trails; /* held, and nobody waits for it */
    bool ended;  /* destroyed: the record is another stream's, once all its points have passed */
    uint64_t recorded;
    uint64_t allowed; /* of a held stream */
    uint64_t passed;
    pleat__host_wait *waits; /* in order; those before `wait_first` are over */
    size_t wait_first, wait_count, wait_capacity;
} pleat__host_stream;

typedef struct pleat__host_event {
    bool used;
    uint32_t generation;
    uint32_t stream;
    uint64_t point; /* 0: never recorded */
    uint32_t next_free;
} pleat__host_event;

/* A copy that nobody has waited for yet. */
typedef struct pleat__host_copying {
    uint64_t to, from, bytes;
    uint32_t stream;
    uint64_t behind; /* the stream's point: it is over when the stream has passed a later one */
} pleat__host_copying;

/* One mutex guards all of it. */
typedef struct pleat__host {
    uint32_t process; /* that made it: pleat__process_now() */
    pthread_mutex_t lock;
    pthread_cond_t passed; /* a stream passed a point */
    pleat__arena *arena;
    int device_count;
    uint64_t device_bytes;
    uint64_t area_limit;
    uint64_t areas;
    pleat__host_device devices[PLEAT__DEVICES];

    /* A piece's `native` is its offset in the device's file, given out once and never again; `file`
     * is a shareable piece's own memfd. */
    pleat__shadow shadow;
    uint64_t most_mapped_pages; /* at once, so far */

    pleat__host_stream *streams;
    size_t stream_count, stream_capacity;
    pleat__host_event *events;
    size_t event_count, event_capacity;
    uint32_t free_event;
    uint64_t live_events;
    pleat__host_copying *copies; /* of each stream in its order */
    size_t copy_count, copy_capacity;

    bool clock_by_hand;
    uint64_t clock;
    bool modelled;
    pleat__host_costs costs;
    double modelled_ns; /* not a mapper's, whose calls take the others no time */
    double aside_ns;    /* those */

    uint64_t streams_made;              /* by stream_create */
    uint64_t live_streams, live_blocks; /* those, and of host_alloc */
} pleat__host;

/* The backend behind a pleat_vmm, or NULL when it is another. */
pleat__host *pleat__host_of(const pleat_vmm *vmm);
/* What is said about a stream: hold it, for others too or not, let it pass `points` more, or end
 * the hold. */
PLEAT_NODISCARD pleat_result pleat__host_direct(const pleat_vmm *vmm, pleat_stream stream,
                                                bool held, bool trails, uint64_t points);

/* ---- what the parts ask each other, under the lock ---- */

/* Adds to the modelled cost, when that is asked for. */
void pleat__host_spend(pleat__host *host, double ns);
/* The same of a call, on a handle of `bytes`. */
void pleat__host_cost(pleat__host *host, uint64_t bytes, double handle, double granule);
/* Index + 1 of a stream, made when it is new; 0: no host memory, pleat__host_no_stream() says so.
 */
uint32_t pleat__host_stream_index(pleat__host *host, pleat_stream id);
pleat_result pleat__host_no_stream(void);
/* The program knows that a stream (its index + 1) has passed a point: copies before it are done. */
void pleat__host_copies_pass(pleat__host *host, uint32_t stream, uint64_t point);
/* Memory goes, or a stream: copies that nobody waited for never come. */
void pleat__host_copies_lose(pleat__host *host, uint64_t begin, uint64_t bytes);
void pleat__host_copies_end(pleat__host *host, uint32_t stream);

/* ---- the table's entries of host_map.c, host_stream.c and host_copy.c ---- */

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
pleat_result pleat__host_stream_create(void *self, int device, pleat_stream *stream);
pleat_result pleat__host_stream_destroy(void *self, int device, pleat_stream stream);
pleat_result pleat__host_copy(void *self, int device, pleat_stream stream, uint64_t to,
                              uint64_t from, uint64_t bytes);

#endif
