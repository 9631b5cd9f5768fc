/*
 * tenancy.c: runtimes that share a device by a ledger: what is borrowed comes back, idle memory
 * goes to who asks for it, and what a job is guaranteed it gets.
 */
#include "child.h"
#include "fixture.h"

#include "failing.h"
#include "ledger_folder.h"

#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include <vmm/tenants/tenants_file.h>

#define DEVICE (64 * MIB)

/* Two runtimes, as if each were another process's; `runtime` is the first one. */
typedef struct pair {
    fixture f;
    pleat_runtime *other;
} pair;

static pleat_runtime *make(const fixture *f, const char *conf)
{
    pleat_runtime *runtime;
    pleat_runtime_options options = {.size = sizeof options, .conf = conf};
    assert_ok(pleat_runtime_create(f->vmm, &options, &runtime));
    return runtime;
}

static void begin_pair(pair *p, const char *conf, const char *other_conf)
{
    open_host(&p->f, DEVICE, false);
    p->f.runtime = make(&p->f, conf);
    p->other = make(&p->f, other_conf);
}

static void end_pair(pair *p)
{
    pleat_runtime_destroy(p->other);
    end(&p->f);
}

static void settle_for(long milliseconds)
{
    nanosleep(&(struct timespec){.tv_nsec = milliseconds * 1000000}, NULL);
}

/* `count` allocations of 4 MiB. */
static void take_all(pleat_runtime *runtime, pleat_va *addresses, int count)
{
    for (int a = 0; a < count; a++)
        assert_ok(pleat_alloc(runtime, 4 * MIB, 0, &addresses[a]));
}

static void free_all(pleat_runtime *runtime, const pleat_va *addresses, int count)
{
    for (int a = 0; a < count; a++)
        assert_ok(pleat_free(runtime, addresses[a]));
}

static uint64_t physical(pleat_runtime *runtime)
{
    return pleat_stats_of(runtime).physical_bytes;
}

static void list_tenants(pleat__tenant_entry entries[PLEAT__TENANTS_MOST], uint32_t expected)
{
    char name[96];
    pleat__tenants *all;
    uint32_t count;
    snprintf(name, sizeof name, "pleat-u%u-host-0.tenants", geteuid());
    assert_ok(pleat__tenants_open(name, &all));
    assert_ok(pleat__tenants_list(all, entries, &count));
    pleat__tenants_close(all);
    assert_int_equal(count, expected);
}

static double milliseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

static void tenancy_idle_memory_that_was_borrowed_comes_back_at_once(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[15], own[10];
    begin_pair(&p, "tenants:user,guarantee:40m", "tenants:user,tenant:borrower");
    take_all(p.other, lent, 15);
    assert_int_equal(physical(p.other), 60 * MIB);
    free_all(p.other, lent, 15);
    assert_int_equal(physical(p.other), 60 * MIB); /* kept: nobody asks */
    double begun = milliseconds();
    take_all(p.f.runtime, own, 10);
    assert_true(milliseconds() - begun < 1000);
    assert_true(physical(p.other) <= 24 * MIB);
    free_all(p.f.runtime, own, 10);
    end_pair(&p);
}

static void tenancy_what_lives_comes_back_when_the_iteration_ends(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[15], own[10], refused;
    begin_pair(&p, "tenants:user,guarantee:40m,grace_ms:60", "tenants:user");
    take_all(p.other, lent, 15);
    take_all(p.f.runtime, own, 1);
    double begun = milliseconds();
    assert_result(pleat_alloc(p.f.runtime, 8 * MIB, 0, &refused), PLEAT_E_BUDGET);
    assert_true(milliseconds() - begun >= 59);
    assert_true(has("out of memory") && has("what the device's other tenants leave, 4.00 MiB"));
    assert_int_equal(physical(p.other), 60 * MIB);
    /* The borrower's iteration ends, and with it what it does not keep. */
    free_all(p.other, lent + 6, 9);
    assert_ok(pleat_mark(p.other));
    settle_for(30);
    assert_true(physical(p.other) <= 24 * MIB);
    take_all(p.f.runtime, own + 1, 9);
    /* The borrower goes on within what is left, and gets a refusal it survives. */
    assert_result(pleat_alloc(p.other, 32 * MIB, 0, &refused), PLEAT_E_BUDGET);
    free_all(p.other, lent, 6);
    free_all(p.f.runtime, own, 10);
    end_pair(&p);
}

