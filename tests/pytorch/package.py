"""The package without a GPU and without torch: package.py."""

import atexit
import contextlib
import errno
import inspect
import io
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from unittest import mock

from here import ADAPTER, ROOT  # first: it knows where the package is
import pleat
import suite
from pleat import _files, _job, _plans, _shim, run

# What stands for torch below: it says that it was imported, and that CUDA is not there.
TORCH = """
import sys
print("torch imported")
__version__ = "9.9+cpu"
class version: cuda = None
class cuda: is_initialized, device_count = staticmethod(lambda: False), staticmethod(lambda: 1)
"""
WITHOUT_CUDA = "pleat run: torch 9.9+cpu is built without CUDA: the program runs as without Pleat"


def python(code, **environment):
    """Runs Python code. Its two outputs are told apart: what is written first on one of them comes first there
    alone, unless the environment says that Python buffers nothing."""
    made = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **environment)
    return subprocess.run([sys.executable, "-c", code], env=made, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def make_plan(path):
    """Writes a plan of a small job, with the command."""
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder, "t.csv")
        rows = ["%d,%d,%d,%d" % (i, i, i + 3, 3 << 20) for i in range(40)]
        table.write_text("\n".join(["id,lower,upper,size"] + rows) + "\n")
        subprocess.run([os.environ["PLEAT_COMMAND"], "plan", str(table), "-o", path], check=True,
                       stdout=subprocess.DEVNULL)


