"""Blocks computed again and offloaded in jobs of two ranks, on the CPU: recompute_ranks.py. Skips where there is no torch
($PLEAT_TORCH_PYTHON: a Python that has it).

Each rank trains under FSDP2 and DDP with and without, and holds losses and weights against each other, bit by bit.
FSDP2 gathers a layer's parameters before its forward and frees their memory behind it: inside what is offloaded of
transformers' layers, around it for others.
"""

import copy
import os
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

import recompute_parts  # first: it knows where the package is
import suite
from pleat._recompute import offload
from pleat._recompute.recompute import AGAIN, ATTENTION, OFFLOAD
from recompute_parts import Trainer, told

torch = recompute_parts.torch
if torch is not None:
    import torch.distributed as dist
    from torch import nn

    from recompute_parts import Attending, GradientCheckpointingLayer, Net

RANK = "PLEAT_TESTS_RANK"  # a rank is this file with it: its number
RANKS = 2
SECONDS_MOST = 240


def sharded(model, **more):
    from torch.distributed.fsdp import fully_shard

    for layer in model.layers:
        fully_shard(layer, **more)
    return fully_shard(model, **more)


@unittest.skipIf(torch is None, "no torch")
class Ranks(unittest.TestCase):
    def test_losses_are_those_without_bit_by_bit(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = dict(os.environ, PLEAT_TESTS_STORE=os.path.join(folder, "store"))
            ranks = [subprocess.Popen([sys.executable, "-B", __file__], stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, env=dict(environment, **{RANK: str(i)}))
                     for i in range(RANKS)]
            try:
                for rank in ranks:
                    said, _ = rank.communicate(timeout=SECONDS_MOST)
                    self.assertEqual(rank.returncode, 0, said)
            finally:
                for rank in ranks:
                    rank.kill()
                    rank.wait()
                    rank.stdout.close()


@unittest.skipIf(torch is None, "no torch")
class Rank(Trainer):
    """What each rank does."""

    WAYS = [(0, OFFLOAD), (1, ATTENTION), (3, OFFLOAD), (2, AGAIN)]

    @classmethod
    def setUpClass(cls):
        dist.init_process_group("gloo", store=dist.FileStore(os.environ["PLEAT_TESTS_STORE"], RANKS),
                                rank=int(os.environ[RANK]), world_size=RANKS)
        cls.addClassCleanup(dist.destroy_process_group)

    def setUp(self):
        patch = mock.patch.object(offload, "SMALLEST", 1)
        patch.start()
        self.addCleanup(patch.stop)
        self.seed = 3 + dist.get_rank()

    def both(self, make, layer, **more):
        """Trains what `make` makes of a model with and without."""
        torch.manual_seed(1)
        model = Net(layer)
        alone, other = make(copy.deepcopy(model)), make(model)
        expected, _ = self.train(alone, None, **more)
        made, world = self.recompute(told([1000 - 100 * i for i in range(5)], order=self.WAYS), 610)
        losses, again = self.train(other, made, **more)
        self.assertEqual(again[-1], [0, 1, 2, 3])
        self.assertEqual(losses, expected)
        self.assertEqual(made.failures, {})
        self.assertEqual(len(world.said), 1)
        for its, mine in zip(alone.parameters(), other.parameters()):
            its, mine = (one.to_local() if hasattr(one, "to_local") else one for one in (its, mine))
            self.assertTrue(torch.equal(its, mine))
        return world.copying.copied

    def test_fsdp_around_layers_that_ask(self):
        for more in ({}, dict(reshard_after_forward=False)):
            with self.subTest(**more):
                copied = self.both(lambda model: sharded(model, **more), GradientCheckpointingLayer)
                # What tanh returned of two layers in four iterations, and of one of them back, as no block ends behind
                # the last; no gathered weights.
                self.assertEqual(copied, [8 * 16 * 4] * 12)

    def test_fsdp_of_a_lower_precision(self):
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        copied = self.both(lambda model: sharded(model, mp_policy=policy), GradientCheckpointingLayer)
        self.assertIn(8 * 16 * 2, copied)
        self.assertNotIn(16 * 16 * 2, copied)  # weights

    def test_fsdp_inside_other_blocks(self):
        self.assertTrue(self.both(sharded, Attending))

    def test_ddp(self):
        for layer in (GradientCheckpointingLayer, Attending):
            for more in ({}, dict(microbatches=2)):
                with self.subTest(layer, **more):
                    self.assertTrue(self.both(nn.parallel.DistributedDataParallel, layer, **more))


def load_tests(loader, found, pattern):
    return loader.loadTestsFromTestCase(Rank if RANK in os.environ else Ranks)


if __name__ == "__main__":
    if RANK in os.environ:
        ended = unittest.main(exit=False).result
        sys.stderr.flush()
        os._exit(not ended.wasSuccessful())  # autograd's threads would end by std::terminate where Python goes first
    suite.main(needs_torch=True)
