"""Layers of models as sequences of operators: projections, attention, feed-forward, experts."""

from drawing import eager
from drawing.parameter import Parameter


class Weights:
    """The parameters of a model, in the order in which they are made."""

    def __init__(self, item):
        self.item = item
        self.all = []
        self.buffers = []  # bytes of what stays beside them
        self.training = True

    def make(self, *shape, item=None):
        parameter = Parameter(len(self.all), shape, item or self.item, self.training)
        self.all.append(parameter)
        return parameter


class Linear:
    def __init__(self, weights, inputs, outputs, bias=True):
        self.weight = weights.make(outputs, inputs)
        self.bias = weights.make(outputs) if bias else None

    def __call__(self, ops, x):
        return ops.linear(x, self.weight, self.bias)


class Adapted:
    """A frozen projection with two thin trained ones beside it, as peft's LoRA."""

    def __init__(self, weights, inputs, outputs, bias=True):
        self.base = Linear(weights, inputs, outputs, bias)
        self.sides = (inputs, outputs)

    def adapt(self, weights, rank, dropout, item, scaled=True):
        """Once all of the model is there, the thin ones are made."""
        self.down = weights.make(rank, self.sides[0], item=item)
        self.down.scaled = True
        self.up = weights.make(self.sides[1], rank, item=item)
        self.down.place = self.up.place = self.base.weight.place + 0.5
        self.item = item
        self.dropout = dropout
        self.scaled = scaled

    def __call__(self, ops, x):
        y = self.base(ops, x)
        x = ops.to(x, self.item)
        thin = ops.linear(ops.linear(ops.dropout(x, self.dropout), self.down), self.up)
        if self.scaled:
            thin = ops.unary(thin, "nothing")
        out = ops.to(ops.add(y, thin), y.item)
        ops.hold(x)
        return out


class Norm:
    def __init__(self, weights, width, kind):
        self.weight = weights.make(width)
        self.bias = weights.make(width) if kind == "layer" else None
        self.parts = kind == "rms-parts"

    def __call__(self, ops, x):
        if self.parts:
            return self.in_parts(ops, x)
        if self.bias is None:
            return ops.rms_norm(x, self.weight)
        return ops.layer_norm(x, self.weight, self.bias)

    def in_parts(self, ops, x):
        """RMSNorm written out in fp32, as transformers' models have it."""
        wide = ops.to(x, 4)
        mean = ops.mean_rows(ops.power(wide))
        scale = ops.power(ops.copied(mean), "output")
        scaled = ops.multiply(wide, scale)
        y = ops.multiply(ops.weight(self.weight), ops.to(scaled, x.item))
        ops.hold(scaled)
        ops.hold(mean)
        return y


