/*
 * call_times.h: the processor time that calls to an allocator take on the thread that makes them,
 * without what memory verbs take, whose cost on host memory says nothing of a driver's.
 *
 * A call is timed by the wall clock, which costs little to read. On a machine that does other work,
 * or where a call waits for another thread, that is more than the call's own: the thread's
 * processor clock, which is dear, is read between every so many calls and after each long one, and
 * bounds it.
 */
#ifndef PLEAT_TOOLS_REPLAY_CALL_TIMES_H
#define PLEAT_TOOLS_REPLAY_CALL_TIMES_H

#include <tools/replay/timed_vmm.h>

#define CALL_TIMES_LONGEST 3u

/* When a call begins. */
typedef struct call_moment {
    uint64_t wall_ns, verb_ns, verbs;
} call_moment;

typedef struct call_times {
    const timed_vmm *verbs; /* what notes its memory verbs */
    uint64_t processor_ns;  /* the thread's, when it was last read */
    uint32_t unread;        /* calls since then */
    uint64_t *ns;           /* by call; room for all is the caller's to give */
    size_t count;
    size_t steady;                        /* the first of the steady part */
    uint64_t longest[CALL_TIMES_LONGEST]; /* without a memory verb; falling */
} call_times;

/* Of all calls, or of those of the steady part. */
typedef struct call_figures {
    uint64_t calls;
    double ns; /* all of them together */
    double median_ns, p999_ns;
} call_figures;

void call_times_begin(call_times *times, const timed_vmm *verbs, uint64_t *room);
call_moment call_times_start(call_times *times);
/* Returns what the wall clock says of the call, its verbs included. */
uint64_t call_times_stop(call_times *times, call_moment begun);
/* Sorts the calls: nothing may be added any more. */
void call_times_figures(call_times *times, call_figures *all, call_figures *steady);

#endif
