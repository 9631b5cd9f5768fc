/*
 * graph_capture.c: memory of captured graphs.
 *
 * A graph that is replayed writes again wherever it wrote when it was captured, long after the
 * program has freed those tensors. So what a capturing stream allocates comes from one allocation
 * of its own, made before the capture begins and given back when the graph is no more; nothing else
 * ever lies in it. Within it memory is reused in the order of the stream, which a replay repeats;
 * from stream to stream it is not, nor is what was said to be used by another stream.
 *
 *   begin: an allocation like others (budget, policy), and an event on each stream, because nothing
 *          may be recorded on it until the end (pleat__gate_record)
 *   open:  streams -> pieces of it, by best fit; no verb, no event
 *   end:   the streams allocate like others again; pieces live on
 *   free:  given back when the last piece has been freed
 */
#include <runtime/face/graph_capture.h>

#include <internal/check.h>
#include <internal/error.h>
#include <runtime/base/bitset.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/memory/free_runs.h>

typedef struct piece {
    pleat__run run;
    uint32_t stream; /* index in the capture */
    bool shared;
    uint64_t requested;
} piece;

typedef struct stream_part {
    pleat_stream stream;
    pleat__free_runs free; /* that the stream has given back */
    uint32_t live;         /* pieces whose free must find room in the set */
} stream_part;

struct pleat_capture {
    pleat_capture *next;
    pleat__arena *arena;
    pleat_va base;
    uint32_t granules;
    uint32_t untouched; /* the first granule that was never used */
    bool open;
    bool released; /* the program has no handle of it any more */
    pleat__address_map pieces;
    pleat__bits begins; /* their first granules */
    stream_part *streams;
    size_t stream_count, stream_capacity;
};

pleat_capture *pleat__capture_of_stream(pleat_capture *captures, pleat_stream stream)
{
    for (pleat_capture *at = captures; at != NULL; at = at->next)
        for (size_t s = 0; at->open && s < at->stream_count; s++)
            if (at->streams[s].stream == stream)
                return at;
    return NULL;
}

pleat_capture *pleat__capture_of(pleat_capture *captures, pleat_va address)
{
    pleat_capture *at = captures;
    while (at != NULL && address - at->base >= (uint64_t)at->granules << PLEAT__GRANULE_SHIFT)
        at = at->next;
    return at;
}

/* ---- pieces ---- */

static uint32_t index_of(const pleat_capture *capture, pleat_stream stream)
{
    uint32_t s = 0;
    while (capture->streams[s].stream != stream)
        s++;
    return s;
}

static pleat_result take_run(pleat_capture *capture, stream_part *part, uint32_t granules,
                             pleat__run *run)
{
    *run = pleat__free_runs_best(&part->free, granules).run;
    if (run->count != 0) {
        run->count = granules;
        pleat__free_runs_carve(&part->free, *run);
        return PLEAT_OK;
    }
    /* What the stream has given back at the end of what was used goes on in the rest. */
    pleat__run last = {capture->untouched, 0};
    if (capture->untouched != 0)
        last = pleat__free_runs_at(&part->free, capture->untouched - 1);
    uint32_t new = granules - last.count;
    if (new > capture->granules - capture->untouched)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY,
                           "the capture has used %llu of the %llu bytes it was begun with: begin "
                           "it with more",
                           (unsigned long long)capture->untouched << PLEAT__GRANULE_SHIFT,
                           (unsigned long long)capture->granules << PLEAT__GRANULE_SHIFT);
    if (last.count != 0)
        pleat__free_runs_carve(&part->free, last);
    *run = (pleat__run){capture->untouched - last.count, granules};
    capture->untouched += new;
    return PLEAT_OK;
}

