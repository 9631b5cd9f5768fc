/*
 * advice.h: what would make a job take less, by how much, and how it is done: what `pleat explain`
 * says and `pleat report` begins with.
 *
 * SAVINGS  Of an allocator and of half the microbatch: measured, by running the trace, and the
 *          trace with other sizes (fit.h), under it. Of a plan: measured in the trial that `pleat
 *          plan` makes of one (plan_trial.h); where learning does as well, there is none. Of other
 *          changes to the job: bounds from what is live at the peak of the steady iteration:
 *          whatever is kept from one phase for another (scoped) is all that recomputation could
 *          give up. Where the recording names no phases that is not known.
 */
#ifndef PLEAT_TOOLS_ADVICE_H
#define PLEAT_TOOLS_ADVICE_H

#include <tools/analysis/fit.h>
#include <tools/analysis/footprint.h>

/* What a microbatch of another size takes. */
typedef struct growth {
    uint64_t device_bytes;
    bool device_assumed; /* nobody says what the device has */
    bool scaled;         /* sizes are assumed, not recorded */
    fit_result half, native, pleat;
} growth;

/* One thing to do, and the bytes it saves of what the native allocator takes. */
typedef struct advice {
    const char *what;
    const char *text;
    uint64_t saved;
    const char *how;     /* "measured", "at most" */
    const char *command; /* NULL: a change of the program */
    const char *change;  /* of the program; NULL: none */
} advice;

#define ADVICE_MOST 6

/* Of traces[0], the others being of the same job at other sizes. `recorded`: a footprint of it on
 * that device, without a budget or a given plan, which has native and pleat; NULL: there is none.
 */
PLEAT_NODISCARD pleat_result growth_find(const pleat_trace *const *traces, uint32_t count,
                                         uint64_t device_bytes, const footprint *recorded,
                                         growth *out);
/* "the microbatch can be at least 2.4 times the recorded one": what there is room for under an
 * allocator, in `text`. */
#define GROWTH_WORDS 96
const char *growth_words(const fit_result *found, char text[GROWTH_WORDS]);
/* Whether a run would follow a plan made beforehand, and it does better than learning. */
bool advice_has_plan(const footprint *footprint);
/* What saves a hundredth or more, most first, into all[ADVICE_MOST]; returns how many. The
 * footprint has native, expandable and pleat. */
int advise(const footprint *footprint, const growth *growth, advice *all);
/* Whether so many are worth a sentence: of a job that does not fit as it is, what would be saved is
 * not known. */
bool advice_is_none(const footprint *footprint, int count);
/* The command for this recording, or the change, in `buffer` where it is not there as it is. */
#define ADVICE_DONE 8192
const char *advice_done(const advice *one, const char *recording, char *buffer);
/* The same as a member "advice". */
void advice_json(json_writer *json, const footprint *footprint, const growth *growth,
                 const char *recording);

#endif
