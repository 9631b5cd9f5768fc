/*
 * snapshot.c: fuzz target: a torch memory snapshot, and what is made of it.
 */
#include "fuzz.h"

#include <plan/trace/import.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    pleat_trace *trace;
    pleat_result result =
        pleat__snapshot_decode("the file", data, size, PLEAT__ANY_DEVICE, NULL, &trace);
    fuzz_answer(result, "the file");
    if (result != PLEAT_OK)
        return 0;
    const pleat_trace_event *events = pleat_trace_events(trace);
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++)
        FUZZ_CHECK(events[i].stream < pleat_trace_stream_count(trace) ||
                       pleat_trace_stream_count(trace) == 0,
                   "event %zu has stream %u", i, events[i].stream);
    (void)pleat_trace_fingerprint(trace);
    pleat_trace_free(trace);
    return 0;
}
