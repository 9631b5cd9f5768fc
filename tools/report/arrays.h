/*
 * arrays.h: arrays in the page's data: members of a JSON object, in base64, little-endian.
 */
#ifndef PLEAT_TOOLS_REPORT_ARRAYS_H
#define PLEAT_TOOLS_REPORT_ARRAYS_H

#include <stddef.h>
#include <stdio.h>

/* ,"KEY":"..." */
void put_array(FILE *out, const char *key, const void *items, size_t bytes);

#endif
