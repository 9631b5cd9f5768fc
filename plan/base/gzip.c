/*
 * gzip.c: see gzip.h. Memory is taken as bytes come out, not as a file's trailer claims.
 */
#include <plan/base/gzip.h>

#include <internal/error.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define GZIP_ONLY 16 /* beside the window's bits, for zlib */

typedef struct bytes {
    const uint8_t *data;
    size_t size;
} bytes;

typedef struct unfolded {
    uint8_t *data;
    size_t size;
} unfolded;

bool pleat__gzip_begins(const uint8_t *from, size_t size)
{
    return size > 2 && from[0] == 0x1f && from[1] == 0x8b;
}

bool pleat__gzip_is_name(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && strcmp(path + length - 3, ".gz") == 0;
}

static pleat_result unzip_failed(const char *path, const z_stream *stream, size_t at, int code)
{
    const char *why = stream->msg ? stream->msg : "the file ends inside it";
    if (code == Z_MEM_ERROR)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory to decompress it", path);
    return pleat__fail(PLEAT_E_INPUT, "'%s': byte %zu: not sound gzip data: %s", path, at, why);
}

/* Inflates all members of a gzip file; `stream` is at its start. */
static pleat_result unzip_members(const char *path, uint64_t limit, pleat__arena *arena,
                                  const bytes *from, z_stream *stream, unfolded *out)
{
    size_t capacity = 0;
    const uint8_t *next = from->data;
    for (;;) {
        if (out->size == capacity) {
            if (capacity == limit)
                return pleat__fail(PLEAT_E_INPUT, "'%s': unfolds to more than %llu bytes", path,
                                   (unsigned long long)limit);
            /* Files unfold about twelvefold: mostly one round is enough. */
            uint64_t wanted = capacity ? capacity * 2 : from->size * 16 + 65536;
            capacity = wanted < limit ? wanted : limit;
            uint8_t *grown = pleat__arena_realloc(arena, out->data, capacity);
            if (grown == NULL)
                return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for %zu bytes of it",
                                   path, capacity);
            out->data = grown;
        }
        size_t left = (size_t)(from->data + from->size - next), room = capacity - out->size;
        stream->next_in = (unsigned char *)(uintptr_t)next;
        stream->avail_in = (uInt)(left < 1u << 30 ? left : 1u << 30);
        stream->next_out = out->data + out->size;
        stream->avail_out = (uInt)(room < 1u << 30 ? room : 1u << 30);
        int code = inflate(stream, Z_NO_FLUSH);
        next = stream->next_in;
        out->size = (size_t)(stream->next_out - out->data);
        if (code == Z_STREAM_END) {
            if (next == from->data + from->size)
                return PLEAT_OK;
            code = inflateReset(stream);
        }
        if (code != Z_OK)
            return unzip_failed(path, stream, (size_t)(next - from->data), code);
    }
}

pleat_result pleat__gzip_unfold(const char *path, uint64_t limit, pleat__arena *arena,
                                const uint8_t *from, size_t from_size, uint8_t **out, size_t *size)
{
    z_stream stream = {0};
    unfolded all = {NULL, 0};
    if (inflateInit2(&stream, MAX_WBITS + GZIP_ONLY) != Z_OK)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory to decompress it", path);
    pleat_result result =
        unzip_members(path, limit, arena, &(bytes){from, from_size}, &stream, &all);
    inflateEnd(&stream);
    *out = all.data;
    *size = all.size;
    return result;
}

uint8_t *pleat__gzip_fold(const void *from, size_t size, size_t *folded)
{
    z_stream stream = {0};
    const int memory = 8;
    if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, MAX_WBITS + GZIP_ONLY, memory,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    const uint8_t *next = from, *end = next + size;
    size_t room = deflateBound(&stream, size), used = 0;
    uint8_t *out = malloc(room);
    int code = Z_OK;
    while (out != NULL && code == Z_OK) {
        /* zlib counts bytes in 32 bits. */
        uInt given = (uInt)(end - next < 1 << 30 ? end - next : 1 << 30);
        uInt taken = (uInt)(room - used < 1u << 30 ? room - used : 1u << 30);
        stream.next_in = (unsigned char *)(uintptr_t)next;
        stream.avail_in = given;
        stream.next_out = out + used;
        stream.avail_out = taken;
        code = deflate(&stream, next + given == end ? Z_FINISH : Z_NO_FLUSH);
        next += given - stream.avail_in;
        used += taken - stream.avail_out;
    }
    deflateEnd(&stream);
    if (code != Z_STREAM_END) {
        free(out);
        return NULL;
    }
    *folded = used;
    return out;
}
