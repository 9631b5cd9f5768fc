/*
 * waiting_frees.h: a heap wants memory back that was freed and waits for other streams: the stream
 * that it was allocated on is made to wait for them, and the free is done (pending_free.h).
 *
 * BUSIEST  Never the busiest stream, which has the most requests: it does the job's own work, and
 *          made to wait for a copy of what it just made it would lose what the copy was to overlap
 *          with. The others fetch ahead for it.
 * FREES    They come back while the heap asks: through the runtime and its policy into
 *          pleat__heap_give, which leaves notes. The sets are to be brought up to date after.
 */
#ifndef PLEAT_RUNTIME_MEMORY_WAITING_FREES_H
#define PLEAT_RUNTIME_MEMORY_WAITING_FREES_H

#include <runtime/memory/chunk_set.h>
#include <runtime/memory/place_map.h>
#include <runtime/streams/pending_free.h>

typedef struct pleat__waiting_frees {
    pleat__heap *heap;
    const pleat__place_map *places; /* where what waits lies */
    pleat__pending *pending;
    pleat__chunk_set wanted; /* of the place that frees are ordered for */
} pleat__waiting_frees;

/* From then on the heap asks for what waits before it grows. All outlive it. */
void pleat__waiting_init(pleat__waiting_frees *waiting, pleat__heap *heap,
                         const pleat__place_map *places, pleat__pending *pending);
void pleat__waiting_release(pleat__waiting_frees *waiting);

/* The oldest frees of a stream that wait, of about so many granules; whether any came back. Streams
 * that share an index are not told apart: what they free is waited for. `waiting` may be NULL. */
bool pleat__waiting_order(pleat__waiting_frees *waiting, uint16_t stream, uint32_t granules);
/* Those of all that lies on the chunks of a place; whether any came back. */
bool pleat__waiting_order_place(pleat__waiting_frees *waiting, const pleat__place *place);

#endif
