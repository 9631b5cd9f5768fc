/*
 * log.c: footprint logs: what is written is read, coarser the longer ago, peaks exact; the file
 * does not grow; a killed process leaves one that reads; damaged ones are refused or read in part.
 */
#include "../../child.h"
#include "../../folder.h"

#include <errno.h>
#include <fcntl.h>
#include <pleat/plan.h>
#include <pleat/runtime.h>
#include <pthread.h>
#include <runtime/face/runtime_internal.h>
#include <runtime/observe/log.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <tools/analysis/runlog.h>
#include <unistd.h>

#define MIB   (1ull << 20)
#define BYTES (136ull << 10)

typedef struct fixture {
    char folder[80];
    char path[128];
    pleat__arena
        *arena; /* of a log without runtime. Not where a test forks: jemalloc then takes the
                   locks of every arena, and the thread sanitizer knows only 64 at once. */
} fixture;

static void begin(fixture *f)
{
    *f = (fixture){0};
    snprintf(f->folder, sizeof f->folder, "%s/log-XXXXXX", test_folder());
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof f->path, "%s/run.log", f->folder);
}

static void end(fixture *f)
{
    char command[160];
    snprintf(command, sizeof command, "rm -r %s", f->folder);
    assert_int_equal(system(command), 0);
    if (f->arena != NULL)
        pleat__arena_destroy(f->arena);
}

static uint64_t size_of(const char *path)
{
    struct stat status;
    assert_int_equal(stat(path, &status), 0);
    return (uint64_t)status.st_size;
}

static void open_log(fixture *f, pleat__log *log)
{
    assert_ok(pleat__arena_create(&f->arena));
    const pleat__log_numbers numbers = {.period_ns = 1000, .plan_max_live_bytes = 77};
    assert_ok(pleat__log_create(log, f->path, BYTES, "native", &numbers, f->arena));
}

/* Interval `i` of a job whose live bytes rise to a peak in the middle. */
static pleat__log_record interval(uint64_t i, uint64_t count)
{
    uint64_t live = (i < count / 2 ? i : count - i) * 512;
    return (pleat__log_record){.from_ns = i * 1000,
                               .to_ns = (i + 1) * 1000,
                               .iterations = i / 4,
                               .low_live_bytes = live,
                               .high_live_bytes = live + 100,
                               .high_physical_bytes = live + 200,
                               .stats = {.live_bytes = live, .requests = i * 3}};
}

static void put_intervals(pleat__log *log, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        pleat__log_record record = interval(i, count);
        pleat__log_put(log, PLEAT__LOG_INTERVALS, &record);
    }
}

/* A whole log of `count` intervals at the fixture's path. */
static void write_log(fixture *f, uint64_t count, bool ended)
{
    pleat__log log;
    open_log(f, &log);
    put_intervals(&log, count);
    if (ended)
        pleat__log_end(&log, f->arena);
    pleat__log_close(&log);
}

static void log_keeps_few_records_as_they_are(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    begin(&f);
    write_log(&f, 20, true);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_ENDED);
    assert_string_equal(read.policy, "native");
    assert_non_null(strstr(read.command, "test_runtime_log"));
    assert_int_equal(read.numbers.plan_max_live_bytes, 77);
    assert_int_equal(read.numbers.pid, getpid());
    assert_int_equal(read.torn, 0);
    assert_int_equal(read.series[PLEAT__LOG_INTERVALS].count, 20);
    assert_int_equal(read.series[PLEAT__LOG_ITERATIONS].count, 0);
    assert_null(runlog_last(&read, PLEAT__LOG_ITERATIONS));
    for (uint64_t i = 0; i < 20; i++) {
        pleat__log_record wanted = interval(i, 20);
        wanted.number = i;
        assert_memory_equal(&read.series[PLEAT__LOG_INTERVALS].records[i], &wanted, sizeof wanted);
    }
    runlog_close(&read);
    end(&f);
}

