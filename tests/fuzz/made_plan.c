/*
 * made_plan.c: fuzz target: a plan file made of fields. The input says what is drawn: a plan that
 * mostly holds, its tables, and then up to three numbers of the file that become others. Bytes
 * alone seldom make a file whose counts, times and places agree so far that anything is laid out.
 */
#include "oracle.h"

#define ROWS_MOST    16u
#define NUMBERS_MOST 192u
#define TABLES_MOST  20u

/* Rows of numbers as the file has them; a text where `text` is not NULL. */
typedef struct table {
    const char *text;
    uint32_t count;
    uint64_t numbers[NUMBERS_MOST];
} table;

typedef struct making {
    fuzz_draws *draws;
    uint64_t chunk, pages, chunks, events;
    uint32_t version, streams, handles, lanes, first, steady, maps;
    pleat__slot slots[2][ROWS_MOST];
    table tables[TABLES_MOST];
    uint32_t table_count;
} making;

static uint32_t draw(making *m, uint32_t bound)
{
    return fuzz_draw(m->draws, bound);
}

/* --- tables ------------------------------------------------------------------------------------*/

static table *begin_table(making *m)
{
    FUZZ_CHECK(m->table_count < TABLES_MOST, "%u tables", m->table_count);
    table *made = &m->tables[m->table_count++];
    *made = (table){.count = 0};
    return made;
}

static void put(table *to, uint64_t number)
{
    FUZZ_CHECK(to->count < NUMBERS_MOST, "%u numbers", to->count);
    to->numbers[to->count++] = number;
}

static uint64_t or_zero(uint64_t value, uint64_t none)
{
    return value == none ? 0 : value + 1;
}

static void put_slots(making *m, int which, uint32_t count)
{
    table *to = begin_table(m);
    for (uint32_t i = 0; i < count; i++) {
        const pleat__slot *slot = &m->slots[which][i];
        const uint64_t row[] = {slot->size,
                                or_zero(slot->place, PLEAT__NOWHERE),
                                slot->alloc_at,
                                or_zero(slot->free_at, PLEAT__NEVER),
                                0,
                                0,
                                slot->stream,
                                slot->class,
                                slot->small,
                                or_zero(slot->lane, PLEAT__NO_LANE),
                                slot->window};
        for (size_t k = 0; k < sizeof row / sizeof *row; k++)
            put(to, row[k]);
    }
}

/* --- memory ------------------------------------------------------------------------------------*/

static void make_memory(making *m, table *handles, table *maps)
{
    uint32_t chunks_of[8];
    m->handles = 1 + draw(m, 5);
    for (uint32_t h = 0; h < m->handles; h++) {
        chunks_of[h] = 1 + draw(m, 4);
        m->chunks += chunks_of[h];
        put(handles, chunks_of[h]);
    }
    for (uint32_t i = 0; i < m->handles + draw(m, 3); i++) {
        uint32_t h = i < m->handles ? i : draw(m, m->handles);
        m->pages += draw(m, 8) == 0;
        put(maps, m->pages);
        put(maps, h);
        put(maps, i >= m->handles);
        m->pages += chunks_of[h];
        m->maps++;
    }
}

/* --- requests ----------------------------------------------------------------------------------*/

static void class_of(making *m, pleat__slot *slot, bool first)
{
    uint32_t dice = draw(m, 12);
    if (dice == 0)
        slot->class = PLEAT__CLASS_PERSISTENT;
    else if (dice == 1 && !first)
        slot->class = PLEAT__CLASS_DYNAMIC;
    else
        slot->class =
            slot->free_at > slot->alloc_at ? PLEAT__CLASS_TRANSIENT : PLEAT__CLASS_CROSSING;
    if (slot->class == PLEAT__CLASS_PERSISTENT || dice == 2)
        slot->free_at = PLEAT__NEVER;
    if (slot->class != PLEAT__CLASS_DYNAMIC)
        return;
    slot->place = PLEAT__NOWHERE;
    slot->window = draw(m, 3);
    slot->lane = m->lanes > 0 && draw(m, 2) == 0 ? draw(m, m->lanes) : PLEAT__NO_LANE;
}

static bool overlap(const pleat__slot *a, const pleat__slot *b)
{
    return a->place < b->place + b->size && b->place < a->place + a->size;
}

/* A place where nothing of the same sequence is, if a few draws find one: lives are not looked at,
 * so that some plans hold and some do not. */
