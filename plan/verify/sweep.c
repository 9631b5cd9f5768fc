/*
 * sweep.c: proves V6 and V7 of verify.c.
 *
 * PIECES  A slot or a lane (here: a tenant) is a range of the window; through the maps it is a list
 *         of ranges of physical memory, its pieces. Maps whose chunks follow each other in both
 *         window and physical memory are taken as one run, so most tenants are one piece.
 * V6      A sweep over time keeps the pieces that are live in a set ordered by physical address.
 *         Those in it do not overlap, so a piece that comes is in the way of one in the set exactly
 *         if it is in the way of its neighbour on either side. The pieces are known beforehand, so
 *         the set is one bit for each in their sorted order, with summaries of 64 bits each above:
 *         a neighbour is found in a few steps.
 * V7      A sweep over physical addresses: two pieces of different streams overlap at no time, as
 *         far as they do not lie on handed chunks. Who is on those is counted while V6 sweeps over
 *         time.
 *
 * Lanes take part as tenants of the steady iteration. A lane's stream is that of the requests it is
 * for, which must agree, and it is there while any of them lives.
 */
#include <plan/verify/verify.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>

#include <stdio.h>
#include <string.h>

#define PIECES_MOST (32u << 20)
#define LEVELS      5 /* 64^5 pieces */
#define NO_RANK     UINT32_MAX
#define ANY_STREAM  UINT32_MAX

typedef unsigned long long ull;

/* Window pages [page, end) over physical chunks from `chunk` on. */
typedef struct run {
    uint64_t page;
    uint64_t end;
    uint64_t chunk;
} run;

typedef enum tenant_kind { TENANT_FIRST, TENANT_STEADY, TENANT_LANE } tenant_kind;

typedef struct tenant {
    uint8_t kind;
    bool persistent;
    uint32_t index; /* of the slot or lane */
    uint32_t stream;
    uint32_t begin; /* pieces [begin, end) */
    uint32_t end;
} tenant;

typedef struct piece {
    pleat__range bytes; /* physical */
    uint32_t tenant;
    uint32_t number; /* before sorting */
} piece;

/* Tenants on a chunk, all of one stream. */
typedef struct holder {
    uint32_t count;
    uint32_t tenant; /* one of them */
} holder;

/* A tenant's pieces come or go: a number, so that sorting is by time, at one time those that go
 * first. (Structures sorted by a function took a third of the instructions of an instance.) */
#define TENANT_BITS 31
static inline uint64_t action_of(uint64_t time, bool comes, uint32_t t)
{
    return (time * 2 + comes) << TENANT_BITS | t;
}

/* A set of numbers below a bound: bit i of word w of a level says whether word w * 64 + i of the
 * level below has any bit set. */
typedef struct number_set {
    uint64_t *words[LEVELS];
    int levels;
} number_set;

typedef struct sweep {
    const pleat_plan *plan;
    pleat__arena *arena;
    run *runs;
    size_t run_count;
    size_t run_capacity;
    tenant *tenants;
    size_t tenant_count;
    size_t tenant_capacity;
    piece *pieces; /* by tenant; later by address */
    size_t piece_count;
    size_t piece_capacity;
    uint32_t *ranks; /* piece -> its place in order of address */
    number_set live; /* ranks */
    uint8_t *handed; /* by chunk; NULL: none is */
    holder *holders; /* by chunk: who is on a handed one now */
    uint64_t *actions;
    size_t action_most;
    size_t action_count;
} sweep;

/* --- messages ----------------------------------------------------------------------------------*/

static void describe(const sweep *s, const tenant *t, char *text, size_t size)
{
    if (t->kind == TENANT_LANE) {
        const pleat__lane *lane = &s->plan->lanes[t->index];
        snprintf(text, size, "lane %u (%llu bytes, from event %u to %u)", t->index,
                 (ull)lane->bytes, lane->begin_at, lane->end_at);
        return;
    }
    const pleat__sequence *sequence = t->kind == TENANT_FIRST ? &s->plan->first : &s->plan->steady;
    const pleat__slot *slot = &sequence->slots[t->index];
    char until[24] = "on";
    if (slot->free_at != PLEAT__NEVER)
        snprintf(until, sizeof until, "to %u", slot->free_at);
    snprintf(text, size, "%s request %u (%llu bytes at window byte %llu, from event %u %s)",
             t->kind == TENANT_FIRST ? "first" : "steady", t->index, (ull)slot->size,
             (ull)slot->place, slot->alloc_at, until);
}

