/*
 * format.c: see internal/format.h.
 */
#include <internal/format.h>

#include <errno.h>
#include <locale.h>
#include <pthread.h>
#include <stdio.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* 0: there is none, and texts are the program's locale's */

static void make_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

int pleat__format_list(char *text, size_t size, const char *format, va_list arguments)
{
    int code = errno;
    (void)pthread_once(&once, make_plain);
    /* Of the calling thread alone. */
    locale_t before = plain != (locale_t)0 ? uselocale(plain) : (locale_t)0;
    int length = vsnprintf(text, size, format, arguments);
    if (before != (locale_t)0)
        (void)uselocale(before);
    errno = code;
    return length;
}

int pleat__format(char *text, size_t size, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int length = pleat__format_list(text, size, format, arguments);
    va_end(arguments);
    return length;
}
