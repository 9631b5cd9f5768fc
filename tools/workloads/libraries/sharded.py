"""FSDP2 over a decoder of transformers, a rank a GPU: torchrun --nproc-per-node 2 real.py --job fsdp2.

Each layer's weights are gathered on a stream of their own before it runs, and its gradients are
summed and cut when it has run back; texts have drawn lengths, others on each rank."""

import os
import types

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import LlamaConfig

from libraries import common, decoders


class Sharded(common.Loop):
    def iteration(self, number):
        loss = super().iteration(number)
        torch.distributed.all_reduce(loss)
        return loss / torch.distributed.get_world_size()

    def describe(self):
        return dict(super().describe(), rank=torch.distributed.get_rank())


def cut(options, shape):
    """A model whose layers are cut over the ranks."""
    made = decoders.model(options, LlamaConfig(**decoders.sizes(shape)))
    if shape.recompute:
        made.gradient_checkpointing_enable()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in made.model.layers:
        fully_shard(layer, mp_policy=policy, reshard_after_forward=shape.reshard)
    fully_shard(made, mp_policy=policy)
    return made


def fsdp2(options):
    if options.cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.distributed.init_process_group("nccl" if options.cuda else "gloo")
    shape = decoders.drawn(options, (12, 20), (2048, 2560), common.LENGTHS, ("adamw", "adamw-fused"))
    shape.reshard = common.Draw(options, "sharding").either()
    # Each rank has texts of its own, but the model of all.
    seed = options.seed * 1000 + torch.distributed.get_rank()
    mine = types.SimpleNamespace(**dict(vars(options), seed=seed))
    data = common.batches(decoders.texts(mine, shape), shape.rows, shape.microbatches)
    return Sharded(options, shape, cut(options, shape), common.own_loss, data)
