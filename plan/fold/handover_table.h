/*
 * handover_table.h: a plan's table of the chunks that pass from stream to stream (handover.h), in
 * memory and in a file.
 */
#ifndef PLEAT_PLAN_FOLD_HANDOVER_TABLE_H
#define PLEAT_PLAN_FOLD_HANDOVER_TABLE_H

#include <plan/base/pack.h>
#include <plan/fold/fold.h>

/* Fills the table. `handed` has a byte for each base page of the layout, which was cut into the
 * plan's handles. */
PLEAT_NODISCARD pleat_result pleat__handed_keep(const pleat__layout *layout, const uint8_t *handed,
                                                pleat_plan *plan);
uint64_t pleat__handed_bytes(const pleat_plan *plan);
/* How many of the steady iteration's requests take a chunk that was another stream's, and wait for
 * that stream. pre: the plan was verified. */
PLEAT_NODISCARD pleat_result pleat__handed_waits(const pleat_plan *plan, pleat__arena *scratch,
                                                 uint32_t *waits);

/* format.c: the table of a plan file. */
void pleat__handed_put(pleat__pack_writer *writer, const pleat_plan *plan);
PLEAT_NODISCARD pleat_result pleat__handed_take(pleat__pack_reader *pack, pleat_plan *plan);

#endif
