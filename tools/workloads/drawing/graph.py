"""What one forward and backward pass of a piece of a model allocates and frees.

A Graph is filled by calling operators (torch_ops.py) in the order in which the program calls them.
Each makes new storages, uses others, and may leave a node for backward that saves some. compile()
then gives two lists of steps, forward's and backward's, which run.py repeats for each microbatch of
this shape:

- A storage is freed after its last use, unless a node saved it: then after that node's backward.
- Backward goes as torch's engine does: of the nodes whose gradients are all there the youngest
  first, and gradients of parameters at once. A second gradient for the same place is added into the
  first where nothing else holds it and it is no view, else into a new one.
- A checkpointed segment saves only what goes into it, and runs again in backward. A reentrant one
  (torch.utils.checkpoint's older kind) does so whole, when the gradient of its result comes, and
  keeps the result until its own backward is done; the newer kind when its first node wants what it
  saved, and only up to the last thing that its nodes save.
"""

import heapq

from drawing.parameter import Shaped

# Kinds of steps: (ALLOC, slot, bytes), (FREE, slot, 0), (WORK, bytes of each, 0),
# (SPEND, microseconds, 0), (ONCE, workspaces' name, 0), (GRAD, parameter, slot),
# (SIDE, slot, bytes) on another stream, (REDUCE, parameters, 0)
ALLOC, FREE, WORK, SPEND, ONCE, GRAD, SIDE, REDUCE = range(8)

MEMORY_RATE = 4e6  # bytes a microsecond
MATMUL_RATE = 6e8  # floating-point operations a microsecond, of large products in bf16
# What the program takes for an operator while the GPU waits for it (D507).
LAUNCH_US = 20.0


def cost(moved=0, operations=0):
    """Microseconds of a kernel that moves so many bytes and does so many operations."""
    return max(LAUNCH_US, moved / MEMORY_RATE, operations / MATMUL_RATE)


class Storage:
    __slots__ = ("size", "outside", "last", "saves", "slot", "holds", "late")

    def __init__(self, size, outside=False):
        self.late = False  # made only when a segment runs again
        self.size = size
        self.outside = outside  # not the graph's to free: a parameter, an input
        self.last = -1  # the operator that uses it last
        self.saves = 0  # nodes that save it
        self.slot = None
        self.holds = 0  # in backward: who holds it

    dense = True

    @property
    def whole(self):
        return self


class Part:
    """A view of a gradient or of a part of one. A view has its base, which holds the memory as well,
    so nothing is added into it in place. Where it is not dense an operator that wants it in order
    copies it."""

    __slots__ = ("whole", "size", "dense")

    def __init__(self, whole, size, dense):
        self.whole = whole
        self.size = size
        self.dense = dense

    @property
    def holds(self):
        return self.whole.holds

    @property
    def outside(self):
        return self.whole.outside

    @property
    def slot(self):
        return self.whole.slot


class Tensor(Shaped):
    """A view of a storage. `source`: (node, which output), a Leaf, or None without a gradient."""

    __slots__ = ("storage", "shape", "item", "source")

    def __init__(self, storage, shape, item, source=None):
        self.storage = storage
        self.shape = shape
        self.item = item
        self.source = source


class Leaf:
    """Where gradients end: a parameter's (its number) or an input's (None)."""

    __slots__ = ("number",)

    def __init__(self, number):
        self.number = number


class Node:
    __slots__ = ("rank", "rule", "edges", "saved", "saves", "segment", "outputs", "released")

    def __init__(self, rank, rule, edges, saved, segment, outputs):
        self.released = False
        self.rank = rank
        self.rule = rule
        self.edges = edges
        self.saves = bool(saved)
        self.saved = [storage for storage in saved if not storage.outside]
        self.segment = segment
        self.outputs = outputs


class Operator:
    __slots__ = ("made", "used", "work", "once", "us", "side")

    def __init__(self, made, used, work, once, us):
        self.made = made
        self.used = used
        self.work = work
        self.once = once
        self.us = us
        self.side = False  # what it makes is another stream's


class Segment:
    """Operators begin..end that run again in backward; `held` are what go in."""

    __slots__ = ("begin", "end", "held", "stop", "nodes", "fresh", "reentrant", "result", "first")

    def __init__(self, begin, reentrant):
        self.begin = begin
        self.reentrant = reentrant
        self.result = None
        self.end = None
        self.held = []
        self.stop = begin  # operators from here on need not run again
        self.nodes = 0  # that hold it, and are not gone back through yet
        self.fresh = None  # storage -> the one made again


