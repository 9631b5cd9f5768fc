#!/usr/bin/env python3
"""Records tests/snapshots/: record.py FILE.pickle.gz, under the torch whose format it is to be.

torch's own allocator serves a few requests, on two devices that a CUDA runtime without a GPU (libpleat_no_gpu.so,
preloaded, with PLEAT_NO_GPU_DEVICES=2) says are there, and writes down what it did. No kernel runs, so it needs
neither a GPU nor CUDA's libraries. README.md says with which command each was made; formats.py holds them to what
this program does.
"""

import gzip
import os
import pickle
import sys

import torch

MIB = 1 << 20


def label(text):
    """Where this torch has labels."""
    if hasattr(torch.cuda.memory, "_set_memory_metadata"):
        torch.cuda.memory._set_memory_metadata(text)


def allocate(bytes, device=0):
    return torch.empty(bytes, dtype=torch.uint8, device="cuda:%d" % device)


def work(number, kept):
    """An iteration: a tensor that another stream still uses, a view, and what stays to its end."""
    label("iter=%d;phase=F" % number)
    first = allocate(3 * MIB)
    other = torch.cuda.Stream()
    first.record_stream(other)
    second = allocate(24 * MIB)
    view = second[:MIB]
    del second
    label("iter=%d;phase=B" % number)
    third = allocate(1000)
    del first, view
    fourth = allocate(7 * MIB)
    if hasattr(torch.cuda.memory, "_annotate_tensor"):
        torch.cuda.memory._annotate_tensor(fourth, "the fourth")
    with torch.cuda.stream(other):
        fifth = allocate(2 * MIB)
    kept.append(allocate(5 * MIB, 1))
    del third, fourth, fifth


def short(frames):
    """Without the folders of the machine that recorded it."""
    for frame in frames:
        frame["filename"] = os.path.basename(frame["filename"])


def without_paths(told):
    if isinstance(told, dict):
        for key, value in told.items():
            if key == "frames":
                short(value)
            else:
                without_paths(value)
    elif isinstance(told, (list, tuple)):
        for one in told:
            without_paths(one)


def main():
    torch.cuda.init()
    before = allocate(10 * MIB)  # nothing is recorded yet
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=100000)
    kept = []
    for number in range(3):
        work(number, kept)
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        allocate(8 << 30)
    except RuntimeError:  # out of memory, or, in 2.1, that there is no library to say how much others have
        kept.append(allocate(100))
    told = torch.cuda.memory._snapshot()
    without_paths(told)
    with open(sys.argv[1], "wb") as file, gzip.GzipFile(fileobj=file, mode="wb", mtime=0, filename="") as out:
        pickle.dump(told, out, protocol=4)
    print(torch.__version__, sum(map(len, told["device_traces"])), "events", before.device)


if __name__ == "__main__":
    main()
