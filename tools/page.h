/*
 * page.h: the page that `pleat report` writes.
 */
#ifndef PLEAT_TOOLS_PAGE_H
#define PLEAT_TOOLS_PAGE_H

#include "footprint.h"

/* Whether the build found what draws the curves. */
bool page_can_draw(void);
/* One self-contained HTML file about `trace`, a name for people: written whole or not at all.
 * `figures` is the JSON object that the page carries. */
PLEAT_NODISCARD pleat_result page_write(const footprint *footprint, const char *trace,
                                        const char *figures, const char *path);

#endif
