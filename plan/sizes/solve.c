/*
 * solve.c: see solve.h.
 *
 * FORMS    Sums of up to three terms, those with fewer terms first, and among them in
 *          the order of `forms`. A form of n terms takes n samples to solve; it is believed when
 *          further samples agree, or when n is at most 2 and the answer looks like a tensor's size:
 *          with as many samples as terms anything would fit.
 * SOLVING  By Cramer's rule in whole numbers of 128 bits; where one would not fit, the form is left
 *          out.
 * ROUNDED  Sizes that the program itself rounds follow their function only roughly. They are
 *          accepted when both agree once rounded up to 512, which is all that a place depends on.
 */
#include <plan/sizes/solve.h>

#define SIZE_MOST    ((uint64_t)1 << 48)
#define DIVISOR_MOST ((uint64_t)1 << 40)
#define LARGE        (1u << 20) /* bytes from which on a constant part must be plausible */
#define PART         4          /* it is when it is at most one in so many of the smallest size */

__extension__ typedef __int128 wide;

typedef struct form {
    uint8_t count;
    uint8_t terms[3];
} form;

/* Terms as in pleat__function: 1, x, x^2. */
static const form forms[] = {
    {1, {0}}, {1, {1}}, {1, {2}}, {2, {0, 1}}, {2, {1, 2}}, {2, {0, 2}}, {3, {0, 1, 2}},
};
#define FORMS (sizeof forms / sizeof *forms)

