/*
 * import.c: what snapshots and lifetime tables become as traces.
 */
#include "pickles.h"

#include <plan/trace/import.h>
#include <zlib.h>

/* A trace in a line: "a0:512 r0 c0" for ALLOC of 512 bytes, FREE_REQUESTED, FREE_COMPLETED; "S",
 * "s" for segments, "m" for a mark. */
static void describe(const pleat_trace *trace, char *text, size_t size)
{
    static const char letters[] = "arcmSs";
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < pleat_trace_event_count(trace); i++) {
        const pleat_trace_event *event = &pleat_trace_events(trace)[i];
        used += (size_t)snprintf(text + used, size - used, "%s%c%u", i ? " " : "",
                                 letters[event->kind], event->request);
        if (event->kind == PLEAT_EVENT_ALLOC || event->kind == PLEAT_EVENT_SEGMENT_ALLOC)
            used += (size_t)snprintf(text + used, size - used, ":%llu",
                                     (unsigned long long)event->size);
        assert_true(used < size);
    }
}

static void assert_events(const pleat_trace *trace, const char *expected)
{
    char text[4096];
    describe(trace, text, sizeof text);
    assert_string_equal(text, expected);
}

static pleat_trace *import(const char *literal)
{
    pleat_trace *trace;
    test_bytes bytes = test_pickle(4, literal);
    assert_ok(pleat__snapshot_decode("t.pickle", bytes.data, bytes.size, PLEAT__ANY_DEVICE, NULL,
                                     &trace));
    test_bytes_free(&bytes);
    return trace;
}

static void assert_import(const char *literal, const char *expected)
{
    pleat_trace *trace = import(literal);
    assert_events(trace, expected);
    pleat_trace_free(trace);
}

static void assert_refused(const char *literal, int device, const char *text)
{
    pleat_trace *trace;
    test_bytes bytes = test_pickle(4, literal);
    assert_result(pleat__snapshot_decode("t.pickle", bytes.data, bytes.size, device, NULL, &trace),
                  PLEAT_E_INPUT);
    if (strstr(pleat_last_error()->text, text) == NULL ||
        strstr(pleat_last_error()->text, "'t.pickle'") == NULL)
        fail_msg("'%s' is not in: %s", text, pleat_last_error()->text);
    test_bytes_free(&bytes);
}

/* One event of a snapshot's list. */
#define EVENT(action, addr, size)                                                                  \
    "{'action':'" action "','addr':" #addr ",'size':" #size ",'stream':0,'time_us':5},"
#define EVENTS(list) "{'segments':[],'device_traces':[[" list "]]}"

static void import_keeps_labels_streams_times(void **state)
{
    (void)state;
    pleat_trace *trace = import(
        "{'device_traces':[[], [], ["
        "{'action':'alloc','addr':1024,'size':100,'stream':0,'time_us':7,'user_metadata':'F'},"
        "{'action':'alloc','addr':2048,'size':200,'stream':140000000000000,'time_us':3},"
        "{'action':'alloc','addr':4096,'size':300,'stream':0,'time_us':8,'user_metadata':'F',"
        " 'pool_id':(0, 1)},"
        "{'action':'alloc','addr':8192,'size':400,'stream':0,'time_us':9,'user_metadata':'B',"
        " 'pool_id':(0, 0)},"
        "{'action':'free_requested','addr':4096,'size':300,'stream':0,'user_metadata':'B'},"
        "{'action':'free_completed','addr':4096,'size':300,'stream':0,'time_us':11}"
        "]], 'segments':[]}");
    assert_events(trace, "a0:100 a1:200 a2:300 a3:400 r2 c2");
    const pleat_trace_event *events = pleat_trace_events(trace);
    assert_string_equal(pleat_trace_label(trace, events[0].label), "F");
    assert_string_equal(pleat_trace_label(trace, events[1].label), "");
    assert_string_equal(pleat_trace_label(trace, events[2].label), "F");
    assert_string_equal(pleat_trace_label(trace, events[3].label), "B");
    assert_string_equal(pleat_trace_label(trace, events[4].label), "B");
    assert_string_equal(pleat_trace_label(trace, events[5].label), "");
    assert_int_equal(pleat_trace_label_count(trace), 3);
    assert_int_equal(pleat_trace_stream_count(trace), 3);
    assert_int_equal(pleat_trace_stream(trace, events[0].stream), 0);
    assert_int_equal(pleat_trace_stream(trace, events[1].stream), 140000000000000);
    assert_true(pleat_trace_stream(trace, events[2].stream) >> 63);
    assert_int_equal(events[3].stream, events[0].stream);
    /* A free is on its request's stream, pool and all. */
    assert_int_equal(events[4].stream, events[2].stream);
    const uint64_t times[] = {7, 3, 8, 9, 9, 11};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(events[i].time_us, times[i]);
        assert_int_equal(events[i].device, 2);
    }
    pleat_trace_free(trace);
}

