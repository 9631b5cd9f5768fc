#!/usr/bin/env python3
"""Generates tokens with layers of Llama-2-7B (4 of 32 by default) for batches that grow.

Each iteration takes a batch of prompts, a larger one than the last until --most is met, and goes on
token by token; the keys and values of what came before are kept and grow with every token. Nothing
is trained: the loss is that of the tokens chosen. The last line on standard output is one JSON
object; --record writes the job's allocations as a torch snapshot.
"""

import torch
from torch import nn
from torch.nn import functional

import harness
import layers


class Model(nn.Module):
    def __init__(self, options):
        super().__init__()
        hidden = options.hidden
        self.embedding = nn.Embedding(options.vocabulary, hidden)
        self.blocks = nn.ModuleList(
            layers.Block(hidden, options.heads, layers.SwiGLU(hidden, options.inner))
            for _ in range(options.layers)
        )
        self.norm = nn.RMSNorm(hidden, eps=1e-5)
        self.projection = nn.Linear(hidden, options.vocabulary, bias=False)

    def forward(self, tokens, caches):
        """Scores of the token behind each row's last."""
        x = self.embedding(tokens)
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache)
        return self.projection(self.norm(x[:, -1])).float()


class Generator:
    def __init__(self, options, recorder):
        self.options = options
        self.recorder = recorder
        self.random = torch.Generator().manual_seed(options.seed)
        with torch.device(options.device):
            kind = torch.get_default_dtype()
            torch.set_default_dtype(torch.bfloat16)
            try:
                self.model = Model(options).requires_grad_(False).eval()
            finally:
                torch.set_default_dtype(kind)
        layers.initialize(self.model)

    @torch.no_grad()
    def iteration(self, number):
        options = self.options
        self.recorder.label(number, "prompt")
        samples = min(options.most, options.batch + number * options.grow)
        shape = (samples, options.prompt)
        tokens = torch.randint(options.vocabulary, shape, generator=self.random)
        tokens = tokens.to(options.device)
        caches = [[] for _ in self.model.blocks]
        chosen = []
        for _ in range(options.tokens):
            scores = functional.log_softmax(self.model(tokens, caches), -1)
            best, tokens = scores.max(-1, keepdim=True)
            chosen.append(best)
            self.recorder.label(number, "token")
        harness.mark(options)
        return -torch.cat(chosen).mean()

    def describe(self):
        names = ("layers", "hidden", "batch", "grow", "most", "prompt", "tokens")
        told = {name: getattr(self.options, name) for name in names}
        return dict(parameters=sum(weight.numel() for weight in self.model.parameters()), **told)


def add_options(parser):
    for name, default, help in (
        ("layers", 4, "transformer blocks"),
        ("hidden", 4096, "width of the model"),
        ("heads", 32, "attention heads"),
        ("inner", 11008, "width between a block's two projections"),
        ("vocabulary", 32000, "tokens there are"),
        ("batch", 8, "prompts of the first iteration"),
        ("grow", 4, "prompts more in each iteration"),
        ("most", 48, "prompts at most"),
        ("prompt", 512, "tokens of a prompt"),
        ("tokens", 48, "tokens that follow"),
    ):
        harness.number(parser, "--" + name, default, help)


def check(parser, options):
    if options.hidden % options.heads:
        parser.error("--hidden must be a multiple of --heads")


make = Generator

if __name__ == "__main__":
    harness.main("generate", __doc__, add_options, make, 20, check)