static pleat_result in_the_way(const sweep *s, const piece *a, const piece *b, const char *how)
{
    char left[160], right[160];
    describe(s, &s->tenants[a->tenant], left, sizeof left);
    describe(s, &s->tenants[b->tenant], right, sizeof right);
    uint64_t begin = a->bytes.begin > b->bytes.begin ? a->bytes.begin : b->bytes.begin;
    uint64_t end = a->bytes.end < b->bytes.end ? a->bytes.end : b->bytes.end;
    if (a->tenant == b->tenant)
        return pleat__fail(PLEAT_E_VERIFY, "%s lies twice in physical bytes %llu to %llu", left,
                           (ull)begin, (ull)end);
    return pleat__fail(PLEAT_E_VERIFY, "%s and %s %s physical bytes %llu to %llu", left, right, how,
                       (ull)begin, (ull)end);
}

static pleat_result together(const sweep *s, uint32_t a, uint32_t b, uint64_t chunk)
{
    char left[160], right[160];
    describe(s, &s->tenants[a], left, sizeof left);
    describe(s, &s->tenants[b], right, sizeof right);
    return pleat__fail(PLEAT_E_VERIFY, "%s and %s, of different streams, are on chunk %llu at once",
                       left, right, (ull)chunk);
}

static pleat_result no_memory(size_t count)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to verify %zu pieces", count);
}

/* --- tenants and their pieces ------------------------------------------------------------------*/

static pleat_result make_runs(sweep *s)
{
    for (uint32_t i = 0; i < s->plan->map_count; i++) {
        const pleat__plan_map *map = &s->plan->maps[i];
        const pleat__plan_handle *handle = &s->plan->handles[map->handle];
        run *last = s->run_count ? &s->runs[s->run_count - 1] : NULL;
        if (last != NULL && last->end == map->page &&
            last->chunk + (last->end - last->page) == handle->first_chunk) {
            last->end += handle->chunks;
            continue;
        }
        PLEAT_TRY(
            pleat__arena_grow(s->arena, &s->runs, &s->run_capacity, s->run_count, sizeof *s->runs));
        s->runs[s->run_count++] = (run){map->page, map->page + handle->chunks, handle->first_chunk};
    }
    return PLEAT_OK;
}

/* The run that holds a page, or the one behind it; run_count when there is none. */
static size_t find_run(const sweep *s, uint64_t page)
{
    size_t at;
    PLEAT__FIRST(at, s->run_count, s->runs[at].end > page);
    return at;
}

static pleat_result add_piece(sweep *s, uint64_t begin, uint64_t end)
{
    if (s->piece_count == PIECES_MOST)
        return pleat__fail(PLEAT_E_INPUT, "the plan's slots are in more than %u pieces",
                           PIECES_MOST);
    PLEAT_TRY(pleat__arena_grow(s->arena, &s->pieces, &s->piece_capacity, s->piece_count,
                                sizeof *s->pieces));
    s->pieces[s->piece_count] = (piece){.bytes = {begin, end},
                                        .tenant = (uint32_t)s->tenant_count,
                                        .number = (uint32_t)s->piece_count};
    s->piece_count++;
    return PLEAT_OK;
}

/* Adds a tenant of `bytes` at `place` with its pieces. */
static pleat_result add_tenant(sweep *s, tenant made, uint64_t place, uint64_t bytes)
{
    uint64_t chunk_bytes = s->plan->chunk_bytes, end = place + bytes;
    PLEAT_TRY(pleat__arena_grow(s->arena, &s->tenants, &s->tenant_capacity, s->tenant_count,
                                sizeof made));
    made.begin = (uint32_t)s->piece_count;
    for (size_t i = find_run(s, place / chunk_bytes); place < end; i++) {
        if (i == s->run_count || s->runs[i].page > place / chunk_bytes) {
            char text[160];
            describe(s, &made, text, sizeof text);
            return pleat__fail(PLEAT_E_VERIFY, "%s lies on page %llu, which is not mapped", text,
                               (ull)(place / chunk_bytes));
        }
        uint64_t stop = s->runs[i].end * chunk_bytes;
        stop = stop < end ? stop : end;
        uint64_t from = s->runs[i].chunk * chunk_bytes + (place - s->runs[i].page * chunk_bytes);
        PLEAT_TRY(add_piece(s, from, from + (stop - place)));
        place = stop;
    }
    made.end = (uint32_t)s->piece_count;
    s->tenants[s->tenant_count++] = made;
    return PLEAT_OK;
}

