"""Mixtures of experts: transformers' Qwen3-MoE, and one rank of a pipeline of layers with a loop over
their experts as people write it. How many tokens an expert gets follows the data."""

import torch
from torch import nn
from torch.nn import functional
from transformers import Qwen3MoeConfig

import pipeline
from libraries import common, decoders


def qwen3_moe(options):
    """64 experts, 8 a token, drawn lengths, two microbatches, each layer run again in backward. Experts
    one by one take the processor seconds for ten layers, so there are fewer of them."""
    draw = common.Draw(options)
    implementation = ("grouped_mm", "eager")[options.seed % 2]
    shape = common.shape(
        options, dict(decoders.TINY, expert_inner=64, experts=8, chosen=2),
        layers=10 if implementation == "grouped_mm" else 3,
        hidden=draw.step(768, 1280, 128), inner=2048, expert_inner=draw.step(384, 640, 64),
        experts=64, chosen=8, heads=8, groups=2, most=draw.choice((1024, 1536, 2048)),
        rows=draw.step(4, 8, 2), microbatches=2, lengths=draw.choice(common.LENGTHS),
        optimizer=draw.choice(common.OPTIMIZERS[:2]),
        implementation=implementation,
    )  # fmt: skip
    config = Qwen3MoeConfig(
        num_experts=shape.experts,
        num_experts_per_tok=shape.chosen,
        moe_intermediate_size=shape.expert_inner,
        head_dim=shape.hidden // shape.heads,
        experts_implementation=shape.implementation,
        output_router_logits=True,
        **decoders.sizes(shape),
    )
    made = decoders.model(options, config, torch.bfloat16)
    made.gradient_checkpointing_enable()
    data = common.batches(decoders.texts(options, shape), shape.rows, shape.microbatches)
    return common.Loop(options, shape, made, common.own_loss, data)


class Expert(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixture(nn.Module):
    """Experts one after the other, each with the tokens that chose it."""

    def __init__(self, shape, skew):
        super().__init__()
        self.chosen = shape.chosen
        self.router = nn.Linear(shape.hidden, shape.experts)
        self.experts = nn.ModuleList(
            Expert(shape.hidden, shape.expert_inner) for _ in range(shape.experts)
        )
        with torch.no_grad():  # some experts are liked more than others
            self.router.bias.copy_(torch.tensor(skew))

    def forward(self, x):
        tokens = x.reshape(-1, x.shape[-1])
        chances, chosen = self.router(tokens).softmax(-1).topk(self.chosen)
        out = torch.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            row, place = torch.where(chosen == number)
            if len(row):
                out.index_add_(0, row, expert(tokens[row]) * chances[row, place, None])
        return out.view_as(x)


class Layer(nn.Module):
    def __init__(self, shape, skew):
        super().__init__()
        self.heads = shape.heads
        self.before, self.between = nn.RMSNorm(shape.hidden), nn.RMSNorm(shape.hidden)
        self.qkv = nn.Linear(shape.hidden, 3 * shape.hidden, bias=False)
        self.out = nn.Linear(shape.hidden, shape.hidden, bias=False)
        self.mixture = Mixture(shape, skew)

    def forward(self, x):
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).transpose(1, 3)
        query, key, value = parts.unbind(2)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.mixture(self.between(x))


class Rank:
    """The first rank of a pipeline: it gets no gradients but those of the rank behind it."""

    def __init__(self, options, shape):
        draw = common.Draw(options, "routing")
        with torch.device(options.device):
            layers = [
                Layer(shape, [draw.gauss(0, shape.skew) for _ in range(shape.experts)])
                for _ in range(shape.layers)
            ]
            self.embedding = nn.Embedding(decoders.VOCABULARY, shape.hidden).bfloat16()
        self.model = nn.Sequential(*layers).bfloat16()
        self.options, self.shape = options, shape
        self.order = pipeline.order(shape.microbatches, 1, shape.depth)
        weights = [*self.model.parameters(), *self.embedding.parameters()]
        self.optimizer = common.optimizer(shape.optimizer, weights)

    def forward(self, number, microbatch):
        draws = torch.Generator().manual_seed(
            (self.options.seed * 1000 + number) * 1000 + microbatch
        )
        size = (self.shape.rows, self.shape.most)
        tokens = torch.randint(decoders.VOCABULARY, size, generator=draws)
        return self.model(self.embedding(tokens.to(self.options.device)))

    def iteration(self, number):
        """In the pipeline's order; the gradient of a square stands for what comes back."""
        waiting, total = {}, torch.zeros((), device=self.options.device)
        for kind, microbatch, _ in self.order:
            if kind == pipeline.FORWARD:
                waiting[microbatch] = self.forward(number, microbatch)
                continue
            out = waiting.pop(microbatch)
            total += out.detach().float().square().mean()
            out.backward(out.detach() / out.numel())
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total / self.shape.microbatches

    def describe(self):
        return {"drawn": dict(vars(self.shape)), "weights": common.count(self.model)}


def pipeline_rank(options):
    """60 experts, 4 a token: some 28,000 requests an iteration."""
    draw = common.Draw(options)
    layers, microbatches = draw.choice(((2, 6), (3, 4), (4, 3)))
    return Rank(options, common.shape(
        options, dict(layers=2, hidden=32, expert_inner=32, experts=6, chosen=2, heads=2, most=16, rows=2,
                      microbatches=4), layers=layers,
        hidden=draw.step(1024, 1792, 256), expert_inner=draw.step(896, 1408, 128), experts=60,
        chosen=4, heads=8, most=draw.choice((1024, 2048)), rows=2,
        microbatches=microbatches, depth=4,
        skew=draw.choice((0.2, 0.5, 1.0)), optimizer=draw.choice(common.OPTIMIZERS[:2]),
    ))  # fmt: skip
