/*
 * aligner.c: see aligner.h.
 *
 * CELLS  Cell k stands for "item first + k is next". A request leaves each cell in two ways: it is
 *        that item (on to the next cell, at the price of how unlike they are), or it is extra (the
 *        cell stays). Between requests items may be passed over, at a price: cell k to k + 1. A run
 *        of dynamic items costs little for its length: a layer may have half its experts.
 * SIZES  of dynamic requests say which of several roles one has, where they vary little; how much
 *        they do is learned (note_spread).
 * LAZY   Requests that are the items expected leave the best cell the best for as long as they cost
 *        less together than any other way would. They wait, and the other cells are brought up to
 *        date when it is not certain any more: most never are. (With a plan of a mixture of experts
 *        an iteration's 68,000 allocations and frees took 31 ms when a single expert of another
 *        size had the others brought up to date, up to 32 requests at once, and 12.5 ms so; of
 *        allocations the 99th percentile went from 13 us to 0.5; all were served as before.)
 * STEPS  Where the sizes do change nine requests of ten cost something. So a step goes through the
 *        cells in loops that compilers make vector instructions of (0.9 us instead of 2.5).
 * WRAP   Behind the last item comes the iteration's first again.
 */
#include <runtime/follow/aligner.h>

#include <string.h>

/* Prices have no unit; only how they compare matters. What half and twice the values do:
 * docs/decisions.md, D160 to D178. */
#define OTHER       12u /* price of a fixed item of another size or absent, and of an extra request */
#define STRANGER    6u   /* price of an extra request beside dynamic items */
#define ANOTHER     2u   /* price of a further extra request in a row; ... */
#define SEVERAL     4u   /* ... one in so many costs STRANGER again */
#define ABSENT      4u   /* price of a run of absent dynamic items, plus 1 for each of them, ... */
#define ABSENT_MOST 60u  /* ... and at most this */
#define LIKE        3u   /* eighths of an octave by which a dynamic size differs for free */
#define UNLIKE      1u   /* price of a difference up to OCTAVES */
#define OCTAVES     12u  /* eighths of an octave */
#define FARTHEST    5u   /* price of a larger difference; less than STRANGER */
#define WIDE        5u   /* mean difference in eighths above which all cost UNLIKE */
#define RHYTHM      2u   /* price of another number of frees before the request */
#define STREAM      60u  /* price of another stream */
#define MOST        500u /* costs are capped here, so that they fit 16 bits */
#define BEHIND      32u  /* cells behind the next item when an alignment starts ... */
#define BACK        30u  /* ... and what each of them costs then */
#define AHEAD       96u  /* cells that are kept ahead of the best one, at least */
#define SURE        8u   /* fixed requests in a row as expected that end an alignment */
#define COMPANY     4u   /* an item with dynamic ones within so many before and behind is soft */

/* What may differ of an item. */
enum { FIXED, DYNAMIC, SOFT };
#define KIND_BITS 2u

static uint32_t hash_of(uint64_t bytes)
{
    return (uint32_t)(bytes ^ bytes >> 32);
}

static uint16_t scale_of(uint64_t bytes)
{
    uint64_t least = bytes < 8 ? 8 : bytes;
    uint32_t octave = 63 - (uint32_t)__builtin_clzll(least);
    return (uint16_t)(octave * 8 + (least >> (octave - 3) & 7));
}

static pleat__aligner_item asked_as(uint64_t bytes, uint16_t stream, uint8_t gap, uint32_t role)
{
    return (pleat__aligner_item){.hash = hash_of(bytes),
                                 .scale = scale_of(bytes),
                                 .gap = gap,
                                 .kind = (uint8_t)(stream << KIND_BITS | role)};
}

static pleat__aligner_item item_of(const pleat__aligner *aligner, uint32_t item)
{
    const pleat__expected *expected = &aligner->items[item];
    uint32_t role = expected->soft ? SOFT : FIXED;
    role = expected->kind == PLEAT__ITEM_DYNAMIC ? DYNAMIC : role;
    return asked_as(expected->bytes, expected->stream, expected->gap, role);
}

static uint32_t role_of(const pleat__aligner_item *item)
{
    return item->kind & ((1u << KIND_BITS) - 1);
}

