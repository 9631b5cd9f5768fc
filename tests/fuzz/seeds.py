#!/usr/bin/env python3
"""Makes tests/fuzz/corpus anew: small files of every kind that the fuzz targets read, written by the
command and by Python itself. usage: tests/fuzz/seeds.py PLEAT_COMMAND

Plans and traces are kept without their checksums, which the targets add, logs without most of what is
zero in them."""
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile

CORPUS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus")
CHECKSUM_BYTES = 6
LOG_HEADER_BYTES = 4096
LOG_HEADER_KEPT = 2048  # as tests/fuzz/log.c takes it
LOG_RECORDS_KEPT = 2048
FRAMES = [{"name": "forward", "filename": "/srv/net/model.py", "line": 12},
          {"name": "main", "filename": "train.py", "line": 3}]


def snapshot(size, streams, varies):
    """Four iterations of a model of three layers: a torch snapshot, as one Python value."""
    events, clock, address = [], 0, 1 << 20

    def add(action, at, bytes_, stream, label):
        nonlocal clock
        clock += 3
        events.append({"action": action, "addr": at, "size": bytes_, "stream": stream,
                       "time_us": clock, "user_metadata": label, "frames": FRAMES})

    def take(bytes_, stream, label):
        nonlocal address
        at, address = address, address + (bytes_ + 511) // 512 * 512
        add("alloc", at, bytes_, stream, label)
        return at, bytes_, stream

    def give(block, label):
        for action in ("free_requested", "free_completed"):
            add(action, *block, label)

    for layer in range(3):
        take(4096 * (layer + 1), 0, "")
    for iteration in range(4):
        label = "iter=%d;phase=F" % iteration
        kept = [take(size * (layer + 1), layer % streams, label) for layer in range(3)]
        if varies:
            give(take(700 * (iteration + 1), 0, label), label)
            add("annotate", *kept[0], "kept of %d" % iteration)
            add("annotate", *kept[0], "kept")
        label = "iter=%d;phase=B" % iteration
        for block in reversed(kept):
            gradient = take(size // 2, 0, label)
            give(block, label)
            give(gradient, label)
    segment = {"device": 0, "address": 1 << 20, "total_size": address, "stream": 0,
               "segment_pool_id": (0, 0), "is_expandable": False, "blocks": []}
    return {"segments": [segment], "device_traces": [events]}


def write(target, name, data):
    folder = os.path.join(CORPUS, target)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name), "wb") as file:
        file.write(data)


def read(path, cut=0):
    with open(path, "rb") as file:
        data = file.read()
    return data[:len(data) - cut]


def operators():
    """Four operators, one of them with a view and one in place, and handles that come and go."""
    lines = [dict(INSTRUCTION="ANNOTATE", ANNOTATION="START"), dict(INSTRUCTION="CONSTANT", NAME="w"),
             dict(INSTRUCTION="MEMORY", NAME="w", MEMORY="4096")]

    def call(name, arguments, results):
        lines.append(dict(INSTRUCTION="CALL", NAME=name, ARGS=arguments, TIME="100", RESULT=[r for r, _, _ in results]))
        for result, size, alias in results:
            lines.append(dict(INSTRUCTION="MEMORY", NAME=result, MEMORY=str(size)))
            lines.append(dict(INSTRUCTION="ALIAS", NAME=result, ALIAS=str(alias)))

    call("conv", ["w"], [("a", 4 << 20, -1)])
    call("view", ["a"], [("v", 4 << 20, 0)])
    lines.append(dict(INSTRUCTION="MUTATE", NAME="relu_", ARGS=["v"], MUTATE=[0], TIME="10"))
    call("norm", ["v", "w"], [("b", 3 << 20, -1), ("c", 512, -1)])
    lines.append(dict(INSTRUCTION="COPY", DST="d", SRC="c"))
    call("mm", ["b", "d"], [("e", 5 << 20, -1)])
    lines += [dict(INSTRUCTION="COPY_FROM", DST="d", SRC="e"), dict(INSTRUCTION="RELEASE", NAME="b")]
    call("conv_backward", ["a", "e"], [("f", 2 << 20, -1)])
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


class Maker:
    def __init__(self, command, folder):
        self.command, self.folder = command, folder

    def path(self, name):
        return os.path.join(self.folder, name)

    def run(self, *arguments):
        environment = {"PATH": os.environ["PATH"],
                       "PLEAT_CONF": "log:%s,log_bytes:128k" % self.path("run.log")}
        subprocess.run([self.command, *arguments], check=True, env=environment,
                       stdout=subprocess.DEVNULL)

    def snapshots(self):
        for name, shape in (("plain", (30000, 1, False)), ("varies", (30000, 1, True)),
                            ("streams", (30000, 2, False)), ("larger", (60000, 1, False))):
            value = snapshot(*shape)
            for protocol in (2, 4):
                data = pickle.dumps(value, protocol)
                if name in ("plain", "varies"):
                    write("snapshot", "%s%d" % (name, protocol), data)
            with open(self.path(name), "wb") as file:
                file.write(data)

    def traces(self):
        for name in ("plain", "streams"):
            self.run("import", self.path(name), "-o", self.path("trace"))
            write("trace", name, read(self.path("trace"), CHECKSUM_BYTES))

    def plans(self):
        small = ("--chunk", "4KiB")
        for name, arguments in (
                ("plain", ("plain",)), ("varies", ("varies",)), ("streams", ("streams",)),
                ("elastic", ("plain", "larger")),
                ("stweaver", ("varies", "--algorithm", "stweaver", "--no-fold"))):
            files = [self.path(a) if a in ("plain", "varies", "streams", "larger") else a
                     for a in arguments]
            self.run("plan", *files, *small, "-o", self.path("plan"))
            write("plan", name, read(self.path("plan"), CHECKSUM_BYTES))

    def logs(self):
        self.run("replay", self.path("plain"))
        data = read(self.path("run.log"))
        header, records = data[:LOG_HEADER_BYTES].rstrip(b"\0"), data[LOG_HEADER_BYTES:]
        write("log", "replay", header.ljust(LOG_HEADER_KEPT, b"\0") + records[:LOG_RECORDS_KEPT])


def main():
    maker = Maker(os.path.abspath(sys.argv[1]), tempfile.mkdtemp())
    maker.snapshots()
    maker.traces()
    maker.plans()
    maker.logs()
    write("csv", "table", b"id,lower,upper,size\n0,0,4,512\n1,1,3,1024\n2,5,9,700\n")
    write("csv", "columns", b"upper,x,size,lower,id\r\n4,?,512,0,a\r\n9,,1,4,\"b\"\r\n")
    write("operators", "chain", operators())
    write("conf", "settings", b"small:512k,views:16g,learn:off,log_ms:20,log:/tmp/%p\n")
    draws = random.Random(1)
    for i in range(8):
        write("made_plan", "draws%d" % i, bytes(draws.randrange(256) for _ in range(400)))
    for i in range(4):
        write("ledger", "draws%d" % i, bytes(draws.randrange(256) for _ in range(200)))


if __name__ == "__main__":
    main()
