"""torch.func.functional_call runs a module with other weights than it has, which are not in their places any more when
backward would compute a block of it again: within such a call nothing is."""

import contextlib
import threading

from .scripted import ORIGINAL, stand_in

_thread = threading.local()  # .calls: in how many this thread is


def is_within():
    return getattr(_thread, "calls", 0) > 0


def install(torch):
    stateless = torch.nn.utils.stateless
    swaps = stateless._reparametrize_module
    if hasattr(swaps, ORIGINAL):
        return

    @stand_in(swaps)
    @contextlib.contextmanager
    def counts(module, tensors, *arguments, **keywords):
        own = dict([*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)])
        others = any(own.get(name) is not one for name, one in tensors.items())
        _thread.calls = getattr(_thread, "calls", 0) + others
        try:
            with swaps(module, tensors, *arguments, **keywords):
                yield
        finally:
            _thread.calls -= others

    stateless._reparametrize_module = counts
