"""Layers of a Llama: RMSNorm, attention with rotary positions, SwiGLU."""

import torch
from torch import nn
from torch.nn import functional


def rotary(length, width, device, base=10000.0):
    """Cosines and sines of the angles of `length` positions, each (length, width), fp32."""
    powers = torch.arange(0, width, 2, device=device, dtype=torch.float32) / width
    angles = torch.outer(torch.arange(length, device=device, dtype=torch.float32), base**-powers)
    angles = torch.cat((angles, angles), -1)
    return angles.cos(), angles.sin()


def turn(x, cosine, sine):
    """`x` turned by its position's angles; x is (batch, heads, length, width)."""
    one, two = x.chunk(2, -1)
    return x * cosine + torch.cat((-two, one), -1) * sine


class Attention(nn.Module):
    """Causal self-attention. `linear(inputs, outputs)` makes its projections."""

    def __init__(self, hidden, heads, bias=False, linear=nn.Linear):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (linear(hidden, hidden, bias=bias) for _ in range(3))
        self.out = linear(hidden, hidden, bias=False)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x, cache=None):
        """`cache`: a list with the keys and the values of the tokens before these, or an empty one;
        afterwards those of all."""
        query, key, value = (
            self.split(project(x)) for project in (self.query, self.key, self.value)
        )
        start = cache[0].shape[2] if cache else 0
        angles = rotary(start + x.shape[1], query.shape[-1], x.device)
        cosine, sine = (angle[start:].to(query.dtype) for angle in angles)
        query, key = turn(query, cosine, sine), turn(key, cosine, sine)
        if cache:
            key, value = torch.cat((cache[0], key), 2), torch.cat((cache[1], value), 2)
        if cache is not None:
            cache[:] = key, value
        y = functional.scaled_dot_product_attention(query, key, value, is_causal=start == 0)
        # Of a rank that has some of the heads it is narrower than x.
        return self.out(y.transpose(1, 2).reshape(x.shape[0], x.shape[1], -1))


class SwiGLU(nn.Module):
    def __init__(self, hidden, inner, linear=nn.Linear):
        super().__init__()
        self.gate = linear(hidden, inner, bias=False)
        self.up = linear(hidden, inner, bias=False)
        self.down = linear(inner, hidden, bias=False)

    def forward(self, x):
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, hidden, heads, mlp, bias=False, linear=nn.Linear):
        super().__init__()
        self.attention_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.attention = Attention(hidden, heads, bias, linear)
        self.mlp_norm = nn.RMSNorm(hidden, eps=1e-5)
        self.mlp = mlp

    def forward(self, x, cache=None):
        x = x + self.attention(self.attention_norm(x), cache)
        return x + self.mlp(self.mlp_norm(x))


def initialize(module):
    """Normal weights, as Llama's; norms stay ones and biases become zeros."""
    for name, weight in module.named_parameters():
        if weight.dim() > 1:
            nn.init.normal_(weight, std=0.02)
        elif name.endswith("bias"):
            nn.init.zeros_(weight)
