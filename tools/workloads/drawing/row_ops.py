"""Operators of torch that take, add, sort and count rows by index."""

from drawing.dense_ops import Dense, rows_of
from drawing.graph import Tensor, cost
from drawing.workspace import sort_workspace


class Rows(Dense):
    """A graph with these operators, too."""

    def sort_rows(self, keys, count):
        """argsort of so many int64: values, order, a copy, and a workspace that goes with the copy."""
        values, order, _ = self.run(
            [keys], [((count,), 8)] * 3, work=(sort_workspace(count),), us=20
        )
        return values, order

    def top(self, x, chosen):
        """topk of each row: values of x's type and int64 indices."""
        rows = rows_of(x)
        values, indices = self.run([x], [((rows, chosen), x.item), ((rows, chosen), 8)])
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [values], [indices])
        return values, indices

    def count_bins(self, values, bins):
        """bincount(...).tolist(): least and most, and the counts."""
        self.run([values], [], work=(8,))
        self.run([values], [], work=(8,))
        self.run([values], [], work=(8 * bins,), us=20)

    def gather(self, x, index, count):
        """x[index]: the gradient is zeros, into which rows are added in the index's sorted order."""
        (y,) = self.run([x, index], [((count,) + x.shape[1:], x.item)], us=cost(2 * x.size))
        if self.needs(x):
            size, moved = x.size, 2 * y.size

            def rule(back, gradients):
                result = back.alloc(size)
                wrapped, linear = back.alloc(8 * count), back.alloc(8 * count)
                back.free(wrapped)
                held = [linear] + back.in_order(gradients[0])
                held += [back.alloc(8 * count) for _ in range(3)]
                back.temporary(16 * count + 8703)
                back.spend(cost(moved) + 20)
                for storage in reversed(held):
                    back.free(storage)
                return [result]

            self.node(rule, [x], [y], [index])
        return y

    def select(self, x, index, count):
        """x.index_select(0, index): the gradient is zeros, into which rows are added in any order."""
        (y,) = self.run([x, index], [((count,) + x.shape[1:], x.item)], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [index])
        return y

    def scatter_add(self, x, index, rows):
        """scatter_add_ into zeros of so many rows; the gradient is a gather, and x is not saved."""
        (zeros,) = self.run([], [((rows,) + x.shape[1:], x.item)])
        self.run([zeros, x, index], [], us=cost(2 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [zeros], [index])
        return zeros

    def sum_groups(self, x, shape):
        """Sums of as many rows in turn as give the shape; the gradient is repeated by a copy."""
        (y,) = self.run([x], [(shape, x.item)], us=cost(x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [y], [])
        return y

    def add_at(self, total, x, index):
        """total.index_add_(0, index, x), in place; x is saved for its shape."""
        self.run([total, x, index], [], us=cost(3 * x.size))
        y = Tensor(total.storage, total.shape, total.item)
        if self.needs(total, x):
            wants, size = total.source is not None, x.size

            def rule(back, g):
                part = back.alloc(size)
                back.spend(cost(2 * size))
                return [back.share(g[0]) if wants else None, part]

            self.node(rule, [total, x], [y], [x, index])
        return y

    def embedding(self, tokens, weight):
        w = self.weight(weight)
        (y,) = self.run(
            [tokens, w],
            [(tokens.shape + (weight.shape[1],), weight.item)],
            us=cost(2 * tokens.count * weight.shape[1] * weight.item),
        )
        if self.needs(w):
            self.node(embedding_rule(tokens.count, weight), [w], [y], [tokens])
        return y


def embedding_rule(count, weight):
    """embedding_dense_backward: sorted by token from 3,072 tokens on."""

    def rule(back, gradients):
        if count <= 3072:
            result = back.alloc(weight.size)
            back.spend(cost(weight.size))
            return [result]
        sort = [back.alloc(8 * count) for _ in range(3)]
        back.temporary(sort_workspace(count))
        back.free(sort.pop())
        result = back.alloc(weight.size)
        counts = [back.alloc(8 * count), back.alloc(8)]
        work = back.alloc(8 * count)
        back.temporary(1279)
        back.free(work)
        segments = [back.alloc(8 * count), back.alloc(8 * count)]
        back.temporary(1279 if count <= 16384 else 1535)
        number = back.alloc(8)
        parts = min(count, weight.shape[0]) + count // 10
        starts = back.alloc(8 * parts)
        back.temporary(4 * parts * weight.shape[1])
        back.spend(cost(2 * weight.size))
        for storage in [starts, number] + segments[::-1] + counts[::-1] + sort[::-1]:
            back.free(storage)
        return [result]

    return rule
