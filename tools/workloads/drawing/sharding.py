"""Blocks whose weights are shards, gathered on a stream of their own when they are wanted.

As FSDP does it: while one block runs the next one's weights are gathered, in forward and again in
backward; what backward makes of a block's gradients is scattered at once. The gathered weights are
used on the main stream and given back by record_stream, so their memory is free only later.

FSDP2 (fully_shard) copies what is gathered into a storage for each weight, on the main stream; in
forward it gathers a block's weights when the block begins, and keeps what was gathered until the next
block's are copied.
"""

from drawing.graph import LAUNCH_US, REDUCE, SIDE, Storage, Tensor

LINK_RATE = 3e5  # bytes a microsecond between devices


def link_us(size):
    return 20 + size / LINK_RATE


def gathering(ops, config, spans):
    if config["gathered"] == "one":
        return Gathering(ops, spans)
    # Shards in fp32 are cast to bf16 before they are gathered.
    return GatheringEach(ops, spans, config["world"] if config["precision"] == "master" else None)


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

    def done(self, x):
        """The model's forward has ended; its result."""
        return x


class GatheringEach(Gathering):
    """With a storage for each weight."""

    def __init__(self, ops, spans, cast_by):
        super().__init__(ops, spans)
        self.cast_by = cast_by  # how many shards there are, where they are cast
        self.last = ()  # what was gathered last, in forward
        self.fetched = {}  # block -> what was gathered ahead, in backward

    def shard_size(self, number):
        return sum(-(-parameter.count // self.cast_by) for parameter in self.spans[number]) * 2

    def sizes(self, number):
        return [2 * parameter.count for parameter in self.spans[number]]

    def before(self, number, x):
        cast = ()
        if self.cast_by:
            cast = self.ops.run([], [((self.shard_size(number),), 1)])
            self.ops.operators[-1].side = True
        whole = self.ops.run(cast, [((self.size(number),), 1)], us=LAUNCH_US)
        self.ops.operators[-1].side = True
        self.there[number] = self.ops.run(whole, [((size,), 1) for size in self.sizes(number)])
        self.ops.hold(*self.last)
        self.last = whole
        numbers = tuple(parameter.number for parameter in self.spans[number] if parameter.trained)

        def rule(back, gradients):
            for storage in self.again.pop(number):
                back.free(storage)
            back.steps.append((REDUCE, numbers, 0))
            return [back.share(gradients[0])]

        return self.passing(x, rule)

    def behind(self, number, x):
        self.ops.hold(*self.there.pop(number))

        def rule(back, gradients):
            self.ahead(back, number)
            self.again[number] = [back.alloc(size) for size in self.sizes(number)]
            back.free(self.fetched.pop(number))
            if number > 0:
                self.ahead(back, number - 1)
            return [back.share(gradients[0])]

        return self.passing(x, rule)

    def ahead(self, back, number):
        if number in self.fetched:
            return
        cast = self.side_alloc(back, self.shard_size(number)) if self.cast_by else None
        self.fetched[number] = self.side_alloc(back, self.size(number))
        if cast is not None:
            back.free(cast)

    def done(self, x):
        """What was gathered last goes; backward begins with gathering the last block's weights."""
        self.ops.hold(*self.last)

        def rule(back, gradients):
            self.ahead(back, len(self.spans) - 1)
            return [back.share(gradients[0])]

        return self.passing(x, rule)
