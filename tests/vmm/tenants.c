/*
 * tenants.c: the ledger that processes share: its rules, whom it trusts, and what becomes of it
 * when tenants die or write nonsense.
 *
 *   test_vmm_tenants [SECONDS [SEED]]    how long processes are killed for (test_rounds of 5)
 */
#include "../child.h"
#include "../ledger_folder.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <vmm/space.h>
#include <vmm/tenants/tenants_file.h>

#define MIB    (1ull << 20)
#define DEVICE (64 * MIB)

static double seconds;
static uint64_t seed = 1;

/* ---- what the tests share ---- */

static const char *path_of_ledger(void)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/pleat-u%u-GPU-1.tenants", test_folder(), geteuid());
    return path;
}

static pleat_result try_join(const char *name, uint64_t guarantee, uint64_t cap, uint32_t priority,
                             pleat__tenant **out)
{
    pleat__tenant_options options = {.device = "GPU-1",
                                     .device_bytes = DEVICE,
                                     .name = name,
                                     .guarantee_bytes = guarantee,
                                     .cap_bytes = cap,
                                     .priority = priority};
    return pleat__tenant_join(&options, out);
}

static pleat__tenant *join(const char *name, uint64_t guarantee, uint64_t cap, uint32_t priority)
{
    pleat__tenant *tenant;
    assert_ok(try_join(name, guarantee, cap, priority, &tenant));
    return tenant;
}

static pleat__standing look(pleat__tenant *tenant)
{
    pleat__standing standing;
    pleat__tenant_look(tenant, &standing);
    return standing;
}

static uint32_t list(pleat__tenant_entry entries[PLEAT__TENANTS_MOST])
{
    pleat__tenants *all;
    uint32_t count;
    assert_ok(pleat__tenants_open(strrchr(path_of_ledger(), '/') + 1, &all));
    assert_ok(pleat__tenants_list(all, entries, &count));
    pleat__tenants_close(all);
    return count;
}

