/*
 * pleat/runtime.h: the allocator a job lives on.
 *
 * A runtime serves one device. It hands out addresses in that device's window; what lies behind
 * them is the policy's matter.
 *
 * ORDER     Memory is stream-ordered: what is freed on a stream may be reused by later work of the
 *           same stream at once, by another stream only after an event says so.
 * STREAMS   A stream that was named to a runtime lives as long as the runtime: what it used is
 *           waited for by events on it, and waits for ever where none can be recorded. The first 62
 *           that allocate have memory of their own; those after them share what they have among
 *           themselves, and wait for each other on the device where it passes from one to another.
 * LEARNING  The policy pleat learns the places of an iteration's requests from the first two
 *           iterations that are alike, where they have 64 requests or more; a plan is followed from
 *           its first request on. Iterations are what pleat_mark parts: where nothing calls it each
 *           request has its place found anew.
 * ERRORS    PLEAT_E_OUT_OF_MEMORY and PLEAT_E_BUDGET leave the runtime usable, and as it was but
 *           for idle memory that was given back; the text says live, physical, budget, reusable and
 *           the largest request that would fit, which is served when it is asked for next (by the
 *           policy pleat; others round sizes up); in a capture, how much of its memory is used.
 * THREADS   Every function may be called from any thread.
 *           A thread that is in one must not be cancelled (pthread_cancel): it would keep a lock
 *           that all others wait for. pthread_setcancelstate around the call keeps it off.
 * PROCESSES In a child of fork every call on a runtime that its parent made is PLEAT_E_STATE, and
 *           pleat_runtime_destroy does nothing. The child may make runtimes of its own, on a
 *           pleat_vmm of its own: one on its parent's is PLEAT_E_STATE, too.
 */
#ifndef PLEAT_RUNTIME_H
#define PLEAT_RUNTIME_H

#include <pleat/base.h>
#include <pleat/plan.h>
#include <pleat/vmm.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pleat_runtime pleat_runtime;

/* Asked before a request is refused, or a resume (of PLEAT_STREAM_UNKNOWN), after Pleat has given
 * back all it could: the program may free memory of its own (through pleat_free as well), or raise
 * the budget. Non-zero: try once more. Not asked where the request is larger than the device's
 * memory: whatever is given up, that is refused. Called without any lock of Pleat's, on the thread
 * that allocates or resumes; what it resumes just then it cannot resume (PLEAT_E_STATE). */
typedef int (*pleat_memory_callback)(void *context, uint64_t bytes, pleat_stream stream);

typedef struct pleat_runtime_options {
    uint32_t size; /* sizeof(pleat_runtime_options) */
    int device;
    /* NULL: "pleat". "native" and "expandable" are PyTorch's allocator, by segments and by
     * expandable segments, "gmlake" and "stweaver" those of the papers. */
    const char *policy;
    /* NULL: none; not owned, outlives the runtime. For the policies pleat, where the plan is one
     * that is followed (pleat/plan.h), and stweaver, where it was made by the algorithm stweaver
     * with no_fold; the others leave it alone. */
    const pleat_plan *plan;
    uint64_t budget_bytes;                 /* 0: none */
    pleat_memory_callback memory_callback; /* may be NULL */
    void *memory_context;
    const char *conf; /* settings, "key:value,..."; NULL: those of the environment's PLEAT_CONF. The
                       * command `pleat conf` lists them, with what each takes */
    int waits;        /* not 0: a mark waits for a plan that is being made, and so the same calls do
                       * the same every time. For replays, whose seconds are not the job's */
    /* May be NULL. Asked by the policies native and expandable each time before they take new
     * memory, where PyTorch runs its free-memory callbacks; with memory_context, and otherwise as
     * memory_callback. Non-zero: they look once more among what is free. */
    pleat_memory_callback early_callback;
} pleat_runtime_options;

