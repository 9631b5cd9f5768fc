#!/usr/bin/env python3
"""Runs parallel.py's jobs over all GPUs of this host under each allocator in turns and judges Pleat: ranks_suite.py.

Each job is run iteration by iteration under all allocators at the same time, on GPUs that hold them all; the next job's
programs import torch meanwhile. `pleat-kept` is a second run of `pleat`, which follows the plan that the first one left.
Every job becomes a line of JSON in --out as soon as it is done. Ends with a table of each job's worst rank and with what
does not hold; exit 1 if something does not.
"""

import argparse
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import time

import turns
from turns import GIB, STEADY_FROM, Failed, cell, print_table, ratios

EXPERTS = "experts --inner 1408"  # 1.1 billion parameters of all ranks, as the others have
JOBS = ("ddp", "ddp --drawn", "fsdp", "fsdp --drawn", "tensor", "tensor --drawn", "1f1b", "interleaved", "zero-bubble",
        EXPERTS, EXPERTS + " --drawn", "ddp --drawn --recompute")
CONTENDERS = ("native", "expandable", "pleat", "pleat-kept")
# What must hold, native's seconds being 1: the steady median over all jobs and of each; and efficiency at least.
STEADY_OF_ALL, STEADY = 1.005, 1.01
EFFICIENCY = {"pleat": 0.98, "pleat-kept": 0.99}
JOB_SECONDS = 120  # a job that takes longer hangs
LEFT_FOR_A_JOB = 40  # no job is begun with less time left
WHOLE = 120 * GIB  # a GPU of so much holds parallel.py's model under three allocators at once
FEWER = 8  # layers, on others


class Ranks(turns.Program):
    """A contender's run of a job: torchrun and its ranks."""

    def __init__(self, job, contender, count, folder, more):
        self.name, self.ranks = "%s, %s" % (job, contender), count
        allocator = "pleat" if contender == "pleat-kept" else contender
        # The folder is this job's alone, so the kept plan of another suite's run is not found.
        self.out = str(folder / (allocator + ".%r.json"))
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
                str(turns.HERE / "parallel.py"), "--job", *job.split(), "--deterministic", "--quiet", "--in-turns",
                "--allocator", allocator, "--out", self.out, *more]
        environment = dict(turns.settings(allocator), NCCL_NVLS_ENABLE="0")
        if allocator == "pleat":
            environment["PLEAT_CONF"] = "keep:on"
        self.begin(line, folder / (contender + ".log"), environment)

    def end(self):
        self.process.terminate()  # torchrun ends its workers
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            super().end()

    def told(self, last):
        if self.process.wait():
            raise Failed("%s: exit %d: %s" % (self.name, self.process.returncode, self.said()))
        return [json.loads(pathlib.Path(self.out.replace("%r", str(rank))).read_text()) for rank in range(self.ranks)]

    def said(self):
        """The line that tells why it failed: the last one that is an error's, and not torchrun's of it."""
        text = self.log.read_text()
        if "exitcode: %d)" % turns.OUT_OF_MEMORY in text:
            return "a GPU had not the memory for all allocators at once: smaller, as with --layers, or fewer of them"
        lines = [line for line in text.splitlines() if "Error" in line and "ChildFailedError" not in line]
        return lines[-1] if lines else "see its log"


class Job(turns.Job):
    """All contenders' ranks of a job; the plan that Pleat's leave is followed behind them."""

    def __init__(self, job, options):
        super().__init__(job)
        self.options = options
        for contender in options.allocators:
            if contender != "pleat-kept":
                self.begin(contender)

    def begin(self, contender):
        self.start(contender, Ranks(self.name, contender, self.options.ranks, self.folder, self.options.more))

    def keep_logs(self):
        """What its programs wrote, beside the lines of JSON: the folder goes."""
        for log in self.folder.glob("*.log") if self.options.out else ():
            name = "%s-%s" % (self.name.replace(" ", "-"), log.name)
            shutil.copyfile(log, pathlib.Path(self.options.out).with_name(name))

    def run(self, seconds):
        """What became of it, as the line of JSON has it."""
        told = {"job": self.name, "ranks": self.options.ranks, "more": self.options.more}
        until = time.monotonic() + seconds
        try:
            told["runs"] = self.take_turns(seconds)
            if "pleat-kept" in self.options.allocators:
                self.runs = {}
                self.begin("pleat-kept")
                told["runs"].update(self.take_turns(until - time.monotonic()))
        except Failed as failure:
            told["error"] = str(failure)
            self.keep_logs()
        return told


def finish(job, options, seconds):
    told = job.run(min(seconds, JOB_SECONDS))
    print("%s%s" % (told["job"], ": " + told["error"] if "error" in told else ""), file=sys.stderr, flush=True)
    if options.out:
        with open(options.out, "a") as out:
            out.write(json.dumps(told) + "\n")
    return told


