"""Convolutional models over images of many sizes: a detector with a feature pyramid, and a U-Net.

Shape: (samples, height, width, what is in them), the last the boxes of a detector's images.
"""

from drawing.image_ops import ImageOps
from drawing.model import Model


class Convolution:
    """A convolution with a batch norm behind it."""

    def __init__(self, weights, inputs, outputs, size, stride=1):
        self.weight = weights.make(outputs, inputs, size, size)
        self.norm = (weights.make(outputs), weights.make(outputs))
        self.stride = stride
        weights.buffers += [4 * outputs, 4 * outputs, 8]  # running mean, variance, batches seen

    def __call__(self, ops, x):
        return ops.batch_norm(ops.conv(x, self.weight, stride=self.stride), *self.norm)


class Bottleneck:
    def __init__(self, weights, inputs, width, stride):
        self.one = Convolution(weights, inputs, width, 1)
        self.two = Convolution(weights, width, width, 3, stride)
        self.three = Convolution(weights, width, 4 * width, 1)
        same = inputs == 4 * width and stride == 1
        self.skip = None if same else Convolution(weights, inputs, 4 * width, 1, stride)

    def __call__(self, ops, x):
        y = ops.relu_in_place(self.one(ops, x))
        y = ops.relu_in_place(self.two(ops, y))
        y = self.three(ops, y)
        y = ops.add_in_place(y, x if self.skip is None else self.skip(ops, x))
        return ops.relu_in_place(y)


class Vision(Model):
    def ops(self, training):
        made = ImageOps(training, self.config["precision"] == "autocast", self.config["reentrant"])
        made.channels_last = self.config["channels_last"]
        return made

    def cast(self, ops, images):
        """Images in the weights' type, where autocast does not see to that."""
        return images if self.config["precision"] == "autocast" else ops.to(images, 2)

    def batch(self, shape):
        return [shape[0] * 3 * shape[1] * shape[2] * 4] + [16 * max(1, n) for n in shape[3]]


def focal_loss(ops, scores, targets):
    """sigmoid_focal_loss of torchvision, and of fvcore: a sum over all of them."""
    chances = ops.unary(scores, "output")
    crossed = ops.cross_entropy_with_logits(scores, targets)
    hits = ops.multiply(chances, targets)
    others = ops.unary(chances, "nothing")
    hits = ops.add(hits, ops.multiply(others, ops.unary(targets, "nothing")))
    loss = ops.multiply(crossed, ops.power(ops.unary(hits, "nothing")))
    part = ops.unary(targets, "nothing")
    part = ops.add(part, ops.unary(ops.unary(targets, "nothing"), "nothing"))
    loss = ops.multiply(part, loss)
    total = ops.sum(loss)
    ops.hold(chances, crossed, hits, loss, part)
    return total


