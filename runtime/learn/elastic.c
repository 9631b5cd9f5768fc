/*
 * elastic.c: from recorded iterations to a scale, from the first requests of an iteration to its x,
 * and from x to what is followed (see elastic.h).
 */
#include <runtime/learn/elastic.h>

#include <internal/error.h>
#include <string.h>

/* A followed iteration is odd when more than one request in so many is not as the scale says. */
#define ODD 100u
/* An x is left to be learned after so many iterations in a row in which more than one request in so
 * many found its slot taken. */
#define STRIKES 3u
#define POOR    8u
/* The rests between checks and after failures double so often. */
#define MOST_CHECKS 8u
#define REST        6u
/* A layout is kept for sizes that are known better while what they leave without a place is at most
 * one part in so many of the memory. (A GPT-2 at microbatch 8, where 44 requests were not as 2 and
 * 4 had said: a layout of its own, of the same memory, took 2,400 driver calls.) */
#define HOMELESS 64u
/* Iterations after which what was refused for lack of memory is tried again. */
#define REFUSED 16u

pleat_result pleat__elastic_init(pleat__elastic *elastic, pleat__arena *arena, pleat__heap *heap,
                                 const pleat__placed *placed, pleat_stats *stats)
{
    *elastic = (pleat__elastic){
        .arena = arena, .heap = heap, .placed = placed, .stats = stats, .recording = true};
    return pleat__lives_init(&elastic->lives, arena);
}

void pleat__elastic_release(pleat__elastic *elastic)
{
    if (elastic->arena == NULL)
        return;
    pleat__coming_release(&elastic->coming);
    /* Mapped they stay: the space unmaps what is left. */
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        pleat__instance_release(elastic->instances[i], elastic->arena);
    for (uint32_t i = 0; i < elastic->retired_count; i++)
        pleat__instance_release(elastic->retired[i], elastic->arena);
    pleat__elastic_forget(elastic);
    pleat__scale_free(elastic->scale);
    pleat__lives_release(&elastic->lives);
    *elastic = (pleat__elastic){0};
}

/* ---- instances that are done with ---- */

/* Out of the list of those that can be taken. false: too many wait already. */
static bool retire(pleat__elastic *elastic, uint32_t at)
{
    if (elastic->retired_count == PLEAT__RETIRED)
        return false;
    pleat__instance *instance = elastic->instances[at];
    if (pleat__coming_is_for(&elastic->coming, instance))
        pleat__coming_stop(&elastic->coming);
    elastic->now = elastic->now == instance ? NULL : elastic->now;
    elastic->retired[elastic->retired_count++] = instance;
    elastic->instances[at] = elastic->instances[--elastic->instance_count];
    return true;
}

/* Frees what nothing lies in any more, and nothing is made for. */
static void bury(pleat__elastic *elastic)
{
    for (uint32_t i = elastic->retired_count; i-- > 0;)
        if (!pleat__coming_is_for(&elastic->coming, elastic->retired[i]) &&
            !pleat__instance_in_use(elastic->retired[i], elastic->heap, elastic->placed) &&
            pleat__instance_free(elastic->retired[i], elastic->heap))
            elastic->retired[i] = elastic->retired[--elastic->retired_count];
}

static void retire_stale(pleat__elastic *elastic)
{
    for (uint32_t i = elastic->instance_count; i-- > 0;)
        if (elastic->instances[i]->stale && elastic->instances[i] != elastic->now)
            retire(elastic, i);
}

/* Whether all of them could be retired now. */
static bool can_retire_all(const pleat__elastic *elastic)
{
    return elastic->retired_count + elastic->instance_count <= PLEAT__RETIRED;
}

bool pleat__elastic_carry_over(pleat__elastic *elastic, const pleat__scale *scale)
{
    const pleat__pool *pool = elastic->heap->pool;
    uint64_t most = ((uint64_t)(pool->count - pool->absent) << pool->occupancy.shift) / HOMELESS;
    if (!can_retire_all(elastic))
        return false;
    for (uint32_t i = elastic->instance_count; i-- > 0;) {
        pleat__instance *instance = elastic->instances[i];
        bool holds = !instance->stale && elastic->scale != NULL &&
                     pleat__scale_is_same(elastic->scale, scale, &instance->x) &&
                     pleat__instance_refit(instance, elastic->scale, scale, most);
        if (!holds)
            retire(elastic, i);
    }
    return true;
}

