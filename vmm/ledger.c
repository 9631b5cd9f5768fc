/*
 * ledger.c: the strict rules of pleat/vmm.h, kept once for all backends. See ledger.h.
 */
#include "ledger.h"

#include <internal/check.h>
#include <internal/error.h>
#include <internal/range.h>
#include <internal/search.h>
#include <string.h>

typedef unsigned long long ull;

bool pleat__ledger_granular(const pleat__ledger *ledger, uint64_t bytes)
{
    return bytes != 0 && bytes % ledger->granularity == 0;
}

/* ---- reservations ---- */

/* The one that begins last at or before `va`, as an index + 1. */
static size_t before(const pleat__ledger *ledger, pleat_va va)
{
    size_t at;
    PLEAT__FIRST(at, ledger->reservation_count, ledger->reservations[at].va > va);
    return at;
}

bool pleat__ledger_find(const pleat__ledger *ledger, pleat_va va, pleat__place *place)
{
    size_t at = before(ledger, va);
    if (at == 0 || va - ledger->reservations[at - 1].va >= ledger->reservations[at - 1].bytes)
        return false;
    pleat__reservation *found = &ledger->reservations[at - 1];
    *place = (pleat__place){found, (va - found->va) / ledger->granularity, 1, 0};
    return true;
}

pleat_result pleat__ledger_check_reserve(const pleat__ledger *ledger, uint64_t bytes,
                                         uint64_t align)
{
    if (pleat__ledger_granular(ledger, bytes) && (align == 0 || pleat__is_power_of_two(align)))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INVALID,
                       "reserve: %llu bytes aligned to %llu: not on the granularity of %llu, or no "
                       "power of two",
                       (ull)bytes, (ull)align, (ull)ledger->granularity);
}

pleat_result pleat__ledger_add_range(pleat__ledger *ledger, pleat_va va, uint64_t bytes)
{
    uint64_t pages = bytes / ledger->granularity;
    PLEAT_TRY(pleat__arena_grow(ledger->arena, &ledger->reservations, &ledger->reservation_capacity,
                                ledger->reservation_count, sizeof *ledger->reservations));
    pleat__ledger_page *page = pleat__arena_calloc_sparse(ledger->arena, pages, sizeof *page);
    if (page == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "reserve: no host memory for a table of %llu pages",
                           (ull)pages);
    size_t at = before(ledger, va);
    memmove(&ledger->reservations[at + 1], &ledger->reservations[at],
            (ledger->reservation_count - at) * sizeof *ledger->reservations);
    ledger->reservations[at] = (pleat__reservation){va, bytes, pages, 0, page};
    ledger->reservation_count++;
    return PLEAT_OK;
}

pleat_result pleat__ledger_check_free(const pleat__ledger *ledger, pleat_va va, uint64_t bytes)
{
    size_t at = before(ledger, va);
    const pleat__reservation *found = at == 0 ? NULL : &ledger->reservations[at - 1];
    if (found == NULL || found->va != va || found->bytes != bytes)
        return pleat__fail(PLEAT_E_INVALID, "free_range: 0x%llx, %llu bytes: not what reserve gave",
                           (ull)va, (ull)bytes);
    if (found->mapped != 0)
        return pleat__fail(PLEAT_E_INVALID, "free_range: 0x%llx: %llu pages are mapped in it",
                           (ull)va, (ull)found->mapped);
    return PLEAT_OK;
}

void pleat__ledger_drop_range(pleat__ledger *ledger, pleat_va va)
{
    size_t at = before(ledger, va);
    PLEAT_CHECK(at != 0 && ledger->reservations[at - 1].va == va);
    pleat__arena_free(ledger->arena, ledger->reservations[at - 1].page);
    ledger->reservation_count--;
    memmove(&ledger->reservations[at - 1], &ledger->reservations[at],
            (ledger->reservation_count - (at - 1)) * sizeof *ledger->reservations);
}

/* The reservation that holds the whole of a range that is on the granularity. */
static pleat_result find_range(const pleat__ledger *ledger, const char *verb, pleat_va va,
                               uint64_t bytes, pleat__place *place)
{
    pleat__range range;
    if (!pleat__ledger_granular(ledger, bytes) || va % ledger->granularity != 0 ||
        !pleat__range_make(va, bytes, &range))
        return pleat__fail(PLEAT_E_INVALID,
                           "%s: 0x%llx, %llu bytes: not on the granularity of %llu", verb, (ull)va,
                           (ull)bytes, (ull)ledger->granularity);
    if (!pleat__ledger_find(ledger, va, place) ||
        bytes / ledger->granularity > place->reservation->pages - place->first)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx, %llu bytes: not within one reservation",
                           verb, (ull)va, (ull)bytes);
    place->count = bytes / ledger->granularity;
    return PLEAT_OK;
}

/* ---- pieces and handles ---- */

static pleat_handle handle_of(const pleat__ledger *ledger, uint32_t slot)
{
    return (uint64_t)ledger->handles[slot - 1].generation << 32 | slot;
}

static void drop_if_unused(pleat__ledger *ledger, uint32_t index)
{
    pleat__piece *piece = pleat__piece_at(ledger, index);
    if (piece->handles != 0 || piece->maps != 0)
        return;
    if (ledger->dropped != NULL)
        ledger->dropped(ledger->owner, piece);
    piece->bytes = 0;
    piece->next_free = ledger->free_piece;
    ledger->free_piece = index;
    ledger->live_pieces--;
}

