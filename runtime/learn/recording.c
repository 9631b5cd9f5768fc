/*
 * recording.c: see recording.h.
 */
#include <runtime/learn/recording.h>

#include <internal/error.h>
#include <runtime/base/policy.h>
#include <string.h>

/* Requests held, of 24 bytes each (D190). */
#define MOST (1u << 20)
/* "Nearly all" means all but 1/NEARLY (D110). */
#define NEARLY 16u
/* Requests of the iteration before that are passed over to find the newest (D124). */
#define NEAR 2u
/* Iterations that are not recorded where most are not like the one before, for the two that are
 * (D467). */
#define UNASKED 6u
/* Requests that an iteration must have to be followed (D111). */
#define LEAST 64u
/* Two marks with at most this many requests between them are one mark made twice (D112). */
#define AGAIN 4u
/* Points at which an iteration is not followed though it is alike, and how many there are at most:
 * one unlike the one before adds 2, one alike takes 1 off (D443). */
#define UNLIKE      4u
#define MOST_UNLIKE 16u
_Static_assert(PLEAT__REQUEST_MOST <= PLEAT__RECORDED_BYTES, "each request can be recorded");
_Static_assert(MOST / PLEAT__SEGMENT < PLEAT__SEGMENTS - 1, "all that is held is in the ring");

void pleat__recording_init(pleat__recording *recording, pleat__arena *arena)
{
    *recording = (pleat__recording){.arena = arena, .mark_at = PLEAT__NO_MARK};
}

/* What lies before a position is held no more. */
static void forget_before(pleat__recording *recording, uint64_t position)
{
    recording->begin = position;
    if (recording->compared.cursor < position)
        recording->compared.open = false;
}

/* What comes from now on is an iteration, which is compared with the last `count` requests; 0: with
 * nothing. */
static void compare_with(pleat__recording *recording, uint32_t count)
{
    uint64_t begin = recording->end - count;
    recording->mark_at = recording->end;
    recording->compared = (pleat__comparison){.cursor = begin, .length = count, .open = count != 0};
    forget_before(recording, begin);
}

void pleat__recording_restart(pleat__recording *recording)
{
    compare_with(recording, 0);
    recording->mark_at = PLEAT__NO_MARK;
    recording->unasked = 0;
}

static inline void write_record(pleat__recorded_request *recorded, uint64_t bytes, uint16_t stream,
                                const pleat__place *place)
{
    uint64_t what = bytes | (uint64_t)stream << 48;
    recorded->address = place->address;
    if (place->several != NULL) {
        what |= PLEAT__RECORDED_IN_VIEW;
        recorded->several = place->several;
        pleat__view_pin(place);
    } else {
        recorded->begin = place->run.begin;
    }
    recorded->what = what;
}

static bool is_pinned(const pleat__recorded_request *recorded)
{
    return (recorded->what & PLEAT__RECORDED_IN_VIEW) != 0;
}

static void unpin(pleat__recording *recording, const pleat__recorded_request *recorded)
{
    pleat__place place = {.several = recorded->several};
    if (is_pinned(recorded))
        pleat__view_unpin(recording->arena, &place);
}

static void unpin_before(pleat__recording *recording, uint64_t position)
{
    for (; recording->pinned < position; recording->pinned++)
        unpin(recording, pleat__recording_at(recording, recording->pinned));
}

/* The memory of the oldest segment where nothing of it is held any more; NULL: something is. */
static pleat__recorded_request *segment_leave(pleat__recording *recording)
{
    if (recording->oldest >= recording->begin / PLEAT__SEGMENT)
        return NULL;
    unpin_before(recording, (recording->oldest + 1) * PLEAT__SEGMENT);
    return recording->segments[recording->oldest++ % PLEAT__SEGMENTS];
}

void pleat__recording_sweep(pleat__recording *recording, uint32_t most)
{
    pleat__recorded_request *segment;
    while (most-- != 0 && (segment = segment_leave(recording)) != NULL)
        pleat__arena_free(recording->arena, segment);
}

