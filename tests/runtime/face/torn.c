/*
 * torn.c: verbs that fail while memory of live tensors goes or comes: what has lost its place is
 * given to nobody, and what has not is there.
 */
#include "fixture.h"

#define TENSORS 8
#define PAGES   (TENSORS * 4u)

static void begin_failing(fixture *f, const char *conf)
{
    open_host(f, 64 * MIB, true);
    pleat_runtime_options options = {.size = sizeof options, .conf = conf};
    assert_ok(pleat_runtime_create(f->vmm, &options, &f->runtime));
}

static bool is_mapped(const fixture *f, pleat_va address)
{
    uint64_t offset;
    return pleat_host_physical(&f->host, address, &offset) == PLEAT_OK;
}

static pleat_va take_tagged(fixture *f, uint64_t bytes, const char *tag)
{
    assert_ok(pleat_tag(tag));
    pleat_va address = take(f, bytes, 0);
    assert_ok(pleat_tag(NULL));
    return address;
}

static pleat_result pause_tag(fixture *f, const char *tag)
{
    pleat_pause_options options = {.size = sizeof options, .tag = tag};
    return pleat_pause(f->runtime, &options);
}

static void fail_from(fixture *f, uint64_t nth, bool carried_out)
{
    pleat__fault_arm(&f->vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any,
                                                  .nth = nth,
                                                  .forever = nth != 0,
                                                  .carried_out = carried_out});
}

/* A stream whose end fails is lost, and no memory is. */
static void end_failing(fixture *f)
{
    pleat__host_holdings held;
    pleat_runtime_destroy(f->runtime);
    pleat_vmm_destroy(&f->vmm);
    assert_ok(pleat__host_holdings_of(&f->host, &held));
    assert_int_equal(held.memory_bytes, 0);
    assert_int_equal(held.mapped_pages, 0);
    pleat_vmm_destroy(&f->host);
}

typedef struct walked {
    pleat_va until;
    bool ordered;
} walked;

static void note_block(void *context, const pleat_block *block)
{
    walked *w = context;
    w->ordered = w->ordered && block->address >= w->until;
    w->until = block->address + block->bytes;
}

/* Every verb from the nth on fails a resume, so that places are lost. Whether any were. */
static bool lose_places(uint64_t nth, bool carried_out)
{
    fixture f;
    begin_failing(&f, NULL);
    pleat_va all = take(&f, 8 * MIB, 0), lost[3], beside[3];
    assert_ok(pleat_free(f.runtime, all));
    for (int t = 0; t < 3; t++) {
        beside[t] = take(&f, 3 * MIB / 2, 0);
        lost[t] = take_tagged(&f, t == 0 ? 3 * MIB : 2 * MIB, "t");
    }
    assert_ok(pause_tag(&f, "t"));
    fail_from(&f, nth, carried_out);
    bool torn = pleat_resume(f.runtime, "t") != PLEAT_OK;
    fail_from(&f, 0, false);
    torn = torn && pleat_resume(f.runtime, "t") != PLEAT_OK;
    assert_ok(pleat_trim(f.runtime, 0, NULL)); /* what is quarantined is unmapped */
    walked w = {.ordered = true};
    assert_ok(pleat_walk(f.runtime, note_block, &w));
    assert_true(w.ordered);
    for (int t = 0; t < 3; t++) {
        assert_ok(pleat_free(f.runtime, lost[t]));
        assert_true(is_mapped(&f, beside[t]));
    }
    for (int t = 0; t < 3; t++) {
        uint64_t bytes = t == 0 ? 3 * MIB : 2 * MIB;
        pleat_va again = take(&f, bytes, 0);
        for (uint64_t at = 0; at < bytes; at += MIB / 2)
            assert_true(is_mapped(&f, again + at));
    }
    end_failing(&f);
    return torn;
}

/* R19. A place that was lost is not given out again when what lay there is freed, and a block that
 * spans one is visited once. */
static void torn_places_are_given_to_nobody(void **state)
{
    (void)state;
    uint64_t torn = 0;
    for (uint64_t nth = 1; nth < 40; nth++)
        torn += (uint64_t)lose_places(nth, false) + (uint64_t)lose_places(nth, true);
    assert_true(torn > 0);
}

/* Begins a spill during which verbs fail; how many did, and how many pages of what lives are there
 * behind it. */