typedef struct later {
    pleat_runtime *runtime;
    const pleat_va *addresses;
    int count;
} later;

/* The borrower's program, which frees a while after the lender has asked. */
static void *free_later(void *context)
{
    const later *l = context;
    settle_for(80);
    for (int a = 0; a < l->count; a++)
        if (pleat_free(l->runtime, l->addresses[a]) != PLEAT_OK)
            return NULL;
    return context;
}

static void tenancy_a_request_waits_for_what_it_is_guaranteed(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[15], own[5];
    pthread_t thread;
    void *good = NULL;
    begin_pair(&p, "tenants:user,guarantee:40m,grace_ms:20000", "tenants:user");
    take_all(p.other, lent, 15);
    later l = {.runtime = p.other, .addresses = lent, .count = 15};
    assert_int_equal(pthread_create(&thread, NULL, free_later, &l), 0);
    double begun = milliseconds();
    take_all(p.f.runtime, own, 5);
    assert_true(milliseconds() - begun >= 40 && milliseconds() - begun < 5000);
    assert_int_equal(pthread_join(thread, &good), 0);
    assert_non_null(good);
    free_all(p.f.runtime, own, 5);
    end_pair(&p);
}

static void tenancy_who_rests_gives_its_cache_to_who_asks(void **state)
{
    (void)state;
    pair p;
    pleat_va held[15], asked;
    begin_pair(&p, "tenants:user,guarantee:60m", "tenants:user");
    take_all(p.f.runtime, held, 15);
    free_all(p.f.runtime, held, 15);
    /* Nobody takes from it what it is guaranteed, but it has no use for it. */
    settle_for(60);
    assert_ok(pleat_alloc(p.other, 40 * MIB, 0, &asked));
    assert_true(physical(p.f.runtime) <= 24 * MIB);
    /* When it goes on it gets it back: the other one is in nobody's debt until it asks. */
    assert_ok(pleat_free(p.other, asked));
    take_all(p.f.runtime, held, 15);
    free_all(p.f.runtime, held, 15);
    end_pair(&p);
}

/* A job that allocates and frees all the time. */
typedef struct worker {
    pleat_runtime *runtime;
    atomic_bool ending;
} worker;

static void *work_on(void *context)
{
    worker *w = context;
    while (!atomic_load(&w->ending)) {
        pleat_va address;
        if (pleat_alloc(w->runtime, 1000, 0, &address) != PLEAT_OK ||
            pleat_free(w->runtime, address) != PLEAT_OK)
            return NULL;
    }
    return context;
}

/* Where a worker that others keep from the processor looks at rest, it is tried again. */
static void tenancy_who_works_keeps_its_cache(void **state)
{
    (void)state;
    pair p;
    pleat_va held[15], asked;
    pthread_t thread;
    void *good = NULL;
    bool kept = false;
    begin_pair(&p, "tenants:user,guarantee:60m", "tenants:user");
    worker w = {.runtime = p.f.runtime};
    assert_int_equal(pthread_create(&thread, NULL, work_on, &w), 0);
    for (int tries = 0; tries < 100 && !kept; tries++) {
        take_all(p.f.runtime, held, 14);
        free_all(p.f.runtime, held, 14);
        uint64_t before = physical(p.f.runtime);
        kept = pleat_alloc(p.other, 40 * MIB, 0, &asked) == PLEAT_E_BUDGET &&
               physical(p.f.runtime) == before;
        if (!kept)
            assert_ok(pleat_free(p.other, asked));
    }
    assert_true(kept);
    atomic_store(&w.ending, true);
    assert_int_equal(pthread_join(thread, &good), 0);
    assert_non_null(good);
    end_pair(&p);
}

#define REQUESTS 80

static bool iterate(pleat_runtime *runtime)
{
    pleat_va held[REQUESTS];
    bool good = true;
    for (int r = 0; r < REQUESTS && good; r++) {
        uint64_t bytes = (uint64_t)(1 + r % 7) * (MIB / 8);
        good = pleat_alloc(runtime, bytes, 0, &held[r]) == PLEAT_OK &&
               (r % 2 == 0 || pleat_free(runtime, held[r - 1]) == PLEAT_OK);
    }
    for (int r = 1; r < REQUESTS && good; r += 2)
        good = pleat_free(runtime, held[r]) == PLEAT_OK;
    return good && pleat_mark(runtime) == PLEAT_OK;
}

static void one_iteration(pleat_runtime *runtime)
{
    assert_true(iterate(runtime));
}

