"""Where the tests of tools find what they test, and what they share. A test imports this before those."""

import functools
import importlib.machinery
import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
WORKLOADS = ROOT / "tools" / "workloads"
DRAWN = str(WORKLOADS / "drawn.py")
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tools"), str(WORKLOADS)]
sys.dont_write_bytecode = True


def run(*line):
    """How a command ended, and what it wrote."""
    return subprocess.run([str(part) for part in line], capture_output=True, text=True, check=False)


def runs(*line):
    """A function that runs the command with what it is given."""
    return functools.partial(run, *line)


run_python = runs(sys.executable, "-B")


def runs_python(*line):
    return runs(sys.executable, "-B", *line)


def draw(path, *options):
    """Writes a drawn job's recording."""
    drawn = run_python(DRAWN, *options, "-o", path)
    assert drawn.returncode == 0, drawn.stderr


def load(path):
    """A program without a suffix, as a module."""
    loader = importlib.machinery.SourceFileLoader(pathlib.Path(path).name.replace("-", "_"), str(path))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


class Folder(unittest.TestCase):
    """Each test has a folder of its own."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name):
        return str(self.folder / name)