static uint64_t spill_with(fixture *f, pleat__fault_plan plan, uint64_t *mapped)
{
    pleat_va live[TENSORS], more;
    begin_failing(f, "spill:host");
    for (int t = 0; t < TENSORS; t++)
        live[t] = take(f, 8 * MIB, 0);
    assert_ok(pleat_set_budget(f->runtime, 32 * MIB));
    pleat__fault_arm(&f->vmm, plan);
    (void)!pleat_alloc(f->runtime, 8 * MIB, 0, &more);
    uint64_t hits = pleat__fault_hits(&f->vmm);
    pleat__fault_arm(&f->vmm, (pleat__fault_plan){0});
    *mapped = 0;
    for (int t = 0; t < TENSORS; t++)
        for (uint64_t at = 0; at < 8 * MIB; at += 2 * MIB)
            *mapped += is_mapped(f, live[t] + at);
    return hits;
}

/* The memory that it wakes with is there for the second try as well. */
static void torn_spill_has_all_that_lives_again(void **state)
{
    (void)state;
    uint64_t hits = 2, mapped;
    for (uint64_t call = 2; hits > 0; call++) {
        fixture f;
        pleat__fault_plan plan = {
            .verb = PLEAT__FAULT_any, .nth = call / 2, .carried_out = call % 2 == 1};
        hits = spill_with(&f, plan, &mapped);
        assert_int_equal(mapped, PAGES);
        end_failing(&f);
    }
}

/* What a spill left without a place was paused by nobody. */
static void torn_spill_is_no_pause(void **state)
{
    (void)state;
    uint64_t torn = 0, mapped;
    for (uint64_t nth = 1; nth < 80; nth++) {
        fixture f;
        pleat__fault_plan plan = {
            .verb = PLEAT__FAULT_any, .nth = nth, .forever = true, .carried_out = true};
        (void)spill_with(&f, plan, &mapped);
        assert_ok(pleat_tag("t"));
        assert_ok(pleat_tag(NULL));
        assert_ok(pause_tag(&f, "t"));
        torn += mapped < PAGES;
        end_failing(&f);
    }
    assert_true(torn > 0);
}

/* The nth verb fails a resume, and host memory from the `piece`th on, so that what woke cannot rest
 * again. Then another tag is paused, and what was to be resumed freed. Whether all failed so. */
static bool pause_beside_a_failed_resume(uint64_t nth, uint64_t piece)
{
    fixture f;
    begin_failing(&f, NULL);
    pleat_va paused = take_tagged(&f, 4 * MIB, "t");
    (void)take_tagged(&f, 4 * MIB, "u");
    assert_ok(pause_tag(&f, "t"));
    pleat__fault_arm(&f.vmm, (pleat__fault_plan){.verb = PLEAT__FAULT_any, .nth = nth});
    pleat__arena_fail(piece, true);
    bool failed = pleat_resume(f.runtime, "t") != PLEAT_OK;
    pleat__arena_fail(0, false);
    fail_from(&f, 0, false);
    bool awake = failed && is_mapped(&f, paused);
    assert_ok(pause_tag(&f, "u"));
    assert_ok(pleat_free(f.runtime, paused));
    if (failed) {
        pleat_va other = take(&f, 4 * MIB, 0);
        memset((void *)(uintptr_t)other, 7, 4 * MIB);
        assert_ok(pleat_resume(f.runtime, "t"));
        for (uint64_t at = 0; at < 4 * MIB; at += MIB)
            assert_int_equal(((const char *)(uintptr_t)other)[at], 7);
    }
    assert_ok(pleat_resume(f.runtime, "u"));
    end_failing(&f);
    return awake;
}

/* What is awake without its contents stays its pause's, whoever else is paused. */
static void torn_resume_keeps_its_memory_from_others(void **state)
{
    (void)state;
    uint64_t awake = 0;
    for (uint64_t nth = 1; nth < 40; nth++)
        for (uint64_t piece = 1; piece < 6; piece++)
            awake += pause_beside_a_failed_resume(nth, piece);
    assert_true(awake > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(torn_places_are_given_to_nobody),
        cmocka_unit_test(torn_spill_has_all_that_lives_again),
        cmocka_unit_test(torn_spill_is_no_pause),
        cmocka_unit_test(torn_resume_keeps_its_memory_from_others),
    };
    return cmocka_run_group_tests_name("torn", tests, NULL, NULL);
}
