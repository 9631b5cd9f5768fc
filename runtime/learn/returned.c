/*
 * returned.c: see returned.h.
 */
#include <runtime/learn/returned.h>

/* What may be back is when this many of its requests came in a row. */
#define SURE 12u

static void take(pleat__returned *returned, pleat__follow *candidate, uint32_t strict)
{
    returned->candidate = candidate;
    returned->hits = 0;
    returned->strict = strict;
}

void pleat__returned_believe(pleat__returned *returned, pleat__follow *candidate)
{
    take(returned, candidate, 0);
}

bool pleat__returned_goes_on(pleat__returned *returned, uint64_t bytes, uint16_t stream)
{
    if (returned->candidate == NULL) {
        if (pleat__returned_slot(returned, bytes, stream) == NULL)
            return false;
        /* One request may be any: so many must be as they were. */
        pleat__match_restart(&returned->aside->match);
        take(returned, returned->aside, SURE / 2);
    }
    pleat__match *match = &returned->candidate->match;
    uint32_t expected = match->cursor, item = pleat__match_next(match, bytes, stream);
    bool is_it = item != PLEAT__NO_ITEM && (returned->hits >= returned->strict || item == expected);
    returned->hits++;
    if (!is_it)
        returned->candidate = NULL;
    return is_it;
}

bool pleat__returned_is_sure(const pleat__returned *returned)
{
    return returned->candidate != NULL && returned->hits >= SURE;
}

void pleat__returned_forget(pleat__returned *returned, const pleat__follow *follow)
{
    if (returned->candidate == follow)
        returned->candidate = NULL;
    if (returned->aside == follow)
        returned->aside = NULL;
}
