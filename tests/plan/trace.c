/*
 * trace.c: traces in memory and as files.
 */
#include "files.h"

#include <pleat/trace.h>

static pleat_result add(pleat_trace *trace, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    pleat_trace_event event = {.kind = (uint8_t)kind, .request = request, .size = size};
    return pleat_trace_add(trace, &event);
}

static pleat_trace *new_trace(void)
{
    pleat_trace *trace;
    uint16_t stream;
    assert_ok(pleat_trace_new(&trace));
    assert_ok(pleat_trace_add_stream(trace, 0, &stream));
    assert_int_equal(stream, 0);
    return trace;
}

static void trace_keeps_what_was_added(void **state)
{
    (void)state;
    pleat_trace *trace = new_trace();
    uint32_t label;
    uint16_t stream;
    assert_int_equal(pleat_trace_label_count(trace), 1);
    assert_ok(pleat_trace_add_label(trace, "", 0, &label));
    assert_int_equal(label, 0);
    for (uint32_t i = 0; i < 300; i++) {
        char text[16];
        int length = snprintf(text, sizeof text, "iter=%u", i);
        for (int again = 0; again < 2; again++) {
            assert_ok(pleat_trace_add_label(trace, text, (size_t)length, &label));
            assert_int_equal(label, i + 1);
            assert_ok(pleat_trace_add_stream(trace, 0x7000 + i * 64, &stream));
            assert_int_equal(stream, i + 1);
        }
    }
    assert_string_equal(pleat_trace_label(trace, 300), "iter=299");
    assert_string_equal(pleat_trace_label(trace, 301), "");
    assert_int_equal(pleat_trace_stream(trace, 300), 0x7000 + 299 * 64);
    assert_int_equal(pleat_trace_stream_count(trace), 301);

    assert_ok(add(trace, PLEAT_EVENT_SEGMENT_ALLOC, 0, 2 << 20));
    assert_ok(add(trace, PLEAT_EVENT_ALLOC, 0, 1000));
    assert_ok(add(trace, PLEAT_EVENT_MARK, 77, 77));
    assert_ok(add(trace, PLEAT_EVENT_FREE_REQUESTED, 0, 0));
    assert_ok(add(trace, PLEAT_EVENT_FREE_COMPLETED, 0, 5));
    assert_ok(add(trace, PLEAT_EVENT_SEGMENT_FREE, 0, 0));
    assert_int_equal(pleat_trace_event_count(trace), 6);
    assert_int_equal(pleat_trace_request_count(trace), 1);
    const pleat_trace_event *events = pleat_trace_events(trace);
    assert_int_equal(events[1].size, 1000);
    assert_int_equal(events[2].request, 0);
    assert_int_equal(events[2].size, 0);
    /* Frees carry the size of what they free. */
    assert_int_equal(events[3].size, 1000);
    assert_int_equal(events[4].size, 1000);
    assert_int_equal(events[5].size, 2 << 20);
    pleat_trace_free(trace);
    pleat_trace_free(NULL);
}

/* Whatever a file says: a plan takes one of a free's two events, by the stream, and numbers
 * requests by device. */
static void trace_frees_are_of_their_requests_stream_and_device(void **state)
{
    (void)state;
    pleat_trace *trace = new_trace();
    uint16_t other;
    assert_ok(pleat_trace_add_stream(trace, 77, &other));
    pleat_trace_event event = {
        .kind = PLEAT_EVENT_ALLOC, .stream = other, .size = 512, .device = 3};
    assert_ok(pleat_trace_add(trace, &event));
    assert_ok(add(trace, PLEAT_EVENT_FREE_REQUESTED, 0, 0));
    assert_ok(add(trace, PLEAT_EVENT_FREE_COMPLETED, 0, 0));
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(pleat_trace_events(trace)[i].stream, other);
        assert_int_equal(pleat_trace_events(trace)[i].device, 3);
    }
    pleat_trace_free(trace);
}

