"""Tests of tools/workloads that need no torch: the schedule, and what a recording may hold."""

import gzip
import os
import pickle
import sys
import tempfile
import unittest

WORKLOADS = os.path.join(os.path.dirname(__file__), "..", "..", "tools", "workloads")
sys.path.insert(0, WORKLOADS)
import pipeline  # noqa: E402
import recording  # noqa: E402


def in_flight(order):
    """Most steps gone forward through and not back."""
    live = peak = 0
    for kind, _, _ in order:
        live += 1 if kind == pipeline.FORWARD else -1
        peak = max(peak, live)
    return peak


class Schedule(unittest.TestCase):
    def test_every_step_once_and_after_what_it_needs(self):
        for microbatches, stages, depth in [(4, 4, 2), (8, 1, 4), (8, 2, 4), (3, 5, 1), (6, 3, 6)]:
            for rank in range(depth):
                done = set()
                for kind, microbatch, stage in pipeline.interleaved(
                    microbatches, stages, depth, rank
                ):
                    if kind == pipeline.FORWARD:
                        needs = [(kind, microbatch, stage - 1)] if stage > 0 else []
                    else:
                        needs = [(pipeline.FORWARD, microbatch, stage)]
                        if stage < stages - 1:
                            needs.append((kind, microbatch, stage + 1))
                    self.assertNotIn((kind, microbatch, stage), done)
                    self.assertLessEqual(set(needs), done)
                    done.add((kind, microbatch, stage))
                self.assertEqual(len(done), 2 * microbatches * stages)

    def test_in_flight_is_what_the_rank_calls_for(self):
        # One stage: plain one-forward-one-backward, twice the ranks behind and this one.
        self.assertEqual(in_flight(pipeline.interleaved(16, 1, 4, 0)), 7)
        self.assertEqual(in_flight(pipeline.interleaved(16, 1, 4, 3)), 1)
        self.assertEqual(in_flight(pipeline.interleaved(4, 4, 2, 0)), 9)
        # Too few microbatches to fill the pipeline: all forward, then all back.
        self.assertEqual(in_flight(pipeline.interleaved(4, 2, 4, 0)), 8)

    def test_one_stage_a_rank_is_one_forward_one_backward(self):
        for microbatches, depth in [(8, 4), (3, 4), (5, 1), (1, 1), (4, 4)]:
            for rank in range(depth):
                order = pipeline.plain(microbatches, depth, rank)
                for kind in (pipeline.FORWARD, pipeline.BACKWARD):
                    taken = [step for step in order if step[0] == kind]
                    self.assertEqual(taken, [(kind, m, 0) for m in range(microbatches)])
                self.assertEqual(in_flight(order), min(microbatches, depth - rank))
        self.assertEqual(pipeline.order(8, 1, 4), pipeline.plain(8, 4))
        self.assertEqual(pipeline.order(8, 2, 4), pipeline.interleaved(8, 2, 4))

    def test_refuses_what_is_no_pipeline(self):
        for wrong in [(5, 2, 2, 0), (0, 1, 1, 0), (4, 0, 2, 0), (4, 2, 0, 0), (4, 2, 2, 2)]:
            with self.assertRaises(ValueError):
                pipeline.interleaved(*wrong)
        for wrong in [(0, 1, 0), (1, 0, 0), (4, 2, 2)]:
            with self.assertRaises(ValueError):
                pipeline.plain(*wrong)


class Recording(unittest.TestCase):
    def test_plain_drops_stacks_only(self):
        event = {"action": "alloc", "addr": 1 << 47, "size": 512, "user_metadata": "iter=0;phase=F"}
        segment = {"segment_pool_id": (0, 0), "is_expandable": False, "blocks": [dict(event)]}
        snapshot = {
            "segments": [dict(segment, frames=[])],
            "device_traces": [[dict(event, frames=[{"line": 1}], compile_context=None)], []],
        }
        self.assertEqual(
            recording.plain(snapshot), {"segments": [segment], "device_traces": [[event], []]}
        )

    def test_plain_refuses_other_types(self):
        class Number(int):
            pass

        for value in (Number(1), object(), {1}, b"bytes", {"a": [Number(1)]}, {Number(1): 1}):
            with self.assertRaises(TypeError):
                recording.plain(value)

    def test_write_gives_the_same_bytes_again(self):
        snapshot = {"device_traces": [[{"action": "alloc", "size": size} for size in range(99)]]}
        with tempfile.TemporaryDirectory() as folder:
            paths = [os.path.join(folder, name) for name in ("a.pickle.gz", "b.pickle.gz")]
            sizes = [recording.write(snapshot, path) for path in paths]
            contents = [open_read(path) for path in paths]
            self.assertEqual(sorted(os.listdir(folder)), ["a.pickle.gz", "b.pickle.gz"])
        self.assertEqual(contents[0], contents[1])
        self.assertEqual(sizes, [len(contents[0])] * 2)
        self.assertEqual(pickle.loads(gzip.decompress(contents[0])), snapshot)

    def test_the_bundled_one_is_plain_and_whole(self):
        path = os.path.join(WORKLOADS, "gpt2-vpp-recompute.pickle.gz")
        self.assertLess(os.path.getsize(path), 1 << 20)
        with gzip.open(path) as packed:
            snapshot = pickle.load(packed)
        self.assertEqual(recording.plain(snapshot), snapshot)
        (events,) = snapshot["device_traces"]
        labels = {event["user_metadata"] for event in events}
        expected = {"iter=%d;phase=%s" % (n, p) for n in range(4) for p in ("F", "B", "opt")}
        self.assertEqual(labels - {""}, expected)
        # What the job reserved, as torch reported it when it was recorded.
        self.assertEqual(sum(s["total_size"] for s in snapshot["segments"]), 11200888832)


def open_read(path):
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    unittest.main()
