/*
 * arena.c: metadata arenas over jemalloc's. The library may be a private build with prefixed
 * symbols (the default; see tools/setup) or the system's (PLEAT_JEMALLOC=system), hence the JE()
 * names.
 *
 * A private arena has no thread cache here: its blocks are few and long-lived, and a cache would
 * keep blocks of an arena alive that is destroyed whole.
 *
 * Large blocks are tables that are read all over: they begin at a large page, and the system is
 * asked to back them so. (With 45,000 tensors live the 99th percentile of a planned allocation went
 * from 240 to 210 ns by it, of a free from 400 to 340 ns, on a busy machine.)
 */
#include <internal/arena.h>
#include <internal/error.h>
#include <internal/range.h>

#include <jemalloc/jemalloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifdef PLEAT_JEMALLOC_PREFIXED
#define JE(name) pleat_je_##name
#else
#define JE(name) name
#endif

#ifdef PLEAT_JEMALLOC_PREFIXED
/* Read by our jemalloc when it starts. By default it keeps the address space of an arena that is
 * destroyed, 2 to 4 MiB each time: a process that reads some 60,000 files would then meet the
 * system's limit on maps. (The label, because jemalloc's header declares the name for export.) */
extern const char *const arena_jemalloc_settings __asm__("pleat_je_malloc_conf");
const char *const arena_jemalloc_settings = "retain:false";
#endif

#ifdef __SANITIZE_THREAD__
#define UNDER_THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_THREAD_SANITIZER 1
#endif
#endif

#ifdef UNDER_THREAD_SANITIZER
/* Asked for by the sanitizer when it starts. jemalloc makes an arena for a thread that first comes
 * to it and publishes it by an atomic store; who destroys an arena at that moment takes the mutexes
 * of all. Of a jemalloc that was built without the sanitizer, that sees the mutexes and not the
 * store. */
__attribute__((visibility("default"))) const char *__tsan_default_suppressions(void);
const char *__tsan_default_suppressions(void)
{
    return "race:arena_prepare_base_deletion_sync\n";
}
#endif

#define LARGE_PAGE_SHIFT 21
#define LARGE_PAGE_BYTES ((size_t)1 << LARGE_PAGE_SHIFT)

struct pleat__arena {
    unsigned index;
    int flags;
    _Atomic uint64_t allocated;
    _Atomic uint64_t peak;
};

/* ---- failures on purpose ---- */

static _Thread_local struct {
    uint64_t left; /* allocations until one fails; 0: none will */
    bool forever;
    uint64_t failed;
} failing;

void pleat__arena_fail(uint64_t nth, bool forever)
{
    failing.left = nth;
    failing.forever = forever;
    failing.failed = 0;
}

uint64_t pleat__arena_failed(void)
{
    return failing.failed;
}

static bool fails(void)
{
    if (__builtin_expect(failing.left == 0, 1) || --failing.left > 0)
        return false;
    failing.left = failing.forever;
    failing.failed++;
    return true;
}

/* ---- arenas ---- */

pleat_result pleat__arena_create(pleat__arena **out)
{
    unsigned index;
    size_t size = sizeof index;
    int code = JE(mallctl)("arenas.create", &index, &size, NULL, 0);
    if (code != 0)
        return pleat__fail_native(PLEAT_E_NO_MEMORY, code, "errno",
                                  "no jemalloc arena could be made (error %d)", code);
    int flags = MALLOCX_ARENA(index) | MALLOCX_TCACHE_NONE;
    pleat__arena *arena = JE(mallocx)(sizeof *arena, flags | MALLOCX_ZERO);
    if (arena == NULL) {
        char name[48];
        snprintf(name, sizeof name, "arena.%u.destroy", index);
        JE(mallctl)(name, NULL, NULL, NULL, 0);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a metadata arena");
    }
    arena->index = index;
    arena->flags = flags;
    *out = arena;
    return PLEAT_OK;
}

void pleat__arena_destroy(pleat__arena *arena)
{
    if (arena == NULL)
        return;
    char name[48];
    snprintf(name, sizeof name, "arena.%u.destroy", arena->index);
    JE(mallctl)(name, NULL, NULL, NULL, 0);
}

