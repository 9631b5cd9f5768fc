"""Plan files: their names in jobs of many processes and devices, and saving them.

In a name %r stands for the process's rank, as its launcher says it (0 in a job of one process), %d for
the device, and in what is written %p for the process itself, which tells those apart that no launcher
gave a rank. Where a job has several ranks and the name neither %r nor %p, what is written gets ".RANK" at
its end, and what is read is FILE.RANK where that is there, else FILE. A process's first device has the
name itself, further ones ".dN" behind it, where the name has no %d.
"""

import glob
import os
import re
import sys
import threading

from . import _ends

# Iterations that are recorded for a plan. Of a job whose requests differ from one to the next each
# shows the planner something new; of one whose last SAME iterations were alike these are enough.
ITERATIONS = 32
STEADY_ITERATIONS = 8
SAME = 4
# A recording of no more than FEW is not for a plan, and a program that marks no iterations would go on
# recording: 32 MiB of them are enough to compare with.
FEW = 3
FEW_EVENTS = 1 << 20


# Variables for a process's rank and how many there are: torchrun's, Open MPI's, MPICH's, srun's. A script
# that srun starts often finds WORLD_SIZE alone.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


def launched(environment):
    """(rank, ranks), as text."""
    for rank, ranks in LAUNCHERS:
        if rank in environment and ranks in environment:
            return environment[rank], environment[ranks]
    return environment.get("RANK", "0"), environment.get("WORLD_SIZE", "1")


def rank(environment=os.environ):
    return launched(environment)[0]


def many(environment=os.environ):
    return launched(environment)[1] not in ("", "1")


def told_rank(environment=os.environ):
    """The rank, or None where nobody speaks of ranks."""
    return rank(environment) if many(environment) or "RANK" in environment else None


def written(name, environment=os.environ):
    """The file that this process writes for `name`."""
    if "%r" in name or "%p" in name:
        return name.replace("%r", rank(environment)).replace("%p", str(os.getpid()))
    return "%s.%s" % (name, rank(environment)) if many(environment) else name


def log(name, environment=os.environ):
    """What the setting `log` is in this process: libpleat fills %p and %d in."""
    if name == "auto" or "%p" in name:
        return name.replace("%r", rank(environment))
    return written(name, environment)


def settings(conf, environment=os.environ):
    """Pleat's settings as this process has them: with a log of its own."""
    own = (setting.split(":", 1) for setting in conf.split(","))
    return ",".join("log:" + log(rest[0], environment) if key == "log" and rest else ":".join([key, *rest])
                    for key, *rest in own)


def read(name, environment=os.environ):
    """The file that this process reads for `name`."""
    own = written(name, environment)
    return own if "%r" in name or os.path.exists(own.replace("%d", "0")) else name


def numbered(name):
    """The files that there are of a name, with a number in the place of each %r and %d."""
    parts = re.split("%[rd]", name)
    exact = re.compile("[0-9]+".join(map(re.escape, parts)))
    found = glob.glob("[0-9]*".join(map(glob.escape, parts)))
    return sorted(path for path in found if exact.fullmatch(path) and os.path.isfile(path))


def of_devices(name):
    """The files of a name that read() returned, the first ones first."""
    return numbered(name) + (numbered(name + ".d%d") if "%d" not in name else [])


def of_ranks(name):
    """The files that processes of a job read for `name`, whatever their ranks are. Where there is one of the
    name itself, those behind it with a rank may be of another job."""
    for own in (name, name + ".%r"):
        if numbered(own):
            return of_devices(own)
    return []


def cannot_write(path):
    """Why a file could not be written at the end; None: it can, or there is none to write."""
    folder = os.path.dirname(os.path.abspath(path))
    if not path or "%" in folder:
        return None
    if not os.path.isdir(folder):
        return "there is no folder %r" % folder
    if os.path.isdir(path):
        return "%r is a folder, not a file" % path
    # A file is replaced, which takes its folder; what is none (/dev/stdout) is written into.
    if not os.access(folder, os.W_OK) and not os.access(path, os.W_OK):
        return "nothing can be written in %r" % folder
    return None


def of_device(name, device, first):
    if "%d" in name:
        return name.replace("%d", str(device))
    return name if device == first else "%s.d%d" % (name, device)


class Saver:
    """Writes the plan of what was recorded: once the recording is complete, or else at the end."""

    def __init__(self, library, save, name):
        self.library = library
        self.save = save
        self.name = name
        self.thread = None
        self.lock = threading.Lock()
        self.marks = 0
        self.alike = 0  # iterations in a row that asked for as many bytes as the one before
        self.begun_at = self.bytes = 0
        self.saved = False
        self.process = os.getpid()
        self.end = _ends.at_end(self.finish)

    def is_enough(self):
        """At a mark: whether what was recorded shows all there is."""
        now = self.library.pleat_torch_taken(-1)
        bytes, self.begun_at = now - self.begun_at, now
        self.alike = self.alike + 1 if bytes == self.bytes else 0
        self.bytes = bytes
        self.marks += 1
        if self.marks >= STEADY_ITERATIONS and self.alike >= SAME:
            return True
        return bool(self.library.pleat_torch_recorded(self.library.pleat_torch_first_device()))

    def look(self):
        """At a mark: begins to save when there is nothing more to wait for."""
        used = self.library.pleat_torch_first_device() >= 0
        if used and self.thread is None and self.is_enough():
            # Planning takes seconds of one processor, and the interpreter is free meanwhile.
            self.thread = threading.Thread(target=self.write, name="pleat-save", daemon=True)
            self.thread.start()

    def write(self):
        with self.lock:
            if self.saved:
                return
            try:
                # A process that was forked may have been told its rank since.
                self.save(written(self.name))
                self.saved = True
            except (OSError, RuntimeError) as problem:
                print("pleat: no plan was saved: %s" % problem, file=sys.stderr)
                self.saved = True

    def finish(self):
        if self.thread is not None:
            self.thread.join()
        if self.library.pleat_torch_first_device() >= 0:
            self.write()
        elif "PLEAT_RUN" not in os.environ and os.getpid() == self.process:
            # Under it the first process says so, and a fork may have another purpose.
            print("pleat: no plan was saved: nothing was allocated on a GPU", file=sys.stderr)
