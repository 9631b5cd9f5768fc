/*
 * export_snapshot.h: a trace as a torch memory snapshot.
 */
#ifndef PLEAT_TOOLS_EXPORT_SNAPSHOT_H
#define PLEAT_TOOLS_EXPORT_SNAPSHOT_H

#include <pleat/trace.h>
#include <stdio.h>

/* As torch.cuda.memory._snapshot() gives it, pickled. */
PLEAT_NODISCARD pleat_result export_snapshot(const pleat_trace *trace, FILE *out);

#endif
