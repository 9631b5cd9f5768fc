/*
 * clock.c: see clock.h.
 */
#include <tools/clock.h>

#include <internal/clock.h>

uint64_t clock_now(void)
{
    return pleat__now_ns();
}

static void swap(uint64_t *a, uint64_t *b)
{
    uint64_t was = *a;
    *a = *b;
    *b = was;
}

/* The middle one of three samples, so that samples in order are split in halves. */
static uint64_t pivot_of(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t least = a < b ? a : b, most = a < b ? b : a;
    return c < least ? least : c > most ? most : c;
}

/* Hoare's selection: what lies between `first` and `last` is parted until sample `at` is where a
 * sort would put it, in time linear in the samples, of which a replay has two for each request. */
static uint64_t select_nth(uint64_t *samples, ptrdiff_t count, ptrdiff_t at)
{
    ptrdiff_t first = 0, last = count - 1;
    while (first < last) {
        uint64_t pivot =
            pivot_of(samples[first], samples[first + (last - first) / 2], samples[last]);
        ptrdiff_t low = first, high = last;
        while (low <= high) {
            while (samples[low] < pivot)
                low++;
            while (samples[high] > pivot)
                high--;
            if (low <= high)
                swap(&samples[low++], &samples[high--]);
        }
        if (at <= high)
            last = high;
        else if (at >= low)
            first = low;
        else
            break;
    }
    return samples[at];
}

uint64_t clock_quantile(uint64_t *samples, size_t count, double share)
{
    if (count == 0)
        return 0;
    size_t at = (size_t)(share * (double)count);
    return select_nth(samples, (ptrdiff_t)count, (ptrdiff_t)(at < count ? at : count - 1));
}

uint64_t clock_cost(void)
{
    uint64_t ns[255];
    const size_t count = sizeof ns / sizeof *ns;
    for (size_t i = 0; i < count; i++) {
        uint64_t begun = clock_now();
        ns[i] = clock_now() - begun;
    }
    return clock_quantile(ns, count, 0.5);
}
