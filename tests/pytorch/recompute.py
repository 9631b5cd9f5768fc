"""Recomputation within a budget, on the CPU: recompute.py. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it); $PLEAT_COMMAND: the command.

Losses and weights are held against those of the same program alone, bit by bit. What a choice would take is
held against what a recording of that choice takes.
"""

import contextlib
import copy
import functools
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time
import types
import unittest
import weakref
from unittest import mock

try:
    import torch
    from torch import nn
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint
except ImportError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "adapters" / "pytorch"), str(ROOT / "tests"), str(ROOT / "tools" / "workloads")]
sys.dont_write_bytecode = True
import pleat  # noqa: E402
import suite  # noqa: E402
from pleat import run  # noqa: E402
from pleat._recompute import AGAIN, ATTENTION, BETWEEN, CHOSEN, LEARNING, OFF, OFFLOAD, Ladder  # noqa: E402
from pleat._recompute import Recompute, find, options  # noqa: E402
from pleat import _attention, _offload  # noqa: E402
from pleat._attention import Kept  # noqa: E402
from pleat._offload import Offload  # noqa: E402
from pleat._recompute import World as TheWorld  # noqa: E402

COMMAND = os.environ.get("PLEAT_COMMAND", str(ROOT / "build/release/bin/pleat"))
GIB = 1 << 30
LAYERS = 4  # of the model that is recorded


def told(live, fixed=100, planned=None, order=None):
    """As explain answers: rungs of so many live bytes."""
    rungs = [{"live_bytes": bytes_, "ns": 1000 * i} for i, bytes_ in enumerate(live)]
    for i, rung in enumerate(rungs[1:]):
        rung["block"], rung["way"] = order[i] if order and isinstance(order[i], tuple) else (
            order[i] if order else i, "again")
        if rung["way"] == "offload":
            rung["until"] = rung["block"] + 1
    for rung, bytes_ in (planned or {}).items():
        rungs[rung]["physical_bytes"] = bytes_
    return {"persistent_bytes": fixed, "lasting_bytes": fixed, "rungs": rungs}


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


class Nowhere(Copies):
    """Takes what it is given, and has room for anything."""

    def host(self, bytes):
        return range(bytes)

    def copy(self, pairs, device):
        return object()


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

    def hold(self, budget):
        self.held.append(budget)

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


def fails_once(works, nth):
    """A method that raises at one call."""
    calls = iter(range(1 << 30))

    def method(*arguments):
        if next(calls) == nth:
            raise RuntimeError("none")
        return works(*arguments)

    return method


class Ladders(unittest.TestCase):
    def test_the_first_rung_that_fits_is_taken(self):
        ladder = Ladder(told([1000, 700, 400]))
        self.assertEqual([ladder.rung(budget, 1) for budget in (1010, 1000, 710, 450, 10)], [0, 1, 1, 2, 2])

    def test_a_shorter_iteration_computes_less_again(self):
        ladder = Ladder(told([1000, 700, 400]))
        self.assertEqual([ladder.rung(710, share) for share in (0.1, 0.6, 0.7, 1.0, 1.5, 2.5)], [0, 0, 1, 1, 2, 2])

    def test_gradients_are_no_smaller_in_a_shorter_iteration(self):
        ladder = Ladder(dict(told([1000, 700, 400]), lasting_bytes=300))
        self.assertAlmostEqual(ladder.bytes(0, 0.5) / ladder.beyond, 650)
        self.assertAlmostEqual(ladder.bytes(0, 2) / ladder.beyond, 1900)

    def test_what_a_plan_takes_beyond_what_is_live_counts(self):
        self.assertEqual(Ladder(told([1000, 700, 400], planned={1: 770})).rung(710, 1), 2)

    def test_blocks_go_in_the_order_that_was_told(self):
        ladder = Ladder(told([4, 3, 2, 1], order=[2, 0, 1]))
        self.assertEqual([set(ladder.ways(rung)) for rung in range(4)], [set(), {2}, {0, 2}, {0, 1, 2}])


