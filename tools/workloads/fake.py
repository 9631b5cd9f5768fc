#!/usr/bin/env python3
"""Records a workload without a GPU and without its memory: on torch's fake tensors.

    fake.py gpt2 --microbatch-size 2 --iterations 5 --record OUT.pickle.gz

The first argument names the workload, the others are its own. Tensors have shapes and lives but no
contents, so a job of a hundred gigabytes is recorded anywhere, some thousand requests a second. What
is recorded are the tensors that the operators for the processor return: kernels' workspaces are not
among them, attention takes what it takes there, and losses mean nothing. How many tokens each expert
of a mixture gets is drawn, as are the lengths of samples. Replays go by the recording's clock, on
which --event-us passes from one event to the next.
"""

import argparse
import collections
import importlib
import math
import pathlib
import random
import re
import sys
import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import harness
import recording


class Recorder(recording.Labels):
    """Events of storages that come and go, as torch's own recorder has them."""

    def __init__(self, path, event_us=5):
        super().__init__()
        self.path = path
        self.event_us = event_us
        self.events = []
        self.live = {}  # storage -> what tells its end, address, bytes
        self.address = 1 << 40
        self.text = ""

    def set_label(self, text):
        self.text = text

    def add(self, action, address, size):
        self.events.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.event_us * len(self.events),
                "user_metadata": self.text,
            }
        )

    def seen(self, storage):
        key, size = storage._cdata, storage.nbytes()
        if key in self.live or size == 0:
            return
        address = self.address
        self.address += (size + 511) // 512 * 512 + 512
        self.live[key] = (weakref.finalize(storage, self.gone, key), address, size)
        self.add("alloc", address, size)

    def gone(self, key):
        _, address, size = self.live.pop(key)
        self.add("free_requested", address, size)
        self.add("free_completed", address, size)

    def finish(self):
        """What is live at the end stays so in the recording."""
        for end, _, _ in self.live.values():
            end.detach()
        return recording.write({"segments": [], "device_traces": [self.events]}, self.path)


class Watch(TorchDispatchMode):
    """Shows the recorder what each operator returns."""

    def __init__(self, recorder):
        super().__init__()
        self.recorder = recorder

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, FakeTensor):
                self.recorder.seen(leaf.untyped_storage())
        return result


def without_contents(module, seed):
    """Puts something in the place of what a workload reads from its tensors."""
    read = torch.Tensor.item
    draws = random.Random(seed)
    routed = {}  # layer of experts -> what its forwards drew, and how much each expert is liked

    def item(tensor):
        return 1.0 if isinstance(tensor, FakeTensor) else read(tensor)

    def to(model, dtype):
        # Module.to() swaps parameters, which fake ones refuse.
        for part in model.modules():
            for name, weight in part._parameters.items():
                if weight is not None and weight.dtype != dtype:
                    part._parameters[name] = torch.nn.Parameter(weight.detach().to(dtype))
        return model

    def draw(lengths, number):
        samples = harness.at(lengths.samples, number, lengths.every)
        most = max(math.exp(draws.gauss(0, 0.6)) for _ in range(samples))
        longest = int(lengths.most / 4 * most)
        return samples, max(8, min(lengths.most, (longest + 7) // 8 * 8))

    def count(layer, experts):
        # Some experts are liked more than others, not always the same much. What is recomputed, in
        # backward, is what the oldest forward drew.
        kept, liked = routed.setdefault(layer, (collections.deque(), []))
        if torch._C._current_graph_task_id() != -1:
            return kept.popleft()
        number = len(layer.experts)
        liked.extend(draws.gauss(0, 0.5) for _ in range(number - len(liked)))
        weights = [math.exp(like + draws.gauss(0, 0.2)) for like in liked]
        drawn = collections.Counter(draws.choices(range(number), weights, k=experts.numel()))
        kept.append([drawn[expert] for expert in range(number)])
        return kept[-1]

    torch.Tensor.item = item
    torch.nn.Module.to = to
    if hasattr(module, "Experts"):
        module.Experts.count = count
    if hasattr(module, "Lengths"):
        module.Lengths.draw = draw


def workloads():
    """Names of the workloads: what lies here and can be made. What trains over ranks needs torchrun's others."""
    files = pathlib.Path(__file__).resolve().parent.glob("*.py")
    runs, over_ranks = (re.compile(one, re.M) for one in (r"^ +harness\.main\(", r"^ +dist\.init_process_group\("))
    texts = {file.stem: file.read_text() for file in files}
    return sorted(name for name, text in texts.items() if runs.search(text) and not over_ranks.search(text))


def parse():
    """The workload, its own options, and the recording's path."""
    parser = argparse.ArgumentParser(
        description="Records a workload without a GPU and without its memory: on torch's fake tensors.",
        epilog="The other options are the workload's own: fake.py WORKLOAD --help.",
        allow_abbrev=False,
    )
    parser.add_argument("workload", choices=workloads())
    parser.add_argument("--record", metavar="FILE", help="write the snapshot here (.pickle.gz)")
    harness.number(parser, "--event-us", 5, "microseconds from one event to the next, as recorded")
    if sys.argv[1:2] in (["-h"], ["--help"]):
        parser.parse_args()
    # "--record" is only for a GPU's history in the workload's own options.
    asked, left = parser.parse_known_args([one for one in sys.argv[1:] if one not in ("-h", "--help")])
    module = importlib.import_module(asked.workload)
    wanted = ["--help"] if {"-h", "--help"} & set(sys.argv[1:]) else []
    check = getattr(module, "check", None)
    options = harness.read(
        module.__doc__, module.add_options, 4, check, ["--device", "cpu", *left, *wanted]
    )
    if options.out or options.cuda:
        parser.error("--device, --out: it is recorded on no device, and nothing is measured")
    if not asked.record:
        parser.error("--record FILE is missing")
    if not pathlib.Path(asked.record).absolute().parent.is_dir():
        parser.error("--record: there is no folder for %s" % asked.record)
    if asked.event_us < 1:
        parser.error("--event-us must be at least 1")
    return module, options, asked


def main():
    module, options, asked = parse()
    without_contents(module, options.seed)
    torch.manual_seed(options.seed)
    recorder = Recorder(asked.record, asked.event_us)
    with FakeTensorMode(allow_non_fake_inputs=True), Watch(recorder):
        job = module.make(options, recorder)
        for number in range(options.iterations):
            job.iteration(number)
            if not options.quiet:
                print("iteration %d: %d entries" % (number, len(recorder.events)), file=sys.stderr)
    print("%s: %d entries, %d bytes" % (asked.record, len(recorder.events), recorder.finish()))


if __name__ == "__main__":
    main()
