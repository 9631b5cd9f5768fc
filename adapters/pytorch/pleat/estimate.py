"""What a program would take on a GPU, on a machine without one: `pleat estimate [OPTION ...] -- python3 train.py ...`.

The program runs with its own torch, which has CUDA, and tensors without contents: a step of a model of any size
takes seconds and no memory. What it allocates becomes a recording like any other.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import signal
import stat
import sys
import tempfile

from . import _job, _parts, _plans, _progress, _recording, _signals, run

GIB, TIB = 1 << 30, 1 << 40
# A policy of `pleat replay`, and what it is called.
ALLOCATORS = {"pleat": "Pleat", "native": "PyTorch's native allocator", "expandable": "expandable segments"}
# Compute capabilities of the GPUs that the command has names for.
CAPABILITIES = {"b200": "10.0", "h200": "9.0", "h100": "9.0", "a100-80": "8.0", "a100-40": "8.0", "l40s": "8.9",
                "v100-32": "7.0", "rtx4090": "8.9", "a10": "8.6"}
UNLIMITED = TIB  # bytes: of a device that refuses no more than any that is asked about
# A recording of one tensor, by which `pleat import` is asked for what a device has.
TABLE = "id,lower,upper,size\n0,0,1,512\n"


def parser():
    made = run.Parser(
        prog="pleat estimate",
        usage="pleat estimate [OPTION ...] -- PROGRAM [ARGUMENT ...]",
        description="Runs a few steps of a program in Python on tensors without contents, and says what it would take of a "
        "GPU's memory. The machine needs no GPU; its torch must be one with CUDA.",
        epilog="What the program reads from tensors (losses, say) is 1; where sizes depend on values (experts' tokens, "
        "what a mask keeps) these are known or drawn, as of an untrained model. "
        "Memory that kernels take for themselves is not counted, but for cuBLAS's, nor is the CUDA context. Give the program two or three "
        "steps; the optimizer's state is made in the first. Under torchrun each process is a rank on a GPU of its own, and "
        "collectives do nothing. It ends with 0 also where nothing fits: --json says that in `fits`.",
    )
    made.add_argument("-o", "--output", action=run.FileName, default="", metavar="TRACE",
                      help="write the trace there, for `pleat plan`, `compare`, `report` and the others")
    made.add_argument("-d", "--device-memory", default="80GiB", metavar="SIZE|GPU",
                      help="what the GPU has, by its size or its name: h200, a100-80, ... [80GiB]")
    made.add_argument("--capability", default="", metavar="MAJOR.MINOR",
                      help="its compute capability, by which torch chooses kernels [the named GPU's, else 9.0]")
    made.add_argument("-j", "--json", action="store_true", help="one JSON object on standard output, after what the "
                      "program says")
    made.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def device_bytes(text, error):
    """Memory of a size or of a GPU's name, by the one table of these, which the command has."""
    try:
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write(TABLE)
            table.flush()
            wrong, answer = _job.ask(os.environ, "import", table.name, "--device-memory", text, "--json")
    except OSError as problem:
        run.fail(run.CANNOT_DRAW, "what the GPU has cannot be asked: %s" % problem, "estimate")
    if wrong and wrong.startswith("--device-memory"):
        error(wrong)
    if wrong:
        run.fail(run.CANNOT_DRAW, wrong, "estimate")
    if not answer:
        run.fail(run.CANNOT_DRAW, "the command pleat is not there; $PLEAT_COMMAND may name it", "estimate")
    return json.loads(answer)["device_bytes"]


def said_on(path):
    """The output of this process in which the trace and what is said would be mixed, asked as the command asks it of
    its own (tools/options.c), whose standard error is a pipe here; None: neither."""
    for number, name in ((1, "standard output"), (2, "standard error")):
        with contextlib.suppress(OSError):
            if (os.path.samestat(os.stat(path), os.fstat(number))
                    and (not stat.S_ISCHR(os.fstat(number).st_mode) or os.isatty(number))):
                return name
    return "standard output" if path == "-" else None


def parse(arguments):
    made = parser()
    options = run.parsed(made, arguments)
    options.capability = options.capability or CAPABILITIES.get(options.device_memory.lower(), "9.0")
    parts = options.capability.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        made.error("--capability: %r is none: write 9.0" % options.capability)
    stream = said_on(options.output)
    if stream:
        made.error("--output is a file, not %r: %s is for what is said" % (options.output, stream))
    wrong = _plans.cannot_write(options.output) or run.overwritten(options.output, options.program)
    if wrong:
        run.fail(run.BAD_FILE, "--output: " + wrong, "estimate")
    options.bytes = device_bytes(options.device_memory, made.error)
    return options


