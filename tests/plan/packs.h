/*
 * packs.h: msgpack streams from literals: test_pack("['pleat trace', 1, 0, 0, 1, 0] [0]"): numbers,
 * quoted texts, arrays, nil (N), floats (F), raw bytes in hex (x dd 00 ff).
 */
#ifndef PLEAT_TESTS_PLAN_PACKS_H
#define PLEAT_TESTS_PLAN_PACKS_H

#include "files.h"

#include <ctype.h>
#include <msgpack.h>
#include <zlib.h>

static inline int test_pack_append(void *bytes, const char *data, size_t size)
{
    test_bytes_add(bytes, data, size);
    return 0;
}

/* Packs one value at *at; returns behind it. */
static inline const char *test_pack_value(msgpack_packer *packer, test_bytes *out, const char *at);

static inline const char *test_pack_array(msgpack_packer *packer, const char *at)
{
    test_bytes inner = {0};
    msgpack_packer inner_packer;
    size_t count = 0;
    msgpack_packer_init(&inner_packer, &inner, test_pack_append);
    for (;; count++) {
        while (*at == ' ' || *at == ',')
            at++;
        if (*at == ']')
            break;
        at = test_pack_value(&inner_packer, &inner, at);
    }
    msgpack_pack_array(packer, count);
    test_bytes_add(packer->data, inner.data, inner.size);
    test_bytes_free(&inner);
    return at + 1;
}

static inline const char *test_pack_hex(test_bytes *out, const char *at)
{
    for (; at[0] == ' ' && isxdigit((unsigned char)at[1]); at += 3) {
        uint8_t byte = (uint8_t)strtoul((char[]){at[1], at[2], '\0'}, NULL, 16);
        test_bytes_add(out, &byte, 1);
    }
    return at;
}

static inline const char *test_pack_value(msgpack_packer *packer, test_bytes *out, const char *at)
{
    if (*at == '[')
        return test_pack_array(packer, at + 1);
    if (*at == 'x')
        return test_pack_hex(out, at + 1);
    if (*at == 'N') {
        msgpack_pack_nil(packer);
        return at + 1;
    }
    if (*at == 'F') {
        msgpack_pack_double(packer, 1.0);
        return at + 1;
    }
    if (*at == '\'') {
        const char *end = strchr(at + 1, '\'');
        msgpack_pack_str(packer, (size_t)(end - at - 1));
        msgpack_pack_str_body(packer, at + 1, (size_t)(end - at - 1));
        return end + 1;
    }
    char *end;
    if (*at == '-')
        msgpack_pack_int64(packer, strtoll(at, &end, 0));
    else
        msgpack_pack_uint64(packer, strtoull(at, &end, 0));
    if (end == at)
        fail_msg("no literal: %s", at);
    return end;
}

/* The last record of a sound file. */
static inline void test_pack_checksum(test_bytes *bytes)
{
    uint32_t sum = (uint32_t)crc32(0, bytes->data, (uInt)bytes->size);
    const uint8_t record[6] = {
        0x91, 0xce, (uint8_t)(sum >> 24), (uint8_t)(sum >> 16), (uint8_t)(sum >> 8), (uint8_t)sum};
    test_bytes_add(bytes, record, sizeof record);
}

static inline test_bytes test_pack(const char *literal)
{
    test_bytes bytes = {0};
    msgpack_packer packer;
    msgpack_packer_init(&packer, &bytes, test_pack_append);
    while (*literal != '\0') {
        literal = test_pack_value(&packer, &bytes, literal);
        while (*literal == ' ')
            literal++;
    }
    return bytes;
}

#endif
