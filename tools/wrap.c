/*
 * wrap.c: see wrap.h. Standard output becomes a stream that collects lines and writes them, broken
 * where need be, to what it was before.
 *
 * SET IN  A continued line begins where the last column of its line's text does: behind two spaces
 *         or more within the first half, as in a list of options; else where the line itself does.
 */
#include <tools/wrap.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define LEAST 40 /* columns; with less nothing reads well, and the terminal breaks lines itself */

static struct {
    FILE *to;
    int columns;
    char *line;
    size_t length, capacity;
    bool json;
} wrapped;

int wrap_columns(void)
{
    struct winsize size = {0};
    if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 0)
        return size.ws_col;
    const char *said = getenv("COLUMNS");
    long columns = said != NULL ? strtol(said, NULL, 10) : 0;
    return columns > 0 && columns < 10000 ? (int)columns : 0;
}

static bool begins_character(char byte)
{
    return ((unsigned char)byte & 0xc0) != 0x80;
}

static int width_of(const char *text, size_t length)
{
    int width = 0;
    for (size_t i = 0; i < length; i++)
        width += begins_character(text[i]);
    return width;
}

static int set_in(const char *line, size_t length, int columns)
{
    int column = 0, indent = 0, behind = 0;
    bool begun = false;
    for (size_t i = 0; i < length; i++) {
        if (!begins_character(line[i]))
            continue;
        if (line[i] != ' ' && !begun) {
            begun = true;
            indent = column;
        }
        bool gap = i >= 2 && line[i] != ' ' && line[i - 1] == ' ' && line[i - 2] == ' ';
        if (gap && begun && column > indent && column <= columns / 2)
            behind = column;
        column++;
    }
    return behind > 0 ? behind : indent;
}

/* Whether a space parts a figure from its unit: "9.4 %", "80.000 GiB". */
static bool parts_figure(const char *text, size_t length, size_t at)
{
    const char *unit = text + at + 1;
    size_t left = length - at - 1;
    return text[at - 1] >= '0' && text[at - 1] <= '9' && left > 0 &&
           (unit[0] == '%' || (left > 2 && unit[1] == 'i' && unit[2] == 'B'));
}

/* Bytes of the text that fit into so many columns, up to the end of a word where there is one. */
static size_t take(const char *text, size_t length, int columns)
{
    size_t word = 0, at = 0;
    int width = 0;
    for (; at < length; at++) {
        if (text[at] == ' ' && at > 0 && text[at - 1] != ' ' && !parts_figure(text, length, at))
            word = at;
        if (begins_character(text[at]) && ++width > columns)
            break;
    }
    return at == length ? length : word > 0 ? word : at;
}

static void put_line(FILE *out, const char *line, size_t length, int columns)
{
    int indent = 0;
    while (width_of(line, length) + indent > columns) {
        size_t lead = indent > 0 ? 0 : strspn(line, " ");
        size_t taken = lead + take(line + lead, length - lead, columns - indent - (int)lead);
        fprintf(out, "%*s%.*s\n", indent, "", (int)taken, line);
        if (indent == 0)
            indent = set_in(line, length, columns);
        while (taken < length && line[taken] == ' ')
            taken++;
        line += taken;
        length -= taken;
    }
    fprintf(out, "%*s%.*s", indent, "", (int)length, line);
}

void wrap_lines(FILE *out, const char *text, int columns)
{
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        put_line(out, text, length, columns < LEAST ? LEAST : columns);
        fputc('\n', out);
        text += length + (text[length] == '\n');
    }
}

static bool add(char byte)
{
    if (wrapped.length == wrapped.capacity) {
        size_t wanted = wrapped.capacity * 2 + 256;
        char *grown = realloc(wrapped.line, wanted);
        if (grown == NULL)
            return false;
        wrapped.line = grown;
        wrapped.capacity = wanted;
    }
    wrapped.line[wrapped.length++] = byte;
    return true;
}

static void flush_line(void)
{
    if (wrapped.length > 0)
        put_line(wrapped.to, wrapped.line, wrapped.length, wrapped.columns);
    wrapped.length = 0;
}

/* fopencookie's: returns how much was taken; 0 is an error. */
static ssize_t take_bytes(void *self, const char *bytes, size_t size)
{
    (void)self;
    for (size_t i = 0; i < size; i++) {
        wrapped.json |= wrapped.length == 0 && bytes[i] == '{';
        if (wrapped.json) {
            if (fwrite(bytes + i, 1, size - i, wrapped.to) != size - i)
                return 0;
            break;
        }
        if (bytes[i] == '\n') {
            flush_line();
            fputc('\n', wrapped.to);
        } else if (!add(bytes[i])) {
            return 0;
        }
    }
    return ferror(wrapped.to) ? 0 : (ssize_t)size;
}

bool wrap_flush(void)
{
    bool taken = fflush(stdout) == 0 && !ferror(stdout);
    if (wrapped.to == NULL)
        return taken;
    flush_line();
    return fflush(wrapped.to) == 0 && !ferror(wrapped.to) && taken;
}

/* Whatever ends the program, its last line is written. */
static void end_at_exit(void)
{
    (void)wrap_flush();
}

void wrap_output(void)
{
    const cookie_io_functions_t functions = {.write = take_bytes};
    int columns = wrap_columns();
    if (columns < LEAST || wrapped.to != NULL)
        return;
    FILE *stream = fopencookie(NULL, "w", functions);
    if (stream == NULL)
        return;
    wrapped.to = stdout;
    wrapped.columns = columns;
    stdout = stream;
    atexit(end_at_exit);
}
