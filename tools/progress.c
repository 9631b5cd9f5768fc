/*
 * progress.c: see progress.h.
 */
#include <tools/progress.h>

#include <tools/clock.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define SECOND 1000000000u
#define TENTH  (SECOND / 10)
#define WIDTH  40

/* What goes on where no bar is drawn, told by a thread of its own: planning, reading, writing. */
static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    bool running, ends;
    uint64_t begun_ns;
    const char *_Atomic what;
    _Atomic uint64_t bar_ns; /* when a bar was drawn last */
    atomic_bool shown;
} sign = {.lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER};

/* The stages that bars are parts of; none when there are 0. */
static struct {
    const char *what;
    uint32_t stages, done; /* done: the one that goes on, from 1 */
    uint64_t begun_ns, shown_ns;
    double share; /* shown; a stage that begins again does not take it back */
} whole;

static void draw_sign(const char *command)
{
    uint64_t now = clock_now();
    const char *what = atomic_load(&sign.what);
    if (now - sign.begun_ns < SECOND || now - atomic_load(&sign.bar_ns) < SECOND / 2)
        return;
    atomic_store(&sign.shown, true);
    fprintf(stderr, "\r\033[K%-10s %-17s %.0f s", command, what != NULL ? what : "",
            (double)(now - sign.begun_ns) * 1e-9);
    fflush(stderr);
}

static void *run_sign(void *command)
{
    pthread_mutex_lock(&sign.lock);
    while (!sign.ends) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        long ns = until.tv_nsec + (long)TENTH;
        until.tv_sec += ns / (long)SECOND;
        until.tv_nsec = ns % (long)SECOND;
        (void)pthread_cond_timedwait(&sign.ended, &sign.lock, &until);
        if (!sign.ends)
            draw_sign(command);
    }
    pthread_mutex_unlock(&sign.lock);
    return NULL;
}

/* Without a thread there is no sign, and the work goes on. */
static void begin_sign(const char *what)
{
    if (sign.running || isatty(STDERR_FILENO) != 1)
        return;
    sign.begun_ns = clock_now();
    sign.ends = false;
    atomic_store(&sign.what, NULL);
    atomic_store(&sign.bar_ns, 0);
    atomic_store(&sign.shown, false);
    sign.running = pthread_create(&sign.thread, NULL, run_sign, (void *)what) == 0;
}

static void end_sign(void)
{
    if (!sign.running)
        return;
    pthread_mutex_lock(&sign.lock);
    sign.ends = true;
    pthread_cond_signal(&sign.ended);
    pthread_mutex_unlock(&sign.lock);
    pthread_join(sign.thread, NULL);
    sign.running = false;
    if (atomic_load(&sign.shown))
        fputs("\r\033[K", stderr);
}

void progress_note(const char *what)
{
    atomic_store(&sign.what, what);
}

void progress_whole(const char *what, uint32_t stages)
{
    begin_sign(what);
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
    end_sign();
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
    if (now - begun < SECOND || now - bar->shown_ns < TENTH)
        return;
    bar->shown_ns = whole.shown_ns = now;
    atomic_store(&sign.bar_ns, now);
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