/* Room for every tenant, and one piece for each, so that growing does not double them. */
static pleat_result reserve(sweep *s)
{
    size_t count = s->plan->lane_count;
    for (uint32_t i = 0; i < s->plan->first.slot_count; i++)
        count += s->plan->first.slots[i].place != PLEAT__NOWHERE;
    for (uint32_t i = 0; i < s->plan->steady.slot_count; i++)
        count += s->plan->steady.slots[i].place != PLEAT__NOWHERE;
    s->tenants = pleat__arena_alloc(s->arena, count * sizeof *s->tenants);
    s->pieces = pleat__arena_alloc(s->arena, count * sizeof *s->pieces);
    if (s->tenants == NULL || s->pieces == NULL)
        return no_memory(count);
    s->tenant_capacity = s->piece_capacity = count;
    return PLEAT_OK;
}

static pleat_result add_slots(sweep *s, const pleat__sequence *sequence, tenant_kind kind)
{
    for (uint32_t i = 0; i < sequence->slot_count; i++) {
        const pleat__slot *slot = &sequence->slots[i];
        if (slot->place == PLEAT__NOWHERE || slot->size == 0)
            continue;
        tenant made = {.kind = (uint8_t)kind,
                       .persistent = slot->class == PLEAT__CLASS_PERSISTENT,
                       .index = i,
                       .stream = slot->stream};
        PLEAT_TRY(add_tenant(s, made, slot->place, pleat__placed_size(slot)));
    }
    return PLEAT_OK;
}

/* Whether a request that lies in a lane comes and goes while that is there; of one that is never
 * freed in the iteration, whether it comes then. */
static bool is_there_for(const pleat__lane *lane, const pleat__slot *slot, uint64_t events)
{
    uint64_t all = (events + lane->end_at - lane->begin_at - 1) % events + 1;
    uint64_t from = (events + slot->alloc_at - lane->begin_at) % events, life = 1;
    if (slot->free_at != PLEAT__NEVER)
        life = (events + slot->free_at - slot->alloc_at - 1) % events + 1;
    return all == events || from + life <= all;
}

static pleat_result add_lanes(sweep *s)
{
    const pleat_plan *plan = s->plan;
    uint32_t *streams = pleat__arena_alloc(s->arena, plan->lane_count * sizeof *streams);
    if (streams == NULL)
        return no_memory(plan->lane_count);
    memset(streams, 0xff, plan->lane_count * sizeof *streams);
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->lane == PLEAT__NO_LANE)
            continue;
        if (streams[slot->lane] != ANY_STREAM && streams[slot->lane] != slot->stream)
            return pleat__fail(PLEAT_E_VERIFY,
                               "steady request %u is in lane %u with requests of another stream", i,
                               slot->lane);
        streams[slot->lane] = slot->stream;
        if (!is_there_for(&plan->lanes[slot->lane], slot, plan->steady.events))
            return pleat__fail(PLEAT_E_VERIFY,
                               "steady request %u is in lane %u, which is not there all its life",
                               i, slot->lane);
    }
    for (uint32_t i = 0; i < plan->lane_count; i++) {
        const pleat__lane *lane = &plan->lanes[i];
        tenant made = {.kind = TENANT_LANE, .index = i, .stream = streams[i]};
        if (lane->bytes > 0)
            PLEAT_TRY(add_tenant(s, made, lane->place, lane->bytes));
    }
    pleat__arena_free(s->arena, streams);
    return PLEAT_OK;
}

