/*
 * conf.c: reading settings (see conf.h). Types are functions named by the table: parse_size and
 * print_size; a new type is a new pair of them.
 */
#include <runtime/base/conf.h>

#include <internal/error.h>
#include <internal/range.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct word {
    const char *text;
    size_t length;
} word;

static bool is(word w, const char *text)
{
    return strlen(text) == w.length && memcmp(w.text, text, w.length) == 0;
}

static bool parse_size(word w, uint64_t *out)
{
    static const char units[] = "kmg";
    const char *unit = w.length == 0 ? NULL : strchr(units, w.text[w.length - 1]);
    size_t digits = w.length - (unit != NULL);
    uint64_t value = 0;
    if (digits == 0 || w.length == 0)
        return false;
    for (size_t i = 0; i < digits; i++) {
        unsigned digit = (unsigned)(w.text[i] - '0');
        if (digit > 9 || !pleat__mul(value, 10, &value) || !pleat__add(value, digit, &value))
            return false;
    }
    if (unit != NULL && !pleat__mul(value, UINT64_C(1) << 10 * (unit - units + 1), &value))
        return false;
    *out = value;
    return true;
}

/* Of anything but bytes. */
static bool parse_number(word w, uint64_t *out)
{
    return parse_size(w, out);
}

static bool parse_switch(word w, bool *out)
{
    *out = is(w, "on");
    return *out || is(w, "off");
}

static bool parse_text(word w, pleat__conf_text *out)
{
    if (w.length >= sizeof *out)
        return false;
    memcpy(*out, w.text, w.length);
    (*out)[w.length] = '\0';
    return true;
}

static bool is_power_of_two(uint64_t value)
{
    return value != 0 && (value & (value - 1)) == 0;
}

/* "4": a power of two, or 0 for none. */
static bool parse_parts(word w, uint16_t *out)
{
    uint64_t value;
    if (!parse_size(w, &value) || value > UINT16_MAX || (value != 0 && !is_power_of_two(value)))
        return false;
    *out = (uint16_t)value;
    return true;
}

/* "256:2" or ">:4" of a list: the first holds for what is below it as well, ">" for all behind the
 * last that was named; in between sizes are not cut. */
static bool parse_power(word w, int *last, pleat__divisions *out)
{
    const char *colon = memchr(w.text, ':', w.length);
    uint64_t mib;
    uint16_t parts;
    if (colon == NULL)
        return false;
    word power = {w.text, (size_t)(colon - w.text)};
    if (!parse_parts((word){colon + 1, w.length - power.length - 1}, &parts))
        return false;
    if (is(power, ">")) {
        for (int i = *last + 1; i < PLEAT__DIVIDED_POWERS; i++)
            out->of[i] = parts;
        *last = PLEAT__DIVIDED_POWERS - 1;
        return true;
    }
    if (!parse_size(power, &mib) || !is_power_of_two(mib))
        return false;
    int index = 63 - __builtin_clzll(mib);
    index = index < PLEAT__DIVIDED_POWERS ? index : PLEAT__DIVIDED_POWERS - 1;
    for (int i = 0; i < index && *last < 0; i++)
        out->of[i] = parts;
    out->of[index] = parts;
    *last = index;
    return true;
}

static bool parse_divisions(word w, pleat__divisions *out)
{
    uint16_t parts;
    *out = PLEAT__NO_DIVISIONS;
    if (parse_parts(w, &parts)) {
        for (int i = 0; i < PLEAT__DIVIDED_POWERS; i++)
            out->of[i] = parts;
        return true;
    }
    if (w.length < 2 || w.text[0] != '[' || w.text[w.length - 1] != ']')
        return false;
    int last = -1;
    for (word left = {w.text + 1, w.length - 2};;) {
        const char *comma = memchr(left.text, ',', left.length);
        size_t length = comma != NULL ? (size_t)(comma - left.text) : left.length;
        if (!parse_power((word){left.text, length}, &last, out))
            return false;
        if (comma == NULL)
            return true;
        left = (word){comma + 1, left.length - length - 1};
    }
}

static void print_size(uint64_t value, char *out, size_t size)
{
    static const char units[] = {0, 'k', 'm', 'g'};
    int unit = 0;
    while (unit < 3 && value != 0 && value % 1024 == 0) {
        value /= 1024;
        unit++;
    }
    snprintf(out, size, "%" PRIu64 "%.1s", value, unit == 0 ? "" : &units[unit]);
}

