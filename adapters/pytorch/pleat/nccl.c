/*
 * nccl.c: stands before NCCL's functions: libpleat_nccl.so, loaded with all its names before the
 * program loads NCCL, or by LD_PRELOAD.
 *
 * Memory of Pleat's window is not registered, since what lies behind it may change: who asks gets
 * no handle, as where NCCL's registration is off, and the allocator serves what comes next from
 * memory that can be. What is registered is held until it is not any more. Before a communicator
 * starts, and before its first collective, which is when NCCL takes memory, room is made for it.
 *
 * THREADS Any, as NCCL's own.
 */
#include "nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define EXPORT __attribute__((visibility("default")))

/* NCCL's types, as far as they are passed on. */
typedef int result; /* ncclResult_t */
typedef void *communicator;
typedef void *stream;
typedef int type, operation;
typedef struct unique_id {
    char text[128];
} unique_id;

enum { SUCCESS = 0, SYSTEM_ERROR = 2, INVALID_USAGE = 5 };

static _Atomic(const struct pleat_nccl_listener *) listening;

EXPORT void pleat_nccl_listen(const struct pleat_nccl_listener *listener)
{
    atomic_store(&listening, listener);
}

static const struct pleat_nccl_listener *listener(void)
{
    return atomic_load_explicit(&listening, memory_order_acquire);
}

/* ---- NCCL's own ---- */

/* Behind this one, or, where NCCL was loaded with a library's names kept to itself, in NCCL. */
static void *own(const char *name)
{
    void *found = dlsym(RTLD_NEXT, name);
    if (found != NULL)
        return found;
    void *nccl = dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    if (nccl == NULL)
        return NULL;
    found = dlsym(nccl, name);
    dlclose(nccl);
    return found;
}

EXPORT void *pleat_nccl_own(const char *name)
{
    return own(name);
}

