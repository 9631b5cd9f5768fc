/*
 * ground.c: see ground.h.
 *
 * Every chunk of the pool is mapped at its home, one behind the other. A tensor in one range lies
 * there. One in several ranges has a view: the chunks are mapped once more, side by side.
 */
#include <tools/remat/ground.h>

#include <internal/error.h>
#include <internal/hash.h>
#include <internal/range.h>
#include <tools/clock.h>
#include <vmm/host/host.h>
#include <vmm/space.h>

#define MARK_BYTES (2u << 20) /* every so many bytes a tensor has a word */

typedef struct lying {
    uint64_t address; /* 0: it is not there */
    uint64_t bytes;
    uint64_t serial;
    uint64_t view, view_pages; /* 0 pages: it lies at home */
} lying;

struct remat_ground {
    pleat__remat_ground calls;
    pleat__arena *arena;
    pleat_vmm vmm;
    pleat__space *space;
    pleat__chunk **chunks;
    uint64_t count, chunk_pages, chunk_bytes;
    uint64_t maps;
    uint64_t serial;
    lying *tensors;
};

uint64_t remat_map_ns(uint64_t chunk_bytes)
{
    const pleat__host_costs *c = &pleat__host_costs_h200;
    double granules = (double)(chunk_bytes >> 21);
    return (uint64_t)(c->map_handle + c->access_handle + c->unmap_handle +
                      granules * (c->access_granule + c->unmap_granule));
}

/* ---- words ---- */

static uint64_t word_of(const lying *t, uint64_t at)
{
    return (t->serial * PLEAT__HASH_MULTIPLIER) ^ at;
}

static void write_words(const lying *t)
{
    for (uint64_t at = 0; at < t->bytes; at += MARK_BYTES)
        *(uint64_t *)(uintptr_t)(t->address + at) = word_of(t, at);
    uint64_t last = t->bytes - sizeof(uint64_t);
    *(uint64_t *)(uintptr_t)(t->address + last) = word_of(t, last);
}

static bool has_words(const lying *t)
{
    bool sound = true;
    uint64_t last = t->bytes - sizeof(uint64_t);
    for (uint64_t at = 0; at < t->bytes && at != last; at += MARK_BYTES)
        sound = sound && *(const uint64_t *)(uintptr_t)(t->address + at) == word_of(t, at);
    return sound && *(const uint64_t *)(uintptr_t)(t->address + last) == word_of(t, last);
}

static pleat_result check_words(const remat_ground *g, uint32_t tensor)
{
    if (has_words(&g->tensors[tensor]))
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_VERIFY, "tensor %u shares memory with another one", tensor);
}

/* ---- places ---- */

