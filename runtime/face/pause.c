/*
 * pause.c: see pause.h.
 */
#include <runtime/face/pause.h>

#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/sized.h>
#include <string.h>

/* What a pause or a resume does at a time: so much of it, and at most so many bytes, so that the
 * first copy begins soon and the last verbs are few (D311). */
#define PARTS      16u
#define PART_BYTES (UINT64_C(128) << 20)

/* ---- what is paused ---- */

pleat_result pleat__pause_new(pleat_runtime *runtime, pleat__pause **out)
{
    *out = pleat__arena_calloc(runtime->arena, 1, sizeof **out);
    return *out != NULL ? PLEAT_OK : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a pause");
}

static void free_pause(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__transfer_release(&pause->transfer, &runtime->pinned);
    pleat__arena_free(runtime->arena, pause->chunks);
    pleat__arena_free(runtime->arena, pause);
}

pleat_result pleat__pause_add(pleat_runtime *runtime, pleat__pause *pause, pleat__chunk *chunk)
{
    if (chunk->list != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &pause->chunks, &pause->chunk_capacity,
                                pause->chunk_count, sizeof *pause->chunks));
    pause->chunks[pause->chunk_count++] = chunk;
    chunk->list = pause;
    return PLEAT_OK;
}

static pleat__chunk *chunk_at(const pleat_runtime *runtime, uint64_t page)
{
    return pleat__space_chunk_at(runtime->space, page, NULL);
}

static bool is_of(const pleat__pause *pause, const pleat__chunk *chunk)
{
    return chunk != NULL && chunk->list == pause;
}

static bool can_rest(const pleat_runtime *runtime, const pleat__chunk *chunk)
{
    return pleat__space_can_rest(runtime->space, chunk);
}

typedef pleat_result (*block_call)(pleat_runtime *runtime, pleat__pause *pause,
                                   const pleat_block *block);

static pleat_result for_blocks(pleat_runtime *runtime, pleat__pause *pause, block_call call)
{
    pleat_block block;
    for (pleat_va at = pleat__space_base(runtime->space); pleat__next_block(runtime, &at, &block);)
        PLEAT_TRY(call(runtime, pause, &block));
    return PLEAT_OK;
}

/* Whether its tag is the pause's. What is shared stays what other processes see. */
static bool is_meant(const pleat_runtime *runtime, const pleat__pause *pause,
                     const pleat_block *block)
{
    pleat__known known = pleat__known_of(runtime, block->address);
    return !known.shared && (pause->tag == 0 || known.tag == pause->tag);
}

/* What was spilled takes none of the device's memory, where it may have no room later (spill.h). */
static pleat_result list_chunks(pleat_runtime *runtime, pleat__pause *pause,
                                const pleat_block *block)
{
    pleat__range of = pleat__pages_of(runtime, block);
    if (!is_meant(runtime, pause, block))
        return PLEAT_OK;
    for (uint64_t page = of.begin; page < of.end; page++) {
        pleat__chunk *chunk = chunk_at(runtime, page);
        if (can_rest(runtime, chunk) && !chunk->on_host)
            PLEAT_TRY(pleat__pause_add(runtime, pause, chunk));
    }
    return PLEAT_OK;
}

/* Something else lives on its chunks: they stay. */
static pleat_result strike_chunks(pleat_runtime *runtime, pleat__pause *pause,
                                  const pleat_block *block)
{
    pleat__range of = pleat__pages_of(runtime, block);
    if (is_meant(runtime, pause, block))
        return PLEAT_OK;
    for (uint64_t page = of.begin; page < of.end; page++) {
        pleat__chunk *chunk = chunk_at(runtime, page);
        if (is_of(pause, chunk))
            chunk->list = NULL;
    }
    return PLEAT_OK;
}

/* What of the block lies on chunks that go. */
static pleat_result list_copies(pleat_runtime *runtime, pleat__pause *pause,
                                const pleat_block *block)
{
    uint64_t size = pleat__space_page_bytes(runtime->space);
    pleat__range of = pleat__pages_of(runtime, block);
    pleat_va base = pleat__space_base(runtime->space), end = block->address + block->bytes;
    for (uint64_t page = of.begin; page < of.end; page++) {
        const pleat__chunk *chunk = chunk_at(runtime, page);
        pleat_va from = base + page * size, to = from + size;
        if (!is_of(pause, chunk))
            continue;
        PLEAT_TRY(pleat__transfer_add(runtime->arena, &pause->transfer,
                                      from < block->address ? block->address : from,
                                      to > end ? end : to));
    }
    return PLEAT_OK;
}