def run_all(options):
    return turns.one_ahead(options.jobs, options.seconds, LEFT_FOR_A_JOB, lambda job, number: Job(job, options),
                           lambda job, seconds: finish(job, options, seconds))


def times_native(runs, contender):
    """The steady median of a contender's seconds, native's being 1. A plan that was kept is followed alone, at another
    time than native's iterations: None."""
    if "native" not in runs or contender == "pleat-kept":
        return None
    return statistics.median(of_first(runs, contender))


def of_first(runs, contender):
    """Ratios of the first rank's steady iterations; all ranks wait for each other in each."""
    return ratios(runs[contender][0], runs["native"][0])


def row_of(told, contender):
    """What the table shows of a contender."""
    ranks = told["runs"][contender]
    worst = min(ranks, key=lambda one: one.get("efficiency") or 0)  # the processor's allocator tells none
    return (told["job"], contender, str(worst["rank"]), cell(worst.get("peak_allocated_bytes"), "%.3f", GIB),
            cell(worst.get("peak_reserved_bytes"), "%.3f", GIB), cell(worst.get("efficiency"), "%.4f"),
            cell(statistics.median(ranks[0]["seconds"][STEADY_FROM:]), "%.4f"),
            cell(times_native(told["runs"], contender), "%.4f"))


def missed_by(runs, contender):
    """What does not hold of one of Pleat's."""
    ranks, native, expandable = runs[contender], runs.get("native"), runs.get("expandable")
    missed, times = [], times_native(runs, contender)
    for number, one in enumerate(ranks):
        if one["efficiency"] < EFFICIENCY[contender]:
            missed.append("rank %d: efficiency %.4f" % (number, one["efficiency"]))
        if expandable and one["peak_reserved_bytes"] > expandable[number]["peak_reserved_bytes"]:
            missed.append("rank %d takes more memory than with expandable segments" % number)
    if native and ranks[0]["losses"] != native[0]["losses"]:
        missed.append("other losses than native's")
    if times and times > STEADY:
        missed.append("%.4f of native's seconds" % times)
    return missed


def summarize(done, left):
    rows = [("job", "allocator", "worst rank", "live GiB", "physical GiB", "efficiency", "seconds", "to native's")]
    missed = ["not run, for want of time: " + job for job in left]
    every = []
    for told in done:
        if "error" in told:
            missed.append(told["error"])
            continue
        for contender in told["runs"]:
            rows.append(row_of(told, contender))
            if contender in EFFICIENCY:
                missed += ["%s, %s: %s" % (told["job"], contender, what) for what in missed_by(told["runs"], contender)]
        if {"native", "pleat"} <= set(told["runs"]):
            every += of_first(told["runs"], "pleat")
    print_table(rows)
    if every:
        print("pleat over all: steady median %.4f of native's" % statistics.median(every))
        if statistics.median(every) > STEADY_OF_ALL:
            missed.append("over all: more than %.3f of native's seconds" % STEADY_OF_ALL)
    for line in missed:
        print("does not hold: " + line)
    return not missed


def memory_of_gpus():
    import torch

    return [torch.cuda.get_device_properties(number).total_memory for number in range(torch.cuda.device_count())]


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--jobs", metavar="JOB,...", type=lambda text: text.split(","), default=list(JOBS),
                        help="parallel.py's jobs, with their options [%s]" % ",".join(JOBS))
    parser.add_argument("--allocators", metavar="NAME,...", type=lambda text: text.split(","), default=list(CONTENDERS),
                        help="some of them [%s]" % ",".join(CONTENDERS))
    parser.add_argument("--ranks", type=int, metavar="N", help="ranks of a job [the number of GPUs]")
    parser.add_argument("--seconds", type=float, default=1800, metavar="S", help="begin no job that would end later [1800]")
    parser.add_argument("--out", metavar="FILE", help="add a line of JSON a job")
    parser.add_argument("more", nargs="*", metavar="OPTION", help="more of parallel.py's options, behind -- "
                        "[--layers %d on GPUs of less than %d GiB each]" % (FEWER, WHOLE // GIB))
    options = parser.parse_args()
    unknown = set(options.allocators) - set(CONTENDERS)
    if unknown:
        parser.error("--allocators: %s: none of %s" % (", ".join(sorted(unknown)), ", ".join(CONTENDERS)))
    if "pleat-kept" in options.allocators and "pleat" not in options.allocators:
        parser.error("--allocators: pleat-kept follows what pleat left")
    has_layers = any(one.split("=")[0] == "--layers" for one in options.more)
    gpus = memory_of_gpus() if options.ranks is None or not has_layers else []
    options.ranks = len(gpus) if options.ranks is None else options.ranks
    if options.ranks < 1:
        parser.error("--ranks: at least 1; this machine has no GPU")
    if not has_layers and gpus and min(gpus) < WHOLE:
        options.more += ["--layers", str(FEWER)]
    return options


if __name__ == "__main__":
    sys.exit(0 if summarize(*run_all(parse())) else 1)
