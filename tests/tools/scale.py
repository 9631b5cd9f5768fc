"""tools/scale: a job of many ranks shares plans, and is told of once.

usage: scale.py SCALE PLEAT
"""

import json
import sys
import tempfile
import unittest

import here

SCALE, PLEAT = sys.argv[1:3]
run = here.runs_python(SCALE, "--pleat", PLEAT)


class Scale(unittest.TestCase):
    def test_ranks_share_what_is_equal(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run("--ranks", "60", "--groups", "2", "--folder", folder, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual((found["saving"]["written"], found["saving"]["names"]), (2, 62))
        # Two plans, rounded up to the disk's blocks.
        self.assertLess(found["saving"]["bytes"], found["planning"]["bytes"] + 2 * 4096)
        self.assertEqual(found["ending"]["names"], 60)
        self.assertLess(found["ending"]["looked"], 60 * 10)
        self.assertIn("pleat: 60 ranks: ", found["ending"]["said"])
        self.assertIn("the same memory in ranks 0-29; ranks 30-59", found["ending"]["said"])

    def test_the_table_is_of_what_was_measured(self):
        done = run("--ranks", "2", "--groups", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("plans of 2 ranks", done.stdout)

    def test_what_cannot_be_is_said(self):
        self.assertEqual(run("--ranks", "3", "--groups", "4").returncode, 2)
        done = run("--ranks", "2", "--groups", "1", "--folder", "/no/such")
        self.assertEqual((done.returncode, done.stderr), (1, "tools/scale: there is no folder '/no/such'\n"))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
