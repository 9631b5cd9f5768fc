"""Puts libpleat_nccl.so before NCCL's functions (see nccl.c): it is loaded with all its names before torch, and so
before NCCL. Where that is too late, or NCCL is a part of torch, NCCL is left alone, and torch is not to register all
memory.
"""

import ctypes
import os
import pathlib
import sys
import warnings

HERE = pathlib.Path(__file__).resolve().parent

# With either, torch has NCCL register all memory that is there: names of one setting, the first one counts.
HOOKS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")
TRUE = ("1", "t", "true", "y", "yes")


def place():
    """The library's path, or None."""
    asked = os.environ.get("PLEAT_NCCL")
    for path in [pathlib.Path(asked)] if asked else [HERE / "lib/libpleat_nccl.so",
                                                     HERE.parents[2] / "build/release/lib/pleat/libpleat_nccl.so"]:
        if path.is_file():
            return path
    return None


def stand():
    """Before torch is imported. What cannot be loaded is left out: NCCL then works as without it."""
    path = place()
    # A module that is about to be imported is there, and empty.
    if path is not None and not hasattr(sys.modules.get("torch"), "_C"):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            pass


def function(library, name):
    try:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None


def stands():
    """Whether a call of NCCL's by torch's libraries comes to libpleat_nccl.so: it is the first of all that are loaded
    to have the name, and NCCL is a library of its own."""
    try:
        ours = ctypes.CDLL(str(place()), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        ctypes.CDLL("libnccl.so.2", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return False
    first = function(ctypes.CDLL(None), "ncclCommRegister")
    return first is not None and first == function(ours, "ncclCommRegister")


def asked():
    """The name by which the program asks torch to have all memory registered; None: it does not."""
    return next((name for name in HOOKS if os.environ.get(name, "").lower() in TRUE), None)


def settle(library):
    """Of a program that wants all memory registered: what collectives send comes to lie where it can be. Where NCCL
    would register Pleat's window, in which what is behind an address may change, torch is told not to."""
    name = asked()
    if name is None:
        return
    if stands():
        library.pleat_torch_register_all(1)
        return
    for hook in HOOKS:
        os.environ.pop(hook, None)
    warnings.warn(
        "pleat: %s was unset: Pleat cannot tell NCCL here which memory it may register. Start the program by "
        "`pleat run` or with PLEAT=1, or register a torch.cuda.MemPool" % name,
        stacklevel=4,
    )
