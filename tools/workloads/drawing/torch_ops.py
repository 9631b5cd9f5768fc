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
            size = logs.size

            def rule(back, gradients):
                result = back.alloc(size)
                back.spend(cost(size))
                return [result]

            self.node(rule, [logs], [loss], [targets, weight, logs])
        return loss

    def mean(self, x):
        """One number of many: its gradient is expanded and spread anew by what comes before."""
        (y,) = self.run([x], [((1,), x.item)], us=cost(x.size))
        if self.needs(x):
            size = x.size

            def rule(back, gradients):
                result = back.alloc(size)
                back.spend(cost(size))
                return [result]

            self.node(rule, [x], [y], [])
        return y

    def sum_of(self, losses):
        total = losses[0]
        for loss in losses[1:]:
            total = self.add(total, loss)
        return total
