/*
 * space.h: a device's window and the chunks mapped in it: what the runtime uses instead of verbs.
 *
 * A space owns one wide reserved range (the window). Callers take page ranges of it, put chunks
 * under them and give both back. A chunk here is a handle of one or more granules ("pages"): most
 * are one, a range that is never folded or returned singly takes one large handle (a 2 GiB handle
 * maps in about 83 us on an H200, the same bytes in single chunks take 26 ms).
 *
 * UNITS    Pages of the window, counted from its start; a page is the device's granularity (2 MiB).
 * UNWIND   Unless it says otherwise a function that fails leaves things as they were, or it
 *          quarantines the range whose state became unknown and counts it.
 * BUDGET   Bytes are reserved before a chunk is created, and given back when it is released.
 * THREADS  A space locks for itself; no lock is held during a driver verb that another thread's
 *          address arithmetic would need. A chunk, and a range of pages that was taken, is one
 *          caller's at a time.
 */
#ifndef PLEAT_VMM_SPACE_H
#define PLEAT_VMM_SPACE_H

#include <internal/arena.h>
#include <pleat/vmm.h>
#include <vmm/tenants/tenants.h>

typedef struct pleat__space pleat__space;

#define PLEAT__NO_PLACE UINT64_MAX

/* Physical memory of `pages` pages. The fields are the space's; callers read those above the line,
 * `maps` only while nobody maps or unmaps the chunk (pleat__space_maps may always be asked). */
typedef struct pleat__chunk {
    pleat_handle handle;
    uint32_t pages;
    uint32_t maps; /* places it is mapped at now; above 1 it is aliased */
    uint32_t id;   /* small, reused; for tables indexed by chunk */
    bool rests;    /* its places are kept, its memory is not (pleat__space_rest) */
    bool torn;     /* a failed verb lost a place of it on the way: it rests for good */
    bool on_host;  /* its memory is the host's: not in the budget, never pooled */
    /* ---- */
    uint64_t place;     /* a page where it is mapped, its first one; or PLEAT__NO_PLACE */
    uint32_t stuck;     /* quarantined places where it may still be mapped */
    uint64_t pooled;    /* when it came into the pool; 0: it is not there */
    bool painted;       /* the canary's: it knows what every byte holds; false in a new one */
    bool imported;      /* another process's memory: not in this one's budget, never pooled */
    bool moving;        /* it is being laid to rest, or woken */
    void *list;         /* the caller's: on which of its lists it is; NULL: on none */
    bool seen;          /* the caller's, during a call: it was met */
    uint64_t rank;      /* the caller's, during a call */
    pleat_handle spare; /* memory that it wakes with (pleat__space_prepare); 0: none */
    bool spare_on_host;
    bool prepared; /* until unprepare it keeps memory to wake with whenever it rests */
    struct pleat__chunk *next, *previous;
} pleat__chunk;

typedef struct pleat__space_options {
    int device;
    uint64_t window_bytes; /* 0: eight times the device's memory */
    uint64_t plan_bytes;   /* so many addresses more, for a plan, where window_bytes is 0 */
    uint32_t create_flags; /* PLEAT_CREATE_* */
} pleat__space_options;

/* Counters, all since creation unless they say "now". */
typedef struct pleat__space_stats {
    uint64_t physical_bytes;      /* chunks that exist now, pooled ones counted */
    uint64_t peak_physical_bytes; /* since the last reset */
    uint64_t mapped_pages;        /* now, aliases counted */
    uint64_t alias_pages;         /* now: mapped pages beyond each chunk's first map */
    uint64_t host_bytes;          /* chunks in the host's memory now; not among the physical ones */
    uint64_t pooled_bytes;        /* chunks in the pool now: mapped nowhere, in no caller's hands */
    uint64_t quarantined_pages;   /* pages of the window whose state a failed verb left unknown */
    uint64_t reserved_pages;      /* pages of the window in callers' hands now */
    uint64_t creates, maps, set_accesses, unmaps, releases; /* driver calls that succeeded */
    uint64_t failed_verbs;
    uint64_t driver_calls; /* all memory verbs issued */
    uint64_t mapper_calls; /* of them, those of mappers' threads */
} pleat__space_stats;

PLEAT_NODISCARD pleat_result pleat__space_create(pleat_vmm vmm, pleat__arena *arena,
                                                 const pleat__space_options *options,
                                                 pleat__space **out);
/* Unmaps and releases everything that is left. NULL is allowed. */
void pleat__space_destroy(pleat__space *space);

