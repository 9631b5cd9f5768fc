/*
 * cli.c: messages, sizes and tables of the command.
 */
#include <tools/cli.h>

#include <tools/wrap.h>

#include <internal/error.h>
#include <internal/utf8.h>
#include <plan/base/file.h>
#include <runtime/base/environment.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MESSAGE_MOST 8192 /* bytes; a path is half of it at most */
#define CELL_TEXT    1024 /* bytes that a cell is given at most, before it is cut */

const char *cli_plain(const char *text, size_t length, char *buffer, size_t size)
{
    size_t used = 0;
    for (size_t at = 0, taken; at < length; at += taken) {
        char escaped[8];
        const char *put = text + at;
        uint8_t first = (uint8_t)put[0];
        size_t wanted = taken = pleat__utf8_character(put, length - at);
        /* What ECMA-48 calls C1 has two bytes in UTF-8, c2 80 to c2 9f. */
        bool control =
            first < ' ' || first == 0x7f || (taken == 2 && first == 0xc2 && (uint8_t)put[1] < 0xa0);
        if (taken == 0 || control) {
            taken = 1;
            wanted =
                (size_t)snprintf(escaped, sizeof escaped, first == '\n' ? "\\n" : "\\x%02x", first);
            put = escaped;
        }
        if (used + wanted >= size)
            break;
        memcpy(buffer + used, put, wanted);
        used += wanted;
    }
    buffer[used] = '\0';
    return buffer;
}

/* The names of files in it are as others made them. */
static void print_message(const char *command, const char *text)
{
    char plain[4 * MESSAGE_MOST];
    fprintf(stderr, "pleat %s: %s\n", command, cli_plain(text, strlen(text), plain, sizeof plain));
}

int cli_bad_use(const char *command, const char *format, ...)
{
    va_list arguments;
    char text[MESSAGE_MOST];
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    print_message(command, text);
    fprintf(stderr, "See 'pleat %s --help'.\n", command);
    return CLI_BAD_USE;
}

static int exit_code(pleat_result result)
{
    switch (result) {
    case PLEAT_OK:
        return CLI_DONE;
    case PLEAT_E_VERIFY:
        return CLI_NO;
    case PLEAT_E_INVALID: /* a value that the library knows the bounds of */
        return CLI_BAD_USE;
    case PLEAT_E_INPUT:
    case PLEAT_E_IO:
    case PLEAT_E_ABI:
    case PLEAT_E_NOT_FOUND:
        return CLI_BAD_INPUT;
    case PLEAT_E_OUT_OF_MEMORY:
    case PLEAT_E_BUDGET:
        return CLI_OUT_OF_MEMORY;
    default:
        return CLI_FAILED;
    }
}

int cli_failed(const char *command, pleat_result result)
{
    print_message(command, pleat_last_error()->text);
    return exit_code(result);
}

int cli_check_output(const char *command, const char *path)
{
    pleat_result result = pleat__file_check(path);
    return result == PLEAT_OK ? CLI_DONE : cli_failed(command, result);
}

pleat_result cli_in_files(pleat_result result, const char *const *paths, uint32_t count)
{
    char names[512];
    size_t used = 0;
    for (uint32_t i = 0; i < count && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s'%s'", i > 0 ? ", " : "",
                                 paths[i]);
    return pleat__context(result, "%s", names);
}

pleat_result cli_read_plan(const char *path, pleat_plan **plan)
{
    pleat_result result = pleat_plan_read(path, plan);
    if (result != PLEAT_E_INPUT)
        return result;
    const pleat_error wrong = *pleat_last_error();
    return pleat__fail(result, "%s; a plan is what save_plan or `pleat plan` writes", wrong.text);
}

void cli_forget_limits(void)
{
    char name[256];
    for (char **at = environ; at != NULL && *at != NULL;) {
        size_t length = strcspn(*at, "=");
        snprintf(name, sizeof name, "%.*s", (int)length, *at);
        if (length < sizeof name && pleat__environment_is_limit(name))
            unsetenv(name); /* what follows moves up */
        else
            at++;
    }
}

