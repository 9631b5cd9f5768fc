/*
 * lives.c: see lives.h. Two iterations are kept: the one being recorded, and the one before it,
 * whose requests tell when those that are still live at the end will be freed.
 */
#include <runtime/learn/lives.h>

#include <string.h>

#define MOST       (1u << 20) /* requests of two iterations */
#define UNMARKED   (1u << 18) /* and while none has begun at a mark */
#define MOST_TICKS (1u << 30)

pleat_result pleat__lives_init(pleat__lives *lives, pleat__arena *arena)
{
    *lives = (pleat__lives){.arena = arena};
    return pleat__live_create(arena, &lives->live);
}

void pleat__lives_release(pleat__lives *lives)
{
    if (lives->arena == NULL)
        return;
    pleat__live_destroy(&lives->live);
    pleat__arena_free(lives->arena, lives->items);
    *lives = (pleat__lives){0};
}

/* Forgets the first `count` requests. */
static void drop(pleat__lives *lives, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (lives->items[i].address != 0)
            pleat__live_remove(&lives->live, lives->items[i].address);
    lives->count -= count;
    lives->previous -= lives->previous < count ? lives->previous : count;
    lives->dropped += count;
    if (count != 0)
        memmove(lives->items, lives->items + count, lives->count * sizeof *lives->items);
}

void pleat__lives_restart(pleat__lives *lives)
{
    drop(lives, lives->count);
    pleat__arena_free(lives->arena, lives->items);
    lives->items = NULL;
    lives->capacity = 0;
    lives->now = 0;
    lives->begun = 0;
    lives->dropped = 0;
    lives->previous = 0;
    lives->whole = false;
    lives->full = false;
}

void pleat__lives_alloc(pleat__lives *lives, uint64_t bytes, uint16_t stream, pleat_va address)
{
    if (lives->full)
        return;
    if (lives->count == (lives->whole ? MOST : UNMARKED) || lives->now >= MOST_TICKS ||
        pleat__live_reserve(&lives->live) != PLEAT_OK ||
        pleat__arena_grow(lives->arena, &lives->items, &lives->capacity, lives->count,
                          sizeof *lives->items) != PLEAT_OK) {
        pleat__lives_restart(lives);
        lives->full = true;
        return;
    }
    uintptr_t number = (uintptr_t)lives->dropped + lives->count + 1;
    pleat__live_insert(&lives->live, address, (void *)number);
    lives->items[lives->count++] = (pleat__life){
        .bytes = bytes,
        .address = address,
        .begin = lives->now++,
        .end = PLEAT__NEVER,
        .asked = PLEAT__NEVER,
        .stream = stream,
    };
}

void pleat__lives_free(pleat__lives *lives, pleat_va address)
{
    uintptr_t number = (uintptr_t)pleat__live_remove(&lives->live, address);
    if (number == 0)
        return;
    pleat__life *life = &lives->items[number - 1 - lives->dropped];
    life->address = 0;
    life->end = lives->now++;
}

void pleat__lives_wait(pleat__lives *lives, pleat_va address)
{
    uintptr_t number = (uintptr_t)pleat__live_find(&lives->live, address);
    if (number != 0)
        lives->items[number - 1 - lives->dropped].asked = lives->now++;
}

bool pleat__lives_is_new(const pleat__lives *lives, pleat_va address)
{
    uintptr_t number = (uintptr_t)pleat__live_find(&lives->live, address);
    return number != 0 && number - 1 - lives->dropped >= lives->previous;
}

bool pleat__lives_crosses(const pleat__lives *lives, pleat_va address)
{
    uintptr_t number = (uintptr_t)pleat__live_find(&lives->live, address);
    return number != 0 && lives->items[number - 1 - lives->dropped].crosses;
}

void pleat__profile_free(pleat__profile *profile)
{
    if (profile == NULL)
        return;
    pleat__arena_free(profile->arena, profile->parts);
    pleat__arena_free(profile->arena, profile);
}

pleat__profile *pleat__profile_copy(const pleat__profile *profile)
{
    pleat__profile *copy = pleat__arena_alloc(profile->arena, sizeof *copy);
    pleat__part *parts = pleat__arena_alloc(profile->arena, profile->count * sizeof *parts);
    if (copy == NULL || parts == NULL) {
        pleat__arena_free(profile->arena, copy);
        pleat__arena_free(profile->arena, parts);
        return NULL;
    }
    *copy = *profile;
    copy->parts = parts;
    memcpy(parts, profile->parts, profile->count * sizeof *parts);
    return copy;
}

