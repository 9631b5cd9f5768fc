"""What a wheel of Pleat brings, without a GPU and without torch: wheel.py. The shims that it has, what serves where
none fits, and PLEAT=1 in the environment. $PLEAT_LIBRARY and $PLEAT_CUDA_LIBRARY name libpleat and the tests'
libcuda."""

import contextlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
from unittest import mock

from here import ADAPTER, ROOT  # first: it knows where the package is
import pleat
import suite
from pleat import _environment, _first, _hooks, _job, _shim, _variables, run
from wheels import torches

TORCH = """
print("torch imported")
__version__ = "9.9+cpu"
class version: cuda = None
class cuda: is_initialized = staticmethod(lambda: False)
"""
# How C, Python, CMake and shells read a variable of the environment.
READS = re.compile(r"""(?:getenv\(|environ(?:ment)?(?:\[|\.(?:get|pop|setdefault)\())\s*["'](PLEAT_\w+)"""
                   r"""|["'](PLEAT_\w+)["'] (?:not )?in (?:os\.)?environ|ENV\{(PLEAT_\w+)\}""")
SHELL_READS = re.compile(r"\$\{?(PLEAT_\w+)")
SOURCES = ("", ".c", ".cmake", ".cpp", ".h", ".pth", ".py", ".txt")
COMMAND = _job.command()
WITHOUT_CUDA = "pleat: torch 9.9+cpu is built without CUDA: the program runs as without Pleat\n"


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text=""):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


