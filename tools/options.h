/*
 * options.h: reads a subcommand's command line by a table, and prints the table as its --help.
 */
#ifndef PLEAT_TOOLS_OPTIONS_H
#define PLEAT_TOOLS_OPTIONS_H

#include <tools/cli.h>

typedef enum cli_kind {
    CLI_END = 0, /* behind the last one */
    CLI_FLAG,
    CLI_BYTES,
    CLI_MEMORY,
    CLI_CHUNK,
    CLI_COUNT,
    CLI_NUMBER,
    CLI_LIST,
    CLI_CHOICE,
    CLI_TEXT,
    CLI_FILE,
} cli_kind;

/* Whole numbers with commas between them. */
typedef struct cli_list {
    uint64_t *numbers; /* the caller's room for `most` */
    uint32_t most;
    uint32_t count; /* 0: the option is not given */
} cli_list;

/* Made by the macros below. */
typedef struct cli_option {
    cli_kind kind;
    char letter; /* '\0': it has none */
    const char *name;
    union {
        bool *flag;
        uint64_t *bytes;
        uint32_t *count;
        double *number;
        cli_list *list;
        const char **text;
    } value;              /* left alone when the option is not given */
    const char *argument; /* as --help calls it; NULL for a flag */
    const char *help;     /* lines, '\n' between them */
    double least, most;
    const char *choices;
} cli_option;

/* Of a device or a budget: a chunk. With less there is nothing to say about a job, and who gives
 * less has left out the unit. */
#define CLI_LEAST_MEMORY (2u << 20)
/* The most of any size: what may live at once in a trace (T4). */
#define CLI_MOST_BYTES (1ull << 56)

/* Takes nothing; bool. */
#define OPTION_FLAG(LETTER, NAME, VALUE, HELP)                                                     \
    {                                                                                              \
        .kind = CLI_FLAG, .letter = LETTER, .name = NAME, .value.flag = VALUE, .help = HELP        \
    }
/* A size from LEAST to CLI_MOST_BYTES; uint64_t. */
#define OPTION_BYTES(LETTER, NAME, VALUE, ARGUMENT, LEAST, HELP)                                   \
    {                                                                                              \
        .kind = CLI_BYTES, .letter = LETTER, .name = NAME, .value.bytes = VALUE,                   \
        .argument = ARGUMENT, .help = HELP, .least = LEAST, .most = CLI_MOST_BYTES                 \
    }
/* What a device may map at once; uint64_t. */
#define OPTION_CHUNK(LETTER, NAME, VALUE, HELP)                                                    \
    {                                                                                              \
        .kind = CLI_CHUNK, .letter = LETTER, .name = NAME, .value.bytes = VALUE,                   \
        .argument = "SIZE", .help = HELP                                                           \
    }
/* Such a size of at least a chunk, or the name of a GPU, which stands for what that has; uint64_t.
 */
#define OPTION_MEMORY_OF(LETTER, NAME, VALUE, HELP)                                                \
    {                                                                                              \
        .kind = CLI_MEMORY, .letter = LETTER, .name = NAME, .value.bytes = VALUE,                  \
        .argument = "SIZE|GPU", .help = HELP, .least = CLI_LEAST_MEMORY, .most = CLI_MOST_BYTES    \
    }
/* A whole number from LEAST to MOST; uint32_t. */
#define OPTION_COUNT(LETTER, NAME, VALUE, ARGUMENT, LEAST, MOST, HELP)                             \
    {                                                                                              \
        .kind = CLI_COUNT, .letter = LETTER, .name = NAME, .value.count = VALUE,                   \
        .argument = ARGUMENT, .help = HELP, .least = LEAST, .most = MOST                           \
    }
