/*
 * elastic.c: from recorded iterations to a scale, from the first requests of an iteration to its x,
 * and from x to what is followed (see elastic.h).
 */
#include <runtime/elastic.h>

#include <internal/error.h>
#include <string.h>

/* Terms ahead that a request is looked for among, and requests that are looked at. */
#define NEAR 16u
#define MOST 96u
/* A new largest x is laid out for this part more, where x keeps changing. */
#define HEADROOM 50u
/* Of the last 16 iterations, those that had another x than the one before. */
#define CHANGING 6
/* A recorded iteration is as the scale says when one request in so many at most is not. */
#define BROKEN    100u
#define STRANGERS 3u
/* An x is left to be learned after so many iterations in a row in which more than one request in so
 * many found its slot taken. */
#define STRIKES 3u
#define POOR    8u
/* The rests between checks and after failures double so often. */
#define MOST_CHECKS 8u
#define REST        6u

pleat_result pleat__elastic_init(pleat__elastic *elastic, pleat__arena *arena, pleat__heap *heap,
                                 const pleat__placed *placed, pleat_stats *stats)
{
    *elastic = (pleat__elastic){
        .arena = arena, .heap = heap, .placed = placed, .stats = stats, .recording = true};
    return pleat__lives_init(&elastic->lives, arena);
}

static void drop_profiles(pleat__elastic *elastic)
{
    for (uint32_t s = 0; s < elastic->profile_count; s++)
        pleat__profile_free(elastic->profiles[s]);
    elastic->profile_count = 0;
    elastic->latest = NULL;
}

void pleat__elastic_release(pleat__elastic *elastic)
{
    if (elastic->arena == NULL)
        return;
    /* Mapped they stay: the space unmaps what is left. */
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        pleat__follow_free(elastic->instances[i]->follow);
    for (uint32_t i = 0; i < elastic->retired_count; i++)
        pleat__follow_free(elastic->retired[i]->follow);
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        pleat__arena_free(elastic->arena, elastic->instances[i]);
    for (uint32_t i = 0; i < elastic->retired_count; i++)
        pleat__arena_free(elastic->arena, elastic->retired[i]);
    drop_profiles(elastic);
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
    elastic->now = elastic->now == instance ? NULL : elastic->now;
    elastic->retired[elastic->retired_count++] = instance;
    elastic->instances[at] = elastic->instances[--elastic->instance_count];
    return true;
}

/* Frees what nothing lies in any more. */
static void bury(pleat__elastic *elastic)
{
    for (uint32_t i = elastic->retired_count; i-- > 0;)
        if (!pleat__instance_in_use(elastic->retired[i], elastic->placed, elastic->heap->pool) &&
            pleat__instance_free(elastic->retired[i], elastic->heap))
            elastic->retired[i] = elastic->retired[--elastic->retired_count];
}

static void retire_stale(pleat__elastic *elastic)
{
    for (uint32_t i = elastic->instance_count; i-- > 0;)
        if (elastic->instances[i]->stale && elastic->instances[i] != elastic->now)
            retire(elastic, i);
}

static bool retire_all(pleat__elastic *elastic)
{
    while (elastic->instance_count != 0)
        if (!retire(elastic, elastic->instance_count - 1))
            return false;
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
    elastic->refused = 0;
    return any;
}

/* ---- from iterations to a scale ---- */

/* Whether a profile is the scale at some x, which then is in range from now on. */
static bool conforms(pleat__elastic *elastic, const pleat__profile *profile)
{
    pleat__scale *scale = elastic->scale;
    uint64_t x = 0;
    uint32_t broken = 0;
    if (scale == NULL || profile->count != scale->count)
        return false;
    for (uint32_t i = 0; i < scale->count && x == 0; i++)
        (void)!pleat__scale_infer(scale, &scale->terms[i], profile->parts[i].bytes, &x);
    for (uint32_t i = 0; i < scale->count && x != 0; i++)
        broken += !scale->terms[i].loose &&
                  pleat__scale_bytes(scale, &scale->terms[i], x) != profile->parts[i].bytes;
    if (x == 0 || broken > scale->count / BROKEN)
        return false;
    scale->least = x < scale->least ? x : scale->least;
    scale->most = x > scale->most ? x : scale->most;
    return true;
}