static void count_in(pleat__arena *arena, const void *pointer)
{
    uint64_t size = JE(sallocx)(pointer, arena->flags);
    uint64_t now = atomic_fetch_add_explicit(&arena->allocated, size, memory_order_relaxed) + size;
    uint64_t peak = atomic_load_explicit(&arena->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &arena->peak, &peak, now, memory_order_relaxed, memory_order_relaxed))
        ;
}

static void count_out(pleat__arena *arena, const void *pointer)
{
    uint64_t size = JE(sallocx)(pointer, arena->flags);
    atomic_fetch_sub_explicit(&arena->allocated, size, memory_order_relaxed);
}

static int flags_for(const pleat__arena *arena, uint64_t size)
{
    return size < LARGE_PAGE_BYTES ? arena->flags
                                   : arena->flags | MALLOCX_LG_ALIGN(LARGE_PAGE_SHIFT);
}

/* A wish: what the system answers makes no difference. */
static void prefer_large_pages(void *pointer, uint64_t size)
{
#ifdef MADV_HUGEPAGE
    if (size >= LARGE_PAGE_BYTES)
        (void)madvise(pointer, size & ~(LARGE_PAGE_BYTES - 1), MADV_HUGEPAGE);
#else
    (void)pointer;
    (void)size;
#endif
}

static void *allocate(pleat__arena *arena, uint64_t size, int more_flags)
{
    if (fails())
        return NULL;
    void *pointer = JE(mallocx)(size ? size : 1, flags_for(arena, size) | more_flags);
    if (pointer == NULL)
        return NULL;
    prefer_large_pages(pointer, size);
    count_in(arena, pointer);
    return pointer;
}

void *pleat__arena_alloc(pleat__arena *arena, size_t size)
{
    return allocate(arena, size, 0);
}

void *pleat__arena_calloc(pleat__arena *arena, size_t count, size_t size)
{
    uint64_t total;
    if (!pleat__mul(count, size, &total))
        return NULL;
    return allocate(arena, total, MALLOCX_ZERO);
}

void *pleat__arena_realloc(pleat__arena *arena, void *pointer, size_t size)
{
    if (pointer == NULL)
        return pleat__arena_alloc(arena, size);
    if (fails())
        return NULL;
    uint64_t before = JE(sallocx)(pointer, arena->flags);
    void *moved = JE(rallocx)(pointer, size ? size : 1, flags_for(arena, size));
    if (moved == NULL)
        return NULL;
    prefer_large_pages(moved, size);
    atomic_fetch_sub_explicit(&arena->allocated, before, memory_order_relaxed);
    count_in(arena, moved);
    return moved;
}

void pleat__arena_free(pleat__arena *arena, void *pointer)
{
    if (pointer == NULL)
        return;
    count_out(arena, pointer);
    JE(dallocx)(pointer, arena->flags);
}

pleat__arena_bytes pleat__arena_bytes_of(const pleat__arena *arena)
{
    return (pleat__arena_bytes){
        .allocated = atomic_load_explicit(&arena->allocated, memory_order_relaxed),
        .peak = atomic_load_explicit(&arena->peak, memory_order_relaxed),
    };
}

pleat_result pleat__arena_grow(pleat__arena *arena, void *items, size_t *capacity, size_t count,
                               size_t size)
{
    if (count < *capacity)
        return PLEAT_OK;
    uint64_t wanted = *capacity ? (uint64_t)*capacity * 2 : 16;
    uint64_t bytes;
    if (!pleat__mul(wanted, size, &bytes))
        return pleat__fail(PLEAT_E_NO_MEMORY, "an array of %llu items is too large",
                           (unsigned long long)wanted);
    void *old;
    memcpy(&old, items, sizeof old);
    void *grown = pleat__arena_realloc(arena, old, bytes);
    if (grown == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for an array of %llu bytes",
                           (unsigned long long)bytes);
    memcpy(items, &grown, sizeof grown);
    *capacity = wanted;
    return PLEAT_OK;
}
