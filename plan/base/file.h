/*
 * file.h: whole files in and out. Reading is bounded by the caller; writing is whole or not at all.
 */
#ifndef PLEAT_PLAN_BASE_FILE_H
#define PLEAT_PLAN_BASE_FILE_H

#include <internal/arena.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/stat.h>

/* Whether nobody but this user can have made a file or a folder what it is. */
bool pleat__file_is_own(const struct stat *status);

/* Bytes of a trace, a recording or a plan, at most, and of what a gzipped one unfolds to. */
#define PLEAT__FILE_MOST (2ull << 30)

/* Reads all of a file (or of a pipe) into `arena`. PLEAT_E_IO when it cannot be read, PLEAT_E_INPUT
 * when it is longer than `limit` bytes. */
PLEAT_NODISCARD pleat_result pleat__file_read(const char *path, uint64_t limit, pleat__arena *arena,
                                              uint8_t **bytes, size_t *size);
/* The same, unfolded where it is gzipped: at most PLEAT__FILE_MOST, either way. */
PLEAT_NODISCARD pleat_result pleat__file_read_any(const char *path, pleat__arena *arena,
                                                  uint8_t **bytes, size_t *size);
/* The same of a file that nobody but this user can have written: no link, no pipe, not another
 * user's, not to be written by others. PLEAT_E_IO where it is any of those. */
PLEAT_NODISCARD pleat_result pleat__file_read_own(const char *path, uint64_t limit,
                                                  pleat__arena *arena, uint8_t **bytes,
                                                  size_t *size);
/* Puts in the place of a link's name the name that it leads to, link by link, whether anything is
 * there or not. false with errno. */
bool pleat__file_follow(char path[PATH_MAX]);
/* Makes a file in the folder of `path`, to be written and then put in its place, with the
 * permissions that open gives. `name` gets its name: "" where the file system can make one without,
 * of which nothing is left when the process is killed. Returns its descriptor, or -1 with errno.
 * What another process left behind, this one's number or not, is in nobody's way. */
int pleat__file_create_beside(const char *path, char *name, size_t size);
/* Puts such a file in the place of `path`. false with errno: `name` is what it is called now, if
 * anything. */
bool pleat__file_take_place(int fd, char *name, size_t size, const char *path);
/* Writes a file that takes the place of `path` when it is whole and on the disk, with the
 * permissions of the one that was there; PLEAT_E_IO leaves `path` as it was. A link stays one, and
 * what it leads to is written. Until then it has no name where the file system can do that, so that
 * nothing of it is left when the process is killed. What is there and no regular file (a pipe,
 * /dev/stdout) is written into, and so is, when the new one is whole, a file on which something is
 * mounted. Where the name ends in ".gz" the bytes are gzipped. */
PLEAT_NODISCARD pleat_result pleat__file_write(const char *path, const void *bytes, size_t size);
/* Whether writing to `path` could begin: it fails as pleat__file_write would, before there is
 * anything to write. Nothing that stays is made, and what is there is left as it is. */
PLEAT_NODISCARD pleat_result pleat__file_check(const char *path);

#endif
