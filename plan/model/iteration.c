/*
 * iteration.c: see iteration.h.
 *
 * The first iteration of a job creates optimizer state and workspaces, and the piece behind the
 * last mark is cut or is teardown; so the last whole iteration is taken, or the one before it, and
 * those before that are laid against it (D498 in docs/decisions.md). An iteration in which
 * something is allocated that stays for good, and that no later iteration allocates again, is not
 * steady yet: what it leaves is persistent only behind it.
 */
#include <plan/model/iteration.h>

#include <internal/error.h>
#include <internal/search.h>

#define AGREE_PERCENT 80   /* requests of the longer one that must have a pair */
#define ALIKE_PERCENT 50   /* the same where the trace holds nothing better */
#define GRAM          8u   /* requests in a row that say where an iteration begins */
#define SKIPPED       16u  /* requests at its beginning that may be other ones the first time */
#define HEAD          256u /* requests at its beginning that say so to the request */
#define BEGINNINGS    8u   /* places tried, and as many more as WORK lets be compared */
#define WORK          (1u << 24) /* requests, and rows of them (D519) */

static uint32_t item_at(const pleat__requests *requests, uint32_t position)
{
    uint32_t item;
    PLEAT__FIRST(item, requests->count, requests->items[item].alloc_at >= position);
    return item;
}

pleat__stretch pleat__stretch_of(const pleat__requests *requests, uint32_t begin_at,
                                 uint32_t end_at)
{
    pleat__stretch stretch = {.begin_at = begin_at, .end_at = end_at};
    stretch.item = item_at(requests, begin_at);
    stretch.items = item_at(requests, end_at) - stretch.item;
    return stretch;
}

uint32_t pleat__open_end(const pleat__requests *requests, uint32_t begin_at)
{
    uint32_t end = requests->items[requests->count - 1].alloc_at + 1;
    uint32_t item = item_at(requests, begin_at);
    while (end < requests->event_count && requests->events[end] / 2 >= item)
        end++;
    return end > begin_at ? end : begin_at;
}

/* The trace between its marks: `count` pieces; the last one has no mark at its end. */
struct pieces {
    pleat__stretch *all;
    uint32_t count;
    uint32_t *paired; /* requests of the steady iteration that have a pair in each */
};

static bool agrees(const struct pieces *pieces, uint32_t steady, uint32_t other, uint32_t percent)
{
    uint64_t items = pieces->all[steady].items;
    if (pieces->all[other].items > items)
        items = pieces->all[other].items;
    return (uint64_t)pieces->paired[other] * 100 >= items * percent;
}

/* Whether the shorter of two pieces has that part of the longer one's requests. */
static bool as_long(const struct pieces *pieces, uint32_t a, uint32_t b, uint32_t percent)
{
    uint64_t more = pieces->all[a].items, less = pieces->all[b].items;
    if (more < less) {
        uint64_t swap = more;
        more = less;
        less = swap;
    }
    return less > 0 && less * 100 >= more * percent;
}

static bool stays_through(const pleat__request *item, pleat__stretch steady)
{
    return item->alloc_at < steady.begin_at && item->free_at >= steady.end_at;
}

/* Whether the piece leaves something for good that the steady iteration does not allocate again, by
 * the pairs; without pairs, anything. */
static bool leaves_something(const pleat__requests *requests, pleat__stretch steady,
                             pleat__stretch piece, const uint32_t *pairs)
{
    uint32_t next = 0; /* pairs ascend */
    for (uint32_t i = piece.item; i < piece.item + piece.items; i++) {
        if (!stays_through(&requests->items[i], steady))
            continue;
        if (pairs == NULL)
            return true;
        while (next < steady.items && (pairs[next] == PLEAT__NEVER || pairs[next] < i))
            next++;
        if (next == steady.items || pairs[next] != i)
            return true;
    }
    return false;
}

/* What tells that two requests play the same part. */
typedef struct comparison {
    const pleat__requests *requests;
    bool by_lives; /* they live as long, or have the same size: lengths may be drawn */
} comparison;

static bool same_request(const comparison *by, uint32_t a, uint32_t b)
{
    const pleat__request *x = &by->requests->items[a], *y = &by->requests->items[b];
    bool same_life = by->by_lives && x->free_at != PLEAT__NEVER && pleat__same_life(x, y);
    return x->stream == y->stream && (x->size == y->size || same_life);
}

/* Whether `GRAM` requests from two items on are the same. */
static bool same_gram(const comparison *by, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < GRAM; i++)
        if (!same_request(by, a + i, b + i))
            return false;
    return true;
}

/* Two walks through a trace's items, each up to its end. */
typedef struct two_walks {
    uint32_t a, a_end;
    uint32_t b, b_end;
    uint64_t compared; /* items, and rows of them */
} two_walks;

