/*
 * fault.c: passes every verb on, but the Nth one fails. See fault.h.
 */
#include "fault.h"

#include <internal/check.h>
#include <internal/error.h>
#include <pthread.h>

typedef struct fault {
    pleat_vmm inner;
    pleat__arena *arena;
    pthread_mutex_t lock;
    pleat__fault_plan plan;
    uint64_t calls, hits;
} fault;

/* Whether this call is to fail, and whether the inner backend is called. */
static bool due(fault *self, pleat__fault_verb verb, bool *pass)
{
    pthread_mutex_lock(&self->lock);
    const pleat__fault_plan *plan = &self->plan;
    bool hit = false;
    if (plan->verb == verb || plan->verb == PLEAT__FAULT_any) {
        self->calls++;
        hit = plan->nth != 0 && (self->calls == plan->nth || self->calls == plan->second ||
                                 (plan->forever && self->calls > plan->nth));
        self->hits += hit;
    }
    bool open = verb == PLEAT__FAULT_unmap || verb == PLEAT__FAULT_set_access;
    *pass = !hit || (plan->carried_out && open);
    pthread_mutex_unlock(&self->lock);
    return hit;
}

static pleat_result failure(pleat__fault_verb verb)
{
#define NAME(name, ...) #name,
    static const char *const names[] = {PLEAT__VMM_VERBS(NAME)};
#undef NAME
    if (verb == PLEAT__FAULT_create || verb == PLEAT__FAULT_reserve)
        return pleat__fail_native(PLEAT_E_OUT_OF_MEMORY, 2, "CUDA_ERROR_OUT_OF_MEMORY",
                                  "%s: made to fail", names[verb]);
    return pleat__fail_native(PLEAT_E_DRIVER, 999, "CUDA_ERROR_UNKNOWN", "%s: made to fail",
                              names[verb]);
}

#define DECORATED(verb, parameters, ...)                                                           \
    static pleat_result verb PLEAT__VMM_SELF parameters                                            \
    {                                                                                              \
        fault *f = self;                                                                           \
        bool pass;                                                                                 \
        bool hit = due(f, PLEAT__FAULT_##verb, &pass);                                             \
        pleat_result result = pass ? f->inner.ops->verb(f->inner.self, __VA_ARGS__) : PLEAT_OK;    \
        return hit ? failure(PLEAT__FAULT_##verb) : result;                                        \
    }
PLEAT__VMM_VERBS(DECORATED)

static uint64_t clock_ns(void *self)
{
    const fault *f = self;
    return f->inner.ops->clock_ns(f->inner.self);
}

static void destroy(void *self)
{
    fault *f = self;
    pthread_mutex_destroy(&f->lock);
    pleat__arena_destroy(f->arena);
}

static const pleat_vmm_ops fault_ops = {.abi = PLEAT_VMM_ABI,
                                        .size = sizeof(pleat_vmm_ops),
                                        .name = "fault",
                                        .destroy = destroy,
                                        .clock_ns = clock_ns,
#define ENTRY(verb, ...) .verb = verb,
                                        PLEAT__VMM_VERBS(ENTRY)
#undef ENTRY
};

pleat_result pleat__fault_create(pleat_vmm inner, pleat_vmm *out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    fault *self = pleat__arena_calloc(arena, 1, sizeof *self);
    pleat_result result =
        self != NULL ? pleat__vmm_complete(inner, arena, &self->inner)
                     : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a fault backend");
    if (result != PLEAT_OK) {
        pleat__arena_destroy(arena);
        return result;
    }
    self->arena = arena;
    pthread_mutex_init(&self->lock, NULL);
    *out = (pleat_vmm){&fault_ops, self};
    return PLEAT_OK;
}

static fault *of(const pleat_vmm *vmm)
{
    PLEAT_CHECK(vmm->ops == &fault_ops);
    return vmm->self;
}

void pleat__fault_arm(const pleat_vmm *vmm, pleat__fault_plan plan)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    f->plan = plan;
    f->calls = f->hits = 0;
    pthread_mutex_unlock(&f->lock);
}

uint64_t pleat__fault_calls(const pleat_vmm *vmm)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    uint64_t calls = f->calls;
    pthread_mutex_unlock(&f->lock);
    return calls;
}

uint64_t pleat__fault_hits(const pleat_vmm *vmm)
{
    fault *f = of(vmm);
    pthread_mutex_lock(&f->lock);
    uint64_t hits = f->hits;
    pthread_mutex_unlock(&f->lock);
    return hits;
}
