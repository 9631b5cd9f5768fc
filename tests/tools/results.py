"""tools/results: the page says what the command says of the tree as it is.

usage: results.py RESULTS PLEAT JOB
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import unittest

import here

RESULTS, PLEAT, JOB = sys.argv[1:4]
run = here.runs_python(RESULTS, "--pleat", PLEAT, "--recordings", "nowhere")


def pleat(*arguments):
    done = subprocess.run([PLEAT, *map(str, arguments)], capture_output=True, text=True, check=True)
    return done.stdout


class Results(here.Folder):
    def setUp(self):
        super().setUp()
        self.page = self.folder / "page.md"

    def rows(self, job):
        """The cells of each row that begins so."""
        return [[cell.strip() for cell in line.split("|")[2:-1]]
                for line in self.page.read_text(encoding="utf-8").splitlines()
                if line.startswith("| %s |" % job)]

    def test_the_page_is_of_this_command(self):
        done = run("--no-sizes", "--seeds", 18, "-o", self.page)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("they are left out", done.stdout)
        memory, efficiency, calls, bare = self.rows("bundled")
        native = json.loads(pleat("replay", JOB, "--policy", "native", "--json"))
        learned = json.loads(pleat("replay", JOB, "--json"))
        self.assertEqual(memory[0], "%.3f" % (native["peak_live_bytes"] / 2**30))
        self.assertEqual(memory[1], "%.3f" % (native["peak_physical_bytes"] / 2**30))
        self.assertEqual(efficiency[0], "%.4f" % native["efficiency"])
        self.assertEqual(efficiency[4], "%.4f" % learned["efficiency"])
        self.assertEqual((len(calls), len(bare)), (6, 6))
        self.assertEqual(bare[:3], efficiency[:3])  # they hear of no labels
        (drawn,) = self.rows("learned")
        self.assertEqual((drawn[0], len(set(drawn[1:]))), ("1", 1))
        text = self.page.read_text(encoding="utf-8")
        self.assertRegex(text, r"of commit [0-9a-f]{7,}|of commit unknown")
        self.assertNotIn("## Other sizes", text)

    def test_a_command_that_fails_leaves_the_page(self):
        self.page.write_text("as it was")
        for path in (os.environ["PATH"], "/no/git/here"):
            done = subprocess.run([sys.executable, "-B", RESULTS, "--pleat", "/bin/false", "--recordings",
                                   "nowhere", "-o", str(self.page)], capture_output=True, text=True,
                                  check=False, env=dict(os.environ, PATH=path))
            self.assertEqual(done.returncode, 2)
            self.assertIn("tools/results: pleat import", done.stderr)
            self.assertEqual(self.page.read_text(), "as it was")

    def test_the_page_kept_names_its_commit(self):
        kept = pathlib.Path(RESULTS).parent.parent / "docs/results.md"
        self.assertIsNotNone(re.search(r"of commit [0-9a-f]{7,}\. ", kept.read_text(encoding="utf-8")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
