/*
 * ranges.c: memory that may be registered; see pleat/ranges.h.
 *
 * One record a range, in a list: ranges are few, since whoever wants small pieces cuts them up.
 *
 * LOCKS  `turn` is held by whoever issues verbs, so that a peer that is added misses no range that
 *        is being made. `lock` guards the list, and is never held during a verb: who only asks
 *        whose an address is waits for no driver. turn, then lock.
 * UNWIND A range that the driver does not take back whole is kept, out of all others' reach, with
 *        the parts that are left. Where an unmap failed its memory may still be mapped, so neither
 *        addresses nor handle are given back before the end.
 */
#include <pleat/ranges.h>

#include "table.h"

#include <internal/devices.h>
#include <internal/error.h>
#include <internal/process.h>
#include <internal/range.h>
#include <pthread.h>
#include <string.h>

typedef struct range {
    struct range *next;
    pleat_va begin; /* 0: no addresses */
    uint64_t bytes;
    pleat_handle handle; /* 0: none */
    bool mapped;
    uint32_t holds;
    bool given; /* by its owner, while it is held */
    bool gone;  /* found no more: it is being taken apart, or the driver keeps a part of it */
} range;

struct pleat_ranges {
    uint32_t process; /* that made them: pleat__process_now() */
    pthread_mutex_t turn;
    pthread_mutex_t lock;
    pleat_vmm vmm;
    pleat__arena *arena;
    int device;
    uint64_t page_bytes;
    bool is_private; /* the device's memory has no descriptors; guarded by the turn */
    int devices[PLEAT__DEVICES];
    int device_count; /* with access, the own one first; guarded by the turn */
    range *first;
    uint64_t bytes;
};

#define VERB(ranges, name, ...) PLEAT__VMM_VERB((ranges)->vmm, name, __VA_ARGS__)

/* In a child of fork they are the parent's. */
static bool is_here(const pleat_ranges *ranges)
{
    return ranges->process == pleat__process_now();
}

static pleat_result here(const pleat_ranges *ranges)
{
    return is_here(ranges) ? PLEAT_OK : pleat__process_forked("device's ranges");
}

static range *find(pleat_ranges *ranges, pleat_va address)
{
    range *at = ranges->first;
    while (at != NULL && (at->gone || address - at->begin >= at->bytes))
        at = at->next;
    return at;
}

static pleat_result not_found(pleat_va address)
{
    return pleat__fail(PLEAT_E_NOT_FOUND, "%#llx is in no range", (unsigned long long)address);
}

/* ---- beginning and end ---- */

static pleat_result check_device(pleat_ranges *ranges)
{
    int count;
    uint64_t advised;
    PLEAT_TRY(VERB(ranges, device_count, &count));
    PLEAT_TRY(pleat__vmm_check_device(count, ranges->device));
    return VERB(ranges, granularity, ranges->device, &ranges->page_bytes, &advised);
}

pleat_result pleat_ranges_create(pleat_vmm vmm, int device, pleat_ranges **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__process_watch());
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_ranges *ranges = pleat__arena_calloc(arena, 1, sizeof *ranges);
    pleat_result result = PLEAT_OK;
    if (ranges == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a device's ranges");
        goto failed;
    }
    ranges->arena = arena;
    ranges->process = pleat__process_now();
    ranges->device = ranges->devices[0] = device;
    ranges->device_count = 1;
    result = pleat__vmm_complete(vmm, arena, &ranges->vmm);
    if (result == PLEAT_OK)
        result = check_device(ranges);
    if (result != PLEAT_OK)
        goto failed;
    pthread_mutex_init(&ranges->turn, NULL);
    pthread_mutex_init(&ranges->lock, NULL);
    *out = ranges;
    return PLEAT_OK;
failed:
    pleat__arena_destroy(arena);
    return result;
}

/* Gives the parts of a range back, and returns the first failure. `all`: also those that a failed
 * unmap may still use, which the driver then refuses. */
static pleat_result take_apart(pleat_ranges *ranges, range *gone, bool all)
{
    pleat_result result = PLEAT_OK;
    if (gone->mapped)
        result = VERB(ranges, unmap, gone->begin, gone->bytes);
    gone->mapped = gone->mapped && result != PLEAT_OK;
    if (gone->mapped && !all)
        return result;
    pleat_error why = pleat__failure(result);
    result = gone->begin != 0 ? VERB(ranges, free_range, gone->begin, gone->bytes) : PLEAT_OK;
    if (result == PLEAT_OK)
        gone->begin = 0;
    else if (why.result == PLEAT_OK)
        why = pleat__failure(result);
    result = gone->handle != 0 ? VERB(ranges, release, gone->handle) : PLEAT_OK;
    if (result == PLEAT_OK)
        gone->handle = 0;
    else if (why.result == PLEAT_OK)
        why = pleat__failure(result);
    return pleat__fail_again(&why);
}

