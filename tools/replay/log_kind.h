/*
 * log_kind.h: whether a file begins as a runtime's log does (runtime/observe/log.h), for what is
 * said where a log is given and cannot be read.
 */
#ifndef PLEAT_TOOLS_REPLAY_LOG_KIND_H
#define PLEAT_TOOLS_REPLAY_LOG_KIND_H

typedef enum log_kind {
    LOG_KIND_NONE,
    LOG_KIND_PLAIN,
    LOG_KIND_GZIPPED,
} log_kind;

/* A regular file's, by its first bytes; what is not there or cannot be read is none. */
log_kind log_kind_of(const char *path);

#endif