bool pleat__elastic_drop(pleat__elastic *elastic)
{
    bool any = false;
    for (uint32_t i = elastic->instance_count; i-- > 0;) {
        any = any ||
              (elastic->instances[i] != elastic->now && elastic->instances[i]->view_pages != 0);
        if (elastic->instances[i] != elastic->now)
            retire(elastic, i);
    }
    bury(elastic);
    elastic->refused = PLEAT__NO_X;
    return any;
}

/* ---- recording ---- */

void pleat__elastic_found(pleat__elastic *elastic, uint32_t count, uint32_t ahead, uint32_t repeats)
{
    if (!elastic->recording || elastic->making)
        return;
    uint32_t most = repeats < PLEAT__PROFILES_KEPT ? repeats : PLEAT__PROFILES_KEPT;
    for (uint32_t k = most; k-- > 0;)
        pleat__elastic_recorded(elastic, count, ahead + k * count);
    pleat__lives_begun(&elastic->lives, count, ahead);
}

void pleat__elastic_settle(pleat__elastic *elastic, bool has_profile)
{
    elastic->settled = true;
    if (has_profile)
        pleat__elastic_record(elastic, false);
}

void pleat__elastic_record(pleat__elastic *elastic, bool on)
{
    if (elastic->arena == NULL || elastic->recording == on)
        return;
    elastic->recording = on;
    elastic->opening = false;
    elastic->settled = elastic->settled && !on;
    pleat__lives_restart(&elastic->lives);
}

void pleat__elastic_open(pleat__elastic *elastic)
{
    pleat__profile *none;
    if (elastic->arena == NULL || elastic->recording || elastic->scale != NULL ||
        elastic->profile_count == 0)
        return;
    pleat__elastic_record(elastic, true);
    pleat__lives_mark(&elastic->lives, &none); /* nothing was recorded yet */
    elastic->opening = true;
    elastic->opening_missed = 0;
}

/* ---- which x is this? ---- */

/* Requests that were not as the scale says. */
static uint64_t oddities(const pleat__elastic *elastic)
{
    return elastic->stats->diverged + elastic->stats->broken;
}

static bool is_bad(const pleat__elastic *elastic, const pleat__x *x)
{
    uint32_t count = elastic->bad_count < PLEAT__BAD ? elastic->bad_count : PLEAT__BAD;
    for (uint32_t i = 0; i < count; i++)
        if (pleat__x_equal(&elastic->bad[i], x))
            return true;
    return false;
}

void pleat__elastic_leave_x(pleat__elastic *elastic, const pleat__x *x)
{
    if (!is_bad(elastic, x))
        elastic->bad[elastic->bad_count++ % PLEAT__BAD] = *x;
}

/* An iteration was followed. At some x a job does other things than at the others: requests that it
 * leaves out make others live longer, and those find their slots taken. Where that is often so,
 * that x is left to be learned. */
static void judge_followed(pleat__elastic *elastic)
{
    uint64_t served = elastic->stats->planned - elastic->served;
    bool badly = served + elastic->scale->count / POOR < elastic->scale->count &&
                 elastic->stats->slot_busy - elastic->busy > elastic->scale->count / POOR;
    elastic->strikes = badly ? elastic->strikes + 1 : 0;
    if (elastic->strikes < STRIKES)
        return;
    pleat__elastic_leave_x(elastic, &elastic->now->fitted);
    elastic->strikes = 0;
}

/* An iteration was followed. Where too much in it was odd it is recorded when it comes again, now
 * and then: its sizes follow other functions. */
static void check_followed(pleat__elastic *elastic)
{
    bool odd = oddities(elastic) - elastic->odd > elastic->scale->count / ODD;
    elastic->proven += !odd;
    /* New memory may be had again. */
    if (elastic->unproven && !odd)
        elastic->refused = PLEAT__NO_X;
    elastic->unproven = odd;
    if (!odd && elastic->scale->plan == NULL)
        pleat__scale_reach(elastic->scale, &elastic->now->fitted);
    if (elastic->recording || elastic->clock < elastic->check_at || !odd)
        return;
    elastic->check_at = elastic->clock + (4u << elastic->checks);
    elastic->checks += elastic->checks < MOST_CHECKS;
    pleat__elastic_record(elastic, true);
    elastic->settled = true;
}

static void refuse(pleat__elastic *elastic, const pleat__x *x)
{
    elastic->refused = *x;
    elastic->refused_until = elastic->clock + REFUSED;
}

