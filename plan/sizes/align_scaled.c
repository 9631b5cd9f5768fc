/*
 * align_scaled.c: which requests of two iterations at different x play the same part (see
 * fit.h).
 *
 * The planner's alignment takes requests of one size for the same. At four times the microbatch
 * nearly all have another, and some have the size that others had: little is laid rightly then. So
 * the proportion of x is looked for first, wherever the requests are: it is one in which many sizes
 * of the one iteration come as often in the other. Of several that may be it, and of sizes as they
 * are, the one is taken that most requests agree with once they were laid by it. (A proportion was
 * taken from what was laid by sizes as they are, where most were in it. Of GPT-2 at microbatches 1
 * and 4, 39 % were: those were two jobs, and a job that went from the one to the other was learned
 * at each.)
 */
#include <plan/sizes/fit.h>

#include <internal/error.h>
#include <internal/range.h>
#include <plan/base/sort.h>
#include <plan/model/iteration.h>
#include <string.h>

#define PART_MOST 65536u /* align.c multiplies sizes by them */
#define KINDS     128u   /* sizes that are compared: those that come most often */
#define TRIES     4      /* proportions that are tried */
#define WORTH     4      /* what one in so many requests may be in is tried */
#define ENOUGH    7      /* eighths of the requests that agree: nothing else is tried */

/* Of sizes in one iteration to those in the other, in lowest terms; 1 : 1: as they are. */
typedef struct proportion {
    uint32_t a, b;
    uint32_t requests; /* that may be in it */
} proportion;

/* Two shapes behind each other, and room for what is found of them. */
typedef struct pairing {
    pleat__requests both;
    pleat__stretch a, b;
    uint64_t *keys; /* room_for() */
    uint32_t *pairs;
    uint32_t paired;
    proportion tries[TRIES]; /* the likeliest first */
    int try_count;
} pairing;

/* A size, and how often it comes. */
typedef struct kind {
    uint64_t size;
    uint32_t count;
} kind;

static size_t room_for(uint32_t count)
{
    size_t most = count > KINDS * KINDS ? count : KINDS * KINDS;
    return 3 * most;
}

/* The sizes of a stretch that come most often, at most KINDS. */
static uint32_t list_kinds(const pairing *p, pleat__stretch stretch, kind *kinds)
{
    uint64_t *sizes = p->keys, *spare = sizes + stretch.items;
    uint32_t count = stretch.items, listed = 0;
    for (uint32_t i = 0; i < count; i++)
        sizes[i] = p->both.items[stretch.item + i].size;
    pleat__sort_keys(sizes, spare, count);
    /* How often each comes, and where in `sizes` it ends. */
    uint64_t *often = spare;
    for (uint32_t i = 0, first = 0; i < count; i++) {
        first = sizes[first] == sizes[i] ? first : i;
        if (i + 1 == count || sizes[i + 1] != sizes[i])
            often[listed++] = (uint64_t)(i + 1 - first) << 32 | i;
    }
    pleat__sort_keys(often, often + count, listed);
    uint32_t most = listed < KINDS ? listed : KINDS;
    for (uint32_t i = 0; i < most; i++) {
        uint64_t key = often[listed - 1 - i];
        kinds[i] = (kind){sizes[(uint32_t)key], (uint32_t)(key >> 32)};
    }
    return most;
}

static void note_try(pairing *p, proportion found)
{
    int at = p->try_count;
    if ((uint64_t)found.requests * WORTH < p->a.items)
        return;
    while (at > 0 && p->tries[at - 1].requests < found.requests)
        at--;
    if (at == TRIES)
        return;
    p->try_count += p->try_count < TRIES;
    memmove(&p->tries[at + 1], &p->tries[at], (size_t)(p->try_count - at - 1) * sizeof *p->tries);
    p->tries[at] = found;
}