uint64_t pleat__space_page_bytes(const pleat__space *space);
pleat_va pleat__space_base(const pleat__space *space);
uint64_t pleat__space_pages(const pleat__space *space);
uint64_t pleat__space_device_bytes(const pleat__space *space);
pleat__space_stats pleat__space_stats_of(pleat__space *space);
/* The peak restarts from what is physical now. */
void pleat__space_reset_peak(pleat__space *space);
/* The cap in bytes; 0 lifts it. Lower than what exists now is allowed: nothing new is then created.
 */
void pleat__space_set_budget(pleat__space *space, uint64_t bytes);
/* From now on every byte is claimed of a ledger too, what exists at once; NULL ends it. The tenant
 * stays the caller's. PLEAT_E_BUDGET: what exists already is not to be had. pre: no other thread
 * uses the space. */
PLEAT_NODISCARD pleat_result pleat__space_set_tenant(pleat__space *space, pleat__tenant *tenant);
/* Bytes more that are within the cap now. */
uint64_t pleat__space_room(const pleat__space *space);
/* The most bytes of chunks that may be got: what the budget leaves of the device, those that are
 * pooled among them. The device may have less, where others use it. */
uint64_t pleat__space_left(pleat__space *space);
/* A further device gets access to all that is mapped, now and later. PLEAT_E_LIMIT. Where nothing
 * is mapped a page is for a moment, so that a device that cannot have access is refused here. Where
 * a verb fails it has access to a part of what is mapped, and to nothing that is mapped later:
 * access is not taken back, and may be asked for again. No other thread maps meanwhile. */
PLEAT_NODISCARD pleat_result pleat__space_add_peer(pleat__space *space, int device);
/* The backend, complete: every entry of its table is there. */
pleat_vmm pleat__space_vmm(const pleat__space *space);

/* Address space: `pages` contiguous pages, the lowest place that fits (first fit), or exactly at
 * `at`. PLEAT_E_LIMIT when the window has no room, PLEAT_E_STATE when the place is taken. */
PLEAT_NODISCARD pleat_result pleat__space_take(pleat__space *space, uint64_t pages, uint64_t *page);
PLEAT_NODISCARD pleat_result pleat__space_take_at(pleat__space *space, uint64_t page,
                                                  uint64_t pages);
/* Of these pages nobody has asked yet, and they are about to be mapped: what the space notes of
 * them gets its host memory now. (Asked first and noted then it has two faults in the place of
 * one.) */
void pleat__space_expect(pleat__space *space, uint64_t page, uint64_t pages);
/* Cannot fail. pre: nothing is mapped in it. A part of what was taken may be given. Quarantined
 * pages are given like any other; the space keeps them until heal finds them unmapped. */
void pleat__space_give(pleat__space *space, uint64_t page, uint64_t pages);

/* A chunk of `pages` pages: from the pool when one of exactly that size is there, else created; for
 * that, pooled chunks of other sizes are released when budget or device are short.
 * PLEAT_E_BUDGET over the cap, PLEAT_E_OUT_OF_MEMORY from the device. */
PLEAT_NODISCARD pleat_result pleat__space_chunk_get(pleat__space *space, uint32_t pages,
                                                    pleat__chunk **out);
/* A chunk of `pages` pages that has no memory yet: it rests until it is woken. */
PLEAT_NODISCARD pleat_result pleat__space_chunk_promise(pleat__space *space, uint32_t pages,
                                                        pleat__chunk **out);
/* Puts a chunk that is mapped nowhere (quarantined places aside) into the pool. Cannot fail. */
void pleat__space_chunk_put(pleat__space *space, pleat__chunk *chunk);
/* A chunk of `pages` pages over memory that another process exported; `fd` stays open. It is used
 * like any other, counts as that process's bytes, and is released when it is put. */
PLEAT_NODISCARD pleat_result pleat__space_import(pleat__space *space, int fd, uint32_t pages,
                                                 pleat__chunk **out);
/* A descriptor of a chunk for another process; the caller closes it. pre: the space's create_flags
 * have PLEAT_CREATE_SHAREABLE, or the chunk was imported. */
PLEAT_NODISCARD pleat_result pleat__space_export(pleat__space *space, const pleat__chunk *chunk,
                                                 int *fd);
/* Releases pooled chunks, the oldest first, until at most `keep_bytes` of them are left; returns
 * the bytes given back to the device. A failed release is counted, and its chunk stays pooled. */
uint64_t pleat__space_trim(pleat__space *space, uint64_t keep_bytes);

/* Maps chunks one behind the other from `page` on, each whole, and grants access with one call for
 * neighbours. One that rests is mapped there when it is woken. pre: the pages are taken and
 * unmapped. */
PLEAT_NODISCARD pleat_result pleat__space_map(pleat__space *space, uint64_t page,
                                              pleat__chunk *const *chunks, uint64_t count);
