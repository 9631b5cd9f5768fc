"""`pleat plans` and the setting keep, by the command: plans.py PLEAT JOB.

Two runs of a recorded job, the second of which follows what the first one left; what the command says of it,
and removes; several runs at once.
"""

import json
import os
import subprocess
import sys
import unittest

import here

PLEAT, JOB = sys.argv[1:3]
del sys.argv[1:3]


class Plans(here.Folder):
    def setUp(self):
        super().setUp()
        self.environment = dict(os.environ, XDG_CACHE_HOME=self.folder)

    def run_it(self, *arguments, **environment):
        return subprocess.run([PLEAT, *arguments], capture_output=True, text=True,
                              env={**self.environment, **environment})

    def replay(self, keep="on"):
        done = self.run_it("replay", JOB, "--json", PLEAT_CONF="keep:" + keep)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def plans(self):
        return json.loads(self.run_it("plans", "--json").stdout)["plans"]

    def test_a_second_run_has_the_saved_plans_figures(self):
        self.assertEqual(self.replay("off")["kept_plans"], 0)
        self.assertEqual(self.plans(), [])
        first, second = self.replay(), self.replay()
        self.assertEqual((first["kept_plans"], second["kept_plans"], second["left_at"]), (0, 1, 0))
        (plan,) = self.plans()
        self.assertEqual(second["peak_physical_bytes"], plan["physical_bytes"])
        self.assertEqual(plan["takes_bytes"], max(plan["physical_bytes"], plan["max_live_bytes"]))
        self.assertLess(second["peak_physical_bytes"], first["peak_physical_bytes"])
        self.assertEqual(second["planned"] + second["lane"], second["requests"])

    def test_a_path_is_not_broken(self):
        """However narrow the lines are: it is there to be copied."""
        folder = os.path.join(self.folder, "a-folder-of-plans-whose-name-is-longer", "than-a-line-of-a-terminal-has-columns")
        self.environment["XDG_CACHE_HOME"] = folder
        self.assertRegex(self.run_it("plans", COLUMNS="80").stdout, rf"(?m) {folder}/pleat/plans\.$")
        self.replay()
        (plan,) = self.plans()
        shown = self.run_it("plans", "show", plan["plan"], COLUMNS="80").stdout
        self.assertRegex(shown, rf"(?m)^file       {folder}/pleat/plans/{plan['file']}$")
        self.assertRegex(self.run_it("plans", COLUMNS="80").stdout, rf"(?m) {folder}/pleat/plans,$")
        trace = os.path.join(folder, "job.trace")
        done = self.run_it("import", JOB, "-o", trace, COLUMNS="80")
        self.assertEqual(done.stdout.splitlines()[-1], "written to " + trace)

    def test_what_is_there_is_listed_shown_and_removed(self):
        said = self.run_it("plans")
        self.assertIn("There are no plans", said.stdout)
        self.replay()
        (plan,) = self.plans()
        self.assertIn("replay", plan["program"])
        self.assertIn(plan["plan"], self.run_it("plans").stdout)
        shown = self.run_it("plans", "show", plan["plan"][:5]).stdout
        path = next(line.split(None, 1)[1] for line in shown.splitlines() if line.startswith("file"))
        self.assertEqual(self.run_it("verify", path).returncode, 0)
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertEqual(json.loads(self.run_it("plans", "show", plan["plan"], "--json").stdout), plan)
        self.assertEqual(self.run_it("plans", "remove", plan["plan"]).returncode, 0)
        self.assertEqual(self.plans(), [])
        self.replay()
        self.assertEqual(self.run_it("plans", "remove", "--all").returncode, 0)
        self.assertEqual(self.plans(), [])

    def test_no_name_is_no_plans_name(self):
        """It was the only plan's, which a script with an empty variable removed."""
        self.replay()
        for verb in ("show", "remove"):
            done = self.run_it("plans", verb, "")
            self.assertEqual((done.returncode, done.stdout), (3, ""))
            self.assertIn("there is no plan ''", done.stderr)
        self.assertEqual(len(self.plans()), 1)

    def test_what_cannot_be_read_is_not_shown(self):
        """As an object it once ended with 0."""
        self.replay()
        (plan,) = self.plans()
        with open(os.path.join(self.folder, "pleat/plans", plan["file"]), "r+b") as file:
            file.truncate(plan["file_bytes"] // 2)
        self.assertIn("why_not", self.plans()[0])
        for form in ((), ("--json",)):
            done = self.run_it("plans", "show", plan["plan"], *form)
            self.assertEqual((done.returncode, done.stdout), (3, ""))

    def test_bad_use_is_said(self):
        for words, code in ((("show",), 2), (("remove",), 2), (("remove", "x", "--all"), 2), (("nosuch",), 2),
                            (("show", "nosuch"), 3), (("remove", "nosuch"), 3), (("--all",), 2)):
            done = self.run_it("plans", *words)
            self.assertEqual((done.returncode, done.stderr != ""), (code, True), words)
        os.makedirs(self.path("pleat/plans"))
        os.chmod(self.path("pleat/plans"), 0o777)
        done = self.run_it("plans")
        self.assertEqual(done.returncode, 3)
        self.assertIn("chmod go-w", done.stderr)
        self.assertEqual(self.replay()["kept_plans"], 0)

    def test_who_asks_for_plans_hears_that_they_have_no_place(self):
        """Once, and nobody else does."""
        done = self.run_it("replay", JOB, "--json", PLEAT_CONF="keep:on", XDG_CACHE_HOME="/dev/null/x")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stderr, r"\Apleat: keep:on keeps no plan: '/dev/null/x/pleat/plans' cannot .*\n\Z")
        self.assertEqual(json.loads(done.stdout)["kept_plans"], 0)
        self.assertEqual(self.run_it("replay", JOB, "--json", XDG_CACHE_HOME="/dev/null/x").stderr, "")

    def test_runs_at_once_do_one_another_no_harm(self):
        environment = dict(self.environment, PLEAT_CONF="keep:on")
        running = [subprocess.Popen([PLEAT, "replay", JOB, "--json"], env=dict(environment, RANK=str(rank)),
                                    stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for rank in (0, 0, 1)]
        for each in running:
            self.assertEqual(each.communicate()[1], b"")
            self.assertEqual(each.returncode, 0)
        self.assertEqual(len(self.plans()), 2)  # one a rank
        self.assertTrue(all("why_not" not in plan for plan in self.plans()))
        self.assertEqual(self.replay()["left_at"], 0)

    def test_a_changed_job_is_noticed(self):
        done = subprocess.run([sys.executable, "-B", str(here.ROOT / "tools/kept"), "--only", "larger batch",
                               "--only", "recomputation", "--job", "layers=4", "--job", "hidden=512", "--job", "heads=8",
                               "--job", "vocabulary=32000", "--noticed-only"], capture_output=True, text=True,
                              env=dict(self.environment, PLEAT_COMMAND=PLEAT))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main()
