/*
 * format.c: a plan as a file.
 *
 * FORMAT  A stream of msgpack records (pack.h): a header, tables, a checksum. A table is as many
 * arrays as it takes, each of whole rows; a row is the numbers listed. "or 0" means that a number
 * is kept as one more than it is, so that 0 can say that there is none.
 *
 *   header    ["pleat plan", 1, fingerprint, device, requests, steady request, chunk bytes,
 *             device bytes, max live bytes, first max live bytes, virtual bytes, physical bytes,
 *             first events, steady events,
 *             counts: labels, streams, handles, maps, lanes,
 *             first slots, first phases, steady slots, steady phases]
 *   options   [text]: the options that made it
 *   labels    [text, ...]
 *   streams   value
 *   handles   chunks: of each handle; they are numbered one handle behind the other
 *   maps      page, handle, alias
 *   lanes     place, bytes, begin at, end at
 *   first slots, first phases, steady slots, steady phases:
 *   slots     size, place or 0, alloc at, free at or 0, alloc phase, free phase, stream, class,
 *             small, lane or 0, window
 *   phases    label, begin at
 *
 * A plan with a recipe is of version 7 and has the recipe's tables behind these (recipe.c); one
 * with reusable space is of version 3, with that (reuse.c); one with chunks that pass from stream
 * to stream is of version 4, with those (handover_table.c); others are of version 1. 16 more is the
 * version of a plan that only answers questions, 32 more that of one whose steady sequence is two
 * iterations. Recipes of versions 2, 5 and 6 are not read any more.
 *
 * The fields are those of plan.h. Numbers are msgpack integers of the shortest form, so the same
 * plan gives the same bytes.
 *
 * READING  pack.h says how decoding is bounded. A number that does not fit its field is refused
 * here; whether the plan holds is verify.c's to say, and a plan that does not is not returned.
 */
#include <plan/base/plan.h>

#include <internal/error.h>
#include <plan/base/file.h>
#include <plan/base/pack.h>
#include <plan/fold/handover_table.h>
#include <plan/sizes/recipe.h>
#include <plan/stweaver/reuse.h>

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

#define NAME            "pleat plan"
#define VERSION         1
#define VERSION_REUSE   3
#define VERSION_HANDED  4
#define VERSION_ELASTIC 7
/* Are added to the version. */
#define ANSWERS_ONLY 16
#define UNROLLED     32

enum {
    HEADER_FINGERPRINT,
    HEADER_DEVICE,
    HEADER_REQUESTS,
    HEADER_STEADY_REQUEST,
    HEADER_CHUNK_BYTES,
    HEADER_DEVICE_BYTES,
    HEADER_MAX_LIVE_BYTES,
    HEADER_FIRST_MAX_LIVE_BYTES,
    HEADER_VIRTUAL_BYTES,
    HEADER_PHYSICAL_BYTES,
    HEADER_FIRST_EVENTS,
    HEADER_STEADY_EVENTS,
    HEADER_LABELS, /* counts from here on */
    HEADER_STREAMS,
    HEADER_HANDLES,
    HEADER_MAPS,
    HEADER_LANES,
    HEADER_FIRST_SLOTS,
    HEADER_FIRST_PHASES,
    HEADER_STEADY_SLOTS,
    HEADER_STEADY_PHASES,
    HEADER_NUMBERS,
};

#define SLOT_NUMBERS  11
#define PHASE_NUMBERS 2
#define MAP_NUMBERS   3
#define LANE_NUMBERS  4

/* --- writing -----------------------------------------------------------------------------------*/

/* PLEAT__NOWHERE, PLEAT__NEVER and PLEAT__NO_LANE are all ones in their widths: one more is 0. */
static uint64_t or_zero(uint64_t value, uint64_t none)
{
    return value == none ? 0 : value + 1;
}

static const char *give_options(const void *context, uint64_t index)
{
    const pleat_plan *plan = context;
    (void)index;
    return plan->options ? plan->options : "";
}

static const char *give_label(const void *context, uint64_t index)
{
    const pleat_plan *plan = context;
    return plan->labels[index];
}

