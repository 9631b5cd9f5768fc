"""Tests of `pleat compare`, and that every subcommand takes a snapshot: compare.py PLEAT SNAPSHOT."""

import gzip
import json
import os
import pickle
import pty
import re
import subprocess
import sys
import tempfile
import unittest

import here

PLEAT, SNAPSHOT = sys.argv[1:3]
MIB = 1 << 20


def run(*arguments, status=0):
    ran = here.run(PLEAT, *arguments)
    assert ran.returncode == status, f"{arguments}: {ran.returncode}: {ran.stderr}"
    return ran


def compare(*arguments):
    found = json.loads(run("compare", *arguments, "--json").stdout)
    return found, {p["policy"]: p for p in found["policies"]}


def doubled(snapshot):
    """The job at twice the microbatch: what is freed is twice as large."""
    events = snapshot["device_traces"][0]
    live, freed = {}, set()
    for i, event in enumerate(events):
        if event["action"] == "alloc":
            live[event["addr"]] = i
        elif event["action"] == "free_completed" and event["addr"] in live:
            freed.add(live[event["addr"]])
    sizes = {}
    for i, event in enumerate(events):
        if event["action"] == "alloc" and i in freed:
            event["size"] *= 2
            sizes[event["addr"]] = event["size"]
        elif event["action"].startswith("free") and event["addr"] in sizes:
            event["size"] = sizes[event["addr"]]
    snapshot["segments"] = []
    return snapshot


