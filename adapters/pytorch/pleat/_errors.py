"""Under `pleat estimate`: what is said of an error that ends the program.

What Pleat refuses is told in a line, with the place in the program. An error of the program has the traceback that it
would have on a GPU: not what stands there in the place of torch's kernels.
"""

import logging
import os
import sys
import threading

from . import _stderr

PREFIX = "pleat estimate: "
HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
# Of torch, what calls Pleat's mode in the place of a kernel.
BETWEEN = (os.path.join("torch", "_compile.py"), os.path.join("_dynamo", "eval_frame.py"))


class Refusal(RuntimeError):
    """What Pleat cannot do of what the program asks for."""

    def __init__(self, text):
        super().__init__(PREFIX + text)


def parts(trace):
    """A traceback's, from the outside to the inside."""
    found = []
    while trace is not None:
        found.append(trace)
        trace = trace.tb_next
    return found


def file_of(part):
    return part.tb_frame.f_code.co_filename


def is_program(part, torch):
    """Whether it is of the program, or of a library that it uses."""
    if file_of(part).startswith("<"):  # made while it runs, by torch or Python, or the program of `python -c`
        return part.tb_frame.f_globals.get("__name__") == "__main__"
    return not file_of(part).startswith((HERE, torch))


def innermost(trace, torch):
    """The last part that is the program's; None: there is none."""
    return next((part for part in reversed(parts(trace)) if is_program(part, torch)), None)


def shorten(trace, torch):
    """Ends it before what is Pleat's, unless the program's own follows."""
    kept = innermost(trace, torch)
    inner = parts(kept.tb_next) if kept is not None else []
    if not any(file_of(part).startswith(HERE) for part in inner):
        return
    for part in inner:
        if file_of(part).startswith(HERE):
            break
        if not file_of(part).endswith(BETWEEN):
            kept = part
    kept.tb_next = None


def place(trace, torch):
    part = innermost(trace, torch)
    return "" if part is None else "%s:%d, in %s: " % (file_of(part), part.tb_lineno, part.tb_frame.f_code.co_name)


def stand(torch):
    """From now on."""
    folder = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
    # It has a traceback of its own of each operator that fails, also where the program expects that.
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True
    hook, thread_hook = sys.excepthook, threading.excepthook

    def is_told(error, trace):
        """Otherwise its traceback is shortened."""
        if isinstance(error, Refusal):
            _stderr.say(PREFIX + place(trace, folder) + str(error).replace(PREFIX, "", 1))
            return True
        seen, one = set(), error
        while one is not None and id(one) not in seen:
            seen.add(id(one))
            shorten(one.__traceback__, folder)
            one = one.__cause__ or one.__context__
        return False

    def tell(kind, error, trace):
        if not is_told(error, trace):
            hook(kind, error, trace)

    def tell_of_thread(ended):
        if not is_told(ended.exc_value, ended.exc_traceback):
            thread_hook(ended)

    sys.excepthook, threading.excepthook = tell, tell_of_thread
