"""Recomputation within a budget of what torch.compile compiles, on the CPU: compiled.py. Skips where there is no
torch ($PLEAT_TORCH_PYTHON: a Python that has it).

Graphs are partitioned as on a GPU, and what they save is counted as what a device has given.
"""

import unittest

import recompute_parts  # first: it knows where the package is
import suite
from pleat._recompute.compiled import FIRST, TRIES, VARYING, Search
from pleat._recompute import Recompute
from pleat._recompute.recompute import COMPILED, OFF
from recompute_parts import World, told

torch = recompute_parts.torch
if torch is not None:
    from torch import nn


class Searches(unittest.TestCase):
    """What torch's budget is set to, by what a device takes at each value."""

    def search(self, takes, budget):
        search, tried = Search(budget), []
        while True:
            tried.append(search.share)
            if not search.tell(takes(search.share)):
                return search, tried

    def test_the_largest_that_fits_is_found(self):
        for budget in range(105, 220, 5):
            search, tried = self.search(lambda share: 100 + 100 * share, budget)
            self.assertLessEqual(100 + 100 * search.share, budget)
            self.assertLessEqual(len(tried), TRIES)
            self.assertGreater(search.share + 1 / 8, min(1, (budget - 100) / 100), budget)

    def test_what_fits_whole_is_found_soon(self):
        self.assertEqual(self.search(lambda share: 100, 200)[1], [0.5, 0.75, 1.0])

    def test_peaks_that_are_larger_with_less_kept_mislead_nobody(self):
        takes = {0.5: 130, 0.25: 120, 0.125: 140, 0.0625: 150, 0.375: 125, 0.03125: 160}
        search, _ = self.search(takes.get, 121)
        self.assertEqual(search.share, 0.25)
        search, _ = self.search(takes.get, 119)
        self.assertIsNone(search.share)
        self.assertEqual(min(search.took.values()), 120)


if torch is not None:

    class Deep(nn.Module):
        """Saves more than it must."""

        def __init__(self):
            super().__init__()
            self.parts = nn.ParameterList(torch.randn(32, 32) / 6 for _ in range(4))

        def forward(self, x):
            for part in self.parts:
                x = torch.tanh(torch.sigmoid(x @ part) * x)
            return x


@unittest.skipIf(torch is None, "no torch")
class Compiling(unittest.TestCase):
    """torch.compile with a backend that partitions graphs as all do, and then computes them as they are."""

    def setUp(self):
        import torch._functorch.config as config

        self.config = config
        self.addCleanup(setattr, config, "activation_memory_budget", config.activation_memory_budget)
        self.addCleanup(torch._dynamo.reset)
        torch._dynamo.utils.counters.clear()

    def train(self, budget, iterations=24, sizes=(64,), share=None):
        """Losses, and the world, in which memory is what a graph has saved."""
        torch.manual_seed(5)
        model, world = Deep(), World()
        world.saved = world.total = 0

        def pack(tensor):
            world.saved = max(world.saved, self.weigh(tensor))
            return tensor

        world.took = lambda: world.saved
        world.asked = lambda: world.total
        world.trim = lambda: setattr(world, "saved", 0)
        if share is not None:
            self.config.activation_memory_budget = share
        made = Recompute(torch, budget, world)
        self.addCleanup(made.looking.remove)
        compiled, losses, world.took_each = torch.compile(model, backend="aot_eager"), [], []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for i in range(iterations):
            self.storages = {}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                loss = compiled(torch.randn(sizes[i % len(sizes)], 32)).square().mean()
            world.took_each.append(sum(self.storages.values()))
            world.total += 1000 * sizes[i % len(sizes)]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            made.mark()
        return losses, world, made

    def weigh(self, tensor):
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = storage.nbytes()
        return sum(self.storages.values())

    def test_the_budget_decides_what_is_kept(self):
        torch._dynamo.reset()
        expected, world, made = self.train(1 << 30)
        most = world.took_each[-1]
        self.assertEqual(self.config.activation_memory_budget, 1.0)
        self.assertEqual(world.held, [1 << 30])
        for part in (0.7, 0.5):
            self.config.activation_memory_budget = 1.0
            torch._dynamo.reset()
            losses, world, made = self.train(int(part * most))
            self.assertEqual((made.state, made.compiled.chosen, world.held), (COMPILED, True, [int(part * most)]))
            self.assertLessEqual(world.took_each[-1], part * most)
            self.assertLess(self.config.activation_memory_budget, 1.0)
            self.assertLessEqual(len(made.compiled.search.took), TRIES)
            self.assertIn("activation_memory_budget is %g" % self.config.activation_memory_budget, world.said[-1])
            self.assertEqual(losses, expected)

    def test_a_budget_that_cannot_work_is_refused(self):
        torch._dynamo.reset()
        with self.assertRaisesRegex(RuntimeError, "cannot work: of 5 values"):
            self.train(1000)

    def test_sizes_that_vary_are_measured_longer(self):
        torch._dynamo.reset()
        _, world, made = self.train(1 << 30, iterations=40, sizes=(64, 16, 32))
        self.assertTrue(made.compiled.chosen)
        self.assertEqual(made.compiled.search.took[1.0], max(world.took_each))
        self.assertEqual(len(made.compiled.differences), VARYING)

    def test_an_error_lowers_it(self):
        torch._dynamo.reset()
        _, world, made = self.train(1 << 30)
        for count, share in ((1, 0.5), (2, 0.25), (3, 0.25)):
            world.ooms = count
            made.mark()
            self.assertEqual(self.config.activation_memory_budget, share)
        self.assertIn("out of memory", world.said[-1])

    def test_what_the_program_has_set_is_left_alone(self):
        torch._dynamo.reset()
        _, world, made = self.train(1 << 30, share=0.3)
        self.assertEqual((made.state, self.config.activation_memory_budget), (OFF, 0.3))
        self.assertIn("the program has set", world.said[0])

    def test_a_model_that_is_not_compiled_has_torchs_own(self):
        made = Recompute(torch, 1 << 30, World(told([3, 2])))
        self.addCleanup(made.looking.remove)
        self.assertEqual(self.config.activation_memory_budget, FIRST)
        model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
        model(torch.randn(4, 16))
        made.mark()
        self.assertEqual((made.state, self.config.activation_memory_budget), (OFF, 1.0))


if __name__ == "__main__":
    suite.main(needs_torch=True)
