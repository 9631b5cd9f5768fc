#!/usr/bin/env python3
"""Runs the workloads under each allocator in turn, and prints one table: compare.py [OPTION ...].

Each run is a process of its own (torch takes one allocator a process), and the allocators take turns,
so that what changes on the machine meets all of them. A saved plan is made from a recording of the
job under torch's own allocator. Needs a GPU; exit 1 if --check finds what does not hold.
"""

import argparse
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import torch

import harness
import libraries
from turns import GIB, STEADY_FROM, Failed, Run, cell, print_table, ratios, take_turns

HERE = pathlib.Path(__file__).resolve().parent

# name -> (least efficiency with a saved plan, iterations that it is made from, script, options). A
# job whose sizes vary is planned from a whole run, as its user would. A run takes some ten seconds.
WORKLOADS = {
    "gpt2-vpp": (0.995, 4, "gpt2.py", "--iterations 12"),
    "gpt2-vpp-recompute": (0.995, 4, "gpt2.py", "--recompute --iterations 12"),
    "gpt2-1f1b": (
        0.995,
        4,
        "gpt2.py",
        "--virtual-stages 1 --depth 4 --microbatches 8 --iterations 10",
    ),
    "llama-vpp": (0.995, 4, "llama.py", "--iterations 10"),
    "llama-1f1b-recompute": (
        0.995,
        4,
        "llama.py",
        "--virtual-stages 1 --depth 4 --microbatches 6 --recompute --iterations 10",
    ),
    "moe-vpp": (0.985, 6, "moe.py", "--iterations 10"),
    "moe-1f1b-recompute": (
        0.985,
        6,
        "moe.py",
        "--virtual-stages 1 --depth 4 --microbatches 6 --recompute --iterations 8",
    ),
    "zero3": (0.995, 4, "zero3.py", "--recompute --iterations 10"),
    "zero3-offload": (0.995, 4, "zero3.py", "--offload --layers 6 --iterations 10"),
    "zero3-overlap": (0.995, 4, "zero3.py", "--overlap --iterations 10"),
    "lora": (0.97, 20, "lora.py", "--iterations 20"),
    "lora-recompute": (0.97, 20, "lora.py", "--recompute --iterations 20"),
    "generate": (0.97, 16, "generate.py", "--iterations 16"),
    "translate": (0.97, 20, "translate.py", "--iterations 80"),
    "detect": (0.97, 20, "detect.py", "--iterations 40"),
}
SHORT = ("gpt2-vpp-recompute", "moe-vpp", "lora-recompute")
SHORT_ITERATIONS = "10"
CONTENDERS = (*harness.ALLOCATORS, "pleat-saved", "heap")
CAP_OVER_LIVE = 1.02


def say(*text):
    print("compare.py:", *text, file=sys.stderr, flush=True)


def workload(name):
    """What WORKLOADS has of a name, or the same of JOB@SEED, a job of a library drawn from a seed;
    None of what is neither."""
    job, _, seed = name.partition("@")
    if job in libraries.JOBS and job not in libraries.SEVERAL_GPUS and seed.isdecimal():
        return 0.97, 20, "real.py", "--job %s --seed %s --iterations 20" % (job, seed)
    return WORKLOADS.get(name)


def place(name):
    """Where a workload stands in a table: those of libraries behind the others."""
    known = list(WORKLOADS)
    return (known.index(name), "") if name in known else (len(known), name)


