/*
 * plan_cache.c: see plan_cache.h.
 */
#include <plan/file/plan_cache.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <plan/base/plan.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Counts up whenever plans of before are not to be followed any more. */
#define EDITION 1u

#define END          ".plan"
#define UNFINISHED   ".tmp" /* pleat__file_create_beside's */
#define PROGRAM      " program="
#define HASH_DIGITS  16
#define PLANS_FOLDER "pleat/plans"

_Static_assert(3 * (HASH_DIGITS + 1) + sizeof END - 1 <= PLEAT__PLAN_CACHE_NAME, "a name fits");

/* ---- keys ---- */

/* FNV-1a. */
uint64_t pleat__plan_key_hash(uint64_t hash, const void *bytes, size_t size)
{
    const uint8_t *at = bytes;
    hash = hash == 0 ? UINT64_C(0xcbf29ce484222325) : hash;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ at[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    uint8_t bytes[8];
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)(number >> 8 * i);
    return pleat__plan_key_hash(hash, bytes, sizeof bytes);
}

uint64_t pleat__plan_key_first(uint64_t chunk_bytes, uint64_t bytes)
{
    return hash_number(hash_number(hash_number(0, EDITION), chunk_bytes), bytes);
}

bool pleat__plan_key_of(const pleat_trace *trace, uint32_t device, uint64_t chunk_bytes,
                        uint64_t program, pleat__plan_key *key)
{
    const pleat_trace_event *events = pleat_trace_events(trace);
    size_t count = pleat_trace_event_count(trace);
    uint32_t requests = 0;
    *key = (pleat__plan_key){.program = program};
    for (size_t i = 0; i < count && requests < PLEAT__PLAN_CACHE_BEGINNING; i++) {
        if (events[i].kind != PLEAT_EVENT_ALLOC || events[i].device != device)
            continue;
        if (requests++ == 0)
            key->first = pleat__plan_key_first(chunk_bytes, events[i].size);
        key->beginning = hash_number(hash_number(key->beginning, events[i].size), events[i].stream);
    }
    return requests != 0;
}

static void name_of(const pleat__plan_key *key, char name[PLEAT__PLAN_CACHE_NAME])
{
    snprintf(name, PLEAT__PLAN_CACHE_NAME, "%016llx-%016llx-%016llx" END,
             (unsigned long long)key->first, (unsigned long long)key->beginning,
             (unsigned long long)key->program);
}

static bool read_hash(const char **at, char behind, uint64_t *hash)
{
    *hash = 0;
    for (int i = 0; i < HASH_DIGITS; i++, (*at)++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = **at != '\0' ? strchr(digits, **at) : NULL;
        if (digit == NULL)
            return false;
        *hash = *hash << 4 | (uint64_t)(digit - digits);
    }
    return *(*at)++ == behind;
}

static bool read_name(const char *name, pleat__plan_key *key)
{
    const char *at = name;
    return read_hash(&at, '-', &key->first) && read_hash(&at, '-', &key->beginning) &&
           read_hash(&at, END[0], &key->program) && strcmp(at, &END[1]) == 0;
}

/* ---- the folder ---- */

static pleat_result path_in(const char *folder, const char *name, char path[PLEAT__PLAN_CACHE_PATH])
{
    int length = snprintf(path, PLEAT__PLAN_CACHE_PATH, "%s/%s", folder, name);
    return length < (int)PLEAT__PLAN_CACHE_PATH
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_LIMIT, "'%s': too long a path", folder);
}

/* A path that is not absolute is none (XDG Base Directory Specification). */
static pleat_result find_folder(char path[PLEAT__PLAN_CACHE_PATH])
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char own[PLEAT__PLAN_CACHE_PATH];
    if (cache == NULL || *cache != '/') {
        if (home == NULL || *home != '/')
            return pleat__fail(PLEAT_E_NOT_FOUND,
                               "no folder for plans: neither XDG_CACHE_HOME nor HOME names one");
        PLEAT_TRY(path_in(home, ".cache", own));
        cache = own;
    }
    return path_in(cache, PLANS_FOLDER, path);
}

/* The folders of a path from the first one that is missing on. */
static pleat_result make_folders(char *path)
{
    for (char *at = path + 1;; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char end = *at;
        *at = '\0';
        int made = mkdir(path, 0700);
        *at = end;
        if (made != 0 && errno != EEXIST)
            return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be made, for plans", path);
        if (end == '\0')
            return PLEAT_OK;
    }
}

/* The folder that a link of this user's leads to takes the link's place (docs/decisions.md, D631).
 */