/* `vmm` must outlive the runtime. options may be NULL.
 *
 * PLEAT_E_INVALID     no backend, a policy or a setting that there is not, a setting or a limit of
 *                     the environment out of range, a plan that the policy stweaver cannot take
 * PLEAT_E_ABI         the options' size, or the backend's table
 * PLEAT_E_NO_DEVICE   the backend has no such device
 * PLEAT_E_BUDGET, PLEAT_E_OUT_OF_MEMORY   the plan takes more than is allowed, or than there is
 * PLEAT_E_INPUT       the plan is for chunks of another size, or the file in which tenants meet is
 *                     not trusted
 * PLEAT_E_NOT_READY   another process has kept that file's lock for two seconds
 * PLEAT_E_UNSUPPORTED a setting that this policy or backend has not, or a device whose chunks are
 *                     not of 32 KiB to 2 MiB
 * PLEAT_E_IO          the log, or the file in which tenants meet
 * PLEAT_E_STATE       the backend was made before a fork (PROCESSES)
 * PLEAT_E_LIMIT       guarantees that do not fit, or too many tenants
 * PLEAT_E_NO_MEMORY, PLEAT_E_LIMIT, PLEAT_E_DRIVER   the host or the driver has no more */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_runtime_create(pleat_vmm vmm,
                                                            const pleat_runtime_options *options,
                                                            pleat_runtime **out);
/* Gives all memory back, also what is still allocated, once the streams that allocated and those
 * that were recorded to use what was freed are past it. NULL is allowed. */
PLEAT_API void pleat_runtime_destroy(pleat_runtime *runtime);

/* An address that is a multiple of 512; sizes are rounded up to that. What lies there is undefined.
 * `bytes` of 0 gives address 0, and so does a failure. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_alloc(pleat_runtime *runtime, uint64_t bytes,
                                                   pleat_stream stream, pleat_va *address);
/* Address 0 is allowed. PLEAT_E_NOT_FOUND for an address that is not allocated; PLEAT_E_STATE where
 * it has been freed, and waits for other streams or until it is resumed; nothing changes. */
PLEAT_API pleat_result pleat_free(pleat_runtime *runtime, pleat_va address);
/* `stream` also uses the allocation that holds an address: after its free the memory is reused only
 * when the work that `stream` had been given by then is done. PLEAT_E_NOT_FOUND, PLEAT_E_STATE as
 * above. */
PLEAT_API pleat_result pleat_record_stream(pleat_runtime *runtime, pleat_va address,
                                           pleat_stream stream);
/* An iteration begins here. */
PLEAT_API pleat_result pleat_mark(pleat_runtime *runtime);
/* The calling program enters a phase or a module window, by name; "" leaves it. Of a name 250
 * bytes are kept, and '?' stands for what is not UTF-8, for a ';', and for the whole name "-". */
PLEAT_API pleat_result pleat_phase(pleat_runtime *runtime, const char *name);
/* Gives cached memory back to the device. */
PLEAT_API pleat_result pleat_empty_cache(pleat_runtime *runtime);
/* Gives memory that nothing lies on back to the device, until the runtime has at most `keep_bytes`
 * of memory, that on which something lies included, or no more is idle; *given_bytes (may be NULL):
 * how many. It comes back by itself, at the same addresses, when it is wanted; what a schedule
 * expects next comes with it. Policies other than pleat give all their idle memory back where they
 * have more than `keep_bytes`. Waits for the work that the streams had been given by now, not for
 * the device. */
PLEAT_API pleat_result pleat_trim(pleat_runtime *runtime, uint64_t keep_bytes,
                                  uint64_t *given_bytes);
/* ---- pause and resume ----
 *
 * The memory of live allocations goes back to the device for a while, and comes back at the same
 * addresses: what holds an address goes on holding, captured graphs too. Chunks go on which nothing
 * else lies; what was shared with other processes or spilled to the host stays where it is.
 * Meanwhile the program must not use what is paused; it may free it, and allocate: what is paused,
 * or in the host's memory, takes nothing of the device or the budget. All of it together may be
 * four times the device. */

enum {
    PLEAT_OFFLOAD_HOST = 0, /* what lives is copied to pinned host memory, and back */
    /* Nothing is copied: what comes back is undefined, but of what was paused by its tag before, to
     * be copied. */
    PLEAT_OFFLOAD_DISCARD = 1,
};

typedef struct pleat_pause_options {
    uint32_t size;    /* sizeof(pleat_pause_options) */
    uint32_t offload; /* PLEAT_OFFLOAD_* */
    const char *tag;  /* what was allocated with that tag (pleat_tag); NULL: all, and idle memory */
} pleat_pause_options;

