"""PLEAT=1 in a program's environment: as `pleat run` without a command line, in every Python that is started.

pleat.pth, which an installation puts beside the package, has Python import this at its start where the variable
is set. What `pleat run` has options for are variables here: --save-plan is PLEAT_SAVE_PLAN, --no-marks
PLEAT_NO_MARKS=1. They are read when torch is imported.
"""

import os
import re
import sys

from . import _imported, _nccl
from ._variables import variable, warn_of_unknown


class Wrong(Exception):
    """A variable that cannot be, in one line."""


def arguments(parser, environment):
    """What the variables would be on the command line of `pleat run`; Wrong."""
    made = []
    for action in parser._actions:
        option = (action.option_strings or [""])[-1]
        value = environment.get(variable(option), "")
        if not option.startswith("--") or option == "--help" or not value:
            continue
        if action.nargs == 0:  # a flag
            if value not in ("0", "1"):
                raise Wrong("%s: it is 1 or 0, not %r" % (variable(option), value))
            made += [option] if value == "1" else []
        else:
            made.append("%s=%s" % (option, value))
    return made


def options(environment):
    """`pleat run`'s, of the variables; Wrong."""
    from . import run

    def wrong(text):
        raise Wrong(re.sub(r"(?:argument )?(--[a-z-]+)", lambda found: variable(found.group(1)), text))

    parser = run.parser()
    parser.error = wrong
    made = parser.parse_args([*arguments(parser, environment), "--", "python"])
    run.check(made, wrong)
    problem = run.wrong_file(made)
    if problem:
        wrong(problem)
    return made


def begin():
    from . import _first, _job, run

    warn_of_unknown(run.parser(), os.environ)
    try:
        if os.environ.get("PLEAT", "1") not in ("0", "1"):
            raise Wrong("PLEAT: it is 1 or 0, not %r" % os.environ["PLEAT"])
        made = run.variables(options(os.environ))
    except Wrong as problem:
        sys.exit("pleat: %s" % problem)
    os.environ.update(made)
    _first.listen(os.environ)
    _job.begin(os.environ, "pleat")


def is_run():
    """Says whether `pleat run` has put its folder on the path, of this installation or another and by whatever name: its
    options count then, and it enables Pleat by itself."""
    return any(os.path.basename(entry) == "_site" and os.path.isfile(os.path.join(os.path.dirname(entry), "_environment.py"))
               for entry in sys.path)


if not is_run():
    _imported.when_torch_is(begin, _nccl.stand)
