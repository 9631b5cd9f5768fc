/*
 * log_writer.h: looks at a runtime at equal intervals and at the ends of its iterations, and writes
 * what it sees into a log (log.h).
 *
 * COST     Nothing on the way of an allocation or a free: peaks are those that the runtime keeps
 *          anyway, read and restarted by the watcher, which remembers those that it took away. A
 *          mark copies the counters. One thread looks and writes, and holds the runtime's lock only
 *          while it copies the counters.
 * PEAKS    Three are kept of each: since the user's last reset, since the last interval, since the
 *          last mark.
 */
#ifndef PLEAT_RUNTIME_FACE_LOG_WRITER_H
#define PLEAT_RUNTIME_FACE_LOG_WRITER_H

#include <pleat/runtime.h>
#include <runtime/base/conf.h>

typedef struct pleat__watch pleat__watch;

/* NULL when the settings ask for no log. The runtime is ready but for its watch. */
PLEAT_NODISCARD pleat_result pleat__watch_begin(pleat_runtime *runtime, const pleat__conf *conf,
                                                pleat__watch **out);
/* NULL is allowed. Writes what was not yet written. Without the runtime's lock. */
void pleat__watch_end(pleat__watch *watch);
/* Ends the log, of which nothing is written any more; the rest stays until the end. NULL: nothing.
 * Without the runtime's lock. Of several threads each returns once it has ended. */
void pleat__watch_stop(pleat__watch *watch);
/* The calls below are made with the lock held. An iteration began. */
void pleat__watch_mark(pleat__watch *watch);
/* Peaks as the user has them, where the runtime's own were restarted by the watcher. */
void pleat__watch_peaks(pleat__watch *watch, pleat_stats *stats);
/* The user restarts peaks. */
void pleat__watch_reset(pleat__watch *watch);

#endif