/* However long it runs: no moment is missing, none is told twice, and the peak is the peak. */
static void log_never_grows_and_forgets_no_peak(void **state)
{
    (void)state;
    static const uint64_t counts[] = {17, 129, 1000, 40000};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        fixture f;
        runlog read;
        begin(&f);
        pleat__log log;
        open_log(&f, &log);
        uint64_t bytes = size_of(f.path), peak = 0, at = 0, low = UINT64_MAX;
        assert_true(bytes <= BYTES);
        put_intervals(&log, counts[c]);
        pleat__log_close(&log);
        assert_int_equal(size_of(f.path), bytes);
        assert_ok(runlog_open(f.path, &read));
        const runlog_series *series = &read.series[PLEAT__LOG_INTERVALS];
        for (size_t i = 0; i < series->count; i++) {
            const pleat__log_record *record = &series->records[i];
            assert_int_equal(record->from_ns, at);
            at = record->to_ns;
            assert_int_equal(record->stats.requests, (at / 1000 - 1) * 3);
            peak = record->high_live_bytes > peak ? record->high_live_bytes : peak;
            low = record->low_live_bytes < low ? record->low_live_bytes : low;
        }
        assert_int_equal(at, counts[c] * 1000);
        assert_int_equal(peak, (counts[c] - counts[c] / 2) * 512 + 100);
        assert_int_equal(low, 0);
        runlog_close(&read);
        end(&f);
    }
}

/* A process that was killed left its unfinished file; another one with its number, as in a
 * container that starts anew, must not stumble over it. */
static void log_is_made_beside_what_a_killed_process_left(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    char stale[200];
    begin(&f);
    snprintf(stale, sizeof stale, "%.*s/.pleat.%ld.0.tmp", (int)(strrchr(f.path, '/') - f.path),
             f.path, (long)getpid());
    FILE *left = fopen(stale, "w");
    assert_non_null(left);
    fputs("unfinished", left);
    fclose(left);
    write_log(&f, 5, true);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.series[PLEAT__LOG_INTERVALS].count, 5);
    runlog_close(&read);
    assert_int_equal(size_of(stale), strlen("unfinished"));
    end(&f);
}

/* While it makes the file, which takes as long as the file is large. */
static void log_leaves_nothing_when_its_process_is_killed(void **state)
{
    (void)state;
    fixture f;
    int status;
    begin(&f);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit small = {BYTES / 2, BYTES / 2};
        pleat__log log;
        if (setrlimit(RLIMIT_FSIZE, &small) == 0)
            open_log(&f, &log);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    assert_int_equal(rmdir(f.folder), 0);
}

static void log_name_has_process_and_device(void **state)
{
    (void)state;
    static const struct {
        const char *given;
        uint64_t device;
        const char *made; /* %d: the process */
    } cases[] = {
        {"plain", 0, "plain"},       {"plain", 3, "plain.3"}, {"a%p", 0, "a%d"},
        {"a%p.log", 2, "a%d.log.2"}, {"%p-%d", 12, "%d-12"},  {"d%d", 0, "d0"},
        {"%d%d%", 5, "55%"},         {"100%%", 0, "100%%"},
    };
    fixture f;
    pleat__log log;
    begin(&f);
    assert_ok(pleat__arena_create(&f.arena));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char given[200], made[200];
        const char *mark = strstr(cases[i].made, "%d");
        const pleat__log_numbers numbers = {.period_ns = 1000, .device = cases[i].device};
        snprintf(given, sizeof given, "%s/%s", f.folder, cases[i].given);
        if (mark != NULL)
            snprintf(made, sizeof made, "%s/%.*s%d%s", f.folder, (int)(mark - cases[i].made),
                     cases[i].made, (int)getpid(), mark + 2);
        else
            snprintf(made, sizeof made, "%s/%s", f.folder, cases[i].made);
        assert_ok(pleat__log_create(&log, given, BYTES, "native", &numbers, f.arena));
        pleat__log_close(&log);
        assert_true(size_of(made) > 0);
        assert_int_equal(unlink(made), 0);
    }
    char endless[5000];
    memset(endless, 'x', sizeof endless);
    endless[0] = '/';
    endless[sizeof endless - 1] = '\0';
    const pleat__log_numbers numbers = {.period_ns = 1000};
    assert_result(pleat__log_create(&log, endless, BYTES, "native", &numbers, f.arena), PLEAT_E_IO);
    end(&f);
}

