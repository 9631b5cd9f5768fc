/*
 * trace.c: fuzz target: a trace file but for its checksum, and a plan of what it holds.
 */
#include "fuzz.h"

#include <plan/trace/import.h>
#include <pleat/plan.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t whole;
    uint8_t *bytes = fuzz_with_checksum(data, size, &whole);
    pleat_trace *trace;
    pleat_result result = pleat__trace_decode("the file", bytes, whole, &trace);
    fuzz_answer(result, "the file");
    if (result == PLEAT_OK) {
        pleat_plan *plan = NULL;
        (void)pleat_trace_fingerprint(trace);
        result = pleat_plan_make(trace, NULL, &plan);
        FUZZ_CHECK(result == PLEAT_OK || result == PLEAT_E_INPUT || result == PLEAT_E_LIMIT,
                   "%s: %s", pleat_result_name(result), pleat_last_error()->text);
        pleat_plan_free(plan);
        pleat_trace_free(trace);
    }
    free(bytes);
    return 0;
}
