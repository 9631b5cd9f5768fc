"""What tools/gpu-check says where there is no GPU, no torch or no build with tests.

usage: gpu_check.py GPU-CHECK
"""
import os
import pathlib
import subprocess
import sys
import unittest

import here

CHECK = sys.argv[1]


def script(folder, name, text):
    path = pathlib.Path(folder, name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text + "\n")
    path.chmod(0o755)
    return str(path)


class GpuCheck(here.Folder):
    def check(self, *arguments, **environment):
        environment.setdefault("PLEAT_TORCH_PYTHON", script(self.folder, "python", "exit 1"))
        done = subprocess.run([sys.executable, "-B", CHECK, *arguments], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True,
                              env=dict(os.environ, OUT=self.path("out"), **environment))
        self.assertNotIn("Traceback", done.stdout)
        return done.returncode, done.stdout.splitlines()[-1]

    def test_what_was_asked_for_and_not_tested_did_not_pass(self):
        for name in ("torch_tests", "workloads"):
            code, said = self.check(self.folder, "--only", name)
            self.assertEqual(code, 1)
            self.assertIn("has no torch that sees a GPU", said)
        code, said = self.check(self.folder, "--only", "workloads", PLEAT_TORCH_PYTHON="/no/such/python")
        self.assertEqual(code, 1)
        self.assertIn("$PLEAT_TORCH_PYTHON: ", said)
        self.assertIn("/no/such/python", said)

    def test_pytorchs_own_tests_are_asked_for_by_a_folder(self):
        code, said = self.check(self.folder, "--only", "theirs", PLEAT_PYTORCH_TESTS="")
        self.assertEqual(code, 1)
        self.assertIn("$PLEAT_PYTORCH_TESTS names no folder", said)

    def test_what_passes_natively_alone_is_told(self):
        """Of PyTorch's own tests, with a file in their place."""
        (self.folder / "test").mkdir()
        (self.folder / "test/test_cuda.py").write_text("""
import os, unittest
UNDER_PLEAT = "PLEAT_RUN" in os.environ
class T(unittest.TestCase):
    def test_alloc_good(self): pass
    def test_alloc_fails(self): self.assertFalse(UNDER_PLEAT)
    def test_alloc_ends(self): os._exit(3) if UNDER_PLEAT else None
    def test_alloc_never(self): self.fail("natively neither")
    def test_graph_skipped(self): self.skipTest("no graph")
    def test_other(self): self.fail("it does not match")
""")
        theirs = pathlib.Path(CHECK).parents[1] / "tests/pytorch/theirs.py"
        done = subprocess.run([sys.executable, "-B", theirs, self.path("test"), "--match", "T.*(alloc|graph)",
                               "--files", "test_cuda.py"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        lines = done.stdout.splitlines()
        self.assertEqual((done.returncode, lines[0]),
                         (1, "test_cuda.py: 5 tests, 3 pass natively, 1 of them under Pleat"), done.stdout)
        self.assertEqual([line.split(": ")[:2] for line in lines[1:3]],
                         [["  test_cuda.T.test_alloc_ends", "crash"], ["  test_cuda.T.test_alloc_fails", "failure"]])
        done = subprocess.run([sys.executable, "-B", theirs, self.path("test"), "--match", "good|never"],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_what_torch_does_not_give_back_ends_a_process(self):
        """A test that leaves torch's cache full crowds those of the other process out: the next has a new one."""
        folder = self.folder / "test"
        folder.mkdir()
        (folder / "test_cuda.py").write_text("""
import pathlib, sys, types, unittest
cuda = types.SimpleNamespace(is_initialized=lambda: True, empty_cache=lambda: None, memory_allocated=lambda: 1 << 20,
                             memory_reserved=lambda: 1 << 20)
sys.modules["torch"] = types.SimpleNamespace(cuda=cuda)
class T(unittest.TestCase):
    def test_1_leaves_much(self): cuda.memory_reserved = lambda: 3 << 30
    def test_2_finds_none(self): self.assertLess(cuda.memory_reserved(), 3 << 30)
    def test_3_is_in_the_same(self): self.assertIs(sys.modules["torch"].cuda, cuda)
""")
        done = subprocess.run([sys.executable, "-B", pathlib.Path(CHECK).parents[1] / "tests/pytorch/theirs.py", folder,
                               "--files", "test_cuda.py", "--match", "T"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout),
                         (0, "test_cuda.py: 3 tests, 3 pass natively, 3 of them under Pleat\n"), done.stderr)
        self.assertEqual(done.stderr.count("loaded in"), 4, done.stderr)

    def test_pytorchs_own_tests_are_run_in_parts(self):
        """What one call wrote the next does not run again; a test that does not end is ended, with what it began."""
        folder, lines = self.folder / "test", self.folder / "lines"
        folder.mkdir()
        (folder / "test_cuda.py").write_text("""
import os, pathlib, subprocess, time, unittest
RUN = pathlib.Path(__file__).with_name("run")
class T(unittest.TestCase):
    @classmethod
    def setUpClass(cls): cls.there = True
    def begins(self):
        with open(RUN, "a") as run: run.write(self.id() + "\\n")
        self.assertTrue(self.there)
    def test_alloc_1(self): self.begins()
    def test_alloc_2(self):
        self.begins()
        if "PLEAT_RUN" in os.environ:
            print("it waits")
            RUN.with_name("pid").write_text(str(subprocess.Popen(["sleep", "1000"]).pid))
            time.sleep(1000)
    def test_alloc_3(self): self.begins()
""")

        def theirs(*arguments):
            done = subprocess.run([sys.executable, "-B", pathlib.Path(CHECK).parents[1] / "tests/pytorch/theirs.py",
                                   "--files", "test_cuda.py", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            return done.returncode, done.stdout

        def ran():
            return [line[-1] for line in (folder / "run").read_text().splitlines()]

        self.assertEqual(theirs(folder, "--shard", "3/2")[0], 2)
        self.assertEqual(theirs(folder, "--match", "no_such")[0], 1)
        self.assertEqual(theirs(folder, "--shard", "1/2", "--lines", lines),
                         (0, "test_cuda.py: 2 tests, 2 pass natively, 2 of them under Pleat\n"))
        self.assertEqual(ran(), ["1", "1", "3", "3"])
        with open(lines, "a") as broken:
            broken.write('{"file": "test_cu')
        code, said = theirs(folder, "--lines", lines, "--within", "2")
        self.assertEqual((code, said.splitlines()[0]), (1, "test_cuda.py: 1 tests are left"))
        self.assertNotIn("crash", lines.read_text())
        code, said = theirs(folder, "--lines", lines, "--seconds", "2")
        self.assertEqual((code, set(ran()[4:])), (1, {"2"}), said)
        self.assertRegex(said, "3 tests, 3 pass natively, 2 of them under Pleat\n  .*test_alloc_2: crash: .*\n")
        self.assertIn("not done in 2 s: it waits", lines.read_text())
        stat = pathlib.Path("/proc", (folder / "pid").read_text(), "stat")  # a zombie where nobody asks after it
        self.assertTrue(not stat.exists() or stat.read_text().split()[2] == "Z")
        self.assertEqual(theirs("--sum", lines), (1, said))

    def test_their_files_are_set_up_as_programs(self):
        """Expandable segments are asked for, and a file that this torch does not load keeps no other from its turn."""
        folder = self.folder / "test"
        folder.mkdir()
        (folder / "torch.py").write_text("""
__version__ = "9.9+cpu"
asked = []
class version: cuda = None
class cuda:
    is_initialized = staticmethod(lambda: False)
    class memory: _set_allocator_settings = staticmethod(asked.append)
""")
        (folder / "test_cuda.py").write_text("import no_such_module_of_another_torch\n")
        (folder / "test_cuda_expandable_segments.py").write_text("""
import torch, unittest
class T(unittest.TestCase):
    expandable_segments = False
    def test_alloc(self):
        self.assertEqual((torch.asked, self.expandable_segments()), (["expandable_segments:True"], True))
""")
        done = subprocess.run([sys.executable, "-B", pathlib.Path(CHECK).parents[1] / "tests/pytorch/theirs.py", folder],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertRegex(done.stdout, "test_cuda.py: not loaded by this torch: .*no_such_module_of_another_torch")
        self.assertIn("test_cuda_expandable_segments.py: 1 tests, 1 pass natively, 1 of them under Pleat", done.stdout)

    def test_without_torch_the_others_pass(self):
        for name in ("test_vmm_conformance", "test_tools_canary_cuda", "test_runtime_streams"):
            script(self.folder, "tests/" + name, "exit 0")
        code, said = self.check(self.folder, "--only", "conformance,streams")
        self.assertEqual((code, said), (0, "all checks passed"))

    def test_a_build_without_tests_is_named(self):
        code, said = self.check(self.folder, "--only", "conformance")
        self.assertEqual(code, 1)
        self.assertIn("tests/test_vmm_conformance'; tests are built with -DBUILD_TESTING=ON", said)

    def test_what_it_builds_has_tests(self):
        calls = self.path("calls")
        script(self.folder, "bin/cmake", "echo \"$@\" >> '%s'\nexit 1" % calls)
        path = self.path("bin") + os.pathsep + os.environ.get("PATH", os.defpath)
        self.assertEqual(self.check(PATH=path), (1, "tools/gpu-check: failed: the build failed"))
        self.assertEqual(pathlib.Path(calls).read_text(), "--preset release -DBUILD_TESTING=ON\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
