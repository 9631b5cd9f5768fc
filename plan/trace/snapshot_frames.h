/*
 * snapshot_frames.h: stack frames of a snapshot's events as texts: where in the program a tensor
 * was allocated.
 *
 * A text has a line a frame, innermost first, "function (file:line)", at most 12 of them and 2 KiB:
 * Python's frames where there are any, since those are the user's; else whatever there is. Files
 * of installed packages are named from the package on, others by their last three parts. Of a
 * recording at most 65,536 places are kept, what comes later has none.
 */
#ifndef PLEAT_PLAN_TRACE_SNAPSHOT_FRAMES_H
#define PLEAT_PLAN_TRACE_SNAPSHOT_FRAMES_H

#include <plan/trace/pickle.h>
#include <plan/trace/snapshot.h>

/* A list of frames that was read before: torch gives events of one place the same list. */
typedef struct pleat__frames_known {
    const pleat__pickle_node *list;
    uint32_t site;
} pleat__frames_known;

typedef struct pleat__frames {
    pleat__snapshot *recording;
    uint8_t name, file, line; /* the words of a frame's keys */
    size_t bytes;             /* of the pickle */
    pleat__frames_known *known;
    uint32_t places; /* of `known`, a power of two */
    uint32_t known_count;
} pleat__frames;

/* The index in recording->sites of an event's frames, which may be NULL or anything at all; 0: it
 * has none. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__frames_site(pleat__frames *frames,
                                                const pleat__pickle_value *value, uint32_t *site);

#endif
