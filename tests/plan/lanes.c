/*
 * lanes.c: a job with experts is planned from two iterations and its third is served from the
 * lanes, one whose sequence length changes from three and its fourth; lanes keep clear of the
 * slots; a best fit within a lane is what it says.
 *
 * The same is asked of recorded jobs where they are at hand: PLEAT_SHARED names the folder that has
 * traces/moe.pickle.gz.
 */
#include "arena.h"
#include "files.h"
#include "painting.h"

#include <plan/base/free_ranges.h>
#include <plan/lanes/lanes.h>
#include <plan/model/model.h>
#include <plan/planner.h>
#include <plan/trace/import.h>
#include <string.h>
#include <unistd.h>

#define LAYERS  9 /* so many that what each of them has is not rare (accidental_static.c) */
#define EXPERTS 12
#define TOKENS  24000u
#define ROW     2048u

/* --- a job with experts --- */

typedef struct recording {
    pleat_trace *trace;
    uint32_t label;
    uint32_t next;
    test_random random;
    uint64_t chance; /* tokens of experts 4 and, one more, 5 in every iteration; 0: drawn too */
} recording;

static void add_event(recording *job, pleat_event_kind kind, uint32_t request, uint64_t size)
{
    const pleat_trace_event event = {
        .kind = (uint8_t)kind, .label = job->label, .request = request, .size = size};
    assert_ok(pleat_trace_add(job->trace, &event));
}

static uint32_t alloc(recording *job, uint64_t size)
{
    add_event(job, PLEAT_EVENT_ALLOC, job->next, size);
    return job->next++;
}

static void release(recording *job, uint32_t request)
{
    add_event(job, PLEAT_EVENT_FREE_REQUESTED, request, 0);
    add_event(job, PLEAT_EVENT_FREE_COMPLETED, request, 0);
}

static void label(recording *job, int iteration, const char *phase)
{
    char text[64];
    snprintf(text, sizeof text, "iter=%d;phase=%s", iteration, phase);
    assert_ok(pleat_trace_add_label(job->trace, text, strlen(text), &job->label));
}

/* Tokens of each expert: drawn anew each time, their sum the same. */
static void route(recording *job, uint64_t *tokens)
{
    uint64_t left = TOKENS;
    for (int e = 0; e < EXPERTS; e++) {
        uint64_t fair = left / (unsigned)(EXPERTS - e);
        tokens[e] =
            e == EXPERTS - 1 ? left : fair * (80 + test_random_below(&job->random, 41)) / 100;
        left -= tokens[e];
    }
    for (uint64_t e = 4; job->chance != 0 && e < 6; e++)
        tokens[e] = job->chance + e - 4;
}

/* What every layer does besides its experts: enough of it that these are a window. */
static void dense_part(recording *job, uint32_t *kept)
{
    for (uint64_t i = 0; i < 40; i++)
        release(job, alloc(job, (1 + i % 7) << 20));
    *kept = alloc(job, 24 << 20);
}

static void iteration(recording *job, int number)
{
    uint32_t kept[LAYERS], experts[LAYERS][EXPERTS][2];
    label(job, number, "F");
    for (int l = 0; l < LAYERS; l++) {
        uint64_t tokens[EXPERTS];
        dense_part(job, &kept[l]);
        route(job, tokens);
        for (int e = 0; e < EXPERTS; e++) {
            experts[l][e][0] = alloc(job, tokens[e] * ROW);
            uint32_t temporary = alloc(job, tokens[e] * ROW * 2);
            experts[l][e][1] = alloc(job, tokens[e] * ROW / 2);
            release(job, temporary);
        }
    }
    label(job, number, "B");
    for (int l = LAYERS; l-- > 0;) {
        for (int e = EXPERTS; e-- > 0;) {
            release(job, experts[l][e][1]);
            release(job, experts[l][e][0]);
        }
        uint32_t gradient;
        dense_part(job, &gradient);
        release(job, kept[l]);
        release(job, gradient);
    }
}

