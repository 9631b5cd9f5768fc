"""`pleat plan`: keys, exit codes, the dumped layout, the same bytes twice:
plan.py PLEAT SNAPSHOT [slow], a build that audits or has a sanitizer."""
import csv
import functools
import json
import pickle
import random
import re
import subprocess
import sys
import unittest

import here
import made

PLEAT = sys.argv.pop(1)
JOB = sys.argv.pop(1)
SLOW = "slow" in sys.argv
sys.argv[1:] = [one for one in sys.argv[1:] if one not in ("", "slow")]  # what is left names tests

# What drawn jobs were before these were drawn, for those that are such a job.
AS_BEFORE = ("--set", "attention=fused", "--set", "loss_pieces=1", "--set", "outputs_stay=false", "--set", "steps=false",
             "--set", "fetch=each")

# A plan in which fewer requests have a place is not followed.
HAVE_PLACES = 15 / 16
# Nor one with which more of the job's time passes in the driver.
DRIVER_MORE = 0.005

KEYS = ["requests", "iteration_requests", "dynamic_requests", "max_live_bytes", "virtual_bytes",
        "physical_bytes", "ratio", "maps", "alias_maps", "lanes", "seconds"]

# What is drawn says which plans are followed, which is the same in each build.
of_drawn_jobs = unittest.skipIf(SLOW, "its figures are the same in each build, and its code runs in the other tests")


pleat = here.runs(PLEAT)


@functools.lru_cache(maxsize=None)
def of_the_job(*arguments):
    """One pass of the planner over the job, which several tests look at."""
    run = pleat("plan", JOB, *arguments)
    assert run.returncode == 0, run.stderr
    return run.stdout


def lifetimes(path, rows):
    with open(path, "w", encoding="ascii") as file:
        file.write("id,lower,upper,size\n")
        for number, row in enumerate(rows):
            file.write("%d,%d,%d,%d\n" % (number, *row))


