"""The shim's allocator without a GPU: shim.py. Builds shim.cpp and others against the installed torch's headers,
with the tests' libcuda ($PLEAT_CUDA_LIBRARY) behind libpleat, and runs them. Skips where there is no
torch with all that the fake of its allocator overrides ($PLEAT_TORCH_PYTHON: a Python that has it).
"""

import os
import pathlib
import subprocess
import tempfile
import unittest

import here  # first: it knows where the package is
from torch_or_none import torch
import pleat
import suite
from pleat import _shim

HERE = pathlib.Path(__file__).resolve().parent
NEEDED = {"EMPTY_POOL", "EXPANDABLE_SIZES", "MEMORY_FRACTION", "PROCESS_FRACTION", "REJECTION_OBSERVER", "SHARE_HANDLE",
          "SKIP_ACTIONS", "SNAPSHOT_TRACES", "USE_ON_OOM_FLAG"}


def command(folder, name):
    """The compiler's command line for the program FOLDER/shim of a file NAME."""
    root = pathlib.Path(torch.__file__).parent
    if not NEEDED <= set(_shim.features(root / "include")):
        raise pleat.UnavailableError("torch %s is too old for the fake" % torch.__version__)
    line = _shim.command(root, torch._C._GLIBCXX_USE_CXX11_ABI, _shim.numbers(torch.__version__), folder / "shim", object_only=True)
    line.remove("-c")
    line[line.index(str(_shim.PACKAGE / "shim.cpp"))] = str(HERE / name)
    # Before torch's headers, its pluggable allocator's; behind them, one that a build without CUDA lacks.
    line += ["-I%s" % (HERE / "fake"), "-I%s" % _shim.PACKAGE]
    if "CUDAErrorLogCapture" in (root / "include" / "c10" / "cuda" / "CUDAException.h").read_text():
        line.append("-DPLEAT_FAKE_ERROR_LOG")
    header = folder / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    header.parent.mkdir(parents=True)
    header.write_text("#pragma once\n")
    library = _shim.library()
    return line + ["-idirafter", str(folder), "-L%s" % (root / "lib"), "-lc10", str(library),
                   "-Wl,-rpath,%s" % (root / "lib"), "-Wl,-rpath,%s" % library.parent]


@unittest.skipIf(torch is None, "no torch")
@unittest.skipUnless(os.environ.get("PLEAT_CUDA_LIBRARY"), "$PLEAT_CUDA_LIBRARY names no libcuda")
class Shim(unittest.TestCase):
    def test_the_allocator(self):
        self.run_it("shim.cpp")

    def test_what_is_served_elsewhere(self):
        self.run_it("elsewhere.cpp")

    def test_the_history_among_threads(self):
        self.run_it("history.cpp", "-fsanitize=thread")

    def run_it(self, name, *options):
        with tempfile.TemporaryDirectory() as folder:
            try:
                line = command(pathlib.Path(folder), name)
            except pleat.UnavailableError as missing:
                self.skipTest(str(missing))
            _shim.compile_with([*line, *options])
            done = subprocess.run([os.path.join(folder, "shim")], stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=120)
        self.assertEqual(done.returncode, 0, "\n" + done.stdout)
        self.assertIn("ok   ", done.stdout)


if __name__ == "__main__":
    suite.main(needs_torch=True)
