/*
 * policy.h: what a policy is to the runtime: a way to serve requests from one device's space.
 *
 * THREADS  The runtime holds its lock around every call; a policy needs none of its own. It leaves
 *          the lock for every memory verb, and while it does it is called by others
 *          (gate.h). create and destroy are called without the lock.
 * TURN     alloc takes the turn before it needs verbs, and passes PLEAT_E_NOT_READY on, nothing
 *          changed, when another thread has it. reclaim is called with the turn.
 * STREAMS  record_stream is the runtime's matter (runtime/streams/pending_free.c): a free that must
 *          wait for other streams reaches the policy when they are done, or when it wants the
 *          memory and the block's stream was made to wait (`pending`). Until then it is not live.
 * MEMORY   A policy that has no memory returns PLEAT_E_OUT_OF_MEMORY or PLEAT_E_BUDGET and changes
 *          nothing; the runtime then runs the steps of out of memory (runtime/face/reclaim.c),
 *          which call `reclaim`, and asks again.
 */
#ifndef PLEAT_RUNTIME_BASE_POLICY_H
#define PLEAT_RUNTIME_BASE_POLICY_H

#include <internal/range.h>
#include <pleat/runtime.h>
#include <runtime/base/conf.h>
#include <runtime/base/gate.h>
#include <runtime/base/states.h>

struct pleat__fraction; /* plan/sizes/sizes.h */
struct pleat__pending;  /* runtime/streams/pending_free.h */

/* What every policy is given; all outlive it. */
typedef struct pleat__policy_context {
    pleat_vmm vmm;
    pleat__arena *arena;
    pleat__space *space;
    const pleat_plan *plan; /* may be NULL */
    /* The plan was found by how the job begins: it is on trial (runtime/learn/judge.h). */
    bool guessed;
    /* A policy was made before in this space, which has served nothing: its part of the window is
     * this one's. */
    bool again;
    pleat_stats *stats; /* the policy counts routes itself, and live bytes by the calls below */
    int device;
    const uint64_t *limit_bytes; /* the budget now, or the device's memory where there is none */
    bool waits;                  /* a mark waits for a plan that is being made */
    pleat__conf conf;
    pleat__gate *gate;                    /* the lock, left for verbs */
    pleat_memory_callback early_callback; /* pleat_runtime_options; NULL: none */
    void *memory_context;                 /* its */
    /* Frees that wait for other streams. A policy may have some of them ordered while it allocates:
     * they reach its `free` before that returns (runtime/streams/pending_free.h). */
    struct pleat__pending *pending;
} pleat__policy_context;

/* How a plan on trial fits the job. */
typedef enum pleat__plan_fit {
    PLEAT__FIT_OPEN = 0, /* nobody can say yet; or there is none */
    PLEAT__FIT_HOLDS,    /* a whole iteration was as planned */
    PLEAT__FIT_FAILS,    /* it was left: the job does something else */
} pleat__plan_fit;

/* What can be given back, in the order in which it is asked for. */
typedef enum pleat__reclaim {
    PLEAT__RECLAIM_VIEWS = 0,  /* address space kept mapped in case it is wanted again */
    PLEAT__RECLAIM_LARGE = 1,  /* cached memory, as much as the request needs */
    PLEAT__RECLAIM_CACHES = 2, /* all cached memory */
} pleat__reclaim;

