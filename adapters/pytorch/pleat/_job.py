"""A process under `pleat run`: enables Pleat as the environment says, and reports at the end."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import pleat

from . import _ends, _files, _first, _parts, _plans, _ranks, _shim, _stderr

PROGRAMS_OWN = ("log", "log_bytes", "log_ms", "canary")


def command():
    """The program `pleat`, or None."""
    found = _parts.place("PLEAT_COMMAND")
    if found is not None and os.access(found, os.X_OK):
        return str(found)
    return None if os.environ.get("PLEAT_COMMAND") else shutil.which("pleat")


def figures():
    """(device, counters) of each device that Pleat has served."""
    found = [(device, pleat.stats(device)) for device in pleat._used_devices()]
    if pleat._canary:
        for device, counters in found:
            with contextlib.suppress(RuntimeError):  # The report says so.
                counters["canary_checked"], counters["canary_errors"], _ = pleat.canary_errors(device)
    for device, counters in found:
        with contextlib.suppress(RuntimeError):  # Nothing was recorded.
            counters["fingerprint"] = pleat.fingerprint(device)
    return found


def say(text):
    rank = _plans.told_rank()
    _stderr.say(("" if rank is None else "[rank %s] " % rank) + text)


def done(arguments, environment, **named):
    """How the command ends with these arguments; None: it is not there."""
    program = command()
    return program and subprocess.run([program, *arguments], env=environment, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True, errors="replace", **named)


def run(*arguments, answers=(0,), **named):
    """Standard output of the command where its exit status is an answer; else RuntimeError with the last line that
    it said, but for the one that leads to its help."""
    # What asks for a log or a canary asks for the program's: its log would be lost to this one's.
    settings = [setting for setting in _plans.split(os.environ.get("PLEAT_CONF", ""))
                if setting.split(":")[0] not in PROGRAMS_OWN]
    ended = done(arguments, dict(os.environ, PLEAT_CONF=",".join(settings)), **named)
    if ended is None:
        raise RuntimeError("the command pleat is not there; $PLEAT_COMMAND may name it")
    if ended.returncode not in answers:
        said = [line for line in ended.stderr.splitlines() if not line.startswith("See 'pleat ")]
        raise RuntimeError((said or ["exit %d" % ended.returncode])[-1])
    return ended.stdout


def cannot_draw():
    """Why no report could be drawn at the end; None: one can."""
    try:
        draws = json.loads(run("version", "--json"))["draws_pages"]
    except (OSError, RuntimeError, ValueError, KeyError) as problem:
        return str(problem)
    return None if draws else ("this pleat was built without the library that draws curves: install it "
                               "(tools/setup, or the package libjs-dygraphs) and build again")


def ask(environment, *arguments):
    """(what the command says against settings or a file, what it answers); None for the first: nothing, or
    there is no command, which answers nothing."""
    ended = done(arguments, environment)
    if ended is None or ended.returncode == 0:
        return None, ended.stdout if ended else ""
    said = (ended.stderr.splitlines() or ["exit %d" % ended.returncode])[0]
    return said.replace("pleat %s: " % arguments[0], "", 1), ""


def check(environment, *arguments):
    return ask(environment, *arguments)[0]


def wrong_plan(files, budget, environment):
    """What is wrong with the first of the plans' files that cannot be started with; None: nothing, or
    there is no command."""
    for file in files:
        wrong, answer = ask(environment, "verify", file, "--json")
        if wrong:
            return wrong
        takes = json.loads(answer)["physical_bytes"] if budget and answer else 0
        if takes > budget:
            return "%r takes %.2f MiB, and the budget is %.2f MiB" % (file, takes / 2**20, budget / 2**20)
    return None


def compare(trace, counters):
    """One line: what torch's native allocator would have taken for what was recorded."""
    native = json.loads(run("replay", trace, "--policy", "native", "--json"))
    least, took = native["peak_physical_bytes"], counters["peak_physical_bytes"]
    gib = 1 << 30
    if took < least:
        return "pleat: saved %.3f GiB: PyTorch's native allocator takes %.3f GiB (%.1f %% more)" % (
            (least - took) / gib, least / gib, 100 * (least - took) / took)
    return "pleat: PyTorch's native allocator takes %.3f GiB for the iterations recorded" % (
        least / gib)


def write_counters(path, served, environment=os.environ):
    """One JSON object a process. The rank that writes the last one of a job tells what all of them took, where no
    first process has heard of them all."""
    told, own = _ranks.record(served, environment), _plans.written(path, environment)
    try:
        _plans.make_folder(path, own)
        _files.write(own, json.dumps(told) + "\n")
    except OSError as problem:
        say("pleat: the counters: '%s': cannot be written: %s" % (own, problem.strerror))
        return
    if environment.get("PLEAT_RUN") != "quiet" and not is_local(told):
        for line in _ranks.summary(_ranks.of_whole_job(_plans.sized(path, environment), told)):
            say(line)


def is_local(told):
    """Whether all ranks run on this host, whose first process tells of them."""
    return os.environ.get("LOCAL_WORLD_SIZE") == told["ranks"] and _first.BOARD in os.environ


