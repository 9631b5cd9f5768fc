/*
 * footprint.c: see footprint.h.
 */
#include <tools/analysis/footprint.h>
#include <tools/analysis/plan_json.h>
#include <tools/analysis/sites.h>
#include <tools/cli.h>

#include <internal/error.h>
#include <internal/utf8.h>

#include <stdlib.h>
#include <string.h>

bool footprint_has_phases(const pleat_plan *plan)
{
    return plan->label_count != 3 || strcmp(plan->labels[1], "rise") != 0 ||
           strcmp(plan->labels[2], "fall") != 0;
}

bool footprint_is_within(int class)
{
    return class == PLEAT__CLASS_TRANSIENT || class == PLEAT__CLASS_SCOPED;
}

const char *footprint_class_name(bool has_phases, int class)
{
    static const char *const names[PLEAT__CLASSES] = {"transient", "scoped", "crossing",
                                                      "persistent", "dynamic"};
    return !has_phases && footprint_is_within(class) ? "within" : names[class];
}

int footprint_classes(bool has_phases, const uint64_t *bytes, const uint64_t *requests,
                      footprint_class *all)
{
    int count = 0;
    for (int i = 0; i < PLEAT__CLASSES; i++) {
        const char *name = footprint_class_name(has_phases, i);
        if (count == 0 || strcmp(all[count - 1].name, name) != 0)
            all[count++] = (footprint_class){.name = name};
        all[count - 1].bytes += bytes[i];
        all[count - 1].requests += requests != NULL ? requests[i] : 0;
    }
    return count;
}

/* ---- curves ---- */

static pleat_result make_curve(const footprint *f, footprint_curve *curve)
{
    curve->low = pleat__arena_calloc(f->arena, f->buckets, sizeof *curve->low);
    curve->high = pleat__arena_calloc(f->arena, f->buckets, sizeof *curve->high);
    if (curve->low == NULL || curve->high == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a curve");
    for (uint32_t i = 0; i < f->buckets; i++)
        curve->low[i] = -1; /* nothing seen */
    return PLEAT_OK;
}

static void add_point(const footprint *f, footprint_curve *curve, uint32_t position, uint64_t bytes)
{
    uint32_t bucket = (uint32_t)((uint64_t)position * f->buckets / f->requests.event_count);
    float value = (float)bytes;
    if (curve->low[bucket] < 0 || value < curve->low[bucket])
        curve->low[bucket] = value;
    if (value > curve->high[bucket])
        curve->high[bucket] = value;
}

/* What is live behind the event at a position, of what was before it: by the recording. An
 * allocator that gets a free before other streams are done with the memory cannot use it yet. */
static uint64_t live_behind(const footprint *f, uint32_t position, uint64_t live)
{
    uint32_t event = f->requests.events[position];
    uint64_t size = pleat__rounded(f->requests.items[event / 2].size);
    return event & 1 ? live - size : live + size;
}

/* ---- groups ---- */

static int compare_kinds(const void *left, const void *right)
{
    const footprint_group *a = left, *b = right;
    if (a->size != b->size)
        return a->size < b->size ? 1 : -1;
    if (a->site != b->site)
        return a->site < b->site ? -1 : 1;
    return (a->phase > b->phase) - (a->phase < b->phase);
}

static int compare_bytes(const void *left, const void *right)
{
    const footprint_group *a = left, *b = right;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? 1 : -1;
    return compare_kinds(left, right);
}

static uint32_t merge_groups(footprint_group *groups, uint32_t count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (kept > 0 && compare_kinds(&groups[kept - 1], &groups[i]) == 0) {
            groups[kept - 1].bytes += groups[i].bytes;
            groups[kept - 1].count++;
        } else {
            groups[kept++] = groups[i];
        }
    }
    return kept;
}

/* The kind of the request that is at a position. */
static footprint_group group_at(const footprint *f, uint32_t position, uint64_t bytes)
{
    uint32_t item = f->requests.events[position] / 2;
    const pleat__request *r = &f->requests.items[item];
    return (footprint_group){r->size, bytes, 1, r->alloc_phase,
                             f->sites[f->requests.numbers[item]]};
}

/* Sums up equal kinds, and copies those of the most bytes. Returns how many. */
static int take_most(footprint_group *all, uint32_t count, footprint_group *into, int most)
{
    if (count == 0)
        return 0;
    qsort(all, count, sizeof *all, compare_kinds);
    count = merge_groups(all, count);
    qsort(all, count, sizeof *all, compare_bytes);
    int taken = count < (uint32_t)most ? (int)count : most;
    memcpy(into, all, (size_t)taken * sizeof *all);
    return taken;
}

