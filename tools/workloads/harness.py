"""What the workloads share: options, the choice of an allocator, measuring, the one JSON line.

A workload hands main() a function that makes its job. The job has iteration(number), which runs one
iteration and returns its loss without waiting for the device, and describe(), a dict of what it is;
or, where a library has the loop, train(laps), which calls laps.ended(loss) after each iteration.
Whatever allocator serves the device is chosen before anything lies there: torch takes no other later.
"""

import argparse
import ctypes
import json
import os
import statistics
import sys
import threading
import time

import torch

from recording import Recorder
from turns import OUT_OF_MEMORY, STEADY_FROM, TURN_ENDED, settings

ALLOCATORS = ("native", "expandable", "async", "pleat")
ADAPTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../adapters/pytorch")


def sizes(text):
    """ "2" or "1,2,4": the sizes that a job goes through."""
    values = [int(part) for part in text.split(",")]
    if min(values) < 1:
        raise argparse.ArgumentTypeError("sizes are at least 1: %r" % text)
    return values


def number(parser, name, default, help):
    parser.add_argument(
        name, type=int, default=default, metavar="N", help="%s [%d]" % (help, default)
    )


def common_options(parser, iterations):
    number(parser, "--iterations", iterations, "iterations, 3 or more")
    number(parser, "--seed", 1, "of weights and data")
    number(parser, "--every", 20, "iterations until the next of several sizes")
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu [cuda]")
    parser.add_argument(
        "--record", metavar="FILE", help="write the snapshot here (.pickle.gz); needs a GPU"
    )
    parser.add_argument(
        "--allocator",
        choices=ALLOCATORS,
        default="native",
        help="who serves the device's memory; async is cudaMallocAsync [native]",
    )
    parser.add_argument(
        "--plan", default="auto", metavar="FILE|auto", help="Pleat's plan, or learn it [auto]"
    )
    parser.add_argument("--no-marks", action="store_true", help="Pleat finds the iterations itself")
    parser.add_argument(
        "--budget", type=int, default=0, metavar="BYTES", help="most device memory to take [all]"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="only kernels that give the same bits every time",
    )
    parser.add_argument("--out", metavar="FILE", help="write the JSON object here too")
    parser.add_argument(
        "--quiet", action="store_true", help="no line per iteration on standard error"
    )
    parser.add_argument(
        "--in-turns",
        action="store_true",
        help="begin each iteration when a byte comes on standard input, and print %r after it but for "
        "the last: several runs may take turns on one GPU" % TURN_ENDED,
    )


def read(description, add_options, iterations, check=None, arguments=None):
    """The options of a workload, from the command line or from `arguments`."""
    parser = argparse.ArgumentParser(description=description.split("\n", 1)[0])
    add_options(parser)
    common_options(parser, iterations)
    options = parser.parse_args(arguments)
    small = [
        name
        for name, value in vars(options).items()
        if type(value) is int and name not in ("seed", "budget") and value < 1
    ]
    if small:
        parser.error("--%s must be at least 1" % small[0].replace("_", "-"))
    if options.iterations < 3:
        parser.error("--iterations: a steady iteration shows from the third on")
    if options.budget < 0:
        parser.error("--budget must be at least 0, which is all")
    try:
        kind = torch.device(options.device).type
    except RuntimeError:
        kind = None
    if kind not in ("cuda", "cpu"):
        parser.error("--device: %r is none of: cuda, cuda:N, cpu" % options.device)
    options.cuda = kind == "cuda"
    if options.record and not options.cuda:
        parser.error("--record: only the CUDA allocator keeps a history; fake.py records without a GPU")
    if not options.cuda and (options.allocator != "native" or options.budget):
        parser.error("--allocator and --budget: on the processor there is only its own allocator")
    if options.plan != "auto" and options.allocator != "pleat":
        parser.error("--plan: only --allocator pleat takes one")
    if options.plan != "auto" and not os.path.isfile(options.plan):
        parser.error("--plan: there is no file %s" % options.plan)
    # Written at the end: a bad one would cost the run.
    for name in ("record", "out"):
        path = getattr(options, name)
        if path and (os.path.isdir(path) or not os.path.isdir(os.path.dirname(os.path.abspath(path)))):
            parser.error("--%s: %s is a folder, or in one that is not there" % (name, path))
    if check is not None:
        check(parser, options)
    return options


def at(values, number, every):
    """Which of several sizes an iteration has."""
    return values[number // every % len(values)]


def step(job, number, forward):
    """One iteration of a job with an optimizer and a recorder: forward() returns the loss."""
    job.recorder.label(number, "F")
    loss = forward()
    job.recorder.label(number, "B")
    loss.backward()
    job.recorder.label(number, "opt")
    job.optimizer.step()
    job.optimizer.zero_grad(set_to_none=True)
    return loss.detach()


# ---- allocators ----


def choose(options):
    """Before anything is on the device; begins anew where torch was imported too early."""
    wanted = settings(options.allocator)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        os.environ.update(wanted)
        os.execv(sys.executable, [sys.executable, *sys.argv])
    if options.allocator == "pleat":
        try:
            import pleat
        except ImportError:
            sys.path.insert(0, ADAPTER)
            import pleat
        try:
            pleat.enable(budget=options.budget, plan=options.plan, marks=not options.no_marks)
        except (pleat.UnavailableError, ValueError) as problem:
            sys.exit("--allocator pleat: %s" % problem)
    elif options.budget:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, options.budget / total))