static void log_takes_the_place_of_logs_only(void **state)
{
    (void)state;
    fixture f;
    pleat__log log;
    const pleat__log_numbers numbers = {.period_ns = 1000};
    begin(&f);
    write_log(&f, 5, true);
    assert_ok(pleat__log_create(&log, f.path, BYTES, "native", &numbers, f.arena));
    pleat__log_close(&log);
    static const struct {
        const char *text;
        pleat_result result;
    } there[] = {{"", PLEAT_OK}, {"x", PLEAT_E_IO}, {"a long text about a pleat log", PLEAT_E_IO}};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        FILE *file = fopen(f.path, "w");
        assert_non_null(file);
        fputs(there[i].text, file);
        assert_int_equal(fclose(file), 0);
        pleat_result result = pleat__log_create(&log, f.path, BYTES, "native", &numbers, f.arena);
        assert_int_equal(result, there[i].result);
        if (result == PLEAT_OK)
            pleat__log_close(&log);
        else
            assert_int_equal(size_of(f.path), strlen(there[i].text));
    }
    end(&f);
}

/* Offsets of what is read last: its checksum must be what gives it away. */
static void log_passes_over_a_torn_record(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    begin(&f);
    write_log(&f, 10, false);
    FILE *file = fopen(f.path, "r+");
    long at = PLEAT__LOG_HEADER_BYTES + 4 * (long)PLEAT__LOG_RECORD_BYTES(PLEAT__LOG_COLUMN_COUNT);
    assert_int_equal(fseek(file, at + 60, SEEK_SET), 0);
    fputc(0x55, file);
    /* Of a counter, which may be any number: the last byte of the last one of the record behind. */
    at += 2 * (long)PLEAT__LOG_RECORD_BYTES(PLEAT__LOG_COLUMN_COUNT) - 9 - 1;
    assert_int_equal(fseek(file, at, SEEK_SET), 0);
    fputc(0x55, file);
    fclose(file);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.torn, 2);
    assert_int_equal(read.series[PLEAT__LOG_INTERVALS].count, 8);
    for (size_t i = 0; i < 8; i++)
        assert_int_equal(read.series[PLEAT__LOG_INTERVALS].records[i].number, i + (i > 3 ? 2 : 0));
    runlog_close(&read);
    end(&f);
}

static uint8_t *load(const char *path, size_t *size)
{
    *size = size_of(path);
    uint8_t *bytes = malloc(*size);
    FILE *file = fopen(path, "r");
    assert_int_equal(fread(bytes, 1, *size, file), *size);
    fclose(file);
    return bytes;
}

static void save(const char *path, const uint8_t *bytes, size_t size)
{
    FILE *file = fopen(path, "w");
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    fclose(file);
}

/* Whatever the bytes: an error that names the file, or records in order of time. */
static void expect_sound(const char *path)
{
    runlog read;
    if (runlog_open(path, &read) != PLEAT_OK) {
        assert_non_null(strstr(pleat_last_error()->text, path));
        return;
    }
    for (int s = 0; s < PLEAT__LOG_SERIES; s++) {
        uint64_t at = 0;
        for (size_t i = 0; i < read.series[s].count; i++) {
            const pleat__log_record *record = &read.series[s].records[i];
            assert_true(record->from_ns >= at && record->to_ns >= record->from_ns);
            at = record->to_ns;
            assert_true(strlen(runlog_state(&read, record)) < RUNLOG_TEXT);
        }
    }
    for (const char *c = read.command; *c != '\0'; c++)
        assert_in_range(*c, ' ', '~');
    runlog_close(&read);
}

static void log_reading_survives_damage(void **state)
{
    (void)state;
    fixture f;
    test_random random = test_random_begin("log_reading_survives_damage", 5);
    begin(&f);
    write_log(&f, 300, false);
    size_t size;
    uint8_t *bytes = load(f.path, &size);
    uint8_t *damaged = malloc(size);
    for (int round = 0; round < 300; round++) {
        memcpy(damaged, bytes, size);
        size_t kept = round % 4 == 0 ? test_random_below(&random, size) : size;
        /* Most hits in the header: there the numbers are that everything else hangs on. */
        for (int hit = 0; hit < 1 + round % 6; hit++)
            damaged[test_random_below(&random, hit % 3 == 2 ? size : 700)] =
                (uint8_t)test_random_next(&random);
        save(f.path, damaged, kept);
        expect_sound(f.path);
    }
    save(f.path, bytes, 0);
    expect_sound(f.path);
    free(damaged);
    free(bytes);
    end(&f);
}

/* ---- the runtime's own ---- */

static pleat_runtime *open_runtime(pleat_vmm *vmm, const char *settings)
{
    pleat_runtime *runtime;
    pleat_host_options host = {.size = sizeof host, .device_bytes = 256 * MIB};
    pleat_runtime_options options = {
        .size = sizeof options, .policy = "native", .conf = settings, .budget_bytes = 200 * MIB};
    assert_ok(pleat_vmm_host(&host, vmm));
    assert_ok(pleat_runtime_create(*vmm, &options, &runtime));
    return runtime;
}

