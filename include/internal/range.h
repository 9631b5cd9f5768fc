/*
 * internal/range.h: half-open ranges [begin, end) of bytes, chunks or time, and arithmetic that
 * says so when it would overflow. Everything that does sums on sizes from outside goes through
 * here.
 */
#ifndef PLEAT_INTERNAL_RANGE_H
#define PLEAT_INTERNAL_RANGE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pleat__range {
    uint64_t begin;
    uint64_t end;
} pleat__range;

static inline uint64_t pleat__range_size(pleat__range range)
{
    return range.end - range.begin;
}

static inline bool pleat__range_empty(pleat__range range)
{
    return range.begin >= range.end;
}

/* Empty ranges overlap nothing. */
static inline bool pleat__range_overlaps(pleat__range a, pleat__range b)
{
    return a.begin < b.end && b.begin < a.end && !pleat__range_empty(a) && !pleat__range_empty(b);
}

static inline bool pleat__range_contains(pleat__range outer, pleat__range inner)
{
    return outer.begin <= inner.begin && inner.end <= outer.end;
}

/* What they have in common; begin is not below end where that is nothing. */
static inline pleat__range pleat__range_meet(pleat__range a, pleat__range b)
{
    return (pleat__range){a.begin > b.begin ? a.begin : b.begin, a.end < b.end ? a.end : b.end};
}

/* false: the result would not fit in 64 bits, and *out is untouched. */
static inline bool pleat__add(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *out = sum;
    return true;
}

static inline bool pleat__mul(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *out = product;
    return true;
}

/* The greatest common divisor; of 0 and a it is a. */
static inline uint64_t pleat__gcd(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static inline bool pleat__range_make(uint64_t begin, uint64_t size, pleat__range *out)
{
    uint64_t end;
    if (!pleat__add(begin, size, &end))
        return false;
    *out = (pleat__range){begin, end};
    return true;
}

static inline bool pleat__is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* `unit` need not be a power of two. */
static inline bool pleat__round_up(uint64_t value, uint64_t unit, uint64_t *out)
{
    uint64_t rest = value % unit;
    if (rest == 0) {
        *out = value;
        return true;
    }
    return pleat__add(value, unit - rest, out);
}

static inline uint64_t pleat__round_down(uint64_t value, uint64_t unit)
{
    return value - value % unit;
}

/* The number of units that hold `value`; cannot overflow. */
static inline uint64_t pleat__ceil_div(uint64_t value, uint64_t unit)
{
    return value / unit + (value % unit != 0);
}

/* The unit of places: what a request takes is a multiple of it. */
#define PLEAT__ALIGNMENT 512u

/* What a request of so many bytes takes; of the last 511 numbers there are it is 0. */
static inline uint64_t pleat__rounded(uint64_t bytes)
{
    return (bytes + (PLEAT__ALIGNMENT - 1)) & ~(uint64_t)(PLEAT__ALIGNMENT - 1);
}

/* Which of PLEAT__OCTAVE_BINS a value falls into, 16 an octave. pre: value != 0. */
#define PLEAT__OCTAVE_BINS (32 * 16)
static inline uint32_t pleat__octave_bin(uint32_t value)
{
    uint32_t octave = 31 - (uint32_t)__builtin_clz(value);
    uint32_t rest = octave >= 4 ? value >> (octave - 4) : value << (4 - octave);
    return octave * 16 + (rest & 15);
}

#endif
