"""torch's pluggable allocator with Pleat behind it, for where no shim fits the installed torch and none can be made.

A wheel of Pleat brings its shared object, which knows nothing of torch's classes and so serves every release.
"""

import ctypes
import warnings

from . import _shim

LIBRARY = _shim.SHIMS / "hooks.so"
LOST = (
    "torch.cuda's memory statistics and snapshots, CUDA graphs, torch.compile's reduce-overhead, MemPool, memory "
    "shared with other processes or GPUs, and torch.cuda.OutOfMemoryError (a RuntimeError is raised)"
)
# Setters of torch's class, and the functions of the shared object that they are given; a release may lack some.
FUNCTIONS = (
    ("set_record_stream_fn", "pleat_hooks_record_stream"),
    ("set_base_alloc_fn", "pleat_hooks_base"),
    ("set_reset_fn", "pleat_hooks_empty_cache"),
    ("set_begin_allocate_to_pool", "pleat_hooks_refuse_pool"),
)


def load(reason):
    """The shared object; `reason`, why there is no shim, where there is none of these either."""
    if not LIBRARY.is_file():
        raise reason
    return _shim.opened(LIBRARY)


def take_place(torch, library, reason):
    """Makes it torch's allocator, and says why it is not the shim and what is lost by that."""
    allocator = torch.cuda.memory.CUDAPluggableAllocator(str(LIBRARY), "pleat_hooks_alloc", "pleat_hooks_free")
    for setter, function in FUNCTIONS:
        give = getattr(allocator.allocator(), setter, None)
        if give is not None:
            give(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
    torch.cuda.memory.change_current_allocator(allocator)
    warnings.warn(
        "pleat: without a shim for this torch: %s\nTensors are served all the same, through torch's pluggable "
        "allocator. Not there are: %s" % (str(reason).replace("pleat: ", "", 1), LOST),
        stacklevel=3,
    )
