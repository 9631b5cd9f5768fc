"""The first process of a job says at its end what its ranks took together, or, under `pleat run`, that nothing was
served and what is missing so.

The others (torchrun's workers, say) tell it by a line each in a file of its memory, which has no name, is reached
through /proc, and is gone with the process however that ends.
"""

import atexit
import fcntl
import json
import os
import stat
import sys

from . import _ranks, _stderr

# Options of `pleat run` that name a file, and what is written there.
OUTPUTS = {"save_plan": "the plan", "report": "the report", "counters": "the counters", "log": "the log"}
BOARD = "PLEAT_RUN_BOARD"  # the variable by which the others find the file: process, descriptor, inode
MOST_BYTES = 256 << 20  # that are read of it: some 100,000 ranks

unserved = ""  # why this process's torch is not served, which was said
is_served = False  # whether this process was, which says so by itself


class Board:
    """The file that others write a line each into."""

    def __init__(self, environment):
        made = os.memfd_create("pleat-ranks", os.MFD_CLOEXEC)
        # Not in the place of a standard file that the program was begun without.
        self.file = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, 3)
        os.close(made)
        self.inode = os.fstat(self.file).st_ino
        self.process = os.getpid()
        environment[BOARD] = "%d:%d:%d" % (self.process, self.file, self.inode)

    def lines(self):
        """What was written; [] also where the program has closed the descriptor, which may be another file's now."""
        try:
            if os.fstat(self.file).st_ino != self.inode:
                return []
            text = os.pread(self.file, MOST_BYTES, 0)
        except OSError:
            return []
        return text.decode(errors="replace").splitlines()


def listen(environment):
    """In the first process: asks to be told, and tells at the end. Under `pleat run` (PLEAT_RUN_PID is this process)
    it also says that nothing was served."""
    if BOARD in environment or environment.get("PLEAT_RUN_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        board = Board(environment)
    except (AttributeError, OSError):
        return None  # Without it it would not know of others, and keeps silent.
    atexit.register(tell, board, dict(environment))
    return board


def served(environment, told=None):
    """This process was served; `told` is what it has to say, of _ranks.record()."""
    global is_served
    is_served = True
    try:
        process, file, inode = environment.get(BOARD, "").split(":")
        path = "/proc/%d/fd/%d" % (int(process), int(file))
        out = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError):
        return  # There is no first process that listens, or it has ended.
    try:
        found = os.fstat(out)
        # The descriptor may be another file's by now.
        if stat.S_ISREG(found.st_mode) and found.st_ino == int(inode) and found.st_nlink == 0:
            os.write(out, (json.dumps(told or {}) + "\n").encode())
    except OSError:
        pass
    finally:
        os.close(out)


def reason():
    if unserved:
        return unserved
    return "no tensor was made there" if "torch" in sys.modules else "torch was not imported"


def missing(environment):
    asked = [(what, environment.get("PLEAT_RUN_" + name.upper())) for name, what in OUTPUTS.items()]
    return [what if path == "auto" else "%s %s" % (what, path) for what, path in asked if path]


def tell_nothing(environment):
    """Under `pleat run` alone: with PLEAT=1 whatever imports torch comes here."""
    lost = missing(environment)
    if "PLEAT_RUN_PID" not in environment or environment["PLEAT_RUN"] == "quiet" and not lost:
        return
    text = "pleat run: nothing was allocated on a GPU: %s" % reason()
    if lost:
        text += "; so not written: " + ", ".join(lost)
    _stderr.say(text)


def tell(board, environment):
    if os.getpid() != board.process:
        return  # A fork, which has its parent's handlers.
    lines = board.lines()
    if not lines:
        if not is_served:  # or the program has closed the file
            tell_nothing(environment)
    elif environment.get("PLEAT_RUN") != "quiet":
        for line in _ranks.summary(_ranks.parse(lines)):
            _stderr.say(line)