def stand_in():
    """The CUDA runtime without a GPU."""
    found = _parts.place("PLEAT_NO_GPU")
    if found is None:
        run.fail(run.CANNOT_DRAW, _parts.missing("PLEAT_NO_GPU"), "estimate")
    return str(found)


def preloadable(path, folder):
    """A name that LD_PRELOAD can have for a file, whose own a space or a colon would end: a link in this folder, then."""
    if not re.search("[ :]", path):
        return path
    link = os.path.join(folder, os.path.basename(path))
    if re.search("[ :]", link):
        run.fail(run.CANNOT_DRAW, "%r cannot be preloaded, as there is a space or a colon in its name, nor by a link in %r: name "
                 "a folder without either in TMPDIR" % (path, folder), "estimate")
    os.symlink(path, link)
    return link


def environment(options, base, folder):
    made = run.with_site(base)
    made["LD_PRELOAD"] = " ".join(filter(None, [preloadable(stand_in(), folder), base.get("LD_PRELOAD")]))
    made["PLEAT_ESTIMATE"] = folder
    made["PLEAT_NO_GPU_BYTES"] = str(options.bytes)
    made["PLEAT_NO_GPU_CAPABILITY"] = options.capability
    for name in ("PLEAT", "PLEAT_RUN", "CUDA_VISIBLE_DEVICES"):
        made.pop(name, None)
    return made


def imported(snapshot):
    """What `pleat import` says of a process's recording."""
    return json.loads(_job.run("import", snapshot, "--json"))


def replayed(snapshot, policy, device):
    return json.loads(_job.run("replay", snapshot, "--policy", policy, "--device-memory", str(device), "--json",
                               answers=(0, run.NO_MEMORY)))


def unlimited(device):
    """Bytes of a device that has enough for what could fit on this one."""
    return max(UNLIMITED, device)


def fits(snapshot, policy, free, device):
    """Whether an allocator serves all of it, by its replay where there is enough: with less it may give back what it
    keeps. What is refused there fits nowhere, and its peak is of what came before."""
    if free["oom"]:
        return False
    return free["peak_physical_bytes"] <= device or not replayed(snapshot, policy, device)["oom"]


def measured(snapshot, device, live):
    """What each allocator takes for what is `live` bytes at most, None where that is more than unlimited(), and which
    serve it on the device."""
    if live > unlimited(device):
        return dict.fromkeys(ALLOCATORS), dict.fromkeys(ALLOCATORS, False)
    free = {policy: replayed(snapshot, policy, unlimited(device)) for policy in ALLOCATORS}
    return ({policy: None if answer["oom"] else answer["peak_physical_bytes"] for policy, answer in free.items()},
            {policy: fits(snapshot, policy, answer, device) for policy, answer in free.items()})


def amount(bytes, device):
    """What measured() says that an allocator takes."""
    return "more than %g TiB" % (unlimited(device) / TIB) if bytes is None else "%.3f GiB" % (bytes / GIB)


def joined(names):
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def verdict(figures, device):
    """Under which allocators it fits on a device, which is a size or a name."""
    device = "one " + device if device.lower() in CAPABILITIES else "a GPU of " + device
    yes, no = ([ALLOCATORS[policy] for policy in ALLOCATORS if figures["fits"][policy] == does] for does in (True, False))
    if not yes:
        return "it does not fit on %s, not under %s" % (device, joined(no).replace(" and ", " or "))
    return "it fits on %s under %s%s" % (device, joined(yes), ", not under " + joined(no) if no else "")


def unknown(processes):
    """What is said of processes that allocated and left no recording."""
    return "%s ended without Python's exit (by os._exit, say), or could not write: what %s took is not known" % (
        ("%d processes" % processes, "they") if processes > 1 else ("a process", "it"))


def write(options, snapshot):
    """Writes the trace. Why it could not; None: it did."""
    try:
        # With all that the shell has opened: /dev/fd/63 is what it writes for >(gzip).
        _job.run("import", snapshot, "--device-memory", str(options.bytes), "-o", options.output, close_fds=False)
    except (OSError, RuntimeError, ValueError) as problem:
        return str(problem).replace("pleat import: ", "", 1)
    return None


