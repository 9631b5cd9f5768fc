"""Tests of `pleat explain --budget`: explain_budget.py PLEAT.

A made-up recording of a model of four blocks, each computed again in backward, whose bytes are known.
"""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import unittest

import here  # first: it knows where the tests are
import suite
from judging import made_up

PLEAT = sys.argv[1]
MIB = 1 << 20
BLOCKS, WEIGHTS, SAVED, WORK, OUTPUT = 4, 64 * MIB, 40 * MIB, 8 * MIB, 4 * MIB


class Recording(made_up.Job):
    """A torch snapshot of iterations whose blocks are computed again, as they are recorded."""

    def __init__(self):
        super().__init__(seed=0)

    def iteration(self, number, saved, again=True, microbatches=1, attention=0, sums=0, sums_behind=False,
                  handed=False):
        """`attention`: of what a block saves, what attention leaves. `sums`: a workspace in the operator that reads what
        a block saves, whose result lasts; with `sums_behind` in the next one. `handed`: the next block's gradient is
        made of this one's, before the workspace comes."""
        biases = []
        for _ in range(microbatches):
            outputs, following = [], None
            for b in range(BLOCKS):
                self.label = "iter=%d;phase=block.%d" % (number, b)
                work = self.take(WORK)
                outputs.append(self.take(OUTPUT))
                self.give(work)
            for b in reversed(range(BLOCKS)):
                kept = None
                if again:
                    self.label = "iter=%d;phase=block.%d.again" % (number, b)
                    work = self.take(WORK)
                    kept = [self.take(saved[b] - attention)]
                    if attention:
                        self.label += ".attention"
                        inner = self.take(WORK)
                        kept.append(self.take(attention))
                        self.give(inner)
                        self.label = self.label[:-len(".attention")]
                    self.give(work)
                self.label = "iter=%d;phase=B" % number
                gradient = following or self.take(OUTPUT)
                work = self.take(WORK) if handed else None
                for one in kept or ():
                    self.give(one)
                following = self.take(OUTPUT) if handed and b > 0 else None
                if sums_behind:
                    self.give(gradient)
                if sums:
                    biases.append(self.take(512))
                    self.give(self.take(sums))
                if work:
                    self.give(work)
                if not sums_behind:
                    self.give(gradient)
                self.give(outputs.pop())
        for one in biases:
            self.give(one)

    def write(self, path):
        segment = dict(device=0, address=1 << 40, total_size=1 << 40, stream=0, segment_type="large",
                       segment_pool_id=(0, 0), is_expandable=False, frames=[], blocks=[])
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[segment], device_traces=[self.events]), file, 4)


