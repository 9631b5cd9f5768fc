"""What pleat.enable() and its neighbours are given, without a GPU and without torch: arguments.py."""

import contextlib
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from here import ADAPTER  # first: it knows where the package is
import pleat
import suite
from pleat import _given, _job, _plans, estimate, libtorch, run

COMMAND = os.environ.get("PLEAT_COMMAND")


def python(code, **environment):
    made = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(ADAPTER), **environment)
    return subprocess.run([sys.executable, "-c", code], env=made, text=True, capture_output=True)


class Arguments(unittest.TestCase):
    def test_arguments_of_another_type_are_said(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "for wrong in ({'conf': 5}, {'record': 'x'}, {'canary': 'x'}, {'marks': None}, {'record': -1}):\n"
                "    try: pleat.enable(**wrong)\n"
                "    except (TypeError, ValueError) as problem: print(type(problem).__name__, problem)\n"
                "for running in ('x', 1.5, 0):\n"
                "    try: pleat.max_microbatch(running)\n"
                "    except (TypeError, ValueError) as problem: print(type(problem).__name__, problem)")
        self.assertEqual(python(code).stdout.splitlines(), [
            "TypeError pleat: conf is a text such as 'small:64k,learn:off' or a dict such as {'small': '64k'}, not 5",
            "TypeError pleat: record is a whole number, not 'x'",
            "TypeError pleat: canary is True or False, not 'x'",
            "TypeError pleat: marks is True or False, not None",
            "ValueError pleat: record is a whole number from 0 to 4294967295, not -1",
            "TypeError pleat: running is a whole number, not 'x'",
            "TypeError pleat: running is a whole number, not 1.5",
            "ValueError pleat: running is a whole number from 1 to %d, not 0" % ((1 << 64) - 1)])
        self.assertEqual(_given.settings({"small": "64k", "learn": False, "log_ms": 5}), "small:64k,learn:off,log_ms:5")
        self.assertEqual(_given.settings(None), "")

    def test_a_mistyped_option_is_said_with_the_one_that_may_be_meant(self):
        for given, said in ((["--budgt", "3"], "'--budgt' is no option that it has; did you mean '--budget'?"),
                            (["--save-pan=x"], "'--save-pan=x' is no option that it has; did you mean '--save-plan'?"),
                            (["--frobnicate"], "'--frobnicate' is no option that it has\n")):
            with mock.patch("sys.stderr", new_callable=io.StringIO) as written, self.assertRaises(SystemExit) as ended:
                run.parse([*given, "--", "true"])
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(said, written.getvalue())

    def refused(self, parse, *words):
        """What is said of a line that is bad use."""
        with mock.patch("sys.stderr", new_callable=io.StringIO) as said, self.assertRaises(SystemExit) as ended:
            parse([*words, "--", "true"])
        self.assertEqual(ended.exception.code, 2, said.getvalue())
        return said.getvalue()

    def test_an_output_is_named_once(self):
        for name in ("save-plan", "report", "counters", "log"):
            for second in ("b", "a"):
                self.assertIn("error: --%s is given twice, 'a' and '%s': one is written\n" % (name, second),
                              self.refused(run.parse, "--" + name, "a", "--%s=%s" % (name, second)))
        self.assertIn("error: --output is given twice, 'a' and 'b': one is written\n",
                      self.refused(estimate.parse, "-o", "a", "--output", "b"))
        made = libtorch.parser()
        self.assertIn("error: --output is given twice, '%s' and 'b': one is written\n" % made.get_default("output"),
                      self.refused(made.parse_args, "folder", "-o", "".join(list(made.get_default("output"))), "-o", "b"))
        self.assertEqual(made.parse_args(["folder"]).output, "libpleat_torch.so")

    def test_two_outputs_are_two_files(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as ending:
            ending.callback(os.chdir, os.getcwd())
            os.chdir(folder)
            pathlib.Path("there").write_text("before")
            os.symlink("there", "link")
            os.symlink(".", "same")
            for first, second, both in (("--save-plan=a", "--counters=./a", "the plan and the counters"),
                                        ("--counters=there", "--log=link", "the counters and the log"),
                                        ("--report=a.html", "--counters=same/a.html", "the report and the counters"),
                                        # A page has the suffix also where its name is given without.
                                        ("--save-plan=a.html", "--report=a", "the plan and the report"),
                                        ("--plan=there", "--counters=link", "the plan that is read and the counters"),
                                        ("--save-plan=auto", "--counters=auto", "the plan and the counters")):
                self.assertIn("error: '%s' cannot be %s: give one of them another name\n"
                              % (second.partition("=")[2], both), self.refused(run.parse, first, second))
            os.symlink("elsewhere", "link0")
            pathlib.Path("there0").write_text("a plan")
            for first, second, both in (("--save-plan=a%d", "--counters=a0", "the plan and the counters"),
                                        ("--save-plan=a12", "--log=same/a%d", "the plan and the log"),
                                        ("--save-plan=plans/%w/%r", "--counters=plans/4/0", "the plan and the counters"),
                                        ("--save-plan=a.%d", "--log=a.%r", "the plan and the log"),
                                        ("--report=r%d.html", "--counters=r1.html", "the report and the counters"),
                                        ("--plan=there%d", "--counters=there0", "the plan that is read and the counters"),
                                        ("--save-plan=link%d", "--counters=link0", "the plan and the counters")):
                names = (first.partition("=")[2], second.partition("=")[2])
                self.assertIn("error: '%s' and '%s' may become one file, %s: give one of them another name\n" % (*names, both),
                              self.refused(run.parse, first, second))
            for first, second in (("--save-plan=a%d", "--counters=a"), ("--save-plan=a%d", "--log=a%d.log"),
                                  ("--save-plan=a%r", "--counters=ab"), ("--plan=there%d", "--save-plan=there0"),
                                  ("--save-plan=a", "--report=a"), ("--plan=there", "--save-plan=link"), ("--counters=auto", "--log=auto"),
                                  ("--save-plan=/dev/null", "--counters=/dev/null"), ("--save-plan=a", "--counters=b")):
                run.parse([first, second, "--", "true"])

    def test_a_trace_is_not_written_among_what_is_said(self):
        for number, stream in ((1, "standard output"), (2, "standard error")):
            with tempfile.NamedTemporaryFile() as out:
                for name in ("/dev/fd/%d" % number, "/proc/self/fd/%d" % number, out.name):
                    line = "from pleat import estimate; estimate.main(['-o', %r, '--', 'true'])" % name
                    files = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
                    if name == out.name:
                        files["stdout" if number == 1 else "stderr"] = out
                    done = subprocess.run([sys.executable, "-B", "-c", line], **files,
                                          env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
                    self.assertEqual(done.returncode, 2, (name, done.stderr))
                    said = pathlib.Path(out.name).read_bytes() if files["stderr"] is out else done.stderr
                    self.assertIn(b"--output is a file, not '%s': %s is for what is said"
                                  % (name.encode(), stream.encode()), said)

    @unittest.skipUnless(COMMAND, "$PLEAT_COMMAND names no program")
    def test_a_trace_for_the_null_device_goes_nowhere(self):
        """By another name of it, which in the command is that of a pipe."""
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "table.csv")
            table.write_text("".join(["id,lower,upper,size\n", *("%d,%d,%d,512\n" % (i, i, i + 3) for i in range(400))]))
            code = ("import types; from pleat import estimate\n"
                    "print(estimate.said_on('/dev/stderr'), "
                    "estimate.write(types.SimpleNamespace(bytes=1 << 30, output='/dev/stderr'), %r))" % str(table))
            done = subprocess.run([sys.executable, "-B", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                  text=True, env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
            self.assertEqual(done.stdout, "None None\n")

    def test_figures_are_said_whatever_becomes_of_the_trace(self):
        for problem in (OSError("full"), RuntimeError("pleat import: full"), ValueError("full")):
            with mock.patch.object(_job, "run", side_effect=problem):
                self.assertEqual(estimate.write(mock.Mock(bytes=1, output="x"), "x.pickle"), "full")

    def test_spaces_behind_commas_of_settings_are_none_of_the_names(self):
        self.assertEqual(_plans.settings("small:64k, log:/a/%p"), "small:64k,log:/a/%p")
        self.assertEqual(_plans.completed("small:1, keep:off", False, True), "small:1,keep:off,share:on")

    @unittest.skipUnless(COMMAND, "$PLEAT_COMMAND names no program")
    def test_what_is_wrong_is_said_of_what_was_given(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "for given in ({'conf': {'smal': '64k'}}, {'conf': 'smal:1'}, {}):\n"
                "    try: pleat.enable(**given)\n"
                "    except ValueError as problem: print(str(problem).partition(';')[0])")
        self.assertEqual(python(code, PLEAT_CONF="smal:1").stdout.splitlines(), [
            "pleat: conf: there is no setting 'smal'", "pleat: conf: there is no setting 'smal'",
            "pleat: PLEAT_CONF: there is no setting 'smal'"])
        code = "from pleat import run; run.main([*%r, '--', 'true'])"
        for given, text in ((["--conf", "smal:1"], "--conf: there is no"), ([], "PLEAT_CONF: there is no")):
            self.assertIn("pleat run: error: " + text, python(code % given, PLEAT_CONF="smal:1").stderr)

    @unittest.skipUnless(COMMAND, "$PLEAT_COMMAND names no program")
    def test_sizes_are_those_of_the_command(self):
        for text in ("0", "512", "64k", "64K", "64kb", "64kib", "64KiB", "2m", "2MB", "1.5GiB", "1.75t", "0.9k", "5.", "5.k",
                     "0.0", "00012", "1b", "9007199254740993", "%d" % ((1 << 63) - 1), "3.0000001g", "", " ", "x", "k", "b", "-1",
                     "+5", "12q", "1 2", "64 k", " 64k", "64k ", "1e3", "1_000", ".5g", "5ib", "5kk", "5ki b", "0x10", "inf",
                     "nan", "1e400", "99999999999t", "1.2.3", "\u0663", "1,5g"):
            try:
                bytes = pleat._parse_size(text)
            except ValueError:
                bytes = None
            asked = subprocess.run([COMMAND, "conf", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=dict(os.environ, PLEAT_CONF="keep_bytes:" + text))
            # It says such a size as the largest unit allows, exactly.
            told = json.loads(asked.stdout)["keep_bytes"] if asked.returncode == 0 else None
            self.assertEqual(bytes, None if told is None else pleat._parse_size(told), text)
        self.assertEqual([pleat._parse_size(given) for given in (7, 2e9, 1e17, 2.5, 0.0)], [7, 2 * 10**9, 10**17, 2, 0])
        for wrong in (0.5, -1.0, float("nan"), float("inf"), 1e19):
            self.assertRaises(ValueError, pleat._parse_size, wrong)

    def test_what_is_shown_is_what_is_documented(self):
        code = "import pleat; print([name for name in dir(pleat) if name[0] != '_'] == sorted([*pleat.__all__, 'memory_saver']))"
        self.assertEqual(python(code).stdout, "True\n")

    def test_enable_without_a_driver_compiles_nothing(self):
        code = ("import sys, types; sys.modules['torch'] = torch = types.ModuleType('torch')\n"
                "torch.__version__, torch.version = '2.11.0', types.SimpleNamespace(cuda='13.0')\n"
                "torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, device_count=lambda: 0)\n"
                "import pleat; from pleat import _shim\n"
                "def load(torch): raise AssertionError('a shim is looked for')\n"
                "_shim.load = load\n"
                "try: pleat.enable()\n"
                "except pleat.UnavailableError as problem: print(problem, pleat.enabled())")
        self.assertEqual(python(code, PLEAT_CUDA_LIBRARY="libnone.so").stdout,
                         "pleat: there is no GPU (its driver, libnone.so, is not here): run without pleat.enable(), or "
                         "by `pleat run`, which says so and goes on False\n")


class Processes(unittest.TestCase):
    def test_help_that_cannot_be_written_is_no_success(self):
        with open("/dev/full", "w") as full:
            for command in ("run", "estimate", "libtorch"):
                line = "from pleat import %s; %s.main(['--help'])" % (command, command)
                done = subprocess.run([sys.executable, "-B", "-c", line], stdout=full, stderr=subprocess.PIPE,
                                      text=True, env=dict(os.environ, PYTHONPATH=str(ADAPTER)))
                self.assertEqual((done.returncode, done.stderr), (
                    5, "pleat %s: error: standard output cannot be written: No space left on device\n" % command))

    def test_standard_files_that_are_closed_are_the_programs_matter(self):
        """A service may begin without any."""
        with tempfile.TemporaryDirectory() as folder:
            seen = os.path.join(folder, "seen")
            # The file that it writes has the least number that is free.
            program = ("import os; file = open(%r, 'w'); there = [n for n in range(3) if os.path.exists('/proc/self/fd/%%d' %% n)]; "
                       "file.write(repr(there))" % seen)
            for closed, there in (("<&-", [0, 1, 2]), (">&-", [0, 1, 2]), ("2>&-", [0, 1, 2]), ("<&- >&- 2>&-", [0])):
                done = self.closed(closed, "run", "--", sys.executable, "-c", program)
                self.assertEqual((done.returncode, done.stdout), (0, ""), (closed, done.stderr))
                with open(seen) as told:
                    self.assertEqual(told.read(), repr(there), closed)
        for command in ("run", "estimate", "libtorch"):
            done = self.closed(">&-", command, "--help")
            self.assertEqual((done.returncode, done.stderr), (
                5, "pleat %s: error: standard output cannot be written: Bad file descriptor\n" % command))
            done = self.closed("2>&-", command, "--frobnicate")
            self.assertEqual((done.returncode, done.stdout), (2, ""))

    def closed(self, closed, command, *words):
        line = "import sys; from pleat import %s; %s.main(sys.argv[1:])" % (command, command)
        return subprocess.run(["sh", "-c", 'exec "$0" "$@" ' + closed, sys.executable, "-B", "-c", line, *words],
                              env=dict(os.environ, PYTHONPATH=str(ADAPTER)), capture_output=True, text=True, timeout=60)

    def test_what_a_run_left_is_written_where_nobody_reads_what_it_says(self):
        """Standard error may be closed, or a pipe whose reader has ended."""
        reader, writer = os.pipe()
        os.close(reader)
        closed = io.StringIO()
        closed.close()
        counters = {"peak_physical_bytes": 1, "requests": 1}
        pipe = open(writer, "w", buffering=1)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "counters.json")
            environment = {"PLEAT_RUN": "on", "PLEAT_RUN_COUNTERS": path}
            for error in None, closed, pipe:
                out = io.StringIO()
                with mock.patch.object(sys, "stderr", error), contextlib.redirect_stdout(out), \
                        mock.patch.object(_job, "figures", return_value=[(0, counters)]), \
                        mock.patch.object(pleat, "report", return_value="pleat: device 0"), \
                        mock.patch.object(pleat, "save_trace", side_effect=RuntimeError("nothing was recorded")):
                    _job.finish(environment)
                with open(path) as written:
                    self.assertEqual(json.load(written)["devices"], {"0": counters})
                os.remove(path)
                self.assertEqual(out.getvalue(), "")
        with contextlib.suppress(BrokenPipeError):
            pipe.close()

    def test_a_files_name_that_is_no_text_is_said_as_it_is(self):
        line = "import os; from pleat import run; run.say('wrote %s\\n' % os.fsdecode(b'\\xff.trace'), 'estimate')"
        done = subprocess.run([sys.executable, "-B", "-c", line], stdout=subprocess.PIPE,
                              env=dict(os.environ, PYTHONPATH=str(ADAPTER), PYTHONIOENCODING="utf-8:strict"))
        self.assertEqual((done.returncode, done.stdout), (0, b"wrote \xff.trace\n"))

    def test_programs_have_the_signals_that_python_ignores(self):
        for name, number in (("PIPE", signal.SIGPIPE), ("XFSZ", signal.SIGXFSZ)):
            words = ["-c", "kill -%s $$" % name]
            installed = ("import sys; from pleat import _command; _command.BINARY = '/bin/sh'; sys.argv[1:] = %r; "
                         "_command.main()" % words)
            self.assertEqual(python(installed).returncode, -number)
            run = "from pleat import run; run.main(['--', 'sh', *%r])" % words
            self.assertEqual(python(run).returncode, -number)


if __name__ == "__main__":
    suite.main()
