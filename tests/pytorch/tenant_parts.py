"""What tenants.py starts, each a process of its own: tenant_parts.py PART JSON.

JSON has the part's settings. A part prints one JSON object in its last line.
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import threading
import time

UNIT = 1 << 30
WIDTH = 4096
PIECE = 256 << 20  # of what a neighbour takes


def torch_with(how, **options):
    """torch, served by Pleat unless `how` is native."""
    import torch

    if how != "native":
        import pleat

        pleat.enable(**options)
    torch.backends.cuda.matmul.allow_tf32 = True
    return torch


def counters():
    import pleat

    names = ("creates", "maps", "set_accesses", "unmaps", "releases", "driver_calls")
    found = pleat.stats()
    return {name: found[name] for name in names if name in found}


def less(after, before):
    return {name: after[name] - before[name] for name in after}


def median(values):
    return sorted(values)[len(values) // 2] if values else None


# ---- the neighbour that is under no allocator that could be asked ----

class Location(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("id", ctypes.c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("handles", ctypes.c_int), ("location", Location),
                ("win32", ctypes.c_void_p), ("flags", ctypes.c_ubyte * 8)]


class Driver:
    """Memory by cuMemCreate alone, as vLLM's allocator makes it."""

    def __init__(self):
        self.cu = ctypes.CDLL("libcuda.so.1")
        self.properties = Properties(type=1, location=Location(1, 0))
        context = ctypes.c_void_p()
        for result in (self.cu.cuInit(0), self.cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
                       self.cu.cuCtxPushCurrent_v2(context)):
            assert result == 0, result

    def create(self, size):
        """A handle, or None where there is no memory."""
        handle = ctypes.c_ulonglong()
        result = self.cu.cuMemCreate(ctypes.byref(handle), ctypes.c_size_t(size), ctypes.byref(self.properties),
                                     ctypes.c_ulonglong(0))
        return handle.value if result == 0 else None

    def release(self, handle):
        assert self.cu.cuMemRelease(ctypes.c_ulonglong(handle)) == 0

    def take_all(self):
        handles = []
        while (handle := self.create(PIECE)) is not None:
            handles.append(handle)
        return handles


def server(_):
    """Takes all there is and gives it back, each time it is asked."""
    driver = Driver()
    print("ready", flush=True)
    for _ in sys.stdin:
        handles = driver.take_all()
        for handle in handles:
            driver.release(handle)
        print(len(handles) * PIECE, flush=True)


