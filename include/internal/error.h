/*
 * internal/error.h: how a failure gets its text. A failing function says what it was doing once,
 * where it is known best, and callers pass the result on; they may put their own context in front.
 */
#ifndef PLEAT_INTERNAL_ERROR_H
#define PLEAT_INTERNAL_ERROR_H

#include <pleat/base.h>
#include <stdbool.h>

/* Stores the text as this thread's last error and returns `result`. */
PLEAT_PRINTF(2, 3) pleat_result pleat__fail(pleat_result result, const char *format, ...);

/* The same with the driver's or the system's own code and its name ("CUDA_ERROR_INVALID_VALUE"). */
PLEAT_PRINTF(4, 5)
pleat_result pleat__fail_native(pleat_result result, int native, const char *native_name,
                                const char *format, ...);

/* What a call that has just returned `result` said of it, to be kept while other calls may fail. A
 * text that speaks of another result is none of its: the call left none. */
pleat_error pleat__failure(pleat_result result);

/* What failed before is this thread's last error again, whatever failed meanwhile, or wherever it
 * did; returns its result. Of PLEAT_OK nothing is said. */
pleat_result pleat__fail_again(const pleat_error *error);

/* Around what a public call tries, some of which may fail while the call succeeds in the end: then
 * this thread's last error is what it was before. One that has begun goes on. */
void pleat__tries_begin(void);
void pleat__tries_end(pleat_result result);

/* Around a call into code that may not be Pleat's: one that fails and leaves no text gets this one.
 * Returns `result`. */
void pleat__expect_text(void);
PLEAT_PRINTF(2, 3) pleat_result pleat__told(pleat_result result, const char *format, ...);

/* As pleat__fail, for a code of the system's, or the current errno: with its name ("ENOENT"), and
 * its text behind this one. */
PLEAT_PRINTF(3, 4)
pleat_result pleat__fail_code(pleat_result result, int code, const char *format, ...);
PLEAT_PRINTF(2, 3) pleat_result pleat__fail_errno(pleat_result result, const char *format, ...);

/* Puts "context: " in front of this thread's last error text, where it does not begin so, and
 * returns `result`. */
PLEAT_PRINTF(2, 3) pleat_result pleat__context(pleat_result result, const char *format, ...);

/* There is no memory for it, by the device or by the budget: with less in use there would be. */
static inline bool pleat__is_shortage(pleat_result result)
{
    return result == PLEAT_E_OUT_OF_MEMORY || result == PLEAT_E_BUDGET;
}

/* Leaves the caller with the failing result. Only where nothing is held: a function that owns
 * something half built uses goto to its one unwinding ladder instead. */
#define PLEAT_TRY(expression)                                                                      \
    do {                                                                                           \
        pleat_result pleat_try_result_ = (expression);                                             \
        if (pleat_try_result_ != PLEAT_OK)                                                         \
            return pleat_try_result_;                                                              \
    } while (0)

#endif
