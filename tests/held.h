/*
 * held.h: that nothing is left on a host backend when what used it is gone.
 */
#ifndef PLEAT_TESTS_HELD_H
#define PLEAT_TESTS_HELD_H

#include "host.h"
#include "test.h"

static inline void assert_nothing_held(const pleat_vmm *host)
{
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(host, &held));
    assert_int_equal(held.handles, 0);
    assert_int_equal(held.memories, 0);
    assert_int_equal(held.memory_bytes, 0);
    assert_int_equal(held.reservations, 0);
    assert_int_equal(held.mapped_pages, 0);
    assert_int_equal(held.areas, 0);
    assert_int_equal(held.events, 0);
    assert_int_equal(held.host_bytes, 0);
    assert_int_equal(held.streams, 0);
    assert_int_equal(held.blocks, 0);
}

#endif
