"""peft's LoRA over a decoder of transformers, by Trainer: frozen weights in bfloat16, and texts of
drawn lengths, so nearly every iteration asks for other sizes."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig

from libraries import common, decoders, trainers

PARTS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def lora(options):
    shape = decoders.drawn(
        options, (6, 12), (2560, 4096), ("bell", "tail", "even"), trainers.OPTIMIZERS[:2], 2 / 3
    )
    draw = common.Draw(options, "adapters")
    shape.rank, shape.parts = draw.choice((8, 16, 64)), draw.choice((2, 4, 7))
    made = decoders.model(options, LlamaConfig(**decoders.sizes(shape)), torch.bfloat16)
    adapted = LoraConfig(
        r=shape.rank, lora_alpha=2 * shape.rank, lora_dropout=draw.choice((0.0, 0.05)),
        target_modules=list(PARTS[: shape.parts]), task_type="CAUSAL_LM",
    )  # fmt: skip
    return trainers.Training(
        options, shape, get_peft_model(made, adapted), decoders.texts(options, shape, 4096),
        common.padded, gradient_checkpointing=shape.recompute,
    )  # fmt: skip