class Environment(Folder):
    """Python with the package's folder as its site-packages have it."""

    def python(self, code, **environment):
        self.file("site.py", "import site; site.addsitedir(%r)\n" % str(ADAPTER))
        self.file("torch.py", TORCH)
        made = {name: value for name, value in os.environ.items() if not name.startswith(("PLEAT", "PYTHON"))}
        made.update(environment, PYTHONDONTWRITEBYTECODE="1")
        code = "import site, sys; site.addsitedir(%r); sys.path.insert(0, %r)\n" % (str(ADAPTER), str(self.folder)) + code
        done = subprocess.run([sys.executable, "-I", "-c", code], env=made, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE)
        return done.stdout, done.stderr

    def test_nothing_is_imported_where_it_is_not_asked_for(self):
        told = ("print([name for name in sys.modules if 'pleat' in name],"
                " [one for one in sys.meta_path if 'pleat' in getattr(one, '__module__', '')])")
        for environment in ({}, {"PLEAT": ""}, {"PLEAT": "0"}):
            out, said = self.python(told, **environment)
            self.assertEqual((out, said), ("[] []\n", ""), environment)
        self.assertIn("'pleat._environment'", self.python(told, PLEAT="1")[0])

    def test_it_begins_when_torch_is_imported(self):
        out, said = self.python("print('torch' in sys.modules); import torch", PLEAT="1")
        self.assertEqual((out, said), ("False\ntorch imported\n", WITHOUT_CUDA))

    def test_programs_that_it_starts_have_it_too(self):
        out, said = self.python("import os, subprocess; import torch; print(os.environ['PLEAT_RUN_BUDGET'])",
                                PLEAT="1", PLEAT_BUDGET="2GiB", PLEAT_QUIET="1")
        self.assertEqual((out, said), ("torch imported\n%d\n" % (2 << 30), WITHOUT_CUDA))

    def test_what_a_variable_cannot_be_ends_the_program(self):
        for name, value, text in (("BUDGET", "much", "PLEAT_BUDGET: 'much' is no size; write 20GiB, 512MiB or bytes"),
                                  ("BUDGET", "0", "PLEAT_BUDGET: '0' is a budget of 0 bytes: write 20GiB or 512MiB"),
                                  ("PLAN", "/no/such", "PLEAT_PLAN: there is no file '/no/such'"),
                                  ("SAVE_PLAN", "/no/such/x", "PLEAT_SAVE_PLAN: there is no folder '/no/such'"),
                                  ("POLICY", "none", "PLEAT_POLICY: invalid choice: 'none'"),
                                  ("RECOMPUTE", "auto", "PLEAT_RECOMPUTE: it needs a budget: PLEAT_BUDGET=40GiB"),
                                  ("CANARY", "yes", "PLEAT_CANARY: it is 1 or 0, not 'yes'"),
                                  *([("CONF", "foo", "PLEAT_CONF: 'foo' is not key:value")] if COMMAND else [])):
            out, said = self.python("import torch; print('goes on')", PLEAT="1", **{"PLEAT_" + name: value})
            self.assertEqual(out, "torch imported\n")
            self.assertTrue(said.startswith("pleat: " + text), said)

    def test_pleat_is_on_or_off(self):
        out, said = self.python("import torch; print('goes on')", PLEAT="off")
        self.assertEqual((out, said), ("torch imported\n", "pleat: PLEAT: it is 1 or 0, not 'off'\n"))

    def test_a_variable_that_nothing_reads_is_said_once(self):
        code = "import os, torch; print(os.environ['PLEAT_RUN_UNKNOWN'])"
        out, said = self.python(code, PLEAT="1", PLEAT_BUDGIT="3", PLEAT_TENANTS_DIR="/x", PLEAT_QUIET="0")
        warning = "pleat: warning: nothing reads the variable PLEAT_BUDGIT; did you mean PLEAT_BUDGET?\n"
        self.assertEqual((out, said), ("torch imported\non\n", warning + WITHOUT_CUDA))
        # What it starts has that in its environment.
        self.assertEqual(self.python(code, PLEAT="1", PLEAT_BUDGIT="3", PLEAT_RUN_UNKNOWN=out.split()[-1])[1], WITHOUT_CUDA)
        out, said = self.python("import torch", PLEAT="1", PLEAT_SOMETHING="3")
        self.assertEqual(said, "pleat: warning: nothing reads the variable PLEAT_SOMETHING\n" + WITHOUT_CUDA)
        self.assertEqual(self.python("import torch", PLEAT_BUDGIT="3")[1], "")

    def test_pleat_run_says_which_variables_it_does_not_read(self):
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ADAPTER), "PLEAT_BUDGET": "2GiB", "PLEAT_BUGDET": "2GiB",
                       "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run([sys.executable, "-m", "pleat.run", "--", "true"], env=environment, text=True,
                              capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (
            0, "pleat: warning: nothing reads the variable PLEAT_BUGDET; did you mean PLEAT_BUDGET?\n"
               "pleat run: warning: it does not read the variable PLEAT_BUDGET: give it --budget\n"))

    def test_options_of_pleat_run_hold_whatever_leads_to_the_package(self):
        """A home that is reached by a link, say, or another installation's `pleat run`."""
        self.file("torch.py", TORCH)
        link, other = self.folder / "link", self.folder / "other"
        link.symlink_to(ADAPTER)
        shutil.copytree(ADAPTER, other, ignore=shutil.ignore_patterns("__pycache__"))
        asked = run.parse(["--budget", "3GiB", "--", "python3"])
        base = {"PLEAT": "1", "PLEAT_BUDGET": "2GiB", "PYTHONDONTWRITEBYTECODE": "1"}
        for adapter in (ADAPTER, link, other):
            # As Python begins: what is beside packages is read first.
            code = ("import os, site, sys; site.addsitedir(%r); import sitecustomize; sys.path.insert(0, %r); import torch\n"
                    "print(os.environ['PLEAT_RUN_BUDGET'])" % (str(adapter), str(self.folder)))
            done = subprocess.run([sys.executable, "-S", "-c", code], env=run.environment(asked, base), text=True,
                                  capture_output=True)
            self.assertEqual((done.stdout, done.stderr), (
                "torch imported\n%d\n" % (3 << 30), WITHOUT_CUDA.replace("pleat:", "pleat run:")), adapter)

    def test_every_variable_that_is_read_is_known(self):
        files = [ROOT / "CMakeLists.txt"]
        for folder in (".ci", "adapters", "examples", "include", "plan", "runtime", "tests", "tools", "vmm"):
            files += [path for path in (ROOT / folder).rglob("*") if path.suffix in SOURCES and path.is_file()]
        read = {}
        for path in files:
            text = path.read_text(errors="replace")
            ways = [READS] + ([SHELL_READS] if re.match(r"#! ?/(usr/)?bin/(env )?(ba)?sh\b", text) else [])
            for found in (found for way in ways for found in way.finditer(text)):
                read.setdefault(next(filter(None, found.groups())), str(path.relative_to(ROOT)))
        # Those of each way are found.
        self.assertLessEqual({"PLEAT_TENANTS_DIR", "PLEAT_LIBRARY", "PLEAT_CONTENTS", "PLEAT_TORCH_PYTHON",
                              "PLEAT_JEMALLOC", "PLEAT_BROWSER"}, set(read))
        known = _variables.known(run.parser())
        self.assertEqual({name: place for name, place in read.items()
                          if name not in known and not name.startswith(_variables.OWN)}, {})

    def test_what_is_refused_is_said_in_the_name_of_what_asked(self):
        """PLEAT=1 is not `pleat run`."""
        torch = types.SimpleNamespace(version=types.SimpleNamespace(cuda="13.0"))
        for name in ("pleat", "pleat run"):
            with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(_first, "unserved", ""), \
                    mock.patch.object(_job, "why_not", lambda torch: None), \
                    mock.patch.object(pleat, "enable", side_effect=ValueError("pleat: there is no setting 'x'")), \
                    self.assertRaises(SystemExit) as ended:
                _job.begin({"PLEAT_RUN": "on"}, name)
            self.assertEqual(ended.exception.code, name + ": there is no setting 'x'")

    def test_without_a_gpu_it_says_so_once_and_does_nothing(self):
        count = mock.Mock(return_value=0)
        torch = types.SimpleNamespace(version=types.SimpleNamespace(cuda="13.0"),
                                      cuda=types.SimpleNamespace(device_count=count))
        environment = {"PLEAT_RUN": "on"}
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(pleat, "enable") as enable, \
                mock.patch.dict(os.environ, PLEAT_CUDA_LIBRARY="libnone.so"), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            _job.begin(environment, "pleat")
            _job.begin(environment, "pleat")
            self.assertEqual(said.getvalue(), "pleat: there is no GPU (its driver, libnone.so, is not here): the program "
                                              "runs as without Pleat\n")
            enable.assert_not_called()
            count.return_value = 1  # torch finds a driver elsewhere
            self.assertIsNone(_job.why_not(torch))
            count.reset_mock()
            os.environ["PLEAT_CUDA_LIBRARY"] = "libc.so.6"
            self.assertIsNone(_job.why_not(torch))
            count.assert_not_called()

    def test_every_option_has_a_variable(self):
        given = {"PLEAT_PLAN": "x y", "PLEAT_SAVE_PLAN": "-s", "PLEAT_BUDGET": "1g", "PLEAT_POLICY": "native",
                 "PLEAT_CONF": "a:b", "PLEAT_NO_MARKS": "1", "PLEAT_REPORT": "r", "PLEAT_LOG": "auto",
                 "PLEAT_COUNTERS": "c", "PLEAT_CANARY": "1", "PLEAT_QUIET": "1",
                 "PLEAT_RECOMPUTE": "auto"}
        options = [action.option_strings[-1] for action in run.parser()._actions if action.option_strings]
        self.assertLessEqual({_variables.variable(option) for option in options if option != "--help"}, set(given))
        made = run.parser().parse_args(_environment.arguments(run.parser(), given))
        self.assertEqual((made.plan, made.save_plan, made.budget, made.policy, made.conf, made.report, made.log),
                         ("x y", "-s", "1g", "native", "a:b", "r", "auto"))
        self.assertTrue(made.no_marks and made.canary and made.quiet)
        off = dict(given, PLEAT_NO_MARKS="0", PLEAT_CANARY="0", PLEAT_QUIET="")
        made = run.parser().parse_args(_environment.arguments(run.parser(), off))
        self.assertFalse(made.no_marks or made.canary or made.quiet)


