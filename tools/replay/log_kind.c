/*
 * log_kind.c: see log_kind.h. zlib reads a file that is not gzipped as it is.
 */
#include <tools/replay/log_kind.h>

#include <runtime/observe/log.h>

#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

/* An array of more than 15, then its name. */
static bool begins(const uint8_t *bytes, const char *name, size_t length)
{
    return bytes[0] == 0xdc && bytes[3] == (0xa0 | length) && memcmp(bytes + 4, name, length) == 0;
}

log_kind log_kind_of(const char *path)
{
    static const char name[] = PLEAT__LOG_NAME;
    uint8_t bytes[4 + sizeof name - 1];
    struct stat status;
    if (stat(path, &status) != 0 || !S_ISREG(status.st_mode)) /* what is read of a pipe is gone */
        return LOG_KIND_NONE;
    gzFile file = gzopen(path, "rbe");
    if (file == NULL)
        return LOG_KIND_NONE;
    log_kind kind = LOG_KIND_NONE;
    if (gzread(file, bytes, sizeof bytes) == (int)sizeof bytes &&
        begins(bytes, name, sizeof name - 1))
        kind = gzdirect(file) ? LOG_KIND_PLAIN : LOG_KIND_GZIPPED;
    gzclose(file);
    return kind;
}
