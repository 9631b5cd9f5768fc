/*
 * overflow_streams.h: the streams after the first 62, which share one zone (heap.h), and for which
 * streams each of them must wait.
 *
 * Memory given to one of these streams may have been another one's, so the stream must come behind
 * the other's work. Waiting for all of them would cost more the more there are. Two waits are
 * enough:
 *
 * HEAD   The stream that last received memory has already waited for every earlier free. An event
 *        is recorded there; waiting for that event is enough.
 * FREED  The streams of which something was freed since then, each with an event at the point that
 *        it had reached. The next head waits for these as well.
 *
 * Both events are recorded when the point is reached, not when they are wanted: by then the stream
 * may be capturing a graph, and may not be asked. What is freed on a stream that captures without
 * the runtime's knowledge has no event; it stays in use until the stream has one. Each stream has a
 * list of those, so that one that refuses is asked once, however much of it was freed.
 *
 * A stream that owns no allocation is forgotten once it was waited for. stream_order.c issues the
 * waits. Room and events are made before a request, so that a free cannot fail.
 */
#ifndef PLEAT_RUNTIME_MEMORY_OVERFLOW_STREAMS_H
#define PLEAT_RUNTIME_MEMORY_OVERFLOW_STREAMS_H

#include <runtime/base/address_map.h>
#include <runtime/base/gate.h>

typedef struct pleat__sharer {
    pleat_stream stream;
    pleat_event done; /* what was freed of it, it had used until there */
    uint32_t live;    /* allocations, and requests on their way */
    bool freed;       /* it is in the list of those */
    bool fenced;      /* `done` is; else that is before what it captures, or where that ended */
    struct pleat__sharer *next;
    pleat_va *unfenced; /* freed, and in use until the stream has an event; room for all `live` */
    size_t unfenced_count, unfenced_capacity;
    struct pleat__sharer *next_unfenced;
} pleat__sharer;

typedef struct pleat__overflow {
    const pleat__gate *gate;
    pleat__address_map sharers; /* by stream; made when the first one comes */
    pleat__address_map owners;  /* by address, until it is freed */
    pleat__sharer *freed;
    pleat__sharer *unfenced; /* those that have any */
    pleat_stream head;       /* one of them, or another stream that took memory over from them */
    pleat_event over;        /* on it: behind all that had been freed */
    bool has_head;
    bool apart; /* nobody could be made to wait for all that was freed, when that was last tried */
} pleat__overflow;

void pleat__overflow_init(pleat__overflow *overflow, const pleat__gate *gate);
void pleat__overflow_release(pleat__overflow *overflow);

/* A request of a stream comes: either of the next two follows. PLEAT_E_INVALID:
 * PLEAT_STREAM_UNKNOWN. */
PLEAT_NODISCARD pleat_result pleat__overflow_join(pleat__overflow *overflow, pleat_stream stream);
/* It was served there; or it was not. */
void pleat__overflow_placed(pleat__overflow *overflow, pleat_stream stream, pleat_va address);
void pleat__overflow_leave(pleat__overflow *overflow, pleat_stream stream);
/* It is freed: others may have it, behind its stream's point. false: that cannot be fenced, and it
 * stays in use until it can. pre: it was placed, and not freed since */
PLEAT_NODISCARD bool pleat__overflow_give(pleat__overflow *overflow, pleat_va address);
/* Calls `give` for all that was freed and can be fenced now. */
void pleat__overflow_give_unfenced(pleat__overflow *overflow,
                                   void (*give)(void *context, pleat_va address), void *context);
/* Whether what was placed there was freed, and stays in use. */
bool pleat__overflow_is_unfenced(const pleat__overflow *overflow, pleat_va address);
/* pre: it was placed, and not freed since */
pleat_stream pleat__overflow_owner(const pleat__overflow *overflow, pleat_va address);
/* The stream where it has joined, else one that has. pre: there is one */
pleat_stream pleat__overflow_joined(const pleat__overflow *overflow, pleat_stream stream);
/* What to wait for where it is one of those that freed. */
PLEAT_NODISCARD pleat_result pleat__overflow_point(const pleat__overflow *overflow,
                                                   pleat__sharer *sharer, pleat_event *point);
/* Memory came to a stream that has joined, behind work that others have to wait for too. */
PLEAT_NODISCARD pleat_result pleat__overflow_touch(pleat__overflow *overflow, pleat_stream stream);
/* All that have something allocated, as far as they can be fenced. */
void pleat__overflow_touch_all(pleat__overflow *overflow);
/* A stream, any, waits for the head and for all that freed: it is the head. */
PLEAT_NODISCARD pleat_result pleat__overflow_advance(pleat__overflow *overflow,
                                                     pleat_stream stream);

#endif
