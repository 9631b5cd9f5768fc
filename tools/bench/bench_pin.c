/*
 * bench_pin.c: how fast host memory is pinned, and copied from and to: see bench_pause.h.
 */
#include <tools/bench/bench_pause.h>
#include <tools/options.h>

#include <internal/error.h>
#include <pthread.h>

#define VERB(b, name, ...) ((b)->vmm.ops->name((b)->vmm.self, __VA_ARGS__))

#define BLOCK_BYTES (256ull << 20)
#define PIECE_BYTES (32ull << 20)
#define MOST_BLOCKS 256
#define PIN_THREADS 8
#define STREAMS     4

/* ---- pinning ---- */

typedef struct pin_way {
    const char *name;
    bool by_verb; /* host_alloc, which picks a way for itself */
    pleat__pin_way way;
} pin_way;

static const pin_way ways[] = {
    {"host_alloc", true, PLEAT__PIN_DRIVER},
    {"the driver's memory", false, PLEAT__PIN_DRIVER},
    {"small pages", false, PLEAT__PIN_PAGES},
    {"huge pages", false, PLEAT__PIN_HUGE_PAGES},
};
#define WAYS (sizeof ways / sizeof *ways)

static pleat_result pin(const pause_bench *b, const pin_way *way, uint64_t bytes, void **memory)
{
    return way->by_verb ? VERB(b, host_alloc, b->device, bytes, memory)
                        : pleat__cuda_pin(&b->vmm, b->device, way->way, bytes, memory);
}

/* A thread and its share of the blocks. */
typedef struct pin_share {
    const pause_bench *b;
    const pin_way *way;
    void **blocks;
    size_t count;
    uint64_t bytes;
    pleat_error why;
    pthread_t thread;
} pin_share;

static void *pin_all(void *context)
{
    pin_share *share = context;
    pleat_result result = PLEAT_OK;
    for (size_t i = 0; i < share->count && result == PLEAT_OK; i++)
        result = pin(share->b, share->way, share->bytes, &share->blocks[i]);
    share->why = pleat__failure(result);
    return NULL;
}

/* Blocks, one behind the other by each thread. Those that are NULL there are none of. */
static pleat_result pin_by_threads(const pause_bench *b, const pin_way *way, int threads,
                                   void **blocks, size_t count, uint64_t bytes)
{
    pin_share shares[PIN_THREADS] = {0};
    pleat_result result = PLEAT_OK;
    int started = 0;
    for (size_t from = 0; started < threads; started++) {
        size_t until = count * (size_t)(started + 1) / (size_t)threads;
        shares[started] = (pin_share){
            .b = b, .way = way, .blocks = blocks + from, .count = until - from, .bytes = bytes};
        from = until;
        if (pthread_create(&shares[started].thread, NULL, pin_all, &shares[started]) != 0) {
            result = pleat__fail(PLEAT_E_LIMIT, "no thread to pin with");
            break;
        }
    }
    for (int t = 0; t < started; t++) {
        pthread_join(shares[t].thread, NULL);
        if (result == PLEAT_OK && pleat__fail_again(&shares[t].why) != PLEAT_OK)
            result = pleat__context(shares[t].why.result, "%s", way->name);
    }
    return result;
}

static void unpin_all(const pause_bench *b, void **blocks, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (blocks[i] != NULL)
            (void)VERB(b, host_free, b->device, blocks[i]);
}

static pleat_result measure_pin(pause_bench *b, const pin_way *way, int threads)
{
    void *blocks[MOST_BLOCKS] = {0};
    uint64_t bytes = b->pin_bytes < BLOCK_BYTES ? b->pin_bytes : BLOCK_BYTES;
    size_t count = (size_t)(b->pin_bytes / bytes);
    count = count < MOST_BLOCKS ? count : MOST_BLOCKS;
    uint64_t begun = clock_now();
    pleat_result result = pin_by_threads(b, way, threads, blocks, count, bytes);
    b->pins[b->pin_rows++] = (pin_row){way->name, threads, (double)(clock_now() - begun) * 1e-9};
    unpin_all(b, blocks, count);
    return result;
}

pleat_result bench_pins(pause_bench *b)
{
    size_t first = b->cuda ? 1 : 0, end = b->cuda ? WAYS : 1;
    for (int round = 0; round < 2; round++)
        for (size_t w = first; w < end; w++)
            for (int threads = 1; threads <= PIN_THREADS; threads += PIN_THREADS - 1)
                PLEAT_TRY(measure_pin(b, &ways[w], threads));
    return PLEAT_OK;
}

/* ---- copies ---- */

typedef struct link {
    bool reads;     /* threads of the device copy inward, not its copy engines */
    uint64_t bytes; /* on either side */
    char *host;
    pleat_handle handle;
    pleat_va va;
    bool mapped;
    pleat_stream streams[STREAMS];
    pleat_event events[STREAMS];
    int stream_count;
} link;