def page(path):
    """The name of a report as it is given, with the suffix that it has."""
    return path if os.path.splitext(path)[1] else path + ".html"


def write_report(path, trace, device):
    stem, suffix = os.path.splitext(page(path))
    name = _plans.of_device(_plans.written(stem), device, pleat._index(None)) + suffix
    _plans.make_folder(path, name)
    run("report", trace, "-o", name)
    say("pleat: wrote %s" % name)


def tell(device, counters, environment):
    """What is said of one device at the end."""
    quiet = environment["PLEAT_RUN"] == "quiet"
    if not quiet:
        say(pleat.report(device))
    report = environment.get("PLEAT_RUN_REPORT")
    if not report and (quiet or not counters["requests"]):  # all of it lies in private pools
        return
    try:
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "job.trace")
            pleat.save_trace(trace, device)
            if not quiet:
                say(compare(trace, counters))
            if report:
                write_report(report, trace, device)
    except (OSError, RuntimeError, ValueError, KeyError) as problem:
        say("pleat: no %s: %s" % ("report" if report else "comparison", problem))


def is_named(environment):
    """Whether this process says by itself what it took: of a large job the summary says enough."""
    ranks = _plans.launched(environment)[1]
    return not ranks.isdigit() or int(ranks) <= _ranks.MOST_NAMED or "PLEAT_RUN_BOARD" not in environment


def finish(environment):
    served = figures()
    if served:
        _first.served(environment, _ranks.record(served, environment))
    for device, counters in served if is_named(environment) or environment.get("PLEAT_RUN_REPORT") else []:
        tell(device, counters, environment)
    if served and environment.get("PLEAT_RUN_COUNTERS"):
        write_counters(environment["PLEAT_RUN_COUNTERS"], served, environment)


def settings(environment):
    """PLEAT_CONF with the log in it that `pleat run` was asked for."""
    given = environment.get("PLEAT_CONF", "")
    name = environment.get("PLEAT_RUN_LOG")
    return ",".join(filter(None, [given, name and "log:" + name]))


def tell_unplanned(environment):
    """What had no rank and no plan, and was no launcher."""
    if environment["PLEAT_RUN"] != "quiet" and _plans.told_rank(environment) is None and pleat._used_devices():
        say("pleat: %s was not used: there are plans of ranks, and this process was told none"
            % environment["PLEAT_RUN_PLAN"])


def why_not(torch):
    """Why this process cannot use a GPU; None: it may."""
    if torch.version.cuda is None:
        return "torch %s is built without CUDA" % torch.__version__
    return _shim.no_driver(torch)


def wrong_settings(environment):
    """What is wrong with PLEAT_CONF, the log of `pleat run` in it; None: nothing, or there is no command."""
    conf = settings(environment)
    return check(dict(environment, PLEAT_CONF=conf), "conf") if conf else None


def begin(environment, name="pleat run"):
    """`name`: what asked for it, which what is wrong is said by."""
    import torch

    if pleat.enabled():
        return
    reason = why_not(torch)
    if reason:
        _first.unserved = reason
        # enable() would have said it; `pleat run` has.
        wrong = wrong_settings(environment) if "PLEAT_RUN_PID" not in environment else None
        if wrong:
            sys.exit("%s: %s" % (name, wrong))
        # Once a job: what it starts is told so.
        if not environment.get("PLEAT_RUN_SAID"):
            environment["PLEAT_RUN_SAID"] = "on"
            say("%s: %s: the program runs as without Pleat" % (name, reason))
        return
    plan = environment.get("PLEAT_RUN_PLAN", "auto")
    try:
        pleat.enable(
            policy=environment.get("PLEAT_RUN_POLICY", "pleat"),
            plan=plan,
            budget=int(environment.get("PLEAT_RUN_BUDGET", "0")),
            conf=settings(environment),
            marks=environment.get("PLEAT_RUN_MARKS", "on") == "on",
            save_plan=environment.get("PLEAT_RUN_SAVE_PLAN") or None,
            record=0 if environment["PLEAT_RUN"] == "quiet" and not environment.get("PLEAT_RUN_REPORT")
            else _plans.FEW,
            canary=bool(environment.get("PLEAT_RUN_CANARY")),
            recompute=environment.get("PLEAT_RUN_RECOMPUTE") or None,
        )
    except (OSError, RuntimeError, ValueError) as problem:
        # Without Pleat the job would be another one than was asked for.
        _first.unserved = "Pleat was not enabled"
        sys.exit("%s: %s" % (name, str(problem).replace("pleat: ", "", 1)))
    # A rank may be told later; what was asked for holds, also where the program empties its environment.
    asked = {key: value for key, value in environment.items() if key.startswith("PLEAT_RUN")}
    _ends.at_end(lambda: finish(dict(environment, **asked)))
    if plan != "auto" and _plans.is_told_later(plan, environment):
        _ends.at_end(lambda: tell_unplanned(dict(environment, **asked)))