def visible_gpus():
    """Names of the GPUs that a run may be given."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return seen.split(",")[:count] if seen else [str(number) for number in range(count)]


def run(arguments, log, contender, gpu=None):
    """What the workload printed, after its end."""
    with Run(arguments, log, contender, gpu) as one:
        return one.told()


def run_in_turns(many):
    """The same of several, each of which is Run's arguments: they run at the same time and on the
    same GPU, but for their iterations, which take turns."""
    with contextlib.ExitStack() as ending:
        # Begun within their turns: it takes seconds of the processor.
        return take_turns(ending.enter_context(Run(*one, in_turns=True)) for one in many)


def save_plan(command, side, folder):
    """A plan made from a recording of the workload; both are left in the folder."""
    snapshot, trace, plan = (
        folder / (side.name + end) for end in (".pickle.gz", ".trace", ".plan")
    )
    short = [*side.workload, "--iterations", str(side.profiled), "--record", str(snapshot)]
    run(short, side.log, "native")
    with open(side.log, "a") as errors:
        for line in (["import", snapshot, "-o", trace], ["plan", trace, "-o", plan]):
            done = subprocess.run([command, *line], stdout=errors, stderr=errors)
            if done.returncode:
                raise Failed("pleat %s: exit %d, see %s" % (line[0], done.returncode, side.log))
    trace.unlink()
    return plan


class Side:
    """One workload's runs, side by side."""

    def __init__(self, name, options, log):
        self.name = name
        self.goal, self.profiled, script, arguments = workload(name)
        self.workload = [script, *arguments.split()]
        if options.short:
            self.workload += ["--iterations", SHORT_ITERATIONS]
        if options.deterministic:
            self.workload.append("--deterministic")
        self.log = log
        self.runs = {}  # contender -> the JSON lines of its rounds

    def round(self, contenders, plan, gpus=None, in_turns=False):
        """All contenders one after the other; iteration by iteration where they take turns; at a time
        where there are GPUs, one for each, which change hands from round to round."""
        turn = len(self.runs.get(contenders[0], ()))

        def arguments(number):
            contender, gpu = contenders[number], None
            if gpus:
                gpu = gpus[(number + turn) % len(contenders)]
            more = ["--plan", str(plan)] if contender == "pleat-saved" else []
            return [*self.workload, *more], self.log, contender, gpu

        many = [arguments(number) for number in range(len(contenders))]
        with concurrent.futures.ThreadPoolExecutor(len(contenders) if gpus else 1) as pool:
            every = run_in_turns(many) if in_turns else pool.map(lambda one: run(*one), many)
            for contender, told in zip(contenders, every):
                self.runs.setdefault(contender, []).append(told)
                say(*(part for part in row(self.name, contender, self.figures(contender)) if part))

    def ratios(self, contender, *iterations):
        """Round by round."""
        return [ratios(*both, *iterations) for both in zip(self.runs[contender], self.runs["native"])]

    def times_native(self, contender):
        """Time taken, native's being 1: the median over the steady iterations of all rounds, which
        do the same work as native's of that round."""
        every = [ratio for one in self.ratios(contender) for ratio in one]
        return statistics.median(every) if every else None

    def learning_to_native(self, contender):
        """The same of the second and the third iteration, medians of the rounds."""
        return [statistics.median(turn) for turn in zip(*self.ratios(contender, 1, 3))]

    def figures(self, contender):
        rounds = self.runs[contender]
        worst = max(rounds, key=lambda told: told.get("peak_reserved_bytes") or 0)
        names = (
            "peak_allocated_bytes",
            "peak_reserved_bytes",
            "efficiency",
            "device_peak_bytes",
            "process_peak_bytes",
            "first_seconds",
            "driver_calls",
            "steady_driver_calls",
            "pleat",
            "out_of_memory",
        )
        told = {name: worst.get(name) for name in names}
        told["peak_physical_bytes"] = told.pop("peak_reserved_bytes")
        steady = [s for one in rounds for s in one["seconds"][STEADY_FROM :]]
        told["seconds_per_iteration"] = statistics.median(steady) if steady else None
        if "native" in self.runs:
            told["seconds_to_native"] = self.times_native(contender)
            told["learning_to_native"] = self.learning_to_native(contender)
            told["losses_equal"] = all(
                one["losses"] == self.runs["native"][0]["losses"] for one in rounds
            )
        return told

    def capped(self):
        """The job under a budget that lies over what is live and under what torch's allocators
        take; None where they take no more than that."""
        live = self.runs["pleat"][0]["peak_allocated_bytes"]
        budget = int(live * CAP_OVER_LIVE)
        taken = [
            self.runs[one][0]["peak_reserved_bytes"]
            for one in ("native", "expandable")
            if one in self.runs
        ]
        if not taken or budget >= min(taken):
            return None
        told = {"budget_bytes": budget}
        for contender in ("native", "expandable", "pleat"):
            if contender in self.runs:
                done = run([*self.workload, "--budget", str(budget)], self.log, contender)
                told[contender] = not done["out_of_memory"]
        return told


