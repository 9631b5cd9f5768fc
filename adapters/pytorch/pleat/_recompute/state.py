"""What a forward finds and changes that is no tensor's contents: what is in dicts, lists and attributes, random numbers
that are not torch's own. A second run is to find it as the first one did, and to leave it as it was."""

import collections
import contextlib
import functools
import operator
import random
import sys
import types

from .offload import tensors
from .scripted import original_of

DEPTH = 4  # of what is looked into (D594): a batch's attributes, their store, what that maps, as PyTorch Geometric has them
MOST = 4096  # entries of what is looked into: a vocabulary is none that a forward changes
GONE = object()  # in the place of what is not there
HEAP_TYPE = 1 << 9  # of a type's flags: it is defined in Python
CONTAINERS = (dict, list, set, collections.deque)


@functools.lru_cache(maxsize=None)
def plain(torch):
    """Types of what has nothing in it that could change: most arguments and attributes are of these."""
    return frozenset((bool, int, float, complex, str, bytes, type(None), torch.Tensor, torch.nn.Parameter, torch.Size,
                      torch.dtype, torch.device))


def version(tensor):
    """How often it has been written in place."""
    return None if tensor.is_inference() else tensor._version


def are_same(some, others):
    return len(some) == len(others) and all(map(operator.is_, some, others))


class Store:
    """A dict, a list, a set or a deque, and what was in it when this was made."""

    def __init__(self, store):
        self.store, self.then = store, store.copy()

    def parts(self):
        return self.then.values() if isinstance(self.then, dict) else self.then

    def is_same(self):
        if isinstance(self.then, dict):
            return are_same(self.store, self.then) and are_same(self.store.values(), self.then.values())
        return are_same(self.store, self.then)

    def put(self):
        """What was in it is in it again."""
        if self.is_same():
            return
        self.store.clear()
        (self.store.extend if isinstance(self.store, (list, collections.deque)) else self.store.update)(self.then)

    def replace(self, others):
        """By the identity of what was in it: others were."""
        if isinstance(self.then, dict):
            self.then = {name: others.get(id(one), one) for name, one in self.then.items()}
        else:
            self.then = type(self.then)(others.get(id(one), one) for one in self.then)

    def again(self):
        """The same with what is in it now."""
        return type(self)(self.store)


class Attributes(Store):
    """A module's, as far as `is_looked_at` says. Of those that are held only while a second run takes, all."""

    def __init__(self, store, is_looked_at, passes=False):
        self.store, self.is_looked_at = store, is_looked_at
        self.then = store.copy() if passes else {name: one for name, one in store.items() if is_looked_at(name, one)}
        self.names = self.then.keys() if passes else frozenset(store)

    def put(self):
        store, then = self.store, self.then
        if len(store) == len(self.names) and all(map(operator.is_, map(store.get, then), then.values())):
            return
        for name in store.keys() - self.names:
            if self.is_looked_at(name, store[name]):
                del store[name]
        for name, one in then.items():
            now = store.get(name, GONE)
            if now is not one and self.is_looked_at(name, one) and (now is GONE or self.is_looked_at(name, now)):
                store[name] = one

    def again(self):
        return Attributes(self.store, self.is_looked_at, passes=True)


class Alone:
    """What is put back by itself, and has no tensors in it."""

    def parts(self):
        return ()

    def replace(self, others):
        pass


class Drawn(Alone):
    """Where the random numbers of a torch.Generator, or of a random.Random, were."""

    def __init__(self, generator):
        self.generator = generator
        self.state = generator.getstate() if isinstance(generator, random.Random) else generator.get_state()

    def put(self):
        (self.generator.setstate if isinstance(self.generator, random.Random) else self.generator.set_state)(self.state)

    def again(self):
        return Drawn(self.generator)


class Random(Alone):
    """Where Python's and numpy's were."""

    def __init__(self):
        self.random, self.numpy = random.getstate(), None
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, *more = numpy.random.get_state()
            self.numpy = kind, keys.tolist(), *more

    def is_same(self):
        now = Random()
        return (now.random, now.numpy) == (self.random, self.numpy)

    def put(self):
        random.setstate(self.random)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def again(self):
        return Random()


class Trained(Alone):
    """Which of these weights had gradients to come."""

    def __init__(self, weights):
        self.then = [(one, one.requires_grad) for one in weights]

    def put(self):
        for one, was in self.then:
            if one.requires_grad is not was and one.is_leaf:
                one.requires_grad_(was)

    def again(self):
        return Trained([one for one, _ in self.then])


class Stores(list):
    """All of these."""

    def put(self):
        for one in self:
            one.put()

    def again(self):
        """With what is in them now."""
        return Stores(one.again() for one in self)


def is_object(torch, one):
    """Whether it has attributes that a forward may change."""
    closed = (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType)
    return not isinstance(one, closed) and isinstance(getattr(one, "__dict__", None), dict)