static pleat_trace *expert_job(uint64_t seed, int iterations)
{
    recording job = {.random = {seed}};
    uint16_t stream;
    assert_ok(pleat_trace_new(&job.trace));
    assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
    uint32_t weights = alloc(&job, 200 << 20);
    for (int i = 0; i < iterations; i++)
        iteration(&job, i);
    label(&job, iterations, "end");
    release(&job, weights);
    return job.trace;
}

/* --- the third iteration --- */

static pleat_trace *beginning_of(const pleat_trace *whole, uint32_t device, uint32_t count)
{
    pleat_trace *trace;
    assert_ok(pleat__trace_beginning(whole, device, count, &trace));
    return trace;
}

typedef struct holding {
    uint64_t slots; /* bytes that have the size of their static slot */
    uint64_t lane;  /* bytes that went to their own lane */
    uint64_t other; /* ... to another that is live */
    uint64_t missed;
} holding;

typedef struct serving {
    const pleat_plan *plan;
    const pleat__requests *requests;
    pleat__gaps *lanes;
    uint32_t *slot_of; /* request -> steady slot */
    uint32_t *lane_of;
    uint64_t *place_of;
    uint32_t now; /* position in the plan's iteration */
    holding held;
} serving;

static bool lane_is_live(const pleat__lane *lane, uint32_t now)
{
    bool after = now >= lane->begin_at, before = now < lane->end_at;
    return lane->end_at <= lane->begin_at ? after || before : after && before;
}

/* The tightest range of the lane beats what was found so far. */
static void look_in(const serving *s, uint32_t lane, uint64_t size, uint64_t *best, uint32_t *found,
                    uint64_t *place)
{
    pleat__gap_at at;
    for (bool more = pleat__gaps_from(&s->lanes[lane], 0, &at); more;
         more = pleat__gaps_next(&s->lanes[lane], &at)) {
        pleat__range range = pleat__gaps_get(&s->lanes[lane], at);
        if (pleat__range_size(range) >= size && pleat__range_size(range) < *best) {
            *best = pleat__range_size(range);
            *found = lane;
            *place = range.begin;
        }
    }
}

static void serve_alloc(serving *s, uint32_t request)
{
    uint64_t size = (s->requests->items[request].size + 511) / 512 * 512, best = UINT64_MAX;
    const pleat__slot *slot = NULL;
    if (s->slot_of[request] != UINT32_MAX)
        slot = &s->plan->steady.slots[s->slot_of[request]];
    if (slot != NULL)
        s->now = slot->alloc_at;
    if (size == 0)
        return;
    if (slot != NULL && slot->class != PLEAT__CLASS_DYNAMIC &&
        (slot->size + 511) / 512 * 512 == size) {
        s->held.slots += size;
        return;
    }
    uint32_t lane = UINT32_MAX;
    uint64_t place = 0;
    if (slot != NULL && slot->lane != PLEAT__NO_LANE)
        look_in(s, slot->lane, size, &best, &lane, &place);
    bool own = lane != UINT32_MAX;
    for (uint32_t l = 0; !own && l < s->plan->lane_count; l++)
        if (lane_is_live(&s->plan->lanes[l], s->now))
            look_in(s, l, size, &best, &lane, &place);
    *(own ? &s->held.lane : lane != UINT32_MAX ? &s->held.other : &s->held.missed) += size;
    if (lane == UINT32_MAX)
        return;
    assert_ok(pleat__gaps_take(&s->lanes[lane], (pleat__range){place, place + size}));
    s->lane_of[request] = lane;
    s->place_of[request] = place;
}

static void serve_free(serving *s, uint32_t request)
{
    uint64_t size = (s->requests->items[request].size + 511) / 512 * 512;
    uint32_t lane = s->lane_of[request];
    if (lane == UINT32_MAX)
        return;
    uint64_t place = s->place_of[request];
    assert_ok(pleat__gaps_give(&s->lanes[lane], (pleat__range){place, place + size}));
    s->lane_of[request] = UINT32_MAX;
}

