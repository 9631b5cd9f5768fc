/*
 * chunk_set.c: see chunk_set.h.
 */
#include <runtime/memory/chunk_set.h>

#include <internal/error.h>
#include <string.h>

#define WORD 64u

void pleat__chunk_set_init(pleat__chunk_set *set, pleat__arena *arena, uint32_t shift)
{
    *set = (pleat__chunk_set){.arena = arena, .shift = shift};
}

void pleat__chunk_set_release(pleat__chunk_set *set)
{
    if (set->arena != NULL)
        pleat__arena_free(set->arena, set->words);
    *set = (pleat__chunk_set){0};
}

static uint32_t run_count(const pleat__place *place)
{
    return place->several != NULL ? place->several->count : 1;
}

static const pleat__run *runs_of(const pleat__place *place)
{
    return place->several != NULL ? place->several->runs : &place->run;
}

static uint32_t last_chunk(const pleat__chunk_set *set, pleat__run run)
{
    return (run.begin + run.count - 1) >> set->shift;
}

/* The bits of a word that chunks [first, last] have in it. */
static uint64_t mask_of(uint32_t word, uint32_t first, uint32_t last)
{
    uint32_t low = first > word * WORD ? first - word * WORD : 0;
    uint32_t high = last < word * WORD + WORD - 1 ? last - word * WORD : WORD - 1;
    return (UINT64_MAX >> (WORD - 1 - high)) & (UINT64_MAX << low);
}

static pleat_result make_room(pleat__chunk_set *set, const pleat__place *place)
{
    const pleat__run *runs = runs_of(place);
    size_t words = set->capacity;
    for (uint32_t i = 0; i < run_count(place); i++) {
        size_t wanted = last_chunk(set, runs[i]) / WORD + 1;
        words = wanted > words ? wanted : words;
    }
    if (words == set->capacity)
        return PLEAT_OK;
    uint64_t *grown = pleat__arena_realloc(set->arena, set->words, words * sizeof *grown);
    if (grown == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a set of chunks");
    memset(grown + set->capacity, 0, (words - set->capacity) * sizeof *grown);
    set->words = grown;
    set->capacity = words;
    return PLEAT_OK;
}

static void change(pleat__chunk_set *set, const pleat__place *place, bool add)
{
    const pleat__run *runs = runs_of(place);
    for (uint32_t i = 0; i < run_count(place); i++) {
        uint32_t first = runs[i].begin >> set->shift, last = last_chunk(set, runs[i]);
        for (uint32_t word = first / WORD; word <= last / WORD; word++) {
            uint64_t mask = mask_of(word, first, last);
            set->words[word] = add ? set->words[word] | mask : set->words[word] & ~mask;
        }
    }
}

pleat_result pleat__chunk_set_add(pleat__chunk_set *set, const pleat__place *place)
{
    PLEAT_TRY(make_room(set, place));
    change(set, place, true);
    return PLEAT_OK;
}

void pleat__chunk_set_remove(pleat__chunk_set *set, const pleat__place *place)
{
    change(set, place, false);
}

bool pleat__chunk_set_meets_chunks(const pleat__chunk_set *set, uint32_t first, uint32_t count)
{
    uint32_t last = first + count - 1;
    for (uint32_t word = first / WORD; word <= last / WORD && word < set->capacity; word++)
        if ((set->words[word] & mask_of(word, first, last)) != 0)
            return true;
    return false;
}

bool pleat__chunk_set_meets(const pleat__chunk_set *set, const pleat__place *place)
{
    const pleat__run *runs = runs_of(place);
    for (uint32_t i = 0; i < run_count(place); i++) {
        uint32_t first = runs[i].begin >> set->shift;
        if (pleat__chunk_set_meets_chunks(set, first, last_chunk(set, runs[i]) - first + 1))
            return true;
    }
    return false;
}
