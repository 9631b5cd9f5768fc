/*
 * progress.c: see progress.h.
 */
#include "progress.h"

#include "cmd/bench.h"

#include <stdio.h>
#include <unistd.h>

#define SECOND 1000000000u
#define WIDTH  40

void progress_begin(progress *bar, const char *what, uint64_t total)
{
    *bar = (progress){.what = what, .total = total, .terminal = isatty(STDERR_FILENO) == 1};
    bar->begun_ns = bench_now();
}

void progress_step(progress *bar, uint64_t done)
{
    if (!bar->terminal || bar->total == 0)
        return;
    uint64_t now = bench_now();
    if (now - bar->begun_ns < SECOND || now - bar->shown_ns < SECOND / 10)
        return;
    bar->shown_ns = now;
    char drawn[WIDTH + 1];
    double share = (double)(done < bar->total ? done : bar->total) / (double)bar->total;
    for (int i = 0; i < WIDTH; i++)
        drawn[i] = i < share * WIDTH ? '#' : '.';
    drawn[WIDTH] = '\0';
    fprintf(stderr, "\r%-28s %s %3.0f %%", bar->what, drawn, share * 100);
    fflush(stderr);
}

void progress_end(progress *bar)
{
    if (bar->shown_ns != 0)
        fputs("\r\033[K", stderr);
    bar->shown_ns = 0;
}
