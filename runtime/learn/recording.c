/*
 * recording.c: see recording.h.
 */
#include <runtime/learn/recording.h>

#include <internal/error.h>
#include <runtime/base/policy.h>
#include <string.h>

/* Requests held, of 24 bytes each (D190). */
#define MOST (1u << 20)
/* Without marks: requests in which no repeat was found, and in which the lag does not go well,
 * before as many times REST are not recorded, at first; twice as many each time, up to UNMARKED, in
 * which it may go as well as it likes (D446, D466). */
#define UNFOUND  (1u << 16)
#define UNMARKED (1u << 18)
#define REST     3u
/* Iterations that are not recorded where most are not like the one before, for the two that are
 * (D467). */
#define UNASKED (2 * REST)
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

pleat_result pleat__recording_init(pleat__recording *recording, pleat__arena *arena, bool unmarked)
{
    *recording = (pleat__recording){.arena = arena, .mark_at = PLEAT__NO_MARK, .patience = UNFOUND};
    return pleat__period_init(&recording->period, arena, !unmarked);
}

/* What lies before a position is held no more. */
static void forget_before(pleat__recording *recording, uint64_t position)
{
    recording->begin = position;
    pleat__period_forget(&recording->period, recording->begin, recording->begin == recording->end);
}

void pleat__recording_restart(pleat__recording *recording)
{
    forget_before(recording, recording->end);
    recording->period.lag = (pleat__lag){0}; /* what comes next is compared with nothing */
    recording->mark_at = PLEAT__NO_MARK;
    recording->unfound = recording->unasked = 0;
}

