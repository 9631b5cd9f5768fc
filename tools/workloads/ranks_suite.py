#!/usr/bin/env python3
"""Runs parallel.py's jobs over all GPUs of this host under each allocator in turns and judges Pleat: ranks_suite.py.

Each job is run iteration by iteration under all allocators at the same time, on GPUs that hold them all; the next job's
programs import torch meanwhile. `pleat-kept` is a second run of `pleat`, which follows the plan that the first one left.
Every job becomes a line of JSON in --out as soon as it is done. Ends with a table of each job's worst rank and with what
does not hold; exit 1 if something does not.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
EXPERTS = "experts --inner 1408"  # 1.1 billion parameters of all ranks, as the others have
JOBS = ("ddp", "ddp --drawn", "fsdp", "fsdp --drawn", "tensor", "tensor --drawn", "1f1b", "interleaved", "zero-bubble",
        EXPERTS, EXPERTS + " --drawn", "ddp --drawn --recompute")
CONTENDERS = ("native", "expandable", "pleat", "pleat-kept")
# What must hold, native's seconds being 1: the steady median over all jobs and of each; and efficiency at least.
STEADY_OF_ALL, STEADY = 1.005, 1.01
EFFICIENCY = {"pleat": 0.98, "pleat-kept": 0.99}
STEADY_FROM = 4  # harness's: iterations before it set up or are learned
JOB_SECONDS = 120  # a job that takes longer hangs
LEFT_FOR_A_JOB = 40  # no job is begun with less time left
WHOLE = 120 * GIB  # a GPU of so much holds parallel.py's model under three allocators at once
FEWER = 8  # layers, on others


class Failed(Exception):
    """A run that ended otherwise than a job may, in one line."""


class Ranks:
    """A contender's run of a job: torchrun and its ranks, each of which takes one byte of standard input a turn."""

    def __init__(self, job, contender, count, folder, more):
        import harness  # which imports torch; figures are judged without

        self.name, self.count = "%s, %s" % (job, contender), count
        self.turn_ended, self.out_of_memory = harness.TURN_ENDED, harness.OUT_OF_MEMORY
        self.log = folder / (contender + ".log")
        allocator = "pleat" if contender == "pleat-kept" else contender
        # The folder is this job's alone, so the kept plan of another suite's run is not found.
        self.out = str(folder / (allocator + ".%r.json"))
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
                str(HERE / "parallel.py"), "--job", *job.split(), "--deterministic", "--quiet", "--in-turns",
                "--allocator", allocator, "--out", self.out, *more]
        environment = dict(os.environ, NCCL_NVLS_ENABLE="0", **harness.settings(allocator))
        if allocator == "pleat":
            environment["PLEAT_CONF"] = "keep:on"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                                            env=environment, text=True)

    def end(self):
        self.process.terminate()  # torchrun ends its workers
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def turn(self):
        """Has all ranks take their turn; what they told at their end, where that was the last one."""
        with contextlib.suppress(BrokenPipeError):  # it ended; its exit code says how
            self.process.stdin.write("\n" * self.count)
            self.process.stdin.flush()
        waited_for = self.count
        for line in self.process.stdout:
            waited_for -= line.rstrip() == self.turn_ended
            if waited_for == 0:
                return None
        return self.told()

    def told(self):
        if self.process.wait():
            raise Failed("%s: exit %d: %s" % (self.name, self.process.returncode, self.said()))
        return [json.loads(pathlib.Path(self.out.replace("%r", str(rank))).read_text()) for rank in range(self.count)]

    def said(self):
        """The line that tells why it failed: the last one that is an error's, and not torchrun's of it."""
        text = self.log.read_text()
        if "exitcode: %d)" % self.out_of_memory in text:
            return "a GPU had not the memory for all allocators at once: smaller, as with --layers, or fewer of them"
        lines = [line for line in text.splitlines() if "Error" in line and "ChildFailedError" not in line]
        return lines[-1] if lines else "see its log"