static pleat__stretch stretch_between(const pleat__requests *requests, uint32_t begin, uint32_t end)
{
    pleat__stretch stretch = {.begin_at = begin, .end_at = end};
    while (requests->items[stretch.item].alloc_at < begin)
        stretch.item++;
    while (stretch.item + stretch.items < requests->count &&
           requests->items[stretch.item + stretch.items].alloc_at < end)
        stretch.items++;
    return stretch;
}

/* Serves iteration `number` of the whole trace from a plan made of what came before it. */
static holding serve(const pleat_trace *whole, const pleat_plan *plan, uint32_t number)
{
    pleat__requests requests;
    assert_ok(pleat__requests_make(whole, plan->device, arena, &requests));
    serving s = {.plan = plan, .requests = &requests};
    uint32_t steady = plan->steady_request;
    pleat__stretch now =
        stretch_between(&requests, requests.marks[number], requests.marks[number + 1]);
    pleat__stretch planned = {.item = steady, .items = plan->steady.slot_count};
    planned.begin_at = requests.items[steady].alloc_at - plan->steady.slots[0].alloc_at;
    planned.end_at = planned.begin_at + plan->steady.events;
    uint32_t *pairs = calloc(planned.items, sizeof *pairs);
    pleat__align(&requests, planned, now, pairs);
    s.slot_of = malloc(requests.count * sizeof *s.slot_of);
    s.lane_of = malloc(requests.count * sizeof *s.lane_of);
    s.place_of = calloc(requests.count, sizeof *s.place_of);
    memset(s.slot_of, 0xff, requests.count * sizeof *s.slot_of);
    memset(s.lane_of, 0xff, requests.count * sizeof *s.lane_of);
    for (uint32_t i = 0; i < planned.items; i++)
        if (pairs[i] != PLEAT__NEVER)
            s.slot_of[pairs[i]] = i;
    s.lanes = calloc(plan->lane_count, sizeof *s.lanes);
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        pleat__gaps_init(&s.lanes[l], arena);
        assert_ok(pleat__gaps_give(&s.lanes[l], (pleat__range){0, plan->lanes[l].bytes}));
    }
    for (uint32_t at = now.begin_at; at < now.end_at; at++) {
        if (requests.events[at] % 2 == 0)
            serve_alloc(&s, requests.events[at] / 2);
        else
            serve_free(&s, requests.events[at] / 2);
    }
    for (uint32_t l = 0; l < plan->lane_count; l++)
        pleat__gaps_done(&s.lanes[l]);
    free(s.lanes);
    free(s.slot_of);
    free(s.lane_of);
    free(s.place_of);
    free(pairs);
    pleat__requests_free(&requests);
    return s.held;
}

static double share(holding held)
{
    uint64_t lanes = held.lane + held.other;
    print_message("slots %.2f GiB; lanes hold %.2f GiB (%.2f another's), %.1f MiB missed\n",
                  (double)held.slots / (1 << 30), (double)lanes / (1 << 30),
                  (double)held.other / (1 << 30), (double)held.missed / (1 << 20));
    return (double)lanes / (double)(lanes + held.missed);
}

/* --- what a plan with lanes must keep --- */

static bool live_at(const pleat__sequence *steady, uint32_t begin, uint32_t end, uint32_t at)
{
    (void)steady;
    return end <= begin ? at >= begin || at < end : at >= begin && at < end;
}

