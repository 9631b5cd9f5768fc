#!/usr/bin/env python3
"""PyTorch's own tests under Pleat: theirs.py FOLDER [--match REGEX] [--lines FILE], on a machine with a GPU and torch.

FOLDER is the folder `test` of a source tree of PyTorch, such as Debian's source package of pytorch has (apt-get
source pytorch; not the tests but torch itself decides what passes, so its version need not be torch's). Of the tree
nothing else is needed but the folder `tools` beside it, which the tests for expandable segments import:

    tar xf pytorch_2.6.0+dfsg.orig.tar.xz --wildcards '*/test' '*/tools'

Each test runs natively and then under `pleat run`, in two processes that wait for each other: what passes natively
must pass. Tests that cannot are named, each with its reason, in docs/limits.md. A test that ends its process, or is
not done in time, counts as failed, and the others go on in a new one. A file that this torch does not load is said,
and the others go on. The tests of graph trees compile: they need Triton and a C compiler.

How a test ended is in FILE as soon as it has, one JSON object a line, and what is there already is not run again: a
run that was broken off goes on with the same command. Many calls can share the work: --shard 2/4 is every fourth test
from the second on, --within SECONDS ends it then (the test that is running is left to the next call), and

    theirs.py --sum FILE...

compares what several calls wrote.
"""

import argparse
import gc
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = os.environ.get("PLEAT_RUN_COMMAND") or str(ROOT / "adapters" / "pytorch" / "pleat-run")
# Of allocations, graphs, pools, streams and statistics; --match . is all of them.
MATCH = (r"alloc|memory|oom|graph|pool|stream|stat|snapshot|history|expandable|fraction|cache|event|workspace|ipc"
         r"|record")
FILES = {"test_cuda.py": MATCH, "test_cuda_expandable_segments.py": MATCH, "inductor/test_cudagraph_trees.py": ".",
         "inductor/test_cudagraph_trees_expandable_segments.py": ".", "test_multiprocessing.py": "cuda|event"}
WAYS = ("native", "pleat")
GOOD = ("ok", "expected failure")
START_SECONDS = 240  # until a file is loaded: torch's import from a cold disk, and a shim that is compiled
END_SECONDS = 30
CACHED_MOST = 1 << 30  # bytes that a process may keep from the other one's tests
END = "(the end of its process)"

# What stands for packages that PyTorch's tests import, and that need not be installed: one compares texts, the
# other is asked for the host's memory.
STAND_INS = {"psutil": """
import os, types
def virtual_memory():
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return types.SimpleNamespace(total=pages * size, available=os.sysconf("SC_AVPHYS_PAGES") * size)
""", "expecttest": """
import unittest
class TestCase(unittest.TestCase):
    longMessage = True
    def assertExpectedInline(self, actual, expect, skip=0):
        self.assertEqual(actual, expect)
    def assertExpectedRaisesInline(self, error, function, expect, *arguments, **more):
        with self.assertRaises(error) as raised:
            function(*arguments, **more)
        self.assertEqual(str(raised.exception), expect)
def assert_expected_inline(test, actual, expect, skip=0):
    test.assertEqual(actual, expect)
"""}


# Names of torch.testing that its tests import and later releases have under another: module, old, new.
RENAMED = (("torch.testing._internal.inductor_utils", "HAS_CUDA", "HAS_CUDA_AND_TRITON"),)
EXPANDABLE = "expandable_segments:True"  # what a file of that name sets where it is the program run


class NotLoaded(Exception):
    """Why no test of a file was run."""


# ---- in the process that runs tests ----


