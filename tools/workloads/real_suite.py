#!/usr/bin/env python3
"""Runs drawn jobs of real libraries under each allocator in turns and judges Pleat: real_suite.py.

Each pair of a job and a seed is run iteration by iteration under all allocators at the same time, on
one GPU that holds them all (`compare.py --in-turns`); the next pair's programs import their libraries
meanwhile. `again` is native a second time: how far its seconds are from native's is what the machine
scatters, and how far its losses are is how well the job repeats itself. Every pair becomes a line of
JSON in --out as soon as it is done, also one that failed.
Ends with a table and with what does not hold; exit 1 if something does not. --summary reads lines
that were written before, needs neither a GPU nor torch, and runs nothing.
"""

import argparse
import contextlib
import json
import pathlib
import statistics
import sys
import time

import libraries
import turns
from turns import GIB, STEADY_FROM, cell, print_table, ratios

# What must hold, native's seconds being 1: the steady median over all pairs and of each, the mean
# over all iterations from the first, and by how much of expandable segments' it may be above that.
STEADY_OF_ALL, STEADY, MEAN, MEAN_OVER_EXPANDABLE = 1.005, 1.01, 1.02, 1.01
# Of jobs whose efficiency has a goal of its own; they may take native's seconds at most.
EFFICIENT = {"qwen3_moe": 0.975, "pipeline_rank": 0.99}
PAIR_SECONDS = 200  # a pair that takes longer is ended: it hangs, or is no job for this
LEFT_FOR_A_PAIR = 60  # seconds; no pair is begun with less time left
CONTENDERS = ("native", "again", "expandable", "pleat", "heap")


def say(*text):
    print("real_suite.py:", *text, file=sys.stderr, flush=True)


# ---- judging ----


def mean(one, native):
    """The seconds of the iterations that both have, native's being 1; None where there are none."""
    both = list(zip(one["seconds"], native["seconds"]))
    return sum(mine for mine, _ in both) / sum(other for _, other in both) if both else None


def apart(one, other):
    """How far losses are apart: the largest difference, native's being 1; 0 where all bits are the
    same. Both over the iterations that both have."""
    pairs = list(zip(one["losses"], other["losses"]))
    return max((abs(a - b) / (abs(b) or 1.0) for a, b in pairs), default=0.0)


def figures(pair):
    """contender -> what the table shows of it."""
    native = pair["runs"].get("native")
    told = {}
    for contender, one in pair["runs"].items():
        seconds = one["seconds"][STEADY_FROM:] or one["seconds"]
        mine = {
            "live": one.get("peak_allocated_bytes"),
            "physical": one.get("peak_reserved_bytes"),
            "process": one.get("process_peak_bytes"),
            "efficiency": one.get("efficiency"),
            "seconds": statistics.median(seconds) if seconds else None,
            "out_of_memory": one["out_of_memory"],
        }
        if native:
            steady = ratios(one, native)
            mine["steady"] = statistics.median(steady) if steady else None
            mine["mean"] = mean(one, native)
            mine["apart"] = apart(one, native)
        told[contender] = mine
    return told


def memory_missed(pleat, expandable):
    """Physical memory above expandable segments', by torch's statistics and by NVML."""
    for what, key in (("physical memory", "physical"), ("memory by NVML", "process")):
        mine, other = pleat[key], expandable[key]
        if mine and other and mine > other:
            yield "%s %.3f GiB, expandable segments' %.3f" % (what, mine / GIB, other / GIB)


def losses_missed(pleat, again):
    """Losses that are less equal to native's than two runs of native are to each other."""
    if pleat["apart"] == 0:
        return
    if again is None:
        yield "losses %.2g from native's, which was not run again" % pleat["apart"]
    elif again["apart"] == 0:
        yield "losses %.2g from native's, which repeats its own bit for bit" % pleat["apart"]


def scatter(steady):
    """Native's second run beside its first: what a ratio of this machine's seconds is to be read by."""
    return "" if steady is None else " (native again: %.4f)" % steady


def seconds_missed(pleat, expandable, again, most):
    if pleat["steady"] is not None and pleat["steady"] > most:
        line = "steady median %.4f of native's, not %.3f" % (pleat["steady"], most)
        yield line + scatter(again and again["steady"])
    if pleat["mean"] is None:
        return
    if pleat["mean"] > MEAN:
        yield "mean from the first on %.4f of native's, not %.2f" % (pleat["mean"], MEAN)
    if expandable and expandable["mean"] and pleat["mean"] > MEAN_OVER_EXPANDABLE * expandable["mean"]:
        yield "mean %.4f of native's, expandable segments' %.4f" % (pleat["mean"], expandable["mean"])