def missed(side, told):
    """What does not hold of a workload's figures, one line each."""
    runs, lines = told["runs"], []
    others = [runs[one]["efficiency"] or 0 for one in ("native", "expandable") if one in runs]
    pleat, saved = runs.get("pleat"), runs.get("pleat-saved")
    if pleat and others and (pleat["efficiency"] or 0) < max(others):
        lines.append("efficiency %.4f, another's %.4f" % (pleat["efficiency"] or 0, max(others)))
    if saved and (saved["efficiency"] or 0) < side.goal:
        lines.append("efficiency %.4f with a plan, not %.3f" % (saved["efficiency"] or 0, side.goal))
    for name in ("pleat", "pleat-saved"):
        if name in runs and runs[name].get("losses_equal") is False:
            lines.append("%s: other losses than native's" % name)
    if told.get("cap") and not told["cap"].get("pleat", True):
        lines.append("out of memory under %d bytes" % told["cap"]["budget_bytes"])
    return ["%s: %s" % (side.name, line) for line in lines]


HEADER = ("workload", "allocator", "live GiB", "physical", "%", "device", "s/iteration", "x native",
          "2nd", "3rd", "first s", "calls", "steady", "losses")  # fmt: skip


def row(name, contender, told):
    pleat = told["pleat"] or {}
    second, third = ((told.get("learning_to_native") or []) + [None] * 2)[:2]
    return (
        name,
        contender + (" OOM" if told["out_of_memory"] else ""),
        cell(told["peak_allocated_bytes"], "%.3f", GIB),
        cell(told["peak_physical_bytes"], "%.3f", GIB),
        cell(told["efficiency"], "%.2f", 0.01),
        # In turns there is no figure of the device alone, but one of the process.
        cell(told["device_peak_bytes"] or told.get("process_peak_bytes"), "%.3f", GIB),
        cell(told["seconds_per_iteration"], "%.4f"),
        cell(told.get("seconds_to_native"), "%.3f"),
        cell(second, "%.2f"),
        cell(third, "%.2f"),
        cell(told["first_seconds"], "%.2f"),
        cell(told["driver_calls"] if contender != "async" else None),
        cell(told["steady_driver_calls"] if pleat else None),
        {True: "equal", False: "OTHER"}.get(told.get("losses_equal"), "-"),
    )


def compare(name, options, folder):
    """Runs a workload; returns its Side and its part of the answer."""
    side = Side(name, options, folder / (name + ".log"))
    plan = None
    if "pleat-saved" in options.allocators:
        plan = save_plan(options.command, side, folder)
    for _ in range(options.rounds):
        gpus = visible_gpus() if options.abreast else None
        side.round(options.allocators, plan, gpus, options.in_turns)
    told = {"runs": {one: side.figures(one) for one in side.runs}}
    if options.caps and "pleat" in side.runs:
        told["cap"] = side.capped()
    (folder / (name + ".json")).write_text(json.dumps(side.runs))
    return side, told


