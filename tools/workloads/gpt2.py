#!/usr/bin/env python3
"""Trains a GPT-2 under an interleaved virtual-pipeline schedule on one device.

One process holds all virtual stages and goes through them in the order in which the first rank of
such a pipeline would, so as many microbatches are in flight as there. Weights and optimizer state
are fp32, the arithmetic is bf16 (autocast), the data are seeded and synthetic. The last line on
standard output is one JSON object; --record writes the job's allocations as a torch snapshot.
"""

import argparse
import json
import math
import os
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import pipeline
from recording import Recorder


class Attention(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.mixed = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, x):
        batch, sequence, hidden = x.shape
        split = self.mixed(x).view(batch, sequence, 3, self.heads, hidden // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(
            query, key, value, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        return self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))


class Block(nn.Module):
    def __init__(self, hidden, heads, dropout):
        super().__init__()
        self.attention_norm = nn.LayerNorm(hidden)
        self.attention = Attention(hidden, heads, dropout)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.mlp = nn.Sequential(
            nn.Linear(hidden, 4 * hidden),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * hidden, hidden),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Embedding(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.tokens = nn.Embedding(options.vocabulary, options.hidden)
        self.positions = nn.Embedding(options.sequence, options.hidden)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(places))


class Head(nn.Module):
    """The final norm and the loss; the projection is the token embedding's weight."""

    def __init__(self, options, weight):
        super().__init__()
        self.norm = nn.LayerNorm(options.hidden)
        self.weight = weight

    def forward(self, x, targets):
        logits = functional.linear(self.norm(x), self.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Stage(nn.Module):
    """One virtual stage: its share of the blocks, and the embedding or the head at the ends."""

    def __init__(self, blocks, recompute, embedding=None, head=None):
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        self.recompute = recompute

    def forward(self, x, targets):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x if self.head is None else self.head(x, targets)


def build(options):
    """The model's stages, on the device, with GPT-2's initial weights."""
    with torch.device(options.device):
        embedding = Embedding(options)
        head = Head(options, embedding.tokens.weight)
        blocks = [
            Block(options.hidden, options.heads, options.dropout) for _ in range(options.layers)
        ]
    for module in [embedding] + blocks:
        for name, weight in module.named_parameters():
            if weight.dim() > 1:
                # The two projections onto the residual path are scaled by the paths' number.
                residual = name in ("attention.out.weight", "mlp.2.weight")
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * options.layers if residual else 1))
            elif name.endswith("bias"):
                nn.init.zeros_(weight)
    share = options.layers // options.virtual_stages
    last = options.virtual_stages - 1
    return nn.ModuleList(
        Stage(
            blocks[stage * share : (stage + 1) * share],
            options.recompute,
            embedding if stage == 0 else None,
            head if stage == last else None,
        )
        for stage in range(options.virtual_stages)
    )


class Data:
    """Endless batches in which each token has one successor, so that there is something to learn."""

    def __init__(self, options):
        self.generator = torch.Generator().manual_seed(options.seed)
        self.successor = torch.randperm(options.vocabulary, generator=self.generator)
        self.options = options

    def batch(self):
        """Tokens of one microbatch and one more each, on the device."""
        shape = (self.options.microbatch_size,)
        columns = [torch.randint(self.options.vocabulary, shape, generator=self.generator)]
        for _ in range(self.options.sequence):
            columns.append(self.successor[columns[-1]])
        return torch.stack(columns, 1).to(self.options.device)


class Trainer:
    def __init__(self, options, recorder):
        self.options = options
        self.recorder = recorder
        self.stages = build(options)
        self.data = Data(options)
        self.optimizer = torch.optim.AdamW(
            self.stages.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1
        )
        self.order = pipeline.interleaved(
            options.microbatches, options.virtual_stages, options.depth
        )
        self.batches = {}  # microbatch -> tokens, until its last forward
        self.in_flight = {}  # (microbatch, stage) -> (input, output), from forward to backward
        self.gradients = {}  # (microbatch, stage) -> of its output, from the stage behind it
        self.losses = []

    def forward(self, microbatch, stage):
        if stage == 0:
            self.batches[microbatch] = self.data.batch()
            x = self.batches[microbatch][:, :-1]
        else:
            # What a pipeline would have received: the same values, a graph of its own.
            x = self.in_flight[microbatch, stage - 1][1].detach().requires_grad_()
        targets = None
        if stage == self.options.virtual_stages - 1:
            targets = self.batches.pop(microbatch)[:, 1:]
        with torch.autocast(torch.device(self.options.device).type, dtype=torch.bfloat16):
            y = self.stages[stage](x, targets)
        if targets is not None:
            self.losses.append(y.detach())
            y = y / self.options.microbatches
        self.in_flight[microbatch, stage] = (x, y)

    def backward(self, microbatch, stage):
        x, y = self.in_flight.pop((microbatch, stage))
        # The last stage's output is the loss, which takes no gradient from elsewhere.
        y.backward(self.gradients.pop((microbatch, stage), None))
        if stage > 0:
            self.gradients[microbatch, stage - 1] = x.grad

    def iteration(self, number):
        """One optimizer step over all microbatches; returns their mean loss, not yet waited for."""
        self.losses = []
        for kind, microbatch, stage in self.order:
            self.recorder.label(number, kind)
            if kind == pipeline.FORWARD:
                self.forward(microbatch, stage)
            else:
                self.backward(microbatch, stage)
        self.recorder.label(number, "opt")
        nn.utils.clip_grad_norm_(self.stages.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(self.losses).mean()


ADAPTER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../adapters/pytorch")


def choose(allocator, budget):
    """Before anything is on the device: torch takes no other allocator later."""
    if allocator == "expandable":
        # torch reads it when CUDA is first used; 2.9 and later know the second name.
        os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
        os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    if allocator == "pleat":
        try:
            import pleat
        except ImportError:
            sys.path.insert(0, ADAPTER)
            import pleat
        pleat.enable(budget=budget)
    elif budget:
        total = torch.cuda.mem_get_info()[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, budget / total))


