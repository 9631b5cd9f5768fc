"""What Pleat says in a program's process."""

import contextlib
import sys


def say(text):
    """A line, or several in one piece, on standard error: nowhere where there is none, or the program has closed it, or
    nobody reads it any more. What is done besides goes on."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
