/*
 * transfer.c: see transfer.h.
 */
#include <runtime/transfer/transfer.h>

#include <internal/error.h>
#include <string.h>

#define PIECE_BYTES (UINT64_C(32) << 20) /* at most, so that each stream has some */

/* ---- the pieces ---- */

pleat_result pleat__transfer_add(pleat__arena *arena, pleat__transfer *transfer, pleat_va from,
                                 pleat_va to)
{
    pleat__piece *last = transfer->count > 0 ? &transfer->pieces[transfer->count - 1] : NULL;
    if (last != NULL && last->address + last->bytes == from) {
        last->bytes += to - from;
        return PLEAT_OK;
    }
    PLEAT_TRY(pleat__arena_grow(arena, &transfer->pieces, &transfer->capacity, transfer->count,
                                sizeof *transfer->pieces));
    transfer->pieces[transfer->count++] = (pleat__piece){.address = from, .bytes = to - from};
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

/* Each stream with the event by which it is waited for, so that nothing is begun that cannot be. */
static pleat_result make_streams(pleat__copying *copying)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    for (int s = 0; s < PLEAT__COPY_STREAMS; s++, copying->stream_count++) {
        PLEAT_TRY(ops->stream_create(copying->vmm.self, copying->device, &copying->streams[s]));
        pleat_result result =
            ops->event_create(copying->vmm.self, copying->device, &copying->ends[s]);
        if (result != PLEAT_OK) {
            (void)ops->stream_destroy(copying->vmm.self, copying->device, copying->streams[s]);
            return result;
        }
    }
    return PLEAT_OK;
}

static pleat_result copy_piece(pleat__copying *copying, const pleat__piece *piece)
{
    uint64_t host = (uint64_t)(uintptr_t)piece->host;
    PLEAT_TRY(copying->vmm.ops->copy(
        copying->vmm.self, copying->device, copying->streams[copying->next % PLEAT__COPY_STREAMS],
        copying->out ? host : piece->address, copying->out ? piece->address : host, piece->bytes));
    copying->next++;
    return PLEAT_OK;
}

/* The points that the streams have reached. */
static pleat_result record(const pleat__copying *copying, pleat_event *events)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    for (int s = 0; s < copying->stream_count; s++) {
        PLEAT_TRY(ops->event_create(copying->vmm.self, copying->device, &events[s]));
        PLEAT_TRY(ops->event_record(copying->vmm.self, events[s], copying->streams[s]));
    }
    return PLEAT_OK;
}

static void destroy(const pleat__copying *copying, const pleat_event *events)
{
    for (int s = 0; s < copying->stream_count; s++)
        if (events[s] != 0)
            (void)copying->vmm.ops->event_destroy(copying->vmm.self, events[s]);
}

static pleat_result wait(const pleat__copying *copying, const pleat_event *events)
{
    for (int s = 0; s < copying->stream_count; s++)
        PLEAT_TRY(copying->vmm.ops->event_wait(copying->vmm.self, events[s]));
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
static pleat_result place_part(placing *to, pleat__piece *rest, const pleat__piece **part)
{
    pleat__transfer *placed = &to->placed;
    if (to->left == 0)
        PLEAT_TRY(next_block(to));
    uint64_t bytes = rest->bytes < to->left ? rest->bytes : to->left;
    bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    PLEAT_TRY(pleat__arena_grow(to->pinned->arena, &placed->pieces, &placed->capacity,
                                placed->count, sizeof *placed->pieces));
    placed->pieces[placed->count] =
        (pleat__piece){.address = rest->address, .bytes = bytes, .host = to->at};
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

static pleat_result copy_part(pleat__copying *copying, placing *to, pleat__piece *rest)
{
    const pleat__piece *part;
    PLEAT_TRY(place_part(to, rest, &part));
    PLEAT_TRY(copy_piece(copying, part));
    to->unmarked_from = to->unmarked_bytes == 0 ? part->address : to->unmarked_from;
    to->unmarked_bytes += part->bytes;
    return to->unmarked_bytes >= to->part_bytes ? mark_part(copying, to) : PLEAT_OK;
}

static pleat_result copy_all(pleat__copying *copying, placing *to, const pleat__transfer *transfer)
{
    for (size_t p = 0; p < transfer->count; p++)
        for (pleat__piece rest = transfer->pieces[p]; rest.bytes > 0;)
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
    return transfer->count == 0 ? PLEAT_OK : make_streams(copying);
}

static pleat_result copy_in(pleat__copying *copying, pleat_va end)
{
    const pleat__transfer *transfer = copying->transfer;
    while (copying->next < transfer->count &&
           transfer->pieces[copying->next].address + transfer->pieces[copying->next].bytes <= end)
        PLEAT_TRY(copy_piece(copying, &transfer->pieces[copying->next]));
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

pleat_result pleat__copying_wait(pleat__copying *copying)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    pleat_result result = PLEAT_OK;
    for (int s = 0; s < copying->stream_count; s++) {
        pleat_result over =
            ops->event_record(copying->vmm.self, copying->ends[s], copying->streams[s]);
        if (over == PLEAT_OK)
            over = ops->event_wait(copying->vmm.self, copying->ends[s]);
        result = result == PLEAT_OK ? over : result;
    }
    return result;
}

/* When marks cover all that was copied, and have been passed, nothing runs any more. */
static bool is_over(const pleat__copying *copying)
{
    return copying->marked_all && copying->passed == copying->mark_count;
}

pleat_result pleat__copying_end(pleat__copying *copying, pleat_result result)
{
    const pleat_vmm_ops *ops = copying->vmm.ops;
    pleat_error why = *pleat_last_error();
    pleat_result over = is_over(copying) ? PLEAT_OK : pleat__copying_wait(copying);
    if (result == PLEAT_OK && over != PLEAT_OK)
        why = *pleat_last_error();
    while (copying->mark_count > 0)
        destroy(copying, copying->marks[--copying->mark_count].events);
    pleat__arena_free(copying->arena, copying->marks);
    while (copying->stream_count > 0) {
        int s = --copying->stream_count;
        (void)ops->event_destroy(copying->vmm.self, copying->ends[s]);
        (void)ops->stream_destroy(copying->vmm.self, copying->device, copying->streams[s]);
    }
    result = result == PLEAT_OK ? over : result;
    return result == PLEAT_OK ? PLEAT_OK : pleat__fail_again(&why);
}
