"""Pleat as PyTorch's CUDA allocator.

    import pleat
    pleat.enable()          # before the first CUDA tensor

Nothing else is needed: an optimizer's step ends an iteration, and what repeats is planned. torch.cuda's functions
(memory_stats, empty_cache, snapshots, graphs, MemPool ...) go on working. `pleat run -- python
train.py` does the same without a change to the program.

Importing this package needs no torch, and costs nothing.
"""

import contextlib
import ctypes
import os
import re
import sys
import threading

from . import memory_saver  # noqa: F401
from ._marks import ALL as _ALL
from ._marks import Steps as _Steps

__all__ = [
    "UnavailableError",
    "canary_errors",
    "enable",
    "enabled",
    "fingerprint",
    "limits",
    "mark_step",
    "max_microbatch",
    "pause",
    "phase",
    "report",
    "resume",
    "save_plan",
    "save_trace",
    "stats",
    "tag",
    "trim",
]
__version__ = "0.1.0"

_CHUNK_BYTES = 2 << 20
_POLICIES = ("pleat", "native", "expandable", "gmlake", "stweaver")


if "_library" not in globals():  # What is enabled stays so where the module is loaded again (importlib.reload).

    class UnavailableError(RuntimeError):
        """Pleat cannot serve this torch, or what its shim is built with is missing; the text says what
        to do. Raised by enable(), which has changed nothing then."""

    _library = None
    _asked = None  # of enable(), which cannot be asked for anything else later
    _saver = None
    _canary = False
    _recomputing = None
    _steps = None
    _phases = {}  # names that the program is in, in any thread, the innermost last, each by a key of its own


def _call(function, *arguments):
    if function(*arguments):
        raise RuntimeError(_library.pleat_torch_failure().decode(errors="replace"))


def _parse_size(text):
    """Bytes of "512", "64k", "2MiB", "1.5GiB" (powers of 1024), as the command takes them. ValueError."""
    number = "%d" % text if isinstance(text, float) and (text == 0 or 1 <= text < 1 << 63) else str(text)
    found = re.fullmatch(r"([0-9]+)(?:(\.[0-9]*)?([kmgt])i?)?b?", number, re.ASCII | re.IGNORECASE)
    if found is None:
        raise ValueError("pleat: %r is no size; write 20GiB, 512MiB or bytes" % (text,))
    whole, part, unit = found.groups()
    scale = 1024 ** ("kmgt".index(unit.lower()) + 1) if unit else 1
    bytes = int(whole) * scale + int(float("0" + (part or "")) * scale)
    # Half a byte is none, and none is all there is.
    if bytes >= 1 << 63 or bytes == 0 and float(whole + (part or "")) != 0:
        raise ValueError("pleat: %r is no size; write 20GiB, 512MiB or bytes" % (text,))
    return bytes


def _parse_budget(text):
    """Bytes of a budget, which are at least a chunk. ValueError."""
    bytes = _parse_size(text)
    if bytes < _CHUNK_BYTES:
        raise ValueError("pleat: %r is a budget of %d bytes: write 20GiB or 512MiB" % (text, bytes))
    return bytes