static void *repeat(void *context)
{
    worker *w = context;
    while (!atomic_load(&w->ending))
        if (!iterate(w->runtime))
            return NULL;
    return context;
}

/* What an evaluation left, say: no iteration that is followed lies there. */
static void tenancy_who_works_lends_what_its_schedule_has_no_use_for(void **state)
{
    (void)state;
    pair p;
    pleat_va held[14], asked;
    pthread_t thread;
    void *good = NULL;
    begin_pair(&p, "tenants:user,guarantee:60m", "tenants:user");
    take_all(p.f.runtime, held, 14);
    free_all(p.f.runtime, held, 14);
    worker w = {.runtime = p.f.runtime};
    assert_int_equal(pthread_create(&thread, NULL, repeat, &w), 0);
    for (int tries = 0; tries < 1000 && pleat_stats_of(p.f.runtime).planned < 50 * REQUESTS;
         tries++)
        settle_for(10);
    pleat_result lent = PLEAT_E_BUDGET;
    for (int tries = 0; tries < 10 && lent == PLEAT_E_BUDGET; tries++)
        lent = pleat_alloc(p.other, 30 * MIB, 0, &asked);
    assert_ok(lent);
    /* It goes on as planned, without a verb. */
    pleat_stats before = pleat_stats_of(p.f.runtime);
    uint64_t then = before.planned + 50 * REQUESTS;
    assert_true(before.physical_bytes <= 34 * MIB);
    for (int tries = 0; tries < 1000 && pleat_stats_of(p.f.runtime).planned < then; tries++)
        settle_for(10);
    atomic_store(&w.ending, true);
    assert_int_equal(pthread_join(thread, &good), 0);
    assert_non_null(good);
    pleat_stats after = pleat_stats_of(p.f.runtime);
    assert_true(after.planned >= then);
    assert_int_equal(after.requests - before.requests, after.planned - before.planned);
    /* An earlier try may have asked for more than the one that was served: that goes, too. */
    assert_true(after.physical_bytes <= before.physical_bytes);
    /* What it is guaranteed it gets back. */
    assert_ok(pleat_free(p.other, asked));
    take_all(p.f.runtime, held, 14);
    free_all(p.f.runtime, held, 14);
    end_pair(&p);
}

static void tenancy_what_cannot_be_borrowed_is_refused_soon(void **state)
{
    (void)state;
    pair p;
    pleat_va held[15], refused;
    begin_pair(&p, "tenants:user,guarantee:60m", "tenants:user,grace_ms:60000");
    take_all(p.f.runtime, held, 15);
    double begun = milliseconds();
    assert_result(pleat_alloc(p.other, 40 * MIB, 0, &refused), PLEAT_E_BUDGET);
    assert_true(milliseconds() - begun < 30000);
    free_all(p.f.runtime, held, 15);
    end_pair(&p);
}

static void tenancy_people_can_ask_for_what_is_idle(void **state)
{
    (void)state;
    pair p;
    pleat_va held[10];
    char name[96];
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    begin_pair(&p, "tenants:user,tenant:asked", "tenants:user");
    take_all(p.f.runtime, held, 10);
    free_all(p.f.runtime, held + 1, 9);
    settle_for(150);
    snprintf(name, sizeof name, "pleat-u%u-host-0.tenants", geteuid());
    assert_ok(pleat__tenants_open(name, &all));
    assert_ok(pleat__tenants_list(all, entries, &count));
    assert_int_equal(count, 2);
    assert_string_equal(entries[0].name, "asked");
    assert_int_equal(entries[0].use_bytes, 40 * MIB);
    assert_int_equal(entries[0].idle_bytes, 36 * MIB);
    assert_ok(pleat__tenants_reclaim(all, entries[0].serial));
    settle_for(100);
    assert_int_equal(physical(p.f.runtime), 4 * MIB);
    pleat__tenants_close(all);
    free_all(p.f.runtime, held, 1);
    end_pair(&p);
}

static void tenancy_idle_memory_goes_below_the_watermark_while_the_process_rests(void **state)
{
    (void)state;
    fixture f;
    pleat_va held[10];
    open_host(&f, DEVICE, false);
    f.runtime = make(&f, "watermark:16m");
    take_all(f.runtime, held, 10);
    free_all(f.runtime, held + 1, 9);
    settle_for(250);
    assert_int_equal(physical(f.runtime), 40 * MIB); /* 24 are free */
    /* A library takes some, and what nobody uses goes. */
    assert_ok(pleat__host_set_other(&f.host, 0, 12 * MIB, 0));
    for (int tries = 0; tries < 100 && physical(f.runtime) > 4 * MIB; tries++)
        settle_for(20);
    assert_int_equal(physical(f.runtime), 4 * MIB);
    free_all(f.runtime, held, 1);
    end(&f);
}

