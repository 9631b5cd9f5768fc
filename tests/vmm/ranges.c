/*
 * ranges.c: memory that may be registered, over the host backend: one handle each, where it stays,
 * as long as somebody holds it; and with each verb made to fail in turn.
 */
#include "../fault.h"
#include "../held.h"
#include "../host.h"

#include <pleat/ranges.h>

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#define GRANULE 65536u
enum { DEVICE_PAGES = 64 };

typedef struct fixture {
    pleat_vmm host, vmm;
    pleat_ranges *ranges;
} fixture;

static fixture begin_with(int devices)
{
    fixture f;
    pleat_host_options host = {.size = sizeof host,
                               .devices = devices,
                               .device_bytes = DEVICE_PAGES * GRANULE,
                               .granularity = GRANULE};
    assert_ok(pleat_vmm_host(&host, &f.host));
    assert_ok(pleat__fault_create(f.host, &f.vmm));
    assert_ok(pleat_ranges_create(f.vmm, 0, &f.ranges));
    return f;
}

static fixture begin(void)
{
    return begin_with(3);
}

static void end(fixture *f)
{
    pleat__fault_arm(&f->vmm, (pleat__fault_plan){0});
    pleat_ranges_destroy(f->ranges);
    assert_nothing_held(&f->host);
    pleat_vmm_destroy(&f->vmm);
    pleat_vmm_destroy(&f->host);
}

static uint64_t physical(const fixture *f, pleat_va address)
{
    uint64_t offset;
    assert_ok(pleat_host_physical(&f->host, address, &offset));
    return offset;
}

static void ranges_are_one_handle_that_stays(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a, b;
    uint64_t bytes;
    assert_ok(pleat_range_make(f.ranges, 5 * GRANULE + 1, &a, &bytes));
    assert_int_equal(bytes, 6 * GRANULE);
    assert_ok(pleat_range_make(f.ranges, 1, &b, NULL));
    assert_int_equal(pleat_ranges_bytes(f.ranges), 7 * GRANULE);
    memset((void *)(uintptr_t)a, 7, bytes);
    uint64_t at = physical(&f, a);
    for (uint64_t page = 0; page < 6; page++) /* one handle is contiguous in the device */
        assert_int_equal(physical(&f, a + page * GRANULE), at + page * GRANULE);
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(&f.host, &held));
    assert_int_equal(held.handles, 2);
    assert_ok(pleat_range_give(f.ranges, b));
    assert_int_equal(physical(&f, a), at);
    assert_int_equal(((unsigned char *)(uintptr_t)a)[bytes - 1], 7);
    end(&f);
}

static void ranges_say_whose_an_address_is(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a, begins = 0;
    uint64_t bytes = 0;
    assert_ok(pleat_range_make(f.ranges, 2 * GRANULE, &a, NULL));
    assert_ok(pleat_range_of(f.ranges, a + 2 * GRANULE - 1, &begins, &bytes));
    assert_int_equal(begins, a);
    assert_int_equal(bytes, 2 * GRANULE);
    assert_result(pleat_range_of(f.ranges, a + 2 * GRANULE, &begins, &bytes), PLEAT_E_NOT_FOUND);
    assert_result(pleat_range_of(f.ranges, a - 1, &begins, &bytes), PLEAT_E_NOT_FOUND);
    assert_result(pleat_range_give(f.ranges, a + GRANULE), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_range_give(f.ranges, a));
    assert_result(pleat_range_give(f.ranges, a), PLEAT_E_NOT_FOUND);
    assert_result(pleat_range_of(f.ranges, a, &begins, &bytes), PLEAT_E_NOT_FOUND);
    end(&f);
}

