"""`pleat estimate` of scripts: what is counted, drawn, refused by name, and told. As estimate.py, whose settings it has; it
needs a torch with CUDA and no GPU ($PLEAT_TORCH_PYTHON: a Python that has one)."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import unittest

from torch_or_none import torch

import estimate as beside  # the program beside this one, which sets the path

import started
import suite
from pleat import estimate

# Two layers with a tied weight, and an optimizer of two states a parameter: what it takes can be reckoned.
PROGRAM = """
import sys, torch
model = torch.nn.Sequential(torch.nn.Linear(1024, 1024, bias=False), torch.nn.Linear(1024, 1024, bias=False))
model[1].weight = model[0].weight
model = model.to("cuda")
assert model[0].weight is model[1].weight and model[0].weight.is_cuda
optimizer = torch.optim.Adam(model.parameters())
for step in range(3):
    loss = model(torch.randn(256, 1024).cuda()).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    assert loss.item() == 1.0
torch.cuda.synchronize()
print(torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated())
"""
MIB = 1 << 20

# What depends on values: experts' tokens in the three ways of writing them, masks, and what the host reads.
VALUES = """
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
TOKENS, WIDTH, EXPERTS, CHOSEN = 4096, 1024, 8, 2
made = torch.get_rng_state()
drawn = torch.randint(100, (10,), device="cuda")
assert 0 <= int(drawn.min()) <= int(drawn.max()) < 100 and torch.equal(made, torch.get_rng_state())
with torch.device("cuda"):
    batch = torch.ones(2 << 20, device="cpu").pin_memory()
    assert batch.device.type == "cpu" and batch.to("cuda", non_blocking=True).is_cuda
    assert torch.tensor(3).item() == 3 and torch.tensor([1.5, 2.5]).tolist() == [1.5, 2.5]
    router = torch.nn.Linear(WIDTH, EXPERTS, bias=False)
    experts = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS))
seen = []

