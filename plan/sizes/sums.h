/*
 * sums.h: where the workspaces of sums stop growing.
 *
 * A sum over the rows of a matrix, a bias's gradient say, is split over blocks of threads. Each
 * block leaves its part in a WORKSPACE, and a counter for each LINE of 128 columns says which block
 * is the last. PyTorch allocates the result, the workspace and the counters one behind the other,
 * and frees the counters and the workspace at once. A workspace grows with the rows until the
 * blocks of all lines FILL the device's processors. That is the same number of blocks for all sums
 * of a job, so one that has stopped growing shows where the others will, and no device has more
 * processors than BLOCKS_MOST is for.
 */
#ifndef PLEAT_PLAN_SIZES_SUMS_H
#define PLEAT_PLAN_SIZES_SUMS_H

#include <plan/sizes/fit.h>

/* Gives functions of the fit that are workspaces' the size at which they stop growing, and those
 * that have stopped at every x recorded the sizes that they have below. items[count] is the
 * iteration that the fit's sizes[profile * count + request] are laid against; arrays are from
 * `arena`, as the fit's. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__sums_bound(const pleat__request *items, const uint64_t *sizes,
                                               uint32_t profiles, uint32_t count,
                                               pleat__arena *arena, pleat__fit *fit);

#endif