void pleat_ranges_destroy(pleat_ranges *ranges)
{
    /* A child's copy goes with the child. */
    if (ranges == NULL || !is_here(ranges))
        return;
    for (range *at = ranges->first; at != NULL; at = at->next)
        (void)take_apart(ranges, at, true);
    pthread_mutex_destroy(&ranges->turn);
    pthread_mutex_destroy(&ranges->lock);
    pleat__arena_destroy(ranges->arena);
}

/* ---- making ---- */

/* Shareable where the device can: who registers memory may export it. */
static pleat_result create_handle(pleat_ranges *ranges, range *made)
{
    uint32_t flags = PLEAT_CREATE_RDMA | (ranges->is_private ? 0 : PLEAT_CREATE_SHAREABLE);
    pleat_result result = VERB(ranges, create, ranges->device, made->bytes, flags, &made->handle);
    if (result != PLEAT_E_UNSUPPORTED || ranges->is_private)
        return result;
    ranges->is_private = true;
    return create_handle(ranges, made);
}

/* With the turn; on failure the range has what was made of it. */
static pleat_result make_parts(pleat_ranges *ranges, range *made)
{
    PLEAT_TRY(VERB(ranges, reserve, ranges->device, made->bytes, 0, &made->begin));
    PLEAT_TRY(create_handle(ranges, made));
    PLEAT_TRY(VERB(ranges, map, made->begin, made->bytes, made->handle));
    made->mapped = true;
    return VERB(ranges, set_access, made->begin, made->bytes, ranges->devices,
                ranges->device_count);
}

static void add_range(pleat_ranges *ranges, range *made)
{
    pthread_mutex_lock(&ranges->lock);
    made->next = ranges->first;
    ranges->first = made;
    ranges->bytes += made->bytes;
    pthread_mutex_unlock(&ranges->lock);
}

/* With the turn: what could not be made goes, and the failure stays what pleat_last_error() says.
 */
static pleat_result unmake(pleat_ranges *ranges, range *made, pleat_result result)
{
    pleat_error told = pleat__failure(result);
    if (take_apart(ranges, made, false) == PLEAT_OK) {
        pleat__arena_free(ranges->arena, made);
    } else {
        made->gone = true;
        add_range(ranges, made);
    }
    return pleat__fail_again(&told);
}

pleat_result pleat_range_make(pleat_ranges *ranges, uint64_t bytes, pleat_va *address,
                              uint64_t *size)
{
    uint64_t rounded;
    PLEAT_TRY(here(ranges));
    if (bytes == 0 || !pleat__add(bytes, ranges->page_bytes - 1, &rounded))
        return pleat__fail(PLEAT_E_INVALID, "a range of %llu bytes", (unsigned long long)bytes);
    range *made = pleat__arena_calloc(ranges->arena, 1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a range");
    made->bytes = rounded - rounded % ranges->page_bytes;
    pthread_mutex_lock(&ranges->turn);
    pleat_result result = make_parts(ranges, made);
    if (result == PLEAT_OK) {
        *address = made->begin;
        if (size != NULL)
            *size = made->bytes;
        add_range(ranges, made);
    } else {
        result = unmake(ranges, made, result);
    }
    pthread_mutex_unlock(&ranges->turn);
    return result;
}

/* ---- giving ---- */

static void drop(pleat_ranges *ranges, range *gone)
{
    pthread_mutex_lock(&ranges->lock);
    range **at = &ranges->first;
    while (*at != gone)
        at = &(*at)->next;
    *at = gone->next;
    ranges->bytes -= gone->bytes;
    pthread_mutex_unlock(&ranges->lock);
    pleat__arena_free(ranges->arena, gone);
}

/* With the turn: nobody finds it any more. */
static pleat_result give_range(pleat_ranges *ranges, range *gone)
{
    pleat_result result = take_apart(ranges, gone, false);
    if (result == PLEAT_OK)
        drop(ranges, gone);
    return result;
}

pleat_result pleat_range_give(pleat_ranges *ranges, pleat_va address)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->turn);
    pthread_mutex_lock(&ranges->lock);
    range *found = find(ranges, address);
    bool is_owned = found != NULL && found->begin == address && !found->given;
    bool goes = is_owned && found->holds == 0;
    if (is_owned)
        found->given = true;
    if (goes)
        found->gone = true;
    pthread_mutex_unlock(&ranges->lock);
    pleat_result result = goes       ? give_range(ranges, found)
                          : is_owned ? PLEAT_OK
                                     : not_found(address);
    pthread_mutex_unlock(&ranges->turn);
    return result;
}

