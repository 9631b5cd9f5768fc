/*
 * mutations.c: 10,000 random changes to sound files. Whatever comes in, a reader gives back a sound
 * trace or plan, or an error that names the file.
 *
 * Traces and plans end in a checksum, which nearly every change would break: so it is made right
 * again in most cases, for what lies behind it to be tried.
 */
#include "jobs.h"
#include "packs.h"
#include "pickles.h"
#include "plans.h"

#include <plan/trace/import.h>

#define MUTATIONS 10000

typedef enum form { FORM_SNAPSHOT, FORM_TRACE, FORM_PLAN, FORM_CSV, FORM_GZIP, FORMS } form;

static const char snapshot[] =
    "{'segments':[{'device':0,'address':0,'total_size':2097152,'stream':0,'segment_pool_id':(0, 1),"
    "'is_expandable':False,'blocks':[{'address':0,'size':512,'requested_size':400,"
    "'state':'active_allocated'},{'address':512,'size':1024,'state':'inactive'},"
    "{'size':512,'state':'active_pending_free','history':[{'real_size':300}]}]},"
    "{'device':0,'address':8388608,'total_size':4194304,'is_expandable':True,'blocks':[]}],"
    "'device_traces':[["
    "{'action':'free_requested','addr':1048576,'size':700,'stream':0,'time_us':100},"
    "{'action':'segment_map','addr':8388608,'size':2097152,'stream':0,'time_us':101},"
    "{'action':'alloc','addr':8388608,'size':1000,'stream':7,'time_us':102,"
    " 'user_metadata':'iter=0;phase=F'},"
    "{'action':'free_completed','addr':1048576,'size':700,'stream':0,'time_us':300000},"
    "{'action':'segment_unmap','addr':8388608,'size':1048576,'stream':0,'time_us':300001},"
    "{'action':'segment_alloc','addr':20971520,'size':2097152,'stream':0,'time_us':300002},"
    "{'action':'alloc','addr':512,'size':70000,'stream':0,'time_us':300003,"
    " 'user_metadata':'iter=0;phase=B','pool_id':(1, 0)},"
    "{'action':'free','addr':8388608,'size':1000,'stream':7,'time_us':299999},"
    "{'action':'oom','device_free':5,'size':1},"
    "{'action':'segment_free','addr':20971520,'size':2097152,'stream':0,'time_us':300004}"
    "]],'allocator_settings':{'x':True,'y':None}}";

static const char csv[] = "id,lower,upper,size\n0,0,10,4096\n1,5,5,100\n2,5,12,512\n3,10,11,99\n";

static test_bytes make_trace_file(void)
{
    const char *path = test_path("m.trace");
    test_bytes pickle = test_pickle(4, snapshot);
    pleat_trace *trace;
    assert_ok(
        pleat__snapshot_decode("m", pickle.data, pickle.size, PLEAT__ANY_DEVICE, NULL, &trace));
    assert_ok(pleat_trace_write(trace, path));
    pleat_trace_free(trace);
    test_bytes_free(&pickle);
    test_bytes bytes = test_file_read(path);
    assert_int_equal(unlink(path), 0);
    return bytes;
}

static test_bytes make_plan_file(bool unrolled)
{
    const char *path = test_path("m.plan");
    pleat_plan *plan = unrolled ? test_plan_unrolled() : test_plan();
    assert_ok(pleat_plan_verify(plan, NULL));
    assert_ok(pleat_plan_write(plan, path));
    pleat_plan_free(plan);
    test_bytes bytes = test_file_read(path);
    assert_int_equal(unlink(path), 0);
    return bytes;
}

static test_bytes make_gzip(void)
{
    const char *path = test_path("m.gz");
    test_bytes pickle = test_pickle(4, snapshot);
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, pickle.data, (unsigned)pickle.size), (int)pickle.size);
    assert_int_equal(gzclose(file), Z_OK);
    test_bytes_free(&pickle);
    test_bytes bytes = test_file_read(path);
    assert_int_equal(unlink(path), 0);
    return bytes;
}

static test_bytes make_seed(form of, uint64_t dice)
{
    switch (of) {
    case FORM_TRACE:
        return make_trace_file();
    case FORM_PLAN:
        return make_plan_file(dice % 2 != 0);
    case FORM_GZIP:
        return make_gzip();
    case FORM_CSV: {
        test_bytes bytes = {0};
        test_bytes_add(&bytes, csv, sizeof csv - 1);
        return bytes;
    }
    default:
        return test_pickle(2 + (int)(dice % 4), snapshot);
    }
}

