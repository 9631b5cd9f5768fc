#!/usr/bin/env python3
"""Trains an encoder and a decoder to translate sentences, in batches of about as many tokens.

Each iteration draws how long its sentences are and how long their translations, and takes as many
pairs as the budget of tokens allows, as fairseq's --max-tokens does. Two numbers are behind the
sizes then, and neither says the other. The last line on standard output is one JSON object; --record
writes the job's allocations as a torch snapshot.
"""

import math
import random

import torch
from torch import nn
from torch.nn import functional

import harness


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        layer = {
            "d_model": options.hidden,
            "nhead": options.heads,
            "dim_feedforward": options.inner,
            "dropout": 0.0,
            "batch_first": True,
            "norm_first": True,
        }
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.encoder = nn.ModuleList(
            nn.TransformerEncoderLayer(**layer) for _ in range(options.layers)
        )
        self.decoder = nn.ModuleList(
            nn.TransformerDecoderLayer(**layer) for _ in range(options.layers)
        )
        self.norm = nn.LayerNorm(options.hidden)
        self.projection = nn.Linear(options.hidden, options.vocabulary, bias=False)

    def forward(self, source, target):
        """Scores of each next token of the translation."""
        x = self.embedding(source)
        for layer in self.encoder:
            x = layer(x)
        y, length = self.embedding(target), target.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=target.device)
        for layer in self.decoder:
            y = layer(y, x, tgt_mask=mask, tgt_is_causal=True)
        return self.projection(self.norm(y)).float()


class Translator:
    def __init__(self, options, recorder):
        self.options = options
        self.recorder = recorder
        self.lengths = random.Random(options.seed)
        self.tokens = torch.Generator().manual_seed(options.seed)
        with torch.device(options.device):
            self.model = Model(options)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.drawn = []

    def draw(self):
        """(pairs, the longest sentence, the longest translation) of a batch."""
        most, logarithm = self.options.sequence, self.lengths.gauss(math.log(90), 0.6)
        source = max(8, min(most, round(math.exp(logarithm))))
        target = max(8, min(most, round(source * math.exp(self.lengths.gauss(0, 0.25)))))
        return max(1, self.options.tokens // max(source, target)), source, target

    def sentences(self, samples, length):
        shape = (samples, length)
        tokens = torch.randint(self.options.vocabulary, shape, generator=self.tokens)
        return tokens.to(self.options.device)

    def forward(self):
        samples, source, target = self.draw()
        self.drawn.append((samples, source, target))
        batch, kind = self.sentences(samples, target + 1), torch.device(self.options.device).type
        with torch.autocast(kind, dtype=torch.bfloat16):
            scores = self.model(self.sentences(samples, source), batch[:, :-1])
        return functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())

    def iteration(self, number):
        return harness.step(self, number, self.forward)

    def describe(self):
        names = ("layers", "hidden", "sequence", "tokens")
        told = {name: getattr(self.options, name) for name in names}
        count = sum(weight.numel() for weight in self.model.parameters())
        return dict(parameters=count, batches=self.drawn, **told)


def add_options(parser):
    for name, default, help in (
        ("layers", 6, "layers of the encoder, and of the decoder"),
        ("hidden", 1024, "width of the model"),
        ("heads", 16, "attention heads"),
        ("inner", 4096, "width between a layer's two projections"),
        ("vocabulary", 32000, "tokens there are"),
        ("sequence", 512, "tokens of a sentence at most"),
        ("tokens", 8192, "tokens of a batch at most, padding included"),
    ):
        harness.number(parser, "--" + name, default, help)


def check(parser, options):
    if options.hidden % options.heads:
        parser.error("--hidden must be a multiple of --heads")
    if options.sequence < 8:
        parser.error("--sequence must be at least 8")


make = Translator

if __name__ == "__main__":
    harness.main("translate", __doc__, add_options, make, 40, check)
