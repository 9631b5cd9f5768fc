"""Small jobs made up without torch, each of them hard for an allocator in one way.

They stand still: what an allocator makes of them is compared from version to version of Pleat
(tests/golden), so a change here is a change there.
"""

import random
import sys

from .replays import ROOT

sys.path.insert(0, str(ROOT / "tools/workloads"))
import recording  # noqa: E402 (found by the line above)

KIB, MIB = 1 << 10, 1 << 20
LAYERS = 8


class Job:
    """Events as torch records them, 20 us apart, each labelled with iteration and phase."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.events, self.address, self.time, self.label = [], 1 << 40, 0, ""

    def event(self, action, tensor):
        self.time += 20
        address, size, stream = tensor
        self.events.append({"action": action, "addr": address, "size": size, "stream": stream,
                            "time_us": self.time, "user_metadata": self.label})

    def take(self, size, stream=0):
        tensor = (self.address, size, stream)
        self.address += (size + 1023) // 512 * 512
        self.event("alloc", tensor)
        return tensor

    def give(self, *tensors):
        for tensor in tensors:
            self.event("free_requested", tensor)
            self.event("free_completed", tensor)

    def phase(self, iteration, name):
        self.label = "iter=%d;phase=%s" % (iteration, name)

    def forward(self, width):
        """A step's layers; what each of them keeps for backward."""
        kept = []
        for layer in range(LAYERS):
            kept.append(self.take(width * 96 * KIB))
            work = self.take(width * (160 + 24 * (layer % 3)) * KIB)
            kept.append(self.take(width * 32 * KIB + 512))
            self.give(work)
        return kept

    def backward(self, kept, width):
        gradient = self.take(width * 96 * KIB)
        while kept:
            work = self.take(width * 128 * KIB)
            following = self.take(width * 96 * KIB)
            self.give(work, gradient, kept.pop())
            gradient = following
        self.give(gradient)

    def weights(self):
        return [self.take((5 + layer % 3) * MIB + 4096) for layer in range(LAYERS)]

    def step(self, weights):
        for _, size, _ in weights:
            self.give(self.take(size))


def lengths(job):
    """Every iteration draws another length, as fine-tuning does."""
    weights = job.weights()
    for number in range(12):
        job.phase(number, "F")
        width = job.draw.randrange(20, 97)
        kept = job.forward(width)
        job.phase(number, "B")
        job.backward(kept, width)
        job.phase(number, "opt")
        job.step(weights)


def microbatches(job):
    """Two microbatches in flight, and gradients that live from the first to the optimizer."""
    weights = job.weights()
    for number in range(6):
        job.phase(number, "F")
        gradients, flight = [], []
        for _ in range(4):
            flight.append(job.forward(64))
            if len(flight) == 2:
                job.backward(flight.pop(0), 64)
                gradients = gradients or [job.take(size) for _, size, _ in weights]
        job.backward(flight.pop(), 64)
        job.phase(number, "opt")
        job.step(weights)
        job.give(*gradients)


def experts(job):
    """What each expert gets is drawn anew in every layer of every iteration."""
    job.weights()
    for number in range(10):
        job.phase(number, "F")
        kept = []
        for _ in range(LAYERS):
            shares = [job.draw.expovariate(1) for _ in range(12)]
            for share in shares:
                tokens = max(8, int(2048 * share / sum(shares)))
                work = job.take(tokens * 8 * KIB)
                kept.append(job.take(tokens * 6 * KIB))
                job.give(work)
        job.phase(number, "B")
        job.backward(kept, 40)


def gathered(job):
    """Weights gathered on a side stream, whose frees complete when the layer after has run."""
    for number in range(6):
        job.phase(number, "F")
        kept, late = [], []
        for layer in range(LAYERS):
            whole = job.take((12 + layer % 2) * MIB, stream=1)
            kept.append(job.take(48 * 96 * KIB))
            for tensor in late:
                job.event("free_completed", tensor)
            job.event("free_requested", whole)
            late = [whole]
        for tensor in late:
            job.event("free_completed", tensor)
        job.phase(number, "B")
        job.backward(kept, 48)


def interrupted(job):
    """An evaluation of larger batches every fourth iteration, which keeps nothing for backward; one
    iteration in all with a larger batch."""
    weights = job.weights()
    for number in range(14):
        job.phase(number, "F")
        width = 88 if number == 9 else 64
        job.backward(job.forward(width), width)
        job.phase(number, "opt")
        job.step(weights)
        if number % 4 == 3:
            job.phase(number, "eval")
            for _ in range(2):
                job.give(*job.forward(96))


def generated(job):
    """A cache that is copied into a larger one with each token, then a step of training."""
    job.weights()
    for number in range(8):
        job.phase(number, "generate")
        cache = [job.take(2 * MIB) for _ in range(LAYERS)]
        for token in range(1, 24):
            for layer in range(LAYERS):
                larger = job.take(2 * MIB + token * 64 * KIB)
                job.give(cache[layer])
                cache[layer] = larger
        job.give(*cache)
        job.phase(number, "F")
        job.backward(job.forward(48), 48)


JOBS = (lengths, microbatches, experts, gathered, interrupted, generated)


def write(make, path):
    """Writes the job that `make` makes as a snapshot."""
    job = Job(make.__name__)
    make(job)
    recording.write({"segments": [], "device_traces": [job.events]}, str(path))