static void tenancy_settings_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *conf;
        pleat_result result;
    } wrong[] = {{"tenants:no such group", PLEAT_E_INVALID},
                 {"tenants:user,guarantee:65m", PLEAT_E_LIMIT},
                 {"tenants:user,priority:5000000000", PLEAT_E_INVALID},
                 {"tenants:user,grace_ms:4000000", PLEAT_E_INVALID},
                 {"guarantee:4m", PLEAT_E_INVALID},
                 {"priority:1", PLEAT_E_INVALID},
                 {"tenants:off,tenant:one", PLEAT_E_INVALID}};
    fixture f;
    open_host(&f, DEVICE, false);
    for (size_t w = 0; w < sizeof wrong / sizeof *wrong; w++) {
        pleat_runtime_options options = {.size = sizeof options, .conf = wrong[w].conf};
        assert_result(pleat_runtime_create(f.vmm, &options, &f.runtime), wrong[w].result);
    }
    f.runtime = make(&f, "tenants:off");
    end(&f);
}

/* Whoever asks the ledger writes its entry anew: a word that somebody else wrote there stays, but
 * for the thread's look ten times a second. */
static void tenancy_planned_requests_do_not_ask_the_ledger(void **state)
{
    enum { TRIES = 200 };
    (void)state;
    fixture f;
    pleat__ledger_file *file;
    pleat__tenant_options options = {.device = "host-0", .device_bytes = DEVICE};
    int kept = 0;
    open_host(&f, DEVICE, false);
    f.runtime = make(&f, "tenants:user");
    for (int i = 0; i < 6; i++)
        one_iteration(f.runtime);
    assert_ok(pleat__ledger_open(&options, &file));
    pleat__ledger_slot *slot = file->map->slots;
    while (atomic_load(&slot->serial) == 0)
        slot++;
    pleat_stats before = pleat_stats_of(f.runtime);
    for (int i = 0; i < TRIES; i++) {
        atomic_store(&slot->use_bytes, 42);
        one_iteration(f.runtime);
        kept += atomic_load(&slot->use_bytes) == 42;
    }
    assert_true(kept > TRIES / 10); /* where requests ask none is */
    assert_int_equal(pleat_stats_of(f.runtime).planned - before.planned, TRIES * REQUESTS);
    /* One that does ask is seen. */
    atomic_store(&slot->use_bytes, 42);
    pleat_va more;
    assert_ok(pleat_alloc(f.runtime, 40 * MIB, 0, &more));
    assert_true(atomic_load(&slot->use_bytes) != 42);
    assert_ok(pleat_free(f.runtime, more));
    pleat__ledger_close(file);
    end(&f);
}

static pleat_runtime *failing_job(pleat_vmm vmm, const void *with)
{
    pleat_runtime *runtime = NULL;
    pleat_va addresses[8] = {0};
    (void)with;
    pleat_runtime_options options = {.size = sizeof options, .conf = "tenants:user,grace_ms:0"};
    if (pleat_runtime_create(vmm, &options, &runtime) != PLEAT_OK)
        return NULL;
    for (int i = 0; i < 3; i++) {
        for (int a = 0; a < 8; a++)
            (void)!pleat_alloc(runtime, (uint64_t)(a + 1) * MIB, 0, &addresses[a]);
        for (int a = 0; a < 8; a++)
            (void)!pleat_free(runtime, addresses[a]);
        (void)!pleat_mark(runtime);
        (void)!pleat_empty_cache(runtime);
    }
    pleat_limits limits = {.size = sizeof limits};
    (void)!pleat_limits_of(runtime, &limits);
    return runtime;
}

