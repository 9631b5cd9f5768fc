/*
 * ground.h: what a pool stands on, and the pool, over host memory that does not matter: for tests
 * of what uses a pool by itself.
 */
#ifndef PLEAT_TESTS_RUNTIME_GROUND_H
#define PLEAT_TESTS_RUNTIME_GROUND_H

#include "fault.h"
#include "held.h"
#include "host.h"

#include <internal/arena.h>
#include <runtime/memory/chunks.h>
#include <runtime/memory/heap_internal.h>

#define PAGE (64u << 10)

typedef struct ground {
    pleat_vmm host;
    pleat_vmm vmm; /* a fault decorator over it */
    pleat__arena *arena;
    pleat__space *space;
    pleat__gate gate;
    pleat__chunk_pool pool;
} ground;

static inline void ground_begin(ground *g)
{
    const pleat_host_options host = {
        .size = sizeof host, .device_bytes = 1ull << 30, .granularity = PAGE};
    const pleat__space_options space = {.device = 0};
    *g = (ground){.arena = NULL};
    assert_ok(pleat_vmm_host(&host, &g->host));
    assert_ok(pleat__fault_create(g->host, &g->vmm));
    assert_ok(pleat__arena_create(&g->arena));
    assert_ok(pleat__space_create(g->vmm, g->arena, &space, &g->space));
    assert_ok(pleat__gate_init(&g->gate, g->vmm, 0, g->arena));
    assert_ok(pleat__chunk_pool_init(&g->pool, g->arena, g->space, &g->gate, NULL, false));
}

/* pre: nobody holds the gate, and what used the pool is gone. */
static inline void ground_end(ground *g)
{
    pleat__chunk_pool_release(&g->pool);
    pleat__gate_release(&g->gate);
    pleat__space_destroy(g->space);
    pleat__arena_destroy(g->arena);
    assert_nothing_held(&g->host);
    pleat_vmm_destroy(&g->vmm);
    pleat_vmm_destroy(&g->host);
}

/* A heap of one stream, 0, with chunks, and the turn. */
static inline void ground_heap_begin(ground *g, pleat__heap *heap, uint64_t *ordered,
                                     uint32_t chunks)
{
    pleat__conf conf;
    ground_begin(g);
    assert_ok(pleat__conf_read("", &conf));
    assert_ok(pleat__heap_init(heap, g->vmm, 0, g->arena, &g->pool, &conf));
    heap->streams_ordered = ordered;
    pleat__gate_lock_turn(&g->gate);
    assert_int_equal(pleat__heap_stream(heap, 0), 0);
    assert_ok(pleat__heap_sync(heap));
    assert_ok(pleat__heap_make(heap, 0, chunks));
}

/* pre: the turn is held */
static inline void ground_heap_end(ground *g, pleat__heap *heap)
{
    pleat__gate_unlock(&g->gate);
    pleat__gate_end_mapper(&g->gate);
    pleat__heap_release(heap);
    ground_end(g);
}

static inline pleat__host_holdings ground_holds(const ground *g)
{
    pleat__host_holdings held;
    assert_ok(pleat__host_holdings_of(&g->host, &held));
    return held;
}

#endif
