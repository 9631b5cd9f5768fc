"""The options by which tools/judge and tools/ablate are told which jobs to run, and with what."""

import argparse
import os

from . import replays

SEEDS = range(20)
AS_DRAWN = "drawn"  # --iterations: 8 to 14, of a small job more


def seeds(text):
    """A..B or A,B,C."""
    first, dots, last = text.partition("..")
    try:
        found = list(range(int(first), int(last) + 1)) if dots else list(map(int, text.split(",")))
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise argparse.ArgumentTypeError("'%s' is neither A..B nor A,B,C" % text)
    return found


def positive(text):
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError("'%s' is not 1 or more" % text)
    return int(text)


def iterations(text):
    """None: each job has as many as were drawn for it."""
    return None if text == AS_DRAWN else positive(text)


def output(text):
    """A file that can be made: it is written behind minutes of work."""
    folder = os.path.dirname(os.path.abspath(text))
    if not text or os.path.isdir(text) or not os.access(text if os.path.exists(text) else folder, os.W_OK):
        raise argparse.ArgumentTypeError("'%s' cannot be written" % text)
    return text


def add_options(parser, length=None):
    """length: the iterations that a drawn job has where none are asked for; None: as drawn."""
    parser.add_argument("--seeds", type=seeds, metavar="A..B|A,B,C",
                        help="these drawn jobs [0..%d without --fresh]" % SEEDS[-1])
    parser.add_argument("--fresh", type=positive, default=0, metavar="N",
                        help="so many drawn jobs that nobody has seen")
    parser.add_argument("--iterations", type=iterations, default=length, metavar="K|%s" % AS_DRAWN,
                        help="of a drawn job [%s]" % (length or AS_DRAWN))
    parser.add_argument("--jobs", type=positive, default=2, metavar="P", help="so many at once [2]")
    parser.add_argument("--json", type=output, metavar="FILE", help="writes all figures there")
    parser.add_argument("--settings", default="", metavar="KEY:VALUE,…", help="of all replays (pleat conf)")
    parser.add_argument("--pleat", default=replays.PLEAT, metavar="PATH",
                        help="the command [build/release/bin/pleat]")


def seeds_of(options, command):
    """Those asked for, and fresh ones, which are named so that they can be asked for; each once."""
    fresh = [int.from_bytes(os.urandom(4), "big") for _ in range(options.fresh)]
    if fresh:
        print("%s: fresh: --seeds %s" % (command, ",".join(map(str, fresh))), flush=True)
    asked = options.seeds
    if asked is None:
        asked = [] if fresh else list(SEEDS)
    return list(dict.fromkeys(asked + fresh))
