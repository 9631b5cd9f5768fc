"""Tests of `pleat explain`: explain.py PLEAT SNAPSHOT."""

import json
import subprocess
import sys
import unittest

PLEAT, SNAPSHOT = sys.argv[1:3]


def run(*arguments):
    return subprocess.run([PLEAT, *arguments], capture_output=True, text=True, check=False)


class Explain(unittest.TestCase):
    def test_words_carry_the_figures(self):
        text = run("explain", SNAPSHOT)
        self.assertEqual(text.returncode, 0, text.stderr)
        ran = run("explain", SNAPSHOT, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        told = json.loads(ran.stdout)
        native = {p["policy"]: p for p in told["policies"]}["native"]
        self.assertIn(f"{told['max_live_bytes'] / 2**30:.3f} GiB are live at once", text.stdout)
        self.assertIn(f"It takes {native['peak_physical_bytes'] / 2**30:.3f} GiB", text.stdout)
        self.assertIn(f"event {native['peak_at']}, iteration", text.stdout)
        self.assertLessEqual(native["split_growths"], native["growths"])
        self.assertGreater(native["split_bytes"], 0)
        # What is beyond max-live is what it grew for there, to the byte, and no more.
        blamed = native["beyond_by"]
        beyond = native["peak_physical_bytes"] - told["max_live_bytes"]
        self.assertLessEqual(sum(g["bytes"] for g in blamed), beyond)
        self.assertGreater(sum(g["bytes"] for g in blamed), beyond // 2)
        self.assertLessEqual(native["split_bytes"], beyond)
        self.assertEqual([g["bytes"] for g in blamed],
                         sorted((g["bytes"] for g in blamed), reverse=True))
        self.assertIn(f"{blamed[0]['count']} of {blamed[0]['size'] / 2**20:.3f} MiB", text.stdout)
        growth = told["growth"]
        self.assertGreaterEqual(growth["pleat_times"], growth["native_times"])
        self.assertIn(f"Under Pleat the microbatch can be {growth['pleat_times']:.3g} times", text.stdout)
        self.assertIn("the recording does not say what its device has", text.stdout)
        for advice in told["advice"]:
            self.assertIn(advice["text"], text.stdout)

    def test_measured_savings_are_those_of_the_replays(self):
        told = json.loads(run("explain", SNAPSHOT, "--json").stdout)
        held = {p["policy"]: p["peak_physical_bytes"] for p in told["policies"]}
        saved = {a["what"]: a["saved_bytes"] for a in told["advice"]}
        for policy in ("pleat", "expandable"):
            self.assertEqual(saved[policy], held["native"] - held[policy])
        self.assertEqual(saved["plan"], held["native"] - told["plan"]["physical_bytes"])
        self.assertEqual(saved["split"], held["native"] - told["growth"]["half_physical_bytes"])
        self.assertGreater(told["growth"]["half_physical_bytes"], held["native"] // 2)
        hows = {a["what"]: a["how"] for a in told["advice"]}
        self.assertEqual(hows["recompute"], "at most")
        # Of one recording sizes at another microbatch are assumed.
        self.assertEqual(hows["split"], "estimated")
        savings = [a["saved_bytes"] for a in told["advice"]]
        self.assertEqual(savings, sorted(savings, reverse=True))

    def test_a_job_that_does_not_fit(self):
        """What the native allocator had when it ran out is no measure of what others save."""
        for device, fits in (("9660MiB", "It fits under Pleat with a plan made beforehand (pleat plan): in 9.422 GiB."),
                             ("9GiB", "Under none of the allocators here does all of it fit: it needs 9.420 GiB")):
            text = run("explain", SNAPSHOT, "-d", device).stdout
            self.assertRegex(text, r"Does not fit in 9\.\d+ GiB\. At request \d+ of 46356:\n  out of memory: 786")
            self.assertIn(fits, text)
            self.assertIn("It fits at half the microbatch: in ", text)
            self.assertNotIn("It takes", text)
            self.assertNotIn("the recording does not say", text)
        advice = json.loads(run("explain", SNAPSHOT, "-d", "9GiB", "--json").stdout)["advice"]
        self.assertEqual({a["what"] for a in advice}, {"recompute", "offload"})
        self.assertIn("Under Pleat no microbatch fits, not even a tenth",
                      run("explain", SNAPSHOT, "-d", "2MiB").stdout)

    def test_bad_use(self):
        for arguments in [[], [SNAPSHOT, "-d", "much"], [SNAPSHOT, "--none"]]:
            self.assertEqual(run("explain", *arguments).returncode, 2, arguments)
        self.assertEqual(run("explain", __file__).returncode, 3)
        self.assertIn("usage: pleat explain", run("explain", "--help").stdout)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