/* Whatever fails, nobody is left in the ledger and all of the device is there for the next one. */
static void tenancy_nothing_is_left_whatever_fails(void **state)
{
    (void)state;
    static const pleat__fault_verb verbs[] = {
        PLEAT__FAULT_memory_info, PLEAT__FAULT_identify,   PLEAT__FAULT_process_memory,
        PLEAT__FAULT_reserve,     PLEAT__FAULT_create,     PLEAT__FAULT_release,
        PLEAT__FAULT_map,         PLEAT__FAULT_set_access, PLEAT__FAULT_unmap};
    pleat__tenant *last;
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    char name[96];
    fail_verbs(verbs, sizeof verbs / sizeof *verbs, 4, failing_job, NULL);
    fail_host_memory(4, failing_job, NULL);
    snprintf(name, sizeof name, "pleat-u%u-host-0.tenants", geteuid());
    assert_ok(pleat__tenants_open(name, &all));
    assert_ok(pleat__tenants_list(all, entries, &count));
    assert_int_equal(count, 0);
    uint64_t bytes = pleat__tenants_device_bytes(all);
    pleat__tenants_close(all);
    pleat__tenant_options options = {.device = "host-0", .device_bytes = bytes};
    assert_ok(pleat__tenant_join(&options, &last));
    assert_ok(pleat__tenant_claim(last, bytes));
    pleat__tenant_leave(last);
}

/* The ledger has room, the device has none: somebody who is no tenant has it. The request waits for
 * the grace time, as for a tenant, and no longer. */
static void tenancy_a_device_that_others_fill_is_refused_in_time(void **state)
{
    (void)state;
    pair p;
    pleat_va one, refused;
    begin_pair(&p, "tenants:user,guarantee:32m,grace_ms:60", "tenants:user");
    take_all(p.other, &one, 1);
    assert_ok(pleat__host_set_other(&p.f.host, 0, 56 * MIB, 0));
    double begun = milliseconds();
    assert_result(pleat_alloc(p.f.runtime, 8 * MIB, 0, &refused), PLEAT_E_OUT_OF_MEMORY);
    assert_true(milliseconds() - begun >= 59 && milliseconds() - begun < 2000);
    assert_ok(pleat__host_set_other(&p.f.host, 0, 0, 0));
    assert_ok(pleat_alloc(p.f.runtime, 8 * MIB, 0, &refused));
    free_all(p.f.runtime, &refused, 1);
    free_all(p.other, &one, 1);
    end_pair(&p);
}

/* What the program allows itself later counts, unless somebody has set the tenant's cap. */
static void tenancy_a_larger_budget_raises_the_cap(void **state)
{
    (void)state;
    fixture f;
    pleat_va held[12], refused;
    char name[96];
    pleat__tenants *all;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    uint32_t count;
    const uint64_t cap = 40 * MIB;
    open_host(&f, DEVICE, false);
    pleat_runtime_options options = {
        .size = sizeof options, .conf = "tenants:user", .budget_bytes = 16 * MIB};
    assert_ok(pleat_runtime_create(f.vmm, &options, &f.runtime));
    take_all(f.runtime, held, 4);
    assert_ok(pleat_set_budget(f.runtime, 32 * MIB));
    take_all(f.runtime, held + 4, 4);
    snprintf(name, sizeof name, "pleat-u%u-host-0.tenants", geteuid());
    assert_ok(pleat__tenants_open(name, &all));
    assert_ok(pleat__tenants_list(all, entries, &count));
    assert_int_equal(entries[0].cap_bytes, 32 * MIB);
    assert_ok(pleat__tenants_set(all, entries[0].serial, NULL, &cap, NULL));
    assert_ok(pleat_set_budget(f.runtime, 0));
    take_all(f.runtime, held + 8, 2);
    assert_result(pleat_alloc(f.runtime, 4 * MIB, 0, &refused), PLEAT_E_BUDGET);
    pleat__tenants_close(all);
    free_all(f.runtime, held, 10);
    end(&f);
}

typedef struct waker {
    pleat_runtime *runtime;
    pleat_result result;
} waker;

static void *resume_all(void *context)
{
    waker *w = context;
    w->result = pleat_resume(w->runtime, NULL);
    return NULL;
}

/* A resume that waits for what others give back leaves the turn to other threads meanwhile: none of
 * them ends the pause under it. */
static void tenancy_two_resumes_wait_for_the_same_room(void **state)
{
    (void)state;
    pair p;
    pleat_va held[8], others[12];
    pthread_t threads[2];
    begin_pair(&p, "tenants:user,guarantee:32m,grace_ms:10000", "tenants:user");
    take_all(p.f.runtime, held, 8);
    assert_ok(pleat_pause(p.f.runtime, NULL));
    take_all(p.other, others, 12);
    waker wakers[2] = {{.runtime = p.f.runtime}, {.runtime = p.f.runtime}};
    for (int w = 0; w < 2; w++)
        assert_int_equal(pthread_create(&threads[w], NULL, resume_all, &wakers[w]), 0);
    settle_for(100);
    free_all(p.other, others, 12);
    for (int w = 0; w < 2; w++) {
        assert_int_equal(pthread_join(threads[w], NULL), 0);
        assert_ok(wakers[w].result);
    }
    assert_result(pleat_resume(p.f.runtime, NULL), PLEAT_E_STATE);
    free_all(p.f.runtime, held, 8);
    end_pair(&p);
}

