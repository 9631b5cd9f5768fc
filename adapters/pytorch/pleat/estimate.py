"""What a program would take on a GPU, on a machine without one: `pleat estimate [OPTION ...] -- python3 train.py ...`.

The program runs with its own torch, which has CUDA, and tensors without contents: a step of a model of any size
takes seconds and no memory. What it allocates becomes a recording like any other.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

from . import _job, parse_size, run

HERE = pathlib.Path(__file__).resolve().parent
GIB = 1 << 30


def parser():
    made = argparse.ArgumentParser(
        prog="pleat estimate",
        usage="pleat estimate [OPTION ...] -- PROGRAM [ARGUMENT ...]",
        description="Runs a few steps of a program on tensors without contents, and says what it would take of a "
        "GPU's memory. The machine needs no GPU; its torch must be one with CUDA.",
        epilog="What the program reads from tensors (losses, say) is 1; where sizes depend on values (experts' tokens, "
        "what a mask keeps) these are known or drawn, as of an untrained model. "
        "Memory that kernels take for themselves is not counted, but for cuBLAS's. Give the program two or three "
        "steps; the optimizer's state is made in the first.",
    )
    made.add_argument("-o", "--output", default="", metavar="TRACE",
                      help="write the trace there, for `pleat plan`, `compare`, `report` and the others")
    made.add_argument("--device-memory", default="80GiB", metavar="SIZE", help="memory that the GPU has [80GiB]")
    made.add_argument("--capability", default="9.0", metavar="MAJOR.MINOR",
                      help="its compute capability, by which torch chooses kernels [9.0]")
    made.add_argument("-j", "--json", action="store_true", help="one JSON object on standard output, after what the "
                      "program says")
    made.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return made


def parse(arguments):
    made = parser()
    options = run.parsed(made, arguments)
    try:
        options.bytes = parse_size(options.device_memory)
    except ValueError as problem:
        made.error("--device-memory: " + str(problem).replace("pleat: ", "", 1))
    parts = options.capability.split(".")
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        made.error("--capability: %r is none: write 9.0" % options.capability)
    folder = os.path.dirname(os.path.abspath(options.output))
    if options.output and not os.path.isdir(folder):
        run.fail(run.BAD_FILE, "--output: there is no folder %r" % folder, "estimate")
    return options


def stand_in():
    """The CUDA runtime without a GPU: $PLEAT_NO_GPU, the package's, that of this tree's build."""
    asked = os.environ.get("PLEAT_NO_GPU")
    places = [pathlib.Path(asked)] if asked else [HERE / "lib/libpleat_no_gpu.so",
                                                  HERE.parents[2] / "build/release/lib/pleat/libpleat_no_gpu.so"]
    for place in places:
        if place.is_file():
            return str(place)
    run.fail(run.CANNOT_DRAW, "libpleat_no_gpu.so is missing: looked for %s; build it (cmake --build --preset "
             "release), install the package again, or set PLEAT_NO_GPU" % ", ".join(map(str, places)), "estimate")


def environment(options, base, folder):
    made = run.with_site(base)
    made["LD_PRELOAD"] = " ".join(filter(None, [stand_in(), base.get("LD_PRELOAD")]))
    made["PLEAT_ESTIMATE"] = folder
    made["PLEAT_NO_GPU_BYTES"] = str(options.bytes)
    made["PLEAT_NO_GPU_CAPABILITY"] = options.capability
    for name in ("PLEAT", "PLEAT_RUN", "CUDA_VISIBLE_DEVICES"):
        made.pop(name, None)
    return made


def imported(snapshot, output):
    """What `pleat import` says of a process's recording."""
    return json.loads(_job.run("import", snapshot, "--json", *(["-o", output] if output else [])))


def tell(options, snapshots):
    """Says what was recorded, of the process that took most."""
    told = max(((imported(snapshot, ""), snapshot) for snapshot in snapshots), key=lambda one: one[0]["peak_live_bytes"])
    if options.output:
        imported(told[1], options.output)
    figures = {"processes": len(snapshots), "requests": told[0]["requests"],
               "peak_live_bytes": told[0]["peak_live_bytes"]}
    for policy in ("native", "pleat"):
        replayed = json.loads(_job.run("replay", told[1], "--policy", policy, "--json"))
        figures[policy + "_physical_bytes"] = replayed["peak_physical_bytes"]
    if options.json:
        print(json.dumps(figures))
        return
    print("pleat estimate: %d requests; most live at once %.3f GiB; PyTorch's native allocator would take %.3f GiB, "
          "Pleat %.3f GiB" % (figures["requests"], *(figures[name] / GIB for name in (
              "peak_live_bytes", "native_physical_bytes", "pleat_physical_bytes"))))
    print("pleat estimate: %s on a GPU of %s" % (
        "it fits" if figures["pleat_physical_bytes"] <= options.bytes else "it does not fit", options.device_memory))
    if options.output:
        print("pleat estimate: wrote %s" % options.output)


def begin_program():
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def run_program(words, variables):
    """How the program ended. SIGINT is its own; when this process is terminated the program goes, and so does what
    was made for it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # until the program is known
    program = subprocess.Popen(words, env=variables, preexec_fn=begin_program)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        return program.wait()
    except BaseException:
        program.kill()
        program.wait()
        raise


def main(arguments=None):
    options = parse(sys.argv[1:] if arguments is None else arguments)
    program = run.program_of(options.program[0], "estimate")
    with tempfile.TemporaryDirectory(prefix="pleat-estimate-") as folder:
        code = run_program([program, *options.program[1:]], environment(options, os.environ, folder))
        snapshots = sorted(str(path) for path in pathlib.Path(folder).glob("*.pickle"))
        if code:
            run.fail(run.CANNOT_DRAW if code < 0 else code,
                     "the program ended with %d" % code, "estimate")
        if not snapshots:
            run.fail(1, "nothing was allocated on a GPU", "estimate")
        try:
            tell(options, snapshots)
        except (OSError, RuntimeError, ValueError, KeyError) as problem:
            run.fail(run.BAD_FILE, str(problem), "estimate")
    sys.exit(0)


if __name__ == "__main__":
    main()