/* From two items that differ to the nearest two from which on GRAM are the same, SKIPPED items off
 * at most; past both where there are none. */
static void meet_again(const comparison *by, two_walks *walks)
{
    for (uint32_t skip = 1; skip <= SKIPPED; skip++)
        for (uint32_t in_b = 0; in_b <= skip; in_b++) {
            uint32_t a = walks->a + skip - in_b, b = walks->b + in_b;
            walks->compared++;
            if (a + GRAM <= walks->a_end && b + GRAM <= walks->b_end && same_gram(by, a, b)) {
                walks->a = a;
                walks->b = b;
                return;
            }
        }
    walks->a++;
    walks->b++;
}

/* Requests of the steady one that come behind `begin` as they do behind its own beginning, but for
 * a few between them that come in one of both: the first time around libraries make their
 * workspaces. (Counted by their numbers alone, a workspace in the first layer sent the beginning
 * one layer on, and 107 of 3,230 requests of a GPT-2's start had no place.) Adds what it compared
 * to *work. */
static uint32_t count_abreast(const comparison *by, const pleat__stretch *steady, uint32_t end,
                              uint32_t begin, uint64_t *work)
{
    two_walks walks = {steady->item, steady->item + steady->items, begin, end, 0};
    uint32_t count = 0;
    while (walks.a < walks.a_end && walks.b < walks.b_end) {
        if (!same_request(by, walks.a, walks.b)) {
            meet_again(by, &walks);
            continue;
        }
        count++;
        walks.a++;
        walks.b++;
    }
    *work += walks.compared + count;
    return count;
}

/* Whether what is at a place, or right behind it, occurs near the steady iteration's beginning. */
static bool may_begin(const comparison *by, const pleat__stretch *steady, uint32_t end,
                      uint32_t begin)
{
    for (uint32_t skip = 0; skip < SKIPPED; skip++)
        if (skip + GRAM <= steady->items && begin + skip + GRAM <= end &&
            same_gram(by, steady->item + skip, begin + skip))
            return true;
    return false;
}

/* Where within a stretch an iteration like the steady one begins: of the first places where one may
 * that from which on most goes abreast, the later of two alike, which tells the beginning from a
 * model's load and from a later layer's or microbatch's in a thousandth of an alignment's time.
 * false: nowhere. */
static bool find_beginning(const comparison *by, const pleat__stretch *steady,
                           pleat__stretch within, uint32_t *found)
{
    uint32_t end = within.item + within.items, tried = 0, most = 0;
    uint64_t work = 0;
    uint32_t least = (uint32_t)((uint64_t)steady->items * AGREE_PERCENT / 100);
    for (uint32_t begin = within.item; begin + least <= end; begin++) {
        if (!may_begin(by, steady, end, begin))
            continue;
        if (tried++ >= BEGINNINGS && work > WORK)
            break;
        uint32_t abreast = count_abreast(by, steady, end, begin, &work);
        *found = abreast >= most ? begin : *found;
        most = abreast >= most ? abreast : most;
    }
    return tried > 0;
}

/* Where the iteration itself begins, up to SKIPPED requests before that place: the row of requests
 * that found it may lie behind what the first one makes between its own. */
static uint32_t refine_beginning(const comparison *by, const pleat__stretch *steady,
                                 pleat__stretch within, uint32_t begin)
{
    uint64_t work = 0; /* SKIPPED times a head: bounded by itself */
    uint32_t end = within.item + within.items;
    pleat__stretch head = *steady;
    head.items = head.items < HEAD ? head.items : HEAD;
    uint32_t best = begin, most = count_abreast(by, &head, end, begin, &work);
    for (uint32_t back = 1; back <= SKIPPED && back <= begin - within.item; back++) {
        uint32_t many = count_abreast(by, &head, end, begin - back, &work);
        if (many > most) {
            most = many;
            best = begin - back;
        }
    }
    return best;
}

static pleat_result find_prologue(const comparison *by, pleat__stretch steady,
                                  pleat__stretch within, pleat__stretch *found, uint32_t *paired)
{
    const pleat__requests *requests = by->requests;
    uint32_t begin = 0;
    *paired = 0;
    if (!find_beginning(by, &steady, within, &begin))
        return PLEAT_OK;
    uint32_t *pairs = pleat__arena_alloc(requests->arena, steady.items * sizeof *pairs);
    if (pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to compare iterations of %u requests",
                           steady.items);
    begin = refine_beginning(by, &steady, within, begin);
    *found = pleat__stretch_of(requests, requests->items[begin].alloc_at, within.end_at);
    *paired = pleat__align(requests, steady, *found, pairs);
    pleat__arena_free(requests->arena, pairs);
    return PLEAT_OK;
}

