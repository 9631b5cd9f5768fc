"""`pleat bench turns`: a trainer's turns are counted verb by verb, the same in each run, and what it
gives back comes back.

usage: bench_turns.py PLEAT FAKE_LIBCUDA
"""

import json
import os
import subprocess
import sys

PLEAT, LIBRARY = sys.argv[1:3]


def run(*arguments):
    return subprocess.run([PLEAT, "bench", "turns", *arguments], capture_output=True, text=True,
                          env={**os.environ, "PLEAT_CUDA_LIBRARY": LIBRARY}, timeout=120)


def expect(truth, what):
    if not truth:
        sys.exit(f"bench_turns.py: {what}")


def figures(*arguments):
    done = run(*arguments, "--json")
    expect(done.returncode == 0, f"{arguments}: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def calls(found):
    return {(step["step"], verb): step[verb]["calls"] for step in found["steps"]
            for verb in ("create", "map", "set_access", "unmap", "release")}


small = ("--layers", "12", "--rows", "4096", "--turns", "3")
found = figures(*small)
# Weights and two states live at rest, 12 layers of three times 64 MiB and a step of one granule,
# and two workspaces.
expect(found["live_bytes"] == 12 * (3 * (64 << 20) + 512) + 2 * (32 << 20), f"live {found['live_bytes']}")
expect(found["peak_bytes"] >= found["peak_live_bytes"] > found["live_bytes"], f"peak {found}")
count = calls(found)
for gone, come in (("trim", "iteration after it"), ("pause by discarding", "resume")):
    expect(count[gone, "release"] > 0 and count[gone, "create"] == 0, f"{gone}: {count}")
    expect(count[come, "create"] > 0 and count[come, "release"] == 0, f"{come}: {count}")
expect(count["trim", "release"] == count["iteration after it", "create"], f"trimmed memory: {count}")
expect(0 <= found["over_mean"] <= found["over_most"] + 1e-9, f"over {found['over_mean']}")
expect(calls(figures(*small)) == count, "another run, other verbs")
varied = figures(*small, "--vary", "--seed", "5")
expect(varied["peak_live_bytes"] <= found["peak_live_bytes"], "rows that vary are no more than all")
rarely = figures(*small, "--vary", "--every", "1000")
expect(calls(rarely) == count, "rows that vary in no iteration")
# What the first iterations' views showed is joined once they are followed no more: 14.9 of 60 GB.
large = calls(figures("--layers", "221", "--rows", "2048", "--turns", "1"))
expect(large["trim", "release"] < 200, f"handles of a large trainer's turn: {large['trim', 'release']}")
expect(calls(figures(*small, "--backend", "cuda"))["trim", "release"] > 0, "cuda")
text = run(*small)
expect(text.returncode == 0 and "held at rest" in text.stdout, f"text: {text.stdout}")
# 12 GiB of an evaluation are of no use to the trainer, and another tenant gets them at once.
lent = figures("--layers", "12", "--rows", "4096", "--evaluate", "32768")
expect(lent["had_bytes"] - lent["kept_bytes"] > 6 << 30, f"lent {lent}")
expect(lent["borrowed_bytes"] + lent["kept_bytes"] > (80 << 30) - (1 << 30), f"borrowed {lent}")
expect(lent["iteration_calls"] == 0, f"the trainer makes verbs after it lent: {lent}")
text = run("--layers", "12", "--evaluate", "16384")
expect(text.returncode == 0 and "the borrower got" in text.stdout, f"text: {text.stdout}{text.stderr}")
tight = run(*small, "--budget", "1GiB")
expect(tight.returncode == 4, f"a budget that is too small: exit {tight.returncode}")
for arguments in (["--backend", "cuda", "--evaluate", "1"], ["--layers", "0"], ["--rows", "x"], ["extra"]):
    expect(run(*arguments).returncode == 2, f"{arguments}")
