/*
 * bench_vmm_gpu.c: `pleat bench vmm`: work of the device beside the memory verbs. The kernels are
 * PTX texts, which the driver compiles, so no toolkit is needed; on the host backend the processor
 * reads instead, and nothing is launched.
 */
#include <tools/bench/bench_vmm.h>

#include <string.h>
#include <vmm/cuda.h>
#include <vmm/mapper.h>

/* ---- launches beside a mapper ---- */

enum { LAUNCHES = 4000, PHASES = 40, REMAPS = 400, SETTLE = 200 };
#define PARTS 1000000ull /* ratios are counted in these */

static const char nothing_ptx[] = ".version 6.0\n"
                                  ".target sm_50\n"
                                  ".address_size 64\n"
                                  ".visible .entry pleat_nothing()\n"
                                  "{\n"
                                  "    ret;\n"
                                  "}\n";

typedef struct remapping {
    pleat__space *space;
    pleat__mapper *mapper;
    pleat__chunk *chunk;
    uint64_t page;
    pleat__job job;
} remapping;

static pleat_result remapping_begin(bench *b, remapping *r)
{
    const pleat__space_options options = {.device = b->device};
    pleat_result result = pleat__space_create(b->vmm, b->arena, &options, &r->space);
    if (result == PLEAT_OK)
        result = pleat__mapper_create(b->vmm, b->arena, &r->mapper);
    if (result == PLEAT_OK)
        result = pleat__space_take(r->space, 1, &r->page);
    if (result == PLEAT_OK)
        result = pleat__space_chunk_get(r->space, 1, &r->chunk);
    return result;
}

static void remapping_end(remapping *r)
{
    pleat__mapper_destroy(r->mapper);
    pleat__space_destroy(r->space);
}

static pleat_result remap_many(void *context, pleat_result ready)
{
    remapping *r = context;
    pleat_result result = ready;
    for (int i = 0; i < REMAPS && result == PLEAT_OK; i++) {
        result = pleat__space_map(r->space, r->page, &r->chunk, 1);
        if (result == PLEAT_OK)
            result = pleat__space_unmap(r->space, r->page, 1);
    }
    return result;
}

/* Times single launches; the queue is emptied now and then, so that it never fills. */
static pleat_result launch_many(bench *b, const pleat__cuda_kernel *kernel, pleat_stream stream,
                                const remapping *busy, uint64_t *samples, size_t *count)
{
    for (int i = 0; i < LAUNCHES; i++) {
        if (busy != NULL && pleat__job_done(&busy->job))
            break; /* only launches beside a busy mapper count */
        uint64_t before = clock_now();
        pleat_result result = pleat__cuda_launch(&b->vmm, kernel, stream, 1, 32, NULL);
        uint64_t spent = clock_now() - before;
        if (result == PLEAT_OK && i % 256 == 255)
            result = pleat__cuda_stream_finish(&b->vmm, b->device, stream);
        if (result != PLEAT_OK)
            return result;
        if (i % 256 >= SETTLE / 10) /* not the first ones after a wait */
            samples[(*count)++] = spent;
    }
    return pleat__cuda_stream_finish(&b->vmm, b->device, stream);
}

/* Samples of a turn, behind those of the turns before it. */
typedef struct turns {
    uint64_t *samples;
    size_t count;
    uint64_t median; /* of the last turn */
} turns;

static pleat_result take_turn(bench *b, const pleat__cuda_kernel *kernel, pleat_stream stream,
                              const remapping *busy, turns *t)
{
    uint64_t *samples = t->samples + t->count;
    size_t count = 0;
    pleat_result result = launch_many(b, kernel, stream, busy, samples, &count);
    t->median = clock_quantile(samples, count, 0.5);
    t->count += count;
    return result;
}

