/*
 * sized.c: see internal/sized.h.
 */
#include <internal/error.h>
#include <internal/sized.h>

#define BYTES_MOST 4096u /* a field that was never set may have any number in it (D480) */

pleat_result pleat__check_sized(const char *name, uint32_t size, size_t first)
{
    return size >= first && size <= BYTES_MOST
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_ABI,
                             "%s: its size is %u bytes, which it never was: set .size = sizeof(%s)",
                             name, size, name);
}

pleat_result pleat__read_sized(const char *name, const void *given, size_t first, void *to,
                               size_t known)
{
    uint32_t size;
    if (given == NULL)
        return PLEAT_OK;
    memcpy(&size, given, sizeof size);
    PLEAT_TRY(pleat__check_sized(name, size, first));
    for (size_t i = known; i < size; i++)
        if (((const unsigned char *)given)[i] != 0)
            return pleat__fail(PLEAT_E_ABI,
                               "%s: it is %u bytes long, of which this library knows %zu, and what "
                               "is behind them is not 0",
                               name, size, known);
    memcpy(to, given, size < known ? size : known);
    return PLEAT_OK;
}
