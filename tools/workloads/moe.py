#!/usr/bin/env python3
"""Trains layers like Qwen1.5-MoE's (4 of 24 by default): 60 experts, 4 a token, and a shared one.

Each token goes to the experts that its router scores highest, so the experts' batches, and with them
the sizes of what is allocated, follow the data and change every iteration. The last line on standard
output is one JSON object; --record writes the job's allocations as a torch snapshot.
"""

import torch
from torch import nn
from torch.nn import functional

import harness
import layers
import llama
import training


class Experts(nn.Module):
    def __init__(self, options):
        super().__init__()
        hidden = options.hidden
        self.chosen = options.chosen
        self.router = nn.Linear(hidden, options.experts, bias=False)
        self.experts = nn.ModuleList(
            layers.SwiGLU(hidden, options.inner) for _ in range(options.experts)
        )
        self.shared = layers.SwiGLU(hidden, options.shared_inner)
        self.shared_gate = nn.Linear(hidden, 1, bias=False)

    def count(self, experts):
        """How many of the tokens' choices each expert is."""
        return torch.bincount(experts.flatten(), minlength=len(self.experts)).tolist()

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = functional.softmax(self.router(tokens).float(), -1)
        weights, experts = scores.topk(self.chosen, -1)
        # Rows are brought into the experts' order, each expert takes its own, and they go back.
        order = experts.flatten().argsort(stable=True)
        rows = tokens[order // self.chosen].split(self.count(experts))
        done = torch.cat([expert(part) for expert, part in zip(self.experts, rows)])
        places = torch.empty_like(order)
        places[order] = torch.arange(order.numel(), device=order.device)
        routed = done[places].view(-1, self.chosen, x.shape[-1])
        routed = (routed * weights.to(routed.dtype).unsqueeze(-1)).sum(1)
        shared = torch.sigmoid(self.shared_gate(tokens)) * self.shared(tokens)
        return (routed + shared).view_as(x)


def add_options(parser):
    training.add_options(
        parser,
        layers=4,
        hidden=2048,
        heads=16,
        vocabulary=151936,
        microbatches=4,
        virtual_stages=2,
        depth=2,
        sequence=2048,
        microbatch_size=4,
        weights="bfloat16",
    )
    harness.number(parser, "--experts", 60, "experts of a layer")
    harness.number(parser, "--chosen", 4, "experts that a token goes to")
    harness.number(parser, "--inner", 1408, "width of an expert")
    harness.number(parser, "--shared-inner", 5632, "width of the shared expert")


def make(options, recorder):
    model = llama.build(options, lambda: Experts(options), bias=True)
    return training.Trainer(options, recorder, model)


def check(parser, options):
    training.check(parser, options)
    if options.chosen > options.experts:
        parser.error("--chosen: there are only %d experts" % options.experts)


if __name__ == "__main__":
    harness.main("moe", __doc__, add_options, make, 4, check)
