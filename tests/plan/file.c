/*
 * file.c: files take another one's place whole, on the disk, with its permissions, and leave
 * nothing behind. The linker puts functions of this file in the place of open, fsync, rename and
 * unlink, which say what was done, and fail where a test wants them to.
 */
#include "files.h"

#include <plan/base/file.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct {
    bool refuses_unnamed; /* as a file system that knows no files without a name */
    int fails;            /* fsync's errno */
    int renames, unlinks; /* errno of these, 0: they are done */
    bool kills;           /* the process, when it is asked to sync */
    char steps[32];       /* f: a file was synced, r: renamed, d: a folder was synced */
} disk;

static void note(char step)
{
    size_t length = strlen(disk.steps);
    assert_in_range(length, 0, sizeof disk.steps - 2);
    disk.steps[length] = step;
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (disk.refuses_unnamed && (flags & O_TMPFILE) == O_TMPFILE) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return __real_open(path, flags, mode);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd)
{
    struct stat status;
    assert_int_equal(fstat(fd, &status), 0);
    note(S_ISDIR(status.st_mode) ? 'd' : 'f');
    if (disk.kills)
        raise(SIGKILL);
    errno = disk.fails;
    return disk.fails != 0 ? -1 : __real_fsync(fd);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to)
{
    note('r');
    errno = disk.renames;
    return disk.renames != 0 ? -1 : __real_rename(from, to);
}

int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path)
{
    errno = disk.unlinks;
    return disk.unlinks != 0 ? -1 : __real_unlink(path);
}

typedef struct {
    char folder[80], path[96];
} fixture;

static void begin(fixture *f, bool refuses_unnamed)
{
    *f = (fixture){0};
    snprintf(f->folder, sizeof f->folder, "%s/file-XXXXXX", test_folder());
    memset(&disk, 0, sizeof disk);
    disk.refuses_unnamed = refuses_unnamed;
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof f->path, "%s/f", f->folder);
}

/* Nothing else is in the folder: it can be removed. */
static void end(fixture *f)
{
    unlink(f->path);
    assert_int_equal(rmdir(f->folder), 0);
}

static void assert_holds(const char *path, const char *text)
{
    test_bytes found = test_file_read(path);
    assert_int_equal(found.size, strlen(text));
    assert_memory_equal(found.data, text, found.size);
    free(found.data);
}

static void file_is_synced_before_it_takes_a_place(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 2; unnamed++) {
        fixture f;
        begin(&f, unnamed == 0);
        assert_ok(pleat__file_write(f.path, "one", 3));
        assert_string_equal(disk.steps, "frd");
        assert_holds(f.path, "one");
        end(&f);
    }
}

static void file_that_cannot_be_synced_takes_no_place(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 2; unnamed++) {
        fixture f;
        begin(&f, unnamed == 0);
        assert_ok(pleat__file_write(f.path, "one", 3));
        memset(disk.steps, 0, sizeof disk.steps);
        disk.fails = EIO;
        assert_int_equal(pleat__file_write(f.path, "other", 5), PLEAT_E_IO);
        assert_string_equal(disk.steps, "f");
        assert_holds(f.path, "one");
        end(&f);
    }
}

/* Where nothing can be synced, as in a file system of a network or in memory, nothing is lost. */
static void file_may_lie_where_nothing_is_synced(void **state)
{
    (void)state;
    fixture f;
    begin(&f, false);
    disk.fails = EINVAL;
    assert_ok(pleat__file_write(f.path, "one", 3));
    assert_holds(f.path, "one");
    end(&f);
}

