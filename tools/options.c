/*
 * options.c: see options.h.
 */
#include <tools/options.h>

#include <tools/nearest.h>
#include <tools/wrap.h>

#include <getopt.h>
#include <math.h>
#include <runtime/base/nearest.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#define OPTION_MOST 32
#define HELP_COLUMN 26 /* longer options have their help on the next line */
/* What getopt_long returns for the option at a place of the table; above every letter. */
#define CODE_FIRST 256
#define CODE_HELP  (CODE_FIRST + OPTION_MOST)

/* Device memory of GPUs as their drivers report it: MiB. X(name, MiB) */
#define GPUS(X)                                                                                    \
    X("b200", 183359)                                                                              \
    X("h200", 143771)                                                                              \
    X("h100", 81559)                                                                               \
    X("a100-80", 81920)                                                                            \
    X("a100-40", 40960)                                                                            \
    X("l40s", 46068)                                                                               \
    X("v100-32", 32768)                                                                            \
    X("rtx4090", 24564)                                                                            \
    X("a10", 23028)

static bool find_gpu(const char *name, uint64_t *bytes)
{
#define GPU_MATCH(gpu, mib)                                                                        \
    if (strcasecmp(name, gpu) == 0) {                                                              \
        *bytes = (uint64_t)(mib) / 2 << 21; /* whole chunks, as a replay's device has */           \
        return true;                                                                               \
    }
    GPUS(GPU_MATCH)
#undef GPU_MATCH
    return false;
}

/* ---- help ---- */

static void print_option(FILE *out, const cli_option *option)
{
    char left[64];
    int length = snprintf(left, sizeof left, option->letter ? "  -%c, " : "      ", option->letter);
    snprintf(left + length, sizeof left - (size_t)length, "--%s%s%s", option->name,
             option->argument ? " " : "", option->argument ? option->argument : "");
    int wide = wrap_width(left, strlen(left));
    bool fits = wide + 2 <= HELP_COLUMN; /* what reads this knows columns by two spaces */
    fprintf(out, "%s%s%*s", left, fits ? "" : "\n", fits ? HELP_COLUMN - wide : HELP_COLUMN, "");
    for (const char *line = option->help; line != NULL;) {
        const char *end = strchr(line, '\n');
        int size = end ? (int)(end - line) : (int)strlen(line);
        fprintf(out, "%*s%.*s\n", line == option->help ? 0 : HELP_COLUMN, "", size, line);
        line = end ? end + 1 : NULL;
    }
}

static bool takes_size(const cli_option *option)
{
    return option->argument != NULL && strstr(option->argument, "SIZE") != NULL;
}

static void print_help(FILE *out, const cli_usage *usage)
{
    bool sizes = false;
    static const cli_option help = OPTION_FLAG('h', "help", NULL, "this");
    fprintf(out, "usage: pleat %s %s\n\n%s\n", usage->command, usage->synopsis, usage->text);
    for (const cli_option *option = usage->options; option->kind != CLI_END; option++)
        print_option(out, option);
    print_option(out, &help);
    for (const cli_option *option = usage->options; option->kind != CLI_END; option++)
        sizes |= takes_size(option);
    if (sizes)
        fputs("\nsizes: powers of 1024, such as 64KiB, 20GiB\n", out);
    if (usage->tail != NULL)
        fprintf(out, "\n%s", usage->tail);
}

/* ---- values ---- */

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *at = choices; *at != '\0';) {
        size_t size = strcspn(at, "|");
        if (size == length && memcmp(at, text, size) == 0)
            return true;
        at += size + (at[size] != '\0');
    }
    return false;
}

/* Digits and a point alone: as with sizes, no powers of ten and no other bases. */
static bool read_number(const char *text, const cli_option *option, double *number)
{
    char *end;
    *number = strtod(text, &end);
    return text[strspn(text, "0123456789.")] == '\0' && end != text && *end == '\0' &&
           *number >= option->least && *number <= option->most;
}

static bool read_list(const char *text, const cli_option *option)
{
    cli_list *list = option->value.list;
    for (list->count = 0; list->count < list->most; text++) {
        char *end;
        unsigned long long number = strtoull(text, &end, 10);
        if (*text < '0' || *text > '9' || (double)number < option->least ||
            (double)number > option->most || (*end != ',' && *end != '\0'))
            return false;
        list->numbers[list->count++] = number;
        text = end;
        if (*end == '\0')
            return true;
    }
    return false;
}

