/*
 * error.c: names and texts of results, the thread's last error, the end of a failed check.
 */
#include <internal/check.h>
#include <internal/error.h>
#include <internal/format.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static _Thread_local pleat_error last_error;
static _Thread_local bool told; /* it was set since pleat__expect_text */

/* Between pleat__tries_begin and its end: what was there before the first failure. */
static _Thread_local struct {
    bool open, kept;
    pleat_error before;
} tries;

const char *pleat_result_name(pleat_result result)
{
    switch (result) {
#define PLEAT_RESULT_NAME(name, value, text)                                                       \
    case PLEAT_##name:                                                                             \
        return "PLEAT_" #name;
        PLEAT_RESULTS(PLEAT_RESULT_NAME)
#undef PLEAT_RESULT_NAME
    }
    return "PLEAT_E_UNKNOWN";
}

const char *pleat_result_text(pleat_result result)
{
    switch (result) {
#define PLEAT_RESULT_TEXT(name, value, text)                                                       \
    case PLEAT_##name:                                                                             \
        return text;
        PLEAT_RESULTS(PLEAT_RESULT_TEXT)
#undef PLEAT_RESULT_TEXT
    }
    return "unknown result";
}

const pleat_error *pleat_last_error(void)
{
    return &last_error;
}

const char *pleat_version(void)
{
#define PLEAT_STRING_(x) #x
#define PLEAT_STRING(x)  PLEAT_STRING_(x)
    return PLEAT_STRING(PLEAT_VERSION_MAJOR) "." PLEAT_STRING(PLEAT_VERSION_MINOR) "." PLEAT_STRING(
        PLEAT_VERSION_PATCH);
}

/* Before another failure takes its place. */
static void keep_last(void)
{
    if (!tries.open || tries.kept)
        return;
    tries.before = last_error;
    tries.kept = true;
}

void pleat__tries_begin(void)
{
    tries.kept = tries.kept && tries.open;
    tries.open = true;
}

void pleat__tries_end(pleat_result result)
{
    if (result == PLEAT_OK && tries.open && tries.kept)
        last_error = tries.before;
    tries.open = false;
}

static void set_error(pleat_result result, int native, const char *native_name, const char *format,
                      va_list arguments)
{
    keep_last();
    last_error.result = result;
    last_error.native = native;
    snprintf(last_error.native_name, sizeof last_error.native_name, "%s", native_name);
    pleat__format_list(last_error.text, sizeof last_error.text, format, arguments);
    told = true;
}

pleat_result pleat_fail(pleat_result result, const char *text)
{
    char copy[sizeof last_error.text]; /* the text may be the last error's own */
    snprintf(copy, sizeof copy, "%s", text);
    return pleat__fail(result, "%s", copy);
}

pleat_result pleat__fail(pleat_result result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error(result, 0, "", format, arguments);
    va_end(arguments);
    return result;
}

pleat_result pleat__fail_native(pleat_result result, int native, const char *native_name,
                                const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    set_error(result, native, native_name ? native_name : "", format, arguments);
    va_end(arguments);
    return result;
}

pleat_error pleat__failure(pleat_result result)
{
    pleat_error failure = {.result = result};
    if (last_error.result == result)
        return last_error;
    snprintf(failure.text, sizeof failure.text, "%s", pleat_result_text(result));
    return failure;
}

pleat_result pleat__fail_again(const pleat_error *error)
{
    if (error->result == PLEAT_OK)
        return PLEAT_OK;
    keep_last();
    last_error = *error;
    told = true;
    return error->result;
}

void pleat__expect_text(void)
{
    told = false;
}

pleat_result pleat__told(pleat_result result, const char *format, ...)
{
    va_list arguments;
    if (result == PLEAT_OK || (told && last_error.result == result))
        return result;
    va_start(arguments, format);
    set_error(result, 0, "", format, arguments);
    va_end(arguments);
    return result;
}

/* What the system's calls say of files, memory, threads and locks. strerrorname_np is of glibc 2.32
 * on, and what is built here runs on older ones. */
