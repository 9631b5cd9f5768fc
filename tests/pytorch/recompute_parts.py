"""What the tests of recomputation share: models, a device that says what it is told to, and training with and without."""

import contextlib
import copy
import functools
import json
import os
import subprocess
import time
import unittest
import weakref

try:
    import torch
    from torch import nn
except ImportError:
    torch = None

from here import ROOT  # first: it knows where the package is
from pleat._recompute import Recompute
from pleat._recompute.recompute import CHOSEN

GIB = 1 << 30
COMMAND = os.environ.get("PLEAT_COMMAND", str(ROOT / "build/release/bin/pleat"))
SAVED = 1000  # bytes of what each block saves, as told
if torch is not None:
    torch.set_num_threads(1)  # tensors are tiny here: two threads mostly wait for each other


def told(live, fixed=100, planned=None, order=None, earlier=0):
    """As explain answers: rungs of so many live bytes."""
    rungs = [{"live_bytes": bytes_, "ns": 1000 * i} for i, bytes_ in enumerate(live)]
    for i, rung in enumerate(rungs[1:]):
        rung["block"], rung["way"] = order[i] if order and isinstance(order[i], tuple) else (
            order[i] if order else i, "again")
        if rung["way"] == "offload":
            rung["until"] = rung["block"] + 1
    for rung, bytes_ in (planned or {}).items():
        rungs[rung]["physical_bytes"] = bytes_
    blocks = [{"number": i, "saved_bytes": SAVED} for i in range(len(live))]
    peak = {"lasting_bytes": fixed, "passing_bytes": live[-1] - fixed}
    return {"persistent_bytes": fixed, "lasting_bytes": fixed, "earlier_bytes": earlier, "rungs": rungs, "peaks": [peak],
            "blocks": blocks}


def explain(path, budget, *more):
    """As the command answers of a recording."""
    done = subprocess.run([COMMAND, "explain", path, "--budget", str(budget), "--json", *more], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


class Copies:
    """Between two places of the host's memory; what is copied is counted."""

    kind = "cpu"

    def __init__(self):
        self.copied, self.waits = [], 0

    def host(self, bytes):
        return torch.empty(bytes, dtype=torch.uint8)

    def copy(self, pairs, device):
        for to, source in pairs:
            to.copy_(source)
            self.copied.append(to.numel())
        return object()

    def wait(self, event, device):
        assert event is not None
        self.waits += 1


class World:
    """A device that says what it is told to."""

    def __init__(self, answer=None):
        self.answer, self.phases, self.said, self.held, self.ooms, self.records = answer, [], [], [], 0, True
        self.copying, self.links = Copies(), []

    @contextlib.contextmanager
    def phase(self, name):
        self.phases.append(name)
        yield

    def timer(self):
        begin = time.perf_counter_ns()

        def ended():
            passed = time.perf_counter_ns() - begin
            return lambda: passed

        return ended

    def errors(self):
        return self.ooms

    def recording(self):
        return self.records

    def hold(self, budget, remedy):
        self.held.append(budget)
        self.remedy = remedy

    def asked(self):
        return 0

    def ladder(self, costs, budget):
        if isinstance(self.answer, Exception):
            raise self.answer
        self.times, self.costs = costs["block_ns"], costs
        self.links.append(costs["link"])
        return self.answer

    def link(self):
        return 1 << 30

    def host_bytes(self):
        return 1 << 40

    def copies(self):
        return self.copying

    def say(self, text):
        self.said.append(text)


if torch is not None:

    class Counting(nn.Module):
        """Counts its runs where nothing puts the count back: that is none of its attributes."""

        ran = weakref.WeakKeyDictionary()

        @property
        def calls(self):
            return self.ran.get(self, 0)

        def run(self):
            self.ran[self] = self.calls + 1

    class Layer(Counting):
        """With what makes recomputation hard: dropout, and a keyword."""

        def __init__(self, width=16, norm=False):
            super().__init__()
            self.inner = nn.Linear(width, width)
            self.norm = nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)
            self.dropout = nn.Dropout(0.3)

        def forward(self, x, scale=1.0):
            self.run()
            return x + self.dropout(torch.tanh(self.inner(self.norm(x)))) * scale

    class Special(Layer):
        def forward(self, x, scale=1.0):
            return super().forward(x, scale=scale) * 1.5

    class GradientCheckpointingLayer(nn.Module):
        """Asks as transformers' own of this name does."""

        gradient_checkpointing = False

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def __call__(self, *arguments, **keywords):
            if self.gradient_checkpointing and self.training:
                call = functools.partial(super().__call__, **keywords)
                return self._gradient_checkpointing_func(call, *arguments)
            return super().__call__(*arguments, **keywords)

        def forward(self, x):
            return x + torch.tanh(self.inner(x))

    class Net(nn.Module):
        def __init__(self, layer=Layer, count=4, **more):
            super().__init__()
            self.layers = nn.ModuleList(layer(**more) for _ in range(count))
            self.head = nn.Linear(16, 1)

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    class Attending(nn.Module):
        """With fused attention, dropout, and a bias that others hold, too."""

        def __init__(self, width=16):
            super().__init__()
            self.norm, self.into, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.dropout = nn.Dropout(0.2)

        def forward(self, x, bias=None):
            asks, keys, values = self.into(self.norm(x)).chunk(3, -1)
            shape = (1, 2, x.shape[0], -1)
            found = nn.functional.scaled_dot_product_attention(
                *(one.reshape(shape) for one in (asks, keys, values)))
            return x + self.dropout(torch.tanh(self.out(found.reshape(x.shape)))) + (0 if bias is None else bias * x)


class Trainer(unittest.TestCase):
    seed = 3

    def train(self, model, recompute, iterations=6, sizes=(8,), microbatches=1):
        torch.manual_seed(self.seed)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses, again = [], []
        for i in range(iterations):
            for _ in range(microbatches):
                loss = model(torch.randn(sizes[i % len(sizes)], 16)).square().mean()
                loss.backward()
            losses.append(loss.item())
            again.append(sorted(recompute.ways) if recompute is not None and recompute.state == CHOSEN else None)
            optimizer.step()
            optimizer.zero_grad()
            if recompute is not None:
                recompute.mark()
        return losses, again

    def recompute(self, answer=None, budget=710):
        world = World(answer or told([1000, 900, 700, 500, 300], order=[2, 0, 1, 3]))
        made = Recompute(torch, budget, world)
        self.addCleanup(made.looking.remove)
        return made, world

    def same(self, model, budget=710, answer=None, **more):
        """Trains it with and without, which is to give the same; returns what was computed again."""
        alone = copy.deepcopy(model)
        expected, _ = self.train(alone, None, **more)
        made, world = self.recompute(answer, budget)
        losses, again = self.train(model, made, **more)
        self.assertEqual(losses, expected)
        for mine, its in zip(list(model.parameters()) + list(model.buffers()),
                             list(alone.parameters()) + list(alone.buffers())):
            self.assertTrue(torch.equal(mine, its))
        return again, world, made
