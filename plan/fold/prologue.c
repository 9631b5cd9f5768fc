/*
 * prologue.c: see prologue.h.
 *
 * Everything before the first steady iteration has to fit into the memory that the steady one
 * needs, or the peak of the whole job is not max-live's. The iterations in it do nearly what the
 * steady one does, so each of their requests takes the place of the request whose part it plays:
 * as long as both live alike these are never in each other's way, and where they do not, a walk
 * through time finds out. What has no counterpart (model load, the creation of optimizer state) is
 * put where it fits around those, largest first.
 *
 * Dynamic requests go to the lanes of those whose parts they play, as they do later. Lanes are not
 * kept clear for them (D619 in docs/decisions.md): what finds its lane taken is the heap's.
 *
 * Persistent requests hold their place from the beginning: a place that is given away before its
 * owner comes would save nothing, since the steady iteration needs both.
 *
 * Chunks that pass from stream to stream are one stream's at a time here too.
 *
 * SPACE    Addresses here are those of the layout's base pages, after which its chunks are
 * numbered. A place in a view is the list of base ranges behind it: its pieces.
 */
#include <plan/fold/prologue.h>

#include <internal/error.h>
#include <plan/base/free_ranges.h>
#include <plan/base/sort.h>
#include <plan/place/timeline.h>

#define BEYOND       (UINT64_MAX / 2) /* places from here on are no memory of the layout */
#define ORDER_BUDGET 100000000u       /* work for what has no counterpart, about a second */
#define NO_SLOT      PLEAT__NO_HOST
#define NO_EVENT     UINT32_MAX

/* How many slots are on a chunk now, all of one stream. */
typedef struct chunk_holders {
    uint32_t count;
    uint16_t stream;
} chunk_holders;

typedef struct first_job {
    const pleat__layout *layout;
    pleat__arena *scratch;
    pleat_plan *plan;
    const uint32_t *hosts;  /* first slot -> steady slot whose part it plays, or NO_SLOT */
    uint16_t stream;        /* of the guests */
    const uint8_t *handed;  /* by base page; NULL: none */
    chunk_holders *holders; /* of handed chunks */
    uint32_t *events;       /* position -> slot * 2 + (1 when it is the free), or NO_EVENT */
    pleat__range *free;     /* what is not persistent */
    uint32_t free_count;
    bool *placed; /* by first slot */
    pleat__gaps gaps;
} first_job;

static pleat_result no_memory(const first_job *job)
{
    return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to place %u early requests",
                       job->plan->first.slot_count);
}

/* The piece of base space behind the window byte `at`, at most up to the end of its page. */
static pleat__range piece_at(const first_job *job, uint64_t at, uint64_t end)
{
    uint64_t chunk_bytes = job->plan->chunk_bytes, page = at / chunk_bytes;
    uint64_t stop = (page + 1) * chunk_bytes < end ? (page + 1) * chunk_bytes : end;
    uint64_t base = (uint64_t)job->layout->pages[page] * chunk_bytes;
    return (pleat__range){base + at % chunk_bytes, base + at % chunk_bytes + (stop - at)};
}

static pleat_result take_range(first_job *job, pleat__range range, bool *taken)
{
    *taken = pleat__gaps_holds(&job->gaps, range);
    return *taken ? pleat__gaps_take(&job->gaps, range) : PLEAT_OK;
}

static pleat_result give_place(first_job *job, uint64_t place, uint64_t size)
{
    uint64_t end = place + size;
    if (end <= (uint64_t)job->layout->base_pages * job->plan->chunk_bytes)
        return pleat__gaps_give(&job->gaps, (pleat__range){place, end});
    for (uint64_t at = place; at < end;) {
        pleat__range piece = piece_at(job, at, end);
        PLEAT_TRY(pleat__gaps_give(&job->gaps, piece));
        at += pleat__range_size(piece);
    }
    return PLEAT_OK;
}

