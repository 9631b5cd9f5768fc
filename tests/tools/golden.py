"""tools/golden: the figures kept in tests/golden hold, and a figure that does not is found.

usage: golden.py GOLDEN PLEAT
"""

import json
import sys
import unittest

import here

GOLDEN, PLEAT = sys.argv[1:3]
NOWHERE = "no-such-folder"
run = here.runs_python(GOLDEN, "--pleat", PLEAT, "--recordings", NOWHERE)


class Golden(unittest.TestCase):
    def test_the_figures_kept_are_those_of_this_build(self):
        done = run("check")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("they are left out", done.stdout)

    def test_every_difference_is_a_row(self):
        golden = here.load(GOLDEN)
        was = json.loads(golden.golden_path("made-up-lengths").read_text())
        now = json.loads(golden.text_of(was))
        self.assertEqual(golden.differences("job", was, now), [])
        now["replays"]["learning"]["peak_live_bytes"] *= 2
        del now["plan"]["maps"]
        rows = golden.differences("job", was, now)
        self.assertEqual([row[1:3] for row in rows], [("plan", "maps"), ("learning", "peak_live_bytes")])
        self.assertEqual((rows[0][4], rows[1][5]), ("-", "+100 %"))

    def test_a_job_that_has_no_file_is_told(self):
        golden = here.load(GOLDEN)
        rows = golden.differences("job", {}, {"plan": {"maps": 1}})
        self.assertEqual(rows, [("job", "plan", "maps", "-", "1", "")])

    def test_a_job_drawn_otherwise_is_not_compared(self):
        golden = here.load(GOLDEN)
        golden.golden_of = lambda name: {"job": "a", "plan": {"maps": 1}}
        self.assertTrue(golden.is_another("drawn-x", {"job": "b", "plan": {"maps": 2}}))
        self.assertFalse(golden.is_another("drawn-x", {"job": "a", "plan": {"maps": 2}}))
        self.assertFalse(golden.is_another("made-up-x", {"plan": {"maps": 2}}))
        self.assertEqual(golden.check({"drawn-x": {"job": "b", "plan": {"maps": 2}}}), 0)
        self.assertEqual(golden.check({"drawn-x": {"job": "a", "plan": {"maps": 2}}}), 1)

    def test_a_drawn_job_is_of_the_family_that_it_is_there_for(self):
        golden = here.load(GOLDEN)
        for family, seed in golden.jobs.DRAWN:
            done = here.run_python(here.DRAWN, "--seed", seed, "--iterations", 5, "--describe")
            self.assertEqual(json.loads(done.stdout)["family"], family, seed)

    def test_refuses_what_it_does_not_know(self):
        self.assertIn("there is no job 'none'", run("check", "none").stderr)
        self.assertIn("there is no job 'none'", run("check", "--jobs", "1", "none").stderr)
        self.assertIn("'0' is not 1 or more", run("check", "--jobs", "0", "none").stderr)
        done = run("check", "made-up-lengths", "--pleat", "/none")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no command /none", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