/* Unmaps `pages` pages from `page` on: whole chunks, neighbours with one verb. PLEAT_E_STATE: a
 * part of a chunk, and nothing is changed; or places were lost to verbs that failed, and all others
 * are unmapped. pre: the GPU uses none of it. */
PLEAT_NODISCARD pleat_result pleat__space_unmap(pleat__space *space, uint64_t page, uint64_t pages);
/* Tries again to unmap what is quarantined, as trim does, where no other thread does, and not while
 * chunks are laid to rest or woken; returns the pages that stay so. */
uint64_t pleat__space_heal(pleat__space *space);
/* The chunk mapped at a page, and which of its pages that is; NULL when none is. */
pleat__chunk *pleat__space_chunk_at(const pleat__space *space, uint64_t page,
                                    uint32_t *page_in_chunk);
/* The first run of pages at or behind *page, where it is then, of chunks that are not another
 * process's; how many; 0: none. */
uint64_t pleat__space_next_own(pleat__space *space, uint64_t *page);

/* What is done while chunks are laid to rest or woken: part by part, in the order of their places.
 */
typedef struct pleat__space_parts {
    uint64_t bytes; /* of a part at most, unless it is one chunk */
    /* Of all places below `end`: before they are unmapped, or when they are there again. What fails
     * here fails the whole. */
    pleat_result (*reach)(void *context, pleat_va end);
    /* A wake fails, and what of it is there again is about to be unmapped: waits for what was begun
     * there. */
    void (*stop)(void *context);
    void *context;
} pleat__space_parts;

/* Lays chunks to rest: they are unmapped wherever they are mapped and their memory goes back to the
 * device, but their places stay theirs. All or none, and until the last place is unmapped nothing
 * of what they hold is lost; where a verb fails twice over, so that a place is lost, its chunk
 * rests for good, at all its places (`rests` says so). `parts` may be NULL. Further maps and unmaps
 * of a chunk that rests are a matter of tables. PLEAT_E_DRIVER also: a place of one is quarantined.
 * pre: each once, mapped, not imported, and awake; the GPU uses none of it by the time it is
 * reached. */
PLEAT_NODISCARD pleat_result pleat__space_rest(pleat__space *space, pleat__chunk *const *chunks,
                                               uint64_t count, const pleat__space_parts *parts);
/* Whether a chunk may be laid to rest, as far as it is the space's to say; NULL may not. */
bool pleat__space_can_rest(pleat__space *space, const pleat__chunk *chunk);
/* Makes the memory that chunks will wake with, of the device or of the host, so that those that are
 * laid to rest now can be woken whatever others take, and woken again where that fails. All or
 * none; PLEAT_E_UNSUPPORTED: the device has no memory of the host's. */
PLEAT_NODISCARD pleat_result pleat__space_prepare(pleat__space *space, pleat__chunk *const *chunks,
                                                  uint64_t count, bool on_host);
/* Gives back what they did not wake with; what they have is theirs. */
void pleat__space_unprepare(pleat__space *space, pleat__chunk *const *chunks, uint64_t count);
/* Wakes chunks: new memory at the same places. All or none. `parts` may be NULL. PLEAT_E_BUDGET,
 * PLEAT_E_OUT_OF_MEMORY; PLEAT_E_DRIVER also: one rests for good. pre: each once, and at rest. */
PLEAT_NODISCARD pleat_result pleat__space_wake(pleat__space *space, pleat__chunk *const *chunks,
                                               uint64_t count, const pleat__space_parts *parts);

/* Two chunks at rest, each with one place, `next`'s right behind `chunk`'s: they become one, which
 * takes one verb where they took two, and `next` is gone. false: they are not such. */
bool pleat__space_join(pleat__space *space, pleat__chunk *chunk, pleat__chunk *next);
/* A chunk at rest keeps its first `pages`; *rest is a chunk of the others, at rest behind it at
 * each of its places. With several places they are found by a walk. PLEAT_E_STATE: it is torn, or
 * the memory that it wakes with is made. pre: 0 < pages < chunk->pages. */
PLEAT_NODISCARD pleat_result pleat__space_split(pleat__space *space, pleat__chunk *chunk,
                                                uint32_t pages, pleat__chunk **rest);

/* At how many places a chunk is mapped now. */
uint32_t pleat__space_maps(pleat__space *space, const pleat__chunk *chunk);

/* Re-derives all totals; prints what disagrees. */
bool pleat__space_audit(pleat__space *space);
/* The same after a call, where the window is not too large to walk it each time: a large one is
 * walked after one call in several. */
bool pleat__space_audit_at_times(pleat__space *space);

#endif
