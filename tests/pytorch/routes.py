"""Collectives over memory of every route, and tensors for a process without Pleat, on as many GPUs as there are (one is
enough): routes.py [TEST ...]. Skips where there is none.

A rank allocates as a training job does: tensors of fixed sizes (slots), of sizes that are drawn (lanes, where a plan
file is followed), larger ones between what is left of smaller ones (stitched views), and pools (registered ranges). Over
each it runs all-reduce, all-gather, reduce-scatter and all-to-all, and knows what must come out.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

from here import ADAPTER  # first: it knows where the package is
from torch_or_none import torch

RUN = os.environ.get("PLEAT_RUN_COMMAND") or str(ADAPTER / "pleat-run")
READY = torch is not None and torch.version.cuda is not None and torch.cuda.is_available()
HOOK = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
MIB = 1 << 20
STEPS = 10
# Bytes that a rank sends: from a small message to a large one.
SIZES = (1 << 10, 64 << 10, 1 * MIB, 16 * MIB, 256 * MIB, 1024 * MIB)
WEIGHTS = 24  # small tensors between which the large ones find only pieces
ROUNDS = 20  # for times


# ---- a rank ----


def gpu():
    return "cuda" if torch.cuda.is_available() else "cpu"


def filled(elements, value):
    return torch.full((elements,), float(value), device=gpu())


def check(name, tensor, value):
    """Every element, since what lies at two places would be wrong in a part alone."""
    wrong = int((tensor != value).sum().item())
    if wrong:
        raise AssertionError("%s: %d of %d elements are not %s" % (name, wrong, tensor.numel(), value))


def exchange(dist, buffer, rank, ranks, name):
    """The four collectives over one buffer of a multiple of `ranks` elements."""
    total = sum(range(1, ranks + 1))
    buffer.fill_(rank + 1)
    dist.all_reduce(buffer)
    check(name + ": all-reduce", buffer, total)
    part = buffer.numel() // ranks
    buffer.fill_(rank + 1)
    piece = torch.empty(part, device=buffer.device)
    dist.reduce_scatter_tensor(piece, buffer)
    check(name + ": reduce-scatter", piece, total)
    piece.fill_(rank + 1)
    dist.all_gather_into_tensor(buffer, piece)
    for other in range(ranks):
        check(name + ": all-gather", buffer[other * part:(other + 1) * part], other + 1)
    out = torch.empty_like(buffer)
    buffer.fill_(rank + 1)
    dist.all_to_all_single(out, buffer)
    for other in range(ranks):
        check(name + ": all-to-all", out[other * part:(other + 1) * part], other + 1)


def elements(bytes, ranks):
    return max(bytes // 4 // ranks, 1) * ranks


class Rank:
    def __init__(self, dist, rank, ranks, largest):
        self.dist, self.rank, self.ranks = dist, rank, ranks
        self.sizes = [size for size in SIZES if size <= largest]
        self.largest = largest
        self.draw = torch.Generator().manual_seed(7)  # the same on each rank
        self.pool = self.pooled = None

    def step(self):
        self.slots()
        self.drawn()
        self.stitched()
        if self.pooled is not None:
            for one in self.pooled:
                exchange(self.dist, one, self.rank, self.ranks, "pool")

    def slots(self):
        for size in self.sizes:
            exchange(self.dist, filled(elements(size, self.ranks), 0), self.rank, self.ranks, "slot")

    def drawn(self):
        held = []
        for _ in range(4):
            length = int(torch.randint(8, 256, (), generator=self.draw)) * (self.largest >> 10)
            held.append(filled(elements(length, self.ranks), 0))
            exchange(self.dist, held[-1], self.rank, self.ranks, "drawn")

    def stitched(self):
        """Every other small one is freed: a large one lies in what is left."""
        small = [filled(elements(self.largest // 8, self.ranks), i) for i in range(WEIGHTS)]
        kept = small[::2]
        del small
        exchange(self.dist, filled(elements(self.largest, self.ranks), 0), self.rank, self.ranks, "stitched")
        for i, one in enumerate(kept):
            check("what lies beside", one, 2 * i)

    def make_pool(self, backend):
        """Registered with NCCL as the program's own."""
        self.pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(self.pool):
            self.pooled = [filled(elements(size, self.ranks), 0) for size in self.sizes]
        backend.register_mem_pool(self.pool)

    def end_pool(self, backend):
        backend.deregister_mem_pool(self.pool)
        self.pooled = self.pool = None

    def seconds(self):
        """Of an all-reduce of the largest buffer, the median."""
        buffer = self.pooled[-1] if self.pooled is not None else filled(elements(self.largest, self.ranks), 0)
        times = []
        for _ in range(ROUNDS):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            self.dist.all_reduce(buffer)
            torch.cuda.synchronize()
            times.append(time.perf_counter() - begin)
        return sorted(times)[ROUNDS // 2]


def be_rank(largest, pool):
    import torch.distributed as dist

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if on_gpu else "gloo")
    one = Rank(dist, rank, ranks, largest)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1, device=gpu()))], lr=0.1)
    told = {"rank": rank, "ranks": ranks}
    backend = dist.group.WORLD._get_backend(torch.device("cuda")) if on_gpu else None
    for step in range(STEPS):
        if pool and step == STEPS // 2:
            one.make_pool(backend)
        one.step()
        optimizer.step()  # an iteration ends
    if on_gpu:
        told["all_reduce_seconds"] = one.seconds()
        told["largest_bytes"] = one.largest
    if pool:
        one.end_pool(backend)
    dist.destroy_process_group()
    if rank == 0:
        print("routes " + json.dumps(told), flush=True)


