"""Optimizers' steps as the ends of iterations.

One optimizer's steps are marks: the first one's that stepped, until it is gone, or another one has
stepped MOST_STEPS times since its last and so goes on alone. An iteration may step more than once: an
optimizer that is given its parameters part by part (as ZeRO does) marks when it has a part again, and a
step behind which nothing was asked for, as where a class's step calls that of its parent, is none. Nor
is one where the program has said itself, since the step before, that an iteration ends.
"""

import weakref

MOST_STEPS = 64
MOST_PARTS = 256  # an optimizer with more of them gets others in each step


def part_of(optimizer):
    """What tells the parameters that an optimizer has now from those that it had before."""
    for group in optimizer.param_groups:
        if group["params"]:
            return id(group["params"][0])
    return None


class Steps:
    """`mark` says that an iteration ends, `taken` returns the bytes that were ever asked for."""

    def __init__(self, mark, taken):
        self.mark = mark
        self.taken = taken
        self.first = None
        self.others = weakref.WeakKeyDictionary()  # optimizers -> steps since the first one's last
        self.parts = set()  # stepped since the last mark
        self.in_parts = True  # that another part steps says nothing
        self.marked_at = None  # bytes
        self.told = False  # by the program, since the last step that would be a mark

    def __call__(self, optimizer, *_):
        """The hook: an optimizer has stepped."""
        if self.first is None:
            self.first = weakref.ref(optimizer)
        if self.first() is optimizer:
            self.others.clear()
            self.stepped(part_of(optimizer))
            return
        self.others[optimizer] = self.others.get(optimizer, 0) + 1
        if self.first() is None or self.others[optimizer] >= MOST_STEPS:
            self.first = weakref.ref(optimizer)
            self.others.clear()
            self.parts.clear()

    def stepped(self, part):
        if self.in_parts and self.parts and part not in self.parts:
            self.parts.add(part)
            self.in_parts = len(self.parts) <= MOST_PARTS
            return
        now = self.taken()
        if now == self.marked_at:
            return
        self.marked_at, self.parts = now, {part}
        told, self.told = self.told, False
        if not told:
            self.mark()
