"""What a forward changes that is no tensor's contents: random numbers that are not torch's, what is in dicts, lists and
attributes. A second run is to find it as the first one did, and to leave it as it was."""

import contextlib
import random
import sys
import types

DEPTH = 4  # of what is looked into (D594): a batch's attributes, their store, what that maps, as PyTorch Geometric has them
GONE, OTHER = object(), object()  # in the place of what is not there, and of what is not looked at
COMPARED = (int, float, str)


class Store:
    """A dict or a list, an object's attributes for instance, and what was in it when this was made."""

    def __init__(self, store, is_looked_at=lambda name, one: True):
        self.store, self.is_looked_at = store, is_looked_at
        self.then = self.now()

    def now(self):
        if isinstance(self.store, list):
            return list(self.store)
        return {name: one if self.is_looked_at(name, one) else OTHER for name, one in self.store.items()}

    def is_one(self, now, then):
        return now is then or now is OTHER or then is OTHER or type(now) is type(then) and type(now) in COMPARED and now == then

    def is_same(self):
        now, then = self.now(), self.then
        pairs = zip(now, then) if isinstance(then, list) else ((now.get(name, GONE), one) for name, one in then.items())
        return len(now) == len(then) and all(self.is_one(*pair) for pair in pairs)

    def put(self):
        """What was in it is in it again."""
        if self.is_same():
            return
        if isinstance(self.then, list):
            self.store[:] = self.then
            return
        now = self.now()
        for name in now.keys() - self.then.keys():
            if now[name] is not OTHER:
                del self.store[name]
        for name, one in self.then.items():
            if not self.is_one(now.get(name, GONE), one):
                self.store[name] = one

    def replace(self, others):
        """By the identity of what was in it: others were."""
        then = self.then
        self.then = ([others.get(id(one), one) for one in then] if isinstance(then, list)
                     else {name: others.get(id(one), one) for name, one in then.items()})

    def again(self):
        """The same with what is in it now."""
        return Store(self.store, self.is_looked_at)


def is_closed(torch, one):
    """Whether nothing is looked for in it."""
    return isinstance(one, (torch.Tensor, torch.nn.Module, type, types.FunctionType, types.MethodType, types.ModuleType))


def stores(torch, value, objects=True):
    """The dicts and lists that a value is made of, and the attributes of its objects."""
    found, seen, waiting = [], set(), [(value, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > DEPTH or id(one) in seen or is_closed(torch, one):
            continue
        seen.add(id(one))
        is_plain = isinstance(one, (dict, list, tuple))
        inside = one if is_plain else getattr(one, "__dict__", ()) if objects else ()
        if isinstance(inside, (dict, list)):
            found.append(Store(inside))
        parts = inside.values() if isinstance(inside, dict) else inside
        waiting += [(part, depth + 1) for part in parts]
    return found


def own_stores(torch, modules):
    """Those of modules' attributes, as far as these are numbers, texts, tensors, lists and dicts: an object may be a
    library's, as FSDP's state is. A tensor of a graph is of the forward that made it: another one does not read it, and it
    is not held for that."""
    left = vars(torch.nn.Module()).keys()

    def is_looked_at(name, one):
        if isinstance(one, torch.Tensor):
            return not one.requires_grad
        return name not in left and (one is None or type(one) in (bool, *COMPARED) or isinstance(one, (dict, list)))

    found = [Store(vars(module), is_looked_at) for module in modules]
    return found + stores(torch, tuple(one for store in found for one in store.then.values()), objects=False)


class Stores:
    """What was in all of these."""

    def __init__(self, stores):
        self.stores = stores

    def is_same(self):
        return all(one.is_same() for one in self.stores)

    def put(self):
        for one in self.stores:
            one.put()

    def again(self):
        """With what is in them now."""
        return type(self)([one.again() for one in self.stores])


class State(Stores):
    """That, and where Python's and numpy's random numbers are."""

    def __init__(self, stores):
        super().__init__(stores)
        self.random, self.numpy = random.getstate(), None
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            kind, keys, *more = numpy.random.get_state()
            self.numpy = kind, keys.tolist(), *more

    def is_same(self):
        now = State([])
        return (now.random, now.numpy) == (self.random, self.numpy) and super().is_same()

    def put(self):
        random.setstate(self.random)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        super().put()


@contextlib.contextmanager
def as_then(then):
    """Inside all is as it was then; None: as it is."""
    if then is None:
        yield
        return
    now = then.again()
    then.put()
    try:
        yield
    finally:
        now.put()
