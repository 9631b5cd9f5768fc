#!/usr/bin/env python3
"""Trains a decoder over several ranks: torchrun --nproc-per-node 2 parallel.py --job fsdp.

`ddp` has all weights on each rank, `fsdp` cuts each layer's over the ranks (FSDP2), `tensor` cuts the layers themselves,
`1f1b`, `interleaved` and `zero-bubble` are torch's schedules of a pipeline, `experts` sends tokens to experts on
other ranks and back (all-to-all), and `zero3` is DeepSpeed's, where that is installed. All train the same model on the same samples, so that their losses are those of one
rank; with --drawn each iteration has another length. Each rank's last line on standard output is one JSON object;
in --out %r stands for the rank.
"""

import atexit
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import harness
import layers
import lora

JOBS = ("ddp", "fsdp", "tensor", "1f1b", "interleaved", "zero-bubble", "experts", "zero3")
PIPELINES = ("1f1b", "interleaved", "zero-bubble")


class Decoder(nn.Module):
    """Or a stage of one: what a rank leaves out is None."""

    def __init__(self, options, mlp):
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.hidden)
        self.blocks = nn.ModuleList(
            layers.Block(options.hidden, options.heads, mlp()) for _ in range(options.layers)
        )
        self.norm = nn.RMSNorm(options.hidden, eps=1e-5)
        self.head = nn.Linear(options.hidden, options.vocabulary, bias=False)
        self.recompute = options.recompute
        layers.initialize(self)

    def forward(self, x):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x if self.head is None else self.head(self.norm(x))