class Server:
    def __init__(self):
        self.process = subprocess.Popen([sys.executable, __file__, "server", "{}"], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def turn(self):
        """Bytes that it got."""
        self.process.stdin.write("take\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def verbs(asked):
    """Microseconds that the driver takes for a handle of each size, at first, and after a neighbour had it all."""
    driver = Driver()
    cu, neighbour, found = driver.cu, Server(), {}
    total = asked["bytes"]
    base = ctypes.c_ulonglong()
    assert cu.cuMemAddressReserve(ctypes.byref(base), ctypes.c_size_t(total), ctypes.c_size_t(0),
                                  ctypes.c_ulonglong(0), ctypes.c_ulonglong(0)) == 0

    class Access(ctypes.Structure):
        _fields_ = [("location", Location), ("flags", ctypes.c_int)]

    access = Access(Location(1, 0), 3)

    def timed(name, count, call):
        begun = time.perf_counter()
        for i in range(count):
            call(i)
        found["%s %s" % (when, name)] = round((time.perf_counter() - begun) / count * 1e6, 2)

    for size in (2 << 20, 16 << 20, 64 << 20):
        for when in ("%d MiB" % (size >> 20), "%d MiB, after a neighbour" % (size >> 20)):
            if "after" in when:
                neighbour.turn()
            count, handles = total // size, []

            def verb(call, *arguments):
                assert call(*arguments) == 0

            def at(i):
                return ctypes.c_ulonglong(base.value + i * size)

            timed("create", count, lambda i: handles.append(driver.create(size)))
            timed("map", count, lambda i: verb(cu.cuMemMap, at(i), ctypes.c_size_t(size), ctypes.c_size_t(0),
                                               ctypes.c_ulonglong(handles[i]), ctypes.c_ulonglong(0)))
            timed("access", count, lambda i: verb(cu.cuMemSetAccess, at(i), ctypes.c_size_t(size),
                                                  ctypes.byref(access), ctypes.c_size_t(1)))
            timed("unmap", count, lambda i: verb(cu.cuMemUnmap, at(i), ctypes.c_size_t(size)))
            timed("release", count, lambda i: driver.release(handles[i]))
    neighbour.end()
    return found


class Area:
    """Reserved addresses, and handles that are mapped there one behind the other."""

    class Access(ctypes.Structure):
        _fields_ = [("location", Location), ("flags", ctypes.c_int)]

    def __init__(self, driver, size, count):
        self.driver, self.size, self.count, self.handles = driver, size, count, []
        base = ctypes.c_ulonglong()
        assert driver.cu.cuMemAddressReserve(ctypes.byref(base), ctypes.c_size_t(size * count), ctypes.c_size_t(0),
                                             ctypes.c_ulonglong(0), ctypes.c_ulonglong(0)) == 0
        self.base = base.value

    def make(self):
        cu, size = self.driver.cu, ctypes.c_size_t(self.size)
        access = self.Access(Location(1, 0), 3)
        for i in range(self.count):
            self.handles.append(self.driver.create(self.size))
            at = ctypes.c_ulonglong(self.base + i * self.size)
            assert cu.cuMemMap(at, size, ctypes.c_size_t(0), ctypes.c_ulonglong(self.handles[i]), ctypes.c_ulonglong(0)) == 0
            assert cu.cuMemSetAccess(at, size, ctypes.byref(access), ctypes.c_size_t(1)) == 0

    def end(self):
        assert self.driver.cu.cuMemUnmap(ctypes.c_ulonglong(self.base), ctypes.c_size_t(self.size * self.count)) == 0
        for handle in self.handles:
            self.driver.release(handle)
        self.handles = []


def overlap(asked):
    """Seconds of copies, of memory verbs, and of both at once."""
    driver = Driver()
    cu, found, total = driver.cu, {}, asked["bytes"]
    block = 256 << 20
    blocks = []

    def seconds(call):
        begun = time.perf_counter()
        call()
        return round(time.perf_counter() - begun, 4)

    def pin():
        memory = ctypes.c_void_p()
        assert cu.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(block), ctypes.c_uint(0)) == 0
        blocks.append(memory.value)

    def stream():
        made = ctypes.c_void_p()
        assert cu.cuStreamCreate(ctypes.byref(made), ctypes.c_uint(1)) == 0
        return made

    found["pin, each"] = [seconds(pin) for _ in range(4)]

    def pin_more(count):
        context = ctypes.c_void_p()
        assert cu.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cu.cuCtxPushCurrent_v2(context) == 0
        for _ in range(count):
            pin()

    def together(threads):
        all_of_them = [threading.Thread(target=pin_more, args=(8 // threads,)) for _ in range(threads)]
        for each in all_of_them:
            each.start()
        for each in all_of_them:
            each.join()

    found["pin 8, by threads"] = {threads: seconds(lambda: together(threads)) for threads in (1, 4, 8)}
    found["stream, made and dropped"] = seconds(lambda: [cu.cuStreamDestroy_v2(stream()) for _ in range(2)])
    streams = [stream(), stream()]
    there = Area(driver, 64 << 20, total // (64 << 20))
    there.make()
    small = Area(driver, 4 << 20, 512)

    def copy(out, piece=32 << 20, count=2, into=there):
        for i in range(total // piece):
            host = blocks[i * piece // block % len(blocks)] + i * piece % block
            device = into.base + i * piece
            assert cu.cuMemcpyAsync(ctypes.c_ulonglong(host if out else device), ctypes.c_ulonglong(device if out else host),
                                    ctypes.c_size_t(piece), streams[i % count]) == 0

    def wait():
        for each in streams:
            assert cu.cuStreamSynchronize(each) == 0

    for way, out in (("in", False), ("out", True)):
        for count in (1, 2):
            for piece in (32 << 20, 256 << 20):
                issued = seconds(lambda: copy(out, piece, count))
                rest = seconds(wait)
                found["copy %s, %d streams, %d MiB" % (way, count, piece >> 20)] = [issued, rest]
    for turn in ("first", "again"):
        found["make 512, " + turn] = seconds(small.make)
        found["end 512, " + turn] = seconds(small.end)
    copy(False)
    found["make 512 while copying in, then the rest"] = [seconds(small.make), seconds(wait)]
    copy(True)
    found["end 512 while copying out, then the rest"] = [seconds(small.end), seconds(wait)]
    worker = threading.Thread(target=lambda: (pin_more(0), small.make()))
    found["make 512 on a thread while copying in"] = seconds(lambda: (worker.start(), copy(False), wait(), worker.join()))
    copy(False)
    found["end 512 while copying in, then the rest"] = [seconds(small.end), seconds(wait)]
    there.end()
    there.make()
    found["copy into what is new"] = seconds(lambda: (copy(False), wait()))
    found["copy into the same again"] = seconds(lambda: (copy(False), wait()))
    # As a resume does it: a part is made, and copied while the next one is made.
    parts = [Area(driver, 4 << 20, 32) for _ in range(total // (128 << 20))]

    def in_parts(made):
        for part in parts:
            if made:
                part.make()
            for i in range(4):
                assert cu.cuMemcpyAsync(ctypes.c_ulonglong(part.base + (i << 25)), ctypes.c_ulonglong(blocks[0] + (i << 25)),
                                        ctypes.c_size_t(32 << 20), streams[i % 2]) == 0
        wait()

    found["parts, made and copied"] = seconds(lambda: in_parts(True))
    found["parts, copied"] = seconds(lambda: in_parts(False))
    for part in parts:
        part.end()
    found["parts, made"] = seconds(lambda: [part.make() for part in parts])
    return found


class Bare:
    """What a resume copies, into memory that the driver makes at that moment for nothing else."""

    def __init__(self, torch, total):
        self.torch, self.host = torch, torch.empty(UNIT, dtype=torch.uint8, pin_memory=True)
        self.size, self.total = 64 << 20, total
        self.area = Area(Driver(), self.size, -(-total // self.size))

    def seconds(self):
        cu, stream = self.area.driver.cu, self.torch.cuda.Stream()
        begun = time.monotonic()
        self.area.make()
        for done in range(0, self.total, self.size):
            assert cu.cuMemcpyAsync(ctypes.c_ulonglong(self.area.base + done),
                                    ctypes.c_ulonglong(self.host.data_ptr() + done % UNIT),
                                    ctypes.c_size_t(min(self.size, self.total - done)),
                                    ctypes.c_void_p(stream.cuda_stream)) == 0
        stream.synchronize()
        took = time.monotonic() - begun
        self.area.end()
        return took


# ---- the trainer ----

class Trainer:
    """A chain of square layers with about `gib` GiB of weights, gradients and Adam's two states, of 4 bytes each;
    an iteration of `rows` rows has two times 16 KiB a row of activations in each layer."""

    def __init__(self, torch, gib, seed=0):
        self.torch = torch
        torch.manual_seed(seed)
        count = max(1, int(gib * UNIT / (16 * WIDTH * WIDTH)))
        self.model = torch.nn.Sequential(*[torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
                                           for _ in range(count)])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.generator = torch.Generator(device="cuda").manual_seed(seed + 1)

    def step(self, rows):
        torch = self.torch
        x = torch.randn(rows, WIDTH, device="cuda", generator=self.generator)
        for layer in self.model:
            x = torch.nn.functional.gelu(layer(x)) + x
        loss = x.square().mean()
        loss.backward()
        del x
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()

    def timed(self, rows):
        """Loss and seconds."""
        begun = time.monotonic()
        loss = self.step(rows)
        self.torch.cuda.synchronize()
        return loss, time.monotonic() - begun


def link_of(torch):
    """Bytes a second from pinned host memory to the device, the best of five."""
    host = torch.empty(UNIT, dtype=torch.uint8, pin_memory=True)
    there = torch.empty(UNIT, dtype=torch.uint8, device="cuda")
    times = []
    for _ in range(5):
        torch.cuda.synchronize()
        begun = time.monotonic()
        there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        times.append(time.monotonic() - begun)
    return UNIT / min(times)


def bare_copies(torch, neighbour, live):
    """Seconds of the same turn without Pleat: somebody takes all memory and gives it back, then `live` bytes are copied
    into memory that is made for them."""
    import pleat

    bare, seconds = Bare(torch, live), []
    for _ in range(3):
        pleat.pause("host")
        neighbour.turn()
        seconds.append(bare.seconds())
        pleat.resume()
    return median(seconds)


def turns(asked):
    """A trainer in turns with a process that takes all memory there is."""
    how, gib, rows, steps = asked["how"], asked["gib"], asked["rows"], asked["steps"]
    torch = torch_with(how)
    link = link_of(torch)
    torch.cuda.empty_cache()
    neighbour = Server()
    trainer = Trainer(torch, gib)
    losses, alone = map(list, zip(*[trainer.timed(rows) for _ in range(8)]))
    found = {"gap": [], "resume": [], "train": [], "first": [], "served": [], "over": [], "rest": []}
    calls = {"gap": {}, "resume": {}, "train": {}}
    for turn in range(asked["turns"]):
        torch.cuda.synchronize()
        before = counters() if how != "native" else {}
        begun = time.monotonic()
        if how == "native":
            torch.cuda.empty_cache()
        else:
            import pleat

            pleat.trim() if how == "trim" else pleat.pause("host" if how == "pause" else "discard")
        found["gap"].append(time.monotonic() - begun)
        if how != "native":
            now = pleat.stats()
            found["rest"].append(now["physical_bytes"])
            found["over"].append(now["physical_bytes"] - (now["live_bytes"] if how == "trim" else 0))
            calls["gap"] = less(counters(), before)
        found["served"].append(neighbour.turn())
        before = counters() if how != "native" else {}
        begun = time.monotonic()
        if how in ("pause", "discard"):
            pleat.resume()
        found["resume"].append(time.monotonic() - begun)
        if how != "native":
            calls["resume"] = less(counters(), before)
            before = counters()
        seconds = []
        for _ in range(steps if how != "discard" else 0):
            loss, took = trainer.timed(rows)
            losses.append(loss)
            seconds.append(took)
        if seconds:
            found["first"].append(seconds[0])
            found["train"].append(sum(seconds))
        if how != "native":
            calls["train"] = less(counters(), before)
    live = torch.cuda.memory_allocated()
    bare = bare_copies(torch, neighbour, live) if how == "pause" else None
    neighbour.end()
    copy = live / link
    part = {name: median(found[name]) for name in ("gap", "resume", "train", "first")}
    return {
        "how": how, "gib": gib, "rows": rows, "turns": asked["turns"], "steps": steps, "live": live, "link": link,
        "copy_seconds": copy, "resume_to_copy": part["resume"] / copy, "bare_seconds": bare,
        "resume_to_bare": part["resume"] / bare if bare else None, "alone": median(alone[4:]), **part,
        "gap_most": max(found["gap"]), "gap_first": found["gap"][0],
        "turn_seconds": (part["train"] or 0) + part["gap"] + part["resume"],
        "served_least": min(found["served"]), "over_most": max(found["over"], default=None),
        "rest_most": max(found["rest"], default=None), "calls": calls, "losses": losses,
    }


# ---- limits, tenants, spill ----

def limits(_):
    """What an environment's limit does, and what the process has that is not Pleat's."""
    torch = torch_with("pleat")
    import pleat

    torch.cuda.init()
    a = torch.randn(4096, 4096, device="cuda")
    (a @ a).sum().item()  # cuBLAS has its workspace
    found = pleat.limits()
    mine = subprocess.run(["nvidia-smi", "--query-compute-apps=used_memory", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True).stdout.split()
    known = len(mine) == 1 and mine[0].isdigit()
    other = (int(mine[0]) << 20) - pleat.stats()["physical_bytes"] if known else None
    held, text = [], ""
    try:
        while True:
            held.append(torch.empty(256 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as problem:
        text = str(problem)
    return {"found": found, "nvml_other": other, "text": text, "physical": pleat.stats()["physical_bytes"],
            "after": pleat.limits()}


def solo(asked):
    """Losses of trainers that have the device for themselves, one after the other."""
    torch = torch_with("native")
    losses = {}
    for seed in asked["seeds"]:
        trainer = Trainer(torch, asked["gib"], seed)
        losses[str(seed)] = [trainer.step(asked["rows"]) for _ in range(asked["iterations"])]
        del trainer
        torch.cuda.empty_cache()
    return {"losses": losses}


def capped(asked):
    """A trainer under a cap, beside others; one asks for more than its cap in the middle."""
    torch = torch_with("pleat", budget=asked["cap"])
    import pleat

    trainer = Trainer(torch, asked["gib"], asked["seed"])
    losses, refused = [], 0
    for i in range(asked["iterations"]):
        if asked["greedy"] and i == asked["iterations"] // 2:
            try:
                torch.empty(asked["cap"], dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:
                refused += 1
        losses.append(trainer.step(asked["rows"]))
    return {"losses": losses, "refused": refused, "physical": pleat.stats()["peak_physical_bytes"],
            "other": pleat.limits()["other_bytes"]}


def borrower(asked):
    """A trainer that takes more than it is guaranteed, until the lender wants it back, and goes on."""
    torch = torch_with("pleat")
    import pleat

    trainer = Trainer(torch, asked["gib"])
    rows, iterations, stop = asked["rows"], [], pathlib.Path(asked["stop"])
    until, told = time.monotonic() + asked["seconds"], False
    while time.monotonic() < until and not stop.exists():
        refused = False
        try:
            trainer.step(rows)
        except torch.cuda.OutOfMemoryError:
            refused = True
        if refused:  # outside of the handler, which keeps the iteration's tensors alive
            trainer.optimizer.zero_grad()
            rows //= 2
        iterations.append({"at": time.monotonic(), "rows": rows, "refused": refused,
                           "physical": pleat.stats()["physical_bytes"]})
        if not told and len(iterations) == 6:
            told = True
            print("ready", flush=True)
    return {"iterations": iterations}


def lender(asked):
    """Idle until it is told to go; then it takes what it is guaranteed, uses it and gives it back."""
    torch = torch_with("pleat")
    import pleat

    torch.zeros(1, device="cuda").item()
    rest = torch.empty(asked["rest"], dtype=torch.uint8, device="cuda")
    print("ready", flush=True)
    sys.stdin.readline()
    begun, held, size, refused = time.monotonic(), [], 512 << 20, 0
    while len(held) * size < asked["bytes"] and refused < 50:
        try:
            held.append(torch.empty(min(size, asked["bytes"] - len(held) * size), dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            refused += 1
    ended = time.monotonic()
    for each in held:
        each.fill_(7)
    good = all(int(each[-1]) == 7 for each in held) and rest.numel() == asked["rest"]
    time.sleep(asked["holds"])
    return {"begun": begun, "ended": ended, "got": sum(each.numel() for each in held), "refused": refused, "good": good,
            "physical": pleat.stats()["physical_bytes"]}


def spill(asked):
    """A trainer, with a budget or without, and what moved."""
    how = asked["how"]
    options = {"budget": asked["budget"], "conf": "spill:host"} if asked.get("budget") else {}
    torch = torch_with(how, **options)
    link = link_of(torch)
    torch.cuda.empty_cache()
    trainer = Trainer(torch, asked["gib"])
    losses, seconds, host, moved = [], [], [], []
    for _ in range(asked["iterations"]):
        loss, took = trainer.timed(asked["rows"])
        losses.append(loss)
        seconds.append(took)
        if how != "native":
            import pleat

            now = pleat.stats()
            host.append(now["host_bytes"])
            moved.append(now["moved_bytes"])
    return {"losses": losses, "seconds": seconds, "host": host, "moved": moved, "link": link,
            "physical": pleat.stats()["peak_physical_bytes"] if how != "native" else None,
            "live": torch.cuda.max_memory_allocated()}


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "adapters" / "pytorch"))
    answer = globals()[sys.argv[1]](json.loads(sys.argv[2]))
    if answer is not None:
        print(json.dumps(answer), flush=True)