/* options may be NULL. Waits for the work that allocating streams had been given by now, and for
 * the copies; other streams that use the memory are the caller's to wait for. On failure all is as
 * it was. PLEAT_E_STATE: it is paused already, or a stream captures a graph. PLEAT_E_NOT_FOUND:
 * nothing was ever allocated with the tag. PLEAT_E_UNSUPPORTED: by this policy. PLEAT_E_INVALID: no
 * such offload. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_pause(pleat_runtime *runtime,
                                                   const pleat_pause_options *options);
/* What was paused by that tag, or (NULL) all, pause by pause; where another thread resumes one,
 * that is waited for. Where room is wanted idle memory is given back for it, then the program is
 * asked, as for a request. One that fails stays paused, with those behind it, and may be resumed
 * later: PLEAT_E_BUDGET, PLEAT_E_OUT_OF_MEMORY; PLEAT_E_DRIVER: not where a verb that failed lost a
 * place. PLEAT_E_STATE: nothing is paused. PLEAT_E_NOT_FOUND as above. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_resume(pleat_runtime *runtime, const char *tag);
/* What the calling thread allocates from now on has this tag, on every runtime, but for what lies
 * in a capture's memory (pleat_capture_begin), which has none; NULL or "" ends it. PLEAT_E_LIMIT:
 * there may be 256 tags, of up to 63 letters. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_tag(const char *name);

/* A new hard cap on the bytes of chunks; 0 lifts it. One that is lower than what exists now stops
 * growth; what is cached beyond it is given back. */
PLEAT_API pleat_result pleat_set_budget(pleat_runtime *runtime, uint64_t bytes);
/* The largest microbatch that would fit under the cap that holds now. `running` is what iterations
 * have now, in whatever it is counted: samples, or tokens; the answer is too. It needs a plan file
 * made of several, or a recording (pleat_record_begin) with iterations at two of them; at most four
 * times the largest of those is said. The planner runs on the caller's thread, milliseconds with a
 * plan file, seconds with a recording; other threads wait for it as for pleat_record_copy.
 * PLEAT_E_NOT_FOUND: sizes are not known yet, or with a plan file no iteration has shown yet which
 * of them it has; or not even 1 fits. PLEAT_E_INVALID: `running` is 0. PLEAT_E_UNSUPPORTED: by this
 * policy. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_max_microbatch(pleat_runtime *runtime,
                                                            uint64_t running, uint64_t *most);
/* The cap that holds now: the strictest of the budget, of what the environment leaves to the
 * process (pleat_limits_of), and of the device's memory. */
PLEAT_API uint64_t pleat_limit_of(pleat_runtime *runtime);

/* Where the cap comes from. Memory of the process that is not Pleat's (its context, libraries,
 * communication) is part of what the environment allows it, and kept free for it. */
typedef struct pleat_limits {
    uint32_t size;          /* sizeof(pleat_limits), set by the caller */
    uint32_t is_measured;   /* whether other_bytes is known */
    uint64_t limit_bytes;   /* the cap on Pleat's bytes */
    uint64_t process_bytes; /* what the environment allows the whole process; 0: no limit */
    uint64_t other_bytes;   /* of the process and not Pleat's, measured now */
    char name[64];          /* what set the cap: a variable's name, "the budget", "the device" */
} pleat_limits;

/* Measures: it may take a millisecond, and another thread's verbs wait meanwhile. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_limits_of(pleat_runtime *runtime, pleat_limits *out);
/* Whether an address lies in this runtime's window, allocated or not. Takes no lock. */
PLEAT_API int pleat_owns(const pleat_runtime *runtime, pleat_va address);

/* ---- graph capture ----
 *
 * A graph writes, whenever it is replayed, where it wrote when it was captured. What a capturing
 * stream allocates therefore comes from memory of the capture's own, in which nothing else ever
 * lies: taken before the capture, within the budget, and given back when the graph is no more.
 * While a stream captures, no allocation of it issues a memory verb, and nothing is recorded on
 * it. Other streams allocate as always; capture in relaxed or thread-local mode if they do. */

typedef struct pleat_capture pleat_capture;

/* Before `stream` begins to capture: memory of `bytes` for the capture, which gets no more. Errors
 * as pleat_alloc's; PLEAT_E_STATE for a stream that captures already; PLEAT_E_INVALID: of no bytes.
 */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_capture_begin(pleat_runtime *runtime,
                                                           pleat_stream stream, uint64_t bytes,
                                                           pleat_capture **out);
/* Before `stream` joins the capture by waiting for one that takes part. Memory is reused from
 * allocation to allocation of one stream only. PLEAT_E_STATE: it captures already, or the capture
 * has ended. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_capture_add(pleat_runtime *runtime,
                                                         pleat_capture *capture,
                                                         pleat_stream stream);
/* After the capture: its streams allocate as always. *used_bytes (may be NULL) is how much of the
 * memory was needed, for the next capture's begin. PLEAT_E_STATE: it has ended already. */
