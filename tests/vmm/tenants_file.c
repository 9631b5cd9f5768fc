/*
 * tenants_file.c: a ledger's file, as the threads of one process open and close it, and its lock,
 * which another one does not give back.
 */
#include "../child.h"
#include "../ledger_folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vmm/tenants/tenants_file.h>

#define PATIENCE_MS 300

static const pleat__tenant_options options = {
    .device = "GPU-1", .device_bytes = 1 << 30, .cap_bytes = 1 << 30};

/* Another thread, which takes the ledger's lock when a descriptor is about to be closed. */
static struct {
    bool begins;
    pthread_t thread;
    _Atomic bool locked, checked;
} other;

static void pause_ms(int ms, const _Atomic bool *until)
{
    for (; ms > 0 && !atomic_load(until); ms--)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void *lock_until_checked(void *context)
{
    pleat__ledger_file *file;
    (void)context;
    if (pleat__ledger_open(&options, &file) != PLEAT_OK)
        return NULL;
    if (pleat__ledger_lock(file) == PLEAT_OK) {
        atomic_store(&other.locked, true);
        pause_ms(100 * PATIENCE_MS, &other.checked);
        pleat__ledger_unlock(file);
    }
    pleat__ledger_close(file);
    return NULL;
}

/* In the place of the system's: the other thread has time to take the lock before it. */
int close(int fd)
{
    if (other.begins) {
        other.begins = false;
        if (pthread_create(&other.thread, NULL, lock_until_checked, NULL) != 0)
            return -1;
        pause_ms(PATIENCE_MS, &other.locked);
    }
    return (int)syscall(SYS_close, fd);
}

/* In another process, whose exit status it is: tenants that it takes for dead; 99: it finds none.
 */
static int find_dead(void)
{
    char name[64];
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    int dead = 0;
    snprintf(name, sizeof name, "pleat-u%u-GPU-1.tenants", geteuid());
    if (pleat__tenants_open(name, &all) != PLEAT_OK ||
        pleat__tenants_list(all, entries, &count) != PLEAT_OK || count == 0)
        return 99;
    for (uint32_t i = 0; i < count; i++)
        dead += !entries[i].alive;
    return dead;
}

/* Tenants that another process takes for dead. */
static int dead_to_others(void)
{
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(find_dead());
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* In another process, whose exit status it is: 0 where somebody has the ledger's lock. */
static int find_lock(void)
{
    struct flock told = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 1};
    char path[256];
    snprintf(path, sizeof path, "%s/pleat-u%u-GPU-1.tenants", pleat__tenants_folder(), geteuid());
    int fd = open(path, O_RDWR | O_CLOEXEC);
    return fcntl(fd, F_GETLK, &told) == 0 && told.l_type == F_WRLCK ? 0 : 1;
}

/* The system ends the ledger's lock of a process when that closes any descriptor of the file. */
static void tenants_who_leave_do_not_end_the_ledgers_lock(void **state)
{
    (void)state;
    pleat__tenant *leaving;
    int status;
    assert_ok(pleat__tenant_join(&options, &leaving));
    other.begins = true;
    pleat__tenant_leave(leaving);
    assert_false(other.begins);
    pause_ms(100 * PATIENCE_MS, &other.locked);
    assert_true(other.locked);
    pid_t child = fork();
    if (child == 0)
        _exit(find_lock());
    assert_int_equal(waitpid(child, &status, 0), child);
    atomic_store(&other.checked, true);
    assert_int_equal(pthread_join(other.thread, NULL), 0);
    assert_int_equal(status, 0);
}

/* Else the two would not know of each other what the process has. */
static void tenants_by_another_path_have_the_same_file(void **state)
{
    (void)state;
    pleat__tenant *first, *second;
    char *folder = strdup(pleat__tenants_folder()), path[256];
    assert_non_null(folder);
    assert_ok(pleat__tenant_join(&options, &first));
    snprintf(path, sizeof path, "%s/.", folder);
    assert_int_equal(setenv("PLEAT_TENANTS_DIR", path, 1), 0);
    assert_ok(pleat__tenant_join(&options, &second));
    pleat__tenant_count(second, 5);
    assert_int_equal(pleat__tenant_process_bytes(first), 5);
    pleat__tenant_leave(second);
    assert_int_equal(setenv("PLEAT_TENANTS_DIR", folder, 1), 0);
    assert_int_equal(dead_to_others(), 0);
    pleat__tenant_leave(first);
    free(folder);
}

/* A second name of the ledger that is open, which another device's would have: it is refused, and
 * not opened for that, since closing it would end the lock. */
static void tenants_of_another_device_have_no_link_to_the_file(void **state)
{
    (void)state;
    const pleat__tenant_options others = {
        .device = "GPU-2", .device_bytes = 1 << 30, .cap_bytes = 1 << 30};
    pleat__tenant *first, *second;
    char name[2][256];
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "%s/pleat-u%u-GPU-%d.tenants", pleat__tenants_folder(),
                 geteuid(), 1 + i);
    assert_ok(pleat__tenant_join(&options, &first));
    assert_int_equal(link(name[0], name[1]), 0);
    assert_result(pleat__tenant_join(&others, &second), PLEAT_E_INPUT);
    assert_int_equal(unlink(name[1]), 0);
    assert_int_equal(dead_to_others(), 0);
    pleat__tenant_leave(first);
}

