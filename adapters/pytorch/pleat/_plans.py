"""Plan files: their names in jobs of many processes and devices, and saving them.

In a name %r stands for the process's rank, as its launcher says it (0 in a job of one process), %w for how many
ranks there are, %d for the device, and in what is written %p for the process itself, which tells those apart that
no launcher gave a rank. A folder with such a sign in its name is made. Where a job has several ranks and the name neither %r nor %p, what is written gets ".RANK" at
its end, and what is read is FILE.RANK where that is there, else FILE. A process's first device has the
name itself, further ones ".dN" behind it, where the name has no %d.

Ranks that asked for the same memory share one plan: the first to have it writes it as FILE.equal-HASH (in the place
of %r where the name has that), and the file of each rank is a hard link to it. A rank that has no plan of its own, one
more than were recorded say, takes that of the others where these all have the same.
"""

import contextlib
import errno
import glob
import os
import re
import shutil
import threading
import time

from . import _ends, _files, _stderr

# Iterations that are recorded for a plan at most: of a job whose requests differ from one to the next
# each shows the planner something new.
ITERATIONS = 32
# A recording of no more than FEW is not for a plan, and a program that marks no iterations would go on
# recording: 32 MiB of them are enough to compare with.
FEW = 3
FEW_EVENTS = 1 << 20


# Variables for a process's rank and how many there are: torchrun's and Ray's, MVAPICH's, Open MPI's, MPICH's, srun's. A script
# that srun starts often finds WORLD_SIZE alone.
LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)

BEGUN = time.time()  # of this process, for Pleat


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


def sized(name, environment=os.environ):
    """A name with the number of ranks in the place of %w."""
    return name.replace("%w", launched(environment)[1] or "1")


def told_rank(environment=os.environ):
    """The rank, or None where nobody speaks of ranks."""
    return rank(environment) if many(environment) or "RANK" in environment else None


def written(name, environment=os.environ):
    """The file that this process writes for `name`."""
    name = sized(name, environment)
    if "%r" in name or "%p" in name:
        return name.replace("%r", rank(environment)).replace("%p", str(os.getpid()))
    return "%s.%s" % (name, rank(environment)) if many(environment) else name


def log(name, environment=os.environ):
    """What the setting `log` is in this process: libpleat fills %p and %d in."""
    if name == "auto" or "%p" in name:
        return sized(name, environment).replace("%r", rank(environment))
    return written(name, environment)


def split(conf):
    """The settings of a list; spaces may stand behind its commas."""
    return [setting.lstrip(" ") for setting in conf.split(",")] if conf else []


def settings(conf, environment=os.environ):
    """Pleat's settings as this process has them: with a log of its own."""
    made = []
    for key, *rest in (setting.split(":", 1) for setting in split(conf)):
        if key == "log" and rest:
            own = log(rest[0], environment)
            make_folder(rest[0], own)
            rest = [own]
        made.append(":".join([key, *rest]))
    return ",".join(made)


def completed(conf, canary, keeps):
    """The settings with those that PyTorch's programs have where nothing else is said."""
    made = split(conf)
    said = [setting.split(":")[0] for setting in made]
    made += ["canary:on"] if canary else []
    made += [key + ":on" for key, wanted in (("share", True), ("keep", keeps)) if wanted and key not in said]
    return ",".join(made)


def read(name, environment=os.environ):
    """The file that this process reads for `name`."""
    name = sized(name, environment)
    own = written(name, environment)
    if os.path.exists(own.replace("%d", "0")):
        return own
    return (of_all(name) if many(environment) else None) or (own if "%r" in name else name)


def is_told_later(name, environment=os.environ):
    """Whether only ranks have plans of that name, and this process has been told none yet."""
    return told_rank(environment) is None and not numbered(read(name, environment)) and bool(of_ranks(name))


def is_of_another_size(name, environment=os.environ):
    """Whether a name has plans by the number of ranks, and none for that of this job: it is planned by none, and may
    leave one."""
    return "%w" in name and not numbered(read(name, environment))


# ---- one plan for ranks that ask for the same ----


def shared(name, mark):
    """Where the plan lies that ranks share."""
    return name.replace("%r", mark) if "%r" in name else "%s.%s" % (name, mark)


def of_all(name):
    """The plan that all ranks have, where they have the same; else None."""
    if os.path.exists(name.replace("%d", "0")):
        return None
    parts = [glob.escape(part) for part in shared(name, "equal-\0").replace("%d", "0").split("\0")]
    found = glob.glob(("[0-9a-f]" * 16).join(parts))
    if len(found) != 1:
        return None
    print_of = re.search("equal-([0-9a-f]{16})", found[0]).group(1)
    return shared(name, "equal-" + print_of)


def is_shared(name, environment=os.environ):
    return many(environment) and "%p" not in name


def link(common, own):
    """Makes `own` the same file as `common`, or a copy where there are no links."""
    if os.path.exists(own) and os.path.samefile(common, own):
        return  # Where they are one file a rename does nothing, and leaves both names.
    made = _files.beside(own)
    try:
        try:
            os.link(common, made)
        except OSError:
            shutil.copyfile(common, made)
        os.replace(made, own)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(made)
        raise


