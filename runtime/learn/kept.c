/*
 * kept.c: see kept.h.
 */
#include <runtime/learn/kept.h>

static void let_go(pleat__kept *kept, pleat__follow *follow)
{
    pleat__returned_forget(kept->returned, follow);
    if (!pleat__draft_retire(kept->draft, follow))
        pleat__follow_free(follow);
}

void pleat__kept_release(pleat__kept *kept)
{
    for (uint32_t i = 0; i < kept->count; i++)
        let_go(kept, kept->follows[i]);
    kept->count = 0;
}

static void evict(pleat__kept *kept)
{
    uint32_t oldest = kept->follows[0]->file ? 1 : 0;
    for (uint32_t i = oldest + 1; i < kept->count; i++)
        if (kept->follows[i]->adopted < kept->follows[oldest]->adopted)
            oldest = i;
    let_go(kept, kept->follows[oldest]);
    kept->follows[oldest] = kept->follows[--kept->count];
}

void pleat__kept_add(pleat__kept *kept, pleat__follow *follow)
{
    if (kept->count == PLEAT__SHAPES)
        evict(kept);
    kept->follows[kept->count++] = follow;
}

void pleat__kept_remove(pleat__kept *kept, pleat__follow *follow)
{
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->follows[i] == follow)
            kept->follows[i] = kept->follows[--kept->count];
    let_go(kept, follow);
}

pleat__follow *pleat__kept_file(const pleat__kept *kept)
{
    return kept->count != 0 && kept->follows[0]->file ? kept->follows[0] : NULL;
}

void pleat__kept_leave_file(pleat__kept *kept)
{
    pleat__returned_forget(kept->returned, kept->follows[0]);
    kept->follows[0] = kept->follows[--kept->count];
}

pleat__follow *pleat__kept_find(const pleat__kept *kept, const pleat__elastic *elastic,
                                const pleat__follow *current, const uint64_t recent[PLEAT__GRAM])
{
    uint32_t item;
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->follows[i] != current && !pleat__elastic_left(elastic, kept->follows[i]) &&
            pleat__match_resync(&kept->follows[i]->match, recent, &item))
            return kept->follows[i];
    return NULL;
}

void pleat__kept_mark(pleat__kept *kept, const pleat__follow *current)
{
    for (uint32_t i = 0; i < kept->count; i++)
        if (kept->follows[i] != current)
            pleat__match_mark(&kept->follows[i]->match);
    kept->returned->candidate = NULL;
}

void pleat__kept_forget_learned(pleat__kept *kept, const pleat__follow *current)
{
    for (uint32_t i = kept->count; i-- > 0;)
        if (kept->follows[i]->learned && kept->follows[i] != current)
            pleat__kept_remove(kept, kept->follows[i]);
}

void pleat__kept_forget_inner(pleat__kept *kept, const pleat__follow *found, uint64_t requests)
{
    for (uint32_t i = kept->count; i-- > 0;) {
        pleat__follow *follow = kept->follows[i];
        if (follow->learned && follow->count <= found->count / 2 &&
            requests - follow->adopted <= found->count)
            pleat__kept_remove(kept, follow);
    }
}

void pleat__kept_forget_drafts(pleat__kept *kept, const pleat__follow *current)
{
    for (uint32_t i = kept->count; i-- > 0;)
        if (kept->follows[i] != current && pleat__draft_holds(kept->draft, kept->follows[i]))
            pleat__kept_remove(kept, kept->follows[i]);
}