PLEAT_API pleat_result pleat_capture_end(pleat_runtime *runtime, pleat_capture *capture,
                                         uint64_t *used_bytes);
/* The graph is no more, and no replay of it runs. Its memory goes when all that was allocated in it
 * has been freed. The handle is not valid any more. NULL is allowed; PLEAT_E_STATE while it is
 * open. */
PLEAT_API pleat_result pleat_capture_free(pleat_runtime *runtime, pleat_capture *capture);

/* No stream has this number. */
#define PLEAT_STREAM_UNKNOWN (~(pleat_stream)0)

typedef struct pleat_block {
    pleat_va address;
    uint64_t bytes;     /* of the block */
    uint64_t requested; /* as asked for; 0 when free */
    pleat_stream stream;
    int allocated; /* 0 also where it has been freed, and waits: `requested` is not 0 then */
} pleat_block;

/* The allocated block that holds an address, which may lie anywhere inside it: O(log n) or better.
 * PLEAT_E_NOT_FOUND. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_block_of(pleat_runtime *runtime, pleat_va address,
                                                      pleat_block *block);
/* Free bytes that lie directly before and behind that block and would become one with it, were it
 * freed: what a program that can choose which tensor to give up wants to know. O(log n) or better.
 * PLEAT_E_NOT_FOUND. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_adjacent_free(pleat_runtime *runtime, pleat_va address,
                                                           uint64_t *before, uint64_t *after);
typedef void (*pleat_block_visitor)(void *context, const pleat_block *block);
/* Visits every mapped byte once, in order of address, as allocated blocks, those that were freed
 * and wait for other streams or until they are resumed, and the free ranges between them. It may
 * take milliseconds, in which other threads wait; the visitor must not call the runtime. Where
 * memory is mapped at several places, the blocks' bytes exceed the physical ones. */
PLEAT_API pleat_result pleat_walk(pleat_runtime *runtime, pleat_block_visitor visit, void *context);

/* Counters: X(name, text). Bytes and counts; peaks since creation or the last reset. */
#define PLEAT_COUNTERS(X)                                                                          \
    X(requests, "allocations asked for and served")                                                \
    X(frees, "frees")                                                                              \
    X(live_bytes, "bytes live now, sizes rounded to 512")                                          \
    X(peak_live_bytes, "most bytes live")                                                          \
    X(requested_bytes, "bytes live now, sizes as asked for")                                       \
    X(peak_requested_bytes, "most of these")                                                       \
    X(peak_blocks, "most allocations live at a time")                                              \
    X(asked_bytes, "bytes asked for and served, since creation")                                   \
    X(physical_bytes, "bytes of chunks that exist now")                                            \
    X(peak_physical_bytes, "most bytes of chunks")                                                 \
    X(virtual_bytes, "bytes of the window in use now")                                             \
    X(planned, "requests served by their slot")                                                    \
    X(lane, "requests served in a lane")                                                           \
    X(planned_bytes, "bytes asked for and served by a slot, since creation")                       \
    X(lane_bytes, "bytes asked for and served in a lane, since creation")                          \
    X(stitched, "requests served by a stitched view")                                              \
    X(cached, "requests served in a hole of the heap, or by the caching allocator")                \
    X(diverged, "requests that did not match the plan")                                            \
    X(slot_busy, "matched requests whose slot was not free")                                       \
    X(switches, "schedules made of iterations that were alike, and followed")                      \
    X(divergences, "times that a schedule was suspended because too much did not match")           \
    X(returns, "times that a suspended schedule was resumed")                                      \
    X(instances, "layouts made for a larger microbatch or length")                                 \
    X(instance_maps, "alias pages mapped for such layouts")                                        \
    X(views_reused, "stitched requests whose view was there already")                              \
    X(streams_ordered, "waits put between streams because memory went from one to another")        \
    X(driver_calls, "memory verbs issued")                                                         \
    X(mapper_calls, "of them, those issued by threads of Pleat's own")                             \
    X(out_of_memory, "requests refused for want of memory, which are not among requests")          \
    X(metadata_bytes, "host bytes of Pleat's own metadata")                                        \
    X(map_waits, "requests that waited for memory verbs")                                          \
    X(waited_ns, "nanoseconds that calls waited: for memory verbs, other calls, other threads")    \
    X(quarantined_bytes, "bytes of the window that a failed verb left unusable")                   \
    X(creates, "pieces of memory taken from the device")                                           \
    X(releases, "pieces of memory given back to it")                                               \
    X(small_blocks, "allocations of at most 1 MiB live now")                                       \
    X(small_bytes, "bytes of them, sizes rounded to 512")                                          \
    X(host_bytes, "bytes of chunks in the host's memory now (setting spill)")                      \
    X(moved_bytes, "bytes of chunks that spilling moved there, or back")                           \
    X(kept_plans, "plans that an earlier run left and that were followed (setting keep)")          \
    X(left_at, "request at which a plan was left, because it is another job's; 0: it was not")     \
    X(waiting_blocks, "allocations freed while another stream uses them, or their memory is "      \
                      "paused: they are not live, and not yet free")                               \
    X(waiting_bytes, "bytes of them, sizes rounded to 512")

