/*
 * nearest.h: what somebody who mistyped a name may have meant.
 */
#ifndef PLEAT_TOOLS_NEAREST_H
#define PLEAT_TOOLS_NEAREST_H

#include <stddef.h>

/* Refuses `name`, which is none of the names: "there is no KIND 'NAME'; there are: ...", and what
 * was meant, as cli_bad_use of the command does. Returns CLI_BAD_USE. */
int nearest_refuse(const char *command, const char *kind, const char *name,
                   const char *const *names, size_t count);

#endif
