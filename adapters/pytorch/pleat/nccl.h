/*
 * nccl.h: what nccl.c, which stands before NCCL's functions, tells the allocator. C, and without
 * NCCL's headers: one object serves every release.
 */
#ifndef PLEAT_TORCH_NCCL_H
#define PLEAT_TORCH_NCCL_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct pleat_nccl_listener {
    /* Whether memory is such that what lies behind it may change: it is not registered. */
    int (*is_mapped_anew)(const void *address, size_t bytes);
    /* It was registered, and is not any more. */
    void (*hold)(const void *address);
    void (*let_go)(const void *address);
    /* A collective sends or receives it. */
    void (*talks)(const void *address);
    /* A communicator is about to take memory of the current device, and has. */
    void (*starts)(void);
    void (*started)(void);
};

/* Once, before the program uses NCCL. NULL ends it. */
__attribute__((visibility("default"))) void
pleat_nccl_listen(const struct pleat_nccl_listener *listener);

/* NCCL's function of a name, which the one of the same name here goes on to; NULL: there is none.
 */
__attribute__((visibility("default"))) void *pleat_nccl_own(const char *name);

#ifdef __cplusplus
}
#endif

#endif
