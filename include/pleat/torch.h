/*
 * pleat/torch.h: Pleat as the CUDA allocator of a C++ program that uses libtorch without Python.
 *
 * The functions are those of the library that `pleat libtorch DIR -o libpleat_torch.so` builds for
 * one libtorch; libpleat has none of them. There are two ways to use it:
 *
 *     one call      the program is linked with it and calls pleat_torch_enable before its first
 *                   CUDA tensor
 *     no change     LD_PRELOAD=libpleat_torch.so PLEAT=1 program; PLEAT_POLICY, PLEAT_CONF,
 *                   PLEAT_PLAN, PLEAT_SAVE_PLAN, PLEAT_BUDGET and PLEAT_QUIET are the options of
 *                   `pleat run`
 *
 * Functions that return an int return 0 for success; else pleat_torch_failure says why.
 *
 * THREADS  Any, except that pleat_torch_enable is called once.
 */
#ifndef PLEAT_TORCH_H
#define PLEAT_TORCH_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Puts Pleat in the place of torch's allocator, for the rest of the process. `policy` is "pleat" or
 * another one's name; `conf` settings as `pleat conf` lists them, or ""; `plan` a plan's file (%d
 * in it stands for the device), or "" to learn; `budget` the most bytes of each device, 0 for all;
 * `record` iterations to record from the first request on, for pleat_torch_save, 0 for none;
 * `events` the most events of a recording, 0 for as many as it may have. */
int pleat_torch_enable(const char *policy, const char *conf, const char *plan, uint64_t budget,
                       uint32_t record, uint64_t events);
/* Text of the last failure on this thread; valid until the next. */
const char *pleat_torch_failure(void);

/* An iteration ends, on one device or (-1) on all. Optional, but places are learned between such
 * marks alone. */
int pleat_torch_mark(int device);
/* What is allocated from now on belongs to a phase of the iteration; "" leaves it. */
int pleat_torch_phase(const char *name);
/* Writes what was recorded on a device as a trace, and the plan made of it; each to a file, or not
 * at all where its path is "". */
int pleat_torch_save(int device, const char *trace, const char *plan);
/* The device that was used first; -1: none was. */
int pleat_torch_first_device(void);
/* Bytes asked for since the start, on a device or (-1) on all. */
uint64_t pleat_torch_taken(int device);
/* Ends the logs that the setting `log` asks for: before the program ends. */
void pleat_torch_end_logs(void);

#ifdef __cplusplus
}
#endif

#endif
