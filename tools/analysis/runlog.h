/*
 * runlog.h: a runtime's footprint log (runtime/observe/log.h) as it is read, also while it is
 * written.
 *
 * TRUST  A log is untrusted input: reading is bounded by the file's size, every value is checked
 *        before it is used, texts are cut down to printable ASCII. Records that are torn or make no
 *        sense are counted and passed over.
 */
#ifndef PLEAT_TOOLS_RUNLOG_H
#define PLEAT_TOOLS_RUNLOG_H

#include <runtime/observe/log.h>
#include <stdbool.h>

#define RUNLOG_COLUMNS_MOST 256u
#define RUNLOG_STATES_MOST  64u
#define RUNLOG_TEXT         64u

typedef enum runlog_status {
    RUNLOG_RUNNING, /* its process lives, and holds it */
    RUNLOG_ENDED,   /* its runtime was destroyed */
    RUNLOG_GONE,    /* its process is no more and did not say goodbye */
} runlog_status;

/* One series: records from the first moment that is known to the last, none overlapping, each as
 * fine as it is known. */
typedef struct runlog_series {
    pleat__log_record *records;
    size_t count;
} runlog_series;

typedef struct runlog {
    pleat__arena *arena; /* holds what is below */
    pleat__log_numbers numbers;
    runlog_status status;
    char policy[RUNLOG_TEXT];
    char command[PLEAT__LOG_COMMAND];
    char states[RUNLOG_STATES_MOST][RUNLOG_TEXT];
    runlog_series series[PLEAT__LOG_SERIES];
    uint64_t torn; /* records passed over */
} runlog;

/* PLEAT_E_INPUT, PLEAT_E_ABI, PLEAT_E_IO. */
PLEAT_NODISCARD pleat_result runlog_open(const char *path, runlog *log);
/* Nothing needs to have been read. */
void runlog_close(runlog *log);

/* The last record of a series; NULL when it has none. */
const pleat__log_record *runlog_last(const runlog *log, uint32_t series);
/* What happened between two records, an iteration; NAN where there is nothing to divide by. */
typedef struct runlog_rates {
    double requests, driver_calls, seconds;
    double planned_share; /* of the requests: in slots or lanes */
} runlog_rates;
runlog_rates runlog_between(const pleat__log_record *begin, const pleat__log_record *end);
/* The records behind which and with which the last whole iterations lie, whose records are 16 at
 * most; false: there is none. */
bool runlog_last_iterations(const runlog *log, const pleat__log_record **begin,
                            const pleat__log_record **end);
/* A record's state, "" when the policy has none. */
const char *runlog_state(const runlog *log, const pleat__log_record *record);
/* "running", "ended", "gone". */
const char *runlog_status_name(runlog_status status);

#endif