/* The fixture, and a runtime whose log is f->path. */
static pleat_runtime *begin_logged(fixture *f, pleat_vmm *vmm, const char *more)
{
    char settings[200];
    begin(f);
    snprintf(settings, sizeof settings, "log:%s,%s", f->path, more);
    return open_runtime(vmm, settings);
}

static pleat_va take(pleat_runtime *runtime, uint64_t bytes)
{
    pleat_va address;
    assert_ok(pleat_alloc(runtime, bytes, 0, &address));
    return address;
}

/* One tensor of each size comes and goes; `kept` stays. */
static void iterate(pleat_runtime *runtime, uint64_t bytes)
{
    assert_ok(pleat_free(runtime, take(runtime, bytes)));
    assert_ok(pleat_mark(runtime));
}

static void log_of_a_runtime_has_its_iterations(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    pleat_vmm vmm;
    pleat_runtime *runtime = begin_logged(&f, &vmm, "log_bytes:128k,log_ms:1");
    (void)take(runtime, 4 * MIB);
    assert_ok(pleat_mark(runtime));
    for (uint64_t i = 1; i <= 5; i++)
        iterate(runtime, i * 8 * MIB);
    /* The watcher takes peaks away; the user must not see that. */
    assert_int_equal(pleat_stats_of(runtime).peak_live_bytes, 44 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_requested_bytes, 44 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_blocks, 2);
    assert_int_equal(pleat_reset_peaks(runtime).peak_live_bytes, 44 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_live_bytes, 4 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_requested_bytes, 4 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_blocks, 1);
    iterate(runtime, 2 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_live_bytes, 6 * MIB);
    assert_true(pleat_stats_of(runtime).peak_physical_bytes >=
                pleat_stats_of(runtime).physical_bytes);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_ENDED);
    const runlog_series *iterations = &read.series[PLEAT__LOG_ITERATIONS];
    static const uint64_t highs[] = {4, 12, 20, 28, 36, 44, 6};
    assert_int_equal(iterations->count, 7);
    for (size_t i = 0; i < 7; i++) {
        assert_int_equal(iterations->records[i].iterations, i + 1);
        assert_int_equal(iterations->records[i].high_live_bytes, highs[i] * MIB);
        assert_int_equal(iterations->records[i].low_live_bytes, i == 0 ? 0 : 4 * MIB);
        assert_int_equal(iterations->records[i].limit_bytes, 200 * MIB);
        assert_int_equal(iterations->records[i].stats.requests, i + 1);
    }
    const pleat__log_record *last = runlog_last(&read, PLEAT__LOG_INTERVALS);
    assert_int_equal(last->stats.requests, 7);
    assert_int_equal(last->stats.live_bytes, 4 * MIB);
    /* Peaks are since the log began, whatever the program restarts. */
    assert_int_equal(last->stats.peak_live_bytes, 44 * MIB);
    assert_int_equal(last->stats.peak_requested_bytes, 44 * MIB);
    assert_int_equal(last->stats.peak_blocks, 2);
    assert_true(last->stats.peak_physical_bytes >= 44 * MIB);
    uint64_t peak = 0;
    for (size_t i = 0; i < read.series[PLEAT__LOG_INTERVALS].count; i++) {
        uint64_t high = read.series[PLEAT__LOG_INTERVALS].records[i].high_live_bytes;
        peak = high > peak ? high : peak;
    }
    assert_int_equal(peak, 44 * MIB);
    assert_int_equal(last->lost, 0);
    runlog_close(&read);
    end(&f);
}

static void log_that_is_ended_early_reads_as_ended(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    pleat_vmm vmm;
    pleat_runtime *runtime = begin_logged(&f, &vmm, "log_bytes:128k,log_ms:1");
    iterate(runtime, 8 * MIB);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_RUNNING);
    runlog_close(&read);
    pleat_end_log(runtime);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_ENDED);
    assert_int_equal(read.series[PLEAT__LOG_ITERATIONS].count, 1);
    runlog_close(&read);
    /* The runtime goes on, without its log. */
    for (int i = 0; i < 100; i++)
        iterate(runtime, 16 * MIB);
    assert_int_equal(pleat_stats_of(runtime).peak_live_bytes, 16 * MIB);
    pleat_end_log(runtime);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_ENDED);
    assert_int_equal(read.series[PLEAT__LOG_ITERATIONS].count, 1);
    runlog_close(&read);
    /* One without a log has none to end. */
    runtime = open_runtime(&vmm, "");
    pleat_end_log(runtime);
    pleat_end_log(NULL);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    end(&f);
}