def merged(paths):
    """Workload -> its part of the answer, and what does not hold, of answers that --out wrote. A
    workload that stands in several is taken whole from the last of them."""
    answer, lines = {}, []
    for path in paths:
        try:
            read = json.loads(pathlib.Path(path).read_text())
            again = {one["workload"] for one in read["rows"]}
            again |= {line.split(":")[0] for line in read["missed"]}
            unknown = [one for one in sorted(again) if workload(one) is None]
            if unknown:
                raise ValueError("there is no workload " + ", ".join(unknown))
            answer = {name: told for name, told in answer.items() if name not in again}
            lines = [line for line in lines if line.split(":")[0] not in again] + read["missed"]
            for one in read["rows"]:
                name, contender = one.pop("workload"), one.pop("allocator")
                row(name, contender, one)  # has all that the table shows, or fails
                answer.setdefault(name, {"runs": {}})["runs"][contender] = one
            for name, told in read["caps"].items():
                answer[name]["cap"] = told
        except OSError as problem:
            raise Failed("%s cannot be read: %s" % (path, problem.strerror)) from None
        except KeyError as problem:
            raise Failed("%s is no answer that --out wrote: it has no %s" % (path, problem)) from None
        except (ValueError, TypeError, AttributeError) as problem:
            raise Failed("%s is no answer that --out wrote: %s" % (path, problem)) from None
    return {name: answer[name] for name in sorted(answer, key=place)}, lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    names = ", ".join(WORKLOADS)
    parser.add_argument("--only", metavar="NAME,...", help="some of: %s [all of these]; and JOB@SEED, a job of real.py" % names)
    parser.add_argument(
        "--allocators",
        metavar="NAME,...",
        help="some of: %s; heap is Pleat that learns nothing [native,expandable,pleat]" % ", ".join(CONTENDERS),
    )
    parser.add_argument("--rounds", type=int, metavar="N", help="turns that each one takes [1]")
    parser.add_argument(
        "--abreast",
        action="store_true",
        help="the allocators at the same time, each on a GPU of its own: what a busy machine does to "
        "one it does to all. GPUs change hands from round to round",
    )
    parser.add_argument(
        "--in-turns",
        action="store_true",
        help="the allocators at the same time on one GPU, whose memory must hold them all: each "
        "iteration under all of them, then the next, so that no more than seconds lie between what is "
        "compared. Pleat's threads have others' turns, too, to plan and map in",
    )
    parser.add_argument(
        "--short",
        action="store_true",
        help="only %s, one round of %s iterations" % (", ".join(SHORT), SHORT_ITERATIONS),
    )
    parser.add_argument(
        "--caps",
        action="store_true",
        help="also run each under %d %%%% above what is live, where that is less than the others take"
        % round(100 * (CAP_OVER_LIVE - 1)),
    )
    parser.add_argument(
        "--no-deterministic",
        dest="deterministic",
        action="store_false",
        help="kernels as they come; losses may then differ from run to run",
    )
    parser.add_argument(
        "--command",
        metavar="FILE",
        default=os.environ.get("PLEAT_COMMAND", HERE / "../../build/release/bin/pleat"),
        help="the command pleat, for saved plans [$PLEAT_COMMAND or build/release/bin/pleat]",
    )
    parser.add_argument("--check", action="store_true", help="exit 1 if something does not hold")
    parser.add_argument("--out", metavar="FILE", help="write the answer there as JSON")
    parser.add_argument(
        "--merge",
        nargs="+",
        metavar="FILE",
        help="run nothing: put together what --out wrote in several runs; of a workload that was run "
        "again the last counts",
    )
    parser.add_argument("--json", action="store_true", help="print the answer as JSON instead")
    parser.add_argument("--logs", metavar="FOLDER", help="for logs and all lines [a temporary one]")
    options = parser.parse_args()
    alone = [("--merge", options.merge, ("only", "allocators", "rounds", "abreast", "in_turns", "short", "caps", "logs")),
             ("--in-turns", options.in_turns, ("abreast",)),
             ("--short", options.short, ("only", "rounds"))]  # fmt: skip
    for option, given, others in alone:
        for name in others:
            if given and getattr(options, name) not in (None, False):
                parser.error("%s takes no --%s" % (option, name.replace("_", "-")))
    if options.out and not os.path.isdir(os.path.dirname(os.path.abspath(options.out))):
        parser.error("--out: there is no folder for %s" % options.out)
    if options.merge:
        return options
    default = list(SHORT if options.short else WORKLOADS)
    options.only = default if options.only is None else options.only.split(",")
    chosen = "native,expandable,pleat" if options.allocators is None else options.allocators
    options.allocators = chosen.split(",")
    for asked, names, known in (
        (options.only, WORKLOADS, lambda name: workload(name) is not None),
        (options.allocators, CONTENDERS, CONTENDERS.__contains__),
    ):
        for name in asked:
            if not known(name):
                parser.error("%r is none of: %s" % (name, ", ".join(names)))
            if asked.count(name) > 1:
                parser.error("%r is asked for twice" % name)
    options.rounds = 1 if options.rounds is None else options.rounds
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    if options.caps and "pleat" not in options.allocators:
        parser.error("--caps: the budget is of what is live under pleat, which is not among --allocators")
    if "pleat-saved" in options.allocators and shutil.which(options.command) is None:
        parser.error("--command: there is no program %s, which makes plans for pleat-saved" % options.command)
    wanted, there = len(options.allocators), len(visible_gpus())
    if options.abreast and there < wanted:
        parser.error("--abreast: %d allocators want as many GPUs, here are %d" % (wanted, there))
    if there == 0:
        parser.error("torch %s sees no GPU here; --merge needs none" % torch.__version__)
    return options


