/*
 * layout.c: see layout.h.
 *
 * A layout is one sweep in order of birth (once.c): long-lived items take the lowest hole,
 * short-lived ones the highest, and what fits nowhere becomes a view. What is left to choose is the
 * lifetime that divides the two, and which few items are placed ahead of all others. That is
 * searched for when the recipe is made, at some x from its lowest to its highest, and what was best
 * at one x is nearly best around it.
 */
#include <plan/sizes/layout.h>

#include <internal/error.h>
#include <plan/base/quantiles.h>
#include <string.h>

#define CLOSE     1024u /* chunks beyond the floor that do not matter: one in so many */
#define SQUEAKERS 6u
/* Sweeps of one instance: so many requests together, and at least a few. About 0.15 us each. */
#define INSTANCE_REQUESTS 60000u
#define PAGES_FOR_REQUEST 1024u
#define SWEEPS_LEAST      3u
#define SWEEPS_MOST       200u

/* --- the problem -------------------------------------------------------------------------------*/

static pleat_result add_item(pleat__elastic_job *job, uint64_t size, uint32_t index, uint32_t begin,
                             uint32_t end, uint16_t stream)
{
    pleat__item *item = &job->items[job->problem.count];
    *item = (pleat__item){.fixed = UINT64_MAX, .begin = begin, .end = end, .stream = stream};
    if (!pleat__round_up(size, PLEAT__ALIGNMENT, &item->size) || item->size > PLEAT__SIZE_MOST)
        return pleat__fail(PLEAT_E_INPUT, "a request of %llu bytes: at most %llu can be asked for",
                           (unsigned long long)size, PLEAT__SIZE_MOST);
    job->slots[job->problem.count] = index;
    job->lives[job->problem.count++] =
        end <= begin ? job->plan->steady.events - begin + end : end - begin;
    return PLEAT_OK;
}

/* The streams of the lanes: those of the slots in them. */
static pleat_result add_lanes(pleat__elastic_job *job)
{
    const pleat_plan *plan = job->plan;
    for (uint32_t l = 0; l < plan->lane_count; l++)
        PLEAT_TRY(add_item(job, plan->lanes[l].bytes, l, plan->lanes[l].begin_at,
                           plan->lanes[l].end_at, 0));
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC && slot->lane < plan->lane_count)
            job->items[job->lanes_from + slot->lane].stream = slot->stream;
    }
    return PLEAT_OK;
}

/* The last item lies where its slot does, whatever x is (sizes.h, WHAT STAYS). */
static void keep_place(pleat__elastic_job *job, const pleat__slot *slot)
{
    if (slot->place != PLEAT__NOWHERE && slot->size != 0)
        job->items[job->problem.count - 1].fixed = slot->place;
}

static pleat_result add_items(pleat__elastic_job *job, uint32_t prologue)
{
    const pleat_plan *plan = job->plan;
    for (uint32_t i = 0; i < plan->first.slot_count; i++) {
        const pleat__slot *slot = &plan->first.slots[i];
        if (slot->class != PLEAT__CLASS_PERSISTENT)
            continue;
        PLEAT_TRY(add_item(job, slot->size, i, 0, plan->steady.events, slot->stream));
        keep_place(job, slot);
    }
    job->persistents = job->problem.count;
    for (uint32_t i = 0; i < plan->steady.slot_count; i++) {
        const pleat__slot *slot = &plan->steady.slots[i];
        if (slot->class == PLEAT__CLASS_DYNAMIC || slot->free_at == PLEAT__NEVER)
            continue;
        PLEAT_TRY(add_item(job, slot->size, i, slot->alloc_at, slot->free_at, slot->stream));
        if (i < prologue)
            keep_place(job, slot);
    }
    job->lanes_from = job->problem.count;
    return add_lanes(job);
}

/* A plan may lie on so many pages; a layout is not begun that no plan could be. */
static pleat_result check_pages(const pleat__elastic_job *job)
{
    uint64_t pages = 0;
    for (uint32_t i = 0; i < job->problem.count; i++)
        pages += pleat__ceil_div(job->items[i].size, job->plan->chunk_bytes);
    if (pages <= PLEAT__TOUCHED_MOST)
        return PLEAT_OK;
    return pleat__fail(PLEAT_E_LIMIT,
                       "the iteration's requests take %llu chunks of %llu bytes, one by one: at "
                       "most %llu can be laid out",
                       (unsigned long long)pages, (unsigned long long)job->plan->chunk_bytes,
                       PLEAT__TOUCHED_MOST);
}