def enable(
    policy="pleat",
    plan="auto",
    budget=0,
    conf="",
    marks=True,
    save_plan=None,
    record=0,
    canary=False,
    recompute=None,
):
    """Makes Pleat torch's CUDA allocator, for the rest of the process.

    Before the first CUDA tensor: torch takes no other allocator later. `policy` is one of Pleat's ("pleat", "native",
    "expandable" ...); `plan` a plan file, or "auto" to follow the plan that an earlier run of this job left in the
    user's cache, else to learn, and to leave one (setting keep:off: only to learn); `budget` the most bytes of each
    device that Pleat may take, as a number or as "20GiB", 0 or None for all; `conf` Pleat's settings
    ("key:value,...", or a dict {"small": "64k", "learn": False}, else the environment's PLEAT_CONF). `marks`: the
    first optimizer that steps on a device says where an iteration ends there, until another one goes on without it.
    `save_plan`: a file for the plan of what this run does, with which the next run's `plan` starts planned; it is
    written when some iterations were recorded, or at the end. `record` iterations are recorded in any case (see
    save_plan() and save_trace()). In names of plans %r stands for the rank, %w for how many there are, %d for the
    device, and, where it is written, %p for the process; of a name with %w that has no plan for so many ranks none is
    followed. `canary` proves that no two tensors share memory: all of it is filled and verified on the GPU (see
    canary_errors()); slow, and not for programs that capture CUDA graphs. `recompute="auto"` stays within the budget
    by computing some of the model's repeated blocks again in backward, as few as possible; it learns in the first two
    iterations, in which the budget does not hold yet, and needs optimizers' steps, or mark_step(). "offload" may copy
    what blocks save to the host as well.

    TypeError, ValueError or FileNotFoundError: an argument, or the plan, is wrong. UnavailableError: there is no GPU,
    or this torch cannot be served. RuntimeError: torch has an allocator already, or Pleat is enabled with other
    arguments; with these, or by a call without any (a notebook's cell that is run again, a script under `pleat run`),
    nothing is done.
    """
    global _asked, _canary, _library, _recomputing, _saver, _steps
    asked = tuple(locals().values())
    from . import _ends, _given, _hooks, _job, _nccl, _plans, _shim

    _nccl.stand()
    import torch

    if _library is not None:
        if asked in (_asked, enable.__defaults__):
            return
        raise RuntimeError(
            "pleat is enabled already%s, with other arguments: they hold until the process ends (in a "
            "notebook: restart the kernel)" % (", by `pleat run`" if "PLEAT_RUN" in os.environ else "")
        )
    if policy not in _POLICIES:
        raise ValueError("pleat: there is no policy %r; there are: %s" % (policy, " ".join(_POLICIES)))
    budget = 0 if budget in (0, None) else _parse_budget(budget)
    record = _given.count("record", record)
    for name, value in (("marks", marks), ("canary", canary)):
        _given.check_switch(name, value)
    if recompute not in (None, "auto", "offload"):
        raise ValueError("pleat: recompute is None, 'auto' or 'offload', not %r" % (recompute,))
    if recompute and not budget:
        raise ValueError("pleat: recompute needs a budget: enable(recompute='auto', budget='40GiB')")
    plan_is_auto = plan == "auto"
    given = "" if plan in (None, "", "auto") else os.fspath(plan)
    plan = _plans.read(given) if given else ""
    if plan and (_plans.is_told_later(given) or _plans.is_of_another_size(given)):
        plan = ""
    elif plan and not _plans.numbered(plan):
        raise FileNotFoundError("pleat: there is no plan %r" % plan)
    wrong = _plans.cannot_write(save_plan) if save_plan else None
    if wrong:
        raise ValueError("pleat: the plan cannot be saved: " + wrong)
    told = _given.settings(conf)
    conf = _plans.settings(told or os.environ.get("PLEAT_CONF") or "")
    wrong = _job.check(dict(os.environ, PLEAT_CONF=conf), "conf") if conf else None
    if wrong and told:
        wrong = wrong.replace("PLEAT_CONF:", "conf:", 1)
    wrong = wrong or _job.wrong_plan(_plans.of_devices(plan) if plan else [], budget, os.environ)
    if wrong:
        raise ValueError("pleat: " + wrong)
    conf = _plans.completed(conf, canary, plan_is_auto and policy == "pleat" and not recompute)
    _canary = "canary:on" in _plans.split(conf)
    _shim.check(torch)
    if torch.cuda.is_initialized():
        raise RuntimeError(
            "pleat.enable() comes too late: torch uses CUDA already, and keeps its allocator; call it before "
            "the first CUDA tensor (in a notebook: restart the kernel)"
        )
    _shim.check_driver(torch)
    reason = None  # why there is no shim
    try:
        library = _shim.load(torch)
    except UnavailableError as problem:
        reason = problem
        library = _hooks.load(reason)
    _library = library
    try:
        _call(
            library.pleat_torch_enable,
            policy.encode(),
            conf.encode(),
            os.fsencode(plan),
            0 if recompute else budget,
            max(record, _plans.ITERATIONS if save_plan or recompute else 0),
            0 if save_plan or record > _plans.FEW else _plans.FEW_EVENTS,
        )
        if reason is not None:
            _hooks.take_place(torch, library, reason)
    except RuntimeError:
        _library = None
        raise
    _asked = asked
    if given and not plan:
        torch.cuda._lazy_call(lambda: _take_late_plan(given))
    _nccl.settle(library)
    if hasattr(library, "pleat_torch_make_sendable"):
        _send_what_others_can_open(torch)
    if recompute:
        from ._recompute import Recompute, World

        _recomputing = Recompute(torch, budget, World(torch, sys.modules[__name__], recompute == "offload"))
    _ends.at_end(library.pleat_torch_end_logs)
    _ends.at_end(library.pleat_torch_keep_plans)
    if save_plan:
        _saver = _plans.Saver(library, _save_plan, os.path.abspath(save_plan), _fingerprints)
    if marks:
        from torch.optim import optimizer

        _steps = _Steps(_step_ends, _taken)
        optimizer.register_optimizer_step_post_hook(_steps)


