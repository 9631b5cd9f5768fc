/*
 * pickle_writer.c: see pickle_writer.h. The opcodes are those of Python's module pickletools.
 */
#include <tools/pickle_writer.h>

#include <internal/utf8.h>

static void put_little(FILE *out, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        fputc((int)(value >> 8 * i & 0xff), out);
}

void pickle_begin(FILE *out)
{
    fputs("\x80\x02", out);
}

void pickle_end(FILE *out)
{
    fputc('.', out);
}

void pickle_dict(FILE *out)
{
    fputs("}(", out);
}

void pickle_end_dict(FILE *out)
{
    fputc('u', out);
}

void pickle_list(FILE *out)
{
    fputs("](", out);
}

void pickle_end_list(FILE *out)
{
    fputc('e', out);
}

void pickle_uint(FILE *out, uint64_t value)
{
    if (value <= INT32_MAX) {
        fputc('J', out);
        put_little(out, value, 4);
    } else { /* signed, of nine bytes: always positive */
        fputs("\x8a\x09", out);
        put_little(out, value, 8);
        fputc(0, out);
    }
}

void pickle_text(FILE *out, const char *text, size_t length)
{
    uint32_t written = 0;
    for (size_t i = 0, size; i < length; i += size != 0 ? size : 1) {
        size = pleat__utf8_character(text + i, length - i);
        written += size != 0 ? (uint32_t)size : 3;
    }
    fputc('X', out);
    put_little(out, written, 4);
    for (size_t i = 0, size; i < length; i += size != 0 ? size : 1) {
        size = pleat__utf8_character(text + i, length - i);
        if (size != 0)
            fwrite(text + i, 1, size, out);
        else
            fputs("\xef\xbf\xbd", out);
    }
}

void pickle_remember(FILE *out, uint32_t slot)
{
    fputc('r', out);
    put_little(out, slot, 4);
}

void pickle_recall(FILE *out, uint32_t slot)
{
    fputc('j', out);
    put_little(out, slot, 4);
}
