/*
 * timed_vmm.c: see timed_vmm.h.
 */
#include <tools/replay/timed_vmm.h>

#include <tools/clock.h>

#include <internal/error.h>

#define TIMED_AS(counts, verb, parameters, ...)                                                    \
    static pleat_result verb PLEAT__VMM_SELF parameters                                            \
    {                                                                                              \
        timed_vmm *t = self;                                                                       \
        if (!pthread_equal(t->thread, pthread_self()))                                             \
            return t->inner.ops->verb(t->inner.self, __VA_ARGS__);                                 \
        uint64_t begun = clock_now();                                                              \
        pleat_result result = t->inner.ops->verb(t->inner.self, __VA_ARGS__);                      \
        uint64_t ns = clock_now() - begun;                                                         \
        t->verb_ns += ns + t->reading_ns;                                                          \
        t->verbs += (counts);                                                                      \
        t->by_verb[TIMED_##verb].ns += ns;                                                         \
        t->by_verb[TIMED_##verb].calls++;                                                          \
        return result;                                                                             \
    }
#define TIMED(verb, parameters, ...)       TIMED_AS(1, verb, parameters, __VA_ARGS__)
#define TIMED_EVENT(verb, parameters, ...) TIMED_AS(0, verb, parameters, __VA_ARGS__)
PLEAT__VMM_NEEDED(TIMED)
PLEAT__VMM_EVENTS(TIMED_EVENT)
PLEAT__VMM_OTHERS(TIMED)

static uint64_t clock_ns(void *self)
{
    const timed_vmm *t = self;
    return t->inner.ops->clock_ns(t->inner.self);
}

static void destroy(void *self)
{
    (void)self;
}

#define ENTRY(verb, ...) .verb = verb,
static const pleat_vmm_ops ops = {.abi = PLEAT_VMM_ABI,
                                  .size = sizeof(pleat_vmm_ops),
                                  .name = "timed",
                                  .destroy = destroy,
                                  .clock_ns = clock_ns,
                                  PLEAT__VMM_VERBS(ENTRY)};

pleat_result timed_vmm_begin(pleat_vmm inner, pleat__arena *arena, timed_vmm *timed, pleat_vmm *out)
{
    *timed = (timed_vmm){.thread = pthread_self(), .reading_ns = clock_cost(), .ops = ops};
    PLEAT_TRY(pleat__vmm_complete(inner, arena, &timed->inner));
    *out = (pleat_vmm){&timed->ops, timed};
    return PLEAT_OK;
}
