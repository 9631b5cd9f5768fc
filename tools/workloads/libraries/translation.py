"""An encoder and a decoder of transformers by Trainer: sentences and their translations have lengths
of their own."""

import torch
from torch.utils.data import Dataset
from transformers import T5Config, T5ForConditionalGeneration

from libraries import common, trainers

VOCABULARY = 32100


class Pairs(Dataset):
    """Sentences, and translations that are as long within a third."""

    def __init__(self, options, shape, rows=4096):
        self.sentences = common.Texts(options, rows, shape.lengths, shape.most, VOCABULARY)
        self.translations = common.Texts(options, rows, "full", shape.most, VOCABULARY, "translations")
        draws = common.Draw(options, "ratios")
        self.translations.lengths = [
            max(4, min(shape.most, int(length * draws.uniform(2 / 3, 4 / 3))))
            for length in self.sentences.lengths
        ]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return {
            "input_ids": self.sentences[index]["input_ids"],
            "labels": self.translations[index]["labels"],
        }


def t5(options):
    draw = common.Draw(options)
    layers, hidden = draw.step(6, 12, 2), draw.choice((512, 768, 1024))
    most, recompute = draw.choice((256, 384, 512)), draw.either()
    heads = hidden // 64
    # Attention keeps a number for each pair of tokens, three times and a mask.
    pairs = 14 * heads * most * most * layers * 3
    row = pairs // (8 if recompute else 1) + 2 * most * common.left_behind(hidden, layers, recompute)
    rows = common.rows_within(draw, row)
    weights = layers * (8 + 3 * 2.75 * 2) * hidden * hidden + VOCABULARY * hidden
    shape = common.shape(
        options, dict(hidden=64, layers=2, heads=2, most=24, rows=2, microbatches=2),
        layers=layers, hidden=hidden, heads=heads, most=most, recompute=recompute, rows=rows,
        lengths=draw.choice(common.LENGTHS),
        microbatches=common.repeats(6 * weights * rows * most, 4), dropout=draw.choice((0.0, 0.1)),
        optimizer=draw.choice(("adafactor", "adamw_torch")),
    )  # fmt: skip
    config = T5Config(
        vocab_size=VOCABULARY,
        d_model=shape.hidden,
        d_ff=shape.hidden * 11 // 4,
        d_kv=shape.hidden // shape.heads,
        num_layers=shape.layers,
        num_heads=shape.heads,
        dropout_rate=shape.dropout,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        decoder_start_token_id=0,
    )
    with torch.device(options.device):
        made = T5ForConditionalGeneration(config)
    return trainers.Training(
        options, shape, made, Pairs(options, shape), common.padded,
        gradient_checkpointing=shape.recompute,
    )  # fmt: skip