static pleat_result map_view(remat_ground *g, const pleat__range *ranges, uint32_t count,
                             lying *made)
{
    pleat__chunk **chunks = pleat__arena_calloc(g->arena, count, sizeof(pleat__chunk *));
    if (chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a view of %u chunks", count);
    for (uint32_t i = 0; i < count; i++)
        chunks[i] = g->chunks[ranges[i].begin / g->chunk_bytes];
    made->view_pages = count * g->chunk_pages;
    pleat_result result = pleat__space_take(g->space, made->view_pages, &made->view);
    if (result == PLEAT_OK) {
        result = pleat__space_map(g->space, made->view, chunks, count);
        if (result != PLEAT_OK)
            pleat__space_give(g->space, made->view, made->view_pages);
    }
    pleat__arena_free(g->arena, chunks);
    made->address = pleat__space_base(g->space) + made->view * pleat__space_page_bytes(g->space);
    g->maps += count;
    return result;
}

static pleat_result place(void *self, uint32_t tensor, const pleat__range *ranges, uint32_t count)
{
    remat_ground *g = self;
    lying made = {.serial = ++g->serial};
    for (uint32_t i = 0; i < count; i++)
        made.bytes += pleat__range_size(ranges[i]);
    if (count > 1)
        PLEAT_TRY(map_view(g, ranges, count, &made));
    else
        made.address = pleat__space_base(g->space) + ranges[0].begin;
    g->tensors[tensor] = made;
    write_words(&made);
    return PLEAT_OK;
}

static pleat_result leave(void *self, uint32_t tensor)
{
    remat_ground *g = self;
    lying *t = &g->tensors[tensor];
    PLEAT_TRY(check_words(g, tensor));
    if (t->view_pages > 0) {
        PLEAT_TRY(pleat__space_unmap(g->space, t->view, t->view_pages));
        pleat__space_give(g->space, t->view, t->view_pages);
    }
    *t = (lying){.address = 0};
    return PLEAT_OK;
}

static pleat_result hand_over(void *self, uint32_t from, uint32_t to)
{
    remat_ground *g = self;
    PLEAT_TRY(check_words(g, from));
    g->tensors[to] = g->tensors[from];
    g->tensors[to].serial = ++g->serial;
    g->tensors[from] = (lying){.address = 0};
    write_words(&g->tensors[to]);
    return PLEAT_OK;
}

static uint64_t clock_ns(void *self)
{
    (void)self;
    return clock_now();
}

/* ---- the pool's memory ---- */

static pleat_result make_homes(remat_ground *g, uint64_t bytes)
{
    uint64_t page_bytes = pleat__space_page_bytes(g->space), home;
    uint64_t pages = pleat__ceil_div(bytes, page_bytes);
    g->count = pleat__ceil_div(pages, g->chunk_pages);
    g->chunks = pleat__arena_calloc(g->arena, g->count, sizeof(pleat__chunk *));
    if (g->chunks == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu chunks",
                           (unsigned long long)g->count);
    PLEAT_TRY(pleat__space_take(g->space, pages, &home));
    for (uint64_t i = 0; i < g->count; i++) {
        uint64_t rest = pages - i * g->chunk_pages;
        uint32_t size = (uint32_t)(rest < g->chunk_pages ? rest : g->chunk_pages);
        PLEAT_TRY(pleat__space_chunk_get(g->space, size, &g->chunks[i]));
    }
    return pages > 0 ? pleat__space_map(g->space, home, g->chunks, g->count) : PLEAT_OK;
}

/* The window has room for the homes, and for views of all chunks however they lie. */
static pleat_result prepare(remat_ground *g, uint64_t bytes, uint32_t tensors)
{
    uint64_t rounded = pleat__ceil_div(bytes + 1, g->chunk_bytes) * g->chunk_bytes;
    const pleat_host_options host = {.size = sizeof host, .device_bytes = rounded};
    const pleat__space_options space = {.window_bytes = 8 * rounded};
    g->tensors = pleat__arena_calloc(g->arena, tensors, sizeof *g->tensors);
    if (g->tensors == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %u tensors", tensors);
    PLEAT_TRY(pleat_vmm_host(&host, &g->vmm));
    PLEAT_TRY(pleat__space_create(g->vmm, g->arena, &space, &g->space));
    return make_homes(g, bytes);
}

pleat_result remat_ground_create(uint64_t bytes, uint64_t chunk_bytes, uint32_t tensors,
                                 remat_ground **out)
{
    pleat__arena *arena;
    PLEAT_TRY(pleat__arena_create(&arena));
    remat_ground *g = pleat__arena_calloc(arena, 1, sizeof *g);
    if (g == NULL) {
        pleat__arena_destroy(arena);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory");
    }
    g->arena = arena;
    g->chunk_bytes = chunk_bytes;
    g->chunk_pages = chunk_bytes / (2u << 20);
    g->calls = (pleat__remat_ground){g, place, leave, hand_over, clock_ns};
    pleat_result result = prepare(g, bytes, tensors);
    if (result != PLEAT_OK) {
        remat_ground_destroy(g);
        return result;
    }
    *out = g;
    return PLEAT_OK;
}

void remat_ground_destroy(remat_ground *g)
{
    if (g == NULL)
        return;
    pleat__space_destroy(g->space);
    if (g->vmm.ops != NULL)
        pleat_vmm_destroy(&g->vmm);
    pleat__arena_destroy(g->arena);
}

const pleat__remat_ground *remat_ground_calls(const remat_ground *g)
{
    return &g->calls;
}

uint64_t remat_ground_maps(const remat_ground *g)
{
    return g->maps;
}
