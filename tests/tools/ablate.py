"""tools/ablate: it finds the switches of `pleat conf`, and says what each is worth.

usage: ablate.py ABLATE PLEAT
"""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import here

ABLATE, PLEAT = sys.argv[1:3]
run = here.runs_python(ABLATE, "--pleat", PLEAT)


def figures(efficiency, driver_ms=0.0, ended=True):
    return {"efficiency": efficiency, "steady_efficiency": efficiency, "driver_ms": driver_ms,
            "driver_aside_ms": 0.0, "driver_job_ms": driver_ms, "peak_physical_bytes": 1,
            "planned_share": 0, "processor_seconds": 0.001, "ended": ended}


class Ablate(unittest.TestCase):
    def test_switches_are_those_that_are_on(self):
        text = ("learn      on     follow the iteration\n"
                "canary     off    prove it\n"
                "check      on     check it; off only to test that overlaps are seen\n"
                "spare      5      thousandths; 0: none\n"
                "collect    0      percent; 0: never\n"
                "log_ms     20     milliseconds between its records\n"
                "log               write the footprint\n")
        self.assertEqual(here.load(ABLATE).switches(text), ["learn:off", "spare:0"])

    def test_this_build_has_switches(self):
        conf = subprocess.run([PLEAT, "conf"], capture_output=True, text=True, check=True).stdout
        self.assertIn("learn:off", here.load(ABLATE).switches(conf))

    def test_a_row_says_what_it_is_worth(self):
        ablate = here.load(ABLATE)
        row = ablate.row_of("x:off", "learning", {"a": (figures(0.99), figures(0.98)),
                                                  "b": (figures(0.99), figures(0.99, 2.0)),
                                                  "c": (figures(0.98), figures(0.99)),
                                                  "d": (figures(0.9), figures(0.9, ended=False))})
        self.assertEqual(row[:5], ("x:off", "learning", "3 of 3", "1", "-0.0100 +0.0000 +0.0100"))
        self.assertEqual(row[6], "+0.00 +0.00 +2.00")
        self.assertEqual(row[-1], "+a -c")
        self.assertIsNone(ablate.row_of("x:off", "learning", {}))

    def test_what_changes_nothing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a.json")
            done = run("--golden", "made-up-microbatches", "--json", path, "--without", "learn:off", "log_ms:21")
            self.assertEqual(done.returncode, 0, done.stderr)
            with open(path, encoding="utf-8") as file:
                (rows,) = json.load(file).values()
        self.assertTrue(done.stdout.endswith("driver's time: log_ms:21\n"), done.stdout)
        self.assertEqual({row["without"] for row in rows}, {"learn:off", "log_ms:21"})
        learning = [row for row in rows if row["without"] == "learn:off" and row["way"] == "learning"]
        self.assertGreater(learning[0]["with"]["planned_share"], 0)
        self.assertEqual(learning[0]["figures"]["planned_share"], 0)

    def test_a_file_that_cannot_be_written_is_refused_before_the_work(self):
        for path in ("/no/such/folder/a.json", "/", ""):
            done = run("--golden", "made-up-microbatches", "--json", path)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn("argument --json: '%s' cannot be written" % path, done.stderr)

    def test_a_setting_that_is_none_is_refused(self):
        done = run("--golden", "made-up-lengths", "--without", "none:off")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("none", done.stderr)
        done = run("--golden", "none")
        self.assertEqual(done.returncode, 2, done.stdout)
        self.assertIn("there is no job 'none'", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