/* ---- two tenants of one process ---- */

static uint64_t others_of(pleat_runtime *runtime)
{
    pleat_limits limits = {.size = sizeof limits};
    assert_ok(pleat_limits_of(runtime, &limits));
    return limits.other_bytes;
}

/* A limit of the process's own leaves a runtime what the process's other one does not have; in the
 * ledger each has an entry, and what is no tenant's is there once. */
static void tenancy_tenants_of_one_process_count_once(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[14], own;
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    begin_pair(&p, "tenants:user,guarantee:40m,grace_ms:20000", "tenants:user");
    assert_ok(pleat__host_set_other(&p.f.host, 0, 6 * MIB, 0));
    take_all(p.other, lent, 14);
    assert_int_equal(others_of(p.f.runtime), 6 * MIB + 56 * MIB);
    assert_int_equal(others_of(p.other), 6 * MIB);
    settle_for(250); /* the ledger is told */
    list_tenants(entries, 2);
    assert_int_equal(entries[0].other_bytes, 6 * MIB);
    assert_int_equal(entries[1].other_bytes, 0);
    /* What one gives back the other one has at once, before anything is measured again. */
    free_all(p.other, lent, 7);
    assert_ok(pleat_alloc(p.f.runtime, 24 * MIB, 0, &own));
    free_all(p.f.runtime, &own, 1);
    /* The first one leaves, and the other one speaks for the process, until another one joins. */
    pleat_runtime_destroy(p.f.runtime);
    p.f.runtime = p.other;
    p.other = NULL;
    list_tenants(entries, 1);
    for (int tries = 0; entries[0].other_bytes != 6 * MIB; tries++) {
        assert_true(tries < 500);
        settle_for(20);
        list_tenants(entries, 1);
    }
    p.other = make(&p.f, "tenants:user");
    list_tenants(entries, 2);
    assert_int_equal(entries[0].use_bytes, 0);
    assert_int_equal(entries[0].other_bytes, 6 * MIB);
    settle_for(250); /* nor what it tells by itself, before it has measured anything */
    list_tenants(entries, 2);
    assert_int_equal(entries[0].other_bytes, 6 * MIB);
    free_all(p.f.runtime, lent + 7, 7);
    end_pair(&p);
}

/* ---- two requests that wait at once ---- */

/* One thread's request, and how long it took. */
typedef struct asker {
    pleat_runtime *runtime;
    uint64_t bytes;
    pthread_t thread;
    pleat_va got;
    pleat_result result;
    double took; /* milliseconds */
} asker;

static void *ask_once(void *context)
{
    asker *a = context;
    double begun = milliseconds();
    a->result = pleat_alloc(a->runtime, a->bytes, 0, &a->got);
    a->took = milliseconds() - begun;
    return NULL;
}

static void begin_asking(asker *a)
{
    assert_int_equal(pthread_create(&a->thread, NULL, ask_once, a), 0);
}

/* What the runtime's tenant, the first of the ledger, asks for. */
static uint64_t wanted(void)
{
    pleat__tenant_entry entries[PLEAT__TENANTS_MOST];
    list_tenants(entries, 2);
    return entries[0].want_bytes;
}

static void await_wanted(uint64_t bytes)
{
    for (int tries = 0; wanted() != bytes; tries++) {
        assert_true(tries < 5000);
        settle_for(2);
    }
}

static void tenancy_a_request_waits_on_when_another_ones_wait_ends(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[15];
    begin_pair(&p, "tenants:user,guarantee:40m,grace_ms:60000", "tenants:user");
    asker large = {.runtime = p.f.runtime, .bytes = 24 * MIB};
    asker small = {.runtime = p.f.runtime, .bytes = 8 * MIB};
    take_all(p.other, lent, 15);
    begin_asking(&large);
    await_wanted(24 * MIB);
    begin_asking(&small);
    await_wanted(32 * MIB); /* both */
    free_all(p.other, lent, 2);
    assert_int_equal(pthread_join(small.thread, NULL), 0);
    assert_ok(small.result);
    await_wanted(24 * MIB);
    free_all(p.other, lent + 2, 13);
    assert_int_equal(pthread_join(large.thread, NULL), 0);
    assert_ok(large.result);
    await_wanted(0);
    free_all(p.f.runtime, &large.got, 1);
    free_all(p.f.runtime, &small.got, 1);
    end_pair(&p);
}