static void give_stream(const void *context, uint64_t index, uint64_t *row)
{
    const pleat_plan *plan = context;
    row[0] = plan->streams[index];
}

static void give_handle(const void *context, uint64_t index, uint64_t *row)
{
    const pleat_plan *plan = context;
    row[0] = plan->handles[index].chunks;
}

static void give_map(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__plan_map *map = &((const pleat_plan *)context)->maps[index];
    row[0] = map->page;
    row[1] = map->handle;
    row[2] = map->alias;
}

static void give_lane(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__lane *lane = &((const pleat_plan *)context)->lanes[index];
    row[0] = lane->place;
    row[1] = lane->bytes;
    row[2] = lane->begin_at;
    row[3] = lane->end_at;
}

static void give_slot(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__slot *slot = &((const pleat__sequence *)context)->slots[index];
    row[0] = slot->size;
    row[1] = or_zero(slot->place, PLEAT__NOWHERE);
    row[2] = slot->alloc_at;
    row[3] = or_zero(slot->free_at, PLEAT__NEVER);
    row[4] = slot->alloc_phase;
    row[5] = slot->free_phase;
    row[6] = slot->stream;
    row[7] = slot->class;
    row[8] = slot->small;
    row[9] = or_zero(slot->lane, PLEAT__NO_LANE);
    row[10] = slot->window;
}

static void give_phase(const void *context, uint64_t index, uint64_t *row)
{
    const pleat__phase *phase = &((const pleat__sequence *)context)->phases[index];
    row[0] = phase->label;
    row[1] = phase->begin_at;
}

static void put_sequence(pleat__pack_writer *writer, const pleat__sequence *sequence)
{
    pleat__pack_put_rows(writer, sequence->slot_count, SLOT_NUMBERS, give_slot, sequence);
    pleat__pack_put_rows(writer, sequence->phase_count, PHASE_NUMBERS, give_phase, sequence);
}

static void put_plan(pleat__pack_writer *writer, const pleat_plan *plan)
{
    const uint64_t header[HEADER_NUMBERS] = {
        [HEADER_FINGERPRINT] = plan->fingerprint,
        [HEADER_DEVICE] = plan->device,
        [HEADER_REQUESTS] = plan->requests,
        [HEADER_STEADY_REQUEST] = plan->steady_request,
        [HEADER_CHUNK_BYTES] = plan->chunk_bytes,
        [HEADER_DEVICE_BYTES] = plan->device_bytes,
        [HEADER_MAX_LIVE_BYTES] = plan->max_live_bytes,
        [HEADER_FIRST_MAX_LIVE_BYTES] = plan->first_max_live_bytes,
        [HEADER_VIRTUAL_BYTES] = plan->virtual_bytes,
        [HEADER_PHYSICAL_BYTES] = plan->physical_bytes,
        [HEADER_FIRST_EVENTS] = plan->first.events,
        [HEADER_STEADY_EVENTS] = plan->steady.events,
        [HEADER_LABELS] = plan->label_count,
        [HEADER_STREAMS] = plan->stream_count,
        [HEADER_HANDLES] = plan->handle_count,
        [HEADER_MAPS] = plan->map_count,
        [HEADER_LANES] = plan->lane_count,
        [HEADER_FIRST_SLOTS] = plan->first.slot_count,
        [HEADER_FIRST_PHASES] = plan->first.phase_count,
        [HEADER_STEADY_SLOTS] = plan->steady.slot_count,
        [HEADER_STEADY_PHASES] = plan->steady.phase_count,
    };
    bool reuse = plan->recipe == NULL && plan->reusable_count > 0;
    bool handed = plan->recipe == NULL && !reuse && plan->handed_count > 0;
    uint32_t version = plan->recipe != NULL ? VERSION_ELASTIC
                       : reuse              ? VERSION_REUSE
                       : handed             ? VERSION_HANDED
                                            : VERSION;
    version += (plan->answers_only ? ANSWERS_ONLY : 0) + (plan->unroll - 1) * UNROLLED;
    pleat__pack_put_header(writer, NAME, version, header, HEADER_NUMBERS);
    pleat__pack_put_texts(writer, 1, give_options, plan);
    pleat__pack_put_texts(writer, plan->label_count, give_label, plan);
    pleat__pack_put_rows(writer, plan->stream_count, 1, give_stream, plan);
    pleat__pack_put_rows(writer, plan->handle_count, 1, give_handle, plan);
    pleat__pack_put_rows(writer, plan->map_count, MAP_NUMBERS, give_map, plan);
    pleat__pack_put_rows(writer, plan->lane_count, LANE_NUMBERS, give_lane, plan);
    put_sequence(writer, &plan->first);
    put_sequence(writer, &plan->steady);
    if (plan->recipe != NULL)
        pleat__recipe_put(writer, plan);
    if (reuse)
        pleat__reuse_put(writer, plan);
    if (handed)
        pleat__handed_put(writer, plan);
}

