/*
 * use.c: a program outside the source tree: every public header by itself, and a call into each
 * part of the library that needs no device.
 */
#include <pleat/base.h>
#include <pleat/plan.h>
#include <pleat/ranges.h>
#include <pleat/runtime.h>
#include <pleat/trace.h>
#include <pleat/vmm.h>

#include <stdio.h>

int main(void)
{
    pleat_trace *trace;
    if (pleat_trace_new(&trace) != PLEAT_OK) {
        fprintf(stderr, "%s\n", pleat_last_error()->text);
        return 1;
    }
    printf("%s %u\n", pleat_version(), pleat_trace_request_count(trace));
    pleat_trace_free(trace);
    return 0;
}
