/*
 * shadow.c: the strict rules of pleat/vmm.h, kept once for all backends. See shadow.h.
 */
#include "shadow.h"

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/search.h>
#include <string.h>

typedef unsigned long long ull;

bool pleat__shadow_granular(const pleat__shadow *shadow, uint64_t bytes)
{
    return bytes != 0 && bytes % shadow->granularity == 0;
}

/* ---- reservations ---- */

/* The one that begins last at or before `va`, as an index + 1. */
static size_t before(const pleat__shadow *shadow, pleat_va va)
{
    size_t at;
    PLEAT__FIRST(at, shadow->reservation_count, shadow->reservations[at].va > va);
    return at;
}

bool pleat__shadow_find(const pleat__shadow *shadow, pleat_va va, pleat__shadow_span *span)
{
    size_t at = before(shadow, va);
    if (at == 0 || va - shadow->reservations[at - 1].va >= shadow->reservations[at - 1].bytes)
        return false;
    pleat__reservation *found = &shadow->reservations[at - 1];
    *span = (pleat__shadow_span){found, (va - found->va) / shadow->granularity, 1, 0};
    return true;
}

pleat_result pleat__shadow_check_reserve(const pleat__shadow *shadow, uint64_t bytes,
                                         uint64_t align)
{
    if (pleat__shadow_granular(shadow, bytes) && (align == 0 || pleat__is_power_of_two(align)))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INVALID,
                       "reserve: %llu bytes aligned to %llu: not on the granularity of %llu, or no "
                       "power of two",
                       (ull)bytes, (ull)align, (ull)shadow->granularity);
}

pleat_result pleat__shadow_add_range(pleat__shadow *shadow, pleat_va va, uint64_t bytes)
{
    uint64_t pages = bytes / shadow->granularity;
    PLEAT_TRY(pleat__arena_grow(shadow->arena, &shadow->reservations, &shadow->reservation_capacity,
                                shadow->reservation_count, sizeof *shadow->reservations));
    pleat__shadow_page *page = pleat__arena_calloc_sparse(shadow->arena, pages, sizeof *page);
    if (page == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "reserve: no host memory for a table of %llu pages",
                           (ull)pages);
    size_t at = before(shadow, va);
    memmove(&shadow->reservations[at + 1], &shadow->reservations[at],
            (shadow->reservation_count - at) * sizeof *shadow->reservations);
    shadow->reservations[at] = (pleat__reservation){va, bytes, pages, 0, page};
    shadow->reservation_count++;
    return PLEAT_OK;
}

pleat_result pleat__shadow_check_free(const pleat__shadow *shadow, pleat_va va, uint64_t bytes)
{
    size_t at = before(shadow, va);
    const pleat__reservation *found = at == 0 ? NULL : &shadow->reservations[at - 1];
    if (found == NULL || found->va != va || found->bytes != bytes)
        return pleat__fail(PLEAT_E_INVALID, "free_range: 0x%llx, %llu bytes: not what reserve gave",
                           (ull)va, (ull)bytes);
    if (found->mapped != 0)
        return pleat__fail(PLEAT_E_INVALID, "free_range: 0x%llx: %llu pages are mapped in it",
                           (ull)va, (ull)found->mapped);
    return PLEAT_OK;
}

void pleat__shadow_drop_range(pleat__shadow *shadow, pleat_va va)
{
    size_t at = before(shadow, va);
    PLEAT_CHECK(at != 0 && shadow->reservations[at - 1].va == va);
    pleat__arena_free(shadow->arena, shadow->reservations[at - 1].page);
    shadow->reservation_count--;
    memmove(&shadow->reservations[at - 1], &shadow->reservations[at],
            (shadow->reservation_count - (at - 1)) * sizeof *shadow->reservations);
}

