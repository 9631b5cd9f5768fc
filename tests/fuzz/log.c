/*
 * log.c: fuzz target: a runtime's footprint log. Its header is mostly padding, and its records are
 * mostly not there: the input is the header's beginning and the first records, the rest is zeros.
 */
#include "fuzz.h"

#include <stdbool.h>
#include <sys/mman.h>
#include <tools/analysis/runlog.h>
#include <unistd.h>

#define HEADER_KEPT 2048u
#define FILE_BYTES  125848u /* of a log of 128 KiB or less: whole records */

static bool write_file(int file, const uint8_t *data, size_t size)
{
    size_t header = size < HEADER_KEPT ? size : HEADER_KEPT, rest = size - header;
    return ftruncate(file, 0) == 0 && ftruncate(file, FILE_BYTES) == 0 &&
           pwrite(file, data, header, 0) == (ssize_t)header &&
           pwrite(file, data + header, rest, PLEAT__LOG_HEADER_BYTES) == (ssize_t)rest;
}

static void read_all(const runlog *log)
{
    for (uint32_t s = 0; s < PLEAT__LOG_SERIES; s++) {
        const pleat__log_record *last = runlog_last(log, s);
        FUZZ_CHECK((last == NULL) == (log->series[s].count == 0), "series %u", s);
        for (size_t i = 0; i < log->series[s].count; i++)
            FUZZ_CHECK(strlen(runlog_state(log, &log->series[s].records[i])) < RUNLOG_TEXT,
                       "record %zu of series %u", i, s);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char path[64];
    runlog log = {0};
    if (file < 0) {
        file = memfd_create("log", MFD_CLOEXEC);
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    }
    FUZZ_CHECK(file >= 0 && write_file(file, data, size), "the file cannot be written");
    pleat_result result = runlog_open(path, &log);
    fuzz_answer(result, path);
    if (result == PLEAT_OK)
        read_all(&log);
    runlog_close(&log);
    return 0;
}
