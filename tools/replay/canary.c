/*
 * canary.c: see canary.h.
 */
#include <tools/replay/canary.h>

#include <tools/replay/canary_cuda.h>

#include <internal/error.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vmm/host/host.h>

#define PAGE        4096u
#define SMALL_BYTES 4096u /* a tensor up to this carries a word in every cache line */
#define LINE        64u
#define GRAIN       512u /* of the oracle */
#define LEAF_BYTES  (2u << 20)
#define LEAF_WORDS  (LEAF_BYTES / GRAIN / 64)
#define WIDEST      (2u << 20)
#define VISITS      (8u << 20) /* pages written in a replay, and as many read: some seconds */

/* Physical memory [n * LEAF_BYTES, ...): a bit for each GRAIN that is live. */
typedef struct leaf {
    uint64_t bits[LEAF_WORDS];
    uint32_t set;
} leaf;

struct canary {
    pleat_vmm vmm;
    int device;
    canary_cuda *cuda; /* NULL on the host backend */
    uint64_t granule;
    uint64_t stride;
    uint64_t errors;
    char first_error[200];
    leaf **leaves; /* by physical offset / LEAF_BYTES */
    uint64_t leaf_count;
    uint64_t *behind; /* by id: a hash of what lies behind a live tensor */
};

static uint64_t mix(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static uint64_t host_available(void)
{
    uint64_t kib = 0;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "MemAvailable: %" SCNu64 " kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib * 1024;
}

/* Bytes of host memory that a stride touches at most: physical memory may be half as much again as
 * the peak, and both ends of every tensor are pages of their own, unless the peak has fewer. */
static uint64_t touched(uint64_t peak, uint64_t requests, uint64_t stride)
{
    uint64_t most = peak + peak / 2;
    uint64_t bytes = most / stride * PAGE + requests * 2 * PAGE;
    return bytes < most ? bytes : most;
}

static bool is_affordable(const canary_job *job, uint64_t stride, uint64_t share)
{
    return touched(job->peak_bytes, job->requests, stride) <= share &&
           job->total_bytes / stride <= VISITS;
}

static pleat_result choose_stride(canary *bird, const canary_job *job)
{
    bird->stride = PAGE;
    if (bird->cuda != NULL) /* every byte, at the memory's speed */
        return PLEAT_OK;
    uint64_t share = host_available() / 4;
    while (bird->stride < WIDEST && !is_affordable(job, bird->stride, share))
        bird->stride *= 2;
    uint64_t bytes = touched(job->peak_bytes, job->requests, bird->stride);
    if (bytes > share)
        return pleat__fail(PLEAT_E_NO_MEMORY,
                           "the canary would touch %" PRIu64 " MiB, more than a quarter of the "
                           "host's available memory: free some, or replay without --canary",
                           bytes >> 20);
    return PLEAT_OK;
}

pleat_result canary_create(const pleat_vmm *vmm, int device, bool cuda, const canary_job *job,
                           canary **out)
{
    uint64_t granule, recommended;
    PLEAT_TRY(vmm->ops->granularity(vmm->self, device, &granule, &recommended));
    canary *made = calloc(1, sizeof *made);
    if (made == NULL)
        return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
    *made = (canary){.vmm = *vmm, .device = device, .granule = granule};
    made->behind = calloc(job->requests ? job->requests : 1, sizeof *made->behind);
    pleat_result result = made->behind != NULL
                              ? PLEAT_OK
                              : pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
    if (result == PLEAT_OK && cuda)
        result = canary_cuda_create(vmm, device, &made->cuda);
    if (result == PLEAT_OK)
        result = choose_stride(made, job);
    if (result != PLEAT_OK) {
        canary_destroy(made);
        return result;
    }
    *out = made;
    return PLEAT_OK;
}

void canary_destroy(canary *bird)
{
    if (bird == NULL)
        return;
    for (uint64_t i = 0; i < bird->leaf_count; i++)
        free(bird->leaves[i]);
    canary_cuda_destroy(bird->cuda);
    free(bird->leaves);
    free(bird->behind);
    free(bird);
}

PLEAT_PRINTF(2, 3) static void report(canary *bird, const char *format, ...)
{
    if (bird->errors++ > 0)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(bird->first_error, sizeof bird->first_error, format, arguments);
    va_end(arguments);
}

/* ---- the pattern ---- */

typedef struct tensor {
    uint32_t id;
    pleat_va begin;
    pleat_va end;
    bool writing;
    bool damaged;
} tensor;

static void word(tensor *t, pleat_va at)
{
    uint64_t expected = mix(((uint64_t)t->id << 40) ^ at), found = expected;
    if (t->writing)
        memcpy((void *)(uintptr_t)at, &expected, sizeof expected);
    else
        memcpy(&found, (const void *)(uintptr_t)at, sizeof found);
    t->damaged = t->damaged || found != expected;
}

/* The first, the middle and the last word of what the tensor owns of the page around `at`. */
static void visit_page(tensor *t, pleat_va at)
{
    pleat_va begin = at - at % PAGE, end = begin + PAGE;
    begin = begin < t->begin ? t->begin : begin;
    end = end > t->end ? t->end : end;
    if (end - begin < sizeof(uint64_t))
        return;
    word(t, begin);
    word(t, begin + (end - begin) / 2 / 8 * 8);
    word(t, end - sizeof(uint64_t));
}

static void visit_pages(const canary *bird, tensor *t)
{
    t->end -= t->end % 8;
    if (t->end - t->begin < sizeof(uint64_t))
        return;
    if (t->end - t->begin <= SMALL_BYTES) {
        for (pleat_va at = t->begin; at + sizeof(uint64_t) <= t->end; at += LINE)
            word(t, at);
        word(t, t->end - sizeof(uint64_t));
        return;
    }
    visit_page(t, t->begin);
    for (pleat_va at = (t->begin / bird->stride + 1) * bird->stride; at < t->end;
         at += bird->stride)
        visit_page(t, at);
    visit_page(t, t->end - 1);
}

static pleat_result visit(canary *bird, tensor *t)
{
    uint64_t seed = mix(t->id + 1), wrong = 0;
    if (bird->cuda == NULL) {
        visit_pages(bird, t);
        return PLEAT_OK;
    }
    if (t->writing)
        return canary_cuda_write(bird->cuda, 0, t->begin, t->end - t->begin, seed);
    PLEAT_TRY(canary_cuda_verify(bird->cuda, 0, t->begin, t->end - t->begin, seed));
    PLEAT_TRY(canary_cuda_wrong(bird->cuda, &wrong));
    t->damaged = wrong != 0;
    return PLEAT_OK;
}

/* ---- the oracle ---- */

static leaf *leaf_at(canary *bird, uint64_t offset)
{
    uint64_t index = offset / LEAF_BYTES;
    if (index >= bird->leaf_count) {
        uint64_t count = index * 2 + 64;
        leaf **grown = realloc(bird->leaves, count * sizeof *grown);
        if (grown == NULL)
            return NULL;
        memset(grown + bird->leaf_count, 0, (count - bird->leaf_count) * sizeof *grown);
        bird->leaves = grown;
        bird->leaf_count = count;
    }
    if (bird->leaves[index] == NULL)
        bird->leaves[index] = calloc(1, sizeof(leaf));
    return bird->leaves[index];
}

/* Bits [begin, end) of a leaf; returns whether any was set before. */
static bool change(leaf *at, unsigned begin, unsigned end, bool live)
{
    bool any = false;
    while (begin < end) {
        unsigned stop = (begin / 64 + 1) * 64 < end ? (begin / 64 + 1) * 64 : end;
        uint64_t mask = (stop - begin == 64 ? ~0ull : (1ull << (stop - begin)) - 1) << (begin % 64);
        uint64_t *bits = &at->bits[begin / 64];
        any = any || (*bits & mask) != 0;
        at->set -= (uint32_t)__builtin_popcountll(*bits & mask);
        *bits = live ? *bits | mask : *bits & ~mask;
        at->set += (uint32_t)__builtin_popcountll(*bits & mask);
        begin = stop;
    }
    return any;
}

/* Marks physical bytes [offset, offset + bytes). */
static pleat_result mark(canary *bird, uint64_t offset, uint64_t bytes, bool live, bool *any)
{
    while (bytes > 0) {
        uint64_t inside = offset % LEAF_BYTES;
        uint64_t part = LEAF_BYTES - inside < bytes ? LEAF_BYTES - inside : bytes;
        leaf *at = leaf_at(bird, offset);
        if (at == NULL)
            return pleat__fail(PLEAT_E_NO_MEMORY, "no host memory for the canary");
        *any |= change(at, (unsigned)(inside / GRAIN),
                       (unsigned)((inside + part + GRAIN - 1) / GRAIN), live);
        if (at->set == 0) {
            free(at);
            bird->leaves[offset / LEAF_BYTES] = NULL;
        }
        offset += part;
        bytes -= part;
    }
    return PLEAT_OK;
}

/* Marks what lies behind a tensor; *behind is a hash of it, *any whether some of it was live. */
static pleat_result mark_behind(canary *bird, const tensor *t, bool live, uint64_t *behind,
                                bool *any)
{
    *behind = 1;
    *any = false;
    for (pleat_va at = t->begin; at < t->end;) {
        uint64_t offset;
        pleat_va next = (at / bird->granule + 1) * bird->granule;
        next = next < t->end ? next : t->end;
        PLEAT_TRY(pleat_host_physical(&bird->vmm, at, &offset));
        *behind = mix(*behind ^ offset);
        PLEAT_TRY(mark(bird, offset, next - at, live, any));
        at = next;
    }
    return PLEAT_OK;
}

pleat_result canary_allocated(canary *bird, uint32_t id, pleat_va address, uint64_t bytes)
{
    tensor t = {.id = id, .begin = address, .end = address + bytes, .writing = true};
    bool any = false;
    if (bird->cuda == NULL)
        PLEAT_TRY(mark_behind(bird, &t, true, &bird->behind[id], &any));
    if (any)
        report(bird,
               "request %u of %" PRIu64 " bytes at %#" PRIx64
               " lies on memory of another that is live",
               id, bytes, address);
    return visit(bird, &t);
}

pleat_result canary_freed(canary *bird, uint32_t id, pleat_va address, uint64_t bytes)
{
    tensor t = {.id = id, .begin = address, .end = address + bytes};
    uint64_t behind = 0;
    bool any;
    if (bird->cuda == NULL)
        PLEAT_TRY(mark_behind(bird, &t, false, &behind, &any));
    if (bird->cuda == NULL && behind != bird->behind[id])
        report(bird,
               "request %u of %" PRIu64 " bytes at %#" PRIx64
               " was moved to other memory while it was live",
               id, bytes, address);
    PLEAT_TRY(visit(bird, &t));
    if (t.damaged)
        report(bird, "request %u of %" PRIu64 " bytes at %#" PRIx64 " was written over", id, bytes,
               address);
    return PLEAT_OK;
}

uint64_t canary_errors(const canary *bird)
{
    return bird->errors;
}

uint64_t canary_stride(const canary *bird)
{
    return bird->stride;
}

const char *canary_first_error(const canary *bird)
{
    return bird->first_error;
}
