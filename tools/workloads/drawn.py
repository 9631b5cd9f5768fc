#!/usr/bin/env python3
"""Draws a training job from a seed and writes its allocations as a torch memory snapshot.

    drawn.py --seed 7 -o JOB.pickle.gz

No torch and no GPU: the operators of a model are stepped through, and what each allocates, saves for
backward and frees is recorded, in torch's order and sizes. The seed says what the job is, --run
which data it gets. --like takes the settings of a job that was recorded on a GPU.
"""

import argparse
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from drawing import job, likes  # noqa: E402


def setting(text):
    """ "layers=4": a name and a value, read as JSON where it is any."""
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("%r is no NAME=VALUE" % text)
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0], allow_abbrev=False)
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the job [1]")
    parser.add_argument("--run", type=int, default=0, metavar="K", help="of its data [0]")
    parser.add_argument("--family", choices=job.FAMILIES, help="this one instead of a drawn one")
    parser.add_argument("--like", choices=sorted(likes.LIKES), help="settings of a recorded job")
    parser.add_argument("--iterations", type=int, metavar="K", help="so many [drawn]")
    parser.add_argument(
        "--set",
        type=setting,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting, by its name in --describe, instead of a drawn one",
    )
    parser.add_argument("--no-marks", action="store_true", help="without labels of iterations")
    parser.add_argument(
        "--describe", action="store_true", help="print what is drawn as JSON, and write nothing"
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="a .pickle or .pickle.gz")
    options = parser.parse_args()
    if options.iterations is not None and options.iterations < 3:
        parser.error("--iterations: a steady iteration shows from the third on")
    if not options.describe and not options.output:
        parser.error("-o FILE is missing")
    if options.output == "-":
        parser.error("-o: a snapshot goes to a file")
    return parser, options


def fixed(options):
    """The settings that are not drawn."""
    settings = {}
    if options.family:
        settings["family"] = options.family
    settings.update(options.set)
    if options.iterations is not None:
        settings["iterations"] = options.iterations
    return settings


def main():
    parser, options = parse()
    try:
        given = fixed(options)
        if options.like:
            drawn = job.like(options.like, options.seed, options.run, **given)
        else:
            drawn = job.draw(options.seed, options.run, **given)
    except ValueError as problem:
        parser.exit(2, "%s: %s\n" % (parser.prog, problem))
    if options.describe:
        print(json.dumps(drawn.describe()))
        return
    memory = drawn.record()
    try:
        size = memory.write(options.output, labels=not options.no_marks)
    except OSError as problem:
        raise SystemExit("drawn.py: %s" % problem) from None
    print("%s: %d entries, %d bytes" % (options.output, len(memory.events), size))


if __name__ == "__main__":
    main()
