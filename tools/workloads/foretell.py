#!/usr/bin/env python3
"""What `pleat explain --budget` foretells of fewer blocks computed again, beside recordings of it: no GPU.

    foretell.py                       # a Llama of transformers: some twenty seconds
    foretell.py --layers 16 --hidden 2048

A model is stepped through on torch's fake tensors (see fake.py), once with all layers computed again, as
--recompute auto learns it, and once for each of some rungs. Prints what would be live at most, what was, and
what plans of both take.
"""

import argparse
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "adapters" / "pytorch"))

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import fake  # noqa: E402
from pleat import _job, _recompute  # noqa: E402

ITERATIONS = 3
GIB = 1 << 30


class World:
    """A recording in the place of a device."""

    def __init__(self, recorder):
        self.recorder = recorder
        self.answer = None

    @contextlib.contextmanager
    def phase(self, name):
        outer = self.recorder.text
        self.recorder.set_label(outer.partition(";")[0] + ";phase=" + name)
        try:
            yield
        finally:
            self.recorder.set_label(outer)

    def timer(self):
        return lambda: lambda: 1000

    def errors(self):
        return 0

    def recording(self):
        return True

    def hold(self, budget):
        pass

    def say(self, text):
        pass

    def ladder(self, times, budget):
        self.recorder.finish()
        began = time.monotonic()
        self.answer = json.loads(_job.run("explain", self.recorder.path, "--budget", str(budget), "--json", answers=(0, 1)))
        self.seconds = time.monotonic() - began
        return self.answer


def record(options, path, again=None):
    """Trains on fake tensors; `again`: the blocks to compute again, or None to learn."""
    import transformers

    recorder = fake.Recorder(path)
    with FakeTensorMode(allow_non_fake_inputs=True), fake.Watch(recorder):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
            hidden_size=options.hidden, intermediate_size=options.hidden * 11 // 4, num_hidden_layers=options.layers,
            num_attention_heads=options.hidden // 64, vocab_size=32000, use_cache=False)).train()
        world = World(recorder)
        made = _recompute.Recompute(torch, options.budget, world)
        optimizer = torch.optim.AdamW(model.parameters())
        for i in range(ITERATIONS):
            recorder.set_label("iter=%d;phase=F" % i)
            if again is not None and i == 1:
                made.state, made.again, made.begins = _recompute.CHOSEN, again, lambda *called: None
            tokens = torch.randint(0, 32000, (options.rows, options.length))
            loss = model(input_ids=tokens, labels=tokens).loss
            recorder.set_label("iter=%d;phase=B" % i)
            loss.backward()
            del loss
            recorder.set_label("iter=%d;phase=O" % i)
            optimizer.step()
            optimizer.zero_grad()
            if again is None:
                made.mark()
    made.looking.remove()
    if again is not None:
        recorder.finish()
    return made, world


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, usual in (("layers", 8), ("hidden", 1024), ("rows", 4), ("length", 1024)):
        parser.add_argument("--" + name, type=int, default=usual, metavar="N", help="[%d]" % usual)
    options = parser.parse_args()
    options.budget = 1 << 50
    with tempfile.TemporaryDirectory() as folder:
        made, world = record(options, os.path.join(folder, "learned.pickle.gz"))
        rungs, count = made.ladder.rungs, len(made.ladder.order)
        print("%d layers, %d wide, %d x %d: the answer took %.2f s" % (
            options.layers, options.hidden, options.rows, options.length, world.seconds))
        print("%6s %14s %14s %9s %12s" % ("again", "foretold GiB", "recorded GiB", "apart", "a plan's GiB"))
        for rung in sorted({0, count // 4, count // 2, count * 3 // 4, count}):
            path = os.path.join(folder, "rung%d.pickle.gz" % rung)
            record(options, path, made.ladder.blocks(rung))
            plan = json.loads(_job.run("plan", path, "--json", "-o", path + ".plan"))
            live, told = plan["max_live_bytes"], rungs[rung]["live_bytes"]
            print("%3d/%-3d %13.3f %14.3f %+8.3f %% %12.3f" % (
                rung, count, told / GIB, live / GIB, 100 * (told / live - 1), plan["physical_bytes"] / GIB))


if __name__ == "__main__":
    sys.exit(main())
