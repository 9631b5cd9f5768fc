"""Pleat where no shim fits torch and there is no compiler: through torch's pluggable allocator. fallback.py, on a GPU,
or, with $PLEAT_NO_GPU, $PLEAT_LIBRARY and $PLEAT_CUDA_LIBRARY, on stand-ins for CUDA's runtime and driver, on which
memory is given out and no kernel runs.

The shared object is built here, as a wheel brings it; the program that is served finds no compiler.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from here import ADAPTER, ROOT  # first: it knows where the package is
from torch_or_none import torch
import pleat
import suite
from pleat import _shim

WITH_CUDA = torch is not None and torch.version.cuda is not None
GPU = WITH_CUDA and "PLEAT_NO_GPU" not in os.environ and torch.cuda.is_available()
STAND_INS = WITH_CUDA and all(name in os.environ for name in ("PLEAT_NO_GPU", "PLEAT_LIBRARY", "PLEAT_CUDA_LIBRARY"))

# In the place of a wheel's folders of shims, without one for any torch, and of its libraries.
BEGIN = """
import pathlib, sys, warnings
sys.path.insert(0, %r)
import torch, pleat
from pleat import _hooks, _shim
_shim.SHIMS, _hooks.LIBRARY = pathlib.Path(%r).parent, pathlib.Path(%r)
_shim.library = lambda: pathlib.Path(%r)
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    pleat.enable(budget="1GiB", record=3)
text = str(said[-1].message)
assert "no C++ compiler" in text and "CUDA graphs" in text and "torch.cuda's memory statistics" in text, text
assert pleat.enabled()
"""
ALLOCATES = """
for step in range(5):
    kept = [torch.empty(i << 20, dtype=torch.uint8, device="cuda") for i in range(1, 9)]
    kept[0].record_stream(torch.cuda.current_stream())
    del kept
    pleat.mark_step()
torch.cuda.empty_cache()
counters = pleat.stats(0)
assert (counters["requests"], counters["frees"], counters["live_bytes"]) == (40, 40, 0), counters
assert counters["peak_live_bytes"] == 36 << 20 <= counters["peak_physical_bytes"] <= 64 << 20, counters
assert "40 requests" in pleat.report(0)

def refusal(body):
    try:
        body()
    except RuntimeError as problem:
        return str(problem)
    return "nothing"

def capture():
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        torch.empty(5, device="cuda")

refused = refusal(lambda: torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))
assert "CUDA out of memory. Tried to allocate 2147483648 bytes" in refused, refused
assert torch.empty(1 << 20, dtype=torch.uint8, device="cuda").numel() == 1 << 20  # and it goes on
refused = refusal(capture)
assert "CUDA graphs and MemPool need the shim" in refused, refused
"""
TRAINS = """
torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8))).cuda()
optimizer = torch.optim.AdamW(model.parameters())
other = torch.cuda.Stream()
for step in range(12):
    batch = torch.randn(64 + step % 3 * 32, 512).cuda()
    other.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(other):
        doubled = batch * 2
    batch.record_stream(other)
    torch.cuda.current_stream().wait_stream(other)
    doubled.record_stream(torch.cuda.current_stream())
    loss = model(doubled).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item().hex())
"""


def built(folder):
    """The shared object that a wheel brings as hooks.so; skips where nothing compiles it."""
    try:
        compiler = _shim.compiler()
    except pleat.UnavailableError as missing:
        raise unittest.SkipTest(str(missing)) from None
    made, library = folder / "shims" / "hooks.so", _shim.library()
    made.parent.mkdir()
    _shim.compile_with([*compiler, "-std=c++17", "-O2", "-fPIC", "-shared", "-pthread", "-I%s" % (ROOT / "include"),
                        "-I%s" % _shim.PACKAGE, str(_shim.PACKAGE / "hooks.cpp"), str(library),
                        "-Wl,-rpath,%s" % library.parent, "-o", str(made)])
    return made


class Fallback(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.hooks = built(pathlib.Path(cls.folder.name))

    def python(self, *parts, served=True, **more):
        """Standard output of a program for which there is no compiler, nor what one made before."""
        begin = BEGIN % (str(ADAPTER), str(self.hooks), str(self.hooks),
                         str(_shim.library())) if served else "import torch\n"
        environment = {name: value for name, value in os.environ.items() if name not in (
            "CXX", "LD_PRELOAD", "PLEAT_NO_GPU", "PLEAT_LIBRARY", "PLEAT_INCLUDE")}
        environment.update(more, PATH="/nonexistent", XDG_CACHE_HOME=self.folder.name,
                           CUBLAS_WORKSPACE_CONFIG=":4096:8")
        done = subprocess.run([sys.executable, "-c", begin + "".join(parts)], env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    @unittest.skipUnless(STAND_INS, "no torch with CUDA, or no stand-ins for CUDA's libraries")
    def test_tensors_are_served_on_stand_ins(self):
        self.python(ALLOCATES, LD_PRELOAD=os.environ["PLEAT_NO_GPU"])

    @unittest.skipUnless(GPU, "no torch with CUDA, or no GPU")
    def test_on_a_gpu_losses_are_natives(self):
        self.python(ALLOCATES)
        native = self.python(TRAINS, served=False)
        self.assertEqual(len(native.splitlines()), 12)
        self.assertEqual(self.python(TRAINS), native)


if __name__ == "__main__":
    suite.main(needs_torch=True)
