"""What jobs of several libraries share: what a seed draws, texts of drawn lengths, a plain loop."""

import contextlib
import random
import types

import torch

# Floating-point operations of an iteration: some third of a second of an H200 at the 200 TFLOP/s that
# such models get of it.
WORK = 6e13


class Draw(random.Random):
    """What a seed decides of a job; the same on any machine, under any allocator."""

    def __init__(self, options, what="shape"):
        super().__init__("%s, %s, seed %d" % (options.job, what, options.seed))

    def step(self, least, most, step):
        return self.randrange(least, most + 1, step)

    def either(self):
        return self.random() < 0.5


def shape(options, tiny, **drawn):
    """What was drawn, with the sizes of `tiny` in its place where the job is to be tiny."""
    assert set(tiny) <= set(drawn), "tiny has what is not drawn: %s" % (set(tiny) - set(drawn))
    return types.SimpleNamespace(**dict(drawn, **(tiny if options.tiny else {})))


def repeats(work, most=6):
    """How many microbatches of so many floating-point operations an iteration has."""
    return max(1, min(most, round(WORK / work)))


def rows_within(draw, bytes_a_row, least=2, most=64):
    """How many rows a microbatch has for what forward leaves to take four to eight GiB."""
    return max(least, min(most, int(draw.uniform(4, 8) * (1 << 30) / bytes_a_row)))


def left_behind(width, layers, recompute, logits=32000):
    """Bytes that forward leaves of a token in layers of a transformer, and its logits'."""
    return (8 if recompute else 40) * width * layers + 16 * logits


# ---- texts ----

LENGTHS = ("even", "bell", "tail", "buckets")


def length(draws, kind, most):
    """One length, at most `most`, in eights where it is long."""
    if kind == "even":
        drawn = draws.uniform(most / 8, most)
    elif kind == "bell":
        drawn = draws.gauss(most / 2, most / 8)
    elif kind == "tail":
        drawn = most / 4 * draws.lognormvariate(0, 0.6)
    elif kind == "buckets":
        drawn = most * draws.choice((1, 2, 3, 4)) / 4
    else:
        drawn = most
    return max(4, min(most, int(drawn)))


class Texts(torch.utils.data.Dataset):
    """Rows of tokens of drawn lengths; each is the same whenever it is asked for."""

    def __init__(self, options, rows, kind, most, vocabulary, what="texts"):
        draws = Draw(options, what)
        self.lengths = [length(draws, kind, most) for _ in range(rows)]
        self.vocabulary, self.seed = vocabulary, draws.getrandbits(40)

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        draws = torch.Generator().manual_seed(self.seed + index)
        # The first tokens of a vocabulary are for padding, beginnings and ends.
        tokens = torch.randint(3, self.vocabulary, (self.lengths[index],), generator=draws)
        return {"input_ids": tokens, "labels": tokens}


def pad(tensors, filler):
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=filler)


def padded(rows):
    """Rows of tokens as one batch, padded to the longest."""
    tokens = pad([row["input_ids"] for row in rows], 0)
    return {
        "input_ids": tokens,
        "attention_mask": pad([torch.ones_like(row["input_ids"]) for row in rows], 0),
        "labels": pad([row["labels"] for row in rows], -100),
    }


def batches(data, rows, microbatches, collate=padded):
    """number -> the microbatches of an iteration, row after row and from the beginning again."""

    def of(number):
        first = number * microbatches * rows
        for begin in range(first, first + microbatches * rows, rows):
            yield collate([data[index % len(data)] for index in range(begin, begin + rows)])

    return of


# ---- the plain loop ----


def on(device, batch):
    return {name: value.to(device, non_blocking=True) for name, value in batch.items()}


def autocast(options):
    return torch.autocast(torch.device(options.device).type, torch.bfloat16)


OPTIMIZERS = ("adamw", "adamw-fused", "adafactor", "sgd")


def optimizer(kind, weights, rate=1e-4):
    weights = [weight for weight in weights if weight.requires_grad]
    if kind.startswith("adamw"):
        return torch.optim.AdamW(weights, lr=rate, fused=kind == "adamw-fused")
    if kind == "adafactor":
        return torch.optim.Adafactor(weights, lr=rate)
    return torch.optim.SGD(weights, lr=rate, momentum=0.9, nesterov=True)


class Loop:
    """Microbatches forward and back, a norm's clipping, a step: the loop that most people write."""

    def __init__(self, options, shape, model, loss, batches, context=None):
        self.options, self.shape, self.model = options, shape, model
        self.loss, self.batches = loss, batches
        self.context = context or contextlib.nullcontext()
        self.weights = [weight for weight in model.parameters() if weight.requires_grad]
        self.optimizer = optimizer(shape.optimizer, self.weights)
        model.train()

    def iteration(self, number):
        total = torch.zeros((), device=self.options.device)
        for batch in self.batches(number):
            with self.context:
                loss = self.loss(self.model, on(self.options.device, batch))
            (loss / self.shape.microbatches).backward()
            total += loss.detach().float()
        torch.nn.utils.clip_grad_norm_(self.weights, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return total / self.shape.microbatches

    def describe(self):
        return {"drawn": dict(vars(self.shape)), "weights": count(self.model)}


def count(model):
    return sum(weight.numel() for weight in model.parameters())


def own_loss(model, batch):
    """Of models that take labels."""
    return model(**batch).loss
