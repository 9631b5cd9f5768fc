"""All operators of torch that models of language and of graphs use, and their losses."""

from drawing.graph import cost
from drawing.row_ops import Rows


class Ops(Rows):
    """A graph with torch's operators."""

    def cross_entropy(self, logits, targets):
        """Of fp32 scores: log_softmax and its negative likelihood."""
        (logs,) = self.run([logits], [(logits.shape, 4)], us=cost(2 * logits.size))
        if self.needs(logits):
            self.node(self.passing_copy(logits), [logits], [logs], [logs])
        loss, weight = self.run([logs, targets], [((1,), 4), ((1,), 4)])
        if self.needs(logs):
            self.node(
                self.passing_copy(logs, logs.size), [logs], [loss], [targets, weight, logs]
            )
        return loss

    def mean(self, x):
        """One number of many: its gradient is expanded and spread anew by what comes before."""
        (y,) = self.run([x], [((1,), x.item)], us=cost(x.size))
        if self.needs(x):
            self.node(self.passing_copy(x, x.size), [x], [y], [])
        return y

    def sum(self, x):
        """One number of many: its gradient is a view of the number's."""
        (y,) = self.run([x], [((1,), x.item)], us=cost(x.size))
        if self.needs(x):
            self.node(lambda back, g: [back.view(back.share(g[0]))], [x], [y], [])
        return y

    def cross_entropy_with_logits(self, x, targets):
        """binary_cross_entropy_with_logits of each element: a logarithm is there until the result is
        (on a CPU a buffer, too)."""
        targets, x = self.wide(targets), self.wide(x)  # the last argument is cast first
        _, loss = self.run([x, targets], [(x.shape, x.item)] * 2, us=cost(4 * x.size))
        if self.needs(x):
            self.node(self.passing_copy(x), [x], [loss], [x, targets])
        return loss

    def sum_of(self, losses):
        total = losses[0]
        for loss in losses[1:]:
            total = self.add(total, loss)
        return total
