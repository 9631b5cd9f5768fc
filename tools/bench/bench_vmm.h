/*
 * bench_vmm.h: what `pleat bench vmm` measures; bench_vmm.c has the verbs, the plan and the
 * command, bench_vmm_gpu.c what needs work on the device: launches and reads.
 */
#ifndef PLEAT_TOOLS_BENCH_VMM_H
#define PLEAT_TOOLS_BENCH_VMM_H

#include <tools/bench/bench.h>
#include <tools/clock.h>

#include <internal/arena.h>
#include <vmm/space.h>

#define MOST_ROWS 8
/* Every launch of the reading kernel covers a multiple of it. */
#define READ_STEP (32ull << 20)

typedef struct verb_row {
    uint64_t bytes;                               /* of a handle */
    uint64_t batch;                               /* handles behind one set_access and one unmap */
    uint64_t create, map, access, unmap, release; /* ns a handle */
} verb_row;

typedef struct alias_row {
    uint64_t aliases;
    uint64_t map, unmap; /* ns an alias, access included */
} alias_row;

typedef struct plan_times {
    uint64_t maps, driver_calls;
    double map, give_back; /* seconds */
} plan_times;

typedef struct bench {
    bool cuda, json, check;
    int device;
    uint64_t plan_bytes, stream_bytes;
    pleat_vmm vmm;
    pleat__arena *arena;
    uint64_t granule, free_bytes;

    verb_row verbs[2 * MOST_ROWS];
    size_t verb_rows;
    alias_row aliases[MOST_ROWS];
    size_t alias_rows;
    uint64_t aliases_refused; /* so many were too many; 0: none was */
    plan_times folded, single;
    uint64_t launch_alone, launch_busy, launch_alone_p99, launch_busy_p99; /* ns */
    double launch_change; /* beside the mapper, a share of the time alone; of turns in a row */
    uint64_t remaps;
    double remap_us;
    double whole_rate, shuffled_rate; /* bytes a second */
} bench;

/* Zeroed host memory for the time of a measurement. */
void *bench_vmm_memory(const bench *b, uint64_t count, size_t size, pleat_result *result);
/* Nanoseconds since *before, a share of 1 / count of them; *before becomes now. */
uint64_t bench_vmm_since(uint64_t *before, uint64_t count);
void bench_vmm_shuffle(pleat__chunk **chunks, uint64_t count);

/* Kernel launches alone and beside a busy mapper; on a GPU only. */
PLEAT_NODISCARD pleat_result bench_vmm_launches(bench *b);
/* Reading behind one large handle and behind shuffled chunks. */
PLEAT_NODISCARD pleat_result bench_vmm_streaming(bench *b);

#endif
