/*
 * pickle_writer.c: see pickle_writer.h. The opcodes are those of Python's module pickletools.
 */
#include <tools/pickle_writer.h>

#include <string.h>

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

/* Bytes of the character that begins here, or 0 when it is none (overlong, a surrogate, cut). */
static size_t character(const unsigned char *text, size_t length)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    if (text[0] < 0x80)
        return 1;
    size_t size = text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : 2;
    if (text[0] < 0xc2 || text[0] > 0xf4 || size > length)
        return 0;
    uint32_t code = text[0] & (0x7fu >> size);
    for (size_t i = 1; i < size; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (text[i] & 0x3f);
    }
    return code < least[size] || code > 0x10ffff || (code >= 0xd800 && code < 0xe000) ? 0 : size;
}

void pickle_text(FILE *out, const char *text, size_t length)
{
    const unsigned char *bytes = (const unsigned char *)text;
    uint32_t written = 0;
    for (size_t i = 0, size; i < length; i += size != 0 ? size : 1) {
        size = character(bytes + i, length - i);
        written += size != 0 ? (uint32_t)size : 3;
    }
    fputc('X', out);
    put_little(out, written, 4);
    for (size_t i = 0, size; i < length; i += size != 0 ? size : 1) {
        size = character(bytes + i, length - i);
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