/* Keeps a profile instead of another one, or as one more. */
static void put_profile(pleat__elastic *elastic, uint32_t at, pleat__profile *profile)
{
    if (at < elastic->profile_count)
        pleat__profile_free(elastic->profiles[at]);
    else
        elastic->profile_count++;
    elastic->profiles[at] = profile;
    elastic->latest = profile;
}

static void trust(pleat__elastic *elastic)
{
    elastic->failures = 0;
    elastic->quiet_until = 0;
}

static void take_scale(pleat__elastic *elastic, pleat__scale *scale)
{
    if (!retire_all(elastic)) {
        pleat__scale_free(scale);
        return;
    }
    elastic->stats->refits += elastic->scale != NULL;
    pleat__scale_free(elastic->scale);
    elastic->scale = scale;
    elastic->choice = (pleat__sweep_choice){0, 0};
    elastic->refused = 0;
    elastic->seen_count = 0;
    elastic->bad_count = 0;
    elastic->strikes = 0;
    elastic->x = 0;
    elastic->checks = 0;
    trust(elastic);
}

/* An iteration that is none of those known at another x: an evaluation between two marks is passed
 * over, a new job is not. */
static void add_stranger(pleat__elastic *elastic, pleat__profile *profile)
{
    elastic->strangers++;
    elastic->patience = 1u << (elastic->strangers < 6 ? elastic->strangers : 6);
    if (elastic->profile_count != 0 && elastic->strangers < STRANGERS) {
        pleat__profile_free(profile);
        return;
    }
    drop_profiles(elastic);
    put_profile(elastic, 0, profile);
}

/* The scale of all profiles, or where there is none of the last two. */
static void fit(pleat__elastic *elastic)
{
    pleat__scale *scale;
    uint32_t last = elastic->profile_count > 2 ? elastic->profile_count - 2 : 0;
    if (pleat__scale_make(elastic->arena, elastic->profiles, elastic->profile_count, &scale) ==
            PLEAT__SCALE_FITTED ||
        (last != 0 && pleat__scale_make(elastic->arena, elastic->profiles + last, 2, &scale) ==
                          PLEAT__SCALE_FITTED))
        take_scale(elastic, scale);
}

static void add_profile(pleat__elastic *elastic, pleat__profile *profile)
{
    bool akin = elastic->profile_count == 0;
    for (uint32_t s = 0; s < elastic->profile_count; s++) {
        pleat__profile *two[2] = {elastic->profiles[s], profile};
        pleat__scale *scale;
        pleat__scale_fit result = pleat__scale_make(elastic->arena, two, 2, &scale);
        pleat__scale_free(scale);
        akin = akin || result == PLEAT__SCALE_FITTED;
        if (result == PLEAT__SCALE_SAME) {
            put_profile(elastic, s, profile);
            elastic->strangers = 0;
            return;
        }
    }
    if (!akin) {
        add_stranger(elastic, profile);
        return;
    }
    elastic->strangers = 0;
    if (elastic->profile_count == PLEAT__PROFILES_KEPT) {
        /* The oldest in between: the range is the ends'. */
        pleat__profile_free(elastic->profiles[1]);
        memmove(&elastic->profiles[1], &elastic->profiles[2],
                (PLEAT__PROFILES_KEPT - 2) * sizeof elastic->profiles[0]);
        elastic->profile_count--;
    }
    put_profile(elastic, elastic->profile_count, profile);
    if (elastic->profile_count > 1)
        fit(elastic);
}

void pleat__elastic_recorded(pleat__elastic *elastic, uint32_t count, uint32_t ahead)
{
    pleat__profile *profile = NULL;
    if (!elastic->recording || elastic->making)
        return;
    if (count == 0)
        pleat__lives_mark(&elastic->lives, &profile);
    else
        profile = pleat__lives_last(&elastic->lives, count, ahead);
    if (profile == NULL)
        return;
    if (elastic->patience != 0) {
        elastic->patience--;
        pleat__profile_free(profile);
        return;
    }
    if (conforms(elastic, profile)) {
        trust(elastic);
        pleat__profile_free(profile);
    } else {
        add_profile(elastic, profile);
    }
    if (elastic->settled)
        pleat__elastic_record(elastic, false);
}

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
    elastic->settled = elastic->settled && !on;
    pleat__lives_restart(&elastic->lives);
}

