#!/usr/bin/env python3
"""Runs the jobs of jobs.py under torch's own allocator and under Pleat, unpatched, and compares.

Each run is a process of its own; Pleat comes in by `pleat run`, so no job knows of it. Prints one
table; exit 1 if a job fails under Pleat or gives other results. side_by_side.py [NAME ...].
"""

import json
import pathlib
import subprocess
import sys
import time

import torch

import jobs

HERE = pathlib.Path(__file__).resolve().parent
RUN = HERE.parents[2] / "adapters/pytorch/pleat-run"


def run(name, under_pleat):
    """(what came out, seconds): the answer, "skipped: ..." or "failed: ..."."""
    line = [sys.executable, str(HERE / "jobs.py"), name]
    if under_pleat:
        line = [sys.executable, str(RUN), "--quiet", "--", *line]
    begin = time.monotonic()
    done = subprocess.run(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    seconds = time.monotonic() - begin
    errors = done.stderr.strip().splitlines() or ["exit %d" % done.returncode]
    if done.returncode == jobs.SKIPPED:
        return errors[-1], seconds
    if done.returncode:
        print("\n".join(errors[-25:]), file=sys.stderr)
        return "failed: " + errors[-1], seconds
    told = json.loads(done.stdout.splitlines()[-1])
    if under_pleat and told["allocator"] != "pleat":
        return "failed: it ran under %s" % told["allocator"], seconds
    return told["answer"], seconds


def compare(name):
    """(whether it holds, what to print)"""
    native, native_seconds = run(name, False)
    if isinstance(native, str):
        return native.startswith("skipped"), native
    pleat, pleat_seconds = run(name, True)
    times = "%.1f s, %.1f s" % (native_seconds, pleat_seconds)
    if isinstance(pleat, str):
        return False, "%s (%s)" % (pleat, times)
    if pleat != native:
        for key in native:
            print("%s: %s: native %s" % (name, key, native[key]), file=sys.stderr)
            print("%s: %s: pleat  %s" % (name, key, pleat.get(key)), file=sys.stderr)
        return False, "other results than native (%s)" % times
    return True, "equal (%s)" % times


def main():
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__.strip())
        sys.exit(0)
    names = sys.argv[1:] or list(jobs.JOBS)
    for name in names:
        if name not in jobs.JOBS:
            sys.exit("side_by_side.py: %r is none of: %s" % (name, ", ".join(jobs.JOBS)))
    if not torch.cuda.is_available():
        sys.exit("side_by_side.py: torch %s sees no GPU here: nothing would run under Pleat" % torch.__version__)
    good = True
    for name in names:
        holds, text = compare(name)
        good &= holds
        print("%-16s %s" % (name, text), flush=True)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
