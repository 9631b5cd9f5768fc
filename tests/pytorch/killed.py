"""A rank of a job that is killed in mid-iteration, without a GPU: killed.py. torchrun's workers are served through torch's
pluggable allocator on stand-ins for CUDA's runtime and driver ($PLEAT_NO_GPU, $PLEAT_LIBRARY, $PLEAT_CUDA_LIBRARY) and
talk by gloo; one of them ends by SIGKILL while its tensors live. The job ends as it does natively, and nothing is left:
no process, no share of the device, no segment of shared memory, no file but what was asked for, no lock that a next
run would wait for."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from here import ADAPTER, ROOT  # first: it knows where the package is
import fallback
import suite

PYTHON = sys.executable
RANKS, VICTIM, STEPS = 3, 1, 8
GUARANTEE = "40g"  # of 140 GiB

# What a rank holds of the device is guaranteed to it by the ledger of tenants, until it ends. The ranks that are left
# end by the error that they meet, and not by the signal that torchrun sends them up to 0.1 s after it: a rank that the
# signal reaches first says nothing and writes nothing, as natively.
PROGRAM = """
import ctypes, os, pathlib, signal, sys
import torch
import torch.distributed as dist
folder, killed = pathlib.Path(sys.argv[1]), sys.argv[2]
signal.signal(signal.SIGTERM, signal.SIG_IGN)
ctypes.CDLL(None).pleat_no_gpu_counts()  # the stand-in gives this thread memory
rank = int(os.environ["RANK"])
(folder / ("process%%d" %% rank)).write_text(str(os.getpid()))
dist.init_process_group("gloo")
for step in range(%d):
    kept = [torch.empty(i << 20, dtype=torch.uint8, device="cuda") for i in range(1, 9)]
    dist.all_reduce(torch.ones(1 << 16))
    if killed == "killed" and step == 4 and rank == %d:
        os.kill(os.getpid(), signal.SIGKILL)
    del kept
dist.barrier()
""" % (STEPS, VICTIM)


def alive(process):
    try:
        state = pathlib.Path("/proc/%d/stat" % process).read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@unittest.skipUnless(fallback.STAND_INS, "no torch with CUDA, or no stand-ins for CUDA's libraries")
class Killed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.made.cleanup)
        made = pathlib.Path(cls.made.name)
        hooks = fallback.built(made)
        cls.package = made / "package"
        shutil.copytree(ADAPTER / "pleat", cls.package / "pleat", ignore=shutil.ignore_patterns("lib", "__pycache__"))
        (cls.package / "pleat" / "shims").mkdir()
        shutil.copy(hooks, cls.package / "pleat" / "shims" / "hooks.so")

    def setUp(self):
        folder = tempfile.TemporaryDirectory(dir="/dev/shm")  # where ledgers lie, too
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        for name in ("tmp", "cache", "ledgers", "home"):
            (self.folder / name).mkdir()
        (self.folder / "train.py").write_text(PROGRAM)

    def job(self, *, under, killed):
        """Runs it: what it ended with, and what it said."""
        environment = {name: value for name, value in os.environ.items()
                       if not name.startswith(("PLEAT", "XDG", "LD_", "CXX"))}
        environment.update(PYTHONPATH=str(self.package), PYTHONDONTWRITEBYTECODE="1", PATH="/nonexistent",
                           HOME=str(self.folder / "home"), TMPDIR=str(self.folder / "tmp"),
                           XDG_CACHE_HOME=str(self.folder / "cache"), PLEAT_TENANTS_DIR=str(self.folder / "ledgers"),
                           LD_PRELOAD=os.environ["PLEAT_NO_GPU"], PLEAT_LIBRARY=os.environ["PLEAT_LIBRARY"],
                           PLEAT_INCLUDE=str(ROOT / "include/pleat/runtime.h"),
                           PLEAT_CUDA_LIBRARY=os.environ["PLEAT_CUDA_LIBRARY"])
        launch = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS),
                  str(self.folder / "train.py"), str(self.folder), "killed" if killed else "whole"]
        if under:
            launch = [PYTHON, "-m", "pleat.run", "--conf", "tenants:user,guarantee:" + GUARANTEE,
                      "--log", str(self.folder / "log%r"), "--counters", str(self.folder / "counters%r.json"),
                      "--", *launch]
        done = subprocess.run(launch, cwd=str(self.folder / "tmp"), env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, timeout=120)
        return done.returncode, done.stderr

    def left(self):
        """Files, but for the plans that ranks keep for the next run, whichever of them could."""
        names = (str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if not path.is_dir())
        return sorted(name for name in names if not name.startswith("cache/pleat/plans/"))

    def processes(self):
        return [int((self.folder / ("process%d" % rank)).read_text()) for rank in range(RANKS)]

    def tenants(self):
        """The processes that the device's ledger has, and those of them that are alive."""
        done = subprocess.run([os.environ["PLEAT_COMMAND"], "tenants", "--json"], stdout=subprocess.PIPE,
                              env={"PLEAT_TENANTS_DIR": str(self.folder / "ledgers")}, text=True)
        self.assertEqual(done.returncode, 0)
        rows = [row for device in json.loads(done.stdout)["devices"] for row in device["tenants"]]
        return {row["process"] for row in rows}, {row["process"] for row in rows if row["alive"]}

    def ended_as_killed(self, *, under):
        status, said = self.job(under=under, killed=True)
        self.assertRegex(said, r"exitcode\s+: -9 \(pid: %d\)" % self.processes()[VICTIM], said)
        self.assertEqual([process for process in self.processes() if alive(process)], [])
        return status, said

    def test_the_job_ends_as_natively_and_nothing_is_left(self):
        native, _ = self.ended_as_killed(under=False)
        before = self.left()
        status, said = self.ended_as_killed(under=True)
        self.assertEqual(status, native)
        self.assertIn("pleat: 2 ranks of 3: ", said)
        first = set(self.processes())
        listed, living = self.tenants()  # the dead are struck out by who needs memory
        self.assertLessEqual(listed, first)
        self.assertEqual(living, set())
        # What was asked for, the counters of who could still write them, the device's one ledger, and the file by which
        # processes take turns in compiling.
        ledger = [name for name in self.left() if name.startswith("ledgers/")]
        self.assertEqual(len(ledger), 1)
        made = ledger + ["cache/pleat/torch/lock"] + ["log%d" % rank for rank in range(RANKS)] + ["counters%d.json" % rank for rank in range(RANKS)]
        self.assertEqual(self.left(), sorted(set(before + made) - {"counters%d.json" % VICTIM}))
        # Of the device so much is guaranteed to each that there is room for one job.
        status, said = self.job(under=True, killed=False)
        self.assertEqual(status, 0, said)
        self.assertIn("pleat: 3 ranks: ", said)
        self.assertEqual(self.tenants()[0] & first, set())
        self.assertEqual(self.left(), sorted(before + made))


if __name__ == "__main__":
    suite.main(needs_torch=True)
