/*
 * output.c: see output.h.
 */
#include <tools/output.h>

#include <tools/cli.h>

#include <errno.h>
#include <fcntl.h>
#include <internal/error.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Whether a file can be made there, else errno: one without a name, or, where the file system has
 * none such, one that is removed at once. */
static bool takes_file(const char *folder)
{
    char name[PATH_MAX];
    int fd = open(folder, O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
    if (fd < 0) {
        snprintf(name, sizeof name, "%.*s/.pleat.%ld.tmp", PATH_MAX - 64, folder, (long)getpid());
        fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0)
            return errno == EEXIST;
        unlink(name);
    }
    close(fd);
    return true;
}

/* `target`: what `path` leads to. */
static pleat_result check_folder(const char *path, const char *target)
{
    char folder[PATH_MAX] = ".";
    struct stat status;
    const char *slash = strrchr(target, '/');
    if (slash != NULL)
        snprintf(folder, sizeof folder, "%.*s", slash == target ? 1 : (int)(slash - target),
                 target);
    if (stat(folder, &status) != 0 && errno == ENOENT)
        return pleat__fail(PLEAT_E_IO, "'%s': there is no folder '%s'", path, folder);
    if (takes_file(folder))
        return PLEAT_OK;
    /* So does /proc answer, which has no files but its own. */
    return errno == ENOENT ? pleat__fail(PLEAT_E_IO, "'%s': no file can be made in the folder '%s'",
                                         path, folder)
                           : pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be made", path);
}

static pleat_result check(const char *path)
{
    char target[PATH_MAX];
    struct stat status;
    if (stat(path, &status) != 0)
        return errno == ENOENT ? check_folder(path, path)
                               : pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be made", path);
    if (S_ISREG(status.st_mode) && realpath(path, target) != NULL)
        return check_folder(path, target);
    if (S_ISDIR(status.st_mode))
        errno = EISDIR;
    else if (access(path, W_OK) == 0) /* a pipe, a device */
        return PLEAT_OK;
    return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be written", path);
}

int output_check(const char *command, const char *path)
{
    pleat_result result = check(path);
    return result == PLEAT_OK ? CLI_DONE : cli_failed(command, result);
}
