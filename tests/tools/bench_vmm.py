"""`pleat bench vmm`: both backends give every figure, and odd options are refused.

usage: bench_vmm.py PLEAT FAKE_LIBCUDA
"""

import json
import os
import subprocess
import sys

PLEAT, LIBRARY = sys.argv[1:3]


def run(*arguments, **environment):
    return subprocess.run([PLEAT, "bench", *arguments], capture_output=True, text=True,
                          env={**os.environ, **environment}, timeout=120)


def expect(truth, what):
    if not truth:
        sys.exit(f"bench_vmm.py: {what}")


def check_figures(backend):
    done = run("vmm", "--backend", backend, "--plan", "1GiB", "--stream", "32MiB", "--json",
               PLEAT_CUDA_LIBRARY=LIBRARY)
    expect(done.returncode == 0, f"{backend}: exit {done.returncode}: {done.stderr}")
    figures = json.loads(done.stdout)
    expect(figures["backend"] == backend, f"backend {figures['backend']}")
    expect(figures["granularity"] == 2 << 20, "granularity")
    batches = [row["batch"] for row in figures["verbs"] if row["handle_bytes"] == 2 << 20]
    expect(batches == [1, 8, 64, 512, 4096], f"batches {batches}")
    for row in figures["verbs"]:
        expect(all(row[f"{verb}_ns"] >= 0 for verb in
                   ("create", "map", "set_access", "unmap", "release")), f"verbs {row}")
    expect(figures["aliases"][0]["aliases"] == 1024, "aliases")
    # 512 pages: 487 unfolded in one large handle, 25 folded ones mapped twice.
    expect(figures["plan"]["maps"] == 1 + 25 + 25, f"plan {figures['plan']}")
    expect(figures["plan"]["single_chunk_maps"] == 512, f"plan {figures['plan']}")
    expect(figures["plan"]["map_seconds"] > 0, "plan")
    expect(figures["stream"]["shuffled_bytes_per_second"] > 0, "stream")
    expect(("launch" in figures) == (backend == "cuda"), "launch")
    expect(isinstance(figures["goals_met"], bool), "goals_met")
    table = run("vmm", "--backend", backend, "--plan", "1GiB", "--stream", "32MiB",
                PLEAT_CUDA_LIBRARY=LIBRARY)
    expect(table.returncode == 0 and "set_access us" in table.stdout, f"{backend}: table")


def check_smaller_device():
    """A GPU that has no room for the usual plan of 100 GiB is measured with what it has room for."""
    done = run("vmm", "--backend", "cuda", "--stream", "32MiB", "--json", PLEAT_CUDA_LIBRARY=LIBRARY,
               PLEAT_FAKE_CUDA_GIB="16")
    expect(done.returncode == 0, f"16 GiB: exit {done.returncode}: {done.stderr}")
    expect(json.loads(done.stdout)["plan"]["bytes"] == 12 << 30, "16 GiB: plan")


def check_refusals():
    for arguments in (["vmm", "--backend", "tape"], ["vmm", "--stream", "33MiB"],
                      ["vmm", "--plan", "much"], ["vmm", "extra"], ["nothing"], [],
                      ["vmm", "--device", "x"], ["vmm", "--plan", "0"]):
        done = run(*arguments)
        expect(done.returncode == 2, f"{arguments}: exit {done.returncode}")
    for arguments in (["--help"], ["vmm", "--help"]):
        done = run(*arguments)
        expect(done.returncode == 0 and done.stdout.startswith("usage:"), f"{arguments}")
    missing = run("vmm", "--backend", "cuda", PLEAT_CUDA_LIBRARY="/nowhere/libcuda.so")
    expect(missing.returncode == 5 and "/nowhere/libcuda.so" in missing.stderr,
           f"no driver: exit {missing.returncode}: {missing.stderr}")
    beyond = run("vmm", "--device", "7")
    expect(beyond.returncode == 5 and "device 7" in beyond.stderr, "device 7")


for name in ("host", "cuda"):
    check_figures(name)
check_smaller_device()
check_refusals()
