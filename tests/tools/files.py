"""What `pleat import` and `pleat verify` make of files: files.py PLEAT [SHARED].

Snapshots come from Python's own pickler in every protocol; the bad ones would run a program if they
were loaded as Python loads them. Recorded snapshots in SHARED/traces, or $PLEAT_SHARED/traces, are imported too.
"""

import collections
import datetime
import gzip
import json
import os
import pathlib
import pickle
import re
import resource
import subprocess
import sys
import unittest
import zlib

import here  # first: it knows where the tests are
import suite

PLEAT = sys.argv[1]
SHARED = pathlib.Path(os.environ.get("PLEAT_SHARED") or (sys.argv + [""])[2])

# Peak of the recorded segments in MiB and events, as the recordings' own notes have them.
RECORDED = {
    "gpt2-vpp-recompute": (114299, 11.199),
    "gpt2-vpp": (112165, 113.768),
    "llama-vpp": (55435, 83.479),
    "llama-zero-recompute": (30022, 21.971),
    "moe": (212520, 84.643),
    "moe-recompute": (267910, 101.012),
    "sft-varlen": (97468, 14.809),
}


def event(action, addr, size, **more):
    return dict(action=action, addr=addr, size=size, stream=0, time_us=1, **more)


def job(iterations=3):
    """A job with one persistent tensor and iterations that repeat."""
    events = [event("segment_alloc", 1 << 40, 64 << 20), event("alloc", 1 << 40, 5 << 20)]
    for i in range(iterations):
        label = f"iter={i};phase=F"
        for k in range(40):
            addr = (1 << 40) + ((k % 4 + 1) << 23)
            events.append(event("alloc", addr, (k + 1) * 100000, user_metadata=label))
            events.append(event("free_requested", addr, (k + 1) * 100000, user_metadata=label))
            events.append(event("free_completed", addr, (k + 1) * 100000, user_metadata=label))
    segment = dict(device=0, address=1 << 40, total_size=64 << 20, stream=0, segment_type="large",
                   segment_pool_id=(0, 0), is_expandable=False, frames=[],
                   blocks=[dict(address=1 << 40, size=5 << 20, requested_size=5 << 20,
                                state="active_allocated", frames=[])])
    return dict(segments=[segment], device_traces=[events, []], external_annotations=[],
                allocator_settings={"expandable_segments": False, "garbage_collection_threshold": 0.0})


def pack(value):
    """msgpack, as far as plans need it."""
    if isinstance(value, str):
        return bytes([0xa0 | len(value)]) + value.encode()
    if isinstance(value, int):
        return bytes([value]) if value < 0x80 else b"\xcf" + value.to_bytes(8, "big")
    return b"\xdc" + len(value).to_bytes(2, "big") + b"".join(map(pack, value))


def plan_of_two(second_place):
    """A plan of two chunks and two requests that are live together, the first at byte 0."""
    def slot(place, alloc, free):
        return [512, place + 1, alloc, free + 1, 0, 0, 0, 0, 1, 0, 0]
    header = ["pleat plan", 1, 0, 0, 2, 0, 512, 0, 1024, 0, 1024, 1024, 0, 4,
              0, 1, 1, 1, 0, 0, 0, 2, 0]
    tables = [[""], [0], [2], [0, 0, 0], slot(0, 0, 2) + slot(second_place, 1, 3)]
    data = b"".join(map(pack, [header] + tables))
    return data + b"\x91\xce" + zlib.crc32(data).to_bytes(4, "big")


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (os.system, (f"touch {self.path}",))


