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

typedef struct layout {
    int columns;
    bool cuts_words; /* that no line has room for; else they are longer than the line */
} layout;

static struct {
    FILE *to;
    layout as;
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

int wrap_width(const char *text, size_t length)
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

static size_t skip_spaces(const char *text, size_t length, size_t at)
{
    while (at < length && text[at] == ' ')
        at++;
    return at;
}

/* Where the word ends that is at `from` or behind it. */
static size_t word_end(const char *text, size_t length, size_t from)
{
    size_t at = skip_spaces(text, length, from);
    while (at < length && (text[at] != ' ' || parts_figure(text, length, at)))
        at++;
    return at;
}

/* Bytes of the text that fit into so many columns, characters being whole. */
static size_t prefix(const char *text, size_t length, int columns)
{
    size_t at = 0;
    for (int width = 0; at < length; at++)
        if (begins_character(text[at]) && ++width > columns)
            break;
    return at;
}

/* Bytes of the text that fit into what is left of the columns, up to the end of a word. A word that
 * fits into no line begins where it is, and is whole or cut where the line ends. */
static size_t take(const char *text, size_t length, int left, const layout *as)
{
    size_t taken = word_end(text, length, 0);
    while (taken < length && wrap_width(text, taken) <= left) {
        size_t begin = skip_spaces(text, length, taken), end = word_end(text, length, taken);
        if (wrap_width(text, end) > left && wrap_width(text + begin, end - begin) <= as->columns)
            return taken;
        taken = end;
    }
    return as->cuts_words ? prefix(text, taken, left) : taken;
}

/* Columns that a line is set in by: fewer where its first word needs them. */
static int fitting(const char *line, size_t length, int indent, int columns)
{
    int width = wrap_width(line, word_end(line, length, 0));
    return width <= columns && width + indent > columns ? columns - width : indent;
}

static void put_line(FILE *out, const char *line, size_t length, const layout *as)
{
    size_t lead = skip_spaces(line, length, 0);
    int indent = set_in(line, length, as->columns);
    int by = fitting(line + lead, length - lead, (int)lead, as->columns);
    line += lead;
    length -= lead;
    while (wrap_width(line, length) + by > as->columns) {
        size_t taken = take(line, length, as->columns - by, as);
        if (taken == length)
            break;
        fprintf(out, "%*s%.*s\n", by, "", (int)taken, line);
        taken = skip_spaces(line, length, taken);
        line += taken;
        length -= taken;
        by = fitting(line, length, indent, as->columns);
    }
    fprintf(out, "%*s%.*s", by, "", (int)length, line);
}

void wrap_lines(FILE *out, const char *text, int columns)
{
    const layout as = {.columns = columns < LEAST ? LEAST : columns, .cuts_words = true};
    while (*text != '\0') {
        size_t length = strcspn(text, "\n");
        put_line(out, text, length, &as);
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
        put_line(wrapped.to, wrapped.line, wrapped.length, &wrapped.as);
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
    wrapped.as.columns = columns;
    stdout = stream;
    atexit(end_at_exit);
}
