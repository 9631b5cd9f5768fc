"""A graph network over batches of graphs: messages along edges, summed where they arrive.

Shape: (nodes, edges).
"""

from drawing.layers import Linear, Norm
from drawing.model import Model


class Messages:
    def __init__(self, weights, config):
        hidden = config["hidden"]
        self.rows_by = config["rows_by"]
        self.norm = Norm(weights, hidden, "layer")
        self.one = Linear(weights, 3 * hidden, hidden)
        self.two = Linear(weights, hidden, hidden)
        self.score = Linear(weights, hidden, 1) if config["graph_attention"] else None
        self.edge = Linear(weights, hidden, hidden)
        self.up = Linear(weights, 2 * hidden, 2 * hidden)
        self.down = Linear(weights, 2 * hidden, hidden)

    def __call__(self, ops, nodes, edges, ends):
        count, hidden = edges.shape
        normed = self.norm(ops, nodes)
        take = {"select": ops.select, "index": ops.gather}[self.rows_by]
        source, target = take(normed, ends[0], count), take(normed, ends[1], count)
        both = ops.concatenate([source, target, edges], (count, 3 * hidden))
        message = self.two(ops, ops.unary(self.one(ops, both)))
        ops.hold(both)
        if self.score is not None:
            message = ops.multiply(message, ops.unary(self.score(ops, message), "output"))
        sums = ops.scatter_add(message, ends[1], nodes.shape[0])
        ops.hold(source, target)
        both = ops.concatenate([normed, sums], (nodes.shape[0], 2 * hidden))
        nodes = ops.add(nodes, self.down(ops, ops.unary(self.up(ops, both))))
        edges = ops.add(edges, self.edge(ops, message))
        ops.hold(normed, sums, both)
        return nodes, edges


class GraphNet(Model):
    def build(self):
        config, weights = self.config, self.weights
        hidden = config["hidden"]
        self.nodes = Linear(weights, config["features"], hidden)
        self.edges = Linear(weights, 16, hidden)
        self.layers = [Messages(weights, config) for _ in range(config["layers"])]
        self.out = [Linear(weights, hidden, hidden), Linear(weights, hidden, 1)]

    def batch(self, shape):
        nodes, edges = shape
        return [
            4 * nodes * self.config["features"],
            4 * edges * 16,
            8 * edges,
            8 * edges,
            4 * nodes,
        ]

    def piece(self, ops, stage, shape):
        count, edges = shape
        features = ops.input((count, self.config["features"]), 4)
        marks = ops.input((edges, 16), 4)
        ends = [ops.input((edges,), 8) for _ in range(2)]
        wanted = ops.input((count,), 4)
        x = self.nodes(ops, self.cast(ops, features))
        y = self.edges(ops, self.cast(ops, marks))
        for layer in self.layers:
            x, y = layer(ops, x, y, ends)
        x = self.out[1](ops, ops.unary(self.out[0](ops, x)))
        off = ops.add(ops.to(x, 4), ops.view(wanted, (count, 1)))
        return ops.mean(ops.power(off))

    def cast(self, ops, x):
        return x if self.config["precision"] == "autocast" else ops.to(x, 2)
