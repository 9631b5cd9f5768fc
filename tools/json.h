/*
 * json.h: writes one JSON value to a stream as it goes; commas and quoting are its matter.
 */
#ifndef PLEAT_TOOLS_JSON_H
#define PLEAT_TOOLS_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef struct json_writer {
    FILE *out;
    int depth;
    bool first[16]; /* nothing written yet at this depth */
} json_writer;

void json_begin(json_writer *json, FILE *out);
/* key is NULL inside an array and at the top. */
void json_object(json_writer *json, const char *key);
void json_array(json_writer *json, const char *key);
void json_end_object(json_writer *json);
void json_end_array(json_writer *json);
void json_uint(json_writer *json, const char *key, uint64_t value);
/* Not a number and infinities are written as null. */
void json_double(json_writer *json, const char *key, double value);
void json_bool(json_writer *json, const char *key, bool value);
void json_string(json_writer *json, const char *key, const char *value);
/* Ends the line. */
void json_finish(json_writer *json);

#endif
