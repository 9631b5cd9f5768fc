/*
 * plan.c: plans a recorded job, writes the plan, and says how many requests an iteration has: plan
 * TRACE PLAN, with a trace that `pleat import` wrote
 *
 * Built with cc plan.c $(pkg-config --cflags --libs pleat)
 */
#include <pleat/plan.h>
#include <pleat/trace.h>
#include <stdio.h>

static int failed(void)
{
    fprintf(stderr, "%s\n", pleat_last_error()->text);
    return 1;
}

int main(int argc, char **argv)
{
    pleat_trace *trace;
    pleat_plan *plan;
    if (argc != 3) {
        fprintf(stderr, "usage: plan TRACE PLAN\n");
        return 2;
    }
    if (pleat_trace_read(argv[1], &trace) != PLEAT_OK) {
        fprintf(stderr, "%s; `pleat import RECORDING -o TRACE` writes one\n",
                pleat_last_error()->text);
        return 1;
    }
    pleat_plan_options options = {.size = sizeof options};
    if (pleat_plan_make(trace, &options, &plan) != PLEAT_OK)
        return failed();
    if (pleat_plan_write(plan, argv[2]) != PLEAT_OK)
        return failed();
    printf("wrote %s: %llu requests an iteration\n", argv[2],
           (unsigned long long)pleat_plan_summary_of(plan).iteration_requests);
    pleat_plan_free(plan);
    pleat_trace_free(trace);
    return 0;
}
