"""Tests of `pleat replay` and `pleat compare` on the bundled job: replay.py PLEAT SNAPSHOT [slow].

`slow` is a build that audits or has a sanitizer. What a canary finds is the same in each build: there
it looks after one policy, and after all of them where it takes seconds.
"""

import functools
import gzip
import json
import os
import pickle
import random
import re
import sys
import tempfile
import unittest

import here
import made

PLEAT, SNAPSHOT = sys.argv[1:3]
SLOW = "slow" in sys.argv[3:]
FIGURES = "its figures are the same in each build, and its code runs in the other tests"

REPLAY_KEYS = """policy backend iterations peak_live_bytes peak_physical_bytes efficiency
steady_peak_physical_bytes steady_efficiency requests planned lane stitched cached diverged
driver_calls steady_driver_calls canary_errors alloc_ns free_ns oom""".split()
run = here.runs(PLEAT)
FOLDER = tempfile.TemporaryDirectory()


@functools.cache
def plan_of_the_job():
    path = os.path.join(FOLDER.name, "job.plan")
    done = run("plan", SNAPSHOT, "-o", path)
    assert done.returncode == 0, done.stderr
    return path


class Replay(unittest.TestCase):
    def replay(self, *arguments, status=0):
        ran = run("replay", SNAPSHOT, "--json", *arguments)
        self.assertEqual(ran.returncode, status, ran.stderr)
        return json.loads(ran.stdout)

    def test_native_holds_what_the_recording_held(self):
        recorded = json.loads(run("import", SNAPSHOT, "--json").stdout)
        result = self.replay("--policy", "native", "--canary")
        self.assertEqual(sorted(set(REPLAY_KEYS) - set(result)), [])
        self.assertEqual(result["peak_physical_bytes"], recorded["peak_segment_bytes"])
        self.assertEqual(result["peak_live_bytes"], recorded["peak_live_bytes"])
        self.assertEqual(result["requests"], recorded["requests"])
        self.assertEqual(result["canary_errors"], 0)
        self.assertGreaterEqual(result["iterations"], 3)

    def test_times_of_requests_are_told_iteration_by_iteration(self):
        told = self.replay("--policy", "native")
        for iteration in told["first_iterations"]:
            self.assertGreater(iteration["calls"], 0)
            self.assertGreater(iteration["call_seconds"], iteration["call_verb_seconds"])
            self.assertLessEqual(iteration["call_median_ns"], iteration["call_p99_ns"])
            self.assertLessEqual(iteration["call_p99_ns"], iteration["call_most_ns"])
            self.assertLessEqual(iteration["call_most_ns"], 1e9 * iteration["call_seconds"])
        first, *_, last = told["first_iterations"]
        self.assertGreater(first["call_verb_seconds"], 0)
        self.assertEqual(last["call_verb_seconds"], 0)

    def test_times_are_told_by_the_number_of_live_tensors(self):
        job = ["bench", "alloc", "--live", "10,300", "-n", "500", "-p", "pleat,native"]
        ran = run(*job, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = json.loads(ran.stdout)["rows"]
        self.assertEqual([(row["policy"], row["live"], row["calls"]) for row in rows],
                         [("pleat", 10, 500), ("pleat", 300, 500),
                          ("native", 10, 500), ("native", 300, 500)])
        for row in rows:
            self.assertGreater(row["fill_longest_ns"], 0)
            self.assertGreaterEqual(row["physical_bytes"], row["live_bytes"])
            for call in ("alloc", "free"):
                self.assertLessEqual(row[call + "_ns"], row[call + "_p999_ns"])
                self.assertLessEqual(row[call + "_p999_ns"], row[call + "_longest_ns"])
        # Of the job that repeats: whole layers of 40.
        one = json.loads(run("bench", "alloc", "-n", "100", "-p", "native", "--json").stdout)
        self.assertEqual(one["iteration_requests"], 80)
        for few, many in (rows[:2], rows[2:]):
            self.assertGreater(many["live_bytes"], 10 * few["live_bytes"])
        shown = run(*job)
        self.assertEqual(shown.returncode, 0, shown.stderr)
        self.assertEqual(len(shown.stdout.splitlines()), 5)

    def test_calls_an_iteration_are_of_whole_ones(self):
        """The last one, whose end nothing says, is the only one that asks the driver for more."""
        with tempfile.TemporaryDirectory() as folder:
            job = os.path.join(folder, "job.pickle")
            made.record(job, [4] * 5 + [6])
            told = json.loads(run("replay", job, "--policy", "native", "--json").stdout)
            shown = run("replay", job, "--policy", "native").stdout
            compared = run("compare", job, "--policies", "native", "--no-fit").stdout
        self.assertEqual((told["iterations"], told["steady_iterations"]), (5, 3))
        self.assertEqual([one["driver_calls"] for one in told["first_iterations"][2:]], [0, 0, 0])
        self.assertGreater(told["steady_driver_calls"], 0)
        self.assertEqual(set(told["steady_iteration"].values()), {0})
        self.assertRegex(shown, r"driver calls a steady iteration +0\n")
        self.assertRegex(compared, r"\nnative .* 0  0 ms\n")

    def test_every_policy_keeps_tensors_apart(self):
        for policy in ["expandable", "gmlake", "stweaver", "pleat"]:
            # Of `pleat`, main_job's.
            canary = ["--canary"] if policy != "pleat" and not SLOW else []
            result = self.replay("--policy", policy, *canary)
            self.assertEqual(result["canary_errors"], 0)
            self.assertLessEqual(result["peak_live_bytes"], result["peak_physical_bytes"])
            self.assertFalse(result["oom"])

    def test_stweaver_runs_where_nothing_repeats(self):
        """Its caching allocator serves all then, as native does, and the reason is said."""
        draws, events, live = random.Random(7), [], []
        for number in range(3000):
            size = draws.randrange(1, 1 << 24)
            events.append(dict(action="alloc", addr=(number + 1) << 30, size=size, stream=0))
            live.append(events[-1])
            while len(live) > draws.randrange(1, 40):
                gone = live.pop(draws.randrange(len(live)))
                events += [dict(gone, action=action) for action in ("free_requested", "free_completed")]
        with tempfile.TemporaryDirectory() as folder:
            job = os.path.join(folder, "job.pickle")
            with open(job, "wb") as file:
                pickle.dump({"segments": [], "device_traces": [events]}, file)
            self.assertEqual(run("plan", job, "-o", job + ".plan").returncode, 3)
            ran = run("replay", job, "--json", "--policy", "stweaver")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("stweaver runs without a plan: ", ran.stderr)
            native = json.loads(run("replay", job, "--json", "--policy", "native").stdout)
        self.assertEqual(json.loads(ran.stdout)["peak_physical_bytes"], native["peak_physical_bytes"])

    def test_stweaver_leaves_a_plan_that_costs_more_than_it_saves(self):
        """An evaluation has sizes that its static pool is not for, and would lie beside it."""
        events = []

        def run_one(number, sizes):
            live = [dict(action="alloc", addr=(k + 1) << 30, size=size, stream=0,
                         user_metadata="iter=%d;phase=F" % number) for k, size in enumerate(sizes)]
            events.extend(live)
            for one in live:
                events.extend(dict(one, action=action) for action in ("free_requested", "free_completed"))

        for number in range(6):
            run_one(number, [(64 << 20) + 512 * k for k in range(8)])
            if number == 3:
                run_one(number, [(60 << 20) + 512 * k for k in range(8)])
        with tempfile.TemporaryDirectory() as folder:
            job = os.path.join(folder, "job.pickle")
            with open(job, "wb") as file:
                pickle.dump({"segments": [], "device_traces": [events]}, file)
            ran = run("replay", job, "--json", "--policy", "stweaver")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            self.assertIn("stweaver runs without its plan, with which it would take ", ran.stderr)
            native = json.loads(run("replay", job, "--json", "--policy", "native").stdout)
        self.assertEqual(json.loads(ran.stdout)["peak_physical_bytes"], native["peak_physical_bytes"])

    def test_repeats_change_nothing(self):
        result = self.replay("--repeat", "30")
        self.assertEqual(result["repeats"], 30)
        self.assertTrue(result["repeats_unchanged"])
        early, late = result["repeats_early"], result["repeats_late"]
        self.assertEqual(early["driver_calls"], late["driver_calls"])
        requests = late["requests"] - early["requests"]
        self.assertEqual(requests % 20, 0)
        self.assertGreaterEqual(late["planned"] - early["planned"], 0.99 * requests)
        result = self.replay("--repeat", "11", "--plan", plan_of_the_job())
        late = result["repeats_late"]
        self.assertEqual(late["planned"], late["requests"])
        self.assertEqual(late["peak_live_bytes"], result["peak_live_bytes"])
        with tempfile.TemporaryDirectory() as folder:
            table = os.path.join(folder, "table.csv")
            with open(table, "w") as file:
                file.write("id,lower,upper,size\n0,0,1,512\n")
            ran = run("replay", table, "--repeat", "11")
            self.assertEqual(ran.returncode, 3)
            self.assertIn(f"pleat replay: '{table}'", ran.stderr)
        ran = run("replay", SNAPSHOT, "--repeat", "10")
        self.assertEqual(ran.returncode, 2)

    @unittest.skipIf(SLOW, FIGURES)
    def test_two_shapes_in_turn_are_both_learned_again(self):
        """Of the job's large tensors: builds that audit take minutes for all of them."""
        with gzip.open(SNAPSHOT) as file:
            recorded = pickle.load(file)["device_traces"][0]
        events = [event for event in recorded if event["size"] >= 16 << 20]
        with tempfile.TemporaryDirectory() as folder:
            shapes = [os.path.join(folder, name) for name in ("one.pickle.gz", "other.pickle.gz")]
            for path, quarters in zip(shapes, (4, 5)):
                with gzip.open(path, "wb") as file:
                    pickle.dump({"segments": [], "device_traces": [
                        [dict(event, size=event["size"] * quarters // 4) for event in events]]}, file)
            job = os.path.join(folder, "job.pickle.gz")
            woven = here.run_python(here.WORKLOADS / "weave.py", "switch", *shapes, "--every", 50, "--iterations", 400, "-o", job)
            self.assertEqual(woven.returncode, 0, woven.stderr)
            ran = run("replay", job, "--json")
            self.assertEqual(ran.returncode, 0, ran.stderr)
            # One schedule at a time: each visit learns its shape from two iterations.
            told = json.loads(ran.stdout)
            self.assertGreaterEqual(told["late_planned_share"], 0.9)
            # The iterations from the 31st on are a part of the steady ones, by time and by calls.
            self.assertEqual(told["late_iterations"], told["iterations"] - 30)
            share = told["late_iterations"] / told["steady_iterations"]
            self.assertAlmostEqual(told["late_recorded_seconds"] / told["steady_recorded_seconds"], share, delta=0.1)
            self.assertLessEqual(told["late_driver_seconds"],
                                 told["steady_driver_seconds"] + told["steady_mapper_driver_seconds"])

    def test_says_what_calls_take_of_the_processor(self):
        result = self.replay("--policy", "native")
        whole, steady = result["processor"], result["steady_processor"]
        # An allocation each, a free each of those that end, and the marks.
        self.assertGreater(whole["calls"], 1.9 * result["requests"])
        self.assertLessEqual(whole["calls"], 2 * result["requests"] + result["iterations"] + 1)
        self.assertGreater(steady["seconds"], 0)
        self.assertGreater(whole["seconds"], steady["seconds"])
        self.assertLessEqual(whole["median_ns"], whole["p999_ns"])
        longest = result["longest_calls_ns"]
        self.assertEqual(longest, sorted(longest, reverse=True))
        self.assertLess(0, longest[-1])
        self.assertLess(longest[0], 1e9 * whole["seconds"])
        self.assertLess(0, result["steady_recorded_seconds"])
        self.assertLess(result["steady_recorded_seconds"], result["recorded_seconds"])

    @unittest.skipIf(SLOW, "a sanitizer's memory leaves such a device's window no room")
    def test_a_request_beyond_what_an_allocator_counts_is_refused(self):
        with tempfile.TemporaryDirectory() as folder:
            job = os.path.join(folder, "job.csv")
            with open(job, "w") as file:
                file.write("id,lower,upper,size\n0,0,1,%d\n" % (2 << 40))
            told = {policy: run("replay", job, "--json", "-p", policy, "-d", "4TiB")
                    for policy in ("pleat", "native", "stweaver")}
            self.assertEqual(run("replay", job, "-d", "4TiB").returncode, 4)
        self.assertIn("stweaver runs without a plan: stweaver keeps its plan in one pool of at most", told["stweaver"].stderr)
        for policy, ran in told.items():
            result = json.loads(ran.stdout)
            self.assertEqual((ran.returncode, result["oom"]), (4, True) if policy == "pleat" else (0, False), ran.stderr)
            if result["oom"]:
                self.assertIn("a request may have %d" % (1 << 40), result["oom_text"])
            else:
                self.assertEqual(result["peak_live_bytes"], 2 << 40)

    def test_budget_is_kept_and_said(self):
        budget = 8 << 30
        result = self.replay("--policy", "native", "--budget", str(budget), status=4)
        self.assertTrue(result["oom"])
        self.assertLessEqual(result["peak_physical_bytes"], budget)
        ran = run("replay", SNAPSHOT, "--policy", "native", "--budget", str(budget))
        self.assertRegex(ran.stderr, r"the largest request that would fit now \d+\.\d\d MiB\n$")
        # It ended before it had a steady part: there are no figures of one.
        self.assertNotIn("steady", ran.stdout)
        self.assertEqual((result["steady_iterations"], result["steady_efficiency"]), (0, 0))
        self.assertLess(result["iterations"], 3)

    def test_dump_tells_the_same_as_the_result(self):
        with tempfile.TemporaryDirectory() as folder:
            dump, text = os.path.join(folder, "d.json"), os.path.join(folder, "d.txt")
            result = self.replay("--policy", "pleat", "--dump", dump)
            with open(dump, encoding="utf-8") as file:
                dumped = json.load(file)
            self.assertEqual(dumped["counters"]["requests"], result["requests"])
            self.assertEqual(dumped["counters"]["planned"], result["planned"])
            self.assertEqual(sum(b["bytes"] for b in dumped["blocks"]),
                             dumped["counters"]["virtual_bytes"])
            live = sum(-b["requested"] // 512 * -512 for b in dumped["blocks"] if b["allocated"])
            self.assertEqual(live, dumped["counters"]["live_bytes"])
            self.replay("--policy", "native", "--dump", text)
            with open(text, encoding="utf-8") as file:
                self.assertIn("memory verbs issued", file.read())
            ran = run("replay", SNAPSHOT, "--dump", os.path.join(folder, "none", "d.json"))
            self.assertEqual(ran.returncode, 3)
            self.assertIn("there is no folder", ran.stderr)

    def test_bad_use_and_bad_input(self):
        for arguments in [[], [SNAPSHOT, SNAPSHOT], [SNAPSHOT, "-p", "none"], [SNAPSHOT, "-b", "x"],
                          [SNAPSHOT, "-B", "much"], [SNAPSHOT, "--none"]]:
            self.assertEqual(run("replay", *arguments).returncode, 2, arguments)
            if "-b" not in arguments and arguments.count(SNAPSHOT) < 2:
                self.assertEqual(run("compare", *arguments).returncode, 2, arguments)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "bad.trace")
            with open(path, "wb") as file:
                file.write(b"no trace at all")
            ran = run("replay", path)
            self.assertEqual(ran.returncode, 3)
            self.assertIn(path, ran.stderr)
            ran = run("replay", SNAPSHOT, "--plan", path)
            self.assertEqual(ran.returncode, 3)
            self.assertIn(path, ran.stderr)
        self.assertIn("usage: pleat replay", run("replay", "--help").stdout)


class Compare(unittest.TestCase):
    @unittest.skipIf(SLOW, FIGURES)
    def test_says_where_memory_runs_out(self):
        arguments = [SNAPSHOT, "--policies", "native,pleat", "--budget", "9.9GiB"]
        ran = run("compare", *arguments, "--no-fit")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        at = re.search(r"\nnative ran out of memory at request (\d+) of (\d+): .*budget", ran.stdout)
        self.assertIsNotNone(at, ran.stdout)
        self.assertLess(int(at.group(1)), int(at.group(2)))
        self.assertRegex(ran.stdout.splitlines()[-1], "runs out of memory under PyTorch's native")
        native, pleat = json.loads(run("compare", *arguments, "--no-fit", "--json").stdout)["policies"]
        self.assertEqual(native["requests"], int(at.group(1)))
        self.assertTrue(native["oom"] and native["oom_text"] and not pleat["oom"])

    def test_table_and_verdict(self):
        ran = run("compare", SNAPSHOT, "--no-fit", "--policies", "native,pleat")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        rows = ran.stdout.splitlines()
        self.assertEqual([row.split()[0] for row in rows[:3]], ["policy", "native", "pleat"])
        self.assertRegex(rows[-1], r"Pleat holds this job in .* less\.")

    def test_plan_is_for_pleat_alone(self):
        ran = run("compare", SNAPSHOT, "--no-fit", "--policies", "native,pleat", "--plan", plan_of_the_job(), "--json")
        native, pleat = json.loads(ran.stdout)["policies"]
        self.assertEqual(native["planned"], 0)
        self.assertEqual(pleat["planned"], pleat["requests"])

    def test_json(self):
        ran = run("compare", SNAPSHOT, "--no-fit", "--policies", "native,expandable", "--json")
        result = json.loads(ran.stdout)
        self.assertEqual([r["policy"] for r in result["policies"]], ["native", "expandable"])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
