/*
 * operator_log.h: an operator log: what a training iteration computed, in order, with each
 * operator's time and each result's size; the form that DTR's patch of PyTorch records
 * (uwsampl/dtr-prototype, simrd): one JSON object a line, gzipped or not. What stands before the
 * annotation START, and that itself, is left out.
 *
 * Names of the log are handles here, numbered from 0.
 */
#ifndef PLEAT_PLAN_REMAT_OPERATOR_LOG_H
#define PLEAT_PLAN_REMAT_OPERATOR_LOG_H

#include <internal/arena.h>

/* Longest time of an operator and of all together in nanoseconds (52 days: a run may take 1,000
 * times as long, and counts in 64 bits), largest tensor in bytes; most pairs of an argument and a
 * result, each of which takes memory in a run (run.c). */
#define PLEAT__OPERATOR_NS_MOST    (1ull << 48)
#define PLEAT__OPERATORS_NS_MOST   (1ull << 52)
#define PLEAT__OPERATOR_BYTES_MOST (1ull << 48)
#define PLEAT__OPERATOR_PAIRS_MOST (1u << 24)

/* Values of one line, and steps and tensors of a log, at most (D529): a gzipped log of 2 MiB can
 * unfold to a thousand million of them. */
#define PLEAT__OPERATOR_VALUES_MOST (1u << 22)
#define PLEAT__OPERATOR_STEPS_MOST  (1u << 23)

typedef enum pleat__operator_log_kind {
    PLEAT__OPERATOR_LOG_CONSTANT,  /* `handle` is an input or a parameter: never evicted */
    PLEAT__OPERATOR_LOG_CALL,      /* an operator makes `results` of `arguments` */
    PLEAT__OPERATOR_LOG_MUTATE,    /* an operator writes into arguments[written[i]] */
    PLEAT__OPERATOR_LOG_COPY,      /* `handle` is one more handle of `other` */
    PLEAT__OPERATOR_LOG_COPY_FROM, /* `handle` is given up, and one more of `other` from then on */
    PLEAT__OPERATOR_LOG_RELEASE,   /* `handle` is given up */
} pleat__operator_log_kind;

typedef struct pleat__operator_log_result {
    uint32_t handle;
    int32_t alias; /* the argument whose memory it shares; -1: it has its own */
    uint64_t bytes;
} pleat__operator_log_result;

typedef struct pleat__operator_log_step {
    pleat__operator_log_kind kind;
    uint32_t line;
    uint32_t handle, other;
    uint64_t bytes;
    uint64_t ns;
    const char *name; /* the operator's */
    uint32_t *arguments;
    uint32_t argument_count;
    pleat__operator_log_result *results;
    uint32_t result_count;
    uint32_t *written;
    uint32_t written_count;
} pleat__operator_log_step;

typedef struct pleat__operator_log {
    const char *path; /* for messages */
    pleat__operator_log_step *steps;
    size_t count;
    uint32_t handles;
    uint64_t constant_bytes;
    uint64_t model_ns; /* all operators once */
    uint64_t pairs;    /* of an argument and a result of an operator */
    uint32_t operators;
    uint32_t tensors; /* all that are ever made, views too: an upper bound */
} pleat__operator_log;

/* Reads a log into `arena`. PLEAT_E_INPUT names the line; PLEAT_E_IO. */
PLEAT_NODISCARD pleat_result pleat__operator_log_read(const char *path, pleat__arena *arena,
                                                      pleat__operator_log *out);
/* The same from bytes; `path` is for messages. */
PLEAT_NODISCARD pleat_result pleat__operator_log_decode(const char *path, const uint8_t *bytes,
                                                        size_t size, pleat__arena *arena,
                                                        pleat__operator_log *out);

#endif
