/*
 * size.c: see size.h.
 */
#include <runtime/base/size.h>

#include <ctype.h>
#include <internal/range.h>
#include <string.h>

static bool is_letter(const char *at, const char *end, char lower)
{
    return at < end && tolower((unsigned char)*at) == lower;
}

bool pleat__size_parse(const char *text, size_t length, uint64_t *bytes)
{
    static const char units[] = "kmgt";
    const char *at = text, *end = text + length;
    uint64_t value = 0;
    for (; at < end && isdigit((unsigned char)*at); at++)
        if (!pleat__mul(value, 10, &value) || !pleat__add(value, (uint64_t)(*at - '0'), &value))
            return false;
    if (at == text)
        return false;
    const char *unit =
        at < end ? memchr(units, tolower((unsigned char)*at), sizeof units - 1) : NULL;
    if (unit != NULL) {
        if (!pleat__mul(value, UINT64_C(1) << 10 * (unit - units + 1), &value))
            return false;
        at++;
        at += is_letter(at, end, 'i');
    }
    at += is_letter(at, end, 'b');
    *bytes = value;
    return at == end;
}
