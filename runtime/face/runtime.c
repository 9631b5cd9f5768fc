/*
 * runtime.c: the public face of the runtime: argument checks, the lock, and the way to the policy.
 *
 * LOCKING  One lock a runtime, around every call of its policy and of its pending frees, and left
 *          for driver verbs and waits (gate.h). The memory callback is called without it.
 */
#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/sized.h>
#include <plan/base/plan.h>
#include <string.h>

static pleat_result read_options(const pleat_runtime_options *given, pleat_runtime_options *options)
{
    *options = (pleat_runtime_options){0};
    return pleat__read_sized("pleat_runtime_options", given,
                             offsetof(pleat_runtime_options, memory_callback), options,
                             sizeof *options);
}

static pleat_result create_space(pleat_runtime *runtime, const pleat_runtime_options *options,
                                 const pleat__conf *conf)
{
    pleat__space_options space = {.device = options->device,
                                  .plan_bytes =
                                      options->plan != NULL ? options->plan->virtual_bytes : 0,
                                  .create_flags = conf->share ? PLEAT_CREATE_SHAREABLE : 0};
    PLEAT_TRY(pleat__space_create(runtime->vmm, runtime->arena, &space, &runtime->space));
    runtime->vmm = pleat__space_vmm(runtime->space);
    runtime->pinned = (pleat__pinned){.vmm = runtime->vmm,
                                      .device = options->device,
                                      .page_bytes = pleat__space_page_bytes(runtime->space),
                                      .block_bytes = PLEAT__PINNED_BLOCK_BYTES,
                                      .arena = runtime->arena};
    return pleat__limits_begin(runtime, options->budget_bytes);
}

/* Whether there is a plan to follow: one that only answers questions does not count for a job that
 * learns, nor any for a policy that knows none. */
static bool is_followed(const pleat_runtime_options *options)
{
    if (options->plan == NULL)
        return false;
    if (options->policy == NULL || strcmp(options->policy, "pleat") == 0)
        return !options->plan->answers_only;
    return strcmp(options->policy, "stweaver") == 0;
}

/* A plan whose memory cannot be had is refused here, not when the program has come that far. */
static pleat_result check_plan(const pleat_runtime *runtime)
{
    uint64_t bytes =
        runtime->plan != NULL ? pleat_plan_summary_of(runtime->plan).physical_bytes : 0;
    if (bytes <= runtime->limits.cap_bytes)
        return PLEAT_OK;
    char text[160];
    return pleat__fail(pleat__limits_refusal(runtime, bytes),
                       "out of memory: the plan takes %.2f MiB of %s %.2f MiB",
                       (double)bytes / (1 << 20), pleat__limits_text(runtime, text, sizeof text),
                       (double)runtime->limits.cap_bytes / (1 << 20));
}

static pleat_result create_policy(pleat_runtime *runtime, const pleat_runtime_options *options,
                                  const pleat__conf *conf)
{
    const char *name = options->policy != NULL ? options->policy : "pleat";
    const pleat__policy_ops *ops = pleat__policy_find(name);
    if (ops == NULL)
        return pleat__fail(PLEAT_E_INVALID, "there is no policy '%s'; there are:%s", name,
                           pleat__policy_names());
    runtime->context = (pleat__policy_context){.conf = *conf,
                                               .vmm = runtime->vmm,
                                               .arena = runtime->arena,
                                               .space = runtime->space,
                                               .plan = options->plan,
                                               .stats = &runtime->stats,
                                               .device = options->device,
                                               .limit_bytes = &runtime->limits.cap_bytes,
                                               .waits = options->waits != 0,
                                               .gate = &runtime->gate,
                                               .early_callback = options->early_callback,
                                               .memory_context = options->memory_context,
                                               .pending = &runtime->pending};
    PLEAT_TRY(ops->create(&runtime->context, &runtime->policy));
    runtime->ops = ops;
    return PLEAT_OK;
}

static void hand_over(void *runtime, pleat_va address, uint64_t bytes);

