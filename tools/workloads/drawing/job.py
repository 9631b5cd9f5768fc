"""A job drawn from a seed: its model, schedule, optimizer, batches and interruptions.

The seed says what the job is. The run says which data it gets: lengths and routing are drawn from
both, so two runs of one job are two runs of one program.
"""

import math
import random

from drawing import likes, limits, settings
from drawing.batches import Batches
from drawing.graphnet import GraphNet
from drawing.model import Decoder
from drawing.run import Run
from drawing.translation import Translator
from drawing.vision import Detector, UNet

MODELS = {
    "decoder": Decoder,
    "lora": Decoder,
    "moe": Decoder,
    "encoder-decoder": Translator,
    "detector": Detector,
    "unet": UNet,
    "graph": GraphNet,
}
FAMILIES = settings.FAMILIES

# What a drawn job may be: bytes that live at most, events of the whole, iterations.
LEAST_PEAK, MOST_PEAK = 1 << 30, 120 << 30
LEAST_EVENTS, WANTED_EVENTS, MOST_EVENTS = 20000, 150000, 250000
LEAST_ITERATIONS, MOST_ITERATIONS = 6, 14
ATTEMPTS = 60


class Job:
    def __init__(self, config, seed, run):
        self.config = config
        self.seed = seed
        self.run = run

    def batches(self):
        data = random.Random("%d data of run %d" % (self.seed, self.run))
        return Batches(self.config, data, random.Random("%d experts" % self.seed))

    def start(self):
        """The job about to run, from its beginning."""
        return Run(self.config, self.batches(), MODELS[self.config["family"]](self.config))

    def describe(self):
        return dict(self.config, seed=self.seed, run=self.run)

    def record(self):
        """Runs the job; the memory with its history."""
        return self.start().all()


def obviously_too_many(config):
    """Whether experts alone would cause more events than a job may have."""
    if not config.get("experts") or config["routing"] == "capacity":
        return False
    blocks = -(-config["layers"] // config["expert_every"])
    again = 1.3 if config["recompute"] in ("layers", "mlp") else 1
    each = 66 * again * blocks * config["experts"] * config["microbatches"]
    return LEAST_ITERATIONS * each > 0.8 * MOST_EVENTS


def largest(job):
    """The iteration with the largest batch, in elements of its microbatches."""
    batches = job.batches()
    sizes = []
    for number in range(job.config["iterations"]):
        shapes = batches.iteration(number)
        sizes.append(sum(math.prod(n for n in shape if type(n) is int) for shape in shapes))
    return sizes.index(max(sizes))


def fits(job, iterations_given):
    """Whether the job is of a size that is wanted; sets how many iterations it has."""
    config = job.config
    if obviously_too_many(config):
        return False
    most = largest(job)
    trial = job.start()
    if sum(parameter.size for parameter in trial.model.weights.all) > MOST_PEAK:
        return False
    for number in range(most):
        trial.batches.iteration(number)
    start = trial.memory.live
    trial.iteration(most)
    before = len(trial.memory.events)
    # The states that were made at its end are there before it in the job.
    peak = trial.memory.peak + trial.memory.live - start
    if before > MOST_EVENTS / LEAST_ITERATIONS * 1.5 or peak > MOST_PEAK:
        return False
    trial.iteration(most + 1)
    if not LEAST_PEAK <= trial.memory.peak <= 0.95 * MOST_PEAK:
        return False
    each = len(trial.memory.events) - before
    if iterations_given:
        return True
    count = config["iterations"]
    while count < MOST_ITERATIONS and count * each < LEAST_EVENTS:
        count += 1
    while count > LEAST_ITERATIONS and count * each > WANTED_EVENTS * 0.9:
        count -= 1
    config["iterations"] = count
    return LEAST_EVENTS <= count * each and count * each < 0.8 * MOST_EVENTS


def draw(seed, run=0, **given):
    """The job of a seed; what is given is not drawn."""
    limits.check_given(given)
    for attempt in range(ATTEMPTS):
        dice = random.Random("job %d, attempt %d" % (seed, attempt))
        # By its first run, whichever is wanted: all runs are of one job.
        job = Job(settings.draw(dice, given), seed, 0)
        limits.check_whole(job.config)
        if fits(job, "iterations" in given):
            return Job(job.config, seed, run)
    raise ValueError("no job of a useful size has these settings")


def like(name, seed=1, run=0, **given):
    """A job with the settings of a recorded one."""
    limits.check_given(given)
    config = {**settings.DEFAULTS, **likes.LIKES[name], **given}
    limits.check_whole(config)
    return Job(config, seed, run)