static void trace_refuses_what_breaks_its_rules(void **state)
{
    (void)state;
    pleat_trace *trace = new_trace();
    assert_result(add(trace, PLEAT_EVENT_ALLOC, 1, 1), PLEAT_E_INPUT);
    assert_result(add(trace, PLEAT_EVENT_ALLOC, 0, (1ull << 48) + 1), PLEAT_E_INPUT);
    assert_result(add(trace, PLEAT_EVENT_ALLOC, 0, UINT64_MAX), PLEAT_E_INPUT);
    assert_result(add(trace, PLEAT_EVENT_FREE_REQUESTED, 0, 0), PLEAT_E_INPUT);
    assert_result(add(trace, (pleat_event_kind)6, 0, 0), PLEAT_E_INPUT);
    assert_ok(add(trace, PLEAT_EVENT_ALLOC, 0, 0));
    assert_result(add(trace, PLEAT_EVENT_ALLOC, 0, 1), PLEAT_E_INPUT);
    assert_result(add(trace, PLEAT_EVENT_FREE_COMPLETED, 0, 0), PLEAT_E_INPUT);
    assert_non_null(strstr(pleat_last_error()->text, "request 0"));
    assert_result(add(trace, PLEAT_EVENT_SEGMENT_FREE, 0, 0), PLEAT_E_INPUT);
    assert_ok(add(trace, PLEAT_EVENT_FREE_REQUESTED, 0, 0));
    assert_result(add(trace, PLEAT_EVENT_FREE_REQUESTED, 0, 0), PLEAT_E_INPUT);
    assert_ok(add(trace, PLEAT_EVENT_FREE_COMPLETED, 0, 0));
    assert_result(add(trace, PLEAT_EVENT_FREE_COMPLETED, 0, 0), PLEAT_E_INPUT);
    pleat_trace_event event = {.kind = PLEAT_EVENT_MARK, .label = 1};
    assert_result(pleat_trace_add(trace, &event), PLEAT_E_INPUT);
    event = (pleat_trace_event){.kind = PLEAT_EVENT_MARK, .stream = 1};
    assert_result(pleat_trace_add(trace, &event), PLEAT_E_INPUT);
    uint32_t label;
    assert_result(pleat_trace_add_label(trace, "a\0b", 3, &label), PLEAT_E_INPUT);
    static char longest[65536];
    memset(longest, 'a', sizeof longest);
    assert_result(pleat_trace_add_label(trace, longest, sizeof longest, &label), PLEAT_E_INPUT);
    assert_ok(pleat_trace_add_label(trace, longest, sizeof longest - 1, &label));
    /* Texts are UTF-8: an overlong form, a surrogate, a stray byte, a character cut off. */
    static const char *const bad[] = {"a\xc0\x80", "\xed\xa0\x80",     "ab\xff",
                                      "a\xe2\x82", "\xf4\x90\x80\x80", "\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_result(pleat_trace_add_label(trace, bad[i], strlen(bad[i]), &label), PLEAT_E_INPUT);
        assert_non_null(strstr(pleat_last_error()->text, "UTF-8"));
        assert_result(pleat_trace_add_site(trace, bad[i], strlen(bad[i]), &label), PLEAT_E_INPUT);
    }
    assert_ok(pleat_trace_add_label(trace, "\xe2\x82\xac \xf0\x9f\x98\x80 \xc3\xa9", 11, &label));
    event = (pleat_trace_event){.kind = PLEAT_EVENT_ALLOC, .request = 1, .site = 1};
    assert_result(pleat_trace_add(trace, &event), PLEAT_E_INPUT);
    assert_int_equal(pleat_trace_event_count(trace), 3);
    for (uint32_t i = 1; i <= 256; i++)
        assert_ok(add(trace, PLEAT_EVENT_ALLOC, i, 1ull << 48));
    assert_result(add(trace, PLEAT_EVENT_ALLOC, 257, 1), PLEAT_E_INPUT);
    pleat_trace_free(trace);
}

/* A trace with every kind of event, times that go back, several devices, streams and labels. */
static pleat_trace *random_trace(test_random *random, uint32_t events)
{
    pleat_trace *trace;
    uint32_t label, live[64], live_count = 0, pending[64], pending_count = 0, segment = 0;
    uint16_t stream;
    assert_ok(pleat_trace_new(&trace));
    for (uint32_t i = 0; i < 5; i++) {
        char text[16];
        int length = snprintf(text, sizeof text, "phase=%u", i);
        assert_ok(pleat_trace_add_label(trace, text, (size_t)length, &label));
        assert_ok(pleat_trace_add_stream(trace, i ? UINT64_MAX - i : 0, &stream));
        length = snprintf(text, sizeof text, "f%u (a.py:3)", i);
        assert_ok(pleat_trace_add_site(trace, text, (size_t)length, &label));
    }
    pleat_trace_set_device_bytes(trace, 140ull << 30);
    pleat_trace_event event = {.time_us = 1795228529526470};
    uint32_t next = 0;
    for (uint32_t i = 0; i < events; i++) {
        uint64_t dice = test_random_next(random);
        if (dice % 16 == 0) {
            event.label = (uint32_t)(dice >> 8) % 6;
            event.stream = (uint16_t)((dice >> 16) % 5);
            event.device = (uint8_t)((dice >> 24) % 3);
        }
        event.time_us += dice >> 60;
        event.time_us -= (dice >> 56) % 3;
        event.size = 0;
        unsigned choice = (dice >> 32) % 16;
        if (choice == 0) {
            event.kind = PLEAT_EVENT_MARK;
            event.request = 0;
        } else if (choice == 1) {
            event.kind = PLEAT_EVENT_SEGMENT_ALLOC;
            event.request = segment++;
            event.size = 2 << 20;
        } else if (choice < 8 && live_count < 64) {
            event.kind = PLEAT_EVENT_ALLOC;
            event.request = live[live_count++] = next++;
            event.size = test_random_below(random, 1ull << (dice >> 40) % 40);
            event.site = (uint32_t)(dice >> 4) % 6;
        } else if (choice < 12 && live_count > 0 && pending_count < 64) {
            uint32_t at = (uint32_t)test_random_below(random, live_count);
            event.kind = PLEAT_EVENT_FREE_REQUESTED;
            event.request = pending[pending_count++] = live[at];
            live[at] = live[--live_count];
        } else if (pending_count > 0) {
            event.kind = PLEAT_EVENT_FREE_COMPLETED;
            event.request = pending[--pending_count];
        } else {
            continue;
        }
        assert_ok(pleat_trace_add(trace, &event));
    }
    return trace;
}

