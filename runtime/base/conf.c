/*
 * conf.c: reading settings (see conf.h). Types are functions named by the table: parse_size,
 * print_size and take_size, which says what is wanted; a new type is three more of them.
 */
#include <runtime/base/conf.h>

#include <ctype.h>
#include <internal/error.h>
#include <internal/range.h>
#include <inttypes.h>
#include <runtime/base/nearest.h>
#include <runtime/base/size.h>
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

/* ---- values: for each type of the table what is parsed, said and printed ---- */

static bool is_within(uint64_t value, const pleat__conf_bounds *bounds)
{
    return (value == 0 && bounds->or_zero) || (value >= bounds->least && value <= bounds->most);
}

static bool parse_size(word w, const pleat__conf_bounds *bounds, uint64_t *out)
{
    return pleat__size_parse(w.text, w.length, out) && is_within(*out, bounds);
}

/* Of anything but bytes. */
static bool parse_number(word w, const pleat__conf_bounds *bounds, uint64_t *out)
{
    bool of_bytes = w.length != 0 && strchr("iIbB", w.text[w.length - 1]) != NULL;
    return !of_bytes && parse_size(w, bounds, out);
}

static bool parse_switch(word w, const pleat__conf_bounds *bounds, bool *out)
{
    (void)bounds;
    *out = is(w, "on");
    return *out || is(w, "off");
}

/* Whether it is one of `words`, between which " or " stands. */
static bool is_among(word w, const char *words)
{
    for (const char *end; (end = strstr(words, " or ")) != NULL; words = end + 4)
        if ((size_t)(end - words) == w.length && memcmp(words, w.text, w.length) == 0)
            return true;
    return is(w, words);
}

static bool parse_text(word w, const pleat__conf_bounds *bounds, pleat__conf_text *out)
{
    if (w.length >= sizeof *out || (bounds->words != NULL && !is_among(w, bounds->words)))
        return false;
    memcpy(*out, w.text, w.length);
    (*out)[w.length] = '\0';
    return true;
}

/* "4": a power of two, or 0 for none. */
static bool parse_parts(word w, uint16_t *out)
{
    uint64_t value;
    if (!parse_number(w, &PLEAT__CONF_ANY, &value) || value > UINT16_MAX ||
        (value != 0 && !pleat__is_power_of_two(value)))
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
    if (!parse_number(power, &PLEAT__CONF_ANY, &mib) || !pleat__is_power_of_two(mib))
        return false;
    int index = 63 - __builtin_clzll(mib);
    index = index < PLEAT__DIVIDED_POWERS ? index : PLEAT__DIVIDED_POWERS - 1;
    for (int i = 0; i < index && *last < 0; i++)
        out->of[i] = parts;
    out->of[index] = parts;
    *last = index;
    return true;
}

static bool parse_divisions(word w, const pleat__conf_bounds *bounds, pleat__divisions *out)
{
    uint16_t parts;
    (void)bounds;
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
        at += (size_t)snprintf(out + at, size - at, "%s%d:%u%s", i == 0 ? "[" : ",", 1 << i,
                               value.of[i], i == PLEAT__DIVIDED_POWERS - 1 ? "]" : "");
}

static void print_text(const char *value, char *out, size_t size)
{
    snprintf(out, size, "%s", value);
}

/* Whether its type says all that it takes. */
static bool is_free(const pleat__conf_bounds *bounds)
{
    return bounds->least == 0 && bounds->most == UINT64_MAX && bounds->words == NULL;
}

/* The values between bounds; where there are none, `any`. */
static void take_range(const pleat__conf_bounds *bounds,
                       void (*print)(uint64_t value, char *out, size_t size), const char *any,
                       char *out, size_t size)
{
    char least[24], most[24];
    const char *zero = bounds->or_zero ? "0 or " : "";
    print(bounds->least, least, sizeof least);
    print(bounds->most, most, sizeof most);
    if (is_free(bounds))
        snprintf(out, size, "%s", any);
    else if (bounds->most == UINT64_MAX)
        snprintf(out, size, "%s%s or more", zero, least);
    else
        snprintf(out, size, "%s%s to %s", zero, least, most);
}

static void take_size(const pleat__conf_bounds *bounds, char *out, size_t size)
{
    take_range(bounds, print_size, "a size", out, size);
}

static void take_number(const pleat__conf_bounds *bounds, char *out, size_t size)
{
    take_range(bounds, print_number, "a number", out, size);
}

static void take_switch(const pleat__conf_bounds *bounds, char *out, size_t size)
{
    (void)bounds;
    snprintf(out, size, "on or off");
}

static void take_text(const pleat__conf_bounds *bounds, char *out, size_t size)
{
    snprintf(out, size, "%s", bounds->words != NULL ? bounds->words : "a text");
}

static void take_divisions(const pleat__conf_bounds *bounds, char *out, size_t size)
{
    (void)bounds;
    snprintf(out, size, "0, a power of two, or a list of them");
}

/* ---- the table ---- */

