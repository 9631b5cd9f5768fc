/*
 * policy.h: which tensors to evict for a request that no free memory holds.
 *
 *   dtr       the tensor that is cheapest by its bytes and its staleness, again and again until a
 *             block fits (DTR, arXiv 2006.09616, section 4.1)
 *   dte       the same, where free memory beside a tensor counts as its own (MegTaiChi, ICS 2022,
 *             as Coop describes it)
 *   coop      the cheapest run of neighbours that makes one block, found in one pass over the
 *             addresses (Coop, NeurIPS 2023, section 3.3)
 *   stitched  such a run, or whole chunks from anywhere, which are then mapped side by side; in the
 *             variant that a rehearsal of the log finds best (rehearse.c)
 *
 * BY THE BYTE  Coop compares runs by what they weigh, whatever their length. So a small request
 *       evicts a small tensor that costs much for its bytes, and the next small request another
 *       one, where a large cheap tensor would serve both. A run can be weighed by its bytes, as DTR
 *       weighs a tensor, or by their square root.
 *
 * A search changes nothing and allocates nothing.
 */
#ifndef PLEAT_PLAN_REMAT_POLICY_H
#define PLEAT_PLAN_REMAT_POLICY_H

#include <plan/remat/pool.h>
#include <plan/remat/table.h>

typedef enum pleat__remat_policy {
    PLEAT__REMAT_DTR,
    PLEAT__REMAT_DTE,
    PLEAT__REMAT_COOP,
    PLEAT__REMAT_STITCHED,
    PLEAT__REMAT_POLICIES,
} pleat__remat_policy;

/* What a run of neighbours is compared by. */
typedef enum pleat__remat_weighing {
    PLEAT__REMAT_BY_SUM,  /* Coop's: weight */
    PLEAT__REMAT_BY_ROOT, /* weight / sqrt(bytes) */
    PLEAT__REMAT_BY_BYTE, /* weight / bytes */
    PLEAT__REMAT_WEIGHINGS,
} pleat__remat_weighing;

/* What a search is about. */
typedef struct pleat__remat_need {
    uint64_t bytes;
    uint64_t now_ns;
    uint64_t map_ns; /* what it takes to map a chunk and to unmap it later */
    pleat__remat_weighing weighing;
} pleat__remat_need;

/* What it found; `tensors` has room for all of the table. */
typedef struct pleat__remat_victims {
    uint32_t *tensors;
    uint32_t count; /* 0: there is nothing that would help */
} pleat__remat_victims;

/* Memory that a search needs besides, for as many tensors as the table takes and the pool's chunks.
 */
typedef struct pleat__remat_scratch {
    struct pleat__remat_candidate *candidates;
    uint64_t *chunk_left; /* bytes in use of each chunk without those chosen so far */
    uint32_t *run;        /* the tensors of the cheapest run */
} pleat__remat_scratch;

/* "coop". */
const char *pleat__remat_policy_name(pleat__remat_policy policy);

PLEAT_NODISCARD pleat_result pleat__remat_scratch_create(pleat__arena *arena, uint32_t tensors,
                                                         uint64_t chunks,
                                                         pleat__remat_scratch *scratch);

/* One tensor, the cheapest by the byte. */
void pleat__remat_search_dtr(const pleat__remat_table *table, const pleat__remat_need *need,
                             pleat__remat_victims *victims);
void pleat__remat_search_dte(const pleat__remat_table *table, const pleat__remat_pool *pool,
                             const pleat__remat_need *need, pleat__remat_victims *victims);
/* The tensors of the cheapest run of `need->bytes`. Returns the sum of what pleat__remat_weight
 * says of them. */
uint64_t pleat__remat_search_window(const pleat__remat_table *table, const pleat__remat_pool *pool,
                                    const pleat__remat_need *need, pleat__remat_victims *victims);
/* Whole chunks from anywhere, where they and their maps weigh less than the cheapest run. */
void pleat__remat_search_chunks(const pleat__remat_table *table, const pleat__remat_pool *pool,
                                const pleat__remat_need *need, pleat__remat_scratch *scratch,
                                pleat__remat_victims *victims);

/* Coop's heuristic of one tensor, projected cost / staleness, in units of 2^-24: whole numbers, so
 * that a window's sum is exact whatever entered and left it. */
static inline uint64_t pleat__remat_weight(const pleat__remat_hot *hot, uint64_t now)
{
    const uint64_t most = 1ull << 44; /* sums of 2^20 such tensors fit */
    double weight = (double)hot->projected_ns / (double)pleat__remat_staleness(hot, now) * 0x1p24;
    return weight < (double)most ? (uint64_t)weight : most;
}

#endif
