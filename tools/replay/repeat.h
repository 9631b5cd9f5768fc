/*
 * repeat.h: one iteration of a trace over and over, to see whether anything grows.
 */
#ifndef PLEAT_TOOLS_REPLAY_REPEAT_H
#define PLEAT_TOOLS_REPLAY_REPEAT_H

#include <internal/arena.h>
#include <pleat/runtime.h>
#include <stdbool.h>

/* After so many repeats things must have come to rest. */
#define REPLAY_REPEATS_EARLY 10u

typedef struct replay_iteration {
    const pleat_trace *trace;
    uint32_t device;
    uint16_t busiest;    /* stream (plan/model/requests.h) */
    uint32_t begin, end; /* positions among the device's allocations and frees */
    pleat_va *addresses; /* by request; 0: not live */
    bool tells;          /* each repeat begins with a mark */
} replay_iteration;

typedef struct replay_repeats {
    uint32_t count;          /* 0: none were asked for */
    pleat_stats early, late; /* after REPLAY_REPEATS_EARLY of them, and after all */
    bool unchanged; /* memory, maps, quarantined pages and Pleat's own metadata are the same */
} replay_repeats;

/* Runs the iteration `count` times. What it leaves live is freed where the recording frees its like
 * of the iteration before; where there is none, just before the next iteration allocates it. */
PLEAT_NODISCARD pleat_result replay_repeat(pleat_runtime *runtime,
                                           const replay_iteration *iteration, uint32_t count,
                                           replay_repeats *repeats);

/* A job that changes between two shapes: visits of REPLAY_VISIT iterations of either, in turn. */
#define REPLAY_VISIT  50u
#define REPLAY_VISITS 8u

typedef struct replay_visits {
    uint32_t count;                      /* 0: none were asked for */
    double planned_share[REPLAY_VISITS]; /* of a visit's requests, in slots or lanes */
    uint64_t driver_calls[REPLAY_VISITS];
    uint64_t peak_physical_bytes[REPLAY_VISITS]; /* since the visits began */
} replay_visits;

/* Both iterations are of one device's runtime; what is left of one goes before the other comes. */
PLEAT_NODISCARD pleat_result replay_alternate(pleat_runtime *runtime,
                                              const replay_iteration shapes[2],
                                              replay_visits *visits);

#endif