static void file_leaves_nothing_when_its_process_is_killed(void **state)
{
    (void)state;
    fixture f;
    int status;
    begin(&f, false);
    pid_t child = fork();
    if (child == 0) {
        disk.kills = true;
        _exit(pleat__file_write(f.path, "one", 3));
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    end(&f);
}

static void file_keeps_its_permissions(void **state)
{
    (void)state;
    static const mode_t modes[] = {0600, 0640, 0444, 0666};
    for (size_t i = 0; i < 2 * sizeof modes / sizeof *modes; i++) {
        fixture f;
        struct stat status;
        begin(&f, i % 2 == 0);
        assert_ok(pleat__file_write(f.path, "one", 3));
        assert_int_equal(chmod(f.path, modes[i / 2]), 0);
        assert_ok(pleat__file_write(f.path, "other", 5));
        assert_int_equal(stat(f.path, &status), 0);
        assert_int_equal(status.st_mode & 07777, modes[i / 2]);
        end(&f);
    }
}

static void file_follows_no_link_at_a_temporary_name(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 2; unnamed++) {
        fixture f;
        char other[80], planted[96];
        begin(&f, unnamed == 0);
        snprintf(other, sizeof other, "%s/other", f.folder);
        snprintf(planted, sizeof planted, "%s/.pleat.%ld.0.tmp", f.folder, (long)getpid());
        test_file_write(other, "kept", 4);
        assert_int_equal(symlink(other, planted), 0);
        assert_ok(pleat__file_write(f.path, "one", 3));
        assert_holds(f.path, "one");
        assert_holds(other, "kept");
        assert_int_equal(unlink(planted), 0);
        assert_int_equal(unlink(other), 0);
        end(&f);
    }
}

/* A folder that is there and takes no files is not called missing. */
static void file_says_which_folder_is_missing(void **state)
{
    (void)state;
    assert_result(pleat__file_write("/no/such/x", "a", 1), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "there is no folder '/no/such'"));
    assert_result(pleat__file_write("/proc/x", "a", 1), PLEAT_E_IO);
    assert_string_equal(pleat_last_error()->text,
                        "'/proc/x': no file can be made in the folder '/proc'");
    assert_result(pleat__file_check("/proc/x"), PLEAT_E_IO);
    assert_string_equal(pleat_last_error()->text,
                        "'/proc/x': no file can be made in the folder '/proc'");
}

/* As long as a file system takes it: the name that it has before is its own. */
static void file_may_have_a_long_name(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 2; unnamed++) {
        fixture f;
        char path[sizeof f.folder + 260], longer[sizeof f.folder + 260];
        begin(&f, unnamed == 0);
        snprintf(path, sizeof path, "%s/%0255d", f.folder, 0);
        snprintf(longer, sizeof longer, "%s/%0256d", f.folder, 0);
        assert_ok(pleat__file_check(path));
        assert_ok(pleat__file_write(path, "one", 3));
        assert_holds(path, "one");
        assert_result(pleat__file_check(longer), PLEAT_E_IO);
        assert_result(pleat__file_write(longer, "one", 3), PLEAT_E_IO);
        assert_int_equal(unlink(path), 0);
        end(&f);
    }
}

/* A mount point; not another user's file where each removes only his own. */
static void file_whose_place_is_not_to_be_had_is_written(void **state)
{
    (void)state;
    static const int codes[] = {ENOSPC, EPERM};
    for (size_t i = 0; i < 2 * sizeof codes / sizeof *codes; i++) {
        fixture f;
        begin(&f, i % 2 == 0);
        assert_ok(pleat__file_write(f.path, "other", 5));
        disk.renames = EBUSY;
        assert_ok(pleat__file_write(f.path, "one", 3));
        assert_holds(f.path, "one");
        disk.renames = codes[i / 2];
        assert_result(pleat__file_write(f.path, "two", 3), PLEAT_E_IO);
        assert_holds(f.path, "one");
        end(&f);
    }
}

/* A link that leads to no file leads to the one that is made, as in a shell. */
static void file_is_made_where_links_lead(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 4; unnamed++) {
        fixture f;
        char link[96], further[96], inner[96];
        begin(&f, unnamed % 2 == 0);
        snprintf(link, sizeof link, "%s/link", f.folder);
        snprintf(inner, sizeof inner, "%s/inner", f.folder);
        snprintf(further, sizeof further, "%s/inner/further", f.folder);
        assert_int_equal(mkdir(inner, 0777), 0);
        assert_int_equal(symlink("inner/further", link), 0);
        assert_int_equal(symlink(unnamed < 2 ? "../f" : f.path, further), 0);
        assert_ok(pleat__file_check(link));
        assert_int_equal(access(f.path, F_OK), -1);
        assert_ok(pleat__file_write(link, "one", 3));
        assert_holds(f.path, "one");
        assert_ok(pleat__file_write(link, "other", 5));
        assert_holds(f.path, "other");
        assert_int_equal(unlink(link), 0);
        assert_int_equal(unlink(further), 0);
        assert_int_equal(rmdir(inner), 0);
        end(&f);
    }
}

