/*
 * runview.h: a running program's memory, from its log, as `pleat top` shows it.
 */
#ifndef PLEAT_TOOLS_RUNVIEW_H
#define PLEAT_TOOLS_RUNVIEW_H

#include <tools/analysis/runlog.h>
#include <tools/cli.h>
#include <tools/json.h>

typedef struct runview_figures {
    const pleat__log_record *last; /* of the intervals; NULL: nothing was written yet */
    double seconds;
    uint64_t peak_live, peak_physical;
    /* The first and the last whole iteration that what follows is the mean of, the first of all
     * being 1; both 0: there are too few to say. */
    uint64_t rated_from, rated_to;
    double iteration_seconds; /* 0: not known */
    double calls_per_iteration, planned_share;
} runview_figures;

runview_figures runview_of(const runlog *log);

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