/* By address; of equal ones the first stays first. */
static pleat_result order_pieces(const sweep *s, piece **pieces, size_t count)
{
    uint64_t *begins = pleat__arena_alloc(s->arena, count * sizeof *begins);
    uint32_t *order = pleat__arena_alloc(s->arena, 2 * count * sizeof *order);
    piece *sorted = pleat__arena_alloc(s->arena, count * sizeof *sorted);
    if (begins == NULL || order == NULL || sorted == NULL)
        return no_memory(count);
    for (size_t i = 0; i < count; i++) {
        begins[i] = (*pieces)[i].bytes.begin;
        order[i] = (uint32_t)i;
    }
    pleat__sort_by_key(order, order + count, count, begins);
    for (size_t i = 0; i < count; i++)
        sorted[i] = (*pieces)[order[i]];
    pleat__arena_free(s->arena, begins);
    pleat__arena_free(s->arena, order);
    pleat__arena_free(s->arena, *pieces);
    *pieces = sorted;
    return PLEAT_OK;
}

static pleat_result sort_pieces(sweep *s)
{
    s->ranks = pleat__arena_alloc(s->arena, s->piece_count * sizeof *s->ranks);
    if (s->ranks == NULL)
        return no_memory(s->piece_count);
    PLEAT_TRY(order_pieces(s, &s->pieces, s->piece_count));
    for (size_t i = 0; i < s->piece_count; i++)
        s->ranks[s->pieces[i].number] = (uint32_t)i;
    return PLEAT_OK;
}

/* --- the set of live pieces --------------------------------------------------------------------*/

static pleat_result set_make(number_set *set, size_t bound, pleat__arena *arena)
{
    set->levels = 0;
    do {
        bound = bound / 64 + 1;
        uint64_t *words = pleat__arena_calloc(arena, bound, sizeof *words);
        if (words == NULL)
            return no_memory(bound * 64);
        set->words[set->levels++] = words;
    } while (bound > 1);
    return PLEAT_OK;
}

static void set_add(number_set *set, uint32_t number)
{
    for (int level = 0; level < set->levels; level++, number /= 64)
        set->words[level][number / 64] |= 1ull << number % 64;
}

static void set_remove(number_set *set, uint32_t number)
{
    for (int level = 0; level < set->levels; level++, number /= 64) {
        set->words[level][number / 64] &= ~(1ull << number % 64);
        if (set->words[level][number / 64] != 0)
            return;
    }
}

/* The least member above `number`, or NO_RANK. */
static uint32_t set_next(const number_set *set, uint32_t number)
{
    for (int level = 0; level < set->levels; level++, number /= 64) {
        uint64_t above = number % 64 == 63 ? 0 : ~0ull << (number % 64 + 1);
        uint64_t word = set->words[level][number / 64] & above;
        if (word == 0)
            continue;
        number = number / 64 * 64 + (uint32_t)__builtin_ctzll(word);
        while (level-- > 0)
            number = number * 64 + (uint32_t)__builtin_ctzll(set->words[level][number]);
        return number;
    }
    return NO_RANK;
}

/* The greatest member below `number`, or NO_RANK. */
static uint32_t set_previous(const number_set *set, uint32_t number)
{
    for (int level = 0; level < set->levels; level++, number /= 64) {
        uint64_t word = set->words[level][number / 64] & ((1ull << number % 64) - 1);
        if (word == 0)
            continue;
        number = number / 64 * 64 + 63 - (uint32_t)__builtin_clzll(word);
        while (level-- > 0)
            number = number * 64 + 63 - (uint32_t)__builtin_clzll(set->words[level][number]);
        return number;
    }
    return NO_RANK;
}

/* --- V6: the sweep over time -------------------------------------------------------------------*/

static void add_life(sweep *s, uint32_t t, uint64_t begin, uint64_t end)
{
    if (begin >= end)
        return;
    s->actions[s->action_count++] = action_of(begin, true, t);
    s->actions[s->action_count++] = action_of(end, false, t);
}

/* A life that ends where it begins or before goes on across the iteration's boundary. */
static void add_circular_life(sweep *s, uint32_t t, uint64_t begin, uint64_t end)
{
    uint64_t events = s->plan->steady.events;
    if (end > begin) {
        add_life(s, t, begin, end);
        return;
    }
    add_life(s, t, begin, events);
    add_life(s, t, 0, end);
}

