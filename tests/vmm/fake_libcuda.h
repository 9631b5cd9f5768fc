/*
 * fake_libcuda.h: what a test can ask of the tests' own libcuda beyond the driver's functions. It
 * is found by dlsym in the library that PLEAT_CUDA_LIBRARY names.
 */
#ifndef PLEAT_TESTS_VMM_FAKE_LIBCUDA_H
#define PLEAT_TESTS_VMM_FAKE_LIBCUDA_H

#include <stdbool.h>
#include <stdint.h>

/* The nth call from now on of those that take or do something fails with error 999, once; 0: none
 * does. What gives back never fails. Returns whether none was left to fail before. */
bool fake_cuda_fail(uint64_t nth);

/* From now on cuMemUnmap, cuEventDestroy and cuMemHostUnregister fail with this error (a CUresult)
 * and change nothing; 0: they do not. */
void fake_cuda_keep(int code);

/* Called whenever a range of addresses has been freed, before the driver's function returns; NULL:
 * nothing is. */
void fake_cuda_after_free(void (*call)(void));

/* From now on a stream captures, or none does: memory verbs and questions about events fail with
 * error 900 on threads that did not ask to be relaxed. */
void fake_cuda_capture(bool captures);

/* A stream (CUstream) captures, or does not any more; NULL: one for which the first device's
 * default stream may not be asked (906). An event that is recorded on it is the graph's, which can
 * be neither asked nor waited for (907), and it may wait for no other (905). */
void fake_cuda_stream_captures(void *stream, bool captures);

/* NVML says that this process has so many bytes more than the driver gave it, and is held to
 * `limit` (0: to nothing); or, to a stranger, not which of the processes it is. */
void fake_nvml_set(uint64_t other, uint64_t limit, bool stranger);

/* Handles, reservations, mapped pages, pinned pieces of memory and modules that exist. */
uint64_t fake_cuda_held(void);

#endif