pleat_result pleat_runtime_create(pleat_vmm vmm, const pleat_runtime_options *given,
                                  pleat_runtime **out)
{
    pleat_runtime_options options;
    pleat__conf conf;
    pleat__arena *arena;
    if (vmm.ops == NULL || out == NULL)
        return pleat__fail(PLEAT_E_INVALID, "a runtime needs a backend and a place for itself");
    PLEAT_TRY(read_options(given, &options));
    if (!is_followed(&options))
        options.plan = NULL;
    PLEAT_TRY(pleat__conf_read(options.conf, &conf));
    PLEAT_TRY(pleat__conf_check(options.conf, &conf));
    PLEAT_TRY(pleat__process_watch());
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_runtime *runtime = pleat__arena_calloc(arena, 1, sizeof *runtime);
    pleat_result result;
    if (runtime == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a runtime");
        goto no_runtime;
    }
    runtime->arena = arena;
    runtime->process = pleat__process_now();
    runtime->vmm = vmm;
    runtime->device = options.device;
    runtime->plan = options.plan;
    runtime->memory_callback = options.memory_callback;
    runtime->memory_context = options.memory_context;
    result = create_space(runtime, &options, &conf);
    if (result != PLEAT_OK)
        goto no_gate;
    pleat__limits_settle(runtime);
    result = check_plan(runtime);
    if (result != PLEAT_OK)
        goto no_gate;
    result = pleat__gate_init(&runtime->gate, runtime->vmm, options.device, arena);
    if (result != PLEAT_OK)
        goto no_gate;
    result = pleat__pending_create(runtime->vmm, options.device, arena, &runtime->gate,
                                   pleat__pause_holds, hand_over, runtime, &runtime->pending);
    if (result != PLEAT_OK)
        goto no_pending;
    result = pleat__tenancy_join(runtime, &conf, &runtime->tenancy);
    if (result != PLEAT_OK)
        goto no_canary;
    if (conf.canary)
        result = pleat__canary_create(runtime->vmm, options.device, arena, runtime->space,
                                      options.plan == NULL, &runtime->canary);
    if (result != PLEAT_OK)
        goto no_canary;
    result = create_policy(runtime, &options, &conf);
    if (result != PLEAT_OK)
        goto no_policy;
    result = pleat__spill_begin(runtime, &conf);
    if (result != PLEAT_OK)
        goto no_watch;
    result = pleat__watch_begin(runtime, &conf, &runtime->watch);
    if (result != PLEAT_OK)
        goto no_watch;
    result = pleat__tenancy_begin(runtime->tenancy);
    if (result != PLEAT_OK)
        goto no_tenancy;
    pleat__keep_begin(runtime, &conf);
    *out = runtime;
    return PLEAT_OK;
no_tenancy:
    pleat__watch_end(runtime->watch);
no_watch:
    runtime->ops->destroy(runtime->policy);
no_policy:
    pleat__canary_destroy(&runtime->canary);
no_canary:
    pleat__pending_destroy(&runtime->pending);
no_pending:
    pleat__gate_release(&runtime->gate);
no_gate:
    pleat__space_destroy(runtime->space);
    pleat__tenancy_leave(runtime->tenancy);
no_runtime:
    pleat__arena_destroy(arena);
    return result;
}

void pleat_runtime_destroy(pleat_runtime *runtime)
{
    /* A child's copy goes with the child. */
    if (runtime == NULL || !pleat__is_here(runtime))
        return;
    pleat__keep_end(runtime);
    pleat__watch_end(runtime->watch);
    pleat__tenancy_end(runtime->tenancy);
    pleat__gate_lock_turn(&runtime->gate);
    runtime->gate.ending = true;
    /* All goes, whatever the driver says. */
    pleat__fences fences;
    if (pleat__gate_fence(&runtime->gate, &fences) &&
        pleat__gate_leave_fenced(&runtime->gate, &fences))
        pleat__gate_enter(&runtime->gate);
    pleat__wait_for_frees(runtime);
    pleat__gate_unlock(&runtime->gate);
    pleat__gate_drain(&runtime->gate);
    runtime->ops->destroy(runtime->policy);
    pleat__pending_destroy(&runtime->pending);
    pleat__pauses_release(runtime);
    pleat__address_map_destroy(&runtime->known);
    pleat__pinned_release(&runtime->pinned);
    pleat__record_release(&runtime->record);
    pleat__keep_release(&runtime->keep);
    pleat__canary_destroy(&runtime->canary);
    pleat__imports_release(runtime);
    pleat__gate_release(&runtime->gate);
    pleat__space_destroy(runtime->space);
    pleat__tenancy_leave(runtime->tenancy);
    /* The runtime itself lies in its arena. */
    pleat__arena_destroy(runtime->arena);
}

