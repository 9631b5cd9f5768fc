"""A model's blocks, which are found by their classes, and the hooks by which they and their model ask what to do."""

import functools

FEWEST = 2  # modules of a class side by side that are a model's blocks
CACHES = ("cache", "past_key_value", "past_key_values", "layer_past")  # names by which one is passed


def is_layer(module):
    """Whether it is a layer of transformers' that asks at each call whether to checkpoint."""
    return any(kind.__name__ == "GradientCheckpointingLayer" for kind in type(module).__mro__)


def owners(torch, model):
    """The modules that call layers of transformers': those around the lists that these are in."""
    parents = {child: part for part in model.modules() for child in part.children()}
    found = {parents[part] for part in model.modules() if is_layer(part) and part in parents}
    while lists := {part for part in found if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)) and part in parents}:
        found = found - lists | {parents[part] for part in lists}
    return found


def repeated(torch, module):
    """The children of a list or a sequence that are its blocks: of each class that comes more than once."""
    if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
        return []
    children = [child for child in module
                if next(child.parameters(), None) is not None and not isinstance(child, torch.jit.ScriptModule)]
    counts = {}
    for child in children:
        counts[type(child)] = counts.get(type(child), 0) + 1
    return [child for child in children if counts[type(child)] >= FEWEST]


def find(torch, root):
    """The blocks below `root`, in the order of its modules, none of them inside another one."""
    layers = [module for module in root.modules() if is_layer(module)]
    found, inside = [], set()
    for module in root.modules():
        if module in inside:
            continue
        blocks = [module] if is_layer(module) else [] if layers else repeated(torch, module)
        for block in blocks:
            if block not in inside:
                found.append(block)
                inside.update(block.modules())
    return found


class Block:
    """What is known of one of a model's blocks."""

    def __init__(self, number):
        self.number = number
        self.alone = False  # its buffers, or its arguments, change in forward
        self.draws = False  # its forward draws random numbers of Python's or numpy's
        self.forwards = 0  # that were to be computed again
        self.own = None  # what it has as attributes
        self.left = None  # its modes and buffers behind its last forward
        self.known = False  # a forward is over in which that would have shown
        self.running = False  # a forward that calls its parent class's is one forward
        self.times = []  # of its forwards in the iteration that is learned
        self.attention_times = []  # of each call of attention in them


def is_equal(torch, one, other):
    """Bit by bit: what is no number is the same as itself. A tensor that has no values, or no bytes of its own, is."""
    try:
        return torch.equal(*(tensor.detach().reshape(-1).view(torch.uint8) for tensor in (one, other)))
    except RuntimeError:
        return True


# ---- hooks that copies and pickles of a model survive ----


def layer_of(function):
    """The layer whose call is to be checkpointed, from what transformers passes: its bound call, with keywords;
    None where it is something else."""
    if isinstance(function, functools.partial):
        return function.args[0] if function.args else layer_of(function.func)
    return getattr(function, "__self__", None)


class Ask:
    """What a layer of transformers' calls in the place of torch's checkpoint. A copy asks, too; a pickle has
    torch's checkpoint itself."""

    def __init__(self, recompute):
        self.recompute = recompute

    def __call__(self, function, *arguments, **keywords):
        return self.recompute.run(layer_of(function), function, arguments, keywords)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        from torch.utils.checkpoint import checkpoint

        return functools.partial(checkpoint, use_reentrant=False).__reduce__()


class Called:
    """The hook before a model's forward."""

    def __init__(self, recompute):
        self.recompute = recompute

    def __call__(self, module, arguments, keywords):
        self.recompute.begins(module, arguments, keywords)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        """A pickle's hook is to do nothing where there is no Pleat: it is a callable of torch's that takes anything."""
        import torch

        return getattr, (torch.nn.Identity(), "__init__")


def holds(cache):
    """Whether something is in a cache: a new one is empty."""
    length = getattr(cache, "get_seq_length", None)
    return bool(length() > 0 if length is not None else cache)


class Given(Called):
    """The hook before the forward of one that calls layers of transformers', which give a cache up where they ask: they
    do not in a call with one that holds something already, a prefix say."""

    def __init__(self, torch):
        self.torch = torch
        self.held = False  # in the call before

    def __call__(self, module, arguments, keywords):
        if not self.torch.is_grad_enabled():
            return
        held = any(holds(keywords.get(name)) for name in CACHES)
        if held or self.held:
            self.held = held
            for part in filter(is_layer, module.modules()):
                part.gradient_checkpointing = not held

    def __deepcopy__(self, known):
        return Given(self.torch)