#define OWN(name, returned, parameters)                                                            \
    static returned(*_Atomic kept_##name) parameters;                                              \
    returned(*own_##name) parameters = atomic_load_explicit(&kept_##name, memory_order_relaxed);   \
    if (own_##name == NULL) {                                                                      \
        *(void **)(&own_##name) = own(#name);                                                      \
        if (own_##name == NULL) {                                                                  \
            fprintf(stderr, "pleat: this NCCL has no %s\n", #name);                                \
            return SYSTEM_ERROR;                                                                   \
        }                                                                                          \
        atomic_store(&kept_##name, own_##name);                                                    \
    }

/* ---- what is registered ---- */

typedef struct registration {
    struct registration *next;
    communicator comm;
    void *handle;
    const void *address;
    uint64_t ending; /* which call of NCCL's ends it; 0: none */
} registration;

static pthread_mutex_t registrations_lock = PTHREAD_MUTEX_INITIALIZER;
static registration *registrations;
static uint64_t endings; /* calls that were begun */

static void put(registration *one)
{
    pthread_mutex_lock(&registrations_lock);
    one->next = registrations;
    registrations = one;
    pthread_mutex_unlock(&registrations_lock);
}

static void remember(communicator comm, void *handle, const void *address)
{
    const struct pleat_nccl_listener *told = listener();
    registration *made = told != NULL && handle != NULL ? malloc(sizeof *made) : NULL;
    if (made == NULL)
        return; /* of what nobody remembers nothing is held: NCCL's own rule holds */
    told->hold(address);
    *made = (registration){.comm = comm, .handle = handle, .address = address};
    put(made);
}

/* Before NCCL is asked to end one: it stays in the list, but is not found again, since another
 * thread may be given the same handle before that returns. 0: it is not there. */
static uint64_t begin_ending(communicator comm, const void *handle)
{
    uint64_t ending = 0;
    pthread_mutex_lock(&registrations_lock);
    for (registration *at = registrations; at != NULL && ending == 0; at = at->next)
        if (at->handle == handle && at->comm == comm && at->ending == 0)
            ending = at->ending = ++endings;
    pthread_mutex_unlock(&registrations_lock);
    return ending;
}

static void let_go(registration *gone)
{
    const struct pleat_nccl_listener *told = listener();
    if (gone != NULL && told != NULL)
        told->let_go(gone->address);
    free(gone);
}

/* It is held still where NCCL refuses, unless its communicator ends or has ended meanwhile. */
static result end_registration(uint64_t ending, result done)
{
    registration *gone = NULL;
    if (ending == 0)
        return done;
    pthread_mutex_lock(&registrations_lock);
    registration **at = &registrations;
    while (*at != NULL && (*at)->ending != ending)
        at = &(*at)->next;
    if (*at != NULL && done == SUCCESS) {
        gone = *at;
        *at = gone->next;
    } else if (*at != NULL) {
        (*at)->ending = 0;
    }
    pthread_mutex_unlock(&registrations_lock);
    let_go(gone);
    return done;
}

/* Before NCCL is asked to end a communicator: all of it goes with it. Another thread may be given
 * the same address for a new one before that returns. */
static uint64_t begin_ending_all(communicator comm)
{
    pthread_mutex_lock(&registrations_lock);
    uint64_t ending = ++endings;
    for (registration *at = registrations; at != NULL; at = at->next)
        if (at->comm == comm)
            at->ending = ending;
    pthread_mutex_unlock(&registrations_lock);
    return ending;
}

/* All that a call of NCCL's has ended. */
static void forget_all(uint64_t ending)
{
    registration *gone;
    do {
        pthread_mutex_lock(&registrations_lock);
        registration **at = &registrations;
        while (*at != NULL && (*at)->ending != ending)
            at = &(*at)->next;
        gone = *at;
        if (gone != NULL)
            *at = gone->next;
        pthread_mutex_unlock(&registrations_lock);
        let_go(gone);
    } while (gone != NULL);
}

EXPORT result ncclCommRegister(communicator comm, void *buffer, size_t bytes, void **handle)
{
    OWN(ncclCommRegister, result, (communicator, void *, size_t, void **))
    const struct pleat_nccl_listener *told = listener();
    if (told != NULL && told->is_mapped_anew(buffer, bytes)) {
        *handle = NULL;
        return SUCCESS;
    }
    result done = own_ncclCommRegister(comm, buffer, bytes, handle);
    if (done == SUCCESS)
        remember(comm, *handle, buffer);
    return done;
}

EXPORT result ncclCommDeregister(communicator comm, void *handle)
{
    OWN(ncclCommDeregister, result, (communicator, void *))
    if (handle == NULL)
        return SUCCESS;
    uint64_t ending = begin_ending(comm, handle);
    return end_registration(ending, own_ncclCommDeregister(comm, handle));
}

/* All ranks take part in this one, so none may leave it out by itself. */
EXPORT result ncclCommWindowRegister(communicator comm, void *buffer, size_t bytes, void **window,
                                     int flags)
{
    OWN(ncclCommWindowRegister, result, (communicator, void *, size_t, void **, int))
    const struct pleat_nccl_listener *told = listener();
    if (told != NULL && told->is_mapped_anew(buffer, bytes)) {
        fprintf(stderr,
                "pleat: ncclCommWindowRegister: what lies behind %p may change: allocate "
                "it in a torch.cuda.MemPool\n",
                buffer);
        return INVALID_USAGE;
    }
    result done = own_ncclCommWindowRegister(comm, buffer, bytes, window, flags);
    if (done == SUCCESS)
        remember(comm, *window, buffer);
    return done;
}

EXPORT result ncclCommWindowDeregister(communicator comm, void *window)
{
    OWN(ncclCommWindowDeregister, result, (communicator, void *))
    uint64_t ending = begin_ending(comm, window);
    return end_registration(ending, own_ncclCommWindowDeregister(comm, window));
}

/* ---- communicators: when NCCL takes memory ---- */

#define KNOWN 256

static _Atomic(communicator) known[KNOWN]; /* that have talked */
static _Thread_local int groups;           /* that this thread has begun, one in another */
static _Thread_local int starting;         /* a first collective is given to NCCL, which takes */
                                           /* memory before it returns, or at the group's end */

static void say_starts(void)
{
    const struct pleat_nccl_listener *told = listener();
    if (told != NULL)
        told->starts();
}

static void say_started(void)
{
    const struct pleat_nccl_listener *told = listener();
    if (told != NULL)
        told->started();
}

static _Atomic(communicator) *place_of(communicator comm)
{
    return &known[((uintptr_t)comm >> 6) % KNOWN];
}

/* A collective is about to be given to NCCL. Two communicators of one place are started again and
 * again, which costs time alone. */
static void begin(communicator comm, const void *sent, const void *received)
{
    const struct pleat_nccl_listener *told = listener();
    if (told == NULL)
        return;
    told->talks(sent);
    if (received != sent)
        told->talks(received);
    if (atomic_load_explicit(place_of(comm), memory_order_relaxed) == comm)
        return;
    atomic_store(place_of(comm), comm);
    starting = 1;
    told->starts();
}

/* It was given to NCCL, or the group has ended, which may be within another one. */
static result ended(result done)
{
    if (starting && groups == 0) {
        starting = 0;
        say_started();
    }
    return done;
}

EXPORT result ncclGroupStart(void)
{
    OWN(ncclGroupStart, result, (void))
    result done = own_ncclGroupStart();
    groups += done == SUCCESS;
    return done;
}

EXPORT result ncclGroupEnd(void)
{
    OWN(ncclGroupEnd, result, (void))
    result done = own_ncclGroupEnd();
    groups -= groups > 0;
    return ended(done);
}

/* One of NCCL's functions that make a communicator. */
#define STARTING(name, parameters, arguments)                                                      \
    EXPORT result name parameters                                                                  \
    {                                                                                              \
        OWN(name, result, parameters)                                                              \
        say_starts();                                                                              \
        result done = own_##name arguments;                                                        \
        say_started();                                                                             \
        return done;                                                                               \
    }

STARTING(ncclCommInitRank, (communicator * comm, int ranks, unique_id id, int rank),
         (comm, ranks, id, rank))
STARTING(ncclCommInitRankConfig,
         (communicator * comm, int ranks, unique_id id, int rank, void *config),
         (comm, ranks, id, rank, config))
STARTING(ncclCommInitRankScalable,
         (communicator * comm, int ranks, int rank, int ids, unique_id *id, void *config),
         (comm, ranks, rank, ids, id, config))
STARTING(ncclCommInitAll, (communicator * comms, int count, const int *devices),
         (comms, count, devices))
STARTING(ncclCommSplit, (communicator comm, int color, int key, communicator *made, void *config),
         (comm, color, key, made, config))

/* What is left registered goes with it. */
#define ENDING(name)                                                                               \
    EXPORT result name(communicator comm)                                                          \
    {                                                                                              \
        OWN(name, result, (communicator))                                                          \
        uint64_t ending = begin_ending_all(comm);                                                  \
        result done = own_##name(comm);                                                            \
        communicator same = comm;                                                                  \
        atomic_compare_exchange_strong(place_of(comm), &same, NULL);                               \
        forget_all(ending);                                                                        \
        return done;                                                                               \
    }

ENDING(ncclCommDestroy)
ENDING(ncclCommAbort)

/* ---- collectives ---- */

#define COLLECTIVE(name, sent, received, parameters, arguments)                                    \
    EXPORT result name parameters                                                                  \
    {                                                                                              \
        OWN(name, result, parameters)                                                              \
        begin(comm, sent, received);                                                               \
        return ended(own_##name arguments);                                                        \
    }

COLLECTIVE(ncclAllReduce, sent, received,
           (const void *sent, void *received, size_t count, type of, operation by,
            communicator comm, stream on),
           (sent, received, count, of, by, comm, on))
COLLECTIVE(ncclReduce, sent, received,
           (const void *sent, void *received, size_t count, type of, operation by, int root,
            communicator comm, stream on),
           (sent, received, count, of, by, root, comm, on))
COLLECTIVE(ncclBroadcast, sent, received,
           (const void *sent, void *received, size_t count, type of, int root, communicator comm,
            stream on),
           (sent, received, count, of, root, comm, on))
COLLECTIVE(ncclReduceScatter, sent, received,
           (const void *sent, void *received, size_t count, type of, operation by,
            communicator comm, stream on),
           (sent, received, count, of, by, comm, on))
COLLECTIVE(ncclAllGather, sent, received,
           (const void *sent, void *received, size_t count, type of, communicator comm, stream on),
           (sent, received, count, of, comm, on))
COLLECTIVE(ncclAlltoAll, sent, received,
           (const void *sent, void *received, size_t count, type of, communicator comm, stream on),
           (sent, received, count, of, comm, on))
COLLECTIVE(ncclSend, sent, sent,
           (const void *sent, size_t count, type of, int peer, communicator comm, stream on),
           (sent, count, of, peer, comm, on))
COLLECTIVE(ncclRecv, received, received,
           (void *received, size_t count, type of, int peer, communicator comm, stream on),
           (received, count, of, peer, comm, on))
