"""Tests of tools/workloads/real.py and real_suite.py: what the judge says of figures, and, where the
libraries are, that each drawn job trains and repeats on the processor."""

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

from here import WORKLOADS  # first: it knows where the tools are
import libraries
import real_suite

try:
    import torch
except ImportError:
    torch = None
try:
    import transformers
except ImportError:
    transformers = None

GIB = 1 << 30


def line(seconds, physical=10.0, losses=(3.0, 2.0), **more):
    """What a run prints, as far as it is judged: 20 iterations of so many seconds."""
    return dict({"seconds": [9.0] * 4 + [seconds] * 16, "losses": list(losses), "out_of_memory": None,
                 "peak_allocated_bytes": 9 * GIB, "peak_reserved_bytes": physical * GIB,
                 "efficiency": 9 / physical, "process_peak_bytes": (physical + 0.7) * GIB}, **more)


def pair(pleat, job="llama", **more):
    runs = {"native": line(1.0, 15.0), "expandable": line(1.0, 10.0), "pleat": pleat}
    return dict({"job": job, "seed": 1, "runs": runs}, **more)


class Judged(unittest.TestCase):
    def test_what_holds_has_no_line(self):
        self.assertEqual(real_suite.verdict([pair(line(1.004, 9.5)), pair(line(1.0, 9.5))]), [])

    def test_steady_seconds_of_each_and_of_all(self):
        lines = real_suite.verdict([pair(line(1.007)), pair(line(1.008))])
        self.assertEqual(lines, ["steady median of all 1.0075, not 1.005"])
        lines = real_suite.verdict([pair(line(1.02)), pair(line(0.9)), pair(line(0.9))])
        self.assertEqual(lines, ["llama@1: steady median 1.0200 of native's, not 1.010"])

    def test_seconds_from_the_first_on(self):
        slow = line(1.0)
        slow["seconds"][1:3] = [12.0, 13.0]
        lines = real_suite.verdict([pair(slow)])
        self.assertEqual(len(lines), 2)
        self.assertIn("mean from the first on 1.1346 of native's, not 1.02", lines[0])
        self.assertIn("expandable segments' 1.0000", lines[1])
        # Native may be the slow one; then expandable segments are what is left to lose against.
        bad = pair(line(1.0))
        bad["runs"]["expandable"]["seconds"] = [0.9 * one for one in bad["runs"]["native"]["seconds"]]
        (only,) = real_suite.verdict([bad])
        self.assertIn("expandable segments' 0.9000", only)

    def test_memory_by_either_count(self):
        lines = real_suite.verdict([pair(line(1.0, 10.5))])
        self.assertEqual(lines, [
            "llama@1: physical memory 10.500 GiB, expandable segments' 10.000",
            "llama@1: memory by NVML 11.200 GiB, expandable segments' 10.700"])
        # NVML may tell nothing.
        self.assertEqual(real_suite.verdict([pair(line(1.0, 9.5, process_peak_bytes=None))]), [])

    def test_losses_are_as_equal_as_natives_own(self):
        other = line(1.0, 9.5, losses=(3.0, 2.02))
        (only,) = real_suite.verdict([pair(other)])
        self.assertIn("losses 0.01 from native's, which was not run again", only)
        twice = pair(other)
        twice["runs"]["again"] = line(1.0)
        self.assertIn("repeats its own bit for bit", real_suite.verdict([twice])[0])
        twice["runs"]["again"]["losses"] = [3.0, 1.99]
        self.assertEqual(real_suite.verdict([twice]), [])

    def test_seconds_are_told_beside_what_native_scatters_by(self):
        twice = pair(line(1.02, 9.5))
        twice["runs"]["again"] = line(0.97)
        self.assertEqual(real_suite.verdict([twice]), [
            "llama@1: steady median 1.0200 of native's, not 1.010 (native again: 0.9700)",
            "steady median of all 1.0200, not 1.005 (native again: 0.9700)"])

    def test_jobs_with_a_goal_of_their_own(self):
        lines = real_suite.verdict([pair(line(1.002, 9.5), "pipeline_rank")])
        self.assertEqual(lines, [
            "pipeline_rank@1: steady median 1.0020 of native's, not 1.000",
            "pipeline_rank@1: efficiency 0.9474, not 0.990"])

    def test_what_failed_is_told(self):
        failed = {"job": "t5", "seed": 2, "error": "real.py: exit 1, see log\nmore", "said": ["x"]}
        self.assertEqual(real_suite.verdict([failed]), ["t5@2: failed: real.py: exit 1, see log"])
        out = pair(line(1.0, out_of_memory="it is full"))
        self.assertEqual(real_suite.verdict([out]), ["llama@1: out of memory"])

    def test_a_run_without_iterations_takes_no_share_of_a_mean(self):
        """It took 0 of native's seconds, by which Pleat was slower than expandable segments."""
        other = pair(line(1.0))
        other["runs"]["expandable"].update(seconds=[], losses=[], out_of_memory="it is full")
        self.assertEqual(real_suite.verdict([other]), [])
        told = real_suite.figures(other)["expandable"]
        self.assertEqual((told["seconds"], told["mean"]), (None, None))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            real_suite.summarize([other, pair(line(1.0))])
        self.assertIn("expandable over 2: steady median 1.0000, mean from the first on 1.0000 (1.0000 to", said.getvalue())

    def test_runs_on_the_processor_tell_no_memory(self):
        """Their summary broke off."""
        tiny = {name: value for name, value in line(1.0).items() if name in ("seconds", "losses", "out_of_memory")}
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertTrue(real_suite.summarize([{"job": "llama", "seed": 1, "runs": {"native": tiny, "again": tiny}}]))
        self.assertIn("again over 1: steady median 1.0000", said.getvalue())

    def test_a_job_may_name_its_seed(self):
        self.assertEqual(real_suite.drawn_pairs(["t5", "unet@9", "vit"], [3, 4]),
                         [("unet", 9), ("t5", 3), ("vit", 3), ("t5", 4), ("vit", 4)])

    def test_a_summary_of_several_files(self):
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in "ab"]
            for path, pleat in zip(paths, (line(1.5), line(0.99, 9.5))):
                with open(path, "w") as out:
                    out.write(json.dumps(pair(pleat)) + "\n")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                self.assertTrue(real_suite.summarize(real_suite.read(paths)))
                self.assertFalse(real_suite.summarize(real_suite.read(paths[:1])))
                self.assertFalse(real_suite.summarize(real_suite.read(paths), [("t5", 3)]))
            self.assertIn("pleat over 1: steady median 0.9900", said.getvalue())
            self.assertIn("not run, for want of time: t5@3", said.getvalue())
            with open(paths[0], "w") as out:
                out.write("{}\n")
            with self.assertRaisesRegex(SystemExit, "line 1 is no pair"):
                real_suite.read(paths)

    def test_files_of_earlier_versions_have_the_same_verdict(self):
        other = pair(line(1.0, 9.5, losses=[3.0] * 7 + [2.02]))
        native = other["runs"]["native"]
        native["losses"] = [3.0] * 7 + [2.0]
        # Native alone, afterwards, and fewer iterations of it.
        again = dict(line(1.0, 15.0), seconds=native["seconds"][:8], losses=[3.0] * 7 + [1.99])
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "a")
            with open(path, "w") as out:
                out.write(json.dumps(dict(other, native_again=again)) + "\n")
            (read,) = real_suite.read([path])
        self.assertEqual(real_suite.verdict([read]), [])
        told = real_suite.figures(read)["again"]
        self.assertEqual((told["steady"], told["mean"]), (1.0, 1.0))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            real_suite.summarize([read])
        self.assertIn("again over 1: steady median 1.0000, mean from the first on 1.0000", said.getvalue())

    def test_no_pair_is_begun_that_cannot_end_in_time(self):
        options = argparse.Namespace(seconds=real_suite.LEFT_FOR_A_PAIR - 1)
        self.assertEqual(real_suite.run_all([("t5", 3)], options, None), ([], [("t5", 3)]))