#define FRAME(name, file, line) "{'name':'" name "','filename':'" file "','line':" #line "},"
#define MADE(addr, frames)                                                                         \
    "{'action':'alloc','addr':" #addr ",'size':8,'stream':0,'time_us':1,'frames':[" frames "]},"

/* The user's frames, innermost first; C++'s only where there are no others; nothing that would
 * break a line; of a deep stack the innermost. */
static void import_keeps_stack_frames(void **state)
{
    (void)state;
    static const char deep[] = FRAME("f", "/a/d.py", 1) FRAME("f", "/a/d.py", 2)
        FRAME("f", "/a/d.py", 3) FRAME("f", "/a/d.py", 4) FRAME("f", "/a/d.py", 5)
            FRAME("f", "/a/d.py", 6) FRAME("f", "/a/d.py", 7);
    char text[8192];
    snprintf(text, sizeof text, EVENTS("%s" MADE(9000, "%s%s") MADE(9500, "") "%s"),
             MADE(512, FRAME("alloc", "??", 0) FRAME("forward", "/home/me/net/model.py", 12)
                           FRAME("main", "train.py", 3))
                 MADE(1024, FRAME("alloc", "??", 0) FRAME("malloc", "/lib/c10/alloc.cpp", 7))
                     MADE(2048, FRAME("x\ty", "<stdin>", 1) "3, {'line':1}," FRAME(
                                    "g", "/usr/lib/site-packages/torch/nn/a/b/c.py", 2)),
             deep, deep,
             "{'action':'free','addr':512,'size':8,'frames':[" FRAME("z", "z.py", 1) "]}," MADE(
                 512, FRAME("forward", "/home/me/net/model.py", 12) FRAME("main", "train.py", 3)));
    pleat_trace *trace = import(text);
    assert_events(trace, "a0:8 a1:8 a2:8 a3:8 a4:8 r0 c0 a5:8");
    const pleat_trace_event *events = pleat_trace_events(trace);
    assert_string_equal(pleat_trace_site(trace, events[0].site),
                        "forward (me/net/model.py:12)\nmain (train.py:3)");
    assert_string_equal(pleat_trace_site(trace, events[1].site),
                        "alloc (??:0)\nmalloc (/lib/c10/alloc.cpp:7)");
    assert_string_equal(pleat_trace_site(trace, events[2].site),
                        "x?y (<stdin>:1)\ng (torch/nn/a/b/c.py:2)");
    const char *last = pleat_trace_site(trace, events[3].site);
    size_t lines = 1;
    for (const char *c = last; *c != '\0'; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 12);
    assert_int_equal(events[4].site, 0);
    assert_int_equal(events[5].site, 0); /* a free has none */
    assert_int_equal(events[7].site, events[0].site);
    pleat_trace_free(trace);
}

static void import_follows_addresses(void **state)
{
    (void)state;
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free_requested", 512, 10)
                             EVENT("free_completed", 512, 10) EVENT("alloc", 512, 20)),
                  "a0:10 r0 c0 a1:20");
    /* The free is complete only later: another stream was using the memory. */
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free_requested", 512, 10) EVENT(
                      "alloc", 1024, 20) EVENT("free_completed", 512, 10) EVENT("alloc", 512, 30)),
                  "a0:10 r0 a1:20 c0 a2:30");
    /* Without completions a request completes the free. */
    assert_import(
        EVENTS(EVENT("alloc", 512, 10) EVENT("free_requested", 512, 10) EVENT("alloc", 1024, 20)),
        "a0:10 r0 c0 a1:20");
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free", 512, 10)), "a0:10 r0 c0");
    /* A completion without its request, and frees that were not recorded. */
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free_completed", 512, 10)), "a0:10 r0 c0");
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("alloc", 512, 20)), "a0:10 r0 c0 a1:20");
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free_requested", 512, 10)
                             EVENT("alloc", 512, 20) EVENT("free_completed", 512, 20)),
                  "a0:10 r0 c0 a1:20 r1 c1");
    /* Frees of what is free. */
    assert_import(EVENTS(EVENT("alloc", 512, 10) EVENT("free_requested", 512, 10)
                             EVENT("free_completed", 512, 10) EVENT("free_requested", 512, 10)
                                 EVENT("free_completed", 512, 10)),
                  "a0:10 r0 c0");
}

