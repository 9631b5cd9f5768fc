"""Generating tokens with a decoder: each step adds to the keys and values of those before."""

from drawing import eager
from drawing.layers import Rotary, attend
from drawing.torch_ops import Ops


def step(model, samples, past, new):
    """The graph of one step from `past` tokens on by `new`, and the tensors that it leaves: each
    block's keys and values, of all tokens."""
    config = model.config
    ops = Ops(False, config["precision"] == "autocast")
    heads = config["heads"]
    width = config["hidden"] // heads
    narrow = width * (config.get("kv_heads") or heads)
    tokens = ops.input((samples, new), 8)
    items = (Rotary.item(ops) if config["rotary"] else ops.ITEM, ops.ITEM)  # keys', values'
    caches = [
        [ops.input((samples, past, narrow), item, given=True) for item in items] if past else None
        for _ in model.blocks
    ]
    x = model.embed(ops, tokens, (samples, new))
    angles = Rotary.angles(ops, past + new, width) if config["rotary"] else None
    mask = None
    if config["attention"] == "eager":
        mask = eager.causal_mask(ops, samples, new, past + new, model.item)
    left = []
    for block, cache in zip(model.blocks, caches):
        normed = block.norms[0](ops, x)
        query, key, value = block.attention.project(ops, normed, angles)
        both = []
        for old, now in zip(cache or (None, None), (key, value)):
            if old is None:
                both.append(ops.contiguous(now))
            else:
                both.append(ops.concatenate([old, now], (samples, past + new, narrow)))
        left += both
        both_heads = (heads, block.attention.kv_heads)
        y, kept = attend(ops, config, (query, *both), both_heads, (new, past + new), mask)
        y = block.attention.out(ops, y)
        x = ops.add(x, y)
        x = ops.add(x, block.feed(ops, x, None))
        if kept is not None:
            ops.hold(kept)
    if model.norm is not None:
        x = model.norm(ops, x)
    scores = ops.to(ops.linear(ops.contiguous(x, (samples, 1, config["hidden"])), model.head), 4)
    chances = ops.softmax(scores)
    ops.run([chances], [((samples, 1), 8)])
    return ops, left
