"""On the path of programs under `pleat run`: enables Pleat when torch is first imported.

Another sitecustomize, which this one hides, is run first.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _run_hidden():
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    if spec is None or spec.loader is None:
        return
    ours = sys.modules.pop("sitecustomize", None)
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        raise


class _Package(importlib.abc.MetaPathFinder):
    """Finds the package beside this folder, whatever else on the path has its name: a clone of the
    sources beside the script, say, which Python takes for a package without contents."""

    def find_spec(self, name, path, target=None):
        if name != "pleat":
            return None
        folder = os.path.dirname(_HERE)
        return importlib.util.spec_from_file_location(
            "pleat", os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
        )


def _torch_is_there():
    from pleat import _job

    _job.begin(os.environ)


class _Loader(importlib.abc.Loader):
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
        self.loader.exec_module(module)
        if self.finder in sys.meta_path:
            sys.meta_path.remove(self.finder)
        _torch_is_there()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds torch as the finders behind it do, and lets Pleat know when it was imported. It stays until
    then: many libraries only ask whether torch is there before somebody imports it."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        finders = list(sys.meta_path)
        for finder in finders[finders.index(self) + 1 :] if self in finders else []:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self)
                return spec
        return None


try:
    _run_hidden()
finally:
    if os.environ.get("PLEAT_RUN"):
        sys.meta_path[:0] = [_Finder(), _Package()]
        if os.environ.get("PLEAT_RUN_PID") == str(os.getpid()):
            from pleat import _first

            _first.listen(os.environ)
