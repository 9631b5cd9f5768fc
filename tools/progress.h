/*
 * progress.h: a sign of life on standard error for work that takes over a second, where that is a
 * terminal: a bar where it is known how much there is, else what is done and for how long.
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
/* A command's work, to its end: `stages`, begun by progress_stage, whose bars are shown as one.
 * While no bar is drawn what progress_note said last stands there, with the seconds. Texts outlive
 * the work. progress_whole_end may be called more than once, and before anything is printed. */
void progress_whole(const char *what, uint32_t stages);
void progress_stage(void);
void progress_note(const char *what);
void progress_whole_end(void);
/* Cheap enough for every thousandth of the work; draws at most ten times a second. */
void progress_step(progress *bar, uint64_t done);
/* Wipes the bar. */
void progress_end(progress *bar);

#endif
