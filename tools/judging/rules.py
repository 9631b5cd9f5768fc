"""What must hold of Pleat on any job, and which jobs fall short of it.

A rule is judged over all jobs, told of iterations and not, learning and with a plan of another run.
"""

import collections

from . import replays, tables
from .replays import FOLLOWING

MARGIN = 0.002  # of efficiency: what is not counted as less
MEDIAN, FIFTH = 0.995, 0.98
TIMES_NATIVE, SHARE_OF_ITERATION = 2, 0.005
LONGEST_US, LONGEST_BUT = 200, 1  # so many calls a job may be longer
DRIVER_MOST, DRIVER_ALL, DRIVER_JOBS = 0.005, 0.015, 0.95

# All but TIMED are of memory and of the driver's time, which is modelled: the same in every run.
NAMES = ("broken", "refused", "heap", "expandable", "median", "fifth", "driver-mostly", "driver", "processor", "longest")
TIMED = ("processor", "longest")

# name: one of them. about: how many it was judged by. short: (job, way, what) each.
Verdict = collections.namedtuple("Verdict", "name rule holds about short")


def heap_of(way):
    return (replays.ALONE if way.marked else replays.unmarked(replays.ALONE)).name


def followed(answers):
    """(job, way, its figures, those of all ways) of each replay that is judged and ran to its end."""
    for answer in answers:
        for way in FOLLOWING:
            figures = answer["ways"].get(way.name)
            if figures is not None and figures["ended"]:
                yield answer["job"], way, figures, answer["ways"]


def is_less(figures, than):
    """By how much one way's efficiency is below another's, over the whole or steady; or None."""
    if not than["ended"]:
        return None
    lacks = {key: than[key] - figures[key] for key in ("efficiency", "steady_efficiency")}
    key = max(lacks, key=lacks.get)
    return "%s %.4f, not %.4f" % (key.replace("_", " "), figures[key], than[key]) \
        if lacks[key] > MARGIN else None


def processor_limit(figures, ways):
    return max(TIMES_NATIVE * ways[replays.NATIVE.name]["processor_seconds"],
               SHARE_OF_ITERATION * figures["recorded_seconds"])


def is_dear(figures, ways):
    limit = processor_limit(figures, ways)
    taken = figures["processor_seconds"]
    return "%.1f ms, not %.1f ms" % (1e3 * taken, 1e3 * limit) if taken > limit else None


def is_long(figures):
    longest = figures["longest_calls_us"]
    return "%.0f us, %.0f us" % tuple(longest[:2]) if longest[LONGEST_BUT] > LONGEST_US else None


def is_slow(ways, way):
    """Whether a way's times fall short so far."""
    if way not in FOLLOWING or not ways[way.name]["ended"]:
        return False
    return bool(is_dear(ways[way.name], ways) or is_long(ways[way.name]))


def in_each(name, rule, answers, short_of):
    """A rule of each replay; short_of(way, figures, ways) says what falls short, or None."""
    short, about = [], 0
    for job, way, figures, ways in followed(answers):
        about += 1
        what = short_of(way, figures, ways)
        if what:
            short.append((job, way.name, what))
    return Verdict(name, rule, not short, about, short)


def ending(name, rule, answers, short_of):
    """A rule of how replays end, of those that did not end well too; short_of as above."""
    short, about = [], 0
    for answer in answers:
        for way in FOLLOWING:
            figures = answer["ways"].get(way.name)
            about += figures is not None
            what = figures and not figures["ended"] and short_of(way, figures, answer["ways"])
            if what:
                short.append((answer["job"], way.name, what))
    return Verdict(name, rule, not short, about, short)


def is_refused(way, figures, ways):
    others = (ways[heap_of(way)], ways[replays.NATIVE.name])
    return "out of memory" if "failed" not in figures and any(one["ended"] for one in others) else None


def at_quantile(name, rule, share, least, answers):
    """A rule of the distribution; the jobs below are named where it fails."""
    all_of = [(figures["efficiency"], job, way.name) for job, way, figures, _ in followed(answers)]
    value = tables.quantile([one[0] for one in all_of], share) if all_of else 1.0
    holds = value >= least
    short = [] if holds else [(job, way, "%.4f" % efficiency)
                              for efficiency, job, way in sorted(all_of) if efficiency < least]
    return Verdict(name, "%s efficiency at least %g (it is %.4f)" % (rule, least, value), holds, len(all_of),
                   short)


def driver_mostly(answers):
    short = [(job, way.name, "%.2f %%" % (100 * figures["driver_share"]))
             for job, way, figures, _ in followed(answers) if figures["driver_share"] > DRIVER_MOST]
    about = sum(1 for _ in followed(answers))
    holds = len(short) <= (1 - DRIVER_JOBS) * about
    return Verdict("driver-mostly", "driver time of steady iterations at most %g %% of them in %g %% of replays"
                   % (100 * DRIVER_MOST, 100 * DRIVER_JOBS), holds, about, short)


def judge(answers):
    return [
        ending("broken", "no replay breaks off", answers, lambda _, figures, ways: figures.get("failed")),
        ending("refused", "no job is refused memory that another allocator has for it", answers, is_refused),
        in_each("heap", "efficiency at least the heap's alone, less %g" % MARGIN, answers,
                lambda way, figures, ways: is_less(figures, ways[heap_of(way)])),
        in_each("expandable", "efficiency at least expandable segments', less %g" % MARGIN, answers,
                lambda _, figures, ways: is_less(figures, ways[replays.EXPANDABLE.name])),
        at_quantile("median", "median", 0.5, MEDIAN, answers),
        at_quantile("fifth", "5th percentile of", 0.05, FIFTH, answers),
        driver_mostly(answers),
        in_each("driver", "driver time of steady iterations at most %g %% of them" % (100 * DRIVER_ALL), answers,
                lambda _, figures, ways: "%.2f %%" % (100 * figures["driver_share"])
                if figures["driver_share"] > DRIVER_ALL else None),
        in_each("processor", "processor time in calls at most %d times native's, or %g %% of the time that passes"
                % (TIMES_NATIVE, 100 * SHARE_OF_ITERATION), answers,
                lambda _, figures, ways: is_dear(figures, ways)),
        in_each("longest", "no call without a memory verb longer than %d us but %d a job" % (
            LONGEST_US, LONGEST_BUT), answers, lambda _, figures, ways: is_long(figures)),
    ]
