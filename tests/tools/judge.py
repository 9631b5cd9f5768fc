"""tools/judge: what must hold holds on drawn jobs, and what does not is found.

usage: judge.py JUDGE PLEAT [jobs]

With `jobs`, twenty seeds that stand still and five that nobody has seen are judged, by the rules of
HARD; what falls short of others is printed. Without it only the judge itself is tested.
"""

import argparse
import collections
import json
import os
import sys
import tempfile
import types
import unittest

import here  # first: it knows where the tools are
from judging import choose, jobs, replays, rules, tables, trials

JUDGE, PLEAT = sys.argv[1:3]
JOBS = "jobs" in sys.argv[3:]
SEEDS, FRESH = "1..20", "5"
# Rules that hold today, on any job. The others but the last two (tools/judge --help), which are of
# measured times and may fail on a busy machine, come here when they do.
HARD = "refused"

run = here.runs_python(JUDGE, "--pleat", PLEAT)


def figures(**others):
    """Of a replay with which nothing is wrong."""
    good = {"ended": True, "efficiency": 0.999, "steady_efficiency": 0.999, "driver_share": 0.0,
            "recorded_seconds": 1.0, "processor_seconds": 0.001, "longest_calls_us": [150.0, 20.0, 10.0]}
    return dict(good, **others)


def answer(name="job", **ways):
    """Of a job whose ways are all good but those given, by their names with _ for what is no letter."""
    found = {}
    for way in replays.WAYS:
        key = way.name.replace(", ", "_")
        found[way.name] = figures(**ways.get(key, {}))
    return {"job": name, "ways": found, "none": {}}


def short(answers, name):
    (verdict,) = [one for one in rules.judge(answers) if one.name == name]
    return verdict


class Choice(unittest.TestCase):
    def test_each_seed_is_a_job_once(self):
        options = types.SimpleNamespace(seeds=choose.seeds("7,3,7"), fresh=0)
        self.assertEqual(choose.seeds_of(options, "judge"), [7, 3])

    def test_a_job_is_as_long_as_the_tool_says_or_as_it_is_asked_for(self):
        for asked, default, found in (([], 32, 32), (["--iterations", "9"], 32, 9), ([], None, None),
                                      (["--iterations", "drawn"], 32, None)):
            parser = argparse.ArgumentParser()
            choose.add_options(parser, default)
            self.assertEqual(parser.parse_args(asked).iterations, found, asked)
        self.assertIn("[32]", run("--help").stdout)


class Rules(unittest.TestCase):
    def test_nothing_wrong_holds(self):
        self.assertTrue(all(one.holds for one in rules.judge([answer("a"), answer("b")])))
        self.assertEqual({one.about for one in rules.judge([answer("a"), answer("b")])}, {8})
        self.assertEqual([one.name for one in rules.judge([answer()])], list(rules.NAMES))

    def test_below_the_heap_alone(self):
        worse = answer(learning_unmarked={"steady_efficiency": 0.9969})
        verdict = short([answer("good"), worse], "heap")
        self.assertFalse(verdict.holds)
        self.assertEqual(verdict.short, [("job", "learning, unmarked", "steady efficiency 0.9969, not 0.9990")])
        self.assertTrue(short([answer(learning={"efficiency": 0.9971})], "heap").holds)

    def test_below_expandable_segments(self):
        worse = answer(planned={"efficiency": 0.9}, heap={"efficiency": 0.9}, expandable={"efficiency": 0.91})
        self.assertEqual([one[1] for one in short([worse], "expandable").short], ["planned"])
        without = answer(planned={"efficiency": 0.9}, expandable={"efficiency": 0.91, "ended": False})
        self.assertTrue(short([without], "expandable").holds)

    def test_distribution(self):
        low = answer("low", **{key: {"efficiency": 0.97} for key in
                               ("learning", "learning_unmarked", "planned", "planned_unmarked")})
        good = [answer(str(n)) for n in range(20)]
        self.assertTrue(short([*good, low], "fifth").holds)
        self.assertFalse(short([*good[:8], low], "fifth").holds)
        self.assertTrue(short([*good[:2], low], "median").holds)
        self.assertFalse(short([low], "median").holds)

    def test_processor_time(self):
        dear = {"learning": {"processor_seconds": 0.0051}}
        self.assertFalse(short([answer(**dear)], "processor").holds)
        self.assertTrue(short([answer(native={"processor_seconds": 0.003}, **dear)], "processor").holds)
        longer = {"learning": {"processor_seconds": 0.0051, "recorded_seconds": 1.1}}
        self.assertTrue(short([answer(**longer)], "processor").holds)
        self.assertTrue(rules.is_slow(answer(**dear)["ways"], replays.LEARNING))
        self.assertFalse(rules.is_slow(answer(**dear)["ways"], replays.PLANNED))

    def test_one_long_call_a_job(self):
        one = answer(learning={"longest_calls_us": [9000.0, 200.0, 10.0]})
        two = answer(learning={"longest_calls_us": [9000.0, 201.0, 10.0]})
        self.assertTrue(short([one], "longest").holds)
        self.assertFalse(short([two], "longest").holds)

    def test_driver_time(self):
        some = [answer(str(n)) for n in range(5)]
        much = answer("much", learning={"driver_share": 0.006})
        self.assertTrue(short([*some, much], "driver-mostly").holds)
        self.assertFalse(short([much], "driver-mostly").holds)
        self.assertTrue(short([much], "driver").holds)
        most = answer("most", planned={"driver_share": 0.016})
        self.assertFalse(short([*some, most], "driver").holds)

    def test_late_iterations_have_figures_where_there_are_any(self):
        tallied = {"driver_seconds": 3e-3, "mapper_driver_seconds": 0.0}
        timed = {"seconds": 1.0, "median_ns": 1, "p999_ns": 2}
        result = collections.defaultdict(int, steady_iteration=tallied, first_iterations=[tallied], processor=timed,
                                         steady_processor=timed, longest_calls_ns=[3, 2, 1])
        self.assertIsNone(trials.take(result)["late_driver_share"])
        result.update(late_iterations=10, late_driver_seconds=0.02, late_recorded_seconds=4.0)
        self.assertEqual(trials.take(result)["late_driver_share"], 0.005)

    def test_a_refusal_is_told(self):
        self.assertFalse(short([answer(planned={"ended": False})], "refused").holds)
        nowhere = {key: {"ended": False} for key in ("planned", "heap", "native")}
        self.assertTrue(short([answer(**nowhere)], "refused").holds)

    def test_a_replay_that_breaks_off_is_told(self):
        answers = [answer(), answer("other", planned={"ended": False, "failed": "pages 0"})]
        self.assertEqual(short(answers, "broken").short, [("other", "planned", "pages 0")])
        self.assertTrue(short(answers, "refused").holds)
        self.assertEqual([short(answers, name).about for name in ("broken", "heap")], [8, 7])

    def test_the_least_of_each_time_is_kept(self):
        first = dict.fromkeys(trials.TIMES, 2.0) | {"longest_calls_us": [9.0, 2.0, 1.0], "efficiency": 0.5}
        again = dict.fromkeys(trials.TIMES, 1.0) | {"longest_calls_us": [8.0, 3.0, 1.0], "efficiency": 0.5}
        kept = trials.least(first, again)
        self.assertEqual(kept["processor_seconds"], 1.0)
        self.assertEqual(kept["longest_calls_us"], [8.0, 2.0, 1.0])

    def test_quantiles(self):
        self.assertEqual(tables.quantile(range(100), 0.05), 5)
        self.assertEqual([tables.quantile([3, 1, 2], share) for share in (0, 0.5, 1)], [1, 2, 3])