# ---- tensors for a process without Pleat ----

PLAIN = """
import pickle, struct, sys, torch
def get():
    head = sys.stdin.buffer.read(8)
    return None if len(head) < 8 else pickle.loads(sys.stdin.buffer.read(struct.unpack("<Q", head)[0]))
torch.cuda.init()
assert "pleat" not in sys.modules
kept = []
for opening, arguments in iter(get, None):
    tensor = opening(*arguments)
    print(tensor.double().sum().item(), flush=True)
    tensor[:2] = 77
    torch.cuda.synchronize()
    del tensor
    print("done", flush=True)
"""


@unittest.skipUnless(READY, "no torch with CUDA, or no GPU")
class Sent(unittest.TestCase):
    """Twenty in turn, and a weight that was there before."""

    def test_tensors_arrive_in_a_process_without_pleat(self):
        done = subprocess.run([sys.executable, RUN, "--quiet", "--", sys.executable, __file__, "--send"], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=150)
        self.assertEqual(done.returncode, 0, done.stderr[-3000:])
        self.assertIn("sent 22", done.stdout)
        print(done.stdout.strip())


def send_all():
    """Under Pleat."""
    import pickle
    import struct

    import pleat
    from torch.multiprocessing.reductions import reduce_tensor

    assert pleat.enabled()
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PLEAT") and name != "PYTHONPATH"}
    child = subprocess.Popen([sys.executable, "-c", PLAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=clean)

    def send(tensor):
        """Whether it had to be moved."""
        before, total = tensor.data_ptr(), tensor.double().sum().item()
        text = pickle.dumps(reduce_tensor(tensor))
        child.stdin.write(struct.pack("<Q", len(text)) + text)
        child.stdin.flush()
        assert float(child.stdout.readline()) == total, "another tensor arrived"
        assert child.stdout.readline() == b"done\n"
        torch.cuda.synchronize()
        assert tensor[0].item() == 77, "what the other process wrote is not seen"
        return tensor.data_ptr() != before

    weight = torch.nn.Parameter(torch.arange(1 << 20, dtype=torch.float32, device="cuda"), requires_grad=False)
    grown = weight * 2
    moved = [send(weight.data), send(grown)]
    moved += [send(torch.full((5 * MIB,), float(i), device="cuda")) for i in range(20)]
    assert weight[1].item() == 77 and weight[2].item() == 2.0
    print("sent %d, moved %d of them" % (len(moved), sum(moved)))
    assert moved[0] and moved[2] and sum(moved[3:]) == 0, moved
    child.stdin.close()
    assert child.wait(60) == 0


@unittest.skipUnless(READY, "no torch with CUDA, or no GPU")
class Routes(unittest.TestCase):
    """The ranks of one host, a GPU each."""

    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.folder = pathlib.Path(made.name)

    def run_it(self, options=None, pool=True, **environment):
        """What rank 0 says, and rank 0's counters; options None: without Pleat."""
        counters = self.folder / "counters"
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                  str(torch.cuda.device_count()), __file__, "--rank", *(["--pool"] if pool else [])]
        under = [] if options is None else [sys.executable, RUN, "--counters", str(counters), *options, "--"]
        done = subprocess.run([*under, *launch], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300,
                              env=dict(os.environ, NCCL_NVLS_ENABLE="0", **environment))
        self.assertEqual(done.returncode, 0, done.stderr[-4000:])
        self.assertNotIn("was unset", done.stderr)
        told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("routes "))[7:])
        if options is None:
            return told, {}
        one = counters if counters.exists() else self.folder / "counters.0"
        devices = json.loads(one.read_text())["devices"]
        return told, next(iter(devices.values()))

    def say(self, what, told, counters):
        speed = told["largest_bytes"] / told["all_reduce_seconds"] / 1e9
        names = ("requests", "planned", "lane", "stitched", "cached")
        print("%s: all-reduce of %d MiB at %.0f GB/s; %s"
              % (what, told["largest_bytes"] >> 20, speed, ", ".join("%s %s" % (name, counters.get(name)) for name in names)))

    def test_sums_are_right_over_every_route(self):
        plan = str(self.folder / "p%r.plan")
        native, _ = self.run_it()
        learned, counters = self.run_it(["--save-plan", plan])
        self.assertGreater(counters["stitched"], 0)
        planned, after = self.run_it(["--plan", plan])
        self.assertGreater(after["planned"], after["requests"] // 2)
        for what, told, one in (("native", native, {}), ("learning", learned, counters), ("with a plan", planned, after)):
            self.say(what, told, one)

    def test_torch_registers_what_collectives_send(self):
        told, counters = self.run_it([], pool=False, **{HOOK: "1", "NCCL_DEBUG": "WARN"})
        self.say("all registered", told, counters)
        # They lie in pools, and not in the window.
        self.assertLess(counters["requests"], self.run_it([], pool=False)[1]["requests"])


def main():
    if "--rank" in sys.argv:
        mebibytes = 1024 if torch.cuda.is_available() else 1
        be_rank(mebibytes * MIB, "--pool" in sys.argv and torch.cuda.is_available())
    elif "--send" in sys.argv:
        send_all()
    else:
        unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
