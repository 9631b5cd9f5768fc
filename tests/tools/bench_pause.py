"""`pleat bench pause`: both backends give every figure, verb by verb, and odd options are refused.

usage: bench_pause.py PLEAT FAKE_LIBCUDA
"""

import json
import os
import subprocess
import sys

PLEAT, LIBRARY = sys.argv[1:3]
SMALL = ("--size", "64MiB", "--tensor", "8MiB", "--pin", "16MiB", "--turns", "1")


def run(*arguments):
    return subprocess.run([PLEAT, "bench", "pause", *arguments], capture_output=True, text=True,
                          env={**os.environ, "PLEAT_CUDA_LIBRARY": LIBRARY}, timeout=120)


def expect(truth, what):
    if not truth:
        sys.exit(f"bench_pause.py: {what}")


def check_figures(backend, ways, reads=True):
    done = run("--backend", backend, *SMALL, "--json")
    expect(done.returncode == 0, f"{backend}: exit {done.returncode}: {done.stderr}")
    figures = json.loads(done.stdout)
    expect(figures["backend"] == backend, f"backend {figures['backend']}")
    # Each way by one thread and by eight, twice.
    expect(len(figures["pins"]) == 4 * ways, f"{backend}: pins {figures['pins']}")
    expect(all(row["bytes_per_second"] > 0 for row in figures["pins"] + [
        {"bytes_per_second": min(row["in_bytes_per_second"], row["out_bytes_per_second"])}
        for row in figures["copies"]]), f"{backend}: rates")
    expect([row["streams"] for row in figures["copies"]][:3] == [1, 2, 4], f"{backend}: streams")
    for name in ("alone", "contested", "settled"):
        turn = figures[name]
        expect(all(turn[key] > 0 for key in ("pause_seconds", "resume_to_copy", "copy_seconds", "bare_seconds")),
               f"{backend}: {name}")
        # What was made is given back, each handle, and all bytes are copied both ways.
        made, gone = turn["resume_verbs"], turn["pause_verbs"]
        expect(made["create"]["calls"] == gone["release"]["calls"] > 0, f"{backend}: {name}: handles")
        copied = [made.get(verb, {"calls": 0})["calls"] for verb in ("copy", "copy_by_threads")]
        expect(sum(copied) == gone["copy"]["calls"] > 0, f"{backend}: {name}: copies")
        expect(copied[0] > 0 and (copied[1] > 0) == reads, f"{backend}: {name}: by engines and threads {copied}")
        expect("create" not in gone and "host_alloc" not in gone, f"{backend}: {name}: {gone}")
    expect(("in_by_threads_bytes_per_second" in figures) == reads, f"{backend}: reads")
    # One turn that does not count, and one of each kind.
    expect(figures["checked_bytes"] == 4 * figures["paused_bytes"], f"{backend}: contents")


def check_text(backend):
    text = run("--backend", backend, *SMALL)
    expect(text.returncode == 0 and "resume after somebody took all" in text.stdout
           and text.stdout.count("memory that is made for it alone:") == 3, f"{backend}: text")
    expect(text.stdout.count("by threads of the device:") == 3
           and "256.000 MiB in 4 resumes" in text.stdout, f"{backend}: what was checked")


def check_whole_tensors():
    done = run(*SMALL, "--size", "20MiB", "--tensor", "8MiB", "--json")
    figures = json.loads(done.stdout)
    expect(figures["paused_bytes"] == 16 << 20, f"paused {figures['paused_bytes']}")
    expect(figures["checked_bytes"] == 4 * figures["paused_bytes"], "what was checked of whole tensors")


def check_refusals():
    for arguments in (["--backend", "tape"], ["--pin", "3MiB"], ["extra"], ["--turns", "0"],
                      ["--size", "8MiB", "--tensor", "16MiB"]):
        done = run(*arguments)
        expect(done.returncode == 2, f"{arguments}: exit {done.returncode}")


check_figures("host", 1)
check_figures("cuda", 3)
check_text("host")
check_text("cuda")
check_whole_tensors()
os.environ["PLEAT_FAKE_CUDA_READS_NOTHING"] = "1"
check_figures("cuda", 3, reads=False)
check_refusals()