if torch is not None:

    class Layer(nn.Module):
        """With what makes recomputation hard: dropout, and a keyword."""

        def __init__(self, width=16, norm=False):
            super().__init__()
            self.inner = nn.Linear(width, width)
            self.norm = nn.BatchNorm1d(width) if norm else nn.LayerNorm(width)
            self.dropout = nn.Dropout(0.3)
            self.calls = 0

        def forward(self, x, scale=1.0):
            self.calls += 1
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
            import functools

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

    class Counting(TorchDispatchMode):
        """How often fused attention was computed."""

        calls = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            name = operator.overloadpacket.__name__
            self.calls += name.startswith("_scaled_dot_product_") and not name.endswith("_backward")
            return operator(*args, **(kwargs or {}))

    # Fused attention's operators on a GPU.
    GPU_ATTENTION = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
                     "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable")

    class GpuAttention:
        """Such an operator on the CPU. What a GPU's kernels return beyond the result is None, a number or an empty
        tensor; torch's own derivative of it is the operator's."""

        def __init__(self, name):
            self.operator = getattr(torch.ops.aten, name)
            self.library = torch.library.Library("aten", "IMPL")
            self.returned = []
            for operator, does in ((name, self.compute), (name + "_backward", self.derive)):
                schema = getattr(torch.ops.aten, operator).default._schema
                self.library.impl(operator, functools.partial(does, schema), "CPU")

        def __call__(self, asks, keys, values, *arguments, **keywords):
            needed = {"attn_bias": None, "compute_log_sumexp": True}
            names = [argument.name for argument in self.operator.default._schema.arguments]
            return self.operator(asks, keys, values, **{name: needed[name] for name in names if name in needed})[0]

        def compute(self, schema, *arguments, **keywords):
            result = list(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*arguments[:3]))
            for returned in schema.returns[2:]:
                is_random = returned.name.startswith("philox") or returned.name == "rng_state"
                result.append(7 if str(returned.type) == "int" else torch.zeros(()) if is_random else None)
            self.returned += map(type, result)
            return tuple(result)

        def derive(self, schema, *arguments, **keywords):
            told = dict(zip((argument.name for argument in schema.arguments), arguments))
            gradient = told.get("grad_out", told.get("grad_out_"))
            result = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                gradient, told["query"], told["key"], told["value"], told["out"], told["logsumexp"], 0.0, False)
            return (*result, None)[: len(schema.returns)]


class Trainer(unittest.TestCase):
    def train(self, model, recompute, iterations=6, sizes=(8,), microbatches=1):
        torch.manual_seed(3)
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


@unittest.skipIf(torch is None, "no torch")
class Training(Trainer):
    def test_losses_are_those_without_bit_by_bit(self):
        again, world, made = self.same(Net())
        self.assertEqual(again, [None, None, [0, 2], [0, 2], [0, 2], [0, 2]])
        self.assertEqual(made.count, 4)
        # One iteration is recorded: forwards, then the second runs from the last block on.
        self.assertEqual(world.phases, ["block.%d" % i for i in range(4)] + ["block.%d.again" % i for i in (3, 2, 1, 0)])
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
        self.assertEqual(len(world.phases), 8)

    def test_a_class_that_calls_its_parents_forward_is_one_block(self):
        model = Net(Special)
        model.layers.append(Layer())
        model.layers.append(Layer())
        again, world, _ = self.same(model, answer=told([1000, 900, 700, 500, 300, 200, 100], order=[2, 0, 1, 3, 4, 5]))
        self.assertEqual(again[-1], [0, 2])
        self.assertEqual(len(world.phases), 12)

    def test_buffers_that_change_are_left_as_they_are(self):
        model = Net(norm=True)
        self.same(model)
        # The first iteration found it out; from then on no block ran twice.
        self.assertEqual([layer.calls for layer in model.layers], [7] * 4)

    def test_every_microbatch_counts(self):
        again, world, _ = self.same(Net(), microbatches=3)
        self.assertEqual(again[-1], [0, 2])
        self.assertEqual(len(world.phases), 24)

    def test_short_iterations_compute_nothing_again(self):
        again, world, made = self.same(Net(), sizes=(8, 16, 4, 24, 12), iterations=10)
        # Of 16 was learned, and of 24 when it came.
        self.assertEqual(again[2:], [[], None, [], [], [], [], [0, 2], []])
        self.assertEqual((made.learned_size, made.learnings, len(world.phases)), (24 * 16, 2, 16))

    def test_larger_iterations_are_reckoned_when_none_is_recorded_any_more(self):
        with mock.patch.object(World, "recording", lambda world: False):
            again, world, made = self.same(Net(), sizes=(8, 16, 4, 24), iterations=8)
        self.assertEqual(again[2:], [[], [0, 1, 2], [], [0, 2], [], [0, 1, 2]])
        self.assertEqual((made.learnings, world.held), (1, [710]))

    def test_a_recording_that_ends_within_an_iteration_is_not_learned_from(self):
        with mock.patch.object(World, "recording", mock.Mock(side_effect=[True, False] + [False] * 9)):
            again, _, made = self.same(Net(), sizes=(8, 16, 4, 24), iterations=8)
        self.assertEqual(again[2:], [[], None, [], [0, 2], [], [0, 1, 2]])
        self.assertEqual((made.learnings, made.learned_size), (1, 256))

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

    def test_a_model_without_repeated_parts_is_left_alone(self):
        made, world = self.recompute()
        self.train(nn.Sequential(nn.Linear(16, 16), nn.Tanh()), made, iterations=3)
        self.assertEqual(made.state, OFF)
        self.assertIn("no repeated blocks", world.said[0])

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

    def test_autocast_holds_in_the_second_run(self):
        model = Net()
        alone = copy.deepcopy(model)
        made, _ = self.recompute()
        found = []
        for one, recompute in ((alone, None), (model, made)):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found.append(self.train(one, recompute)[0])
        self.assertEqual(*found)


