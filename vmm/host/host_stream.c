/*
 * host_stream.c: streams, events and the clock of the host backend. No work but copies is ever
 * queued here, so a stream is only a count of recorded points and of passed ones; a test holds a
 * stream and lets it pass points by hand. See host.h.
 */
#include "host_internal.h"

#include <internal/clock.h>
#include <internal/error.h>
#include <internal/thread.h>

static pleat__host_event *find_event(pleat__host *host, pleat_event event)
{
    uint64_t index = (event & UINT32_MAX) - 1;
    if (event == 0 || index >= host->event_count)
        return NULL;
    pleat__host_event *found = &host->events[index];
    return found->used && found->generation == event >> 32 ? found : NULL;
}

static pleat_result unknown_event(const char *verb, pleat_event event)
{
    return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is no event", verb, (unsigned long long)event);
}

uint32_t pleat__host_stream_index(pleat__host *host, pleat_stream id)
{
    pleat__host_stream *ended = NULL;
    for (size_t s = 0; s < host->stream_count; s++) {
        pleat__host_stream *stream = &host->streams[s];
        if (stream->id == id && !stream->ended)
            return (uint32_t)s + 1;
        if (stream->ended && stream->passed == stream->recorded && stream->wait_count == 0)
            ended = stream;
    }
    /* Its points go on from there, so that events of the one before stay passed. */
    if (ended != NULL) {
        ended->id = id;
        ended->ended = false;
        return (uint32_t)(ended - host->streams) + 1;
    }
    if (pleat__arena_grow(host->arena, &host->streams, &host->stream_capacity, host->stream_count,
                          sizeof *host->streams) != PLEAT_OK)
        return 0;
    host->streams[host->stream_count] = (pleat__host_stream){.id = id};
    return (uint32_t)++host->stream_count;
}

pleat_result pleat__host_no_stream(void)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a stream's record");
}

static bool is_passed(const pleat__host *host, const pleat__host_event *event)
{
    return event->point == 0 || host->streams[event->stream - 1].passed >= event->point;
}

static bool is_over(const pleat__host *host, const pleat__host_wait *wait)
{
    return host->streams[wait->stream - 1].passed >= wait->point;
}

/* Drops the waits of a stream that are over, once they are half of all: so each of the others is
 * moved a few times at most. */
static void drop_waits(const pleat__host *host, pleat__host_stream *stream)
{
    while (stream->wait_first < stream->wait_count &&
           is_over(host, &stream->waits[stream->wait_first]))
        stream->wait_first++;
    if (stream->wait_first * 2 < stream->wait_count)
        return;
    stream->wait_count -= stream->wait_first;
    for (size_t w = 0; w < stream->wait_count; w++)
        stream->waits[w] = stream->waits[w + stream->wait_first];
    stream->wait_first = 0;
}

/* Whether a stream passed further points. */
static bool settle_one(const pleat__host *host, pleat__host_stream *stream)
{
    drop_waits(host, stream);
    uint64_t reach = stream->recorded;
    if (stream->held && stream->allowed < reach)
        reach = stream->allowed;
    if (stream->wait_count > 0 && stream->waits[stream->wait_first].after < reach)
        reach = stream->waits[stream->wait_first].after;
    bool further = reach > stream->passed;
    if (further)
        stream->passed = reach;
    return further;
}

/* Lets every stream pass what it may; one may be waiting for another. */
static void settle(pleat__host *host)
{
    bool further = false, again;
    do {
        again = false;
        for (size_t s = 0; s < host->stream_count; s++)
            again |= settle_one(host, &host->streams[s]);
        further |= again;
    } while (again);
    if (further)
        pthread_cond_broadcast(&host->passed);
}

