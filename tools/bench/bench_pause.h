/*
 * bench_pause.h: what `pleat bench pause` measures; bench_pin.c has the host's memory and the link,
 * bench_contents.c what the tensors hold, bench_pause.c the pauses and the command.
 */
#ifndef PLEAT_TOOLS_BENCH_PAUSE_H
#define PLEAT_TOOLS_BENCH_PAUSE_H

#include <tools/bench/bench.h>
#include <tools/clock.h>
#include <tools/replay/canary_cuda.h>
#include <tools/replay/timed_vmm.h>

#include <internal/arena.h>
#include <vmm/cuda.h>

#define MOST_PINS   16
#define MOST_COPIES 8

typedef struct pin_row {
    const char *way;
    int threads;
    double seconds;
} pin_row;

typedef struct copy_row {
    const char *way; /* how the host's memory was pinned */
    int streams;
    double in, out; /* bytes a second */
} copy_row;

/* What somebody else does between a pause and the resume. */
typedef enum neighbour {
    NEIGHBOUR_NONE,
    NEIGHBOUR_TAKES, /* all memory there is, and gives it back just before the resume */
    NEIGHBOUR_TOOK,  /* the same, half a second before the resume */
    NEIGHBOURS
} neighbour;

typedef enum part {
    PART_PAUSE,
    PART_RESUME,
    PART_COPY, /* the same bytes to the same memory, when it is there */
    PART_BARE, /* the same bytes to memory that verbs alone make in the place of the resume */
    PART_READ, /* the same, copied by threads of the device instead of its copy engines */
    PART_HAD,  /* the same bytes to memory that was kept, in the place of the resume */
    PARTS
} part;

/* One pause and its resume. */
typedef struct turn_row {
    double seconds[PARTS];
    timed_verb pause_verbs[TIMED_VERBS], resume_verbs[TIMED_VERBS];
} turn_row;

#define MOST_TURNS 32

typedef struct pause_bench {
    bool cuda, json;
    int device;
    uint32_t turns;
    uint64_t bytes, tensor_bytes, pin_bytes;
    pleat_vmm vmm; /* the backend itself */
    pleat__arena *arena;
    canary_cuda *canary; /* of cuda, when something was written */
    uint64_t written;    /* times that the tensors were */
    uint64_t checked_bytes;

    pin_row pins[MOST_PINS];
    size_t pin_rows;
    copy_row copies[MOST_COPIES];
    size_t copy_rows;
    bool reads;         /* threads of the device can copy inward */
    copy_row read;      /* what they do */
    double first_pause; /* seconds, pinning included */
    turn_row rows[NEIGHBOURS][MOST_TURNS];
} pause_bench;

/* Ways to pin, side by side, each twice in turns. */
PLEAT_NODISCARD pleat_result bench_pins(pause_bench *b);
/* Copies both ways by one, two and four streams. */
PLEAT_NODISCARD pleat_result bench_copies(pause_bench *b);

/* Gives each tensor contents of its own, on the default stream. */
PLEAT_NODISCARD pleat_result bench_contents_write(pause_bench *b, const pleat_va *tensors,
                                                  size_t count);
/* Whether all is as it was last written: PLEAT_E_STATE where a byte is another one. */
PLEAT_NODISCARD pleat_result bench_contents_check(pause_bench *b, const pleat_va *tensors,
                                                  size_t count);

#endif