/* No chunk is where a live block's place was lost for good. */
static bool is_paused(const pleat_runtime *runtime, const pleat_block *block)
{
    pleat__range of = pleat__pages_of(runtime, block);
    for (uint64_t page = of.begin; page < of.end; page++) {
        const pleat__chunk *chunk = chunk_at(runtime, page);
        if (chunk == NULL || chunk->torn || (chunk->list != NULL && chunk->list != runtime->freed))
            return true;
    }
    return false;
}

bool pleat__pause_holds(void *opaque, pleat_va address)
{
    const pleat_runtime *runtime = opaque;
    pleat_block block;
    return runtime->pauses != NULL &&
           runtime->ops->block_of(runtime->policy, address, &block) == PLEAT_OK &&
           is_paused(runtime, &block);
}

static pleat_result prepare_free(pleat_runtime *runtime, pleat__pause *pause,
                                 const pleat_block *block)
{
    (void)pause;
    return is_paused(runtime, block)
               ? pleat__pending_prepare(&runtime->pending, block->address, block->requested)
               : PLEAT_OK;
}

pleat_result pleat__pause_list_copies(pleat_runtime *runtime, pleat__pause *pause)
{
    return for_blocks(runtime, pause, list_copies);
}

/* The same of what was paused by its tag before, to come back with its contents: what else lay on
 * its chunks kept them awake. */
static pleat_result list_promised(pleat_runtime *runtime, pleat__pause *pause,
                                  const pleat_block *block)
{
    uint32_t tag = pleat__known_of(runtime, block->address).tag;
    for (const pleat__pause *at = runtime->pauses; tag != 0 && at != NULL; at = at->next)
        if (at->tag == tag && at->copies)
            return list_copies(runtime, pause, block);
    return PLEAT_OK;
}

static void keep_chunks(pleat__pause *pause)
{
    size_t kept = 0;
    for (size_t c = 0; c < pause->chunk_count; c++)
        if (is_of(pause, pause->chunks[c]))
            pause->chunks[kept++] = pause->chunks[c];
    pause->chunk_count = kept;
}

/* Which chunks go, and what is to be copied of them. */
static pleat_result find(pleat_runtime *runtime, pleat__pause *pause)
{
    PLEAT_TRY(for_blocks(runtime, pause, list_chunks));
    PLEAT_TRY(for_blocks(runtime, pause, strike_chunks));
    keep_chunks(pause);
    return for_blocks(runtime, pause, pause->copies ? list_copies : list_promised);
}

static uint64_t bytes_of(const pleat_runtime *runtime, const pleat__pause *pause)
{
    uint64_t sum = 0;
    for (size_t c = 0; c < pause->chunk_count; c++)
        sum += pause->chunks[c]->pages;
    return sum * pleat__space_page_bytes(runtime->space);
}

/* ---- pausing ---- */

void pleat__pause_drop(pleat_runtime *runtime, pleat__pause *pause)
{
    for (size_t c = 0; c < pause->chunk_count; c++)
        if (is_of(pause, pause->chunks[c]))
            pause->chunks[c]->list = NULL;
    free_pause(runtime, pause);
}

pleat_result pleat__pause_begin(pleat_runtime *runtime, pleat__pause *pause)
{
    PLEAT_TRY(for_blocks(runtime, pause, prepare_free));
    PLEAT_TRY(runtime->ops->hold(runtime->policy));
    pause->next = runtime->pauses;
    runtime->pauses = pause;
    return PLEAT_OK;
}

void pleat__pause_end(pleat_runtime *runtime, pleat__pause *pause)
{
    size_t kept = 0;
    for (size_t c = 0; c < pause->chunk_count; c++) {
        pleat__chunk *chunk = pause->chunks[c];
        chunk->list = chunk->rests ? pause : NULL;
        if (chunk->rests)
            pause->chunks[kept++] = chunk;
    }
    pause->chunk_count = kept;
    runtime->ops->let_go(runtime->policy);
    pleat__pending_resume(&runtime->pending);
    if (kept != 0)
        return;
    pleat__pause **at = &runtime->pauses;
    while (*at != pause)
        at = &(*at)->next;
    *at = pause->next;
    free_pause(runtime, pause);
}

static pleat_result reach(void *context, pleat_va end)
{
    return pleat__copying_reach(context, end);
}

static void stop(void *context)
{
    (void)!pleat__copying_wait(context);
}