static void place_slot(making *m, pleat__slot *slots, uint32_t index)
{
    pleat__slot *slot = &slots[index];
    for (int tries = 0; tries < 4; tries++) {
        slot->place = (uint64_t)draw(m, (uint32_t)(m->pages * m->chunk / 512)) * 512;
        bool clear = slot->place + slot->size <= m->pages * m->chunk;
        for (uint32_t i = 0; i < index && clear; i++)
            clear = slots[i].place == PLEAT__NOWHERE || !overlap(slot, &slots[i]);
        if (clear || draw(m, 16) == 0)
            return;
    }
    slot->place = PLEAT__NOWHERE;
}

static void make_slots(making *m, int which, uint32_t count, uint32_t events)
{
    for (uint32_t i = 0; i < count; i++) {
        pleat__slot *slot = &m->slots[which][i];
        uint64_t most = m->pages * m->chunk / 512;
        *slot = (pleat__slot){.size = 512ull * draw(m, most < 12 ? (uint32_t)most + 1 : 12) +
                                      (draw(m, 4) == 0 ? 1 + draw(m, 511) : 0),
                              .alloc_at = 2 * i + draw(m, 2),
                              .free_at = draw(m, events),
                              .stream = (uint16_t)draw(m, m->streams),
                              .small = (uint8_t)draw(m, 2),
                              .lane = PLEAT__NO_LANE};
        if (which == 0 && slot->free_at <= slot->alloc_at)
            slot->free_at = PLEAT__NEVER;
        place_slot(m, m->slots[which], i);
        class_of(m, slot, which == 0);
    }
}

static void put_lanes(making *m)
{
    table *to = begin_table(m);
    for (uint32_t i = 0; i < m->lanes; i++) {
        put(to, (uint64_t)draw(m, (uint32_t)(m->pages * m->chunk / 512)) * 512);
        put(to, 512ull * draw(m, 8));
        /* Half of them are always there: what lies in one must live within it. */
        uint32_t begin = draw(m, (uint32_t)m->events);
        put(to, begin);
        put(to, draw(m, 2) == 0 ? begin : draw(m, (uint32_t)m->events + 1));
    }
}

/* --- recipes -----------------------------------------------------------------------------------*/

/* Sizes as k0 + k1 x, rounded up, at a reference of x = `at`; constant where that does not come
 * out. */
static void put_function(making *m, table *to, uint64_t size, uint32_t at, bool constant)
{
    uint64_t linear = constant || draw(m, 4) == 0 ? 0 : size / at, rest = size - linear * at;
    put(to, 2 * rest);
    put(to, 2 * linear);
    for (int i = 2; i < PLEAT__TERMS; i++)
        put(to, 0);
    put(to, 1);
    put(to, 1);
    put(to, draw(m, 8) == 0 ? size + 1 + 512ull * draw(m, 8) : 0);
    put(to, draw(m, 2) == 0 ? size / (1 + draw(m, 4)) : 0);
}

static uint32_t put_functions(making *m, table *functions, table *of, int which, uint32_t count,
                              uint32_t at, uint32_t prologue, uint32_t used)
{
    for (uint32_t i = 0; i < count; i++) {
        const pleat__slot *slot = &m->slots[which][i];
        bool none = slot->class == PLEAT__CLASS_DYNAMIC || draw(m, 8) == 0 || used == ROWS_MOST;
        bool constant = slot->class == PLEAT__CLASS_PERSISTENT || (which == 1 && i < prologue);
        put(of, none ? 0 : used + 1);
        if (which == 0)
            put(of, draw(m, 3) == 0 || m->steady == 0 ? 0 : 1 + draw(m, m->steady));
        if (none)
            continue;
        put_function(m, functions, slot->size, at, constant);
        used++;
    }
    return used;
}

static void put_recipe(making *m)
{
    table *numbers = begin_table(m), *functions = begin_table(m), *first = begin_table(m);
    table *steady = begin_table(m);
    uint32_t prologue = draw(m, m->steady + 1), at = 1 + draw(m, 5);
    uint32_t used = put_functions(m, functions, first, 0, m->first, at, prologue, 0);
    used = put_functions(m, functions, steady, 1, m->steady, at, prologue, used);
    const uint64_t row[] = {prologue, draw(m, 2),     m->pages + draw(m, 8), used, at, 1,
                            1,        1 + draw(m, 4), at + draw(m, 64),      1};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        put(numbers, row[i]);
}

static void put_reuse(making *m)
{
    table *count = begin_table(m), *rows = begin_table(m);
    uint32_t window = 0;
    put(count, 1 + draw(m, 4));
    for (uint32_t i = 0; i < count->numbers[0]; i++) {
        put(rows, window += draw(m, 2));
        put(rows, (uint64_t)draw(m, (uint32_t)(m->pages * m->chunk / 512)) * 512);
        put(rows, 512ull * (1 + draw(m, 4)));
    }
}

