"""Tests of what builds and checks Pleat: .ci/run, tools/check, tools/cpu-torch, and how tests end."""

import contextlib
import ctypes
import io
import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import unittest
from unittest import mock

import here
import suite
from here import ROOT, load


class Folder(here.Folder):
    def script(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)
        return path


class Check(Folder):
    """The two scripts in a tree of their own."""

    def setUp(self):
        super().setUp()
        for name in (".ci/run", "tools/check", "CMakePresets.json"):
            (self.folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, self.folder / name)

    def test_ci_hides_nothing_behind_this_machines_settings(self):
        self.script("tools/check", "env\n")
        kept = dict(HOME="/h", PATH=os.environ["PATH"], TERM="dumb", CI="true", LANG="C.UTF-8", https_proxy="p",
                    NO_PROXY="a b\nc", PIP_CERT="c", SSL_CERT_FILE="s", REQUESTS_CA_BUNDLE="r")
        hidden = dict(PYTHONUNBUFFERED="1", PYTHONPATH="/x", CC="clang", CFLAGS="-O9", PLEAT_CONF="small:2m",
                      LD_LIBRARY_PATH="/y", MAKEFLAGS="-j", XDG_CACHE_HOME="/z", PLEAT_SHARED="/w", LC_ALL="C")
        done = subprocess.run([self.folder / ".ci/run"], env={**kept, **hidden}, stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0)
        got = set(done.stdout.splitlines()) - {line for line in done.stdout.splitlines()
                                               if line.startswith(("PWD=", "SHLVL=", "_=", "OLDPWD="))}
        self.assertEqual(got, set("\n".join("%s=%s" % pair for pair in kept.items()).splitlines()))

    def test_an_unknown_preset_is_refused_before_anything_is_installed(self):
        self.script("tools/setup", "touch %s/installed; exit 9\n" % self.folder)
        done = subprocess.run([self.folder / "tools/check", "release", "nosuch"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        presets = [preset["name"] for preset in json.loads((ROOT / "CMakePresets.json").read_text())["buildPresets"]]
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (2, "", "tools/check: there is no preset 'nosuch'; there are: %s\n" % " ".join(sorted(presets))))
        self.assertFalse((self.folder / "installed").exists())
        for arguments in (*([preset] for preset in presets), ["--long"], ["--long", "release"], []):
            done = subprocess.run([self.folder / "tools/check", *arguments], stdout=subprocess.DEVNULL)
            self.assertEqual(done.returncode, 9)


    def test_an_empty_environment_is_enough(self):
        self.script("tools/setup", "env | grep -E '^(HOME|PATH)=/' | cut -d= -f1; exit 9\n")
        shutil.copy(ROOT / "tools/demo", self.folder / "tools/demo")
        for program in ("tools/check", "tools/demo"):
            done = subprocess.run([self.folder / program, *(["/dev/null"] if "demo" in program else [])], env={},
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual((done.returncode, sorted(done.stdout.split())), (9, ["HOME", "PATH"]))


    def test_the_demo_shows_commands_that_can_be_copied(self):
        """A name with a space, one GPU of several, and a trace, whose name ended twice in .trace."""
        self.script("tools/setup", "")
        self.script("bin/cmake", "")
        shutil.copy(ROOT / "tools/demo", self.folder / "tools/demo")
        (self.folder / "build/release/bin").mkdir(parents=True)
        self.script("build/release/bin/pleat", "")
        (self.folder / "my job.trace").write_text("")
        said = self.shown(self.folder / "my job.trace", "--device", "1")
        self.assertEqual(shlex.split(said[0]), ["pleat", "import", "my job.trace", "--device", "1", "-o",
                                                "build/demo/my job.trace"])
        self.assertEqual(shlex.split(said[2])[:3], ["pleat", "verify", "build/demo/my job.plan"])
        self.assertIn(" --policies native,pleat --plan ", said[3])
        done = subprocess.run([self.folder / "tools/demo", "--frob"], capture_output=True, text=True)
        self.assertEqual(done.stderr, "tools/demo: there is no option '--frob'\n")
        for arguments in (["--device"], ["--device", "x"], ["a", "b"], ["--none"]):
            self.assertEqual(subprocess.run([self.folder / "tools/demo", *arguments], stderr=subprocess.DEVNULL).returncode, 2)
        # What is made has the name that was given, not that of what a link leads to, and the link is read from anywhere.
        (self.folder / "other").mkdir()
        (self.folder / "other" / "link.pickle.gz").symlink_to(self.folder / "my job.trace")
        (self.folder / "folder").symlink_to("other")
        for name, cwd in (("link.pickle.gz", "folder"), ("../other/link.pickle.gz", "bin"), ("folder/link.pickle.gz", "")):
            said = self.shown(name, cwd=self.folder / cwd)
            self.assertEqual(said[0], "pleat import other/link.pickle.gz -o build/demo/link.trace")
            self.assertEqual(said[1], "pleat plan build/demo/link.trace -o build/demo/link.plan")

    def test_the_demo_refuses_a_folder_before_anything_is_installed(self):
        self.script("tools/setup", "exit 9\n")
        shutil.copy(ROOT / "tools/demo", self.folder / "tools/demo")
        done = subprocess.run([self.folder / "tools/demo", self.folder], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout, done.stderr),
                         (2, "", "tools/demo: '%s' is a folder, not a file\n" % self.folder))

    def shown(self, *arguments, cwd=None):
        """The commands that the demo shows."""
        done = subprocess.run([self.folder / "tools/demo", *arguments], check=True, cwd=cwd, text=True,
                              env={"PATH": f"{self.folder}/bin:{os.environ['PATH']}"}, stdout=subprocess.PIPE)
        return [line[2:] for line in done.stdout.splitlines() if line.startswith("$ ")]


class Setup(Folder):
    """With an apt of the test's own, which installs nothing and writes down what it is asked for."""

    def setUp(self):
        super().setUp()
        self.hidden = set()
        self.script("bin/apt-get", """
case "$*" in
    *indextargets*) cat {0}/lists 2> /dev/null ;;
    *source*) test "${{*##* }}" != update || exit 0; echo 'E: Unable to find a source package'; exit 100 ;;
    *update*) echo list > {0}/lists ;;
    *install*) echo "$*" >> {0}/installed ;;
esac
""".format(self.folder))
        # Knows no package before there are lists.
        self.script("bin/apt-cache", "test ! -f {0}/lists || echo '  Candidate: 1'\n".format(self.folder))
        self.script("bin/id", "echo 0\n")

    def run_setup(self, *arguments):
        for folder in os.get_exec_path():
            for program in os.listdir(folder) if os.path.isdir(folder) else ():
                if program not in self.hidden and not (self.folder / "bin" / program).is_symlink():
                    with contextlib.suppress(FileExistsError):
                        (self.folder / "bin" / program).symlink_to(os.path.join(folder, program))
        done = subprocess.run([ROOT / "tools/setup", *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              env=dict(HOME=str(self.folder), PATH=str(self.folder / "bin")), text=True)
        installed = self.folder / "installed"
        return done, installed.read_text() if installed.exists() else ""

    def test_without_source_packages_the_packaged_libraries_serve(self):
        done, installed = self.run_setup()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("have no source packages of: jemalloc cmocka", done.stdout)
        self.assertIn("may fail to load", done.stdout)
        self.assertRegex(installed, "libjemalloc-dev libcmocka-dev\n")
        for name in ("jemalloc", "cmocka"):
            self.assertTrue((self.folder / ".cache/pleat" / name / "packaged").exists())
        done, _ = self.run_setup()
        self.assertNotIn("fetching", done.stdout)
        self.assertIn("to try source packages again, remove: %s/.cache/pleat/jemalloc" % self.folder, done.stdout)

    def test_what_a_machine_without_lists_lacks_is_installed_once_it_has_them(self):
        self.hidden = {"clang-format-14"}
        done, installed = self.run_setup()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("clang-format-14", installed)


class Configure(Folder):
    def test_without_more_words_no_tests_are_built(self):
        """As `tools/setup --minimal` leaves a machine: no cmocka."""
        base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        (self.folder / "pleat").mkdir()
        (self.folder / "pleat" / "jemalloc").symlink_to(pathlib.Path(base, "pleat", "jemalloc"))
        done = subprocess.run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", self.folder / "build",
                               "-DPLEAT_CMOCKA_LIBRARY=PLEAT_CMOCKA_LIBRARY-NOTFOUND"],
                              env=dict(os.environ, XDG_CACHE_HOME=str(self.folder)), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("BUILD_TESTING:BOOL=OFF", (self.folder / "build" / "CMakeCache.txt").read_text())


class Skipped(unittest.TestCase):
    """What was not tested is told, by each test and at the end."""

    class Some(unittest.TestCase):
        def test_a(self):
            self.skipTest("no GPU")

        test_b = test_c = test_a

        def test_d(self):
            pass

        def test_e(self):
            self.fail("as it is to")

    def ended(self, *names):
        """How a program with some of these tests ends, and what it says."""
        result = unittest.TestResult()
        unittest.TestSuite(self.Some("test_" + name) for name in names).run(result)
        with contextlib.redirect_stderr(io.StringIO()) as said:
            suite.tell(result.skipped)
        return suite.status(result), said.getvalue()

    def test_a_program_that_skipped_most_says_so_by_its_exit_status(self):
        self.assertEqual(self.ended("d"), (0, ""))
        self.assertEqual(self.ended("a", "d"), (0, "not tested: test_a: no GPU\n"))
        self.assertEqual(self.ended("a", "b", "c", "d"), (suite.MOSTLY_SKIPPED, "not tested: 3 tests: no GPU\n"))
        self.assertEqual(self.ended("a", "b", "e")[0], 1)

    def test_a_log_is_told_by_reasons(self):
        log = "\n".join([
            "1/3 Testing: release.shim", "not tested: 3 tests: no torch", "2/3 Testing: check.shim",
            "not tested: 3 tests: no torch", "3/3 Testing: asan.base", "[       OK ] one", "[  SKIPPED ] two",
            "[  SKIPPED ] 1 test(s), listed below:", "[  SKIPPED ] two", ""])
        done = subprocess.run([ROOT / "tests" / "skipped"], input=log, stdout=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stdout.splitlines()),
                         (0, ["not tested: shim: 3 tests: no torch (release, check)",
                              "not tested: base: two: its program skips it (asan)"]))


