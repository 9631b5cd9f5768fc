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
static void tenants_whose_file_is_closed_live_again_when_they_look(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__standing standing;
    char path[256];
    assert_ok(pleat__tenant_join(&options, &tenant));
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    snprintf(path, sizeof path, "%s/pleat-u%u-GPU-1.tenants", pleat__tenants_folder(), geteuid());
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
    assert_int_equal(dead_to_others(), 1);
    pleat__tenant_look(tenant, &standing);
    assert_int_equal(dead_to_others(), 0);
    assert_int_equal(standing.use_bytes, 1 << 20);
    pleat__tenant_leave(tenant);
}

/* Another process, which has the ledger's lock by then and does not give it back. */
static pid_t start_holder(void)
{
    int said[2];
    char letter;
    assert_int_equal(pipe(said), 0);
    pid_t child = fork();
    if (child == 0) {
        pleat__ledger_file *file;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (pleat__ledger_open(&options, &file) != PLEAT_OK ||
            pleat__ledger_lock(file) != PLEAT_OK || write(said[1], "+", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(said[1]);
    assert_int_equal(read(said[0], &letter, 1), 1);
    close(said[0]);
    return child;
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
    pid_t child = start_holder();
    atomic_store(&file->map->slots[0].cap_bytes, UINT64_MAX);
    uint64_t begun = now_ns();
    assert_ok(pleat__tenant_claim(tenant, 1 << 20));
    assert_true(now_ns() - begun < 1000000000);
    assert_true(pleat__ledger_read(file, 0, options.device_bytes, &entry));
    assert_false(entry.damaged);
    assert_int_equal(entry.cap_bytes, options.device_bytes);
    assert_int_equal(entry.use_bytes, 1 << 20);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    pleat__ledger_close(file);
    pleat__tenant_leave(tenant);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_who_join_while_the_last_one_leaves_live),
        cmocka_unit_test(tenants_by_another_path_have_the_same_file),
        cmocka_unit_test(tenants_of_another_device_have_no_link_to_the_file),
        cmocka_unit_test(tenants_whose_file_is_closed_live_again_when_they_look),
        cmocka_unit_test(tenants_entries_are_mended_without_the_ledgers_lock),
    };
    return cmocka_run_group_tests_name("tenants_file", tests, open_ledger_folder, NULL);
}
