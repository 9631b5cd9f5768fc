/*
 * bench_reader.c: copies by threads of the GPU, which read pinned memory across the link: they
 * need no copy engine. See bench_pause.h.
 */
#include <tools/bench/bench_pause.h>

#define THREADS 256u

static const char reader_ptx[] =
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

pleat_result bench_reader_load(pause_bench *b)
{
    return pleat__cuda_kernel_load(&b->vmm, b->device, reader_ptx, "pleat_reader", &b->reader);
}

void bench_reader_unload(pause_bench *b)
{
    if (b->reader.module != NULL)
        (void)!pleat__cuda_kernel_unload(&b->vmm, &b->reader);
}

pleat_result bench_reader_copy(const pause_bench *b, pleat_stream stream, unsigned blocks,
                               uint64_t to, uint64_t from, uint64_t bytes)
{
    void *arguments[] = {&to, &from, &bytes};
    return pleat__cuda_launch(&b->vmm, &b->reader, stream, blocks, THREADS, arguments);
}
