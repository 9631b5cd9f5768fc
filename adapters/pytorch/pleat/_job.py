"""A process under `pleat run`: enables Pleat as the environment says, and reports at the end."""

import atexit
import json
import os
import sys

import pleat


def figures():
    """(device, counters) of each device that Pleat has served."""
    import torch

    if not torch.cuda.is_initialized():
        return []
    return [(d, s) for d in range(torch.cuda.device_count()) for s in [pleat.stats(d)] if s]


def write(path, served):
    """One JSON object a process; torchrun's workers write files of their own."""
    rank = os.environ.get("RANK")
    if rank is not None:
        path = "%s.%s" % (path, rank)
    try:
        with open(path, "w") as out:
            json.dump({"rank": rank, "devices": {str(d): s for d, s in served}}, out)
            out.write("\n")
    except OSError as problem:
        print("pleat: the report: %s" % problem, file=sys.stderr)


def finish(quiet, path):
    served = figures()
    if not served:
        return
    if not quiet:
        rank = os.environ.get("RANK")
        for device, _ in served:
            line = pleat.report(device)
            print(line if rank is None else "[rank %s] %s" % (rank, line), file=sys.stderr)
    if path:
        write(path, served)


def begin(environment):
    import torch

    if torch.version.cuda is None or pleat.enabled():
        return
    try:
        pleat.enable(
            policy=environment.get("PLEAT_RUN_POLICY", "pleat"),
            plan=environment.get("PLEAT_RUN_PLAN", "auto"),
            budget=int(environment.get("PLEAT_RUN_BUDGET", "0")),
            marks=environment.get("PLEAT_RUN_MARKS", "on") == "on",
        )
    except (OSError, RuntimeError) as problem:
        # Without Pleat the job would be another one than was asked for.
        sys.exit("pleat run: %s" % problem)
    atexit.register(finish, environment["PLEAT_RUN"] == "quiet", environment["PLEAT_RUN_REPORT"])
