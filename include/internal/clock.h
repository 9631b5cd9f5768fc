/*
 * internal/clock.h: the monotonic clock, by which all of a runtime's times go.
 */
#ifndef PLEAT_INTERNAL_CLOCK_H
#define PLEAT_INTERNAL_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t pleat__now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* When `ns` from now have passed, for a wait of a condition (thread.h). */
static inline struct timespec pleat__after_ns(uint64_t ns)
{
    ns += pleat__now_ns();
    return (struct timespec){(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

#endif
