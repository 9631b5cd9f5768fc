/*
 * script.h: a trace made ready for replays: where its iterations begin, and what they take.
 */
#ifndef PLEAT_TOOLS_REPLAY_SCRIPT_H
#define PLEAT_TOOLS_REPLAY_SCRIPT_H

#include <tools/replay/canary.h>

#include <internal/arena.h>
#include <pleat/trace.h>
#include <stdbool.h>

/* The trace made ready: where iterations begin, and what is live at most. */
typedef struct replay_script {
    const pleat_trace *trace;
    uint32_t device;
    uint16_t busiest; /* stream (plan/model/requests.h) */
    pleat__arena *arena;
    uint32_t *marks; /* positions among the device's allocations and frees */
    uint32_t mark_count;
    bool marked; /* they come from the program, not from the sequence of requests */
    canary_job job;
} replay_script;

/* Everything lies in an arena of its own, which the caller destroys. */
PLEAT_NODISCARD pleat_result replay_script_write(const pleat_trace *trace, replay_script *s);
/* Whether an event begins or ends a life on the script's device. */
bool replay_is_ours(const replay_script *s, const pleat_trace_event *event);
/* Whether it is either event of a free there; of the two only one ends the life. */
bool replay_is_free(const replay_script *s, const pleat_trace_event *event);
/* 1 where there are no marks. */
uint32_t replay_whole_iterations(const replay_script *s);
/* The mark from which on the steady part counts. */
uint32_t replay_steady_mark(const replay_script *s);

#endif
