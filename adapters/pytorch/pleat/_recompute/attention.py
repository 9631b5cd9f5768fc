"""Fused attention within a block's forward: found, and not computed again where a block is computed again but for it.

While a block runs, torch.nn.functional.scaled_dot_product_attention is one that asks what this thread does with its
calls; behind the block it is torch's own again. Below autograd the operator of a call (FlashAttention's, cuDNN's ...)
returns what it returned in the first run: autograd saves that as it would have, and all else runs as in a second run.
"""

import contextlib
import functools
import threading
import time

from .offload import tensors

TRIES = 8
OTHER_BYTES = 32 << 20  # more than caches that are a core's own, and a good part of the last
_thread = threading.local()  # .around: what becomes of this thread's calls, or None
_lock = threading.Lock()
_users = 0  # blocks that run
_original = None


def _asks(*arguments, **keywords):
    around = getattr(_thread, "around", None)
    if around is None:
        return _original(*arguments, **keywords)
    return around(functools.partial(_original, *arguments, **keywords))


@contextlib.contextmanager
def intercepted(torch, around):
    """Inside, `around` is called in the place of this thread's calls of attention, with the call."""
    global _original, _users
    functional = torch.nn.functional
    with _lock:
        if functional.scaled_dot_product_attention is not _asks:
            _original = functional.scaled_dot_product_attention
            functional.scaled_dot_product_attention = _asks
        _users += 1
    outer, _thread.around = getattr(_thread, "around", None), around
    try:
        yield
    finally:
        _thread.around = outer
        with _lock:
            _users -= 1
            if _users == 0 and functional.scaled_dot_product_attention is _asks:
                functional.scaled_dot_product_attention = _original


def _is_attention(operator):
    return operator.overloadpacket.__name__.startswith("_scaled_dot_product_") and not operator._schema.is_mutable


def _note(torch, results):
    """What an operator returned: tensors, numbers, and None for a tensor that it left undefined (of FlashAttention's
    and cuDNN's the lengths of sequences and the mask for debugging)."""
    if not isinstance(results, (tuple, list)):
        raise TypeError("attention returned %s" % type(results).__name__)
    # Autograd makes what is returned its own: another tensor of the same storage is kept.
    return [one.detach() if isinstance(one, torch.Tensor) else one for one in results]


@functools.lru_cache(maxsize=None)
def _modes(torch):
    """What stands between autograd and the operators of a call: one notes results, one gives them back. A result that
    cannot be kept is told to `failed`, and is computed again."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Noting(TorchDispatchMode):
        def __init__(self, noted, failed):
            super().__init__()
            self.noted, self.failed = noted, failed

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            results = operator(*args, **(kwargs or {}))
            if _is_attention(operator):
                try:
                    self.noted.append(_note(torch, results))
                except Exception as problem:
                    self.noted.append(None)
                    self.failed(problem)
            return results

    class Giving(TorchDispatchMode):
        def __init__(self, noted):
            super().__init__()
            self.noted = noted

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            noted = self.noted.pop(0) if self.noted and _is_attention(operator) else None
            return operator(*args, **(kwargs or {})) if noted is None else tuple(noted)

    return Noting, Giving


KERNELS = ("flash", "mem_efficient", "math", "cudnn")


def kernels(torch):
    """Which of its kernels attention may choose among (torch.nn.attention.sdpa_kernel), and in what order."""
    order = getattr(torch._C, "_get_sdp_priority_order", None)
    return [getattr(torch.backends.cuda, "%s_sdp_enabled" % name)() for name in KERNELS], order and order()


def use_kernels(torch, chosen):
    if kernels(torch) == chosen:
        return
    for name, is_on in zip(KERNELS, chosen[0]):
        getattr(torch.backends.cuda, "enable_%s_sdp" % name)(is_on)
    if chosen[1]:
        torch._C._set_sdp_priority_order(chosen[1])


class Kept:
    """What attention left in one forward of a block, call by call. A second run takes it, and a third one, of a graph
    that was retained, computes it again. So does a second one where the block has changed it in place since, or where
    something could not be kept: `failed` is called with the exception."""

    def __init__(self, torch, failed):
        self.torch = torch
        self.failed = failed
        self.noting, self.giving = _modes(torch)
        self.calls = []  # of each: what was noted, what tells whether it changed, and random numbers' states behind it
        self.next = 0

    def states(self, call):
        """The host's, and that of the device on which a call computes, which need not be the current one."""
        torch = self.torch
        device = next(tensors(torch, (call.args, call.keywords))).device
        used = device.type == "cuda" and torch.cuda.is_initialized()
        return torch.get_rng_state(), device, torch.cuda.get_rng_state(device) if used else None

    def first(self):
        return intercepted(self.torch, self.note)

    def note(self, call):
        noted = []
        with self.noting(noted, self.failed):
            result = call()
        # Dropout within attention draws random numbers, which a second run must not draw again.
        draws = noted and (call.keywords.get("dropout_p") or (call.args[4] if len(call.args) > 4 else 0))
        states = None
        if draws:
            try:
                states = self.states(call)
            except RuntimeError as problem:  # while a graph is captured
                noted = []
                self.failed(problem)
        # Above autograd a change in place counts for a detached tensor as well; below, that has a count of its own.
        self.calls.append((noted, (result.detach(), result._version) if noted else None, states))
        return result

    def again(self):
        self.next = 0
        return intercepted(self.torch, self.give)

    def give(self, call):
        noted, seen, states = self.calls[self.next] if self.next < len(self.calls) else ([], None, None)
        self.next += 1
        is_there = bool(noted)
        if is_there and seen[0]._version != seen[1]:
            noted = []
        with self.giving(noted):
            result = call()
        if is_there and states is not None:
            host, device, state = states
            self.torch.set_rng_state(host)
            if state is not None:
                self.torch.cuda.set_rng_state(state, device)
        return result


def overhead_ns(torch):
    """What keeping a call takes of the host, for next to nothing to compute: both runs, over two that keep nothing. As
    between a model's other operators nothing of it is in the processor's caches."""
    part = torch.zeros(1, 1, 2, 8, requires_grad=True)
    other = torch.zeros(OTHER_BYTES, dtype=torch.uint8)

    def timed(keeps):
        kept = Kept(torch, lambda problem: None) if keeps else None
        spent = 0
        for around in (kept.first, kept.again) if keeps else (contextlib.nullcontext,) * 2:
            other.add_(1)
            began = time.perf_counter_ns()
            with around():
                torch.nn.functional.scaled_dot_product_attention(part, part, part)
            spent += time.perf_counter_ns() - began
        return spent

    timed(True)
    found = [sorted(timed(keeps) for _ in range(TRIES))[TRIES // 2] for keeps in (True, False)]
    return max(found[0] - found[1], 0)
