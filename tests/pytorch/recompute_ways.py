"""Blocks whose attention is kept, and blocks that are offloaded, on the CPU: recompute_ways.py. Skips where there is no
torch ($PLEAT_TORCH_PYTHON: a Python that has it).

Losses and weights are held against those of the same program alone, bit by bit.
"""

import copy
import functools
import unittest
import weakref
from unittest import mock

import recompute_parts  # first: it knows where the package is
import suite
from pleat._recompute import attention, offload, recompute
from pleat._recompute.attention import Kept
from pleat._recompute.offload import Offload
from pleat._recompute.recompute import AGAIN, ATTENTION, LEARNING, OFFLOAD
from recompute_parts import SAVED, Copies, Trainer, World, told

torch = recompute_parts.torch
if torch is not None:
    from torch import nn
    from torch._subclasses import FakeTensorMode
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import checkpoint

    from recompute_parts import Attending, Layer, Net

    class Counting(TorchDispatchMode):
        """How often fused attention was computed."""

        calls = 0

        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            name = operator.overloadpacket.__name__
            self.calls += name.startswith("_scaled_dot_product_") and not name.endswith("_backward")
            return operator(*args, **(kwargs or {}))

    class Gated(Attending):
        """Changes attention's result in place, which autograd allows where nothing that is trained comes before it."""

        def forward(self, x):
            asks, keys, values = (one.reshape(1, 2, len(x), -1) for one in self.into(x.detach()).detach().chunk(3, -1))
            found = nn.functional.scaled_dot_product_attention(asks, keys, values).reshape(x.shape)
            found *= torch.sigmoid(x.detach())
            return x + torch.tanh(self.out(found))

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


def fails_once(works, nth):
    """A method that raises at one call."""
    calls = iter(range(1 << 30))

    def method(*arguments):
        if next(calls) == nth:
            raise RuntimeError("none")
        return works(*arguments)

    return method


@unittest.skipIf(torch is None, "no torch")
class Ways(Trainer):
    """Blocks that go different ways: tensors of any size are offloaded here."""

    ORDER = [(0, OFFLOAD), (1, ATTENTION), (3, OFFLOAD), (2, AGAIN), (3, AGAIN)]

    def setUp(self):
        for patch in (mock.patch.object(offload, "SMALLEST", 1), mock.patch.object(recompute, "overhead_ns", lambda torch: 0)):
            patch.start()
            self.addCleanup(patch.stop)

    def ways(self, rung=4, order=None):
        order = order or self.ORDER
        answer = told([1000 - 100 * i for i in range(len(order) + 1)], order=order)
        return dict(answer=answer, budget=1020 - 100 * rung)

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

    def test_attention_whose_result_the_block_changes_is_computed_again(self):
        order = [(i, ATTENTION) for i in range(4)]
        _, _, made = self.same(Net(Gated), **self.ways(order=order))
        self.assertEqual(([way for way, _ in made.ways.values()], made.failures), ([ATTENTION] * 4, {}))

    def test_attention_that_cannot_be_kept_is_computed_again(self):
        model = Net(Attending)
        with mock.patch.object(attention, "_note", mock.Mock(side_effect=TypeError("none of it"))) as note:
            _, world, made = self.same(model, **self.ways())
        self.assertEqual(note.call_count, 1)  # no block tries it any more
        self.assertEqual(world.said[1:], ["pleat: recompute: blocks whose attention was to be kept are computed again "
                                          "from here on: TypeError: none of it"])
        made.state, made.learned = LEARNING, []
        self.train(model, made, iterations=1)
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
        self.assertEqual(world.phases[8:], [  # behind those of the first iteration
            "block.%d%s%s" % (i, again, inner) for again, order in (("", range(4)), (".again", (3, 2, 1, 0)))
            for i in order for inner in ("", ".attention")])
        self.assertTrue(all(0 < inner < whole for inner, whole in zip(
            world.costs["attention_ns"], world.costs["block_ns"])))

    def test_attention_that_takes_less_than_keeping_it_does_is_computed_again(self):
        made, world = self.recompute(**self.ways())
        with mock.patch.object(recompute, "overhead_ns", lambda torch: 10**9):
            self.train(Net(Attending), made, iterations=2)
        self.assertEqual(world.costs["attention_ns"], [0] * 4)
        self.assertGreater(attention.overhead_ns(torch), 0)

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

    def test_within_the_programs_reentrant_checkpoint_nothing_is_done(self):
        class Outer(Net):
            def forward(self, x):
                x = self.layers[0](x)
                for layer in self.layers[1:3]:
                    x = checkpoint(layer, x, use_reentrant=True)
                return self.head(self.layers[3](x))

        _, world, made = self.same(Outer(Attending), **self.ways())
        self.assertEqual(made.failures, {})
        self.assertTrue(world.copying.copied)
        self.assertEqual({phase.partition(".attention")[0] for phase in world.phases},
                         {"block.0", "block.3", "block.0.again", "block.3.again"})

    def test_a_block_that_is_left_alone_ends_an_offload(self):
        class Mixed(nn.Module):
            def __init__(self):
                super().__init__()
                self.layers = nn.ModuleList([Layer(), Layer(norm=True), Layer(), Layer()])
                self.saved = []

            def forward(self, x):
                for layer in self.layers:
                    x = layer(x)
                if made.offload is not None:
                    self.saved.append(sorted(made.offload.waiting))
                return x

        made, world = self.recompute(**self.ways(rung=1))
        model = Mixed()
        self.train(model, made)
        self.assertTrue(made.blocks[model.layers[1]].alone)
        self.assertEqual(model.saved, [[]] * 4)  # what block 0 offloads goes by the end of block 1
        self.assertTrue(world.copying.copied)

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

    def test_attention_draws_the_random_numbers_of_its_tensors_device(self):
        drawn = {0: 100, 1: 200}  # the states of two GPUs' generators; the first is the current device
        devices = dict(
            is_initialized=lambda: True,
            get_rng_state=lambda device="cuda": drawn[torch.device(device).index or 0],
            set_rng_state=lambda state, device="cuda": drawn.update({torch.device(device).index or 0: state}))
        operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu

        def attend(there, asks, dropout_p):
            before = counting.calls
            result = operator(asks, asks, asks)[0]
            drawn[1] += counting.calls - before  # as its kernel does, where it runs
            return result

        with FakeTensorMode():
            there = torch.empty(1, device="cuda:1")
        call = functools.partial(attend, there, torch.randn(1, 2, 8, 8), dropout_p=0.1)
        with mock.patch.multiple(torch.cuda, **devices), Counting() as counting:
            kept = Kept(torch, self.fail)
            kept.note(call)
            self.assertEqual(drawn, {0: 100, 1: 201})
            drawn[1] = 200
            kept.give(call)
        self.assertEqual(drawn, {0: 100, 1: 201})

    def test_nothing_is_offloaded_where_the_host_has_no_room(self):
        with mock.patch.object(World, "host_bytes", lambda world: 2 * SAVED - 1):
            made, world = self.recompute(**self.ways())
            self.train(Net(Attending), made, iterations=2)
        self.assertEqual(world.links, [1 << 30, 0])


