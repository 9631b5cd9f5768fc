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

/* Where the blocks are filled to. */
typedef struct filling {
    char *at;
    uint64_t left;
} filling;

static pleat_result next_block(pleat__transfer *transfer, pleat__pinned *pinned, uint64_t bytes,
                               filling *to)
{
    size_t index;
    PLEAT_TRY(pleat__arena_grow(pinned->arena, &transfer->blocks, &transfer->block_capacity,
                                transfer->block_count, sizeof *transfer->blocks));
    PLEAT_TRY(pleat__pinned_take(pinned, bytes, &index));
    transfer->blocks[transfer->block_count++] = index;
    const pleat__pinned_block *block = &pinned->blocks[index];
    *to = (filling){.at = block->memory, .left = block->bytes};
    return PLEAT_OK;
}

static uint64_t bytes_of(const pleat__transfer *transfer)
{
    uint64_t bytes = 0;
    for (size_t p = 0; p < transfer->count; p++)
        bytes += transfer->pieces[p].bytes;
    return bytes;
}

/* The part of a piece that fits, at most PIECE_BYTES; the rest of it joins the list. */
static pleat_result place_part(pleat__transfer *placed, pleat__arena *arena, pleat__piece *rest,
                               filling *to)
{
    uint64_t bytes = rest->bytes < to->left ? rest->bytes : to->left;
    bytes = bytes < PIECE_BYTES ? bytes : PIECE_BYTES;
    PLEAT_TRY(pleat__arena_grow(arena, &placed->pieces, &placed->capacity, placed->count,
                                sizeof *placed->pieces));
    placed->pieces[placed->count++] =
        (pleat__piece){.address = rest->address, .bytes = bytes, .host = to->at};
    rest->address += bytes;
    rest->bytes -= bytes;
    to->at += bytes;
    to->left -= bytes;
    return PLEAT_OK;
}

pleat_result pleat__transfer_reserve(pleat__transfer *transfer, pleat__pinned *pinned)
{
    filling to = {0};
    uint64_t left = bytes_of(transfer);
    pleat__transfer placed = {0};
    pleat_result result = PLEAT_OK;
    for (size_t p = 0; p < transfer->count; p++)
        for (pleat__piece rest = transfer->pieces[p]; rest.bytes > 0 && result == PLEAT_OK;) {
            if (to.left == 0)
                result = next_block(transfer, pinned, left, &to);
            uint64_t before = rest.bytes;
            if (result == PLEAT_OK)
                result = place_part(&placed, pinned->arena, &rest, &to);
            left -= before - rest.bytes;
        }
    if (result == PLEAT_OK) {
        pleat__piece *whole = transfer->pieces;
        transfer->pieces = placed.pieces;
        transfer->count = placed.count;
        transfer->capacity = placed.capacity;
        placed.pieces = whole;
    }
    pleat__arena_free(pinned->arena, placed.pieces);
    return result;
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

static pleat_result copy_next(pleat__copying *copying)
{
    const pleat__piece *piece = &copying->transfer->pieces[copying->next];
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

/* All pieces, with their marks. */
static pleat_result copy_out(pleat__copying *copying, uint64_t part_bytes)
{
    const pleat__transfer *transfer = copying->transfer;
    uint64_t bytes = 0;
    pleat_va from = 0;
    while (copying->next < transfer->count) {
        const pleat__piece *piece = &transfer->pieces[copying->next];
        from = bytes == 0 ? piece->address : from;
        bytes += piece->bytes;
        PLEAT_TRY(copy_next(copying));
        if (bytes < part_bytes && copying->next < transfer->count)
            continue;
        PLEAT_TRY(add_mark(copying, from));
        bytes = 0;
    }
    return PLEAT_OK;
}

pleat_result pleat__copying_begin(pleat__copying *copying, const pleat__pinned *pinned,
                                  const pleat__transfer *transfer, bool out, uint64_t part_bytes)
{
    *copying = (pleat__copying){.vmm = pinned->vmm,
                                .device = pinned->device,
                                .arena = pinned->arena,
                                .transfer = transfer,
                                .out = out};
    if (transfer->count == 0)
        return PLEAT_OK;
    PLEAT_TRY(make_streams(copying));
    return out ? copy_out(copying, part_bytes) : PLEAT_OK;
}

static pleat_result copy_in(pleat__copying *copying, pleat_va end)
{
    const pleat__transfer *transfer = copying->transfer;
    while (copying->next < transfer->count &&
           transfer->pieces[copying->next].address + transfer->pieces[copying->next].bytes <= end)
        PLEAT_TRY(copy_next(copying));
    return PLEAT_OK;
}

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

/* Outward, when all marks have been passed, nothing runs any more. */
static bool is_over(const pleat__copying *copying)
{
    return copying->out && copying->next == copying->transfer->count &&
           copying->passed == copying->mark_count;
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
    return result == PLEAT_OK
               ? PLEAT_OK
               : pleat__fail_native(why.result, why.native, why.native_name, "%s", why.text);
}