static pleat_result take_busy_turn(bench *b, const pleat__cuda_kernel *kernel, pleat_stream stream,
                                   remapping *r, turns *busy, uint64_t *mapping_ns)
{
    uint64_t before = clock_now();
    r->job = (pleat__job){.call = remap_many, .context = r};
    pleat__mapper_submit(r->mapper, &r->job);
    pleat_result result = take_turn(b, kernel, stream, r, busy);
    pleat_result remapped = pleat__mapper_wait(r->mapper, &r->job);
    *mapping_ns += clock_now() - before;
    return result != PLEAT_OK ? result : remapped;
}

/* Each turn beside the mapper is compared with the turns alone before and after it, so that a drift
 * of the machine, which is larger than what is measured, is in neither. */
static pleat_result compare_launches(bench *b, const pleat__cuda_kernel *kernel,
                                     pleat_stream stream, remapping *r, uint64_t *samples)
{
    turns alone = {.samples = samples};
    turns busy = {.samples = samples + (size_t)LAUNCHES * (PHASES + 1)};
    uint64_t mapping_ns = 0, ratios[PHASES];
    size_t compared = 0;
    pleat_result result = take_turn(b, kernel, stream, NULL, &alone);
    alone.count = 0; /* that was to warm up */
    if (result == PLEAT_OK)
        result = take_turn(b, kernel, stream, NULL, &alone);
    for (int phase = 0; result == PLEAT_OK && phase < PHASES; phase++) {
        uint64_t around = alone.median;
        result = take_busy_turn(b, kernel, stream, r, &busy, &mapping_ns);
        if (result == PLEAT_OK)
            result = take_turn(b, kernel, stream, NULL, &alone);
        around += alone.median;
        if (busy.median != 0) /* the mapper was not done before the first launch */
            ratios[compared++] = 2 * PARTS * busy.median / around;
    }
    if (result != PLEAT_OK)
        return result;
    b->remaps = (uint64_t)PHASES * REMAPS;
    b->remap_us = (double)mapping_ns * 1e-3 / (double)b->remaps;
    b->launch_alone = clock_quantile(alone.samples, alone.count, 0.5);
    b->launch_alone_p99 = clock_quantile(alone.samples, alone.count, 0.99);
    b->launch_busy = clock_quantile(busy.samples, busy.count, 0.5);
    b->launch_busy_p99 = clock_quantile(busy.samples, busy.count, 0.99);
    if (compared > 0)
        b->launch_change = (double)clock_quantile(ratios, compared, 0.5) / PARTS - 1;
    return PLEAT_OK;
}

pleat_result bench_vmm_launches(bench *b)
{
    pleat__cuda_kernel kernel = {0};
    pleat_stream stream = 0;
    pleat_result result;
    uint64_t *samples =
        bench_vmm_memory(b, LAUNCHES * (2ull * PHASES + 1), sizeof *samples, &result);
    remapping *r = NULL;
    if (result == PLEAT_OK)
        r = bench_vmm_memory(b, 1, sizeof *r, &result);
    if (result == PLEAT_OK)
        result = remapping_begin(b, r);
    if (result == PLEAT_OK)
        result = b->vmm.ops->stream_create(b->vmm.self, b->device, &stream);
    if (result == PLEAT_OK)
        result = pleat__cuda_kernel_load(&b->vmm, b->device, nothing_ptx, "pleat_nothing", &kernel);
    if (result == PLEAT_OK)
        result = compare_launches(b, &kernel, stream, r, samples);
    if (kernel.module != NULL)
        (void)!pleat__cuda_kernel_unload(&b->vmm, &kernel);
    if (stream != 0)
        (void)b->vmm.ops->stream_destroy(b->vmm.self, b->device, stream);
    if (r != NULL)
        remapping_end(r);
    pleat__arena_free(b->arena, r);
    pleat__arena_free(b->arena, samples);
    return result;
}

/* ---- streaming ---- */

