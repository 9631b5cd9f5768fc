/*
 * elastic_profiles.c: from recorded iterations to a scale (see elastic.h): those at different x are
 * kept, and what is known of sizes is made from them when it does not hold.
 */
#include <runtime/learn/elastic.h>

#include <string.h>

/* A recorded iteration is as the scale says when one request in so many at most is not. */
#define BROKEN 100u
/* An iteration with one request in so many more or less is another than the scale's. */
#define ANOTHER 32u
/* Iterations as the scale says that make it one not to be given up for that. */
#define PROVEN 4u
/* Iterations in a row that are like none before: another job. */
#define STRANGERS 3u
/* Iterations that are like none before, without one at another x among them, from which on they are
 * passed over: one, two, four and so on up to two to the MOST_RELUCTANCE at a time. */
#define UNLIKE          3u
#define MOST_RELUCTANCE 6u

void pleat__elastic_forget(pleat__elastic *elastic)
{
    for (uint32_t s = 0; s < elastic->profile_count; s++)
        pleat__profile_free(elastic->profiles[s]);
    elastic->profile_count = 0;
    elastic->latest = NULL;
    pleat__profile_free(elastic->incomplete);
    elastic->incomplete = NULL;
}

static bool is_as_long(const pleat__elastic *elastic, const pleat__profile *profile)
{
    uint32_t count = elastic->scale->count - elastic->scale->first;
    uint32_t more = count > profile->count ? count - profile->count : profile->count - count;
    return more <= count / ANOTHER;
}

/* Requests that are not as the scale says, of a profile with as many; its x is then in *x. */
static uint32_t count_broken(const pleat__scale *scale, const pleat__profile *profile, pleat__x *x)
{
    const pleat__term *terms = scale->terms + scale->first;
    uint32_t broken = 0;
    *x = PLEAT__NO_X;
    for (uint32_t i = 0; i < profile->count && !pleat__x_is_known(x); i++)
        (void)!pleat__scale_infer(scale, &terms[i], profile->parts[i].bytes, x);
    for (uint32_t i = 0; i < profile->count && pleat__x_is_known(x); i++)
        broken +=
            !terms[i].loose && pleat__scale_bytes(scale, &terms[i], x) != profile->parts[i].bytes;
    return pleat__x_is_known(x) ? broken : profile->count;
}

/* Whether a profile is the scale at some x, which then is in range from now on. At some x a job
 * leaves out requests, or has some more. */
static bool conforms(pleat__elastic *elastic, const pleat__profile *profile)
{
    pleat__scale *scale = elastic->scale;
    pleat__x x = elastic->x;
    uint32_t broken = profile->count;
    if (scale == NULL || !is_as_long(elastic, profile))
        return false;
    if (profile->count == scale->count - scale->first)
        broken = count_broken(scale, profile, &x);
    else if (pleat__x_is_known(&x))
        broken -= pleat__scale_agrees(scale, profile, &x);
    if (broken > profile->count / BROKEN)
        return false;
    pleat__scale_reach(scale, &x);
    return true;
}

/* Whether an iteration is, to the byte, one that is kept. */
static bool is_known(const pleat__elastic *elastic, const pleat__profile *profile)
{
    for (uint32_t s = 0; s < elastic->profile_count; s++) {
        const pleat__profile *kept = elastic->profiles[s];
        uint32_t i = 0;
        if (kept->count != profile->count)
            continue;
        while (i < profile->count && kept->parts[i].bytes == profile->parts[i].bytes &&
               kept->parts[i].stream == profile->parts[i].stream)
            i++;
        if (i == profile->count)
            return true;
    }
    return false;
}

/* None was like any before for so long that this one is not looked at: each is laid against all
 * that are kept, on the thread that marks. (Where two shapes of a GPT-2 alternate that was 90 ms at
 * every other mark.) */
static bool is_passed_over(pleat__elastic *elastic)
{
    if (elastic->reluctance == 0)
        return false;
    elastic->reluctance--;
    return true;
}

static void note_unlike(pleat__elastic *elastic)
{
    elastic->unlike++;
    uint32_t more = elastic->unlike > UNLIKE ? elastic->unlike - UNLIKE : 0;
    if (elastic->unlike >= UNLIKE)
        elastic->reluctance = 1u << (more < MOST_RELUCTANCE ? more : MOST_RELUCTANCE);
}

/* One at another x. */
static void note_akin(pleat__elastic *elastic)
{
    elastic->unlike = 0;
    elastic->reluctance = 0;
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
    elastic->unproven = false;
}

static void take_scale(pleat__elastic *elastic, pleat__scale *scale)
{
    if (!pleat__elastic_carry_over(elastic, scale)) {
        pleat__scale_free(scale);
        return;
    }
    elastic->stats->refits += elastic->scale != NULL;
    pleat__scale_free(elastic->scale);
    elastic->scale = scale;
    elastic->choice = (pleat__sweep_choice){.life = 0};
    elastic->refused = PLEAT__NO_X;
    elastic->seen_count = 0;
    elastic->bad_count = 0;
    elastic->strikes = 0;
    elastic->x = PLEAT__NO_X;
    /* What sizes were, and which is to be laid out anew, was said in the other one's x. */
    elastic->window_ns = 0;
    elastic->tight = false;
    elastic->checks = 0;
    elastic->proven = 0;
    /* Nothing of this iteration was laid against its terms. */
    elastic->asking = false;
    trust(elastic);
}

