"""Draws a job from a seed: its model, schedule, optimizer, batches and interruptions.

The seed says what the job is. The run says which data it gets: lengths and routing are drawn from
both, so two runs of one job are two runs of one program.
"""

import random

from drawing.model import Decoder
from drawing.routing import Routing
from drawing.run import Run

FAMILIES = ("decoder",)


class Job:
    def __init__(self, config, seed, run):
        self.config = config
        self.seed = seed
        self.run = run
        self.data = random.Random("%d data of run %d" % (seed, run))
        self.router = None
        if config.get("experts"):
            # What experts are liked is the model's, not the data's.
            self.router = Routing(config, random.Random("%d experts" % seed))
            self.router.dice = self.data

    def shapes(self, number):
        """The shapes of an iteration's microbatches."""
        config = self.config
        lengths = config.get("lengths")
        length = lengths[number % len(lengths)] if lengths else config["length"]
        return [self.shape(config["samples"], length) for _ in range(config["microbatches"])]

    def shape(self, samples, length):
        routing = None if self.router is None else self.router.draw(samples * length)
        return samples, length, routing

    def describe(self):
        return dict(self.config, seed=self.seed, run=self.run)

    def record(self):
        """Runs the job; the memory with its history."""
        return Run(self, Decoder(self.config)).all()


def draw(seed, run=0, **fixed):
    """The job of a seed; `fixed` settings are as given instead of drawn."""
    dice = random.Random(seed)
    heads = dice.choice([8, 12, 16, 24, 32])
    config = {
        "family": "decoder",
        "layers": dice.randrange(4, 24),
        "hidden": heads * 64,
        "heads": heads,
        "vocabulary": dice.choice([32000, 50304, 128256]),
        "norm": "layer",
        "bias": True,
        "fused": True,
        "mlp": "gelu",
        "inner": 4 * heads * 64,
        "dropout": 0.1,
        "embedding_dropout": 0.1,
        "positions": 0,
        "rotary": False,
        "final_norm": True,
        "tied": False,
        "precision": "master",
            "recompute": "none",
        "virtual_stages": 1,
        "depth": 1,
        "microbatches": 2,
        "samples": 4,
        "length": 1024,
        "optimizer": "adam",
        "optimizer_way": "foreach",
        "clip": True,
        "iterations": 10,
        "marks": True,
        "skew": 0.09,
    }
    config.update(fixed)
    return Job(config, seed, run)