void pleat__recording_release(pleat__recording *recording)
{
    if (recording->arena == NULL)
        return;
    pleat__recording_restart(recording);
    pleat__recording_sweep(recording, PLEAT__SEGMENTS);
    unpin_before(recording, recording->end);
    if (recording->oldest < recording->next)
        pleat__arena_free(recording->arena,
                          recording->segments[recording->oldest % PLEAT__SEGMENTS]);
    pleat__arena_free(recording->arena, recording->segments);
    *recording = (pleat__recording){0};
}

/* Memory of a segment: that of the oldest where nothing of it is held any more, or new. */
static pleat_result segment_take(pleat__recording *recording, pleat__recorded_request **segment)
{
    *segment = segment_leave(recording);
    if (*segment == NULL)
        *segment = pleat__arena_alloc(recording->arena, PLEAT__SEGMENT * sizeof **segment);
    return *segment != NULL ? PLEAT_OK : PLEAT_E_NO_MEMORY;
}

/* Room for one more: a place in the last segment, or another segment. Where as many are held as may
 * be the oldest goes. */
static pleat_result make_room(pleat__recording *recording)
{
    if (recording->end - recording->begin >= MOST)
        forget_before(recording, recording->begin + 1);
    if (recording->end / PLEAT__SEGMENT < recording->next)
        return PLEAT_OK;
    if (recording->segments == NULL)
        recording->segments =
            pleat__arena_calloc(recording->arena, PLEAT__SEGMENTS, sizeof *recording->segments);
    if (recording->segments == NULL)
        return PLEAT_E_NO_MEMORY;
    PLEAT_TRY(segment_take(recording, &recording->segments[recording->next % PLEAT__SEGMENTS]));
    recording->next++;
    return PLEAT_OK;
}

/* There is no host memory: all that was held goes, and nothing is recorded until the next mark. */
static void give_up(pleat__recording *recording)
{
    pleat__recording_restart(recording);
    pleat__recording_sweep(recording, PLEAT__SEGMENTS);
    recording->unasked = 1;
    recording->mark_at = recording->end; /* the iteration behind that mark begins here */
}

/* ---- the iteration that runs and the one before it ---- */

static bool same(const pleat__recording *recording, uint64_t a, uint64_t b)
{
    uint64_t differs =
        pleat__recording_at(recording, a)->what ^ pleat__recording_at(recording, b)->what;
    return (differs & (PLEAT__RECORDED_IN_VIEW - 1)) == 0;
}

/* The position of the newest request in the iteration before. UINT64_MAX: it is not there. */
static uint64_t find_newest(const pleat__recording *recording)
{
    uint64_t at = recording->compared.cursor, end = at + NEAR + 1;
    for (end = end < recording->mark_at ? end : recording->mark_at; at < end; at++)
        if (same(recording, recording->end - 1, at))
            return at;
    return UINT64_MAX;
}

/* Whether too many were not there for nearly all to be: each is there once. */
static bool too_many_missed(const pleat__recording *recording)
{
    const pleat__comparison *compared = &recording->compared;
    return recording->end - recording->mark_at - compared->found > compared->length / (NEARLY - 1);
}

static void compare_newest(pleat__recording *recording)
{
    pleat__comparison *compared = &recording->compared;
    uint64_t at = find_newest(recording);
    if (at == UINT64_MAX) {
        compared->open = !too_many_missed(recording);
        return;
    }
    compared->cursor = at + 1;
    compared->found++;
}

void pleat__recording_add(pleat__recording *recording, uint64_t bytes, uint16_t stream,
                          const pleat__place *place)
{
    if (!recording->marked || recording->unasked != 0)
        return;
    if (make_room(recording) != PLEAT_OK) {
        give_up(recording);
        return;
    }
    write_record(pleat__recording_at(recording, recording->end++), bytes, stream, place);
    if (recording->compared.open)
        compare_newest(recording);
}

