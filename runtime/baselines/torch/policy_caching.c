/*
 * policy_caching.c: the policies `native` and `expandable`: the caching allocator alone, with
 * segments as PyTorch's default has them and as its expandable segments have them.
 *
 * SETTINGS  max_split is PYTORCH_CUDA_ALLOC_CONF's max_split_size_mb, max_round its
 *           max_non_split_rounding_mb, divisions its roundup_power2_divisions, collect its
 *           garbage_collection_threshold in percent.
 * CALLBACKS The program's early_callback stands where PyTorch runs its free-memory callbacks:
 *           behind the search for a free block, before new memory.
 */
#include <runtime/base/policy.h>
#include <runtime/baselines/torch/caching.h>

#include <internal/error.h>

typedef struct policy {
    pleat__policy_context context;
    pleat__caching *caching;
} policy;

/* A segment's addresses: the device's memory and an eighth. A device with less than one handle has
 * room for that all the same: what does not fit is refused when it is asked for. */
static uint64_t range_of(const pleat__policy_context *context)
{
    uint64_t range = pleat__space_device_bytes(context->space) / 8 * 9;
    return range > PLEAT__LARGE_SEGMENT_BYTES ? range : PLEAT__LARGE_SEGMENT_BYTES;
}

static pleat_result create(const pleat__policy_context *context, bool expandable, void **out)
{
    policy *self = pleat__arena_calloc(context->arena, 1, sizeof *self);
    if (self == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a policy");
    self->context = *context;
    pleat__caching_options options = {.expandable = expandable,
                                      .range_bytes = range_of(context),
                                      .max_split_bytes = context->conf.max_split,
                                      .max_round_bytes = context->conf.max_round,
                                      .divisions = context->conf.divisions,
                                      .gc_threshold = (double)context->conf.collect / 100,
                                      .limit_bytes = context->limit_bytes,
                                      .early_callback = context->early_callback,
                                      .memory_context = context->memory_context};
    pleat_result result = pleat__caching_create(context->arena, context->space, context->gate,
                                                &options, &self->caching);
    if (result != PLEAT_OK) {
        pleat__arena_free(context->arena, self);
        return result;
    }
    *out = self;
    return PLEAT_OK;
}

static pleat_result native_create(const pleat__policy_context *context, void **out)
{
    return create(context, false, out);
}

static pleat_result expandable_create(const pleat__policy_context *context, void **out)
{
    return create(context, true, out);
}

static void destroy(void *opaque)
{
    policy *self = opaque;
    pleat__caching_destroy(self->caching);
    pleat__arena_free(self->context.arena, self);
}

static pleat_result alloc(void *opaque, uint64_t bytes, pleat_stream stream, pleat_va *address)
{
    policy *self = opaque;
    PLEAT_TRY(pleat__caching_alloc(self->caching, bytes, stream, address));
    self->context.stats->cached++;
    pleat__count_alloc(self->context.stats, bytes);
    return PLEAT_OK;
}

static pleat_result free_block(void *opaque, pleat_va address)
{
    policy *self = opaque;
    uint64_t bytes;
    pleat_result result = pleat__caching_free(self->caching, address, &bytes);
    if (result == PLEAT_OK)
        pleat__count_free(self->context.stats, bytes);
    return result;
}

static pleat_result block_of(void *opaque, pleat_va address, pleat_block *block)
{
    const policy *self = opaque;
    return pleat__caching_block_of(self->caching, address, block);
}

static pleat_result adjacent_free(void *opaque, pleat_va address, uint64_t *before, uint64_t *after)
{
    const policy *self = opaque;
    return pleat__caching_adjacent_free(self->caching, address, before, after);
}

static pleat_va next(void *opaque, pleat_va address)
{
    const policy *self = opaque;
    return pleat__caching_next(self->caching, address);
}

static bool reclaim(void *opaque, pleat__reclaim what, uint64_t bytes, pleat_stream stream)
{
    policy *self = opaque;
    switch (what) {
    case PLEAT__RECLAIM_VIEWS:
        return false;
    case PLEAT__RECLAIM_LARGE:
        return pleat__caching_release_large(self->caching, bytes, stream);
    case PLEAT__RECLAIM_CACHES:
        return pleat__caching_release_all(self->caching) > 0;
    }
    return false;
}

static void idle(void *opaque, pleat_stream stream, uint64_t *largest, uint64_t *total)
{
    const policy *self = opaque;
    pleat__caching_stats stats = pleat__caching_stats_of(self->caching);
    *largest = pleat__caching_largest(self->caching, stream);
    *total = stats.reserved_bytes - stats.allocated_bytes;
}

static bool audit(void *opaque)
{
    const policy *self = opaque;
    return pleat__caching_audit(self->caching);
}

#define POLICY(title)                                                                              \
    const pleat__policy_ops pleat__policy_##title = {                                              \
        .name = #title,                                                                            \
        .create = title##_create,                                                                  \
        .destroy = destroy,                                                                        \
        .alloc = alloc,                                                                            \
        .free = free_block,                                                                        \
        .block_of = block_of,                                                                      \
        .adjacent_free = adjacent_free,                                                            \
        .next = next,                                                                              \
        .reclaim = reclaim,                                                                        \
        .idle = idle,                                                                              \
        .audit = audit,                                                                            \
    };
POLICY(native)
POLICY(expandable)
