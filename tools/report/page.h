/*
 * page.h: the page that `pleat report` writes.
 */
#ifndef PLEAT_TOOLS_PAGE_H
#define PLEAT_TOOLS_PAGE_H

#include <tools/analysis/advice.h>
#include <tools/analysis/run_figures.h>

/* What the page is about: a recorded job, the log of a run, or both. */
typedef struct page_content {
    const footprint *job; /* NULL: none */
    const runlog *run;    /* NULL: none */
    const growth *growth; /* of the job; NULL: none */
    const char *name;     /* of it, for people */
    const char *figures;  /* the JSON object that the page carries */
} page_content;

/* Whether the build found what draws the curves. */
bool page_can_draw(void);
/* One self-contained HTML file: written whole or not at all. */
PLEAT_NODISCARD pleat_result page_write(const page_content *content, const char *path);

#endif
