"""Runs a program with Pleat as torch's allocator: `pleat run [OPTION ...] -- python train.py ...`.

The program's environment carries the options, and a sitecustomize that enables Pleat as soon as
torch is imported, in the program and in every Python that it starts (torchrun's workers, say).
"""

import argparse
import contextlib
import difflib
import errno
import os
import pathlib
import re
import shutil
import sys

from . import _POLICIES, _job, _parse_budget, _plans, _signals, _variables
from ._first import OUTPUTS

SITE = str(pathlib.Path(__file__).resolve().parent / "_site")
BAD_USE, BAD_FILE, NO_MEMORY, CANNOT_DRAW, CANNOT_RUN, NOT_FOUND = 2, 3, 4, 5, 126, 127
SIGN = "%[rwdp]"  # in a file's name, for a number (_plans.py)


class Parser(argparse.ArgumentParser):
    """One that says which option a mistyped one may be, and whose help is written or said not to be: argparse does
    neither."""

    def parse_args(self, args=None, namespace=None):
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            known = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
            near = difflib.get_close_matches(unknown[0].partition("=")[0], known, 1, 0.8)
            self.error("'%s' is no option that it has%s" % (unknown[0], "; did you mean '%s'?" % near[0] if near else ""))
        return options

    def print_help(self, file=None):
        say(self.format_help(), self.prog.partition(" ")[2])


class FileName(argparse.Action):
    """Of a file that is to be written, which is given once. An empty one, of a shell's variable that is not set say,
    would leave none."""

    def __call__(self, parser, namespace, value, option=None):
        if not value:
            parser.error("%s is a file, not ''" % self.option_strings[-1])
        given = getattr(namespace, self.dest)
        if given is not self.default:  # which may be given too
            parser.error("%s is given twice, '%s' and '%s': one is written" % (self.option_strings[-1], given, value))
        setattr(namespace, self.dest, value)