def loss_of(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


# ---- experts on all ranks ----


class AllToAll(torch.autograd.Function):
    """Rows to other ranks and back, by how many each sends."""

    @staticmethod
    def forward(context, rows, sent, received):
        context.sizes = sent, received
        out = rows.new_empty((sum(received), rows.shape[1]))
        dist.all_to_all_single(out, rows.contiguous(), received, sent)
        return out

    @staticmethod
    def backward(context, gradient):
        sent, received = context.sizes
        out = gradient.new_empty((sum(sent), gradient.shape[1]))
        dist.all_to_all_single(out, gradient.contiguous(), sent, received)
        return out, None, None


class Experts(nn.Module):
    """Each rank has some of the experts, and each token goes to a few, wherever they are."""

    def __init__(self, options):
        super().__init__()
        self.gate = nn.Linear(options.hidden, options.experts, bias=False)
        self.experts = nn.ModuleList(
            layers.SwiGLU(options.hidden, options.inner) for _ in range(options.experts)
        )
        self.chosen = options.chosen

    def keep_own(self, rank, ranks):
        """After all were made, so that they are the same whatever the number of ranks is."""
        each = len(self.experts) // ranks
        self.experts = self.experts[rank * each : (rank + 1) * each]
        for weight in self.experts.parameters():
            weight.is_own = True

    def run(self, rows, counts):
        """`counts[r][e]`: rows from rank r for this rank's expert e, which lie in that order."""
        pieces = list(rows.split([n for of_rank in counts for n in of_rank]))
        width = len(self.experts)
        outs = [None] * len(pieces)
        for index, expert in enumerate(self.experts):
            mine = pieces[index::width]
            done = expert(torch.cat(mine))
            outs[index::width] = done.split([len(piece) for piece in mine])
        return torch.cat(outs)

    def forward(self, x):
        tokens, ranks = x.flatten(0, 1), dist.get_world_size()
        weights, chosen = self.gate(tokens).softmax(-1).topk(self.chosen, -1)
        order = chosen.flatten().argsort(stable=True)
        sent = chosen.flatten().bincount(minlength=self.gate.out_features)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        sends = sent.view(ranks, -1).sum(1).tolist()
        counts = received.view(ranks, -1).tolist()
        gets = [sum(of_rank) for of_rank in counts]
        rows = AllToAll.apply(tokens[order // self.chosen], sends, gets)
        rows = AllToAll.apply(self.run(rows, counts), gets, sends)
        scaled = rows * weights.flatten()[order].unsqueeze(1).to(rows.dtype)
        return torch.zeros_like(tokens).index_add(0, order // self.chosen, scaled.to(tokens.dtype)).view(x.shape)


# ---- jobs ----


class Job:
    """What all have: samples, the optimizer, and the loss over all ranks."""

    def __init__(self, options, recorder):
        self.options, self.recorder = options, recorder
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.device = torch.device("cuda", torch.cuda.current_device()) if options.cuda else torch.device("cpu")
        self.lengths = lora.Lengths(options)
        with self.device:
            self.model = self.build()
        # A step over lists takes no list in which some weights are cut over ranks and others whole.
        kinds = {type(weight.data): [] for weight in self.trained()}
        for weight in self.trained():
            kinds[type(weight.data)].append(weight)
        self.optimizer = torch.optim.AdamW([{"params": weights} for weights in kinds.values()], lr=3e-4)

    def build(self):
        return Decoder(self.options, lambda: layers.SwiGLU(self.options.hidden, self.options.inner))

    def trained(self):
        return list(self.model.parameters())

    def samples(self, number):
        """All ranks' of an iteration, the same on each of them: inputs and targets."""
        options = self.options
        rows = options.microbatch_size[0]
        length = self.lengths.draw(number)[1] if options.drawn else options.sequence[0]
        generator = torch.Generator().manual_seed(options.seed * 100003 + number)
        tokens = torch.randint(options.vocabulary, (rows, length + 1), generator=generator).to(self.device)
        return tokens[:, :-1].contiguous(), tokens[:, 1:]  # pipelines want the strides of their examples

    def own(self, rows):
        """A rank's of what it shares out."""
        each = len(rows) // self.ranks
        return rows[self.rank * each : (self.rank + 1) * each]

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.options.cuda)

    def forward(self, inputs, targets):
        with self.autocast():
            return loss_of(self.model(inputs), targets)

    def all_ranks(self, loss):
        """The mean; each rank has a share of the samples."""
        dist.all_reduce(loss)
        return loss / self.ranks

    def iteration(self, number):
        inputs, targets = (self.own(part) for part in self.samples(number))
        return self.all_ranks(harness.step(self, number, lambda: self.forward(inputs, targets)))

    def describe(self):
        options = self.options
        dist.barrier()  # a rank that has ended would fail the others
        return {"kind": options.job, "rank": self.rank, "ranks": self.ranks, "drawn": options.drawn,
                "recompute": options.recompute,
                "parameters": sum(getattr(weight, "ds_numel", weight.numel()) for weight in self.trained())}


class Ddp(Job):
    def build(self):
        index = [self.device.index] if self.options.cuda else None
        return nn.parallel.DistributedDataParallel(super().build(), device_ids=index)


class Fsdp(Job):
    def build(self):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        model = super().build()
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if self.options.cuda \
            else MixedPrecisionPolicy()
        for block in model.blocks:
            fully_shard(block, mp_policy=policy)
        fully_shard(model, mp_policy=policy)
        return model


class Tensor(Job):
    """Each rank has some heads of attention and some of what lies between a block's projections."""

    def build(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        model = super().build()
        mesh = init_device_mesh(self.device.type, (self.ranks,))
        # In one order on all ranks, since each is sent to the others.
        columns = ("attention.query", "attention.key", "attention.value", "mlp.gate", "mlp.up")
        plan = dict({name: ColwiseParallel() for name in columns},
                    **{name: RowwiseParallel() for name in ("attention.out", "mlp.down")})
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
            block.attention.heads //= self.ranks
        return model

    def own(self, rows):
        return rows


class Pipeline(Job):
    """A rank has one or two stages, and microbatches go through all."""

    def build(self):
        from torch.distributed.pipelining import PipelineStage, schedules

        kinds = {"1f1b": schedules.Schedule1F1B, "interleaved": schedules.ScheduleInterleaved1F1B,
                 "zero-bubble": schedules.ScheduleInterleavedZeroBubble}
        a_rank = 1 if self.options.job == "1f1b" else 2
        self.stage_count = self.ranks * a_rank
        numbers = range(self.rank, self.stage_count, self.ranks)
        whole = super().build()
        made = nn.ModuleList(self.stage(whole, number) for number in numbers)
        stages = [PipelineStage(module, number, self.stage_count, self.device, *self.examples(number))
                  for module, number in zip(made, numbers)]
        given = stages[0] if a_rank == 1 else stages
        self.schedule = kinds[self.options.job](given, self.options.microbatches, loss_fn=loss_of)
        return made

    def examples(self, number):
        """What a stage is given and gives, without contents."""
        options = self.options
        shape = options.microbatch_size[0] // options.microbatches, options.sequence[0]
        first, last = number == 0, number == self.stage_count - 1
        given = torch.empty(shape, dtype=torch.int64, device="meta") if first else \
            torch.empty(*shape, options.hidden, device="meta", requires_grad=True)
        made = torch.empty(*shape, options.vocabulary if last else options.hidden, device="meta", requires_grad=True,
                           dtype=torch.bfloat16 if last and options.cuda else torch.float32)
        return (given,), (made,)

    def stage(self, whole, number):
        """A stage of the model: the same weights as the whole one's."""
        made = Decoder.__new__(Decoder)
        nn.Module.__init__(made)
        each = self.options.layers // self.stage_count
        made.embedding = whole.embedding if number == 0 else None
        made.blocks = whole.blocks[number * each : (number + 1) * each]
        last = number == self.stage_count - 1
        made.norm, made.head = (whole.norm, whole.head) if last else (None, None)
        made.recompute = whole.recompute
        return made

    def iteration(self, number):
        inputs, targets = self.samples(number)
        given = (inputs,) if self.rank == 0 else ()
        losses = []
        self.recorder.label(number, "F")
        with self.autocast():
            if self.rank == self.ranks - 1:
                self.schedule.step(*given, target=targets, losses=losses)
            else:
                self.schedule.step(*given)
        self.recorder.label(number, "opt")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.stack(losses).mean() if losses else torch.zeros((), device=self.device)
        dist.broadcast(loss, self.ranks - 1)
        return loss.detach()


class Experted(Job):
    def build(self):
        model = Decoder(self.options, lambda: Experts(self.options))
        for block in model.blocks:
            block.mlp.keep_own(self.rank, self.ranks)
        return model

    def forward(self, inputs, targets):
        loss = super().forward(inputs, targets)
        loss.register_hook(lambda gradient: gradient / self.ranks)
        return loss

    def iteration(self, number):
        inputs, targets = (self.own(part) for part in self.samples(number))
        self.recorder.label(number, "F")
        loss = self.forward(inputs, targets)
        self.recorder.label(number, "B")
        loss.backward()
        for weight in self.trained():
            # An expert's has what all ranks' tokens gave.
            if not getattr(weight, "is_own", False) and weight.grad is not None:
                dist.all_reduce(weight.grad)
        self.recorder.label(number, "opt")
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.all_ranks(loss.detach().clone())


class Zero3(Job):
    """Weights, gradients and the optimizer's states cut over the ranks by DeepSpeed, whose hooks gather a module's
    weights before it runs."""

    def __init__(self, options, recorder):
        super().__init__(options, recorder)
        import deepspeed

        self.engine, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config={
            "train_micro_batch_size_per_gpu": options.microbatch_size[0] // self.ranks,
            "bf16": {"enabled": options.cuda}, "zero_optimization": {"stage": 3},
            "zero_allow_untested_optimizer": True,  # torch's
        })

    def iteration(self, number):
        inputs, targets = (self.own(part) for part in self.samples(number))
        self.recorder.label(number, "F")
        loss = loss_of(self.engine(inputs), targets)
        self.recorder.label(number, "B")
        self.engine.backward(loss)
        self.recorder.label(number, "opt")
        self.engine.step()
        return self.all_ranks(loss.detach().clone())


KINDS = {"ddp": Ddp, "fsdp": Fsdp, "tensor": Tensor, "experts": Experted, "zero3": Zero3, **dict.fromkeys(PIPELINES, Pipeline)}


def make(options, recorder):
    if options.cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if options.cuda else "gloo")
    atexit.register(dist.destroy_process_group)
    return KINDS[options.job](options, recorder)


def add_options(parser):
    parser.add_argument("--job", choices=JOBS, default="ddp", help="[ddp]")
    parser.add_argument("--drawn", action="store_true", help="draw another length for each iteration")
    parser.add_argument("--recompute", action="store_true", help="keep blocks' inputs alone, and run them again")
    parser.add_argument("--sequence", type=harness.sizes, default=[2048], metavar="N", help="tokens, at most [2048]")
    parser.add_argument("--microbatch-size", type=harness.sizes, default=[8], metavar="N",
                        help="samples of all ranks together in an iteration [8]")
    for name, default, help in (("layers", 16, "blocks"), ("hidden", 2048, "width"), ("heads", 16, "heads"),
                                ("inner", 5632, "width between a block's two projections"),
                                ("vocabulary", 32000, "tokens that there are"),
                                ("microbatches", 4, "of a pipeline's iteration"),
                                ("experts", 8, "of each block, of all ranks together"),
                                ("chosen", 2, "experts that a token goes to")):
        harness.number(parser, "--" + name, default, help)


def check(parser, options):
    ranks = int(os.environ.get("WORLD_SIZE", "0"))
    if ranks < 1 or "LOCAL_RANK" not in os.environ:
        parser.error("it is started by torchrun: torchrun --nproc-per-node 2 parallel.py ...")
    options.out = options.out and options.out.replace("%r", os.environ["RANK"])
    if options.job in PIPELINES and options.drawn:
        parser.error("--drawn: torch's pipelines want the same shapes in each iteration")
    shared = {"tensor": options.heads,
              **dict.fromkeys(("ddp", "fsdp", "experts", "zero3"), options.microbatch_size[0])}.get(options.job, ranks)
    stages = ranks * (1 if options.job == "1f1b" else 2)
    for what, number, by in (("samples or heads", shared, ranks),
                             ("--layers", options.layers, stages if options.job in PIPELINES else 1),
                             ("--microbatch-size", options.microbatch_size[0],
                              options.microbatches if options.job in PIPELINES else 1),
                             ("--experts", options.experts, ranks if options.job == "experts" else 1)):
        if number % by:
            parser.error("%s: %d are not to be shared out by %d" % (what, number, by))
    if options.hidden % options.heads:
        parser.error("--hidden must be a multiple of --heads")
    if options.chosen > options.experts:
        parser.error("--chosen: there are %d experts" % options.experts)


if __name__ == "__main__":
    harness.main("parallel", __doc__, add_options, make, 20, check)