typedef struct pleat__policy_ops {
    const char *name;
    PLEAT_NODISCARD pleat_result (*create)(const pleat__policy_context *context, void **self);
    void (*destroy)(void *self);
    /* pre: bytes is not 0, and no larger than the device */
    PLEAT_NODISCARD pleat_result (*alloc)(void *self, uint64_t bytes, pleat_stream stream,
                                          pleat_va *address);
    /* PLEAT_E_NOT_FOUND, without a text, for an address that is not allocated. */
    pleat_result (*free)(void *self, pleat_va address);
    pleat_result (*block_of)(void *self, pleat_va address, pleat_block *block);
    pleat_result (*adjacent_free)(void *self, pleat_va address, uint64_t *before, uint64_t *after);
    /* Where the first allocation at or behind an address begins; 0: there is none. */
    pleat_va (*next)(void *self, pleat_va address);
    /* Gives back, to the space's pool or further, memory or views that are idle, once the GPU is
     * done with them; `bytes` is what the request in want needs. Returns whether anything was
     * given: asking again may then help. */
    bool (*reclaim)(void *self, pleat__reclaim what, uint64_t bytes, pleat_stream stream);
    /* The largest request of the stream that idle memory would serve, and all idle bytes. */
    void (*idle)(void *self, pleat_stream stream, uint64_t *largest, uint64_t *total);
    /* Those below may be NULL: nothing is to be done. */
    /* The largest request of the stream that would be served where so much memory is new and all
     * that is idle has been given back as far as it can be. NULL: by `idle` or new memory alone. */
    uint64_t (*most)(void *self, pleat_stream stream, uint64_t new_bytes);
    /* Lays idle memory to rest until the space has at most `keep_bytes`; how many bytes went. pre:
     * the turn. NULL: `reclaim` gives it back. */
    uint64_t (*rest)(void *self, uint64_t keep_bytes);
    /* Lays to rest what is idle and what the iterations that it expects have no use for, while they
     * run; how many bytes went. pre: the turn. NULL: it expects none. */
    uint64_t (*spare)(void *self);
    /* Nothing more comes to lie on the space's chunks that are on a pause's `list`, until let_go
     * after they are awake again. NULL: memory of this policy cannot be paused. */
    pleat_result (*hold)(void *self);
    void (*let_go)(void *self);
    /* They are all at rest: they become those handles in which they wake soonest. Those on which
     * something lives are still on their `list`, and written to `listed`, which has room for each
     * of their pages; how many. With the turn. */
    size_t (*rested)(void *self, pleat__chunk **listed);
    /* `give` frees what lies on chunks of this `list`, which rest: those on which nothing lives
     * then rest by themselves, and are on no list any more. Where there is no host memory for it,
     * `give` is not called. With the turn. */
    void (*leave)(void *self, const void *list, uint64_t runs, void (*give)(void *context),
                  void *context);
    pleat_result (*mark)(void *self);
    bool (*audit)(void *self);
    /* The plan file's sizes, and the x that iterations have now; NULL: it has none, or x is not
     * known yet. The plan outlives the policy. NULL: the policy does not know sizes. */
    const pleat_plan *(*parameter)(const void *self, struct pleat__fraction *x);
    /* How the plan fits that it was given on trial. NULL: it takes none on trial. */
    pleat__plan_fit (*fit)(const void *self);
    /* What it is doing and why; NULL: it does the same always. */
    const pleat__states *(*states)(const void *self);
} pleat__policy_ops;

/* The policy of that name, or NULL. */
const pleat__policy_ops *pleat__policy_find(const char *name);
/* The names, for messages, each behind a blank: " native expandable ...". A static string. */
const char *pleat__policy_names(void);

/* X(name): every policy, each in its own file as pleat__policy_<name>. */
#define PLEAT__POLICIES(X)          X(native) X(expandable) X(gmlake) X(stweaver) X(pleat)
#define PLEAT__DECLARE_POLICY(name) extern const pleat__policy_ops pleat__policy_##name;
PLEAT__POLICIES(PLEAT__DECLARE_POLICY)
#undef PLEAT__DECLARE_POLICY

/* Bytes that a request may have in every policy. `pleat` counts granules in 32 bits, and so is
 * where one would end that begins in the last of as many: it refuses more with PLEAT_E_LIMIT
 * (D199). */
#define PLEAT__REQUEST_MOST (UINT64_C(1) << 40)

/* What is at most as large PyTorch's statistics count as its small pool (D477). */
#define PLEAT__SMALL_BYTES (1u << 20)

/* A block more that is live (sign 1), or one less (-1). Live bytes are counted as max-live counts
 * them, requests rounded up to 512, and as asked for. Negative numbers wrap around, which sums
 * undo. */
static inline void pleat__count_live(pleat_stats *stats, uint64_t bytes, int sign)
{
    uint64_t factor = (uint64_t)(int64_t)sign, rounded = pleat__rounded(bytes);
    uint64_t small = bytes <= PLEAT__SMALL_BYTES ? factor : 0;
    stats->live_bytes += rounded * factor;
    stats->requested_bytes += bytes * factor;
    stats->small_blocks += small;
    stats->small_bytes += rounded * small;
}

static inline void pleat__count_alloc(pleat_stats *stats, uint64_t bytes)
{
    pleat__count_live(stats, bytes, 1);
    if (stats->live_bytes > stats->peak_live_bytes)
        stats->peak_live_bytes = stats->live_bytes;
    if (stats->requested_bytes > stats->peak_requested_bytes)
        stats->peak_requested_bytes = stats->requested_bytes;
    stats->asked_bytes += bytes;
    /* It is counted among the requests when it has been served. */
    uint64_t blocks = stats->requests + 1 - stats->frees;
    if (blocks > stats->peak_blocks)
        stats->peak_blocks = blocks;
}

static inline void pleat__count_free(pleat_stats *stats, uint64_t bytes)
{
    pleat__count_live(stats, bytes, -1);
}

static inline void pleat__restart_peaks(pleat_stats *stats)
{
    stats->peak_live_bytes = stats->live_bytes;
    stats->peak_requested_bytes = stats->requested_bytes;
    stats->peak_blocks = stats->requests - stats->frees;
}

/* A free that counts when the program asks for it and reaches the policy later (sign 1), or now
 * (-1): the policy counts it too. */
static inline void pleat__count_waiting(pleat_stats *stats, uint64_t bytes, int sign)
{
    uint64_t factor = (uint64_t)(int64_t)sign;
    pleat__count_live(stats, bytes, -sign);
    stats->waiting_blocks += factor;
    stats->waiting_bytes += pleat__rounded(bytes) * factor;
}

#endif