static pleat_result check_sum(const pleat__elastic_job *job)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < job->problem.count; i++)
        if (!pleat__add(total, job->items[i].size, &total) || total > UINT64_MAX / 4)
            return pleat__fail(PLEAT_E_INPUT, "the iteration's requests add up to 2^62 bytes");
    return check_pages(job);
}

pleat_result pleat__elastic_job_make(const pleat_plan *plan, uint32_t prologue, uint64_t view_page,
                                     pleat__arena *scratch, pleat__elastic_job *out)
{
    *out = (pleat__elastic_job){.plan = plan, .scratch = scratch, .view_page = view_page};
    uint64_t most = (uint64_t)plan->first.slot_count + plan->steady.slot_count + plan->lane_count;
    out->items = pleat__arena_calloc(scratch, most + 1, sizeof *out->items);
    out->slots = pleat__arena_calloc(scratch, most + 1, sizeof *out->slots);
    out->lives = pleat__arena_calloc(scratch, most + 1, sizeof *out->lives);
    out->high = pleat__arena_calloc(scratch, most + 1, sizeof *out->high);
    pleat_result result = PLEAT_OK;
    if (out->items == NULL || out->slots == NULL || out->lives == NULL || out->high == NULL)
        result = pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for %llu items",
                             (unsigned long long)most);
    out->problem =
        (pleat__problem){.items = out->items, .horizon = plan->steady.events, .circular = true};
    if (result == PLEAT_OK)
        result = add_items(out, prologue);
    if (result == PLEAT_OK)
        result = check_sum(out);
    if (result != PLEAT_OK)
        pleat__elastic_job_free(out);
    return result;
}

void pleat__elastic_job_free(pleat__elastic_job *job)
{
    if (job->scratch == NULL)
        return;
    pleat__arena_free(job->scratch, job->items);
    pleat__arena_free(job->scratch, job->slots);
    pleat__arena_free(job->scratch, job->lives);
    pleat__arena_free(job->scratch, job->high);
    *job = (pleat__elastic_job){0};
}

/* --- one try -----------------------------------------------------------------------------------*/

/* The layout that a choice gives; *stuck as in pleat__fold_once. */
static pleat_result try_choice(pleat__elastic_job *job, const pleat__choice *choice,
                               pleat__layout *out, uint32_t *stuck)
{
    for (uint32_t i = 0; i < job->problem.count; i++)
        job->high[i] = job->lives[i] < choice->life;
    const pleat__fold_choice fold = {.chunk_bytes = job->plan->chunk_bytes,
                                     .high = job->high,
                                     .reserved = choice->reserved,
                                     .reserved_count = choice->reserved_count,
                                     .view_page = job->view_page,
                                     .contiguous = choice->folded == 0};
    return pleat__fold_once(&job->problem, &fold, job->scratch, out, stuck);
}

/* As few chunks as need be. */
static bool is_enough(const pleat__layout *layout)
{
    return layout->chunks <= layout->floor_chunks + layout->floor_chunks / CLOSE;
}

/* The best of several tries. */
typedef struct contest {
    pleat__elastic_job *job;
    pleat__layout layout; /* of the best, where `keeps` */
    pleat__choice choice;
    uint64_t cost; /* UINT64_MAX: none yet */
    uint64_t last; /* cost of the last try */
    uint32_t stuck;
    uint64_t work;
    uint32_t sweeps;
    bool enough;
    bool keeps;
} contest;

static pleat_result enter(contest *c, const pleat__choice *choice, uint32_t *stuck)
{
    pleat__layout layout;
    PLEAT_TRY(try_choice(c->job, choice, &layout, stuck));
    uint64_t cost = pleat__fold_cost(layout.chunks, layout.alias_pages);
    c->work += layout.work;
    c->sweeps++;
    c->last = cost;
    if (cost >= c->cost) {
        pleat__layout_free(&layout, c->job->scratch);
        return PLEAT_OK;
    }
    c->cost = cost;
    c->choice = *choice;
    c->stuck = *stuck;
    c->enough = is_enough(&layout);
    if (!c->keeps) {
        pleat__layout_free(&layout, c->job->scratch);
        return PLEAT_OK;
    }
    pleat__layout_free(&c->layout, c->job->scratch);
    c->layout = layout;
    return PLEAT_OK;
}

