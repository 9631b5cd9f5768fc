"""On the path of programs under `pleat run` (and `pleat estimate`): enables Pleat when torch is first imported.

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


def _estimate():
    from pleat import _fake

    _fake.begin(os.environ["PLEAT_ESTIMATE"])


def _begin():
    from pleat import _job

    _job.begin(os.environ)


def _stand_before_nccl():
    from pleat import _nccl

    _nccl.stand()


def _when_torch_is_there(then, before=lambda: None):
    """By a file of the package, which itself is not imported before."""
    spec = importlib.util.spec_from_file_location("_pleat_imported", os.path.join(os.path.dirname(_HERE), "_imported.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.when_torch_is(then, before)


try:
    _run_hidden()
finally:
    if os.environ.get("PLEAT_ESTIMATE"):
        sys.meta_path.insert(0, _Package())
        _when_torch_is_there(_estimate)
    elif os.environ.get("PLEAT_RUN"):
        sys.meta_path.insert(0, _Package())
        _when_torch_is_there(_begin, _stand_before_nccl)
        if os.environ.get("PLEAT_RUN_PID") == str(os.getpid()):
            from pleat import _first

            _first.listen(os.environ)