def _take_late_plan(name):
    """When CUDA is first used: the rank that reads a plan may have been told since (Ray tells its workers, when they
    run already)."""
    from . import _plans

    plan = _plans.read(name)
    if _plans.numbered(plan):
        _call(_library.pleat_torch_plan, os.fsencode(plan))


def _send_what_others_can_open(torch):
    """Of tensors that are sent to another process (torch.multiprocessing): what they lie in is moved, the first time,
    to memory that the driver lets any process open (see sending.h)."""
    original = torch.UntypedStorage._share_cuda_

    def share(storage, *arguments, **named):
        _call(_library.pleat_torch_make_sendable, storage._cdata)
        return original(storage, *arguments, **named)

    torch.UntypedStorage._share_cuda_ = share


def enabled():
    """Whether Pleat is torch's allocator in this process."""
    return _library is not None


def mark_step(device=_ALL):
    """An iteration ends here, on all devices or on one. Optional: the steps of torch's optimizers say so
    themselves, and nothing any more where a program does."""
    if _library is None:
        return
    device = _index(device)
    if _steps is not None:
        _steps.tell(device)
    _mark([device])


def _step_ends(device, others):
    """An optimizer's step ends an iteration on one device, or on all but `others`, whose optimizers say it
    themselves."""
    import torch

    if device != _ALL:
        _mark_memory([device])
    elif others:
        _mark([each for each in range(torch.cuda.device_count()) if each not in others])
    else:
        _mark([_ALL])


def _taken(device=_ALL):
    """Bytes that were ever asked for, on one device or on all."""
    return _library.pleat_torch_taken(device)


def _mark_memory(devices):
    for device in devices:
        _call(_library.pleat_torch_mark, device)


def _mark(devices):
    _mark_memory(devices)
    if _recomputing is not None:
        _recomputing.mark()
    if _saver is not None:
        _saver.look()


def _enter_phase(name):
    """Tells the runtime where the program is; "": in what is around."""
    if _library is not None:
        _call(_library.pleat_torch_phase, (name or "".join([*_phases.values()][-1:])).encode())


@contextlib.contextmanager
def phase(name):
    """What is allocated inside, by any thread, belongs to a phase of the iteration, by name. Optional. TypeError."""
    if not isinstance(name, str):
        raise TypeError("pleat: a phase is a text, not %r" % (name,))
    key = object()
    _phases[key] = name
    try:
        _enter_phase(name)
        yield
    finally:
        del _phases[key]
        _enter_phase("")


def _index(device):
    """A device's number, of all that torch takes for a device; None: of the one that was used first. ValueError."""
    from . import _given

    if device is None:
        return max(_library.pleat_torch_first_device(), 0)
    if hasattr(device, "__index__"):
        return _given.count("device", device, _ALL, (1 << 31) - 1)
    import torch

    named = torch.device(device)
    if named.type != "cuda":
        raise ValueError("pleat: a device is a GPU such as 0 or 'cuda:0', not %r" % (device,))
    return torch.cuda.current_device() if named.index is None else named.index


def max_microbatch(running, device=None):
    """The largest microbatch that fits in a device's memory, or under its budget, when iterations
    have `running` now, samples or tokens alike; None while that is not known. It is known with a plan
    file made of several microbatches, or while a job is recorded that has run at two. Ask between
    iterations.
    """
    from . import _given

    running = _given.count("running", running, 1, (1 << 64) - 1)
    if _library is None:
        return None
    most = ctypes.c_uint64()
    _call(_library.pleat_torch_max_microbatch, _index(device), running, ctypes.byref(most))
    return most.value or None