@unittest.skipIf(torch is None, "no torch")
class Offloading(unittest.TestCase):
    """What is offloaded of one block's forward, on a device that is the host as well."""

    def setUp(self):
        patch = mock.patch.object(offload, "SMALLEST", 1)
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

    def test_only_what_was_saved_before_a_change_is_an_error(self):
        class Rectified(nn.Module):
            def forward(self, x):
                inner = torch.tanh(x).detach().requires_grad_() * 1
                self.unused = inner.square()  # saves it before the change
                inner.relu_()
                aside = x.exp() * inner.data  # another count of changes, of the same storage
                return aside + inner.square()

        for leaves in (True, False):
            for is_used in (False, True):
                with self.subTest(leaves=leaves, is_used=is_used):
                    block, x = Rectified(), torch.randn(8, 16, requires_grad=True)
                    with self.offload.saving(block, (x,), 1):
                        result = block(x)
                    if leaves:
                        self.offload.passed(1, result)
                    if is_used:
                        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
                            (result + block.unused).sum().backward()
                        continue
                    del block.unused
                    result.sum().backward()
                    self.assertTrue(torch.equal(x.grad, torch.autograd.grad(block(x).sum(), x)[0]))

    def test_what_changes_and_stays_is_an_error(self):
        with mock.patch.object(Copies, "copy", fails_once(Copies.copy, 0)):
            _, result = self.forward()
        with torch.no_grad():
            self.inner.pop().add_(1)
        self.assertEqual(len(self.failures), 1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            result.sum().backward()

    def test_a_storage_whose_memory_is_freed_stays(self):
        for copied in (False, True):  # freed before the copy, or behind it
            with self.subTest(copied=copied):
                self.copies.copied.clear()
                x = torch.randn(8, 16, requires_grad=True)
                weight = torch.randn(8, 16)
                storage, whole = weight.untyped_storage(), weight.clone()
                with self.offload.saving(nn.Identity(), (x,), 1):
                    result = x * weight
                    if not copied:
                        storage.resize_(0)
                storage.resize_(0)
                self.offload.passed(1, result)
                storage.resize_(8 * 16 * 4)
                with torch.autograd._unsafe_preserve_version_counter(weight):
                    weight.copy_(whole)
                result.sum().backward()
                self.assertEqual(self.copies.copied, [512] if copied else [])
                self.assertTrue(torch.equal(x.grad, whole))

    def test_parameters_that_a_hook_makes_stay(self):
        x = torch.randn(8, 16, requires_grad=True)
        block = nn.Linear(16, 16)
        block.register_forward_pre_hook(
            lambda block, arguments: setattr(block, "weight", nn.Parameter(block.weight.detach().clone())))
        with self.offload.saving(block, (x,), 1):
            result = block(x)
        self.offload.passed(1, result)
        result.sum().backward()
        self.assertEqual(self.copies.copied, [])

    def test_tensors_made_of_others_stay(self):
        class Wrapper(torch.Tensor):
            @staticmethod
            def __new__(kind, inner):
                return torch.Tensor._make_wrapper_subclass(kind, inner.size())

            def __tensor_flatten__(self):
                raise AssertionError("not asked for")

            @staticmethod
            def __tensor_unflatten__(inner, context, size, stride):
                raise AssertionError("not asked for")

            def untyped_storage(self):
                raise AssertionError("it has none")

            __torch_dispatch__ = None

        self.assertFalse(self.offload.can_move(Wrapper(torch.randn(8, 16))))
        self.assertTrue(self.offload.can_move(torch.randn(8, 16)))

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


if __name__ == "__main__":
    suite.main(needs_torch=True)