def pleat_figures(options):
    """Pleat's counters under `pleat`, else None."""
    if options.allocator != "pleat":
        return None
    import pleat

    return pleat.stats(torch.cuda.current_device())


def cuda_figure(read):
    """A figure of torch's allocator, or None where the allocator in use keeps no such figure."""
    try:
        return read()
    except (RuntimeError, AttributeError):
        return None


def train(options, recorder):
    """Runs the job; returns what it reports."""
    cuda = torch.device(options.device).type == "cuda"
    torch.manual_seed(options.seed)
    if options.deterministic:
        # cuBLAS wants it before its first use.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    trainer = Trainer(options, recorder)
    seconds = []
    losses = []
    device_peak = None
    for number in range(options.iterations):
        begin = time.perf_counter()
        loss = trainer.iteration(number).item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
        losses.append(loss)
        if cuda:
            free, total = torch.cuda.mem_get_info()
            device_peak = max(device_peak or 0, total - free)
        if not options.quiet:
            print(
                "iteration %d: loss %.4f, %.3f s" % (number, loss, seconds[-1]),
                file=sys.stderr,
                flush=True,
            )
    # While the job is alive: what it keeps is live in the recording, too.
    size = recorder.finish()
    if size:
        print("%s: %d bytes" % (options.record, size), file=sys.stderr)
    return {
        "job": "gpt2",
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "parameters": sum(weight.numel() for weight in trainer.stages.parameters()),
        "layers": options.layers,
        "hidden": options.hidden,
        "sequence": options.sequence,
        "microbatch_size": options.microbatch_size,
        "microbatches": options.microbatches,
        "virtual_stages": options.virtual_stages,
        "depth": options.depth,
        "recompute": options.recompute,
        "iterations": options.iterations,
        "peak_allocated_bytes": cuda_figure(torch.cuda.max_memory_allocated) if cuda else None,
        "peak_reserved_bytes": cuda_figure(torch.cuda.max_memory_reserved) if cuda else None,
        "device_peak_bytes": device_peak,
        # The first iteration makes the optimizer's state and the libraries' workspaces.
        "seconds_per_iteration": statistics.median(seconds[1:]),
        "first_seconds": seconds[0],
        "allocator": options.allocator if cuda else None,
        "pleat": pleat_figures(options),
        "loss": loss,
        "losses": losses,
    }


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])

    def number(name, default, help):
        parser.add_argument(
            name, type=int, default=default, metavar="N", help="%s [%d]" % (help, default)
        )

    number("--layers", 24, "transformer blocks")
    number("--hidden", 1024, "width of the model")
    number("--heads", 16, "attention heads")
    number("--sequence", 1024, "tokens of a sample")
    number("--vocabulary", 50304, "tokens there are")
    number("--microbatch-size", 4, "samples of a microbatch")
    number("--microbatches", 4, "microbatches of an iteration")
    number("--virtual-stages", 4, "stages that the rank holds")
    number("--depth", 2, "ranks of the pipeline whose first rank this is")
    number("--iterations", 4, "optimizer steps, 3 or more")
    number("--seed", 1, "of weights, data and dropout")
    parser.add_argument("--dropout", type=float, default=0.1, metavar="P", help="[0.1]")
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="keep only the blocks' inputs and run them again in backward",
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu [cuda]")
    parser.add_argument(
        "--record", metavar="FILE", help="write the snapshot here (.pickle.gz); needs a GPU"
    )
    parser.add_argument(
        "--allocator",
        choices=("native", "expandable", "pleat"),
        default="native",
        help="who serves the device's memory [native]",
    )
    parser.add_argument(
        "--budget", type=int, default=0, metavar="BYTES", help="most device memory to take [all]"
    )
    parser.add_argument(
        "--deterministic",
        action="store_true",
        help="only kernels that give the same bits every time",
    )
    parser.add_argument("--out", metavar="FILE", help="write the JSON object here too")
    parser.add_argument(
        "--quiet", action="store_true", help="no line per iteration on standard error"
    )
    options = parser.parse_args(arguments)
    small = [
        name
        for name, value in vars(options).items()
        if type(value) is int and name not in ("seed", "budget") and value < 1
    ]
    if small:
        parser.error("--%s must be at least 1" % small[0].replace("_", "-"))
    if options.iterations < 3:
        parser.error("--iterations: a steady iteration shows from the third on")
    if options.layers % options.virtual_stages:
        parser.error("--layers must be a multiple of --virtual-stages")
    if options.microbatches % options.depth:
        parser.error("--microbatches must be a multiple of --depth")
    if options.hidden % options.heads:
        parser.error("--hidden must be a multiple of --heads")
    if options.record and torch.device(options.device).type != "cuda":
        parser.error("--record: only the CUDA allocator keeps a history")
    return options


def main():
    options = parse(sys.argv[1:])
    if torch.device(options.device).type == "cuda" and not torch.cuda.is_available():
        sys.exit("gpt2.py: no CUDA device; --device cpu trains on the processor")
    if torch.device(options.device).type == "cuda":
        choose(options.allocator, options.budget)
    line = json.dumps(train(options, Recorder(options.record)))
    print(line)
    if options.out:
        with open(options.out, "w") as out:
            out.write(line + "\n")


if __name__ == "__main__":
    main()
