/*
 * internal/format.h: texts that are the same in every locale: numbers in them have a point,
 * whatever the program said to setlocale.
 */
#ifndef PLEAT_INTERNAL_FORMAT_H
#define PLEAT_INTERNAL_FORMAT_H

#include <pleat/base.h>
#include <stdarg.h>

/* As snprintf and vsnprintf: the text's length, also where it is cut. Errno is as it was. */
PLEAT_PRINTF(3, 4) int pleat__format(char *text, size_t size, const char *format, ...);
PLEAT_PRINTF(3, 0)
int pleat__format_list(char *text, size_t size, const char *format, va_list arguments);

#endif