/* One change of `bytes`. */
static void mutate(test_bytes *bytes, test_random *random)
{
    static const uint8_t telling[] = {0x00, 0x7f, 0x80, 0xff, 0x90, 0x91, 0xc0, 0xc1, 0xcf, 0xdd,
                                      0xdf, 0xdb, '(',  '.',  'h',  'j',  'u',  'e',  ']',  '}',
                                      '0',  't',  0x8a, 0x8b, 0x94, 'c',  'R',  '-',  ',',  '\n'};
    if (bytes->size == 0)
        return;
    size_t at = test_random_below(random, bytes->size);
    size_t length = 1 + test_random_below(random, 8);
    length = length < bytes->size - at ? length : bytes->size - at;
    switch (test_random_below(random, 7)) {
    case 0: /* flip a bit */
        bytes->data[at] ^= (uint8_t)(1u << test_random_below(random, 8));
        break;
    case 1: /* any byte */
        bytes->data[at] = (uint8_t)test_random_next(random);
        break;
    case 2: /* one that means something */
        bytes->data[at] = telling[test_random_below(random, sizeof telling)];
        break;
    case 3: /* cut off */
        if (test_random_below(random, 4) == 0)
            bytes->size = at;
        break;
    case 4: /* leave some out */
        memmove(bytes->data + at, bytes->data + at + length, bytes->size - at - length);
        bytes->size -= length;
        break;
    case 5: /* say some twice */
        test_bytes_add(bytes, bytes->data, length);
        memmove(bytes->data + at + length, bytes->data + at, bytes->size - at - length);
        break;
    case 6: /* overwrite with another place's */
        memmove(bytes->data + at, bytes->data + test_random_below(random, bytes->size - length + 1),
                length);
        break;
    }
}

/* Writes what was read and reads it again. */
static void use_trace(pleat_trace *trace)
{
    const char *path = test_path("use.trace");
    pleat_trace *again;
    assert_ok(pleat_trace_write(trace, path));
    assert_ok(pleat_trace_read(path, &again));
    assert_int_equal(pleat_trace_fingerprint(trace), pleat_trace_fingerprint(again));
    pleat_trace_free(again);
    pleat_trace_free(trace);
    assert_int_equal(unlink(path), 0);
}

static void use_plan(pleat_plan *plan)
{
    uint32_t *table;
    assert_ok(pleat__plan_page_table(plan, plan->arena, &table));
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    assert_int_equal(summary.physical_bytes, plan->physical_bytes);
    pleat_plan_free(plan);
}

static pleat_result read_and_use(form of, const test_bytes *bytes)
{
    pleat_trace *trace = NULL;
    pleat_plan *plan = NULL;
    pleat_result result;
    if (of == FORM_PLAN) {
        result = pleat__plan_decode("file", bytes->data, bytes->size, &plan);
    } else if (of == FORM_TRACE) {
        result = pleat__trace_decode("file", bytes->data, bytes->size, &trace);
    } else if (of == FORM_CSV) {
        result = pleat__csv_decode("file", bytes->data, bytes->size, &trace);
    } else if (of == FORM_SNAPSHOT) {
        result = pleat__snapshot_decode("file", bytes->data, bytes->size, PLEAT__ANY_DEVICE, NULL,
                                        &trace);
    } else {
        const char *path = test_path("file");
        test_file_write(path, bytes->data, bytes->size);
        result = pleat__trace_import(path, PLEAT__ANY_DEVICE, NULL, &trace);
        assert_int_equal(unlink(path), 0);
    }
    if (plan != NULL)
        use_plan(plan);
    if (trace != NULL)
        use_trace(trace);
    return result;
}

