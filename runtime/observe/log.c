/*
 * log.c: writes a runtime's log (see log.h).
 */
#include <runtime/observe/log.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/process.h>
#include <plan/base/file.h>
#include <plan/base/pack.h>
#include <runtime/base/states.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PATH_BYTES 4096 /* D481 */
#define NIL        0xc0
#define DEAD_KEPT  8 /* logs of runtimes that are no more, in the folder of "auto" (D199) */

#define RECORD_BYTES PLEAT__LOG_RECORD_BYTES(PLEAT__LOG_COLUMN_COUNT)

static const char *const column_names[] = {
#define COLUMN_NAME(name)          #name,
#define COUNTER_NAME(counter, say) #counter,
    PLEAT__LOG_COLUMNS(COLUMN_NAME) PLEAT_COUNTERS(COUNTER_NAME)
#undef COUNTER_NAME
#undef COLUMN_NAME
};
_Static_assert(sizeof column_names / sizeof *column_names == PLEAT__LOG_COLUMN_COUNT,
               "a record is its columns and nothing else");

/* ---- the file's place ---- */

void pleat__log_folder(char *path, size_t size)
{
    const char *run = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
    if (run != NULL && *run == '/')
        snprintf(path, size, "%s/pleat", run);
    else
        snprintf(path, size, "%s/pleat-%u", tmp != NULL && *tmp == '/' ? tmp : "/tmp", getuid());
}

/* Nobody else may have made it: what is written there could be led elsewhere. */
static pleat_result make_folder(const char *path)
{
    struct stat status;
    if (mkdir(path, 0700) != 0 && errno != EEXIST)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be made, for the log", path);
    if (lstat(path, &status) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be looked at", path);
    if (!S_ISDIR(status.st_mode) || status.st_uid != getuid())
        return pleat__fail(PLEAT_E_IO, "'%s' is not a folder of this user: no log is written there",
                           path);
    return PLEAT_OK;
}

bool pleat__log_is_locked(int fd, bool unknown)
{
    struct flock lock = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_GETLK, &lock) != 0 ? unknown : lock.l_type != F_UNLCK;
}

static bool is_locked(const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return true; /* not ours to judge */
    bool locked = pleat__log_is_locked(fd, true);
    close(fd);
    return locked;
}

static bool is_dead_log(const char *folder, const char *name, char *path, struct stat *status)
{
    size_t length = strlen(name);
    if (length < 4 || strcmp(name + length - 4, ".log") != 0)
        return false;
    return snprintf(path, PATH_BYTES, "%s/%s", folder, name) < PATH_BYTES &&
           lstat(path, status) == 0 && S_ISREG(status->st_mode) && !is_locked(path);
}

/* Removes the oldest dead log; returns whether there were more than are kept. */
static bool remove_oldest(const char *folder)
{
    char path[PATH_BYTES], oldest[PATH_BYTES] = "";
    struct timespec since = {0};
    int count = 0;
    DIR *open_folder = opendir(folder);
    if (open_folder == NULL)
        return false;
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
        struct stat status;
        if (!is_dead_log(folder, entry->d_name, path, &status))
            continue;
        struct timespec time = status.st_mtim;
        if (count++ == 0 || time.tv_sec < since.tv_sec ||
            (time.tv_sec == since.tv_sec && time.tv_nsec < since.tv_nsec)) {
            since = time;
            memcpy(oldest, path, sizeof oldest);
        }
    }
    closedir(open_folder);
    return count > DEAD_KEPT && unlink(oldest) == 0;
}

/* Appends text, cut where there is no room: a path that is as long is refused. */
static void append(char *path, size_t *length, const char *text, size_t size)
{
    size_t room = PATH_BYTES - 1 - *length;
    size = size < room ? size : room;
    memcpy(path + *length, text, size);
    *length += size;
    path[*length] = '\0';
}

/* "%p" is the process, "%d" the device, which is else put behind the name where it is not 0. */
static void fill_in(const char *given, uint64_t device, char *path)
{
    size_t length = 0;
    bool has_device = false;
    char number[24];
    for (const char *c = given; *c != '\0'; c++) {
        bool process = c[0] == '%' && c[1] == 'p', which = c[0] == '%' && c[1] == 'd';
        if (!process && !which) {
            append(path, &length, c, 1);
            continue;
        }
        snprintf(number, sizeof number, "%llu",
                 process ? (unsigned long long)getpid() : (unsigned long long)device);
        append(path, &length, number, strlen(number));
        has_device |= which;
        c++;
    }
    if (device != 0 && !has_device) {
        snprintf(number, sizeof number, ".%llu", (unsigned long long)device);
        append(path, &length, number, strlen(number));
    }
}

