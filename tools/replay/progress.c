/*
 * progress.c: see progress.h.
 */
#include <tools/replay/progress.h>

#include <tools/clock.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#define SECOND 1000000000u
#define WIDTH  40

/* The stages that bars are parts of; none when there are 0. */
static struct {
    const char *what;
    uint32_t stages, done; /* done: the one that goes on, from 1 */
    uint64_t begun_ns, shown_ns;
    double share; /* shown; a stage that begins again does not take it back */
} whole;

void progress_whole(const char *what, uint32_t stages)
{
    whole.what = what;
    whole.stages = stages;
    whole.done = 0;
    whole.begun_ns = clock_now();
    whole.shown_ns = 0;
    whole.share = 0;
}

void progress_stage(void)
{
    whole.done += whole.done < whole.stages;
}

void progress_whole_end(void)
{
    if (whole.shown_ns != 0)
        fputs("\r\033[K", stderr);
    whole.stages = 0;
}

void progress_begin(progress *bar, const char *what, uint64_t total)
{
    *bar = (progress){.what = what, .total = total, .terminal = isatty(STDERR_FILENO) == 1};
    bar->begun_ns = clock_now();
}

void progress_step(progress *bar, uint64_t done)
{
    if (!bar->terminal || bar->total == 0)
        return;
    uint64_t now = clock_now(), begun = whole.stages > 0 ? whole.begun_ns : bar->begun_ns;
    if (now - begun < SECOND || now - bar->shown_ns < SECOND / 10)
        return;
    bar->shown_ns = whole.shown_ns = now;
    char drawn[WIDTH + 1];
    double share = (double)(done < bar->total ? done : bar->total) / (double)bar->total;
    if (whole.stages > 0)
        share = whole.share = fmax(whole.share, (whole.done - 1 + share) / whole.stages);
    for (int i = 0; i < WIDTH; i++)
        drawn[i] = i < share * WIDTH ? '#' : '.';
    drawn[WIDTH] = '\0';
    fprintf(stderr, "\r%-10s %-17s %s %3.0f %%", whole.stages > 0 ? whole.what : "", bar->what,
            drawn, share * 100);
    fflush(stderr);
}

void progress_end(progress *bar)
{
    if (bar->shown_ns != 0 && whole.stages == 0)
        fputs("\r\033[K", stderr);
    bar->shown_ns = 0;
}