pleat_handle pleat__ledger_add_handle(pleat__ledger *ledger, uint32_t piece)
{
    uint32_t slot = ledger->free_handle;
    if (slot != 0) {
        ledger->free_handle = ledger->handles[slot - 1].next_free;
    } else {
        if (ledger->handle_count >= UINT32_MAX - 1 ||
            pleat__arena_grow(ledger->arena, &ledger->handles, &ledger->handle_capacity,
                              ledger->handle_count, sizeof *ledger->handles) != PLEAT_OK)
            return 0;
        ledger->handles[ledger->handle_count] = (pleat__ledger_handle){0};
        slot = (uint32_t)++ledger->handle_count;
    }
    ledger->handles[slot - 1].piece = piece;
    ledger->handles[slot - 1].generation++;
    pleat__piece_at(ledger, piece)->handles++;
    ledger->live_handles++;
    return handle_of(ledger, slot);
}

pleat_handle pleat__ledger_add_piece(pleat__ledger *ledger, const pleat__piece *piece)
{
    uint32_t index = ledger->free_piece;
    if (index == 0) {
        if (ledger->piece_count >= UINT32_MAX - 1 ||
            pleat__arena_grow(ledger->arena, &ledger->pieces, &ledger->piece_capacity,
                              ledger->piece_count, sizeof *ledger->pieces) != PLEAT_OK)
            return 0;
        index = (uint32_t)++ledger->piece_count;
    } else {
        ledger->free_piece = pleat__piece_at(ledger, index)->next_free;
    }
    pleat__piece *added = pleat__piece_at(ledger, index);
    *added = *piece;
    added->maps = added->handles = 0;
    pleat_handle handle = pleat__ledger_add_handle(ledger, index);
    if (handle == 0) {
        added->bytes = 0;
        added->next_free = ledger->free_piece;
        ledger->free_piece = index;
        return 0;
    }
    ledger->live_pieces++;
    return handle;
}

pleat_result pleat__ledger_piece_of(const pleat__ledger *ledger, const char *verb,
                                    pleat_handle handle, uint32_t *piece)
{
    uint64_t slot = handle & UINT32_MAX;
    if (slot == 0 || slot > ledger->handle_count || ledger->handles[slot - 1].piece == 0 ||
        handle_of(ledger, (uint32_t)slot) != handle)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is no handle", verb, (ull)handle);
    *piece = ledger->handles[slot - 1].piece;
    return PLEAT_OK;
}

void pleat__ledger_drop_handle(pleat__ledger *ledger, pleat_handle handle)
{
    pleat__ledger_handle *found = &ledger->handles[(handle & UINT32_MAX) - 1];
    uint32_t piece = found->piece;
    PLEAT_CHECK(piece != 0);
    found->piece = 0;
    found->next_free = ledger->free_handle;
    ledger->free_handle = (uint32_t)(handle & UINT32_MAX);
    ledger->live_handles--;
    pleat__piece_at(ledger, piece)->handles--;
    drop_if_unused(ledger, piece);
}

/* ---- maps ---- */

pleat_result pleat__ledger_check_map(const pleat__ledger *ledger, pleat_va va, uint64_t bytes,
                                     pleat_handle handle, pleat__place *place)
{
    uint32_t piece;
    PLEAT_TRY(find_range(ledger, "map", va, bytes, place));
    PLEAT_TRY(pleat__ledger_piece_of(ledger, "map", handle, &piece));
    if (pleat__piece_at(ledger, piece)->bytes != bytes)
        return pleat__fail(PLEAT_E_INVALID,
                           "map: %llu bytes of a handle of %llu: whole handles only", (ull)bytes,
                           (ull)pleat__piece_at(ledger, piece)->bytes);
    for (uint64_t i = 0; i < place->count; i++)
        if (place->reservation->page[place->first + i].piece != 0)
            return pleat__fail(PLEAT_E_INVALID, "map: 0x%llx is mapped",
                               (ull)(va + i * ledger->granularity));
    place->piece = piece;
    return PLEAT_OK;
}

pleat_result pleat__ledger_check_maps(const pleat__ledger *ledger, const char *verb, pleat_va va,
                                      uint64_t bytes, pleat__place *place)
{
    PLEAT_TRY(find_range(ledger, verb, va, bytes, place));
    const pleat__ledger_page *first = &place->reservation->page[place->first];
    const pleat__ledger_page *last = first + place->count - 1;
    for (const pleat__ledger_page *page = first; page <= last; page++)
        if (page->piece == 0)
            return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx is not mapped", verb,
                               (ull)(va + (uint64_t)(page - first) * ledger->granularity));
    if (first->index != 0 ||
        (last->index + 1ull) * ledger->granularity != pleat__piece_at(ledger, last->piece)->bytes)
        return pleat__fail(PLEAT_E_INVALID, "%s: 0x%llx, %llu bytes: cuts a map", verb, (ull)va,
                           (ull)bytes);
    return PLEAT_OK;
}

void pleat__ledger_set_map(pleat__ledger *ledger, const pleat__place *place)
{
    for (uint64_t i = 0; i < place->count; i++)
        place->reservation->page[place->first + i] =
            (pleat__ledger_page){.piece = place->piece, .index = (uint32_t)i & 0x3fffffff};
    place->reservation->mapped += place->count;
    ledger->mapped_pages += place->count;
    pleat__piece_at(ledger, place->piece)->maps++;
}

void pleat__ledger_clear_maps(pleat__ledger *ledger, const pleat__place *place)
{
    pleat__ledger_page *page = &place->reservation->page[place->first];
    for (uint64_t i = 0; i < place->count; i++) {
        pleat__ledger_page was = page[i];
        page[i] = (pleat__ledger_page){0};
        if (was.index != 0)
            continue;
        pleat__piece_at(ledger, was.piece)->maps--;
        /* A second map of the piece, further on in the range, still counts. */
        drop_if_unused(ledger, was.piece);
    }
    place->reservation->mapped -= place->count;
    ledger->mapped_pages -= place->count;
}
