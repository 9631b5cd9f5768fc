/*
 * returned.h: while nothing is followed: is what was put aside back?
 *
 * A job that evaluates or writes a checkpoint between two iterations does not follow its plan for a
 * while, and then begins where it does always. What was put aside last is therefore believed from
 * its first request on, as far as where that is placed goes: in its slot, where it is in nobody's
 * way. (The eighteen requests that it took until a shape was taken up again lay in the slots of
 * others, which took those of others: 1,942 of 8,477 requests of a GPT-2's iteration behind an
 * evaluation lay elsewhere, in an eighth more memory.) It is followed when some requests in a row
 * were its own; so is any other shape that is kept, once four sizes in a row occur in it.
 */
#ifndef PLEAT_RUNTIME_LEARN_RETURNED_H
#define PLEAT_RUNTIME_LEARN_RETURNED_H

#include <runtime/follow/schedule.h>

typedef struct pleat__returned {
    pleat__follow *candidate; /* it may be back; NULL: none */
    uint32_t hits;            /* requests in a row that it matched, */
    uint32_t strict;          /* and of them, those that must be the ones at its cursor */
    pleat__follow *aside; /* what was followed, and may only have been interrupted; NULL: none */
} pleat__returned;

/* The last requests occur in it, and its cursor is behind them. NULL: no such one. */
void pleat__returned_believe(pleat__returned *returned, pleat__follow *candidate);
/* A request of what may be back, or the first of what was put aside. false: neither, or not any
 * more; then nothing is known of it. */
bool pleat__returned_goes_on(pleat__returned *returned, uint64_t bytes, uint16_t stream);
/* Enough of it is its own. */
bool pleat__returned_is_sure(const pleat__returned *returned);
/* It is none that is kept. */
void pleat__returned_forget(pleat__returned *returned, const pleat__follow *follow);

/* The slot that a request has, should what may be back go on, or what was put aside begin again;
 * NULL: none. */
static inline const pleat__expected *pleat__returned_slot(const pleat__returned *returned,
                                                          uint64_t bytes, uint16_t stream)
{
    bool goes_on = returned->candidate != NULL;
    const pleat__follow *follow = goes_on ? returned->candidate : returned->aside;
    if (follow == NULL)
        return NULL;
    const pleat__match *match = &follow->match;
    const pleat__expected *item = &follow->items[goes_on ? match->cursor : match->begin];
    return item->kind == PLEAT__ITEM_SLOT && item->bytes == bytes && item->stream == stream ? item
                                                                                            : NULL;
}

#endif
