/*
 * pleat/ranges.h: memory that may be registered: with a communication library (ncclCommRegister,
 * symmetric memory), or for a network card.
 *
 * Who registers memory keeps what lies behind an address, and asks the driver for the one handle
 * that is mapped there. A runtime's memory is not like that: it is many handles, mapped anew while
 * the job runs. A range is: one handle, mapped whole, once, where it stays. It is never remapped,
 * never shared by two uses, and goes back to the device only when its owner gives it and nobody
 * holds it any more.
 *
 * A range takes whole chunks: it is for buffers of megabytes, or for another allocator to cut up.
 * Its bytes are in no runtime's budget.
 *
 * ERRORS  A call that fails has changed nothing, unless it says otherwise.
 * THREADS Every function may be called from any thread, which must not be cancelled in it.
 *         pleat_range_of waits for no verb.
 * PROCESSES In a child of fork every call on ranges that its parent made is PLEAT_E_STATE,
 *         pleat_ranges_bytes is 0, and pleat_ranges_destroy does nothing.
 */
#ifndef PLEAT_RANGES_H
#define PLEAT_RANGES_H

#include <pleat/vmm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The ranges of one device. */
typedef struct pleat_ranges pleat_ranges;

/* `vmm` must outlive them. PLEAT_E_NO_DEVICE; PLEAT_E_INVALID, PLEAT_E_ABI and PLEAT_E_UNSUPPORTED:
 * no such table, or one without what ranges need (pleat/vmm.h). */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_ranges_create(pleat_vmm vmm, int device,
                                                           pleat_ranges **out);
/* Gives all back, also what is held: no work uses it any more. NULL is allowed. */
PLEAT_API void pleat_ranges_destroy(pleat_ranges *ranges);

/* At least `bytes`, in whole chunks; *size (may be NULL): how many. PLEAT_E_OUT_OF_MEMORY;
 * PLEAT_E_INVALID: of no bytes, or of more than there are numbers for. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_range_make(pleat_ranges *ranges, uint64_t bytes,
                                                        pleat_va *address, uint64_t *size);
/* The owner is done with the range that begins at an address, and so is the device. It goes back,
 * or, where it is held, will when the last one lets go. PLEAT_E_NOT_FOUND: none begins there, or it
 * was given before. Where the driver does not take it the range is lost to the process, and counts
 * on. */
PLEAT_API pleat_result pleat_range_give(pleat_ranges *ranges, pleat_va address);

/* The range that holds an address. PLEAT_E_NOT_FOUND, without a text. */
PLEAT_API pleat_result pleat_range_of(pleat_ranges *ranges, pleat_va address, pleat_va *begin,
                                      uint64_t *bytes);
/* Somebody registered memory of the range that holds an address: it stays. As many times as it is
 * said, letting go must be. PLEAT_E_NOT_FOUND; of letting go, PLEAT_E_STATE: nobody holds it. */
PLEAT_API pleat_result pleat_range_hold(pleat_ranges *ranges, pleat_va address);
PLEAT_API pleat_result pleat_range_let_go(pleat_ranges *ranges, pleat_va address);

/* A descriptor of the whole range that holds an address, for another process; the caller closes it,
 * and programs that this process starts do not have it. PLEAT_E_NOT_FOUND; PLEAT_E_UNSUPPORTED
 * where the device's memory has none. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_range_export(pleat_ranges *ranges, pleat_va address,
                                                          int *fd);
/* Kernels on device `peer` may use the ranges, those that there are and those to come. On failure
 * some of them may be reachable already. PLEAT_E_LIMIT for more than 63 peers; what the driver says
 * where it cannot. Where there is no range one of a chunk is made, to ask, and goes:
 * PLEAT_E_OUT_OF_MEMORY. */
PLEAT_API PLEAT_NODISCARD pleat_result pleat_ranges_add_peer(pleat_ranges *ranges, int peer);

/* Bytes of the device that ranges have now, those that the driver did not take back among them. */
PLEAT_API uint64_t pleat_ranges_bytes(pleat_ranges *ranges);

#ifdef __cplusplus
}
#endif

#endif
