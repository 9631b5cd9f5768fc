/*
 * tenancy.c: see tenancy.h.
 *
 * LOCKING  The runtime's lock guards all of a tenancy. The ledger's calls take microseconds, and to
 *          join, should another process keep its lock, two seconds at most: they are made without
 *          the runtime's lock, or with the turn and that lock left.
 */
#include <runtime/face/tenancy.h>

#include <internal/clock.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/thread.h>
#include <runtime/face/runtime_internal.h>
#include <string.h>
#include <time.h>

#define MILLISECOND UINT64_C(1000000)
#define TICK_NS     (10 * MILLISECOND)  /* between two looks at the ledger */
#define REST_NS     (50 * MILLISECOND)  /* without a request: the process rests */
#define TELL_NS     (100 * MILLISECOND) /* between two reports of what is idle */
/* What is asked for above a guarantee is given up by who rests, or not at all: looked for so long.
 */
#define BORROW_NS (3 * REST_NS)

struct pleat__tenancy {
    pleat_runtime *runtime;
    pleat__tenant *tenant; /* NULL: there is a watermark only */
    uint64_t watermark;    /* bytes; 0: none */
    uint64_t grace_ns;
    uint64_t owed;     /* bytes to be paid at the next iteration's end */
    uint64_t allowed;  /* by the ledger, when it was last looked at */
    uint64_t news;     /* of the ledger, when it was last looked at */
    uint64_t reclaim;  /* how often people had asked by then */
    uint64_t requests; /* of the runtime, by then */
    uint64_t quiet_ns; /* since when there was none */
    uint64_t told_ns;  /* when the ledger was last told what is idle */
    uint64_t wanted;   /* bytes of all requests that wait now */
    pleat__ticker ticker;
};

/* ---- joining and leaving ---- */

static pleat_result join(pleat__tenancy *tenancy, const pleat__conf *conf)
{
    pleat_runtime *runtime = tenancy->runtime;
    char device[PLEAT_DEVICE_NAME_BYTES];
    bool own = strcmp(conf->tenants, "user") == 0;
    PLEAT_TRY(runtime->vmm.ops->identify(runtime->vmm.self, runtime->device, device));
    pleat__tenant_options options = {.group = own ? NULL : conf->tenants,
                                     .device = device,
                                     .device_bytes = runtime->limits.device_bytes,
                                     .name = conf->tenant,
                                     .guarantee_bytes = conf->guarantee,
                                     .cap_bytes = runtime->limits.cap_bytes,
                                     .priority = (uint32_t)conf->priority};
    PLEAT_TRY(pleat__tenant_join(&options, &tenancy->tenant));
    /* What the process used when it was measured was its other tenants', too. */
    uint64_t *untold = &runtime->limits.untold_bytes;
    uint64_t others = pleat__tenancy_process_bytes(tenancy);
    *untold = *untold > others ? *untold - others : 0;
    pleat__tenant_tell(tenancy->tenant, *untold, 0, 0);
    return pleat__space_set_tenant(runtime->space, tenancy->tenant);
}

