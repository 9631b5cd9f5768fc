"""Under `pleat estimate`: what tensors without contents would hold, where sizes depend on it.

A program's sizes follow the values of few tensors: tokens that each expert gets, boxes that are kept, lengths. So a
tensor on the GPU that is made of numbers that are known, on the host or by an operator of such, has contents aside,
in the host's memory; a parameter has none, nor has what is computed with one. Where an operator chooses by values
that are not known (topk of a router's scores, a comparison) these are drawn between 0 and 1, and the choice has
contents again. Sizes are then those of an untrained model: each expert is as likely as another.

What is drawn depends only on how the tensor was computed: each storage has a number, made of the operator's and of
those of what it was given. What a checkpoint computes again is then what it was the first time.
"""

import zlib

from . import _errors

# Of aten's operators those that choose by value, whose results the sizes of other tensors may follow.
CHOOSE = frozenset((
    "topk", "sort", "argsort", "argmax", "argmin", "max", "min", "multinomial", "eq", "ne", "lt", "le", "gt", "ge",
    "isfinite", "isinf", "isnan", "bucketize", "searchsorted", "bernoulli"))
# Those that say with one number that no gradient was infinite.
LEAVES = frozenset(("_amp_foreach_non_finite_check_and_unscale_",))
# Of a tensor whose contents are kept or drawn. Masks of experts are whole numbers, one a token, choice and expert.
BYTES_MOST = 64 << 20
BYTES_MOST_WHOLE = 1 << 30
HELD, NUMBER = "_pleat_contents", "_pleat_number"  # of a storage


class Refused(_errors.Refusal):
    """What the program uses has no place among tensors without contents."""

    def __init__(self, name):
        super().__init__("%s cannot be estimated without a GPU: give the program what stands in its "
                         "place, or record it on a GPU" % name)


class Unknown(_errors.Refusal):
    """The shape of what an operator returns depends on values that are not there."""


def leaves(given, found):
    """All that is in lists, tuples and dicts, in one list: an operator takes nothing else that holds tensors."""
    for one in given:
        if isinstance(one, (list, tuple)):
            leaves(one, found)
        elif isinstance(one, dict):
            leaves(one.values(), found)
        else:
            found.append(one)
    return found


class Kind:
    """What is asked of each operator again and again."""

    def __init__(self, function, seeded, has_kernel):
        self.name = function.overloadpacket.__name__
        self.text = str(function)
        self.seeded = seeded in function.tags
        # Whether it is made of others for all devices; names of prim's the dispatcher does not know.
        self.is_composite = function.namespace != "prim" and has_kernel(function.name(), "CompositeImplicitAutograd")
        self.tensors = [place for place, parameter in enumerate(function._schema.arguments)
                        if str(parameter.type) == "Tensor"]
        self.written = [(place, parameter.name) for place, parameter in enumerate(function._schema.arguments)
                        if parameter.alias_info is not None and parameter.alias_info.is_write]

    def of_writes(self, args, kwargs):
        """What it is given to write into."""
        return [args[place] if place < len(args) else kwargs.get(name) for place, name in self.written]


