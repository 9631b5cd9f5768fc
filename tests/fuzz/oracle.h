/*
 * oracle.h: whether a plan that was read holds, by comparing every two of its requests: an answer
 * that owes nothing to the verifier. And its instances, which must hold too.
 */
#ifndef PLEAT_TESTS_FUZZ_ORACLE_H
#define PLEAT_TESTS_FUZZ_ORACLE_H

#include "fuzz.h"

#include <plan/sizes/sizes.h>

/* Ends the program where the plan does not hold. One that lies on too many pages to compare is left
 * alone. */
void oracle_check(const pleat_plan *plan);

/* Lays instances out, at the ends of the recipe's range and where `draws` says, and asks what fits;
 * checks what comes of it. */
void oracle_check_instances(const pleat_plan *plan, fuzz_draws *draws);

#endif
