/*
 * internal/process.h: what this process is: what it was started with, and whether something was
 * made in it, or before a fork in its parent.
 *
 * A child of fork has every lock as it was at that moment, held or not, and none of the threads
 * that would let it go or do what is waited for; no device's driver lets it use what its parent
 * made. So what was made before a fork is left alone in the child, and says so.
 */
#ifndef PLEAT_INTERNAL_PROCESS_H
#define PLEAT_INTERNAL_PROCESS_H

#include <pleat/base.h>
#include <stdatomic.h>
#include <stddef.h>

extern _Atomic uint32_t pleat__process_forks;

/* Counts forks from now on. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__process_watch(void);

/* Forks between the first process that asked and this one: a number of this process's own among
 * its ancestors. */
static inline uint32_t pleat__process_now(void)
{
    return atomic_load_explicit(&pleat__process_forks, memory_order_relaxed);
}

/* The command line, a zero byte behind each word; returns its length, 0 where it cannot be read. */
size_t pleat__process_command(char *text, size_t size);

/* The error of a call that is made in another process than what it is about, a "runtime" for
 * instance: PLEAT_E_STATE. */
pleat_result pleat__process_forked(const char *what);

#endif
