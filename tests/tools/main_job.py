"""The main job, by the command alone: main_job.py PLEAT SNAPSHOT [SHARED].

A snapshot is imported, planned twice, verified, and replayed under both policies with the canary.
SHARED is a folder with further recordings in traces/, replayed with it under Pleat's policy only;
without it the snapshot alone is run. Each is served without its labels, too.
"""

import gzip
import json
import pathlib
import pickle
import sys
import tempfile
import unittest

import here  # first: it knows where the tests and tools are
import suite
from judging import jobs

PLEAT, BUNDLED = sys.argv[1], pathlib.Path(sys.argv[2])
SHARED = pathlib.Path(sys.argv[3], "traces") if len(sys.argv) > 3 else None
# Whether every iteration makes the same requests; further recordings are named.
DENSE = {BUNDLED.name, "gpt2-vpp-recompute.pickle.gz", "gpt2-vpp.pickle.gz", "llama-vpp.pickle.gz",
         "llama-zero-recompute.pickle.gz"}


def pleat(*arguments, expect=0):
    done = here.run(PLEAT, *arguments)
    if done.returncode != expect:
        raise AssertionError(f"pleat {' '.join(map(str, arguments))}: exit {done.returncode}, "
                             f"not {expect}\n{done.stdout}{done.stderr}")
    return done


def answer(*arguments):
    return json.loads(pleat(*arguments, "--json").stdout)


def reserved_bytes(path):
    """The most that PyTorch held, by its own account: the segments in the snapshot's events."""
    with gzip.open(path) as file:
        events = pickle.load(file)["device_traces"][0]
    change = {"segment_alloc": 1, "segment_free": -1}
    now = most = 0
    for event in events:
        now += change.get(event["action"], 0) * event["size"]
        most = max(most, now)
    return most


class Planned:
    """A recording's trace and its plan, which what is tested of it shares."""

    def __init__(self, snapshot, folder, name):
        self.snapshot, self.trace, self.plan = snapshot, folder / (name + ".trace"), folder / (name + ".plan")
        pleat("import", snapshot, "-o", self.trace)
        self.planned = answer("plan", self.trace, "-o", self.plan)

    def learned(self):
        return answer("replay", self.trace)

    def followed(self, *options):
        return answer("replay", self.trace, "--policy", "pleat", "--plan", self.plan, *options)


class MainJob(unittest.TestCase):
    def run_job(self, job, folder):
        """What a replay with its plan and the canary gives."""
        again = folder / "again.plan"
        pleat("plan", job.trace, "-o", again)
        self.assertEqual(job.plan.read_bytes(), again.read_bytes(), "two plans of one trace differ")
        pleat("verify", job.plan, "--trace", job.trace)
        self.assertGreaterEqual(job.planned["physical_bytes"], job.planned["max_live_bytes"])

        # A canary touches all of the job's memory: native's is looked at once.
        canary = ["--canary"] if job.snapshot == BUNDLED else []
        native = answer("replay", job.trace, "--policy", "native", *canary)
        folded = job.followed("--canary")
        for result in (native, folded):
            self.assertEqual(result.get("canary_errors", 0), 0, result["policy"])
            self.assertFalse(result["oom"], result["policy"])
        self.assertIn("canary_errors", folded)
        reserved = reserved_bytes(job.snapshot)
        self.assertAlmostEqual(native["peak_physical_bytes"] / reserved, 1, delta=0.001)
        self.assertLess(folded["peak_physical_bytes"], native["peak_physical_bytes"])
        if job.snapshot.name in DENSE:
            self.assertEqual(job.planned["dynamic_requests"], 0)
            self.assertGreaterEqual(folded["planned"], 0.99 * folded["requests"])
            self.assertEqual(folded["steady_driver_calls"], 0)
        return folded

    def run_without_labels(self, job, folded, folder, ways=("learned", "planned")):
        """Served as well as with them, but for 0.002."""
        bare = folder / "bare.pickle.gz"
        bare.write_bytes(job.snapshot.read_bytes())
        jobs.without_marks(bare)
        bare = Planned(bare, folder, "bare")
        for way in ways:
            with_labels, without = {"learned": lambda: (job.learned(), bare.learned()),
                                    "planned": lambda: (folded, bare.followed())}[way]()
            self.assertGreaterEqual(without["efficiency"], with_labels["efficiency"] - 0.002, job.snapshot.name)

    def run_both(self, snapshot, *ways):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            job = Planned(snapshot, folder, "job")
            self.run_without_labels(job, self.run_job(job, folder), folder, *ways)

    def test_bundled_job_with_labels_and_without(self):
        self.run_both(BUNDLED, ["planned"])

    def test_further_recordings_with_labels_and_without(self):
        if SHARED is None or not SHARED.is_dir():
            self.skipTest("no further recordings here")
        for snapshot in sorted(SHARED.glob("*.pickle.gz")):
            with self.subTest(snapshot.name):
                self.run_both(snapshot)


if __name__ == "__main__":
    suite.main()
