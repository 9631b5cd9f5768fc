"""Tests of tools/workloads/ranks_suite.py: what it says of figures, and, where torch is, that ranks take turns."""

import argparse
import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from unittest import mock

from here import WORKLOADS  # first: it knows where the tools are
import ranks_suite

try:
    import torch
except ImportError:
    torch = None

GIB = 1 << 30


def ranks(seconds, *physical, losses=(3.0, 2.0)):
    """What the ranks of a run tell: 20 iterations of so many seconds, 9 GiB live."""
    return [{"rank": rank, "seconds": [9.0] * 4 + [seconds] * 16, "losses": list(losses), "efficiency": 9 / gibibytes,
             "peak_allocated_bytes": 9 * GIB, "peak_reserved_bytes": gibibytes * GIB}
            for rank, gibibytes in enumerate(physical)]


def job(**runs):
    return {"job": "fsdp", "ranks": 2,
            "runs": dict({"native": ranks(1.0, 12, 12), "expandable": ranks(1.0, 10, 10)},
                         **{name.replace("_", "-"): one for name, one in runs.items()})}


def lines_of(*jobs, left=()):
    """What is printed after the table's head."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        holds = ranks_suite.summarize(list(jobs), list(left))
    return holds, said.getvalue().splitlines()[1:]


class Judged(unittest.TestCase):
    def test_what_holds_has_no_line(self):
        holds, lines = lines_of(job(pleat=ranks(1.004, 9.1, 9.1)))
        self.assertTrue(holds, lines)
        self.assertEqual(lines[-1], "pleat over all: steady median 1.0040 of native's")

    def test_the_worst_rank_is_shown_and_each_is_judged(self):
        holds, lines = lines_of(job(pleat=ranks(1.0, 9.1, 10.5)))
        self.assertFalse(holds)
        self.assertRegex(next(line for line in lines if " pleat " in line), r" 1 +9\.000 +10\.500 +0\.8571 ")
        self.assertIn("does not hold: fsdp, pleat: rank 1: efficiency 0.8571", lines)
        self.assertIn("does not hold: fsdp, pleat: rank 1 takes more memory than with expandable segments", lines)
        self.assertFalse([line for line in lines if "rank 0:" in line])

    def test_seconds_of_each_and_of_all(self):
        holds, lines = lines_of(job(pleat=ranks(1.02, 9.1, 9.1)))
        self.assertIn("does not hold: fsdp, pleat: 1.0200 of native's seconds", lines)
        self.assertIn("does not hold: over all: more than 1.005 of native's seconds", lines)
        self.assertFalse(holds)

    def test_a_kept_plan_is_not_timed_beside_native(self):
        holds, lines = lines_of(job(pleat=ranks(1.0, 9.1, 9.1), pleat_kept=ranks(3.0, 9.01, 9.2)))
        self.assertEqual([line for line in lines if "does not hold" in line],
                         ["does not hold: fsdp, pleat-kept: rank 1: efficiency 0.9783"])

    def test_other_losses_and_what_was_not_run(self):
        holds, lines = lines_of(job(pleat=ranks(1.0, 9.1, 9.1, losses=(3.0, 2.1))), left=["ddp"])
        self.assertIn("does not hold: fsdp, pleat: other losses than native's", lines)
        self.assertIn("does not hold: not run, for want of time: ddp", lines)
        self.assertFalse(holds)
        holds, lines = lines_of({"job": "ddp", "error": "ddp, pleat: exit 1: see its log"})
        self.assertEqual((holds, lines), (False, ["does not hold: ddp, pleat: exit 1: see its log"]))


class Failing(unittest.TestCase):
    def said(self, text):
        with tempfile.TemporaryDirectory() as folder:
            one = object.__new__(ranks_suite.Ranks)  # no program is started
            one.log = pathlib.Path(folder, "native.log")
            one.log.write_text(text)
            return one.said()

    def test_says_what_went_wrong(self):
        self.assertIn("had not the memory for all allocators", self.said(
            "api.py:986] failed (exitcode: 4) local_rank: 0\ntorch...ChildFailedError:\n"))
        self.assertEqual(self.said("ValueError: no\nfailed (exitcode: 1)\nChildFailedError:"), "ValueError: no")
        self.assertEqual(self.said(""), "see its log")

    def test_keeps_logs_beside_the_lines(self):
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as kept:
            pathlib.Path(folder, "native.log").write_text("why")
            one = object.__new__(ranks_suite.Job)
            one.name, one.folder = "ddp --drawn", pathlib.Path(folder)
            one.options = argparse.Namespace(out=os.path.join(kept, "out.jsonl"))
            one.keep_logs()
            self.assertEqual(pathlib.Path(kept, "ddp---drawn-native.log").read_text(), "why")

    def test_a_job_whose_time_ran_out_says_so(self):
        ended = threading.Event()

        class Hangs:
            def turn(self):
                ended.wait(60)
                raise ranks_suite.Failed("ddp, native: exit 1: see its log")

            def end(self):
                ended.set()

        one = ranks_suite.Job("ddp", argparse.Namespace(out=None, ranks=2, more=[], allocators=[]))
        self.addCleanup(one.end)
        one.start("native", Hangs())
        self.assertEqual(one.run(0.01)["error"], "ddp: its time ran out, 0 seconds")
        self.assertEqual(one.run(60)["error"], "ddp, native: exit 1: see its log")  # by itself


class Parsed(unittest.TestCase):
    def parse(self, *arguments, gpus=()):
        with mock.patch("sys.argv", ["ranks_suite.py", *arguments]), \
                mock.patch.object(ranks_suite, "memory_of_gpus", lambda: list(gpus)):
            return ranks_suite.parse()

    def refused(self, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as ended:
            self.parse(*arguments)
        self.assertEqual(ended.exception.code, 2)
        return said.getvalue().splitlines()[-1]

    def test_ranks_are_the_gpus_and_layers_what_they_hold(self):
        large = self.parse(gpus=[140 * GIB] * 8)
        self.assertEqual((large.ranks, large.more, large.jobs), (8, [], list(ranks_suite.JOBS)))
        self.assertEqual(self.parse(gpus=[140 * GIB, 80 * GIB]).more, ["--layers", str(ranks_suite.FEWER)])
        for given in (["--layers", "3"], ["--layers=3"]):
            self.assertEqual(self.parse("--", *given, gpus=[80 * GIB]).more, given)
        self.assertEqual(self.parse("--ranks", "2", gpus=[80 * GIB] * 4).ranks, 2)

    def test_lists_have_commas(self):
        options = self.parse("--ranks", "1", "--jobs", "ddp --drawn,fsdp", "--allocators", "pleat,native")
        self.assertEqual((options.jobs, options.allocators), (["ddp --drawn", "fsdp"], ["pleat", "native"]))

    def test_what_cannot_be_run_is_refused(self):
        self.assertIn("--allocators: other: none of native, expandable", self.refused("--allocators", "native,other"))
        self.assertIn("pleat-kept follows what pleat left", self.refused("--allocators", "native,pleat-kept"))
        self.assertIn("--ranks: at least 1; this machine has no GPU", self.refused())


@unittest.skipIf(torch is None, "no torch")
class Run(unittest.TestCase):
    def test_ranks_take_turns(self):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.jsonl")
            small = "--iterations 6 --layers 2 --hidden 64 --inner 128 --heads 4 --sequence 64 --vocabulary 128"
            done = subprocess.run([sys.executable, "-B", os.path.join(WORKLOADS, "ranks_suite.py"), "--ranks", "2",
                                   "--allocators", "native", "--jobs", "ddp --drawn", "--out", out, "--",
                                   "--device", "cpu", *small.split()],
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=170)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            with open(out) as lines:
                (told,) = [json.loads(line) for line in lines]
        first, second = told["runs"]["native"]
        self.assertEqual((first["rank"], second["rank"], len(first["losses"])), (0, 1, 6))
        self.assertEqual(first["losses"], second["losses"])


if __name__ == "__main__":
    unittest.main()
