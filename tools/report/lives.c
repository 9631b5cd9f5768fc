/*
 * lives.c: see lives.h.
 *
 * CLASS   By where a request's life lies among the recording's marks, as pleat__class has it, told
 *         for every request and not only for those of the steady iteration.
 * FRAMES  A frame of the program is in many stacks; each stands in the page once, and a stack is a
 *         list of their numbers, innermost first.
 * TIMES   Seconds since the first event, at TIMES evenly spread positions.
 */
#include <tools/report/lives.h>

#include <tools/cli.h>
#include <tools/report/arrays.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/utf8.h>

#include <stdlib.h>
#include <string.h>

#define TIMES 4096u

/* ---- the lives ---- */

static uint8_t class_of(const pleat__requests *r, const pleat__request *item, uint32_t marks)
{
    bool more = marks < r->mark_count; /* a mark behind its allocation */
    if (item->free_at == PLEAT__NEVER && !more)
        return item->alloc_at < (r->mark_count > 0 ? r->marks[0] : 0) ? PLEAT__CLASS_PERSISTENT
                                                                      : PLEAT__CLASS_SCOPED;
    if (marks + 1 < r->mark_count && item->free_at >= r->marks[marks + 1])
        return PLEAT__CLASS_PERSISTENT;
    if (more && item->free_at >= r->marks[marks])
        return PLEAT__CLASS_CROSSING;
    return item->alloc_phase == item->free_phase ? PLEAT__CLASS_TRANSIENT : PLEAT__CLASS_SCOPED;
}

typedef struct columns {
    uint32_t *alloc, *free, *units, *sites;
    uint16_t *phases;
    uint8_t *classes;
} columns;

static bool make_columns(const footprint *f, columns *c)
{
    size_t n = f->requests.count + 1u;
    c->alloc = pleat__arena_calloc(f->arena, n, sizeof *c->alloc);
    c->free = pleat__arena_calloc(f->arena, n, sizeof *c->free);
    c->units = pleat__arena_calloc(f->arena, n, sizeof *c->units);
    c->sites = pleat__arena_calloc(f->arena, n, sizeof *c->sites);
    c->phases = pleat__arena_calloc(f->arena, n, sizeof *c->phases);
    c->classes = pleat__arena_calloc(f->arena, n, sizeof *c->classes);
    return c->alloc != NULL && c->free != NULL && c->units != NULL && c->sites != NULL &&
           c->phases != NULL && c->classes != NULL;
}

static void fill_columns(const footprint *f, const columns *c)
{
    const pleat__requests *r = &f->requests;
    uint32_t marks = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const pleat__request *item = &r->items[i];
        while (marks < r->mark_count && r->marks[marks] <= item->alloc_at)
            marks++;
        uint64_t units = pleat__ceil_div(item->size, PLEAT__ALIGNMENT);
        c->alloc[i] = item->alloc_at;
        c->free[i] = item->free_at;
        c->units[i] = units < UINT32_MAX ? (uint32_t)units : UINT32_MAX;
        c->phases[i] = item->alloc_phase;
        uint8_t class = class_of(r, item, marks);
        bool within = !f->has_phases && footprint_is_within(class);
        c->classes[i] = within ? LIVES_CLASS_WITHIN : class;
        c->sites[i] = f->sites[r->numbers[i]];
    }
}

static void free_columns(const footprint *f, const columns *c)
{
    pleat__arena_free(f->arena, c->alloc);
    pleat__arena_free(f->arena, c->free);
    pleat__arena_free(f->arena, c->units);
    pleat__arena_free(f->arena, c->sites);
    pleat__arena_free(f->arena, c->phases);
    pleat__arena_free(f->arena, c->classes);
}

static pleat_result put_columns(const footprint *f, FILE *out)
{
    columns c;
    size_t n = f->requests.count;
    if (!make_columns(f, &c))
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the page's requests");
    fill_columns(f, &c);
    fputs(",\"lives\":{\"count\":", out);
    fprintf(out, "%zu", n);
    put_array(out, "alloc", c.alloc, n * sizeof *c.alloc);
    put_array(out, "free", c.free, n * sizeof *c.free);
    put_array(out, "units", c.units, n * sizeof *c.units);
    put_array(out, "phase", c.phases, n * sizeof *c.phases);
    put_array(out, "class", c.classes, n * sizeof *c.classes);
    if (f->has_sites)
        put_array(out, "site", c.sites, n * sizeof *c.sites);
    fputc('}', out);
    free_columns(f, &c);
    return PLEAT_OK;
}

/* ---- stacks ---- */

/* Frames that were written, by a hash of their text: open addressing, at most half full. */
typedef struct frames {
    const char **texts;
    uint32_t *lengths, *numbers;
    size_t mask, count;
} frames;

