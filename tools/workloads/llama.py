#!/usr/bin/env python3
"""Trains layers of Llama-2-7B (6 of 32 by default) as one rank of a pipeline on one device.

The layers have the model's own sizes: 4,096 wide, 32 heads, SwiGLU of 11,008, a vocabulary of
32,000. The last line on standard output is one JSON object; --record writes the job's allocations
as a torch snapshot.
"""

import torch
from torch import nn

import harness
import layers
import training


def build(options, mlp, bias=False):
    """The model's stages, on the device. `mlp()` makes a block's second half."""
    with torch.device(options.device):
        kind = torch.get_default_dtype()
        # Weights are made in their final type: a second copy of a large model may not fit.
        torch.set_default_dtype(getattr(torch, options.weights))
        try:
            embedding = nn.Embedding(options.vocabulary, options.hidden)
            blocks = [
                layers.Block(options.hidden, options.heads, mlp(), bias)
                for _ in range(options.layers)
            ]
            projection = nn.Linear(options.hidden, options.vocabulary, bias=False)
            head = training.Head(nn.RMSNorm(options.hidden, eps=1e-5), projection.weight)
        finally:
            torch.set_default_dtype(kind)
    model = training.stages(options, embedding, blocks, head)
    layers.initialize(model)
    return model


def add_options(parser):
    training.add_options(
        parser,
        layers=6,
        hidden=4096,
        heads=32,
        vocabulary=32000,
        microbatches=4,
        virtual_stages=3,
        depth=2,
        sequence=2048,
        microbatch_size=2,
        weights="bfloat16",
    )
    harness.number(parser, "--inner", 11008, "width between a block's two projections")


def make(options, recorder):
    model = build(options, lambda: layers.SwiGLU(options.hidden, options.inner))
    return training.Trainer(options, recorder, model)


check = training.check

if __name__ == "__main__":
    harness.main("llama", __doc__, add_options, make, 4, check)