class Package(unittest.TestCase):
    def test_imports_without_torch(self):
        done = python("import sys; sys.modules['torch'] = None; import pleat, pleat.run; "
                      "print(pleat.enabled(), pleat.stats(), pleat.mark_step())",
                      PYTHONPATH=str(ADAPTER))
        self.assertEqual((done.returncode, done.stdout), (0, "False {} None\n"))

    def test_nccl_is_not_told_to_register_all_memory(self):
        old, new = "NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK", "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
        enabling = ("import os, sys, types\n"
                    "sys.modules['torch'] = torch = types.ModuleType('torch')\n"
                    "torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, device_count=lambda: 1)\n"
                    "class torch_storage: _share_cuda_ = None\n"
                    "torch.UntypedStorage = torch_storage\n"
                    "import pleat; from pleat import _shim\n"
                    "_shim.check = lambda torch: None\n"
                    "class Library: __getattr__ = lambda self, name: lambda *arguments: 0\n"
                    "_shim.load = lambda torch: Library()\n"
                    "pleat.enable(marks=False)\n"
                    "print(sorted(name for name in os.environ if 'REGISTER' in name))")
        for name, value, told in ((old, "1", True), (new, "True", True), (new, "0", False)):
            done = python(enabling, PYTHONPATH=str(ADAPTER), **{name: value})
            self.assertEqual(done.stdout, "%s\n" % ([] if told else [name]), done.stderr)
            self.assertEqual("UserWarning: pleat: %s was unset" % name in done.stderr, told, done.stderr)
        done = python(enabling, PYTHONPATH=str(ADAPTER))
        self.assertEqual((done.stdout, done.stderr), ("[]\n", ""))

    def test_what_needs_it_says_how_it_is_enabled(self):
        for call in (lambda: pleat.save_plan("x"), lambda: pleat.save_trace("x"), pleat.canary_errors):
            with self.assertRaisesRegex(RuntimeError, r"not enabled: call pleat.enable\(\) before"):
                call()

    def test_enable_without_torch_says_so(self):
        done = python("import sys; sys.modules['torch'] = None; import pleat; pleat.enable()",
                      PYTHONPATH=str(ADAPTER))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("torch", done.stderr.splitlines()[-1])

    @unittest.skipUnless(os.environ.get("PLEAT_COMMAND"), "$PLEAT_COMMAND names no command")
    def test_enable_refuses_at_once_and_may_be_tried_again(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "for wrong in ({'budget': 'much'}, {'policy': 'none'}, {'conf': 'nosuch:1'},\n"
                "              {'plan': '/no/such'}, {'save_plan': '/no/such/x'}, {'save_plan': '/'}):\n"
                "    try: pleat.enable(**wrong)\n"
                "    except (OSError, ValueError) as problem: print(problem, pleat.enabled())")
        done = python(code, PYTHONPATH=str(ADAPTER))
        self.assertEqual([line.split(": ")[0] for line in done.stdout.splitlines()], ["pleat"] * 6,
                         done.stderr)
        for line, part in zip(done.stdout.splitlines(),
                              ("'much' is no size", "no policy 'none'; there are: pleat native",
                               "no setting 'nosuch'", "no plan '/no/such'", "no folder",
                               "'/' is a folder, not a file")):
            self.assertIn(part, line)
            self.assertTrue(line.endswith(" False"), line)

    def test_without_enable_some_raise_and_the_others_do_nothing(self):
        """As docs/pytorch.md has it."""
        code = ("import pleat\n"
                "for name, given in {'pause': (), 'resume': (), 'limits': (), 'fingerprint': (), 'canary_errors': (),\n"
                "                    'save_plan': ('/no/x',), 'save_trace': ('/no/x',)}.items():\n"
                "    try: print(name, getattr(pleat, name)(*given))\n"
                "    except RuntimeError as problem: assert 'not enabled' in str(problem)\n"
                "with pleat.phase('x'), pleat.tag('y'):\n"
                "    print(pleat.enabled(), pleat.mark_step(), pleat.max_microbatch(2), pleat.trim(), pleat.stats(),\n"
                "          repr(pleat.report()))")
        self.assertEqual(python(code, PYTHONPATH=str(ADAPTER)).stdout, "False None None 0 {} ''\n")

    @unittest.skipUnless(os.environ.get("PLEAT_COMMAND"), "$PLEAT_COMMAND names no command")
    def test_enable_refuses_what_is_no_plan_or_too_large_a_one(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "try: pleat.enable(plan=%r, budget=%r)\n"
                "except (OSError, ValueError) as problem: print(problem)\n"
                "except AttributeError: print('a shim is looked for')")
        remedy = "; a plan is what save_plan or `pleat plan` writes"
        with tempfile.TemporaryDirectory() as folder:
            place = lambda name: os.path.join(folder, name)  # noqa: E731
            make_plan(place("good"))
            for name in ("good.d1", "r0", "r2-1", "x.plan.3"):
                pathlib.Path(place(name)).write_text("no plan")
            pathlib.Path(place("short")).write_bytes(pathlib.Path(place("good")).read_bytes()[:90])
            shutil.copy(place("good"), place("lone"))
            ranked = {"RANK": "3", "WORLD_SIZE": "8"}
            for name, budget, more, text in (
                    ("short", 0, {}, "pleat: '%s': record " % place("short")),
                    ("good", 0, {}, "pleat: '%s': byte 0: this is not a pleat plan file" % place("good.d1")),
                    ("r%r", 0, {}, "pleat: '%s': byte 0: " % place("r0")),
                    ("r%r-%d", 0, dict(ranked, RANK="2"), "pleat: '%s': byte 0: " % place("r2-1")),
                    ("x.plan", 0, ranked, "pleat: '%s': byte 0: " % place("x.plan.3")),
                    ("r%r", 0, ranked, "pleat: there is no plan '%s'" % place("r3")),
                    ("no%d", 0, {}, "pleat: there is no plan '%s'" % place("no%d")),
                    ("lone", "4MiB", {}, "pleat: '%s' takes " % place("lone")),
                    ("lone", "0", {}, "pleat: '0' is a budget of 0 bytes"),
                    *(("lone", budget, {}, "a shim is looked for") for budget in ("4GiB", 0, None))):
                said = python(code % (place(name), budget), PYTHONPATH=str(ADAPTER), **more).stdout
                self.assertTrue(said.startswith(text), (name, said))
                self.assertEqual(remedy in said, "': " in text, said)

    def test_a_plan_may_be_saved_in_a_folder_of_each_rank(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "try: pleat.enable(save_plan='/no/such/%r/x')\n"
                "except AttributeError: print('a shim is looked for')")
        self.assertEqual(python(code, PYTHONPATH=str(ADAPTER)).stdout, "a shim is looked for\n")

    def test_a_torch_that_cannot_be_served_is_one_public_error(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text(TORCH)
            done = python("import pleat\n"
                          "try: pleat.enable()\n"
                          "except pleat.UnavailableError as problem: print(problem, pleat.enabled())",
                          PYTHONPATH=os.pathsep.join([str(ADAPTER), folder]))
        self.assertEqual(done.stdout, "torch imported\npleat: this torch (9.9+cpu) is built without CUDA, and "
                                      "Pleat serves CUDA tensors: install a torch with CUDA, or run without "
                                      "pleat.enable() False\n")
        self.assertTrue(issubclass(pleat.UnavailableError, RuntimeError))

    def test_enable_may_be_called_again_for_the_same(self):
        cell = mock.Mock(_library=None)
        with mock.patch.multiple(pleat, _library=cell, _asked=("pleat", "a.plan", *pleat.enable.__defaults__[2:])), \
                mock.patch.dict(sys.modules, torch=mock.Mock()):
            pleat.enable(plan="a.plan")
            pleat.enable()
            with self.assertRaisesRegex(RuntimeError, "enabled already, with other arguments.*restart the kernel"):
                pleat.enable(plan="b.plan")
            with mock.patch.dict(os.environ, PLEAT_RUN="on"), \
                    self.assertRaisesRegex(RuntimeError, "enabled already, by `pleat run`, with other"):
                pleat.enable(budget="2GiB")
            self.assertIs(pleat._library, cell)

    def test_what_is_enabled_stays_so_when_the_module_is_loaded_again(self):
        done = python("import importlib, pleat\npleat._library, error = 'a shim', pleat.UnavailableError\n"
                      "importlib.reload(pleat)\nprint(pleat.enabled(), pleat.UnavailableError is error)",
                      PYTHONPATH=str(ADAPTER))
        self.assertEqual(done.stdout, "True True\n", done.stderr)

    def test_enable_says_when_it_comes_too_late(self):
        torch = mock.Mock(__version__="2.11.0")
        with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(_shim, "load") as load, \
                self.assertRaisesRegex(RuntimeError, "comes too late.*before the first CUDA tensor"):
            pleat.enable()
        load.assert_not_called()
        self.assertFalse(pleat.enabled())

    def test_the_document_has_every_name(self):
        document = (ROOT / "docs/pytorch.md").read_text()
        table = document[document.index("| in Python |"):]
        table = table[:table.index("\n\n")]
        names = re.findall(r"^\| `pleat\.(\w+)", table, re.M)
        self.assertEqual(sorted(names), sorted(pleat.__all__))
        for name in names:
            thing = getattr(pleat, name)
            self.assertTrue(thing.__doc__, name)
            shown = re.search(r"`pleat\.%s\(([^`]*)\)`" % name, table)
            if shown is None:
                self.assertTrue(isinstance(thing, type), name)
                continue
            told = [argument.split("=")[0] for argument in re.split(r", *", shown.group(1)) if argument]
            self.assertEqual(set(told), set(inspect.signature(thing).parameters), name)

    def test_a_phase_within_another_leaves_to_it(self):
        entered = []
        library = mock.Mock(pleat_torch_phase=lambda name: entered.append(name.decode()))
        with mock.patch.object(pleat, "_library", library):
            with pleat.phase("a"):
                with contextlib.suppress(ZeroDivisionError), pleat.phase("b"):
                    1 / 0
                # As what computes blocks again tells it.
                pleat._enter_phase("block")
                pleat._enter_phase("")
            self.assertEqual(entered, ["a", "b", "a", "block", "a", ""])
            entered.clear()
            one, other = pleat.phase("a"), pleat.phase("b")  # of two threads, whose ends are not in their order
            for each, act in ((one, "enter"), (other, "enter"), (one, "exit"), (other, "exit")):
                getattr(each, "__%s__" % act)(*[None] * 3 * (act == "exit"))
            self.assertEqual(entered, ["a", "b", "b", ""])
            with self.assertRaisesRegex(TypeError, "a phase is a text, not 5"), pleat.phase(5):
                pass

    def test_a_step_marks_the_devices_that_it_ends_an_iteration_on(self):
        marked = []
        library = mock.Mock(pleat_torch_mark=lambda device: marked.append(device))
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(device_count=lambda: 4))
        with mock.patch.multiple(pleat, _library=library, _saver=mock.Mock()), \
                mock.patch.dict(sys.modules, torch=torch):
            pleat._step_ends(2, set())
            self.assertEqual(marked, [2])
            pleat._saver.look.assert_not_called()
            pleat._step_ends(pleat._ALL, {2, 0})
            pleat._step_ends(pleat._ALL, set())
            self.assertEqual(marked, [2, 1, 3, pleat._ALL])
            self.assertEqual(pleat._saver.look.call_count, 2)

    def test_a_device_is_what_torch_takes_for_one(self):
        asked = []

        def counted(device, values, known):
            asked.append(device)
            values[0], known._obj.value = 7, 1
            return 0

        library = mock.Mock(pleat_torch_stats=counted, pleat_torch_counters=lambda: b"requests\tof all",
                            pleat_torch_first_device=lambda: 3)
        torch = types.SimpleNamespace(
            device=lambda name: types.SimpleNamespace(type=name[:4], index=int(name[5:]) if name[5:] else None),
            cuda=types.SimpleNamespace(current_device=lambda: 2))
        with mock.patch.object(pleat, "_library", library), mock.patch.dict(sys.modules, torch=torch):
            for device in (None, 1, "cuda:5", "cuda"):
                self.assertEqual(pleat.stats(device), {"requests": 7})
            self.assertEqual(pleat.stats(), {"requests": 7})
            library.pleat_torch_mark = asked.append
            for device in (None, 1, "cuda:5", "cuda", pleat._ALL):
                pleat.mark_step(device)
            library.pleat_torch_first_device = lambda: -1
            pleat.stats()
            for none, text in (("cpu", "a GPU such as 0 or 'cuda:0', not 'cpu'"), (1 << 32, "from -1 to 2147483647, not")):
                with self.assertRaisesRegex(ValueError, text):
                    pleat.stats(none)
        self.assertEqual(asked, [3, 1, 5, 2, 3, 3, 1, 5, 2, -1, 0])

    def test_sizes(self):
        for text, bytes in [("0", 0), ("512", 512), ("64k", 65536), ("2MiB", 2 << 20),
                            ("1.5GiB", 3 << 29), ("3gb", 3 << 30), (7, 7)]:
            self.assertEqual(pleat._parse_size(text), bytes)
        for text in ("", "x", "-1", "12q", "1 2", "inf", "nan", "1e400", "9000000t", "0.5", 0.5):
            with self.assertRaises(ValueError):
                pleat._parse_size(text)
        for text in ("2MiB", 20 << 30):
            self.assertEqual(pleat._parse_budget(text), pleat._parse_size(text))
        for text, bytes in (("20", 20), ("0", 0), ("0GiB", 0)):
            with self.assertRaisesRegex(ValueError, "'%s' is a budget of %d bytes: write 20GiB" % (text, bytes)):
                pleat._parse_budget(text)


