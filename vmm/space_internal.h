/*
 * space_internal.h: a space's state, shared by space.c (window and maps), space_rest.c (chunks that
 * rest) and pool.c (chunks and budget).
 */
#ifndef PLEAT_VMM_SPACE_INTERNAL_H
#define PLEAT_VMM_SPACE_INTERNAL_H

#include "window.h"

#include <internal/devices.h>
#include <pthread.h>
#include <stdatomic.h>
#include <vmm/space.h>

/* A page of the window; lock-free to read. */
typedef struct pleat__page {
    _Atomic(pleat__chunk *) chunk;
    _Atomic uint32_t index; /* which page of the chunk */
} pleat__page;

/* X(name): the memory verbs, counted one by one. */
#define PLEAT__VERBS(X)                                                                            \
    X(create) X(map) X(set_access) X(unmap) X(release) X(import_handle) X(export_handle)

/* Records of chunks that are made at once: one by one they took a fiftieth of what allocating costs
 * (D515). */
#define PLEAT__RECORDS 64u

typedef struct pleat__pool {
    pleat__chunk *oldest, *newest;
} pleat__pool;

struct pleat__space {
    pleat_vmm vmm;
    pleat__arena *arena;
    int device;
    int devices[PLEAT__DEVICES]; /* that get access: its own, then the peers */
    int device_count;
    uint32_t create_flags;
    uint64_t page_bytes;
    uint64_t window_bytes;
    uint64_t device_bytes;
    pleat_va base;

    pleat__tenant *tenant;    /* NULL: none; claims are made of it too */
    _Atomic uint64_t budget;  /* 0: none */
    _Atomic uint64_t claimed; /* bytes of chunks that exist or are being created */
    _Atomic uint64_t calls, aside, failed;
#define PLEAT__VERB_COUNT(name) _Atomic uint64_t name##_count;
    PLEAT__VERBS(PLEAT__VERB_COUNT)
#undef PLEAT__VERB_COUNT

    /* Held to read while pages are mapped, unmapped or healed, to write while chunks are laid to
     * rest or woken, which is about all their places at once. Before the lock. */
    pthread_rwlock_t places;
    pthread_mutex_t lock; /* guards all below; never held over a verb */
    pleat__window window;
    uint64_t *stuck;   /* bits: quarantined */
    uint64_t *orphans; /* bits: quarantined, and given back by the caller */
    bool healing;      /* a thread does */
    pleat__page *page;
    pleat__chunk **chunks; /* by id, in blocks of PLEAT__RECORDS */
    size_t chunk_count, block_capacity;
    pleat__chunk *records; /* released chunks, for their ids and memory */
    pleat__pool pool;
    pleat__chunk *unreleased; /* in nobody's hands, not for the pool, and not released yet */
    uint64_t pool_clock;
    uint64_t physical, peak, pooled, host;         /* bytes */
    uint64_t mapped, alias, quarantined, reserved; /* pages */
    uint64_t unaudited; /* pages that may be walked since the last audit after a call */
};

static inline pleat__chunk *pleat__space_chunk_of(const pleat__space *space, size_t id)
{
    return &space->chunks[id / PLEAT__RECORDS][id % PLEAT__RECORDS];
}

static inline bool pleat__bit(const uint64_t *bits, uint64_t page)
{
    return bits[page / 64] >> page % 64 & 1;
}

static inline void pleat__bit_set(uint64_t *bits, uint64_t page, bool value)
{
    bits[page / 64] = (bits[page / 64] & ~(1ull << page % 64)) | (uint64_t)value << page % 64;
}

/* The way to every verb: before it, and behind it, where its result is counted and passed on, with
 * a text where the backend gave none. */
void pleat__space_verb_begins(void);
pleat_result pleat__space_counted(pleat__space *space, _Atomic uint64_t *count, const char *verb,
                                  pleat_result result);
#define PLEAT__VERB(space, name, ...)                                                              \
    (pleat__space_verb_begins(),                                                                   \
     pleat__space_counted((space), &(space)->name##_count, #name,                                  \
                          (space)->vmm.ops->name((space)->vmm.self, __VA_ARGS__)))

static inline pleat_va pleat__space_address(const pleat__space *space, uint64_t page)
{
    return space->base + page * space->page_bytes;
}

static inline pleat__chunk *pleat__space_page_chunk(const pleat__space *space, uint64_t page)
{
    return atomic_load_explicit(&space->page[page].chunk, memory_order_relaxed);
}

/* The pages from `page` on are the chunk's, from its page `index` on; NULL: nobody's. Under the
 * lock. */
static inline void pleat__space_set_pages(pleat__space *space, uint64_t page, uint64_t pages,
                                          pleat__chunk *chunk, uint32_t index)
{
    for (uint64_t i = 0; i < pages; i++) {
        atomic_store_explicit(&space->page[page + i].index, index + (uint32_t)i,
                              memory_order_relaxed);
        atomic_store_explicit(&space->page[page + i].chunk, chunk, memory_order_release);
    }
}

/* The maps of whole chunks in a range are no more or, where a verb failed, in an unknown state. */
void pleat__space_end_maps(pleat__space *space, uint64_t page, uint64_t pages, bool gone);

/* So many bytes more of the device exist, or less: a difference, which wraps around. Under the
 * lock. */
void pleat__space_count(pleat__space *space, uint64_t more);

/* A handle of so many bytes, claimed, with room made as far as it goes. */
PLEAT_NODISCARD pleat_result pleat__space_create_handle(pleat__space *space, uint64_t bytes,
                                                        pleat_handle *handle);
/* After a handle was released, and is counted no more. */
void pleat__space_unclaim(pleat__space *space, uint64_t bytes);

/* A chunk's record is free for another one, or keeps what is to be released first. Under the lock.
 */
void pleat__pool_drop_record(pleat__space *space, pleat__chunk *chunk);
/* Releases every chunk that exists, pooled or not; only at the end. */
void pleat__pool_destroy(pleat__space *space);
/* Re-derives the totals of chunks; under the lock. */
bool pleat__pool_audit(const pleat__space *space);

#endif
