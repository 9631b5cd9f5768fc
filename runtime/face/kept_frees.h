/*
 * kept_frees.h: frees of what is paused. Nothing may come to lie there before it is awake again, so
 * they reach the policy only then. Room to note them is promised before anything is paused:
 * keeping one cannot fail. All with the lock.
 */
#ifndef PLEAT_RUNTIME_FACE_KEPT_FREES_H
#define PLEAT_RUNTIME_FACE_KEPT_FREES_H

#include <pleat/runtime.h>
#include <runtime/face/pause.h>

/* A free is kept back where something of the allocation is paused: *bytes of it, as asked for, or 0
 * where nothing is. PLEAT_E_NOT_FOUND: it has been freed before. */
PLEAT_NODISCARD pleat_result pleat__kept_frees_keep(pleat_runtime *runtime, pleat_va address,
                                                    uint64_t *bytes);
/* Those of what is awake, or on chunks of pause `but`, reach the policy. */
void pleat__kept_frees_let_go(pleat_runtime *runtime, const pleat__pause *but);
/* The pages that all of them lie on, at most. */
uint64_t pleat__kept_frees_pages(const pleat_runtime *runtime);

#endif
