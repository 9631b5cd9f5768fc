"""In a program under `pleat estimate`: tensors without contents, and what was allocated for them.

torch's fake tensors have shapes, lives and a device, and take no memory. All on the GPU are such, and the large
ones of the host, a model that is built there for instance. Small ones of the host are real, so that batches are
read and lengths drawn as always. What each operator returns on the GPU is an allocation of its storage; its free
comes when Python or autograd lets go of it. Of what kernels take for themselves cuBLAS's workspaces are counted,
one a thread that multiplies, as torch takes them. Where sizes depend on values, _contents.py has these.
"""

import atexit
import ctypes
import functools
import gc
import os
import sys
import threading
import time
import weakref

from . import (_checkpoints, _collectives, _contents, _data, _ends, _errors, _recording, _safetensors, _statistics,
               _stderr)

MIB = 1 << 20
# Of aten's operators those of recurrent layers.
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# Those that are made of others for all devices and have a gradient of their own. What they are made of reads the lengths,
# which are on the host.
MADE_OF_OTHERS = ("_pack_padded_sequence",)
# Of aten's operators those that ask torch for cuBLAS's handle, which has a workspace.
MULTIPLIES = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_addmm_activation", "addmv", "mv")
REAL_BYTES_MOST = MIB  # of a tensor that is made on the host
ALLOCATION_US = 30  # from one allocation to the next, as on an H200's host (D507)
SEEN = "_pleat_seen"  # of a storage on the GPU
ADDRESS = "_pleat_address"  # of a storage without contents
PINNED = "_pleat_pinned"  # of one on the host without contents
LETTING_GO = 0.1  # seconds that threads have at the end, before Python goes


class Lock:
    """Of the recorder; the thread that has it may take it again. Python collects no garbage while it is held: what is
    collected may wait for a lock of the program's, and the thread that has that one for this one."""

    def __init__(self):
        self.lock = threading.RLock()
        self.depth, self.collects = 0, False  # how often it is held; whether Python collected garbage before

    def acquire(self):
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1:
            self.collects = gc.isenabled()
            gc.disable()

    def release(self):
        self.depth -= 1
        if not self.depth and self.collects:
            gc.enable()
        self.lock.release()

    def __enter__(self):
        self.acquire()

    def __exit__(self, *_):
        self.release()


def rounded(bytes):
    """As torch's allocator rounds requests."""
    return (bytes + 511) // 512 * 512