def missed(pair):
    """What does not hold of a pair, one line each."""
    if "error" in pair:
        return ["failed: " + pair["error"].splitlines()[0]]
    told = figures(pair)
    pleat, expandable, again = told.get("pleat"), told.get("expandable"), told.get("again")
    if not pleat or "native" not in told:
        return []
    if pleat["out_of_memory"]:
        return ["out of memory"]
    goal = EFFICIENT.get(pair["job"])
    lines = list(seconds_missed(pleat, expandable, again, 1.0 if goal else STEADY))
    lines += memory_missed(pleat, expandable) if expandable else ()
    lines += losses_missed(pleat, again)
    if goal and (pleat["efficiency"] or 0) < goal:
        lines.append("efficiency %.4f, not %.3f" % (pleat["efficiency"] or 0, goal))
    return lines


def beside_native(pairs, contender):
    """The runs of those pairs that have it and native."""
    return [p["runs"] for p in pairs if {"native", contender} <= set(p.get("runs", ()))]


def steady_of_all(runs_of_pairs, contender):
    """The median over all steady iterations of native's seconds; None where there are none."""
    steady = [
        r for runs in runs_of_pairs for r in ratios(runs[contender], runs["native"])
    ]
    return statistics.median(steady) if steady else None


def missed_of_all(pairs):
    """What does not hold of all of them together."""
    steady = steady_of_all(beside_native(pairs, "pleat"), "pleat")
    if steady is None or steady <= STEADY_OF_ALL:
        return []
    again = steady_of_all(beside_native(pairs, "again"), "again")
    return ["steady median of all %.4f, not %.3f" % (steady, STEADY_OF_ALL) + scatter(again)]


def name_of(pair):
    return "%s@%d" % (pair["job"], pair["seed"])


def verdict(pairs):
    return [
        "%s: %s" % (name_of(pair), line) for pair in pairs for line in missed(pair)
    ] + missed_of_all(pairs)


# ---- the table ----

HEADER = ("job", "allocator", "live GiB", "physical", "by NVML", "%", "s/iteration", "steady x", "mean x",
          "first s", "losses")  # fmt: skip


def equal(told):
    if told.get("apart") is None:
        return "-"
    return "equal" if told["apart"] == 0 else "%.1g" % told["apart"]


def rows(pair):
    if "error" in pair:
        return [(name_of(pair), "failed") + ("",) * (len(HEADER) - 2)]
    return [
        (
            name_of(pair),
            contender + (" OOM" if told["out_of_memory"] else ""),
            cell(told["live"], "%.3f", GIB),
            cell(told["physical"], "%.3f", GIB),
            cell(told["process"], "%.3f", GIB),
            cell(told["efficiency"], "%.2f", 0.01),
            cell(told["seconds"], "%.4f"),
            cell(told.get("steady"), "%.4f"),
            cell(told.get("mean"), "%.4f"),
            cell((pair["runs"][contender]["seconds"] or [None])[0], "%.2f"),
            equal(told),
        )
        for contender, told in figures(pair).items()
    ]


def of_all(pairs):
    """One line a contender over all pairs that have it and native."""
    for contender in CONTENDERS[1:]:
        both = beside_native(pairs, contender)
        if not both:
            continue
        steady = steady_of_all(both, contender)
        means = [mean(runs[contender], runs["native"]) for runs in both]
        means = [one for one in means if one is not None] or [float("nan")]
        shares = [runs[contender].get("efficiency") or 0 for runs in both]  # the processor's allocator tells none
        print(
            "%s over %d: steady median %s, mean from the first on %.4f (%.4f to %.4f) of native's; "
            "efficiency %.4f, least %.4f"
            % (
                contender,
                len(both),
                cell(steady, "%.4f"),
                statistics.mean(means),
                min(means),
                max(means),
                statistics.median(shares),
                min(shares),
            )
        )


def summarize(pairs, left=()):
    """Prints everything; whether all of it holds."""
    if pairs:
        print_table([HEADER] + [row for pair in pairs for row in rows(pair)])
        of_all(pairs)
    lines = verdict(pairs)
    for line in lines:
        print("does not hold: " + line)
    for job, seed in left:
        print("not run, for want of time: %s@%d" % (job, seed))
    return not lines and not left


def read(paths):
    """Pairs that were written before; of one that was run again the last counts."""
    pairs = {}
    for path in paths:
        for number, line in enumerate(pathlib.Path(path).read_text().splitlines(), 1):
            try:
                pair = json.loads(line)
                if "native_again" in pair:  # as earlier versions wrote it, of eight iterations
                    pair["runs"]["again"] = pair.pop("native_again")
                pairs[name_of(pair)] = pair
            except (ValueError, KeyError, TypeError) as problem:
                sys.exit("real_suite.py: %s: line %d is no pair: %s" % (path, number, problem))
    return list(pairs.values())


# ---- running ----


