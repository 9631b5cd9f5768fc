"""tools/workloads/parallel.py on processors: whatever the ranks share out, the losses are those of one rank.

usage: parallel.py ($PLEAT_TORCH_PYTHON: a Python that has torch)
"""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from here import WORKLOADS  # first: it knows where the tests are
import suite

try:
    import torch
except ImportError:
    torch = None

PROGRAM = WORKLOADS / "parallel.py"
TINY = ("--layers 4 --hidden 32 --heads 2 --inner 48 --vocabulary 61 --sequence 24 --microbatch-size 8 --device cpu "
        "--iterations 3 --quiet").split()


def run(ranks, *options):
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return subprocess.run([sys.executable, "-B", *launch, str(PROGRAM), *TINY, *options], text=True, timeout=200,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu"))


@unittest.skipIf(torch is None, "no torch")
class Parallel(unittest.TestCase):
    def losses(self, ranks, *options):
        with tempfile.TemporaryDirectory() as folder:
            done = run(ranks, "--out", os.path.join(folder, "%r.json"), *options)
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            told = [json.loads(path.read_text()) for path in pathlib.Path(folder).iterdir()]
        self.assertEqual(sorted(one["rank"] for one in told), list(range(ranks)))
        for one in told:
            self.assertEqual(one["losses"], told[0]["losses"], "ranks differ")
        return told[0]["losses"]

    def same(self, got, expected):
        self.assertEqual(len(got), 3)
        for mine, theirs in zip(got, expected):
            self.assertAlmostEqual(mine, theirs, places=4)

    def test_all_ways_to_share_train_the_same(self):
        alone = self.losses(1, "--job", "ddp")
        self.assertNotAlmostEqual(alone[0], alone[-1], places=4)
        deepspeed = ("zero3",) if importlib.util.find_spec("deepspeed") else ()
        for job in ("ddp", "fsdp", "tensor", "1f1b", "interleaved", "zero-bubble", *deepspeed):
            with self.subTest(job):
                self.same(self.losses(2, "--job", job), alone)

    def test_lengths_are_drawn_alike_and_recomputation_changes_nothing(self):
        alone = self.losses(1, "--job", "ddp", "--drawn")
        self.same(self.losses(2, "--job", "fsdp", "--drawn", "--recompute"), alone)

    def test_experts_are_the_same_wherever_they_are(self):
        self.same(self.losses(2, "--job", "experts", "--drawn"), self.losses(1, "--job", "experts", "--drawn"))

    def test_what_cannot_be_shared_out_is_refused(self):
        for options, text in ((("--job", "1f1b", "--layers", "3"), "--layers: 3 are not to be shared out by 2"),
                              (("--job", "zero-bubble", "--drawn"), "--drawn: torch's pipelines want the same shapes"),
                              (("--job", "experts", "--experts", "3"), "--experts: 3 are not")):
            self.assertIn(text, run(2, *options).stderr)
        done = subprocess.run([sys.executable, "-B", str(PROGRAM), *TINY], text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env={name: value for name, value in os.environ.items()
                                                           if name not in ("WORLD_SIZE", "LOCAL_RANK")})
        self.assertIn("it is started by torchrun", done.stderr)


if __name__ == "__main__":
    suite.main(needs_torch=True)
