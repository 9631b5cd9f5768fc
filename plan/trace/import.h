/*
 * import.h: whatever can be read as a trace: trace files, torch memory snapshots, lifetime tables;
 * gzipped or not.
 */
#ifndef PLEAT_PLAN_TRACE_IMPORT_H
#define PLEAT_PLAN_TRACE_IMPORT_H

#include <internal/arena.h>
#include <pleat/trace.h>
#include <stdbool.h>

typedef enum pleat__trace_form {
    PLEAT__FORM_TRACE,
    PLEAT__FORM_SNAPSHOT,
    PLEAT__FORM_CSV,
} pleat__trace_form;

/* Text for people: "torch snapshot". */
const char *pleat__trace_form_name(pleat__trace_form form);

#define PLEAT__ANY_DEVICE (-1)

/* Reads a file by what it begins with. `device` chooses from a recording of several devices;
 * PLEAT__ANY_DEVICE is the only one of a snapshot, and all of a trace file. `form` may be NULL.
 * PLEAT_E_INPUT, PLEAT_E_IO, PLEAT_E_ABI. */
PLEAT_NODISCARD pleat_result pleat__trace_import(const char *path, int device,
                                                 pleat__trace_form *form, pleat_trace **out);
/* The same for any device; devices[256] says which a snapshot has, also where it is refused because
 * they are several. */
PLEAT_NODISCARD pleat_result pleat__trace_import_any(const char *path, bool *devices,
                                                     pleat__trace_form *form, pleat_trace **out);

/* The first `count` iterations of a device and what came before them, with the first event behind
 * them. PLEAT_E_INPUT when there are fewer whole ones. */
PLEAT_NODISCARD pleat_result pleat__trace_beginning(const pleat_trace *trace, uint32_t device,
                                                    uint32_t count, pleat_trace **out);
/* The first `events` events of a trace, as a trace of their own. */
PLEAT_NODISCARD pleat_result pleat__trace_copy(const pleat_trace *trace, size_t events,
                                               pleat_trace **out);
/* What of a trace is on one device. PLEAT_E_INPUT: nothing is. */
PLEAT_NODISCARD pleat_result pleat__trace_of_device(const pleat_trace *trace, int device,
                                                    pleat_trace **out);
/* One without events: its labels, sites and streams have the same numbers. */
PLEAT_NODISCARD pleat_result pleat__trace_copy_names(const pleat_trace *trace, pleat_trace **out);
/* Adds to the beginning of such a copy what it lacks, `most` labels, sites and streams at once;
 * PLEAT_E_NOT_READY, without a text: it lacks some still. */
PLEAT_NODISCARD pleat_result pleat__trace_add_names(const pleat_trace *from, size_t most,
                                                    pleat_trace *to);

/* A request that the recorded allocator refused, the last of `count` such; of a snapshot, no trace
 * file has a place for it. */
typedef struct pleat__refusal {
    uint32_t count; /* 0: there is none */
    uint8_t device;
    uint64_t bytes, free_bytes; /* asked for; free on the device */
    uint64_t stream;            /* value */
    size_t event;               /* how many of the trace's events come before it */
} pleat__refusal;

pleat__refusal pleat__trace_refusal(const pleat_trace *trace);
void pleat__trace_set_refusal(pleat_trace *trace, const pleat__refusal *refusal);

/* Events of a trace, at most (D528): some 2 GiB of host memory. A gzipped file of 2 MiB could
 * unfold to a thousand million of them. */
#define PLEAT__TRACE_EVENTS_MOST (32u << 20)

/* The forms themselves, from bytes; `path` is for messages, `devices` as above, or NULL. */
PLEAT_NODISCARD pleat_result pleat__trace_decode(const char *path, const uint8_t *bytes,
                                                 size_t size, pleat_trace **out);
PLEAT_NODISCARD pleat_result pleat__snapshot_decode(const char *path, const uint8_t *bytes,
                                                    size_t size, int device, bool *devices,
                                                    pleat_trace **out);
PLEAT_NODISCARD pleat_result pleat__csv_decode(const char *path, const uint8_t *bytes, size_t size,
                                               pleat_trace **out);

#endif
