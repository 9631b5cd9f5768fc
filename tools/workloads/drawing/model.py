"""Models of the families, and the steps of their pieces for one shape of a batch.

A model has weights and stages; trace(stage, shape, training) gives a Program. What a batch holds
(batch(shape)) is allocated by who runs the program, and given to it in the order of its inputs.
"""

from drawing import eager, generation
from drawing.dense_ops import rows_of
from drawing.layers import Adapted, Block, Linear, Norm, Rotary, Weights
from drawing.sharding import gathering, link_us
from drawing.torch_ops import Ops


class Program:
    """Steps of a piece: forward's and backward's, and how its ends are tied to others."""

    __slots__ = (
        "forward",
        "backward",
        "slots",
        "inputs",
        "output",
        "output_size",
        "gradients",
        "kept",
        "left",
    )


def compile_program(ops, output, seeded, kept=(), left=()):
    """The program of a graph whose last tensor is `output`; `seeded`: it is a loss. Who runs it
    keeps `kept`, too, until after backward, and `left` until the next forward is done."""
    program = Program()
    program.forward = ops.forward(output, *kept, *left)
    program.kept = [tensor.storage.slot for tensor in kept]
    program.left = [tensor.storage.slot for tensor in left]
    program.backward, program.gradients = [], []
    if ops.training:
        program.backward, program.gradients = ops.backward(output, seeded)
    program.slots = ops.slots
    program.inputs = [tensor.size for tensor in ops.inputs]
    program.output = output.storage.slot
    program.output_size = output.size
    return program


