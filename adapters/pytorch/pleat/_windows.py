"""Windows of modules whose requests vary: found while a job runs, told to the runtime as phases.

Most jobs ask for the same memory in every iteration, and pay one question an iteration here. Of those
that do not, most need no windows: the runtime follows sizes that change, and finds its way among
requests that come and go. (A hook on every module costs some 5 to 10 us a call, most of it torch's:
24 ms in an iteration of generation with 2,448 of them.) Where an iteration's bytes differ from the
one's before and too few requests found the place that was meant for them, every module's forward is
looked at for some iterations: what it asked for, its children's share included. Where a plan is to be
saved they are looked at at once, so that most of what is recorded has windows. A module varies when
what it asks for differs. Going down from the model, a window is the first varying module of which
little is steady (a layer's experts together, but not the block around them). Where nothing below the
model is steady, the job as a whole varies, and there are no windows.

A window is entered and left by hooks on that module alone: around its forward, in a forward that runs
again within backward (recomputation) under a name of its own, and around its backward, from the
gradient of its output to that of its input. Autograd runs on threads of its own; the runtime's phase
is the process's, so it does not matter which thread says so. Where torch.compile has compiled anything
no module is looked at (D472): what it compiles while every module has a hook it compiles again when those go.
"""

import contextlib
import sys
import threading
import weakref

SETTLING = 2  # iterations at the start that make states and workspaces
LOOKED_AT = 3  # iterations in which every module is
MOST_CALLS = 1 << 20  # of modules, in one iteration that is looked at; with more it has no end
PATIENCE = 8  # iterations in which the runtime finds out by itself
WELL_SERVED = 0.95  # of an iteration's requests found the place that was meant for them
BACKWARD = ".backward"  # behind a window's name
STEADY_SHARE = 0.25  # of a module's bytes: with more of them its parts are looked at


class Calls:
    """What one module asked for, call by call, in this iteration and in those before."""

    def __init__(self):
        self.now = []
        self.before = None
        self.varies = False
        self.bytes = 0
        self.children = []
        self.is_root = False

    def end(self):
        self.varies |= self.before is not None and self.now != self.before
        self.bytes = max(self.bytes, sum(self.now))
        self.before, self.now = self.now, []


def has_compiled():
    """Whether torch.compile has compiled anything in this process."""
    counters = getattr(sys.modules.get("torch._dynamo.utils"), "counters", {})
    return bool(counters.get("frames"))


def steady_bytes(calls):
    if not calls.varies:
        return calls.bytes
    return sum(steady_bytes(child) for child in calls.children)


def is_mixed(calls):
    """Whether its parts are to be looked at: some vary, and much of it does not."""
    return any(child.varies for child in calls.children) and (
        steady_bytes(calls) >= STEADY_SHARE * calls.bytes
    )


def choose(root):
    """The varying ones that are windows, below `root`, which itself is none.

    Several that vary as a whole side by side (a layer's experts) are one window: the module they are
    in.
    """
    found = []
    waiting = [root] if is_mixed(root) else []
    while waiting:
        calls = waiting.pop()
        varying = [child for child in calls.children if child.varies]
        whole = [child for child in varying if not is_mixed(child)]
        if len(whole) > 1 and calls is not root:
            found.append(calls)
            continue
        found += whole
        waiting += [child for child in varying if is_mixed(child)]
    return found


class Served:
    """The share of the requests since the last call that found the place that was meant for them.
    `counted` returns both since the start: requests, and those of them."""

    def __init__(self, counted):
        self.counted = counted
        self.before = (0, 0)

    def __call__(self):
        now = self.counted()
        requests, placed = (a - b for a, b in zip(now, self.before))
        self.before = now
        return placed / requests if requests else 1.0


