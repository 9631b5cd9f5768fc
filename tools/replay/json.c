/*
 * json.c: the figures of a replay as JSON, keys of docs/reference.md.
 */
#include <tools/replay/replay.h>

#include <string.h>

static void json_stats(json_writer *json, const char *key, const pleat_stats *stats)
{
    json_object(json, key);
#define REPLAY_COUNTER(name, text) json_uint(json, #name, stats->name);
    PLEAT_COUNTERS(REPLAY_COUNTER)
#undef REPLAY_COUNTER
    json_end_object(json);
}

static void json_times(json_writer *json, const replay_times *times)
{
    json_uint(json, "calls", times->calls);
    json_double(json, "call_seconds", times->ns * 1e-9);
    json_double(json, "call_verb_seconds", times->verb_ns * 1e-9);
    json_double(json, "call_median_ns", times->median_ns);
    json_double(json, "call_p99_ns", times->p99_ns);
    json_double(json, "call_most_ns", times->most_ns);
    json_double(json, "mark_seconds", times->mark_ns * 1e-9);
}

static void json_calls(json_writer *json, const char *key, const call_figures *calls)
{
    json_object(json, key);
    json_uint(json, "calls", calls->calls);
    json_double(json, "seconds", calls->ns * 1e-9);
    json_double(json, "median_ns", calls->median_ns);
    json_double(json, "p999_ns", calls->p999_ns);
    json_end_object(json);
}

static void json_processor(json_writer *json, const replay_result *r)
{
    json_calls(json, "processor", &r->timed.calls);
    json_calls(json, "steady_processor", &r->timed.steady_calls);
    json_array(json, "longest_calls_ns");
    for (uint32_t i = 0; i < CALL_TIMES_LONGEST; i++)
        json_uint(json, NULL, r->timed.longest_calls_ns[i]);
    json_end_array(json);
    json_double(json, "recorded_seconds", r->recorded_seconds);
    json_double(json, "steady_recorded_seconds", r->steady_recorded_seconds);
}

void replay_json(json_writer *json, const replay_result *r)
{
    json_string(json, "policy", r->policy);
    json_string(json, "backend", r->backend);
    json_uint(json, "iterations", r->iterations);
    json_uint(json, "peak_live_bytes", r->peak_live_bytes);
    json_uint(json, "peak_physical_bytes", r->peak_physical_bytes);
    json_uint(json, "virtual_bytes", r->peak_virtual_bytes);
    json_double(json, "efficiency", r->efficiency);
    json_uint(json, "steady_peak_live_bytes", r->steady_peak_live_bytes);
    json_uint(json, "steady_peak_physical_bytes", r->steady_peak_physical_bytes);
    json_double(json, "steady_efficiency", r->steady_efficiency);
    json_uint(json, "steady_iterations", r->steady_iterations);
    json_double(json, "steady_planned_share", r->steady_planned_share);
    json_uint(json, "steady_bytes", r->steady_bytes);
    json_uint(json, "steady_slot_bytes", r->steady_slot_bytes);
    json_uint(json, "steady_lane_bytes", r->steady_lane_bytes);
    json_uint(json, "requests", r->stats.requests);
    json_uint(json, "planned", r->stats.planned);
    json_uint(json, "lane", r->stats.lane);
    json_uint(json, "stitched", r->stats.stitched);
    json_uint(json, "cached", r->stats.cached);
    json_uint(json, "diverged", r->stats.diverged);
    json_uint(json, "slot_busy", r->stats.slot_busy);
    json_uint(json, "switches", r->stats.switches);
    json_uint(json, "divergences", r->stats.divergences);
    json_uint(json, "returns", r->stats.returns);
    json_uint(json, "driver_calls", r->stats.driver_calls);
    json_array(json, "first_iterations");
    for (uint32_t i = 0; i < r->first_count; i++) {
        json_object(json, NULL);
        json_uint(json, "driver_calls", r->first_iterations[i].driver_calls);
        json_double(json, "driver_seconds", r->first_iterations[i].driver_ns * 1e-9);
        json_uint(json, "mapper_driver_calls", r->first_iterations[i].mapper_calls);
        json_double(json, "mapper_driver_seconds", r->first_iterations[i].mapper_ns * 1e-9);
        json_uint(json, "creates", r->first_iterations[i].creates);
        json_uint(json, "stitched", r->first_iterations[i].stitched);
        json_double(json, "waited_seconds", (double)r->first_iterations[i].waited_ns * 1e-9);
        json_times(json, &r->timed.first[i]);
        json_end_object(json);
    }
    json_end_array(json);
    json_object(json, "steady_iteration");
    json_double(json, "driver_calls", r->an_iteration.driver_calls);
    json_double(json, "driver_seconds", r->an_iteration.driver_ns * 1e-9);
    json_double(json, "mapper_driver_calls", r->an_iteration.mapper_calls);
    json_double(json, "mapper_driver_seconds", r->an_iteration.mapper_ns * 1e-9);
    json_end_object(json);
    json_uint(json, "steady_driver_calls", r->steady_driver_calls);
    json_uint(json, "steady_streams_ordered", r->steady_streams_ordered);
    json_double(json, "steady_driver_seconds", r->steady_driver_ns * 1e-9);
    json_uint(json, "steady_mapper_driver_calls", r->steady_mapper_calls);
    json_double(json, "steady_mapper_driver_seconds", r->steady_mapper_ns * 1e-9);
    if (r->late_iterations > 0) {
        json_uint(json, "late_iterations", r->late_iterations);
        json_uint(json, "late_driver_calls", r->late_driver_calls);
        json_double(json, "late_planned_share", r->late_planned_share);
        json_double(json, "late_driver_seconds", r->late_driver_ns * 1e-9);
        json_double(json, "late_recorded_seconds", r->late_recorded_seconds);
    }
    json_uint(json, "instances", r->stats.instances);
    json_uint(json, "instance_maps", r->stats.instance_maps);
    json_uint(json, "kept_plans", r->stats.kept_plans);
    json_uint(json, "left_at", r->stats.left_at);
    json_bool(json, "canary", r->canary);
    json_uint(json, "canary_errors", r->canary_errors);
    json_uint(json, "canary_stride_bytes", r->canary_stride_bytes);
    json_double(json, "alloc_ns", r->timed.alloc_ns);
    json_double(json, "free_ns", r->timed.free_ns);
    json_double(json, "alloc_p99_ns", r->timed.alloc_p99_ns);
    json_double(json, "free_p99_ns", r->timed.free_p99_ns);
    if (strcmp(r->backend, "host") == 0)
        json_processor(json, r);
    json_uint(json, "metadata_bytes", r->stats.metadata_bytes);
    json_uint(json, "map_waits", r->stats.map_waits);
    json_uint(json, "waited_ns", r->stats.waited_ns);
    if (r->timed.repeats.count > 0) {
        json_uint(json, "repeats", r->timed.repeats.count);
        json_bool(json, "repeats_unchanged", r->timed.repeats.unchanged);
        json_stats(json, "repeats_early", &r->timed.repeats.early);
        json_stats(json, "repeats_late", &r->timed.repeats.late);
    }
    json_bool(json, "oom", r->oom);
    if (r->oom)
        json_string(json, "oom_text", r->oom_text);
    json_double(json, "seconds", r->seconds);
}