static uint32_t item_behind(const pleat__aligner *aligner, uint32_t item, uint32_t by)
{
    uint32_t at = item + by;
    while (at >= aligner->count)
        at -= aligner->count - aligner->begin;
    return at;
}

static uint32_t item_at(const pleat__aligner *aligner, uint32_t cell)
{
    return item_behind(aligner, aligner->first, cell);
}

bool pleat__aligner_init(pleat__aligner *aligner, pleat__expected *items, uint32_t begin,
                         uint32_t count)
{
    uint32_t length = count - begin, before = UINT32_MAX; /* the last dynamic one */
    *aligner = (pleat__aligner){.items = items, .begin = begin, .count = count};
    aligner->cells = length < PLEAT__ALIGNER_BAND ? length : PLEAT__ALIGNER_BAND;
    for (uint32_t i = 0; i < count; i++) {
        if (items[i].kind != PLEAT__ITEM_DYNAMIC)
            continue;
        for (uint32_t k = before + 1; before != UINT32_MAX && k < i && k - before <= COMPANY; k++)
            items[k].soft = i - k <= COMPANY;
        before = i;
    }
    return before != UINT32_MAX;
}

/* ---- starting ---- */

/* What it costs to pass items over. A run of dynamic ones begins at the cell that makes it
 * cheapest. */
static void pass_over(pleat__aligner *aligner)
{
    pleat__aligner_cells *band = &aligner->band;
    uint32_t run = MOST, length = 0, before = band->cost[0];
    for (uint32_t k = 1; k <= aligner->cells; k++) {
        if (band->role[k - 1] == FIXED) {
            run = MOST;
            before += OTHER;
        } else {
            uint32_t longer = ABSENT + ++length < ABSENT_MOST ? run + 1 : run;
            if (before + ABSENT + 1 <= longer) {
                longer = before + ABSENT + 1;
                length = 1;
            }
            run = longer;
            before = run;
        }
        if (before < band->cost[k]) {
            band->cost[k] = (uint16_t)before;
            band->extra[k] = 0;
            band->shift[k] = band->shift[k - 1];
        }
        before = band->cost[k];
    }
}

static uint32_t cells_behind(const pleat__aligner *aligner, uint32_t item)
{
    uint32_t room = item < aligner->begin ? item : aligner->count - aligner->begin - 1;
    uint32_t most = aligner->cells / 4 < BEHIND ? aligner->cells / 4 : BEHIND;
    return room < most ? room : most;
}

/* The items of the cells from `cell` on. */
static void fill_items(pleat__aligner *aligner, uint32_t cell)
{
    pleat__aligner_cells *band = &aligner->band;
    uint32_t at = item_at(aligner, cell);
    for (uint32_t k = cell; k < PLEAT__ALIGNER_CELLS; k++) {
        pleat__aligner_item item = item_of(aligner, at);
        band->hash[k] = item.hash;
        band->scale[k] = (int16_t)item.scale;
        band->gap[k] = item.gap;
        band->stream[k] = item.kind >> KIND_BITS;
        band->role[k] = (uint16_t)role_of(&item);
        at = item_behind(aligner, at, 1);
    }
}

/* Cells around the item that is probably next. */
static void make_band(pleat__aligner *aligner, uint32_t item, int16_t shift)
{
    uint32_t behind = cells_behind(aligner, item), length = aligner->count - aligner->begin;
    bool wraps = item >= aligner->begin && item - aligner->begin < behind;
    aligner->first = wraps ? item + length - behind : item - behind;
    aligner->best = behind;
    fill_items(aligner, 0);
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS; k++) {
        aligner->band.cost[k] = k < behind ? BACK : MOST;
        aligner->band.extra[k] = 0;
        aligner->band.shift[k] = shift;
    }
    aligner->band.cost[behind] = 0;
    aligner->made = true;
    pass_over(aligner);
}

/* Nothing waits; another way costs `others` at least. */
static void wait_anew(pleat__aligner *aligner, uint32_t others)
{
    aligner->waiting_count = 0;
    aligner->debt = 0;
    aligner->others = (uint16_t)others;
}