#define SAID(addr, text)                                                                           \
    "{'action':'annotate','addr':" #addr ",'size':8,'stream':0,'time_us':1,'user_metadata':" text  \
    ",'frames':[" FRAME("_annotate_tensor", "memory.py", 9) "]},"

static const char *site_of(const pleat_trace *trace, size_t event)
{
    return pleat_trace_site(trace, pleat_trace_events(trace)[event].site);
}

/* Each once, in order, before the frames; of the tensor that is at the address then. */
static void import_puts_annotations_before_the_frames(void **state)
{
    (void)state;
    pleat_trace *trace =
        import(EVENTS(MADE(512, FRAME("f", "a.py", 1)) SAID(512, "'keys'") SAID(512, "'saved'")
                          SAID(512, "'keys'") EVENT("free", 512, 8) SAID(512, "'late'")
                              MADE(512, FRAME("f", "a.py", 1)) SAID(512, "'keys'") MADE(1024, "")
                                  SAID(1024, "'a\tb \"c\"'") SAID(1024, "''") SAID(1024, "7")
                                      SAID(4096, "'nobody'")));
    assert_events(trace, "a0:8 r0 c0 a1:8 a2:8");
    assert_string_equal(site_of(trace, 0), "\"keys\"\n\"saved\"\nf (a.py:1)");
    assert_string_equal(site_of(trace, 3), "\"keys\"\nf (a.py:1)");
    assert_string_equal(site_of(trace, 4), "\"a?b \"c\"\"");
    assert_int_equal(pleat_trace_site_count(trace), 4);
    pleat_trace_free(trace);
    assert_refused(EVENTS("{'action':'annotate','addr':'x','size':8}"), PLEAT__ANY_DEVICE,
                   "device_traces[0][0]: 'addr' is not a whole number");
}

/* What was allocated before the recording began, freed in it or live at its end. */
static void import_annotates_what_was_live_at_the_start(void **state)
{
    (void)state;
    pleat_trace *trace =
        import("{'segments':[{'device':0,'address':0,'total_size':1048576,'stream':0,'blocks':["
               "{'address':2048,'size':512,'requested_size':30,'state':'active_allocated'}]}],"
               "'device_traces':[[" SAID(1024, "'first'") SAID(2048, "'weights'")
                   EVENT("free", 1024, 60) "]]}");
    assert_events(trace, "S0:1048576 a0:60 a1:30 r0 c0");
    assert_string_equal(site_of(trace, 1), "\"first\"");
    assert_string_equal(site_of(trace, 2), "\"weights\"");
    pleat_trace_free(trace);
}