static void ranges_go_only_when_nobody_holds_them(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a;
    assert_ok(pleat_range_make(f.ranges, 3 * GRANULE, &a, NULL));
    assert_ok(pleat_range_hold(f.ranges, a + GRANULE));
    assert_ok(pleat_range_hold(f.ranges, a));
    uint64_t at = physical(&f, a);
    assert_ok(pleat_range_give(f.ranges, a));
    assert_int_equal(physical(&f, a), at);
    assert_result(pleat_range_give(f.ranges, a), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_range_let_go(f.ranges, a + 5));
    assert_int_equal(pleat_ranges_bytes(f.ranges), 3 * GRANULE);
    assert_ok(pleat_range_let_go(f.ranges, a + 2 * GRANULE));
    assert_int_equal(pleat_ranges_bytes(f.ranges), 0);
    assert_result(pleat_range_let_go(f.ranges, a), PLEAT_E_NOT_FOUND);
    assert_ok(pleat_range_make(f.ranges, 1, &a, NULL));
    assert_result(pleat_range_let_go(f.ranges, a), PLEAT_E_STATE);
    /* Who lets go of what its owner has not given leaves it to the owner. */
    assert_ok(pleat_range_hold(f.ranges, a));
    assert_ok(pleat_range_let_go(f.ranges, a));
    assert_int_equal(pleat_ranges_bytes(f.ranges), GRANULE);
    /* What is held at the end goes all the same. */
    assert_ok(pleat_range_hold(f.ranges, a));
    end(&f);
}

static void ranges_refuse_what_cannot_be(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a;
    pleat_ranges *none;
    assert_result(pleat_range_make(f.ranges, 0, &a, NULL), PLEAT_E_INVALID);
    assert_result(pleat_range_make(f.ranges, UINT64_MAX, &a, NULL), PLEAT_E_INVALID);
    assert_result(pleat_range_make(f.ranges, (DEVICE_PAGES + 1) * GRANULE, &a, NULL),
                  PLEAT_E_OUT_OF_MEMORY);
    assert_result(pleat_range_hold(f.ranges, 5), PLEAT_E_NOT_FOUND);
    assert_result(pleat_ranges_create(f.vmm, 3, &none), PLEAT_E_NO_DEVICE);
    assert_result(pleat_ranges_create(f.vmm, -1, &none), PLEAT_E_NO_DEVICE);
    pleat_ranges_destroy(NULL);
    assert_int_equal(pleat_ranges_bytes(f.ranges), 0);
    end(&f);
}

static void ranges_are_sent_to_other_processes(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a, there;
    int fd;
    pleat_handle handle;
    assert_ok(pleat_range_make(f.ranges, 2 * GRANULE, &a, NULL));
    ((uint64_t *)(uintptr_t)a)[GRANULE / 8] = 99;
    assert_ok(pleat_range_export(f.ranges, a + GRANULE, &fd));
    const pleat_vmm_ops *ops = f.host.ops;
    assert_ok(ops->import_handle(f.host.self, 0, fd, 2 * GRANULE, &handle));
    assert_ok(ops->reserve(f.host.self, 0, 2 * GRANULE, 0, &there));
    assert_ok(ops->map(f.host.self, there, 2 * GRANULE, handle));
    assert_ok(ops->set_access(f.host.self, there, 2 * GRANULE, (int[]){0}, 1));
    assert_int_equal(((uint64_t *)(uintptr_t)there)[GRANULE / 8], 99);
    assert_ok(ops->unmap(f.host.self, there, 2 * GRANULE));
    assert_ok(ops->free_range(f.host.self, there, 2 * GRANULE));
    assert_ok(ops->release(f.host.self, handle));
    assert_result(pleat_range_export(f.ranges, a - 1, &fd), PLEAT_E_NOT_FOUND);
    close(fd);
    end(&f);
}

static void ranges_are_reached_by_peers(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a, b;
    assert_ok(pleat_range_make(f.ranges, GRANULE, &a, NULL));
    assert_ok(pleat_ranges_add_peer(f.ranges, 1));
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_set_access, .nth = 1});
    assert_ok(pleat_ranges_add_peer(f.ranges, 1)); /* it is one: no verb */
    assert_ok(pleat_ranges_add_peer(f.ranges, 0));
    assert_true(pleat_ranges_add_peer(f.ranges, 2) != PLEAT_OK);
    assert_int_equal(pleat__fault_calls(&f.vmm), 1);
    assert_ok(pleat_ranges_add_peer(f.ranges, 2));
    assert_ok(pleat_range_make(f.ranges, GRANULE, &b, NULL));
    end(&f);
}