static void print_number(uint64_t value, char *out, size_t size)
{
    snprintf(out, size, "%" PRIu64, value);
}

static void print_switch(bool value, char *out, size_t size)
{
    snprintf(out, size, "%s", value ? "on" : "off");
}

static void print_divisions(pleat__divisions value, char *out, size_t size)
{
    bool one = true;
    for (int i = 1; i < PLEAT__DIVIDED_POWERS; i++)
        one &= value.of[i] == value.of[0];
    if (one) {
        snprintf(out, size, "%u", value.of[0]);
        return;
    }
    size_t at = 0;
    for (int i = 0; i < PLEAT__DIVIDED_POWERS && at < size; i++)
        at += (size_t)snprintf(out + at, size - at, "%s%d:%u", i == 0 ? "[" : ",", 1 << i,
                               value.of[i]);
    if (at < size)
        snprintf(out + at, size - at, "]");
}

static void print_text(const char *value, char *out, size_t size)
{
    snprintf(out, size, "%s", value);
}

static pleat_result unknown(word key)
{
#define CONF_NAME(key, type, field_type, value, text) " " #key
    return pleat__fail(PLEAT_E_INVALID, "PLEAT_CONF: there is no setting '%.*s'; there are:%s",
                       (int)key.length, key.text, PLEAT__CONF(CONF_NAME));
#undef CONF_NAME
}

static pleat_result set(pleat__conf *conf, word name, word value, uint64_t *seen)
{
    unsigned index = 0;
#define CONF_SET(key, type, field_type, otherwise, words)                                          \
    if (is(name, #key)) {                                                                          \
        if (*seen >> index & 1)                                                                    \
            return pleat__fail(PLEAT_E_INVALID, "PLEAT_CONF: '%s' is given twice", #key);          \
        *seen |= UINT64_C(1) << index;                                                             \
        if (!parse_##type(value, &conf->key))                                                      \
            return pleat__fail(PLEAT_E_INVALID, "PLEAT_CONF: '%s' takes a " #type ", not '%.*s'",  \
                               #key, (int)value.length, value.text);                               \
        return PLEAT_OK;                                                                           \
    }                                                                                              \
    index++;
    PLEAT__CONF(CONF_SET)
#undef CONF_SET
    return unknown(name);
}

/* Whether a setting of that name may be a list in brackets. A file's name may have brackets too. */
static bool takes_list(word name)
{
#define CONF_LIST(key, type, field_type, otherwise, words)                                         \
    if (is(name, #key))                                                                            \
        return is((word){#type, sizeof #type - 1}, "divisions");
    PLEAT__CONF(CONF_LIST)
#undef CONF_LIST
    return false;
}

/* How long the setting is at the beginning of a text: up to a comma that stands in no list. */
static size_t item_length(const char *text)
{
    size_t name = strcspn(text, ":,");
    const char *value = text + name + 1;
    if (text[name] != ':' || value[0] != '[' || !takes_list((word){text, name}))
        return strcspn(text, ",");
    value += strcspn(value, "]");
    return (size_t)(value - text) + strcspn(value, ",");
}

pleat_result pleat__conf_read(const char *text, pleat__conf *conf)
{
#define CONF_DEFAULT(key, type, field_type, value, text) .key = (value),
    *conf = (pleat__conf){PLEAT__CONF(CONF_DEFAULT)};
#undef CONF_DEFAULT
    uint64_t seen = 0;
    if (text == NULL)
        text = getenv("PLEAT_CONF");
    while (text != NULL && *text != '\0') {
        size_t length = item_length(text), name = strcspn(text, ":,");
        if (name >= length)
            return pleat__fail(PLEAT_E_INVALID, "PLEAT_CONF: '%.*s' is not key:value", (int)length,
                               text);
        PLEAT_TRY(set(conf, (word){text, name}, (word){text + name + 1, length - name - 1}, &seen));
        text += length + (text[length] == ',');
    }
    return PLEAT_OK;
}

pleat__conf_line pleat__conf_line_of(const pleat__conf *conf, size_t index)
{
    pleat__conf_line line = {0};
#define CONF_LINE(name, kind, field_type, otherwise, words)                                        \
    if (index-- == 0) {                                                                            \
        line = (pleat__conf_line){.key = #name, .text = words};                                    \
        print_##kind(conf->name, line.value, sizeof line.value);                                   \
        return line;                                                                               \
    }
    PLEAT__CONF(CONF_LINE)
#undef CONF_LINE
    return line;
}