class Detector(Vision):
    """A ResNet with a pyramid of features and one head over all levels."""

    def build(self):
        config, weights = self.config, self.weights
        width = config["width"]
        self.stem = Convolution(weights, 3, width, 7, 2)
        self.steps, outputs, inputs = [], [], width
        for stage, blocks in enumerate(config["blocks"]):
            step = []
            for number in range(blocks):
                stride = 2 if stage and not number else 1
                step.append(Bottleneck(weights, inputs, width << stage, stride))
                inputs = 4 * (width << stage)
            self.steps.append(step)
            outputs.append(inputs)
        pyramid = config["pyramid"]
        self.lateral = [self.plain(pyramid, n, 1) for n in outputs]
        self.smooth = [self.plain(pyramid, pyramid, 3) for _ in outputs]
        self.tower = [Convolution(weights, pyramid, pyramid, 3) for _ in range(config["tower"])]
        self.classes = self.plain(9 * config["classes"], pyramid, 3)
        self.boxes = self.plain(36, pyramid, 3)

    def plain(self, outputs, inputs, size):
        weights = self.weights
        return (weights.make(outputs, inputs, size, size), weights.make(outputs))

    def piece(self, ops, stage, shape):
        samples, height, width, inside = shape
        images = ops.input((samples, 3, height, width), 4)
        for count in inside:
            ops.input((max(1, count), 4), 4)
        x = ops.max_pool(ops.relu_in_place(self.stem(ops, self.cast(ops, images))))
        levels = []
        for step in self.steps:
            for block in step:

                def run(x, block=block):
                    return block(ops, x)

                x = ops.checkpoint(run, x, again=self.config["recompute"] == "layers")
            levels.append(x)
        return self.losses(ops, self.features(ops, levels), inside)

    def features(self, ops, levels):
        above, features = None, []
        for level, lateral, smooth in reversed(list(zip(levels, self.lateral, self.smooth))):
            x = ops.conv(level, *lateral)
            if above is not None:
                x = ops.add(x, ops.resize(above, *x.shape[-2:]))
            above = x
            features.append(ops.conv(x, *smooth))
        return features

    def losses(self, ops, features, inside):
        losses, anchors, levels = [], 0, []
        for x in features:
            y = x
            for layer in self.tower:
                y = ops.relu_in_place(layer(ops, y))
            scores = ops.conv(y, *self.classes)
            if self.config["focal"]:
                levels.append(self.by_anchor(ops, scores))
            else:
                scores = ops.to(scores, 4)
                chances = ops.unary(scores, "output")
                losses.append(ops.mean(ops.multiply(ops.unary(scores), chances)))
            boxes = ops.to(ops.conv(y, *self.boxes), 4)
            losses.append(ops.mean(ops.unary(boxes)))
            anchors += 9 * x.shape[2] * x.shape[3]
        matches = [self.match(ops, count, anchors) for count in inside]
        if self.config["focal"]:
            losses += self.focal(ops, levels, matches, anchors)
        else:
            ops.hold(*matches)
        return ops.sum_of(losses)

    @staticmethod
    def match(ops, count, anchors):
        """An image's boxes against all anchors: the best for each."""
        overlap = ops.run([], [((max(1, count), anchors), 4)])
        (best,) = ops.run(overlap, [((anchors,), 8)])
        return best

    def by_anchor(self, ops, scores):
        """(samples, anchors, classes): a view where the channels are last, else a copy."""
        samples, _, height, width = scores.shape
        shape = (samples, 9 * height * width, self.config["classes"])
        if ops.channels_last:
            return ops.view(scores, shape)
        return ops.view(ops.turned(scores), shape)

    def focal(self, ops, levels, matches, anchors):
        """Of each image's scores for the anchors that count, as torchvision's RetinaNet has it."""
        samples, classes = len(matches), self.config["classes"]
        levels = ops.concatenate(levels, (samples, anchors, classes))
        losses = []
        for scores, best in zip(
            ops.parts(levels, [anchors] * samples, lambda n: (n, classes)), matches
        ):
            (targets,) = ops.run([], [(scores.shape, scores.item)])
            (valid,) = ops.run([best], [((anchors,), 1)])
            wheres = [ops.run([valid], [((anchors,), 8)], work=(4 * anchors + 512, 8)) for _ in "ab"]
            chosen = ops.gather(scores, *wheres[0], anchors)
            wanted = ops.gather(targets, *wheres[1], anchors)
            losses.append(focal_loss(ops, chosen, wanted))
            ops.hold(targets, valid, chosen, wanted)
        ops.hold(levels, *matches)
        return losses


class Residual:
    """A U-Net's block: two group norms and convolutions, beside a skip."""

    def __init__(self, weights, inputs, outputs):
        self.norms = [[weights.make(n), weights.make(n)] for n in (inputs, outputs)]
        self.convs = [
            (weights.make(outputs, n, 3, 3), weights.make(outputs)) for n in (inputs, outputs)
        ]
        self.skip = None
        if inputs != outputs:
            self.skip = (weights.make(outputs, inputs, 1, 1), weights.make(outputs))

    def __call__(self, ops, x):
        y = x
        for number, (norm, conv) in enumerate(zip(self.norms, self.convs)):
            # A variable has what an operator takes until its result is there.
            normed = ops.group_norm(y, *norm, 32)
            ops.hold(y)
            active = ops.unary(normed)
            # The first one's result goes to a norm.
            y = ops.conv(active, *conv, x_first=True, y_first=number == 0)
            ops.hold(active)
        return ops.add(y, x if self.skip is None else ops.conv(x, *self.skip))