/* As a program does that reads its own ledger. */
static void close_file(void)
{
    char path[256];
    snprintf(path, sizeof path, "%s/pleat-u%u-GPU-1.tenants", pleat__tenants_folder(), geteuid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
}

/* In another process, whose exit status it is: 0 where it may claim what the others have left of
 * the device and no more. */
static int claim_rest(uint64_t left)
{
    pleat__tenant *tenant;
    if (pleat__tenant_join(&options, &tenant) != PLEAT_OK)
        return 1;
    return pleat__tenant_claim(tenant, left + 1) == PLEAT_E_BUDGET ? 0 : 2;
}

/* Else another process would have its share, and join in its entry, into which both would write. */
static void tenants_whose_file_is_closed_live_on(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__standing standing;
    assert_ok(pleat__tenant_join(&options, &tenant));
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    close_file();
    assert_int_equal(dead_to_others(), 0);
    pid_t child = fork();
    if (child == 0)
        _exit(claim_rest(options.device_bytes - (1 << 20)));
    assert_child_ends(child);
    pleat__tenant_look(tenant, &standing);
    assert_int_equal(standing.use_bytes, 1 << 20);
    assert_int_equal(standing.allowed_bytes, options.device_bytes);
    pleat__tenant_leave(tenant);
}

/* Does not give the ledger's lock back. */
static bool hold_lock(void *with)
{
    (void)with;
    pleat__ledger_file *file;
    return pleat__ledger_open(&options, &file) == PLEAT_OK && pleat__ledger_lock(file) == PLEAT_OK;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* A claim waits for no other process, whatever is in the ledger. */
static void tenants_entries_are_mended_without_the_ledgers_lock(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__ledger_file *file;
    pleat__tenant_entry entry;
    assert_ok(pleat__tenant_join(&options, &tenant));
    assert_ok(pleat__ledger_open(&options, &file));
    pid_t child = start_child(hold_lock, NULL);
    atomic_store(&file->map->slots[0].cap_bytes, UINT64_MAX);
    uint64_t begun = now_ns();
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    assert_true(now_ns() - begun < 1000000000);
    assert_true(pleat__ledger_read(file, 0, options.device_bytes, &entry));
    assert_false(entry.damaged);
    assert_int_equal(entry.cap_bytes, options.device_bytes);
    assert_int_equal(entry.use_bytes, 1 << 20);
    kill_child(child);
    pleat__ledger_close(file);
    pleat__tenant_leave(tenant);
}

/* Claims, and ends once a child of it runs, which goes on until its end of a pipe is read no more.
 */
static void claim_and_fork(int until)
{
    pleat__tenant *tenant;
    int runs[2];
    char letter;
    if (pipe(runs) != 0 || pleat__tenant_join(&options, &tenant) != PLEAT_OK ||
        pleat__tenant_claim(tenant, options.device_bytes) != PLEAT_OK)
        _exit(1);
    pid_t child = fork();
    if (child == 0)
        _exit(write(runs[1], "+", 1) != 1 || read(until, &letter, 1) != 0);
    _exit(child < 0 || read(runs[0], &letter, 1) != 1);
}

/* A child has what its parent had open. */
static void tenants_who_end_before_their_children_leave_their_share(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    int until[2];
    assert_int_equal(pipe2(until, O_CLOEXEC), 0);
    assert_ok(pleat__tenant_join(&options, &tenant));
    pid_t child = fork();
    if (child == 0) {
        close(until[1]);
        claim_and_fork(until[0]);
    }
    assert_child_ends(child);
    assert_ok(pleat__tenant_claim(tenant, options.device_bytes));
    close(until[0]);
    close(until[1]);
    pleat__tenant_leave(tenant);
}

static void tenants_terms_of_a_damaged_entry_leave_its_cap(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    pleat__ledger_file *file;
    char name[64];
    uint32_t count, priority = 1;
    assert_ok(pleat__tenant_join(&options, &tenant));
    assert_ok(pleat__ledger_open(&options, &file));
    snprintf(name, sizeof name, "pleat-u%u-GPU-1.tenants", geteuid());
    assert_ok(pleat__tenants_open(name, &all));
    atomic_store(&file->map->slots[0].cap_bytes, UINT64_MAX);
    assert_ok(pleat__tenants_list(all, entries, &count));
    assert_int_equal(count, 1);
    assert_true(entries[0].damaged);
    assert_ok(pleat__tenants_set(all, entries[0].serial, NULL, NULL, &priority));
    assert_ok(pleat__tenant_claim(tenant, options.device_bytes));
    pleat__tenants_close(all);
    pleat__ledger_close(file);
    pleat__tenant_leave(tenant);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_who_leave_do_not_end_the_ledgers_lock),
        cmocka_unit_test(tenants_by_another_path_have_the_same_file),
        cmocka_unit_test(tenants_of_another_device_have_no_link_to_the_file),
        cmocka_unit_test(tenants_whose_file_is_closed_live_on),
        cmocka_unit_test(tenants_entries_are_mended_without_the_ledgers_lock),
        cmocka_unit_test(tenants_who_end_before_their_children_leave_their_share),
        cmocka_unit_test(tenants_terms_of_a_damaged_entry_leave_its_cap),
    };
    return cmocka_run_group_tests_name("tenants_file", tests, open_ledger_folder, NULL);
}