bool pleat__audit_policy(const pleat_runtime *runtime)
{
    return runtime->ops->audit == NULL || runtime->ops->audit(runtime->policy);
}

/* Allocations and frees are many: one in AUDITED is followed by an audit (D199). */
#define AUDITED 128u

static bool audit_at_times(pleat_runtime *runtime)
{
    return (runtime->stats.requests + runtime->stats.frees) % AUDITED != 0 ||
           pleat__audit_policy(runtime);
}

/* Before the policy hears of a free whose memory may be used again: afterwards the address may be
 * somebody else's. */
static void note_freed(pleat_runtime *runtime, pleat_va address)
{
    if (runtime->freed_callback != NULL)
        runtime->freed_callback(runtime->freed_context, address);
    pleat__record_free(&runtime->record, address, PLEAT_EVENT_FREE_COMPLETED);
    pleat__record_free(&runtime->keep.record, address, PLEAT_EVENT_FREE_COMPLETED);
    /* A kernel that cannot be launched is the job's failure as well, which it will hear of. */
    if (runtime->canary.paint != NULL)
        (void)!pleat__canary_freed(&runtime->canary, address);
}

/* Whether somebody wants to know of events. */
static inline bool is_watched(const pleat_runtime *runtime)
{
    return runtime->freed_callback != NULL || pleat__records(&runtime->record) ||
           pleat__records(&runtime->keep.record) || runtime->canary.paint != NULL;
}

/* A free that waited is due. */
static void hand_over(void *opaque, pleat_va address, uint64_t bytes)
{
    pleat_runtime *runtime = opaque;
    if (is_watched(runtime))
        note_freed(runtime, address);
    /* What waited has not been counted as live since its free; the policy counts it out. */
    pleat__count_waiting(&runtime->stats, bytes, -1);
    pleat_result result = runtime->ops->free(runtime->policy, address);
    PLEAT_CHECK(result == PLEAT_OK);
}

/* Under the lock. */
static pleat_result alloc_once(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                               pleat_va *address)
{
    if (runtime->pending.waiting > 0)
        pleat__pending_poll(&runtime->pending, 8);
    if (bytes <= runtime->limits.cap_bytes)
        return runtime->ops->alloc(runtime->policy, bytes, stream, address);
    pleat__tries_begin();
    return pleat__fail(pleat__limits_refusal(runtime, bytes), "more than there is");
}

/* What the policy could not serve at once: another thread issued verbs, or there is no memory. */
static pleat_result alloc_again(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                pleat_result result, pleat_va *address)
{
    /* Who waits for what is on its way leaves the turn meanwhile, and may find all changed again.
     */
    while (result == PLEAT_E_NOT_READY) {
        pleat__gate_await_turn(&runtime->gate);
        result = alloc_once(runtime, bytes, stream, address);
    }
    if (pleat__is_shortage(result))
        result = pleat__alloc_reclaiming(runtime, bytes, stream, result, address);
    return result;
}

static pleat_result guard_alloc(pleat_runtime *runtime, pleat_va address, uint64_t bytes)
{
    pleat_block block;
    PLEAT_TRY(runtime->ops->block_of(runtime->policy, address, &block));
    return pleat__canary_taken(&runtime->canary, &block, bytes);
}

/* The policy hears of a free, where `later` bytes do not wait for it: those count at once. */
static pleat_result give_back(pleat_runtime *runtime, pleat_va address, uint64_t later)
{
    if (later == 0)
        return runtime->ops->free(runtime->policy, address);
    pleat__count_waiting(&runtime->stats, later, 1);
    return PLEAT_OK;
}

