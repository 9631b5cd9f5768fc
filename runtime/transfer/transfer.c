/*
 * transfer.c: see transfer.h.
 */
#include <runtime/transfer/transfer.h>

#include <internal/error.h>
#include <string.h>
#include <vmm/table.h>

#define PIECE_BYTES (UINT64_C(32) << 20) /* at most, so that each stream has some (D215) */

/* ---- the pieces ---- */

pleat_result pleat__transfer_add(pleat__arena *arena, pleat__transfer *transfer, pleat_va from,
                                 pleat_va to)
{
    pleat__transfer_piece *last =
        transfer->count > 0 ? &transfer->pieces[transfer->count - 1] : NULL;
    if (last != NULL && last->address + last->bytes == from) {
        last->bytes += to - from;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(arena, &transfer->pieces, &transfer->capacity, transfer->count,
                                sizeof *transfer->pieces));
    transfer->pieces[transfer->count++] =
        (pleat__transfer_piece){.address = from, .bytes = to - from};
    return PLEAT_OK;
}

void pleat__transfer_release(pleat__transfer *transfer, pleat__pinned *pinned)
{
    for (size_t b = 0; b < transfer->block_count; b++)
        pleat__pinned_give(pinned, transfer->blocks[b]);
    pleat__arena_free(pinned->arena, transfer->blocks);
    pleat__arena_free(pinned->arena, transfer->pieces);
    *transfer = (pleat__transfer){0};
}

/* ---- copying ---- */

static pleat_result make_stream(const pleat__copying *copying, pleat__copy_stream *made)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    PLEAT_TRY(ops->stream_create(copying->vmm.self, copying->device, &made->stream));
    for (int t = 0; t < PLEAT__COPY_TAKES; t++)
        PLEAT_TRY(ops->event_create(copying->vmm.self, copying->device, &made->points[t]));
    return PLEAT_OK;
}

/* Each with what it is waited for by, so that nothing is begun that cannot be. */
static pleat_result make_streams(pleat__copying *copying)
{
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++)
        PLEAT_TRY(make_stream(copying, &copying->streams[s]));
    return PLEAT_OK;
}

static void destroy_streams(const pleat__copying *copying)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    for (int s = PLEAT__COPY_STREAMS - 1; s >= 0; s--) {
        const pleat__copy_stream *made = &copying->streams[s];
        for (int t = 0; t < PLEAT__COPY_TAKES; t++)
            if (made->points[t] != 0)
                (void)ops->event_destroy(copying->vmm.self, made->points[t]);
        if (made->stream != 0)
            (void)ops->stream_destroy(copying->vmm.self, copying->device, made->stream);
    }
}

static pleat_result copy_piece(const pleat__copying *copying, const pleat__copy_stream *by,
                               const pleat__transfer_piece *piece)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    uint64_t host = (uint64_t)(uintptr_t)piece->host;
    if (copying->out)
        return ops->copy(copying->vmm.self, copying->device, by->stream, host, piece->address,
                         piece->bytes);
    return (by->by_threads ? ops->copy_by_threads : ops->copy)(
        copying->vmm.self, copying->device, by->stream, piece->address, host, piece->bytes);
}

/* The points that the streams have reached. */
static pleat_result record(const pleat__copying *copying, pleat_event *events)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++) {
        PLEAT_TRY(ops->event_create(copying->vmm.self, copying->device, &events[s]));
        PLEAT_TRY(ops->event_record(copying->vmm.self, events[s], copying->streams[s].stream));
    }
    return PLEAT_OK;
}

static void destroy(const pleat__copying *copying, const pleat_event *events)
{
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++)
        if (events[s] != 0)
            (void)copying->vmm.ops->event_destroy(copying->vmm.self, events[s]);
}

static pleat_result wait(const pleat__copying *copying, const pleat_event *events)
{
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++)
        PLEAT_TRY(pleat__vmm_wait(copying->vmm, events[s]));
    return PLEAT_OK;
}

static pleat_result add_mark(pleat__copying *copying, pleat_va from)
{
    PLEAT_TRY(pleat__arena_grow(copying->arena, &copying->marks, &copying->mark_capacity,
                                copying->mark_count, sizeof *copying->marks));
    pleat__copy_mark *mark = &copying->marks[copying->mark_count++];
    *mark = (pleat__copy_mark){.from = from};
    return record(copying, mark->events);
}

static pleat__copying start(const pleat__pinned *pinned, bool out)
{
    return (pleat__copying){
        .vmm = pinned->vmm, .device = pinned->device, .arena = pinned->arena, .out = out};
}

/* ---- outward ---- */

/* Where what was copied already lies, and what no mark covers yet. */
typedef struct placing {
    pleat__pinned *pinned;
    pleat__transfer placed;
    char *at; /* in the last block */
    uint64_t left;
    uint64_t part_bytes;
    pleat_va unmarked_from;
    uint64_t unmarked_bytes;
} placing;