static void reserve_first(pleat__choice *choice, uint32_t item)
{
    memmove(choice->reserved + 1, choice->reserved,
            choice->reserved_count * sizeof *choice->reserved);
    choice->reserved[0] = item;
    choice->reserved_count++;
}

/* Who is stuck is placed ahead of everything, and all is done again, until nobody is. */
static pleat_result squeak(contest *c, pleat__choice choice, uint32_t stuck, uint64_t work,
                           uint32_t sweeps)
{
    while (stuck != UINT32_MAX && choice.reserved_count < PLEAT__RESERVED_MOST && c->work < work &&
           c->sweeps < sweeps) {
        reserve_first(&choice, stuck);
        PLEAT_TRY(enter(c, &choice, &stuck));
    }
    return PLEAT_OK;
}

/* --- searching at one x ------------------------------------------------------------------------*/

/* What has no size at this x has no life. */
static uint32_t life_of(const void *of, uint32_t dynamic)
{
    const pleat__elastic_job *job = of;
    uint32_t item = job->persistents + dynamic;
    return job->items[item].size != 0 ? job->lives[item] : PLEAT__NO_LIFE;
}

static bool spent(const contest *c, uint64_t work, uint32_t sweeps)
{
    return c->work >= work || c->sweeps >= sweeps;
}

/* The lifetime whose try cost least of those that are left; PLEAT__QUANTILES: none is. */
static uint32_t take_cheapest(uint64_t cost_of[PLEAT__QUANTILES])
{
    uint32_t q = 0;
    for (uint32_t k = 1; k < PLEAT__QUANTILES; k++)
        q = cost_of[k] < cost_of[q] ? k : q;
    if (cost_of[q] == UINT64_MAX)
        return PLEAT__QUANTILES;
    cost_of[q] = UINT64_MAX;
    return q;
}

/* All lifetimes with views; then, from the best of them on, without, and the squeaky wheel. */
static pleat_result try_all(contest *c, uint64_t work, uint32_t sweeps)
{
    uint32_t limits[PLEAT__QUANTILES], stuck, stuck_of[PLEAT__QUANTILES], q;
    uint64_t cost_of[PLEAT__QUANTILES];
    PLEAT_TRY(pleat__quantiles(c->job->scratch, life_of, c->job,
                               c->job->problem.count - c->job->persistents, limits));
    for (q = 0; q < PLEAT__QUANTILES; q++) {
        pleat__choice choice = {.life = limits[q], .folded = 1};
        cost_of[q] = UINT64_MAX;
        if (c->enough || (q > 0 && spent(c, work, sweeps)))
            continue;
        PLEAT_TRY(enter(c, &choice, &stuck_of[q]));
        cost_of[q] = c->last;
    }
    for (uint32_t s = 0; s < SQUEAKERS && !spent(c, work, sweeps) && !c->enough; s++) {
        if ((q = take_cheapest(cost_of)) == PLEAT__QUANTILES)
            break;
        pleat__choice choice = {.life = limits[q], .folded = 1}, flat = {.life = limits[q]};
        PLEAT_TRY(enter(c, &flat, &stuck));
        PLEAT_TRY(squeak(c, choice, stuck_of[q], work, sweeps));
    }
    return PLEAT_OK;
}

static bool is_alike(const pleat__choice *a, const pleat__choice *b)
{
    return a->life == b->life && a->folded == b->folded && a->reserved_count == b->reserved_count &&
           memcmp(a->reserved, b->reserved, a->reserved_count * sizeof *a->reserved) == 0;
}

/* Whether one before it makes the same layout: what is best at one x often is at others. */
static bool is_told(const pleat__recipe *recipe, uint32_t choice)
{
    for (uint32_t i = 0; i < choice; i++)
        if (is_alike(&recipe->choices[i], &recipe->choices[choice]))
            return true;
    return false;
}