static pleat__space_parts parts_of(const pleat_runtime *runtime, const pleat__pause *pause,
                                   pleat__copying *copying)
{
    uint64_t bytes = bytes_of(runtime, pause) / PARTS;
    return (pleat__space_parts){.bytes = bytes < PART_BYTES ? bytes : PART_BYTES,
                                .reach = reach,
                                .stop = stop,
                                .context = copying};
}

/* The lock is left; the GPU is done with what it was given. */
static pleat_result copy_and_rest(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__copying copying;
    pleat__space_parts parts = parts_of(runtime, pause, &copying);
    pleat_result result =
        pleat__copying_out(&copying, &runtime->pinned, &pause->transfer, parts.bytes);
    if (result == PLEAT_OK)
        result = pleat__space_rest(runtime->space, pause->chunks, pause->chunk_count, &parts);
    return pleat__copying_end(&copying, result);
}

/* The fences of streams that capture a graph, and cannot be waited for. */
static bool any_captures(const pleat__fences *fences)
{
    for (size_t m = 0; m < fences->count; m++)
        if (fences->fences[m].event == 0)
            return true;
    return false;
}

/* Fewer handles wake sooner, and what is idle beside what lives need not wake. What another pause
 * has stays as it is: it wakes by itself. */
static void regroup(pleat_runtime *runtime, pleat__pause *pause)
{
    size_t most = (size_t)(bytes_of(runtime, pause) / pleat__space_page_bytes(runtime->space));
    if (runtime->pauses != pause || pause->next != NULL)
        return;
    if (pleat__arena_reserve(runtime->arena, &pause->chunks, &pause->chunk_capacity, most,
                             sizeof *pause->chunks) == PLEAT_OK)
        pause->chunk_count = runtime->ops->rested(runtime->policy, pause->chunks);
}

pleat_result pleat__pause_rest(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__fences fences;
    bool fenced = pleat__gate_fence(&runtime->gate, &fences);
    if (fenced && any_captures(&fences)) {
        pleat__gate_unfence(&runtime->gate, &fences);
        return pleat__fail(PLEAT_E_STATE, "pause: a stream captures a graph");
    }
    if (!fenced || !pleat__gate_leave_fenced(&runtime->gate, &fences))
        return pleat__context(PLEAT_E_DRIVER, "pause: the streams cannot be waited for");
    pleat__gate_drain(&runtime->gate);
    pleat_result result = copy_and_rest(runtime, pause);
    pleat__gate_enter(&runtime->gate);
    if (result == PLEAT_OK)
        regroup(runtime, pause);
    return result;
}

static pleat_result pause_locked(pleat_runtime *runtime, uint32_t tag, uint32_t offload)
{
    pleat__pause *pause;
    if (runtime->gate.captured_count != 0)
        return pleat__fail(PLEAT_E_STATE, "pause: a stream captures a graph");
    for (const pleat__pause *at = runtime->pauses; at != NULL; at = at->next)
        if (!at->internal && (at->tag == tag || at->tag == 0))
            return pleat__fail(PLEAT_E_STATE, "it is paused already");
    PLEAT_TRY(pleat__pause_new(runtime, &pause));
    pause->tag = tag;
    pause->copies = offload == PLEAT_OFFLOAD_HOST;
    pleat__pending_poll(&runtime->pending, UINT64_MAX);
    if (tag == 0)
        (void)pleat__trim(runtime, 0);
    pleat_result result = find(runtime, pause);
    if (result == PLEAT_OK)
        result = pleat__pause_begin(runtime, pause);
    if (result != PLEAT_OK) {
        pleat__pause_drop(runtime, pause);
        return result;
    }
    if (pause->chunk_count != 0)
        result = pleat__pause_rest(runtime, pause);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = pleat__failure(result);
    pleat__pause_end(runtime, pause);
    return pleat__fail_again(&why);
}

static pleat_result read_options(const pleat_pause_options *given, pleat_pause_options *options)
{
    *options = (pleat_pause_options){.offload = PLEAT_OFFLOAD_HOST};
    PLEAT_TRY(
        pleat__read_sized("pleat_pause_options", given, sizeof *options, options, sizeof *options));
    return options->offload <= PLEAT_OFFLOAD_DISCARD
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_INVALID, "pause: offload %u is not known", options->offload);
}

