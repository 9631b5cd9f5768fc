/*
 * iteration.h: which part of a trace is the steady iteration, and what the other iterations have at
 * each of its requests.
 *
 * An iteration is whole when it lies between two marks. The steady one is the last whole iteration
 * that agrees with another; `first_at` is where the iterations that agree with it begin, so that
 * everything persistent is in memory by then. PROFILES are those iterations, at most
 * PLEAT__PROFILES of them: profile p has the trace's item pairs[p * steady_items + i] where the
 * steady iteration has its item i, or PLEAT__NEVER.
 */
#ifndef PLEAT_PLAN_MODEL_ITERATION_H
#define PLEAT_PLAN_MODEL_ITERATION_H

#include <plan/model/requests.h>

#define PLEAT__PROFILES 16

/* Items [item, item + items) are allocated at positions [begin_at, end_at). */
typedef struct pleat__stretch {
    uint32_t begin_at;
    uint32_t end_at;
    uint32_t item;
    uint32_t items;
} pleat__stretch;

typedef struct pleat__iteration {
    pleat__stretch steady;
    uint32_t first_at; /* position: the end of `first` */
    pleat__stretch profiles[PLEAT__PROFILES];
    uint32_t profile_count;
    uint32_t *pairs;
    pleat__stretch early[PLEAT__PROFILES]; /* iterations before first_at, latest first */
    uint32_t early_count;
    uint32_t period; /* requests an iteration, found in the sequence; 0: from marks */
} pleat__iteration;

/* `pairs` is taken from the requests' arena. PLEAT_E_INPUT when nothing repeats. */
PLEAT_NODISCARD pleat_result pleat__iteration_find(const pleat__requests *requests,
                                                   pleat__iteration *out);
void pleat__iteration_free(const pleat__requests *requests, pleat__iteration *iteration);

/* What is allocated at positions [begin_at, end_at). */
pleat__stretch pleat__stretch_of(const pleat__requests *requests, uint32_t begin_at,
                                 uint32_t end_at);

/* Whether two requests live as long, or nearly: a long life grows and shrinks with what happens
 * meanwhile. */
bool pleat__same_life(const pleat__request *a, const pleat__request *b);

/* Lays stretch `b` against stretch `a`: pairs[i] is the item of b (numbered in the trace) that
 * plays the part of a's item i, or PLEAT__NEVER. Returns how many have a pair. */
uint32_t pleat__align(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                      uint32_t *pairs);

/* The same where sizes in the proportion a_part : b_part are equal as well: of a job at two
 * microbatches. Both are below 2^16. */
uint32_t pleat__align_scaled(const pleat__requests *requests, pleat__stretch a, pleat__stretch b,
                             uint32_t a_part, uint32_t b_part, uint32_t *pairs);

/* A program that marks where iterations end, at its optimizer's step, marks nothing before the
 * first one: that one lies at the end of the stretch `within`, behind the model's load. *found is
 * where it agrees most with the steady one, with `paired` requests of that one; 0: nowhere. */
PLEAT_NODISCARD pleat_result pleat__prologue_find(const pleat__requests *requests,
                                                  pleat__stretch steady, pleat__stretch within,
                                                  pleat__stretch *found, uint32_t *paired);

/* Where an iteration ends that nothing behind it ends: behind the last allocation and the frees of
 * its own requests that follow it. */
uint32_t pleat__open_end(const pleat__requests *requests, uint32_t begin_at);

/* Positions at which iterations begin, for a trace without marks: where live bytes come down to
 * what stays (valleys.c), else where the sequence of sizes repeats itself (period.c). Fills
 * marks[count]. No error when there are none. From the requests' arena. */
PLEAT_NODISCARD pleat_result pleat__marks_find(const pleat__requests *requests, uint32_t **marks,
                                               uint32_t *count);

#endif
