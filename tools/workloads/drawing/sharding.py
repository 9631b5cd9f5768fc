"""Blocks whose weights are shards, gathered on a stream of their own when they are wanted.

As FSDP does it: while one block runs the next one's weights are gathered, in forward and again in
backward; what backward makes of a block's gradients is scattered at once. The gathered weights are
used on the main stream and given back by record_stream, so their memory is free only later.
"""

from drawing.graph import LAUNCH_US, REDUCE, SIDE, Storage, Tensor

LINK_RATE = 3e5  # bytes a microsecond between devices


def link_us(size):
    return 20 + size / LINK_RATE


class Gathering:
    """The blocks of one graph: which are gathered now."""

    def __init__(self, ops, spans):
        self.ops = ops
        self.spans = spans
        self.there = {}  # block -> its weights, in forward
        self.again = {}  # the same in backward

    def size(self, number):
        return sum(parameter.count for parameter in self.spans[number]) * 2

    def fetch(self, number):
        if number in self.there or number >= len(self.spans):
            return
        (whole,) = self.ops.run([], [((self.size(number) // 2,), 2)], us=LAUNCH_US)
        self.ops.operators[-1].side = True
        self.there[number] = whole

    def before(self, number, x):
        """A block begins; the tensor that it gets."""
        self.fetch(number)
        self.fetch(number + 1)
        numbers = tuple(parameter.number for parameter in self.spans[number] if parameter.trained)

        def rule(back, gradients):
            if number in self.again:
                back.free(self.again.pop(number))
            back.steps.append((REDUCE, numbers, 0))
            return [back.share(gradients[0])]

        return self.passing(x, rule)

    def behind(self, number, x):
        """A block has ended; its result."""
        self.ops.hold(self.there.pop(number))

        def rule(back, gradients):
            for wanted in (number, number - 1):
                if wanted >= 0 and wanted not in self.again:
                    self.again[wanted] = self.side_alloc(back, self.size(wanted))
            return [back.share(gradients[0])]

        return self.passing(x, rule)

    def passing(self, x, rule):
        if x.source is None:
            return x
        y = Tensor(x.storage, x.shape, x.item)
        self.ops.node(rule, [x], [y], [])
        return y

    @staticmethod
    def side_alloc(back, size):
        storage = Storage(size)
        storage.holds = 1
        back.steps.append((SIDE, back.graph.slot_of(storage), size))
        back.spend(LAUNCH_US)
        return storage
