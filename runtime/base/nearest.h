/*
 * nearest.h: finds the known name that a mistyped one is nearest to.
 */
#ifndef PLEAT_RUNTIME_BASE_NEAREST_H
#define PLEAT_RUNTIME_BASE_NEAREST_H

typedef struct pleat__nearest {
    const char *text; /* what was typed */
    const char *best; /* NULL: nothing is near */
    unsigned steps;   /* letters to change, add, leave out or swap for it */
} pleat__nearest;

pleat__nearest pleat__nearest_to(const char *text);
/* `name` is one that there is. */
void pleat__nearest_try(pleat__nearest *found, const char *name);
/* "; did you mean 'NAME'?", or "" where nothing is near; in `buffer`, which it returns. */
#define PLEAT__NEAREST_TEXT 96
const char *pleat__nearest_text(const pleat__nearest *found, char *buffer);

#endif