static pleat_result next_block(placing *to)
{
    size_t index;
    pleat__transfer *placed = &to->placed;
    PLEAT_TRY(pleat__arena_grow(to->pinned->arena, &placed->blocks, &placed->block_capacity,
                                placed->block_count, sizeof *placed->blocks));
    PLEAT_TRY(pleat__pinned_take(to->pinned, &index));
    placed->blocks[placed->block_count++] = index;
    to->at = to->pinned->blocks[index].memory;
    to->left = to->pinned->blocks[index].bytes;
    return PLEAT_OK;
}

/* As much of a piece as fits, at most PIECE_BYTES, gets a place; `rest` is what is left of it. */
static pleat_result place_part(placing *to, pleat__transfer_piece *rest,
                               const pleat__transfer_piece **part)
{
    pleat__transfer *placed = &to->placed;
    if (to->left == 0)
        PLEAT_TRY(next_block(to));
    uint64_t bytes = rest->bytes < to->left ? rest->bytes : to->left;
    bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    PLEAT_TRY(pleat__arena_grow(to->pinned->arena, &placed->pieces, &placed->capacity,
                                placed->count, sizeof *placed->pieces));
    placed->pieces[placed->count] =
        (pleat__transfer_piece){.address = rest->address, .bytes = bytes, .host = to->at};
    *part = &placed->pieces[placed->count++];
    rest->address += bytes;
    rest->bytes -= bytes;
    to->at += bytes;
    to->left -= bytes;
    return PLEAT_OK;
}

static pleat_result mark_part(pleat__copying *copying, placing *to)
{
    PLEAT_TRY(add_mark(copying, to->unmarked_from));
    to->unmarked_bytes = 0;
    return PLEAT_OK;
}

static pleat_result copy_part(pleat__copying *copying, placing *to, pleat__transfer_piece *rest)
{
    const pleat__transfer_piece *part;
    PLEAT_TRY(place_part(to, rest, &part));
    PLEAT_TRY(copy_piece(copying, &copying->streams[copying->next++ % PLEAT__COPY_STREAMS], part));
    to->unmarked_from = to->unmarked_bytes == 0 ? part->address : to->unmarked_from;
    to->unmarked_bytes += part->bytes;
    return to->unmarked_bytes >= to->part_bytes ? mark_part(copying, to) : PLEAT_OK;
}

static pleat_result copy_all(pleat__copying *copying, placing *to, const pleat__transfer *transfer)
{
    for (size_t p = 0; p < transfer->count; p++)
        for (pleat__transfer_piece rest = transfer->pieces[p]; rest.bytes > 0;)
            PLEAT_TRY(copy_part(copying, to, &rest));
    return to->unmarked_bytes > 0 ? mark_part(copying, to) : PLEAT_OK;
}

static uint64_t bytes_of(const pleat__transfer *transfer)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < transfer->count; p++)
        bytes += transfer->pieces[p].bytes;
    return bytes;
}

pleat_result pleat__copying_out(pleat__copying *copying, pleat__pinned *pinned,
                                pleat__transfer *transfer, uint64_t part_bytes)
{
    placing to = {.pinned = pinned, .part_bytes = part_bytes};
    *copying = start(pinned, true);
    if (transfer->count == 0)
        return PLEAT_OK;
    PLEAT_TRY(make_streams(copying));
    pleat_result result = pleat__pinned_open(pinned, bytes_of(transfer));
    if (result == PLEAT_OK)
        result = copy_all(copying, &to, transfer);
    copying->marked_all = result == PLEAT_OK;
    pleat__pinned_close(pinned);
    /* Also where it failed: copies may be under way to its blocks. */
    pleat__arena_free(pinned->arena, transfer->pieces);
    *transfer = to.placed;
    return result;
}

/* ---- inward ---- */

pleat_result pleat__copying_in(pleat__copying *copying, const pleat__pinned *pinned,
                               const pleat__transfer *transfer)
{
    *copying = start(pinned, false);
    copying->transfer = transfer;
    copying->streams[PLEAT__COPY_STREAMS - 1].by_threads = pinned->by_threads;
    return transfer->count == 0 ? PLEAT_OK : make_streams(copying);
}

static uint64_t under_way(const pleat__copy_stream *stream)
{
    return stream->given - stream->over;
}

/* The stream with the fewest takes under way, or that was given the fewest; NULL: none has room. */
static pleat__copy_stream *find_room(pleat__copying *copying)
{
    pleat__copy_stream *least = &copying->streams[0];
    for (int s = 1; s < PLEAT__COPY_STREAMS; s++) {
        pleat__copy_stream *stream = &copying->streams[s];
        uint64_t has = under_way(stream), least_has = under_way(least);
        if (has < least_has || (has == least_has && stream->given < least->given))
            least = stream;
    }
    return under_way(least) < PLEAT__COPY_TAKES ? least : NULL;
}

