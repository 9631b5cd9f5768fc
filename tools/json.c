/*
 * json.c: see json.h.
 */
#include <tools/json.h>

#include <internal/utf8.h>
#include <math.h>
#include <string.h>

static void quote(FILE *out, const char *text)
{
    size_t length = strlen(text);
    fputc('"', out);
    for (size_t at = 0; at < length;) {
        size_t size = pleat__utf8_character(text + at, length - at);
        unsigned char c = (unsigned char)text[at];
        if (size == 0) /* a file's name may be any bytes */
            fputs("\\ufffd", out);
        else if (c == '"' || c == '\\')
            fprintf(out, "\\%c", c);
        else if (c < 0x20)
            fprintf(out, "\\u%04x", c);
        else
            fwrite(text + at, 1, size, out);
        at += size == 0 ? 1 : size;
    }
    fputc('"', out);
}

static void before_value(json_writer *json, const char *key)
{
    if (!json->first[json->depth])
        fputs(", ", json->out);
    json->first[json->depth] = false;
    if (key != NULL) {
        quote(json->out, key);
        fputs(": ", json->out);
    }
}

static void open_nested(json_writer *json, const char *key, char bracket)
{
    before_value(json, key);
    fputc(bracket, json->out);
    json->first[++json->depth] = true;
}

void json_begin(json_writer *json, FILE *out)
{
    *json = (json_writer){.out = out, .first = {true}};
}

void json_object(json_writer *json, const char *key)
{
    open_nested(json, key, '{');
}

void json_array(json_writer *json, const char *key)
{
    open_nested(json, key, '[');
}

void json_end_object(json_writer *json)
{
    json->depth--;
    fputc('}', json->out);
}

void json_end_array(json_writer *json)
{
    json->depth--;
    fputc(']', json->out);
}

void json_uint(json_writer *json, const char *key, uint64_t value)
{
    before_value(json, key);
    fprintf(json->out, "%llu", (unsigned long long)value);
}

void json_double(json_writer *json, const char *key, double value)
{
    before_value(json, key);
    if (isfinite(value))
        fprintf(json->out, "%.9g", value);
    else
        fputs("null", json->out);
}

void json_bool(json_writer *json, const char *key, bool value)
{
    before_value(json, key);
    fputs(value ? "true" : "false", json->out);
}

void json_string(json_writer *json, const char *key, const char *value)
{
    before_value(json, key);
    quote(json->out, value);
}

void json_finish(json_writer *json)
{
    fputc('\n', json->out);
}
