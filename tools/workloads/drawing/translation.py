"""An encoder and a decoder. Shape: (pairs, tokens of a sentence, tokens of its translation)."""

from drawing.eager import causal_mask
from drawing.layers import Attention, Block, CrossAttention, FeedForward, Linear, Norm
from drawing.model import Model


class DecoderBlock:
    def __init__(self, weights, config):
        hidden, kind = config["hidden"], config["norm"]
        self.norms = [Norm(weights, hidden, kind) for _ in range(3)]
        self.attention = Attention(weights, config, Linear)
        self.cross = CrossAttention(weights, config, Linear)
        self.mlp = FeedForward(weights, config, Linear)
        self.dropout = config["dropout"]

    def __call__(self, ops, x, memory, mask, memory_mask):
        first = x
        y, one = self.attention(ops, self.norms[0](ops, x), None, mask)
        x = ops.add(x, ops.dropout(y, self.dropout))
        z, two = self.cross(ops, self.norms[1](ops, x), memory, memory_mask)
        ops.hold(y)  # one variable has y, and then z
        x = ops.add(x, ops.dropout(z, self.dropout))
        x = ops.add(x, ops.dropout(self.mlp(ops, self.norms[2](ops, x)), self.dropout))
        ops.hold(first, z, *(kept for kept in (one, two) if kept is not None))
        return x


class Translator(Model):
    def build(self):
        config, weights = self.config, self.weights
        hidden, vocabulary = config["hidden"], config["vocabulary"]
        self.embedding = weights.make(vocabulary, hidden)
        self.encoder = [Block(weights, config) for _ in range(config["layers"])]
        self.decoder = [DecoderBlock(weights, config) for _ in range(config["decoder_layers"])]
        self.norms = [Norm(weights, hidden, config["norm"]) for _ in range(2)]
        self.head = self.embedding if config["tied"] else weights.make(vocabulary, hidden)

    def batch(self, shape):
        pairs, source, target = shape
        return [8 * pairs * source, 8 * pairs * target]

    def piece(self, ops, stage, shape):
        pairs, source, target = shape
        again = self.config["recompute"] == "layers"
        sentences = ops.input((pairs, source), 8)
        translations = ops.input((pairs, target), 8)
        x = ops.dropout(ops.embedding(sentences, self.embedding), self.config["dropout"])
        # Of sentences, of translations, and of sentences for each token of a translation.
        masks = [None] * 3
        if self.config["attention"] == "eager":
            sides = ((source, source), (target, target), (1, source))
            masks = [causal_mask(ops, pairs, *lengths, self.item) for lengths in sides]
        for block in self.encoder:

            def encode(x, mask, block=block):
                return block(ops, x, mask=mask)

            x = ops.checkpoint(encode, x, masks[0], again=again)
        memory = self.norms[0](ops, x)
        ops.hold(x)
        y = ops.dropout(ops.embedding(translations, self.embedding), self.config["dropout"])
        for block in self.decoder:

            def decode(y, memory, mask, memory_mask, block=block):
                return block(ops, y, memory, mask, memory_mask)

            y = ops.checkpoint(decode, y, memory, *masks[1:], again=again)
        out = self.norms[1](ops, y)
        ops.hold(y, *(mask for mask in masks if mask is not None))
        return self.loss(ops, out, translations, self.head)
