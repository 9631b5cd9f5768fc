/*
 * pinned.c: see pinned.h. Each thread takes a block's bytes off what is left, makes the block
 * without the lock, and lists it.
 */
#include <runtime/transfer/pinned.h>

#include <internal/error.h>
#include <internal/range.h>
#include <sched.h>

/* ---- a block ---- */

/* Under the lock: the bytes of the next one; 0: no more are to be made. */
static uint64_t begin_block(pleat__pinned *pinned)
{
    uint64_t bytes = pinned->left < pinned->block_bytes ? pinned->left : pinned->block_bytes;
    if (pinned->failure.result != PLEAT_OK)
        return 0;
    pinned->left -= bytes;
    pinned->begun += bytes != 0;
    return bytes;
}

/* Under the lock, which is left meanwhile. */
static void make_block(pleat__pinned *pinned, uint64_t bytes)
{
    pleat__pinned_block block = {.bytes = bytes};
    pthread_mutex_unlock(&pinned->lock);
    pleat_result result =
        pinned->vmm.ops->host_alloc(pinned->vmm.self, pinned->device, bytes, &block.memory);
    pthread_mutex_lock(&pinned->lock);
    pinned->begun--;
    if (result == PLEAT_OK)
        pinned->blocks[pinned->count++] = block;
    else if (pinned->failure.result == PLEAT_OK)
        pinned->failure = pleat__failure(result);
    pthread_cond_broadcast(&pinned->changed);
}

/* ---- threads ---- */

static void *work(void *context)
{
    pleat__pinned *pinned = context;
    uint64_t bytes;
    pthread_mutex_lock(&pinned->lock);
    while ((bytes = begin_block(pinned)) != 0)
        make_block(pinned, bytes);
    pthread_mutex_unlock(&pinned->lock);
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
static void start_threads(pleat__pinned *pinned, int wanted)
{
    while (pinned->thread_count < wanted &&
           pleat__thread_start(&pinned->threads[pinned->thread_count], "pleat-pin", work, pinned) ==
               PLEAT_OK)
        pinned->thread_count++;
}

/* ---- the caller's ---- */

static uint64_t unused_bytes(const pleat__pinned *pinned)
{
    uint64_t bytes = 0;
    for (size_t b = 0; b < pinned->count; b++)
        bytes += pinned->blocks[b].used ? 0 : pinned->blocks[b].bytes;
    return bytes;
}

pleat_result pleat__pinned_open(pleat__pinned *pinned, uint64_t bytes)
{
    const pleat_vmm *vmm = &pinned->vmm;
    uint64_t unused = unused_bytes(pinned);
    uint64_t new_bytes = bytes > unused ? bytes - unused : 0;
    size_t most = (size_t)pleat__ceil_div(new_bytes, pinned->block_bytes);
    /* Now, as making memory takes longer: what comes back is waited for. */
    pinned->by_threads = pinned->by_threads || vmm->ops->copy_by_threads(vmm->self, pinned->device,
                                                                         0, 0, 0, 0) == PLEAT_OK;
    pthread_mutex_init(&pinned->lock, NULL);
    pthread_cond_init(&pinned->changed, NULL);
    pinned->left = 0;
    pinned->failure.result = PLEAT_OK;
    /* Room in the list for all of them, so that threads need none. */
    PLEAT_TRY(pleat__arena_reserve(pinned->arena, &pinned->blocks, &pinned->capacity,
                                   pinned->count + most, sizeof *pinned->blocks));
    pinned->left = pleat__ceil_div(new_bytes, pinned->page_bytes) * pinned->page_bytes;
    start_threads(pinned, helpers_for(most));
    return PLEAT_OK;
}

/* Under the lock. */
static bool find_unused(const pleat__pinned *pinned, size_t *index)
{
    for (*index = 0; *index < pinned->count; ++*index)
        if (!pinned->blocks[*index].used)
            return true;
    return false;
}

/* Under the lock: while none is there the caller makes one, or waits. */
static pleat_result take(pleat__pinned *pinned, size_t *index)
{
    while (!find_unused(pinned, index)) {
        uint64_t bytes = begin_block(pinned);
        if (bytes != 0)
            make_block(pinned, bytes);
        else if (pinned->begun > 0)
            pthread_cond_wait(&pinned->changed, &pinned->lock);
        else if (pinned->failure.result != PLEAT_OK)
            return pleat__fail_again(&pinned->failure);
        else
            return pleat__fail(PLEAT_E_STATE, "no more pinned memory was asked for");
    }
    pinned->blocks[*index].used = true;
    return PLEAT_OK;
}

pleat_result pleat__pinned_take(pleat__pinned *pinned, size_t *index)
{
    pthread_mutex_lock(&pinned->lock);
    pleat_result result = take(pinned, index);
    pthread_mutex_unlock(&pinned->lock);
    return result;
}

void pleat__pinned_close(pleat__pinned *pinned)
{
    pthread_mutex_lock(&pinned->lock);
    pinned->left = 0;
    pthread_mutex_unlock(&pinned->lock);
    while (pinned->thread_count > 0)
        pleat__thread_join(&pinned->threads[--pinned->thread_count]);
    pthread_cond_destroy(&pinned->changed);
    pthread_mutex_destroy(&pinned->lock);
}

void pleat__pinned_give(pleat__pinned *pinned, size_t index)
{
    pinned->blocks[index].used = false;
}

void pleat__pinned_trim(pleat__pinned *pinned)
{
    /* Indices of those that are used stay as they are. */
    for (size_t b = 0; b < pinned->count; b++)
        if (pinned->blocks[b].used)
            return;
    while (pinned->count > 0)
        (void)pinned->vmm.ops->host_free(pinned->vmm.self, pinned->device,
                                         pinned->blocks[--pinned->count].memory);
}

void pleat__pinned_release(pleat__pinned *pinned)
{
    pleat__pinned_trim(pinned);
    pleat__arena_free(pinned->arena, pinned->blocks);
}