typedef struct pleat_stats {
#define PLEAT_COUNTER_FIELD(name, text) uint64_t name;
    PLEAT_COUNTERS(PLEAT_COUNTER_FIELD)
#undef PLEAT_COUNTER_FIELD
} pleat_stats;

/* Fills in `size` bytes of the caller's counters: their list grows at its end, and a program built
 * before has room for fewer. Those that the library does not know are 0, as all are in a child of
 * fork. */
PLEAT_API void pleat_stats_fill(pleat_runtime *runtime, pleat_stats *stats, size_t size);

static inline pleat_stats pleat_stats_of(pleat_runtime *runtime)
{
    pleat_stats stats;
    pleat_stats_fill(runtime, &stats, sizeof stats);
    return stats;
}

typedef enum pleat_dump_format {
    PLEAT_DUMP_TEXT = 0, /* for people */
    PLEAT_DUMP_JSON = 1, /* one object: policy, device, counters, verbs, host, states, streams,
                            blocks */
} pleat_dump_format;

/* Writes all there is to say of a runtime at one moment: its counters, its space's verbs, the
 * metadata's bytes, the policy's states and what caused them, the streams and every block. Other
 * threads wait while it is gathered, not while it is written. PLEAT_E_IO when `out` does not
 * take it all; PLEAT_E_INVALID: no such format. */
PLEAT_API pleat_result pleat_dump(pleat_runtime *runtime, pleat_dump_format format, FILE *out);

/* Ends the log that the setting `log` asks for, if there is one: for a program that ends without
 * destroying the runtime, whose log would read as that of one that was killed. What comes later is
 * not in it. A forked child's call does nothing. NULL does nothing. */
PLEAT_API void pleat_end_log(pleat_runtime *runtime);

/* With the setting keep: writes the plan of what was recorded so far into the user's cache, where
 * that has not been done and none that was found there is followed, and waits for it; a runtime
 * that is destroyed does so itself. Where it fails recording goes on, and once twice as much has
 * been recorded another call, or the runtime by itself, tries again. Seconds. PLEAT_E_STATE without
 * the setting; PLEAT_E_NOT_FOUND: nothing was allocated; PLEAT_E_INPUT: nothing repeats;
 * PLEAT_E_LIMIT: no plan takes less than the job took; PLEAT_E_IO: there is no folder that this
 * user alone can write. */
PLEAT_API pleat_result pleat_keep_plan(pleat_runtime *runtime);

/* Peaks restart from what is now; the counters as they were, in one step: no peak is lost. Filled
 * in as by pleat_stats_fill. */
PLEAT_API void pleat_reset_peaks_fill(pleat_runtime *runtime, pleat_stats *stats, size_t size);

static inline pleat_stats pleat_reset_peaks(pleat_runtime *runtime)
{
    pleat_stats stats;
    pleat_reset_peaks_fill(runtime, &stats, sizeof stats);
    return stats;
}

/* ---- recording: what a running job asks for, for pleat_plan_make ---- */

typedef struct pleat_record_options {
    uint32_t size;       /* sizeof(pleat_record_options) */
    uint32_t iterations; /* recording ends by itself at that many marks; 0: no mark ends it */
    uint64_t events;     /* and at that many events; 0: 4 Mi (32 bytes each) */
} pleat_record_options;

