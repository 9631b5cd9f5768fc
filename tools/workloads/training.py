"""Training as one rank of a pipeline sees it, in one process on one device.

The process holds all virtual stages of the model and goes through them in the order in which the
first rank of a pipeline would, so as many microbatches are in flight as there. With one virtual
stage that is one-forward-one-backward, with more the interleaved schedule.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import harness
import pipeline


class Head(nn.Module):
    """The final norm and the loss; `weight` projects onto the vocabulary."""

    def __init__(self, norm, weight):
        super().__init__()
        self.norm = norm
        self.weight = weight

    def forward(self, x, targets):
        logits = functional.linear(self.norm(x), self.weight)
        return functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


class Stage(nn.Module):
    """One virtual stage: its share of the blocks, and the embedding or the head at the ends."""

    def __init__(self, blocks, recompute, embedding=None, head=None):
        super().__init__()
        self.embedding = embedding
        self.blocks = nn.ModuleList(blocks)
        self.head = head
        self.recompute = recompute

    def forward(self, x, targets):
        if self.embedding is not None:
            x = self.embedding(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return x if self.head is None else self.head(x, targets)


def stages(options, embedding, blocks, head):
    """The model cut into its virtual stages."""
    share = options.layers // options.virtual_stages
    last = options.virtual_stages - 1
    return nn.ModuleList(
        Stage(
            blocks[stage * share : (stage + 1) * share],
            options.recompute,
            embedding if stage == 0 else None,
            head if stage == last else None,
        )
        for stage in range(options.virtual_stages)
    )


class Data:
    """Endless batches in which each token has one successor, so that there is something to learn.

    The successor of t is a*t + c modulo the vocabulary, so the n-th token after t is a^n*t + c_n.
    """

    FACTOR, SHIFT = 5, 17

    def __init__(self, options):
        self.generator = torch.Generator().manual_seed(options.seed)
        self.vocabulary = options.vocabulary
        self.device = options.device
        factors, shifts = [1], [0]
        for _ in range(max(options.sequence)):
            factors.append(factors[-1] * self.FACTOR % self.vocabulary)
            shifts.append((shifts[-1] * self.FACTOR + self.SHIFT) % self.vocabulary)
        self.factors, self.shifts = torch.tensor(factors), torch.tensor(shifts)

    def batch(self, samples, length):
        """`samples` rows of `length` tokens and one more, on the device."""
        first = torch.randint(self.vocabulary, (samples, 1), generator=self.generator)
        rows = (first * self.factors[: length + 1] + self.shifts[: length + 1]) % self.vocabulary
        return rows.to(self.device)


class Trainer:
    """A job of stages (see `stages`) that an optimizer steps after all microbatches."""

    def __init__(self, options, recorder, model, **optimizer):
        self.options = options
        self.recorder = recorder
        self.stages = model
        recorder.watch(model)
        self.data = Data(options)
        self.optimizer = torch.optim.AdamW(
            self.trained(),
            **{"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, **optimizer},
        )
        self.order = pipeline.order(options.microbatches, options.virtual_stages, options.depth)
        self.batches = {}  # microbatch -> tokens, until its last forward
        self.in_flight = {}  # (microbatch, stage) -> (input, output), from forward to backward
        self.gradients = {}  # (microbatch, stage) -> of its output, from the stage behind it
        self.losses = []
        self.shape = None

    def trained(self):
        return list(self.stages.parameters())

    def shape_of(self, number):
        """(samples, tokens of each) of an iteration's microbatches."""
        options = self.options
        return (
            harness.at(options.microbatch_size, number, options.every),
            harness.at(options.sequence, number, options.every),
        )

    def forward(self, microbatch, stage):
        if stage == 0:
            self.batches[microbatch] = self.data.batch(*self.shape)
            x = self.batches[microbatch][:, :-1]
        else:
            # What a pipeline would have received: the same values, a graph of its own.
            x = self.in_flight[microbatch, stage - 1][1].detach().requires_grad_()
        targets = None
        if stage == self.options.virtual_stages - 1:
            targets = self.batches.pop(microbatch)[:, 1:]
        with torch.autocast(
            torch.device(self.options.device).type,
            dtype=torch.bfloat16,
            enabled=self.options.weights == "float32",
        ):
            y = self.stages[stage](x, targets)
        if targets is not None:
            self.losses.append(y.detach())
            y = y / self.options.microbatches
        self.in_flight[microbatch, stage] = (x, y)

    def backward(self, microbatch, stage):
        x, y = self.in_flight.pop((microbatch, stage))
        # The last stage's output is the loss, which takes no gradient from elsewhere.
        y.backward(self.gradients.pop((microbatch, stage), None))
        if stage > 0:
            self.gradients[microbatch, stage - 1] = x.grad

    def iteration(self, number):
        """One optimizer step over all microbatches; returns their mean loss, not yet waited for."""
        self.losses = []
        self.shape = self.shape_of(number)
        for kind, microbatch, stage in self.order:
            self.recorder.label(number, kind, microbatch)
            if kind == pipeline.FORWARD:
                self.forward(microbatch, stage)
            else:
                self.backward(microbatch, stage)
        self.recorder.label(number, "opt")
        nn.utils.clip_grad_norm_(self.trained(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return torch.stack(self.losses).mean()

    def describe(self):
        options = self.options
        told = {"parameters": sum(weight.numel() for weight in self.stages.parameters())}
        for name in DESCRIBED:
            told[name] = getattr(options, name)
        for name in ("microbatch_size", "sequence"):
            told[name] = told[name] if len(told[name]) > 1 else told[name][0]
        return told


DESCRIBED = (
    "layers",
    "hidden",
    "sequence",
    "microbatch_size",
    "microbatches",
    "virtual_stages",
    "depth",
    "recompute",
    "weights",
)


def add_options(parser, **default):
    """Options of the model's size and of the schedule; `default` has a value for each."""

    def add(name, help):
        harness.number(parser, "--" + name.replace("_", "-"), default[name], help)

    add("layers", "transformer blocks")
    add("hidden", "width of the model")
    add("heads", "attention heads")
    add("vocabulary", "tokens there are")
    add("microbatches", "microbatches of an iteration")
    add("virtual_stages", "stages that the rank holds; 1 is one-forward-one-backward")
    add("depth", "ranks of the pipeline whose first rank this is")
    for name, help in (
        ("sequence", "tokens of a sample"),
        ("microbatch_size", "samples of a microbatch"),
    ):
        parser.add_argument(
            "--" + name.replace("_", "-"),
            type=harness.sizes,
            default=[default[name]],
            metavar="N[,N...]",
            help="%s; several are gone through, see --every [%d]" % (help, default[name]),
        )
    parser.add_argument(
        "--recompute",
        action="store_true",
        help="keep only the blocks' inputs and run them again in backward",
    )
    parser.add_argument(
        "--weights",
        choices=("float32", "bfloat16"),
        default=default["weights"],
        help="what weights and optimizer state are kept in; the arithmetic is bfloat16 [%s]"
        % default["weights"],
    )


def check(parser, options):
    if options.layers % options.virtual_stages:
        parser.error("--layers must be a multiple of --virtual-stages")
    if options.virtual_stages > 1 and options.microbatches % options.depth:
        parser.error("--microbatches must be a multiple of --depth")
    if options.hidden % options.heads:
        parser.error("--hidden must be a multiple of --heads")