/* The reservation that holds the whole of a range that is on the granularity. */
static pleat_result find_range(const pleat__shadow *shadow, const char *verb, pleat_va va,
                               uint64_t bytes, pleat__shadow_span *span)
{
    pleat__range range;
    if (!pleat__shadow_granular(shadow, bytes) || va % shadow->granularity != 0 ||
        !pleat__range_make(va, bytes, &range))
        return pleat__fail(PLEAT_E_INVALID,
                           "%s: 0x%llx, %llu bytes: not on the granularity of %llu", verb, (ull)va,
                           (ull)bytes, (ull)shadow->granularity);
    if (!pleat__shadow_find(shadow, va, span) ||
        bytes / shadow->granularity > span->reservation->pages - span->first)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx, %llu bytes: not within one reservation",
                           verb, (ull)va, (ull)bytes);
    span->count = bytes / shadow->granularity;
    return PLEAT_OK;
}

/* ---- pieces and handles ---- */

pleat_result pleat__shadow_check_create(const pleat__shadow *shadow, uint64_t bytes, uint32_t flags)
{
    uint32_t known = PLEAT_CREATE_SHAREABLE | PLEAT_CREATE_RDMA | PLEAT_CREATE_HOST;
    if (pleat__shadow_granular(shadow, bytes) && (flags & ~known) == 0)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INVALID,
                       "create: %llu bytes, flags 0x%x: not on the granularity of %llu, or unknown "
                       "flags",
                       (ull)bytes, flags, (ull)shadow->granularity);
}

static pleat_handle handle_of(const pleat__shadow *shadow, uint32_t slot)
{
    return (uint64_t)shadow->handles[slot - 1].generation << 32 | slot;
}

static void drop_if_unused(pleat__shadow *shadow, uint32_t index)
{
    pleat__shadow_piece *piece = pleat__shadow_piece_at(shadow, index);
    if (piece->handles != 0 || piece->maps != 0)
        return;
    if (shadow->dropped != NULL)
        shadow->dropped(shadow->owner, piece);
    piece->bytes = 0;
    piece->next_free = shadow->free_piece;
    shadow->free_piece = index;
    shadow->live_pieces--;
}

pleat_handle pleat__shadow_add_handle(pleat__shadow *shadow, uint32_t piece)
{
    uint32_t slot = shadow->free_handle;
    if (slot != 0) {
        shadow->free_handle = shadow->handles[slot - 1].next_free;
    } else {
        if (shadow->handle_count >= UINT32_MAX - 1 ||
            pleat__arena_grow(shadow->arena, &shadow->handles, &shadow->handle_capacity,
                              shadow->handle_count, sizeof *shadow->handles) != PLEAT_OK)
            return 0;
        shadow->handles[shadow->handle_count] = (pleat__shadow_handle){0};
        slot = (uint32_t)++shadow->handle_count;
    }
    shadow->handles[slot - 1].piece = piece;
    shadow->handles[slot - 1].generation++;
    pleat__shadow_piece_at(shadow, piece)->handles++;
    shadow->live_handles++;
    return handle_of(shadow, slot);
}

pleat_handle pleat__shadow_add_piece(pleat__shadow *shadow, const pleat__shadow_piece *piece)
{
    uint32_t index = shadow->free_piece;
    if (index == 0) {
        if (shadow->piece_count >= UINT32_MAX - 1 ||
            pleat__arena_grow(shadow->arena, &shadow->pieces, &shadow->piece_capacity,
                              shadow->piece_count, sizeof *shadow->pieces) != PLEAT_OK)
            return 0;
        index = (uint32_t)++shadow->piece_count;
    } else {
        shadow->free_piece = pleat__shadow_piece_at(shadow, index)->next_free;
    }
    pleat__shadow_piece *added = pleat__shadow_piece_at(shadow, index);
    *added = *piece;
    added->maps = added->handles = 0;
    pleat_handle handle = pleat__shadow_add_handle(shadow, index);
    if (handle == 0) {
        added->bytes = 0;
        added->next_free = shadow->free_piece;
        shadow->free_piece = index;
        return 0;
    }
    shadow->live_pieces++;
    return handle;
}