/* Takes what lies behind a place, piece by piece; none of it when a piece is not free. */
static pleat_result take_place(first_job *job, uint64_t place, uint64_t size, bool *taken)
{
    uint64_t end = place + size;
    if (end <= (uint64_t)job->layout->base_pages * job->plan->chunk_bytes)
        return take_range(job, (pleat__range){place, end}, taken);
    for (uint64_t at = place; at < end;) {
        pleat__range piece = piece_at(job, at, end);
        PLEAT_TRY(take_range(job, piece, taken));
        if (!*taken)
            return give_place(job, place, at - place);
        at += pleat__range_size(piece);
    }
    return PLEAT_OK;
}

/* Starts with the base pages that have chunks; BEYOND stands for all memory there is not. */
static pleat_result reset_to_chunks(first_job *job)
{
    const pleat__layout *layout = job->layout;
    uint64_t chunk_bytes = job->plan->chunk_bytes;
    pleat__range beyond = {BEYOND, UINT64_MAX};
    pleat__gaps_clear(&job->gaps);
    PLEAT_TRY(pleat__gaps_give(&job->gaps, beyond));
    for (uint32_t page = 0; page < layout->base_pages;) {
        if (layout->pages[page] == PLEAT__NO_CHUNK) {
            page++;
            continue;
        }
        uint32_t end = page;
        while (end < layout->base_pages && layout->pages[end] != PLEAT__NO_CHUNK)
            end++;
        PLEAT_TRY(
            pleat__gaps_give(&job->gaps, (pleat__range){page * chunk_bytes, end * chunk_bytes}));
        page = end;
    }
    return PLEAT_OK;
}

static pleat_result take_persistent(first_job *job)
{
    for (uint32_t i = 0; i < job->plan->first.slot_count; i++) {
        const pleat__slot *slot = &job->plan->first.slots[i];
        bool taken = true;
        if (slot->class != PLEAT__CLASS_PERSISTENT)
            continue;
        if (slot->size > 0)
            PLEAT_TRY(take_place(job, slot->place, pleat__rounded(slot->size), &taken));
        if (!taken)
            return pleat__fail(PLEAT_E_VERIFY, "persistent request %u has no place of its own", i);
    }
    return PLEAT_OK;
}

static pleat_result list_free(first_job *job)
{
    size_t capacity = 0;
    pleat__gap_at at;
    for (bool any = pleat__gaps_from(&job->gaps, 0, &at); any;
         any = pleat__gaps_next(&job->gaps, &at)) {
        PLEAT_TRY(pleat__arena_grow(job->scratch, &job->free, &capacity, job->free_count,
                                    sizeof *job->free));
        job->free[job->free_count++] = pleat__gaps_get(&job->gaps, at);
    }
    return PLEAT_OK;
}

/* What plays the part of a dynamic request goes where that goes. */
static void give_lane(pleat__slot *slot, const pleat__slot *host)
{
    slot->class = PLEAT__CLASS_DYNAMIC;
    slot->lane = host->lane;
    slot->window = host->window;
}

