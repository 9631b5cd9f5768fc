"""Windows of varying modules, and marks of steps, on the CPU: windows.py. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it).

Modules say themselves what they "asked for"; the windows' names are collected instead of told to a
runtime.
"""

import copy
import gc
import io
import pathlib
import sys
import threading
import types
import unittest
import warnings
import weakref
from unittest import mock

try:
    import torch
    from torch import nn
    from torch.optim.optimizer import register_optimizer_step_post_hook
    from torch.utils.checkpoint import checkpoint
except ImportError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "adapters" / "pytorch"), str(ROOT / "tests")]
sys.dont_write_bytecode = True
import pleat  # noqa: E402
import suite  # noqa: E402
from pleat._marks import ALL, MOST_PARTS, MOST_STEPS, Steps  # noqa: E402
from pleat._windows import Served, Windows  # noqa: E402


class Leaf:
    """As much of a tensor as hooks need: a parameter that is passed to a module."""

    requires_grad = is_leaf = True

    def __init__(self):
        self.hooks = []

    def register_hook(self, hook):
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))


class Hooks(unittest.TestCase):
    def test_a_parameter_passed_to_a_window_keeps_no_hooks(self):
        windows = Windows(types.SimpleNamespace(Tensor=Leaf), lambda: 0, lambda name: None)
        leaf = Leaf()
        for _ in range(5):
            self.assertTrue(windows.hook_gradient(windows.with_gradient(((leaf,), {})), lambda: None))
            self.assertEqual(len(leaf.hooks), 1)
            windows.mark()
            self.assertEqual(leaf.hooks, [])


@unittest.skipIf(torch is None, "no torch")
class Marks(unittest.TestCase):
    def setUp(self):
        self.marks = self.taken = 0
        self.marking = Steps(self.mark, lambda device: self.taken)
        handle = register_optimizer_step_post_hook(self.marking)
        self.addCleanup(handle.remove)

    def mark(self, device, others):
        self.assertEqual((device, others), (ALL, set()))
        self.marks += 1

    def optimizer(self):
        value = nn.Parameter(torch.ones(2))
        value.grad = torch.ones(2)
        return torch.optim.SGD([value], lr=0.1)

    def steps(self, optimizer, count=1):
        for _ in range(count):
            self.taken += 1000
            optimizer.step()
        marks, self.marks = self.marks, 0
        return marks

    def test_the_first_optimizers_steps_are_marks(self):
        first, second = self.optimizer(), self.optimizer()
        for _ in range(100):
            self.assertEqual((self.steps(first), self.steps(second, 5)), (1, 0))

    def test_one_for_each_parameter_is_one_mark(self):
        many = [self.optimizer() for _ in range(200)]
        for _ in range(5):
            self.assertEqual(sum(self.steps(one) for one in many), 1)

    def test_another_takes_over_from_one_that_is_done(self):
        first, second = self.optimizer(), self.optimizer()
        self.assertEqual(self.steps(first, 3), 3)
        self.assertEqual(self.steps(second, MOST_STEPS), 0)
        self.assertEqual(self.steps(second, 10), 10)
        del second
        gc.collect()
        third = self.optimizer()
        self.assertEqual((self.steps(third), self.steps(third, 3)), (0, 3))

    def test_parameters_that_are_stepped_part_by_part_are_one_mark(self):
        optimizer = self.optimizer()
        group = optimizer.param_groups[0]
        parts = [nn.Parameter(torch.ones(2)) for _ in range(5)]
        for _ in range(4):
            for part in parts:
                part.grad = torch.ones(2)
                group["params"] = [part]
                self.taken += 1000
                optimizer.step()
                group["params"] = []
        self.assertEqual(self.marks, 4)

    def test_parameters_that_are_others_in_each_step_are_marks_in_the_end(self):
        optimizer = self.optimizer()
        group = optimizer.param_groups[0]
        held = []

        def step(times):
            marks = 0
            for _ in range(times):
                held.append(nn.Parameter(torch.ones(2)))
                held[-1].grad = torch.ones(2)
                group["params"] = [held[-1]]
                marks += self.steps(optimizer)
            return marks

        self.assertEqual(step(MOST_PARTS + 1), 1)
        self.assertEqual(step(10), 10)

    def test_a_step_that_calls_that_of_its_class_is_one_mark(self):
        class Derived(torch.optim.SGD):
            def step(self, closure=None):
                return super().step(closure)

        self.optimizer()  # which is when SGD's step gets its hooks
        value = nn.Parameter(torch.ones(2))
        value.grad = torch.ones(2)
        self.assertEqual(self.steps(Derived([value], lr=0.1), 5), 5)

    def test_what_the_program_marks_itself_is_marked_once(self):
        optimizer = self.optimizer()
        library = mock.Mock(pleat_torch_mark=lambda device: 0)
        with mock.patch.multiple(pleat, _steps=self.marking, _windows=None, _library=library):
            for _ in range(3):
                self.steps(optimizer)
                pleat.mark_step()
            self.assertEqual(self.steps(optimizer), 0)
        # Elsewhere in it, where it does not, as before.
        self.assertEqual(self.steps(optimizer, 3), 3)

    def test_a_step_with_a_closure_is_one_mark(self):
        self.taken += 1000
        value = nn.Parameter(torch.ones(2))
        optimizer = torch.optim.LBFGS([value], max_iter=3)

        def closure():
            optimizer.zero_grad()
            loss = (value * value).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        self.assertEqual(self.marks, 1)