static void add_lives_of_first(sweep *s)
{
    for (uint32_t t = 0; t < s->tenant_count; t++) {
        if (s->tenants[t].kind != TENANT_FIRST)
            continue;
        const pleat__slot *slot = &s->plan->first.slots[s->tenants[t].index];
        bool ends = slot->free_at != PLEAT__NEVER && !s->tenants[t].persistent;
        add_life(s, t, slot->alloc_at, ends ? slot->free_at : s->plan->first.events);
    }
}

static void add_lives_of_steady(sweep *s)
{
    for (uint32_t t = 0; t < s->tenant_count; t++) {
        const tenant *of = &s->tenants[t];
        if (of->kind == TENANT_LANE) {
            const pleat__lane *lane = &s->plan->lanes[of->index];
            add_circular_life(s, t, lane->begin_at, lane->end_at);
        } else if (of->persistent) {
            add_life(s, t, 0, s->plan->steady.events);
        } else if (of->kind == TENANT_STEADY) {
            const pleat__slot *slot = &s->plan->steady.slots[of->index];
            if (slot->free_at == PLEAT__NEVER) /* one more in every iteration: never given up */
                add_life(s, t, 0, s->plan->steady.events);
            else
                add_circular_life(s, t, slot->alloc_at, slot->free_at);
        }
    }
}

/* At most as many lives cross the steady iteration's boundary. */
static size_t count_wraps(const pleat_plan *plan)
{
    size_t wraps = plan->lane_count;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        wraps += plan->steady.slots[i].free_at <= plan->steady.slots[i].alloc_at;
    return wraps;
}

static pleat_result come(sweep *s, uint32_t rank)
{
    const piece *coming = &s->pieces[rank];
    uint32_t below = set_previous(&s->live, rank), above = set_next(&s->live, rank);
    if (below != NO_RANK && pleat__range_overlaps(s->pieces[below].bytes, coming->bytes))
        return in_the_way(s, &s->pieces[below], coming, "are live together and share");
    if (above != NO_RANK && pleat__range_overlaps(s->pieces[above].bytes, coming->bytes))
        return in_the_way(s, &s->pieces[above], coming, "are live together and share");
    set_add(&s->live, rank);
    return PLEAT_OK;
}

/* A piece comes to its handed chunks, where no other stream's may be, or goes. */
static pleat_result pass_handed(sweep *s, const piece *of, bool comes)
{
    uint64_t chunk_bytes = s->plan->chunk_bytes, stream = s->tenants[of->tenant].stream;
    if (s->handed == NULL)
        return PLEAT_OK;
    for (uint64_t c = of->bytes.begin / chunk_bytes; c * chunk_bytes < of->bytes.end; c++) {
        if (!s->handed[c])
            continue;
        holder *on = &s->holders[c];
        if (comes && on->count != 0 && s->tenants[on->tenant].stream != stream)
            return together(s, on->tenant, of->tenant, c);
        on->count = comes ? on->count + 1 : on->count - 1;
        on->tenant = of->tenant;
    }
    return PLEAT_OK;
}

/* Carries out the lives added; whatever comes goes again, so the set is empty at the end. */
static pleat_result run_actions(sweep *s)
{
    pleat__sort_keys(s->actions, s->actions + s->action_most, s->action_count);
    for (size_t i = 0; i < s->action_count; i++) {
        const tenant *of = &s->tenants[s->actions[i] & ((UINT64_C(1) << TENANT_BITS) - 1)];
        bool comes = s->actions[i] >> TENANT_BITS & 1;
        for (uint32_t p = of->begin; p < of->end; p++) {
            PLEAT_TRY(pass_handed(s, &s->pieces[s->ranks[p]], comes));
            if (comes)
                PLEAT_TRY(come(s, s->ranks[p]));
            else
                set_remove(&s->live, s->ranks[p]);
        }
    }
    s->action_count = 0;
    return PLEAT_OK;
}

