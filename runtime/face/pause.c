/*
 * pause.c: see pause.h.
 */
#include <runtime/face/pause.h>

#include <runtime/face/runtime_internal.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <string.h>

#define TAGS_MOST   256
#define TRIES_MOST  3                     /* to wake what the program takes to be awake */
#define BLOCK_BYTES (UINT64_C(256) << 20) /* of pinned memory; smaller where less is wanted */
#define STREAMS     2                     /* that copy: one is set up while the other one copies */
#define PART_BYTES  (UINT64_C(32) << 20)  /* of a copy, so that both have some */

/* ---- tags ---- */

atomic_bool pleat__allocations_are_noted;
static _Thread_local uint32_t tag_now; /* 0: none */
static pthread_mutex_t tags_lock = PTHREAD_MUTEX_INITIALIZER;
static char tag_names[TAGS_MOST][64];
static uint32_t tag_count;

void pleat__note_allocations(void)
{
    atomic_store_explicit(&pleat__allocations_are_noted, true, memory_order_relaxed);
}

/* Its number, from 1 on; 0: it is not known, and, where it is to be added, there is no room. */
static uint32_t tag_of(const char *name, bool add)
{
    pthread_mutex_lock(&tags_lock);
    uint32_t tag = 0;
    while (tag < tag_count && strcmp(tag_names[tag], name) != 0)
        tag++;
    bool found = tag < tag_count;
    if (!found && add && tag_count < TAGS_MOST) {
        snprintf(tag_names[tag_count++], sizeof *tag_names, "%s", name);
        found = true;
    }
    pthread_mutex_unlock(&tags_lock);
    return found ? tag + 1 : 0;
}

pleat_result pleat_tag(const char *name)
{
    if (name == NULL || *name == '\0') {
        tag_now = 0;
        return PLEAT_OK;
    }
    uint32_t tag = strlen(name) < sizeof *tag_names ? tag_of(name, true) : 0;
    if (tag == 0)
        return pleat__fail(PLEAT_E_LIMIT, "tag '%s': there may be %d, of up to %zu letters", name,
                           TAGS_MOST, sizeof *tag_names - 1);
    tag_now = tag;
    pleat__note_allocations();
    return PLEAT_OK;
}

pleat_result pleat__tag_reserve(pleat_runtime *runtime)
{
    pleat__address_map *tagged = &runtime->pauses.tagged;
    if (tag_now == 0)
        return PLEAT_OK;
    if (tagged->entries == NULL)
        PLEAT_TRY(pleat__address_map_create(runtime->arena, tagged));
    return pleat__address_map_promise(tagged);
}

void pleat__tag_note(pleat_runtime *runtime, pleat_va address)
{
    if (tag_now == 0)
        return;
    pleat__address_map_give_up(&runtime->pauses.tagged);
    if (address != 0)
        pleat__address_map_insert(&runtime->pauses.tagged, address, (void *)(uintptr_t)tag_now);
}

void pleat__tag_forget(pleat_runtime *runtime, pleat_va address)
{
    if (runtime->pauses.tagged.count != 0)
        (void)pleat__address_map_remove(&runtime->pauses.tagged, address);
}

static uint32_t tag_at(const pleat_runtime *runtime, pleat_va address)
{
    const pleat__address_map *tagged = &runtime->pauses.tagged;
    return tagged->count == 0 ? 0 : (uint32_t)(uintptr_t)pleat__address_map_find(tagged, address);
}

/* ---- what is paused ---- */

/* A piece of what lives, and where it is kept. */
typedef struct copy {
    pleat_va address;
    uint64_t bytes;
    char *host;
} copy;

struct pleat__pause {
    pleat__pause *next;
    uint32_t tag;           /* 0: all */
    uint64_t frees;         /* that may have to be kept back */
    uint64_t copied_blocks; /* that lie on its chunks */
    pleat__chunk **chunks;
    size_t chunk_count, chunk_capacity;
    copy *copies;
    size_t copy_count, copy_capacity;
    size_t *blocks; /* of pinned memory, by index */
    size_t block_count, block_capacity;
};

static void pause_free(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__arena_free(runtime->arena, pause->chunks);
    pleat__arena_free(runtime->arena, pause->copies);
    pleat__arena_free(runtime->arena, pause->blocks);
    pleat__arena_free(runtime->arena, pause);
}

/* The pages of a block. */
typedef struct pages {
    uint64_t first, end;
} pages;

