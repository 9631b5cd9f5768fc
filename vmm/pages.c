/*
 * pages.c: see pages.h.
 */
#include "pages.h"

#include <internal/error.h>
#include <internal/range.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- pages ---- */

static void touch(char *memory, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    for (uint64_t at = 0; at < bytes; at += page)
        *(volatile char *)(memory + at) = 0;
}

/* More than is wanted is mapped, and what lies before and behind a huge page's limits goes. */
static char *map_aligned(uint64_t bytes)
{
    uint64_t size = PLEAT__HUGE_PAGE_BYTES;
    char *mapped = mmap(NULL, bytes + size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapped == MAP_FAILED)
        return NULL;
    uint64_t before = pleat__ceil_div((uintptr_t)mapped, size) * size - (uintptr_t)mapped;
    if (before > 0)
        munmap(mapped, before);
    munmap(mapped + before + bytes, size - before);
    return mapped + before;
}

pleat_result pleat__pages_get(uint64_t bytes, bool huge, void **memory)
{
    if (bytes == 0 || bytes % PLEAT__HUGE_PAGE_BYTES != 0)
        return pleat__fail(PLEAT_E_INVALID, "%llu bytes are no whole huge pages",
                           (unsigned long long)bytes);
    char *mapped = map_aligned(bytes);
    if (mapped == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu bytes",
                           (unsigned long long)bytes);
    /* What a kernel does not know of these leaves the memory as good as any. */
    (void)!madvise(mapped, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    (void)!madvise(mapped, bytes, MADV_DONTDUMP);
    if (madvise(mapped, bytes, MADV_DONTFORK) != 0) {
        munmap(mapped, bytes);
        return pleat__fail(PLEAT_E_UNSUPPORTED, "host memory cannot be kept from child processes");
    }
    touch(mapped, bytes);
    *memory = mapped;
    return PLEAT_OK;
}

void pleat__pages_give(void *memory, uint64_t bytes)
{
    munmap(memory, bytes);
}

/* ---- room ---- */

/* The number behind `name` at the beginning of a line, or (NULL) at that of the file. */
static bool read_number(const char *path, const char *name, uint64_t *number)
{
    char line[256];
    bool found = false;
    size_t length = name != NULL ? strlen(name) : 0;
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        char *end;
        if (length > 0 &&
            (strncmp(line, name, length) != 0 || (line[length] != ' ' && line[length] != ':')))
            continue;
        const char *from = line + length + strspn(line + length, ": \t");
        *number = strtoull(from, &end, 10);
        found = end != from; /* "max" is none */
        if (length == 0)
            break;
    }
    fclose(file);
    return found;
}

static uint64_t less_an_eighth(uint64_t left, uint64_t total)
{
    return left > total / 8 ? left - total / 8 : 0;
}

static uint64_t system_room(void)
{
    uint64_t left, total;
    if (!read_number("/proc/meminfo", "MemAvailable", &left) ||
        !read_number("/proc/meminfo", "MemTotal", &total))
        return UINT64_MAX;
    return less_an_eighth(left << 10, total << 10);
}

/* What the names of a control group's files are. */
typedef struct group_kind {
    const char *mount, *limit, *used, *cache;
} group_kind;

static uint64_t group_room(const char *folder, const group_kind *kind)
{
    char path[4352];
    uint64_t limit, used, cache = 0;
    snprintf(path, sizeof path, "%s/%s", folder, kind->limit);
    if (!read_number(path, NULL, &limit))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/%s", folder, kind->used);
    if (!read_number(path, NULL, &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    (void)read_number(path, kind->cache, &cache);
    used -= cache < used ? cache : used;
    return less_an_eighth(limit > used ? limit - used : 0, limit);
}

/* Of a group and all that it is in; `folder` is cut short meanwhile. */
static uint64_t groups_room(char *folder, const group_kind *kind)
{
    uint64_t least = UINT64_MAX;
    for (size_t mount = strlen(kind->mount);;) {
        uint64_t room = group_room(folder, kind);
        least = room < least ? room : least;
        char *last = strrchr(folder, '/');
        if (last == NULL || (size_t)(last - folder) < mount)
            return least;
        *last = '\0';
    }
}

/* A line of /proc/self/cgroup is "number:controllers:/path". */
static uint64_t room_of_line(char *line)
{
    static const group_kind first = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file"};
    static const group_kind second = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                      "inactive_file"};
    char folder[4160];
    char *controllers = strchr(line, ':');
    char *path = controllers != NULL ? strchr(controllers + 1, ':') : NULL;
    if (path == NULL)
        return UINT64_MAX;
    *path++ = '\0';
    path[strcspn(path, "\n")] = '\0';
    bool unified = controllers[1] == '\0';
    if (!unified && strcmp(controllers + 1, "memory") != 0)
        return UINT64_MAX;
    const group_kind *kind = unified ? &second : &first;
    snprintf(folder, sizeof folder, "%s%s", kind->mount, strcmp(path, "/") == 0 ? "" : path);
    return groups_room(folder, kind);
}

uint64_t pleat__pages_room(void)
{
    char line[4096];
    uint64_t least = system_room();
    FILE *groups = fopen("/proc/self/cgroup", "re");
    while (groups != NULL && fgets(line, sizeof line, groups) != NULL) {
        uint64_t room = room_of_line(line);
        least = room < least ? room : least;
    }
    if (groups != NULL)
        fclose(groups);
    return least;
}
