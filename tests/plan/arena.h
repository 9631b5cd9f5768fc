/*
 * arena.h: the arena that all tests of a group take from: open_arena and close_arena are the
 * group's set-up and tear-down.
 */
#ifndef PLEAT_TESTS_PLAN_ARENA_H
#define PLEAT_TESTS_PLAN_ARENA_H

#include "test.h"

#include <internal/arena.h>

static pleat__arena *arena;

static int open_arena(void **state)
{
    (void)state;
    assert_ok(pleat__arena_create(&arena));
    return 0;
}

static int close_arena(void **state)
{
    (void)state;
    pleat__arena_destroy(arena);
    return 0;
}

#endif