@unittest.skipIf(torch is None, "torch is not there")
class Drawn(unittest.TestCase):
    def shape(self, seed):
        from libraries import common

        options = argparse.Namespace(job="x", seed=seed, tiny=False)
        draw = common.Draw(options)
        return [draw.step(2, 10, 2), draw.either(), common.length(draw, "tail", 512)]

    def test_a_seed_draws_the_same_again(self):
        drawn = [self.shape(seed) for seed in range(20)]
        self.assertEqual(drawn, [self.shape(seed) for seed in range(20)])
        self.assertGreater(len(set(map(str, drawn))), 10)

    def test_lengths_stay_within_their_bounds(self):
        from libraries import common

        draw = common.Draw(argparse.Namespace(job="x", seed=1))
        for kind in (*common.LENGTHS, "full"):
            drawn = [common.length(draw, kind, 512) for _ in range(300)]
            self.assertLessEqual(max(drawn), 512)
            self.assertGreaterEqual(min(drawn), 4)
            self.assertEqual(len(set(drawn)) == 1, kind == "full")

    def test_a_text_is_the_same_whenever_it_is_asked_for(self):
        from libraries import common

        options = argparse.Namespace(job="x", seed=1)
        texts = common.Texts(options, 50, "even", 64, 1000)
        again = common.Texts(options, 50, "even", 64, 1000)
        for index in (7, 3, 7):
            self.assertTrue(torch.equal(texts[index]["input_ids"], again[index]["input_ids"]))
        batch = common.padded([texts[1], texts[2]])
        self.assertEqual(batch["labels"].shape, batch["input_ids"].shape)
        self.assertEqual(int(batch["attention_mask"].sum()), texts.lengths[1] + texts.lengths[2])
        self.assertEqual(int((batch["labels"] != -100).sum()), int(batch["attention_mask"].sum()))