pleat_result pleat_plan_write(const pleat_plan *plan, const char *path)
{
    pleat__arena *arena;
    pleat__pack_writer writer;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat__pack_open(&writer, arena);
    put_plan(&writer, plan);
    pleat_result result = pleat__pack_save(&writer, path);
    pleat__arena_destroy(arena);
    return result;
}

/* --- reading -----------------------------------------------------------------------------------*/

typedef struct reader {
    pleat__pack_reader pack;
    pleat_plan *plan;
    pleat__sequence *sequence; /* the one being read */
    uint32_t version;
} reader;

/* A row's numbers; `fits` stays true as long as each that is taken fits its field. */
typedef struct cursor {
    const uint64_t *row;
    bool fits;
} cursor;

static uint64_t take(cursor *c, int column, uint64_t most)
{
    c->fits = c->fits && c->row[column] <= most;
    return c->row[column];
}

/* The reverse of or_zero. */
static uint64_t take_or_none(cursor *c, int column, uint64_t none)
{
    uint64_t value = take(c, column, none);
    return value == 0 ? none : value - 1;
}

static pleat_result fitted(const cursor *c)
{
    if (c->fits)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_INPUT, "a number of the row is out of range");
}

static pleat_result copy_text(reader *r, const char *text, size_t length, char **out)
{
    char *copy = pleat__arena_alloc(r->plan->arena, length + 1);
    if (copy == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a text");
    memcpy(copy, text, length);
    copy[length] = '\0';
    *out = copy;
    return PLEAT_OK;
}

static pleat_result take_options(void *context, uint64_t index, const char *text, size_t length)
{
    reader *r = context;
    (void)index;
    return copy_text(r, text, length, &r->plan->options);
}

static pleat_result take_label(void *context, uint64_t index, const char *text, size_t length)
{
    reader *r = context;
    PLEAT_TRY(copy_text(r, text, length, &r->plan->labels[index]));
    r->plan->label_count++;
    return PLEAT_OK;
}

static pleat_result take_stream(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    r->plan->streams[index] = row[0];
    return PLEAT_OK;
}

static pleat_result take_handle(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    cursor c = {row, true};
    pleat__plan_handle *handle = &r->plan->handles[index];
    handle->chunks = (uint32_t)take(&c, 0, UINT32_MAX);
    uint64_t first = index > 0 ? (uint64_t)handle[-1].first_chunk + handle[-1].chunks : 0;
    handle->first_chunk = (uint32_t)first;
    c.fits = c.fits && first <= UINT32_MAX;
    return fitted(&c);
}

static pleat_result take_map(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    cursor c = {row, true};
    r->plan->maps[index] = (pleat__plan_map){
        .page = take(&c, 0, UINT64_MAX),
        .handle = (uint32_t)take(&c, 1, UINT32_MAX),
        .alias = (uint32_t)take(&c, 2, 1),
    };
    return fitted(&c);
}

static pleat_result take_lane(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    cursor c = {row, true};
    r->plan->lanes[index] = (pleat__lane){
        .place = take(&c, 0, UINT64_MAX),
        .bytes = take(&c, 1, UINT64_MAX),
        .begin_at = (uint32_t)take(&c, 2, UINT32_MAX),
        .end_at = (uint32_t)take(&c, 3, UINT32_MAX),
    };
    return fitted(&c);
}

static pleat_result take_slot(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    cursor c = {row, true};
    r->sequence->slots[index] = (pleat__slot){
        .size = take(&c, 0, UINT64_MAX),
        .place = take_or_none(&c, 1, PLEAT__NOWHERE),
        .alloc_at = (uint32_t)take(&c, 2, UINT32_MAX),
        .free_at = (uint32_t)take_or_none(&c, 3, PLEAT__NEVER),
        .alloc_phase = (uint16_t)take(&c, 4, UINT16_MAX),
        .free_phase = (uint16_t)take(&c, 5, UINT16_MAX),
        .stream = (uint16_t)take(&c, 6, UINT16_MAX),
        .class = (uint8_t)take(&c, 7, UINT8_MAX),
        .small = (uint8_t)take(&c, 8, 1),
        .lane = (uint32_t)take_or_none(&c, 9, PLEAT__NO_LANE),
        .window = (uint32_t)take(&c, 10, UINT32_MAX),
    };
    return fitted(&c);
}

static pleat_result take_phase(void *context, uint64_t index, const uint64_t *row)
{
    reader *r = context;
    cursor c = {row, true};
    r->sequence->phases[index] = (pleat__phase){
        .label = (uint32_t)take(&c, 0, UINT32_MAX),
        .begin_at = (uint32_t)take(&c, 1, UINT32_MAX),
    };
    return fitted(&c);
}

/* Memory for a table of `count` rows that follows: a number takes a byte or more of the file. */
static pleat_result make_table(reader *r, uint64_t count, uint32_t width, size_t size, void *out)
{
    uint64_t left = r->pack.size - r->pack.at;
    if (count > UINT32_MAX - 1 || count > left / width)
        return pleat__fail(
            PLEAT_E_INPUT,
            "'%s': byte %zu: the file is cut off: %llu rows of %u should follow, and it has %llu "
            "bytes more",
            r->pack.path, r->pack.at, (unsigned long long)count, width, (unsigned long long)left);
    void *table = pleat__arena_calloc(r->plan->arena, count, size);
    if (table == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "'%s': no host memory for %llu rows", r->pack.path,
                           (unsigned long long)count);
    memcpy(out, &table, sizeof table);
    return PLEAT_OK;
}

/* Makes a table and takes its rows. */
static pleat_result read_table(reader *r, uint64_t count, uint32_t width, size_t size,
                               pleat__row_taker taker, void *items)
{
    PLEAT_TRY(make_table(r, count, width, size, items));
    return pleat__pack_rows(&r->pack, count, width, taker, r);
}

static pleat_result read_texts(reader *r, uint64_t labels)
{
    PLEAT_TRY(pleat__pack_texts(&r->pack, 1, take_options, r));
    PLEAT_TRY(make_table(r, labels, 1, sizeof *r->plan->labels, &r->plan->labels));
    return pleat__pack_texts(&r->pack, labels, take_label, r);
}

static pleat_result read_sequence(reader *r, pleat__sequence *sequence, uint64_t slots,
                                  uint64_t phases)
{
    r->sequence = sequence;
    PLEAT_TRY(
        read_table(r, slots, SLOT_NUMBERS, sizeof *sequence->slots, take_slot, &sequence->slots));
    sequence->slot_count = (uint32_t)slots;
    PLEAT_TRY(read_table(r, phases, PHASE_NUMBERS, sizeof *sequence->phases, take_phase,
                         &sequence->phases));
    sequence->phase_count = (uint32_t)phases;
    return PLEAT_OK;
}

/* Of what is read, whether it only answers questions, and how many iterations it is of. */
static pleat_result take_version(reader *r)
{
    uint32_t found = r->version;
    r->plan->unroll = r->version > UNROLLED ? 2 : 1;
    r->version -= r->plan->unroll == 2 ? UNROLLED : 0;
    r->plan->answers_only = r->version > ANSWERS_ONLY;
    r->version -= r->plan->answers_only ? ANSWERS_ONLY : 0;
    bool known = r->version == VERSION || r->version == VERSION_REUSE ||
                 r->version == VERSION_HANDED || r->version == VERSION_ELASTIC;
    return known ? PLEAT_OK
                 : pleat__fail(PLEAT_E_ABI,
                               "'%s': a plan of version %u, which this Pleat does not read: make "
                               "the plan again with this Pleat",
                               r->pack.path, found);
}

/* Before memory is taken for them: gzipped, a file of 2 GiB of empty labels is one of 2 MiB. */
static pleat_result check_counts(const reader *r, const uint64_t *header)
{
    static const struct {
        uint32_t count, most;
        const char *of;
    } bounds[] = {
        {HEADER_LABELS, PLEAT__NAMES_MOST, "labels"},
        {HEADER_STREAMS, PLEAT__NAMES_MOST, "streams"},
        {HEADER_HANDLES, PLEAT__PAGES_MOST, "handles"},
        {HEADER_MAPS, PLEAT__PAGES_MOST, "maps"},
        {HEADER_LANES, PLEAT__PAGES_MOST, "lanes"},
        {HEADER_FIRST_SLOTS, PLEAT__SLOTS_MOST, "requests"},
        {HEADER_STEADY_SLOTS, PLEAT__SLOTS_MOST, "requests"},
        {HEADER_FIRST_PHASES, PLEAT__NAMES_MOST, "phases"},
        {HEADER_STEADY_PHASES, PLEAT__NAMES_MOST, "phases"},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        if (header[bounds[i].count] > bounds[i].most)
            return pleat__pack_fail(&r->pack, "%llu %s: at most %u are possible",
                                    (unsigned long long)header[bounds[i].count], bounds[i].of,
                                    bounds[i].most);
    uint64_t slots = header[HEADER_FIRST_SLOTS] + header[HEADER_STEADY_SLOTS];
    return slots <= PLEAT__SLOTS_MOST
               ? PLEAT_OK
               : pleat__pack_fail(&r->pack, "%llu requests: at most %u are possible",
                                  (unsigned long long)slots, PLEAT__SLOTS_MOST);
}

static pleat_result read_header(reader *r, uint64_t *header)
{
    pleat_plan *plan = r->plan;
    r->version = VERSION_ELASTIC + ANSWERS_ONLY + UNROLLED;
    PLEAT_TRY(pleat__pack_versions(&r->pack, NAME, VERSION, &r->version, header, HEADER_NUMBERS));
    PLEAT_TRY(take_version(r));
    cursor c = {header, true};
    plan->fingerprint = header[HEADER_FINGERPRINT];
    plan->device = (uint32_t)take(&c, HEADER_DEVICE, UINT8_MAX);
    plan->requests = (uint32_t)take(&c, HEADER_REQUESTS, UINT32_MAX);
    plan->steady_request = (uint32_t)take(&c, HEADER_STEADY_REQUEST, UINT32_MAX);
    plan->chunk_bytes = header[HEADER_CHUNK_BYTES];
    plan->device_bytes = header[HEADER_DEVICE_BYTES];
    plan->max_live_bytes = header[HEADER_MAX_LIVE_BYTES];
    plan->first_max_live_bytes = header[HEADER_FIRST_MAX_LIVE_BYTES];
    plan->virtual_bytes = header[HEADER_VIRTUAL_BYTES];
    plan->physical_bytes = header[HEADER_PHYSICAL_BYTES];
    plan->first.events = (uint32_t)take(&c, HEADER_FIRST_EVENTS, UINT32_MAX - 1);
    plan->steady.events = (uint32_t)take(&c, HEADER_STEADY_EVENTS, UINT32_MAX - 1);
    return c.fits ? check_counts(r, header)
                  : pleat__pack_fail(&r->pack, "a number is out of range");
}

static pleat_result read_all(reader *r)
{
    uint64_t header[HEADER_NUMBERS];
    pleat_plan *plan = r->plan;
    PLEAT_TRY(read_header(r, header));
    PLEAT_TRY(read_texts(r, header[HEADER_LABELS]));
    PLEAT_TRY(read_table(r, header[HEADER_STREAMS], 1, sizeof *plan->streams, take_stream,
                         &plan->streams));
    plan->stream_count = (uint32_t)header[HEADER_STREAMS];
    PLEAT_TRY(read_table(r, header[HEADER_HANDLES], 1, sizeof *plan->handles, take_handle,
                         &plan->handles));
    plan->handle_count = (uint32_t)header[HEADER_HANDLES];
    PLEAT_TRY(
        read_table(r, header[HEADER_MAPS], MAP_NUMBERS, sizeof *plan->maps, take_map, &plan->maps));
    plan->map_count = (uint32_t)header[HEADER_MAPS];
    PLEAT_TRY(read_table(r, header[HEADER_LANES], LANE_NUMBERS, sizeof *plan->lanes, take_lane,
                         &plan->lanes));
    plan->lane_count = (uint32_t)header[HEADER_LANES];
    PLEAT_TRY(
        read_sequence(r, &plan->first, header[HEADER_FIRST_SLOTS], header[HEADER_FIRST_PHASES]));
    PLEAT_TRY(
        read_sequence(r, &plan->steady, header[HEADER_STEADY_SLOTS], header[HEADER_STEADY_PHASES]));
    if (r->version == VERSION_ELASTIC)
        PLEAT_TRY(pleat__recipe_take(&r->pack, plan));
    if (r->version == VERSION_REUSE)
        PLEAT_TRY(pleat__reuse_take(&r->pack, plan));
    if (r->version == VERSION_HANDED)
        PLEAT_TRY(pleat__handed_take(&r->pack, plan));
    return pleat__pack_finish(&r->pack);
}

pleat_result pleat__plan_decode(const char *path, const uint8_t *bytes, size_t size,
                                pleat_plan **out)
{
    reader r = {0};
    PLEAT_TRY(pleat__plan_new(&r.plan));
    pleat__pack_begin(&r.pack, path, bytes, size);
    pleat_result result = read_all(&r);
    pleat__pack_end(&r.pack);
    if (result == PLEAT_OK) {
        result = pleat_plan_verify(r.plan, NULL);
        if (result != PLEAT_OK)
            pleat__context(result, "'%s'", path);
    }
    if (result == PLEAT_OK)
        *out = r.plan;
    else
        pleat_plan_free(r.plan);
    return result;
}

pleat_result pleat_plan_read(const char *path, pleat_plan **out)
{
    pleat__arena *arena;
    uint8_t *bytes;
    size_t size;
    PLEAT_TRY(pleat__arena_create(&arena));
    pleat_result result = pleat__file_read_any(path, arena, &bytes, &size);
    if (result == PLEAT_OK)
        result = pleat__plan_decode(path, bytes, size, out);
    pleat__arena_destroy(arena);
    return result;
}

bool pleat__plan_begins(const uint8_t *bytes, size_t size)
{
    /* The header is an array of more than 15, then a text of fewer than 32. */
    return size >= 4 + strlen(NAME) && bytes[0] == 0xdc && bytes[3] == (0xa0 | strlen(NAME)) &&
           memcmp(bytes + 4, NAME, strlen(NAME)) == 0;
}

pleat_result pleat__plan_is_file(const char *path, bool *is)
{
    uint8_t bytes[16] = {0};
    struct stat status;
    *is = false;
    if (stat(path, &status) != 0)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be opened", path);
    if (!S_ISREG(status.st_mode)) /* what is read of a pipe is gone */
        return PLEAT_OK;
    gzFile file = gzopen(path, "rb"); /* reads what is not gzipped as it is */
    if (file == NULL)
        return pleat__fail_errno(PLEAT_E_IO, "'%s': cannot be opened", path);
    int size = gzread(file, bytes, sizeof bytes);
    gzclose(file);
    *is = size > 0 && pleat__plan_begins(bytes, (size_t)size); /* else its reader says why not */
    return PLEAT_OK;
}
