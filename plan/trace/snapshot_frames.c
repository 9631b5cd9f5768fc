/*
 * snapshot_frames.c: see snapshot_frames.h.
 *
 * BOUNDS  A pickle can list the same frames any number of times in two bytes each, so no more than
 *         FRAMES_LOOKED_AT of a list, KEYS_LOOKED_AT of a frame and FILE_LOOKED_AT bytes at the end
 *         of a file's name are looked at; an event costs only so much, and snapshot.c bounds the
 *         events.
 */
#include <plan/trace/snapshot_frames.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/utf8.h>

#include <stdio.h>
#include <string.h>

#define FRAMES_KEPT      12u
#define FRAMES_LOOKED_AT 96u
#define KEYS_LOOKED_AT   8u
#define SITE_BYTES       2048u
#define FILE_LOOKED_AT   1024u
#define SITES_MOST       65536u
#define PLACES_MOST      (4u * SITES_MOST)
#define PLACES_LEAST     256u
#define FILE_PARTS       3

typedef pleat__pickle_value value;
typedef pleat__pickle_node node;

typedef struct writing {
    char text[SITE_BYTES];
    size_t used;
    uint32_t frames;
} writing;

static void append(writing *w, const char *from, size_t length)
{
    w->used += pleat__utf8_line(from, length, w->text + w->used, sizeof w->text - w->used);
}

typedef struct frame {
    const value *name, *file, *line;
} frame;

static bool read_frame(const pleat__frames *f, const value *from, frame *out)
{
    *out = (frame){0};
    if (from->type != PLEAT__PICKLE_DICT)
        return false;
    for (uint32_t i = 0; i + 1 < from->node->count && i < 2 * KEYS_LOOKED_AT; i += 2) {
        const value *key = &from->node->items[i], *found = &from->node->items[i + 1];
        if (key->type != PLEAT__PICKLE_TEXT)
            continue;
        if (key->word == f->name && found->type == PLEAT__PICKLE_TEXT)
            out->name = found;
        if (key->word == f->file && found->type == PLEAT__PICKLE_TEXT)
            out->file = found;
        if (key->word == f->line && found->type == PLEAT__PICKLE_NUMBER)
            out->line = found;
    }
    return out->name != NULL && out->file != NULL;
}

/* "model.py", "<stdin>", "<ipython-input-3>" */
static bool is_python(const value *file)
{
    return (file->length > 3 && memcmp(file->text + file->length - 3, ".py", 3) == 0) ||
           (file->length > 2 && file->text[0] == '<');
}

/* Where the part of a file's name begins that is worth knowing: behind "site-packages/", else with
 * its last parts. */
static const char *short_name(const value *file)
{
    static const char packages[] = "-packages/";
    const size_t wanted = sizeof packages - 1;
    const char *end = file->text + file->length, *parts = NULL;
    const char *from = file->length > FILE_LOOKED_AT ? end - FILE_LOOKED_AT : file->text;
    int slashes = 0;
    for (const char *begin = end; begin > from; begin--) {
        if (begin[-1] != '/')
            continue;
        if ((size_t)(begin - from) >= wanted && memcmp(begin - wanted, packages, wanted) == 0)
            return begin;
        if (++slashes == FILE_PARTS)
            parts = begin == file->text + 1 ? file->text : begin; /* all of an absolute name */
    }
    return parts != NULL ? parts : from;
}

static void append_frame(writing *w, const frame *from)
{
    char line[32];
    const char *begin = short_name(from->file);
    if (w->frames++ > 0 && w->used < sizeof w->text)
        w->text[w->used++] = '\n';
    append(w, from->name->text, from->name->length);
    append(w, " (", 2);
    append(w, begin, (size_t)(from->file->text + from->file->length - begin));
    if (from->line != NULL) {
        snprintf(line, sizeof line, ":%llu", (unsigned long long)from->line->number);
        append(w, line, strlen(line));
    }
    append(w, ")", 1);
}

static void append_frames(const pleat__frames *f, const node *list, bool python, writing *w)
{
    for (uint32_t i = 0; i < list->count && i < FRAMES_LOOKED_AT && w->frames < FRAMES_KEPT; i++) {
        frame one;
        if (read_frame(f, &list->items[i], &one) && (!python || is_python(one.file)))
            append_frame(w, &one);
    }
}

static pleat_result add_site(pleat__snapshot *to, const writing *w, uint32_t *site)
{
    char *copy = pleat__arena_alloc(to->arena, w->used + 1);
    if (copy == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its stack frames",
                           to->path);
    memcpy(copy, w->text, w->used);
    const pleat__site made = {.text = copy, .length = (uint32_t)w->used};
    return pleat__sites_add(to, &made, site);
}

/* Where a list is known, or would be; NULL when there is no room for more. */
static pleat__frames_known *place_of(const pleat__frames *f, const node *list)
{
    size_t at = (size_t)(((uint64_t)(uintptr_t)list >> 4) * PLEAT__HASH_MULTIPLIER >> 32);
    for (;; at++) {
        pleat__frames_known *known = &f->known[at & (f->places - 1)];
        if (known->list == list)
            return known;
        if (known->list == NULL)
            return f->known_count < f->places / 2 ? known : NULL;
    }
}

/* Two for each list that a file of so many bytes can have, as far as they are kept. */
static pleat_result make_places(pleat__frames *f)
{
    const size_t list_bytes = 2;
    f->places = PLACES_LEAST;
    while (f->places < PLACES_MOST && f->places / 2 < f->bytes / list_bytes)
        f->places *= 2;
    f->known = pleat__arena_calloc(f->recording->arena, f->places, sizeof *f->known);
    return f->known != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its stack frames",
                             f->recording->path);
}

pleat_result pleat__frames_site(pleat__frames *f, const value *from, uint32_t *site)
{
    *site = 0;
    if (from == NULL || (from->type != PLEAT__PICKLE_LIST && from->type != PLEAT__PICKLE_TUPLE) ||
        from->node->count == 0)
        return PLEAT_OK;
    if (f->known == NULL)
        PLEAT_TRY(make_places(f));
    pleat__frames_known *known = place_of(f, from->node);
    if (known != NULL && known->list != NULL) {
        *site = known->site;
        return PLEAT_OK;
    }
    if (f->recording->site_count > SITES_MOST)
        return PLEAT_OK;
    writing w = {.used = 0};
    append_frames(f, from->node, true, &w);
    if (w.frames == 0)
        append_frames(f, from->node, false, &w);
    if (w.frames > 0)
        PLEAT_TRY(add_site(f->recording, &w, site));
    if (known != NULL) {
        *known = (pleat__frames_known){from->node, *site};
        f->known_count++;
    }
    return PLEAT_OK;
}