pleat_result pleat__tenancy_join(pleat_runtime *runtime, const pleat__conf *conf,
                                 pleat__tenancy **out)
{
    bool alone = !pleat__conf_shares(conf);
    *out = NULL;
    if (alone && conf->watermark == 0)
        return PLEAT_OK;
    pleat__tenancy *tenancy = pleat__arena_calloc(runtime->arena, 1, sizeof *tenancy);
    if (tenancy == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a tenancy");
    *tenancy = (pleat__tenancy){.runtime = runtime,
                                .grace_ns = conf->grace_ms * MILLISECOND,
                                .allowed = UINT64_MAX,
                                .watermark = conf->watermark};
    pleat_result result = alone ? PLEAT_OK : join(tenancy, conf);
    if (result != PLEAT_OK) {
        pleat__tenant_leave(tenancy->tenant);
        pleat__arena_free(runtime->arena, tenancy);
        return result;
    }
    *out = tenancy;
    return PLEAT_OK;
}

void pleat__tenancy_leave(pleat__tenancy *tenancy)
{
    if (tenancy == NULL)
        return;
    pleat__tenant_leave(tenancy->tenant);
    pleat__arena_free(tenancy->runtime->arena, tenancy);
}

/* ---- giving ---- */

/* Idle memory goes, so many bytes of it or a little more; how many went. With the turn. */
static uint64_t give(pleat_runtime *runtime, uint64_t bytes)
{
    uint64_t physical = pleat__space_stats_of(runtime->space).physical_bytes;
    return pleat__trim(runtime, physical > bytes ? physical - bytes : 0);
}

/* Notes how the runtime stands, and pays what it owes as far as it is idle. With the turn. */
static void settle(pleat__tenancy *tenancy, const pleat__standing *standing)
{
    tenancy->allowed = standing->allowed_bytes;
    tenancy->owed = standing->debt_bytes;
    uint64_t paid = tenancy->owed != 0 ? give(tenancy->runtime, tenancy->owed) : 0;
    tenancy->owed -= paid < tenancy->owed ? paid : tenancy->owed;
}

/* With the lock: what is to be known before the ledger is asked. Whether the process rests. */
static bool rests(pleat__tenancy *tenancy, uint64_t now)
{
    const pleat_stats *stats = &tenancy->runtime->stats;
    if (stats->requests + stats->frees != tenancy->requests) {
        tenancy->requests = stats->requests + stats->frees;
        tenancy->quiet_ns = now;
    }
    return now - tenancy->quiet_ns >= REST_NS;
}

/* Whether the device has less free than the watermark. With the turn; the lock is left. */
static bool is_low(const pleat__tenancy *tenancy)
{
    uint64_t free_bytes;
    return pleat__limits_free(tenancy->runtime, &free_bytes) && free_bytes < tenancy->watermark;
}

/* What is idle, nearly: asking the policy would have it look at all that is free. With the lock. */
static uint64_t idle_of(const pleat_runtime *runtime)
{
    uint64_t physical = pleat__space_stats_of(runtime->space).physical_bytes;
    uint64_t live = runtime->stats.live_bytes;
    return physical > live ? physical - live : 0;
}

/* A few times a second: gives way below the watermark, and says what is idle. With the turn. */
static void tell(pleat__tenancy *tenancy, bool resting, uint64_t now)
{
    pleat_runtime *runtime = tenancy->runtime;
    if (now - tenancy->told_ns < TELL_NS)
        return;
    tenancy->told_ns = now;
    if (tenancy->watermark != 0 && resting && is_low(tenancy))
        (void)give(runtime, UINT64_MAX);
    if (tenancy->tenant == NULL)
        return;
    pleat__limits_follow(runtime);
    uint64_t idle = idle_of(runtime);
    uint64_t other = runtime->limits.untold_bytes;
    pleat__gate_leave(&runtime->gate);
    pleat__tenant_tell(tenancy->tenant, other, idle,
                       pleat__space_stats_of(runtime->space).host_bytes);
    pleat__gate_enter(&runtime->gate);
}

/* With the turn. */
static void look(pleat__tenancy *tenancy)
{
    pleat_runtime *runtime = tenancy->runtime;
    pleat__standing standing;
    uint64_t now = pleat__now_ns();
    bool resting = rests(tenancy, now);
    tell(tenancy, resting, now);
    if (tenancy->tenant == NULL)
        return;
    uint64_t news = pleat__tenant_news(tenancy->tenant);
    bool is_new = news != tenancy->news;
    tenancy->news = news;
    pleat__gate_leave(&runtime->gate);
    pleat__tenant_look(tenancy->tenant, &standing);
    pleat__gate_enter(&runtime->gate);
    settle(tenancy, &standing);
    if ((standing.pressed && resting) || standing.reclaim != tenancy->reclaim)
        (void)give(runtime, UINT64_MAX);
    else if (standing.pressed && is_new)
        pleat__spare(runtime);
    tenancy->reclaim = standing.reclaim;
}

/* Whether there is something to look at. With the lock. */
static bool is_due(pleat__tenancy *tenancy)
{
    uint64_t now = pleat__now_ns();
    (void)rests(tenancy, now);
    return tenancy->owed != 0 || now - tenancy->told_ns >= TELL_NS ||
           (tenancy->tenant != NULL && pleat__tenant_news(tenancy->tenant) != tenancy->news);
}

void pleat__tenancy_mark(pleat__tenancy *tenancy)
{
    if (tenancy != NULL && tenancy->owed != 0 &&
        pleat__gate_turn(&tenancy->runtime->gate) == PLEAT_OK)
        look(tenancy);
}

/* ---- the thread ---- */

static void *run(void *context)
{
    pleat__tenancy *tenancy = context;
    pleat__gate *gate = &tenancy->runtime->gate;
    while (pleat__ticker_wait(&tenancy->ticker, TICK_NS)) {
        pleat__gate_lock(gate);
        bool due = is_due(tenancy);
        pleat__gate_unlock(gate);
        if (!due)
            continue;
        pleat__gate_let_pass(gate);
        pleat__gate_lock_turn(gate);
        look(tenancy);
        pleat__gate_unlock(gate);
    }
    return NULL;
}

pleat_result pleat__tenancy_begin(pleat__tenancy *tenancy)
{
    return tenancy == NULL ? PLEAT_OK
                           : pleat__ticker_start(&tenancy->ticker, "pleat-tenant", run, tenancy);
}

void pleat__tenancy_end(pleat__tenancy *tenancy)
{
    if (tenancy != NULL)
        pleat__ticker_stop(&tenancy->ticker);
}

/* ---- asking ---- */

/* With the turn; the lock is left meanwhile. */
static pleat__standing ask(pleat__tenancy *tenancy)
{
    pleat__gate *gate = &tenancy->runtime->gate;
    pleat__standing standing;
    uint64_t wanted = tenancy->wanted;
    pleat__gate_leave(gate);
    pleat__tenant_want(tenancy->tenant, wanted);
    pleat__tenant_look(tenancy->tenant, &standing);
    pleat__gate_enter(gate);
    tenancy->allowed = standing.allowed_bytes;
    return standing;
}

static uint64_t room_of(const pleat__standing *standing)
{
    return standing->allowed_bytes > standing->use_bytes
               ? standing->allowed_bytes - standing->use_bytes
               : 0;
}

/* How long who is asked for room may take. */
static uint64_t patience(const pleat__tenancy *tenancy, const pleat__standing *standing)
{
    bool is_own = standing->use_bytes < standing->guarantee_bytes;
    return is_own || tenancy->grace_ns < BORROW_NS ? tenancy->grace_ns : BORROW_NS;
}

bool pleat__tenancy_await(pleat__tenancy *tenancy, pleat__room_request *request)
{
    if (tenancy == NULL || tenancy->tenant == NULL)
        return false;
    bool first = request->since_ns == 0;
    if (first) {
        request->since_ns = pleat__now_ns();
        tenancy->wanted += request->bytes;
    }
    for (bool waited = false;; waited = true) {
        pleat__standing standing = ask(tenancy);
        uint64_t room = room_of(&standing), tried = request->tried;
        uint64_t there = room + idle_of(tenancy->runtime);
        bool enough = room >= request->bytes;
        /* It was refused with what was there at first. */
        bool more = there > tried && (enough || !first || waited);
        request->tried = enough ? UINT64_MAX : there > tried ? there : tried;
        if (more || (enough && waited))
            return true;
        if (!standing.is_shared ||
            pleat__now_ns() - request->since_ns >= patience(tenancy, &standing))
            return false;
        pleat__gate_yield(&tenancy->runtime->gate);
    }
}

void pleat__tenancy_served(pleat__tenancy *tenancy, const pleat__room_request *request)
{
    if (tenancy == NULL || request->since_ns == 0)
        return;
    uint64_t wanted = tenancy->wanted -= request->bytes;
    pleat__gate_leave(&tenancy->runtime->gate);
    pleat__tenant_want(tenancy->tenant, wanted);
    pleat__gate_enter(&tenancy->runtime->gate);
}

void pleat__tenancy_raise(pleat__tenancy *tenancy, uint64_t cap_bytes)
{
    if (tenancy != NULL && tenancy->tenant != NULL)
        pleat__tenant_raise(tenancy->tenant, cap_bytes);
}

uint64_t pleat__tenancy_process_bytes(const pleat__tenancy *tenancy)
{
    bool shares = tenancy != NULL && tenancy->tenant != NULL;
    return shares ? pleat__tenant_process_bytes(tenancy->tenant) : 0;
}

uint64_t pleat__tenancy_allowed(const pleat__tenancy *tenancy, uint64_t cap)
{
    return tenancy != NULL && tenancy->allowed < cap ? tenancy->allowed : cap;
}