/* A tensor keeps four, each 256 bytes; of 70,000 tensors, each with its own, 65,536 keep theirs. */
static void import_bounds_annotations(void **state)
{
    (void)state;
    test_bytes text = {0};
    char one[512];
    test_bytes_add(&text, "{'device_traces':[[", 19);
    int length = snprintf(one, sizeof one,
                          MADE(512, "") "{'action':'annotate','addr':512,'size':8,"
                                        "'user_metadata':'%0300d'},",
                          0);
    test_bytes_add(&text, one, (size_t)length);
    for (int i = 0; i < 6; i++) {
        length =
            snprintf(one, sizeof one,
                     "{'action':'annotate','addr':512,'size':8,'user_metadata':'number %d'},", i);
        test_bytes_add(&text, one, (size_t)length);
    }
    for (int i = 0; i < 70000; i++) {
        length = snprintf(one, sizeof one,
                          "{'action':'alloc','addr':%d,'size':8},"
                          "{'action':'annotate','addr':%d,'size':8,'user_metadata':'%d'},",
                          1024 * i + 1024, 1024 * i + 1024, i);
        test_bytes_add(&text, one, (size_t)length);
    }
    test_bytes_add(&text, "]]}", 4);
    pleat_trace *trace = import((const char *)text.data);
    char expected[512];
    snprintf(expected, sizeof expected, "\"%0256d\"\n\"number 0\"\n\"number 1\"\n\"number 2\"", 0);
    assert_string_equal(site_of(trace, 0), expected);
    assert_string_equal(site_of(trace, 60000), "\"59999\"");
    assert_string_equal(site_of(trace, 70000), "");
    assert_int_equal(pleat_trace_site_count(trace), 1 + 65536 - 3);
    pleat_trace_free(trace);
    test_bytes_free(&text);
}

static void import_passes_over_what_it_does_not_know(void **state)
{
    (void)state;
    assert_import(EVENTS("{'action':'oom','device_free':1,'size':1,'stream':0},"
                         "{'action':'snapshot'},"
                         "{'action':'user_defined','addr':0,'size':0,'stream':0,'frames':[]},"
                         "{'action':'alloc','addr':512,'size':1,'frames':[{'line':1}],'new':{}}"),
                  "a0:1");
    assert_import("{'host_traces':3, 1:2, None:None, 'segments':[], 'device_traces':"
                  "[[{'action':'alloc','addr':512,'size':1, 5:6, 'stream':None}]]}",
                  "a0:1");
}

static void import_refuses_an_action_that_it_does_not_know(void **state)
{
    (void)state;
    assert_refused(
        EVENTS("{'action':'alloc','addr':512,'size':1}, {'action':'segment_move','addr':512}"),
        PLEAT__ANY_DEVICE, "device_traces[0][1]: the action 'segment_move' is none that is known");
}

#define BLOCK(address, size, requested, state)                                                     \
    "{'address':" #address ",'size':" #size ",'requested_size':" #requested ",'state':'" state "'" \
    "}"                                                                                            \
    ","
#define SEGMENT(address, size, blocks)                                                             \
    "{'device':0,'address':" #address ",'total_size':" #size                                       \
    ",'stream':0,'segment_type':'small','blocks':[" blocks "]},"

static void import_finds_what_was_live_at_the_start(void **state)
{
    (void)state;
    /* The ring lost the allocations of 4096 and 512; 1024 is live to the end; 2048 was traced. */
    assert_import("{'segments':[" SEGMENT(
                      0, 1048576,
                      BLOCK(512, 512, 1, "inactive") BLOCK(1024, 512, 400, "active_allocated")
                          BLOCK(2048, 512, 30, "active_allocated") BLOCK(
                              4096, 512, 1,
                              "inactive")) "],"
                                           "'device_traces':[[" EVENT("free_requested", 4096, 70)
                                               EVENT("free_completed", 4096, 70)
                                                   EVENT("alloc", 2048, 30)
                                                       EVENT("free_completed", 512, 60) "]]}",
                  "S0:1048576 a0:60 a1:400 a2:70 r2 c2 a3:30 r0 c0");
    /* Pending frees, by both names. */
    assert_import(
        "{'segments':[" SEGMENT(
            0, 1048576,
            BLOCK(512, 512, 11, "active_pending_free")
                BLOCK(1024, 512, 12,
                      "active_awaiting_free")) "],'device_traces':[[" EVENT("alloc", 4096, 1) "]]}",
        "S0:1048576 a0:11 a1:12 a2:1");
    /* An address that was freed and taken again. */
    assert_import(
        "{'segments':[" SEGMENT(
            0, 1048576, BLOCK(512, 512, 9, "active_allocated")) "],"
                                                                "'device_traces':[[" EVENT(
                                                                    "free_completed", 512, 8)
                                                                    EVENT("alloc", 512, 9) "]]}",
        "S0:1048576 a0:8 r0 c0 a1:9");
}