class MarksOfDevices(unittest.TestCase):
    """Optimizers with parameters on several GPUs, in one process."""

    class Optimizer:
        def __init__(self, *devices):
            named = [types.SimpleNamespace(type=name.split(":")[0], index=int(name[5:]) if name[5:] else None)
                     for name in devices]
            self.param_groups = [{"params": [types.SimpleNamespace(device=device)]} for device in named]

    def setUp(self):
        self.marks = []
        self.taken = {0: 0, 1: 0}
        self.steps = Steps(lambda device, others: self.marks.append((device, sorted(others))),
                           lambda device: sum(self.taken.values()) if device == ALL else self.taken[device])

    def step(self, optimizer, *asked):
        """The marks of a step, before which these devices were asked for something."""
        for device in asked or self.taken:
            self.taken[device] += 1000
        self.steps(optimizer)
        marks, self.marks = self.marks, []
        return marks

    def test_each_device_has_its_optimizers(self):
        first, second = self.Optimizer("cuda:0"), self.Optimizer("cuda:1")
        self.assertEqual(self.step(first), [(0, []), (ALL, [0])])
        self.assertEqual(self.step(second), [(1, [])])
        for _ in range(2 * MOST_STEPS):
            self.assertEqual(self.step(first), [(0, []), (ALL, [0, 1])])
            self.assertEqual(self.step(second), [(1, [])])

    def test_of_two_on_a_device_one_marks(self):
        first, second = self.Optimizer("cuda:0"), self.Optimizer("cuda:0")
        for _ in range(5):
            self.assertEqual(self.step(first), [(0, []), (ALL, [0])])
            self.assertEqual(self.step(second), [])

    def test_one_on_several_devices_marks_them_all(self):
        optimizer = self.Optimizer("cuda:0", "cuda:1", "cuda:0", "cpu")
        self.assertEqual(self.step(optimizer), [(0, []), (1, []), (ALL, [0, 1])])

    def test_one_on_no_device_marks_all(self):
        away, there = self.Optimizer("cpu"), self.Optimizer("cuda:1")
        self.assertEqual(self.step(away), [(ALL, [])])
        self.assertEqual(self.step(self.Optimizer("cuda")), [])
        self.assertEqual(self.step(there), [(1, [])])
        for _ in range(MOST_STEPS):
            self.assertEqual(self.step(away), [(ALL, [1])])
        # The other one is done, and this one its heir.
        self.assertEqual(self.step(away), [(1, []), (ALL, [1])])

    def test_what_another_device_asked_for_is_no_iteration(self):
        first, second = self.Optimizer("cuda:0"), self.Optimizer("cuda:1")
        self.step(first)
        self.step(second)
        self.assertEqual(self.step(second, 0), [])
        self.assertEqual(self.step(second, 1), [(1, [])])

    def test_the_program_may_mark_one_device(self):
        first, second = self.Optimizer("cuda:0"), self.Optimizer("cuda:1")
        self.steps.tell(ALL)
        self.assertEqual((self.step(first), self.step(second)), ([], [(1, [])]))
        self.steps.tell(1)
        self.assertEqual((self.step(first), self.step(second)), ([(0, [])], []))
        self.steps.tell(ALL)
        self.assertEqual((self.step(first), self.step(second)), ([], []))