/* No lane shares a byte of a chunk with a slot or another lane that is live with it. */
static void assert_lanes_apart(const pleat_plan *plan)
{
    uint32_t *table, marks = 0, *stamp;
    assert_ok(pleat__plan_page_table(plan, arena, &table));
    uint64_t granules = plan->physical_bytes / 512, chunk = plan->chunk_bytes;
    stamp = calloc(granules, sizeof *stamp);
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        const pleat__lane *lane = &plan->lanes[l];
        marks++;
        for (uint64_t at = lane->place; at < lane->place + lane->bytes; at += 512) {
            assert_true(table[at / chunk] != UINT32_MAX);
            uint64_t granule = (table[at / chunk] * chunk + at % chunk) / 512;
            assert_true(stamp[granule] != marks); /* itself */
            stamp[granule] = marks;
        }
        for (uint32_t i = 0; i < plan->steady.slot_count + plan->lane_count; i++) {
            uint32_t other = i - plan->steady.slot_count;
            bool is_lane = i >= plan->steady.slot_count;
            const pleat__slot *slot = is_lane ? NULL : &plan->steady.slots[i];
            if (is_lane ? other == l : slot->place == PLEAT__NOWHERE || slot->size == 0)
                continue;
            uint64_t place = is_lane ? plan->lanes[other].place : slot->place;
            uint64_t size = is_lane ? plan->lanes[other].bytes : slot->size;
            uint32_t begin = is_lane ? plan->lanes[other].begin_at : slot->alloc_at;
            uint32_t end = is_lane ? plan->lanes[other].end_at : slot->free_at;
            if (!live_at(&plan->steady, lane->begin_at, lane->end_at, begin) &&
                !live_at(&plan->steady, begin, end, lane->begin_at))
                continue;
            for (uint64_t at = place; at < place + size; at += 512)
                if (stamp[(table[at / chunk] * chunk + at % chunk) / 512] == marks)
                    fail_msg("lane %u and %s %u share bytes", l, is_lane ? "lane" : "slot",
                             is_lane ? other : i);
        }
    }
    free(stamp);
    pleat__arena_free(arena, table);
}

/* Every dynamic slot that is freed has a lane that lives at least as long. */
static void assert_slots_in_lanes(const pleat_plan *plan)
{
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class != PLEAT__CLASS_DYNAMIC) {
            assert_int_equal(slot->lane, PLEAT__NO_LANE);
            continue;
        }
        assert_true(slot->lane < plan->lane_count);
        const pleat__lane *lane = &plan->lanes[slot->lane];
        assert_true(live_at(&plan->steady, lane->begin_at, lane->end_at, slot->alloc_at));
        assert_true(live_at(&plan->steady, lane->begin_at, lane->end_at, slot->free_at - 1));
        assert_true(lane->bytes >= slot->size);
    }
}

/* From a lane's first request to its last free in `first`, no slot there lies in it. */
static void assert_first_keeps_clear(const pleat_plan *plan)
{
    uint32_t in_lanes = 0;
    for (uint32_t l = 0; l < plan->lane_count; l++) {
        const pleat__lane *lane = &plan->lanes[l];
        uint32_t begin = UINT32_MAX, end = 0;
        for (uint32_t i = 0; i < plan->first.slot_count; i++) {
            const pleat__slot *slot = &plan->first.slots[i];
            if (slot->class != PLEAT__CLASS_DYNAMIC || slot->lane != l)
                continue;
            in_lanes++;
            begin = slot->alloc_at < begin ? slot->alloc_at : begin;
            end = slot->free_at > end ? slot->free_at : end;
        }
        for (uint32_t i = 0; i < plan->first.slot_count && begin < end; i++) {
            const pleat__slot *slot = &plan->first.slots[i];
            if (slot->place != PLEAT__NOWHERE && slot->alloc_at < end && slot->free_at > begin)
                assert_true(slot->place >= lane->place + lane->bytes ||
                            slot->place + slot->size <= lane->place);
        }
    }
    assert_true(in_lanes > 0);
}

static pleat_plan *plan_of(const pleat_trace *trace, pleat__plan_report *report)
{
    const pleat_plan_options options = {.size = sizeof options, .no_recipe = 1};
    pleat_plan *plan;
    assert_ok(pleat__plan_make(trace, &options, NULL, report, &plan));
    return plan;
}

