"""The package without a GPU and without torch: package.py. Where a torch with its headers and CUDA's
are there, the shim is compiled against it, too ($PLEAT_TORCH_PYTHON: a Python that has torch)."""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "adapters" / "pytorch"
sys.path.insert(0, str(ADAPTER))
sys.dont_write_bytecode = True
import pleat  # noqa: E402
from pleat import _shim, run  # noqa: E402

# What stands for torch below: it says that it was imported, and that CUDA is not there.
TORCH = """
import sys
print("torch imported")
class version: cuda = None
"""


def python(code, **environment):
    made = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **environment)
    return subprocess.run([sys.executable, "-c", code], env=made, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


class Package(unittest.TestCase):
    def test_imports_without_torch(self):
        done = python("import sys; sys.modules['torch'] = None; import pleat, pleat.run; "
                      "print(pleat.enabled(), pleat.stats(), pleat.mark_step())",
                      PYTHONPATH=str(ADAPTER))
        self.assertEqual((done.returncode, done.stdout), (0, "False {} None\n"))

    def test_enable_without_torch_says_so(self):
        done = python("import sys; sys.modules['torch'] = None; import pleat; pleat.enable()",
                      PYTHONPATH=str(ADAPTER))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("torch", done.stdout.splitlines()[-1])

    def test_sizes(self):
        for text, bytes in [("0", 0), ("512", 512), ("64k", 65536), ("2MiB", 2 << 20),
                            ("1.5GiB", 3 << 29), ("3gb", 3 << 30), (7, 7)]:
            self.assertEqual(pleat.parse_size(text), bytes)
        for text in ("", "x", "-1", "12q", "1 2"):
            with self.assertRaises(ValueError):
                pleat.parse_size(text)


class Run(unittest.TestCase):
    def test_options_reach_the_environment(self):
        options = run.parse(["--budget", "2GiB", "--policy", "native", "--no-marks", "--", "python",
                             "train.py", "--budget", "9"])
        self.assertEqual(options.program, ["python", "train.py", "--budget", "9"])
        made = run.environment(options, {"PYTHONPATH": "/a:/b", "HOME": "/h"})
        self.assertEqual(made["PYTHONPATH"], run.SITE + ":/a:/b")
        self.assertEqual(made["PLEAT_RUN_BUDGET"], str(2 << 30))
        self.assertEqual(made["PLEAT_RUN_POLICY"], "native")
        self.assertEqual(made["PLEAT_RUN_MARKS"], "off")
        self.assertEqual(made["HOME"], "/h")
        # Within a program that runs under it already.
        self.assertEqual(run.environment(options, made)["PYTHONPATH"], made["PYTHONPATH"])

    def test_bad_use_is_refused(self):
        for wrong in (["--budget", "much", "--", "true"], ["--policy", "none", "--", "true"],
                      ["--plan", "/no/such.plan", "--", "true"], [], ["--"]):
            done = subprocess.run([sys.executable, "-m", "pleat.run", *wrong], cwd=str(ADAPTER),
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.returncode, 2, wrong)
            self.assertIn("pleat run: error: ", done.stdout)

    def test_the_program_takes_its_place(self):
        done = subprocess.run([sys.executable, "-m", "pleat.run", "--", sys.executable, "-c",
                               "import os, sys; print(os.environ['PLEAT_RUN_PLAN']); sys.exit(7)"],
                              cwd=str(ADAPTER), stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout), (7, "auto\n"))

    def test_another_sitecustomize_is_run_first(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "sitecustomize.py").write_text("print('theirs')\nmine = 5\n")
            pathlib.Path(folder, "torch.py").write_text(TORCH)
            made = run.environment(run.parse(["--", "true"]), {"PYTHONPATH": folder})
            done = python("import sys, sitecustomize; print(sitecustomize.mine, 'pleat' in sys.modules)\n"
                          "import torch; print('pleat' in sys.modules, torch.__spec__.name)\n"
                          "import pleat; print(pleat.enabled())", **made)
            self.assertEqual(done.stdout.splitlines(),
                             ["theirs", "5 False", "torch imported", "True torch", "False"])
            # The same without `pleat run`.
            self.assertEqual(python("import torch", PYTHONPATH=folder).stdout,
                             "theirs\ntorch imported\n")


class Shim(unittest.TestCase):
    def test_what_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(_shim.ShimError, "header .* is missing"):
                _shim.features(folder)
        before = os.environ.get("CXX")
        os.environ["CXX"] = "no-such-compiler"
        try:
            with self.assertRaisesRegex(_shim.ShimError, "no-such-compiler"):
                _shim.compiler()
        finally:
            os.environ.pop("CXX")
            if before is not None:
                os.environ["CXX"] = before

    def test_compile_errors_are_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "x.cpp")
            source.write_text("int main() { return undeclared_name; }\n")
            with self.assertRaisesRegex(_shim.ShimError, "undeclared_name"):
                _shim.compile_with([_shim.compiler(), str(source), "-o", str(source) + ".out"])

    def test_compiles_against_torch(self):
        python = os.environ.get("PLEAT_TORCH_PYTHON", sys.executable)
        asked = subprocess.run(
            [python, "-c", "import torch; print(torch.__file__, torch.__version__, "
                           "int(torch._C._GLIBCXX_USE_CXX11_ABI))"],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if asked.returncode:
            self.skipTest("no torch")
        file, version, abi = asked.stdout.split()
        version = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
        try:
            _shim.cuda_include()
        except _shim.ShimError as missing:
            self.skipTest(str(missing))
        with tempfile.TemporaryDirectory() as folder:
            line = _shim.command(os.path.dirname(file), int(abi), version,
                                 os.path.join(folder, "shim.o"), object_only=True)
            # Of a torch without CUDA one generated header is missing.
            header = pathlib.Path(folder, "c10", "cuda", "impl", "cuda_cmake_macros.h")
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n")
            _shim.compile_with(line + ["-idirafter", folder])


if __name__ == "__main__":
    unittest.main()
