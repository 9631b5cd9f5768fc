/*
 * failing.h: a job that is run again and again, while each verb, or each piece of host memory,
 * fails it once. Whatever happens to the job, nothing is left of it.
 */
#ifndef PLEAT_TESTS_RUNTIME_FAILING_H
#define PLEAT_TESTS_RUNTIME_FAILING_H

#include "fault.h"
#include "held.h"
#include "job.h"

#include <internal/arena.h>

/* Runs the job on a backend that fails, and gives its runtime; NULL: none could be made. */
typedef pleat_runtime *(*failing_run)(pleat_vmm vmm, const void *with);

/* Each verb at its first call, its second, and so on in steps that grow by one in `spread`, until
 * it is not called as often. Every other failure comes after the verb was carried out. Under the
 * thread sanitizer the first verb alone (see test_rounds). */
static inline void fail_verbs(const pleat__fault_verb *verbs, size_t count, uint64_t spread,
                              failing_run job_of, const void *with)
{
    for (size_t v = 0, tried = (size_t)test_rounds(count); v < tried; v++) {
        uint64_t hits = 1;
        for (uint64_t nth = 1; hits > 0; nth += 1 + nth / test_rounds(spread)) {
            pleat_vmm host, vmm;
            job_host(&host);
            assert_ok(pleat__fault_create(host, &vmm));
            pleat__fault_arm(&vmm, (pleat__fault_plan){
                                       .verb = verbs[v], .nth = nth, .carried_out = nth % 2 == 1});
            pleat_runtime *runtime = job_of(vmm, with);
            hits = pleat__fault_hits(&vmm);
            pleat__fault_arm(&vmm, (pleat__fault_plan){0});
            pleat_runtime_destroy(runtime);
            pleat_vmm_destroy(&vmm);
            assert_nothing_held(&host);
            pleat_vmm_destroy(&host);
        }
    }
}

/* The same of host memory, on the thread that runs the job. */
static inline void fail_host_memory(uint64_t spread, failing_run job_of, const void *with)
{
    uint64_t failed = 1;
    for (uint64_t nth = 1; failed > 0; nth += 1 + nth / test_rounds(spread)) {
        pleat_vmm host;
        job_host(&host);
        pleat__arena_fail(nth, false);
        pleat_runtime *runtime = job_of(host, with);
        failed = pleat__arena_failed();
        pleat__arena_fail(0, false);
        pleat_runtime_destroy(runtime);
        assert_nothing_held(&host);
        pleat_vmm_destroy(&host);
    }
}

/* By which a runtime is made, and memory comes, rests and wakes. */
static const pleat__fault_verb failing_verbs[] = {
    PLEAT__FAULT_create,      PLEAT__FAULT_release,       PLEAT__FAULT_map,
    PLEAT__FAULT_set_access,  PLEAT__FAULT_unmap,         PLEAT__FAULT_event_create,
    PLEAT__FAULT_event_wait,  PLEAT__FAULT_event_record,  PLEAT__FAULT_stream_create,
    PLEAT__FAULT_host_alloc,  PLEAT__FAULT_copy,          PLEAT__FAULT_copy_by_threads,
    PLEAT__FAULT_event_query, PLEAT__FAULT_stream_wait,   PLEAT__FAULT_reserve,
    PLEAT__FAULT_memory_info, PLEAT__FAULT_process_memory};
#define FAILING_VERBS (sizeof failing_verbs / sizeof *failing_verbs)

/* Each of these verbs, and host memory. */
static inline void fail_all(uint64_t spread, failing_run job_of, const void *with)
{
    fail_verbs(failing_verbs, FAILING_VERBS, spread, job_of, with);
    fail_host_memory(spread, job_of, with);
}

#endif