class Model:
    """What all have: weights, a cache of programs, one stage."""

    stages = 1
    cached = True  # shapes come again

    def __init__(self, config):
        self.config = config
        self.weights = Weights(4 if config["precision"] == "autocast" else 2)
        self.programs = {}
        self.build()

    @property
    def item(self):
        """Bytes of an element of what goes from block to block."""
        return 4 if self.config["precision"] == "autocast" else 2

    def ops(self, training):
        config = self.config
        return Ops(training, config["precision"] == "autocast", config.get("reentrant", False))

    def trace(self, stage, shape, training=True):
        key = (stage, shape, training)
        program = self.programs.get(key)
        if program is None:
            ops = self.ops(training)
            self.kept, self.left = [], []
            output = self.piece(ops, stage, shape)
            seeded = stage == self.stages - 1 and self.has_loss
            program = compile_program(ops, output, seeded, self.kept, self.left)
            if self.cached:
                self.programs[key] = program
        return program

    has_loss = True
    feeds = True  # who runs it allocates the batch, and keeps it until the next
    spans = ()  # parameters of blocks that may be sharded

    def loss(self, ops, x, tokens, projection, holds_input=False):
        """Cross entropy of the scores of each token, in fp32."""
        if self.config["loss_pieces"] > 1:
            return self.loss_in_pieces(ops, x, tokens, projection)
        scores = ops.linear(x, projection)
        narrow, scores = scores, ops.to(scores, 4)
        (targets,) = ops.run([tokens], [(tokens.shape, 8)])
        loss = ops.cross_entropy(scores, targets)
        ops.hold(scores)
        if self.config["holds_logits"]:
            ops.hold(narrow)
        if self.config["outputs_stay"]:
            self.left = [narrow]
        if holds_input:
            ops.hold(x)
        return loss

    def loss_in_pieces(self, ops, x, tokens, projection):
        """The same, of so many tokens at a time, so that their scores are never there all at once in
        fp32; where they are computed again, not in bf16 either."""
        rows = rows_of(x)
        (targets,) = ops.run([tokens], [((rows,), 8)])
        x = ops.view(x, (rows, x.shape[-1]))
        each = -(-rows // self.config["loss_pieces"])
        sizes = [min(each, rows - start) for start in range(0, rows, each)]
        parts = ops.parts(x, sizes, lambda size: (size, x.shape[-1]))

        def loss(part, targets):
            scores = ops.to(ops.linear(part, projection), 4)
            loss = ops.cross_entropy(scores, targets)
            ops.hold(scores)
            return loss

        again, total = self.config["loss_again"], None
        for part in parts:
            one = ops.checkpoint(loss, part, targets, again=again)
            total = one if total is None else ops.add(total, one)
        ops.hold(x, targets)
        return total


class Decoder(Model):
    """A language model; with experts, a mixture; with a rank, tuned by LoRA. Shape: (samples,
    tokens, routing), where routing has for each layer of experts their rows."""

    def build(self):
        config, weights = self.config, self.weights
        self.stages = config["virtual_stages"]
        self.has_loss = config["loss"]
        self.feeds = self.stages == 1 and config["depth"] == 1
        self.cached = not config.get("experts")
        adapted = []

        def adapt(*what):
            adapted.append(Adapted(*what))
            return adapted[-1]

        linear = adapt if config.get("rank") else Linear
        weights.training = not config.get("rank")
        hidden, vocabulary = config["hidden"], config["vocabulary"]
        if not config["weights_in_groups"]:
            self.make_embedding()
        self.blocks, self.spans = [], []
        for number in range(config["layers"]):
            first = len(weights.all)
            self.blocks.append(Block(weights, config, linear, number))
            self.spans.append(weights.all[first:])
        for parameter in sum(self.spans[: config["frozen"]], []):
            parameter.trained = False
        if config["weights_in_groups"]:
            self.make_embedding()
        self.norm = Norm(weights, hidden, config["norm"]) if config["final_norm"] else None
        self.head = self.embedding if config["tied"] else weights.make(vocabulary, hidden)
        if adapted:
            self.adapt(adapted)

    def make_embedding(self):
        weights, hidden, places = self.weights, self.config["hidden"], self.config["positions"]
        self.embedding = weights.make(self.config["vocabulary"], hidden)
        self.positions = weights.make(places, hidden) if places else None

    def adapt(self, adapted):
        config, weights = self.config, self.weights
        weights.training = True
        for layer in adapted:
            layer.adapt(
                weights,
                config["rank"],
                config["lora_dropout"],
                config["lora_item"],
                config["lora_scaled"],
            )
        if config["norms_trained"]:
            for block in self.blocks:
                for norm in block.norms:
                    for parameter in (norm.weight, norm.bias):
                        if parameter is not None:
                            parameter.trained = True

    def batch(self, shape):
        return [shape[0] * shape[1] * 8]

    def embed(self, ops, tokens, shape):
        x = ops.embedding(tokens, self.embedding)
        if self.positions is not None:
            (places,) = ops.run([], [((shape[1],), 8)])
            x = ops.add_rows(x, ops.embedding(places, self.positions))
        return ops.dropout(x, self.config["embedding_dropout"])

    def piece(self, ops, stage, shape):
        config = self.config
        samples, length, routing = shape
        hidden = config["hidden"]
        share = config["layers"] // self.stages
        if self.feeds:
            tokens = ops.input((samples, length), 8)
        elif stage == 0 or (stage == self.stages - 1 and self.has_loss):
            (tokens,) = ops.run([], [((samples, length), 8)])
        if stage == 0:
            x = self.embed(ops, tokens, shape)
            if config.get("rank") and ops.training:
                # Checkpoints have something to go back through then. A leaf goes with the loss.
                x = ops.wanting(x)
                self.kept = [x]
        else:
            x = ops.input((samples, length, hidden), self.item, gradient=True)
        if stage == 0 and config.get("keeps_input"):
            self.kept = [x]
        cosine = sine = mask = None
        if config["attention"] == "eager":
            mask = eager.causal_mask(ops, samples, length, length, self.item)
        if config["rotary"]:
            cosine, sine = Rotary.angles(ops, length, hidden // config["heads"])
        sharded = gathering(ops, config, self.spans) if config["sharding"] == "layers" else None
        for number in range(stage * share, (stage + 1) * share):
            counts = routing[number] if routing else None

            def block(x, cosine, sine, mask, block=self.blocks[number], counts=counts):
                angles = None if cosine is None else (cosine, sine)
                return block(ops, x, counts, angles, mask)

            again = config["recompute"] == "layers"
            if sharded is not None:
                x = sharded.before(number, x)
            whole = self.gathered(ops, number)
            x = ops.checkpoint(block, x, cosine, sine, mask, again=again)
            ops.hold(*whole)
            if sharded is not None:
                x = sharded.behind(number, x)
        ended = x
        if self.norm is not None and stage == self.stages - 1 and self.has_loss:
            x = self.norm(ops, x)
        ops.hold(ended, *(tensor for tensor in (mask, cosine, sine) if tensor is not None))
        if stage < self.stages - 1 or not self.has_loss:
            return x
        loss = self.loss(ops, x, tokens, self.head, self.norm is None)
        return loss if sharded is None else sharded.done(loss)

    def generating(self, samples, past, new):
        """A step of generation: its program keeps the keys and values."""
        key = ("generate", samples, past, new)
        if key not in self.programs:
            ops, left = generation.step(self, samples, past, new)
            self.programs[key] = compile_program(ops, left[0], False, left[1:])
            self.programs[key].kept.insert(0, self.programs[key].output)
        return self.programs[key]

    def gathered(self, ops, number):
        """A block's weights as other ranks have stepped them, all in one, for its forward."""
        if not self.config.get("gathers"):
            return ()
        block = self.spans[number]
        return ops.run(
            [], [((sum(p.count for p in block),), 2)], us=link_us(sum(p.size for p in block))
        )