static void import_reads_old_dumps(void **state)
{
    (void)state;
    /* Blocks without address, sizes in their history. */
    assert_import(
        "{'segments':[{'device':0,'address':4096,'total_size':2097152,'stream':0,'blocks':["
        "{'size':1024,'state':'active_allocated','history':[{'addr':1,'real_size':777}]},"
        "{'size':512,'state':'inactive'},"
        "{'size':512,'state':'active_allocated','history':[]},"
        "{'size':512,'state':'active_allocated','history':[{}]}]}],'device_traces':[[" EVENT(
            "alloc", 512, 1) "]]}",
        "S0:2097152 a0:777 a1:512 a2:512 a3:1");
}

/* What was live at the end says nothing of what came before; torch notes the snapshot itself. */
static void import_refuses_a_snapshot_without_events(void **state)
{
    (void)state;
    const char *block = BLOCK(512, 512, 9, "active_allocated");
    char text[1024];
    static const char *const traces[] = {"", "[]", "[{'action':'snapshot'}]", "[],[]"};
    for (size_t i = 0; i < sizeof traces / sizeof *traces; i++) {
        snprintf(text, sizeof text,
                 "{'segments':[{'device':0,'address':0,'total_size':1048576,'blocks':[%s]}],"
                 "'device_traces':[%s]}",
                 block, traces[i]);
        assert_refused(text, PLEAT__ANY_DEVICE,
                       "it holds what was live at the end and no events: was the recording on?");
    }
    /* torch.cuda.memory_snapshot() alone. */
    assert_refused("[" SEGMENT(0, 100, ) "]", PLEAT__ANY_DEVICE,
                   "no events: was the recording on?");
}

/* The last of them, and where it was. */
static void import_keeps_what_was_refused(void **state)
{
    (void)state;
    pleat_trace *trace =
        import(EVENTS("{'action':'oom','size':5,'device_free':6,'stream':0}," EVENT(
            "alloc", 512,
            7) "{'action':'oom','size':3000,'device_free':123,'stream':9}," EVENT("free", 512, 7)));
    pleat__refusal refusal = pleat__trace_refusal(trace);
    assert_events(trace, "a0:7 r0 c0");
    assert_int_equal(refusal.count, 2);
    assert_int_equal(refusal.bytes, 3000);
    assert_int_equal(refusal.free_bytes, 123);
    assert_int_equal(refusal.stream, 9);
    assert_int_equal(refusal.event, 1);
    pleat_trace_free(trace);
    trace = import(EVENTS(EVENT("alloc", 512, 7) "{'action':'oom','size':3000}"));
    assert_int_equal(pleat__trace_refusal(trace).event, 1);
    pleat_trace_free(trace);
    /* Where mappings are cut it stays where it was. */
    trace = import(EVENTS(EVENT("segment_map", 0, 40) "{'action':'oom','size':3000}," EVENT(
        "segment_unmap", 20, 10)));
    assert_events(trace, "S0:20 S1:10 S2:10 s1");
    assert_int_equal(pleat__trace_refusal(trace).event, 3);
    pleat_trace_free(trace);
    trace = import(EVENTS(EVENT("alloc", 512, 7)));
    assert_int_equal(pleat__trace_refusal(trace).count, 0);
    pleat_trace_free(trace);
}

static void import_keeps_segments(void **state)
{
    (void)state;
    assert_import(EVENTS(EVENT("segment_alloc", 4096, 2097152) EVENT("alloc", 4096, 5)
                             EVENT("free", 4096, 5) EVENT("segment_free", 4096, 2097152)
                                 EVENT("segment_alloc", 4096, 20971520)),
                  "S0:2097152 a0:5 r0 c0 s0 S1:20971520");
    /* Given back without having been seen; still there at the end without having been seen. */
    assert_import("{'segments':[" SEGMENT(0, 100, )
                      SEGMENT(200, 300, ) "],"
                                          "'device_traces':[[" EVENT("segment_free", 600, 50)
                                              EVENT("segment_alloc", 200, 300) "]]}",
                  "S0:100 S1:50 s1 S2:300");
    /* Expandable segments: unmapped in other ranges than mapped. */
    assert_import(EVENTS(EVENT("segment_map", 0, 40) EVENT("segment_map", 40, 20)
                             EVENT("segment_unmap", 20, 30) EVENT("segment_map", 20, 20)),
                  "S0:20 S1:20 S2:10 S3:10 s1 s2 S4:20");
    /* Mapped before the recording began: what is unmapped, and what is there at the end. */
    assert_import("{'segments':[{'device':0,'address':0,'total_size':60,'is_expandable':True}],"
                  "'device_traces':[[" EVENT("segment_unmap", 20, 20) EVENT("segment_map", 20, 20)
                      EVENT("segment_unmap", 100, 20) "]]}",
                  "S0:20 S1:20 S2:20 S3:20 s1 S4:20 s3");
}

