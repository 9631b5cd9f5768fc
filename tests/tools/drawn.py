"""Tests of tools/workloads/drawn.py: what is drawn is the seed's, and a whole snapshot."""

import gzip
import itertools
import json
import os
import pickle
import sys
import unittest

import here
from drawing import job

PLEAT = sys.argv.pop(1)
run = here.runs_python(here.DRAWN)


def left_over(test, events):
    """Bytes of what is never freed, by address; each free is of something live, and comes once."""
    live, asked = {}, set()
    for action, address, size, _, _, _ in events:
        if action == "alloc":
            test.assertNotIn(address, live)
            live[address] = size
        elif action == "free_requested":
            test.assertEqual(live.get(address), size)
            test.assertNotIn(address, asked)
            asked.add(address)
        else:
            asked.remove(address)
            del live[address]
    test.assertEqual(asked, set())
    return live


class Drawn(here.Folder):
    def bytes_of(self, name, *arguments):
        done = run(*arguments, "-o", self.path(name))
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(self.path(name), "rb") as made:
            return made.read()

    def test_the_same_seed_gives_the_same_bytes_and_another_other_ones(self):
        one = self.bytes_of("a.pickle.gz", "--seed", 5)
        self.assertEqual(one, self.bytes_of("b.pickle.gz", "--seed", 5))
        self.assertNotEqual(one, self.bytes_of("c.pickle.gz", "--seed", 6))

    def test_unmarked_it_has_no_labels_and_the_same_events(self):
        marked = pickle.loads(self.bytes_of("a.pickle", "--seed", 5, "--set", "marks=true", "--set", "steps=false"))
        done = self.bytes_of("b.pickle.gz", "--seed", 5, "--set", "marks=true", "--no-marks")
        plain = pickle.loads(gzip.decompress(done))
        (events,), (bare,) = marked["device_traces"], plain["device_traces"]
        self.assertIn("iter=0;phase=F", {event["user_metadata"] for event in events})
        self.assertEqual({"user_metadata"} & {key for event in bare for key in event}, set())
        for event in events:
            del event["user_metadata"]
        self.assertEqual(events, bare)

    def test_steps_mark_behind_the_optimizer_and_not_before_the_first(self):
        made = self.bytes_of("a.pickle", "--seed", 5, "--set", "marks=true", "--set", "steps=true", "--set", "gradients_stay=false")
        (events,) = pickle.loads(made)["device_traces"]
        labels = list(dict.fromkeys(event["user_metadata"] for event in events))
        first = labels.index("iter=1;phase=opt")
        self.assertTrue(all("iter=" not in label for label in labels[:first]), labels[:first])
        self.assertIn("phase=opt", labels[:first])
        # Gradients are dropped behind the step that marks.
        behind = itertools.dropwhile(lambda event: event["user_metadata"] != "iter=1;phase=opt", events)
        dropped = [event["action"] for event in
                   itertools.takewhile(lambda event: event["user_metadata"] == "iter=1;phase=opt", behind)]
        self.assertIn("free_completed", dropped)
        self.assertNotIn("alloc", dropped)

    def test_every_family_is_whole_and_replays(self):
        for seed, family in enumerate(job.FAMILIES, 1):
            memory = job.draw(seed, family=family).record()
            with self.subTest(family=family, seed=seed):
                self.assertGreater(len(left_over(self, memory.events)), 10)
                self.assertTrue(1 << 30 <= memory.peak <= 120 << 30, memory.peak)
                self.assertTrue(20000 <= len(memory.events) <= 250000, len(memory.events))
                self.replays(memory, family)

    def test_eager_attention_is_whole_however_it_is_computed_again(self):
        given = dict(attention="eager", length=512, samples=2, layers=4, iterations=3)
        for family in ("decoder", "lora", "moe", "encoder-decoder"):
            given["generation_every"] = 2 if family == "decoder" else 0
            for recompute in ("none", "layers", "attention"):
                for reentrant in (False, True):
                    again = dict(given, recompute=recompute, reentrant=reentrant)
                    with self.subTest(family=family, **again):
                        memory = job.draw(4, family=family, **again).record()
                        left_over(self, memory.events)

    def replays(self, memory, family):
        path = self.path(family + ".pickle")
        memory.write(path)
        done = here.run(PLEAT, "replay", path, "--policy", "native", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertGreaterEqual(told["iterations"], 2)
        # An allocator counts in blocks of 512 bytes.
        self.assertAlmostEqual(told["peak_live_bytes"] / memory.peak, 1, places=3)

    def test_one_sample_generates_where_norms_are_written_out(self):
        """A token's hidden state has as many elements as the norm's weight then (seed 1771014326)."""
        given = {"norm": "rms-parts", "samples": 1, "microbatches": 1, "generation_every": 2, "iterations": 3}
        memory = job.draw(1, family="decoder", **given).record()
        self.assertGreater(len(memory.events), 0)

    def test_all_runs_of_a_seed_are_of_one_job(self):
        for seed in (20, 73, 100, 131, 150, 153):
            one, other = (job.draw(seed, run=run).describe() for run in (0, 3))
            self.assertEqual(other, dict(one, run=3))

    def test_another_run_has_other_data_and_the_same_weights_and_states(self):
        given = {"family": "lora", "batch": "drawn", "sharding": "none"}
        one = job.draw(3, run=0, **given).record()
        two = job.draw(3, run=1, **given).record()
        self.assertNotEqual(one.events, two.events)
        kept = [sorted(left_over(self, memory.events).values()) for memory in (one, two)]
        self.assertEqual(kept[0], kept[1])

    def test_side_streams_frees_complete_later_than_they_are_asked_for(self):
        def gathered(lag):
            """How many of the side stream's tensors went, and how many of them later than asked for."""
            memory = job.draw(2, family="decoder", sharding="layers", depth=1, lag=lag,
                              gathered="one").record()
            asked, gone, later = {}, 0, 0
            for action, address, _, stream, when, _ in memory.events:
                if stream == 1 and action == "free_requested":
                    asked[address] = when
                if stream == 1 and action == "free_completed":
                    gone += 1
                    later += when > asked.pop(address)
            self.assertEqual(asked, {})
            return gone, later

        gone, later = gathered(0.5)
        self.assertGreater(later, 100)
        # By events and not by record_stream they go at once.
        self.assertEqual(gathered(0), (gone, 0))

    def test_outputs_that_stay_are_there_until_the_next_forward_is_done(self):
        config = job.draw(2, family="decoder", attention="fused", loss_pieces=1, batch="fixed",
                          sharding="none", precision="bf16", microbatches=2, marks=True).config

        def live(stay):
            """Bytes that are live when the second iteration begins, and the most in it."""
            made = job.Job(dict(config, outputs_stay=stay, iterations=3), 2, 0).start()
            total, most, first = 0, 0, None
            for action, _, size, _, _, told in made.all().events:
                if told == "iter=1;phase=F" and first is None:
                    first = total
                total += size if action == "alloc" else -size if action == "free_completed" else 0
                most = max(most, total)
            return first, most

        scores = 2 * config["samples"] * config["length"] * config["vocabulary"]
        (stays, most), (goes, less) = live(True), live(False)
        self.assertEqual(stays - goes, scores + 4)
        self.assertGreater(most - less, 0)

    def test_data_is_made_at_its_forward_or_with_all_of_a_step_or_ahead(self):
        config = job.draw(2, family="graph", batch="fixed", microbatches=2, marks=True, steps=False,
                          evaluation_every=1, evaluation_batches=2).config

        def there(fetch):
            """How many microbatches' data are there at most, behind a backward and in an evaluation."""
            made = job.Job(dict(config, fetch=fetch, iterations=3), 2, 0).start()
            batches, batch = set(), made.batch

            def noted(shape):
                blocks = batch(shape)
                batches.add(blocks[0][0])
                return blocks

            made.batch = noted
            live, most = set(), {}
            for action, address, _, _, _, told in made.all().events:
                if address in batches and action != "free_requested":
                    live ^= {address}
                most[told] = max(most.get(told, 0), len(live))
            self.assertEqual(live, set())
            return max(most.values()), most["iter=1;phase=B"], most["iter=1;phase=evaluation"]

        self.assertEqual(there("each"), (2, 1, 2))
        self.assertEqual(there("step"), (4, 2, 4))
        self.assertEqual(there("ahead"), (3, 2, 3))

    def test_a_reference_goes_forward_before_each_microbatch_and_leaves_nothing(self):
        for family, copies in (("decoder", 1), ("lora", 0)):
            config = job.draw(3, family=family, reference=True, batch="fixed", sharding="none", microbatches=2,
                              marks=True, evaluation_every=1, evaluation_batches=2).config
            self.assertTrue(config["reference"])

            def told(reference):
                """Bytes that are live when the second iteration begins, allocations of its forwards and of what is
                evaluated behind it, and the model's weights."""
                made = job.Job(dict(config, reference=reference, iterations=2), 3, 0).start()
                weights = sum(-(-parameter.size // 512) * 512 for parameter in made.model.weights.all)
                total, first, counts, label = 0, None, {}, ""
                for action, _, size, _, _, text in made.all().events:
                    label = text or label
                    if label == "iter=1;phase=F" and first is None:
                        first = total
                    total += size if action == "alloc" else -size if action == "free_completed" else 0
                    counts[label] = counts.get(label, 0) + (action == "alloc")
                return first, counts["iter=1;phase=F"], counts["iter=1;phase=evaluation"], weights

            (live, forwards, evaluated, weights), (less, alone, same, _) = told(True), told(False)
            self.assertEqual(evaluated, same)
            # As an evaluation, but for the batch, which is there.
            self.assertLess(alone, forwards)
            self.assertLess(abs(forwards - alone - evaluated), 8)
            self.assertLess(abs(live - less - copies * weights), 1 << 20)

    def test_gradients_that_stay_are_there_until_the_next_backward(self):
        config = job.draw(2, family="graph", precision="autocast", marks=True).config

        def live(stay, label):
            """Bytes that are live when the label first comes, and those of the last gradients."""
            made = job.Job(dict(config, gradients_stay=stay, iterations=4), 2, 0).start()
            total, events = 0, made.all().events
            for action, _, size, _, _, told in events:
                if told == label:
                    return total, sum(block[1] for block in made.gradients.values())
                total += size if action == "alloc" else -size if action == "free_completed" else 0
            return None

        stayed, gradients = live(True, "iter=2;phase=F")
        self.assertEqual(live(False, "iter=2;phase=F"), (stayed - gradients, 0))
        self.assertGreater(gradients, 1 << 20)
        self.assertEqual(live(True, "iter=2;phase=opt")[0], live(False, "iter=2;phase=opt")[0])

    def test_a_job_stays_within_the_bounds_when_its_states_are_there(self):
        # What is drawn first has its largest iteration sixth, and fits only without its states.
        self.assertLessEqual(job.draw(160).record().peak, job.MOST_PEAK)

    def test_it_is_as_a_recorded_job_with_its_settings(self):
        done = here.run_python(here.WORKLOADS / "honesty.py", "--pleat", PLEAT)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("| bundled |", done.stdout)

    def test_a_recorded_jobs_settings_give_its_parameters(self):
        # GPT-2 medium without positions: 24 blocks, an embedding and a head.
        model = job.like("gpt2-vpp").start().model
        count = sum(parameter.count for parameter in model.weights.all)
        self.assertEqual(count, 24 * (12 * 1024**2 + 13 * 1024) + 2 * 50304 * 1024)

    def test_describe_writes_nothing_and_says_what_is_drawn(self):
        done = run("--seed", 9, "--describe", "--family", "decoder")
        told = json.loads(done.stdout)
        self.assertEqual((told["seed"], told["run"], told["family"]), (9, 0, "decoder"))
        self.assertEqual(os.listdir(self.folder), [])

    def test_bad_use_is_refused(self):
        for wrong in (["-o", "-"], [], ["--describe", "--iterations", "2"], ["--family", "none"]):
            done = run(*wrong)
            self.assertEqual((done.returncode, bool(done.stderr)), (2, True), wrong)

    def test_settings_that_no_job_has_are_refused(self):
        given = ["--describe", "--family", "moe", "--set", "experts=4", "--set", "heads=8"]
        for wrong in ("no_name=1", "samples=0", "layers=2.5", "norm=batch", "bias=1", "blocks=[]",
                      "skew=-1", "large_at=x", "loss_pieces=0", "chosen=9", "kv_heads=3", "hidden=100", "family=graph"):
            done = run(*given, "--set", wrong)
            self.assertEqual((done.returncode, done.stdout), (2, ""), wrong)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(wrong.split("=")[0] if wrong != "family=graph" else "experts", done.stderr)
        self.assertEqual(run(*given, "--set", "large_at=null").returncode, 0)


if __name__ == "__main__":
    unittest.main()