class Contents:
    def __init__(self, torch, fake_type, fakes):
        from torch.utils._pytree import tree_map

        self.torch, self.fake_type, self.fakes = torch, fake_type, fakes
        self.map = tree_map
        self.draws = torch.Generator()
        self.kinds = {}

    # ---- of a tensor ----

    def is_fake(self, leaf):
        return isinstance(leaf, self.fake_type)

    def tensors(self, *given):
        return [leaf for leaf in leaves(given, []) if isinstance(leaf, self.torch.Tensor)]

    def kind(self, function):
        known = self.kinds.get(function)
        if known is None:
            known = self.kinds[function] = Kind(
                function, self.torch.Tag.nondeterministic_seeded, self.torch._C._dispatch_has_kernel_for_dispatch_key)
        return known

    def is_large(self, tensor):
        most = BYTES_MOST if tensor.dtype.is_floating_point else BYTES_MOST_WHOLE
        return tensor.numel() * tensor.element_size() > most

    def of(self, tensor):
        """A tensor on the host with what it holds, which an operator may write into; None: that is not known."""
        if not self.is_fake(tensor):
            return tensor
        held = getattr(tensor.untyped_storage(), HELD, None)
        if held is None or tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
            return None
        whole = self.torch.empty(0, dtype=tensor.dtype)
        try:
            return whole.set_(held, tensor.storage_offset(), tensor.size(), tensor.stride())
        except RuntimeError:  # the storage was given another size
            return None

    def hold(self, tensor, held):
        """Keeps what a tensor on the GPU holds from now on: a tensor of the same size and strides."""
        if (held.stride() != tensor.stride() or held.storage_offset() or held.dtype != tensor.dtype
                or held._is_zerotensor()):  # whose storage is nowhere
            laid = self.torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            held = laid.copy_(held)
        if not self.is_large(held):
            setattr(tensor.untyped_storage(), HELD, held.untyped_storage())

    def forget(self, tensor):
        storage = tensor.untyped_storage()
        if hasattr(storage, HELD):
            delattr(storage, HELD)

    def value(self, tensor):
        """In the place of what a program reads from a tensor of one number: 1 where it is not known."""
        held = self.of(tensor)
        kind = tensor.dtype
        if held is not None:
            return held.item()
        return True if kind is self.torch.bool else 1.0 if kind.is_floating_point else 1

    def read(self, tensor):
        """As value(), of any number of them: a tensor on the host."""
        held = self.of(tensor)
        return self.torch.ones(tensor.size(), dtype=tensor.dtype) if held is None else held.clone()

    # ---- numbers, and what is drawn by them ----

    def number(self, tensor):
        """Of a tensor, whose storage gets one here if it has none: equal where it was computed in the same way."""
        if not self.is_fake(tensor):
            return ("host", tuple(tensor.size()), str(tensor.sum(dtype=self.torch.float64).item())
                    if tensor.device.type == "cpu" and not tensor.is_complex() else "")
        storage = tensor.untyped_storage()
        known = getattr(storage, NUMBER, None)
        if known is None:
            known = zlib.crc32(repr((storage.nbytes(), tensor.dtype)).encode())
            setattr(storage, NUMBER, known)
        return (known, tensor.storage_offset(), tuple(tensor.size()))

    def drawn(self, tensor):
        """Values for a tensor that has none; None: it is too large, or a kind of which nothing says what is likely."""
        if self.is_large(tensor):
            return None
        self.draws.manual_seed(zlib.crc32(repr(self.number(tensor)).encode()))
        if tensor.dtype is self.torch.bool:
            return self.torch.randint(2, tensor.size(), generator=self.draws, dtype=tensor.dtype)
        if not tensor.dtype.is_floating_point:
            return None
        return self.torch.rand(tensor.size(), generator=self.draws).to(tensor.dtype)

    # ---- of an operator ----

    def compute(self, function, args, kwargs, draws):
        """What an operator returns on the host, of contents that are known or, where it `draws`, drawn; None: they
        are not known, or the host has no such operator."""
        there, name = {}, self.kind(function).name
        for tensor in self.tensors(args, kwargs):
            held = self.of(tensor)
            if held is None and draws:
                held = self.drawn(tensor)
            if held is None:
                return None
            # The places are the same, and are found in a seventh of the time where numbers are whole.
            there[id(tensor)] = held.ne(0) if name == "nonzero" else held

        def on_host(leaf):
            if isinstance(leaf, self.torch.device):
                return self.torch.device("cpu")
            return there[id(leaf)] if isinstance(leaf, self.torch.Tensor) else leaf

        kwargs = {name: value for name, value in kwargs.items() if name not in ("pin_memory", "non_blocking", "generator")}
        kept = self.torch.get_rng_state() if self.kind(function).seeded else None
        try:
            return function(*self.map(on_host, args), **self.map(on_host, kwargs))
        except (RuntimeError, TypeError, IndexError):
            return None
        finally:
            if kept is not None:
                self.torch.set_rng_state(kept)

    def follow(self, function, args, kwargs, result):
        """After an operator has returned tensors without contents: what these hold, and their numbers."""
        kind = self.kind(function)
        given = leaves((args, kwargs), [])
        tensors = [leaf for leaf in given if isinstance(leaf, self.torch.Tensor)]
        before = {leaf.untyped_storage()._cdata for leaf in tensors if self.is_fake(leaf)}
        made = leaves((result,), [])
        fresh = [leaf for leaf in made if self.is_fake(leaf) and leaf.untyped_storage()._cdata not in before]
        if not fresh and not kind.written:
            return  # a view
        number = zlib.crc32(repr((kind.text, [self.number(leaf) for leaf in tensors],
                                  [leaf for leaf in given if isinstance(leaf, (int, float, str))])).encode())
        held = self.result_of(function, args, kwargs, kind, fresh)
        written = [leaf for leaf in self.tensors(kind.of_writes(args, kwargs)) if self.is_fake(leaf)]
        if held is None and kind.name not in LEAVES:
            for leaf in written:
                self.forget(leaf)
        for place, leaf in enumerate(written + fresh):
            setattr(leaf.untyped_storage(), NUMBER, number + place)
        if held is None:
            return
        news = {id(leaf) for leaf in fresh}
        for leaf, value in zip(made, leaves((held,), [])):
            if id(leaf) in news and isinstance(value, self.torch.Tensor) and value.size() == leaf.size():
                self.hold(leaf, value)

    def result_of(self, function, args, kwargs, kind, fresh):
        """What it returns on the host; None: that is not known. Numbers at random are nothing that sizes follow."""
        numbers = any(leaf.dtype.is_floating_point for leaf in fresh)
        if kind.name.startswith("empty") or kind.seeded and numbers or any(map(self.is_large, fresh)):
            return None
        return self.compute(function, args, kwargs, kind.name in CHOOSE and bool(fresh))

    def shaped(self, function, args, kwargs):
        """What an operator returns whose shape torch cannot tell without contents; Unknown: nor can this."""
        fake = next((leaf for leaf in self.tensors(args, kwargs) if self.is_fake(leaf)), None)
        done = None if fake is None else self.compute(function, args, kwargs, True)
        if done is None:
            sizes = ", ".join(str(tuple(leaf.size())) for leaf in self.tensors(args, kwargs))
            raise Unknown(
                "what %s returns has a shape that depends on values of tensors of %s, which have no "
                "contents here, and were not drawn; give the program fixed sizes in that place, or record it on a GPU"
                % (function, sizes or "no size")) from None
        number = zlib.crc32(repr((str(function), [self.number(leaf) for leaf in self.tensors(args, kwargs)])).encode())

        def without(leaf):
            if not isinstance(leaf, self.torch.Tensor):
                return leaf
            with self.fakes:
                made = self.torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device=fake.device)
            self.hold(made, leaf)
            setattr(made.untyped_storage(), NUMBER, number)
            return made

        return self.map(without, done)