pleat_result pleat_pause(pleat_runtime *runtime, const pleat_pause_options *given)
{
    pleat_pause_options options;
    uint32_t tag;
    PLEAT__TRY_HERE(runtime);
    PLEAT_TRY(read_options(given, &options));
    PLEAT_TRY(pleat__tag_named(options.tag, &tag));
    if (runtime->ops->hold == NULL || runtime->canary.paint != NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "memory of the policy '%s'%s cannot be paused",
                           runtime->ops->name,
                           runtime->canary.paint != NULL ? " under the canary" : "");
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = pause_locked(runtime, tag, options.offload);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

/* ---- resuming ---- */

/* Those that rest first; how many they are. (After a failure some may be awake.) */
static size_t resting_first(const pleat__pause *pause)
{
    size_t count = 0;
    for (size_t c = 0; c < pause->chunk_count; c++)
        if (pause->chunks[c]->rests) {
            pleat__chunk *chunk = pause->chunks[c];
            pause->chunks[c] = pause->chunks[count];
            pause->chunks[count++] = chunk;
        }
    return count;
}

/* Memory at the same places, and in it what was there; the lock is left. Where a copy fails it
 * rests again, as far as that can be. */
static pleat_result wake(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__copying copying;
    pleat__space_parts parts = parts_of(runtime, pause, &copying);
    size_t count = resting_first(pause);
    bool awake = false;
    pleat_result result = pleat__copying_in(&copying, &runtime->pinned, &pause->transfer);
    if (result == PLEAT_OK) {
        result = pleat__space_wake(runtime->space, pause->chunks, count, &parts);
        awake = result == PLEAT_OK;
    }
    if (result == PLEAT_OK)
        result = pleat__copying_reach(&copying, UINT64_MAX);
    result = pleat__copying_end(&copying, result);
    if (result == PLEAT_OK || !awake)
        return result;
    pleat_error why = pleat__failure(result);
    (void)!pleat__space_rest(runtime->space, pause->chunks, count, NULL);
    return pleat__fail_again(&why);
}

static pleat_result wake_unlocked(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__gate_leave(&runtime->gate);
    pleat_result result = wake(runtime, pause);
    pleat__gate_enter(&runtime->gate);
    return result;
}

/* Where there is no room the runtime's own idle memory goes first, as for a request: as much as is
 * needed, then all. */
static pleat_result wake_in_room(pleat_runtime *runtime, pleat__pause *pause, uint64_t bytes)
{
    pleat_result result = wake_unlocked(runtime, pause);
    for (int all = 0; all <= 1 && pleat__is_shortage(result); all++) {
        pleat_error why = pleat__failure(result);
        result = pleat__make_room(runtime, bytes, all != 0) > 0 ? wake_unlocked(runtime, pause)
                                                                : pleat__fail_again(&why);
    }
    return result;
}

/* Then other tenants are asked, and the program. For a move memory was made before: nobody's is
 * wanted. */
static pleat_result wake_with_help(pleat_runtime *runtime, pleat__pause *pause,
                                   pleat__room_request *request)
{
    pleat_result result;
    do
        result = wake_in_room(runtime, pause, request->bytes);
    while (pleat__is_shortage(result) && !pause->internal &&
           pleat__tenancy_await(runtime->tenancy, request));
    if (!pleat__is_shortage(result) || pause->internal)
        return result;
    pleat_error why = pleat__failure(result);
    return pleat__ask_program(runtime, request->bytes, PLEAT_STREAM_UNKNOWN)
               ? wake_in_room(runtime, pause, request->bytes)
               : pleat__fail_again(&why);
}

pleat_result pleat__pause_wake(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__room_request request = {.bytes = bytes_of(runtime, pause)};
    pause->wakes = true;
    pause->waker = pthread_self();
    pleat_result result = wake_with_help(runtime, pause, &request);
    pleat__gate_await_turn(&runtime->gate);
    pleat_error why = pleat__failure(result);
    pleat__tenancy_served(runtime->tenancy, &request);
    pause->wakes = false;
    if (pleat__fail_again(&why) != PLEAT_OK)
        return pleat__context(result, "resume");
    pleat__pause_end(runtime, pause);
    return PLEAT_OK;
}

static void let_go(void *context)
{
    pleat_runtime *runtime = context;
    pleat__pending_resume(&runtime->pending);
}

/* The pages that these lie on, at most. */
static uint64_t pages_from(const pleat__pending_entry *entry, uint64_t page_bytes)
{
    uint64_t sum = 0;
    for (; entry != NULL; entry = entry->next)
        sum += entry->bytes / page_bytes + 2;
    return sum;
}

static uint64_t piece_pages(const pleat__pause *pause, uint64_t page_bytes)
{
    uint64_t sum = 0;
    for (size_t p = 0; p < pause->transfer.count; p++)
        sum += pause->transfer.pieces[p].bytes / page_bytes + 2;
    return sum;
}

/* Whether something is allocated in [from, to). */
static bool lives(const pleat_runtime *runtime, pleat_va from, pleat_va to)
{
    const pleat__policy_ops *ops = runtime->ops;
    pleat_block block;
    pleat_va next = ops->next(runtime->policy, from);
    return (next != 0 && next < to) || ops->block_of(runtime->policy, from, &block) == PLEAT_OK;
}

/* What of a piece lies on chunks of the pause, and is allocated, added to `kept`: addresses of what
 * was freed need not be mapped when its chunk wakes for something else. */
static void keep_piece(const pleat_runtime *runtime, const pleat__pause *pause,
                       const pleat__transfer_piece *piece, pleat__transfer *kept)
{
    uint64_t size = pleat__space_page_bytes(runtime->space);
    pleat_va base = pleat__space_base(runtime->space), end = piece->address + piece->bytes;
    bool follows = false;
    for (pleat_va from = piece->address, to; from < end; from = to) {
        uint64_t page = (from - base) / size;
        to = base + (page + 1) * size < end ? base + (page + 1) * size : end;
        bool stays = is_of(pause, chunk_at(runtime, page)) && lives(runtime, from, to);
        if (stays && !follows)
            kept->pieces[kept->count++] = (pleat__transfer_piece){
                .address = from, .host = piece->host + (from - piece->address)};
        if (stays)
            kept->pieces[kept->count - 1].bytes += to - from;
        follows = stays;
    }
}

/* What was freed meanwhile is free, and chunks on which nothing else lived need not wake. Without
 * host memory for that they wake with the others. */
static void leave_freed(pleat_runtime *runtime, pleat__pause *pause)
{
    uint64_t size = pleat__space_page_bytes(runtime->space);
    uint64_t runs =
        pages_from(runtime->pending.first, size) + pages_from(runtime->pending.held_back, size);
    pleat__transfer kept = {0};
    if (runs == 0 ||
        pleat__arena_reserve(runtime->arena, &kept.pieces, &kept.capacity,
                             piece_pages(pause, size) + 1, sizeof *kept.pieces) != PLEAT_OK)
        return;
    runtime->freed = pause;
    runtime->ops->leave(runtime->policy, pause, runs, let_go, runtime);
    runtime->freed = NULL;
    keep_chunks(pause);
    for (size_t p = 0; p < pause->transfer.count; p++)
        keep_piece(runtime, pause, &pause->transfer.pieces[p], &kept);
    pleat__arena_free(runtime->arena, pause->transfer.pieces);
    pause->transfer.pieces = kept.pieces;
    pause->transfer.count = kept.count;
    pause->transfer.capacity = kept.capacity;
}

/* The newest of those that a resume of the tag is for. */
static pleat__pause *paused_by(const pleat_runtime *runtime, uint32_t tag)
{
    pleat__pause *at = runtime->pauses;
    while (at != NULL && tag != 0 && at->tag != tag)
        at = at->next;
    return at;
}

/* Each time from the list's beginning: who waits for room leaves the turn, and others pause and
 * resume meanwhile. */
static pleat_result resume_locked(pleat_runtime *runtime, uint32_t tag)
{
    bool any = false;
    for (pleat__pause *at; (at = paused_by(runtime, tag)) != NULL; any = true) {
        if (at->wakes) {
            /* It asks the program for memory, and that resumes what it is to give memory for. */
            if (pthread_equal(at->waker, pthread_self()))
                return pleat__fail(PLEAT_E_STATE, "it is being resumed");
            pleat__gate_yield(&runtime->gate);
            continue;
        }
        leave_freed(runtime, at);
        PLEAT_TRY(pleat__pause_wake(runtime, at));
    }
    return any ? PLEAT_OK : pleat__fail(PLEAT_E_STATE, "nothing is paused");
}

pleat_result pleat_resume(pleat_runtime *runtime, const char *tag_name)
{
    uint32_t tag;
    PLEAT__TRY_HERE(runtime);
    PLEAT_TRY(pleat__tag_named(tag_name, &tag));
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = resume_locked(runtime, tag);
    PLEAT_AUDIT(pleat__audit_policy(runtime));
    pleat__tries_end(result);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

void pleat__pauses_release(pleat_runtime *runtime)
{
    while (runtime->pauses != NULL) {
        pleat__pause *pause = runtime->pauses;
        runtime->pauses = pause->next;
        free_pause(runtime, pause);
    }
}
