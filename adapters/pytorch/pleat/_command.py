"""The program `pleat` of a pip installation: some subcommands are Python, all else the compiled command."""

import os
import pathlib
import sys

from . import _signals, estimate, libtorch, run

PYTHON = {"estimate": estimate.main, "libtorch": libtorch.main, "run": run.main}
BINARY = pathlib.Path(__file__).resolve().parent / "bin" / "pleat"


def main():
    asked = sys.argv[1:]
    if asked[:1] == ["help"] and asked[1:2] and asked[1] in PYTHON:
        asked = [asked[1], "--help"]
    if asked and asked[0] in PYTHON:
        PYTHON[asked[0]](asked[1:])
        return
    _signals.restore_ignored()
    try:
        os.execv(BINARY, ["pleat", *sys.argv[1:]])
    except OSError as problem:
        sys.exit("pleat: %s: %s; install the package again" % (BINARY, problem.strerror))
