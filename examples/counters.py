"""Prints what the native allocator and Pleat take for a recorded job: counters.py RECORDING

Asks the command `pleat` ($PLEAT_COMMAND names another), which answers in JSON. Where that refuses the recording it
has said why, and this ends as it did.
"""

import errno
import json
import os
import subprocess
import sys

PLEAT = os.environ.get("PLEAT_COMMAND", "pleat")


def replayed(recording, policy):
    """GPU -> counters of a recording's replay on the host's memory; of one GPU alone it has no number."""
    try:
        done = subprocess.run([PLEAT, "replay", recording, "--policy", policy, "--json"], stdout=subprocess.PIPE)
    except OSError as problem:
        print("counters.py: %r cannot be run: %s; $PLEAT_COMMAND may name the command pleat" % (PLEAT, problem.strerror),
              file=sys.stderr)
        sys.exit(127 if problem.errno == errno.ENOENT else 126)
    if done.returncode:
        sys.exit(done.returncode)
    told = json.loads(done.stdout)
    return told.get("devices", {"": told})


def main():
    if len(sys.argv) != 2:
        print("usage: counters.py RECORDING", file=sys.stderr)
        sys.exit(2)
    for policy in ("native", "pleat"):
        for gpu, told in replayed(sys.argv[1], policy).items():
            print("%-8s %.3f GiB for %.3f GiB live%s" % (policy, told["peak_physical_bytes"] / 2**30,
                                                        told["peak_live_bytes"] / 2**30, gpu and " on GPU " + gpu))


if __name__ == "__main__":
    main()
