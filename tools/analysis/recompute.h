/*
 * recompute.h: what an iteration would take if it computed fewer of its blocks again.
 *
 * RECORDING  One in which each block was computed again in backward, under phases that say so:
 *       "block.N" around a block's forward, "block.N.again" around the forward that runs again.
 * What the second run allocates and leaves is what the block saves for its backward; what it frees
 *       itself is its working memory. `pleat run --recompute auto` records so.
 * EDIT  A block that is kept has these tensors from the end of its forward on, and no second run.
 *       Every other request stays where it was. So what is live in an edited iteration is known,
 * and what it takes is what a plan of it takes. (A checkpoint holds a block's input, which a kept
 *       block may not save: where it does not, the edit has that much too much.)
 * RUNGS From nothing computed again to everything, a block more at each: of the blocks that are
 * kept when most is live, the one whose second run costs least for the bytes that it saves.
 */
#ifndef PLEAT_TOOLS_RECOMPUTE_H
#define PLEAT_TOOLS_RECOMPUTE_H

#include <plan/model/requests.h>

typedef struct recompute_block {
    uint32_t number;      /* the N of its phases */
    uint32_t passes;      /* forwards in the iteration that were computed again */
    uint64_t saved_bytes; /* of all of them */
    uint64_t ns;          /* a second run of all of them as told; else 1 for each */
} recompute_block;

typedef struct recompute_rung {
    uint32_t block;          /* computed again from this rung on: an index; of the first: none */
    uint64_t live_bytes;     /* the most at once */
    uint64_t physical_bytes; /* of a plan; 0: none was made */
    uint64_t ns;             /* of all that is computed again */
} recompute_rung;

typedef struct recompute {
    pleat__arena *arena;
    const pleat_trace *trace;
    pleat__requests requests;
    uint32_t begin, end; /* positions of the iteration */
    recompute_block *blocks;
    uint32_t block_count;
    struct recompute_pass *passes;
    uint32_t pass_count;
    uint32_t *pass_of;         /* of each request: that of whose second run it is, or none */
    uint32_t *again_first;     /* the rungs' order, as indices of blocks */
    recompute_rung *rungs;     /* block_count + 1 */
    uint64_t persistent_bytes; /* live from the iteration's beginning to its end */
    /* The most live at once of what outlives the last block's backward: with the former, gradients
     * and what the optimizer takes. An iteration of the least size takes no more. */
    uint64_t lasting_bytes;
    uint64_t forward_ns; /* of all blocks once; 0: not known */
} recompute;

/* Finds the blocks of a device's last whole iteration in which all are computed again, and the
 * rungs. `times`: nanoseconds of the blocks' forwards by number, `time_count` of them; NULL: all
 * blocks take as long. PLEAT_E_NOT_FOUND where the recording has no such iteration. `trace` must
 * outlive it. */
PLEAT_NODISCARD pleat_result recompute_begin(const pleat_trace *trace, uint32_t device,
                                             const uint64_t *times, uint32_t time_count,
                                             recompute *out);
/* The first rung whose plan is within the budget; *rung is block_count + 1 where none is: then the
 * last one's plan says what is the least that works. */
PLEAT_NODISCARD pleat_result recompute_choose(recompute *r, uint64_t budget_bytes, uint32_t *rung);
/* Nothing needs to have begun. */
void recompute_end(recompute *r);

#endif
