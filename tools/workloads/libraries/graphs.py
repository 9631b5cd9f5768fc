"""A graph network of torch-geometric over batches of graphs, whose numbers of nodes and edges are
drawn: no two iterations have the same sizes."""

import torch
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_mean_pool
from torch_geometric.nn.models import GAT, GIN, GCN, GraphSAGE

from libraries import common

MODELS = {"sage": GraphSAGE, "gin": GIN, "gcn": GCN, "gat": GAT}
FEATURES, KINDS = 128, 32


class Drawn:
    """number -> the microbatches of an iteration: several graphs as one, which is not connected."""

    def __init__(self, options, shape):
        self.shape, self.draws = shape, common.Draw(options, "graphs")
        seed = torch.Generator().manual_seed(options.seed)
        self.features = torch.randn(2 * shape.nodes, FEATURES, generator=seed)
        self.bits = seed

    def graph(self):
        nodes = common.length(self.draws, self.shape.lengths, self.shape.nodes)
        edges = int(nodes * self.shape.degree * self.draws.uniform(0.5, 1.5))
        ends = torch.randint(nodes, (2, edges), generator=self.bits)
        begin = self.draws.randrange(self.shape.nodes)
        kind = torch.tensor([self.draws.randrange(KINDS)])
        return Data(x=self.features[begin : begin + nodes], edge_index=ends, y=kind)

    def __call__(self, number):
        for _ in range(self.shape.microbatches):
            whole = Batch.from_data_list([self.graph() for _ in range(self.shape.rows)])
            yield {"x": whole.x, "edges": whole.edge_index, "batch": whole.batch, "y": whole.y}


class Classifier(torch.nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.body = MODELS[shape.model](
            FEATURES, shape.hidden, shape.layers, shape.hidden, norm=shape.norm, jk="cat"
        )
        self.head = torch.nn.Linear(shape.hidden, KINDS)

    def forward(self, x, edges, batch, y):
        nodes = self.body(x, edges)
        return functional.cross_entropy(self.head(global_mean_pool(nodes, batch, len(y))), y)


def graphs(options):
    draw = common.Draw(options)
    shape = common.shape(
        options, dict(hidden=16, nodes=50, rows=3, degree=4), model=draw.choice(sorted(MODELS)),
        hidden=draw.choice((128, 192, 256)), layers=draw.step(3, 6, 1), nodes=6000,
        degree=draw.choice((8, 12, 16)), rows=draw.step(16, 32, 8), microbatches=draw.choice((1, 2)),
        lengths=draw.choice(common.LENGTHS), norm=draw.choice((None, "layer_norm", "batch_norm")),
        optimizer=draw.choice(common.OPTIMIZERS[:2]),
    )  # fmt: skip
    with torch.device(options.device):
        made = Classifier(shape)
    return common.Loop(options, shape, made, lambda model, batch: model(**batch), Drawn(options, shape))
