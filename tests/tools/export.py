"""Tests of `pleat export`: export.py PLEAT SNAPSHOT."""

import json
import os
import pickle
import subprocess
import sys
import tempfile

import here  # first: it knows where the tests are
import suite

PLEAT, SNAPSHOT = sys.argv[1:3]
run = here.runs(PLEAT)


class Refuser(pickle.Unpickler):
    """Loads built-in types only."""

    def find_class(self, module, name):
        raise AssertionError(f"the pickle asks for {module}.{name}")


class Export(here.Folder):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.of_the_job = folder.name  # what several tests look at

    def export(self, form, source=SNAPSHOT):
        path = os.path.join(self.of_the_job if source == SNAPSHOT else self.folder, "exported." + form)
        if source == SNAPSHOT and os.path.exists(path):
            return path
        ran = run("export", source, "--format", form, "-o", path, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertEqual(json.loads(ran.stdout)["bytes"], os.path.getsize(path))
        return path

    def facts(self, path):
        ran = run("import", path, "--json")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return json.loads(ran.stdout)

    def without_segments(self, path):
        """What is in a recording, the recorded allocator's own doings aside."""
        facts = self.facts(path)
        facts["entries"] -= facts.pop("segments")
        facts.pop("peak_segment_bytes")
        return facts

    def test_snapshot_reads_back_as_the_same_requests(self):
        path = self.export("snapshot")
        self.assertEqual(self.without_segments(path), self.without_segments(SNAPSHOT))
        # This job was recorded under the native allocator: so its segments are what was recorded.
        before, after = self.facts(SNAPSHOT), self.facts(path)
        self.assertEqual(after["peak_segment_bytes"], before["peak_segment_bytes"])
        self.assertEqual(after["segments"], before["segments"])
        # So a plan of the one is a plan of the other.
        plan = self.path("p.plan")
        self.assertEqual(run("plan", SNAPSHOT, "-o", plan).returncode, 0)
        self.assertEqual(run("verify", plan, "--trace", path).returncode, 0)

    def assert_segments_hold_blocks(self, path):
        with open(path, "rb") as file:
            loaded = Refuser(file).load()
        there, live = {}, {}
        for event in loaded["device_traces"][0]:
            address, action = event["addr"], event["action"]
            if action == "segment_alloc":
                for other, size in there.items():
                    self.assertTrue(address >= other + size or other >= address + event["size"], event)
                there[address] = event["size"]
            elif action == "segment_free":
                self.assertEqual(there.pop(address), event["size"])
            elif action == "alloc":
                live[address] = event["size"]
                home = max(a for a in there if a <= address)
                self.assertLessEqual(address + event["size"], home + there[home])
            elif action == "free_completed":
                del live[address]
        self.assertEqual({s["address"]: s["total_size"] for s in loaded["segments"]}, there)
        seen = {}
        for segment in loaded["segments"]:
            at = segment["address"]
            for block in segment["blocks"]:
                self.assertEqual(block["address"], at)
                at += block["size"]
                if block["state"] == "active_allocated":
                    seen[block["address"]] = block["requested_size"]
            self.assertEqual(at, segment["address"] + segment["total_size"])
            active = [b for b in segment["blocks"] if b["state"] != "inactive"]
            self.assertEqual(segment["active_size"], sum(b["size"] for b in active))
        self.assertEqual(seen, live)
        return loaded["device_traces"][0]

    def test_snapshot_has_segments_that_hold_its_blocks(self):
        self.assert_segments_hold_blocks(self.export("snapshot"))

    def test_segments_are_given_back_where_the_device_is_full(self):
        """And one is made where some of them were, in one event: the device has 16 TiB."""
        events = []
        for number, gib in enumerate([100, *range(1000, 2600, 40)]):
            tensor = dict(addr=(1 << 50) + (number << 44), size=gib << 30, stream=0)
            events.append(dict(tensor, action="alloc"))
            if number > 0:
                events += [dict(tensor, action=action) for action in ("free_requested", "free_completed")]
        path = self.path("growing.pickle")
        with open(path, "wb") as file:
            pickle.dump({"segments": [], "device_traces": [events]}, file)
        exported = self.assert_segments_hold_blocks(self.export("snapshot", path))
        self.assertGreater(sum(event["action"] == "segment_free" for event in exported), 10)

    def test_snapshot_keeps_stack_frames(self):
        frames = [dict(name="forward", filename="model.py", line=7),
                  dict(name="<module>", filename="train (2).py", line=120)]
        events = [dict(action="alloc", addr=512, size=100, stream=0, time_us=1, frames=frames),
                  dict(action="alloc", addr=1024, size=200, stream=0, time_us=2, frames=[])]
        path = self.path("frames.pickle")
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[], device_traces=[events]), file)
        with open(self.export("snapshot", path), "rb") as file:
            loaded = pickle.load(file)
        allocs = [e for e in loaded["device_traces"][0] if e["action"] == "alloc"]
        self.assertEqual([e["frames"] for e in allocs], [frames, []])
        blocks = [b for s in loaded["segments"] for b in s["blocks"]]
        self.assertEqual([b["frames"] for b in blocks], [frames, [], []])

    def test_torch_opens_the_snapshot(self):
        python, short = os.environ.get("PLEAT_TORCH_PYTHON", sys.executable), self.path("short.trace")
        # Of the whole job it draws for three seconds.
        self.assertEqual(run("import", SNAPSHOT, "-n", "1", "-o", short).returncode, 0)
        path = self.export("snapshot", short)
        pages = [self.path(name) for name in ("t.html", "s.html", "p.html")]
        lines = [["stats", path], ["trace", path], ["trace_plot", path, "-o", pages[0]],
                 ["trace_plot", path, "-s", "-o", pages[1]], ["segment_plot", path, "-o", pages[2]]]
        # One process for all: most of its time it imports torch.
        ran = subprocess.run([python, "-c", "import runpy, sys\ntry: import torch\nexcept ImportError: sys.exit(77)\n"
                              "for line in %r:\n    sys.argv[1:] = line\n"
                              "    runpy.run_module('torch.cuda._memory_viz', None, '__main__', True)" % lines],
                             capture_output=True, text=True, check=False)
        if ran.returncode == 77:
            self.skipTest("no torch here")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertIn("alloc", ran.stdout)
        for page in pages:
            self.assertGreater(os.path.getsize(page), os.path.getsize(path) // 2)

    def test_snapshot_is_what_python_loads(self):
        facts = self.facts(SNAPSHOT)
        with open(self.export("snapshot"), "rb") as file:
            loaded = Refuser(file).load()
        events = loaded["device_traces"][0]
        self.assertEqual(len(events), facts["entries"])
        live = {}
        for event in events:
            self.assertIsInstance(event["frames"], list)
            if event["action"] == "alloc":
                self.assertNotIn(event["addr"], live)
                live[event["addr"]] = event["size"]
            elif event["action"] == "free_completed":
                self.assertEqual(live.pop(event["addr"]), event["size"])
        self.assertEqual(sum(e["action"] == "alloc" for e in events), facts["requests"])

    def test_snapshot_keeps_odd_streams_labels_and_sizes(self):
        events = []
        for i, (stream, label) in enumerate([(0, "iter=0;phase=F"), (-5, "Grüße 🎈"), (2**63 + 1, ""),
                                             (1 << 40, "<b>")]):
            events.append(dict(action="alloc", addr=4096 * (i + 1), size=[0, 1, 5 << 30, 512][i],
                               stream=stream, time_us=i << 40, user_metadata=label))
        path = self.path("odd.pickle")
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[], device_traces=[events]), file, protocol=4)
        back = self.export("snapshot", path)
        self.assertEqual(self.without_segments(back), self.without_segments(path))
        with open(back, "rb") as file:
            loaded = [e for e in pickle.load(file)["device_traces"][0] if e["action"] == "alloc"]
        for before, after in zip(events, loaded):
            self.assertEqual(after["size"], before["size"])
            self.assertEqual(after["stream"], before["stream"] % 2**64)
            self.assertEqual(after["time_us"], before["time_us"])
            self.assertEqual(after.get("user_metadata", ""), before["user_metadata"])

    def test_snapshot_of_many_labels_is_read_back(self):
        path = self.path("labels.pickle")
        events = [dict(action="alloc", addr=4096 * (i + 1), size=512, stream=0, time_us=i, user_metadata="part %d" % i)
                  for i in range(2000)]
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[], device_traces=[events]), file)
        self.assertEqual(self.without_segments(self.export("snapshot", path)), self.without_segments(path))

    def test_perfetto_keeps_the_trace_event_format(self):
        facts = self.facts(SNAPSHOT)
        with open(self.export("perfetto"), encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        opened, last, peak = {}, 0, 0
        for event in events:
            if event["ph"] == "M":
                self.assertIn(event["args"]["name"], ("GPU 0", "phases"))
                continue
            self.assertIn(event["ph"], "CbeXi")
            for key in ("name", "pid", "tid", "ts"):
                self.assertIn(key, event)
            if event["ph"] == "X":
                self.assertGreaterEqual(event["dur"], 0)
                continue
            self.assertGreaterEqual(event["ts"], last)
            last = event["ts"]
            if event["ph"] == "b":
                self.assertNotIn(event["id"], opened)
                opened[event["id"]] = event["name"]
            elif event["ph"] == "e":
                self.assertEqual(opened.pop(event["id"]), event["name"])
            elif event["ph"] == "C" and event["name"] == "live":
                peak = max(peak, event["args"]["bytes"])
        self.assertEqual(peak, facts["peak_live_bytes"])
        self.assertIn("F", {e["name"] for e in events if e["ph"] == "X"})

    def test_perfetto_names_places_in_the_program(self):
        frames = [dict(name="relu", filename="torch/nn/functional.py", line=3),
                  dict(name="forward", filename="model.py", line=7)]
        events = [dict(action="alloc", addr=512, size=2 << 20, stream=0, time_us=1, frames=frames),
                  dict(action="free_requested", addr=512, size=2 << 20, stream=0, time_us=2, frames=[]),
                  dict(action="free_completed", addr=512, size=2 << 20, stream=0, time_us=2, frames=[])]
        path = self.path("frames.pickle")
        with open(path, "wb") as file:
            pickle.dump(dict(segments=[], device_traces=[events]), file)
        with open(self.export("perfetto", path), encoding="utf-8") as file:
            slices = [e for e in json.load(file)["traceEvents"] if e["ph"] in "be"]
        self.assertEqual([e["name"] for e in slices], ["2.000 MiB at forward (model.py:7)"] * 2)
        self.assertIn("relu (torch/nn/functional.py:3)\nforward (model.py:7)", slices[0]["args"]["allocated_at"])

    def test_table_keeps_lifetimes(self):
        facts, back = self.facts(SNAPSHOT), self.facts(self.export("csv"))
        self.assertEqual(back["requests"], facts["requests"])
        self.assertEqual(back["peak_live_bytes"], facts["peak_live_bytes"])

    def test_iterations_that_a_form_has_no_place_for_are_told(self):
        table = self.path("t.csv")
        with open(table, "w", encoding="utf-8") as file:
            file.write("id,lower,upper,size\n1,0,5,512\n2,1,7,1024\n")
        for source, form, left, text in (
                (SNAPSHOT, "csv", (0, 12), "read back it is one iteration"),
                (SNAPSHOT, "snapshot", (0, 0), None), (SNAPSHOT, "perfetto", (0, 0), None),
                (table, "csv", (1, 0), "read back it is one iteration"),
                (table, "snapshot", (1, 0), "a snapshot has no marks: read back, its iterations are found")):
            arguments = ["export", source, "-f", form, "-o", self.path("out")]
            told = json.loads(run(*arguments, "--json").stdout)
            self.assertEqual((told["marks_left_out"], told["labels_left_out"]), left)
            lines = run(*arguments).stdout.splitlines()
            self.assertEqual(len(lines), 1 + (text is not None), lines)
            self.assertIn(text or "", lines[-1])

    def test_what_is_for_viewers_is_not_read_back(self):
        ran = run("import", self.export("perfetto"))
        self.assertEqual(ran.returncode, 3)
        self.assertIn("this is JSON", ran.stderr)
        self.assertIn("a torch memory snapshot (a pickle) is wanted", ran.stderr)

    def test_bad_use(self):
        path = self.path("x")
        for arguments in [[], [SNAPSHOT], [SNAPSHOT, "-f", "csv"], [SNAPSHOT, "-o", path],
                          [SNAPSHOT, "-f", "none", "-o", path], [SNAPSHOT, "--none"]]:
            self.assertEqual(run("export", *arguments).returncode, 2, arguments)
        self.assertEqual(run("export", __file__, "-f", "csv", "-o", path).returncode, 3)
        self.assertEqual(run("export", SNAPSHOT, "-f", "csv", "-o", "/none/x").returncode, 3)
        self.assertIn("usage: pleat export", run("export", "--help").stdout)


if __name__ == "__main__":
    suite.main()