class Recorder:
    """Events of storages that come and go, as torch's own recorder has them. Each thread adds its own."""

    def __init__(self, path, live=None, begun=None):
        """path: the recording's; live: where live bytes are to be seen; begun: called before the first allocation, and when
        an iteration ends, with how many did."""
        self.live = ctypes.c_size_t() if live is None else live
        self.begun = begun or (lambda iterations: None)
        self.lock = Lock()  # a storage may end while an event is added; threads come one after the other
        self.recording = _recording.Recording(path)
        self.us = 0  # on the recording's clock
        self.ends = {}  # storage's key -> what tells its end
        self.address = 1 << 40
        self.statistics = _statistics.Statistics()
        self.iterations = 0
        self.workspaces = set()  # threads that have one

    def add(self, action, address, bytes):
        is_last = self.recording.add({"action": action, "addr": address, "size": bytes, "stream": 0,
                                      "time_us": self.us, "user_metadata": "iter=%d" % self.iterations})
        if is_last:
            _stderr.say("pleat estimate: %d events of iterations 1 to %d are recorded, which is the most: what comes later is "
                        "not among the figures" % (_recording.EVENTS_MOST, 1 + self.iterations))

    def place(self, bytes):
        """Addresses that nothing else has."""
        with self.lock:
            address = self.address
            self.address += rounded(bytes) + 512
            return address

    def allocate(self, bytes):
        with self.lock:
            if not self.recording.count:
                self.tell()
            if self.recording.failure is not None:
                raise _errors.Refusal("the recording cannot be written: %s (TMPDIR may name another folder)"
                                      % self.recording.failure)
            address = self.place(bytes)
            self.us += ALLOCATION_US
            self.live.value += rounded(bytes)
            for counter, amount in self.statistics.of(bytes, rounded(bytes)):
                counter.add(amount)
            self.add("alloc", address, bytes)
            return address

    def free(self, address, bytes):
        self.live.value -= rounded(bytes)
        for counter, amount in self.statistics.of(bytes, rounded(bytes)):
            counter.take(amount)
        self.add("free_requested", address, bytes)
        self.add("free_completed", address, bytes)

    def end(self, key, address, bytes):
        with self.lock:
            self.ends.pop(key, None)  # write() may have come first
            self.free(address, bytes)

    def seen(self, storage):
        """A storage is on the GPU; of one that was there with another size the old memory goes when the new is there."""
        key, bytes = storage._cdata, storage.nbytes()
        with self.lock:
            before = self.ends.get(key)
            if before is not None and before.peek()[2][2] == bytes:
                return
            if bytes:
                address = self.allocate(bytes)
                self.ends[key] = weakref.finalize(storage, self.end, key, address, bytes)
                setattr(storage, SEEN, True)
            elif before is not None:
                self.ends.pop(key)
            if before is not None:
                self.free(*before.detach()[2][1:])

    def resized(self, storage):
        """A storage may have been given another size, as FSDP does with gathered weights: 0 is none."""
        if hasattr(storage, SEEN):
            self.seen(storage)

    def multiplies(self, workspace):
        """What torch takes once for each thread's handle and stream, and keeps."""
        thread = threading.get_ident()
        if thread not in self.workspaces:
            self.workspaces.add(thread)
            self.allocate(workspace)

    def step(self, *_):
        """An optimizer's step ends an iteration; the first one's, where there are several."""
        with self.lock:
            self.iterations += 1
            if self.recording.count:
                self.tell()

    def tell(self):
        try:
            self.begun(self.iterations)
        except OSError as problem:
            self.recording.failure = self.recording.failure or problem

    def leave(self):
        """In a forked child, with the lock."""
        self.recording.leave()
        self.lock.release()

    def finish(self):
        with self.lock:
            while self.ends:  # other threads may go on meanwhile
                self.ends.popitem()[1].detach()
            self.recording.leave()
            self.recording.finish()


def workspace_bytes(capability):
    """As torch chooses it, unless CUBLAS_WORKSPACE_CONFIG says otherwise."""
    asked = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
    parts = [int(part) for part in asked.split(":") if part.isdigit()]
    if len(parts) >= 2:
        return 1024 * sum(size * count for size, count in zip(parts[::2], parts[1::2]))
    return 32 * MIB if capability[0] >= 9 else 8 * MIB + 128 * 1024


def of_each_thread(mode):
    """A mode of tensors without contents that several threads may be in at once: torch keeps in it, for the one
    thread that it knows of, which operator it is in, and what to go back to."""

    class OfEachThread(mode):
        of_thread = threading.local()

        @property
        def in_kernel_invocation(self):
            return getattr(self.of_thread, "in_kernel", False)

        @in_kernel_invocation.setter
        def in_kernel_invocation(self, is_in):
            self.of_thread.in_kernel = is_in

        @property
        def enter_stack(self):
            return self.of_thread.__dict__.setdefault("entered", [])

        @enter_stack.setter
        def enter_stack(self, entered):
            self.of_thread.entered = entered

    return OfEachThread


def watch_threads(torch, watch, recorder):
    """Enters the mode in this thread, and in each that Python begins from now on: torch's modes are a thread's own.
    Autograd's threads have those of the thread that called them."""
    bootstrap = threading.Thread._bootstrap_inner

    def enter():
        # A tensor made of Python's numbers is made on the host first, and copied.
        if hasattr(torch._C, "_set_only_lift_cpu_tensors"):
            torch._C._set_only_lift_cpu_tensors(True)
        return watch.__enter__()

    def bootstrap_watched(self):
        enter()
        try:
            bootstrap(self)
        finally:
            watch.__exit__(None, None, None)

    threading.Thread._bootstrap_inner = bootstrap_watched
    # A process that is forked has the lock as this thread has it, not as another one had.
    os.register_at_fork(before=recorder.lock.acquire, after_in_parent=recorder.lock.release,
                        after_in_child=recorder.leave)
    enter()