/* Something was allocated for a request of `bytes`; on failure it is not any more. */
static pleat_result note_alloc(pleat_runtime *runtime, pleat_va *address, uint64_t bytes,
                               pleat_stream stream)
{
    pleat_result result =
        runtime->canary.paint != NULL ? guard_alloc(runtime, *address, bytes) : PLEAT_OK;
    if (result != PLEAT_OK) {
        uint64_t later;
        PLEAT_CHECK(pleat__pending_free(&runtime->pending, *address, &later) == PLEAT_OK);
        PLEAT_CHECK(give_back(runtime, *address, later) == PLEAT_OK);
        *address = 0;
        return result;
    }
    pleat__record_alloc(&runtime->record, *address, bytes, stream);
    pleat__record_alloc(&runtime->keep.record, *address, bytes, stream);
    return PLEAT_OK;
}

pleat_result pleat__alloc_locked(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                 pleat_va *address)
{
    const pleat__gate *gate = &runtime->gate;
    if (stream != gate->last || !gate->has_last) {
        if (runtime->keep.state == PLEAT__KEEP_FIRST)
            pleat__keep_first(runtime, bytes);
        PLEAT_TRY(pleat__gate_note_stream(&runtime->gate, stream));
    }
    uint64_t left = runtime->gate.left;
    uint64_t guarded = bytes + runtime->canary.guard;
    /* One of nearly 2^64 bytes stays one. */
    guarded = guarded < bytes ? UINT64_MAX : guarded;
    pleat_result result = alloc_once(runtime, guarded, stream, address);
    if (__builtin_expect(result != PLEAT_OK, 0))
        result = alloc_again(runtime, guarded, stream, result, address);
    if (__builtin_expect(result == PLEAT_OK && is_watched(runtime), 0))
        result = note_alloc(runtime, address, bytes, stream);
    if (result == PLEAT_OK)
        runtime->stats.requests++;
    runtime->stats.map_waits += runtime->gate.left != left;
    if (__builtin_expect(gate->has_turn, 0))
        pleat__tries_end(result);
    return result;
}

static pleat_result alloc_captured(pleat_runtime *runtime, pleat_capture *capture, uint64_t bytes,
                                   pleat_stream stream, pleat_va *address)
{
    pleat_result result = pleat__capture_alloc(capture, bytes, stream, address);
    runtime->stats.requests += result == PLEAT_OK;
    runtime->stats.out_of_memory += result == PLEAT_E_OUT_OF_MEMORY;
    return result;
}

/* The thread's tag is what it is now: the program's callbacks may change it meanwhile. */
static pleat_result alloc_noted(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                                pleat_va *address)
{
    pleat__known known = {.tag = pleat__tag_now()};
    PLEAT_TRY(pleat__alloc_locked(runtime, bytes, stream, address));
    known.born = pleat__spill_born(runtime);
    pleat_result result = pleat__known_set(runtime, *address, known);
    if (result != PLEAT_OK) {
        PLEAT_CHECK(pleat__free_locked(runtime, *address) == PLEAT_OK);
        *address = 0;
    }
    return result;
}