static pleat_result check_time(sweep *s)
{
    /* A life comes and goes; one that wraps does so twice. */
    size_t most = 2 * (s->tenant_count + count_wraps(s->plan));
    s->actions = pleat__arena_alloc(s->arena, 2 * most * sizeof *s->actions);
    s->action_most = most;
    if (s->actions == NULL)
        return no_memory(s->tenant_count);
    PLEAT_TRY(set_make(&s->live, s->piece_count, s->arena));
    add_lives_of_first(s);
    PLEAT_TRY(run_actions(s));
    add_lives_of_steady(s);
    return run_actions(s);
}

/* --- V7: the sweep over addresses --------------------------------------------------------------*/

/* Marks the chunks that are handed over. */
static pleat_result make_handed(sweep *s)
{
    size_t chunks = (size_t)(s->plan->physical_bytes / s->plan->chunk_bytes);
    if (s->plan->handed_count == 0)
        return PLEAT_OK;
    s->handed = pleat__arena_calloc(s->arena, chunks + 1, 1);
    s->holders = pleat__arena_calloc(s->arena, chunks + 1, sizeof *s->holders);
    if (s->handed == NULL || s->holders == NULL)
        return no_memory(chunks);
    for (uint32_t i = 0; i < s->plan->handed_count; i++)
        memset(s->handed + s->plan->handed[i].first_chunk, 1, s->plan->handed[i].chunks);
    return PLEAT_OK;
}

/* The pieces as far as they do not lie on handed chunks, in order of address. */
static pleat_result cut_pieces(sweep *s, piece **out, size_t *count)
{
    uint64_t chunk_bytes = s->plan->chunk_bytes;
    size_t capacity = 0;
    *out = s->pieces;
    *count = s->piece_count;
    if (s->handed == NULL)
        return PLEAT_OK;
    *out = NULL;
    *count = 0;
    for (size_t i = 0; i < s->piece_count; i++) {
        piece rest = s->pieces[i];
        uint64_t end = rest.bytes.end;
        while (rest.bytes.begin < end) {
            uint64_t chunk = rest.bytes.begin / chunk_bytes;
            bool handed = s->handed[chunk];
            while (chunk * chunk_bytes < end && s->handed[chunk] == handed)
                chunk++;
            rest.bytes.end = chunk * chunk_bytes < end ? chunk * chunk_bytes : end;
            if (!handed) {
                PLEAT_TRY(pleat__arena_grow(s->arena, out, &capacity, *count, sizeof **out));
                rest.number = (uint32_t)*count;
                (*out)[(*count)++] = rest;
            }
            rest.bytes.begin = rest.bytes.end;
        }
    }
    return order_pieces(s, out, *count);
}

/* Of all pieces so far, the one that reaches farthest, and the one of another stream that does. */
static pleat_result check_streams(const sweep *s, const piece *pieces, size_t count)
{
    const piece *farthest = NULL, *other = NULL;
    for (size_t i = 0; i < count; i++) {
        const piece *next = &pieces[i];
        uint32_t stream = s->tenants[next->tenant].stream;
        if (stream == ANY_STREAM)
            continue;
        bool same = farthest != NULL && s->tenants[farthest->tenant].stream == stream;
        const piece *rival = same ? other : farthest;
        if (rival != NULL && rival->bytes.end > next->bytes.begin)
            return in_the_way(s, rival, next, "are of different streams and share");
        if (farthest == NULL || next->bytes.end > farthest->bytes.end) {
            if (farthest != NULL && !same)
                other = farthest;
            farthest = next;
        } else if (!same && (other == NULL || next->bytes.end > other->bytes.end)) {
            other = next;
        }
    }
    return PLEAT_OK;
}

pleat_result pleat__verify_sweep(const pleat_plan *plan, pleat__arena *scratch)
{
    sweep s = {.plan = plan, .arena = scratch};
    PLEAT_TRY(make_runs(&s));
    PLEAT_TRY(reserve(&s));
    PLEAT_TRY(add_slots(&s, &plan->first, TENANT_FIRST));
    PLEAT_TRY(add_slots(&s, &plan->steady, TENANT_STEADY));
    PLEAT_TRY(add_lanes(&s));
    PLEAT_TRY(sort_pieces(&s));
    PLEAT_TRY(make_handed(&s));
    PLEAT_TRY(check_time(&s));
    piece *pieces;
    size_t count;
    PLEAT_TRY(cut_pieces(&s, &pieces, &count));
    return check_streams(&s, pieces, count);
}