static pages pages_of(const pleat_runtime *runtime, const pleat_block *block)
{
    uint64_t page = pleat__space_page_bytes(runtime->space);
    uint64_t from = block->address - pleat__space_base(runtime->space);
    return (pages){from / page, pleat__ceil_div(from + block->bytes, page)};
}

static pleat__chunk *chunk_at(const pleat_runtime *runtime, uint64_t page)
{
    return pleat__space_chunk_at(runtime->space, page, NULL);
}

static bool can_rest(const pleat__chunk *chunk)
{
    return chunk != NULL && !chunk->rests && !chunk->imported && chunk->stuck == 0;
}

typedef pleat_result (*block_call)(pleat_runtime *runtime, pleat__pause *pause,
                                   const pleat_block *block);

/* Every block whose tag is the pause's or, with `others`, is not. */
static pleat_result for_blocks(pleat_runtime *runtime, pleat__pause *pause, bool others,
                               block_call call)
{
    const pleat__policy_ops *ops = runtime->ops;
    pleat_block block;
    pleat_va at = pleat__space_base(runtime->space);
    while ((at = ops->next(runtime->policy, at)) != 0 &&
           ops->block_of(runtime->policy, at, &block) == PLEAT_OK) {
        bool meant = pause->tag == 0 || tag_at(runtime, block.address) == pause->tag;
        if (meant != others)
            PLEAT_TRY(call(runtime, pause, &block));
        at = block.address + block.bytes;
    }
    return PLEAT_OK;
}

static pleat_result list_chunks(pleat_runtime *runtime, pleat__pause *pause,
                                const pleat_block *block)
{
    pages of = pages_of(runtime, block);
    pause->frees++;
    for (uint64_t page = of.first; page < of.end; page++) {
        pleat__chunk *chunk = chunk_at(runtime, page);
        if (!can_rest(chunk) || chunk->listed)
            continue;
        PLEAT_TRY(pleat__arena_grow(runtime->arena, &pause->chunks, &pause->chunk_capacity,
                                    pause->chunk_count, sizeof *pause->chunks));
        pause->chunks[pause->chunk_count++] = chunk;
        chunk->listed = true;
    }
    return PLEAT_OK;
}

/* Something else lives on its chunks: they stay. */
static pleat_result strike_chunks(pleat_runtime *runtime, pleat__pause *pause,
                                  const pleat_block *block)
{
    pages of = pages_of(runtime, block);
    (void)pause;
    for (uint64_t page = of.first; page < of.end; page++)
        if (can_rest(chunk_at(runtime, page)))
            chunk_at(runtime, page)->listed = false;
    return PLEAT_OK;
}

static pleat_result add_copy(pleat_runtime *runtime, pleat__pause *pause, pleat_va from,
                             pleat_va to)
{
    copy *last = pause->copy_count > 0 ? &pause->copies[pause->copy_count - 1] : NULL;
    if (last != NULL && last->address + last->bytes == from) {
        last->bytes += to - from;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &pause->copies, &pause->copy_capacity,
                                pause->copy_count, sizeof *pause->copies));
    pause->copies[pause->copy_count++] = (copy){.address = from, .bytes = to - from};
    return PLEAT_OK;
}

/* What of the block lies on chunks that go. */
static pleat_result list_copies(pleat_runtime *runtime, pleat__pause *pause,
                                const pleat_block *block)
{
    uint64_t size = pleat__space_page_bytes(runtime->space);
    pages of = pages_of(runtime, block);
    pleat_va base = pleat__space_base(runtime->space), end = block->address + block->bytes;
    pause->copied_blocks++; /* or fewer: room for their frees */
    for (uint64_t page = of.first; page < of.end; page++) {
        const pleat__chunk *chunk = chunk_at(runtime, page);
        pleat_va from = base + page * size, to = from + size;
        if (!can_rest(chunk) || !chunk->listed)
            continue;
        PLEAT_TRY(add_copy(runtime, pause, from < block->address ? block->address : from,
                           to > end ? end : to));
    }
    return PLEAT_OK;
}

static void unlist(const pleat__pause *pause)
{
    for (size_t c = 0; c < pause->chunk_count; c++)
        pause->chunks[c]->listed = false;
}

