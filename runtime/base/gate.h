/*
 * gate.h: a runtime's lock, and the way out of it for whoever must call the driver.
 *
 * Memory verbs take tens of microseconds, waiting for the GPU as long as it likes; an allocation
 * takes tens of nanoseconds. So neither is done under the lock that allocations take. A thread
 * whose request needs verbs
 *
 *     takes the turn          one thread at a time issues verbs for requests: the driver would
 *                             serialise them anyhow
 *     reserves, under lock    what the verbs will be about is out of all others' reach: granules
 *                             taken, blocks in no list, pages and budget reserved
 *     leaves the lock         others allocate and free meanwhile
 *     issues its verbs        on its own thread, or by the mapper's (pleat__gate_mapper)
 *     enters, and publishes   what became of it; what it had read before it left is not true any
 *                             more
 *
 * and serves its request from what it published before it lets go of the lock, so that no other
 * thread gets it. Another thread that needs verbs meanwhile finds the turn taken: it gives up with
 * PLEAT_E_NOT_READY, leaving nothing half done, waits for the turn without the lock, and begins
 * again.
 *
 * What the lock orders stays under it: fencing a point of a stream, asking whether one was passed,
 * making a stream wait. These take a microsecond at most and wait for nothing.
 *
 * ERRORS  What fails with the turn does not touch the thread's last error where the call succeeds
 * and says so (pleat__tries_end) before the turn is given back: without verbs next to nothing
 *         fails, and requests that need none are not to pay for it.
 * LOCKS   turn, then lock; a space's own locks are inside. PLEAT__HOT_ASSERT (internal/check.h)
 *         traps where a verb is issued under the lock.
 * REMOVAL Under the lock the streams are fenced, and what goes is taken out of reach; then the lock
 *         is left and the fences are waited for: what others free after the fences is not among it.
 *         A stream that captures a graph, which nobody told the runtime of, cannot be fenced: what
 *         it has left over stays, and what others have goes.
 */
#ifndef PLEAT_RUNTIME_BASE_GATE_H
#define PLEAT_RUNTIME_BASE_GATE_H

#include <pthread.h>
#include <stdbool.h>
#include <vmm/mapper.h>
#include <vmm/space.h>

/* A stream that captures a graph, and the point it had reached before. */
typedef struct pleat__captured {
    pleat_stream stream;
    pleat_event before;
} pleat__captured;

/* A stream that allocates. */
typedef struct pleat__gate_stream {
    pleat_stream stream;
    uint64_t blocks; /* of those that share their memory (heap.h): allocations, and requests on
                        their way */
} pleat__gate_stream;

/* The point that a stream had reached. */
typedef struct pleat__fence {
    pleat_stream stream;
    pleat_event event; /* 0: it captures without the runtime's knowledge; nothing of it can go */
} pleat__fence;

#define PLEAT__FENCES 16u /* D199 */

/* Those of all streams that allocate. */
typedef struct pleat__fences {
    pleat__fence *fences;
    size_t count;
    pleat__fence some[PLEAT__FENCES];
} pleat__fences;

typedef struct pleat__gate {
    pthread_mutex_t lock;
    pthread_mutex_t turn;
    _Atomic bool held; /* the lock is; told without it, to whoever may have to wait */
    /* ---- guarded by the lock ---- */
    bool has_turn; /* a thread has the turn: this one */
    pthread_t turner;
    uint64_t left;      /* times that the lock was left for verbs */
    uint64_t left_ns;   /* when it was; 0: by a thread of Pleat's own */
    uint64_t waited_ns; /* that the program's threads waited for verbs, the turn and the lock */
    /* Streams that have allocated; of those that share, the ones that have something now. */
    pleat__gate_stream *streams;
    size_t stream_count;
    size_t stream_capacity;
    pleat_stream last; /* that was noted */
    bool has_last;
    bool ending; /* all goes: what is allocated still is waited for as well, whatever is refused */
    /* Streams that capture a graph: nothing may be recorded on them. */
    pleat__captured *captured;
    size_t captured_count;
    size_t captured_capacity;
    /* ---- */
    pleat_vmm vmm;
    int device;
    pleat__arena *arena;
    pleat__mapper *mapper;    /* NULL until it is first wanted; guarded by the lock */
    _Atomic uint32_t awaited; /* threads of the program's that wait for the turn */
} pleat__gate;

