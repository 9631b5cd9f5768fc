"""How the package is installed, and how its shim is built, kept and loaded: building.py. Where a torch with its headers and CUDA's are
there, it is compiled against it, too ($PLEAT_TORCH_PYTHON: a Python that has torch)."""

import contextlib
import importlib.util
import io
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
from unittest import mock

from here import ADAPTER, ROOT  # first: it knows where the package is
import pleat
import suite
from pleat import _shim


class Cache(unittest.TestCase):
    """The cache of compiled shims, with a torch that is headers only and a compiler that is a function."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.torch = types.SimpleNamespace(
            __file__=self.file("torch/__init__.py"), __version__="2.11.0+cu130",
            version=types.SimpleNamespace(cuda="13.0", git_version="abc"),
            _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True))
        for name in (_shim.ALLOCATOR, _shim.PLUGGABLE, "c10/core/Allocator.h"):
            self.file("torch/include/" + name)
        environment = {"XDG_CACHE_HOME": str(self.folder / "cache"), "PLEAT_LIBRARY": self.file("libpleat.so.0"),
                       "PLEAT_INCLUDE": self.file("include/pleat/runtime.h"), "CXX": "true", "PLEAT_RUN": "quiet"}
        lines = [mock.patch.dict(os.environ, environment),
                 mock.patch.object(_shim, "cuda_includes", lambda: ["/cuda"]),
                 mock.patch.object(_shim, "compile_with", self.compile)]
        for line in lines:
            line.start()
            self.addCleanup(line.stop)
        self.compiled = []

    def file(self, name, text=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return str(path)

    def compile(self, line):
        output = line[line.index("-o") + 1]
        self.compiled.append(output)
        pathlib.Path(output).write_text("whole")

    def test_what_is_compiled_is_said_once(self):
        with contextlib.redirect_stderr(io.StringIO()) as said, mock.patch.dict(os.environ, PLEAT_RUN="on"):
            folder = _shim.build(self.torch).parent
            _shim.build(self.torch)
        self.assertEqual(said.getvalue(), "pleat: compiling the shim for torch 2.11.0+cu130, which takes some twenty "
                                          "seconds, once: it is kept in %s\n" % folder)
        self.torch.__version__ = "2.12.0"
        with contextlib.redirect_stderr(io.StringIO()) as said:
            _shim.build(self.torch)
        self.assertEqual((said.getvalue(), len(self.compiled)), ("", 2))

    def test_one_that_is_there_takes_no_compiler(self):
        made = _shim.build(self.torch)
        os.chmod(made.parent, 0o555)  # in an image that is not written, say
        with mock.patch.dict(os.environ, CXX="no-such-compiler"), \
                mock.patch.object(_shim, "cuda_includes", side_effect=pleat.UnavailableError("none")), \
                mock.patch.object(_shim, "locked", side_effect=pleat.UnavailableError("not written")):
            self.assertEqual(_shim.build(self.torch), made)
        self.assertEqual((made.read_text(), len(self.compiled)), ("whole", 1))
        os.chmod(made.parent, 0o755)
        self.assertEqual(sorted(os.listdir(made.parent)), ["lock", made.name])

    def test_one_of_something_else_is_not_taken(self):
        made = {_shim.build(self.torch)}

        def differs(what):
            before = len(made)
            made.add(_shim.build(self.torch))
            self.assertEqual(len(made), before + 1, what)

        self.torch.__version__ = "2.11.1+cu130"
        differs("another torch")
        self.torch.version.git_version = "abd"
        differs("another build of it")
        self.torch.version.cuda = "13.1"
        differs("another CUDA")
        self.torch._C._GLIBCXX_USE_CXX11_ABI = False
        differs("another C++ interface")
        for name in ("c10/core/Allocator.h", _shim.ALLOCATOR, _shim.PLUGGABLE):
            self.file("torch/include/" + name, "other")
            differs(name)
        self.file("include/pleat/runtime.h", "other")
        differs("another interface of libpleat")
        os.environ["PLEAT_LIBRARY"] = self.file("other/libpleat.so.0")
        differs("a libpleat elsewhere")
        sources = self.folder / "sources"
        shutil.copytree(_shim.PACKAGE, sources)
        (sources / "routes.h").write_text("other")
        with mock.patch.object(_shim, "PACKAGE", sources):
            differs("other sources")
        with mock.patch("platform.libc_ver", lambda: ("glibc", "1.0")):
            differs("another system")
        self.assertIn(_shim.build(self.torch), made)

    def test_what_others_could_have_made_is_not_loaded(self):
        made = _shim.build(self.torch)
        self.assertFalse(made.parent.stat().st_mode & 0o022)
        for mode in (0o775, 0o757):
            made.write_text("theirs")
            made.chmod(mode)
            self.assertEqual((_shim.build(self.torch), made.read_text()), (made, "whole"))
            self.assertFalse(made.stat().st_mode & 0o022)
        elsewhere = pathlib.Path(self.file("elsewhere.so", "theirs"))
        made.unlink()
        made.symlink_to(elsewhere)
        self.assertEqual((_shim.build(self.torch), made.read_text()), (made, "whole"))
        self.assertEqual((made.is_symlink(), elsewhere.read_text()), (False, "theirs"))
        self.assertEqual(len(self.compiled), 4)

    def test_a_folder_of_others_is_refused(self):
        made = _shim.build(self.torch)

        def refused():
            with self.assertRaisesRegex(pleat.UnavailableError, "kept in %s, which is another user's or can be "
                                                                "written by others" % made.parent):
                _shim.build(self.torch)

        for mode in (0o775, 0o757):
            made.parent.chmod(mode)
            refused()
            made.unlink(missing_ok=True)
            refused()
        made.parent.chmod(0o755)
        self.assertEqual(_shim.build(self.torch), made)
        # Another's, who may be root: as root is trusted by everybody, root's own is given away.
        if os.geteuid() == 0:
            os.chown(made.parent, 4711, -1)
            refused()
        else:
            with mock.patch("os.geteuid", lambda: os.getuid() + 1):
                refused()

    def test_what_a_killed_process_left_is_removed(self):
        made = _shim.build(self.torch)
        left = pathlib.Path(self.file(str(made.parent / (made.name + "it") / "shim.so"))).parent
        made.unlink()
        _shim.build(self.torch)  # another one may be at work
        self.assertTrue(left.exists())
        os.utime(left, (0, 0))
        made.unlink()
        with mock.patch("fcntl.flock", side_effect=OSError(38, "no locks here")):
            _shim.build(self.torch)
        self.assertEqual(sorted(os.listdir(made.parent)), ["lock", made.name])

    def test_a_folder_that_takes_nothing_is_said_as_what_is_missing(self):
        with mock.patch("tempfile.mkdtemp", side_effect=OSError(28, "No space left on device")):
            with self.assertRaisesRegex(pleat.UnavailableError, "which cannot be written: No space left on device; name"):
                _shim.build(self.torch)

    def test_what_was_not_loaded_for_long_is_removed(self):
        now = time.time()
        old, other, made = [self.build_of(version) for version in ("2.9.0", "2.10.0", "2.11.0")]
        for shim in (old, other):
            os.utime(shim, (now, now - _shim.UNUSED_SECONDS - 9))
        self.assertEqual(self.build_of("2.10.0"), other)  # which is used again
        self.build_of("2.12.0")
        self.assertEqual([shim.exists() for shim in (old, other, made)], [False, True, True])

    def build_of(self, version):
        self.torch.__version__ = version
        return _shim.build(self.torch)

    def test_where_groups_share_what_they_make_the_shim_is_kept_all_the_same(self):
        before = os.umask(0o002)
        self.addCleanup(os.umask, before)
        self.assertEqual(_shim.build(self.torch), _shim.build(self.torch))
        self.assertEqual(len(self.compiled), 1)

    def build_in_two_threads(self):
        built = []
        threads = [threading.Thread(target=lambda: built.append(_shim.build(self.torch))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual((len(built), len(set(built)), built[0].read_text()), (2, 1, "whole"))

    def test_of_two_at_once_one_compiles(self):
        self.build_in_two_threads()
        self.assertEqual(len(self.compiled), 1)

    def test_two_at_once_do_not_meet_where_there_are_no_locks(self):
        both, lines = threading.Barrier(2), []

        def compile(line):
            lines.append(line)
            both.wait(60)  # none is there yet
            self.compile(line)

        with mock.patch("fcntl.flock", side_effect=OSError(38, "no locks here")), \
                mock.patch.object(_shim, "compile_with", compile):
            self.build_in_two_threads()
        self.assertEqual(len(set(self.compiled)), 2)


def torch_of(test):
    """The installed torch's file, its version and its string type; skips where there is none."""
    python = os.environ.get("PLEAT_TORCH_PYTHON", sys.executable)
    asked = subprocess.run([python, "-c", "import torch; print(torch.__file__, torch.__version__, "
                                          "int(torch._C._GLIBCXX_USE_CXX11_ABI))"],
                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if asked.returncode:
        test.skipTest("no torch")
    return asked.stdout.split()


class Shim(unittest.TestCase):
    def test_what_is_missing_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            with self.assertRaisesRegex(pleat.UnavailableError, "header .* is missing"):
                _shim.features(folder)
            for name in (_shim.ALLOCATOR, _shim.PLUGGABLE):
                header = pathlib.Path(folder, name)
                header.parent.mkdir(parents=True, exist_ok=True)
                header.write_text("virtual double getMemoryFraction(")
            self.assertEqual(_shim.features(folder), ["MEMORY_FRACTION"])
        before = os.environ.get("CXX")
        os.environ["CXX"] = "no-such-compiler"
        try:
            with self.assertRaisesRegex(pleat.UnavailableError, "no-such-compiler"):
                _shim.compiler()
        finally:
            os.environ.pop("CXX")
            if before is not None:
                os.environ["CXX"] = before

    def test_a_compiler_may_have_arguments(self):
        with tempfile.TemporaryDirectory(prefix="with blank ") as folder:
            blank = os.path.join(folder, "cc")
            pathlib.Path(blank).write_text("")
            os.chmod(blank, 0o755)
            for asked, command in (("env -i true", [shutil.which("env"), "-i", "true"]), (blank, [blank]),
                                   ("true", [shutil.which("true")])):
                with mock.patch.dict(os.environ, CXX=asked):
                    self.assertEqual(_shim.compiler(), command)
        for wrong in (" ", "g++ 'x"):
            with mock.patch.dict(os.environ, CXX=wrong), self.assertRaisesRegex(pleat.UnavailableError, "which is no program"):
                _shim.compiler()

    def test_one_that_cannot_be_loaded_is_named(self):
        with tempfile.NamedTemporaryFile() as shim, \
                mock.patch.object(_shim, "build", lambda torch: pathlib.Path(shim.name)), \
                self.assertRaisesRegex(pleat.UnavailableError, shim.name + " cannot be loaded.*remove it"):
            _shim.load(None)

    def test_a_missing_toolkit_or_library_is_named(self):
        with mock.patch.object(_shim, "cuda_folders", lambda: [pathlib.Path("/nowhere/cuda")]):
            with self.assertRaisesRegex(pleat.UnavailableError, "cuda_runtime_api.h is missing.*CUDA_HOME.*"
                                                         "/nowhere/cuda"):
                _shim.cuda_includes()
        with mock.patch.dict(os.environ, PLEAT_LIBRARY="/nowhere/libpleat.so.0"):
            with self.assertRaisesRegex(pleat.UnavailableError, "libpleat.so.0 is missing: looked for /nowhere/"):
                _shim.library()

    def test_headers_that_torchs_wheels_lack_are_looked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            def made(name):
                path = pathlib.Path(folder, name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                return path

            runtime = made("nvidia/cuda_runtime/include/cuda_runtime_api.h").parent
            wheels = [pathlib.Path(folder, "nvidia", name) for name in ("cu13", "cuda_runtime")]
            toolkit = pathlib.Path(folder, "toolkit")
            with mock.patch.object(_shim, "cuda_folders", lambda: [*wheels, toolkit]):
                with self.assertRaisesRegex(pleat.UnavailableError, "crt/host_config.h is missing, which those in %s "
                                            "include: pip install nvidia-cuda-crt" % runtime):
                    _shim.cuda_includes()
                made("toolkit/include/crt/host_config.h")
                whole = made("toolkit/include/cuda_runtime_api.h").parent
                self.assertEqual(_shim.cuda_includes(), [whole])
                nvcc = made("nvidia/cuda_nvcc/include/crt/host_config.h").parents[1]
                self.assertEqual(_shim.cuda_includes(), [runtime, nvcc])
                whole = made("nvidia/cu13/include/cuda_runtime_api.h").parent
                made("nvidia/cu13/include/crt/host_config.h")
                self.assertEqual(_shim.cuda_includes(), [whole])

    def test_a_torch_that_does_not_serve_is_named(self):
        class Torch:
            __version__ = "2.13.0+cpu"

            class version:
                cuda = None

        with self.assertRaisesRegex(pleat.UnavailableError, r"2.13.0\+cpu\) is built without CUDA, and"):
            _shim.check(Torch)
        Torch.__version__, Torch.version.cuda = "2.3.1", "12.1"
        with self.assertRaisesRegex(pleat.UnavailableError, "2.3.1 is too old"):
            _shim.check(Torch)

    def test_a_folder_is_one_for_every_folder_that_a_program_is_in(self):
        for cache, home, folder in (("", "/h", "/h/.cache"), ("/c", "/h", "/c"), ("c", "/h", "/h/.cache"), ("/c", "~", "/c")):
            with mock.patch.dict(os.environ, XDG_CACHE_HOME=cache, HOME=home):
                self.assertEqual(_shim.cache_folder(), pathlib.Path(folder, "pleat", "torch"))
        with mock.patch.dict(os.environ, XDG_CACHE_HOME="c", HOME="~"), \
                self.assertRaisesRegex(pleat.UnavailableError, "neither XDG_CACHE_HOME nor HOME names one"):
            _shim.cache_folder()

    def test_a_folder_that_cannot_be_written_is_named(self):
        with self.assertRaisesRegex(pleat.UnavailableError, "kept in /proc/pleat/torch, which cannot be "
                                                            "written: .*XDG_CACHE_HOME"):
            with _shim.locked(pathlib.Path("/proc/pleat/torch")):
                self.fail("it was held")
        with tempfile.TemporaryDirectory() as folder, _shim.locked(pathlib.Path(folder, "a", "b")):
            self.assertTrue(os.path.isdir(os.path.join(folder, "a", "b")))

    def test_what_the_linker_misses_is_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "x.cpp")
            source.write_text("void elsewhere(); int main() { elsewhere(); }\n")
            with self.assertRaisesRegex(pleat.UnavailableError, "undefined reference to .elsewhere"):
                _shim.compile_with([*_shim.compiler(), str(source), "-o", str(source) + ".out"])

    def test_compile_errors_are_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            source = pathlib.Path(folder, "x.cpp")
            source.write_text("int main() { return undeclared_name; }\n")
            with self.assertRaisesRegex(pleat.UnavailableError, "undeclared_name"):
                _shim.compile_with([*_shim.compiler(), str(source), "-o", str(source) + ".out"])

    def test_a_compiler_that_cannot_be_run_is_said_so(self):
        with tempfile.NamedTemporaryFile() as compiler:
            with self.assertRaisesRegex(pleat.UnavailableError, "the compiler %s cannot be run: " % compiler.name):
                _shim.compile_with([compiler.name])

    def test_nothing_of_a_compiler_is_left_where_pleat_libtorch_is_ended(self):
        with tempfile.TemporaryDirectory() as folder:
            header, part = pathlib.Path(folder, "include/torch/headeronly/version.h"), pathlib.Path(folder, "part")
            header.parent.mkdir(parents=True)
            header.write_text("#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n")
            compiler = ["sh", "-c", "sleep 60 & echo $! > %s.new; mv %s.new %s; wait" % (part, part, part)]
            code = ("from pleat import libtorch\nlibtorch.command = lambda folder, output: %r\nlibtorch.main([%r, '-o', %r])"
                    % (compiler, folder, folder + "/made.so"))
            for number, ended in ((signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)):
                begun = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True,
                                         env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
                self.comes(part.exists)
                process = part.read_text().strip()
                part.unlink()
                begun.send_signal(number)
                self.assertEqual((begun.communicate(timeout=20)[1], begun.returncode), ("", ended))
                self.comes(lambda: not os.path.exists("/proc/%s/exe" % process))

    def test_a_signal_that_comes_while_a_compiler_begins_ends_it(self):
        code = ("import os, signal, subprocess\n"
                "from pleat import _signals\n"
                "class Begun(subprocess.Popen):\n"
                "    def __init__(self, *arguments, **named):\n"
                "        super().__init__(*arguments, **named)\n"
                "        print(self.pid, flush=True)\n"
                "        os.kill(os.getpid(), signal.SIGINT)\n"
                "subprocess.Popen = Begun\n"
                "_signals.ending_by_interrupts(lambda: _signals.run_apart(['sleep', '60']))()\n")
        done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              timeout=20, env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
        self.assertEqual((done.stderr, done.returncode), ("", -signal.SIGINT))
        self.comes(lambda: not os.path.exists("/proc/%s/exe" % done.stdout.strip()))

    def comes(self, true):
        end = time.monotonic() + 20
        while not true() and time.monotonic() < end:
            time.sleep(0.01)
        self.assertTrue(true())

    def test_all_that_torch_asks_of_an_allocator_is_served(self):
        """What a release adds has a default in torch, which says that it is not to be had."""
        root = pathlib.Path(torch_of(self)[0]).parent / "include"
        asked = set()
        for header, name in ((_shim.ALLOCATOR, "CUDAAllocator"), ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator")):
            text = (root / header).read_text() if (root / header).is_file() else ""
            found = re.search(r"(?ms)^(?:class|struct)[^;{]* %s :.*?^};" % name, text)
            asked |= set(re.findall(r"virtual [^;{(]*?(~?\w+)\(", found.group() if found else ""))
        self.assertIn("raw_alloc", asked)
        sources = "".join((_shim.PACKAGE / name).read_text() for name in ("allocator.h", "forward.h"))
        served = set(re.findall(r"(\w+)\((?:[^;{}()]|\([^()]*\))*\)\s*(?:const )?override", sources))
        # torch's default asks the device.
        self.assertEqual(asked - served, {"getMemoryInfo"} & asked)

    def test_compiles_against_torch(self):
        file, version, abi = torch_of(self)
        version = tuple(int(part) for part in version.split("+")[0].split(".")[:2])
        try:
            _shim.cuda_includes()
        except pleat.UnavailableError as missing:
            self.skipTest(str(missing))
        with tempfile.TemporaryDirectory() as folder:
            line = _shim.command(os.path.dirname(file), int(abi), version,
                                 os.path.join(folder, "shim.o"), object_only=True)
            # Of a torch without CUDA one generated header is missing.
            header = pathlib.Path(folder, "c10", "cuda", "impl", "cuda_cmake_macros.h")
            header.parent.mkdir(parents=True)
            header.write_text("#pragma once\n")
            _shim.compile_with(line + ["-idirafter", folder])


class CheckTorch(unittest.TestCase):
    def test_a_build_for_cpus_alone_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in (_shim.ALLOCATOR, _shim.PLUGGABLE):
                header = pathlib.Path(folder, "9.9.0", "torch", "include", name)
                header.parent.mkdir(parents=True, exist_ok=True)
                header.touch()
            done = subprocess.run([sys.executable, "-B", str(ROOT / "tools" / "check-torch"), "--keep", folder,
                                   "9.9.0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual((done.returncode, done.stdout),
                         (1, "9.9.0    not tried: the wheel found has no CUDA headers "
                             "(c10/cuda/impl/cuda_cmake_macros.h): a CPU build\n"))


@unittest.skipUnless(importlib.util.find_spec("setuptools"), "no setuptools")
class Install(unittest.TestCase):
    """setup.py in a copy of the tree, with a CMake that only says how it was called."""

    def built(self, *programs):
        """The lines of CMake's calls when these programs are on the path, and what was said."""
        with tempfile.TemporaryDirectory() as folder:
            tree, bin = pathlib.Path(folder, "adapters", "pytorch"), pathlib.Path(folder, "bin")
            shutil.copytree(ADAPTER, tree, ignore=shutil.ignore_patterns("__pycache__"))
            pathlib.Path(folder, "CMakePresets.json").touch()
            bin.mkdir()
            for name in programs:
                pathlib.Path(bin, name).write_text("#!/bin/sh\necho \"$@\" >> %s/calls\nexit 1\n" % folder)
                pathlib.Path(bin, name).chmod(0o755)
            environment = {name: value for name, value in os.environ.items() if name != "CMAKE_GENERATOR"}
            done = subprocess.run([sys.executable, "-W", "default", "setup.py", "egg_info", "--egg-base", folder, "build_py",
                                   "--build-lib", os.path.join(folder, "lib")], cwd=tree, text=True,
                                  env=dict(environment, PATH=str(bin)), stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            self.assertNotEqual(done.returncode, 0)
            calls = pathlib.Path(folder, "calls")
            about = pathlib.Path(folder, "pleat.egg-info", "PKG-INFO").read_text()
            self.assertRegex(about, r"(?m)^License(-Expression)?: Apache-2.0$")
            return calls.read_text().splitlines() if calls.exists() else [], done.stdout

    def test_what_setup_installs_is_enough(self):
        calls, said = self.built("cmake", "ninja")
        self.assertTrue(calls[0].startswith("-G Ninja -S "), calls)
        self.assertIn("libpleat was not built; tools/setup --minimal in ", said)
        self.assertNotIn("project.license", said)
        self.assertTrue(self.built("cmake")[0][0].startswith("-S "))
        self.assertIn("'cmake'; tools/setup --minimal in ", self.built()[1])

    def test_no_sdist_is_built_that_cannot_be_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = pathlib.Path(folder, "pytorch")
            shutil.copytree(ADAPTER, tree, ignore=shutil.ignore_patterns("__pycache__"))
            done = subprocess.run([sys.executable, "setup.py", "sdist"], cwd=tree, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("could not be installed: build a wheel (pip wheel --no-deps ", done.stdout)
            self.assertFalse((tree / "dist").exists())

    def test_nothing_is_left_beside_the_sources(self):
        """Of what pip has setup.py do."""
        with tempfile.TemporaryDirectory() as folder:
            tree, contents = pathlib.Path(folder, "tree"), pathlib.Path(folder, "contents")
            shutil.copytree(ADAPTER, tree, ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("contents", "temporary"):
                pathlib.Path(folder, name).mkdir()
            contents.joinpath("mark").write_text("")
            before = sorted(tree.rglob("*"))
            for words in (["egg_info"], ["build"], ["build", "--build-lib", folder + "/root"]):
                subprocess.run([sys.executable, "-B", "-W", "ignore", "setup.py", "--quiet", *words], cwd=tree, check=True,
                               stderr=subprocess.PIPE,
                               env=dict(os.environ, PLEAT_CONTENTS=str(contents), TMPDIR=folder + "/temporary"))
            self.assertEqual(sorted(tree.rglob("*")), before)
            self.assertEqual(len(list(pathlib.Path(folder, "root").rglob("pleat/mark"))), 1)
            self.assertEqual(os.listdir(folder + "/temporary"), [])


if __name__ == "__main__":
    suite.main()