/* A trace file that has nothing of the device, of which the caller gets nothing to free. */
static void import_of_a_trace_without_the_device_gives_none(void **state)
{
    (void)state;
    test_bytes bytes =
        test_pickle(4, "{'segments':[],'device_traces':[[" EVENT("alloc", 512, 7) "]]}");
    const char *path = test_path("one.trace");
    pleat_trace *trace;
    assert_ok(pleat__snapshot_decode("t.pickle", bytes.data, bytes.size, 0, NULL, &trace));
    assert_ok(pleat_trace_write(trace, path));
    pleat_trace_free(trace);
    test_bytes_free(&bytes);
    assert_ok(pleat__trace_import(path, 0, NULL, &trace));
    pleat_trace_free(trace);
    assert_true(pleat__trace_import(path, 1, NULL, &trace) != PLEAT_OK);
    assert_null(trace);
    assert_int_equal(unlink(path), 0);
}

static void import_asks_which_device(void **state)
{
    (void)state;
    const char *two = "{'segments':[{'device':5,'address':1,'total_size':2,'blocks':[]}],"
                      "'device_traces':[[{'action':'snapshot'}],[" EVENT(
                          "alloc", 512, 7) "],[],[" EVENT("segment_alloc", 1, 2) "]]}";
    assert_refused(two, PLEAT__ANY_DEVICE, "devices 1, 3");
    assert_refused(two, 0, "no events of device 0, but of 1, 3");
    assert_refused(two, 5, "no events of device 5");
    assert_refused(two, 300, "no events of device 300");
    test_bytes bytes = test_pickle(4, two);
    pleat_trace *trace;
    assert_ok(pleat__snapshot_decode("t.pickle", bytes.data, bytes.size, 1, NULL, &trace));
    assert_events(trace, "a0:7");
    assert_int_equal(pleat_trace_events(trace)[0].device, 1);
    pleat_trace_free(trace);
    assert_ok(pleat__snapshot_decode("t.pickle", bytes.data, bytes.size, 3, NULL, &trace));
    assert_events(trace, "S0:2");
    pleat_trace_free(trace);
    test_bytes_free(&bytes);
    assert_refused("{'segments':[],'device_traces':[[],[]]}", PLEAT__ANY_DEVICE, "no events");
    assert_refused("{'segments':[{'device':256}]}", PLEAT__ANY_DEVICE, "device 256");
}

static void write_gzip(const char *path, const test_bytes *bytes, const char *mode)
{
    gzFile file = gzopen(path, mode);
    assert_non_null(file);
    assert_int_equal(gzwrite(file, bytes->data, (unsigned)bytes->size), (int)bytes->size);
    assert_int_equal(gzclose(file), Z_OK);
}

static void import_reads_every_protocol_gzipped_or_not(void **state)
{
    (void)state;
    const char *literal =
        EVENTS(EVENT("alloc", 140235000000512, 10) EVENT("alloc", 18446744073709551104, 300) EVENT(
            "free_requested", 140235000000512, 10) EVENT("free_completed", 140235000000512, 10));
    const char *path = test_path("t.pickle"), *zipped = test_path("t.pickle.gz");
    for (int protocol = 2; protocol <= 5; protocol++) {
        test_bytes bytes = test_pickle(protocol, literal);
        test_file_write(path, bytes.data, bytes.size);
        write_gzip(zipped, &bytes, "wb");
        for (int k = 0; k < 2; k++) {
            pleat_trace *trace;
            pleat__trace_form form;
            assert_ok(pleat__trace_import(k ? zipped : path, PLEAT__ANY_DEVICE, &form, &trace));
            assert_int_equal(form, PLEAT__FORM_SNAPSHOT);
            assert_events(trace, "a0:10 a1:300 r0 c0");
            pleat_trace_free(trace);
        }
        test_bytes_free(&bytes);
    }
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(zipped), 0);
}

