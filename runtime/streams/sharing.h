/*
 * sharing.h: whether it costs too much that streams share memory.
 *
 * What a stream takes over from another lies in pieces, and each large request is a new view of
 * them. Requests may wait for such views for 1/16 of the time; what they wait beyond that adds up
 * over the iterations, and what they do not wait is taken off. At a quarter of a second it costs
 * too much. Time for views of a stream's own memory is no reason: keeping streams apart would not
 * save it (D502, D504 in docs/decisions.md).
 */
#ifndef PLEAT_RUNTIME_STREAMS_SHARING_H
#define PLEAT_RUNTIME_STREAMS_SHARING_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pleat__sharing {
    uint64_t waited_ns; /* that requests of this iteration have waited for views to be mapped for
                           which streams shared */
    uint64_t cost_ns;   /* of those before it, beyond its part of the time */
    uint64_t ended_ns;  /* when the last one ended */
} pleat__sharing;

/* An iteration has ended, at `now_ns`. Whether sharing has cost too much. */
bool pleat__sharing_end_iteration(pleat__sharing *sharing, uint64_t now_ns);

#endif