pleat_result cli_text_begin(cli_text *text, const char *what)
{
    *text = (cli_text){.what = what};
    text->out = open_memstream(&text->bytes, &text->size);
    return text->out != NULL ? PLEAT_OK
                             : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %s", what);
}

pleat_result cli_text_end(cli_text *text, pleat_result result)
{
    bool failed = ferror(text->out) != 0;
    failed |= fclose(text->out) != 0;
    return failed && result == PLEAT_OK
               ? pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %s", text->what)
               : result;
}

pleat_result cli_text_write(cli_text *text, const char *path, pleat_result result)
{
    result = cli_text_end(text, result);
    if (result == PLEAT_OK)
        result = pleat__file_write(path, text->bytes, text->size);
    free(text->bytes);
    return result;
}

const char *cli_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* What a pipe brings, in a file in the place of standard input: a recording may be read twice. */
static pleat_result keep_input(void)
{
    static bool kept_before;
    char part[1 << 16];
    size_t size;
    if (kept_before)
        return PLEAT_OK;
    FILE *kept = tmpfile();
    if (kept == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "no file for what standard input brings");
    while ((size = fread(part, 1, sizeof part, stdin)) > 0 && !ferror(kept))
        fwrite(part, 1, size, kept);
    bool whole = !ferror(stdin) && !ferror(kept) && fflush(kept) == 0 &&
                 dup2(fileno(kept), STDIN_FILENO) >= 0;
    fclose(kept);
    kept_before = whole;
    return whole ? PLEAT_OK : pleat__fail_errno(PLEAT_E_IO, "standard input cannot be kept");
}

int cli_take_input(const char *command, const char **path)
{
    if (*path == NULL || strcmp(*path, "-") != 0)
        return CLI_DONE;
    pleat_result result = keep_input();
    *path = "/dev/stdin";
    return result == PLEAT_OK ? CLI_DONE : cli_failed(command, result);
}

const char *cli_quote(const char *word, char *buffer, size_t size)
{
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./%+-,:@=";
    size_t used = 0;
    if (word[0] != '\0' && word[strspn(word, plain)] == '\0') {
        snprintf(buffer, size, "%s", word);
        return buffer;
    }
    used += (size_t)snprintf(buffer, size, "'");
    for (const char *at = word; *at != '\0' && used + 6 < size; at++)
        used += (size_t)snprintf(buffer + used, size - used, *at == '\'' ? "'\\''" : "%c", *at);
    snprintf(buffer + used, size - used, "'");
    return buffer;
}

static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};

static int unit_of(uint64_t bytes)
{
    int unit = 0;
    for (; bytes >= 1024 && unit < 4; bytes /= 1024)
        unit++;
    return unit;
}

static double in_unit(uint64_t bytes, int unit)
{
    double value = (double)bytes;
    for (; unit > 0; unit--)
        value /= 1024;
    return value;
}

const char *cli_format_size(uint64_t bytes, char *buffer, size_t size)
{
    return cli_format_size_like(bytes, bytes, buffer, size);
}

const char *cli_format_size_like(uint64_t bytes, uint64_t like, char *buffer, size_t size)
{
    int unit = unit_of(like);
    double value = in_unit(bytes, unit);
    if (bytes > 0 && value < 0.0005)
        snprintf(buffer, size, "under 0.001 %s", units[unit]);
    else
        snprintf(buffer, size, unit == 0 ? "%.0f %s" : "%.3f %s", value, units[unit]);
    return buffer;
}

const char *cli_format_number(double value, char *buffer, size_t size)
{
    double size_of = value < 0 ? -value : value;
    bool tiny = size_of != 0 && size_of < 0.001;
    snprintf(buffer, size, size_of >= 1000 ? "%.0f" : tiny ? "%.6f" : "%.4g", value);
    return buffer;
}

