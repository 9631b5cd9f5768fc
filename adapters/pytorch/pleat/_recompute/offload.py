"""What blocks save for backward, in host memory meanwhile.

When a block's forward has ended, what it saved is copied beside what runs next. By the end of a later block, its
`until`, the copies are over, and the memory goes; when that block's backward begins they are fetched, beside the
backwards of the blocks between. On the device all this is ordered by events, and the host waits for nothing.

Inputs, parameters and buffers stay, as others hold them, and so do small tensors. FSDP gathers a layer's parameters
within its forward and frees their memory behind it, under the same storages: those stay as well, and are gathered
again before backward. Host memory is pinned, and kept for the next forward. What cannot leave stays on the device.
"""

import contextlib
import weakref

SMALLEST = 1 << 20  # bytes: what a link copies while a copy begins and ends is a fifth of that
ALIGNMENT = 512


def tensors(torch, value):
    """All that an argument or a result is made of."""
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, dict):
            waiting += reversed(list(one.values()))
        elif isinstance(one, (list, tuple)):
            waiting += reversed(one)


class Copies:
    """Of a CUDA device, on a stream of their own."""

    kind = "cuda"

    def __init__(self, torch):
        self.torch = torch
        self.streams = {}

    def host(self, bytes):
        return self.torch.empty(bytes, dtype=self.torch.uint8, pin_memory=True)

    def copy(self, pairs, device):
        """Enqueues copies of (to, from), behind what is enqueued on the current stream; returns what to wait for."""
        torch = self.torch
        stream = self.streams.get(device)
        if stream is None:
            stream = self.streams[device] = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream), torch.no_grad():
            for to, source in pairs:
                to.copy_(source, non_blocking=True)
        return stream.record_event()

    def wait(self, event, device):
        self.torch.cuda.current_stream(device).wait_event(event)


class Stored:
    """A storage of which saved tensors are made."""

    def __init__(self, bytes, moving):
        self.data = bytes  # a tensor of all of its bytes; None while they are on the host alone
        self.bytes = len(bytes)
        self.saved = weakref.WeakSet()
        self.moving = moving
        self.host = None  # its copy; None where it stays

    def is_whole(self):
        """Whether its memory is there: who made a storage may free that and keep the storage."""
        return self.data.untyped_storage().nbytes() == self.bytes

    def leave(self):
        for saved in self.saved:
            saved.look()
            saved.counted = None
        self.data = None


class Saved:
    """What autograd holds in the place of a tensor."""

    def __init__(self, tensor, stored):
        self.stored = stored
        self.dtype = tensor.dtype
        self.place = tensor.size(), tensor.stride(), tensor.storage_offset()
        # Others of the storage may be saved before a change in place and behind it, and need not share a count.
        self.counted, self.version = tensor.detach(), tensor._version
        self.changed = False  # since it was saved, and before it left
        stored.saved.add(self)

    def look(self):
        if self.counted is not None:
            self.changed = self.counted._version != self.version

    def tensor(self, torch):
        with torch.no_grad():
            return self.stored.data.view(self.dtype).as_strided(*self.place)


class Moving:
    """One forward's."""

    def __init__(self, home):
        self.home = home
        self.stored = []  # references to what autograd may hold
        self.arena = self.device = None
        self.leaving, self.left = [], None  # what is copied to the host, and its event
        self.arriving, self.arrived = [], None

    def __del__(self):
        if self.arena is not None:
            self.home.arenas.append(self.arena)


