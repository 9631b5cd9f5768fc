/*
 * profiles.c: the iterations of all traces that agree with each other, and their sizes as
 * the last one of the reference trace has its requests (see planner.c).
 */
#include <plan/sizes/planner_internal.h>

static pleat_result read_sources(pleat__planning *p, uint32_t device)
{
    for (uint32_t t = 0; t < p->trace_count; t++) {
        pleat__sized_trace *s = &p->sources[t];
        pleat_result result = pleat__requests_make(p->traces[t], device, p->scratch, &s->requests);
        if (result == PLEAT_OK)
            result = pleat__iteration_find(&s->requests, &s->iteration);
        if (result != PLEAT_OK)
            return pleat__context(result, "trace %u", t + 1);
    }
    return PLEAT_OK;
}

/* What an iteration asks for, in all. */
static uint64_t bytes_in(const pleat__request *items, uint32_t count)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += items[i].size / PLEAT__ALIGNMENT;
    return bytes;
}

static uint64_t bytes_of(const pleat__sized_trace *s)
{
    pleat__stretch steady = s->iteration.steady;
    return bytes_in(s->requests.items + steady.item, steady.items);
}

static void choose_reference(pleat__planning *p)
{
    for (uint32_t t = 1; t < p->trace_count; t++)
        if (bytes_of(&p->sources[t]) > bytes_of(&p->sources[p->reference]))
            p->reference = t;
}

static void add_profile(pleat__planning *p, uint32_t t, pleat__stretch stretch,
                        const uint32_t *pairs)
{
    if (p->profile_count < PLEAT__FIT_PROFILES_MOST)
        p->profiles[p->profile_count++] = (pleat__recorded){t, stretch, pairs};
}

/* The last iteration of each trace, then the others, so that none is left out. */
static void list_profiles(pleat__planning *p)
{
    for (uint32_t t = 0; t < p->trace_count; t++)
        add_profile(p, t, p->sources[t].iteration.steady, NULL);
    for (uint32_t t = 0; t < p->trace_count; t++) {
        const pleat__iteration *iteration = &p->sources[t].iteration;
        for (uint32_t i = 0; i < iteration->profile_count; i++)
            add_profile(p, t, iteration->profiles[i],
                        t != p->reference
                            ? NULL
                            : iteration->pairs + (uint64_t)i * iteration->steady.items);
    }
}

pleat_result pleat__profiles_read(pleat__planning *p, uint32_t device)
{
    PLEAT_TRY(read_sources(p, device));
    choose_reference(p);
    list_profiles(p);
    return PLEAT_OK;
}

/* One profile's sizes as the reference's iteration has its requests. How the two were laid against
 * each other within one trace is right where they are at the same x. (A GPT-2 that goes through
 * microbatches 1, 2 and 4 while it is recorded has its logits at 4 where it has others of the same
 * size at 2: they followed no function, and a plan for 4 took 0.8 % too much.) */
static pleat_result fill_profile(pleat__planning *p, const pleat__recorded *from, uint32_t *pairs,
                                 uint64_t *sizes, uint32_t *paired)
{
    const pleat__sized_trace *own = &p->sources[from->source],
                             *reference = &p->sources[p->reference];
    pleat__stretch steady = reference->iteration.steady;
    const pleat__request *items = own->requests.items + from->stretch.item;
    bool same = from->source == p->reference && from->stretch.item == steady.item;
    bool known =
        from->pairs != NULL && bytes_in(items, from->stretch.items) ==
                                   bytes_in(reference->requests.items + steady.item, steady.items);
    if (!same && !known)
        PLEAT_TRY(pleat__shapes_align(reference->requests.items + steady.item, steady.items, items,
                                      from->stretch.items, p->scratch, pairs, paired));
    *paired = 0;
    for (uint32_t i = 0; i < steady.items; i++) {
        uint32_t at = same ? i : pairs[i];
        if (!same && known)
            at =
                from->pairs[i] == PLEAT__NEVER ? PLEAT__NEVER : from->pairs[i] - from->stretch.item;
        bool has = at != PLEAT__NEVER &&
                   items[at].stream == reference->requests.items[steady.item + i].stream;
        sizes[i] = has ? items[at].size : PLEAT__ABSENT;
        *paired += has;
    }
    return PLEAT_OK;
}

/* Jobs that have less in common are different ones. */
#define COMMON_PERCENT 50

pleat_result pleat__profiles_compare(pleat__planning *p)
{
    uint32_t items = p->sources[p->reference].iteration.steady.items, paired;
    p->sizes =
        pleat__arena_alloc(p->scratch, ((uint64_t)p->profile_count * items + 1) * sizeof *p->sizes);
    uint32_t *pairs = pleat__arena_alloc(p->scratch, (items + 1ull) * sizeof *pairs);
    if (p->sizes == NULL || pairs == NULL)
        return pleat__no_recipe(p);
    for (uint32_t i = 0; i < p->profile_count; i++) {
        PLEAT_TRY(fill_profile(p, &p->profiles[i], pairs, p->sizes + (uint64_t)i * items, &paired));
        if (i >= p->trace_count)
            continue;
        p->report->paired[i] = paired;
        if ((uint64_t)paired * 100 < (uint64_t)items * COMMON_PERCENT)
            return pleat__fail(PLEAT_E_INPUT,
                               "trace %u has %u of the %u requests that trace %u has: these are "
                               "different jobs",
                               i + 1, paired, items, p->reference + 1);
    }
    pleat__arena_free(p->scratch, pairs);
    return PLEAT_OK;
}
