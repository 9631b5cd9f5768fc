/*
 * cuda_reader.c: copies from pinned memory by threads of the GPU, which read it across the link and
 * need no copy engine: engines copy at half their speed while the driver clears memory that
 * somebody has given back, threads as fast as ever (D415 in docs/decisions.md). See cuda.h.
 */
#include "cuda_internal.h"
#include "table.h"

#include <internal/error.h>

/* Of threads, and threads of a block: with 1,056 blocks it is as fast, 50 GB/s on an H200, where
 * engines have 54. */
#define BLOCKS  64u
#define THREADS 256u
#define WORD    16u /* bytes that a thread copies at a time (D480) */

/* Of n threads in all thread t copies the words t, t + n, t + 2 n ... */
static const char kernel[] =
    ".version 6.4\n"
    ".target sm_60\n"
    ".address_size 64\n"
    ".visible .entry pleat_reader(.param .u64 to, .param .u64 from, .param .u64 bytes)\n"
    "{\n"
    "    .reg .u64 %to, %from, %end, %at, %step, %source, %target, %x, %y;\n"
    "    .reg .u32 %t, %b, %n, %g;\n"
    "    .reg .pred %p;\n"
    "    ld.param.u64 %to, [to];\n"
    "    ld.param.u64 %from, [from];\n"
    "    ld.param.u64 %end, [bytes];\n"
    "    mov.u32 %t, %tid.x;\n"
    "    mov.u32 %b, %ctaid.x;\n"
    "    mov.u32 %n, %ntid.x;\n"
    "    mov.u32 %g, %nctaid.x;\n"
    "    cvt.u64.u32 %at, %t;\n"
    "    mad.wide.u32 %at, %b, %n, %at;\n"
    "    shl.b64 %at, %at, 4;\n"
    "    mul.wide.u32 %step, %g, %n;\n"
    "    shl.b64 %step, %step, 4;\n"
    "next:\n"
    "    setp.ge.u64 %p, %at, %end;\n"
    "    @%p bra done;\n"
    "    add.u64 %source, %from, %at;\n"
    "    add.u64 %target, %to, %at;\n"
    "    ld.global.cs.v2.u64 {%x, %y}, [%source];\n"
    "    st.global.cs.v2.u64 [%target], {%x, %y};\n"
    "    add.u64 %at, %at, %step;\n"
    "    bra next;\n"
    "done:\n"
    "    ret;\n"
    "}\n";

/* Once for each device; whoever comes meanwhile waits. */
static pleat_result load(pleat__cuda *cuda, int device)
{
    pleat__cuda_reader *reader = &cuda->devices[device].reader;
    pleat_result result = PLEAT_OK;
    pthread_mutex_lock(&cuda->loading);
    if (!atomic_load_explicit(&reader->loaded, memory_order_relaxed)) {
        result =
            pleat__cuda_kernel_load(&cuda->vmm, device, kernel, "pleat_reader", &reader->kernel);
        atomic_store_explicit(&reader->loaded, result == PLEAT_OK, memory_order_release);
    }
    pthread_mutex_unlock(&cuda->loading);
    return result;
}

static pleat_result unsupported(int device)
{
    return pleat__fail(PLEAT_E_UNSUPPORTED,
                       "device %d: its threads cannot read what is pinned of the host's memory",
                       device);
}

pleat_result pleat__cuda_copy_by_threads(void *self, int device, pleat_stream stream, uint64_t to,
                                         uint64_t from, uint64_t bytes)
{
    pleat__cuda *cuda = self;
    PLEAT_TRY(pleat__vmm_check_device(cuda->device_count, device));
    pleat__cuda_reader *reader = &cuda->devices[device].reader;
    if (!cuda->devices[device].reads_pinned)
        return unsupported(device);
    if (((to | from | bytes) & (WORD - 1)) != 0)
        return pleat__fail(PLEAT_E_INVALID, "copy_by_threads: no whole words of %u bytes", WORD);
    if (!atomic_load_explicit(&reader->loaded, memory_order_acquire))
        PLEAT_TRY(load(cuda, device));
    void *arguments[] = {&to, &from, &bytes};
    return bytes == 0 ? PLEAT_OK
                      : pleat__cuda_launch(&cuda->vmm, &reader->kernel, stream, BLOCKS, THREADS,
                                           arguments);
}

void pleat__cuda_readers_unload(pleat__cuda *cuda)
{
    for (int d = 0; d < cuda->device_count; d++)
        if (atomic_load(&cuda->devices[d].reader.loaded))
            (void)!pleat__cuda_kernel_unload(&cuda->vmm, &cuda->devices[d].reader.kernel);
}
