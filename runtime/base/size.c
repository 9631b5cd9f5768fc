/*
 * size.c: see size.h.
 */
#include <runtime/base/size.h>

#include <ctype.h>
#include <internal/range.h>
#include <pleat/base.h>
#include <string.h>

static bool is_letter(const char *at, const char *end, char lower)
{
    return at < end && tolower((unsigned char)*at) == lower;
}

/* Digits from `at` on; where they end. */
static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && isdigit((unsigned char)*at))
        at++;
    return at;
}

static bool whole_of(const char *at, const char *end, uint64_t *value)
{
    for (*value = 0; at < end; at++)
        if (!pleat__mul(*value, 10, value) || !pleat__add(*value, (uint64_t)(*at - '0'), value))
            return false;
    return true;
}

/* What digits behind a point stand for. */
static double fraction_of(const char *at, const char *end)
{
    double value = 0, place = 1;
    for (; at < end; at++)
        value += (*at - '0') * (place /= 10);
    return value;
}

/* The bytes of a unit's letters, 1 without; `at` goes behind them. */
static uint64_t unit_of(const char **at, const char *end)
{
    static const char units[] = "kmgt";
    const char *unit =
        *at < end ? memchr(units, tolower((unsigned char)**at), sizeof units - 1) : NULL;
    *at += unit != NULL;
    *at += unit != NULL && is_letter(*at, end, 'i');
    *at += is_letter(*at, end, 'b');
    return unit == NULL ? 1 : UINT64_C(1) << 10 * (unit - units + 1);
}

bool pleat__size_parse(const char *text, size_t length, uint64_t *bytes)
{
    const char *end = text + length, *point = skip_digits(text, end), *at = point;
    uint64_t whole, part;
    if (at < end && *at == '.')
        at = skip_digits(at + 1, end);
    const char *behind = at;
    uint64_t unit = unit_of(&at, end);
    if (behind > point && unit == 1) /* a byte, or one of anything, has no parts */
        return false;
    if (point == text || at != end || !whole_of(text, point, &whole) ||
        !pleat__mul(whole, unit, &whole))
        return false;
    part = behind > point ? (uint64_t)(fraction_of(point + 1, behind) * (double)unit) : 0;
    return pleat__add(whole, part, bytes);
}

int pleat_size_parse(const char *text, uint64_t *bytes)
{
    return pleat__size_parse(text, strlen(text), bytes);
}
