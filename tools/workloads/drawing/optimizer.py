"""What a step of an optimizer allocates: states in the first one, and its temporaries.

Adam(W) and SGD as torch.optim has them, foreach or fused; clipping of the gradients' norm before;
with "master", the optimizer works on fp32 copies of bf16 weights.
"""

from drawing.graph import cost

CHUNK = 65536  # elements that one block of a foreach kernel takes


class Optimizer:
    def __init__(self, config, trained, sizes):
        """`sizes`: bytes that this rank steps of each parameter."""
        self.kind = config["optimizer"]  # adam or sgd
        self.way = config["optimizer_way"]  # foreach, fused, loop, host, flat
        self.clip = config["clip"]
        self.most = max(parameter.count for parameter in trained)
        self.sizes = sizes
        self.started = False

    def moved(self, times):
        return sum(self.sizes) * times

    def clip_norm(self, run):
        """clip_grad_norm_: each gradient's norm, theirs, and a factor."""
        memory, count = run.memory, len(self.sizes)
        if self.way == "loop":
            norms = []
            for size in self.sizes:
                norms.append(memory.alloc(4))
                memory.spend(cost(size))
        else:
            work = memory.alloc(4 * count * -(-self.most // CHUNK))
            norms = [memory.alloc(4) for _ in self.sizes]
            memory.spend(cost(self.moved(1)))
            memory.free(work)
        stacked, total = memory.alloc(4 * count), memory.alloc(4)
        memory.spend(cost() * 2)
        memory.free(stacked)
        for norm in reversed(norms):
            memory.free(norm)
        factors = [memory.alloc(4) for _ in range(3)]
        memory.free(factors[1])
        memory.free(factors[0])
        clamped = memory.alloc(4)
        memory.spend(cost(self.moved(2)))
        memory.free(factors[2])
        memory.free(total)
        memory.free(clamped)

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
            roots = [memory.alloc(size) for size in self.sizes]
            memory.spend(cost(self.moved(14)))
            for root in reversed(roots):
                memory.free(root)
        elif self.way == "loop":
            for size in self.sizes:
                root = memory.alloc(size)
                quotient = memory.alloc(size)
                memory.spend(cost(14 * size))
                memory.free(root)
                memory.free(quotient)
        else:  # the states are the host's: gradients go there, weights come back, piece by piece
            for size in self.sizes:
                staged = memory.alloc(size)
                memory.spend(max(10.0, 2 * size / 5e4))
                memory.free(staged)

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
        if self.way == "foreach":
            decayed = [memory.alloc(size) for size in self.sizes]
            memory.spend(cost(self.moved(3)))
            if not self.started:
                for size in self.sizes:
                    run.keep(size)
            memory.spend(cost(self.moved(5)))
            for one in reversed(decayed):
                memory.free(one)
            return
        for size in self.sizes:
            decayed = memory.alloc(size)
            if not self.started:
                run.keep(size)
            memory.spend(cost(8 * size))
            memory.free(decayed)
