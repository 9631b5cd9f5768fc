"""Attention written out as operators, as transformers' attn_implementation="eager" has it.

Tensors are (samples, tokens, heads * width); the heads are brought before the tokens by views. A
batched product wants its factors' samples and heads as one side, so with more than one sample it
copies those that are such views; the gradients of the copies are views again.
"""


def causal_mask(ops, samples, rows, columns, item):
    """What is added to scores: made of one of truth values, once a forward."""
    (allowed,) = ops.run([], [((samples, rows, columns), 1)])
    (mask,) = ops.run([allowed], [((samples, rows, columns), item)])
    return mask


def in_one(ops, x, samples):
    """A view with its heads first, as a batched product's factor."""
    return ops.copied(x) if samples > 1 else x


def attend(ops, tensors, samples, heads, kv_heads, lengths, mask, dropout, wide):
    """The result, and the chances, which the caller keeps. `tensors`: queries, keys and values;
    `wide`: softmax is asked for in fp32, in one expression with the cast back."""
    query, key, value = tensors
    rows, columns = lengths
    operations = 2 * query.count * columns
    repeated = kv_heads < heads
    if repeated:
        key, value = (ops.repeated(t, heads // kv_heads) for t in (key, value))
    right, left = casts = ops.used(key), ops.used(query)  # the last argument is cast first
    left = in_one(ops, left, samples)
    right = right if repeated else in_one(ops, right, samples)
    shape = (samples, heads, rows, columns)
    scores = ops.matmul(left, right, shape, operations)
    ops.hold(*casts)
    scores = ops.add(ops.unary(scores, "nothing"), mask)
    chances = ops.softmax(ops.to(scores, 4) if wide else scores)
    chances = ops.to(chances, query.item)
    if wide:
        ops.hold(scores)
    chances = ops.dropout(chances, dropout)
    right, left = ops.used(value), ops.used(chances)
    right = right if repeated else in_one(ops, right, samples)
    y = ops.matmul(left, right, (samples, rows, query.count // (samples * rows)), operations)
    if samples > 1:
        y = ops.permuted(y)
    y = ops.copied(y)
    if repeated:
        ops.hold(key, value)
    return y, chances
