/*
 * snapshot_annotations.c: see snapshot_annotations.h.
 *
 * BOUNDS  A pickle can list the same annotation any number of times in two bytes each, so the site
 *         that it makes of another is looked up by both, and no more than ANNOTATION_BYTES of it
 *         are looked at: an event costs so much, and snapshot.c bounds the events.
 */
#include <plan/trace/snapshot_annotations.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/utf8.h>

#include <string.h>

#define ANNOTATION_BYTES 256u
#define ANNOTATIONS_KEPT 4
#define SITES_MOST       65536u
#define PLACES_LEAST     256u

/* A line of a site: the annotation in double quotes, and the end of the line. */
typedef struct line {
    char text[ANNOTATION_BYTES + 3];
    uint32_t length;
} line;

static void write_line(const char *from, size_t length, line *out)
{
    out->text[0] = '"';
    out->length = 1 + (uint32_t)pleat__utf8_line(from, length, out->text + 1, ANNOTATION_BYTES);
    out->text[out->length++] = '"';
    out->text[out->length++] = '\n';
}

static pleat__site site_at(const pleat__snapshot *recording, uint32_t site)
{
    return site != 0 ? recording->sites[site] : (pleat__site){0};
}

static bool ends_with(const pleat__site *site, const line *said)
{
    return site->annotated >= said->length &&
           memcmp(site->text + site->annotated - said->length, said->text, said->length) == 0;
}

/* Whether an annotation can be added: there is room for it, and it is not there. */
static bool is_new(const pleat__site *site, const line *said)
{
    int count = 0;
    for (uint32_t at = 0; at < site->annotated; count++) {
        const char *begin = site->text + at;
        const char *end = memchr(begin, '\n', site->annotated - at);
        uint32_t length = (uint32_t)(end + 1 - begin);
        if (length == said->length && memcmp(begin, said->text, length) == 0)
            return false;
        at += length;
    }
    return count < ANNOTATIONS_KEPT;
}

/* The place of what a site becomes with a line more, or where it would be. */
static pleat__annotated *place_of(const pleat__annotations *a, uint32_t from, const line *said)
{
    uint64_t hash = pleat__mix(pleat__hash_secret(), from);
    for (size_t at = pleat__hash_text(hash, said->text, said->length);; at++) {
        pleat__annotated *place = &a->known[at & (a->places - 1)];
        if (place->site == 0 ||
            (place->from == from && ends_with(&a->recording->sites[place->site], said)))
            return place;
    }
}

/* Twice the places, each site where its last line says. */
static pleat_result make_places(pleat__annotations *a)
{
    pleat__annotations larger = {.recording = a->recording,
                                 .places = a->places != 0 ? 2 * a->places : PLACES_LEAST,
                                 .count = a->count};
    larger.known = pleat__arena_calloc(a->recording->arena, larger.places, sizeof *larger.known);
    if (larger.known == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its annotations",
                           a->recording->path);
    for (size_t i = 0; i < a->places; i++) {
        pleat__annotated one = a->known[i];
        if (one.site == 0)
            continue;
        const pleat__site site = site_at(a->recording, one.site);
        uint32_t before = site_at(a->recording, one.from).annotated;
        line last = {.length = site.annotated - before};
        memcpy(last.text, site.text + before, last.length);
        *place_of(&larger, one.from, &last) = one;
    }
    pleat__arena_free(a->recording->arena, a->known);
    *a = larger;
    return PLEAT_OK;
}

/* The line comes behind the annotations of `from`, before its frames. */
static pleat_result add_site(pleat__snapshot *to, uint32_t from, const line *said, uint32_t *site)
{
    const pleat__site old = site_at(to, from);
    uint32_t length = old.length + said->length;
    char *text = pleat__arena_alloc(to->arena, length);
    if (text == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for its annotations", to->path);
    if (old.annotated > 0)
        memcpy(text, old.text, old.annotated);
    memcpy(text + old.annotated, said->text, said->length);
    if (old.length > old.annotated)
        memcpy(text + old.annotated + said->length, old.text + old.annotated,
               old.length - old.annotated);
    const pleat__site made = {
        .text = text, .length = length, .annotated = old.annotated + said->length};
    return pleat__sites_add(to, &made, site);
}

pleat_result pleat__annotate(pleat__annotations *a, const char *text, size_t length, uint32_t *site)
{
    line said;
    write_line(text, length, &said);
    const pleat__site now = site_at(a->recording, *site);
    if (length == 0 || !is_new(&now, &said))
        return PLEAT_OK;
    if (2 * a->count >= a->places)
        PLEAT_TRY(make_places(a));
    pleat__annotated *place = place_of(a, *site, &said);
    if (place->site == 0) {
        if (a->count == SITES_MOST)
            return PLEAT_OK;
        *place = (pleat__annotated){.from = *site};
        PLEAT_TRY(add_site(a->recording, *site, &said, &place->site));
        a->count++;
    }
    *site = place->site;
    return PLEAT_OK;
}