@unittest.skipIf(torch is None, "no torch")
class Ways(Trainer):
    """Blocks that go different ways: tensors of any size are offloaded here."""

    ORDER = [(0, OFFLOAD), (1, ATTENTION), (3, OFFLOAD), (2, AGAIN), (3, AGAIN)]

    def setUp(self):
        patch = mock.patch.object(_offload, "SMALLEST", 1)
        patch.start()
        self.addCleanup(patch.stop)

    def ways(self, rung=4, order=None):
        order = order or self.ORDER
        answer = told([1000 - 100 * i for i in range(len(order) + 1)], order=order)
        answer["blocks"] = [{"number": i, "saved_bytes": 1000} for i in range(4)]
        return dict(answer=answer, budget=1010 - 100 * rung)

    def test_losses_are_those_without_bit_by_bit(self):
        for more in ({}, dict(microbatches=3), dict(sizes=(4, 16, 12, 16))):
            again, world, made = self.same(Net(Attending), **self.ways(), **more)
            self.assertEqual(again[3], [0, 1, 2, 3])
            self.assertEqual(made.ladder.ways(4), {0: (OFFLOAD, 1), 1: (ATTENTION, None), 2: (AGAIN, None), 3: (OFFLOAD, 4)})
            self.assertTrue(world.copying.copied)
            self.assertIn("1 of 4 blocks are computed again, 1 all but attention, 2 offloaded", world.said[0])

    def test_attention_is_computed_once_where_it_is_kept(self):
        made, _ = self.recompute(**self.ways())
        model = Net(Attending)
        self.train(model, made)
        with Counting() as counting:
            self.train(model, made, iterations=1)
        self.assertEqual(counting.calls, 5)  # four blocks, and the one that is computed again
        self.assertIs(nn.functional.scaled_dot_product_attention, torch._C._nn.scaled_dot_product_attention)

    def test_attention_of_a_gpu_is_computed_once_where_it_is_kept(self):
        names = [name for name in GPU_ATTENTION if hasattr(torch.ops.aten, name)]
        self.assertGreaterEqual(len(names), 3)
        for name in names:
            with self.subTest(name):
                attention = GpuAttention(name)
                model = Net(Attending)
                with mock.patch.object(nn.functional, "scaled_dot_product_attention", attention):
                    _, _, made = self.same(model, **self.ways())
                    with Counting() as counting:
                        self.train(model, made, iterations=1)
                self.assertEqual(made.failures, {})
                self.assertEqual(counting.calls, 5)  # four blocks, and the one that is computed again
                self.assertEqual("efficient" not in name, type(None) in attention.returned)
                attention.library._destroy()

    def test_attention_that_cannot_be_kept_is_computed_again(self):
        with mock.patch.object(_attention, "_note", mock.Mock(side_effect=TypeError("none of it"))) as note:
            _, world, made = self.same(Net(Attending), **self.ways())
        self.assertEqual(note.call_count, 1)  # no block tries it any more
        self.assertEqual(world.said[1:], ["pleat: recompute: blocks whose attention was to be kept are computed again "
                                          "from here on: TypeError: none of it"])
        made.state, made.iterations = LEARNING, 0
        self.train(Net(Attending), made, iterations=1)
        self.assertEqual(world.costs["attention_ns"], [0] * 4)

    def test_what_cannot_be_copied_stays_and_is_computed_again_from_then_on(self):
        for name, nth in (("host", 0), ("copy", 0), ("copy", 1), ("copy", 2), ("wait", 0)):
            with self.subTest(name, nth=nth):
                with mock.patch.object(Copies, name, fails_once(getattr(Copies, name), nth)):
                    _, world, _ = self.same(Net(Attending), **self.ways())
                self.assertEqual(world.said[1:], ["pleat: recompute: blocks to offload are computed again from here "
                                                  "on: RuntimeError: none"])
                # Of two blocks there and back in one of four iterations.
                self.assertLessEqual(world.copying.waits, 4)


    def test_attention_is_told_from_the_rest_of_a_block(self):
        made, world = self.recompute(**self.ways())
        self.train(Net(Attending), made, iterations=2)
        self.assertEqual(world.phases, [
            "block.%d%s%s" % (i, again, inner) for again, order in (("", range(4)), (".again", (3, 2, 1, 0)))
            for i in order for inner in ("", ".attention")])
        self.assertTrue(all(0 < inner < whole for inner, whole in zip(
            world.costs["attention_ns"], world.costs["block_ns"])))

    def test_autocast_and_hooks_hold(self):
        model = Net(Attending)
        alone = copy.deepcopy(model)
        made, _ = self.recompute(**self.ways())
        found = []
        for one, recompute in ((alone, None), (model, made)):
            seen = []
            for layer in one.layers:
                layer.register_forward_hook(lambda layer, inputs, result: result * 1.25)
                layer.register_full_backward_hook(lambda *called: seen.append("backward"))
            with torch.autocast("cpu", dtype=torch.bfloat16):
                found.append((self.train(one, recompute)[0], len(seen)))
        self.assertEqual(*found)

    def test_a_graph_can_be_retained(self):
        model = Net(Attending)
        alone = copy.deepcopy(model)
        made, _ = self.recompute(**self.ways())
        self.train(model, made)
        self.train(alone, None)
        found = []
        for one in (alone, model):
            torch.manual_seed(1)
            loss = one(torch.randn(8, 16)).square().mean()
            for retain in (True, True, False):
                loss.backward(retain_graph=retain)
            found.append([weight.grad.clone() for weight in one.parameters()])
        for mine, its in zip(*found):
            self.assertTrue(torch.equal(mine, its))

    def test_a_block_may_run_twice_and_activations_be_shared(self):
        class Shared(Net):
            def forward(self, x):
                bias = torch.tanh(self.head(x))
                for layer in [*self.layers, *self.layers[:2]]:
                    x = layer(x, bias=bias)
                return self.head(x)

        torch.manual_seed(0)
        self.same(Shared(Attending), **self.ways())

    def test_evaluation_between_is_left_alone(self):
        made, world = self.recompute(**self.ways())
        model = Net(Attending)
        self.train(model, made)
        copied = len(world.copying.copied)
        model.eval()
        with torch.no_grad(), Counting() as counting:
            model(torch.randn(2, 16))
        self.assertEqual((counting.calls, len(world.copying.copied)), (4, copied))

    def test_attention_that_draws_random_numbers_is_not_drawn_again(self):
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

        def attend(asks, dropout_p):
            result = operator(asks, asks, asks)[0]
            torch.rand(3)  # as its kernel does on a GPU
            return result

        kept, asks = Kept(torch, self.fail), torch.randn(1, 2, 8, 8)
        call = functools.partial(attend, asks, dropout_p=0.1)
        torch.manual_seed(2)
        before = torch.get_rng_state()
        first, behind = kept.note(call), torch.rand(4)
        for computed in (0, 1):  # a third run computes it
            torch.set_rng_state(before)
            kept.next = 0
            with Counting() as counting:
                self.assertTrue(torch.equal(kept.give(call), first))
            self.assertTrue(torch.equal(torch.rand(4), behind))
            self.assertEqual(counting.calls, computed)

    def test_nothing_is_offloaded_where_the_host_has_no_room(self):
        with mock.patch.object(World, "host_bytes", lambda world: 1999):
            made, world = self.recompute(**self.ways())
            self.train(Net(Attending), made, iterations=2)
        self.assertEqual(world.links, [1 << 30, 0])


