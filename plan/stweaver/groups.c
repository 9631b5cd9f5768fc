/*
 * groups.c: HomoPhase groups and their fusion (STWeaver, section 5.1, "HomoPhase Group
 * Planning"). Requests that begin in the same phase and end in the same phase form a group, and lie
 * one behind the other in a block. Groups of which one ends in the phase in which the other begins
 * are fused: the smaller one's requests go into the larger one's block where its requests are not
 * live, from the lowest address on, the earliest first; the fusion stands when its time-memory
 * product is better than the two groups' average weighted by their boxes.
 *
 * DEPARTURES  Requests that begin and end in one phase are no group: hardly any two of them are
 *             live together, so a block that holds them side by side would be nearly all bubble.
 *             A request of the smaller group that fits nowhere goes on top (the paper does not say
 *             where). Fusions are tried largest group first and only as long as WORK lasts.
 */
#include <plan/stweaver/stweaver.h>

#include <internal/error.h>
#include <plan/base/sort.h>
#include <string.h>

#define WORK 20000000u /* steps of fusion, about 0.2 s */

static uint64_t product_of(const pleat__span *span)
{
    return span->size / 512 * (span->end - span->begin);
}

static double box_of(const pleat__group *group)
{
    return (double)(group->size / 512) * (double)(group->end - group->begin);
}

double pleat__group_product(const pleat__group *group)
{
    double box = box_of(group);
    return box > 0 ? (double)group->product / box : 1;
}

static const pleat__item *item_of(const pleat__grouping *grouping, uint32_t span)
{
    return &grouping->strip->problem->items[grouping->strip->items[span]];
}

static bool may_group(const pleat__grouping *grouping, uint32_t span)
{
    const pleat__item *item = item_of(grouping, span);
    return !pleat__span_wraps(&grouping->strip->spans[span]) && item->begin < item->end &&
           item->begin_phase != item->end_phase;
}

/* Adds a member on top of the group's block. */
static void stack(pleat__grouping *grouping, pleat__group *group, uint32_t span)
{
    const pleat__span *life = &grouping->strip->spans[span];
    grouping->members[grouping->member_count++] = (pleat__member){group->size, span};
    group->size += life->size;
    group->product += product_of(life);
    group->begin = group->count == 0 || life->begin < group->begin ? life->begin : group->begin;
    group->end = group->count == 0 || life->end > group->end ? life->end : group->end;
    group->count++;
}

/* An empty group for the pair of phases in a key. */
static pleat_result add_group(pleat__grouping *grouping, size_t *capacity, uint64_t key)
{
    PLEAT_TRY(pleat__arena_grow(grouping->arena, &grouping->groups, capacity, grouping->group_count,
                                sizeof *grouping->groups));
    grouping->groups[grouping->group_count++] = (pleat__group){.first = grouping->member_count,
                                                               .begin_phase = (uint16_t)(key >> 48),
                                                               .end_phase = (uint16_t)(key >> 32)};
    return PLEAT_OK;
}

/* One group for each pair of phases, by pairs; members by birth. */
static pleat_result form_groups(pleat__grouping *grouping)
{
    const pleat__strip *strip = grouping->strip;
    uint64_t *keys = pleat__arena_alloc(grouping->arena, 2 * (uint64_t)strip->count * sizeof *keys);
    if (keys == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to group %u requests", strip->count);
    uint32_t count = 0;
    size_t capacity = 0;
    pleat_result result = PLEAT_OK;
    for (uint32_t i = 0; i < strip->count; i++)
        if (may_group(grouping, i))
            keys[count++] = (uint64_t)item_of(grouping, i)->begin_phase << 48 |
                            (uint64_t)item_of(grouping, i)->end_phase << 32 | i;
    pleat__sort_keys(keys, keys + strip->count, count);
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || keys[i] >> 32 != keys[i - 1] >> 32)
            result = add_group(grouping, &capacity, keys[i]);
        if (result != PLEAT_OK)
            break;
        stack(grouping, &grouping->groups[grouping->group_count - 1], (uint32_t)keys[i]);
    }
    pleat__arena_free(grouping->arena, keys);
    return result;
}

/* A fusion being tried: the larger group's members, then those of the smaller that found a place.
 */
struct fusion {
    pleat__member *members; /* room for both */
    bool *placed;           /* by member of the smaller */
    pleat__group group;
};

static bool in_the_way(pleat__grouping *grouping, const struct fusion *fusion,
                       const pleat__span *span, uint64_t at)
{
    const pleat__span *spans = grouping->strip->spans;
    grouping->work += fusion->group.count / 4 + 1;
    for (uint32_t i = 0; i < fusion->group.count; i++) {
        const pleat__member *member = &fusion->members[i];
        const pleat__span *other = &spans[member->span];
        if (member->at < at + span->size && at < member->at + other->size &&
            pleat__spans_meet(span, other))
            return true;
    }
    return false;
}

static void join(const pleat__grouping *grouping, struct fusion *fusion, uint32_t span, uint64_t at)
{
    const pleat__span *life = &grouping->strip->spans[span];
    pleat__group *group = &fusion->group;
    fusion->members[group->count++] = (pleat__member){at, span};
    group->product += product_of(life);
    group->size = at + life->size > group->size ? at + life->size : group->size;
    group->begin = life->begin < group->begin ? life->begin : group->begin;
    group->end = life->end > group->end ? life->end : group->end;
}