/* In which proportions sizes of the one may be to those of the other, and how many requests. */
static void compare_kinds(pairing *p)
{
    kind kinds[2][KINDS];
    uint32_t listed = 0;
    uint32_t count = list_kinds(p, p->a, kinds[0]), other = list_kinds(p, p->b, kinds[1]);
    for (uint32_t i = 0; i < count; i++)
        for (uint32_t k = 0; k < other; k++) {
            const kind *a = &kinds[0][i], *b = &kinds[1][k];
            uint64_t common = pleat__gcd(a->size, b->size);
            if (common == 0 || a->size / common >= PART_MOST || b->size / common >= PART_MOST)
                continue;
            p->keys[listed++] = a->size / common << 48 | b->size / common << 32 |
                                (a->count < b->count ? a->count : b->count);
        }
    pleat__sort_keys(p->keys, p->keys + KINDS * KINDS, listed);
    proportion found = {0};
    for (uint32_t i = 0; i < listed; i++) {
        found.requests += (uint32_t)p->keys[i];
        if (i + 1 < listed && p->keys[i + 1] >> 32 == p->keys[i] >> 32)
            continue;
        found.a = (uint32_t)(p->keys[i] >> 48);
        found.b = (uint32_t)(p->keys[i] >> 32) % PART_MOST;
        note_try(p, found);
        found.requests = 0;
    }
}

static bool is_same(proportion a, proportion b)
{
    return a.a == b.a && a.b == b.b;
}

/* Sizes as they are come last where nothing speaks for them. */
static void list_tries(pairing *p)
{
    static const proportion as_they_are = {1, 1, 0};
    compare_kinds(p);
    for (int i = 0; i < p->try_count; i++)
        if (is_same(p->tries[i], as_they_are))
            return;
    p->try_count += p->try_count < TRIES;
    p->tries[p->try_count - 1] = as_they_are;
}

/* How many pairs are of equal sizes, or of some in the proportion. */
static uint32_t lay(pairing *p, proportion by)
{
    const pleat__request *a = p->both.items, *b = a + p->a.items;
    uint32_t agreed = 0;
    p->paired = pleat__align_scaled(&p->both, p->a, p->b, by.a, by.b, p->pairs);
    for (uint32_t i = 0; i < p->a.items; i++) {
        if (p->pairs[i] == PLEAT__NEVER)
            continue;
        uint32_t pair = p->pairs[i] -= p->a.items;
        agreed += a[i].size == b[pair].size || a[i].size * by.b == b[pair].size * by.a;
    }
    return agreed;
}

static void lay_best(pairing *p)
{
    uint32_t least = p->a.items < p->b.items ? p->a.items : p->b.items, most = 0;
    int best = 0, last = 0;
    list_tries(p);
    for (int i = 0; i < p->try_count && (uint64_t)most * 8 < (uint64_t)least * ENOUGH; i++) {
        uint32_t agreed = lay(p, p->tries[i]);
        last = i;
        best = agreed > most ? i : best;
        most = agreed > most ? agreed : most;
    }
    if (best != last)
        lay(p, p->tries[best]);
}

static uint32_t events_of(const pleat__request *items, uint32_t count)
{
    return count == 0 ? 0 : items[count - 1].alloc_at + 1;
}

pleat_result pleat__shapes_align(const pleat__request *reference, uint32_t count,
                                 const pleat__request *other, uint32_t other_count,
                                 pleat__arena *scratch, uint32_t *pairs, uint32_t *paired)
{
    pairing p = {.both = {.arena = scratch, .count = count + other_count}, .pairs = pairs};
    pleat__request *items =
        pleat__arena_alloc(scratch, ((uint64_t)count + other_count + 1) * sizeof *items);
    p.keys = pleat__arena_alloc(scratch, room_for(p.both.count) * sizeof *p.keys);
    bool has_room = items != NULL && p.keys != NULL;
    if (has_room) {
        memcpy(items, reference, count * sizeof *reference);
        memcpy(items + count, other, other_count * sizeof *other);
        p.both.items = items;
        p.a = (pleat__stretch){.end_at = events_of(reference, count), .items = count};
        p.b = (pleat__stretch){
            .end_at = events_of(other, other_count), .item = count, .items = other_count};
        lay_best(&p);
        *paired = p.paired;
    }
    pleat__arena_free(scratch, items);
    pleat__arena_free(scratch, p.keys);
    return has_room ? PLEAT_OK
                    : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to compare %u requests",
                                  p.both.count);
}
