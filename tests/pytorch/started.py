"""Programs under `pleat estimate` that do not import torch anew, which takes each of them two seconds, and a third when it
ends: a process imports it once, and forks for each program. What `pleat estimate` does in a program begins after the
fork, where otherwise it begins when torch has been imported; the program's process, its files and how it ends are its own.

started.py SOCKET: that process, for as long as its standard input is open.
started.py SOCKET PROGRAM [ARGUMENT ...]: in the place of Python's own command line; ends as the program does.
"""

import atexit
import gc
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve()
PACKAGE = HERE.parents[2] / "adapters" / "pytorch"
STARTED = []  # the folder of the socket, the process, and the socket


def python():
    """The beginning of a program's command line, in which `pleat estimate` finds no Python whose flags it would speak of.
    The process is there from the first call on."""
    if not STARTED:
        import tempfile

        folder = tempfile.TemporaryDirectory()
        path = os.path.join(folder.name, "socket")
        process = subprocess.Popen(
            [sys.executable, "-B", str(HERE), path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=dict(os.environ, PYTHONPATH=str(PACKAGE), LD_PRELOAD=os.environ["PLEAT_NO_GPU"]))
        STARTED[:] = folder, process, path
        atexit.register(end)
        if not process.stdout.read(1):
            raise RuntimeError("the process that imports torch ended with %d" % process.wait())
    return ["env", sys.executable, "-I", "-S", "-B", str(HERE), STARTED[2]]


def end():
    folder, process, _ = STARTED
    process.stdin.close()
    process.stdout.close()
    process.wait()
    folder.cleanup()


def ask(path, words):
    """Has a program begun with what this process has of the system, and says how it ended."""
    with socket.socket(socket.AF_UNIX) as asked:
        asked.connect(path)
        socket.send_fds(asked, [b"+"], [0, 1, 2])
        asked.sendall(json.dumps([words, os.getcwd(), dict(os.environ)]).encode())
        asked.shutdown(socket.SHUT_WR)
        with asked.makefile() as answer:
            said = answer.read()
    return int(said) if said else sys.exit("started.py: the program's process did not begin")


def bury():
    """Those of this process that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:  # There are none.
        pass


def serve(path):
    """Returns in the process of each program, with what ask() was given."""
    import torch._dynamo.config  # noqa: F401  # which tensors without contents import

    gc.freeze()  # What is there now no program looks through when it ends.
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        os.write(1, b"+")
        while True:
            if listening not in select.select([listening, sys.stdin], [], [])[0]:
                os._exit(0)
            asked, _ = listening.accept()
            bury()
            if not os.fork():  # A program may begin others.
                break
            asked.close()
    with asked:
        _, files, _, _ = socket.recv_fds(asked, 1, 3)
        with asked.makefile() as given:
            what = json.load(given)
        process = os.fork()
        if process:
            asked.sendall(b"%d" % os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
            os._exit(0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    return what


def run(words, folder, variables):
    """In the process of a program: what Python and `pleat estimate` do with it."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv[:], sys.path[0] = words, os.path.dirname(os.path.abspath(words[0]))
    from pleat import _fake

    _fake.begin(os.environ["PLEAT_ESTIMATE"])
    main = sys.modules["__main__"] = type(sys)("__main__")
    main.__file__ = words[0]
    exec(compile(pathlib.Path(words[0]).read_text(), words[0], "exec"), main.__dict__)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        run(*serve(sys.argv[1]))
    else:
        ended = ask(sys.argv[1], sys.argv[2:])
        if ended < 0:
            signal.signal(-ended, signal.SIG_DFL)
            os.kill(os.getpid(), -ended)
        sys.exit(ended)