/* Whether a log is being written there, by this process or another one: several that were given
 * one name do not take it from each other. Two that begin at the same moment may; "%p" in the name
 * keeps processes apart. */
static bool is_written(const char *path)
{
    struct stat status;
    return lstat(path, &status) == 0 && S_ISREG(status.st_mode) && is_locked(path);
}

/* The first name of its kind that no log which is being written has: PROCESS-DEVICE.log in the
 * folder of "auto", from the second on with "-2" and so on before ".log". */
static pleat_result make_own_path(uint64_t device, char *path)
{
    char folder[PATH_BYTES / 2], number[24] = "";
    int length;
    pleat__log_folder(folder, sizeof folder);
    PLEAT_TRY(make_folder(folder));
    while (remove_oldest(folder))
        ;
    for (unsigned n = 2;; n++) {
        length = snprintf(path, PATH_BYTES, "%s/%d-%llu%s.log", folder, (int)getpid(),
                          (unsigned long long)device, number);
        if (length >= PATH_BYTES || !is_written(path))
            break;
        snprintf(number, sizeof number, "-%u", n);
    }
    return length < PATH_BYTES ? PLEAT_OK : pleat__fail(PLEAT_E_IO, "'%s' is too long", folder);
}

/* A name with "%p" and "%d" filled in; behind it the process where that log is being written, and
 * "-2" and so on where that one's is, too. */
static pleat_result make_given_path(const char *given, uint64_t device, char *path)
{
    char mark[32];
    fill_in(given, device, path);
    size_t given_length = strlen(path), length = given_length;
    snprintf(mark, sizeof mark, ".%d", (int)getpid());
    for (unsigned n = 2; length < PATH_BYTES - 1 && is_written(path); n++) {
        length = given_length;
        append(path, &length, mark, strlen(mark));
        snprintf(mark, sizeof mark, ".%d-%u", (int)getpid(), n);
    }
    return length < PATH_BYTES - 1 ? PLEAT_OK : pleat__fail(PLEAT_E_IO, "'%s' is too long", given);
}

/* ---- forks ---- */

static pthread_mutex_t logs_lock = PTHREAD_MUTEX_INITIALIZER; /* guards the list and its files */
static pleat__log *logs;                                      /* that this process writes */
static pthread_once_t logs_once = PTHREAD_ONCE_INIT;

static void lock_logs(void)
{
    pthread_mutex_lock(&logs_lock);
}

static void unlock_logs(void)
{
    pthread_mutex_unlock(&logs_lock);
}

/* A child has the files that were open, and a log that is open anywhere reads as that of a process
 * that lives. */
static void close_in_child(void)
{
    for (; logs != NULL; logs = logs->next) {
        close(logs->fd);
        logs->fd = -1;
    }
    unlock_logs();
}

/* Where it is refused for lack of memory, a child that outlives its parent keeps the log's lock. */
static void watch_forks(void)
{
    (void)pthread_atfork(lock_logs, unlock_logs, close_in_child);
}

/* Makes the log's file beside `path`; false with errno. No process is forked between the file's
 * opening and its listing, so a child has no open log that its list lacks. */
static bool open_file(pleat__log *log, const char *path, char *beside, size_t size)
{
    (void)pthread_once(&logs_once, watch_forks);
    lock_logs();
    log->fd = pleat__file_create_beside(path, beside, size);
    if (log->fd >= 0) {
        log->next = logs;
        logs = log;
    }
    unlock_logs();
    return log->fd >= 0;
}

/* ---- bytes ---- */

static bool write_at(int fd, const uint8_t *bytes, size_t size, uint64_t at)
{
    while (size > 0) {
        ssize_t wrote = pwrite(fd, bytes, size, (off_t)at);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return false;
        bytes += wrote;
        at += (uint64_t)wrote;
        size -= (size_t)wrote;
    }
    return true;
}

static uint8_t *put_u64(uint8_t *at, uint64_t value)
{
    *at++ = 0xcf;
    for (int shift = 56; shift >= 0; shift -= 8)
        *at++ = (uint8_t)(value >> shift);
    return at;
}

static void encode(const pleat__log_record *record, uint8_t *bytes)
{
    const uint64_t *values = &record->series;
    uint8_t *at = bytes;
    *at++ = 0xdc;
    *at++ = (PLEAT__LOG_COLUMN_COUNT + 1) >> 8;
    *at++ = (PLEAT__LOG_COLUMN_COUNT + 1) & 0xff;
    for (size_t i = 0; i < PLEAT__LOG_COLUMN_COUNT; i++)
        at = put_u64(at, values[i]);
    put_u64(at, pleat__pack_checksum(bytes, (size_t)(at - bytes)));
}

