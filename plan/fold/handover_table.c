/*
 * handover_table.c: see handover_table.h.
 */
#include <plan/fold/handover_table.h>

#include <internal/error.h>
#include <string.h>

#define NONE        UINT32_MAX
#define MOST_ROWS   (1u << 25)
#define ROW_NUMBERS 2

pleat_result pleat__handed_keep(const pleat__layout *layout, const uint8_t *handed,
                                pleat_plan *plan)
{
    size_t capacity = 0;
    uint32_t *chunks;
    PLEAT_TRY(pleat__plan_page_table(plan, plan->arena, &chunks));
    pleat_result result = PLEAT_OK;
    for (uint32_t page = 0; page < layout->base_pages && result == PLEAT_OK; page++) {
        if (!handed[page])
            continue;
        pleat__handed *last = plan->handed_count ? &plan->handed[plan->handed_count - 1] : NULL;
        if (last != NULL && last->first_chunk + last->chunks == chunks[page]) {
            last->chunks++;
            continue;
        }
        result = pleat__arena_grow(plan->arena, &plan->handed, &capacity, plan->handed_count,
                                   sizeof *plan->handed);
        if (result == PLEAT_OK)
            plan->handed[plan->handed_count++] = (pleat__handed){chunks[page], 1};
    }
    pleat__arena_free(plan->arena, chunks);
    return result;
}

uint64_t pleat__handed_bytes(const pleat_plan *plan)
{
    uint64_t chunks = 0;
    for (uint32_t i = 0; i < plan->handed_count; i++)
        chunks += plan->handed[i].chunks;
    return chunks * plan->chunk_bytes;
}

/* Whether a slot takes a chunk that was another stream's; they are its stream's then. */
static bool takes_over(const pleat_plan *plan, const uint32_t *pages, const pleat__slot *slot,
                       uint32_t *owners)
{
    uint64_t first = slot->place / plan->chunk_bytes;
    uint64_t last = (slot->place + slot->size - 1) / plan->chunk_bytes;
    bool takes = false;
    for (uint64_t page = first; page <= last; page++) {
        uint32_t *owner = &owners[pages[page]];
        takes |= *owner != NONE && *owner != slot->stream;
        *owner = slot->stream;
    }
    return takes;
}

pleat_result pleat__handed_waits(const pleat_plan *plan, pleat__arena *scratch, uint32_t *waits)
{
    *waits = 0;
    if (plan->handed_count == 0)
        return PLEAT_OK;
    uint32_t *pages;
    uint64_t chunks = plan->physical_bytes / plan->chunk_bytes;
    uint32_t *owners = pleat__arena_alloc(scratch, (chunks + 1) * sizeof *owners);
    if (owners == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a plan's chunks");
    memset(owners, 0xff, chunks * sizeof *owners);
    pleat_result result = pleat__plan_page_table(plan, scratch, &pages);
    /* The second time round everything has an owner. */
    for (uint32_t round = 0; round < 2 && result == PLEAT_OK; round++) {
        *waits = 0;
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            if (plan->steady.slots[i].place != PLEAT__NOWHERE && plan->steady.slots[i].size != 0)
                *waits += takes_over(plan, pages, &plan->steady.slots[i], owners);
    }
    *waits = (*waits + plan->unroll - 1) / plan->unroll;
    if (result == PLEAT_OK)
        pleat__arena_free(scratch, pages);
    pleat__arena_free(scratch, owners);
    return result;
}

/* --- in a file ---------------------------------------------------------------------------------*/

static void give_row(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__handed *handed = &((const pleat_plan *)context)->handed[index];
    row[0] = handed->first_chunk;
    row[1] = handed->chunks;
}

void pleat__handed_put(pleat__pack_writer *writer, const pleat_plan *plan)
{
    pleat__pack_put_count(writer, plan->handed_count);
    pleat__pack_put_rows(writer, plan->handed_count, ROW_NUMBERS, give_row, plan);
}

static pleat_result take_row(void *context, uint64_t index, const uint64_t *row)
{
    pleat_plan *plan = context;
    if (row[0] > UINT32_MAX || row[1] > UINT32_MAX)
        return pleat__fail(PLEAT_E_INPUT, "a number of the row is out of range");
    plan->handed[index] = (pleat__handed){(uint32_t)row[0], (uint32_t)row[1]};
    return PLEAT_OK;
}

pleat_result pleat__handed_take(pleat__pack_reader *pack, pleat_plan *plan)
{
    PLEAT_TRY(pleat__pack_count(pack, MOST_ROWS, "runs of chunks that are handed over",
                                &plan->handed_count));
    plan->handed =
        pleat__arena_calloc(plan->arena, plan->handed_count + 1ull, sizeof *plan->handed);
    if (plan->handed == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u runs of chunks",
                           plan->handed_count);
    return pleat__pack_rows(pack, plan->handed_count, ROW_NUMBERS, take_row, plan);
}
