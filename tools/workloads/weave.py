#!/usr/bin/env python3
"""Makes one long recording from short ones, of a job that changes its microbatch. Or the recording of a
job that keeps a tensor more, or is continued.

    weave.py switch A.pickle.gz B.pickle.gz ... --every 20 --iterations 120 -o OUT.pickle.gz
    weave.py add A.pickle.gz --bytes 8500000 --iteration 1 -o OUT.pickle.gz
    weave.py resume A.pickle.gz -o OUT.pickle.gz

`switch` begins as A does, and then repeats the last iteration but one of each recording in turn; the
recordings are of the same job with different microbatches. What one iteration leaves live and the next
frees is freed in the order in which it was allocated, whichever recording both are of. `add` is A with a
tensor more that is never freed: the job's first one, or allocated where iteration N begins. `resume` is A
continued from a checkpoint: what the first two iterations allocate and nothing frees, the optimizer's
states, is there before them.
"""

import argparse
import gzip
import os
import pickle
import re
import zlib

import recording

LABEL = re.compile(r"iter=(\d+)(?:;phase=(.*))?$")
UNREADABLE = (OSError, EOFError, pickle.UnpicklingError, LookupError, TypeError, ValueError)
ALLOC, REQUESTED, COMPLETED = "alloc", "free_requested", "free_completed"


class Plain(pickle.Unpickler):
    """Reads what is made of built-in types only, and executes nothing."""

    def find_class(self, module, name):
        raise pickle.UnpicklingError("it holds a %s.%s" % (module, name))


def load(path):
    """What comes before the first iteration, and the iterations, as lists of events."""
    try:
        with gzip.open(path, "rb") as packed:
            snapshot = Plain(packed).load()
        events = max(snapshot["device_traces"], key=len)
    except (*UNREADABLE, zlib.error) as problem:
        raise SystemExit("weave.py: %s is no gzipped snapshot of torch: %s" % (path, problem)) from None
    stretches, last = [[]], None
    for event in events:
        if event["action"] not in (ALLOC, REQUESTED, COMPLETED):
            continue
        match = LABEL.match(event.get("user_metadata") or "")
        if match and match.group(1) != last:
            last = match.group(1)
            stretches.append([])
        stretches[-1].append(event)
    # A job's end has a label too, and only frees.
    whole = [events for events in stretches[1:] if any(e["action"] == ALLOC for e in events)]
    if len(whole) < 3:
        raise SystemExit("weave.py: %s has %d labelled iterations, not 3" % (path, len(whole)))
    return stretches[0], whole


class Body:
    """An iteration that can be repeated: (action, which, size, stream, phase), where `which` counts
    the allocations of the iteration, or is ~k for the k-th that the iteration before left."""

    def __init__(self, before, events):
        live, count = {}, 0
        for event in before:
            if event["action"] == ALLOC:
                live[event["addr"]] = count
                count += 1
            elif event["action"] == COMPLETED:
                live.pop(event["addr"], None)
        left = dict(live)
        self.steps, ids, crossing, freed, phase, count = [], {}, {}, {}, "", 0
        for event in events:
            if event["action"] == COMPLETED and event["addr"] in left:
                freed[event["addr"]] = left.pop(event["addr"])
            elif event["action"] == ALLOC:
                left.pop(event["addr"], None)
        for rank, address in enumerate(sorted(freed, key=freed.get)):
            crossing[address] = ~rank
        for event in events:
            match = LABEL.match(event.get("user_metadata") or "")
            phase = (match.group(2) or "") if match else phase
            address = event["addr"]
            if event["action"] == ALLOC:
                which = ids[address] = count
                count += 1
                crossing.pop(address, None)
            elif address in ids:
                which = ids[address]
            elif address in crossing:
                which = crossing[address]
            else:
                continue
            labelled = phase if match else None
            self.steps.append((event["action"], which, event["size"], event["stream"], labelled))


class Writer:
    def __init__(self):
        self.events, self.address, self.time, self.iteration = [], 1 << 40, 0, 0
        self.left = []

    def add(self, action, address, size, stream, label):
        self.time += 1
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": stream,
                "time_us": self.time,
                "user_metadata": label,
            }
        )

    def new_address(self, size):
        """Never the same twice, and all memory behind it its own."""
        address = self.address
        self.address += (size + 511) // 512 * 512 + 512
        return address

    def beginning(self, stretches):
        """Events as recorded; what the last stretch leaves may be freed by the next iteration."""
        live, order = {}, {}
        for number, events in enumerate(stretches):
            order = {}
            for event in events:
                label = event.get("user_metadata") or ""
                match = LABEL.match(label)
                if match:
                    self.iteration = int(match.group(1))
                if event["action"] == ALLOC:
                    address = live[event["addr"]] = self.new_address(event["size"])
                    order[address] = event["size"]
                elif event["addr"] in live:
                    address = live[event["addr"]]
                    if event["action"] == COMPLETED:
                        del live[event["addr"]]
                        order.pop(address, None)
                else:
                    continue
                self.add(event["action"], address, event["size"], event["stream"], label)
        self.left = sorted(order.items())

    def body(self, body):
        self.iteration += 1
        addresses, label = {}, "iter=%d;phase=" % self.iteration
        mine, left = {}, dict(self.left)
        first = True
        for action, which, size, stream, phase in body.steps:
            text = "" if phase is None and not first else label + (phase or "")
            first = False
            if action == ALLOC:
                address = addresses[which] = self.new_address(size)
                mine[address] = size
            elif which >= 0:
                address = addresses[which]
            elif ~which < len(self.left):
                address, size = self.left[~which]
            else:
                continue
            self.add(action, address, size, stream, text)
            if action == COMPLETED:
                mine.pop(address, None)
                left.pop(address, None)
        # What this body knows nothing of, because another one left it.
        stream = body.steps[-1][3]
        for address, size in left.items():
            self.add(REQUESTED, address, size, stream, "")
            self.add(COMPLETED, address, size, stream, "")
        self.left = sorted(mine.items())

    def write(self, path):
        return recording.write({"segments": [], "device_traces": [self.events]}, path)