def take_turns(runs):
    """What each contender's ranks told."""
    told = {}
    while len(told) < len(runs):
        for name, one in runs.items():
            if name not in told:
                answer = one.turn()
                if answer is not None:
                    told[name] = answer
    return told


class Job:
    """A job's programs, which import torch until their first turns."""

    def __init__(self, job, options):
        self.job, self.options = job, options
        self.ending = contextlib.ExitStack()
        self.folder = pathlib.Path(self.ending.enter_context(tempfile.TemporaryDirectory()))
        self.runs = {name: self.start(name) for name in options.allocators if name != "pleat-kept"}

    def start(self, contender):
        one = Ranks(self.job, contender, self.options.ranks, self.folder, self.options.more)
        self.ending.callback(one.end)
        return one

    def keep_logs(self):
        """What its programs wrote, beside the lines of JSON: the folder goes."""
        for log in self.folder.glob("*.log") if self.options.out else ():
            name = "%s-%s" % (self.job.replace(" ", "-"), log.name)
            with contextlib.suppress(OSError):  # a job that took too long is being ended
                shutil.copyfile(log, pathlib.Path(self.options.out).with_name(name))

    def run(self, seconds):
        """What became of it, as the line of JSON has it."""
        told = {"job": self.job, "ranks": self.options.ranks, "more": self.options.more}
        late = threading.Event()

        def stop():
            late.set()
            self.ending.close()

        watch = threading.Timer(seconds, stop)
        watch.start()
        try:
            told["runs"] = take_turns(self.runs)
            if "pleat-kept" in self.options.allocators:
                told["runs"].update(take_turns({"pleat-kept": self.start("pleat-kept")}))
        except (Failed, OSError, ValueError) as failure:
            told["error"] = "%s: its time ran out, %.0f seconds" % (self.job, seconds) if late.is_set() else str(failure)
            self.keep_logs()
        finally:
            watch.cancel()
            self.ending.close()
        return told


def run_all(options):
    began, done, ahead, waiting = time.monotonic(), [], [], list(options.jobs)
    try:
        while waiting or ahead:
            seconds = options.seconds - (time.monotonic() - began)
            if seconds < LEFT_FOR_A_JOB:
                break
            while waiting and len(ahead) < 2:
                ahead.append(Job(waiting.pop(0), options))
            told = ahead.pop(0).run(min(seconds, JOB_SECONDS))
            done.append(told)
            print("%s%s" % (told["job"], ": " + told["error"] if "error" in told else ""), file=sys.stderr, flush=True)
            if options.out:
                with open(options.out, "a") as out:
                    out.write(json.dumps(told) + "\n")
    finally:
        for one in ahead:
            one.ending.close()
    return done, [one.job for one in ahead] + waiting


def ratios(one, native):
    """Of the first rank's steady iterations; all ranks wait for each other in each."""
    pairs = list(zip(one[0]["seconds"], native[0]["seconds"]))[STEADY_FROM:]
    return [mine / other for mine, other in pairs]


def shown(figure, form="%.4f"):
    return "-" if figure is None else form % figure


def gibibytes(figure):
    return shown(figure and figure / GIB, "%.3f")


def times_native(runs, contender):
    """The steady median of a contender's seconds, native's being 1. A plan that was kept is followed alone, at another
    time than native's iterations: None."""
    if "native" not in runs or contender == "pleat-kept":
        return None
    return statistics.median(ratios(runs[contender], runs["native"]))


def row_of(told, contender):
    """What the table shows of a contender."""
    ranks = told["runs"][contender]
    worst = min(ranks, key=lambda one: one.get("efficiency") or 0)  # the processor's allocator tells none
    return (told["job"], contender, str(worst["rank"]), gibibytes(worst.get("peak_allocated_bytes")),
            gibibytes(worst.get("peak_reserved_bytes")), shown(worst.get("efficiency")),
            shown(statistics.median(ranks[0]["seconds"][STEADY_FROM:])), shown(times_native(told["runs"], contender)))


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
            every += ratios(told["runs"]["pleat"], told["runs"]["native"])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) if at < 2 else text.rjust(width)
                        for at, (text, width) in enumerate(zip(row, widths))))
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