pleat_result pleat__first_hosts(const pleat__model *model, pleat__arena *scratch, pleat_plan *plan,
                                uint32_t *hosts)
{
    pleat__sequence *first = &plan->first;
    const pleat__slot *steady = plan->steady.slots;
    uint32_t items = model->iteration.steady.items;
    for (uint32_t i = 0; i < first->slot_count; i++)
        hosts[i] = NO_SLOT;
    uint32_t *pairs = pleat__arena_alloc(scratch, items * sizeof *pairs);
    if (pairs == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to compare %u requests", items);
    for (uint32_t p = 0; p < model->iteration.early_count; p++) {
        pleat__align(&model->requests, model->iteration.steady, model->iteration.early[p], pairs);
        /* The latest comes before the first of an unrolled one's iterations: it is the last. */
        uint32_t host = (plan->unroll - 1 - p % plan->unroll) * items;
        for (uint32_t i = 0; i < items; i++, host++) {
            if (pairs[i] == PLEAT__NEVER || pairs[i] >= first->slot_count)
                continue;
            pleat__slot *slot = &first->slots[pairs[i]];
            if (slot->class == PLEAT__CLASS_PERSISTENT)
                continue;
            if (steady[host].class == PLEAT__CLASS_DYNAMIC)
                give_lane(slot, &steady[host]);
            else
                hosts[pairs[i]] = host;
        }
    }
    pleat__arena_free(scratch, pairs);
    return PLEAT_OK;
}

/* Whether a slot may take its host's place: one that is still there when the steady iterations
 * begin may only stand in for one that is, too. */
static bool may_follow_host(const first_job *job, uint32_t index)
{
    const pleat__slot *slot = &job->plan->first.slots[index];
    if (job->hosts[index] == NO_SLOT || slot->size == 0)
        return false;
    const pleat__slot *host = &job->plan->steady.slots[job->hosts[index]];
    if (host->stream != slot->stream || host->place == PLEAT__NOWHERE ||
        pleat__rounded(slot->size) > pleat__rounded(host->size))
        return false;
    return slot->free_at != PLEAT__NEVER || host->free_at <= host->alloc_at;
}

/* Whether no handed chunk of a slot is held for another stream; it is then held for the slot's, one
 * time more or (`more` of -1) less. */
static bool hold_chunks(first_job *job, const pleat__slot *slot, uint64_t place, int more)
{
    uint64_t chunk_bytes = job->plan->chunk_bytes;
    uint64_t first = place / chunk_bytes, last = (place + slot->size - 1) / chunk_bytes;
    if (job->handed == NULL)
        return true;
    for (uint64_t page = first; page <= last && more > 0; page++) {
        const chunk_holders *holders = &job->holders[job->layout->pages[page]];
        if (holders->count != 0 && holders->stream != slot->stream)
            return false;
    }
    for (uint64_t page = first; page <= last; page++) {
        uint32_t chunk = job->layout->pages[page];
        if (!job->handed[chunk])
            continue;
        job->holders[chunk].count += (uint32_t)more;
        job->holders[chunk].stream = slot->stream;
    }
    return true;
}

/* A walk through `first` in which every slot with a host takes its place, where it is free. */
static pleat_result follow_hosts(first_job *job)
{
    pleat__sequence *first = &job->plan->first;
    for (uint32_t at = 0; at < first->events; at++) {
        uint32_t event = job->events[at], index = event / 2;
        if (event == NO_EVENT)
            continue;
        pleat__slot *slot = &first->slots[index];
        if (event % 2 == 1) {
            if (job->placed[index]) {
                PLEAT_TRY(give_place(job, slot->place, pleat__rounded(slot->size)));
                hold_chunks(job, slot, slot->place, -1);
            }
            continue;
        }
        if (!may_follow_host(job, index))
            continue;
        uint64_t place = job->plan->steady.slots[job->hosts[index]].place;
        bool taken = true;
        PLEAT_TRY(take_place(job, place, pleat__rounded(slot->size), &taken));
        if (taken && !hold_chunks(job, slot, place, 1)) {
            PLEAT_TRY(give_place(job, place, pleat__rounded(slot->size)));
            taken = false;
        }
        if (taken) {
            job->placed[index] = true;
            slot->place = place;
        }
    }
    return PLEAT_OK;
}

/* Everything of `first` that comes and goes, as items: pieces for what is placed, one item for what
 * is not. */
typedef struct guest_list {
    pleat__item *items;
    uint32_t *slots;
    uint64_t *places; /* PLEAT__NOT_PLACED: to be found */
    size_t item_capacity, slot_capacity, place_capacity;
    uint32_t count;
} guest_list;

/* Adds `size` bytes of a slot, at their place. */
static pleat_result add_guest(first_job *job, guest_list *list, uint32_t index, uint64_t place,
                              uint64_t size)
{
    const pleat__sequence *first = &job->plan->first;
    const pleat__slot *slot = &first->slots[index];
    PLEAT_TRY(pleat__arena_grow(job->scratch, &list->items, &list->item_capacity, list->count,
                                sizeof *list->items));
    PLEAT_TRY(pleat__arena_grow(job->scratch, &list->slots, &list->slot_capacity, list->count,
                                sizeof *list->slots));
    PLEAT_TRY(pleat__arena_grow(job->scratch, &list->places, &list->place_capacity, list->count,
                                sizeof *list->places));
    /* From 1 on: 0 to the horizon would be "always". */
    list->items[list->count] =
        (pleat__item){.size = size,
                      .fixed = UINT64_MAX,
                      .begin = slot->alloc_at + 1,
                      .end = (slot->free_at == PLEAT__NEVER ? first->events : slot->free_at) + 1};
    list->slots[list->count] = index;
    list->places[list->count++] = place;
    return PLEAT_OK;
}

/* One that has its place: its pieces. */
static pleat_result add_placed(first_job *job, guest_list *list, uint32_t index)
{
    const pleat__slot *slot = &job->plan->first.slots[index];
    uint64_t size = pleat__rounded(slot->size), end = slot->place + size;
    if (end <= (uint64_t)job->layout->base_pages * job->plan->chunk_bytes)
        return add_guest(job, list, index, slot->place, size);
    for (uint64_t at = slot->place; at < end;) {
        pleat__range piece = piece_at(job, at, end);
        PLEAT_TRY(add_guest(job, list, index, piece.begin, pleat__range_size(piece)));
        at += pleat__range_size(piece);
    }
    return PLEAT_OK;
}

/* The stream of most of what has no place yet. */
static pleat_result choose_stream(first_job *job)
{
    const pleat__sequence *first = &job->plan->first;
    uint32_t *counts =
        pleat__arena_calloc(job->scratch, job->plan->stream_count + 1ull, sizeof *counts);
    if (counts == NULL)
        return no_memory(job);
    for (uint32_t i = 0; i < first->slot_count; i++)
        if (!job->placed[i] && ++counts[first->slots[i].stream] > counts[job->stream])
            job->stream = first->slots[i].stream;
    pleat__arena_free(job->scratch, counts);
    return PLEAT_OK;
}

static void mark_place(const first_job *job, uint64_t place, uint64_t size, uint8_t *others)
{
    uint64_t chunk_bytes = job->plan->chunk_bytes;
    for (uint64_t page = place / chunk_bytes; size != 0 && page * chunk_bytes < place + size;
         page++)
        others[job->layout->pages[page]] = 1;
}

/* Marks the chunks that other streams' slots are on at some time, and those of lanes, whosever they
 * are; whether there are other streams. */
static bool mark_others(const first_job *job, uint8_t *others)
{
    const pleat__sequence *both[2] = {&job->plan->first, &job->plan->steady};
    bool any = false;
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < both[k]->slot_count; i++) {
            const pleat__slot *slot = &both[k]->slots[i];
            bool other = slot->stream != job->stream;
            any |= other;
            if (other && slot->place != PLEAT__NOWHERE)
                mark_place(job, slot->place, slot->size, others);
        }
    for (uint32_t i = 0; i < job->plan->lane_count; i++)
        mark_place(job, job->plan->lanes[i].place, job->plan->lanes[i].bytes, others);
    return any;
}

