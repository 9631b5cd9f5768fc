"""Records a job's allocations as a torch memory snapshot that any Python can load.

The snapshot is torch's own (torch.cuda.memory._record_memory_history and _snapshot), without stacks
and with values of built-in types only, pickled and gzipped. Each event carries the label of the
thread that caused it, "iter=N;phase=P;mb=M;module=NAME", which `pleat import` reads as iteration,
phase, microbatch and the module that is at work; the last two only where the job says them. Autograd
runs backward on threads of its own, whose events carry a label while a watched module's backward
runs, and none otherwise: they are what the labelled thread started.
"""

import contextlib
import gzip
import io
import os
import pickle
import secrets
import sys
import threading

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


@contextlib.contextmanager
def whole(path):
    """A file to write, which takes the place of `path` when it is whole and on the disk, or not at all. One that is
    there keeps its permissions, and no link is followed that waits under the name written first. A pipe or a device
    is written into."""
    if os.path.exists(path) and not os.path.isfile(path):
        with open(path, "wb") as raw:
            yield raw
        return
    partial = "%s.%s.part" % (path, secrets.token_hex(8))
    with open(partial, "xb") as raw:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.fchmod(raw.fileno(), os.stat(path).st_mode & 0o777)
            yield raw
            raw.flush()
            os.fsync(raw.fileno())
            os.replace(partial, path)
        except BaseException:
            os.unlink(partial)
            raise


def write(snapshot, path):
    """Writes the plain snapshot to `path`, gzipped; returns its size."""
    packed = io.BytesIO()
    # No name and no time in the header: the same snapshot gives the same bytes.
    with gzip.GzipFile("", "wb", 9, packed, mtime=0) as out:
        pickle.dump(plain(snapshot), out, protocol=4)
    with whole(path) as raw:
        return raw.write(packed.getbuffer())


class Labels:
    """Where a job is. Whoever records sets `set_label`, which takes the text for the thread that calls it."""

    set_label = None

    def __init__(self):
        self.where = ""  # of the thread that says label(), and of what it starts
        self.teller = None
        self.within = threading.local()  # .names: watched modules at work, the innermost last

    def label(self, iteration, phase, microbatch=None):
        """From here on this thread's events belong to this iteration, phase and microbatch."""
        self.where = "iter=%d;phase=%s" % (iteration, phase)
        if microbatch is not None:
            self.where += ";mb=%d" % microbatch
        self.teller = threading.get_ident()
        self.tell()

    def names(self):
        """A thread's; what an earlier label left over is gone with it."""
        if getattr(self.within, "where", None) != self.where:
            self.within.where, self.within.names = self.where, []
        return self.within.names

    def tell(self):
        if self.set_label is None:
            return
        names = self.names()
        if names:
            self.set_label("%s;module=%s" % (self.where, names[-1]))
        else:
            # A thread of autograd's keeps no label of an iteration that will be over.
            self.set_label(self.where if threading.get_ident() == self.teller else "")

    def enter(self, name):
        self.names().append(name)
        self.tell()

    def leave(self, name):
        """Backwards of modules do not end in the order in which they began."""
        names = self.names()
        if name in names:
            del names[len(names) - 1 - names[::-1].index(name)]
        self.tell()

    def watch(self, model):
        """From here on events say which of the model's modules is at work, in forward and in backward."""
        if self.set_label is None:
            return
        for name, module in model.named_modules():
            if name and ";" not in name:
                self.watch_one(name, module)

    def watch_one(self, name, module):
        # Hooks of tensors: a module's own for its backward put views around its tensors.
        def done(_module, args, kwargs, output):
            self.leave(name)
            made, given = first_with_gradient(output), first_with_gradient((args, kwargs))
            if made is not None:
                made.register_hook(lambda _gradient: self.enter(name))
            if made is not None and given is not None:
                given.register_hook(lambda _gradient: self.leave(name))

        module.register_forward_pre_hook(lambda *_: self.enter(name))
        module.register_forward_hook(done, with_kwargs=True)


def first_with_gradient(value):
    """The first tensor of what a module was given or returns that autograd comes by; no parameter, which
    would keep what is hooked to it."""
    import torch

    if isinstance(value, torch.Tensor):
        return value if value.requires_grad and not isinstance(value, torch.nn.Parameter) else None
    if isinstance(value, dict):
        value = tuple(value.values())
    parts = map(first_with_gradient, value) if isinstance(value, (list, tuple)) else ()
    return next((one for one in parts if one is not None), None)


class Recorder(Labels):
    """Records from its making to finish(); without a path it does nothing."""

    def __init__(self, path):
        super().__init__()
        self.path = path
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

    def finish(self):
        """Writes the recording and ends it; returns the file's size, 0 when nothing was recorded."""
        if self.path is None:
            return 0
        snapshot = self.memory._snapshot()
        self.memory._record_memory_history(enabled=None)
        return write(snapshot, self.path)
