"""`pleat estimate` of programs as PyTorch's users write them, each of which says by itself what it must take. As
estimate.py, whose settings it has."""

import os
import sys
import unittest

try:
    import torch
except ImportError:
    torch = None

import estimate as beside  # the program beside this one, which sets the path

import suite

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


@unittest.skipIf(torch is None or torch.version.cuda is None, "no torch with CUDA")
@unittest.skipUnless(os.environ.get("PLEAT_NO_GPU"), "$PLEAT_NO_GPU names no library")
class Programs(unittest.TestCase):
    def runs(self, program):
        done = beside.run(program=program)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def test_torchs_statistics_are_of_what_was_recorded(self):
        self.runs(STATISTICS)


if __name__ == "__main__":
    sys.exit(suite.main(needs_torch=True))