static const char *give_text(const void *context, uint64_t index)
{
    return ((const char *const *)context)[index];
}

static const char *give_state(const void *context, uint64_t index)
{
    (void)context;
    return pleat__state_name((pleat__state)index);
}

static pleat_result write_header(const pleat__log *log, pleat__arena *arena)
{
    const char *texts[] = {log->policy, log->command};
    uint8_t bytes[PLEAT__LOG_HEADER_BYTES];
    pleat__pack_writer writer;
    pleat__pack_open(&writer, arena);
    pleat__pack_put_header(&writer, PLEAT__LOG_NAME, PLEAT__LOG_VERSION, &log->numbers.pid,
                           sizeof log->numbers / sizeof(uint64_t));
    pleat__pack_put_texts(&writer, 2, give_text, texts);
    pleat__pack_put_texts(&writer, PLEAT__LOG_COLUMN_COUNT, give_text, column_names);
    pleat__pack_put_texts(&writer, PLEAT__STATE_COUNT, give_state, NULL);
    bool made = !writer.failed;
    PLEAT_CHECK(writer.size <= sizeof bytes);
    memset(bytes, NIL, sizeof bytes);
    if (made)
        memcpy(bytes, writer.bytes, writer.size);
    pleat__arena_free(arena, writer.bytes);
    if (!made)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a log's header");
    return write_at(log->fd, bytes, sizeof bytes, 0)
               ? PLEAT_OK
               : pleat__fail_errno(PLEAT_E_IO, "the log cannot be written");
}

/* All of the file at once, so that the disk cannot be full later. */
static pleat_result fill(const pleat__log *log, uint64_t bytes)
{
    uint8_t nils[16384];
    memset(nils, NIL, sizeof nils);
    for (uint64_t at = 0; at < bytes; at += sizeof nils) {
        size_t size = bytes - at < sizeof nils ? (size_t)(bytes - at) : sizeof nils;
        if (!write_at(log->fd, nils, size, at))
            return pleat__fail_errno(PLEAT_E_IO, "the log cannot be written");
    }
    return PLEAT_OK;
}

/* ---- the log ---- */

static uint64_t unix_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The process's command line, its arguments separated by blanks; what is no ASCII is a dot. */
static void read_command(char *command, size_t size)
{
    size_t length = pleat__process_command(command, size - 1);
    while (length > 0 && command[length - 1] == '\0')
        length--;
    for (size_t i = 0; i < length; i++) {
        char c = command[i];
        command[i] = (char)(c == '\0' ? ' ' : c < ' ' || c > '~' ? '.' : c);
    }
    command[length] = '\0';
}

static pleat_result begin_file(pleat__log *log, uint64_t bytes, pleat__arena *arena)
{
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    PLEAT_TRY(fill(log, bytes));
    PLEAT_TRY(write_header(log, arena));
    /* Held as long as the file is open: so readers know that it is written. It is the open file's
     * and not the process's: it shows within the process too, and no other close ends it. */
    if (fcntl(log->fd, F_OFD_SETLK, &lock) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "the log cannot be locked");
    return PLEAT_OK;
}

/* An earlier log gives way to a new one; a file of anything else that bears its name by mistake is
 * not taken away. */
static bool may_replace(const char *path)
{
    static const char name[] = PLEAT__LOG_NAME;
    char begin[sizeof name + 4]; /* in front of its name a log has up to 4 bytes */
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT;
    ssize_t got = read(fd, begin, sizeof begin);
    close(fd);
    return got == 0 || (got > 0 && memmem(begin, (size_t)got, name, sizeof name - 1) != NULL);
}

/* Under another name first: who reads it finds it whole. */
static pleat_result make_file(pleat__log *log, const char *path, uint64_t bytes,
                              pleat__arena *arena)
{
    char beside[PATH_BYTES + 32];
    struct stat status;
    /* A rename would put a file in the place of /dev/null. */
    if (lstat(path, &status) == 0 && !S_ISREG(status.st_mode))
        return pleat__fail(PLEAT_E_IO, "the log '%s' cannot be made: what is there is no file",
                           path);
    if (!may_replace(path))
        return pleat__fail(PLEAT_E_IO,
                           "the log '%s' cannot be made: the file that is there is no log: remove "
                           "it, or name another",
                           path);
    if (!open_file(log, path, beside, sizeof beside))
        return pleat__fail_errno(PLEAT_E_IO, "the log '%s' cannot be made", path);
    pleat_result result = begin_file(log, bytes, arena);
    if (result == PLEAT_OK && !pleat__file_take_place(log->fd, beside, sizeof beside, path))
        result = pleat__fail_errno(PLEAT_E_IO, "the log cannot be renamed");
    if (result == PLEAT_OK)
        return PLEAT_OK;
    if (beside[0] != '\0')
        unlink(beside);
    pleat__log_close(log);
    return pleat__context(result, "'%s'", path);
}

