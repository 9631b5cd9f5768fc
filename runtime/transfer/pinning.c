/*
 * pinning.c: see pinning.h. Each thread takes a block's bytes off what is left, makes the block
 * without the lock, and lists it.
 */
#include <runtime/transfer/pinning.h>

#include <internal/error.h>
#include <internal/range.h>
#include <sched.h>

/* ---- a block ---- */

/* Under the lock: the bytes of the next one; 0: no more are to be made. */
static uint64_t begin_block(pleat__pinning *pinning)
{
    uint64_t bytes = pinning->left < pinning->block_bytes ? pinning->left : pinning->block_bytes;
    if (pinning->failure.result != PLEAT_OK)
        return 0;
    pinning->left -= bytes;
    pinning->begun += bytes != 0;
    return bytes;
}

/* Under the lock, which is left meanwhile. */
static void make_block(pleat__pinning *pinning, uint64_t bytes)
{
    pleat__pinned_block block = {.bytes = bytes};
    pthread_mutex_unlock(&pinning->lock);
    pleat_result result =
        pinning->vmm.ops->host_alloc(pinning->vmm.self, pinning->device, bytes, &block.memory);
    pthread_mutex_lock(&pinning->lock);
    pinning->begun--;
    if (result == PLEAT_OK)
        pinning->blocks[pinning->count++] = block;
    else if (pinning->failure.result == PLEAT_OK)
        pinning->failure = pleat__failure(result);
    pthread_cond_broadcast(&pinning->changed);
}

/* ---- threads ---- */

static void *work(void *context)
{
    pleat__pinning *pinning = context;
    uint64_t bytes;
    pthread_mutex_lock(&pinning->lock);
    while ((bytes = begin_block(pinning)) != 0)
        make_block(pinning, bytes);
    pthread_mutex_unlock(&pinning->lock);
    return NULL;
}

/* How many besides the caller's: as many as there are cores and blocks for. */
static int helpers_for(size_t blocks)
{
    cpu_set_t cores;
    size_t threads = PLEAT__PIN_THREADS;
    if (sched_getaffinity(0, sizeof cores, &cores) == 0 && (size_t)CPU_COUNT(&cores) < threads)
        threads = (size_t)CPU_COUNT(&cores);
    threads = blocks < threads ? blocks : threads;
    return threads > 0 ? (int)threads - 1 : 0;
}

/* As many as the system gives. */
static void start_threads(pleat__pinning *pinning, int wanted)
{
    while (pinning->thread_count < wanted &&
           pleat__thread_start(&pinning->threads[pinning->thread_count], "pleat-pin", work,
                               pinning) == PLEAT_OK)
        pinning->thread_count++;
}

/* ---- the caller's ---- */

pleat_result pleat__pinning_begin(pleat__pinning *pinning, uint64_t page_bytes, uint64_t bytes)
{
    pinning->left = pleat__ceil_div(bytes, page_bytes) * page_bytes;
    size_t most = (size_t)pleat__ceil_div(pinning->left, pinning->block_bytes);
    pthread_mutex_init(&pinning->lock, NULL);
    pthread_cond_init(&pinning->changed, NULL);
    if (most == 0)
        return PLEAT_OK;
    pinning->blocks = pleat__arena_calloc(pinning->arena, most, sizeof *pinning->blocks);
    if (pinning->blocks == NULL) {
        pinning->left = 0;
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for a list of pinned blocks");
    }
    start_threads(pinning, helpers_for(most));
    return PLEAT_OK;
}

/* Under the lock: one that is there. While none is, the caller makes one, or waits. */
static pleat_result next(pleat__pinning *pinning, pleat__pinned_block *block)
{
    while (pinning->taken == pinning->count) {
        uint64_t bytes = begin_block(pinning);
        if (bytes != 0)
            make_block(pinning, bytes);
        else if (pinning->begun > 0)
            pthread_cond_wait(&pinning->changed, &pinning->lock);
        else if (pinning->failure.result != PLEAT_OK)
            return pleat__fail_again(&pinning->failure);
        else
            return pleat__fail(PLEAT_E_STATE, "no more pinned memory was asked for");
    }
    *block = pinning->blocks[pinning->taken++];
    return PLEAT_OK;
}

pleat_result pleat__pinning_next(pleat__pinning *pinning, pleat__pinned_block *block)
{
    pthread_mutex_lock(&pinning->lock);
    pleat_result result = next(pinning, block);
    pthread_mutex_unlock(&pinning->lock);
    return result;
}

void pleat__pinning_end(pleat__pinning *pinning)
{
    pthread_mutex_lock(&pinning->lock);
    pinning->left = 0;
    pthread_mutex_unlock(&pinning->lock);
    while (pinning->thread_count > 0)
        pleat__thread_join(&pinning->threads[--pinning->thread_count]);
    while (pinning->count > pinning->taken)
        (void)pinning->vmm.ops->host_free(pinning->vmm.self, pinning->device,
                                          pinning->blocks[--pinning->count].memory);
    pleat__arena_free(pinning->arena, pinning->blocks);
    pthread_cond_destroy(&pinning->changed);
    pthread_mutex_destroy(&pinning->lock);
}