/* ---- a policy's run ---- */

typedef struct watcher {
    const footprint *footprint;
    footprint_policy *policy;
    uint64_t physical, live; /* after the event before */
    uint64_t most;
    footprint_group *beyond; /* what it grew for beyond max-live */
    size_t beyond_count;
    size_t beyond_capacity;
    pleat_result failed;
} watcher;

static void note_beyond(watcher *w, uint32_t position, uint64_t bytes)
{
    const footprint *f = w->footprint;
    if (w->failed == PLEAT_OK)
        w->failed = pleat__arena_grow(f->arena, &w->beyond, &w->beyond_capacity, w->beyond_count,
                                      sizeof *w->beyond);
    if (w->failed == PLEAT_OK)
        w->beyond[w->beyond_count++] = group_at(f, position, bytes);
}

static void note_growth(watcher *w, uint32_t position, const pleat_stats *stats)
{
    footprint_policy *p = w->policy;
    uint64_t live = live_behind(w->footprint, position, w->live);
    uint64_t request = live > w->live ? live - w->live : 0;
    uint64_t idle = w->physical > w->live ? w->physical - w->live : 0;
    p->peak_at = position;
    p->peak_live_bytes = live;
    p->peak_idle_bytes = idle;
    p->peak_request_bytes = request;
    uint64_t from = w->most > w->footprint->max_live_bytes ? w->most : w->footprint->max_live_bytes;
    w->most = stats->physical_bytes;
    if (w->most <= from)
        return;
    p->growths++;
    note_beyond(w, position, w->most - from);
    if (request > 0 && idle >= request) {
        p->split_growths++;
        p->split_bytes += w->most - from;
    }
}

static void on_event(void *self, uint32_t position, const pleat_stats *stats)
{
    watcher *w = self;
    if (stats->physical_bytes > w->most)
        note_growth(w, position, stats);
    w->physical = stats->physical_bytes;
    w->live = live_behind(w->footprint, position, w->live);
    add_point(w->footprint, &w->policy->physical, position, stats->physical_bytes);
    add_point(w->footprint, &w->policy->virtual, position, stats->virtual_bytes);
}

static pleat_result run_policy(footprint *f, const footprint_options *options, const char *policy)
{
    footprint_policy *p = &f->policies[f->policy_count];
    watcher w = {.footprint = f, .policy = p};
    replay_watch watch = {on_event, &w};
    replay_options replay = {.policy = policy,
                             .budget_bytes = options->budget_bytes,
                             .device_bytes = options->device_bytes,
                             .watch = &watch};
    bool given = strcmp(policy, "pleat") == 0 && options->plan != NULL;
    pleat_plan *plan = NULL;
    PLEAT_TRY(make_curve(f, &p->physical));
    PLEAT_TRY(make_curve(f, &p->virtual));
    pleat_result result = given ? PLEAT_OK : replay_plan_open(f->trace, policy, "auto", &plan);
    replay.plan = given ? f->plan : plan;
    if (result == PLEAT_OK)
        result = replay_run(f->trace, &replay, &p->result);
    if (result == PLEAT_OK)
        result = w.failed;
    p->culprit_count =
        take_most(w.beyond, (uint32_t)w.beyond_count, p->culprits, FOOTPRINT_CULPRITS);
    pleat__arena_free(f->arena, w.beyond);
    pleat_plan_free(plan);
    f->policy_count += result == PLEAT_OK;
    return result;
}

/* ---- what is live at most ---- */

static pleat_result follow_live(footprint *f)
{
    uint64_t live = 0;
    uint32_t count = 0;
    PLEAT_TRY(make_curve(f, &f->live));
    for (uint32_t at = 0; at < f->requests.event_count; at++) {
        live = live_behind(f, at, live);
        count = f->requests.events[at] & 1 ? count - 1 : count + 1;
        add_point(f, &f->live, at, live);
        if (live > f->max_live_bytes) {
            f->max_live_bytes = live;
            f->max_live_at = at;
            f->max_live_count = count;
        }
    }
    return PLEAT_OK;
}