/* What was promised to an instance did not come. */
static void note_refused(pleat__elastic *elastic)
{
    if (pleat__x_is_known(&elastic->coming.refused))
        refuse(elastic, &elastic->coming.refused);
    elastic->coming.refused = PLEAT__NO_X;
}

void pleat__elastic_begin(pleat__elastic *elastic)
{
    if (elastic->arena == NULL || elastic->making)
        return;
    elastic->clock++;
    if (elastic->now != NULL) {
        elastic->failures = 0;
        check_followed(elastic);
        judge_followed(elastic);
    }
    elastic->served = elastic->stats->planned;
    elastic->busy = elastic->stats->slot_busy;
    elastic->odd = oddities(elastic);
    /* Others may have given memory back, or the limit was raised. */
    if (elastic->clock >= elastic->refused_until)
        elastic->refused = PLEAT__NO_X;
    pleat__coming_go_on(&elastic->coming);
    note_refused(elastic);
    retire_stale(elastic);
    if (elastic->retired_count != 0)
        bury(elastic);
    elastic->asking = elastic->scale != NULL && elastic->clock >= elastic->quiet_until;
    elastic->from = elastic->scale == NULL ? 0 : elastic->scale->first;
    elastic->left = elastic->now != NULL ? pleat__match_left(&elastic->now->follow->match) : 0;
    /* A plan's beginning may have marks of its own. */
    if (elastic->now != NULL && elastic->left == 0 &&
        elastic->now->follow->match.cursor < elastic->from)
        elastic->from = elastic->now->follow->match.cursor;
    elastic->asked = 0;
    elastic->tried = 0;
    elastic->here_count = 0;
    elastic->guess = PLEAT__NO_X;
    if (pleat__elastic_has_two(elastic))
        pleat__x_begin(&elastic->finder, elastic->scale->plan);
}

void pleat__elastic_followed(pleat__elastic *elastic, const pleat__follow *follow)
{
    elastic->now = NULL;
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        if (elastic->instances[i]->follow == follow)
            elastic->now = elastic->instances[i];
}

bool pleat__elastic_left(const pleat__elastic *elastic, const pleat__follow *follow)
{
    if (elastic->plan == NULL || elastic->plan != follow)
        return false;
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        if (elastic->instances[i]->follow == follow)
            return elastic->instances[i]->stale;
    return true;
}

void pleat__elastic_diverged(pleat__elastic *elastic)
{
    elastic->asking = false;
    /* Once may have been an evaluation; more often another job, which is to be learned. */
    if (elastic->now != NULL && ++elastic->failures > 1)
        elastic->quiet_until =
            elastic->clock + (2u << (elastic->failures < REST ? elastic->failures : REST));
    elastic->now = NULL;
    elastic->opening = false;
    pleat__elastic_record(elastic, true);
}

void pleat__elastic_rest(pleat__elastic *elastic, uint32_t iterations)
{
    if (elastic->arena == NULL)
        return;
    elastic->failures = 0;
    elastic->quiet_until = elastic->clock + iterations;
    pleat__elastic_record(elastic, iterations == 0);
}

static void note_x(pleat__elastic *elastic, const pleat__x *x)
{
    elastic->x = *x;
    elastic->stats->inferred_x = x->u.num / x->u.den;
    if (!pleat__elastic_has_seen(elastic, x))
        elastic->seen[elastic->seen_count++ % PLEAT__SEEN] = *x;
}

/* ---- from x to an instance ---- */

static bool crosses(const void *context, pleat_va address)
{
    const pleat__elastic *elastic = context;
    return pleat__lives_crosses(&elastic->lives, address) ||
           pleat__live_find(&elastic->crossing, address) != NULL;
}

static pleat_result add_crossing(pleat__elastic *elastic, const pleat__place *place)
{
    if (place->granules == 0 || pleat__live_find(&elastic->crossing, place->address) != NULL)
        return PLEAT_OK;
    PLEAT_TRY(pleat__live_reserve(&elastic->crossing));
    pleat__live_insert(&elastic->crossing, place->address, elastic);
    return PLEAT_OK;
}