static bool is_chunk(uint64_t bytes)
{
    const uint64_t least = 512, most = 1ull << 40;
    return bytes >= least && bytes <= most && (bytes & (bytes - 1)) == 0;
}

static int bad_value(const cli_usage *usage, const cli_option *option, const char *text)
{
    const char *name = option->name;
    char least[48], most[48];
    cli_format_size((uint64_t)option->least, least, sizeof least);
    cli_format_size((uint64_t)option->most, most, sizeof most);
    switch (option->kind) {
    case CLI_BYTES:
        return cli_bad_use(usage->command,
                           "--%s is a size from %s to %s, such as 512MiB or 80GiB, not '%s'", name,
                           least, most, text);
    case CLI_CHUNK:
        return cli_bad_use(usage->command,
                           "--%s is a power of two from 512 B to 1 TiB, as what devices map is "
                           "(GPUs 2MiB), not '%s'",
                           name, text);
    case CLI_MEMORY: {
        char gpus[256];
        size_t length = 0;
#define GPU_NAME(gpu, mib)                                                                         \
    length += (size_t)snprintf(gpus + length, sizeof gpus - length, " %s", gpu);
        GPUS(GPU_NAME)
#undef GPU_NAME
        return cli_bad_use(usage->command,
                           "--%s is a size from %s to %s, such as 80GiB, or one of%s, not '%s'",
                           name, least, most, gpus, text);
    }
    case CLI_LIST:
        return cli_bad_use(usage->command,
                           "--%s is at most %u whole numbers from %.15g to %.15g with commas "
                           "between them, not '%s'",
                           name, option->value.list->most, option->least, option->most, text);
    case CLI_FILE:
        if (text[0] == '\0')
            return cli_bad_use(usage->command, "--%s is a file's name, not ''", name);
        return cli_bad_use(usage->command,
                           "--%s is a file, not '%s': standard output is for what is said", name,
                           text);
    case CLI_CHOICE:
        return cli_bad_use(usage->command, "--%s is one of %s, not '%s'", name, option->choices,
                           text);
    default:
        return cli_bad_use(usage->command, "--%s is a %snumber from %.15g to %.15g, not '%s'", name,
                           option->kind == CLI_COUNT ? "whole " : "", option->least, option->most,
                           text);
    }
}

/* Whether what is written into the file and what is said would be mixed: in one pipe, file or
 * terminal, by whatever name. Another device keeps nothing of either, or is refused by what it is
 * (/dev/null, /dev/full). */
static bool is_standard_output(const char *path)
{
    struct stat file, output;
    return stat(path, &file) == 0 && fstat(STDOUT_FILENO, &output) == 0 &&
           file.st_dev == output.st_dev && file.st_ino == output.st_ino &&
           (!S_ISCHR(file.st_mode) || isatty(STDOUT_FILENO) == 1);
}

static bool read_value(const cli_option *option, const char *text)
{
    double number;
    uint64_t bytes;
    switch (option->kind) {
    case CLI_FLAG:
        *option->value.flag = true;
        return true;
    case CLI_BYTES:
    case CLI_MEMORY:
        if (!(option->kind == CLI_MEMORY && find_gpu(text, &bytes)) &&
            (!pleat_size_parse(text, &bytes) || (double)bytes < option->least ||
             (double)bytes > option->most))
            return false;
        *option->value.bytes = bytes;
        return true;
    case CLI_CHUNK:
        if (!pleat_size_parse(text, &bytes) || !is_chunk(bytes))
            return false;
        *option->value.bytes = bytes;
        return true;
    case CLI_COUNT:
        if (!read_number(text, option, &number) || number != floor(number))
            return false;
        *option->value.count = (uint32_t)number;
        return true;
    case CLI_NUMBER:
        return read_number(text, option, option->value.number);
    case CLI_LIST:
        return read_list(text, option);
    case CLI_CHOICE:
        if (!is_choice(option->choices, text))
            return false;
        *option->value.text = text;
        return true;
    case CLI_FILE:
        if (text[0] == '\0' || strcmp(text, "-") == 0 || is_standard_output(text))
            return false;
        *option->value.text = text;
        return true;
    default:
        *option->value.text = text;
        return true;
    }
}

/* ---- the line ---- */

typedef struct tables {
    struct option longs[OPTION_MOST + 2];
    char letters[2 * OPTION_MOST + 4];
    int count;
} tables;

