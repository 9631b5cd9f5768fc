"""What of a model is computed again in backward, so that training stays within a budget: --recompute auto.

BLOCKS     A model's repeated parts: transformers' layers that can be checkpointed, which ask at each call
           what to do; else modules of one class side by side in a ModuleList or Sequential, the outermost
           ones. Their class's forward is replaced by one that asks; FSDP's and other hooks lie around it.
LEARNING   In the first two iterations every block is computed again, which takes the least memory, and the
           budget does not hold yet, so that one that cannot work is refused with one that can, by the larger of
           the two. Both are recorded under the phases "block.N" and "block.N.again", the second's forwards are
           timed, and so is fused attention in them, under "block.N.attention". What would be live, and
           what a plan would take, if fewer blocks were computed again follows from that recording alone
           (`pleat explain --budget`, tools/analysis/recompute.h).
CHOICE     A ladder of rungs, a block's way changed at each, and for each iteration the first rung that
           fits at the sizes that its inputs have (_ladder.py). A block is kept, computed again, computed again
           but for its attention (_attention.py), or offloaded (_offload.py); one that was not there when the
           iteration was learned is computed again. An iteration with a larger input, or another, is learned
           in its turn, as long as all are recorded; after that its share is reckoned. An out-of-memory
           error that the program survives leads to the next rung; where there is none it says the budget that
           it takes.
MODELS     They are looked for in the first iterations, and again when one passes in which none is called that is
           known: another has taken its place.
LEFT ALONE Blocks whose buffers change in forward (BatchNorm's), blocks with a cache, whatever the program
           checkpoints itself, and everything without gradients. Of what torch.compile compiles torch's own
           budget is chosen (_compiled.py), where no other model has blocks.

Random numbers, autocast and what a forward closes over are torch.utils.checkpoint's matter (not reentrant).
"""

import contextlib
import functools
import json
import os
import tempfile
import time
import weakref

from ._attention import Kept, intercepted, overhead_ns
from ._compiled import GIB, Compiled, gib_above
from ._ladder import HEAP, OFFLOAD, Ladder, Learned, all_again, choose, enlarge, enough, sizes_of
from ._offload import Copies, Offload

LEARNINGS = 4  # at most, of a model
IDLE = contextlib.nullcontext()
FEWEST = 2  # modules of a class side by side that are a model's blocks
CACHES = ("past_key_value", "past_key_values", "layer_past")
PATIENCE = 2  # iterations in which a model is looked for, and in which it may have no backward then
BETWEEN = "between"  # the phase of what is in no block: without one it would count as the block's before it
LOOKING, LEARNING, CHOSEN, COMPILED, OFF = "looking", "learning", "chosen", "compiled", "off"
AGAIN, ATTENTION = "again", "attention"  # ways that a block goes which is neither kept nor offloaded
PROBE = 64 << 20  # bytes that are copied to find out how fast the link is


# ---- blocks ----


def is_layer(module):
    """Whether it is a layer of transformers' that asks at each call whether to checkpoint."""
    return any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__)


def repeated(torch, module):
    """The children of a list or a sequence that are its blocks: of each class that comes more than once."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return []
    children = [child for child in module if next(child.parameters(), None) is not None]
    counts = {}
    for child in children:
        counts[type(child)] = counts.get(type(child), 0) + 1
    return [child for child in children if counts[type(child)] >= FEWEST]


def find(torch, root):
    """The blocks below `root`, in the order of its modules, none of them inside another one."""
    layers = [module for module in root.modules() if is_layer(module)]
    found, inside = [], set()
    for module in root.modules():
        if module in inside:
            continue
        blocks = [module] if is_layer(module) else [] if layers else repeated(torch, module)
        for block in blocks:
            if block not in inside:
                found.append(block)
                inside.update(block.modules())
    return found


class Block:
    """What is known of one of a model's blocks."""

    def __init__(self, number):
        self.number = number
        self.alone = False  # its buffers change in forward
        self.running = False  # a forward that calls its parent class's is one forward
        self.times = []  # of its forwards in the iteration that is learned
        self.attention_times = []  # of each call of attention in them


# ---- hooks that copies and pickles of a model survive ----


def layer_of(function):
    """The layer whose call is to be checkpointed, from what transformers passes: its bound call, with keywords;
    None where it is something else."""
    if isinstance(function, functools.partial):
        return function.args[0] if function.args else layer_of(function.func)
    return getattr(function, "__self__", None)


