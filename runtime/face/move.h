/*
 * move.h: what lies on chunks moves to other memory, of the host's or of the device's, at the same
 * addresses: a short pause that the program knows nothing of.
 */
#ifndef PLEAT_RUNTIME_FACE_MOVE_H
#define PLEAT_RUNTIME_FACE_MOVE_H

#include <pleat/runtime.h>
#include <runtime/base/gate.h>

/* Moves it to memory of the host's, or back to the device's, a part at a time. With the turn; the
 * lock is left. PLEAT_E_BUDGET, PLEAT_E_OUT_OF_MEMORY, PLEAT_E_UNSUPPORTED: nothing of the last
 * part moved. */
PLEAT_NODISCARD pleat_result pleat__move(pleat_runtime *runtime, pleat__chunk *const *chunks,
                                         size_t count, bool on_host);

#endif
