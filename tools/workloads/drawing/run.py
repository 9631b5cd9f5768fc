"""Runs a job: plays its programs in the schedule's order and records what they allocate."""

import pipeline

from drawing.graph import ALLOC, FREE, GRAD, ONCE, SPEND, WORK, cost
from drawing.model import LINK_RATE
from drawing.optimizer import Optimizer
from drawing.snapshot import Memory
from drawing.torch_ops import WORKSPACES

HOST_RATE = 5e4  # to and from the host


class Flight:
    """A microbatch in a stage, from forward to backward."""

    __slots__ = ("program", "slots", "inputs", "output")


class Run:
    def __init__(self, job, model):
        self.job = job
        self.config = job.config
        self.model = model
        self.memory = Memory()
        self.gradients = {}
        self.workspaces = set()
        self.flights = {}
        self.sent = {}  # (microbatch, stage) -> gradient of its output
        self.last_batch = ()
        self.world = job.config.get("world", 1)
        self.marked = job.config["marks"]
        self.make_weights()

    # ---- what stays ----

    def share(self, parameter):
        """Elements of a parameter that this rank's optimizer steps."""
        return -(-parameter.count // self.world)

    def keep(self, size):
        """Allocates for good."""
        return self.memory.alloc(size) if size else None

    def make_weights(self):
        weights = self.model.weights
        for parameter in weights.all:
            drawn = self.memory.alloc(parameter.size) if parameter.scaled else None
            self.keep(parameter.size)
            self.memory.spend(cost(parameter.size))
            if drawn is not None:
                self.memory.free(drawn)
        for size in weights.buffers:
            self.keep(size)
        self.trained = sorted(
            (parameter for parameter in weights.all if parameter.trained),
            key=lambda parameter: parameter.place,
        )
        if self.config["precision"] == "master":
            for parameter in self.trained:
                size = 4 * self.share(parameter)
                cast = self.memory.alloc(size)
                self.keep(size)
                self.memory.spend(cost(4 * size))
                self.memory.free(cast)
        if self.config["precision"] == "master" and self.world == 1:
            for parameter in self.trained:  # their gradients are summed in fp32
                self.keep(4 * parameter.count)
                self.memory.spend(cost(4 * parameter.count))
        self.optimizer = Optimizer(self.config, self.trained, self.world)

    # ---- playing ----

    def play(self, steps, slots, inputs, thread):
        memory = self.memory
        alloc, free = memory.alloc, memory.free
        for kind, first, second in steps:
            if kind == ALLOC:
                slots[first] = alloc(second)
            elif kind == FREE:
                free(slots[first])
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

    def workspace(self, thread, name):
        if (thread, name) in self.workspaces:
            return
        for number, size in enumerate(WORKSPACES[name]):
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

    def drop_gradients(self):
        for parameter in self.trained:
            block = self.gradients.pop(parameter.number, None)
            if block is not None:
                self.memory.free(block)

    def scatter(self):
        """Each rank gets the sum of its share of each gradient, in fp32."""
        for parameter in self.trained:
            block = self.gradients.get(parameter.number)
            if block is None:
                continue
            self.gradients[parameter.number] = self.memory.alloc(4 * self.share(parameter))
            self.memory.spend(20 + block[1] / LINK_RATE)
            self.memory.free(block)

    def mark(self, iteration, phase):
        self.memory.label = "iter=%d;phase=%s" % (iteration, phase) if self.marked else ""

    # ---- one microbatch ----

    def batch(self, shape):
        """The data of a microbatch come from the host."""
        blocks = [self.memory.alloc(size) for size in self.model.batch(shape)]
        self.memory.spend(sum(block[1] for block in blocks) / HOST_RATE + 10)
        return blocks

    def release(self, blocks):
        for block in blocks:
            self.memory.free(block)

    def forward(self, microbatch, stage, shape):
        last = self.model.stages - 1
        inputs = []
        if last == 0:
            batch = self.batch(shape)
            self.release(self.last_batch)
            self.last_batch = batch
        program = self.model.trace(stage, shape)
        if stage > 0:
            # What the stage before, on another rank, sent.
            inputs.append(self.memory.alloc(program.inputs[-1]))
        flight = Flight()
        flight.program, flight.inputs = program, inputs
        flight.slots = [None] * (program.slots + 1)
        self.play(program.forward, flight.slots, inputs, "forward")
        flight.output = flight.slots[program.output]
        self.flights[microbatch, stage] = flight

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
        self.memory.free(flight.output)
        if sent is not None:
            self.memory.free(sent)
        if self.config["precision"] == "master" and self.world == 1:
            self.memory.spend(cost(sum(b[1] for b in self.gradients.values()) * 5))
            self.drop_gradients()

    # ---- iterations ----

    def iteration(self, number):
        shapes = self.job.shapes(number)
        config = self.config
        order = pipeline.order(len(shapes), self.model.stages, config.get("depth", 1))
        for kind, microbatch, stage in order:
            self.mark(number, kind)
            if kind == pipeline.FORWARD:
                self.forward(microbatch, stage, shapes[microbatch])
            else:
                self.backward(microbatch, stage)
        if self.world > 1:
            self.scatter()
        self.mark(number, "opt")
        self.optimizer.step(self)
        self.drop_gradients()

    def all(self):
        for number in range(self.config["iterations"]):
            self.iteration(number)
        self.memory.settle(float("inf"))
        return self.memory