class Outcome(unittest.TestResult):
    """How the one test that ran with it ended, and why."""

    def __init__(self):
        super().__init__()
        self.how, self.why = "ok", ""

    def fails(self, how, error):
        self.how, self.why = how, ("%s: %s" % (error[0].__name__, error[1]))[-600:]

    def addFailure(self, test, error):
        self.fails("failure", error)

    def addError(self, test, error):
        self.fails("error", error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            self.fails("failure", error)

    def addSkip(self, test, reason):
        if self.how == "ok":
            self.how, self.why = "skipped", reason

    def addExpectedFailure(self, test, error):
        self.how = "expected failure"

    def addUnexpectedSuccess(self, test):
        self.how = "unexpected success"


def flat(suite):
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from flat(one)
        else:
            yield one


def rename():
    for place, old, new in RENAMED:
        try:
            module = importlib.import_module(place)
        except ImportError:
            continue
        if hasattr(module, new) and not hasattr(module, old):
            setattr(module, old, getattr(module, new))


def expand(module):
    """What the file does where it is run itself."""
    import torch

    torch.cuda.memory._set_allocator_settings(EXPANDABLE)
    for one in vars(module).values():
        if isinstance(one, type) and hasattr(one, "expandable_segments"):
            one.expandable_segments = lambda _: True


def load(file):
    """The tests of a file, by their names."""
    rename()
    sys.path.insert(0, str(file.parent))
    sys.path.insert(0, str(file.parents[1] if file.parent.name != "test" else file.parent))
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if file.stem.endswith("expandable_segments"):
        expand(module)
    found = unittest.defaultTestLoader.loadTestsFromModule(module)
    if unittest.defaultTestLoader.errors:
        raise SystemExit("\n".join(unittest.defaultTestLoader.errors))
    return {test.id(): test for test in flat(found)}


def give_back():
    """What a test left in torch's cache: the other process's tests find the GPU as they would alone. Whether it stays
    all the same: torch gives nothing back where a test left a capture open."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved() - torch.cuda.memory_allocated() > CACHED_MOST


def drive(file, match, out):
    """Tells the names of a file's tests that match, and then runs each that is named on standard input."""
    wanted = os.fdopen(os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv[1:] = []
    with open(out, "a") as told:
        def tell(what):
            print(json.dumps(what), file=told, flush=True)

        tests = load(file)
        tell([name for name in tests if re.search(match, name)])
        for name in map(str.strip, wanted):
            outcome, crowds = Outcome(), False
            unittest.TestSuite([tests[name]]).run(outcome)  # a suite of its own: with its class's set-up
            try:
                crowds = give_back()
            except Exception as left:  # an error of the device: it stays, and the test that left it is the one to name
                if outcome.how in GOOD:
                    outcome.how, outcome.why = "error", "it leaves: %s" % left
            tell([outcome.how, outcome.why, crowds])
            if crowds:
                return


# ---- in the process that compares ----


class Driver:
    """A process that runs tests of a file in one of the two ways, and another one when that has ended."""

    def __init__(self, file, match, way, stand_ins):
        self.name, self.way = file.name, way
        self.folder = tempfile.TemporaryDirectory()
        self.out = pathlib.Path(self.folder.name, "told")
        self.log = pathlib.Path(self.folder.name, "log")
        self.command = [*([RUN, "--quiet", "--"] if way == "pleat" else []), sys.executable, "-u", __file__, "--drive",
                        str(file), match, str(self.out)]
        # -u: what a test said that is ended in the middle is told, too. PyTorch's loader refuses tests of a file that is
        # not the program run.
        self.environment = dict(os.environ, PYTORCH_DISABLE_RUNNING_SCRIPT_CHK="1", PYTHONPATH=os.pathsep.join(
            filter(None, [stand_ins, os.environ.get("PYTHONPATH")])))
        self.start()

    def start(self):
        self.out.write_text("")
        self.read = 0
        self.begun = time.monotonic()
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(self.command, env=self.environment, stdin=subprocess.PIPE, stdout=log,
                                            stderr=subprocess.STDOUT, text=True, start_new_session=True)

    def names(self):
        """The tests that match, once the file is loaded."""
        told, why = self.wait(START_SECONDS)
        if told is None:
            raise NotLoaded(why)
        print("%s, %s: %d tests, loaded in %.0f s" % (self.name, self.way, len(told), time.monotonic() - self.begun),
              file=sys.stderr, flush=True)
        return told

    def wait(self, seconds):
        """The next that it tells, or None and why there is nothing: then the process has ended."""
        until = time.monotonic() + seconds
        while True:
            ended = self.process.poll()  # before what it told is read: nothing comes after
            text = self.out.read_text()[self.read:]
            if "\n" in text:
                line = text[:text.index("\n") + 1]
                self.read += len(line)
                return json.loads(line), ""
            if ended is not None:
                self.kill()
                return None, "its process ended with %d: %s" % (ended, self.said())
            if time.monotonic() > until:
                self.kill()
                return None, "not done in %d s: %s" % (seconds, self.said())
            time.sleep(0.01)

    def said(self):
        return self.log.read_text(errors="replace")[-300:]

    def kill(self):
        """The process and those that it began, which may wait for it."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        self.process.stdin.close()
        self.process = None

    def test(self, name, seconds):
        """How a test ended, and why."""
        if self.process is None:
            self.start()
            self.names()
        try:
            print(name, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass
        told, why = self.wait(seconds)
        if told is None:
            return "crash", why
        how, why, ends = told
        if ends:  # the next test has a new process
            self.kill()
        return how, why

    def close(self):
        """How the process ended when there was nothing left to do."""
        how = "ok", ""
        if self.process is not None:
            self.process.stdin.close()
            try:
                code = self.process.wait(END_SECONDS)
                if code:
                    how = "crash", "it ended with %d: %s" % (code, self.said())
            except subprocess.TimeoutExpired:
                how = "crash", "it did not end in %d s: %s" % (END_SECONDS, self.said())
            self.kill()
        self.folder.cleanup()
        return how


class Told:
    """How tests ended, in the two ways, as the lines of a file say; what is added is in the file at once."""

    def __init__(self, path=None):
        self.files = {}  # file -> way -> test -> (how, why)
        self.out = None
        if path is not None:
            broken = path.is_file() and not self.read(path).endswith("\n")
            self.out = open(path, "a")
            if broken:
                self.out.write("\n")

    def read(self, path):
        text = path.read_text()
        for line in text.splitlines():
            try:
                told = json.loads(line)
            except ValueError:
                continue  # the last line of a run that was broken off
            self.put(told["file"], told["way"], told["test"], told["how"], told["why"])
        return text or "\n"

    def put(self, file, way, test, how, why):
        self.files.setdefault(file, {one: {} for one in WAYS})[way][test] = how, why

    def has(self, file, way, test):
        return test in self.files.get(file, {}).get(way, {})

    def add(self, file, way, test, how, why, seconds):
        self.put(file, way, test, how, why)
        if self.out is not None:
            print(json.dumps({"file": file, "way": way, "test": test, "how": how, "why": why,
                              "seconds": round(seconds, 2)}), file=self.out, flush=True)


def write_stand_ins(folder):
    for name, text in STAND_INS.items():
        if importlib.util.find_spec(name) is None:
            pathlib.Path(folder, name + ".py").write_text(text)


def run_test(drivers, file, name, options, told, until):
    """Runs a test in the ways in which it has not run; whether time allowed it."""
    for way, driver in drivers.items():
        if told.has(file, way, name):
            continue
        begin = time.monotonic()
        if begin >= until:
            return False
        how, why = driver.test(name, min(options.seconds, until - begin))
        if driver.process is None and time.monotonic() >= until:
            return False
        told.add(file, way, name, how, why, time.monotonic() - begin)
    return True


def run(file, name, match, options, told, until):
    """Runs a file's tests, each in both ways, as far as time allows; how many are left."""
    with tempfile.TemporaryDirectory() as stand_ins:
        write_stand_ins(stand_ins)
        drivers = {}
        try:
            for way in WAYS:
                drivers[way] = Driver(file, match, way, stand_ins)
            names = [driver.names() for driver in drivers.values()][0]
            if not names:
                print("%s: no test matches" % name)
            mine = names[options.shard[0] - 1::options.shard[1]]
            left = [test for test in mine if not all(told.has(name, way, test) for way in WAYS)]
            while left and run_test(drivers, name, left[0], options, told, until):
                del left[0]
            for way, driver in drivers.items():
                ended = driver.close()
                if mine:
                    told.add(name, way, END, *ended, 0)
            return len(left)
        finally:
            for driver in drivers.values():
                if driver.process is not None:
                    driver.kill()


def compare(native, pleat):
    """Names of the tests that pass natively, and (name, how, why) of those of them that fail under Pleat."""
    passed = sorted(name for name, (how, _) in native.items() if how in GOOD)
    return passed, [(name, *pleat.get(name, ("not run", ""))) for name in passed
                    if pleat.get(name, ("", ""))[0] not in GOOD]


def excepted(document):
    """Names of tests in a document."""
    return set(re.findall(r"`(test_\w+)`", document))


def say(told):
    """What was told, a paragraph a file; how many tests fail that must not."""
    known = excepted((ROOT / "docs" / "limits.md").read_text())
    wrong = 0
    for name, ways in told.files.items():
        passed, failed = compare(*(ways[way] for way in WAYS))
        unexpected = [one for one in failed if one[0].rpartition(".")[2] not in known]
        wrong += len(unexpected)
        counted = [test for test in passed if test != END]
        print("%s: %d tests, %d pass natively, %d of them under Pleat" % (
            name, len(set(ways["native"]) - {END}), len(counted),
            len(counted) - len([one for one in failed if one[0] != END])))
        for test, how, why in failed:
            print("  %s%s: %s: %s" % ("" if (test, how, why) in unexpected else "(in docs/limits.md) ", test, how,
                                      why.strip().splitlines()[-1] if why.strip() else ""))
    return wrong


def run_all(options, told):
    """How many files could not be loaded, or not be run to their end."""
    until = time.monotonic() + options.within
    short = 0
    for name in options.files.split(","):
        file = options.folder.absolute() / name
        if not file.is_file():
            print("%s: not there" % name)
            continue
        try:
            left = run(file, name, options.match or FILES.get(name, "."), options, told, until)
            if left:
                print("%s: %d tests are left" % (name, left))
                short += 1
        except NotLoaded as why:
            print("%s: not loaded by this torch: %s" % (name, str(why).strip().splitlines()[-1]))
            short += 1
    return short


def shard(text):
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if not found or int(found.group(1)) > int(found.group(2)):
        raise argparse.ArgumentTypeError("%r is not I/N with I from 1 to N" % text)
    return int(found.group(1)), int(found.group(2))


def end(number, frame):
    """What is running goes with this process, and what was told is said."""
    raise KeyboardInterrupt


def main():
    signal.signal(signal.SIGTERM, end)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, nargs="?", help="PyTorch's folder `test`")
    parser.add_argument("--match", metavar="REGEX", help="tests by their names [of test_cuda.py those of memory]")
    parser.add_argument("--files", default=",".join(FILES), metavar="FILE,...", help="[%(default)s]")
    parser.add_argument("--lines", type=pathlib.Path, metavar="FILE",
                        help="write how each test ended there; what it has is not run again")
    parser.add_argument("--shard", type=shard, default=(1, 1), metavar="I/N", help="every Nth test from the Ith on")
    parser.add_argument("--within", type=float, default=float("inf"), metavar="SECONDS",
                        help="end after that time")
    parser.add_argument("--seconds", type=float, default=100, help="of one test in one way, at most [%(default)g]")
    parser.add_argument("--sum", type=pathlib.Path, nargs="+", metavar="FILE", help="compare what these say, run nothing")
    options = parser.parse_args()
    if (options.folder is None) == (options.sum is None):
        parser.error("give either PyTorch's folder `test` or --sum")
    told = Told(options.lines)
    short = 0
    if options.sum:
        for path in options.sum:
            told.read(path)
    else:
        try:
            short = run_all(options, told)
        except KeyboardInterrupt:
            print("broken off")
            short = 1
    return 1 if say(told) or short or not told.files else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(pathlib.Path(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        sys.exit(main())
