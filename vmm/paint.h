/*
 * paint.h: writing one word all over a stretch of device memory, and counting the words that are
 * another: for checks of Pleat on memory that is in use.
 *
 * On the CUDA backend kernels do it, in the order of a stream; on any other backend the memory is
 * the process's own, and it is done at once.
 * THREADS  Any for fill and verify.
 */
#ifndef PLEAT_VMM_PAINT_H
#define PLEAT_VMM_PAINT_H

#include <internal/arena.h>
#include <pleat/vmm.h>

typedef struct pleat__paint pleat__paint;

PLEAT_NODISCARD pleat_result pleat__paint_create(pleat_vmm vmm, int device, pleat__arena *arena,
                                                 pleat__paint **out);
/* NULL is allowed. */
void pleat__paint_destroy(pleat__paint *paint);

/* pre: `at` and `bytes` are multiples of 4. Neither waits for the device. */
PLEAT_NODISCARD pleat_result pleat__paint_fill(pleat__paint *paint, pleat_stream stream,
                                               pleat_va at, uint64_t bytes, uint32_t word);
PLEAT_NODISCARD pleat_result pleat__paint_verify(pleat__paint *paint, pleat_stream stream,
                                                 pleat_va at, uint64_t bytes, uint32_t word);
/* How many words all verifications counted, and the address of one of them; waits for the default
 * stream, and counts what other streams have finished. */
PLEAT_NODISCARD pleat_result pleat__paint_counted(const pleat__paint *paint, uint64_t *words,
                                                  pleat_va *first);

#endif