class Trials(unittest.TestCase):
    def test_all_ways_of_a_job(self):
        with tempfile.TemporaryDirectory() as folder:
            found = trials.run(replays.Pleat(PLEAT), jobs.made(jobs.made_up.lengths), folder, rules.is_slow)
            self.assertEqual(os.listdir(folder), [])
        self.assertEqual(set(found["ways"]), {way.name for way in replays.WAYS})
        self.assertEqual({one["requests"] for one in found["ways"].values()},
                         {found["ways"]["native"]["requests"]})
        for one in found["ways"].values():
            self.assertAlmostEqual(one["efficiency"], one["peak_live_bytes"] / one["peak_physical_bytes"])
            self.assertGreater(one["processor_seconds"], 0)

    def test_a_plan_that_cannot_be_made_is_a_dash(self):
        def make(path):
            jobs.write_snapshot({"segments": [], "device_traces": [[
                {"action": "alloc", "addr": 1 << 40, "size": 4096, "stream": 0, "time_us": 1,
                 "user_metadata": ""}]]}, str(path))
        with tempfile.TemporaryDirectory() as folder:
            found = trials.run(replays.Pleat(PLEAT), jobs.written_once("one", make), folder, rules.is_slow)
        self.assertNotIn("planned", found["ways"])
        self.assertIn("planned", found["none"])
        self.assertTrue(found["none"]["planned"])


    def test_a_command_that_does_not_end_is_ended(self):
        most, replays.SECONDS_MOST = replays.SECONDS_MOST, 0.01
        self.addCleanup(setattr, replays, "SECONDS_MOST", most)
        with self.assertRaisesRegex(replays.Failed, "no end in"):
            replays.Pleat(PLEAT).run("bench", "alloc")


class Command(unittest.TestCase):
    def test_bad_use(self):
        for arguments in (["--seeds", "3..1"], ["--hard", "none"], ["--settings", "none:off"], ["--seeds", "x"], ["--fresh", "0"], ["--iterations", "0"],
                          ["--iterations", "as drawn"], ["--none"]):
            self.assertEqual(run(*arguments).returncode, 2, arguments)

    def test_a_seed_is_the_same_job_each_time(self):
        with tempfile.TemporaryDirectory() as folder:
            said = []
            for name in ("a.json", "b.json"):
                path = os.path.join(folder, name)
                done = run("--seeds", "18", "--iterations", "4", "--json", path)
                self.assertIn(done.returncode, (0, 1), done.stderr)
                with open(path, encoding="utf-8") as file:
                    (found,) = json.load(file)["jobs"]
                said.append({way: [one[key] for key in ("requests", "efficiency", "driver_ms")]
                             for way, one in found["ways"].items()})
        self.assertEqual(said[0], said[1])

    @unittest.skipUnless(JOBS, "the drawn jobs are judged at full speed only")
    def test_what_must_hold_holds(self):
        done = run("--seeds", SEEDS, "--fresh", FRESH, "--iterations", "drawn", "--hard", HARD)
        print(done.stdout)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
