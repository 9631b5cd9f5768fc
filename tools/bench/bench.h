/*
 * bench.h: what `pleat bench` can measure, each in a file of its own: bench_<name>.c.
 */
#ifndef PLEAT_TOOLS_BENCH_H
#define PLEAT_TOOLS_BENCH_H

#include <tools/cli.h>

/* X(name, one line of help): bench_<name>(argc, argv) with argv[0] the name. */
#define BENCHES(X)                                                                                 \
    X(alloc, "allocations and frees, policy beside policy")                                        \
    X(pause, "pinned host memory, copies, pause and resume")                                       \
    X(turns, "a trainer that gives its memory back in turns")                                      \
    X(vmm, "memory verbs, aliases, a plan's start-up, launches beside a mapper")

#define BENCH_DECLARE(name, help) int bench_##name(int argc, char **argv);
BENCHES(BENCH_DECLARE)
#undef BENCH_DECLARE

#endif
