/*
 * runview.h: a running program's memory, from its log, as `pleat top` shows it.
 */
#ifndef PLEAT_TOOLS_RUNVIEW_H
#define PLEAT_TOOLS_RUNVIEW_H

#include <tools/analysis/runlog.h>
#include <tools/cli.h>
#include <tools/json.h>

/* Whose log it is and whether it runs, as members of an open object. */
void runview_json_log(json_writer *json, const char *path, const runlog *log);
/* An object. */
void runview_json(json_writer *json, const char *path, const runlog *log);

/* A table with a line for each. */
#define RUNVIEW_COLUMNS 12
extern const char *const runview_headings[RUNVIEW_COLUMNS];
void runview_line(cli_table *table, const runlog *log);
/* All there is to say of one, over some lines of `columns` characters, longer ones aside. */
void runview_text(FILE *out, const runlog *log, int columns);

#endif
