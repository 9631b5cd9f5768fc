"""Runs a job: plays its programs in the schedule's order and records what they allocate."""

import pipeline

from drawing.graph import ALLOC, FREE, GRAD, ONCE, REDUCE, SIDE, SPEND, WORK, cost
from drawing.optimizer import Optimizer
from drawing.sharding import link_us
from drawing.snapshot import Memory
from drawing.workspace import LIBRARIES

HOST_RATE = 5e4  # to and from the host


class Flight:
    """A microbatch in a stage, from forward to backward."""

    __slots__ = ("program", "slots", "inputs", "output")


class Run:
    def __init__(self, config, batches, model):
        self.config = config
        self.batches = batches
        self.model = model
        self.memory = Memory()
        self.gradients = {}
        self.stale = False  # the gradients are of a step that is done
        self.workspaces = set()
        self.flights = {}
        self.sent = {}  # (microbatch, stage) -> gradient of its output
        self.last_batch = ()  # what the variable of the loop has
        self.coming = None  # the batch behind it, where it is there already
        self.shapes = None  # of the iteration that comes, where they are drawn already
        self.outputs = ()  # of the last forward, where a variable of the program keeps them
        self.world, self.sharding = config["world"], config["sharding"]
        self.sharded = set()  # parameters that lie here only in part
        if self.sharding == "layers":
            self.sharded = {p.number for span in model.spans for p in span}
        self.fetched = {}  # address on the side stream -> since when
        self.reducing = None  # what is on its way to the other ranks
        self.scalars = []  # losses, until they are logged
        self.marked = config["marks"]
        self.steps = 0  # that the optimizer has done
        self.make_weights()

    # ---- what stays ----

    def share(self, parameter):
        """Elements of a parameter that this rank's optimizer steps."""
        if self.sharding == "layers" and parameter.number not in self.sharded:
            return parameter.count
        return -(-parameter.count // self.world)

    def keep(self, size):
        """Allocates for good."""
        return self.memory.alloc(size) if size else None

    def make_weights(self):
        weights = self.model.weights
        for parameter in weights.all:
            drawn = self.memory.alloc(parameter.size) if parameter.scaled else None
            if parameter.number in self.sharded:
                # Made whole, block by block, and only the share is kept.
                drawn = self.memory.alloc(parameter.size)
                self.keep(self.share(parameter) * self.item(parameter))
            else:
                self.keep(parameter.size)
            self.memory.spend(cost(parameter.size))
            if drawn is not None:
                self.memory.free(drawn)
        for size in weights.buffers:
            self.keep(size)
        # LoRA's reference is its own model without what it adds.
        if self.config["reference"] and self.config["family"] != "lora":
            for parameter in weights.all:
                self.keep(parameter.size)
                self.memory.spend(cost(parameter.size))
        self.trained = sorted(
            (parameter for parameter in weights.all if parameter.trained),
            key=lambda parameter: parameter.place,
        )
        if self.config["precision"] == "master":
            self.make_masters()
        items = [self.item(parameter) for parameter in self.trained]
        sizes = [self.share(parameter) * item for parameter, item in zip(self.trained, items)]
        self.optimizer = Optimizer(self.config, self.trained, sizes, items)

    def item(self, parameter):
        """Bytes of an element where the optimizer works."""
        return 4 if self.config["precision"] == "master" else parameter.item

    def make_masters(self):
        masters = [p for p in self.trained if p.number not in self.sharded]
        for parameter in masters:
            size = 4 * self.share(parameter)
            cast = self.memory.alloc(size)
            self.keep(size)
            self.memory.spend(cost(4 * size))
            self.memory.free(cast)
        if self.sharding == "none":
            for parameter in masters:  # their gradients are summed in fp32
                self.keep(4 * parameter.count)
                self.memory.spend(cost(4 * parameter.count))

    # ---- playing ----

    def play(self, steps, slots, inputs, thread):
        memory = self.memory
        alloc, free = memory.alloc, memory.free
        for kind, first, second in steps:
            if kind == ALLOC:
                slots[first] = alloc(second)
            elif kind == FREE:
                block = slots[first]
                if block[2]:
                    self.free_behind(block)
                else:
                    free(block)
            elif kind == SPEND:
                memory.now += first
            elif kind == WORK:
                held = [alloc(size) for size in first]
                for block in reversed(held):
                    free(block)
            elif kind == ONCE:
                self.workspace(thread, first)
            elif kind == GRAD:
                self.gradient(first, slots[second])
            elif kind == SIDE:
                slots[first] = alloc(second, 1)
                self.fetched[slots[first][0]] = memory.now
            elif kind == REDUCE:
                self.reduce(first)

    def free_behind(self, block):
        """Gathered weights are given back before the main stream is through with them: some part of
        the time they have been there (FSDP lets two gatherings be under way at most). Without a lag
        the side stream was made to wait for the main one, as FSDP2 does, and they are free at once."""
        there = self.memory.now - self.fetched.pop(block[0])
        if self.config["lag"] == 0:
            self.memory.free(block)
        else:
            self.memory.free_after(block, self.config["lag"] * there)

    def workspace(self, thread, name):
        if (thread, name) in self.workspaces:
            return
        for number, size in enumerate(LIBRARIES[name]):
            if (thread, number) not in self.workspaces:
                self.workspaces.add((thread, number))
                self.keep(size)
        self.workspaces.add((thread, name))

    def gradient(self, number, block):
        """AccumulateGrad: the first is taken as it is, others are added to it."""
        if number not in self.gradients:
            self.gradients[number] = block
            return
        self.memory.spend(cost(3 * block[1]))
        self.memory.free(block)

    def reduce(self, numbers):
        """The gradients of a block go out in one, and its share of the sums comes back."""
        blocks = [self.gradients.pop(n) for n in numbers if n in self.gradients]
        if not blocks:
            return
        each = self.config["gathered"] == "each"
        if each:
            self.finish_reduce()
        flat = self.memory.alloc(sum(block[1] for block in blocks))
        self.memory.spend(cost(2 * flat[1]))
        count = -(-flat[1] // (2 * self.world))
        if each:
            share = self.reduced_each(blocks, count)
        else:
            self.release(blocks)
            item = 4 if self.config["precision"] == "master" else 2
            share = self.memory.alloc(count * item, 2)
        self.gradient(("share", numbers), share)
        self.finish_reduce()
        self.reducing = flat

    def reduced_each(self, blocks, count):
        """A variable keeps the last gradient until its share of the sum is there, which comes in bf16
        and is cast where shards are fp32."""
        self.release(blocks[:-1])
        share = self.memory.alloc(2 * count, 2)
        if self.config["precision"] == "master":
            narrow, share = share, self.memory.alloc(4 * count, 2)
            self.memory.free(narrow)
        self.memory.free(blocks[-1])
        return share

    def finish_reduce(self):
        if self.reducing is not None:
            self.memory.free(self.reducing)
            self.reducing = None

    def drop_gradients(self):
        self.stale = False
        for parameter in self.trained:
            block = self.gradients.pop(parameter.number, None)
            if block is not None:
                self.memory.free(block)
        for name in list(self.gradients):
            self.memory.free(self.gradients.pop(name))

    def scatter(self):
        """Each rank gets the sum of its share of each gradient, in fp32."""
        for parameter in self.trained:
            block = self.gradients.get(parameter.number)
            if block is None:
                continue
            self.gradients[parameter.number] = self.memory.alloc(4 * self.share(parameter))
            self.memory.spend(link_us(block[1]))
            self.memory.free(block)

    def mark(self, iteration, phase):
        """Where steps mark, an iteration ends behind the optimizer's step, and nobody tells where the first begins."""
        by_steps = self.config["steps"]
        label = "iter=%d;phase=%s" % (self.steps if by_steps else iteration, phase)
        if by_steps and self.steps == 0:
            label = "phase=%s" % phase
        self.memory.label = label if self.marked else ""

    # ---- one microbatch ----

    def batch(self, shape):
        """The data of a microbatch come from the host."""
        blocks = [self.memory.alloc(size) for size in self.model.batch(shape)]
        self.memory.spend(sum(block[1] for block in blocks) / HOST_RATE + 10)
        return blocks

    def hand_over(self, batch):
        self.release(self.last_batch)
        self.last_batch = batch

    def feed(self, shape):
        self.hand_over(self.batch(shape))

    def fetches(self, when):
        return self.model.feeds and self.config["fetch"] == when

    def slots(self, program, inputs):
        """Inputs are at the end, so that input k has slot -1 - k."""
        return [None] * program.slots + list(inputs)[::-1]

    def release(self, blocks):
        for block in blocks:
            self.memory.free(block)

    def forward(self, microbatch, stage, shape):
        inputs = []
        if self.fetches("each") or (self.fetches("ahead") and self.coming is None):
            self.feed(shape)
        if self.config["reference"]:
            self.look(shape)
        program = self.model.trace(stage, shape)
        if stage > 0:
            # What the stage before, on another rank, sent.
            inputs.append(self.memory.alloc(program.inputs[-1]))
        flight = Flight()
        flight.program, flight.inputs = program, inputs
        flight.slots = self.slots(program, inputs)
        self.play(program.forward, flight.slots, inputs, "forward")
        flight.output = flight.slots[program.output]
        self.leave(program, flight.slots)
        self.flights[microbatch, stage] = flight

    def leave(self, program, slots):
        """Outputs of the last forward go when the variable gets these."""
        if program.left:
            self.release(self.outputs)
            self.outputs = [slots[slot] for slot in (program.output, *program.left)]

    def backward(self, microbatch, stage):
        flight = self.flights.pop((microbatch, stage))
        last = self.model.stages - 1
        sent = None
        if stage < last or not self.model.has_loss:
            sent = self.memory.alloc(flight.program.output_size)
        label, self.memory.label = self.memory.label, ""
        self.play(flight.program.backward, flight.slots, flight.inputs, "backward")
        self.memory.label = label
        self.release([flight.slots[slot] for slot in flight.program.gradients])
        self.release(flight.inputs)
        self.release([flight.slots[slot] for slot in flight.program.kept])
        if not flight.program.left:
            self.memory.free(flight.output)
        if sent is not None:
            self.memory.free(sent)
        self.finish_reduce()
        if self.config["precision"] == "master" and self.sharding == "none":
            self.memory.spend(cost(sum(b[1] for b in self.gradients.values()) * 5))
            self.drop_gradients()

    # ---- what comes between ----

    def evaluate(self):
        """Batches forward without gradients."""
        if self.config["fetch"] == "each":
            self.look_at_all()
            return
        # What was fetched for training stays beside it.
        trained, self.last_batch = self.last_batch, ()
        self.look_at_all()
        self.hand_over(trained)

    def look_at_all(self):
        for shape in self.batches.evaluation():
            self.feed(shape)
            self.look(shape)

    def look(self, shape):
        """A batch forward without gradients."""
        program = self.model.trace(0, shape, training=False)
        slots = self.slots(program, ())
        self.play(program.forward, slots, (), "forward")
        self.leave(program, slots)
        if not program.left:
            self.memory.free(slots[program.output])

    def generate(self):
        """Token after token; what is kept of those before grows."""
        config, past = self.config, 0
        samples = config["samples"]
        caches = []
        for new in [min(128, -(-config["length"] // 4))] + [1] * (config["generated"] - 1):
            program = self.model.generating(samples, past, new)
            tokens = self.memory.alloc(8 * samples * new)
            slots = self.slots(program, [tokens] + caches)
            self.play(program.forward, slots, (), "forward")
            caches = [slots[slot] for slot in program.kept]
            self.memory.free(tokens)
            past += new
        self.release(caches)

    def save(self):
        """Weights go to the host in fp32, each in one piece, whoever has the rest of it."""
        for parameter in self.model.weights.all:
            if self.sharding == "none" and parameter.item == 4:
                self.memory.spend(parameter.size / HOST_RATE)
                continue
            whole = self.memory.alloc(4 * parameter.count)
            self.memory.spend(link_us(whole[1]) + whole[1] / HOST_RATE)
            self.memory.free(whole)

    def log(self):
        """How large the gradients' blocks are, and the losses so far."""
        for parameter in self.trained[:: max(1, len(self.trained) // 16)]:
            block = self.gradients.get(parameter.number)
            if block is not None:
                absolute = self.memory.alloc(block[1])
                mean = self.memory.alloc(4)
                self.memory.spend(cost(2 * block[1]))
                self.memory.free(absolute)
                self.memory.free(mean)
        if self.scalars:
            stacked = self.memory.alloc(4 * len(self.scalars))
            self.release(self.scalars)
            self.scalars = []
            self.memory.spend(30)
            self.memory.free(stacked)

    # ---- iterations ----

    def due(self, name, number):
        every = self.config[name + "_every"]
        return every and (number + 1) % every == 0

    def draw_shapes(self, number):
        shapes = self.shapes or self.batches.iteration(number)
        self.shapes = self.batches.iteration(number + 1) if self.fetches("ahead") else None
        return shapes

    def iteration(self, number):
        shapes = self.draw_shapes(number)
        if self.fetches("step"):
            self.mark(number, pipeline.FORWARD)
            self.hand_over([block for shape in shapes for block in self.batch(shape)])
        order = pipeline.order(len(shapes), self.model.stages, self.config["depth"])
        for kind, microbatch, stage in order:
            self.mark(number, kind)
            if kind == pipeline.FORWARD:
                self.forward(microbatch, stage, shapes[microbatch])
                if self.fetches("ahead"):
                    self.coming = self.batch((shapes + self.shapes)[microbatch + 1])
            else:
                if self.stale:
                    self.drop_gradients()
                self.backward(microbatch, stage)
                if self.fetches("ahead"):
                    self.hand_over(self.coming)
        if self.config["logging_every"]:
            self.scalars.append(self.memory.alloc(4))
        if self.due("logging", number):
            self.log()
        if self.sharding == "scatter":
            self.scatter()
        self.mark(number, "opt")
        self.optimizer.step(self)
        self.steps += 1
        self.mark(number, "opt")
        if self.config["gradients_stay"]:
            self.stale = True
        else:
            self.drop_gradients()
        for name, act in (
            ("evaluation", self.evaluate),
            ("generation", self.generate),
            ("checkpoint", self.save),
        ):
            if self.due(name, number):
                self.mark(number, name)
                act()

    def all(self):
        for number in range(self.config["iterations"]):
            self.iteration(number)
        # What comes behind the last iteration says where it ends.
        self.mark(self.config["iterations"], "iter")
        self.memory.settle(float("inf"))
        self.release([self.memory.alloc(4)])
        self.release(self.last_batch)
        self.release(self.outputs)
        return self.memory