void pleat__aligner_start(pleat__aligner *aligner, uint32_t item)
{
    aligner->on = true;
    aligner->made = false;
    aligner->start = item;
    aligner->next = item;
    aligner->shift_start = aligner->shift_next;
    aligner->sure = 0;
    aligner->lost = 0;
    wait_anew(aligner, ABSENT + 1);
}

/* ---- a request ---- */

static uint32_t magnitude(int32_t difference)
{
    return (uint32_t)(difference < 0 ? -difference : difference);
}

/* What it costs that a dynamic request is an item of another size. */
static uint32_t price_of_size(const pleat__aligner *aligner, const pleat__aligner_item *item,
                              const pleat__aligner_item *asked, int32_t shift)
{
    int32_t larger = (int32_t)asked->scale - (int32_t)item->scale;
    uint32_t off = magnitude(larger), shifted = magnitude(larger - shift);
    off = shifted < off ? shifted : off;
    if (off <= LIKE)
        return 0;
    return off <= OCTAVES || aligner->spread > WIDE * 32 ? UNLIKE : FARTHEST;
}

static uint32_t price(const pleat__aligner *aligner, const pleat__aligner_item *item,
                      const pleat__aligner_item *asked, int32_t shift)
{
    bool rhythm = item->gap == asked->gap || item->gap == PLEAT__GAP_UNKNOWN;
    uint32_t cost = rhythm ? 0 : RHYTHM;
    if (item->hash != asked->hash)
        cost += role_of(item) == FIXED ? OTHER : price_of_size(aligner, item, asked, shift);
    return cost + (item->kind >> KIND_BITS != asked->kind >> KIND_BITS ? STREAM : 0);
}

/* A dynamic request is that item: how far apart they are goes into the average of about 32. */
static void note_spread(pleat__aligner *aligner, uint32_t item, const pleat__aligner_item *asked)
{
    if (item == PLEAT__ALIGNER_EXTRA || aligner->items[item].kind != PLEAT__ITEM_DYNAMIC)
        return;
    uint32_t off = magnitude((int32_t)asked->scale - (int32_t)scale_of(aligner->items[item].bytes));
    aligner->spread = (uint16_t)(aligner->spread - aligner->spread / 32 + off);
}

/* The shift behind an item that a request was. */
static int16_t shift_behind(const pleat__expected *item, const pleat__aligner_item *asked,
                            int16_t shift)
{
    return item->kind == PLEAT__ITEM_DYNAMIC ? (int16_t)(asked->scale - scale_of(item->bytes))
                                             : shift;
}

/* The first `by` cells go, as many unreached ones come behind the last. */
static void drop_cells(pleat__aligner *aligner, uint32_t by)
{
    pleat__aligner_cells *band = &aligner->band;
    uint32_t kept = aligner->cells + 1 - by;
    memmove(band->cost, band->cost + by, kept * sizeof *band->cost);
    memmove(band->extra, band->extra + by, kept * sizeof *band->extra);
    memmove(band->shift, band->shift + by, kept * sizeof *band->shift);
    for (uint32_t k = kept; k <= aligner->cells; k++) {
        band->cost[k] = MOST;
        band->extra[k] = 0;
        band->shift[k] = 0;
    }
}

/* Moves the band so that there are cells ahead of the best. */
static void move_band(pleat__aligner *aligner)
{
    if (aligner->cells < PLEAT__ALIGNER_BAND) {
        /* All of a short iteration: round again. */
        if (aligner->best + aligner->cells / 4 > aligner->cells)
            make_band(aligner, item_at(aligner, aligner->best), aligner->band.shift[aligner->best]);
        return;
    }
    if (aligner->best + AHEAD <= aligner->cells)
        return;
    uint32_t by = aligner->best + AHEAD - aligner->cells + AHEAD / 4;
    by = by < aligner->best ? by : aligner->best;
    drop_cells(aligner, by);
    aligner->first = item_at(aligner, by);
    aligner->best -= by;
    fill_items(aligner, 0);
}

/* What each way to a cell costs: its item was not this request, or the item before it was. */
typedef struct track_ways {
    uint16_t extra[PLEAT__ALIGNER_CELLS];
    uint16_t come[PLEAT__ALIGNER_CELLS];
    int16_t shift[PLEAT__ALIGNER_CELLS]; /* having come */
} track_ways;

