"""The ranks of a job together: what each says at its end, and one summary over all of them.

A rank's record is what `pleat run --counters` writes: {"rank", "ranks", "host", "job", "devices": {number: counters}}, in which counters have "fingerprint" where the rank recorded its requests: ranks that have the same one ask
for the same memory, and one plan serves them.
"""

import collections
import json
import os
import random
import re
import socket

from . import _plans

GIB = 1 << 30
MOST_NAMED = 16  # ranks that are named one by one, and of a job of no more each says what it took

# Variables that tell one start of a job from the next: torchrun's, Slurm's, Ray's.
JOBS = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "SLURM_STEP_ID", "RAY_JOB_ID", "MASTER_ADDR", "MASTER_PORT")


def job(environment=os.environ):
    return ":".join(environment.get(name, "") for name in JOBS)


def record(served, environment=os.environ):
    """`served` is [(device, counters)]."""
    return {
        "rank": _plans.told_rank(environment),
        "ranks": _plans.launched(environment)[1],
        "host": socket.gethostname(),
        "job": job(environment),
        "devices": {str(device): counters for device, counters in served},
    }


def is_whole(one):
    """Whether it has what a summary reads; it may be from anywhere."""
    if not isinstance(one, dict) or not isinstance(one.get("devices"), dict):
        return False
    return re.fullmatch("[0-9]{1,9}", str(one.get("rank"))) is not None and all(
        isinstance(counters, dict)
        and all(isinstance(value, int) and 0 <= value < 1 << 64
                for value in (counters.get("waited_ns", 0), *map(counters.get, NEEDED)))
        for counters in one["devices"].values())


NEEDED = ("peak_live_bytes", "peak_physical_bytes", "requests", "planned", "lane")


def parse(lines):
    """The records among lines of JSON: those of ranks, the last one of each."""
    found = {}
    for line in lines:
        try:
            one = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if is_whole(one) and one["devices"]:
            found[int(one["rank"])] = one
    return [found[rank] for rank in sorted(found)]


def devices(records):
    """(rank, host, device, counters) of each device of each rank."""
    return [(int(one["rank"]), str(one.get("host", "")), device, counters)
            for one in records for device, counters in sorted(one["devices"].items())]


def efficiency(counters):
    physical = counters["peak_physical_bytes"]
    return counters["peak_live_bytes"] / physical if physical else 1.0


def span(values, form):
    least, most = form % min(values), form % max(values)
    return least if least == most else "%s to %s" % (least, most)


def named(ranks):
    """"0-3, 7" """
    runs = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    texts = ["%d" % first if first == last else "%d-%d" % (first, last) for first, last in runs]
    return ", ".join(texts[:MOST_NAMED]) + (" and %d more" % (len(texts) - MOST_NAMED) if len(texts) > MOST_NAMED else "")


def groups(records):
    """Ranks by the fingerprints of what they asked for, the largest group first; those without are in none."""
    found = collections.defaultdict(list)
    for one in records:
        prints = tuple(str(counters.get("fingerprint") or "") for _, counters in sorted(one["devices"].items()))
        if all(prints):
            found[prints].append(int(one["rank"]))
    return sorted(found.values(), key=lambda ranks: (-len(ranks), ranks[0]))


def share_planned(counters):
    return 100 * (counters["planned"] + counters["lane"]) / counters["requests"] if counters["requests"] else 0.0


def summary(records):
    """Lines about the ranks of a job, the worst one named: the one with the least of its memory in use. [] for fewer
    than two."""
    if len(records) < 2:
        return []
    every = devices(records)
    worst = min(every, key=lambda one: (efficiency(one[3]), one[0]))
    rank, host, device, counters = worst
    lines = [
        "pleat: %d ranks%s: peak allocated %s GiB, physical %s GiB, %s %% of it in use, %s %% of the requests planned"
        % (len(records), of_how_many(records), span([one[3]["peak_live_bytes"] / GIB for one in every], "%.3f"),
           span([one[3]["peak_physical_bytes"] / GIB for one in every], "%.3f"),
           span([100 * efficiency(one[3]) for one in every], "%.2f"),
           span([share_planned(one[3]) for one in every], "%.1f")),
        "pleat: the worst is rank %d (device %s%s): physical %.3f GiB for %.3f GiB allocated (%.2f %% of it in use)"
        % (rank, device, " of " + host if host else "", counters["peak_physical_bytes"] / GIB,
           counters["peak_live_bytes"] / GIB, 100 * efficiency(counters)),
    ]
    waiting = max(every, key=lambda one: one[3].get("waited_ns", 0))
    if waiting[3].get("waited_ns", 0) > 0:
        lines.append("pleat: rank %d waited longest for memory: %.3f s" % (waiting[0], waiting[3]["waited_ns"] / 1e9))
    alike = groups(records)
    if alike and len(alike) < len(records):
        lines.append("pleat: they ask for the same memory in %s"
                     % "; ".join("ranks " + named(ranks) for ranks in alike[:MOST_NAMED]))
    return lines


def of_how_many(records):
    """Where some are missing: they ran on other hosts, or ended without a word."""
    told = {one.get("ranks") for one in records}
    most = max((int(count) for count in told if str(count).isdigit()), default=0)
    return " of %d" % most if most > len(records) else ""


# ---- over several hosts: each rank's file of --counters ----


def read(paths, wanted_job):
    """Records of files, those that cannot be read or are of another start of the job left out."""
    lines = []
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                lines.append(file.read(MOST_BYTES))
        except OSError:
            continue
    return [one for one in parse(lines) if one.get("job") == wanted_job]


MOST_BYTES = 1 << 20  # of one rank's file
MOST_RANKS = 1 << 20


def of_rank(name, rank):
    """The file that a rank of several writes for `name`."""
    return _plans.written(name, {"RANK": str(rank), "WORLD_SIZE": "2"})


def all_there(name, own, ranks):
    """Whether each rank has written its file. In an order of this rank's own: who looks early finds one missing at
    once, so that a job looks for N ln N files and not for N times N."""
    order = list(range(ranks))
    random.Random(int(own["rank"])).shuffle(order)
    return all(os.path.exists(of_rank(name, rank)) for rank in order)


def of_whole_job(name, own):
    """The records of all ranks where this one is the last to have written its file, so that the summary is its to
    tell; else []. Two that end at the same time may both be."""
    ranks = int(own["ranks"]) if str(own["ranks"]).isdigit() else 0
    if own["rank"] is None or not 1 < ranks <= MOST_RANKS or "%p" in name or not all_there(name, own, ranks):
        return []
    found = read([of_rank(name, rank) for rank in range(ranks)], own["job"])
    return found if len(found) == ranks else []