def counted(x):
    scores, chosen = functional.softmax(router(x), -1).topk(CHOSEN, -1)
    order = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=EXPERTS).tolist()
    assert sum(counts) == TOKENS * CHOSEN and all(900 < count < 1150 for count in counts), counts
    seen.append(counts)
    done = torch.cat([expert(rows) for expert, rows in zip(experts, x[order // CHOSEN].split(counts))])
    assert torch.equal(chosen, chosen.clone()) and order.sort()[0].tolist() == list(range(TOKENS * CHOSEN))
    return x + (done.view(TOKENS, CHOSEN, WIDTH) * scores.unsqueeze(-1)).sum(1)

def looped(x):
    weights, chosen = functional.softmax(router(x), -1).topk(CHOSEN, -1)
    mask = functional.one_hot(chosen, num_classes=EXPERTS).permute(2, 1, 0)
    hit = torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero()
    assert hit.shape == (EXPERTS, 1)
    out, counts = torch.zeros_like(x), []
    for which in hit:
        place, token = torch.where(mask[which[0]])
        counts.append(len(token))
        out.index_add_(0, token, experts[which[0]](x[token]) * weights[token, place, None])
    assert sum(counts) == TOKENS * CHOSEN
    seen.append(counts)
    return out

for step in range(2):
    x = torch.randn(TOKENS, WIDTH).cuda()
    checkpoint(counted, checkpoint(looped, x, use_reentrant=False), use_reentrant=False).sum().backward()
# Computed again in backward, what was drawn is the same; another batch is another.
looped_once, counted_once, counted_again, looped_again = seen[:4]
assert looped_once == looped_again and counted_once == counted_again != looped_once, seen
assert seen[4:6] != seen[:2]

scores = torch.randn(1000, 300).cuda()
kept = scores > 0.25
assert scores[kept].numel() == int(kept.sum()) == scores.masked_select(kept).numel() == len(kept.nonzero())
assert 0.7 < kept.float().mean().item() < 0.8
scores[scores.isnan()] = 0
labels = torch.tensor([3, -100, 5, -100]).cuda()
assert labels[labels != -100].tolist() == [3, 5] and torch.unique(labels).tolist() == [-100, 3, 5]
assert labels.repeat_interleave(torch.tensor([1, 0, 2, 0], device="cuda")).cpu().tolist() == [3, 5, 5]
loss = functional.linear(x, experts[0].weight).mean()
assert loss.item() == 1.0 and loss.detach().cpu().item() == 1.0 and bool(loss > 0)
loader = torch.utils.data.DataLoader(torch.arange(10), batch_size=5, pin_memory=True)
assert [batch.cuda(non_blocking=True).tolist() for batch in loader] == [list(range(5)), list(range(5, 10))]
host = torch.zeros(4, dtype=torch.int64)
host.copy_(labels)
assert host.tolist() == labels.tolist()
print(torch.cuda.max_memory_allocated())
"""
# What a script does besides: it says a loss, keeps and loads what it has, records itself.
ORDINARY = """
import copy, os, torch
here = os.path.dirname(os.path.abspath(__file__))
os.chdir(here)
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.AdamW(model.parameters())
loss = model(torch.randn(8, 1024, device="cuda")).sum()
loss.backward()
optimizer.step()
assert f"{loss:.3f} {loss}" == "1.000 1.0"
assert str([loss]) == "[tensor(1.0, device='cuda:0', grad_fn=<SumBackward0>)]", str([loss])
assert str(model.weight) == "Parameter(tensor(..., device='cuda:0', size=(1024, 1024), requires_grad=True))", str(model.weight)
assert repr(torch.tensor(3).cuda()) == "tensor(3, device='cuda:0', dtype=torch.int64)"
assert torch.tensor([[loss.detach(), 2], (loss.detach(), 3.0)]).tolist() == [[1, 2], [1, 3]]
torch.nn.utils.weight_norm(torch.nn.Linear(8, 8)).cuda()(torch.ones(8, device="cuda"))
copy.deepcopy(torch.nn.Linear(8, 8)).cuda()
big = torch.randn(1024, 1024, device="cuda")
try:
    import numpy
except ImportError:
    pass
else:
    assert big.cpu().numpy().shape == big.numpy(force=True).shape == (1024, 1024)
    for refused, error in ((big, TypeError), (model.weight.cpu(), RuntimeError)):
        try:
            refused.numpy()
            assert False
        except error:
            pass

open("kept.pt", "w").write("of a run on a GPU")
torch.save(model.state_dict(), "kept.pt")
assert open("kept.pt").read() == "of a run on a GPU"
for _ in range(2):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": torch.tensor(7)}, "new.pt")
assert os.path.getsize("new.pt") < 100000
torch.save(model, "whole.pt")
again = torch.load("whole.pt", weights_only=False)
assert isinstance(again.weight, torch.nn.Parameter) and again.weight.is_cuda and again.weight.requires_grad
before = torch.cuda.memory_allocated()
for place, type in (("cpu", "cpu"), ("cuda", "cuda"), (None, "cuda"), (torch.device("cuda", 0), "cuda"),
                    ({"cuda:0": "cpu"}, "cpu"), (lambda storage, location: storage, "cpu")):
    loaded = torch.load("new.pt", map_location=place)
    weight = loaded["model"]["weight"]
    assert weight.device.type == type and weight.shape == (1024, 1024) and loaded["step"].item() == 7, (place, weight)
    model.load_state_dict(loaded["model"])
    optimizer.load_state_dict(loaded["optimizer"])
loaded = weight = None
os.replace("whole.pt", "moved.pt")

# Contents that are there go to the GPU as anything of the host does.
held = torch.arange(1000.)
torch.save({"one": held, "same": held[:10], "half": held.half()}, "real.pt")
assert torch.load("real.pt")["same"].tolist() == list(range(10))
before = torch.cuda.memory_allocated()
loaded = torch.load("real.pt", map_location="cuda")
assert loaded["one"].is_cuda and loaded["same"].tolist() == list(range(10)) and loaded["half"].dtype is torch.half
assert torch.cuda.memory_allocated() - before == 4096 + 2048, torch.cuda.memory_allocated() - before
torch.cuda.memory._record_memory_history()
torch.cuda.memory._dump_snapshot("snapshot.pickle")
try:
    torch.ones(1, device="cuda:1")
    assert False
except RuntimeError as problem:
    assert "invalid device ordinal" in str(problem)
print(sorted(os.listdir(here)))
"""
# In the place of safetensors, which reads and writes memory of the GPU by its address.
SAFETENSORS = {"__init__.py": """
from torch import ones
class safe_open:
    def __init__(self, filename, framework, device="cpu"):
        assert device == "cpu", "memory of the GPU is written"
    __enter__ = lambda self: self
    __exit__ = lambda self, *error: None
    keys = lambda self: ["weight"]
    get_tensor = lambda self, name: ones(8, 8)
    get_tensors = lambda self: {"weight": ones(8, 8)}
    get_slice = get_tensor
""", "torch.py": """
from safetensors import safe_open
def save(tensors, metadata=None):
    raise MemoryError("memory that is not there is read")
def save_file(tensors, filename, metadata=None):
    open(filename, "wb").write(b"".join(bytes(tensor.tolist()) for tensor in tensors.values()))
def load_file(filename, device="cpu"):
    with safe_open(filename, framework="pt", device=device) as file:
        assert list(file.get_tensors()) == ["weight"] and file.get_tensor("weight").size() == (8, 8)
        return file.get_tensors()
"""}
SAFE = """
import json, os, struct, sys, torch
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from safetensors import safe_open
from safetensors.torch import load_file, save, save_file
os.chdir(sys.path[0])
for device in ("cpu", "cuda", 0, torch.device("cuda", 0)):
    weight = load_file("x", device=device)["weight"]
    assert weight.shape == (8, 8) and weight.is_cuda == (device != "cpu"), (device, weight)
with safe_open("x", framework="pt", device="cuda") as file:
    part = file.get_slice("weight")[:2]
    assert part.is_cuda and part.shape == (2, 8) and list(file.keys()) == ["weight"]
save_file({"real": torch.ones(3, dtype=torch.uint8)}, "real")
made = {"weight": weight * torch.nn.Parameter(weight), "half": weight.bfloat16(), "ids": torch.ones(3, dtype=torch.int64),
        "tiny": weight.to(torch.float8_e4m3fnuz)}
for name in ("made", "made", "real"):
    save_file(made, name, {"format": "pt"})
assert os.path.getsize("real") == 3
with open("made", "rb") as file:
    size, = struct.unpack("<Q", file.read(8))
    assert json.loads(file.read(size)) == {
        "__metadata__": {"format": "pt"}, "weight": {"dtype": "F32", "shape": [8, 8], "data_offsets": [0, 256]},
        "half": {"dtype": "BF16", "shape": [8, 8], "data_offsets": [256, 384]},
        "ids": {"dtype": "I64", "shape": [3], "data_offsets": [384, 408]},
        "tiny": {"dtype": "F8_E4M3FNUZ", "shape": [8, 8], "data_offsets": [408, 472]}}
    assert (8 + size) % 8 == 0 and file.read() == bytes(472)
    file.seek(0)
    assert save(made, {"format": "pt"}) == file.read()
# By their addresses libraries find tensors that share memory.
one, other = (torch.empty(64, 1024, 1024, device=device) for device in ("cuda", "cpu"))
parts = one.view(-1)[8:], one.view(-1)[:8], other.view(-1)[8:], other.view(-1)[:8]
begins = [part.data_ptr() for part in parts]
assert [part.untyped_storage().data_ptr() + place for part, place in zip(parts, (32, 0, 32, 0))] == begins
assert abs(begins[1] - begins[3]) >= 256 << 20 and min(begins) > 0 and one[:0].data_ptr() == 0
"""
# Each rank on a GPU of its own: what it sends is nowhere, what it has is there.
RANKS = """
import gc, os, torch, torch.distributed as dist
rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
assert torch.cuda.device_count() == ranks
torch.cuda.set_device(rank)
dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
assert (dist.get_rank(), dist.get_world_size()) == (rank, ranks)

def train(model):
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(2):
        model(torch.randn(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer

def linear():
    return torch.nn.Linear(1024, 1024, bias=False).cuda()

train(torch.nn.parallel.DistributedDataParallel(linear(), device_ids=[rank]))
gc.collect()
before = torch.cuda.memory_allocated()
try:
    from torch.distributed.fsdp import fully_shard
except ImportError:
    share = 0
else:
    model = linear()
    fully_shard(model)
    kept = train(model)
    gc.collect()
    share = torch.cuda.memory_allocated() - before
    # The weight and its two states, and not the whole weight, whose storage was made empty.
    assert share == 3 * 4 * MIB // ranks, share
total = torch.ones(4 * ranks, device="cuda")
dist.all_reduce(total)
dist.all_gather([torch.empty_like(total) for _ in range(ranks)], total)
dist.reduce_scatter_tensor(torch.empty(4, device="cuda"), total)
dist.barrier()
if rank:
    torch.empty(100 << 20, device="cuda")
""".replace("MIB", "2**20")
# Threads of all kinds: each one's tensors are counted, and a prefetcher's batches arrive.
THREADS = """
import queue, threading, torch
from concurrent.futures import ThreadPoolExecutor
model = torch.nn.Linear(64, 64).cuda()
kept, batches = [], queue.Queue(2)

def allocates():
    kept.append(torch.empty(1 << 20, device="cuda"))

class Own(threading.Thread):
    def run(self):
        allocates()

def learns(_):
    for _ in range(10):
        loss = model(torch.randn(8, 64, device="cuda")).sum()
        loss.backward()
        assert loss.item() == 1.0 and loss.is_cuda and torch.tensor([2, 3]).cuda().tolist() == [2, 3]

def feed():
    for _ in range(6):
        batches.put(torch.randn(32, 64).to("cuda", non_blocking=True))
    batches.put(None)
    threading.Event().wait()

before = torch.cuda.memory_allocated()
for thread in threading.Thread(target=allocates), Own():
    thread.start()
    thread.join()
assert torch.cuda.memory_allocated() - before == 2 * (4 << 20) == sum(one.nbytes for one in kept)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(learns, range(4)))
threading.Thread(target=feed, daemon=True).start()
while True:
    batch = batches.get(timeout=60)
    if batch is None:
        break
    model(batch).square().mean().backward()
"""
# Buffers that are made under a lock, and noted under it when Python collects the cycles that had them.
POOL = """
import faulthandler, gc, threading, torch
faulthandler.dump_traceback_later(30, exit=True)
gc.set_threshold(50)
lock, ended = threading.RLock(), []

class Lease:
    def __init__(self):
        self.itself = self
        with lock:
            self.buffer = torch.empty(1 << 20, device="cuda")

    def __del__(self):
        with lock:
            ended.append(self.buffer.nbytes)

def work():
    x = torch.randn(64, 64, device="cuda")
    for turn in range(TURNS):
        Lease()
        x = torch.nn.functional.gelu(x @ x) + 1

threads = [threading.Thread(target=work) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert gc.isenabled()
""".replace("TURNS", "300")
# One that Python's threading does not know of.
OTHER_THREAD = """
import _thread, time, torch
held, done = torch.ones(64, device="cuda"), []

def draw():
    try:
        torch.randn(8, 64, device="cuda")
    finally:
        done.append(True)

_thread.start_new_thread(draw, ())
while not done:
    time.sleep(0.01)
"""
# A sequence that is padded, in training and in eval, where torch would make a nested tensor of it.
PADDED = """
import torch
layer = torch.nn.TransformerEncoderLayer(128, 4, 256, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2).cuda()
x, mask = torch.randn(4, 16, 128, device="cuda"), torch.zeros(4, 16, dtype=torch.bool, device="cuda")
model(x, src_key_padding_mask=mask).sum().backward()
model.eval()
with torch.inference_mode():
    assert model(x, src_key_padding_mask=mask).shape == x.shape
"""
# Of its processes one leaves without a word, and one while it writes what it took.
HALF = """
import os, subprocess, sys, torch
if sys.argv[1:] == ["leaves"]:
    torch.zeros(1 << 28, device="cuda")
    os._exit(0)
if sys.argv[1:] == ["is cut"]:
    import pickle
    pickle.dumps = lambda *_, **named: os._exit(1)
    torch.zeros(1 << 28, device="cuda")
    sys.exit()
for how in "leaves", "is cut":
    subprocess.run([*PYTHON, __file__, how])
torch.zeros(8, device="cuda")
"""
# Processes that multiprocessing ends without Python's exit, and a file that one makes.
FORKED = """
import multiprocessing, os, sys
def work(kept):
    import torch
    torch.save(torch.zeros(1 << 20, device="cuda"), kept)
if __name__ == "__main__":
    kept = os.path.join(os.path.dirname(__file__), "kept.pt")
    for method in "fork", "forkserver":
        process = multiprocessing.get_context(method).Process(target=work, args=(kept,))
        process.start()
        process.join()
        assert process.exitcode == 0 and not os.path.exists(kept), (method, process.exitcode, os.path.exists(kept))
"""
# One that sizes itself by the memory that is free, on a GPU of 80 GiB.
FILLS = """
import torch
free, total = torch.cuda.mem_get_info()
assert free == total == 80 << 30, (free, total)
kept = []
while torch.cuda.mem_get_info()[0] > 10 << 30 and len(kept) < 100:
    kept.append(torch.empty(1 << 30, dtype=torch.uint8, device="cuda"))
assert len(kept) == 70, len(kept)
kept.append(torch.empty(100 << 30, dtype=torch.uint8, device="cuda"))
assert torch.cuda.mem_get_info() == (0, total)
del kept
assert torch.cuda.mem_get_info() == (total, total)
"""
# What has no place among tensors without contents, and as what it is named.
NOT_ESTIMATED = """
import torch
x = torch.randn(2, 4, 8, device="cuda")
weights = [torch.ones(32, 8, device="cuda"), torch.ones(32, 8, device="cuda")]
state = torch.zeros(1, 4, 8, device="cuda")

def inferred():
    with torch.inference_mode():
        torch.nn.LSTM(8, 8).cuda()(x)

for name, use in (("aten.gru", lambda: torch.nn.GRU(8, 8).cuda()(x)),
                  ("aten.lstm", lambda: torch.nn.Sequential(torch.nn.LSTM(8, 8)).cuda()(x)),
                  ("aten.lstm", lambda: torch.lstm(x, (state, state), weights, False, 1, 0.0, True, False, False)),
                  ("aten.lstm", lambda: torch._VF.lstm(x, (state, state), weights, False, 1, 0.0, True, False, False)),
                  ("aten.lstm", inferred), ("torch.backends.cudnn.enabled is False", inferred),
                  ("aten._to_copy.default of a sparse tensor", lambda: torch.eye(3).to_sparse().cuda()),
                  ("aten._to_sparse.default of a sparse tensor", lambda: x[0].to_sparse()),
                  ("of a sparse tensor", lambda: torch.zeros(3, 3, device="cuda", layout=torch.sparse_coo)),
                  ("of a sparse tensor", lambda: torch.nn.Embedding(9, 8, sparse=True).cuda()(
                      torch.tensor([1], device="cuda")).sum().backward()),
                  ("a sparse tensor of aten._embedding_bag", lambda: torch.nn.EmbeddingBag(9, 8, sparse=True).cuda()(
                      torch.tensor([[1]], device="cuda")).sum().backward()),
                  ("the lazy module LazyLinear", lambda: torch.nn.Sequential(torch.nn.LazyLinear(8)).cuda()),
                  ("a CUDA graph (torch.cuda.graph", lambda: torch.cuda.graph(torch.cuda.CUDAGraph()).__enter__()),
                  ("a CUDA graph (torch.cuda.graph", lambda: torch.cuda.make_graphed_callables(torch.nn.Linear(8, 8).cuda(), (x,))),
                  ("aten._nested_tensor_from", lambda: torch.nested.nested_tensor([x[0], x[1, :2]]))):
    try:
        use()
        assert False, name
    except RuntimeError as problem:
        assert name in str(problem) and "record it on a GPU" in str(problem), problem
with torch.backends.cudnn.flags(enabled=False):
    layer = torch.nn.LSTM(8, 16).cuda()
    layer(x)[0].sum().backward()
    with torch.inference_mode():
        assert layer(x)[0].shape == (2, 4, 16)
    with torch.autocast("cuda"):
        assert layer(x)[0].dtype is torch.half
torch.nn.GRU(8, 8)(torch.ones(2, 4, 8))
# On the host they are what they are, in TorchScript too.

class Scripted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.LSTM(4, 4)

    def forward(self, x):
        return self.layer(x)[0]

assert torch.jit.script(Scripted())(torch.ones(2, 3, 4)).shape == (2, 3, 4)
"""
# One error is expected, another one comes before the program's, which is below what stands in the place of torch's.
FAILS = """
import torch
x = torch.ones(3, 4, device="cuda")
try:
    x @ x
except RuntimeError:
    pass

class Own(torch.nn.Module):
    def _apply(self, function, recurse=True):
        x = "mine"
        raise ValueError(x)

try:
    x @ x
except RuntimeError:
    x = torch.nn.Sequential(Own())
    x.cuda()
"""
IN_THREAD = """
import threading, torch

def work():
    torch.unique(torch.empty(1000, dtype=torch.int64, device="cuda"))

thread = threading.Thread(target=work)
thread.start()
thread.join()
torch.empty(1 << 20, device="cuda")
"""
REFUSED = "import torch; torch.unique(torch.empty(1000, dtype=torch.int64, device='cuda'))"


@unittest.skipIf(torch is None or torch.version.cuda is None, "no torch with CUDA")
@unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
class Program(unittest.TestCase):
    def test_what_a_program_takes(self):
        with tempfile.TemporaryDirectory() as folder:
            trace = os.path.join(folder, "t.trace")
            done = beside.run("--json", "--device-memory", "1GiB", "-o", trace, program=PROGRAM)
            self.assertEqual(done.returncode, 0, done.stderr)
            live, peak = map(int, done.stdout.splitlines()[0].split())
            told = json.loads(done.stdout.splitlines()[1])
            summary = json.loads(subprocess.run([os.environ["PLEAT_COMMAND"], "import", trace, "--json"], check=True,
                                                stdout=subprocess.PIPE).stdout)
        # The weight, its two states and the last loss, and cuBLAS's workspaces of the program's thread and autograd's.
        self.assertEqual(live, 3 * 4 * MIB + 512 + 2 * 32 * MIB)
        self.assertEqual((told["processes"], told["peak_live_bytes"], summary["peak_live_bytes"]), (1, peak, peak))
        for policy in ("native", "expandable", "pleat"):
            self.assertLessEqual(peak, told[policy + "_physical_bytes"])
            self.assertTrue(told["fits"][policy])
        self.assertEqual((told["device_bytes"], summary["device_bytes"]), (1 << 30, 1 << 30))
        self.assertGreaterEqual(peak, live + 4 * MIB)  # with the gradient
        self.assertLess(peak, live + 16 * MIB)
        self.assertGreater(summary["marks"] + summary["labels"], 2)

    def test_what_does_not_fit_is_said(self):
        done = beside.run_started("--device-memory", "64MiB", program=PROGRAM)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("pleat estimate: it does not fit on a GPU of 64MiB, not under Pleat, PyTorch's native", done.stdout)
        self.assertIn("the CUDA context is not counted", done.stdout)

    def test_sizes_that_depend_on_values_are_drawn(self):
        done = beside.run_started("--json", program=VALUES)
        self.assertEqual(done.returncode, 0, done.stderr)
        # Each token's output of an expert, twice over, and eight experts with their gradients at least.
        self.assertGreater(int(done.stdout.split()[0]), 3 * 2 * 4096 * 1024 * 4 + 2 * 8 * 4 * MIB)

    def test_threads_are_counted(self):
        done = beside.run_started(program=THREADS)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn("pleat estimate:", done.stderr)

    def test_destructors_may_wait_for_what_allocates(self):
        done = beside.run_started(program=POOL)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_thread_that_is_not_counted_is_told(self):
        done = beside.run_started(program=OTHER_THREAD)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stderr.count("nor of a thread that Python's threading did not begin"), 1, done.stderr)

    def test_a_padded_sequence_is_none_of_nested_tensors(self):
        done = beside.run_started(program=PADDED)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_live_memory_is_not_free(self):
        done = beside.run_started(program=FILLS)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_what_cannot_be_estimated_is_named(self):
        done = beside.run_started(program=NOT_ESTIMATED)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_an_interrupted_program_is_told_as_far_as_it_came(self):
        done = beside.run_started("--json", program="import os, signal, torch\nkept = torch.empty(1 << 20, device='cuda')\n"
                   "os.kill(os.getpid(), signal.SIGINT)\nsignal.pause()")
        self.assertEqual(done.returncode, -signal.SIGINT, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["interrupted"], told["peak_live_bytes"]), (True, 4 * MIB))
        told = estimate.lines(estimate.parse(["--", "true"]), told)
        self.assertIn("interrupted: these are the figures of what it had done so far", told[0])

    def test_ctrl_c_is_seen_whatever_the_program_ends_with(self):
        """As torchrun does, which ends with 1."""
        text = ("import os, signal, sys, torch\nkept = torch.empty(1 << 20, device='cuda')\ntry:\n"
                "    os.kill(0, signal.SIGINT)\n    signal.pause()\nexcept KeyboardInterrupt:\n    sys.exit(1)")
        done = beside.run_words(sys.executable, "-c", text, options=["--json"], start_new_session=True)
        self.assertEqual(done.returncode, -signal.SIGINT, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["interrupted"], told["peak_live_bytes"]), (True, 4 * MIB))

    def test_a_process_that_leaves_without_pythons_exit_is_told(self):
        done = beside.run_started(program="import os, torch; torch.zeros(8, device='cuda'); os._exit(0)")
        self.assertEqual(done.returncode, 1)
        self.assertIn("a process ended without Python's exit", done.stderr)
        done = beside.run_started(program="import os, torch; os._exit(0)")
        self.assertEqual(done.returncode, 1)
        self.assertIn("nothing was allocated on a GPU", done.stderr)

    def test_processes_that_leave_nothing_are_told_beside_one_that_is_known(self):
        done = beside.run_started("--json", program=HALF.replace("PYTHON", repr(started.python())))
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["processes"], told["unknown_processes"], told["requests"]), (1, 2, 1))
        told = estimate.lines(estimate.parse(["--", "true"]), told)
        self.assertIn("2 processes ended without Python's exit (by os._exit, say), or could not write: what they took is not "
                      "known", told[0])

    def test_processes_that_multiprocessing_ends_are_known(self):
        done = beside.run("--json", program=FORKED)
        self.assertEqual(done.returncode, 0, done.stderr)
        told = json.loads(done.stdout)
        self.assertEqual((told["processes"], told["unknown_processes"], told["peak_live_bytes"]), (2, 0, 4 * MIB))

    def test_an_ordinary_script_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "program.py")
            pathlib.Path(script).write_text(ORDINARY)
            done = beside.run_words(sys.executable, script)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("['kept.pt', 'moved.pt', 'new.pt', 'program.py', 'real.pt']", done.stdout)
            # What was kept of tensors without contents goes, and nothing else.
            self.assertEqual(sorted(os.listdir(folder)), ["kept.pt", "moved.pt", "program.py", "real.pt"])
        self.assertEqual(done.stderr.count("tensors have no contents here"), 1, done.stderr)
        self.assertEqual(done.stderr.count("pleat estimate -o TRACE"), 1, done.stderr)

    def test_files_of_safetensors_are_read_on_the_host(self):
        with tempfile.TemporaryDirectory() as folder:
            package = pathlib.Path(folder, "safetensors")
            package.mkdir()
            for name, text in SAFETENSORS.items():
                package.joinpath(name).write_text(text)
            script = os.path.join(folder, "program.py")
            pathlib.Path(script).write_text(SAFE)
            done = beside.run_words(*started.python(), script)
            self.assertEqual(done.returncode, 0, done.stderr)
            # As of torch.save.
            self.assertEqual(sorted(os.listdir(folder)), ["program.py", "real", "safetensors"])
        self.assertEqual(done.stderr.count("tensors have no contents here"), 1, done.stderr)

    @unittest.skipUnless(torch and torch.distributed.is_available(), "no torch.distributed")
    def test_ranks_run_without_each_other(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "program.py")
            pathlib.Path(script).write_text(RANKS)
            alone = beside.run_words(*started.python(), script)
            self.assertEqual(alone.returncode, 0, alone.stderr)
            self.assertNotIn("processes", alone.stdout)
            two = beside.run_words(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", script)
            self.assertEqual(two.returncode, 0, two.stderr)
        self.assertIn("pleat estimate: of 2 processes, the one that takes most: ", two.stdout)

    def test_a_size_of_unknown_values_is_refused_by_name(self):
        done = beside.run_started(program=REFUSED)
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, r"^pleat estimate: \S+/program\.py:1, in <module>: what aten\._unique2\.default returns "
                         r"has a shape that depends on values of tensors of \(1000,\), which have no contents here, .* or "
                         r"record it on a GPU\npleat estimate: error: the program ended with 1\n$")

    def test_a_refusal_has_its_place_in_threads_and_in_a_program_of_a_line(self):
        said = r"(?m)^pleat estimate: %s: what aten\._unique2\.default returns has a shape that depends on values .*\n%s$"
        done = beside.run_started(program=IN_THREAD)
        self.assertRegex(done.stderr, said % (r"\S+/program\.py:5, in work", ""))
        self.assertEqual(done.returncode, 0, done.stderr)
        done = beside.run_words(sys.executable, "-c", REFUSED)
        self.assertRegex(done.stderr, said % ("<string>:1, in <module>", ".*the program ended with 1\n"))

    def test_an_error_of_the_program_has_its_own_traceback(self):
        done = beside.run_started(program=FAILS)
        self.assertEqual(done.returncode, 1)
        lines = done.stderr.splitlines()
        told = [line.strip() for line in lines[lines.index("Traceback (most recent call last):"):] if "started.py" not in line]
        shown = [line for line in told if line.startswith(("x @ x", "x.cuda", "raise", "RuntimeError", "ValueError"))]
        self.assertEqual(shown, ["x @ x", "RuntimeError: a and b must have same reduction dim, but got [3, 4] X [3, 4].",
                                 "x.cuda()", "raise ValueError(x)", "ValueError: mine"], done.stderr)
        self.assertEqual([line for line in told if "_fake.py" in line or "fake_tensor" in line], [], done.stderr)
        self.assertEqual(lines[0], "Traceback (most recent call last):")  # nothing of what the program expected


if __name__ == "__main__":
    suite.main(needs_torch=True)