/* Records from now on: best before the first request, since a plan counts a job's requests from its
 * beginning. A phase is recorded as the label "phase=NAME". options may be NULL. PLEAT_E_STATE when
 * it records already. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_record_begin(pleat_runtime *runtime,
                                                          const pleat_record_options *options);
/* Whether recording has begun and ended by itself: nothing more will come. */
PLEAT_API int pleat_record_complete(pleat_runtime *runtime);
/* Whether what was recorded so far is enough for a plan: all of it, or at least eight iterations of
 * which the last ones asked for as many bytes each. Recording goes on all the same. */
PLEAT_API int pleat_record_enough(pleat_runtime *runtime);
/* A copy of what was recorded so far; it is the caller's. Other threads allocate meanwhile: they
 * wait while 512 events are read, a few microseconds, or 512 names of phases, which takes longer
 * the longer and the more they are, and not for the whole. PLEAT_E_STATE when nothing records, or
 * not any more; when recording ended early, why: PLEAT_E_NO_MEMORY, or PLEAT_E_INPUT where a trace
 * has no room for it, at 65,536 streams for example. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_record_copy(pleat_runtime *runtime, pleat_trace **out);
/* Ends recording and forgets what was recorded. */
PLEAT_API void pleat_record_end(pleat_runtime *runtime);

/* ---- the canary (setting canary:on): no two live allocations share memory ---- */

typedef struct pleat_canary {
    uint64_t checked; /* allocations */
    uint64_t words; /* of 4 bytes that were not as they must be; anything but 0 is a bug of Pleat's,
                       or of a program that writes past its memory or after its free */
    pleat_va first; /* where one of them was */
} pleat_canary;

/* What was found so far; waits for the default stream, and counts what other streams have finished.
 * PLEAT_E_STATE without the setting. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_canary_of(pleat_runtime *runtime, pleat_canary *out);

/* ---- other devices, other processes ---- */

/* Kernels on device `peer` may use this runtime's memory from now on. PLEAT_E_LIMIT for more than
 * 63 of them; what the driver says where it cannot. Where the runtime has no memory yet a chunk is
 * taken, to ask, and given back: PLEAT_E_BUDGET, PLEAT_E_OUT_OF_MEMORY. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_add_peer(pleat_runtime *runtime, int peer);

/* The physical memory behind an allocation: pieces that are mapped one behind the other. */
typedef struct pleat_share {
    uint32_t pieces;
    uint64_t bytes;  /* of all pieces */
    uint64_t offset; /* of the allocation's first byte in them */
} pleat_share;

/* For another process, while the allocation that holds an address lives. PLEAT_E_UNSUPPORTED
 * without the setting share:on; PLEAT_E_NOT_FOUND. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_share_of(pleat_runtime *runtime, pleat_va address,
                                                      pleat_share *share);
/* A descriptor of piece `index`, which the caller closes and programs that it starts do not have,
 * and its bytes. PLEAT_E_INVALID: there is no such piece. What was spilled to the
 * host comes back for it: PLEAT_E_BUDGET and PLEAT_E_OUT_OF_MEMORY where there is no room.
 * PLEAT_E_STATE: it is paused, or it was spilled, and something is paused or a stream captures a
 * graph. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_share_piece(pleat_runtime *runtime, pleat_va address,
                                                         uint32_t index, int *fd, uint64_t *bytes);
/* Address space for `bytes` of pieces that another process shares; they follow in order. What is
 * imported is not in this runtime's budget, and not among its allocations. PLEAT_E_INVALID: no
 * whole chunks; PLEAT_E_LIMIT: the window has no room. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_import_begin(pleat_runtime *runtime, uint64_t bytes,
                                                          pleat_va *address);
/* Maps the next piece, whose descriptor stays the caller's. PLEAT_E_INVALID: no import begins at
 * the address, it has no room for so many bytes, or the descriptor is no piece of that size. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_import_piece(pleat_runtime *runtime, pleat_va address,
                                                          int fd, uint64_t bytes);
/* Gives an import back, whole or begun. pre: no work that uses it is left on the device.
 * PLEAT_E_NOT_FOUND: none begins at the address. */
PLEAT_API pleat_result pleat_import_end(pleat_runtime *runtime, pleat_va address);

/* ---- told when memory may be used again ---- */

/* Called when a free is complete: at once, or when the streams recorded for it have passed. It is
 * under the runtime's lock, before the memory can be handed out again: it must not call the
 * runtime. */
typedef void (*pleat_freed_callback)(void *context, pleat_va address);
/* NULL ends it. */
PLEAT_API void pleat_on_freed(pleat_runtime *runtime, pleat_freed_callback callback, void *context);

#ifdef __cplusplus
}
#endif

#endif
