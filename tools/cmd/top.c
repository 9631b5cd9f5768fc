/*
 * top.c: `pleat top`: what running programs take, from the logs that their runtimes write
 * (runtime/observe/log.h). One line a runtime, or, of one, its memory over the last minute and its
 * routes.
 *
 * OUTPUT  A frame is written in one piece. On a terminal it replaces the last one (plain ANSI, cut
 *         to the window as it is at that moment); elsewhere frames follow one another as plain
 *         lines, so that a pipe gets all of them.
 */
#include <tools/analysis/runview.h>
#include <tools/cli.h>
#include <tools/options.h>
#include <tools/wrap.h>

#include <internal/error.h>

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define RUNTIMES_MOST 256
#define PATH_BYTES    4096
#define SECOND        1e9

typedef struct options {
    const char *operand; /* a process or a file; NULL: all there are */
    double interval;
    uint32_t count; /* frames; 0: until interrupted */
    bool json;
} options;

typedef struct screen {
    bool terminal;
    int rows, columns;
} screen;

static volatile sig_atomic_t interrupted;

/* ---- what is running ---- */

typedef struct runtimes {
    char paths[RUNTIMES_MOST][PATH_BYTES];
    int count;
} runtimes;

/* By process, device and which of its runtimes it is, as numbers: 9-0.log, 10-0.log, 10-0-2.log,
 * 10-1.log. */
static int compare_paths(const void *left, const void *right)
{
    const char *a = left, *b = right;
    while (*a != '\0' && *b != '\0') {
        if (isdigit((unsigned char)*a) && isdigit((unsigned char)*b)) {
            char *a_end, *b_end;
            unsigned long long of_a = strtoull(a, &a_end, 10), of_b = strtoull(b, &b_end, 10);
            if (of_a != of_b)
                return of_a < of_b ? -1 : 1;
            a = a_end;
            b = b_end;
        } else if (*a != *b) {
            /* What ends a name comes before what goes on with it. */
            return *a == '.' ? -1 : *b == '.' ? 1 : (*a > *b) - (*a < *b);
        } else {
            a++;
            b++;
        }
    }
    return (*a != '\0') - (*b != '\0');
}

/* Logs of that folder; of the process `pid`, or of all when it is NULL. Without the folder there
 * are none. */
static pleat_result scan(const char *folder, const char *pid, runtimes *found)
{
    DIR *open_folder = opendir(folder);
    found->count = 0;
    if (open_folder == NULL && errno == ENOENT)
        return PLEAT_OK;
    if (open_folder == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "'%s' cannot be looked at", folder);
    for (struct dirent *entry; (entry = readdir(open_folder)) != NULL;) {
        size_t length = strlen(entry->d_name), own = pid != NULL ? strlen(pid) : 0;
        if (length < 4 || strcmp(entry->d_name + length - 4, ".log") != 0 ||
            (pid != NULL && (strncmp(entry->d_name, pid, own) != 0 || entry->d_name[own] != '-')) ||
            found->count == RUNTIMES_MOST)
            continue;
        if (snprintf(found->paths[found->count], PATH_BYTES, "%s/%s", folder, entry->d_name) <
            PATH_BYTES)
            found->count++;
    }
    closedir(open_folder);
    qsort(found->paths, (size_t)found->count, PATH_BYTES, compare_paths);
    return PLEAT_OK;
}

static bool is_number(const char *text)
{
    return *text != '\0' && strspn(text, "0123456789") == strlen(text);
}

/* ---- a frame ---- */

/* Every log that reads. One that does not, in the common folder, may be a process just ending. */
static pleat_result put_all(const options *o, const char *folder, FILE *out, json_writer *json)
{
    runtimes *found = malloc(sizeof *found);
    cli_table table;
    int running = 0;
    if (found == NULL ||
        (!o->json && !cli_table_begin(&table, RUNVIEW_COLUMNS, runview_headings))) {
        free(found);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a table");
    }
    pleat_result result = scan(folder, NULL, found);
    for (int i = 0; i < found->count; i++) {
        runlog log;
        if (runlog_open(found->paths[i], &log) != PLEAT_OK)
            continue;
        if (log.status == RUNLOG_RUNNING) {
            running++;
            if (o->json)
                runview_json(json, found->paths[i], &log);
            else
                runview_line(&table, &log);
        }
        runlog_close(&log);
    }
    free(found);
    if (!o->json && running > 0)
        cli_table_end(&table, out);
    else if (!o->json)
        cli_table_drop(&table);
    if (!o->json && running == 0 && result == PLEAT_OK)
        fprintf(out,
                "Nothing runs under Pleat that writes a log into %s: start it with\n"
                "'pleat run --log auto' or PLEAT_CONF=log:auto, or give a log's file.\n",
                folder);
    return result;
}

