"""What recompute.py knows of a process's device, and the ladder that the command makes of a recording, under Pleat."""

import contextlib
import json
import os
import tempfile
import time

from .. import _job
from .offload import Copies

BETWEEN = "between"  # the phase of what is in no block: without one it would count as the block's before it
PROBE = 64 << 20  # bytes that are copied to find out how fast the link is


def options(costs):
    """As the command takes them."""
    lists = [("--block-ns", costs["block_ns"]), ("--attention-ns", costs["attention_ns"])]
    told = [part for name, times in lists for part in (name, ",".join(map(str, times)))]
    return told + (["--link", str(costs["link"])] if costs["link"] else [])


class World:
    """A process's, under Pleat."""

    def __init__(self, torch, package, offloads=False):
        self.torch = torch
        self.package = package
        self.inside = BETWEEN
        self.measured = None if offloads else 0

    @contextlib.contextmanager
    def phase(self, name):
        outer, self.inside = self.inside, name
        try:
            with self.package.phase(name):
                yield
        finally:
            self.inside = outer
            self.package._enter_phase(outer)

    def timer(self):
        begin = self.torch.cuda.Event(enable_timing=True)
        begin.record()

        def ended():
            end = self.torch.cuda.Event(enable_timing=True)
            end.record()

            def nanoseconds():
                end.synchronize()
                return begin.elapsed_time(end) * 1e6

            return nanoseconds

        return ended

    def recording(self):
        library = self.package._library
        return not library.pleat_torch_recorded(max(library.pleat_torch_first_device(), 0))

    def errors(self):
        return self.torch.cuda.memory_stats().get("num_ooms", 0)

    def hold(self, budget, remedy):
        self.listen(remedy)
        self.torch.cuda.empty_cache()
        self.package._call(self.package._library.pleat_torch_budget, budget)

    def listen(self, remedy):
        """To errors of the allocator; torch's pluggable one does not tell of them."""
        set_remedy = getattr(self.package._library, "pleat_torch_remedy", None)

        def told(device, asked, most, free):
            set_remedy(remedy(self.torch.cuda.memory_allocated(device), asked).encode())

        if set_remedy is not None:
            self.torch._C._cuda_attach_out_of_memory_observer(told)

    def link(self):
        """The slower of both directions; measured once, where offloading was asked for (docs/decisions.md, D335)."""
        if self.measured is None:
            copies, device = self.copies(), self.torch.device("cuda", self.torch.cuda.current_device())
            try:
                there = self.torch.empty(PROBE, dtype=self.torch.uint8, device=device)
                here = copies.host(PROBE)
                copies.copy([(here, there)], device)  # the first touches the memory
                spent = [self.spent(copies, pair, device) for pair in ((here, there), (there, here))]
                self.measured = int(PROBE * 1e9 / max(spent))
            except RuntimeError:  # no memory, here or there
                self.measured = 0
        return self.measured

    def spent(self, copies, pair, device):
        self.torch.cuda.synchronize(device)
        began = time.perf_counter_ns()
        copies.copy([pair], device).synchronize()
        return time.perf_counter_ns() - began

    def copies(self):
        return Copies(self.torch)

    def took(self):
        return sum(self.package.stats(device)["physical_bytes"] for device in self.package._used_devices())

    def trim(self):
        self.package.trim()

    def asked(self):
        return self.package._taken()

    def host_bytes(self):
        """Half of what is available, shared with the host's other ranks."""
        try:
            with open("/proc/meminfo", encoding="ascii") as file:
                kib = dict(line.split()[:2] for line in file)["MemAvailable:"]
        except (OSError, KeyError, ValueError):
            return 0
        return int(kib) * 1024 // 2 // max(int(os.environ.get("LOCAL_WORLD_SIZE") or 1), 1)

    def ladder(self, costs, budget):
        self.package._enter_phase("")
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "learned.trace")
            self.package.save_trace(trace)
            return json.loads(_job.run("explain", trace, "--budget", str(budget), "--json", *options(costs),
                                       answers=(0, 1)))

    def say(self, text):
        if os.environ.get("PLEAT_RUN") != "quiet":
            _job.say(text)
