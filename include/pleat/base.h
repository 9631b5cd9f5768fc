/*
 * pleat/base.h: what every Pleat header shares: results, errors, version, export marks.
 *
 * RESULTS    Every function that can fail returns a pleat_result; PLEAT_OK is 0 and nothing else
 *            means success. The list is written once, in PLEAT_RESULTS.
 * ERRORS     The text of the last failure on the calling thread, with the driver's or the
 *            system's own code, is kept by pleat_last_error(). It stays valid until the next
 *            failing call on that thread. A successful call does not clear it.
 *            What a function's text names is what the caller can do something about; besides,
 *            PLEAT_E_NO_MEMORY may come of any that takes host memory, and PLEAT_E_DRIVER of any
 *            that asks a device's driver.
 *            Where a call fails, what it gives through a pointer is as it was before, but for
 *            pleat_alloc's address, which is 0.
 * NULL       It is allowed where the text of a function or of a field says so, and in calls that
 *            destroy or free something, which do nothing then. Anywhere else it is the caller's
 *            fault, and what happens is undefined.
 * SIZES      A struct that begins with `size` is as long as that says: the caller sets it to sizeof
 *            the struct. It grows at its end. An older, shorter one is as if the rest were not set.
 *            A longer one, which a newer header has, is taken where what this library does not know
 *            is 0; in one that the library fills in that becomes 0. PLEAT_E_ABI, with the struct's
 *            name, where it is shorter than it ever was, or has something else there. The table of
 *            a backend has a rule of its own (pleat/vmm.h). A struct without `size`, whose bytes no
 *            call takes either, stays as it is.
 * UNITS      Sizes and offsets are bytes unless a name says chunks or pages.
 * THREADS    Everything in this header may be called from any thread.
 */
#ifndef PLEAT_BASE_H
#define PLEAT_BASE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PLEAT_VERSION_MAJOR 0
#define PLEAT_VERSION_MINOR 1
#define PLEAT_VERSION_PATCH 0

#if defined(__GNUC__)
#define PLEAT_API          __attribute__((visibility("default")))
#define PLEAT_NODISCARD    __attribute__((warn_unused_result))
#define PLEAT_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define PLEAT_API
#define PLEAT_NODISCARD
#define PLEAT_PRINTF(f, a)
#endif

/* X(name, value, text). Values are part of the ABI: append only. */
#define PLEAT_RESULTS(X)                                                                           \
    X(OK, 0, "success")                                                                            \
    X(E_INVALID, 1, "invalid argument")                                                            \
    X(E_NO_MEMORY, 2, "out of host memory")                                                        \
    X(E_OUT_OF_MEMORY, 3, "out of device memory")                                                  \
    X(E_BUDGET, 4, "the memory budget is spent")                                                   \
    X(E_INPUT, 5, "bad input")                                                                     \
    X(E_IO, 6, "input or output failed")                                                           \
    X(E_ABI, 7, "incompatible version")                                                            \
    X(E_UNSUPPORTED, 8, "not supported here")                                                      \
    X(E_NO_DEVICE, 9, "no such device")                                                            \
    X(E_DRIVER, 10, "the device driver reported an error")                                         \
    X(E_STATE, 11, "not allowed in this state")                                                    \
    X(E_NOT_READY, 12, "not complete yet")                                                         \
    X(E_NOT_FOUND, 13, "not found")                                                                \
    X(E_LIMIT, 14, "a limit was met")                                                              \
    X(E_VERIFY, 15, "the plan does not hold")

typedef enum pleat_result {
#define PLEAT_RESULT_ENUM(name, value, text) PLEAT_##name = value,
    PLEAT_RESULTS(PLEAT_RESULT_ENUM)
#undef PLEAT_RESULT_ENUM
} pleat_result;

/* The last failure on a thread. `native` is the driver's or the system's own number (a CUresult, an
 * errno), `native_name` its symbolic name ("CUDA_ERROR_OUT_OF_MEMORY", "ENOENT"; "errno 200" where
 * Pleat knows none), both zero or empty when the failure is Pleat's own. */
typedef struct pleat_error {
    pleat_result result;
    int native;
    char native_name[48];
    char text[512];
} pleat_error;

/* The name ("PLEAT_E_INPUT") and the text of a result. Never NULL; static strings. */
PLEAT_API const char *pleat_result_name(pleat_result result);
PLEAT_API const char *pleat_result_text(pleat_result result);

/* The last failure on this thread; never NULL. */
PLEAT_API const pleat_error *pleat_last_error(void);
/* For a backend of one's own (pleat/vmm.h), where a verb fails: the text becomes this thread's last
 * failure. Returns `result`. */
PLEAT_API pleat_result pleat_fail(pleat_result result, const char *text);

/* "0.1.0". A static string. */
PLEAT_API const char *pleat_version(void);

/* Whether `text` is a size as people write it, and its bytes: a whole number of bytes, or a number
 * with K, M, G or T (powers of 1024), which an i, a B or both may follow, in letters of either
 * case: 65536, 64k, 64KiB, 64kb, 1.5GiB; what such a fraction has beyond whole bytes is left out. 0
 * where it is none: *bytes is as it was. */
PLEAT_API int pleat_size_parse(const char *text, uint64_t *bytes);

#ifdef __cplusplus
}
#endif

#endif
