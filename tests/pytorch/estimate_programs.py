"""`pleat estimate` of programs as PyTorch's users write them, each of which says by itself what it must take. As
estimate.py, whose settings it has."""

import os
import sys
import unittest

from torch_or_none import torch

import estimate as beside  # the program beside this one, which sets the path

import suite

# Weights and their optimizer's: which tensors they are, and what they take, whenever they move.
MOVES = """
import gc, torch
MIB, WORKSPACES = 1 << 20, 2 * 32 << 20

class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.ones(8)

    def _apply(self, function, recurse=True):
        super()._apply(function, recurse)
        self.table = function(self.table)
        return self

def step(model, optimizer):
    model(torch.ones(1, model.in_features, device="cuda")).sum().backward()
    optimizer.step()

# Those that the optimizer was given before are moved, small ones and large ones.
for width in (128, 1024):
    before = torch.cuda.memory_allocated()
    model = torch.nn.Linear(width, width, bias=False)
    model.weight.note = "kept"
    optimizer = torch.optim.Adam(model.parameters())
    weight, bytes = model.weight, 4 * width * width
    model.cuda()
    assert weight is model.weight and weight.is_cuda and weight.note == "kept" and isinstance(weight, torch.nn.Parameter)
    step(model, optimizer)
    takes = torch.cuda.memory_allocated() - before
    assert takes == 4 * bytes + (WORKSPACES if width == 128 else 0), takes  # with the gradient and Adam's two
    # To the host and back, with its gradient, while the loss is there.
    loss = model(torch.ones(1, width, device="cuda")).sum()
    model.cpu()
    assert weight is model.weight and weight.device.type == weight.grad.device.type == "cpu"
    assert torch.cuda.memory_allocated() - before - takes == 512 + 4 * width - 2 * bytes
    model.cuda()
    del loss
    assert weight.grad.is_cuda and torch.cuda.memory_allocated() - before == takes
    optimizer.zero_grad()
    step(model, optimizer)
    del model, optimizer, weight
    gc.collect()
    assert torch.cuda.memory_allocated() - before == (WORKSPACES if width == 128 else 0)

# By their data.
for width in (128, 1024):
    before = torch.cuda.memory_allocated()
    model = torch.nn.Linear(width, width, bias=False)
    model.weight.data = model.weight.data.cuda()
    assert model.weight.is_cuda and torch.cuda.memory_allocated() - before == 4 * width * width
    model(torch.ones(1, width, device="cuda")).sum().backward()
    assert model.weight.grad.is_cuda
    model.weight.grad = None
    model.weight.data = model.weight.data.half()
    assert model.weight.dtype is torch.half and torch.cuda.memory_allocated() - before == 2 * width * width
    model.weight.data = torch.zeros(2, 2)
    assert model.weight.device.type == "cpu" and torch.cuda.memory_allocated() == before

# With their gradients, where these are, and with their hooks.
for width in (128, 1024):
    model, called = torch.nn.Linear(width, width, bias=False), []
    weight, gradient = model.weight, torch.ones(width, width)
    weight.grad = gradient
    weight.data = weight.data.cuda()
    assert weight.grad is gradient and gradient.device.type == "cpu"
    gradient.data = gradient.data.cuda()
    assert weight.grad is gradient and gradient.is_cuda
    model = torch.nn.Linear(width, width, bias=False)
    gone = model.weight.register_hook(lambda gradient: called.append("gone"))
    model.weight.register_hook(lambda gradient: called.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda weight: called.append("after"))
    model.cuda()
    gone.remove()
    model(torch.ones(1, width, device="cuda")).sum().backward()
    assert called == ["hook", "after"], called
    del model, weight, gradient

# Each weight has two types for a moment, and not all of them.
before = torch.cuda.memory_allocated()
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024, bias=False) for _ in range(4)]).cuda()
model[3].weight = model[0].weight
torch.cuda.reset_peak_memory_stats()
model.half()
assert model[3].weight is model[0].weight and torch.cuda.memory_allocated() - before == 3 * 2 * MIB
assert torch.cuda.max_memory_allocated() - before == 14 * MIB, torch.cuda.max_memory_allocated() - before

# Modules that move more than weights do so within others.
model = torch.nn.Sequential(torch.nn.Sequential(Table())).cuda()
assert model[0][0].table.is_cuda
lstm = torch.nn.Sequential(torch.nn.LSTM(8, 8)).double()
assert lstm(torch.ones(3, 2, 8, dtype=torch.double))[0].dtype is torch.double
# A graph of the host has the weight: the module gets another.
model = torch.nn.Linear(8, 8)
loss = model(torch.ones(1, 8)).sum()
model.cuda()
assert model.weight.is_cuda and model(torch.ones(1, 8, device="cuda")).is_cuda
loss.backward()
"""
# What torch tells of its memory is what was recorded.
STATISTICS = """
import torch
kept, gone = torch.empty(1 << 20, device="cuda"), torch.empty(1000, dtype=torch.uint8, device="cuda")
del gone
told = torch.cuda.memory_stats()
for key, value in (("allocated_bytes.all.current", 4 << 20), ("allocated_bytes.all.peak", (4 << 20) + 1024),
                   ("allocated_bytes.small_pool.allocated", 1024), ("requested_bytes.small_pool.freed", 1000),
                   ("active_bytes.large_pool.current", 4 << 20), ("allocation.all.current", 1),
                   ("allocation.all.allocated", 2), ("reserved_bytes.all.peak", (4 << 20) + 1024), ("num_ooms", 0)):
    assert told[key] == value, (key, told[key])
assert torch.cuda.max_memory_allocated() == torch.cuda.max_memory_reserved() == (4 << 20) + 1024
torch.cuda.reset_peak_memory_stats()
torch.cuda.reset_accumulated_memory_stats()
assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == torch.cuda.memory_reserved() == 4 << 20
assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0
assert "4096 KiB" in torch.cuda.memory_summary()
if hasattr(torch, "accelerator") and hasattr(torch.accelerator, "memory_allocated"):
    assert torch.accelerator.memory_allocated() == torch.accelerator.max_memory_allocated() == 4 << 20
"""
# In inference mode autograd, which is not there, leaves operators whole that are made of others.
INFERRED = """
import torch
from torch.nn import functional
x, mask = torch.randn(64, 256, device="cuda"), torch.randn(64, 256, device="cuda") > 0
model = torch.nn.Linear(256, 256, bias=False).cuda()

def takes(mode, function):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with mode():
        kept = function()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.memory_allocated() - before

# With cuBLAS's workspace.
assert takes(torch.inference_mode, lambda: model(x)) == ((32 << 20) + 65536,) * 2
for name, function in (("dropout", lambda: functional.dropout(x)), ("argsort", lambda: x.argsort()),
                       ("layer_norm", lambda: functional.layer_norm(x, (256,))), ("mask", lambda: x[mask]),
                       ("to", lambda: x.to(torch.half)), ("item", lambda: x.sum().item())):
    without, inferred = takes(torch.no_grad, function), takes(torch.inference_mode, function)
    assert without == inferred, (name, without, inferred)
"""
# What lives as long as what, and what a tensor takes that is given another size.
LIVES = """
import torch
from torch.utils.checkpoint import checkpoint
MIB, taken = 1 << 20, torch.cuda.memory_allocated

def one(**named):
    return torch.ones(MIB // 4, device="cuda", **named)

x = torch.empty(0, device="cuda")
assert taken() == 0
x.resize_(MIB // 4)
assert taken() == MIB
torch.cuda.reset_peak_memory_stats()
x.resize_(MIB // 2)
assert (taken(), torch.cuda.max_memory_allocated()) == (2 * MIB, 3 * MIB), (taken(), torch.cuda.max_memory_allocated())
x.untyped_storage().resize_(0)
assert taken() == 0
x.set_(torch.empty(10, device="cuda"))
assert taken() == 512
x = torch.stack([one() for _ in range(3)])
assert taken() == 3 * MIB
y, x = x[0, :10].expand(4, -1), None
assert taken() == 3 * MIB
y = y.contiguous()
assert taken() == 512
del y
weight = torch.nn.Parameter(one())
(weight * 2).sum().backward()
assert taken() == 2 * MIB
out = torch.mul(weight.detach(), 2, out=torch.empty(MIB // 4, device="cuda"))
assert taken() == 3 * MIB
z = one(requires_grad=True)
kept = checkpoint(lambda v: (v * 2).sin().cos(), z, use_reentrant=False)
assert taken() == 5 * MIB
model = torch.nn.Linear(1024, 1024, bias=False, device="cuda", dtype=torch.float32)
x = torch.ones(1, 1024, device="cuda")
model(x)
before = taken()
with torch.autocast("cuda", dtype=torch.bfloat16):
    first, second = model(x), model(x)
    cached = taken() - before
assert cached == 2 * MIB + 4 * 2048, cached  # the weight once; outputs and inputs
del first, second
assert taken() == before
"""
# FSDP's first kind keeps flat parameters, and moves what it is given.
FLAT = """
import os, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
os.environ.update(RANK="0", WORLD_SIZE="1")
dist.init_process_group("nccl")
torch.cuda.set_device(0)
layers = [torch.nn.Linear(512, 512, bias=False) for _ in range(3)]
model = FullyShardedDataParallel(torch.nn.Sequential(*layers), device_id=0, use_orig_params=True)
assert torch.cuda.memory_allocated() == 3 << 20, torch.cuda.memory_allocated()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(2):
    model(torch.ones(2, 512, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
# Weights, two states, flat gradients and cuBLAS's workspaces.
assert torch.cuda.memory_allocated() == (12 << 20) + (64 << 20), torch.cuda.memory_allocated()
"""
# TorchScript, which gets to compile kernels for the GPU, and what the host has beside such tensors.
OTHERWISE = """
import copy, warnings, torch
warnings.simplefilter("ignore")

class Gate(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)

    def forward(self, x):
        return torch.sigmoid(torch.relu(self.layer(x)) * 2 + 1) * x

x = torch.randn(4, 64, device="cuda")
for made in (torch.jit.script(Gate()).cuda(), torch.jit.trace(Gate().cuda(), x, check_trace=False)):
    optimizer = torch.optim.Adam(made.parameters())
    for step in range(4):
        made(x).sum().backward()
        optimizer.step()
    with torch.no_grad():
        for step in range(4):
            made(x)

compiled = torch.compile(lambda x: torch.tanh(x) * 2, fullgraph=True, mode="reduce-overhead")
assert compiled(x.requires_grad_()).sum().backward() is None and x.grad.shape == x.shape

pinned = torch.ones(3).pin_memory()
assert pinned.is_pinned() and pinned.pin_memory() is pinned and not torch.ones(3).is_pinned() and pinned.tolist() == [1] * 3
for pinned in torch.ones(1 << 20).pin_memory(), torch.empty(1 << 20, pin_memory=True):
    assert pinned.is_pinned() and pinned[:10].is_pinned() and pinned.pin_memory() is pinned
assert not torch.ones(1 << 20).is_pinned() and torch.ones(3).pin_memory().is_pinned("cuda")
loader = torch.utils.data.DataLoader(torch.arange(8.), batch_size=4, pin_memory=True)
assert all(batch.is_pinned() for batch in loader)
quantized = torch.ao.quantization.quantize_dynamic(torch.nn.Sequential(torch.nn.Linear(8, 8)), {torch.nn.Linear})
assert quantized(torch.ones(2, 8)).shape == (2, 8)
assert torch.zeros(3, 3, layout=torch.sparse_coo).shape == (3, 3)
assert torch.eye(3).to_sparse().coalesce().indices().shape == (2, 3)
warnings.simplefilter("error")
assert copy.deepcopy(x).is_cuda
model = torch.nn.Linear(1024, 1024)
model.share_memory()
assert x.share_memory_() is x and x.is_shared() and model.weight.is_shared()
"""

