/*
 * tenants_file.c: see tenants_file.h.
 *
 * NAMES   FOLDER/pleat-u<uid>-<device>.tenants, of mode 0600, or, of a group,
 *         FOLDER/pleat-g<gid>-<device>.tenants, of mode 0660.
 * MAKING  A new file is complete before it gets its name, so nobody sees a part of one, and one of
 *         two that make it at once wins.
 */
#include <vmm/tenants/tenants_file.h>

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <internal/error.h>
#include <internal/process.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define VERSION     1u
#define MOST_BYTES  (UINT64_C(1) << 48) /* no device has so much (D480) */
#define LOCK_BYTE   0
#define SLOT_BYTE   1       /* of the first entry */
#define TRIES_MOST  2000u   /* D212 */
#define PAUSE_NS    1000000 /* between two tries, from the tenth on */
#define SPINS       10u
#define OWNERS_MOST 16

static const char magic[8] = "PLEATTN";

static pthread_mutex_t files_lock = PTHREAD_MUTEX_INITIALIZER;
static pleat__ledger_file *files;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* A fork while another thread opens a ledger would leave its lock held in the child. */
static void lock_files(void)
{
    pthread_mutex_lock(&files_lock);
}

static void unlock_files(void)
{
    pthread_mutex_unlock(&files_lock);
}

/* A child has the files that were open, and their memory, and an entry's lock lasts as long as
 * anybody has either: its parent would not be found dead. What the child may still look at is
 * memory of its own. */