static bool is_next_below(const pleat__copying *copying, pleat_va end)
{
    const pleat__transfer *transfer = copying->transfer;
    if (copying->next == transfer->count)
        return false;
    const pleat__transfer_piece *next = &transfer->pieces[copying->next];
    return next->address + next->bytes <= end;
}

/* The next pieces, a long one or several short ones. */
static pleat_result give(pleat__copying *copying, pleat__copy_stream *stream, pleat_va end)
{
    size_t t = (size_t)(stream->given % PLEAT__COPY_TAKES);
    uint64_t bytes = 0;
    do {
        const pleat__transfer_piece *piece = &copying->transfer->pieces[copying->next++];
        PLEAT_TRY(copy_piece(copying, stream, piece));
        bytes += piece->bytes;
    } while (is_next_below(copying, end) &&
             bytes + copying->transfer->pieces[copying->next].bytes <= PIECE_BYTES);
    PLEAT_TRY(copying->vmm.ops->event_record(copying->vmm.self, stream->points[t], stream->stream));
    stream->bytes[t] = bytes;
    stream->given++;
    return PLEAT_OK;
}

static void pass(pleat__copy_stream *stream)
{
    stream->copied += stream->bytes[stream->over++ % PLEAT__COPY_TAKES];
}

static pleat_result pass_those_over(const pleat__copying *copying, pleat__copy_stream *stream)
{
    while (stream->over < stream->given) {
        pleat_result result = copying->vmm.ops->event_query(
            copying->vmm.self, stream->points[stream->over % PLEAT__COPY_TAKES]);
        if (result != PLEAT_OK)
            return result == PLEAT_E_NOT_READY ? PLEAT_OK : result;
        pass(stream);
    }
    return PLEAT_OK;
}

/* Until a take is over of the stream that has copied more: it is the next one that has nothing to
 * do. pre: all have takes under way. */
static pleat_result wait_for_faster(pleat__copying *copying)
{
    pleat__copy_stream *faster = &copying->streams[0];
    for (int s = 1; s < PLEAT__COPY_STREAMS; s++)
        if (copying->streams[s].copied > faster->copied)
            faster = &copying->streams[s];
    PLEAT_TRY(pleat__vmm_wait(copying->vmm, faster->points[faster->over % PLEAT__COPY_TAKES]));
    pass(faster);
    return PLEAT_OK;
}

static pleat_result give_what_fits(pleat__copying *copying, pleat_va end)
{
    pleat__copy_stream *free_one;
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++)
        PLEAT_TRY(pass_those_over(copying, &copying->streams[s]));
    while (is_next_below(copying, end) && (free_one = find_room(copying)) != NULL)
        PLEAT_TRY(give(copying, free_one, end));
    return PLEAT_OK;
}

static pleat_result copy_in(pleat__copying *copying, pleat_va end)
{
    PLEAT_TRY(give_what_fits(copying, end));
    while (end == UINT64_MAX && is_next_below(copying, end)) {
        PLEAT_TRY(wait_for_faster(copying));
        PLEAT_TRY(give_what_fits(copying, end));
    }
    return PLEAT_OK;
}

/* ---- either way ---- */

pleat_result pleat__copying_reach(pleat__copying *copying, pleat_va end)
{
    if (!copying->out)
        return copy_in(copying, end);
    while (copying->passed < copying->mark_count && copying->marks[copying->passed].from < end) {
        PLEAT_TRY(wait(copying, copying->marks[copying->passed].events));
        copying->passed++;
    }
    return PLEAT_OK;
}

static pleat_result wait_for_stream(const pleat__copying *copying, const pleat__copy_stream *of)
{
    PLEAT_TRY(copying->vmm.ops->event_record(copying->vmm.self, of->points[0], of->stream));
    return pleat__vmm_wait(copying->vmm, of->points[0]);
}

pleat_result pleat__copying_wait(pleat__copying *copying)
{
    pleat_error why = {.result = PLEAT_OK};
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++) {
        const pleat__copy_stream *stream = &copying->streams[s];
        /* One without all its points was given nothing. */
        if (stream->points[PLEAT__COPY_TAKES - 1] == 0)
            continue;
        pleat_result over = wait_for_stream(copying, stream);
        if (why.result == PLEAT_OK && over != PLEAT_OK)
            why = pleat__failure(over);
    }
    return pleat__fail_again(&why);
}

/* When marks cover all that was copied, and have been passed, nothing runs any more. */
static bool is_over(const pleat__copying *copying)
{
    return copying->marked_all && copying->passed == copying->mark_count;
}

pleat_result pleat__copying_end(pleat__copying *copying, pleat_result result)
{
    pleat_error why = pleat__failure(result);
    pleat_result over = is_over(copying) ? PLEAT_OK : pleat__copying_wait(copying);
    if (result == PLEAT_OK)
        why = pleat__failure(over);
    while (copying->mark_count > 0)
        destroy(copying, copying->marks[--copying->mark_count].events);
    pleat__arena_free(copying->arena, copying->marks);
    destroy_streams(copying);
    return pleat__fail_again(&why);
}
