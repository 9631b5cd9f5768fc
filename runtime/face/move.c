/*
 * move.c: see move.h. The memory that the chunks will wake with is made before anything rests, so
 * that nobody can take it from them meanwhile.
 */
#include <runtime/face/move.h>

#include <runtime/face/runtime_internal.h>

#include <internal/error.h>

#define TRIES_MOST 3 /* to wake what the program takes to be awake (D481) */
#define PART_BYTES                                                                                 \
    (UINT64_C(256) << 20) /* at a time: so much more memory is there meanwhile (D215) */

/* A pause of these chunks, with what lives on them. */
static pleat_result begin(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                          pleat__pause **pause)
{
    PLEAT_TRY(pleat__pause_new(runtime, pause));
    pleat_result result = PLEAT_OK;
    (*pause)->internal = true;
    for (size_t c = 0; c < count && result == PLEAT_OK; c++)
        result = pleat__pause_add(runtime, *pause, chunks[c]);
    if (result == PLEAT_OK)
        result = pleat__pause_list_copies(runtime, *pause);
    if (result == PLEAT_OK)
        result = pleat__pause_begin(runtime, *pause);
    if (result != PLEAT_OK)
        pleat__pause_drop(runtime, *pause);
    return result;
}

/* The program knows nothing of it, so it must be awake again: a verb that failed once is tried
 * again.
 */
static pleat_result wake_surely(pleat_runtime *runtime, pleat__pause *pause)
{
    pleat_result result = pleat__pause_wake(runtime, pause);
    for (int again = 0; again < TRIES_MOST && result != PLEAT_OK; again++)
        result = pleat__pause_wake(runtime, pause);
    return result;
}

static pleat_result move_prepared(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count)
{
    pleat__pause *pause;
    PLEAT_TRY(begin(runtime, chunks, count, &pause));
    pleat_result result = pleat__pause_rest(runtime, pause);
    if (result == PLEAT_OK)
        return wake_surely(runtime, pause);
    pleat_error why = pleat__failure(result);
    pleat__pause_end(runtime, pause);
    return pleat__fail_again(&why);
}

static pleat_result move_part(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                              bool on_host)
{
    pleat__gate_leave(&runtime->gate);
    pleat_result result = pleat__space_prepare(runtime->space, chunks, count, on_host);
    pleat__gate_enter(&runtime->gate);
    if (result != PLEAT_OK)
        return result;
    result = move_prepared(runtime, chunks, count);
    pleat_error why = pleat__failure(result);
    pleat__gate_leave(&runtime->gate);
    pleat__space_unprepare(runtime->space, chunks, count);
    pleat__gate_enter(&runtime->gate);
    return pleat__fail_again(&why);
}

pleat_result pleat__move(pleat_runtime *runtime, pleat__chunk *const *chunks, size_t count,
                         bool on_host)
{
    for (size_t done = 0, part; done < count; done += part) {
        uint64_t bytes = 0;
        for (part = 0; done + part < count && (part == 0 || bytes < PART_BYTES); part++)
            bytes += chunks[done + part]->pages * pleat__space_page_bytes(runtime->space);
        PLEAT_TRY(move_part(runtime, chunks + done, part, on_host));
        runtime->stats.moved_bytes += bytes;
    }
    return PLEAT_OK;
}
