"""torch.jit.script compiles a module from the sources of its forward and its hooks, by the names that these know: while
it does, they are what they are without Pleat."""

import contextlib
import functools

from .blocks import Called

ORIGINAL = "_pleat_original"  # what a function has that stands in another one's place


def stand_in(original):
    """The decorator of such a function."""

    def decorated(function):
        function = functools.wraps(original)(function)
        setattr(function, ORIGINAL, original)
        return function

    return decorated


def original_of(function):
    while hasattr(function, ORIGINAL):
        function = getattr(function, ORIGINAL)
    return function


@contextlib.contextmanager
def as_without(parts):
    """Inside, these modules have their classes' own forwards, and not the hooks."""
    kinds = {kind for part in parts for kind in type(part).__mro__ if hasattr(vars(kind).get("forward"), ORIGINAL)}
    forwards = [(kind, vars(kind)["forward"]) for kind in kinds]
    hooks = [(part._forward_pre_hooks, dict(part._forward_pre_hooks)) for part in parts
             if any(isinstance(hook, Called) for hook in part._forward_pre_hooks.values())]
    try:
        for kind, forward in forwards:
            kind.forward = original_of(forward)
        for mine, all in hooks:
            for key in [key for key, hook in all.items() if isinstance(hook, Called)]:
                del mine[key]
        yield
    finally:
        for kind, forward in forwards:
            kind.forward = forward
        for mine, all in hooks:
            mine.clear()
            mine.update(all)


def install(torch):
    script = torch.jit.script
    if hasattr(script, ORIGINAL):
        return

    @stand_in(script)
    def scripts(obj, optimize=None, _frames_up=0, *arguments, **keywords):
        with as_without(list(obj.modules()) if isinstance(obj, torch.nn.Module) else []):
            return script(obj, optimize, _frames_up + 1, *arguments, **keywords)

    torch.jit.script = scripts
