"""Recomputation within a budget, on the CPU: recompute.py. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it).

Losses and weights are held against those of the same program alone, bit by bit.
"""

import collections
import contextlib
import contextvars
import copy
import functools
import io
import pickle
import random
import sys
import types
import unittest
import warnings
import weakref
from unittest import mock

import recompute_parts  # first: it knows where the package is
import pleat
import suite
from pleat import run
from pleat._recompute import results
from pleat._recompute.blocks import find, is_equal
from pleat._recompute.ladder import HEAP, Ladder, Learned, choose
from pleat._recompute.recompute import CHOSEN, OFF
from pleat._recompute.world import BETWEEN
from pleat._recompute.world import World as TheWorld
from recompute_parts import GIB, Trainer, World, told

torch = recompute_parts.torch
if torch is not None:
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from recompute_parts import Attending, Counting, GradientCheckpointingLayer, Layer, Net, Special

    class Scaled(Counting):
        """With a buffer that a forward changes by `change`."""

        def __init__(self, change):
            super().__init__()
            self.inner, self.change = nn.Linear(16, 16), change
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x):
            self.run()
            self.change(self, 0.9 * self.scale + x.detach().abs().mean())
            return x + torch.tanh(self.inner(x) * self.scale.clone())

    class Rectifying(GradientCheckpointingLayer):
        def forward(self, x):
            return self.inner(torch.relu_(x * 1 if x.is_leaf else x))

    class Bending(nn.Module):
        """What torch.jit.script can compile where it finds the names of this file."""

        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(16, 16)

        def forward(self, x):
            return x + nn.functional.gelu(self.inner(x))

    class Normalizing(nn.Module):
        """Sets its bias by what its first forward is given."""

        def __init__(self):
            super().__init__()
            self.inner, self.bias = nn.Linear(16, 16), nn.Parameter(torch.zeros(16))
            self.register_buffer("is_set", torch.zeros((), dtype=torch.bool))

        def forward(self, x):
            if self.is_set:
                return torch.tanh(self.inner(x + self.bias))
            with torch.no_grad():
                self.bias.copy_(-x.mean(0))
                self.is_set.fill_(True)
            return torch.tanh(self.inner(x + self.bias)) * torch.sigmoid(x)


def step(model, recompute):
    """An optimizer's step, which ends an iteration."""
    for one in model.parameters():
        one.data -= one.grad
        one.grad = None
    if recompute is not None:
        recompute.mark()


class Ladders(unittest.TestCase):
    def rung(self, budget, share, **more):
        return Learned(Ladder(told([1000, 700, 400], **more)), {0: 100}, {}, 0).rung(budget, {0: 100 * share}, {})

    def test_the_first_rung_that_fits_is_taken(self):
        self.assertEqual([self.rung(budget, 1) for budget in (1020, 1000, 710, 450, 10)], [0, 1, 1, 2, 2])

    def test_a_shorter_iteration_computes_less_again(self):
        self.assertEqual([self.rung(710, share) for share in (0.1, 0.6, 0.7, 1.0, 1.5, 2.5)], [0, 0, 1, 1, 2, 2])

    def test_a_length_that_was_learned_goes_by_its_own_rungs(self):
        def learned(size, live, fixed):
            return Learned(Ladder(told(live, fixed=fixed)), {0: size}, {}, 0)

        both = short, long = learned(50, [700, 500, 300], 200), learned(100, [1000, 800, 600], 300)
        self.assertEqual(long.rung(650, {0: 50}, {}), 1)
        self.assertEqual(choose(both, 720, {0: 50}, {}), (short.ladder, 0))
        self.assertEqual(choose(both, 620, {0: 60}, {}), (long.ladder, 1))
        self.assertEqual(short.bytes(0, {0: 50}, {}), 700 * HEAP)

    def test_gradients_are_no_smaller_in_a_shorter_iteration(self):
        ladder = Ladder(dict(told([1000, 700, 400]), lasting_bytes=300))
        self.assertAlmostEqual(ladder.bytes(0, 0.5) / ladder.beyond, 650)
        self.assertAlmostEqual(ladder.bytes(0, 2) / ladder.beyond, 3700)  # attention may take the square

    def test_what_a_plan_takes_beyond_what_is_live_counts(self):
        self.assertEqual(self.rung(710, 1, planned={1: 770}), 2)

    def test_blocks_go_in_the_order_that_was_told(self):
        ladder = Ladder(told([4, 3, 2, 1], order=[2, 0, 1]))
        self.assertEqual([set(ladder.ways(rung)) for rung in range(4)], [set(), {2}, {0, 2}, {0, 1, 2}])