/* Which chunks go, and what is to be copied of them. */
static pleat_result find(pleat_runtime *runtime, pleat__pause *pause, uint32_t offload)
{
    PLEAT_TRY(for_blocks(runtime, pause, false, list_chunks));
    PLEAT_TRY(for_blocks(runtime, pause, true, strike_chunks));
    size_t kept = 0;
    for (size_t c = 0; c < pause->chunk_count; c++)
        if (pause->chunks[c]->listed)
            pause->chunks[kept++] = pause->chunks[c];
    pause->chunk_count = kept;
    return offload == PLEAT_OFFLOAD_HOST ? for_blocks(runtime, pause, false, list_copies)
                                         : PLEAT_OK;
}

/* ---- host memory; the lock is left ---- */

/* A block that no pause uses, of a size that helps most; or a new one. */
static pleat_result take_block(pleat_runtime *runtime, uint64_t bytes, size_t *index)
{
    pleat__pauses *pauses = &runtime->pauses;
    uint64_t page = pleat__space_page_bytes(runtime->space);
    for (*index = 0; *index < pauses->block_count; ++*index)
        if (!pauses->blocks[*index].used) {
            pauses->blocks[*index].used = true;
            return PLEAT_OK;
        }
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &pauses->blocks, &pauses->block_capacity,
                                pauses->block_count, sizeof *pauses->blocks));
    pleat__pinned made = {.used = true};
    made.bytes = bytes < BLOCK_BYTES ? pleat__ceil_div(bytes, page) * page : BLOCK_BYTES;
    PLEAT_TRY(
        runtime->vmm.ops->host_alloc(runtime->vmm.self, runtime->device, made.bytes, &made.memory));
    *index = pauses->block_count;
    pauses->blocks[pauses->block_count++] = made;
    return PLEAT_OK;
}

static void give_blocks(pleat_runtime *runtime, pleat__pause *pause)
{
    for (size_t b = 0; b < pause->block_count; b++)
        runtime->pauses.blocks[pause->blocks[b]].used = false;
    pause->block_count = 0;
}

/* Where the blocks are filled to. */
typedef struct filling {
    char *at;
    uint64_t left;
} filling;

static pleat_result next_block(pleat_runtime *runtime, pleat__pause *pause, uint64_t bytes,
                               filling *to)
{
    size_t index;
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &pause->blocks, &pause->block_capacity,
                                pause->block_count, sizeof *pause->blocks));
    PLEAT_TRY(take_block(runtime, bytes, &index));
    pause->blocks[pause->block_count++] = index;
    const pleat__pinned *block = &runtime->pauses.blocks[index];
    *to = (filling){.at = block->memory, .left = block->bytes};
    return PLEAT_OK;
}

/* Each copy its place; one that goes over a block's end becomes two, and a long one several. */
static pleat_result give_places(pleat_runtime *runtime, pleat__pause *pause)
{
    filling to = {0};
    uint64_t left = 0;
    for (size_t c = 0; c < pause->copy_count; c++)
        left += pause->copies[c].bytes;
    for (size_t c = 0; c < pause->copy_count; c++) {
        if (to.left == 0)
            PLEAT_TRY(next_block(runtime, pause, left, &to));
        uint64_t bytes = pause->copies[c].bytes;
        bytes = bytes < to.left ? bytes : to.left;
        bytes = bytes < PART_BYTES ? bytes : PART_BYTES;
        if (bytes < pause->copies[c].bytes) {
            PLEAT_TRY(pleat__arena_grow(runtime->arena, &pause->copies, &pause->copy_capacity,
                                        pause->copy_count, sizeof *pause->copies));
            copy *whole = &pause->copies[c];
            memmove(whole + 1, whole, (pause->copy_count - c) * sizeof *whole);
            pause->copy_count++;
            whole[1].address += bytes;
            whole[1].bytes -= bytes;
        }
        pause->copies[c].bytes = bytes;
        pause->copies[c].host = to.at;
        to.at += bytes;
        to.left -= bytes;
        left -= bytes;
    }
    return PLEAT_OK;
}

/* ---- copying; the lock is left ---- */

typedef struct copier {
    pleat_vmm vmm;
    int device;
    pleat_stream streams[STREAMS];
    pleat_event events[STREAMS];
    int made; /* streams with their events */
} copier;

