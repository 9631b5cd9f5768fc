"""Tests of `pleat remat`: remat.py PLEAT [SHARED].

A made-up network's log, whose figures are known by hand, and the recorded ones of SHARED/data/dtr, or
$PLEAT_SHARED/data/dtr, where there are any.
"""

import gzip
import json
import os
import pathlib
import sys
import tempfile
import unittest

import here  # first: it knows where the tests are
import suite
from made import network

PLEAT = sys.argv[1]
LOGS = pathlib.Path(os.environ.get("PLEAT_SHARED") or (sys.argv + [""])[2]) / "data" / "dtr"
POLICIES = ["dtr", "dte", "coop", "stitched"]
MIB = 1 << 20

# Overheads of DTR's own simulator with the heuristic h_DTR^eq, at 0.9, 0.8, ... of the peak.
SIMRD = {
    "resnet32": (1.013, 1.025, 1.046, 1.074, 1.107, 1.140, 1.179),
    "unet": (1.033, 1.058, 1.085, 1.149, 1.159),
    "transformer": (1.009, 1.020, 1.031, 1.044, 1.058, 1.091, 1.124),
    "tv_densenet121": (1.026, 1.064, 1.104, 1.141, 1.176, 1.293, 1.426),
    "treelstm": (1.008, 1.013, 1.033, 1.072, 1.127, 1.190),
}


run = here.runs(PLEAT, "remat")


def told(*arguments):
    done = run(*arguments, "--json")
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout)


class Remat(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.path = os.path.join(cls.folder.name, "network.log")
        with open(cls.path, "w", encoding="utf-8") as file:
            file.write(network())

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_the_whole_peak_costs_nothing(self):
        answer = told(self.path, "--budget", 1)
        self.assertEqual([r["policy"] for r in answer["runs"]], POLICIES)
        # 12 layers' two tensors, the first input, two gradients, and the weight.
        self.assertEqual(answer["peak_bytes"], 27 * 8 * MIB + MIB)
        for r in answer["runs"]:
            self.assertEqual((r["overhead"], r["evictions"]), (1, 0))

    def test_less_costs_time_and_never_more_than_the_budget(self):
        answer = told(self.path)
        for r in answer["runs"]:
            self.assertEqual(r["outcome"], "finished", r)
            self.assertLessEqual(r["peak_bytes"], r["budget_bytes"])
            self.assertAlmostEqual(r["overhead"],
                                   1 + (r["recomputed_ns"] + r["map_ns"]) / answer["model_ns"], places=6)
            self.assertGreater(r["evictions"], 0)
            if r["maps"] == 0:
                self.assertEqual(r["real_maps"], 0)

    def test_stitched_is_at_most_coop(self):
        runs = {(r["policy"], r["ratio"]): r for r in told(self.path)["runs"]}
        for (policy, ratio), r in runs.items():
            if policy == "stitched":
                self.assertLessEqual(r["overhead"], runs["coop", ratio]["overhead"])

    def test_the_smallest_budget_works_and_less_does_not(self):
        answer = told(self.path, "--budget", 0.9, "--smallest", "--policy", "coop")
        least = answer["smallest_ratio"]["coop"]
        run_at, = told(self.path, "--budget", least, "--policy", "coop", "--times", 2)["runs"]
        self.assertEqual(run_at["outcome"], "finished")
        below, = told(self.path, "--budget", least - 0.01, "--policy", "coop", "--times", 2)["runs"]
        self.assertNotEqual(below["outcome"], "finished")

    def test_table_has_the_figures(self):
        text = run(self.path, "--budget", 0.5, "--policy", "coop")
        self.assertEqual(text.returncode, 0, text.stderr)
        r, = told(self.path, "--budget", 0.5, "--policy", "coop")["runs"]
        self.assertIn("%.3f" % r["overhead"], text.stdout)

    def test_a_budget_below_the_constants_is_out_of_memory(self):
        path = os.path.join(self.folder.name, "constants.log")
        with open(path, "w", encoding="utf-8") as file:
            file.write(network(constant=20 * 8 * MIB))
        for arguments in ([], ["--budget", 0.1]):
            answer = told(path, *arguments)
            self.assertLess(answer["runs"][-1]["budget_bytes"], answer["constant_bytes"])
            for r in answer["runs"]:
                if r["budget_bytes"] <= answer["constant_bytes"]:
                    self.assertEqual(r["outcome"], "out of memory", r)
                    self.assertEqual(r["fragmentation"], 0)

    def test_gzipped_logs_are_read(self):
        packed = self.path + ".gz"
        with gzip.open(packed, "wt", encoding="utf-8") as file:
            file.write(network())
        self.assertEqual(told(packed, "--budget", 1)["peak_bytes"], told(self.path, "--budget", 1)["peak_bytes"])

    def test_what_is_wrong_is_named(self):
        bad = os.path.join(self.folder.name, "bad.log")
        with open(bad, "w", encoding="utf-8") as file:
            file.write(network() + '{"INSTRUCTION": "CALL"}\n')
        done = run(bad)
        self.assertEqual(done.returncode, 3)
        self.assertIn("line %d" % (network().count("\n") + 1), done.stderr)
        self.assertEqual(run(os.path.join(self.folder.name, "none.log")).returncode, 3)
        for arguments in ([], [self.path, "--budget", "2"], [self.path, "--policy", "lru"],
                          [self.path, "--fungible", "--policy", "coop"], [self.path, "--chunk", "3MiB"]):
            self.assertEqual(run(*arguments).returncode, 2, arguments)

    def test_more_than_a_device_has_is_said_of_the_log(self):
        large = os.path.join(self.folder.name, "large.log")
        with open(large, "w", encoding="utf-8") as file:
            file.write(network(bytes_=1 << 46))
        for arguments in ([], ["--json"]):
            done = run(large, *arguments)
            self.assertEqual(done.returncode, 3)
            self.assertEqual(done.stdout, "")
            self.assertIn("large.log': 1728.000 TiB beside the constants", done.stderr)
        self.assertEqual(run(large, "--fungible", "--budget", 1).returncode, 0)

    def test_dtr_is_that_of_its_own_simulator(self):
        if not LOGS.is_dir():
            self.skipTest("no operator logs beside the source tree")
        for name, expected in SIMRD.items():
            runs = told(LOGS / (name + ".log.gz"), "--fungible")["runs"]
            for r, overhead in zip(runs, expected):
                self.assertAlmostEqual(r["overhead"] / overhead, 1, delta=0.02, msg=(name, r["ratio"]))


if __name__ == "__main__":
    suite.main()