pleat__ground pleat__elastic_ground(const pleat__elastic *elastic)
{
    const pleat__instance *now = elastic->now;
    bool begins = now != NULL && now->follow->match.cursor < now->follow->match.begin;
    return (pleat__ground){.arena = elastic->arena,
                           .heap = elastic->heap,
                           .placed = elastic->placed,
                           .crosses = crosses,
                           .context = elastic,
                           .beginning = begins ? elastic->plan : NULL,
                           .tight = elastic->tight,
                           .frugal = elastic->unproven};
}

/* Whether a request that is there can stay where it is: in one run, at home, of its own stream's
 * memory, and as large as it is to be at x. */
static bool can_stay(const pleat__elastic *elastic, const pleat__place *place, uint32_t at,
                     const pleat__x *x)
{
    const pleat__term *term = &elastic->scale->terms[at];
    return place->several == NULL && term->stream == 0 && !term->loose &&
           term->end != PLEAT__NEVER &&
           place->address == pleat__pool_address(elastic->heap->pool, place->run.begin) &&
           pleat__ceil_div(pleat__scale_bytes(elastic->scale, term, x), PLEAT__GRANULE_BYTES) ==
               place->granules;
}

/* What this iteration has allocated so far keeps its place in the new instance, or is in its way.
 * How many keep theirs. */
static pleat_result list_here(pleat__elastic *elastic, const pleat__x *x, pleat__held *stay,
                              uint32_t *count)
{
    for (uint32_t i = 0; i < elastic->here_count; i++) {
        const pleat__held held = elastic->here[i];
        const pleat__place *place = pleat__placed_find(elastic->placed, held.address);
        if (place == NULL || held.term == PLEAT__NEVER || !can_stay(elastic, place, held.term, x) ||
            pleat__live_find(&elastic->crossing, held.address) != NULL)
            continue;
        PLEAT_TRY(add_crossing(elastic, place));
        stay[(*count)++] = held;
    }
    return PLEAT_OK;
}

/* Where what is followed has requests that the next iteration frees. */
pleat_result pleat__elastic_list_crossing(pleat__elastic *elastic, const pleat__follow *current)
{
    const pleat__profile *latest = elastic->latest;
    if (current == NULL)
        return PLEAT_OK;
    bool ours = pleat__elastic_follows(elastic, current);
    if (!ours && (!current->learned || latest == NULL || latest->count != current->count))
        return PLEAT_OK;
    for (uint32_t i = 0; i < current->count; i++) {
        uint32_t begin = ours ? elastic->scale->terms[i].begin : latest->parts[i].begin;
        uint32_t end = ours ? elastic->scale->terms[i].end : latest->parts[i].end;
        if (end <= begin && current->items[i].kind == PLEAT__ITEM_SLOT)
            PLEAT_TRY(add_crossing(elastic, &current->items[i].place));
    }
    return PLEAT_OK;
}

/* Room in the list of instances: the one that was followed the longest ago goes. */
static bool make_room(pleat__elastic *elastic)
{
    uint32_t oldest = PLEAT__INSTANCES;
    if (elastic->instance_count < PLEAT__INSTANCES)
        return true;
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        if (elastic->instances[i] != elastic->now &&
            (oldest == PLEAT__INSTANCES ||
             elastic->instances[i]->used < elastic->instances[oldest]->used))
            oldest = i;
    return oldest != PLEAT__INSTANCES && retire(elastic, oldest);
}

/* Others may allocate and free meanwhile, but none of this is changed. */
static pleat_result make_instance(pleat__elastic *elastic, const pleat__x *x,
                                  const pleat__follow *current, pleat__instance **out)
{
    pleat__held stay[PLEAT__LOOKED_AT];
    pleat__ground ground = pleat__elastic_ground(elastic);
    ground.held = stay;
    ground.coming = &elastic->coming;
    *out = NULL;
    PLEAT_TRY(pleat__live_create(elastic->arena, &elastic->crossing));
    pleat_result result = pleat__elastic_list_crossing(elastic, current);
    if (result == PLEAT_OK)
        result = list_here(elastic, x, stay, &ground.held_count);
    elastic->making = true;
    if (result == PLEAT_OK)
        result = pleat__instance_make(&ground, elastic->scale, x, &elastic->choice, out);
    elastic->making = false;
    pleat__live_destroy(&elastic->crossing);
    if (result != PLEAT_OK || !(*out)->stale)
        return result;
    /* What was promised to it did not come, before anybody followed it. */
    elastic->instances[elastic->instance_count++] = *out;
    (void)retire(elastic, elastic->instance_count - 1);
    return pleat__fail(PLEAT_E_OUT_OF_MEMORY, "no memory for another size");
}

