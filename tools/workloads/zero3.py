#!/usr/bin/env python3
"""Trains layers of Llama-2-7B (12 of 32 by default) whose weights are cut over ranks, as in ZeRO-3.

The process is one rank of --world: of each layer it keeps a share of the weights and of the
optimizer's state, and gathers the whole layer, in bf16, when it is wanted in forward and again in
backward; gradients go back to shares. The other ranks' shares are stood in for by copies of its own,
so that one process is enough. --offload keeps the shares in the host's memory; --overlap gathers the
next layer on a second stream. The last line on standard output is one JSON object; --record writes
the job's allocations as a torch snapshot.
"""

import torch
from torch import nn
from torch.func import functional_call

import harness
import layers
import training


class Gather(torch.autograd.Function):
    """From a layer's share to all of it; back, from its gradient to the share's."""

    @staticmethod
    def forward(context, share, layer):
        context.layer = layer
        return layer.take()

    @staticmethod
    def backward(context, gradient):
        # All of the layer's backward has run: nothing wants its weights any longer.
        context.layer.again = None
        return context.layer.reduce(gradient), None


class Place:
    """Stands for a tensor within a gathered layer, until backward gathers it anew."""

    def __init__(self, tensor):
        self.view = (tensor.size(), tensor.stride(), tensor.storage_offset())


class Sharded(nn.Module):
    """A module whose matrices are gathered when it runs; its vectors are kept whole."""

    def __init__(self, module, options, side):
        super().__init__()
        large = [(name, weight) for name, weight in module.named_parameters() if weight.dim() > 1]
        small = [(name, weight) for name, weight in module.named_parameters() if weight.dim() < 2]
        flat = torch.cat([weight.detach().flatten() for _, weight in large])
        length = -(-flat.numel() // options.world)
        self.world = options.world
        self.recompute = options.recompute
        self.device = flat.device
        self.names = [name for name, _ in large]
        self.shapes = [weight.shape for _, weight in large]
        self.sizes = [weight.numel() for _, weight in large]
        self.sizes.append(length * self.world - flat.numel())  # what fills up the last share
        share = flat[:length].float()
        if options.offload:
            share = share.cpu().pin_memory() if options.cuda else share.cpu()
        self.share = nn.Parameter(share.clone() if not options.offload else share)
        self.small_names = [name for name, _ in small]
        self.small = nn.ParameterList(weight.detach().float() for _, weight in small)
        # Hidden from nn.Module: its weights are only shapes from here on.
        self.__dict__["module"] = module.to("meta")
        self.__dict__["neighbours"] = {}  # whether in backward -> the layer wanted next
        self.side = side
        self.ahead = None  # (gathered, event), gathered before it is wanted
        self.again = None  # gathered for backward

    def collect(self):
        """All of the layer, on the current stream."""
        full = torch.empty(
            self.world, self.share.numel(), dtype=torch.bfloat16, device=self.device
        )
        part = self.share.detach().to(self.device, non_blocking=True)
        full.copy_(part.to(torch.bfloat16))
        return full.flatten()

    def prefetch(self):
        if self.side is not None and self.ahead is None and self.again is None:
            with torch.cuda.stream(self.side):
                self.ahead = (self.collect(), self.side.record_event())

    def take(self):
        """All of the layer, and the gathering of the layer wanted next begun."""
        self.prefetch()
        if self.ahead is None:
            return self.collect()
        full, event = self.ahead
        self.ahead = None
        torch.cuda.current_stream().wait_event(event)
        # It is given back while the current stream may still be using it.
        full.record_stream(torch.cuda.current_stream())
        # Recomputation runs forward within backward, which goes the other way.
        backward = torch._C._current_graph_task_id() != -1
        if backward in self.neighbours:
            self.neighbours[backward].prefetch()
        return full

    def reduce(self, gradient):
        """The share's gradient: the sum over what the ranks' shares got."""
        total = gradient.view(self.world, -1).sum(0, dtype=torch.float32)
        return total.to(self.share.device)

    def unpack(self, saved):
        if not isinstance(saved, Place):
            return saved
        if self.again is None:
            self.again = self.take()
        return self.again.as_strided(*saved.view)

    def call(self, full, arguments):
        weights = dict(zip(self.names, full.split(self.sizes)))
        weights = {n: w.view(shape) for (n, w), shape in zip(weights.items(), self.shapes)}
        for name, weight in zip(self.small_names, self.small):
            weights[name] = weight.to(torch.bfloat16)
        return functional_call(self.module, weights, arguments)

    def forward(self, *arguments):
        full = Gather.apply(self.share, self)
        if self.recompute:
            return self.call(full, arguments)
        # Not by addresses, which fake tensors have none of.
        storage = full.untyped_storage()._cdata

        def pack(tensor):
            return Place(tensor) if tensor.untyped_storage()._cdata == storage else tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, self.unpack):
            return self.call(full, arguments)


def build(options):
    side = torch.cuda.Stream() if options.cuda and options.overlap else None
    made = []

    def add(module):
        layers.initialize(module)
        made.append(Sharded(module.to(torch.bfloat16), options, side))
        return made[-1]

    with torch.device(options.device):
        embedding = add(nn.Embedding(options.vocabulary, options.hidden))
        blocks = [
            add(
                layers.Block(
                    options.hidden, options.heads, layers.SwiGLU(options.hidden, options.inner)
                )
            )
            for _ in range(options.layers)
        ]
        projection = nn.Linear(options.hidden, options.vocabulary, bias=False)
        head = add(training.Head(nn.RMSNorm(options.hidden, eps=1e-5), projection.weight))
    for before, behind in zip(made, made[1:]):
        before.neighbours[False] = behind
        if before is not embedding:  # its backward needs no weights
            behind.neighbours[True] = before
    return training.stages(options, embedding, blocks, head), side


class Rank(training.Trainer):
    def __init__(self, options, recorder):
        model, self.side = build(options)
        # The processor's own loop over the elements is slow: one kernel a step.
        super().__init__(options, recorder, model, fused=True)

    def iteration(self, number):
        if self.side is not None:
            self.side.wait_stream(torch.cuda.current_stream())  # for the optimizer's last step
        for module in self.stages.modules():
            if isinstance(module, Sharded):
                module.ahead = None  # gathered before that step
        return super().iteration(number)

    def describe(self):
        options = self.options
        return dict(
            super().describe(),
            world=options.world,
            offload=options.offload,
            overlap=options.overlap,
        )


def add_options(parser):
    training.add_options(
        parser,
        layers=12,
        hidden=4096,
        heads=32,
        vocabulary=32000,
        microbatches=2,
        virtual_stages=1,
        depth=1,
        sequence=2048,
        microbatch_size=2,
        weights="bfloat16",
    )
    harness.number(parser, "--inner", 11008, "width between a block's two projections")
    harness.number(parser, "--world", 8, "ranks that share the weights")
    parser.add_argument("--offload", action="store_true", help="keep the shares on the host")
    parser.add_argument(
        "--overlap", action="store_true", help="gather the next layer on a second stream"
    )


def check(parser, options):
    training.check(parser, options)
    if options.weights != "bfloat16":
        parser.error("--weights: shares are fp32 and gathered as bf16 always")


make = Rank

if __name__ == "__main__":
    harness.main("zero3", __doc__, add_options, make, 4, check)