static void *end_log(void *runtime)
{
    pleat_end_log(runtime);
    return NULL;
}

static void log_is_ended_by_several_threads_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        fixture f;
        runlog read;
        pleat_vmm vmm;
        pthread_t others[3];
        pleat_runtime *runtime = begin_logged(&f, &vmm, "log_bytes:128k,log_ms:1");
        iterate(runtime, 8 * MIB);
        for (int other = 0; other < 3; other++)
            assert_int_equal(pthread_create(&others[other], NULL, end_log, runtime), 0);
        pleat_end_log(runtime);
        assert_ok(runlog_open(f.path, &read));
        assert_int_equal(read.status, RUNLOG_ENDED);
        runlog_close(&read);
        for (int other = 0; other < 3; other++)
            pthread_join(others[other], NULL);
        pleat_runtime_destroy(runtime);
        pleat_vmm_destroy(&vmm);
        end(&f);
    }
}

static void log_marks_beyond_what_waits_are_merged(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    pleat_vmm vmm;
    pleat_runtime *runtime = begin_logged(&f, &vmm, "log_ms:3600000");
    for (uint64_t i = 0; i < 200; i++)
        iterate(runtime, (i == 150 ? 9 : 1) * MIB);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    assert_ok(runlog_open(f.path, &read));
    const runlog_series *iterations = &read.series[PLEAT__LOG_ITERATIONS];
    assert_int_equal(iterations->count, 64);
    assert_int_equal(iterations->records[63].iterations, 200);
    assert_int_equal(iterations->records[63].high_live_bytes, 9 * MIB);
    runlog_close(&read);
    end(&f);
}

/* The program keeps the lock for a while: the log's thread waits for it, the program for nobody. */
static void log_thread_waits_are_not_the_programs(void **state)
{
    (void)state;
    fixture f;
    pleat_vmm vmm;
    pleat_runtime *runtime = begin_logged(&f, &vmm, "log_ms:1");
    pleat__gate_lock(&runtime->gate);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    pleat__gate_unlock(&runtime->gate);
    pleat_end_log(runtime);
    assert_true(pleat_stats_of(runtime).waited_ns < 100000000);
    pleat_runtime_destroy(runtime);
    pleat_vmm_destroy(&vmm);
    end(&f);
}

static void log_settings_are_checked(void **state)
{
    (void)state;
    pleat_vmm vmm;
    pleat_runtime *runtime;
    static const struct {
        const char *conf;
        pleat_result result;
        const char *text;
    } cases[] = {
        {"log:/nowhere/run.log", PLEAT_E_IO, "/nowhere/run.log"},
        {"log:/tmp", PLEAT_E_IO, "what is there is no file"},
        {"log:/proc/self/fd/1", PLEAT_E_IO, "what is there is no file"},
        {"log:/tmp/run.log,log_bytes:4k", PLEAT_E_INVALID, "128k to 64m"},
        {"log:/tmp/run.log,log_bytes:1g", PLEAT_E_INVALID, "128k to 64m"},
        {"log:/tmp/run.log,log_ms:0", PLEAT_E_INVALID, "log_ms"},
    };
    assert_ok(pleat_vmm_host(NULL, &vmm));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pleat_runtime_options options = {
            .size = sizeof options, .policy = "native", .conf = cases[i].conf};
        assert_result(pleat_runtime_create(vmm, &options, &runtime), cases[i].result);
        assert_non_null(strstr(pleat_last_error()->text, cases[i].text));
    }
    pleat_vmm_destroy(&vmm);
}

/* As a function of its own: `read` is a log in these tests. */
static ssize_t read_byte(int fd, char *byte)
{
    return read(fd, byte, 1);
}

/* The child's runtime runs until it is killed. */
static void run_until_killed(const char *settings)
{
    pleat_vmm vmm;
    pleat_runtime *runtime = open_runtime(&vmm, settings);
    for (;;) {
        iterate(runtime, 8 * MIB);
        usleep(500);
    }
}

