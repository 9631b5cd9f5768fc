"""Whether a block that is computed again gives what its first run gave, by some of each result (D630)."""

from .offload import tensors
from .state import look

SOME = 1024  # elements of a result
NOISE = {8: 2.0**-10, 4: 2.0**-10, 2: 2.0**-6, 1: 2.0**-2}  # by an element's bytes: what atomic additions may bring
FEW = 8  # of the elements one in so many may differ by more than that


def sample(torch, tensor):
    """Some of a tensor's elements; None of one that cannot be indexed, or has none."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout is not torch.strided or tensor.is_meta:
        return None
    part, left = tensor.detach(), SOME
    for dimension in reversed(range(part.dim())):
        size = part.shape[dimension]
        taken = max(min(size, round(left ** (1 / (dimension + 1)))), 1)
        part, left = part[(slice(None),) * dimension + (slice(None, None, -(-size // taken) or 1),)], max(left // taken, 1)
    return part.clone()


def samples(torch, result):
    """Of all tensors that a result is made of."""
    found, _ = look(torch, (result,), lambda one: True)
    parts = {id(one): one for whole in (result, *(list(store.parts()) for store in found)) for one in tensors(torch, whole)}
    return [sample(torch, one) for one in parts.values()]


def is_exact(torch, one):
    """Whether another run gives the same bits: operators of a GPU may add in any order."""
    return one.device.type == "cpu" or torch.are_deterministic_algorithms_enabled() or not one.is_floating_point()


def is_like(torch, one, other):
    if one is None or other is None:
        return True  # nobody can tell
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    noise = 0 if is_exact(torch, one) else NOISE[one.element_size()]
    one, other = one.double(), other.double()
    size = one.abs() + one.square().mean().sqrt().nan_to_num(0, 0, 0)
    is_other = ((one - other).abs() > noise * size) & (one != other)
    is_other |= one.isnan() != other.isnan()
    return int(is_other.sum()) <= (0 if noise == 0 else one.numel() // FEW)


def are_like(torch, some, others):
    return len(some) == len(others) and all(is_like(torch, one, other) for one, other in zip(some, others))
