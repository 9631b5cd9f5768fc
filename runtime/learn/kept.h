/*
 * kept.h: the shapes of a job that are kept, the one that is followed among them (shapes.h): some,
 * of which the one that was taken up the longest ago makes room for the next.
 *
 * A plan file's is the first, and goes only when it turns out to be another job's. One that a draft
 * made (draft.h) goes to the draft, which knows what still lies in it.
 */
#ifndef PLEAT_RUNTIME_LEARN_KEPT_H
#define PLEAT_RUNTIME_LEARN_KEPT_H

#include <runtime/learn/draft.h>
#include <runtime/learn/elastic.h>
#include <runtime/learn/returned.h>

#define PLEAT__SHAPES 8u

typedef struct pleat__kept {
    pleat__follow *follows[PLEAT__SHAPES];
    uint32_t count;
    /* Told of one that is not kept any more. */
    pleat__draft *draft;
    pleat__returned *returned;
} pleat__kept;

/* All go. */
void pleat__kept_release(pleat__kept *kept);
/* It is the kept ones' from now on. */
void pleat__kept_add(pleat__kept *kept, pleat__follow *follow);
/* It goes. */
void pleat__kept_remove(pleat__kept *kept, pleat__follow *follow);
/* The plan file's; NULL: there is none. */
pleat__follow *pleat__kept_file(const pleat__kept *kept);
/* It is another job's, and the caller's from now on. pre: there is one */
void pleat__kept_leave_file(pleat__kept *kept);
/* The one but `current` in which the last requests occur; its cursor goes behind them. */
pleat__follow *pleat__kept_find(const pleat__kept *kept, const pleat__elastic *elastic,
                                const pleat__follow *current, const uint64_t recent[PLEAT__GRAM]);
/* All but `current` are at their beginning, none of them is what came last. */
void pleat__kept_mark(pleat__kept *kept, const pleat__follow *current);
/* Those go that were learned, all but `current`. */
void pleat__kept_forget_learned(pleat__kept *kept, const pleat__follow *current);
/* Of those the ones that were followed somewhere in the iteration `found`, which has just ended. */
void pleat__kept_forget_inner(pleat__kept *kept, const pleat__follow *found, uint64_t requests);
/* Those go that drafts made, all but `current`. */
void pleat__kept_forget_drafts(pleat__kept *kept, const pleat__follow *current);

#endif