static void tenancy_a_request_that_waits_gets_what_its_own_process_frees(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[6], own[10];
    begin_pair(&p, "tenants:user,guarantee:48m,grace_ms:20000", "tenants:user");
    asker a = {.runtime = p.f.runtime, .bytes = 8 * MIB};
    take_all(p.f.runtime, own, 10);
    take_all(p.other, lent, 6);
    begin_asking(&a);
    await_wanted(8 * MIB);
    free_all(p.f.runtime, own, 2);
    assert_int_equal(pthread_join(a.thread, NULL), 0);
    assert_ok(a.result);
    assert_true(a.took < 10000);
    free_all(p.f.runtime, &a.got, 1);
    free_all(p.f.runtime, own + 2, 8);
    free_all(p.other, lent, 6);
    end_pair(&p);
}

static void tenancy_each_request_has_a_grace_time_of_its_own(void **state)
{
    (void)state;
    pair p;
    pleat_va lent[15];
    begin_pair(&p, "tenants:user,guarantee:40m,grace_ms:400", "tenants:user");
    asker first = {.runtime = p.f.runtime, .bytes = 24 * MIB};
    asker second = {.runtime = p.f.runtime, .bytes = 8 * MIB};
    take_all(p.other, lent, 15);
    begin_asking(&first);
    settle_for(200);
    begin_asking(&second);
    assert_int_equal(pthread_join(first.thread, NULL), 0);
    assert_int_equal(pthread_join(second.thread, NULL), 0);
    assert_int_equal(first.result, PLEAT_E_BUDGET);
    assert_int_equal(second.result, PLEAT_E_BUDGET);
    assert_true(first.took >= 399 && second.took >= 399);
    free_all(p.other, lent, 15);
    end_pair(&p);
}

/* ---- above a guarantee ---- */

#define PIECE (4 * MIB)
#define LIVE  4

/* A job that keeps some memory and takes more in each iteration: fewer pieces after a refusal. */
typedef struct trainer {
    pleat_runtime *runtime;
    pleat_va live[LIVE];
    _Atomic uint32_t pieces;     /* of an iteration */
    _Atomic uint32_t iterations; /* that ended well */
    _Atomic uint32_t refused;
    _Atomic long milliseconds; /* for which an iteration computes */
    _Atomic bool over;
} trainer;

/* false: it was refused; what it had got is free again. */
static bool train(trainer *t)
{
    pleat_va got[16];
    uint32_t count = 0;
    while (count < t->pieces && pleat_alloc(t->runtime, PIECE, 0, &got[count]) == PLEAT_OK)
        count++;
    bool served = count == t->pieces;
    settle_for(t->milliseconds);
    free_all(t->runtime, got, (int)count);
    assert_ok(pleat_mark(t->runtime));
    return served;
}

static void *train_on(void *context)
{
    trainer *t = context;
    while (!t->over) {
        if (train(t)) {
            t->iterations++;
            continue;
        }
        t->refused++;
        t->pieces /= 2;
    }
    return NULL;
}

static void await_iterations(const trainer *t, uint32_t count)
{
    uint32_t until = t->iterations + count;
    for (int tries = 0; t->iterations < until; tries++) {
        assert_true(tries < 5000);
        settle_for(2);
    }
}

/* Guaranteed half of the device, it has seven eighths while its neighbour rests. The neighbour
 * wakes and has what it is guaranteed within two iterations; both go on. */
