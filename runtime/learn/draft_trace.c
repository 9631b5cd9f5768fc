/*
 * draft_trace.c: from recorded events to a trace with marks (see draft_make.h).
 *
 * A program marks where its iterations end, at the optimizer's step, so the first mark ends the
 * first iteration, and nothing says where that one began: somewhere behind the model's load. The
 * first one that lies between two marks tells: of the places where requests like its first ones
 * were, the one is taken from which on most agrees with it (plan/model/iteration.h). So the job is
 * planned an iteration earlier than by marks alone.
 */
#include <runtime/learn/draft_make.h>

#include <internal/error.h>
#include <plan/model/iteration.h>
#include <plan/trace/import.h>

/* Of an iteration's requests, those in a hundred that the first one must have had too. */
#define ALIKE 50u

/* The events with a mark before each of those at `marks`, which ascend. */
static pleat_result add_marked(const pleat__draft_job *job, const size_t *marks, uint32_t count,
                               pleat_trace *trace)
{
    uint32_t next = 0;
    for (size_t i = 0; i <= job->event_count; i++) {
        for (; next < count && marks[next] == i; next++) {
            const pleat_trace_event mark = {.kind = PLEAT_EVENT_MARK,
                                            .device = job->events[0].device};
            PLEAT_TRY(pleat_trace_add(trace, &mark));
        }
        if (i < job->event_count)
            PLEAT_TRY(pleat_trace_add(trace, &job->events[i]));
    }
    return PLEAT_OK;
}

/* The event that allocates a request; its number counts them. */
static size_t event_of(const pleat__draft_job *job, uint32_t request)
{
    size_t i = 0;
    while (i < job->event_count &&
           !(job->events[i].kind == PLEAT_EVENT_ALLOC && job->events[i].request == request))
        i++;
    return i;
}

/* The event at which the iteration begins that the first mark ends. */
static pleat_result find_early(pleat__draft_job *job, const pleat_trace *marked, size_t *begin)
{
    pleat__arena *scratch;
    pleat__requests requests;
    pleat__stretch steady, found;
    uint32_t paired = 0;
    PLEAT_TRY(pleat__arena_create(&scratch));
    pleat_result result = pleat__requests_make(marked, job->events[0].device, scratch, &requests);
    uint32_t last = result == PLEAT_OK ? requests.mark_count : 0;
    if (result == PLEAT_OK && last < 2)
        result = pleat__fail(PLEAT_E_NOT_FOUND, "no iteration between two marks");
    if (result == PLEAT_OK) {
        steady = pleat__stretch_of(&requests, requests.marks[last - 2], requests.marks[last - 1]);
        result = pleat__prologue_find(&requests, steady, requests.marks[0], &found, &paired);
    }
    if (result == PLEAT_OK &&
        (paired == 0 || (uint64_t)paired * 100 < (uint64_t)steady.items * ALIKE))
        result = pleat__fail(PLEAT_E_NOT_FOUND, "no iteration before the first mark");
    if (result == PLEAT_OK)
        *begin = event_of(job, requests.numbers[found.item]);
    pleat__arena_destroy(scratch);
    return result;
}

pleat_result pleat__draft_trace(pleat__draft_job *job)
{
    size_t marks[PLEAT__DRAFT_ITERATIONS + 2];
    pleat_trace *names;
    if (job->event_count == 0)
        return pleat__fail(PLEAT_E_NOT_FOUND, "nothing was recorded");
    for (uint32_t i = 0; i < job->begin_count; i++)
        marks[i + 1] = job->begins[i];
    if (!job->early)
        return add_marked(job, marks + 1, job->begin_count, job->trace);
    PLEAT_TRY(pleat__trace_copy_names(job->trace, &names));
    pleat_result result = add_marked(job, marks + 1, job->begin_count, names);
    if (result == PLEAT_OK)
        result = find_early(job, names, &marks[0]);
    pleat_trace_free(names);
    job->none_early = result == PLEAT_E_NOT_FOUND;
    return result == PLEAT_OK ? add_marked(job, marks, job->begin_count + 1, job->trace) : result;
}
