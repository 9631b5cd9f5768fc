/*
 * file.c: see file.h.
 */
#include <plan/base/file.h>

#include <internal/error.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads until `size` bytes are there or the file ends; returns how many, or -1 with errno. */
static ssize_t read_up_to(int fd, uint8_t *into, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, into + done, size - done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        if (got == 0)
            break;
        done += (size_t)got;
    }
    return (ssize_t)done;
}

/* Reads an open file: first as much as it says it has, then on, doubling, until it ends. One byte
 * more than expected is asked for, so that a regular file needs no second round. */
static pleat_result read_open(int fd, const char *path, uint64_t limit, pleat__arena *arena,
                              uint8_t **bytes, size_t *size)
{
    struct stat status;
    if (fstat(fd, &status) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be looked at", path);
    size_t capacity = 65536;
    if (S_ISREG(status.st_mode)) {
        if ((uint64_t)status.st_size > limit)
            goto too_long;
        capacity = (size_t)status.st_size + 1;
    }
    uint8_t *data = NULL;
    for (size_t used = 0;;) {
        uint8_t *grown = pleat__arena_realloc(arena, data, capacity);
        if (grown == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for %zu bytes of it", path,
                               capacity);
        data = grown;
        ssize_t got = read_up_to(fd, data + used, capacity - used);
        if (got < 0)
            return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be read", path);
        used += (size_t)got;
        if (used > limit)
            goto too_long;
        if (used < capacity) {
            *bytes = data;
            *size = used;
            return PLEAT_OK;
        }
        capacity *= 2;
    }
too_long:
    return pleat__fail(PLEAT_E_INPUT, "'%s': longer than %llu bytes, the most that is read", path,
                       (unsigned long long)limit);
}

pleat_result pleat__file_read(const char *path, uint64_t limit, pleat__arena *arena,
                              uint8_t **bytes, size_t *size)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be opened", path);
    pleat_result result = read_open(fd, path, limit, arena, bytes, size);
    close(fd);
    return result;
}

static bool write_all(int fd, const uint8_t *bytes, size_t size)
{
    while (size > 0) {
        ssize_t put = write(fd, bytes, size);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return false;
        bytes += put;
        size -= (size_t)put;
    }
    return true;
}

/* Not mkstemp: its 0600 could be undone only by reading the umask, which sets it for all threads.
 */
int pleat__file_create_beside(const char *path, char *name, size_t size)
{
    for (int attempt = 0;; attempt++) {
        int length = snprintf(name, size, "%s.%ld.%d.tmp", path, (long)getpid(), attempt);
        if (length < 0 || (size_t)length >= size) {
            errno = ENAMETOOLONG;
            return -1;
        }
        int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST || attempt == 99)
            return fd;
    }
}

/* All of it, and closed; otherwise false with errno. */
static bool write_and_close(int fd, const void *bytes, size_t size)
{
    bool written = write_all(fd, bytes, size);
    int code = errno;
    if (close(fd) != 0 && written)
        return false;
    errno = code;
    return written;
}

static pleat_result replace(const char *path, const char *target, const void *bytes, size_t size)
{
    char temporary[PATH_MAX];
    int fd = pleat__file_create_beside(target, temporary, sizeof temporary);
    if (fd < 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': no file can be made beside it", path);
    if (write_and_close(fd, bytes, size) && rename(temporary, target) == 0)
        return PLEAT_OK;
    pleat_result result = pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be written", path);
    unlink(temporary);
    return result;
}

pleat_result pleat__file_write(const char *path, const void *bytes, size_t size)
{
    char target[PATH_MAX];
    struct stat status;
    if (stat(path, &status) != 0)
        return replace(path, path, bytes, size);
    /* A link stays one: what it leads to is replaced. */
    if (S_ISREG(status.st_mode) && realpath(path, target) != NULL)
        return replace(path, target, bytes, size);
    /* A pipe, a terminal, /dev/null: a rename would put a file in its place. */
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    return fd >= 0 && write_and_close(fd, bytes, size)
               ? PLEAT_OK
               : pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be written", path);
}