bool cli_table_begin(cli_table *table, int columns, const char *const *headings)
{
    *table = (cli_table){.columns = columns};
    if (columns > CLI_TABLE_COLUMNS || !cli_table_row(table))
        return false;
    for (int c = 0; c < columns; c++)
        cli_table_cell(table, c, "%s", headings[c]);
    return true;
}

bool cli_table_row(cli_table *table)
{
    size_t cells = (size_t)(table->rows + 1) * (size_t)table->columns;
    void *grown = realloc(table->cells, cells * sizeof *table->cells);
    if (grown == NULL)
        return false;
    table->cells = grown;
    table->rows++;
    for (int c = 0; c < table->columns; c++)
        table->cells[(table->rows - 1) * table->columns + c][0] = '\0';
    return true;
}

/* Into a cell: whole characters, an ellipsis where it is too long. */
static void fit(char *cell, const char *text)
{
    static const char ellipsis[] = "…";
    char plain[4 * CELL_TEXT];
    size_t length = strlen(cli_plain(text, strlen(text), plain, sizeof plain));
    bool cut = length >= CLI_TABLE_CELL;
    size_t room = CLI_TABLE_CELL - (cut ? sizeof ellipsis : 1);
    size_t used = pleat__utf8_prefix(plain, length, room);
    snprintf(cell, CLI_TABLE_CELL, "%.*s%s", (int)used, plain, cut ? ellipsis : "");
}

static int width_of(const char *cell)
{
    return wrap_width(cell, strlen(cell));
}

void cli_table_cell(cli_table *table, int column, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    char text[CELL_TEXT];
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    fit(table->cells[(table->rows - 1) * table->columns + column], text);
}

void cli_table_text(cli_table *table, const char *name, const char *text)
{
    if (!cli_table_row(table))
        return;
    cli_table_cell(table, 0, "%s", name);
    cli_table_cell(table, 1, "%s", text);
}

void cli_table_size(cli_table *table, const char *name, uint64_t bytes)
{
    char text[48];
    cli_table_text(table, name, cli_format_size(bytes, text, sizeof text));
}

void cli_table_count(cli_table *table, const char *name, uint64_t count)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)count);
    cli_table_text(table, name, text);
}

void cli_table_drop(cli_table *table)
{
    free(table->cells);
    table->cells = NULL;
}

static int column_width(const cli_table *table, int column)
{
    int width = 0;
    for (int i = 0; i < table->rows; i++) {
        int length = width_of(table->cells[i * table->columns + column]);
        width = length > width ? length : width;
    }
    return width;
}

/* Column 0 and columns [from, to). */
static void print_columns(const cli_table *table, const int *widths, int from, int to, FILE *out)
{
    for (int r = 0; r < table->rows; r++) {
        char(*cells)[CLI_TABLE_CELL] = table->cells + (ptrdiff_t)r * table->columns;
        int end = to; /* without empty ones at the row's end */
        while (end > from && cells[end - 1][0] == '\0')
            end--;
        fprintf(out, "%s%*s", cells[0], end > from ? widths[0] - width_of(cells[0]) : 0, "");
        for (int c = from; c < end; c++)
            fprintf(out, "  %*s%s", widths[c] - width_of(cells[c]), "", cells[c]);
        fputc('\n', out);
    }
}

void cli_table_end(cli_table *table, FILE *out)
{
    int most = wrap_columns(), from = 1, widths[CLI_TABLE_COLUMNS];
    for (int c = 0; c < table->columns; c++)
        widths[c] = column_width(table, c);
    do {
        int to = from, width = widths[0];
        while (to < table->columns && (most == 0 || to == from || width + 2 + widths[to] <= most))
            width += 2 + widths[to++];
        if (from > 1)
            fputc('\n', out);
        print_columns(table, widths, from, to, out);
        from = to;
    } while (from < table->columns);
    cli_table_drop(table);
}