class CpuTorch(Folder):
    cpu_torch = load(ROOT / "tools" / "cpu-torch")

    def shared(self, name, source, *options):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["gcc", "-shared", "-fPIC", "-x", "c", "-", "-x", "none", "-o", path, *options], input=source, text=True,
                       check=True)
        return path

    def test_what_lacks_libraries_loads_beside_empty_ones(self):
        packages = self.folder / "packages"
        versions = self.folder / "versions"
        versions.write_text("V1 { global: cu_versioned; };\n")
        plain = self.shared("libcuplain.so.3", "int cu_plain(void) { return 7; }", "-Wl,-soname,libcuplain.so.3")
        versioned = self.shared("libnvversioned.so.1", "int cu_versioned(void) { return 7; }",
                                "-Wl,-soname,libnvversioned.so.1", "-Wl,--version-script=%s" % versions)
        user = self.shared("packages/torch/lib/libuser.so",
                           "int cu_plain(void), cu_versioned(void);\n"
                           "int (*const table[])(void) = {cu_plain, cu_versioned};\n"
                           "int user(void) { return table[0]() + table[1]() + 1; }", plain, versioned)
        plain.unlink()
        versioned.unlink()
        self.assertRaises(OSError, ctypes.CDLL, user)
        self.cpu_torch.fill(packages)
        self.assertEqual(sorted(path.name for path in user.parent.iterdir()),
                         ["libcuplain.so.3", "libnvversioned.so.1", "libuser.so"])
        found = subprocess.run([sys.executable, "-c", "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).user())", user],
                               env=dict(os.environ, LD_LIBRARY_PATH=str(user.parent)), stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
        self.assertEqual((found.returncode, found.stdout, found.stderr), (0, "1\n", ""))

    def asked(self, **environment):
        done = subprocess.run([sys.executable, ROOT / "tools" / "cpu-torch"], env=dict(os.environ, **environment),
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_what_is_asked_for_is_taken(self):
        self.assertEqual(self.asked(PLEAT_TORCH_PYTHON="/any/python"), (0, "/any/python\n", ""))
        self.assertEqual(self.asked(PLEAT_TORCH_PYTHON="none"),
                         (1, "", "tools/cpu-torch: no torch: PLEAT_TORCH_PYTHON=none\n"))

    def test_why_there_is_none_is_told_and_nothing_stays(self):
        def break_off(place):
            (place / "lib").mkdir(parents=True)
            raise self.cpu_torch.Missing("the network is gone")

        with mock.patch.dict(os.environ, XDG_CACHE_HOME=str(self.folder)):
            with mock.patch.object(self.cpu_torch, "BYTES_NEEDED", 1 << 80), \
                    self.assertRaisesRegex(self.cpu_torch.Missing, "GiB free, and torch==.* needs"):
                self.cpu_torch.cached()
            with mock.patch.object(self.cpu_torch, "install", break_off), \
                    self.assertRaisesRegex(self.cpu_torch.Missing, "the network is gone"):
                self.cpu_torch.cached()
        self.assertEqual(list((self.folder / "pleat").iterdir()), [])


if __name__ == "__main__":
    suite.main()
