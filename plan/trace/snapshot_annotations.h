/*
 * snapshot_annotations.h: what a program said of a tensor that lives on (`annotate` events: torch's
 * `_annotate_tensor`), as lines of its site.
 *
 * An annotation is a line in double quotes before the stack frames; several of a tensor stand in
 * the order in which they were made. Of a tensor at most 4 are kept, each once, and of each at most
 * 256 bytes. Of a recording at most 65,536 annotated sites are kept; what comes later stays as it
 * is.
 */
#ifndef PLEAT_PLAN_TRACE_SNAPSHOT_ANNOTATIONS_H
#define PLEAT_PLAN_TRACE_SNAPSHOT_ANNOTATIONS_H

#include <plan/trace/snapshot.h>

/* A site, an annotation more, and the site that they make. */
typedef struct pleat__annotated {
    uint32_t from;
    uint32_t site; /* 0: this place is empty */
} pleat__annotated;

typedef struct pleat__annotations {
    pleat__snapshot *recording;
    pleat__annotated *known; /* open addressing by what is in it */
    size_t places;           /* of `known`, a power of two */
    size_t count;
} pleat__annotations;

/* *site (an index in recording->sites) becomes that of a tensor of whom `text` is said too, which
 * need not be UTF-8. PLEAT_E_NO_MEMORY. */
PLEAT_NODISCARD pleat_result pleat__annotate(pleat__annotations *annotations, const char *text,
                                             size_t length, uint32_t *site);

#endif