def tell(options, snapshots, left_nothing, interrupted):
    """Says what was recorded, of the process that took most, and how many left nothing; of an interrupted program,
    until then. This process ends where the trace could not be written."""
    told, snapshot = max(((imported(one), one) for one in snapshots), key=lambda pair: pair[0]["peak_live_bytes"])
    wrong = write(options, snapshot) if options.output else None
    with _progress.shown("estimate", lambda: "allocators"):
        takes, served = measured(snapshot, options.bytes, told["peak_live_bytes"])
    figures = {"processes": len(snapshots), "unknown_processes": left_nothing, "requests": told["requests"], "peak_live_bytes": told["peak_live_bytes"]}
    figures.update({policy + "_physical_bytes": bytes for policy, bytes in takes.items()})
    figures.update({"device_bytes": options.bytes, "fits": served, "interrupted": interrupted,
                    "recording_full": told["entries"] >= _recording.EVENTS_MOST})
    said = [json.dumps(figures)] if options.json else lines(options, figures, "" if wrong else options.output)
    run.say("".join(line + "\n" for line in said), "estimate")
    if wrong:
        run.fail(run.BAD_FILE, "the trace could not be written: " + wrong, "estimate")


def lines(options, figures, written=""):
    """What tell() says in words. `written`: the trace, where it was."""
    count, processes = figures["requests"], figures["processes"]
    made = ["the program was interrupted: these are the figures of what it had done so far"] * figures["interrupted"]
    if figures["unknown_processes"]:
        made.append(unknown(figures["unknown_processes"]))
    if figures["recording_full"]:
        made.append("the recording was full: these are the figures of its %d events" % _recording.EVENTS_MOST)
    made += [
        "%s%d request%s; most live at once %.3f GiB" % (
            "of %d processes, the one that takes most: " % processes if processes > 1 else "",
            count, "" if count == 1 else "s", figures["peak_live_bytes"] / GIB),
        "; ".join("%s would take %s" % (name, amount(figures[policy + "_physical_bytes"], options.bytes))
                  for policy, name in ALLOCATORS.items()),
        verdict(figures, options.device_memory),
        "the CUDA context is not counted, nor what kernels take for themselves but for cuBLAS's"]
    if written:
        made.append("wrote %s" % written)
    return ["pleat estimate: " + line for line in made]


def signal_name(number):
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time one
        return str(number)


def steps_of(folder):
    """What the process that has come farthest does, of those that have allocated; it may begin to write just now."""
    with contextlib.suppress(ValueError, OSError):
        return "iteration %d" % max(1 + int(path.read_text() or 0) for path in pathlib.Path(folder).glob("*.begun"))
    return "the program"


def run_program(words, variables):
    beside = _progress.shown("estimate", lambda: steps_of(variables["PLEAT_ESTIMATE"]))
    try:
        return _signals.run(words, variables, beside)
    except _signals.NotBegunError as refusal:
        run.cannot_execute(words[0], refusal.problem, "estimate")


@_signals.ending_by_interrupts
def main(arguments=None):
    run.stand_for_closed()
    options = parse(sys.argv[1:] if arguments is None else arguments)
    program = run.program_of(options.program[0], "estimate")
    run.warn_of_deaf_flag(options.program, "estimate")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # also where it begins in the background of a script
    _signals.end_in_order()
    with tempfile.TemporaryDirectory(prefix="pleat-estimate-") as folder:
        interrupted, code = run_program([program, *options.program[1:]], environment(options, os.environ, folder))
        left_nothing = len(list(pathlib.Path(folder).glob("*.begun")))
        # One that was ended while it wrote has left a part, which is nothing.
        snapshots = sorted(str(path) for path in pathlib.Path(folder).glob("*.pickle")
                           if not path.with_suffix(".begun").exists())
        # Where SIGINT came to the program alone, Python says it by the signal itself, a shell by its number.
        interrupted = interrupted or code in (-signal.SIGINT, _signals.INTERRUPTED)
        known = interrupted and snapshots
        if code < 0 and not known:
            run.fail(128 - code, "the program was ended by the signal %s" % signal_name(-code), "estimate")
        if code and not known:
            run.fail(_signals.INTERRUPTED if interrupted else code, "the program ended with %d" % code, "estimate")
        if not snapshots:
            why = "nothing was allocated on a GPU: does the program use the device 'cuda'?"
            if left_nothing:
                why = unknown(left_nothing) + "; let each end by itself, and TMPDIR name a folder with room"
            run.fail(_signals.INTERRUPTED if interrupted else 1, why, "estimate")
        try:
            tell(options, snapshots, left_nothing, interrupted)
        except (OSError, RuntimeError, ValueError, KeyError) as problem:
            run.fail(run.BAD_FILE, str(problem), "estimate")
    sys.exit(_signals.INTERRUPTED if interrupted else 0)


if __name__ == "__main__":
    main()