def switch(options):
    bodies = []
    for path in options.recordings:
        start, iterations = load(path)
        # What the last iteration leaves is freed when the job has ended: not in it, where a job that
        # goes on would.
        last = len(iterations) - (2 if len(iterations) > 2 else 1)
        bodies.append(Body(iterations[last - 1], iterations[last]))
    start, iterations = load(options.recordings[0])
    writer = Writer()
    writer.beginning([start] + iterations[:-1])
    done = len(iterations) - 1
    if options.iterations < done:
        raise SystemExit("weave.py: --iterations %d: it begins with %d that were recorded" % (options.iterations, done))
    for n in range(done, options.iterations):
        writer.body(bodies[n // options.every % len(bodies)])
    return writer


def add(options):
    start, iterations = load(options.recordings[0])
    if options.iteration is not None and not 0 <= options.iteration < len(iterations):
        raise SystemExit("weave.py: no iteration %d in %d" % (options.iteration, len(iterations)))
    # Behind the event that says that the iteration begins.
    stretch, at = (start, 0) if options.iteration is None else (iterations[options.iteration], 1)
    stretch.insert(at, {"action": ALLOC, "addr": None, "size": options.bytes, "stream": 0})
    writer = Writer()
    writer.beginning([start] + iterations)
    return writer


def lasting(iterations):
    """Allocations of the first two iterations that nothing frees, and takes them out of there."""
    freed = [[e["addr"] for e in events if e["action"] == COMPLETED] for events in iterations]
    taken = []
    for number, events in enumerate(iterations[:2]):
        later = {address for part in freed[number + 1:] for address in part}
        for at in range(len(events) - 1, -1, -1):
            event = events[at]
            if event["action"] == COMPLETED:
                later.add(event["addr"])
            elif event["action"] == ALLOC and event["addr"] not in later:
                taken.append((number, at, event))
            elif event["action"] == ALLOC:
                later.discard(event["addr"])
    for number, at, _ in taken:
        del iterations[number][at]
    return [event for _, _, event in sorted(taken, key=lambda one: one[:2])]


def resume(options):
    start, iterations = load(options.recordings[0])
    early = [dict(event, user_metadata="") for event in lasting(iterations)]
    writer = Writer()
    writer.beginning([start + early] + iterations)
    return writer


# Options that only some ways take -> those, and the value without them.
OWN = {
    "every": (("switch",), 20),
    "iterations": (("switch",), 200),
    "bytes": (("add",), 512),
    "iteration": (("add",), None),
}


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError("%r is not 1 or more" % text)
    return int(text)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ways = {"switch": switch, "add": add, "resume": resume}
    parser.add_argument("how", choices=list(ways))
    parser.add_argument(
        "recordings", nargs="+", metavar="RECORDING", help="a snapshot of torch; switch takes several"
    )
    whole = {"type": positive, "metavar": "N"}
    parser.add_argument("--every", help="switch: iterations before one [20]", **whole)
    parser.add_argument("--iterations", help="switch: in all [200]", **whole)
    parser.add_argument("--bytes", help="add: of the tensor that is added [512]", **whole)
    parser.add_argument("--iteration", type=int, metavar="N", help="add: the iteration that it comes in, from 0 on")
    parser.add_argument("-o", "--output", required=True, metavar="FILE", help="a .pickle.gz")
    options = parser.parse_args()
    if options.how != "switch" and len(options.recordings) != 1:
        parser.error("%s takes one recording" % options.how)
    for name, (takers, default) in OWN.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
        elif options.how not in takers:
            parser.error("%s takes no --%s" % (options.how, name))
    # The recording would be lost; what is written has its name.
    for path in options.recordings:
        if os.path.exists(options.output) and os.path.exists(path) and os.path.samefile(path, options.output):
            parser.error("%s is read, and would be overwritten" % path)
    writer = ways[options.how](options)
    try:
        size = writer.write(options.output)
    except OSError as problem:
        raise SystemExit("weave.py: %s" % problem) from None
    print("%s: %d entries, %d bytes" % (options.output, len(writer.events), size))


if __name__ == "__main__":
    main()
