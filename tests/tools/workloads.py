"""Tests of tools/workloads: workloads.py [--long]. The schedule, what a recording may hold, and, with --long and
where torch is, the jobs on the processor."""

import contextlib
import gzip
import io
import json
import os
import pickle
import stat
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock

import here  # first: it knows where the tests and tools are
import drawing.snapshot
import pipeline
import recording
import suite

try:
    import torch
except ImportError:
    torch = None
LONG = "--long" in sys.argv


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

    def test_labels_say_the_innermost_module_of_each_thread(self):
        told = []

        class Told(recording.Labels):
            def set_label(self, text):
                told.append(text)

        labels = Told()
        labels.label(2, "F", 1)
        labels.enter("a")
        labels.enter("a.b")
        labels.leave("a")  # its backward may end first
        labels.leave("a.b")
        labels.enter("left over")
        labels.label(3, "B")

        def other():
            labels.enter("c")
            labels.leave("c")
            labels.leave("never entered")

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        self.assertEqual(told, ["iter=2;phase=F;mb=1", "iter=2;phase=F;mb=1;module=a",
                                "iter=2;phase=F;mb=1;module=a.b", "iter=2;phase=F;mb=1;module=a.b",
                                "iter=2;phase=F;mb=1", "iter=2;phase=F;mb=1;module=left over",
                                "iter=3;phase=B", "iter=3;phase=B;module=c", "", ""])

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

    def test_write_keeps_what_others_have_apart(self):
        with tempfile.TemporaryDirectory() as folder:
            path, other = os.path.join(folder, "a.pickle.gz"), os.path.join(folder, "other")
            open(other, "w").close()
            os.symlink(other, path + ".part")
            recording.write({}, path)
            self.assertEqual(os.path.getsize(other), 0)
            for mode in (0o600, 0o444):
                os.chmod(path, mode)
                recording.write({}, path)
                self.assertEqual(os.stat(path).st_mode & 0o7777, mode)
            with self.assertRaises(TypeError):
                recording.write({"a": object()}, path)
            self.assertEqual(recording.write({}, path), os.path.getsize(path))
            self.assertEqual(sorted(os.listdir(folder)), ["a.pickle.gz", "a.pickle.gz.part", "other"])

    def test_write_leaves_a_pipe_or_a_device_in_its_place(self):
        """A file once took the place of /dev/null, for who may write beside it."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "pipe")
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            self.addCleanup(os.close, reader)
            for write in (lambda: recording.write({"a": 1}, path), lambda: drawing.snapshot.Memory().write(path)):
                size = write()
                self.assertTrue(stat.S_ISFIFO(os.stat(path).st_mode))
                self.assertEqual(len(os.read(reader, 1 << 16)), size)
            self.assertEqual(os.listdir(folder), ["pipe"])

    def test_write_follows_no_link(self):
        with tempfile.TemporaryDirectory() as folder:
            path, other = os.path.join(folder, "a.pickle.gz"), os.path.join(folder, "other")
            open(other, "w").close()
            os.symlink(other, path + ".guessed.part")
            with unittest.mock.patch.object(recording.secrets, "token_hex", lambda _: "guessed"):
                with self.assertRaises(FileExistsError):
                    recording.write({}, path)
            self.assertEqual(os.path.getsize(other), 0)
            self.assertFalse(os.path.exists(path))

    def test_the_bundled_one_is_plain_and_whole(self):
        path = os.path.join(here.WORKLOADS, "gpt2-vpp-recompute.pickle.gz")
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


TINY = "--layers 2 --hidden 32 --heads 2 --vocabulary 64 --device cpu --quiet"
TRAINED = TINY + " --sequence 16 --microbatch-size 2 --iterations 4"


class Weave(here.Folder):
    """Long recordings made of short ones."""

    def recorded(self, name, sizes):
        """A recording whose n-th iteration allocates `sizes(n)` and frees all of it."""
        events = [dict(action="alloc", addr=1, size=512, stream=0, user_metadata="")]
        for n in range(4):
            label = "iter=%d;phase=F" % n
            for address, size in enumerate(sizes(n), 2):
                events.append(dict(action="alloc", addr=address, size=size, stream=0,
                                   user_metadata=label))
            for action in ("free_requested", "free_completed"):
                for address, size in enumerate(sizes(n), 2):
                    events.append(dict(action=action, addr=address, size=size, stream=0,
                                       user_metadata=label))
        recording.write({"segments": [], "device_traces": [events]}, self.path(name))
        return self.path(name)

    def weave(self, *arguments):
        return subprocess.run([sys.executable, os.path.join(here.WORKLOADS, "weave.py"), *arguments],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def allocated(self):
        """Sizes that each iteration of the answer allocates."""
        with gzip.open(self.path("out"), "rb") as file:
            (events,) = pickle.load(file)["device_traces"]
        iterations = []
        for event in events[1:]:
            if event["action"] == "alloc":
                if event["user_metadata"] and (
                    not iterations or event["user_metadata"] != iterations[-1][0]
                ):
                    iterations.append((event["user_metadata"], []))
                if iterations:
                    iterations[-1][1].append(event["size"])
        return [sizes for _, sizes in iterations]

    def test_switch_repeats_each_in_turn(self):
        small = self.recorded("a", lambda n: [1024, 2048])
        large = self.recorded("b", lambda n: [4096, 8192])
        done = self.weave("switch", small, large, "--every", "4", "--iterations", "12", "-o",
                          self.path("out"))
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.allocated(), [[1024, 2048]] * 4 + [[4096, 8192]] * 4
                         + [[1024, 2048]] * 4)

    def test_add_keeps_a_tensor_more(self):
        one = self.recorded("a", lambda n: [1024, 2048])
        for where, expected in (((), [[1024, 2048]] * 4),
                                (("--iteration", "2"), [[1024, 2048]] * 2 + [[1024, 700, 2048]]
                                 + [[1024, 2048]])):
            done = self.weave("add", one, "--bytes", "700", *where, "-o", self.path("out"))
            self.assertEqual(done.returncode, 0, done.stdout)
            with gzip.open(self.path("out"), "rb") as file:
                (events,) = pickle.load(file)["device_traces"]
            self.assertEqual([e["action"] for e in events if e["size"] == 700], ["alloc"])
            self.assertEqual(events[0]["size"], 512 if where else 700)
            self.assertEqual([[size for size in sizes if size != 512]
                              for sizes in self.allocated()], expected)
        done = self.weave("add", one, "--iteration", "4", "-o", self.path("out"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("no iteration 4 in 4", done.stdout)

    def test_what_would_be_ignored_or_lost_is_refused(self):
        one = self.recorded("a", lambda n: [1024])
        before = open_read(one)
        os.mkdir(self.path("folder"))
        for line, code, part in (
            (["resume", one, "-o", one], 2, "a is read, and would be overwritten"),
            (["resume", one, "--iterations", "2"], 2, "resume takes no --iterations"),
            (["add", one, "--every", "2"], 2, "add takes no --every"),
            (["switch", one, "--bytes", "2"], 2, "switch takes no --bytes"),
            (["switch", one, "--iterations", "2"], 1, "it begins with 3 that were recorded"),
            (["resume", one, "-o", self.path("folder")], 1, "folder"),
        ):
            done = self.weave(*line, *([] if "-o" in line else ["-o", self.path("out")]))
            self.assertEqual(done.returncode, code, line)
            self.assertIn(part, done.stdout.splitlines()[-1])
        self.assertEqual(open_read(one), before)
        self.assertEqual(sorted(os.listdir(self.path("."))), ["a", "folder"])

    def test_resume_has_from_the_start_what_the_first_step_made(self):
        events = []
        for n in range(4):
            label = "iter=%d;phase=F" % n
            def add(action, address, size):
                events.append(dict(action=action, addr=address, size=size, stream=0,
                                   user_metadata=label))
            add("alloc", 100 + n, 1024)
            if n == 0:
                add("alloc", 1, 7000)  # a state
                add("alloc", 2, 9000)  # freed later
            for kind in ("free_requested", "free_completed"):
                add(kind, 100 + n, 1024)
                if n == 2:
                    add(kind, 2, 9000)
        events.insert(0, dict(action="alloc", addr=9, size=512, stream=0, user_metadata=""))
        recording.write({"segments": [], "device_traces": [events]}, self.path("a"))
        done = self.weave("resume", self.path("a"), "-o", self.path("out"))
        self.assertEqual(done.returncode, 0, done.stdout)
        with gzip.open(self.path("out"), "rb") as file:
            (events,) = pickle.load(file)["device_traces"]
        self.assertEqual([e["size"] for e in events[:2]], [512, 7000])
        self.assertEqual(self.allocated(), [[1024, 9000], [1024], [1024], [1024]])

    def test_what_is_no_recording_is_refused(self):
        whole = self.recorded("a", lambda n: [1024])
        with open(whole, "rb") as file:
            data = file.read()
        for name, content in (("cut", data[:-20]), ("spoilt", data[:30] + b"\xff" * 9 + data[39:]),
                              ("plain", b"no gzip"), ("code", None)):
            with open(self.path(name), "wb") as file:
                file.write(content if content is not None
                           else gzip.compress(pickle.dumps(subprocess.Popen)))
        for name in ("none", "cut", "spoilt", "plain", "code"):
            done = self.weave("switch", self.path(name), "-o", self.path("out"))
            self.assertEqual(done.returncode, 1, name)
            self.assertRegex(done.stdout, "^weave.py: .* is no gzipped snapshot of torch: ")
            self.assertEqual(len(done.stdout.splitlines()), 1)
        done = self.weave("switch", whole, "-o", self.path("no/such/folder"))
        self.assertEqual(done.returncode, 1)
        self.assertFalse(os.path.exists(self.path("out")))


@unittest.skipIf(torch is None, "torch is not there")
class Jobs(unittest.TestCase):
    def run_job(self, name, arguments):
        import importlib

        import harness

        job = importlib.import_module(name)
        check = getattr(job, "check", None)
        options = harness.read("", job.add_options, 4, check, arguments.split())
        told = harness.run(name, job.make, options, recording.Recorder(None))
        self.assertEqual(len(told["losses"]), options.iterations)
        self.assertIsNone(told["out_of_memory"])
        return told

    def losses(self, name, arguments):
        return self.run_job(name, arguments)["losses"]

    def test_schedule_and_recomputation_change_no_loss(self):
        for name, more in [
            ("gpt2", " --dropout 0"),
            ("llama", " --inner 48"),
            ("moe", " --inner 16 --shared-inner 16 --experts 6 --chosen 2"),
        ]:
            plain = TRAINED + more + " --virtual-stages 1 --depth 4"
            losses = self.losses(name, plain)
            self.assertLess(losses[-1], losses[0])
            self.assertEqual(losses, self.losses(name, plain + " --recompute"))
            staged = self.losses(name, TRAINED + more + " --virtual-stages 2 --depth 2")
            # Gradients of several microbatches are summed in another order.
            self.assertAlmostEqual(losses[0], staged[0], places=6)
            self.assertAlmostEqual(losses[-1], staged[-1], places=2)

    def test_gathering_gives_what_it_gathers(self):
        """Backward sees the same weights whether they were kept, gathered again or recomputed."""
        arguments = TRAINED + " --inner 48 --world 4"
        losses = self.losses("zero3", arguments)
        self.assertLess(losses[-1], losses[0])
        for more in (" --recompute", " --offload", " --world 1"):
            again = self.losses("zero3", arguments + more)
            self.assertEqual(losses == again, more != " --world 1")

    def test_sizes_change_while_it_runs(self):
        told = self.run_job("llama", TRAINED + " --inner 48 --microbatch-size 1,3 --every 1 "
                            "--sequence 8,16 --virtual-stages 1")
        self.assertEqual(told["microbatch_size"], [1, 3])
        told = self.run_job("lora", TRAINED + " --inner 48 --sequence 256 --iterations 12")
        self.assertGreater(len(set(told["lengths"])), 3)
        self.assertLessEqual(max(told["lengths"]), 256)

    def recorded(self, name, line):
        """Events of a job that fake.py recorded."""
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "job.pickle.gz")
            subprocess.run(
                [sys.executable, os.path.join(here.WORKLOADS, "fake.py"), name, "--record", path,
                 *line.split()],
                check=True, stdout=subprocess.DEVNULL)
            with gzip.open(path) as packed:
                return pickle.load(packed)["device_traces"][0]

    def test_a_job_is_recorded_without_a_gpu(self):
        """At twice the microbatch the same tensors come, and most are twice as large."""
        sizes = []
        for samples in (2, 4):
            events = self.recorded("llama", TRAINED + " --inner 48 --virtual-stages 2 --iterations 3"
                                   " --microbatch-size %d" % samples)
            live = {}
            for event in events:
                if event["action"] == "alloc":
                    live[event["addr"]] = event["size"]
                else:
                    self.assertEqual(live[event["addr"]], event["size"])
                if event["action"] == "free_completed":
                    del live[event["addr"]]
            self.assertGreater(len(live), 10)  # weights and what the optimizer keeps
            sizes.append([event["size"] for event in events if event["action"] == "alloc"
                          and event["user_metadata"].startswith("iter=2;")])
        self.assertLess(len(set(sizes[1])), len(sizes[1]) / 4)
        doubled = sum(2 * a == b for a, b in zip(*sizes))
        self.assertEqual(len(sizes[0]), len(sizes[1]))
        self.assertGreater(doubled, len(sizes[0]) / 3)

    def test_experts_are_recorded_without_a_gpu(self):
        """Their sizes change from iteration to iteration; what is recomputed is what was computed."""
        events = self.recorded("moe", TRAINED + " --inner 48 --shared-inner 64 --experts 6 --chosen 2 --recompute"
                                 " --virtual-stages 1 --iterations 4")
        sizes = [[event["size"] for event in events if event["action"] == "alloc"
                  and event["user_metadata"].startswith("iter=%d;" % number)] for number in (2, 3)]
        self.assertEqual(len(sizes[0]), len(sizes[1]))
        changed = sum(a != b for a, b in zip(*sizes))
        self.assertGreater(changed, len(sizes[0]) / 20)
        self.assertLess(changed, len(sizes[0]) / 2)

    def test_events_say_their_microbatch_and_module(self):
        events = self.recorded("moe", TRAINED + " --inner 48 --shared-inner 64 --experts 3 --chosen 2"
                               " --virtual-stages 1 --microbatches 2")
        last = [event["user_metadata"] for event in events if event["user_metadata"].startswith("iter=3;")]
        for kind in "FB":
            for microbatch in range(2):
                here = {text for text in last if text.startswith("iter=3;phase=%s;mb=%d" % (kind, microbatch))}
                for name in ("0.blocks.0.mlp.experts.2.up", "0.blocks.1.attention.query", "0.blocks.1.mlp.router"):
                    self.assertIn("iter=3;phase=%s;mb=%d;module=%s" % (kind, microbatch, name), here)
        # What an expert keeps for its backward is allocated in its forward and freed in its backward.
        where, pairs = {}, set()
        for event in events:
            if event["action"] == "alloc":
                where[event["addr"]] = event["user_metadata"]
            elif event["action"] == "free_completed" and event["addr"] in where:
                pairs.add((where[event["addr"]], event["user_metadata"]))
        kept = ("iter=2;phase=F;mb=1;module=0.blocks.1.mlp.experts.1.up", "iter=2;phase=B;mb=1;module=0.blocks.1.mlp.experts.1")
        self.assertTrue(kept in pairs)

    def test_gathered_layers_are_recorded_without_a_gpu(self):
        """A layer is gathered in forward and again in backward, and not kept from one to the other."""
        events = self.recorded("zero3", TRAINED + " --inner 48 --layers 4 --virtual-stages 1 --microbatches 1")
        last = [event for event in events if event["user_metadata"].startswith("iter=3;")]
        begun, gathered = {}, []
        for at, event in enumerate(last):
            if event["action"] == "alloc":
                begun[event["addr"]] = at
            elif event["action"] == "free_completed" and event["addr"] in begun:
                gathered.append((event["size"], at - begun.pop(event["addr"])))
        layer = 2 * (4 * 32 * 32 + 3 * 32 * 48)  # attention and SwiGLU in bfloat16
        times = [length for size, length in gathered if size == layer]
        self.assertGreaterEqual(len(times), 8)
        self.assertLess(max(times), len(last) / 4)

    def test_a_bad_line_records_nothing(self):
        import fake

        names = ["detect", "generate", "gpt2", "llama", "lora", "moe", "translate", "zero3"]
        self.assertEqual(fake.workloads(), names)
        for line, code, part in (
            ("--help", 0, "{%s}" % ",".join(names)),
            ("gpt2 --help", 0, "--dropout"),
            ("", 2, "workload"),
            ("harness --record a", 2, "invalid choice: 'harness'"),
            ("gpt2", 2, "--record FILE is missing"),
            ("gpt2 --record", 2, "expected one argument"),
            ("gpt2 --record /no/such/a", 2, "no folder for /no/such/a"),
            ("gpt2 --record a --allocator pleat", 2, "only its own allocator"),
            ("gpt2 --record a --device cuda", 2, "recorded on no device"),
            ("gpt2 --record a --out b", 2, "nothing is measured"),
            ("gpt2 --record a --event-us 0", 2, "--event-us must be at least 1"),
            ("gpt2 --record a --nonsense", 2, "unrecognized arguments: --nonsense"),
        ):
            said = io.StringIO()
            with unittest.mock.patch.object(sys, "argv", ["fake.py", *line.split()]), \
                    contextlib.redirect_stdout(said), contextlib.redirect_stderr(said), \
                    self.assertRaises(SystemExit) as end:
                fake.main()
            self.assertEqual(end.exception.code, code, line)
            self.assertIn(part, said.getvalue(), line)

    def test_a_bad_line_begins_no_job(self):
        for name, line, part in (
            ("gpt2", "--device nothing", "'nothing' is none of: cuda, cuda:N, cpu"),
            ("gpt2", "--device meta", "'meta' is none of"),
            ("gpt2", "--device cpu --allocator pleat", "only its own allocator"),
            ("gpt2", "--device cpu --budget 5", "only its own allocator"),
            ("gpt2", "--device cpu --budget -5", "--budget must be at least 0"),
            ("gpt2", "--device cpu --plan a.plan", "only --allocator pleat takes one"),
            ("gpt2", "--allocator pleat --plan /no/such/a.plan", "no file /no/such/a.plan"),
            ("gpt2", "--device cpu --out /no/such/a", "--out: /no/such/a is a folder, or in one"),
            ("gpt2", "--device cpu --out /", "--out: / is a folder"),
            ("gpt2", "--record /no/such/a", "--record: /no/such/a is a folder, or in one"),
            ("gpt2", "--device cpu --record a", "fake.py records without a GPU"),
            ("gpt2", "--device cpu --dropout 2", "--dropout must be from 0"),
            ("generate", "--device cpu --hidden 31", "--hidden must be a multiple of --heads"),
            ("translate", "--device cpu --hidden 31", "--hidden must be a multiple of --heads"),
            ("translate", "--device cpu --sequence 7", "--sequence must be at least 8"),
            ("detect", "--device cpu --least 33", "--least must be a multiple of 32"),
            ("detect", "--device cpu --most 32", "and at most --most"),
        ):
            with contextlib.redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit) as end:
                self.run_job(name, line)
            self.assertEqual(end.exception.code, 2, line)
            self.assertIn(part, said.getvalue(), line)

    def test_lora_trains_its_matrices_only(self):
        import harness
        import lora

        arguments = (TRAINED + " --inner 48 --rank 2").split()
        job = lora.make(harness.read("", lora.add_options, 4, lora.check, arguments),
                        recording.Recorder(None))
        before = {name: weight.clone() for name, weight in job.stages.named_parameters()}
        for number in range(3):
            job.iteration(number)
        for name, weight in job.stages.named_parameters():
            trained = name.endswith((".down", ".up"))
            self.assertEqual(weight.requires_grad, trained, name)
            self.assertEqual(torch.equal(weight, before[name]), not trained, name)

    def test_generation_grows_and_repeats(self):
        arguments = TINY + " --inner 48 --prompt 7 --tokens 5 --batch 1 --grow 1 --most 3"
        losses = self.losses("generate", arguments + " --iterations 5")
        self.assertEqual(losses, self.losses("generate", arguments + " --iterations 5"))
        self.assertGreater(len(set(losses)), 1)

    def test_translation_draws_two_lengths(self):
        line = (
            "--device cpu --layers 1 --hidden 32 --heads 2 --inner 48 --vocabulary 61"
            " --sequence 200 --tokens 400 --iterations 8"
        )
        losses = self.losses("translate", line)
        self.assertEqual(losses, self.losses("translate", line))
        self.assertGreater(len(set(losses)), 1)
        drawn = self.run_job("translate", line)["batches"]
        self.assertGreater(len({source for _, source, _ in drawn}), 4)
        self.assertGreater(len({target / source for _, source, target in drawn}), 4)
        for samples, source, target in drawn:
            self.assertLessEqual(samples * max(source, target), 400)

    def test_detection_draws_sizes_of_images(self):
        line = "--device cpu --batch 2 --least 32 --most 64 --classes 2 --iterations 4"
        result = self.run_job("detect", line)
        self.assertEqual(result["losses"], self.losses("detect", line))
        self.assertGreater(len({tuple(sides) for sides in result["images"]}), 1)
        for sides in result["images"]:
            self.assertEqual([side % 32 for side in sides], [0, 0])

    def test_keys_and_values_kept_give_what_all_tokens_give(self):
        import layers

        torch.manual_seed(1)
        block = layers.Block(32, 2, layers.SwiGLU(32, 48))
        x = torch.randn(2, 6, 32)
        cache = []
        parts = [block(x[:, :3], cache)] + [block(x[:, i : i + 1], cache) for i in range(3, 6)]
        torch.testing.assert_close(torch.cat(parts, 1), block(x))


@unittest.skipIf(torch is None, "torch is not there")
class Compare(unittest.TestCase):
    def side(self, runs):
        import argparse

        import compare

        side = compare.Side("lora", argparse.Namespace(deterministic=True, short=True), None)
        side.runs = runs
        told = {"runs": {one: side.figures(one) for one in runs}}
        return side, told, compare.missed(side, told)

    def line(self, efficiency, seconds, losses, allocated=100 << 20):
        return {"efficiency": efficiency, "seconds": [9.0] * 4 + seconds, "losses": losses,
                "peak_allocated_bytes": allocated, "peak_reserved_bytes": allocated / efficiency,
                "first_seconds": 9.0, "out_of_memory": None}

    def test_iterations_are_compared_with_the_same_of_native(self):
        native = [self.line(0.9, [1.0, 2.0, 4.0], [3.0]), self.line(0.9, [1.0, 2.0, 9.0], [3.0])]
        pleat = [self.line(0.99, [1.1, 2.2, 6.5], [3.0]), self.line(0.99, [1.1, 2.2, 6.5], [3.0])]
        pleat[0]["seconds"][1:3], pleat[1]["seconds"][1:3] = [9.0, 13.5], [18.0, 9.0]
        side, told, lines = self.side({"native": native, "pleat": pleat})
        self.assertAlmostEqual(told["runs"]["pleat"]["seconds_to_native"], 1.1)
        self.assertEqual(told["runs"]["pleat"]["learning_to_native"], [1.5, 1.25])
        self.assertTrue(told["runs"]["pleat"]["losses_equal"])
        self.assertEqual(lines, [])

    def test_a_run_that_ended_before_it_was_steady_has_no_seconds(self):
        """It was the fastest, with 0."""
        import compare

        native = self.line(0.9, [1.0], [3.0])
        ended = dict(self.line(0.9, [], [3.0]), efficiency=None, out_of_memory="of 80 GiB")
        ended["seconds"] = [9.0, 9.0]
        _, told, lines = self.side({"native": [native], "pleat-saved": [ended]})
        told = told["runs"]["pleat-saved"]
        self.assertEqual((told["seconds_per_iteration"], told["seconds_to_native"]), (None, None))
        self.assertEqual(compare.row("lora", "pleat-saved", told)[6:8], ("-", "-"))
        self.assertIn("efficiency 0.0000 with a plan", lines[0])

    def test_allocators_abreast_change_gpus_from_round_to_round(self):
        import compare

        side, _, _ = self.side({})
        side.goal, given = 0.97, []
        begun = threading.Barrier(2)

        def run(arguments, log, allocator, gpu):
            begun.wait(60)  # both run at the same time, or neither
            given.append((allocator, gpu))
            return self.line(0.9 if allocator == "native" else 0.99, [1.0], [3.0])

        with unittest.mock.patch.object(compare, "run", run):
            for _ in range(2):
                side.round(["native", "pleat"], None, ["4", "7"])
        self.assertEqual(sorted(given), [("native", "4"), ("native", "7"), ("pleat", "4"),
                                         ("pleat", "7")])
        self.assertEqual(sorted(given[:2]), [("native", "4"), ("pleat", "7")])
        self.assertEqual(len(side.runs["pleat"]), 2)

    def test_runs_take_turns(self):
        import compare

        line = ["zero3.py", *TRAINED.split()[:-1]]
        with tempfile.NamedTemporaryFile("r") as log:
            many = [([*line, count], log.name, "native") for count in ("3", "5")]
            order, turn = [], compare.Run.turn

            def noted(one):
                order.append(one.name.split("--iterations ")[1][0])
                return turn(one)

            with unittest.mock.patch.object(compare.Run, "turn", noted):
                told = compare.run_in_turns(many)
            self.assertEqual("".join(order), "35353555")
            self.assertEqual([len(one["losses"]) for one in told], [3, 5])
            self.assertEqual(told[0]["losses"], told[1]["losses"][:3])
            with self.assertRaises(compare.Failed) as failure:
                compare.run_in_turns([(["gpt2.py", "--iterations", "1"], log.name, "native")])
            self.assertIn("--iterations 1 --allocator native: exit 2", str(failure.exception))
            self.assertIn("a steady iteration shows from the third on", log.read())

    def test_a_turn_that_nobody_gives_ends_the_run(self):
        import argparse

        import harness

        turns = harness.Turns(argparse.Namespace(in_turns=True))
        with unittest.mock.patch("os.read", side_effect=[b"\n", b""]):
            turns.wait()
            with self.assertRaises(SystemExit) as end:
                turns.wait()
        self.assertIn("standard input ended", str(end.exception))

    def test_what_does_not_hold_is_named(self):
        runs = {
            "native": [self.line(0.9, [1.0], [3.0])],
            "expandable": [self.line(0.96, [1.0], [3.0])],
            "pleat": [self.line(0.95, [1.0], [3.0])],
            "pleat-saved": [self.line(0.96, [1.0], [3.1])],
        }
        _, _, lines = self.side(runs)
        self.assertEqual(len(lines), 3)
        for line, part in zip(lines, ("another's 0.9600", "not 0.970", "other losses")):
            self.assertIn(part, line)

    def answer(self, folder, file, name, efficiency, **more):
        import compare

        runs = {"native": [self.line(0.9, [1.0], [3.0])],
                "pleat": [self.line(efficiency, [1.0], [3.0])]}
        side, told, lines = self.side(runs)
        lines = [line.replace("lora:", name + ":", 1) for line in lines]
        path = os.path.join(folder, file)
        compare.write(path, {name: dict(told, **more)}, lines)
        return path

    def merge(self, *arguments):
        """As a program of its own would end; here, since torch takes seconds to import."""
        import compare

        said, code = io.StringIO(), 0
        with unittest.mock.patch.object(sys, "argv", ["compare.py", *arguments]), \
                contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            try:
                compare.main()
            except SystemExit as end:
                code = end.code
        if isinstance(code, str):
            said.write(code + "\n")
            code = 1
        return subprocess.CompletedProcess(arguments, code or 0, said.getvalue())

    def test_runs_in_parts_make_one_table(self):
        with tempfile.TemporaryDirectory() as folder:
            cap = {"budget_bytes": 5 << 30, "native": False, "pleat": True}
            parts = [self.answer(folder, "a", "lora", 0.8), self.answer(folder, "b", "gpt2-vpp", 0.99),
                     self.answer(folder, "c", "lora", 0.97, cap=cap)]
            failed = os.path.join(folder, "d")
            with open(failed, "w") as out:
                json.dump({"rows": [], "caps": {}, "missed": ["zero3: no JSON line"]}, out)
            whole = os.path.join(folder, "whole")
            done = self.merge("--out", whole, "--check", "--merge", *parts[:2])
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("does not hold: lora: efficiency 0.8000", done.stdout)
            # Run again, the first lora counts no more.
            done = self.merge("--check", "--merge", whole, parts[2])
            self.assertEqual(done.returncode, 0, done.stdout)
            lines = [line.split()[:2] for line in done.stdout.splitlines()[1:5]]
            self.assertEqual(lines, [["gpt2-vpp", "native"], ["gpt2-vpp", "pleat"],
                                     ["lora", "native"], ["lora", "pleat"]])
            self.assertIn("lora under 5.000 GiB: native runs out of memory, pleat trains", done.stdout)
            self.assertNotIn("does not hold", done.stdout)
            done = self.merge("--check", "--merge", failed, parts[1])
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn("does not hold: zero3: no JSON line", done.stdout)
            done = self.merge("--merge", os.path.join(folder, "nothing"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("nothing cannot be read: No such file", done.stdout)

    def test_what_is_no_answer_is_named(self):
        row = '{"workload": "lora", "allocator": "native"}'
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "answer.json")
            for text, part in (("import torch", "Expecting value"), ("[]", "list"), ("null", "NoneType"),
                               ("{}", "it has no 'rows'"),
                               ('{"rows": [%s], "caps": {}, "missed": []}' % row, "it has no 'pleat'"),
                               ('{"rows": [], "caps": [], "missed": []}', "items"),
                               ('{"rows": [], "caps": {}, "missed": [7]}', "split"),
                               ('{"rows": [], "caps": {"lora": {}}, "missed": []}', "it has no 'lora'")):
                with open(path, "w") as out:
                    out.write(text)
                done = self.merge("--merge", path)
                self.assertEqual(done.returncode, 1, text)
                self.assertEqual(len(done.stdout.splitlines()), 1, done.stdout)
                self.assertIn("%s is no answer that --out wrote: " % path, done.stdout)
                self.assertIn(part, done.stdout)

    def test_a_bad_line_runs_nothing(self):
        self.assertIn("also run each under 2 % above what", " ".join(self.merge("--help").stdout.split()))
        there = torch.cuda.is_available()
        for line, part in (
            ("--only nothing", "'nothing' is none of: gpt2-vpp"),
            ("--only lora,lora", "'lora' is asked for twice"),
            ("--only=", "'' is none of"),
            ("--allocators=", "'' is none of"),
            ("--allocators native,native", "'native' is asked for twice"),
            ("--rounds 0", "--rounds must be at least 1"),
            ("--short --only lora", "--short takes no --only"),
            ("--short --rounds 2", "--short takes no --rounds"),
            ("--merge a --only lora", "--merge takes no --only"),
            ("--merge a --in-turns", "--merge takes no --in-turns"),
            ("--in-turns --abreast", "--in-turns takes no --abreast"),
            ("--merge a --caps", "--merge takes no --caps"),
            ("--merge a --out /no/such/b", "no folder for /no/such/b"),
            ("--caps --allocators native", "--caps: the budget is of what is live under pleat"),
            ("--allocators pleat-saved --command /no/such/pleat", "no program /no/such/pleat"),
            ("--only lora", "" if there else "sees no GPU here"),
        ):
            if not part:
                continue
            done = self.merge(*line.split())
            self.assertEqual(done.returncode, 2, line)
            self.assertIn(part, done.stdout.splitlines()[-1], line)


def open_read(path):
    with open(path, "rb") as file:
        return file.read()


if __name__ == "__main__":
    if not LONG:
        del Jobs, Compare  # they take minutes: tools/check --long runs them
    suite.main(needs_torch=LONG)