/* Memory passes from one stream to another only behind a wait, and in a hole nobody knows whose it
 * was. So what has no host gets a place only where it is of one stream, in that stream's chunks. */
static pleat_result keep_own(first_job *job)
{
    uint64_t chunk_bytes = job->plan->chunk_bytes;
    uint32_t pages = job->layout->base_pages, count = 0;
    PLEAT_TRY(choose_stream(job));
    uint8_t *others = pleat__arena_calloc(job->scratch, pages + 1ull, 1);
    if (others == NULL)
        return no_memory(job);
    bool any = mark_others(job, others);
    pleat__range *own = NULL;
    size_t capacity = 0;
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < job->free_count && any && result == PLEAT_OK; i++) {
        pleat__range rest = job->free[i];
        while (!pleat__range_empty(rest) && result == PLEAT_OK) {
            uint64_t page = rest.begin / chunk_bytes;
            bool other = page < pages && others[page];
            while (page < pages && page * chunk_bytes < rest.end && others[page] == other)
                page++;
            uint64_t end =
                page < pages && page * chunk_bytes < rest.end ? page * chunk_bytes : rest.end;
            if (!other) {
                result = pleat__arena_grow(job->scratch, &own, &capacity, count, sizeof *own);
                if (result == PLEAT_OK)
                    own[count++] = (pleat__range){rest.begin, end};
            }
            rest.begin = end;
        }
    }
    pleat__arena_free(job->scratch, others);
    if (!any)
        return PLEAT_OK;
    pleat__arena_free(job->scratch, job->free);
    job->free = own;
    job->free_count = count;
    return result;
}

