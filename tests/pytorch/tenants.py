"""Memory that comes and goes, on a real GPU: tenants.py [--parts NAME,...] [--out FILE].

A trainer in turns with a process that makes its memory by cuMemCreate alone, against empty_cache with
torch's own allocator; pause and resume against the copy at the link's bandwidth; tenants under caps that
sum to the device; a lender that wakes up; a job that is too large for its budget; the limits of the
environment. Each process is a part of tenant_parts.py. What a part measured is printed, and with --out
written as a line of JSON, as soon as it is known; what was expected of it and does not hold is told at
the end, with exit 1. Without a GPU, exit 77. Each part runs on its own, on an H100 in at most two minutes;
--share 0.2 does the same with a fifth of the memory.
"""

import argparse
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PARTS = pathlib.Path(__file__).with_name("tenant_parts.py")
UNIT = 1 << 30


def environment(more):
    found = dict(os.environ, **more)
    library = ROOT / "build/release/lib/libpleat.so.0"
    if library.exists():
        found.setdefault("PLEAT_LIBRARY", str(library))
    return found


class Process:
    """A part that runs, and is killed when it takes longer than it may."""

    def __init__(self, name, asked, seconds=150, **more):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, str(PARTS), name, json.dumps(asked)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=environment(more))
        self.errors = []
        self.reader = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self.reader.start()
        self.timer = threading.Timer(seconds, self.process.kill)
        self.timer.daemon = True
        self.timer.start()

    def ready(self):
        line = self.process.stdout.readline()
        if line != "ready\n":
            raise RuntimeError("%s: %s%s" % (self.name, line, self.failed()))

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def failed(self):
        self.process.wait(20)
        self.reader.join(5)
        return "".join(self.errors)[-3000:]

    def answer(self):
        """What it printed last."""
        out = self.process.stdout.read()
        self.process.wait()
        self.timer.cancel()
        if self.process.returncode:
            raise RuntimeError("%s: exit %d: %s" % (self.name, self.process.returncode, self.failed()))
        return json.loads(out.splitlines()[-1])

    def kill(self):
        self.timer.cancel()
        self.process.kill()
        self.process.wait()


class Used:
    """NVML's count of the device's memory, the most that it was."""

    def __init__(self):
        self.most = 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        while not self.over.wait(0.1):
            told = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                                  capture_output=True, text=True).stdout.split()
            self.most = max(self.most, int(told[0]) << 20 if told and told[0].isdigit() else 0)

    def end(self):
        self.over.set()
        self.thread.join()
        return self.most


