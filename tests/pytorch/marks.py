"""Marks of optimizers' steps, on the CPU: marks.py. Skips where there is no torch ($PLEAT_TORCH_PYTHON: a Python that
has it)."""

import gc
import types
import unittest
from unittest import mock

try:
    import torch
    from torch import nn
    from torch.optim.optimizer import register_optimizer_step_post_hook
except ImportError:
    torch = None

import here  # first: it knows where the package is
import pleat
import suite
from pleat._marks import ALL, MOST_PARTS, MOST_STEPS, Steps


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
        with mock.patch.multiple(pleat, _steps=self.marking, _library=library):
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


if __name__ == "__main__":
    suite.main(needs_torch=True)
