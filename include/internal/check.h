/*
 * internal/check.h: the ladder of checks.
 *
 *   PLEAT_CHECK(condition)   always on. For what must hold or memory would be corrupted: prints the
 *                            place and traps. Never for bad input, which is an error return.
 *   PLEAT_ASSERT(condition)  on unless NDEBUG: cheap internal truths.
 *   PLEAT_AUDIT(call)        on when PLEAT_AUDITS is defined (presets check, asan, tsan): an
 *                            auditor that re-derives a structure's state. It returns true when all
 *                            holds, and prints both values that disagree when not.
 *
 * PLEAT__HOT_ENTER and _LEAVE bracket what a thread does under a lock that allocations take, as far
 * as assertions are on; PLEAT__HOT_ASSERT, where a verb is issued or the GPU waited for, traps
 * between them (R11 in docs/invariants.md).
 */
#ifndef PLEAT_INTERNAL_CHECK_H
#define PLEAT_INTERNAL_CHECK_H

#include <stdbool.h>

/* Prints the place and the text to standard error and traps (SIGILL/SIGTRAP): the library calls
 * neither exit nor abort. */
_Noreturn void pleat__check_failed(const char *file, int line, const char *what);

#define PLEAT_CHECK(condition)                                                                     \
    do {                                                                                           \
        if (__builtin_expect(!(condition), 0))                                                     \
            pleat__check_failed(__FILE__, __LINE__, #condition);                                   \
    } while (0)

#ifndef NDEBUG
#define PLEAT_ASSERT(condition) PLEAT_CHECK(condition)
#else
#define PLEAT_ASSERT(condition)                                                                    \
    do {                                                                                           \
        if (0)                                                                                     \
            (void)(condition);                                                                     \
    } while (0)
#endif

#ifndef NDEBUG
/* How many such locks the thread holds; `by` is added. */
int pleat__hot_locks(int by);
#define PLEAT__HOT_ENTER()  ((void)pleat__hot_locks(1))
#define PLEAT__HOT_LEAVE()  ((void)pleat__hot_locks(-1))
#define PLEAT__HOT_ASSERT() PLEAT_CHECK(pleat__hot_locks(0) == 0)
#else
#define PLEAT__HOT_ENTER()  ((void)0)
#define PLEAT__HOT_LEAVE()  ((void)0)
#define PLEAT__HOT_ASSERT() ((void)0)
#endif

#ifdef PLEAT_AUDITS
#define PLEAT_AUDIT(call) PLEAT_CHECK(call)
#else
#define PLEAT_AUDIT(call)                                                                          \
    do {                                                                                           \
        if (0)                                                                                     \
            (void)(call);                                                                          \
    } while (0)
#endif

#endif