def run_all(options):
    """Runs what was chosen; workload -> its part of the answer, and what does not hold."""
    folder = pathlib.Path(options.logs or tempfile.mkdtemp(prefix="pleat-compare-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise Failed("--logs: %s: %s" % (folder, problem.strerror)) from None
    answer, lines = {}, []
    for name in options.only:
        try:
            side, told = compare(name, options, folder)
        except Failed as failure:
            lines.append("%s: %s" % (name, failure))
            say(failure)
            continue
        answer[name] = told
        lines += missed(side, told)
        if options.out:  # as far as it is known: the whole takes many minutes
            write(options.out, answer, lines)
    return answer, lines


def write(path, answer, lines):
    pathlib.Path(path).write_text(json.dumps(answer_of(answer, lines)) + "\n")


def main():
    options = parse()
    try:
        answer, lines = merged(options.merge) if options.merge else run_all(options)
    except Failed as failure:
        sys.exit("compare.py: %s" % failure)
    if options.out:
        write(options.out, answer, lines)
    if options.json:
        print(json.dumps(answer_of(answer, lines)))
    else:
        print_all(answer, lines)
    sys.exit(1 if options.check and lines else 0)


def answer_of(answer, lines):
    """The answer as one object: a row for each run, what ran under a cap, what does not hold."""
    rows = [
        dict(workload=name, allocator=one, **figures)
        for name, told in answer.items()
        for one, figures in told["runs"].items()
    ]
    caps = {name: told["cap"] for name, told in answer.items() if told.get("cap")}
    return {"rows": rows, "caps": caps, "missed": lines}


def print_all(answer, lines):
    runs = [(name, one, told) for name in answer for one, told in answer[name]["runs"].items()]
    print_table([HEADER] + [row(*each) for each in runs])
    for name, told in answer.items():
        if told.get("cap"):
            ran = ", ".join(
                "%s %s" % (one, "trains" if told["cap"][one] else "runs out of memory")
                for one in ("native", "expandable", "pleat")
                if one in told["cap"]
            )
            print("%s under %.3f GiB: %s" % (name, told["cap"]["budget_bytes"] / GIB, ran))
    for line in lines:
        print("does not hold: " + line)


if __name__ == "__main__":
    main()