class Graph:
    def __init__(self, training=True, autocast=False, reentrant=False):
        self.reentrant = reentrant
        self.operators = []
        self.nodes = []
        self.training = training
        self.autocast = autocast
        self.segment = None
        self.casts = {}  # parameter -> its copy in the arithmetic's type
        self.cached = []  # all such copies: autocast keeps them until forward ends
        self.leaves = {}  # parameter -> its Leaf
        self.inputs = []
        self.outputs = []
        self.slots = 0

    # ---- building ----

    def input(self, shape, item, gradient=False, given=False):
        """A tensor that is there already and stays until after backward; `given`: it is the graph's
        to free."""
        source = Leaf(None) if gradient and self.training else None
        tensor = Tensor(Storage(0, outside=not given), tuple(shape), item, source)
        tensor.storage.size = tensor.size if given else 0
        self.inputs.append(tensor)
        return tensor

    def run(self, used, made, work=(), once=None, us=LAUNCH_US):
        """One operator: uses tensors, makes some of (shape, bytes of an element)."""
        now = len(self.operators)
        storages = []
        for tensor in used:
            tensor.storage.last = now
            storages.append(tensor.storage)
        out = []
        for shape, item in made:
            tensor = Tensor(None, tuple(shape), item)
            tensor.storage = Storage(tensor.size)
            tensor.storage.last = now
            out.append(tensor)
        self.operators.append(
            Operator([tensor.storage for tensor in out], storages, work, once, us)
        )
        return out

    def hold(self, *tensors):
        """A variable of the program keeps these until here."""
        self.run(tensors, (), us=0)

    def needs(self, *tensors):
        return self.training and any(tensor is not None and tensor.source for tensor in tensors)

    def node(self, rule, inputs, outputs, saved):
        """Backward of the operator just run. `rule(back, gradients)` gives the inputs' gradients."""
        segment = self.segment
        node = Node(
            len(self.nodes),
            rule,
            [tensor.source if tensor is not None else None for tensor in inputs],
            [tensor.storage for tensor in saved if tensor is not None],
            segment,
            len(outputs),
        )
        self.nodes.append(node)
        for which, tensor in enumerate(outputs):
            tensor.source = (node, which)
        if segment is None:
            for storage in node.saved:
                storage.saves += 1
        else:
            segment.nodes += node.saves or segment.reentrant
            made_now = set(map(id, self.operators[-1].made))
            late = any(id(storage) in made_now for storage in node.saved)
            if node.saves:
                segment.stop = len(self.operators) - (0 if late else 1)
        return outputs

    def apart(self, x):
        """x for a segment whose backward is one of its own: there its gradients are added up."""
        if x is None or x.source is None:
            return x
        y = Tensor(x.storage, x.shape, x.item)
        self.node(lambda back, g: [back.share(g[0])], [x], [y], [])
        return y

    def checkpoint(self, piece, *inputs, again=True):
        """piece(*inputs), of which backward keeps only the inputs; `again`: whether it does."""
        if not (again and self.training) or self.segment is not None:
            return piece(*inputs)
        segment = Segment(len(self.operators), self.reentrant)
        if segment.reentrant:
            inputs = [self.apart(tensor) for tensor in inputs]
        self.segment = segment
        kept, self.casts = self.casts, {}
        out = piece(*inputs)
        segment.end = len(self.operators)
        self.segment, self.casts = None, kept
        for tensor in inputs:
            if tensor is not None and not tensor.storage.outside:
                tensor.storage.saves += 1
                segment.held.append(tensor.storage)
        if segment.reentrant:
            segment.stop = segment.end
            segment.result = out.storage
        if segment.nodes == 0:
            raise ValueError("a checkpointed piece has nothing to go back through")
        return out

    # ---- compiling ----

    def slot_of(self, storage):
        storage.slot = self.slots
        self.slots += 1
        return storage.slot

    def forward(self, *outputs):
        """Forward's steps; the outputs stay with who runs it."""
        self.outputs = [tensor.storage for tensor in outputs]
        self.hold(*self.cached)
        staying = set(map(id, self.outputs))
        for storage in self.outputs:
            storage.saves += 1
        steps = []
        for number, tensor in enumerate(self.inputs):
            tensor.storage.slot = -1 - number
        self.emit(
            steps, range(len(self.operators)), self.operators, lambda s: s.saves == 0, staying
        )
        return steps

    def emit(self, steps, numbers, operators, free, staying):
        """Steps of operators whose storages are their own and freed after their last use."""
        for number in numbers:
            operator = operators[number]
            for storage in operator.made:
                if storage.size and not storage.late:
                    kind = SIDE if operator.side else ALLOC
                    steps.append((kind, self.slot_of(storage), storage.size))
            if operator.once is not None:
                steps.append((ONCE, operator.once, 0))
            if operator.work:
                steps.append((WORK, operator.work, 0))
            if operator.us:
                steps.append((SPEND, operator.us, 0))
            dead = {}
            for storage in operator.used + operator.made:
                if storage.last == number and not storage.outside and free(storage):
                    if id(storage) not in staying and storage.size and not storage.late:
                        dead[storage.slot] = storage
            for slot in sorted(dead, reverse=True):
                steps.append((FREE, slot, 0))

    def again(self, segment, steps):
        """The segment's operators once more, with storages of their own."""
        fresh = segment.fresh = {}
        needed = {}
        for node in self.nodes:
            if node.segment is segment:
                for storage in node.saved:
                    needed[id(storage)] = needed.get(id(storage), 0) + 1
        last = {}
        numbers = range(segment.begin, segment.stop)
        copies = {}
        for number in numbers:
            operator = self.operators[number]
            made = []
            for storage in operator.made:
                copy = fresh[id(storage)] = Storage(storage.size)
                copy.saves = needed.get(id(storage), 0) + (storage is segment.result)
                made.append(copy)
            used = [fresh[id(s)] for s in operator.used if id(s) in fresh]
            for storage in used + made:
                last[id(storage)] = number
            copies[number] = Operator(made, used, operator.work, operator.once, operator.us)
        for number in numbers:
            for storage in self.operators[number].made:
                copy = fresh[id(storage)]
                copy.last = last[id(copy)]
                if storage.last >= segment.stop:  # a variable has it when the second run stops
                    copy.last = segment.stop - 1
                    copies[segment.stop - 1].used.append(copy)
        for tensor in self.cached:
            if id(tensor.storage) in fresh:  # autocast keeps its copies until the end of this, too
                fresh[id(tensor.storage)].last = segment.stop - 1
                copies[segment.stop - 1].used.append(fresh[id(tensor.storage)])
        # What is saved by nodes of the segment but made outside of it stays by itself.
        for node in self.nodes:
            if node.segment is segment:
                for storage in node.saved:
                    if id(storage) not in fresh:
                        if storage.saves == 0:
                            raise ValueError("a checkpointed piece saves what is not its input")
                        storage.saves += 1
        self.emit(steps, numbers, copies, lambda s: s.saves == 0, ())

    def backward(self, root, seeded=True):
        """Backward's steps from the tensor `root` on, whose gradient is given as the last input if
        not `seeded`; and the slots of the inputs' gradients."""
        back = Backward(self)
        return back.walk(root, seeded)