class Ask:
    """What a layer of transformers' calls in the place of torch's checkpoint. A copy asks, too; a pickle has
    torch's checkpoint itself."""

    def __init__(self, recompute):
        self.recompute = recompute

    def __call__(self, function, *arguments, **keywords):
        return self.recompute.run(layer_of(function), function, arguments, keywords)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        from torch.utils.checkpoint import checkpoint

        return functools.partial(checkpoint, use_reentrant=False).__reduce__()


class Called:
    """The hook before a model's forward."""

    def __init__(self, recompute):
        self.recompute = recompute

    def __call__(self, module, arguments, keywords):
        self.recompute.begins(module, arguments, keywords)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        import torch

        return getattr, (torch.nn.Identity(), "__init__")


def has_gradients(model):
    return any(one.grad is not None for one in model.parameters())


class Recompute:
    """One process's. `world` is what it knows of the device:

    phase(name)    a context in which what is allocated is recorded under a name
    timer()        begins to time what is enqueued; what it returns, called, ends it, and that, called when
                   all is done, is nanoseconds
    recording()    whether all that was asked for until now is recorded
    errors()       out-of-memory errors until now
    ladder(costs, budget)  what explain says of the iteration that has just ended: by "block_ns" and
                   "attention_ns" of a forward of each block, and "link", bytes a second
    link()         bytes a second between host and device; 0: nothing is offloaded
    copies()       what copies between them (_offload.py)
    host_bytes()   how much of the host's memory may be taken for what is offloaded
    took(), trim(), asked()  see _compiled.py
    hold(budget, remedy)  from here on no more is taken, and an out-of-memory error says besides what
                   remedy(bytes live, bytes asked for) returns; said once
    say(text)      tells the user
    """

    def __init__(self, torch, budget, world):
        self.torch = torch
        self.budget = budget
        self.world = world
        self.state = LOOKING
        self.blocks = weakref.WeakKeyDictionary()
        self.count = 0
        self.classes = set()
        self.models = weakref.WeakKeyDictionary()  # the outermost ones, and their numbers
        self.numbers = 0
        self.idle = False  # they were looked for, and none that is known was called since
        self.unlearned = False  # nothing can be: all blocks are computed again
        self.alone = False  # a model was left alone, and that was said
        self.compiled = Compiled(torch, budget, world)
        self.learned = []
        self.begin_iteration()
        self.ways = {}  # of the blocks that are not kept, by number
        self.chosen = ()  # numbers of those that were chosen among
        self.offload = None
        self.failures = {}  # ways that did not work: what was said
        self.ladder = None
        self.steeper = 0  # rungs more than chosen, after errors
        self.errors = 0
        self.rung = None
        self.held = False  # the budget
        self.look()

    def begin_iteration(self):
        self.begun = set()  # numbers of the models that were called
        self.sizes, self.behind = {}, {}  # of its inputs, and of those behind their model's first backward
        self.at = {}, False  # of the forward at work, and whether it is behind that
        self.backward_sizes, self.backward_behind = {}, {}  # of what ran again: what a recording shows
        self.casts = {}  # bytes of weights that autocast copies, by the model's number

    # ---- models ----

    def look(self):
        self.marks = self.learnings = 0
        self.known_models, self.known_blocks = self.numbers, self.count
        self.looking = self.torch.nn.modules.module.register_module_forward_pre_hook(self.called)

    def called(self, module, arguments):
        """While looking: a module is called; the outermost one is a model."""
        if not self.torch.is_grad_enabled() or self.torch.compiler.is_compiling() or self.in_backward():
            return
        if module in self.blocks or not module.training or next(module.parameters(), None) is None:
            return
        self.add(module, arguments)

    def add(self, model, arguments):
        if any(model is part for known in self.models for part in known.modules()):
            return
        parts = set(model.modules())
        for known in [one for one in self.models if one in parts]:
            del self.models[known]  # the larger one's inputs say more
        self.models[model] = self.numbers = self.numbers + 1
        found = find(self.torch, model)
        if self.is_compiled(model):
            return
        if any(getattr(block, "gradient_checkpointing", False) for block in found):
            self.alone = True
            self.world.say("pleat: recompute: the program checkpoints %s itself: left alone" % type(model).__name__)
            return
        for block in found:
            self.install(block)
        if found:
            model.register_forward_pre_hook(Called(self), with_kwargs=True)
            self.begins(model, arguments, {})

    def is_compiled(self, model):
        return any(type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
                   for part in model.modules())

    def install(self, module):
        self.blocks[module] = Block(self.count)
        self.count += 1
        if is_layer(module):
            module.gradient_checkpointing = True
            module._gradient_checkpointing_func = Ask(self)
        else:
            self.wrap(type(module))

    def wrap(self, kind):
        """The class's forward asks from here on; for its other instances, and for copies, it does what it did."""
        if kind in self.classes:
            return
        self.classes.add(kind)
        forward, recompute = kind.forward, weakref.ref(self)

        @functools.wraps(forward)
        def asks(module, *arguments, **keywords):
            own = recompute()
            if own is None:
                return forward(module, *arguments, **keywords)
            return own.run(module, functools.partial(forward, module), arguments, keywords)

        kind.forward = asks

    # ---- iterations ----

    def begins(self, model, arguments, keywords):
        """A model's forward begins: the first in an iteration, or a later one's or a microbatch's."""
        if not self.torch.is_grad_enabled() or not model.training or self.in_backward() or model not in self.models:
            return
        number = self.models[model]
        sizes = sizes_of(self.torch, number, arguments, keywords)
        is_first, is_behind, self.idle = not self.begun, number in self.begun and has_gradients(model), False
        self.begun.add(number)
        self.at = sizes, is_behind
        grown = enlarge(self.sizes, sizes)
        grown |= is_behind and enlarge(self.behind, sizes)
        if self.state != CHOSEN:
            self.casts[number] = self.cast_bytes(model)
            return
        if is_first:
            self.look_at_errors()
        if is_first and not self.is_covered(sizes) and self.learnings < LEARNINGS and self.world.recording():
            self.state = LEARNING
            self.casts[number] = self.cast_bytes(model)
        elif is_first or grown:
            self.choose()

    def remedy(self, live, asked):
        """What an out-of-memory error says besides, by what was live and was asked for: where all blocks are computed
        again there is no way below that, and the budget cannot work."""
        is_last = self.state == CHOSEN and self.rung == len(self.ladder.order)
        if self.count == 0 or not is_last and self.state not in (LOOKING, LEARNING):
            return ""
        bytes = max((live + asked) * HEAP, all_again(self.learned, self.sizes))
        if bytes <= self.budget:
            return ""
        more = enough(self.learned, self.sizes, self.behind)
        text = self.refusal("at least ", bytes, self.count)
        return text + ("; %.3f GiB are enough" % gib_above(more) if more > bytes else "")

    def refusal(self, least, bytes, blocks):
        return ("pleat: recompute: a budget of %.3f GiB cannot work: an iteration takes %s%.3f GiB with all %d blocks "
                "computed again, the smallest that can" % (self.budget / GIB, least, gib_above(bytes), blocks))

    def is_covered(self, sizes, behind=()):
        return any(one.covers(sizes, behind) for one in self.learned)

    def look_at_errors(self):
        errors = self.world.errors()
        if errors > self.errors and self.rung is not None and self.rung < len(self.ladder.order):
            self.steeper += 1
            self.world.say("pleat: recompute: out of memory: one block more is computed again from here on")
        self.errors = errors

    def choose(self):
        self.ladder, rung = choose(self.learned, self.budget, self.sizes, self.behind)
        self.rung = min(rung + self.steeper, len(self.ladder.order))
        self.ways, self.chosen = self.ladder.ways(self.rung), self.ladder.numbers
        if self.offload is None and any(way == OFFLOAD for way, _ in self.ways.values()):
            self.offload = Offload(self.torch, self.world.copies(), functools.partial(self.failed, OFFLOAD))

    def failed(self, way, problem):
        """A block could not go a way: it was kept, or computed again, and from here on all that would are."""
        if way not in self.failures:
            self.failures[way] = "%s: %s" % (type(problem).__name__, problem)
            self.world.say("pleat: recompute: blocks %s are computed again from here on: %s" % (
                "to offload" if way == OFFLOAD else "whose attention was to be kept", self.failures[way]))

    def mark(self):
        """An iteration has ended."""
        self.marks += 1
        if self.state == LOOKING:
            self.looked()
        elif self.state == COMPILED:
            if self.compiled.mark():
                self.hold()
                self.world.say(self.compiled.text())
        elif self.state != OFF and not self.begun and not self.idle:
            self.idle, self.state = True, LOOKING
            self.look()
        elif self.state == LEARNING and not self.unlearned:
            self.learn()
        self.begin_iteration()
        if self.offload is not None:
            self.offload.end()

    def looked(self):
        """An iteration in which models were looked for is over."""
        if self.numbers == self.known_models and self.marks < PATIENCE:
            return
        self.looking.remove()
        if self.learned or self.unlearned:
            self.looked_again()
            return
        self.state = LEARNING if self.count else COMPILED if self.compiled.is_used() else OFF
        if self.state == COMPILED and self.compiled.is_users:
            self.state = OFF
            self.world.say("pleat: recompute: what torch.compile keeps is left alone: the program has set "
                           "torch._functorch.config.activation_memory_budget itself")
        elif self.state == OFF and not self.alone:
            self.world.say("pleat: recompute: no repeated blocks were found: nothing is computed again")
        if self.state == OFF:
            self.hold()
        if self.state != COMPILED:
            self.compiled.leave()

    def looked_again(self):
        """Another model may have come in the place of those that were known."""
        self.state = LEARNING if self.unlearned else CHOSEN
        if self.count == self.known_blocks or self.unlearned:
            return
        if self.world.recording():
            self.state = LEARNING
        else:
            self.world.say("pleat: recompute: all blocks of a model are computed again that came when nothing was "
                           "recorded any more")

    def hold(self):
        if not self.held:
            self.held = True
            self.world.hold(self.budget, self.remedy)

    def learn(self):
        """From an iteration that is over, with all blocks computed again. Inputs count that backward came to: of what
        failed before, or was for nothing, the recording does not show what its blocks would save."""
        sizes, behind = self.backward_sizes, self.backward_behind
        costs = self.times()
        if not sizes and self.marks < 2 * PATIENCE:
            return
        self.state = CHOSEN
        self.errors = self.world.errors()
        if self.learned and (not self.world.recording() or self.is_covered(sizes, behind)):
            return  # its recording is not whole, or says nothing new
        self.learnings += 1
        try:
            ladder = self.asked(costs)
        except (OSError, RuntimeError, ValueError, KeyError) as problem:
            self.state, self.unlearned = LEARNING, True  # computing all again takes the least
            self.hold()
            self.world.say("pleat: recompute: all blocks are computed again: %s" % problem)
            return
        earlier = 0 if self.learned else ladder.earlier  # later on another model may have been there
        if max(ladder.least(), earlier) > self.budget:
            raise RuntimeError(self.refusal("", ladder.least(earlier), ladder.blocks))
        learned = Learned(ladder, sizes, behind, self.gradients())
        self.learned = [one for one in self.learned if not learned.covers(one.sizes, one.behind)] + [learned]
        self.choose()
        self.hold()
        self.world.say(self.text())

    def weights(self, models):
        """Theirs, as far as they are on this rank."""
        weights = {one for model in models for one in model.parameters()}
        return [one.to_local() if hasattr(one, "to_local") else one for one in weights]

    def gradients(self):
        """Bytes of all that there can be."""
        return sum(one.numel() * one.element_size() for one in self.weights(self.models) if one.requires_grad)

    def cast_bytes(self, model):
        """Of the copies of weights that autocast makes, where it is on: backward needs those of frozen ones as well."""
        torch = self.torch
        on = [kind for kind in ("cuda", "cpu") if torch.is_autocast_enabled(kind)]
        if not on:
            return 0
        width = torch.get_autocast_dtype(on[0]).itemsize
        return sum(one.numel() * width for one in self.weights([model]) if one.dtype == torch.float32)

    def asked(self, costs):
        """The ladder by what was measured: without offloading where the host has no room for it."""
        costs["link"] = 0 if OFFLOAD in self.failures else self.world.link()
        if ATTENTION in self.failures:
            costs["attention_ns"] = [0] * self.count
        casts = sum(self.casts.values())
        ladder = Ladder(self.world.ladder(costs, self.budget), casts)
        if ladder.offloaded_bytes > self.world.host_bytes():
            costs["link"] = 0
            ladder = Ladder(self.world.ladder(costs, self.budget), casts)
        return ladder

    def times(self):
        """Nanoseconds of a forward of each block, and what keeping attention saves of it."""
        whole, attention = [0] * self.count, [0] * self.count
        overhead = overhead_ns(self.torch)
        for block in self.blocks.values():
            passes = max(len(block.times), 1)
            whole[block.number] = int(sum(each() for each in block.times) / passes)
            # A step that the host paces gains nothing where keeping takes the host longer than attention the device.
            kept = [max(each() - overhead, 0) for each in block.attention_times]
            attention[block.number] = int(sum(kept) / passes)
            block.times, block.attention_times = [], []
        return {"block_ns": whole, "attention_ns": attention}

    def text(self):
        spent, whole = self.ladder.cost(self.rung)
        counts = {way: [one for one, _ in self.ways.values()].count(way) for way in (AGAIN, ATTENTION, OFFLOAD)}
        text = "pleat: recompute: %d of %d blocks are computed again" % (counts[AGAIN], self.ladder.blocks)
        if counts[ATTENTION]:
            text += ", %d all but attention" % counts[ATTENTION]
        if counts[OFFLOAD]:
            text += ", %d offloaded" % counts[OFFLOAD]
        text += ": %.3f GiB of %.3f GiB" % (self.ladder.bytes(self.rung, 1) / GIB, self.budget / GIB)
        if whole and self.rung:
            text += ", %.1f ms an iteration of %.1f ms for all" % (spent / 1e6, whole / 1e6)
        return text

    # ---- a block's forward ----

    def in_backward(self):
        return self.torch._C._current_graph_task_id() != -1

    def is_kept_otherwise(self):
        """Whether the program says itself what becomes of saved tensors here: in its own checkpoint, which runs
        again with what ran in it, or where it offloads them."""
        top = getattr(self.torch._C._autograd, "_top_saved_tensors_default_hooks", None)
        return self.in_backward() or (top is not None and top(True) is not None)

    def run(self, module, function, arguments, keywords):
        block = self.blocks.get(module) if isinstance(module, self.torch.nn.Module) else None
        if block is None or block.running or self.torch.compiler.is_compiling():
            return function(*arguments, **keywords)
        way, until = self.way(block, keywords)
        if way == OFFLOAD:
            with self.within(block, False, ""), self.offload.saving(module, (arguments, keywords), until):
                result = function(*arguments, **keywords)
        elif way is not None:
            result = self.run_again(module, block, function, arguments, keywords, way)
        else:
            with self.within(block, False, ""):
                result = function(*arguments, **keywords)
        if self.offload is not None:
            self.offload.passed(block.number, result)
        return result

    def way(self, block, keywords):
        """How a forward of a block goes, None: as it would alone; and the block by whose end it is offloaded."""
        plain = (
            block.alone
            or self.state == OFF
            or not self.torch.is_grad_enabled()
            or self.is_kept_otherwise()
            or any(keywords.get(name) is not None for name in CACHES)
        )
        if plain:
            return None, None
        is_chosen = self.state == CHOSEN and block.number in self.chosen
        way, until = self.ways.get(block.number, (None, None)) if is_chosen else (AGAIN, None)
        return AGAIN if way in self.failures else way, until

    def run_again(self, module, block, function, arguments, keywords, way):
        from torch.utils.checkpoint import checkpoint

        learning, named, at = self.state == LEARNING, self.state != CHOSEN, self.at
        kept = Kept(self.torch, functools.partial(self.failed, ATTENTION)) if way == ATTENTION else None

        def forward(*arguments, **keywords):
            if self.in_backward():
                self.ran_again(*at)
                attention = self.attention(block, ".again") if learning else kept.again() if kept else IDLE
                with self.restored(module), self.within(block, named, ".again"), attention:
                    return function(*arguments, **keywords)
            attention = self.attention(block, "") if learning else kept.first() if kept else IDLE
            with self.watched(module, block), self.within(block, named, ""), attention:
                timed = self.world.timer() if learning else None
                result = function(*arguments, **keywords)
                if learning:
                    block.times.append(timed())
                return result

        # What the block is called with by keyword is not the checkpoint's.
        return checkpoint(functools.partial(forward, **keywords), *arguments, use_reentrant=False)

    def ran_again(self, sizes, is_behind):
        enlarge(self.backward_sizes, sizes)
        if is_behind:
            enlarge(self.backward_behind, sizes)

    def attention(self, block, behind):
        """Inside, attention has a phase of its own; in a forward it is timed."""

        def around(call):
            with self.world.phase("block.%d%s.attention" % (block.number, behind)):
                timed = self.world.timer() if not behind else None
                result = call()
                if timed is not None:
                    block.attention_times.append(timed())
                return result

        return intercepted(self.torch, around)

    @contextlib.contextmanager
    def within(self, block, named, behind):
        """A forward of a block: its parent class's is the same one, and what it allocates bears its name."""
        outer, block.running = block.running, True
        try:
            with self.world.phase("block.%d%s" % (block.number, behind)) if named else IDLE:
                yield
        finally:
            block.running = outer

    @contextlib.contextmanager
    def watched(self, module, block):
        """Finds out whether a forward changes its buffers: from the next one on it is left alone then."""
        before = [buffer._version for buffer in module.buffers()]
        yield
        block.alone |= before != [buffer._version for buffer in module.buffers()]

    @contextlib.contextmanager
    def restored(self, module):
        """Buffers have changed in the first run; the second one leaves them as they are."""
        block = self.blocks[module]
        kept = [(buffer, buffer.clone()) for buffer in module.buffers()] if block.alone else []
        try:
            yield
        finally:
            with self.torch.no_grad():
                for buffer, value in kept:
                    buffer.copy_(value)


