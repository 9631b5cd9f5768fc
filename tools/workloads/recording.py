"""Records a job's allocations as a torch memory snapshot that any Python can load.

The snapshot is torch's own (torch.cuda.memory._record_memory_history and _snapshot), without stacks
and with values of built-in types only, pickled and gzipped. Each event carries the label of the
thread that caused it, "iter=N;phase=P", which `pleat import` reads as iteration and phase. Autograd
runs backward on threads of its own, and those carry no label.
"""

import contextlib
import gzip
import os
import pickle
import secrets
import sys

# Stacks and what refers to them: most of a snapshot's bytes, and of no use to a planner.
DROPPED = frozenset(["frames", "forward_frames", "compile_context", "history"])
PLAIN = (str, int, float, bool, type(None))


def plain(value):
    """A copy of `value` without the dropped keys; TypeError for anything that is no plain data."""
    if type(value) in PLAIN:
        return value
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items() if key not in DROPPED}
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    raise TypeError("a snapshot holds a %s, which is no plain data" % type(value).__name__)


def write(snapshot, path):
    """Writes the plain snapshot to `path`, whole and on the disk or not at all; returns the file's size. A file
    that is there keeps its permissions, and no link is followed that waits under the name written first."""
    partial = "%s.%s.part" % (path, secrets.token_hex(8))
    with open(partial, "xb") as raw:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(raw.fileno(), os.stat(path).st_mode & 0o777)
            # No name and no time in the header: the same snapshot gives the same bytes.
            with gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
                pickle.dump(plain(snapshot), packed, protocol=4)
            raw.flush()
            os.fsync(raw.fileno())
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise
    return os.path.getsize(path)


class Recorder:
    """Records from its making to finish(); without a path it does nothing."""

    def __init__(self, path):
        self.path = path
        self.set_label = None
        if path is None:
            return
        import torch

        self.memory = torch.cuda.memory
        self.set_label = getattr(self.memory, "_set_memory_metadata", None)
        if self.set_label is None:
            print(
                "torch %s sets no labels on memory events: recording without" % torch.__version__,
                file=sys.stderr,
            )
        self.memory._record_memory_history(enabled="all", context=None, max_entries=sys.maxsize)

    def label(self, iteration, phase):
        """From here on this thread's events belong to this iteration and phase."""
        if self.set_label is not None:
            self.set_label("iter=%d;phase=%s" % (iteration, phase))

    def finish(self):
        """Writes the recording and ends it; returns the file's size, 0 when nothing was recorded."""
        if self.path is None:
            return 0
        snapshot = self.memory._snapshot()
        self.memory._record_memory_history(enabled=None)
        return write(snapshot, self.path)
