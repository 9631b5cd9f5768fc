/*
 * log.h: a runtime's footprint over time, as a file of fixed size: what `pleat top` shows while the
 * job runs and `pleat report --log` draws afterwards.
 *
 * FILE    A msgpack stream. A header of PLEAT__LOG_HEADER_BYTES, then as many records of equal
 *         length as there is room for:
 *
 *           ["pleat log", 1, NUMBERS...]  [policy, command]  [column, ...]  [state, ...]  nil...
 *           [value of each column ..., CRC-32 of the bytes before it]  or nil...
 *
 *         NUMBERS are PLEAT__LOG_NUMBERS. All values of records are 64-bit integers written in
 *         full, so a record's place is known and it is overwritten as it stands. The file never
 *         grows, and what was written is there however the process ends; a record that was being
 *         written then has a wrong checksum, and is passed over.
 * SERIES  Two: equal intervals of time, and iterations. Each is kept in levels: a ring of the last
 *         records as they come, above it a ring of records that each stand for FAN of those below,
 *         and so on. What is long ago is known coarsely, the last moments exactly, a peak always.
 * READING Records of any order; a level's ring is in order of `number`. Where levels overlap, the
 *         lower one is finer. tools/analysis/runlog.c does it.
 */
#ifndef PLEAT_RUNTIME_OBSERVE_LOG_H
#define PLEAT_RUNTIME_OBSERVE_LOG_H

#include <internal/arena.h>
#include <pleat/runtime.h>
#include <stdbool.h>

#define PLEAT__LOG_NAME         "pleat log"
#define PLEAT__LOG_VERSION      1u
#define PLEAT__LOG_HEADER_BYTES 4096u /* D481 */
#define PLEAT__LOG_LEVELS       6u
#define PLEAT__LOG_FAN          8u
#define PLEAT__LOG_SLOTS_LEAST  16u
#define PLEAT__LOG_BYTES_MOST   (64ull << 20)
#define PLEAT__LOG_COMMAND      512u

enum { PLEAT__LOG_INTERVALS, PLEAT__LOG_ITERATIONS, PLEAT__LOG_SERIES };

/* X(name): the header's numbers. Times of day are nanoseconds since 1970; `ended` is 0 until the
 * runtime is destroyed; plan_*: what the plan it was given expects, 0 without one. */
#define PLEAT__LOG_NUMBERS(X)                                                                      \
    X(pid)                                                                                         \
    X(device)                                                                                      \
    X(begun_unix_ns)                                                                               \
    X(ended_unix_ns)                                                                               \
    X(period_ns)                                                                                   \
    X(slots)                                                                                       \
    X(levels)                                                                                      \
    X(fan)                                                                                         \
    X(columns)                                                                                     \
    X(states)                                                                                      \
    X(plan_requests)                                                                               \
    X(plan_max_live_bytes)                                                                         \
    X(plan_physical_bytes)                                                                         \
    X(plan_virtual_bytes)

/* X(name): a record's first columns; behind them come the counters of pleat/runtime.h, as they are
 * at the end of what the record stands for, since the runtime's creation. Times are nanoseconds
 * since the log began. */
#define PLEAT__LOG_COLUMNS(X)                                                                      \
    X(series)                                                                                      \
    X(level)                                                                                       \
    X(number)                                                                                      \
    X(from_ns)                                                                                     \
    X(to_ns)                                                                                       \
    X(iterations)     /* begun by then */                                                          \
    X(state)          /* 0: the policy has none; else its place in the header's list, from 1 */    \
    X(limit_bytes)    /* the budget, or the device's memory */                                     \
    X(low_live_bytes) /* least at the ends of intervals; the highs are the most at any moment */   \
    X(high_live_bytes)                                                                             \
    X(high_physical_bytes)                                                                         \
    X(lost) /* records so far that the system did not take */

typedef struct pleat__log_numbers {
#define PLEAT__LOG_NUMBER(name) uint64_t name;
    PLEAT__LOG_NUMBERS(PLEAT__LOG_NUMBER)
#undef PLEAT__LOG_NUMBER
} pleat__log_numbers;

typedef struct pleat__log_record {
#define PLEAT__LOG_COLUMN(name) uint64_t name;
    PLEAT__LOG_COLUMNS(PLEAT__LOG_COLUMN)
#undef PLEAT__LOG_COLUMN
    pleat_stats stats;
} pleat__log_record;

#define PLEAT__LOG_COLUMN_COUNT  (sizeof(pleat__log_record) / sizeof(uint64_t))
#define PLEAT__LOG_COUNTER_COUNT (sizeof(pleat_stats) / sizeof(uint64_t))
/* An array's head of 3 bytes, 9 bytes a number, the checksum. */
#define PLEAT__LOG_RECORD_BYTES(columns) (3 + 9 * ((size_t)(columns) + 1))

/* What is above the ring of a level: the record that is being merged from those of the level below
 * it, and how many it has by now. */
typedef struct pleat__log_open {
    pleat__log_record record;
    uint32_t merged;
} pleat__log_open;

typedef struct pleat__log {
    int fd;
    struct pleat__log *next;    /* of the process's logs */
    pleat__log_numbers numbers; /* as the header has them */
    const char *policy;
    char command[PLEAT__LOG_COMMAND];
    uint64_t written[PLEAT__LOG_SERIES][PLEAT__LOG_LEVELS]; /* records a level has had */
    pleat__log_open open[PLEAT__LOG_SERIES][PLEAT__LOG_LEVELS];
    uint64_t lost;
} pleat__log;

/* Where logs of PLEAT_CONF=log:auto lie, and `pleat top` looks for them: $XDG_RUNTIME_DIR/pleat,
 * else a folder pleat-UID in $TMPDIR or /tmp. Makes nothing. */
void pleat__log_folder(char *path, size_t size);

/* Makes the file, as long as it will ever be, at most `bytes` long. Of `numbers` those from pid to
 * ended and from slots to states are filled in here. `path` "auto" is PID-DEVICE.log in that
 * folder, which is made; the oldest logs there of runtimes that are no more are removed, all but a
 * few. Else "%p" in it stands for the process's number and "%d" for the device's; without that
 * ".N" is added for a device N above 0. A log that is being written keeps its name, and another one
 * is found. A file that is there and is neither empty nor a log stays. The log stays where it is
 * until it is closed. PLEAT_E_INVALID when `bytes` is too small, PLEAT_E_IO. */
PLEAT_NODISCARD pleat_result pleat__log_create(pleat__log *log, const char *path, uint64_t bytes,
                                               const char *policy,
                                               const pleat__log_numbers *numbers,
                                               pleat__arena *arena);
/* Writes a record of a series; its series, level and number are filled in here. Allocates
 * nothing. */
void pleat__log_put(pleat__log *log, uint32_t series, const pleat__log_record *record);
/* `into` stands for both from now on; `record` is the later one. */
void pleat__log_merge(pleat__log_record *into, const pleat__log_record *record);
/* Says that the job ended well; without it the file stays as after a crash. */
void pleat__log_end(pleat__log *log, pleat__arena *arena);
void pleat__log_close(pleat__log *log);
/* Whether a log, open for reading, is being written; `unknown` where the file system has no locks
 * to ask about. */
bool pleat__log_is_locked(int fd, bool unknown);

#endif