static void log_of_a_killed_process_is_read(void **state)
{
    (void)state;
    fixture f;
    runlog read = {0};
    char settings[200];
    begin(&f);
    snprintf(settings, sizeof settings, "log:%s,log_ms:1", f.path);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        run_until_killed(settings);
    size_t count = 0;
    /* While it runs it can be read, torn records or not. */
    for (int i = 0; i < 20000 && count < 30; i++) {
        usleep(1000);
        if (runlog_open(f.path, &read) != PLEAT_OK)
            continue;
        assert_int_equal(read.status, RUNLOG_RUNNING);
        count = read.series[PLEAT__LOG_ITERATIONS].count;
        runlog_close(&read);
    }
    assert_true(count >= 30);
    kill_child(child);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_GONE);
    assert_int_equal(read.numbers.pid, child);
    assert_true(read.series[PLEAT__LOG_ITERATIONS].count >= count);
    assert_int_equal(runlog_last(&read, PLEAT__LOG_ITERATIONS)->high_live_bytes, 8 * MIB);
    runlog_close(&read);
    end(&f);
}

/* A second process with the same settings writes beside the first one's log, as long as that runs.
 */
static void log_of_a_running_process_keeps_its_name(void **state)
{
    (void)state;
    fixture f;
    runlog read = {0};
    pleat_vmm vmm;
    char settings[200], own[200];
    begin(&f);
    snprintf(settings, sizeof settings, "log:%s,log_ms:1", f.path);
    snprintf(own, sizeof own, "%s.%d", f.path, (int)getpid());
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        run_until_killed(settings);
    for (int i = 0; i < 20000 && runlog_open(f.path, &read) != PLEAT_OK; i++)
        usleep(1000);
    assert_int_equal(read.numbers.pid, child);
    runlog_close(&read);
    for (int i = 0; i < 2; i++) {
        pleat_runtime *runtime = open_runtime(&vmm, settings);
        pleat_runtime_destroy(runtime);
        pleat_vmm_destroy(&vmm);
        assert_ok(runlog_open(i == 0 ? own : f.path, &read));
        assert_int_equal(read.numbers.pid, getpid());
        runlog_close(&read);
        if (i == 1)
            break;
        assert_ok(runlog_open(f.path, &read));
        assert_int_equal(read.numbers.pid, child);
        runlog_close(&read);
        kill_child(child);
    }
    end(&f);
}

/* What a log's runtime counted says whose it is. */
static void assert_log_of(const char *path, uint64_t requests)
{
    runlog read;
    assert_ok(runlog_open(path, &read));
    assert_int_equal(read.status, RUNLOG_ENDED);
    assert_int_equal(runlog_last(&read, PLEAT__LOG_INTERVALS)->stats.requests, requests);
    runlog_close(&read);
}

/* Three runtimes of one process have one name given, and each has a log of its own. */
static void log_of_each_runtime_of_a_process_has_a_name(void **state)
{
    (void)state;
    fixture f;
    char settings[2][200], paths[2][3][200];
    begin(&f);
    setenv("XDG_RUNTIME_DIR", f.folder, 1);
    snprintf(settings[0], sizeof settings[0], "log:%s,log_bytes:128k", f.path);
    snprintf(settings[1], sizeof settings[1], "log:auto,log_bytes:128k");
    snprintf(paths[0][0], sizeof paths[0][0], "%s", f.path);
    snprintf(paths[0][1], sizeof paths[0][1], "%s.%d", f.path, (int)getpid());
    snprintf(paths[0][2], sizeof paths[0][2], "%s.%d-2", f.path, (int)getpid());
    for (int i = 0; i < 3; i++) {
        static const char *const behind[] = {"", "-2", "-3"};
        snprintf(paths[1][i], sizeof paths[1][i], "%s/pleat/%d-0%s.log", f.folder, (int)getpid(),
                 behind[i]);
    }
    for (int s = 0; s < 2; s++) {
        pleat_vmm vmms[3];
        pleat_runtime *runtimes[3];
        runlog read;
        for (int i = 0; i < 3; i++) {
            runtimes[i] = open_runtime(&vmms[i], settings[s]);
            for (int n = 0; n <= i; n++)
                iterate(runtimes[i], MIB);
        }
        for (int i = 0; i < 3; i++) {
            assert_ok(runlog_open(paths[s][i], &read));
            assert_int_equal(read.status, RUNLOG_RUNNING);
            runlog_close(&read);
        }
        for (int i = 0; i < 3; i++) {
            pleat_runtime_destroy(runtimes[i]);
            pleat_vmm_destroy(&vmms[i]);
        }
        for (int i = 0; i < 3; i++)
            assert_log_of(paths[s][i], (uint64_t)i + 1);
    }
    unsetenv("XDG_RUNTIME_DIR");
    end(&f);
}