/* Its number; a new one is appended to the list of texts. */
static uint32_t number_of(frames *f, json_writer *texts, const char *text, size_t length)
{
    size_t at = pleat__hash_text(pleat__hash_secret(), text, length) & f->mask;
    char shown[512];
    while (f->texts[at] != NULL &&
           (f->lengths[at] != length || memcmp(f->texts[at], text, length) != 0))
        at = (at + 1) & f->mask;
    if (f->texts[at] == NULL) {
        f->texts[at] = text;
        f->lengths[at] = (uint32_t)length;
        f->numbers[at] = (uint32_t)f->count++;
        snprintf(shown, sizeof shown, "%.*s",
                 (int)pleat__utf8_prefix(text, length, sizeof shown - 1), text);
        json_string(texts, NULL, shown);
    }
    return f->numbers[at];
}

static size_t count_lines(const pleat_trace *trace)
{
    size_t lines = 0;
    for (uint32_t s = 0; s < pleat_trace_site_count(trace); s++)
        for (const char *c = pleat_trace_site(trace, s); *c != '\0'; c++)
            lines += *c == '\n' || c[1] == '\0';
    return lines;
}

static void put_stack(frames *f, json_writer *texts, json_writer *stacks, const char *site)
{
    json_array(stacks, NULL);
    while (*site != '\0') {
        size_t length = strcspn(site, "\n");
        json_uint(stacks, NULL, number_of(f, texts, site, length));
        site += length + (site[length] == '\n');
    }
    json_end_array(stacks);
}

static pleat_result put_lists(const footprint *f, frames *known, FILE *out)
{
    cli_text list; /* of frames, while stacks are written */
    json_writer texts, stacks;
    PLEAT_TRY(cli_text_begin(&list, "the page's stacks"));
    json_begin(&texts, list.out);
    json_array(&texts, NULL);
    fputs(",\"stacks\":", out);
    json_begin(&stacks, out);
    json_array(&stacks, NULL);
    for (uint32_t s = 0; s < pleat_trace_site_count(f->trace); s++)
        put_stack(known, &texts, &stacks, pleat_trace_site(f->trace, s));
    json_end_array(&stacks);
    json_end_array(&texts);
    pleat_result result = cli_text_end(&list, PLEAT_OK);
    if (result == PLEAT_OK)
        fprintf(out, ",\"frames\":%s", list.bytes);
    free(list.bytes);
    return result;
}

static pleat_result put_stacks(const footprint *f, FILE *out)
{
    size_t slots = 64, lines = count_lines(f->trace);
    frames known = {0};
    if (!f->has_sites)
        return PLEAT_OK;
    while (slots < 2 * lines)
        slots *= 2;
    known.mask = slots - 1;
    known.texts = pleat__arena_calloc(f->arena, slots, sizeof *known.texts);
    known.lengths = pleat__arena_calloc(f->arena, slots, sizeof *known.lengths);
    known.numbers = pleat__arena_calloc(f->arena, slots, sizeof *known.numbers);
    pleat_result result =
        known.texts != NULL && known.lengths != NULL && known.numbers != NULL
            ? put_lists(f, &known, out)
            : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the page's stacks");
    pleat__arena_free(f->arena, known.texts);
    pleat__arena_free(f->arena, known.lengths);
    pleat__arena_free(f->arena, known.numbers);
    return result;
}

/* ---- times ---- */

/* Nothing where no time passes in the recording, or it goes backwards. */
static void put_times(const footprint *f, FILE *out)
{
    const pleat_trace_event *events = pleat_trace_events(f->trace);
    uint16_t busiest = pleat__busiest_stream(f->trace, f->device);
    uint64_t positions = f->requests.event_count, at = 0, begun = 0, last = 0;
    float times[TIMES] = {0};
    for (size_t i = 0; i < pleat_trace_event_count(f->trace) && at < positions; i++) {
        const pleat_trace_event *event = &events[i];
        if (event->device != f->device ||
            (event->kind != PLEAT_EVENT_ALLOC && !pleat__ends_life(event, busiest)))
            continue;
        begun = at == 0 ? event->time_us : begun;
        last = event->time_us > last ? event->time_us : last;
        times[at * TIMES / positions] = (float)((double)(last - begun) * 1e-6);
        at++;
    }
    for (size_t i = 1; i < TIMES; i++)
        times[i] = times[i] < times[i - 1] ? times[i - 1] : times[i];
    if (times[TIMES - 1] > 0)
        put_array(out, "times", times, sizeof times);
}

pleat_result lives_put(const footprint *f, FILE *out)
{
    PLEAT_TRY(put_columns(f, out));
    PLEAT_TRY(put_stacks(f, out));
    put_times(f, out);
    return PLEAT_OK;
}