def options(costs):
    """As the command takes them."""
    lists = [("--block-ns", costs["block_ns"]), ("--attention-ns", costs["attention_ns"])]
    told = [part for name, times in lists for part in (name, ",".join(map(str, times)))]
    return told + (["--link", str(costs["link"])] if costs["link"] else [])


class World:
    """A process's, under Pleat."""

    def __init__(self, torch, package, offloads=False):
        self.torch = torch
        self.package = package
        self.inside = BETWEEN
        self.measured = None if offloads else 0

    @contextlib.contextmanager
    def phase(self, name):
        outer, self.inside = self.inside, name
        try:
            with self.package.phase(name):
                yield
        finally:
            self.inside = outer
            self.package._enter_phase(outer)

    def timer(self):
        begin = self.torch.cuda.Event(enable_timing=True)
        begin.record()

        def ended():
            end = self.torch.cuda.Event(enable_timing=True)
            end.record()

            def nanoseconds():
                end.synchronize()
                return begin.elapsed_time(end) * 1e6

            return nanoseconds

        return ended

    def recording(self):
        library = self.package._library
        return not library.pleat_torch_recorded(max(library.pleat_torch_first_device(), 0))

    def errors(self):
        return self.torch.cuda.memory_stats().get("num_ooms", 0)

    def hold(self, budget, remedy):
        self.listen(remedy)
        for device in self.package._used_devices():
            total = self.torch.cuda.get_device_properties(device).total_memory
            with self.torch.cuda.device(device):
                self.torch.cuda.empty_cache()
            self.torch.cuda.set_per_process_memory_fraction(min(budget / total, 1.0), device)

    def listen(self, remedy):
        """To errors of the allocator; torch's pluggable one does not tell of them."""
        set_remedy = getattr(self.package._library, "pleat_torch_remedy", None)

        def told(device, asked, most, free):
            set_remedy(remedy(self.torch.cuda.memory_allocated(device), asked).encode())

        if set_remedy is not None:
            self.torch._C._cuda_attach_out_of_memory_observer(told)

    def link(self):
        """The slower of both directions; measured once, where offloading was asked for (docs/decisions.md, D335)."""
        if self.measured is None:
            copies, device = self.copies(), self.torch.device("cuda", self.torch.cuda.current_device())
            try:
                there = self.torch.empty(PROBE, dtype=self.torch.uint8, device=device)
                here = copies.host(PROBE)
                copies.copy([(here, there)], device)  # the first touches the memory
                spent = [self.spent(copies, pair, device) for pair in ((here, there), (there, here))]
                self.measured = int(PROBE * 1e9 / max(spent))
            except RuntimeError:  # no memory, here or there
                self.measured = 0
        return self.measured

    def spent(self, copies, pair, device):
        self.torch.cuda.synchronize(device)
        began = time.perf_counter_ns()
        copies.copy([pair], device).synchronize()
        return time.perf_counter_ns() - began

    def copies(self):
        return Copies(self.torch)

    def took(self):
        return sum(self.package.stats(device)["physical_bytes"] for device in self.package._used_devices())

    def trim(self):
        self.package.trim()

    def asked(self):
        return self.package._taken()

    def host_bytes(self):
        """Half of what is available, shared with the host's other ranks."""
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                kib = dict(line.split()[:2] for line in file)["MemAvailable:"]
        except (OSError, KeyError, ValueError):
            return 0
        return int(kib) * 1024 // 2 // max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)

    def ladder(self, costs, budget):
        from . import _job

        self.package._enter_phase("")
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "learned.trace")
            self.package.save_trace(trace)
            return json.loads(_job.run("explain", trace, "--budget", str(budget), "--json", *options(costs),
                                       answers=(0, 1)))

    def say(self, text):
        from . import _job

        if os.environ.get("PLEAT_RUN") != "quiet":
            _job.say(text)
