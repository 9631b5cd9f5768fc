/*
 * pickle.c: see pickle.h.
 *
 * A pickle is a program for a stack machine with a memo (Python's pickletools module describes each
 * opcode). This machine knows those that make built-in values. It never recurses, so nesting costs
 * memory only, and all memory it takes is counted against PLEAT__PICKLE_MEMORY: no opcode takes
 * memory in proportion to a number it merely claims.
 *
 * Small pieces come from blocks that are given back only with the arena: a snapshot has millions.
 */
#include <plan/trace/pickle.h>

#include <internal/error.h>

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define BLOCK_MOST   (1u << 20)
#define BLOCK_LEAST  (1u << 14)
#define PIECES       8     /* of a block, at least: larger ones are allocated by themselves */
#define WORD_PLACES  1024u /* of the hash table of words, of which at most 255 are used */
#define WORD_LONGEST 32u
#define UNSET        UINT8_MAX /* type of a memo entry that holds nothing */

typedef pleat__pickle_value value;
typedef pleat__pickle_node node;

typedef struct machine {
    const char *path;
    const uint8_t *bytes;
    size_t size;
    size_t at;        /* next byte */
    size_t opcode_at; /* byte of the opcode that runs */
    bool stopped;
    pleat__arena *arena;
    uint64_t taken; /* bytes of host memory */
    uint8_t *block; /* small pieces are cut from it */
    size_t block_left;
    size_t block_bytes; /* of each: some times the file's */
    value *stack;
    size_t depth;
    size_t stack_capacity;
    size_t *marks; /* stack depths at MARK opcodes that are still open */
    size_t mark_count;
    size_t mark_capacity;
    value *memo;
    size_t memo_size; /* entries below this index may be set */
    size_t memo_set;  /* how many are */
    size_t memo_capacity;
    const char *const *words;
    uint8_t word_places[WORD_PLACES];
} machine;

/* What an opcode does; `argument` is its operand's width, a type, a number of items. */
typedef struct operation {
    const char *name;
    pleat_result (*run)(machine *m, unsigned argument);
    unsigned argument;
} operation;

static const operation operations[256];

PLEAT_PRINTF(2, 3) static pleat_result fail(const machine *m, const char *format, ...)
{
    char text[256];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *name = m->opcode_at < m->size ? operations[m->bytes[m->opcode_at]].name : NULL;
    return pleat__fail(PLEAT_E_INPUT, "'%s': byte %zu: %s%s%s", m->path, m->opcode_at,
                       name ? name : "", name ? ": " : "", text);
}

static pleat_result count_taken(machine *m, uint64_t bytes)
{
    if (bytes > PLEAT__PICKLE_MEMORY - m->taken)
        return fail(m,
                    "the values take more than %llu MiB of host memory; record fewer events, or "
                    "none of their stacks",
                    PLEAT__PICKLE_MEMORY >> 20);
    m->taken += bytes;
    return PLEAT_OK;
}

