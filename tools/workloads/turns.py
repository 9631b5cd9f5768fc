"""What compare.py, real_suite.py and ranks_suite.py share: a job's programs under several allocators, which take turns
iteration by iteration, and the next job's, which import their libraries meanwhile; what an allocator wants of the
environment; tables. Without torch, so that figures can be judged where there is none.
"""

import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30
OUT_OF_MEMORY = 4  # the exit code, as the command's
TURN_ENDED = "turn ended"
# Iterations before these make the optimizer's state and the libraries' workspaces, or are learned.
STEADY_FROM = 4
# contender -> the allocator of its runs, where it is not one itself
SERVED_BY = {"pleat-saved": "pleat", "heap": "pleat", "again": "native"}
SETTINGS = {"expandable": "expandable_segments:True", "async": "backend:cudaMallocAsync"}


class Failed(Exception):
    """A run that ended otherwise than a job may, in one line."""


def settings(allocator):
    """The environment that an allocator wants: torch reads it when it is imported. 2.9 and later
    know the second name. `heap` is Pleat that learns nothing, so every request is the heap's."""
    if allocator == "heap":
        return {"PLEAT_CONF": "learn:off,keep:off"}
    if allocator == "pleat" and "keep:" not in os.environ.get("PLEAT_CONF", ""):
        # A run is not to be another one because of those before it.
        return {"PLEAT_CONF": ",".join(filter(None, [os.environ.get("PLEAT_CONF"), "keep:off"]))}
    text = SETTINGS.get(allocator)
    return {"PYTORCH_CUDA_ALLOC_CONF": text, "PYTORCH_ALLOC_CONF": text} if text else {}


# ---- programs ----


class Program:
    """A contender's run of a job: a process, whose ranks take a byte of standard input each for a turn."""

    ranks = 1

    def begin(self, line, log, environment):
        self.log = log
        with open(log, "a") as errors:
            errors.write("\n$ " + " ".join(line) + "\n")
            errors.flush()
            self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                                            env=dict(os.environ, **environment), text=True)

    def end(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.end()

    def turn(self):
        """Has all ranks take their turn; what they told at their end, where that was the last one."""
        with contextlib.suppress(BrokenPipeError):  # it ended; its exit code says how
            self.process.stdin.write("\n" * self.ranks)
            self.process.stdin.flush()
        waited_for, last = self.ranks, ""
        for line in self.process.stdout:
            waited_for -= line.rstrip() == TURN_ENDED
            if waited_for == 0:
                return None
            last = line
        return self.told(last)


class Run(Program):
    """That of a workload of this folder, by its script and options."""

    def __init__(self, arguments, log, contender, gpu=None, in_turns=False):
        allocator = SERVED_BY.get(contender, contender)
        self.name = " ".join([*arguments, "--allocator", allocator])
        line = [sys.executable, str(HERE / arguments[0]), *arguments[1:], "--allocator", allocator]
        line += ["--quiet", *(["--in-turns"] if in_turns else [])]
        only = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
        self.begin(line, log, {**settings(contender), **only})

    def told(self, text=""):
        """What the workload printed, after its end; it may have run out of memory."""
        text += self.process.communicate()[0]
        if self.process.returncode not in (0, OUT_OF_MEMORY):
            raise Failed("%s: exit %d, see %s" % (self.name, self.process.returncode, self.log))
        try:
            return json.loads(text.splitlines()[-1])
        except (ValueError, IndexError):
            raise Failed("%s: no JSON line, see %s" % (self.name, self.log)) from None


def take_turns(runs):
    """What programs told at their ends; their iterations take turns. `runs` may be begun as they are
    asked for: each is within its turn, then."""
    begun, told = [], []
    for one in runs:
        begun.append(one)
        told.append(one.turn())
    while None in told:
        for number, one in enumerate(begun):
            if told[number] is None:
                told[number] = one.turn()
    return told


# ---- jobs one after the other ----


class Job:
    """A job's programs, which import their libraries until their first turns, and a folder of its own."""

    def __init__(self, name):
        self.name, self.runs = name, {}  # by contender
        self.ending = contextlib.ExitStack()
        self.folder = pathlib.Path(self.ending.enter_context(tempfile.TemporaryDirectory()))

    def start(self, contender, run):
        self.runs[contender] = run
        self.ending.callback(run.end)

    def end(self):
        self.ending.close()

    def take_turns(self, seconds):
        """contender -> what its run told; Failed in one line, also where it took more seconds."""
        late = threading.Event()

        def stop():
            late.set()
            for one in list(self.runs.values()):
                one.end()

        watch = threading.Timer(seconds, stop)
        watch.start()
        try:
            return dict(zip(self.runs, take_turns(self.runs.values())))
        except (Failed, OSError, ValueError) as failure:
            what = "%s: its time ran out, %.0f seconds" % (self.name, seconds) if late.is_set() else str(failure)
            raise Failed(what) from None
        finally:
            watch.cancel()


def one_ahead(waiting, seconds, least, begin, finish):
    """Runs jobs until the time is over; what finish(job, seconds left) said of each, and which are left. begin(one, its
    number) is its Job, which begins one ahead. None is begun with fewer seconds left than `least`."""
    began, waiting, done, ahead = time.monotonic(), list(waiting), [], []
    try:
        while waiting or ahead:
            remain = seconds - (time.monotonic() - began)
            if remain < least:
                break
            while waiting and len(ahead) < 2:  # the job in turn, and the one whose programs begin
                one = waiting.pop(0)
                ahead.append((one, begin(one, len(done) + len(ahead))))
            done.append(finish(ahead[0][1], remain))
            ahead.pop(0)[1].end()
    finally:
        for _, job in ahead:
            job.end()
    return done, [one for one, _ in ahead] + waiting


# ---- figures ----


def ratios(one, native, first=STEADY_FROM, end=None):
    """Time taken by each iteration from the first on, native's being 1."""
    return [mine / other for mine, other in zip(one["seconds"][first:end], native["seconds"][first:end])]


def cell(value, form="%s", scale=1):
    return "-" if value is None else form % (value / scale if scale != 1 else value)


def print_table(rows):
    """The first two columns are words."""
    widths = [max(len(line[column]) for line in rows) for column in range(len(rows[0]))]
    for line in rows:
        left = [text.ljust(width) for text, width in zip(line[:2], widths)]
        print("  ".join(left + [text.rjust(w) for text, w in zip(line[2:], widths[2:])]))