def _chosen(device):
    return _used_devices() if device is None else [_index(device)]


def trim(keep=0, device=None):
    """Gives memory that nothing lies on back to the device, until Pleat has at most `keep` bytes of it (a number,
    or "20GiB"); returns how many bytes went. None: of every device that was used.

    It comes back by itself, at the same addresses, when it is wanted: a planned iteration goes on as planned.
    """
    keep = _parse_size(keep)
    total = 0
    for each in _chosen(device) if _library is not None else []:
        given = ctypes.c_uint64()
        _call(_library.pleat_torch_trim, each, keep, ctypes.byref(given))
        total += given.value
    return total


def _tags(tags):
    """The tags as the library takes them, "" for all."""
    return [""] if tags is None else [tags] if isinstance(tags, str) else list(tags)


def pause(offload="host", tags=None, device=None):
    """Gives the memory of live tensors back to the device and keeps their addresses, until resume().

    Of all tensors, or of those allocated with one of `tags` (see tag()): the chunks on which nothing else lies go.
    `offload`: "host" copies what lives to pinned host memory, "discard" copies nothing, and what comes back is
    undefined. Waits for the device. Tensors that are paused may be freed, but not used. RuntimeError: they are
    paused already, or there is no host memory; then nothing is paused, but what was discarded before it failed, of
    several tags or devices, is undefined.
    """
    _want_enabled()
    if offload not in ("host", "discard"):
        raise ValueError("pleat: offload is \"host\" or \"discard\", not %r" % (offload,))
    import torch

    paused = []
    try:
        for each in _chosen(device):
            torch.cuda.synchronize(each)
            for name in _tags(tags):
                _call(_library.pleat_torch_pause, each, offload == "discard", name.encode())
                paused.append((each, name))
    except RuntimeError:
        for each, name in paused:
            _call(_library.pleat_torch_resume, each, name.encode())
        raise


def resume(tags=None, device=None):
    """Brings back what pause() took, at the same addresses. RuntimeError: there is not enough memory now; then it
    stays paused, and may be resumed later."""
    _want_enabled()
    for each in _chosen(device):
        for name in _tags(tags):
            _call(_library.pleat_torch_resume, each, name.encode())


class _Tags(threading.local):
    """The tags that a thread is in, the innermost last."""

    def __init__(self):
        self.names = []


_tagged = _Tags()


@contextlib.contextmanager
def tag(name):
    """`with pleat.tag("weights"):` what this thread allocates inside can be paused by that name. TypeError."""
    if not isinstance(name, str):
        raise TypeError("pleat: a tag is a text, not %r" % (name,))
    _tagged.names.append(name)
    try:
        if _library is not None:
            _call(_library.pleat_torch_tag, name.encode())
        yield
    finally:
        _tagged.names.pop()
        if _library is not None:
            _call(_library.pleat_torch_tag, "".join(_tagged.names[-1:]).encode())


def limits(device=None):
    """How much of a device Pleat may take, and why, as a dict: `limit_bytes`, `name` (what set it: a variable of the
    environment, "the budget" or "the device"), `process_bytes` (what the environment allows the process; 0: no
    limit), `other_bytes` (what the process has that is not Pleat's, private pools among it, measured now; None where
    it cannot be) and `communication_bytes` (what of it NCCL took while communicators started; None without a shim)."""
    _want_enabled()
    values = (ctypes.c_uint64 * 4)()
    name = ctypes.create_string_buffer(64)
    _call(_library.pleat_torch_limits, _index(device), values, name)
    return {
        "limit_bytes": values[0],
        "name": name.value.decode(),
        "process_bytes": values[1],
        "other_bytes": values[2] if values[3] else None,
        "communication_bytes": _communication_bytes(device),
    }


def _communication_bytes(device):
    """What NCCL took while communicators started; None: nobody could tell."""
    if not hasattr(_library, "pleat_torch_communication"):
        return None
    bytes = ctypes.c_uint64()
    _call(_library.pleat_torch_communication, _index(device), ctypes.byref(bytes))
    return bytes.value


