/*
 * arena_jemalloc.c: blocks of arenas that are jemalloc's. The library may be a private build with
 * prefixed symbols (the default; see tools/setup) or the system's (PLEAT_JEMALLOC=system), hence
 * the JE() names.
 *
 * A private arena has no thread cache here: its blocks are few and long-lived, and a cache would
 * keep blocks of an arena alive that is destroyed whole.
 *
 * Large blocks are tables that are read all over: they begin at a large page, and the system is
 * asked to back them so. (With 45,000 tensors live the 99th percentile of a planned allocation went
 * from 240 to 210 ns by it, of a free from 400 to 340 ns, on a busy machine.)
 */
#include "arena_blocks.h"

#include <internal/error.h>

#include <jemalloc/jemalloc.h>
#include <stdio.h>
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

typedef struct jemalloc_arena {
    pleat__arena arena;
    unsigned index;
    int flags;
} jemalloc_arena;

static int flags_of(const pleat__arena *arena)
{
    return ((const jemalloc_arena *)arena)->flags;
}

pleat_result pleat__blocks_open(pleat__arena **out)
{
    unsigned index;
    size_t size = sizeof index;
    int code = JE(mallctl)("arenas.create", &index, &size, NULL, 0);
    if (code != 0)
        return pleat__fail_code(PLEAT_E_NO_MEMORY, code, "no jemalloc arena could be made");
    int flags = MALLOCX_ARENA(index) | MALLOCX_TCACHE_NONE;
    jemalloc_arena *made = JE(mallocx)(sizeof *made, flags | MALLOCX_ZERO);
    if (made == NULL) {
        char name[48];
        snprintf(name, sizeof name, "arena.%u.destroy", index);
        JE(mallctl)(name, NULL, NULL, NULL, 0);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a metadata arena");
    }
    made->index = index;
    made->flags = flags;
    *out = &made->arena;
    return PLEAT_OK;
}

void pleat__blocks_close(pleat__arena *arena)
{
    char name[48];
    snprintf(name, sizeof name, "arena.%u.destroy", ((jemalloc_arena *)arena)->index);
    JE(mallctl)(name, NULL, NULL, NULL, 0);
}

static int flags_for(const pleat__arena *arena, size_t size)
{
    return size < PLEAT__LARGE_PAGE_BYTES
               ? flags_of(arena)
               : flags_of(arena) | MALLOCX_ALIGN(PLEAT__LARGE_PAGE_BYTES);
}

/* A wish: what the system answers makes no difference. */
static void *prefer_large_pages(void *pointer, size_t size)
{
#ifdef MADV_HUGEPAGE
    if (pointer != NULL && size >= PLEAT__LARGE_PAGE_BYTES)
        (void)madvise(pointer, size & ~(PLEAT__LARGE_PAGE_BYTES - 1), MADV_HUGEPAGE);
#endif
    return pointer;
}

/* In a sparse block each first write to a large page would clear 2 MiB, 0.2 ms: a job that
 * allocates 3 GiB met twenty of them in the tables by page of its window. */
void *pleat__blocks_take(pleat__arena *arena, size_t size, pleat__contents contents)
{
    int flags = flags_for(arena, size) | (contents != PLEAT__CONTENTS_ANY ? MALLOCX_ZERO : 0);
    void *block = JE(mallocx)(size, flags);
    return contents == PLEAT__CONTENTS_SPARSE ? block : prefer_large_pages(block, size);
}

void *pleat__blocks_resize(pleat__arena *arena, void *pointer, size_t size)
{
    return prefer_large_pages(JE(rallocx)(pointer, size, flags_for(arena, size)), size);
}

void pleat__blocks_give(pleat__arena *arena, void *pointer)
{
    JE(dallocx)(pointer, flags_of(arena));
}

size_t pleat__blocks_size(const pleat__arena *arena, const void *pointer)
{
    return JE(sallocx)(pointer, flags_of(arena));
}
