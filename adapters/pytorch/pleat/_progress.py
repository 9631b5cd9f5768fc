"""A sign of life on standard error, where that is a terminal, as the command's (tools/progress.h): what is done, and for
how many seconds."""

import contextlib
import sys
import threading
import time

FORM = "%-10s %-17s %.0f s"
TICK = 0.1  # seconds
FIRST = 1  # seconds until a sign is drawn that is wiped at the end
FIRST_BESIDE = 5  # seconds until a line beside what a program writes, which then comes after twice as long each time


@contextlib.contextmanager
def ticking(draw):
    """Calls draw(seconds) from a thread of its own meanwhile."""
    ended, begun = threading.Event(), time.monotonic()

    def tick():
        while not ended.wait(TICK):
            draw(time.monotonic() - begun)

    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def beside(command, what):
    """Whole lines, as a program writes to the same terminal; what() says what is done."""
    if not sys.stderr.isatty():
        yield
        return
    due = FIRST_BESIDE

    def draw(seconds):
        nonlocal due
        if seconds >= due:
            due *= 2
            print(FORM % (command, what(), seconds), file=sys.stderr, flush=True)

    with ticking(draw):
        yield


@contextlib.contextmanager
def alone(command, what):
    """One line, which is drawn over itself."""
    if not sys.stderr.isatty():
        yield
        return
    shown = False

    def draw(seconds):
        nonlocal shown
        if seconds >= FIRST:
            shown = True
            print("\r\033[K" + FORM % (command, what, seconds), end="", file=sys.stderr, flush=True)

    try:
        with ticking(draw):
            yield
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