static pleat_result copier_begin(const pleat_runtime *runtime, copier *with)
{
    *with = (copier){.vmm = runtime->vmm, .device = runtime->device};
    const pleat_vmm_ops *ops = with->vmm.ops;
    pleat_result result = PLEAT_OK;
    while (with->made < STREAMS && result == PLEAT_OK) {
        pleat_stream *stream = &with->streams[with->made];
        result = ops->stream_create(with->vmm.self, with->device, stream);
        if (result != PLEAT_OK)
            break;
        result = ops->event_create(with->vmm.self, with->device, &with->events[with->made]);
        if (result == PLEAT_OK)
            with->made++;
        else
            (void)ops->stream_destroy(with->vmm.self, with->device, *stream);
    }
    return result;
}

/* Waits for all that was begun, whatever failed: the memory is used until then. */
static pleat_result copier_end(copier *with, pleat_result result)
{
    const pleat_vmm_ops *ops = with->vmm.ops;
    pleat_error why = *pleat_last_error();
    for (int s = 0; s < with->made; s++) {
        pleat_result over = ops->event_record(with->vmm.self, with->events[s], with->streams[s]);
        if (over == PLEAT_OK)
            over = ops->event_wait(with->vmm.self, with->events[s]);
        if (result == PLEAT_OK && over != PLEAT_OK)
            why = *pleat_last_error();
        result = result == PLEAT_OK ? over : result;
    }
    while (with->made > 0) {
        int s = --with->made;
        (void)ops->event_destroy(with->vmm.self, with->events[s]);
        (void)ops->stream_destroy(with->vmm.self, with->device, with->streams[s]);
    }
    return result == PLEAT_OK
               ? PLEAT_OK
               : pleat__fail_native(why.result, why.native, why.native_name, "%s", why.text);
}

static pleat_result copy_all(pleat_runtime *runtime, const pleat__pause *pause, bool out)
{
    copier with;
    if (pause->copy_count == 0)
        return PLEAT_OK;
    pleat_result result = copier_begin(runtime, &with);
    for (size_t c = 0; c < pause->copy_count && result == PLEAT_OK; c++) {
        const copy *of = &pause->copies[c];
        uint64_t host = (uint64_t)(uintptr_t)of->host;
        result = with.vmm.ops->copy(with.vmm.self, with.device, with.streams[c % STREAMS],
                                    out ? host : of->address, out ? of->address : host, of->bytes);
    }
    return copier_end(&with, result);
}

/* ---- frees that are kept back ---- */

static bool is_paused(const pleat_runtime *runtime, const pleat_block *block)
{
    pages of = pages_of(runtime, block);
    for (uint64_t page = of.first; page < of.end; page++) {
        const pleat__chunk *chunk = chunk_at(runtime, page);
        if (chunk != NULL && chunk->listed)
            return true;
    }
    return false;
}

bool pleat__pause_keeps(pleat_runtime *runtime, pleat_va address, uint64_t bytes, bool *again)
{
    pleat_block block;
    pleat__address_map *kept = &runtime->pauses.kept;
    *again = kept->count != 0 && pleat__address_map_find(kept, address) != NULL;
    if (*again)
        return true;
    if (runtime->ops->block_of(runtime->policy, address, &block) != PLEAT_OK ||
        block.address != address || !is_paused(runtime, &block))
        return false;
    pleat__address_map_give_up(kept);
    pleat__address_map_insert(kept, address,
                              (void *)(uintptr_t)(bytes != 0 ? bytes : block.requested));
    return true;
}

/* Those that are paused no longer reach the policy. */
static void let_frees_go(pleat_runtime *runtime)
{
    pleat__address_map *kept = &runtime->pauses.kept;
    pleat_block block;
    for (uint64_t i = 0; kept->count != 0 && i <= kept->mask; i++) {
        pleat_va address = kept->entries[i].address;
        uint64_t bytes = (uint64_t)(uintptr_t)kept->entries[i].value;
        if (address == 0)
            continue;
        PLEAT_CHECK(runtime->ops->block_of(runtime->policy, address, &block) == PLEAT_OK);
        if (is_paused(runtime, &block))
            continue;
        (void)pleat__address_map_remove(kept, address);
        PLEAT_CHECK(pleat__address_map_promise(kept) == PLEAT_OK); /* it has just left room */
        pleat__runtime_freed(runtime, address, bytes);
        i = UINT64_MAX; /* a removal moves others: from the beginning */
    }
}

