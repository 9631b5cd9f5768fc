/*
 * repeat.h: one iteration of a trace over and over, to see whether anything grows.
 */
#ifndef PLEAT_TOOLS_REPLAY_REPEAT_H
#define PLEAT_TOOLS_REPLAY_REPEAT_H

#include <tools/replay/script.h>

#include <pleat/runtime.h>

/* After so many repeats things must have come to rest. */
#define REPLAY_REPEATS_EARLY 10u

typedef struct replay_repeats {
    uint32_t count;          /* 0: none were asked for */
    pleat_stats early, late; /* after REPLAY_REPEATS_EARLY of them, and after all */
    bool unchanged; /* memory, maps, quarantined pages and Pleat's own metadata are the same */
} replay_repeats;

/* Runs the script's last whole iteration `count` times, behind the script itself: addresses[] are
 * its requests' (0: not live), and with `tells` each repeat begins with a mark. What an iteration
 * leaves live is freed where the recording frees its like of the iteration before; where there is
 * none, just before the next iteration allocates it. PLEAT_E_INPUT where no iteration is whole. */
PLEAT_NODISCARD pleat_result replay_repeat(const replay_script *script, pleat_runtime *runtime,
                                           pleat_va *addresses, bool tells, uint32_t count,
                                           replay_repeats *repeats);

#endif