static void mutations_give_a_clean_answer(void **state)
{
    (void)state;
    test_random random = test_random_begin("mutations_give_a_clean_answer", 0x5eed);
    uint32_t answers[FORMS][2] = {{0}};
    test_bytes seeds[FORMS];
    for (int f = 0; f < FORMS; f++)
        seeds[f] = make_seed((form)f, 2);
    for (uint32_t i = 0; i < MUTATIONS; i++) {
        /* Of eight: three snapshots, two traces, two plans, one of the others. */
        static const form of_eight[8] = {FORM_SNAPSHOT, FORM_SNAPSHOT, FORM_SNAPSHOT, FORM_TRACE,
                                         FORM_TRACE,    FORM_PLAN,     FORM_PLAN,     FORM_CSV};
        form of = i % 64 == 7 ? FORM_GZIP : of_eight[i % 8];
        test_bytes bytes = {0};
        if ((of == FORM_SNAPSHOT || of == FORM_PLAN) && i % 16 < 8)
            bytes = make_seed(of, i / 16);
        else
            test_bytes_add(&bytes, seeds[of].data, seeds[of].size);
        bool mend = (of == FORM_TRACE || of == FORM_PLAN) && i % 5 != 0;
        if (mend)
            bytes.size -= 6;
        for (uint64_t changes = 1 + test_random_below(&random, 4); changes > 0; changes--)
            mutate(&bytes, &random);
        if (mend)
            test_pack_checksum(&bytes);
        pleat_result result = read_and_use(of, &bytes);
        const pleat_error *error = pleat_last_error();
        bool clean = result == PLEAT_OK || result == PLEAT_E_INPUT || result == PLEAT_E_ABI ||
                     (result == PLEAT_E_VERIFY && of == FORM_PLAN);
        if (!clean || (result != PLEAT_OK && strstr(error->text, "file': ") == NULL &&
                       strstr(error->text, "file', ") == NULL))
            fail_msg("mutation %u of form %d: %s: %s", i, of, pleat_result_name(result),
                     error->text);
        answers[of][result == PLEAT_OK]++;
        test_bytes_free(&bytes);
    }
    for (int f = 0; f < FORMS; f++) {
        print_message("form %d: %u read, %u refused\n", f, answers[f][1], answers[f][0]);
        assert_true(answers[f][0] > 50);
        if (f != FORM_GZIP) /* its checksum sees everything */
            assert_true(answers[f][1] > 50);
        test_bytes_free(&seeds[f]);
    }
}

/* Every bit of a trace and of a plan: none goes unseen. */
static void mutations_of_one_bit_are_all_seen(void **state)
{
    (void)state;
    for (int f = FORM_TRACE; f <= FORM_PLAN; f++) {
        test_bytes bytes = make_seed((form)f, 0);
        for (size_t bit = 0; bit < bytes.size * 8; bit++) {
            bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            pleat_result result = read_and_use((form)f, &bytes);
            if (result != PLEAT_E_INPUT && result != PLEAT_E_ABI)
                fail_msg("form %d, bit %zu: %s", f, bit, pleat_result_name(result));
            bytes.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        for (size_t size = 0; size < bytes.size; size++) {
            test_bytes cut = {bytes.data, size, size};
            assert_result(read_and_use((form)f, &cut), PLEAT_E_INPUT);
        }
        test_bytes_free(&bytes);
    }
}

/* A job's trace, damaged but still a trace, is planned, or there is a reason why not. The planner
 * proves what it makes, so a plan that does not hold would be seen here. */
static void mutations_of_a_job_plan_or_say_why(void **state)
{
    (void)state;
    test_random random = test_random_begin("mutations_of_a_job_plan_or_say_why", 0x70b);
    const char *path = test_path("job.trace");
    uint32_t planned = 0, refused = 0;
    for (uint32_t i = 0; i < 1500; i++) {
        pleat_trace *trace = test_job(&random, 1 + i % 3, i % 2 == 0, 24);
        pleat_plan *plan;
        assert_ok(pleat_trace_write(trace, path));
        pleat_trace_free(trace);
        test_bytes bytes = test_file_read(path);
        bytes.size -= 6;
        for (uint32_t changes = i % 3; changes > 0; changes--)
            mutate(&bytes, &random);
        test_pack_checksum(&bytes);
        if (pleat__trace_decode("file", bytes.data, bytes.size, &trace) == PLEAT_OK) {
            pleat_plan_options options = {.size = sizeof options};
            pleat_result result = pleat_plan_make(trace, &options, &plan);
            if (result != PLEAT_OK && result != PLEAT_E_INPUT)
                fail_msg("job %u: %s: %s", i, pleat_result_name(result), pleat_last_error()->text);
            planned += result == PLEAT_OK;
            refused += result != PLEAT_OK;
            if (result == PLEAT_OK)
                pleat_plan_free(plan);
            pleat_trace_free(trace);
        }
        test_bytes_free(&bytes);
    }
    print_message("%u planned, %u not\n", planned, refused);
    assert_true(planned > 500);
    assert_int_equal(unlink(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mutations_give_a_clean_answer),
        cmocka_unit_test(mutations_of_one_bit_are_all_seen),
        cmocka_unit_test(mutations_of_a_job_plan_or_say_why),
    };
    return cmocka_run_group_tests_name("mutations", tests, NULL, test_folder_remove);
}
