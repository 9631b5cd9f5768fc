/*
 * parameter.c: fractions, sizes as functions of x, and which x a request's size says. See
 * sizes.h.
 *
 * Everything is exact: numerators and denominators stay below 2^40 and sums are taken in 128 bits,
 * each step checked, so that a recipe from a file can be evaluated whatever it says.
 */
#include <plan/sizes/sizes.h>

#include <internal/error.h>
#include <internal/range.h>
#include <internal/search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide;

bool pleat__fraction_make(uint64_t num, uint64_t den, pleat__fraction *out)
{
    if (den == 0)
        return false;
    uint64_t common = pleat__gcd(num, den);
    num /= common;
    den /= common;
    if (num >= PLEAT__FRACTION_MOST || den >= PLEAT__FRACTION_MOST)
        return false;
    *out = (pleat__fraction){num, den};
    return true;
}

int pleat__fraction_compare(pleat__fraction a, pleat__fraction b)
{
    wide left = (wide)a.num * b.den, right = (wide)b.num * a.den;
    return (left > right) - (left < right);
}

bool pleat__fraction_multiply(pleat__fraction a, pleat__fraction b, pleat__fraction *out)
{
    uint64_t across = pleat__gcd(a.num, b.den), back = pleat__gcd(b.num, a.den), num, den;
    if (across == 0 || back == 0) /* 0 times something */
        return pleat__fraction_make(0, 1, out);
    return pleat__mul(a.num / across, b.num / back, &num) &&
           pleat__mul(a.den / back, b.den / across, &den) && pleat__fraction_make(num, den, out);
}

/* a / b */
static bool divide(pleat__fraction a, pleat__fraction b, pleat__fraction *out)
{
    return b.num != 0 && pleat__fraction_multiply(a, (pleat__fraction){b.den, b.num}, out);
}

bool pleat__fraction_equal(pleat__fraction a, pleat__fraction b)
{
    return a.num == b.num && a.den == b.den;
}

/* --- text --------------------------------------------------------------------------------------*/

const char *pleat__x_text(pleat__fraction x, char *text, size_t size)
{
    if (x.den == 1)
        snprintf(text, size, "%llu", (unsigned long long)x.num);
    else
        snprintf(text, size, "%llu/%llu", (unsigned long long)x.num, (unsigned long long)x.den);
    return text;
}

/* A whole number, at most 12 digits; *end is behind it. */
static bool parse_digits(const char **at, uint64_t *value, uint64_t *scale)
{
    const char *text = *at;
    *value = 0;
    for (; *text >= '0' && *text <= '9' && text - *at < 12; text++) {
        *value = *value * 10 + (uint64_t)(*text - '0');
        *scale *= 10;
    }
    bool any = text != *at;
    *at = text;
    return any;
}

/* "3", "5/2", "2.5" */
static bool parse_fraction(const char **at, pleat__fraction *out)
{
    uint64_t num, other, scale = 1, unused = 1;
    if (!parse_digits(at, &num, &unused))
        return false;
    if (**at == '/') {
        ++*at;
        return parse_digits(at, &other, &unused) && pleat__fraction_make(num, other, out);
    }
    if (**at != '.')
        return pleat__fraction_make(num, 1, out);
    ++*at;
    return parse_digits(at, &other, &scale) && pleat__mul(num, scale, &num) &&
           pleat__add(num, other, &num) && pleat__fraction_make(num, scale, out);
}

bool pleat__x_parse(const char *text, pleat__fraction *out)
{
    pleat__fraction x;
    if (!parse_fraction(&text, &x) || *text != '\0' || x.num == 0)
        return false;
    *out = x;
    return true;
}

/* --- ranges ------------------------------------------------------------------------------------*/

static bool between(pleat__fraction low, pleat__fraction f, pleat__fraction high)
{
    return pleat__fraction_compare(low, f) <= 0 && pleat__fraction_compare(f, high) <= 0;
}

bool pleat__x_in_range(const pleat__recipe *recipe, pleat__fraction x)
{
    return between(recipe->lowest, x, recipe->highest);
}

bool pleat__x_scale(uint64_t bytes, pleat__fraction from, pleat__fraction to, uint64_t *out)
{
    pleat__fraction by;
    if (!divide(to, from, &by))
        return false;
    wide product = (wide)pleat__ceil_div(bytes, PLEAT__ALIGNMENT) * by.num;
    wide places = product / by.den + (product % by.den != 0);
    *out = (uint64_t)places * PLEAT__ALIGNMENT;
    return places <= (wide)(PLEAT__SIZE_MOST / PLEAT__ALIGNMENT);
}

/* --- functions ---------------------------------------------------------------------------------*/

bool pleat__function_varies(const pleat__function *function)
{
    for (int i = 1; i < PLEAT__TERMS; i++)
        if (function->k[i] != 0)
            return true;
    return false;
}

