/*
 * sized.h: structs whose size the caller says, as it knows them (base.h, SIZES).
 */
#ifndef PLEAT_INTERNAL_SIZED_H
#define PLEAT_INTERNAL_SIZED_H

#include <pleat/base.h>
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

/* Whether `size`, the first field of a struct that the caller made, can be one: at least the bytes
 * that the struct's first version had. PLEAT_E_ABI, with its name. */
PLEAT_NODISCARD pleat_result pleat__check_sized(const char *name, uint32_t size, size_t first);

/* Reads options: `to` has the defaults of all `known` bytes, and gets what the caller's struct
 * says. NULL says nothing. PLEAT_E_ABI, with the struct's name: the size cannot be, or what this
 * library does not know is not 0. */
PLEAT_NODISCARD pleat_result pleat__read_sized(const char *name, const void *given, size_t first,
                                               void *to, size_t known);

#endif
