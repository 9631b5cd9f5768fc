"""Two GPUs under Pleat: two.py [TEST ...]. Skips where there are fewer.

Copies and kernels across devices, tensors sent to a process on the other device, NCCL between two
ranks, one process with both devices, a plan a device.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from here import ADAPTER  # first: it knows where the package is
from torch_or_none import torch
import pleat

RUN = os.environ.get("PLEAT_RUN_COMMAND") or str(ADAPTER / "pleat-run")
READY = torch is not None and torch.version.cuda is not None and torch.cuda.device_count() > 1
# What is tested is memory; multicast over NVLink is not available everywhere.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")

RANKS = """
import os, torch
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
torch.manual_seed(0)
model = torch.nn.Sequential(*[torch.nn.Linear(1024, 1024) for _ in range(8)]).cuda()
model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(rank)
losses = []
for step in range(12):
    x = torch.randn(256, 1024, generator=generator).cuda()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss)
    losses.append(loss.item())
big = torch.full((64 << 20,), float(rank + 1), device="cuda")
dist.all_reduce(big)
gathered = [torch.empty(1 << 20, device="cuda") for _ in range(2)]
dist.all_gather(gathered, torch.full((1 << 20,), float(rank), device="cuda"))
assert big.min().item() == big.max().item() == 3.0
assert [g[0].item() for g in gathered] == [0.0, 1.0]
if rank == 0:
    print("losses", losses)
dist.destroy_process_group()
"""


# The second rank ends by SIGKILL in mid-iteration.
KILLED = """
import os, signal, torch
import torch.distributed as dist
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
kept = [torch.ones(1 << 28, device="cuda") for _ in range(4)]
for step in range(50):
    made = [torch.ones(1 << 24 + i % 2, device="cuda") for i in range(8)]
    dist.all_reduce(made[0])
    if step == 6 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    del made
"""


def on_second(there, back):
    pleat.enable(conf="keep:off")
    tensor = there.get()
    other = torch.ones_like(tensor, device="cuda:1") + tensor.to("cuda:1")
    back.put((str(tensor.device), other.sum().item()))
    del tensor
    there.get()


@unittest.skipUnless(READY, "no two GPUs, or no torch with CUDA")
class Two(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        pleat.enable(conf="keep:off")
        torch.cuda.init()

    def test_copies_and_kernels_cross(self):
        for size in (1000, 1 << 20, 40 << 20):
            a = torch.arange(size, dtype=torch.float32, device="cuda:0")
            b = a.to("cuda:1")
            self.assertTrue(torch.equal(b.cpu(), a.cpu()))
            b += 1
            a.copy_(b)
            self.assertEqual(a[5].item(), 6)
            # A copy that changes the layout is done by a kernel of one device on both memories.
            if size == 1 << 20:
                grid = a.view(1024, 1024).t()
                there = torch.empty(1024, 1024, device="cuda:1")
                there.copy_(grid)
                self.assertTrue(torch.equal(there.cpu(), grid.cpu()))
        self.assertEqual(torch.cuda.can_device_access_peer(0, 1), True)

    def test_memory_that_comes_later_is_reached_too(self):
        torch.ones(10, device="cuda:0").to("cuda:1")
        late = torch.full((100 << 20,), 3.0, device="cuda:0")
        self.assertEqual(late.to("cuda:1").sum().item(), 3.0 * (100 << 20))

    def test_statistics_are_each_devices_own(self):
        before = [torch.cuda.memory_allocated(d) for d in range(2)]
        x = torch.empty(32 << 20, dtype=torch.uint8, device="cuda:1")
        after = [torch.cuda.memory_allocated(d) for d in range(2)]
        self.assertEqual([b - a for a, b in zip(before, after)], [0, 32 << 20])
        del x

    def test_data_parallel_in_one_process(self):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(),
                                    torch.nn.Linear(256, 8)).to("cuda:0")
        parallel = torch.nn.DataParallel(model)
        x = torch.randn(64, 256, device="cuda:0")
        for _ in range(6):
            parallel(x).square().mean().backward()
            got = [p.grad.clone() for p in model.parameters()]
            model.zero_grad()
            model(x).square().mean().backward()
            for mine, right in zip(got, (p.grad for p in model.parameters())):
                torch.testing.assert_close(mine, right, rtol=1e-3, atol=1e-5)
            model.zero_grad()

    def test_a_process_on_the_other_device_gets_a_tensor(self):
        context = torch.multiprocessing.get_context("spawn")
        there, back = context.Queue(), context.Queue()
        process = context.Process(target=on_second, args=(there, back))
        process.start()
        tensor = torch.full((1 << 20,), 2.0, device="cuda:0")
        there.put(tensor)
        self.assertEqual(back.get(timeout=120), ("cuda:0", 3.0 * (1 << 20)))
        there.put(None)
        process.join(60)
        self.assertEqual(process.exitcode, 0)

    def test_a_killed_rank_ends_the_job_and_leaves_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "killed.py")
            pathlib.Path(program).write_text(KILLED)
            started = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", program]
            ended = []
            for line in (started, [sys.executable, RUN, "--", *started]):
                before = [torch.cuda.mem_get_info(device)[0] for device in range(2)], set(os.listdir("/dev/shm"))
                done = subprocess.run(line, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=150)
                self.assertRegex(done.stderr, r"exitcode\s+: -9")
                ended.append(done.returncode)
                left = [torch.cuda.mem_get_info(device)[0] for device in range(2)]
                for was, now in zip(before[0], left):
                    self.assertLess(was - now, 64 << 20)
                self.assertEqual({name for name in os.listdir("/dev/shm") if "pleat" in name} - before[1], set())
            self.assertEqual(ended[0], ended[1])

    def test_ranks_talk_by_nccl(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "ranks.py")
            pathlib.Path(program).write_text(RANKS)
            started = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                       "--nproc-per-node", "2", program]
            plan = os.path.join(folder, "p%r.plan")
            said = []
            for options in ([], ["--save-plan", plan], ["--plan", plan]):
                done = subprocess.run([sys.executable, RUN, *options, "--", *started], text=True,
                                      stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=150)
                self.assertEqual(done.returncode, 0, done.stderr[-3000:])
                self.assertIn("[rank 1] pleat: device 1", done.stderr)
                said.append(done.stdout)
            native = subprocess.run(started, text=True, stdout=subprocess.PIPE, check=True,
                                    stderr=subprocess.DEVNULL)
            self.assertEqual(said, [native.stdout] * 3)


if __name__ == "__main__":
    unittest.main(verbosity=2)
