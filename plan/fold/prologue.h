/*
 * prologue.h: places for what runs before the steady iterations.
 */
#ifndef PLEAT_PLAN_FOLD_PROLOGUE_H
#define PLEAT_PLAN_FOLD_PROLOGUE_H

#include <plan/fold/fold.h>
#include <plan/model/model.h>

#define PLEAT__NO_HOST UINT32_MAX

/* Which steady slot each slot of `first` plays the part of: hosts[first.slot_count], PLEAT__NO_HOST
 * where there is none. Those whose counterpart is dynamic become dynamic and get its lane. */
PLEAT_NODISCARD pleat_result pleat__first_hosts(const pleat__model *model, pleat__arena *scratch,
                                                pleat_plan *plan, uint32_t *hosts);

/* Places the slots of `first` inside the layout's memory, with hosts as above. A host may be larger
 * than its guest, not smaller. `handed` has a byte for each base page, 1 where its chunk passes
 * from stream to stream (handover.h); NULL: none does. Sets the plan's first_max_live_bytes. */
PLEAT_NODISCARD pleat_result pleat__first_place(const uint32_t *hosts, const pleat__layout *layout,
                                                const uint8_t *handed, pleat__arena *scratch,
                                                pleat_plan *plan);

/* Both. Places the slots of `first` inside the layout's memory; steady and persistent slots have
 * theirs. Slots that find no room there, and those whose steady counterpart is dynamic, stay
 * without. Sets the plan's first_max_live_bytes. */
PLEAT_NODISCARD pleat_result pleat__first_make(const pleat__model *model,
                                               const pleat__layout *layout, const uint8_t *handed,
                                               pleat__arena *scratch, pleat_plan *plan);

#endif
