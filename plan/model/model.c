/*
 * model.c: see model.h.
 */
#include <plan/model/model.h>

#include <internal/error.h>
#include <string.h>

static char *copy_text(pleat__arena *arena, const char *text, size_t length)
{
    char *copy = pleat__arena_alloc(arena, length + 1);
    if (copy != NULL) {
        memcpy(copy, text, length);
        copy[length] = '\0';
    }
    return copy;
}

/* The phases' texts; without labels, the names of what phases.c finds. */
static pleat_result copy_labels(const pleat_trace *trace, const pleat__requests *requests,
                                pleat_plan *plan)
{
    static const char *const unlabelled[] = {"", "rise", "fall"};
    uint32_t count = requests->phase_count > 1 ? requests->phase_count : 3;
    plan->labels = pleat__arena_calloc(plan->arena, count, sizeof *plan->labels);
    if (plan->labels == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u labels", count);
    for (uint32_t i = 0; i < count; i++) {
        const char *text = i < 3 ? unlabelled[i] : "";
        size_t length = strlen(text);
        if (requests->phase_count > 1)
            text = pleat__phase_text(pleat_trace_label(trace, requests->phase_labels[i]), &length);
        plan->labels[i] = copy_text(plan->arena, text, length);
        if (plan->labels[i] == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u labels", count);
        plan->label_count++;
    }
    return PLEAT_OK;
}

static pleat_result copy_streams(const pleat_trace *trace, pleat_plan *plan)
{
    uint32_t count = pleat_trace_stream_count(trace);
    plan->streams = pleat__arena_calloc(plan->arena, count, sizeof *plan->streams);
    if (plan->streams == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u streams", count);
    for (uint32_t i = 0; i < count; i++)
        plan->streams[i] = pleat_trace_stream(trace, (uint16_t)i);
    plan->stream_count = count;
    return PLEAT_OK;
}

static pleat_result make_slots(pleat_plan *plan, pleat__sequence *sequence, uint32_t count,
                               uint32_t events)
{
    sequence->slots = pleat__arena_calloc(plan->arena, count, sizeof *sequence->slots);
    if (sequence->slots == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u slots", count);
    sequence->slot_count = count;
    sequence->events = events;
    return PLEAT_OK;
}

static pleat__slot slot_of(const pleat__request *request, uint32_t begin_at)
{
    return (pleat__slot){.size = request->size,
                         .place = PLEAT__NOWHERE,
                         .alloc_at = request->alloc_at - begin_at,
                         .free_at = PLEAT__NEVER,
                         .stream = request->stream,
                         .small = request->size < PLEAT__SMALL_BYTES,
                         .lane = PLEAT__NO_LANE};
}

void pleat__set_phases(const pleat__sequence *sequence, pleat__slot *slot)
{
    slot->alloc_phase = pleat__phase_at(sequence, slot->alloc_at);
    slot->free_phase = slot->free_at == PLEAT__NEVER ? slot->alloc_phase
                                                     : pleat__phase_at(sequence, slot->free_at);
}

static bool is_persistent(const pleat__model *model, const pleat__request *request)
{
    return request->alloc_at < model->iteration.first_at &&
           request->free_at >= model->iteration.steady.end_at;
}

static pleat_result make_first(pleat__model *model, pleat_plan *plan)
{
    const pleat__requests *requests = &model->requests;
    uint32_t end_at = model->iteration.first_at, count = 0;
    while (count < requests->count && requests->items[count].alloc_at < end_at)
        count++;
    pleat__sequence *first = &plan->first;
    PLEAT_TRY(make_slots(plan, first, count, end_at));
    PLEAT_TRY(pleat__phases_make(requests, 0, end_at, plan, first));
    for (uint32_t i = 0; i < count; i++) {
        const pleat__request *request = &requests->items[i];
        pleat__slot *slot = &first->slots[i];
        *slot = slot_of(request, 0);
        if (request->free_at < end_at)
            slot->free_at = request->free_at;
        pleat__set_phases(first, slot);
        if (is_persistent(model, request)) {
            slot->class = PLEAT__CLASS_PERSISTENT;
            model->persistents++;
        } else {
            slot->class = slot->free_at == PLEAT__NEVER           ? PLEAT__CLASS_CROSSING
                          : slot->alloc_phase == slot->free_phase ? PLEAT__CLASS_TRANSIENT
                                                                  : PLEAT__CLASS_SCOPED;
        }
    }
    return PLEAT_OK;
}

/* Positions behind an iteration's end at which one of its requests is freed; NEVER when it is not.
 */
static uint32_t freed_behind(const pleat__request *request, pleat__stretch stretch)
{
    if (request->free_at == PLEAT__NEVER || request->free_at < stretch.end_at)
        return PLEAT__NEVER;
    return request->free_at - stretch.end_at;
}

/* The partner in a profile, or NULL. */
static const pleat__request *partner(const pleat__model *model, uint32_t profile, uint32_t index)
{
    const pleat__iteration *iteration = &model->iteration;
    uint32_t item = iteration->pairs[(uint64_t)profile * iteration->steady.items + index];
    return item == PLEAT__NEVER ? NULL : &model->requests.items[item];
}

/* Whether a request of the steady iteration has the same size and stream in all profiles; *largest
 * is the largest size that it has. */
static bool is_same_everywhere(const pleat__model *model, uint32_t index, uint64_t *largest)
{
    const pleat__request *request = &model->requests.items[model->iteration.steady.item + index];
    bool same = true;
    *largest = request->size;
    for (uint32_t p = 0; p < model->iteration.profile_count; p++) {
        const pleat__request *other = partner(model, p, index);
        same &= other != NULL && other->size == request->size && other->stream == request->stream;
        if (other != NULL && other->size > *largest)
            *largest = other->size;
    }
    return same;
}

/* Whether what comes behind a profile is its like: nothing lies between them that is another. */
static bool is_followed_by_its_like(const pleat__iteration *iteration, uint32_t profile)
{
    const pleat__stretch *next =
        profile == 0 ? &iteration->steady : iteration->profiles + profile - 1;
    return iteration->profiles[profile].end_at == next->begin_at;
}

/* Whether what lies right before the steady iteration is its like, request by request: it need not
 * be a profile, since the first mark of a job may lie behind its first iteration. */
static bool follows_its_like(const pleat__model *model)
{
    pleat__stretch steady = model->iteration.steady;
    const pleat__request *now = model->requests.items + steady.item;
    if (steady.item < steady.items)
        return false;
    for (uint32_t i = 0; i < steady.items; i++) {
        const pleat__request *before = now + i - steady.items;
        if (now[i].size != before->size || now[i].stream != before->stream ||
            now[i].alloc_at - before->alloc_at != steady.end_at - steady.begin_at)
            return false;
    }
    return true;
}

/* Events behind an iteration's end at which a request of it is freed; NEVER when it is not. One
 * that outlives its iteration is seen whole in one that another follows, a profile or its `like`
 * right before it: behind the last iteration comes what the end of the job does. Its longest life
 * counts: losses are kept until a logging step, and one that has a slot for its shortest life is in
 * the way of all that has the same memory behind it (D534). */
static uint32_t longest_behind(const pleat__model *model, uint32_t index, bool like)
{
    pleat__stretch steady = model->iteration.steady;
    const pleat__request *own = &model->requests.items[steady.item + index];
    uint32_t longest = PLEAT__NEVER;
    if (like)
        longest = freed_behind(own - steady.items, (pleat__stretch){.end_at = steady.begin_at});
    for (uint32_t p = 0; p < model->iteration.profile_count; p++) {
        const pleat__request *other = partner(model, p, index);
        if (other == NULL || !is_followed_by_its_like(&model->iteration, p))
            continue;
        uint32_t behind = freed_behind(other, model->iteration.profiles[p]);
        if (behind != PLEAT__NEVER && (longest == PLEAT__NEVER || behind > longest))
            longest = behind;
    }
    return longest != PLEAT__NEVER ? longest : freed_behind(own, steady);
}

/* When a request of the steady iteration, which is freed so far `behind` its end, is freed,
 * relative to an iteration's beginning. NEVER: it lives too long to have a slot, for it is not
 * freed before it is allocated again. */
static uint32_t steady_free(const pleat__model *model, uint32_t index, uint32_t behind)
{
    pleat__stretch steady = model->iteration.steady;
    const pleat__request *request = &model->requests.items[steady.item + index];
    if (behind == PLEAT__NEVER && request->free_at < steady.end_at)
        return request->free_at - steady.begin_at;
    return behind <= request->alloc_at - steady.begin_at ? behind : PLEAT__NEVER;
}

uint8_t pleat__steady_class(const pleat__slot *slot)
{
    if (slot->free_at <= slot->alloc_at)
        return PLEAT__CLASS_CROSSING;
    return slot->alloc_phase == slot->free_phase ? PLEAT__CLASS_TRANSIENT : PLEAT__CLASS_SCOPED;
}

static pleat_result make_steady(pleat__model *model, pleat_plan *plan)
{
    const pleat__requests *requests = &model->requests;
    pleat__stretch stretch = model->iteration.steady;
    pleat__sequence *steady = &plan->steady;
    PLEAT_TRY(make_slots(plan, steady, stretch.items, stretch.end_at - stretch.begin_at));
    PLEAT_TRY(pleat__phases_make(requests, stretch.begin_at, stretch.end_at, plan, steady));
    model->longer =
        pleat__arena_alloc(model->arena, (stretch.items + 1ull) * sizeof *model->longer);
    if (model->longer == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the lives of %u requests",
                           stretch.items);
    bool like = follows_its_like(model);
    for (uint32_t i = 0; i < stretch.items; i++) {
        pleat__slot *slot = &steady->slots[i];
        uint32_t behind = longest_behind(model, i, like);
        *slot = slot_of(&requests->items[stretch.item + i], stretch.begin_at);
        slot->free_at = steady_free(model, i, behind);
        pleat__set_phases(steady, slot);
        bool same = is_same_everywhere(model, i, &slot->size);
        slot->small = slot->size < PLEAT__SMALL_BYTES;
        slot->class = same && slot->free_at != PLEAT__NEVER ? pleat__steady_class(slot)
                                                            : PLEAT__CLASS_DYNAMIC;
        bool longer = same && slot->free_at == PLEAT__NEVER && behind < steady->events;
        model->longer[i] = longer ? behind : PLEAT__NEVER;
        model->longer_bytes += longer ? pleat__rounded(slot->size) : 0;
    }
    return PLEAT_OK;
}

static void add_item(pleat__model *model, const pleat__slot *slot, uint32_t index, uint32_t begin,
                     uint32_t end)
{
    model->items[model->item_count] = (pleat__item){.size = pleat__rounded(slot->size),
                                                    .fixed = UINT64_MAX,
                                                    .begin = begin,
                                                    .end = end,
                                                    .begin_phase = slot->alloc_phase,
                                                    .end_phase = slot->free_phase,
                                                    .stream = slot->stream};
    model->slots[model->item_count++] = index;
}

static pleat_result make_items(pleat__model *model, const pleat_plan *plan)
{
    uint32_t most = model->persistents + plan->steady.slot_count;
    model->items = pleat__arena_calloc(model->arena, most, sizeof *model->items);
    model->slots = pleat__arena_calloc(model->arena, most, sizeof *model->slots);
    if (model->items == NULL || model->slots == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u items", most);
    for (uint32_t i = 0; i < plan->first.slot_count; i++)
        if (plan->first.slots[i].class == PLEAT__CLASS_PERSISTENT)
            add_item(model, &plan->first.slots[i], i, 0, plan->steady.events);
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC)
            add_item(model, slot, i, slot->alloc_at, slot->free_at);
    }
    uint64_t total = 0;
    for (uint32_t i = 0; i < model->item_count; i++)
        if (!pleat__add(total, model->items[i].size, &total) || total > UINT64_MAX / 4)
            return pleat__fail(PLEAT_E_INPUT, "the iteration's requests add up to 2^62 bytes");
    model->problem = (pleat__problem){.items = model->items,
                                      .count = model->item_count,
                                      .horizon = plan->steady.events,
                                      .circular = true};
    return PLEAT_OK;
}

static void free_model(pleat__model *model)
{
    pleat__iteration_free(&model->requests, &model->iteration);
    pleat__arena_free(model->arena, model->items);
    pleat__arena_free(model->arena, model->slots);
    pleat__arena_free(model->arena, model->longer);
    if (model->requests.arena != NULL)
        pleat__requests_free(&model->requests);
    *model = (pleat__model){0};
}

pleat_result pleat__model_make(const pleat_trace *trace, uint32_t device, pleat__arena *arena,
                               bool unrolls, pleat_plan *plan, pleat__model *out)
{
    *out = (pleat__model){.arena = arena};
    pleat_result result = pleat__requests_make(trace, device, arena, &out->requests);
    if (result == PLEAT_OK)
        result = pleat__iteration_find(&out->requests, &out->iteration);
    if (result == PLEAT_OK)
        result = copy_labels(trace, &out->requests, plan);
    if (result == PLEAT_OK)
        result = copy_streams(trace, plan);
    if (result == PLEAT_OK)
        result = make_first(out, plan);
    if (result == PLEAT_OK)
        result = make_steady(out, plan);
    if (result == PLEAT_OK)
        result = pleat__model_take_chances(out, plan);
    if (result == PLEAT_OK && unrolls)
        result = pleat__model_unroll(out, plan);
    if (result == PLEAT_OK)
        result = make_items(out, plan);
    if (result != PLEAT_OK)
        free_model(out);
    return result;
}
