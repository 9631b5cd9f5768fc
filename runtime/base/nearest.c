/*
 * nearest.c: see nearest.h. Near is what a third of the letters, one at least, would mend.
 */
#include <runtime/base/nearest.h>

#include <stdio.h>
#include <string.h>

#define LETTERS 40u /* of names; longer ones have no near ones */

static unsigned least(unsigned a, unsigned b)
{
    return a < b ? a : b;
}

/* The edit distance in which two neighbours may also change places. */
static unsigned distance(const char *a, size_t m, const char *b, size_t n)
{
    unsigned rows[LETTERS + 1][LETTERS + 1];
    for (size_t i = 0; i <= m; i++)
        rows[i][0] = (unsigned)i;
    for (size_t k = 0; k <= n; k++)
        rows[0][k] = (unsigned)k;
    for (size_t i = 1; i <= m; i++)
        for (size_t k = 1; k <= n; k++) {
            unsigned best = rows[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            best = least(best, least(rows[i - 1][k], rows[i][k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                best = least(best, rows[i - 2][k - 2] + 1);
            rows[i][k] = best;
        }
    return rows[m][n];
}

pleat__nearest pleat__nearest_to(const char *text)
{
    size_t length = strlen(text);
    return (pleat__nearest){text, NULL, length < 6 ? 2 : (unsigned)length / 3 + 1};
}

void pleat__nearest_try(pleat__nearest *found, const char *name)
{
    size_t m = strlen(found->text), n = strlen(name);
    if (m == 0 || m > LETTERS || n > LETTERS)
        return;
    unsigned steps = distance(found->text, m, name, n);
    if (steps < found->steps) {
        found->steps = steps;
        found->best = name;
    }
}

const char *pleat__nearest_text(const pleat__nearest *found, char *buffer)
{
    if (found->best == NULL)
        buffer[0] = '\0';
    else
        snprintf(buffer, PLEAT__NEAREST_TEXT, "; did you mean '%s'?", found->best);
    return buffer;
}
