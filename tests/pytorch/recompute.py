"""Recomputation within a budget, on the CPU: recompute.py. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it); $PLEAT_COMMAND: the command.

Losses and weights are held against those of the same program alone, bit by bit. What a choice would take is
held against what a recording of that choice takes.
"""

import contextlib
import copy
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
from unittest import mock

try:
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint
except ImportError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "adapters" / "pytorch"), str(ROOT / "tests"), str(ROOT / "tools" / "workloads")]
sys.dont_write_bytecode = True
import pleat  # noqa: E402
import suite  # noqa: E402
from pleat import run  # noqa: E402
from pleat._recompute import BETWEEN, CHOSEN, OFF, Ladder, Recompute, find  # noqa: E402
from pleat._recompute import World as TheWorld  # noqa: E402

COMMAND = os.environ.get("PLEAT_COMMAND", str(ROOT / "build/release/bin/pleat"))
GIB = 1 << 30
LAYERS = 4  # of the model that is recorded


def told(live, fixed=100, planned=None, order=None):
    """As explain answers: rungs of so many live bytes."""
    rungs = [{"live_bytes": bytes_, "ns": 1000 * i} for i, bytes_ in enumerate(live)]
    for i, rung in enumerate(rungs[1:]):
        rung["recompute"] = order[i] if order else i
    for rung, bytes_ in (planned or {}).items():
        rungs[rung]["physical_bytes"] = bytes_
    return {"persistent_bytes": fixed, "lasting_bytes": fixed, "rungs": rungs}


class World:
    """A device that says what it is told to."""

    def __init__(self, answer=None):
        self.answer, self.phases, self.said, self.held, self.ooms, self.records = answer, [], [], [], 0, True

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

    def ladder(self, times, budget):
        if isinstance(self.answer, Exception):
            raise self.answer
        self.times = times
        return self.answer

    def say(self, text):
        self.said.append(text)


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
        self.assertEqual([ladder.blocks(rung) for rung in range(4)], [set(), {2}, {0, 2}, {0, 1, 2}])


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


@unittest.skipIf(torch is None, "no torch")
class Training(unittest.TestCase):
    def train(self, model, recompute, iterations=6, sizes=(8,), microbatches=1):
        torch.manual_seed(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        losses, again = [], []
        for i in range(iterations):
            for _ in range(microbatches):
                loss = model(torch.randn(sizes[i % len(sizes)], 16)).square().mean()
                loss.backward()
            losses.append(loss.item())
            again.append(sorted(recompute.again) if recompute is not None and recompute.state == CHOSEN else None)
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

    def test_a_compiled_model_is_left_alone(self):
        for compiled in (True, False):
            made, world = self.recompute()
            model = Net()
            if compiled:  # as Module.compile() does
                model.layers[0]._compiled_call_impl = model.layers[0]._call_impl
                self.train(model, made, iterations=3)
            else:  # what is compiled as a whole calls no hook
                for _ in range(3):
                    made.mark()
            self.assertEqual((made.count, made.state, world.held), (0, OFF, [710]))
            self.assertEqual(len(world.said), 1)
            self.assertIn("activation_memory_budget", world.said[0])


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

    def record(self, path, again=None, budget=1 << 50):
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

            def ladder(self, times, budget):
                recorder.finish()
                return explain(path, budget, "--block-ns", ",".join(map(str, times)))

        class Deep(nn.Module):
            def __init__(self):
                super().__init__()
                wide = dict(d_model=512, nhead=8, dim_feedforward=2048, batch_first=True)
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
            if again is not None:
                made.looking.remove()
                made.add(model, ())
                made.state, made.again, made.begins = CHOSEN, frozenset(again), lambda *called: None
            optimizer = torch.optim.AdamW(model.parameters())
            for i in range(3):
                recorder.set_label("iter=%d;phase=F" % i)
                loss = model(torch.empty(16, 256, 512)).square().mean()
                recorder.set_label("iter=%d;phase=B" % i)
                loss.backward()
                del loss
                recorder.set_label("iter=%d;phase=O" % i)
                optimizer.step()
                optimizer.zero_grad()
                if again is None:
                    made.mark()
                    if made.state == CHOSEN:
                        break
        if again is not None:
            recorder.finish()
        return made, world

    def test_a_choice_takes_what_was_foretold(self):
        with tempfile.TemporaryDirectory() as folder:
            learned = os.path.join(folder, "learned.pickle.gz")
            made, world = self.record(learned)
            rungs = made.ladder.rungs
            self.assertEqual(sorted(made.ladder.order), list(range(LAYERS)))
            self.assertEqual(made.rung, 0)
            self.assertGreater(rungs[0]["live_bytes"], 1.3 * rungs[-1]["live_bytes"])
            for rung in (0, 2):
                path = os.path.join(folder, "rung%d.pickle.gz" % rung)
                self.record(path, made.ladder.blocks(rung))
                plan = subprocess.run([COMMAND, "plan", path, "--json", "-o", path + ".plan"], stdout=subprocess.PIPE,
                                      check=True)
                live = json.loads(plan.stdout)["max_live_bytes"]
                # A checkpoint holds a block's input, which a block that is kept may not save.
                self.assertLessEqual(live, 1.0005 * rungs[rung]["live_bytes"])
                self.assertGreater(live, 0.97 * rungs[rung]["live_bytes"])
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