static pleat_result unknown(word key)
{
    char name[48], near[PLEAT__NEAREST_TEXT];
    snprintf(name, sizeof name, "%.*s", (int)key.length, key.text);
    pleat__nearest found = pleat__nearest_to(name);
#define CONF_TRY(setting, type, field_type, value, bounds, text)                                   \
    pleat__nearest_try(&found, #setting);
    PLEAT__CONF(CONF_TRY)
#undef CONF_TRY
#define CONF_NAME(setting, type, field_type, value, bounds, text) " " #setting
    return pleat__fail(PLEAT_E_INVALID, "there is no setting '%.*s'; there are:%s%s",
                       (int)key.length, key.text, PLEAT__CONF(CONF_NAME),
                       pleat__nearest_text(&found, near));
#undef CONF_NAME
}

static pleat_result set(pleat__conf *conf, word name, word value, uint64_t *seen)
{
    unsigned index = 0;
    char takes[64];
#define SUCH_AS_size      " such as 64k, 4m or 2g"
#define SUCH_AS_number    " such as 1000 or 16k"
#define SUCH_AS_switch    ""
#define SUCH_AS_text      " of at most 255 bytes"
#define SUCH_AS_divisions " such as [256:1,512:2,>:4]"
#define CONF_SET(key, type, field_type, otherwise, bounds, words)                                  \
    if (is(name, #key)) {                                                                          \
        if (*seen >> index & 1)                                                                    \
            return pleat__fail(PLEAT_E_INVALID, "'%s' is given twice", #key);                      \
        *seen |= UINT64_C(1) << index;                                                             \
        if (parse_##type(value, &bounds, &conf->key))                                              \
            return PLEAT_OK;                                                                       \
        take_##type(&bounds, takes, sizeof takes);                                                 \
        return pleat__fail(PLEAT_E_INVALID, "'%s' takes %s%s, not '%.*s'", #key, takes,            \
                           is_free(&bounds) ? SUCH_AS_##type : "", (int)value.length, value.text); \
    }                                                                                              \
    index++;
    PLEAT__CONF(CONF_SET)
#undef CONF_SET
#undef SUCH_AS_size
#undef SUCH_AS_number
#undef SUCH_AS_switch
#undef SUCH_AS_text
#undef SUCH_AS_divisions
    return unknown(name);
}

/* Whether a setting of that name may be a list in brackets. A file's name may have brackets too. */
static bool takes_list(word name)
{
#define CONF_LIST(key, type, field_type, otherwise, bounds, words)                                 \
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

/* An item without its colon. Behind a setting it may be the rest of a number in which a comma was
 * meant as the decimal point. */
static pleat_result no_pair(const char *text, size_t length, const char *before)
{
    return before != NULL && isdigit((unsigned char)*text)
               ? pleat__fail(PLEAT_E_INVALID,
                             "'%.*s' behind '%.*s' is not key:value: a comma ends a "
                             "setting, and the decimal point is '.'",
                             (int)length, text, (int)item_length(before), before)
               : pleat__fail(PLEAT_E_INVALID, "'%.*s' is not key:value", (int)length, text);
}

/* Where settings come from, in front of what is wrong with them. */
static pleat_result wrong(pleat_result result, const char *given)
{
    return result == PLEAT_OK ? PLEAT_OK
                              : pleat__context(result, "%s", given != NULL ? "conf" : "PLEAT_CONF");
}

static pleat_result read_text(const char *text, pleat__conf *conf)
{
#define CONF_DEFAULT(key, type, field_type, value, bounds, text) .key = (value),
    *conf = (pleat__conf){PLEAT__CONF(CONF_DEFAULT)};
#undef CONF_DEFAULT
    const char *before = NULL; /* the setting before */
    uint64_t seen = 0;
    while (text != NULL && *(text += strspn(text, " ")) != '\0') {
        size_t length = item_length(text), name = strcspn(text, ":,");
        if (name >= length)
            return no_pair(text, length, before);
        before = text;
        PLEAT_TRY(set(conf, (word){text, name}, (word){text + name + 1, length - name - 1}, &seen));
        text += length + (text[length] == ',');
    }
    return PLEAT_OK;
}

pleat_result pleat__conf_read(const char *text, pleat__conf *conf)
{
    return wrong(read_text(text != NULL ? text : getenv("PLEAT_CONF"), conf), text);
}

bool pleat__conf_shares(const pleat__conf *conf)
{
    return conf->tenants[0] != '\0' && strcmp(conf->tenants, "off") != 0;
}

pleat_result pleat__conf_check(const char *text, const pleat__conf *conf)
{
    if (!pleat__conf_shares(conf) &&
        (conf->guarantee != 0 || conf->priority != 0 || conf->tenant[0] != '\0'))
        return wrong(pleat__fail(PLEAT_E_INVALID,
                                 "'guarantee', 'priority' and 'tenant' are a tenant's: add "
                                 "tenants:user, or a group's name"),
                     text);
    return PLEAT_OK;
}

pleat__conf_line pleat__conf_line_of(const pleat__conf *conf, size_t index)
{
    pleat__conf_line line = {0};
#define CONF_LINE(name, kind, field_type, otherwise, bounds, words)                                \
    if (index-- == 0) {                                                                            \
        line = (pleat__conf_line){.key = #name, .text = words};                                    \
        print_##kind(conf->name, line.value, sizeof line.value);                                   \
        take_##kind(&bounds, line.takes, sizeof line.takes);                                       \
        return line;                                                                               \
    }
    PLEAT__CONF(CONF_LINE)
#undef CONF_LINE
    return line;
}
