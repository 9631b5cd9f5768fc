/*
 * gate.c: see gate.h.
 */
#include <runtime/base/gate.h>

#include <internal/check.h>
#include <internal/error.h>
#include <internal/thread.h>
#include <time.h>
#include <vmm/table.h>

#define ASK_NS   2000000 /* for which who waits for others lets them have the turn (D211) */
#define PAUSE_NS 10000   /* between two looks at an event (D198) */

pleat_result pleat__gate_init(pleat__gate *gate, pleat_vmm vmm, int device, pleat__arena *arena)
{
    *gate = (pleat__gate){.vmm = vmm, .device = device, .arena = arena};
    int code = pthread_mutex_init(&gate->lock, NULL);
    if (code == 0) {
        code = pthread_mutex_init(&gate->turn, NULL);
        if (code != 0)
            pthread_mutex_destroy(&gate->lock);
    }
    return code == 0 ? PLEAT_OK
                     : pleat__fail_code(PLEAT_E_LIMIT, code, "a runtime's lock could not be made");
}

void pleat__gate_release(pleat__gate *gate)
{
    pleat__gate_end_mapper(gate);
    while (gate->captured_count != 0)
        pleat__gate_capture_end(gate, gate->captured[0].stream);
    pleat__arena_free(gate->arena, gate->captured);
    pleat__arena_free(gate->arena, gate->streams);
    pthread_mutex_destroy(&gate->turn);
    pthread_mutex_destroy(&gate->lock);
}

/* ---- lock and turn ---- */

static bool mine(const pleat__gate *gate)
{
    return gate->has_turn && pthread_equal(gate->turner, pthread_self());
}

bool pleat__gate_turn_is_taken(const pleat__gate *gate)
{
    return gate->has_turn && !mine(gate);
}

static void note_turn(pleat__gate *gate)
{
    gate->has_turn = true;
    gate->turner = pthread_self();
    pleat__tries_begin();
}

/* The time, for waits of the program's threads; 0 on Pleat's own. */
static uint64_t wait_begins(const pleat__gate *gate)
{
    return pleat__on_own_thread() ? 0 : gate->vmm.ops->clock_ns(gate->vmm.self);
}

/* With the lock held. */
static void wait_ends(pleat__gate *gate, uint64_t begun_ns)
{
    uint64_t now = begun_ns != 0 ? gate->vmm.ops->clock_ns(gate->vmm.self) : 0;
    gate->waited_ns += now > begun_ns ? now - begun_ns : 0;
}

/* What it was told of a wait is of the one that has the lock now. (An attempt to lock first would
 * say so too, and costs 10 ns more where a program has one thread.) */
static void take_lock(pleat__gate *gate, uint64_t begun_ns)
{
    pthread_mutex_lock(&gate->lock);
    atomic_store_explicit(&gate->held, true, memory_order_relaxed);
    if (__builtin_expect(begun_ns != 0, 0))
        wait_ends(gate, begun_ns);
    PLEAT__HOT_ENTER();
}

static void let_lock(pleat__gate *gate)
{
    PLEAT__HOT_LEAVE();
    atomic_store_explicit(&gate->held, false, memory_order_relaxed);
    pthread_mutex_unlock(&gate->lock);
}

void pleat__gate_lock(pleat__gate *gate)
{
    bool held = __builtin_expect(atomic_load_explicit(&gate->held, memory_order_relaxed), 0);
    take_lock(gate, held ? wait_begins(gate) : 0);
}

void pleat__gate_unlock(pleat__gate *gate)
{
    bool turn = __builtin_expect(gate->has_turn, 0) && mine(gate);
    if (turn) {
        gate->has_turn = false;
        pleat__tries_end(PLEAT_E_STATE); /* whoever succeeds has said so before */
    }
    let_lock(gate);
    if (turn)
        pthread_mutex_unlock(&gate->turn);
}

/* For the turn, from now on. A thread of Pleat's own that takes it again and again would have it
 * each time: it is not waited for. */
static void announce(pleat__gate *gate)
{
    atomic_fetch_add(&gate->awaited, !pleat__on_own_thread());
}

/* pre: it was announced. */
static void take_turn(pleat__gate *gate)
{
    uint64_t begun = wait_begins(gate);
    pthread_mutex_lock(&gate->turn);
    atomic_fetch_sub(&gate->awaited, !pleat__on_own_thread());
    take_lock(gate, begun);
    note_turn(gate);
}

void pleat__gate_lock_turn(pleat__gate *gate)
{
    announce(gate);
    take_turn(gate);
}

