"""Drawn jobs within drawn budgets, on the CPU: recompute_drawn.py [SEED ...]. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it); $PLEAT_COMMAND: the command.

A seed draws a model, batches, and what a program does between and within iterations: evaluation, accumulation, errors
that it survives, layers that are frozen, a second model, another model in the place of the first. It is trained alone
and under a budget, with what is live recorded as a GPU's allocator would: losses and weights are to be the same bit by
bit, what is live is never to be beyond the budget once that holds, and a refusal names a budget that works.
"""

import contextlib
import copy
import os
import random
import re
import sys
import tempfile
import unittest
from unittest import mock

import recompute_parts  # first: it knows where the package is
import suite
from pleat._recompute import Recompute, recompute
from pleat._recompute.world import BETWEEN, options
from recompute_parts import COMMAND, GIB, World, explain

torch = recompute_parts.torch
if torch is not None:
    from torch import nn
    from torch.nn import functional
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

SEEDS = (8, 11, 12, 89, 333, 424, 99037)  # each found something amiss
RECORDED = 32  # iterations
ALL = 1 << 60  # a budget for which all blocks are computed again
REFUSALS = 3  # that are followed, of which each names a budget that is enough for what was seen
SCALE = 512  # bytes of the device for one of the host, so that small models are as jobs are
WIDTH, HEADS, WORDS = 32, 4, 50

