"""How long an operator takes, of a program under `pleat estimate`: what passes on its recording's clock.

It is as long as a program takes to launch one, or, where that is longer, as an H200 takes to move its tensors or to
do its products. The rates are those of drawn jobs (tools/workloads/drawing/graph.py, D507). What is told so is near
enough to weigh what waits for the driver against the time of an iteration, and foretells no iteration's seconds.
"""

LAUNCH_US = 20.0
MEMORY_RATE = 4e6  # bytes a microsecond
PRODUCT_RATE = 6e8  # floating-point operations a microsecond, of numbers of at most two bytes
PRODUCT_RATE_WIDE = 5e7  # of wider ones
# Of aten's operators those that multiply matrices, and which argument the first one is.
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "_int_mm": 0, "_scaled_mm": 0, "_scaled_mm_v2": 0, "_grouped_mm": 0,
            "_scaled_grouped_mm": 0, "addmm": 1, "baddbmm": 1, "addmv": 1, "_addmm_activation": 1}
# Attention by heads and length, and by length and heads, where the longest of packed sequences is an argument.
ATTENTION, ATTENTION_DIRECT = "_scaled_dot_product", ("_flash_attention", "_efficient_attention")
# Those that read a part of what they are given, and those that write into a part of it.
READ_PARTS = frozenset(("embedding", "index", "index_select", "gather", "take", "take_along_dim"))
WRITE_PARTS = frozenset(("index_put_", "_index_put_impl_", "index_copy_", "index_add_", "index_fill_", "scatter_",
                         "scatter_add_", "scatter_reduce_", "masked_scatter_"))


def products(name, args, made):
    """Floating-point operations of an operator that multiplies, and the tensor whose numbers it multiplies; 0 of any
    other, which moves more than it computes. made: the first tensor that it returns."""
    backward = name.endswith("backward")
    if name in PRODUCTS:
        first = args[PRODUCTS[name]]
        groups = made.size(0) if "grouped" in name and made.dim() > first.dim() else 1
        return 2 * made.numel() * first.size(-1) // max(1, groups), first
    if name in ("convolution", "convolution_backward"):
        weight = args[1 + backward]
        transposed = args[7 if backward else 6]
        places = args[1 if backward else 0] if transposed else args[0] if backward else made
        return (2 + 2 * backward) * places.numel() * weight.numel() // max(1, weight.size(0)), weight
    times = 10 if backward else 4
    if name.startswith(ATTENTION):
        return times * args[backward].numel() * args[1 + backward].size(-2), args[backward]
    if name.startswith(ATTENTION_DIRECT):
        query, key = args[backward], args[1 + backward]
        packed = key.dim() == 3
        return times * query.numel() * (args[9 if backward else 6] if packed else key.size(-3)), query
    return 0, made


def moved_bytes(name, given, made):
    """given, made: tensors on the GPU that it is given and returns."""
    if name in READ_PARTS:
        given = made
    elif name in WRITE_PARTS:
        given, made = given[1:], given[1:]
    return sum(one.numel() * one.element_size() for tensors in (given, made) for one in tensors)


def microseconds(name, args, given, made):
    operations, factor = products(name, args, made[0]) if made else (0, None)
    rate = PRODUCT_RATE if operations == 0 or factor.element_size() <= 2 else PRODUCT_RATE_WIDE
    return max(LAUNCH_US, moved_bytes(name, given, made) / MEMORY_RATE, operations / rate)