/* An iteration that is none of those known at another x: an evaluation between two marks is passed
 * over, a new job is not. */
static void add_stranger(pleat__elastic *elastic, pleat__profile *profile)
{
    note_unlike(elastic);
    elastic->strangers++;
    elastic->patience = 1u << (elastic->strangers < 7 ? elastic->strangers - 1 : 6);
    if (elastic->profile_count != 0 && elastic->strangers < STRANGERS) {
        pleat__profile_free(profile);
        return;
    }
    pleat__elastic_forget(elastic);
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
    pleat__scale *scale = NULL; /* with the last of the others */
    for (uint32_t s = 0; s < elastic->profile_count; s++) {
        pleat__profile *two[2] = {elastic->profiles[s], profile};
        pleat__scale_free(scale);
        pleat__scale_fit result = pleat__scale_make(elastic->arena, two, 2, &scale);
        akin = akin || result == PLEAT__SCALE_FITTED;
        if (result == PLEAT__SCALE_SAME) {
            bool better = elastic->profiles[s]->guessed && !profile->guessed;
            put_profile(elastic, s, profile);
            elastic->strangers = 0;
            if (better && elastic->profile_count > 1)
                fit(elastic);
            return;
        }
    }
    if (!akin) {
        add_stranger(elastic, profile);
        return;
    }
    elastic->strangers = 0;
    note_akin(elastic);
    if (elastic->profile_count == PLEAT__PROFILES_KEPT) {
        /* The oldest in between: the range is the ends'. */
        pleat__profile_free(elastic->profiles[1]);
        memmove(&elastic->profiles[1], &elastic->profiles[2],
                (PLEAT__PROFILES_KEPT - 2) * sizeof elastic->profiles[0]);
        elastic->profile_count--;
    }
    put_profile(elastic, elastic->profile_count, profile);
    if (elastic->profile_count == 2) {
        take_scale(elastic, scale);
        return;
    }
    pleat__scale_free(scale);
    if (elastic->profile_count > 2)
        fit(elastic);
}

static bool fits(const pleat__elastic *elastic, pleat__profile *a, pleat__profile *b)
{
    pleat__profile *two[2] = {a, b};
    pleat__scale *scale;
    pleat__scale_fit result = pleat__scale_make(elastic->arena, two, 2, &scale);
    pleat__scale_free(scale);
    return result == PLEAT__SCALE_FITTED;
}

/* One iteration at a size is enough where another size is known: there what crosses is freed as
 * here. Where something was odd it is not. *profile stays open unless it fits. */
static bool complete(pleat__elastic *elastic, pleat__profile **profile)
{
    if ((elastic->settled && elastic->scale != NULL) || elastic->profile_count == 0)
        return false;
    for (uint32_t s = 0; s < elastic->profile_count; s++) {
        pleat__profile *whole = pleat__profile_copy(*profile);
        if (whole != NULL && pleat__scale_complete(whole, elastic->profiles[s]) &&
            fits(elastic, elastic->profiles[s], whole)) {
            pleat__profile_free(*profile);
            *profile = whole;
            pleat__lives_completed(&elastic->lives, whole);
            note_akin(elastic);
            return true;
        }
        pleat__profile_free(whole);
    }
    note_unlike(elastic);
    return false;
}

/* The iteration before was open and is, with what this one tells, one at another x. */
static void use_incomplete(pleat__elastic *elastic, pleat__profile *profile)
{
    pleat__profile *before = elastic->incomplete;
    elastic->incomplete = NULL;
    if (before == NULL)
        return;
    if (before->count == profile->count && pleat__scale_complete(before, profile) &&
        fits(elastic, before, profile))
        add_profile(elastic, before);
    else
        pleat__profile_free(before);
}

void pleat__elastic_recorded(pleat__elastic *elastic, uint32_t count, uint32_t ahead)
{
    pleat__profile *profile = NULL;
    if (elastic->opening)
        pleat__elastic_record(elastic, false);
    if (!elastic->recording || elastic->making)
        return;
    if (count == 0)
        pleat__lives_mark(&elastic->lives, &profile);
    else
        profile = pleat__lives_last(&elastic->lives, count, ahead);
    if (profile == NULL)
        return;
    if (elastic->patience != 0 || elastic->measuring) {
        elastic->patience -= elastic->patience != 0;
        pleat__profile_free(profile);
        return;
    }
    bool strange = !conforms(elastic, profile), known = strange && is_known(elastic, profile);
    bool passed_over = strange && !known && is_passed_over(elastic);
    if (passed_over || (strange && profile->open && (known || !complete(elastic, &profile)))) {
        pleat__profile_free(elastic->incomplete);
        elastic->incomplete = passed_over ? NULL : profile;
        if (passed_over)
            pleat__profile_free(profile);
        return;
    }
    use_incomplete(elastic, profile);
    if (conforms(elastic, profile)) {
        trust(elastic);
        pleat__profile_free(profile);
    } else if (elastic->scale != NULL && elastic->proven >= PROVEN &&
               pleat__x_is_known(&elastic->x) && !is_as_long(elastic, profile)) {
        /* At this x the job does something else. (A GPT-2 with one sample of 512 tokens has 768
         * requests of 8,433 less than with any other: made anew for both, the sizes served neither,
         * and 1.7 % more memory was taken.) */
        pleat__elastic_leave_x(elastic, &elastic->x);
        pleat__profile_free(profile);
    } else {
        add_profile(elastic, profile);
    }
    if (elastic->settled)
        pleat__elastic_record(elastic, false);
}