if torch is not None:
    from recompute_parts import GradientCheckpointingLayer

    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.weight

    class Attention(nn.Module):
        def __init__(self, fused):
            super().__init__()
            self.fused = fused
            self.query, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.both = nn.Linear(WIDTH, 2 * WIDTH, bias=False)

        def forward(self, x, other=None, bias=None, causal=False):
            other = x if other is None else other
            asks, (keys, values) = self.query(x), self.both(other).chunk(2, -1)
            asks, keys, values = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in (asks, keys, values))
            if self.fused and bias is None:
                found = functional.scaled_dot_product_attention(asks, keys, values, is_causal=causal)
            else:
                weights = asks @ keys.transpose(-1, -2) + (0 if bias is None else bias)
                if causal:
                    weights = weights + torch.full(weights.shape[-2:], float("-inf")).triu(1)
                found = torch.softmax(weights, -1) @ values
            return self.out(found.transpose(1, 2).flatten(-2))

    class Perceptron(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in (
                (WIDTH, 2 * WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, WIDTH)))

        def forward(self, x):
            return self.down(functional.silu(self.gate(x)) * self.up(x))

    class Experts(nn.Module):
        """Each token goes to two of them."""

        def __init__(self, count=4):
            super().__init__()
            self.router, self.experts = nn.Linear(WIDTH, count), nn.ModuleList(Perceptron() for _ in range(count))

        def forward(self, x):
            flat = x.flatten(0, -2)
            weights, chosen = torch.softmax(self.router(flat), -1).topk(2, -1)
            out = torch.zeros(flat.shape)
            for number, expert in enumerate(self.experts):
                rows, place = torch.where(chosen == number)
                out = out.index_add(0, rows, (expert(flat[rows]) * weights[rows, place, None]).float())
            return out.to(x.dtype).view_as(x)

    def blocks_of(asks):
        """A block's class: one that asks as transformers' do, or any other."""
        base = GradientCheckpointingLayer if asks else nn.Module

        class Block(base):
            def __init__(self, draw, experts=False, crosses=False):
                nn.Module.__init__(self)
                fused = draw.random() < 0.7
                self.first, self.second = Norm(), Norm()
                self.attention, self.inner = Attention(fused), Experts() if experts else Perceptron()
                self.crossed = (Norm(), Attention(fused)) if crosses else ()
                self.crossing = nn.ModuleList(self.crossed)
                self.dropout = nn.Dropout(draw.choice((0.0, 0.2)))
                self.fails = 0

            def forward(self, x, other=None, bias=None, causal=False):
                x = x + self.dropout(self.attention(self.first(x), bias=bias, causal=causal))
                if self.fails:
                    self.fails = 0
                    raise ValueError("a block fails")
                if self.crossed:
                    x = x + self.crossing[1](self.crossing[0](x), other)
                return x + self.dropout(self.inner(self.second(x)))

        return Block

    class Words(nn.Module):
        """A decoder, with experts or without."""

        def __init__(self, draw):
            super().__init__()
            block, experts = blocks_of(draw.random() < 0.5), draw.random() < 0.4
            self.embedding = nn.Embedding(WORDS, WIDTH)
            self.layers = nn.ModuleList(block(draw, experts=experts) for _ in range(draw.randint(2, 5)))
            self.norm, self.head = Norm(), nn.Linear(WIDTH, WORDS, bias=False)

        def batch(self, draw, length):
            return (torch.randint(WORDS, (2, length)),)

        def forward(self, tokens):
            x = self.embedding(tokens)
            for layer in self.layers:
                x = layer(x, causal=True)
            return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), tokens.flatten())

    class Images(nn.Module):
        """An encoder of patches."""

        def __init__(self, draw):
            super().__init__()
            block = blocks_of(draw.random() < 0.5)
            self.patches, self.token = nn.Conv2d(3, WIDTH, 4, 4), nn.Parameter(torch.zeros(1, 1, WIDTH))
            self.layers = nn.Sequential(*(block(draw) for _ in range(draw.randint(2, 5))))
            self.head = nn.Linear(WIDTH, 10)

        def batch(self, draw, length):
            return torch.randn(max(length // 8, 1), 3, 16, 16), torch.randint(10, (max(length // 8, 1),))

        def forward(self, images, labels):
            x = self.patches(images).flatten(2).transpose(1, 2)
            x = self.layers(torch.cat([self.token.expand(len(x), -1, -1), x], 1))
            return functional.cross_entropy(self.head(x[:, 0]), labels)

    class Pairs(nn.Module):
        """An encoder and a decoder, whose lengths are drawn each for itself; a bias that all blocks share."""

        def __init__(self, draw):
            super().__init__()
            block = blocks_of(draw.random() < 0.5)
            self.embedding, self.distances = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, HEADS)
            self.encoder = nn.ModuleList(block(draw) for _ in range(draw.randint(2, 3)))
            self.decoder = nn.ModuleList(block(draw, crosses=True) for _ in range(draw.randint(2, 3)))
            self.head = nn.Linear(WIDTH, WORDS, bias=False)
            self.apart = draw.random() < 0.5

        def batch(self, draw, length):
            other = max(int(length * draw.choice((0.25, 0.5, 1, 2))), 2) if self.apart else max(length // 2, 2)
            return torch.randint(WORDS, (2, length)), torch.randint(WORDS, (2, other))

        def bias(self, length):
            at = torch.arange(length)
            return self.distances((at[:, None] - at).clamp(-31, 31) + 32).permute(2, 0, 1)[None]

        def forward(self, source, target):
            x, bias = self.embedding(source), self.bias(source.shape[1])
            for layer in self.encoder:
                x = layer(x, bias=bias)
            y, bias = self.embedding(target), self.bias(target.shape[1])
            for layer in self.decoder:
                y = layer(y, other=x, bias=bias, causal=True)
            return functional.cross_entropy(self.head(y).flatten(0, 1), target.flatten())

    class Device(TorchDispatchMode):
        """Records storages that come and go, with the most that was live at once; counts operators."""

        def __init__(self, path):
            import fake

            super().__init__()
            self.recorder = fake.Recorder(path)
            self.recorder.add = self.add
            self.events = self.recorder.events
            self.live = self.most = self.operators = 0
            self.iteration, self.inside = 0, BETWEEN
            self.budget, self.remedy = None, None

        def hold(self, budget, remedy):
            self.budget, self.remedy = budget, remedy

        def look(self):
            """Beyond the budget it is out of memory, as far as that is to be: where all blocks are computed again."""
            remedy = self.remedy(self.live, 0) if self.budget is not None and self.live > self.budget else ""
            if remedy:
                raise torch.OutOfMemoryError(remedy)

        def label(self):
            self.recorder.set_label("iter=%d;phase=%s" % (self.iteration, self.inside))

        def add(self, action, address, size):
            address, size = SCALE * address, SCALE * size
            self.live += size if action == "alloc" else -size if action == "free_completed" else 0
            self.most = max(self.most, self.live)
            type(self.recorder).add(self.recorder, action, address, size)

        @classmethod
        def _should_skip_dynamo(cls):
            """Whether torch is to keep torch.compile away, which is not here: that took a seventh of the test's time."""
            return False

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            result = operator(*args, **(kwargs or {}))
            self.operators += 1
            for leaf in (result,) if isinstance(result, torch.Tensor) else tree_leaves(result):
                if isinstance(leaf, torch.Tensor):
                    self.recorder.seen(leaf.untyped_storage())
            self.look()
            return result

        def write(self):
            """What was recorded until an iteration ended: a mark of the runtime's stands there, and here what comes first
            in the next one."""
            import recording

            for action in ("alloc", "free_requested", "free_completed"):
                self.add(action, 0, 1)
            recording.write({"segments": [], "device_traces": [self.events]}, self.recorder.path)

    class Recorded(World):
        """A device of which all is recorded and timed by its operators."""

        def __init__(self, device, recorded):
            super().__init__()
            self.device, self.recorded, self.budget = device, recorded, None

        @contextlib.contextmanager
        def phase(self, name):
            device = self.device
            outer, device.inside = device.inside, name
            device.label()
            try:
                yield
            finally:
                device.inside = outer
                device.label()

        def timer(self):
            began = self.device.operators

            def ended():
                passed = self.device.operators - began
                return lambda: 1000 * passed

            return ended

        def recording(self):
            return self.device.iteration < self.recorded

        def hold(self, budget, remedy):
            super().hold(budget, remedy)
            self.budget = budget
            self.device.hold(budget, remedy)

        def link(self):
            return 0

        def ladder(self, costs, budget):
            if budget == ALL:
                raise RuntimeError("all blocks are to be computed again")
            self.device.write()
            self.costs = costs
            return explain(self.device.recorder.path, budget, *options(costs))


class Scaled(Recompute):
    def gradients(self):
        return SCALE * super().gradients()

    def cast_bytes(self, model):
        return SCALE * super().cast_bytes(model)


KINDS = ("Words", "Images", "Pairs")


class Job:
    """What a seed draws. Two that are made of one seed do the same."""

    def __init__(self, seed):
        draw = self.draw = random.Random(seed)
        self.seed = seed
        self.kind = globals()[draw.choice(KINDS)]
        self.accumulates = draw.choice((1, 1, 2, 3))
        self.longest = draw.choice((16, 24, 48))
        self.varies = draw.random() < 0.6
        self.autocast = draw.random() < 0.2
        self.two = draw.random() < 0.2
        self.rebuilt = draw.randint(4, 9) if draw.random() < 0.25 else None
        self.frozen = draw.random() < 0.25
        self.troubles = draw.random() < 0.6
        self.iterations = 10
        self.recorded = draw.choice((3, 6, RECORDED))
        self.part = draw.random()  # of what is between the least and what it takes alone: the budget

    def __str__(self):
        told = ("accumulates", "longest", "varies", "autocast", "two", "rebuilt", "frozen", "troubles", "recorded")
        return "%s, %s" % (self.kind.__name__, ", ".join("%s %s" % (name, getattr(self, name)) for name in told))

    def make(self):
        model = self.kind(self.draw)
        if self.frozen:
            for layer in self.layers(model):
                layer.requires_grad_(self.draw.random() < 0.5)
        return model, torch.optim.AdamW(
            [weight for weight in model.parameters() if weight.requires_grad], lr=0.003)

    def layers(self, model):
        return [part for part in model.modules() if type(part).__name__ == "Block"]

    def batch(self, model):
        length = self.draw.randint(4, self.longest) if self.varies else self.longest
        return model.batch(self.draw, length)

    def evaluate(self, model):
        """Without gradients, or with and without a backward."""
        model.train(self.draw.random() < 0.3)
        with torch.set_grad_enabled(self.draw.random() < 0.2):
            lost = model(*self.batch(model)).item()
        model.train()
        return lost

    def steps(self, models, mark):
        """Trains; yields behind each iteration. Returns nothing but what it yields: losses."""
        for number in range(self.iterations):
            if number == self.rebuilt:
                models.clear()
                models.append(self.make())
            told, self.is_unforeseen = [], False
            for model, _ in models:
                trouble = self.draw.choice(TROUBLES) if self.troubles and number else None
                told.append(self.iteration(model, trouble))
            for _, optimizer in models:
                optimizer.step()
                optimizer.zero_grad()
            mark()
            yield told

    def iteration(self, model, trouble):
        told = []
        self.is_unforeseen |= trouble == "retained"
        if trouble == "evaluation":
            told.append(self.evaluate(model))
        if trouble == "error":
            self.draw.choice(self.layers(model)).fails = 1
            try:
                self.microbatch(model, None, told)
            except ValueError:
                told.append("failed")
        for _ in range(self.accumulates):
            self.microbatch(model, trouble, told)
        return told

    def microbatch(self, model, trouble, told):
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            if trouble == "discarded":
                model(*self.batch(model))
            loss = model(*self.batch(model))
        told.append(loss.item())
        if trouble == "backward":
            loss.register_hook(self.fails)
            try:
                loss.backward()
            except ValueError:
                told.append("failed")
            return
        loss.backward(retain_graph=trouble == "retained")
        if trouble == "retained":
            loss.backward()
        if trouble == "copied":
            copy.deepcopy(model)

    def fails(self, gradient):
        raise ValueError("backward fails")


TROUBLES = (None, "evaluation", "error", "discarded", "backward", "retained", "copied")


class Run:
    """A job that was run alone, or within a budget."""

    def __init__(self, seed, path, budget=None):
        self.job = Job(seed)
        torch.manual_seed(seed)
        self.told, self.peaks, self.held, self.refused = [], [], [], None
        with Device(path) as device:
            self.models = [self.job.make() for _ in range(1 + self.job.two)]
            self.world = Recorded(device, self.job.recorded)
            self.made = Scaled(torch, budget, self.world) if budget is not None else None
            try:
                for told in self.job.steps(self.models, lambda: self.mark(device)):
                    self.told.append(told)
            except RuntimeError as problem:
                if "cannot work" not in str(problem):
                    raise
                self.refused = problem
            finally:
                if self.made is not None:
                    self.made.looking.remove()

    def mark(self, device):
        self.peaks.append(device.most)
        if self.world.budget is not None and not self.job.is_unforeseen:
            self.held.append(device.iteration)
        device.iteration += 1
        device.most = device.live
        device.label()
        if self.made is not None:
            self.made.mark()

    def smallest(self):
        """The budget that a refusal names: what is enough where it says that."""
        return int(float(re.findall(r"([0-9.]+) GiB (?:with all|are enough)", str(self.refused))[-1]) * GIB)

    def weights(self):
        return [one for model, _ in self.models for one in [*model.parameters(), *model.buffers()]]


@unittest.skipIf(torch is None, "no torch")
@unittest.skipUnless(os.access(COMMAND, os.X_OK), "no command")
class Drawn(unittest.TestCase):
    def run_one(self, seed, budget=None):
        with mock.patch.object(recompute, "overhead_ns", lambda torch: 0), tempfile.TemporaryDirectory() as folder:
            return Run(seed, os.path.join(folder, "job.pickle.gz"), budget)

    def check(self, seed):
        alone, again, least = self.run_one(seed), self.run_one(seed, ALL), self.run_one(seed, 2 << 20)
        self.assertIsNotNone(least.refused, "a budget of 2 MiB is refused")
        smallest, most = least.smallest(), max(alone.peaks)
        budget = int(smallest + (1.02 * most - smallest) * alone.job.part)
        for asked in (smallest, budget):
            run = self.run_one(seed, asked)
            for _ in range(REFUSALS):
                if run.refused is None:
                    break
                # A larger iteration than the first that was learned.
                self.assertGreater(1.01 * max(again.peaks), asked)
                self.assertGreater(run.smallest(), asked)
                asked, is_enough = run.smallest(), "are enough" in str(run.refused)
                run = self.run_one(seed, asked)
            if run.refused is not None:
                self.assertFalse(is_enough, run.refused)
                continue
            self.assertEqual(run.told, alone.told)
            for mine, its in zip(run.weights(), alone.weights()):
                self.assertTrue(torch.equal(mine, its))
            over = [i for i in run.held if run.peaks[i] > max(asked, again.peaks[i])]
            self.assertEqual(over, [], "budget %d, alone %s, all again %s, took %s, %s" % (
                asked, alone.peaks, again.peaks, run.peaks, run.world.said))
            self.assertEqual(run.made.failures, {})

    def test_budgets_hold_and_losses_are_the_same(self):
        for seed in [int(one) for one in ASKED] or SEEDS:
            with self.subTest("seed %d: %s" % (seed, Job(seed))):
                self.check(seed)


ASKED = []

if __name__ == "__main__":
    ASKED = sys.argv[1:]
    suite.main(needs_torch=True)