def watching(torch, recorder):
    """The mode that decides which tensors have contents, and shows the recorder what operators return on the GPU."""
    from torch._subclasses import fake_tensor
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map

    FakeTensor = fake_tensor.FakeTensor
    aten, plain = torch.ops.aten, torch.Tensor.__torch_dispatch__
    strided = torch.strided
    scalar, nonzero = aten._local_scalar_dense.default, aten.nonzero.default
    workspace = workspace_bytes(torch.cuda.get_device_capability())
    devices = torch.cuda.device_count()
    counts = ctypes.PyDLL(None).pleat_no_gpu_counts  # of no_gpu.c, of which torch asks some memory in this thread, too
    fakes = of_each_thread(fake_tensor.FakeTensorMode)(allow_non_fake_inputs=True)
    contents = _contents.Contents(torch, FakeTensor, fakes)
    depends = (fake_tensor.DynamicOutputShapeException, fake_tensor.DataDependentOutputException,
               fake_tensor.UnsupportedOperatorException)

    def are_real(given, kwargs):
        """Whether what an operator is given has contents, and stays on the host."""
        device = kwargs.get("device")
        return (device is None or torch.device(device).type != "cuda") and not any(
            isinstance(leaf, FakeTensor) or isinstance(leaf, torch.Tensor) and leaf.is_cuda for leaf in given)

    def is_small(leaf):
        return not isinstance(leaf, torch.Tensor) or (
            leaf.device.type != "cuda" and leaf.numel() * leaf.element_size() <= REAL_BYTES_MOST)

    def without_contents(leaf):
        """A tensor as the operators on the GPU are given it."""
        if not isinstance(leaf, torch.Tensor) or isinstance(leaf, FakeTensor):
            return leaf
        return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=leaf.device)

    def are_sparse(found):
        """Whether one is, or is a layout of such."""
        return any((leaf.layout if isinstance(leaf, torch.Tensor) else leaf) is not strided for leaf in found
                   if isinstance(leaf, (torch.Tensor, torch.layout)))

    def goes_to_host(name, args, kwargs):
        """Whether a tensor is copied to the host that is small enough to be real there."""
        device = kwargs.get("device")
        return name == "_to_copy" and device is not None and torch.device(device).type == "cpu" and (
            isinstance(args[0], FakeTensor) and args[0].numel() * args[0].element_size() <= REAL_BYTES_MOST)

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            kwargs = kwargs or {}
            if any(kind is not FakeTensor and kind.__torch_dispatch__ is not plain for kind in types):
                return NotImplemented  # Such a tensor (DTensor, say) is made of others, which come here in its place.
            if function is scalar and isinstance(args[0], FakeTensor):
                return contents.value(args[0])
            given = _contents.leaves((args, kwargs), [])
            real = are_real(given, kwargs)
            if real and any(isinstance(leaf, torch.Tensor) for leaf in given):
                return function(*args, **kwargs)
            kind = contents.kind(function)
            if real and kind.tensors:  # torch gives a mode what TorchScript has as tensors of one number as these.
                args = [torch.tensor(leaf) if place in kind.tensors and isinstance(leaf, (int, float)) else leaf
                        for place, leaf in enumerate(args)]
                return function(*args, **kwargs)
            if kind.is_composite:  # In inference mode nobody has made the operators of it that run.
                with self:
                    return do_parts(torch, function, args, kwargs)
            if kind.name in MADE_OF_OTHERS:
                with self:
                    return function._op_dk(torch._C.DispatchKey.CompositeExplicitAutograd, *args, **kwargs)
            counts()
            with recorder.lock:  # What is known of contents, and their generator, are of all threads.
                return self.on_device(function, args, kwargs, given, real)

        def on_device(self, function, args, kwargs, given, real):
            """What an operator returns that has to do with tensors without contents, and what it takes."""
            name = function.overloadpacket.__name__
            if name.startswith("_nested_tensor_from"):
                raise _contents.Refused(str(function))
            if name.startswith("_to_sparse") or are_sparse(given):
                if real:
                    return function(*args, **kwargs)
                raise _contents.Refused("%s of a sparse tensor" % function)
            if goes_to_host(name, args, kwargs):
                return contents.read(args[0]).to(kwargs.get("dtype") or args[0].dtype)
            if name in ("_use_cudnn_ctc_loss", "_use_miopen_ctc_loss"):  # neither is there to be asked
                return False
            if name == "is_pinned":
                return hasattr(args[0].untyped_storage(), PINNED)
            pins = name == "_pin_memory" or kwargs.get("pin_memory")
            if name == "_pin_memory":  # fake tensors have no such: it is a copy on the host
                function, args, kwargs = aten.clone.default, args[:1], {}
            if name in ("index", "masked_select"):
                function, args = self.by_number(function, args)
            try:
                result = self.without(function, args, kwargs)
            except (RuntimeError, AssertionError):
                if not real:
                    raise
                return function(*args, **kwargs)  # of the host alone: torch has it, though not without contents
            if name.endswith("_") and given and not isinstance(given[0], FakeTensor):
                known = contents.of(args[1]) if name == "copy_" else None
                return args[0] if known is None else function(args[0], known)
            leaves = _contents.leaves((result,), [])
            if real and all(map(is_small, leaves)):
                return function(*args, **kwargs)
            if pins:
                for leaf in leaves:
                    setattr(leaf.untyped_storage(), PINNED, True)
            on_device = [leaf for leaf in leaves if isinstance(leaf, FakeTensor) and leaf.device.type == "cuda"]
            for leaf in on_device:
                if leaf.device.index >= devices:
                    raise RuntimeError("CUDA error: invalid device ordinal: there is no %s: `pleat estimate` runs a "
                                       "program on one GPU" % leaf.device)
                recorder.seen(leaf.untyped_storage())
            if on_device and name in MULTIPLIES:
                recorder.multiplies(workspace)
            return result

        def without(self, function, args, kwargs):
            """What an operator returns on tensors without contents."""
            tensors = contents.tensors(args, kwargs)
            are_there = any(not isinstance(leaf, FakeTensor) for leaf in tensors)
            # Else torch tries some operators that it has no shapes of with zeros, where the tensors are.
            fakes.allow_fallback_kernels = not any(leaf.is_cuda for leaf in tensors)
            try:
                with fakes:
                    given = tree_map(without_contents, (args, kwargs)) if are_there else (args, kwargs)
                    result = function(*given[0], **given[1])
            except depends:
                return contents.shaped(function, args, kwargs) if function._schema.returns else None
            if are_sparse(_contents.leaves((result,), [])):
                raise _contents.Refused("a sparse tensor of %s" % function)
            contents.follow(function, args, kwargs, result)
            return result

        def by_number(self, function, args):
            """A choice of elements by a mask as one by their places, as torch makes it on a GPU."""
            if function.overloadpacket.__name__ == "masked_select":
                chosen, mask = torch.broadcast_tensors(*args)
                args, function = (chosen, [mask]), aten.index.Tensor
            places = []
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8):
                    found = self.__torch_dispatch__(nonzero, (), (index,))
                    places += [self.__torch_dispatch__(aten.select.int, (), (found, 1, column))
                               for column in range(index.dim())]
                else:
                    places.append(index)
            return function, (args[0], places, *args[2:])

    return Watch(), contents