static void tenancy_a_job_above_its_guarantee_gives_way_within_two_iterations(void **state)
{
    (void)state;
    pair p;
    pthread_t thread;
    pleat_va own[6];
    begin_pair(&p, "tenants:user,tenant:lender,guarantee:24m", "tenants:user,guarantee:32m");
    trainer t = {.runtime = p.other, .pieces = 14 - LIVE, .milliseconds = 5};
    take_all(p.other, t.live, LIVE);
    assert_int_equal(pthread_create(&thread, NULL, train_on, &t), 0);
    await_iterations(&t, 6);
    assert_int_equal(physical(p.other), 56 * MIB);
    /* Iterations are counted in which this thread asks: long ones, for on a busy machine it is not
     * always awake when what it waits for has come. */
    t.milliseconds = 200;
    await_iterations(&t, 1);
    uint32_t before = t.iterations + t.refused;
    take_all(p.f.runtime, own, 6);
    assert_true(t.iterations + t.refused - before <= 2);
    t.milliseconds = 5;
    assert_true(physical(p.other) <= 40 * MIB);
    await_iterations(&t, 3);
    assert_int_equal(t.pieces, 5);
    assert_int_equal(t.refused, 1);
    /* What the lender frees and nobody asks for stays its own for a while; then it is lent again.
     */
    free_all(p.f.runtime, own, 6);
    t.over = true;
    assert_int_equal(pthread_join(thread, NULL), 0);
    free_all(p.other, t.live, LIVE);
    end_pair(&p);
}

/* ---- killed ---- */

/* Pauses and resumes for good, and says when it has begun. */
static void pause_for_good(int said)
{
    fixture f;
    pleat_va held[12];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_host(&f, DEVICE, false);
    f.runtime = make(&f, "tenants:user,tenant:victim");
    take_all(f.runtime, held, 12);
    for (;;) {
        assert_ok(pleat_pause(f.runtime, NULL));
        (void)!write(said, "", 1);
        assert_ok(pleat_resume(f.runtime, NULL));
    }
}

static void tenancy_a_process_killed_in_a_pause_or_a_resume_leaves_its_share(void **state)
{
    (void)state;
    test_random random = test_random_begin("tenancy_killed", 24);
    for (int turn = 0; turn < 24; turn++) {
        int said[2];
        char letter;
        assert_int_equal(pipe(said), 0);
        pid_t child = fork();
        if (child == 0)
            pause_for_good(said[1]);
        close(said[1]);
        assert_int_equal(read(said[0], &letter, 1), 1);
        nanosleep(&(struct timespec){.tv_nsec = (long)test_random_below(&random, 8000000)}, NULL);
        kill_child(child);
        close(said[0]);
        /* All of the device is there for the next one. */
        fixture f;
        pleat_va all[15];
        open_host(&f, DEVICE, false);
        f.runtime = make(&f, "tenants:user,tenant:heir");
        double begun = milliseconds();
        take_all(f.runtime, all, 15);
        assert_true(milliseconds() - begun < 1000);
        free_all(f.runtime, all, 15);
        end(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tenancy_idle_memory_that_was_borrowed_comes_back_at_once),
        cmocka_unit_test(tenancy_what_lives_comes_back_when_the_iteration_ends),
        cmocka_unit_test(tenancy_a_request_waits_for_what_it_is_guaranteed),
        cmocka_unit_test(tenancy_who_rests_gives_its_cache_to_who_asks),
        cmocka_unit_test(tenancy_who_works_keeps_its_cache),
        cmocka_unit_test(tenancy_who_works_lends_what_its_schedule_has_no_use_for),
        cmocka_unit_test(tenancy_what_cannot_be_borrowed_is_refused_soon),
        cmocka_unit_test(tenancy_people_can_ask_for_what_is_idle),
        cmocka_unit_test(tenancy_idle_memory_goes_below_the_watermark_while_the_process_rests),
        cmocka_unit_test(tenancy_settings_that_make_no_sense_are_refused),
        cmocka_unit_test(tenancy_planned_requests_do_not_ask_the_ledger),
        cmocka_unit_test(tenancy_a_job_above_its_guarantee_gives_way_within_two_iterations),
        cmocka_unit_test(tenancy_a_device_that_others_fill_is_refused_in_time),
        cmocka_unit_test(tenancy_a_larger_budget_raises_the_cap),
        cmocka_unit_test(tenancy_two_resumes_wait_for_the_same_room),
        cmocka_unit_test(tenancy_tenants_of_one_process_count_once),
        cmocka_unit_test(tenancy_a_request_waits_on_when_another_ones_wait_ends),
        cmocka_unit_test(tenancy_a_request_that_waits_gets_what_its_own_process_frees),
        cmocka_unit_test(tenancy_each_request_has_a_grace_time_of_its_own),
        cmocka_unit_test(tenancy_a_process_killed_in_a_pause_or_a_resume_leaves_its_share),
        cmocka_unit_test(tenancy_nothing_is_left_whatever_fails),
    };
    return cmocka_run_group_tests_name("tenancy", tests, open_ledger_folder, NULL);
}