pleat_result pleat__gate_turn(pleat__gate *gate)
{
    if (mine(gate))
        return PLEAT_OK;
    if (pthread_mutex_trylock(&gate->turn) != 0)
        return PLEAT_E_NOT_READY;
    note_turn(gate);
    return PLEAT_OK;
}

void pleat__gate_await_turn(pleat__gate *gate)
{
    if (mine(gate))
        return;
    announce(gate);
    pleat__gate_unlock(gate);
    take_turn(gate);
}

void pleat__gate_yield(pleat__gate *gate)
{
    pleat__gate_unlock(gate);
    nanosleep(&(struct timespec){.tv_nsec = ASK_NS}, NULL);
    pleat__gate_lock_turn(gate);
}

void pleat__gate_let_pass(pleat__gate *gate)
{
    while (atomic_load(&gate->awaited) != 0)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
}

void pleat__gate_wait(pleat__gate *gate, pthread_cond_t *more)
{
    bool turn = mine(gate);
    if (turn) {
        gate->has_turn = false;
        pthread_mutex_unlock(&gate->turn);
    }
    uint64_t begun = wait_begins(gate);
    PLEAT__HOT_LEAVE();
    atomic_store_explicit(&gate->held, false, memory_order_relaxed);
    pthread_cond_wait(more, &gate->lock);
    atomic_store_explicit(&gate->held, true, memory_order_relaxed);
    wait_ends(gate, begun);
    PLEAT__HOT_ENTER();
    if (turn)
        pleat__gate_await_turn(gate);
}

void pleat__gate_leave(pleat__gate *gate)
{
    PLEAT_ASSERT(mine(gate));
    gate->left++;
    gate->left_ns = wait_begins(gate);
    let_lock(gate);
}

void pleat__gate_enter(pleat__gate *gate)
{
    /* Whoever left has the turn: the time is its own. */
    take_lock(gate, gate->left_ns);
}

/* ---- streams ---- */

static size_t find_stream(const pleat__gate *gate, pleat_stream stream)
{
    size_t at = 0;
    while (at < gate->stream_count && gate->streams[at].stream != stream)
        at++;
    return at;
}

pleat_result pleat__gate_note_stream(pleat__gate *gate, pleat_stream stream)
{
    if (gate->has_last && gate->last == stream)
        return PLEAT_OK;
    size_t at = find_stream(gate, stream);
    if (at == gate->stream_count) {
        PLEAT_TRY(pleat__arena_grow(gate->arena, &gate->streams, &gate->stream_capacity, at,
                                    sizeof *gate->streams));
        gate->streams[gate->stream_count++] = (pleat__gate_stream){.stream = stream};
    }
    gate->last = stream;
    gate->has_last = true;
    return PLEAT_OK;
}

void pleat__gate_add_blocks(pleat__gate *gate, pleat_stream stream, int more)
{
    size_t at = find_stream(gate, stream);
    PLEAT_ASSERT(at < gate->stream_count);
    gate->streams[at].blocks += (uint64_t)more;
    if (gate->streams[at].blocks != 0)
        return;
    gate->streams[at] = gate->streams[--gate->stream_count];
    gate->has_last = gate->has_last && gate->last != stream;
}

pleat_event pleat__gate_before(const pleat__gate *gate, pleat_stream stream)
{
    for (size_t i = 0; i < gate->captured_count; i++)
        if (gate->captured[i].stream == stream)
            return gate->captured[i].before;
    return 0;
}

pleat_result pleat__gate_record(const pleat__gate *gate, pleat_event event, pleat_stream stream)
{
    if (__builtin_expect(gate->captured_count != 0, 0) && pleat__gate_before(gate, stream) != 0)
        return PLEAT_E_NOT_READY;
    return gate->vmm.ops->event_record(gate->vmm.self, event, stream);
}

pleat_result pleat__gate_capture(pleat__gate *gate, pleat_stream stream)
{
    const pleat_vmm_ops *ops = gate->vmm.ops;
    pleat__captured captured = {.stream = stream};
    PLEAT_TRY(pleat__arena_grow(gate->arena, &gate->captured, &gate->captured_capacity,
                                gate->captured_count, sizeof *gate->captured));
    PLEAT_TRY(ops->event_create(gate->vmm.self, gate->device, &captured.before));
    pleat_result result = ops->event_record(gate->vmm.self, captured.before, stream);
    if (result != PLEAT_OK) {
        (void)ops->event_destroy(gate->vmm.self, captured.before);
        return result;
    }
    gate->captured[gate->captured_count++] = captured;
    return PLEAT_OK;
}

