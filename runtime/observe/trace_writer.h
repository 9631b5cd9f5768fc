/*
 * trace_writer.h: a running job's requests as a trace, so that they can be planned. See
 * trace_writer.c.
 *
 * THREADS  None of its own: the runtime holds its lock around every call but pleat__record_copy.
 */
#ifndef PLEAT_RUNTIME_OBSERVE_TRACE_WRITER_H
#define PLEAT_RUNTIME_OBSERVE_TRACE_WRITER_H

#include <pleat/runtime.h>
#include <pleat/trace.h>
#include <runtime/base/address_map.h>
#include <runtime/base/gate.h>
#include <stdbool.h>

/* What a phase that is none is called: in a recording an empty label says nothing. */
#define PLEAT__NO_PHASE    "-"
#define PLEAT__PHASE_BEGIN "phase="
#define PLEAT__PHASE_BYTES 257u /* of a label, with the 0 at its end (D199) */

/* A phase's label, "phase=NAME", whose length is returned; "" leaves a phase. Of the name 250 bytes
 * are kept, and '?' stands for what is no line of UTF-8, for a ';', which would begin another part
 * of the label, and for a name that is that of no phase. */
size_t pleat__phase_label(const char *name, char label[PLEAT__PHASE_BYTES]);

typedef struct pleat__record {
    pleat_trace *trace; /* NULL: nothing is recorded */
    uint64_t number;    /* of the recordings that were begun: which one this is */
    pleat__arena *arena;
    pleat__address_map live; /* address -> request and stream */
    bool complete;
    pleat_error failed; /* why recording ended early */
    bool has_stream;
    uint8_t device;
    uint16_t last_index; /* of last_stream in the trace */
    pleat_stream last_stream;
    uint32_t label; /* of the phase */
    uint32_t marks, most_marks;
    uint64_t most_events;
    uint64_t bytes, iteration_bytes; /* asked for since the last mark; between the last two */
    uint32_t alike; /* iterations in a row that asked for as many bytes as the one before */
} pleat__record;

PLEAT_NODISCARD pleat_result pleat__record_begin(pleat__record *record, pleat__arena *arena,
                                                 int device, uint64_t device_bytes,
                                                 const pleat_record_options *options);
/* Nothing recorded is allowed. */
void pleat__record_release(pleat__record *record);

/* Takes the gate's lock again and again, each time for PLEAT__COPIED_AT_ONCE events or names of
 * phases and streams (D199); without it the rest is done. So whoever waits for the lock waits for
 * microseconds while events are copied, however many there are, and for longer while names are:
 * they are hashed under it, and all of them where the copy's index grows. */
#define PLEAT__COPIED_AT_ONCE 512u
PLEAT_NODISCARD pleat_result pleat__record_copy(const pleat__record *record, pleat__gate *gate,
                                                pleat_trace **out);

/* What happens, where it is recorded; nothing is lost to the job when host memory for it is:
 * recording ends. */
void pleat__record_alloc(pleat__record *record, pleat_va address, uint64_t bytes,
                         pleat_stream stream);
void pleat__record_free(pleat__record *record, pleat_va address, pleat_event_kind kind);
void pleat__record_mark(pleat__record *record);
/* From here on events have that label. */
void pleat__record_phase(pleat__record *record, const char *label, size_t length);

/* Whether what was recorded shows a plan all there is: the whole recording, or, of a job whose last
 * iterations asked for as many bytes each, some of it (docs/decisions.md, D291). */
bool pleat__record_is_enough(const pleat__record *record);

static inline bool pleat__records(const pleat__record *record)
{
    return record->trace != NULL && !record->complete;
}

#endif