/* Room for the frees of all that is paused, which cannot fail. */
static pleat_result promise(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__address_map *kept = &runtime->pauses.kept;
    pleat_result result =
        kept->entries == NULL ? pleat__address_map_create(runtime->arena, kept) : PLEAT_OK;
    uint64_t made = 0;
    while (made < pause->frees && result == PLEAT_OK) {
        result = pleat__address_map_promise(kept);
        made += result == PLEAT_OK;
    }
    pause->frees = made;
    return result;
}

static void give_up(pleat_runtime *runtime, const pleat__pause *pause)
{
    for (uint64_t f = 0; f < pause->frees; f++)
        pleat__address_map_give_up(&runtime->pauses.kept);
}

/* ---- pausing ---- */

/* What is not at rest is the program's again, and the pause is gone, unless something is torn. */
static void end_pause(pleat_runtime *runtime, pleat__pause *pause)
{
    size_t kept = 0;
    for (size_t c = 0; c < pause->chunk_count; c++) {
        pleat__chunk *chunk = pause->chunks[c];
        chunk->listed = chunk->rests;
        if (chunk->rests)
            pause->chunks[kept++] = chunk;
    }
    pause->chunk_count = kept;
    runtime->ops->let_go(runtime->policy);
    let_frees_go(runtime);
    if (kept != 0)
        return;
    for (pleat__pause **at = &runtime->pauses.first; *at != NULL; at = &(*at)->next)
        if (*at == pause) {
            *at = pause->next;
            break;
        }
    give_up(runtime, pause);
    give_blocks(runtime, pause);
    pause_free(runtime, pause);
}

/* With the turn and the lock, which is left; the GPU is done with what it was given. */
static pleat_result lay_to_rest(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat__marks marks;
    if (!pleat__gate_mark(&runtime->gate, &marks))
        return pleat__fail(PLEAT_E_DRIVER, "pause: the streams cannot be waited for: %s",
                           pleat_last_error()->text);
    for (size_t m = 0; m < marks.count; m++)
        if (marks.marks[m].event == 0) {
            pleat__gate_unmark(&runtime->gate, &marks);
            return pleat__fail(PLEAT_E_STATE, "pause: a stream captures a graph");
        }
    if (!pleat__gate_leave_marked(&runtime->gate, &marks))
        return pleat__fail(PLEAT_E_DRIVER, "pause: the streams cannot be waited for: %s",
                           pleat_last_error()->text);
    pleat__gate_drain(&runtime->gate);
    pleat_result result = give_places(runtime, pause);
    if (result == PLEAT_OK)
        result = copy_all(runtime, pause, true);
    if (result == PLEAT_OK)
        result = pleat__space_rest(runtime->space, pause->chunks, pause->chunk_count);
    pleat__gate_enter(&runtime->gate);
    return result;
}

static pleat_result pause_locked(pleat_runtime *runtime, uint32_t tag, uint32_t offload)
{
    for (const pleat__pause *at = runtime->pauses.first; at != NULL; at = at->next)
        if (at->tag == tag || at->tag == 0)
            return pleat__fail(PLEAT_E_STATE, "it is paused already");
    pleat__pause *pause = pleat__arena_calloc(runtime->arena, 1, sizeof *pause);
    if (pause == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a pause");
    pause->tag = tag;
    pleat__pending_poll(&runtime->pending, UINT64_MAX);
    if (tag == 0)
        (void)pleat__trim(runtime, 0);
    pleat_result result = find(runtime, pause, offload);
    if (result == PLEAT_OK)
        result = promise(runtime, pause);
    else
        pause->frees = 0;
    if (result == PLEAT_OK)
        result = runtime->ops->hold(runtime->policy);
    if (result != PLEAT_OK) {
        give_up(runtime, pause);
        unlist(pause);
        pause_free(runtime, pause);
        return result;
    }
    pause->next = runtime->pauses.first;
    runtime->pauses.first = pause;
    if (pause->chunk_count != 0)
        result = lay_to_rest(runtime, pause);
    if (result != PLEAT_OK) {
        pleat_error why = *pleat_last_error();
        end_pause(runtime, pause);
        return pleat__fail_native(result, why.native, why.native_name, "%s", why.text);
    }
    return PLEAT_OK;
}

static pleat_result read_options(const pleat_pause_options *given, pleat_pause_options *options)
{
    *options = (pleat_pause_options){.offload = PLEAT_OFFLOAD_HOST};
    if (given == NULL)
        return PLEAT_OK;
    if (given->size < sizeof(uint32_t))
        return pleat__fail(PLEAT_E_ABI, "pleat_pause_options of %u bytes: set its size field",
                           given->size);
    memcpy(options, given, given->size < sizeof *options ? given->size : sizeof *options);
    return options->offload <= PLEAT_OFFLOAD_DISCARD
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_INVALID, "pause: offload %u is not known", options->offload);
}

