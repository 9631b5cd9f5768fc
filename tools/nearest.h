/*
 * nearest.h: what somebody who mistyped a name may have meant.
 */
#ifndef PLEAT_TOOLS_NEAREST_H
#define PLEAT_TOOLS_NEAREST_H

#include <stddef.h>

typedef struct nearest {
    const char *text; /* what was typed */
    const char *best; /* NULL: nothing is near */
    unsigned steps;   /* letters to change, add, leave out or swap for it */
} nearest;

nearest nearest_to(const char *text);
/* `name` is one that there is. */
void nearest_try(nearest *found, const char *name);
/* "; did you mean 'NAME'?", or "" where nothing is near; in `buffer`, which it returns. */
#define NEAREST_TEXT 96
const char *nearest_text(const nearest *found, char *buffer);

/* Refuses `name`, which is none of the names: "there is no KIND 'NAME'; there are: ...", and what
 * was meant, as cli_bad_use of the command does. Returns CLI_BAD_USE. */
int nearest_refuse(const char *command, const char *kind, const char *name,
                   const char *const *names, size_t count);

#endif
