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

bool pleat__x_equal(const pleat__x *a, const pleat__x *b)
{
    return a->u.num == b->u.num && a->u.den == b->u.den && a->v.num == b->v.num &&
           a->v.den == b->v.den;
}

/* --- text --------------------------------------------------------------------------------------*/

static int fraction_text(pleat__fraction f, char *text, size_t size)
{
    if (f.den == 1)
        return snprintf(text, size, "%llu", (unsigned long long)f.num);
    return snprintf(text, size, "%llu/%llu", (unsigned long long)f.num, (unsigned long long)f.den);
}

const char *pleat__x_text(const pleat__x *x, char *text, size_t size)
{
    int used = fraction_text(x->u, text, size);
    if ((x->v.num != 1 || x->v.den != 1) && used >= 0 && (size_t)used + 4 < size) {
        memcpy(text + used, " x ", 4);
        fraction_text(x->v, text + used + 3, size - (size_t)used - 3);
    }
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

bool pleat__x_parse(const char *text, pleat__x *out)
{
    pleat__x x = {{0, 1}, {1, 1}};
    if (!parse_fraction(&text, &x.u))
        return false;
    while (*text == ' ')
        text++;
    if (*text == 'x' || *text == ',') {
        text++;
        while (*text == ' ')
            text++;
        if (!parse_fraction(&text, &x.v))
            return false;
    }
    if (*text != '\0' || x.u.num == 0 || x.v.num == 0)
        return false;
    *out = x;
    return true;
}

/* --- ranges ------------------------------------------------------------------------------------*/

static bool between(pleat__fraction low, pleat__fraction f, pleat__fraction high)
{
    return pleat__fraction_compare(low, f) <= 0 && pleat__fraction_compare(f, high) <= 0;
}

bool pleat__x_in_range(const pleat__recipe *recipe, const pleat__x *x)
{
    return between(recipe->lowest.u, x->u, recipe->highest.u) &&
           between(recipe->lowest.v, x->v, recipe->highest.v);
}

bool pleat__x_scale(uint64_t bytes, const pleat__x *from, const pleat__x *to, uint64_t *out)
{
    pleat__fraction u, v, by;
    if (!divide(to->u, from->u, &u) || !divide(to->v, from->v, &v) ||
        !pleat__fraction_multiply(u, v, &by))
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

/* Adds k * u^i * v^j with everything over u.den^2 * v.den. */
static bool add_term(const pleat__function *f, const pleat__x *x, int term, wide *sum)
{
    static const int powers[PLEAT__TERMS][2] = {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 1}, {2, 1}};
    wide product = f->k[term];
    for (int i = 0; i < 2; i++)
        if (!multiply(product, (wide)(i < powers[term][0] ? x->u.num : x->u.den), &product))
            return false;
    return multiply(product, (wide)(powers[term][1] != 0 ? x->v.num : x->v.den), &product) &&
           !__builtin_add_overflow(*sum, product, sum);
}

bool pleat__function_at(const pleat__function *function, const pleat__x *x, uint64_t *size)
{
    wide sum = 0, over = function->divisor;
    for (int i = 0; i < PLEAT__TERMS; i++)
        if (function->k[i] != 0 && !add_term(function, x, i, &sum))
            return false;
    if (!multiply(over, (wide)x->u.den, &over) || !multiply(over, (wide)x->u.den, &over) ||
        !multiply(over, (wide)x->v.den, &over) || over <= 0 || sum < 0)
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
                                 const pleat__x *x, uint64_t *size)
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

void pleat__x_begin(pleat__x_finder *finder, const pleat_plan *plan)
{
    *finder = (pleat__x_finder){.plan = plan, .x = {{1, 1}, {1, 1}}, .product = {1, 1}};
    finder->has_v = plan->recipe->parameters == 1;
}

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

/* The function's terms in u alone, v known: a + b u + c u^2, all over v.den. */
static bool with_v(const pleat__function *f, pleat__fraction v, wide abc[3])
{
    static const int with[3] = {3, 4, 5};
    for (int i = 0; i < 3; i++) {
        wide without, within;
        if (!multiply(f->k[i], (wide)v.den, &without) ||
            !multiply(f->k[with[i]], (wide)v.num, &within) ||
            __builtin_add_overflow(without, within, &abc[i]))
            return false;
    }
    return true;
}

static bool solve_u(const pleat__function *f, pleat__fraction v, int64_t s, pleat__fraction *u)
{
    wide abc[3], sum;
    return with_v(f, v, abc) && multiply(s, (wide)v.den, &sum) &&
           solve_square(abc[0], abc[1], abc[2], sum, u);
}

bool pleat__function_solve(const pleat__function *function, uint64_t size, pleat__fraction *u)
{
    static const pleat__fraction one = {1, 1};
    int64_t s;
    return size < function->most && function->exact && scaled(function, size, &s) &&
           solve_u(function, one, s, u);
}

/* The u above 0 at which a + b u + c u^2 is smallest or largest, and whether there is one (*turns).
 * false: there is none, or it is too long a fraction. */
static bool turn_of(const wide abc[3], pleat__fraction *u, bool *turns)
{
    wide twice;
    *turns = (abc[1] < 0) != (abc[2] < 0) && abc[1] != 0 && abc[2] != 0;
    return *turns && multiply(2, abc[2], &twice) && solve_linear(abc[1], twice, 0, u);
}

/* Sizes grow by v, or shrink, all the way: at the ends they are smallest and largest. By u they may
 * turn in between. */
static bool holds_at_turn(const pleat__function *function, const pleat__recipe *recipe,
                          pleat__fraction v)
{
    wide abc[3];
    pleat__x x = {.v = v};
    bool turns;
    uint64_t size;
    if (!with_v(function, v, abc))
        return false;
    if (!turn_of(abc, &x.u, &turns))
        return !turns;
    return !between(recipe->lowest.u, x.u, recipe->highest.u) ||
           pleat__function_at(function, &x, &size);
}

bool pleat__function_holds(const pleat__function *function, const pleat__recipe *recipe)
{
    for (int corner = 0; corner < 4; corner++) {
        uint64_t size;
        const pleat__x x = {corner % 2 == 0 ? recipe->lowest.u : recipe->highest.u,
                            corner / 2 == 0 ? recipe->lowest.v : recipe->highest.v};
        if (!pleat__function_at(function, &x, &size))
            return false;
    }
    return holds_at_turn(function, recipe, recipe->lowest.v) &&
           holds_at_turn(function, recipe, recipe->highest.v);
}

/* u known: (k0 + k1 u + k2 u^2) + v (k3 + k4 u + k5 u^2) = s. */
static bool solve_v(const pleat__function *f, pleat__fraction u, int64_t s, pleat__fraction *v)
{
    wide sums[2] = {0, 0}, right;
    for (int term = 0; term < PLEAT__TERMS; term++) {
        wide product = f->k[term];
        for (int i = 0; i < 2; i++)
            if (!multiply(product, (wide)(i < term % 3 ? u.num : u.den), &product))
                return false;
        if (__builtin_add_overflow(sums[term / 3], product, &sums[term / 3]))
            return false;
    }
    return multiply(s, (wide)u.den, &right) && multiply(right, (wide)u.den, &right) &&
           solve_linear(sums[0], sums[1], right, v);
}

/* Takes what one size says about parameters that are not known. */
static void learn(pleat__x_finder *finder, const pleat__function *f, int64_t s)
{
    const int64_t *k = f->k;
    bool uses_u = k[1] != 0 || k[2] != 0, uses_v = k[3] != 0, mixes = k[4] != 0 || k[5] != 0;
    if (!finder->has_u && (finder->has_v || (uses_u && !uses_v && !mixes)))
        finder->has_u = solve_u(f, finder->x.v, s, &finder->x.u);
    else if (!finder->has_v && (finder->has_u || (uses_v && !uses_u && !mixes)))
        finder->has_v = solve_v(f, finder->x.u, s, &finder->x.v);
    else if (!finder->has_product && !uses_u && !uses_v && k[5] == 0)
        finder->has_product = solve_linear(k[0], k[4], s, &finder->product);
    else if (finder->has_product && !finder->has_u && !uses_v) {
        /* u v = p: k0 + k4 p + (k1 + k5 p) u + k2 u^2 */
        wide p = (wide)finder->product.num, d = (wide)finder->product.den;
        finder->has_u =
            solve_square(k[0] * d + k[4] * p, k[1] * d + k[5] * p, k[2] * d, s * d, &finder->x.u);
    }
    if (finder->has_product && finder->has_u && !finder->has_v)
        finder->has_v = divide(finder->product, finder->x.u, &finder->x.v);
    if (finder->has_product && finder->has_v && !finder->has_u)
        finder->has_u = divide(finder->product, finder->x.v, &finder->x.u);
}

static pleat__x_state contradict(pleat__x_finder *finder)
{
    finder->contradicted++;
    return PLEAT__X_CONTRADICTED;
}

static bool depends_on_unknown(const pleat__x_finder *finder, const pleat__function *f)
{
    bool mixes = f->k[4] != 0 || f->k[5] != 0;
    return mixes || (finder->has_u ? f->k[3] != 0 : f->k[1] != 0 || f->k[2] != 0);
}

static pleat__x_state judge(pleat__x_finder *finder, const pleat__function *f, uint64_t bytes)
{
    uint64_t size;
    if (!pleat__function_at(f, &finder->x, &size) || pleat__rounded(size) != pleat__rounded(bytes))
        return contradict(finder);
    finder->agreed++;
    return PLEAT__X_KNOWN;
}

pleat__x_state pleat__x_observe(pleat__x_finder *finder, bool first, uint32_t slot, uint64_t bytes)
{
    const pleat__recipe *recipe = finder->plan->recipe;
    uint32_t index = first ? recipe->first[slot] : recipe->steady[slot];
    bool known = finder->has_u && finder->has_v;
    pleat__x_state now = known ? PLEAT__X_KNOWN : PLEAT__X_UNKNOWN;
    if (index == PLEAT__NO_FUNCTION || !pleat__function_varies(&recipe->functions[index]))
        return now;
    const pleat__function *f = &recipe->functions[index];
    if (known)
        return judge(finder, f, bytes);
    int64_t s;
    /* Its bound says only that x is large, a rounded size not which x it is. */
    if (bytes >= f->most || !f->exact)
        return now;
    pleat__x_finder before = *finder;
    if (!scaled(f, bytes, &s))
        return contradict(finder);
    learn(finder, f, s);
    bool learned = finder->has_u != before.has_u || finder->has_v != before.has_v ||
                   finder->has_product != before.has_product;
    if (learned && finder->has_u && finder->has_v) {
        if (judge(finder, f, bytes) == PLEAT__X_KNOWN)
            return PLEAT__X_KNOWN;
        *finder = before;
        return contradict(finder);
    }
    /* With one of two known, a size that depends on the other must tell it. */
    return !learned && before.has_u != before.has_v && depends_on_unknown(&before, f)
               ? contradict(finder)
               : PLEAT__X_UNKNOWN;
}
