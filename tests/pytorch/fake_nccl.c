/*
 * fake_nccl.c: in the place of libnccl.so.2, for nccl.c: what it is called with is kept, and
 * collectives do nothing.
 */
#include <stddef.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct unique_id {
    char text[128];
} unique_id;

EXPORT char fake_nccl_last[256];
EXPORT int fake_nccl_result; /* of all calls from now on */
/* What another thread does before the next call that ends something returns; it gets the handle
 * that ended. */
EXPORT void (*fake_nccl_meanwhile)(void);
static char handles[64];
static int made;

static void let_others(void)
{
    void (*meanwhile)(void) = fake_nccl_meanwhile;
    fake_nccl_meanwhile = NULL;
    if (meanwhile != NULL) {
        made--;
        meanwhile();
    }
}

#define CALLED(...)                                                                                \
    do {                                                                                           \
        snprintf(fake_nccl_last, sizeof fake_nccl_last, __VA_ARGS__);                              \
        return fake_nccl_result;                                                                   \
    } while (0)

EXPORT int ncclCommRegister(void *comm, void *buffer, size_t bytes, void **handle)
{
    *handle = &handles[made++ % 64];
    CALLED("register %p %p %zu", comm, buffer, bytes);
}

EXPORT int ncclCommDeregister(void *comm, void *handle)
{
    let_others();
    CALLED("deregister %p %p", comm, handle);
}

EXPORT int ncclCommWindowRegister(void *comm, void *buffer, size_t bytes, void **window, int flags)
{
    *window = &handles[made++ % 64];
    CALLED("window %p %p %zu %d", comm, buffer, bytes, flags);
}

EXPORT int ncclCommWindowDeregister(void *comm, void *window)
{
    CALLED("no window %p %p", comm, window);
}

EXPORT int ncclGroupStart(void)
{
    CALLED("group start");
}

EXPORT int ncclGroupEnd(void)
{
    CALLED("group end");
}

EXPORT int ncclCommInitRank(void **comm, int ranks, unique_id id, int rank)
{
    *comm = &handles[0];
    CALLED("init %d %s %d", ranks, id.text, rank);
}

EXPORT int ncclCommInitRankConfig(void **comm, int ranks, unique_id id, int rank, void *config)
{
    *comm = &handles[0];
    CALLED("init config %d %s %d %p", ranks, id.text, rank, config);
}

EXPORT int ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, unique_id *id,
                                    void *config)
{
    *comm = &handles[0];
    CALLED("init scalable %d %d %d %s %p", ranks, rank, ids, id->text, config);
}

EXPORT int ncclCommInitAll(void **comms, int count, const int *devices)
{
    *comms = &handles[0];
    CALLED("init all %d %d", count, devices[0]);
}

EXPORT int ncclCommSplit(void *comm, int color, int key, void **out, void *config)
{
    *out = &handles[1];
    CALLED("split %p %d %d %p", comm, color, key, config);
}

EXPORT int ncclCommDestroy(void *comm)
{
    let_others();
    CALLED("destroy %p", comm);
}

EXPORT int ncclCommAbort(void *comm)
{
    CALLED("abort %p", comm);
}

EXPORT int ncclAllReduce(const void *sent, void *received, size_t count, int of, int by, void *comm,
                         void *on)
{
    CALLED("all reduce %p %p %zu %d %d %p %p", sent, received, count, of, by, comm, on);
}

EXPORT int ncclReduce(const void *sent, void *received, size_t count, int of, int by, int root,
                      void *comm, void *on)
{
    CALLED("reduce %p %p %zu %d %d %d %p %p", sent, received, count, of, by, root, comm, on);
}

EXPORT int ncclBroadcast(const void *sent, void *received, size_t count, int of, int root,
                         void *comm, void *on)
{
    CALLED("broadcast %p %p %zu %d %d %p %p", sent, received, count, of, root, comm, on);
}

EXPORT int ncclReduceScatter(const void *sent, void *received, size_t count, int of, int by,
                             void *comm, void *on)
{
    CALLED("reduce scatter %p %p %zu %d %d %p %p", sent, received, count, of, by, comm, on);
}

EXPORT int ncclAllGather(const void *sent, void *received, size_t count, int of, void *comm,
                         void *on)
{
    CALLED("all gather %p %p %zu %d %p %p", sent, received, count, of, comm, on);
}

EXPORT int ncclSend(const void *sent, size_t count, int of, int peer, void *comm, void *on)
{
    CALLED("send %p %zu %d %d %p %p", sent, count, of, peer, comm, on);
}

EXPORT int ncclRecv(void *received, size_t count, int of, int peer, void *comm, void *on)
{
    CALLED("recv %p %zu %d %d %p %p", received, count, of, peer, comm, on);
}