static pleat_result list_guests(first_job *job, guest_list *list)
{
    pleat__sequence *first = &job->plan->first;
    for (uint32_t i = 0; i < first->slot_count; i++) {
        pleat__slot *slot = &first->slots[i];
        bool kept = slot->class == PLEAT__CLASS_PERSISTENT || slot->class == PLEAT__CLASS_DYNAMIC;
        if (slot->size == 0 && !kept)
            slot->place = 0;
        /* What stays into the steady iterations without a counterpart there has no place: it would
         * have to keep clear of them, too. */
        if (kept || slot->size == 0 ||
            (!job->placed[i] && (slot->stream != job->stream || slot->free_at == PLEAT__NEVER)))
            continue;
        PLEAT_TRY(job->placed[i]
                      ? add_placed(job, list, i)
                      : add_guest(job, list, i, PLEAT__NOT_PLACED, pleat__rounded(slot->size)));
    }
    return PLEAT_OK;
}

static pleat_result place_rest(first_job *job, const guest_list *list, const pleat__strip *strip,
                               pleat__timeline *timeline, uint32_t *sequence, uint32_t *spare,
                               uint64_t *keys)
{
    uint32_t count = 0;
    for (uint32_t span = 0; span < strip->count; span++) {
        keys[span] = ~strip->spans[span].size;
        uint64_t place = list->places[strip->items[span]];
        if (place == PLEAT__NOT_PLACED)
            sequence[count++] = span;
        else
            PLEAT_TRY(pleat__timeline_put(timeline, span, place));
    }
    pleat__sort_by_key(sequence, spare, count, keys);
    timeline->work = 0;
    for (uint32_t i = 0; i < count && timeline->work < ORDER_BUDGET; i++) {
        uint32_t slot = list->slots[strip->items[sequence[i]]];
        uint64_t place = pleat__timeline_find(timeline, sequence[i]);
        if (place >= BEYOND)
            continue;
        PLEAT_TRY(pleat__timeline_put(timeline, sequence[i], place));
        job->plan->first.slots[slot].place = place;
        job->placed[slot] = true;
    }
    return PLEAT_OK;
}

static pleat_result place_guests(first_job *job)
{
    guest_list list = {0};
    pleat__strip strip = {0};
    pleat__timeline timeline = {0};
    uint32_t *sequence = NULL;
    uint64_t *places = NULL;
    pleat_result result = list_guests(job, &list);
    pleat__problem problem = {
        .items = list.items, .count = list.count, .horizon = job->plan->first.events + 2};
    if (result == PLEAT_OK && list.count > 0)
        result =
            pleat__strip_make_whole(&problem, job->free, job->free_count, job->scratch, &strip);
    if (result == PLEAT_OK && strip.count > 0) {
        sequence = pleat__arena_alloc(job->scratch, 2 * (uint64_t)strip.count * sizeof *sequence);
        places = pleat__arena_alloc(job->scratch, 2 * (uint64_t)strip.count * sizeof *places);
        result = sequence == NULL || places == NULL
                     ? no_memory(job)
                     : pleat__timeline_create(&timeline, &strip, places);
        if (result == PLEAT_OK)
            result = place_rest(job, &list, &strip, &timeline, sequence, sequence + strip.count,
                                places + strip.count);
        pleat__timeline_destroy(&timeline);
    }
    if (strip.arena != NULL)
        pleat__strip_free(&strip);
    pleat__arena_free(job->scratch, sequence);
    pleat__arena_free(job->scratch, places);
    pleat__arena_free(job->scratch, list.items);
    pleat__arena_free(job->scratch, list.slots);
    pleat__arena_free(job->scratch, list.places);
    return result;
}