pleat_result pleat__prologue_find(const pleat__requests *requests, pleat__stretch steady,
                                  pleat__stretch within, pleat__stretch *found, uint32_t *paired)
{
    const comparison by = {.requests = requests};
    return find_prologue(&by, steady, within, found, paired);
}

/* Where the program marks its iterations there is one before the first mark, whatever its sizes: it
 * is found by these or by lives, whichever pairs more (D578 in docs/decisions.md). */
static pleat_result take_prologue(const pleat__requests *requests, pleat__stretch within,
                                  pleat__iteration *out)
{
    const comparison by_lives = {.requests = requests, .by_lives = true};
    pleat__stretch found, other;
    uint32_t paired, others = 0;
    if (out->early_count == PLEAT__PROFILES)
        return PLEAT_OK;
    PLEAT_TRY(pleat__prologue_find(requests, out->steady, within, &found, &paired));
    if (requests->labelled && paired < out->steady.items)
        PLEAT_TRY(find_prologue(&by_lives, out->steady, within, &other, &others));
    if (paired != 0 || others != 0)
        out->early[out->early_count++] = others > paired ? other : found;
    return PLEAT_OK;
}

/* The piece is the steady iteration, and nothing is laid against it yet. */
static pleat_result set_steady(const pleat__requests *requests, const struct pieces *pieces,
                               uint32_t steady, pleat__iteration *out)
{
    uint32_t items = pieces->all[steady].items;
    out->steady = pieces->all[steady];
    out->first_at = out->steady.begin_at;
    out->profile_count = 0;
    pleat__arena_free(requests->arena, out->pairs);
    /* One more than profiles, for what is compared and is none. */
    uint64_t most = steady < PLEAT__PROFILES ? steady + 1 : PLEAT__PROFILES + 1;
    out->pairs = pleat__arena_alloc(requests->arena, most * items * sizeof *out->pairs);
    return out->pairs != NULL
               ? PLEAT_OK
               : pleat__fail(PLEAT_E_NO_MEMORY,
                             "no host memory to compare iterations of %u requests", items);
}

/* Lays the pieces before `steady` against it, latest first, until one leaves something, or
 * PLEAT__PROFILES of them were other ones. Those that agree become profiles, the first of them. All
 * from the earliest that agrees on are no beginning: neither those before the profiles (of 200
 * iterations of drawn lengths 182 were one, request by request) nor others between them (an
 * evaluation after each third step made all before the last step the beginning, which no other run
 * of the job repeats). */
static void take_profiles(const pleat__requests *requests, struct pieces *pieces, uint32_t steady,
                          pleat__iteration *out)
{
    for (uint32_t i = steady, others = 0; i-- > 0 && others < PLEAT__PROFILES;) {
        uint32_t *pairs = NULL;
        pieces->paired[i] = 0;
        if (as_long(pieces, steady, i, AGREE_PERCENT)) {
            pairs = out->pairs + (uint64_t)out->profile_count * out->steady.items;
            pieces->paired[i] = pleat__align(requests, out->steady, pieces->all[i], pairs);
        }
        if (leaves_something(requests, out->steady, pieces->all[i], pairs))
            break;
        if (!agrees(pieces, steady, i, AGREE_PERCENT)) {
            others += pairs != NULL;
            continue;
        }
        out->first_at = pieces->all[i].begin_at;
        if (out->profile_count < PLEAT__PROFILES)
            out->profiles[out->profile_count++] = pieces->all[i];
    }
}

/* A job's last iteration may lack what each other one makes for the next: where nothing agrees with
 * it, the one before it is steady, if its own like come before that. */
static pleat_result choose_profiles(const pleat__requests *requests, struct pieces *pieces,
                                    uint32_t *steady, pleat__iteration *out)
{
    PLEAT_TRY(set_steady(requests, pieces, *steady, out));
    take_profiles(requests, pieces, *steady, out);
    if (out->profile_count != 0 || *steady < 2 ||
        !as_long(pieces, *steady, *steady - 1, ALIKE_PERCENT))
        return PLEAT_OK;
    PLEAT_TRY(set_steady(requests, pieces, *steady - 1, out));
    take_profiles(requests, pieces, *steady - 1, out);
    if (out->profile_count == 0)
        return set_steady(requests, pieces, *steady, out);
    --*steady;
    return PLEAT_OK;
}

/* Where none agrees the one before: only an iteration before the steady state to hold it against.
 */
static void take_alike(const pleat__requests *requests, struct pieces *pieces, uint32_t steady,
                       pleat__iteration *out)
{
    if (out->profile_count > 0 || steady == 0)
        return;
    pieces->paired[steady - 1] =
        pleat__align(requests, out->steady, pieces->all[steady - 1], out->pairs);
    if (agrees(pieces, steady, steady - 1, ALIKE_PERCENT))
        out->profiles[out->profile_count++] = pieces->all[steady - 1];
}