class Plan(here.Folder):
    def planned(self, *arguments):
        run = pleat("plan", *arguments, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_json_has_the_keys_others_rely_on(self):
        plan = json.loads(of_the_job("--json"))
        for key in KEYS:
            self.assertIn(key, plan)
        self.assertGreaterEqual(plan["physical_bytes"], plan["max_live_bytes"])
        self.assertLess(plan["ratio"], 1.01)
        self.assertEqual(plan["physical_bytes"] % (2 << 20), 0)
        self.assertGreater(plan["iteration_requests"], 0)

    def test_every_algorithm_places_the_job(self):
        # Whether a plan pays is tried elsewhere, and takes half of the time.
        best = self.planned(JOB, "--no-fold", "--no-replay")
        for name in ["size", "lifetime", "sweep", "stweaver"]:
            plan = self.planned(JOB, "--no-fold", "--no-replay", "--algorithm", name)
            self.assertEqual(plan["algorithm"], name)
            self.assertEqual(plan["alias_maps"], 0)
            self.assertGreaterEqual(plan["contiguous_bytes"], best["contiguous_bytes"])

    def test_two_runs_write_the_same_bytes(self):
        plans = []
        for name in ["a.plan", "b.plan"]:
            self.assertEqual(pleat("plan", JOB, "-o", self.path(name)).returncode, 0)
            with open(self.path(name), "rb") as file:
                plans.append(file.read())
        self.assertEqual(plans[0], plans[1])

    def test_text_says_where_the_plan_is(self):
        name = self.path("said.plan")
        said = pleat("plan", JOB, "--no-replay", "-o", name).stdout.splitlines()
        self.assertEqual(said[-1], "written to " + name)
        self.assertNotIn("written to", of_the_job())

    def test_dump_is_the_layout(self):
        rng = random.Random(7)
        rows = []
        for _ in range(300):
            lower = rng.randrange(1000)
            rows.append((lower, lower + 1 + rng.randrange(80), 1 + rng.randrange(100000)))
        lifetimes(self.path("t.csv"), rows)
        run = pleat("plan", self.path("t.csv"), "--no-fold", "--dump", self.path("d.csv"))
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(self.path("d.csv"), newline="", encoding="ascii") as file:
            placed = [(int(r["lower"]), int(r["upper"]), int(r["place"]), int(r["size"]))
                      for r in csv.DictReader(file) if r["sequence"] == "steady"]
        self.assertEqual(len(placed), 300)
        self.assertEqual(sorted(p[3] for p in placed), sorted(r[2] for r in rows))
        for i, (lower, upper, place, size) in enumerate(placed):
            for other in placed[:i]:
                if lower < other[1] and other[0] < upper:
                    self.assertTrue(place + size <= other[2] or other[2] + other[3] <= place)

    def iterations(self, name, phase, device=0):
        """A snapshot of three iterations, on one device."""
        traces = [[] for _ in range(device + 1)]
        for number in range(90):
            traces[device] += [{"action": action, "addr": 1 << 30, "size": 512 * (1 + number % 30), "stream": 0,
                                "time_us": number, "user_metadata": "iter=%d;phase=%s" % (number // 30, phase)}
                               for action in ("alloc", "free_requested", "free_completed")]
        with open(self.path(name), "wb") as file:
            pickle.dump({"device_traces": traces, "segments": []}, file)
        return self.path(name)

    def test_dump_has_phases_as_they_are(self):
        phase = 'F, the "first"\nof two'
        run = pleat("plan", self.iterations("job.pickle", phase), "--dump", self.path("d.csv"))
        self.assertEqual(run.returncode, 0, run.stderr)
        with open(self.path("d.csv"), newline="", encoding="ascii") as file:
            rows = [row for row in csv.DictReader(file) if row["sequence"] == "steady"]
        self.assertEqual({(row["phase"], row["stream"]) for row in rows}, {(phase, "0")})

    def test_which_recording_cannot_be_planned_is_said(self):
        jobs = [self.iterations("%d.pickle" % device, "F", device) for device in (0, 1)]
        self.assertIn("trace 2: the trace holds no allocation on device 0", pleat("plan", *jobs).stderr)

    def test_a_plan_of_the_first_iterations_serves_the_next(self):
        two = self.path("two.trace")
        beginning = json.loads(pleat("import", JOB, "-n", 2, "-o", two, "--json").stdout)
        whole = json.loads(pleat("import", JOB, "-n", 3, "--json").stdout)
        self.assertLess(beginning["requests"], whole["requests"])
        self.planned(two, "-o", self.path("two.plan"))
        run = pleat("replay", JOB, "--plan", self.path("two.plan"), "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        replay = json.loads(run.stdout)
        self.assertGreater(replay["steady_bytes"], 0)
        self.assertGreater(replay["steady_slot_bytes"] + replay["steady_lane_bytes"],
                           0.9 * replay["steady_bytes"])
        self.assertEqual(pleat("import", JOB, "-n", 0).returncode, 2)
        self.assertEqual(pleat("import", JOB, "-n", 4000).returncode, 3)

    def test_the_plan_is_tried_on_its_recording(self):
        plan = json.loads(of_the_job("--json"))
        (tried,) = plan["replayed"]
        self.assertFalse(tried["learning_is_better"])
        self.assertEqual(tried["planned_bytes"], plan["physical_bytes"])
        self.assertLess(tried["planned_bytes"], tried["learned_bytes"])
        self.assertGreater(tried["planned_share"], 0.99)
        text = of_the_job()
        self.assertIn("replayed, %s takes" % JOB, text)
        self.assertRegex(text, r"where Pleat learns \(\d+\.\d % of it in the driver\)\n")
        self.assertNotIn("NOT FOLLOWED", text)
        self.assertNotIn("reason", tried)
        self.assertNotIn("replayed", self.planned(JOB, "--no-replay"))
        self.assertEqual(self.planned(JOB, "--chunk", "64KiB")["replayed"][0]["why_not"],
                         "no GPU has such chunks")

    @of_drawn_jobs
    def test_a_plan_that_is_worse_than_none_is_called_so(self):
        drawn = self.path("experts.pickle.gz")
        here.draw(drawn, "--seed", "139", "--iterations", "3")
        (tried,) = self.planned(drawn)["replayed"]
        self.assertTrue(tried["learning_is_better"])
        self.assertGreater(tried["planned_bytes"], tried["learned_bytes"])
        plan = self.path("experts.plan")
        self.assertEqual(tried["reason"], "memory")
        text = pleat("plan", drawn, "-o", plan).stdout
        self.assertIn("\nthis speaks against the plan: with it the job takes more memory than where Pleat learns\n", text)
        self.assertIn("THE PLAN IS NOT FOLLOWED", text)
        self.assertIn("is not followed", pleat("plan", plan).stdout)
        self.assertIn("is not followed", pleat("verify", plan).stdout)
        self.assertIn("is not followed", pleat("report", drawn, "--plan", plan, "-o", self.path("page.html")).stdout)
        for command in (("plan", plan), ("verify", plan), ("plan", drawn)):
            self.assertIs(json.loads(pleat(*command, "--json").stdout)["followed"], False)
        self.assertIn("is not followed", pleat("replay", drawn, "--plan", plan).stdout)
        learned = self.taken(drawn)
        self.assertEqual(self.taken(drawn, "--plan", plan), learned)
        pleat("plan", drawn, "--no-replay", "-o", plan)
        self.assertGreater(self.taken(drawn, "--plan", plan), learned)
        self.assertIs(json.loads(pleat("verify", plan, "--json").stdout)["followed"], True)
        self.assertNotIn("is not followed", pleat("verify", plan).stdout)

    def test_a_process_without_addresses_is_no_job_without_memory(self):
        """A replay that the host has no room for was called one that runs out of memory, and the job one
        that fits nowhere."""
        told = "this process gets no more addresses: raise its limit (ulimit -v)"
        for command, status in (("plan", 0), ("replay", 5), ("compare", 5), ("explain", 5)):
            ran = subprocess.run(["prlimit", "--as=%d" % (300 << 20), PLEAT, command, JOB],
                                 capture_output=True, text=True, check=False)
            if "Sanitizer" in ran.stderr:
                self.skipTest("a sanitizer wants all addresses there are")
            self.assertEqual(ran.returncode, status, ran.stdout + ran.stderr)
            self.assertIn(told, ran.stdout + ran.stderr)
            self.assertEqual("was not replayed: device 0: " in ran.stdout, status == 0)

    @of_drawn_jobs
    def test_a_small_saving_does_not_count_where_requests_change(self):
        drawn, plan = self.path("small.pickle.gz"), self.path("small.plan")
        here.draw(drawn, "--seed", "2332197608", "--family", "moe")
        (tried,) = self.planned(drawn, "-o", plan)["replayed"]
        self.assertLess(tried["planned_bytes"], tried["learned_bytes"])
        self.assertGreater(tried["planned_bytes"], 0.999 * tried["learned_bytes"])
        self.assertEqual(tried["reason"], "saving")
        self.assertEqual(self.taken(drawn, "--plan", plan), self.taken(drawn))

    @of_drawn_jobs
    def test_a_plan_that_its_own_recording_leaves_is_not_followed(self):
        drawn, plan = self.path("left.pickle.gz"), self.path("left.plan")
        here.draw(drawn, "--seed", "5847881", "--run", "1")
        (tried,) = self.planned(drawn, "-o", plan)["replayed"]
        self.assertEqual(tried["reason"], "left")
        self.assertLess(tried["planned_bytes"], tried["learned_bytes"])
        self.assertEqual(self.taken(drawn, "--plan", plan), self.taken(drawn))

    @of_drawn_jobs
    def test_a_plan_of_other_lengths_is_left_before_it_costs_memory(self):
        """On its own recording it pays; another run has other lengths, and would take 4.8 % more with it."""
        drawn = [self.path("run-%d.pickle.gz" % run) for run in range(2)]
        for run, path in enumerate(drawn):
            here.draw(path, "--seed", "4229923840", "--set", "steps=false", "--set", "fetch=each", "--run", run)
        plan = self.path("other.plan")
        (tried,) = self.planned(drawn[1], "-o", plan)["replayed"]
        self.assertFalse(tried["learning_is_better"])
        followed = json.loads(pleat("replay", drawn[0], "--plan", plan, "--json").stdout)
        self.assertGreater(followed["left_at"], 0)
        self.assertLessEqual(followed["peak_physical_bytes"], 1.002 * self.taken(drawn[0]))

    @of_drawn_jobs
    def test_a_plan_without_a_place_for_an_evaluation_is_followed(self):
        """What has no place is another loop's; an iteration's requests are the same each time."""
        drawn = [self.path("run-%d.pickle.gz" % run) for run in range(2)]
        for run, path in enumerate(drawn):
            here.draw(path, "--seed", "1570696176", "--set", "batch=fixed", "--set", "steps=false", "--set", "fetch=each",
                      "--run", run)
        plan = self.path("other.plan")
        (tried,) = self.planned(drawn[1], "-o", plan)["replayed"]
        self.assertLess(tried["planned_share"], HAVE_PLACES)
        self.assertFalse(tried["learning_is_better"])
        self.assertLess(self.taken(drawn[0], "--plan", plan), self.taken(drawn[0]))

    def test_what_the_folding_step_did_is_said(self):
        """With no request in a view it once stood there as if it had done nothing."""
        told, text = self.planned(JOB), pleat("plan", JOB).stdout
        self.assertIn("0 requests folded into 0 views", text)
        saved = told["contiguous_bytes"] - told["physical_bytes"]
        self.assertGreater(saved, 100 << 20)
        self.assertIn(f"folding laid the requests out anew, in the order in which they come: {saved / 2**20:.3f} MiB less",
                      " ".join(text.split()))

    @of_drawn_jobs
    def test_a_plan_is_tried_as_its_program_runs(self):
        """What the recording does not mark is not marked while the plan is tried on it."""
        drawn = self.path("untold.pickle.gz")
        here.draw(drawn, "--seed", "3912918599", "--set", "layers=19", *AS_BEFORE, "--set", "mlp=gelu", "--no-marks")
        plan = self.path("untold.plan")
        (tried,) = self.planned(drawn, "-o", plan)["replayed"]
        self.assertTrue(tried["learning_is_better"])
        pleat("plan", drawn, "--no-replay", "-o", plan)
        told = json.loads(pleat("replay", drawn, "--plan", plan, "--json").stdout)
        self.assertGreater(told["steady_planned_share"], 0.99)
        self.assertLess(tried["planned_share"], told["steady_planned_share"] - 0.1)

    def tried_of_another_run(self, seed, *options):
        """A drawn job's plan of its run 1, which pays on its recording, is not followed: what its trial said."""
        drawn, plan = self.path(seed + ".pickle.gz"), self.path(seed + ".plan")
        here.draw(drawn, "--seed", seed, "--run", "1", *options)
        (tried,) = self.planned(drawn, "-o", plan)["replayed"]
        self.assertLess(tried["planned_bytes"], 0.999 * tried["learned_bytes"])
        self.assertLess(tried["planned_driver_share"], tried["learned_driver_share"] + DRIVER_MORE)
        self.assertGreater(tried["planned_share"], HAVE_PLACES)
        self.assertTrue(tried["learning_is_better"])
        self.assertEqual(self.taken(drawn, "--plan", plan), self.taken(drawn))
        return tried

    @of_drawn_jobs
    def test_a_plan_of_lengths_that_change_is_not_followed(self):
        """Another run draws other lengths, and needs memory beyond the plan for the longest."""
        tried = self.tried_of_another_run("3976944677", *AS_BEFORE, "--set", "iterations=12")
        self.assertTrue(tried["changes"])
        self.assertEqual(tried["reason"], "sizes")

    @of_drawn_jobs
    def test_a_plan_of_changing_requests_that_pays_is_followed(self):
        drawn, plan = self.path("served.pickle.gz"), self.path("served.plan")
        here.draw(drawn, "--seed", "3076150517", "--run", "1")
        (tried,) = self.planned(drawn, "-o", plan)["replayed"]
        self.assertFalse(tried["changes"])
        self.assertFalse(tried["learning_is_better"])
        self.assertEqual(self.taken(drawn, "--plan", plan), tried["planned_bytes"])

    @of_drawn_jobs
    def test_a_plan_of_changing_requests_that_nothing_marks_is_not_followed(self):
        tried = self.tried_of_another_run("2258572358", "--set", "batch=fixed", "--no-marks")
        self.assertTrue(tried["changes"])
        self.assertEqual(tried["reason"], "changes")
        # Nor one of five iterations.
        self.assertTrue(self.tried_of_another_run("2892756771", "--no-marks")["changes"])

    @of_drawn_jobs
    def test_what_has_no_place_is_no_saving(self):
        """Physical memory is less than max-live where dynamic requests have neither slot nor lane."""
        drawn = self.path("beside.pickle.gz")
        here.draw(drawn, "--seed", "1153210751", "--run", "1", "--iterations", "3")
        text = pleat("plan", drawn, "--no-replay").stdout
        self.assertRegex(text, "- without a slot or lane, beside the plan +0.0")
        told = json.loads(pleat("explain", drawn, "--json").stdout)
        plan, saved = told["plan"], {a["what"]: a["saved_bytes"] for a in told["advice"]}
        self.assertGreater(plan["unplaced_bytes"], 0)
        self.assertEqual(plan["max_live_bytes"] - plan["unplaced_bytes"] + sum(plan["gap"].values()),
                         plan["physical_bytes"])
        self.assertTrue(plan["replayed"]["learning_is_better"])
        self.assertNotIn("plan", saved)
        (beyond,) = re.findall(r"takes [^,]* for the steady iteration, ([0-9.]+) %",
                               " ".join(pleat("explain", drawn).stdout.split()))
        self.assertLess(float(beyond), 10)

    @of_drawn_jobs
    def test_a_plan_has_one_table_of_what_is_live_at_its_peak(self):
        """What is said when it is made is what its file says, and together it is max-live."""
        for seed, options in (("1153210751", ("--run", "1", "--iterations", "3")), ("1123646740", ("--run", "1"))):
            drawn, plan = self.path(seed + ".pickle.gz"), self.path(seed + ".plan")
            here.draw(drawn, "--seed", seed, *options)
            made = pleat("plan", drawn, "--no-replay", "-o", plan).stdout
            tables = [re.search(r"live at the peak.*?\n.* in requests under 1 MiB\n", text, re.DOTALL).group()
                      for text in (made, pleat("plan", plan).stdout)]
            self.assertEqual(*tables)
            sums = [re.search(name + " +([0-9.]+ GiB)", made).group(1) for name in ("sum", "max-live")]
            self.assertEqual(*sums)
            told = json.loads(pleat("plan", drawn, "--no-replay", "--json").stdout)
            self.assertEqual(sum(told["live_at_peak"].values()) - told["live_at_peak"]["small"], told["max_live_bytes"])

    @of_drawn_jobs
    def test_no_contiguous_placement_takes_less_than_is_live(self):
        """What has no place was not counted where it was compared with max-live."""
        drawn = self.path("small.pickle.gz")
        here.draw(drawn, "--seed", "1123646740", "--run", "1")
        told = json.loads(pleat("plan", drawn, "--no-replay", "--json").stdout)
        self.assertLess(told["contiguous_bytes"], told["max_live_bytes"])
        self.assertGreaterEqual(told["contiguous_ratio"], 1)
        text = pleat("plan", drawn, "--no-replay").stdout
        self.assertRegex(text, r"(?m)^with it, contiguous, before folding .* 1\.\d+$")
        self.assertNotRegex(text, r"(?m)^(size|lifetime|sweep|stweaver|search) .* 0\.\d+$")

    def taken(self, *arguments):
        return json.loads(pleat("replay", *arguments, "--json").stdout)["peak_physical_bytes"]

    def test_a_recording_in_which_nothing_repeats_is_shown_all_the_same(self):
        draw, live, events = random.Random(3), [], []
        for number in range(1500):
            if live and draw.random() < 0.45:
                address, size = live.pop(draw.randrange(len(live)))
                happens = ["free_requested", "free_completed"]
            else:
                address, size = number << 30, draw.randrange(1, 40 << 20)
                live.append((address, size))
                happens = ["alloc"]
            events += [{"action": action, "addr": address, "size": size, "stream": 0,
                        "time_us": 20 * number} for action in happens]
        snapshot = self.path("once.pickle")
        with open(snapshot, "wb") as file:
            pickle.dump({"device_traces": [events], "segments": []}, file)
        refused = pleat("plan", snapshot)
        self.assertEqual(refused.returncode, 3)
        self.assertIn("record at least two iterations, or mark where they begin", refused.stderr)
        self.assertEqual(pleat("compare", snapshot).returncode, 0)
        self.assertEqual(pleat("explain", snapshot).returncode, 0)
        self.assertEqual(pleat("report", snapshot, "-o", self.path("page.html")).returncode, 0)
        for policy in ("native", "expandable", "gmlake", "stweaver", "pleat"):
            self.assertEqual(pleat("replay", snapshot, "-p", policy).returncode, 0, policy)

    def test_exit_codes(self):
        self.assertEqual(pleat("plan").returncode, 2)
        self.assertEqual(pleat("plan", JOB, "--algorithm", "luck").returncode, 2)
        self.assertEqual(pleat("plan", JOB, "--chunk", "0").returncode, 2)
        self.assertEqual(pleat("plan", JOB, JOB).returncode, 3)
        self.assertEqual(pleat("plan", "--help").returncode, 0)
        missing = pleat("plan", self.path("none"))
        self.assertEqual(missing.returncode, 3)
        self.assertIn("none", missing.stderr)
        lifetimes(self.path("t.csv"), [(0, 2, 512), (1, 3, 512)])
        unwritable = pleat("plan", self.path("t.csv"), "-o", self.path("no/where.plan"))
        self.assertEqual(unwritable.returncode, 3)
        self.assertIn("no/where.plan", unwritable.stderr)
        self.assertEqual(pleat("plan", JOB, "--device", 9).returncode, 3)

    def test_more_than_a_plan_can_be_of_is_said_of_its_recording(self):
        lifetimes(self.path("large.csv"), [(0, 2, 1 << 45), (1, 3, 1 << 45)])
        refused = pleat("plan", self.path("large.csv"))
        self.assertEqual(refused.returncode, 3)
        self.assertIn("large.csv': a layout of 33554432 pages", refused.stderr)
        explained = pleat("explain", self.path("large.csv"))
        self.assertEqual(explained.returncode, 0, explained.stderr)
        self.assertIn("There is no plan of it: a layout of 33554432 pages", explained.stdout)

    def test_text_says_where_the_bytes_are(self):
        for word in ["persistent", "scoped", "transient", "dynamic", "under 1 MiB", "rounding",
                     "streams", "stuck", "lanes", "stweaver", " fold "]:
            self.assertIn(word, of_the_job())

    def test_what_is_of_two_iterations_is_said_to_be(self):
        made.record(self.path("job.pickle"), [4] * 6, seed=59, loads=True)
        run = pleat("plan", self.path("job.pickle"), "--no-replay")
        self.assertIn("the plan is of two iterations", run.stdout)
        self.assertRegex(run.stdout, r"(?m)^[1-9]\d* requests of both iterations folded into [1-9]\d* views: ")
        self.assertRegex(of_the_job(), r"(?m)^\d+ requests? folded into ")


if __name__ == "__main__":
    unittest.main()