/* The one followed when it holds x, else the smallest that does; NULL: there is none. */
static pleat__instance *choose(const pleat__elastic *elastic, const pleat__x *x)
{
    pleat__instance *best = NULL;
    if (elastic->now != NULL && pleat__x_holds(&elastic->now->x, x) && !elastic->now->stale)
        return elastic->now;
    for (uint32_t i = 0; i < elastic->instance_count; i++) {
        pleat__instance *instance = elastic->instances[i];
        if (!instance->stale && pleat__x_holds(&instance->x, x) &&
            (best == NULL || pleat__x_holds(&best->x, &instance->x)))
            best = instance;
    }
    return best;
}

static pleat__instance *add_instance(pleat__elastic *elastic, pleat__instance *made)
{
    elastic->stats->instances++;
    elastic->stats->instance_maps += made->view_pages;
    elastic->instances[elastic->instance_count++] = made;
    return made;
}

/* An instance for x in as little memory as it takes, for all that came lately; then the others go.
 * Where it cannot be made all stays as it is. */
static pleat__instance *lay_out_tightly(pleat__elastic *elastic, const pleat__x *x,
                                        const pleat__follow *current)
{
    pleat__instance *made;
    pleat__x both = pleat__x_larger(x, &elastic->tight_x);
    if (!make_room(elastic) || make_instance(elastic, &both, current, &made) != PLEAT_OK) {
        elastic->tight = false;
        return choose(elastic, x);
    }
    for (uint32_t i = elastic->instance_count; i-- > 0;)
        retire(elastic, i);
    pleat__elastic_tightened(elastic);
    return add_instance(elastic, made);
}

/* A new instance for x. NULL: there is no memory, or what was learned serves better: sizes were not
 * as the scale says. */
static pleat__instance *lay_out(pleat__elastic *elastic, const pleat__x *x,
                                const pleat__follow *current)
{
    pleat__instance *made;
    if (elastic->unproven && current != NULL && current->learned)
        return NULL;
    if (pleat__x_is_known(&elastic->refused) && pleat__x_holds(x, &elastic->refused))
        return NULL;
    if (make_room(elastic) && make_instance(elastic, x, current, &made) == PLEAT_OK)
        return add_instance(elastic, made);
    refuse(elastic, x);
    return NULL;
}

static pleat__instance *new_instance(pleat__elastic *elastic, const pleat__x *x,
                                     const pleat__follow *current)
{
    return elastic->tight ? lay_out_tightly(elastic, x, current) : lay_out(elastic, x, current);
}

/* Follows the instance from the request that is the term on. */
static pleat__asked take(pleat__elastic *elastic, pleat__instance *instance, const pleat__x *x,
                         uint32_t term, pleat__follow **follow)
{
    if (elastic->now == instance && pleat__x_equal(&instance->fitted, x))
        return PLEAT__ASKED_SAME;
    elastic->stats->instance_switches += instance != elastic->now;
    elastic->now = instance;
    instance->used = elastic->clock;
    pleat__instance_fit(instance, elastic->scale, x);
    pleat__match_resized(&instance->follow->match, term);
    *follow = instance->follow;
    return PLEAT__ASKED_TAKE;
}

/* Memory for an instance is not made any more; false: meanwhile the job went on. */
static bool clear_coming(pleat__elastic *elastic)
{
    uint64_t clock = elastic->clock, left = elastic->heap->pool->gate->left;
    pleat__coming_clear(&elastic->coming);
    return elastic->clock == clock && elastic->heap->pool->gate->left == left;
}

/* The iteration's x is known, and no instance is there for it. */
static pleat_result settle(pleat__elastic *elastic, const pleat__x *x, uint32_t term,
                           const pleat__follow *current, pleat__asked *asked,
                           pleat__follow **follow)
{
    bool in_range = pleat__scale_in_range(elastic->scale, x), bad = is_bad(elastic, x);
    if (in_range && !bad && pleat__gate_turn(elastic->heap->pool->gate) != PLEAT_OK) {
        /* It comes again, and counts then. */
        elastic->asking = true;
        elastic->asked--;
        elastic->tried -= elastic->tried != 0;
        return PLEAT_E_NOT_READY;
    }
    if (in_range && !bad && !clear_coming(elastic))
        return PLEAT_E_NOT_READY;
    elastic->asking = false;
    note_x(elastic, x);
    elastic->stats->out_of_range += !in_range;
    pleat__instance *instance = in_range && !bad ? new_instance(elastic, x, current) : NULL;
    *asked = instance != NULL ? take(elastic, instance, x, term, follow) : PLEAT__ASKED_NONE;
    return PLEAT_OK;
}