class Backward:
    def __init__(self, graph):
        self.graph = graph
        self.steps = []

    # ---- for the operators' rules ----

    def alloc(self, size):
        storage = Storage(size)
        storage.holds = 1
        if size:
            self.steps.append((ALLOC, self.graph.slot_of(storage), size))
        return storage

    def temporary(self, *sizes):
        """Memory for a moment: of several the last is given back first."""
        if sizes:
            self.steps.append((WORK, sizes, 0))

    def once(self, key):
        self.steps.append((ONCE, key, 0))

    def spend(self, us):
        self.steps.append((SPEND, us, 0))

    def share(self, gradient):
        gradient.whole.holds += 1
        return gradient

    def part(self, gradient, size, dense):
        return Part(self.share(gradient).whole, size, dense and gradient.dense)

    def view(self, gradient):
        """The gradient itself with another shape."""
        return None if gradient is None else Part(gradient.whole, gradient.size, gradient.dense)

    def in_order(self, gradient):
        """What of a gradient is to be freed by who wants it dense: a copy, if there is one."""
        return [] if gradient.dense else [self.alloc(gradient.size)]

    def free(self, gradient):
        storage = gradient.whole
        storage.holds -= 1
        if storage.holds == 0 and not storage.outside and storage.size:
            self.steps.append((FREE, storage.slot, 0))

    # ---- the engine ----

    def waits(self, root):
        """How many gradients each reachable node and leaf still gets."""
        count = {}
        stack = [root]
        seen = {root.rank}
        while stack:
            node = stack.pop()
            for edge in node.edges:
                if edge is None:
                    continue
                target = edge if isinstance(edge, Leaf) else edge[0]
                count[target] = count.get(target, 0) + 1
                if target.__class__ is Node and target.rank not in seen:
                    seen.add(target.rank)
                    stack.append(target)
        return count

    def accumulate(self, old, new):
        if old is None:
            return new
        if new is None:
            return old
        if old.whole is old and old.holds == 1 and not old.outside:
            self.spend(cost(3 * old.size))
            self.free(new)
            return old
        total = self.alloc(old.size or new.size)
        self.spend(cost(3 * total.size))
        self.free(old)
        self.free(new)
        return total

    def finish_leaf(self, leaf, gradient):
        if gradient is None:
            return
        if leaf.number is None:
            self.input_gradients[leaf] = gradient
            return
        if not gradient.dense or gradient.holds > 1 or gradient.outside:
            copy = self.alloc(gradient.size)
            self.free(gradient)
            gradient = copy
        self.steps.append((GRAD, leaf.number, gradient.slot))

    def nested(self):
        """Whether the node is of a segment whose backward is one of its own."""
        return self.node.segment is not None and self.node.segment.reentrant

    def run_again(self, segment, gradients):
        """Before the first node of a segment that wants what it saved, or, where it is reentrant,
        before its first."""
        if segment is None or segment.fresh is not None:
            return
        if segment.reentrant:
            segment.first = self.share(next(gradient for gradient in gradients if gradient))
        elif not self.node.saves:
            return
        self.graph.again(segment, self.steps)

    def let_go(self):
        """What was made again for the node is its rule's own, and goes when that wants no more."""
        segment = self.node.segment
        if segment is not None and not segment.reentrant:
            self.release(self.node)

    def release(self, node):
        if node.released:
            return
        node.released = True
        segment = node.segment
        early = segment is not None and not segment.reentrant
        for storage in node.saved[::-1] if early else node.saved:
            if segment is not None and id(storage) in segment.fresh:
                storage = segment.fresh[id(storage)]
            self.drop(storage)
        if segment is not None and (node.saves or segment.reentrant):
            segment.nodes -= 1
            if segment.nodes == 0:
                self.finish(segment)

    def finish(self, segment):
        """All of a segment's backward is done."""
        if segment.reentrant:
            self.drop(segment.fresh[id(segment.result)])
            self.free(segment.first)
        for storage in segment.held:
            self.drop(storage)

    def drop(self, storage):
        storage.saves -= 1
        if storage.saves == 0 and storage.size:
            self.steps.append((FREE, storage.slot, 0))

    def seed(self, root, seeded):
        if seeded:
            gradient = self.alloc(root.size)
            self.spend(LAUNCH_US)
        else:
            gradient = Storage(root.size, outside=True)
            gradient.slot = -1 - len(self.graph.inputs)
            gradient.holds = 1
        # Who called backward holds it, too.
        return self.share(gradient)

    def walk(self, root, seeded):
        first, which = root.source
        self.input_gradients = {}
        waiting = self.waits(first)
        seed = self.seed(root, seeded)
        buffers = {first: [None] * first.outputs}
        buffers[first][which] = seed
        ready = [-first.rank]
        by_rank = self.graph.nodes
        done = set()
        while ready:
            node = by_rank[-heapq.heappop(ready)]
            done.add(node.rank)
            gradients = buffers.pop(node)
            self.node = node
            self.run_again(node.segment, gradients)
            if any(gradient is not None for gradient in gradients):
                results = node.rule(self, gradients)
            else:
                results = [None] * len(node.edges)
            self.let_go()
            for gradient in gradients:
                if gradient is not None:
                    self.free(gradient)
            self.release(node)
            for edge, result in zip(node.edges, results):
                self.pass_on(edge, result, buffers, waiting, ready)
        if seeded:
            self.free(seed)
        for node in by_rank:  # nothing led back to it: it goes with the graph
            if node.rank not in done and (node.segment is None or node.segment.fresh is not None):
                self.release(node)
        return self.steps, [gradient.slot for gradient in self.input_gradients.values()]

    def pass_on(self, edge, gradient, buffers, waiting, ready):
        if edge is None:
            if gradient is not None:
                self.free(gradient)
            return
        if edge.__class__ is Leaf:
            if edge.number is not None and self.nested():
                # The segment's own backward adds it to what the parameter has.
                self.finish_leaf(edge, gradient)
                gradient = None
            target, which, places = edge, 0, 1
        else:
            target, which = edge
            places = target.outputs
        places = buffers.setdefault(target, [None] * places)
        places[which] = self.accumulate(places[which], gradient)
        waiting[target] -= 1
        if waiting[target]:
            return
        if edge.__class__ is Leaf:
            self.finish_leaf(edge, buffers.pop(edge)[0])
        else:
            heapq.heappush(ready, -target.rank)
