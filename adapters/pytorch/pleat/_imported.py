"""Does something as soon as a program imports torch, without importing it."""

import importlib.abc
import sys


class Loader(importlib.abc.Loader):
    def __init__(self, loader, finder):
        self.loader = loader
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.loader, name)

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        # What torch itself looks up in its spec is to be its own loader.
        module.__spec__.loader = module.__loader__ = self.loader
        self.finder.before()
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        self.finder.then()


class Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the finders behind it do, and lets Pleat know when it was imported. It stays until
    then: many libraries only ask whether torch is there before somebody imports it."""

    def __init__(self, then, before):
        self.then = then
        self.before = before

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else []:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = Loader(spec.loader, self)
                return spec
        return None


def when_torch_is(then, before=lambda: None):
    """Calls `then` when torch has been imported, and `before` when it is about to be."""
    sys.meta_path.insert(0, Finder(then, before))
