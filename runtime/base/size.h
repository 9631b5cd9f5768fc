/*
 * size.h: reads a size, such as 512k, from a part of a text, as pleat_size_parse (pleat/base.h)
 * does from a whole one.
 */
#ifndef PLEAT_RUNTIME_BASE_SIZE_H
#define PLEAT_RUNTIME_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether these `length` letters are a size, which `bytes` is then. */
bool pleat__size_parse(const char *text, size_t length, uint64_t *bytes);

#endif
