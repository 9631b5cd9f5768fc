/*
 * output.h: a file that is written at the end of the work, looked at before it begins.
 */
#ifndef PLEAT_TOOLS_OUTPUT_H
#define PLEAT_TOOLS_OUTPUT_H

/* CLI_DONE where the file can be written, as plan/base/file.h does: a new one in its folder takes
 * the place of the one that is there. Nothing that stays is made, and what is there is left as it
 * is. Else an exit code, with its message. */
int output_check(const char *command, const char *path);

#endif
