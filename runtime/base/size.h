/*
 * size.h: a size as people write it: bytes, or a number with K, M, G or T (powers of 1024), which
 * an i, a B or both may follow, in letters of either case: 65536, 64k, 64KiB, 64kb, 1.5GiB. A
 * fraction of a byte is left out.
 */
#ifndef PLEAT_RUNTIME_BASE_SIZE_H
#define PLEAT_RUNTIME_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether these `length` letters are a size, which `bytes` is then. */
bool pleat__size_parse(const char *text, size_t length, uint64_t *bytes);

#endif