/* A request of the iteration before says nothing of this one's x. */
static bool is_left_over(pleat__elastic *elastic, uint64_t bytes, const pleat__follow *current)
{
    bool is = elastic->left != 0 && current != NULL && pleat__elastic_follows(elastic, current) &&
              current->items[current->match.cursor].bytes == bytes;
    elastic->left -= is;
    elastic->left = is ? elastic->left : 0;
    return is;
}

/* One odd request is not to make an instance, or to say that there is none. */
pleat_result pleat__elastic_ask(pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                                const pleat__follow *current, pleat__asked *asked,
                                pleat__follow **follow)
{
    pleat__told told;
    *asked = PLEAT__ASKED_WAIT;
    elastic->passed =
        is_left_over(elastic, bytes, current) || pleat__elastic_is_constant(elastic, bytes, stream);
    if (elastic->passed)
        return PLEAT_OK;
    if (++elastic->asked > PLEAT__LOOKED_AT)
        elastic->asking = false;
    if (!pleat__elastic_tell(elastic, bytes, stream, current, &told))
        return PLEAT_OK;
    bool usable = told.likely && !elastic->tight && !is_bad(elastic, &told.x);
    pleat__instance *instance = usable ? choose(elastic, &told.x) : NULL;
    if (told.certain && instance == NULL)
        return settle(elastic, &told.x, told.term, current, asked, follow);
    if (instance != NULL)
        *asked = take(elastic, instance, &told.x, told.term, follow);
    if (told.certain)
        note_x(elastic, &told.x);
    elastic->asking = elastic->asking && !told.certain;
    return PLEAT_OK;
}

/* ---- a plan ---- */

pleat_result pleat__elastic_load(pleat__elastic *elastic, const pleat_plan *plan,
                                 pleat__follow *follow)
{
    const pleat__ground ground = pleat__elastic_ground(elastic);
    pleat__instance *planned;
    PLEAT_TRY(pleat__scale_of_plan(elastic->arena, plan, &elastic->scale));
    PLEAT_TRY(pleat__instance_of_plan(&ground, plan, follow, &planned));
    elastic->instances[elastic->instance_count++] = planned;
    elastic->plan = follow;
    pleat__elastic_record(elastic, false);
    pleat__elastic_followed(elastic, follow);
    pleat__elastic_begin(elastic);
    return PLEAT_OK;
}

static pleat__instance *take_planned(pleat__instance **list, uint32_t *count)
{
    for (uint32_t i = 0; i < *count; i++) {
        pleat__instance *instance = list[i];
        if (!instance->planned)
            continue;
        list[i] = list[--*count];
        return instance;
    }
    return NULL;
}

bool pleat__elastic_unload(pleat__elastic *elastic, pleat__instance **planned)
{
    *planned = NULL;
    if (elastic->plan == NULL)
        return true;
    pleat__coming_stop(&elastic->coming);
    if (elastic->making || elastic->measuring || elastic->coming.instance != NULL ||
        !can_retire_all(elastic))
        return false;
    *planned = take_planned(elastic->instances, &elastic->instance_count);
    if (*planned == NULL)
        *planned = take_planned(elastic->retired, &elastic->retired_count);
    elastic->plan = NULL;
    if (elastic->scale == NULL || elastic->scale->plan == NULL)
        return true;
    while (elastic->instance_count != 0)
        retire(elastic, elastic->instance_count - 1);
    pleat__scale_free(elastic->scale);
    elastic->scale = NULL;
    elastic->now = NULL;
    elastic->asking = false;
    elastic->tight = false;
    elastic->unproven = false;
    pleat__elastic_record(elastic, true);
    return true;
}

/* ---- memory ---- */

void pleat__elastic_shrunk(pleat__elastic *elastic, uint64_t page)
{
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        if (elastic->instances[i]->end_page > page)
            elastic->instances[i]->stale = true;
    if (elastic->coming.instance != NULL && elastic->coming.instance->stale)
        pleat__coming_stop(&elastic->coming);
    elastic->refused = PLEAT__NO_X;
}
