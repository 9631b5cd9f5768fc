"""What is done when a process ends, also in one that multiprocessing forks: that ends without atexit's
handlers. Training that a notebook's launcher starts, for one, runs in such processes.
"""

import atexit
import multiprocessing
import os
import sys
from multiprocessing import util


class End:
    """Calls `function` once in a process, and not where a fork has a GPU's memory from its parent: what is
    to be told and written of that is the parent's to do."""

    def __init__(self, function):
        self.function = function
        self.process = None  # in which it was called

    def __call__(self):
        if self.process == os.getpid() or is_left():
            return
        self.process = os.getpid()
        self.function()


_ends = []


def is_left():
    torch = sys.modules.get("torch")
    asked = getattr(getattr(torch, "_C", None), "_cuda_isInBadFork", None)
    return asked is not None and asked()


def _finalize(end):
    # In the child's registry: its parent's is cleared, and so may be atexit's.
    util.Finalize(None, end, exitpriority=0)


def at_end(function):
    """Calls `function` at the end of this process and of those that are forked from it. Later ones first."""
    end = End(function)
    _ends.append(end)
    atexit.register(end)
    util.register_after_fork(end, _finalize)
    if multiprocessing.parent_process() is not None:
        _finalize(end)
    return end