pleat_result pleat__capture_alloc(pleat_capture *capture, uint64_t bytes, pleat_stream stream,
                                  pleat_va *address)
{
    uint64_t granules = (bytes >> PLEAT__GRANULE_SHIFT) + (bytes % PLEAT__GRANULE_BYTES != 0);
    uint32_t index = index_of(capture, stream);
    stream_part *part = &capture->streams[index];
    /* Room for the carving, and for each piece, whose free must find it. */
    PLEAT_TRY(pleat__free_runs_reserve(&part->free, part->live + 3));
    PLEAT_TRY(pleat__address_map_reserve(&capture->pieces));
    piece *made = pleat__arena_calloc(capture->arena, 1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a captured allocation");
    pleat_result result = take_run(
        capture, part, granules < UINT32_MAX ? (uint32_t)granules : UINT32_MAX, &made->run);
    if (result != PLEAT_OK) {
        pleat__arena_free(capture->arena, made);
        return result;
    }
    made->stream = index;
    made->requested = bytes;
    part->live++;
    *address = capture->base + ((uint64_t)made->run.begin << PLEAT__GRANULE_SHIFT);
    pleat__address_map_insert(&capture->pieces, *address, made);
    pleat__bits_set(&capture->begins, made->run.begin);
    return PLEAT_OK;
}

pleat_result pleat__capture_free(pleat_capture *capture, pleat_va address)
{
    piece *gone = pleat__address_map_remove(&capture->pieces, address);
    if (gone == NULL)
        return PLEAT_E_NOT_FOUND;
    stream_part *part = &capture->streams[gone->stream];
    part->live--;
    pleat__bits_clear(&capture->begins, gone->run.begin);
    if (!gone->shared)
        pleat__free_runs_add(&part->free, gone->run, true, true);
    pleat__arena_free(capture->arena, gone);
    return PLEAT_OK;
}

/* The piece that holds an address. */
static piece *piece_of(const pleat_capture *capture, pleat_va address)
{
    uint64_t granule = (address - capture->base) >> PLEAT__GRANULE_SHIFT;
    uint64_t begin = pleat__bits_at_most(&capture->begins, granule);
    if (begin == PLEAT__BITS_NONE)
        return NULL;
    piece *before =
        pleat__address_map_find(&capture->pieces, capture->base + (begin << PLEAT__GRANULE_SHIFT));
    return granule - begin < before->run.count ? before : NULL;
}

pleat_result pleat__capture_share(pleat_capture *capture, pleat_va address)
{
    piece *found = piece_of(capture, address);
    if (found == NULL)
        return PLEAT_E_NOT_FOUND;
    found->shared = true;
    return PLEAT_OK;
}

pleat_result pleat__capture_block_of(const pleat_capture *capture, pleat_va address,
                                     pleat_block *block)
{
    const piece *found = piece_of(capture, address);
    if (found == NULL)
        return PLEAT_E_NOT_FOUND;
    *block = (pleat_block){.address =
                               capture->base + ((uint64_t)found->run.begin << PLEAT__GRANULE_SHIFT),
                           .bytes = (uint64_t)found->run.count << PLEAT__GRANULE_SHIFT,
                           .requested = found->requested,
                           .stream = capture->streams[found->stream].stream,
                           .allocated = 1};
    return PLEAT_OK;
}

/* ---- life ---- */

static void free_record(pleat_capture *capture)
{
    pleat__arena *arena = capture->arena;
    for (uint64_t i = 0; capture->pieces.arena != NULL && i <= capture->pieces.mask; i++)
        pleat__arena_free(arena, capture->pieces.entries[i].value);
    for (size_t s = 0; s < capture->stream_count; s++)
        pleat__free_runs_release(&capture->streams[s].free);
    pleat__address_map_destroy(&capture->pieces);
    pleat__bits_destroy(arena, &capture->begins);
    pleat__arena_free(arena, capture->streams);
    pleat__arena_free(arena, capture);
}

static pleat_result must_not_capture(const pleat_runtime *runtime, pleat_stream stream)
{
    return pleat__capture_of_stream(runtime->captures, stream) == NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_STATE, "stream %#llx captures already",
                             (unsigned long long)stream);
}

static pleat_result add_stream(pleat_runtime *runtime, pleat_capture *capture, pleat_stream stream)
{
    PLEAT_TRY(must_not_capture(runtime, stream));
    PLEAT_TRY(pleat__arena_grow(runtime->arena, &capture->streams, &capture->stream_capacity,
                                capture->stream_count, sizeof *capture->streams));
    PLEAT_TRY(pleat__gate_capture(&runtime->gate, stream));
    capture->streams[capture->stream_count] = (stream_part){.stream = stream};
    pleat__free_runs_init(&capture->streams[capture->stream_count++].free, runtime->arena);
    return PLEAT_OK;
}

