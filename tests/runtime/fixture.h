/*
 * fixture.h: a runtime over the host backend, in memory that does not matter, for tests of the
 * public calls; every policy.
 */
#ifndef PLEAT_TESTS_RUNTIME_FIXTURE_H
#define PLEAT_TESTS_RUNTIME_FIXTURE_H

#include "fault.h"
#include "held.h"

#include <internal/arena.h>
#include <internal/range.h>
#include <pleat/runtime.h>
#include <pthread.h>
#include <string.h>

#define MIB (1ull << 20)

static const char *const policies[] = {"native", "expandable", "gmlake", "stweaver", "pleat"};
#define POLICIES (sizeof policies / sizeof *policies)

typedef struct fixture {
    pleat_vmm host;
    pleat_vmm vmm; /* the host, or a fault decorator over it */
    pleat_runtime *runtime;
    bool faulty;
    uint64_t failed; /* allocations of host memory, on purpose */
} fixture;

static inline void open_host(fixture *f, uint64_t device_bytes, bool faulty)
{
    pleat_host_options host = {.size = sizeof host, .device_bytes = device_bytes};
    *f = (fixture){.faulty = faulty};
    assert_ok(pleat_vmm_host(&host, &f->host));
    f->vmm = f->host;
    if (faulty)
        assert_ok(pleat__fault_create(f->host, &f->vmm));
}

static inline void begin(fixture *f, const char *policy, uint64_t device_bytes,
                         uint64_t budget_bytes)
{
    open_host(f, device_bytes, false);
    pleat_runtime_options options = {
        .size = sizeof options, .policy = policy, .budget_bytes = budget_bytes};
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
}

static inline void end(fixture *f)
{
    pleat_runtime_destroy(f->runtime);
    if (f->faulty)
        pleat_vmm_destroy(&f->vmm);
    assert_nothing_held(&f->host);
    pleat_vmm_destroy(&f->host);
}

static inline pleat_va take(fixture *f, uint64_t bytes, pleat_stream stream)
{
    pleat_va address;
    assert_ok(pleat_alloc(f->runtime, bytes, stream, &address));
    return address;
}

static inline bool has(const char *text)
{
    return strstr(pleat_last_error()->text, text) != NULL;
}

#endif
