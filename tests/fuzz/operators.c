/*
 * operators.c: fuzz target: an operator log, read and run within half of its peak.
 */
#include "fuzz.h"

#include <plan/remat/run.h>

static void run(const pleat__operator_log *log, uint64_t peak)
{
    for (int p = 0; p < PLEAT__REMAT_POLICIES; p++) {
        const pleat__remat_options options = {.policy = (pleat__remat_policy)p,
                                              .budget_bytes = peak / 2,
                                              .chunk_bytes = 2u << 20,
                                              .map_ns = 1,
                                              .chunks = p == PLEAT__REMAT_STITCHED,
                                              .overhead_most = 2};
        pleat__remat_figures figures;
        fuzz_answer(pleat__remat_run(log, &options, &figures), "the file");
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pleat__arena *arena;
    pleat__operator_log log;
    uint64_t peak;
    if (pleat__arena_create(&arena) != PLEAT_OK)
        return 0;
    pleat_result result = pleat__operator_log_decode("the file", data, size, arena, &log);
    fuzz_answer(result, "the file");
    /* A pool of more than a TiB is a table of chunks that takes the fuzzer's memory. */
    if (result == PLEAT_OK && pleat__remat_peak(&log, &peak) == PLEAT_OK && peak < 1ull << 40)
        run(&log, peak);
    pleat__arena_destroy(arena);
    return 0;
}
