/*
 * refusal.h: the last request that the recorded allocator refused (torch's event "oom"), and
 * whether others would have served it there.
 *
 * ROOM  What an allocator may take: what is asked for; else what the recorded one held and what was
 *       free on the device beside it; else, where the recording has no segments, the device's
 *       memory.
 */
#ifndef PLEAT_TOOLS_REFUSAL_H
#define PLEAT_TOOLS_REFUSAL_H

#include <tools/json.h>

#include <plan/trace/import.h>

#define REFUSAL_POLICIES 3

typedef struct refusal_policy {
    const char *name;
    bool fits;
    uint64_t bytes; /* that it takes; 0: more than a replay has */
} refusal_policy;

typedef struct refusal {
    pleat__refusal recorded; /* count 0: none, and nothing else is set */
    bool last;               /* no request comes behind it */
    uint64_t live_bytes;     /* with it, rounded to 512 */
    uint64_t held_bytes;     /* by the recorded allocator; 0: not known */
    uint64_t room_bytes;
    refusal_policy policies[REFUSAL_POLICIES];
} refusal;

/* Runs what came before it, and it, under each policy. `device_bytes` 0: as recorded. */
PLEAT_NODISCARD pleat_result refusal_find(const pleat_trace *trace, uint64_t device_bytes,
                                          refusal *out);
/* What the recording says of it, one line; nothing where there is none. */
void refusal_line(const pleat__refusal *recorded, bool last);
bool refusal_is_last(const pleat_trace *trace);
/* A part of an explanation; nothing where there is none. */
void refusal_text(const refusal *refusal);
/* A member "refusal"; nothing where there is none. */
void refusal_json(json_writer *json, const refusal *refusal);

#endif