def mark(options):
    """An iteration ends here, where no optimizer's step says so."""
    if options.allocator == "pleat" and not options.no_marks:
        import pleat

        pleat.mark_step()


def pleat_figures(options):
    """Pleat's counters under `pleat`, else None."""
    if options.allocator != "pleat":
        return None
    import pleat

    return pleat.stats(torch.cuda.current_device())


def cuda_figure(read):
    """A figure of torch's allocator, or None where the allocator in use keeps no such figure."""
    try:
        return read()
    except (RuntimeError, AttributeError):
        return None


def driver_calls(options):
    """Calls for memory that went to the driver, where the allocator in use counts them."""
    if options.allocator == "pleat":
        return pleat_figures(options).get("driver_calls")
    stats = cuda_figure(torch.cuda.memory_stats) or {}
    return stats.get("num_device_alloc", 0) + stats.get("num_device_free", 0)


class Turns:
    """When an iteration may begin; the first turn has what is set up before it, too."""

    def __init__(self, options):
        self.taken = options.in_turns

    def wait(self):
        # Not by a buffer, which would take the turns of other ranks that share standard input.
        if self.taken and not os.read(0, 1):
            sys.exit("--in-turns: standard input ended before the run did")

    def pass_on(self):
        if self.taken:
            sys.stdout.write(TURN_ENDED + "\n")  # whole, where ranks share standard output and it has no buffer
            sys.stdout.flush()
        self.wait()


class Nvml:
    """What NVML says of the device in use; nothing where there is no NVML."""

    class Memory(ctypes.Structure):
        _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]

    class Process(ctypes.Structure):
        _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong),
                    ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]  # fmt: skip

    MOST_PROCESSES = 256
    UNKNOWN = (1 << 64) - 1  # of a process whose memory the driver does not tell

    def __init__(self):
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
            self.handle = self.device()
        except (OSError, AttributeError):
            self.library = None

    def device(self):
        """NVML numbers all devices there are, CUDA those that the process may see: by bus."""
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        bus = "%08x:%02x:%02x.0" % (
            properties.pci_domain_id,
            properties.pci_bus_id,
            properties.pci_device_id,
        )
        handle = ctypes.c_void_p()
        self.library.nvmlInit_v2()
        if self.library.nvmlDeviceGetHandleByPciBusId_v2(bus.encode(), ctypes.byref(handle)):
            raise OSError("NVML knows no device " + bus)
        return handle

    def used(self):
        """Memory in use on the device, everybody's; None where NVML does not tell."""
        memory = self.Memory()
        failed = self.library.nvmlDeviceGetMemoryInfo(self.handle, ctypes.byref(memory))
        return None if failed else memory.used

    def used_here(self):
        """The same of this process, CUDA's context included."""
        count = ctypes.c_uint(self.MOST_PROCESSES)
        processes = (self.Process * self.MOST_PROCESSES)()
        ask = getattr(self.library, "nvmlDeviceGetComputeRunningProcesses_v3", None)
        if ask is None or ask(self.handle, ctypes.byref(count), processes):
            return None
        mine = [one.used for one in processes[: count.value] if one.pid == os.getpid()]
        return mine[0] if mine and mine[0] != self.UNKNOWN else None


class DevicePeak:
    """The most memory in use on the device, by NVML, looked at 20 times a second."""

    def __init__(self):
        self.peak = None
        self.ended = threading.Event()
        self.nvml = Nvml()
        if self.nvml.library is not None:
            self.thread = threading.Thread(target=self.watch, daemon=True)
            self.thread.start()

    def look(self):
        self.peak = max(self.peak or 0, self.nvml.used() or 0) or None

    def watch(self):
        while not self.ended.wait(0.05):
            self.look()

    def finish(self):
        if self.nvml.library is None:
            return None
        self.ended.set()
        self.thread.join()
        self.look()
        return self.peak


# ---- one run ----


def reproducible(options):
    torch.manual_seed(options.seed)
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):
        # cuDNN's attention compiles a kernel for each new length, which would be all one measures.
        torch.backends.cuda.enable_cudnn_sdp(False)
    if options.deterministic:
        # cuBLAS wants it before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
        # Writing to memory that nothing reads makes nothing more reproducible.
        torch.utils.deterministic.fill_uninitialized_memory = False


def steady(seconds):
    """The median of what neither sets up nor learns, or of what there is."""
    return statistics.median(seconds[min(STEADY_FROM, len(seconds) - 2) :])