pleat_result pleat__shadow_piece_of(const pleat__shadow *shadow, const char *verb,
                                    pleat_handle handle, uint32_t *piece)
{
    uint64_t slot = handle & UINT32_MAX;
    if (slot == 0 || slot > shadow->handle_count || shadow->handles[slot - 1].piece == 0 ||
        handle_of(shadow, (uint32_t)slot) != handle)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is no handle", verb, (ull)handle);
    *piece = shadow->handles[slot - 1].piece;
    return PLEAT_OK;
}

void pleat__shadow_drop_handle(pleat__shadow *shadow, pleat_handle handle)
{
    pleat__shadow_handle *found = &shadow->handles[(handle & UINT32_MAX) - 1];
    uint32_t piece = found->piece;
    PLEAT_CHECK(piece != 0);
    found->piece = 0;
    found->next_free = shadow->free_handle;
    shadow->free_handle = (uint32_t)(handle & UINT32_MAX);
    shadow->live_handles--;
    pleat__shadow_piece_at(shadow, piece)->handles--;
    drop_if_unused(shadow, piece);
}

/* ---- maps ---- */

pleat_result pleat__shadow_check_map(const pleat__shadow *shadow, pleat_va va, uint64_t bytes,
                                     pleat_handle handle, pleat__shadow_span *span)
{
    uint32_t piece;
    PLEAT_TRY(find_range(shadow, "map", va, bytes, span));
    PLEAT_TRY(pleat__shadow_piece_of(shadow, "map", handle, &piece));
    if (pleat__shadow_piece_at(shadow, piece)->bytes != bytes)
        return pleat__fail(PLEAT_E_INVALID,
                           "map: %llu bytes of a handle of %llu: whole handles only", (ull)bytes,
                           (ull)pleat__shadow_piece_at(shadow, piece)->bytes);
    for (uint64_t i = 0; i < span->count; i++)
        if (span->reservation->page[span->first + i].piece != 0)
            return pleat__fail(PLEAT_E_INVALID, "map: 0x%llx is mapped",
                               (ull)(va + i * shadow->granularity));
    span->piece = piece;
    return PLEAT_OK;
}

pleat_result pleat__shadow_check_maps(const pleat__shadow *shadow, const char *verb, pleat_va va,
                                      uint64_t bytes, pleat__shadow_span *span)
{
    PLEAT_TRY(find_range(shadow, verb, va, bytes, span));
    const pleat__shadow_page *first = &span->reservation->page[span->first];
    const pleat__shadow_page *last = first + span->count - 1;
    for (const pleat__shadow_page *page = first; page <= last; page++)
        if (page->piece == 0)
            return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is not mapped", verb,
                               (ull)(va + (uint64_t)(page - first) * shadow->granularity));
    if (first->index != 0 || (last->index + 1ull) * shadow->granularity !=
                                 pleat__shadow_piece_at(shadow, last->piece)->bytes)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx, %llu bytes: cuts a map", verb, (ull)va,
                           (ull)bytes);
    return PLEAT_OK;
}

void pleat__shadow_set_map(pleat__shadow *shadow, const pleat__shadow_span *span)
{
    for (uint64_t i = 0; i < span->count; i++)
        span->reservation->page[span->first + i] =
            (pleat__shadow_page){.piece = span->piece, .index = (uint32_t)i & 0x3fffffff};
    span->reservation->mapped += span->count;
    shadow->mapped_pages += span->count;
    pleat__shadow_piece_at(shadow, span->piece)->maps++;
}

void pleat__shadow_clear_maps(pleat__shadow *shadow, const pleat__shadow_span *span)
{
    pleat__shadow_page *page = &span->reservation->page[span->first];
    for (uint64_t i = 0; i < span->count; i++) {
        pleat__shadow_page was = page[i];
        page[i] = (pleat__shadow_page){0};
        if (was.index != 0)
            continue;
        pleat__shadow_piece_at(shadow, was.piece)->maps--;
        /* A second map of the piece, further on in the range, still counts. */
        drop_if_unused(shadow, was.piece);
    }
    span->reservation->mapped -= span->count;
    shadow->mapped_pages -= span->count;
}
