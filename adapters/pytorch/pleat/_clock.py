"""How long an operator takes, of a program under `pleat estimate`: what passes on its recording's clock.

It is as long as a program takes to launch one, or, where that is longer, as an H200 takes to move its tensors or to
do its products. The rates are those of drawn jobs (tools/workloads/drawing/graph.py, D507), which are near enough to
weigh what waits for the driver against the time of an iteration; they foretell no iteration's seconds.
"""

LAUNCH_US = 20.0
MEMORY_RATE = 4e6  # bytes a microsecond
PRODUCT_RATE = 6e8  # floating-point operations a microsecond, of numbers of at most two bytes
PRODUCT_RATE_WIDE = 5e7  # of wider ones
# Of aten's operators those that multiply matrices, the first one of which is the last argument but one.
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation", "addmv", "mv")
ATTENTION = ("_scaled_dot_product", "_flash_attention", "_efficient_attention")


def operations(name, args, made):
    """Floating-point operations of a product, a convolution or attention; 0 of any other operator, which moves more
    than it computes. made: the first tensor that it returns."""
    if name in PRODUCTS:
        return 2 * made.numel() * args[-2].size(-1)
    if name == "_scaled_mm":
        return 2 * made.numel() * args[0].size(-1)
    if name in ("convolution", "convolution_backward"):
        backward = name.endswith("backward")
        weight = args[1 + backward]
        transposed = args[7 if backward else 6]
        places = args[1 if backward else 0] if transposed else args[0] if backward else made
        return (2 + 2 * backward) * places.numel() * weight.numel() // max(1, weight.size(0))
    if name.startswith(ATTENTION):
        backward = name.endswith("backward")
        query, key = args[backward], args[1 + backward]
        return (10 if backward else 4) * query.numel() * key.size(-2)
    return 0


def microseconds(name, args, tensors, made):
    """tensors: all on the GPU that it is given or returns, each as often as it moves; made: those it returns."""
    moved = sum(one.numel() * one.element_size() for one in tensors)
    wide = bool(made) and made[0].element_size() > 2
    products = operations(name, args, made[0]) if made else 0
    return max(LAUNCH_US, moved / MEMORY_RATE, products / (PRODUCT_RATE_WIDE if wide else PRODUCT_RATE))