@unittest.skipIf(transformers is None, "transformers is not there")
class Jobs(unittest.TestCase):
    def begin(self, job, seed=1):
        """Three tiny iterations on one core, whose other threads would only wait for each other."""
        return subprocess.Popen(
            [sys.executable, os.path.join(WORKLOADS, "real.py"), "--job", job, "--seed", str(seed),
             "--tiny", "--device", "cpu", "--iterations", "3", "--deterministic", "--quiet"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=dict(os.environ, OMP_NUM_THREADS="1"))

    def losses(self, *lines):
        """Those of several runs at a time; None of one whose library is missing."""
        told = []
        for run in [self.begin(*line) for line in lines]:
            out, errors = run.communicate()
            if run.returncode != libraries.SKIPPED:
                self.assertEqual(run.returncode, 0, errors)
            told.append(json.loads(out.splitlines()[-1])["losses"] if out else None)
        return told

    def test_each_job_trains_and_repeats(self):
        for job in libraries.JOBS:
            if job in libraries.SEVERAL_GPUS:
                continue
            with self.subTest(job=job):
                first, again = self.losses((job,), (job,))
                if first is None:
                    continue
                self.assertEqual(len(first), 3)
                self.assertTrue(all(loss == loss and abs(loss) < 1e4 for loss in first), first)
                self.assertEqual(first, again)

    def test_heads_share_keys_evenly(self):
        """Whatever is drawn: transformers repeats each key's head a whole number of times."""
        from libraries import decoders

        for seed in range(60):
            options = argparse.Namespace(job="llama", seed=seed, tiny=False)
            shape = decoders.drawn(options, (6, 12), (1280, 2304), ("tail",), ("adamw",))
            sizes = decoders.sizes(shape)
            self.assertEqual(sizes["num_attention_heads"] % sizes["num_key_value_heads"], 0, seed)

    def test_another_seed_is_another_job(self):
        self.assertNotEqual(*self.losses(("llama", 1), ("llama", 2)))


if __name__ == "__main__":
    unittest.main()