/* What the planned slots of `first` hold at most. */
static uint64_t first_max_live(const first_job *job)
{
    const pleat__sequence *first = &job->plan->first;
    uint64_t live = 0, highest = 0;
    for (uint32_t at = 0; at < first->events; at++) {
        uint32_t event = job->events[at];
        const pleat__slot *slot = &first->slots[event == NO_EVENT ? 0 : event / 2];
        if (event == NO_EVENT || slot->place == PLEAT__NOWHERE)
            continue;
        live += event % 2 == 1 ? -pleat__rounded(slot->size) : pleat__rounded(slot->size);
        highest = live > highest ? live : highest;
    }
    return highest;
}

/* The sequence's events, from its slots' lives. */
static void list_events(first_job *job)
{
    const pleat__sequence *first = &job->plan->first;
    for (uint32_t at = 0; at < first->events; at++)
        job->events[at] = NO_EVENT;
    for (uint32_t i = 0; i < first->slot_count; i++) {
        job->events[first->slots[i].alloc_at] = i * 2;
        if (first->slots[i].free_at != PLEAT__NEVER)
            job->events[first->slots[i].free_at] = i * 2 + 1;
    }
}

static pleat_result place_first(first_job *job)
{
    list_events(job);
    PLEAT_TRY(reset_to_chunks(job));
    PLEAT_TRY(take_persistent(job));
    PLEAT_TRY(list_free(job));
    PLEAT_TRY(follow_hosts(job));
    PLEAT_TRY(keep_own(job));
    PLEAT_TRY(place_guests(job));
    job->plan->first_max_live_bytes = first_max_live(job);
    return PLEAT_OK;
}

pleat_result pleat__first_place(const uint32_t *hosts, const pleat__layout *layout,
                                const uint8_t *handed, pleat__arena *scratch, pleat_plan *plan)
{
    first_job job = {
        .hosts = hosts, .layout = layout, .handed = handed, .scratch = scratch, .plan = plan};
    uint32_t count = plan->first.slot_count;
    if (count == 0)
        return PLEAT_OK;
    pleat__gaps_init(&job.gaps, scratch);
    job.placed = pleat__arena_calloc(scratch, count, sizeof *job.placed);
    job.events = pleat__arena_alloc(scratch, (plan->first.events + 1ull) * sizeof *job.events);
    job.holders =
        pleat__arena_calloc(scratch, handed != NULL ? layout->base_pages : 1, sizeof *job.holders);
    pleat_result result = job.placed == NULL || job.events == NULL || job.holders == NULL
                              ? no_memory(&job)
                              : place_first(&job);
    pleat__gaps_done(&job.gaps);
    pleat__arena_free(scratch, job.placed);
    pleat__arena_free(scratch, job.events);
    pleat__arena_free(scratch, job.holders);
    pleat__arena_free(scratch, job.free);
    return result;
}

pleat_result pleat__first_make(const pleat__model *model, const pleat__layout *layout,
                               const uint8_t *handed, pleat__arena *scratch, pleat_plan *plan)
{
    uint32_t *hosts = pleat__arena_alloc(scratch, (plan->first.slot_count + 1ull) * sizeof *hosts);
    if (hosts == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to place %u early requests",
                           plan->first.slot_count);
    pleat_result result = pleat__first_hosts(model, scratch, plan, hosts);
    if (result == PLEAT_OK)
        result = pleat__first_place(hosts, layout, handed, scratch, plan);
    pleat__arena_free(scratch, hosts);
    return result;
}