PLEAT_NODISCARD pleat_result pleat__gate_init(pleat__gate *gate, pleat_vmm vmm, int device,
                                              pleat__arena *arena);
/* Ends the mapper when all that it was given is done. */
void pleat__gate_release(pleat__gate *gate);

void pleat__gate_lock(pleat__gate *gate);
/* Gives the turn back too, where the thread has it. */
void pleat__gate_unlock(pleat__gate *gate);
/* The lock with the turn: for calls that are known to need verbs. */
void pleat__gate_lock_turn(pleat__gate *gate);

/* Lets others have lock and turn for a moment. pre: the turn. */
void pleat__gate_yield(pleat__gate *gate);
/* For work that can wait, before it takes the turn again: lets the program's threads that wait for
 * it go first. */
void pleat__gate_let_pass(pleat__gate *gate);

/* ---- with the lock held ---- */

/* Before anything is reserved for verbs. PLEAT_E_NOT_READY, without a text: another thread has the
 * turn. */
PLEAT_NODISCARD pleat_result pleat__gate_turn(pleat__gate *gate);
/* Whether another thread has it. */
bool pleat__gate_turn_is_taken(const pleat__gate *gate);
/* After that: waits for the turn, the lock left meanwhile. */
void pleat__gate_await_turn(pleat__gate *gate);
/* Waits for `more` to be signalled under the lock; lock and turn are left meanwhile. */
void pleat__gate_wait(pleat__gate *gate, pthread_cond_t *more);
/* pre: the thread has the turn. */
void pleat__gate_leave(pleat__gate *gate);
void pleat__gate_enter(pleat__gate *gate);
/* Fences the points that the streams have reached; one of the next two follows. false: the driver
 * refuses, or there is no host memory. */
PLEAT_NODISCARD bool pleat__gate_fence(pleat__gate *gate, pleat__fences *fences);
/* Nothing is to go. */
void pleat__gate_unfence(const pleat__gate *gate, pleat__fences *fences);
/* Leaves the lock, and waits until the GPU is past the fences. false: the driver does not say so,
 * and the lock is held. */
PLEAT_NODISCARD bool pleat__gate_leave_fenced(pleat__gate *gate, pleat__fences *fences);
/* Whether nothing of a stream can go. */
bool pleat__fences_keep(const pleat__fences *fences, pleat_stream stream);
/* A stream that allocates. */
PLEAT_NODISCARD pleat_result pleat__gate_note_stream(pleat__gate *gate, pleat_stream stream);
/* One that shares its memory has so many more blocks, or fewer; without any it is forgotten. */
void pleat__gate_add_blocks(pleat__gate *gate, pleat_stream stream, int more);
/* Fences the point that a stream has reached. PLEAT_E_NOT_READY, without a text: it captures. */
PLEAT_NODISCARD pleat_result pleat__gate_record(const pleat__gate *gate, pleat_event event,
                                                pleat_stream stream);
/* For a stream that captures: the point that it had reached before. It has done nothing since in
 * memory that is not the capture's. 0: it does not capture. */
pleat_event pleat__gate_before(const pleat__gate *gate, pleat_stream stream);
/* A stream is about to capture; and has ended. pre: the turn. */
PLEAT_NODISCARD pleat_result pleat__gate_capture(pleat__gate *gate, pleat_stream stream);
void pleat__gate_capture_end(pleat__gate *gate, pleat_stream stream);
/* Waits, without the lock, until the mapper has done all that it was given by now. */
void pleat__gate_drain(pleat__gate *gate);
/* The mapper, made when it is first wanted. */
PLEAT_NODISCARD pleat_result pleat__gate_mapper(pleat__gate *gate, pleat__mapper **out);
/* Ends it when all that it was given is done; it is waited for what that waits for. pre: the lock
 * is not held, and nobody wants it any more. */
void pleat__gate_end_mapper(pleat__gate *gate);

#endif