class Offload:
    """A process's. `copies`: Copies, or what is like it; `failed` is called with an exception because of which
    something did not leave."""

    def __init__(self, torch, copies, failed):
        self.torch = torch
        self.copies = copies
        self.failed = failed
        self.arenas = []  # pinned memory that no forward has
        self.waiting = {}  # number of a block: forwards that have left by its end
        self.fetching = []

    # ---- forward ----

    @contextlib.contextmanager
    def saving(self, module, arguments, until):
        """Around a block's forward."""
        held = self.storages(module.parameters(), module.buffers(), tensors(self.torch, arguments))
        moving = Moving(self)
        stored = {}

        def pack(tensor):
            if not self.can_move(tensor):
                return tensor
            key = tensor.untyped_storage()._cdata
            if key in held:
                return tensor
            if key not in stored:
                try:
                    stored[key] = Stored(self.bytes_of(tensor), moving)
                except Exception as problem:
                    self.failed(problem)
                    return tensor
            return Saved(tensor, stored[key])

        with self.torch.autograd.graph.saved_tensors_hooks(pack, self.unpack):
            yield
        held = self.storages(module.parameters())  # gathered meanwhile, and not freed yet
        moving.stored = [weakref.ref(one) for key, one in stored.items() if key not in held]
        stored.clear()
        try:
            if self.send(moving):
                self.waiting.setdefault(until, []).append(moving)
        except Exception as problem:
            self.failed(problem)

    def storages(self, *parts):
        return {one.untyped_storage()._cdata for part in parts for one in part if self.can_move(one)}

    def can_move(self, tensor):
        """Whether it lies in a large storage of the device, and there as its type and strides say: what is made of
        other tensors (DTensor) does not."""
        if self.torch.utils._python_dispatch.is_traceable_wrapper_subclass(tensor):
            return False
        if tensor.device.type != self.copies.kind or tensor.layout != self.torch.strided or tensor.is_quantized:
            return False
        bytes = tensor.untyped_storage().nbytes()
        return (bytes >= SMALLEST and bytes % tensor.element_size() == 0 and not tensor.is_conj()
                and not tensor.is_neg())

    def bytes_of(self, tensor):
        """Its storage."""
        with self.torch.no_grad():
            count = tensor.untyped_storage().nbytes() // tensor.element_size()
            return tensor.as_strided((count,), (1,), 0).view(self.torch.uint8)

    def alive(self, moving):
        return [one for one in (reference() for reference in moving.stored) if one is not None]

    def send(self, moving):
        alive = [one for one in self.alive(moving) if one.is_whole()]
        if not alive:
            return False
        self.take_arena(moving, sum(self.room(one) for one in alive))
        at, pairs = 0, []
        moving.device = alive[0].data.device
        for one in alive:
            one.host = moving.arena[at : at + one.bytes]
            at += self.room(one)
            pairs.append((one.host, one.data))
        moving.left = self.copies.copy(pairs, moving.device)
        moving.leaving = [one.data for one in alive]
        return True

    def room(self, stored):
        return (stored.bytes + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def take_arena(self, moving, bytes):
        """Pinned memory."""
        fitting = [arena for arena in self.arenas if len(arena) >= bytes]
        if fitting:
            arena = min(fitting, key=len)
            self.arenas = [one for one in self.arenas if one is not arena]
        else:
            self.arenas = self.arenas[1:]  # none is long enough: the oldest one goes
            arena = self.copies.host(bytes)
        moving.arena = arena

    def passed(self, number, result):
        """A block's forward has ended: what is to have left by now goes, and comes back before its backward."""
        moved = self.waiting.pop(number, None)
        if moved is None:
            return
        for moving in moved:
            self.release(moving)
        references = [weakref.ref(moving) for moving in moved]
        for tensor in tensors(self.torch, result):
            if tensor.requires_grad and tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self.fetch_all(references))
                return

    def release(self, moving):
        try:
            self.copies.wait(moving.left, moving.device)
        except Exception as problem:
            self.failed(problem)
            return
        for one in self.alive(moving):
            if one.host is not None and one.is_whole():
                one.leave()
        moving.leaving = []

    # ---- backward ----

    def fetch_all(self, references):
        for moving in (reference() for reference in references):
            if moving is None:
                continue
            try:
                self.fetch(moving)
            except Exception as problem:  # no memory yet: asked for again when it is needed
                self.failed(problem)

    def fetch(self, moving):
        away = [one for one in self.alive(moving) if one.data is None]
        if not away:
            return
        here = [self.torch.empty(one.bytes, dtype=self.torch.uint8, device=moving.device) for one in away]
        moving.arrived = self.copies.copy([(to, one.host) for to, one in zip(here, away)], moving.device)
        moving.arriving = here
        for to, one in zip(here, away):
            one.data = to
        self.fetching.append(moving)

    def arrive(self, moving):
        self.copies.wait(moving.arrived, moving.device)
        moving.arriving, moving.arrived = [], None
        self.fetching = [one for one in self.fetching if one is not moving]

    def unpack(self, saved):
        if not isinstance(saved, Saved):
            return saved
        stored = saved.stored
        if stored.data is None:
            self.fetch(stored.moving)
        if stored.moving.arrived is not None:
            self.arrive(stored.moving)
        saved.look()
        if saved.changed:
            raise RuntimeError("one of the variables needed for gradient computation has been modified by an inplace "
                               "operation")
        return saved.tensor(self.torch)

    # ---- iterations ----

    def end(self):
        """An iteration has ended: what waits for a block that did not run goes, and so does what nobody fetched."""
        for moved in self.waiting.values():
            for moving in moved:
                self.release(moving)
        self.waiting = {}
        for moving in list(self.fetching):
            self.arrive(moving)
