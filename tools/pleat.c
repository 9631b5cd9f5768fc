/*
 * pleat.c: the command. Finds the subcommand: one built in, or, as git does, a program
 * `pleat-NAME` beside this one.
 */
#include <tools/cli.h>
#include <tools/nearest.h>
#include <tools/words.h>
#include <tools/wrap.h>

#include <errno.h>
#include <runtime/base/nearest.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static void print_help(FILE *out)
{
    fputs("usage: pleat COMMAND [ARGUMENT ...]\n\nFolds a training job's memory.\n\n", out);
#define HELP_LINE(name, help) fprintf(out, "  %-10s %s\n", #name, help);
    CLI_COMMANDS(HELP_LINE, HELP_LINE)
#undef HELP_LINE
    fputs("\n'pleat COMMAND --help' says more; 'pleat help words' explains the words used.\n", out);
}

/* Runs `pleat-NAME` from this program's folder; returns only when there is none. */
static void exec_beside(const char *name, char **argv)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        return;
    path[length] = '\0';
    char *slash = strrchr(path, '/');
    size_t room = sizeof path - (size_t)(slash + 1 - path);
    if (strchr(name, '/') != NULL || strlen(name) + sizeof "pleat-" > room)
        return;
    snprintf(slash + 1, room, "pleat-%s", name);
    execv(path, argv);
}

static bool is_beside(const char *name)
{
    bool found = false;
#define SAME_NAME(command, help) found |= strcmp(name, #command) == 0;
    CLI_COMMANDS(CLI_NOTHING, SAME_NAME)
#undef SAME_NAME
    return found;
}

/* What is missing where a command is a program of its own. */
static int no_program(const char *name)
{
    char path[4096] = "pleat", near[PLEAT__NEAREST_TEXT];
    if (is_beside(name)) {
        ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
        path[length > 0 ? length : 0] = '\0';
        fprintf(stderr,
                "pleat %s: 'pleat-%s' is not beside %s, nor can it be started: was pleat moved or "
                "copied by itself? Use it where it was built or installed, or install it (cmake "
                "--install, or pip install ./adapters/pytorch)\n",
                name, name, path);
        return CLI_FAILED;
    }
    pleat__nearest found = pleat__nearest_to(name);
#define TRY_NAME(command, help) pleat__nearest_try(&found, #command);
    CLI_COMMANDS(TRY_NAME, TRY_NAME)
#undef TRY_NAME
    pleat__nearest_try(&found, "help");
    fprintf(stderr, "pleat: '%s' is not a command%s See 'pleat --help'.\n", name,
            found.best != NULL ? pleat__nearest_text(&found, near) : ".");
    return CLI_BAD_USE;
}

/* 'help COMMAND ...' becomes 'COMMAND ... --help'. */
static void turn_help(int argc, char **argv)
{
    static char flag[] = "--help";
    memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
    argv[argc - 1] = flag;
}

/* A full disk must not pass for an answer. */
static int printed(const char *name, int code)
{
    if (wrap_flush())
        return code;
    fprintf(stderr, "pleat %s: standard output cannot be written: %s\n", name, strerror(errno));
    return code == CLI_DONE ? CLI_FAILED : code;
}

int main(int argc, char **argv)
{
    /* A file that may not grow is said like a full disk, and its beginning removed. */
    signal(SIGXFSZ, SIG_IGN);
    if (argc < 2) {
        print_help(stderr);
        return CLI_BAD_USE;
    }
    if (argc == 3 && strcmp(argv[1], "help") == 0 && strcmp(argv[2], "words") == 0) {
        wrap_output();
        words_print(stdout);
        return printed("help", CLI_DONE);
    }
    if (argc > 2 && strcmp(argv[1], "help") == 0)
        turn_help(argc, argv);
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        wrap_output();
        print_help(stdout);
        return printed("help", CLI_DONE);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    if (strcmp(name, "top") != 0 &&
        strcmp(name, "run") != 0) /* one draws, one is another program */
        wrap_output();
#define DISPATCH(command, help)                                                                    \
    if (strcmp(name, #command) == 0)                                                               \
        return printed(#command, cli_##command(argc - 1, argv + 1));
    CLI_COMMANDS(DISPATCH, CLI_NOTHING)
#undef DISPATCH
    signal(SIGXFSZ, SIG_DFL); /* as the program is used to */
    exec_beside(name, argv + 1);
    return no_program(name);
}