static bool has(const char *text)
{
    return strstr(pleat_last_error()->text, text) != NULL;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t draw(uint64_t *random)
{
    *random ^= *random << 13;
    *random ^= *random >> 7;
    *random ^= *random << 17;
    return *random;
}

/* ---- rules ---- */

static void tenants_never_have_more_than_their_cap_or_the_device(void **state)
{
    (void)state;
    pleat__tenant *a = join("a", 0, 40 * MIB, 0), *b = join("b", 0, 0, 0);
    assert_ok(pleat__tenant_claim(a, 40 * MIB));
    assert_result(pleat__tenant_claim(a, 1), PLEAT_E_BUDGET);
    assert_true(has("its cap is 40.00 MiB"));
    assert_ok(pleat__tenant_claim(b, 20 * MIB));
    assert_result(pleat__tenant_claim(b, 5 * MIB), PLEAT_E_BUDGET);
    assert_true(has("leaves it 24.00 MiB"));
    assert_result(pleat__tenant_claim(b, UINT64_MAX), PLEAT_E_BUDGET);
    pleat__tenant_unclaim(a, 10 * MIB);
    assert_ok(pleat__tenant_claim(b, 5 * MIB));
    assert_int_equal(look(b).use_bytes, 25 * MIB);
    /* Other memory of a tenant's is nobody else's. */
    pleat__tenant_tell(a, 9 * MIB, 3 * MIB, 7);
    assert_result(pleat__tenant_claim(b, MIB), PLEAT_E_BUDGET);
    pleat__tenant_leave(a);
    /* Nor is its own there twice. */
    pleat__tenant_tell(b, 4 * MIB, 0, 0);
    assert_result(pleat__tenant_claim(b, 39 * MIB), PLEAT_E_BUDGET);
    pleat__tenant_tell(b, 0, 0, 0);
    assert_ok(pleat__tenant_claim(b, 39 * MIB));
    pleat__tenant_leave(b);
}

static void tenants_borrow_what_is_idle_and_give_it_back(void **state)
{
    (void)state;
    pleat__tenant *lender = join("lender", 40 * MIB, 0, 0),
                  *borrower = join("borrower", 16 * MIB, 0, 0);
    assert_ok(pleat__tenant_claim(lender, 4 * MIB));
    assert_ok(pleat__tenant_claim(borrower, 60 * MIB));
    assert_int_equal(look(borrower).debt_bytes, 0);
    uint64_t news = pleat__tenant_news(borrower);
    assert_result(pleat__tenant_claim(lender, 2 * MIB), PLEAT_E_BUDGET);
    pleat__tenant_want(lender, 2 * MIB);
    assert_true(pleat__tenant_news(borrower) != news);
    /* All that the lender is guaranteed, not just what it asked for first: more will come. */
    assert_int_equal(look(borrower).debt_bytes, 36 * MIB);
    assert_int_equal(look(borrower).allowed_bytes, 24 * MIB);
    assert_true(look(borrower).pressed);
    pleat__tenant_unclaim(borrower, 36 * MIB);
    assert_int_equal(look(borrower).debt_bytes, 0);
    assert_ok(pleat__tenant_claim(lender, 2 * MIB));
    pleat__tenant_want(lender, 0);
    /* It stays the lender's for a second, so that it does not go back and forth. */
    assert_result(pleat__tenant_claim(borrower, 2 * MIB), PLEAT_E_BUDGET);
    assert_ok(pleat__tenant_claim(lender, 34 * MIB));
    pleat__tenant_unclaim(lender, 34 * MIB);
    struct timespec second = {.tv_sec = 1, .tv_nsec = 20000000};
    nanosleep(&second, NULL);
    assert_ok(pleat__tenant_claim(borrower, 34 * MIB));
    /* Within its own guarantee nobody asks it for anything. */
    pleat__tenant_unclaim(borrower, 44 * MIB);
    pleat__tenant_want(lender, 60 * MIB);
    assert_int_equal(look(borrower).debt_bytes, 0);
    pleat__tenant_leave(lender);
    pleat__tenant_leave(borrower);
}

static void tenants_give_way_to_a_higher_priority(void **state)
{
    (void)state;
    pleat__tenant *low = join("low", 8 * MIB, 0, 1), *high = join("high", 0, 0, 5);
    assert_ok(pleat__tenant_claim(low, 64 * MIB));
    pleat__tenant_want(high, 20 * MIB);
    assert_int_equal(look(low).debt_bytes, 20 * MIB);
    assert_int_equal(look(low).allowed_bytes, 44 * MIB);
    pleat__tenant_want(high, 64 * MIB);
    assert_int_equal(look(low).debt_bytes, 56 * MIB); /* never its guarantee */
    pleat__tenant_unclaim(low, 56 * MIB);
    assert_ok(pleat__tenant_claim(high, 56 * MIB));
    assert_int_equal(look(high).debt_bytes, 0);
    pleat__tenant_leave(low);
    pleat__tenant_leave(high);
}

static void tenants_guarantees_fit_the_device(void **state)
{
    (void)state;
    pleat__tenant *a = join("a", 40 * MIB, 0, 0), *b;
    assert_result(try_join("b", 30 * MIB, 0, 0, &b), PLEAT_E_LIMIT);
    assert_true(has("others are guaranteed 40.00 MiB"));
    assert_result(try_join("b", 10 * MIB, 8 * MIB, 0, &b), PLEAT_E_LIMIT);
    assert_ok(try_join("b", 24 * MIB, 0, 0, &b));
    pleat__tenant_leave(b);
    pleat__tenant_leave(a);
}

static void tenants_terms_can_be_set(void **state)
{
    (void)state;
    pleat__tenant *a = join("a", 8 * MIB, 0, 0), *b = join("b\"\n\\", 8 * MIB, 0, 0);
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    pleat__tenants *all;
    uint32_t count, priority = 3;
    uint64_t guarantee = 56 * MIB, cap = 60 * MIB, too_much = 57 * MIB;
    assert_ok(pleat__tenant_claim(a, 62 * MIB));
    assert_ok(pleat__tenants_open(strrchr(path_of_ledger(), '/') + 1, &all));
    assert_int_equal(pleat__tenants_device_bytes(all), DEVICE);
    assert_ok(pleat__tenants_list(all, entries, &count));
    assert_int_equal(count, 2);
    assert_string_equal(entries[0].name, "a");
    assert_string_equal(entries[1].name, "b???");
    assert_int_equal(entries[0].pid, getpid());
    assert_int_equal(entries[0].use_bytes, 62 * MIB);
    assert_true(entries[0].alive && !entries[0].damaged);
    uint64_t serial = entries[0].serial;
    assert_result(pleat__tenants_set(all, serial, &too_much, NULL, NULL), PLEAT_E_LIMIT);
    assert_ok(pleat__tenants_set(all, serial, &guarantee, &cap, &priority));
    assert_result(pleat__tenants_set(all, 999, &guarantee, &cap, &priority), PLEAT_E_NOT_FOUND);
    assert_int_equal(look(a).allowed_bytes, 60 * MIB);
    uint64_t asked = look(a).reclaim;
    assert_ok(pleat__tenants_reclaim(all, serial));
    assert_true(look(a).reclaim != asked);
    assert_result(pleat__tenants_reclaim(all, 999), PLEAT_E_NOT_FOUND);
    pleat__tenants_close(all);
    assert_int_equal(list(entries), 2);
    assert_int_equal(entries[0].guarantee_bytes, 56 * MIB);
    assert_int_equal(entries[0].priority, 3);
    assert_false(entries[0].damaged);
    pleat__tenant_leave(b);
    pleat__tenant_leave(a);
    assert_int_equal(list(entries), 0);
}

static void tenants_of_a_device_that_nobody_shares_are_not_found(void **state)
{
    (void)state;
    pleat__tenants *all;
    assert_true(pleat__tenants_open("pleat-u0-nothing.tenants", &all) != PLEAT_OK);
    assert_true(pleat_last_error()->text[0] != '\0');
}

static void tenants_all_entries_can_be_in_use(void **state)
{
    (void)state;
    pleat__tenant *all[PLEAT__TENANTS_MOST], *more;
    for (uint32_t t = 0; t < PLEAT__TENANTS_MOST; t++)
        all[t] = join("one", 0, 0, 0);
    assert_result(try_join("more", 0, 0, 0, &more), PLEAT_E_LIMIT);
    pleat__tenant_leave(all[17]);
    all[17] = join("again", 0, 0, 0);
    for (uint32_t t = 0; t < PLEAT__TENANTS_MOST; t++)
        pleat__tenant_leave(all[t]);
}

static void tenants_of_a_space_claim_what_it_makes(void **state)
{
    (void)state;
    pleat_vmm host;
    pleat__arena *arena;
    pleat__space *space;
    pleat__chunk *chunks[32];
    pleat_host_options options = {.size = sizeof options, .device_bytes = DEVICE};
    pleat__tenant *neighbour = join("neighbour", 0, 0, 0), *own = join("own", 0, 0, 0);
    assert_ok(pleat__tenant_claim(neighbour, 50 * MIB));
    assert_ok(pleat_vmm_host(&options, &host));
    assert_ok(pleat__arena_create(&arena));
    assert_ok(pleat__space_create(host, arena, &(pleat__space_options){0}, &space));
    assert_ok(pleat__space_chunk_get(space, 1, &chunks[0]));
    assert_ok(pleat__space_set_tenant(space, own));
    for (int c = 1; c < 7; c++)
        assert_ok(pleat__space_chunk_get(space, 1, &chunks[c]));
    assert_int_equal(look(own).use_bytes, 14 * MIB);
    assert_result(pleat__space_chunk_get(space, 1, &chunks[7]), PLEAT_E_BUDGET);
    /* What the ledger refuses counts for nothing: seven chunks of eight are in use. */
    pleat__space_set_budget(space, 8 * 2 * MIB);
    assert_int_equal(pleat__space_room(space), 2 * MIB);
    pleat__space_set_budget(space, 0);
    assert_true(has("what others have"));
    pleat__space_chunk_put(space, chunks[6]);
    assert_int_equal(pleat__space_trim(space, 0), 2 * MIB);
    assert_int_equal(look(own).use_bytes, 12 * MIB);
    for (int c = 0; c < 6; c++)
        pleat__space_chunk_put(space, chunks[c]);
    pleat__space_destroy(space);
    pleat__tenant_leave(own);
    pleat__tenant_leave(neighbour);
    pleat__arena_destroy(arena);
    assert_nothing_held(&host);
    pleat_vmm_destroy(&host);
}

/* ---- death ---- */

/* What a process does that is killed then: it joins and claims, and with `holds` has the ledger's
 * lock. */
typedef struct one_to_kill {
    uint64_t bytes;
    bool holds;
} one_to_kill;

static bool be_victim(void *with)
{
    const one_to_kill *v = with;
    pleat__tenant *tenant;
    pleat__ledger_file *file;
    pleat__tenant_options options = {.device = "GPU-1", .device_bytes = DEVICE};
    return pleat__tenant_join(&options, &tenant) == PLEAT_OK &&
           pleat__tenant_claim(tenant, v->bytes) == PLEAT_OK &&
           pleat__ledger_open(&options, &file) == PLEAT_OK &&
           (!v->holds || pleat__ledger_lock(file) == PLEAT_OK);
}

static pid_t start_victim(uint64_t bytes, bool holds)
{
    return start_child(be_victim, &(one_to_kill){bytes, holds});
}

static void tenants_that_die_leave_their_share(void **state)
{
    (void)state;
    for (int holds = 0; holds < 2; holds++) {
        pleat__tenant *tenant = join("heir", 0, 0, 0);
        pid_t child = start_victim(60 * MIB, holds != 0);
        if (!holds)
            assert_result(pleat__tenant_claim(tenant, 10 * MIB), PLEAT_E_BUDGET);
        kill_child(child);
        assert_ok(pleat__tenant_claim(tenant, DEVICE));
        pleat__tenant_leave(tenant);
    }
}

static void tenants_a_lock_that_is_not_given_back_is_said(void **state)
{
    (void)state;
    pleat__tenant *tenant = join("waiting", 0, 0, 0);
    pid_t child = start_victim(MIB, true);
    char number[32];
    snprintf(number, sizeof number, "process %d has had its lock", (int)child);
    pleat__tenant *late;
    assert_result(try_join("late", 0, 0, 0, &late), PLEAT_E_NOT_READY);
    assert_true(has(number));
    /* Who is there needs no lock to have memory, and to give it back. */
    uint64_t begun = now_ns();
    assert_ok(pleat__tenant_claim(tenant, 63 * MIB));
    assert_result(pleat__tenant_claim(tenant, MIB), PLEAT_E_BUDGET);
    pleat__tenant_unclaim(tenant, 63 * MIB);
    pleat__tenant_want(tenant, MIB);
    assert_int_equal(look(tenant).use_bytes, 0);
    assert_true(now_ns() - begun < 1000000000u);
    kill_child(child);
    assert_ok(try_join("late", 0, 0, 0, &late));
    assert_ok(pleat__tenant_claim(late, 64 * MIB));
    pleat__tenant_leave(late);
    pleat__tenant_leave(tenant);
}

/* Two processes claim the last of the device again and again: one of them has it, never both, and
 * where one has given it back the other one gets it. */
static void tenants_who_claim_at_once_never_both_get_it(void **state)
{
    enum { ROUNDS = 100000 };
    (void)state;
    struct {
        _Atomic uint64_t holders, got, wrong;
    } *both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(both, MAP_FAILED);
    pid_t children[2];
    for (int c = 0; c < 2; c++) {
        children[c] = fork();
        assert_true(children[c] >= 0);
        if (children[c] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pleat__tenant *tenant;
        if (try_join("rival", 0, 0, 0, &tenant) != PLEAT_OK)
            _exit(1);
        for (int r = 0; r < ROUNDS; r++) {
            if (pleat__tenant_claim(tenant, 40 * MIB) != PLEAT_OK)
                continue;
            atomic_fetch_add(&both->got, 1);
            atomic_fetch_add(&both->wrong, atomic_fetch_add(&both->holders, 1) != 0);
            atomic_fetch_sub(&both->holders, 1);
            pleat__tenant_unclaim(tenant, 40 * MIB);
        }
        pleat__tenant_leave(tenant);
        _exit(0);
    }
    for (int c = 0; c < 2; c++) {
        int status;
        assert_int_equal(waitpid(children[c], &status, 0), children[c]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(atomic_load(&both->wrong), 0);
    assert_true(atomic_load(&both->got) > ROUNDS / 10);
    munmap(both, sizeof *both);
}

static void tenants_of_a_parent_are_not_a_childs(void **state)
{
    (void)state;
    pleat__tenant *tenant = join("parent", 0, 0, 0);
    assert_ok(pleat__tenant_claim(tenant, 10 * MIB));
    pid_t child = fork();
    if (child == 0) {
        pleat__tenant *own = NULL;
        pleat__tenant_leave(tenant); /* does nothing */
        bool good = try_join("child", 0, 0, 0, &own) == PLEAT_OK &&
                    pleat__tenant_claim(own, 54 * MIB) == PLEAT_OK &&
                    pleat__tenant_claim(own, MIB) == PLEAT_E_BUDGET;
        pleat__tenant_leave(own);
        _exit(good ? 0 : 1);
    }
    assert_child_ends(child);
    assert_int_equal(look(tenant).use_bytes, 10 * MIB);
    pleat__tenant_leave(tenant);
}

/* ---- trust ---- */

/* Joining is refused, says why, and leaves what lies there as it is. */
static void assert_distrusted(const char *why)
{
    pleat__tenant *tenant;
    struct stat before, after;
    assert_int_equal(lstat(path_of_ledger(), &before), 0);
    assert_result(try_join("one", 0, 0, 0, &tenant), PLEAT_E_INPUT);
    assert_true(has(why) && has(path_of_ledger()) && has("remove it"));
    assert_int_equal(lstat(path_of_ledger(), &after), 0);
    assert_true(before.st_ino == after.st_ino && before.st_size == after.st_size &&
                before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
}

/* A ledger that nobody uses. */
static void make_ledger(void)
{
    unlink(path_of_ledger());
    pleat__tenant_leave(join("one", 0, 0, 0));
}

static void write_at(off_t at, const void *bytes, size_t count)
{
    int fd = open(path_of_ledger(), O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, bytes, count, at), count);
    close(fd);
}

static void tenants_files_that_are_not_trusted_are_refused(void **state)
{
    (void)state;
    char other[256];
    const uint32_t version = 99;
    const uint64_t none = 0;
    snprintf(other, sizeof other, "%s/other", test_folder());
    make_ledger();
    struct stat made;
    assert_int_equal(stat(path_of_ledger(), &made), 0);
    assert_int_equal(made.st_mode & 07777, 0600);
    assert_int_equal(chmod(path_of_ledger(), 0666), 0);
    assert_distrusted("its mode is not 0600");
    assert_int_equal(chmod(path_of_ledger(), 0600), 0);
    assert_int_equal(link(path_of_ledger(), other), 0);
    assert_distrusted("no plain file with one name");
    assert_int_equal(unlink(path_of_ledger()), 0);
    assert_int_equal(symlink(other, path_of_ledger()), 0);
    assert_distrusted("a symbolic link");
    unlink(path_of_ledger());
    assert_int_equal(mkfifo(path_of_ledger(), 0600), 0);
    assert_distrusted("no plain file");
    make_ledger();
    assert_int_equal(truncate(path_of_ledger(), 100), 0);
    assert_distrusted("its size");
    make_ledger();
    write_at(0, "nonsense", 8);
    assert_distrusted("does not begin like one");
    make_ledger();
    write_at(offsetof(pleat__ledger_map, version), &version, sizeof version);
    assert_distrusted("another version");
    make_ledger();
    write_at(offsetof(pleat__ledger_map, device), "GPU-2", 5);
    assert_distrusted("another device");
    make_ledger();
    write_at(offsetof(pleat__ledger_map, device_bytes), &none, sizeof none);
    assert_distrusted("size of the device");
    make_ledger();
    if (geteuid() == 0) {
        assert_int_equal(chown(path_of_ledger(), 12345, 12345), 0);
        assert_distrusted("another user's");
    }
    unlink(path_of_ledger());
    unlink(other);
}

static void tenants_of_a_group_share_a_ledger_of_the_group(void **state)
{
    (void)state;
    pleat__tenant *tenant;
    pleat__tenant_options options = {.device = "GPU-1", .device_bytes = DEVICE, .group = "root"};
    if (getegid() != 0) {
        options.group = "there is no such group";
    } else {
        char path[256];
        struct stat made;
        assert_ok(pleat__tenant_join(&options, &tenant));
        snprintf(path, sizeof path, "%s/pleat-g0-GPU-1.tenants", test_folder());
        assert_int_equal(stat(path, &made), 0);
        assert_int_equal(made.st_mode & 07777, 0660);
        pleat__tenant_leave(tenant);
        assert_int_equal(chmod(path, 0600), 0);
        assert_result(pleat__tenant_join(&options, &tenant), PLEAT_E_INPUT);
        options.group = "there is no such group";
    }
    assert_result(pleat__tenant_join(&options, &tenant), PLEAT_E_INVALID);
    char device[64], group[16];
    assert_true(pleat__tenants_is_name("pleat-u0-GPU-1-2.tenants", device, group));
    assert_string_equal(device, "GPU-1-2");
    assert_string_equal(group, "");
    assert_true(pleat__tenants_is_name("pleat-g42-X.tenants", device, group));
    assert_string_equal(group, "42");
    static const char *const others[] = {"pleat-u0-.tenants",
                                         "pleat-u-X.tenants",
                                         "pleat-x1-X.tenants",
                                         "pleat-u1X-X.tenants",
                                         "other",
                                         "pleat-u1.tenants",
                                         "",
                                         "pleat-u12345678901234567-X.tenants"};
    for (size_t o = 0; o < sizeof others / sizeof *others; o++)
        assert_false(pleat__tenants_is_name(others[o], device, group));
}

/* Whatever is written into the file while it is used, or before: each tenant keeps to its own cap
 * and knows what it has, and nothing hangs. */
static void tenants_survive_a_thousand_mutations(void **state)
{
    enum { MUTATIONS = 1000 };
    (void)state;
    uint64_t random = seed * 0x9e3779b97f4a7c15u;
    uint32_t refused = 0;
    for (int m = 0; m < MUTATIONS; m++) {
        make_ledger();
        pleat__tenant *a = join("a", 8 * MIB, 40 * MIB, 0), *b = join("b", 0, 0, 0), *late;
        assert_ok(pleat__tenant_claim(a, 10 * MIB));
        assert_ok(pleat__tenant_claim(b, 20 * MIB));
        /* Where it hurts: the head and the first entries. */
        for (uint64_t k = 1 + draw(&random) % 32; k > 0; k--) {
            off_t at = draw(&random) % 2 ? (off_t)(draw(&random) % 120)
                                         : (off_t)(4096 + draw(&random) % 1024);
            uint64_t word = draw(&random) % 3 == 0 ? UINT64_MAX : draw(&random);
            write_at(at, &word, 1 + draw(&random) % 8);
        }
        assert_int_equal(look(a).use_bytes, 10 * MIB);
        assert_int_equal(look(b).use_bytes, 20 * MIB);
        uint64_t has_a = 10 * MIB, has_b = 20 * MIB;
        for (int c = 0; c < 40; c++) {
            has_a += pleat__tenant_claim(a, 2 * MIB) == PLEAT_OK ? 2 * MIB : 0;
            has_b += pleat__tenant_claim(b, 2 * MIB) == PLEAT_OK ? 2 * MIB : 0;
            assert_true(has_a <= DEVICE && has_b <= DEVICE);
        }
        assert_int_equal(look(a).use_bytes, has_a);
        /* Each has written its entry anew, and is counted in full. */
        assert_true(has_a + has_b <= DEVICE);
        pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
        pleat__ledger_file *file;
        uint32_t count;
        pleat__tenants *all = NULL;
        pleat_result opened = pleat__ledger_open_named(strrchr(path_of_ledger(), '/') + 1, &file);
        assert_ok(opened); /* this process has it open already */
        pleat__ledger_close(file);
        assert_ok(pleat__tenants_open(strrchr(path_of_ledger(), '/') + 1, &all));
        assert_ok(pleat__tenants_list(all, entries, &count));
        assert_ok(pleat__tenants_remove_dead(all, &count));
        pleat__tenants_close(all);
        pleat__tenant_leave(a);
        pleat__tenant_leave(b);
        /* Who comes now gets a ledger that makes sense, or is told why not. */
        pleat_result result = try_join("late", 0, 0, 0, &late);
        if (result != PLEAT_OK) {
            assert_result(result, PLEAT_E_INPUT);
            assert_true(has("not trusted"));
            refused++;
            continue;
        }
        assert_ok(pleat__tenant_claim(late, DEVICE));
        pleat__tenant_leave(late);
    }
    print_message("seed %llu: %d mutations, %u of them refused\n", (unsigned long long)seed,
                  MUTATIONS, refused);
    assert_true(refused > 0 && refused < MUTATIONS);
    unlink(path_of_ledger());
}

/* Where the processes of the test below stand. */
typedef struct stage {
    _Atomic int joined, scribbling;
} stage;

/* Writes words of its own all over the file until it is killed. */
static void scribble(stage *of, uint64_t random)
{
    int fd = open(path_of_ledger(), O_RDWR);
    pleat__ledger_map *map = mmap(NULL, sizeof *map, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    volatile uint64_t *words = (volatile uint64_t *)map;
    for (bool first = true;; first = false) {
        uint64_t word = draw(&random) % 4 == 0 ? UINT64_MAX : draw(&random) % (2 * DEVICE);
        words[draw(&random) % 2 == 0 ? draw(&random) % 16
                                     : 512 + draw(&random) % (8 * sizeof(pleat__ledger_slot) / 8)] =
            word;
        if (first)
            atomic_fetch_add(&of->scribbling, 1);
    }
}

/* Whatever the ledger says, it has what it claimed and no more than the device. */
static bool claims_among_nonsense(stage *of, uint64_t random)
{
    enum { CLAIMS = 5000 };
    pleat__tenant *tenant;
    uint64_t has = 0;
    bool good = true;
    pleat_result result;
    if (try_join("sane", 4 * MIB, 40 * MIB, 0, &tenant) != PLEAT_OK)
        return false;
    atomic_fetch_add(&of->joined, 1);
    while (atomic_load(&of->scribbling) == 0)
        sched_yield();
    for (int c = 0; c < CLAIMS && good; c++) {
        uint64_t bytes = (1 + draw(&random) % 8) * MIB;
        pleat__standing standing;
        if (draw(&random) % 2 == 0 && has >= bytes) {
            pleat__tenant_unclaim(tenant, bytes);
            has -= bytes;
        } else if ((result = pleat__tenant_claim(tenant, bytes)) == PLEAT_OK) {
            has += bytes;
        } else {
            good = result == PLEAT_E_BUDGET;
            pleat__tenant_want(tenant, bytes);
        }
        pleat__tenant_tell(tenant, draw(&random) % MIB, 0, 0);
        pleat__tenant_look(tenant, &standing);
        good = good && has <= DEVICE && standing.use_bytes == has;
    }
    pleat__tenant_leave(tenant);
    return good;
}

static void tenants_survive_who_writes_nonsense_meanwhile(void **state)
{
    enum { SANE = 4, SCRIBBLERS = 2 };
    (void)state;
    pid_t children[SANE + SCRIBBLERS];
    stage *of = mmap(NULL, sizeof *of, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(of, MAP_FAILED);
    make_ledger();
    pleat__tenant *there = join("there", 8 * MIB, 0, 0);
    assert_ok(pleat__tenant_claim(there, 2 * MIB));
    for (uint64_t c = 0; c < SANE + SCRIBBLERS; c++) {
        children[c] = fork();
        assert_true(children[c] >= 0);
        if (children[c] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (c >= SANE)
                scribble(of, seed + c);
            _exit(claims_among_nonsense(of, seed + c + 1) ? 0 : 1);
        }
        /* Once the file says nonsense nobody joins any more. */
        uint64_t until = now_ns() + 30000000000u;
        while (c == SANE - 1 && atomic_load(&of->joined) < SANE) {
            assert_true(now_ns() < until);
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
    }
    for (int c = 0; c < SANE; c++) {
        int status;
        assert_int_equal(waitpid(children[c], &status, 0), children[c]);
        assert_int_equal(status, 0);
    }
    for (int c = SANE; c < SANE + SCRIBBLERS; c++)
        kill_child(children[c]);
    /* Who was there is whole again, with what it has. */
    assert_int_equal(look(there).use_bytes, 2 * MIB);
    assert_ok(pleat__tenant_claim(there, 2 * MIB));
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    pleat__tenants *all;
    uint32_t count, dead, found = 0;
    assert_ok(pleat__tenants_open(strrchr(path_of_ledger(), '/') + 1, &all));
    assert_ok(pleat__tenants_remove_dead(all, &dead));
    assert_ok(pleat__tenants_list(all, entries, &count));
    for (uint32_t e = 0; e < count; e++)
        found += !entries[e].damaged && entries[e].use_bytes == 4 * MIB;
    assert_int_equal(found, 1);
    assert_int_equal(count, 1);
    pleat__tenants_close(all);
    pleat__tenant_leave(there);
    munmap(of, sizeof *of);
    unlink(path_of_ledger());
}

/* ---- eight processes, one killed each second ---- */

enum { PROCESSES = 8, KILLS_A_SECOND = 4, KILLS_MOST = 4096 };

/* What all processes see. A byte counts from before it is made until after it is given back. */
typedef struct scene {
    struct {
        _Atomic uint64_t chunks; /* how many, and above the 32nd bit how often that changed */
        _Atomic uint64_t turns;
        _Atomic bool dying; /* about to be killed: not counted any more */
    } of[PROCESSES];
    _Atomic uint64_t wrong;
    _Atomic uint64_t refused;
    _Atomic uint64_t most;
} scene;

#define CHANGED (1ull << 32)

static uint64_t cap_of(int process)
{
    static const uint64_t caps[PROCESSES] = {8, 10, 12, 14, 18, 20, 22, 24}; /* twice the device */
    return caps[process] * MIB;
}

static uint64_t bytes_of(uint64_t chunks)
{
    return (uint32_t)chunks * 2 * MIB;
}

static uint64_t collect(scene *all, uint64_t chunks[PROCESSES])
{
    uint64_t sum = 0;
    for (int p = 0; p < PROCESSES; p++) {
        chunks[p] = atomic_load(&all->of[p].dying) ? 0 : atomic_load(&all->of[p].chunks);
        sum += bytes_of(chunks[p]);
    }
    return sum;
}

/* All that the living have made at one moment: no word changed from the first look to the second.
 * Where they always do it is what the device has, or less. */
static uint64_t sum_of(scene *all)
{
    enum { LOOKS_MOST = 10000 };
    uint64_t before[PROCESSES], now[PROCESSES], sum = collect(all, before);
    for (int look = 0; sum > DEVICE && look < LOOKS_MOST; look++) {
        sum = collect(all, now);
        if (memcmp(before, now, sizeof now) == 0)
            return sum;
        memcpy(before, now, sizeof now);
    }
    return sum < DEVICE ? sum : DEVICE;
}

static void count_chunk(scene *all, int process)
{
    uint64_t own = bytes_of(atomic_fetch_add(&all->of[process].chunks, CHANGED + 1) + 1);
    uint64_t sum = sum_of(all), most = atomic_load(&all->most);
    while (sum > most && !atomic_compare_exchange_weak(&all->most, &most, sum))
        ;
    if (own > cap_of(process) || sum > DEVICE)
        atomic_fetch_add(&all->wrong, 1);
}

/* The host backend, but that what is made and given back is counted where all see it: within the
 * time for which it is claimed. */
static pleat_vmm inner;
static pleat_vmm_ops counting;
static scene *counted;
static int counted_process;

static pleat_result create_counted(void *self, int device, uint64_t bytes, uint32_t flags,
                                   pleat_handle *handle)
{
    pleat_result result = inner.ops->create(self, device, bytes, flags, handle);
    if (result == PLEAT_OK)
        count_chunk(counted, counted_process);
    return result;
}

static pleat_result release_counted(void *self, pleat_handle handle)
{
    pleat_result result = inner.ops->release(self, handle);
    if (result == PLEAT_OK)
        atomic_fetch_add(&counted->of[counted_process].chunks, CHANGED - 1);
    return result;
}

static pleat_result open_counting(scene *all, int process, pleat_vmm *out)
{
    pleat_host_options options = {.size = sizeof options, .device_bytes = DEVICE};
    pleat_result result = pleat_vmm_host(&options, &inner);
    if (result != PLEAT_OK)
        return result;
    counting = *inner.ops;
    counting.create = create_counted;
    counting.release = release_counted;
    counted = all;
    counted_process = process;
    *out = (pleat_vmm){&counting, inner.self};
    return PLEAT_OK;
}

/* A job that takes and gives at random, for ever. */
static void run_process(scene *all, int process, uint64_t own_seed)
{
    enum { MOST = 32 };
    pleat__chunk *held[MOST];
    uint32_t count = 0;
    uint64_t random = own_seed | 1;
    pleat_vmm host;
    pleat__arena *arena;
    pleat__space *space;
    pleat__tenant *tenant;
    if (open_counting(all, process, &host) != PLEAT_OK || pleat__arena_create(&arena) != PLEAT_OK ||
        pleat__space_create(host, arena, &(pleat__space_options){0}, &space) != PLEAT_OK ||
        try_join("killed", process < 4 ? 4 * MIB : 0, cap_of(process), 0, &tenant) != PLEAT_OK ||
        pleat__space_set_tenant(space, tenant) != PLEAT_OK) {
        fprintf(stderr, "process %d: %s\n", process, pleat_last_error()->text);
        _exit(1);
    }
    for (;;) {
        bool takes = count == 0 || (count < MOST && draw(&random) % 3 != 0);
        if (takes) {
            pleat_result result = pleat__space_chunk_get(space, 1, &held[count]);
            if (result == PLEAT_OK) {
                count++;
            } else {
                atomic_fetch_add(&all->refused, result == PLEAT_E_BUDGET);
                atomic_fetch_add(&all->wrong, result != PLEAT_E_BUDGET);
                pleat__tenant_want(tenant, 2 * MIB);
            }
        }
        if (!takes || draw(&random) % 4 == 0)
            for (uint64_t k = draw(&random) % (count + 1); k > 0; k--) {
                pleat__space_chunk_put(space, held[--count]);
                (void)!pleat__space_trim(space, 0);
            }
        if (!pleat__space_audit(space))
            atomic_fetch_add(&all->wrong, 1);
        atomic_fetch_add(&all->of[process].turns, 1);
    }
}

static pid_t start_process(scene *all, int process, uint64_t own_seed)
{
    atomic_store(&all->of[process].chunks, 0);
    atomic_store(&all->of[process].dying, false);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        run_process(all, process, own_seed);
    }
    return child;
}

/* Killed at a moment of its own choosing; its share is usable by another one at once. */
static void kill_process(scene *all, int process, pid_t child)
{
    atomic_store(&all->of[process].dying, true);
    kill_child(child);
    atomic_store(&all->of[process].chunks, 0);
}

/* All go on: nobody waits for ever. */
static void assert_progress(scene *all)
{
    uint64_t before[PROCESSES], until = now_ns() + 5000000000u;
    for (int p = 0; p < PROCESSES; p++)
        before[p] = atomic_load(&all->of[p].turns);
    for (int p = 0; p < PROCESSES; p++)
        while (atomic_load(&all->of[p].turns) == before[p]) {
            assert_true(now_ns() < until);
            nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
        }
}

static int compare_words(const void *left, const void *right)
{
    const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return a < b ? -1 : a > b;
}

/* Nanoseconds, one figure for each kill. */
typedef struct delays {
    uint64_t ns[KILLS_MOST];
    size_t count;
} delays;

static void add_delay(delays *all, uint64_t begun)
{
    if (all->count < KILLS_MOST)
        all->ns[all->count++] = now_ns() - begun;
}

/* Sorted by now. */
static void print_delays(const char *who, delays *all)
{
    qsort(all->ns, all->count, sizeof *all->ns, compare_words);
    print_message("    %s %.2f ms, 99 of 100 within %.2f, at most %.2f\n", who,
                  (double)all->ns[all->count / 2] / 1e6,
                  (double)all->ns[all->count * 99 / 100] / 1e6,
                  (double)all->ns[all->count - 1] / 1e6);
}

/* None of the dead is left. */
static void assert_all_live(void)
{
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count = list(entries);
    for (uint32_t e = 0; e < count; e++)
        assert_true(entries[e].alive && !entries[e].damaged);
}

static void tenants_hold_while_processes_are_killed(void **state)
{
    (void)state;
    static delays died, there, came; /* killed until dead; until who was there, and who came, had
                                        the dead's share */
    uint64_t random = seed * 0x9e3779b97f4a7c15u, kills = 0;
    scene *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(all, MAP_FAILED);
    pid_t children[PROCESSES];
    make_ledger();
    pleat__tenant *witness = join("witness", 0, 0, 0);
    for (int p = 0; p < PROCESSES; p++)
        children[p] = start_process(all, p, draw(&random));
    uint64_t until = now_ns() + (uint64_t)(seconds * 1e9);
    while (now_ns() < until) {
        long pause = (long)(draw(&random) % (2000000000u / KILLS_A_SECOND));
        nanosleep(&(struct timespec){.tv_sec = pause / 1000000000, .tv_nsec = pause % 1000000000},
                  NULL);
        int victim = (int)(draw(&random) % PROCESSES);
        uint64_t begun = now_ns();
        kill_process(all, victim, children[victim]);
        add_delay(&died, begun);
        kills++;
        /* Its share is there for whoever asks, its lock too. */
        begun = now_ns();
        (void)look(witness);
        add_delay(&there, begun);
        assert_all_live();
        begun = now_ns();
        pleat__tenant *heir = join("heir", 0, 0, 0);
        (void)look(heir);
        add_delay(&came, begun);
        pleat__tenant_leave(heir);
        children[victim] = start_process(all, victim, draw(&random));
        assert_progress(all);
        assert_int_equal(atomic_load(&all->wrong), 0);
    }
    for (int p = 0; p < PROCESSES; p++)
        kill_process(all, p, children[p]);
    assert_ok(pleat__tenant_claim(witness, DEVICE));
    pleat__tenant_leave(witness);
    uint64_t turns = 0;
    for (int p = 0; p < PROCESSES; p++)
        turns += atomic_load(&all->of[p].turns);
    print_message("seed %llu: %llu kills, %llu turns, %llu refusals, at most %.0f MiB of %.0f; a "
                  "share was seen to be free after its tenant's end:\n",
                  (unsigned long long)seed, (unsigned long long)kills, (unsigned long long)turns,
                  (unsigned long long)atomic_load(&all->refused),
                  (double)atomic_load(&all->most) / MIB, (double)DEVICE / MIB);
    print_delays("(killed until dead)", &died);
    print_delays("by who was there", &there);
    print_delays("by who came", &came);
    /* Most of the time; what else runs here may keep one of them waiting. */
    assert_true(there.ns[there.count / 2] < 100000000u && came.ns[came.count / 2] < 100000000u);
    assert_true(atomic_load(&all->most) <= DEVICE && atomic_load(&all->refused) > 0);
    assert_int_equal(atomic_load(&all->wrong), 0);
    munmap(all, sizeof *all);
}

int main(int argc, char **argv)
{
    seconds = argc > 1 ? atof(argv[1]) : (double)test_rounds(5);
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : seed;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenants_never_have_more_than_their_cap_or_the_device),
        cmocka_unit_test(tenants_borrow_what_is_idle_and_give_it_back),
        cmocka_unit_test(tenants_give_way_to_a_higher_priority),
        cmocka_unit_test(tenants_guarantees_fit_the_device),
        cmocka_unit_test(tenants_terms_can_be_set),
        cmocka_unit_test(tenants_of_a_device_that_nobody_shares_are_not_found),
        cmocka_unit_test(tenants_all_entries_can_be_in_use),
        cmocka_unit_test(tenants_of_a_space_claim_what_it_makes),
        cmocka_unit_test(tenants_that_die_leave_their_share),
        cmocka_unit_test(tenants_a_lock_that_is_not_given_back_is_said),
        cmocka_unit_test(tenants_who_claim_at_once_never_both_get_it),
        cmocka_unit_test(tenants_of_a_parent_are_not_a_childs),
        cmocka_unit_test(tenants_files_that_are_not_trusted_are_refused),
        cmocka_unit_test(tenants_of_a_group_share_a_ledger_of_the_group),
        cmocka_unit_test(tenants_survive_a_thousand_mutations),
        cmocka_unit_test(tenants_survive_who_writes_nonsense_meanwhile),
        cmocka_unit_test(tenants_hold_while_processes_are_killed),
    };
    return cmocka_run_group_tests_name("tenants", tests, open_ledger_folder, NULL);
}