/* In a test that forks while a runtime is there: jemalloc then holds more locks than the thread
 * sanitizer counts, and the child ends by that. */
static void test_of_forks(void)
{
#ifdef __SANITIZE_THREAD__
    skip();
#endif
}

/* A child that outlives the process that wrote a log does not keep it alive. */
static void log_is_not_its_writers_childrens(void **state)
{
    (void)state;
    fixture f;
    runlog read;
    char settings[200];
    int ready[2], over[2];
    char byte;
    test_of_forks();
    begin(&f);
    snprintf(settings, sizeof settings, "log:%s,log_ms:1", f.path);
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(over), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pleat_vmm vmm;
        (void)open_runtime(&vmm, settings);
        if (fork() == 0) {
            (void)!write(ready[1], "", 1);
            close(over[1]);
            (void)!read_byte(over[0], &byte);
            _exit(0);
        }
        for (;;)
            pause();
    }
    close(ready[1]); /* a child that ends is seen, and not waited for */
    assert_int_equal(read_byte(ready[0], &byte), 1);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_RUNNING);
    runlog_close(&read);
    kill_child(child);
    assert_ok(runlog_open(f.path, &read));
    assert_int_equal(read.status, RUNLOG_GONE);
    runlog_close(&read);
    close(ready[0]);
    close(over[0]);
    close(over[1]); /* the grandchild ends */
    end(&f);
}

/* ---- forks at every moment ---- */

/* Another thread forks once: while a log's file is being opened, or while it is being closed. It is
 * done once the child is beyond what a fork calls there. */
static struct {
    bool at_open, at_close;
    int fd;
    sem_t wanted, done;
    pid_t child;
} forking;

static void *fork_once(void *unused)
{
    (void)unused;
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    sem_wait(&forking.wanted);
    forking.child = fork();
    if (forking.child == 0)
        (void)!write(ready[1], "", 1);
    while (forking.child == 0)
        pause();
    close(ready[1]);
    assert_int_equal(read_byte(ready[0], &byte), 1);
    close(ready[0]);
    sem_post(&forking.done);
    return NULL;
}

/* Who waits for the fork gives up: where it is kept waiting it comes later. */
static void let_fork(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    sem_post(&forking.wanted);
    (void)sem_timedwait(&forking.done, &until);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    int fd = __real_open(path, flags, mode);
    if ((flags & O_TMPFILE) == O_TMPFILE ||
        ((flags & O_EXCL) != 0 && strstr(path, "/.pleat.") != NULL)) {
        forking.fd = fd;
        if (forking.at_open)
            let_fork();
    }
    return fd;
}

int __real_close(int fd);
int __wrap_close(int fd);
int __wrap_close(int fd)
{
    if (forking.at_close && fd == forking.fd) {
        forking.at_close = false;
        let_fork();
    }
    return __real_close(fd);
}

/* A child that was forked while a log was made or ended does not keep its lock. */
static void log_is_no_childs_whenever_it_was_forked(void **state)
{
    (void)state;
    fixture f;
    test_of_forks();
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        pleat_vmm vmm;
        char settings[200];
        begin(&f);
        snprintf(settings, sizeof settings, "log:%s,log_bytes:128k", f.path);
        assert_int_equal(sem_init(&forking.wanted, 0, 0), 0);
        assert_int_equal(sem_init(&forking.done, 0, 0), 0);
        assert_int_equal(pthread_create(&thread, NULL, fork_once, NULL), 0);
        forking.at_open = i == 0;
        forking.at_close = i == 1;
        pleat_runtime *runtime = open_runtime(&vmm, settings);
        pleat_runtime_destroy(runtime);
        forking.at_open = false;
        pleat_vmm_destroy(&vmm);
        assert_int_equal(pthread_join(thread, NULL), 0);
        int fd = open(f.path, O_RDONLY | O_CLOEXEC);
        bool locked = pleat__log_is_locked(fd, true);
        close(fd);
        assert_int_equal(kill(forking.child, SIGKILL), 0);
        assert_int_equal(waitpid(forking.child, NULL, 0), forking.child);
        assert_true(fd >= 0);
        assert_false(locked);
        end(&f);
    }
}

static bool has_no_locks; /* the file system */