class Check:
    """One run of the parts."""

    def __init__(self, share, out):
        self.share = share
        self.out = out
        self.missed = []
        self.total = self.device_bytes()

    @staticmethod
    def device_bytes():
        """Asked for by another process: this one has no context, which takes memory."""
        return int(subprocess.run(
            [sys.executable, "-c", "import torch; print(torch.cuda.get_device_properties(0).total_memory)"],
            capture_output=True, text=True, check=True).stdout)

    def gib(self, of_80):
        """So many GiB of a GPU of 80, of this one and of the share that is asked for."""
        return of_80 * self.share * self.total / (80 * UNIT)

    def tell(self, name, figures, **also):
        """Prints and writes them; `also` is only written."""
        print("%s: %s" % (name, json.dumps(figures)), flush=True)
        if self.out is not None:
            with open(self.out, "a") as file:
                file.write(json.dumps({"name": name, **figures, **also}) + "\n")

    def expect(self, holds, text):
        if not holds:
            self.missed.append(text)
            print("MISSED: " + text, flush=True)

    def run(self, name, asked, **more):
        process = Process(name, asked, **more)
        try:
            return process.answer()
        finally:
            process.kill()

    # ---- the parts ----

    def verbs(self):
        self.tell("verbs", self.run("verbs", {"bytes": int(self.gib(4)) << 30 or UNIT}))

    def overlap(self):
        self.tell("overlap", self.run("overlap", {"bytes": (int(self.gib(4)) or 1) << 30}))

    def turn(self, how, **asked):
        """The figures of a trainer's turns, told but for its losses."""
        found = self.run("turns", {"how": how, **asked})
        losses = found.pop("losses")
        self.tell("turns", found, losses=losses)
        return found, losses

    def small_job(self):
        """A trainer whose activations are half of what it has."""
        return {"gib": self.gib(16), "rows": 8192, "steps": 1}

    def large_job(self):
        """A trainer of 56 GiB, for which torch's own allocator reserves 70."""
        return {"gib": self.gib(56), "rows": 2048, "steps": 1}

    def small(self):
        self.trims("small", self.small_job(), turns=10)

    def large(self):
        self.trims("large", self.large_job(), turns=50)

    def small_paused(self):
        self.pauses("small", self.small_job())

    def large_paused(self):
        self.pauses("large", self.large_job())

    def trims(self, name, job, turns):
        native, native_losses = self.turn("native", turns=10, **job)
        trim, losses = self.turn("trim", turns=turns, **job)
        count = min(len(losses), len(native_losses))
        self.expect(losses[:count] == native_losses[:count], "%s: trimmed losses are native's" % name)
        self.expect(trim["gap"] < 1, "%s: trim gives back in under a second: %.2f" % (name, trim["gap"]))
        self.expect(trim["over_most"] <= 0.01 * trim["live"],
                    "%s: at most what lives plus 1 %% is held: %.4f" % (name, trim["over_most"] / trim["live"]))
        gain = native["turn_seconds"] / trim["turn_seconds"]
        self.tell(name + " gain", {"throughput_of_empty_cache": gain})
        self.expect(gain >= 1.2, "%s: 1.2 of the throughput under empty_cache: %.3f" % (name, gain))

    def pauses(self, name, job):
        _, native_losses = self.turn("native", turns=4, **job)
        pause, losses = self.turn("pause", turns=4, **job)
        count = min(len(losses), len(native_losses))
        self.expect(losses[:count] == native_losses[:count], "%s: paused losses are native's" % name)
        self.expect(pause["resume_to_copy"] < 1.2,
                    "%s: resume takes 1.2 of the copy: %.2f" % (name, pause["resume_to_copy"]))
        self.expect(pause["resume_to_bare"] < 1.2, "%s: resume takes 1.2 of the copy into memory made as late: %.2f"
                    % (name, pause["resume_to_bare"]))
        discard, _ = self.turn("discard", turns=3, **job)
        self.expect(discard["gap"] < 1, "%s: discard gives back in under a second: %.2f" % (name, discard["gap"]))
        self.expect(discard["rest_most"] < UNIT, "%s: under 1 GiB is held: %d" % (name, discard["rest_most"]))

    def caps(self):
        """Three tenants at caps that sum to the device."""
        cap = self.total // 3 >> 21 << 21
        job = {"gib": self.gib(12), "rows": 4096, "iterations": 16}
        alone = self.run("solo", {"seeds": [1, 2, 3], **job})["losses"]
        with self.ledger() as shared:
            used = Used()
            tenants = [Process("capped", {"cap": cap, "seed": seed, "greedy": seed == 2, **job},
                               PLEAT_CONF="tenants:user,tenant:job-%d" % seed, **shared) for seed in (1, 2, 3)]
            try:
                answers = [each.answer() for each in tenants]
            finally:
                for each in tenants:
                    each.kill()
                most = used.end()
        other = sum(each["other"] or 0 for each in answers)
        self.tell("caps", {"cap": cap, "nvml_most": most, "physical": [each["physical"] for each in answers],
                           "other": other, "refused": [each["refused"] for each in answers]})
        self.expect(most <= min(3 * cap + other, self.total), "caps: never above the sum and the headroom")
        for seed, each in zip((1, 2, 3), answers):
            self.expect(each["losses"] == alone[str(seed)], "caps: losses of job %d are its solo run's" % seed)
            self.expect(each["refused"] == (seed == 2), "caps: who asks over its cap is refused, and nobody else")
            self.expect(each["physical"] <= cap, "caps: nobody is above its cap")

    def guarantee(self):
        """A trainer guaranteed half of the device has a job of seven eighths of it until its neighbour wakes."""
        share = self.share * self.total
        job = 0.86 * share
        gib = self.gib(32)
        state = 0.75 * gib * UNIT
        rows = int((job - state) / (gib * 4 * 2 * 16384)) // 256 * 256
        wanted = int(0.37 * share) >> 21 << 21
        # With a share of the device the lender has the rest of it for good.
        rest = int(0.98 * (self.total - share)) >> 21 << 21
        with self.ledger() as shared, tempfile.TemporaryDirectory() as folder:
            stop = pathlib.Path(folder) / "stop"
            used = Used()
            borrower = Process("borrower", {"gib": gib, "rows": rows, "stop": str(stop), "seconds": 60},
                               PLEAT_CONF="tenants:user,tenant:borrower,guarantee:%d" % int(0.5 * share), **shared)
            lender = Process("lender", {"bytes": wanted, "rest": rest, "holds": 4},
                             PLEAT_CONF="tenants:user,tenant:lender,guarantee:%d" % (wanted + rest), **shared)
            try:
                lender.ready()
                borrower.ready()
                lender.go()
                lent = lender.answer()
                time.sleep(2)
                stop.touch()
                told = borrower.answer()["iterations"]
            finally:
                lender.kill()
                borrower.kill()
                most = used.end()
        meanwhile = [each for each in told if lent["begun"] < each["at"] <= lent["ended"]]
        after = [each for each in told if each["at"] > lent["ended"]]
        self.tell("guarantee", {
            "wanted": wanted, "guarantee": int(0.5 * share), "borrowed_most": max(each["physical"] for each in told),
            "seconds": lent["ended"] - lent["begun"], "iterations_meanwhile": len(meanwhile),
            "refused": sum(each["refused"] for each in told), "lender_refused": lent["refused"], "rows": [told[0]["rows"], told[-1]["rows"]],
            "iteration_seconds": told[5]["at"] - told[4]["at"], "trained_after": sum(not each["refused"] for each in after),
            "nvml_most": most}, iterations=told)
        self.expect(max(each["physical"] for each in told) >= 0.8 * share, "guarantee: the job borrows")
        self.expect(lent["got"] == wanted and lent["good"], "guarantee: the lender has its memory")
        self.expect(len(meanwhile) <= 2, "guarantee: within two iterations: %d" % len(meanwhile))
        self.expect(sum(not each["refused"] for each in after) >= 3, "guarantee: both go on")

    def spill(self):
        """A job 10 % too large for its budget."""
        job = {"gib": self.gib(12), "rows": 4096, "iterations": 14}
        native = self.run("spill", {"how": "native", **job})
        free = self.run("spill", {"how": "pleat", **job})
        budget = int(free["physical"] / 1.1) >> 21 << 21
        spilled = self.run("spill", {"how": "pleat", "budget": budget, **job})
        late = range(6, 14)
        before = sorted(free["seconds"][i] for i in late)[4]
        after = sorted(spilled["seconds"][i] for i in late)[4]
        # Kernels read and write what the host keeps once an iteration; what moves goes out to pinned memory, and from
        # there to the host's, or the other way round.
        crossed = sum(2 * spilled["host"][i - 1] + 3 * (spilled["moved"][i] - spilled["moved"][i - 1]) for i in late) / len(late)
        explained = crossed / spilled["link"]
        self.tell("spill", {
            "live": free["live"], "physical": free["physical"], "budget": budget, "seconds": before,
            "spilled_seconds": after, "slowdown": after / before, "host": spilled["host"][-1],
            "moved": spilled["moved"], "link": spilled["link"], "explained_seconds": explained,
            "to_explained": (after - before) / explained if explained else None}, iterations=spilled["seconds"])
        self.expect(spilled["losses"] == native["losses"], "spill: losses are native's")
        self.expect(free["losses"] == native["losses"], "spill: losses without a budget are native's")
        self.expect(spilled["physical"] <= budget and spilled["host"][-1] > 0, "spill: within the budget, by the host's memory")
        self.expect(explained > 0 and after - before < 2 * explained, "spill: twice what the link explains")

    def limits(self):
        """Each variable of the environment."""
        for name, value in (("CUDA_DEVICE_MEMORY_LIMIT", "8g"), ("CUDA_DEVICE_MEMORY_LIMIT_0", "8192m"),
                            ("GPU_MEMORY_LIMIT", "8g"), ("NVIDIA_GPU_MEMORY_LIMIT", "8Gi"),
                            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G")):
            self.limit("limits", name, **{name: value})

    def nvml(self):
        """A limit of NVML's, which drivers of 2025 do not have: a library that has one stands before theirs."""
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "libnvml_limits.so"
            subprocess.run([os.environ.get("CC", "cc"), "-shared", "-fPIC", "-o", str(library),
                            str(pathlib.Path(__file__).with_name("nvml_limits.c")), "-ldl"], check=True)
            self.limit("nvml", "the control group's limit", PLEAT_NVML_LIBRARY=str(library), TEST_NVML_LIMIT=str(8 * UNIT))

    def limit(self, part, name, **environment):
        """A process held to 8 GiB: it says by what, keeps to it, and knows what else it has."""
        got = self.run("limits", {}, **environment)
        self.tell(part, {**got, "by": name, "text": got["text"][-200:]})
        self.expect(got["found"]["name"] == name and name in got["text"], "%s: %s is named" % (part, name))
        self.expect(got["physical"] <= 8 * UNIT - (got["after"]["other_bytes"] or 0), "%s: %s is obeyed" % (part, name))
        if got["nvml_other"] is not None and got["found"]["other_bytes"] is not None:
            self.expect(abs(got["found"]["other_bytes"] - got["nvml_other"]) < 0.02 * got["nvml_other"],
                        "%s: headroom is NVML's within 2 %%" % part)

    @staticmethod
    def ledger():
        return Ledger()


class Ledger:
    """A folder for a ledger of its own."""

    def __enter__(self):
        self.folder = tempfile.mkdtemp(dir="/dev/shm")
        return {"PLEAT_TENANTS_DIR": self.folder}

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)


