/*
 * clock.c: see clock.h.
 */
#include <tools/clock.h>

#include <stdlib.h>
#include <time.h>

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

uint64_t clock_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_quantile(uint64_t *samples, size_t count, double share)
{
    if (count == 0)
        return 0;
    qsort(samples, count, sizeof *samples, compare);
    size_t at = (size_t)(share * (double)count);
    return samples[at < count ? at : count - 1];
}
