"""A sign of life on standard error, where that is a terminal: what is done, and for how many seconds."""

import contextlib
import sys
import threading
import time

FORM = "%-10s %-17s %.0f s"
FIRST = 5  # seconds until a line is written, and then after twice as long each time


@contextlib.contextmanager
def shown(command, what):
    """Whole lines, as a program writes to the same terminal; what() says what is done."""
    if not sys.stderr.isatty():
        yield
        return
    ended, begun = threading.Event(), time.monotonic()

    def tell():
        due = FIRST
        while not ended.wait(begun + due - time.monotonic()):
            print(FORM % (command, what(), due), file=sys.stderr, flush=True)
            due *= 2

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
