/*
 * accidental_static.c: requests that only seem to repeat.
 *
 * Where sizes change from iteration to iteration, now and then one comes out the same in all that
 * were profiled: an expert got as many tokens twice. As a static request it would be given a slot
 * that it fits in one iteration of a hundred, and the runtime would lose its way there. Such a
 * request stands by dynamic ones of the same order, and its size says what it is: a size that
 * dynamic requests often had too, or one that hardly anything else has, while what is fixed in an
 * expert (its weights' gradients) is so in all of them. Taken for dynamic by mistake it costs next
 * to nothing: a lane has room for it either way. (Half as large again and no more was too strict:
 * an expert with a seventh of its neighbours' tokens, twice as many, had five slots, and of a plan
 * made of a job's third and fourth iteration 500 requests went astray in each.)
 */
#include <plan/model/model.h>

#include <internal/error.h>
#include <internal/search.h>
#include <plan/base/sort.h>

#define COMPANY 4  /* requests before and behind among which there is a dynamic one ... */
#define FACTOR  8  /* ... at most so many times larger or smaller ... */
#define AROUND  24 /* ... and among which there are as many as */
#define DENSE   4
#define RARE    16 /* static requests of that size */
#define OFTEN   4  /* dynamic ones of a size, as a part of the static ones of that size */

typedef struct chance_job {
    const pleat__model *model;
    pleat__slot *slots;
    uint32_t count;
    uint64_t *varying; /* sizes of dynamic requests that differ between profiles, ascending */
    uint64_t *fixed;   /* of static ones */
    uint32_t varying_count;
    uint32_t fixed_count;
    uint32_t *before; /* dynamic requests before each */
} chance_job;

static bool differs(const pleat__model *model, uint32_t index)
{
    const pleat__iteration *iteration = &model->iteration;
    uint64_t size = model->requests.items[iteration->steady.item + index].size;
    for (uint32_t p = 0; p < iteration->profile_count; p++) {
        uint32_t other = iteration->pairs[(uint64_t)p * iteration->steady.items + index];
        if (other != PLEAT__NEVER && model->requests.items[other].size != size)
            return true;
    }
    return false;
}

static void list_sizes(chance_job *job, uint64_t *spare)
{
    const pleat__model *model = job->model;
    for (uint32_t i = 0; i < job->count; i++) {
        bool dynamic = job->slots[i].class == PLEAT__CLASS_DYNAMIC;
        job->before[i + 1] = job->before[i] + dynamic;
        if (!dynamic)
            job->fixed[job->fixed_count++] = job->slots[i].size;
        else if (differs(model, i))
            job->varying[job->varying_count++] =
                model->requests.items[model->iteration.steady.item + i].size;
    }
    pleat__sort_keys(job->varying, spare, job->varying_count);
    pleat__sort_keys(job->fixed, spare, job->fixed_count);
}

static uint32_t first_at_least(const uint64_t *sizes, uint32_t count, uint64_t size)
{
    uint32_t at;
    PLEAT__FIRST(at, count, sizes[at] >= size);
    return at;
}

static uint32_t count_of(const uint64_t *sizes, uint32_t count, uint64_t size)
{
    return first_at_least(sizes, count, size + 1) - first_at_least(sizes, count, size);
}

static bool is_like(uint64_t size, uint64_t dynamic)
{
    return size <= dynamic * FACTOR && dynamic <= size * FACTOR;
}

static uint32_t from(uint32_t index, uint32_t reach)
{
    return index > reach ? index - reach : 0;
}

static uint32_t to(const chance_job *job, uint32_t index, uint32_t reach)
{
    return index + reach < job->count ? index + reach + 1 : job->count;
}

/* Whether this is where dynamic requests are, and one about as large is near. */
static bool has_company(const chance_job *job, uint32_t index)
{
    if (job->before[to(job, index, AROUND)] - job->before[from(index, AROUND)] < DENSE)
        return false;
    for (uint32_t i = from(index, COMPANY); i < to(job, index, COMPANY); i++)
        if (job->slots[i].class == PLEAT__CLASS_DYNAMIC &&
            is_like(job->slots[index].size, job->slots[i].size))
            return true;
    return false;
}

static bool is_by_chance(const chance_job *job, uint64_t size)
{
    uint32_t fixed = count_of(job->fixed, job->fixed_count, size);
    return fixed < RARE || count_of(job->varying, job->varying_count, size) >= fixed / OFTEN;
}

static void take_chance(chance_job *job, uint32_t index)
{
    pleat__slot *slot = &job->slots[index];
    if (slot->class != PLEAT__CLASS_DYNAMIC && is_by_chance(job, slot->size) &&
        has_company(job, index))
        slot->class = PLEAT__CLASS_DYNAMIC;
}

pleat_result pleat__model_take_chances(const pleat__model *model, pleat_plan *plan)
{
    chance_job job = {
        .model = model, .slots = plan->steady.slots, .count = plan->steady.slot_count};
    uint64_t *room = pleat__arena_alloc(model->arena, (3ull * job.count + 1) * sizeof *room);
    job.before = pleat__arena_calloc(model->arena, job.count + 1ull, sizeof *job.before);
    if (room == NULL || job.before == NULL) {
        pleat__arena_free(model->arena, room);
        pleat__arena_free(model->arena, job.before);
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the sizes of %u requests",
                           job.count);
    }
    job.varying = room;
    job.fixed = room + job.count;
    list_sizes(&job, room + 2ull * job.count);
    /* What was taken for dynamic is company in its turn. */
    for (uint32_t i = 0; i < job.count && job.varying_count > 0; i++)
        take_chance(&job, i);
    pleat__arena_free(model->arena, room);
    pleat__arena_free(model->arena, job.before);
    return PLEAT_OK;
}
