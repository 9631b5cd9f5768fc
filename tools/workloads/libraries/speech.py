"""Speech models of transformers: Whisper by Trainer, whose sounds are all as long and texts are not,
and Wav2Vec2 by a plain loop over sounds of drawn lengths."""

import numpy
import torch
from torch.utils.data import Dataset
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2ForSequenceClassification,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from libraries import common, trainers

VOCABULARY = 51865
RATE = 16000  # numbers a second
KINDS = 24


class Heard(Dataset):
    """Sounds of thirty seconds as their frequencies, and what is said in them."""

    def __init__(self, options, shape):
        self.texts = common.Texts(options, 2048, shape.lengths, shape.most, VOCABULARY)
        draws = torch.Generator().manual_seed(options.seed)
        self.sound = torch.randn(80, 2 * shape.frames, generator=draws)
        self.frames = shape.frames

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        begin = index % self.frames
        sound = self.sound[:, begin : begin + self.frames]
        return {"input_features": sound, "labels": self.texts[index]["labels"]}


def heard(rows):
    return {
        "input_features": torch.stack([row["input_features"] for row in rows]),
        "labels": common.pad([row["labels"] for row in rows], -100),
    }


def whisper(options):
    draw = common.Draw(options)
    layers, hidden = draw.step(4, 12, 2), draw.choice((512, 768, 1024))
    recompute, rows = draw.either(), draw.step(8, 16, 4)
    weights = layers * 28 * hidden * hidden
    shape = common.shape(
        options, dict(hidden=64, layers=2, frames=64, most=16, rows=2, microbatches=2),
        layers=layers, hidden=hidden, frames=3000, most=draw.choice((128, 224, 448)),
        recompute=recompute, rows=rows, lengths=draw.choice(common.LENGTHS),
        microbatches=common.repeats(6 * weights * rows * 1000 * (4 / 3 if recompute else 1)),
        optimizer=draw.choice(trainers.OPTIMIZERS[:3]),
    )  # fmt: skip
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=shape.hidden,
        encoder_layers=shape.layers,
        decoder_layers=shape.layers,
        encoder_attention_heads=shape.hidden // 64,
        decoder_attention_heads=shape.hidden // 64,
        encoder_ffn_dim=4 * shape.hidden,
        decoder_ffn_dim=4 * shape.hidden,
        max_source_positions=shape.frames // 2,
        use_cache=False,
    )
    with torch.device(options.device):
        made = WhisperForConditionalGeneration(config)
    return trainers.Training(
        options, shape, made, Heard(options, shape), heard, gradient_checkpointing=shape.recompute
    )


class Sounds:
    """number -> the microbatches of an iteration: sounds padded to the longest."""

    def __init__(self, options, shape):
        self.shape, self.draws = shape, common.Draw(options, "sounds")
        draws = torch.Generator().manual_seed(options.seed)
        self.sound = torch.randn(2 * shape.most, generator=draws)

    def __call__(self, number):
        for _ in range(self.shape.microbatches):
            yield self.batch()

    def batch(self):
        shape = self.shape
        rows = [self.one(common.length(self.draws, shape.lengths, shape.most)) for _ in range(shape.rows)]
        return {
            "input_values": common.pad(rows, 0.0),
            "attention_mask": common.pad([torch.ones(len(row), dtype=torch.long) for row in rows], 0),
            "labels": torch.tensor([self.draws.randrange(KINDS) for _ in rows]),
        }

    def one(self, length):
        begin = self.draws.randrange(self.shape.most)
        return self.sound[begin : begin + max(length, RATE // 4)]


def wav2vec2(options):
    draw = common.Draw(options)
    numpy.random.seed(options.seed)  # of the parts of a sound that the model masks
    layers, hidden = draw.step(6, 16, 2), draw.choice((512, 768, 1024))
    most, rows = draw.choice((8, 12, 16)) * RATE, draw.step(8, 16, 4)
    work = 6 * (layers * 12 * hidden * hidden + 30e6) * rows * most / 320 * 0.7
    shape = common.shape(
        options, dict(hidden=64, layers=2, channels=32, most=RATE, rows=2, microbatches=2),
        layers=layers, hidden=hidden, channels=512, most=most, rows=rows,
        lengths=draw.choice(common.LENGTHS), microbatches=common.repeats(work, 3),
        recompute=draw.either(), optimizer=draw.choice(common.OPTIMIZERS),
    )  # fmt: skip
    config = Wav2Vec2Config(
        hidden_size=shape.hidden,
        intermediate_size=4 * shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.hidden // 64,
        conv_dim=(shape.channels,) * 7,
        num_labels=KINDS,
        layerdrop=0.0,
    )
    with torch.device(options.device):
        made = Wav2Vec2ForSequenceClassification(config)
    made.to(options.device)  # one weight is made on the processor whatever the device
    if shape.recompute:
        made.gradient_checkpointing_enable()
    return common.Loop(
        options, shape, made, common.own_loss, Sounds(options, shape), common.autocast(options)
    )