void pleat__gate_capture_end(pleat__gate *gate, pleat_stream stream)
{
    for (size_t i = 0; i < gate->captured_count; i++) {
        if (gate->captured[i].stream != stream)
            continue;
        (void)gate->vmm.ops->event_destroy(gate->vmm.self, gate->captured[i].before);
        gate->captured[i] = gate->captured[--gate->captured_count];
        return;
    }
}

bool pleat__fences_keep(const pleat__fences *fences, pleat_stream stream)
{
    for (size_t i = 0; i < fences->count; i++)
        if (fences->fences[i].stream == stream)
            return fences->fences[i].event == 0;
    return false;
}

/* A refused destruction leaves an event of the driver's behind, nothing of ours. */
void pleat__gate_unfence(const pleat__gate *gate, pleat__fences *fences)
{
    for (size_t i = 0; i < fences->count; i++)
        if (fences->fences[i].event != 0)
            (void)gate->vmm.ops->event_destroy(gate->vmm.self, fences->fences[i].event);
    if (fences->fences != fences->some)
        pleat__arena_free(gate->arena, fences->fences);
    *fences = (pleat__fences){.count = 0};
}

/* false: the driver refuses. */
static bool fence_stream(const pleat__gate *gate, pleat_stream stream, pleat__fences *fences)
{
    const pleat_vmm_ops *ops = gate->vmm.ops;
    pleat__fence fence = {.stream = stream};
    if (ops->event_create(gate->vmm.self, gate->device, &fence.event) != PLEAT_OK)
        return false;
    pleat_result result = ops->event_record(gate->vmm.self, fence.event, stream);
    if (result != PLEAT_OK) {
        (void)ops->event_destroy(gate->vmm.self, fence.event);
        fence.event = 0;
    }
    if (result == PLEAT_OK || result == PLEAT_E_STATE)
        fences->fences[fences->count++] = fence;
    return result == PLEAT_OK || result == PLEAT_E_STATE;
}

bool pleat__gate_fence(pleat__gate *gate, pleat__fences *fences)
{
    bool all = true;
    *fences = (pleat__fences){.count = 0};
    fences->fences =
        gate->stream_count <= PLEAT__FENCES
            ? fences->some
            : pleat__arena_alloc(gate->arena, gate->stream_count * sizeof *fences->fences);
    if (fences->fences == NULL)
        return false;
    /* A stream that was told to capture did nothing since (pleat__gate_before). */
    for (size_t i = 0; i < gate->stream_count && (all || gate->ending); i++)
        if (pleat__gate_before(gate, gate->streams[i].stream) == 0)
            all = fence_stream(gate, gate->streams[i].stream, fences) && all;
    if (all || gate->ending)
        return true;
    pleat__gate_unfence(gate, fences);
    return false;
}

/* Only a thread with the turn begins or ends a capture: the list stays as it is. */
static bool wait_for_captured(const pleat__gate *gate)
{
    bool all = true;
    for (size_t i = 0; i < gate->captured_count && (all || gate->ending); i++)
        all = pleat__vmm_wait(gate->vmm, gate->captured[i].before) == PLEAT_OK && all;
    return all;
}

bool pleat__gate_leave_fenced(pleat__gate *gate, pleat__fences *fences)
{
    pleat__gate_leave(gate);
    bool over = wait_for_captured(gate);
    for (size_t i = 0; i < fences->count && (over || gate->ending); i++)
        if (fences->fences[i].event != 0)
            over = pleat__vmm_wait(gate->vmm, fences->fences[i].event) == PLEAT_OK && over;
    pleat__gate_unfence(gate, fences);
    if (!over)
        pleat__gate_enter(gate);
    return over;
}

pleat_result pleat__gate_mapper(pleat__gate *gate, pleat__mapper **out)
{
    if (gate->mapper == NULL)
        PLEAT_TRY(pleat__mapper_create(gate->vmm, gate->arena, &gate->mapper));
    *out = gate->mapper;
    return PLEAT_OK;
}

void pleat__gate_end_mapper(pleat__gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    pleat__mapper *mapper = gate->mapper;
    gate->mapper = NULL;
    pthread_mutex_unlock(&gate->lock);
    pleat__mapper_destroy(mapper);
}

void pleat__gate_drain(pleat__gate *gate)
{
    /* Not pleat__gate_unlock: the turn, where the thread has it, stays. */
    pthread_mutex_lock(&gate->lock);
    pleat__mapper *mapper = gate->mapper;
    pthread_mutex_unlock(&gate->lock);
    if (mapper != NULL)
        pleat__mapper_drain(mapper);
}