class Hook:
    """What a window's module calls. Copies of the module call it, too; one that is saved whole takes along
    what does nothing and is there wherever torch is."""

    def __init__(self, torch, told, name):
        self.torch = torch
        self.told = told
        self.name = name
        self.key = None  # of the one behind the forward, among the module's

    def __call__(self, module, *called):
        # A tool that fuses modules moves the hook before the first one and that behind the last one to
        # another, without their keywords: what would be entered and not left, or not entered, is no window.
        if self.key in module._forward_hooks:
            self.told(self.name, *called)

    def __deepcopy__(self, known):
        return self

    def __reduce__(self):
        return getattr, (self.torch.nn.Identity(), "__init__")


class Windows:
    """`taken` returns the bytes that were ever asked for, `enter` tells the runtime a phase's name,
    `served` the share of the requests since it was asked last that the runtime had a place for; None:
    modules are looked at however large it is."""

    def __init__(self, torch, taken, enter, served=None):
        self.torch = torch
        self.taken = taken
        self.enter = enter
        self.served = served
        self.iterations = 0
        self.begun_at = 0
        self.last = None  # bytes of the iteration before
        # While looking: module -> Calls. Some modules are made anew in each forward, and not to be kept.
        self.calls = weakref.WeakKeyDictionary()
        self.counted = 0  # calls in this iteration
        self.stacks = {}  # while looking: thread -> its open calls, (Calls, bytes at its call)
        self.global_hooks = []
        self.asked_at = None  # the iteration at whose end `served` was asked last
        self.looked = 0  # iterations; LOOKED_AT: done
        self.found = False  # there have been windows
        self.names = weakref.WeakKeyDictionary()  # the windows' modules -> names
        self.inside = []  # names of the windows entered
        self.leaf_hooks = []  # of this iteration, on tensors that outlive it

    # ---- at the end of each iteration ----

    def mark(self):
        now = self.taken()
        bytes, self.begun_at = now - self.begun_at, now
        self.iterations += 1
        for hook in self.leaf_hooks:
            hook.remove()
        self.leaf_hooks.clear()
        if self.inside:
            # An exception may have left some open.
            self.inside.clear()
            self.enter("")
        if self.global_hooks:
            self.look_again()
        elif self.last not in (None, bytes) and self.is_wanted():
            self.look()
        self.last = bytes if self.iterations >= SETTLING else None

    def is_wanted(self):
        """Whether modules are looked at, now that an iteration differs."""
        if self.found and not self.names:
            # They went with their model, and this is another one.
            self.looked, self.found = 0, False
        if self.looked or self.iterations <= SETTLING or has_compiled():
            return False
        if self.served is None:
            return True
        if self.iterations < PATIENCE:
            return False
        share = self.served()
        # Of more than one iteration it says what was long ago: the next that differs is asked about.
        one, self.asked_at = self.asked_at == self.iterations - 1, self.iterations
        return one and share < WELL_SERVED

    # ---- looking at every module ----

    def look(self):
        module = self.torch.nn.modules.module
        self.global_hooks = [
            module.register_module_forward_pre_hook(self.called),
            module.register_module_forward_hook(self.returned, always_call=True),
        ]

    def called(self, module, arguments):
        if self.torch.compiler.is_compiling():
            return
        self.counted += 1
        if self.counted > MOST_CALLS:
            # Training is over, say, and an evaluation goes on for hours.
            self.look_away()
            self.looked = 0
            return
        stack = self.stacks.setdefault(threading.get_ident(), [])
        calls = self.calls.get(module)
        if calls is None:
            calls = self.calls[module] = Calls()
            if stack:
                stack[-1][0].children.append(calls)
            else:
                calls.is_root = not self.in_backward()
        stack.append((calls, self.taken()))

    def returned(self, module, arguments, output):
        if self.torch.compiler.is_compiling():  # ahead of all else: a compiler cannot trace what follows
            return
        own = self.calls.get(module)
        if own is None:
            return
        # A module that raised has not taken its place away.
        stack = self.stacks.get(threading.get_ident())
        while stack:
            calls, before = stack.pop()
            calls.now.append(self.taken() - before)
            if calls is own:
                break

    def in_backward(self):
        return self.torch._C._current_graph_task_id() != -1

    def look_again(self):
        self.stacks.clear()
        self.counted = 0
        looked_at = self.looked_at()
        for calls in looked_at.values():
            calls.end()
        self.looked += 1
        if self.looked < LOOKED_AT:
            return
        roots = [module for module, calls in looked_at.items() if calls.is_root]
        chosen = {id(calls) for root in roots for calls in choose(looked_at[root])}
        for number, root in enumerate(roots):
            # Of a pipeline's stages each is a root.
            stage = "%d." % number if len(roots) > 1 else ""
            for name, module in root.named_modules():
                if id(looked_at.get(module)) in chosen:
                    self.add(module, stage + name)
        self.look_away()

    def looked_at(self):
        """Modules that are there still, and their calls, in the order of their first ones."""
        calls = self.calls
        modules = [known() for known in calls.keyrefs()]  # At once: other threads may call modules.
        return {module: calls[module] for module in modules if module is not None}

    def look_away(self):
        for hook in self.global_hooks:
            hook.remove()
        self.global_hooks = []
        self.calls, self.stacks, self.counted = weakref.WeakKeyDictionary(), {}, 0

    # ---- windows ----

    def add(self, module, name):
        self.names[module] = name
        self.found = True
        before, after = (Hook(self.torch, told, name) for told in (self.before_forward, self.after_forward))
        module.register_forward_pre_hook(before, with_kwargs=True)
        handle = module.register_forward_hook(after, always_call=True, with_kwargs=True)
        before.key = after.key = handle.id
        # torch.jit.script compiles a module's hooks, too, and cannot compile these. It asks for this first.
        self.torch.nn.Module.__prepare_scriptable__ = lambda module: self.forget(module)

    def forget(self, module):
        """Makes a module no window, and returns it. Where it was the last one, others are looked for."""
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                del hooks[key]
        self.names.pop(module, None)
        return module

    def push(self, name):
        if name.endswith(BACKWARD):
            with contextlib.suppress(ValueError):  # One whose end never came is over when the next begins.
                self.inside.remove(name)
        self.inside.append(name)
        self.enter(name)

    def pop(self, name):
        """Leaves a window and what was entered in it; one that was left already is left alone."""
        if name not in self.inside:
            return
        with contextlib.suppress(IndexError):  # Another thread left it in between.
            while self.inside.pop() != name:
                pass
        self.enter("".join(self.inside[-1:]))

    def forward_name(self, name):
        return name + (".again" if self.in_backward() else "")

    def before_forward(self, name, arguments, keywords):
        if not self.torch.compiler.is_compiling():
            self.push(self.forward_name(name))

    def after_forward(self, name, arguments, keywords, output):
        if self.torch.compiler.is_compiling():
            return
        self.pop(self.forward_name(name))
        if not self.torch.is_grad_enabled():
            return
        behind = name + BACKWARD
        begins, ends = self.with_gradient(output), self.with_gradient((arguments, keywords))
        # What has no end must not begin, and what is passed through ends before it begins.
        if begins is not ends and self.hook_gradient(ends, lambda: self.pop(behind)):
            self.hook_gradient(begins, lambda: self.push(behind))

    def hook_gradient(self, tensor, told):
        """Calls `told` when the tensor's gradient is known. Returns whether it can be."""
        if tensor is None:
            return False

        def hook(gradient):
            told()

        try:
            handle = tensor.register_hook(hook)
        except RuntimeError:
            return False
        # With a graph's tensor its hooks go; a parameter would collect them.
        if tensor.is_leaf:
            self.leaf_hooks.append(handle)
        return True

    def with_gradient(self, value):
        """The first tensor in `value` that has a gradient, or None."""
        waiting = [value]
        while waiting:
            one = waiting.pop()
            if isinstance(one, self.torch.Tensor):
                if one.requires_grad:
                    return one
            elif isinstance(one, (tuple, list)):
                waiting.extend(reversed(one))
            elif isinstance(one, dict):
                waiting.extend(reversed(list(one.values())))
        return None
