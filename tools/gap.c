/*
 * gap.c: see gap.h.
 */
#include "gap.h"

static uint64_t more(uint64_t a, uint64_t b)
{
    return a > b ? a - b : 0;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

gap_steps gap_of(const pleat_plan *plan, const pleat__plan_report *report)
{
    pleat_plan_summary summary = pleat_plan_summary_of(plan);
    uint64_t live = summary.max_live_bytes, chunk = plan->chunk_bytes;
    uint64_t placed = largest(report->placed_max_live, live);
    uint64_t rounded = pleat__ceil_div(placed, chunk) * chunk;
    uint64_t floor = largest(report->floor_chunks * chunk, rounded);
    return (gap_steps){.live = live,
                       .lanes = placed - live,
                       .rounding = rounded - placed,
                       .streams = floor - rounded,
                       .stuck = more(summary.physical_bytes, floor),
                       .physical = summary.physical_bytes};
}