def run(*arguments):
    return subprocess.run([PLEAT, "explain", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


class Budget(unittest.TestCase):
    def written(self, made):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = os.path.join(folder.name, "job.pickle")
        made.write(path)
        return path

    def recording(self, saved=(SAVED,) * BLOCKS, first=None, state=0, step=0, **more):
        """`first`: what blocks save in the first iteration, at whose end the optimizer takes its `state`; `step`: what
        it takes for a moment at the end of each."""
        made = Recording()
        made.label = "iter=0;phase=making"
        made.give(made.take(10 * WEIGHTS))  # once
        made.take(WEIGHTS)
        for i in range(3):
            made.iteration(i, first if first is not None and i == 0 else saved, **more)
            if i == 0 and state:
                made.take(state)
            if step:
                made.give(made.take(step))
        return self.written(made)

    def told(self, path, budget, *more):
        done = run(path, "--budget", budget, "--json", *more)
        self.assertIn(done.returncode, (0, 1), done.stderr)
        answer = json.loads(done.stdout)
        self.assertEqual(answer["fits"], done.returncode == 0)
        return answer

    def test_rungs_are_what_an_iteration_would_have_live(self):
        rungs = self.told(self.recording(), 1 << 40)["rungs"]
        # Nothing again: all four saved, four outputs and the last block's gradient. Else, at the second run of the
        # first of the kept ones, or of the last that is not kept.
        expected = [WEIGHTS + kept * SAVED + 4 * OUTPUT + OUTPUT for kept in (4, 3, 2)]
        self.assertEqual([rung["live_bytes"] for rung in rungs[:3]], expected)
        # With block 3 alone computed again its own tensors are there anyway.
        self.assertEqual([rung.get("block") for rung in rungs[:4]], [None, 0, 1, 2])
        self.assertEqual(rungs[4]["live_bytes"], WEIGHTS + SAVED + 4 * OUTPUT + WORK)

    def test_what_is_kept_stays_until_its_operator_ends(self):
        # A second run's tensors go inside of the operator that reads them, before its sums' workspace comes.
        rungs = self.told(self.recording(sums=20 * MIB), 1 << 40)["rungs"]
        self.assertEqual([rung["live_bytes"] for rung in rungs[:3]],
                         [WEIGHTS + kept * SAVED + 4 * OUTPUT + OUTPUT + 20 * MIB + 512 for kept in (4, 3, 2)])
        # With all computed again nothing of it is there any more.
        self.assertEqual(rungs[-1]["live_bytes"], WEIGHTS + SAVED + 4 * OUTPUT + WORK)
        rungs = self.told(self.recording(sums=20 * MIB, sums_behind=True), 1 << 40)["rungs"]
        self.assertEqual(rungs[0]["live_bytes"], WEIGHTS + 4 * SAVED + 4 * OUTPUT + OUTPUT)
        # What backward hands on is another operator's: the one before it is over.
        rungs = self.told(self.recording(sums=20 * MIB, handed=True), 1 << 40)["rungs"]
        self.assertEqual(rungs[0]["live_bytes"], WEIGHTS + 4 * SAVED + 4 * OUTPUT + OUTPUT + WORK)

    def test_a_recording_that_ends_in_an_iteration(self):
        """What the iteration before it says holds, where fewer blocks have had their second runs."""
        cases = {
            # Two blocks of four had their second runs.
            "in backward": dict(ends="block.2.again"),
            # No forward waits for its second run, but the second microbatch is missing.
            "between microbatches": dict(ends="block.0.again", microbatches=2),
            # All had them, the last one not to its end.
            "in the last second run": dict(ends="block.0.again"),
            # The iteration before it has as many forwards that are never run again.
            "behind an evaluation": dict(ends="block.2.again", evaluated=True),
        }
        for name, case in cases.items():
            made = Recording()
            microbatches = case.get("microbatches", 1)
            for i in range(3):
                made.iteration(i, (SAVED,) * BLOCKS, microbatches=microbatches)
                if case.get("evaluated"):
                    made.iteration(i, (SAVED,) * BLOCKS, again=False)
            whole = self.told(self.written(made), 1 << 40)
            self.assertEqual([block["saved_bytes"] for block in whole["blocks"]], [microbatches * SAVED] * BLOCKS)
            made.iteration(3, (SAVED,) * BLOCKS)
            label = "iter=3;phase=" + case["ends"]
            last = min(i for i, event in enumerate(made.events) if event["user_metadata"] == label)
            if microbatches == 1:
                del made.events[last + 1:]
            with self.subTest(name):
                self.assertEqual(self.told(self.written(made), 1 << 40)["blocks"], whole["blocks"])

    def test_the_choice_is_the_first_that_fits(self):
        path = self.recording()
        whole = self.told(path, 1 << 40)
        self.assertEqual(whole["rung"], 0)
        self.assertEqual(whole["persistent_bytes"], WEIGHTS)
        # The first block's output goes behind its backward.
        self.assertEqual(whole["lasting_bytes"], WEIGHTS + 2 * OUTPUT)
        self.assertEqual([block["saved_bytes"] for block in whole["blocks"]], [SAVED] * BLOCKS)
        for budget in range(100 * MIB, 260 * MIB, 7 * MIB):
            answer = self.told(path, budget)
            if answer["fits"]:
                taken = answer["rungs"][answer["rung"]]
                self.assertLessEqual(taken["physical_bytes"], budget)
                self.assertTrue(all(rung["live_bytes"] > budget for rung in answer["rungs"][:answer["rung"]]))
            else:
                self.assertGreater(answer["smallest_bytes"], budget)
                self.assertTrue(self.told(path, answer["smallest_bytes"])["fits"])

    def test_an_iteration_before_it_may_take_more(self):
        path = self.recording(first=(SAVED, 3 * SAVED, SAVED, SAVED), state=2 * WEIGHTS)
        answer = self.told(path, 1 << 40)
        last = answer["rungs"][-1]["live_bytes"]
        self.assertEqual(last, 3 * WEIGHTS + SAVED + 4 * OUTPUT + WORK)
        # Block 1's second run, with the state that came later.
        self.assertEqual(answer["earlier_bytes"], 3 * WEIGHTS + 3 * SAVED + 2 * OUTPUT + WORK)
        self.assertIn("An iteration before it would have 328.000 MiB live now", run(path, "--budget", "1GiB").stdout)
        alike = self.recording()
        answer = self.told(alike, 1 << 40)
        self.assertEqual(answer["earlier_bytes"], answer["rungs"][-1]["live_bytes"])
        self.assertNotIn("before it", run(alike, "--budget", "1GiB").stdout)

    def test_many_iterations_before_it_are_gone_through_once(self):
        made = Recording()
        for i in range(80000):
            made.label = "iter=%d;phase=block.0" % i
            output = made.take(OUTPUT)
            made.label += ".again"
            saved = made.take(SAVED)
            made.label = "iter=%d;phase=B" % i
            made.give(saved)
            made.give(output)
        self.assert_read_in_time(made)

    def test_many_iterations_behind_it_are_gone_through_once(self):
        made = Recording()
        made.iteration(0, (SAVED,) * BLOCKS)
        for i in range(1, 160000):  # an evaluation: nothing is computed again
            made.label = "iter=%d;phase=block.4095" % i
            made.give(made.take(OUTPUT))
        self.assert_read_in_time(made)

    def assert_read_in_time(self, made):
        """Held against reading the recording, in processor time. A pass for each iteration takes some 150 times as
        long as that, one pass about twice: a busy machine is taken for neither."""
        path = self.written(made)

        def seconds(*command):
            with open(os.devnull, "w") as nothing:
                process = subprocess.Popen([PLEAT, command[0], path, *command[1:]], stdout=nothing)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, 0)
            return used.ru_utime + used.ru_stime

        self.assertLess(seconds("explain", "--budget", "1GiB"), 30 * seconds("import"))

    def test_peaks_of_larger_iterations_may_lie_elsewhere(self):
        # What the optimizer needs for a moment outlives the last block's backward; it is as large at any size.
        path = self.recording(step=100 * MIB)
        answer = self.told(path, 1 << 40)
        self.assertEqual(answer["rungs"][-1]["live_bytes"], WEIGHTS + 100 * MIB)
        passing = SAVED + 3 * OUTPUT + WORK
        self.assertEqual([(peak["lasting_bytes"], peak["passing_bytes"]) for peak in answer["peaks"]],
                         [(WEIGHTS + 100 * MIB, 0)] + 2 * [(WEIGHTS + OUTPUT, passing)])

    def test_cheap_blocks_go_first(self):
        path = self.recording()
        order = [r["block"] for r in self.told(path, 1 << 40, "--block-ns", "9,5,7,1")["rungs"][1:]]
        self.assertEqual(order[:2], [1, 2])
        larger = self.recording(saved=(SAVED, SAVED, 3 * SAVED, SAVED))
        order = [r["block"] for r in self.told(larger, 1 << 40, "--block-ns", "9,9,9,9")["rungs"][1:]]
        self.assertEqual(order[0], 2)

    def ways(self, path, *costs):
        """The rungs' changes, live bytes and nanoseconds."""
        answer = self.told(path, 1 << 40, *costs)
        changes = [(rung["block"], rung["way"]) for rung in answer["rungs"][1:]]
        return answer, changes, [rung["live_bytes"] for rung in answer["rungs"]], [r["ns"] for r in answer["rungs"]]

    def test_attention_is_kept_where_that_costs_less_for_the_bytes(self):
        path = self.recording(attention=10 * MIB)
        # 30 MiB for 6, then 10 MiB for 4: all but attention comes first. With 2 of 12 it is not worth a rung of its own.
        answer, changes, live, ns = self.ways(path, "--block-ns", "10,10,10,10", "--attention-ns", "4,4,4,4")
        self.assertEqual([block["attention_bytes"] for block in answer["blocks"]], [10 * MIB] * BLOCKS)
        self.assertEqual(changes[:3], [(0, "attention"), (1, "attention"), (2, "attention")])
        self.assertEqual([(a - b) // MIB for a, b in zip(live, live[1:])][:2], [30, 30])
        self.assertEqual(ns[:3], [0, 6, 12])
        self.assertEqual((ns[-1], sorted(changes[-4:])), (40, [(b, "again") for b in range(4)]))
        _, changes, _, _ = self.ways(path, "--block-ns", "12,12,12,12", "--attention-ns", "2,2,2,2")
        self.assertEqual({way for _, way in changes}, {"again"})
        # Without times nothing is known of attention.
        self.assertEqual({way for _, way in self.ways(path)[1]}, {"again"})

    def test_blocks_are_offloaded_where_copies_are_hidden(self):
        path = self.recording()
        # A forward takes 10 us, and 40 MiB in 15 us: the copy of block 0 is over when block 2 has run, that of 1 with 3.
        link = 40 * MIB * 1000000 // 15
        times = ("--block-ns", "10000,10000,10000,10000", "--link", link)
        answer, changes, live, ns = self.ways(path, *times)
        self.assertEqual((changes[0], ns[1]), ((0, "offload"), 0))
        self.assertEqual(answer["rungs"][1]["until"], 2)
        self.assertEqual(live[0] - live[1], SAVED)
        # Block 1's copy would begin before that of block 0 is over.
        self.assertNotIn("offload", [way for _, way in changes[1:]])
        self.assertEqual(live[-1], self.ways(path)[2][-1])
        text = run(path, "--budget", live[1] + MIB, *times).stdout
        self.assertIn("0 of 4 blocks are computed again, 1 offloaded", text)
        self.assertIn("Offloaded: 0", text)
        # Twice as fast, a block's copy is over when the next one has run, and every other goes.
        _, changes, live, _ = self.ways(path, "--block-ns", "10000,10000,10000,10000", "--link", 2 * link)
        self.assertEqual(changes[:2], [(0, "offload"), (1, "offload")])
        # Too slow for any.
        _, changes, _, _ = self.ways(path, "--block-ns", "10000,10000,10000,10000", "--link", link // 8)
        self.assertNotIn("offload", [way for _, way in changes])

    def test_a_link_on_which_a_copy_takes_centuries_hides_none(self):
        """20 GiB at a byte a second are more nanoseconds than 64 bits count: once none."""
        path = self.recording(saved=(20 << 30,) * BLOCKS)
        _, changes, _, _ = self.ways(path, "--block-ns", "10000,10000,10000,10000", "--link", 1)
        self.assertEqual({way for _, way in changes}, {"again"})

    def test_each_microbatch_is_offloaded_within_itself(self):
        path = self.recording(microbatches=2)
        link = 40 * MIB * 1000000 // 15
        answer, changes, live, _ = self.ways(path, "--block-ns", "10000,10000,10000,10000", "--link", link)
        self.assertEqual((changes[0], answer["rungs"][1]["until"], live[0] - live[1]), ((0, "offload"), 2, SAVED))

    def test_microbatches_are_paired_in_order(self):
        answer = self.told(self.recording(microbatches=3), 1 << 40, "--block-ns", "5,5,5,5")
        self.assertEqual([block["passes"] for block in answer["blocks"]], [3] * BLOCKS)
        self.assertEqual([block["ns"] for block in answer["blocks"]], [15] * BLOCKS)
        self.assertEqual(answer["rungs"][0]["live_bytes"], WEIGHTS + 4 * SAVED + 5 * OUTPUT)

    def test_words_say_the_choice(self):
        path = self.recording()
        text = run(path, "--budget", "200MiB")
        self.assertEqual(text.returncode, 0, text.stderr)
        self.assertIn("2 of 4 blocks are computed again", text.stdout)
        self.assertIn("Computed again: 0, 1", text.stdout)
        self.assertIn("All of it fits in 1.000 GiB", run(path, "--budget", "1GiB").stdout)
        refused = run(path, "--budget", "64MiB")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("No choice fits in 64.000 MiB", refused.stdout)

    def test_what_is_wrong_is_said(self):
        without = self.recording(again=False)
        said = run(without, "--budget", "1GiB").stderr
        self.assertIn("--recompute auto", said)
        self.assertIn("'%s'" % without, said)
        path = self.recording()
        for option in ("--attention-ns", "--link"):
            wrong = run(path, "--budget", "1GiB", "--block-ns", "5,5,5,5", option, "x")
            self.assertEqual(wrong.returncode, 2, option)
            # Without the blocks' times it would change nothing.
            alone = run(path, "--budget", "1GiB", option, "1")
            self.assertEqual(alone.returncode, 2, option)
            self.assertIn(f"{option} is held against the nanoseconds of each block: with --block-ns", alone.stderr)
            self.assertEqual(run(path, "--budget", "1GiB", option, "1", "--block-ns", "5,5,5,5").returncode, 0, option)
        two = run(path, path, "--budget", "1GiB")
        self.assertEqual(two.returncode, 2)
        self.assertIn("--budget is of one trace, got 2", two.stderr)
        # A block without a time of its own once cost nothing, and was computed again first.
        for times in ("5", "5,5,5"):
            few = run(path, "--budget", "1GiB", "--block-ns", times)
            self.assertEqual(few.returncode, 2, times)
            self.assertIn("give each one's, from block 0 on", few.stderr)
        for times in ("", "1,x", "-1", ",", "5,5,5,5,", "1" * 400):
            self.assertEqual(run(path, "--budget", "1GiB", "--block-ns", times).returncode, 2, times)


if __name__ == "__main__":
    suite.main()