class Middle:
    """Attention over the pixels."""

    def __init__(self, weights, width, heads):
        self.heads = heads
        self.norm = [weights.make(width), weights.make(width)]
        self.mixed = (weights.make(3 * width, width), weights.make(3 * width))
        self.out = (weights.make(width, width), weights.make(width))

    def __call__(self, ops, x):
        samples, width, high, wide = x.shape
        pixels = high * wide
        y = ops.contiguous(ops.group_norm(x, *self.norm, 32), (samples, pixels, width))
        mixed = ops.linear(y, *self.mixed)
        three = ops.parts(mixed, (width,) * 3, lambda n: (samples, pixels, n))
        y = ops.attention(*three, samples, self.heads, self.heads, (pixels, pixels))
        y = ops.contiguous(ops.linear(y, *self.out), x.shape)
        return ops.add(x, y)


class UNet(Vision):
    """Down and up again, with what was on the way down joined in on the way up."""

    def build(self):
        config, weights = self.config, self.weights
        widths = [config["width"] * n for n in config["widths"]]
        self.first = (weights.make(widths[0], 3, 3, 3), weights.make(widths[0]))
        self.down, self.up, kept, inputs = [], [], [widths[0]], widths[0]
        attention = config["attention_from"]
        for level, width in enumerate(widths):
            step = []
            for _ in range(config["repeats"]):
                step.append(
                    (Residual(weights, inputs, width), self.middle(width, level, attention))
                )
                inputs = width
                kept.append(width)
            shrink = None
            if level < len(widths) - 1:
                shrink = (weights.make(width, width, 3, 3), weights.make(width))
                kept.append(width)
            self.down.append((step, shrink))
        self.inside = [Residual(weights, inputs, inputs), self.middle(inputs, attention, attention)]
        for level, width in reversed(list(enumerate(widths))):
            step = []
            for _ in range(config["repeats"] + 1):
                block = Residual(weights, inputs + kept.pop(), width)
                step.append((block, self.middle(width, level, attention)))
                inputs = width
            grow = (weights.make(width, width, 3, 3), weights.make(width)) if level else None
            self.up.append((step, grow))
        self.norm = [weights.make(inputs), weights.make(inputs)]
        self.last = (weights.make(3, inputs, 3, 3), weights.make(3))

    def middle(self, width, level, attention):
        return Middle(self.weights, width, max(1, width // 64)) if level >= attention else None

    def block(self, ops, x, pair):
        def run(x):
            y = pair[0](ops, x)
            return y if pair[1] is None else pair[1](ops, y)

        return ops.checkpoint(run, x, again=self.config["recompute"] == "layers")

    def piece(self, ops, stage, shape):
        samples, height, width, inside = shape
        images = ops.input((samples, 3, height, width), 4)
        for count in inside:
            ops.input((max(1, count), 4), 4)
        (noise,) = ops.run([], [(images.shape, 4)])
        (noisy,) = ops.run([images, noise], [(images.shape, 4)])
        x = ops.conv(self.cast(ops, noisy), *self.first)
        kept = [x]
        for step, shrink in self.down:
            for pair in step:
                x = self.block(ops, x, pair)
                kept.append(x)
            if shrink is not None:
                x = ops.conv(x, *shrink, stride=2)
                kept.append(x)
        x = self.inside[1](ops, self.inside[0](ops, x))
        for step, grow in self.up:
            for pair in step:
                x = self.block(ops, self.join(ops, x, kept.pop()), pair)
            if grow is not None:
                larger = ops.resize(x, *kept[-1].shape[-2:])
                small, x = x, ops.conv(larger, *grow)
                ops.hold(small, larger)
        normed = ops.group_norm(x, *self.norm, 32)
        ops.hold(x)
        active = ops.unary(normed)
        x = ops.conv(active, *self.last, x_first=True)
        ops.hold(active)
        off = ops.add(ops.to(x, 4), noise)
        return ops.mean(ops.power(off))

    @staticmethod
    def join(ops, x, y):
        """x's channels and y's."""
        return ops.concatenate([x, y], (x.shape[0], x.shape[1] + y.shape[1]) + x.shape[2:])