static pleat_result find_sites(footprint *f)
{
    f->sites = sites_of_requests(f->trace);
    if (f->sites == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the requests' places");
    f->has_sites = pleat_trace_site_count(f->trace) > 1;
    return PLEAT_OK;
}

static pleat_result find_groups(footprint *f)
{
    uint32_t count = 0;
    footprint_group *all = pleat__arena_calloc(f->arena, f->max_live_count + 1, sizeof *all);
    if (all == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u requests", f->max_live_count);
    for (uint32_t i = 0; i < f->requests.count; i++) {
        const pleat__request *r = &f->requests.items[i];
        if (r->alloc_at <= f->max_live_at && r->free_at > f->max_live_at)
            all[count++] = group_at(f, r->alloc_at, pleat__rounded(r->size));
    }
    f->group_count = take_most(all, count, f->groups, FOOTPRINT_GROUPS);
    pleat__arena_free(f->arena, all);
    return PLEAT_OK;
}

/* ---- the plan ---- */

static pleat_result open_plan(footprint *f, const footprint_options *options)
{
    pleat__plan_report report;
    pleat_plan_options made;
    pleat_result result;
    if (options->plan != NULL) {
        result = replay_plan_open(f->trace, "pleat", options->plan, &f->own_plan);
        if (result == PLEAT_OK)
            result = gap_of_plan(f->own_plan, f->arena, &f->gap);
        f->has_gap = result == PLEAT_OK;
    } else {
        made = (pleat_plan_options){.size = sizeof made, .device = f->device};
        result = pleat__plan_make(f->trace, &made, NULL, &report, &f->own_plan);
        if (result == PLEAT_E_INPUT || result == PLEAT_E_LIMIT) { /* no iteration repeats, say */
            f->own_plan = NULL;
            snprintf(f->why_no_plan, sizeof f->why_no_plan, "%s", pleat_last_error()->text);
            return PLEAT_OK;
        }
        if (result == PLEAT_OK) {
            f->has_gap = true;
            f->gap = gap_of(f->own_plan, &report);
        }
    }
    f->plan = f->own_plan;
    if (result == PLEAT_OK)
        result = plan_peak_of(f->plan, &f->peak);
    if (result == PLEAT_OK) {
        plan_trial_run(f->plan, &f->trace, 1, &f->trial);
        if (options->plan == NULL)
            f->own_plan->answers_only = plan_trial_is_lost(&f->trial, 1);
    }
    return result;
}

/* ---- public ---- */

pleat_result footprint_make(const pleat_trace *trace, const footprint_options *options,
                            footprint *f)
{
    *f = (footprint){.trace = trace, .several = options->several};
    PLEAT_TRY(pleat__arena_create(&f->arena));
    pleat_result result = replay_requests(trace, f->arena, &f->device, &f->requests);
    f->buckets =
        f->requests.event_count < FOOTPRINT_BUCKETS ? f->requests.event_count : FOOTPRINT_BUCKETS;
    f->has_phases = f->requests.phase_count > 1;
    if (result == PLEAT_OK)
        result = follow_live(f);
    if (result == PLEAT_OK)
        result = find_sites(f);
    if (result == PLEAT_OK)
        result = find_groups(f);
    if (result == PLEAT_OK)
        result = open_plan(f, options);
    for (int i = 0; i < options->policy_count && result == PLEAT_OK; i++)
        result = run_policy(f, options, options->policies[i]);
    if (result != PLEAT_OK)
        footprint_free(f);
    return result;
}

void footprint_free(footprint *f)
{
    pleat_plan_free(f->own_plan);
    free(f->sites);
    pleat__arena_destroy(f->arena);
    *f = (footprint){0};
}

const char *footprint_phase(const footprint *f, uint16_t phase, char *buffer, size_t size)
{
    size_t length;
    const char *text =
        pleat__phase_text(pleat_trace_label(f->trace, f->requests.phase_labels[phase]), &length);
    length = length < size ? length : size - 1;
    length = pleat__utf8_prefix(text, length, length);
    memcpy(buffer, text, length);
    buffer[length] = '\0';
    return buffer;
}

uint16_t footprint_phase_at(const footprint *f, uint32_t position)
{
    uint32_t event = f->requests.events[position];
    const pleat__request *item = &f->requests.items[event / 2];
    return event & 1 ? item->free_phase : item->alloc_phase;
}

uint32_t footprint_iteration_at(const footprint *f, uint32_t position)
{
    uint32_t iteration = 0;
    while (iteration < f->requests.mark_count && f->requests.marks[iteration] <= position)
        iteration++;
    return iteration;
}

const char *footprint_steps(const footprint_policy *p, uint64_t like, char text[FOOTPRINT_STEPS])
{
    char split[48];
    int length = snprintf(text, FOOTPRINT_STEPS, "It took these in %u step%s", p->growths,
                          cli_plural(p->growths));
    size_t room = FOOTPRINT_STEPS - (size_t)length;
    if (p->split_growths > 0)
        snprintf(
            text + length, room,
            "; in %u of them, by %s together, as much as was asked for lay idle, but in pieces "
            "or in blocks kept for other sizes (fragmentation)",
            p->split_growths, cli_format_size_like(p->split_bytes, like, split, sizeof split));
    else
        snprintf(text + length, room, ", in none of which as much as was asked for lay idle");
    return text;
}

uint64_t footprint_waste(const footprint *f, const footprint_policy *policy)
{
    uint64_t physical = policy->result.peak_physical_bytes;
    return physical > f->max_live_bytes ? physical - f->max_live_bytes : 0;
}

const footprint_policy *footprint_find(const footprint *f, const char *policy)
{
    for (int i = 0; i < f->policy_count; i++)
        if (strcmp(f->policies[i].result.policy, policy) == 0)
            return &f->policies[i];
    return NULL;
}

static void groups_json(json_writer *json, const char *key, const footprint *f,
                        const footprint_group *groups, int count)
{
    char phase[256];
    json_array(json, key);
    for (int i = 0; i < count; i++) {
        json_object(json, NULL);
        json_uint(json, "size", groups[i].size);
        json_uint(json, "count", groups[i].count);
        json_uint(json, "bytes", groups[i].bytes);
        json_string(json, "phase", footprint_phase(f, groups[i].phase, phase, sizeof phase));
        if (f->has_sites)
            json_string(json, "site", pleat_trace_site(f->trace, groups[i].site));
        json_end_object(json);
    }
    json_end_array(json);
}

static void policy_json(json_writer *json, const footprint *f, const footprint_policy *p)
{
    json_object(json, NULL);
    replay_json(json, &p->result);
    json_uint(json, "waste_bytes", footprint_waste(f, p));
    json_uint(json, "peak_at", p->peak_at);
    json_uint(json, "peak_physical_live_bytes", p->peak_live_bytes);
    json_uint(json, "peak_idle_bytes", p->peak_idle_bytes);
    json_uint(json, "peak_request_bytes", p->peak_request_bytes);
    json_uint(json, "growths", p->growths);
    json_uint(json, "split_growths", p->split_growths);
    json_uint(json, "split_bytes", p->split_bytes);
    groups_json(json, "beyond_by", f, p->culprits, p->culprit_count);
    json_end_object(json);
}

static void own_plan_json(json_writer *json, const footprint *f)
{
    json_object(json, "plan");
    plan_json(json, f->plan);
    if (f->has_gap) {
        json_object(json, "gap");
#define GAP_JSON(name, text) json_uint(json, #name "_bytes", f->gap.name);
        GAP_STEPS(GAP_JSON)
#undef GAP_JSON
        json_end_object(json);
        json_uint(json, "unplaced_bytes", f->gap.unplaced);
        json_object(json, "live_at_peak");
        footprint_class classes[PLEAT__CLASSES];
        int count = footprint_classes(f->has_phases, f->peak.bytes, NULL, classes);
        for (int i = 0; i < count; i++)
            json_uint(json, classes[i].name, classes[i].bytes);
        json_end_object(json);
    }
    json_object(json, "replayed");
    plan_trial_members(json, &f->trial);
    json_end_object(json);
    json_end_object(json);
}

void footprint_json(json_writer *json, const footprint *f)
{
    char phase[256];
    json_uint(json, "requests", f->requests.count);
    json_uint(json, "events", f->requests.event_count);
    json_uint(json, "iterations", f->requests.mark_count > 1 ? f->requests.mark_count - 1 : 1);
    json_uint(json, "max_live_bytes", f->max_live_bytes);
    json_uint(json, "max_live_at", f->max_live_at);
    json_uint(json, "max_live_requests", f->max_live_count);
    json_string(json, "max_live_phase",
                footprint_phase(f, footprint_phase_at(f, f->max_live_at), phase, sizeof phase));
    json_array(json, "policies");
    for (int i = 0; i < f->policy_count; i++)
        policy_json(json, f, &f->policies[i]);
    json_end_array(json);
    if (f->plan != NULL)
        own_plan_json(json, f);
    groups_json(json, "peak", f, f->groups, f->group_count);
}