static pleat_result make(pleat_runtime *runtime, pleat_stream stream, uint64_t bytes,
                         pleat_capture **out)
{
    /* Before anything is asked of the stream for the memory. */
    PLEAT_TRY(must_not_capture(runtime, stream));
    pleat_capture *made = pleat__arena_calloc(runtime->arena, 1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a capture");
    *made = (pleat_capture){.arena = runtime->arena,
                            .granules = (uint32_t)(bytes >> PLEAT__GRANULE_SHIFT),
                            .open = true};
    pleat_result result = pleat__address_map_create(runtime->arena, &made->pieces);
    if (result == PLEAT_OK)
        result = pleat__bits_create(runtime->arena, made->granules, &made->begins);
    if (result != PLEAT_OK)
        goto no_record;
    result = pleat__alloc_locked(runtime, bytes, stream, &made->base);
    if (result != PLEAT_OK)
        goto no_record;
    result = add_stream(runtime, made, stream);
    if (result != PLEAT_OK)
        goto no_stream;
    made->next = runtime->captures;
    runtime->captures = made;
    *out = made;
    return PLEAT_OK;
no_stream:
    (void)!pleat__free_locked(runtime, made->base);
no_record:
    free_record(made);
    return result;
}

/* More than there is, or than granules are counted, is refused as an allocation is, before tables
 * for it are made; where the program makes room for it, no longer. */
static pleat_result check_bytes(pleat_runtime *runtime, pleat_stream stream, uint64_t bytes)
{
    bool is_counted = bytes <= (uint64_t)UINT32_MAX << PLEAT__GRANULE_SHIFT;
    pleat_va address;
    if (is_counted && bytes <= runtime->limits.cap_bytes)
        return PLEAT_OK;
    PLEAT_TRY(must_not_capture(runtime, stream));
    PLEAT_TRY(pleat__alloc_locked(runtime, bytes, stream, &address));
    PLEAT_TRY(pleat__free_locked(runtime, address));
    return is_counted
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_LIMIT, "a capture of %llu bytes", (unsigned long long)bytes);
}

pleat_result pleat_capture_begin(pleat_runtime *runtime, pleat_stream stream, uint64_t bytes,
                                 pleat_capture **out)
{
    PLEAT__TRY_HERE(runtime);
    uint64_t rounded = (bytes + PLEAT__GRANULE_BYTES - 1) & ~(uint64_t)(PLEAT__GRANULE_BYTES - 1);
    if (bytes == 0)
        return pleat__fail(PLEAT_E_INVALID, "a capture of 0 bytes");
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = check_bytes(runtime, stream, bytes);
    if (result == PLEAT_OK)
        result = make(runtime, stream, rounded, out);
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_capture_add(pleat_runtime *runtime, pleat_capture *capture, pleat_stream stream)
{
    PLEAT__TRY_HERE(runtime);
    pleat__gate_lock_turn(&runtime->gate);
    pleat_result result = capture->open ? add_stream(runtime, capture, stream)
                                        : pleat__fail(PLEAT_E_STATE, "the capture has ended");
    pleat__gate_unlock(&runtime->gate);
    return result;
}

pleat_result pleat_capture_end(pleat_runtime *runtime, pleat_capture *capture, uint64_t *used_bytes)
{
    PLEAT__TRY_HERE(runtime);
    pleat_result result = PLEAT_OK;
    pleat__gate_lock_turn(&runtime->gate);
    if (!capture->open)
        result = pleat__fail(PLEAT_E_STATE, "the capture has ended already");
    for (size_t s = 0; capture->open && s < capture->stream_count; s++)
        pleat__gate_capture_end(&runtime->gate, capture->streams[s].stream);
    capture->open = false;
    if (used_bytes != NULL)
        *used_bytes = (uint64_t)capture->untouched << PLEAT__GRANULE_SHIFT;
    pleat__gate_unlock(&runtime->gate);
    return result;
}

void pleat__capture_end_of_use(pleat_runtime *runtime, pleat_capture *capture)
{
    if (!capture->released || capture->pieces.count != 0)
        return;
    pleat_capture **at = &runtime->captures;
    while (*at != capture)
        at = &(*at)->next;
    *at = capture->next;
    pleat_result result = pleat__free_locked(runtime, capture->base);
    PLEAT_CHECK(result == PLEAT_OK);
    free_record(capture);
}

pleat_result pleat_capture_free(pleat_runtime *runtime, pleat_capture *capture)
{
    PLEAT__TRY_HERE(runtime);
    pleat_result result = PLEAT_OK;
    if (capture == NULL)
        return PLEAT_OK;
    pleat__gate_lock(&runtime->gate);
    if (capture->open) {
        result = pleat__fail(PLEAT_E_STATE, "the capture has not ended");
    } else {
        capture->released = true;
        pleat__capture_end_of_use(runtime, capture);
    }
    pleat__gate_unlock(&runtime->gate);
    return result;
}
