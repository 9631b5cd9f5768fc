"""Decoders of transformers over texts of drawn lengths: by Trainer, by a plain loop, and by Trainer
with an evaluation every eighth step."""

import math

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

from libraries import common

VOCABULARY = 32000
EVALUATE_EVERY = 8
TINY = dict(hidden=64, layers=2, inner=128, heads=2, most=32, rows=2, microbatches=2)


def model(options, config, dtype=torch.float32):
    """A model with random weights, which are made where they are to be."""
    with torch.device(options.device):
        return AutoModelForCausalLM.from_config(config, dtype=dtype)


def sizes(shape):
    """A configuration's names for what was drawn."""
    return dict(
        vocab_size=VOCABULARY,
        hidden_size=shape.hidden,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads // math.gcd(shape.heads, shape.groups),
        max_position_embeddings=4096,
    )


def drawn(options, layers, hidden, kinds, optimizers, work=1.0):
    """A decoder's shape. `work`: how much less than training from scratch it has to do."""
    draw = common.Draw(options)
    layers, hidden = draw.step(*layers, 1), draw.step(*hidden, 256)
    inner = draw.choice((8, 10, 11)) * hidden // 4 // 128 * 128
    most, recompute = draw.choice((768, 1024, 1536, 2048)), draw.either()
    lengths = draw.choice(kinds)
    usual = most * (1 if lengths == "full" else 0.6)  # of a batch's longest
    rows = common.rows_within(draw, usual * common.left_behind(hidden, layers, recompute), most=16)
    weights = layers * (3 * hidden * inner + 3 * hidden * hidden) + VOCABULARY * hidden
    flops = 6 * weights * rows * usual * (4 / 3 if recompute else 1) * work
    return common.shape(
        options, TINY, layers=layers, hidden=hidden, inner=inner, heads=hidden // 128,
        groups=draw.choice((1, 2, 4)), most=most, recompute=recompute, rows=rows,
        lengths=lengths, microbatches=common.repeats(flops),
        optimizer=draw.choice(optimizers),
    )  # fmt: skip


def texts(options, shape, rows=None):
    rows = rows or shape.rows * shape.microbatches * options.iterations
    return common.Texts(options, rows, shape.lengths, shape.most, VOCABULARY)


def trained(options, shape, **arguments):
    from libraries import trainers

    return trainers.Training(
        options, shape, model(options, LlamaConfig(**sizes(shape))), texts(options, shape, 4096),
        common.padded, gradient_checkpointing=shape.recompute, **arguments,
    )  # fmt: skip


TRAINER_OPTIMIZERS = ("adamw_torch", "adamw_torch_fused", "adafactor")


def llama(options):
    shape = drawn(options, (6, 12), (1280, 2048), common.LENGTHS, TRAINER_OPTIMIZERS)
    return trained(options, shape)


def evaluation(options):
    """A larger batch than training's, without gradients, every eighth step."""
    shape = drawn(options, (6, 12), (1280, 2048), ("even", "full"), TRAINER_OPTIMIZERS)
    job = trained(
        options, shape, eval_strategy="steps", eval_steps=EVALUATE_EVERY,
        per_device_eval_batch_size=2 * shape.rows,
    )  # fmt: skip
    job.evaluated = common.Texts(options, 6 * shape.rows, shape.lengths, shape.most, VOCABULARY, "held out")
    return job


def qwen3(options):
    shape = drawn(options, (8, 16), (1280, 2304), common.LENGTHS, common.OPTIMIZERS)
    made = model(options, Qwen3Config(head_dim=128, **sizes(shape)), torch.bfloat16)
    if shape.recompute:
        made.gradient_checkpointing_enable()
    data = common.batches(texts(options, shape), shape.rows, shape.microbatches)
    return common.Loop(options, shape, made, common.own_loss, data)