def make_folder(name, path):
    """That of a file, where a sign in the name stands for it, and this process knows what for."""
    if "%" in os.path.dirname(name) and "%" not in os.path.dirname(path):
        os.makedirs(os.path.dirname(path), exist_ok=True)


def is_earlier(common):
    """Says whether this run has yet to write a plan: there is none, or an earlier run's, which may be of another release
    or damaged, and which another rank may remove meanwhile."""
    try:
        return os.stat(common).st_mtime < BEGUN
    except FileNotFoundError:
        return True


def save(name, device, first, fingerprint, write, environment=os.environ):
    """Saves a device's plan, by write(path), unless a rank that asked for the same has."""
    own = of_device(written(name, environment), device, first)
    make_folder(name, own)
    if not is_shared(name, environment):
        write(own)
        return
    common = of_device(shared(sized(name, environment), "equal-" + fingerprint), device, first)
    make_folder(name, common)
    if is_earlier(common):
        write(common)
    link(common, own)


def forget_old(name, since, environment=os.environ):
    """Once a job: what ranks of an earlier start shared. Their files keep it, as far as they were not replaced."""
    if not is_shared(name, environment) or rank(environment) != "0":
        return
    name = sized(name, environment)
    for path in glob.glob("*".join(glob.escape(part) for part in shared(name, "equal-\0").split("\0"))
                          .replace("%d", "*") + "*"):
        with contextlib.suppress(OSError):
            if os.stat(path).st_mtime < since and re.search("equal-[0-9a-f]{16}", path):
                os.unlink(path)


def numbered(name):
    """The files that there are of a name, with a number in the place of each %r, %w and %d."""
    parts = re.split("%[rwd]", name)
    exact = re.compile("[0-9]+".join(map(re.escape, parts)))
    found = glob.glob("[0-9]*".join(map(glob.escape, parts)))
    return sorted(path for path in found if exact.fullmatch(path) and os.path.isfile(path))


def of_devices(name):
    """The files of a name that read() returned, the first ones first."""
    return numbered(name) + (numbered(name + ".d%d") if "%d" not in name else [])


def of_ranks(name):
    """The files that processes of a job read for `name`, whatever their ranks are; of one that ranks share the first name.
    Where there is one of the name itself, those behind it with a rank may be of another job."""
    for own in (name, name + ".%r"):
        if numbered(own):
            return distinct(of_devices(own))
    return []


def distinct(names):
    """The first name of each file that there is."""
    found = {}
    for name in names:
        with contextlib.suppress(OSError):
            status = os.stat(name)
            found.setdefault((status.st_dev, status.st_ino), name)
    return list(found.values())


def cannot_write(path):
    """Why a file could not be written at the end; None: it can, or there is none to write. pleat__file_check, by which
    the command asks the same, is in libpleat, which is loaded only once a program has torch, and shows no such function."""
    place = path
    if os.path.islink(path) and not os.path.exists(path):  # the file is made where it leads
        place = os.path.realpath(path)
        if os.path.islink(place):
            return "%r: %s" % (path, os.strerror(errno.ELOOP))
    folder = os.path.abspath(os.path.dirname(place))
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
    """Writes the plan of what was recorded: once that is enough, or else at the end. `fingerprints` returns those by which
    ranks share plans, and `save` is given the plan's name and them."""

    def __init__(self, library, save, name, fingerprints):
        self.library = library
        self.save = save
        self.name = name
        self.fingerprints = fingerprints
        self.taken = None  # fingerprints, once there is enough
        self.thread = None
        self.lock = threading.Lock()
        self.saved = False
        self.begun = time.time()
        self.process = os.getpid()
        self.end = _ends.at_end(self.finish)

    def look(self):
        """At a mark: begins to save when there is nothing more to wait for."""
        first = self.library.pleat_torch_first_device()
        if first >= 0 and self.thread is None and self.library.pleat_torch_recorded_enough(first):
            # Recording goes on, and behind the mark each rank has come to another request.
            with contextlib.suppress(RuntimeError):  # The plan says what is wrong.
                self.taken = self.fingerprints() if many() else None
            # Planning takes seconds of one processor, and the interpreter is free meanwhile.
            self.thread = threading.Thread(target=self.write, name="pleat-save", daemon=True)
            self.thread.start()

    def write(self):
        with self.lock:
            if self.saved:
                return
            try:
                # A process that was forked may have been told its rank since.
                self.save(self.name, self.taken or self.fingerprints())
                forget_old(self.name, self.begun)
                self.saved = True
            except (OSError, RuntimeError) as problem:
                _stderr.say("pleat: no plan was saved: %s" % problem)
                self.saved = True

    def finish(self):
        if self.thread is not None:
            self.thread.join()
        if self.library.pleat_torch_first_device() >= 0:
            self.write()
        elif "PLEAT_RUN" not in os.environ and os.getpid() == self.process:
            # Under it the first process says so, and a fork may have another purpose.
            _stderr.say("pleat: no plan was saved: nothing was allocated on a GPU")