def used_by_another_stream():
    """Six iterations, in each of which a tensor is freed that another stream uses still while the next one is made."""
    events = []

    def add(action, tensor):
        events.append({"action": action, "addr": tensor << 32, "size": 32 * MIB, "stream": 0, "time_us": len(events),
                       "user_metadata": "iter=%d" % (tensor // 2)})

    for first in range(2, 14, 2):
        add("alloc", first)
        add("free_requested", first)
        add("alloc", first + 1)
        for tensor in first, first + 1:
            add("free_completed", tensor)
    return {"segments": [], "device_traces": [events]}


class Compare(unittest.TestCase):
    def test_what_another_stream_uses_lives(self):
        """As `pleat explain`, `pleat plan` and `pleat import` say: no allocator has its memory before."""
        path = os.path.join(self.folder.name, "used.pickle")
        with open(path, "wb") as file:
            pickle.dump(used_by_another_stream(), file)
        of_import = json.loads(run("import", path, "--json").stdout)
        of_explain = json.loads(run("explain", path, "--json").stdout)
        of_plan = json.loads(run("plan", path, "--json").stdout)
        self.assertEqual(of_explain["max_live_bytes"], 64 * MIB)
        self.assertEqual(of_plan["max_live_bytes"], 64 * MIB)
        self.assertEqual(of_import["peak_live_bytes"], 64 * MIB)
        for policy, result in compare(path, "--no-fit")[1].items():
            with self.subTest(policy=policy):
                self.assertEqual(result["peak_live_bytes"], 64 * MIB)
                self.assertEqual(result["steady_peak_live_bytes"], 64 * MIB)

    def test_a_recording_without_allocations_is_named(self):
        path = os.path.join(self.folder.name, "empty.pickle")
        freed = {"action": "segment_alloc", "addr": 1 << 32, "size": MIB, "stream": 0, "time_us": 1}
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [[freed]]}, file)
        for command in ("compare",), ("explain",), ("replay",), ("plan",), ("export", "-f", "csv", "-o", path + ".csv"):
            with self.subTest(command=command):
                said = run(*command[:1], path, *command[1:], status=3).stderr
                self.assertIn("'%s': the recording has no allocation" % path, said)
        run("import", path)

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        with gzip.open(SNAPSHOT) as file:
            snapshot = pickle.load(file)
        cls.double = os.path.join(cls.folder.name, "double.pickle")
        with open(cls.double, "wb") as file:
            pickle.dump(doubled(snapshot), file)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def test_largest_microbatch_of_one_recording(self):
        found, policies = compare(SNAPSHOT, "-p", "native,expandable,pleat", "-d", "20GiB")
        self.assertEqual(found["fits"]["sizes"], "scale")
        self.assertIn("assuming", found["fits"]["assumption"])
        self.assertEqual(found["fits"]["device_bytes"], 20 << 30)
        self.assertGreater(found["driver_costs"]["access_granule_ns"], 0)
        for policy in policies.values():
            fit = policy["fit"]
            self.assertGreater(fit["times"], 1.5)
            self.assertLess(fit["times"], 4)
            self.assertAlmostEqual(fit["times"] * 10, round(fit["times"] * 10))
            self.assertLessEqual(fit["live_bytes"], fit["physical_bytes"])
            self.assertLessEqual(fit["physical_bytes"], 20 << 30)
            self.assertFalse(fit["bounded"])
        self.assertGreaterEqual(policies["pleat"]["fit"]["times"],
                                policies["native"]["fit"]["times"])
        # A device just too small for it takes a step less.
        most = policies["native"]["fit"]
        _, smaller = compare(SNAPSHOT, "-p", "native", "-d", most["live_bytes"] - 2 * MIB)
        self.assertLess(smaller["native"]["fit"]["times"], most["times"])

    def drawn(self, samples, ended=False):
        """One job at a microbatch; with the frees of the program's end, or without."""
        path = os.path.join(self.folder.name, f"drawn-{samples}{'-ended' if ended else ''}.pickle")
        settings = ["batch=fixed", f"samples={samples}", "evaluation_every=0", "generation_every=0",
                    "checkpoint_every=0"]
        here.draw(path, "--seed", 9, "--family", "decoder", "--iterations", 4,
                  *(part for setting in settings for part in ("--set", setting)))
        if ended:
            with open(path, "rb") as file:
                snapshot = pickle.load(file)
            events = snapshot["device_traces"][0]
            live = {e["addr"]: e for e in events if e["action"] == "alloc"}
            for event in events:
                if event["action"] == "free_completed":
                    del live[event["addr"]]
            for event in live.values():
                events += [dict(event, action=action, time_us=events[-1]["time_us"])
                           for action in ("free_requested", "free_completed")]
            with open(path, "wb") as file:
                pickle.dump(snapshot, file)
        return path

    def test_one_recording_foretells_the_others(self):
        """What fits is what is found by recording at other microbatches, whichever of them is asked."""
        names = "native,expandable,pleat"
        paths = {samples: self.drawn(samples) for samples in (2, 4, 8)}
        for samples, path in paths.items():
            _, taken = compare(path, "-p", names, "--no-fit")
            for policy, one in taken.items():
                device = one["peak_physical_bytes"] + 4 * MIB
                for asked in paths:
                    _, told = compare(paths[asked], "-p", policy, "-m", asked, "-d", device)
                    self.assertLessEqual(abs(told[policy]["fit"]["microbatch"] - samples), 1,
                                         (policy, samples, asked))
        # Whether the recording goes on to the program's end changes nothing.
        ended = self.drawn(4, True)
        _, as_ended = compare(ended, "-p", names, "-m", "4", "-d", "25GiB")
        _, as_cut = compare(paths[4], "-p", names, "-m", "4", "-d", "25GiB")
        for policy, one in as_cut.items():
            self.assertEqual(one["fit"]["microbatch"], as_ended[policy]["fit"]["microbatch"])
            self.assertAlmostEqual(one["fit"]["physical_bytes"] / as_ended[policy]["fit"]["physical_bytes"], 1, 2)
        halves = [json.loads(run("explain", path, "--json").stdout)["growth"]["half_physical_bytes"]
                  for path in (paths[4], ended)]
        self.assertAlmostEqual(halves[0] / halves[1], 1, 2)
        _, half = compare(paths[2], "-p", "native", "--no-fit")
        _, whole = compare(paths[4], "-p", "native", "--no-fit")
        saved = whole["native"]["peak_physical_bytes"] - half["native"]["peak_physical_bytes"]
        foretold = whole["native"]["peak_physical_bytes"] - halves[0]
        self.assertAlmostEqual(foretold / saved, 1, delta=0.05)

    def test_largest_microbatch_of_two_recordings(self):
        _, alone = compare(self.double, "-p", "native", "--no-fit")
        device = (alone["native"]["peak_physical_bytes"] // (2 * MIB) + 1) * 2 * MIB
        found, policies = compare(SNAPSHOT, self.double, "-p", "native,pleat", "-d", device,
                                  "-m", "4")
        self.assertEqual(found["fits"]["sizes"], "recipe")
        for policy in policies.values():
            self.assertGreaterEqual(policy["fit"]["times"], 2)
            self.assertEqual(policy["fit"]["microbatch"], 4 * policy["fit"]["times"])
        self.assertLess(policies["native"]["fit"]["times"], 3)
        text = run("compare", SNAPSHOT, self.double, "-p", "native,pleat", "-d", device,
                   "-m", "4").stdout
        self.assertIn("by the sizes of 2 recordings", text)
        self.assertRegex(text, r"\nfits: the largest microbatch in .*, where the first recording's is 4\n")
        self.assertTrue(text.startswith(f"The job as {SNAPSHOT} has it; the other recording says how its sizes grow:\n"), text)
        self.assertNotIn("The job as", run("compare", SNAPSHOT, "-p", "native", "--no-fit").stdout)
        # Of one recording too: nobody trains with 6.6 samples.
        _, alone = compare(SNAPSHOT, "-p", "native,pleat", "-d", "20GiB", "-m", "3")
        for policy in alone.values():
            self.assertIsInstance(policy["fit"]["microbatch"], int)
            self.assertAlmostEqual(policy["fit"]["times"], policy["fit"]["microbatch"] / 3, places=6)
        # Said of both, the numbers are held against the sizes.
        _, both = compare(SNAPSHOT, self.double, "-p", "native,pleat", "-d", device, "-m", "4,8")
        for name, policy in both.items():
            self.assertEqual(policy["fit"], policies[name]["fit"])
        wrong = run("compare", SNAPSHOT, self.double, "-p", "native", "-m", "8,4", status=3).stderr
        self.assertIn("x is given as 8 in trace 1 and as 4 in trace 2, whose sizes are 2 times the former's", wrong)
        for numbers, said in (("2.5", "whole numbers from 1 to 1000000 with commas between them, not '2.5'"),
                              ("0", "not '0'"), ("4,", "not '4,'"), ("1000001", "not '1000001'"),
                              ("2,4", "--microbatch has 2 numbers for 1 trace: give one of each, or the first one's")):
            self.assertIn(said, run("compare", SNAPSHOT, "-m", numbers, status=2).stderr)
        # What is the same job at the same microbatch, or another job, shows no growth.
        self.assertIn("all were recorded at one microbatch and length: record the job at another one",
                      run("compare", SNAPSHOT, SNAPSHOT, "-p", "native", status=3).stderr)

    def test_what_it_says_at_the_end(self):
        last = lambda *a: run("compare", SNAPSHOT, "-p", "native,pleat", *a).stdout.splitlines()[-1]
        self.assertRegex(last("--no-fit"), r"^Pleat holds this job in 9\.4\d+ GiB where PyTorch's "
                                           r"native allocator takes 10\.432 GiB: .* less\.$")
        self.assertRegex(last("-d", "12GiB"), r"The microbatch can be .* x instead of .* x\.$")
        text = run("compare", SNAPSHOT, "-p", "native,pleat", "-B", "9700MiB").stdout
        self.assertIn("native ran out of memory at request", text)
        self.assertRegex(text, r"\nnative( +\d+\.\d+ GiB){3} +\d+\.\d+ %( +-){4} .*out of memory")
        self.assertIn("runs out of memory under PyTorch's native allocator; under Pleat it takes",
                      text.splitlines()[-1])
        self.assertIn("does not fit under Pleat", last("-B", "5GiB"))
        # It was said that it could be smaller, or not grow.
        self.assertRegex(last("-B", "8GiB"), r"does not fit under Pleat with this much memory\. The microbatch must shrink "
                                             r"to 0\.\d x, and to 0\.\d x under the native allocator\.$")
        # A plan larger than the device is one more way to run out.
        text = run("compare", SNAPSHOT, "-p", "stweaver", "-d", "5GiB", "--no-fit").stdout
        self.assertIn("* follows a plan made beforehand, of this very recording", run("compare", SNAPSHOT, "--no-fit").stdout)
        self.assertRegex(text, r"stweaver ran out of memory .*: the plan takes 9\d+\.\d+ MiB of the device's 5120\.00 MiB")

    def test_only_a_plan_that_is_followed_is_marked(self):
        """A plan that only answers questions was marked as followed."""
        moe, lost, kept = (os.path.join(self.folder.name, name) for name in ("moe.pickle", "lost.plan", "kept.plan"))
        here.draw(moe, "--seed", 9, "--family", "moe")
        for path, plan, followed in ((moe, lost, False), (SNAPSHOT, kept, True)):
            run("plan", path, "-o", plan)
            _, told = compare(path, "-P", plan, "-p", "stweaver,pleat", "--no-fit")
            self.assertEqual(told["pleat"]["planned_beforehand"], followed)
            self.assertTrue(told["stweaver"]["planned_beforehand"])
            text = run("compare", path, "-P", plan, "-p", "stweaver,pleat", "--no-fit").stdout
            self.assertEqual("pleat *" in text, followed)
            self.assertEqual("is not followed: 'pleat plan' of its recording says why" in text, not followed)
            self.assertIn("* follows a plan made beforehand, stweaver of this very recording; the others" if followed else
                          "* follows a plan made beforehand, of this very recording; the others", text)

    def test_virtual_memory_is_counted_when_it_is_mapped(self):
        """It was looked at between iterations: a job that was refused in one had more physical memory."""
        for policy in ("native", "pleat"):
            _, told = compare(SNAPSHOT, "-p", policy, "-B", "9640MiB", "--no-fit")
            self.assertGreaterEqual(told[policy]["virtual_bytes"], told[policy]["peak_physical_bytes"])

    def on_terminal(self, *arguments):
        """What a command says on a terminal while it works."""
        end, other = pty.openpty()
        job = subprocess.Popen([PLEAT, *arguments], stdout=subprocess.DEVNULL, stderr=other)
        os.close(other)
        seen = b""
        while True:
            try:
                got = os.read(end, 65536)
            except OSError:  # the other end is closed
                break
            if not got:
                break
            seen += got
        self.assertEqual(job.wait(), 0)
        os.close(end)
        return seen

    def test_where_there_is_no_bar_there_are_seconds(self):
        table = os.path.join(self.folder.name, "many.csv")
        with open(table, "w", encoding="utf-8") as rows:
            rows.write("id,lower,upper,size\n")
            rows.writelines(f"{i},{i},{i + 1 + i * 7919 % 2000},{512 * (1 + i * 104729 % 4000)}\n" for i in range(250000))
        seen = self.on_terminal("plan", table, "--no-replay")
        self.assertRegex(seen, rb"\r\033\[Kplan +\w+ +\d s")
        self.assertTrue(seen.endswith(b"\r\033[K"))

    def test_one_bar_stands_for_all_the_work(self):
        """On a terminal, where the work takes over a second; it never goes back."""
        seen = self.on_terminal("compare", SNAPSHOT, "-c", "-p", "native,pleat")
        shares = [int(share) for share in re.findall(rb"(\d+) %", seen)]
        self.assertEqual(shares, sorted(shares))
        if shares:
            self.assertTrue(seen.endswith(b"\r\033[K"))

    def test_every_subcommand_takes_a_snapshot(self):
        plan = os.path.join(self.folder.name, "job.plan")
        other = os.path.join(self.folder.name, "job.csv")
        run("import", SNAPSHOT)
        run("plan", SNAPSHOT, "-o", plan)
        run("verify", plan, "--trace", SNAPSHOT)
        run("replay", SNAPSHOT, "-P", plan)
        run("compare", SNAPSHOT, "-p", "native", "--no-fit")
        run("explain", SNAPSHOT)
        run("report", SNAPSHOT, "--json", "-p", "native", "-P", plan)
        run("export", SNAPSHOT, "-f", "csv", "-o", other)
        # And what import writes of it, and a table of lifetimes.
        trace = os.path.join(self.folder.name, "job.trace")
        run("import", SNAPSHOT, "-o", trace)
        for recording in (trace, other):
            run("replay", recording, "-p", "native")
            said = run("compare", recording, "-p", "native", "--no-fit").stdout
            # A table is one iteration, the recording has three.
            self.assertEqual("The recording has 1 whole iteration: " in said, recording == other)
            self.assertEqual("Record five" in said, recording == other)
            run("explain", recording)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
