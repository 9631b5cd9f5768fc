"""The main job, by the command alone: main_job.py PLEAT SNAPSHOT [SHARED].

A snapshot is imported, planned twice, verified, and replayed under both policies with the canary.
SHARED is a folder with further recordings in traces/, replayed with it under Pleat's policy only;
without it the snapshot alone is run.
"""

import gzip
import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE.parents[1] / "tools")]
import suite  # noqa: E402
from judging import jobs  # noqa: E402

PLEAT, BUNDLED = sys.argv[1], pathlib.Path(sys.argv[2])
SHARED = pathlib.Path(sys.argv[3], "traces") if len(sys.argv) > 3 else None
# Whether every iteration makes the same requests; further recordings are named.
DENSE = {BUNDLED.name, "gpt2-vpp-recompute.pickle.gz", "gpt2-vpp.pickle.gz", "llama-vpp.pickle.gz",
         "llama-zero-recompute.pickle.gz"}


def pleat(*arguments, expect=0):
    done = subprocess.run([PLEAT, *map(str, arguments)], capture_output=True, text=True)
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


class MainJob(unittest.TestCase):
    def run_job(self, snapshot, folder):
        trace, plan, again = (folder / name for name in ("job.trace", "job.plan", "again.plan"))
        pleat("import", snapshot, "-o", trace)
        planned = answer("plan", trace, "-o", plan)
        pleat("plan", trace, "-o", again)
        self.assertEqual(plan.read_bytes(), again.read_bytes(), "two plans of one trace differ")
        pleat("verify", plan, "--trace", trace)
        self.assertGreaterEqual(planned["physical_bytes"], planned["max_live_bytes"])

        # A canary touches all of the job's memory: native's is looked at once.
        canary = ["--canary"] if snapshot == BUNDLED else []
        native = answer("replay", trace, "--policy", "native", *canary)
        folded = answer("replay", trace, "--policy", "pleat", "--plan", plan, "--canary")
        for result in (native, folded):
            self.assertEqual(result.get("canary_errors", 0), 0, result["policy"])
            self.assertFalse(result["oom"], result["policy"])
        self.assertIn("canary_errors", folded)
        reserved = reserved_bytes(snapshot)
        self.assertAlmostEqual(native["peak_physical_bytes"] / reserved, 1, delta=0.001)
        self.assertLess(folded["peak_physical_bytes"], native["peak_physical_bytes"])
        if snapshot.name in DENSE:
            self.assertEqual(planned["dynamic_requests"], 0)
            self.assertGreaterEqual(folded["planned"], 0.99 * folded["requests"])
            self.assertEqual(folded["steady_driver_calls"], 0)

    def test_bundled_job(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_job(BUNDLED, pathlib.Path(folder))

    def run_without_labels(self, snapshot, folder, ways=("learned", "planned")):
        """Served as well as with them, but for 0.002."""
        bare = folder / "bare.pickle.gz"
        bare.write_bytes(snapshot.read_bytes())
        jobs.without_marks(bare)
        efficiency = {}
        for name, recording in (("labelled", snapshot), ("bare", bare)):
            trace, plan = folder / (name + ".trace"), folder / (name + ".plan")
            pleat("import", recording, "-o", trace)
            pleat("plan", trace, "-o", plan)
            options = {"learned": [], "planned": ["--plan", plan]}
            efficiency[name] = [answer("replay", trace, *options[way])["efficiency"] for way in ways]
        for with_labels, without in zip(*efficiency.values()):
            self.assertGreaterEqual(without, with_labels - 0.002, snapshot.name)

    def test_bundled_job_without_labels(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_without_labels(BUNDLED, pathlib.Path(folder), ["planned"])

    def test_further_recordings_without_labels(self):
        if SHARED is None or not SHARED.is_dir():
            self.skipTest("no further recordings here")
        for snapshot in sorted(SHARED.glob("*.pickle.gz")):
            with self.subTest(snapshot.name), tempfile.TemporaryDirectory() as folder:
                self.run_without_labels(snapshot, pathlib.Path(folder))

    def test_further_recordings(self):
        if SHARED is None or not SHARED.is_dir():
            self.skipTest("no further recordings here")
        for snapshot in sorted(SHARED.glob("*.pickle.gz")):
            with self.subTest(snapshot.name), tempfile.TemporaryDirectory() as folder:
                self.run_job(snapshot, pathlib.Path(folder))


if __name__ == "__main__":
    suite.main()