def stats(device=None):
    """Pleat's counters of a device, as a dict; {} where it has not served that device. None: of the one that
    this process used first.

    Peaks are since the start. Bytes in private pools (CUDA graphs, MemPool) are torch's own and not
    among them.
    """
    if _library is None:
        return {}
    names = [line.split("\t")[0] for line in _library.pleat_torch_counters().decode().splitlines()]
    values = (ctypes.c_uint64 * len(names))()
    known = ctypes.c_int()
    _call(_library.pleat_torch_stats, _index(device), values, ctypes.byref(known))
    return dict(zip(names, values)) if known.value else {}


def _fingerprints():
    """Of each device that was used."""
    return {device: fingerprint(device) for device in _used_devices()}


def _save_plan(path, fingerprints):
    """`path` may have %r, %w, %d and %p in it."""
    from . import _plans

    first = _library.pleat_torch_first_device()
    if first < 0:
        raise RuntimeError("pleat: nothing was allocated yet")
    for device, one in fingerprints.items():
        write = lambda name: _call(_library.pleat_torch_save, device, b"", os.fsencode(name))  # noqa: B023, E731
        _plans.save(path, device, first, one, write)


def fingerprint(device=None):
    """A hash, as text, of what was recorded on a device: the same in every process that asked for the same memory in
    the same order. Needs a recording (see save_plan())."""
    _want_enabled()
    value = ctypes.c_uint64()
    _call(_library.pleat_torch_fingerprint, _index(device), ctypes.byref(value))
    return "%016x" % value.value


def __dir__():
    return sorted([*__all__, "__version__", "memory_saver"])


def _want_enabled():
    if _library is None:
        raise RuntimeError("pleat is not enabled: call pleat.enable() before the first CUDA tensor")


def _used_devices():
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [device for device in range(torch.cuda.device_count()) if stats(device)]


def save_plan(path):
    """Plans what was recorded so far and writes the plan, for `plan` of the next run's enable().

    Needs enable(record=N) or enable(save_plan=...), and two iterations that are alike. In the name
    %r stands for the rank, %w for how many there are, %d for the device and %p for the process. RuntimeError says why there is no plan.
    """
    _want_enabled()
    _save_plan(os.path.abspath(path), _fingerprints())


def save_trace(path, device=None):
    """Writes what was recorded on a device, for `pleat report`, `pleat plan` and the others."""
    _want_enabled()
    _call(_library.pleat_torch_save, _index(device), os.fsencode(path), b"")


def canary_errors(device=None):
    """What the canary of enable(canary=True) found on a device: (allocations checked, words of 4 bytes
    that were not as they must be, the address of one of them). Waits for the device."""
    _want_enabled()
    index = _index(device)
    if stats(index):
        import torch

        torch.cuda.synchronize(index)
    values = (ctypes.c_uint64 * 3)()
    _call(_library.pleat_torch_canary, index, values)
    return tuple(values)


def report(device=None):
    """What Pleat did on a device, in a few lines; "" where it has not served that device."""
    now = stats(device)
    if not now:
        return ""
    gib = 1 << 30
    physical = now["peak_physical_bytes"]
    requests = now["requests"]
    share = 100 * now["peak_live_bytes"] / physical if physical else 100.0
    text = (
        "pleat: device %d: peak allocated %.3f GiB, physical %.3f GiB (%.2f %% of it in use); "
        "%d request%s, %.1f %% of them planned"
        % (
            _index(device),
            now["peak_live_bytes"] / gib,
            physical / gib,
            share,
            requests,
            "" if requests == 1 else "s",
            100 * (now["planned"] + now["lane"]) / requests if requests else 0,
        )
    )
    if now.get("kept_plans"):
        left = now["left_at"]
        text += "; it began with the plan of an earlier run" + (
            ", and left it at request %d: the job is another one" % left if left else "")
    return text + ("\npleat: canary: " + _canary_text(device) if _canary else "")


def _canary_text(device):
    try:
        checked, words, first = canary_errors(device)
    except RuntimeError as problem:
        # The device answers no more: the program may have failed there.
        return "it cannot be asked: %s" % str(problem).splitlines()[0]
    text = "%d allocation%s checked, %d error%s" % (checked, "" if checked == 1 else "s", words, "" if words == 1 else "s")
    return text + (", one of them at %#x" % first if words else "")
