"""Tests of tools/workloads/drawn.py: what is drawn is the seed's, and a whole snapshot."""

import gzip
import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

PLEAT = sys.argv.pop(1)
WORKLOADS = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "workloads")
sys.path.insert(0, WORKLOADS)
from drawing import job  # noqa: E402

SMALL = {"layers": 2, "hidden": 256, "heads": 4, "inner": 1024, "length": 128, "iterations": 3}


def run(*arguments):
    return subprocess.run(
        [sys.executable, os.path.join(WORKLOADS, "drawn.py"), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Drawn(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def bytes_of(self, name, *arguments):
        done = run(*arguments, "-o", self.path(name))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path(name), "rb") as made:
            return made.read()

    def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(self):
        one = self.bytes_of("a.pickle.gz", "--seed", 5)
        self.assertEqual(one, self.bytes_of("b.pickle.gz", "--seed", 5))
        self.assertNotEqual(one, self.bytes_of("c.pickle.gz", "--seed", 6))

    def test_unmarked_it_has_no_labels_and_the_same_events(self):
        marked = pickle.loads(self.bytes_of("a.pickle", "--seed", 5, "--set", "marks=true"))
        done = self.bytes_of("b.pickle.gz", "--seed", 5, "--set", "marks=true", "--no-marks")
        plain = pickle.loads(gzip.decompress(done))
        (events,), (bare,) = marked["device_traces"], plain["device_traces"]
        self.assertIn("iter=0;phase=F", {event["user_metadata"] for event in events})
        self.assertEqual({"user_metadata"} & {key for event in bare for key in event}, set())
        for event in events:
            del event["user_metadata"]
        self.assertEqual(events, bare)

    def test_describe_writes_nothing_and_says_what_is_drawn(self):
        done = run("--seed", 9, "--describe", "--family", "decoder")
        told = json.loads(done.stdout)
        self.assertEqual((told["seed"], told["run"], told["family"]), (9, 0, "decoder"))
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_bad_use_is_refused(self):
        for wrong in (["-o", "-"], [], ["--describe", "--iterations", "2"], ["--family", "none"]):
            done = run(*wrong)
            self.assertEqual((done.returncode, bool(done.stderr)), (2, True), wrong)


if __name__ == "__main__":
    unittest.main()