class Run(unittest.TestCase):
    def test_a_log_joins_the_other_settings(self):
        def settings(*arguments, rank=(), **base):
            made = run.environment(run.parse([*arguments, "--", "true"]), base)
            # What the program starts has no log of the program's.
            self.assertNotIn("log:", made.get("PLEAT_CONF", ""))
            made.update(rank)
            return _plans.settings(_job.settings(made), made)

        self.assertEqual(settings(), "")
        self.assertEqual(settings("--log", "auto"), "log:auto")
        with tempfile.TemporaryDirectory() as folder:
            _plans.settings("log:%s/%%w/%%r.log" % folder, {"RANK": "3", "WORLD_SIZE": "8"})
            self.assertEqual(os.listdir(folder), ["8"])
            _plans.settings("log:%s/%%p/log" % folder, {})
            self.assertEqual(os.listdir(folder), ["8"])
        self.assertEqual(settings("--log", "/%p.log", "--conf", "small:2m"),
                         "small:2m,log:/%p.log")
        self.assertEqual(settings("--log", "auto", PLEAT_CONF="views:1g"), "views:1g,log:auto")
        self.assertEqual(settings(PLEAT_CONF="views:1g"), "views:1g")
        self.assertTrue(os.path.isabs(settings("--log", "run.log")[len("log:"):]))
        ranked = {"RANK": "3", "WORLD_SIZE": "8"}
        for name, own in (("/x.log", "/x.log.3"), ("/x%r.log", "/x3.log"), ("/x%p.log", "/x%p.log"),
                          ("/x%r-%p-%d.log", "/x3-%p-%d.log"), ("/x%w-%p.log", "/x8-%p.log"), ("auto", "auto")):
            self.assertEqual(settings("--log", name, rank=ranked), "log:" + own)
            # However they were told: ranks do not write into each other's.
            self.assertEqual(_plans.settings("small:2m,log:%s,views:1g" % name, ranked),
                             "small:2m,log:%s,views:1g" % own)
        self.assertEqual(_plans.settings("log", ranked), "log")
        self.assertEqual(_plans.settings("log:a:b.log", ranked), "log:a:b.log.3")
        with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()):
            run.parse(["--log", "a,b", "--", "true"])

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
        # Python takes an entry without a name for the folder it runs in, as `:/a` has one.
        for given, expected in (("", ""), (":/a", "::/a"), ("/a::/b", ":/a::/b"), ("/a:", ":/a:")):
            self.assertEqual(run.environment(options, {"PYTHONPATH": given})["PYTHONPATH"], run.SITE + expected)
        # Within a program that runs under it already.
        self.assertEqual(run.environment(options, made)["PYTHONPATH"], made["PYTHONPATH"])

    def test_the_document_has_every_option(self):
        with contextlib.redirect_stdout(io.StringIO()) as said, self.assertRaises(SystemExit):
            run.parse(["--help"])
        document = (ROOT / "docs/pytorch.md").read_text()
        options = set(re.findall(r"^ +(--[a-z-]+)", said.getvalue(), re.M))
        self.assertGreater(len(options), 10)
        self.assertEqual(options, set(re.findall(r"`(--[a-z-]+)", document)))

    def test_help_of_it_is_found_in_an_installation_by_pip(self):
        for asked in (["help", "run"], ["run", "--help"]):
            done = python("import sys; sys.argv[1:] = %r; from pleat import _command; _command.main()" % asked,
                          PYTHONPATH=str(ADAPTER))
            self.assertEqual(done.returncode, 0, done.stdout)
            self.assertTrue(done.stdout.startswith("usage: pleat run "), done.stdout)

    def test_bad_use_is_refused(self):
        for wrong in (["--budget", "much"], ["--budget", "20"], ["--budget", "0"], ["--budget", ""], ["--save-plan", ""], ["--report", ""], ["--counters", ""],
                      ["--log", ""], ["--policy", "none"], ["--log", "a,b"],
                      # Not half a byte, which is none, which is all there is.
                      ["--budget", "0.5"]):
            code, said = self.run_it(*wrong, "--", "true")
            self.assertEqual(code, 2, wrong)
            self.assertIn("pleat run: error: ", said)
        for wrong in ([], ["--"]):
            self.assertEqual(self.run_it(*wrong)[0], 2, wrong)
        self.assertIn("'log' is given twice", self.run_it("--log", "auto", "--conf", "log:auto", "--", "true")[1])

    def test_a_log_in_a_folder_with_a_comma_is_refused_at_once(self):
        with mock.patch("os.getcwd", lambda: "/a,b"):
            with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
                run.parse(["--log", "run.log", "--", "true"])
            self.assertIn("--log: settings are separated by commas, so its path has none: '/a,b/run.log'",
                          said.getvalue())
            for other in (["--log", "auto"], []):
                run.parse([*other, "--", "true"])

    def test_files_are_refused_as_by_the_other_commands(self):
        for wrong in (["--plan", "/no/such.plan"], ["--save-plan", "/no/such/folder/p.plan"],
                      ["--report", "/no/such/folder/r.html"], ["--log", "/no/such/folder/run.log"],
                      ["--save-plan", "."], ["--report", "/"], ["--counters", "pleat"], ["--log", "pleat/"],
                      ["--save-plan", "none/"]):
            code, said = self.run_it(*wrong, "--", "true")
            self.assertEqual(code, 3, wrong)
            self.assertTrue(said.startswith("pleat run: error: %s: " % wrong[0]), said)

    def run_it(self, *arguments, **environment):
        """`pleat run` with arguments: (its exit code, what it said on standard error)."""
        done = subprocess.run([sys.executable, "-m", "pleat.run", *arguments], cwd=str(ADAPTER),
                              env=dict(os.environ, **environment), text=True,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return done.returncode, done.stderr

    def test_a_program_that_cannot_be_run_is_refused_as_by_a_shell(self):
        code, said = self.run_it("--", "no-such-program-there-is")
        self.assertEqual(code, 127)
        self.assertIn("no-such-program-there-is", said)
        with tempfile.TemporaryDirectory() as folder:
            code, said = self.run_it("--", folder)
            self.assertEqual((code, said), (126, "pleat run: error: '%s' is a folder, not a program\n" % folder))
            # Of the folder that it runs in; a name with a slash is no name to look for in $PATH.
            for name, as_of_a_shell in (("pleat", 127), ("./pleat", 126)):
                code, said = self.run_it("--", name, PATH=folder)
                self.assertEqual((code, said), (as_of_a_shell, "pleat run: error: %r is a folder, not a program\n" % name))
            os.mkdir(os.path.join(folder, "a-folder"))
            self.assertEqual(self.run_it("--", "a-folder", PATH=folder)[0], 127)
            file = pathlib.Path(folder, "script")
            file.write_text("no program\n")
            self.assertEqual(self.run_it("--", str(file))[0], 126)
            file.chmod(0o755)
            self.assertEqual(self.run_it("--", str(file))[0], 126)
            self.assertEqual(self.run_it("--", "script", PATH=folder)[0], 126)
            file.write_text("#!/no/such/interpreter\n")
            self.assertEqual(self.run_it("--", str(file))[0], 127)

    def test_a_script_is_told_how_it_is_run(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "train.py")
            pathlib.Path(script).touch()
            code, said = self.run_it("--", script)
            self.assertEqual(code, 126)
            self.assertIn("'pleat run -- python3 %s'" % script, said)
        code, said = self.run_it("--", "setup.py")  # of the folder that it runs in
        self.assertEqual(code, 127)
        self.assertIn("'pleat run -- python3 setup.py'", said)

    def test_plans_of_ranks_and_devices_are_looked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in ("a1-0.plan", "b.plan.3"):
                pathlib.Path(folder, name).touch()
            for name, there in (("a%r-%d.plan", True), ("a1-%d.plan", True), ("a2-%d.plan", False), ("b%w/%r.plan", True),
                                ("%d.plan", False), ("b.plan", True), ("b", False), ("", False)):
                line = ["--plan", os.path.join(folder, name), "--", "true"]
                if there:
                    run.parse(line)
                    continue
                with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as said:
                    run.parse(line)
                self.assertIn("--plan: there is no file", said.getvalue())

    def test_devices_and_pipes_are_written_into(self):
        for place in ("/dev/null", "/dev/stdout", "no-such-file", "x/%r/counters", ""):
            self.assertIsNone(_plans.cannot_write(place), place)
        with mock.patch("os.access", lambda path, mode: path == "/dev/null"):
            self.assertIsNone(_plans.cannot_write("/dev/null"))
            self.assertEqual(_plans.cannot_write("/tmp/job.plan"), "nothing can be written in '/tmp'")

    def test_a_link_to_no_file_is_looked_at_where_it_leads(self):
        with tempfile.TemporaryDirectory() as folder:
            made, lost, loop = (os.path.join(folder, name) for name in ("made", "lost", "loop"))
            for link, target in ((made, "file"), (lost, "/no/such/file"), (loop, "loop")):
                os.symlink(target, link)
            self.assertEqual([_plans.cannot_write(link) for link in (made, lost, loop)],
                             [None, "there is no folder '/no/such'", "%r: Too many levels of symbolic links" % loop])
            for refused in lost, loop:
                code, said = self.run_it("--counters", refused, "--", "true")
                self.assertEqual((code, said.partition("'")[0].startswith("pleat run: error: --counters: ")), (3, True), said)
            _files.write(made, "one")
            self.assertEqual((os.readlink(made), pathlib.Path(folder, "file").read_text()), ("file", "one"))

    def test_a_python_that_does_not_load_it_is_told_of(self):
        code, said = self.run_it("--", sys.executable, "-I", "-c", "pass")
        self.assertEqual(code, 0)
        self.assertIn("Pleat does not serve this program: under -I its Python does not load it", said)
        for arguments, flag in ((["-BE", "x.py"], "-E"), (["-W", "-I", "-S"], "-S"), (["-Wd", "-uS"], "-S"),
                                (["-X", "dev", "-c", "-I"], None), (["-mtorch.distributed.run", "-S"], None),
                                (["--version", "-"], None), (["x.py", "-I"], None), ([], None)):
            self.assertEqual(run.deaf_flag(["/usr/bin/python3", *arguments]), flag, arguments)
        self.assertIsNone(run.deaf_flag(["bash", "-I"]))

    @unittest.skipUnless(os.environ.get("PLEAT_COMMAND"), "$PLEAT_COMMAND names no command")
    def test_settings_and_plans_are_refused_at_once(self):
        code, said = self.run_it("--conf", "nosuch:1", "--", "true")
        self.assertEqual(code, 2)
        self.assertIn("error: --conf: there is no setting 'nosuch'", said)
        self.assertEqual(self.run_it("--", "true", PLEAT_CONF="small:x")[0], 2)
        self.assertEqual(self.run_it("--conf", "small:2m", "--", "true"), (0, ""))
        code, said = self.run_it("--plan", __file__, "--", "true")
        self.assertEqual(code, 3)
        self.assertIn("not a pleat plan file", said)
        with tempfile.TemporaryDirectory() as folder:
            good = os.path.join(folder, "good")
            make_plan(good)
            self.assertEqual(self.run_it("--plan", good, "--", "true"), (0, ""))
            code, said = self.run_it("--plan", good, "--budget", "4MiB", "--", "true")
            self.assertEqual(code, 3)
            self.assertIn("--plan: '%s' takes 10.00 MiB, and the budget is 4.00 MiB" % good, said)
            # Of each process and device that may read one.
            for name, asked in (("good.3", "good.%r"), ("good.d1", "good"), ("other.2", "other"),
                                ("other4-7", "other%r-%d")):
                pathlib.Path(folder, name).write_text("no plan")
                code, said = self.run_it("--plan", os.path.join(folder, asked), "--", "true")
                self.assertEqual(code, 3)
                self.assertIn("--plan: '%s': byte 0" % os.path.join(folder, name), said)
                os.unlink(os.path.join(folder, name))
            # Which this job's only process does not read.
            pathlib.Path(folder, "good.3").write_text("no plan")
            self.assertEqual(self.run_it("--plan", good, "--", "true"), (0, ""))

    def test_a_report_that_could_not_be_drawn_is_refused_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            command, page = pathlib.Path(folder, "pleat"), os.path.join(folder, "r.html")
            command.write_text("#!/bin/sh\necho '{\"version\": \"9\", \"draws_pages\": '$DRAWS'}'\n")
            command.chmod(0o755)
            for draws, code, text in (("false", 5, "--report: this pleat was built without the library that draws"),
                                      ("true", 0, "so not written: the report " + page),
                                      ("", 5, "--report: ")):
                done = self.run_it("--report", page, "--", sys.executable, "-c", "pass",
                                   PLEAT_COMMAND=str(command), DRAWS=draws)
                self.assertEqual(done[0], code, done[1])
                self.assertIn(text, done[1])
            code, said = self.run_it("--report", page, "--", "true", PLEAT_COMMAND="/no/such/pleat")
            self.assertEqual(code, 5)
            self.assertIn("$PLEAT_COMMAND may name it", said)

    def test_it_is_said_when_nothing_was_allocated(self):
        none = "pleat run: nothing was allocated on a GPU: torch was not imported"
        program = ["--", sys.executable, "-c", "pass"]
        self.assertEqual(self.run_it(*program), (0, none + "\n"))
        self.assertEqual(self.run_it("--quiet", *program), (0, ""))
        with tempfile.TemporaryDirectory() as folder:
            plan, counters = os.path.join(folder, "a.plan"), os.path.join(folder, "c.json")
            log = os.path.join(folder, "run.log")
            said = self.run_it("--quiet", "--save-plan", plan, "--counters", counters, "--log", log, *program)
            self.assertEqual(said, (0, "%s; so not written: the plan %s, the counters %s, the log %s\n"
                                    % (none, plan, counters, log)))
            self.assertEqual(self.run_it("--quiet", "--log", "auto", *program),
                             (0, none + "; so not written: the log\n"))
        # Neither a fork nor another process says it, and not the first one where one was served.
        inner = "import os; from pleat import _first; %s"
        for program, expected in (("os.fork() or os._exit(0)", none + "\n"),
                                  ("_first.served(os.environ)", ""),
                                  ("import subprocess, sys; subprocess.run([sys.executable, '-c', "
                                   "'import os; from pleat import _first; "
                                   "_first.served(os.environ)'])", "")):
            said = self.run_it("--", sys.executable, "-c", inner % program)
            self.assertEqual(said, (0, expected), program)

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
            self.assertEqual(done.stderr, WITHOUT_CUDA + "\n")
            # The package is found though it is not on the path.
            self.assertEqual(python("import pleat; print(pleat.enabled())", **made).stdout,
                             "theirs\nFalse\n")
            # Also beside a clone of the sources.
            os.mkdir(os.path.join(folder, "pleat"))
            self.assertEqual(python("import torch, pleat; print(pleat.enabled())", **made).stdout,
                             "theirs\ntorch imported\nFalse\n")
            # The same without `pleat run`.
            self.assertEqual(python("import torch", PYTHONPATH=folder).stdout,
                             "theirs\ntorch imported\n")


    def test_why_it_was_not_enabled_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text(TORCH.replace("None", "'13.0'; git_version = ''")
                                                        + "class _C: _GLIBCXX_USE_CXX11_ABI = True\n")
            counters = os.path.join(folder, "counters")
            code, said = self.run_it("--counters", counters, "--", sys.executable, "-c",
                                     "import torch; print(1)", PYTHONPATH=folder)
        lines = said.splitlines()
        self.assertEqual((code, len(lines)), (1, 2), said)
        self.assertRegex(lines[0], "^pleat run: [^:]* is missing: |^pleat run: no C")
        self.assertEqual(lines[1], "pleat run: nothing was allocated on a GPU: Pleat was not enabled; "
                                   "so not written: the counters " + counters)

    def test_why_nothing_was_allocated_is_what_was_said_before(self):
        of_gpus = TORCH.replace("None", "'13.0'").replace("lambda: 1", "lambda: 0")
        for torch, why in ((TORCH, "torch 9.9+cpu is built without CUDA"),
                           (of_gpus, "there is no GPU (its driver, libnone.so, is not here)")):
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "torch.py").write_text(torch)
                said = self.run_it("--counters", "/tmp/none", "--", sys.executable, "-c", "import torch",
                                   PYTHONPATH=folder, PLEAT_CUDA_LIBRARY="libnone.so")
            self.assertEqual(said, (0, "pleat run: %s: the program runs as without Pleat\npleat run: nothing was allocated "
                                       "on a GPU: %s; so not written: the counters /tmp/none\n" % (why, why)))

    def test_a_launcher_needs_none_of_its_ranks_plans(self):
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "a.plan")
            for rank in "01":
                pathlib.Path("%s.%s" % (name, rank)).touch()
            pathlib.Path(folder, "b.plan").touch()
            later = _plans.is_told_later
            self.assertTrue(later(name, {}))
            # A rank without one is told so.
            for rank in "012":
                self.assertFalse(later(name, {"RANK": rank, "WORLD_SIZE": "3"}))
            for other in ("b.plan", "b%r.plan", "none.plan"):
                self.assertFalse(later(os.path.join(folder, other), {}))

            torch = mock.Mock()
            with mock.patch.dict(sys.modules, torch=torch), mock.patch.object(pleat, "enable") as enable, \
                    mock.patch.object(_job, "why_not", lambda torch: None), \
                    mock.patch.object(_job._ends, "at_end") as at_end:
                _job.begin({"PLEAT_RUN": "on", "PLEAT_RUN_PLAN": name})
                self.assertEqual(enable.call_args[1]["plan"], name)
            told = at_end.call_args[0][0]
            for used, text in (([], ""), ([0], "pleat: %s was not used: there are plans of ranks, and this "
                                               "process was told none\n" % name)):
                with mock.patch.object(pleat, "_used_devices", lambda: used), \
                        contextlib.redirect_stderr(io.StringIO()) as said:
                    told()
                self.assertEqual(said.getvalue(), text)

    def test_torch_may_be_asked_for_before_it_is_imported(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text(TORCH)
            made = run.environment(run.parse(["--", "true"]), {"PYTHONPATH": folder})
            done = python("import importlib.util, sys\n"
                          "for _ in range(2): print(importlib.util.find_spec('torch').name)\n"
                          "import torch, pleat; print(type(torch.__spec__.loader).__name__)\n"
                          "print(importlib.util.find_spec('torch').name, importlib.util.find_spec('torchx'))\n"
                          "print([finder for finder in sys.meta_path if type(finder).__name__ == '_Finder'])",
                          **made)
            self.assertEqual(done.stdout.splitlines(),
                             ["torch", "torch", "torch imported", "SourceFileLoader", "torch None", "[]"])
            self.assertEqual(done.stderr, WITHOUT_CUDA + "\n")

    def test_an_import_of_torch_that_failed_may_be_tried_again(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text("import os\nif 'AGAIN' not in os.environ: raise "
                                                        "ImportError('not yet')\n" + TORCH)
            made = run.environment(run.parse(["--", "true"]), {"PYTHONPATH": folder})
            done = python("import os\ntry: import torch\nexcept ImportError as problem: print(problem)\n"
                          "os.environ['AGAIN'] = '1'\nimport torch", **made)
            self.assertEqual(done.stdout.splitlines(), ["not yet", "torch imported"])
            self.assertEqual(done.stderr, WITHOUT_CUDA + "\n")

    def test_a_torch_without_cuda_is_told_once(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text(TORCH)
            made = run.environment(run.parse(["--quiet", "--", "true"]), {"PYTHONPATH": folder})
            inner = "import torch; print(torch.version.cuda, flush=True)"
            done = python("import torch, subprocess, sys\n"
                          "subprocess.run([sys.executable, '-c', %r], check=True)" % inner, **made)
            self.assertEqual(done.returncode, 0)
            self.assertEqual(sorted(done.stdout.splitlines()), ["None", "torch imported", "torch imported"])
            self.assertEqual(done.stderr, WITHOUT_CUDA + "\n")


class Plans(unittest.TestCase):
    """Files of plans in jobs of many processes and devices."""

    def test_a_job_of_one_process(self):
        self.assertEqual(_plans.written("a.plan", {}), "a.plan")
        self.assertEqual(_plans.read("a.plan", {}), "a.plan")
        self.assertEqual(_plans.written("a-%r.plan", {}), "a-0.plan")

    def test_each_rank_has_its_own(self):
        ranked = {"RANK": "3", "WORLD_SIZE": "8"}
        self.assertEqual(_plans.written("a-%r.plan", ranked), "a-3.plan")
        self.assertEqual(_plans.written("a-%w.plan", {}), "a-1.plan")
        self.assertEqual(_plans.written("a-%w-%r.plan", ranked), "a-%s-3.plan" % ranked["WORLD_SIZE"])
        self.assertEqual(_plans.written("a.plan", ranked), "a.plan.3")
        with tempfile.TemporaryDirectory() as folder:
            name = os.path.join(folder, "a.plan")
            self.assertEqual(_plans.read(name, ranked), name)
            pathlib.Path(name + ".3").touch()
            self.assertEqual(_plans.read(name, ranked), name + ".3")

    def test_each_process_may_have_its_own(self):
        own = str(os.getpid())
        for made in ({}, {"RANK": "3", "WORLD_SIZE": "8"}):
            self.assertEqual(_plans.written("a-%p.plan", made), "a-%s.plan" % own)
        self.assertEqual(_plans.written("a%r-%p-%d.plan", made), "a3-%s-%%d.plan" % own)
        with tempfile.TemporaryDirectory() as folder:
            _job.write_counters(os.path.join(folder, "%p.json"), [])
            for first, page in ((0, own + ".d1.html"), (1, own + ".html")):  # as a plan's, by the device that was used first
                with mock.patch.object(_job, "run") as drawn, contextlib.redirect_stderr(io.StringIO()), \
                        mock.patch.object(pleat, "_index", return_value=first):
                    _job.write_report(os.path.join(folder, "%p.html"), "t.trace", 1)
                self.assertEqual(os.listdir(folder), [own + ".json"])
                self.assertEqual(drawn.call_args[0][-1], os.path.join(folder, page))

    def test_ranks_are_known_however_they_were_launched(self):
        torchrun = {"RANK": "3", "WORLD_SIZE": "8"}
        srun = {"SLURM_PROCID": "5", "SLURM_STEP_NUM_TASKS": "8"}
        for made, rank in ((torchrun, "3"), (srun, "5"), (dict(srun, WORLD_SIZE="8"), "5"),
                           (dict(srun, **torchrun), "3"), ({"PMI_RANK": "2", "PMI_SIZE": "4"}, "2"),
                           ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, "1")):
            self.assertEqual(_plans.written("a.plan", made), "a.plan." + rank, made)
            self.assertEqual(_plans.told_rank(made), rank)
        # In a batch script, outside of a step; and a step of one process.
        for made in ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, dict(srun, SLURM_STEP_NUM_TASKS="1"), {}):
            self.assertEqual(_plans.written("a.plan", made), "a.plan")
            self.assertIsNone(_plans.told_rank(made))
        self.assertEqual(_plans.told_rank({"RANK": "0", "WORLD_SIZE": "1"}), "0")

    def test_each_device_has_its_own(self):
        self.assertEqual(_plans.of_device("a.plan", 2, 2), "a.plan")
        self.assertEqual(_plans.of_device("a.plan", 3, 2), "a.plan.d3")
        self.assertEqual(_plans.of_device("a%d.plan", 3, 2), "a3.plan")

    def saver(self, enough, save):
        class Library:
            def pleat_torch_first_device(self):
                return 0

            def pleat_torch_recorded_enough(self, device):
                return enough()

        return _plans.Saver(Library(), lambda name, _: save(name), "a.plan", dict)

    def test_the_plan_is_saved_once_when_enough_is_recorded(self):
        saved, enough = [], [False]
        saver = self.saver(lambda: enough[0], saved.append)
        saver.look()
        self.assertIsNone(saver.thread)
        enough[0] = True
        saver.look()
        saver.look()
        saver.finish()
        self.assertEqual(saved, ["a.plan"])

    def test_the_plan_is_saved_at_the_end_otherwise(self):
        saved = []
        saver = self.saver(lambda: False, saved.append)
        saver.look()
        saver.finish()
        saver.finish()
        self.assertEqual(saved, ["a.plan"])

    def test_a_fork_saves_as_the_rank_that_it_was_told(self):
        saved = []
        saver = self.saver(lambda: False, lambda name: saved.append(_plans.written(name)))
        with mock.patch.dict(os.environ, RANK="2", WORLD_SIZE="4"):
            saver.finish()
        self.assertEqual(saved, ["a.plan.2"])

    def test_nothing_is_asked_for_before_the_gpu_is_used(self):
        saved = []
        saver = self.saver(lambda: True, saved.append)
        saver.library.pleat_torch_first_device = lambda: -1
        saver.look()
        self.assertEqual((saver.thread, saved), (None, []))
        saver.library.pleat_torch_first_device = lambda: 0
        saver.look()
        saver.finish()
        self.assertEqual(saved, ["a.plan"])

    def test_it_is_said_when_there_is_nothing_to_save(self):
        saved = []
        saver = self.saver(lambda: False, saved.append)
        saver.library.pleat_torch_first_device = lambda: -1
        self.addCleanup(atexit.unregister, saver.end)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            saver.finish()
        self.assertEqual(saved, [])
        self.assertEqual(said.getvalue(),
                         "pleat: no plan was saved: nothing was allocated on a GPU\n")
        # A data loader's worker is forked before the GPU is used, and has nothing to save ever.
        with contextlib.redirect_stderr(io.StringIO()) as said, mock.patch("os.getpid", lambda: -1):
            saver.finish()
        self.assertEqual(said.getvalue(), "")


class Ends(unittest.TestCase):
    SCRIPT = """
import multiprocessing, os, sys
from pleat import _ends
name = "first"
def begin():
    _ends.at_end(lambda: print(name, "earlier", flush=True))
    _ends.at_end(lambda: print(name, "later", flush=True))
def work(other):
    global name
    name = other
    if other == "forkserver":
        begin()
if __name__ == "__main__":
    method = sys.argv[1]
    begin()
    worker = multiprocessing.get_context(method).Process(target=work, args=(method,))
    worker.start()
    worker.join()
"""

    def test_each_process_ends_once_however_it_was_started(self):
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder, "script.py")
            script.write_text(self.SCRIPT)
            for method in ("fork", "forkserver"):
                done = subprocess.run([sys.executable, "-B", str(script), method], text=True,
                                      env=dict(os.environ, PYTHONPATH=str(ADAPTER)),
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                self.assertEqual(done.stdout.splitlines(), [method + " later", method + " earlier",
                                                            "first later", "first earlier"])

    def test_a_fork_that_has_its_parents_gpu_says_nothing(self):
        done = python("import os, sys, types\nfrom pleat import _ends\n"
                      "parent = os.getpid()\n"
                      "sys.modules['torch'] = types.SimpleNamespace(_C=types.SimpleNamespace(\n"
                      "    _cuda_isInBadFork=lambda: os.getpid() != parent))\n"
                      "_ends.at_end(lambda: print('end'))\n"
                      "child = os.fork()\n"
                      "if child: os.waitpid(child, 0)", PYTHONPATH=str(ADAPTER))
        self.assertEqual(done.stdout, "end\n")


class Written(unittest.TestCase):
    """What the package writes takes another file's place."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.path = self.folder / "c.json"

    def test_it_is_on_the_disk_before_it_takes_a_place(self):
        steps = []
        synced, replaced = os.fsync, os.replace
        with mock.patch("os.fsync", lambda file: steps.append("synced") or synced(file)), \
                mock.patch("os.replace", lambda *names: steps.append("replaced") or replaced(*names)):
            _job.write_counters(str(self.path), [])
        self.assertEqual(steps, ["synced", "replaced", "synced"])
        self.assertEqual(os.listdir(self.folder), ["c.json"])

    def test_what_cannot_be_synced_takes_no_place(self):
        self.path.write_text("before")
        with mock.patch("os.fsync", side_effect=OSError(5, "worn out")), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            _job.write_counters(str(self.path), [])
        self.assertIn("worn out", said.getvalue())
        self.assertEqual((self.path.read_text(), os.listdir(self.folder)), ("before", ["c.json"]))
        with mock.patch("os.fsync", side_effect=OSError(errno.EINVAL, "no such thing here")):
            _job.write_counters(str(self.path), [])
        self.assertIn("devices", json.loads(self.path.read_text()))

    def test_permissions_stay(self):
        for mode in (0o600, 0o640, 0o444, 0o664):
            self.path.write_text("before")
            self.path.chmod(mode)
            _job.write_counters(str(self.path), [])
            self.assertEqual(self.path.stat().st_mode & 0o7777, mode)
            self.path.unlink()
        before = os.umask(0o027)
        self.addCleanup(os.umask, before)
        _job.write_counters(str(self.path), [])
        self.assertEqual(self.path.stat().st_mode & 0o7777, 0o640)

    def test_a_name_may_be_as_long_as_any(self):
        self.path = self.folder / ("n" * 255)
        _job.write_counters(str(self.path), [])
        self.path.unlink()

    def test_no_link_that_waits_is_followed(self):
        other = self.folder / "other"
        other.write_text("kept")
        os.symlink(other, self.path.parent / ".pleat.known.tmp")
        with mock.patch("secrets.token_hex", return_value="known"), contextlib.redirect_stderr(io.StringIO()) as said:
            _job.write_counters(str(self.path), [])
        self.assertIn("File exists", said.getvalue())
        _job.write_counters(str(self.path), [])
        self.assertEqual(other.read_text(), "kept")


class Told(unittest.TestCase):
    """What `pleat run` says at the end, with the command of this build."""

    def setUp(self):
        self.command = os.environ.get("PLEAT_COMMAND")
        if not self.command:
            self.skipTest("$PLEAT_COMMAND does not name the command")
        self.folder = tempfile.TemporaryDirectory()
        self.trace = os.path.join(self.folder.name, "t.trace")
        table = os.path.join(self.folder.name, "t.csv")
        rows = ["%d,%d,%d,%d" % (i, i, i + 3, 3 << 20) for i in range(40)]
        pathlib.Path(table).write_text("\n".join(["id,lower,upper,size"] + rows) + "\n")
        subprocess.run([self.command, "import", table, "-o", self.trace], check=True,
                       stdout=subprocess.DEVNULL)

    def tearDown(self):
        self.folder.cleanup()

    def test_native_is_compared_with(self):
        gib = 1 << 30
        self.assertIn("saved", _job.compare(self.trace, {"peak_physical_bytes": 8 << 20}))
        text = _job.compare(self.trace, {"peak_physical_bytes": 5 * gib})
        self.assertIn("native allocator takes 0.0", text)
        self.assertNotIn("saved", text)

    def test_the_report_is_written(self):
        page = os.path.join(self.folder.name, "r.html")
        try:
            with mock.patch.object(pleat, "_index", return_value=0):
                _job.write_report(page, self.trace, 0)
        except RuntimeError as problem:
            self.assertIn("dygraphs", str(problem))
            return
        self.assertIn("<html", pathlib.Path(page).read_text())

    def test_run_is_found_beside_the_command(self):
        done = subprocess.run([self.command, "run", "--quiet", "--", sys.executable, "-c",
                               "import os; print(os.environ['PLEAT_COMMAND']);"
                               "print(os.path.isfile(os.environ['PLEAT_LIBRARY']))"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.stdout.splitlines(), [self.command, "True"])
        done = subprocess.run([self.command, "help", "run"], stdout=subprocess.PIPE, text=True)
        self.assertTrue(done.stdout.startswith("usage: pleat run "), done.stdout)
        done = subprocess.run([self.command, "run", "--budget", "x", "--", "true"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 2)

    def test_the_programs_log_is_not_the_commands(self):
        log = pathlib.Path(self.folder.name, "run.log")
        conf = "small:2m,log:%s,log_ms:5,canary:on" % log
        with mock.patch.dict(os.environ, PLEAT_CONF=conf):
            _job.compare(self.trace, {"peak_physical_bytes": 8 << 20})
            self.assertEqual(json.loads(_job.run("conf", "--json"))["small"], "2m")
        self.assertFalse(log.exists())

    def test_what_was_asked_for_holds_in_an_environment_that_was_emptied(self):
        environment, ends = {"PLEAT_RUN": "on", "PLEAT_RUN_COUNTERS": "c.json"}, []
        with mock.patch.dict(sys.modules, torch=mock.Mock()), mock.patch.object(_job, "why_not", lambda torch: None), \
                mock.patch.object(pleat, "enable"), mock.patch.object(_job._ends, "at_end", ends.append), \
                mock.patch.object(_job, "finish") as finish:
            _job.begin(environment)
            environment.clear()
            environment["RANK"] = "3"
            ends[0]()
        finish.assert_called_once_with({"PLEAT_RUN": "on", "PLEAT_RUN_COUNTERS": "c.json", "RANK": "3"})

    def test_a_device_whose_memory_is_all_in_pools_is_compared_with_nothing(self):
        with mock.patch.multiple(pleat, _used_devices=lambda: [0], stats=lambda device: {"requests": 0}, report=lambda device: "told"), \
                mock.patch.object(_job._first, "served"), contextlib.redirect_stderr(io.StringIO()) as said, \
                mock.patch.object(pleat, "save_trace", side_effect=AssertionError("nothing was recorded")):
            _job.finish({"PLEAT_RUN": "on"})
        self.assertEqual(said.getvalue(), "told\n")

    def test_a_device_that_answers_no_more_is_told_of_all_the_same(self):
        counters = dict.fromkeys(("peak_physical_bytes", "peak_live_bytes", "requests", "planned", "lane"), 4)
        broken = mock.Mock(side_effect=RuntimeError("CUDA error: device-side assert\nwith advice"))
        path = os.path.join(self.folder.name, "c.json")
        with mock.patch.multiple(pleat, _canary=True, _used_devices=lambda: [0], stats=lambda device: counters,
                                 canary_errors=broken, _index=lambda device: device), \
                mock.patch.object(_job, "compare", lambda *_: "compared"), \
                mock.patch.object(pleat, "save_trace"), mock.patch.object(_job._first, "served"), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            _job.finish({"PLEAT_RUN": "on", "PLEAT_RUN_COUNTERS": path})
        self.assertEqual(said.getvalue().splitlines()[1:],
                         ["pleat: canary: it cannot be asked: CUDA error: device-side assert", "compared"])
        self.assertEqual(json.loads(pathlib.Path(path).read_text())["devices"], {"0": counters})

    def test_what_cannot_be_compared_has_its_counters_all_the_same(self):
        path = os.path.join(self.folder.name, "c.json")
        with mock.patch.multiple(pleat, _used_devices=lambda: [0], stats=lambda device: {"requests": 7},
                                 report=lambda device: "reported"), \
                mock.patch("tempfile.mkdtemp", side_effect=FileNotFoundError(2, "No usable temporary directory")), \
                mock.patch.object(_job._first, "served"), contextlib.redirect_stderr(io.StringIO()) as said:
            _job.finish({"PLEAT_RUN": "on", "PLEAT_RUN_COUNTERS": path})
        self.assertIn("pleat: no comparison: [Errno 2] No usable temporary directory", said.getvalue())
        self.assertEqual(json.loads(pathlib.Path(path).read_text())["devices"], {"0": {"requests": 7}})

    def test_counters_take_a_files_place_when_they_are_whole(self):
        path = pathlib.Path(self.folder.name, "c.json")
        path.write_text("before")
        link = pathlib.Path(self.folder.name, "link")
        link.symlink_to(path)
        with mock.patch("os.replace", side_effect=OSError(28, "No space left")), \
                contextlib.redirect_stderr(io.StringIO()) as said:
            _job.write_counters(str(link), [])
        self.assertEqual(path.read_text(), "before")
        self.assertIn("pleat: the counters: '%s': cannot be written: No space left" % link, said.getvalue())
        _job.write_counters(str(link), [(0, {"requests": 7})])
        self.assertTrue(link.is_symlink())
        self.assertEqual(json.loads(path.read_text())["devices"], {"0": {"requests": 7}})
        self.assertFalse([name for name in os.listdir(self.folder.name) if "c.json." in name])
        with contextlib.redirect_stderr(io.StringIO()) as said:
            _job.write_counters("/dev/full", [])
        self.assertIn("pleat: the counters: '/dev/full': cannot be written: No space left", said.getvalue())
        self.assertTrue(os.path.exists("/dev/full"))

    def test_failures_of_the_command_have_its_words(self):
        with self.assertRaisesRegex(RuntimeError, "no-such.trace"):
            _job.run("replay", "no-such.trace", "--json")
        with self.assertRaisesRegex(RuntimeError, "'much'"):  # where the last line is "See 'pleat replay --help'."
            _job.run("replay", "no-such.trace", "--budget", "much")


if __name__ == "__main__":
    suite.main()
