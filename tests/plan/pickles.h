/*
 * pickles.h: pickles from Python literals: test_pickle(&bytes, 4, "{'a': [1, -2, 'x', None]}").
 *
 * Numbers, quoted texts, True, False, None, lists, tuples and dicts. As Python does it: everything
 * but numbers and constants goes into the memo, a text that was seen before comes out of it.
 */
#ifndef PLEAT_TESTS_PLAN_PICKLES_H
#define PLEAT_TESTS_PLAN_PICKLES_H

#include "files.h"

#include <stdbool.h>

typedef struct test_pickler {
    test_bytes *out;
    const char *at; /* in the literal */
    int protocol;
    uint32_t memo_count;
    struct {
        const char *text;
        size_t length;
        uint32_t memo;
    } texts[256];
    uint32_t text_count;
} test_pickler;

static inline void test_put(test_pickler *p, uint8_t byte)
{
    test_bytes_add(p->out, &byte, 1);
}

static inline void test_put_number(test_pickler *p, uint64_t number, int width)
{
    for (int i = 0; i < width; i++)
        test_put(p, (uint8_t)(number >> 8 * i));
}

static inline void test_put_memo(test_pickler *p)
{
    if (p->protocol >= 4) {
        test_put(p, 0x94);
    } else if (p->memo_count < 256) {
        test_put(p, 'q');
        test_put(p, (uint8_t)p->memo_count);
    } else {
        test_put(p, 'r');
        test_put_number(p, p->memo_count, 4);
    }
    p->memo_count++;
}

static inline void test_skip_space(test_pickler *p)
{
    while (*p->at == ' ' || *p->at == '\n')
        p->at++;
}

static inline bool test_accept(test_pickler *p, char c)
{
    test_skip_space(p);
    if (*p->at != c)
        return false;
    p->at++;
    return true;
}

static inline void test_put_text(test_pickler *p)
{
    const char *text = ++p->at;
    while (*p->at != '\'')
        p->at++;
    size_t length = (size_t)(p->at++ - text);
    for (uint32_t i = 0; i < p->text_count; i++) {
        if (p->texts[i].length != length || memcmp(p->texts[i].text, text, length) != 0)
            continue;
        test_put(p, p->texts[i].memo < 256 ? 'h' : 'j');
        test_put_number(p, p->texts[i].memo, p->texts[i].memo < 256 ? 1 : 4);
        return;
    }
    bool is_short = p->protocol >= 4 && length < 256;
    test_put(p, is_short ? 0x8c : 'X');
    test_put_number(p, length, is_short ? 1 : 4);
    test_bytes_add(p->out, text, length);
    if (p->text_count < 256) {
        p->texts[p->text_count].text = text;
        p->texts[p->text_count].length = length;
        p->texts[p->text_count++].memo = p->memo_count;
    }
    test_put_memo(p);
}

static inline void test_put_integer(test_pickler *p)
{
    bool negative = test_accept(p, '-');
    char *end;
    uint64_t number = strtoull(p->at, &end, 0);
    p->at = end;
    if (!negative && number < 256) {
        test_put(p, 'K');
        test_put_number(p, number, 1);
    } else if (number <= INT32_MAX) {
        test_put(p, 'J');
        test_put_number(p, negative ? -number : number, 4);
    } else {
        test_put(p, 0x8a);
        test_put(p, 9);
        test_put_number(p, negative ? -number : number, 8);
        test_put(p, negative ? 0xff : 0);
    }
}

static inline void test_put_value(test_pickler *p);

static inline void test_put_items(test_pickler *p, char closing, uint8_t opening, uint8_t add)
{
    if (opening != 0) {
        test_put(p, opening);
        test_put_memo(p);
    }
    test_put(p, '(');
    while (!test_accept(p, closing)) {
        test_put_value(p);
        if (closing == '}') {
            assert_true(test_accept(p, ':'));
            test_put_value(p);
        }
        test_accept(p, ',');
    }
    test_put(p, add);
    if (opening == 0)
        test_put_memo(p);
}

static inline bool test_put_constant(test_pickler *p, const char *name, uint8_t opcode)
{
    if (strncmp(p->at, name, strlen(name)) != 0)
        return false;
    p->at += strlen(name);
    test_put(p, opcode);
    return true;
}

static inline void test_put_value(test_pickler *p)
{
    if (test_accept(p, '{'))
        test_put_items(p, '}', '}', 'u');
    else if (test_accept(p, '['))
        test_put_items(p, ']', ']', 'e');
    else if (test_accept(p, '('))
        test_put_items(p, ')', 0, 't');
    else if (*p->at == '\'')
        test_put_text(p);
    else if (!test_put_constant(p, "None", 'N') && !test_put_constant(p, "True", 0x88) &&
             !test_put_constant(p, "False", 0x89))
        test_put_integer(p);
}

static inline test_bytes test_pickle(int protocol, const char *literal)
{
    test_bytes bytes = {0};
    test_pickler p = {.out = &bytes, .at = literal, .protocol = protocol};
    test_put(&p, 0x80);
    test_put(&p, (uint8_t)protocol);
    test_put_value(&p);
    test_put(&p, '.');
    return bytes;
}

#endif
