/*
 * wrap.h: standard output in lines no wider than the terminal.
 */
#ifndef PLEAT_TOOLS_WRAP_H
#define PLEAT_TOOLS_WRAP_H

#include <stdbool.h>
#include <stdio.h>

/* The columns there are: of the terminal that standard output is, else what the environment's
 * COLUMNS says; 0: nobody says, and lines are as long as they are. */
int wrap_columns(void);
/* Columns that a terminal gives a text: characters of UTF-8, not bytes. */
int wrap_width(const char *text, size_t length);
/* From here on lines of text that are wider are broken between words, what follows set in as far as
 * the text of the line is. A word that no line has room for, as a path may be, stays whole, and
 * JSON is left as it is. More than once is once. pre: nothing was written yet. */
void wrap_output(void);
/* Writes all that was printed, broken or not; false, with errno, where some of it is lost. */
bool wrap_flush(void);
/* The lines of a text, so broken; a word that no line has room for is broken as well. */
void wrap_lines(FILE *out, const char *text, int columns);

#endif