class Files(here.Folder):
    def run_pleat(self, *arguments, code=0):
        done = subprocess.run([PLEAT, *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(done.returncode, code, f"{arguments}: {done.stderr}")
        return done

    def path(self, name, data=b""):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def refused(self, path, text, command="import"):
        done = self.run_pleat(command, path, code=3)
        self.assertIn(str(path), done.stderr)
        self.assertIn(text, done.stderr)
        self.assertEqual(done.stdout, "")

    def test_snapshots_of_every_protocol(self):
        prints = set()
        for protocol in range(2, 6):
            data = pickle.dumps(job(), protocol)
            for name, bytes_ in (("s.pickle", data), ("s.pickle.gz", gzip.compress(data))):
                path = self.path(name, bytes_)
                out = self.folder / "t.trace"
                summary = json.loads(self.run_pleat("import", path, "-o", out, "--json").stdout)
                self.assertEqual(summary["form"], "torch snapshot")
                self.assertEqual(summary["entries"], 2 + 3 * 120)
                self.assertEqual(summary["requests"], 121)
                self.assertEqual(summary["segments"], 1)
                self.assertEqual(summary["devices"], [0])
                self.assertEqual(summary["labels"], 3)
                self.assertEqual(summary["peak_live_bytes"], (5 << 20) + 4000256)
                again = json.loads(self.run_pleat("import", out, "--json").stdout)
                self.assertEqual(again["form"], "trace")
                self.assertEqual(again["fingerprint"], summary["fingerprint"])
                prints.add(summary["fingerprint"])
        self.assertEqual(len(prints), 1)
        for protocol in (0, 1):
            self.refused(self.path("old.pickle", pickle.dumps(job(), protocol)), "byte 0")

    def test_nothing_is_executed(self):
        marker = self.folder / "marker"
        for protocol in range(2, 6):
            for payload in (Runs(marker), {"segments": [Runs(marker)]},
                            {"segments": [], "when": datetime.date(2026, 11, 21)},
                            collections.OrderedDict(segments=[]), 3 + 4j):
                path = self.path("bad.pickle", pickle.dumps(payload, protocol))
                self.refused(path, "refused: only values of built-in types")
                self.assertRegex(self.run_pleat("import", path, code=3).stderr,
                                 r"byte \d+: (GLOBAL|STACK_GLOBAL|REDUCE)")
        self.assertFalse(marker.exists())

    def test_several_devices(self):
        two = job()
        two["device_traces"][1] = [event("alloc", 5, 6)]
        path = self.path("two.pickle", pickle.dumps(two))
        # All of them, one after the other; what is written has the number in its name.
        both = json.loads(self.run_pleat("import", path, "--json").stdout)["devices"]
        self.assertEqual([both[n]["devices"] for n in "01"], [[0], [1]])
        said = self.run_pleat("import", path, "-o", self.folder / "two-%d.trace").stdout
        self.assertEqual(re.findall(r"^GPU \d$", said, re.M), ["GPU 0", "GPU 1"])
        self.assertEqual(re.findall(r"two-.*\.trace", said), ["two-0.trace", "two-1.trace"])
        for n in "01":
            trace = self.folder / f"two-{n}.trace"
            self.assertEqual(json.loads(self.run_pleat("import", trace, "--json").stdout)["devices"], [int(n)])
        self.assertIn("recording of several GPUs: choose one (--device N), or write %d",
                      self.run_pleat("import", path, "-o", self.folder / "one.trace", code=2).stderr)
        self.assertIn("--device is a whole number", self.run_pleat("import", path, "--device", "x", code=2).stderr)
        for command in (["explain", path], ["compare", path, "-p", "native", "--no-fit"], ["replay", path],
                        ["plan", path, "-o", self.folder / "of-%d.plan"],
                        ["export", path, "-f", "csv", "-o", self.folder / "of-%d.csv"]):
            one = self.run_pleat(*command, "--device", 0, "--json").stdout
            self.assertNotIn("devices", json.loads(one))
        # The second device has one request and no iteration: what can be said of it is.
        told = json.loads(self.run_pleat("compare", path, "-p", "native", "--no-fit", "--json").stdout)
        self.assertEqual([told["devices"][n]["policies"][0]["peak_live_bytes"] > 512 for n in "01"], [True, False])
        summary = json.loads(self.run_pleat("import", path, "--device", 1, "--json").stdout)
        self.assertEqual((summary["devices"], summary["entries"]), ([1], 1))
        self.run_pleat("import", path, "--device", 2, code=3)
        # A plan says which device it is for.
        plan = self.folder / "p.plan"
        self.run_pleat("import", path, "--device", 0, "-o", self.folder / "zero.trace")
        self.run_pleat("plan", self.folder / "zero.trace", "-o", plan)
        self.run_pleat("verify", plan, "--trace", path)
        self.run_pleat("import", path, "--device", "x", code=2)

    def test_plans_of_several_devices(self):
        """What was written under a name with %d is read under it."""
        two = job()
        two["device_traces"][1] = [{**e, "size": e["size"] + 4096} for e in two["device_traces"][0]]
        path, plans = self.path("two.pickle", pickle.dumps(two)), self.folder / "two-%d.plan"
        self.run_pleat("plan", path, "--no-replay", "-o", plans)
        for command in (("replay",), ("compare", "-p", "pleat", "--no-fit"), ("report", "-o", self.folder / "%d.html", "-p", "pleat")):
            done = self.run_pleat(command[0], path, *command[1:], "--plan", plans)
            self.assertEqual(done.stderr, "")
        both = json.loads(self.run_pleat("verify", plans, "--trace", path, "--json").stdout)["devices"]
        self.assertEqual([both[n]["holds"] for n in "01"], [True, True])
        self.assertNotEqual(both["0"]["physical_bytes"], both["1"]["max_live_bytes"])
        self.assertIn("is a plan of each GPU", self.run_pleat("verify", plans, code=2).stderr)
        # One GPU's is another's only as far as it fits, which is said.
        done = self.run_pleat("replay", path, "--device", 1, "--plan", self.folder / "two-0.plan")
        self.assertIn("is a plan for GPU 0, and this is GPU 1: %d in the name", done.stderr)

    def test_what_fails_for_one_device(self):
        two = job()
        two["device_traces"][1] = [event("alloc", 5, 6)]
        path, dump = self.path("two.pickle", pickle.dumps(two)), self.folder / "dump-%d.json"
        done = self.run_pleat("replay", path, "--repeat", 11, "--dump", dump, "--json", code=3)
        told = json.loads(done.stdout)["devices"]
        self.assertEqual((list(told["0"])[:1], told["1"]), (["policy"], None), done.stderr)
        self.assertTrue((self.folder / "dump-0.json").is_file())

    def test_no_device_is_written_over_what_is_read(self):
        two = job()
        two["device_traces"][1] = two["device_traces"][0]
        read = self.path("two-0.trace", pickle.dumps(two))
        written = self.folder / "two-%d.trace"
        for command in (["import", read], ["export", read, "-f", "csv"], ["plan", read],
                        ["report", read, "-p", "native"]):
            done = self.run_pleat(*command, "-o", written, code=2)
            self.assertIn("is read here: give what is written another name", done.stderr)
        plans = self.folder / "plan-%d.json"
        self.run_pleat("plan", read, "--no-replay", "-o", plans)
        self.run_pleat("replay", read, "-P", plans, "--dump", self.folder / "plan-0.json", "--device", 0, code=2)
        self.run_pleat("replay", read, "-P", self.folder / "plan-1.json", "--dump", plans, code=2)
        self.run_pleat("verify", plans, "--trace", read)
        self.assertEqual(read.read_bytes(), pickle.dumps(two))

    def test_gzipped_plans_are_read_and_gz_is_what_it_says(self):
        trace, plan = self.folder / "t.trace.gz", self.folder / "p.plan.gz"
        self.run_pleat("import", self.path("s.pickle", pickle.dumps(job())), "-o", trace)
        self.run_pleat("plan", trace, "-o", plan)
        for path in (trace, plan):
            self.assertEqual(path.read_bytes()[:2], b"\x1f\x8b")
        whole = self.path("p.plan", gzip.decompress(plan.read_bytes()))
        zipped = self.path("again.plan.gz", gzip.compress(whole.read_bytes()))
        for read in (plan, zipped, whole):
            self.run_pleat("verify", read, "--trace", trace)
            self.run_pleat("replay", trace, "--plan", read)
            self.assertIn("a plan for device 0", self.run_pleat("plan", read).stdout)
        table = self.folder / "t.csv.gz"
        self.run_pleat("export", trace, "-f", "csv", "-o", table)
        self.assertTrue(gzip.decompress(table.read_bytes()).startswith(b"id,"))
        # The same bytes twice; and no more than 2 GiB of any, however small the file.
        first = plan.read_bytes()
        self.run_pleat("plan", trace, "-o", plan)
        self.assertEqual(plan.read_bytes(), first)
        bomb = self.folder / "bomb.plan"
        packer = zlib.compressobj(1, zlib.DEFLATED, -15)
        block = packer.compress(bytes(16 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)  # which another may follow
        bomb.write_bytes(gzip.compress(b"")[:10] + 130 * block)
        self.refused(bomb, "unfolds to more than 2147483648 bytes", command="verify")
        self.assertIn("this is a plan; a trace or a recording is wanted ('pleat plan'",
                      self.run_pleat("plan", trace, plan, code=3).stderr)

    def test_logs_that_are_none_say_what_writes_one(self):
        recording = self.path("s.pickle", pickle.dumps(job()))
        for command in (("top",), ("report", "-j", "--log")):
            self.assertIn("a log is what `pleat run --log FILE` or PLEAT_CONF=log:FILE writes",
                          self.run_pleat(*command, recording, code=3).stderr)
        trace = self.folder / "t.trace"
        self.run_pleat("import", recording, "-o", trace)
        for path in (recording, trace):
            self.assertIn("this is no operator log: DTR's patch of PyTorch writes one",
                          self.run_pleat("remat", path, code=3).stderr)

    def test_a_log_is_called_one_wherever_a_recording_is_wanted(self):
        recording, plan, log = self.path("s.pickle", pickle.dumps(job())), self.folder / "p.plan", self.folder / "run.log"
        self.run_pleat("plan", recording, "-o", plan)
        subprocess.run([PLEAT, "replay", recording], check=True, capture_output=True, env={**os.environ, "PLEAT_CONF": f"log:{log}"})
        says = f"'{log}': this is a log of a run; a trace or a recording is wanted ('pleat top' shows a log, and 'pleat report --log' draws it)\n"
        for command in (["import", log], ["explain", log], ["explain", recording, log], ["plan", log], ["plan", recording, log],
                        ["plan", log, "--device", 0], ["compare", log], ["compare", recording, log], ["replay", log],
                        ["report", log, "-o", self.folder / "x"], ["export", log, "-f", "csv", "-o", "x"],
                        ["verify", plan, "--trace", log]):
            self.assertIn(says, self.run_pleat(*command, code=3).stderr)
        zipped = self.path("run.log.gz", gzip.compress(log.read_bytes()))
        says = f"'{zipped}': this is a gzipped log of a run; a trace or a recording is wanted (gunzip it first: 'pleat top' shows "
        for command in (["import", zipped], ["plan", zipped, "--device", 0], ["replay", zipped],
                        ["verify", plan, "--trace", zipped]):
            self.assertIn(says, self.run_pleat(*command, code=3).stderr)
        for command in (["top", zipped], ["report", "-j", "--log", zipped]):
            self.assertIn(f"'{zipped}': this is a gzipped log: gunzip it first\n", self.run_pleat(*command, code=3).stderr)
        # What only begins like one is none.
        self.refused(self.path("cut", log.read_bytes()[:12]), "neither a trace")
        self.refused(self.path("cut.gz", gzip.compress(log.read_bytes()[:12])), "neither a trace")

    def test_a_plan_that_is_cut_off_is_called_so(self):
        plan = self.folder / "p.plan"
        self.run_pleat("plan", self.path("s.pickle", pickle.dumps(job())), "-o", plan)
        whole = plan.read_bytes()
        for size in range(100, len(whole), 7):
            self.refused(self.path("cut.plan", whole[:size]), "cut off", command="verify")

    def test_bad_files(self):
        data = pickle.dumps(job())
        self.refused(self.path("cut.pickle", data[:-100]), "byte")
        self.refused(self.path("cut.gz", gzip.compress(data)[:-9]), "gzip")
        self.refused(self.path("empty"), "byte 0")
        self.refused(self.path("t.csv", b"id,lower,upper,size\n0,1,2,-3\n"), "line 2")
        self.refused(self.path("x.plan", b"hello"), "byte 0: this is not a pleat plan file; a plan is what "
                     "save_plan or `pleat plan` writes", command="verify")
        self.refused(self.folder / "none", "No such file")
        self.refused(self.folder / "none", "No such file", command="verify")
        self.refused(self.folder, "Is a directory")
        whole = self.path("s.pickle", data)
        done = self.run_pleat("import", whole, "-o", self.folder / "no" / "t.trace", code=3)
        self.assertIn(f"no/t.trace': there is no folder '{self.folder}/no'", done.stderr)

    def test_each_file_in_its_place(self):
        trace, plan = self.path("t.trace"), self.folder / "p.plan"
        self.run_pleat("import", self.path("s.pickle", pickle.dumps(job())), "-o", trace)
        self.run_pleat("plan", trace, "-o", plan)
        for command in ("import", "replay", "explain"):
            self.refused(plan, "this is a plan", command=command)
        self.refused(trace, "this is not a pleat plan file, but a pleat trace; a plan is what", command="verify")
        for command in ("replay", "compare"):
            done = self.run_pleat(command, trace, "--plan", trace, code=3)
            self.assertIn(f"'{trace}': record 0 at byte 0: this is not a pleat plan file, but a pleat trace; a plan is "
                          "what save_plan or `pleat plan` writes", done.stderr)
        self.refused(self.path("empty"), "the file is empty, and no pleat plan", command="verify")
        done = self.run_pleat("plan", plan, "--at", 3, code=3)
        self.assertIn(f"'{plan}': the plan has no recipe", done.stderr)

    def test_what_is_read_is_not_overwritten(self):
        path = self.path("s.pickle", pickle.dumps(job()))
        before = path.read_bytes()
        link = self.folder / "link"
        link.symlink_to(path)
        for output in (path, link):
            for arguments in (("import", "-o"), ("plan", "-o"), ("plan", "--dump"), ("report", "-o"),
                              ("export", "--format", "csv", "-o")):
                done = self.run_pleat(arguments[0], path, *arguments[1:], output, code=2)
                self.assertIn(f"'{output}' is read here", done.stderr)
        self.assertEqual(path.read_bytes(), before)
        plan = self.folder / "p.plan"
        self.run_pleat("plan", path, "-o", plan)
        whole = plan.read_bytes()
        for read in (path, plan):
            done = self.run_pleat("replay", path, "--plan", plan, "--dump", read, code=2)
            self.assertIn(f"'{read}' is read here", done.stderr)
        self.assertEqual((path.read_bytes(), plan.read_bytes()), (before, whole))

    def test_two_outputs_are_two_files(self):
        """One that was named in two ways was the dump at last, and the plan was said to be written."""
        path = self.path("s.pickle", pickle.dumps(job()))
        there, link = self.path("there", b"before"), self.folder / "link"
        link.symlink_to(there)
        (self.folder / "folder").symlink_to(self.folder)
        (self.folder / "to-none").symlink_to("a")
        names = {entry.name for entry in self.folder.iterdir()}
        for output, dump in (("a", "./a"), ("a", "a"), ("./a", "a"), ("a", self.folder / "a"), ("a", "folder/a"),
                             (there, link), (link, there), ("to-none", "a"), ("folder/a", "to-none"), ("a%d", "a0"), ("a0", "./a%d"),
                             ("a%d", "./a%d")):
            done = subprocess.run([PLEAT, "plan", path, "-o", output, "--dump", dump], cwd=self.folder,
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 2, (output, dump))
            self.assertIn(f"'{dump}' cannot be the plan and its dump: give one of them another name", done.stderr)
        self.assertEqual(there.read_bytes(), b"before")
        self.assertEqual({entry.name for entry in self.folder.iterdir()}, names)
        (self.folder / "other").mkdir()
        self.run_pleat("plan", path, "-o", self.folder / "a", "--dump", self.folder / "other" / "a")
        self.run_pleat("verify", self.folder / "a")
        self.assertTrue((self.folder / "other" / "a").read_bytes().startswith(b"sequence,"))

    def test_a_log_takes_no_other_file_away(self):
        path = self.path("s.pickle", pickle.dumps(job()))
        before = path.read_bytes()
        for code, name in ((5, path), (0, self.path("empty.log")), (0, self.folder / "empty.log")):
            done = subprocess.run([PLEAT, "replay", path], capture_output=True, text=True,
                                  env={**os.environ, "PLEAT_CONF": f"log:{name}"})
            self.assertEqual(done.returncode == 0, code == 0, done.stderr)
            if code:
                self.assertIn(f"'{name}' cannot be made: the file that is there is no log", done.stderr)
        self.assertEqual(path.read_bytes(), before)

    def test_a_dump_is_written_whole_or_not_at_all(self):
        path, dump = self.path("s.pickle", pickle.dumps(job())), self.path("d.txt", b"before")
        self.run_pleat("replay", path, "--budget", "2MiB", "--plan", self.folder / "none", "--dump", dump, code=3)
        self.assertEqual(dump.read_bytes(), b"before")
        self.run_pleat("replay", path, "--dump", "/dev/full", code=3)
        self.run_pleat("replay", path, "--dump", dump)
        self.assertIn(b"memory verbs issued", dump.read_bytes())

    def test_where_to_is_looked_at_before_the_work(self):
        """Nothing is read before, not even standard input; nothing is made, and what is there stays as it is."""
        there = self.path("there", b"before")
        (self.folder / "folder").mkdir()
        names = {entry.name for entry in self.folder.iterdir()}
        for command in (["plan", "-o"], ["plan", "--dump"], ["report", "-o"], ["import", "-o"],
                        ["export", "-f", "csv", "-o"], ["replay", "--dump"], ["report", "--log", "none", "-o"]):
            for output, why in ((self.folder / "no" / "x", f"there is no folder '{self.folder}/no'"),
                                (there / "x", "cannot be made: Not a directory"),
                                (self.folder / "folder", "cannot be written: Is a directory"),
                                # A folder that is there, whatever the system says of a file in it.
                                ("/proc/x", "no file can be made in the folder '/proc'")):
                read, write = os.pipe()
                done = subprocess.run([PLEAT, *command, output, "-"], stdin=read, capture_output=True, text=True, timeout=60)
                os.close(read)
                os.close(write)
                self.assertEqual((done.returncode, done.stdout), (3, ""), done.stderr)
                self.assertIn(f"pleat {command[0]}: '{output}': {why}", done.stderr)
            done = self.run_pleat(*command, there, self.folder / "none", code=3)
            self.assertIn("/none': cannot be opened", done.stderr)
        two = job()
        two["device_traces"][1] = two["device_traces"][0]
        (self.folder / "of-0").mkdir()
        done = self.run_pleat("plan", self.path("two.pickle", pickle.dumps(two)), "-o", self.folder / "of-%d" / "p.plan", code=3)
        self.assertIn(f"of-1/p.plan': there is no folder '{self.folder}/of-1'", done.stderr)
        self.assertEqual(list((self.folder / "of-0").iterdir()), [])
        self.assertEqual({entry.name for entry in self.folder.iterdir()}, names | {"two.pickle", "of-0"})
        self.assertEqual(there.read_bytes(), b"before")

    def test_a_file_that_may_not_grow_leaves_nothing(self):
        path = self.path("s.pickle", pickle.dumps(job()))
        for arguments in (["plan", path, "-o"], ["import", path, "-o"],
                          ["export", path, "--format", "perfetto", "-o"]):
            done = subprocess.run(
                [PLEAT, *map(str, arguments), str(self.folder / "out")], capture_output=True, text=True,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)))
            self.assertEqual(done.returncode, 3, done.stderr)
            self.assertIn("out': cannot be written: File too large", done.stderr)
        self.assertEqual([entry.name for entry in self.folder.iterdir()], ["s.pickle"])

    def test_pipes_and_links_stay(self):
        """What is written takes a file's place as a whole; of anything else it takes nothing away."""
        path, trace = self.path("s.pickle", pickle.dumps(job())), self.folder / "t.trace"
        self.run_pleat("import", path, "-o", trace)
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        with subprocess.Popen([PLEAT, "import", path, "-o", pipe], stdout=subprocess.DEVNULL) as writer:
            self.assertEqual(pipe.read_bytes(), trace.read_bytes())
        self.assertEqual(writer.returncode, 0)
        self.assertTrue(pipe.is_fifo())
        # A pipe is read once: what it is must not be found out by reading it.
        with subprocess.Popen([PLEAT, "plan", pipe], stdout=subprocess.DEVNULL) as reader:
            pipe.write_bytes(path.read_bytes())
        self.assertEqual(reader.returncode, 0)
        target, link = self.path("target", b"old"), self.folder / "link"
        link.symlink_to(target)
        self.run_pleat("import", path, "-o", link)
        self.assertTrue(link.is_symlink())
        self.assertEqual(target.read_bytes(), trace.read_bytes())
        # What is printed is not lost unseen.
        if os.path.exists("/dev/full"):
            with open("/dev/full", "wb") as full:
                done = subprocess.run([PLEAT, "import", path, "--json"], stdout=full,
                                      stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 5)
            self.assertIn("standard output cannot be written: No space left", done.stderr)
        # To a folder, and onto a full device, nothing can be written; neither is harmed.
        self.assertIn("cannot be written", self.run_pleat("import", path, "-o", self.folder, code=3).stderr)
        if os.path.exists("/dev/full"):
            for option in ("-o", "--dump"):
                done = self.run_pleat("plan", path, option, "/dev/full", code=3)
                self.assertIn("No space left", done.stderr)
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.endswith(".tmp")], [])

    def test_what_is_private_stays_so(self):
        path, trace = self.path("s.pickle", pickle.dumps(job())), self.folder / "t.trace"
        self.run_pleat("import", path, "-o", trace)
        for mode in (0o600, 0o640, 0o444):
            trace.chmod(mode)
            self.run_pleat("import", path, "-o", trace)
            self.assertEqual(trace.stat().st_mode & 0o7777, mode)

    def test_traces_and_plans_by_bits(self):
        snapshot = self.path("s.pickle", pickle.dumps(job()))
        trace, plan = self.folder / "t.trace", self.folder / "p.plan"
        self.run_pleat("import", snapshot, "-o", trace)
        self.run_pleat("plan", trace, "-o", plan)
        holds = json.loads(self.run_pleat("verify", plan, "--trace", trace, "--json").stdout)
        self.assertTrue(holds["holds"])
        # A recording does as well as its trace, and planning again gives the same bytes.
        self.run_pleat("verify", plan, "--trace", snapshot)
        first = plan.read_bytes()
        self.run_pleat("plan", snapshot, "-o", plan)
        self.assertEqual(first, plan.read_bytes())
        other = self.path("o.pickle", pickle.dumps(job(4)))
        no = self.run_pleat("verify", plan, "--trace", other, "--json", code=1)
        self.assertFalse(json.loads(no.stdout)["holds"])
        self.assertIn("fingerprint", no.stderr)
        for path, command in ((trace, "import"), (plan, "verify")):
            good = path.read_bytes()
            for at in range(0, len(good), len(good) // 10):
                path.write_bytes(good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1:])
                self.refused(path, str(path), command=command)
                path.write_bytes(good[:at])
                self.refused(path, "byte", command=command)
            path.write_bytes(good)

    def test_overlap(self):
        self.run_pleat("verify", self.path("good.plan", plan_of_two(512)))
        bad = self.path("bad.plan", plan_of_two(0))
        done = self.run_pleat("verify", bad, code=1)
        self.assertIn(f"'{bad}': steady request 0", done.stderr)
        self.assertIn("steady request 1", done.stderr)
        self.assertIn("are live together and share physical bytes 0 to 512", done.stderr)
        trace = self.path("s.pickle", pickle.dumps(job()))
        done = self.run_pleat("replay", trace, "--plan", bad, code=1)
        self.assertIn("are live together", done.stderr)
        self.refused(self.path("cut.plan", plan_of_two(512)[:-1]), "byte", command="verify")
        self.run_pleat("replay", trace, "--plan", self.folder / "cut.plan", code=3)

    def test_use(self):
        for command in ("import", "verify"):
            self.assertIn("usage:", self.run_pleat(command, "--help").stdout)
            self.run_pleat(command, code=2)
            self.run_pleat(command, "a", "b", code=2)
            self.run_pleat(command, "--nonsense", code=2)

    def test_recorded_jobs(self):
        if not (SHARED / "traces").is_dir():
            self.skipTest("no recorded snapshots here")
        for name, (events, reserved) in RECORDED.items():
            path = SHARED / "traces" / f"{name}.pickle.gz"
            summary = json.loads(self.run_pleat("import", path, "--json").stdout)
            self.assertEqual(summary["entries"], events)
            self.assertAlmostEqual(summary["peak_segment_bytes"] / 2**30, reserved, delta=0.001)