def read_by(torch, fake_type, contents):
    """What a program reads of tensors otherwise than by operators: as text, and as numpy's arrays."""

    def formatted(self, spec):
        return format(self.detach().item(), spec) if self.dim() == 0 else object.__format__(self, spec)

    def shown(self, *, tensor_contents=None):
        """As torch shows a tensor, and one number as the program reads it."""
        if tensor_contents is None and self.dim() == 0:
            text = own(self, tensor_contents=str(contents.value(self.detach()))).replace(", size=()", "", 1)
        else:
            text = own(self, tensor_contents=tensor_contents)
        return text.replace(fake_type.__name__ + "(", "tensor(", 1)

    def numpy(self, *, force=False):
        if self.device.type != "cpu" and not force:
            raise TypeError("can't convert %s device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
                            "memory first." % self.device)
        if self.requires_grad and not force:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return contents.read(self).numpy()

    own, made_of_numbers = fake_type.__repr__, torch.tensor

    def numbers(data):
        if isinstance(data, (list, tuple)):
            return [numbers(one) for one in data]
        return data.tolist() if isinstance(data, fake_type) else data

    @functools.wraps(made_of_numbers)
    def tensor(data, **named):
        return made_of_numbers(numbers(data) if isinstance(data, (list, tuple)) else data, **named)

    fake_type.__format__, fake_type.__repr__, fake_type.numpy, torch.tensor = formatted, shown, numpy, tensor
    # Other processes may have them, of the GPU as always, and of the host as there is nothing to share.
    fake_type.share_memory_, fake_type.is_shared = lambda self: self, lambda self: True