/* Or every range to come would be refused. */
static void ranges_refuse_a_peer_that_cannot_reach_them(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a;
    assert_result(pleat_ranges_add_peer(f.ranges, 3), PLEAT_E_NO_DEVICE);
    assert_result(pleat_ranges_add_peer(f.ranges, -1), PLEAT_E_NO_DEVICE);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_set_access, .nth = 1});
    assert_result(pleat_ranges_add_peer(f.ranges, 2), PLEAT_E_DRIVER);
    assert_ok(pleat_ranges_add_peer(f.ranges, 1));
    assert_int_equal(pleat_ranges_bytes(f.ranges), 0);
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(&f.host, &held));
    assert_int_equal(held.handles + held.reservations, 0);
    assert_ok(pleat_range_make(f.ranges, 1, &a, NULL));
    end(&f);
}

static void ranges_have_so_many_peers_and_no_more(void **state)
{
    (void)state;
    fixture f = begin_with(64);
    for (int peer = 1; peer < 64; peer++)
        assert_ok(pleat_ranges_add_peer(f.ranges, peer));
    assert_result(pleat_ranges_add_peer(f.ranges, 64), PLEAT_E_LIMIT);
    end(&f);
}

/* One that could not be made, and of which the driver keeps a part, counts until the end, and is
 * nobody's. */
static void ranges_that_the_driver_keeps_are_left_alone(void **state)
{
    (void)state;
    fixture f = begin();
    pleat_va a;
    /* reserve, create, map, set_access; then nothing is taken back. */
    pleat__fault_arm(&f.vmm,
                     (pleat__fault_plan){.verb = PLEAT__FAULT_any, .nth = 4, .forever = true});
    assert_result(pleat_range_make(f.ranges, GRANULE, &a, NULL), PLEAT_E_DRIVER);
    assert_int_equal(pleat_ranges_bytes(f.ranges), GRANULE);
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_create});
    assert_ok(pleat_ranges_add_peer(f.ranges, 1));
    /* Not the range that was kept is asked for, but one that is made to ask. */
    assert_int_equal(pleat__fault_calls(&f.vmm), 1);
    end(&f);
}

/* All that a range goes through. */
static pleat_result use(pleat_ranges *ranges)
{
    pleat_va a, b;
    int fd;
    pleat_result result = pleat_ranges_add_peer(ranges, 2);
    if (result == PLEAT_OK)
        result = pleat_range_make(ranges, 3 * GRANULE, &a, NULL);
    if (result != PLEAT_OK)
        return result;
    result = pleat_range_make(ranges, GRANULE, &b, NULL);
    if (result == PLEAT_OK) {
        memset((void *)(uintptr_t)b, 1, GRANULE);
        result = pleat_ranges_add_peer(ranges, 1);
        if (result == PLEAT_OK)
            result = pleat_range_export(ranges, b, &fd);
        if (result == PLEAT_OK)
            close(fd);
        (void)pleat_range_hold(ranges, b);
        (void)pleat_range_give(ranges, b);
        pleat_result gone = pleat_range_let_go(ranges, b);
        result = result == PLEAT_OK ? gone : result;
    }
    pleat_result gone = pleat_range_give(ranges, a);
    return result == PLEAT_OK ? gone : result;
}

static void ranges_keep_nothing_when_a_verb_fails(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        uint64_t hits = 1;
        for (uint64_t nth = 1; hits > 0; nth++) {
            fixture f = begin();
            pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any,
                                                         .nth = nth,
                                                         .forever = (kind & 1) != 0,
                                                         .carried_out = (kind & 2) != 0});
            pleat_result result = use(f.ranges);
            hits = pleat__fault_hits(&f.vmm);
            assert_int_equal(result == PLEAT_OK, hits == 0);
            end(&f);
            assert_true(nth < 100);
        }
    }
}

