/*
 * handover.h: chunks that pass from stream to stream within the steady iteration.
 *
 * Each stream's requests are laid out by themselves, so the streams' peaks add up although they
 * come at different times. Where that costs more than max-live, chunks of one stream are given up:
 * whatever lies on one moves, for as long as it lives, to chunks of other streams that are idle for
 * that time. What moves lies in a view then, at the same offsets within its chunks.
 *
 * It is worth something where a job gathers its weights on a second stream (D512, D625 in
 * docs/decisions.md).
 *
 * Such chunks are named in the plan (pleat_plan.handed). At no time are requests of two streams on
 * one of them; whoever takes one that was another stream's waits for that stream first. A lane's
 * chunks stay as they are: when it is in use, and by how much of it, is known at run time alone
 * (D532).
 */
#ifndef PLEAT_PLAN_FOLD_HANDOVER_H
#define PLEAT_PLAN_FOLD_HANDOVER_H

#include <plan/fold/fold.h>

/* Changes the layout: fewer chunks, more views. The problem's items from `first_lane` on are lanes.
 * *handed: of each base page, 1 where its chunk is handed over; from `arena`, NULL where there is
 * nothing to gain. */
PLEAT_NODISCARD pleat_result pleat__handover_make(const pleat__problem *problem,
                                                  uint64_t chunk_bytes, uint32_t first_lane,
                                                  pleat__arena *arena, pleat__layout *layout,
                                                  uint8_t **handed);

#endif
