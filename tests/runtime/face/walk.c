/*
 * walk.c: questions about all of a runtime at once: every block in order of address, and dumps.
 */
#include "fixture.h"

#include <time.h>

typedef struct walked {
    pleat_va until; /* where the last block ended; 0 at first */
    uint64_t allocated, waiting, bytes, requested;
    bool ordered;
} walked;

static void note_block(void *context, const pleat_block *block)
{
    walked *w = context;
    w->ordered = w->ordered && block->address >= w->until && block->bytes > 0;
    w->until = block->address + block->bytes;
    w->bytes += block->bytes;
    w->allocated += block->allocated != 0;
    w->waiting += block->allocated == 0 && block->requested != 0;
    w->requested += block->requested;
}

static void walk_visits_every_mapped_byte_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 1024 * MIB, 0);
        pleat_va kept[24], gone[24];
        uint64_t requested = 0;
        for (uint64_t n = 0; n < 24; n++) {
            uint64_t bytes = (n % 3 == 0 ? 700 : MIB) * (n + 1);
            gone[n] = take(&f, bytes, 0);
            kept[n] = take(&f, bytes, 0);
            requested += bytes;
        }
        for (int n = 0; n < 24; n++) {
            assert_true(pleat_owns(f.runtime, kept[n]));
            assert_ok(pleat_free(f.runtime, gone[n]));
        }
        int on_the_stack;
        assert_false(pleat_owns(f.runtime, (pleat_va)(uintptr_t)&on_the_stack));
        assert_false(pleat_owns(f.runtime, 0));
        walked w = {.ordered = true};
        assert_ok(pleat_walk(f.runtime, note_block, &w));
        assert_true(w.ordered);
        assert_int_equal(w.allocated, 24);
        assert_int_equal(w.requested, requested);
        assert_int_equal(w.bytes, pleat_stats_of(f.runtime).virtual_bytes);
        for (int n = 0; n < 24; n++)
            assert_ok(pleat_free(f.runtime, kept[n]));
        w = (walked){.ordered = true};
        assert_ok(pleat_walk(f.runtime, note_block, &w));
        assert_int_equal(w.allocated, 0);
        assert_result(pleat_walk(f.runtime, NULL, NULL), PLEAT_E_INVALID);
        end(&f);
    }
}

static double own_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Memory that is free is passed over at once, however much it is: granule by granule it took some
 * seconds, under the lock. */
static void walk_passes_over_free_memory(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 64ull << 30, 0);
        pleat_va large = take(&f, 32ull << 30, 0), behind = take(&f, 2 * MIB, 0);
        assert_ok(pleat_free(f.runtime, large));
        walked w = {.ordered = true};
        double begun = own_seconds();
        assert_ok(pleat_walk(f.runtime, note_block, &w));
        assert_true(own_seconds() - begun < 0.4);
        assert_true(w.ordered);
        assert_int_equal(w.allocated, 1);
        assert_ok(pleat_free(f.runtime, behind));
        end(&f);
    }
}

/* How often `what` occurs in a dump. */
static uint32_t dumped(fixture *f, pleat_dump_format format, const char *what)
{
    static char line[1 << 16];
    uint32_t count = 0;
    FILE *file = tmpfile();
    assert_non_null(file);
    assert_ok(pleat_dump(f->runtime, format, file));
    rewind(file);
    while (fgets(line, sizeof line, file) != NULL)
        for (const char *at = line; (at = strstr(at, what)) != NULL; at++)
            count++;
    fclose(file);
    return count;
}

/* What the program has freed is not allocated any more, and not free before others are done. */
static void walk_tells_what_waits_from_what_lives(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        pleat_block block;
        uint64_t before, after;
        begin(&f, policies[i], 1024 * MIB, 0);
        pleat_va live = take(&f, 5 * MIB, 7), freed = take(&f, 30 * MIB, 7);
        assert_ok(pleat_record_stream(f.runtime, freed, 8));
        assert_ok(pleat__host_stream_hold(&f.vmm, 8));
        assert_ok(pleat_free(f.runtime, freed));
        walked w = {.ordered = true};
        assert_ok(pleat_walk(f.runtime, note_block, &w));
        assert_true(w.ordered && w.allocated == 1 && w.waiting == 1);
        assert_int_equal(w.requested, 35 * MIB);
        assert_ok(pleat_block_of(f.runtime, live + MIB, &block));
        assert_true(block.allocated);
        assert_result(pleat_block_of(f.runtime, freed + MIB, &block), PLEAT_E_NOT_FOUND);
        assert_result(pleat_adjacent_free(f.runtime, freed, &before, &after), PLEAT_E_NOT_FOUND);
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "\"allocated\": true"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, "stream 0x7\n"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, "stream 0x7, freed, and waits\n"), 1);
        assert_ok(pleat__host_stream_release(&f.vmm, 8));
        assert_ok(pleat_empty_cache(f.runtime));
        w = (walked){.ordered = true};
        assert_ok(pleat_walk(f.runtime, note_block, &w));
        assert_true(w.allocated == 1 && w.waiting == 0);
        end(&f);
    }
}

static void dump_says_all_in_text_and_json(void **state)
{
    (void)state;
    for (size_t i = 0; i < POLICIES; i++) {
        fixture f;
        begin(&f, policies[i], 1024 * MIB, 0);
        pleat_va a = take(&f, 1000, 7), b = take(&f, 5 * MIB, 7), c = take(&f, 40 * MIB, 8);
        assert_ok(pleat_free(f.runtime, b));
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "\"allocated\": true"), 2);
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "\"requests\": 3,"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "\"streams\": [7, 8]"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "{"), dumped(&f, PLEAT_DUMP_JSON, "}"));
        assert_int_equal(dumped(&f, PLEAT_DUMP_JSON, "\"now\": \"heap\""),
                         strcmp(policies[i], "pleat") == 0);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, " stream 0x"), 2);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, "asked 41943040 stream 0x8\n"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, "memory verbs issued"), 1);
        assert_int_equal(dumped(&f, PLEAT_DUMP_TEXT, policies[i]), 1);
        assert_ok(pleat_free(f.runtime, a));
        assert_ok(pleat_free(f.runtime, c));
        end(&f);
    }
}

static void dump_reports_what_cannot_be_written(void **state)
{
    (void)state;
    fixture f;
    begin(&f, "pleat", 1024 * MIB, 0);
    assert_result(pleat_dump(f.runtime, PLEAT_DUMP_TEXT, NULL), PLEAT_E_INVALID);
    assert_result(pleat_dump(f.runtime, (pleat_dump_format)2, stdout), PLEAT_E_INVALID);
    FILE *full = fopen("/dev/full", "w");
    assert_non_null(full);
    assert_result(pleat_dump(f.runtime, PLEAT_DUMP_JSON, full), PLEAT_E_IO);
    fclose(full);
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(walk_visits_every_mapped_byte_once),
        cmocka_unit_test(walk_passes_over_free_memory),
        cmocka_unit_test(walk_tells_what_waits_from_what_lives),
        cmocka_unit_test(dump_says_all_in_text_and_json),
        cmocka_unit_test(dump_reports_what_cannot_be_written),
    };
    return cmocka_run_group_tests_name("walk", tests, NULL, NULL);
}
