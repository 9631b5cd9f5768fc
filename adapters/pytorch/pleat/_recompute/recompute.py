"""What becomes of a model's blocks, iteration by iteration: found, learned, chosen. See __init__.py."""

import contextlib
import functools
import weakref

from . import scripted, swapped
from .attention import Kept, intercepted, kernels, overhead_ns, use_kernels
from .blocks import CACHES, Ask, Block, Called, Given, find, is_equal, is_layer, owners
from .compiled import GIB, Compiled, gib_above
from .ladder import HEAP, OFFLOAD, Ladder, Learned, all_again, choose, enlarge, enough, sizes_of
from .offload import Offload, tensors
from .results import are_like, samples
from .state import Own, Random, Stores, as_then, look, version

LEARNINGS = 4  # at most, of a model
IDLE = contextlib.nullcontext()
PATIENCE = 2  # iterations in which a model is looked for, and in which it may have no backward then
LOOKING, LEARNING, CHOSEN, COMPILED, OFF = "looking", "learning", "chosen", "compiled", "off"
AGAIN, ATTENTION = "again", "attention"  # ways that a block goes which is neither kept nor offloaded


def has_gradients(model):
    return any(one.is_leaf and one.grad is not None for one in model.parameters())


def versions(torch, arguments):
    """Each tensor of a call, and its version."""
    return [(one, version(one)) for one in tensors(torch, arguments)]


def random_states(torch):
    """Where torch's own random numbers are, on the host and on the current device."""
    return torch.get_rng_state(), torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None


def set_random_states(torch, states):
    torch.set_rng_state(states[0])
    if states[1] is not None:
        torch.cuda.set_rng_state(states[1])


class First:
    """What a second run is to find as the first one did."""

    def __init__(self):
        self.state = Stores()  # what it was called with, and what the block had, as far as that can change
        self.kernels = None
        self.results = None  # some of what it gave, where that is looked at


