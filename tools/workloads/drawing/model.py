"""Models of the families, and the steps of their pieces for one shape of a batch.

A model has weights and stages; trace(stage, shape, training) gives a Program. What a batch holds
(batch(shape)) is allocated by who runs the program, and given to it in the order of its inputs.
"""

from drawing.layers import Adapted, Block, Linear, Norm, Rotary, Weights
from drawing.torch_ops import Ops


class Program:
    """Steps of a piece: forward's and backward's, and how its ends are tied to others."""

    __slots__ = ("forward", "backward", "slots", "inputs", "output", "output_size", "gradients")


def compile_program(ops, output, seeded):
    """The program of a graph whose last tensor is `output`; `seeded`: it is a loss."""
    program = Program()
    program.forward = ops.forward(output)
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

    def ops(self, training):
        return Ops(training, self.config["precision"] == "autocast")

    def trace(self, stage, shape, training=True):
        key = (stage, shape, training)
        program = self.programs.get(key)
        if program is None:
            ops = self.ops(training)
            output = self.piece(ops, stage, shape)
            program = compile_program(ops, output, stage == self.stages - 1 and self.has_loss)
            if self.cached:
                self.programs[key] = program
        return program

    has_loss = True

    def loss(self, ops, x, tokens, projection):
        """Cross entropy of the scores of each token, in fp32."""
        scores = ops.linear(x, projection)
        scores = ops.to(scores, 4)
        ops.hold(x)
        (targets,) = ops.run([tokens], [(tokens.shape, 8)])
        return ops.cross_entropy(scores, targets)


class Decoder(Model):
    """A language model; with experts, a mixture; with a rank, tuned by LoRA. Shape: (samples,
    tokens, routing), where routing has for each layer of experts their rows."""

    def build(self):
        config, weights = self.config, self.weights
        self.stages = config.get("virtual_stages", 1)
        self.has_loss = config.get("loss", True)
        self.cached = not config.get("experts")
        linear = Linear
        if config.get("rank"):
            weights.training = False
            options = dict(
                rank=config["rank"],
                dropout=config["lora_dropout"],
                item=config.get("lora_item", 2),
            )

            def linear(weights, inputs, outputs, bias=True):
                weights.training = True
                made = Adapted(weights, inputs, outputs, bias, **options)
                weights.training = False
                return made

        hidden, vocabulary = config["hidden"], config["vocabulary"]
        self.blocks = [Block(weights, config, linear, n) for n in range(config["layers"])]
        self.embedding = weights.make(vocabulary, hidden)
        self.positions = weights.make(config["positions"], hidden) if config["positions"] else None
        self.norm = Norm(weights, hidden, config["norm"]) if config["final_norm"] else None
        self.head = self.embedding if config["tied"] else weights.make(vocabulary, hidden)
        if config.get("rank") and config.get("norms_trained"):
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
        return ops.dropout(x, self.config["dropout"])

    def piece(self, ops, stage, shape):
        config = self.config
        samples, length, routing = shape
        hidden = config["hidden"]
        share = config["layers"] // self.stages
        tokens = ops.input((samples, length), 8)
        if stage == 0:
            x = self.embed(ops, tokens, shape)
            if config.get("rank") and ops.training:
                x = ops.wanting(x)  # so that checkpoints have something to go back through
        else:
            x = ops.input((samples, length, hidden), self.item, gradient=True)
        cosine = sine = None
        if config["rotary"]:
            cosine, sine = Rotary.angles(ops, length, hidden // config["heads"])
        for number in range(stage * share, (stage + 1) * share):
            counts = routing[number] if routing else None

            def block(x, cosine, sine, block=self.blocks[number], counts=counts):
                angles = None if cosine is None else (cosine, sine)
                return block(ops, x, counts, angles)

            again = config["recompute"] == "layers"
            x = ops.checkpoint(block, x, cosine, sine, again=again)
        if stage < self.stages - 1 or not self.has_loss:
            return x
        if self.norm is not None:
            x = self.norm(ops, x)
        return self.loss(ops, x, tokens, self.head)

    @property
    def item(self):
        return 4 if self.config["precision"] == "autocast" else 2