static bool multiply(wide a, wide b, wide *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

/* Adds k * x^term with everything over x.den^2. */
static bool add_term(const pleat__function *f, pleat__fraction x, int term, wide *sum)
{
    wide product = f->k[term];
    for (int i = 0; i < PLEAT__TERMS - 1; i++)
        if (!multiply(product, (wide)(i < term ? x.num : x.den), &product))
            return false;
    return !__builtin_add_overflow(*sum, product, sum);
}

bool pleat__function_at(const pleat__function *function, pleat__fraction x, uint64_t *size)
{
    wide sum = 0, over = function->divisor;
    for (int i = 0; i < PLEAT__TERMS; i++)
        if (function->k[i] != 0 && !add_term(function, x, i, &sum))
            return false;
    if (!multiply(over, (wide)x.den, &over) || !multiply(over, (wide)x.den, &over) || over <= 0 ||
        sum < 0)
        return false;
    wide whole = sum / over + (sum % over != 0);
    if ((wide)function->most < whole)
        whole = (wide)function->most;
    if (whole < (wide)function->least)
        whole = (wide)function->least;
    if (whole > (wide)PLEAT__SIZE_MOST)
        return false;
    *size = (uint64_t)whole;
    return true;
}

pleat_result pleat__elastic_size(const pleat_plan *plan, bool first, uint32_t slot,
                                 pleat__fraction x, uint64_t *size)
{
    char text[64];
    const pleat__recipe *recipe = plan->recipe;
    uint32_t function = first ? recipe->first[slot] : recipe->steady[slot];
    *size = first ? plan->first.slots[slot].size : plan->steady.slots[slot].size;
    if (function == PLEAT__NO_FUNCTION || pleat__function_at(&recipe->functions[function], x, size))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_NOT_FOUND, "at %s request %u of the %s has no size",
                       pleat__x_text(x, text, sizeof text), slot,
                       first ? "beginning" : "iteration");
}

/* --- finding x ---------------------------------------------------------------------------------*/

/* Size * divisor as a whole number of function values; false: too large. */
static bool scaled(const pleat__function *f, uint64_t bytes, int64_t *out)
{
    uint64_t product;
    if (!pleat__mul(bytes, f->divisor, &product) || product > INT64_MAX)
        return false;
    *out = (int64_t)product;
    return true;
}

/* The one t > 0 with a + b t = s. */
static bool solve_linear(wide a, wide b, wide s, pleat__fraction *t)
{
    wide left, lowest = (wide)1 << 126;
    if (__builtin_sub_overflow(s, a, &left) || left <= -lowest || b <= -lowest)
        return false;
    if (b < 0) {
        b = -b;
        left = -left;
    }
    if (b == 0 || left <= 0)
        return false;
    /* Both are sums of products of 64-bit numbers: bring them down to 64 bits together. */
    wide x = left, y = b;
    while (y != 0) {
        wide rest = x % y;
        x = y;
        y = rest;
    }
    left /= x;
    b /= x;
    return left <= INT64_MAX && b <= INT64_MAX &&
           pleat__fraction_make((uint64_t)left, (uint64_t)b, t);
}

static uint64_t root(wide square)
{
    uint64_t whole;
    PLEAT__FIRST(whole, UINT64_MAX >> 1, (wide)(whole + 1) * (wide)(whole + 1) > square);
    return whole;
}

/* The larger t > 0 with a + b t + c t^2 = s, when it is a fraction. */
static bool solve_square(wide a, wide b, wide c, wide s, pleat__fraction *t)
{
    wide square, part, twice;
    if (c == 0)
        return solve_linear(a, b, s, t);
    if (!multiply(b, b, &square) || !multiply(4 * c, s - a, &part) ||
        __builtin_add_overflow(square, part, &square) || square < 0)
        return false;
    uint64_t r = root(square);
    if ((wide)r * (wide)r != square || !multiply(2, c, &twice))
        return false;
    return solve_linear(b - (wide)r, twice, 0, t) || solve_linear(b + (wide)r, twice, 0, t);
}

bool pleat__function_solve(const pleat__function *function, uint64_t size, pleat__fraction *x)
{
    const int64_t *k = function->k;
    int64_t s;
    return size < function->most && function->exact && scaled(function, size, &s) &&
           solve_square(k[0], k[1], k[2], s, x);
}

/* The x above 0 at which the function is smallest or largest, and whether there is one (*turns).
 * false: there is none, or it is too long a fraction. */
static bool turn_of(const pleat__function *f, pleat__fraction *x, bool *turns)
{
    *turns = (f->k[1] < 0) != (f->k[2] < 0) && f->k[1] != 0 && f->k[2] != 0;
    return *turns && solve_linear(f->k[1], 2 * (wide)f->k[2], 0, x);
}

/* At the range's ends it is smallest and largest, or where it turns in between. */
bool pleat__function_holds(const pleat__function *function, const pleat__recipe *recipe)
{
    pleat__fraction turn;
    uint64_t size;
    bool turns;
    if (!pleat__function_at(function, recipe->lowest, &size) ||
        !pleat__function_at(function, recipe->highest, &size))
        return false;
    if (!turn_of(function, &turn, &turns))
        return !turns;
    return !between(recipe->lowest, turn, recipe->highest) ||
           pleat__function_at(function, turn, &size);
}

void pleat__x_begin(pleat__x_finder *finder, const pleat_plan *plan)
{
    *finder = (pleat__x_finder){.plan = plan, .x = {1, 1}};
}

static bool is_at(const pleat__function *f, pleat__fraction x, uint64_t bytes)
{
    uint64_t size;
    return pleat__function_at(f, x, &size) && pleat__rounded(size) == pleat__rounded(bytes);
}

bool pleat__x_observe(pleat__x_finder *finder, uint32_t slot, uint64_t bytes)
{
    const pleat__recipe *recipe = finder->plan->recipe;
    uint32_t index = recipe->steady[slot];
    if (index == PLEAT__NO_FUNCTION || !pleat__function_varies(&recipe->functions[index]))
        return finder->known;
    const pleat__function *f = &recipe->functions[index];
    pleat__fraction x = finder->x;
    /* Its bound says only that x is large, a rounded size not which x it is. */
    if (!finder->known && (bytes >= f->most || !f->exact))
        return false;
    if ((finder->known || pleat__function_solve(f, bytes, &x)) && is_at(f, x, bytes)) {
        finder->x = x;
        finder->known = true;
        finder->agreed++;
    } else {
        finder->contradicted++;
    }
    return finder->known;
}
