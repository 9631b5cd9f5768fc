"""What pleat.enable() and its neighbours are given, without a GPU and without torch: arguments.py."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parents[2]
ADAPTER = ROOT / "adapters" / "pytorch"
sys.path[:0] = [str(ADAPTER), str(ROOT / "tests")]
sys.dont_write_bytecode = True
import pleat  # noqa: E402
import suite  # noqa: E402
from pleat import _given, _plans, run  # noqa: E402

COMMAND = os.environ.get("PLEAT_COMMAND")


def python(code, **environment):
    made = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONPATH=str(ADAPTER), **environment)
    return subprocess.run([sys.executable, "-c", code], env=made, text=True, capture_output=True)


class Arguments(unittest.TestCase):
    def test_arguments_of_another_type_are_said(self):
        code = ("import sys, types; sys.modules['torch'] = types.ModuleType('torch'); import pleat\n"
                "for wrong in ({'conf': 5}, {'record': 'x'}, {'canary': 'x'}, {'marks': None}, {'windows': 0}, {'record': -1}):\n"
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
            "TypeError pleat: windows is True or False, not 0",
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
