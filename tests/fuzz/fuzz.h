/*
 * fuzz.h: what the fuzz targets share: an end that a fuzzer sees, bytes read as numbers, and where
 * a stream's checksum is added, so that what is damaged is what lies before it.
 */
#ifndef PLEAT_TESTS_FUZZ_FUZZ_H
#define PLEAT_TESTS_FUZZ_FUZZ_H

#include <plan/base/pack.h>
#include <pleat/base.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The fuzzer's entry; others must be declared, too. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define FUZZ_CHECK(condition, ...)                                                                 \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: does not hold: %s: ", __FILE__, __LINE__, #condition);         \
            fprintf(stderr, __VA_ARGS__);                                                          \
            fputc('\n', stderr);                                                                   \
            __builtin_trap();                                                                      \
        }                                                                                          \
    } while (0)

/* What a reader of a file may answer; its text names the file. */
static inline void fuzz_answer(pleat_result result, const char *path)
{
    FUZZ_CHECK(result == PLEAT_OK || result == PLEAT_E_INPUT || result == PLEAT_E_VERIFY ||
                   result == PLEAT_E_ABI || result == PLEAT_E_LIMIT,
               "%s: %s", pleat_result_name(result), pleat_last_error()->text);
    FUZZ_CHECK(result == PLEAT_OK || strstr(pleat_last_error()->text, path) != NULL, "%s",
               pleat_last_error()->text);
}

/* A copy with the checksum behind it; the caller frees it. */
static inline uint8_t *fuzz_with_checksum(const uint8_t *data, size_t size, size_t *whole)
{
    uint8_t *copy = malloc(size + 6);
    FUZZ_CHECK(copy != NULL, "no memory for %zu bytes", size);
    memcpy(copy, data, size);
    uint32_t sum = pleat__pack_checksum(data, size);
    const uint8_t record[6] = {
        0x91, 0xce, (uint8_t)(sum >> 24), (uint8_t)(sum >> 16), (uint8_t)(sum >> 8), (uint8_t)sum};
    memcpy(copy + size, record, sizeof record);
    *whole = size + sizeof record;
    return copy;
}

/* An input as numbers; 0 when it is used up. */
typedef struct fuzz_draws {
    const uint8_t *at;
    size_t left;
} fuzz_draws;

static inline uint64_t fuzz_bytes(fuzz_draws *draws, size_t count)
{
    uint64_t value = 0;
    for (; count > 0 && draws->left > 0; count--, draws->left--)
        value = value << 8 | *draws->at++;
    return value;
}

/* Below `bound`, which is not 0. */
static inline uint32_t fuzz_draw(fuzz_draws *draws, uint32_t bound)
{
    return (uint32_t)(fuzz_bytes(draws, bound <= 256 ? 1 : bound <= 65536 ? 2 : 4) % bound);
}

#endif