@unittest.skipIf(torch is None, "no torch")
class Offloading(unittest.TestCase):
    """What is offloaded of one block's forward, on a device that is the host as well."""

    def setUp(self):
        patch = mock.patch.object(_offload, "SMALLEST", 1)
        patch.start()
        self.addCleanup(patch.stop)
        self.copies = Copies()
        self.failures = []
        self.offload = Offload(torch, self.copies, self.failures.append)
        self.block = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16))
        self.inner = []
        self.block[1].register_forward_hook(lambda module, inputs, result: self.inner.append(result))

    def forward(self, until=1):
        x = torch.randn(8, 16, requires_grad=True)
        with self.offload.saving(self.block, (x,), until):
            result = self.block(x)
        return x, result

    def test_only_what_the_block_made_is_copied_and_it_goes_and_comes(self):
        x, result = self.forward()
        self.assertEqual(self.copies.copied, [8 * 16 * 4])  # not its input, nor weights
        kept = weakref.ref(self.inner.pop().untyped_storage())
        self.assertIsNotNone(kept())
        behind = result * 2
        self.offload.passed(0, behind)
        self.assertIsNotNone(kept())  # the copy may not be over yet
        self.offload.passed(1, behind)
        self.assertIsNone(kept())
        behind.sum().backward()
        self.assertEqual(self.copies.copied, [512, 512])
        expected = torch.autograd.grad((self.block(x) * 2).sum(), x)[0]
        self.assertTrue(torch.equal(x.grad, expected))

    def test_host_memory_is_used_again(self):
        arenas = []
        for _ in range(3):
            _, result = self.forward()
            self.offload.passed(1, result)
            result.sum().backward()
            del result
            self.offload.end()
            arenas += [id(arena) for arena in self.offload.arenas]
        self.assertEqual(len(arenas), 3)
        self.assertEqual(len(set(arenas)), 1)

    def test_a_block_that_did_not_run_holds_nothing_back(self):
        _, result = self.forward()
        self.inner.clear()
        self.offload.end()
        result.sum().backward()  # fetched when it is asked for
        self.assertEqual(self.copies.copied, [512, 512])
        self.assertEqual(self.offload.waiting, {})

    def test_a_graph_that_is_dropped_is_waited_for(self):
        _, result = self.forward()
        behind = result * 2
        self.offload.passed(1, behind)
        waits = self.copies.waits
        behind.grad_fn(torch.ones_like(behind))  # its hooks do not run
        hooks = [moving for moving in self.offload.fetching]
        self.assertEqual(hooks, [])
        behind.register_hook(lambda gradient: None)
        torch.autograd.grad(behind.sum(), behind)
        self.assertEqual(len(self.offload.fetching), 1)
        del result, behind
        self.offload.end()
        self.assertEqual((self.offload.fetching, self.copies.waits), ([], waits + 1))

    def test_what_changes_before_it_goes_is_an_error(self):
        _, result = self.forward()
        with torch.no_grad():
            self.inner.pop().add_(1)
        self.offload.passed(1, result)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            result.sum().backward()

    def test_views_of_one_storage_are_copied_once(self):
        class Split(nn.Module):
            def forward(self, x):
                a, b = torch.exp(x).chunk(2, -1)
                return a * b.T.T

        x = torch.randn(8, 16, requires_grad=True)
        block = Split()
        with self.offload.saving(block, (x,), 1):
            result = block(x)
        self.offload.passed(1, result)
        result.sum().backward()
        self.assertEqual(self.copies.copied, [512, 512])
        self.assertTrue(torch.equal(x.grad, torch.autograd.grad(block(x).sum(), x)[0]))


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