/* Every thread reads 16 bytes at a time, four reads in flight, a whole grid apart. */
enum { READ_BLOCKS = 1024, READ_THREADS = 512 };
_Static_assert(READ_STEP == 4ull * 16 * READ_BLOCKS * READ_THREADS, "one turn of the loop below");

static const char read_ptx[] =
    ".version 6.0\n"
    ".target sm_50\n"
    ".address_size 64\n"
    ".visible .entry pleat_read(.param .u64 from, .param .u64 bytes)\n"
    "{\n"
    "    .reg .u64 %at, %end, %step, %x;\n"
    "    .reg .u32 %t, %b, %n, %g, %sum;\n"
    "    .reg .u32 %v<16>;\n"
    "    .reg .pred %p;\n"
    "    ld.param.u64 %at, [from];\n"
    "    ld.param.u64 %end, [bytes];\n"
    "    add.u64 %end, %end, %at;\n"
    "    mov.u32 %t, %tid.x;\n"
    "    mov.u32 %b, %ctaid.x;\n"
    "    mov.u32 %n, %ntid.x;\n"
    "    mov.u32 %g, %nctaid.x;\n"
    "    mad.lo.u32 %t, %b, %n, %t;\n"
    "    mul.wide.u32 %x, %t, 16;\n"
    "    add.u64 %at, %at, %x;\n"
    "    mul.lo.u32 %n, %n, %g;\n"
    "    mul.wide.u32 %step, %n, 16;\n"
    "    mov.u32 %sum, 0;\n"
    "again:\n"
    "    setp.ge.u64 %p, %at, %end;\n"
    "    @%p bra over;\n"
    "    ld.global.v4.u32 {%v0, %v1, %v2, %v3}, [%at];\n"
    "    add.u64 %at, %at, %step;\n"
    "    ld.global.v4.u32 {%v4, %v5, %v6, %v7}, [%at];\n"
    "    add.u64 %at, %at, %step;\n"
    "    ld.global.v4.u32 {%v8, %v9, %v10, %v11}, [%at];\n"
    "    add.u64 %at, %at, %step;\n"
    "    ld.global.v4.u32 {%v12, %v13, %v14, %v15}, [%at];\n"
    "    add.u64 %at, %at, %step;\n"
    "    xor.b32 %v0, %v0, %v1;\n"
    "    xor.b32 %v2, %v2, %v3;\n"
    "    xor.b32 %v4, %v4, %v5;\n"
    "    xor.b32 %v6, %v6, %v7;\n"
    "    xor.b32 %v8, %v8, %v9;\n"
    "    xor.b32 %v10, %v10, %v11;\n"
    "    xor.b32 %v12, %v12, %v13;\n"
    "    xor.b32 %v14, %v14, %v15;\n"
    "    xor.b32 %v0, %v0, %v2;\n"
    "    xor.b32 %v4, %v4, %v6;\n"
    "    xor.b32 %v8, %v8, %v10;\n"
    "    xor.b32 %v12, %v12, %v14;\n"
    "    xor.b32 %v0, %v0, %v4;\n"
    "    xor.b32 %v8, %v8, %v12;\n"
    "    xor.b32 %v0, %v0, %v8;\n"
    "    add.u32 %sum, %sum, %v0;\n"
    "    bra again;\n"
    "over:\n"
    "    setp.ne.u32 %p, %sum, 305419896;\n" /* a value that hardly comes: keeps the reads alive */
    "    @%p bra done;\n"
    "    ld.param.u64 %at, [from];\n"
    "    st.global.u32 [%at], %sum;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

typedef struct reading {
    pleat__cuda_kernel kernel;
    pleat_stream stream;
} reading;

static pleat_result read_by_gpu(const bench *b, const reading *r, pleat_va from, uint64_t bytes,
                                int times)
{
    void *arguments[] = {&from, &bytes};
    for (int i = 0; i < times; i++) {
        pleat_result result = pleat__cuda_launch(&b->vmm, &r->kernel, r->stream, READ_BLOCKS,
                                                 READ_THREADS, arguments);
        if (result != PLEAT_OK)
            return result;
    }
    return pleat__cuda_stream_finish(&b->vmm, b->device, r->stream);
}