class Pair(turns.Job):
    """A job drawn from a seed."""

    def __init__(self, job, seed, options, turn):
        super().__init__("%s@%d" % (job, seed))
        self.job, self.seed, self.allocators = job, seed, options.allocators
        line = ["real.py", "--job", job, "--seed", str(seed), *(["--deterministic"] if options.deterministic else [])]
        line += ["--iterations", str(options.iterations), *(["--tiny", "--device", "cpu"] if options.tiny else [])]
        # Each has to be the first at times: what it reads from the disk the others have at once.
        at = turn % len(options.allocators)
        for one in options.allocators[at:] + options.allocators[:at]:
            self.start(one, turns.Run(line, self.log(one), one, in_turns=True))

    def log(self, contender):
        return self.folder / (contender + ".log")

    def said(self):
        """What the programs said last, which tells why one of them failed."""
        return ["%s: %s" % (one, line) for one in self.runs for line in self.log(one).read_text().splitlines()[-15:]]

    def run(self, seconds):
        """What became of it, as the line of JSON has it."""
        told = {"job": self.job, "seed": self.seed}
        try:
            ended = self.take_turns(seconds)
            told["runs"] = {one: ended[one] for one in self.allocators}
        except turns.Failed as failure:
            told.update(error=str(failure), said=self.said())
        return told


def run_all(pairs, options, out):
    """Runs pairs until the time is over; what became of each, and which are left."""
    return turns.one_ahead(pairs, options.seconds, LEFT_FOR_A_PAIR,
                           lambda pair, number: Pair(*pair, options, number),
                           lambda pair, seconds: finish(pair, min(seconds, PAIR_SECONDS), out))


def finish(pair, seconds, out):
    """Runs a pair, writes it down and says what it was."""
    begin = time.monotonic()
    told = pair.run(seconds)
    told["wall_seconds"] = round(time.monotonic() - begin, 2)
    if out:
        out.write(json.dumps(told) + "\n")
        out.flush()
    for row in rows(told):
        say(" ".join(part for part in row if part))
    for line in told.get("said", ()):
        say("  " + line)
    say("%s: %.1f s" % (name_of(told), told["wall_seconds"]))
    return told


# ---- the command line ----


def seeds(text):
    return [int(part) for part in text.split(",")]


def drawn_pairs(only, every):
    """Pairs of jobs and seeds: JOB@SEED as it is named, JOB with every seed, seed after seed."""
    named = [part.partition("@")[::2] for part in only]
    pairs = [(job, int(seed)) for job, seed in named if seed]
    return pairs + [(job, seed) for seed in every for job, own in named if not own]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    single = [job for job in libraries.JOBS if job not in libraries.SEVERAL_GPUS]
    parser.add_argument(
        "--only", metavar="JOB[@SEED],...", help="some of: %s [all]" % ", ".join(single)
    )
    parser.add_argument("--seeds", type=seeds, default=[1, 2], metavar="N,...", help="of each without one [1,2]")
    parser.add_argument(
        "--allocators", default="native,again,expandable,pleat", metavar="NAME,...",
        help="also heap, Pleat that learns nothing [native,again,expandable,pleat]",
    )  # fmt: skip
    parser.add_argument("--iterations", type=int, default=20, metavar="N", help="of each [20]")
    parser.add_argument(
        "--seconds", type=float, default=540, metavar="N", help="to be done in [540]"
    )
    parser.add_argument("--out", metavar="FILE", help="a line of JSON for each pair, as they end")
    parser.add_argument(
        "--no-deterministic", dest="deterministic", action="store_false",
        help="kernels as they come; losses may then differ from run to run",
    )  # fmt: skip
    parser.add_argument("--tiny", action="store_true", help="on the processor, to try the jobs")
    parser.add_argument("--summary", nargs="+", metavar="FILE", help="of what --out wrote; run nothing")
    options = parser.parse_args()
    options.allocators = options.allocators.split(",")
    known = CONTENDERS[:2] if options.tiny else CONTENDERS
    for one in options.allocators if not options.summary else ():
        if one not in known:
            parser.error("--allocators: %r is none of: %s" % (one, ", ".join(known)))
    options.only = single if options.only is None else options.only.split(",")
    for part in options.only:
        job, at, seed = part.partition("@")
        if job not in single or (at and not seed.isdecimal()):
            parser.error("--only: %r is none of: %s" % (part, ", ".join(single)))
    return options


def main():
    options = parse()
    if options.summary:
        sys.exit(0 if summarize(read(options.summary)) else 1)
    pairs = drawn_pairs(options.only, options.seeds)
    with open(options.out, "a") if options.out else contextlib.nullcontext() as out:
        done, left = run_all(pairs, options, out)
    sys.exit(0 if summarize(done, left) else 1)


if __name__ == "__main__":
    main()
