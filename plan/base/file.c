/*
 * file.c: see file.h.
 */
#include <plan/base/file.h>

#include <internal/error.h>
#include <plan/base/gzip.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LINKS_MOST 40 /* as Linux follows */

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

pleat_result pleat__file_read_any(const char *path, pleat__arena *arena, uint8_t **bytes,
                                  size_t *size)
{
    uint8_t *data;
    PLEAT_TRY(pleat__file_read(path, PLEAT__FILE_MOST, arena, bytes, size));
    if (!pleat__gzip_begins(*bytes, *size))
        return PLEAT_OK;
    PLEAT_TRY(pleat__gzip_unfold(path, PLEAT__FILE_MOST, arena, *bytes, *size, &data, size));
    pleat__arena_free(arena, *bytes);
    *bytes = data;
    return PLEAT_OK;
}

bool pleat__file_is_own(const struct stat *status)
{
    return status->st_uid == geteuid() && (status->st_mode & (S_IWGRP | S_IWOTH)) == 0;
}

pleat_result pleat__file_read_own(const char *path, uint64_t limit, pleat__arena *arena,
                                  uint8_t **bytes, size_t *size)
{
    struct stat status;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK); /* a pipe would block */
    if (fd < 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be opened", path);
    pleat_result result = PLEAT_OK;
    if (fstat(fd, &status) != 0)
        result = pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be looked at", path);
    else if (!S_ISREG(status.st_mode) || !pleat__file_is_own(&status))
        result = pleat__fail(PLEAT_E_IO, "'%s': not a file that this user alone can write", path);
    if (result == PLEAT_OK)
        result = read_open(fd, path, limit, arena, bytes, size);
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

/* The folder that `path` is in; false with errno. */
static bool folder_of(const char *path, char folder[PATH_MAX])
{
    const char *end = strrchr(path, '/');
    size_t length = end == NULL || end == path ? 1 : (size_t)(end - path);
    if (length >= PATH_MAX) {
        errno = ENAMETOOLONG;
        return false;
    }
    memcpy(folder, end == NULL ? "." : path, length);
    folder[length] = '\0';
    return true;
}

/* The name of one more temporary file beside `path`, which is short however long the name of `path`
 * is; false with errno. */
static bool name_beside(const char *path, int attempt, char *name, size_t size)
{
    char folder[PATH_MAX];
    if (!folder_of(path, folder))
        return false;
    int length = snprintf(name, size, "%s/.pleat.%ld.%d.tmp", folder, (long)getpid(), attempt);
    if (length >= 0 && (size_t)length < size)
        return true;
    errno = ENAMETOOLONG;
    return false;
}

/* Opens the folder that `path` is in; -1 with errno. */
static int open_folder(const char *path, int flags)
{
    char folder[PATH_MAX];
    return folder_of(path, folder) ? open(folder, flags | O_CLOEXEC, 0666) : -1;
}

/* Under which an open file without a name can be given one. */
static void path_of_open(int fd, char path[32])
{
    snprintf(path, 32, "/proc/self/fd/%d", fd);
}

/* Without a name where the file system can do that, and where /proc is there to give it one later;
 * -1: so it cannot be. */
static int create_nameless(const char *path)
{
    char opened[32];
    int fd = open_folder(path, O_TMPFILE | O_RDWR);
    if (fd < 0)
        return -1;
    path_of_open(fd, opened);
    if (access(opened, F_OK) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Not mkstemp: its 0600 could be undone only by reading the umask, which sets it for all threads.
 */
int pleat__file_create_beside(const char *path, char *name, size_t size)
{
    int fd = create_nameless(path);
    *name = '\0';
    if (fd >= 0)
        return fd;
    for (int attempt = 0;; attempt++) {
        if (!name_beside(path, attempt, name, size))
            return -1;
        fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST || attempt == 99)
            return fd;
    }
}

/* A rename can take another file's place, a link cannot: so it gets a name of its own first. */
static bool give_name(int fd, char *name, size_t size, const char *path)
{
    char opened[32];
    path_of_open(fd, opened);
    for (int attempt = 0; attempt < 100; attempt++) {
        if (!name_beside(path, attempt, name, size))
            break;
        if (linkat(AT_FDCWD, opened, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0)
            return true;
        if (errno != EEXIST)
            break;
    }
    *name = '\0'; /* not one that another process made */
    return false;
}

bool pleat__file_take_place(int fd, char *name, size_t size, const char *path)
{
    return (*name != '\0' || give_name(fd, name, size, path)) && rename(name, path) == 0;
}

bool pleat__file_follow(char path[PATH_MAX])
{
    char folder[PATH_MAX], to[PATH_MAX];
    for (int links = 0; links < LINKS_MOST; links++) {
        ssize_t length = readlink(path, to, sizeof to - 1);
        if (length < 0)
            return errno == EINVAL || errno == ENOENT; /* it is no link */
        if (!folder_of(path, folder))
            return false;
        to[length] = '\0';
        int made = *to == '/' ? snprintf(path, PATH_MAX, "%s", to)
                              : snprintf(path, PATH_MAX, "%s/%s", folder, to);
        if (made >= PATH_MAX) {
            errno = ENAMETOOLONG;
            return false;
        }
    }
    errno = ELOOP;
    return false;
}

/* A file being written that is to take the place of `target`. */
typedef struct {
    char target[PATH_MAX];
    bool is_there;
    mode_t mode;         /* of what is there */
    int fd;              /* -1: what is there is no regular file, and is written into */
    char name[PATH_MAX]; /* "" while it has none: it is gone with its process then */
} replacement;

/* errno says that there is no such file also where the folder is there and takes none: /proc. */
static pleat_result not_made(const char *path, const char *target)
{
    char folder[PATH_MAX];
    int code = errno;
    if (code == ENOENT && folder_of(target, folder))
        return access(folder, F_OK) != 0
                   ? pleat__fail(PLEAT_E_IO, "'%s': there is no folder '%s'", path, folder)
                   : pleat__fail(PLEAT_E_IO, "'%s': no file can be made in the folder '%s'", path,
                                 folder);
    errno = code;
    return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be made", path);
}

static pleat_result not_written(const char *path)
{
    return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be written", path);
}

/* A pipe, a terminal, /dev/null: a rename would put a file in its place. */
static bool takes_bytes(const char *path, mode_t mode)
{
    errno = S_ISDIR(mode) ? EISDIR : S_ISSOCK(mode) ? ENXIO : 0; /* as opening says */
    return errno == 0 && access(path, W_OK) == 0;
}

static pleat_result begin(replacement *r, const char *path)
{
    struct stat there;
    r->fd = -1;
    r->name[0] = '\0';
    r->is_there = stat(path, &there) == 0;
    if (!r->is_there && (errno != ENOENT || strlen(path) >= sizeof r->target))
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be made", path);
    r->mode = r->is_there ? there.st_mode : 0;
    if (r->is_there && !S_ISREG(there.st_mode))
        return takes_bytes(path, there.st_mode) ? PLEAT_OK : not_written(path);
    /* A link stays one: what it leads to is replaced, or made. */
    if (r->is_there && realpath(path, r->target) == NULL)
        return not_written(path);
    if (!r->is_there) {
        snprintf(r->target, sizeof r->target, "%s", path);
        if (!pleat__file_follow(r->target))
            return not_made(path, path);
    }
    r->fd = pleat__file_create_beside(r->target, r->name, sizeof r->name);
    return r->fd >= 0 ? PLEAT_OK : not_made(path, r->target);
}

/* Closes it, and takes its name away, if it has one; false with errno. */
static bool drop(replacement *r)
{
    bool dropped = r->name[0] == '\0' || unlink(r->name) == 0;
    close(r->fd);
    return dropped;
}

pleat_result pleat__file_check(const char *path)
{
    replacement r;
    PLEAT_TRY(begin(&r, path));
    return r.fd < 0 || drop(&r) ? PLEAT_OK : not_written(path);
}

/* What a file system cannot do has no need of it: a pipe's, say, or one in memory. */
static bool sync_all(int fd)
{
    return fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP;
}

/* The name is the target's from here on; that it stays so when the machine fails takes one more
 * step, which may fail without harm to what is there. */
static bool take_place(replacement *r)
{
    if (!pleat__file_take_place(r->fd, r->name, sizeof r->name, r->target))
        return false;
    int folder = open_folder(r->target, O_RDONLY | O_DIRECTORY);
    if (folder >= 0) {
        (void)fsync(folder);
        close(folder);
    }
    return true;
}

/* All of it, and closed; otherwise false with errno. */
static bool write_into(const char *path, int flags, const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC | flags);
    if (fd < 0)
        return false;
    bool written = write_all(fd, bytes, size) && sync_all(fd);
    int code = errno;
    if (close(fd) != 0 && written)
        return false;
    errno = code;
    return written;
}

/* Whether something is mounted there, so that the file may be written and its place is not to be
 * had. Another user's file in a folder in which each removes only his own stays as it is. */
static bool keeps_its_place(const replacement *r)
{
    return r->is_there && errno == EBUSY;
}

static pleat_result replace(replacement *r, const char *path, const void *bytes, size_t size)
{
    bool written = (!r->is_there || fchmod(r->fd, r->mode & 0777) == 0) &&
                   write_all(r->fd, bytes, size) && sync_all(r->fd);
    bool taken = written && take_place(r);
    if (taken)
        r->name[0] = '\0';
    else if (written && keeps_its_place(r))
        taken = write_into(r->target, O_NOFOLLOW, bytes, size);
    pleat_result result = taken ? PLEAT_OK : not_written(path);
    (void)drop(r);
    return result;
}

static pleat_result write_as_it_is(const char *path, const void *bytes, size_t size)
{
    replacement r;
    PLEAT_TRY(begin(&r, path));
    if (r.fd >= 0)
        return replace(&r, path, bytes, size);
    return write_into(path, 0, bytes, size) ? PLEAT_OK : not_written(path);
}

pleat_result pleat__file_write(const char *path, const void *bytes, size_t size)
{
    if (!pleat__gzip_is_name(path))
        return write_as_it_is(path, bytes, size);
    size_t folded_size;
    uint8_t *folded = pleat__gzip_fold(bytes, size, &folded_size);
    if (folded == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory to compress it", path);
    pleat_result result = write_as_it_is(path, folded, folded_size);
    free(folded);
    return result;
}