class Iteration:
    """What one has shown so far."""

    def __init__(self):
        self.begun = set()  # numbers of the models that were called
        self.sizes, self.behind = {}, {}  # of its inputs, and of those behind their model's first backward
        self.at = {}, False  # of the forward at work, and whether it is behind that
        self.backward_sizes, self.backward_behind = {}, {}  # of what ran again: what a recording shows
        self.casts = {}  # bytes of weights that autocast copies, by the model's number

    def begins(self, number, sizes, is_behind):
        """A model's forward, behind its first backward or not. Returns whether an input has grown."""
        self.begun.add(number)
        self.at = sizes, is_behind
        grown = enlarge(self.sizes, sizes)
        return is_behind and enlarge(self.behind, sizes) or grown

    def ran_again(self, sizes, is_behind):
        """A block of a forward with these sizes."""
        enlarge(self.backward_sizes, sizes)
        if is_behind:
            enlarge(self.backward_behind, sizes)


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
    copies()       what copies between them (offload.py)
    host_bytes()   how much of the host's memory may be taken for what is offloaded
    took(), trim(), asked()  see compiled.py
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
        self.iteration = Iteration()
        self.ways = {}  # of the blocks that are not kept, by number
        self.chosen = ()  # numbers of those that were chosen among
        self.offload = None
        self.failures = {}  # ways that did not work: what was said
        self.ladder = None
        self.steeper = 0  # rungs more than chosen, after errors
        self.errors = 0
        self.rung = None
        self.held = False  # the budget
        swapped.install(torch)
        self.look()

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
        if any(getattr(block, "gradient_checkpointing", False)
               and not isinstance(getattr(block, "_gradient_checkpointing_func", None), Ask) for block in found):
            self.alone = True
            self.world.say("pleat: recompute: the program checkpoints %s itself: left alone" % type(model).__name__)
            return
        for block in found:
            if block not in self.blocks:  # of a smaller model
                self.install(block)
        if found:
            scripted.install(self.torch)
            model.register_forward_pre_hook(Called(self), with_kwargs=True)
            for part in owners(self.torch, model):
                part.register_forward_pre_hook(Given(self.torch), with_kwargs=True)
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

        @scripted.stand_in(forward)
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
        begun, self.idle = self.iteration.begun, False
        is_first, is_behind = not begun, number in begun and has_gradients(model)
        grown = self.iteration.begins(number, sizes, is_behind)
        if self.state != CHOSEN:
            self.iteration.casts[number] = self.cast_bytes(model)
            return
        if is_first:
            self.look_at_errors()
        if is_first and not self.is_covered(sizes) and self.learnings < LEARNINGS and self.world.recording():
            self.state = LEARNING
            self.iteration.casts[number] = self.cast_bytes(model)
        elif is_first or grown:
            self.choose()

    def remedy(self, live, asked):
        """What an out-of-memory error says besides, by what was live and was asked for: where all blocks are computed
        again there is no way below that, and the budget cannot work."""
        is_last = self.state == CHOSEN and self.rung == len(self.ladder.order)
        if self.count == 0 or not is_last and self.state not in (LOOKING, LEARNING):
            return ""
        bytes = max((live + asked) * HEAP, all_again(self.learned, self.iteration.sizes))
        if bytes <= self.budget:
            return ""
        more = enough(self.learned, self.iteration.sizes, self.iteration.behind)
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
        self.ladder, rung = choose(self.learned, self.budget, self.iteration.sizes, self.iteration.behind)
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
        elif self.state != OFF and not self.iteration.begun and not self.idle:
            self.idle, self.state = True, LOOKING
            self.look()
        elif self.state == LEARNING and not self.unlearned:
            self.learn()
        self.iteration = Iteration()
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
        sizes, behind = self.iteration.backward_sizes, self.iteration.backward_behind
        costs = self.times()
        if self.blocks and all(block.alone for block in self.blocks.values()):
            self.state = OFF
            self.hold()
            self.world.say("pleat: recompute: each block changes its buffers or weights in forward, as BatchNorm does, or what it "
                           "is called with: nothing is computed again")
            return
        if not sizes and self.marks < 2 * PATIENCE:
            return
        self.state = CHOSEN
        self.errors = self.world.errors()
        if self.learned and (not self.world.recording() or self.is_covered(sizes, behind)):
            return  # its recording is not whole, or says nothing new
        self.learnings += 1
        try:
            ladder = self.asked(costs) if sizes else None
        except (OSError, RuntimeError, ValueError, KeyError) as problem:
            self.learn_nothing(problem)
            return
        if ladder is None:
            self.learn_nothing("none was so far, as where each is called with a cache")
            return
        earlier = 0 if self.learned else ladder.earlier  # later on another model may have been there
        if max(ladder.least(), earlier) > self.budget:
            raise RuntimeError(self.refusal("", ladder.least(earlier), ladder.blocks))
        self.learned.append(Learned(ladder, sizes, behind, self.gradients()))
        self.choose()
        self.hold()
        self.world.say(self.text())

    def learn_nothing(self, reason):
        """All blocks are computed again from here on, which takes the least."""
        self.state, self.unlearned = LEARNING, True
        self.hold()
        self.world.say("pleat: recompute: all blocks are computed again: %s" % reason)

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
        casts = sum(self.iteration.casts.values())
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
        again with what ran in it, or where it offloads them. Within torch.func's transforms nobody may say, nor with other
        weights than a module's own."""
        functions = self.torch._C
        if not functions._autograd._saved_tensors_hooks_is_enabled() or self.torch.autograd.forward_ad._current_level >= 0:
            return True
        if self.in_backward() or functions._functorch.peek_interpreter_stack() is not None or swapped.is_within():
            return True
        top = getattr(functions._autograd, "_top_saved_tensors_default_hooks", None)
        return top is not None and top(True) is not None

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
        from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

        given, closed = look(self.torch, (arguments, keywords), lambda one: True)
        if closed:  # modules, whose buffers and attributes are not the block's
            block.alone = True
            return function(*arguments, **keywords)
        learning, named, at = self.state == LEARNING, self.state != CHOSEN, self.iteration.at
        kept = Kept(self.torch, functools.partial(self.failed, ATTENTION)) if way == ATTENTION else None
        before = First()
        block.forwards += 1
        compares = not learning and block.forwards & (block.forwards - 1) == 0

        def forward(*arguments, **keywords):
            if self.in_backward():
                self.iteration.ran_again(*at)
                attention = self.attention(block, ".again") if learning else kept.again() if kept else IDLE
                with self.restored(before), self.within(block, named, ".again"), attention:
                    result = function(*arguments, **keywords)
                if before.results is not None and not are_like(self.torch, samples(self.torch, result), before.results):
                    self.tell_apart(module)
                return result
            attention = self.attention(block, "") if learning else kept.first() if kept else IDLE
            counted = versions(self.torch, (arguments, keywords, [list(one.parts()) for one in given]))
            with self.watched(module, block, before) as changes, self.within(block, named, ""), attention:
                timed = self.world.timer() if learning else None
                result = function(*arguments, **keywords)
                if learning:
                    block.times.append(timed())
            before.state += given
            if changes or any(version(one) != count for one, count in counted):
                block.alone = True
                self.refuse(module, result)
            if compares:
                before.results = samples(self.torch, result)
            return result

        again = functools.partial(forward, **keywords)  # what the block is called with by keyword is not the checkpoint's
        if block.known:
            with set_checkpoint_early_stop(False) if compares else IDLE:
                return checkpoint(again, *arguments, use_reentrant=False)
        states = random_states(self.torch)
        try:
            with set_checkpoint_early_stop(False):
                return checkpoint(again, *arguments, use_reentrant=False)
        except RuntimeError as problem:
            if "saved tensor hooks" not in str(problem):
                raise
        # Transforms of torch.func within the block work where nobody else says what becomes of saved tensors.
        block.alone = True
        before.state.put()
        given.put()
        set_random_states(self.torch, states)
        return function(*arguments, **keywords)

    def tell_apart(self, module):
        """Backward ends where a block's second run gave something else: its gradients would be of another forward."""
        for one, block in self.blocks.items():
            block.alone = block.alone or type(one) is type(module)
        raise RuntimeError(
            "pleat: recompute: %s gives something else when it is computed again: it reads, counts or draws what is neither "
            "its own nor what it is called with (a global, a random number generator of the program's), or its weights were "
            "changed through .data. From the next forward on it is left alone" % type(module).__name__)

    def refuse(self, module, result):
        """Backward does not come to a forward that has changed its arguments, or what it has: their values are there no
        more."""

        def refused(gradient):
            raise RuntimeError("pleat: recompute: %s changes in place what it is called with or what it has, and this forward "
                               "of it cannot be computed again: from the next one on it is left alone" % type(module).__name__)

        for tensor in tensors(self.torch, result):
            if tensor.requires_grad:
                tensor.register_hook(refused)

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
    def watched(self, module, block, before):
        """Notes in `before` what the block has, and finds out whether a forward changes its buffers, its weights, or tensors
        that it has as attributes: from the next one on it is left alone then. Of a first forward, and of one before which
        the program has changed its mode or its buffers, these tensors are copied for the second run; of another one that
        has changed them in place a change is told in what this gives."""
        torch, is_known = self.torch, block.known
        own = block.own = block.own or Own(torch, module)
        (begun, mine), changes = own.note(), []
        if not is_known or block.draws:
            begun.append(Random())
        is_first = not is_known or own.left() != block.left
        before.kernels, before.state = kernels(torch), begun
        names, held = own.names(), [(one, version(one)) for one in mine]
        copied = [one.detach().clone() for one, _ in held] if is_first else []
        weights = [(one, version(one), one.grad, one.grad is not None and version(one.grad))
                   for one in module.parameters()] if not is_known else []
        yield changes
        before.kernels = kernels(torch)  # torch sets their order in its first call of attention
        block.known = True
        written = [i for i, (one, count) in enumerate(held)
                   if version(one) != count or is_first and not is_equal(torch, one, copied[i])]
        if not is_known:
            block.draws = not begun[-1].is_same()
        block.left = own.left()
        if is_first:
            for one in begun if written else ():
                one.replace({id(held[i][0]): copied[i] for i in written})
        elif written:
            changes += written
        if any(one.grad is not grad or grad is not None and version(grad) != count for one, _, grad, count in weights):
            changes.append(module)  # a backward of its own
        block.alone = bool(block.alone or written or own.names() != names
                           or any(version(one) != count for one, count, _, _ in weights))

    @contextlib.contextmanager
    def restored(self, before):
        """The second run has all as it was for the first one: attributes, buffers, what is in its arguments, random numbers,
        whether it trains, which kernels attention may choose. It leaves all this as it is."""
        kernels_now = kernels(self.torch)
        use_kernels(self.torch, before.kernels)
        try:
            with as_then(before.state):
                yield
        finally:
            use_kernels(self.torch, kernels_now)
