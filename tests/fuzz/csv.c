/*
 * csv.c: fuzz target: a table of lifetimes.
 */
#include "fuzz.h"

#include <plan/trace/import.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pleat_trace *trace;
    pleat_result result = pleat__csv_decode("the file", data, size, &trace);
    fuzz_answer(result, "the file");
    if (result == PLEAT_OK) {
        (void)pleat_trace_fingerprint(trace);
        pleat_trace_free(trace);
    }
    return 0;
}
