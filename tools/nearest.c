/*
 * nearest.c: see nearest.h. Near is what a third of the letters, one at least, would mend.
 */
#include <tools/cli.h>
#include <tools/nearest.h>

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

nearest nearest_to(const char *text)
{
    size_t length = strlen(text);
    return (nearest){text, NULL, length < 6 ? 2 : (unsigned)length / 3 + 1};
}

void nearest_try(nearest *found, const char *name)
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

const char *nearest_text(const nearest *found, char *buffer)
{
    if (found->best == NULL)
        buffer[0] = '\0';
    else
        snprintf(buffer, NEAREST_TEXT, "; did you mean '%s'?", found->best);
    return buffer;
}

int nearest_refuse(const char *command, const char *kind, const char *name,
                   const char *const *names, size_t count)
{
    char all[512] = "", near[NEAREST_TEXT];
    size_t used = 0;
    nearest found = nearest_to(name);
    for (size_t i = 0; i < count; i++) {
        nearest_try(&found, names[i]);
        if (used < sizeof all)
            used += (size_t)snprintf(all + used, sizeof all - used, " %s", names[i]);
    }
    return cli_bad_use(command, "there is no %s '%s'; there are:%s%s", kind, name, all,
                       nearest_text(&found, near));
}
