"""Memory that kernels take for a moment, or a library for good, on an H200."""

PROCESSORS = 132
# What a thread's first product allocates for good, and its first with a bias besides.
LIBRARIES = {"cublas": (32 << 20,), "cublaslt": (32 << 20, 1 << 20)}


def reduce_workspace(outputs, rows):
    """Bytes that a sum of `rows` rows into so many outputs takes for its blocks, and for their
    semaphores: ATen/native/cuda/Reduce.cuh's setReduceConfig for a reduction over the slow side."""
    width = 32 * 4  # threads in a row, and outputs of each
    grid = -(-outputs // width)
    each = -(-rows // 4)  # values that a thread would sum
    if each < 256:
        return ()
    wanted = -(-PROCESSORS * 16 // grid)
    blocks = max(min(wanted, -(-each // 16)), -(-each // 256))
    if blocks <= 1:
        return ()
    return (4 * outputs * blocks * width, 4 * grid)


def sort_workspace(count):
    """Bytes that CUB's radix sort of so many pairs of int64 takes: a second buffer of each, and
    the digits' counts by block (as recorded for 4,096 to 24,576 pairs)."""
    return 16 * count + count // 4 + 16895