/* 0: all. */
static pleat_result named_tag(const char *name, uint32_t *tag)
{
    *tag = name != NULL && *name != '\0' ? tag_of(name, false) : 0;
    return name == NULL || *name == '\0' || *tag != 0
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NOT_FOUND, "nothing was ever allocated with the tag '%s'",
                             name);
}

pleat_result pleat_pause(pleat_runtime *runtime, const pleat_pause_options *given)
{
    pleat_pause_options options;
    uint32_t tag;
    PLEAT__TRY_HERE(runtime);
    PLEAT_TRY(read_options(given, &options));
    PLEAT_TRY(named_tag(options.tag, &tag));
    if (runtime->ops->hold == NULL || runtime->canary.paint != NULL)
        return pleat__fail(PLEAT_E_UNSUPPORTED, "memory of the policy '%s'%s cannot be paused",
                           runtime->ops->name,
                           runtime->canary.paint != NULL ? " under the canary" : "");
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = pause_locked(runtime, tag, options.offload);
    PLEAT_AUDIT(runtime->ops->audit == NULL || runtime->ops->audit(runtime->policy));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

/* ---- resuming ---- */

static bool is_shortage(pleat_result result)
{
    return result == PLEAT_E_BUDGET || result == PLEAT_E_OUT_OF_MEMORY;
}

/* Memory at the same places, and in it what was there; the lock is left. Where a copy fails it
 * rests again, as far as that can be. */
static pleat_result wake(pleat_runtime *runtime, pleat__pause *pause)
{
    size_t count = 0;
    for (size_t c = 0; c < pause->chunk_count; c++)
        if (pause->chunks[c]->rests) {
            pleat__chunk *chunk = pause->chunks[c];
            pause->chunks[c] = pause->chunks[count];
            pause->chunks[count++] = chunk;
        }
    PLEAT_TRY(pleat__space_wake(runtime->space, pause->chunks, count));
    pleat_result result = copy_all(runtime, pause, false);
    if (result == PLEAT_OK)
        return PLEAT_OK;
    pleat_error why = *pleat_last_error();
    (void)!pleat__space_rest(runtime->space, pause->chunks, count);
    return pleat__fail_native(why.result, why.native, why.native_name, "%s", why.text);
}

/* With the turn. */
static pleat_result resume_one(pleat_runtime *runtime, pleat__pause *pause)
{
    uint64_t then = 0, bytes = 0;
    pleat_result result;
    for (size_t c = 0; c < pause->chunk_count; c++)
        bytes += pause->chunks[c]->pages * pleat__space_page_bytes(runtime->space);
    for (;;) {
        pleat__gate_leave(&runtime->gate);
        result = wake(runtime, pause);
        pleat__gate_enter(&runtime->gate);
        if (!is_shortage(result) || !pleat__tenancy_await(runtime->tenancy, bytes, &then))
            break;
    }
    pleat__gate_await_turn(&runtime->gate);
    pleat_error why = *pleat_last_error();
    pleat__tenancy_served(runtime->tenancy);
    if (result != PLEAT_OK)
        return pleat__fail_native(why.result, why.native, why.native_name, "resume: %s", why.text);
    end_pause(runtime, pause);
    return PLEAT_OK;
}

static pleat_result resume_locked(pleat_runtime *runtime, uint32_t tag)
{
    bool any = false;
    for (pleat__pause *at = runtime->pauses.first, *next; at != NULL; at = next) {
        next = at->next;
        if (tag != 0 && at->tag != tag)
            continue;
        PLEAT_TRY(resume_one(runtime, at));
        any = true;
    }
    return any ? PLEAT_OK : pleat__fail(PLEAT_E_STATE, "nothing is paused");
}

pleat_result pleat_resume(pleat_runtime *runtime, const char *tag_name)
{
    uint32_t tag;
    PLEAT__TRY_HERE(runtime);
    PLEAT_TRY(named_tag(tag_name, &tag));
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = resume_locked(runtime, tag);
    PLEAT_AUDIT(runtime->ops->audit == NULL || runtime->ops->audit(runtime->policy));
    pleat__gate_unlock(&runtime->gate);
    return result;
}

/* ---- moving ---- */

/* A pause of these chunks, with what lives on them. */
static pleat_result find_on(pleat_runtime *runtime, pleat__pause *pause,
                            pleat__chunk *const *chunks, size_t count)
{
    pause->chunks = pleat__arena_alloc(runtime->arena, count * sizeof *pause->chunks);
    if (pause->chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to move %zu chunks", count);
    pause->chunk_capacity = count;
    for (size_t c = 0; c < count; c++) {
        pause->chunks[pause->chunk_count++] = chunks[c];
        chunks[c]->listed = true;
    }
    return for_blocks(runtime, pause, false, list_copies);
}

static pleat_result begin_move(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                               pleat__pause **out)
{
    pleat__pause *pause = pleat__arena_calloc(runtime->arena, 1, sizeof *pause);
    if (pause == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to move %zu chunks", count);
    pleat_result result = find_on(runtime, pause, chunks, count);
    pause->frees = result == PLEAT_OK ? pause->copy_count + pause->copied_blocks : 0;
    if (result == PLEAT_OK)
        result = promise(runtime, pause);
    if (result == PLEAT_OK)
        result = runtime->ops->hold(runtime->policy);
    if (result != PLEAT_OK) {
        give_up(runtime, pause);
        unlist(pause);
        pause_free(runtime, pause);
        return result;
    }
    pause->next = runtime->pauses.first;
    runtime->pauses.first = pause;
    *out = pause;
    return PLEAT_OK;
}

/* The program knows nothing of it, so it must be awake again: a verb that failed once is tried
 * again.
 */
static pleat_result resume_surely(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat_result result = resume_one(runtime, pause);
    for (int again = 0; again < TRIES_MOST && result != PLEAT_OK; again++)
        result = resume_one(runtime, pause);
    return result;
}

static pleat_result move(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                         bool on_host)
{
    pleat__pause *pause;
    pleat__gate_leave(&runtime->gate);
    pleat_result result = pleat__space_prepare(runtime->space, chunks, count, on_host);
    pleat__gate_enter(&runtime->gate);
    if (result != PLEAT_OK)
        return result;
    result = begin_move(runtime, chunks, count, &pause);
    if (result == PLEAT_OK) {
        result = lay_to_rest(runtime, pause);
        if (result == PLEAT_OK)
            result = resume_surely(runtime, pause);
        else
            end_pause(runtime, pause);
    }
    pleat_error why = *pleat_last_error();
    pleat__gate_leave(&runtime->gate);
    pleat__space_unprepare(runtime->space, chunks, count);
    pleat__gate_enter(&runtime->gate);
    return result == PLEAT_OK
               ? PLEAT_OK
               : pleat__fail_native(why.result, why.native, why.native_name, "%s", why.text);
}

pleat_result pleat__pause_move(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                               bool on_host)
{
    for (size_t done = 0, part; done < count; done += part) {
        uint64_t bytes = 0;
        for (part = 0; done + part < count && (part == 0 || bytes < BLOCK_BYTES); part++)
            bytes += chunks[done + part]->pages * pleat__space_page_bytes(runtime->space);
        PLEAT_TRY(move(runtime, chunks + done, part, on_host));
    }
    return PLEAT_OK;
}

/* ---- its end ---- */

void pleat__pauses_trim(pleat_runtime *runtime)
{
    pleat__pauses *pauses = &runtime->pauses;
    /* Indices of those that are used stay as they are. */
    for (size_t b = 0; b < pauses->block_count; b++)
        if (pauses->blocks[b].used)
            return;
    while (pauses->block_count > 0)
        (void)runtime->vmm.ops->host_free(runtime->vmm.self, runtime->device,
                                          pauses->blocks[--pauses->block_count].memory);
}

void pleat__pauses_release(pleat_runtime *runtime)
{
    pleat__pauses *pauses = &runtime->pauses;
    while (pauses->first != NULL) {
        pleat__pause *pause = pauses->first;
        pauses->first = pause->next;
        give_blocks(runtime, pause);
        pause_free(runtime, pause);
    }
    pleat__pauses_trim(runtime);
    pleat__arena_free(runtime->arena, pauses->blocks);
    if (pauses->tagged.entries != NULL)
        pleat__address_map_destroy(&pauses->tagged);
    if (pauses->kept.entries != NULL)
        pleat__address_map_destroy(&pauses->kept);
}