/* An iteration of `count` requests, from `first` on; as many before it are the one before, unless
 * it is open. */
typedef struct stretch {
    uint32_t first;
    uint32_t count;
    uint32_t begin; /* positions */
    uint32_t end;
    bool open;
} stretch;

/* One that no mark begins or ends: from its first request to the next one's. */
static stretch stretch_of(const pleat__lives *lives, uint32_t first, uint32_t count)
{
    uint32_t next = first + count;
    return (stretch){.first = first,
                     .count = count,
                     .begin = lives->items[first].begin,
                     .end = next < lives->count ? lives->items[next].begin : lives->now};
}

/* The end of request `i`, from its own free or, where that is to come, from the one that its like
 * in the iteration before had. */
static uint32_t end_of(const pleat__lives *lives, stretch s, uint32_t i)
{
    const pleat__life *life = &lives->items[i];
    if (life->end != PLEAT__NEVER && life->end < s.end)
        return life->end - s.begin;
    if (s.open)
        return PLEAT__NEVER;
    const pleat__life *before = &lives->items[i - s.count];
    /* Freed when the next one was there already, it is not to lie in one place with itself. */
    bool known = before->end != PLEAT__NEVER && before->end >= s.begin &&
                 before->end < life->begin && before->stream == life->stream;
    return known ? before->end - s.begin : PLEAT__NEVER;
}

static pleat__profile *profile_of(const pleat__lives *lives, stretch s)
{
    pleat__profile *profile = pleat__arena_calloc(lives->arena, 1, sizeof *profile);
    pleat__part *parts = pleat__arena_alloc(lives->arena, s.count * sizeof *parts);
    if (profile == NULL || parts == NULL) {
        pleat__arena_free(lives->arena, profile);
        pleat__arena_free(lives->arena, parts);
        return NULL;
    }
    *profile = (pleat__profile){.arena = lives->arena,
                                .parts = parts,
                                .count = s.count,
                                .horizon = s.end - s.begin,
                                .open = s.open};
    for (uint32_t i = 0; i < s.count; i++) {
        const pleat__life *life = &lives->items[s.first + i];
        parts[i] = (pleat__part){.bytes = life->bytes,
                                 .begin = life->begin - s.begin,
                                 .end = end_of(lives, s, s.first + i),
                                 .stream = life->stream};
    }
    return profile;
}

void pleat__lives_mark(pleat__lives *lives, pleat__profile **profile)
{
    uint32_t first = lives->previous, length = lives->count - first;
    *profile = NULL;
    if (lives->full || !lives->whole || length == 0) {
        pleat__lives_restart(lives);
        lives->whole = true;
        return;
    }
    /* From the mark on: an optimizer's step is marked, and then every gradient is freed ahead of
     * the iteration's first request. (Counted from there they had no end, and no place at other
     * sizes: of a GPT-2 3 % of the requests.) */
    stretch ended = {.first = first,
                     .count = length,
                     .begin = lives->begun,
                     .end = lives->now,
                     .open = first != length};
    *profile = profile_of(lives, ended);
    for (uint32_t i = first; i < lives->count; i++)
        lives->items[i].crosses =
            lives->items[i].address != 0 && end_of(lives, ended, i) != PLEAT__NEVER;
    drop(lives, first);
    lives->previous = lives->count;
    lives->begun = lives->now;
    if (lives->now >= MOST_TICKS / 2) {
        pleat__lives_restart(lives);
        lives->whole = true;
    }
}

void pleat__lives_completed(pleat__lives *lives, const pleat__profile *profile)
{
    for (uint32_t i = 0; i < profile->count && i < lives->previous; i++)
        lives->items[i].crosses =
            lives->items[i].address != 0 && profile->parts[i].end != PLEAT__NEVER;
}

pleat__profile *pleat__lives_last(const pleat__lives *lives, uint32_t count, uint32_t ahead)
{
    uint64_t wanted = 2 * (uint64_t)count + ahead;
    if (lives->full || count == 0 || lives->count < wanted)
        return NULL;
    return profile_of(lives, stretch_of(lives, lives->count - ahead - count, count));
}

void pleat__lives_begun(pleat__lives *lives, uint32_t count, uint32_t ahead)
{
    uint64_t wanted = (uint64_t)count + ahead;
    if (lives->full || lives->count < wanted)
        return;
    drop(lives, lives->count - (uint32_t)wanted);
    lives->previous = count;
    lives->begun = ahead != 0 ? lives->items[count].begin : lives->now;
    lives->whole = true;
}