static void make_tables(const cli_usage *usage, tables *t)
{
    size_t length = 0;
    *t = (tables){0};
    t->letters[length++] = ':'; /* tell a missing value from an unknown option */
    for (; usage->options[t->count].kind != CLI_END && t->count < OPTION_MOST; t->count++) {
        const cli_option *option = &usage->options[t->count];
        int wants = option->kind == CLI_FLAG ? no_argument : required_argument;
        t->longs[t->count] = (struct option){option->name, wants, NULL, CODE_FIRST + t->count};
        if (option->letter != '\0') {
            t->letters[length++] = option->letter;
            if (wants == required_argument)
                t->letters[length++] = ':';
        }
    }
    t->longs[t->count] = (struct option){"help", no_argument, NULL, CODE_HELP};
    t->letters[length] = 'h';
}

static const cli_option *find_option(const cli_usage *usage, int code)
{
    if (code >= CODE_FIRST)
        return &usage->options[code - CODE_FIRST];
    for (const cli_option *option = usage->options; option->kind != CLI_END; option++)
        if (option->letter == code)
            return option;
    return NULL;
}

/* Those of several devices (devices.h) are looked at where it is known which these are. */
static int check_outputs(const cli_usage *usage)
{
    int code = CLI_DONE;
    for (const cli_option *option = usage->options; option->kind != CLI_END; option++)
        if (code == CLI_DONE && option->kind == CLI_FILE && *option->value.text != NULL &&
            strstr(*option->value.text, "%d") == NULL)
            code = cli_check_output(usage->command, *option->value.text);
    return code;
}

static int check_operands(int argc, char **argv, const cli_usage *usage, int *first)
{
    int count = argc - optind;
    if (usage->operand == NULL && count > 0)
        return cli_bad_use(usage->command, "takes no '%s'", argv[optind]);
    if (usage->operand != NULL && !usage->optional && count == 0)
        return cli_bad_use(usage->command, "takes %s, got none", usage->operand);
    if (usage->value != NULL && count > 1)
        return cli_bad_use(usage->command, "takes %s, got %d: '%s' is one too many", usage->operand,
                           count, argv[optind + 1]);
    if (usage->most != 0 && count > (int)usage->most)
        return cli_bad_use(usage->command, "takes at most %u traces, got %d", usage->most, count);
    int code = check_outputs(usage);
    for (int i = optind; code == CLI_DONE && i < argc && usage->is_input; i++) {
        const char *path = argv[i];
        code = cli_take_input(usage->command, &path);
        argv[i] = (char *)(uintptr_t)path;
    }
    if (code != CLI_DONE)
        return code;
    if (usage->value != NULL && count == 1)
        *usage->value = argv[optind];
    if (first != NULL)
        *first = optind;
    return CLI_GO_ON;
}

static int no_option(const cli_usage *usage, const char *typed)
{
    char near[PLEAT__NEAREST_TEXT], name[64];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(typed, "="), typed);
    pleat__nearest found = pleat__nearest_to(name);
    for (const cli_option *option = usage->options; option->kind != CLI_END; option++) {
        static char names[OPTION_MOST][64];
        char *dashed = names[option - usage->options];
        snprintf(dashed, sizeof *names, "--%s", option->name);
        pleat__nearest_try(&found, dashed);
    }
    return cli_bad_use(usage->command, "'%s' is no option that it has%s", typed,
                       pleat__nearest_text(&found, near));
}

int cli_read(int argc, char **argv, const cli_usage *usage, int *first)
{
    tables t;
    make_tables(usage, &t);
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, t.letters, t.longs, NULL)) != -1;) {
        if (code == 'h' || code == CODE_HELP) {
            wrap_output();
            print_help(stdout, usage);
            return CLI_DONE;
        }
        if (code == '?' && optopt != 0 && optopt < CODE_FIRST)
            return cli_bad_use(usage->command, "there is no option '-%c'", optopt);
        if (code == '?')
            return no_option(usage, argv[optind - 1]);
        if (code == ':')
            return cli_bad_use(usage->command, "'%s' wants a value", argv[optind - 1]);
        const cli_option *option = find_option(usage, code);
        if (option != NULL && option->kind == CLI_FILE && *option->value.text != NULL)
            return cli_bad_use(usage->command, "--%s is given twice, '%s' and '%s': one is written",
                               option->name, *option->value.text, optarg);
        if (option != NULL && !read_value(option, optarg))
            return bad_value(usage, option, optarg);
    }
    return check_operands(argc, argv, usage, first);
}