int __real_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...);
int __wrap_fcntl(int fd, int command, ...)
{
    va_list arguments;
    va_start(arguments, command);
    void *argument = va_arg(arguments, void *);
    va_end(arguments);
    if (has_no_locks && command == F_OFD_GETLK) {
        errno = ENOLCK;
        return -1;
    }
    return __real_fcntl(fd, command, argument);
}

static void log_without_end_where_no_locks_are_is_gone(void **state)
{
    (void)state;
    fixture f;
    pleat__log log;
    runlog read;
    begin(&f);
    open_log(&f, &log);
    pleat__log_close(&log);
    has_no_locks = true;
    pleat_result result = runlog_open(f.path, &read);
    has_no_locks = false;
    assert_ok(result);
    assert_int_equal(read.status, RUNLOG_GONE);
    runlog_close(&read);
    end(&f);
}

/* Each of many processes leaves one in the common place, which does not fill up. */
static void log_folder_keeps_few_dead_ones(void **state)
{
    (void)state;
    fixture f;
    char path[200], command[300];
    begin(&f);
    setenv("XDG_RUNTIME_DIR", f.folder, 1);
    pleat__log_folder(path, sizeof path);
    assert_int_equal(strncmp(path, f.folder, strlen(f.folder)), 0);
    for (int i = 0; i < 12; i++) {
        pid_t child = fork();
        if (child == 0) {
            pleat_vmm vmm;
            pleat_runtime *runtime = open_runtime(&vmm, "log:auto,log_bytes:128k");
            pleat_runtime_destroy(runtime);
            pleat_vmm_destroy(&vmm);
            _exit(0);
        }
        assert_child_ends(child);
    }
    snprintf(command, sizeof command, "test $(ls %s | wc -l) = 9", path);
    assert_int_equal(system(command), 0);
    unsetenv("XDG_RUNTIME_DIR");
    end(&f);
}

/* Who could write there could have the log written anywhere. */
static void log_folder_is_no_link(void **state)
{
    (void)state;
    fixture f;
    char path[200];
    pleat_vmm vmm;
    pleat_runtime *runtime;
    pleat_host_options host = {.size = sizeof host, .device_bytes = 1u << 30};
    pleat_runtime_options options = {.size = sizeof options, .conf = "log:auto"};
    begin(&f);
    setenv("XDG_RUNTIME_DIR", f.folder, 1);
    pleat__log_folder(path, sizeof path);
    assert_int_equal(symlink(test_folder(), path), 0);
    assert_ok(pleat_vmm_host(&host, &vmm));
    assert_result(pleat_runtime_create(vmm, &options, &runtime), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, path));
    assert_int_equal(unlink(path), 0);
    pleat_vmm_destroy(&vmm);
    unsetenv("XDG_RUNTIME_DIR");
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(log_keeps_few_records_as_they_are),
        cmocka_unit_test(log_never_grows_and_forgets_no_peak),
        cmocka_unit_test(log_is_made_beside_what_a_killed_process_left),
        cmocka_unit_test(log_leaves_nothing_when_its_process_is_killed),
        cmocka_unit_test(log_name_has_process_and_device),
        cmocka_unit_test(log_takes_the_place_of_logs_only),
        cmocka_unit_test(log_passes_over_a_torn_record),
        cmocka_unit_test(log_reading_survives_damage),
        cmocka_unit_test(log_of_a_runtime_has_its_iterations),
        cmocka_unit_test(log_that_is_ended_early_reads_as_ended),
        cmocka_unit_test(log_is_ended_by_several_threads_at_once),
        cmocka_unit_test(log_marks_beyond_what_waits_are_merged),
        cmocka_unit_test(log_thread_waits_are_not_the_programs),
        cmocka_unit_test(log_settings_are_checked),
        cmocka_unit_test(log_of_a_killed_process_is_read),
        cmocka_unit_test(log_of_a_running_process_keeps_its_name),
        cmocka_unit_test(log_of_each_runtime_of_a_process_has_a_name),
        cmocka_unit_test(log_is_not_its_writers_childrens),
        cmocka_unit_test(log_is_no_childs_whenever_it_was_forked),
        cmocka_unit_test(log_without_end_where_no_locks_are_is_gone),
        cmocka_unit_test(log_folder_keeps_few_dead_ones),
        cmocka_unit_test(log_folder_is_no_link),
    };
    return cmocka_run_group_tests_name("runtime_log", tests, NULL, NULL);
}
