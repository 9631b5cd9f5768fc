/*
 * tags.h: what a thread allocates may have a name, by which it is paused. A thread's tag is its
 * own; names are the process's, so that each runtime knows them.
 */
#ifndef PLEAT_RUNTIME_FACE_TAGS_H
#define PLEAT_RUNTIME_FACE_TAGS_H

#include <pleat/runtime.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Whether any thread of the process ever had a tag. */
extern atomic_bool pleat__has_tags;

/* The calling thread's tag now; 0: none. */
uint32_t pleat__tag_now(void);
/* The number of a tag, 0 for no name or an empty one. PLEAT_E_NOT_FOUND: no thread ever had it. */
PLEAT_NODISCARD pleat_result pleat__tag_named(const char *name, uint32_t *tag);

#endif