static uint64_t read_by_cpu(pleat_va from, uint64_t bytes)
{
    const uint64_t *word = (const uint64_t *)(uintptr_t)from;
    uint64_t sum = 0;
    for (uint64_t i = 0; i < bytes / sizeof *word; i++)
        sum += word[i];
    return sum;
}

static pleat_result time_reads(const bench *b, const reading *r, pleat_va from, uint64_t bytes,
                               double *rate)
{
    const int times = b->cuda ? 10 : 3;
    static volatile uint64_t sink;
    pleat_result result = PLEAT_OK;
    if (b->cuda)
        result = read_by_gpu(b, r, from, bytes, 1); /* warm up */
    else
        memset((void *)(uintptr_t)from, 1, bytes);
    uint64_t clock = clock_now();
    if (result == PLEAT_OK && b->cuda)
        result = read_by_gpu(b, r, from, bytes, times);
    for (int i = 0; i < times && !b->cuda; i++)
        sink = sink + read_by_cpu(from, bytes);
    *rate = (double)bytes * times / ((double)bench_vmm_since(&clock, 1) * 1e-9);
    return result;
}

/* One large handle, then the same bytes in single chunks in any order. */
static pleat_result stream_both(bench *b, const reading *r, pleat__space *space,
                                pleat__chunk **chunks)
{
    uint64_t pages = b->stream_bytes / b->granule, whole, parts;
    pleat_result result = pleat__space_take(space, pages, &whole);
    if (result == PLEAT_OK)
        result = pleat__space_take(space, pages, &parts);
    if (result == PLEAT_OK)
        result = pleat__space_chunk_get(space, (uint32_t)pages, &chunks[0]);
    if (result == PLEAT_OK)
        result = pleat__space_map(space, whole, chunks, 1);
    if (result == PLEAT_OK)
        result = time_reads(b, r, pleat__space_base(space) + whole * b->granule, b->stream_bytes,
                            &b->whole_rate);
    for (uint64_t p = 0; result == PLEAT_OK && p < pages; p++)
        result = pleat__space_chunk_get(space, 1, &chunks[p]);
    if (result != PLEAT_OK)
        return result;
    bench_vmm_shuffle(chunks, pages);
    result = pleat__space_map(space, parts, chunks, pages);
    if (result == PLEAT_OK)
        result = time_reads(b, r, pleat__space_base(space) + parts * b->granule, b->stream_bytes,
                            &b->shuffled_rate);
    return result;
}

pleat_result bench_vmm_streaming(bench *b)
{
    pleat_result result;
    reading r = {0};
    pleat__space *space = NULL;
    const pleat__space_options options = {.device = b->device};
    pleat__chunk **chunks =
        bench_vmm_memory(b, b->stream_bytes / b->granule, sizeof(pleat__chunk *), &result);
    if (result == PLEAT_OK)
        result = pleat__space_create(b->vmm, b->arena, &options, &space);
    if (result == PLEAT_OK && b->cuda)
        result = b->vmm.ops->stream_create(b->vmm.self, b->device, &r.stream);
    if (result == PLEAT_OK && b->cuda)
        result = pleat__cuda_kernel_load(&b->vmm, b->device, read_ptx, "pleat_read", &r.kernel);
    if (result == PLEAT_OK)
        result = stream_both(b, &r, space, chunks);
    if (r.kernel.module != NULL)
        (void)!pleat__cuda_kernel_unload(&b->vmm, &r.kernel);
    if (r.stream != 0)
        (void)b->vmm.ops->stream_destroy(b->vmm.self, b->device, r.stream);
    pleat__space_destroy(space);
    pleat__arena_free(b->arena, chunks);
    return result;
}