static inline void write_record(pleat__recorded_request *recorded, uint64_t bytes, uint16_t stream,
                                const pleat__place *place)
{
    uint64_t what = bytes | (uint64_t)stream << 48;
    recorded->address = place->address;
    if (place->granules != 0)
        what |= PLEAT__RECORDED_PLACED;
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
    return (recorded->what & PLEAT__RECORDED_PLACED) != 0 &&
           (recorded->what & PLEAT__RECORDED_IN_VIEW) != 0;
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
    pleat__period_release(&recording->period, recording->arena);
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

/* What was found with the newest request. Where nothing is for long, sizes change: to look on costs
 * as much as the heap does, so it stops for a while. */
static pleat__repeat look_for_repeat(pleat__recording *recording)
{
    pleat__repeat found = pleat__period_step(recording);
    recording->unfound = found.count != 0 ? 0 : recording->unfound + 1;
    if (found.count != 0)
        recording->patience = UNFOUND;
    if (recording->unfound >= recording->patience &&
        (recording->unfound >= UNMARKED || !pleat__period_goes_well(recording))) {
        pleat__recording_restart(recording);
        recording->unasked = REST * recording->patience;
        recording->patience = recording->patience < UNMARKED ? 2 * recording->patience : UNMARKED;
    }
    return found;
}

/* There is no host memory: all that was held goes, and nothing is recorded until the next mark, or,
 * without marks, for as long as where nothing repeats. */
static void give_up(pleat__recording *recording)
{
    pleat__recording_restart(recording);
    pleat__recording_sweep(recording, PLEAT__SEGMENTS);
    recording->unasked = recording->marked ? 1 : REST * UNFOUND;
    if (recording->marked)
        recording->mark_at = recording->end; /* the iteration behind that mark begins here */
}

pleat__repeat pleat__recording_add(pleat__recording *recording, uint64_t bytes, uint16_t stream,
                                   const pleat__place *place)
{
    pleat__repeat none = {0};
    if (recording->period.off && !recording->marked)
        return none;
    if (recording->unasked != 0) {
        recording->unasked -= !recording->marked;
        return none;
    }
    if (make_room(recording) != PLEAT_OK) {
        give_up(recording);
        return none;
    }
    write_record(pleat__recording_at(recording, recording->end++), bytes, stream, place);
    if (!recording->marked)
        return look_for_repeat(recording);
    pleat__period_step_marked(recording);
    return none;
}

/* Whether the iteration from `first` on is like the one before it. What the lag did not find where
 * it expected it varies. */
static bool is_alike(const pleat__recording *recording, uint64_t first, uint32_t count)
{
    const pleat__lag *lag = &recording->period.lag;
    if (!lag->open || first < recording->begin + lag->length)
        return false;
    /* The one before may have done more: the first makes the optimizer's states. */
    return pleat__nearly_all(lag->agreed, count) && 2 * count >= lag->length;
}

/* Whether iterations are alike often enough for two in a row to be no chance; this one is like the
 * one before, or not. */
static bool is_often_alike(pleat__recording *recording, bool alike)
{
    recording->unlike += alike ? 0 : 2;
    recording->unlike -= alike && recording->unlike != 0;
    if (recording->unlike > MOST_UNLIKE)
        recording->unlike = MOST_UNLIKE;
    return recording->unlike < UNLIKE;
}

pleat__repeat pleat__recording_mark(pleat__recording *recording)
{
    pleat__repeat stretch = {0};
    uint64_t begin = recording->mark_at, count = recording->end - begin;
    bool whole = begin != PLEAT__NO_MARK && begin >= recording->begin;
    if (recording->marked && recording->unasked != 0) {
        recording->unasked--;
        return stretch;
    }
    if (recording->marked && whole && count <= AGAIN)
        return stretch;
    if (!recording->marked) {
        pleat__recording_restart(recording);
        pleat__recording_sweep(recording, PLEAT__SEGMENTS);
    }
    recording->marked = true;
    recording->mark_at = recording->end;
    if (!whole || count < LEAST || count > MOST / 2) {
        recording->period.lag.open = false;
        forget_before(recording, recording->end);
        return stretch;
    }
    const pleat__lag *lag = &recording->period.lag;
    bool compared = lag->length != 0 && lag->since == begin; /* open or given up */
    bool alike = compared && is_alike(recording, begin, (uint32_t)count);
    if (compared && is_often_alike(recording, alike) && alike)
        stretch = (pleat__repeat){.first = begin, .count = (uint32_t)count};
    if (compared && recording->unlike == MOST_UNLIKE) {
        recording->period.lag.open = false;
        forget_before(recording, recording->end);
        recording->unasked = UNASKED;
        return stretch;
    }
    pleat__period_mark(recording, begin);
    forget_before(recording, begin);
    return stretch;
}

/* Field by field: what is put together first and copied then took twice as long, 0.2 ms of a call
 * for 10,000 requests. */
static void expect(pleat__expected *item, const pleat__recorded_request *recorded)
{
    memset(item, 0, sizeof *item);
    bool placed = (recorded->what & PLEAT__RECORDED_PLACED) != 0;
    item->bytes = pleat__recorded_bytes(recorded);
    item->stream = pleat__recorded_stream(recorded);
    item->lane = PLEAT__NO_LANE;
    item->kind = PLEAT__ITEM_DYNAMIC;
    if ((recorded->what & PLEAT__RECORDED_FOUND) != 0)
        item->kind = placed ? PLEAT__ITEM_SLOT : PLEAT__ITEM_LOOSE;
    if (!placed)
        return;
    item->place.address = recorded->address;
    item->place.granules = pleat__granules_of(item->bytes);
    if ((recorded->what & PLEAT__RECORDED_IN_VIEW) != 0)
        item->place.several = recorded->several;
    else
        item->place.run = (pleat__run){(uint32_t)recorded->begin, item->place.granules};
}

pleat_result pleat__recording_take(pleat__recording *recording, const pleat__repeat *stretch,
                                   pleat__schedule **out)
{
    pleat__expected *items = pleat__arena_alloc(recording->arena, stretch->count * sizeof *items);
    if (items == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to follow an iteration");
    pleat_result result = pleat__schedule_learned(recording->arena, items, stretch->count, out);
    if (result != PLEAT_OK) {
        pleat__arena_free(recording->arena, items);
        return result;
    }
    for (uint32_t i = 0; i < stretch->count; i++) {
        pleat__recorded_request *recorded = pleat__recording_at(recording, stretch->first + i);
        expect(&items[i], recorded);
        recorded->what &= ~PLEAT__RECORDED_PLACED; /* what was pinned is the schedule's */
    }
    return PLEAT_OK;
}
