"""Memory that comes and goes, on a real GPU: tenants.py [GIB]. Skips where there is none.

GIB is what the trainer has live (16; on a GPU of 80 GiB at most 30, of 141 GiB 60). Limits of the
environment and the headroom, a trainer in turns with a process that makes its memory by cuMemCreate
alone, pause and resume against the link's bandwidth, tenants that lend to each other. Each part is a
process of its own; figures are printed. Under four minutes with 16.
"""

import json
import os
import pathlib
import subprocess
import sys
import time
import unittest

try:
    import torch
except ImportError:
    torch = None

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters" / "pytorch"))
READY = torch is not None and torch.version.cuda is not None and torch.cuda.is_available()
GIB = float(next(iter(sys.argv[1:]), 16)) if __name__ == "__main__" else 16.0
UNIT = 1 << 30

# What the parts share.
COMMON = """
import ctypes, json, os, subprocess, sys, time, torch
sys.path.insert(0, %r)
GIB, UNIT = %f, 1 << 30

torch.backends.cuda.matmul.allow_tf32 = True

def used():
    "NVML's count of the device, in bytes."
    out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"],
                         capture_output=True, text=True).stdout
    return int(out.splitlines()[0]) << 20

def layers(gib):
    "A model of about so many GiB of live state: weights, gradients and Adam's two, of 4 bytes each."
    width = 4096
    count = max(1, int(gib * UNIT / (16 * width * width)))
    return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(count)])

class Trainer:
    def __init__(self, gib):
        torch.manual_seed(0)
        self.model = layers(gib).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.generator = torch.Generator().manual_seed(1)
    def step(self, rows=8192):
        x = torch.randn(rows, 4096, generator=self.generator).cuda()
        for layer in self.model:
            x = torch.nn.functional.gelu(layer(x)) + x
        loss = x.square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()
""" % (str(ROOT / "adapters" / "pytorch"), GIB)

LIMITS = COMMON + """
import pleat
pleat.enable()
torch.cuda.init()
a = torch.randn(4096, 4096, device="cuda")
(a @ a).sum().item()                       # cuBLAS has its workspace
found = pleat.limits()
mine = subprocess.run(["nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"],
                      capture_output=True, text=True).stdout.split()
nvml = (int(mine[0]) << 20) - pleat.stats()["physical_bytes"] if len(mine) == 1 and mine[0].isdigit() else None
held = []
try:
    while True:
        held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError as problem:
    text = str(problem)
after = pleat.limits()
print(json.dumps(dict(found=found, nvml_other=nvml, text=text, physical=pleat.stats()["physical_bytes"], after=after)))
"""

# The server: all of the rest but a little by cuMemCreate, held for a moment, given back.
SERVER = """
import ctypes, json, sys
cu = ctypes.CDLL("libcuda.so.1")
class Location(ctypes.Structure): _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]
class Prop(ctypes.Structure): _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location), ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]
assert cu.cuInit(0) == 0
context = ctypes.c_void_p(); assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cu.cuCtxPushCurrent_v2(context) == 0
prop = Prop(type=1, location=Location(1, 0))
print("ready", flush=True)
for line in sys.stdin:
    handles = []
    handle = ctypes.c_ulonglong()
    while cu.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(256 << 20), ctypes.byref(prop), ctypes.c_ulonglong(0)) == 0:
        handles.append(handle.value)
    for each in handles: assert cu.cuMemRelease(ctypes.c_ulonglong(each)) == 0
    print(len(handles) << 28, flush=True)
"""

TURNS = COMMON + """
how, turns = sys.argv[1], int(sys.argv[2])
if how != "native":
    import pleat
    pleat.enable()
server = subprocess.Popen([sys.executable, "-c", sys.argv[3]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
assert server.stdout.readline() == "ready\\n"
trainer = Trainer(GIB)
losses = [trainer.step() for _ in range(4)]
gaps, resumes, served, rest_over, training = [], [], [], [], 0.0
for turn in range(turns):
    torch.cuda.synchronize()
    begun = time.monotonic()
    if how == "native": torch.cuda.empty_cache()
    elif how == "trim": pleat.trim()
    elif how == "pause": pleat.pause()
    else: pleat.pause("discard")
    gaps.append(time.monotonic() - begun)
    if how != "native":
        now = pleat.stats()
        rest_over.append(now["physical_bytes"] - (now["live_bytes"] if how == "trim" else 0))
    server.stdin.write("take\\n"); server.stdin.flush()
    served.append(int(server.stdout.readline()))
    begun = time.monotonic()
    if how in ("pause", "discard"): pleat.resume()
    resumes.append(time.monotonic() - begun)
    if how == "discard": break
    begun = time.monotonic()
    losses += [trainer.step() for _ in range(3)]
    torch.cuda.synchronize()
    training += time.monotonic() - begun
server.stdin.close(); server.wait()
live = torch.cuda.memory_allocated()
print(json.dumps(dict(losses=losses, gap=sorted(gaps)[len(gaps) // 2], resume=sorted(resumes)[len(resumes) // 2],
                      served=min(served), over=max(rest_over, default=0), live=live, seconds=training + sum(gaps) + sum(resumes))))
"""

BANDWIDTH = COMMON + """
host = torch.empty(UNIT, dtype=torch.uint8, pin_memory=True); there = torch.empty(UNIT, dtype=torch.uint8, device="cuda")
best = []
for to, of in ((there, host), (host, there)):
    times = []
    for _ in range(5):
        torch.cuda.synchronize(); begun = time.monotonic(); to.copy_(of, non_blocking=True); torch.cuda.synchronize()
        times.append(time.monotonic() - begun)
    best.append(UNIT / min(times))
print(json.dumps(best))
"""

