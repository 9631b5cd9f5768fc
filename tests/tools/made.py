"""Recordings and logs of jobs that never ran, for tests: what torch's recorder, or DTR's patch of it, would write."""

import json
import pickle
import random

MIB = 1 << 20
UNIT = 32  # sizes are many chunks of 2 MiB in all
SMALL = 1 << 10
LAYERS = 12


class Recording:
    """A training job's events as torch records them: a pickle of built-in types."""

    def __init__(self):
        self.events = []
        self.address = 1 << 40
        self.batch = None

    def add(self, action, address, size, label):
        self.events.append({"action": action, "addr": address, "size": size, "stream": 0,
                            "time_us": len(self.events), "user_metadata": label})

    def take(self, size, label):
        size *= UNIT
        self.address += 1 << 32
        self.add("alloc", self.address, size, label)
        return (self.address, size)

    def give(self, tensor, label):
        self.add("free_requested", *tensor, label)
        self.add("free_completed", *tensor, label)

    def load(self, batch, label):
        """The next batch, under the name of the last one, which goes behind it."""
        last, self.batch = self.batch, self.take(batch << 17, label)
        if last is not None:
            self.give(last, label)

    def iterate(self, number, batch, seed, loads=False):
        label = "iter=%d;phase=step" % number
        if loads:
            self.load(batch, label)
        dice = random.Random(seed)
        kept = [self.take(3 * SMALL, label)]
        for _ in range(LAYERS):
            kept.append(self.take(batch * (1 << dice.randrange(17, 21)), label))
            work = [self.take(batch * 40960 + 256, label), self.take(65536, label)]
            kept.append(self.take(batch * 8192 * dice.randrange(1, 40), label))
            for tensor in work:
                self.give(tensor, label)
        while kept:
            work = self.take(batch * 4096 * dice.randrange(1, 90), label)
            self.give(kept.pop(), label)
            self.give(work, label)

    def write(self, path):
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [self.events]}, file)


def record(path, batches, seed=7, loads=False):
    recording = Recording()
    for weight in range(5):
        recording.take((1 << 20) + weight * 4096, "")
    for number, batch in enumerate(batches):
        recording.iterate(number, batch, seed, loads)
    recording.write(path)


def network(layers=12, bytes_=8 * MIB, constant=MIB):
    """An operator log: layers that keep their input for the way back, each a convolution (dear) and a
    function (cheap)."""
    lines = [dict(INSTRUCTION="ANNOTATE", ANNOTATION="START"),
             dict(INSTRUCTION="CONSTANT", NAME="weight"), dict(INSTRUCTION="MEMORY", NAME="weight", MEMORY=str(constant))]

    def call(operator, arguments, result, nanoseconds):
        lines.append(dict(INSTRUCTION="CALL", NAME=operator, ARGS=arguments, RESULT=[result], TIME=str(nanoseconds)))
        lines.append(dict(INSTRUCTION="MEMORY", NAME=result, MEMORY=str(bytes_)))
        lines.append(dict(INSTRUCTION="ALIAS", NAME=result, ALIAS="-1"))

    call("embedding", ["weight"], "y0", 10 ** 6)
    for i in range(layers):
        call("conv", ["weight", "y%d" % i], "x%d" % (i + 1), 5 * 10 ** 6)
        call("relu", ["x%d" % (i + 1)], "y%d" % (i + 1), 10 ** 6)
    call("loss", ["y%d" % layers], "g%d" % layers, 10 ** 6)
    for i in reversed(range(layers)):
        call("backward", ["x%d" % (i + 1), "y%d" % i, "g%d" % (i + 1)], "g%d" % i, 10 ** 7)
        lines += [dict(INSTRUCTION="RELEASE", NAME=name % (i + 1)) for name in ("x%d", "y%d", "g%d")]
    return "".join(json.dumps(line) + "\n" for line in lines)
