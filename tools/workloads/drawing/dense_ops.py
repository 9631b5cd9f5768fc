"""Operators of torch on whole tensors: what each makes, saves for backward, and uses for a moment.

Sizes and order are those of torch 2.9 to 2.11 on an H200: two-dimensional products save both
factors, the gradient of a bias is a reduction with a workspace of its own, attention is cuDNN's.
Generated backward functions compute the gradients of their inputs in the alphabetical order of the
inputs' names, so a product without a bias makes its weight's gradient first (mat2 before self), one
with a bias its input's (mat1, mat2, self).
"""

from drawing.graph import Graph, Leaf, Storage, Tensor, cost
from drawing.workspace import reduce_workspace


def rows_of(tensor):
    return tensor.count // tensor.shape[-1] if tensor.shape[-1] else 0


def passing_sum(tensors, item):
    """The rule of a sum in a type: its gradient is each summand's, cast where that is of another."""
    casts = [None if t.source is None else 0 if t.item == item else t.size for t in tensors]

    def rule(back, g):
        return [
            None if cast is None else back.alloc(cast) if cast else back.share(g[0])
            for cast in casts
        ]

    return rule


class Dense(Graph):
    """A graph with these operators."""

    ITEM = 2  # of the arithmetic: bf16

    # ---- weights ----

    def weight(self, parameter):
        """The parameter as a tensor, itself."""
        source = None
        if parameter.trained and self.training:
            source = self.leaves.setdefault(parameter.number, Leaf(parameter.number))
        return Tensor(Storage(0, outside=True), parameter.shape, parameter.item, source)

    def used_weight(self, parameter):
        """The parameter in the arithmetic's type: autocast copies it once a forward."""
        if parameter is None:
            return None
        if not self.autocast or parameter.item <= self.ITEM:
            return self.weight(parameter)
        if parameter.number not in self.casts:
            self.casts[parameter.number] = self.to(self.weight(parameter), self.ITEM)
            self.cached.append(self.casts[parameter.number])
        return self.casts[parameter.number]

    def wanting(self, x):
        """x.requires_grad_(): a leaf whose gradient nobody reads."""
        return Tensor(x.storage, x.shape, x.item, Leaf(None))

    def used(self, x):
        """An activation in the arithmetic's type, where autocast casts."""
        return self.to(x, self.ITEM) if self.autocast and x.item != self.ITEM else x

    def wide(self, x):
        """An activation in fp32, where autocast runs an operator in that: norms, powers, resizing."""
        return self.to(x, 4) if self.autocast else x

    def to(self, x, item):
        """A copy in another type."""
        if x.item == item:
            return x
        (y,) = self.run([x], [(x.shape, item)], us=cost(x.count * (x.item + item)))
        if self.needs(x):
            self.node(self.passing_copy(x, x.count * (x.item + item)), [x], [y], [])
        return y

    # ---- views ----

    def view(self, x, shape):
        """The same storage with another shape; its gradient is a view, too."""
        y = Tensor(x.storage, tuple(shape), x.item)
        if x.source is not None:
            self.node(lambda back, g: [back.view(back.share(g[0]))], [x], [y], [])
        return y

    def parts(self, x, sizes, shape_of, join=True):
        """Views of x along a side; the gradient is put together anew (split, chunk, unbind)."""
        outputs = [Tensor(x.storage, shape_of(size), x.item) for size in sizes]
        if x.source is not None:
            self.node(self.passing_copy(x), [x], outputs, [])
        return outputs

    def permuted(self, x):
        """A view in another order, whose gradient is put back into the first by a copy."""
        y = Tensor(x.storage, x.shape, x.item)
        if x.source is not None:
            self.node(self.passing_copy(x), [x], [y], [])
        return y

    def slice(self, x, shape):
        """A part of x of this shape by indexing: the gradient is zeros but for it."""
        y = Tensor(x.storage, shape, x.item)
        if x.source is not None:
            self.node(self.passing_copy(x, x.size), [x], [y], [])
        return y

    def contiguous(self, x, shape=None):
        """A copy in order; so is its gradient."""
        (y,) = self.run([x], [(shape or x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [])
        return y

    def copied(self, x):
        """A copy in order, or with a number added: its gradient is the result's own."""
        (y,) = self.run([x], [(x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(lambda back, g: [back.share(g[0])], [x], [y], [])
        return y

    def turned(self, x):
        """A copy in another order: its gradient is a view in that order, which who wants it in x's
        copies."""
        (y,) = self.run([x], [(x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(lambda back, g: [back.part(g[0], g[0].size, False)], [x], [y], [])
        return y

    def repeated(self, x, times):
        """Each head of x so many times in turn, by a copy; the gradient is summed over them."""
        shape = x.shape[:-1] + (x.shape[-1] * times,)
        (y,) = self.run([x], [(shape, x.item)], us=cost((1 + times) * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [])
        return y

    def passing_copy(self, x, moved=None):
        """The rule of a gradient that is made anew, as large as x, by moving so many bytes [reading
        as many as it writes]."""
        size, moved = x.size, 2 * x.size if moved is None else moved

        def rule(back, gradients):
            result = back.alloc(size)
            back.spend(cost(moved))
            return [result]

        return rule

    # ---- products ----

    def linear(self, x, weight, bias=None):
        """functional.linear; with autocast its weights are copies in the arithmetic's type. It is a
        product of matrices: gradients are views of its own, of the weight as it is transposed, of the
        input where it has more than two sides."""
        b, w = self.used_weight(bias), self.used_weight(weight)  # the last argument is cast first
        x = self.used(x)
        rows, inner, width = rows_of(x), weight.shape[1], weight.shape[0]
        operations = 2 * rows * inner * width
        moved = x.size + w.size + rows * width * x.item
        used = [tensor for tensor in (x, w, b) if tensor is not None]
        (y,) = self.run(
            used,
            [(x.shape[:-1] + (width,), x.item)],
            once="cublas" if bias is None else "cublaslt",
            us=cost(moved, operations),
        )
        if not self.needs(x, w, b):
            return y
        x_size, w_size, item = x.size, w.size, x.item
        x_wants, w_wants, b_wants = (t is not None and t.source is not None for t in (x, w, b))
        us, has_bias, flat = cost(moved, operations), bias is not None, len(x.shape) == 2

        def input_gradient(back):
            if not x_wants:
                return None
            result = back.alloc(x_size)
            back.once("cublas")
            back.spend(us)
            return result if flat else back.view(result)

        def weight_gradient(back):
            if not w_wants:
                return None
            result = back.alloc(w_size)
            back.once("cublas")
            back.spend(us)
            return back.view(result)

        def bias_gradient(back):
            if not b_wants:
                return None
            result = back.alloc(width * item)
            back.temporary(*reduce_workspace(width, rows))
            back.spend(cost(rows * width * item))
            return result

        def rule(back, gradients):
            if has_bias:
                dx, dw = input_gradient(back), weight_gradient(back)
                back.let_go()
                return [bias_gradient(back), dx, dw]
            dw = weight_gradient(back)
            return [None, input_gradient(back), dw]

        self.node(rule, [b, x, w], [y], [x if w_wants else None, w if x_wants else None])
        return y

    def matmul(self, x, y, shape, operations):
        """A batched product of two activations."""
        (z,) = self.run(
            [x, y],
            [(shape, x.item)],
            once="cublas",
            us=cost(x.size + y.size, operations),
        )
        if self.needs(x, y):
            sizes, us = (x.size, y.size), cost(x.size + y.size, operations)
            wants = [t.source is not None for t in (x, y)]

            def rule(back, gradients):
                second = back.alloc(sizes[1]) if wants[1] else None
                back.once("cublas")
                first = back.alloc(sizes[0]) if wants[0] else None
                back.spend(2 * us)
                return [first, second]

            self.node(rule, [x, y], [z], [y if wants[0] else None, x if wants[1] else None])
        return z

    # ---- one element at a time ----

    def unary(self, x, saves="input", item=None):
        """gelu, silu, softplus (saves its input), tanh, sigmoid, relu (its output), scaling (none)."""
        (y,) = self.run([x], [(x.shape, item or x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], {"input": [x], "output": [y]}.get(saves, []))
        return y

    def relu_in_place(self, x):
        """relu_ on the result of something that did not save it."""
        self.run([x], [], us=cost(2 * x.size))
        if not self.needs(x):
            return x
        y = Tensor(x.storage, x.shape, x.item)
        self.node(self.passing_copy(x), [x], [y], [y])
        return y

    def add(self, x, y):
        """x + y of one shape: their gradients are the sum's own."""
        item = max(x.item, y.item)
        (z,) = self.run([x, y], [(x.shape, item)], us=cost(3 * x.count * item))
        if self.needs(x, y):
            self.node(passing_sum([x, y], item), [x, y], [z], [])
        return z

    def add_in_place(self, x, y):
        """x += y, where nothing saved x."""
        self.run([x, y], [], us=cost(3 * x.size))
        z = Tensor(x.storage, x.shape, x.item)
        if self.needs(x, y):
            self.node(passing_sum([x, y], x.item), [x, y], [z], [])
        return z

    def add_rows(self, x, y):
        """x + y, where y is the same for each sample: its gradient is a sum over the samples."""
        (z,) = self.run([x, y], [(x.shape, x.item)], us=cost(3 * x.size))
        if self.needs(x, y):
            wants, small = [t.source is not None for t in (x, y)], y.size

            def rule(back, g):
                first = back.share(g[0]) if wants[0] else None
                second = back.alloc(small) if wants[1] else None
                return [first, second]

            self.node(rule, [x, y], [z], [])
        return z

    def multiply(self, x, y):
        """x * y, of one shape or the smaller one repeated, in the wider of their types."""
        large, item = max((x, y), key=lambda t: (t.count, len(t.shape))), max(x.item, y.item)
        whole = large.count * item
        (z,) = self.run([x, y], [(large.shape, item)], us=cost(3 * whole))
        if self.needs(x, y):
            sizes = (x.size, y.size)
            wants = [t.source is not None for t in (x, y)]

            def fitted(back, gradient, size):
                """Summed over what was repeated, and in the type of what the gradient is of."""
                if gradient is None or size == whole:
                    return gradient
                result = back.alloc(size)
                back.spend(cost(whole))
                back.free(gradient)
                return result

            def rule(back, gradients):
                second = back.alloc(whole) if wants[1] else None
                first = back.alloc(whole) if wants[0] else None
                back.spend(2 * cost(3 * whole))
                first = fitted(back, first, sizes[0])
                return [first, fitted(back, second, sizes[1])]

            self.node(rule, [x, y], [z], [y if wants[0] else None, x if wants[1] else None])
        return z

    def mean_rows(self, x):
        """The mean of each row; its gradient is a quotient as large as what it is the mean of."""
        (y,) = self.run([x], [((rows_of(x), 1), x.item)], us=cost(x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [])
        return y

    def power(self, x, saves="input"):
        """pow(2) (saves its input) or rsqrt (its output): their gradient is a product of the
        incoming one, a factor and another power, which are there until it is made."""
        x = self.wide(x)
        (y,) = self.run([x], [(x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            size = x.size

            def rule(back, gradients):
                power, scaled = back.alloc(size), back.alloc(size)
                result = back.alloc(size)
                back.spend(2 * cost(2 * size) + cost(3 * size))
                back.free(scaled)
                back.free(power)
                return [result]

            self.node(rule, [x], [y], [x if saves == "input" else y])
        return y

    def dropout(self, x, share):
        if share == 0 or not self.training:
            return x
        mask, y = self.run([x], [(x.shape, 1), (x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [mask])
        return y

    def softmax(self, x):
        x = self.wide(x)
        (y,) = self.run([x], [(x.shape, x.item)], us=cost(2 * x.size))
        if self.needs(x):
            size = x.size

            def rule(back, gradients):
                result = back.alloc(size)
                back.temporary(size)  # the gradient times the result
                back.spend(2 * cost(2 * size))
                return [result]

            self.node(rule, [x], [y], [y])
        return y

    # ---- norms ----

    def layer_norm(self, x, weight, bias):
        """In the input's type; means and deviations in fp32."""
        x = self.wide(x)
        rows = rows_of(x)
        w, b = self.weight(weight), self.weight(bias)
        y, mean, deviation = self.run(
            [x, w, b], [(x.shape, x.item), ((rows,), 4), ((rows,), 4)], us=cost(2 * x.size)
        )
        if self.needs(x, w, b):
            sizes = [t.size if t.source is not None else None for t in (x, w, b)]

            def rule(back, gradients):
                out = [back.alloc(size) if size is not None else None for size in sizes]
                back.spend(cost(4 * y_size))
                return out

            y_size = y.size
            self.node(rule, [x, w, b], [y], [x, mean, deviation])
        return y

    def rms_norm(self, x, weight):
        x = self.wide(x)
        rows = rows_of(x)
        w = self.weight(weight)
        y, deviation = self.run([x, w], [(x.shape, x.item), ((rows,), 4)], us=cost(2 * x.size))
        if self.needs(x, w):
            sizes = [t.size if t.source is not None else None for t in (x, w)]
            moved = 4 * x.size

            def rule(back, gradients):
                out = [back.alloc(size) if size is not None else None for size in sizes]
                back.spend(cost(moved))
                return out

            self.node(rule, [x, w], [y], [x, deviation])
        return y

    # ---- attention ----

    def attention(self, query, key, value, samples, heads, kv_heads, lengths, dropout=0.0):
        """scaled_dot_product_attention by cuDNN; lengths: of the queries, of the keys."""
        value, key, query = (self.used(t) for t in (value, key, query))  # the last is cast first
        rows, columns = lengths
        width = query.count // (samples * heads * rows)
        shape = (samples, rows, heads * width)
        # Sums for backward are made only where gradients are recorded.
        sums_shape = (samples * heads * rows if self.training else 0,)
        seed, offset, y, sums = self.run(
            [query, key, value],
            [((1,), 8), ((1,), 8), (shape, query.item), (sums_shape, 4)],
            work=(256,),
            us=cost(
                query.size + key.size + value.size, 4 * samples * heads * rows * columns * width
            ),
        )
        sums.storage.late = self.segment is not None and self.segment.reentrant
        if self.needs(query, key, value):
            sizes = (query.size, key.size, value.size)
            work = samples * heads * rows * (4 * width + 4) + 256
            us = 2.5 * self.operators[-1].us

            def rule(back, gradients):
                out = [back.alloc(size) for size in sizes]
                back.temporary(work)
                back.spend(us)
                return out

            self.node(
                rule,
                [query, key, value],
                [y],
                [query, key, value, sums, y, offset, seed],
            )
        return y

    def concatenate(self, tensors, shape):
        """cat, in the widest of their types: gradients are views of the whole's."""
        item = max(tensor.item for tensor in tensors)
        (y,) = self.run(tensors, [(shape, item)], us=cost(sum(t.size for t in tensors)))
        if self.needs(*tensors):
            dense = tensors[0].shape[1:] == tuple(shape)[1:]  # joined along the first side
            sizes = [None if t.source is None else t.size for t in tensors]
            casts = [t.item != item for t in tensors]

            def part(back, whole, size, cast):
                if size is None:
                    return None
                return back.alloc(size) if cast else back.part(whole, size, dense)

            def rule(back, g):
                return [part(back, g[0], size, cast) for size, cast in zip(sizes, casts)]

            self.node(rule, tensors, [y], [])
        return y
