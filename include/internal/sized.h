/*
 * sized.h: structs of results whose size the caller says, as it knows them.
 */
#ifndef PLEAT_INTERNAL_SIZED_H
#define PLEAT_INTERNAL_SIZED_H

#include <stddef.h>
#include <string.h>

/* Fills in the caller's `size` bytes: a program built against an older header has room for fewer of
 * the `known` bytes, and one built against a newer header gets 0 for what this library does not
 * know. */
static inline void pleat__fill_sized(void *to, size_t size, const void *from, size_t known)
{
    memcpy(to, from, size < known ? size : known);
    if (size > known)
        memset((char *)to + known, 0, size - known);
}

#endif