/* Having been the item of the cell before (price(), for all cells). */
static void price_coming(const pleat__aligner *aligner, const pleat__aligner_item *asked,
                         track_ways *ways)
{
    const pleat__aligner_cells *band = &aligner->band;
    const uint32_t hash = asked->hash;
    const int16_t scale = (int16_t)asked->scale;
    const uint16_t gap = asked->gap, stream = asked->kind >> KIND_BITS;
    const int16_t octaves = aligner->spread > WIDE * 32 ? INT16_MAX : OCTAVES;
    ways->come[0] = MOST;
    ways->shift[0] = 0;
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS - 1; k++) {
        int16_t larger = (int16_t)(scale - band->scale[k]);
        int16_t shifted = (int16_t)(larger - band->shift[k]);
        int16_t off = larger < 0 ? (int16_t)-larger : larger;
        int16_t beside = shifted < 0 ? (int16_t)-shifted : shifted;
        off = beside < off ? beside : off;
        uint16_t size = off <= octaves ? UNLIKE : FARTHEST;
        size = off <= (int16_t)LIKE ? 0 : size;
        size = band->role[k] == FIXED ? OTHER : size;
        size = band->hash[k] == hash ? 0 : size;
        uint16_t rhythm = band->gap[k] == gap ? 0 : RHYTHM;
        rhythm = band->gap[k] == PLEAT__GAP_UNKNOWN ? 0 : rhythm;
        uint16_t other = band->stream[k] == stream ? 0 : STREAM;
        ways->come[k + 1] = (uint16_t)(band->cost[k] + size + rhythm + other);
        ways->shift[k + 1] = band->role[k] == DYNAMIC ? larger : band->shift[k];
    }
}

/* Being no item: cheaper beside dynamic ones. */
static void price_extra(const pleat__aligner *aligner, track_ways *ways)
{
    const pleat__aligner_cells *band = &aligner->band;
    uint16_t beside[PLEAT__ALIGNER_CELLS];
    beside[0] = 1;
    for (uint32_t k = 1; k < PLEAT__ALIGNER_CELLS; k++)
        beside[k] = band->role[k] != FIXED || band->role[k - 1] != FIXED;
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS; k++) {
        uint16_t price = band->extra[k] % SEVERAL == 0 ? STRANGER : ANOTHER;
        ways->extra[k] = (uint16_t)(band->cost[k] + (beside[k] ? price : OTHER));
    }
}

/* The cheaper way to each cell; what the cheapest of all costs. */
static uint32_t take_cheaper(pleat__aligner *aligner, const track_ways *ways)
{
    pleat__aligner_cells *band = &aligner->band;
    uint16_t least = UINT16_MAX;
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS; k++) {
        bool alone = ways->extra[k] < ways->come[k];
        band->cost[k] = alone ? ways->extra[k] : ways->come[k];
        band->shift[k] = alone ? band->shift[k] : ways->shift[k];
        band->extra[k] = alone ? (uint16_t)(band->extra[k] % SEVERAL + 1) : 0;
    }
    for (uint32_t k = aligner->cells + 1; k < PLEAT__ALIGNER_CELLS; k++)
        band->cost[k] = UINT16_MAX;
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS; k++)
        least = band->cost[k] < least ? band->cost[k] : least;
    return least;
}

/* The cell that costs least, the one behind the last one if it is among them. */
static uint32_t best_of(const pleat__aligner *aligner, uint32_t least)
{
    uint32_t k = aligner->best + 1;
    if (k <= aligner->cells && aligner->band.cost[k] == least)
        return k;
    for (k = 0; aligner->band.cost[k] != least;)
        k++;
    return k;
}

/* Costs are counted from the best cell's. */
static void rebase(pleat__aligner *aligner, uint32_t least)
{
    const uint16_t by = (uint16_t)(least < MOST ? least : 0);
    for (uint32_t k = 0; k < PLEAT__ALIGNER_CELLS; k++) {
        uint16_t cost = aligner->band.cost[k];
        aligner->band.cost[k] = cost >= MOST ? MOST : (uint16_t)(cost - by);
    }
}