def memory_figures(options, device_peak):
    if not options.cuda:
        return {}
    allocated = cuda_figure(torch.cuda.max_memory_allocated)
    reserved = cuda_figure(torch.cuda.max_memory_reserved)
    return {
        "peak_allocated_bytes": allocated,
        "peak_reserved_bytes": reserved,
        "efficiency": allocated / reserved if allocated and reserved else None,
        "device_peak_bytes": device_peak,
        "driver_calls": driver_calls(options),
        "pleat": pleat_figures(options),
    }


class Laps:
    """Iterations as they end: the seconds and the loss of each, what it asked of the driver, and
    whose turn it is between two of them."""

    def __init__(self, options, recorder):
        self.options, self.recorder = options, recorder
        self.turns = Turns(options)
        self.seconds, self.losses, self.calls = [], [], []
        self.counters = []  # Pleat's after each iteration
        self.process_peak = None
        self.nvml = None

    def begin(self):
        self.recorder.label(len(self.losses), "F")
        self.began = time.perf_counter()

    def ended(self, loss):
        """An iteration ended with this loss, a number or a tensor, which is waited for."""
        self.losses.append(loss.item() if isinstance(loss, torch.Tensor) else float(loss))
        self.seconds.append(time.perf_counter() - self.began)
        if self.options.cuda:
            self.ask()
        if not self.options.quiet:
            print(
                "iteration %d: loss %.4f, %.3f s"
                % (len(self.losses) - 1, self.losses[-1], self.seconds[-1]),
                file=sys.stderr,
                flush=True,
            )
        if len(self.losses) < self.options.iterations:
            self.turns.pass_on()
            self.begin()

    def ask(self):
        """What is known of an iteration once it is over, outside of its seconds."""
        self.calls.append(driver_calls(self.options))
        if self.options.allocator == "pleat":
            self.counters.append(pleat_figures(self.options))
        if self.nvml is None:
            self.nvml = Nvml()
        if self.nvml.library is not None:
            self.process_peak = max(self.process_peak or 0, self.nvml.used_here() or 0) or None

    def figures(self):
        told = {}
        if len(self.seconds) >= 3:
            told["seconds_per_iteration"] = steady(self.seconds)
            told["first_seconds"] = self.seconds[0]
            half = len(self.calls) // 2 - 1
            told["steady_driver_calls"] = self.calls[-1] - self.calls[half] if self.calls else None
        told["seconds"] = [round(value, 6) for value in self.seconds]
        if self.counters:
            waited = [0] + [one.get("waited_ns", 0) for one in self.counters]
            told["waited_seconds"] = [
                round((now - before) * 1e-9, 6) for before, now in zip(waited, waited[1:])
            ]
            # name -> its value after each iteration: what an iteration did is a difference of two
            told["counters"] = {
                name: [one.get(name, 0) for one in self.counters] for name in self.counters[-1]
            }
        told["process_peak_bytes"] = self.process_peak
        told["loss"] = self.losses[-1] if self.losses else None
        told["losses"] = self.losses
        return told


def train(job, laps):
    """Runs the job's iterations; a job with a loop of its own has train(laps)."""
    laps.begin()
    if hasattr(job, "train"):
        job.train(laps)
        return
    for turn in range(laps.options.iterations):
        laps.ended(job.iteration(turn))


def run(name, make, options, recorder):
    """Runs the job; returns what it reports."""
    reproducible(options)
    # Others that take turns have memory on the device as well.
    watching = DevicePeak() if options.cuda and not options.in_turns else None
    laps = Laps(options, recorder)
    out_of_memory = None
    job = None
    laps.turns.wait()
    try:
        job = make(options, recorder)
        train(job, laps)
    except torch.cuda.OutOfMemoryError as refused:
        out_of_memory = str(refused)
    # While the job is alive: what it keeps is live in the recording, too.
    size = recorder.finish()
    if size:
        print("%s: %d bytes" % (options.record, size), file=sys.stderr)
    told = {
        "job": name,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if options.cuda else "cpu",
        "allocator": options.allocator if options.cuda else None,
        "plan": options.plan if options.allocator == "pleat" else None,
        "out_of_memory": out_of_memory,
        "iterations": len(laps.losses),
    }
    told.update(job.describe() if job is not None else {})
    told.update(memory_figures(options, watching.finish() if watching else None))
    told.update(laps.figures())
    return told


def main(name, description, add_options, make, iterations, check=None):
    """Parses the command line, runs the workload and prints its line; its exit code is the end."""
    options = read(description, add_options, iterations, check)
    if options.cuda:
        if not torch.cuda.is_available():
            sys.exit("%s.py: no CUDA device; --device cpu trains on the processor" % name)
        choose(options)
        torch.cuda.init()
    told = run(name, make, options, Recorder(options.record))
    line = json.dumps(told)
    print(line)
    if options.out:
        with open(options.out, "w") as out:
            out.write(line + "\n")
    sys.exit(OUT_OF_MEMORY if told["out_of_memory"] else 0)
