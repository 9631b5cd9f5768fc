#!/usr/bin/env python3
"""Holds drawn jobs against recorded ones: the peak of what is live, and what allocators make of it.

    honesty.py [RECORDINGS [NAME ...]] [--pleat COMMAND]

RECORDINGS has NAME.pickle.gz for each NAME of drawn.py --like but "bundled", the recording beside
this file, which is held against without it, too. Both are replayed as PyTorch's native
allocator and as its expandable segments; the table has the drawn job's figures, the recorded one's,
and the differences. The exit status is 1 where a peak differs by more than 3 % or an efficiency by
more than 2 points.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from drawing import job, likes  # noqa: E402

PEAK_PERCENT, POINTS = 3.0, 2.0
POLICIES = ("native", "expandable")
BUNDLED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gpt2-vpp-recompute.pickle.gz")
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")


def replay(pleat, path, policy):
    done = subprocess.run(
        [pleat, "replay", path, "--policy", policy, "--json"], stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def figures(pleat, path):
    """Peak of live bytes, and each policy's efficiency in percent."""
    told = [replay(pleat, path, policy) for policy in POLICIES]
    return told[0]["peak_live_bytes"], [100 * one["efficiency"] for one in told]


def row(pleat, name, recording, folder):
    path = os.path.join(folder, name + ".pickle")
    job.like(name).record().write(path)
    drawn, recorded = figures(pleat, path), figures(pleat, recording)
    os.unlink(path)
    apart = 100 * (drawn[0] / recorded[0] - 1)
    points = [a - b for a, b in zip(drawn[1], recorded[1])]
    honest = abs(apart) <= PEAK_PERCENT and max(map(abs, points)) <= POINTS
    cells = ["%.3f" % (peak / 2**30) for peak in (drawn[0], recorded[0])] + ["%+.2f %%" % apart]
    for here, there, off in zip(drawn[1], recorded[1], points):
        cells += ["%.1f" % here, "%.1f" % there, "%+.1f" % off]
    return [name] + cells + ["yes" if honest else "no"], honest


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("recordings", nargs="?", help="the folder with the recordings [none]")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these [all]")
    parser.add_argument("--pleat", default=os.path.join(ROOT, "build/release/bin/pleat"))
    options = parser.parse_args()
    head = ["job", "peak live, drawn, GiB", "recorded", "apart"]
    for policy in POLICIES:
        head += ["%s, drawn, %%" % policy, "recorded", "points"]
    print("| %s |\n|%s" % (" | ".join(head + ["holds"]), " --- |" * (len(head) + 1)))
    all_honest = True
    with tempfile.TemporaryDirectory() as folder:
        for name in options.names or (likes.LIKES if options.recordings else ["bundled"]):
            recording = os.path.join(options.recordings or "", name + ".pickle.gz")
            if name == "bundled":
                recording = BUNDLED
            if not os.path.exists(recording):
                sys.exit("honesty.py: there is no %s" % recording)
            cells, honest = row(options.pleat, name, recording, folder)
            all_honest = all_honest and honest
            print("| %s |" % " | ".join(cells), flush=True)
    sys.exit(0 if all_honest else 1)


if __name__ == "__main__":
    main()
