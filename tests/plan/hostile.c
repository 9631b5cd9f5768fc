/*
 * hostile.c: files made to break their readers. Each is refused, and the message names the file and
 * the place.
 */
#include "packs.h"
#include "pickles.h"

#include <plan/base/plan.h>
#include <plan/sizes/sizes.h>
#include <plan/trace/import.h>
#include <time.h>

static pleat_result decode_snapshot(const test_bytes *bytes)
{
    pleat_trace *trace;
    pleat_result result =
        pleat__snapshot_decode("file", bytes->data, bytes->size, PLEAT__ANY_DEVICE, NULL, &trace);
    if (result == PLEAT_OK)
        pleat_trace_free(trace);
    return result;
}

static pleat_result decode_trace(const test_bytes *bytes)
{
    pleat_trace *trace;
    pleat_result result = pleat__trace_decode("file", bytes->data, bytes->size, &trace);
    if (result == PLEAT_OK)
        pleat_trace_free(trace);
    return result;
}

static pleat_result decode_plan(const test_bytes *bytes)
{
    pleat_plan *plan;
    pleat_result result = pleat__plan_decode("file", bytes->data, bytes->size, &plan);
    if (result == PLEAT_OK)
        pleat_plan_free(plan);
    return result;
}

static void expect(const char *name, pleat_result result, pleat_result expected, const char *text)
{
    const char *message = pleat_last_error()->text;
    if (result != expected || strstr(message, text) == NULL || strncmp(message, "'file': ", 8) != 0)
        fail_msg("%s: %s with '%s' expected, got %s: %s", name, pleat_result_name(expected), text,
                 pleat_result_name(result), message);
}

/* --- pickles -----------------------------------------------------------------------------------*/

typedef struct pickle_case {
    const char *bytes; /* behind PROTO 4 */
    size_t size;
    const char *text;
} pickle_case;

#define PICKLE(bytes, text)                                                                        \
    {                                                                                              \
        bytes, sizeof bytes - 1, text                                                              \
    }

