/*
 * graph_capture.h: memory of captured graphs. See graph_capture.c; pleat/runtime.h has the calls.
 *
 * THREADS  None of its own: the runtime holds its lock around every call.
 */
#ifndef PLEAT_RUNTIME_FACE_GRAPH_CAPTURE_H
#define PLEAT_RUNTIME_FACE_GRAPH_CAPTURE_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>

/* The open capture that a stream takes part in; NULL: none. */
pleat_capture *pleat__capture_of_stream(pleat_capture *captures, pleat_stream stream);
/* The capture whose memory holds an address; NULL: none. */
pleat_capture *pleat__capture_of(pleat_capture *captures, pleat_va address);

/* PLEAT_E_OUT_OF_MEMORY: more than the capture was given. */
PLEAT_NODISCARD pleat_result pleat__capture_alloc(pleat_capture *capture, uint64_t bytes,
                                                  pleat_stream stream, pleat_va *address);
/* PLEAT_E_NOT_FOUND, without a text. */
pleat_result pleat__capture_free(pleat_capture *capture, pleat_va address);
/* Another stream uses it: it is not reused. PLEAT_E_NOT_FOUND, without a text. */
pleat_result pleat__capture_share(pleat_capture *capture, pleat_va address);
pleat_result pleat__capture_block_of(const pleat_capture *capture, pleat_va address,
                                     pleat_block *block);

/* Frees a capture that no caller holds any more and in which nothing is live. pre: the lock is
 * held.
 */
void pleat__capture_end_of_use(pleat_runtime *runtime, pleat_capture *capture);

#endif
