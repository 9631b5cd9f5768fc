/*
 * fit.h: from the sizes that the same requests had in several iterations to functions of x.
 *
 * A SHAPE is one iteration as plain requests: sizes, streams and lives. Shapes recorded at
 * different x are laid against a reference shape, request by request, which gives a table of sizes:
 * one row a profile, one column a request of the reference. What x each profile had is found from
 * that table alone.
 */
#ifndef PLEAT_PLAN_SIZES_FIT_H
#define PLEAT_PLAN_SIZES_FIT_H

#include <plan/model/requests.h>
#include <plan/sizes/sizes.h>

#define PLEAT__ABSENT            UINT64_MAX /* the profile has no such request */
#define PLEAT__FIT_PROFILES_MOST 64u
/* One in so many of an iteration's requests must vary for functions to be looked for: activations
 * are a third or more of a training step's (D520). */
#define PLEAT__VARYING_SHARE 32u

/* Lays `other` against `reference`: pairs[i] is the index in `other` of what plays the part of the
 * reference's request i, or PLEAT__NEVER; *paired is how many have a partner. Positions count from
 * each shape's own beginning. */
PLEAT_NODISCARD pleat_result pleat__shapes_align(const pleat__request *reference, uint32_t count,
                                                 const pleat__request *other, uint32_t other_count,
                                                 pleat__arena *scratch, uint32_t *pairs,
                                                 uint32_t *paired);

typedef struct pleat__fit {
    bool shows_x;       /* false: of what is below only `varying` is set */
    pleat__fraction *x; /* of each profile */
    pleat__function *functions;
    uint32_t function_count;
    uint32_t *of;       /* function of each request, or PLEAT__NO_FUNCTION */
    uint64_t varying;   /* requests whose size differs between profiles */
    uint64_t explained; /* of those, the ones that have a function */
} pleat__fit;

/* sizes[profile * count + request]: bytes, or PLEAT__ABSENT; of at most PLEAT__FIT_PROFILES_MOST
 * profiles. names[profile], where `names` is not NULL: what x is called there, 0 where that is not
 * known; it decides the unit. Arrays are from `arena`. PLEAT_E_NO_MEMORY;
 * PLEAT_E_INPUT: the names are not in proportion to what the sizes say. That nothing fits is no
 * error. */
PLEAT_NODISCARD pleat_result pleat__fit_make(const uint64_t *sizes, uint32_t profiles,
                                             uint32_t count, const uint64_t *names,
                                             pleat__arena *arena, pleat__fit *out);

#endif