# A borrower that trains, in the size that still fits; the lender wakes up in the middle.
BORROWER = COMMON + """
import pleat
pleat.enable()
trainer = Trainer(GIB / 2)
rows, refused, losses, seen = int(sys.argv[1]), 0, [], []
print("ready", flush=True)
until = time.monotonic() + 40
while time.monotonic() < until:
    try:
        losses.append(trainer.step(rows))
    except torch.cuda.OutOfMemoryError:
        refused += 1
        trainer.optimizer.zero_grad()
        rows //= 2
    seen.append(pleat.stats()["physical_bytes"])
    if os.path.exists(sys.argv[2]): break
print(json.dumps(dict(rows=rows, refused=refused, iterations=len(losses), most=max(seen), last=seen[-1])))
"""

LENDER = COMMON + """
import pleat
pleat.enable()
begun = time.monotonic()
held, size, times = [], 512 << 20, []
for _ in range(int(float(sys.argv[1]) * UNIT) // size):
    for _ in range(50):
        try:
            held.append(torch.empty(size, dtype=torch.uint8, device="cuda")); break
        except torch.cuda.OutOfMemoryError:
            pass
    times.append(time.monotonic() - begun)
print(json.dumps(dict(got=len(held) * size, seconds=times[-1], used=used())))
time.sleep(3)
"""


def part(program, *arguments, **environment):
    ran = subprocess.run([sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True,
                         env={**os.environ, **environment}, timeout=200)
    if ran.returncode:
        raise AssertionError(ran.stdout[-2000:] + ran.stderr[-4000:])
    return json.loads(ran.stdout.splitlines()[-1])


@unittest.skipUnless(READY, "no torch with CUDA, or no GPU")
class Tenants(unittest.TestCase):
    def test_limits_of_the_environment_are_obeyed_and_headroom_is_measured(self):
        for name, value in (("CUDA_DEVICE_MEMORY_LIMIT", "8g"), ("NVIDIA_GPU_MEMORY_LIMIT", "8Gi"),
                            ("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=8G")):
            got = part(LIMITS, **{name: value})
            print("limits: %s: %s" % (name, {**got, "text": got["text"][-200:]}))
            self.assertEqual(got["found"]["name"], name)
            self.assertIn(name, got["text"])
            self.assertLessEqual(got["physical"], 8 * UNIT - (got["after"]["other_bytes"] or 0))
            if got["nvml_other"] is not None and got["found"]["other_bytes"] is not None:
                self.assertLess(abs(got["found"]["other_bytes"] - got["nvml_other"]), 0.02 * got["nvml_other"])

    def test_turns_with_a_process_that_makes_its_own_memory(self):
        link = part(BANDWIDTH)
        native = part(TURNS, "native", 10, SERVER)
        trim = part(TURNS, "trim", 10, SERVER)
        pause = part(TURNS, "pause", 3, SERVER)
        discard = part(TURNS, "discard", 1, SERVER)
        print("turns: link in %.1f and out %.1f GB/s" % (link[0] / 1e9, link[1] / 1e9))
        for name, got in (("native", native), ("trim", trim), ("pause", pause), ("discard", discard)):
            print("turns: %s: %s" % (name, {key: value for key, value in got.items() if key != "losses"}))
        self.assertEqual(trim["losses"], native["losses"])
        self.assertEqual(pause["losses"], native["losses"][: len(pause["losses"])])
        self.assertLess(trim["gap"], 1)
        self.assertLessEqual(trim["over"], 0.01 * trim["live"] + (64 << 20))
        self.assertLess(discard["over"], UNIT)
        self.assertGreater(pause["served"], trim["served"])
        copy = pause["live"] / link[0]
        print("turns: resume takes %.2f of the copy at the link's bandwidth; native is %.2f of trim's speed"
              % (pause["resume"] / copy, trim["seconds"] / native["seconds"]))
        self.assertLess(pause["resume"], 1.2 * copy)

    def test_a_lender_that_wakes_up_gets_what_it_is_guaranteed(self):
        total = torch.cuda.get_device_properties(0).total_memory
        guarantee = int(total * 0.6) >> 30
        stop = "/tmp/pleat-tenants-stop-%d" % os.getpid()
        folder = "/dev/shm/pleat-tenants-%d" % os.getpid()
        os.makedirs(folder, exist_ok=True)
        shared = {"PLEAT_TENANTS_DIR": folder}
        # Its activations, two of 16 KiB a row in each layer, and its state take half of the device.
        rows = int((0.5 * total - GIB / 2 * UNIT) / (GIB / 2 * UNIT / (16 * 4096 * 4096) * 2 * 16384))
        borrower = subprocess.Popen(
            [sys.executable, "-c", BORROWER, str(rows), stop], stdout=subprocess.PIPE, text=True,
            env={**os.environ, **shared, "PLEAT_CONF": "tenants:user,tenant:borrower,guarantee:%dg" % ((total >> 30) * 0.25)})
        try:
            self.assertEqual(borrower.stdout.readline(), "ready\n")
            time.sleep(15)
            lender = part(LENDER, guarantee - 2, **shared,
                          PLEAT_CONF="tenants:user,tenant:lender,guarantee:%dg" % guarantee)
            time.sleep(3)
            pathlib.Path(stop).touch()
            told = json.loads(borrower.communicate(timeout=60)[0].splitlines()[-1])
        finally:
            borrower.kill()
            borrower.wait()
            pathlib.Path(stop).unlink(missing_ok=True)
            subprocess.run(["rm", "-r", folder], check=False)
        print("tenants: borrower %s; lender %s of %d GiB guaranteed" % (told, lender, guarantee))
        self.assertEqual(lender["got"], (guarantee - 2) * UNIT)
        self.assertLessEqual(lender["used"], total)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