def look(torch, value, is_looked_into):
    """What a value is made of: the dicts, lists and others, the attributes of those objects that are looked into, and
    generators; and the modules that are met, and objects with slots, into which nobody looks."""
    found, closed, seen, waiting = Stores(), [], set(), [(value, 0)]
    known = plain(torch)
    while waiting:
        one, depth = waiting.pop()
        if type(one) in known or depth > DEPTH or id(one) in seen:
            continue
        seen.add(id(one))
        inside = ()
        if isinstance(one, torch.nn.Module):
            closed.append(one)
        elif isinstance(one, (torch.Generator, random.Random)):
            found.append(Drawn(one))
        elif isinstance(one, (*CONTAINERS, tuple)):
            inside = one
        elif is_object(torch, one) and is_looked_into(one):
            inside = vars(one)
        elif getattr(type(one), "__slots__", ()) and type(one).__flags__ & HEAP_TYPE and is_looked_into(one):
            closed.append(one)
        if len(inside) > MOST:
            continue
        if isinstance(inside, CONTAINERS):
            found.append(Store(inside))
        for part in inside.values() if isinstance(inside, dict) else inside:
            if type(part) not in known:
                waiting.append((part, depth + 1))
    return found, closed


def named(module, home):
    """What a module's forward and its hooks name that is neither theirs nor an argument: lists of activations, say."""
    functions = [module.forward, *module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    for one in functions:
        one = original_of(getattr(one, "__func__", one))
        if isinstance(one, types.FunctionType) and one.__module__ == home:
            for cell in one.__closure__ or ():
                with contextlib.suppress(ValueError):  # it is empty
                    yield cell.cell_contents
            yield from (one.__globals__[name] for name in one.__code__.co_names if name in one.__globals__)


class Part:
    """One of a block's modules, whose attributes are noted in each forward: anew only where they are not those of the
    forward before. Nothing that has tensors is held from one forward to the next."""

    def __init__(self, module, own):
        self.module, self.own = module, own
        self.store, self.getter = vars(module), None

    def counts(self):
        return len(self.store), len(self.store["_forward_hooks"]), len(self.store["_forward_pre_hooks"])

    def is_same(self):
        if self.getter is None or self.counts() != self.counted:
            return False
        try:
            is_same = all(map(operator.is_, self.getter(self.store), self.values))
        except KeyError:
            return False
        return is_same and all([one.is_same() for one in self.inside])

    def note(self):
        """Returns what is in it, and whether that has tensors or moves by itself."""
        torch, own = self.own.torch, self.own
        mine = Attributes(self.store, own.is_looked_at)
        self.inside, self.closed = look(torch, (*mine.then.values(), *named(self.module, own.home)), own.is_ours)
        noted = [mine, *self.inside, *([Store(self.module._buffers)] if self.module._buffers else [])]
        names = [name for name in self.store if name not in own.slots]  # of one name the getter would return no tuple
        moves = any(isinstance(one, torch.Tensor) for one in map(self.store.get, names)) or any(
            isinstance(one, Drawn) or any(isinstance(part, torch.Tensor) for part in one.parts()) for one in noted)
        self.noted, self.getter = noted, None
        if moves:
            self.noted = None
        else:
            self.counted, self.getter = self.counts(), operator.itemgetter(*names, "training")
            self.values = self.getter(self.store)
        return noted, moves


class Own:
    """What a block has as attributes: numbers, texts, tensors, lists, dicts and the like, and objects of classes that are
    defined where its own is, as those of others may be a library's, which has FSDP's state there for instance. A tensor
    of a graph is of the forward that made it: another one does not read it, and it is not held for that."""

    def __init__(self, torch, module):
        self.torch, self.module = torch, module
        self.slots = vars(torch.nn.Module()).keys() - {"training"}
        self.home = type(module).__module__
        self.parts, self.children = [], None

    def is_ours(self, one):
        return type(one).__module__ == self.home

    def is_looked_at(self, name, one):
        torch = self.torch
        if isinstance(one, torch.Tensor):
            return not one.requires_grad
        kinds = bool, int, float, str, tuple, torch.Generator, random.Random, *CONTAINERS
        return name not in self.slots and (one is None or isinstance(one, kinds)
                                           or is_object(torch, one) and self.is_ours(one))

    def find(self):
        """The modules that are part of it, also in lists; one that it is part of itself is none."""
        found = {part: Part(part, self) for part in self.module.modules()}
        self.children = [(one._modules, list(one._modules.values())) for one in found if one._modules]
        for part in list(found.values()):
            part.note()
            for other in part.closed:
                if isinstance(other, self.torch.nn.Module) and all(one is not self.module for one in other.modules()):
                    found.update((one, Part(one, self)) for one in other.modules() if one not in found)
        self.parts = list(found.values())
        self.weights = [vars(one)["_parameters"] for one in found]
        self.buffers = [vars(one)["_buffers"] for one in found]

    def note(self):
        """Returns it as it is, and the tensors of that."""
        if self.children is None or not all(are_same(now.values(), then) for now, then in self.children):
            self.find()
        noted, having = Stores(), []
        for part in self.parts:
            one, moves = (part.noted, False) if part.is_same() else part.note()
            noted += one
            if moves:
                having += one
        noted.append(Trained([one for named in self.weights for one in named.values() if one is not None]))
        return noted, list(tensors(self.torch, [list(one.parts()) for one in having]))

    def names(self):
        """Which buffers it has."""
        return [(name, id(one)) for named in self.buffers if named for name, one in named.items()]

    def left(self):
        """What a forward finds as the one before left it, unless the program has begun something else."""
        trains = [part.store["training"] for part in self.parts]
        return trains, [(id(one), version(one)) for named in self.buffers if named for one in named.values() if one is not None]


@contextlib.contextmanager
def as_then(then):
    """Inside all is as it was then."""
    now = then.again()
    then.put()
    try:
        yield
    finally:
        now.put()