static pleat_result follow(char path[PLEAT__PLAN_CACHE_PATH], struct stat *status)
{
    char target[PATH_MAX];
    if (lstat(path, status) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be looked at", path);
    if (!S_ISLNK(status->st_mode))
        return PLEAT_OK;
    if (status->st_uid != geteuid())
        return pleat__fail(PLEAT_E_IO,
                           "'%s' is a link that another user made: no plans are kept behind it "
                           "(remove it, or name another folder in XDG_CACHE_HOME)",
                           path);
    if (realpath(path, target) == NULL || lstat(target, status) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "what the link '%s' leads to cannot be looked at",
                                 path);
    if (strlen(target) >= PLEAT__PLAN_CACHE_PATH)
        return pleat__fail(PLEAT_E_LIMIT, "'%s': too long a path", target);
    memcpy(path, target, strlen(target) + 1);
    return PLEAT_OK;
}

pleat_result pleat__plan_cache_folder(bool make, char path[PLEAT__PLAN_CACHE_PATH])
{
    struct stat status;
    PLEAT_TRY(find_folder(path));
    if (lstat(path, &status) != 0 && errno == ENOENT) {
        if (!make)
            return PLEAT_OK;
        PLEAT_TRY(make_folders(path));
    }
    PLEAT_TRY(follow(path, &status));
    if (!S_ISDIR(status.st_mode))
        return pleat__fail(PLEAT_E_IO,
                           "'%s' is not a folder: no plans are kept there (move it away, or name "
                           "another folder in XDG_CACHE_HOME)",
                           path);
    if (status.st_uid != geteuid())
        return pleat__fail(PLEAT_E_IO,
                           "'%s' belongs to another user: no plans are kept there (name another "
                           "folder in XDG_CACHE_HOME)",
                           path);
    if (!pleat__file_is_own(&status))
        return pleat__fail(PLEAT_E_IO,
                           "others can write into '%s': no plans are kept there (chmod go-w '%s')",
                           path, path);
    return PLEAT_OK;
}

/* ---- what is in it ---- */

static int compare_use(const void *one, const void *other)
{
    const pleat__kept_plan *a = one, *b = other;
    if (a->used_s != b->used_s)
        return a->used_s > b->used_s ? -1 : 1;
    if (a->used_ns != b->used_ns)
        return a->used_ns > b->used_ns ? -1 : 1;
    return strcmp(a->name, b->name);
}

static bool look_at(int folder, const char *name, pleat__kept_plan *plan)
{
    struct stat status;
    *plan = (pleat__kept_plan){0};
    if (!read_name(name, &plan->key) || fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISREG(status.st_mode) || !pleat__file_is_own(&status))
        return false;
    memcpy(plan->name, name, strlen(name) + 1);
    plan->bytes = (uint64_t)status.st_size;
    plan->used_s = status.st_mtim.tv_sec;
    plan->used_ns = status.st_mtim.tv_nsec;
    return true;
}

pleat_result pleat__plan_cache_list(const char *folder, pleat__arena *arena,
                                    pleat__kept_plan **plans, size_t *count)
{
    size_t capacity = 0;
    *plans = NULL;
    *count = 0;
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL && errno == ENOENT)
        return PLEAT_OK;
    if (open_folder == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be opened", folder);
    pleat_result result = PLEAT_OK;
    for (struct dirent *entry; result == PLEAT_OK && (entry = readdir(open_folder)) != NULL;) {
        pleat__kept_plan plan;
        if (!look_at(dirfd(open_folder), entry->d_name, &plan))
            continue;
        result = pleat__arena_grow(arena, plans, &capacity, *count, sizeof **plans);
        if (result == PLEAT_OK)
            (*plans)[(*count)++] = plan;
    }
    closedir(open_folder);
    if (*count != 0)
        qsort(*plans, *count, sizeof **plans, compare_use);
    return result;
}

bool pleat__plan_cache_find(const pleat__kept_plan *plans, size_t count, uint64_t first,
                            uint64_t program, pleat__kept_plan *found)
{
    for (size_t i = 0; i < count; i++) {
        if (plans[i].key.first != first || plans[i].key.program != program)
            continue;
        *found = plans[i];
        return true;
    }
    return false;
}

pleat_result pleat__plan_cache_read(const char *folder, const char *name, pleat_plan **out)
{
    char path[PLEAT__PLAN_CACHE_PATH];
    pleat__arena *arena;
    uint8_t *bytes;
    size_t size;
    PLEAT_TRY(path_in(folder, name, path));
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result =
        pleat__file_read_own(path, PLEAT__PLAN_CACHE_FILE_BYTES, arena, &bytes, &size);
    if (result == PLEAT_OK)
        result = pleat__plan_decode(path, bytes, size, out);
    pleat__arena_destroy(arena);
    return result;
}

/* ---- writing and removing ---- */

/* Removes what processes left that were killed while they wrote, where the file system has no files
 * without a name. What was last written less than an hour before the plan that was just written
 * stays: another process may be at work on it. */
static void remove_unfinished(const char *folder, int64_t now_s)
{
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL)
        return;
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
        struct stat status;
        size_t length = strlen(entry->d_name), end = sizeof UNFINISHED - 1;
        if (length > end && strcmp(entry->d_name + length - end, UNFINISHED) == 0 &&
            fstatat(dirfd(open_folder), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0 &&
            now_s - status.st_mtim.tv_sec > 3600)
            (void)unlinkat(dirfd(open_folder), entry->d_name, 0);
    }
    closedir(open_folder);
}