/* A number from LEAST to MOST; double. */
#define OPTION_NUMBER(LETTER, NAME, VALUE, ARGUMENT, LEAST, MOST, HELP)                            \
    {                                                                                              \
        .kind = CLI_NUMBER, .letter = LETTER, .name = NAME, .value.number = VALUE,                 \
        .argument = ARGUMENT, .help = HELP, .least = LEAST, .most = MOST                           \
    }
/* Numbers from LEAST to MOST; cli_list. */
#define OPTION_LIST(LETTER, NAME, VALUE, LEAST, MOST, HELP)                                        \
    {                                                                                              \
        .kind = CLI_LIST, .letter = LETTER, .name = NAME, .value.list = VALUE,                     \
        .argument = "N,N,…", .help = HELP, .least = LEAST, .most = MOST                            \
    }
/* One of CHOICES, "host|cuda"; const char *. */
#define OPTION_CHOICE(LETTER, NAME, VALUE, ARGUMENT, CHOICES, HELP)                                \
    {                                                                                              \
        .kind = CLI_CHOICE, .letter = LETTER, .name = NAME, .value.text = VALUE,                   \
        .argument = ARGUMENT, .help = HELP, .choices = CHOICES                                     \
    }
/* A file to write; const char *. */
#define OPTION_FILE(LETTER, NAME, VALUE, ARGUMENT, HELP)                                           \
    {                                                                                              \
        .kind = CLI_FILE, .letter = LETTER, .name = NAME, .value.text = VALUE,                     \
        .argument = ARGUMENT, .help = HELP                                                         \
    }
/* A file's name or a list; const char *. */
#define OPTION_TEXT(LETTER, NAME, VALUE, ARGUMENT, HELP)                                           \
    {                                                                                              \
        .kind = CLI_TEXT, .letter = LETTER, .name = NAME, .value.text = VALUE,                     \
        .argument = ARGUMENT, .help = HELP                                                         \
    }
#define OPTION_END                                                                                 \
    {                                                                                              \
        .kind = CLI_END                                                                            \
    }

/* Those that several subcommands have. */
#define OPTION_JSON(VALUE) OPTION_FLAG('j', "json", VALUE, "one JSON object on standard output")
#define OPTION_BACKEND(VALUE)                                                                      \
    OPTION_CHOICE('b', "backend", VALUE, "NAME", "host|cuda",                                      \
                  "host, which needs no GPU, or cuda (host)")
#define OPTION_BUDGET(VALUE)                                                                       \
    OPTION_BYTES('B', "budget", VALUE, "SIZE", CLI_LEAST_MEMORY, "never more memory than this")
#define OPTION_POLICIES(VALUE)                                                                     \
    OPTION_TEXT('p', "policies", VALUE, "A,B,…", "which (native,expandable,gmlake,stweaver,pleat)")
#define OPTION_MEMORY(VALUE)                                                                       \
    OPTION_MEMORY_OF('d', "device-memory", VALUE,                                                  \
                     "what the device has, by its size or its name: h200, a100-80, …\n(the "     \
                     "recording's, or 140GiB)")

typedef struct cli_usage {
    const char *command;  /* "bench vmm" */
    const char *synopsis; /* what follows the command's name in the first line of --help */
    const char *text;     /* between that and the options */
    const char *tail;     /* below the options; NULL: nothing */
    const cli_option *options;
    const char *operand; /* "a trace"; NULL: it takes none */
    const char **value;  /* where the one operand goes; NULL: there may be several */
    uint32_t most;       /* of these; 0: any number */
    bool optional;       /* it may be left out */
    bool is_input;       /* what it takes may be "-", standard input */
} cli_usage;

/* Not an exit code: the command line is read, get on with it. */
enum { CLI_GO_ON = -1 };

/* Reads all options and puts the operands last in argv, from *first on (`first` may be NULL). At
 * least one operand is demanded where the usage names one that is not optional, and no more than
 * one where it has a `value`. CLI_GO_ON, or the exit code: --help was printed, or what is wrong. */
int cli_read(int argc, char **argv, const cli_usage *usage, int *first);

#endif