/* ---- marks ---- */

/* Whether the iteration of so many requests is like the one before, which may have done more: the
 * first makes the optimizer's states. */
static bool is_alike(const pleat__comparison *compared, uint32_t count)
{
    return compared->open && (uint64_t)compared->found * NEARLY >= (uint64_t)count * (NEARLY - 1) &&
           2 * count >= compared->length;
}

/* An iteration was like the one before, or not. */
static void count(pleat__recording *recording, bool alike)
{
    recording->unlike += alike ? 0 : 2;
    recording->unlike -= alike && recording->unlike != 0;
    if (recording->unlike > MOST_UNLIKE)
        recording->unlike = MOST_UNLIKE;
}

/* Whether all is held that came since the last mark. */
static bool is_whole(const pleat__recording *recording)
{
    return recording->mark_at != PLEAT__NO_MARK && recording->mark_at >= recording->begin;
}

/* Whether this mark is the last one made again, or nothing was recorded since. */
static bool is_made_again(const pleat__recording *recording)
{
    return is_whole(recording) && recording->end - recording->mark_at <= AGAIN;
}

/* The requests since the last mark, where they are an iteration that may be followed; else 0. */
static uint32_t requests_of(const pleat__recording *recording)
{
    uint64_t requests = recording->end - recording->mark_at;
    bool may_be = is_whole(recording) && requests >= LEAST && requests <= MOST / 2;
    return may_be ? (uint32_t)requests : 0;
}

/* An iteration of so many requests has ended, which the next one is compared with. Whether it is to
 * be followed: it is like the one before, and not too many before that were unlike. */
static bool end_iteration(pleat__recording *recording, uint32_t requests)
{
    bool compared = requests != 0 && recording->compared.length != 0;
    bool alike = compared && is_alike(&recording->compared, requests);
    if (compared)
        count(recording, alike);
    if (compared && recording->unlike == MOST_UNLIKE)
        recording->unasked = UNASKED;
    compare_with(recording, recording->unasked == 0 ? requests : 0);
    return alike && recording->unlike < UNLIKE;
}

pleat__alike pleat__recording_mark(pleat__recording *recording)
{
    pleat__alike none = {0}, iteration = {recording->mark_at, requests_of(recording)};
    recording->marked = true;
    recording->unasked -= recording->unasked != 0;
    if (is_made_again(recording))
        return none;
    return end_iteration(recording, iteration.count) ? iteration : none;
}

/* Field by field: what is put together first and copied then took twice as long, 0.2 ms of a call
 * for 10,000 requests. */
static void expect(pleat__expected *item, const pleat__recorded_request *recorded)
{
    memset(item, 0, sizeof *item);
    item->bytes = pleat__recorded_bytes(recorded);
    item->stream = pleat__recorded_stream(recorded);
    item->lane = PLEAT__NO_LANE;
    item->kind = PLEAT__ITEM_SLOT;
    item->place.address = recorded->address;
    item->place.granules = pleat__granules_of(item->bytes);
    if (is_pinned(recorded))
        item->place.several = recorded->several;
    else
        item->place.run = (pleat__run){(uint32_t)recorded->begin, item->place.granules};
}

pleat_result pleat__recording_take(pleat__recording *recording, const pleat__alike *iteration,
                                   pleat__schedule **out)
{
    pleat__expected *items = pleat__arena_alloc(recording->arena, iteration->count * sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    pleat_result result = pleat__schedule_learned(recording->arena, items, iteration->count, out);
    if (result != PLEAT_OK) {
        pleat__arena_free(recording->arena, items);
        return result;
    }
    for (uint32_t i = 0; i < iteration->count; i++) {
        pleat__recorded_request *recorded = pleat__recording_at(recording, iteration->first + i);
        expect(&items[i], recorded);
        recorded->what &= ~PLEAT__RECORDED_IN_VIEW; /* what was pinned is the schedule's */
    }
    return PLEAT_OK;
}