static void leave_in_child(void)
{
    for (pleat__ledger_file *file = files; file != NULL; file = file->next) {
        if (file->fd < 0)
            continue; /* a parent's parent's */
        (void)mmap(file->map, sizeof *file->map, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
        close(file->fd);
        file->fd = -1;
    }
    unlock_files();
}

/* Where it is refused for lack of memory such a child may hang, as it might by any other lock, and
 * keeps its parent alive. */
static void watch_forks(void)
{
    (void)pthread_atfork(lock_files, unlock_files, leave_in_child);
}

const char *pleat__tenants_folder(void)
{
    const char *given = getenv("PLEAT_TENANTS_DIR");
    return given != NULL && *given != '\0' ? given : "/dev/shm";
}

bool pleat__tenants_is_name(const char *file, char device[64], char group[16])
{
    static const char head[] = "pleat-", tail[] = ".tenants";
    size_t length = strlen(file);
    if (length < sizeof head + sizeof tail || strncmp(file, head, sizeof head - 1) != 0 ||
        strcmp(file + length - (sizeof tail - 1), tail) != 0)
        return false;
    const char *owner = file + sizeof head - 1, *dash = strchr(owner, '-');
    if ((*owner != 'u' && *owner != 'g') || dash == NULL || dash == owner + 1 ||
        dash - owner > OWNERS_MOST - 1)
        return false;
    for (const char *digit = owner + 1; digit < dash; digit++)
        if (!isdigit((unsigned char)*digit))
            return false;
    size_t name = length - (sizeof tail - 1) - (size_t)(dash + 1 - file);
    if (name == 0 || name >= 64)
        return false;
    memcpy(device, dash + 1, name);
    device[name] = '\0';
    snprintf(group, OWNERS_MOST, "%.*s", *owner == 'g' ? (int)(dash - owner - 1) : 0, owner + 1);
    return true;
}

/* ---- trust ---- */

static pleat_result distrust(const char *path, const char *why)
{
    return pleat__fail(PLEAT_E_INPUT,
                       "%s is not trusted as a ledger of tenants: %s. If nobody uses it, remove it",
                       path, why);
}

/* `group` is -1 for the user's own. */
static pleat_result check_file(pleat__ledger_file *opened, long group)
{
    const char *path = opened->path;
    struct stat file;
    if (fstat(opened->fd, &file) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "%s", path);
    opened->device = file.st_dev;
    opened->inode = file.st_ino;
    if (!S_ISREG(file.st_mode) || file.st_nlink != 1)
        return distrust(path, "it is no plain file with one name");
    if (group < 0 && file.st_uid != geteuid())
        return distrust(path, "it is another user's");
    if (group >= 0 && file.st_gid != (gid_t)group)
        return distrust(path, "it is another group's");
    if ((file.st_mode & 07777) != (group < 0 ? 0600u : 0660u))
        return distrust(path, group < 0 ? "its mode is not 0600" : "its mode is not 0660");
    if ((uint64_t)file.st_size != sizeof(pleat__ledger_map))
        return distrust(path, "its size is another one");
    return PLEAT_OK;
}

static pleat_result check_head(const pleat__ledger_map *map, const char *path, const char *device)
{
    if (memcmp(map->magic, magic, sizeof magic) != 0)
        return distrust(path, "it does not begin like one");
    if (map->version != VERSION || map->slot_bytes != sizeof(pleat__ledger_slot))
        return distrust(path, "it is of another version");
    if (memchr(map->device, '\0', sizeof map->device) == NULL || strcmp(map->device, device) != 0)
        return distrust(path, "it is of another device");
    uint64_t bytes = atomic_load(&map->device_bytes);
    if (bytes == 0 || bytes > MOST_BYTES)
        return distrust(path, "it has no size of the device that makes sense");
    return PLEAT_OK;
}

/* ---- opening ---- */

/* A complete new file gets its name; another one may have been quicker, and its is used. */
static pleat_result make_file(const char *path, const char *device, uint64_t device_bytes,
                              long group)
{
    pleat__ledger_map head = {.version = VERSION, .slot_bytes = sizeof(pleat__ledger_slot)};
    char link[64];
    memcpy(head.magic, magic, sizeof magic);
    snprintf(head.device, sizeof head.device, "%s", device);
    atomic_init(&head.device_bytes, device_bytes);
    int fd = open(pleat__tenants_folder(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd < 0)
        return pleat__fail_errno(PLEAT_E_IO, "%s: a ledger of tenants cannot be made there",
                                 pleat__tenants_folder());
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    bool good = write(fd, &head, sizeof head) == (ssize_t)sizeof head &&
                (group < 0 || fchown(fd, (uid_t)-1, (gid_t)group) == 0) &&
                fchmod(fd, group < 0 ? 0600 : 0660) == 0 &&
                (linkat(AT_FDCWD, link, AT_FDCWD, path, AT_SYMLINK_FOLLOW) == 0 || errno == EEXIST);
    pleat_result result = good ? PLEAT_OK : pleat__fail_errno(PLEAT_E_IO, "%s", path);
    close(fd);
    return result;
}

static pleat_result map_file(pleat__ledger_file *file, const char *device, long group)
{
    pleat_result result = check_file(file, group);
    if (result != PLEAT_OK)
        return result;
    void *map =
        mmap(NULL, sizeof(pleat__ledger_map), PROT_READ | PROT_WRITE, MAP_SHARED, file->fd, 0);
    if (map == MAP_FAILED)
        return pleat__fail_errno(PLEAT_E_IO, "%s", file->path);
    file->map = map;
    result = check_head(file->map, file->path, device);
    if (result != PLEAT_OK)
        munmap(map, sizeof(pleat__ledger_map));
    return result;
}

/* A link in its place is not followed; and a pipe is not waited for. */
static int open_file(const char *path)
{
    return open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
}

static pleat_result open_new(pleat__ledger_file *file, const char *device, uint64_t device_bytes,
                             long group)
{
    file->fd = open_file(file->path);
    if (file->fd < 0 && errno == ENOENT && device_bytes != 0) {
        pleat_result made = make_file(file->path, device, device_bytes, group);
        if (made != PLEAT_OK)
            return made;
        file->fd = open_file(file->path);
    }
    if (file->fd < 0 && errno == ELOOP)
        return distrust(file->path, "it is a symbolic link");
    if (file->fd < 0 && errno == EACCES)
        return distrust(file->path, "it is another user's");
    if (file->fd < 0)
        return pleat__fail_errno(PLEAT_E_IO, "%s", file->path);
    pleat_result result = map_file(file, device, group);
    if (result != PLEAT_OK)
        close(file->fd);
    return result;
}

/* Whether a path leads to a file that is open, by that path or by another one. */
static bool is_file(const pleat__ledger_file *file, const char *path)
{
    struct stat there;
    return strcmp(file->path, path) == 0 ||
           (lstat(path, &there) == 0 && there.st_dev == file->device &&
            there.st_ino == file->inode);
}

/* Those of a parent are the parent's: their locks too. */
static pleat__ledger_file *find_file(const char *path)
{
    pleat__ledger_file *file = files;
    while (file != NULL && (file->process != pleat__process_now() || !is_file(file, path)))
        file = file->next;
    return file;
}

/* Whether the file's own name, which says whose ledger and which device's it is, is the path's. */
static bool is_called_so(const pleat__ledger_file *file, const char *path)
{
    return strcmp(strrchr(file->path, '/'), strrchr(path, '/')) == 0;
}

/* With files_lock. */
static pleat_result open_once(const char *path, const char *device, uint64_t device_bytes,
                              long group, pleat__ledger_file **out)
{
    pleat__ledger_file *file = find_file(path);
    if (file != NULL && !is_called_so(file, path))
        return distrust(path, "it is no plain file with one name");
    if (file == NULL) {
        file = calloc(1, sizeof *file);
        if (file == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a ledger");
        snprintf(file->path, sizeof file->path, "%s", path);
        pleat_result result = open_new(file, device, device_bytes, group);
        if (result != PLEAT_OK) {
            free(file);
            return result;
        }
        file->process = pleat__process_now();
        pthread_mutex_init(&file->lock, NULL);
        file->next = files;
        files = file;
    }
    file->users++;
    *out = file;
    return PLEAT_OK;
}

static pleat_result open_path(const char *name, const char *device, uint64_t device_bytes,
                              long group, pleat__ledger_file **out)
{
    char path[sizeof(*out)->path];
    int length = snprintf(path, sizeof path, "%s/%s", pleat__tenants_folder(), name);
    if (length < 0 || (size_t)length >= sizeof path)
        return pleat__fail(PLEAT_E_INVALID, "the folder of the ledgers has too long a name");
    PLEAT_TRY(pleat__process_watch());
    (void)pthread_once(&once, watch_forks);
    pthread_mutex_lock(&files_lock);
    pleat_result result = open_once(path, device, device_bytes, group, out);
    pthread_mutex_unlock(&files_lock);
    return result;
}

pleat_result pleat__ledger_group(const char *name, long *group)
{
    char space[64 << 10]; /* the names of all its members are written there */
    struct group found, *result = NULL;
    *group = -1;
    if (name == NULL || *name == '\0')
        return PLEAT_OK;
    errno = getgrnam_r(name, &found, space, sizeof space, &result);
    if (errno != 0)
        return pleat__fail_errno(PLEAT_E_INVALID, "the group '%s' cannot be looked up", name);
    if (result == NULL)
        return pleat__fail(PLEAT_E_INVALID, "there is no group '%s'", name);
    *group = (long)found.gr_gid;
    return PLEAT_OK;
}

pleat_result pleat__ledger_open(const pleat__tenant_options *options, pleat__ledger_file **out)
{
    char name[128];
    long group;
    PLEAT_TRY(pleat__ledger_group(options->group, &group));
    if (options->device_bytes == 0 || options->device_bytes > MOST_BYTES ||
        strlen(options->device) >= 64 || strchr(options->device, '/') != NULL)
        return pleat__fail(PLEAT_E_INVALID, "a device '%s' of %llu bytes", options->device,
                           (unsigned long long)options->device_bytes);
    snprintf(name, sizeof name, "pleat-%c%lu-%s.tenants", group < 0 ? 'u' : 'g',
             group < 0 ? (unsigned long)geteuid() : (unsigned long)group, options->device);
    return open_path(name, options->device, options->device_bytes, group, out);
}

pleat_result pleat__ledger_open_named(const char *name, pleat__ledger_file **out)
{
    char device[64], group[OWNERS_MOST];
    if (strchr(name, '/') != NULL || !pleat__tenants_is_name(name, device, group))
        return pleat__fail(PLEAT_E_INVALID, "'%s' is not called like a ledger of tenants", name);
    return open_path(name, device, 0, *group == '\0' ? -1 : atol(group), out);
}

void pleat__ledger_close(pleat__ledger_file *file)
{
    pthread_mutex_lock(&files_lock);
    bool last = --file->users == 0;
    for (pleat__ledger_file **at = &files; last && *at != NULL; at = &(*at)->next)
        if (*at == file) {
            *at = file->next;
            break;
        }
    /* Closed before another thread can open it again: the system ends the ledger's lock of a
     * process when that closes any descriptor of the file. */
    if (last) {
        munmap(file->map, sizeof(pleat__ledger_map));
        close(file->fd);
    }
    pthread_mutex_unlock(&files_lock);
    if (!last)
        return;
    pthread_mutex_destroy(&file->lock);
    free(file);
}

uint64_t pleat__ledger_bytes(pleat__ledger_file *file, uint64_t seen)
{
    uint64_t bytes = atomic_load(&file->map->device_bytes);
    bytes = bytes > MOST_BYTES ? 0 : bytes;
    if (bytes < seen)
        atomic_store(&file->map->device_bytes, seen);
    return bytes < seen ? seen : bytes;
}

/* ---- locks ---- */

static int lock_byte(int fd, int how, short type, off_t byte, struct flock *told)
{
    *told = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    return fcntl(fd, how, told);
}

/* PLEAT_E_NOT_READY, or what the system says of the file. */
static pleat_result not_to_be_had(const pleat__ledger_file *file, int code)
{
    struct flock told;
    if (code != EACCES && code != EAGAIN) {
        errno = code;
        return pleat__fail_errno(PLEAT_E_IO, "%s: its lock", file->path);
    }
    if (lock_byte(file->fd, F_GETLK, F_WRLCK, LOCK_BYTE, &told) != 0 || told.l_type == F_UNLCK)
        told.l_pid = 0;
    return pleat__fail(PLEAT_E_NOT_READY, "%s: process %ld has had its lock for two seconds",
                       file->path, (long)told.l_pid);
}

pleat_result pleat__ledger_lock(pleat__ledger_file *file)
{
    struct flock told;
    pthread_mutex_lock(&file->lock);
    for (uint32_t tries = 0;; tries++) {
        if (lock_byte(file->fd, F_SETLK, F_WRLCK, LOCK_BYTE, &told) == 0)
            return PLEAT_OK;
        int code = errno;
        if (tries == TRIES_MOST || (code != EACCES && code != EAGAIN && code != EINTR)) {
            pleat_result result = not_to_be_had(file, code);
            pthread_mutex_unlock(&file->lock);
            return result;
        }
        if (tries < SPINS)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    }
}

void pleat__ledger_unlock(pleat__ledger_file *file)
{
    struct flock told;
    (void)lock_byte(file->fd, F_SETLK, F_UNLCK, LOCK_BYTE, &told);
    pthread_mutex_unlock(&file->lock);
}

bool pleat__ledger_live(pleat__ledger_file *file, uint32_t slot)
{
    struct flock told;
    if (atomic_load(&file->own[slot]) ||
        lock_byte(file->fd, F_OFD_SETLK, F_WRLCK, SLOT_BYTE + (off_t)slot, &told) != 0)
        return false;
    atomic_store(&file->own[slot], true);
    return true;
}

void pleat__ledger_die(pleat__ledger_file *file, uint32_t slot)
{
    struct flock told;
    pthread_mutex_lock(&file->lock);
    atomic_store(&file->own[slot], false);
    (void)lock_byte(file->fd, F_OFD_SETLK, F_UNLCK, SLOT_BYTE + (off_t)slot, &told);
    pthread_mutex_unlock(&file->lock);
}

bool pleat__ledger_is_alive(const pleat__ledger_file *file, uint32_t slot)
{
    struct flock told;
    if (atomic_load(&file->own[slot]))
        return true;
    return lock_byte(file->fd, F_OFD_GETLK, F_WRLCK, SLOT_BYTE + (off_t)slot, &told) != 0 ||
           told.l_type != F_UNLCK;
}

/* ---- entries ---- */

static bool is_name(const char *name)
{
    size_t length = strnlen(name, PLEAT__TENANT_NAME);
    for (size_t i = 0; i < length; i++)
        if (name[i] < ' ' || name[i] > '~' || name[i] == '"' || name[i] == '\\')
            return false;
    return length < PLEAT__TENANT_NAME;
}

bool pleat__ledger_read_name(const pleat__ledger_file *file, uint32_t slot,
                             char name[PLEAT__TENANT_NAME])
{
    uint64_t words[PLEAT__TENANT_NAME / sizeof(uint64_t)];
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        words[w] = atomic_load(&file->map->slots[slot].name[w]);
    memcpy(name, words, sizeof words);
    if (is_name(name))
        return true;
    memcpy(name, "?", 2);
    return false;
}

bool pleat__ledger_read(const pleat__ledger_file *file, uint32_t slot, uint64_t device_bytes,
                        pleat__tenant_entry *entry)
{
    const pleat__ledger_slot *at = &file->map->slots[slot];
    uint64_t serial = atomic_load(&at->serial);
    if (serial == 0)
        return false;
    uint64_t priority = atomic_load(&at->priority), uid = atomic_load(&at->uid);
    *entry = (pleat__tenant_entry){
        .serial = serial,
        .pid = atomic_load(&at->pid),
        .uid = (uint32_t)uid,
        .priority = (uint32_t)priority,
        .cap_bytes = atomic_load(&at->cap_bytes),
        .use_bytes = atomic_load(&at->use_bytes),
        .other_bytes = atomic_load(&at->other_bytes),
        .idle_bytes = atomic_load(&at->idle_bytes),
        .want_bytes = atomic_load(&at->want_bytes),
        .host_bytes = atomic_load(&at->host_bytes),
    };
    uint64_t guarantee = atomic_load(&at->guarantee_bytes);
    entry->guarantee_bytes = guarantee < entry->cap_bytes ? guarantee : entry->cap_bytes;
    entry->damaged = uid > UINT32_MAX || priority > UINT32_MAX || entry->cap_bytes > device_bytes ||
                     guarantee > device_bytes || entry->use_bytes > device_bytes ||
                     entry->other_bytes > device_bytes || entry->idle_bytes > device_bytes ||
                     entry->want_bytes > device_bytes || entry->host_bytes > MOST_BYTES;
    if (entry->damaged)
        *entry = (pleat__tenant_entry){.serial = serial, .damaged = true};
    return true;
}

bool pleat__ledger_bury(pleat__ledger_file *file, uint32_t slot)
{
    uint64_t serial = atomic_load(&file->map->slots[slot].serial);
    return serial != 0 && !pleat__ledger_is_alive(file, slot) &&
           atomic_compare_exchange_strong(&file->map->slots[slot].serial, &serial, 0);
}