static void hostile_pickles_are_not_executed(void **state)
{
    (void)state;
    const pickle_case cases[] = {
        PICKLE("cos\nsystem\n(S'true'\ntR.", "byte 2: GLOBAL: refused"),
        PICKLE("\x8c\x02os\x8c\x06system\x93.", "byte 14: STACK_GLOBAL: refused"),
        PICKLE("NNR.", "byte 4: REDUCE: refused"),
        PICKLE("}}b.", "byte 4: BUILD: refused"),
        PICKLE("(ios\nsystem\n.", "byte 3: INST: refused"),
        PICKLE("(No.", "byte 4: OBJ: refused"),
        PICKLE("N)\x81.", "byte 4: NEWOBJ: refused"),
        PICKLE("N)}\x92.", "byte 5: NEWOBJ_EX: refused"),
        PICKLE("\x82\x01.", "byte 2: EXT1: refused"),
        PICKLE("\x83\x01\x01.", "byte 2: EXT2: refused"),
        PICKLE("\x84\x01\x01\x01\x01.", "byte 2: EXT4: refused"),
        PICKLE("Pname\n.", "byte 2: PERSID: refused"),
        PICKLE("NQ.", "byte 3: BINPERSID: refused"),
        PICKLE("\x97.", "byte 2: NEXT_BUFFER: refused"),
        PICKLE("N\x98.", "byte 3: READONLY_BUFFER: refused"),
        PICKLE("I1\n.", "byte 2: INT: refused"),
        PICKLE("L1L\n.", "byte 2: LONG: refused"),
        PICKLE("F1.0\n.", "byte 2: FLOAT: refused"),
        PICKLE("S'a'\n.", "byte 2: STRING: refused"),
        PICKLE("Va\n.", "byte 2: UNICODE: refused"),
        PICKLE("g0\n.", "byte 2: GET: refused"),
        PICKLE("Np0\n.", "byte 3: PUT: refused"),
        PICKLE("\xff", "byte 2: 0xff is no opcode"),
        PICKLE("\x00", "byte 2: 0x00 is no opcode"),
        PICKLE("\x80\x06N.", "byte 2: PROTO: protocol 6"),
        PICKLE("\x80\x00N.", "byte 2: PROTO: protocol 0"),
        PICKLE("\x80", "byte 2: PROTO: the file ends"),
        PICKLE("", "byte 2: the file ends before STOP"),
        PICKLE("N", "byte 3: the file ends before STOP"),
        PICKLE(".", "byte 2: STOP: takes 1 values and finds 0"),
        PICKLE("NN.", "byte 4: STOP: 2 values are left"),
        PICKLE("(N.", "byte 4: STOP: a MARK is left"),
        PICKLE("N.N", "byte 4: 1 bytes follow the end"),
        PICKLE("J\x01\x02", "byte 2: BININT: the file ends"),
        PICKLE("M\x01", "byte 2: BININT2: the file ends"),
        PICKLE("G\x01\x02\x03", "byte 2: BINFLOAT: the file ends"),
        PICKLE("\x8a\x09\x01", "byte 2: LONG1: it says that 9 bytes follow"),
        PICKLE("\x8b\xff\xff\xff\xff\x01", "byte 2: LONG4: it says that 4294967295 bytes"),
        PICKLE("\x8c\x05"
               "abcd",
               "byte 2: SHORT_BINUNICODE: it says that 5 bytes"),
        PICKLE("X\xff\xff\xff\x7fx", "byte 2: BINUNICODE: it says"),
        PICKLE("\x8d\xff\xff\xff\xff\xff\xff\xff\xffx", "byte 2: BINUNICODE8: it says"),
        PICKLE("T\xff\xff\xff\xffx", "byte 2: BINSTRING: it says"),
        PICKLE("\x96\xff\xff\xff\xff\xff\xff\xff\x7fx", "byte 2: BYTEARRAY8: it says"),
        PICKLE("\x95\xff\xff\xff\xff\xff\xff\xff\xffN.", "byte 2: FRAME: it says"),
        PICKLE("a", "byte 2: APPEND: takes 2 values and finds 0"),
        PICKLE("Na", "byte 3: APPEND: takes 2 values and finds 1"),
        PICKLE("]N(a", "byte 5: APPEND: takes 2 values and finds 0"),
        PICKLE("}Na", "byte 4: APPEND: there is nothing to add to"),
        PICKLE("]NNs", "byte 5: SETITEM: there is nothing to add to"),
        PICKLE("e", "byte 2: APPENDS: there is no MARK"),
        PICKLE("(e", "byte 3: APPENDS: there is nothing to add to"),
        PICKLE("](N(Ne", "byte 7: APPENDS: there is nothing to add to"),
        PICKLE("]((Ne", "byte 6: APPENDS: there is nothing to add to"),
        PICKLE("u", "byte 2: SETITEMS: there is no MARK"),
        PICKLE("}(Nu", "byte 5: SETITEMS: a key has no value"),
        PICKLE("](NNu", "byte 6: SETITEMS: there is nothing to add to"),
        PICKLE("(Nd", "byte 4: DICT: a key has no value"),
        PICKLE("t", "byte 2: TUPLE: there is no MARK"),
        PICKLE("l", "byte 2: LIST: there is no MARK"),
        PICKLE("N\x86", "byte 3: TUPLE2: takes 2 values"),
        PICKLE("NN\x87", "byte 4: TUPLE3: takes 3 values"),
        PICKLE("0", "byte 2: POP: takes 1 values"),
        PICKLE("1", "byte 2: POP_MARK: there is no MARK"),
        PICKLE("2", "byte 2: DUP: takes 1 values"),
        PICKLE("\x90", "byte 2: ADDITEMS: there is no MARK"),
        PICKLE("\x91", "byte 2: FROZENSET: there is no MARK"),
        PICKLE("h\x00", "byte 2: BINGET: entry 0 was never set"),
        PICKLE("Nq\x03h\x02.", "byte 5: BINGET: entry 2 was never set"),
        PICKLE("j\xff\xff\xff\xff", "byte 2: LONG_BINGET: entry 4294967295 was never set"),
        PICKLE("q\x00", "byte 2: BINPUT: takes 1 values"),
        PICKLE("\x94", "byte 2: MEMOIZE: takes 1 values"),
        PICKLE("Nr\xff\xff\xff\xff", "byte 3: LONG_BINPUT: entry 4294967295 is far beyond"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_bytes bytes = {0};
        test_bytes_add(&bytes, "\x80\x04", 2);
        test_bytes_add(&bytes, cases[i].bytes, cases[i].size);
        expect(cases[i].text, decode_snapshot(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
}

typedef struct literal_case {
    const char *literal;
    const char *text;
} literal_case;

static void hostile_snapshots_are_refused(void **state)
{
    (void)state;
    const literal_case cases[] = {
        {"5", "the snapshot: not a dict"},
        {"'segments'", "the snapshot: not a dict"},
        {"None", "the snapshot: not a dict"},
        {"{}", "neither 'segments' nor 'device_traces'"},
        {"{'segments':5,'device_traces':'x'}", "neither 'segments' nor 'device_traces'"},
        {"[]", "no events and no segments"},
        {"[[]]", "segments[0]: not a dict"},
        {"[{}]", "segments[0]: 'address' is missing"},
        {"[{'address':'x','total_size':1}]", "segments[0]: 'address' is not a whole number"},
        {"[{'address':-1,'total_size':1}]", "segments[0]: 'address' is not a whole number"},
        {"[{'address':1,'total_size':None}]", "segments[0]: 'total_size' is not a whole number"},
        {"[{'device':-1,'address':1,'total_size':1}]", "segments[0]: 'device' is not"},
        {"[{'address':1,'total_size':281474976710657}]", "address 0x1"},
        {"[{'address':1,'total_size':1,'blocks':[7]}]", "segments[0]['blocks'][0]: not a dict"},
        {"[{'address':1,'total_size':1,'blocks':[{}]}]", "'size' is missing"},
        {"[{'address':1,'total_size':1,'blocks':[{'size':1}]}]", "'state' is missing"},
        {"[{'address':1,'total_size':1,'blocks':[{'size':1,'state':5}]}]", "'state' is missing"},
        {"[{'address':18446744073709551615,'total_size':1,'blocks':[{'size':1,'state':'inactive'}]}"
         "]",
         "segments[0]['blocks'][0]: it ends beyond 2^64"},
        {"[{'address':18446744073709551615,'total_size':1,'is_expandable':True}]", "beyond 2^64"},
        {"[{'address':1,'total_size':9,'blocks':[{'size':1,'requested_size':-5,"
         "'state':'active_allocated'}]}]",
         "'requested_size' is not"},
        {"[{'address':1,'total_size':9,'blocks':[{'size':1,'state':'active_allocated',"
         "'history':[3]}]}]",
         "segments[0]['blocks'][0]: not a dict"},
        {"{'device_traces':[5]}", "device_traces[0]: not a list"},
        {"{'device_traces':[[],[5]]}", "device_traces[1][0]: not a dict"},
        {"{'device_traces':[[{}]]}", "device_traces[0][0]: 'action' is missing"},
        {"{'device_traces':[[{'action':5}]]}", "device_traces[0][0]: 'action' is missing"},
        {"{'device_traces':[[{'action':'oom'},{'action':'alloc'}]]}",
         "device_traces[0][1]: 'addr' is missing"},
        {"{'device_traces':[[{'action':'alloc','addr':1}]]}", "'size' is missing"},
        {"{'device_traces':[[{'action':'alloc','addr':1,'size':-1}]]}", "'size' is not a whole"},
        {"{'device_traces':[[{'action':'alloc','addr':1,'size':'1'}]]}", "'size' is not a whole"},
        {"{'device_traces':[[{'action':'alloc','addr':1,'size':[1]}]]}", "'size' is not a whole"},
        {"{'device_traces':[[{'action':'alloc','addr':1,'size':1,'time_us':'noon'}]]}",
         "'time_us' is not"},
        {"{'device_traces':[[{'action':'alloc','addr':1,'size':18446744073709551615}]]}",
         "more than any device"},
        {"{'device_traces':[[{'action':'segment_map','addr':18446744073709551615,'size':1}]]}",
         "beyond 2^64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_bytes bytes = test_pickle(4, cases[i].literal);
        expect(cases[i].literal, decode_snapshot(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
}

/* A float and a number of 65 bits where a size should be. */
static void hostile_numbers_are_refused(void **state)
{
    (void)state;
    const pickle_case cases[] = {
        PICKLE("}(\x8c\x04sizeG\x7f\xf8\x00\x00\x00\x00\x00\x00u.", "'size' is not"),
        PICKLE("}(\x8c\x04size\x8a\x0a\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00u.", "'size' is not"),
        PICKLE("}(\x8c\x04size\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01u.", "'size' is not"),
        PICKLE("}(\x8c\x04size\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\xffu.", "'size' is not"),
        PICKLE("}(\x8c\x04size\x8a\x01\xffu.", "'size' is not"),
        PICKLE("}(\x8c\x04size\x88u.", "'size' is not"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *around = "{'device_traces':[[{'addr':1,'action':'alloc'}]]}";
        test_bytes bytes = test_pickle(4, around);
        /* The inner dict's items are set last: put the size in before its SETITEMS. */
        size_t tail = 5; /* SETITEMS, APPENDS, APPENDS, SETITEMS, STOP */
        bytes.size -= tail;
        test_bytes_add(&bytes, cases[i].bytes + 2, cases[i].size - 4);
        test_bytes_add(&bytes, "ueeu.", tail);
        expect(cases[i].text, decode_snapshot(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
}

static void add_repeated(test_bytes *bytes, const char *part, size_t size, uint32_t times)
{
    for (uint32_t i = 0; i < times; i++)
        test_bytes_add(bytes, part, size);
}

#define ADD(bytes, literal) test_bytes_add(bytes, literal, sizeof literal - 1)

/* Small files that unfold without end for a reader that follows references. */
static void hostile_references_end(void **state)
{
    (void)state;
    test_bytes bytes = {0};
    /* A list that contains itself, as segments. */
    ADD(&bytes, "\x80\x04]q\x00h\x00\x61.");
    expect("list in itself", decode_snapshot(&bytes), PLEAT_E_INPUT, "segments[0]: not a dict");
    bytes.size = 0;
    /* The outer dict as its own segment. */
    ADD(&bytes, "\x80\x04}q\x00(\x8c\x08segments]h\x00\x61u.");
    expect("dict in itself", decode_snapshot(&bytes), PLEAT_E_INPUT,
           "segments[0]: 'address' is missing");
    bytes.size = 0;
    /* A hundred thousand lists, each in the one before. */
    ADD(&bytes, "\x80\x04");
    add_repeated(&bytes, "]", 1, 100000);
    add_repeated(&bytes, "a", 1, 99999);
    ADD(&bytes, ".");
    expect("deep lists", decode_snapshot(&bytes), PLEAT_E_INPUT, "segments[0]: not a dict");
    bytes.size = 0;
    /* As many marks. */
    ADD(&bytes, "\x80\x04");
    add_repeated(&bytes, "(", 1, 100000);
    expect("marks", decode_snapshot(&bytes), PLEAT_E_INPUT, "byte 100002");
    bytes.size = 0;
    /* One block 10,000 times in a segment, that 10,000 times. */
    test_bytes block = test_pickle(3, "{'size':1,'state':'inactive'}");
    ADD(&bytes,
        "\x80\x04](}(\x8c\x07\x61\x64\x64ressK\x01\x8c\x0atotal_sizeK\x01\x8c\x06\x62locks](");
    test_bytes_add(&bytes, block.data + 2, block.size - 3);
    ADD(&bytes, "q\x40");
    add_repeated(&bytes, "h\x40", 2, 10000);
    ADD(&bytes, "euq\x41");
    add_repeated(&bytes, "h\x41", 2, 10000);
    ADD(&bytes, "e.");
    expect("block of blocks", decode_snapshot(&bytes), PLEAT_E_INPUT, "again and again");
    bytes.size = 0;
    /* One event 10,000 times, in two bytes each. */
    ADD(&bytes, "\x80\x04}(\x8c\x0d"
                "device_traces](](}(\x8c\x06"
                "action\x8c\x05"
                "alloc\x8c\x04sizeK\x10\x8c\x04"
                "addrK\x01uq\x05");
    add_repeated(&bytes, "h\x05", 2, 10000);
    ADD(&bytes, "eeu.");
    expect("event of events", decode_snapshot(&bytes), PLEAT_E_INPUT,
           "device_traces[0][2006]: the same values are listed again and again");
    test_bytes_free(&block);
    test_bytes_free(&bytes);
}

/* What splitmix64's finalizer makes `hash` of. */
static uint64_t unmix(uint64_t hash)
{
    hash ^= hash >> 31 ^ hash >> 62;
    hash *= 0x319642b2d24d8ec3u;
    hash ^= hash >> 27 ^ hash >> 54;
    hash *= 0x96de1b173f119089u;
    return hash ^ hash >> 30 ^ hash >> 60;
}

/* Addresses that a good hash, which anyone can undo, sends to one place: a table that is searched
 * from there on takes minutes. */
static void hostile_addresses_do_not_collide(void **state)
{
    (void)state;
    enum { EVENTS = 200000 };
    test_bytes bytes = {0};
    ADD(&bytes, "\x80\x04}(\x8c\x0d"
                "device_traces]](");
    for (uint64_t i = 1; i <= EVENTS; i++) {
        const uint64_t address = unmix(i << 32);
        ADD(&bytes, "}(\x8c\x06"
                    "action\x8c\x05"
                    "alloc\x8c\x04sizeK\x10\x8c\x04"
                    "addr\x8a\x09");
        test_bytes_add(&bytes, &address, sizeof address);
        ADD(&bytes, "\x00u");
    }
    ADD(&bytes, "eau.");
    clock_t begin = clock();
    pleat_trace *trace;
    assert_ok(
        pleat__snapshot_decode("file", bytes.data, bytes.size, PLEAT__ANY_DEVICE, NULL, &trace));
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    assert_int_equal(pleat_trace_request_count(trace), EVENTS);
    pleat_trace_free(trace);
    test_bytes_free(&bytes);
}

/* Streams that one round of a hash without a secret sends to one place. */
static void hostile_streams_do_not_collide(void **state)
{
    (void)state;
    pleat_trace *trace;
    uint16_t index;
    assert_ok(pleat_trace_new(&trace));
    clock_t begin = clock();
    for (uint64_t i = 1; i <= 65536; i++) {
        /* The hash is the inverse's product, turned by 29: i << 32. */
        assert_ok(pleat_trace_add_stream(trace, (i << 3) * 0xf1de83e19937733du ^ 1, &index));
        assert_int_equal(index, i - 1);
    }
    assert_true(clock() - begin < CLOCKS_PER_SEC / 2);
    pleat_trace_free(trace);
}

/* Thousands of events whose frames share one file's name of a megabyte: a reader that looks through
 * all of it for each takes minutes. */
static void hostile_names_are_not_read_again(void **state)
{
    (void)state;
    enum { EVENTS = 4000, NAME = 1 << 20 };
    test_bytes bytes = {0};
    char *name = malloc(NAME);
    assert_non_null(name);
    memset(name, '/', NAME);
    memcpy(name + NAME - 8, "/own/f.py", 8);
    ADD(&bytes, "\x80\x04}(\x8c\x0d"
                "device_traces]](");
    for (uint32_t i = 0; i < EVENTS; i++) {
        ADD(&bytes, "}(\x8c\x06"
                    "action\x8c\x05"
                    "alloc\x8c\x04sizeK\x10\x8c\x04"
                    "addrJ");
        const uint32_t address = 512 * i;
        test_bytes_add(&bytes, &address, sizeof address);
        ADD(&bytes, "\x8c\x06"
                    "frames](");
        if (i == 0) {
            const uint32_t length = NAME;
            ADD(&bytes, "}(\x8c\x04name\x8c\x01"
                        "f\x8c\x08"
                        "filenameX");
            test_bytes_add(&bytes, &length, sizeof length);
            test_bytes_add(&bytes, name, NAME);
            ADD(&bytes, "uq\x05");
        }
        add_repeated(&bytes, "h\x05", 2, 12);
        ADD(&bytes, "eu");
    }
    ADD(&bytes, "eau.");
    clock_t begin = clock();
    pleat_trace *trace;
    assert_ok(
        pleat__snapshot_decode("file", bytes.data, bytes.size, PLEAT__ANY_DEVICE, NULL, &trace));
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    assert_int_equal(pleat_trace_request_count(trace), EVENTS);
    pleat_trace_free(trace);
    test_bytes_free(&bytes);
    free(name);
}

static void add_text(test_bytes *bytes, uint8_t letter, uint32_t length)
{
    ADD(bytes, "X");
    test_bytes_add(bytes, &length, sizeof length);
    for (uint32_t i = 0; i < length; i++)
        test_bytes_add(bytes, &letter, 1);
}

/* Events that have two labels of 60,000 bytes in turn, in two bytes each: a reader that looks a
 * label up for each of them, by all of its bytes, takes minutes. */
static void hostile_labels_are_not_read_again(void **state)
{
    (void)state;
    enum { TURNS = 100000, LABEL = 60000, OTHERS = 2 << 20 };
    test_bytes bytes = {0};
    ADD(&bytes, "\x80\x04}(K\x00"); /* a key that says nothing */
    add_text(&bytes, 'x', OTHERS);
    ADD(&bytes, "\x8c\x0d"
                "device_traces](](}(\x8c\x06"
                "action\x8c\x05"
                "alloc\x8c\x04sizeK\x10\x8c\x04"
                "addrK\x01\x8c\x0d"
                "user_metadata");
    add_text(&bytes, 'a', LABEL);
    ADD(&bytes, "uq\x05}(\x8c\x06"
                "action\x8c\x0e"
                "free_completed\x8c\x04sizeK\x10\x8c\x04"
                "addrK\x01\x8c\x0d"
                "user_metadata");
    add_text(&bytes, 'b', LABEL);
    ADD(&bytes, "uq\x06");
    add_repeated(&bytes, "h\x05h\x06", 4, TURNS);
    ADD(&bytes, "eeu.");
    clock_t begin = clock();
    pleat_trace *trace;
    assert_ok(
        pleat__snapshot_decode("file", bytes.data, bytes.size, PLEAT__ANY_DEVICE, NULL, &trace));
    assert_true(clock() - begin < 5 * CLOCKS_PER_SEC);
    assert_int_equal(pleat_trace_request_count(trace), TURNS + 1);
    assert_int_equal(pleat_trace_label_count(trace), 3);
    pleat_trace_free(trace);
    test_bytes_free(&bytes);
}

/* --- traces ------------------------------------------------------------------------------------*/

static void hostile_traces_are_refused(void **state)
{
    (void)state;
    const literal_case cases[] = {
        {"", "the file is empty, and no pleat trace"},
        {"5", "byte 0: this is not a pleat trace file"},
        {"N", "byte 0: this is not a pleat trace file"},
        {"'pleat trace'", "byte 0: this is not a pleat trace file"},
        {"[]", "this is not a pleat trace file"},
        {"['pleat plan', 1, 0, 0, 0, 0]", "this is not a pleat trace file, but a pleat plan"},
        {"['pleat tracf', 1, 0, 0, 0, 0]", "this is not a pleat trace file"},
        {"['pleat trace']", "this is not a pleat trace file"},
        {"['pleat trace', 'one']", "this is not a pleat trace file"},
        {"['pleat trace', -1]", "this is not a pleat trace file"},
        {"['pleat trace', 1]", "the header has 2 items"},
        {"['pleat trace', 1, 0, 0, 0, 0, 0]", "the header has 7 items"},
        {"['pleat trace', 1, 0, 0, 0, -5]", "record 0 at byte 0: item 5 is not"},
        {"['pleat trace', 1, 0, 0, 0, F]", "record 0 at byte 0: item 5 is not"},
        {"['pleat trace', 1, [], 0, 0, 0]", "record 0 at byte 0: item 2 is not"},
        {"['pleat trace', 1, 0, 18446744073709551615, 0, 0]",
         "byte 26: the file is cut off: 18446744073709551615 rows"},
        {"['pleat trace', 1, 0, 0, 18446744073709551615, 0]",
         "byte 26: the file is cut off: 18446744073709551615 rows"},
        {"['pleat trace', 1, 0, 0, 0, 33554432]", "record 1 at byte 22: the file ends"},
        {"['pleat trace', 1, 0, 0, 0, 33554433]",
         "record 0 at byte 0: 33554433 events, and at most 33554432 are read"},
        {"['pleat trace', 1, 0, 1, 0, 0]", "1 rows of 1 should follow"},
        {"['pleat trace', 1, 0, 1, 0, 0] ['']", "label 0 again"},
        {"['pleat trace', 1, 0, 2, 0, 0] ['a', 'a']", "item 1: label 1 again"},
        {"['pleat trace', 1, 0, 1, 0, 0] ['a', 'b']", "2 items are not 1 to 1 rows"},
        {"['pleat trace', 1, 0, 1, 0, 0] [5]", "item 0 is no text"},
        {"['pleat trace', 1, 0, 1, 0, 0] [x a2 61 00 ]", "zero byte"},
        {"['pleat trace', 1, 0, 1, 0, 0] []", "0 items are not 1 to 1 rows"},
        {"['pleat trace', 1, 0, 0, 1, 0] ['x']", "item 0 is not a whole number"},
        {"['pleat trace', 1, 0, 0, 1, 0] [-1]", "item 0 is not a whole number"},
        {"['pleat trace', 1, 0, 0, 1, 0] [F]", "item 0 is not a whole number"},
        {"['pleat trace', 1, 0, 0, 2, 0] [7, 7]", "item 1: stream 0 again"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] []", "record 2 at byte 20: no events in it"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [9]", "item 0 is no event code"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [8]", "a wrong site"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [8, 0, 0, 1, 1]", "a wrong site"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [8, 1, 3, 1]", "of no allocation"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [8, 1, 0, 1, 1]", "site 1 of 1"},
        {"['pleat trace', 2, 0, 0, 1, 1]", "6 items, not 7"},
        {"['pleat trace', 2, 0, 0, 1, 1, 2] [0] ['a', 'a']", "site 1 again"},
        {"['pleat trace', 2, 0, 0, 1, 1, 1] [0] ['a'] [8, 2, 0, 1, 1]", "site 2 of 2"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [-1]", "item 0 is no event code"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] ['a']", "item 0 is no event code"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [F]", "item 0 is no event code"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [[0]]", "item 0 is no event code"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0]", "item 0: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, 5]", "item 0: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, -5, 0]", "item 0: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, F, 0]", "item 0: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, 5, 'x']", "item 0: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, 5, 18446744073709551615]", "cut off, or no"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, 281474976710657, 0]", "more than any device"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [0, 18446744073709551615, 0]", "more than any device"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [1, 1, 0]", "never allocated"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [1, 0, 0]", "never allocated"},
        {"['pleat trace', 1, 0, 0, 1, 2] [0] [0, 5, 0, 1, 4294967295, 0]", "item 3: a free of"},
        {"['pleat trace', 1, 0, 0, 1, 2] [0] [0, 5, 0, 1, 4294967296, 0]", "item 3: an event is"},
        {"['pleat trace', 1, 0, 0, 1, 2] [0] [0, 5, 0, 2, 1, 0]", "freed before its free"},
        {"['pleat trace', 1, 0, 0, 1, 4] [0] [0, 5, 0, 6, 1, 0, 0, 1, 1, 0]", "freed twice"},
        {"['pleat trace', 1, 0, 0, 1, 3] [0] [0, 5, 0, 6, 1, 0]", "item 3: an event is cut off"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [5, 1, 0]", "a free of segment"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 1, 0, 0, 3, 0]", "label 1 of 1"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 0, 1, 0, 3, 0]", "stream 1 of 1"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 0, 0, 256, 3, 0]", "wrong label, stream or"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 0, 65536, 0, 3, 0]", "wrong label, stream or"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 4294967296, 0, 0, 3, 0]", "wrong label, stream"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [7, 0, 0]", "wrong label, stream or"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0, 3, 0]", "2 events where the header says 1"},
        {"['pleat trace', 1, 0, 0, 0, 1] [3, 0]", "stream 0 of 0"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0]", "record 3 at byte 23: the file ends"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0] [7]", "not a checksum"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0] [N]", "not a checksum"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0] x 91 ce 12 34 56 78", "the file is damaged"},
        {"['pleat trace', 1, 0, 0, 1, 1] [0] [3, 0] x 91 ce 12 34 56 78 c0", "1 bytes follow"},
        {"x 9f", "longer than the file"},
        {"x dd ff ff ff ff", "longer than the file"},
        {"x dd 00 00 00 05 01 02", "longer than the file"},
        {"x 91 df ff ff ff ff 01", "longer than the file"},
        {"x 91 df 80 00 00 00 01", "longer than the file"},
        {"x 91 db ff ff ff ff 61", "longer than the file"},
        {"x 91 c6 ff ff ff ff 61", "longer than the file"},
        {"x 91 c9 ff ff ff ff 01 61", "longer than the file"},
        {"x 91 d9 05 61", "longer than the file"},
        {"x 91 c1", "not msgpack"},
        {"x 91 cf 01", "longer than the file"},
        {"x 91 cb", "longer than the file"},
        {"x 91 da 00", "the file ends inside it"},
        {"x 91 91 91 91 91 91 91 c0", "nested too deep"},
        {"x 91 81 81 81 81 81 c0 c0 c0 c0 c0 c0 c0", "nested too deep"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_bytes bytes = test_pack(cases[i].literal);
        expect(cases[i].literal, decode_trace(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
    test_bytes bytes = test_pack("['pleat trace', 3, 0]");
    expect("version", decode_trace(&bytes), PLEAT_E_ABI, "version 3");
    test_bytes_free(&bytes);
}

/* A record longer than any that is written, and a label. */
static void hostile_lengths_are_refused(void **state)
{
    (void)state;
    test_bytes bytes = test_pack("x dd 00 50 00 00");
    char *zeros = calloc(1, 0x500000);
    test_bytes_add(&bytes, zeros, 0x500000);
    expect("long record", decode_trace(&bytes), PLEAT_E_INPUT,
           "record 0 at byte 0: it is too long");
    test_bytes_free(&bytes);
    bytes = test_pack("['pleat trace', 1, 0, 1, 0, 0] x 91 db 00 01 00 00");
    memset(zeros, 'a', 65536);
    test_bytes_add(&bytes, zeros, 65536);
    expect("long label", decode_trace(&bytes), PLEAT_E_INPUT, "item 0 has 65536 bytes");
    test_bytes_free(&bytes);
    free(zeros);
}

/* More streams than an event can name. */
static void hostile_streams_are_refused(void **state)
{
    (void)state;
    test_bytes bytes = test_pack("['pleat trace', 1, 0, 0, 65537, 0] x dd 00 01 00 01");
    for (uint32_t i = 0; i <= 65536; i++) {
        const uint8_t number[5] = {0xce, 0, (uint8_t)(i >> 16), (uint8_t)(i >> 8), (uint8_t)i};
        test_bytes_add(&bytes, number, sizeof number);
    }
    expect("streams", decode_trace(&bytes), PLEAT_E_INPUT, "item 65536: a trace has at most");
    test_bytes_free(&bytes);
}

/* --- plans -------------------------------------------------------------------------------------*/

/* The numbers of a header: fingerprint .. steady events, then the counts. */
#define PLAN(numbers, counts) "['pleat plan', 1, " numbers ", " counts "] "
#define NUMBERS               "9, 0, 2, 1, 512, 0, 512, 0, 512, 512, 1, 3"
#define COUNTS                "0, 1, 1, 1, 0, 1, 0, 1, 0"
#define TABLES                "['o'] [0] [1] [0, 0, 0] "
#define STEADY                "[5, 1, 0, 3, 0, 0, 0, 0, 1, 0, 0] "
#define FIRST                 "[5, 0, 0, 0, 0, 0, 0, 3, 1, 0, 0] "

static void hostile_plans_are_refused(void **state)
{
    (void)state;
    test_bytes bytes = test_pack(PLAN(NUMBERS, COUNTS) TABLES FIRST STEADY);
    test_pack_checksum(&bytes);
    assert_ok(decode_plan(&bytes)); /* what the cases below spoil */
    test_bytes_free(&bytes);
    const literal_case cases[] = {
        {"['pleat trace', 1, 0, 0, 0, 0]", "this is not a pleat plan file"},
        {"['pleat plan', 1, 0]", "the header has 3 items"},
        {PLAN("9, 256, 2, 1, 512, 0, 512, 0, 512, 512, 1, 3", COUNTS), "out of range"},
        {PLAN("9, 0, 4294967296, 1, 512, 0, 512, 0, 512, 512, 1, 3", COUNTS), "out of range"},
        {PLAN("9, 0, 2, 1, 512, 0, 512, 0, 512, 512, 4294967295, 3", COUNTS), "out of range"},
        {PLAN("9, 0, 2, 1, -512, 0, 512, 0, 512, 512, 1, 3", COUNTS), "item 6 is not"},
        {PLAN(NUMBERS, "18446744073709551615, 1, 1, 1, 0, 1, 0, 1, 0"), "615 labels: at most"},
        {PLAN(NUMBERS, "65536, 1, 1, 1, 0, 1, 0, 1, 0") "['o']", "65536 rows of 1"},
        {PLAN(NUMBERS, "0, 65536, 1, 1, 0, 1, 0, 1, 0") "['o']", "65536 rows of 1"},
        {PLAN(NUMBERS, "0, 1, 16777216, 1, 0, 1, 0, 1, 0") "['o'] [0]", "16777216 rows of 1"},
        {PLAN(NUMBERS, "0, 1, 1, 1, 0, 33554432, 0, 0, 0") TABLES, "33554432 rows of 11"},
        {PLAN(NUMBERS, "0, 1, 1, 99, 0, 1, 0, 1, 0") "['o'] [0] [1]", "99 rows of 3"},
        {PLAN(NUMBERS, "0, 1, 1, 1, 99, 1, 0, 1, 0") TABLES, "99 rows of 4"},
        {PLAN(NUMBERS, "0, 1, 1, 1, 0, 99, 0, 1, 0") TABLES, "99 rows of 11"},
        {PLAN(NUMBERS, "0, 1, 1, 1, 0, 1, 99, 1, 0") TABLES FIRST, "99 rows of 2"},
        {PLAN(NUMBERS, COUNTS) "[5]", "item 0 is no text"},
        {PLAN(NUMBERS, COUNTS) "['o', 'p']", "2 items"},
        {PLAN(NUMBERS, COUNTS) "['o'] ['p']", "item 0 is not"},
        {PLAN(NUMBERS, COUNTS) "['o'] [0] [4294967296]", "item 0: a number of the row"},
        {PLAN(NUMBERS, COUNTS) "['o'] [0] [1] [0, 0]", "2 items are not 1 to 1 rows of 3"},
        {PLAN(NUMBERS, COUNTS) "['o'] [0] [1] [0, 4294967296, 0] " FIRST STEADY, "row is out"},
        {PLAN(NUMBERS, COUNTS) "['o'] [0] [1] [0, 0, 2] " FIRST STEADY, "row is out"},
        {PLAN(NUMBERS, COUNTS) "['o'] [0] [1] [0, 0, N] " FIRST STEADY, "item 2 is not"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 4294967296, 0, 0, 0, 0, 3, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 4294967296, 0, 0, 0, 3, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 65536, 0, 0, 3, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 65536, 0, 3, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 65536, 3, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 256, 1, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 3, 2, 0, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 3, 1, 4294967296, 0]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 3, 1, 0, 4294967296]", "row is out"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 3, 1, 0, F]", "item 10 is not"},
        {PLAN(NUMBERS, COUNTS) TABLES "[5, 0, 0, 0, 0, 0, 0, 3, 1, 0]", "10 items are not"},
        {PLAN(NUMBERS, COUNTS) TABLES FIRST, "the file is cut off: 1 rows of 11 should follow"},
        {PLAN(NUMBERS, COUNTS) TABLES FIRST STEADY, "the file ends where a record"},
        {PLAN(NUMBERS, COUNTS) TABLES FIRST STEADY "x 91 ce 00 00 00 00", "is damaged"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bytes = test_pack(cases[i].literal);
        expect(cases[i].literal, decode_plan(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
    bytes = test_pack("['pleat plan', 0]");
    expect("version", decode_plan(&bytes), PLEAT_E_ABI, "version 0");
    test_bytes_free(&bytes);
    /* A recipe of two numbers, as it was once. */
    bytes = test_pack("['pleat plan', 6, " NUMBERS ", " COUNTS "]");
    expect("version", decode_plan(&bytes), PLEAT_E_ABI, "make the plan again with this Pleat");
    test_bytes_free(&bytes);
    /* Sound as a stream, but the shape or the rule does not hold. */
    bytes =
        test_pack(PLAN("9, 0, 2, 1, 511, 0, 512, 0, 512, 512, 1, 3", COUNTS) TABLES FIRST STEADY);
    test_pack_checksum(&bytes);
    expect("shape", decode_plan(&bytes), PLEAT_E_INPUT, "a chunk of 511 bytes");
    test_bytes_free(&bytes);
    bytes = test_pack(
        PLAN("9, 0, 4, 1, 512, 0, 512, 0, 512, 512, 1, 3", "0, 1, 1, 1, 0, 1, 0, 2, 0") TABLES FIRST
        "[5, 1, 0, 3, 0, 0, 0, 0, 1, 0, 0, 5, 1, 1, 3, 0, 0, 0, 0, 1, 0, 0]");
    test_pack_checksum(&bytes);
    expect("rule", decode_plan(&bytes), PLEAT_E_VERIFY, "are live together");
    test_bytes_free(&bytes);
}

/* A product of two numbers of the file that is 0 in 64 bits, sums near 2^64, and more pages than
 * there is memory to list. */
static void hostile_plans_beyond_all_bounds_are_refused(void **state)
{
    (void)state;
#define SIZED(chunk, window, physical)                                                             \
    "9, 0, 0, 0, " chunk ", 0, 0, 0, " window ", " physical ", 1, 1"
    const literal_case cases[] = {
        {"['pleat plan', 4, " SIZED(
             "1099511627776", "144115188075855872",
             "0") ", 0, 1, 1, 1, 0, 0,"
                  " 0, 0, 0] ['o'] [0] [16777216] [0, 0, 0] [1] [0, 16777216]",
         "16777216 chunks of 1099511627776 bytes: at most 144115188075855872"},
        {"['pleat plan', 4, " SIZED("1099511627776", "144115188075855872",
                                    "0") ", 0, 1, 1, 1, 0, 0,"
                                         " 0, 0, 0] ['o'] [0] [16777217] [0, 0, 0] [1] [0, 1]",
         "more than 16777216 chunks"},
        {"['pleat plan', 3, " SIZED(
             "1099511627776", "18446744073709551615",
             "0") ", 0, 1, 0, 0, 0,"
                  " 0, 0, 0, 0] ['o'] [0] [1] [0, 18446744073708502528, 1048576]",
         "a window of 18446744073709551615 bytes: at most 144115188075855872"},
        {"['pleat plan', 1, 9, 0, 0, 0, 512, 0, 0, 0, 512, 0, 1, 4294967294, 0, 1, 0, 0, 0, 0, 0, "
         "0, "
         "0] ['o'] [0]",
         "steady sequence of 4294967294 events, in a plan of 0 requests"},
        {"['pleat plan', 1, " SIZED("512", "8589935104", "0") ", 0, 1, 0, 0, 0, 0, 0, 0, 0] ['o'] "
                                                              "[0]",
         "and 16777216 pages of 512, are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 65537, 0, 0, 0, 0, 0, 0, 0, 0] ['o']",
         "record 0 at byte 0: 65537 labels: at most 65536 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 65537, 0, 0, 0, 0, 0, 0, 0] ['o']",
         "65537 streams: at most 65536 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 16777217, 0, 0, 0, 0, 0, 0] ['o']",
         "16777217 handles: at most 16777216 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 0, 16777217, 0, 0, 0, 0, 0] ['o']",
         "16777217 maps: at most 16777216 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 0, 0, 16777217, 0, 0, 0, 0] ['o']",
         "16777217 lanes: at most 16777216 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 0, 0, 0, 0, 0, 0, 65537] ['o']",
         "65537 phases: at most 65536 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 0, 0, 0, 33554433, 0, 0, 0] ['o']",
         "33554433 requests: at most 33554432 are possible"},
        {"['pleat plan', 1, " SIZED("512", "0", "0") ", 0, 0, 0, 0, 0, 16777216, 0, 16777217, 0] "
                                                     "['o']",
         "33554433 requests: at most 33554432 are possible"},
    };
#undef SIZED
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        test_bytes bytes = test_pack(cases[i].literal);
        test_pack_checksum(&bytes);
        expect(cases[i].literal, decode_plan(&bytes), PLEAT_E_INPUT, cases[i].text);
        test_bytes_free(&bytes);
    }
}

/* A plan for x = 1 with one request of 512 bytes that comes and goes in an iteration, and a recipe:
 * `function` gives its size from x = 1 to x = `highest`. */
#define ELASTIC(slot, function, highest)                                                           \
    "['pleat plan', 7, 9, 0, 1, 0, 512, 0, 0, 0, 512, 512, 1, 2, 0, 1, 1, 1, 0, 0, 0, 1, 0] "      \
    "['o'] "                                                                                       \
    "[0] [1] [0, 0, 0] [" slot ", 0, 0] [0, 0, 4194304, 1, 1, 1, 1, 1, " highest ", 1] [" function \
    "] [1]"
#define BRIEF  "512, 1, 0, 2, 0, 0, 0, 0, 1"
#define LINEAR "0, 1024, 0, 1, 1, 0, 0"

static pleat_result decode_elastic(const char *literal, pleat_plan **plan)
{
    test_bytes bytes = test_pack(literal);
    test_pack_checksum(&bytes);
    pleat_result result = pleat__plan_decode("file", bytes.data, bytes.size, plan);
    test_bytes_free(&bytes);
    return result;
}

static void hostile_recipes_are_refused(void **state)
{
    (void)state;
    pleat_plan *plan;
    assert_ok(decode_elastic(ELASTIC(BRIEF, LINEAR, "8"), &plan)); /* what the cases below spoil */
    pleat_plan_free(plan);
    const literal_case cases[] = {
        /* 512 - 2^46 + 2^46 x */
        {ELASTIC(BRIEF, "140737488354303, 140737488355328, 0, 1, 1, 0, 0", "8"),
         "steady request 0 has no size somewhere in the recipe's range"},
        /* Never freed, and of a class that is not: an instance would leave both where they are. */
        {ELASTIC("512, 1, 0, 0, 0, 0, 0, 2, 1", "1024, 0, 0, 1, 1, 0, 0", "8"),
         "steady request 0 has a place and no end"},
        {ELASTIC("512, 1, 0, 2, 0, 0, 0, 3, 1", "1024, 0, 0, 1, 1, 0, 0", "8"),
         "steady request 0 has a place and no end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect(cases[i].literal, decode_elastic(cases[i].literal, &plan), PLEAT_E_INPUT,
               cases[i].text);
}

/* A hundred bytes say how large a request is at any x: what no plan could hold is not begun. */
static void hostile_instances_end(void **state)
{
    (void)state;
    pleat_plan *plan, *instance;
    assert_ok(decode_elastic(ELASTIC(BRIEF, LINEAR, "549755813888"), &plan));
    const uint64_t us[] = {(1 << 24) + 1, 1 << 28, 1ull << 39};
    for (size_t i = 0; i < sizeof us / sizeof *us; i++) {
        const pleat__fraction x = {us[i], 1};
        assert_result(pleat__elastic_instance(plan, x, NULL, NULL, &instance), PLEAT_E_LIMIT);
        assert_non_null(strstr(pleat_last_error()->text, "at most"));
    }
    pleat__fraction found;
    assert_result(pleat__elastic_fit(plan, 80ull << 30, (pleat__fraction){1, 1}, &found, NULL),
                  PLEAT_E_LIMIT);
    assert_non_null(strstr(pleat_last_error()->text, "x = "));
    const pleat__fraction most = {1 << 20, 1};
    assert_ok(pleat__elastic_instance(plan, most, NULL, NULL, &instance));
    assert_int_equal(instance->physical_bytes, 512ull << 20);
    pleat_plan_free(instance);
    pleat_plan_free(plan);
}

/* --- tables ------------------------------------------------------------------------------------*/

static void hostile_tables_are_refused(void **state)
{
    (void)state;
#define TABLE "id,lower,upper,size\n"
    const literal_case cases[] = {
        {"", "line 0: the file is empty"},
        {"\n\n", "line 2: the file is empty"},
        {"id,lower,upper\n0,1,2\n", "line 1: no column is named 'size'"},
        {"lower,upper,size\n", "line 1: no column is named 'id'"},
        {"id,id,lower,upper,size\n", "line 1: two columns are named 'id'"},
        {"ID,lower,upper,size\n0,1,2,3\n", "line 1: no column is named 'id'"},
        {TABLE, "there are no rows"},
        {TABLE "0,1,2\n", "line 2: 'size' is missing"},
        {TABLE "0\n", "line 2: 'lower' is missing"},
        {TABLE "0,1,2,\n", "line 2: 'size' is empty"},
        {TABLE "0,1,2,-3\n", "line 2: 'size' is '-3', not a whole number"},
        {TABLE "0,1,2,3.5\n", "line 2: 'size' is '3.5'"},
        {TABLE "0,1,2,nan\n", "line 2: 'size' is 'nan'"},
        {TABLE "0,1,2,0x10\n", "line 2: 'size' is '0x10'"},
        {TABLE "0,1,2,+3\n", "line 2: 'size' is '+3'"},
        {TABLE "0,a,2,3\n", "line 2: 'lower' is 'a'"},
        {TABLE "0,1,18446744073709551616,3\n", "line 2: 'upper' is 18446744073709551616, above"},
        {TABLE "0,1,99999999999999999999999999999999999999999999999999,3\n", "above 2^64 - 1"},
        {TABLE "0,1,2,281474976710657\n", "line 2: request 0 has 281474976710657 bytes"},
        {TABLE "0,2,1,3\n", "line 2: 'upper' is below 'lower'"},
        {TABLE "0,1,2,3\n\n1,1,2,3\n0,5,6,7\n", "line 5: id '0' is that of line 2 too"},
        {TABLE "0,1,2,3\n0,1,2,3\n", "line 3: id '0' is that of line 2 too"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pleat_trace *trace;
        const char *csv = cases[i].literal;
        expect(csv, pleat__csv_decode("file", (const uint8_t *)csv, strlen(csv), &trace),
               PLEAT_E_INPUT, cases[i].text);
    }
#undef TABLE
}

/* --- files -------------------------------------------------------------------------------------*/

static void expect_file(const char *path, const void *data, size_t size, const char *text)
{
    pleat_trace *trace;
    test_file_write(path, data, size);
    assert_result(pleat__trace_import(path, PLEAT__ANY_DEVICE, NULL, &trace), PLEAT_E_INPUT);
    const char *message = pleat_last_error()->text;
    if (strstr(message, path) == NULL || strstr(message, text) == NULL)
        fail_msg("'%s' is not in: %s", text, message);
}

static void hostile_files_are_refused(void **state)
{
    (void)state;
    const char *path = test_path("h");
    expect_file(path, "", 0, "byte 0: the file is empty");
    expect_file(path, "PK\3\4 archive", 12, "as torch.save writes them");
    expect_file(path,
                "\x7f"
                "ELF\x02,",
                6, "byte 0: neither a trace");
    expect_file(path, "hello\n,", 7, "byte 0: neither a trace");
    expect_file(path, "(dp0\n.", 6, "byte 0: neither a trace");
    expect_file(path, "\x1f\x8b", 2, "byte 0: neither a trace");
    expect_file(path, "\x1f\x8b\x08", 3, "byte 3: not sound gzip data: the file ends");
    expect_file(path, "\x1f\x8b\x09\x00\x00", 5, "not sound gzip data: unknown compression");
    test_bytes pickle = test_pickle(4, "{'segments':[{'address':1,'total_size':2}]}");
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, pickle.data, (unsigned)pickle.size), (int)pickle.size);
    assert_int_equal(gzclose(file), Z_OK);
    test_bytes whole = test_file_read(path);
    for (size_t size = 3; size < whole.size; size++)
        expect_file(path, whole.data, size, "not sound gzip data");
    whole.data[whole.size - 6] ^= 1; /* of the checksum */
    expect_file(path, whole.data, whole.size, "incorrect data check");
    whole.data[whole.size - 6] ^= 1;
    test_bytes_add(&whole, "x", 1);
    expect_file(path, whole.data, whole.size, "not sound gzip data");
    test_bytes_free(&whole);
    test_bytes_free(&pickle);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_pickles_are_not_executed),
        cmocka_unit_test(hostile_snapshots_are_refused),
        cmocka_unit_test(hostile_numbers_are_refused),
        cmocka_unit_test(hostile_references_end),
        cmocka_unit_test(hostile_traces_are_refused),
        cmocka_unit_test(hostile_lengths_are_refused),
        cmocka_unit_test(hostile_streams_are_refused),
        cmocka_unit_test(hostile_names_are_not_read_again),
        cmocka_unit_test(hostile_labels_are_not_read_again),
        cmocka_unit_test(hostile_addresses_do_not_collide),
        cmocka_unit_test(hostile_streams_do_not_collide),
        cmocka_unit_test(hostile_plans_are_refused),
        cmocka_unit_test(hostile_plans_beyond_all_bounds_are_refused),
        cmocka_unit_test(hostile_recipes_are_refused),
        cmocka_unit_test(hostile_instances_end),
        cmocka_unit_test(hostile_tables_are_refused),
        cmocka_unit_test(hostile_files_are_refused),
    };
    return cmocka_run_group_tests_name("hostile", tests, NULL, test_folder_remove);
}