class Shims(Folder):
    """Which of a wheel's shims an installed torch gets."""

    def setUp(self):
        super().setUp()
        for name in (_shim.PLUGGABLE, _shim.ALLOCATOR, "c10/core/Allocator.h", "c10/util/intrusive_ptr.h",
                     "c10/macros/Macros.h"):
            self.file("torch/include/" + name, "first")
        self.torch = types.SimpleNamespace(__file__=str(self.folder / "torch/__init__.py"), __version__="2.11.0+cu130",
                                           _C=types.SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True))
        self.include = self.folder / "torch/include"
        shims = self.folder / "shims"
        shims.mkdir()
        self.shim = shims / _shim.wheels_name(self.include, (2, 11), 1)
        self.shim.touch()
        environment = {name: value for name, value in os.environ.items()
                       if name not in ("PLEAT_LIBRARY", "PLEAT_INCLUDE")}
        for line in (mock.patch.object(_shim, "SHIMS", shims), mock.patch.dict(os.environ, environment, clear=True)):
            line.start()
            self.addCleanup(line.stop)

    def test_the_one_of_its_headers_is_taken(self):
        self.assertEqual(_shim.brought(self.torch), self.shim)
        self.file("torch/include/" + torches.WITH_CUDA, "a build with CUDA has it, one without has not")
        self.assertEqual(_shim.brought(self.torch), self.shim)

    def test_headers_that_differ_are_noticed(self):
        for name in (_shim.PLUGGABLE, _shim.ALLOCATOR, "c10/core/Allocator.h", "c10/util/intrusive_ptr.h"):
            self.file("torch/include/" + name, "other")
            self.assertIsNone(_shim.brought(self.torch), name)
            self.file("torch/include/" + name, "first")
        added = self.file("torch/include/c10/cuda/New.h")
        self.assertIsNone(_shim.brought(self.torch))
        added.unlink()
        self.assertEqual(_shim.brought(self.torch), self.shim)

    def test_another_release_or_string_type_has_another(self):
        self.torch.__version__ = "2.12.0"
        self.assertIsNone(_shim.brought(self.torch))
        self.torch.__version__ = "2.11.1"  # the same headers
        self.assertEqual(_shim.brought(self.torch), self.shim)
        self.torch._C._GLIBCXX_USE_CXX11_ABI = False
        self.assertIsNone(_shim.brought(self.torch))

    def test_a_torch_without_headers_has_none(self):
        (self.include / _shim.PLUGGABLE).unlink()
        self.assertIsNone(_shim.brought(self.torch))

    def test_another_library_than_its_own_is_not_served_by_it(self):
        with mock.patch.dict(os.environ, PLEAT_LIBRARY="/lib/libpleat.so.0"):
            self.assertIsNone(_shim.brought(self.torch))

    def test_releases_have_the_string_types_of_their_builds(self):
        self.assertEqual([torches.cxx11_abis(*asked) for asked in
                          (("2.6.0", "x86_64"), ("2.6.0", "aarch64"), ("2.7.0", "x86_64"))], [(0, 1), (1,), (1,)])