/* Walks the larger group's addresses upward; at each the earliest request that fits goes in. */
static void insert_smaller(pleat__grouping *grouping, struct fusion *fusion,
                           const pleat__group *smaller)
{
    const pleat__span *spans = grouping->strip->spans;
    const pleat__member *guests = &grouping->members[smaller->first];
    uint64_t at = 0, top = fusion->group.size;
    uint32_t hosts = fusion->group.count, left = smaller->count;
    while (left > 0 && at < top && grouping->work < WORK) {
        uint32_t i = 0;
        while (i < smaller->count && (fusion->placed[i] || at + spans[guests[i].span].size > top ||
                                      in_the_way(grouping, fusion, &spans[guests[i].span], at)))
            i++;
        if (i < smaller->count) {
            fusion->placed[i] = true;
            join(grouping, fusion, guests[i].span, at);
            at += spans[guests[i].span].size;
            left--;
            continue;
        }
        uint64_t next = top;
        for (uint32_t k = 0; k < hosts; k++)
            if (fusion->members[k].at > at && fusion->members[k].at < next)
                next = fusion->members[k].at;
        at = next;
    }
    for (uint32_t i = 0; i < smaller->count; i++)
        if (!fusion->placed[i])
            join(grouping, fusion, guests[i].span, fusion->group.size);
}

static bool is_better(const struct fusion *fusion, const pleat__group *a, const pleat__group *b)
{
    double boxes = box_of(a) + box_of(b);
    double average = boxes > 0 ? ((double)a->product + (double)b->product) / boxes : 1;
    return pleat__group_product(&fusion->group) > average;
}

/* Fuses b into a when that is better; b is then empty. */
static pleat_result try_fusion(pleat__grouping *grouping, pleat__group *a, pleat__group *b)
{
    const pleat__group *larger = a->size >= b->size ? a : b, *smaller = larger == a ? b : a;
    uint32_t count = a->count + b->count;
    struct fusion fusion = {.group = *larger};
    fusion.members = pleat__arena_alloc(grouping->arena, count * sizeof *fusion.members);
    fusion.placed = pleat__arena_calloc(grouping->arena, smaller->count, sizeof *fusion.placed);
    pleat_result result = PLEAT_OK;
    if (fusion.members == NULL || fusion.placed == NULL) {
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to fuse %u requests", count);
    } else {
        memcpy(fusion.members, &grouping->members[larger->first],
               larger->count * sizeof *fusion.members);
        insert_smaller(grouping, &fusion, smaller);
        if (is_better(&fusion, a, b)) {
            result = pleat__arena_reserve(
                grouping->arena, &grouping->members, &grouping->member_capacity,
                (size_t)grouping->member_count + count, sizeof *grouping->members);
            if (result == PLEAT_OK) {
                fusion.group.first = grouping->member_count;
                fusion.group.begin_phase = a->begin_phase;
                fusion.group.end_phase = b->end_phase;
                memcpy(&grouping->members[grouping->member_count], fusion.members,
                       count * sizeof *fusion.members);
                grouping->member_count += count;
                *a = fusion.group;
                b->count = 0;
            }
        }
    }
    pleat__arena_free(grouping->arena, fusion.members);
    pleat__arena_free(grouping->arena, fusion.placed);
    return result;
}

/* Each group, largest first, takes in those that begin in the phase in which it ends. */
static pleat_result fuse_groups(pleat__grouping *grouping)
{
    uint32_t count = grouping->group_count;
    uint64_t *keys = pleat__arena_alloc(grouping->arena, count * sizeof *keys);
    uint32_t *order = pleat__arena_alloc(grouping->arena, 2 * (uint64_t)count * sizeof *order);
    pleat_result result = PLEAT_OK;
    if (keys == NULL || order == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u groups", count);
    for (uint32_t i = 0; i < count && result == PLEAT_OK; i++) {
        keys[i] = ~grouping->groups[i].size;
        order[i] = i;
    }
    if (result == PLEAT_OK)
        pleat__sort_by_key(order, order + count, count, keys);
    for (uint32_t i = 0; i < count && result == PLEAT_OK; i++) {
        pleat__group *group = &grouping->groups[order[i]];
        for (uint32_t k = 0; k < count && result == PLEAT_OK && grouping->work < WORK; k++) {
            pleat__group *other = &grouping->groups[order[k]];
            if (k != i && group->count > 0 && other->count > 0 &&
                group->end_phase == other->begin_phase)
                result = try_fusion(grouping, group, other);
        }
    }
    pleat__arena_free(grouping->arena, keys);
    pleat__arena_free(grouping->arena, order);
    return result;
}

pleat_result pleat__grouping_make(const pleat__strip *strip, pleat__grouping *out)
{
    *out = (pleat__grouping){.arena = strip->arena, .strip = strip};
    out->members = pleat__arena_alloc(strip->arena, strip->count * sizeof *out->members);
    out->member_capacity = strip->count;
    pleat_result result = PLEAT_OK;
    if (out->members == NULL)
        result =
            pleat__fail(PLEAT_E_NO_MEMORY, "no host memory to group %u requests", strip->count);
    if (result == PLEAT_OK)
        result = form_groups(out);
    if (result == PLEAT_OK)
        result = fuse_groups(out);
    if (result != PLEAT_OK)
        pleat__grouping_free(out);
    return result;
}

void pleat__grouping_free(pleat__grouping *grouping)
{
    if (grouping->arena == NULL)
        return;
    pleat__arena_free(grouping->arena, grouping->groups);
    pleat__arena_free(grouping->arena, grouping->members);
    *grouping = (pleat__grouping){0};
}
