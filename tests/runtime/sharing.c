/*
 * sharing.c: when streams are kept apart, told by a clock by hand.
 */
#include "test.h"

#include <runtime/memory/heap.h>
#include <vmm/host/host.h>

#define MS UINT64_C(1000000)

typedef struct fixture {
    pleat_vmm host;
    pleat__heap heap;
    uint64_t clock_ns;
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){.clock_ns = 1000 * MS};
    assert_ok(pleat_vmm_host(NULL, &f->host));
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->heap.vmm = f->host;
    pleat__heap_end_iteration(&f->heap);
}

static void end(fixture *f)
{
    pleat_vmm_destroy(&f->host);
}

/* An iteration of 100 ms whose requests wait for views of what was taken over for so many quarters
 * of a ms beyond the sixteenth that they may; whether streams are kept apart behind it. */
static bool share(fixture *f, int64_t quarters)
{
    f->clock_ns += 100 * MS;
    assert_ok(pleat__host_clock_set(&f->host, f->clock_ns));
    f->heap.sharing.waited_ns += (uint64_t)((int64_t)(100 * MS / 16) + quarters * (int64_t)MS / 4);
    pleat__heap_end_iteration(&f->heap);
    return f->heap.keeps_apart;
}

static void sharing_that_costs_keeps_streams_apart(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 1000; i++)
        assert_false(share(&f, 0));
    /* What was not waited for is taken off, and no more than there was. */
    for (uint32_t i = 0; i < 10; i++)
        assert_false(share(&f, 80));
    for (uint32_t i = 0; i < 50; i++)
        assert_false(share(&f, -20));
    for (uint32_t i = 0; i < 12; i++)
        assert_false(share(&f, 80));
    /* What follows a schedule adds up too, and says nothing. */
    f.heap.has_schedule = true;
    assert_false(share(&f, 40));
    assert_false(share(&f, 1));
    f.heap.has_schedule = false;
    assert_false(share(&f, -1));
    assert_true(share(&f, 1));
    assert_true(share(&f, -20));
    end(&f);
}

/* The clock of a recording starts again. */
static void sharing_outlives_a_clock_that_goes_back(void **state)
{
    (void)state;
    fixture f;
    begin(&f);
    for (uint32_t i = 0; i < 20; i++) {
        f.clock_ns = 0;
        assert_false(share(&f, -25));
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharing_that_costs_keeps_streams_apart),
        cmocka_unit_test(sharing_outlives_a_clock_that_goes_back),
    };
    return cmocka_run_group_tests_name("sharing", tests, NULL, NULL);
}
