"""Runs each command of the guides in docs/guides: guides.py PLEAT SNAPSHOT. They are the indented lines that have
`pleat` for their program, in order, in a folder with the files that the guides speak of. What a guide says in Python
has to be Python, and of pleat only what there is. What it says in C is compiled, run, and prints what stands behind
it."""

import ast
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLEAT, SNAPSHOT = sys.argv[1:3]
del sys.argv[1:3]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "adapters/pytorch"))
import made  # noqa: E402
import pleat  # noqa: E402

COMMAND = re.compile(r"    ((?:PLEAT_\w+=\S+ )*)pleat (.*)")
C = re.compile(r"^```c\n(.*?)^```\n(?:\nIt prints\n\n```text\n(.*?)^```)?", re.M | re.S)
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)
USERS = {"c", "elastic", "fragmentation", "looking", "recompute", "reinforcement-learning", "tenants"}


def prepare(folder):
    """The user's files: a recording, some at other sizes, an operator log, and a program."""
    shutil.copy(SNAPSHOT, folder / "job.pickle")
    for batch in (2, 4, 8):
        made.record(folder / ("mb%d.pickle" % batch), [batch] * 4)
    (folder / "job.log").write_text(made.network())
    for name in ("train.py", "evaluate.py"):
        (folder / name).write_text("print('trained')\n")


def attributes(text):
    """Names that a program takes from pleat."""
    return {node.attr for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "pleat"}


class Guides(unittest.TestCase):
    def run_all(self, folder, commands):
        for settings, rest in commands:
            words = shlex.split(rest)
            with self.subTest(command=rest):
                environment = dict(os.environ, **dict(setting.split("=", 1) for setting in settings.split()))
                done = subprocess.run([PLEAT, *words], cwd=folder, env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                if "dygraphs" in done.stdout and words[0] == "report":
                    continue  # this pleat draws no pages, which it says
                self.assertEqual(done.returncode, 0, done.stdout)
                if words[0] == "run":
                    self.assertIn("trained\n", done.stdout)
                for flag in ("-o", "--dump"):
                    if flag in words:
                        self.assertGreater(os.path.getsize(folder / words[words.index(flag) + 1]), 0)

    def test_each_command_does_what_the_guide_says(self):
        guides = sorted((ROOT / "docs/guides").glob("*.md"))
        self.assertEqual({guide.stem for guide in guides}, USERS)
        for guide in guides:
            commands = [found.groups() for found in map(COMMAND.fullmatch, guide.read_text().splitlines()) if found]
            self.assertGreater(len(commands), 1, guide.name)
            with self.subTest(guide=guide.name), tempfile.TemporaryDirectory() as folder:
                prepare(pathlib.Path(folder))
                self.run_all(pathlib.Path(folder), commands)

    def test_programs_in_c_do_what_the_guide_says(self):
        compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
        if compiler is None:
            self.skipTest("there is no C compiler")
        library = pathlib.Path(PLEAT).resolve().parents[1] / "lib"
        programs = [found.groups() for guide in sorted((ROOT / "docs/guides").glob("*.md"))
                    for found in C.finditer(guide.read_text())]
        self.assertGreater(len(programs), 2)
        for text, prints in programs:
            with self.subTest(prints=prints), tempfile.TemporaryDirectory() as folder:
                source = pathlib.Path(folder, "program.c")
                source.write_text(text)
                subprocess.run([*shlex.split(compiler), "-Wall", "-Wextra", "-Werror", source, "-I", ROOT / "include", "-L",
                                library, "-lpleat", "-Wl,-rpath,%s" % library, "-o", source.with_suffix("")], check=True)
                environment = {name: value for name, value in os.environ.items() if not name.startswith("PLEAT_")}
                done = subprocess.run([source.with_suffix("")], cwd=folder, env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True)
                self.assertEqual((done.returncode, done.stdout), (0, prints))

    def test_python_in_guides_is_of_this_pleat(self):
        texts = [text for guide in (ROOT / "docs/guides").glob("*.md") for text in PYTHON.findall(guide.read_text())]
        self.assertGreater(len(texts), 0)
        for text in texts:
            self.assertGreater(len(attributes(text)), 0)
            for name in attributes(text):
                self.assertTrue(hasattr(pleat, name), name)


if __name__ == "__main__":
    unittest.main()