@unittest.skipIf(shutil.which("cmake") is None, "no cmake")
class Command(Folder):
    def finds_what_draws(self, *settings):
        script = self.file("find.cmake", "\n".join(("list(APPEND CMAKE_MODULE_PATH %s)" % (ROOT / "tools/cmake"), *settings,
                                                    "find_package(PleatDygraphs)", 'message("${PleatDygraphs_FOUND}")')))
        done = subprocess.run(["cmake", "-P", str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stderr.endswith("TRUE\n")

    def test_one_for_other_machines_draws_pages_as_one_for_this_does(self):
        """As tools/wheel has it built, whose libraries and headers lie in a folder."""
        self.assertEqual(self.finds_what_draws(), self.finds_what_draws(
            "set(CMAKE_FIND_ROOT_PATH %s)" % self.folder, "set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)"))


class Hooks(Folder):
    """What serves where no shim fits and none can be made."""

    def test_without_them_the_reason_is_raised(self):
        with mock.patch.object(_hooks, "LIBRARY", self.folder / "none"):
            with self.assertRaisesRegex(pleat.UnavailableError, "no compiler"):
                _hooks.load(pleat.UnavailableError("pleat: no compiler"))

    def test_they_take_torchs_place_and_say_what_is_lost(self):
        given, taken = {}, []

        class Allocator:
            def __init__(self, path, alloc, free):
                given.update(path=path, alloc=alloc, free=free)

            def allocator(self):
                setters = {setter: lambda address, name=setter: given.__setitem__(name, address)
                           for setter, _ in _hooks.FUNCTIONS[1:]}  # as of a release that lacks one
                return types.SimpleNamespace(**setters)

        memory = types.SimpleNamespace(CUDAPluggableAllocator=Allocator, change_current_allocator=taken.append)
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(memory=memory))
        libc = __import__("ctypes").CDLL(None)
        library = types.SimpleNamespace(**{function: libc.free for _, function in _hooks.FUNCTIONS})
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _hooks.take_place(torch, library, pleat.UnavailableError("pleat: no C++ compiler: install one"))
        self.assertEqual((given["alloc"], given["free"]), ("pleat_hooks_alloc", "pleat_hooks_free"))
        self.assertEqual({given[setter] != 0 for setter, _ in _hooks.FUNCTIONS[1:]}, {True})
        self.assertIsInstance(taken[0], Allocator)
        text = str(said[0].message)
        self.assertIn("without a shim for this torch: no C++ compiler: install one\n", text)
        self.assertIn("Not there are: torch.cuda's memory statistics and snapshots, CUDA graphs", text)

    @unittest.skipUnless(os.environ.get("PLEAT_CUDA_LIBRARY"), "$PLEAT_CUDA_LIBRARY names no libcuda")
    def test_the_functions(self):
        try:
            compiler = _shim.compiler()
        except pleat.UnavailableError as missing:
            self.skipTest(str(missing))
        program, library = self.folder / "hooks", _shim.library()
        _shim.compile_with([*compiler, "-std=c++17", "-g", "-Wall", "-Wextra", "-Werror", "-pthread",
                            "-I%s" % (ROOT / "include"), "-I%s" % _shim.PACKAGE,
                            str(ROOT / "tests/pytorch/hooks.cpp"), str(library), "-Wl,-rpath,%s" % library.parent,
                            "-o", str(program)])
        done = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120,
                              env=dict(os.environ, TMPDIR=str(self.folder), PLEAT_FAKE_CUDA_DEVICES="8"))
        self.assertEqual(done.returncode, 0, "\n" + done.stdout)
        self.assertEqual(done.stdout.count("ok   "), 7)


if __name__ == "__main__":
    suite.main()