/* A request moves the band. The item that it is in the cheapest way; *price of that way. */
static uint32_t step(pleat__aligner *aligner, const pleat__aligner_item *asked, uint32_t *paid)
{
    track_ways ways;
    move_band(aligner);
    price_coming(aligner, asked, &ways);
    price_extra(aligner, &ways);
    *paid = take_cheaper(aligner, &ways);
    aligner->best = best_of(aligner, *paid);
    bool alone = aligner->band.extra[aligner->best] != 0;
    rebase(aligner, *paid);
    pass_over(aligner);
    return alone ? PLEAT__ALIGNER_EXTRA : item_at(aligner, aligner->best - 1);
}

/* The oldest half of what waits will not be asked about any more. */
static void forget_oldest(pleat__aligner *aligner)
{
    uint32_t half = PLEAT__ALIGNER_WAITING / 2;
    uint32_t start = aligner->made ? item_at(aligner, aligner->best) : aligner->start;
    int16_t shift = aligner->made ? aligner->band.shift[aligner->best] : aligner->shift_start;
    for (uint32_t i = 0; i < half; i++)
        shift = shift_behind(&aligner->items[item_behind(aligner, start, i)], &aligner->waiting[i],
                             shift);
    for (uint32_t i = 0; i < half; i++)
        aligner->debt -= aligner->prices[i];
    aligner->made = false;
    aligner->others = ABSENT + 1;
    aligner->start = item_behind(aligner, start, half);
    aligner->shift_start = shift;
    aligner->waiting_count -= half;
    memmove(aligner->waiting, aligner->waiting + half,
            aligner->waiting_count * sizeof *aligner->waiting);
    memmove(aligner->prices, aligner->prices + half,
            aligner->waiting_count * sizeof *aligner->prices);
}

/* The item expected, at a price that makes no other way cheaper. */
static uint32_t go_on(pleat__aligner *aligner, const pleat__aligner_item *asked, uint32_t paid)
{
    uint32_t item = aligner->next;
    if (aligner->waiting_count == PLEAT__ALIGNER_WAITING)
        forget_oldest(aligner);
    aligner->prices[aligner->waiting_count] = (uint8_t)paid;
    aligner->waiting[aligner->waiting_count++] = *asked;
    aligner->debt += paid;
    aligner->next = item_behind(aligner, item, 1);
    aligner->shift_next = shift_behind(&aligner->items[item], asked, aligner->shift_next);
    aligner->lost = 0;
    aligner->sure = paid == 0 && pleat__aligner_is_fixed(aligner, item) ? aligner->sure + 1 : 0;
    aligner->on = aligner->sure < SURE;
    note_spread(aligner, item, asked);
    return item;
}

/* What every way costs at least that is not to go on from the best cell: one that has come to
 * another cell already, or that leaves this one: by an item that does not come, which costs less
 * than an extra request unless there was one just now. */
static uint32_t price_of_others(const pleat__aligner *aligner)
{
    uint32_t least = aligner->band.extra[aligner->best] != 0 ? ANOTHER : ABSENT + 1;
    for (uint32_t k = 0; k <= aligner->cells; k++)
        if (k != aligner->best && aligner->band.cost[k] < least)
            least = aligner->band.cost[k];
    return least;
}

uint32_t pleat__aligner_step(pleat__aligner *aligner, uint64_t bytes, uint16_t stream, uint8_t gap)
{
    const pleat__aligner_item asked = asked_as(bytes, stream, gap, FIXED);
    const pleat__aligner_item next = item_of(aligner, aligner->next);
    uint32_t paid = price(aligner, &next, &asked, aligner->shift_next);
    if (aligner->debt + paid <= aligner->others)
        return go_on(aligner, &asked, paid);
    if (!aligner->made)
        make_band(aligner, aligner->start, aligner->shift_start);
    for (uint32_t i = 0; i < aligner->waiting_count; i++)
        step(aligner, &aligner->waiting[i], &paid);
    uint32_t found = step(aligner, &asked, &paid);
    wait_anew(aligner, price_of_others(aligner));
    aligner->next = item_at(aligner, aligner->best);
    aligner->shift_next = aligner->band.shift[aligner->best];
    aligner->lost = paid >= STRANGER ? aligner->lost + 1 : 0;
    aligner->sure = 0;
    note_spread(aligner, found, &asked);
    return found;
}