def parser():
    parser = Parser(
        prog="pleat run",
        usage="pleat run [OPTION ...] -- PROGRAM [ARGUMENT ...]",
        description="Runs a program with Pleat as PyTorch's CUDA allocator.",
        epilog="Each process that used a GPU says at its end, on standard error, what it allocated, "
        "what that took, and what PyTorch's native allocator would have taken. torchrun is a program "
        "like any other: its workers are served too.",
    )
    parser.add_argument(
        "--plan", default="auto", metavar="FILE|auto", help="a plan; auto: the one that an earlier run of this job left, else learn the iteration and leave one [auto]"
    )
    parser.add_argument(
        "--save-plan",
        action=FileName,
        default="",
        metavar="FILE",
        help="write the plan of this run there, for --plan of the next; of several processes and "
        "devices each writes its own: %%r in a name stands for the rank, %%w for how many ranks there are, "
        "%%d for the device, %%p for the process",
    )
    parser.add_argument(
        "--budget", default=None, metavar="SIZE", help="most memory to take of each device, such as 20GiB [all]"
    )
    parser.add_argument("--policy", default="pleat", choices=_POLICIES, help="[pleat]")
    parser.add_argument("--conf", default="", metavar="KEY:VALUE,...", help="settings, as `pleat conf` lists them")
    parser.add_argument(
        "--no-marks", action="store_true", help="do not take optimizer steps as iterations' ends"
    )
    parser.add_argument(
        "--report", action=FileName, default="", metavar="PAGE.html", help="draw the iterations recorded, as one HTML page"
    )
    parser.add_argument(
        "--log",
        action=FileName,
        default="",
        metavar="FILE|auto",
        help="write the memory over time there while it runs: for `pleat top` and `pleat report "
        "--log`; auto: where `pleat top` looks; %%r, %%w, %%d and %%p as in --save-plan",
    )
    parser.add_argument(
        "--counters", action=FileName, default="", metavar="FILE", help="write the counters there, as JSON"
    )
    parser.add_argument(
        "--recompute",
        default="",
        choices=["auto", "offload"],
        help="stay within --budget by computing some of the model's blocks again in backward, as few as "
        "possible; the budget holds from the third iteration on; offload: what blocks save may be copied "
        "to the host as well",
    )
    parser.add_argument(
        "--canary",
        action="store_true",
        help="prove that no two tensors share memory: fills and verifies it; slow",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing at the end but what could not be written")
    parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def parsed(made, arguments):
    """What a parser makes of arguments that end with a program."""
    options = made.parse_args(arguments)
    if options.program[:1] == ["--"]:
        options.program = options.program[1:]
    if not options.program:
        made.error("no program to run")
    return options


def parse(arguments):
    made = parser()
    options = parsed(made, arguments)
    check(options, made.error)
    wrong = wrong_file(options)
    if wrong:
        fail(BAD_FILE, wrong)
    return options


def budget(options):
    """Bytes; 0: no budget was given. ValueError."""
    return 0 if options.budget is None else _parse_budget(options.budget)


def check(options, error):
    """Calls error() for what an option cannot be."""
    try:
        budget(options)
    except ValueError as problem:
        error("--budget: " + str(problem).replace("pleat: ", "", 1))
    if options.recompute and not budget(options):
        error("--recompute: it needs a budget: --budget=40GiB")
    log = os.path.abspath(options.log) if options.log not in ("", "auto") else ""
    if "," in log:
        error("--log: settings are separated by commas, so its path has none: %r" % log)
    wrong = written_twice(options)
    if wrong:
        error(wrong)


def places(path):
    """Where a file is, and where it would be if its name were no link."""
    folder, name = os.path.split(os.path.abspath(path))
    return {os.path.realpath(path), os.path.join(os.path.realpath(folder), name)}


def may_become(path, other):
    """Whether a name may be another one's once there are numbers in the place of its signs."""
    exact = "[0-9]+".join(map(re.escape, re.split(SIGN, path)))
    return re.fullmatch(exact, re.sub(SIGN, "0", other)) is not None


def may_be_one(path, other):
    pairs = [(one, two) for one in places(path) for two in places(other)]
    return any(may_become(one, two) or may_become(two, one) for one, two in pairs)


def written_twice(options):
    """What is wrong with a file that two options name; None: nothing. A pipe or a device takes both, and a plan that is
    read may be saved anew."""
    taken = {} if options.plan == "auto" else {"the plan that is read": options.plan}
    for name, what in OUTPUTS.items():
        path = getattr(options, name)
        if not path or (name, path) == ("log", "auto"):
            continue
        file = _job.page(path) if name == "report" else path
        if os.path.exists(file) and not os.path.isfile(file):
            continue
        for held, other in taken.items():
            if (name, held) == ("save_plan", "the plan that is read") or not may_be_one(file, other):
                continue
            if os.path.realpath(file) == os.path.realpath(other):
                return "'%s' cannot be %s and %s: give one of them another name" % (path, held, what)
            return "'%s' and '%s' may become one file, %s and %s: give one of them another name" % (other, path, held, what)
        taken[what] = file
    return None


def wrong_file(options):
    """What would be found at the end only, and would cost the run; None: nothing."""
    # Of a name with %w each size of the job has plans of its own, and a first run none.
    if options.plan != "auto" and "%w" not in options.plan and not _plans.of_ranks(options.plan):
        return "--plan: there is no file %r" % options.plan
    for name in OUTPUTS:
        path = getattr(options, name)
        wrong = _plans.cannot_write(path) or overwritten(path, options.program) if path != "auto" else None
        if wrong:
            return "--%s: %s" % (name.replace("_", "-"), wrong)
    return None


def overwritten(path, program):
    """What is wrong with a file that is to be written; None: it is none that the program's line names."""
    if os.path.isfile(path) and any(os.path.exists(part) and os.path.samefile(part, path) for part in program):
        return "%r is the program's: it would be overwritten" % path
    return None


def deaf_flag(program):
    """The flag by which a Python leaves _site/sitecustomize.py out, or the variable that leads to it."""
    if not os.path.basename(program[0]).startswith(("python", "pypy")):
        return None
    arguments = iter(program[1:])
    for argument in arguments:
        if argument.startswith("--"):
            continue
        if not argument.startswith("-") or argument == "-":
            return None
        for at, flag in enumerate(argument[1:], 2):
            if flag in "IES":
                return "-" + flag
            if flag in "cm":
                return None  # what follows is the program's
            if flag in "WX":
                if at == len(argument):
                    next(arguments, None)  # its value
                break
    return None


def warn_of_deaf_flag(program, command, besides=""):
    flag = deaf_flag(program)
    if flag:
        print("pleat %s: Pleat does not serve this program: under %s its Python does not load it; leave %s out%s"
              % (command, flag, flag, besides), file=sys.stderr)


def with_site(base):
    """A program's environment: `base`, and _site/sitecustomize.py found first."""
    made = dict(base)
    # An entry without a name is the folder that the program runs in, unless it is all there is.
    given = base.get("PYTHONPATH", "")
    path = [p for p in given.split(os.pathsep) if p != SITE] if given else []
    made["PYTHONPATH"] = os.pathsep.join([SITE, *path])
    return made


def environment(options, base):
    """The program's environment: `base` and what _site/sitecustomize.py reads."""
    return dict(with_site(base), **variables(options))


def variables(options):
    """What _job.py reads of the options."""
    made = {}
    made["PLEAT_RUN"] = "quiet" if options.quiet else "on"
    made["PLEAT_RUN_POLICY"] = options.policy
    made["PLEAT_RUN_PLAN"] = options.plan if options.plan == "auto" else os.path.abspath(options.plan)
    made["PLEAT_RUN_BUDGET"] = str(budget(options))
    made["PLEAT_RUN_MARKS"] = "off" if options.no_marks else "on"
    for name in ("save_plan", "report", "counters"):
        path = getattr(options, name)
        made["PLEAT_RUN_" + name.upper()] = os.path.abspath(path) if path else ""
    made["PLEAT_RUN_CANARY"] = "on" if options.canary else ""
    made["PLEAT_RUN_RECOMPUTE"] = options.recompute
    # Not among the settings, which whatever the program starts would take for its own.
    made["PLEAT_RUN_LOG"] = os.path.abspath(options.log) if options.log not in ("", "auto") else options.log
    if options.conf:
        made["PLEAT_CONF"] = options.conf
    return made


def fail(code, text, command="run"):
    """Ends this process: 2 for what was asked, 3 for a file, 5 for what is missing here, 126 and 127 as a
    shell for a program."""
    print("pleat %s: error: %s" % (command, text), file=sys.stderr)
    sys.exit(code)


def stand_for_closed():
    """Has /dev/null in the place of each standard file that this process was begun without, as a service may be: what it
    opens would take that place otherwise, a pipe's end for instance, and the program's output go there. The program
    itself has none of them either."""
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(file)
    if sys.stderr is None:  # what is said there would go to standard output
        sys.stderr = open(2, "w", closefd=False)


def say(text, command):
    """Writes to standard output, files' names as the system has them. Where that cannot be, this process ends with 5."""
    if sys.stdout is None:
        fail(CANNOT_DRAW, "standard output cannot be written: %s" % os.strerror(errno.EBADF), command)
    with contextlib.suppress(AttributeError):  # it may be no text of a file's
        sys.stdout.reconfigure(errors="surrogateescape")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as problem:
        # Python tries again at its end, and would say so.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        fail(CANNOT_DRAW, "standard output cannot be written: %s" % problem.strerror, command)


def program_of(name, command="run"):
    """The program's path, as a shell finds it."""
    path = shutil.which(name)
    if path is not None:
        return path
    folders = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    places = [os.path.join(folder, name) for folder in folders]
    if any(os.path.exists(place) and not os.path.isdir(place) for place in places):
        script = ": a script is run by 'pleat %s -- python3 %s'" % (command, name) if name.endswith(".py") else ""
        fail(CANNOT_RUN, "%r cannot be executed%s" % (name, script), command)
    if os.path.isdir(name):
        fail(CANNOT_RUN if "/" in name else NOT_FOUND, "%r is a folder, not a program" % name, command)
    script = ": a script is run by 'pleat %s -- python3 %s'" % (command, name) if os.path.isfile(name) else ""
    fail(NOT_FOUND, "there is no program %r%s" % (name, script), command)


def cannot_execute(program, problem, command="run"):
    fail(NOT_FOUND if problem.errno == errno.ENOENT else CANNOT_RUN, "%s: %s" % (program, problem.strerror), command)


@_signals.ending_by_interrupts
def main(arguments=None):
    stand_for_closed()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    made = environment(options, os.environ)
    program = program_of(options.program[0])
    wrong = _job.wrong_settings(made)
    if wrong:
        fail(BAD_USE, wrong.replace("PLEAT_CONF:", "--conf:", 1) if options.conf else wrong)
    plans = _plans.of_ranks(options.plan) if options.plan != "auto" else []
    wrong = _job.wrong_plan(plans, budget(options), made)
    if wrong:
        fail(BAD_FILE, "--plan: " + wrong)
    wrong = _job.cannot_draw() if options.report else None
    if wrong:
        fail(CANNOT_DRAW, "--report: " + wrong)
    warn_of_deaf_flag(options.program, "run", ", or call pleat.enable() in the program")
    _variables.warn_of_unknown(parser(), made)
    _variables.warn_of_unread(parser(), made)
    made["PLEAT_RUN_PID"] = str(os.getpid())
    for stream in filter(None, (sys.stdout, sys.stderr)):
        stream.flush()
    _signals.restore_ignored()
    # The program takes this process's place: signals and its exit code are its own.
    try:
        os.execve(program, options.program, made)
    except OSError as problem:
        cannot_execute(program, problem)


if __name__ == "__main__":
    main()
