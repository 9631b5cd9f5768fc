#!/usr/bin/env python3
"""Trains a GPT-2 (355 million parameters by default) as one rank of a pipeline on one device.

Weights and optimizer state are fp32, the arithmetic is bf16 (autocast), the data are seeded and
synthetic. The last line on standard output is one JSON object; --record writes the job's
allocations as a torch snapshot.
"""

import math

import torch
from torch import nn
from torch.nn import functional

import harness
import training


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
        self.positions = nn.Embedding(max(options.sequence), options.hidden)
        self.dropout = nn.Dropout(options.dropout)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.dropout(self.tokens(tokens) + self.positions(places))


def build(options):
    """The model's stages, on the device, with GPT-2's initial weights."""
    with torch.device(options.device):
        embedding = Embedding(options)
        head = training.Head(nn.LayerNorm(options.hidden), embedding.tokens.weight)
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
    model = training.stages(options, embedding, blocks, head)
    return model.to(getattr(torch, options.weights))


def add_options(parser):
    training.add_options(
        parser,
        layers=24,
        hidden=1024,
        heads=16,
        vocabulary=50304,
        microbatches=4,
        virtual_stages=4,
        depth=2,
        sequence=1024,
        microbatch_size=4,
        weights="float32",
    )
    parser.add_argument(
        "--dropout", type=float, default=0.1, metavar="P", help="share that is left out [0.1]"
    )


def make(options, recorder):
    return training.Trainer(options, recorder, build(options))


def check(parser, options):
    training.check(parser, options)
    if not 0 <= options.dropout < 1:
        parser.error("--dropout must be from 0 to below 1")


if __name__ == "__main__":
    harness.main("gpt2", __doc__, add_options, make, 4, check)
