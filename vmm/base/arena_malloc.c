/*
 * arena_malloc.c: blocks of arenas that are malloc's, each by itself, for the address sanitizer: it
 * keeps poisoned bytes around each, and a freed one poisoned for a while.
 *
 * No block begins at a large page: nobody measures under a sanitizer.
 *
 * BLOCK  The bytes asked for, and behind them, poisoned too, the address of the block's link in its
 *        arena's list: at the end of what malloc says that the block has.
 */
#include "arena_blocks.h"

#include <internal/check.h>
#include <internal/error.h>

#include <malloc.h>
#include <pthread.h>
#include <sanitizer/asan_interface.h>
#include <stdlib.h>
#include <string.h>

/* More than there is; the sanitizer ends a program that asks for it (D480). */
#define SIZE_MOST ((size_t)1 << 40)

typedef struct link {
    struct link *next;
    struct link *previous;
    void *block;
    size_t size; /* asked for */
} link;

typedef struct malloc_arena {
    pleat__arena arena;
    pthread_mutex_t lock;
    link all; /* the list's end, both ways */
} malloc_arena;

pleat_result pleat__blocks_open(pleat__arena **out)
{
    malloc_arena *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a metadata arena");
    pthread_mutex_init(&made->lock, NULL);
    made->all.next = made->all.previous = &made->all;
    *out = &made->arena;
    return PLEAT_OK;
}

void pleat__blocks_close(pleat__arena *arena)
{
    malloc_arena *own = (malloc_arena *)arena;
    for (link *at = own->all.next, *next; at != &own->all; at = next) {
        next = at->next;
        free(at->block);
        free(at);
    }
    pthread_mutex_destroy(&own->lock);
    free(own);
}

/* Where a block keeps its link. */
static char *tail_of(const void *block)
{
    return (char *)(uintptr_t)block + malloc_usable_size((void *)(uintptr_t)block) - sizeof(link *);
}

static link *link_of(const void *block)
{
    link *found;
    char *tail = tail_of(block);
    ASAN_UNPOISON_MEMORY_REGION(tail, sizeof found);
    memcpy(&found, tail, sizeof found);
    ASAN_POISON_MEMORY_REGION(tail, sizeof found);
    PLEAT_CHECK(found->block == block);
    return found;
}

static void put_in(malloc_arena *own, link *made)
{
    char *tail = tail_of(made->block), *end = (char *)made->block + made->size;
    memcpy(tail, &made, sizeof made);
    ASAN_POISON_MEMORY_REGION(end, (size_t)(tail - end) + sizeof made);
    pthread_mutex_lock(&own->lock);
    made->next = own->all.next;
    made->previous = &own->all;
    made->next->previous = made->previous->next = made;
    pthread_mutex_unlock(&own->lock);
}

static void take_out(malloc_arena *own, const link *gone)
{
    pthread_mutex_lock(&own->lock);
    gone->previous->next = gone->next;
    gone->next->previous = gone->previous;
    pthread_mutex_unlock(&own->lock);
}

void *pleat__blocks_take(pleat__arena *arena, size_t size, pleat__contents contents)
{
    if (size > SIZE_MOST)
        return NULL;
    link *made = malloc(sizeof *made);
    size_t whole = (size + 7) / 8 * 8 + sizeof made;
    if (made != NULL) /* calloc touches no page that is new */
        *made = (link){.block = contents != PLEAT__CONTENTS_ANY ? calloc(1, whole) : malloc(whole),
                       .size = size};
    if (made == NULL || made->block == NULL) {
        free(made);
        return NULL;
    }
    put_in((malloc_arena *)arena, made);
    return made->block;
}

void *pleat__blocks_resize(pleat__arena *arena, void *pointer, size_t size)
{
    size_t before = link_of(pointer)->size;
    void *moved = pleat__blocks_take(arena, size, PLEAT__CONTENTS_ANY);
    if (moved == NULL)
        return NULL;
    memcpy(moved, pointer, size < before ? size : before);
    pleat__blocks_give(arena, pointer);
    return moved;
}

void pleat__blocks_give(pleat__arena *arena, void *pointer)
{
    link *gone = link_of(pointer);
    take_out((malloc_arena *)arena, gone);
    free(gone);
    free(pointer);
}

size_t pleat__blocks_size(const pleat__arena *arena, const void *pointer)
{
    (void)arena;
    return link_of(pointer)->size;
}