# Of backward of the first torch has no shapes; within the second is a tensor of zeros that has no memory; the third
# returns nothing.
SHAPELESS = """
import torch
spoken = torch.randn(10, 2, 5, device="cuda", requires_grad=True)
lengths = [torch.full((2,), length, device="cuda") for length in (10, 3)]
for flat in (False, True):
    said = torch.randint(1, 5, (6,) if flat else (2, 3), device="cuda")
    torch.nn.functional.ctc_loss(spoken.log_softmax(2), said, *lengths).backward()
assert spoken.grad.shape == spoken.shape and spoken.grad.is_cuda
assert torch.func.hessian(lambda x: (x ** 3).sum())(torch.ones(3, device="cuda")).shape == (3, 3)
assert spoken.grad.record_stream(torch.cuda.Stream()) is None
"""

# Sequences of different lengths, which are on the host, and recurrent cells with biases and without.
SEQUENCES = """
import torch
from torch.nn import functional
from torch.nn.utils import rnn
MIB = 1 << 20
x = torch.randn(4, 9, MIB // 4, device="cuda", requires_grad=True)
before = torch.cuda.memory_allocated()
packed = rnn.pack_padded_sequence(x, torch.tensor([9, 5, 2, 2]), batch_first=True)
assert torch.cuda.memory_allocated() - before == 18 * MIB and packed.data.shape == (18, MIB // 4)
assert packed.batch_sizes.tolist() == [4, 4, 2, 2, 2, 1, 1, 1, 1]
padded, lengths = rnn.pad_packed_sequence(packed, batch_first=True)
assert padded.shape == x.shape and lengths.tolist() == [9, 5, 2, 2]
padded.sum().backward()
assert x.grad.shape == x.shape
with torch.inference_mode():
    assert rnn.pack_sequence([x[0, :4], x[0, :7]], enforce_sorted=False).data.shape == (11, MIB // 4)
rows = torch.randn(3, 4, device="cuda")
with torch.backends.cudnn.flags(enabled=False):
    for kind in torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN:
        for bias in True, False:
            layer = kind(4, 6, 2, bias=bias, bidirectional=True).cuda()
            made = layer(rnn.pack_padded_sequence(rows[None].expand(5, 3, 4), torch.tensor([5, 4, 1])))[0]
            assert made.data.shape == (10, 12), made.data.shape
            made.data.sum().backward()
            assert all(one.grad.shape == one.shape for one in layer.parameters())
for bias in True, False:
    cell = torch.nn.GRUCell(4, 6, bias=bias).cuda()
    cell(rows)  # cuBLAS's workspace
    before = torch.cuda.memory_allocated()
    state = cell(rows)
    # What it returns, the zeros that it begins with, both sums of gates, and what backward needs of it.
    assert state.shape == (3, 6) and torch.cuda.memory_allocated() - before == 5 * 512
    state.sum().backward()
    assert all(one.grad.shape == one.shape for one in cell.parameters())
    del cell, state
scores = torch.randn(50, 4, 20, device="cuda", requires_grad=True)
targets = torch.randint(1, 20, (4, 10), device="cuda")
for lengths in ([50] * 4, [10] * 4), (torch.full((4,), 50), torch.full((4,), 10)):
    for reduction in "none", "mean", "sum":
        loss = functional.ctc_loss(scores.log_softmax(2), targets, *lengths, reduction=reduction)
        assert loss.is_cuda
        loss.sum().backward()
"""


@unittest.skipIf(torch is None or torch.version.cuda is None, "no torch with CUDA")
@unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
class Programs(unittest.TestCase):
    def runs(self, program, run=beside.run_started):
        done = run(program=program)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_weights_are_the_same_where_they_move(self):
        self.runs(MOVES)

    def test_torchs_statistics_are_of_what_was_recorded(self):
        self.runs(STATISTICS)

    def test_operators_may_have_no_shapes_of_their_own(self):
        self.runs(SHAPELESS)

    def test_inference_takes_what_it_takes_without_gradients(self):
        self.runs(INFERRED)

    def test_what_lives_is_counted_as_long(self):
        self.runs(LIVES)

    def test_sequences_have_lengths_of_their_own(self):
        self.runs(SEQUENCES)

    @unittest.skipUnless(torch and torch.distributed.is_available(), "no torch.distributed")
    def test_flat_parameters_are_moved(self):
        self.runs(FLAT)

    def test_torchscript_and_what_the_host_has(self):
        self.runs(OTHERWISE, beside.run)  # torch's modules come after the estimate has begun


if __name__ == "__main__":
    sys.exit(suite.main(needs_torch=True))
