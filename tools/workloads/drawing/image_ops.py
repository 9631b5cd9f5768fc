"""Operators of torch on images: convolutions, norms over a batch or over groups, pooling, resizing.

Images are (samples, channels, height, width). cuDNN's kernels for bf16 want channels last: where they
come first, a convolution's workspace has copies of what it reads and writes.
"""

from drawing.graph import cost
from drawing.torch_ops import Ops
from drawing.workspace import reduce_workspace


class ImageOps(Ops):
    channels_last = False

    def conv(self, x, weight, bias=None, stride=1, x_first=False, y_first=False):
        """conv2d with the padding that keeps the sides; the weight is (out, in, size, size). Where
        the model has its channels last, `x_first` says that x has not, and `y_first` that the
        result's gradient has not: it is put in order then, in forward and in backward."""
        b, w = self.used_weight(bias), self.used_weight(weight)  # the last argument is cast first
        x = self.used(x)
        samples, _, height, width = x.shape
        outputs, inputs, size, _ = weight.shape
        shape = (samples, outputs, -(-height // stride), -(-width // stride))
        pixels = shape[0] * shape[2] * shape[3]
        operations = 2 * pixels * outputs * inputs * size * size
        y_size = pixels * outputs * x.item
        work = w.size if self.channels_last else x.size + y_size + w.size
        us = cost(x.size + y_size, operations)
        x_first, y_first = x_first and self.channels_last, y_first and self.channels_last
        used = [t for t in (x, w, b) if t is not None]
        if x_first:
            used += self.run([x], [(x.shape, x.item)], us=cost(2 * x.size))
        (y,) = self.run(used, [(shape, x.item)], work=(work,), us=us)
        if not self.needs(x, w, b):
            return y
        x_size, w_size, x_wants = x.size, w.size, x.source is not None
        item = x.item

        def rule(back, gradients):
            dx = dw = db = None
            copies = []
            if x_first and w.source is not None:
                copies.append(back.alloc(x_size))
            copies += [back.alloc(y_size)] if y_first else back.in_order(gradients[0])
            if x_wants:
                dx = back.alloc(x_size)
                back.temporary(work)
                back.spend(us)
            if w.source is not None:
                dw = back.alloc(w_size)
                back.temporary(work + 2 * w_size)  # partial sums in fp32
                back.spend(us)
            for copy in copies[::-1]:
                back.free(copy)
            if b is not None:
                db = back.alloc(outputs * item)
                back.temporary(*reduce_workspace(outputs, pixels))
                back.spend(cost(y_size))
            return [dx, dw, db]

        self.node(rule, [x, w, b], [y], [x, w])
        return y

    def batch_norm(self, x, weight, bias):
        channels = x.shape[1]
        w, b = self.weight(weight), self.weight(bias)
        y, mean, variance = self.run(
            [x, w, b], [(x.shape, x.item)] + [((channels,), 4)] * 2, us=cost(3 * x.size)
        )
        return self.normed(x, w, b, y, [x, mean, variance])

    def group_norm(self, x, weight, bias, groups):
        """Its kernels want the channels first: where they are last x is copied, and so is the
        gradient. They take sums of each channel, in fp32."""
        wide = x = self.wide(x)
        if self.channels_last:
            x = self.copied(x)
        w, b = self.weight(weight), self.weight(bias)
        samples, channels = x.shape[:2]
        sums, few = 4 * samples * channels, 4 * samples * groups
        y, mean, deviation = self.run(
            [x, w, b],
            [(x.shape, x.item)] + [((samples * groups,), x.item)] * 2,
            work=(sums, sums),
            us=cost(3 * x.size),
        )
        work = (sums, sums, few, few, sums)
        self.normed(x, w, b, y, [x, mean, deviation], work, self.channels_last)
        self.hold(wide)
        return y

    def normed(self, x, w, b, y, saved, work=(), copies=False):
        if self.needs(x, w, b):
            sizes = [t.size for t in (x, w, b)]
            wants = [t.source is not None for t in (x, w, b)]

            def rule(back, gradients):
                copy = back.alloc(sizes[0]) if copies else None
                out = [back.alloc(size) if want else None for size, want in zip(sizes, wants)]
                back.temporary(*work)
                back.spend(cost(5 * sizes[0]))
                if copies:
                    back.free(copy)
                return out

            self.node(rule, [x, w, b], [y], saved)
        return y

    def max_pool(self, x):
        """Of three by three pixels, every second one; where the largest was is int64."""
        shape = x.shape[:2] + (-(-x.shape[2] // 2), -(-x.shape[3] // 2))
        y, where = self.run([x], [(shape, x.item), (shape, 8)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [x, where])
        return y

    def resize(self, x, height, width):
        x = self.wide(x)
        (y,) = self.run([x], [(x.shape[:2] + (height, width), x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [])
        return y
