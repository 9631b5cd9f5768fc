"""What a step of an optimizer allocates: states in the first one, and its temporaries.

Adam(W) and SGD as torch.optim has them, foreach or fused; clipping of the gradients' norm before;
with "master", the optimizer works on fp32 copies of bf16 weights.
"""

from drawing.graph import cost

CHUNK = 65536  # elements that one block of a foreach kernel takes


def groups_of(sizes, items):
    """Sizes by type, as torch's foreach groups them: in a hash table, whose newest entry is first."""
    groups = {}
    for size, item in zip(sizes, items):
        groups.setdefault(item, []).append(size)
    return list(groups.values())[::-1]


def free_all(memory, blocks):
    """Frees what a list held: the last one goes first."""
    for block in reversed(blocks):
        memory.free(block)


class Optimizer:
    def __init__(self, config, trained, sizes, items):
        """`sizes`: bytes that this rank steps of each parameter; `items`: bytes of an element."""
        self.kind = config["optimizer"]  # adam or sgd
        self.way = config["optimizer_way"]  # foreach, fused, loop, host, flat
        self.clip = config["clip"]
        self.most = max(parameter.count for parameter in trained)
        self.sizes = sizes
        self.groups = groups_of(sizes, items)
        self.started = False

    def moved(self, times):
        return sum(self.sizes) * times

    def clip_norm(self, run):
        """clip_grad_norm_: each gradient's norm, theirs, and a factor. It is foreach whatever the
        optimizer is, since its own argument says so and its default on a GPU is foreach."""
        memory, count = run.memory, len(self.sizes)
        work = memory.alloc(4 * count * -(-self.most // CHUNK))
        norms = [memory.alloc(4) for _ in self.sizes]
        memory.spend(cost(self.moved(1)))
        memory.free(work)
        stacked, total = memory.alloc(4 * count), memory.alloc(4)
        memory.spend(cost() * 2)
        memory.free(stacked)
        free_all(memory, norms)
        factors = [memory.alloc(4) for _ in range(3)]
        memory.free(factors[1])
        memory.free(factors[0])
        clamped = memory.alloc(4)
        memory.spend(cost(self.moved(2)))
        memory.free(factors[2])
        memory.free(clamped)
        memory.free(total)  # the caller has it, and drops it

    def step(self, run):
        if self.clip:
            self.clip_norm(run)
        if self.way == "flat":
            self.flat(run)
        else:
            getattr(self, self.kind)(run)
        self.started = True

    def adam(self, run):
        memory = run.memory
        if not self.started and self.way != "host":
            for size in self.sizes:
                if self.way == "fused":
                    run.keep(4)  # the step's number is on the device
                run.keep(size)
                run.keep(size)
        if self.way == "fused":
            memory.spend(cost(self.moved(7)))
        elif self.way == "foreach":
            self.adam_foreach(memory)
        elif self.way == "loop":
            self.adam_loop(memory)
        else:  # the states are the host's: gradients go there, weights come back, piece by piece
            for size in self.sizes:
                staged = memory.alloc(size)
                memory.spend(max(10.0, 2 * size / 5e4))
                memory.free(staged)

    def adam_foreach(self, memory):
        """The roots of one type's parameters are a variable, which lives until the next type's are
        made."""
        last = []
        for group in self.groups:
            roots = [memory.alloc(size) for size in group]
            memory.spend(cost(14 * sum(group)))
            free_all(memory, last)
            last = roots
        free_all(memory, last)

    def adam_loop(self, memory):
        """A parameter's quotient is a variable, which lives until the next one's is made."""
        last = []
        for size in self.sizes:
            root, quotient = memory.alloc(size), memory.alloc(size)
            memory.spend(cost(14 * size))
            memory.free(root)
            free_all(memory, last)
            last = [quotient]
        free_all(memory, last)

    def flat(self, run):
        """Not torch's: all in one, gradients gathered into a buffer for the step."""
        memory, whole = run.memory, self.moved(1)
        gradients = memory.alloc(whole)
        memory.spend(cost(2 * whole))
        if not self.started:
            for _ in range(3):
                run.keep(whole)
        updates = memory.alloc(whole)
        memory.spend(cost(8 * whole))
        memory.free(gradients)
        memory.free(updates)

    def sgd(self, run):
        memory = run.memory
        if self.way == "fused":
            self.make_momenta(run)
            memory.spend(cost(self.moved(5)))
            return
        if self.way == "foreach":
            decayed = [memory.alloc(size) for size in self.sizes]
            memory.spend(cost(self.moved(3)))
            self.make_momenta(run)
            memory.spend(cost(self.moved(5)))
            free_all(memory, decayed)
            return
        for size in self.sizes:
            decayed = memory.alloc(size)
            if not self.started:
                run.keep(size)
            memory.spend(cost(8 * size))
            memory.free(decayed)

    def make_momenta(self, run):
        if not self.started:
            for size in self.sizes:
                run.keep(size)