static pleat_result put_one(const options *o, const char *path, const screen *on, FILE *out,
                            json_writer *json, bool *over)
{
    runlog log;
    PLEAT_TRY(runlog_open(path, &log));
    *over = log.status != RUNLOG_RUNNING;
    if (o->json)
        runview_json(json, path, &log);
    else
        runview_text(out, &log, on->columns);
    runlog_close(&log);
    return PLEAT_OK;
}

/* A process's runtimes, or the file. *over: nothing will change any more. */
static pleat_result put_named(const options *o, const char *folder, const screen *on, FILE *out,
                              json_writer *json, bool *over)
{
    if (!is_number(o->operand))
        return put_one(o, o->operand, on, out, json, over);
    runtimes *found = malloc(sizeof *found);
    if (found == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for paths");
    pleat_result result = scan(folder, o->operand, found);
    if (result == PLEAT_OK && found->count == 0)
        result = pleat__fail(PLEAT_E_INPUT,
                             "no log of process %s in %s: start it with "
                             "'pleat run --log auto' or PLEAT_CONF=log:auto",
                             o->operand, folder);
    *over = true;
    for (int i = 0; i < found->count && result == PLEAT_OK; i++) {
        bool ended;
        result = put_one(o, found->paths[i], on, out, json, &ended);
        *over = *over && ended;
    }
    free(found);
    return result;
}

/* ---- the screen ---- */

static screen screen_now(bool plain)
{
    struct winsize size = {0};
    const char *kind = getenv("TERM");
    bool dumb = kind == NULL || *kind == '\0' || strcmp(kind, "dumb") == 0;
    screen s = {.terminal = isatty(STDOUT_FILENO) == 1 && !dumb && !plain, .columns = 100};
    if (isatty(STDOUT_FILENO) == 1 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 0) {
        s.columns = size.ws_col;
        s.rows = size.ws_row;
    }
    return s;
}

/* A line at a time, broken to the window; what was there before goes. */
static void draw(const screen *on, const char *frame)
{
    int row = 0;
    cli_text text;
    if (cli_text_begin(&text, "a frame") != PLEAT_OK)
        return; /* the next frame may have memory */
    wrap_lines(text.out, frame, on->columns);
    if (cli_text_end(&text, PLEAT_OK) != PLEAT_OK) {
        free(text.bytes);
        return;
    }
    fputs("\033[H", stdout);
    for (const char *line = text.bytes; *line != '\0'; row++) {
        int length = (int)strcspn(line, "\n");
        if (on->rows > 0 && row + 1 >= on->rows)
            break;
        printf("%.*s\033[K\r\n", length < on->columns ? length : on->columns, line);
        line += length + (line[length] == '\n');
    }
    fputs("\033[J", stdout);
    free(text.bytes);
}

static void on_signal(int number)
{
    if (number != SIGWINCH)
        interrupted = 1;
}

/* Signals come only while it waits: none is missed between a frame and the wait for the next. */
static void take_signals(sigset_t *before)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGWINCH};
    struct sigaction action = {.sa_handler = on_signal};
    sigset_t taken;
    sigemptyset(&taken);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        sigaction(numbers[i], &action, NULL);
        sigaddset(&taken, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &taken, before);
}

/* What a terminal was like before; keys come without a return. */
static bool begin_screen(struct termios *before)
{
    fputs("\033[?1049h\033[?25l", stdout);
    if (tcgetattr(STDIN_FILENO, before) != 0)
        return false;
    struct termios raw = *before;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    return tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
}

static void end_screen(const struct termios *before, bool keys)
{
    if (keys)
        tcsetattr(STDIN_FILENO, TCSANOW, before);
    fputs("\033[?25h\033[?1049l", stdout);
    fflush(stdout);
}

