/*
 * gzip.h: gzipped bytes, in memory.
 */
#ifndef PLEAT_PLAN_BASE_GZIP_H
#define PLEAT_PLAN_BASE_GZIP_H

#include <internal/arena.h>
#include <stdbool.h>

/* Whether they begin as gzipped ones do. */
bool pleat__gzip_begins(const uint8_t *bytes, size_t size);
/* What all members of a gzipped file unfold to. A small file may unfold to a thousand times its
 * size: PLEAT_E_INPUT where it is more than `limit`, and where the file is not sound. `path` is for
 * messages. */
PLEAT_NODISCARD pleat_result pleat__gzip_unfold(const char *path, uint64_t limit,
                                                pleat__arena *arena, const uint8_t *from,
                                                size_t from_size, uint8_t **out, size_t *size);
/* The bytes gzipped, the same for the same bytes; the caller frees them. NULL without memory. */
uint8_t *pleat__gzip_fold(const void *bytes, size_t size, size_t *folded);
/* Whether a file of that name is a gzipped one: it ends in ".gz". */
bool pleat__gzip_is_name(const char *path);

#endif
