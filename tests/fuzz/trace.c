/*
 * trace.c: fuzz target: a trace file but for its checksum.
 */
#include "fuzz.h"

#include <plan/trace/import.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t whole;
    uint8_t *bytes = fuzz_with_checksum(data, size, &whole);
    pleat_trace *trace;
    pleat_result result = pleat__trace_decode("the file", bytes, whole, &trace);
    fuzz_answer(result, "the file");
    if (result == PLEAT_OK) {
        (void)pleat_trace_fingerprint(trace);
        pleat_trace_free(trace);
    }
    free(bytes);
    return 0;
}
