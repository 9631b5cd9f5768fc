"""tools/mutants: each of its changes still fits the sources, and breaks one line of what a test is there for.

usage: mutants.py MUTANTS. That the tests notice takes minutes: `tools/mutants` itself.
"""

import collections
import re
import runpy
import subprocess
import sys
import unittest

from here import ROOT  # first: it knows where the tests are
import suite

PROGRAM = sys.argv[1]
RULES = ("free-check", "pending", "handover", "budget", "quarantine", "proof", "torch", "gmlake", "stweaver",
         "period", "recipe", "trim", "pause", "spill", "limits", "log", "link", "shadow", "ledger")


def run(*arguments):
    return subprocess.run([sys.executable, "-B", PROGRAM, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class Mutants(unittest.TestCase):
    def rows(self):
        return [line.split(None, 3) for line in run("--list").stdout.splitlines()]

    def test_every_change_fits_the_sources(self):
        done = run("--check")
        self.assertEqual((done.returncode, done.stdout), (0, ""))

    def test_a_change_that_does_not_compile_is_told(self):
        sys.path.insert(0, str(ROOT / "tools"))
        tools = runpy.run_path(PROGRAM)
        source = "plan/model/unroll.c"
        words = ["cc", "-std=c17", "-D_GNU_SOURCE", "-Wall", "-Werror", "-I%s" % ROOT, "-I%s/include" % ROOT]
        # Well; with a name that there is not; with a function that nothing calls any more.
        for new, said in (("is_possible(plan)", None), ("possible(plan)", "made-up does not compile"),
                          ("true", "made-up does not compile")):
            mutant = tools["Mutant"]("made-up", "", source, "plan->chunk_bytes && is_possible(plan)",
                                     "plan->chunk_bytes && " + new, "")
            found = tools["uncompilable"](mutant, {source: [*words, "-o", "unroll.o", "-c", source]})
            self.assertEqual(found and found.split(":")[0], said, found)

    def test_there_are_thirty_and_some_of_every_rule(self):
        rows = self.rows()
        self.assertGreaterEqual(len(rows), 30)
        self.assertEqual(len({row[0] for row in rows}), len(rows))
        for rule in RULES:
            self.assertTrue([row for row in rows if row[0].startswith(rule)], rule)

    def test_every_area_is_listed_and_has_its_own_sources(self):
        areas = {path.name: runpy.run_path(str(path))["MUTANTS"] for path in (ROOT / "tools/mutating").glob("*.py")}
        self.assertEqual(sorted(row[0] for rows in areas.values() for row in rows), sorted(row[0] for row in self.rows()))
        of = collections.defaultdict(set)
        for name, rows in areas.items():
            for row in rows:
                of[row[2]].add(name)
        self.assertEqual({source: names for source, names in of.items() if len(names) > 1}, {})

    def test_every_test_is_there(self):
        lists = "".join(path.read_text() for path in (ROOT / "tests").rglob("CMakeLists.txt"))
        for name, count in collections.Counter(row[1] for row in self.rows()).items():
            self.assertTrue(re.search(r"NAME %s\b|\(%s\b" % (name, name), lists), "%s, of %d mutants" % (name, count))

    def test_an_unknown_name_is_an_error(self):
        done = run("no-such-mutant")
        self.assertEqual(done.returncode, 2)
        self.assertIn("there is no mutant no-such-mutant", done.stdout)


if __name__ == "__main__":
    suite.main()