static void put_handed(making *m)
{
    table *count = begin_table(m), *rows = begin_table(m);
    uint32_t at = 0;
    put(count, 1 + draw(m, 3));
    for (uint32_t i = 0; i < count->numbers[0]; i++) {
        put(rows, at += draw(m, 4));
        put(rows, 1);
        at += 2;
    }
}

/* --- the file ----------------------------------------------------------------------------------*/

static void make_plan(making *m)
{
    static const uint32_t versions[] = {1, 3, 4, 7};
    m->version = versions[draw(m, 4)];
    m->chunk = 512ull << draw(m, 5);
    m->streams = 1 + (draw(m, 3) == 0 ? draw(m, 3) : 0);
    m->first = draw(m, 6);
    m->steady = 1 + draw(m, 12);
    m->lanes = draw(m, 3) == 0 ? draw(m, 3) : 0;
    m->events = 2 * m->steady + draw(m, 4);
    table *header = begin_table(m), *options = begin_table(m), *streams = begin_table(m);
    table *handles = begin_table(m), *maps = begin_table(m);
    options->text = "made";
    for (uint32_t i = 0; i < m->streams; i++)
        put(streams, i);
    make_memory(m, handles, maps);
    make_slots(m, 0, m->first, 2 * m->first + 1);
    make_slots(m, 1, m->steady, (uint32_t)m->events);
    put_lanes(m);
    put_slots(m, 0, m->first);
    put_slots(m, 1, m->steady);
    const uint64_t row[] = {m->version,
                            9,
                            0,
                            m->first + m->steady,
                            m->first,
                            m->chunk,
                            0,
                            0,
                            0,
                            m->pages * m->chunk,
                            m->chunks * m->chunk,
                            2 * m->first + 1,
                            m->events,
                            0,
                            m->streams,
                            m->handles,
                            m->maps,
                            m->lanes,
                            m->first,
                            0,
                            m->steady,
                            0};
    header->text = "pleat plan";
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        put(header, row[i]);
    if (m->version == 7)
        put_recipe(m);
    if (m->version == 3)
        put_reuse(m);
    if (m->version == 4)
        put_handed(m);
}

/* One number of the file becomes another: near it, or at an edge of some width. */
static void spoil(making *m)
{
    table *spoilt = &m->tables[draw(m, m->table_count)];
    if (spoilt->count == 0)
        return;
    uint64_t *number = &spoilt->numbers[draw(m, spoilt->count)];
    switch (draw(m, 6)) {
    case 0:
        *number += 1;
        return;
    case 1:
        *number -= 1;
        return;
    case 2:
        *number = (UINT64_C(1) << draw(m, 64)) - draw(m, 2);
        return;
    case 3:
        *number *= UINT64_C(1) << draw(m, 48);
        return;
    case 4:
        *number = UINT64_MAX - 512ull * draw(m, 8);
        return;
    default:
        *number = fuzz_bytes(m->draws, 1 + draw(m, 8));
    }
}

static void pack_table(const table *from, msgpack_packer *packer)
{
    if (from->count == 0 && from->text == NULL)
        return;
    msgpack_pack_array(packer, from->count + (from->text != NULL));
    if (from->text != NULL) {
        msgpack_pack_str(packer, strlen(from->text));
        msgpack_pack_str_body(packer, from->text, strlen(from->text));
    }
    for (uint32_t i = 0; i < from->count; i++)
        msgpack_pack_uint64(packer, from->numbers[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static making m;
    fuzz_draws draws = {data, size};
    m = (making){.draws = &draws};
    make_plan(&m);
    for (uint32_t i = draw(&m, 8) == 0 ? 1 + draw(&m, 3) : 0; i > 0; i--)
        spoil(&m);
    msgpack_sbuffer buffer;
    msgpack_packer packer;
    msgpack_sbuffer_init(&buffer);
    msgpack_packer_init(&packer, &buffer, msgpack_sbuffer_write);
    for (uint32_t i = 0; i < m.table_count; i++)
        pack_table(&m.tables[i], &packer);
    size_t whole;
    uint8_t *bytes = fuzz_with_checksum((uint8_t *)buffer.data, buffer.size, &whole);
    pleat_plan *plan;
    pleat_result result = pleat__plan_decode("the file", bytes, whole, &plan);
    fuzz_answer(result, "the file");
    if (result == PLEAT_OK) {
        oracle_check(plan);
        oracle_check_instances(plan, &draws);
        pleat_plan_free(plan);
    }
    free(bytes);
    msgpack_sbuffer_destroy(&buffer);
    return 0;
}
