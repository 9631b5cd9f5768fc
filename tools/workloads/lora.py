#!/usr/bin/env python3
"""Fine-tunes layers of Llama-2-7B (8 of 32 by default) by LoRA on samples of varying length.

The weights are frozen; each projection has two thin trained matrices beside it. Every iteration
draws its samples' lengths and pads them to the longest, so nearly every iteration asks for other
sizes. The last line on standard output is one JSON object; --record writes the job's allocations as
a torch snapshot.
"""

import torch
from torch import nn

import harness
import layers
import llama
import training


class Adapted(nn.Module):
    """A frozen linear map plus a trained one of low rank, which starts as zero."""

    def __init__(self, frozen, rank):
        super().__init__()
        self.frozen = frozen.requires_grad_(False)
        like = {"device": frozen.weight.device, "dtype": torch.float32}
        self.down = nn.Parameter(torch.empty(rank, frozen.in_features, **like))
        self.up = nn.Parameter(torch.zeros(frozen.out_features, rank, **like))
        self.scale = 2.0
        nn.init.normal_(self.down, std=0.02)

    def forward(self, x):
        thin = nn.functional.linear(x.float(), self.down)
        return self.frozen(x) + self.scale * nn.functional.linear(thin, self.up).to(x.dtype)


class Lengths:
    """Lengths of samples: around a quarter of the longest, with a long tail, in eights."""

    def __init__(self, options):
        self.generator = torch.Generator().manual_seed(options.seed + 1)
        self.samples = options.microbatch_size
        self.most = max(options.sequence)
        self.every = options.every

    def draw(self, number):
        """(samples, the longest of them)"""
        samples = harness.at(self.samples, number, self.every)
        logarithms = torch.randn(samples, generator=self.generator) * 0.6
        longest = int(self.most / 4 * logarithms.exp().max().item())
        return samples, max(8, min(self.most, (longest + 7) // 8 * 8))


class Tuner(training.Trainer):
    """The trainer over what LoRA trains, with a new length every iteration."""

    def __init__(self, options, recorder):
        model = llama.build(options, lambda: layers.SwiGLU(options.hidden, options.inner))
        model.requires_grad_(False)
        for stage in model:
            for block in stage.blocks:
                adapt(block, options.rank)
        # Recomputation and stages' inputs need a gradient to go through.
        model[0].embedding.register_forward_hook(lambda *told: told[2].requires_grad_())
        super().__init__(options, recorder, model, weight_decay=0.0)
        self.lengths = Lengths(options)
        self.drawn = []

    def trained(self):
        return [weight for weight in self.stages.parameters() if weight.requires_grad]

    def shape_of(self, number):
        self.drawn.append(self.lengths.draw(number))
        return self.drawn[-1]

    def describe(self):
        return dict(super().describe(), lengths=[length for _, length in self.drawn])


def adapt(block, rank):
    for module in (block.attention, block.mlp):
        for name, child in list(module.named_children()):
            setattr(module, name, Adapted(child, rank))


def add_options(parser):
    training.add_options(
        parser,
        layers=8,
        hidden=4096,
        heads=32,
        vocabulary=32000,
        microbatches=1,
        virtual_stages=1,
        depth=1,
        sequence=2048,
        microbatch_size=8,
        weights="bfloat16",
    )
    harness.number(parser, "--inner", 11008, "width between a block's two projections")
    harness.number(parser, "--rank", 16, "rank of what is trained")


make, check = Tuner, training.check

if __name__ == "__main__":
    harness.main("lora", __doc__, add_options, make, 40, check)
