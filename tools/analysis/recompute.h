/*
 * recompute.h: what an iteration would take if it computed fewer of its blocks again.
 *
 * RECORDING  One in which each block was computed again in backward, under phases that say so:
 *       "block.N" around a block's forward, "block.N.again" around the forward that runs again, and
 *       "block.N.attention" and "block.N.again.attention" around fused attention in them.
 * What the second run allocates and leaves is what the block saves for its backward; what it frees
 *       itself is its working memory. `pleat run --recompute auto` records so.
 * EDIT  A block that is kept has these tensors from the end of its forward on, and no second run.
 *       It gives each up behind the operator of backward that reads it, where a second run's goes
 *       in the middle of it (D470). One that is computed again but for its attention has what
 *       attention leaves from there on. One that is offloaded has them until they are copied to
 *       the host, and again from when they are fetched. Every other request stays where it was.
 *       So what is live in an edited iteration is known, and what it takes is what a plan of it
 *       takes. (A checkpoint holds a block's input, which a kept block may not save: where it does
 *       not, the edit has that much too much.)
 * RUNGS From nothing to everything computed again, one block's way changed at each: of the changes
 *       that leave less where most is live, the one that costs least for its bytes.
 * OFFLOADING costs nothing as long as copies are hidden: a block's is over when a later block, its
 *       `until`, has run; it is fetched when that one's backward begins, which takes no less; and
 * no copy begins before the one before it is over. Others are not offloaded.
 */
#ifndef PLEAT_TOOLS_RECOMPUTE_H
#define PLEAT_TOOLS_RECOMPUTE_H

#include <plan/model/requests.h>

typedef enum recompute_way {
    RECOMPUTE_KEPT,
    RECOMPUTE_ATTENTION, /* all but attention is computed again */
    RECOMPUTE_OFFLOAD,
    RECOMPUTE_AGAIN,
    RECOMPUTE_WAYS,
} recompute_way;

#define RECOMPUTE_BLOCKS_MOST 4096u /* a phase of a block with that number or more is none */

extern const char *const recompute_way_names[RECOMPUTE_WAYS];

/* What is known of time; NULL and 0: nothing. */
typedef struct recompute_times {
    const uint64_t *block_ns;     /* of a forward, by the block's number */
    const uint64_t *attention_ns; /* of attention in it */
    uint32_t block_count, attention_count;
    uint64_t link; /* bytes a second between host and device */
} recompute_times;

typedef struct recompute_block {
    uint32_t number;          /* the N of its phases */
    uint32_t passes;          /* forwards in the iteration that were computed again */
    uint64_t saved_bytes;     /* of all of them */
    uint64_t attention_bytes; /* of these: what attention leaves */
    uint64_t ns;              /* a second run of all of them as told; else 1 for each */
    uint64_t attention_ns;    /* attention in them; 0: not known, or none */
    uint32_t until; /* index of the block by whose end it is offloaded; UINT32_MAX: none */
} recompute_block;

/* What is live at a position: of what outlives backward, and of what grows with the size. */
typedef struct recompute_peak {
    uint64_t lasting_bytes, passing_bytes;
} recompute_peak;

#define RECOMPUTE_PEAKS 3

typedef struct recompute_rung {
    uint32_t block;          /* whose way changes: an index; of the first: none */
    recompute_way way;       /* from this rung on */
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
    uint32_t *pass_of;     /* of each request: that of whose second run it is, or none */
    bool *of_attention;    /* of each request: allocated by attention in a second run */
    uint32_t *again;       /* requests of second runs */
    uint32_t *kept_until;  /* of each of them: the position until which it is there if it is kept */
    uint32_t backward_end; /* where the last of them is freed */
    uint32_t again_count;
    recompute_rung *rungs;
    uint32_t last_rung; /* the one with everything computed again */
    /* Its peak, and what would be at sizes twice and four times as large. */
    recompute_peak peaks[RECOMPUTE_PEAKS];
    uint64_t persistent_bytes; /* live from the iteration's beginning to its end */
    /* The most live at once of what outlives the last block's backward: with the former, gradients
     * and what the optimizer takes. An iteration of the least size takes no more. */
    uint64_t lasting_bytes;
    uint64_t *lasting_live; /* how much of it is live at each position of the iteration */
    /* The most that an iteration before it would have live if it came again, with what persists by
     * now: of those in which all blocks were computed again, from their first block on. 0: none. */
    uint64_t earlier_bytes;
    uint64_t forward_ns; /* of all blocks once; 0: not known */
} recompute;

/* Finds the blocks of a device's last whole iteration in which all are computed again, and the
 * rungs. `times` NULL: all blocks take as long. PLEAT_E_NOT_FOUND where the recording has no such
 * iteration. `trace` must outlive it. */
PLEAT_NODISCARD pleat_result recompute_begin(const pleat_trace *trace, uint32_t device,
                                             const recompute_times *times, recompute *out);
/* The first rung whose plan is within the budget; *rung is last_rung + 1 where none is: then the
 * last one's plan says what is the least that works. */
PLEAT_NODISCARD pleat_result recompute_choose(recompute *r, uint64_t budget_bytes, uint32_t *rung);
/* The blocks' ways at a rung, by index; the caller has room for block_count. */
void recompute_ways(const recompute *r, uint32_t rung, recompute_way *ways);
/* Nothing needs to have begun. */
void recompute_end(recompute *r);

#endif