def do_parts(torch, function, args, kwargs):
    """Calls the operators that one is made of, by torch's own code: what it has in Python for that takes other memory.
    Recurrent layers ask cuDNN first what they would take, which is not there; without it they are as others are."""
    if function.overloadpacket.__name__ in RECURRENT and torch.cudnn_is_acceptable(args[0]):
        raise _contents.Refused("%s, which cuDNN serves unless torch.backends.cudnn.enabled is False," % function)
    return function._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


def watch_recurrent(torch, fake_type):
    """Recurrent layers on the GPU come to do_parts() where torch looks for the GPU's own, as what they are made of is
    called before a mode sees them; those on the host may be compiled by TorchScript."""
    layers = torch.library.Library("aten", "IMPL")
    atexit.register(lambda: layers)  # what is registered goes with it
    for name in RECURRENT:
        for function in (getattr(getattr(torch.ops.aten, name), overload) for overload in ("input", "data")):
            for key in ("CUDA", "AutogradCUDA"):
                layers.impl(function.name(), lambda *args, function=function: do_parts(torch, function, args, {}), key)

    # torch tells what its cell of an LSTM returns without contents, and not what this one does.
    def gru_cell(input_gates, hidden_gates, hx, input_bias=None, hidden_bias=None):
        return torch.empty_like(hx, memory_format=torch.contiguous_format), hx.new_empty(hx.size(0), 5 * hx.size(1))

    def gru_cell_backward(grad_hy, workspace, has_bias):
        rows, gates = grad_hy.size(0), 3 * grad_hy.size(1)
        biases = [workspace.new_empty(gates) if has_bias else None for _ in range(2)]
        return (workspace.new_empty(rows, gates), workspace.new_empty(rows, gates),
                torch.empty_like(grad_hy, memory_format=torch.contiguous_format), *biases)

    # Where layers have no biases torch asks these for their device.
    shapes = torch._meta_registrations
    check = shapes.rnn_cell_checkSizes
    shapes.rnn_cell_checkSizes = lambda *given: None if given[2] is None else check(*given)
    layers.impl("_thnn_fused_gru_cell", gru_cell, "Meta")
    layers.impl("_thnn_fused_gru_cell_backward", gru_cell_backward, "Meta")
    base = torch.nn.RNNBase
    flatten = base.flatten_parameters

    def flatten_parameters(self):  # cuDNN is asked for its version even where it is not to be used
        return None if any(isinstance(one, fake_type) for one in self.parameters(recurse=False)) else flatten(self)

    base.flatten_parameters = flatten_parameters


def take_lengths(torch):
    """Of ctc_loss on the GPU torch reads lengths that are on the host, but not beside tensors without contents."""
    own = torch.ctc_loss

    @functools.wraps(own)
    def ctc_loss(log_probs, targets, *more, **named):
        def there(leaf):
            return leaf.to(log_probs.device) if isinstance(leaf, torch.Tensor) else leaf

        return own(log_probs, targets, *map(there, more), **{name: there(leaf) for name, leaf in named.items()})

    torch.ctc_loss = ctc_loss


def refuse_graphs(torch):
    def capture_begin(self, *_, **named):
        raise _contents.Refused("a CUDA graph (torch.cuda.graph, make_graphed_callables)")

    torch.cuda.CUDAGraph.capture_begin = capture_begin