static bool multiply(wide a, wide b, wide *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

static wide gcd(wide a, wide b)
{
    a = a < 0 ? -a : a;
    b = b < 0 ? -b : b;
    while (b != 0) {
        wide rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* A term's value; below 2^80 as x is below 2^40. */
static wide term_at(const pleat__sample *s, uint8_t term)
{
    wide value = 1;
    for (int i = 0; i < term; i++)
        value *= (wide)s->x;
    return value;
}

static bool determinant2(wide m[3][3], wide *out)
{
    wide a, b;
    return multiply(m[0][0], m[1][1], &a) && multiply(m[0][1], m[1][0], &b) &&
           !__builtin_sub_overflow(a, b, out);
}

static bool determinant3(wide m[3][3], wide *out)
{
    *out = 0;
    for (int i = 0; i < 3; i++) {
        wide a, b, minor, part;
        int j = (i + 1) % 3, k = (i + 2) % 3;
        if (!multiply(m[1][j], m[2][k], &a) || !multiply(m[1][k], m[2][j], &b) ||
            __builtin_sub_overflow(a, b, &minor) || !multiply(m[0][i], minor, &part) ||
            __builtin_add_overflow(*out, part, out))
            return false;
    }
    return true;
}

static bool determinant(wide m[3][3], uint32_t n, wide *out)
{
    if (n == 1) {
        *out = m[0][0];
        return true;
    }
    return n == 2 ? determinant2(m, out) : determinant3(m, out);
}

/* Brings the coefficients and their divisor to lowest terms. */
static bool keep(const form *f, wide *k, wide over, pleat__function *out)
{
    wide common = over;
    for (uint32_t i = 0; i < f->count; i++)
        common = gcd(common, k[i]);
    if (over < 0)
        common = -common;
    *out = (pleat__function){.most = UINT64_MAX};
    if (over / common >= (wide)DIVISOR_MOST)
        return false;
    out->divisor = (uint64_t)(over / common);
    for (uint32_t i = 0; i < f->count; i++) {
        k[i] /= common;
        if (k[i] > INT64_MAX / 2 || k[i] < -INT64_MAX / 2)
            return false;
        out->k[f->terms[i]] = (int64_t)k[i];
    }
    return true;
}

/* The form's coefficients from as many samples as it has terms. false: the samples do not
 * determine them. */
static bool solve_from(const form *f, const pleat__sample *const *from, pleat__function *out)
{
    wide m[3][3], k[3], over;
    for (uint32_t r = 0; r < f->count; r++)
        for (uint32_t c = 0; c < f->count; c++)
            m[r][c] = term_at(from[r], f->terms[c]);
    if (!determinant(m, f->count, &over) || over == 0)
        return false;
    for (uint32_t c = 0; c < f->count; c++) {
        for (uint32_t r = 0; r < f->count; r++)
            m[r][c] = (wide)from[r]->size;
        if (!determinant(m, f->count, &k[c]))
            return false;
        for (uint32_t r = 0; r < f->count; r++)
            m[r][c] = term_at(from[r], f->terms[c]);
    }
    return keep(f, k, over, out);
}

/* Whether the function gives all samples; *exact: to the byte. */
static bool gives(const pleat__function *f, const pleat__sample *samples, uint32_t count,
                  bool *exact)
{
    *exact = true;
    for (uint32_t i = 0; i < count; i++) {
        pleat__fraction x;
        uint64_t size;
        if (!pleat__fraction_make(samples[i].x, 1, &x) || !pleat__function_at(f, x, &size) ||
            pleat__rounded(size) != pleat__rounded(samples[i].size))
            return false;
        *exact = *exact && size == samples[i].size;
    }
    return true;
}

static uint32_t count_different(const pleat__sample *samples, uint32_t count)
{
    uint32_t different = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t j = 0;
        while (j < i && samples[i].x != samples[j].x)
            j++;
        different += j == i;
    }
    return different;
}

/* Two samples say nothing about whether a size has a constant part: one that is most of a large
 * tensor is rather a size that follows something else. */
static bool plausible(const pleat__function *f, const pleat__sample *samples, uint32_t count)
{
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        least = samples[i].size < least ? samples[i].size : least;
    if (least < LARGE)
        return true;
    wide part = f->k[0] < 0 ? -(wide)f->k[0] : (wide)f->k[0];
    return part * PART <= (wide)least * (wide)f->divisor;
}

/* Nothing shrinks where x grows, but for what a square outweighs, where enough samples say so. */
static bool grows(const form *f, const pleat__function *function)
{
    bool square = f->count == 3 && function->k[2] > 0;
    return function->k[2] >= 0 && (function->k[1] >= 0 || square);
}

/* Solves the form from the samples that lie farthest apart: their rounding weighs least. */
static bool solve_form(const form *f, const pleat__sample *samples, uint32_t count,
                       pleat__function *out)
{
    uint32_t low = 0, high = 0;
    for (uint32_t i = 1; i < count; i++) {
        low = samples[i].size < samples[low].size ? i : low;
        high = samples[i].size > samples[high].size ? i : high;
    }
    const pleat__sample *from[3] = {&samples[high], &samples[low], NULL};
    if (f->count < 3)
        return solve_from(f, from, out);
    for (uint32_t i = 0; i < count; i++) {
        from[2] = &samples[i];
        if (from[2]->x != from[0]->x && from[2]->x != from[1]->x && solve_from(f, from, out))
            return true;
    }
    return false;
}

bool pleat__solve(const pleat__sample *samples, uint32_t count, pleat__function *out)
{
    uint32_t different = count_different(samples, count);
    for (int wants_exact = 1; wants_exact >= 0; wants_exact--)
        for (size_t i = 0; i < FORMS; i++) {
            const form *f = &forms[i];
            pleat__function found;
            bool exact;
            if (f->count > different || (f->count == 3 && different == 3) ||
                !solve_form(f, samples, count, &found) || !grows(f, &found) ||
                !gives(&found, samples, count, &exact) || (wants_exact != 0 && !exact))
                continue;
            if (f->count > 1 && f->count == different && !plausible(&found, samples, count))
                continue;
            found.exact = exact;
            *out = found;
            return true;
        }
    return false;
}

bool pleat__solve_bounded(const pleat__sample *samples, uint32_t count, uint64_t most,
                          pleat__function *out)
{
    static const form linear = {1, {1}};
    const pleat__sample *free_one = NULL;
    for (uint32_t i = 0; i < count && free_one == NULL; i++)
        if (samples[i].size < most)
            free_one = &samples[i];
    bool exact;
    if (free_one == NULL || most > SIZE_MOST || !solve_from(&linear, &free_one, out))
        return false;
    out->most = most;
    out->exact = 1;
    return gives(out, samples, count, &exact) && exact;
}

/* Whether the samples at each x are several, and agree. */
static bool each_confirmed(const pleat__sample *samples, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t same = 0;
        for (uint32_t j = 0; j < count; j++)
            same += samples[j].x == samples[i].x && samples[j].size == samples[i].size;
        if (same < 2)
            return false;
    }
    return true;
}

bool pleat__solve_floored(const pleat__sample *samples, uint32_t count, pleat__function *out)
{
    static const form linear = {1, {1}};
    const pleat__sample *low = samples, *high = samples;
    for (uint32_t i = 1; i < count; i++) {
        low = samples[i].x < low->x ? &samples[i] : low;
        high = samples[i].x > high->x ? &samples[i] : high;
    }
    bool exact;
    if (low->size >= high->size || high->size > SIZE_MOST || !each_confirmed(samples, count) ||
        !solve_from(&linear, &high, out))
        return false;
    out->least = low->size;
    return gives(out, samples, count, &exact) && exact;
}