pleat_result pleat_alloc(pleat_runtime *runtime, uint64_t bytes, pleat_stream stream,
                         pleat_va *address)
{
    *address = 0;
    if (bytes == 0)
        return PLEAT_OK;
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    pleat_capture *capture = __builtin_expect(runtime->captures != NULL, 0)
                                 ? pleat__capture_of_stream(runtime->captures, stream)
                                 : NULL;
    pleat_result result;
    if (__builtin_expect(capture != NULL, 0))
        result = alloc_captured(runtime, capture, bytes, stream, address);
    else if (__builtin_expect(atomic_load_explicit(&pleat__has_tags, memory_order_relaxed) ||
                                  runtime->spill.on,
                              0))
        result = alloc_noted(runtime, bytes, stream, address);
    else
        result = pleat__alloc_locked(runtime, bytes, stream, address);
    PLEAT_AUDIT(audit_at_times(runtime));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

static pleat_result not_found(pleat_va address)
{
    return pleat__fail(PLEAT_E_NOT_FOUND, "%#llx is not allocated", (unsigned long long)address);
}

/* A free that is asked for: told of before the policy hears of it, so only when it will not fail.
 */
static pleat_result note_free(pleat_runtime *runtime, pleat_va address, bool later)
{
    pleat_block block;
    if (runtime->ops->block_of(runtime->policy, address, &block) != PLEAT_OK ||
        block.address != address)
        return not_found(address);
    pleat__record_free(&runtime->record, address, PLEAT_EVENT_FREE_REQUESTED);
    pleat__record_free(&runtime->keep.record, address, PLEAT_EVENT_FREE_REQUESTED);
    if (!later)
        note_freed(runtime, address);
    return PLEAT_OK;
}

/* Streams that share memory do not wait for each other: what the canary does there it does before
 * the events that the free waits for. */
static void paint_shared(pleat_runtime *runtime, pleat_va address)
{
    pleat_block block;
    if (runtime->ops->block_of(runtime->policy, address, &block) == PLEAT_OK &&
        pleat__pending_come_behind(&runtime->pending, address, block.stream))
        (void)!pleat__canary_freed(&runtime->canary, address);
}

pleat_result pleat__free_locked(pleat_runtime *runtime, pleat_va address)
{
    uint64_t later = 0;
    if (__builtin_expect(runtime->known.count != 0, 0))
        pleat__known_forget(runtime, address);
    if (__builtin_expect(runtime->canary.paint != NULL, 0))
        paint_shared(runtime, address);
    if (runtime->pending.entries.count > 0)
        PLEAT_TRY(pleat__pending_free(&runtime->pending, address, &later));
    if (__builtin_expect(is_watched(runtime), 0))
        PLEAT_TRY(note_free(runtime, address, later != 0));
    if (give_back(runtime, address, later) != PLEAT_OK)
        return not_found(address);
    runtime->stats.frees++;
    return PLEAT_OK;
}

static pleat_result free_captured(pleat_runtime *runtime, pleat_capture *capture, pleat_va address)
{
    if (pleat__capture_free(capture, address) != PLEAT_OK)
        return not_found(address);
    runtime->stats.frees++;
    pleat__capture_end_of_use(runtime, capture);
    return PLEAT_OK;
}

pleat_result pleat_free(pleat_runtime *runtime, pleat_va address)
{
    if (address == 0)
        return PLEAT_OK;
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    pleat_capture *capture = __builtin_expect(runtime->captures != NULL, 0)
                                 ? pleat__capture_of(runtime->captures, address)
                                 : NULL;
    pleat_result result = __builtin_expect(capture != NULL, 0)
                              ? free_captured(runtime, capture, address)
                              : pleat__free_locked(runtime, address);
    PLEAT_AUDIT(audit_at_times(runtime));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat__find_block(pleat_runtime *runtime, pleat_va address, pleat_block *block)
{
    const pleat_capture *capture = pleat__capture_of(runtime->captures, address);
    return capture != NULL ? pleat__capture_block_of(capture, address, block)
                           : pleat__policy_block(runtime, address, block);
}

/* The same, where the program has not freed it. */
static pleat_result find_live(pleat_runtime *runtime, pleat_va address, pleat_block *block)
{
    return pleat__find_block(runtime, address, block) == PLEAT_OK && block->allocated
               ? PLEAT_OK
               : not_found(address);
}

/* Spilling moves what lives behind the work of the streams that the gate knows: one that uses
 * memory is known for good, whatever becomes of what it has itself. */
static pleat_result record_use(pleat_runtime *runtime, const pleat_block *block,
                               pleat_stream stream)
{
    if (runtime->spill.on) {
        PLEAT_TRY(pleat__gate_note_stream(&runtime->gate, stream));
        pleat__gate_add_blocks(&runtime->gate, stream, 1);
    }
    uint64_t guarded = block->requested + runtime->canary.guard;
    return pleat__pending_record(&runtime->pending, block->address, guarded, stream);
}

pleat_result pleat_record_stream(pleat_runtime *runtime, pleat_va address, pleat_stream stream)
{
    PLEAT__TRY_HERE(runtime);
    pleat_block block;
    pleat__gate_lock(&runtime->gate);
    pleat_capture *capture = pleat__capture_of(runtime->captures, address);
    pleat_result result = pleat__find_block(runtime, address, &block);
    if (result != PLEAT_OK)
        result = not_found(address);
    else if (block.stream != stream && capture != NULL)
        result = pleat__capture_share(capture, address);
    else if (block.stream != stream)
        result = record_use(runtime, &block, stream);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_mark(pleat_runtime *runtime)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    if (runtime->limits.world.bytes != 0)
        pleat__limits_follow(runtime);
    pleat_result result =
        runtime->ops->mark != NULL ? runtime->ops->mark(runtime->policy) : PLEAT_OK;
    pleat__record_mark(&runtime->record);
    pleat__keep_mark(runtime);
    pleat__tenancy_mark(runtime->tenancy);
    pleat__spill_mark(runtime);
    if (runtime->watch != NULL)
        pleat__watch_mark(runtime->watch);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_phase(pleat_runtime *runtime, const char *name)
{
    PLEAT__TRY_HERE(runtime);
    char label[PLEAT__PHASE_BYTES];
    size_t length = pleat__phase_label(name, label);
    pleat__gate_lock(&runtime->gate);
    pleat__record_phase(&runtime->record, label, length);
    pleat__record_phase(&runtime->keep.record, label, length);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    return PLEAT_OK;
}

pleat_result pleat_empty_cache(pleat_runtime *runtime)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    pleat__reclaim_all(runtime);
    pleat__gate_leave(&runtime->gate);
    pleat__pinned_trim(&runtime->pinned);
    pleat__gate_enter(&runtime->gate);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    return PLEAT_OK;
}

pleat_result pleat_set_budget(pleat_runtime *runtime, uint64_t bytes)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    runtime->limits.budget_bytes = bytes;
    pleat__limits_settle(runtime);
    if (pleat__space_stats_of(runtime->space).physical_bytes > runtime->limits.cap_bytes)
        pleat__reclaim_all(runtime);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    return PLEAT_OK;
}

uint64_t pleat_limit_of(pleat_runtime *runtime)
{
    if (!pleat__is_here(runtime))
        return 0;
    pleat__gate_lock(&runtime->gate);
    uint64_t bytes = runtime->limits.cap_bytes;
    pleat__gate_unlock(&runtime->gate);
    return bytes;
}

int pleat_owns(const pleat_runtime *runtime, pleat_va address)
{
    pleat_va base = pleat__space_base(runtime->space);
    uint64_t bytes = pleat__space_pages(runtime->space) * pleat__space_page_bytes(runtime->space);
    return address - base < bytes;
}

pleat_result pleat_block_of(pleat_runtime *runtime, pleat_va address, pleat_block *block)
{
    PLEAT__TRY_HERE(runtime);
    pleat_block found;
    pleat__gate_lock(&runtime->gate);
    pleat_result result = find_live(runtime, address, &found);
    pleat__gate_unlock(&runtime->gate);
    if (result == PLEAT_OK)
        *block = found;
    return result;
}

pleat_result pleat_adjacent_free(pleat_runtime *runtime, pleat_va address, uint64_t *before,
                                 uint64_t *after)
{
    PLEAT__TRY_HERE(runtime);
    pleat_block block;
    pleat__gate_lock(&runtime->gate);
    pleat_result result = find_live(runtime, address, &block);
    /* What lies beside it is the graph's: nobody else ever gets it. */
    if (result == PLEAT_OK && pleat__capture_of(runtime->captures, address) != NULL)
        *before = *after = 0;
    else if (result == PLEAT_OK)
        result = runtime->ops->adjacent_free(runtime->policy, address, before, after);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_stats pleat__stats_locked(pleat_runtime *runtime)
{
    pleat_stats stats = runtime->stats;
    stats.waited_ns = runtime->gate.waited_ns;
    pleat__space_stats space = pleat__space_stats_of(runtime->space);
    stats.physical_bytes = space.physical_bytes;
    stats.peak_physical_bytes = space.peak_physical_bytes;
    stats.virtual_bytes = space.mapped_pages * pleat__space_page_bytes(runtime->space);
    stats.quarantined_bytes = space.quarantined_pages * pleat__space_page_bytes(runtime->space);
    stats.driver_calls = space.driver_calls;
    stats.mapper_calls = space.mapper_calls;
    stats.creates = space.creates;
    stats.releases = space.releases;
    stats.host_bytes = space.host_bytes;
    stats.metadata_bytes = pleat__arena_bytes_of(runtime->arena).allocated;
    if (runtime->watch != NULL)
        pleat__watch_peaks(runtime->watch, &stats);
    return stats;
}

void pleat_stats_fill(pleat_runtime *runtime, pleat_stats *out, size_t size)
{
    pleat_stats stats = {0};
    if (pleat__is_here(runtime)) {
        pleat__gate_lock(&runtime->gate);
        stats = pleat__stats_locked(runtime);
        pleat__gate_unlock(&runtime->gate);
    }
    pleat__fill_sized(out, size, &stats, sizeof stats);
}

void pleat_end_log(pleat_runtime *runtime)
{
    if (runtime != NULL)
        pleat__watch_stop(runtime->watch);
}

void pleat_reset_peaks_fill(pleat_runtime *runtime, pleat_stats *out, size_t size)
{
    pleat_stats stats = {0};
    if (pleat__is_here(runtime)) {
        pleat__gate_lock(&runtime->gate);
        stats = pleat__stats_locked(runtime);
        if (runtime->watch != NULL)
            pleat__watch_reset(runtime->watch);
        pleat__restart_peaks(&runtime->stats);
        pleat__space_reset_peak(runtime->space);
        pleat__gate_unlock(&runtime->gate);
    }
    pleat__fill_sized(out, size, &stats, sizeof stats);
}

/* ---- recording and being told ---- */

pleat_result pleat_record_begin(pleat_runtime *runtime, const pleat_record_options *options)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock(&runtime->gate);
    pleat_result result = pleat__record_begin(&runtime->record, runtime->arena, runtime->device,
                                              pleat__space_device_bytes(runtime->space), options);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

int pleat_record_complete(pleat_runtime *runtime)
{
    if (!pleat__is_here(runtime))
        return 0;
    pleat__gate_lock(&runtime->gate);
    bool complete = runtime->record.complete;
    pleat__gate_unlock(&runtime->gate);
    return complete;
}

int pleat_record_enough(pleat_runtime *runtime)
{
    if (!pleat__is_here(runtime))
        return 0;
    pleat__gate_lock(&runtime->gate);
    bool enough = pleat__record_is_enough(&runtime->record);
    pleat__gate_unlock(&runtime->gate);
    return enough;
}

pleat_result pleat_record_copy(pleat_runtime *runtime, pleat_trace **out)
{
    PLEAT__TRY_HERE(runtime);
    return pleat__record_copy(&runtime->record, &runtime->gate, out);
}

void pleat_record_end(pleat_runtime *runtime)
{
    if (!pleat__is_here(runtime))
        return;
    pleat__gate_lock(&runtime->gate);
    pleat__record_release(&runtime->record);
    pleat__gate_unlock(&runtime->gate);
}

void pleat_on_freed(pleat_runtime *runtime, pleat_freed_callback callback, void *context)
{
    if (!pleat__is_here(runtime))
        return;
    pleat__gate_lock(&runtime->gate);
    runtime->freed_callback = callback;
    runtime->freed_context = context;
    pleat__gate_unlock(&runtime->gate);
}

pleat_result pleat_canary_of(pleat_runtime *runtime, pleat_canary *out)
{
    PLEAT__TRY_HERE(runtime);
    if (runtime->canary.paint == NULL)
        return pleat__fail(PLEAT_E_STATE, "this runtime was made without the setting canary:on");
    pleat_canary found = {0};
    pleat__gate_lock(&runtime->gate);
    found.checked = runtime->canary.checked;
    pleat__gate_unlock(&runtime->gate);
    PLEAT_TRY(pleat__paint_counted(runtime->canary.paint, &found.words, &found.first));
    *out = found;
    return PLEAT_OK;
}
