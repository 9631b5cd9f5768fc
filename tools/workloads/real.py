#!/usr/bin/env python3
"""Trains with the libraries people use, unpatched, a job drawn from a seed: real.py --job NAME --seed N.

The seed draws the model's depth and width, the distribution of lengths or sizes, microbatches,
accumulation, recomputation and the optimizer, within bounds that fit an H200 three times over.
Weights are random and nothing is downloaded. The same seed gives the same data under any allocator,
so losses may be compared. Most jobs want transformers; libraries/ says who wants what. The last line
on standard output is one JSON object.
"""

import os
import sys

import torch

import harness
import libraries

ITERATIONS = 20


def add_options(parser):
    parser.add_argument("--job", required=True, choices=sorted(libraries.JOBS), help="which one")
    parser.add_argument(
        "--tiny", action="store_true", help="sizes that a processor trains in seconds, as drawn else"
    )


def check(parser, options):
    """Imports the job's library: before this run's first turn, which others would wait for."""
    if options.job in libraries.SEVERAL_GPUS and "RANK" not in os.environ:
        parser.error("--job %s is a rank's: run it by torchrun" % options.job)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded, nor asked for
    try:
        options.make = libraries.load(options.job)
    except ImportError as problem:
        print("skipped: %s" % problem, file=sys.stderr)
        sys.exit(libraries.SKIPPED)


def make(options, recorder):
    if options.job in libraries.ADDS_IN_ANY_ORDER:
        torch.use_deterministic_algorithms(False)
    return options.make(options)


def main():
    return harness.main("real", __doc__, add_options, make, ITERATIONS, check)


if __name__ == "__main__":
    main()