@unittest.skipIf(torch is None, "no torch")
class Asked(unittest.TestCase):
    def test_a_budget_is_wanted(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            run.parse(["--recompute", "auto", "--", "python3"])
        self.assertEqual(ended.exception.code, 2)
        self.assertIn("--budget 40GiB", said.getvalue())
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

    def test_layers_that_ask_come_before_lists(self):
        model = nn.ModuleList([Layer(), Layer(), GradientCheckpointingLayer()])
        self.assertEqual(find(torch, model), [model[2]])


@unittest.skipIf(torch is None, "no torch")
@unittest.skipUnless(os.access(COMMAND, os.X_OK), "no command")
class Recordings(unittest.TestCase):
    """Fake tensors have shapes and lives, and a recording of them is one of a job of any size."""

    def record(self, path, ways=None, budget=1 << 50):
        import fake
        from torch._subclasses.fake_tensor import FakeTensorMode

        recorder = fake.Recorder(path)

        class Recorded(World):
            @contextlib.contextmanager
            def phase(self, name):
                outer = recorder.text
                recorder.set_label(outer.partition(";")[0] + ";phase=" + name)
                try:
                    yield
                finally:
                    recorder.set_label(outer)

            def timer(self):
                return lambda: lambda: 1000

            def ladder(self, costs, budget):
                recorder.finish()
                # Two thirds of a block's forward are attention, and what a block saves takes one and a half to copy.
                costs.update(block_ns=[3000] * LAYERS, attention_ns=[2000] * LAYERS, link=0)
                made = explain(path, budget, *options(costs))
                costs["link"] = int(max(block["saved_bytes"] for block in made["blocks"]) / 4500e-9)
                return explain(path, budget, *options(costs))

        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                wide = dict(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True, dropout=0.0,
                            norm_first=True)
                self.layers = nn.ModuleList(nn.TransformerEncoderLayer(**wide) for _ in range(LAYERS))
                self.head = nn.Linear(512, 4096)

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                return self.head(x)

        with FakeTensorMode(), fake.Watch(recorder):
            model = Deep()
            world = Recorded()
            made = Recompute(torch, budget, world)
            if ways is not None:
                made.looking.remove()
                made.add(model, ())
                made.state, made.ways, made.begins = CHOSEN, ways, lambda *called: None
                made.offload = Offload(torch, Nowhere(), self.fail)
            optimizer = torch.optim.AdamW(model.parameters())
            for i in range(3 if ways is None else 2):
                recorder.set_label("iter=%d;phase=F" % i)
                loss = model(torch.empty(16, 256, 512)).square().mean()
                recorder.set_label("iter=%d;phase=B" % i)
                loss.backward()
                del loss
                recorder.set_label("iter=%d;phase=O" % i)
                optimizer.step()
                optimizer.zero_grad()
                if ways is None:
                    made.mark()
                    if made.state == CHOSEN:
                        break
                else:
                    made.offload.end()
        if ways is not None:
            recorder.finish()
        return made, world

    def live(self, folder, name, ways):
        """What an iteration takes whose blocks go so."""
        path = os.path.join(folder, name + ".pickle.gz")
        self.record(path, ways)
        plan = subprocess.run([COMMAND, "plan", path, "--json", "-o", path + ".plan"], stdout=subprocess.PIPE, check=True)
        return json.loads(plan.stdout)["max_live_bytes"]

    def test_a_choice_takes_what_was_foretold(self):
        with tempfile.TemporaryDirectory() as folder:
            learned = os.path.join(folder, "learned.pickle.gz")
            made, world = self.record(learned)
            ladder, rungs = made.ladder, made.ladder.rungs
            self.assertEqual((ladder.blocks, made.rung), (LAYERS, 0))
            self.assertGreater(rungs[0]["live_bytes"], 1.3 * rungs[-1]["live_bytes"])
            # What is hidden goes first, then what costs least for its bytes, and in the end everything runs again.
            self.assertEqual(ladder.order[0], (0, OFFLOAD, 2))
            self.assertIn(ATTENTION, [way for _, way, _ in ladder.order])
            self.assertEqual(ladder.ways(len(rungs) - 1), {number: (AGAIN, None) for number in range(LAYERS)})
            for rung in (0, 1, 3, 5):
                live = self.live(folder, "rung%d" % rung, ladder.ways(rung))
                # A checkpoint holds a block's input, which a block that is kept may not save.
                self.assertLessEqual(live, 1.0005 * rungs[rung]["live_bytes"], rung)
                self.assertGreater(live, 0.97 * rungs[rung]["live_bytes"], rung)
            self.assert_budgets(learned)

    def assert_budgets(self, learned):
        rungs = explain(learned, 1 << 50)["rungs"]
        # A budget between two rungs: the first that a plan fits.
        budget = (rungs[1]["live_bytes"] + rungs[2]["live_bytes"]) // 2
        answer = explain(learned, budget)
        self.assertTrue(answer["fits"])
        self.assertEqual(answer["rung"], 2)
        self.assertLessEqual(answer["rungs"][2]["physical_bytes"], budget)
        # None that can work: the smallest is told, and works.
        answer = explain(learned, rungs[-1]["live_bytes"] // 2)
        self.assertFalse(answer["fits"])
        self.assertTrue(explain(learned, answer["smallest_bytes"])["fits"])
        text = subprocess.run([COMMAND, "explain", learned, "--budget", str(budget)], stdout=subprocess.PIPE,
                              text=True, check=True).stdout
        self.assertIn("2 of 4 blocks are computed again", text)


def explain(path, budget, *more):
    done = subprocess.run([COMMAND, "explain", path, "--budget", str(budget), "--json", *more], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


if __name__ == "__main__":
    suite.main(needs_torch=True)
