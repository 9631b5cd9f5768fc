"""C++ programs with libtorch and without Python: libtorch.py. Builds the allocator for the installed torch and
examples/libtorch.cpp against it, and runs that by LD_PRELOAD and by its one call; on a GPU, where there is one, it says
what was served. Skips where there is no torch whose CUDA libraries are there ($PLEAT_TORCH_PYTHON: a Python with one).
"""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from here import ROOT  # first: it knows where the package is
from torch_or_none import torch
import pleat
import suite
from pleat import _command, _shim, libtorch

HOME = pathlib.Path(torch.__file__).parent if torch is not None else pathlib.Path("/none")
THERE = (HOME / "lib" / "libtorch_cuda.so").is_file()


@unittest.skipUnless(THERE, "no torch with its CUDA libraries")
class Libtorch(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(made.cleanup)
        cls.folder = pathlib.Path(made.name)
        cls.library = str(cls.folder / "libpleat_torch.so")
        try:
            line = libtorch.command(HOME, cls.library)
        except pleat.UnavailableError as missing:
            raise unittest.SkipTest(str(missing)) from None
        _shim.compile_with(line)
        cls.plain = cls.build("plain")
        cls.calling = cls.build("calling", "-DWITH_PLEAT", "-I%s" % (ROOT / "include"), cls.library,
                                "-Wl,-rpath,%s" % cls.folder)

    @classmethod
    def build(cls, name, *more):
        """The example as a program; without optimisation, which takes most of the time."""
        include = HOME / "include"
        libraries = ["torch", "torch_cpu", "torch_cuda", "c10", "c10_cuda"]
        folders = [include, include / "torch/csrc/api/include", *_shim.cuda_includes()]
        _shim.compile_with([*_shim.compiler(), "-std=c++20", "-O0", "-D_GLIBCXX_USE_CXX11_ABI=%d" % libtorch.abi(HOME),
                            *[part for folder in folders for part in ("-isystem", str(folder))],
                            str(ROOT / "examples/libtorch.cpp"), "-o", str(cls.folder / name), "-L%s" % (HOME / "lib"),
                            "-Wl,--no-as-needed", *["-l" + one for one in libraries], *more,
                            "-Wl,-rpath,%s" % (HOME / "lib")])
        return cls.folder / name

    def run_it(self, program, **environment):
        done = subprocess.run([str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300,
                              env=dict(os.environ, **environment))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("step 19: loss ", done.stdout)
        return done.stdout.splitlines(), done.stderr

    def test_a_program_is_served_without_a_change(self):
        native, _ = self.run_it(self.plain)
        self.assertEqual(native[0], "CUDA memory is served by native")
        said, told = self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT="1")
        self.assertEqual(said[0], "CUDA memory is served by pleat")
        self.assertEqual(said[1:], native[1:])
        if torch.cuda.is_available():
            self.assertIn("pleat: device 0: peak allocated ", told)
            plan = str(self.folder / "a.plan")
            self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT="1", PLEAT_SAVE_PLAN=plan)
            self.assertIn("of them planned", self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT="1", PLEAT_PLAN=plan)[1])

    def test_the_command_of_an_installation_ends_well(self):
        line = ["libtorch", str(HOME), "-o", str(self.folder / "made.so")]
        with mock.patch("sys.argv", ["pleat", *line]), mock.patch.object(_shim, "compile_with") as compiled, \
                contextlib.redirect_stdout(io.StringIO()) as said:
            _command.main()
        self.assertEqual(compiled.call_count, 1)
        self.assertEqual(said.getvalue().strip(), line[-1])

    def test_a_program_calls_for_it(self):
        self.assertEqual(self.run_it(self.calling)[0][0], "CUDA memory is served by pleat")

    def test_it_is_not_there_unless_it_is_asked_for(self):
        for value in ("", "0"):
            said, told = self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT=value)
            self.assertEqual((said[0], told), ("CUDA memory is served by native", ""))

    def test_what_is_wrong_is_said(self):
        for budget, wrong in (("much", True), ("0", True), ("1.5q", True), ("-1", True), ("0.5", True), ("0x10", True), ("1e9", True), (" 5m", True), ("20GiB", False), ("6400m", False), ("%d" % (20 << 30), False)):
            said, told = self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT="1", PLEAT_BUDGET=budget)
            self.assertEqual("PLEAT_BUDGET: '%s' is no size" % budget in told, wrong, told)
            self.assertEqual(said[0].endswith("native"), wrong)
        for budget in ("1", "2047k"):
            said, told = self.run_it(self.plain, LD_PRELOAD=self.library, PLEAT="1", PLEAT_BUDGET=budget)
            self.assertIn("bytes holds nothing: write 20GiB or 512MiB: the program runs without Pleat", told)
            self.assertTrue(said[0].endswith("native"), said[0])

    def test_what_cannot_be_built_is_said(self):
        for folder, text in ((self.folder, "DIR is to be libtorch's folder"),):
            with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()) as said:
                libtorch.main([str(folder), "-o", str(self.folder / "x.so")])
            self.assertEqual(ended.exception.code, 3)
            self.assertIn(text, said.getvalue())
        with self.assertRaises(SystemExit) as ended, contextlib.redirect_stderr(io.StringIO()):
            libtorch.main([str(HOME), "-o", "/no/such/folder/x.so"])
        self.assertEqual(ended.exception.code, 3)
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
            libtorch.main([str(HOME), "-o", ""])
        self.assertIn("pleat libtorch: error: --output is a file, not ''", said.getvalue())


if __name__ == "__main__":
    suite.main(needs_torch=True)
