/*
 * share.h: memory that other processes share with this one. See share.c.
 *
 * THREADS  The runtime holds its lock around every call, with the turn where verbs are issued, for
 *          which the lock is left.
 */
#ifndef PLEAT_RUNTIME_FACE_SHARE_H
#define PLEAT_RUNTIME_FACE_SHARE_H

#include <pleat/runtime.h>
#include <runtime/base/gate.h>

/* Address space for another process's pieces, and how much of it is mapped. */
typedef struct pleat__import {
    uint64_t page;
    uint64_t pages;
    uint64_t mapped; /* pages */
    struct pleat__import *next;
} pleat__import;

/* The records; what is mapped goes with the space. */
void pleat__imports_release(pleat_runtime *runtime);

#endif