static void lanes_hold_an_iteration_that_was_not_profiled(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        pleat_trace *whole = expert_job(seed, 3), *two = beginning_of(whole, 0, 2);
        pleat__plan_report report;
        pleat_plan *plan = plan_of(two, &report);
        assert_true(plan->lane_count > 0);
        assert_slots_in_lanes(plan);
        assert_lanes_apart(plan);
        /* The experts' sums repeat, so lanes cost next to nothing. */
        assert_true((double)plan->physical_bytes <= 1.05 * (double)plan->max_live_bytes);
        holding held = serve(whole, plan, 2);
        assert_true(held.lane > held.slots / 100);
        assert_true(share(held) >= 0.95);
        pleat_plan_free(plan);
        pleat_trace_free(two);
        pleat_trace_free(whole);
    }
}

/* An optimizer's state, allocated between the first iteration and the second, makes the first one
 * no steady one; its requests keep clear of the lanes that its dynamic ones go to. */
static void lanes_are_kept_clear_before_the_steady_iterations(void **state)
{
    (void)state;
    recording job = {.random = {21}};
    uint16_t stream;
    assert_ok(pleat_trace_new(&job.trace));
    assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
    uint32_t weights = alloc(&job, 200 << 20);
    iteration(&job, 0);
    uint32_t optimizer = alloc(&job, 400 << 20);
    iteration(&job, 1);
    iteration(&job, 2);
    label(&job, 3, "end");
    release(&job, weights);
    release(&job, optimizer);
    pleat__plan_report report;
    pleat_plan *plan = plan_of(job.trace, &report);
    assert_true(plan->lane_count > 0);
    assert_first_keeps_clear(plan);
    pleat_plan_free(plan);
    pleat_trace_free(job.trace);
}

static uint32_t count_dynamic(pleat_trace *trace)
{
    pleat__plan_report report;
    pleat_plan *plan = plan_of(trace, &report);
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++)
        count += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC;
    pleat_plan_free(plan);
    return count;
}

/* Two experts have as many tokens in both iterations that are planned from; in a third they have
 * not, so they are dynamic as the others are. Once only where they had about as many as others. */
static void lanes_take_what_repeats_by_chance(void **state)
{
    (void)state;
    static const uint64_t tokens[] = {0, 1721, 342};
    for (size_t k = 0; k < sizeof tokens / sizeof *tokens; k++) {
        recording job = {.random = {11}, .chance = tokens[k]};
        uint16_t stream;
        assert_ok(pleat_trace_new(&job.trace));
        assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
        uint32_t weights = alloc(&job, 200 << 20);
        for (int i = 0; i < 2; i++)
            iteration(&job, i);
        label(&job, 2, "end");
        release(&job, weights);
        assert_int_equal(count_dynamic(job.trace), LAYERS * EXPERTS * 3);
        pleat_trace_free(job.trace);
    }
}

static void lanes_none_where_everything_repeats(void **state)
{
    (void)state;
    recording job = {.random = {7}};
    uint16_t stream;
    assert_ok(pleat_trace_new(&job.trace));
    assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
    uint32_t weights = alloc(&job, 200 << 20);
    for (int i = 0; i < 3; i++) {
        job.random = (test_random){7};
        iteration(&job, i);
    }
    label(&job, 3, "end");
    release(&job, weights);
    pleat__plan_report report;
    pleat_plan *plan = plan_of(job.trace, &report);
    assert_int_equal(plan->lane_count, 0);
    holding held = serve(job.trace, plan, 2);
    assert_int_equal(held.lane + held.other + held.missed, 0);
    assert_true(held.slots > 0);
    pleat_plan_free(plan);
    pleat_trace_free(job.trace);
}

/* One number, a sequence's length, changes every size. */
static void long_iteration(recording *job, int number, uint64_t length)
{
    uint32_t kept[LAYERS][2];
    label(job, number, "F");
    for (uint64_t l = 0; l < LAYERS; l++) {
        kept[l][0] = alloc(job, length * (9000 + 700 * l));
        uint32_t temporary = alloc(job, length * 21000);
        kept[l][1] = alloc(job, length * 4100);
        release(job, temporary);
    }
    uint32_t logits = alloc(job, length * 64000);
    label(job, number, "B");
    for (uint64_t l = LAYERS; l-- > 0;) {
        uint32_t gradient = alloc(job, length * 13000);
        release(job, kept[l][1]);
        release(job, kept[l][0]);
        release(job, gradient);
    }
    release(job, logits);
}

