/*
 * progress.h: a bar on standard error for work that takes over a second, where that is a terminal.
 */
#ifndef PLEAT_TOOLS_PROGRESS_H
#define PLEAT_TOOLS_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct progress {
    const char *what;
    uint64_t total;
    uint64_t begun_ns;
    uint64_t shown_ns;
    bool terminal;
} progress;

void progress_begin(progress *bar, const char *what, uint64_t total);
/* Work in several stages, each with bars of its own, is shown as one bar from here on to its end:
 * `stages` of them, begun by progress_stage. */
void progress_whole(const char *what, uint32_t stages);
void progress_stage(void);
void progress_whole_end(void);
/* Cheap enough for every thousandth of the work; draws at most ten times a second. */
void progress_step(progress *bar, uint64_t done);
/* Wipes the bar. */
void progress_end(progress *bar);

#endif
