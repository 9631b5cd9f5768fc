#!/usr/bin/env python3
"""PyTorch's own tests under Pleat: theirs.py FOLDER [--match REGEX] [--json FILE], on a machine with a GPU and torch.

FOLDER is the folder `test` of a source tree of PyTorch, such as Debian's source package of pytorch has (apt-get
source pytorch; not the tests but torch itself decides what passes, so its version need not be torch's). Of the tree
nothing else is needed but the folder `tools` beside it, which the tests for expandable segments import:

    tar xf pytorch_2.6.0+dfsg.orig.tar.xz --wildcards '*/test' '*/tools'

Each test runs natively and under `pleat run`: what passes natively must pass. Tests that cannot are named, each with
its reason, in docs/limits.md. A test that ends its process counts as failed, and the others go on in a new one. A
file that this torch does not load is said, and the others go on. The tests of graph trees compile: they need Triton
and a C compiler.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
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
         "inductor/test_cudagraph_trees_expandable_segments.py": ".", "test_multiprocessing.py": "."}
GOOD = ("ok", "expected failure")
SECONDS_MOST = 1500  # of one file, in one of the two ways

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


class Told(unittest.TestResult):
    """Writes how each test began and ended, a line each, at once: the process may end in any of them."""

    def __init__(self, out):
        super().__init__()
        self.out = out
        self.how = None

    def tell(self, **what):
        print(json.dumps(what), file=self.out, flush=True)

    def startTest(self, test):
        super().startTest(test)
        self.how, self.why = "ok", ""
        self.tell(begins=test.id())

    def stopTest(self, test):
        super().stopTest(test)
        self.tell(ends=test.id(), how=self.how, why=self.why)

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


def drive(file, match, done, out):
    """Runs the tests of a file that match and are not done."""
    sys.argv[1:] = []
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
    left = [test for test in flat(found) if re.search(match, test.id()) and test.id() not in done]
    with open(out, "a") as told:
        result = Told(told)
        for test in left:
            test(result)
        result.tell(complete=True)


# ---- in the process that compares ----


class Outcomes:
    """How each test ended in one of the two ways: name -> (how, why)."""

    def __init__(self):
        self.tests = {}
        self.complete = False

    def read(self, text):
        running = None
        for line in text.splitlines():
            told = json.loads(line)
            if "begins" in told:
                running = told["begins"]
            elif "ends" in told:
                self.tests[told["ends"]] = told["how"], told["why"]
                running = None
            else:
                self.complete = True
        return running


def run(file, match, prefix, more):
    """Outcomes of a file's tests in processes that begin with a prefix, as many as it takes."""
    outcomes = Outcomes()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "stand-ins").mkdir()
        for name, text in STAND_INS.items():
            if importlib.util.find_spec(name) is None:
                pathlib.Path(folder, "stand-ins", name + ".py").write_text(text)
        # PyTorch's loader refuses tests of a file that is not the program run.
        environment = dict(os.environ, PYTORCH_DISABLE_RUNNING_SCRIPT_CHK="1", PYTHONPATH=os.pathsep.join(
            filter(None, [os.path.join(folder, "stand-ins"), os.environ.get("PYTHONPATH")])), **more)
        while not outcomes.complete:
            out, done = pathlib.Path(folder, "told"), pathlib.Path(folder, "done")
            out.write_text("")
            done.write_text(json.dumps(sorted(outcomes.tests)))
            left = SECONDS_MOST - (time.monotonic() - begin)
            command = [*prefix, sys.executable, __file__, "--drive", str(file), match, str(done), str(out)]
            try:
                ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True, errors="replace", timeout=max(left, 1))
                why = "its process ended with %d: %s" % (ended.returncode, ended.stdout[-300:])
            except subprocess.TimeoutExpired:
                why = "not done in time"
            running = outcomes.read(out.read_text())
            if running is not None:
                outcomes.tests[running] = "crash", why
            elif not outcomes.complete:
                raise NotLoaded(why)
            if left < 1:
                break
    return outcomes.tests


def compare(native, pleat):
    """Names of the tests that pass natively, and (name, how, why) of those of them that fail under Pleat."""
    passed = sorted(name for name, (how, _) in native.items() if how in GOOD)
    return passed, [(name, *pleat.get(name, ("not run", ""))) for name in passed
                    if pleat.get(name, ("", ""))[0] not in GOOD]


def excepted(document):
    """Names of tests in a document."""
    return set(re.findall(r"`(test_\w+)`", document))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path, help="PyTorch's folder `test`")
    parser.add_argument("--match", metavar="REGEX", help="tests by their names [of test_cuda.py those of memory]")
    parser.add_argument("--files", default=",".join(FILES), metavar="FILE,...", help="[%(default)s]")
    parser.add_argument("--json", metavar="FILE", help="write how each test ended there")
    options = parser.parse_args()
    known = excepted((ROOT / "docs" / "limits.md").read_text())
    everything, wrong = {}, 0
    for name in options.files.split(","):
        file = options.folder.absolute() / name
        if not file.is_file():
            print("%s: not there" % name)
            continue
        match = options.match or FILES.get(name, ".")
        try:
            native = run(file, match, [], {})
            pleat = run(file, match, [RUN, "--quiet", "--"], {})
        except NotLoaded as why:
            print("%s: not loaded by this torch: %s" % (name, str(why).strip().splitlines()[-1]))
            wrong += 1
            continue
        passed, failed = compare(native, pleat)
        everything[name] = {"native": native, "pleat": pleat}
        unexpected = [one for one in failed if one[0].rpartition(".")[2] not in known]
        wrong += len(unexpected)
        print("%s: %d tests, %d pass natively, %d of them under Pleat" % (
            name, len(native), len(passed), len(passed) - len(failed)))
        for test, how, why in failed:
            print("  %s%s: %s: %s" % ("" if (test, how, why) in unexpected else "(in docs/limits.md) ", test, how,
                                      why.strip().splitlines()[-1] if why.strip() else ""))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(everything, indent=1) + "\n")
    return 1 if wrong or not everything else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--drive"]:
        drive(pathlib.Path(sys.argv[2]), sys.argv[3], set(json.loads(pathlib.Path(sys.argv[4]).read_text())), sys.argv[5])
    else:
        sys.exit(main())
