/*
 * cli.h: what every subcommand of `pleat` shares: exit codes, messages, sizes, tables.
 */
#ifndef PLEAT_TOOLS_CLI_H
#define PLEAT_TOOLS_CLI_H

#include <pleat/base.h>
#include <pleat/plan.h>
#include <stdbool.h>
#include <stdio.h>

enum {
    CLI_DONE = 0,
    CLI_NO = 1,            /* the answer is no: a verify that fails, a check not met */
    CLI_BAD_USE = 2,       /* the command line */
    CLI_BAD_INPUT = 3,     /* a file, or a name of what is not there */
    CLI_OUT_OF_MEMORY = 4, /* device memory, budget */
    CLI_FAILED = 5,        /* anything else: the system or the driver */
};

/* Every subcommand, as a new user meets them. X(name, one line of help): cli_<name> in
 * cmd/<name>.c; BESIDE(...): a program of its own beside the command. */
#define CLI_COMMANDS(X, BESIDE)                                                                    \
    BESIDE(run, "run a program with Pleat as PyTorch's allocator")                                 \
    BESIDE(estimate, "run a program without a GPU, and say what it would take")                    \
    X(import, "read a torch memory snapshot into a trace")                                         \
    X(explain, "say in words where a job's memory goes, and what would help")                      \
    X(plan, "plan a training iteration's memory")                                                  \
    X(compare, "run a trace through several allocators, side by side")                             \
    X(report, "draw physical against virtual footprint, as a page")                                \
    X(replay, "run a trace through an allocator on real memory")                                   \
    X(verify, "prove a plan")                                                                      \
    X(top, "show the memory of running programs")                                                  \
    X(plans, "show and remove the plans that runs left for the next ones")                         \
    X(tenants, "show and change who shares a GPU, and on what terms")                              \
    X(export, "write a trace in forms that other programs read")                                   \
    X(remat, "run an operator log under a budget, computing again what was evicted")               \
    BESIDE(libtorch, "build Pleat's allocator for C++ programs with libtorch")                     \
    X(conf, "print the runtime's settings")                                                        \
    X(bench, "measure this machine")                                                               \
    X(version, "print the version")

#define CLI_DECLARE(name, help) int cli_##name(int argc, char **argv);
#define CLI_NOTHING(name, help)
CLI_COMMANDS(CLI_DECLARE, CLI_NOTHING)
#undef CLI_DECLARE

/* Prints "pleat COMMAND: message" to standard error, with a hint to --help; returns CLI_BAD_USE. */
PLEAT_PRINTF(2, 3) int cli_bad_use(const char *command, const char *format, ...);
/* Prints "pleat COMMAND: " and the thread's last error; returns the exit code of the result. */
int cli_failed(const char *command, pleat_result result);
/* Looks at a file that is written at the end of the work before it begins, as pleat__file_check
 * does: CLI_DONE, or an exit code with its message. */
int cli_check_output(const char *command, const char *path);

/* Puts the names of the files that an error may be about, "'a', 'b'", in front of its text, which
 * may speak of trace 2; returns the result. */
pleat_result cli_in_files(pleat_result result, const char *const *paths, uint32_t count);
/* Reads a plan file; what is none is told what writes one. Errors as pleat_plan_read's. */
PLEAT_NODISCARD pleat_result cli_read_plan(const char *path, pleat_plan **plan);

/* Where the path is "-", it becomes that of a file with what standard input brings. CLI_DONE, or an
 * exit code with its message. */
int cli_take_input(const char *command, const char **path);

/* Takes the limits of a device's memory out of the environment (runtime/base/environment.h), before
 * any runtime is made: a recorded job on host memory is not of this container. */
void cli_forget_limits(void);

/* A text that others made (a recording's labels, the name of a file) as it may be shown: one line,
 * in which what a terminal would take for a command, and what is no UTF-8, is written "\n" or
 * "\x1b"; in `buffer`, as much of it as fits. Messages and the cells of tables are made of it. */
const char *cli_plain(const char *text, size_t length, char *buffer, size_t size);
/* A word of a command line as a shell reads it, in quotes where it needs some; in `buffer`. */
const char *cli_quote(const char *word, char *buffer, size_t size);

/* A text that is shown, or written into a file, when it is whole; until then it is in memory. */
typedef struct cli_text {
    FILE *out;        /* what is written goes here */
    const char *what; /* "the page", for the error where there is no memory */
    char *bytes;      /* from cli_text_end on: the text, the caller's to free */
    size_t size;
} cli_text;
PLEAT_NODISCARD pleat_result cli_text_begin(cli_text *text, const char *what);
/* Ends what has begun, and is called whatever came of it, `result`, which is returned where it is
 * an error. */
PLEAT_NODISCARD pleat_result cli_text_end(cli_text *text, pleat_result result);
/* The same, and writes the file where all went well; frees the text. */
PLEAT_NODISCARD pleat_result cli_text_write(cli_text *text, const char *path, pleat_result result);

/* What makes a noun one of several: "" or "s". */
const char *cli_plural(uint64_t count);

/* "11.03 GiB"; returns `buffer`. */
const char *cli_format_size(uint64_t bytes, char *buffer, size_t size);

/* The same in the unit that another size has, so that a column of sizes can be compared by eye;
 * what rounds to nothing there is "under 0.001 GiB". */
const char *cli_format_size_like(uint64_t bytes, uint64_t like, char *buffer, size_t size);

/* A figure of four digits, "0.0237", "1.5", "728100": never a power of ten. Returns `buffer`. */
const char *cli_format_number(double value, char *buffer, size_t size);

#define CLI_TABLE_CELL    48 /* bytes; longer texts are cut */
#define CLI_TABLE_COLUMNS 16 /* at most */

/* A table for a terminal: rows of text, columns padded; the first column left, the others right. */
typedef struct cli_table {
    int columns;
    int rows;
    char (*cells)[CLI_TABLE_CELL]; /* rows * columns */
} cli_table;
/* Starts a table with its headings; false when there is no memory. */
bool cli_table_begin(cli_table *table, int columns, const char *const *headings);
/* Begins a new row and fills its cells, one per column, from printf-like pieces. */
bool cli_table_row(cli_table *table);
PLEAT_PRINTF(3, 4) void cli_table_cell(cli_table *table, int column, const char *format, ...);
/* A row of a name and a text, a size or a number; none where there is no memory. */
void cli_table_text(cli_table *table, const char *name, const char *text);
void cli_table_size(cli_table *table, const char *name, uint64_t bytes);
void cli_table_count(cli_table *table, const char *name, uint64_t count);
/* Frees without printing. */
void cli_table_drop(cli_table *table);
/* Prints and frees. Where it is wider than the terminal, columns go on below, the first one said
 * again. */
void cli_table_end(cli_table *table, FILE *out);

#endif