pleat_result pleat_range_let_go(pleat_ranges *ranges, pleat_va address)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->turn);
    pthread_mutex_lock(&ranges->lock);
    range *found = find(ranges, address);
    bool is_held = found != NULL && found->holds > 0;
    if (is_held)
        found->holds--;
    bool goes = is_held && found->given && found->holds == 0;
    if (goes)
        found->gone = true;
    pthread_mutex_unlock(&ranges->lock);
    pleat_result result = PLEAT_OK;
    if (goes)
        result = give_range(ranges, found);
    else if (found == NULL)
        result = not_found(address);
    else if (!is_held)
        result = pleat__fail(PLEAT_E_STATE, "nobody holds %#llx", (unsigned long long)address);
    pthread_mutex_unlock(&ranges->turn);
    return result;
}

/* ---- asking ---- */

pleat_result pleat_range_of(pleat_ranges *ranges, pleat_va address, pleat_va *begin,
                            uint64_t *bytes)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->lock);
    const range *found = find(ranges, address);
    if (found != NULL) {
        *begin = found->begin;
        *bytes = found->bytes;
    }
    pthread_mutex_unlock(&ranges->lock);
    return found != NULL ? PLEAT_OK : PLEAT_E_NOT_FOUND;
}

pleat_result pleat_range_hold(pleat_ranges *ranges, pleat_va address)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->lock);
    range *found = find(ranges, address);
    if (found != NULL)
        found->holds++;
    pthread_mutex_unlock(&ranges->lock);
    return found != NULL ? PLEAT_OK : not_found(address);
}

uint64_t pleat_ranges_bytes(pleat_ranges *ranges)
{
    if (!is_here(ranges))
        return 0;
    pthread_mutex_lock(&ranges->lock);
    uint64_t bytes = ranges->bytes;
    pthread_mutex_unlock(&ranges->lock);
    return bytes;
}

/* ---- other processes and devices ---- */

pleat_result pleat_range_export(pleat_ranges *ranges, pleat_va address, int *fd)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->turn);
    pthread_mutex_lock(&ranges->lock);
    const range *found = find(ranges, address);
    pthread_mutex_unlock(&ranges->lock);
    pleat_result result =
        found == NULL ? not_found(address)
        : ranges->is_private
            ? pleat__fail(PLEAT_E_UNSUPPORTED,
                          "device %d has no memory shareable by file descriptors", ranges->device)
            : VERB(ranges, export_handle, found->handle, fd);
    pthread_mutex_unlock(&ranges->turn);
    return result;
}

static bool has_access(const pleat_ranges *ranges, int device)
{
    for (int i = 0; i < ranges->device_count; i++)
        if (ranges->devices[i] == device)
            return true;
    return false;
}

/* Whether the devices can have access, by a range that is made for that and goes. */
static pleat_result try_access(pleat_ranges *ranges)
{
    range *made = pleat__arena_calloc(ranges->arena, 1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a range");
    made->bytes = ranges->page_bytes;
    pleat_result result = make_parts(ranges, made);
    if (result != PLEAT_OK)
        return unmake(ranges, made, result);
    made->gone = true;
    add_range(ranges, made);
    return give_range(ranges, made);
}

/* With the turn, which keeps ranges from coming and going. */
static pleat_result open_to_all(pleat_ranges *ranges)
{
    bool any = false;
    for (range *at = ranges->first; at != NULL; at = at->next)
        if (!at->gone) {
            any = true;
            PLEAT_TRY(VERB(ranges, set_access, at->begin, at->bytes, ranges->devices,
                           ranges->device_count));
        }
    /* A peer that cannot have access would have every later range refused. */
    return any ? PLEAT_OK : try_access(ranges);
}

static pleat_result add_device(pleat_ranges *ranges, int device)
{
    if (ranges->device_count == PLEAT__DEVICES)
        return pleat__fail(PLEAT_E_LIMIT, "device %d: more than %d peers", ranges->device,
                           PLEAT__DEVICES - 1);
    ranges->devices[ranges->device_count++] = device;
    pleat_result result = open_to_all(ranges);
    ranges->device_count -= result != PLEAT_OK;
    return result;
}

pleat_result pleat_ranges_add_peer(pleat_ranges *ranges, int peer)
{
    PLEAT_TRY(here(ranges));
    pthread_mutex_lock(&ranges->turn);
    pleat_result result = has_access(ranges, peer) ? PLEAT_OK : add_device(ranges, peer);
    pthread_mutex_unlock(&ranges->turn);
    return result;
}