static void lanes_of_one_request_where_all_grow_together(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {1000, 1250, 1400, 1350};
    recording job = {.random = {1}};
    uint16_t stream;
    assert_ok(pleat_trace_new(&job.trace));
    assert_ok(pleat_trace_add_stream(job.trace, 0, &stream));
    uint32_t weights = alloc(&job, 300 << 20);
    for (int i = 0; i < 4; i++)
        long_iteration(&job, i, lengths[i]);
    label(&job, 4, "end");
    release(&job, weights);
    pleat_trace *three = beginning_of(job.trace, 0, 3);
    pleat__plan_report report;
    pleat_plan *plan = plan_of(three, &report);
    assert_int_equal(plan->lane_count, plan->steady.slot_count);
    assert_slots_in_lanes(plan);
    assert_lanes_apart(plan);
    /* A third of the spread of lengths is the margin; it is the only thing above max-live. */
    assert_true((double)plan->physical_bytes <= 1.1 * (double)plan->max_live_bytes);
    holding held = serve(job.trace, plan, 3);
    assert_int_equal(held.missed, 0);
    assert_int_equal(held.other, 0);
    assert_true(held.lane > 0);
    pleat_plan_free(plan);
    pleat_trace_free(three);
    pleat_trace_free(job.trace);
}

/* --- the reusable space of a contiguous plan --- */

static pleat_plan *contiguous_plan(void)
{
    const pleat_plan_options options = {
        .size = sizeof options, .algorithm = "stweaver", .no_fold = 1};
    pleat_trace *trace = expert_job(31, 3);
    pleat_plan *plan;
    assert_ok(pleat_plan_make(trace, &options, &plan));
    pleat_trace_free(trace);
    return plan;
}

/* Of a job with experts some stretches hold any of a window's requests. */
static void reuse_holds_requests_of_a_job(void **state)
{
    (void)state;
    pleat_plan *plan = contiguous_plan();
    uint32_t windows = 0, roomy = 0;
    assert_true(plan->reusable_count > 0);
    for (uint32_t r = 0; r < plan->reusable_count; r++) {
        const pleat__reusable *row = &plan->reusable[r];
        uint32_t from, until;
        windows += r == 0 || plan->reusable[r - 1].window != row->window;
        test_find_span(plan, row->window, &from, &until);
        assert_true(from < until);
        for (uint64_t at = row->place; at < row->place + row->bytes; at += 512)
            if (at == row->place || (at - row->place) % (64 * 512) == 0)
                assert_false(test_is_taken(plan, at, from, until));
        for (uint32_t i = 0; i < plan->steady.slot_count; i++)
            roomy += plan->steady.slots[i].class == PLEAT__CLASS_DYNAMIC &&
                     plan->steady.slots[i].window == row->window &&
                     plan->steady.slots[i].size <= row->bytes;
    }
    assert_true(windows > 1 && roomy > 0);
    pleat_plan_free(plan);
}

static void reuse_is_kept_in_the_file(void **state)
{
    (void)state;
    const char *path = test_path("reuse");
    pleat_plan *plan = contiguous_plan(), *read;
    assert_ok(pleat_plan_write(plan, path));
    assert_ok(pleat_plan_read(path, &read));
    assert_int_equal(read->reusable_count, plan->reusable_count);
    for (uint32_t i = 0; i < plan->reusable_count; i++) {
        assert_int_equal(read->reusable[i].window, plan->reusable[i].window);
        assert_int_equal(read->reusable[i].place, plan->reusable[i].place);
        assert_int_equal(read->reusable[i].bytes, plan->reusable[i].bytes);
    }
    pleat_plan_free(read);
    pleat_plan_free(plan);
    assert_int_equal(unlink(path), 0);
}

