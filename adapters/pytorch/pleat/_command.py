"""The program `pleat` of a pip installation: `pleat run` is Python, all else the compiled command."""

import os
import pathlib
import sys

from . import run

BINARY = pathlib.Path(__file__).resolve().parent / "bin" / "pleat"


def main():
    if sys.argv[1:3] == ["help", "run"]:
        run.main(["--help"])
    if sys.argv[1:2] == ["run"]:
        run.main(sys.argv[2:])
    try:
        os.execv(BINARY, ["pleat", *sys.argv[1:]])
    except OSError as problem:
        sys.exit("pleat: %s: %s; install the package again" % (BINARY, problem.strerror))
