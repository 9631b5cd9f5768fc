"""`pleat plan` of several traces, what it says of other sizes, and replays at those."""
import json
import os
import random
import sys
import tempfile
import unittest
import zlib

import here
from made import SMALL, Recording, record

PLEAT = sys.argv.pop(1)
pleat = here.runs(PLEAT)


class Elastic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        for batch in (2, 3, 4, 8):
            record(cls.path("%d.pickle" % batch), [batch] * 4)
        record(cls.path("varies.pickle"), [3, 7, 5, 6, 4, 7, 5])
        run = pleat("plan", cls.path("2.pickle"), cls.path("4.pickle"), "--x", "2,4", "-o",
                    cls.path("plan"), "--json")
        assert run.returncode == 0, run.stderr
        cls.plan = json.loads(run.stdout)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def asked(self, *arguments):
        run = pleat("plan", self.path("plan"), *arguments, "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_sums_whose_bounds_make_them_one_function_keep_their_sizes(self):
        """128 and 256 columns may have one bound: a convolutional job's plan had other requests' sizes."""
        plan, jobs = self.plan_of_both("unet", 2396936419, "most=192", "width=128")
        for job in jobs:
            self.assertEqual(pleat("verify", plan, "--trace", job).returncode, 0)

    def test_sizes_that_differ_below_what_a_place_takes_are_one(self):
        """A detector's images have 1 to 9 boxes of 16 bytes, where a place takes 512."""
        plan, jobs = self.plan_of_both("detector", 240838700)
        self.assertEqual(pleat("verify", plan, "--trace", jobs[1]).returncode, 0)

    def test_iterations_that_differ_by_few_requests_show_no_size(self):
        """Every second one reads its loss: others lay in these requests' place, and x was 1 and 294912. The job's batches
        are of so many tokens, whatever number of samples is asked for."""
        jobs = self.drawn_at_both("encoder-decoder", 507423712, 6)
        for more, text in (((), "of the iteration's 3427 requests 6 change size over 10 iterations: all were recorded at one "
                            "microbatch and length: record the job at another one"), (("--x", "2,4"), "record the job")):
            done = pleat("plan", *jobs, "--no-replay", *more)
            self.assertEqual(done.returncode, 3)
            self.assertIn(text, done.stderr)

    def test_numbers_that_sizes_do_not_follow_are_named(self):
        done = pleat("plan", self.path("varies.pickle"), self.path("varies.pickle"), "--x", "2,4")
        self.assertEqual(done.returncode, 3)
        self.assertIn("x is given as 2 in trace 1 and as 4 in trace 2, and their sizes are the same: ", done.stderr)
        alone = pleat("plan", *self.drawn_at_both("moe", 33, 5), "--no-replay")
        self.assertEqual(alone.returncode, 3)
        self.assertRegex(alone.stderr, r"requests \d+ change size over \d+ iterations, and most of these follow no number in "
                         r"common, .* or take one recording alone\n$")
        # One alone was told to take itself alone.
        self.assertRegex(pleat("plan", self.drawn_at_both("moe", 33, 5)[0], "--fit", "80GiB").stderr,
                         r"record two microbatches .*; what would fit `pleat compare` estimates from one recording\n$")

    def drawn_at_both(self, family, seed, iterations, *given):
        """Recordings of a drawn job at two sizes."""
        jobs = [self.path("%s-%d.pickle" % (family, samples)) for samples in (2, 4)]
        for samples, job in zip((2, 4), jobs):
            here.draw(job, "--seed", seed, "--family", family, "--iterations", iterations, "--set", "batch=fixed", "--set",
                      "samples=%d" % samples, "--set", "large_at=null", *(word for one in given for word in ("--set", one)))
        return jobs

    def plan_of_both(self, family, seed, *given):
        jobs = self.drawn_at_both(family, seed, 3, *given)
        plan = self.path(family + ".plan")
        made = pleat("plan", *jobs, "--no-replay", "-o", plan)
        self.assertEqual(made.returncode, 0, made.stderr)
        return plan, jobs

    def test_an_answer_of_no_says_why_to_programs_too(self):
        """It once was an empty object."""
        for arguments, key in ((("--fit", "2MiB"), "fit_why_not"), (("--at", "0.01"), "at_why_not")):
            run = pleat("plan", self.path("plan"), *arguments, "--json")
            self.assertEqual(run.returncode, 1)
            told = json.loads(run.stdout)
            self.assertIn(told[key], run.stderr)
        self.assertEqual(told["x"], "1/100")
        self.assertIn("record a smaller one\n", run.stderr)
        self.assertIn("record a larger one, or plan with --max\n", pleat("plan", self.path("plan"), "--at", "900").stderr)
        rigid = self.path("rigid.plan")
        self.assertEqual(pleat("plan", self.path("2.pickle"), "-o", rigid).returncode, 0)
        run = pleat("plan", rigid, "--fit", "1GiB", "--json")
        self.assertEqual((run.returncode, run.stdout), (3, ""))
        self.assertIn("--no-replay is for making one", pleat("plan", rigid, "--no-replay").stderr)

    def test_each_step_has_one_time(self):
        """Of one recording whose sizes change the planner makes two models; JSON had the key twice."""
        run = pleat("plan", self.path("varies.pickle"), "--json")
        pairs = json.loads(run.stdout, object_pairs_hook=list)
        (steps,) = [value for key, value in pairs if key == "step_seconds"]
        names = [name for name, _ in steps]
        self.assertEqual(sorted(set(names)), sorted(names))
        self.assertIn("recipe", names)
        self.assertIn("verify", names)

    def test_the_plan_says_what_it_was_fitted_from(self):
        elastic = self.plan["elastic"]
        self.assertEqual([trace["x"] for trace in elastic["traces"]], ["2", "4"])
        self.assertEqual(elastic["reference"], "4")
        self.assertEqual((elastic["lowest"], elastic["highest"]), ("1/2", "16"))
        self.assertEqual(elastic["explained_requests"], elastic["varying_requests"])
        self.assertEqual(self.plan["dynamic_requests"], 0)
        self.assertEqual(self.plan["algorithm"], "elastic")
        self.assertLess(self.plan["ratio"], 1.02)
        self.assertEqual(pleat("verify", self.path("plan")).returncode, 0)
        self.assertEqual(
            pleat("verify", self.path("plan"), "--trace", self.path("4.pickle")).returncode, 0)

    def test_requests_of_any_size_between_tell_no_x(self):
        def write(name, batches, seed):
            recording, dice = Recording(), random.Random(seed)
            for number, batch in enumerate(batches):
                label = "iter=%d;phase=step" % number
                layers, kept = random.Random(5), [recording.take(3 * SMALL, label)]
                for layer in range(24):
                    if layer == 0:
                        recording.give(recording.take(16 * dice.randrange(2000, 9000), label), label)
                    kept.append(recording.take(batch * (1 << layers.randrange(14, 18)), label))
                while kept:
                    if len(kept) == 25:
                        recording.give(recording.take(16 * dice.randrange(2000, 9000), label), label)
                    work = recording.take(batch * 4096 * layers.randrange(1, 90), label)
                    recording.give(kept.pop(), label)
                    recording.give(work, label)
            recording.write(self.path(name))

        write("any2.pickle", [2] * 6, 1)
        write("any4.pickle", [4] * 6, 2)
        write("any.pickle", [4, 4, 2, 3, 4, 2, 3, 4, 2, 3, 2, 4], 3)
        run = pleat("plan", self.path("any2.pickle"), self.path("any4.pickle"), "--x", "2,4", "-o", self.path("any"),
                    "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertGreater(json.loads(run.stdout)["dynamic_requests"], 0)
        run = pleat("replay", self.path("any.pickle"), "--plan", self.path("any"), "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertGreater(json.loads(run.stdout)["steady_planned_share"], 0.99)

    def test_another_x_is_answered(self):
        at = self.asked("--at", "4")
        self.assertEqual(at["at_physical_bytes"], self.plan["physical_bytes"])
        self.assertEqual(at["at_kept_bytes"], at["at_physical_bytes"])
        self.assertEqual(at["at_remaps"], 0)
        sizes = [self.asked("--at", x)["at_physical_bytes"] for x in ("1/2", "1", "2.5", "8", "16")]
        self.assertEqual(sizes, sorted(sizes))
        whole = pleat("plan", self.path("8.pickle"), "--json")
        self.assertEqual(self.asked("--at", "8")["at_max_live_bytes"],
                         json.loads(whole.stdout)["max_live_bytes"])

    def test_one_that_is_not_to_be_followed_is_followed_at_no_size(self):
        with open(self.path("plan"), "rb") as file:
            packed = bytearray(file.read()[:-4])  # the last is a checksum
        packed[packed.index(b"pleat plan") + 10] += 16  # its version, as of one where learning does as well
        with open(self.path("lost.plan"), "wb") as file:
            file.write(packed + zlib.crc32(packed[:-2]).to_bytes(4, "big"))
        for batch in (2, 3, 4):
            job = self.path("%d.pickle" % batch)
            self.assertIn("is not followed", pleat("replay", job, "--plan", self.path("lost.plan")).stdout)
            with_it, alone = (json.loads(pleat("replay", job, *plan, "--json").stdout)
                              for plan in (["--plan", self.path("lost.plan")], []))
            for key in ("planned", "peak_physical_bytes", "driver_calls"):
                self.assertEqual(with_it[key], alone[key], key)

    def test_replays_at_other_sizes_are_planned(self):
        for batch in (2, 3, 4, 8):
            run = pleat("replay", self.path("%d.pickle" % batch), "--plan", self.path("plan"),
                        "--canary", "--json")
            self.assertEqual(run.returncode, 0, run.stderr)
            replay = json.loads(run.stdout)
            self.assertEqual(replay["canary_errors"], 0)
            self.assertEqual(replay["diverged"], 0, batch)
            self.assertEqual(replay["steady_driver_calls"], 0, batch)
            self.assertEqual(replay["steady_planned_share"], 1, batch)
            self.assertGreater(replay["efficiency"], 0.97, batch)

    def test_what_fits_runs_and_the_next_does_not(self):
        for batch in (3, 5, 7):
            budget = self.asked("--at", batch)["at_physical_bytes"] + (2 << 20)
            fit = self.asked("--fit", budget)
            self.assertEqual(fit["fit_x"], str(batch))
            self.assertEqual(fit["fit_next_x"], str(batch + 1))
            self.assertGreater(fit["fit_next_physical_bytes"], budget)
            for size, status in ((batch, 0), (batch + 1, 4)):
                path = self.path("fits.pickle")
                record(path, [size] * 4)
                run = pleat("replay", path, "--plan", self.path("plan"), "--budget", budget)
                self.assertEqual(run.returncode, status, run.stderr)

    def test_what_has_no_slot_is_counted(self):
        # `for x in batches`: the last batch lives until the next one is there.
        for batch in (2, 4, 8):
            record(self.path("loads-%d.pickle" % batch), [batch] * 4, loads=True)
        plan = self.path("loads.plan")
        run = pleat("plan", self.path("loads-2.pickle"), self.path("loads-4.pickle"), "--x", "2,4", "-o", plan,
                    "--no-replay")
        self.assertEqual(run.returncode, 0, run.stderr)
        at = json.loads(pleat("plan", plan, "--at", "8", "--json").stdout)
        self.assertGreater(at["at_beside_bytes"], 0)
        kept = json.loads(pleat("plan", plan, "--at", "4", "--json").stdout)
        self.assertEqual((kept["at_remaps"], kept["at_kept_bytes"]), (0, kept["at_physical_bytes"]))
        self.assertIn("with what lies beside it", pleat("plan", plan).stdout)
        self.assertGreaterEqual(at["at_physical_bytes"], at["at_max_live_bytes"])
        took = json.loads(pleat("replay", self.path("loads-8.pickle"), "--plan", plan, "--json").stdout)
        self.assertLessEqual(took["peak_physical_bytes"], at["at_physical_bytes"])
        fit = json.loads(pleat("plan", plan, "--fit", at["at_physical_bytes"], "--json").stdout)
        self.assertEqual((fit["fit_x"], fit["fit_physical_bytes"]), ("8", at["at_physical_bytes"]))
        self.assertIn("beside the plan", pleat("plan", plan, "--at", "8").stdout)

    def test_what_has_no_name_fits_by_sixteenths(self):
        budget = self.asked("--at", "5/2")["at_physical_bytes"]
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"),
                    "--fit", budget, "--json")
        self.assertEqual(json.loads(run.stdout)["fit_x"], "5/4", run.stderr)

    def test_memory_is_laid_out_for_the_largest(self):
        plan = self.path("largest.plan")
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"), "--x", "2,4", "--max",
                    "16", "-o", plan, "--json")
        self.assertEqual(json.loads(run.stdout)["elastic"]["reference"], "16", run.stderr)
        answers = []
        for x in ("16", "12", "4"):
            run = pleat("plan", plan, "--at", x, "--json")
            answers.append(json.loads(run.stdout))
        self.assertEqual((answers[0]["at_remaps"], answers[0]["at_kept_bytes"]), (0, answers[0]["at_physical_bytes"]))
        self.assertLess(answers[2]["at_physical_bytes"], answers[0]["at_physical_bytes"])
        self.assertGreaterEqual(answers[1]["at_kept_bytes"], answers[1]["at_physical_bytes"])
        run = pleat("replay", self.path("4.pickle"), "--plan", plan, "--json")
        self.assertGreater(json.loads(run.stdout)["efficiency"], 0.97, run.stderr)
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"), "--x", "2,4", "--max", "10000", "--chunk", "512")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--max 10000 is too large: the iteration's requests take ", run.stderr)
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"), "--x", "2,4", "--max", "1000000")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, r"--max 1000000 is too large: a layout of .*; plan with larger chunks \(--chunk\), or a smaller --max\n")
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"), "--x", "2,4", "--max", "99999999")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, r"--max 99999999 is too large: the iteration's requests take \d+ chunks of 2097152 bytes, one by one: at most 268435456 can be laid out\n")
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"), "--x", "2,4", "--max", "9999999999")
        self.assertEqual(run.returncode, 2)
        self.assertIn("--max 9999999999 is too large: no size that follows x is one that a request ", run.stderr)
        # What is wrong with the traces is not the number's fault.
        for traces in (("2.pickle", "2.pickle"), ("2.pickle", "none")):
            run = pleat("plan", *map(self.path, traces), "--max", "99999999")
            self.assertEqual(run.returncode, 3)
            self.assertNotIn("--max", run.stderr)

    def test_one_recording_of_several_sizes(self):
        run = pleat("plan", self.path("varies.pickle"), "--at", "3", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        plan = json.loads(run.stdout)
        self.assertEqual(plan["elastic"]["reference"], "7")
        self.assertEqual(plan["elastic"]["explained_requests"],
                         plan["elastic"]["varying_requests"])

    def test_a_job_whose_size_changes_keeps_its_places(self):
        plan = self.path("varies.plan")
        run = pleat("plan", self.path("varies.pickle"), "--max", "7", "--no-replay", "-o", plan)
        self.assertEqual(run.returncode, 0, run.stderr)
        run = pleat("replay", self.path("varies.pickle"), "--plan", plan, "--canary", "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        replay = json.loads(run.stdout)
        self.assertEqual(replay["canary_errors"], 0)
        self.assertEqual(replay["steady_driver_calls"], 0)
        self.assertEqual(replay["steady_planned_share"], 1)
        self.assertEqual(replay["diverged"], 0)
        self.assertGreater(replay["efficiency"], 0.97)

    def test_sizes_beyond_the_plan_run_all_the_same(self):
        run = pleat("replay", self.path("varies.pickle"), "--plan", self.path("plan"), "--canary",
                    "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        replay = json.loads(run.stdout)
        self.assertEqual(replay["canary_errors"], 0)
        self.assertGreaterEqual(replay["instances"], 1)
        self.assertGreater(replay["steady_planned_share"], 0.98)
        self.assertGreater(replay["efficiency"], 0.95)

    def test_one_recording_is_planned_by_itself(self):
        run = pleat("plan", self.path("varies.pickle"), "--json")
        self.assertEqual(run.returncode, 0, run.stderr)
        plan = json.loads(run.stdout)
        self.assertEqual(plan["elastic"]["reference"], "7")
        self.assertEqual(plan["dynamic_requests"], 0)
        run = pleat("plan", self.path("varies.pickle"), "--no-recipe", "--json")
        lanes = json.loads(run.stdout)
        self.assertNotIn("elastic", lanes)
        self.assertGreater(lanes["dynamic_requests"], 0)
        self.assertLessEqual(plan["physical_bytes"], lanes["physical_bytes"])

    def test_text(self):
        run = pleat("plan", self.path("2.pickle"), self.path("4.pickle"),
                    "--at", "3/2", "--fit", "h200")
        self.assertEqual(run.returncode, 0, run.stderr)
        for text in ("x = 1: ", "x = 2: ", "requests that vary follow x", "maps that the plan has not",
                     "the plan's recipe reaches no further: record a larger one, or plan with --max\n"):
            self.assertIn(text, run.stdout)
        self.assertNotIn("the largest that fits", run.stdout)  # which larger ones may fit too
        self.assertIn(" is the largest that fits in ", pleat("plan", self.path("plan"), "--fit", self.asked(
            "--at", 5)["at_physical_bytes"] + (2 << 20)).stdout)

    def test_room_to_grow_ends_where_recordings_end(self):
        """A device that holds more than the recipe reaches: no more is said than is known."""
        small, large = (pleat("explain", self.path("2.pickle"), self.path("4.pickle"),
                              "--device-memory", size) for size in ("1200MiB", "h200"))
        self.assertEqual((small.returncode, large.returncode), (0, 0), small.stderr + large.stderr)
        self.assertIn("Under Pleat the microbatch can be at least 8 times the recorded one.", large.stdout)
        self.assertIn("recordings cannot tell", large.stdout)
        self.assertNotIn("at least", small.stdout)

    def refused(self, *arguments):
        run = pleat(*arguments)
        self.assertEqual(run.returncode, 2, run.stderr)
        return run.stderr

    def test_options_that_would_be_ignored_are_refused(self):
        """They once were ignored."""
        plan, four = self.path("plan"), self.path("4.pickle")
        self.assertIn("native' follows no plan",
                      self.refused("replay", four, "-p", "native", "--plan", plan))
        self.assertIn("--plan is for the policy pleat",
                      self.refused("compare", four, "-p", "native,gmlake", "--plan", plan))
        out = self.path("refused")
        for option in (["--max", "8"], ["--x", "2"], ["-o", out], ["--dump", out],
                       ["--algorithm", "size"], ["--chunk", "4MiB"], ["--no-fold"], ["--no-recipe"],
                       ["--device", "1"]):
            self.assertIn("is a plan: %s is for making one" % option[0],
                          self.refused("plan", plan, "--at", "3", *option))
        self.assertFalse(os.path.exists(out))

    def test_a_plan_is_proved_at_the_size_of_any_recording(self):
        plan, two = self.path("plan"), self.path("2.pickle")
        run = pleat("verify", plan, "--trace", two)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("at x = 2, which %s has" % two, run.stdout)
        holds = json.loads(pleat("verify", plan, "--trace", two, "--json").stdout)
        self.assertTrue(holds["holds"])
        self.assertEqual(holds["x"], "2")
        self.assertEqual(holds["covered_requests"], holds["trace_requests"])
        at = self.asked("--at", "2")
        self.assertEqual(holds["physical_bytes"], at["at_physical_bytes"])
        self.assertEqual(holds["max_live_bytes"], at["at_max_live_bytes"])

    def test_a_plan_does_not_hold_for_another_job(self):
        """At some x it may have a place for a part of its requests."""
        plan, other = self.path("plan"), self.path("other.pickle")
        record(other, [4] * 4, seed=8)
        for arguments in ((), ("--json",)):
            run = pleat("verify", plan, "--trace", other, *arguments)
            self.assertEqual(run.returncode, 1, run.stdout + run.stderr)
            self.assertIn("'%s'" % other, run.stderr)
        answer = json.loads(run.stdout)
        self.assertFalse(answer["holds"])
        self.assertIn("'%s'" % other, answer["error"])
        self.assertNotIn("physical_bytes", answer)  # they would be of what does not hold

    def test_an_error_says_which_recording_it_is_about(self):
        two, four, other = self.path("2.pickle"), self.path("4.pickle"), self.path("once.pickle")
        swapped = pleat("plan", two, four, "--x", "4,2")
        self.assertEqual(swapped.returncode, 3)
        self.assertIn("'%s', '%s': x is given as 4 in trace 1 and as 2 in trace 2, whose sizes are 2 times the "
                      "former's: are they in that order?" % (two, four), swapped.stderr)
        record(other, [4])
        once = pleat("plan", two, other)
        self.assertEqual(once.returncode, 3)
        self.assertIn("'%s', '%s': trace 2: no iteration repeats" % (two, other), once.stderr)

    def test_exit_codes(self):
        plan, two, four = self.path("plan"), self.path("2.pickle"), self.path("4.pickle")
        # By itself it is summarised.
        summary = pleat("plan", plan)
        self.assertEqual(summary.returncode, 0)
        self.assertRegex(summary.stdout, r"for every x \(microbatch or length\) from \d")
        self.assertRegex(summary.stdout, r"(?m)^= physical +\d+\.\d+ [GM]iB")
        self.assertNotRegex(summary.stdout, r"\d/\d")
        self.assertEqual(pleat("plan", plan, two).returncode, 2)
        self.assertEqual(pleat("plan", plan, "--at", "many").returncode, 2)
        self.assertEqual(pleat("plan", two, four, "--x", "2").returncode, 2)
        self.assertEqual(pleat("plan", two, four, "--x", "2,0").returncode, 2)
        self.assertEqual(pleat("plan", two, four, "--max", "-1").returncode, 2)
        self.assertEqual(pleat("plan", two, four, "--x", "2,5").returncode, 3)
        self.assertEqual(pleat("plan", plan, "--at", "900").returncode, 1)
        none = pleat("plan", plan, "--fit", "2MiB")
        self.assertEqual(none.returncode, 1)
        self.assertRegex(none.stderr, r"not even x = 1 fits in 2.00 MiB: it takes \d+\.\d\d MiB, and is the "
                                      r"least of the plan's range at this step\n$")
        same = pleat("plan", two, two)
        self.assertEqual(same.returncode, 3)
        self.assertIn("record the job at another one", same.stderr)
        elsewhere = pleat("plan", two, "--device", "3")
        self.assertEqual(elsewhere.returncode, 3)
        self.assertIn("it has no events of device 3, but of 0", elsewhere.stderr)
        rigid = self.path("rigid.plan")
        self.assertEqual(pleat("plan", two, "-o", rigid).returncode, 0)
        self.assertEqual(pleat("plan", rigid, "--at", "3").returncode, 3)



class Foretold(unittest.TestCase):
    """Jobs with kernels' workspaces: what is said of a size holds in a replay at it."""

    def expect(self, like, recorded, sizes, exact=()):
        with tempfile.TemporaryDirectory() as folder:
            def drawn(samples):
                path = os.path.join(folder, "%d.pickle.gz" % samples)
                if not os.path.exists(path):
                    here.draw(path, "--like", like, "--set", "samples=%d" % samples)
                return path
            plan = os.path.join(folder, "plan")
            made = pleat("plan", *map(drawn, recorded), "--x", ",".join(map(str, recorded)),
                         "--no-replay", "-o", plan)
            self.assertEqual(made.returncode, 0, made.stderr)
            for samples in sizes:
                at = json.loads(pleat("plan", plan, "--at", samples, "--json").stdout)
                replay = json.loads(pleat("replay", drawn(samples), "--plan", plan, "-d", "2TiB",
                                          "--json").stdout)
                took = replay["peak_physical_bytes"]
                self.assertLessEqual(took, at["at_physical_bytes"] * 1.001)
                self.assertGreaterEqual(took, at["at_least_bytes"] * 0.999)
                if samples <= recorded[-1]:
                    self.assertEqual(at["at_least_bytes"], at["at_physical_bytes"])
                if samples in exact:
                    self.assertGreaterEqual(took, at["at_physical_bytes"] * 0.999)
                self.assertGreaterEqual(replay["steady_planned_share"], 0.99)

    def test_what_comes_at_one_of_the_recorded_sizes_only_is_foretold(self):
        self.expect("gpt2-vpp-recompute", (2, 4), (4, 16))

    def test_a_bound_that_some_have_reached_is_foretold(self):
        self.expect("gpt2-vpp-recompute", (12, 24), (18,))

    def test_a_bound_that_other_sums_have_reached_is_foretold(self):
        self.expect("gpt2-vpp-recompute", (8, 16), (2, 64), exact=(2, 64))

    def test_a_bound_of_any_device_is_foretold(self):
        self.expect("gpt2-vpp-recompute", (2, 4), (12, 16), exact=(12, 16))


if __name__ == "__main__":
    unittest.main()