static pleat_result link_begin(const pause_bench *b, const pin_way *way, link *l)
{
    void *host = NULL;
    *l = (link){.bytes = b->bytes < BLOCK_BYTES ? b->bytes : BLOCK_BYTES};
    l->bytes -= l->bytes % CLI_LEAST_MEMORY;
    PLEAT_TRY(pin(b, way, l->bytes, &host));
    l->host = host;
    PLEAT_TRY(VERB(b, reserve, b->device, l->bytes, 0, &l->va));
    PLEAT_TRY(VERB(b, create, b->device, l->bytes, 0, &l->handle));
    PLEAT_TRY(VERB(b, map, l->va, l->bytes, l->handle));
    l->mapped = true;
    PLEAT_TRY(VERB(b, set_access, l->va, l->bytes, &b->device, 1));
    for (; l->stream_count < STREAMS; l->stream_count++) {
        PLEAT_TRY(VERB(b, stream_create, b->device, &l->streams[l->stream_count]));
        PLEAT_TRY(VERB(b, event_create, b->device, &l->events[l->stream_count]));
    }
    return PLEAT_OK;
}

static void link_end(const pause_bench *b, link *l)
{
    for (int s = 0; s < STREAMS; s++) {
        if (l->events[s] != 0)
            (void)VERB(b, event_destroy, l->events[s]);
        if (l->streams[s] != 0)
            (void)VERB(b, stream_destroy, b->device, l->streams[s]);
    }
    if (l->mapped)
        (void)VERB(b, unmap, l->va, l->bytes);
    if (l->handle != 0)
        (void)VERB(b, release, l->handle);
    if (l->va != 0)
        (void)VERB(b, free_range, l->va, l->bytes);
    if (l->host != NULL)
        (void)VERB(b, host_free, b->device, l->host);
}

static pleat_result copy_piece(const pause_bench *b, const link *l, pleat_stream stream, bool out,
                               uint64_t at, uint64_t bytes)
{
    uint64_t host = (uint64_t)(uintptr_t)l->host + at, device = l->va + at;
    if (l->reads && !out)
        return VERB(b, copy_by_threads, b->device, stream, device, host, bytes);
    return VERB(b, copy, b->device, stream, out ? host : device, out ? device : host, bytes);
}

/* All pieces, in turns by the streams, and the wait for them; bytes a second. */
static pleat_result copy_once(const pause_bench *b, const link *l, int streams, bool out,
                              double *rate)
{
    uint64_t begun = clock_now();
    for (uint64_t at = 0, piece = 0; at < l->bytes; at += PIECE_BYTES, piece++) {
        uint64_t bytes = l->bytes - at < PIECE_BYTES ? l->bytes - at : PIECE_BYTES;
        PLEAT_TRY(copy_piece(b, l, l->streams[piece % (uint64_t)streams], out, at, bytes));
    }
    for (int s = 0; s < streams; s++) {
        PLEAT_TRY(VERB(b, event_record, l->events[s], l->streams[s]));
        PLEAT_TRY(VERB(b, event_wait, l->events[s]));
    }
    double now = (double)l->bytes / ((double)(clock_now() - begun) * 1e-9);
    *rate = now > *rate ? now : *rate;
    return PLEAT_OK;
}

/* The best of some, after one that does not count. */
static pleat_result copy_both(const pause_bench *b, const link *l, copy_row *row)
{
    double first = 0;
    PLEAT_TRY(copy_once(b, l, row->streams, true, &first));
    for (int round = 0; round < 8; round++) {
        PLEAT_TRY(copy_once(b, l, row->streams, false, &row->in));
        PLEAT_TRY(copy_once(b, l, row->streams, true, &row->out));
    }
    return PLEAT_OK;
}

static pleat_result measure_way(pause_bench *b, const pin_way *way)
{
    link l;
    pleat_result result = link_begin(b, way, &l);
    for (int streams = 1; streams <= STREAMS && result == PLEAT_OK; streams *= 2) {
        copy_row *row = &b->copies[b->copy_rows++];
        *row = (copy_row){.way = way->name, .streams = streams};
        result = copy_both(b, &l, row);
    }
    link_end(b, &l);
    return result;
}

static pleat_result measure_read(pause_bench *b, const pin_way *way)
{
    link l;
    pleat_result result = link_begin(b, way, &l);
    l.reads = true;
    b->read = (copy_row){.way = way->name, .streams = 2};
    if (result == PLEAT_OK)
        result = copy_both(b, &l, &b->read);
    link_end(b, &l);
    return result;
}

pleat_result bench_copies(pause_bench *b)
{
    const pin_way *last = b->cuda ? &ways[3] : &ways[0];
    b->reads = VERB(b, copy_by_threads, b->device, 0, 0, 0, 0) == PLEAT_OK;
    if (b->cuda)
        PLEAT_TRY(measure_way(b, &ways[1]));
    PLEAT_TRY(measure_way(b, last));
    return b->reads ? measure_read(b, last) : PLEAT_OK;
}