static void assert_same_trace(const pleat_trace *a, const pleat_trace *b)
{
    assert_int_equal(pleat_trace_event_count(a), pleat_trace_event_count(b));
    for (size_t i = 0; i < pleat_trace_event_count(a); i++)
        assert_memory_equal(&pleat_trace_events(a)[i], &pleat_trace_events(b)[i],
                            sizeof(pleat_trace_event));
    assert_int_equal(pleat_trace_label_count(a), pleat_trace_label_count(b));
    assert_int_equal(pleat_trace_site_count(a), pleat_trace_site_count(b));
    for (uint32_t i = 0; i < pleat_trace_site_count(a); i++)
        assert_string_equal(pleat_trace_site(a, i), pleat_trace_site(b, i));
    for (uint32_t i = 0; i < pleat_trace_label_count(a); i++)
        assert_string_equal(pleat_trace_label(a, i), pleat_trace_label(b, i));
    assert_int_equal(pleat_trace_stream_count(a), pleat_trace_stream_count(b));
    for (uint32_t i = 0; i < pleat_trace_stream_count(a); i++)
        assert_int_equal(pleat_trace_stream(a, (uint16_t)i), pleat_trace_stream(b, (uint16_t)i));
    assert_int_equal(pleat_trace_device_bytes(a), pleat_trace_device_bytes(b));
    assert_int_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
}

static void trace_file_gives_back_the_trace(void **state)
{
    (void)state;
    test_random random = test_random_begin("trace_file_gives_back_the_trace", 0x7ace);
    const char *path = test_path("t.trace");
    for (uint32_t round = 0; round < 30; round++) {
        uint32_t events = round == 0 ? 0 : round == 1 ? 100000 : round * 20;
        pleat_trace *trace = random_trace(&random, events), *read;
        assert_ok(pleat_trace_write(trace, path));
        test_bytes first = test_file_read(path);
        assert_ok(pleat_trace_read(path, &read));
        assert_same_trace(trace, read);
        assert_ok(pleat_trace_write(read, path));
        test_bytes second = test_file_read(path);
        assert_int_equal(first.size, second.size);
        assert_memory_equal(first.data, second.data, first.size);
        test_bytes_free(&first);
        test_bytes_free(&second);
        pleat_trace_free(trace);
        pleat_trace_free(read);
    }
    assert_int_equal(unlink(path), 0);
}

static void trace_fingerprint_sees_what_plans(void **state)
{
    (void)state;
    pleat_trace *a = new_trace(), *b = new_trace();
    assert_int_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    pleat_trace_event event = {.kind = PLEAT_EVENT_ALLOC, .size = 1000, .time_us = 5};
    assert_ok(pleat_trace_add(a, &event));
    assert_int_not_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    event.time_us = 6;
    assert_ok(pleat_trace_add(b, &event));
    assert_int_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    event = (pleat_trace_event){.kind = PLEAT_EVENT_SEGMENT_ALLOC, .size = 2 << 20};
    assert_ok(pleat_trace_add(a, &event));
    assert_int_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    event = (pleat_trace_event){.kind = PLEAT_EVENT_MARK};
    assert_ok(pleat_trace_add(a, &event));
    assert_int_not_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    assert_ok(pleat_trace_add(b, &event));
    assert_int_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    uint32_t label;
    assert_ok(pleat_trace_add_label(a, "x", 1, &label));
    assert_int_not_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    assert_ok(pleat_trace_add_label(b, "y", 1, &label));
    assert_int_not_equal(pleat_trace_fingerprint(a), pleat_trace_fingerprint(b));
    pleat_trace_free(a);
    pleat_trace_free(b);
}

static void trace_write_is_whole_or_not_at_all(void **state)
{
    (void)state;
    pleat_trace *trace = new_trace(), *read;
    assert_result(pleat_trace_write(trace, "/nonexistent/t.trace"), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "/nonexistent/t.trace"));
    assert_result(pleat_trace_read(test_path("none"), &read), PLEAT_E_IO);
    assert_result(pleat_trace_read(test_folder(), &read), PLEAT_E_IO);
    assert_result(pleat_trace_write(trace, test_folder()), PLEAT_E_IO);
    pleat_trace_free(trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trace_keeps_what_was_added),
        cmocka_unit_test(trace_frees_are_of_their_requests_stream_and_device),
        cmocka_unit_test(trace_refuses_what_breaks_its_rules),
        cmocka_unit_test(trace_file_gives_back_the_trace),
        cmocka_unit_test(trace_fingerprint_sees_what_plans),
        cmocka_unit_test(trace_write_is_whole_or_not_at_all),
    };
    return cmocka_run_group_tests_name("trace", tests, NULL, test_folder_remove);
}