def fuse_nothing(torch):
    """TorchScript's fuser compiles kernels for the GPU that is there, of a function that is called a second time;
    torch.compile compiles nothing where operators are recorded, and where it is to compile all (fullgraph) it fails."""
    torch._C._jit_set_texpr_fuser_enabled(False)
    own = torch.compile

    @functools.wraps(own)
    def compiles(model=None, *, fullgraph=False, **named):
        return own(model, **named)

    torch.compile = compiles


def have_places(torch, fake_type, recorder):
    """Addresses tell libraries which tensors share memory: those that have none would share one."""
    own = torch.UntypedStorage.data_ptr

    def of_storage(storage):
        if storage.device.type != "meta" or not storage.nbytes():
            return own(storage)
        if not hasattr(storage, ADDRESS):
            setattr(storage, ADDRESS, recorder.place(storage.nbytes()))
        return getattr(storage, ADDRESS)

    def of_tensor(tensor):
        place = of_storage(tensor.untyped_storage())
        return place + tensor.storage_offset() * tensor.element_size() if place and tensor.numel() else 0

    torch.UntypedStorage.data_ptr, fake_type.data_ptr = of_storage, of_tensor


def watch_sizes(torch, recorder):
    resize = torch.UntypedStorage.resize_

    def resize_(self, *arguments, **named):
        result = resize(self, *arguments, **named)
        recorder.resized(self)
        return result

    torch.UntypedStorage.resize_ = resize_


def dump_nothing(*_, **named):
    _stderr.say("pleat estimate: torch's own recording is empty here, and not written: `pleat estimate -o TRACE` writes one")


def begin(folder):
    """In a process that has imported torch: from now on what is allocated on the GPU is recorded, and has no contents."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor
    from torch.optim import optimizer

    if torch.version.cuda is None:
        sys.exit("pleat estimate: torch %s is built without CUDA: it needs one with CUDA, though no GPU"
                 % torch.__version__)
    _errors.stand(torch)
    watch_recurrent(torch, FakeTensor)
    take_lengths(torch)
    refuse_graphs(torch)
    fuse_nothing(torch)
    torch.backends.mha.set_fastpath_enabled(False)  # which makes nested tensors of padded ones
    made = _checkpoints.Made()
    _checkpoints.stand(torch, FakeTensor, made)
    _safetensors.stand(torch, FakeTensor, made)
    torch.cuda.memory._dump_snapshot = dump_nothing
    # What decides that an optimizer takes all tensors at once, as it does on a GPU.
    known = getattr(optimizer, "_foreach_supported_types", None)
    if known is not None and FakeTensor not in known:
        known.append(FakeTensor)
    process, path = os.getpid(), os.path.join(folder, str(os.getpid()))

    def begun(iterations):
        if not iterations or os.getpid() == process:
            with open(path + ".begun", "w") as out:
                out.write(str(iterations))

    recorder = Recorder(path + ".pickle", ctypes.c_size_t.in_dll(ctypes.PyDLL(None), "pleat_no_gpu_live"), begun)
    first = lambda: None  # noqa: E731  # the optimizer that steps first, as long as the program has it

    def step(which, *_):
        nonlocal first
        if first() is None:
            first = weakref.ref(which)
        if first() is which:
            recorder.step()

    optimizer.register_optimizer_step_post_hook(step)
    _collectives.stand(torch)
    torch.cuda.init()
    _statistics.stand(torch, recorder.statistics)
    watch_sizes(torch, recorder)
    have_places(torch, FakeTensor, recorder)
    watch, contents = watching(torch, recorder)
    read_by(torch, FakeTensor, contents)
    _data.stand(torch, FakeTensor, contents.fakes)
    watch_threads(torch, watch, recorder)

    def end():
        if os.getpid() == process and recorder.recording.count:
            try:
                recorder.finish()
                os.remove(path + ".begun")
            except OSError as problem:
                _stderr.say("pleat estimate: the recording cannot be written: %s" % problem)
        # Autograd's thread lets the mode go after its last node, and Python must still be there then, or
        # std::terminate ends the process: one run in some fifty on a busy machine.
        time.sleep(LETTING_GO)

    _ends.at_end(end)