pleat_result pleat__log_create(pleat__log *log, const char *given, uint64_t bytes,
                               const char *policy, const pleat__log_numbers *numbers,
                               pleat__arena *arena)
{
    const uint64_t least = PLEAT__LOG_HEADER_BYTES + (uint64_t)RECORD_BYTES * PLEAT__LOG_SERIES *
                                                         PLEAT__LOG_LEVELS * PLEAT__LOG_SLOTS_LEAST;
    char path[PATH_BYTES];
    if (bytes < least || bytes > PLEAT__LOG_BYTES_MOST)
        return pleat__fail(PLEAT_E_INVALID, "a log of %llu bytes: it takes from %llu to %llu",
                           (unsigned long long)bytes, (unsigned long long)least,
                           PLEAT__LOG_BYTES_MOST);
    PLEAT_TRY(strcmp(given, "auto") == 0 ? make_own_path(numbers->device, path)
                                         : make_given_path(given, numbers->device, path));
    *log = (pleat__log){.numbers = *numbers, .policy = policy};
    log->numbers.pid = (uint64_t)getpid();
    log->numbers.begun_unix_ns = unix_ns();
    log->numbers.ended_unix_ns = 0;
    log->numbers.slots =
        (bytes - PLEAT__LOG_HEADER_BYTES) / RECORD_BYTES / PLEAT__LOG_SERIES / PLEAT__LOG_LEVELS;
    log->numbers.levels = PLEAT__LOG_LEVELS;
    log->numbers.fan = PLEAT__LOG_FAN;
    log->numbers.columns = PLEAT__LOG_COLUMN_COUNT;
    log->numbers.states = PLEAT__STATE_COUNT;
    read_command(log->command, sizeof log->command);
    uint64_t whole = PLEAT__LOG_HEADER_BYTES +
                     log->numbers.slots * RECORD_BYTES * PLEAT__LOG_SERIES * PLEAT__LOG_LEVELS;
    return make_file(log, path, whole, arena);
}

void pleat__log_merge(pleat__log_record *into, const pleat__log_record *record)
{
    uint64_t from = into->from_ns, low = into->low_live_bytes, live = into->high_live_bytes,
             physical = into->high_physical_bytes;
    *into = *record;
    into->from_ns = from;
    if (low < into->low_live_bytes)
        into->low_live_bytes = low;
    if (live > into->high_live_bytes)
        into->high_live_bytes = live;
    if (physical > into->high_physical_bytes)
        into->high_physical_bytes = physical;
}

static void put_level(pleat__log *log, uint32_t series, uint32_t level,
                      const pleat__log_record *given)
{
    uint8_t bytes[RECORD_BYTES];
    pleat__log_record record = *given;
    uint64_t number = log->written[series][level]++;
    uint64_t slot =
        (series * PLEAT__LOG_LEVELS + level) * log->numbers.slots + number % log->numbers.slots;
    record.series = series;
    record.level = level;
    record.number = number;
    record.lost = log->lost;
    encode(&record, bytes);
    log->lost +=
        !write_at(log->fd, bytes, sizeof bytes, PLEAT__LOG_HEADER_BYTES + slot * sizeof bytes);
}

void pleat__log_put(pleat__log *log, uint32_t series, const pleat__log_record *given)
{
    pleat__log_record record = *given;
    for (uint32_t level = 0;; level++) {
        put_level(log, series, level, &record);
        if (level + 1 == PLEAT__LOG_LEVELS)
            return;
        pleat__log_open *open = &log->open[series][level + 1];
        if (open->merged == 0)
            open->record = record;
        else
            pleat__log_merge(&open->record, &record);
        if (++open->merged < PLEAT__LOG_FAN)
            return;
        open->merged = 0;
        record = open->record;
    }
}

void pleat__log_end(pleat__log *log, pleat__arena *arena)
{
    log->numbers.ended_unix_ns = unix_ns();
    /* If the end cannot be noted the log reads as that of a process that was killed. */
    (void)!write_header(log, arena);
}

/* No process is forked between the file's leaving the list and its closing: see open_file. */
void pleat__log_close(pleat__log *log)
{
    lock_logs();
    for (pleat__log **at = &logs; *at != NULL; at = &(*at)->next)
        if (*at == log) {
            *at = log->next;
            break;
        }
    close(log->fd);
    unlock_logs();
}
