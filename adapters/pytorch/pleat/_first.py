"""The process that `pleat run` became says at its end when nothing was served, and what is missing so.

Others that it started may have been served instead (torchrun's workers), and tell it: by a datagram to
a socket without a file, which is gone with the process however that ends.
"""

import atexit
import os
import socket
import sys

# What a process under `pleat run` is asked to write, and the variables that name the files.
WRITTEN = (
    ("plan", "PLEAT_RUN_SAVE_PLAN"),
    ("report", "PLEAT_RUN_REPORT"),
    ("counters", "PLEAT_RUN_COUNTERS"),
    ("log", "PLEAT_RUN_LOG"),
)


refused = False  # whether this process's torch could not be served, which was said


def address(process):
    return "\0pleat-run-%s" % process


def listen(environment):
    """In the first process: asks to be told, and tells at the end."""
    if environment.get("PLEAT_RUN_PID") != str(os.getpid()):
        return
    ear = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
    try:
        ear.bind(address(os.getpid()))
    except OSError:
        # Without its ear it would not know of others, and keeps silent.
        ear.close()
        return
    atexit.register(tell, ear, os.getpid(), dict(environment))


def served(environment):
    """This process was served."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as mouth:
        try:
            mouth.sendto(b"1", address(environment.get("PLEAT_RUN_PID")))
        except OSError:
            pass  # The first process is no Python, or has ended. If it was told too often, it knows.


def reason():
    torch = sys.modules.get("torch")
    if refused:
        return "Pleat was not enabled"
    if torch is None:
        return "torch was not imported"
    if getattr(getattr(torch, "version", None), "cuda", None) is None:
        return "torch is built without CUDA"
    return "no tensor was made there"


def tell(ear, process, environment):
    if os.getpid() != process:
        return  # A fork, which has its parent's handlers.
    try:
        ear.recv(1)
        return
    except OSError:
        pass
    missing = ["the %s %s" % (what, environment[name]) if environment[name] != "auto" else "the " + what
               for what, name in WRITTEN if environment.get(name)]
    if environment["PLEAT_RUN"] == "quiet" and not missing:
        return
    text = "pleat run: nothing was allocated on a GPU: %s" % reason()
    if missing:
        text += "; so not written: " + ", ".join(missing)
    print(text, file=sys.stderr)
