/*
 * tags.h: what a thread allocates may have a name, by which it is paused. A thread's tag is its
 * own; names are the process's, so that each runtime knows them.
 */
#ifndef PLEAT_RUNTIME_FACE_TAGS_H
#define PLEAT_RUNTIME_FACE_TAGS_H

#include <pleat/runtime.h>
#include <runtime/base/address_map.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Whether any thread of the process ever had a tag, or a runtime spills: allocations are noted. */
extern atomic_bool pleat__allocations_are_noted;

/* From now on. */
void pleat__note_allocations(void);

/* With the lock. Before an allocation, the thread's tag, which the program's callbacks may change
 * meanwhile; and after it, with the address 0 where there is none. */
PLEAT_NODISCARD pleat_result pleat__tag_reserve(pleat_runtime *runtime, uint32_t *tag);
void pleat__tag_note(pleat_runtime *runtime, uint32_t tag, pleat_va address);
/* The allocation is freed. */
void pleat__tag_forget(pleat_runtime *runtime, pleat_va address);
/* The tag of what begins at an address; 0: none. With the lock. */
uint32_t pleat__tag_at(const pleat_runtime *runtime, pleat_va address);
/* The number of a tag, 0 for no name or an empty one. PLEAT_E_NOT_FOUND: no thread ever had it. */
PLEAT_NODISCARD pleat_result pleat__tag_named(const char *name, uint32_t *tag);

#endif
