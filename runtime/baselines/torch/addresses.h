/*
 * addresses.h: stretches of a space's window, and memory behind them, in whole pages of the space.
 */
#ifndef PLEAT_RUNTIME_BASELINES_TORCH_ADDRESSES_H
#define PLEAT_RUNTIME_BASELINES_TORCH_ADDRESSES_H

#include <runtime/base/gate.h>
#include <stdbool.h>

/* Nothing is behind them yet. PLEAT_E_LIMIT when the window has no room. */
PLEAT_NODISCARD pleat_result pleat__addresses_take(pleat__space *space, uint64_t bytes,
                                                   pleat_va *address);
/* All that was taken, or a part of it. pre: nothing is behind them. */
void pleat__addresses_give(pleat__space *space, pleat_va address, uint64_t bytes);

/* Under no lock, as verbs are. Puts memory behind addresses in handles of `handle_bytes`, of which
 * `bytes` is a multiple. PLEAT_E_OUT_OF_MEMORY, PLEAT_E_BUDGET when there is none. */
PLEAT_NODISCARD pleat_result pleat__addresses_back(pleat__space *space, pleat_va address,
                                                   uint64_t bytes, uint64_t handle_bytes);
/* Whole handles go into the space's pool. false: the driver refused to unmap some; the space keeps
 * those in quarantine, so that these addresses cannot be backed again, only given. */
bool pleat__addresses_unback(pleat__space *space, pleat_va address, uint64_t bytes);

#endif
