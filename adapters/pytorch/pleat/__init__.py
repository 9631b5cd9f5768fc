"""Pleat as PyTorch's CUDA allocator.

    import pleat
    pleat.enable()          # before the first CUDA tensor

Nothing else is needed: Pleat finds the iteration that repeats and plans it. torch.cuda's functions
(memory_stats, empty_cache, snapshots, graphs, MemPool ...) go on working. `pleat run -- python
train.py` does the same without a change to the program.

Importing this package needs no torch, and costs nothing.
"""

import contextlib
import ctypes
import os
import weakref

__all__ = ["enable", "enabled", "mark_step", "phase", "pair_nanoseconds", "stats"]
__version__ = "0.1.0"

_library = None


def _call(function, *arguments):
    if function(*arguments):
        raise RuntimeError(_library.pleat_torch_failure().decode(errors="replace"))


def parse_size(text):
    """Bytes of "512", "64k", "2MiB", "1.5GiB" (powers of 1024). ValueError."""
    number = str(text).strip().lower()
    for tail in ("ib", "b"):
        if number.endswith(tail):
            number = number[: -len(tail)]
            break
    scale = 1
    if number[-1:] in ("k", "m", "g", "t"):
        scale = 1024 ** ("kmgt".index(number[-1]) + 1)
        number = number[:-1]
    bytes = int(float(number) * scale)
    if bytes < 0:
        raise ValueError("a size is not negative: %r" % text)
    return bytes


def enable(policy="pleat", plan="auto", budget=0, conf="", marks=True):
    """Makes Pleat torch's CUDA allocator, for the rest of the process.

    Before the first CUDA tensor: torch takes no other allocator later. `policy` is one of Pleat's
    ("pleat", "native", "expandable" ...); `plan` a plan file, or "auto" to learn; `budget` the most
    bytes of each device that Pleat may take, as a number or as "20GiB", 0 for all; `conf` Pleat's
    settings ("key:value,...", else the environment's PLEAT_CONF). `marks`: the first optimizer that
    steps says where an iteration ends.
    """
    global _library
    import torch

    from . import _shim

    if _library is not None:
        raise RuntimeError("pleat is enabled already")
    if plan not in (None, "", "auto") and not os.path.isfile(plan):
        raise FileNotFoundError("pleat: there is no plan %r" % plan)
    _library = _shim.load(torch)
    try:
        _call(
            _library.pleat_torch_enable,
            policy.encode(),
            (conf or os.environ.get("PLEAT_CONF") or "").encode(),
            b"" if plan in (None, "", "auto") else os.fsencode(plan),
            parse_size(budget),
        )
    except RuntimeError:
        _library = None
        raise
    if marks:
        _mark_with_optimizer()


def enabled():
    """Whether Pleat is torch's allocator in this process."""
    return _library is not None


def _mark_with_optimizer():
    from torch.optim import optimizer

    first = []

    def stepped(stepping, *_):
        if not first:
            first.append(weakref.ref(stepping))
        if first[0]() is stepping:
            mark_step()
        elif first[0]() is None:
            first[0] = weakref.ref(stepping)

    optimizer.register_optimizer_step_post_hook(stepped)


def mark_step(device=-1):
    """An iteration begins here (on all devices). Optional: Pleat finds iterations by itself."""
    if _library is not None:
        _call(_library.pleat_torch_mark, device)


@contextlib.contextmanager
def phase(name):
    """What is allocated inside belongs to a phase of the iteration, by name. Optional."""
    if _library is not None:
        _call(_library.pleat_torch_phase, name.encode())
    try:
        yield
    finally:
        if _library is not None:
            _call(_library.pleat_torch_phase, b"")


def stats(device=0):
    """Pleat's counters of a device, as a dict; {} where it has not served that device.

    Peaks are since the start. Bytes in private pools (CUDA graphs, MemPool) are torch's own and not
    among them.
    """
    if _library is None:
        return {}
    names = [line.split("\t")[0] for line in _library.pleat_torch_counters().decode().splitlines()]
    values = (ctypes.c_uint64 * len(names))()
    known = ctypes.c_int()
    _call(_library.pleat_torch_stats, device, values, ctypes.byref(known))
    return dict(zip(names, values)) if known.value else {}


def pair_nanoseconds(bytes, rounds=100000):
    """Nanoseconds of one allocation and free of `bytes` through torch's allocator in use."""
    if _library is None:
        raise RuntimeError("pleat is not enabled")
    result = ctypes.c_double()
    _call(_library.pleat_torch_pair_ns, bytes, rounds, ctypes.byref(result))
    return result.value


def report(device=0):
    """What Pleat did on a device, in a few lines; "" where it has not served that device."""
    now = stats(device)
    if not now:
        return ""
    gib = 1 << 30
    physical = now["peak_physical_bytes"]
    requests = now["requests"]
    share = 100 * now["peak_live_bytes"] / physical if physical else 100.0
    return (
        "pleat: device %d: peak allocated %.3f GiB, physical %.3f GiB (%.2f %% of it in use); "
        "%d requests, %.1f %% of them planned"
        % (
            device,
            now["peak_live_bytes"] / gib,
            physical / gib,
            share,
            requests,
            100 * (now["planned"] + now["lane"]) / requests if requests else 0,
        )
    )
