/*
 * import.h: whatever can be read as a trace.
 */
#ifndef PLEAT_PLAN_IMPORT_H
#define PLEAT_PLAN_IMPORT_H

#include <pleat/trace.h>

/* A trace file's bytes. `path` is for messages. */
PLEAT_NODISCARD pleat_result pleat__trace_decode(const char *path, const uint8_t *bytes,
                                                 size_t size, pleat_trace **out);

#endif