pleat_result pleat__host_event_create(void *self, int device, pleat_event *event)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    uint32_t slot = host->free_event;
    if (slot != 0) {
        host->free_event = host->events[slot - 1].next_free;
    } else {
        result = pleat__arena_grow(host->arena, &host->events, &host->event_capacity,
                                   host->event_count, sizeof *host->events);
        if (result == PLEAT_OK) {
            host->events[host->event_count] = (pleat__host_event){0};
            slot = (uint32_t)++host->event_count;
        }
    }
    if (result == PLEAT_OK) {
        pleat__host_event *made = &host->events[slot - 1];
        *made = (pleat__host_event){.used = true, .generation = made->generation + 1};
        host->live_events++;
        *event = (uint64_t)made->generation << 32 | slot;
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

pleat_result pleat__host_event_destroy(void *self, pleat_event event)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    pleat__host_event *found = find_event(host, event);
    if (found == NULL) {
        result = unknown_event("event_destroy", event);
    } else {
        found->used = false;
        found->next_free = host->free_event;
        host->free_event = (uint32_t)(found - host->events) + 1;
        host->live_events--;
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

pleat_result pleat__host_event_record(void *self, pleat_event event, pleat_stream stream)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    pleat__host_event *found = find_event(host, event);
    uint32_t index = found == NULL ? 0 : pleat__host_stream_index(host, stream);
    if (found == NULL) {
        result = unknown_event("event_record", event);
    } else if (index == 0) {
        result = pleat__host_no_stream();
    } else {
        found->stream = index;
        found->point = ++host->streams[index - 1].recorded;
        settle(host);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

/* Somebody waits for an event: a stream that trails passes it. */
static void let_trail(pleat__host *host, const pleat__host_event *event)
{
    if (event == NULL || event->point == 0 || !host->streams[event->stream - 1].trails)
        return;
    host->streams[event->stream - 1].allowed = event->point;
    settle(host);
}

/* A thread of Pleat's own asks again and again: it waits. */
pleat_result pleat__host_event_query(void *self, pleat_event event)
{
    pleat__host *host = self;
    pthread_mutex_lock(&host->lock);
    const pleat__host_event *found = find_event(host, event);
    if (pleat__on_own_thread())
        let_trail(host, found);
    pleat_result result = PLEAT_OK;
    if (found == NULL)
        result = unknown_event("event_query", event);
    else if (!is_passed(host, found))
        result = PLEAT_E_NOT_READY;
    else if (found->point != 0)
        pleat__host_copies_pass(host, found->stream, found->point);
    pthread_mutex_unlock(&host->lock);
    return result;
}

pleat_result pleat__host_event_wait(void *self, pleat_event event)
{
    pleat__host *host = self;
    pthread_mutex_lock(&host->lock);
    const pleat__host_event *found = find_event(host, event);
    pleat_result result = found != NULL ? PLEAT_OK : unknown_event("event_wait", event);
    let_trail(host, found);
    if (found != NULL) {
        const pleat__host_event then = *found; /* a later record is another point */
        while (!is_passed(host, &then))
            pthread_cond_wait(&host->passed, &host->lock);
        if (then.point != 0)
            pleat__host_copies_pass(host, then.stream, then.point);
    }
    pthread_mutex_unlock(&host->lock);
    return result;
}

static pleat_result add_wait(pleat__host *host, pleat_stream stream, const pleat__host_event *event)
{
    uint32_t index = pleat__host_stream_index(host, stream);
    if (index == 0)
        return pleat__host_no_stream();
    pleat__host_stream *waiting = &host->streams[index - 1];
    /* Its own order says so already. */
    if (event->stream == index || host->streams[event->stream - 1].trails)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(host->arena, &waiting->waits, &waiting->wait_capacity,
                                waiting->wait_count, sizeof *waiting->waits));
    waiting->waits[waiting->wait_count++] =
        (pleat__host_wait){waiting->recorded, event->stream, event->point};
    return PLEAT_OK;
}

pleat_result pleat__host_stream_wait(void *self, pleat_stream stream, pleat_event event)
{
    pleat__host *host = self;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&host->lock);
    const pleat__host_event *found = find_event(host, event);
    if (found == NULL)
        result = unknown_event("stream_wait", event);
    else if (!is_passed(host, found))
        result = add_wait(host, stream, found);
    pthread_mutex_unlock(&host->lock);
    return result;
}

uint64_t pleat__host_clock_ns(void *self)
{
    pleat__host *host = self;
    pthread_mutex_lock(&host->lock);
    bool by_hand = host->clock_by_hand;
    uint64_t ns = host->clock + (host->modelled ? (uint64_t)host->modelled_ns : 0);
    pthread_mutex_unlock(&host->lock);
    if (by_hand)
        return ns;
    return pleat__now_ns();
}

/* ---- streams of the backend's own ---- */

#define FIRST_MADE (UINT64_C(1) << 48) /* no program's stream has such a number (D480) */

pleat_result pleat__host_stream_create(void *self, int device, pleat_stream *stream)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    *stream = FIRST_MADE + host->streams_made++;
    host->live_streams++;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}

pleat_result pleat__host_stream_destroy(void *self, int device, pleat_stream stream)
{
    pleat__host *host = self;
    PLEAT_TRY(pleat__vmm_check_device(host->device_count, device));
    pthread_mutex_lock(&host->lock);
    bool made = stream >= FIRST_MADE && stream - FIRST_MADE < host->streams_made;
    host->live_streams -= made;
    for (size_t s = 0; made && s < host->stream_count; s++)
        if (host->streams[s].id == stream && !host->streams[s].ended) {
            pleat__host_copies_end(host, (uint32_t)s + 1);
            host->streams[s].ended = true;
            host->streams[s].held = host->streams[s].trails = false;
        }
    settle(host);
    pthread_mutex_unlock(&host->lock);
    return made ? PLEAT_OK
                : pleat__fail(PLEAT_E_INVALID, "stream_destroy: 0x%llx was not made here",
                              (unsigned long long)stream);
}

/* ---- by hand ---- */

pleat_result pleat__host_direct(const pleat_vmm *vmm, pleat_stream stream, bool held, bool trails,
                                uint64_t points)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    uint32_t index = pleat__host_stream_index(host, stream);
    if (index != 0) {
        pleat__host_stream *found = &host->streams[index - 1];
        if (!found->held)
            found->allowed = found->recorded;
        found->held = held;
        found->trails = trails;
        found->allowed += points;
        settle(host);
    }
    pthread_mutex_unlock(&host->lock);
    return index != 0 ? PLEAT_OK : pleat__host_no_stream();
}

pleat_result pleat__host_stream_trail(const pleat_vmm *vmm, pleat_stream stream)
{
    return pleat__host_direct(vmm, stream, true, true, 0);
}

pleat_result pleat__host_stream_release(const pleat_vmm *vmm, pleat_stream stream)
{
    return pleat__host_direct(vmm, stream, false, false, 0);
}

pleat_result pleat__host_clock_set(const pleat_vmm *vmm, uint64_t ns)
{
    pleat__host *host = pleat__host_of(vmm);
    if (host == NULL)
        return PLEAT_E_INVALID;
    pthread_mutex_lock(&host->lock);
    host->clock_by_hand = true;
    host->clock = ns;
    pthread_mutex_unlock(&host->lock);
    return PLEAT_OK;
}