/* What is live at once in a trace is bounded, but another iteration's sizes may come together. */
static void lanes_that_overflow_are_refused(void **state)
{
    (void)state;
    enum { COUNT = 1 << 15 };
    pleat_plan *plan;
    pleat__item *items;
    assert_ok(pleat__plan_new(&plan));
    uint64_t *sizes = pleat__arena_alloc(plan->arena, COUNT * sizeof *sizes);
    plan->steady.slots = pleat__arena_calloc(plan->arena, COUNT, sizeof *plan->steady.slots);
    assert_true(sizes != NULL && plan->steady.slots != NULL);
    plan->steady.events = 2 * COUNT;
    plan->steady.slot_count = COUNT;
    for (uint32_t i = 0; i < COUNT; i++) {
        plan->steady.slots[i] = (pleat__slot){.size = 512,
                                              .place = PLEAT__NOWHERE,
                                              .alloc_at = i,
                                              .free_at = COUNT + i,
                                              .class = PLEAT__CLASS_DYNAMIC,
                                              .lane = PLEAT__NO_LANE};
        sizes[i] = PLEAT__SIZE_MOST;
    }
    assert_result(pleat__lanes_make(plan, sizes, 1, arena, &items), PLEAT_E_INPUT);
    assert_null(items);
    pleat_plan_free(plan);
}

static void lane_fit_is_a_best_fit(void **state)
{
    (void)state;
    /* 0..4 and 8..9 are free when the third comes; it takes the tighter one. */
    const pleat__lane_request requests[] = {{4 * 512, 0, 3}, {4 * 512, 1, 9}, {1 * 512, 2, 4},
                                            {1 * 512, 2, 9}, {1 * 512, 5, 9}, {4 * 512, 6, 9}};
    uint64_t height;
    assert_ok(pleat__lane_fit(requests, 6, arena, &height));
    assert_int_equal(height, 10 * 512);
    /* One that wraps around is there from the beginning. */
    const pleat__lane_request wrap[] = {{2 * 512, 8, 2}, {2 * 512, 1, 3}, {3 * 512, 4, 5}};
    assert_ok(pleat__lane_fit(wrap, 3, arena, &height));
    assert_int_equal(height, 4 * 512);
}

static void lanes_hold_recorded_jobs(void **state)
{
    (void)state;
    const char *shared = getenv("PLEAT_SHARED");
    static const char *const names[] = {"moe", "moe-recompute"};
    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/traces/%s.pickle.gz",
                 shared != NULL ? shared : PLEAT_SHARED_FOLDER, names[i]);
        FILE *file = fopen(path, "rb");
        if (file == NULL)
            skip();
        fclose(file);
        pleat_trace *whole;
        assert_ok(pleat__trace_import(path, PLEAT__ANY_DEVICE, NULL, &whole));
        pleat_trace *two = beginning_of(whole, 0, 2);
        pleat__plan_report report;
        pleat_plan *plan = plan_of(two, &report);
        assert_slots_in_lanes(plan);
        print_message("%s: ratio %.5f, %u lanes; ", names[i],
                      (double)plan->physical_bytes / (double)plan->max_live_bytes,
                      plan->lane_count);
        assert_true((double)plan->physical_bytes <= 1.02 * (double)plan->max_live_bytes);
        assert_true(share(serve(whole, plan, 2)) >= 0.95);
        pleat_plan_free(plan);
        pleat_trace_free(two);
        pleat_trace_free(whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_that_overflow_are_refused),
        cmocka_unit_test(lane_fit_is_a_best_fit),
        cmocka_unit_test(lanes_hold_an_iteration_that_was_not_profiled),
        cmocka_unit_test(lanes_are_kept_clear_before_the_steady_iterations),
        cmocka_unit_test(lanes_take_what_repeats_by_chance),
        cmocka_unit_test(lanes_of_one_request_where_all_grow_together),
        cmocka_unit_test(lanes_none_where_everything_repeats),
        cmocka_unit_test(lanes_hold_recorded_jobs),
        cmocka_unit_test(reuse_holds_requests_of_a_job),
        cmocka_unit_test(reuse_is_kept_in_the_file),
    };
    return cmocka_run_group_tests_name("lanes", tests, open_arena, close_arena);
}