/* ---- which x is this? ---- */

/* Requests that were not as the scale says. */
static uint64_t oddities(const pleat__elastic *elastic)
{
    return elastic->stats->diverged + elastic->stats->broken;
}

static bool is_bad(const pleat__elastic *elastic, uint64_t x)
{
    uint32_t count = elastic->bad_count < PLEAT__BAD ? elastic->bad_count : PLEAT__BAD;
    for (uint32_t i = 0; i < count; i++)
        if (elastic->bad[i] == x)
            return true;
    return false;
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
    if (elastic->strikes < STRIKES || is_bad(elastic, elastic->now->fitted))
        return;
    elastic->bad[elastic->bad_count++ % PLEAT__BAD] = elastic->now->fitted;
    elastic->strikes = 0;
}

/* An iteration was followed. Where too much in it was odd it is recorded when it comes again, now
 * and then: its sizes follow other functions. */
static void check_followed(pleat__elastic *elastic)
{
    if (elastic->recording || elastic->clock < elastic->check_at ||
        oddities(elastic) - elastic->odd <= elastic->scale->count / BROKEN)
        return;
    elastic->check_at = elastic->clock + (4u << elastic->checks);
    elastic->checks += elastic->checks < MOST_CHECKS;
    pleat__elastic_record(elastic, true);
    elastic->settled = true;
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
    retire_stale(elastic);
    if (elastic->retired_count != 0)
        bury(elastic);
    elastic->asking = elastic->scale != NULL && elastic->clock >= elastic->quiet_until;
    elastic->at = 0;
    elastic->asked = 0;
    elastic->guess = 0;
}

void pleat__elastic_diverged(pleat__elastic *elastic)
{
    elastic->asking = false;
    /* Once may have been an evaluation; more often another job, which is to be learned. */
    if (elastic->now != NULL && ++elastic->failures > 1)
        elastic->quiet_until =
            elastic->clock + (2u << (elastic->failures < REST ? elastic->failures : REST));
    elastic->now = NULL;
    pleat__elastic_record(elastic, true);
}

static bool is_seen(const pleat__elastic *elastic, uint64_t x)
{
    uint32_t count = elastic->seen_count < PLEAT__SEEN ? elastic->seen_count : PLEAT__SEEN;
    for (uint32_t i = 0; i < count; i++)
        if (elastic->seen[i] == x)
            return true;
    return false;
}

static void note_x(pleat__elastic *elastic, uint64_t x)
{
    elastic->changes = elastic->changes << 1 | (elastic->x != 0 && elastic->x != x);
    elastic->x = x;
    elastic->stats->inferred_x = x;
    if (!is_seen(elastic, x))
        elastic->seen[elastic->seen_count++ % PLEAT__SEEN] = x;
}

/* The term that a request is at the x guessed, from the one expected next on. */
static bool find_at_guess(const pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                          uint32_t *found)
{
    const pleat__scale *scale = elastic->scale;
    for (uint32_t i = elastic->at; i < scale->count && i < elastic->at + NEAR; i++) {
        const pleat__term *term = &scale->terms[i];
        *found = i;
        if (term->stream == stream && !term->loose &&
            pleat__scale_bytes(scale, term, elastic->guess) == bytes)
            return true;
    }
    return false;
}

