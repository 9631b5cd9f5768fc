/*
 * call_times.c: see call_times.h.
 */
#include <tools/replay/call_times.h>

#include <tools/clock.h>

#include <time.h>

#define READ_EVERY 64u    /* calls; together shorter than LONG_NS where nothing is wrong */
#define LONG_NS    20000u /* a call after which the processor clock is read */

static uint64_t thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void call_times_begin(call_times *times, const timed_vmm *verbs, uint64_t *room)
{
    *times = (call_times){.verbs = verbs, .ns = room, .processor_ns = thread_ns()};
}

call_moment call_times_start(call_times *times)
{
    if (times->unread++ == READ_EVERY) {
        times->processor_ns = thread_ns();
        times->unread = 0;
    }
    return (call_moment){
        .verb_ns = times->verbs->verb_ns, .verbs = times->verbs->verbs, .wall_ns = clock_now()};
}

/* No more than the thread's processor time since it was last read, which is the call's and what the
 * few short ones before it took. */
static uint64_t bounded(call_times *times, uint64_t wall_ns)
{
    if (wall_ns < LONG_NS)
        return wall_ns;
    uint64_t now = thread_ns(), since = now - times->processor_ns;
    times->processor_ns = now;
    times->unread = 0;
    return since < wall_ns ? since : wall_ns;
}

static void note_longest(call_times *times, uint64_t ns)
{
    for (uint32_t i = 0; i < CALL_TIMES_LONGEST; i++) {
        if (ns <= times->longest[i])
            continue;
        uint64_t shorter = times->longest[i];
        times->longest[i] = ns;
        ns = shorter;
    }
}

uint64_t call_times_stop(call_times *times, call_moment begun)
{
    uint64_t took = clock_now() - begun.wall_ns;
    uint64_t clock_ns = times->verbs->reading_ns;
    uint64_t wall_ns = took > clock_ns ? took - clock_ns : 0;
    uint64_t verb_ns = times->verbs->verb_ns - begun.verb_ns;
    uint64_t ns = bounded(times, wall_ns);
    ns = ns > verb_ns ? ns - verb_ns : 0;
    times->ns[times->count++] = ns;
    if (times->verbs->verbs == begun.verbs)
        note_longest(times, ns);
    return wall_ns;
}

static call_figures figures_from(const call_times *times, size_t first)
{
    call_figures figures = {.calls = times->count - first};
    for (size_t i = first; i < times->count; i++)
        figures.ns += (double)times->ns[i];
    uint64_t *ns = times->ns + first;
    figures.median_ns = (double)clock_quantile(ns, figures.calls, 0.5);
    figures.p999_ns = (double)clock_quantile(ns, figures.calls, 0.999);
    return figures;
}

void call_times_figures(call_times *times, call_figures *all, call_figures *steady)
{
    *steady = figures_from(times, times->steady); /* first: it leaves them among themselves */
    *all = figures_from(times, 0);
}