/* Iterations before the steady state, latest first. The piece behind a mark at the very beginning
 * has the model's load in front of its iteration. */
static pleat_result take_early(const pleat__requests *requests, const struct pieces *pieces,
                               uint32_t steady, pleat__iteration *out)
{
    for (uint32_t i = steady; i-- > 0 && out->early_count < PLEAT__PROFILES;) {
        const pleat__stretch *piece = &pieces->all[i];
        if (piece->end_at > out->first_at)
            continue;
        if (piece->items > out->steady.items && !as_long(pieces, steady, i, AGREE_PERCENT))
            PLEAT_TRY(take_prologue(requests, *piece, out));
        else
            out->early[out->early_count++] = *piece;
    }
    return PLEAT_OK;
}

/* The last piece that has another about as long before it; the one without a mark behind it only
 * when there is no other. */
static bool choose_steady(const struct pieces *pieces, uint32_t *steady)
{
    for (uint32_t i = pieces->count - 1; i-- > 1;)
        if (as_long(pieces, i, i - 1, ALIKE_PERCENT)) {
            *steady = i;
            return true;
        }
    *steady = pieces->count - 1;
    return pieces->count > 1 &&
           as_long(pieces, pieces->count - 1, pieces->count - 2, ALIKE_PERCENT);
}

static bool all_freed(const pleat__requests *requests)
{
    return requests->event_count == 2 * (uint64_t)requests->count;
}

/* Nothing is left behind: the whole trace is what may run again. */
static pleat_result take_whole(const pleat__requests *requests, pleat__iteration *out)
{
    out->steady = pleat__stretch_of(requests, 0, requests->event_count);
    return PLEAT_OK;
}

static pleat_result nothing_repeats(const pleat__requests *requests)
{
    return pleat__fail(
        PLEAT_E_INPUT,
        "no iteration repeats in the %u requests of the trace (%u mark%s): record at least "
        "two iterations, or mark where they begin",
        requests->count, requests->mark_count, requests->mark_count == 1 ? "" : "s");
}

static pleat_result find_among(const pleat__requests *requests, struct pieces *pieces,
                               pleat__iteration *out)
{
    uint32_t steady;
    bool found = choose_steady(pieces, &steady);
    if (!found && requests->labelled && pieces->count > 1) {
        /* One whole iteration, named as such by the program: it is taken at its word. */
        steady = pieces->count - 2;
        found = pieces->all[steady].items > 0;
    }
    if (!found && all_freed(requests))
        return take_whole(requests, out);
    if (!found)
        return nothing_repeats(requests);
    PLEAT_TRY(choose_profiles(requests, pieces, &steady, out));
    take_alike(requests, pieces, steady, out);
    PLEAT_TRY(take_early(requests, pieces, steady, out));
    return take_prologue(requests, pleat__stretch_of(requests, 0, pieces->all[0].begin_at), out);
}

pleat_result pleat__iteration_find(const pleat__requests *requests, pleat__iteration *out)
{
    *out = (pleat__iteration){0};
    const uint32_t *marks = requests->marks;
    uint32_t count = requests->mark_count, *found = NULL;
    struct pieces pieces = {0};
    if (count == 0) {
        PLEAT_TRY(pleat__marks_find(requests, &found, &count));
        marks = found;
    }
    pleat_result result = PLEAT_OK;
    if (count == 0 && all_freed(requests))
        return take_whole(requests, out);
    if (count == 0)
        return nothing_repeats(requests);
    pieces.all = pleat__arena_calloc(requests->arena, count, sizeof *pieces.all);
    pieces.paired = pleat__arena_calloc(requests->arena, count, sizeof *pieces.paired);
    if (pieces.all == NULL || pieces.paired == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u iterations", count);
    if (result == PLEAT_OK) {
        for (uint32_t i = 0; i + 1 < count; i++)
            pieces.all[i] = pleat__stretch_of(requests, marks[i], marks[i + 1]);
        pieces.all[count - 1] = pleat__stretch_of(requests, marks[count - 1],
                                                  pleat__open_end(requests, marks[count - 1]));
        pieces.count = count;
        result = find_among(requests, &pieces, out);
    }
    if (requests->mark_count == 0 && result == PLEAT_OK)
        out->period = out->steady.items;
    pleat__arena_free(requests->arena, pieces.all);
    pleat__arena_free(requests->arena, pieces.paired);
    pleat__arena_free(requests->arena, found);
    return result;
}

void pleat__iteration_free(const pleat__requests *requests, pleat__iteration *iteration)
{
    pleat__arena_free(requests->arena, iteration->pairs);
    *iteration = (pleat__iteration){0};
}
