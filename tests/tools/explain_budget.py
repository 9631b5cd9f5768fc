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

sys.path.insert(0, os.path.join(os.path.dirname(__file__), ".."))
import suite  # noqa: E402

PLEAT = sys.argv[1]
MIB = 1 << 20
BLOCKS, WEIGHTS, SAVED, WORK, OUTPUT = 4, 64 * MIB, 40 * MIB, 8 * MIB, 4 * MIB


class Recording:
    """A torch snapshot of iterations whose blocks are computed again, as they are recorded."""

    def __init__(self):
        self.events, self.address, self.label = [], 1 << 40, ""

    def add(self, action, block):
        self.events.append(dict(action=action, addr=block[0], size=block[1], stream=0, time_us=len(self.events),
                                user_metadata=self.label))

    def take(self, size):
        block = (self.address, size)
        self.address += size + 512
        self.add("alloc", block)
        return block

    def give(self, block):
        self.add("free_requested", block)
        self.add("free_completed", block)

    def iteration(self, number, saved, again=True, microbatches=1):
        for _ in range(microbatches):
            outputs = []
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
                    kept = self.take(saved[b])
                    self.give(work)
                self.label = "iter=%d;phase=B" % number
                gradient = self.take(OUTPUT)
                if kept:
                    self.give(kept)
                self.give(gradient)
                self.give(outputs.pop())

    def write(self, path):
        segment = dict(device=0, address=1 << 40, total_size=1 << 40, stream=0, segment_type="large",
                       segment_pool_id=(0, 0), is_expandable=False, frames=[], blocks=[])
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[segment], device_traces=[self.events]), file, 4)


def run(*arguments):
    return subprocess.run([PLEAT, "explain", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


class Budget(unittest.TestCase):
    def recording(self, saved=(SAVED,) * BLOCKS, **more):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        made = Recording()
        made.take(WEIGHTS)
        for i in range(3):
            made.iteration(i, saved, **more)
        path = os.path.join(folder.name, "job.pickle")
        made.write(path)
        return path

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
        self.assertEqual([rung.get("recompute") for rung in rungs[:4]], [None, 0, 1, 2])
        self.assertEqual(rungs[4]["live_bytes"], WEIGHTS + SAVED + 4 * OUTPUT + WORK)

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

    def test_cheap_blocks_go_first(self):
        path = self.recording()
        order = [r["recompute"] for r in self.told(path, 1 << 40, "--block-ns", "9,5,7,1")["rungs"][1:]]
        self.assertEqual(order[:2], [1, 2])
        larger = self.recording(saved=(SAVED, SAVED, 3 * SAVED, SAVED))
        order = [r["recompute"] for r in self.told(larger, 1 << 40, "--block-ns", "9,9,9,9")["rungs"][1:]]
        self.assertEqual(order[0], 2)

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
        self.assertIn("--recompute auto", run(self.recording(again=False), "--budget", "1GiB").stderr)
        path = self.recording()
        for times in ("1,x", "-1", ",", "1" * 400):
            self.assertEqual(run(path, "--budget", "1GiB", "--block-ns", times).returncode, 2, times)


if __name__ == "__main__":
    suite.main()