/* ---- threads ---- */

typedef struct slow {
    pleat_vmm inner;
    pleat_vmm_ops ops;
    atomic_bool in_verb, go_on;
} slow;

static slow *slow_world;

static pleat_result slow_create(void *self, int device, uint64_t bytes, uint32_t flags,
                                pleat_handle *handle)
{
    atomic_store(&slow_world->in_verb, true);
    while (!atomic_load(&slow_world->go_on))
        usleep(100);
    return slow_world->inner.ops->create(self, device, bytes, flags, handle);
}

static void *make_slowly(void *ranges)
{
    pleat_va a;
    assert_ok(pleat_range_make(ranges, GRANULE, &a, NULL));
    return NULL;
}

/* Who asks whose an address is, or registers one, waits for no driver. */
static void ranges_answer_while_a_verb_goes_on(void **state)
{
    (void)state;
    slow world = {0};
    slow_world = &world;
    pleat_host_options host = {.size = sizeof host, .granularity = GRANULE};
    assert_ok(pleat_vmm_host(&host, &world.inner));
    world.ops = *world.inner.ops;
    world.ops.create = slow_create;
    pleat_ranges *ranges;
    atomic_store(&world.go_on, true);
    assert_ok(pleat_ranges_create((pleat_vmm){&world.ops, world.inner.self}, 0, &ranges));
    pleat_va a, begins;
    uint64_t bytes;
    assert_ok(pleat_range_make(ranges, GRANULE, &a, NULL));
    atomic_store(&world.go_on, false);
    atomic_store(&world.in_verb, false);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, make_slowly, ranges), 0);
    while (!atomic_load(&world.in_verb))
        usleep(100);
    assert_ok(pleat_range_of(ranges, a, &begins, &bytes));
    assert_ok(pleat_range_hold(ranges, a));
    assert_int_equal(pleat_ranges_bytes(ranges), GRANULE);
    atomic_store(&world.go_on, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pleat_ranges_bytes(ranges), 2 * GRANULE);
    pleat_ranges_destroy(ranges);
    assert_nothing_held(&world.inner);
    pleat_vmm_destroy(&world.inner);
}

enum { THREADS = 4, ROUNDS = 200 };

static void *come_and_go(void *ranges)
{
    for (int i = 0; i < ROUNDS; i++) {
        pleat_va a;
        assert_ok(pleat_range_make(ranges, GRANULE, &a, NULL));
        *(uint64_t *)(uintptr_t)a = (uint64_t)i;
        assert_ok(pleat_range_hold(ranges, a));
        assert_ok(pleat_range_give(ranges, a));
        assert_int_equal(*(uint64_t *)(uintptr_t)a, i);
        assert_ok(pleat_range_let_go(ranges, a));
    }
    return NULL;
}

static void ranges_come_and_go_on_many_threads(void **state)
{
    (void)state;
    fixture f = begin();
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, come_and_go, f.ranges), 0);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    assert_int_equal(pleat_ranges_bytes(f.ranges), 0);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranges_are_one_handle_that_stays),
        cmocka_unit_test(ranges_say_whose_an_address_is),
        cmocka_unit_test(ranges_go_only_when_nobody_holds_them),
        cmocka_unit_test(ranges_refuse_what_cannot_be),
        cmocka_unit_test(ranges_are_sent_to_other_processes),
        cmocka_unit_test(ranges_are_reached_by_peers),
        cmocka_unit_test(ranges_refuse_a_peer_that_cannot_reach_them),
        cmocka_unit_test(ranges_have_so_many_peers_and_no_more),
        cmocka_unit_test(ranges_that_the_driver_keeps_are_left_alone),
        cmocka_unit_test(ranges_keep_nothing_when_a_verb_fails),
        cmocka_unit_test(ranges_answer_while_a_verb_goes_on),
        cmocka_unit_test(ranges_come_and_go_on_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
