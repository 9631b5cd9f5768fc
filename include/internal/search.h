/*
 * search.h: the binary search.
 */
#ifndef PLEAT_INTERNAL_SEARCH_H
#define PLEAT_INTERNAL_SEARCH_H

/* Sets the variable `index` to the first of 0 to count - 1 for which `holds`, an expression of
 * `index`, is true, or to count where it is true for none.
 * pre: it is false up to some index and true from there on.
 *
 *     uint32_t at;
 *     PLEAT__FIRST(at, count, sorted[at] >= wanted); */
#define PLEAT__FIRST(index, count, holds)                                                          \
    do {                                                                                           \
        __typeof__(index) first_low = 0, first_high = (count);                                     \
        while (first_low < first_high) {                                                           \
            (index) = first_low + (first_high - first_low) / 2;                                    \
            if (holds)                                                                             \
                first_high = (index);                                                              \
            else                                                                                   \
                first_low = (index) + 1;                                                           \
        }                                                                                          \
        (index) = first_low;                                                                       \
    } while (0)

#endif