static void import_opens_traces_and_tables_too(void **state)
{
    (void)state;
    const char *path = test_path("t"), *zipped = test_path("t.gz");
    const char *csv = "id,lower,upper,size\na,0,3,100\n";
    pleat_trace *trace, *again;
    pleat__trace_form form;
    test_bytes bytes = {0};
    test_bytes_add(&bytes, csv, strlen(csv));
    /* Two members, one behind the other, are one file. */
    write_gzip(zipped, &bytes, "wb");
    test_bytes more = {0};
    test_bytes_add(&more, "b,1,2,5\n", 8);
    write_gzip(zipped, &more, "ab");
    assert_ok(pleat__trace_import(zipped, PLEAT__ANY_DEVICE, &form, &trace));
    assert_int_equal(form, PLEAT__FORM_CSV);
    assert_events(trace, "m0 a0:100 a1:5 r1 c1 r0 c0");
    assert_ok(pleat_trace_write(trace, path));
    assert_ok(pleat__trace_import(path, PLEAT__ANY_DEVICE, &form, &again));
    assert_int_equal(form, PLEAT__FORM_TRACE);
    assert_int_equal(pleat_trace_fingerprint(trace), pleat_trace_fingerprint(again));
    pleat_trace_free(again);
    test_bytes file = test_file_read(path);
    write_gzip(zipped, &file, "wb");
    assert_ok(pleat__trace_import(zipped, PLEAT__ANY_DEVICE, NULL, &again));
    assert_int_equal(pleat_trace_fingerprint(trace), pleat_trace_fingerprint(again));
    pleat_trace_free(again);
    pleat_trace_free(trace);
    test_bytes_free(&file);
    test_bytes_free(&bytes);
    test_bytes_free(&more);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(zipped), 0);
}

static void assert_csv(const char *csv, const char *expected)
{
    pleat_trace *trace;
    assert_ok(pleat__csv_decode("t.csv", (const uint8_t *)csv, strlen(csv), &trace));
    assert_events(trace, expected);
    pleat_trace_free(trace);
}

static void import_orders_lifetimes(void **state)
{
    (void)state;
    /* Frees before what lives for no time, that before allocations. */
    assert_csv("id,lower,upper,size\n0,5,9,50\n1,0,5,10\n2,5,5,7\n3,0,9,20\n",
               "m0 a0:10 a1:20 r0 c0 a2:7 r2 c2 a3:50 r3 c3 r1 c1");
    /* Columns in any order, others between them; blanks; no newline at the end; CRLF. */
    assert_csv("size, id ,name,upper,lower\r\n 8 ,x y,,3, 1\r\n\r\n9,z,foo,4,2",
               "m0 a0:8 a1:9 r0 c0 "
               "r1 c1");
    assert_csv("id,lower,upper,size\n0,18446744073709551614,18446744073709551615,0\n",
               "m0 a0:0 r0 c0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(import_keeps_labels_streams_times),
        cmocka_unit_test(import_keeps_stack_frames),
        cmocka_unit_test(import_follows_addresses),
        cmocka_unit_test(import_puts_annotations_before_the_frames),
        cmocka_unit_test(import_annotates_what_was_live_at_the_start),
        cmocka_unit_test(import_bounds_annotations),
        cmocka_unit_test(import_passes_over_what_it_does_not_know),
        cmocka_unit_test(import_refuses_an_action_that_it_does_not_know),
        cmocka_unit_test(import_finds_what_was_live_at_the_start),
        cmocka_unit_test(import_reads_old_dumps),
        cmocka_unit_test(import_refuses_a_snapshot_without_events),
        cmocka_unit_test(import_keeps_what_was_refused),
        cmocka_unit_test(import_keeps_segments),
        cmocka_unit_test(import_of_a_trace_without_the_device_gives_none),
        cmocka_unit_test(import_asks_which_device),
        cmocka_unit_test(import_reads_every_protocol_gzipped_or_not),
        cmocka_unit_test(import_opens_traces_and_tables_too),
        cmocka_unit_test(import_orders_lifetimes),
    };
    return cmocka_run_group_tests_name("import", tests, NULL, test_folder_remove);
}
