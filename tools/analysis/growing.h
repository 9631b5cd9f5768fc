/*
 * growing.h: which requests of one recording grow with the job's microbatch (or length), told from
 * their lives and sizes alone.
 *
 * WHAT STAYS  Whatever lives through a whole iteration (weights, optimizer states), freed at the
 *             program's end or not; each weight's gradient; what is allocated before the first
 *             iteration, where no iteration has its size; what the optimizer's step allocates;
 *             copies of a weight and its bias in half their precision (autocast), which are made
 *             one behind the other.
 * WHAT GROWS  Everything else. Copies of weights without a bias are taken for activations, since
 *             they live like them: an estimate errs to the side of more memory.
 */
#ifndef PLEAT_TOOLS_GROWING_H
#define PLEAT_TOOLS_GROWING_H

#include <plan/model/requests.h>

/* Fills grows[requests->count]. Iterations begin at the requests' marks. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result growing_find(const pleat__requests *requests, bool *grows);

#endif