#define CODE(name)                                                                                 \
    {                                                                                              \
        name, #name                                                                                \
    }
static const struct {
    int code;
    const char *name;
} codes[] = {
    CODE(EPERM),        CODE(ENOENT),     CODE(ESRCH),          CODE(EINTR),     CODE(EIO),
    CODE(ENXIO),        CODE(E2BIG),      CODE(ENOEXEC),        CODE(EBADF),     CODE(ECHILD),
    CODE(EAGAIN),       CODE(ENOMEM),     CODE(EACCES),         CODE(EFAULT),    CODE(ENOTBLK),
    CODE(EBUSY),        CODE(EEXIST),     CODE(EXDEV),          CODE(ENODEV),    CODE(ENOTDIR),
    CODE(EISDIR),       CODE(EINVAL),     CODE(ENFILE),         CODE(EMFILE),    CODE(ENOTTY),
    CODE(ETXTBSY),      CODE(EFBIG),      CODE(ENOSPC),         CODE(ESPIPE),    CODE(EROFS),
    CODE(EMLINK),       CODE(EPIPE),      CODE(EDOM),           CODE(ERANGE),    CODE(EDEADLK),
    CODE(ENAMETOOLONG), CODE(ENOLCK),     CODE(ENOSYS),         CODE(ENOTEMPTY), CODE(ELOOP),
    CODE(EOVERFLOW),    CODE(EOPNOTSUPP), CODE(ESTALE),         CODE(EDQUOT),    CODE(ETIMEDOUT),
    CODE(ECANCELED),    CODE(EOWNERDEAD), CODE(ENOTRECOVERABLE)};
#undef CODE

static const char *name_of(int code, char *text, size_t size)
{
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (codes[i].code == code)
            return codes[i].name;
    snprintf(text, size, "errno %d", code);
    return text;
}

static pleat_result fail_code(pleat_result result, int code, const char *format, va_list arguments)
{
    char reason[128], name[32];
    set_error(result, code, name_of(code, name, sizeof name), format, arguments);
    /* The GNU strerror_r returns its text, which may or may not lie in the buffer. */
    const char *text = strerror_r(code, reason, sizeof reason);
    size_t used = strlen(last_error.text);
    snprintf(last_error.text + used, sizeof last_error.text - used, ": %s", text);
    return result;
}

pleat_result pleat__fail_code(pleat_result result, int code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fail_code(result, code, format, arguments);
    va_end(arguments);
    return result;
}

pleat_result pleat__fail_errno(pleat_result result, const char *format, ...)
{
    int code = errno;
    va_list arguments;
    va_start(arguments, format);
    fail_code(result, code, format, arguments);
    va_end(arguments);
    return result;
}

pleat_result pleat__context(pleat_result result, const char *format, ...)
{
    char was[sizeof last_error.text];
    keep_last();
    memcpy(was, last_error.text, sizeof was);
    va_list arguments;
    va_start(arguments, format);
    pleat__format_list(last_error.text, sizeof last_error.text, format, arguments);
    va_end(arguments);
    size_t used = strlen(last_error.text);
    bool is_there = strncmp(was, last_error.text, used) == 0 && was[used] == ':';
    snprintf(last_error.text + used, sizeof last_error.text - used, "%s%s", is_there ? "" : ": ",
             is_there ? was + used : was);
    last_error.result = result;
    return result;
}

#ifndef NDEBUG
int pleat__hot_locks(int by)
{
    static _Thread_local int held;
    return held += by;
}
#endif

void pleat__check_failed(const char *file, int line, const char *what)
{
    char text[256];
    int length = snprintf(text, sizeof text, "pleat: %s:%d: does not hold: %s\n", file, line, what);
    if (length > (int)sizeof text - 1)
        length = (int)sizeof text - 1;
    ssize_t ignored = write(STDERR_FILENO, text, (size_t)length);
    (void)ignored;
    __builtin_trap();
}
