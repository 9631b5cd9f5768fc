/*
 * internal/utf8.h: whether bytes are UTF-8, for texts from files: they end up in JSON, on pages and
 * on terminals.
 */
#ifndef PLEAT_INTERNAL_UTF8_H
#define PLEAT_INTERNAL_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Bytes of the character at `text`, of which `length` are there; 0: none begins there. No overlong
 * forms, no surrogates, nothing above U+10FFFF (Unicode 15, table 3-7). */
static inline size_t pleat__utf8_character(const char *text, size_t length)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t size = at[0] < 0x80 ? 1 : at[0] < 0xc2 ? 0 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    if (at[0] > 0xf4 || size > length)
        return 0;
    for (size_t i = 1; i < size; i++) {
        uint8_t low = 0x80, high = 0xbf;
        if (i == 1 && at[0] == 0xe0)
            low = 0xa0;
        if (i == 1 && at[0] == 0xed)
            high = 0x9f;
        if (i == 1 && at[0] == 0xf0)
            low = 0x90;
        if (i == 1 && at[0] == 0xf4)
            high = 0x8f;
        if (at[i] < low || at[i] > high)
            return 0;
    }
    return size;
}

/* Bytes of the whole characters at the beginning of `text`, at most `most`. Equal to `length` when
 * that is no more than `most` and all of it is UTF-8. */
static inline size_t pleat__utf8_prefix(const char *text, size_t length, size_t most)
{
    size_t done = 0;
    while (done < length) {
        size_t size = pleat__utf8_character(text + done, length - done);
        if (size == 0 || done + size > most)
            break;
        done += size;
    }
    return done;
}

/* Copies `length` bytes into a line of `most` bytes, as far as whole characters fit; what is not
 * UTF-8, or would end or hide the line, becomes '?'. Returns the bytes written; there is no zero
 * behind them. */
static inline size_t pleat__utf8_line(const char *from, size_t length, char *line, size_t most)
{
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        size_t size = pleat__utf8_character(from + at, length - at);
        bool odd = size == 0 || (uint8_t)from[at] < ' ' || from[at] == 0x7f;
        size_t wanted = odd ? 1 : size;
        if (used + wanted > most)
            break;
        memcpy(line + used, odd ? "?" : from + at, wanted);
        used += wanted;
        at += size == 0 ? 1 : size;
    }
    return used;
}

#endif