class Rotary:
    """Angles of positions, made once a forward, and queries turned by them."""

    @staticmethod
    def item(ops):
        """Bytes of an angle's element: the residual's type is theirs, and that of what they turn."""
        return 4 if ops.autocast else ops.ITEM

    @staticmethod
    def angles(ops, length, width):
        (halves,) = ops.run([], [((length, width // 2), 4)])
        (both,) = ops.run([halves], [((length, width), 4)])
        # The cosines, and the sines, times a scale.
        scaled = [ops.copied(*ops.run([both], [((length, width), 4)])) for _ in range(2)]
        out = [ops.to(angle, Rotary.item(ops)) for angle in scaled]
        ops.hold(halves, both, *scaled)
        return out

    @staticmethod
    def turn(ops, x, angles):
        """x has its heads before its places already."""
        cosine, sine = angles
        straight = ops.multiply(x, cosine)
        half = x.shape[:-1] + (x.shape[-1] // 2,)
        one, two = ops.slice(x, half), ops.slice(x, half)
        other = ops.concatenate([ops.unary(two, "nothing"), one], x.shape)
        return ops.add(straight, ops.multiply(other, sine))


def attend(ops, config, tensors, heads, lengths, mask, dropout=0.0):
    """Attention's result for queries, keys and values, and what else of it the caller keeps.
    `heads`: of the queries, of the keys."""
    samples = tensors[0].shape[0]
    if config["attention"] == "eager":
        wide = config["wide_softmax"]
        return eager.attend(ops, tensors, samples, *heads, lengths, mask, dropout, wide)
    return ops.attention(*tensors, samples, *heads, lengths, dropout), None


class Attention:
    """Self-attention, its queries, keys and values by one projection or by three."""

    def __init__(self, weights, config, linear):
        hidden, heads = config["hidden"], config["heads"]
        self.heads, self.kv_heads = heads, config.get("kv_heads") or heads
        self.width = hidden // heads
        bias = config["bias"]
        self.config = config
        self.eager = config["attention"] == "eager"
        self.fused = config["fused"]
        narrow = self.kv_heads * self.width
        if self.fused:
            self.mixed = linear(weights, hidden, hidden + 2 * narrow, bias)
        else:
            self.three = [linear(weights, hidden, n, bias) for n in (hidden, narrow, narrow)]
        self.out = linear(weights, hidden, hidden, bias)
        self.dropout = config["dropout"]

    def project(self, ops, x, angles):
        samples, length, hidden = x.shape
        narrow = self.kv_heads * self.width
        if self.fused:
            mixed = self.mixed(ops, x)
            if not self.eager:
                # Heads come before places: the gradient of the permuted view is put in order again.
                mixed = ops.permuted(mixed)
            three = ops.parts(mixed, (hidden, narrow, narrow), lambda n: (samples, length, n))
            return self.apart(ops, three) if self.eager else three
        three = []
        for number, project in enumerate(self.three):
            y = project(ops, x)
            turned = angles is not None and number < 2
            # Of one sample's keys eager attention's gradient is transposed, and a view in this order, too.
            viewed = number == 1 and samples == 1 and hidden == narrow
            three.append(ops.permuted(y) if turned or (self.eager and not viewed) else y)
        if angles is not None:
            query, key = three[:2]
            three[:2] = Rotary.turn(ops, query, angles), Rotary.turn(ops, key, angles)
            ops.hold(query)
            ops.hold(key)
        return three

    @staticmethod
    def apart(ops, three):
        """Heads before places: the gradients of what a product has as its second factor come in an
        order that joining the three again copies anyway."""
        query, key, value = three
        value = ops.permuted(value)
        return ops.permuted(query), key, value

    def __call__(self, ops, x, angles=None, mask=None):
        """The result, and what the caller keeps of it."""
        length = x.shape[1]
        tensors = self.project(ops, x, angles)
        heads = (self.heads, self.kv_heads)
        y, kept = attend(ops, self.config, tensors, heads, (length, length), mask, self.dropout)
        out = self.out(ops, y)
        ops.hold(*tensors)
        ops.hold(y)
        return out, kept


class CrossAttention:
    """Queries from one sequence, keys and values from another."""

    def __init__(self, weights, config, linear):
        hidden = config["hidden"]
        self.heads = config["heads"]
        self.config = config
        self.eager = config["attention"] == "eager"
        self.query = linear(weights, hidden, hidden, config["bias"])
        self.both = linear(weights, hidden, 2 * hidden, config["bias"])
        self.out = linear(weights, hidden, hidden, config["bias"])

    def __call__(self, ops, x, memory, mask=None):
        """The result, and what the caller keeps of it."""
        _, length, hidden = x.shape
        query = self.query(ops, x)
        both = self.both(ops, memory)
        key, value = ops.parts(both, (hidden, hidden), lambda n: memory.shape[:-1] + (n,))
        if self.eager:
            query, value = ops.permuted(query), ops.permuted(value)
        lengths, heads = (length, memory.shape[1]), (self.heads, self.heads)
        y, kept = attend(ops, self.config, (query, key, value), heads, lengths, mask)
        out = self.out(ops, y)
        ops.hold(query, key, value)
        return out, kept


def gelu_in_parts(ops, x):
    """0.5 * x * (1 + tanh(a * (x + b * x ** 3))), as GPT-2 has it in transformers."""
    half = ops.unary(x, "nothing")
    inside = ops.add(x, ops.unary(ops.power(x), "nothing"))
    curve = ops.unary(ops.unary(inside, "nothing"), "output")
    y = ops.multiply(half, ops.copied(curve))
    ops.hold(x)
    return y


class FeedForward:
    """Two projections with GELU between them, which is one operator or several."""

    def __init__(self, weights, config, linear):
        self.parts = config["mlp"] == "gelu-parts"
        self.up = linear(weights, config["hidden"], config["inner"], config["bias"])
        self.down = linear(weights, config["inner"], config["hidden"], config["bias"])

    def __call__(self, ops, x):
        y = self.up(ops, x)
        y = gelu_in_parts(ops, y) if self.parts else ops.unary(y)
        out = self.down(ops, y)
        ops.hold(y)
        return out


class SwiGLU:
    """Gate and up in one projection (halves of its result) or in two."""

    def __init__(self, weights, hidden, inner, bias, fused, linear):
        self.inner = inner
        self.fused = fused
        if fused:
            self.both = linear(weights, hidden, 2 * inner, bias)
        else:
            self.gate = linear(weights, hidden, inner, bias)
            self.up = linear(weights, hidden, inner, bias)
        self.down = linear(weights, inner, hidden, bias)

    def __call__(self, ops, x):
        if self.fused:
            half = x.shape[:-1] + (self.inner,)
            both = self.both(ops, x)
            gate, up = ops.parts(both, (half, half), lambda shape: shape)
            y = ops.multiply(ops.unary(gate), up)
            out = self.down(ops, y)
            ops.hold(y)
            ops.hold(both)
            return out
        gated = ops.unary(self.gate(ops, x))
        y = ops.multiply(gated, self.up(ops, x))
        out = self.down(ops, y)
        ops.hold(y)
        return out


class Experts:
    """A router, experts of which each token takes some, and perhaps a shared one.

    "sliced": rows are brought into the experts' order, each expert takes its slice, and the results
    are added back. "masked": each expert looks its rows up in a mask and adds them to the output, as
    transformers' Mixtral. "capacity": each expert has the same number of places, and what does not
    fit is dropped, as in GShard.
    """

    def __init__(self, weights, config, linear):
        hidden, bias = config["hidden"], config["bias"]
        self.count, self.chosen = config["experts"], config["chosen"]
        self.way = config["routing"]
        self.factor = config.get("capacity", 1.25)
        self.inner = config["expert_inner"]
        self.router = Linear(weights, hidden, self.count, bias and config.get("router_bias", True))
        if self.way == "capacity":
            self.up = weights.make(self.count, 2 * self.inner, hidden)
            self.down = weights.make(self.count, hidden, self.inner)
        else:
            self.experts = [
                SwiGLU(weights, hidden, self.inner, bias, config["fused"], linear)
                for _ in range(self.count)
            ]
        self.shared = None
        if config.get("shared_inner"):
            self.shared = SwiGLU(
                weights, hidden, config["shared_inner"], bias, config["fused"], linear
            )

    def __call__(self, ops, x, counts):
        tokens = ops.view(x, (x.shape[0] * x.shape[1], x.shape[2]))
        routed = getattr(self, self.way)(ops, tokens, counts)
        return ops.view(routed, x.shape)

    def with_shared(self, ops, routed, tokens):
        if self.shared is None:
            return routed
        return ops.add(routed, self.shared(ops, tokens))

    def route(self, ops, tokens):
        """Weights (fp32) and numbers of the chosen experts."""
        rows = tokens.shape[0]
        scores = self.router(ops, tokens)
        chances = ops.softmax(ops.to(scores, 4))
        weights, chosen = ops.top(chances, self.chosen)
        return weights, chosen, rows * self.chosen

    def sliced(self, ops, tokens, counts):
        weights, chosen, rows = self.route(ops, tokens)
        _, order = ops.sort_rows(chosen, rows)
        (token,) = ops.run([order], [((rows,), 8)])
        ops.count_bins(chosen, self.count)
        taken = ops.gather(tokens, token, rows)
        done = []
        for expert, count in zip(self.experts, counts):
            done.append(expert(ops, ops.slice(taken, (count, tokens.shape[1]))))
        both = ops.concatenate(done, (rows, tokens.shape[1]))
        scale = ops.gather(ops.view(weights, (rows,)), order, rows)
        scaled = ops.multiply(both, ops.to(scale, tokens.item))
        (zeros,) = ops.run([], [(tokens.shape, tokens.item)])
        routed = ops.add_at(zeros, scaled, token)
        both = self.with_shared(ops, routed, tokens)
        ops.hold(weights)
        ops.hold(chosen, *done)
        ops.hold(routed)
        return both

    def masked(self, ops, tokens, counts):
        weights, chosen, rows = self.route(ops, tokens)
        weights = ops.view(ops.to(weights, tokens.item), (rows,))
        (mask,) = ops.run([chosen], [((rows, self.count), 8)])
        (total,) = ops.run([], [(tokens.shape, tokens.item)])
        taken = part = total  # variables, which have the last expert's until there are the next one's
        for expert, count in zip(self.experts, counts):
            (where,) = ops.run([mask], [((2, count), 8)], work=(4 * rows + 512, 8))
            if count == 0:
                continue
            last, taken = taken, ops.gather(tokens, where, count)
            ops.hold(last)
            scale = ops.gather(weights, where, count)
            last, part = part, ops.multiply(expert(ops, taken), ops.view(scale, (count, 1)))
            ops.hold(last)
            total = ops.add_at(total, part, where)
        out = self.with_shared(ops, total, tokens)
        ops.hold(mask, total, taken, part)
        return out

    def capacity(self, ops, tokens, counts):
        weights, chosen, rows = self.route(ops, tokens)
        hidden = tokens.shape[1]
        places = max(4, -(-int(rows * self.factor) // self.count))
        weights = ops.view(ops.to(weights, tokens.item), (rows,))
        (hot,) = ops.run([chosen], [((rows, self.count), 8)])
        (sums,) = ops.run([hot], [((rows, self.count), 8)])
        (index,) = ops.run([hot, sums, chosen], [((rows,), 8)])
        (filled,) = ops.run([index], [((self.count * places,), 8)])
        x = ops.gather(tokens, filled, self.count * places)
        many = self.count * places
        operations = 4 * many * hidden * self.inner
        both = ops.matmul(x, ops.used_weight(self.up), (many, 2 * self.inner), operations)
        half = (many, self.inner)
        gate, up = ops.parts(both, (half, half), lambda shape: shape)
        y = ops.multiply(ops.unary(gate), up)
        y = ops.matmul(y, ops.used_weight(self.down), (many, hidden), operations // 2)
        back = ops.multiply(ops.gather(y, index, rows), weights)
        return self.with_shared(ops, ops.sum_groups(back, tokens.shape), tokens)


class Block:
    """Attention and feed-forward, each with its norm before it and added to what comes in."""

    def __init__(self, weights, config, linear=Linear, number=0):
        kind = config["norm"]
        self.norms = [None, None]
        self.dropout = config["dropout"]
        self.moe = bool(config.get("experts")) and number % config.get("expert_every", 1) == 0
        self.norms[0] = Norm(weights, config["hidden"], kind)
        if config["weights_in_groups"]:
            self.norms[1] = Norm(weights, config["hidden"], kind)
        self.attention = Attention(weights, config, linear)
        if self.norms[1] is None:
            self.norms[1] = Norm(weights, config["hidden"], kind)
        if self.moe:
            self.mlp = Experts(weights, config, linear)
        elif config["mlp"] != "swiglu":
            self.mlp = FeedForward(weights, config, linear)
        else:
            self.mlp = SwiGLU(
                weights, config["hidden"], config["inner"], config["bias"], config["fused"], linear
            )
        self.again = {"attention": (True, False), "mlp": (False, True)}.get(
            config["recompute"], (False, False)
        )

    def attend(self, ops, x, angles, mask):
        """The result, and what a variable keeps until the block ends."""
        normed = self.norms[0](ops, x)
        y, kept = self.attention(ops, normed, angles, mask)
        ops.hold(normed)
        return ops.dropout(y, self.dropout), kept

    def feed(self, ops, x, counts):
        normed = self.norms[1](ops, x)
        y = self.mlp(ops, normed, counts) if self.moe else self.mlp(ops, normed)
        ops.hold(normed)
        return ops.dropout(y, self.dropout)

    def __call__(self, ops, x, counts=None, angles=None, mask=None):
        first, left = x, []
        cosine, sine = angles or (None, None)

        def attend(x, cosine, sine, mask):
            y, kept = self.attend(ops, x, None if cosine is None else (cosine, sine), mask)
            if kept is not None:
                # Attention that runs again keeps what is its own to itself.
                ops.hold(kept) if self.again[0] else left.append(kept)
            return y

        def feed(x):
            return self.feed(ops, x, counts)

        x = ops.add(x, ops.checkpoint(attend, x, cosine, sine, mask, again=self.again[0]))
        x = ops.add(x, ops.checkpoint(feed, x, again=self.again[1]))
        ops.hold(first, *left)
        return x