@unittest.skipIf(torch is None, "no torch")
class Training(Trainer):
    def test_losses_are_those_without_bit_by_bit(self):
        again, world, made = self.same(Net())
        self.assertEqual(again, [None, None, [0, 2], [0, 2], [0, 2], [0, 2]])
        self.assertEqual(made.count, 4)
        # Two iterations are recorded: forwards, then the second runs from the last block on.
        self.assertEqual(world.phases, 2 * (
            ["block.%d" % i for i in range(4)] + ["block.%d.again" % i for i in (3, 2, 1, 0)]))
        self.assertEqual(len(world.times), 4)
        self.assertTrue(all(nanoseconds > 0 for nanoseconds in world.times))
        self.assertEqual(world.held, [710])
        self.assertEqual(len(world.said), 1)
        self.assertIn("2 of 4 blocks are computed again", world.said[0])

    def test_only_chosen_blocks_run_twice(self):
        model = Net()
        self.same(model)
        # Two iterations of all, then four in which 0 and 2 are computed again.
        self.assertEqual([layer.calls for layer in model.layers], [12, 8, 12, 8])

    def test_layers_that_ask_are_told(self):
        again, world, made = self.same(Net(GradientCheckpointingLayer))
        self.assertEqual((made.count, again[-1]), (4, [0, 2]))
        self.assertEqual(len(world.phases), 16)

    def test_a_class_that_calls_its_parents_forward_is_one_block(self):
        model = Net(Special)
        model.layers.append(Layer())
        model.layers.append(Layer())
        again, world, _ = self.same(model, answer=told([1000, 900, 700, 500, 300, 200, 100], order=[2, 0, 1, 3, 4, 5]))
        self.assertEqual(again[-1], [0, 2])
        self.assertEqual(len(world.phases), 24)

    def test_buffers_that_change_are_left_as_they_are(self):
        model = Net(norm=True)
        _, world, made = self.same(model)
        # The first iteration found it out; from then on no block ran twice, and there is nothing to choose.
        self.assertEqual([layer.calls for layer in model.layers], [7] * 4)
        self.assertEqual((made.state, world.held), (OFF, [710]))
        self.assertEqual([line.rpartition(": ")[2] for line in world.said], ["nothing is computed again"])
        self.assertEqual(world.remedy(10**6, 10**6), "")

    def test_a_second_run_has_the_buffers_that_the_first_had(self):
        def assign(module, value):
            module.scale = value

        changes = {
            "in place": lambda module, value: module.scale.copy_(value),
            "assigned": assign,
            "through .data": lambda module, value: module.scale.data.copy_(value),
            "unchanged": lambda module, value: None,
        }
        for name, change in changes.items():
            for microbatches in (1, 3):
                with self.subTest(name, microbatches=microbatches):
                    model = Net(functools.partial(Scaled, change))
                    _, _, made = self.same(model, microbatches=microbatches)
                    is_alone = name != "unchanged"
                    self.assertEqual([block.alone for block in made.blocks.values()], [is_alone] * 4)
                    if is_alone:
                        self.assertEqual([layer.calls for layer in model.layers], [6 * microbatches + 1] * 4)

    def test_a_block_that_its_first_forward_initializes_computes_that_again(self):
        _, _, made = self.same(Net(Normalizing))
        self.assertTrue(all(block.alone for block in made.blocks.values()))

    def test_a_block_that_changes_its_input_is_refused_once_and_then_left_alone(self):
        model = Net(Rectifying)
        alone = copy.deepcopy(model)
        made, _ = self.recompute()
        x = torch.randn(8, 16)
        with self.assertRaisesRegex(RuntimeError, "Rectifying changes in place what it is called with.* left alone"):
            model(x).sum().backward()
        model.zero_grad()
        self.assertEqual(self.train(model, made)[0], self.train(alone, None)[0])
        self.assertEqual([block.alone for block in made.blocks.values()], [False] + [True] * 3)

    def test_a_second_run_finds_what_it_was_called_with_as_the_first_did(self):
        class Graph:
            """As PyTorch Geometric has them: what it has is in a store's mapping, and it can be called."""

            def __init__(self, x):
                vars(self)["store"] = types.SimpleNamespace(mapping={"x": x})

            def __call__(self):
                return self.x

            x = property(lambda self: self.store.mapping["x"],
                         lambda self, value: self.store.mapping.__setitem__("x", value))

        def appended(run, held):
            held.append(run(held[-1]) * len(held))

        def taken(run, held):
            held.insert(0, run(held.pop()))

        def under_a_name(run, held):
            held["x"] = run(held["x"])
            held["seen"] = held.get("seen", 0) + 1

        def as_attribute(run, held):
            held.x = run(held.x)

        class Holding(Layer):
            def forward(self, held):
                self.passes(super().forward, held)

        class Holds(Net):
            def forward(self, x):
                held = self.begin(x)
                for layer in self.layers:
                    layer(held)
                return self.head(self.end(held))

        for passes, begin, end in ((appended, lambda x: [x], sum), (taken, lambda x: [x], sum),
                                   (under_a_name, lambda x: {"x": x}, lambda held: held["x"]),
                                   (as_attribute, lambda x: types.SimpleNamespace(x=x), lambda held: held.x),
                                   (as_attribute, Graph, lambda held: held.x)):
            with self.subTest(passes.__name__):
                model = Holds(Holding)
                model.begin, model.end = begin, end
                for layer in model.layers:
                    layer.passes = passes
                self.same(model)
                self.assertEqual([layer.calls for layer in model.layers], [12, 8, 12, 8])

    def test_a_block_that_writes_into_a_tensor_of_what_it_is_called_with_is_refused_once(self):
        class Halves(Layer):
            def forward(self, x, held):
                held.scale.mul_(0.5)
                return super().forward(x) * held.scale

        class Holds(Net):
            def forward(self, x):
                held = types.SimpleNamespace(scale=torch.ones(()))
                for layer in self.layers:
                    x = layer(x, held)
                return self.head(x)

        model = Holds(Halves)
        made, _ = self.recompute()
        with self.assertRaisesRegex(RuntimeError, "Halves changes in place what it is called with"):
            model(torch.ones(2, 16)).sum().backward()
        self.assertTrue(all(block.alone for block in made.blocks.values()))

    def test_a_second_run_finds_a_blocks_attributes_as_the_first_did(self):
        class Averages(Layer):
            """What it keeps is in no buffer."""

            def __init__(self):
                super().__init__()
                self.average, self.counts, self.inner.seen, self.aux = torch.zeros(16), {"all": 0}, [], None

            def forward(self, x):
                self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
                self.counts["all"] += 1
                self.inner.seen.append(self.average.sum().item())
                x = super().forward(x * torch.tensor(self.inner.seen).mean(), scale=self.average * self.counts["all"])
                self.aux = x.square().mean()
                return x

        model = Net(Averages)
        alone = copy.deepcopy(model)
        expected, _ = self.train(alone, None)
        made, _ = self.recompute()
        losses, again = self.train(model, made)
        self.assertEqual((losses, again[-1]), (expected, [0, 2]))
        for mine, its in zip(model.layers, alone.layers):
            self.assertEqual((mine.counts, mine.inner.seen, mine.aux.item()), (its.counts, its.inner.seen, its.aux.item()))
            self.assertTrue(torch.equal(mine.average, its.average))

    def test_what_a_graph_has_made_of_an_earlier_forward_is_not_held(self):
        class Remembers(Layer):
            def forward(self, x):
                self.last = super().forward(x)
                return self.last * 1

        model = Net(Remembers)
        self.recompute()
        model(torch.ones(2, 16))
        last = weakref.ref(model.layers[0].last)
        result = model(torch.ones(2, 16))
        self.assertIsNone(last())
        result.sum().backward()

    def test_a_block_that_writes_into_a_tensor_of_its_own_is_left_alone(self):
        class Averages(Layer):
            def __init__(self):
                super().__init__()
                self.average = torch.zeros(16)

            def forward(self, x):
                self.average.mul_(0.9).add_(x.detach().mean(0))
                return super().forward(x) + self.average * 1

        model = Net(Averages)
        alone = copy.deepcopy(model)
        _, _, made = self.same(model)
        self.assertEqual([layer.calls for layer in model.layers], [7] * 4)
        self.assertTrue(all(block.alone for block in made.blocks.values()))
        self.train(alone, None)
        for mine, its in zip(model.layers, alone.layers):
            self.assertTrue(torch.equal(mine.average, its.average))

    def test_a_second_run_finds_what_a_block_draws_and_names_as_the_first_did(self):
        class Counter:
            count = 0

        class Several(Layer):
            """What it has is changed by `moves`, which gives a number."""

            def __init__(self):
                super().__init__()
                self.generator, self.random = torch.Generator().manual_seed(5), random.Random(5)
                self.queue, self.seen, self.counter = collections.deque([1], maxlen=3), set(), Counter()

            def forward(self, x):
                return super().forward(x, scale=self.moves(self))

        def counted(module):
            module.counter.count += 1
            return 1 / module.counter.count

        def queued(module):
            module.queue.append(sum(module.queue) % 7)
            return sum(module.queue)

        def seen(module):
            module.seen.add(len(module.seen))
            return len(module.seen)

        for moves in (lambda module: torch.rand((), generator=module.generator), lambda module: module.random.random(),
                      queued, seen, counted):
            with self.subTest(moves.__name__):
                model = Net(Several)
                alone = copy.deepcopy(model)
                for layer in [*model.layers, *alone.layers]:
                    layer.moves = moves
                expected, _ = self.train(alone, None)
                made, _ = self.recompute()
                losses, again = self.train(model, made)
                self.assertEqual((losses, again[-1]), (expected, [0, 2]))

    def test_what_a_block_writes_into_lists_of_the_programs_is_written_once(self):
        found, sums = [], {"all": 0.0}

        class Telling(Layer):
            def forward(self, x):
                sums["all"] += x.detach().sum().item()
                return super().forward(x)

        model = Net(Telling)
        for layer in model.layers:
            layer.inner.register_forward_hook(lambda module, inputs, result: found.append(result.detach().mean()))
        told = []
        for one, made in ((copy.deepcopy(model), None), (model, self.recompute()[0])):
            self.train(one, made)
            told.append((len(found), sums["all"]))
            found.clear()
            sums["all"] = 0.0
        self.assertEqual(*told)
        self.assertEqual(told[0][0], 24)

    def test_a_second_run_has_the_attributes_of_its_forward(self):
        """The program may set them between forward and backward."""

        class Conditioned(Layer):
            scale = None

            def forward(self, x):
                return super().forward(x, scale=self.scale)

        def trained(model, made):
            torch.manual_seed(3)
            for i in range(4):
                for layer in model.layers:
                    layer.scale, layer.dropout.p = torch.tensor(1 + i / 3), 0.3
                loss = model(torch.randn(8, 16)).square().mean()
                for layer in model.layers:
                    layer.scale, layer.dropout.p = None, 0.0
                model.layers[1].requires_grad_(False)
                loss.backward()
                model.layers[1].requires_grad_(True)
                for one in model.layers[1].parameters():
                    self.assertIsNone(one.grad)
                    one.grad = torch.zeros_like(one)
                step(model, made)
            return [one.detach().clone() for one in model.parameters()]

        model = Net(Conditioned)
        alone = copy.deepcopy(model)
        expected = trained(alone, None)
        made, _ = self.recompute()
        for mine, its in zip(trained(model, made), expected):
            self.assertTrue(torch.equal(mine, its))

    def test_buffers_that_begin_to_change_later_are_found(self):
        """As those of BatchNorm, which the program froze at first."""
        found = []
        model = Net(norm=True)
        for one in (copy.deepcopy(model), model):
            made = self.recompute()[0] if one is model else None
            for layer in one.layers:
                layer.norm.eval()
            losses = self.train(one, made, iterations=4)[0]
            for layer in one.layers:
                layer.norm.train()
            found.append((losses + self.train(one, made, iterations=2)[0], [buffer.tolist() for buffer in one.buffers()]))
        self.assertEqual(*found)

    def test_what_changes_within_a_later_forward_is_refused(self):
        class Late(Scaled):
            def forward(self, x):
                self.change = begun[-1]
                return super().forward(x)

        begun = [lambda module, value: None]
        model = Net(functools.partial(Late, None))
        made, _ = self.recompute()
        self.train(model, made, iterations=3)
        begun.append(lambda module, value: module.scale.copy_(value))
        with self.assertRaisesRegex(RuntimeError, "Late changes in place what it is called with or what it has"):
            self.train(model, made)
        self.assertTrue(any(block.alone for block in made.blocks.values()))

    def test_a_block_that_gives_something_else_again_is_refused_and_then_left_alone(self):
        scale = contextvars.ContextVar("scale", default=1.0)

        class Reads(Layer):
            def forward(self, x):
                return super().forward(x, scale=scale.get())

        class Counts(Layer):
            count = 0

            def forward(self, x):
                Counts.count += 1
                return super().forward(x, scale=Counts.count)

        class Weakens(Layer):
            def forward(self, x):
                self.inner.weight.data.mul_(0.9)
                return super().forward(x)

        for kind in (Reads, Counts, Weakens):
            with self.subTest(kind.__name__):
                model = Net(kind)
                made, _ = self.recompute()
                token = scale.set(0.5)
                loss = model(torch.randn(8, 16)).square().mean()
                scale.reset(token)
                with self.assertRaisesRegex(RuntimeError, "%s gives something else when it is computed again" % kind.__name__):
                    loss.backward()
                self.assertTrue(all(block.alone for block in made.blocks.values()))
                calls = [layer.calls for layer in model.layers]
                self.train(model, made, iterations=2)
                self.assertEqual([layer.calls for layer in model.layers], [count + 2 for count in calls])

    def test_a_block_that_changes_later_is_refused_within_twice_its_forwards(self):
        class Late(Layer):
            begins = False

            def forward(self, x):
                Late.count += 1
                return super().forward(x, scale=1 + Late.count * Late.begins)

        Late.count = 0
        model = Net(Late)
        made, _ = self.recompute()
        self.train(model, made, iterations=5)
        Late.begins = True
        with self.assertRaisesRegex(RuntimeError, "Late gives something else"):
            self.train(model, made, iterations=4)

    def test_what_others_hold_is_left_alone(self):
        class Slots:
            __slots__ = ("count",)

            def __init__(self):
                self.count = 1

        class Passes(Layer):
            def forward(self, x, held):
                if isinstance(held, Slots):
                    held.count += 1
                    return super().forward(x, scale=held.count)
                return super().forward(held(x))

        class Holds(Net):
            def forward(self, x):
                held = self.held()
                for layer in self.layers:
                    x = layer(x, held)
                return self.head(x)

        norm = nn.BatchNorm1d(16)
        for held in (Slots, lambda: norm):
            with self.subTest(held.__name__):
                model = Holds(Passes)
                model.held = held
                _, _, made = self.same(model)
                self.assertTrue(all(block.alone for block in made.blocks.values()))
        self.assertEqual(norm.num_batches_tracked, 2 * 4 * 6)

    def test_a_block_that_transforms_functions_is_left_alone(self):
        class Descends(Layer):
            def forward(self, x):
                inner = torch.func.vmap(torch.func.grad(lambda row: torch.tanh(self.inner(row)).sum()))
                return super().forward(x - 0.1 * inner(x))

        _, _, made = self.same(Net(Descends))
        self.assertTrue(all(block.alone for block in made.blocks.values()))

    def test_where_no_hooks_may_be_nothing_is_done(self):
        model = Net()
        made, _ = self.recompute()
        with torch.autograd.graph.disable_saved_tensors_hooks("none"):
            model(torch.randn(8, 16)).sum().backward()
        self.assertEqual([layer.calls for layer in model.layers], [1] * 4)

    def test_a_block_may_come_to_its_second_run_within_its_first(self):
        class Descends(Layer):
            def forward(self, x):
                energy = torch.tanh(self.inner(x)).sum()
                return super().forward(x - 0.1 * torch.autograd.grad(energy, x, create_graph=True)[0])

        class Starts(Net):
            def forward(self, x):
                return super().forward(x.requires_grad_())

        self.same(Starts(Descends))

    def test_results_of_a_gpu_may_differ_by_rounding(self):
        torch.manual_seed(0)
        for kind, noise in ((torch.float32, 2e-5), (torch.bfloat16, 0)):
            one = torch.randn(3, 700, dtype=kind)
            with mock.patch.object(results, "is_exact", lambda torch, one: False):
                self.assertTrue(results.is_like(torch, one, one * (1 + noise)))
                self.assertFalse(results.is_like(torch, one, one * 1.1))
                self.assertFalse(results.is_like(torch, one, nn.functional.dropout(one, 0.3)))
            self.assertFalse(results.is_like(torch, one, one * (1 + 2e-2)))
        self.assertEqual(results.sample(torch, torch.randn(4, 300, 5000)).numel() <= 2 * results.SOME, True)
        self.assertTrue(results.is_like(torch, torch.full((2,), float("nan")), torch.full((2,), float("nan"))))

    def test_blocks_that_are_scripted_are_none(self):
        model = nn.Sequential(*(torch.jit.script(Bending()) for _ in range(2)), nn.Linear(16, 1))
        made, world = self.recompute()
        model(torch.ones(2, 16)).sum().backward()
        made.mark()
        made.mark()
        self.assertEqual((made.state, len(world.said)), (OFF, 1))
        self.assertIn("no repeated blocks were found", world.said[0])

    def test_a_block_that_clamps_its_weights_is_left_alone(self):
        class Clamps(Layer):
            def forward(self, x):
                with torch.no_grad():
                    self.inner.weight.clamp_(-0.1, 0.1)
                return super().forward(x)

        model = Net(Clamps)
        self.same(model)
        self.assertEqual([layer.calls for layer in model.layers], [7] * 4)

    def test_every_microbatch_counts(self):
        again, world, _ = self.same(Net(), microbatches=3)
        self.assertEqual(again[-1], [0, 2])
        self.assertEqual(len(world.phases), 48)

    def test_a_forward_without_a_backward_leaves_no_gradients(self):
        for discards, behind in ((False, {(1, 0): 128}), (True, {})):
            made, _ = self.recompute()
            model = Net()
            for _ in range(2):
                loss = model(torch.randn(4, 16)).sum()
                if not discards:
                    loss.backward()
                self.train(model, made, iterations=1)
            self.assertEqual(made.learned[0].behind, behind)

    def test_short_iterations_compute_nothing_again(self):
        again, world, made = self.same(Net(), sizes=(8, 16, 4, 24, 12), iterations=10)
        # Of 16 was learned, and of 24 when it came.
        self.assertEqual(again[2:], [[], None, [], [], [], [], [0, 2], []])
        self.assertEqual(([one.sizes for one in made.learned], made.learnings, len(world.phases)),
                         ([{(1, 0): 16 * 16}, {(1, 0): 24 * 16}], 2, 24))

    def test_larger_iterations_are_reckoned_when_none_is_recorded_any_more(self):
        with mock.patch.object(World, "recording", lambda world: False):
            again, world, made = self.same(Net(), sizes=(8, 16, 4, 24), iterations=8)
        self.assertEqual(again[2:], [[], [0, 1, 2, 3], [], [0, 2], [], [0, 1, 2, 3]])
        self.assertEqual((made.learnings, world.held), (1, [710]))

    def test_a_recording_that_ends_within_an_iteration_is_not_learned_from(self):
        with mock.patch.object(World, "recording", mock.Mock(side_effect=[True, False] + [False] * 9)):
            again, _, made = self.same(Net(), sizes=(8, 16, 4, 24), iterations=8)
        self.assertEqual(again[2:], [[], None, [], [0, 2], [], [0, 1, 2, 3]])
        self.assertEqual((made.learnings, [one.sizes for one in made.learned]), (1, [{(1, 0): 256}]))

    def test_an_error_leads_to_the_next_rung(self):
        made, world = self.recompute()
        model = Net()
        self.train(model, made, iterations=3)
        world.ooms = 1
        _, again = self.train(model, made, iterations=2)
        self.assertEqual(again, [[0, 1, 2], [0, 1, 2]])
        self.assertIn("out of memory", world.said[-1])

    def test_a_budget_that_cannot_work_is_refused(self):
        made, world = self.recompute(told([1000 * GIB, 900 * GIB, 800 * GIB], planned={2: 810 * GIB}), 700 * GIB)
        with self.assertRaisesRegex(RuntimeError, "700.000 GiB cannot work: .* 810.000 GiB"):
            self.train(Net(count=2), made)
        self.assertEqual(world.held, [])

    def test_a_larger_iteration_before_the_one_that_was_learned_is_refused_as_well(self):
        made, world = self.recompute(told([1000 * GIB, 900 * GIB, 800 * GIB], earlier=960 * GIB), 950 * GIB)
        with self.assertRaisesRegex(RuntimeError, "950.000 GiB cannot work: .* 971.520 GiB .*, the smallest that can"):
            self.train(Net(count=2), made, sizes=(16, 8))
        self.assertEqual(world.held, [])
        ladder = Ladder(told([1000, 700], planned={1: 710}))
        self.assertEqual([ladder.least(earlier) for earlier in (0, 705, 711)], [710, 710, 711 * HEAP])

    def test_an_error_says_what_would_work_where_all_is_computed_again(self):
        answer = told([1000 * GIB, 900 * GIB, 800 * GIB], fixed=100 * GIB)
        made, world = self.recompute(answer, 950 * GIB)
        said, model = [], Net(count=2)
        model.head.register_forward_hook(lambda *called: said.append(
            world.remedy(900 * GIB, 60 * GIB) if world.held else None))
        self.train(model, made, sizes=(8, 8, 8, 10, 8), iterations=5)
        self.assertEqual(made.learnings, 2)
        # One block of the two is computed again; then a larger iteration is learned; then both are.
        self.assertEqual([said[i] for i in (0, 1, 2, 4)], [None, None, "", ""])
        self.assertRegex(said[3], "950.000 GiB cannot work: an iteration takes at least 986.700 GiB .* all 2 blocks")
        made.rung = 2
        self.assertRegex(world.remedy(900 * GIB, 60 * GIB), "takes at least 971.520 GiB")
        self.assertEqual(world.remedy(900 * GIB, 30 * GIB), "")  # in pieces that are too small

    def test_without_an_answer_all_is_computed_again(self):
        model = Net()
        made, world = self.recompute(RuntimeError("the command is not there"))
        self.train(model, made)
        self.assertEqual([layer.calls for layer in model.layers], [12] * 4)
        self.assertIn("the command is not there", world.said[-1])
        self.assertEqual(world.held, [710])

    def test_nothing_is_done_without_gradients(self):
        made, world = self.recompute()
        model = Net()
        with torch.no_grad():
            model(torch.randn(2, 16))
        self.assertEqual((made.count, len(made.models)), (0, 0))
        self.train(model, made, iterations=2)
        phases = len(world.phases)
        before = [layer.calls for layer in model.layers]
        model.eval()
        with torch.no_grad():
            model(torch.randn(2, 16))
        self.assertEqual([layer.calls for layer in model.layers], [calls + 1 for calls in before])
        self.assertEqual(len(world.phases), phases)

    def test_what_the_program_checkpoints_itself_is_left_alone(self):
        made, world = self.recompute()
        model = Net(GradientCheckpointingLayer)
        for layer in model.layers:
            layer.gradient_checkpointing = True
            layer._gradient_checkpointing_func = types.MethodType(
                lambda self, function, x: checkpoint(function, x, use_reentrant=False), layer)
        self.train(model, made, iterations=3)
        self.assertEqual((made.count, made.state), (0, OFF))
        self.assertIn("checkpoints Net itself", world.said[0])

    def test_within_the_programs_checkpoint_nothing_is_nested(self):
        class Outer(Net):
            def forward(self, x):
                return checkpoint(super().forward, x, use_reentrant=False)

        self.same(Outer())

    def test_within_the_transforms_of_torch_func_nothing_is_done(self):
        for kind in (Layer, GradientCheckpointingLayer):
            model, x = Net(kind), torch.randn(4, 16)

            def loss(weights):
                torch.manual_seed(1)
                return torch.func.functional_call(model, weights, x).square().mean()

            made, _ = self.recompute()
            for iterations in (4, 0):  # models are looked for, and then blocks are chosen
                weights = {name: one.detach().clone() for name, one in model.named_parameters()}
                gradients = torch.func.grad(loss)(weights)
                expected = torch.autograd.grad(loss({}), model.parameters())
                for mine, its in zip(gradients.values(), expected):
                    self.assertTrue(torch.equal(mine, its))
                self.train(model, made, iterations=iterations)
            self.assertEqual(made.state, CHOSEN)

    def test_a_block_that_counts_counts_its_forwards(self):
        class Anneals(Layer):
            step = 0

            def forward(self, x):
                self.step += 1
                return super().forward(x, scale=torch.tensor(1 / self.step))

        model = Net(Anneals)
        again, _, _ = self.same(model)
        self.assertEqual(again[-1], [0, 2])
        self.assertEqual([(layer.step, layer.calls) for layer in model.layers], [(6, 12), (6, 8)] * 2)

    def test_what_the_program_changes_between_forward_and_backward_is_put_back(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        def trained(model, recompute, evaluates):
            torch.manual_seed(self.seed)
            found = []
            for _ in range(6):
                with sdpa_kernel(SDPBackend.MATH):
                    loss = model(torch.randn(4, 16)).square().mean()
                model.train(not evaluates)
                loss.backward()
                self.assertEqual({part.training for part in model.modules()}, {not evaluates})
                self.assertTrue(torch.backends.cuda.flash_sdp_enabled())
                model.train()
                found.append(loss.item())
                step(model, recompute)
            return found

        for kind in (Layer, Attending):
            for evaluates in (True, False):
                model = Net(kind)
                expected = trained(copy.deepcopy(model), None, evaluates)
                self.assertEqual(trained(model, self.recompute()[0], evaluates), expected)

    def test_attention_has_the_kernel_of_the_first_run_whose_order_torch_sets_there(self):
        """On the GPUs where cuDNN's attention is the fastest torch puts it first, in a program's first call."""
        get, put = getattr(torch._C, "_get_sdp_priority_order", None), getattr(torch._C, "_set_sdp_priority_order", None)
        if get is None or put is None:
            self.skipTest("this torch has no order of attention's kernels")
        before = get()
        self.addCleanup(put, before)

        class Ordering(Layer):
            seen = []

            def forward(self, x):
                if not Ordering.seen:
                    put(before[::-1])
                Ordering.seen.append(get())
                return super().forward(x)

        model, (made, _) = Net(Ordering), self.recompute()
        model(torch.randn(4, 16)).square().mean().backward()
        step(model, made)
        self.assertEqual(Ordering.seen, [before[::-1]] * 8)

    def test_with_other_weights_nothing_is_done(self):
        """A step of meta-learning: the weights that the second forward runs with are in no module when backward comes."""
        def losses(model, others, recompute):
            torch.manual_seed(self.seed)
            found = []
            for _ in range(6):
                x, weights = torch.randn(4, 16), others(dict(model.named_parameters()))
                loss = torch.func.functional_call(model, weights, x).square().mean()
                gradients = torch.autograd.grad(loss, list(weights.values()), create_graph=True)
                fast = {name: one - 0.1 * step for (name, one), step in zip(weights.items(), gradients)}
                torch.func.functional_call(model, fast, x).square().mean().backward()
                found += [loss.item(), *(one.grad.clone() for one in model.parameters())]
                step(model, recompute)
            return found

        for others in (lambda weights: weights, lambda weights: {name: 0.9 * one for name, one in weights.items()}):
            for kind in (Layer, GradientCheckpointingLayer):
                model = Net(kind)
                expected = losses(copy.deepcopy(model), others, None)
                made, _ = self.recompute()
                with warnings.catch_warnings(record=True) as said:
                    warnings.simplefilter("always")
                    found = losses(model, others, made)
                self.assertEqual(said, [])
                for mine, its in zip(found, expected):
                    self.assertTrue(torch.equal(torch.as_tensor(mine), torch.as_tensor(its)))

    def test_a_model_without_repeated_parts_is_left_alone(self):
        made, world = self.recompute()
        self.train(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), made, iterations=3)
        self.assertEqual(made.state, OFF)
        self.assertIn("no repeated blocks", world.said[0])

    def test_layers_are_called_with_a_cache_that_holds_something(self):
        """As in prefix tuning; such a layer gives its cache up where it asks."""

        class Remembering(GradientCheckpointingLayer):
            def __call__(self, x, cache=None):
                return super().__call__(x, cache=None if self.gradient_checkpointing and self.training else cache)

            def forward(self, x, cache=None):
                return super().forward(x) + (sum(cache) if cache else 0)

        class Inner(Net):
            def forward(self, x, cache):
                for layer in self.layers:
                    x = layer(x, cache=cache)
                return self.head(x)

        class Prefixed(nn.Module):
            def __init__(self, always):
                super().__init__()
                self.inner, self.prefix = Inner(Remembering), nn.Parameter(torch.ones(16))
                self.always, self.calls = always, 0

            def forward(self, x):
                self.calls += 1
                return self.inner(x, cache=[self.prefix] if self.always or self.calls % 2 else [])

        for always in (True, False):
            again, world, _ = self.same(Prefixed(always), microbatches=2)
            self.assertEqual(again[-1], None if always else [0, 2])
            self.assertIn("all blocks are computed again: none was so far" if always else "2 of 4", world.said[0])

    def test_a_larger_model_has_the_blocks_of_one_that_was_called_before_it(self):
        for kind in (Layer, GradientCheckpointingLayer):
            net, (made, world) = Net(kind), self.recompute()
            net(torch.randn(8, 16)).square().mean().backward()
            net.zero_grad()
            whole = nn.Sequential(net)
            _, again = self.train(whole, made)
            self.assertEqual((again[-1], made.count, len(made.models)), ([0, 2], 4, 1))
            self.assertEqual(len(world.said), 1, world.said)

    def test_copies_and_pickles_are_models_as_before(self):
        for model in (Net(), Net(GradientCheckpointingLayer)):
            made, _ = self.recompute()
            self.train(model, made, iterations=3)
            made.looking.remove()
            x = torch.randn(2, 16)
            torch.manual_seed(1)
            expected = model(x)
            for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
                torch.manual_seed(1)
                result = other(x)
                self.assertTrue(torch.equal(result, expected))
                result.sum().backward()

    def test_a_model_can_be_scripted_as_before(self):
        for kind in (Bending, GradientCheckpointingLayer):
            model, seen = Net(kind), []
            made, _ = self.recompute()
            self.train(model, made, iterations=3)
            x = torch.randn(2, 16)
            for one in (model, copy.deepcopy(model)):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # of torch.jit.script itself
                    scripted = torch.jit.script(one)
                self.assertTrue(torch.equal(scripted(x), model(x)))
            with mock.patch.object(made, "begins", lambda *called: seen.append("model")):
                with mock.patch.object(made, "run", lambda module, function, arguments, keywords: (
                        seen.append("block"), function(*arguments, **keywords))[1]):
                    model(x)
            self.assertEqual(seen, ["model"] + ["block"] * 4)

    def test_random_numbers_that_are_not_torchs_are_drawn_once(self):
        class Drops(Layer):
            def forward(self, x):
                return x if draw() < 0.3 else super().forward(x, scale=draw())

        numpy = sys.modules.get("numpy")
        for seed, draw in ((random.seed, random.random), *([(numpy.random.seed, numpy.random.rand)] if numpy else [])):
            model = Net(Drops)
            alone = copy.deepcopy(model)
            seed(7)
            expected, _ = self.train(alone, None)
            then = draw()
            seed(7)
            made, _ = self.recompute()
            losses, again = self.train(model, made)
            self.assertEqual((losses, draw()), (expected, then))
            self.assertEqual(again[-1], [0, 2])
            self.assertTrue(all(block.draws for block in made.blocks.values()))

    def test_autocast_holds_in_the_second_run(self):
        model = Net()
        alone = copy.deepcopy(model)
        made, _ = self.recompute()
        found = []
        for one, recompute in ((alone, None), (model, made)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found.append(self.train(one, recompute)[0])
        self.assertEqual(*found)


class Phases(unittest.TestCase):
    def test_what_is_behind_a_block_is_not_its_own(self):
        told, inside = [], []

        @contextlib.contextmanager
        def phase(name):
            inside.append(name)
            told.append(name)
            try:
                yield
            finally:
                inside.pop()
                told.append("")

        package = types.SimpleNamespace(phase=phase, _enter_phase=told.append)
        with contextlib.suppress(KeyError), TheWorld(None, package).phase("block.3"):
            raise KeyError
        self.assertEqual((told, inside), (["block.3", "", BETWEEN], []))

    def test_a_budget_that_is_held_is_the_allocators(self):
        library, device = mock.Mock(spec=["pleat_torch_budget"]), mock.Mock()
        package = types.SimpleNamespace(_library=library, _call=lambda function, *told: function(*told))
        TheWorld(device, package).hold(3 * GIB, None)
        library.pleat_torch_budget.assert_called_once_with(3 * GIB)
        device.cuda.set_per_process_memory_fraction.assert_not_called()


@unittest.skipIf(torch is None, "no torch")
class Asked(unittest.TestCase):
    def test_a_budget_is_wanted(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            run.parse(["--recompute", "auto", "--", "python3"])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--budget=40GiB", said.getvalue())
        made = run.variables(run.parse(["--recompute", "auto", "--budget", "2GiB", "--", "python3"]))
        self.assertEqual(made["PLEAT_RUN_RECOMPUTE"], "auto")
        for asked in ({"recompute": "auto"}, {"recompute": "all", "budget": "2GiB"}):
            with self.assertRaisesRegex(ValueError, "recompute"):
                pleat.enable(**asked)
        self.assertFalse(pleat.enabled())


@unittest.skipIf(torch is None, "no torch")
class Blocks(unittest.TestCase):
    def test_the_outermost_repeated_parts_are_found(self):
        inner = nn.ModuleList([nn.Sequential(Layer(), Layer()), nn.Sequential(Layer(), Layer()), nn.Tanh()])
        model = nn.ModuleDict({"body": inner, "head": nn.Sequential(nn.Linear(4, 4), nn.Tanh())})
        self.assertEqual(find(torch, model), [inner[0], inner[1]])

    def test_buffers_are_compared_bit_by_bit(self):
        for one in (torch.tensor(float("nan")), torch.tensor([True, False]), torch.randn(4, 3).T, torch.empty(2, device="meta")):
            self.assertTrue(is_equal(torch, one, one.clone()))
        self.assertFalse(is_equal(torch, torch.zeros(2), torch.tensor([0.0, 1.0])))
        self.assertFalse(is_equal(torch, torch.zeros(2), torch.zeros(3)))

    def test_layers_that_ask_come_before_lists(self):
        model = nn.ModuleList([Layer(), Layer(), GradientCheckpointingLayer()])
        self.assertEqual(find(torch, model), [model[2]])


if __name__ == "__main__":
    suite.main(needs_torch=True)