/* Until the next frame is due, the window changes or a key is pressed; false: no more. */
static bool wait_for_next(double seconds, bool keys, const sigset_t *signals)
{
    char key;
    struct pollfd input = {.fd = keys ? STDIN_FILENO : -1, .events = POLLIN};
    struct timespec most = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - floor(seconds)) * SECOND)};
    int ready = ppoll(&input, 1, &most, signals);
    if (ready > 0 && (read(STDIN_FILENO, &key, 1) != 1 || key == 'q' || key == 'Q'))
        return false;
    return !interrupted;
}

/* ---- the command ---- */

static pleat_result put_frame(const options *o, const screen *on, FILE *out, bool *over)
{
    char folder[PATH_BYTES / 2];
    json_writer json;
    pleat__log_folder(folder, sizeof folder);
    if (o->json) {
        json_begin(&json, out);
        json_object(&json, NULL);
        json_array(&json, "runtimes");
    }
    pleat_result result = o->operand == NULL ? put_all(o, folder, out, &json)
                                             : put_named(o, folder, on, out, &json, over);
    if (o->json) {
        json_end_array(&json);
        json_end_object(&json);
        json_finish(&json);
    }
    return result;
}

static pleat_result show_frame(const options *o, const screen *on, bool *over)
{
    cli_text text;
    PLEAT_TRY(cli_text_begin(&text, "a frame"));
    pleat_result result = cli_text_end(&text, put_frame(o, on, text.out, over));
    if (result == PLEAT_OK && on->terminal)
        draw(on, text.bytes);
    else if (result == PLEAT_OK)
        fputs(text.bytes, stdout);
    free(text.bytes);
    return result;
}

static pleat_result show(const options *o)
{
    struct termios before;
    sigset_t signals;
    bool over = false, terminal = screen_now(o->count > 0 || o->json).terminal;
    take_signals(&signals);
    bool keys = terminal && begin_screen(&before);
    pleat_result result = PLEAT_OK;
    for (uint32_t frame = 0; result == PLEAT_OK; frame++) {
        screen on = screen_now(!terminal);
        if (frame > 0 && !terminal && !o->json)
            putchar('\n');
        result = show_frame(o, &on, &over);
        /* On a terminal the last frame stays to be read. */
        if (fflush(stdout) != 0 || (over && !terminal) || frame + 1 == o->count ||
            !wait_for_next(o->interval, keys, &signals))
            break;
    }
    if (terminal)
        end_screen(&before, keys);
    return result;
}

int cli_top(int argc, char **argv)
{
    options o = {.interval = NAN};
    const cli_option table[] = {
        OPTION_NUMBER('i', "interval", &o.interval, "SECONDS", 0.1, 3600, "between frames (1)"),
        OPTION_COUNT('n', "count", &o.count, "N", 1, UINT32_MAX,
                     "so many frames, below each other"),
        OPTION_FLAG('j', "json", &o.json, "an object a frame, a line each"),
        OPTION_END,
    };
    const cli_usage usage = {
        .command = "top",
        .synopsis = "[PID|FILE] [options]",
        .text =
            "Shows the memory of running programs. They write a log when asked: with\n"
            "'pleat run --log auto' or PLEAT_CONF=log:auto where this command looks\n"
            "($XDG_RUNTIME_DIR/pleat, else pleat-UID in $TMPDIR or /tmp), with a file's name in "
            "the\n"
            "place of auto anywhere. Without an argument: a line for each that runs. With a\n"
            "process's number or a log's file: all of that one, also after it ended.\n"
            "On a terminal q ends it; a pipe or a file gets one frame, or as many as --count or\n"
            "--interval ask for.\n",
        .options = table,
        .operand = "one process or file",
        .value = &o.operand,
        .optional = true,
    };
    int code = cli_read(argc, argv, &usage, NULL);
    if (code != CLI_GO_ON)
        return code;
    if (isnan(o.interval)) {
        if (o.count == 0 && !isatty(STDOUT_FILENO))
            o.count = 1;
        o.interval = 1;
    }
    pleat_result result = show(&o);
    return result == PLEAT_OK ? CLI_DONE : cli_failed("top", result);
}