/* The one of that name comes first, whatever clock the others' times are by. */
static void put_first(pleat__kept_plan *plans, size_t count, const char *name)
{
    size_t own = 0;
    while (own < count && strcmp(plans[own].name, name) != 0)
        own++;
    if (own == count)
        return;
    const pleat__kept_plan found = plans[own];
    memmove(plans + 1, plans, own * sizeof *plans);
    plans[0] = found;
}

/* Removes what was used longest ago and is beyond what all may take; never the one of that name. */
static void make_room(const char *folder, const char *written, uint64_t most_bytes)
{
    pleat__arena *arena;
    pleat__kept_plan *plans;
    size_t count;
    uint64_t bytes = 0;
    if (pleat__arena_create(&arena) != PLEAT_OK)
        return;
    if (pleat__plan_cache_list(folder, arena, &plans, &count) == PLEAT_OK) {
        put_first(plans, count, written);
        for (size_t i = 0; i < count; i++) {
            bytes += plans[i].bytes;
            if ((bytes > most_bytes || i >= PLEAT__PLAN_CACHE_FILES) &&
                strcmp(plans[i].name, written) != 0)
                (void)!pleat__plan_cache_remove(folder, plans[i].name);
        }
        if (count != 0)
            remove_unfinished(folder, plans[0].used_s);
    }
    pleat__arena_destroy(arena);
}

/* The program is said at the end of the options' text, in printable letters. */
static pleat_result note_program(pleat_plan *plan, const char *program)
{
    const char *options = plan->options != NULL ? plan->options : "";
    size_t length = strlen(options), more = strlen(program);
    char *text = pleat__arena_alloc(plan->arena, length + sizeof PROGRAM + more);
    if (text == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan");
    memcpy(text, options, length);
    memcpy(text + length, PROGRAM, sizeof PROGRAM);
    length += sizeof PROGRAM - 1;
    for (size_t i = 0; i <= more; i++) {
        bool printable = program[i] >= ' ' && program[i] <= '~';
        text[length + i] = printable || i == more ? program[i] : '?';
    }
    plan->options = text;
    return PLEAT_OK;
}

const char *pleat__plan_cache_program(const pleat_plan *plan)
{
    const char *found = plan->options != NULL ? strstr(plan->options, PROGRAM) : NULL;
    return found != NULL ? found + sizeof PROGRAM - 1 : "";
}

pleat_result pleat__plan_cache_write(const char *folder, const pleat__plan_key *key,
                                     pleat_plan *plan, const char *program, uint64_t most_bytes)
{
    char name[PLEAT__PLAN_CACHE_NAME], path[PLEAT__PLAN_CACHE_PATH];
    struct stat status;
    name_of(key, name);
    PLEAT_TRY(path_in(folder, name, path));
    PLEAT_TRY(note_program(plan, program));
    PLEAT_TRY(pleat_plan_write(plan, path));
    (void)chmod(path, 0600); /* a umask may let a group write, and then it would not be read */
    uint64_t most =
        most_bytes < PLEAT__PLAN_CACHE_FILE_BYTES ? most_bytes : PLEAT__PLAN_CACHE_FILE_BYTES;
    if (lstat(path, &status) == 0 && (uint64_t)status.st_size > most) {
        (void)unlink(path);
        return pleat__fail(PLEAT_E_LIMIT, "a plan of %llu bytes is not kept: the most is %llu",
                           (unsigned long long)status.st_size, (unsigned long long)most);
    }
    make_room(folder, name, most_bytes);
    return PLEAT_OK;
}

void pleat__plan_cache_touch(const char *folder, const char *name)
{
    char path[PLEAT__PLAN_CACHE_PATH];
    if (path_in(folder, name, path) == PLEAT_OK)
        (void)utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

pleat_result pleat__plan_cache_remove(const char *folder, const char *name)
{
    char path[PLEAT__PLAN_CACHE_PATH];
    pleat__plan_key key;
    if (!read_name(name, &key))
        return pleat__fail(PLEAT_E_NOT_FOUND, "'%s' is no plan's name", name);
    PLEAT_TRY(path_in(folder, name, path));
    if (unlink(path) == 0)
        return PLEAT_OK;
    return errno == ENOENT ? pleat__fail(PLEAT_E_NOT_FOUND, "there is no plan '%s'", name)
                           : pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be removed", path);
}