class StandardInput(unittest.TestCase):
    def test_import_reads_a_pipe(self):
        """Of several GPUs too, for which a recording is read once more."""
        table = b"id,lower,upper,size\n1,0,5,52428800\n2,1,7,104857600\n"
        done = subprocess.run([PLEAT, "import", "-", "--json"], input=table, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(json.loads(done.stdout)["requests"], 2)
        several = {"device_traces": [[{"action": "alloc", "addr": 4096, "size": 1 << 20, "stream": 0, "time_us": 1}]
                                     for _ in range(2)], "segments": []}
        done = subprocess.run([PLEAT, "import", "-", "--json"], input=pickle.dumps(several), capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        self.assertEqual(set(json.loads(done.stdout)["devices"]), {"0", "1"})
        for command in ("explain", "compare --no-fit -p native", "plan", "replay", "export -f csv -o /dev/null", "report -j -p pleat"):
            done = subprocess.run([PLEAT, *command.split(), "-"], input=pickle.dumps(job()), capture_output=True)
            self.assertEqual(done.returncode, 0, (command, done.stderr))
        done = subprocess.run([PLEAT, "import", "-"], input=b"", capture_output=True)
        self.assertEqual(done.returncode, 3)
        self.assertIn(b"'/dev/stdin': byte 0: the file is empty", done.stderr)


if __name__ == "__main__":
    suite.main()
