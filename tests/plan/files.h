/*
 * files.h: files of a test in its folder, and whole files in and out of memory.
 */
#ifndef PLEAT_TESTS_PLAN_FILES_H
#define PLEAT_TESTS_PLAN_FILES_H

#include "../folder.h"

typedef struct test_bytes {
    uint8_t *data;
    size_t size;
    size_t capacity;
} test_bytes;

static inline void test_bytes_add(test_bytes *bytes, const void *data, size_t size)
{
    if (bytes->size + size > bytes->capacity) {
        bytes->capacity = (bytes->size + size) * 2;
        bytes->data = realloc(bytes->data, bytes->capacity);
        assert_non_null(bytes->data);
    }
    if (size > 0)
        memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
}

static inline void test_bytes_free(test_bytes *bytes)
{
    free(bytes->data);
    *bytes = (test_bytes){0};
}

/* "/dev/shm/pleat-test-abcdef/NAME"; four are kept. */
static inline const char *test_path(const char *name)
{
    static char paths[4][128];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", test_folder(), name);
    return path;
}

static inline void test_file_write(const char *path, const void *data, size_t size)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline test_bytes test_file_read(const char *path)
{
    test_bytes bytes = {0};
    char part[4096];
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    for (size_t got; (got = fread(part, 1, sizeof part, file)) > 0;)
        test_bytes_add(&bytes, part, got);
    fclose(file);
    return bytes;
}

/* Removes the folder; every file a test made in it must be gone by then. */
static inline int test_folder_remove(void **state)
{
    (void)state;
    return rmdir(test_folder());
}

#endif
