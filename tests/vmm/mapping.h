/*
 * mapping.h: maps and unmaps as jobs of a mapper's.
 */
#ifndef PLEAT_TESTS_VMM_MAPPING_H
#define PLEAT_TESTS_VMM_MAPPING_H

#include <internal/error.h>
#include <vmm/mapper.h>
#include <vmm/space.h>

/* With chunks a map, without an unmap. It stays where it is until its job is done. */
typedef struct mapping {
    pleat__space *space;
    uint64_t page, pages; /* pages: of an unmap */
    pleat__chunk *const *chunks;
    uint64_t count;
} mapping;

static inline pleat_result mapping_do(void *context, pleat_result ready)
{
    const mapping *m = context;
    PLEAT_TRY(ready);
    return m->chunks != NULL ? pleat__space_map(m->space, m->page, m->chunks, m->count)
                             : pleat__space_unmap(m->space, m->page, m->pages);
}

static inline pleat__job mapping_job(mapping *m)
{
    return (pleat__job){.call = mapping_do, .context = m};
}

#endif