/* In a circle, or to a folder that is not there. */
static void file_is_not_made_where_links_lead_nowhere(void **state)
{
    (void)state;
    static const char *const targets[] = {"link", "none/f"};
    static const char *const says[] = {"/link': cannot be made: ", "/link': there is no folder '"};
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        fixture f;
        char link[PATH_MAX];
        begin(&f, false);
        snprintf(link, sizeof link, "%s/link", f.folder);
        assert_int_equal(symlink(targets[i], link), 0);
        assert_result(pleat__file_check(link), PLEAT_E_IO);
        assert_non_null(strstr(pleat_last_error()->text, says[i]));
        assert_result(pleat__file_write(link, "one", 3), PLEAT_E_IO);
        errno = 0;
        assert_int_equal(pleat__file_follow(link), i == 1);
        assert_int_equal(errno, i == 1 ? ENOENT : ELOOP);
        snprintf(link, sizeof link, "%s/link", f.folder);
        assert_int_equal(unlink(link), 0);
        end(&f);
    }
}

static void file_is_looked_at_and_stays_as_it_is(void **state)
{
    (void)state;
    for (int unnamed = 0; unnamed < 2; unnamed++) {
        fixture f;
        begin(&f, unnamed == 0);
        assert_ok(pleat__file_check(f.path));
        assert_int_equal(access(f.path, F_OK), -1);
        assert_ok(pleat__file_write(f.path, "one", 3));
        assert_ok(pleat__file_check(f.path));
        assert_holds(f.path, "one");
        end(&f);
    }
}

/* As of a folder in which files are only added to. */
static void file_that_cannot_be_dropped_is_told(void **state)
{
    (void)state;
    fixture f;
    char left[120];
    begin(&f, true);
    disk.unlinks = EPERM;
    assert_result(pleat__file_check(f.path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "/f': cannot be written: "));
    disk.unlinks = 0;
    snprintf(left, sizeof left, "%s/.pleat.%ld.0.tmp", f.folder, (long)getpid());
    assert_int_equal(unlink(left), 0);
    end(&f);
}

static void socket_is_no_file_to_write(void **state)
{
    (void)state;
    fixture f;
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    begin(&f, false);
    snprintf(name.sun_path, sizeof name.sun_path, "%s", f.path);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    assert_result(pleat__file_check(f.path), PLEAT_E_IO);
    assert_non_null(strstr(pleat_last_error()->text, "/f': cannot be written: "));
    close(fd);
    end(&f);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_is_synced_before_it_takes_a_place),
        cmocka_unit_test(file_that_cannot_be_synced_takes_no_place),
        cmocka_unit_test(file_may_lie_where_nothing_is_synced),
        cmocka_unit_test(file_leaves_nothing_when_its_process_is_killed),
        cmocka_unit_test(file_keeps_its_permissions),
        cmocka_unit_test(file_follows_no_link_at_a_temporary_name),
        cmocka_unit_test(file_says_which_folder_is_missing),
        cmocka_unit_test(file_may_have_a_long_name),
        cmocka_unit_test(file_whose_place_is_not_to_be_had_is_written),
        cmocka_unit_test(file_is_made_where_links_lead),
        cmocka_unit_test(file_is_not_made_where_links_lead_nowhere),
        cmocka_unit_test(file_is_looked_at_and_stays_as_it_is),
        cmocka_unit_test(file_that_cannot_be_dropped_is_told),
        cmocka_unit_test(socket_is_no_file_to_write),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
