/*
 * pickle_writer.h: writes a Python pickle of built-in types, protocol 2, to a stream as it goes.
 * Texts that come again and again are remembered by whoever writes them.
 */
#ifndef PLEAT_TOOLS_PICKLE_WRITER_H
#define PLEAT_TOOLS_PICKLE_WRITER_H

#include <stdint.h>
#include <stdio.h>

void pickle_begin(FILE *out);
void pickle_end(FILE *out);
/* Between these of a dict, keys and values in turn; of a list, its items. */
void pickle_dict(FILE *out);
void pickle_end_dict(FILE *out);
void pickle_list(FILE *out);
void pickle_end_list(FILE *out);
void pickle_uint(FILE *out, uint64_t value);
/* `length` bytes of UTF-8; bytes that are none are written as U+FFFD. */
void pickle_text(FILE *out, const char *text, size_t length);
/* Remembers the value just written as `slot`; writes the one remembered there. */
void pickle_remember(FILE *out, uint32_t slot);
void pickle_recall(FILE *out, uint32_t slot);

#endif
