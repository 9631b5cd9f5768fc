/*
 * pages.c: huge pages of the process: where they lie, who has them, and how much of them there may
 * be.
 */
#include "../child.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vmm/pages.h>

#define PIECE (3 * PLEAT__HUGE_PAGE_BYTES)

static void pages_are_there_and_lie_on_huge_ones(void **state)
{
    (void)state;
    for (int huge = 0; huge <= 1; huge++) {
        void *memory;
        unsigned char there[PIECE / 4096];
        assert_ok(pleat__pages_get(PIECE, huge == 1, &memory));
        assert_int_equal((uintptr_t)memory % PLEAT__HUGE_PAGE_BYTES, 0);
        if (sysconf(_SC_PAGESIZE) == 4096) {
            assert_int_equal(mincore(memory, PIECE, there), 0);
            for (size_t p = 0; p < sizeof there; p++)
                assert_int_equal(there[p] & 1, 1);
        }
        memset(memory, 7, PIECE);
        pleat__pages_give(memory, PIECE);
        assert_int_equal(msync(memory, PIECE, MS_ASYNC), -1); /* nothing is mapped there */
    }
}

static void pages_are_whole_huge_ones(void **state)
{
    (void)state;
    void *memory;
    assert_result(pleat__pages_get(0, true, &memory), PLEAT_E_INVALID);
    assert_result(pleat__pages_get(PLEAT__HUGE_PAGE_BYTES + 4096, true, &memory), PLEAT_E_INVALID);
    assert_result(pleat__pages_get(UINT64_C(1) << 60, true, &memory), PLEAT_E_NO_MEMORY);
}

/* What is pinned would be copied for a child. */
static void pages_are_not_a_childs(void **state)
{
    (void)state;
    void *memory;
    assert_ok(pleat__pages_get(PIECE, true, &memory));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(msync(memory, PIECE, MS_ASYNC) == -1 ? 0 : 1);
    assert_child_ends(child);
    pleat__pages_give(memory, PIECE);
}

static void pages_have_room(void **state)
{
    (void)state;
    uint64_t room = pleat__pages_room();
    uint64_t all = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    assert_true(room < all - all / 9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pages_are_there_and_lie_on_huge_ones),
        cmocka_unit_test(pages_are_whole_huge_ones),
        cmocka_unit_test(pages_are_not_a_childs),
        cmocka_unit_test(pages_have_room),
    };
    return cmocka_run_group_tests_name("pages", tests, NULL, NULL);
}