pleat_result pleat__elastic_choose(pleat__elastic_job *job, const pleat__recipe *recipe,
                                   uint64_t work, pleat__choice *best)
{
    contest c = {.job = job, .cost = UINT64_MAX};
    uint32_t stuck;
    for (uint32_t i = 0; i < recipe->choice_count; i++)
        if (!is_told(recipe, i))
            PLEAT_TRY(enter(&c, &recipe->choices[i], &stuck));
    c.work = 0;
    if (work != 0 && !c.enough)
        PLEAT_TRY(try_all(&c, work, UINT32_MAX));
    *best = c.choice;
    return PLEAT_OK;
}

/* --- one instance ------------------------------------------------------------------------------*/

__extension__ typedef unsigned __int128 wide;

/* How far apart two x are, as the larger number of samples over the smaller, in 65536ths. */
static uint64_t apart(const pleat__x *a, const pleat__x *b)
{
    pleat__fraction x, y;
    if (!pleat__fraction_multiply(a->u, a->v, &x) || !pleat__fraction_multiply(b->u, b->v, &y))
        return UINT64_MAX;
    bool more = pleat__fraction_compare(x, y) >= 0;
    pleat__fraction large = more ? x : y, small = more ? y : x;
    if (small.num == 0)
        return UINT64_MAX;
    wide over = (wide)large.num * small.den, under = (wide)large.den * small.num;
    wide ratio = over >> 48 != 0 ? over / under << 16 : (over << 16) / under;
    return ratio > UINT64_MAX ? UINT64_MAX : (uint64_t)ratio;
}

/* The choices, nearest first. */
static uint32_t order_choices(const pleat__recipe *recipe, const pleat__x *x,
                              uint32_t order[PLEAT__CHOICES_MOST])
{
    uint64_t far[PLEAT__CHOICES_MOST];
    uint32_t count = recipe->choice_count;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t own = apart(&recipe->choices[i].x, x);
        uint32_t at = i;
        for (; at > 0 && far[at - 1] > own; at--) {
            far[at] = far[at - 1];
            order[at] = order[at - 1];
        }
        far[at] = own;
        order[at] = i;
    }
    return count;
}

/* What a sweep takes goes by its requests, and by the pages of its table. */
static uint32_t most_sweeps(const pleat__elastic_job *job)
{
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < job->problem.count; i++)
        bytes += job->items[i].size;
    uint64_t pages = bytes / job->plan->chunk_bytes + job->view_page;
    uint64_t one = job->problem.count + pages / PAGES_FOR_REQUEST + 1;
    uint32_t most = (uint32_t)(INSTANCE_REQUESTS / one);
    return most < SWEEPS_LEAST ? SWEEPS_LEAST : most > SWEEPS_MOST ? SWEEPS_MOST : most;
}

static pleat_result contend(contest *c, const pleat__recipe *recipe, const pleat__x *x)
{
    static const pleat__choice none = {.folded = 1};
    uint32_t order[PLEAT__CHOICES_MOST], stuck, most = most_sweeps(c->job);
    uint32_t count = order_choices(recipe, x, order);
    if (count == 0)
        return enter(c, &none, &stuck);
    for (uint32_t i = 0; i < count && c->sweeps < (most + 1) / 2 && !c->enough; i++)
        PLEAT_TRY(enter(c, &recipe->choices[order[i]], &stuck));
    while (!c->enough && c->sweeps < most && c->choice.folded != 0) {
        uint64_t before = c->cost;
        PLEAT_TRY(squeak(c, c->choice, c->stuck, UINT64_MAX, most));
        if (c->cost >= before)
            break;
    }
    /* Where requests are few, there is time for everything. */
    return c->enough ? PLEAT_OK : try_all(c, UINT64_MAX, most);
}

pleat_result pleat__elastic_lay_out(pleat__elastic_job *job, const pleat__recipe *recipe,
                                    const pleat__x *x, pleat__layout *out)
{
    contest c = {.job = job, .cost = UINT64_MAX, .keeps = true};
    pleat_result result = contend(&c, recipe, x);
    if (result != PLEAT_OK)
        pleat__layout_free(&c.layout, job->scratch);
    else
        *out = c.layout;
    return result;
}
