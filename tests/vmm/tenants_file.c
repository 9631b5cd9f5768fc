/*
 * tenants_file.c: a ledger's file, as the threads of one process open and close it, and its lock,
 * which another one does not give back.
 */
#include "../ledger_folder.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vmm/tenants/tenants_file.h>

#define PATIENCE_MS 300

static const pleat__tenant_options options = {
    .device = "GPU-1", .device_bytes = 1 << 30, .cap_bytes = 1 << 30};

/* Another thread, which joins when a descriptor is about to be closed. */
static struct {
    bool begins;
    pthread_t thread;
    pleat__tenant *tenant;
    _Atomic bool joined;
} other;

static void *join(void *context)
{
    (void)context;
    if (pleat__tenant_join(&options, &other.tenant) == PLEAT_OK)
        atomic_store(&other.joined, true);
    return NULL;
}

/* In the place of the system's: the other thread has time to join before it. */
int close(int fd)
{
    if (other.begins) {
        other.begins = false;
        if (pthread_create(&other.thread, NULL, join, NULL) != 0)
            return -1;
        for (int ms = 0; ms < PATIENCE_MS && !atomic_load(&other.joined); ms++)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
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

/* The system ends the locks that a process has on a file when it closes any descriptor of it. */
static void tenants_who_join_while_the_last_one_leaves_live(void **state)
{
    (void)state;
    pleat__tenant *leaving;
    assert_ok(pleat__tenant_join(&options, &leaving));
    other.begins = true;
    pleat__tenant_leave(leaving);
    assert_false(other.begins);
    assert_int_equal(pthread_join(other.thread, NULL), 0);
    assert_true(other.joined);
    assert_int_equal(dead_to_others(), 0);
    pleat__tenant_leave(other.tenant);
}

/* Else the one that leaves would end the other one's lock, and others would have its share. */
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
    pleat__tenant_leave(second);
    assert_int_equal(setenv("PLEAT_TENANTS_DIR", folder, 1), 0);
    assert_int_equal(dead_to_others(), 0);
    pleat__tenant_leave(first);
    free(folder);
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

static void tenants_whose_file_is_closed_live_again_when_they_look(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__standing standing;
    assert_ok(pleat__tenant_join(&options, &tenant));
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    close_file();
    assert_int_equal(dead_to_others(), 1);
    pleat__tenant_look(tenant, &standing);
    assert_int_equal(dead_to_others(), 0);
    assert_int_equal(standing.use_bytes, 1 << 20);
    pleat__tenant_leave(tenant);
}

/* Another process, which has done something by then and does not end. */
static pid_t start_process(bool (*does)(void))
{
    int said[2];
    char letter;
    assert_int_equal(pipe(said), 0);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!does() || write(said[1], "+", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(said[1]);
    assert_int_equal(read(said[0], &letter, 1), 1);
    close(said[0]);
    return child;
}

static void end_process(pid_t child)
{
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

/* Does not give the ledger's lock back. */
static bool hold_lock(void)
{
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
    pid_t child = start_process(hold_lock);
    atomic_store(&file->map->slots[0].cap_bytes, UINT64_MAX);
    uint64_t begun = now_ns();
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    assert_true(now_ns() - begun < 1000000000);
    assert_true(pleat__ledger_read(file, 0, options.device_bytes, &entry));
    assert_false(entry.damaged);
    assert_int_equal(entry.cap_bytes, options.device_bytes);
    assert_int_equal(entry.use_bytes, 1 << 20);
    end_process(child);
    pleat__ledger_close(file);
    pleat__tenant_leave(tenant);
}

/* Joins in the entry of who seems to be dead, and has a quarter of the device. */
static bool take_entry(void)
{
    pleat__tenant *tenant;
    pleat__tenant_options taking = options;
    taking.name = "taking";
    return pleat__tenant_join(&taking, &tenant) == PLEAT_OK &&
           pleat__tenant_claim(tenant, options.device_bytes / 4) == PLEAT_OK;
}

/* What is in the ledger of a tenant; its bytes, and (may be NULL) what it is guaranteed. */
static uint64_t told_of(pleat__ledger_file *file, const char *name, uint64_t *guarantee)
{
    for (uint32_t s = 0; s < PLEAT__TENANTS_MOST; s++) {
        pleat__tenant_entry entry;
        if (!pleat__ledger_read(file, s, options.device_bytes, &entry) ||
            !pleat__ledger_read_name(file, s, entry.name) || strcmp(entry.name, name) != 0)
            continue;
        assert_true(pleat__ledger_is_alive(file, s));
        if (guarantee != NULL)
            *guarantee = entry.guarantee_bytes;
        return entry.use_bytes;
    }
    fail_msg("%s is not in the ledger", name);
    return 0;
}

/* Both would write into one entry, and neither would see what the other one has. `acts` is what the
 * first one does next: it looks, or does something else before. */
static void lose_entry(void (*acts)(pleat__tenant *tenant))
{
    pleat__tenant *tenant;
    pleat__ledger_file *file;
    pleat__standing standing;
    uint64_t eighth = options.device_bytes / 8, guarantee;
    pleat__tenant_options losing = options;
    losing.name = "losing";
    losing.guarantee_bytes = eighth;
    assert_ok(pleat__ledger_open(&options, &file));
    assert_ok(pleat__tenant_join(&losing, &tenant));
    assert_ok(pleat__tenant_claim(tenant, 4 * eighth));
    close_file();
    pid_t child = start_process(take_entry);
    acts(tenant);
    assert_int_equal(told_of(file, "taking", NULL), 2 * eighth);
    pleat__tenant_look(tenant, &standing);
    assert_int_equal(standing.allowed_bytes, 6 * eighth);
    assert_int_equal(told_of(file, "taking", NULL), 2 * eighth);
    assert_int_equal(told_of(file, "losing", &guarantee), standing.use_bytes);
    assert_int_equal(guarantee, eighth);
    assert_int_equal(pleat__tenant_claim(tenant, 4 * eighth), PLEAT_E_BUDGET);
    pleat__tenant_leave(tenant);
    assert_int_equal(told_of(file, "taking", NULL), 2 * eighth);
    end_process(child);
    pleat__ledger_close(file);
}

static void look_only(pleat__tenant *tenant)
{
    (void)tenant;
}

static void unclaim_first(pleat__tenant *tenant)
{
    pleat__tenant_unclaim(tenant, options.device_bytes / 8);
    pleat__tenant_raise(tenant, options.device_bytes);
    pleat__tenant_tell(tenant, 0, 1 << 20, 0);
}

static void claim_first(pleat__tenant *tenant)
{
    assert_int_equal(pleat__tenant_claim(tenant, options.device_bytes / 2), PLEAT_E_BUDGET);
    assert_ok(pleat__tenant_claim(tenant, options.device_bytes / 8));
}

static void tenants_whose_entry_was_taken_have_another_one(void **state)
{
    (void)state;
    lose_entry(look_only);
    lose_entry(unclaim_first);
    lose_entry(claim_first);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_who_join_while_the_last_one_leaves_live),
        cmocka_unit_test(tenants_by_another_path_have_the_same_file),
        cmocka_unit_test(tenants_whose_file_is_closed_live_again_when_they_look),
        cmocka_unit_test(tenants_entries_are_mended_without_the_ledgers_lock),
        cmocka_unit_test(tenants_whose_entry_was_taken_have_another_one),
    };
    return cmocka_run_group_tests_name("tenants_file", tests, open_ledger_folder, NULL);
}