@unittest.skipIf(torch is None, "no torch")
class Found(unittest.TestCase):
    def setUp(self):
        self.bytes = 0
        self.names = []
        self.places = 0  # of an iteration's 100 requests
        self.windows = Windows(torch, lambda: self.bytes, self.names.append)
        self.requests, self.placed = 0, 0
        self.step = 0
        test = self

        class Part(nn.Module):
            """Asks for as much in every iteration, or for something else each time."""

            def __init__(self, bytes, varies=False):
                super().__init__()
                self.inner = nn.Linear(4, 4)
                self.bytes, self.varies = bytes, varies

            def forward(self, x):
                test.bytes += self.bytes + (test.step * 512 if self.varies else 0)
                return self.inner(x)

        class Block(nn.Module):
            def __init__(self, varies, again=None):
                super().__init__()
                self.attention = Part(100000)
                self.gate = Part(512)
                self.experts = Experts(varies)
                self.again = again

            def body(self, x):
                return x + self.experts(self.attention(x))

            def forward(self, x):
                if self.again is None:
                    return self.body(x)
                return checkpoint(self.body, x, use_reentrant=self.again)

        class Experts(nn.Module):
            def __init__(self, varies):
                super().__init__()
                self.gate = Part(512)
                self.each = nn.ModuleList(Part(20000, varies) for _ in range(4))

            def forward(self, x):
                x = self.gate(x)
                return sum(expert(x) for expert in self.each)

        self.Part, self.Block = Part, Block

    def run_steps(self, model, count=8):
        for _ in range(count):
            x = torch.ones(2, 4)
            model(x).sum().backward()
            self.step += 1
            self.requests += 100
            self.placed += self.places
            self.windows.mark()

    def test_a_steady_job_has_none_and_no_hooks(self):
        model = nn.Sequential(self.Block(False), self.Block(False))
        self.run_steps(model)
        self.assertEqual((self.names, self.windows.looked), ([], 0))
        self.assertFalse(nn.modules.module._global_forward_hooks)

    def test_experts_are_windows_and_their_blocks_are_not(self):
        model = nn.Sequential(self.Block(True), self.Block(False), self.Block(True))
        self.run_steps(model)
        self.assertEqual(sorted(self.windows.names.values()), ["0.experts", "2.experts"])
        self.assertFalse(nn.modules.module._global_forward_hooks)
        self.names.clear()
        self.run_steps(model, 1)
        self.assertEqual(self.names, ["0.experts", "", "2.experts", "", "2.experts.backward", "",
                                      "0.experts.backward", ""])
        self.assertEqual(self.windows.inside, [])

    def test_experts_beside_a_steady_one_are_one_window(self):
        model = nn.Sequential(self.Block(True), self.Block(False))
        model[0].experts.gate = self.Part(60000)
        self.run_steps(model)
        self.assertEqual(list(self.windows.names.values()), ["0.experts"])

    def test_stages_called_one_by_one_have_names_of_their_own(self):
        stages = nn.ModuleList(nn.Sequential(self.Block(True), self.Block(False)) for _ in range(2))

        def run(x):
            for stage in stages:
                x = stage(x)
            return x

        self.run_steps(run)
        self.assertEqual(sorted(self.windows.names.values()), ["0.0.experts", "1.0.experts"])

    def test_where_all_varies_there_are_none(self):
        model = nn.Sequential(self.Part(4096, True), self.Part(8192, True))
        self.run_steps(model)
        self.assertEqual((self.names, self.windows.names), ([], {}))
        self.assertEqual(self.windows.looked, 3)

    def served_by_runtime(self):
        served = Served(lambda: (self.requests, self.placed))
        self.windows = Windows(torch, lambda: self.bytes, self.names.append, served)
        return nn.Sequential(self.Block(True), self.Block(False))

    def test_a_job_that_is_served_as_planned_has_none_and_no_hooks(self):
        model = self.served_by_runtime()
        self.run_steps(model, 4)  # learned, at first
        self.places = 96
        self.run_steps(model, 20)
        self.assertEqual((self.names, self.windows.looked), ([], 0))
        self.assertFalse(nn.modules.module._global_forward_hooks)

    def test_a_job_that_goes_on_being_served_badly_gets_windows(self):
        model = self.served_by_runtime()
        self.run_steps(model, 8)
        self.assertFalse(nn.modules.module._global_forward_hooks)
        self.places = 90
        self.run_steps(model, 8)
        self.assertEqual(list(self.windows.names.values()), ["0.experts"])
        self.assertFalse(nn.modules.module._global_forward_hooks)

    def test_one_odd_iteration_is_not_judged_by_those_before(self):
        self.served_by_runtime()
        steady, odd = (nn.Sequential(self.Block(varies), self.Block(False)) for varies in (False, True))
        self.run_steps(steady, 4)  # learned
        self.places = 100
        self.run_steps(steady, 8)
        self.run_steps(odd, 1)
        self.run_steps(steady, 8)
        self.assertEqual((self.names, self.windows.looked), ([], 0))

    def test_recomputation_has_a_name_of_its_own(self):
        for again in (True, False):
            with self.subTest(reentrant=again):
                self.setUp()
                embed = nn.Linear(4, 4)
                model = nn.Sequential(embed, self.Block(True, again), self.Block(True, again))
                self.run_steps(model)
                self.assertEqual(sorted(self.windows.names.values()), ["1.experts", "2.experts"])
                self.names.clear()
                self.run_steps(model, 1)
                self.assertEqual(self.names[:4], ["1.experts", "", "2.experts", ""])
                behind = self.names[4:]
                for layer in "21":
                    for part in (".experts.again", ".experts.backward"):
                        self.assertEqual(behind.count(layer + part) > 0, True, (layer, part, behind))
                self.assertEqual(self.windows.inside, [])
                self.assertEqual(self.names[-1], "")

    def test_a_module_that_raises_leaves_its_window(self):
        model = nn.Sequential(self.Block(True), self.Block(True))
        self.run_steps(model)
        broken = model[1].experts.each[2]
        broken.forward = lambda x: 1 / 0
        self.names.clear()
        with self.assertRaises(ZeroDivisionError):
            model(torch.ones(2, 4))
        self.assertEqual(self.windows.inside, [])
        self.assertEqual(self.names, ["0.experts", "", "1.experts", ""])

    def window(self):
        """A model one of whose modules is a window."""
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
        self.windows.add(model[1], "1")
        return model

    def test_a_copy_of_a_model_has_its_windows(self):
        copied = copy.deepcopy(self.window())
        with torch.no_grad():
            copied(torch.ones(2, 4))
        self.assertEqual(self.names, ["1", ""])

    def test_a_model_that_is_saved_whole_takes_nothing_along(self):
        saved = io.BytesIO()
        torch.save(self.window(), saved)
        self.assertNotIn(b"pleat", saved.getvalue())
        saved.seek(0)
        loaded = torch.load(saved, weights_only=False)
        self.assertEqual(loaded(torch.ones(2, 4)).shape, (2, 4))
        self.assertEqual((self.names, len(loaded[1]._forward_hooks)), ([], 1))

    def test_a_replica_that_data_parallel_makes_is_its_window(self):
        replica = self.window()[1]._replicate_for_data_parallel()
        replica.weight, replica.bias = torch.ones(4, 4), None
        with torch.no_grad():
            replica(torch.ones(2, 4))
        self.assertEqual(self.names, ["1", ""])

    def test_a_model_with_windows_is_scripted_without_them(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.part = nn.Linear(4, 4)
                self.scripted = torch.jit.script(nn.Linear(4, 4))

            def forward(self, x):
                return self.scripted(self.part(x))

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            model = Model()
            self.windows.add(model.part, "part")
            scripted = torch.jit.script(model)
        with torch.no_grad():
            self.assertTrue(torch.equal(scripted(torch.ones(2, 4)), model(torch.ones(2, 4))))
        self.assertEqual((self.names, list(self.windows.names)), ([], []))
        # Training goes on, and they are found again.
        self.windows.found = True
        model = nn.Sequential(self.Block(True), self.Block(False))
        self.run_steps(model)
        self.assertEqual(list(self.windows.names.values()), ["0.experts"])

    def compiled(self):
        """A module that torch.compile compiles anew for each other size at first, and how often it did."""
        from torch._dynamo.utils import counters

        torch._dynamo.reset()
        counters.clear()
        self.addCleanup(counters.clear)
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        return model, torch.compile(model, backend="eager"), lambda: counters["stats"]["unique_graphs"]

    def test_what_is_compiled_while_modules_are_looked_at_runs(self):
        model, compiled, _ = self.compiled()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of hooks on all modules
            self.windows.look()
            model(torch.ones(3, 4))  # so that they are known
            for rows in range(3, 6):
                x = torch.ones(rows, 4)
                self.assertTrue(torch.equal(compiled(x), model(x)))

    def test_what_is_a_window_is_compiled(self):
        model, compiled, graphs = self.compiled()
        self.windows.add(model[0], "first")
        x = torch.ones(3, 4)
        self.assertTrue(torch.equal(compiled(x), model(x)))
        self.assertEqual(graphs(), 1)

    def test_a_compiled_job_is_not_looked_at(self):
        model = nn.Sequential(self.Block(True), self.Block(False))
        _, compiled, graphs = self.compiled()
        compiled(model(torch.ones(2, 4)))  # of its output, as below
        self.run_steps(nn.Sequential(model, compiled))
        self.assertEqual((self.windows.looked, list(self.windows.names), graphs()), (0, [], 1))

    def test_what_is_made_of_fused_modules_leaves_all_it_enters(self):
        model = nn.Sequential(nn.Conv2d(1, 1, 1), nn.BatchNorm2d(1), nn.ReLU()).eval()
        self.windows.add(model[0], "0")
        self.windows.add(model[2], "2")
        fused = torch.ao.quantization.fuse_modules(model, ["0", "1", "2"])
        with torch.no_grad():
            fused(torch.ones(1, 1, 2, 2))
        self.assertEqual(self.windows.inside, [])
        self.assertEqual(self.names[1::2], [""] * (len(self.names) // 2))

    def test_modules_made_anew_in_each_forward_are_not_kept(self):
        made = weakref.WeakSet()

        class Model(nn.Module):
            def forward(self, x):
                replica = nn.Identity()
                made.add(replica)
                return replica(x)

        model = Model()
        self.windows.look()
        for _ in range(2):
            for _ in range(4):
                model(torch.ones(1))
            gc.collect()
            self.assertEqual(len(made), 0)
            self.windows.mark()
        self.assertTrue(self.windows.global_hooks)
        self.windows.look_away()

    def test_a_model_goes_with_its_windows_and_the_next_gets_its_own(self):
        for _ in range(2):
            model = nn.Sequential(self.Block(True), self.Block(False))
            self.run_steps(model)
            self.assertEqual(list(self.windows.names.values()), ["0.experts"])
            gone = weakref.ref(model)
            del model
            gc.collect()
            self.assertIsNone(gone())
            self.assertEqual(list(self.windows.names.values()), [])

    def test_an_iteration_without_an_end_is_not_looked_at_for_ever(self):
        part = self.Part(512)
        self.windows.look()
        with mock.patch("pleat._windows.MOST_CALLS", 20):
            for _ in range(30):
                part(torch.ones(2, 4))
        self.assertFalse(nn.modules.module._global_forward_hooks)
        self.assertEqual((self.windows.calls, self.windows.stacks), ({}, {}))
        model = nn.Sequential(self.Block(True), self.Block(False))
        self.run_steps(model)
        self.assertEqual(list(self.windows.names.values()), ["0.experts"])

    def test_modules_of_other_threads_are_not_mixed_up(self):
        inner, outer = self.Part(512), nn.Sequential(self.Part(512))
        inside, done = threading.Event(), threading.Event()

        def forward(x):
            inside.set()
            done.wait(10)
            return x

        outer[0].forward = forward
        self.windows.look()
        thread = threading.Thread(target=outer, args=(torch.ones(2, 4),))
        thread.start()
        inside.wait(10)
        inner(torch.ones(2, 4))
        done.set()
        thread.join()
        calls = self.windows.calls
        self.assertEqual([module for module in calls if calls[module].is_root], [outer, inner])
        self.assertEqual([calls[module].now for module in (inner, outer)], [[512], [512]])
        self.assertEqual(calls[outer[0]].children, [])
        self.windows.looked = 2
        self.windows.look_again()

    def test_without_gradients_only_the_forward_is_one(self):
        model = nn.Sequential(self.Block(True), self.Block(True))
        self.run_steps(model)
        self.names.clear()
        with torch.no_grad():
            model(torch.ones(2, 4))
        self.windows.mark()
        self.assertEqual(self.names, ["0.experts", "", "1.experts", ""])

    def test_what_has_no_end_in_backward_does_not_begin_there(self):
        model = self.window()
        first, second = torch.ones(2, 4), torch.ones(2, 4, requires_grad=True)
        model[1].weight.requires_grad_()
        for value, behind in ((first, []), (first, []), (second, ["1.backward", ""])):
            self.names.clear()
            model[1](value).sum().backward()
            self.assertEqual((self.names, self.windows.inside), (["1", "", *behind], []))
        # An input that is passed through ends at once.
        self.windows.add(model[0], "0")
        model[0].forward = lambda x: x
        self.names.clear()
        model[0](second).sum().backward()
        self.assertEqual((self.names, self.windows.inside), (["0", ""], []))

    def test_backward_that_begins_again_is_open_once(self):
        for name in ("0.backward", "1", "1", "0.backward"):
            self.windows.push(name)
        self.assertEqual(self.windows.inside, ["1", "1", "0.backward"])

    def test_backward_that_ends_early_is_left_at_the_mark(self):
        model = nn.Sequential(self.Block(True), self.Block(True))
        self.run_steps(model)
        self.windows.push("0.experts.backward")
        self.names.clear()
        self.windows.mark()
        self.assertEqual((self.names, self.windows.inside), ([""], []))


if __name__ == "__main__":
    suite.main(needs_torch=True)
