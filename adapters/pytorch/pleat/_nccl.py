"""Puts libpleat_nccl.so before NCCL's functions (see nccl.c): it is loaded with all its names before torch, and so
before NCCL. Where that is too late, or NCCL is a part of torch, NCCL is left alone, and torch is not to register all
memory. A program that loads NCCL itself, by ctypes, as vLLM and SGLang do, is given those functions too.
"""

import ctypes
import functools
import os
import sys
import warnings

from . import _parts

# With either, torch has NCCL register all memory that is there: names of one setting, the first one counts.
HOOKS = ("TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK")
TRUE = ("1", "t", "true", "y", "yes")


def stand():
    """Before torch is imported. What cannot be loaded is left out: NCCL then works as without it."""
    path = _parts.place("PLEAT_NCCL")
    # A module that is about to be imported is there, and empty.
    if path is not None and not hasattr(sys.modules.get("torch"), "_C"):
        try:
            show(ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL))
        except OSError:
            pass


def show(ours):
    """From now on, whoever asks ctypes for a function of NCCL gets the one that stands before it, if that would go on
    to the very function asked for: a second NCCL in the process is left alone."""
    known = ctypes.CDLL.__getitem__
    if getattr(known, "of_pleat", False):
        return
    own = ours.pleat_nccl_own
    own.restype, own.argtypes = ctypes.c_void_p, [ctypes.c_char_p]

    @functools.wraps(known)
    def getitem(library, name):
        found = known(library, name)
        if not isinstance(name, str) or not name.startswith("nccl") or library._handle == ours._handle:
            return found
        if function(ours, name) is None or own(name.encode()) != function(library, name):
            return found
        found = library._FuncPtr((name, ours))
        found.__name__ = name
        return found

    getitem.of_pleat = True
    ctypes.CDLL.__getitem__ = getitem


def function(library, name):
    """Its address in the library itself, whatever show() has ctypes give for it."""
    try:
        return ctypes.cast(library._FuncPtr((name, library)), ctypes.c_void_p).value
    except (AttributeError, OSError):
        return None


def stands():
    """Whether a call of NCCL's by torch's libraries comes to libpleat_nccl.so: it is the first of all that are loaded
    to have the name, and NCCL is a library of its own."""
    try:
        ours = ctypes.CDLL(str(_parts.place("PLEAT_NCCL")), mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
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
