/*
 * snapshot.h: a snapshot's events in one flat form, between its reader (snapshot.c) and what makes
 * a trace of them (snapshot_replay.c).
 */
#ifndef PLEAT_PLAN_TRACE_SNAPSHOT_H
#define PLEAT_PLAN_TRACE_SNAPSHOT_H

#include <internal/arena.h>
#include <plan/trace/import.h>

typedef enum pleat__action {
    PLEAT__ACTION_NONE, /* passed over */
    PLEAT__ACTION_ALLOC,
    PLEAT__ACTION_FREE, /* requested and completed at once */
    PLEAT__ACTION_FREE_REQUESTED,
    PLEAT__ACTION_FREE_COMPLETED,
    PLEAT__ACTION_SEGMENT_ALLOC,
    PLEAT__ACTION_SEGMENT_FREE,
    PLEAT__ACTION_SEGMENT_MAP, /* of expandable segments */
    PLEAT__ACTION_SEGMENT_UNMAP,
    PLEAT__ACTION_ANNOTATE, /* the label is said of what lives at the address */
} pleat__action;

/* An event, or something the final segments say is there. */
typedef struct pleat__entry {
    uint64_t address;
    uint64_t size;
    uint64_t stream; /* value in the trace */
    uint64_t time_us;
    const char *label;
    uint32_t label_length;
    uint32_t site;  /* an ALLOC's, in pleat__snapshot.sites */
    uint8_t action; /* pleat__action */
} pleat__entry;

typedef struct pleat__entries {
    pleat__entry *items;
    size_t count;
    size_t capacity;
} pleat__entries;

typedef struct pleat__site {
    const char *text; /* annotations, then frames */
    uint32_t length;
    uint32_t annotated; /* bytes of the annotations, each with the end of its line */
    uint32_t index;     /* in the trace; 0: not there yet */
} pleat__site;

/* One device's. */
typedef struct pleat__snapshot {
    const char *path; /* for messages */
    pleat__arena *arena;
    int device;
    pleat__entries events; /* in order of time */
    pleat__site *sites;    /* [0] stands for none; NULL while there are no others */
    size_t site_count;
    size_t site_capacity;
    pleat__refusal refusal; /* its event: how many of `events` come before it */
    pleat__entries finals; /* live when the snapshot was taken: ALLOC, SEGMENT_ALLOC, SEGMENT_MAP */
} pleat__snapshot;

/* Appends. PLEAT_E_INPUT when there are more than any recording has. */
PLEAT_NODISCARD pleat_result pleat__entries_add(const pleat__snapshot *recording,
                                                pleat__entries *to, const pleat__entry *added);
PLEAT_NODISCARD pleat_result pleat__sites_add(pleat__snapshot *to, const pleat__site *added,
                                              uint32_t *index);

/* Fills an empty trace. Changes the recording. */
PLEAT_NODISCARD pleat_result pleat__snapshot_replay(pleat__snapshot *recording, pleat_trace *trace);

#endif