/* Memory for as long as the values live. */
static pleat_result take(machine *m, size_t size, void *out)
{
    void *piece;
    size = (size + 15) & ~(size_t)15;
    if (size > m->block_bytes / PIECES || size > m->block_left) {
        size_t whole = size > m->block_bytes / PIECES ? size : m->block_bytes;
        PLEAT_TRY(count_taken(m, whole));
        piece = pleat__arena_alloc(m->arena, whole);
        if (piece == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its values", m->path);
        if (size <= m->block_bytes / PIECES) {
            m->block = (uint8_t *)piece + size;
            m->block_left = m->block_bytes - size;
        }
    } else {
        piece = m->block;
        m->block += size;
        m->block_left -= size;
    }
    memcpy(out, &piece, sizeof piece);
    return PLEAT_OK;
}

/* Gives a piece back if it was allocated by itself. */
static void give_back(machine *m, void *piece, size_t size)
{
    if (size > m->block_bytes / PIECES) {
        pleat__arena_free(m->arena, piece);
        m->taken -= size;
    }
}

/* Makes room for one more in the stack, the marks or the memo. */
static pleat_result grow(machine *m, void *items, size_t *capacity, size_t count, size_t size)
{
    if (count < *capacity)
        return PLEAT_OK;
    size_t before = *capacity;
    PLEAT_TRY(count_taken(m, (before ? before : 16) * size));
    return pleat__arena_grow(m->arena, items, capacity, count, size);
}

/* --- the stack ---------------------------------------------------------------------------------*/

static pleat_result push(machine *m, value pushed)
{
    PLEAT_TRY(grow(m, &m->stack, &m->stack_capacity, m->depth, sizeof pushed));
    m->stack[m->depth++] = pushed;
    return PLEAT_OK;
}

/* Values below the last MARK are out of reach of everything but what takes the MARK. */
static pleat_result need(const machine *m, size_t count)
{
    size_t fence = m->mark_count ? m->marks[m->mark_count - 1] : 0;
    if (m->depth - fence < count)
        return fail(m, "takes %zu values and finds %zu", count, m->depth - fence);
    return PLEAT_OK;
}

/* Takes the last MARK: *base is the depth it was set at. */
static pleat_result take_mark(machine *m, size_t *base)
{
    if (m->mark_count == 0)
        return fail(m, "there is no MARK");
    *base = m->marks[--m->mark_count];
    return PLEAT_OK;
}

static pleat_result run_mark(machine *m, unsigned argument)
{
    (void)argument;
    PLEAT_TRY(grow(m, &m->marks, &m->mark_capacity, m->mark_count, sizeof *m->marks));
    m->marks[m->mark_count++] = m->depth;
    return PLEAT_OK;
}

static pleat_result run_pop(machine *m, unsigned argument)
{
    (void)argument;
    if (m->mark_count > 0 && m->marks[m->mark_count - 1] == m->depth) {
        m->mark_count--;
        return PLEAT_OK;
    }
    PLEAT_TRY(need(m, 1));
    m->depth--;
    return PLEAT_OK;
}

static pleat_result run_pop_mark(machine *m, unsigned argument)
{
    (void)argument;
    return take_mark(m, &m->depth);
}

static pleat_result run_duplicate(machine *m, unsigned argument)
{
    (void)argument;
    PLEAT_TRY(need(m, 1));
    return push(m, m->stack[m->depth - 1]);
}

static pleat_result run_stop(machine *m, unsigned argument)
{
    (void)argument;
    PLEAT_TRY(need(m, 1));
    if (m->depth != 1)
        return fail(m, "%zu values are left where one should be", m->depth);
    if (m->mark_count > 0)
        return fail(m, "a MARK is left");
    m->stopped = true;
    return PLEAT_OK;
}

/* --- operands and simple values ----------------------------------------------------------------*/

static pleat_result read_operand(machine *m, unsigned width, uint64_t *out)
{
    if (m->size - m->at < width)
        return fail(m, "the file ends inside it");
    uint64_t operand = 0;
    for (unsigned i = 0; i < width; i++)
        operand |= (uint64_t)m->bytes[m->at + i] << 8 * i;
    m->at += width;
    *out = operand;
    return PLEAT_OK;
}

/* A count of bytes and as many bytes. */
static pleat_result read_bytes(machine *m, unsigned width, const uint8_t **bytes, uint64_t *length)
{
    PLEAT_TRY(read_operand(m, width, length));
    if (*length > m->size - m->at)
        return fail(m, "it says that %llu bytes follow, and the file has %zu",
                    (unsigned long long)*length, m->size - m->at);
    *bytes = m->bytes + m->at;
    m->at += *length;
    return PLEAT_OK;
}

static pleat_result run_protocol(machine *m, unsigned argument)
{
    uint64_t protocol;
    PLEAT_TRY(read_operand(m, argument, &protocol));
    if (protocol < 2 || protocol > 5)
        return fail(m, "protocol %llu; 2 to 5 are read", (unsigned long long)protocol);
    return PLEAT_OK;
}

/* A frame says how many bytes to read ahead; they are all here. */
static pleat_result run_frame(machine *m, unsigned argument)
{
    uint64_t length;
    PLEAT_TRY(read_operand(m, argument, &length));
    if (length > m->size - m->at)
        return fail(m, "it says that %llu bytes follow, and the file has %zu",
                    (unsigned long long)length, m->size - m->at);
    return PLEAT_OK;
}

static pleat_result run_constant(machine *m, unsigned type)
{
    uint8_t opcode = m->bytes[m->opcode_at];
    return push(m, (value){.type = (uint8_t)type, .number = opcode == 0x88});
}

/* `negative`: whether the operand's top bit says so. */
static value number_of(uint64_t operand, unsigned width, bool negative)
{
    if (!negative)
        return (value){.type = PLEAT__PICKLE_NUMBER, .number = operand};
    uint64_t extended = width < 8 ? operand | ~0ull << 8 * width : operand;
    return (value){.type = PLEAT__PICKLE_NEGATIVE, .number = extended};
}

static pleat_result run_unsigned(machine *m, unsigned width)
{
    uint64_t operand;
    PLEAT_TRY(read_operand(m, width, &operand));
    return push(m, number_of(operand, width, false));
}

static pleat_result run_signed(machine *m, unsigned width)
{
    uint64_t operand;
    PLEAT_TRY(read_operand(m, width, &operand));
    return push(m, number_of(operand, width, operand >> (8 * width - 1) != 0));
}

/* Two's complement of any length, the lowest byte first. */
static pleat_result run_long(machine *m, unsigned width)
{
    const uint8_t *bytes;
    uint64_t length, operand = 0;
    PLEAT_TRY(read_bytes(m, width, &bytes, &length));
    /* A ninth byte of zero only keeps a number of 64 bits positive. */
    if (length > 9 || (length == 9 && bytes[8] != 0))
        return push(m, (value){.type = PLEAT__PICKLE_BIG});
    for (unsigned i = 0; i < length && i < 8; i++)
        operand |= (uint64_t)bytes[i] << 8 * i;
    bool negative = length > 0 && length <= 8 && bytes[length - 1] >= 0x80;
    return push(m, number_of(operand, (unsigned)length, negative));
}

static pleat_result run_float(machine *m, unsigned width)
{
    uint64_t ignored;
    PLEAT_TRY(read_operand(m, width, &ignored));
    return push(m, (value){.type = PLEAT__PICKLE_FLOAT});
}

static size_t hash_word(const uint8_t *text, size_t length)
{
    uint32_t hash = (uint32_t)length;
    for (size_t i = 0; i < length; i++)
        hash = hash * 31 + text[i];
    return (hash ^ hash >> 10) % WORD_PLACES;
}

static void place_words(machine *m, const char *const *words, size_t count)
{
    m->words = words;
    for (size_t i = 0; i < count; i++) {
        size_t place = hash_word((const uint8_t *)words[i], strlen(words[i]));
        while (m->word_places[place] != 0)
            place = (place + 1) % WORD_PLACES;
        m->word_places[place] = (uint8_t)(i + 1);
    }
}

static uint8_t find_word(const machine *m, const uint8_t *text, size_t length)
{
    if (length > WORD_LONGEST)
        return 0;
    size_t place = hash_word(text, length);
    for (uint8_t word; (word = m->word_places[place]) != 0; place = (place + 1) % WORD_PLACES) {
        const char *known = m->words[word - 1];
        if (strlen(known) == length && memcmp(known, text, length) == 0)
            return word;
    }
    return 0;
}

static pleat_result run_text(machine *m, unsigned width)
{
    const uint8_t *bytes;
    uint64_t length;
    PLEAT_TRY(read_bytes(m, width, &bytes, &length));
    return push(m, (value){.type = PLEAT__PICKLE_TEXT,
                           .word = find_word(m, bytes, length),
                           .length = (uint32_t)length,
                           .text = (const char *)bytes});
}

static pleat_result run_bytes(machine *m, unsigned width)
{
    const uint8_t *bytes;
    uint64_t length;
    PLEAT_TRY(read_bytes(m, width, &bytes, &length));
    return push(m, (value){.type = PLEAT__PICKLE_BYTES,
                           .length = (uint32_t)length,
                           .text = (const char *)bytes});
}

/* --- containers --------------------------------------------------------------------------------*/

static pleat_result extend(machine *m, node *into, const value *items, size_t count)
{
    if (count > into->capacity - into->count) {
        size_t capacity = into->count + count;
        if (into->count > 0 && capacity < (size_t)into->capacity * 2)
            capacity = (size_t)into->capacity * 2;
        value *larger;
        PLEAT_TRY(take(m, capacity * sizeof *larger, &larger));
        if (into->count > 0)
            memcpy(larger, into->items, into->count * sizeof *larger);
        give_back(m, into->items, into->capacity * sizeof *larger);
        into->items = larger;
        into->capacity = (uint32_t)capacity;
    }
    if (count > 0)
        memcpy(into->items + into->count, items, count * sizeof *items);
    into->count += (uint32_t)count;
    return PLEAT_OK;
}

/* Puts a new container of what lies on the stack from `base` in its place. */
static pleat_result collect(machine *m, unsigned type, size_t base)
{
    if (type == PLEAT__PICKLE_DICT && (m->depth - base) % 2 != 0)
        return fail(m, "a key has no value");
    node *made;
    PLEAT_TRY(take(m, sizeof *made, &made));
    *made = (node){NULL, 0, 0};
    if (m->depth > base)
        PLEAT_TRY(extend(m, made, m->stack + base, m->depth - base));
    m->depth = base;
    return push(m, (value){.type = (uint8_t)type, .node = made});
}

static pleat_result run_empty(machine *m, unsigned type)
{
    return collect(m, type, m->depth);
}

static pleat_result run_collect(machine *m, unsigned type)
{
    size_t base;
    PLEAT_TRY(take_mark(m, &base));
    return collect(m, type, base);
}

static pleat_result run_tuple(machine *m, unsigned count)
{
    PLEAT_TRY(need(m, count));
    return collect(m, PLEAT__PICKLE_TUPLE, m->depth - count);
}

/* Moves what lies on the stack from `base` into the container below it. */
static pleat_result add_items(machine *m, unsigned type, size_t base)
{
    size_t fence = m->mark_count ? m->marks[m->mark_count - 1] : 0;
    if (base <= fence || m->stack[base - 1].type != type)
        return fail(m, "there is nothing to add to");
    if (type == PLEAT__PICKLE_DICT && (m->depth - base) % 2 != 0)
        return fail(m, "a key has no value");
    PLEAT_TRY(extend(m, m->stack[base - 1].node, m->stack + base, m->depth - base));
    m->depth = base;
    return PLEAT_OK;
}

static pleat_result run_add_marked(machine *m, unsigned type)
{
    size_t base;
    PLEAT_TRY(take_mark(m, &base));
    return add_items(m, type, base);
}

static pleat_result run_add_one(machine *m, unsigned type)
{
    size_t count = type == PLEAT__PICKLE_DICT ? 2 : 1;
    PLEAT_TRY(need(m, count + 1));
    return add_items(m, type, m->depth - count);
}

/* --- the memo ----------------------------------------------------------------------------------*/

/* Remembers the top value; a `width` of 0 is the opcode that numbers by itself. Writers number from
 * 0 on, so a number above the bytes read so far is refused rather than made room for. */
static pleat_result run_memo_put(machine *m, unsigned width)
{
    uint64_t index = m->memo_set;
    if (width > 0)
        PLEAT_TRY(read_operand(m, width, &index));
    PLEAT_TRY(need(m, 1));
    if (index > m->at)
        return fail(m, "entry %llu is far beyond the entries so far", (unsigned long long)index);
    while (m->memo_size <= index) {
        PLEAT_TRY(grow(m, &m->memo, &m->memo_capacity, m->memo_size, sizeof *m->memo));
        m->memo[m->memo_size++] = (value){.type = UNSET};
    }
    m->memo_set += m->memo[index].type == UNSET;
    m->memo[index] = m->stack[m->depth - 1];
    return PLEAT_OK;
}

static pleat_result run_memo_get(machine *m, unsigned width)
{
    uint64_t index;
    PLEAT_TRY(read_operand(m, width, &index));
    if (index >= m->memo_size || m->memo[index].type == UNSET)
        return fail(m, "entry %llu was never set", (unsigned long long)index);
    return push(m, m->memo[index]);
}

/* --- the program -------------------------------------------------------------------------------*/

static pleat_result run_foreign(machine *m, unsigned argument)
{
    (void)argument;
    return fail(m, "refused: only values of built-in types are read, and nothing is executed");
}

static pleat_result run_old(machine *m, unsigned argument)
{
    (void)argument;
    return fail(m, "refused: protocols 2 to 5 do not use it");
}

static const operation operations[256] = {
    ['('] = {"MARK", run_mark, 0},
    ['.'] = {"STOP", run_stop, 0},
    ['0'] = {"POP", run_pop, 0},
    ['1'] = {"POP_MARK", run_pop_mark, 0},
    ['2'] = {"DUP", run_duplicate, 0},
    [0x80] = {"PROTO", run_protocol, 1},
    [0x95] = {"FRAME", run_frame, 8},

    ['N'] = {"NONE", run_constant, PLEAT__PICKLE_NONE},
    [0x88] = {"NEWTRUE", run_constant, PLEAT__PICKLE_BOOL},
    [0x89] = {"NEWFALSE", run_constant, PLEAT__PICKLE_BOOL},
    ['J'] = {"BININT", run_signed, 4},
    ['K'] = {"BININT1", run_unsigned, 1},
    ['M'] = {"BININT2", run_unsigned, 2},
    [0x8a] = {"LONG1", run_long, 1},
    [0x8b] = {"LONG4", run_long, 4},
    ['G'] = {"BINFLOAT", run_float, 8},
    ['T'] = {"BINSTRING", run_text, 4},
    ['U'] = {"SHORT_BINSTRING", run_text, 1},
    ['X'] = {"BINUNICODE", run_text, 4},
    [0x8c] = {"SHORT_BINUNICODE", run_text, 1},
    [0x8d] = {"BINUNICODE8", run_text, 8},
    ['B'] = {"BINBYTES", run_bytes, 4},
    ['C'] = {"SHORT_BINBYTES", run_bytes, 1},
    [0x8e] = {"BINBYTES8", run_bytes, 8},
    [0x96] = {"BYTEARRAY8", run_bytes, 8},

    [']'] = {"EMPTY_LIST", run_empty, PLEAT__PICKLE_LIST},
    ['l'] = {"LIST", run_collect, PLEAT__PICKLE_LIST},
    ['a'] = {"APPEND", run_add_one, PLEAT__PICKLE_LIST},
    ['e'] = {"APPENDS", run_add_marked, PLEAT__PICKLE_LIST},
    [')'] = {"EMPTY_TUPLE", run_empty, PLEAT__PICKLE_TUPLE},
    ['t'] = {"TUPLE", run_collect, PLEAT__PICKLE_TUPLE},
    [0x85] = {"TUPLE1", run_tuple, 1},
    [0x86] = {"TUPLE2", run_tuple, 2},
    [0x87] = {"TUPLE3", run_tuple, 3},
    ['}'] = {"EMPTY_DICT", run_empty, PLEAT__PICKLE_DICT},
    ['d'] = {"DICT", run_collect, PLEAT__PICKLE_DICT},
    ['s'] = {"SETITEM", run_add_one, PLEAT__PICKLE_DICT},
    ['u'] = {"SETITEMS", run_add_marked, PLEAT__PICKLE_DICT},
    [0x8f] = {"EMPTY_SET", run_empty, PLEAT__PICKLE_SET},
    [0x90] = {"ADDITEMS", run_add_marked, PLEAT__PICKLE_SET},
    [0x91] = {"FROZENSET", run_collect, PLEAT__PICKLE_SET},

    ['q'] = {"BINPUT", run_memo_put, 1},
    ['r'] = {"LONG_BINPUT", run_memo_put, 4},
    [0x94] = {"MEMOIZE", run_memo_put, 0},
    ['h'] = {"BINGET", run_memo_get, 1},
    ['j'] = {"LONG_BINGET", run_memo_get, 4},

    /* What looks something up, calls it, or takes data from elsewhere. */
    ['c'] = {"GLOBAL", run_foreign, 0},
    [0x93] = {"STACK_GLOBAL", run_foreign, 0},
    ['R'] = {"REDUCE", run_foreign, 0},
    ['b'] = {"BUILD", run_foreign, 0},
    ['i'] = {"INST", run_foreign, 0},
    ['o'] = {"OBJ", run_foreign, 0},
    [0x81] = {"NEWOBJ", run_foreign, 0},
    [0x92] = {"NEWOBJ_EX", run_foreign, 0},
    [0x82] = {"EXT1", run_foreign, 0},
    [0x83] = {"EXT2", run_foreign, 0},
    [0x84] = {"EXT4", run_foreign, 0},
    ['P'] = {"PERSID", run_foreign, 0},
    ['Q'] = {"BINPERSID", run_foreign, 0},
    [0x97] = {"NEXT_BUFFER", run_foreign, 0},
    [0x98] = {"READONLY_BUFFER", run_foreign, 0},

    ['F'] = {"FLOAT", run_old, 0},
    ['I'] = {"INT", run_old, 0},
    ['L'] = {"LONG", run_old, 0},
    ['S'] = {"STRING", run_old, 0},
    ['V'] = {"UNICODE", run_old, 0},
    ['g'] = {"GET", run_old, 0},
    ['p'] = {"PUT", run_old, 0},
};

static pleat_result run(machine *m)
{
    if (m->size == 0 || m->bytes[0] != 0x80)
        return fail(m, "no pickle of protocol 2 to 5 begins like this");
    while (!m->stopped) {
        m->opcode_at = m->at;
        if (m->at == m->size)
            return fail(m, "the file ends before STOP");
        const operation *next = &operations[m->bytes[m->at]];
        if (next->run == NULL)
            return fail(m, "0x%02x is no opcode", m->bytes[m->at]);
        m->at++;
        PLEAT_TRY(next->run(m, next->argument));
    }
    m->opcode_at = m->at;
    if (m->at != m->size)
        return pleat__fail(PLEAT_E_INPUT, "'%s': byte %zu: %zu bytes follow the end of the pickle",
                           m->path, m->at, m->size - m->at);
    return PLEAT_OK;
}

pleat_result pleat__pickle_decode(const char *path, const uint8_t *bytes, size_t size,
                                  const char *const *words, size_t word_count, pleat__arena *arena,
                                  pleat__pickle_value *out)
{
    machine *m = pleat__arena_calloc(arena, 1, sizeof *m);
    if (m == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory to decode it", path);
    m->path = path;
    m->bytes = bytes;
    m->size = size;
    m->arena = arena;
    m->block_bytes = size < BLOCK_LEAST / 4  ? BLOCK_LEAST
                     : size < BLOCK_MOST / 4 ? size * 4
                                             : BLOCK_MOST;
    place_words(m, words, word_count);
    pleat_result result = run(m);
    if (result == PLEAT_OK)
        *out = m->stack[0];
    pleat__arena_free(arena, m->stack);
    pleat__arena_free(arena, m->marks);
    pleat__arena_free(arena, m->memo);
    pleat__arena_free(arena, m);
    return result;
}
