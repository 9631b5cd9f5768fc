"""Runs `pleat` on a job, in each of the ways in which a job may be served, and reads what it says.

A way is an allocation policy, the runtime's settings, whether the job's marks are passed on, and
whether a plan is there from the beginning. Replays on host memory run on the recording's clock, so
all their figures but those of this machine's processor are the same in each run.
"""

import collections
import json
import os
import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLEAT = ROOT / "build/release/bin/pleat"

OUT_OF_MEMORY = 4  # exit status of `pleat`
SECONDS_MOST = 300  # of one command; what takes longer has gone astray
SAID_NO = 1  # the same: a canary's error, say; figures are printed all the same


class Failed(Exception):
    """A command that ended as it never should; its text is what the command said."""


Way = collections.namedtuple("Way", "name policy settings marked planned")


def way(name, policy="pleat", settings="", marked=True, planned=False):
    return Way(name, policy, settings, marked, planned)


HEAP = "learn:off"  # Pleat's heap alone, which follows no iteration


def unmarked(one):
    return one._replace(name=one.name + ", unmarked", marked=False)


NATIVE, EXPANDABLE = way("native", "native"), way("expandable", "expandable")
ALONE, LEARNING = way("heap", settings=HEAP), way("learning")
PLANNED = way("planned", planned=True)
PLEAT_WAYS = (ALONE, LEARNING, PLANNED)
WAYS = (NATIVE, EXPANDABLE, *PLEAT_WAYS, *map(unmarked, PLEAT_WAYS))
# The allocators of papers, gmlake also with blocks of every size stitched: small jobs have no others.
PAPERS = (way("gmlake", "gmlake"), way("gmlake, all stitched", "gmlake", "fragment:2m"), way("stweaver", "stweaver"))
FOLLOWING = tuple(one for one in WAYS if one.policy == "pleat" and one.settings != HEAP)


class Pleat:
    """The command of one build, with settings that all its runs have."""

    def __init__(self, path=PLEAT, settings=""):
        self.path, self.settings = str(path), settings
        if not os.access(self.path, os.X_OK):
            raise Failed("there is no command %s: cmake --preset release && "
                         "cmake --build --preset release" % self.path)

    def run(self, *arguments, settings="", accept=()):
        """What it wrote; Failed where it ended otherwise than with 0 or one of `accept`."""
        environment = dict(os.environ)
        environment["PLEAT_CONF"] = ",".join(s for s in (self.settings, settings) if s)
        try:
            done = subprocess.run([self.path, *map(str, arguments)], capture_output=True, text=True,
                                  check=False, env=environment, timeout=SECONDS_MOST)
        except subprocess.TimeoutExpired:
            raise Failed("pleat %s: no end in %d s" % (" ".join(map(str, arguments)), SECONDS_MOST)) from None
        if done.returncode != 0 and done.returncode not in accept:
            raise Failed("pleat %s: exit status %d: %s" % (
                " ".join(map(str, arguments)), done.returncode, done.stderr.strip()))
        return done.stdout

    def replay(self, job, one, plan=None, canary=False):
        """The figures of `pleat replay --json`; a job that ran out of memory has them too."""
        arguments = ["replay", job, "--policy", one.policy, "--json"]
        arguments += [] if one.marked else ["--no-marks"]
        arguments += ["--plan", plan] if one.planned else []
        arguments += ["--canary"] if canary else []
        text = self.run(*arguments, settings=one.settings, accept=(OUT_OF_MEMORY, SAID_NO))
        if not text:
            raise Failed("pleat %s: no figures" % " ".join(map(str, arguments)))
        return json.loads(text)

    def plan(self, job, output, tried=True):
        """Plans the job's iteration into `output`; what `pleat plan --json` says. One that is not tried
        is followed also where learning does as well."""
        return json.loads(self.run("plan", job, "-o", output, "--json", *([] if tried else ["--no-replay"])))

    def import_job(self, snapshot, output):
        """Reads the snapshot once, so that no replay has to."""
        self.run("import", snapshot, "-o", output)
        return output