# The order in which a run that is cut short has told the most.
ALL = ("small_paused", "large_paused", "large", "small", "guarantee", "spill", "caps", "limits", "nvml", "verbs",
       "overlap")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(ALL), help="some of: %(default)s")
    parser.add_argument("--out", help="a file to which figures are added as lines of JSON")
    parser.add_argument("--share", type=float, default=1.0, help="of the device's memory that is used [1]")
    options = parser.parse_args()
    names = options.parts.split(",")
    if unknown := [name for name in names if name not in ALL]:
        parser.error("no such part: %s" % ", ".join(unknown))
    try:
        import torch
    except ImportError:
        torch = None
    if torch is None or torch.version.cuda is None or not torch.cuda.is_available():
        print("no torch with CUDA, or no GPU: skipped")
        return 77
    check = Check(options.share, options.out)
    for name in names:
        begun = time.monotonic()
        try:
            getattr(check, name)()
        except Exception as problem:  # the others are told all the same
            check.expect(False, "%s: %s" % (name, str(problem).strip()[-600:]))
        check.tell("part", {"part": name, "seconds": round(time.monotonic() - begun, 1)})
    check.tell("missed", {"missed": check.missed})
    return 1 if check.missed else 0


if __name__ == "__main__":
    sys.exit(main())