/* The same at any x, which is then in *x; 0: the term says nothing of it. */
static bool find_term(const pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                      uint32_t *found, uint64_t *x)
{
    const pleat__scale *scale = elastic->scale;
    *x = elastic->guess;
    if (*x != 0 && find_at_guess(elastic, bytes, stream, found)) {
        *x = scale->terms[*found].rise != 0 ? *x : 0;
        return true;
    }
    for (uint32_t i = elastic->at; i < scale->count && i < elastic->at + NEAR; i++) {
        const pleat__term *term = &scale->terms[i];
        *x = 0;
        *found = i;
        if (term->stream != stream)
            continue;
        if (term->rise == 0
                ? term->bytes == bytes
                : pleat__scale_infer(scale, term, bytes, x) && pleat__scale_plausible(scale, *x))
            return true;
    }
    return false;
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

/* Where what is followed has requests that the next iteration frees. */
static pleat_result list_crossing(pleat__elastic *elastic, const pleat__follow *current)
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

static pleat__ground ground_of(const pleat__elastic *elastic)
{
    return (pleat__ground){.arena = elastic->arena,
                           .heap = elastic->heap,
                           .placed = elastic->placed,
                           .crosses = crosses,
                           .context = elastic};
}

/* Others may allocate and free meanwhile, but none of this is changed. */
static pleat_result make_instance(pleat__elastic *elastic, uint64_t x, const pleat__follow *current,
                                  pleat__instance **out)
{
    pleat__ground ground = ground_of(elastic);
    *out = NULL;
    PLEAT_TRY(pleat__live_create(elastic->arena, &elastic->crossing));
    pleat_result result = list_crossing(elastic, current);
    elastic->making = true;
    if (result == PLEAT_OK)
        result = pleat__instance_make(&ground, elastic->scale, x, &elastic->choice, out);
    elastic->making = false;
    pleat__live_destroy(&elastic->crossing);
    return result;
}

/* A new instance for x, or a little more where x changes all the time. NULL: there is no memory. */
static pleat__instance *new_instance(pleat__elastic *elastic, uint64_t x,
                                     const pleat__follow *current)
{
    bool restless = __builtin_popcount(elastic->changes & 0xffff) >= CHANGING;
    pleat__instance *made;
    if ((elastic->refused != 0 && x >= elastic->refused) || !make_room(elastic))
        return NULL;
    if ((!restless || make_instance(elastic, x + x / HEADROOM, current, &made) != PLEAT_OK) &&
        make_instance(elastic, x, current, &made) != PLEAT_OK) {
        elastic->refused = x;
        return NULL;
    }
    elastic->stats->instances++;
    elastic->stats->instance_maps += made->view_pages;
    elastic->instances[elastic->instance_count++] = made;
    return made;
}

/* The one followed when it holds x, else the smallest that does; NULL: there is none. */
static pleat__instance *choose(const pleat__elastic *elastic, uint64_t x)
{
    pleat__instance *best = NULL;
    if (elastic->now != NULL && elastic->now->x >= x && !elastic->now->stale)
        return elastic->now;
    for (uint32_t i = 0; i < elastic->instance_count; i++) {
        pleat__instance *instance = elastic->instances[i];
        if (instance->x >= x && !instance->stale && (best == NULL || instance->x < best->x))
            best = instance;
    }
    return best;
}

/* Follows the instance from the request that is the term on. */
static pleat__asked take(pleat__elastic *elastic, pleat__instance *instance, uint64_t x,
                         uint32_t term, pleat__follow **follow)
{
    if (elastic->now == instance && instance->fitted == x)
        return PLEAT__ASKED_SAME;
    elastic->stats->instance_switches += instance != elastic->now;
    elastic->now = instance;
    instance->used = elastic->clock;
    pleat__instance_fit(instance, elastic->scale, x);
    pleat__match_resized(&instance->follow->match, term);
    *follow = instance->follow;
    return PLEAT__ASKED_TAKE;
}

/* The iteration's x is known, and no instance is there for it. */
static pleat_result settle(pleat__elastic *elastic, uint64_t x, uint32_t term,
                           const pleat__follow *current, pleat__asked *asked,
                           pleat__follow **follow)
{
    bool in_range = pleat__scale_in_range(elastic->scale, x), bad = is_bad(elastic, x);
    if (in_range && !bad)
        PLEAT_TRY(pleat__gate_turn(elastic->heap->pool->gate));
    elastic->asking = false;
    note_x(elastic, x);
    elastic->stats->out_of_range += !in_range;
    pleat__instance *instance = in_range && !bad ? new_instance(elastic, x, current) : NULL;
    *asked = instance != NULL ? take(elastic, instance, x, term, follow) : PLEAT__ASKED_NONE;
    return PLEAT_OK;
}

/* One odd request is not to make an instance, or to say that there is none: that needs a second
 * witness, unless the x was seen before. To follow one that there is does no harm. */
pleat_result pleat__elastic_ask(pleat__elastic *elastic, uint64_t bytes, uint16_t stream,
                                const pleat__follow *current, pleat__asked *asked,
                                pleat__follow **follow)
{
    uint32_t term;
    uint64_t x;
    *asked = PLEAT__ASKED_WAIT;
    if (++elastic->asked > MOST)
        elastic->asking = false;
    if (!find_term(elastic, bytes, stream, &term, &x))
        return PLEAT_OK;
    bool sure = x != 0 && (x == elastic->guess || is_seen(elastic, x));
    pleat__instance *instance = x != 0 && !is_bad(elastic, x) ? choose(elastic, x) : NULL;
    if (sure && instance == NULL)
        return settle(elastic, x, term, current, asked, follow);
    elastic->at = term + 1;
    if (instance != NULL)
        *asked = take(elastic, instance, x, term, follow);
    if (sure)
        note_x(elastic, x);
    elastic->asking = elastic->asking && !sure;
    elastic->guess = x != 0 ? x : elastic->guess;
    return PLEAT_OK;
}

/* ---- memory ---- */

void pleat__elastic_shrunk(pleat__elastic *elastic)
{
    for (uint32_t i = 0; i < elastic->instance_count; i++)
        elastic->instances[i]->stale = true;
    elastic->refused = 0;
}

/* Whether `microbatch` fits in so many chunks. Functions may not hold where no iteration was: above
 * none fits, and below they say what the smallest takes that they hold for. */
static pleat_result fits(const pleat__elastic *elastic, uint32_t chunks, uint64_t running,
                         uint64_t microbatch, bool *yes)
{
    uint64_t x;
    uint32_t taken;
    pleat__ground ground = ground_of(elastic);
    *yes = false;
    if (!pleat__mul(elastic->x, microbatch, &x))
        return PLEAT_OK;
    x = pleat__scale_at_least(elastic->scale, x / running);
    if (!pleat__scale_in_range(elastic->scale, x))
        return PLEAT_OK;
    PLEAT_TRY(pleat__instance_takes(&ground, elastic->scale, x, elastic->choice, chunks, &taken));
    *yes = taken <= chunks;
    return PLEAT_OK;
}

/* The largest that fits; more of it takes more memory. */
static pleat_result search_most(const pleat__elastic *elastic, uint32_t chunks, uint64_t running,
                                uint64_t *most)
{
    uint64_t low = 0, high = 1;
    bool yes = true;
    while (yes && high < UINT32_MAX) {
        PLEAT_TRY(fits(elastic, chunks, running, high, &yes));
        low = yes ? high : low;
        high = yes ? 2 * high : high;
    }
    while (high - low > 1) {
        uint64_t middle = low + (high - low) / 2;
        PLEAT_TRY(fits(elastic, chunks, running, middle, &yes));
        low = yes ? middle : low;
        high = yes ? high : middle;
    }
    *most = low;
    return low != 0 ? PLEAT_OK
                    : pleat__fail(PLEAT_E_NOT_FOUND, "not even a microbatch of 1 would fit");
}

pleat_result pleat__elastic_most(pleat__elastic *elastic, const pleat__follow *current,
                                 uint64_t bytes, uint64_t running, uint64_t *most)
{
    if (elastic->scale == NULL || elastic->x == 0)
        return pleat__fail(PLEAT_E_NOT_FOUND, "how sizes follow the microbatch is not known before "
                                              "iterations at two of them were seen");
    uint64_t chunks = bytes / elastic->heap->pool->page_bytes;
    PLEAT_TRY(pleat__live_create(elastic->arena, &elastic->crossing));
    pleat_result result = list_crossing(elastic, current);
    if (result == PLEAT_OK)
        result = search_most(elastic, chunks < UINT32_MAX / 2 ? (uint32_t)chunks : UINT32_MAX / 2,
                             running, most);
    pleat__live_destroy(&elastic->crossing);
    return result;
}
