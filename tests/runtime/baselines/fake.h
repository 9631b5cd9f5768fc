/*
 * fake.h: a supplier of segments with nothing behind them, for tests of the caching allocator's
 * arithmetic: addresses are numbers, a limit can be set, and what is out is counted.
 */
#ifndef PLEAT_TESTS_RUNTIME_FAKE_H
#define PLEAT_TESTS_RUNTIME_FAKE_H

#include "test.h"

#include <internal/error.h>
#include <runtime/baselines/torch/caching.h>

#define MIB (1ull << 20)

typedef struct fake {
    uint64_t next;     /* where the next reservation begins */
    uint64_t reserved; /* bytes */
    uint64_t backed;
    uint64_t limit;       /* of backed; 0: none */
    uint64_t backs;       /* calls */
    uint64_t last_handle; /* of the last one */
    bool refuse_unback;
    pleat__caching *asking; /* ask frees `given`, where it is not 0, and says so */
    pleat_va given;
    int asked;
} fake;

static inline pleat_result fake_reserve(void *self, uint64_t bytes, pleat_va *address)
{
    fake *f = self;
    *address = f->next;
    f->next += bytes;
    f->reserved += bytes;
    return PLEAT_OK;
}

static inline void fake_unreserve(void *self, pleat_va address, uint64_t bytes)
{
    fake *f = self;
    assert_true(address + bytes <= f->next);
    f->reserved -= bytes;
}

static inline pleat_result fake_back(void *self, pleat_va address, uint64_t bytes,
                                     uint64_t handle_bytes)
{
    fake *f = self;
    assert_int_equal(address % (2 * MIB), 0);
    assert_int_equal(bytes % handle_bytes, 0);
    if (f->limit != 0 && f->backed + bytes > f->limit)
        return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "the fake has no more");
    f->backed += bytes;
    f->backs++;
    f->last_handle = handle_bytes;
    return PLEAT_OK;
}

static inline bool fake_unback(void *self, pleat_va address, uint64_t bytes)
{
    fake *f = self;
    assert_int_equal(address % (2 * MIB), 0);
    f->backed -= bytes;
    return !f->refuse_unback;
}

static inline bool fake_ask(void *self, uint64_t bytes, pleat_stream stream)
{
    fake *f = self;
    (void)bytes;
    (void)stream;
    f->asked++;
    if (f->given == 0)
        return false;
    assert_ok(pleat__caching_free(f->asking, f->given, NULL));
    f->given = 0;
    return true;
}

static inline pleat__supplier fake_supplier(fake *f)
{
    *f = (fake){.next = 1ull << 40};
    return (pleat__supplier){.self = f,
                             .unit_bytes = 2 * MIB,
                             .reserve = fake_reserve,
                             .unreserve = fake_unreserve,
                             .back = fake_back,
                             .unback = fake_unback};
}

#endif
